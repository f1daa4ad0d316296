//! Requests of plain HTTP that find captive portals: when one is due over which link, and what its result says of the link.
//!
//! Many portals redirect port 80 and drop or refuse the rest, so that a connection to the relay shows no certificate. A request is due when a
//! link has come up, when it has failed, and while it has a portal; over one link not more often than each [`PAUSE`], also if it goes and
//! comes meanwhile. While no relay is reached, or flows go to servers that prove nothing, one is due each [`REPEAT`] over links that are
//! not metered, and over a metered one if connections begin over it.
//!
//! If the answers over all links look like a portal's, and the server itself has never answered, the URL may be wrong or blocked, and the
//! answers count against no link. This needs two links: of a single one nothing can be told apart.

use alloc::string::String;
use core::time::Duration;

use super::{FailureRecord, LinkChoice, LinkFailure, LinkRecord, MIN_PROBE_INTERVAL};
use crate::units::Instant;

/// What the request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalAnswer {
    /// The server's own answer.
    Open,
    /// A redirect, or a page in place of the server's answer: a captive portal's.
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
    /// The last answer was not the server's.
    captive: bool,
}

/// chosen: a request is about 1 kB.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// chosen: 3 MB a day over a link. A portal that appears answers direct flows for about as long.
const REPEAT: Duration = Duration::from_secs(30);
/// chosen: so long a wrong certificate, which no other link contradicts, is the destination's.
const OPEN: Duration = Duration::from_secs(60);

impl Schedule {
    /// Of a link that comes; over an earlier one of this name the last request began at `last`.
    pub(super) fn new(now: Instant, last: Option<Instant>) -> Self {
        let mut schedule = Self { due: None, last, open: None, captive: false };
        schedule.want(now, PAUSE);
        schedule
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
        due.min_by_key(|(at, _)| *at).map(|(at, known)| (at, known.observation.name.clone()))
    }

    /// A request over this link begins.
    pub fn probing_portal(&mut self, now: Instant, link: &str) {
        if let Some(known) = self.links.iter_mut().find(|known| known.observation.name == link) {
            (known.portal.due, known.portal.last) = (None, Some(now));
        }
    }

    /// What a request over this link has shown.
    pub fn report_portal(&mut self, now: Instant, link: &str, answer: PortalAnswer) {
        let Some(known) = self.links.iter_mut().find(|known| known.observation.name == link) else { return };
        known.portal.captive = answer == PortalAnswer::Captive;
        match answer {
            PortalAnswer::Open => {
                self.opened = true;
                known.portal.open = Some(now);
                let was_portal = |failed: &FailureRecord| {
                    failed.kind == LinkFailure::Portal
                        || (failed.kind == LinkFailure::WrongCertificate && failed.suspected)
                };
                known.failure = known.failure.filter(|failed| !was_portal(failed));
            }
            PortalAnswer::Captive => {
                known.portal.open = None;
                known.fail_by_portal(now);
            }
            // A portal that does not answer any more is no longer the reason.
            PortalAnswer::Nothing => {
                if let Some(failed) = known.failure.as_mut().filter(|failed| failed.kind == LinkFailure::Portal) {
                    failed.kind = LinkFailure::NoResponse;
                }
            }
        }
        if self.is_portal_probe_doubted() {
            self.forget_failures(LinkFailure::Portal);
        } else if answer == PortalAnswer::Open {
            // What was not counted while the URL was in doubt.
            let doubted = self.links.iter_mut().filter(|known| known.portal.captive && known.failure.is_none());
            doubted.for_each(|known| known.fail_by_portal(now));
        }
    }

    /// Whether the URL of the requests may be wrong or blocked: all links show another answer than the server's, which no link has ever shown.
    pub fn is_portal_probe_doubted(&self) -> bool {
        !self.opened && self.links.len() > 1 && self.links.iter().all(|known| known.portal.captive)
    }

    /// No relay is reached, or a connection begins to a server that does not prove what it is: a portal would answer it.
    pub fn used_unproven(&mut self, now: Instant) {
        let first = self.order().into_iter().next();
        let used = self
            .links
            .iter_mut()
            .filter(|known| !known.observation.metered || Some(&known.observation.name) == first.as_ref());
        used.for_each(|known| known.portal.want(now, REPEAT));
    }

    /// Keeps when a portal was looked for over links that may go now, as long as it matters.
    pub(super) fn remember_portal_probes(&mut self, now: Instant, links: &[LinkRecord]) {
        self.asked.retain(|_, last| now.since(*last) < PAUSE);
        self.asked
            .extend(links.iter().filter_map(|known| Some((known.observation.name.clone(), known.portal.last?))));
    }
}

impl LinkRecord {
    fn fail_by_portal(&mut self, now: Instant) {
        self.failure = Some(match self.failure {
            Some(failed) => FailureRecord { kind: LinkFailure::Portal, suspected: false, ..failed }.postponed(now),
            None => FailureRecord {
                kind: LinkFailure::Portal,
                suspected: false,
                since: now,
                next_probe: now + MIN_PROBE_INTERVAL,
                interval: MIN_PROBE_INTERVAL,
            },
        });
    }
}
