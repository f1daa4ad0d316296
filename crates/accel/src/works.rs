//! The machine and everything that it can act upon, except for the queue.
//!
//! In: what happened. Out: what the machine asked for is done when a call returns.
//!
//! 1. The machine is drained after each call, and what its outputs bring at once (a count, a fetch that nobody can do) goes in
//!    afterwards, not in between.
//! 2. What flows are owed is written down before anything that the machine asked for is done ([`super::ledger`]).
//! 3. A packet that waits gets the verdict of its own drain; where the machine says nothing it leaves as it came.
//! 4. A packet that cannot be sent is counted and lost, as packets are.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::accel::{Accelerator, Bytes, CallId, Config, Fetch, FetchId, Input, Output, Sight};
use marline_core::link::LinkId;
use marline_core::units::Instant;
use marline_core::wire::netlink::{Address, Link, Message, Request, Route, group, kind, messages};
use marline_net::recorded_machine::RecordedMachine;
use marline_sys::clock;
use marline_sys::netlink::RouteSocket;
use tokio::sync::mpsc::UnboundedSender;

use super::AccelError;
use super::calls::{self, Calls};
use super::ledger::Ledger;
use super::ping::Pinger;
use super::queue::Fate;
use super::raw::{Inward, Raw};
use super::road::Road;
use super::sight::Eye;
use super::status::Counts;

/// What is to be heard of interfaces.
pub(super) const EVENTS: u32 =
    group::LINK | group::ADDRESS_V4 | group::ADDRESS_V6 | group::ROUTE_V4 | group::ROUTE_V6;

/// What is asked of whoever gets bytes from servers; the answers go back by [`Bell::fetched`](super::Bell::fetched).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Get these; each range is answered once.
    Fetch(Fetch),
    /// No answer is wanted any more.
    Cancel(FetchId),
}

/// A link and its sockets.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) road: Road,
    pub(super) pinger: Pinger,
    raw: Raw,
    is_up: bool,
}

impl Way {
    pub(super) fn open(road: Road) -> Result<Self, AccelError> {
        let raw = Raw::open(Some(&road.name))?;
        Ok(Self { pinger: Pinger::open(&road.name, road.index, road.gateway)?, raw, road, is_up: true })
    }

    /// Whether it is this interface, and its gateway of this address's family.
    fn is_by(&self, index: u32, address: IpAddr) -> bool {
        self.road.index == index && self.road.gateway.is_ipv6() == address.is_ipv6()
    }

    /// Its gateway is asked by another socket, from an address that it has now.
    fn ask_anew(&mut self) {
        match Pinger::open(&self.road.name, self.road.index, self.road.gateway) {
            Ok(pinger) => self.pinger = pinger,
            // It has no address; the next one will be heard of.
            Err(error) => tracing::debug!(link = %self.road.name, %error, "the gateway cannot be asked now"),
        }
    }
}

type Machine = RecordedMachine<Accelerator, Config>;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Works {
    pub(super) machine: Machine,
    ledger: Option<Ledger>,
    pub(super) ways: Vec<Way>,
    pub(super) eye: Option<Eye>,
    pub(super) calls: Calls,
    pub(super) counts: Counts,
    /// What the clock said when the machine's time began.
    begun: u64,
    local: Inward,
    counters: RouteSocket,
    errands: Option<UnboundedSender<Errand>>,
    later: VecDeque<Input>,
    /// How much the machine wants to see of what passes.
    sight: Sight,
    /// It could not be had.
    is_blind: bool,
}

impl Works {
    pub(super) fn new(
        machine: Machine,
        ledger: Option<Ledger>,
        roads: Vec<Road>,
        errands: Option<UnboundedSender<Errand>>,
    ) -> Result<Self, AccelError> {
        Ok(Self {
            machine,
            ledger,
            ways: roads.into_iter().map(Way::open).collect::<Result<_, _>>()?,
            eye: None,
            calls: Calls::default(),
            counts: Counts::default(),
            begun: clock::now(),
            local: Inward::open()?,
            counters: RouteSocket::open().map_err(AccelError::kernel("a socket for counters"))?,
            errands,
            later: VecDeque::new(),
            sight: Sight::None,
            is_blind: false,
        })
    }

    /// Since the machine's beginning.
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(clock::now().saturating_sub(self.begun))
    }

    /// How long until the machine wants to be woken; none: it does not.
    pub(super) fn rest(&self) -> Option<Duration> {
        self.machine.deadline().map(|at| at.since(self.now()))
    }

    /// A packet that waits, and the word of it for the machine; `give` is told what becomes of it, once.
    pub(super) fn held(&mut self, input: Input, packet: &[u8], give: &mut dyn FnMut(Fate<'_>)) {
        self.counts.queued += 1;
        self.counts.arriving += u64::from(matches!(input, Input::Arriving(_)));
        self.hear_of(self.now(), input);
        let mut said = false;
        while let Some(output) = self.machine.poll() {
            let fate = match &output {
                Output::Leave(bytes) if bytes.0 == packet => Fate::Leave,
                Output::Leave(bytes) => Fate::Change(&bytes.0),
                Output::Hold => Fate::Drop,
                _ => {
                    self.act(output);
                    continue;
                }
            };
            debug_assert!(!said, "a second word for one packet");
            if !std::mem::replace(&mut said, true) {
                self.counts.changed += u64::from(matches!(fate, Fate::Change(_)));
                self.counts.held += u64::from(fate == Fate::Drop);
                give(fate);
            }
        }
        if !said {
            give(Fate::Leave);
        }
        self.catch_up();
    }

    /// Anything else that happened.
    pub(super) fn tell(&mut self, input: Input) {
        self.hear_of(self.now(), input);
        self.drain();
        self.catch_up();
    }

    /// The machine hears it; what is owed then is written down before anything is done.
    fn hear_of(&mut self, at: Instant, input: Input) {
        self.machine.handle(at, input);
        self.note();
    }

    fn note(&mut self) {
        if let Some(ledger) = &mut self.ledger {
            ledger.note(self.machine.machine());
        }
    }

    /// Wakes the machine if it wants to be woken now.
    pub(super) fn tick(&mut self) {
        let now = self.now();
        if self.machine.deadline().is_some_and(|at| at <= now) {
            self.machine.tick(now);
            self.note();
            self.drain();
            self.catch_up();
        }
    }

    /// What has passed since the last time; false: nothing.
    pub(super) fn look(&mut self) -> std::io::Result<bool> {
        let Some(mut eye) = self.eye.take() else { return Ok(false) };
        let (mut came, mut more) = (false, true);
        while more && eye.receive()? {
            more = eye.is_full();
            for (packet, length, at) in eye.packets() {
                came = true;
                self.counts.seen += 1;
                let input = Input::Seen { packet: Bytes(packet.to_vec()), length };
                self.hear_of(Instant::from_nanos(at.saturating_sub(self.begun)), input);
                self.drain();
            }
            self.catch_up();
        }
        self.eye = Some(eye);
        Ok(came)
    }

    /// Opens, turns or closes the eye as the machine wants it; whether it did. One that cannot be had is tried again with the next
    /// change. `closing` is told of one before it closes.
    pub(super) fn adjust(&mut self, closing: impl FnOnce(&Eye)) -> bool {
        if self.eye.as_ref().map_or(Sight::None, Eye::sight) == self.sight || self.is_blind {
            return false;
        }
        self.take_stock();
        match self.eye.as_mut().filter(|_| self.sight != Sight::None).map(|eye| eye.turn(self.sight)) {
            Some(Ok(())) => return true,
            Some(Err(error)) => tracing::warn!(%error, "packets that pass are seen anew"),
            None => {}
        }
        if let Some(eye) = self.eye.take() {
            closing(&eye);
            eye.close();
        }
        let Some(Way { road, .. }) = self.ways.first() else { return false };
        match Eye::open(&road.name, road.index, self.sight) {
            Ok(eye) => self.eye = eye,
            Err(error) => {
                tracing::warn!(%error, "packets that pass are not seen");
                self.is_blind = true;
            }
        }
        true
    }

    /// Answers of gateways.
    pub(super) fn hear(&mut self) {
        for at in 0..self.ways.len() {
            let Some(way) = self.ways.get_mut(at) else { continue };
            let link = way.road.link;
            for sequence in way.pinger.answers() {
                self.counts.answered += 1;
                self.tell(Input::Answered { link, sequence });
            }
        }
    }

    /// Packets of the machine's own connections.
    pub(super) fn hear_calls(&mut self) {
        for (call, packet) in self.calls.hear() {
            self.tell(Input::Heard { call, packet });
        }
    }

    /// A message about an interface: it may be one of ours that came, went or changed.
    fn changed(&mut self, changed: &Link, is_gone: bool) {
        let Some(way) = self.ways.iter_mut().find(|way| way.road.name == changed.name) else { return };
        if is_gone && way.road.index != changed.index {
            return;
        }
        if !is_gone && way.road.index != changed.index {
            // It is another device by the same name: a modem that was plugged in again.
            match Way::open(Road { index: changed.index, ..way.road.clone() }) {
                Ok(new) => *way = Way { is_up: way.is_up, ..new },
                Err(error) => {
                    tracing::warn!(link = %way.road.name, %error, "the interface that came back cannot be used")
                }
            }
            self.is_blind = false;
            if way.road.link.0 == 0 {
                self.eye.take().into_iter().for_each(Eye::close);
            }
        }
        let Some(way) = self.ways.iter_mut().find(|way| way.road.name == changed.name) else { return };
        let is_up = !is_gone && changed.is_up() && changed.has_carrier();
        if std::mem::replace(&mut way.is_up, is_up) != is_up {
            let link = way.road.link;
            self.tell(Input::Carrier { link, is_up });
        }
    }

    /// One of [`EVENTS`].
    pub(super) fn on_event(&mut self, message: &Message<'_>) {
        if let Some(link) = Link::parse(message) {
            self.changed(&link, message.kind == kind::DEL_LINK);
        } else if let Some(changed) = Address::parse(message) {
            let is_meant = |way: &&mut Way| way.is_by(changed.interface, changed.address);
            // A gateway is asked from an address that the link has.
            self.ways.iter_mut().filter(is_meant).for_each(Way::ask_anew);
        } else if let Some(route) = Route::parse(message).filter(|_| message.kind == kind::NEW_ROUTE) {
            self.rerouted(&route);
        }
    }

    /// Events were lost: links and addresses as they are now.
    pub(super) fn hear_all(&mut self) {
        for request in [Request::dump_links(), Request::dump_addresses()] {
            // What cannot be had now changes nothing.
            let all = self.counters.request(&request.finish(1)).unwrap_or_default();
            messages(&all).for_each(|message| self.on_event(&message));
        }
    }

    /// A route came. A default one names who is to be asked from now on, where the user has named nobody.
    fn rerouted(&mut self, route: &Route) {
        let (Some(index), Some(gateway)) = (route.interface, route.gateway) else { return };
        if route.destination.is_some() || route.table != Route::MAIN {
            return;
        }
        let is_other =
            |way: &&mut Way| way.is_by(index, gateway) && !way.road.is_named && way.road.gateway != gateway;
        for way in self.ways.iter_mut().filter(is_other) {
            way.road.gateway = gateway;
            way.ask_anew();
        }
    }

    /// Counts what has been lost to the eye.
    pub(super) fn take_stock(&mut self) {
        self.counts.unseen += self.eye.as_ref().map_or(0, Eye::drops);
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.act(output);
        }
    }

    /// What outputs have brought.
    fn catch_up(&mut self) {
        while let Some(input) = self.later.pop_front() {
            self.hear_of(self.now(), input);
            self.drain();
        }
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Leave(_) | Output::Hold => debug_assert!(false, "no packet waits"),
            Output::Send { link, packet } => {
                let sent = self.way(link).map(|way| way.raw.send(&packet.0));
                self.count(sent.is_some_and(|sent| sent.is_ok()), |counts| &mut counts.sent);
            }
            Output::Deliver(packet) => {
                let sent = self.local.give(&packet.0);
                self.count(sent.is_ok(), |counts| &mut counts.delivered);
            }
            Output::Count { link } => {
                let packets = self.way(link).and_then(|way| arrived(&way.road.name));
                self.later.extend(packets.map(|packets| Input::Counted { link, packets }));
            }
            Output::Ask { link, sequence } => {
                let asked = self.way(link).map(|way| way.pinger.ask(sequence));
                self.count(asked.is_some_and(|asked| asked.is_ok()), |counts| &mut counts.asked);
            }
            Output::Call { call, link, server } => {
                let local = self.call(call, link, server);
                self.later.push_back(Input::Called { call, local, number: calls::number() });
            }
            Output::HangUp(call) => self.calls.close(call),
            Output::Watch(sight) => (self.sight, self.is_blind) = (sight, false),
            Output::Fetch(fetch) => self.fetch(fetch),
            Output::Cancel(fetch) => {
                if let Some(errands) = &self.errands {
                    // Whoever is gone has nothing to cancel.
                    let _ = errands.send(Errand::Cancel(fetch));
                }
            }
        }
    }

    fn count(&mut self, done: bool, counter: impl FnOnce(&mut Counts) -> &mut u64) {
        *if done { counter(&mut self.counts) } else { &mut self.counts.failed } += 1;
    }

    /// A port towards a server; none: it cannot be had.
    fn call(&mut self, call: CallId, link: LinkId, server: SocketAddr) -> Option<SocketAddr> {
        let road = self.ways.get(usize::from(link.0)).map(|way| &way.road)?;
        match self.calls.open(call, road, server) {
            Ok(local) => Some(local),
            Err(error) => {
                tracing::warn!(link = %road.name, %server, %error, "no connection can be replayed over it");
                None
            }
        }
    }

    /// Where nobody gets bytes, they cannot be had.
    fn fetch(&mut self, fetch: Fetch) {
        let (id, ranges) = (fetch.id, fetch.ranges.len());
        let sent = self.errands.as_ref().is_some_and(|errands| errands.send(Errand::Fetch(fetch)).is_ok());
        if !sent {
            let none = |range| Input::Fetched { fetch: id, range, bytes: None };
            self.later.extend((0..u32::try_from(ranges).unwrap_or(u32::MAX)).map(none));
        }
    }

    fn way(&self, link: LinkId) -> Option<&Way> {
        self.ways.get(usize::from(link.0))
    }
}

/// Packets that a device has brought; none: it is gone. Netlink would have this wait for whoever changes interfaces.
fn arrived(device: &str) -> Option<u64> {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    let counted = |line: &str| line.trim_start().strip_prefix(device)?.strip_prefix(':').map(str::to_owned);
    // Bytes, packets.
    devices.lines().find_map(counted)?.split_whitespace().nth(1)?.parse().ok()
}
