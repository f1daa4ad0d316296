//! Offloader: pure ACKs over the second link, no more than it bears (Super-aggregation §3.1, §4.2).
//!
//! In: ACKs that may go there. Out: those that go now, and when the next may.
//!
//! 1. One place for each flow. An ACK that comes while the one before it still waits takes its place, if whoever gets
//!    only the newer one misses nothing ([`Ack::says_all_of`]): so a link of 100 kbit/s carries what matters of the
//!    ACKs of any rate. The paper discards replaceable ACKs as well when the second link is short (§4.2); [`Offloader::spill`], which sends the
//!    rest over the first link, is its form without that.
//! 2. Flows take turns.
//! 3. One that cannot be replaced leaves at once, ahead of the newer one: order within a flow stays.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::accel::event::{Output, PacketBytes};
use crate::accel::secondary::link_probe::LinkProber;
use crate::units::Instant;
use crate::wire::packet::{Ack, FourTuple};

/// Bytes of data for each byte of ACKs: a flow so fast that it needs more is not offloaded. chosen: an ACK with timestamps
/// for 21 segments. Where more hang on each, senders wait for one and then send all that it allows: 300 Mbit/s become 250 with
/// 400 kbit/s for their ACKs.
pub const DATA_PER_ACK_BYTE: u64 = 600;

/// What waits for one helping link.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct AckSender {
    waiting: BTreeMap<FourTuple, (Ack, Vec<u8>)>,
    order: VecDeque<FourTuple>,
}

/// What became of an ACK that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum QueueResult {
    /// It had a free place.
    Queued,
    /// It took an older one's place.
    Replaced,
}

impl AckSender {
    /// This ACK may go over the link. `scale`: how the flow's windows are shifted.
    pub(in crate::accel) fn offer(
        &mut self,
        now: Instant,
        prober: &mut LinkProber,
        flow: FourTuple,
        ack: (Ack, Vec<u8>),
        scale: u8,
        outputs: &mut VecDeque<Output>,
    ) -> QueueResult {
        let replaces = self.waiting.get(&flow).map(|(old, _)| ack.0.supersedes(old, scale));
        let old = self.waiting.insert(flow, ack);
        match (replaces, old) {
            (Some(true), _) => QueueResult::Replaced,
            (Some(false), Some((_, packet))) => {
                send(now, prober, packet, outputs);
                QueueResult::Queued
            }
            _ => {
                self.order.push_back(flow);
                QueueResult::Queued
            }
        }
    }

    /// Sends what there is room for.
    pub(in crate::accel) fn flush(
        &mut self,
        now: Instant,
        prober: &mut LinkProber,
        outputs: &mut VecDeque<Output>,
    ) {
        while let Some(flow) = self.order.front() {
            let size = self.waiting.get(flow).map_or(0, |(_, packet)| packet.len());
            if prober.can_send_at(now, size) > now {
                return;
            }
            if let Some((_, packet)) = self.order.pop_front().and_then(|flow| self.waiting.remove(&flow)) {
                send(now, prober, packet, outputs);
            }
        }
    }

    /// As published: the ACK goes over the link if there is room now; else it is given back.
    pub(in crate::accel) fn send_as_published(
        now: Instant,
        prober: &mut LinkProber,
        packet: Vec<u8>,
        outputs: &mut VecDeque<Output>,
    ) -> Option<Vec<u8>> {
        if prober.can_send_at(now, packet.len()) > now {
            return Some(packet);
        }
        send(now, prober, packet, outputs);
        None
    }

    /// What waits of this flow, if anything; it waits no more.
    pub(in crate::accel) fn withdraw(&mut self, flow: &FourTuple) -> Option<(Ack, Vec<u8>)> {
        let waiting = self.waiting.remove(flow)?;
        self.order.retain(|turn| turn != flow);
        Some(waiting)
    }

    /// Whether something of this flow waits.
    pub(in crate::accel) fn has_waiting(&self, flow: &FourTuple) -> bool {
        self.waiting.contains_key(flow)
    }

    /// When the first of those that wait may go.
    pub(in crate::accel) fn deadline(&self, now: Instant, prober: &LinkProber) -> Option<Instant> {
        let (_, packet) = self.waiting.get(self.order.front()?)?;
        Some(prober.can_send_at(now, packet.len()))
    }

    /// Everything that waits, in its order; nothing waits any more.
    pub(in crate::accel) fn drain(&mut self) -> Vec<Vec<u8>> {
        let order = core::mem::take(&mut self.order);
        order.iter().filter_map(|flow| self.waiting.remove(flow)).map(|(_, packet)| packet).collect()
    }
}

fn send(now: Instant, prober: &mut LinkProber, packet: Vec<u8>, outputs: &mut VecDeque<Output>) {
    prober.on_sent(now, packet.len());
    outputs.push_back(Output::Send { link: prober.link_id(), packet: PacketBytes(packet) });
}
