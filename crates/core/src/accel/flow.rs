//! One TCP flow: what its ACKs show, and what leaves in their place.
//!
//! In: its packets as they leave and as they pass, the link's turns, the time. Out: each ACK as it is to leave, and
//! packets more.
//!
//! 1. What the own stack has said last is kept: every packet made here says that, with another number or window.
//! 2. Order of the marks on an ACK: holes are counted, then the timestamp (`undo`), then the number (`reserve`), which
//!    is exact while a hole is open or its closing is still to be believed.
//! 3. Upward (§3.5) all is the same with the ends changed: the far end's ACKs are marked on their way into the own
//!    stack, which is the sender. Its own timestamps come back in them, so that the gate judges by the round trip; and a
//!    kick waits until the link is back, for it would be spent in the dark.
//! 4. Without timestamps there is no undo; without the SYN seen, windows count as shifted by the most there is, which
//!    replaces fewer ACKs and breaks nothing.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::detour::{Detour, Road};
use super::event::{Bytes, Output};
use super::fetcher::Want;
use super::gain::plain;
use super::gate::Gate;
use super::handler::Handler;
use super::hider::Verdict;
use super::hiding::{Allowed, Hiding};
use super::holes::Holes;
use super::line::Says;
use super::offloader::Fate;
use super::pace::Pace;
use super::reserve::{self, Reserve};
use super::sender::{Moment, Sender};
use super::trial;
use super::trip::Trip;
use super::undo::{Shown, Undo};
use super::view::FlowView;
use super::{Mechanism, Mechanisms};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::{Ack, Envelope, Flow as Key, Rewrite, Sacks, Segment, TcpOption, Timestamps};

/// Where a flow's data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To here: the own stack acknowledges.
    Down,
    /// From here: the far end acknowledges.
    Up,
}

/// A flow that is known.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    key: Key,
    way: Way,
    opened: Instant,
    heard: Instant,
    scale: Option<u8>,
    /// Its SYN offers SACK, or was not seen.
    has_sack: bool,
    segment: u32,
    last: Option<(Ack, Envelope)>,
    holes: Holes,
    gate: Gate,
    undo: Undo,
    sender: Sender,
    reserve: Reserve,
    handler: Handler,
    hiding: Option<Hiding>,
    /// What was on its way when the link went dark, at the most.
    flight: DataSize,
    pace: Pace,
    trip: Trip,
    detour: Detour,
    is_frozen: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) acks: u64,
    pub(super) offloaded: u64,
    pub(super) replaced: u64,
}

impl Counts {
    /// A helping link has taken an ACK.
    pub(super) const fn on_fate(&mut self, fate: Fate) {
        match fate {
            Fate::Alone => self.offloaded += 1,
            Fate::Replaced => self.replaced += 1,
        }
    }
}

/// What an ACK has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    /// Data has come since the one before.
    pub(super) has_data: bool,
    /// Holes showed for the first time.
    pub(super) has_holes: bool,
    /// It says nothing new, and is not to leave.
    pub(super) is_held: bool,
}

/// What may be done for a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct May<'a> {
    pub(super) mechanisms: &'a Mechanisms,
    /// Whether what passes is shown.
    pub(super) is_watched: bool,
    /// How many bytes more may be hidden.
    pub(super) room: u64,
}

impl Flow {
    /// Known from now on.
    pub(super) fn new(now: Instant, key: Key, way: Way) -> Self {
        Self {
            key,
            way,
            opened: now,
            heard: now,
            scale: None,
            has_sack: true,
            segment: USUAL_SEGMENT,
            last: None,
            holes: Holes::default(),
            gate: Gate::default(),
            undo: Undo::default(),
            sender: Sender::default(),
            reserve: Reserve::default(),
            handler: Handler::default(),
            hiding: None,
            flight: DataSize::ZERO,
            pace: Pace::default(),
            trip: Trip::default(),
            detour: Detour::default(),
            is_frozen: false,
            counts: Counts::default(),
        }
    }

    /// Its own SYN leaves.
    pub(super) fn on_syn(&mut self, now: Instant, syn: &Segment<'_>) {
        self.heard = now;
        self.trip.on_syn(now);
        // Without the option windows are not shifted (RFC 7323 §2.2).
        self.scale = Some(0);
        self.has_sack = false;
        for option in syn.options() {
            match option {
                TcpOption::WindowScale(shift) => self.scale = Some(shift),
                TcpOption::SackPermitted => self.has_sack = true,
                TcpOption::Mss(most) => self.segment = u32::from(most).saturating_sub(TIMESTAMPS).max(1),
                _ => {}
            }
        }
    }

    /// It may be mirrored; the fetcher is to know it under this number.
    pub(super) fn mirror(&mut self, now: Instant, number: u64) {
        self.hiding = Some(Hiding::new(now, number, self.key));
    }

    /// Its own data, or the end of it, leaves. `packet` becomes what is to leave.
    pub(super) fn on_other(&mut self, now: Instant, packet: &mut [u8], may: &May<'_>) {
        self.heard = now;
        self.trip.on_open(now);
        let Ok(segment) = Segment::parse(packet) else { return };
        if let Some(hiding) = &mut self.hiding {
            hiding.on_asked(&segment, u32::try_from(segment.payload().len()).unwrap_or(u32::MAX));
        }
        let Some(ack) = said(&segment) else { return };
        let (ack, _) = self.hide(now, packet, ack, true, may);
        self.reserve.on_said(ack.ack);
    }

    /// A packet of its own passes that was not held.
    pub(super) fn on_asked(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        self.heard = now;
        if let Some(hiding) = &mut self.hiding {
            hiding.on_asked(segment, length);
        }
    }

    /// A pure ACK of the own stack. `packet` becomes what is to leave.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        (ack, envelope): (Ack, Envelope),
        may: &May<'_>,
    ) -> News {
        let mechanisms = may.mechanisms;
        let (ack, is_held) = self.hide(now, packet, ack, false, may);
        let before = self.last.replace((ack, envelope)).map(|(ack, _)| ack);
        let advance = before.map_or(0, |before| u32::try_from(ack.ack.offset_from(before.ack)).unwrap_or(0));
        self.heard = now;
        self.counts.acks += 1;
        self.pace.on_bytes(now, advance);
        if let Some(stamps) = ack.timestamps {
            self.trip.on_leaving(now, stamps.value);
            let fresh =
                before.and_then(|before| before.timestamps).is_none_or(|old| old.echo.is_before(stamps.echo));
            if fresh && !may.is_watched {
                self.gate.on_stamp(now, stamps.echo);
            }
        }
        let new = self.holes.on_ack(now, &ack);
        if new > 0 {
            self.gate.on_loss(now);
        }
        let echo = ack.timestamps.filter(|_| mechanisms.has(Mechanism::Undo)).and_then(|stamps| {
            let is_random = new > 0
                && self.in_flight(now) >= WORTH
                && !self.holes.are_dense(self.segment)
                && self.gate.is_random(now);
            let moment = Moment {
                is_congestion: new > 0 && !is_random,
                rtt: self.trip.least(),
                plain: if new > 0 { self.plain(self.holes.count()) } else { None },
            };
            let is_helped = self.sender.is_helped(now, &moment);
            let shown = Shown {
                new,
                ack: ack.ack,
                high: self.holes.high().unwrap_or(ack.ack),
                is_open: self.holes.is_open(),
                echo: stamps.echo,
                is_random: is_random && is_helped,
                rtt: self.trip.assumed(),
            };
            self.undo.on_ack(now, &shown)
        });
        // Without SACK a repair that one byte less acknowledges is taken for a loss of what has come (RFC 6582 §3.2), and a
        // duplicate is all that tells of a hole.
        let is_plain =
            self.has_sack && advance > 0 && ack.sacks.is_empty() && !self.undo.is_armed() && !self.is_frozen;
        let keep = mechanisms.has(Mechanism::Reserve) && is_plain && self.is_in_swing(now);
        let patience = if self.way == Way::Down { reserve::PATIENCE } else { reserve::UPWARD };
        let says = self.reserve.on_ack(now, ack.ack, keep.then_some(patience));
        if let Ok(mut rewrite) = Rewrite::of(packet) {
            if says != ack.ack {
                rewrite.set_ack(says);
            }
            if let (Some(echo), Some(stamps)) = (echo, ack.timestamps)
                && echo != stamps.echo
            {
                rewrite.set_echo(echo);
            }
        }
        let has_data = advance > 0 || new > 0 || before.is_some_and(|before| before.sacks != ack.sacks);
        if has_data {
            self.handler.on_data();
        }
        let has_holes = new > 0 || self.hiding.as_ref().is_some_and(Hiding::is_busy);
        News { has_data, has_holes, is_held }
    }

    /// A packet of the other end came.
    pub(super) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if self.way == Way::Up {
            return;
        }
        if let Some(hiding) = &mut self.hiding {
            hiding.on_arrival(now, segment, length);
        }
        if let Some(stamps) = segment.timestamps() {
            self.gate.on_stamp(now, stamps.value);
            self.trip.on_echo(now, stamps.echo);
            self.detour.on_echo(now, stamps.echo, self.gate.queue(now));
        }
        self.sender.on_arrival(segment.payload_length(), self.gate.queue(now));
    }

    /// The link is dark.
    pub(super) fn on_dark(&mut self, now: Instant, frozen_over: Option<LinkId>, outputs: &mut VecDeque<Output>) {
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
    pub(super) fn on_light(
        &mut self,
        now: Instant,
        primary: LinkId,
        mechanisms: &Mechanisms,
        outputs: &mut VecDeque<Output>,
    ) {
        self.handler.on_light(now);
        if mechanisms.has(Mechanism::LateHide) {
            self.hide_late(now, primary, outputs);
        }
        if core::mem::take(&mut self.is_frozen) {
            self.say(now, primary, outputs);
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        self.release(now, primary, false, outputs);
        if self.detour.has_failed(now) {
            self.say(now, primary, outputs);
        }
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
    pub(super) fn deadline(&self) -> Option<Instant> {
        let hiding = self.hiding.as_ref().and_then(Hiding::deadline);
        [self.reserve.due(), self.handler.deadline(), hiding, self.detour.deadline()].into_iter().flatten().min()
    }

    /// The mirror, if it may have one.
    pub(super) const fn hiding(&self) -> Option<&Hiding> {
        self.hiding.as_ref()
    }

    /// What is to be fetched for it.
    pub(super) fn wants(&mut self, now: Instant, outputs: &mut VecDeque<Output>) -> Vec<Want> {
        let mut packets = Vec::new();
        let wants = self.hiding.as_mut().map(|hiding| hiding.wants(now, &mut packets)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(Bytes(packet))));
        wants
    }

    /// Bytes were fetched for it.
    pub(super) fn on_fetched(&mut self, now: Instant, start: u64, bytes: Vec<u8>, outputs: &mut VecDeque<Output>) {
        let packets = self.hiding.as_mut().map(|hiding| hiding.on_fetched(now, start, bytes)).unwrap_or_default();
        outputs.extend(packets.into_iter().map(|packet| Output::Deliver(Bytes(packet))));
    }

    /// Whether its ACKs may go over a helping link now, by nothing but its holes and its size: as published.
    pub(super) fn may_spill(&mut self, now: Instant) -> bool {
        self.detour.is_clear(now, &self.holes, self.undo.is_armed()) && self.in_flight(now) >= u64::from(THRESHOLD)
    }

    /// The way of an ACK that leaves now; `is_ready`: a helping link answers.
    pub(super) fn road(&mut self, now: Instant, is_ready: bool) -> Road {
        // One who is below is not let in again before he is well above.
        let least = if self.detour.is_on() { THRESHOLD / 2 } else { THRESHOLD };
        let moment = trial::Moment {
            total: self.pace.total(),
            queue: self.gate.queue(now),
            longest: self.gate.longest(),
            rtt: self.trip.least(),
            fits: self.in_flight(now) >= u64::from(least),
            is_ready,
            ..trial::Moment::at(now)
        };
        self.detour.road(moment, &self.holes, self.undo.is_armed())
    }

    /// What an ACK says as it leaves, beside what the own stack has said.
    pub(super) fn says(&self, ack: Ack) -> Says {
        let echo = |ack: &Ack| ack.timestamps.map(|stamps| stamps.echo);
        let is_marked = self.last.is_none_or(|(last, _)| echo(&last) != echo(&ack));
        Says { ack, is_marked, scale: self.scale() }
    }

    /// What is known of the two ways of its ACKs.
    pub(super) const fn detour_mut(&mut self) -> &mut Detour {
        &mut self.detour
    }

    /// Sends what was held until now; all of it where the link has gone dark.
    pub(super) fn release(&mut self, now: Instant, link: LinkId, is_dark: bool, outputs: &mut VecDeque<Output>) {
        let due = self.detour.due(now, is_dark).into_iter().map(Bytes);
        outputs.extend(due.map(|packet| Output::Send { link, packet }));
    }

    /// Books what became of an ACK that was offered to a helping link.
    pub(super) const fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// By how many bits its windows are shifted: the most there is, while that is not known.
    pub(super) fn scale(&self) -> u8 {
        self.scale.unwrap_or(14)
    }

    /// From here to its other end.
    pub(super) const fn key(&self) -> Key {
        self.key
    }

    /// When something of it was heard last.
    pub(super) const fn heard(&self) -> Instant {
        self.heard
    }

    /// Until when its packets are worth a look.
    pub(super) fn watch_until(&self) -> Option<Instant> {
        self.holes.last_open().map(|last| last + WATCHED)
    }

    /// As it stands.
    pub(super) fn view(&self, now: Instant, mechanisms: &Mechanisms) -> FlowView {
        let stamps = self.last.is_some_and(|(last, _)| last.timestamps.is_some());
        let (hidden, missing, hidden_holes) = self.hiding.as_ref().map(Hiding::figures).unwrap_or_default();
        let mut in_force = Vec::new();
        let is_mirrored = self.hiding.as_ref().is_some_and(Hiding::is_on);
        in_force.extend(
            [Mechanism::Hide, Mechanism::LateHide].into_iter().filter(|m| is_mirrored && mechanisms.has(*m)),
        );
        if mechanisms.has(Mechanism::Undo) && stamps && !self.sender.is_unmoved() {
            in_force.push(Mechanism::Undo);
        }
        if self.reserve.may_restart() {
            in_force.push(Mechanism::Reserve);
        }
        if self.detour.is_on() {
            in_force.push(Mechanism::Offload);
        }
        FlowView {
            flow: self.key,
            opened: self.opened,
            left_alone: self.left_alone(mechanisms, stamps),
            in_force,
            received: self.pace.total(),
            goodput: self.pace.rate(now),
            plain: self.plain(self.hole_count()),
            holes: self.hole_count(),
            random: self.undo.random() + hidden_holes,
            undone: self.undo.undone(),
            hidden: DataSize::from_bytes(hidden),
            missing: DataSize::from_bytes(missing),
            not_hidden: self.hiding.as_ref().and_then(Hiding::refusal).map(|refusal| refusal.to_string()),
            acks: self.counts.acks,
            offloaded: self.counts.offloaded,
            replaced: self.counts.replaced,
            kicks: self.handler.kicks(),
            queue: self.gate.queue(now),
            rtt: self.trip.smoothed(),
        }
    }

    /// Holes that the own stack has reported, the hidden ones included.
    fn hole_count(&self) -> u64 {
        let (_, _, hidden) = self.hiding.as_ref().map(Hiding::figures).unwrap_or_default();
        self.holes.count() + hidden
    }

    /// What plain TCP would bring with so many losses as this flow has seen, or its sender has heard of.
    fn plain(&self, holes: u64) -> Option<Bitrate> {
        let segments = self.pace.total().bytes() / u64::from(self.segment);
        let segment = DataSize::from_bytes(u64::from(self.segment));
        plain(segment, self.trip.smoothed()?, segments, holes)
    }

    fn left_alone(&self, mechanisms: &Mechanisms, stamps: bool) -> Option<String> {
        let why = if mechanisms.has(Mechanism::Undo) && !stamps && self.last.is_some() {
            "it has no timestamps, which undo needs"
        } else if self.sender.is_unmoved() {
            "its sender does not slow down when something is lost"
        } else if self.detour.trial().is_in_vain() {
            "it runs no better with its ACKs elsewhere"
        } else {
            return None;
        };
        Some(why.to_string())
    }

    /// What a segment that leaves says once its holes are hidden; and whether it need not leave at all.
    fn hide(&mut self, now: Instant, packet: &mut [u8], ack: Ack, carries: bool, may: &May<'_>) -> (Ack, bool) {
        let new = may.mechanisms.has(Mechanism::Hide) && self.gate.is_random(now);
        let allowed = Allowed { new, room: may.room, scale: self.scale() };
        // A window whose scale is not known has no right edge that could be kept to.
        let Some(hiding) = self.hiding.as_mut().filter(|_| self.scale.is_some()) else { return (ack, false) };
        let (_, _, before) = hiding.figures();
        let verdict = hiding.on_leaving(now, &ack, carries, &allowed);
        if hiding.figures().2 > before {
            self.gate.on_loss(now);
        }
        match verdict {
            Verdict::Leave => (ack, false),
            Verdict::Hold(said) => (said.said(&ack), true),
            Verdict::Say(said) => {
                said.write(packet);
                (said.said(&ack), false)
            }
        }
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

    /// Whether it brings as many segments as a download does that fills a link.
    fn is_in_swing(&self, now: Instant) -> bool {
        self.pace.lately(now).bytes() >= u64::from(self.segment) * SWING
    }

    /// Segments on their way, by its pace and its round trip.
    fn in_flight(&self, now: Instant) -> u64 {
        let bytes = self.pace.rate(now) * self.trip.assumed();
        bytes.bytes() / u64::from(self.segment)
    }
}

/// What a segment acknowledges, whatever it carries.
fn said(segment: &Segment<'_>) -> Option<Ack> {
    let (seq, flags, window) = (segment.seq(), segment.flags(), segment.window());
    let (timestamps, sacks) = (segment.timestamps(), segment.sacks());
    segment.ack().map(|ack| Ack { seq, ack, window, flags, timestamps, sacks })
}

/// chosen: on its way is what a round trip brings, and twice a queue of 100 ms.
const QUEUED: Duration = Duration::from_millis(200);
/// An Ethernet's with timestamps.
const USUAL_SEGMENT: u32 = 1448;
/// What the option takes of each segment (RFC 7323 appendix A).
const TIMESTAMPS: u32 = 12;
/// Segments in the last 200 to 300 ms. chosen: 0.5 Mbit/s; less has no window that a blackout could cost.
const SWING: u64 = 10;
/// Segments in flight from which on a reduction is worth taking back. chosen: below, what counts is that timeouts are short,
/// and old timestamps make them longer.
const WORTH: u64 = 8;
/// Segments in flight (§3.1).
const THRESHOLD: u32 = 20;
/// chosen: where one loss was there will be others; a few seconds of looking cost little.
const WATCHED: Duration = Duration::from_secs(10);
