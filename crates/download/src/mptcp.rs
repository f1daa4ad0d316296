//! `--mptcp`: one connection for all links if the server supports MPTCP, and one per link if it does not.
//!
//! The gate decides which links of a run may be used, from what the connections negotiate.
//!
//! 1. The first link is used at once, and the others are held until its connection is open. If it negotiates MPTCP,
//!    they stay held: the kernel or a path manager opens subflows over them, and separate connections would compete
//!    with these subflows.
//! 2. The other links are released when MPTCP is not available: the server or a middlebox does not support it, a
//!    middlebox strips it later, the connection fails, or the first link disappears. From then on the run uses
//!    plain TCP over each link, and does not return to MPTCP.
//! 3. The outcome is part of the report: [`MptcpGate::report_value`].
//!
//! One MPTCP connection per link was rejected: with subflows, each of them would use all links.

use marline_core::link::LinkId;
use marline_sys::mptcp::MptcpStatus;

/// Decides which links may be used; see the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct MptcpGate {
    /// The link of the MPTCP connection; none: MPTCP was not requested, or the other links were released.
    primary: Option<LinkId>,
    held_links: Vec<LinkId>,
    outcome: Option<MptcpOutcome>,
}

/// What the connections of a run negotiated. A later variant supersedes an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MptcpOutcome {
    /// No connection has been open yet.
    Unknown,
    /// The kernel does not provide MPTCP sockets.
    Unavailable,
    /// MPTCP was requested, and the connection uses TCP.
    FellBack,
    /// MPTCP was negotiated, and has been used since.
    Negotiated,
    /// MPTCP was negotiated, and a middlebox removed it later (fallback to TCP, RFC 8684 section 3.7).
    Stripped,
}

impl MptcpGate {
    /// Lets the first link carry the MPTCP connection, and holds all others.
    pub(super) fn new(primary: LinkId) -> Self {
        Self { primary: Some(primary), held_links: Vec::new(), outcome: Some(MptcpOutcome::Unknown) }
    }

    /// Whether an available link may be used. If not, it is remembered until the links are released.
    pub(super) fn admits(&mut self, link: LinkId) -> bool {
        let is_held = self.primary.is_some_and(|primary| primary != link);
        if is_held && !self.held_links.contains(&link) {
            self.held_links.push(link);
        }
        !is_held
    }

    /// Records whether an open connection uses MPTCP. Returns the links that are released, and a message if the outcome
    /// is new.
    pub(super) fn on_mptcp_status(&mut self, status: MptcpStatus) -> (Vec<LinkId>, Option<&'static str>) {
        let Some(before) = self.outcome else { return Default::default() };
        let now = match status {
            MptcpStatus::Negotiated => MptcpOutcome::Negotiated,
            MptcpStatus::FellBack if before >= MptcpOutcome::Negotiated => MptcpOutcome::Stripped,
            MptcpStatus::FellBack => MptcpOutcome::FellBack,
            MptcpStatus::PlainTcp => MptcpOutcome::Unavailable,
            MptcpStatus::Requested => return Default::default(),
        };
        self.outcome = Some(before.max(now));
        let message = match now {
            MptcpOutcome::Stripped => {
                "a middlebox removed MPTCP from a connection; each link now uses its own connections"
            }
            MptcpOutcome::FellBack => {
                "the server or a middlebox does not support MPTCP; each link uses its own connections"
            }
            MptcpOutcome::Unavailable => {
                "this kernel provides no MPTCP sockets; each link uses its own connections"
            }
            MptcpOutcome::Negotiated | MptcpOutcome::Unknown => return Default::default(),
        };
        (self.release_links(), (now > before).then_some(message))
    }

    /// Gives up MPTCP and returns the links that may be used from now on.
    pub(super) fn release_links(&mut self) -> Vec<LinkId> {
        self.primary = None;
        std::mem::take(&mut self.held_links)
    }

    /// Whether one connection is to carry everything, so that it requests MPTCP.
    pub(super) fn is_single_conn(&self) -> bool {
        self.primary.is_some()
    }

    /// Removes a link. If it is the primary link, returns the links that are released.
    pub(super) fn on_link_removed(&mut self, link: LinkId) -> Vec<LinkId> {
        self.held_links.retain(|waiting| *waiting != link);
        if self.primary == Some(link) { self.release_links() } else { Vec::new() }
    }

    /// Whether bytes of one link's connection may have used other links (as subflows).
    pub(super) fn is_shared(&self) -> bool {
        self.outcome >= Some(MptcpOutcome::Negotiated)
    }

    /// The outcome for the report; none: MPTCP was not requested.
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
        let mut gate = MptcpGate::new(WIFI);
        assert!(gate.admits(WIFI) && !gate.admits(LTE));
        gate
    }

    #[test]
    fn with_mptcp_the_other_links_stay_held() {
        let mut gate = gate_over_wifi();
        assert_eq!(gate.report_value(), Some("unknown"));
        assert_eq!(gate.on_mptcp_status(MptcpStatus::Negotiated), (vec![], None));
        assert!(!gate.admits(LTE) && !gate.admits(CABLE) && gate.admits(WIFI));
        assert_eq!((gate.report_value(), gate.is_shared()), (Some("spoken"), true));
    }

    #[test]
    fn without_mptcp_each_link_is_used_and_one_message_is_shown() {
        for (spoken, outcome) in [(MptcpStatus::FellBack, "fell-back"), (MptcpStatus::PlainTcp, "unavailable")] {
            let mut gate = gate_over_wifi();
            let (links, message) = gate.on_mptcp_status(spoken);
            assert_eq!((links, message.is_some()), (vec![LTE], true));
            assert_eq!(gate.on_mptcp_status(spoken), (vec![], None));
            assert!(gate.admits(CABLE) && !gate.is_single_conn());
            assert_eq!((gate.report_value(), gate.is_shared()), (Some(outcome), false));
        }
    }

    #[test]
    fn a_fallback_after_negotiation_is_reported_as_stripped() {
        let mut gate = gate_over_wifi();
        gate.on_mptcp_status(MptcpStatus::Negotiated);
        assert_eq!(gate.on_mptcp_status(MptcpStatus::Requested), (vec![], None));
        assert_eq!(gate.on_mptcp_status(MptcpStatus::FellBack).0, vec![LTE]);
        assert_eq!(gate.report_value(), Some("stripped"));
    }

    #[test]
    fn removing_the_first_link_releases_the_others() {
        let mut gate = gate_over_wifi();
        gate.admits(CABLE);
        assert_eq!(gate.on_link_removed(LTE), vec![]);
        assert_eq!(gate.on_link_removed(WIFI), vec![CABLE]);
        assert!(gate.admits(LTE));
    }

    #[test]
    fn no_link_is_held_unless_mptcp_was_requested() {
        let mut gate = MptcpGate::default();
        assert!(gate.admits(LTE));
        assert_eq!(gate.on_mptcp_status(MptcpStatus::PlainTcp), (vec![], None));
        assert_eq!(gate.report_value(), None);
    }
}
