//! The profiles that are not about energy: most bytes per second, and the shortest way.
//!
//! Throughput: every link joins at once. A path whose rate is a small part of the fast one's costs more than it brings
//! (`guard`), so it goes early: it is destroyed and not suspended, because what the server has queued on it (measured: up
//! to 6.5 MB on the first subflow) would come over it, late, and hold up everything behind; what is destroyed is sent
//! again over the others. It is kept away while it would not help: while the others are faster than it was, and
//! for [`AWAY`], doubled each time.
//!
//! Latency: the path with the shortest round trip alone, every other one joined as a backup: it takes over at once. A
//! scheduler that sends each segment twice would be redundancy proper; it is the sender's, and cannot be asked for.

use super::super::conn::{Away, Conn, Path};
use super::super::host::Host;
use super::super::links::Links;
use super::super::reason::Reason;
use super::Choice;
use crate::units::{Bitrate, Duration, Ratio};

/// A path of less than this part of the fastest one's rate is not worth its trouble. Measured: 5 + 50 bring 0.56 to 0.9 of
/// the sum, 2 + 20 less than 20 alone; 4 + 20 a fifth more. A fast path that is held up brings two thirds of what it could,
/// so that a fifth in truth is seen as two sevenths.
const FEW: Ratio = Ratio::from_ppm(285_000);
/// How long a path is measured before it is judged: slow start is over.
const JUDGED: Duration = Duration::from_millis(400);
/// How long the fast one must have been seen for that.
const AT_LEAST: Duration = Duration::from_millis(200);
/// The first time for which it is kept away in any case.
const AWAY: Duration = Duration::from_secs(60);
/// The time between changes of the shortest path.
const STAYS: Duration = Duration::from_secs(2);
/// Another path must be that much shorter, in percent, before one changes to it.
const SHORTER: u64 = 70;

impl Conn {
    pub(super) fn fastest(&mut self, host: &Host, usable: Links) -> Choice {
        let now = host.now;
        let seen = |time: Duration| move |path: &Path| path.pace.seen() >= time;
        let judged = |links: Links, time: Duration| {
            let seen = |at: &usize| self.paths.get(*at).is_some_and(seen(time));
            links.iter().filter(seen).fold(Links::NONE, Links::with)
        };
        let carrying = self.carrying().and(usable);
        // What a path in slow start brings, it brings at least.
        let fast = judged(carrying, AT_LEAST).iter().max_by_key(|at| self.lately(*at));
        let judged = judged(carrying, JUDGED);
        let rate = fast.map_or(Bitrate::ZERO, |at| self.lately(at));
        let (mut links, mut away) = (usable, None);
        let trial = self.trial;
        let found = trial.drag.filter(|(_, until)| now < *until).map(|(share, _)| share);
        let drags = |slow: Bitrate| found.is_some_and(|share| slow < rate.share(share));
        for at in usable.iter().filter(|at| Some(*at) != fast) {
            let (ready, slow) = (judged.has(at), self.lately(at));
            let Some(path) = self.paths.get_mut(at) else { continue };
            if (ready || found.is_some())
                && fast.is_some()
                && (slow < rate.share(FEW) || drags(slow))
                && path.away.is_none_or(|away| now >= away.until)
            {
                let times = path.away.map_or(0, |away| away.times.saturating_add(1));
                let until = now + AWAY.saturating_mul(1 << u32::from(times).min(4));
                path.away = Some(Away { rate: slow, until, times });
            }
            let known = host.link(at).and_then(|link| link.known()).filter(|_| !carrying.has(at));
            let small = |known: Bitrate| known < rate.share(FEW) || drags(known);
            // Only when the others have become no faster than it was would it be missed.
            let missed = |was: Bitrate| fast.is_some() && was >= rate + rate / 5;
            let kept = path.away.is_some_and(|away| now < away.until && !missed(away.rate));
            // What another connection knows of it counts while nothing is known here.
            if kept || path.away.is_none() && path.pace.seen().is_zero() && known.is_some_and(small) {
                links = links.without(Links::one(at));
                away = Some((at, path.away.map_or(known.unwrap_or_default(), |away| away.rate)));
            }
        }
        if links.is_empty() {
            links = usable;
        }
        let destroy = usable.without(links);
        if let Some(choice) = self.guarded(host, usable, links, false) {
            return Choice { destroy, ..choice };
        }
        let reason = match away {
            Some((slow, slow_rate)) => Reason::Away { links, slow, slow_rate, rate },
            None => Reason::Fastest { links, rate: links.iter().map(|at| self.lately(at)).sum() },
        };
        Choice { destroy, ..Choice::new(links, reason) }
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
