//! What a flow does while its link is dark, when that ends, and as time passes.
//!
//! In: the link's turns, the time. Out: packets that restart the sender.
//!
//! 1. Chains of old timestamps end with the dark, and the byte that is kept back is put aside for the end of it.
//! 2. What says again what the own stack has said last echoes a timestamp of now, not of before the silence.
//! 3. Towards the own stack (upward) the same packets are delivered, not sent.

use alloc::collections::VecDeque;

use super::{Flow, Way};
use crate::accel::event::{Bytes, Output};
use crate::accel::hiding::Hiding;
use crate::accel::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, Sacks, Timestamps};

impl Flow {
    /// The link is dark.
    pub(in crate::accel) fn on_dark(
        &mut self,
        now: Instant,
        frozen_over: Option<LinkId>,
        outputs: &mut VecDeque<Output>,
    ) {
        self.undo.clear();
        if self.pace.rate(now).is_zero() {
            return;
        }
        self.flight = self.pace.rate(now) * (self.trip.assumed() + QUEUED);
        self.reserve.put_aside();
        self.handler.on_dark(now, self.way == Way::Down);
        if let (Some(link), Some((last, envelope))) = (frozen_over, self.last) {
            self.is_frozen = true;
            let packet = Bytes(Ack { window: 0, sacks: Sacks::default(), ..last }.emit(&self.key, envelope));
            outputs.push_back(match self.way {
                Way::Down => Output::Send { link, packet },
                Way::Up => Output::Deliver(packet),
            });
        }
    }

    /// The link is back.
    pub(in crate::accel) fn on_light(
        &mut self,
        now: Instant,
        primary: LinkId,
        mechanisms: &Mechanisms,
        outputs: &mut VecDeque<Output>,
    ) {
        self.handler.on_light(now);
        self.filling.on_light(now);
        if mechanisms.has(Mechanism::LateHide) {
            self.hide_late(now, primary, outputs);
        }
        if core::mem::take(&mut self.is_frozen) {
            self.say(now, primary, outputs);
        }
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        if self.reserve.due().is_some_and(|due| now >= due) && self.reserve.give_out().is_some() {
            self.say(now, primary, outputs);
        }
        if self.handler.tick(now) && self.reserve.may_restart() {
            self.say(now, primary, outputs);
        }
        if let Some(hiding) = &mut self.hiding {
            outputs.extend(hiding.tick(now).into_iter().map(|packet| Output::Deliver(Bytes(packet))));
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let hiding = self.hiding.as_ref().and_then(Hiding::deadline);
        [self.reserve.due(), self.handler.deadline(), hiding].into_iter().flatten().min()
    }

    /// Acknowledges what was on its way when the link went dark, if it can be had elsewhere.
    fn hide_late(&mut self, now: Instant, link: LinkId, outputs: &mut VecDeque<Output>) {
        let (scale, flight) = (self.scale(), self.flight.bytes());
        let (Some((last, envelope)), Some(hiding)) = (self.last, self.hiding.as_mut()) else { return };
        let packets = hiding.late(now, (&last, envelope), flight, self.segment, scale);
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: Bytes(packet) }));
    }

    /// Sends what the own stack has said last, over this link.
    fn say(&mut self, now: Instant, link: LinkId, outputs: &mut VecDeque<Output>) {
        let Some((last, envelope)) = self.last else { return };
        // Not the timestamp of before the silence, which would make it a round trip.
        let shows = self.gate.clock().shows(now);
        let fresh = |stamps: Timestamps| Timestamps { echo: shows.unwrap_or(stamps.echo), ..stamps };
        let fresh = |stamps| if self.way == Way::Down { fresh(stamps) } else { stamps };
        let ack = Ack { timestamps: last.timestamps.map(fresh), sacks: Sacks::default(), ..last };
        let packet = Bytes(ack.emit(&self.key, envelope));
        outputs.push_back(match self.way {
            Way::Down => Output::Send { link, packet },
            Way::Up => Output::Deliver(packet),
        });
    }
}

/// chosen: on its way is what a round trip brings, and twice a queue of 100 ms.
const QUEUED: Duration = Duration::from_millis(200);
