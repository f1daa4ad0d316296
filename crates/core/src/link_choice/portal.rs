//! Captive portal probes: decides when a plain HTTP request is due over which link, and what its result shows about
//! the link.
//!
//! Many portals redirect port 80 and drop or refuse everything else, so that a connection to the relay receives no
//! certificate. A probe is due when a link has come up, when it has failed, and repeatedly while it has a portal.
//! Probes over one link are at least [`MIN_PORTAL_PROBE_INTERVAL`] apart, even if the link disappears and reappears
//! meanwhile. While no relay is reached, or flows go to servers without authentication, a probe is due every
//! [`REPEAT_INTERVAL`] over links that are not metered, and over a metered link if connections start over it.
//!
//! If the responses over all links look like a portal's and the server itself has never responded, the probe's URL
//! may be wrong or blocked, and the responses count against no link. This needs two links: with a single link, a
//! portal and a wrong URL cannot be distinguished.

use alloc::string::String;
use core::time::Duration;

use super::{FailureRecord, LinkChoice, LinkFailure, LinkRecord, MIN_PROBE_INTERVAL};
use crate::units::Instant;

/// Result of a portal probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalProbeResult {
    /// The server's own response.
    Open,
    /// A redirect or a page instead of the server's response: a captive portal.
    Captive,
    /// No response, or one that shows nothing about the link.
    NoResponse,
}

/// When a link is probed for a portal.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortalProbeSchedule {
    due: Option<Instant>,
    /// Start of the last probe.
    last_probe: Option<Instant>,
    /// Time of the last response of the server itself.
    last_open: Option<Instant>,
    /// Whether the last response was not the server's.
    is_captive: bool,
}

/// Shortest interval between probes of a link. Our choice: a probe is about 1 kB.
pub(super) const MIN_PORTAL_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Interval while a portal would do harm. Our choice: 3 MB per day over a link. A new portal answers direct flows
/// for about as long.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30);
/// How long the server's response proves that a link has no portal. Our choice: for this time, a wrong certificate
/// that no other link contradicts is the destination's.
const OPEN_LIFETIME: Duration = Duration::from_secs(60);

impl PortalProbeSchedule {
    /// Schedule of a link that has come up. `last`: start of the last probe over an earlier link of the same name.
    pub(super) fn new(now: Instant, last: Option<Instant>) -> Self {
        let mut schedule = Self { due: None, last_probe: last, last_open: None, is_captive: false };
        schedule.schedule_probe(now, MIN_PORTAL_PROBE_INTERVAL);
        schedule
    }

    /// Schedules a probe, at least `pause` after the last one.
    pub(super) fn schedule_probe(&mut self, now: Instant, pause: Duration) {
        let at = self.last_probe.map_or(now, |last| now.max(last + pause));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.last_open.is_some_and(|open| now.since(open) < OPEN_LIFETIME)
    }
}

impl LinkChoice {
    /// The link over which a probe is due first, and when.
    pub fn next_portal_probe(&self) -> Option<(Instant, String)> {
        let due = self.links.iter().filter_map(|record| Some((record.portal.due?, record)));
        due.min_by_key(|(at, _)| *at).map(|(at, record)| (at, record.observation.name.clone()))
    }

    /// Records the start of a probe over this link.
    pub fn on_portal_probe_started(&mut self, now: Instant, link: &str) {
        if let Some(record) = self.links.iter_mut().find(|known| known.observation.name == link) {
            (record.portal.due, record.portal.last_probe) = (None, Some(now));
        }
    }

    /// Records the result of a probe over this link.
    pub fn on_portal_probe_result(&mut self, now: Instant, link: &str, answer: PortalProbeResult) {
        let Some(record) = self.links.iter_mut().find(|known| known.observation.name == link) else { return };
        record.portal.is_captive = answer == PortalProbeResult::Captive;
        match answer {
            PortalProbeResult::Open => {
                self.probe_server_responded = true;
                record.portal.last_open = Some(now);
                let was_portal = |failed: &FailureRecord| {
                    failed.kind == LinkFailure::Portal
                        || (failed.kind == LinkFailure::WrongCertificate && failed.suspected)
                };
                record.failure = record.failure.filter(|failed| !was_portal(failed));
            }
            PortalProbeResult::Captive => {
                record.portal.last_open = None;
                record.fail_by_portal(now);
            }
            // The portal no longer responds, so the failure is now a missing response.
            PortalProbeResult::NoResponse => {
                if let Some(failed) = record.failure.as_mut().filter(|failed| failed.kind == LinkFailure::Portal) {
                    failed.kind = LinkFailure::NoResponse;
                }
            }
        }
        if self.is_portal_probe_doubted() {
            self.forget_failures(LinkFailure::Portal);
        } else if answer == PortalProbeResult::Open {
            // Count the portals that were not counted while the URL was in doubt.
            let doubted =
                self.links.iter_mut().filter(|record| record.portal.is_captive && record.failure.is_none());
            doubted.for_each(|record| record.fail_by_portal(now));
        }
    }

    /// Whether the probe's URL may be wrong or blocked: all links show a response other than the server's, which no
    /// link has ever shown.
    pub fn is_portal_probe_doubted(&self) -> bool {
        !self.probe_server_responded
            && self.links.len() > 1
            && self.links.iter().all(|record| record.portal.is_captive)
    }

    /// Reports that no relay is reached, or that a connection starts to a server without authentication. A portal
    /// would answer such a connection, so probes become due.
    pub fn on_unauthenticated_use(&mut self, now: Instant) {
        let first = self.order().into_iter().next();
        let used = self
            .links
            .iter_mut()
            .filter(|record| !record.observation.metered || Some(&record.observation.name) == first.as_ref());
        used.for_each(|record| record.portal.schedule_probe(now, REPEAT_INTERVAL));
    }

    /// Keeps the times of the last probes over links that may disappear now, as long as they limit the next probe.
    pub(super) fn remember_portal_probes(&mut self, now: Instant, links: &[LinkRecord]) {
        self.last_portal_probes.retain(|_, last| now.since(*last) < MIN_PORTAL_PROBE_INTERVAL);
        self.last_portal_probes.extend(
            links.iter().filter_map(|known| Some((known.observation.name.clone(), known.portal.last_probe?))),
        );
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
