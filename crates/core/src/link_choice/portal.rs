//! Requests of plain HTTP that find captive portals: when one is due over which link, and what its result says of the link.
//!
//! Many portals redirect port 80 and drop or refuse the rest, so that a connection to the relay shows no certificate. A request is due when a
//! link has come up, when it has failed, while it has a portal, and while no relay is reached or flows go to servers that prove nothing;
//! over one link not more often than each [`PAUSE`].

use alloc::string::String;
use core::time::Duration;

use super::{FIRST_PROBE, Failed, LAST_PROBE, LinkChoice, LinkFailure};
use crate::units::Instant;

/// What the request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalAnswer {
    /// The server's own answer.
    Open,
    /// Another one.
    Captive,
    /// None, or one that says nothing of the link.
    Nothing,
}

/// When a link is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    due: Option<Instant>,
    /// When the last request began.
    last: Option<Instant>,
    /// When the server itself answered last.
    open: Option<Instant>,
}

/// chosen: a request is about 1 kB, and a portal that appears answers direct flows no longer than this.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// chosen: so long a wrong certificate, which no other link contradicts, is the destination's.
const OPEN: Duration = Duration::from_secs(60);

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: Some(now), last: None, open: None }
    }

    /// A request is due, so long after the last one.
    pub(super) fn want(&mut self, now: Instant, pause: Duration) {
        let at = self.last.map_or(now, |last| now.max(last + pause));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.open.is_some_and(|open| now.since(open) < OPEN)
    }
}

impl LinkChoice {
    /// The link over which a request is due first, and when.
    pub fn next_portal_probe(&self) -> Option<(Instant, String)> {
        let due = self.links.iter().filter_map(|known| Some((known.portal.due?, known)));
        due.min_by_key(|(at, _)| *at).map(|(at, known)| (at, known.seen.name.clone()))
    }

    /// A request over this link begins.
    pub fn probing_portal(&mut self, now: Instant, link: &str) {
        if let Some(known) = self.links.iter_mut().find(|known| known.seen.name == link) {
            (known.portal.due, known.portal.last) = (None, Some(now));
        }
    }

    /// What a request over this link has shown.
    pub fn report_portal(&mut self, now: Instant, link: &str, answer: PortalAnswer) {
        let Some(known) = self.links.iter_mut().find(|known| known.seen.name == link) else { return };
        match answer {
            PortalAnswer::Open => {
                known.portal.open = Some(now);
                let was_portal = |failed: &Failed| {
                    failed.kind == LinkFailure::Portal
                        || (failed.kind == LinkFailure::WrongCertificate && failed.suspected)
                };
                known.failure = known.failure.filter(|failed| !was_portal(failed));
            }
            PortalAnswer::Captive => {
                known.portal.open = None;
                known.failure = Some(match known.failure {
                    Some(failed) => Failed { kind: LinkFailure::Portal, suspected: false, ..failed }.postponed(now),
                    None => Failed {
                        kind: LinkFailure::Portal,
                        suspected: false,
                        since: now,
                        probe_at: now + FIRST_PROBE,
                        pause: FIRST_PROBE,
                    },
                });
            }
            // A portal that does not answer any more is no longer the reason.
            PortalAnswer::Nothing => {
                if let Some(failed) = known.failure.as_mut().filter(|failed| failed.kind == LinkFailure::Portal) {
                    failed.kind = LinkFailure::Silent;
                }
            }
        }
    }

    /// No relay is reached.
    pub fn none_reached(&mut self, now: Instant) {
        self.links.iter_mut().for_each(|known| known.portal.want(now, LAST_PROBE));
    }

    /// A connection begins to a server that does not prove what it is: a portal would answer it.
    pub fn used_unproven(&mut self, now: Instant) {
        self.links.iter_mut().for_each(|known| known.portal.want(now, PAUSE));
    }
}
