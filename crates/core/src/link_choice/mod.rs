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

mod portal;
mod race;
#[cfg(test)]
mod tests;

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

pub use portal::PortalAnswer;
pub use race::{Outcome, Race};

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
    Names,
    /// The connection is refused or reset.
    Refused,
    /// No route, or an ICMP error.
    Unreachable,
    /// No answer.
    Silent,
    /// TLS shows the certificate of another server: a captive portal.
    WrongCertificate,
    /// A captive portal answers a request of plain HTTP.
    Portal,
}

impl LinkFailure {
    /// For people, after "does not reach the relay: ".
    pub const fn words(self) -> &'static str {
        match self {
            Self::Slow => "slow answer",
            Self::MptcpDropped => "packets with MPTCP's option are dropped",
            Self::MptcpStripped => "MPTCP is stripped on the way",
            Self::Other => "the attempt failed",
            Self::Names => "its name servers do not give the address",
            Self::Refused => "the connection is refused or reset",
            Self::Unreachable => "unreachable",
            Self::Silent => "no answer",
            Self::WrongCertificate => "another server answers in its place: a captive portal",
            Self::Portal => "a captive portal, which a browser on that network shows",
        }
    }

    /// Whether the link cannot carry other traffic either, as far as this failure shows.
    pub const fn is_outage(self) -> bool {
        matches!(self, Self::Refused | Self::Unreachable | Self::Silent) || self.is_portal()
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
pub struct LinkSeen {
    /// Its interface.
    pub name: String,
    /// The interface's number: another one is another interface of the same name.
    pub index: u32,
    /// Established subflows over it get no answer.
    pub silent: bool,
    /// Data came over established subflows since the last time.
    pub receives: bool,
    /// Its bytes cost money.
    pub metered: bool,
}

/// The evidence of all links. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct LinkChoice {
    /// In the order of the kernel's preference.
    links: Vec<Known>,
    /// When a portal was looked for last, by link, also of links that have gone since.
    asked: BTreeMap<String, Instant>,
    /// The server of the portal probe's URL has answered over some link.
    opened: bool,
}

#[derive(Clone, Debug)]
struct Known {
    seen: LinkSeen,
    /// The duration of the last handshake.
    took: Option<Duration>,
    failure: Option<Failed>,
    /// When it is tried next though nothing is known against it.
    check_at: Instant,
    portal: portal::Schedule,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    kind: LinkFailure,
    /// No other link has reached the destination that showed it.
    suspected: bool,
    since: Instant,
    probe_at: Instant,
    pause: Duration,
}

/// chosen: a link that was silent for a moment is used again soon.
pub const FIRST_PROBE: Duration = Duration::from_secs(1);
/// chosen: a probe is a few hundred bytes, a metered link pays them all day.
pub const LAST_PROBE: Duration = Duration::from_secs(30);
/// RFC 8305 section 5 recommends 250 ms between addresses; over links each attempt costs a handshake of TLS as well.
const STAGGER: Duration = Duration::from_millis(300);
const LONGEST_STAGGER: Duration = Duration::from_millis(500);
/// chosen: by then the first connections over the link have shown the same.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// chosen: a connection of about 5 kB every ten minutes is less than a megabyte a day.
const CHECK: Duration = Duration::from_secs(600);

impl LinkChoice {
    /// The links that are up, in the order of the kernel's preference. One that was not among them starts without evidence.
    pub fn set_links(&mut self, now: Instant, links: Vec<LinkSeen>) {
        let mut before = core::mem::take(&mut self.links);
        self.remember_portal_probes(now, &before);
        for seen in links {
            let known =
                before.iter().position(|known| known.seen.name == seen.name && known.seen.index == seen.index);
            let mut known = match known {
                Some(at) => before.swap_remove(at),
                None => Known {
                    seen: seen.clone(),
                    took: None,
                    failure: None,
                    check_at: now + FIRST_CHECK,
                    portal: portal::Schedule::new(now, self.asked.get(&seen.name).copied()),
                },
            };
            // Data over established subflows begin to arrive: the link carries data. Whether new connections can begin over it is
            // not known, so it is probed soon.
            if seen.receives
                && !known.seen.receives
                && let Some(failed) = &mut known.failure
            {
                failed.probe_at = failed.probe_at.min(now.max(failed.since + FIRST_PROBE));
            }
            known.seen = seen;
            self.links.push(known);
        }
    }

    /// The links in the order in which a new connection tries them.
    pub fn order(&self) -> Vec<String> {
        let mut order: Vec<&Known> = self.links.iter().collect();
        // Stable: of equals the kernel's preference decides.
        order.sort_by_key(|known| known.rank());
        order.into_iter().map(|known| known.seen.name.clone()).collect()
    }

    /// How long the next link waits for a result over this one.
    fn stagger(&self, link: &str) -> Duration {
        let took = self.named(link).and_then(|known| known.took).unwrap_or_default();
        (2 * took).clamp(STAGGER, LONGEST_STAGGER)
    }

    /// What a race or a probe has shown of a link.
    pub fn report(&mut self, now: Instant, link: &str, outcome: Outcome) {
        let Some(known) = self.links.iter_mut().find(|known| known.seen.name == link) else { return };
        known.check_at = now + CHECK;
        match outcome {
            Outcome::Reached(took) => {
                known.took = Some(took);
                // A slow link stays last until a handshake over it is fast again.
                let is_slow = |failed: &Failed| failed.kind == LinkFailure::Slow && took > LONGEST_STAGGER;
                known.failure = known.failure.filter(is_slow).map(|failed| failed.postponed(now));
            }
            Outcome::Failed(kind) => known.fail(now, kind, false),
            // Its portal has just been found not to be there: it is the destination's certificate that is wrong.
            Outcome::Suspected if known.portal.is_open(now) => {}
            Outcome::Suspected => known.fail(now, LinkFailure::WrongCertificate, true),
            Outcome::Retracted => {
                known.failure = known.failure.filter(|failed| failed.kind != LinkFailure::WrongCertificate);
            }
        }
    }

    /// The link that is to be probed first, and when.
    pub fn next_probe(&self) -> Option<(Instant, String)> {
        let due = self.links.iter().filter_map(|known| Some((known.failure?.probe_at, known)));
        due.min_by_key(|(at, _)| *at).map(|(at, known)| (at, known.seen.name.clone()))
    }

    /// Of the links without a failure, the one over which no connection began for the longest time, and when it is to be checked. As long
    /// as connections begin over another link, nothing else would show that this one fails.
    pub fn next_check(&self) -> Option<(Instant, String)> {
        let well = self.links.iter().filter(|known| known.failure.is_none() && self.links.len() > 1);
        well.min_by_key(|known| known.check_at).map(|known| (known.check_at, known.seen.name.clone()))
    }

    /// Forgets all failures of this kind: their cause was not the links.
    pub fn forgive(&mut self, kind: LinkFailure) {
        for known in &mut self.links {
            known.failure = known.failure.filter(|failed| failed.kind != kind);
        }
    }

    /// A probe over this link begins. The next one is due after a longer pause, whatever the result of this one.
    pub fn probing(&mut self, now: Instant, link: &str) {
        if let Some(known) = self.links.iter_mut().find(|known| known.seen.name == link) {
            known.failure = known.failure.map(|failed| failed.postponed(now));
            known.check_at = now + CHECK;
            if known.failure.is_some_and(|failed| failed.kind.is_portal()) {
                known.portal.want(now, portal::PAUSE);
            }
        }
    }

    /// The link's failure; `None` if it has none, or if the link is unknown.
    pub fn failure(&self, link: &str) -> Option<LinkFailure> {
        self.named(link)?.failure.map(|failed| failed.kind)
    }

    /// Links over which new connections do not begin, with the reason. A slow one is not among them.
    pub fn failing(&self) -> Vec<(String, LinkFailure)> {
        let failed = self.links.iter().filter_map(|known| Some((known.seen.name.to_string(), known.failure?.kind)));
        failed.filter(|(_, kind)| *kind != LinkFailure::Slow).collect()
    }

    fn named(&self, link: &str) -> Option<&Known> {
        self.links.iter().find(|known| known.seen.name == link)
    }
}

impl Known {
    fn fail(&mut self, now: Instant, kind: LinkFailure, suspected: bool) {
        if kind.is_outage() || kind == LinkFailure::Names {
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
                Failed { kind, suspected, ..failed }.postponed(now)
            }
            _ => Failed { kind, suspected, since: now, probe_at: now + FIRST_PROBE, pause: FIRST_PROBE },
        });
    }

    fn rank(&self) -> u8 {
        let silent = if self.seen.silent { LinkFailure::Silent.rank() } else { 0 };
        self.failure.map_or(0, |failed| failed.kind.rank()).max(silent)
    }
}

impl Failed {
    fn postponed(self, now: Instant) -> Self {
        // Several attempts that fail together are one.
        if now < self.probe_at {
            return self;
        }
        let pause = (2 * self.pause).min(LAST_PROBE);
        Self { pause, probe_at: now + pause, ..self }
    }
}
