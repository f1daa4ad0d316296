//! Path MTU black holes (RFC 2923, section 2.1): detects links on which full-sized packets are lost while small
//! ones pass, and tries a smaller MTU.
//!
//! A tunnel or a mobile bearer makes the path's MTU smaller than the interface's, and the ICMP message about it is
//! dropped. Handshakes and probes succeed, so that the path is not stalled, but every full-sized segment is lost.
//! MPTCP sends the data again over the other subflows and gives the link new data, which is lost again: several
//! links are then slower than one. Three kinds of evidence distinguish this from a dead or lossy path and from a
//! sender that has nothing to send:
//!
//! 1. *Uploads:* no byte is acknowledged over [`MIN_TIMEOUTS`] consecutive retransmission timeouts; a second
//!    subflow over the same link has been established meanwhile, so that small packets pass; and a retransmission
//!    sent after that is not acknowledged either. Without the last condition an outage that has just ended would
//!    look the same.
//! 2. *Downloads:* the data sequence numbers (RFC 8684, section 3.3) show lost data ([`track_data_seq`]). If
//!    the other subflows deliver bytes 1–1000 and 3001–4000 of the connection, the peer has sent 1001–3000 over
//!    this one. Nothing of it arrives for [`MIN_MISSING_TIME`]. A sender that has nothing to send over the link
//!    skips nothing. Sequence numbers are no evidence if the kernel does not report them, if there are too many
//!    connections to read them often, or if several other subflows carry data, whose own gaps may hide this one's.
//!    Weaker evidence is used then: nothing arrived for [`MIN_EMPTY_TIME`] while the connection received
//!    [`MIN_OTHER_DATA`] over others without pauses.
//! 3. *The trial itself:* the link's MTU is lowered (see [`super::link_mtu`]) and the link joined again, because
//!    both ends agree on the segment size in the handshake. Data over the new subflow confirms the step. For
//!    downloads the evidence is weaker, so the old subflow stays meanwhile: the step is confirmed only if the old
//!    subflow still receives nothing, and undone if it receives something, or if neither does. If the old subflow
//!    had to be closed, and no sequence numbers have shown lost data, the new one must receive [`CONFIRM_BYTES`].
//!
//! If all connections are steered together ([`super::Config::kernel_path_manager`]), there are no sequence numbers,
//! and no second subflow over a link for comparison. Downloads are not examined in that case.
//!
//! If no step helps an upload, the link is left out like one that the server refuses.
//!
//! The kernel's own probing (`net.ipv4.tcp_mtu_probing`) was rejected: it is a setting of the whole host, it does
//! nothing for downloads, and each new subflow starts its search again.

use alloc::vec::Vec;

use super::config::Policy;
use super::event::{CommandError, SubflowId};
use super::explanation::Explanation;
use super::host_state::HostState;
use super::link_mtu::MtuStep;
use super::liveness::StallKind;
use super::path::{DeadPath, JoinPurpose, JoinState, MtuTrial};
use super::subflow::{FULL_PACKET, ReceiveProgress, Subflow};
use super::subflow_set::SubflowSet;
use super::traffic::Traffic;
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// Number of consecutive retransmission timeouts that show a lost upload. Our choice: two retransmissions of the same
/// data, one second after it was first sent.
const MIN_TIMEOUTS: u8 = 2;
/// Number of timeouts if the link cannot be joined a second time: about two seconds. Our choice: one more, because
/// then only the handshake shows that small packets pass.
const MIN_TIMEOUTS_UNPROBED: u8 = 3;
/// How long data sent by the peer may be missing. Our choice: the first retransmission on a link with an RTT of 150
/// ms and as much queueing delay arrives after half of that; with the join, the link is useful within two seconds.
const MIN_MISSING_TIME: Duration = Duration::from_millis(1000);
/// The same in RTTs: the peer's second retransmission arrives after six to seven RTTs.
const MIN_MISSING_RTTS: u32 = 6;
/// How long nothing may arrive over a subflow (the weaker evidence for downloads). Our choice: with the join that
/// follows, a link is useful two seconds after the peer first sent data over it.
const MIN_EMPTY_TIME: Duration = Duration::from_millis(1500);
/// Bytes that the connection must have carried over its other subflows meanwhile. Our choice: more than a request,
/// the first congestion window of its response and the content of one queue.
const MIN_OTHER_DATA: DataSize = DataSize::from_kib(128);
/// Bytes that the peer sends over one subflow before its scheduler chooses again (Linux: 64 KiB). If more than that
/// arrives over the new subflow and nothing over the old one, this is no coincidence.
const CONFIRM_BYTES: DataSize = DataSize::from_kib(64);
/// Time after which a slow link needs only a full-sized packet to confirm a step.
const CONFIRM_TIME: Duration = Duration::from_secs(2);
/// Longest poll interval at which sequence numbers are read often enough: the peer takes a retransmission timeout,
/// at least 200 ms, to send lost data over another subflow.
const MAX_SEQ_POLL_INTERVAL: Duration = Duration::from_millis(150);
/// How long a link is not used if no smaller MTU helps an upload. Our choice: as after a refusal.
const LINK_PAUSE: Duration = Duration::from_secs(60);

/// The search for black holes on the paths of one connection.
pub(super) struct BlackHoleCheck<'a> {
    pub(super) subflows: &'a mut SubflowSet,
    pub(super) traffic: &'a Traffic,
    pub(super) explanation: &'a mut Explanation,
    pub(super) is_busy: bool,
    /// The connection existed before the driver started, so it is not known what the peer has sent before.
    pub(super) is_adopted: bool,
    pub(super) poll_interval: Duration,
}

impl BlackHoleCheck<'_> {
    /// Examines all subflows for lost full-sized packets, and decides trials in progress. Called at each
    /// evaluation.
    pub(super) fn run(&mut self, host: &mut HostState) {
        if host.config.policy != Policy::Marline || self.subflows.joins_denied {
            return;
        }
        for index in 0..self.subflows.paths.len() {
            self.judge_mtu_trial(host, index);
        }
        let found: Vec<BlackHole> = self.subflows.all.iter().filter_map(|sub| self.diagnose(host, sub)).collect();
        for lost in found {
            match lost {
                BlackHole::Unconfirmed { index: at, handshake } => {
                    let until = host.now + StallKind::Urgent.probe_time(handshake);
                    self.subflows.join(host, at, true, JoinPurpose::Probe { until });
                }
                BlackHole::Upload { index: at, established_at: up } => self.on_lost_upload(host, at, up),
                BlackHole::Download { index: at, established_at: up, is_weak: weak } => {
                    self.on_lost_download(host, at, up, weak)
                }
            }
        }
    }

    /// Whether a subflow seems to lose its full-sized packets, and in which direction.
    fn diagnose(&self, host: &HostState, sub: &Subflow) -> Option<BlackHole> {
        let index = sub.link.filter(|_| !sub.backup && !sub.is_closing)?;
        let (path, link) = (self.subflows.paths.get(index)?, host.link(index)?);
        if !link.up || path.dead.is_some() || path.join != JoinState::Idle {
            return None;
        }
        let (now, established_at) = (host.now, sub.established_at);
        // Nothing has passed since its own handshake, and no other subflow was established since.
        let is_unprobed =
            path.probed_at == Some(established_at) && sub.volume() == 0 && sub.timeouts_at_probe.is_none();
        if sub.rto_since.is_some() {
            let unanswered = sub.retransmitted_since.is_some_and(|since| now.since(since) >= sub.ack_wait());
            if unanswered && sub.timeouts >= MIN_TIMEOUTS || is_unprobed && sub.timeouts >= MIN_TIMEOUTS_UNPROBED {
                return Some(BlackHole::Upload { index, established_at });
            }
            // The probe starts now instead of after the usual stall time, so that the next retransmission follows
            // it.
            if is_unprobed && self.is_busy && self.subflows.is_joinable(host, index) {
                return Some(BlackHole::Unconfirmed { index, handshake: sub.handshake_rtt() });
            }
        }
        self.is_download_lost(host, index, sub).then_some(BlackHole::Download {
            index,
            established_at,
            is_weak: sub.missing_since.is_none(),
        })
    }

    /// Whether the peer's data arrives over other subflows and not over this one.
    fn is_download_lost(&self, host: &HostState, index: usize, sub: &Subflow) -> bool {
        let (now, handshake) = (host.now, sub.handshake_rtt());
        let is_newest = self.subflows.on_link(index).is_some_and(|newest| newest.id == sub.id);
        let has_nothing =
            is_newest && sub.has_no_full_packet() && sub.unanswered_since.is_none() && !sub.peer_backup();
        let is_observable = !self.is_adopted && !host.config.kernel_path_manager;
        if !has_nothing
            || !is_observable
            || self.traffic.direction() != Direction::Down
            || !self.subflows.is_joinable(host, index)
        {
            return false;
        }
        let lowered = host.link(index).and_then(|link| link.mtu.lowered());
        let is_after_lowering = lowered.is_some_and(|lowered| sub.established_at > lowered.since);
        if let Some(missing_since) = sub.missing_since {
            // Strong evidence: sequence numbers show data that was sent over this subflow and is missing.
            return now.since(missing_since) >= MIN_MISSING_TIME.max(handshake * MIN_MISSING_RTTS);
        }
        // If sequence numbers could show missing data, their absence is evidence against a black hole.
        let has_sequence_evidence = self.subflows.progress.is_some()
            && self.poll_interval <= MAX_SEQ_POLL_INTERVAL
            && other_receivers(self.subflows, sub.id).count() < 2;
        if is_after_lowering || has_sequence_evidence {
            return false;
        }
        let has_other_data = self.traffic.volume.saturating_sub(sub.volume_at_start) >= MIN_OTHER_DATA.bytes();
        has_other_data
            && now.since(sub.active_since) >= MIN_EMPTY_TIME.max(handshake * 6)
            && self.traffic.is_steady(now, MIN_EMPTY_TIME, self.subflows.is_queueing())
    }

    /// Processes that full-sized packets sent by this host are lost on a link, by a subflow established at
    /// `established_at`.
    fn on_lost_upload(&mut self, host: &mut HostState, index: usize, established_at: Instant) {
        let now = host.now;
        let step = host.lower_mtu(index, established_at);
        let is_last = self.subflows.destroy_all_on(host, index);
        let Some(path) = self.subflows.paths.get_mut(index) else { return };
        path.reset_measurements(now);
        if let MtuStep::Lowered(mtu) = step {
            path.mtu_trial = Some(MtuTrial { started: now, mtu, is_upload: true, is_weak: false });
            path.join_not_before = now;
            // The only subflow stays until the new one carries data.
            path.dead = is_last.then_some(DeadPath::new(now, now));
            return;
        }
        path.mtu_trial = None;
        path.join_not_before = now + LINK_PAUSE;
        if !core::mem::replace(&mut path.is_black_hole, true) {
            let (name, time) = (host.link_name(index), LINK_PAUSE.as_secs());
            let min_mtu = host.link(index).map_or(0, |link| link.mtu.min_mtu());
            let reason = alloc::format!(
                "data over {name} is lost even in packets of {min_mtu} bytes: the link is not used for {time} s"
            );
            self.explanation.report_event(host, reason);
        }
    }

    /// Processes that the peer's data does not arrive over a subflow established at `established_at`.
    fn on_lost_download(&mut self, host: &mut HostState, index: usize, established_at: Instant, is_weak: bool) {
        let now = host.now;
        let Some(link) = host.link(index) else { return };
        match link.mtu.lowered() {
            // A smaller MTU was confirmed after this subflow was established, so its packets are too large.
            Some(lowered) if lowered.since > established_at && lowered.is_confirmed => {
                self.start_mtu_trial(host, index, established_at, is_weak)
            }
            // A smaller MTU is on trial for another connection: wait for its result.
            Some(lowered) if lowered.since > established_at => {}
            // The step before has not helped: try the next one.
            Some(lowered)
                if !lowered.is_confirmed
                    && self.subflows.paths.get(index).is_some_and(|path| path.mtu_trial.is_some()) =>
            {
                self.start_mtu_trial(host, index, established_at, is_weak);
            }
            _ if !link.mtu.can_try(now) => {}
            _ => self.start_mtu_trial(host, index, established_at, is_weak),
        }
    }

    /// Joins the link once more, with a smaller MTU. The present subflow stays.
    fn start_mtu_trial(&mut self, host: &mut HostState, index: usize, established_at: Instant, is_weak: bool) {
        let now = host.now;
        let MtuStep::Lowered(mtu) = host.lower_mtu(index, established_at) else {
            self.judge_mtu_trial(host, index);
            return;
        };
        let Some(path) = self.subflows.paths.get_mut(index) else { return };
        path.mtu_trial = Some(MtuTrial { started: now, mtu, is_upload: false, is_weak });
        self.subflows.join(host, index, false, JoinPurpose::MtuTrial);
    }

    /// Decides a trial of a smaller MTU that this connection has started.
    fn judge_mtu_trial(&mut self, host: &mut HostState, index: usize) {
        let Some(smaller) = self.subflows.paths.get(index).and_then(|path| path.mtu_trial) else { return };
        // The link's MTU is larger again: the trial has failed elsewhere, and the MTU confirmed before it is in
        // use.
        let lowered =
            host.link(index).and_then(|link| link.mtu.lowered()).filter(|lowered| lowered.mtu <= smaller.mtu);
        let Some(lowered) = lowered else {
            end_mtu_trial(self.subflows, host, index, false);
            return;
        };
        if lowered.is_confirmed {
            end_mtu_trial(self.subflows, host, index, true);
            return;
        }
        let is_on_link = |sub: &&Subflow| sub.link == Some(index) && !sub.is_closing;
        let (new, old): (Vec<&Subflow>, Vec<&Subflow>) =
            self.subflows.all.iter().filter(is_on_link).partition(|sub| sub.established_at > smaller.started);
        let bytes = |sub: &Subflow| if smaller.is_upload { sub.volume() } else { sub.received().bytes() };
        let carried = new.iter().map(|sub| bytes(sub)).max().unwrap_or(0);
        let confirm_bytes = match old.is_empty() {
            // The number of bytes over the new subflow that confirms the step, by the strength of the evidence.
            _ if smaller.is_upload => FULL_PACKET,
            // No old subflow is left for comparison.
            true if smaller.is_weak => CONFIRM_BYTES,
            false if host.now.since(smaller.started) < CONFIRM_TIME => CONFIRM_BYTES,
            _ => FULL_PACKET,
        };
        if !smaller.is_upload && old.iter().any(|sub| !sub.has_no_full_packet()) {
            // The old subflow has received full-sized packets, so the smaller MTU was not needed.
            host.undo_mtu(index);
            end_mtu_trial(self.subflows, host, index, false);
        } else if carried >= confirm_bytes.bytes() {
            host.confirm_mtu(index);
            end_mtu_trial(self.subflows, host, index, true);
            let name = host.link_name(index);
            let mtu = lowered.mtu;
            self.explanation.report_event(
                host,
                alloc::format!("full-sized packets over {name} are lost: joined again with an MTU of {mtu} bytes"),
            );
        }
    }
}

/// Records the position of the received data, and which subflows have not delivered data that was sent over
/// them. Called at each complete poll.
///
/// A subflow receives in order. Data that the other subflows skip was therefore sent over one that has not
/// delivered it. Data that is sent again over the others counts as received, not as skipped. Of several other
/// subflows, the slower ones have yet to deliver data that a faster one skips: only data before the position
/// that all of them have reached is certainly not theirs.
pub(super) fn track_data_seq(subflows: &mut SubflowSet, received: DataSize, now: Instant) {
    let previous = subflows.progress.map(|reached| reached.data_seq);
    let data_seq = subflows.all.iter().filter_map(Subflow::data_seq).chain(previous).max();
    let reached = data_seq.map(|to| ReceiveProgress { data_seq: to, received });
    subflows.progress = reached;
    let Some(reached) = reached else { return };
    // Position up to which no other subflow can still deliver data.
    let passed_by_all = |sub: &Subflow| match other_receivers(subflows, sub.id).count() {
        0 | 1 => reached.data_seq,
        _ => other_receivers(subflows, sub.id).filter_map(Subflow::data_seq).min().unwrap_or_default(),
    };
    let passed: Vec<DataSize> = subflows.all.iter().map(passed_by_all).collect();
    for (sub, to) in subflows.all.iter_mut().zip(passed).filter(|(sub, _)| !sub.backup && !sub.is_closing) {
        // Skipped bytes: the others have passed them, but they were received by no subflow.
        let start = *sub.start_progress.get_or_insert(reached);
        let skipped = (to - start.data_seq) - (reached.received - start.received);
        if !sub.has_no_full_packet() {
            sub.missing_since = None;
        } else if skipped >= FULL_PACKET {
            sub.missing_since.get_or_insert(now);
        }
    }
}

/// Processes that this host could not join the link with a smaller MTU.
pub(super) fn on_mtu_join_refused(
    subflows: &mut SubflowSet,
    host: &mut HostState,
    index: usize,
    error: CommandError,
) {
    match error {
        CommandError::Other(_) => on_second_refused(subflows, host, index, host.now),
        // The cause is not the number of subflows, so replacing the old subflow might fail too. End the trial.
        _ if subflows
            .paths
            .get(index)
            .is_some_and(|path| path.mtu_trial.is_some_and(|smaller| !smaller.is_upload)) =>
        {
            host.undo_mtu(index);
            end_mtu_trial(subflows, host, index, false);
        }
        _ => {}
    }
}

/// Ends this connection's trials without result, because no subflow can be added any more.
pub(super) fn abandon_trials(subflows: &mut SubflowSet, host: &mut HostState) {
    for index in 0..subflows.paths.len() {
        if subflows.paths.get_mut(index).is_some_and(|path| path.mtu_trial.take().is_some()) {
            host.abandon_mtu_trial(index);
        }
    }
}

/// Processes that the server or the kernel allows no second subflow over the link: the new subflow replaces the
/// old one.
pub(super) fn on_second_refused(
    subflows: &mut SubflowSet,
    host: &mut HostState,
    index: usize,
    established_at: Instant,
) {
    let now = host.now;
    let Some(path) = subflows.paths.get_mut(index) else { return };
    if path.mtu_trial.is_none_or(|smaller| smaller.is_upload || smaller.started > established_at) {
        return;
    }
    path.join_not_before = now;
    path.reset_measurements(now);
    if subflows.destroy_all_on(host, index) {
        // The old subflow is the only one and cannot be replaced.
        host.undo_mtu(index);
        end_mtu_trial(subflows, host, index, false);
    }
}

/// Ends a trial. If it failed, the new subflows are closed, unless no other subflow would be left.
fn end_mtu_trial(subflows: &mut SubflowSet, host: &mut HostState, index: usize, is_confirmed: bool) {
    let Some(smaller) = subflows.paths.get_mut(index).and_then(|path| path.mtu_trial.take()) else { return };
    let is_on_link = |sub: &&Subflow| sub.link == Some(index) && !sub.is_closing;
    let has_older_subflow = subflows.all.iter().filter(is_on_link).any(|sub| sub.established_at <= smaller.started);
    if is_confirmed || !has_older_subflow {
        return;
    }
    let new =
        subflows.all.iter().filter(is_on_link).filter(|sub| sub.established_at > smaller.started).map(|sub| sub.id);
    let new: Vec<SubflowId> = new.collect();
    new.into_iter().for_each(|id| subflows.destroy(host, id));
}

/// The other subflows that carry data and have received full-sized packets.
fn other_receivers(subflows: &SubflowSet, except: SubflowId) -> impl Iterator<Item = &Subflow> {
    subflows.carrying().filter(move |sub| sub.id != except && !sub.has_no_full_packet())
}

/// A subflow that seems to lose full-sized packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlackHole {
    /// Packets of this host; whether small packets pass is not known yet.
    Unconfirmed { index: usize, handshake: Duration },
    /// Packets of this host, on a subflow established at this time.
    Upload { index: usize, established_at: Instant },
    /// Packets of the peer; `is_weak`: no sequence numbers show it.
    Download { index: usize, established_at: Instant, is_weak: bool },
}
