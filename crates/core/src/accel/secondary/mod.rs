//! The secondary links, each with the ACKs that wait for it.
//!
//! 1. Tasks are assigned by [`Roles`] where the rates of all links were configured; otherwise in the order in which the
//!    links are named. The round trip of a link is known when its gateway first replies.
//! 2. Links are used one after another: the next one only when the first has no capacity soon, so
//!    that a radio that is not needed sleeps.
//! 3. The ACK of a flow waits at one link at a time: a newer one replaces it there.
//! 4. ACKs that wait for a link that goes down leave over the primary link.

pub(super) mod ack_sender;
pub(super) mod link;
pub(super) mod link_probe;
pub(super) mod options;
mod roles;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::event::{Output, PacketBytes};
use crate::accel::secondary::ack_sender::{AckSender, DATA_PER_ACK_BYTE, QueueResult};
use crate::accel::secondary::link::{ConnLink, LinkInfo, SecondaryLink};
use crate::accel::secondary::link_probe::LinkProber;
use crate::accel::secondary::options::SecondaryLinkOptions;
use crate::accel::secondary::roles::{LinkCharacteristics, Roles};
use crate::accel::status::LinkStatus;
use crate::accel::zero_window::FreezeParams;
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};
use crate::wire::packet::{Ack, AddrPair, FourTuple as Key};

#[derive(Debug)]
pub(super) struct SecondaryLinks {
    options: &'static SecondaryLinkOptions,
    /// In the order in which ACKs are offered to them.
    links: Vec<ManagedLink>,
    freeze_link: Option<LinkId>,
    /// For fetched bytes, in this order.
    fetch_order: Vec<LinkId>,
}

#[derive(Debug)]
struct ManagedLink {
    prober: LinkProber,
    ack_sender: AckSender,
}

impl SecondaryLinks {
    pub(super) fn new(options: &'static SecondaryLinkOptions, configured: &[SecondaryLink]) -> Self {
        let link_state = |link: &SecondaryLink| ManagedLink {
            prober: LinkProber::new(options, *link),
            ack_sender: AckSender::default(),
        };
        let named: Vec<LinkId> = configured.iter().map(|secondary| secondary.link).collect();
        let links = configured.iter().map(link_state).collect();
        let mut links = Self { options, links, freeze_link: named.first().copied(), fetch_order: named };
        links.assign_roles();
        links
    }

    /// Assigns the tasks.
    fn assign_roles(&mut self) {
        let characteristics = self.links.iter().map(|ManagedLink { prober: interface, .. }| {
            let config = interface.link();
            let rtt = interface.rtt().unwrap_or(DEFAULT_RTT);
            Some(LinkCharacteristics { link: config.link, down: config.down?, up: config.up?, rtt })
        });
        let Some(characteristics) = characteristics.collect::<Option<Vec<_>>>() else { return };
        let roles = Roles::of(&characteristics);
        self.links
            .sort_by_key(|link_state| roles.acks.iter().position(|link| *link == link_state.prober.link_id()));
        self.freeze_link = roles.freeze.first().copied();
        self.fetch_order = roles.fetch;
    }

    /// Whether ACKs of this flow can leave over this link.
    pub(super) fn carries(&self, link: LinkId, flow: &Key) -> bool {
        self.link(link).is_some_and(|link_state| link_state.carries(flow))
    }

    /// The link over which senders are frozen, and its rate.
    pub(super) fn freeze_link(&self, now: Instant) -> Option<(LinkId, Bitrate)> {
        let link = self.freeze_link?;
        let link_state = self.link(link).filter(|link_state| !link_state.prober.is_down(now))?;
        Some((link, link_state.send_rate(self.options)))
    }

    /// The link for a mirrored connection, and how often it may send an ACK.
    pub(super) fn mirrored_conn_link(&self, now: Instant) -> Option<ConnLink> {
        let link = self.fetch_links(now).find(|link| !link.is_down)?.link;
        let link_state = self.link(link)?;
        let beat = DataSize::from_bytes(CONN_ACK_SIZE)
            / link_state.send_rate(self.options).share(self.options.uplink_share);
        Some(ConnLink {
            link,
            ack_interval: beat.clamp(self.options.min_ack_interval, self.options.max_ack_interval),
        })
    }

    /// Accounts a packet of a mirrored connection.
    pub(super) fn on_sent(&mut self, now: Instant, link: LinkId, length: usize) {
        self.link_mut(link).into_iter().for_each(|link_state| link_state.prober.on_sent(now, length));
    }

    /// A link has delivered a packet of a mirrored connection.
    pub(super) fn on_traffic(&mut self, now: Instant, link: LinkId) {
        self.link_mut(link).into_iter().for_each(|link_state| link_state.prober.on_traffic(now));
    }

    /// Accounts the packets that froze a flow; returns the parameters for the other flows.
    pub(super) fn on_freeze_sent<'a>(
        &mut self,
        now: Instant,
        freeze: FreezeParams,
        sent: impl Iterator<Item = &'a Output>,
    ) -> FreezeParams {
        let mut spent = freeze.sent_acks;
        for output in sent {
            if let Output::Send { link, packet } = output
                && *link == freeze.link
            {
                self.on_sent(now, *link, packet.0.len());
                spent += 1;
            }
        }
        FreezeParams { sent_acks: spent, ..freeze }
    }

    /// Offers an ACK to the links. It is returned if none can take it.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        flow: Key,
        (ack, packet): (Ack, Vec<u8>),
        scale: u8,
        outputs: &mut VecDeque<Output>,
    ) -> Result<QueueResult, Vec<u8>> {
        let Some(at) = self.choose_link(now, &flow, packet.len()) else { return Err(packet) };
        let Some(link_state) = self.links.get_mut(at) else { return Err(packet) };
        let fate = link_state.ack_sender.offer(now, &mut link_state.prober, flow, (ack, packet), scale, outputs);
        link_state.ack_sender.flush(now, &mut link_state.prober, outputs);
        Ok(fate)
    }

    /// As published: the ACK leaves over the first link that has capacity now; returned if none has.
    pub(super) fn send_as_published(
        &mut self,
        now: Instant,
        flow: &Key,
        packet: Vec<u8>,
        outputs: &mut VecDeque<Output>,
    ) -> Option<Vec<u8>> {
        match self.choose_link(now, flow, packet.len()).and_then(|at| self.links.get_mut(at)) {
            Some(link_state) => AckSender::send_as_published(now, &mut link_state.prober, packet, outputs),
            None => Some(packet),
        }
    }

    /// ACKs of this flow will be offered soon: probes the first link that is not known to be down. Returns whether it
    /// replies.
    pub(super) fn prepare_offload(&mut self, now: Instant, flow: &Key) -> bool {
        let is_fit = |link_state: &&mut ManagedLink| link_state.carries(flow) && !link_state.prober.is_down(now);
        let Some(link_state) = self.links.iter_mut().find(is_fit) else { return false };
        link_state.prober.on_wanted(now);
        link_state.prober.is_alive(now)
    }

    /// How fast this flow may be so that a link can carry enough of its ACKs; zero: none takes them.
    pub(super) fn max_flow_rate(&self, now: Instant, flow: &Key) -> Bitrate {
        let link_states =
            self.links.iter().filter(|link_state| link_state.carries(flow) && !link_state.prober.is_down(now));
        let most = link_states.map(|link_state| link_state.prober.max_rate()).max().unwrap_or(Bitrate::ZERO);
        Bitrate::from_bits_per_sec(most.bits_per_sec().saturating_mul(DATA_PER_ACK_BYTE))
    }

    /// Removes the waiting ACK of this flow. Returns whether there was one.
    pub(super) fn withdraw(&mut self, flow: &Key) -> bool {
        self.links.iter_mut().filter_map(|link_state| link_state.ack_sender.withdraw(flow)).count() > 0
    }

    /// A gateway replies.
    pub(super) fn on_probe_reply(&mut self, now: Instant, link: LinkId, sequence: u16) {
        if let Some(link_state) = self.link_mut(link) {
            let is_first = link_state.prober.rtt().is_none();
            link_state.prober.on_probe_reply(now, sequence);
            if is_first {
                self.assign_roles();
            }
        }
    }

    /// A carrier was lost or returned.
    pub(super) fn on_carrier(&mut self, link: LinkId, is_up: bool) {
        if let Some(link_state) = self.link_mut(link) {
            link_state.prober.on_carrier(is_up);
        }
    }

    pub(super) fn tick(&mut self, now: Instant, primary: LinkId, outputs: &mut VecDeque<Output>) {
        for ManagedLink { prober: interface, ack_sender: offloader } in &mut self.links {
            interface.tick(now, outputs);
            if interface.is_alive(now) {
                offloader.flush(now, interface, outputs);
            } else {
                let drained = offloader.drain().into_iter().map(PacketBytes);
                outputs.extend(drained.map(|packet| Output::Send { link: primary, packet }));
            }
        }
    }

    /// When a gateway is to be probed.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        self.links.iter().filter_map(|link_state| link_state.prober.deadline()).min()
    }

    /// When a waiting ACK may leave.
    pub(super) fn next_send(&self, now: Instant) -> Option<Instant> {
        self.links.iter().filter_map(|link_state| link_state.ack_sender.deadline(now, &link_state.prober)).min()
    }

    /// Bytes are to be fetched: the link with that task will be probed.
    pub(super) fn on_fetch_wanted(&mut self, now: Instant) {
        let first = self.fetch_order.first().copied();
        let link_state = first.and_then(|link| self.link_mut(link));
        link_state.into_iter().for_each(|link_state| link_state.prober.on_wanted(now));
    }

    /// The links for fetched bytes, the best first.
    pub(super) fn fetch_links(&self, now: Instant) -> impl Iterator<Item = LinkInfo> + '_ {
        self.fetch_order.iter().filter_map(|link| self.link(*link)).map(
            move |ManagedLink { prober: interface, .. }| LinkInfo {
                link: interface.link_id(),
                is_primary: false,
                is_down: interface.is_down(now),
                receive_rate: interface.link().down,
                rtt: interface.rtt(),
                families: interface.link().families,
            },
        )
    }

    pub(super) fn statuses(&self, now: Instant) -> impl Iterator<Item = LinkStatus> + '_ {
        self.links.iter().map(move |ManagedLink { prober: interface, .. }| LinkStatus {
            link: interface.link_id(),
            is_down: interface.is_down(now) && !interface.is_unresponsive(now),
            is_unresponsive: interface.is_unresponsive(now),
            outages: 0,
            outage_time: Duration::ZERO,
            rtt: interface.rtt(),
            send_limit: Some(interface.allowance()),
            receive_rate: interface.link().down,
            sent: interface.sent(),
            fetched: DataSize::ZERO,
        })
    }

    fn link(&self, link: LinkId) -> Option<&ManagedLink> {
        self.links.iter().find(|link_state| link_state.prober.link_id() == link)
    }

    fn link_mut(&mut self, link: LinkId) -> Option<&mut ManagedLink> {
        self.links.iter_mut().find(|link_state| link_state.prober.link_id() == link)
    }

    /// The link for an ACK of this size: where its flow waits already, or the first with capacity soon, or the first.
    fn choose_link(&mut self, now: Instant, flow: &Key, size: usize) -> Option<usize> {
        let has_waiting = |link_state: &ManagedLink| link_state.ack_sender.has_waiting(flow);
        if let Some(at) =
            self.links.iter().position(|link_state| link_state.prober.is_alive(now) && has_waiting(link_state))
        {
            if let Some(link_state) = self.links.get_mut(at) {
                link_state.prober.on_wanted(now);
            }
            return Some(at);
        }
        let mut first = None;
        for (at, link_state) in self.links.iter_mut().enumerate().filter(|(_, link_state)| link_state.carries(flow))
        {
            let interface = &mut link_state.prober;
            interface.on_wanted(now);
            if !interface.is_alive(now) {
                continue;
            }
            if interface.can_send_at(now, size) <= now + MAX_ACK_WAIT {
                return Some(at);
            }
            first = first.or(Some(at));
        }
        first
    }
}

impl ManagedLink {
    /// Whether it reaches the server of this flow.
    fn carries(&self, flow: &Key) -> bool {
        let families = self.prober.link().families;
        match flow.addrs {
            AddrPair::V4(..) => families.has_v4(),
            AddrPair::V6(..) => families.has_v6(),
        }
    }

    /// The rate at which can be sent over it. Without a configured rate it is measured by offloading; before that a
    /// usual rate is assumed.
    fn send_rate(&self, options: &SecondaryLinkOptions) -> Bitrate {
        let rate = self.prober.allowance();
        if self.prober.is_known() { rate } else { rate.max(options.default_uplink_rate) }
    }
}

/// Bounds how long an ACK waits for a link while another one has capacity: this delays nothing that matters.
const MAX_ACK_WAIT: Duration = Duration::from_millis(20);
/// The round trip of a link until its gateway replies; only the order of three links depends on it.
const DEFAULT_RTT: Duration = Duration::from_millis(100);
/// Bytes of an ACK without options, over IPv6.
const CONN_ACK_SIZE: u64 = 60;
