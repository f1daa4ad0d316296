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
use super::conn::{Activity, Conn, DeadPath, JoinPurpose, JoinState};
use super::host_state::HostState;
use super::subflow::Subflow;
use crate::units::{Duration, Instant};

/// The shortest silence that is worth a proof: more than a retransmission timeout of 200 ms and its answer.
const MIN_SILENCE: Duration = Duration::from_millis(500);
/// Pauses are proved at most so often.
const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a proof lasts that presses, or two attempts. chosen: with the silence before it and the first bytes over another
/// link, 2.2 s at a round trip of 150 ms, below the 3 s that a dead link may cost.
const URGENT_PROBE_TIME: Duration = Duration::from_millis(800);
/// After which the kernel sends a SYN again (RFC 6298 §2: 1 s).
const SYN_RETRANSMIT_TIME: Duration = Duration::from_secs(1);
/// A stretch of activity of this length is a stream: that it stops is news. chosen: longer than a page or a chat's answer
/// takes.
const MIN_STREAM: Duration = Duration::from_secs(1);

/// Whose silence began no longer before a link was lost fell silent with it. chosen: twice a proof and its pause.
const LOST_WITH_LINK: Duration = Duration::from_secs(5);

/// A link that brought something to others so lately is alive.
const RECEIVED_RECENTLY: Duration = Duration::from_millis(200);

/// What a silence is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SilenceKind {
    /// Of the network, more likely than not.
    Urgent,
    /// Of the application, more likely than not.
    Relaxed,
}

impl SilenceKind {
    /// How long a proof of it lasts.
    pub(super) fn probe_time(self, rtt: Duration) -> Duration {
        match self {
            Self::Urgent => URGENT_PROBE_TIME.max(attempt_time(rtt) * 2),
            Self::Relaxed => SYN_RETRANSMIT_TIME + attempt_time(rtt),
        }
    }
}

/// How long one attempt of a proof is waited for before the next: two round trips, and a driver's delay.
pub(super) fn attempt_time(rtt: Duration) -> Duration {
    (rtt * 2 + Duration::from_millis(100)).max(Duration::from_millis(200))
}

impl DeadPath {
    /// The first attempt to come back.
    pub(super) const FIRST_PROBE: Duration = Duration::from_secs(1);
    /// The longest pause between attempts. chosen: a device that comes back into range saves its radio's tail within one
    /// of them.
    pub(super) const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(15);
}

impl Conn {
    /// Looks for paths that are silent. To be called at each whole look.
    pub(super) fn check_silence(&mut self, host: &mut HostState) {
        if host.config.policy != Policy::Marline {
            return;
        }
        let now = host.now;
        for position in 0..self.subflows.len() {
            let Some(sub) = self.subflows.get(position) else { continue };
            let Some(link) = sub.link.filter(|_| !sub.backup && !sub.is_closing) else { continue };
            let (Some(path), Some(host_link)) = (self.paths.get(link), host.link(link)) else { continue };
            let limit = MIN_SILENCE.max(sub.handshake_rtt() * 4);
            let (unanswered_since, timeouts) = (sub.unanswered_since, sub.timeouts);
            let since = unanswered_since.unwrap_or_else(|| now - self.silent_for(sub, now));
            let Some(kind) = self.silence_kind(sub).filter(|_| now.since(since) >= limit) else { continue };
            if !host_link.up || path.dead.is_some() || path.join != JoinState::Idle {
                continue;
            }
            let last_data = sub.last_progress.unwrap_or(sub.established_at).max(sub.active_since);
            let lost =
                host_link.probe_failed_at.filter(|lost| host_link.last_received.is_none_or(|alive| alive < *lost));
            let lost = lost.filter(|lost| *lost > last_data && path.probed_at.is_none_or(|proved| proved < *lost));
            // What was taken for alive by others' bytes, and was lost right after.
            if lost.is_some_and(|lost| lost.since(last_data) < LOST_WITH_LINK) {
                self.mark_dead(host, link);
                continue;
            }
            let min_interval = match path.probed_at {
                None => Duration::ZERO,
                Some(proved) if unanswered_since.is_none() && lost.is_none() && proved >= last_data => {
                    Duration::MAX
                }
                Some(proved) if unanswered_since.is_some() && proved < last_data => Duration::ZERO,
                Some(proved) if lost.is_none() => {
                    proved.since(since).clamp(MIN_PROBE_INTERVAL, DeadPath::MAX_PROBE_INTERVAL)
                }
                Some(_) => MIN_PROBE_INTERVAL,
            };
            if path.probed_at.is_some_and(|proved| now.since(proved) < min_interval) {
                continue;
            }
            if host_link.last_received.is_some_and(|alive| now.since(alive) < limit / 2) && timeouts == 0 {
                if let Some(path) = self.paths.get_mut(link) {
                    path.probed_at = Some(now);
                }
            } else if self.activity == Activity::Busy || lost.is_some() {
                if self.is_joinable(host, link) {
                    let until = now + kind.probe_time(sub.handshake_rtt());
                    self.join(host, link, true, JoinPurpose::Probe { until });
                } else if timeouts > 1 {
                    self.mark_dead(host, link);
                }
            }
        }
    }

    /// What it would be if a path that carries were silent now; none: as usual.
    fn silence_kind(&self, sub: &Subflow) -> Option<SilenceKind> {
        if sub.unanswered_since.is_some() {
            return Some(SilenceKind::Urgent);
        }
        let burst = sub.last_progress?.max(self.burst_start).since(self.burst_start);
        let is_usual_pause = match self.last_bursts {
            [Some(one), Some(other)] => burst <= one.max(other) * 2 + MIN_STREAM,
            _ => false,
        };
        match (burst >= MIN_STREAM, is_usual_pause) {
            (true, false) => Some(SilenceKind::Urgent),
            (false, true) => None,
            _ => Some(SilenceKind::Relaxed),
        }
    }

    /// A new stretch of activity begins: the pause before it was one of the application's if no path died in it.
    pub(super) fn on_burst_start(&mut self) {
        let Some(moved) = self.last_progress else { return };
        let is_application_pause = self.paths.iter().all(|path| path.dead.is_none());
        self.last_bursts = [is_application_pause.then(|| moved.since(self.burst_start)), self.last_bursts[0]];
    }

    /// Whether a silence has yet to be proved to be the application's: until then the connection is not idle.
    pub(super) fn needs_probe(&self, host: &HostState) -> bool {
        let now = host.now;
        let needs_probe = |sub: &Subflow| {
            let link = sub.link.filter(|_| !sub.backup && !sub.is_closing)?;
            let (path, host_link, moved) = (self.paths.get(link)?, host.link(link)?, sub.last_progress?);
            let can_be_probed = host_link.up
                && !host_link.is_budget_spent()
                && path.dead.is_none()
                && path.join_not_before <= now + MIN_PROBE_INTERVAL;
            let is_suspicious = self.silence_kind(sub).is_some();
            Some(
                can_be_probed
                    && is_suspicious
                    && path.probed_at.is_none_or(|proved| proved < moved.max(sub.active_since)),
            )
        };
        let can_probe = host.config.policy == Policy::Marline && !self.joins_denied;
        can_probe && self.subflows.iter().any(|sub| needs_probe(sub) == Some(true))
    }

    /// No attempt of a proof was answered.
    pub(super) fn on_probe_failed(&mut self, host: &mut HostState, link: usize) {
        let now = host.now;
        let is_recent = |alive: Instant| now.since(alive) <= RECEIVED_RECENTLY;
        let others_receive = host.link(link).and_then(|link| link.last_received).is_some_and(is_recent);
        let is_unanswered = self.subflow_on(link).is_some_and(|sub| sub.unanswered_since.is_some());
        match self.paths.get_mut(link) {
            Some(path) if others_receive && !is_unanswered => path.probed_at = Some(now),
            _ => self.mark_dead(host, link),
        }
        if let Some(link) = host.links.get_mut(link).filter(|_| !others_receive) {
            link.probe_failed_at = Some(now);
        }
    }

    /// The path is taken for dead.
    pub(super) fn mark_dead(&mut self, host: &HostState, link: usize) {
        if let Some(path) = self.paths.get_mut(link) {
            path.throughput.drop_trailing_silence();
            path.dead.get_or_insert(DeadPath::new(host.now, host.now + DeadPath::FIRST_PROBE));
        }
    }

    /// Attempts to come back to dead paths.
    pub(super) fn retry_dead_paths(&mut self, host: &mut HostState) {
        let now = host.now;
        for link in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(link) else { continue };
            let Some(dead) = &mut path.dead else { continue };
            let host_link = host.link(link);
            let is_heard =
                host_link.and_then(|link| link.last_received).is_some_and(|alive| alive > dead.last_attempt);
            if now < dead.next_probe && !is_heard || path.join != JoinState::Idle {
                continue;
            }
            let can_join =
                host.config.policy == Policy::Marline && (self.activity == Activity::Busy || self.stalled);
            let interval = host.probe_interval(link, dead.silent_since, dead.failures);
            // Another connection has just probed the link: this one follows when the link has answered or is due again.
            // Those that have probed more often come later, so that a server that is down does not take all turns.
            if let Some(host_link) = host.links.get_mut(link).filter(|_| can_join && !is_heard && dead.failures > 0)
            {
                if now < host_link.next_probe {
                    dead.next_probe = host_link.next_probe + Duration::from_millis(dead.failures.into());
                    continue;
                }
                host_link.next_probe = now + interval;
            }
            dead.failures = dead.failures.saturating_add(1);
            dead.next_probe = now + interval + Duration::from_millis(dead.failures.into());
            // Heard of through others: one attempt, and then at leisure again.
            dead.last_attempt = now;
            if can_join {
                self.join(host, link, false, JoinPurpose::Recover);
            } else if self.subflow_on(link).is_none() {
                // The others' rules: what is up can be joined again.
                if let Some(path) = self.paths.get_mut(link) {
                    path.dead = None;
                }
            }
        }
    }

    /// Whether a proof is under way.
    pub(super) fn is_probing(&self) -> bool {
        self.paths.iter().any(|path| path.join.is_probe())
    }

    /// The earliest time at which something is to be done for a path, apart from looks.
    pub(super) fn path_deadline(&self) -> Option<Instant> {
        let joins = self.paths.iter().filter_map(|path| match path.join {
            JoinState::SynSent(until, _) => Some(until),
            _ => None,
        });
        let dead = self.paths.iter().filter(|path| path.join == JoinState::Idle).filter_map(|path| path.dead);
        let dead = dead.filter(|_| self.activity == Activity::Busy || self.stalled).map(|dead| dead.next_probe);
        joins.chain(dead).min()
    }
}
