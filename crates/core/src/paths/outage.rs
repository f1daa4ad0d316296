//! Outages: what a connection does when a link goes down, and how it uses the link again.
//!
//! 1. What was measured before and during an outage does not describe the link that comes back: a modem registers in
//!    another cell, a cable is replaced, and a path that carried nothing for five seconds was not slow but down. All
//!    measurements of the path are discarded, those of the host for the link as well ([`Link::on_return`]), and so are
//!    trials that compared the link with others.
//! 2. While a link is down or its path is silent no samples are taken of it.
//! 3. A returned path is neither judged nor left out before it has carried for [`GRACE`]. The grace begins with its first
//!    sample, because the sender may first have to deliver what it has queued for other subflows.
//! 4. When a link goes down, subflows over which this host sends are destroyed: their data goes over the other subflows at
//!    once. A subflow over which the peer sends stays until a new one has carried data. When the link returns, a new subflow
//!    replaces it: the peer sends nothing over the old one until its retransmission timer expires.
//! 5. A connection all of whose paths fail in the middle of a transfer is *stalled*: it becomes idle like any other, but its
//!    paths are probed as long as that lasts. When a link returns, the peer's retransmission timer may have a
//!    minute left; over a new subflow it sends at once.
//! 6. Only one connection at a time probes a silent link ([`Host::probe_interval`]). The others join the link again when that
//!    one has received an answer.
//!
//! Not chosen: to keep the measured rates with a shorter memory. After an outage of two seconds they would all be zero, and a
//! connection would stop using the link before the first byte could arrive.
//!
//! [`Link::on_return`]: super::links::Link::on_return

use super::config::{Policy, Profile};
use super::conn::{Conn, Dead, Join, Path, Pulse};
use super::event::SubflowId;
use super::host::Host;
use super::pace::Pace;
use super::subflow::Sub;
use crate::predict::Holt;
use crate::units::{Bitrate, Duration, Instant};

/// How long a returned path carries before it is judged. chosen: the memory of [`Pace`], so that no rate that decides is
/// of less than that.
const GRACE: Duration = Pace::MEMORY;

/// Whether a path has come back from an outage and is not judged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Returned {
    /// It has had no outage, or has carried for long enough since.
    #[default]
    No,
    /// It has come back and has not carried yet.
    Waiting,
    /// It carries again since then.
    Since(Instant),
}

impl Path {
    /// Discards all measurements: the path begins as a new one, and is not judged at once.
    pub(super) fn restart(&mut self, now: Instant) {
        (self.pace, self.holt, self.samples) = (Pace::default(), Holt::default(), 0);
        (self.bytes, self.from, self.glanced) = (0, now, None);
        (self.alone, self.best) = (None, Bitrate::ZERO);
        (self.away, self.filled) = (false, false);
        self.returned = Returned::Waiting;
    }

    /// A sample was taken of it.
    pub(super) fn on_carried(&mut self, now: Instant) {
        self.returned = match self.returned {
            Returned::Waiting => Returned::Since(now),
            Returned::Since(since) if now.since(since) >= GRACE => Returned::No,
            returned => returned,
        };
    }

    /// Whether it has come back from an outage and has not yet carried for [`GRACE`].
    pub(super) fn is_returning(&self) -> bool {
        self.returned != Returned::No
    }
}

impl Conn {
    /// A link went down or came up.
    pub(super) fn on_link(&mut self, host: &mut Host, at: usize, up: bool) {
        let now = host.now;
        let has = self.on(at).is_some();
        let Some(path) = self.paths.get_mut(at) else { return };
        path.not_before = now;
        path.fails = 0;
        if host.config.policy == Policy::Marline {
            path.restart(now);
        }
        if up {
            // A sender whose bytes wait on the old subflow has backed off: a new subflow is faster. Without one the link
            // is like a new one.
            let waits = has && (self.pulse == Pulse::Busy || self.stalled);
            path.dead = waits.then_some(Dead::at(now, now));
        } else {
            path.join = Join::No;
            let lost = self.subs.iter().filter(|sub| sub.link == Some(at) && self.sends_short(host));
            let lost: alloc::vec::Vec<SubflowId> = lost.map(|sub| sub.id).collect();
            lost.into_iter().for_each(|id| self.destroy(host, id));
        }
        if host.config.policy == Policy::Marline {
            self.end_trials();
        }
        self.share(host, self.carrying());
    }

    /// A link that is up has an address of a family that it had none of: joins that had no address are tried at once.
    pub(super) fn on_address(&mut self, host: &mut Host, at: usize) {
        let Some(path) = self.paths.get_mut(at) else { return };
        (path.not_before, path.fails) = (host.now, 0);
        if let Some(dead) = &mut path.dead {
            dead.probe = host.now;
        }
        if let Some(link) = host.links.get_mut(at) {
            link.next_probe = host.now;
        }
    }

    /// Ends trials without a result: the links that they compared are not what they were.
    pub(super) fn end_trials(&mut self) {
        (self.trial.open, self.trial.beside, self.trial.glance, self.trial.found) = (None, None, None, None);
    }

    /// Whether none of the subflows that are to carry it has a link that is up and a path that is not silent.
    pub(super) fn has_no_path(&self, host: &Host) -> bool {
        let works = |sub: &Sub| {
            let path = sub.link.and_then(|at| Some((self.paths.get(at)?, host.link(at)?)));
            path.is_none_or(|(path, link)| link.up && path.dead.is_none())
        };
        !self.subs.iter().any(|sub| !sub.leaving && works(sub))
    }
}

impl Host {
    /// A link comes back from an outage, or goes down: what was found of it before says nothing of what it can do now.
    pub(super) fn on_return(&mut self, at: usize) {
        if self.config.policy == Policy::Marline {
            self.trials.forget(at);
            if let Some(link) = self.links.get_mut(at) {
                link.on_return(&self.config, self.now);
            }
        }
    }

    /// How long after a probe of a silent path the next one follows, `began` being the beginning of the silence.
    ///
    /// A radio that is costly to wake is probed at growing intervals where energy is the aim. Elsewhere the interval
    /// stays below the two seconds within which a link is to be used again.
    pub(super) fn probe_interval(&self, at: usize, began: Instant, fails: u8) -> Duration {
        let cheapest = self.up().iter().map(|at| self.one_packet(at)).min().unwrap_or_default();
        let saves = matches!(self.config.profile, Profile::Energy | Profile::Metered);
        if saves && self.one_packet(at) > cheapest {
            return Dead::FIRST.saturating_mul(1 << u32::from(fails).min(8)).min(Dead::MOST);
        }
        if self.now.since(began) < PROBED_OFTEN { Dead::FIRST } else { PROBE }
    }
}

/// For so long a silent link is probed each second, and each [`PROBE`] later. chosen: most handovers and
/// reconnections of modems are over by then.
const PROBED_OFTEN: Duration = Duration::from_secs(20);
/// chosen: with the round trips of a join, a link is used again within two seconds of its return on average.
const PROBE: Duration = Duration::from_millis(1500);
