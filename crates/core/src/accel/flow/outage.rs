//! What a flow does while its link is dark, when that ends, and as time passes.
//!
//! In: the link's turns, the time. Out: packets that restart the sender.
//!
//! 1. Chains of old timestamps end with the dark, and the byte that is kept back is put aside for the end of it.
//! 2. What says again what the own stack has said last echoes a timestamp of now, not of before the silence.
//! 3. What restarts it is news: a byte that was kept back, or where there is none, that what it has repeated since had no way
//!    to go. Of what was missing before nothing more is told then than that (see [`crate::accel::withheld_ack`], rule 3), but
//!    once more how far all is here, for that may be lost, and the word is only of the first segment that is not.
//! 4. Towards the local stack (upward) the same packets are delivered, not sent.

use alloc::collections::VecDeque;

use super::{Direction, FlowState, TIMESTAMP_OPTION};
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::event::{Output, PacketBytes};
use crate::accel::outage::recovery::RestartAck;
use crate::accel::zero_window::{FreezeParams, Resend};
use crate::accel::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, IcmpUnreachable, SackBlocks, Timestamps};

impl FlowState {
    /// The link is dark.
    pub(in crate::accel) fn on_outage_start(
        &mut self,
        now: Instant,
        freeze: Option<FreezeParams>,
        outputs: &mut VecDeque<Output>,
    ) {
        self.early_ack.iter_mut().for_each(EarlyAckFlow::on_outage_start);
        self.eifel_undo.clear();
        self.rtt.on_outage_start();
        self.unfreeze.end();
        self.in_flight_at_outage = self.goodput.rate(now) * (self.rtt.smoothed_or_default() + QUEUE_TIME);
        if self.in_flight_at_outage.is_zero() && !self.recovery.is_sender_waiting(now) {
            return;
        }
        self.may_retransmit = self.reported_holes.is_open()
            || self.recovery.is_sender_waiting(now)
            || self.in_flight_at_outage.bytes() >= u64::from(self.segment_size) * MIN_IN_FLIGHT;
        self.withheld_ack.keep_for_outage_end();
        self.recovery.on_outage_start(now, self.direction == Direction::Download);
        let Some(freeze) = freeze else { return };
        if !self.fetch_latency.is_paused(now) && self.freeze_sender(now, &freeze, outputs) {
            return;
        }
        if let (true, link, Some((last, ip_params))) = (freeze.is_first_form, freeze.link, self.last_ack) {
            self.is_frozen = true;
            let packet = PacketBytes(
                Ack { window: 0, sack_blocks: SackBlocks::default(), ..last }.emit(&self.key, ip_params),
            );
            outputs.push_back(self.towards_sender(link, packet));
        }
    }

    /// The link is back.
    pub(in crate::accel) fn on_outage_end(
        &mut self,
        now: Instant,
        primary: LinkId,
        outputs: &mut VecDeque<Output>,
    ) {
        self.recovery.on_outage_end(now);
        self.fetch_latency.on_outage_end(now);
        self.early_ack.iter_mut().for_each(|hiding| hiding.on_outage_end(now));
        let was_stilled = core::mem::take(&mut self.is_flight_frozen);
        let has_ladder = self.early_ack.as_ref().is_some_and(EarlyAckFlow::has_open_sweep);
        if was_stilled || has_ladder {
            self.send_unfreeze_sweep(now, primary, self.in_flight_at_outage.bytes(), outputs);
            // Question or answer may be lost, and a sender that believes all of it has nothing more to say.
            self.unfreeze.on_outage_end(now, was_stilled);
        }
        if core::mem::take(&mut self.is_frozen) {
            self.send_last_ack(now, primary, outputs);
        }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(
        &mut self,
        now: Instant,
        primary: LinkId,
        mechanisms: &Mechanisms,
        outputs: &mut VecDeque<Output>,
    ) {
        self.send_delayed(now, primary, false, outputs);
        if self.ack_path.has_failed(now) {
            self.send_last_ack(now, primary, outputs);
        }
        if self.withheld_ack.due().is_some_and(|due| now >= due) && self.withheld_ack.release() {
            self.send_last_ack(now, primary, outputs);
        }
        if let Some(restart) = self.recovery.tick(now) {
            let timeouts = if mechanisms.has(Mechanism::OutageRevert) { self.timeouts_to_revert(now) } else { 0 };
            self.send_restart_ack(now, primary, restart, timeouts, outputs);
        }
        if self.unfreeze.deadline().is_some() && !self.early_ack.as_ref().is_some_and(EarlyAckFlow::has_open_sweep)
        {
            self.unfreeze.end();
        }
        match self.unfreeze.tick(now) {
            // What has left since was not on its way then.
            Some(Resend::Sweep) => self.send_unfreeze_sweep(now, primary, 0, outputs),
            Some(Resend::Probe) => self.send_position_probe(primary, outputs),
            None => {}
        }
        if let Some(hiding) = &mut self.early_ack {
            outputs.extend(hiding.tick(now).into_iter().map(|packet| Output::Deliver(PacketBytes(packet))));
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let hiding = self.early_ack.as_ref().and_then(EarlyAckFlow::deadline);
        [
            self.withheld_ack.due(),
            self.recovery.deadline(),
            self.unfreeze.deadline(),
            self.ack_path.deadline(),
            hiding,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sends what was held until now; all of it where the link has gone dark.
    pub(in crate::accel) fn send_delayed(
        &mut self,
        now: Instant,
        link: LinkId,
        is_dark: bool,
        outputs: &mut VecDeque<Output>,
    ) {
        let due = self.ack_path.take_due(now, is_dark).into_iter().map(PacketBytes);
        outputs.extend(due.map(|packet| Output::Send { link, packet }));
    }

    /// Sends the ladder of the frozen flight again with the window open, over `flight` bytes, if they can be had elsewhere.
    fn send_unfreeze_sweep(&mut self, now: Instant, link: LinkId, flight: u64, outputs: &mut VecDeque<Output>) {
        let scale = self.window_scale();
        let (Some(last), Some(hiding)) = (self.last_ack, self.early_ack.as_mut()) else { return };
        let packets = hiding.unfreeze_sweep(now, last, flight, self.segment_size, scale);
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: PacketBytes(packet) }));
    }

    /// Asks how much of a ladder was believed.
    fn send_position_probe(&self, link: LinkId, outputs: &mut VecDeque<Output>) {
        let (Some(last), Some(hiding)) = (self.last_ack, &self.early_ack) else { return };
        let packets = hiding.probe_position(last, self.window_scale());
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: PacketBytes(packet) }));
    }

    /// Acknowledges what is on its way and closes the window, over a helping link; whether that was done.
    fn freeze_sender(&mut self, now: Instant, freeze: &FreezeParams, outputs: &mut VecDeque<Output>) -> bool {
        let rtt = self
            .rtt
            .smoothed_or_default()
            .max(self.rtt.min() + self.loss_classifier.queueing_delay(now).unwrap_or_default());
        let rate_and_rtt = (self.goodput.rate(now), rtt);
        let (Some((last, ip_params)), Some(hiding)) = (self.last_ack, self.early_ack.as_mut()) else {
            return false;
        };
        let usual = self.segment_size + if last.timestamps.is_some() { 0 } else { TIMESTAMP_OPTION };
        let step = hiding.sender_segment_size().unwrap_or(usual);
        let Some(steps) = freeze.ack_steps(rate_and_rtt, self.in_flight_at_outage, step) else { return false };
        let packets = hiding.freeze(now, (&last, ip_params), &steps, step);
        self.is_flight_frozen = !packets.is_empty();
        let send = |packet| Output::Send { link: freeze.link, packet: PacketBytes(packet) };
        outputs.extend(packets.into_iter().map(send));
        if self.is_flight_frozen {
            self.unfreeze.on_outage_start(now);
        }
        self.is_flight_frozen
    }

    /// How often a sender may have repeated what had no way to go; of one that may have something to repeat, and was not told
    /// that all of it is here.
    fn timeouts_to_revert(&self, now: Instant) -> u32 {
        let has_ladder = self.early_ack.as_ref().is_some_and(EarlyAckFlow::has_open_sweep);
        let is_known = self.direction == Direction::Download || self.upload.has_clock();
        if !self.may_retransmit || self.has_closed || has_ladder || !is_known {
            return 0;
        }
        self.recovery.timeouts(now, self.rtt.smoothed_or_default())
    }

    /// Restarts the sender, over this link; so often it may have repeated what had no way to go, and is told so in the light.
    fn send_restart_ack(
        &mut self,
        now: Instant,
        link: LinkId,
        restart: RestartAck,
        timeouts: u32,
        outputs: &mut VecDeque<Output>,
    ) {
        let has_news = self.withheld_ack.can_restart_sender();
        let messages = match restart {
            RestartAck::Ended { is_first: true } if timeouts > 0 => timeouts + 1,
            RestartAck::Ended { is_first: false } if timeouts > 0 => REPEATED_UNREACHABLES,
            _ => 0,
        };
        let Some((last, ip_params)) = self.last_ack.filter(|_| has_news || messages > 0) else { return };
        self.recovery.on_restart();
        // Without SACK each that says nothing new counts as a segment that has come (RFC 5681 §3.2).
        if has_news || self.is_sack_permitted || restart == (RestartAck::Ended { is_first: true }) {
            let ack = if has_news { last } else { Ack { sack_blocks: SackBlocks::default(), ..last } };
            self.send_ack(now, link, &ack, outputs);
        }
        let seq = self.withheld_ack.acked().map_or(last.ack, |said| said.later(last.ack));
        let message = IcmpUnreachable { four_tuple: self.key.reversed(), seq };
        outputs.extend((0..messages).map(|_| self.towards_sender(link, PacketBytes(message.emit(ip_params)))));
    }

    /// Sends what the own stack has said last, over this link.
    fn send_last_ack(&mut self, now: Instant, link: LinkId, outputs: &mut VecDeque<Output>) {
        if let Some((last, _)) = self.last_ack {
            self.send_ack(now, link, &last, outputs);
        }
    }

    fn send_ack(&self, now: Instant, link: LinkId, last: &Ack, outputs: &mut VecDeque<Output>) {
        let Some((_, ip_params)) = self.last_ack else { return };
        // Not the timestamp of before the silence, which would make it a round trip, and upward the repairs needless: what
        // the other clock would show in a packet that comes now; but that of a chain of holes.
        let older = self.rewritten_echo.filter(|_| self.eifel_undo.needs_exact_acks());
        let current = older.or_else(|| self.loss_classifier.peer_clock().current_tsval(now));
        let fresh =
            |timestamps: Timestamps| Timestamps { ts_ecr: current.unwrap_or(timestamps.ts_ecr), ..timestamps };
        // That something came twice was true once.
        let sacks = if last.dsack_range().is_some() { SackBlocks::default() } else { last.sack_blocks };
        let ack = Ack { timestamps: last.timestamps.map(fresh), sack_blocks: sacks, ..*last };
        outputs.push_back(self.towards_sender(link, PacketBytes(ack.emit(&self.key, ip_params))));
    }

    fn towards_sender(&self, link: LinkId, packet: PacketBytes) -> Output {
        match self.direction {
            Direction::Download => Output::Send { link, packet },
            Direction::Upload => Output::Deliver(packet),
        }
    }
}

/// Segments. chosen: of fewer there is often nothing more to come, as behind an answer that has ended.
const MIN_IN_FLIGHT: u64 = 4;
/// With the second and the third kick. chosen: more than is lost of the first ones' words, but for all of them.
const REPEATED_UNREACHABLES: u32 = 2;
/// chosen: on its way is what a round trip brings, and twice a queue of 100 ms.
const QUEUE_TIME: Duration = Duration::from_millis(200);
