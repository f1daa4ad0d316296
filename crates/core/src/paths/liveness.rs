//! Liveness of paths: distinguishes a dead path from an application that has nothing to send.
//!
//! 1. A path is stalled after four RTTs without data, and at least 500 ms. For data sent by this host the time
//!    counts from when it waits for a response, however long the pause before was.
//! 2. A second subflow on the same link probes the path: if it is established, the path is alive, and the subflow
//!    is closed again. A single lost packet proves nothing, so a probe consists of several attempts,
//!    [`attempt_time`] apart. The path is dead only if none of them succeeds. Bytes that arrive meanwhile end the
//!    probe too.
//! 3. The duration of a probe depends on the kind of stall ([`StallKind`]). Own data without a response and a
//!    steady stream that stops are urgent: [`URGENT_PROBE_TIME`]. Otherwise the application has probably nothing to
//!    send, and the probe waits for the kernel's retransmission of the SYN. A connection with little traffic that
//!    pauses as it did before is not probed: its next request will show whether the path works.
//! 4. A stall is probed once: a path that was proved after its last byte is not probed again, unless own data
//!    waits, or another connection has since found the link to be dead. If own data waits on a path that is alive,
//!    it waits for a sender that has backed off. Each further probe then follows after as long as the stall had
//!    lasted at the previous one, within 2 and 15 s.
//! 5. A link over which other connections receive data is alive. A link on which a probe has just failed is dead
//!    for all connections that stalled at the same time.
//! 6. A dead path takes no part in decisions, so that another link is chosen. It is retried with a new subflow
//!    (see [`super::outage`]), because the old subflow's sender has backed off (measured: 9 s): every 1 to 1.5 s, or
//!    with the goals of energy and cost, if its radio is costly to wake, at intervals that grow up to 15 s.
//!
//! Relying on the kernel alone was not sufficient: it retries for minutes, and does not know links that were not
//! joined.

use super::config::{Goal, Policy};
use super::host_state::HostState;
use super::path::{DeadPath, JoinPurpose, JoinState, attempt_time};
use super::subflow::Subflow;
use super::subflow_set::SubflowSet;
use super::traffic::Traffic;
use crate::units::{Duration, Instant};

/// Shortest stall that is probed. Our choice: more than a retransmission timeout of 200 ms and its response.
const MIN_STALL: Duration = Duration::from_millis(500);
/// Shortest interval between probes of a path.
const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Duration of an urgent probe, or that of two attempts if longer. Our choice: with the stall before it and the
/// first bytes over another link it is 2.2 s at an RTT of 150 ms, below the limit of 3 s for the failure of a link.
const URGENT_PROBE_TIME: Duration = Duration::from_millis(800);
/// Time after which the kernel retransmits a SYN (RFC 6298 §2: 1 s).
const SYN_RETRANSMIT_TIME: Duration = Duration::from_secs(1);
/// A burst of at least this duration is a stream, whose end is unexpected. Our choice: longer than a page or a
/// response in a chat takes.
const MIN_STREAM: Duration = Duration::from_secs(1);

/// A stall that began at most this long before its link was found dead has the same cause. Our choice: twice the
/// time of a probe and its interval.
const LOST_WITH_LINK: Duration = Duration::from_secs(5);

/// A link over which other connections received data within this time is alive.
const RECEIVED_RECENTLY: Duration = Duration::from_millis(200);

/// Probable cause of a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StallKind {
    /// Probably the network.
    Urgent,
    /// Probably the application.
    Relaxed,
}

impl StallKind {
    pub(super) fn probe_time(self, rtt: Duration) -> Duration {
        match self {
            Self::Urgent => URGENT_PROBE_TIME.max(attempt_time(rtt) * 2),
            Self::Relaxed => SYN_RETRANSMIT_TIME + attempt_time(rtt),
        }
    }
}

/// Detects stalled paths and probes them. Called at each evaluation of the connection.
pub(super) fn check(subflows: &mut SubflowSet, traffic: &Traffic, host: &mut HostState, is_busy: bool) {
    if host.config.policy != Policy::Marline {
        return;
    }
    let now = host.now;
    for position in 0..subflows.all.len() {
        let Some(sub) = subflows.all.get(position) else { continue };
        let Some(link) = sub.link.filter(|_| !sub.backup && !sub.is_closing) else { continue };
        let (Some(path), Some(host_link)) = (subflows.paths.get(link), host.link(link)) else { continue };
        let limit = MIN_STALL.max(sub.handshake_rtt() * 4);
        let (unanswered_since, timeouts) = (sub.unanswered_since, sub.timeouts);
        let since = unanswered_since.unwrap_or_else(|| now - sub.stalled_for(now));
        let Some(kind) = stall_kind(traffic, sub).filter(|_| now.since(since) >= limit) else { continue };
        if !host_link.up || path.dead.is_some() || path.join != JoinState::Idle {
            continue;
        }
        let last_data = sub.last_progress.unwrap_or(sub.established_at).max(sub.active_since);
        let lost =
            host_link.probe_failed_at.filter(|lost| host_link.last_received.is_none_or(|alive| alive < *lost));
        let lost = lost.filter(|lost| *lost > last_data && path.probed_at.is_none_or(|proved| proved < *lost));
        // Others' bytes let this path count as alive, and the link was found dead shortly afterwards: no own
        // probe is needed.
        if lost.is_some_and(|lost| lost.since(last_data) < LOST_WITH_LINK) {
            subflows.mark_dead(link, now);
            continue;
        }
        let min_interval = match path.probed_at {
            // Shortest interval since the last proof that the path works (rule 4).
            None => Duration::ZERO,
            Some(proved) if unanswered_since.is_none() && lost.is_none() && proved >= last_data => Duration::MAX,
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
            // Other connections receive data over this link: it is alive without a probe.
            if let Some(path) = subflows.paths.get_mut(link) {
                path.probed_at = Some(now);
            }
        } else if is_busy || lost.is_some() {
            if subflows.is_joinable(host, link) {
                let until = now + kind.probe_time(sub.handshake_rtt());
                subflows.join(host, link, true, JoinPurpose::Probe { until });
            } else if timeouts > 1 {
                // The link cannot be joined for a probe, so repeated timeouts must suffice.
                subflows.mark_dead(link, now);
            }
        }
    }
}

/// Kind of stall if this subflow's path were stalled now; `None`: a usual pause.
fn stall_kind(traffic: &Traffic, sub: &Subflow) -> Option<StallKind> {
    if sub.unanswered_since.is_some() {
        return Some(StallKind::Urgent);
    }
    let burst = sub.last_progress?.max(traffic.burst_start).since(traffic.burst_start);
    let is_usual_pause = match traffic.last_bursts {
        // Two bursts in a row that ended in pauses of the application: this one may pause in the same way.
        [Some(one), Some(other)] => burst <= one.max(other) * 2 + MIN_STREAM,
        _ => false,
    };
    match (burst >= MIN_STREAM, is_usual_pause) {
        (true, false) => Some(StallKind::Urgent),
        (false, true) => None,
        _ => Some(StallKind::Relaxed),
    }
}

/// Whether a stall still has to be probed. Until then the connection is not idle.
pub(super) fn needs_probe(subflows: &SubflowSet, traffic: &Traffic, host: &HostState) -> bool {
    let now = host.now;
    let needs_probe = |sub: &Subflow| {
        let link = sub.link.filter(|_| !sub.backup && !sub.is_closing)?;
        let (path, host_link, moved) = (subflows.paths.get(link)?, host.link(link)?, sub.last_progress?);
        let can_be_probed = host_link.up
            && !host_link.is_budget_spent()
            && path.dead.is_none()
            && path.join_not_before <= now + MIN_PROBE_INTERVAL;
        let is_suspicious = stall_kind(traffic, sub).is_some();
        Some(
            can_be_probed
                && is_suspicious
                && path.probed_at.is_none_or(|proved| proved < moved.max(sub.active_since)),
        )
    };
    let can_probe = host.config.policy == Policy::Marline && !subflows.joins_denied;
    can_probe && subflows.all.iter().any(|sub| needs_probe(sub) == Some(true))
}

/// All attempts of a probe have failed.
pub(super) fn on_probe_failed(subflows: &mut SubflowSet, host: &mut HostState, link: usize) {
    let now = host.now;
    let is_recent = |alive: Instant| now.since(alive) <= RECEIVED_RECENTLY;
    let others_receive = host.link(link).and_then(|link| link.last_received).is_some_and(is_recent);
    let is_unanswered = subflows.on_link(link).is_some_and(|sub| sub.unanswered_since.is_some());
    match subflows.paths.get_mut(link) {
        Some(path) if others_receive && !is_unanswered => path.probed_at = Some(now),
        _ => subflows.mark_dead(link, now),
    }
    if let Some(link) = host.links.get_mut(link).filter(|_| !others_receive) {
        link.probe_failed_at = Some(now);
    }
}

/// Retries dead paths that are due.
pub(super) fn retry_dead_paths(subflows: &mut SubflowSet, host: &mut HostState, is_awake: bool) {
    let now = host.now;
    for link in 0..subflows.paths.len() {
        let Some(path) = subflows.paths.get_mut(link) else { continue };
        let Some(dead) = &mut path.dead else { continue };
        let host_link = host.link(link);
        // Something was received over the link since the last retry, through any connection.
        let has_received =
            host_link.and_then(|link| link.last_received).is_some_and(|alive| alive > dead.last_attempt);
        if now < dead.next_probe && !has_received || path.join != JoinState::Idle {
            continue;
        }
        let can_join = host.config.policy == Policy::Marline && is_awake;
        let interval = probe_interval(host, link, dead.dead_since, dead.failures);
        // Another connection has just probed the link: this one follows when that probe succeeds or when the
        // link is due again. Connections with more failures come later, so that an unreachable server does not
        // take all turns.
        if let Some(host_link) = host.links.get_mut(link).filter(|_| can_join && !has_received && dead.failures > 0)
        {
            if now < host_link.next_probe {
                dead.next_probe = host_link.next_probe + Duration::from_millis(dead.failures.into());
                continue;
            }
            host_link.next_probe = now + interval;
        }
        dead.failures = dead.failures.saturating_add(1);
        dead.next_probe = now + interval + Duration::from_millis(dead.failures.into());
        // After a sign of life from other connections there is one attempt, then the normal interval applies
        // again.
        dead.last_attempt = now;
        if can_join {
            subflows.join(host, link, false, JoinPurpose::Recover);
        } else if subflows.on_link(link).is_none() {
            // Published policies do not probe: a link that is up may be joined again.
            if let Some(path) = subflows.paths.get_mut(link) {
                path.dead = None;
            }
        }
    }
}

/// Time of the next action for a path, apart from polls.
pub(super) fn deadline(subflows: &SubflowSet, is_awake: bool) -> Option<Instant> {
    let joins = subflows.paths.iter().filter_map(|path| match path.join {
        JoinState::SynSent(until, _) => Some(until),
        _ => None,
    });
    let dead = subflows.paths.iter().filter(|path| path.join == JoinState::Idle).filter_map(|path| path.dead);
    let dead = dead.filter(|_| is_awake).map(|dead| dead.next_probe);
    joins.chain(dead).min()
}

/// Interval until the next probe of an unresponsive path. `dead_since`: when the path was found dead.
///
/// With the goals of energy and cost, a radio that is costlier to wake than the cheapest is probed at growing
/// intervals. Otherwise the interval stays below two seconds, within which a recovered link must be in use again.
fn probe_interval(host: &HostState, index: usize, dead_since: Instant, failures: u8) -> Duration {
    let cheapest = host.up_links().iter().map(|index| host.single_packet_energy(index)).min().unwrap_or_default();
    let saves_energy = matches!(host.config.goal, Goal::Energy | Goal::Cost);
    if saves_energy && host.single_packet_energy(index) > cheapest {
        return DeadPath::FIRST_PROBE
            .saturating_mul(1 << u32::from(failures).min(8))
            .min(DeadPath::MAX_PROBE_INTERVAL);
    }
    if host.now.since(dead_since) < FAST_PROBE_TIME { DeadPath::FIRST_PROBE } else { SLOW_PROBE_INTERVAL }
}

/// For this long an unresponsive link is probed every second, and every [`SLOW_PROBE_INTERVAL`] later. Our choice:
/// most handovers and reconnections of modems take less time.
const FAST_PROBE_TIME: Duration = Duration::from_secs(20);
/// Our choice: together with the RTTs of a join, a link is used again within two seconds of its recovery on
/// average.
const SLOW_PROBE_INTERVAL: Duration = Duration::from_millis(1500);
