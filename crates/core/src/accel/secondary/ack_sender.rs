//! Sends pure ACKs over a secondary link, no more than it carries (Super-aggregation §3.1, §4.2, *Offloader*).
//!
//! 1. One ACK of each flow waits at a time. A newer ACK replaces it if the receiver of only the newer one misses
//!    nothing ([`Ack::supersedes`]), so a link of 100 kbit/s carries what matters of the ACKs of any rate. The paper
//!    discards replaceable ACKs as well when the secondary link is short of capacity (§4.2);
//!    [`AckSender::send_as_published`], which sends the rest over the primary link, is its form without that.
//! 2. Flows take turns.
//! 3. An ACK that cannot be replaced leaves at once, ahead of the newer one, so that the order within a flow is kept.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::accel::event::{Output, PacketBytes};
use crate::accel::secondary::link_probe::LinkProber;
use crate::units::Instant;
use crate::wire::packet::{Ack, FourTuple};

/// Bytes of data for each byte of ACKs: a faster flow is not offloaded. Our choice: an ACK with timestamps for 21
/// segments. Where more segments depend on each ACK, senders wait for one and then send all that it allows: 300 Mbit/s
/// become 250 with 400 kbit/s for their ACKs.
pub const DATA_PER_ACK_BYTE: u64 = 600;

/// The ACKs that wait for one secondary link.
#[derive(Clone, Debug, Default)]
pub(crate) struct AckSender {
    waiting: BTreeMap<FourTuple, (Ack, Vec<u8>)>,
    order: VecDeque<FourTuple>,
}

/// What became of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueResult {
    /// No other ACK of its flow was waiting.
    Queued,
    /// It replaced an older one.
    Replaced,
}

impl AckSender {
    /// This ACK may leave over the link. `scale` is the window scale of the flow.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        prober: &mut LinkProber,
        flow: FourTuple,
        ack: (Ack, Vec<u8>),
        scale: u8,
        outputs: &mut VecDeque<Output>,
    ) -> QueueResult {
        let replaces = self.waiting.get(&flow).map(|(waiting_ack, _)| ack.0.supersedes(waiting_ack, scale));
        let replaced = self.waiting.insert(flow, ack);
        match (replaces, replaced) {
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

    /// Sends what the link has capacity for.
    pub(crate) fn flush(&mut self, now: Instant, prober: &mut LinkProber, outputs: &mut VecDeque<Output>) {
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

    /// As published: the ACK leaves over the link if that has capacity now; else it is returned.
    pub(crate) fn send_as_published(
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

    /// Removes and returns the waiting ACK of this flow.
    pub(crate) fn withdraw(&mut self, flow: &FourTuple) -> Option<(Ack, Vec<u8>)> {
        let waiting = self.waiting.remove(flow)?;
        self.order.retain(|queued_flow| queued_flow != flow);
        Some(waiting)
    }

    /// Whether an ACK of this flow waits.
    pub(crate) fn has_waiting(&self, flow: &FourTuple) -> bool {
        self.waiting.contains_key(flow)
    }

    /// When the first waiting ACK may leave.
    pub(crate) fn deadline(&self, now: Instant, prober: &LinkProber) -> Option<Instant> {
        let (_, packet) = self.waiting.get(self.order.front()?)?;
        Some(prober.can_send_at(now, packet.len()))
    }

    /// Removes and returns everything that waits, in order.
    pub(crate) fn drain(&mut self) -> Vec<Vec<u8>> {
        let order = core::mem::take(&mut self.order);
        order.iter().filter_map(|flow| self.waiting.remove(flow)).map(|(_, packet)| packet).collect()
    }
}

fn send(now: Instant, prober: &mut LinkProber, packet: Vec<u8>, outputs: &mut VecDeque<Output>) {
    prober.on_sent(now, packet.len());
    outputs.push_back(Output::Send { link: prober.link_id(), packet: PacketBytes(packet) });
}
