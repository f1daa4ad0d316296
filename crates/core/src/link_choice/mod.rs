//! Link choice: decides over which link a new connection starts, from the outcomes of earlier attempts.
//!
//! [`LinkChoice`] keeps a record of each link: the last failure with its kind, the duration of the last handshake,
//! and the time of the next probe. [`HappyEyeballs`] is one new connection: it tries the links in the order of
//! their records. The next link is tried after 300 to 500 ms without a result, or at once after a failure (Happy
//! Eyeballs, RFC 8305, over links instead of addresses).
//!
//! A failure counts against a link only if another link reached the same destination. A destination that no link
//! reaches shows nothing about the links. The certificate of another server is an exception: it counts even if no
//! link reached the destination, unless all links showed such a certificate.
//!
//! A failed link is last in the order. It is probed at intervals that grow from [`MIN_PROBE_INTERVAL`] to
//! [`MAX_PROBE_INTERVAL`]. It returns to its position when a probe or a connection over it succeeds, or when its
//! interface was down and comes up again.
//!
//! Some captive portals do not intercept connections to the relay. Plain HTTP requests detect them; the submodule
//! `portal` decides when they are due.

mod happy_eyeballs;
mod portal;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

pub use happy_eyeballs::{HappyEyeballs, Outcome};
pub use portal::PortalProbeResult;

use crate::units::Instant;

/// Kind of failure of an attempt over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkFailure {
    /// The handshake takes much longer than over another link.
    Slow,
    /// SYNs with the MPTCP option get no response, SYNs of plain TCP do.
    MptcpDropped,
    /// A middlebox removes the MPTCP option: connections fall back to plain TCP, while over another link they do
    /// not.
    MptcpStripped,
    /// A failure that shows nothing about the link.
    Other,
    /// No DNS server returns the destination's address over this link.
    Dns,
    /// The connection is refused or reset.
    Refused,
    /// There is no route, or an ICMP error arrived.
    Unreachable,
    /// Nothing was received.
    NoResponse,
    /// TLS received the certificate of another server: a captive portal.
    WrongCertificate,
    /// A captive portal responded to a plain HTTP request.
    Portal,
}

impl LinkFailure {
    /// Description for people, which follows "does not reach the relay: ".
    pub const fn description(self) -> &'static str {
        match self {
            Self::Slow => "its handshake takes much longer than over another link",
            Self::MptcpDropped => "packets with the MPTCP option are dropped",
            Self::MptcpStripped => "a middlebox removes the MPTCP option",
            Self::Other => "the attempt failed",
            Self::Dns => "its DNS servers do not resolve the address",
            Self::Refused => "the connection is refused or reset",
            Self::Unreachable => "unreachable",
            Self::NoResponse => "no answer",
            Self::WrongCertificate => "another server responds in its place: a captive portal",
            Self::Portal => "a captive portal, which a browser on that network shows",
        }
    }

    /// Whether the link probably carries no other traffic either.
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable | Self::NoResponse) || self.is_portal()
    }

    /// Whether a captive portal responds in place of other servers.
    pub const fn is_portal(self) -> bool {
        matches!(self, Self::WrongCertificate | Self::Portal)
    }

    /// Position of a link with this failure in the order. Links that only lack MPTCP or are slow come first, then
    /// links that carry no data, and at the end links with a captive portal, which would answer in place of the
    /// destination.
    const fn rank(self) -> u8 {
        match self {
            Self::Slow => 1,
            Self::MptcpDropped | Self::MptcpStripped => 2,
            Self::WrongCertificate | Self::Portal => 4,
            _ => 3,
        }
    }
}

/// A link that is up, as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkObservation {
    /// Interface name.
    pub name: String,
    /// Interface index: another index means another interface with the same name.
    pub index: u32,
    /// Whether established subflows over it are unresponsive.
    pub is_unresponsive: bool,
    /// Whether established subflows received data since the previous observation.
    pub is_receiving: bool,
    /// Whether its bytes cost money.
    pub metered: bool,
}

/// The records of all links. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct LinkChoice {
    /// In the kernel's order of preference.
    links: Vec<LinkRecord>,
    /// Time of the last portal probe by link name. Kept for removed links too, which limits probes of a link that
    /// comes and goes.
    last_portal_probes: BTreeMap<String, Instant>,
    /// Whether the server of the portal probe's URL has ever responded, over any link.
    probe_server_responded: bool,
}

#[derive(Clone, Debug)]
struct LinkRecord {
    observation: LinkObservation,
    /// Duration of the last handshake.
    handshake_time: Option<Duration>,
    failure: Option<FailureRecord>,
    /// Time at which the link is checked although it has no failure.
    next_check: Instant,
    portal: portal::PortalProbeSchedule,
}

#[derive(Clone, Copy, Debug)]
struct FailureRecord {
    kind: LinkFailure,
    /// Whether no other link has reached the destination that showed the failure.
    suspected: bool,
    since: Instant,
    next_probe: Instant,
    interval: Duration,
}

/// Time from a link's failure to its first probe. Our choice: a link with a short outage is used again soon.
pub const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between two probes of a failed link. Our choice: a probe is a few hundred bytes, and a metered link pays
/// for probes all day.
pub const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// RFC 8305 section 5 recommends 250 ms between addresses; between links each attempt also costs a TLS handshake.
const MIN_ATTEMPT_DELAY: Duration = Duration::from_millis(300);
const MAX_ATTEMPT_DELAY: Duration = Duration::from_millis(500);
/// When a link that has come up is checked. Our choice: after this time the first connections over the link have usually
/// shown whether it works.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// Time from the last outcome of a link without a failure to its next check. Our choice: a connection of about 5 kB every
/// ten minutes is less than one megabyte per day.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);

impl LinkChoice {
    /// Sets the links that are up, in the kernel's order of preference. A link that was not up before starts with
    /// an empty record.
    pub fn set_links(&mut self, now: Instant, links: Vec<LinkObservation>) {
        let mut previous = core::mem::take(&mut self.links);
        self.remember_portal_probes(now, &previous);
        for observation in links {
            let position = previous.iter().position(|record| {
                record.observation.name == observation.name && record.observation.index == observation.index
            });
            let mut record = match position {
                Some(at) => previous.swap_remove(at),
                None => LinkRecord {
                    observation: observation.clone(),
                    handshake_time: None,
                    failure: None,
                    next_check: now + FIRST_CHECK,
                    portal: portal::PortalProbeSchedule::new(
                        now,
                        self.last_portal_probes.get(&observation.name).copied(),
                    ),
                },
            };
            // Established subflows receive data again, so the link carries data. It is unknown whether new
            // connections can start over it, so the link is probed soon.
            if observation.is_receiving
                && !record.observation.is_receiving
                && let Some(failed) = &mut record.failure
            {
                failed.next_probe = failed.next_probe.min(now.max(failed.since + MIN_PROBE_INTERVAL));
            }
            record.observation = observation;
            self.links.push(record);
        }
    }

    /// The links in the order in which a new connection tries them.
    pub fn order(&self) -> Vec<String> {
        let mut order: Vec<&LinkRecord> = self.links.iter().collect();
        // The sort is stable: links of the same rank stay in the kernel's order of preference.
        order.sort_by_key(|record| record.rank());
        order.into_iter().map(|record| record.observation.name.clone()).collect()
    }

    /// Time to wait for a result over this link before the next link is tried.
    fn attempt_delay(&self, link: &str) -> Duration {
        let handshake_time = self.find(link).and_then(|record| record.handshake_time).unwrap_or_default();
        (2 * handshake_time).clamp(MIN_ATTEMPT_DELAY, MAX_ATTEMPT_DELAY)
    }

    /// Records the outcome of a connection attempt or a probe over a link.
    pub fn record(&mut self, now: Instant, link: &str, outcome: Outcome) {
        let Some(record) = self.links.iter_mut().find(|record| record.observation.name == link) else { return };
        record.next_check = now + CHECK_INTERVAL;
        match outcome {
            Outcome::Connected(handshake_time) => {
                record.handshake_time = Some(handshake_time);
                // A slow link stays behind the others until a handshake over it is fast again.
                let is_slow =
                    |failed: &FailureRecord| failed.kind == LinkFailure::Slow && handshake_time > MAX_ATTEMPT_DELAY;
                record.failure = record.failure.filter(is_slow).map(|failed| failed.postponed(now));
            }
            Outcome::Failed(kind) => record.fail(now, kind, false),
            // A recent portal probe found no portal, so the destination itself has the wrong certificate.
            Outcome::Suspected if record.portal.is_open(now) => {}
            Outcome::Suspected => record.fail(now, LinkFailure::WrongCertificate, true),
            Outcome::Retracted => {
                record.failure = record.failure.filter(|failed| failed.kind != LinkFailure::WrongCertificate);
            }
        }
    }

    /// The failed link whose probe is due first, and when.
    pub fn next_probe(&self) -> Option<(Instant, String)> {
        let due = self.links.iter().filter_map(|record| Some((record.failure?.next_probe, record)));
        due.min_by_key(|(at, _)| *at).map(|(at, record)| (at, record.observation.name.clone()))
    }

    /// Of the links without a failure, the one that is checked next, and when. While all connections start over
    /// another link, only such a check can detect that this link fails.
    pub fn next_check(&self) -> Option<(Instant, String)> {
        let healthy = self.links.iter().filter(|record| record.failure.is_none() && self.links.len() > 1);
        healthy
            .min_by_key(|record| record.next_check)
            .map(|record| (record.next_check, record.observation.name.clone()))
    }

    /// Removes all failures of this kind, because the links were not their cause.
    pub fn forget_failures(&mut self, kind: LinkFailure) {
        for record in &mut self.links {
            record.failure = record.failure.filter(|failed| failed.kind != kind);
        }
    }

    /// Records the start of a probe over this link. The next probe is due after a longer interval, whatever the
    /// result of this one is.
    pub fn on_probe_started(&mut self, now: Instant, link: &str) {
        if let Some(record) = self.links.iter_mut().find(|record| record.observation.name == link) {
            record.failure = record.failure.map(|failed| failed.postponed(now));
            record.next_check = now + CHECK_INTERVAL;
            if record.failure.is_some_and(|failed| failed.kind.is_portal()) {
                record.portal.schedule_probe(now, portal::MIN_PORTAL_PROBE_INTERVAL);
            }
        }
    }

    /// Failure of the link; `None` if it has none or is unknown.
    pub fn failure(&self, link: &str) -> Option<LinkFailure> {
        self.find(link)?.failure.map(|failed| failed.kind)
    }

    /// Links that new connections try after all others, because they failed, with the kind of the failure. Slow links are
    /// not included.
    pub fn failing_links(&self) -> Vec<(String, LinkFailure)> {
        let failed = self
            .links
            .iter()
            .filter_map(|record| Some((record.observation.name.to_string(), record.failure?.kind)));
        failed.filter(|(_, kind)| *kind != LinkFailure::Slow).collect()
    }

    fn find(&self, link: &str) -> Option<&LinkRecord> {
        self.links.iter().find(|record| record.observation.name == link)
    }
}

impl LinkRecord {
    fn fail(&mut self, now: Instant, kind: LinkFailure, suspected: bool) {
        if kind.is_outage() || kind == LinkFailure::Dns {
            self.portal.schedule_probe(now, portal::MIN_PORTAL_PROBE_INTERVAL);
        }
        self.failure = Some(match self.failure {
            // "Slow" is less severe than the failure already on record.
            Some(failed) if failed.kind != LinkFailure::Slow && kind == LinkFailure::Slow => failed,
            // The portal explains every failure, unless the destination was reached.
            Some(failed)
                if failed.kind == LinkFailure::Portal
                    && !matches!(kind, LinkFailure::MptcpDropped | LinkFailure::MptcpStripped) =>
            {
                failed.postponed(now)
            }
            // The same failure again, or a change between failures of the same severity: the probe interval
            // continues to grow. A link that was only slow and now fails outright starts again below.
            Some(failed) if failed.kind != LinkFailure::Slow || kind == LinkFailure::Slow => {
                let suspected = suspected && (failed.suspected || failed.kind != kind);
                FailureRecord { kind, suspected, ..failed }.postponed(now)
            }
            _ => FailureRecord {
                kind,
                suspected,
                since: now,
                next_probe: now + MIN_PROBE_INTERVAL,
                interval: MIN_PROBE_INTERVAL,
            },
        });
    }

    fn rank(&self) -> u8 {
        let unresponsive_rank = if self.observation.is_unresponsive { LinkFailure::NoResponse.rank() } else { 0 };
        self.failure.map_or(0, |failed| failed.kind.rank()).max(unresponsive_rank)
    }
}

impl FailureRecord {
    fn postponed(self, now: Instant) -> Self {
        // Several attempts that fail at the same time count as one failure.
        if now < self.next_probe {
            return self;
        }
        let pause = (2 * self.interval).min(MAX_PROBE_INTERVAL);
        Self { interval: pause, next_probe: now + pause, ..self }
    }
}
