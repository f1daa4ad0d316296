//! All replayed connections: which flow has one, and over which link.
//!
//! In: how far mirrored flows have come, what they miss, packets of the connections. Out ([`Replays::drain`]): ports that are
//! asked for ([`Output::Call`]), packets for helping links, bytes, and what is to be got otherwise.
//!
//! 1. One connection for each flow, [`MOST`] at the same time. It begins while it can still come up with the flow, and
//!    ends when the flow is too far ahead, has all of its resource, or its link brings nothing.
//! 2. After [`FAILURES`] a flow has none any more.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::conn::{End, Replay};
use crate::accel::early_ack::fetch::{Got, Want};
use crate::accel::early_ack::http_map::{Place, Resource};
use crate::accel::event::{Bytes, Output};
use crate::accel::status::ReplayView;
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Instant};
use crate::wire::packet::{FourTuple as Key, Segment, Seq};

/// Which connection of the machine's own: counted from one, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u64);

/// All of them.
#[derive(Debug, Default)]
pub(in crate::accel) struct Replays {
    /// By the number of their flow.
    slots: BTreeMap<u64, Slot>,
    tales: BTreeMap<u64, Tale>,
    last: u64,
    outputs: Vec<Output>,
    back: Vec<Want>,
    fetched: BTreeMap<LinkId, DataSize>,
}

#[derive(Debug)]
struct Slot {
    call: CallId,
    over: Over,
    server: SocketAddr,
    resource: Arc<Resource>,
    /// How far the flow has come.
    follow: u64,
    /// None: there is no port yet.
    replay: Option<Replay>,
    /// Why it is over, without a connection.
    end: Option<End>,
}

/// What is kept of a flow's connections.
#[derive(Debug, Default)]
struct Tale {
    failures: u32,
    filled: u64,
    bytes: u64,
    came: DataSize,
    passed: u64,
    end: Option<End>,
}

/// What a connection goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) struct Over {
    /// Which link.
    pub(in crate::accel) link: LinkId,
    /// How often it takes an ACK.
    pub(in crate::accel) beat: Duration,
}

impl Replays {
    /// A flow has come to this place of its resource; `over`: where a connection may go, if it may. Whether it has one.
    pub(in crate::accel) fn follow(
        &mut self,
        now: Instant,
        flow: u64,
        place: &Place,
        server: SocketAddr,
        over: Option<Over>,
    ) -> bool {
        if let Some(slot) = self.slots.get_mut(&flow) {
            if over.is_none_or(|over| over.link != slot.over.link) {
                slot.give_up(End::NoWay);
            } else if slot.resource != place.resource {
                slot.give_up(End::Done);
            } else {
                slot.follow(now, place.offset);
            }
            return true;
        }
        let Some(over) = over else { return false };
        let failed = self.tales.get(&flow).map_or(0, |tale| tale.failures);
        let is_in_time = Replay::is_in_time(place.offset, over.beat);
        if !is_in_time || failed >= FAILURES || self.slots.len() >= MOST {
            return false;
        }
        self.last += 1;
        let (call, resource) = (CallId(self.last), Arc::clone(&place.resource));
        self.outputs.push(Output::Call { call, link: over.link, server });
        let slot = Slot { call, over, server, resource, follow: place.offset, replay: None, end: None };
        self.slots.insert(flow, slot);
        true
    }

    /// A flow is at no place of a resource.
    pub(in crate::accel) fn rest(&mut self, flow: u64) {
        self.slots.get_mut(&flow).into_iter().for_each(|slot| slot.give_up(End::Done));
    }

    /// A port is there for a connection, and a number to begin with; or there is none.
    pub(in crate::accel) fn on_called(
        &mut self,
        now: Instant,
        call: CallId,
        local: Option<SocketAddr>,
        number: u32,
    ) {
        let Some(slot) = self.slots.values_mut().find(|slot| slot.call == call && slot.replay.is_none()) else {
            return;
        };
        let key = local.and_then(|local| Key::new(local, slot.server));
        let Some(key) = key.filter(|_| slot.end.is_none()) else { return slot.give_up(End::NoWay) };
        let mut replay = Replay::new(now, key, Seq::new(number), Arc::clone(&slot.resource), slot.over.beat);
        replay.follow(now, slot.follow);
        slot.replay = Some(replay);
    }

    /// Bytes are missed; given back if they are to be got otherwise.
    pub(in crate::accel) fn want(&mut self, now: Instant, want: Want) -> Result<(), Want> {
        match self.slots.get_mut(&want.flow).and_then(|slot| slot.replay.as_mut()) {
            Some(replay) => replay.want(now, want),
            None => Err(want),
        }
    }

    /// A packet has come for a connection. Over which link, if it is the server's.
    pub(in crate::accel) fn on_packet(
        &mut self,
        now: Instant,
        call: CallId,
        segment: &Segment<'_>,
    ) -> Option<LinkId> {
        let (flow, slot) = self.slots.iter_mut().find(|(_, slot)| slot.call == call)?;
        let replay = slot.replay.as_mut().filter(|replay| *replay.key() == segment.four_tuple().reversed())?;
        let length = DataSize::from_bytes(segment.packet().bytes().len() as u64);
        self.tales.entry(*flow).or_default().came += length;
        *self.fetched.entry(slot.over.link).or_default() += length;
        replay.on_packet(now, segment).then_some(slot.over.link)
    }

    /// Time has passed.
    pub(in crate::accel) fn tick(&mut self, now: Instant) {
        self.slots.values_mut().filter_map(|slot| slot.replay.as_mut()).for_each(|replay| replay.tick(now));
    }

    /// When to tick next.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        self.slots.values().filter_map(|slot| slot.replay.as_ref()?.deadline()).min()
    }

    /// A flow is gone: nothing of it is wanted any more.
    pub(in crate::accel) fn forget(&mut self, flow: u64) {
        if let Some(mut slot) = self.slots.remove(&flow) {
            slot.give_up(End::Done);
            self.close(&mut slot);
            self.back.retain(|want| want.flow != flow);
        }
        self.tales.remove(&flow);
    }

    /// How many bytes a flow's connection takes now.
    pub(in crate::accel) fn room(&self, flow: u64) -> u64 {
        self.slots.get(&flow).and_then(|slot| slot.replay.as_ref()).map_or(0, Replay::room)
    }

    /// Bytes that are wanted of connections and have not come.
    pub(in crate::accel) fn waiting(&self) -> u64 {
        self.slots.values().filter_map(|slot| slot.replay.as_ref()).map(Replay::waiting).sum()
    }

    /// What came over a link, wanted or not.
    pub(in crate::accel) fn fetched_over(&self, link: LinkId) -> DataSize {
        self.fetched.get(&link).copied().unwrap_or(DataSize::ZERO)
    }

    /// A flow's connections, if it had any.
    pub(in crate::accel) fn view(&self, flow: u64) -> Option<ReplayView> {
        let slot = self.slots.get(&flow);
        let tale = self.tales.get(&flow);
        if slot.is_none() && tale.is_none() {
            return None;
        }
        let none = Tale::default();
        let tale = tale.unwrap_or(&none);
        let passed = slot.and_then(|slot| slot.replay.as_ref()).map_or(0, Replay::passed);
        Some(ReplayView {
            is_on: slot.is_some(),
            filled: tale.filled,
            got: DataSize::from_bytes(tale.bytes),
            came: tale.came,
            passed: DataSize::from_bytes(tale.passed + passed),
            failure: tale.end.filter(|end| slot.is_none() && *end != End::Done).map(|end| end.why().into()),
        })
    }

    /// What is to be done, what has come, and what is to be got otherwise.
    pub(in crate::accel) fn drain(&mut self) -> (Vec<Output>, Vec<Got>, Vec<Want>) {
        let mut got = Vec::new();
        let flows: Vec<u64> = self.slots.keys().copied().collect();
        for flow in flows {
            let Some(mut slot) = self.slots.remove(&flow) else { continue };
            let came = self.close(&mut slot);
            let tale = self.tales.entry(flow).or_default();
            tale.filled += came.len() as u64;
            tale.bytes += came.iter().map(|got| got.bytes.len() as u64).sum::<u64>();
            got.extend(came);
            match slot.end() {
                None => {
                    self.slots.insert(flow, slot);
                }
                Some(end) => {
                    tale.end = Some(end);
                    tale.failures += u32::from(end != End::Done);
                    tale.passed += slot.replay.as_ref().map_or(0, Replay::passed);
                }
            }
        }
        (core::mem::take(&mut self.outputs), got, core::mem::take(&mut self.back))
    }

    /// Takes what a connection has for others; what has come of it.
    fn close(&mut self, slot: &mut Slot) -> Vec<Got> {
        let out = slot.replay.as_mut().map(Replay::drain).unwrap_or_default();
        let link = slot.over.link;
        self.outputs.extend(out.packets.into_iter().map(|packet| Output::Send { link, packet: Bytes(packet) }));
        self.back.extend(out.back);
        if slot.end().is_some() {
            self.outputs.push(Output::HangUp(slot.call));
        }
        out.got
    }
}

impl Slot {
    fn follow(&mut self, now: Instant, offset: u64) {
        self.follow = self.follow.max(offset);
        self.replay.iter_mut().for_each(|replay| replay.follow(now, offset));
    }

    fn give_up(&mut self, end: End) {
        match &mut self.replay {
            Some(replay) => replay.give_up(end),
            None => self.end = self.end.or(Some(end)),
        }
    }

    fn end(&self) -> Option<End> {
        self.end.or(self.replay.as_ref().and_then(Replay::end))
    }
}

/// chosen: each is an attack on the thin link that it goes over; two are what it bears.
const MOST: usize = 2;
/// chosen: one that was lost to chance is tried again.
const FAILURES: u32 = 2;
