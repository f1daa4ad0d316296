//! Settings that somebody else changes while a run needs them: how often they are put back, and what is told.
//!
//! In: what a setting should say and says. Out: whether it may be put back, a line when that changes, and a note for as
//! long as it matters.
//!
//! 1. Once is an accident (`sysctl --system`, another path manager that was started), and is mended at once.
//! 2. Again and again is somebody's will. [`MOST`] times in a minute it is mended; then the run gives up, until the
//!    setting is right again by whatever hand.
//! 3. Connections that were opened meanwhile keep the path manager that they found: so the note stays.
//!
//! [`super::route_repair`] was not used: what is refused there is put back a minute later, again and again, and each time all
//! new connections would change hands. A rule may flicker, a path manager may not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// One setting that a run holds.
#[derive(Debug)]
pub(super) struct HeldSysctl {
    /// Its name, with dots.
    pub(super) name: &'static str,
    /// What the run needs.
    pub(super) value: String,
    repairs: VecDeque<Instant>,
    repair_count: u32,
    /// What somebody insists on.
    foreign_value: Option<String>,
    purpose: SysctlPurpose,
}

/// What a setting is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SysctlPurpose {
    /// The steering of MPTCP connections.
    ManagedPaths,
    /// The packets of a LAN that are forwarded.
    Forwarding,
}

impl HeldSysctl {
    /// A setting that says what it should.
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

    /// A setting by which the host forwards a LAN's packets.
    pub(super) const fn for_forwarding(name: &'static str, value: String) -> Self {
        let repairs = VecDeque::new();
        Self { name, value, repairs, repair_count: 0, foreign_value: None, purpose: SysctlPurpose::Forwarding }
    }

    /// What goes wrong for as long as it is wrong.
    const fn consequence(&self) -> &'static str {
        match self.purpose {
            SysctlPurpose::ManagedPaths => "new connections are not steered",
            SysctlPurpose::Forwarding => "UDP and the rest of the LAN do not pass",
        }
    }

    /// What may have gone wrong while it was.
    const fn past_consequence(&self) -> &'static str {
        match self.purpose {
            SysctlPurpose::ManagedPaths => "Connections opened meanwhile may not be steered",
            SysctlPurpose::Forwarding => "UDP and the rest of the LAN did not pass meanwhile",
        }
    }

    /// It was found as it should be. Returns a line if it was given up before.
    pub(super) fn on_correct(&mut self) -> Option<String> {
        let Self { name, value, .. } = self;
        self.foreign_value.take().map(|_| format!("{name}: {value} again, by somebody else's hand"))
    }

    /// It was found otherwise: whether it may be put back. If not, a line when that is new.
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
        Err(Some(self.give_up(found, "somebody sets it again and again")))
    }

    /// It was put back. Returns the line.
    pub(super) fn on_repaired(&mut self, now: Instant, found: &str) -> String {
        self.repairs.push_back(now);
        self.repair_count += 1;
        let (Self { name, value, .. }, past_consequence) = (&*self, self.past_consequence());
        format!("{name}: somebody has set it to {found}; it is {value} again. {past_consequence}")
    }

    /// It cannot be put back, or is not any more. Returns the line.
    pub(super) fn give_up(&mut self, found: &str, reason: &str) -> String {
        self.foreign_value = Some(found.to_owned());
        let (Self { name, value, .. }, consequence) = (&*self, self.consequence());
        format!(
            "{name}: left at {found}, as {reason}: {consequence} until it is {value} (`sysctl -w {name}={value}`)"
        )
    }

    /// What a status tells of it; none: nobody has touched it.
    pub(super) fn note(&self) -> Option<String> {
        let (Self { name, value, repair_count, .. }, consequence) = (self, self.consequence());
        match &self.foreign_value {
            Some(found) => Some(format!(
                "{name} is {found}, which somebody else has set: {consequence} until it is {value} (`sysctl -w {name}={value}`)"
            )),
            None if *repair_count > 0 && self.purpose == SysctlPurpose::ManagedPaths => Some(format!(
                "{name} was changed by somebody else and put back {repair_count} times: connections opened meanwhile may not \
                 be steered"
            )),
            None => None,
        }
    }
}

/// chosen: as for rules that are removed; a machine that is set up anew applies its settings two or three times.
const MAX_REPAIRS: usize = 6;
/// chosen: as for rules that are removed.
const REPAIR_WINDOW: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_insists_on_is_left_after_a_few_times_until_it_is_right_again() {
        let (mut held_sysctl, start) =
            (HeldSysctl::new("net.mptcp.path_manager", "userspace".into()), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!((held_sysctl.on_correct(), held_sysctl.note()), (None, None));
        for n in 0..6 {
            assert_eq!(held_sysctl.on_changed(start + n * second, "kernel"), Ok(()));
            let message = held_sysctl.on_repaired(start + n * second, "kernel");
            assert!(message.contains("somebody has set it to kernel; it is userspace again"), "{message}");
        }
        assert!(held_sysctl.note().unwrap().contains("put back 6 times"), "{:?}", held_sysctl.note());
        let message = held_sysctl.on_changed(start + 6 * second, "kernel").unwrap_err().unwrap();
        assert!(
            message.contains("left at kernel") && message.contains("`sysctl -w net.mptcp.path_manager=userspace`")
        );
        assert_eq!(held_sysctl.on_changed(start + 600 * second, "kernel"), Err(None), "once, and for good");
        assert!(
            held_sysctl.note().unwrap().contains("is kernel, which somebody else has set"),
            "{:?}",
            held_sysctl.note()
        );
        assert!(held_sysctl.on_correct().unwrap().contains("userspace again, by somebody else's hand"));
        assert_eq!(held_sysctl.on_changed(start + 601 * second, "kernel"), Ok(()), "then it begins anew");
    }
}
