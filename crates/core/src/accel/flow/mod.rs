//! One TCP flow: what its ACKs show, and what leaves in their place.
//!
//! In: its packets as they leave and as they pass. Out: each ACK as it is to leave. The link's turns and the time are in
//! `dark`, hiding in `mirrored`, what is told in `view`.
//!
//! 1. What the own stack has said last is kept: every packet made here says that, with another number or window.
//! 2. Order of the marks on an ACK: holes are counted, then the timestamp (`undo`), then the number (`reserve`), which
//!    is exact while a hole is open or its closing is still to be believed.
//! 3. Upward (§3.5) all is the same with the ends changed: the far end's ACKs are marked on their way into the own
//!    stack, which is the sender. Its own timestamps come back in them, so that the gate judges by the round trip
//!    (`upward`); and a kick waits until the link is back, for it would be spent in the dark.
//! 4. Without timestamps there is no undo; without the SYN seen, windows count as shifted by the most there is, which
//!    replaces fewer ACKs and breaks nothing.

mod early_ack;
mod eligibility;
mod outage;
mod status;

use super::{Mechanism, Mechanisms};
use crate::accel::ack_offload::ack_path::Detour;
use crate::accel::ack_offload::ack_sender::Fate;
use crate::accel::early_ack::flow_state::Hiding;
use crate::accel::early_ack::latency_guard::Filling;
use crate::accel::eifel_undo::{Shown, Undo};
use crate::accel::observation::congestion_response::{Moment, Sender};
use crate::accel::observation::goodput::Pace;
use crate::accel::observation::loss_classifier::Gate;
use crate::accel::observation::path_test::Trust;
use crate::accel::observation::rtt::Trip;
use crate::accel::observation::sack_holes::Holes;
use crate::accel::observation::tsval_check::Bounds;
use crate::accel::observation::upload::Upward;
use crate::accel::outage::recovery::Handler;
use crate::accel::withheld_ack::{self, Reserve};
use crate::accel::zero_window::Thaw;
use crate::units::{DataSize, Instant};
use crate::wire::packet::{
    Ack, Flags, FourTuple as Key, IpParams, Rewrite, Segment, TcpOption, TcpTimestamp, Timestamps,
};

/// Where a flow's data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To here: the own stack acknowledges.
    Down,
    /// From here: the far end acknowledges.
    Up,
}

/// What losses on a flow's path are, as far as is known ([`Trust`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    Unknown,
    /// They do not depend on the rate.
    Trusted,
    /// The losses of the path follow the sending rate.
    Refused,
    /// The path marks packets (ECN CE) instead of dropping them.
    Marked,
}

/// A flow that is known.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    key: Key,
    way: Way,
    opened: Instant,
    heard: Instant,
    scale: Option<u8>,
    /// Its SYN offers SACK and is not answered otherwise, or was not seen.
    has_sack: bool,
    /// Its ends speak MPTCP, as far as is known.
    is_multipath: bool,
    segment: u32,
    last: Option<(Ack, IpParams)>,
    /// What is missing, as the own stack says it.
    missing: Holes,
    /// The same, less what is hidden from the other end.
    holes: Holes,
    /// Of timestamps that pass.
    bounds: Bounds,
    gate: Gate,
    undo: Undo,
    /// The older timestamp that the last ACK echoed.
    echoed: Option<TcpTimestamp>,
    sender: Sender,
    reserve: Reserve,
    handler: Handler,
    hiding: Option<Hiding>,
    filling: Filling,
    /// What was on its way when the link went dark, at the most.
    flight: DataSize,
    /// Its sender may have had something to repeat then.
    is_waiting: bool,
    /// The own end has closed, and no data has come since.
    has_closed: bool,
    pace: Pace,
    trip: Trip,
    upward: Upward,
    detour: Detour,
    is_frozen: bool,
    /// The same, and its flight was acknowledged.
    is_stilled: bool,
    thaw: Thaw,
    path: Path,
    /// When the last loss showed that counts, and whether its reduction may be undone.
    lost: Option<Instant>,
    may_undo: bool,
    /// A packet with a CE mark has come.
    has_mark: bool,
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
    /// The other end speaks plain TCP after all: of MPTCP there are no pure ACKs.
    pub(super) is_plain_now: bool,
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
            is_multipath: false,
            segment: USUAL_SEGMENT,
            last: None,
            missing: Holes::default(),
            holes: Holes::default(),
            bounds: Bounds::default(),
            gate: Gate::default(),
            undo: Undo::default(),
            echoed: None,
            sender: Sender::default(),
            reserve: Reserve::default(),
            handler: Handler::default(),
            hiding: None,
            filling: Filling::default(),
            flight: DataSize::ZERO,
            is_waiting: false,
            has_closed: false,
            pace: Pace::default(),
            trip: Trip::default(),
            upward: Upward::default(),
            detour: Detour::default(),
            is_frozen: false,
            is_stilled: false,
            thaw: Thaw::default(),
            path: Path::Unknown,
            lost: None,
            may_undo: false,
            has_mark: false,
            counts: Counts::default(),
        }
    }

    /// Its own SYN leaves.
    pub(super) fn on_syn(&mut self, now: Instant, syn: &Segment<'_>) {
        self.heard = now;
        if self.way == Way::Down {
            self.trip.on_syn(now);
        }
        // Without the option windows are not shifted (RFC 7323 §2.2).
        self.scale = Some(0);
        self.has_sack = false;
        for option in syn.options() {
            match option {
                TcpOption::WindowScale(shift) => self.scale = Some(shift),
                TcpOption::SackPermitted => self.has_sack = true,
                TcpOption::Mss(most) => self.segment = u32::from(most).saturating_sub(TIMESTAMPS).max(1),
                TcpOption::Other { kind: TcpOption::MPTCP, .. } => self.is_multipath = true,
                _ => {}
            }
        }
    }

    /// The other end answers its SYN: what one end does not offer is not used.
    pub(super) fn on_accepted(&mut self, answer: &Segment<'_>) {
        if self.has_begun() {
            return;
        }
        let has = |meant: fn(&TcpOption<'_>) -> bool| answer.options().any(|option| meant(&option));
        self.has_sack &= has(|option| matches!(option, TcpOption::SackPermitted));
        if !has(|option| matches!(option, TcpOption::WindowScale(_))) {
            self.scale = Some(0);
        }
    }

    /// Whether an acknowledgement was seen: its handshake is over.
    pub(super) const fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// Whether it is, as far as is known, a part of an MPTCP connection: what that carries has numbers of its own, which nobody
    /// here knows.
    pub(super) const fn is_multipath(&self) -> bool {
        self.is_multipath
    }

    /// Its own data, or the end of it, leaves. `packet` becomes what is to leave.
    pub(super) fn on_other(&mut self, now: Instant, packet: &mut [u8], may: &May<'_>) {
        self.heard = now;
        self.trip.on_open(now);
        let Ok(segment) = Segment::parse(packet) else { return };
        self.has_closed |= self.way == Way::Down && segment.flags().contains(Flags::FIN);
        if let Some(hiding) = &mut self.hiding {
            hiding.on_asked(&segment, u32::try_from(segment.payload().len()).unwrap_or(u32::MAX));
        }
        let Some(ack) = said(&segment) else { return };
        self.on_echo(now, &ack);
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
        (ack, envelope): (Ack, IpParams),
        may: &May<'_>,
        trust: &mut Trust,
    ) -> News {
        let mechanisms = may.mechanisms;
        self.on_echo(now, &ack);
        let high = self.missing.high();
        let is_lost = self.missing.on_ack(now, &ack, self.segment) > 0;
        // Upward the ACK itself tells how long packets wait.
        if is_lost && self.way == Way::Down {
            self.on_loss(now);
        }
        let (ack, is_held) = self.hide(now, packet, ack, false, may);
        let before = self.last.replace((ack, envelope)).map(|(ack, _)| ack);
        let advance = before.map_or(0, |before| u32::try_from(ack.ack.offset_from(before.ack)).unwrap_or(0));
        self.heard = now;
        self.counts.acks += 1;
        self.pace.on_bytes(now, advance);
        // A FIN takes one number.
        self.has_closed &= advance <= 1;
        if let Some(stamps) = ack.timestamps {
            match self.way {
                Way::Down => self.trip.on_leaving(now, stamps.ts_val, may.is_watched),
                Way::Up => {
                    let trip = self.upward.on_echo(now, stamps.ts_ecr, self.gate.clock().tick());
                    trip.into_iter().for_each(|trip| self.trip.on_measure(trip));
                }
            }
            let fresh =
                before.and_then(|before| before.timestamps).is_none_or(|old| old.ts_ecr.is_before(stamps.ts_ecr));
            if fresh && !may.is_watched {
                self.gate.on_stamp(now, stamps.ts_ecr, self.trip.least());
            }
        }
        let came = high.zip(self.missing.high()).map_or(0, |(old, new)| new.offset_from(old));
        self.gate.on_bytes(now, u32::try_from(came).unwrap_or(0));
        let new = self.holes.on_ack(now, &ack, self.segment);
        if self.way == Way::Up {
            let (bytes, stamp) = self.upward.on_high(self.holes.high().unwrap_or(ack.ack));
            stamp.into_iter().for_each(|stamp| self.gate.on_stamp(now, stamp, self.trip.least()));
            self.sender.on_arrival(bytes as usize, self.gate.queue(now));
            if is_lost {
                self.on_loss(now);
            }
        }
        let may_undo = self.weigh(now, is_lost, u32::try_from(came).unwrap_or(0), &ack, trust);
        let is_random = new > 0 && may_undo && self.is_worth_undoing(now) && self.is_random(now);
        let moment = Moment {
            is_congestion: new > 0 && !is_random,
            rtt: self.trip.least(),
            plain: if new > 0 { self.plain(self.holes.count()) } else { None },
        };
        let is_helped = self.sender.is_helped(now, &moment);
        let echo = ack.timestamps.filter(|_| mechanisms.has(Mechanism::Undo)).and_then(|stamps| {
            let shown = Shown {
                new,
                ack: ack.ack,
                high: self.holes.high().unwrap_or(ack.ack),
                is_open: self.holes.is_open(),
                is_long: self.holes.is_long(),
                echo: stamps.ts_ecr,
                is_random: is_random && is_helped,
                rtt: self.trip.assumed(),
            };
            self.undo.on_ack(now, &shown)
        });
        self.echoed = echo;
        // Without SACK a repair that one byte less acknowledges is taken for a loss of what has come (RFC 6582 §3.2), and a
        // duplicate is all that tells of a hole.
        let is_plain =
            self.has_sack && advance > 0 && ack.sack_blocks.is_empty() && !self.undo.is_armed() && !self.is_frozen;
        let keep = mechanisms.has(Mechanism::Reserve) && is_plain && self.may_keep_byte(now);
        let patience = if self.way == Way::Down { withheld_ack::PATIENCE } else { withheld_ack::UPWARD };
        // What does not leave says nothing.
        let says = if is_held { ack.ack } else { self.reserve.on_ack(now, ack.ack, keep.then_some(patience)) };
        if let Ok(mut rewrite) = Rewrite::of(packet) {
            if says != ack.ack {
                rewrite.set_ack(says);
            }
            if let (Some(echo), Some(stamps)) = (echo, ack.timestamps)
                && echo != stamps.ts_ecr
            {
                rewrite.set_ts_ecr(echo);
            }
        }
        let has_data = advance > 0 || new > 0 || before.is_some_and(|before| before.sack_blocks != ack.sack_blocks);
        if has_data {
            self.handler.on_data(now);
        }
        let has_holes = new > 0 || self.hiding.as_ref().is_some_and(Hiding::is_busy);
        let is_plain_now = core::mem::take(&mut self.is_multipath);
        News { has_data, has_holes, is_held, is_plain_now }
    }

    /// A packet of the own stack leaves, or has left: of an upload it is the sender's.
    pub(super) fn on_own(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        if self.way == Way::Up {
            self.upward.on_own(now, segment, length, self.gate.clock().tick());
        }
    }

    /// A packet of the other end came.
    pub(super) fn on_arrival(&mut self, now: Instant, segment: &Segment<'_>, length: u32) {
        let finest = self.gate.clock().finest();
        let may_be = |stamps: Timestamps| self.bounds.allow(now, stamps.ts_val, finest);
        if self.way == Way::Up || !segment.timestamps().is_none_or(may_be) {
            return;
        }
        if let Some(hiding) = &mut self.hiding {
            hiding.on_arrival(now, segment, length);
        }
        if let Some(stamps) = segment.timestamps() {
            self.gate.on_stamp(now, stamps.ts_val, self.trip.least());
            self.trip.on_echo(now, stamps.ts_ecr);
            self.detour.on_echo(now, stamps.ts_ecr, self.gate.queue(now));
        }
        self.has_mark |= segment.packet().ip_params().traffic_class & CONGESTED == CONGESTED;
        if length > 0 {
            self.thaw.on_data();
        }
        self.sender.on_arrival(segment.payload_length(), self.gate.queue(now));
    }

    /// The own stack has said this.
    fn on_echo(&mut self, now: Instant, ack: &Ack) {
        if let Some(stamps) = ack.timestamps.filter(|_| self.way == Way::Down) {
            self.bounds.on_echo(now, stamps.ts_ecr);
        }
    }

    /// Holes show for the first time.
    fn on_loss(&mut self, now: Instant) {
        self.gate.on_loss(now);
        if self.missing.are_dense(self.segment) {
            self.gate.on_burst(now);
        }
    }

    /// What an acknowledgement shows of its path: `came` bytes more, perhaps behind a loss. Whether reductions may be undone.
    fn weigh(&mut self, now: Instant, is_lost: bool, came: u32, ack: &Ack, trust: &mut Trust) -> bool {
        // With CWR or AE it is a counter (RFC 9768).
        let is_echoed = ack.flags.contains(Flags::ECE) && !ack.flags.has_any(Flags::CWR | Flags::AE);
        if core::mem::take(&mut self.has_mark) || is_echoed {
            trust.on_mark(now);
        }
        let is_empty = self.gate.is_empty(now);
        self.gate.queue(now).into_iter().for_each(|waited| trust.on_wait(now, waited, self.trip.least()));
        if is_empty {
            trust.on_bytes(now, came);
        }
        if is_lost && self.missing.are_dense(self.segment) {
            trust.on_burst(now);
        }
        if is_lost && self.lost.is_none_or(|last| now.since(last) >= self.trip.least()) {
            self.lost = Some(now);
            self.may_undo = if is_empty { trust.on_loss(now, self.trip.least()) } else { trust.is_trusted(now) };
        }
        self.path = match () {
            () if trust.is_marked(now) => Path::Marked,
            () if trust.is_refused() => Path::Refused,
            () if trust.may_undo(now) => Path::Trusted,
            () => Path::Unknown,
        };
        self.may_undo && self.path == Path::Trusted
    }

    /// Whether what is lost now is lost at random.
    fn is_random(&self, now: Instant) -> bool {
        self.gate.is_random(now, self.trip.least()) && !self.missing.are_dense(self.segment)
    }
}

/// What a segment acknowledges, whatever it carries.
fn said(segment: &Segment<'_>) -> Option<Ack> {
    let (seq, flags, window) = (segment.seq(), segment.flags(), segment.window());
    let (timestamps, sacks) = (segment.timestamps(), segment.sack_blocks());
    segment.ack().map(|ack| Ack { seq, ack, window, flags, timestamps, sack_blocks: sacks })
}

/// The CE codepoint (RFC 3168 section 5).
const CONGESTED: u8 = 0b11;
/// An Ethernet's with timestamps.
const USUAL_SEGMENT: u32 = 1448;
/// What the option takes of each segment (RFC 7323 appendix A).
const TIMESTAMPS: u32 = 12;
