//! Paths that fall silent: is the path dead, or has the application nothing to send?
//!
//! In: how long a path is silent that should carry. Out: proofs of life, and paths that are taken for dead.
//!
//! 1. Silent is who brings nothing for four round trips, 500 ms at least. A second subflow on the same link proves the
//!    path: if it comes up within two round trips and 100 ms the path is alive, and the subflow goes again.
//! 2. One proof for one silence: a path that was proved after its last byte is not asked again, unless the kernel counts
//!    timeouts; and pauses of one application are proved ever more seldom.
//! 3. A link over which other connections receive is alive; one that a proof has just failed on is dead for all that are
//!    silent on it.
//! 4. A dead path carries nothing of the plan, so that another link is chosen. It is tried again by a new subflow, since
//!    the old one's sender has backed off (measured: 9 s), after 1 s, 2 s, up to 15 s.
//!
//! Waiting for the kernel alone was not enough: it retries for minutes, and knows of no link that was not joined.

use super::config::Policy;
use super::conn::{Conn, Dead, Join, Pulse, Purpose};
use super::host::Host;
use super::subflow::Sub;
use crate::units::{DataSize, Duration, Instant};

/// The shortest silence that is worth a proof: more than a retransmission timeout of 200 ms and its answer.
const LEAST: Duration = Duration::from_millis(500);
/// Pauses are proved at most so often at first.
const PROOFS: Duration = Duration::from_secs(2);

/// Whose silence began no longer before a link was lost fell silent with it. chosen: twice a proof and its pause.
const RECENT: Duration = Duration::from_secs(5);

impl Dead {
    /// The first attempt to come back.
    pub(super) const FIRST: Duration = Duration::from_secs(1);
    /// The longest pause between attempts. chosen: a device that comes back into range saves its radio's tail within one
    /// of them.
    const MOST: Duration = Duration::from_secs(15);
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
            let urgent = sub.timeouts > 0 || sub.outstanding > DataSize::ZERO;
            let flowed = sub.moved.is_some() || urgent;
            if self.silent(sub, now) < limit || !flowed || !known.up || path.dead.is_some() || path.join != Join::No
            {
                continue;
            }
            let last = sub.moved.unwrap_or(sub.up).max(sub.active);
            // What was taken for alive by others' bytes, and was lost right after.
            let lost = known.lost.filter(|lost| *lost > last && lost.since(last) < RECENT);
            if lost.is_some_and(|lost| path.proved.is_none_or(|proved| proved < lost)) {
                self.bury(host, link);
                continue;
            }
            let rest = match path.proved {
                Some(proved) if proved >= last => {
                    if urgent {
                        PROOFS
                    } else {
                        Duration::MAX
                    }
                }
                Some(_) if !urgent => PROOFS,
                _ => Duration::ZERO,
            };
            if path.proved.is_some_and(|proved| now.since(proved) < rest) {
                continue;
            }
            if known.lost.is_some_and(|lost| lost > last) {
                self.bury(host, link);
            } else if known.alive.is_some_and(|alive| now.since(alive) < limit / 2) && sub.timeouts == 0 {
                if let Some(path) = self.paths.get_mut(link) {
                    path.proved = Some(now);
                }
            } else if self.pulse == Pulse::Busy || urgent {
                if self.is_joinable(host, link) {
                    self.join(host, link, true, Purpose::Prove);
                } else if sub.timeouts > 1 {
                    self.bury(host, link);
                }
            }
        }
    }

    /// Whether a silence has yet to be proved to be the application's: until then the connection is not idle.
    pub(super) fn owes_proof(&self, host: &Host) -> bool {
        let now = host.now;
        let owes = |sub: &Sub| {
            let link = sub.link.filter(|_| !sub.backup && !sub.leaving)?;
            let (path, known, moved) = (self.paths.get(link)?, host.link(link)?, sub.moved?);
            let soon = known.up && !known.spent() && path.dead.is_none() && path.not_before <= now + PROOFS;
            Some(soon && path.proved.is_none_or(|proved| proved < moved.max(sub.active)))
        };
        let ours = host.config.policy == Policy::Marline && !self.closed_to_joins;
        ours && self.subs.iter().any(|sub| owes(sub) == Some(true))
    }

    /// The path is taken for dead.
    pub(super) fn bury(&mut self, host: &Host, link: usize) {
        if let Some(path) = self.paths.get_mut(link) {
            path.pace.forget_silence();
            path.dead.get_or_insert(Dead { since: host.now, probe: host.now + Dead::FIRST, fails: 0 });
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
            let pause = Dead::FIRST.saturating_mul(1 << u32::from(dead.fails).min(8)).min(Dead::MOST);
            dead.fails = dead.fails.saturating_add(1);
            dead.probe = now + pause;
            // Heard of through others: one attempt, and then at leisure again.
            dead.since = now;
            if host.config.policy == Policy::Marline && self.pulse == Pulse::Busy {
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
        self.paths
            .iter()
            .any(|path| matches!(path.join, Join::Asked(_, Purpose::Prove) | Join::Coming(_, Purpose::Prove)))
    }

    /// The earliest time at which something is to be done for a path, apart from looks.
    pub(super) fn path_deadline(&self) -> Option<Instant> {
        let joins = self.paths.iter().filter_map(|path| match path.join {
            Join::Coming(until, _) => Some(until),
            _ => None,
        });
        let dead = self.paths.iter().filter(|path| path.join == Join::No).filter_map(|path| path.dead);
        let dead = dead.filter(|_| self.pulse == Pulse::Busy).map(|dead| dead.probe);
        joins.chain(dead).min()
    }
}
