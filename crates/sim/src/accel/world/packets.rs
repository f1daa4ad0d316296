//! Packets of a scenario, from their arrival at a host to their departure: over links, through the accelerator and the TCP stacks.

use marline_core::accel::{CaptureLevel, Input, Mechanism, PacketBytes, SNAP_LENGTH};
use marline_core::link::LinkId;
use marline_core::wire::packet::{Checksum, IcmpUnreachable, Packet, Segment as View, Seq};

use super::{Event, World};
use crate::accel::invariants::InvariantChecker;
use crate::accel::packet::Read;
use crate::accel::payload::LinkPayload;
use crate::accel::scenario::Scenario;
use crate::link::Direction;
use crate::link::loss::LossProcess;
use crate::tcp::{Segment, TcpCloseReason, TcpState};

impl World {
    pub(super) fn on_arrival(&mut self, link: LinkId, direction: Direction, payload: LinkPayload) {
        match payload {
            LinkPayload::Packet(bytes) => self.on_server(link, &bytes),
            LinkPayload::MirroredServer(bytes) => {
                if let Some(conn) = self.mirrored_servers.conn_of(link, &bytes) {
                    self.push_input(Input::ConnPacket { conn, packet: PacketBytes(bytes) });
                }
            }
            LinkPayload::Piece(piece) => self.events.extend(self.origin.on_piece(piece).map(Event::Input)),
            LinkPayload::Segment { flow, segment } => {
                if direction == Direction::Down && self.hops.get_mut(flow).is_some_and(LossProcess::next_is_lost) {
                    return;
                }
                if direction == Direction::Down && link == Scenario::PRIMARY && self.is_accelerated(flow) {
                    self.capture(flow, Direction::Down, &segment);
                    self.run_events();
                    if self.queue_incoming(flow, &segment) {
                        return self.run_events();
                    }
                }
                if let Some(pair) = self.connections.get_mut(flow) {
                    pair.on_client(self.now, &segment);
                }
                self.run_connection(flow);
            }
        }
    }

    /// A packet has arrived at the servers.
    fn on_server(&mut self, link: LinkId, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Down) {
            return self.on_unreachable(n, Direction::Down, message.seq);
        }
        let Some((conn_index, view)) = self.flow_of(bytes, Direction::Up) else {
            let servers: Vec<_> = self.connections.iter().map(|pair| pair.params.flow).collect();
            self.mirrored_servers.on_packet(self.now, link, bytes, &self.scenario.flows, &servers);
            return;
        };
        let Some(pair) = self.connections.get_mut(conn_index) else { return };
        let read = pair.params.read(Direction::Up, &view, pair.read_position(Direction::Up), self.now);
        if let Read::Segment(segment) = read {
            let due = pair.content.bytes(Direction::Up, segment.seqs.start, segment.seqs.end);
            let is_right = view.payload() == due;
            pair.on_server(self.now, &segment);
            // ACKs of the killed accelerator may still have been in flight.
            if self.log.is_some() && pair.acknowledged() > pair.received() {
                self.lost_early_acked.insert(conn_index);
            }
            if !is_right {
                self.report_defect(format!(
                    "flow {conn_index}: wrong bytes at the server within {:?}",
                    segment.seqs
                ));
            }
            self.run_connection(conn_index);
        }
    }

    /// The sender of this direction learns that a segment had no route.
    fn on_unreachable(&mut self, n: usize, direction: Direction, seq: Seq) {
        if let Some(pair) = self.connections.get_mut(n) {
            pair.on_unreachable(self.now, direction, seq);
            self.run_connection(n);
        }
    }

    /// Both ends of a flow do what is due: the stacks first, then the applications, so that a handshake ends with an
    /// ACK of its own.
    pub(super) fn run_connection(&mut self, n: usize) {
        let Some(pair) = self.connections.get_mut(n) else { return };
        pair.on_timers(self.now);
        self.flush(n);
        if let Some(pair) = self.connections.get_mut(n) {
            pair.run_applications(self.now);
            self.flush(n);
        }
    }

    fn flush(&mut self, n: usize) {
        while let Some((direction, segment)) = self.connections.get_mut(n).and_then(|pair| pair.poll(self.now)) {
            if direction == Direction::Down {
                let payload = LinkPayload::Segment { flow: n, segment };
                self.links.push(Scenario::PRIMARY, Direction::Down, payload, self.now);
            } else {
                self.send_from_client(n, &segment);
            }
        }
    }

    /// The client's stack sends a segment.
    fn send_from_client(&mut self, conn_index: usize, segment: &Segment) {
        let Some(pair) = self.connections.get(conn_index) else { return };
        let bytes = pair.params.emit(Direction::Up, segment, &pair.content);
        if !self.is_accelerated(conn_index) {
            self.links.push(Scenario::PRIMARY, Direction::Up, LinkPayload::Packet(bytes), self.now);
            return;
        }
        self.malformed.remember(&bytes);
        if bytes.len() <= MAX_QUEUED_PACKET {
            self.push_input(Input::Outgoing(PacketBytes(bytes)));
        } else {
            self.capture(conn_index, Direction::Up, segment);
            // It does not overtake packets that were held before it.
            self.events.push_back(Event::PassThrough(bytes));
        }
    }

    /// Whether packets of this flow pass an accelerator now.
    fn is_accelerated(&self, n: usize) -> bool {
        self.machine.is_some() && self.scenario.flows.get(n).is_some_and(|script| script.is_accelerated)
    }

    /// Whether an arriving packet is held: a pure ACK, if a mechanism for uploads is enabled. What it becomes is
    /// delivered.
    fn queue_incoming(&mut self, n: usize, segment: &Segment) -> bool {
        let has_uploads =
            self.scenario.config.as_ref().is_some_and(|config| config.mechanisms.has_any(&UPLOAD_MECHANISMS));
        let flags = segment.flags;
        let Some(pair) = self.connections.get(n).filter(|_| has_uploads && flags.ack && !flags.fin && !flags.rst)
        else {
            return false;
        };
        // On a host, packets with PSH are not held. A real kernel sets PSH on the last bytes of an application.
        if !segment.seqs.is_empty() {
            return false;
        }
        let bytes = pair.params.emit(Direction::Down, segment, &pair.content);
        self.malformed.remember(&bytes);
        self.events.push_back(Event::Input(Input::Incoming(PacketBytes(bytes))));
        true
    }

    /// A packet passes without being held.
    fn capture(&mut self, n: usize, direction: Direction, segment: &Segment) {
        if self.capture_level == CaptureLevel::None {
            return;
        }
        let Some(pair) = self.connections.get(n) else { return };
        let mut bytes = pair.params.emit(direction, segment, &pair.content);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.malformed.remember(&bytes);
        if self.capture_level == CaptureLevel::Headers {
            bytes.truncate(SNAP_LENGTH);
        }
        self.push_input(Input::Captured { packet: PacketBytes(bytes), length });
    }

    /// The accelerator sends a packet to a server.
    pub(super) fn send(&mut self, link: LinkId, bytes: Vec<u8>) {
        if let (Some(invariants), Some((n, view))) = (self.invariants, self.flow_of(&bytes, Direction::Up))
            && let Some(pair) = self.connections.get(n)
        {
            let read = pair.params.read(Direction::Up, &view, pair.read_position(Direction::Up), self.now);
            if let Err(defect) = invariants.check_sent(pair, &bytes, &read) {
                self.report_defect(format!("flow {n}: {defect}"));
            }
        }
        if !self.links.push(link, Direction::Up, LinkPayload::Packet(bytes), self.now) {
            self.report_defect(format!("a packet over {link:?}, which does not exist"));
        }
    }

    /// The accelerator delivers a packet to the client's stack.
    pub(super) fn deliver(&mut self, bytes: &[u8]) {
        if let Some((n, message)) = self.unreachable_of(bytes, Direction::Up) {
            return self.on_unreachable(n, Direction::Up, message.seq);
        }
        let Some((conn_index, view)) = self.flow_of(bytes, Direction::Down) else {
            return self.report_defect("delivered: a packet of no flow".into());
        };
        let Some(pair) = self.connections.get_mut(conn_index) else { return };
        let read = pair.params.read(Direction::Down, &view, pair.read_position(Direction::Down), self.now);
        match InvariantChecker::check_delivered(pair, bytes, &read) {
            Err(defect) => self.report_defect(format!("flow {conn_index}: delivered: {defect}")),
            Ok(segment) => {
                pair.on_client(self.now, &segment);
                if segment.flags.rst && pair.state() == Some(TcpState::Closed(TcpCloseReason::Reset)) {
                    self.reset.insert(conn_index);
                }
                self.run_connection(conn_index);
            }
        }
    }

    /// The flow of a packet.
    fn flow_of<'a>(&self, bytes: &'a [u8], direction: Direction) -> Option<(usize, View<'a>)> {
        let view = View::parse(bytes).ok()?;
        let flow = if direction == Direction::Up { view.four_tuple() } else { view.four_tuple().reversed() };
        Some((self.connections.iter().position(|pair| pair.params.flow == flow)?, view))
    }

    /// The flow whose segment of this direction had no route, if the packet is such a message.
    fn unreachable_of(&mut self, bytes: &[u8], direction: Direction) -> Option<(usize, IcmpUnreachable)> {
        let packet = Packet::parse(bytes).ok()?;
        let message = IcmpUnreachable::of(packet).ok()?;
        if packet.checksum() != Checksum::Valid {
            self.report_defect("an ICMP message with a wrong checksum".into());
        }
        let flow = if direction == Direction::Up { message.four_tuple } else { message.four_tuple.reversed() };
        Some((self.connections.iter().position(|pair| pair.params.flow == flow)?, message))
    }
}

/// Mechanisms for uploads.
const UPLOAD_MECHANISMS: [Mechanism; 5] = [
    Mechanism::EifelUndo,
    Mechanism::WithheldAck,
    Mechanism::OutageRevert,
    Mechanism::ZeroWindowFreeze,
    Mechanism::FreezeInFlight,
];
/// Packets of at most so many bytes are held when they leave: all pure ACKs, and little else.
const MAX_QUEUED_PACKET: usize = 160;
