//! `--mptcp`: one connection for all links where the server speaks it, one per link where it does not.
//!
//! In: the links of a run, and what each connection turns out to speak. Out: which links may be used now.
//!
//! 1. The first link goes first; the others wait for its connection. If that speaks MPTCP, they wait for good: the
//!    kernel, or a daemon, has further subflows for them, and a connection of one's own over each would only compete
//!    with these.
//! 2. The others come as soon as there is another way: the server or something on the way does not speak MPTCP, strips
//!    it later, does not answer, or the first link goes away. From then on the run is like any other, with plain TCP
//!    over each link, and stays so.
//! 3. What was found is told: [`Together::word`].
//!
//! An MPTCP connection per link was not used: with further subflows each of them would take from all links.

use marline_core::link::LinkId;
use marline_sys::mptcp::Spoken;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Together {
    /// None: nobody asked for it, or the links have been let go.
    first: Option<LinkId>,
    waiting: Vec<LinkId>,
    found: Option<Found>,
}

/// What the connections of a run spoke, the strongest word last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// None has stood yet.
    Nothing,
    /// The kernel makes no MPTCP sockets.
    Unavailable,
    /// MPTCP was asked for, and the answer was TCP.
    FellBack,
    /// MPTCP was spoken.
    Spoken,
    /// It was spoken, and then something on the way took it out.
    Stripped,
}

impl Together {
    /// The first link shall carry everything; the links besides it wait.
    pub(super) fn over(first: LinkId) -> Self {
        Self { first: Some(first), waiting: Vec::new(), found: Some(Found::Nothing) }
    }

    /// Whether a link that can be used may be used. One that may not is remembered.
    pub(super) fn admits(&mut self, link: LinkId) -> bool {
        let waits = self.first.is_some_and(|first| first != link);
        if waits && !self.waiting.contains(&link) {
            self.waiting.push(link);
        }
        !waits
    }

    /// A connection stands, or goes on; gives the links that may be used from now on, besides the others, and a line
    /// for the user if there is something new to tell.
    pub(super) fn spoke(&mut self, spoken: Spoken) -> (Vec<LinkId>, Option<&'static str>) {
        let Some(before) = self.found else { return Default::default() };
        let now = match spoken {
            Spoken::Yes => Found::Spoken,
            Spoken::FellBack if before >= Found::Spoken => Found::Stripped,
            Spoken::FellBack => Found::FellBack,
            Spoken::Never => Found::Unavailable,
            Spoken::Asked => return Default::default(),
        };
        self.found = Some(before.max(now));
        let line = match now {
            Found::Stripped => {
                "MPTCP was taken out of a connection on its way; each link has connections of its own now"
            }
            Found::FellBack => {
                "the server, or something on the way, speaks no MPTCP; each link has connections of its own"
            }
            Found::Unavailable => "this machine makes no MPTCP sockets; each link has connections of its own",
            Found::Spoken | Found::Nothing => return Default::default(),
        };
        (self.let_go(), (now > before).then_some(line))
    }

    /// The way that was hoped for is gone; gives the links that may be used from now on, besides the others.
    pub(super) fn let_go(&mut self) -> Vec<LinkId> {
        self.first = None;
        std::mem::take(&mut self.waiting)
    }

    /// Whether one connection is to carry everything, and so to ask for MPTCP.
    pub(super) fn holds(&self) -> bool {
        self.first.is_some()
    }

    /// A link is no more.
    pub(super) fn gone(&mut self, link: LinkId) -> Vec<LinkId> {
        self.waiting.retain(|waiting| *waiting != link);
        if self.first == Some(link) { self.let_go() } else { Vec::new() }
    }

    /// Whether further links may belong to what came over one.
    pub(super) fn is_shared(&self) -> bool {
        self.found >= Some(Found::Spoken)
    }

    /// What was found, for the report; none: nobody asked.
    pub(super) fn word(&self) -> Option<&'static str> {
        Some(match self.found? {
            Found::Nothing => "unknown",
            Found::Unavailable => "unavailable",
            Found::FellBack => "fell-back",
            Found::Spoken => "spoken",
            Found::Stripped => "stripped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIFI: LinkId = LinkId(0);
    const LTE: LinkId = LinkId(1);
    const CABLE: LinkId = LinkId(2);

    fn asked() -> Together {
        let mut together = Together::over(WIFI);
        assert!(together.admits(WIFI) && !together.admits(LTE));
        together
    }

    #[test]
    fn while_mptcp_is_spoken_one_link_is_enough() {
        let mut together = asked();
        assert_eq!(together.word(), Some("unknown"));
        assert_eq!(together.spoke(Spoken::Yes), (vec![], None));
        assert!(!together.admits(LTE) && !together.admits(CABLE) && together.admits(WIFI));
        assert_eq!((together.word(), together.is_shared()), (Some("spoken"), true));
    }

    #[test]
    fn a_server_without_it_gets_a_connection_over_each_link_and_that_is_told_once() {
        for (spoken, word) in [(Spoken::FellBack, "fell-back"), (Spoken::Never, "unavailable")] {
            let mut together = asked();
            let (links, line) = together.spoke(spoken);
            assert_eq!((links, line.is_some()), (vec![LTE], true));
            assert_eq!(together.spoke(spoken), (vec![], None));
            assert!(together.admits(CABLE) && !together.holds());
            assert_eq!((together.word(), together.is_shared()), (Some(word), false));
        }
    }

    #[test]
    fn what_was_spoken_and_is_no_more_was_stripped() {
        let mut together = asked();
        together.spoke(Spoken::Yes);
        assert_eq!(together.spoke(Spoken::Asked), (vec![], None));
        assert_eq!(together.spoke(Spoken::FellBack).0, vec![LTE]);
        assert_eq!(together.word(), Some("stripped"));
    }

    #[test]
    fn when_the_first_link_goes_the_others_come() {
        let mut together = asked();
        together.admits(CABLE);
        assert_eq!(together.gone(LTE), vec![]);
        assert_eq!(together.gone(WIFI), vec![CABLE]);
        assert!(together.admits(LTE));
    }

    #[test]
    fn nobody_waits_where_nobody_asked() {
        let mut together = Together::default();
        assert!(together.admits(LTE));
        assert_eq!(together.spoke(Spoken::Never), (vec![], None));
        assert_eq!(together.word(), None);
    }
}
