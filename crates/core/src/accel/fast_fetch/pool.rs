//! The pool of mirrored connections: which flow has one, and over which link.
//!
//! 1. One connection for each flow, `max_conns` at a time. It begins while it can still catch up with the flow, and
//!    ends when the flow is too far ahead, has all of its resource, or the link delivers nothing.
//! 2. After [`MAX_FAILURES`] a flow has none any more.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::conn::{CloseReason, MirroredConn};
use crate::accel::early_ack::fetch::{FetchRequest, FetchedRange};
use crate::accel::early_ack::http_map::{Resource, ResourceOffset};
use crate::accel::event::{ConnId, Output, PacketBytes};
use crate::accel::fast_fetch::options::FastFetchOptions;
use crate::accel::secondary::link::ConnLink;
use crate::accel::status::MirroredConnStatus;
use crate::link::LinkId;
use crate::units::{DataSize, Instant};
use crate::wire::packet::{FourTuple as Key, Segment, Seq};

/// All mirrored connections.
#[derive(Debug, Default)]
pub(crate) struct MirroredConnPool {
    options: &'static FastFetchOptions,
    /// By the number of their flow.
    slots: BTreeMap<u64, Slot>,
    stats: BTreeMap<u64, ConnStats>,
    last_id: u64,
    outputs: Vec<Output>,
    returned: Vec<FetchRequest>,
    fetched: BTreeMap<LinkId, DataSize>,
}

#[derive(Debug)]
struct Slot {
    conn_id: ConnId,
    link: ConnLink,
    server: SocketAddr,
    resource: Arc<Resource>,
    /// How far the flow has come in the resource.
    flow_offset: u64,
    /// None: there is no port yet.
    conn: Option<MirroredConn>,
    /// Why it is over, without a connection.
    close_reason: Option<CloseReason>,
}

/// What is kept of a flow's connections.
#[derive(Debug, Default)]
struct ConnStats {
    failures: u32,
    filled: u64,
    bytes: u64,
    received: DataSize,
    skipped: u64,
    close_reason: Option<CloseReason>,
}

impl MirroredConnPool {
    /// With these options, and nothing observed yet.
    pub(crate) fn new(options: &'static FastFetchOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// A flow has come to this offset of its resource; `link`: where a connection may go, if it may. Returns whether
    /// the flow has one.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        flow: u64,
        source: &ResourceOffset,
        server: SocketAddr,
        link: Option<ConnLink>,
    ) -> bool {
        if let Some(slot) = self.slots.get_mut(&flow) {
            if link.is_none_or(|link| link.link != slot.link.link) {
                slot.give_up(CloseReason::LinkUnavailable);
            } else if slot.resource != source.resource {
                slot.give_up(CloseReason::Done);
            } else {
                slot.follow(now, source.offset);
            }
            return true;
        }
        let Some(link) = link else { return false };
        let failed = self.stats.get(&flow).map_or(0, |stats| stats.failures);
        let is_in_time = MirroredConn::can_catch_up(self.options, source.offset, link.ack_interval);
        if !is_in_time || failed >= MAX_FAILURES || self.slots.len() >= self.options.max_conns {
            return false;
        }
        self.last_id += 1;
        let (conn, resource) = (ConnId(self.last_id), Arc::clone(&source.resource));
        self.outputs.push(Output::ReservePort { conn, link: link.link, server });
        let slot = Slot {
            conn_id: conn,
            link,
            server,
            resource,
            flow_offset: source.offset,
            conn: None,
            close_reason: None,
        };
        self.slots.insert(flow, slot);
        true
    }

    /// A flow is at no known offset of a resource.
    pub(crate) fn close_conn(&mut self, flow: u64) {
        self.slots.get_mut(&flow).into_iter().for_each(|slot| slot.give_up(CloseReason::Done));
    }

    /// A port was reserved for a connection, with its initial sequence number; or it could not be.
    pub(crate) fn on_port_reserved(&mut self, now: Instant, conn: ConnId, local: Option<SocketAddr>, number: u32) {
        let Some(slot) = self.slots.values_mut().find(|slot| slot.conn_id == conn && slot.conn.is_none()) else {
            return;
        };
        let key = local.and_then(|local| Key::new(local, slot.server));
        let Some(key) = key.filter(|_| slot.close_reason.is_none()) else {
            return slot.give_up(CloseReason::LinkUnavailable);
        };
        let mut conn = MirroredConn::new(
            self.options,
            now,
            key,
            Seq::new(number),
            Arc::clone(&slot.resource),
            slot.link.ack_interval,
        );
        conn.follow(now, slot.flow_offset);
        slot.conn = Some(conn);
    }

    /// Bytes are missing; returned if they are to be fetched otherwise.
    pub(crate) fn request(&mut self, now: Instant, request: FetchRequest) -> Result<(), FetchRequest> {
        match self.slots.get_mut(&request.flow).and_then(|slot| slot.conn.as_mut()) {
            Some(conn) => conn.request(now, request),
            None => Err(request),
        }
    }

    /// A packet came for a connection. Returns the link if it is the server's.
    pub(crate) fn on_packet(&mut self, now: Instant, conn: ConnId, segment: &Segment<'_>) -> Option<LinkId> {
        let (flow, slot) = self.slots.iter_mut().find(|(_, slot)| slot.conn_id == conn)?;
        let conn = slot.conn.as_mut().filter(|conn| *conn.key() == segment.four_tuple().reversed())?;
        let length = DataSize::from_bytes(segment.packet().bytes().len() as u64);
        self.stats.entry(*flow).or_default().received += length;
        *self.fetched.entry(slot.link.link).or_default() += length;
        conn.on_packet(now, segment).then_some(slot.link.link)
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        self.slots.values_mut().filter_map(|slot| slot.conn.as_mut()).for_each(|conn| conn.tick(now));
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.slots.values().filter_map(|slot| slot.conn.as_ref()?.deadline()).min()
    }

    /// A flow is gone: nothing of it is wanted any more.
    pub(crate) fn forget(&mut self, flow: u64) {
        if let Some(mut slot) = self.slots.remove(&flow) {
            slot.give_up(CloseReason::Done);
            self.drain_slot(&mut slot);
            self.returned.retain(|request| request.flow != flow);
        }
        self.stats.remove(&flow);
    }

    /// How many bytes a flow's connection accepts now.
    pub(crate) fn budget(&self, flow: u64) -> u64 {
        self.slots.get(&flow).and_then(|slot| slot.conn.as_ref()).map_or(0, MirroredConn::budget)
    }

    /// Bytes that are wanted from connections and have not come.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.slots.values().filter_map(|slot| slot.conn.as_ref()).map(MirroredConn::waiting_bytes).sum()
    }

    /// What came over a link, wanted or not.
    pub(crate) fn fetched_over(&self, link: LinkId) -> DataSize {
        self.fetched.get(&link).copied().unwrap_or(DataSize::ZERO)
    }

    /// A flow's connections, if it had any.
    pub(crate) fn status(&self, flow: u64) -> Option<MirroredConnStatus> {
        let slot = self.slots.get(&flow);
        let stats = self.stats.get(&flow);
        if slot.is_none() && stats.is_none() {
            return None;
        }
        let none = ConnStats::default();
        let stats = stats.unwrap_or(&none);
        let passed = slot.and_then(|slot| slot.conn.as_ref()).map_or(0, MirroredConn::skipped);
        Some(MirroredConnStatus {
            is_open: slot.is_some(),
            filled_holes: stats.filled,
            filled_bytes: DataSize::from_bytes(stats.bytes),
            received: stats.received,
            skipped: DataSize::from_bytes(stats.skipped + passed),
            failure: stats
                .close_reason
                .filter(|end| slot.is_none() && *end != CloseReason::Done)
                .map(|end| end.text().into()),
        })
    }

    /// What is to be done, what has come, and what is to be fetched otherwise.
    pub(crate) fn drain(&mut self) -> (Vec<Output>, Vec<FetchedRange>, Vec<FetchRequest>) {
        let mut fetched = Vec::new();
        let flows: Vec<u64> = self.slots.keys().copied().collect();
        for flow in flows {
            let Some(mut slot) = self.slots.remove(&flow) else { continue };
            let received = self.drain_slot(&mut slot);
            let stats = self.stats.entry(flow).or_default();
            stats.filled += received.len() as u64;
            stats.bytes += received.iter().map(|fetched| fetched.bytes.len() as u64).sum::<u64>();
            fetched.extend(received);
            match slot.close_reason() {
                None => {
                    self.slots.insert(flow, slot);
                }
                Some(end) => {
                    stats.close_reason = Some(end);
                    stats.failures += u32::from(end != CloseReason::Done);
                    stats.skipped += slot.conn.as_ref().map_or(0, MirroredConn::skipped);
                }
            }
        }
        (core::mem::take(&mut self.outputs), fetched, core::mem::take(&mut self.returned))
    }

    /// Takes a connection's outputs. Returns what has come.
    fn drain_slot(&mut self, slot: &mut Slot) -> Vec<FetchedRange> {
        let out = slot.conn.as_mut().map(MirroredConn::drain).unwrap_or_default();
        let link = slot.link.link;
        self.outputs
            .extend(out.packets.into_iter().map(|packet| Output::Send { link, packet: PacketBytes(packet) }));
        self.returned.extend(out.returned);
        if slot.close_reason().is_some() {
            self.outputs.push(Output::ReleasePort(slot.conn_id));
        }
        out.fetched
    }
}

impl Slot {
    fn follow(&mut self, now: Instant, offset: u64) {
        self.flow_offset = self.flow_offset.max(offset);
        self.conn.iter_mut().for_each(|conn| conn.follow(now, offset));
    }

    fn give_up(&mut self, end: CloseReason) {
        match &mut self.conn {
            Some(conn) => conn.give_up(end),
            None => self.close_reason = self.close_reason.or(Some(end)),
        }
    }

    fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason.or(self.conn.as_ref().and_then(MirroredConn::close_reason))
    }
}

/// Bounds the connections of a flow that fail: one that was lost by chance is tried again.
const MAX_FAILURES: u32 = 2;
