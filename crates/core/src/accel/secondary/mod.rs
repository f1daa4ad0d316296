//! The links that help, each with what waits for it.
//!
//! In: ACKs that may go elsewhere, answers of gateways, the time. Out: ACKs over the link whose part they are, or over
//! another one that has room; questions.
//!
//! 1. Parts are [`Roles`]', where the links' rates were told; else the order in which they were named. How long a link's way is
//!    shows when its gateway answers first.
//! 2. Links take their turn: the second one is asked for only when the first has no room for [`LONG`], so that a radio
//!    that is not needed sleeps.
//! 3. A flow waits at one link at a time: a newer ACK takes the older one's place where that is.
//! 4. What waited for a link that died leaves over the primary one.

pub(super) mod link_probe;
mod roles;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::config::{Config, Helper};
use super::event::{Bytes, Output};
use crate::accel::ack_offload::ack_sender::{Fate, Offloader, STRETCH};
use crate::accel::early_ack::fetch::Road;
use crate::accel::fast_fetch::pool::Over;
use crate::accel::secondary::link_probe::Interface;
use crate::accel::secondary::roles::{Roles, Traits};
use crate::accel::status::LinkView;
use crate::accel::zero_window::Frost;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};
use crate::wire::packet::{Ack, AddrPair, FourTuple as Key};

/// All of them.
#[derive(Debug)]
pub(super) struct Helpers {
    /// In the order in which ACKs are offered to them.
    lanes: Vec<Lane>,
    freeze: Option<LinkId>,
    /// Over which bytes are fetched, in this order.
    mirror: Vec<LinkId>,
}

#[derive(Debug)]
struct Lane {
    interface: Interface,
    offloader: Offloader,
}

impl Helpers {
    /// Those that were told of.
    pub(super) fn new(config: &Config) -> Self {
        let lane = |terms: &Helper| Lane { interface: Interface::new(*terms), offloader: Offloader::default() };
        let named: Vec<LinkId> = config.helpers.iter().map(|helper| helper.link).collect();
        let lanes = config.helpers.iter().map(lane).collect();
        let mut helpers = Self { lanes, freeze: named.first().copied(), mirror: named };
        helpers.assign();
        helpers
    }

    /// Gives each its part.
    fn assign(&mut self) {
        let traits = self.lanes.iter().map(|Lane { interface, .. }| {
            let terms = interface.terms();
            let rtt = interface.rtt().unwrap_or(USUAL);
            Some(Traits { link: terms.link, down: terms.down?, up: terms.up?, rtt })
        });
        let Some(traits) = traits.collect::<Option<Vec<_>>>() else { return };
        let roles = Roles::of(&traits);
        self.lanes.sort_by_key(|lane| roles.acks.iter().position(|link| *link == lane.interface.link()));
        self.freeze = roles.freeze.first().copied();
        self.mirror = roles.mirror;
    }

    /// Whether ACKs of this flow can go over this link.
    pub(super) fn carries(&self, link: LinkId, flow: &Key) -> bool {
        self.lanes.iter().any(|lane| lane.interface.link() == link && lane.carries(flow))
    }

    /// Over which one senders are frozen, and what it carries from here.
    pub(super) fn freeze(&self, now: Instant) -> Option<(LinkId, Bitrate)> {
        let link = self.freeze?;
        let lane = self.lanes.iter().find(|lane| lane.interface.link() == link && !lane.interface.is_dark(now))?;
        Some((link, lane.up()))
    }

    /// Over which link a connection of the machine's own goes, and how often an ACK of it.
    pub(super) fn replay(&self, now: Instant) -> Option<Over> {
        let link = self.roads(now).find(|road| !road.is_dark)?.link;
        let lane = self.lanes.iter().find(|lane| lane.interface.link() == link)?;
        let beat = DataSize::from_bytes(REPLAYED) / lane.up().share(EACH);
        Some(Over { link, beat: beat.clamp(QUICKEST, SLOWEST) })
    }

    /// Books a packet of such a connection.
    pub(super) fn on_sent(&mut self, now: Instant, link: LinkId, length: usize) {
        let lane = self.lanes.iter_mut().find(|lane| lane.interface.link() == link);
        lane.into_iter().for_each(|lane| lane.interface.spend(now, length));
    }

    /// One has brought something.
    pub(super) fn on_traffic(&mut self, now: Instant, link: LinkId) {
        let lane = self.lanes.iter_mut().find(|lane| lane.interface.link() == link);
        lane.into_iter().for_each(|lane| lane.interface.on_traffic(now));
    }

    /// Books what was sent to freeze a flow; what may be sent for the others.
    pub(super) fn spend<'a>(
        &mut self,
        now: Instant,
        frost: Frost,
        sent: impl Iterator<Item = &'a Output>,
    ) -> Frost {
        let mut spent = frost.spent;
        for output in sent {
            if let Output::Send { link, packet } = output
                && *link == frost.link
            {
                self.on_sent(now, *link, packet.0.len());
                spent += 1;
            }
        }
        Frost { spent, ..frost }
    }

    /// An ACK that may go over one of them. It is given back if none can take it.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        flow: Key,
        (ack, packet): (Ack, Vec<u8>),
        scale: u8,
        outputs: &mut VecDeque<Output>,
    ) -> Result<Fate, Vec<u8>> {
        let Some(at) = self.choose(now, &flow, packet.len()) else { return Err(packet) };
        let Some(lane) = self.lanes.get_mut(at) else { return Err(packet) };
        let fate = lane.offloader.offer(now, &mut lane.interface, flow, (ack, packet), scale, outputs);
        lane.offloader.flush(now, &mut lane.interface, outputs);
        Ok(fate)
    }

    /// As published: over the first that has room now; given back if none has.
    pub(super) fn spill(
        &mut self,
        now: Instant,
        flow: &Key,
        packet: Vec<u8>,
        outputs: &mut VecDeque<Output>,
    ) -> Option<Vec<u8>> {
        match self.choose(now, flow, packet.len()).and_then(|at| self.lanes.get_mut(at)) {
            Some(lane) => Offloader::spill(now, &mut lane.interface, packet, outputs),
            None => Some(packet),
        }
    }

    /// ACKs of this flow will be offered soon: the first link that is not known to be dark is asked whether it is there. Whether it
    /// is.
    pub(super) fn prepare(&mut self, now: Instant, flow: &Key) -> bool {
        let is_fit = |lane: &&mut Lane| lane.carries(flow) && !lane.interface.is_dark(now);
        let Some(lane) = self.lanes.iter_mut().find(is_fit) else { return false };
        lane.interface.want(now);
        lane.interface.is_alive(now)
    }

    /// How fast this flow may be so that a helping link can bear enough of its ACKs; zero: none takes them.
    pub(super) fn fastest(&self, now: Instant, flow: &Key) -> Bitrate {
        let there = self.lanes.iter().filter(|lane| lane.carries(flow) && !lane.interface.is_dark(now));
        let most = there.map(|lane| lane.interface.hope()).max().unwrap_or(Bitrate::ZERO);
        Bitrate::from_bits_per_sec(most.bits_per_sec().saturating_mul(STRETCH))
    }

    /// Nothing of this flow waits any more. Whether something did.
    pub(super) fn withdraw(&mut self, flow: &Key) -> bool {
        self.lanes.iter_mut().filter_map(|lane| lane.offloader.withdraw(flow)).count() > 0
    }

    /// A gateway answers.
    pub(super) fn on_answer(&mut self, now: Instant, link: LinkId, sequence: u16) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.interface.link() == link) {
            let is_first = lane.interface.rtt().is_none();
            lane.interface.on_answer(now, sequence);
            if is_first {
                self.assign();
            }
        }
    }

    /// A carrier came or went.
    pub(super) fn on_carrier(&mut self, link: LinkId, is_up: bool) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.interface.link() == link) {
            lane.interface.on_carrier(is_up);
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        for Lane { interface, offloader } in &mut self.lanes {
            interface.tick(now, outputs);
            if interface.is_alive(now) {
                offloader.flush(now, interface, outputs);
            } else {
                let late = offloader.drain().into_iter().map(Bytes);
                outputs.extend(late.map(|packet| Output::Send { link: primary, packet }));
            }
        }
    }

    /// When a gateway is to be asked.
    pub(super) fn next_question(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.interface.deadline()).min()
    }

    /// When there is room for something that waits.
    pub(super) fn next_room(&self, now: Instant) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.offloader.deadline(now, &lane.interface)).min()
    }

    /// Bytes are to be fetched: the link whose part that is will be asked whether it is there.
    pub(super) fn want(&mut self, now: Instant) {
        let first = self.mirror.first().copied();
        let lane = self.lanes.iter_mut().find(|lane| Some(lane.interface.link()) == first);
        lane.into_iter().for_each(|lane| lane.interface.want(now));
    }

    /// Over which bytes are fetched, the best first.
    pub(super) fn roads(&self, now: Instant) -> impl Iterator<Item = Road> + '_ {
        let lane = |link: &LinkId| self.lanes.iter().find(|lane| lane.interface.link() == *link);
        self.mirror.iter().filter_map(lane).map(move |Lane { interface, .. }| Road {
            link: interface.link(),
            is_primary: false,
            is_dark: interface.is_dark(now),
            down: interface.terms().down,
            rtt: interface.rtt(),
            families: interface.terms().families,
        })
    }

    /// As they stand.
    pub(super) fn views(&self, now: Instant) -> impl Iterator<Item = LinkView> + '_ {
        self.lanes.iter().map(move |Lane { interface, .. }| LinkView {
            link: interface.link(),
            is_dark: interface.is_dark(now) && !interface.is_deaf(now),
            is_deaf: interface.is_deaf(now),
            blackouts: 0,
            dark: Duration::ZERO,
            rtt: interface.rtt(),
            up: Some(interface.allowance()),
            down: interface.terms().down,
            sent: interface.sent(),
            fetched: DataSize::ZERO,
        })
    }

    /// The lane for an ACK of this size: where its flow waits already, or the first with room soon, or the first.
    fn choose(&mut self, now: Instant, flow: &Key, size: usize) -> Option<usize> {
        let waits = |lane: &Lane| lane.offloader.holds(flow);
        if let Some(at) = self.lanes.iter().position(|lane| lane.interface.is_alive(now) && waits(lane)) {
            if let Some(lane) = self.lanes.get_mut(at) {
                lane.interface.want(now);
            }
            return Some(at);
        }
        let mut first = None;
        for (at, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.carries(flow)) {
            let interface = &mut lane.interface;
            interface.want(now);
            if !interface.is_alive(now) {
                continue;
            }
            if interface.room_at(now, size) <= now + LONG {
                return Some(at);
            }
            first = first.or(Some(at));
        }
        first
    }
}

impl Lane {
    /// Whether it leads to this flow's server.
    fn carries(&self, flow: &Key) -> bool {
        let families = self.interface.terms().families;
        match flow.addrs {
            AddrPair::V4(..) => families.has_v4(),
            AddrPair::V6(..) => families.has_v6(),
        }
    }

    /// What it carries from here. What was not told is found out by what is offloaded; before that it is usual.
    fn up(&self) -> Bitrate {
        let rate = self.interface.allowance();
        if self.interface.is_known() { rate } else { rate.max(UNKNOWN) }
    }
}

/// chosen: an ACK that waits no longer than that delays nothing that matters.
const LONG: Duration = Duration::from_millis(20);
/// Of a way up, for each of two replayed connections ([`crate::accel::fast_fetch::pool`]). chosen: the other half is for acknowledgements and
/// requests.
const EACH: Ratio = Ratio::from_percent(25);
/// Bytes of an ACK without options, over IPv6.
const REPLAYED: u64 = 60;
/// chosen: with sixteen segments each 45 Mbit/s; a timer's worth.
const QUICKEST: Duration = Duration::from_millis(4);
/// chosen: slower than that nothing can be caught up with.
const SLOWEST: Duration = Duration::from_millis(40);
/// chosen: once a blackout, so much of a burst is borne by any link of today.
const UNKNOWN: Bitrate = Bitrate::from_bits_per_sec(300_000);
/// Of a link whose round trip is not known yet.
const USUAL: Duration = Duration::from_millis(100);
