//! Servers that the accelerator calls itself, over a helping link.
//!
//! In: its packets, the time. Out: packets for it, whole, over the link that it called over.
//!
//! 1. Such a server is the kernel's TCP as any other here, without SACK and timestamps, for they are not offered. It
//!    answers one request for a resource of the address that it was called at.
//! 2. Its packets reach the accelerator only while it holds that port; else nobody answers them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use marline_core::accel::CallId;
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};
use marline_core::wire::packet::{Flags, FourTuple, Segment as View};

use super::content::{Content, resource};
use super::packet::{Names, Place, Read};
use super::scene::Plan;
use crate::link::Direction;
use crate::tcp::{Socket, TcpConfig, TcpState};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
    shown: BTreeMap<(LinkId, u16), CallId>,
}

#[derive(Debug)]
struct Call {
    link: LinkId,
    /// Which server it is.
    n: usize,
    names: Names,
    content: Option<Content>,
    server: Socket,
}

impl Calls {
    /// The accelerator wants a port on a link: its address, and a number to begin with.
    pub(super) fn call(&mut self, call: CallId, link: LinkId, server: SocketAddr) -> (SocketAddr, u32) {
        let port = FIRST + (call.0 % PORTS) as u16;
        self.shown.insert((link, port), call);
        let address = match server.ip() {
            IpAddr::V4(_) => IpAddr::from([10, 1, 0, 2]),
            IpAddr::V6(_) => IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, 2]),
        };
        // Some of them go round soon.
        (SocketAddr::new(address, port), u32::MAX - (call.0 as u32).wrapping_mul(77) % 1000)
    }

    /// It does not need it any more.
    pub(super) fn hang_up(&mut self, call: CallId) {
        self.shown.retain(|_, shown| *shown != call);
    }

    /// For which call a packet has come over this link.
    pub(super) fn heard(&self, link: LinkId, bytes: &[u8]) -> Option<CallId> {
        let port = View::parse(bytes).ok()?.four_tuple().destination_port;
        self.shown.get(&(link, port)).copied()
    }

    /// Nobody is there any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A packet has reached the other side that is of no flow there.
    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        link: LinkId,
        bytes: &[u8],
        plans: &[Plan],
        servers: &[FourTuple],
    ) {
        let Ok(view) = View::parse(bytes) else { return };
        let flow = view.four_tuple();
        let known = self.calls.iter().position(|call| call.names.flow == flow);
        let Some(n) = servers.iter().position(|server| server.destination() == flow.destination()) else { return };
        if known.is_none() && view.flags().contains(Flags::SYN) {
            let names = Names::of(flow, [view.seq().number(), !view.seq().number()], SCALE);
            if let Read::Segment(syn) = names.read(Direction::Up, &view, Place { next: 0, una: 0 }, now) {
                let config = TcpConfig { sack: false, timestamps: false, is_strict: true, ..TcpConfig::default() };
                let server = Socket::accept(config, &syn, now);
                self.calls.push(Call { link, n, names, content: None, server });
            }
            return;
        }
        let Some(call) = known.and_then(|at| self.calls.get_mut(at)) else { return };
        let place = Place { next: call.server.in_order_bytes(), una: call.server.snd_una() };
        let Read::Segment(segment) = call.names.read(Direction::Up, &view, place, now) else { return };
        call.server.on_segment(now, &segment);
        if call.content.is_none() && !view.payload().is_empty() {
            call.answer(view.payload(), plans);
        }
    }

    /// Time has passed: what they send, and over which link.
    pub(super) fn attend(&mut self, now: Instant) -> Vec<(LinkId, Vec<u8>)> {
        let mut sent = Vec::new();
        for call in &mut self.calls {
            call.server.on_timer(now);
            while let Some(segment) = call.server.poll(now) {
                let none = Content::default();
                let content = call.content.as_ref().unwrap_or(&none);
                sent.push((call.link, call.names.emit(Direction::Down, &segment, content)));
            }
        }
        self.calls.retain(|call| !matches!(call.server.state(), TcpState::Closed(_)));
        sent
    }

    /// When one of them has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        self.calls.iter().filter_map(|call| call.server.timer()).min()
    }
}

impl Call {
    fn answer(&mut self, request: &[u8], plans: &[Plan]) {
        let text = String::from_utf8_lossy(request);
        let path = text.strip_prefix("GET /").and_then(|rest| rest.split_once(' ')).map(|(path, _)| path);
        let name = path.and_then(|path| path.parse::<u64>().ok());
        let exchanges = plans.get(self.n).map_or(&[][..], |plan| &plan.exchanges);
        let of = |k: u64| resource(self.n as u64, k);
        let found = exchanges.iter().zip(0..).find(|(_, k)| Some(of(*k)) == name && text.ends_with("\r\n\r\n"));
        if let Some((exchange, k)) = found {
            let content = Content::answer(of(k), exchange.answer);
            self.server.write(DataSize::from_bytes(content.answers().last().copied().unwrap_or(0)));
            self.content = Some(content);
        } else {
            self.server.abort();
        }
    }
}

/// That of the accelerator's own SYN.
const SCALE: u8 = 7;
/// chosen: ports that nothing else has here.
const FIRST: u16 = 24_000;
const PORTS: u64 = 4_000;
