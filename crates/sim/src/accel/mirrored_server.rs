//! Servers of mirrored connections, which the accelerator opens itself over a secondary link.
//!
//! 1. Such a server is the kernel's TCP as any other here, without SACK and timestamps, as they are not offered. It
//!    answers one request for a resource.
//! 2. Its packets reach the accelerator only while that has reserved the port; otherwise they are dropped.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use marline_core::accel::ConnId;
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};
use marline_core::wire::packet::{Flags, FourTuple, Segment as View};

use super::packet::{Read, ReadPosition, WireParams};
use crate::accel::byte_stream::{ByteStreams, resource_id};
use crate::accel::scenario::FlowScript;
use crate::link::Direction;
use crate::tcp::{Socket, TcpConfig, TcpState};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct MirroredServers {
    servers: Vec<MirroredServer>,
    ports: BTreeMap<(LinkId, u16), ConnId>,
}

#[derive(Debug)]
struct MirroredServer {
    link: LinkId,
    /// The index of the server's flow.
    server_index: usize,
    params: WireParams,
    content: Option<ByteStreams>,
    socket: Socket,
}

impl MirroredServers {
    /// Reserves a port on a link. Returns its address and an initial sequence number.
    pub(super) fn reserve_port(&mut self, conn: ConnId, link: LinkId, server: SocketAddr) -> (SocketAddr, u32) {
        let port = FIRST_PORT + (conn.0 % PORTS) as u16;
        self.ports.insert((link, port), conn);
        let address = match server.ip() {
            IpAddr::V4(_) => IpAddr::from([10, 1, 0, 2]),
            IpAddr::V6(_) => IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, 2]),
        };
        // Less than 1000 below the wrap, so that the requests of some connections cross it.
        (SocketAddr::new(address, port), u32::MAX - (conn.0 as u32).wrapping_mul(77) % 1000)
    }

    pub(super) fn release_port(&mut self, conn: ConnId) {
        self.ports.retain(|_, owner| *owner != conn);
    }

    /// The connection of a packet that has arrived over this link.
    pub(super) fn conn_of(&self, link: LinkId, bytes: &[u8]) -> Option<ConnId> {
        let port = View::parse(bytes).ok()?.four_tuple().destination_port;
        self.ports.get(&(link, port)).copied()
    }

    /// The accelerator was killed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A packet has arrived at the servers that belongs to no flow.
    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        link: LinkId,
        bytes: &[u8],
        scripts: &[FlowScript],
        servers: &[FourTuple],
    ) {
        let Ok(view) = View::parse(bytes) else { return };
        let flow = view.four_tuple();
        let known = self.servers.iter().position(|server| server.params.flow == flow);
        let Some(n) = servers.iter().position(|server| server.destination() == flow.destination()) else { return };
        if known.is_none() && view.flags().contains(Flags::SYN) {
            let params = WireParams::of(flow, [view.seq().number(), !view.seq().number()], WINDOW_SCALE);
            if let Read::Segment(syn) = params.read(Direction::Up, &view, ReadPosition { next: 0, una: 0 }, now) {
                let config = TcpConfig { sack: false, timestamps: false, is_strict: true, ..TcpConfig::default() };
                let server = Socket::accept(config, &syn, now);
                self.servers.push(MirroredServer { link, server_index: n, params, content: None, socket: server });
            }
            return;
        }
        let Some(server) = known.and_then(|at| self.servers.get_mut(at)) else { return };
        let position = ReadPosition { next: server.socket.in_order_bytes(), una: server.socket.snd_una() };
        let Read::Segment(segment) = server.params.read(Direction::Up, &view, position, now) else { return };
        server.socket.on_segment(now, &segment);
        if server.content.is_none() && !view.payload().is_empty() {
            server.respond(view.payload(), scripts);
        }
    }

    /// Time has passed. Returns what they send, with the link of each packet.
    pub(super) fn run(&mut self, now: Instant) -> Vec<(LinkId, Vec<u8>)> {
        let mut sent = Vec::new();
        for server in &mut self.servers {
            server.socket.on_timer(now);
            while let Some(segment) = server.socket.poll(now) {
                let none = ByteStreams::default();
                let content = server.content.as_ref().unwrap_or(&none);
                sent.push((server.link, server.params.emit(Direction::Down, &segment, content)));
            }
        }
        self.servers.retain(|server| !matches!(server.socket.state(), TcpState::Closed(_)));
        sent
    }

    /// When one of them has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        self.servers.iter().filter_map(|server| server.socket.timer()).min()
    }
}

impl MirroredServer {
    fn respond(&mut self, request: &[u8], scripts: &[FlowScript]) {
        let text = String::from_utf8_lossy(request);
        let path = text.strip_prefix("GET /").and_then(|remaining| remaining.split_once(' ')).map(|(path, _)| path);
        let name = path.and_then(|path| path.parse::<u64>().ok());
        let exchanges = scripts.get(self.server_index).map_or(&[][..], |script| &script.exchanges);
        let id_of = |k: u64| resource_id(self.server_index as u64, k);
        let found = exchanges.iter().zip(0..).find(|(_, k)| Some(id_of(*k)) == name && text.ends_with("\r\n\r\n"));
        if let Some((exchange, k)) = found {
            let content = ByteStreams::single_response(id_of(k), exchange.response);
            self.socket.write(DataSize::from_bytes(content.responses().last().copied().unwrap_or(0)));
            self.content = Some(content);
        } else {
            self.socket.abort();
        }
    }
}

/// The window scale that the accelerator's SYN offers.
const WINDOW_SCALE: u8 = 7;
/// Our choice: ports that nothing else uses here.
const FIRST_PORT: u16 = 24_000;
const PORTS: u64 = 4_000;
