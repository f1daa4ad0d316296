//! Drives the machine: everything that it can act upon, except for the queue.
//!
//! 1. The machine is drained after each call, and what its outputs cause at once (a packet count, a fetch that cannot
//!    be sent) is fed back afterwards, not in between.
//! 2. Pending early ACKs are written down before any output is executed ([`crate::pending_file`]).
//! 3. A held packet gets the verdict of its own drain; without one it passes unchanged.
//! 4. A packet that cannot be sent is counted and lost, like any packet.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::accel::{Accelerator, CaptureLevel, Config, ConnId, Fetch, FetchId, Input, Output, PacketBytes};
use marline_core::link::LinkId;
use marline_core::units::Instant;
use marline_core::wire::netlink::{Address, Link, Message, Request, Route, group, kind, messages};
use marline_net::recorded_machine::RecordedMachine;
use marline_sys::clock;
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc::UnboundedSender;

use super::AccelError;
use super::status::Counts;
use crate::capture::Capture;
use crate::gateway_probe::GatewayProber;
use crate::links::AccelLink;
use crate::nfqueue::Verdict;
use crate::pending_file::PendingFile;
use crate::raw_socket::{LocalInjector, RawSocket};
use crate::reserved_ports::{self, ReservedPorts};

/// Events of links, addresses and routes.
pub(super) const NETLINK_GROUPS: u32 =
    group::LINK | group::ADDRESS_V4 | group::ADDRESS_V6 | group::ROUTE_V4 | group::ROUTE_V6;

/// A command to the range client; results return by [`LoopHandle::fetched`](super::LoopHandle::fetched).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchCommand {
    /// Fetch these ranges; each is answered once.
    Fetch(Fetch),
    /// The result is not needed any more.
    Cancel(FetchId),
}

/// A link and its sockets.
#[derive(Debug)]
pub(super) struct LinkSockets {
    pub(super) link: AccelLink,
    pub(super) prober: GatewayProber,
    raw: RawSocket,
    is_up: bool,
}

impl LinkSockets {
    pub(super) fn open(link_info: AccelLink) -> Result<Self, AccelError> {
        let raw = RawSocket::open(Some(&link_info.name))?;
        Ok(Self {
            prober: GatewayProber::open(&link_info.name, link_info.index, link_info.gateway)?,
            raw,
            link: link_info,
            is_up: true,
        })
    }

    /// Whether it is on this interface, and its gateway is of this address's family.
    fn is_on(&self, index: u32, address: IpAddr) -> bool {
        self.link.index == index && self.link.gateway.is_ipv6() == address.is_ipv6()
    }

    /// Probes its gateway from another socket, with the address that it has now.
    fn reopen_prober(&mut self) {
        match GatewayProber::open(&self.link.name, self.link.index, self.link.gateway) {
            Ok(pinger) => self.prober = pinger,
            // It has no address; the next one triggers an event.
            Err(error) => tracing::debug!(link = %self.link.name, %error, "the gateway cannot be probed now"),
        }
    }
}

type Machine = RecordedMachine<Accelerator, Config>;

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) machine: Machine,
    pending_file: Option<PendingFile>,
    pub(super) links: Vec<LinkSockets>,
    pub(super) capture: Option<Capture>,
    pub(super) reserved_ports: ReservedPorts,
    pub(super) counts: Counts,
    /// The clock when the machine's time began.
    started: u64,
    local_injector: LocalInjector,
    route_socket: RouteSocket,
    fetch_commands: Option<UnboundedSender<FetchCommand>>,
    deferred: VecDeque<Input>,
    /// How much the machine wants captured.
    capture_level: CaptureLevel,
    /// The capture could not be opened.
    is_capture_refused: bool,
}

impl Driver {
    pub(super) fn new(
        machine: Machine,
        pending_file: Option<PendingFile>,
        links: Vec<AccelLink>,
        fetch_commands: Option<UnboundedSender<FetchCommand>>,
    ) -> Result<Self, AccelError> {
        Ok(Self {
            machine,
            pending_file,
            links: links.into_iter().map(LinkSockets::open).collect::<Result<_, _>>()?,
            capture: None,
            reserved_ports: ReservedPorts::default(),
            counts: Counts::default(),
            started: clock::now(),
            local_injector: LocalInjector::open()?,
            route_socket: RouteSocket::open().map_err(AccelError::kernel("a socket for counters"))?,
            fetch_commands,
            deferred: VecDeque::new(),
            capture_level: CaptureLevel::None,
            is_capture_refused: false,
        })
    }

    /// Time since the machine's start.
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.started))
    }

    /// Time until the machine's deadline; none: it has none.
    pub(super) fn time_to_deadline(&self) -> Option<Duration> {
        self.machine.deadline().map(|at| at.since(self.now()))
    }

    /// A held packet, and the input for it; `decide` receives its verdict, once.
    pub(super) fn decide_queued(&mut self, input: Input, packet: &[u8], decide: &mut dyn FnMut(Verdict<'_>)) {
        self.counts.queued += 1;
        self.counts.incoming += u64::from(matches!(input, Input::Incoming(_)));
        self.feed_machine(self.now(), input);
        let mut has_verdict = false;
        while let Some(output) = self.machine.poll() {
            let verdict = match &output {
                Output::Forward(bytes) if bytes.0 == packet => Verdict::Accept,
                Output::Forward(bytes) => Verdict::Replace(&bytes.0),
                Output::Suppress => Verdict::Drop,
                _ => {
                    self.execute(output);
                    continue;
                }
            };
            debug_assert!(!has_verdict, "a second verdict for one packet");
            if !std::mem::replace(&mut has_verdict, true) {
                self.counts.rewritten += u64::from(matches!(verdict, Verdict::Replace(_)));
                self.counts.suppressed += u64::from(verdict == Verdict::Drop);
                decide(verdict);
            }
        }
        if !has_verdict {
            decide(Verdict::Accept);
        }
        self.process_deferred();
    }

    /// Passes an input that holds no packet to the machine, and executes its outputs.
    pub(super) fn handle_input(&mut self, input: Input) {
        self.feed_machine(self.now(), input);
        self.drain();
        self.process_deferred();
    }

    /// Feeds the machine; pending early ACKs are written down before its outputs are executed.
    fn feed_machine(&mut self, at: Instant, input: Input) {
        self.machine.handle(at, input);
        self.update_pending_file();
    }

    fn update_pending_file(&mut self) {
        if let Some(pending_file) = &mut self.pending_file {
            pending_file.update(self.machine.machine());
        }
    }

    /// Ticks the machine if its deadline has come.
    pub(super) fn tick(&mut self) {
        let now = self.now();
        if self.machine.deadline().is_some_and(|at| at <= now) {
            self.machine.tick(now);
            self.update_pending_file();
            self.drain();
            self.process_deferred();
        }
    }

    /// Feeds what was captured since the last call; false: nothing.
    pub(super) fn drain_capture(&mut self) -> std::io::Result<bool> {
        let Some(mut capture) = self.capture.take() else { return Ok(false) };
        let (mut has_received, mut has_more) = (false, true);
        while has_more && capture.receive()? {
            has_more = capture.is_full();
            for (packet, length, at) in capture.packets() {
                has_received = true;
                self.counts.captured += 1;
                let input = Input::Captured { packet: PacketBytes(packet.to_vec()), length };
                self.feed_machine(Instant::from_nanos(at.saturating_sub(self.started)), input);
                self.drain();
            }
            self.process_deferred();
        }
        self.capture = Some(capture);
        Ok(has_received)
    }

    /// Opens, changes or closes the capture as the machine wants it. Returns whether it did. A capture that could not
    /// be opened is tried again with the next change. `closing` is called before one is closed.
    pub(super) fn adjust_capture(&mut self, closing: impl FnOnce(&Capture)) -> bool {
        if self.capture.as_ref().map_or(CaptureLevel::None, Capture::level) == self.capture_level
            || self.is_capture_refused
        {
            return false;
        }
        self.update_counters();
        match self
            .capture
            .as_mut()
            .filter(|_| self.capture_level != CaptureLevel::None)
            .map(|capture| capture.set_level(self.capture_level))
        {
            Some(Ok(())) => return true,
            Some(Err(error)) => tracing::warn!(%error, "the packet capture is reopened"),
            None => {}
        }
        if let Some(capture) = self.capture.take() {
            closing(&capture);
            capture.close_in_background();
        }
        let Some(LinkSockets { link: link_info, .. }) = self.links.first() else { return false };
        match Capture::open(&link_info.name, link_info.index, self.capture_level) {
            Ok(capture) => self.capture = capture,
            Err(error) => {
                tracing::warn!(%error, "packets cannot be captured");
                self.is_capture_refused = true;
            }
        }
        true
    }

    /// Reads the replies of all gateways and passes them to the machine.
    pub(super) fn handle_probe_replies(&mut self) {
        for at in 0..self.links.len() {
            let Some(sockets) = self.links.get_mut(at) else { continue };
            let link = sockets.link.link;
            for sequence in sockets.prober.take_replies() {
                self.counts.probe_replies += 1;
                self.handle_input(Input::ProbeReply { link, sequence });
            }
        }
    }

    /// Packets of the machine's own connections.
    pub(super) fn handle_reserved_ports(&mut self) {
        for (conn, packet) in self.reserved_ports.receive() {
            self.handle_input(Input::ConnPacket { conn, packet });
        }
    }

    /// An interface was added, removed or changed: it may be one of ours.
    fn on_link(&mut self, changed: &Link, is_removed: bool) {
        let Some(sockets) = self.links.iter_mut().find(|sockets| sockets.link.name == changed.name) else { return };
        if is_removed && sockets.link.index != changed.index {
            return;
        }
        if !is_removed && sockets.link.index != changed.index {
            // Another device with the same name: a modem that was plugged in again.
            match LinkSockets::open(AccelLink { index: changed.index, ..sockets.link.clone() }) {
                Ok(new) => *sockets = LinkSockets { is_up: sockets.is_up, ..new },
                Err(error) => {
                    tracing::warn!(link = %sockets.link.name, %error, "the interface that returned cannot be used")
                }
            }
            self.is_capture_refused = false;
            if sockets.link.link.0 == 0 {
                self.capture.take().into_iter().for_each(Capture::close_in_background);
            }
        }
        let Some(sockets) = self.links.iter_mut().find(|sockets| sockets.link.name == changed.name) else { return };
        let is_up = !is_removed && changed.is_up() && changed.has_carrier();
        if std::mem::replace(&mut sockets.is_up, is_up) != is_up {
            let link = sockets.link.link;
            self.handle_input(Input::Carrier { link, is_up });
        }
    }

    /// One event of [`NETLINK_GROUPS`].
    pub(super) fn on_event(&mut self, message: &Message<'_>) {
        if let Some(link) = Link::parse(message) {
            self.on_link(&link, message.kind == kind::DEL_LINK);
        } else if let Some(changed) = Address::parse(message) {
            let is_meant = |sockets: &&mut LinkSockets| sockets.is_on(changed.interface, changed.address);
            // A gateway is probed from an address of the link.
            self.links.iter_mut().filter(is_meant).for_each(LinkSockets::reopen_prober);
        } else if let Some(route) = Route::parse(message).filter(|_| message.kind == kind::NEW_ROUTE) {
            self.on_route(&route);
        }
    }

    /// Events were lost: reads links and addresses as they are now.
    pub(super) fn resync_netlink(&mut self) {
        for request in [Request::dump_links(), Request::dump_addresses()] {
            // What cannot be read now changes nothing.
            let all = self.route_socket.request(&request.finish(1)).unwrap_or_default();
            messages(&all).for_each(|message| self.on_event(&message));
        }
    }

    /// A route was added. A default route gives the gateway to probe from now on, unless the user has named one.
    fn on_route(&mut self, route: &Route) {
        let (Some(index), Some(gateway)) = (route.interface, route.gateway) else { return };
        if route.destination.is_some() || route.table != Route::MAIN {
            return;
        }
        let is_other = |sockets: &&mut LinkSockets| {
            sockets.is_on(index, gateway) && !sockets.link.has_named_gateway && sockets.link.gateway != gateway
        };
        for sockets in self.links.iter_mut().filter(is_other) {
            sockets.link.gateway = gateway;
            sockets.reopen_prober();
        }
    }

    /// Adds the packets that the kernel could not capture since the last call.
    pub(super) fn update_counters(&mut self) {
        self.counts.capture_drops += self.capture.as_ref().map_or(0, Capture::drops);
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.execute(output);
        }
    }

    /// Feeds the inputs that outputs have caused.
    fn process_deferred(&mut self) {
        while let Some(input) = self.deferred.pop_front() {
            self.feed_machine(self.now(), input);
            self.drain();
        }
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Forward(_) | Output::Suppress => debug_assert!(false, "no packet is held"),
            Output::Send { link, packet } => {
                let sent = self.link(link).map(|sockets| sockets.raw.send(&packet.0));
                self.count(sent.is_some_and(|sent| sent.is_ok()), |counts| &mut counts.sent);
            }
            Output::Deliver(packet) => {
                let sent = self.local_injector.inject(&packet.0);
                self.count(sent.is_ok(), |counts| &mut counts.delivered);
            }
            Output::CountPackets { link } => {
                let packets = self.link(link).and_then(|sockets| received_packets(&sockets.link.name));
                self.deferred.extend(packets.map(|packets| Input::PacketCount { link, packets }));
            }
            Output::Probe { link, sequence } => {
                let sent = self.link(link).map(|sockets| sockets.prober.probe(sequence));
                self.count(sent.is_some_and(|sent| sent.is_ok()), |counts| &mut counts.probes);
            }
            Output::ReservePort { conn, link, server } => {
                let local = self.reserve_port(conn, link, server);
                self.deferred.push_back(Input::PortReserved { conn, local, isn: reserved_ports::random_isn() });
            }
            Output::ReleasePort(conn) => self.reserved_ports.close(conn),
            Output::Capture(level) => (self.capture_level, self.is_capture_refused) = (level, false),
            Output::Fetch(fetch) => self.fetch(fetch),
            Output::Cancel(fetch) => {
                if let Some(fetch_commands) = &self.fetch_commands {
                    // A range client that is gone has nothing to cancel.
                    let _ = fetch_commands.send(FetchCommand::Cancel(fetch));
                }
            }
        }
    }

    fn count(&mut self, done: bool, counter: impl FnOnce(&mut Counts) -> &mut u64) {
        *if done { counter(&mut self.counts) } else { &mut self.counts.failed } += 1;
    }

    /// Reserves a port towards a server; none: it cannot be reserved.
    fn reserve_port(&mut self, conn: ConnId, link: LinkId, server: SocketAddr) -> Option<SocketAddr> {
        let link_info = self.links.get(usize::from(link.0)).map(|sockets| &sockets.link)?;
        match self.reserved_ports.open(conn, link_info, server) {
            Ok(local) => Some(local),
            Err(error) => {
                tracing::warn!(link = %link_info.name, %server, %error, "a mirrored connection cannot be opened over it");
                None
            }
        }
    }

    /// Without a range client the bytes cannot be fetched.
    fn fetch(&mut self, fetch: Fetch) {
        let (id, ranges) = (fetch.id, fetch.ranges.len());
        let sent = self
            .fetch_commands
            .as_ref()
            .is_some_and(|fetch_commands| fetch_commands.send(FetchCommand::Fetch(fetch)).is_ok());
        if !sent {
            let none = |range| Input::Fetched { fetch: id, range, bytes: None };
            self.deferred.extend((0..u32::try_from(ranges).unwrap_or(u32::MAX)).map(none));
        }
    }

    fn link(&self, link: LinkId) -> Option<&LinkSockets> {
        self.links.get(usize::from(link.0))
    }
}

/// Packets that a device has received; none: it is gone. Netlink was not used because it would wait for programs that
/// change interfaces.
fn received_packets(device: &str) -> Option<u64> {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let counters_of = |line: &str| line.trim_start().strip_prefix(device)?.strip_prefix(':').map(str::to_owned);
    // Columns: bytes, packets.
    devices.lines().find_map(counters_of)?.split_whitespace().nth(1)?.parse().ok()
}
