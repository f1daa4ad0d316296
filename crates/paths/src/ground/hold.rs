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
//! [`super::contest`] was not used: what is refused there is put back a minute later, again and again, and each time all
//! new connections would change hands. A rule may flicker, a path manager may not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// One setting that a run holds.
#[derive(Debug)]
pub(super) struct Hold {
    /// Its name, with dots.
    pub(super) name: &'static str,
    /// What the run needs.
    pub(super) set: String,
    mended: VecDeque<Instant>,
    times: u32,
    /// What somebody insists on.
    lost_to: Option<String>,
    concerns: Concern,
}

/// What a setting is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    /// The steering of MPTCP connections.
    Steering,
    /// The packets of a LAN that are forwarded.
    Forwarding,
}

impl Hold {
    /// A setting that says what it should.
    pub(super) const fn new(name: &'static str, set: String) -> Self {
        Self { name, set, mended: VecDeque::new(), times: 0, lost_to: None, concerns: Concern::Steering }
    }

    /// A setting by which the host forwards a LAN's packets.
    pub(super) const fn of_forwarding(name: &'static str, set: String) -> Self {
        let mended = VecDeque::new();
        Self { name, set, mended, times: 0, lost_to: None, concerns: Concern::Forwarding }
    }

    /// What goes wrong for as long as it is wrong.
    const fn without(&self) -> &'static str {
        match self.concerns {
            Concern::Steering => "new connections are not steered",
            Concern::Forwarding => "UDP and the rest of the LAN do not pass",
        }
    }

    /// What may have gone wrong while it was.
    const fn meanwhile(&self) -> &'static str {
        match self.concerns {
            Concern::Steering => "Connections opened meanwhile may not be steered",
            Concern::Forwarding => "UDP and the rest of the LAN did not pass meanwhile",
        }
    }

    /// It was found as it should be. Returns a line if it was given up before.
    pub(super) fn is_right(&mut self) -> Option<String> {
        let Self { name, set, .. } = self;
        self.lost_to.take().map(|_| format!("{name}: {set} again, by somebody else's hand"))
    }

    /// It was found otherwise: whether it may be put back. If not, a line when that is new.
    pub(super) fn is_wrong(&mut self, now: Instant, found: &str) -> Result<(), Option<String>> {
        if self.lost_to.is_some() {
            return Err(None);
        }
        while self.mended.front().is_some_and(|at| now.duration_since(*at) >= LONG_AGO) {
            self.mended.pop_front();
        }
        if self.mended.len() < MOST {
            return Ok(());
        }
        Err(Some(self.lose(found, "somebody sets it again and again")))
    }

    /// It was put back. Returns the line.
    pub(super) fn is_mended(&mut self, now: Instant, found: &str) -> String {
        self.mended.push_back(now);
        self.times += 1;
        let (Self { name, set, .. }, meanwhile) = (&*self, self.meanwhile());
        format!("{name}: somebody has set it to {found}; it is {set} again. {meanwhile}")
    }

    /// It cannot be put back, or is not any more. Returns the line.
    pub(super) fn lose(&mut self, found: &str, why: &str) -> String {
        self.lost_to = Some(found.to_owned());
        let (Self { name, set, .. }, without) = (&*self, self.without());
        format!("{name}: left at {found}, as {why}: {without} until it is {set} (`sysctl -w {name}={set}`)")
    }

    /// What a status tells of it; none: nobody has touched it.
    pub(super) fn note(&self) -> Option<String> {
        let (Self { name, set, times, .. }, without) = (self, self.without());
        match &self.lost_to {
            Some(found) => Some(format!(
                "{name} is {found}, which somebody else has set: {without} until it is {set} (`sysctl -w {name}={set}`)"
            )),
            None if *times > 0 && self.concerns == Concern::Steering => Some(format!(
                "{name} was changed by somebody else and put back {times} times: connections opened meanwhile may not \
                 be steered"
            )),
            None => None,
        }
    }
}

/// chosen: as for rules that are removed; a machine that is set up anew applies its settings two or three times.
const MOST: usize = 6;
/// chosen: as for rules that are removed.
const LONG_AGO: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_insists_on_is_left_after_a_few_times_until_it_is_right_again() {
        let (mut hold, begun) = (Hold::new("net.mptcp.path_manager", "userspace".into()), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!((hold.is_right(), hold.note()), (None, None));
        for n in 0..6 {
            assert_eq!(hold.is_wrong(begun + n * second, "kernel"), Ok(()));
            let line = hold.is_mended(begun + n * second, "kernel");
            assert!(line.contains("somebody has set it to kernel; it is userspace again"), "{line}");
        }
        assert!(hold.note().unwrap().contains("put back 6 times"), "{:?}", hold.note());
        let told = hold.is_wrong(begun + 6 * second, "kernel").unwrap_err().unwrap();
        assert!(told.contains("left at kernel") && told.contains("`sysctl -w net.mptcp.path_manager=userspace`"));
        assert_eq!(hold.is_wrong(begun + 600 * second, "kernel"), Err(None), "once, and for good");
        assert!(hold.note().unwrap().contains("is kernel, which somebody else has set"), "{:?}", hold.note());
        assert!(hold.is_right().unwrap().contains("userspace again, by somebody else's hand"));
        assert_eq!(hold.is_wrong(begun + 601 * second, "kernel"), Ok(()), "then it begins anew");
    }
}
