//! Paths that fall silent: is the path dead, or has the application nothing to send?
//!
//! In: how long a path is silent that should carry. Out: proofs of life, and paths that are taken for dead.
//!
//! 1. Silent is who brings nothing for four round trips, 500 ms at least; and of what this end sends, what waits so long
//!    for its answer, however long the pause before it was.
//! 2. A second subflow on the same link proves the path: when it comes up the path is alive, and the subflow goes again.
//!    One lost packet proves nothing: a proof is several attempts, [`attempt`] apart, and only when none of them is answered
//!    is the path dead. Bytes that come meanwhile end it as well.
//! 3. How long it lasts depends on what the silence is ([`Silence`]). Own data without an answer, and a steady stream that
//!    stops, press: [`PRESSING`]. Else the application has probably nothing to send, and the kernel's own repetition
//!    of the SYN is waited for. Who sends little and pauses as it did before is not asked: its next request will tell.
//! 4. One proof for one silence: a path that was proved after its last byte is not asked again, unless own data waits, or
//!    another connection has found its link to be lost since. Own data that waits on a path which lives waits for a sender
//!    that has backed off: each proof comes after as long as the silence had lasted at the one before.
//! 5. A link over which other connections receive is alive; one that a proof has just failed on is dead for all that have
//!    fallen silent with it.
//! 6. A dead path carries nothing of the plan, so that another link is chosen. It is tried again by a new subflow, since
//!    the old one's sender has backed off (measured: 9 s), every one to two seconds (see `outage`).
//!
//! Waiting for the kernel alone was not enough: it retries for minutes, and knows of no link that was not joined.

use super::config::Policy;
use super::conn::{Conn, Dead, Join, Pulse, Purpose};
use super::host::Host;
use super::subflow::Sub;
use crate::units::{Duration, Instant};

/// The shortest silence that is worth a proof: more than a retransmission timeout of 200 ms and its answer.
const LEAST: Duration = Duration::from_millis(500);
/// Pauses are proved at most so often.
const PROOFS: Duration = Duration::from_secs(2);
/// How long a proof lasts that presses, or two attempts. chosen: with the silence before it and the first bytes over another
/// link, 2.2 s at a round trip of 150 ms, below the 3 s that a dead link may cost.
const PRESSING: Duration = Duration::from_millis(800);
/// After which the kernel sends a SYN again (RFC 6298 §2: 1 s).
const SYN_AGAIN: Duration = Duration::from_secs(1);
/// A stretch of activity of this length is a stream: that it stops is news. chosen: longer than a page or a chat's answer
/// takes.
const STREAM: Duration = Duration::from_secs(1);

/// Whose silence began no longer before a link was lost fell silent with it. chosen: twice a proof and its pause.
const RECENT: Duration = Duration::from_secs(5);

/// A link that brought something to others so lately is alive.
const HEARD: Duration = Duration::from_millis(200);

/// What a silence is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    /// Of the network, more likely than not.
    Pressing,
    /// Of the application, more likely than not.
    Mild,
}

impl Silence {
    /// How long a proof of it lasts.
    pub(super) fn patience(self, rtt: Duration) -> Duration {
        match self {
            Self::Pressing => PRESSING.max(attempt(rtt) * 2),
            Self::Mild => SYN_AGAIN + attempt(rtt),
        }
    }
}

/// How long one attempt of a proof is waited for before the next: two round trips, and a driver's delay.
pub(super) fn attempt(rtt: Duration) -> Duration {
    (rtt * 2 + Duration::from_millis(100)).max(Duration::from_millis(200))
}

impl Dead {
    /// The first attempt to come back.
    pub(super) const FIRST: Duration = Duration::from_secs(1);
    /// The longest pause between attempts. chosen: a device that comes back into range saves its radio's tail within one
    /// of them.
    pub(super) const MOST: Duration = Duration::from_secs(15);
}

impl Conn {
    /// Looks for paths that are silent. To be called at each whole look.
    pub(super) fn on_silence(&mut self, host: &mut Host) {
        if host.config.policy != Policy::Marline {
            return;
        }
        let now = host.now;
        for at in 0..self.subs.len() {
            let Some(sub) = self.subs.get(at) else { continue };
            let Some(link) = sub.link.filter(|_| !sub.backup && !sub.leaving) else { continue };
            let (Some(path), Some(known)) = (self.paths.get(link), host.link(link)) else { continue };
            let limit = LEAST.max(sub.handshake() * 4);
            let (waits, timeouts) = (sub.waits, sub.timeouts);
            let since = waits.unwrap_or_else(|| now - self.silent(sub, now));
            let Some(kind) = self.silence(sub).filter(|_| now.since(since) >= limit) else { continue };
            if !known.up || path.dead.is_some() || path.join != Join::No {
                continue;
            }
            let last = sub.moved.unwrap_or(sub.up).max(sub.active);
            let lost = known.lost.filter(|lost| known.alive.is_none_or(|alive| alive < *lost));
            let lost = lost.filter(|lost| *lost > last && path.proved.is_none_or(|proved| proved < *lost));
            // What was taken for alive by others' bytes, and was lost right after.
            if lost.is_some_and(|lost| lost.since(last) < RECENT) {
                self.bury(host, link);
                continue;
            }
            let rest = match path.proved {
                None => Duration::ZERO,
                Some(proved) if waits.is_none() && lost.is_none() && proved >= last => Duration::MAX,
                Some(proved) if waits.is_some() && proved < last => Duration::ZERO,
                Some(proved) if lost.is_none() => proved.since(since).clamp(PROOFS, Dead::MOST),
                Some(_) => PROOFS,
            };
            if path.proved.is_some_and(|proved| now.since(proved) < rest) {
                continue;
            }
            if known.alive.is_some_and(|alive| now.since(alive) < limit / 2) && timeouts == 0 {
                if let Some(path) = self.paths.get_mut(link) {
                    path.proved = Some(now);
                }
            } else if self.pulse == Pulse::Busy || lost.is_some() {
                if self.is_joinable(host, link) {
                    let until = now + kind.patience(sub.handshake());
                    self.join(host, link, true, Purpose::Prove { until });
                } else if timeouts > 1 {
                    self.bury(host, link);
                }
            }
        }
    }

    /// What it would be if a path that carries were silent now; none: as usual.
    fn silence(&self, sub: &Sub) -> Option<Silence> {
        if sub.waits.is_some() {
            return Some(Silence::Pressing);
        }
        let stretch = sub.moved?.max(self.woke).since(self.woke);
        let usual = match self.bursts {
            [Some(one), Some(other)] => stretch <= one.max(other) * 2 + STREAM,
            _ => false,
        };
        match (stretch >= STREAM, usual) {
            (true, false) => Some(Silence::Pressing),
            (false, true) => None,
            _ => Some(Silence::Mild),
        }
    }

    /// A new stretch of activity begins: the pause before it was one of the application's if no path died in it.
    pub(super) fn on_burst(&mut self) {
        let Some(moved) = self.moved else { return };
        let ours = self.paths.iter().all(|path| path.dead.is_none());
        self.bursts = [ours.then(|| moved.since(self.woke)), self.bursts[0]];
    }

    /// Whether a silence has yet to be proved to be the application's: until then the connection is not idle.
    pub(super) fn owes_proof(&self, host: &Host) -> bool {
        let now = host.now;
        let owes = |sub: &Sub| {
            let link = sub.link.filter(|_| !sub.backup && !sub.leaving)?;
            let (path, known, moved) = (self.paths.get(link)?, host.link(link)?, sub.moved?);
            let soon = known.up && !known.spent() && path.dead.is_none() && path.not_before <= now + PROOFS;
            let asked = self.silence(sub).is_some();
            Some(soon && asked && path.proved.is_none_or(|proved| proved < moved.max(sub.active)))
        };
        let ours = host.config.policy == Policy::Marline && !self.closed_to_joins;
        ours && self.subs.iter().any(|sub| owes(sub) == Some(true))
    }

    /// No attempt of a proof was answered.
    pub(super) fn on_no_proof(&mut self, host: &mut Host, link: usize) {
        let now = host.now;
        let heard = |alive: Instant| now.since(alive) <= HEARD;
        let others = host.link(link).and_then(|link| link.alive).is_some_and(heard);
        let waits = self.on(link).is_some_and(|sub| sub.waits.is_some());
        match self.paths.get_mut(link) {
            Some(path) if others && !waits => path.proved = Some(now),
            _ => self.bury(host, link),
        }
        if let Some(link) = host.links.get_mut(link).filter(|_| !others) {
            link.lost = Some(now);
        }
    }

    /// The path is taken for dead.
    pub(super) fn bury(&mut self, host: &Host, link: usize) {
        if let Some(path) = self.paths.get_mut(link) {
            path.pace.forget_silence();
            path.dead.get_or_insert(Dead::at(host.now, host.now + Dead::FIRST));
        }
    }

    /// Attempts to come back to dead paths.
    pub(super) fn revive(&mut self, host: &mut Host) {
        let now = host.now;
        for link in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(link) else { continue };
            let Some(dead) = &mut path.dead else { continue };
            let known = host.link(link);
            let heard = known.and_then(|link| link.alive).is_some_and(|alive| alive > dead.since);
            if now < dead.probe && !heard || path.join != Join::No {
                continue;
            }
            let ours = host.config.policy == Policy::Marline && (self.pulse == Pulse::Busy || self.stalled);
            let pause = host.probe_interval(link, dead.began, dead.fails);
            // Another connection has just probed the link: this one follows when the link has answered or is due again.
            // Those that have probed more often come later, so that a server that is down does not take all turns.
            if let Some(known) = host.links.get_mut(link).filter(|_| ours && !heard && dead.fails > 0) {
                if now < known.next_probe {
                    dead.probe = known.next_probe + Duration::from_millis(dead.fails.into());
                    continue;
                }
                known.next_probe = now + pause;
            }
            dead.fails = dead.fails.saturating_add(1);
            dead.probe = now + pause + Duration::from_millis(dead.fails.into());
            // Heard of through others: one attempt, and then at leisure again.
            dead.since = now;
            if ours {
                self.join(host, link, false, Purpose::Return);
            } else if self.on(link).is_none() {
                // The others' rules: what is up can be joined again.
                if let Some(path) = self.paths.get_mut(link) {
                    path.dead = None;
                }
            }
        }
    }

    /// Whether a proof is under way.
    pub(super) fn proving(&self) -> bool {
        self.paths.iter().any(|path| path.join.proves())
    }

    /// The earliest time at which something is to be done for a path, apart from looks.
    pub(super) fn path_deadline(&self) -> Option<Instant> {
        let joins = self.paths.iter().filter_map(|path| match path.join {
            Join::Coming(until, _) => Some(until),
            _ => None,
        });
        let dead = self.paths.iter().filter(|path| path.join == Join::No).filter_map(|path| path.dead);
        let dead = dead.filter(|_| self.pulse == Pulse::Busy || self.stalled).map(|dead| dead.probe);
        joins.chain(dead).min()
    }
}
