//! Looking at connections: what the counters say, and when to read them again.
//!
//! In: counters of one subflow after another. Out: samples per path, activity, and the next look.
//!
//! 1. A look is whole when each subflow that is known was answered for; only then are samples taken, so that those of all
//!    paths end at the same moment.
//! 2. A sample lasts a round trip with its queue at least: within one, a sender that waits for its window gives bursts and
//!    pauses, and neither is a rate. eMPTCP's lasts the handshake's round trip (§3.2), 50 ms at least.
//! 3. A stretch in which nothing came on any path says nothing of links: the application had nothing to send, or the
//!    path is dead, which is found out otherwise (`silence`).
//! 4. During the drain of another path and while a window opens, samples are thrown away ([`MUTE`]); not by eMPTCP to the
//!    letter, which knows no such thing.
//! 5. A subflow that brought nothing for long after it was asked to carry may bring all at once what waited behind a lost
//!    packet ([`Sub::late`]): its first look with bytes only starts the clock.
//! 6. Active connections share [`PER_SECOND`] looks; idle ones wait for the slow round (`round`).

use super::config::Policy;
use super::conn::{Conn, Join, Pulse};
use super::host::Host;
use super::links::{Links, Rates, Share};
use super::pace::Pace;
use super::subflow::{Sub, Verdict};
use super::{Command, Counters, SubflowId};
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// A resumed or new path is not judged before. Measured: at least 80 % of the link within one 100 ms window at next to no
/// round trip; the brief of that measurement discards 300 ms.
pub(super) const MUTE: Duration = Duration::from_millis(300);
/// Looks per second of all active connections together. chosen: at 15 µs a subflow, two subflows each, and as much again for
/// deciding, 2 % of a core.
const PER_SECOND: u32 = 300;
/// Ours looks so often. chosen: a fifth of what a second path needs to be proved dead; costs 0.03 % of a core a subflow.
const INTERVAL: Duration = Duration::from_millis(100);
/// Published policies that measure nothing.
const SELDOM: Duration = Duration::from_millis(250);
/// eMPTCP's shortest sampling interval: the kernel's clock and the driver's jitter drown a shorter one.
const SHORTEST: Duration = Duration::from_millis(50);
/// A pause that begins a new stretch of activity.
const PAUSE: Duration = Duration::from_secs(1);
/// A pause within one answer is no longer than this, or six round trips. chosen: a link of 10 kbit/s brings a packet in 1.2 s,
/// and one that was lost is sent again after as long.
const LULL: Duration = Duration::from_secs(3);
/// How long a path carries alone before its rate counts as what it can.
const ALONE: Duration = Duration::from_secs(1);
/// A look that is not answered by then is asked for again.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);

impl Conn {
    /// One subflow's counters; the answer tells whether the look is whole.
    pub(super) fn on_seen(&mut self, host: &mut Host, subflow: SubflowId, counters: Counters) -> bool {
        let (now, adopted) = (host.now, self.adopted);
        let Some(sub) = self.sub_mut(subflow) else { return false };
        let first = sub.volume() == 0;
        let from = sub.seen.unwrap_or(now);
        let moved = sub.on_seen(now, counters, adopted);
        let (link, past) = (sub.link, if first && adopted { sub.volume() } else { 0 });
        self.count(past);
        self.on_moved(&moved);
        if let Some(link) = link.and_then(|at| host.links.get_mut(at)) {
            for (direction, size) in moved.into_iter().filter(|(_, size)| !size.is_zero()) {
                link.on_payload(&mut host.meter, (from, now), direction, size);
            }
        }
        self.asked.is_some() && self.subs.iter().all(|sub| sub.answered)
    }

    /// The look is whole: samples, activity, priorities that did not take effect.
    pub(super) fn whole(&mut self, host: &mut Host) {
        let now = host.now;
        self.asked = None;
        self.on_reached(now);
        let fresh = self.fresh(|_| true);
        let carrying = self.carrying();
        let began = self.moved.is_none_or(|moved| now.since(moved) > PAUSE);
        if fresh > 0 {
            if began {
                self.on_burst();
                self.woke = now;
            }
            let lull = LULL.max(self.rtt() * 6);
            self.answers(now, fresh, self.moved.is_none_or(|moved| now.since(moved) > lull));
            self.looks.1 = self.looks.1.saturating_add(1);
            if self.pulse == Pulse::Idle && host.config.policy == Policy::Marline {
                self.begin_anew();
            }
            self.count(fresh);
            (self.moved, self.stalled) = (Some(now), false);
            self.set_pulse(host, Pulse::Busy);
            self.sample(host, carrying, began && self.volume > fresh);
        }
        let waits = self.subs.iter().any(|sub| sub.waits.is_some() && !sub.backup && !sub.leaving);
        if waits {
            self.set_pulse(host, Pulse::Busy);
        }
        self.looks.0 = self.looks.0.saturating_add(1);
        self.judge(host);
        self.tidy(host);
        for sub in &mut self.subs {
            (sub.fresh, sub.answered) = (0, false);
        }
        let quiet = now.since(self.moved.unwrap_or(self.opened).max(self.woke));
        let awaited = waits || self.proving() || self.subs.iter().any(|sub| sub.checking().is_some());
        if fresh == 0 && quiet > QUIET.max(self.rtt() * 6) && !awaited && !self.owes_proof(host) {
            self.stalled = self.pulse == Pulse::Busy && self.has_no_path(host) || self.stalled;
            self.set_pulse(host, Pulse::Idle);
        }
        self.share(host, carrying);
        self.look = now + self.interval(host);
    }

    fn count(&mut self, bytes: u64) {
        self.volume = self.volume.saturating_add(bytes);
        self.stretch = self.stretch.saturating_add(bytes);
    }

    /// A stretch of activity begins after the connection was idle: as far as anybody knows it is as small as any other, and
    /// how fast its paths were then says little of now.
    fn begin_anew(&mut self) {
        (self.stretch, self.admitted) = (0, false);
        (self.trial.open, self.trial.beside, self.trial.glance) = (None, None, None);
        for path in &mut self.paths {
            (path.pace, path.filled, path.best, path.alone) = (Pace::default(), false, Bitrate::ZERO, None);
        }
    }

    /// What came and went since the last whole look, over some of its subflows.
    fn fresh(&self, of: impl Fn(&Sub) -> bool) -> u64 {
        self.subs.iter().filter(|sub| of(sub)).fold(0, |sum, sub| sum.saturating_add(sub.fresh))
    }

    fn sample(&mut self, host: &Host, carrying: Links, began: bool) {
        let now = host.now;
        let marline = host.config.policy == Policy::Marline;
        let (emptcp, literal) = (host.config.policy.is_emptcp(), host.config.policy.is_literal());
        for at in 0..self.paths.len() {
            let fresh = self.fresh(|sub| sub.link == Some(at));
            let least = match self.on(at) {
                Some(sub) if emptcp => sub.handshake().max(SHORTEST),
                Some(sub) => sub.rtt().clamp(INTERVAL, MUTE),
                None => INTERVAL,
            };
            // Before the first byte nobody knows whether the sender had anything to give it: data that waits in the
            // other path's queue comes first.
            // And where full-sized packets may be lost, small ones tell nothing.
            let tells = |sub: &Sub| sub.proven && !(marline && (sub.late || sub.given.is_some()));
            let proven = self.on(at).is_some_and(tells);
            let never = self.home != Some(at) && host.link(at).is_some_and(|link| link.known().is_none());
            let Some(path) = self.paths.get_mut(at) else { continue };
            path.bytes = path.bytes.saturating_add(fresh);
            let silent = path.dead.is_some() || host.link(at).is_some_and(|link| !link.up);
            if fresh > 0 {
                (path.refused, path.useless) = (None, false);
                // The old subflow goes on after an outage: what was measured before and in it is discarded.
                if path.dead.take().is_some() && marline {
                    path.restart(now);
                }
                // What was to be proved is seen.
                if path.join.proves() {
                    (path.join, path.proved) = (Join::No, Some(now));
                }
            }
            let time = now.since(path.from);
            // The first look after a pause only starts the clock: nobody knows when the bytes began.
            if !carrying.has(at) {
                path.samples = 0;
            }
            let mute = !literal && now < path.mute;
            if !carrying.has(at) || began || mute || !proven || silent && marline {
                (path.bytes, path.from) = (0, now);
            } else if time >= least {
                let rate = DataSize::from_bytes(path.bytes) / time;
                path.pace.on_stretch(rate, time);
                path.on_carried(now);
                // "An initial bandwidth for the interface" (eMPTCP §3.2): what the forecast begins with.
                if literal && never && path.holt.samples() == 0 {
                    path.holt.on_sample(host.config.assumed);
                }
                path.holt.on_sample(rate);
                path.samples = path.samples.saturating_add(1);
                if carrying.len() == 1 && path.pace.seen() >= ALONE {
                    path.alone = path.pace.median();
                    path.best = path.best.max(path.alone.unwrap_or_default());
                }
                (path.bytes, path.from) = (0, now);
            }
        }
    }

    /// Sends priorities again that have not shown, and destroys what does not obey.
    fn judge(&mut self, host: &mut Host) {
        let (now, conn) = (host.now, self.id);
        let moving = |sub: &Sub| !sub.backup && !sub.leaving && sub.fresh > 0;
        // Somebody else has changed it (an administrator, or a daemon before this one).
        for sub in self.subs.iter_mut().filter(|sub| sub.checking().is_none() && !sub.leaving) {
            sub.backup = sub.kernel_backup().unwrap_or(sub.backup);
        }
        let movers = self.subs.iter().filter(|sub| moving(sub)).count();
        let may_end = !self.is_half_closed;
        for sub in &mut self.subs {
            let others = movers > usize::from(moving(sub));
            match sub.judge(now, others) {
                Verdict::Open | Verdict::Held => {}
                Verdict::Again => {
                    sub.ask(now, sub.backup);
                    host.command(conn, Command::Prioritise { subflow: sub.id, backup: sub.backup });
                }
                Verdict::Deaf if !sub.leaving && movers > 0 && may_end => {
                    sub.leaving = true;
                    host.command(conn, Command::Destroy { subflow: sub.id });
                }
                Verdict::Deaf => {}
            }
        }
    }

    /// Brings the sums of the links up to date.
    pub(super) fn share(&mut self, host: &mut Host, carrying: Links) {
        let busy = self.pulse == Pulse::Busy;
        let now = host.now;
        let literal = host.config.policy.is_literal();
        let ripe = carrying.iter().filter(|at| literal || self.is_ripe(*at, now)).fold(Links::NONE, Links::with);
        // To the letter, every sum counts as it is.
        let settles = if literal { None } else { self.subs.iter().map(opens).max() }.unwrap_or_default();
        for (at, path) in self.paths.iter_mut().enumerate() {
            let uses = busy && carrying.has(at) && !path.pace.seen().is_zero();
            let bits = |rate: Option<Bitrate>| rate.map_or(0, Bitrate::bits_per_sec);
            // Beside another path bursts and pauses alternate, and a median is one or the other.
            let rate = if carrying.len() > 1 { path.pace.mean(Pace::MEMORY) } else { path.pace.median() };
            let rates = Rates { recent: bits(rate), forecast: bits(path.holt.forecast()) };
            let share = if uses { Share { uses, ripe: ripe.has(at), rates } } else { Share::default() };
            if share != path.share {
                if let Some(link) = host.links.get_mut(at) {
                    link.on_share(&host.config, now, [path.share, share], settles);
                }
                path.share = share;
            }
        }
        let part = if busy { self.stretch } else { 0 };
        host.passed = host.passed.saturating_sub(self.part).saturating_add(part);
        self.part = part;
    }

    /// Takes it out of the host's sums.
    pub(super) fn leave(&mut self, host: &mut Host) {
        self.set_pulse(host, Pulse::Idle);
        self.share(host, Links::NONE);
    }

    pub(super) fn set_pulse(&mut self, host: &mut Host, pulse: Pulse) {
        match (self.pulse, pulse) {
            (Pulse::Busy, Pulse::Idle) => host.busy = host.busy.saturating_sub(1),
            (Pulse::Idle, Pulse::Busy) => host.busy += 1,
            _ => {}
        }
        self.pulse = pulse;
    }

    /// Whether a path's window is open, as far as time tells: slow start is over, and what the server had in the queue of
    /// another path before.
    pub(super) fn is_ripe(&self, link: usize, now: Instant) -> bool {
        let Some(sub) = self.on(link) else { return false };
        sub.proven && now.since(sub.active.max(self.woke)) >= opens(sub)
    }

    /// Nothing moved during an estimated round trip (eMPTCP §3.5).
    pub(super) fn is_still(&self, now: Instant, interval: Duration) -> bool {
        let rtt = self.rtt().max(interval * 2);
        self.moved.is_none_or(|moved| now.since(moved) > rtt)
    }

    /// How long from one look to the next.
    pub(super) fn interval(&self, host: &Host) -> Duration {
        let handshake = self.subs.iter().filter(|sub| !sub.leaving).map(Sub::handshake).min();
        let own = match host.config.policy {
            Policy::Marline => INTERVAL,
            Policy::WifiFirst | Policy::Mptcp => SELDOM,
            _ => handshake.unwrap_or(SHORTEST).clamp(SHORTEST, PAUSE),
        };
        let checked = self.subs.iter().any(|sub| sub.checking().is_some());
        let own = if checked { own.min(INTERVAL) } else { own };
        let own = if self.trial.glance.is_some() { own / 2 } else { own };
        own.max(PAUSE * u32::try_from(host.busy).unwrap_or(u32::MAX) / PER_SECOND)
    }
}

/// A path that was just asked to carry shows what it can after this, or ten round trips (eq. 1: the rounds of slow start
/// to its rate, and φ = 10 samples). Measured over the kernel: 0.85 Mbit/s of 8 in LTE's first second beside slow Wi-Fi.
const RIPE: Duration = Duration::from_secs(2);

/// How long that takes a subflow.
fn opens(sub: &Sub) -> Duration {
    RIPE.max(sub.handshake() * 10)
}

/// Silence after which a connection is idle, or six round trips. chosen: twice what a proof of life is begun after.
const QUIET: Duration = Duration::from_secs(1);
