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

use super::{Flow, TIMESTAMPS, Way};
use crate::accel::early_ack::flow_state::Hiding;
use crate::accel::event::{Bytes, Output};
use crate::accel::outage::recovery::Kick;
use crate::accel::zero_window::{Again, Frost};
use crate::accel::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Ack, IcmpUnreachable, SackBlocks, Timestamps};

impl Flow {
    /// The link is dark.
    pub(in crate::accel) fn on_dark(&mut self, now: Instant, frost: Option<Frost>, outputs: &mut VecDeque<Output>) {
        self.hiding.iter_mut().for_each(Hiding::on_dark);
        self.undo.clear();
        self.trip.on_dark();
        self.thaw.end();
        self.flight = self.pace.rate(now) * (self.trip.assumed() + QUEUED);
        if self.flight.is_zero() && !self.handler.is_owed(now) {
            return;
        }
        self.is_waiting = self.holes.is_open()
            || self.handler.is_owed(now)
            || self.flight.bytes() >= u64::from(self.segment) * SEVERAL;
        self.reserve.put_aside();
        self.handler.on_dark(now, self.way == Way::Down);
        let Some(frost) = frost else { return };
        if !self.filling.is_paused(now) && self.still(now, &frost, outputs) {
            return;
        }
        if let (true, link, Some((last, envelope))) = (frost.is_plain, frost.link, self.last) {
            self.is_frozen = true;
            let packet =
                Bytes(Ack { window: 0, sack_blocks: SackBlocks::default(), ..last }.emit(&self.key, envelope));
            outputs.push_back(self.towards_sender(link, packet));
        }
    }

    /// The link is back.
    pub(in crate::accel) fn on_light(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        self.handler.on_light(now);
        self.filling.on_light(now);
        self.hiding.iter_mut().for_each(|hiding| hiding.on_light(now));
        let was_stilled = core::mem::take(&mut self.is_stilled);
        let has_ladder = self.hiding.as_ref().is_some_and(Hiding::has_ladder);
        if was_stilled || has_ladder {
            self.repeat_ladder(now, primary, self.flight.bytes(), outputs);
            // Question or answer may be lost, and a sender that believes all of it has nothing more to say.
            self.thaw.on_light(now, was_stilled);
        }
        if core::mem::take(&mut self.is_frozen) {
            self.say(now, primary, outputs);
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
        self.release(now, primary, false, outputs);
        if self.detour.has_failed(now) {
            self.say(now, primary, outputs);
        }
        if self.reserve.due().is_some_and(|due| now >= due) && self.reserve.give_out() {
            self.say(now, primary, outputs);
        }
        if let Some(kick) = self.handler.tick(now) {
            let repeated = if mechanisms.has(Mechanism::Revert) { self.repeated(now) } else { 0 };
            self.kick(now, primary, kick, repeated, outputs);
        }
        if self.thaw.deadline().is_some() && !self.hiding.as_ref().is_some_and(Hiding::has_ladder) {
            self.thaw.end();
        }
        match self.thaw.tick(now) {
            // What has left since was not on its way then.
            Some(Again::All) => self.repeat_ladder(now, primary, 0, outputs),
            Some(Again::Question) => self.ask(primary, outputs),
            None => {}
        }
        if let Some(hiding) = &mut self.hiding {
            outputs.extend(hiding.tick(now).into_iter().map(|packet| Output::Deliver(Bytes(packet))));
        }
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        let hiding = self.hiding.as_ref().and_then(Hiding::deadline);
        [self.reserve.due(), self.handler.deadline(), self.thaw.deadline(), self.detour.deadline(), hiding]
            .into_iter()
            .flatten()
            .min()
    }

    /// Sends what was held until now; all of it where the link has gone dark.
    pub(in crate::accel) fn release(
        &mut self,
        now: Instant,
        link: LinkId,
        is_dark: bool,
        outputs: &mut VecDeque<Output>,
    ) {
        let due = self.detour.due(now, is_dark).into_iter().map(Bytes);
        outputs.extend(due.map(|packet| Output::Send { link, packet }));
    }

    /// Sends the ladder of the frozen flight again with the window open, over `flight` bytes, if they can be had elsewhere.
    fn repeat_ladder(&mut self, now: Instant, link: LinkId, flight: u64, outputs: &mut VecDeque<Output>) {
        let scale = self.scale();
        let (Some(last), Some(hiding)) = (self.last, self.hiding.as_mut()) else { return };
        let packets = hiding.open_ladder(now, last, flight, self.segment, scale);
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: Bytes(packet) }));
    }

    /// Asks how much of a ladder was believed.
    fn ask(&self, link: LinkId, outputs: &mut VecDeque<Output>) {
        let (Some(last), Some(hiding)) = (self.last, &self.hiding) else { return };
        let packets = hiding.ask(last, self.scale());
        outputs.extend(packets.into_iter().map(|packet| Output::Send { link, packet: Bytes(packet) }));
    }

    /// Acknowledges what is on its way and closes the window, over a helping link; whether that was done.
    fn still(&mut self, now: Instant, frost: &Frost, outputs: &mut VecDeque<Output>) -> bool {
        let rtt = self.trip.assumed().max(self.trip.least() + self.gate.queue(now).unwrap_or_default());
        let pace = (self.pace.rate(now), rtt);
        let (Some((last, envelope)), Some(hiding)) = (self.last, self.hiding.as_mut()) else { return false };
        let usual = self.segment + if last.timestamps.is_some() { 0 } else { TIMESTAMPS };
        let step = hiding.step().unwrap_or(usual);
        let Some(rungs) = frost.rungs(pace, self.flight, step) else { return false };
        let packets = hiding.freeze(now, (&last, envelope), &rungs, step);
        self.is_stilled = !packets.is_empty();
        let send = |packet| Output::Send { link: frost.link, packet: Bytes(packet) };
        outputs.extend(packets.into_iter().map(send));
        if self.is_stilled {
            self.thaw.on_dark(now);
        }
        self.is_stilled
    }

    /// How often a sender may have repeated what had no way to go; of one that may have something to repeat, and was not told
    /// that all of it is here.
    fn repeated(&self, now: Instant) -> u32 {
        let has_ladder = self.hiding.as_ref().is_some_and(Hiding::has_ladder);
        let is_known = self.way == Way::Down || self.upward.has_seen();
        if !self.is_waiting || self.has_closed || has_ladder || !is_known {
            return 0;
        }
        self.handler.timeouts(now, self.trip.assumed())
    }

    /// Restarts the sender, over this link; so often it may have repeated what had no way to go, and is told so in the light.
    fn kick(&mut self, now: Instant, link: LinkId, kick: Kick, repeated: u32, outputs: &mut VecDeque<Output>) {
        let has_news = self.reserve.may_restart();
        let words = match kick {
            Kick::Light { is_first: true } if repeated > 0 => repeated + 1,
            Kick::Light { is_first: false } if repeated > 0 => WORDS,
            _ => 0,
        };
        let Some((last, envelope)) = self.last.filter(|_| has_news || words > 0) else { return };
        self.handler.on_kick();
        // Without SACK each that says nothing new counts as a segment that has come (RFC 5681 §3.2).
        if has_news || self.has_sack || kick == (Kick::Light { is_first: true }) {
            let ack = if has_news { last } else { Ack { sack_blocks: SackBlocks::default(), ..last } };
            self.say_again(now, link, &ack, outputs);
        }
        let seq = self.reserve.said().map_or(last.ack, |said| said.later(last.ack));
        let word = IcmpUnreachable { four_tuple: self.key.reversed(), seq };
        outputs.extend((0..words).map(|_| self.towards_sender(link, Bytes(word.emit(envelope)))));
    }

    /// Sends what the own stack has said last, over this link.
    fn say(&mut self, now: Instant, link: LinkId, outputs: &mut VecDeque<Output>) {
        if let Some((last, _)) = self.last {
            self.say_again(now, link, &last, outputs);
        }
    }

    fn say_again(&self, now: Instant, link: LinkId, last: &Ack, outputs: &mut VecDeque<Output>) {
        let Some((_, envelope)) = self.last else { return };
        // Not the timestamp of before the silence, which would make it a round trip, and upward the repairs needless: what
        // the other clock would show in a packet that comes now; but that of a chain of holes.
        let older = self.echoed.filter(|_| self.undo.is_armed());
        let shows = older.or_else(|| self.gate.clock().shows(now));
        let fresh = |stamps: Timestamps| Timestamps { ts_ecr: shows.unwrap_or(stamps.ts_ecr), ..stamps };
        // That something came twice was true once.
        let sacks = if last.dsack_range().is_some() { SackBlocks::default() } else { last.sack_blocks };
        let ack = Ack { timestamps: last.timestamps.map(fresh), sack_blocks: sacks, ..*last };
        outputs.push_back(self.towards_sender(link, Bytes(ack.emit(&self.key, envelope))));
    }

    fn towards_sender(&self, link: LinkId, packet: Bytes) -> Output {
        match self.way {
            Way::Down => Output::Send { link, packet },
            Way::Up => Output::Deliver(packet),
        }
    }
}

/// Segments. chosen: of fewer there is often nothing more to come, as behind an answer that has ended.
const SEVERAL: u64 = 4;
/// With the second and the third kick. chosen: more than is lost of the first ones' words, but for all of them.
const WORDS: u32 = 2;
/// chosen: on its way is what a round trip brings, and twice a queue of 100 ms.
const QUEUED: Duration = Duration::from_millis(200);
