//! Selects the link of each ACK, the last step of the ACK pipeline.

use super::ack_offload::ack_path::AckPath;
use super::secondary::ack_sender::QueueResult;
use super::{Accelerator, Key, Mechanism, Output, PacketBytes};
use crate::wire::packet::Segment;

impl Accelerator {
    /// Sends an ACK over a secondary link now or soon, or delays it on the primary link; returns it if it is to leave
    /// unchanged.
    pub(super) fn offload(&mut self, key: Key, packet: PacketBytes) -> Option<PacketBytes> {
        let now = self.now;
        let Some(flow) = self.flows.get_mut(&key).filter(|_| !self.detector.is_down()) else { return Some(packet) };
        if self.config.mechanisms.has(Mechanism::AckOffloadAsPublished) {
            let (selector, candidate) = flow.ack_path();
            let can_offload = selector.can_offload_as_published(now, &candidate);
            return if can_offload { self.offload_as_published(key, packet) } else { Some(packet) };
        } else if !self.config.mechanisms.has(Mechanism::AckOffload) {
            return Some(packet);
        }
        // ACKs in a queue are compared by what the packet says now, after the rewriters.
        let Some(ack) = Segment::parse(&packet.0).ok().and_then(|segment| segment.pure_ack()) else {
            return Some(packet);
        };
        let value = ack.timestamps.map(|timestamps| timestamps.ts_val);
        let old_deadline = flow.deadline();
        let (selector, candidate) = flow.ack_path();
        let is_ready = selector.trial().needs_link() && self.secondary.prepare_offload(now, &key);
        let path = selector.choose(now, &candidate, is_ready, self.secondary.max_flow_rate(now, &key));
        self.capture_until = self.capture_until.max(selector.capture_until());
        let (info, at) = (candidate.ack_info(ack), self.outputs.len());
        let delayed = match path {
            AckPath::Delayed(delayed) => Err((packet.0, delayed)),
            AckPath::Secondary => self
                .secondary
                .offer(now, key, (ack, packet.0), info.scale, &mut self.outputs)
                .map_err(|packet| (packet, selector.on_no_capacity(now))),
        };
        let unsent = match delayed {
            Ok(result) => {
                selector.on_offloaded(now, value);
                flow.counts_mut().on_queued(result);
                None
            }
            Err((packet, delayed)) => selector.delay(now, packet, info, delayed),
        };
        if unsent.is_none() {
            self.outputs.insert(at, Output::Suppress);
        }
        self.rearm(key, old_deadline);
        unsent.map(PacketBytes)
    }

    /// As published: over a secondary link if that has capacity now; otherwise returns it.
    fn offload_as_published(&mut self, key: Key, packet: PacketBytes) -> Option<PacketBytes> {
        let at = self.outputs.len();
        let unsent = self.secondary.send_as_published(self.now, &key, packet.0, &mut self.outputs);
        if unsent.is_none() {
            self.outputs.insert(at, Output::Suppress);
            self.flows.get_mut(&key).into_iter().for_each(|flow| flow.counts_mut().on_queued(QueueResult::Queued));
        }
        unsent.map(PacketBytes)
    }
}
