//! A flow's part in hiding: it may have a mirror, which changes what its ACKs say.
//!
//! In: its ACKs, what was fetched for it. Out: what they say once its holes are hidden, and what is to be fetched.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Flow, May};
use crate::accel::Mechanism;
use crate::accel::early_ack::engine::Verdict;
use crate::accel::early_ack::fetch::{Got, Want};
use crate::accel::early_ack::flow_state::{Allowed, Hiding};
use crate::accel::event::{Bytes, Output};
use crate::units::Instant;
use crate::wire::packet::Ack;

impl Flow {
    /// It may be mirrored; the fetcher is to know it under this number.
    pub(in crate::accel) fn mirror(&mut self, now: Instant, number: u64) -> &mut Hiding {
        self.hiding.insert(Hiding::new(now, number, self.key))
    }

    /// The mirror, if it may have one.
    pub(in crate::accel) const fn hiding(&self) -> Option<&Hiding> {
        self.hiding.as_ref()
    }

    /// The same, to be changed.
    pub(in crate::accel) const fn hiding_mut(&mut self) -> Option<&mut Hiding> {
        self.hiding.as_mut()
    }

    /// What is to be fetched for it.
    pub(in crate::accel) fn wants(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Vec<Want> {
        let mut packets = Vec::new();
        let wants = self.hiding.as_mut().map(|hiding| hiding.wants(now, &mut packets)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(Bytes(packet))));
        wants
    }

    /// Bytes were fetched for it.
    pub(in crate::accel) fn on_fetched(&mut self, now: Instant, got: Got, outputs: &mut VecDeque<Output>) {
        let Some(hiding) = self.hiding.as_mut() else { return };
        if let Some(took) = got.took {
            self.filling.on_answer(now, took, got.is_late && hiding.awaits(got.start));
        }
        let packets = hiding.on_fetched(now, got.start, got.bytes);
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(Bytes(packet))));
    }

    /// What a segment that leaves says once its holes are hidden; and whether it need not leave at all.
    pub(super) fn hide(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        ack: Ack,
        carries: bool,
        may: &May<'_>,
    ) -> (Ack, bool) {
        let since = self.hiding.as_ref().and_then(Hiding::waits_since);
        let is_of_use = self.filling.is_in_time(now, since) && self.is_worth_hiding(now);
        let hides = may.mechanisms.has_any(&[Mechanism::Hide, Mechanism::FastFetch]);
        let new = hides && is_of_use && !self.sender.is_unmoved() && self.is_random(now);
        let allowed = Allowed { new, room: may.room, scale: self.scale() };
        // A window whose scale is not known has no right edge that could be kept to.
        let Some(hiding) = self.hiding.as_mut().filter(|_| self.scale.is_some()) else { return (ack, false) };
        match hiding.on_leaving(now, &ack, carries, &allowed) {
            Verdict::Leave => (ack, false),
            Verdict::Hold(said) => (said.said(&ack), true),
            Verdict::Say(said) => {
                said.write(packet);
                (said.said(&ack), false)
            }
        }
    }
}
