//! Repair of settings that another program changes while a run needs them.
//!
//! 1. One change is an accident (`sysctl --system`, another path manager that was started), and is reverted at once.
//! 2. Repeated changes are intended. A setting is reverted [`MAX_REPAIRS`] times per [`REPAIR_WINDOW`]. Then the run
//!    gives up until the setting has the right value again, set by whatever program.
//! 3. Connections that were opened meanwhile keep the path manager that they found, so the note in the status
//!    remains.
//!
//! [`super::route_repair`] does not serve for this: it resumes repairs after a minute, again and again, and each
//! repair here would change the path manager of all new connections. A rule may flicker, a path manager may not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A setting that must keep its value during a run.
#[derive(Debug)]
pub(super) struct HeldSysctl {
    /// Name, with dots.
    pub(super) name: &'static str,
    /// Value that the run needs.
    pub(super) value: String,
    repairs: VecDeque<Instant>,
    repair_count: u32,
    /// Value of another program, after the run has given up.
    foreign_value: Option<String>,
    purpose: SysctlPurpose,
}

/// Purpose of a setting, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SysctlPurpose {
    /// Management of MPTCP connections.
    ManagedPaths,
    /// Forwarding of a LAN's packets.
    Forwarding,
}

impl HeldSysctl {
    /// A held setting for path management.
    pub(super) const fn new(name: &'static str, value: String) -> Self {
        Self {
            name,
            value,
            repairs: VecDeque::new(),
            repair_count: 0,
            foreign_value: None,
            purpose: SysctlPurpose::ManagedPaths,
        }
    }

    /// A held setting for forwarding of a LAN's packets.
    pub(super) const fn for_forwarding(name: &'static str, value: String) -> Self {
        let repairs = VecDeque::new();
        Self { name, value, repairs, repair_count: 0, foreign_value: None, purpose: SysctlPurpose::Forwarding }
    }

    /// Consequence while the value is wrong.
    const fn consequence(&self) -> &'static str {
        match self.purpose {
            SysctlPurpose::ManagedPaths => "new connections are not managed",
            SysctlPurpose::Forwarding => "UDP and other non-TCP traffic of the LAN is not forwarded",
        }
    }

    /// Possible consequence of a wrong value in the past.
    const fn past_consequence(&self) -> &'static str {
        match self.purpose {
            SysctlPurpose::ManagedPaths => "Connections opened meanwhile may be unmanaged",
            SysctlPurpose::Forwarding => "UDP and other non-TCP traffic of the LAN was not forwarded meanwhile",
        }
    }

    /// Handles a correct value. Returns a line if the run had given up before.
    pub(super) fn on_correct(&mut self) -> Option<String> {
        let Self { name, value, .. } = self;
        self.foreign_value.take().map(|_| format!("{name}: {value} again, set by another program"))
    }

    /// Handles a wrong value: whether it may be restored. If not, the error has a line when that is new.
    pub(super) fn on_changed(&mut self, now: Instant, found: &str) -> Result<(), Option<String>> {
        if self.foreign_value.is_some() {
            return Err(None);
        }
        while self.repairs.front().is_some_and(|at| now.duration_since(*at) >= REPAIR_WINDOW) {
            self.repairs.pop_front();
        }
        if self.repairs.len() < MAX_REPAIRS {
            return Ok(());
        }
        Err(Some(self.give_up(found, "another program sets it repeatedly")))
    }

    /// Records a repair and returns the line to report.
    pub(super) fn on_repaired(&mut self, now: Instant, found: &str) -> String {
        self.repairs.push_back(now);
        self.repair_count += 1;
        let (Self { name, value, .. }, past_consequence) = (&*self, self.past_consequence());
        format!("{name}: another program set it to {found}; restored to {value}. {past_consequence}")
    }

    /// Gives up and returns the line to report.
    pub(super) fn give_up(&mut self, found: &str, reason: &str) -> String {
        self.foreign_value = Some(found.to_owned());
        let (Self { name, value, .. }, consequence) = (&*self, self.consequence());
        format!(
            "{name}: left at {found}, as {reason}: {consequence} until it is {value} (`sysctl -w {name}={value}`)"
        )
    }

    /// Note for the status; none: the setting was never changed by another program.
    pub(super) fn note(&self) -> Option<String> {
        let (Self { name, value, repair_count, .. }, consequence) = (self, self.consequence());
        match &self.foreign_value {
            Some(found) => Some(format!(
                "{name} is {found}, set by another program: {consequence} until it is {value} (`sysctl -w {name}={value}`)"
            )),
            None if *repair_count > 0 && self.purpose == SysctlPurpose::ManagedPaths => Some(format!(
                "{name} was changed by another program and restored {repair_count} times: connections opened meanwhile may \
                 be unmanaged"
            )),
            None => None,
        }
    }
}

/// Our choice: as for removed rules; tools that configure a host apply its settings two or three times.
const MAX_REPAIRS: usize = 6;
/// Our choice: as for removed rules.
const REPAIR_WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_changed_repeatedly_is_left_until_it_is_right_again() {
        let (mut held_sysctl, start) =
            (HeldSysctl::new("net.mptcp.path_manager", "userspace".into()), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!((held_sysctl.on_correct(), held_sysctl.note()), (None, None));
        for n in 0..6 {
            assert_eq!(held_sysctl.on_changed(start + n * second, "kernel"), Ok(()));
            let message = held_sysctl.on_repaired(start + n * second, "kernel");
            assert!(message.contains("another program set it to kernel; restored to userspace"), "{message}");
        }
        assert!(held_sysctl.note().unwrap().contains("restored 6 times"), "{:?}", held_sysctl.note());
        let message = held_sysctl.on_changed(start + 6 * second, "kernel").unwrap_err().unwrap();
        assert!(
            message.contains("left at kernel") && message.contains("`sysctl -w net.mptcp.path_manager=userspace`")
        );
        assert_eq!(
            held_sysctl.on_changed(start + 600 * second, "kernel"),
            Err(None),
            "reported once, and no further repair"
        );
        assert!(
            held_sysctl.note().unwrap().contains("is kernel, set by another program"),
            "{:?}",
            held_sysctl.note()
        );
        assert!(held_sysctl.on_correct().unwrap().contains("userspace again, set by another program"));
        assert_eq!(
            held_sysctl.on_changed(start + 601 * second, "kernel"),
            Ok(()),
            "afterwards repairs are permitted again"
        );
    }
}
