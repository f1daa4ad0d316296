//! The profiles that are not about energy: most bytes per second, and the shortest way.
//!
//! Throughput: every link joins at once. Whether both beat the best one is `guard`'s question:
//!
//! 1. A path whose window is open in its own round trips ([`is_judged`](Conn::is_judged)), and that is as slow as what holds
//!    a fast one up, goes early: a fast one's window need not be open, and what it brought in its best moment counts, since
//!    the pauses are the slow one's doing. It is destroyed and not suspended, because what the server has queued on it
//!    (measured: up to 6.5 MB on the first subflow) would come over it, late, and hold up everything behind; what is
//!    destroyed is sent again over the others.
//! 2. When the others have shown what they bring alone, it is tried beside them, and stays if all bring more. What it brought
//!    before tells what it can only if its queue was seen to fill: in a connection's first half second a pause of all paths
//!    may leave it with a tenth of that.
//!    A path that has come back from an outage is not judged before it has carried for two seconds (see `outage`).
//! 3. It is taken up again without a trial when the others have become so slow that it would be missed.
//!
//! Latency: the path with the shortest round trip alone, every other one joined as a backup: it takes over at once. A
//! scheduler that sends each segment twice would be redundancy proper; it is the sender's, and cannot be asked for.

use super::super::conn::Conn;
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::super::subflow::Sub;
use super::Choice;
use super::trials::{DRAG, DRAG_OF_SHORT};
use crate::energy::Direction;
use crate::units::{Bitrate, Duration};

/// How long a path has carried when it is judged, and in its own round trips. chosen: a window of 10 packets has become one
/// of 640 in six of them, and two more tell what it brings.
const JUDGED: Duration = Duration::from_millis(500);
const ROUNDS: u32 = 8;
/// How long it must have been seen then, and the fast one.
const AT_LEAST: Duration = Duration::from_millis(200);
/// A path that was left out is missed when it is so many times as fast as what would hold the others up. chosen: more than a
/// fast path's rate differs from one second to the next.
const MISSED: u64 = 2;
/// The time between changes of the shortest path.
const STAYS: Duration = Duration::from_secs(2);
/// Another path must be that much shorter, in percent, before one changes to it.
const SHORTER: u64 = 70;

impl Conn {
    pub(super) fn fastest(&mut self, host: &Host, usable: Links) -> Choice {
        self.trial.beside = self.trial.beside.filter(|trial| usable.has(trial.slow));
        let tried = self.trial.beside.map_or(Links::NONE, |trial| Links::one(trial.slow));
        let seen = |at: &usize| self.paths.get(*at).is_some_and(|path| path.pace.seen() >= AT_LEAST);
        let fast = self.carrying().and(usable).without(tried).iter().filter(seen).max_by_key(|at| self.peak(*at));
        let Some(fast) = fast else {
            return Choice::new(usable, Reason::Fastest { links: usable, rate: Bitrate::ZERO });
        };
        let (mut links, mut best) = (usable.without(tried), None);
        for at in links.iter() {
            let slow = self.slow(host, at, fast).filter(|_| at != fast);
            if slow.is_some() {
                links = links.without(Links::one(at));
                best = best.max(slow.map(|rate| (rate, at)));
            }
            let filled = self.on(at).is_some_and(Sub::fills);
            if let Some(path) = self.paths.get_mut(at) {
                path.away = slow.is_some();
                path.filled |= filled;
            }
        }
        if let Some(choice) = self.beside(host, links, best, fast) {
            return Choice { destroy: usable.without(choice.active), ..choice };
        }
        let destroy = usable.without(links);
        if let Some(choice) = self.guarded(host, usable, links, false) {
            return Choice { destroy, ..choice };
        }
        let rate = links.iter().map(|at| self.lately(at)).sum();
        let reason = match best {
            Some((slow_rate, slow)) => Reason::Away { links, slow, slow_rate, rate },
            None => Reason::Fastest { links, rate },
        };
        Choice { destroy, ..Choice::new(links, reason) }
    }

    /// A link's rate, if it is so slow that it would hold the fast one up.
    fn slow(&self, host: &Host, at: usize, fast: usize) -> Option<Bitrate> {
        let path = self.paths.get(at).filter(|path| !path.is_returning())?;
        let usual = if self.sends_short(host) { DRAG_OF_SHORT } else { DRAG };
        let limit = host.trials.limit(host.now, at, fast).unwrap_or(usual);
        let (carries, seen) = (self.carrying().has(at) && !path.away, !path.pace.seen().is_zero());
        let (slow, least) = match (carries, seen) {
            (true, _) => {
                // What a relay sends pauses on one path because of another one; what is sent from here does not, and a silent path
                // is to be left soon.
                let rate = match host.config.short_queues && !self.sends_short(host) {
                    true => path.pace.moving(Duration::from_secs(1)),
                    false => Some(self.lately(at)),
                };
                (rate.filter(|_| self.is_judged(host, at)), self.peak(fast).share(limit))
            }
            // In its last second its window may have opened.
            (false, true) => {
                (Some(self.peak(at)), self.peak(fast).share(limit) * if path.away { MISSED } else { 1 })
            }
            // What other connections know of it counts while nothing is known here.
            (false, false) => {
                let all = host.link(fast).map(|link| link.rate(&host.config, host.now)).unwrap_or_default();
                (host.link(at)?.known_since_return(), self.peak(fast).max(all).share(limit))
            }
        };
        slow.filter(|slow| *slow < least)
    }

    /// Whether most of its bytes are sent from here, by somebody who keeps what waits on subflows short.
    pub(in super::super) fn sends_short(&self, host: &Host) -> bool {
        host.config.short_queues && self.direction() == Direction::Up
    }

    /// Whether a path's window is open, in its own round trips, and what it brings is known.
    fn is_judged(&self, host: &Host, at: usize) -> bool {
        let open = |sub: &Sub| sub.proven && host.now.since(sub.active) >= JUDGED.max(sub.handshake() * ROUNDS);
        self.on(at).is_some_and(open) && self.paths.get(at).is_some_and(|path| path.pace.seen() >= AT_LEAST)
    }

    /// The most that a path brought lately.
    fn peak(&self, link: usize) -> Bitrate {
        self.paths.get(link).and_then(|path| path.pace.most()).unwrap_or_default()
    }

    pub(super) fn shortest(&self, host: &Host, usable: Links, home: usize) -> Choice {
        let rtt = |at: usize| self.on(at).map(|sub| sub.handshake());
        let now = self.active.and(usable).first().unwrap_or(home);
        let current = rtt(now).unwrap_or(Duration::MAX);
        let settled = host.now.since(self.since) >= STAYS || self.joined().and(self.active).is_empty();
        let best = usable.iter().filter(|_| settled).filter_map(|at| Some((rtt(at)?, at))).min();
        let shorter = |(other, _): &(Duration, usize)| {
            other.as_nanos().saturating_mul(100) < current.as_nanos().saturating_mul(SHORTER.into())
        };
        let (rtt, link) = best.filter(shorter).unwrap_or((current, now));
        let millis = if rtt == Duration::MAX { 0 } else { rtt.as_millis() as u64 };
        Choice { spare: usable, ..Choice::new(Links::one(link), Reason::Shortest { link, millis }) }
    }
}
