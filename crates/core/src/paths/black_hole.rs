//! Path MTU black holes (RFC 2923, section 2.1): links whose full-sized packets vanish while small ones pass.
//!
//! A tunnel or a mobile bearer makes the path's MTU smaller than the interface's, and the ICMP message that would say so is
//! dropped. Handshakes and probes then succeed, so that the path is not silent, and every full-sized segment is lost. MPTCP
//! sends the data again over the other subflows and gives the link new data, which is lost again: several links are slower
//! than one. What tells it apart from a silent or lossy path, and from a sender that has nothing to send:
//!
//! 1. *Sent from here:* no byte is acknowledged over [`TIMEOUTS`] retransmission timeouts in a row; a second subflow over the
//!    same link has been established meanwhile, so that small packets pass; and a retransmission that was sent after that is
//!    not acknowledged either. Without it an outage that has just ended would look the same.
//! 2. *Sent by the peer:* its data sequence numbers (RFC 8684, section 3.3) show it ([`Conn::on_reached`]). If the other
//!    subflows deliver bytes 1–1000 and 3001–4000 of the connection, the peer has sent 1001–3000 over this one. Nothing of it
//!    arrives for [`GIVEN`]. A sender that has nothing to send over the link skips nothing. If the kernel reports no sequence
//!    numbers, there are too many connections to read them often, or several other subflows carry, whose own gaps may hide
//!    this one's: nothing came for [`NOTHING`] while the connection received [`BESIDE`] over others without pauses.
//! 3. *The step itself.* The link's MTU is lowered (see `link_mtu`) and the link joined again, because both ends agree on the
//!    segment size in the handshake. Data over the new subflow confirm the step. What the peer sends is weaker evidence, so
//!    the old subflow stays meanwhile: the step is confirmed only if the old one still brings nothing, and undone if it
//!    brings something, or if neither does. If the old one had to go, and no sequence numbers have shown that data were lost,
//!    the new one must bring [`BURST`].
//!
//! Where all connections are steered as one (`Config::as_one`), there are no sequence numbers and no second subflow over a
//! link to compare with. There what the peer sends is not examined.
//!
//! If no step helps what is sent from here, the link is left out like one that the server refuses.
//!
//! Not chosen: the kernel's own probing (`net.ipv4.tcp_mtu_probing`). It is a setting of the whole host, it does nothing for
//! what the peer sends, and each new subflow begins to search again.

use alloc::vec::Vec;

use super::config::Policy;
use super::conn::{Activity, Conn, DeadPath, JoinPurpose, JoinState, MtuTrial, ReceiveProgress};
use super::event::{CommandError, Output, SubflowId};
use super::host_state::HostState;
use super::link_mtu::MtuStep;
use super::liveness::SilenceKind;
use super::subflow::{FULL_PACKET, Subflow};
use crate::energy::Direction;
use crate::units::{DataSize, Duration, Instant};

/// chosen: two retransmissions of the same data, a second after it was sent first.
const MIN_TIMEOUTS: u8 = 2;
/// If the link cannot be joined a second time, so many are waited for instead: about two seconds. chosen: one more, because
/// nothing but the handshake shows then that small packets pass.
const MIN_TIMEOUTS_UNPROBED: u8 = 3;
/// How long data that the peer has sent may be on their way. chosen: the first retransmission on a link with 150 ms of round
/// trip and as much queue comes after half of that; with the join, the link is of use within two seconds.
const MIN_MISSING_TIME: Duration = Duration::from_millis(1000);
/// The peer's second retransmission comes after six to seven round trips.
const MIN_MISSING_RTTS: u32 = 6;
/// chosen: with the join that follows, a link is of use two seconds after it was first given data.
const MIN_EMPTY_TIME: Duration = Duration::from_millis(1500);
/// chosen: more than a request, its answer's first window and what one queue holds.
const MIN_OTHER_DATA: DataSize = DataSize::from_kib(128);
/// What the peer sends over one subflow at once before it chooses again (Linux: 64 KB). More than that over the new subflow,
/// and nothing over the old one, is no accident.
const CONFIRM_BYTES: DataSize = DataSize::from_kib(64);
/// On a slow link less counts, after this time.
const CONFIRM_TIME: Duration = Duration::from_secs(2);
/// Sequence numbers are read often enough if no more passes from one look to the next: the peer takes a retransmission
/// timeout, 200 ms at least, to send lost data over another subflow.
const MAX_SEQ_POLL_INTERVAL: Duration = Duration::from_millis(150);
/// How long a link is left alone on which no step helps. chosen: as after a refusal.
const LINK_PAUSE: Duration = Duration::from_secs(60);

impl Conn {
    /// Notes how far the data reach that came, and which subflows have not delivered what they were given. To be called at each
    /// whole look.
    ///
    /// A subflow receives in order, so that data which the others skip were sent over one that has not delivered them. What
    /// is sent again over the others counts as received, not as skipped. Of several others the slower ones have yet to deliver
    /// what a faster one skips: only data before what all of them have reached are certainly not theirs.
    pub(super) fn track_data_seq(&mut self, now: Instant) {
        let previous = self.progress.map(|reached| reached.data_seq);
        let data_seq = self.subflows.iter().filter_map(Subflow::data_seq).chain(previous).max();
        let reached = data_seq.map(|to| ReceiveProgress { data_seq: to, received: self.received });
        self.progress = reached;
        let Some(reached) = reached else { return };
        let passed_by_all = |sub: &Subflow| match self.other_receivers(sub.id).count() {
            0 | 1 => reached.data_seq,
            _ => self.other_receivers(sub.id).filter_map(Subflow::data_seq).min().unwrap_or_default(),
        };
        let passed: Vec<DataSize> = self.subflows.iter().map(passed_by_all).collect();
        for (sub, to) in self.subflows.iter_mut().zip(passed).filter(|(sub, _)| !sub.backup && !sub.is_closing) {
            let start = *sub.start_progress.get_or_insert(reached);
            let skipped = (to - start.data_seq) - (reached.received - start.received);
            if !sub.has_no_full_packet() {
                sub.missing_since = None;
            } else if skipped >= FULL_PACKET {
                sub.missing_since.get_or_insert(now);
            }
        }
    }

    /// The other subflows that carry and have brought data.
    fn other_receivers(&self, except: SubflowId) -> impl Iterator<Item = &Subflow> {
        let receives =
            move |sub: &&Subflow| sub.id != except && !sub.backup && !sub.is_closing && !sub.has_no_full_packet();
        self.subflows.iter().filter(receives)
    }

    /// From where on data may be given to a subflow that is asked to carry now; none: not known.
    pub(super) fn start_progress(&self) -> Option<ReceiveProgress> {
        self.progress.or_else(|| self.received.is_zero().then(ReceiveProgress::default))
    }

    /// Looks for subflows whose full-sized packets vanish, and judges the steps that were taken. To be called at each turn.
    pub(super) fn check_black_holes(&mut self, host: &mut HostState) {
        if host.config.policy != Policy::Marline || self.joins_denied {
            return;
        }
        for index in 0..self.paths.len() {
            self.judge_mtu_trial(host, index);
        }
        let found: Vec<BlackHole> = self.subflows.iter().filter_map(|sub| self.diagnose(host, sub)).collect();
        for lost in found {
            match lost {
                BlackHole::Unconfirmed { index: at, handshake } => {
                    let until = host.now + SilenceKind::Urgent.probe_time(handshake);
                    self.join(host, at, true, JoinPurpose::Probe { until });
                }
                BlackHole::Upload { index: at, established_at: up } => self.on_lost_upload(host, at, up),
                BlackHole::Download { index: at, established_at: up, is_weak: weak } => {
                    self.on_lost_download(host, at, up, weak)
                }
            }
        }
    }

    /// What is to be done for a subflow whose full-sized packets seem to vanish.
    fn diagnose(&self, host: &HostState, sub: &Subflow) -> Option<BlackHole> {
        let index = sub.link.filter(|_| !sub.backup && !sub.is_closing)?;
        let (path, link) = (self.paths.get(index)?, host.link(index)?);
        if !link.up || path.dead.is_some() || path.join != JoinState::Idle {
            return None;
        }
        let (now, established_at) = (host.now, sub.established_at);
        // Nothing has passed since its own handshake, and no other subflow has come up since.
        let is_unprobed =
            path.probed_at == Some(established_at) && sub.volume() == 0 && sub.timeouts_at_probe.is_none();
        if sub.rto_since.is_some() {
            let unanswered = sub.retransmitted_since.is_some_and(|since| now.since(since) >= sub.ack_wait());
            if unanswered && sub.timeouts >= MIN_TIMEOUTS || is_unprobed && sub.timeouts >= MIN_TIMEOUTS_UNPROBED {
                return Some(BlackHole::Upload { index, established_at });
            }
            // Now rather than after the silence that is waited for elsewhere, so that the next retransmission comes after it.
            if is_unprobed && self.activity == Activity::Busy && self.is_joinable(host, index) {
                return Some(BlackHole::Unconfirmed { index, handshake: sub.handshake_rtt() });
            }
        }
        self.is_download_lost(host, index, sub).then_some(BlackHole::Download {
            index,
            established_at,
            is_weak: sub.missing_since.is_none(),
        })
    }

    /// Whether the peer's data reaches this end over other subflows and not over this one.
    fn is_download_lost(&self, host: &HostState, index: usize, sub: &Subflow) -> bool {
        let (now, handshake) = (host.now, sub.handshake_rtt());
        let is_newest = self.subflow_on(index).is_some_and(|newest| newest.id == sub.id);
        let has_nothing =
            is_newest && sub.has_no_full_packet() && sub.unanswered_since.is_none() && !sub.peer_backup();
        let is_observable = !self.adopted && !host.config.kernel_path_manager;
        if !has_nothing || !is_observable || self.direction() != Direction::Down || !self.is_joinable(host, index) {
            return false;
        }
        let lowered = host.link(index).and_then(|link| link.mtu.lowered());
        let is_after_lowering = lowered.is_some_and(|lowered| sub.established_at > lowered.since);
        if let Some(missing_since) = sub.missing_since {
            return now.since(missing_since) >= MIN_MISSING_TIME.max(handshake * MIN_MISSING_RTTS);
        }
        let has_sequence_evidence = self.progress.is_some()
            && self.poll_interval(host) <= MAX_SEQ_POLL_INTERVAL
            && self.other_receivers(sub.id).count() < 2;
        if is_after_lowering || has_sequence_evidence {
            return false;
        }
        let has_other_data = self.volume.saturating_sub(sub.volume_at_start) >= MIN_OTHER_DATA.bytes();
        has_other_data
            && now.since(sub.active_since) >= MIN_EMPTY_TIME.max(handshake * 6)
            && self.is_steady(now, MIN_EMPTY_TIME)
    }

    /// Own full-sized packets of a subflow that came up then vanish on this link.
    fn on_lost_upload(&mut self, host: &mut HostState, index: usize, established_at: Instant) {
        let now = host.now;
        let step = host.lower_mtu(index, established_at);
        let is_last = self.destroy_all_on(host, index);
        let Some(path) = self.paths.get_mut(index) else { return };
        path.reset_measurements(now);
        if let MtuStep::Lowered(mtu) = step {
            path.mtu_trial = Some(MtuTrial { started: now, mtu, is_upload: true, is_weak: false });
            path.join_not_before = now;
            // The only subflow stays until the new one carries.
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
            self.note(host, reason);
        }
    }

    /// The peer's data do not arrive over a subflow that came up then.
    fn on_lost_download(&mut self, host: &mut HostState, index: usize, established_at: Instant, is_weak: bool) {
        let now = host.now;
        let Some(link) = host.link(index) else { return };
        match link.mtu.lowered() {
            // Its packets are larger than those that are known to pass.
            Some(lowered) if lowered.since > established_at && lowered.is_confirmed => {
                self.start_mtu_trial(host, index, established_at, is_weak)
            }
            // Another connection finds out.
            Some(lowered) if lowered.since > established_at => {}
            // The step before has not helped.
            Some(lowered)
                if !lowered.is_confirmed && self.paths.get(index).is_some_and(|path| path.mtu_trial.is_some()) =>
            {
                self.start_mtu_trial(host, index, established_at, is_weak);
            }
            _ if !link.mtu.can_try(now) => {}
            _ => self.start_mtu_trial(host, index, established_at, is_weak),
        }
    }

    /// Joins the link once more, with a smaller MTU. The subflow that is there stays.
    fn start_mtu_trial(&mut self, host: &mut HostState, index: usize, established_at: Instant, is_weak: bool) {
        let now = host.now;
        let MtuStep::Lowered(mtu) = host.lower_mtu(index, established_at) else {
            self.judge_mtu_trial(host, index);
            return;
        };
        let Some(path) = self.paths.get_mut(index) else { return };
        path.mtu_trial = Some(MtuTrial { started: now, mtu, is_upload: false, is_weak });
        self.join(host, index, false, JoinPurpose::MtuTrial);
    }

    /// The join with a smaller MTU was refused on this side.
    pub(super) fn on_mtu_join_refused(&mut self, host: &mut HostState, index: usize, error: CommandError) {
        match error {
            CommandError::Other(_) => self.on_second_refused(host, index, host.now),
            // It has other reasons than the number of subflows, so that the old one could perhaps not be replaced either.
            _ if self
                .paths
                .get(index)
                .is_some_and(|path| path.mtu_trial.is_some_and(|smaller| !smaller.is_upload)) =>
            {
                host.undo_mtu(index);
                self.end_mtu_trial(host, index, false);
            }
            _ => {}
        }
    }

    /// No subflow can be added any more: the trials of this connection have no result.
    pub(super) fn abandon_trials(&mut self, host: &mut HostState) {
        for at in 0..self.paths.len() {
            if self.paths.get_mut(at).is_some_and(|path| path.mtu_trial.take().is_some()) {
                host.abandon_mtu_trial(at);
            }
        }
    }

    /// The server, or the kernel, allows no second subflow over the link: the new one takes the place of the old one.
    pub(super) fn on_second_refused(&mut self, host: &mut HostState, index: usize, established_at: Instant) {
        let now = host.now;
        let Some(path) = self.paths.get_mut(index) else { return };
        if path.mtu_trial.is_none_or(|smaller| smaller.is_upload || smaller.started > established_at) {
            return;
        }
        path.join_not_before = now;
        path.reset_measurements(now);
        if self.destroy_all_on(host, index) {
            // It cannot be replaced.
            host.undo_mtu(index);
            self.end_mtu_trial(host, index, false);
        }
    }

    /// Ends the subflows over a link. Says whether one stays because it is the only one.
    fn destroy_all_on(&mut self, host: &mut HostState, index: usize) -> bool {
        let closing: Vec<SubflowId> = self
            .subflows
            .iter()
            .filter(|sub| sub.link == Some(index) && !sub.is_closing)
            .map(|sub| sub.id)
            .collect();
        closing.into_iter().for_each(|id| self.destroy(host, id));
        self.subflow_on(index).is_some()
    }

    /// Whether the smaller MTU that this connection has asked for was right.
    fn judge_mtu_trial(&mut self, host: &mut HostState, index: usize) {
        let Some(smaller) = self.paths.get(index).and_then(|path| path.mtu_trial) else { return };
        // A larger one: the trial has failed, and what was confirmed before it holds.
        let lowered =
            host.link(index).and_then(|link| link.mtu.lowered()).filter(|lowered| lowered.mtu <= smaller.mtu);
        let Some(lowered) = lowered else {
            self.end_mtu_trial(host, index, false);
            return;
        };
        if lowered.is_confirmed {
            self.end_mtu_trial(host, index, true);
            return;
        }
        let is_on_link = |sub: &&Subflow| sub.link == Some(index) && !sub.is_closing;
        let (new, old): (Vec<&Subflow>, Vec<&Subflow>) =
            self.subflows.iter().filter(is_on_link).partition(|sub| sub.established_at > smaller.started);
        let bytes = |sub: &Subflow| if smaller.is_upload { sub.volume() } else { sub.received().bytes() };
        let carried = new.iter().map(|sub| bytes(sub)).max().unwrap_or(0);
        let confirm_bytes = match old.is_empty() {
            _ if smaller.is_upload => FULL_PACKET,
            // Nothing to compare with.
            true if smaller.is_weak => CONFIRM_BYTES,
            false if host.now.since(smaller.started) < CONFIRM_TIME => CONFIRM_BYTES,
            _ => FULL_PACKET,
        };
        if !smaller.is_upload && old.iter().any(|sub| !sub.has_no_full_packet()) {
            host.undo_mtu(index);
            self.end_mtu_trial(host, index, false);
        } else if carried >= confirm_bytes.bytes() {
            host.confirm_mtu(index);
            self.end_mtu_trial(host, index, true);
            let name = host.link_name(index);
            let mtu = lowered.mtu;
            self.note(
                host,
                alloc::format!("full-sized packets over {name} are lost: joined again with an MTU of {mtu} bytes"),
            );
        }
    }

    /// The trial of a smaller MTU is over. The subflows that it was for go, unless nothing else would be left.
    fn end_mtu_trial(&mut self, host: &mut HostState, index: usize, is_confirmed: bool) {
        let Some(smaller) = self.paths.get_mut(index).and_then(|path| path.mtu_trial.take()) else { return };
        let is_on_link = |sub: &&Subflow| sub.link == Some(index) && !sub.is_closing;
        let old = self.subflows.iter().filter(is_on_link).any(|sub| sub.established_at <= smaller.started);
        if is_confirmed || !old {
            return;
        }
        let new = self
            .subflows
            .iter()
            .filter(is_on_link)
            .filter(|sub| sub.established_at > smaller.started)
            .map(|sub| sub.id);
        let new: Vec<SubflowId> = new.collect();
        new.into_iter().for_each(|id| self.destroy(host, id));
    }

    /// Says what became of a path; then why it is carried as it is once more, so that this is the last word.
    fn note(&mut self, host: &mut HostState, reason: alloc::string::String) {
        host.outputs.push_back(Output::Note { conn: self.id, reason });
        self.noted_reason = None;
    }
}

/// A subflow that loses full-sized packets, as it seems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlackHole {
    /// Those of this end, and it is not known yet whether small ones pass.
    Unconfirmed { index: usize, handshake: Duration },
    /// Those of this end, of a subflow that came up then.
    Upload { index: usize, established_at: Instant },
    /// Those of the peer, also if no sequence numbers show it.
    Download { index: usize, established_at: Instant, is_weak: bool },
}
