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
pub(super) struct MptcpGate {
    /// None: nobody asked for it, or the links have been let go.
    primary: Option<LinkId>,
    held_links: Vec<LinkId>,
    outcome: Option<MptcpOutcome>,
}

/// What the connections of a run spoke, the strongest word last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MptcpOutcome {
    /// None has stood yet.
    Unknown,
    /// The kernel makes no MPTCP sockets.
    Unavailable,
    /// MPTCP was asked for, and the answer was TCP.
    FellBack,
    /// MPTCP was spoken.
    Negotiated,
    /// It was spoken, and then something on the way took it out.
    Stripped,
}

impl MptcpGate {
    /// The first link shall carry everything; the links besides it wait.
    pub(super) fn new(primary: LinkId) -> Self {
        Self { primary: Some(primary), held_links: Vec::new(), outcome: Some(MptcpOutcome::Unknown) }
    }

    /// Whether a link that can be used may be used. One that may not is remembered.
    pub(super) fn admits(&mut self, link: LinkId) -> bool {
        let is_held = self.primary.is_some_and(|primary| primary != link);
        if is_held && !self.held_links.contains(&link) {
            self.held_links.push(link);
        }
        !is_held
    }

    /// A connection stands, or goes on; gives the links that may be used from now on, besides the others, and a line
    /// for the user if there is something new to tell.
    pub(super) fn on_mptcp_status(&mut self, status: Spoken) -> (Vec<LinkId>, Option<&'static str>) {
        let Some(before) = self.outcome else { return Default::default() };
        let now = match status {
            Spoken::Yes => MptcpOutcome::Negotiated,
            Spoken::FellBack if before >= MptcpOutcome::Negotiated => MptcpOutcome::Stripped,
            Spoken::FellBack => MptcpOutcome::FellBack,
            Spoken::Never => MptcpOutcome::Unavailable,
            Spoken::Asked => return Default::default(),
        };
        self.outcome = Some(before.max(now));
        let line = match now {
            MptcpOutcome::Stripped => {
                "MPTCP was taken out of a connection on its way; each link has connections of its own now"
            }
            MptcpOutcome::FellBack => {
                "the server, or something on the way, speaks no MPTCP; each link has connections of its own"
            }
            MptcpOutcome::Unavailable => {
                "this machine makes no MPTCP sockets; each link has connections of its own"
            }
            MptcpOutcome::Negotiated | MptcpOutcome::Unknown => return Default::default(),
        };
        (self.release_links(), (now > before).then_some(line))
    }

    /// The way that was hoped for is gone; gives the links that may be used from now on, besides the others.
    pub(super) fn release_links(&mut self) -> Vec<LinkId> {
        self.primary = None;
        std::mem::take(&mut self.held_links)
    }

    /// Whether one connection is to carry everything, and so to ask for MPTCP.
    pub(super) fn is_single_conn(&self) -> bool {
        self.primary.is_some()
    }

    /// A link is no more.
    pub(super) fn on_link_removed(&mut self, link: LinkId) -> Vec<LinkId> {
        self.held_links.retain(|waiting| *waiting != link);
        if self.primary == Some(link) { self.release_links() } else { Vec::new() }
    }

    /// Whether further links may belong to what came over one.
    pub(super) fn is_shared(&self) -> bool {
        self.outcome >= Some(MptcpOutcome::Negotiated)
    }

    /// What was found, for the report; none: nobody asked.
    pub(super) fn report_value(&self) -> Option<&'static str> {
        Some(match self.outcome? {
            MptcpOutcome::Unknown => "unknown",
            MptcpOutcome::Unavailable => "unavailable",
            MptcpOutcome::FellBack => "fell-back",
            MptcpOutcome::Negotiated => "spoken",
            MptcpOutcome::Stripped => "stripped",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIFI: LinkId = LinkId(0);
    const LTE: LinkId = LinkId(1);
    const CABLE: LinkId = LinkId(2);

    fn gate_over_wifi() -> MptcpGate {
        let mut together = MptcpGate::new(WIFI);
        assert!(together.admits(WIFI) && !together.admits(LTE));
        together
    }

    #[test]
    fn while_mptcp_is_spoken_one_link_is_enough() {
        let mut together = gate_over_wifi();
        assert_eq!(together.report_value(), Some("unknown"));
        assert_eq!(together.on_mptcp_status(Spoken::Yes), (vec![], None));
        assert!(!together.admits(LTE) && !together.admits(CABLE) && together.admits(WIFI));
        assert_eq!((together.report_value(), together.is_shared()), (Some("spoken"), true));
    }

    #[test]
    fn a_server_without_it_gets_a_connection_over_each_link_and_that_is_told_once() {
        for (spoken, word) in [(Spoken::FellBack, "fell-back"), (Spoken::Never, "unavailable")] {
            let mut together = gate_over_wifi();
            let (links, line) = together.on_mptcp_status(spoken);
            assert_eq!((links, line.is_some()), (vec![LTE], true));
            assert_eq!(together.on_mptcp_status(spoken), (vec![], None));
            assert!(together.admits(CABLE) && !together.is_single_conn());
            assert_eq!((together.report_value(), together.is_shared()), (Some(word), false));
        }
    }

    #[test]
    fn what_was_spoken_and_is_no_more_was_stripped() {
        let mut together = gate_over_wifi();
        together.on_mptcp_status(Spoken::Yes);
        assert_eq!(together.on_mptcp_status(Spoken::Asked), (vec![], None));
        assert_eq!(together.on_mptcp_status(Spoken::FellBack).0, vec![LTE]);
        assert_eq!(together.report_value(), Some("stripped"));
    }

    #[test]
    fn when_the_first_link_goes_the_others_come() {
        let mut together = gate_over_wifi();
        together.admits(CABLE);
        assert_eq!(together.on_link_removed(LTE), vec![]);
        assert_eq!(together.on_link_removed(WIFI), vec![CABLE]);
        assert!(together.admits(LTE));
    }

    #[test]
    fn nobody_waits_where_nobody_asked() {
        let mut together = MptcpGate::default();
        assert!(together.admits(LTE));
        assert_eq!(together.on_mptcp_status(Spoken::Never), (vec![], None));
        assert_eq!(together.report_value(), None);
    }
}
