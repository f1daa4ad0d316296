//! Link choice: over which link a new connection begins, by the outcomes of earlier attempts.
//!
//! [`LinkChoice`] keeps the evidence of each link: the last failure with its kind, how long the last handshake took, and when the link is
//! probed next. [`Race`] is one new connection: it tries the links in order of the evidence, the next one after 300 to 500 ms without a
//! result or at once after a failure (Happy Eyeballs, RFC 8305, over links in place of addresses).
//!
//! A failure counts against a link only if another link reached the same destination. The certificate of another server counts also if
//! no link reached it, unless all links showed such a certificate. A destination that no link reaches says nothing about the links.
//!
//! A failed link comes last in the order. It is probed at intervals that grow from [`FIRST_PROBE`] to [`LAST_PROBE`]. It returns to its
//! place when a probe or a connection over it succeeds, or when its interface went down and came up again.
//!
//! Captive portals that do not answer in the relay's place are found by requests of plain HTTP; when these are due is decided in `portal`.

mod happy_eyeballs;
mod portal;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

pub use happy_eyeballs::{HappyEyeballs, Outcome};
pub use portal::PortalAnswer;

use crate::units::Instant;

/// How an attempt over a link fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkFailure {
    /// The handshake takes much longer than over another link.
    Slow,
    /// SYNs with MPTCP's option are not answered, those of plain TCP are.
    MptcpDropped,
    /// MPTCP's option is removed on the way: connections fall back to plain TCP, and over another link they do not.
    MptcpStripped,
    /// An answer that says nothing about the link.
    Other,
    /// No name server gives the address over this link.
    Dns,
    /// The connection is refused or reset.
    Refused,
    /// No route, or an ICMP error.
    Unreachable,
    /// No answer.
    NoResponse,
    /// TLS shows the certificate of another server: a captive portal.
    WrongCertificate,
    /// A captive portal answers a request of plain HTTP.
    Portal,
}

impl LinkFailure {
    /// For people, after "does not reach the relay: ".
    pub const fn description(self) -> &'static str {
        match self {
            Self::Slow => "slow answer",
            Self::MptcpDropped => "packets with MPTCP's option are dropped",
            Self::MptcpStripped => "MPTCP is stripped on the way",
            Self::Other => "the attempt failed",
            Self::Dns => "its name servers do not give the address",
            Self::Refused => "the connection is refused or reset",
            Self::Unreachable => "unreachable",
            Self::NoResponse => "no answer",
            Self::WrongCertificate => "another server answers in its place: a captive portal",
            Self::Portal => "a captive portal, which a browser on that network shows",
        }
    }

    /// Whether the link cannot carry other traffic either, as far as this failure shows.
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable | Self::NoResponse) || self.is_portal()
    }

    /// Whether something answers in the place of other servers.
    pub const fn is_portal(self) -> bool {
        matches!(self, Self::WrongCertificate | Self::Portal)
    }

    /// Where a link with this failure comes in the order: behind those that only lack MPTCP or speed come those that do not carry, and
    /// behind them those that answer in another server's place.
    const fn rank(self) -> u8 {
        match self {
            Self::Slow => 1,
            Self::MptcpDropped | Self::MptcpStripped => 2,
            Self::WrongCertificate | Self::Portal => 4,
            _ => 3,
        }
    }
}

/// A link that can be used, as the driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkObservation {
    /// Its interface.
    pub name: String,
    /// The interface's number: another one is another interface of the same name.
    pub index: u32,
    /// Established subflows over it get no answer.
    pub is_silent: bool,
    /// Data came over established subflows since the last time.
    pub is_receiving: bool,
    /// Its bytes cost money.
    pub metered: bool,
}

/// The evidence of all links. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct LinkChoice {
    /// In the order of the kernel's preference.
    links: Vec<LinkRecord>,
    /// When a portal was looked for last, by link, also of links that have gone since.
    asked: BTreeMap<String, Instant>,
    /// The server of the portal probe's URL has answered over some link.
    opened: bool,
}

#[derive(Clone, Debug)]
struct LinkRecord {
    observation: LinkObservation,
    /// The duration of the last handshake.
    handshake_time: Option<Duration>,
    failure: Option<FailureRecord>,
    /// When it is tried next though nothing is known against it.
    next_check: Instant,
    portal: portal::Schedule,
}

#[derive(Clone, Copy, Debug)]
struct FailureRecord {
    kind: LinkFailure,
    /// No other link has reached the destination that showed it.
    suspected: bool,
    since: Instant,
    next_probe: Instant,
    interval: Duration,
}

/// chosen: a link that was silent for a moment is used again soon.
pub const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: a probe is a few hundred bytes, a metered link pays them all day.
pub const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// RFC 8305 section 5 recommends 250 ms between addresses; over links each attempt costs a handshake of TLS as well.
const MIN_ATTEMPT_DELAY: Duration = Duration::from_millis(300);
const MAX_ATTEMPT_DELAY: Duration = Duration::from_millis(500);
/// chosen: by then the first connections over the link have shown the same.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// chosen: a connection of about 5 kB every ten minutes is less than a megabyte a day.
const CHECK_INTERVAL: Duration = Duration::from_secs(600);

impl LinkChoice {
    /// The links that are up, in the order of the kernel's preference. One that was not among them starts without evidence.
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
                    portal: portal::Schedule::new(now, self.asked.get(&observation.name).copied()),
                },
            };
            // Data over established subflows begin to arrive: the link carries data. Whether new connections can begin over it is
            // not known, so it is probed soon.
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
        // Stable: of equals the kernel's preference decides.
        order.sort_by_key(|record| record.rank());
        order.into_iter().map(|record| record.observation.name.clone()).collect()
    }

    /// How long the next link waits for a result over this one.
    fn attempt_delay(&self, link: &str) -> Duration {
        let handshake_time = self.find(link).and_then(|record| record.handshake_time).unwrap_or_default();
        (2 * handshake_time).clamp(MIN_ATTEMPT_DELAY, MAX_ATTEMPT_DELAY)
    }

    /// What a race or a probe has shown of a link.
    pub fn record(&mut self, now: Instant, link: &str, outcome: Outcome) {
        let Some(record) = self.links.iter_mut().find(|record| record.observation.name == link) else { return };
        record.next_check = now + CHECK_INTERVAL;
        match outcome {
            Outcome::Connected(handshake_time) => {
                record.handshake_time = Some(handshake_time);
                // A slow link stays last until a handshake over it is fast again.
                let is_slow =
                    |failed: &FailureRecord| failed.kind == LinkFailure::Slow && handshake_time > MAX_ATTEMPT_DELAY;
                record.failure = record.failure.filter(is_slow).map(|failed| failed.postponed(now));
            }
            Outcome::Failed(kind) => record.fail(now, kind, false),
            // Its portal has just been found not to be there: it is the destination's certificate that is wrong.
            Outcome::Suspected if record.portal.is_open(now) => {}
            Outcome::Suspected => record.fail(now, LinkFailure::WrongCertificate, true),
            Outcome::Retracted => {
                record.failure = record.failure.filter(|failed| failed.kind != LinkFailure::WrongCertificate);
            }
        }
    }

    /// The link that is to be probed first, and when.
    pub fn next_probe(&self) -> Option<(Instant, String)> {
        let due = self.links.iter().filter_map(|record| Some((record.failure?.next_probe, record)));
        due.min_by_key(|(at, _)| *at).map(|(at, record)| (at, record.observation.name.clone()))
    }

    /// Of the links without a failure, the one over which no connection began for the longest time, and when it is to be checked. As long
    /// as connections begin over another link, nothing else would show that this one fails.
    pub fn next_check(&self) -> Option<(Instant, String)> {
        let healthy = self.links.iter().filter(|record| record.failure.is_none() && self.links.len() > 1);
        healthy
            .min_by_key(|record| record.next_check)
            .map(|record| (record.next_check, record.observation.name.clone()))
    }

    /// Forgets all failures of this kind: their cause was not the links.
    pub fn forget_failures(&mut self, kind: LinkFailure) {
        for record in &mut self.links {
            record.failure = record.failure.filter(|failed| failed.kind != kind);
        }
    }

    /// A probe over this link begins. The next one is due after a longer pause, whatever the result of this one.
    pub fn on_probe_started(&mut self, now: Instant, link: &str) {
        if let Some(record) = self.links.iter_mut().find(|record| record.observation.name == link) {
            record.failure = record.failure.map(|failed| failed.postponed(now));
            record.next_check = now + CHECK_INTERVAL;
            if record.failure.is_some_and(|failed| failed.kind.is_portal()) {
                record.portal.want(now, portal::PAUSE);
            }
        }
    }

    /// The link's failure; `None` if it has none, or if the link is unknown.
    pub fn failure(&self, link: &str) -> Option<LinkFailure> {
        self.find(link)?.failure.map(|failed| failed.kind)
    }

    /// Links over which new connections do not begin, with the reason. A slow one is not among them.
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
            self.portal.want(now, portal::PAUSE);
        }
        self.failure = Some(match self.failure {
            // Nothing new: it is known to be worse than slow.
            Some(failed) if failed.kind != LinkFailure::Slow && kind == LinkFailure::Slow => failed,
            // The portal is why, unless the destination was reached.
            Some(failed)
                if failed.kind == LinkFailure::Portal
                    && !matches!(kind, LinkFailure::MptcpDropped | LinkFailure::MptcpStripped) =>
            {
                failed.postponed(now)
            }
            // Late at first, and then not there at all.
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
        let silent = if self.observation.is_silent { LinkFailure::NoResponse.rank() } else { 0 };
        self.failure.map_or(0, |failed| failed.kind.rank()).max(silent)
    }
}

impl FailureRecord {
    fn postponed(self, now: Instant) -> Self {
        // Several attempts that fail together are one.
        if now < self.next_probe {
            return self;
        }
        let pause = (2 * self.interval).min(MAX_PROBE_INTERVAL);
        Self { interval: pause, next_probe: now + pause, ..self }
    }
}
