//! Who is here: edges, their connections and tunnels, and whether there is room for one more.
//!
//! In: connections and tunnels that come. Out: a [`Seat`] for each, or the [`Problem`] to be answered. A seat that is dropped
//! is free.
//!
//! 1. Room is looked for in this order: the relay drains; the edge's own limit; the relay's limit; the capacity that is not
//!    reserved yet. An edge's reservation is made with its first tunnel and ends with its last connection; what the fleet has
//!    assigned is reserved as long as it is, whether its edge is here or not.
//! 2. Bytes are counted for each edge and direction without a lock; capacity is shared under one, held for a few steps.
//! 3. When what is reserved changes, those who get less come first, and then those who get more, as far as there is room; who gets
//!    nothing more keeps what he has, and it is tried again when somebody has left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::units::{Bitrate, DataSize, Instant};

use crate::identity::Name;
use crate::share::Shares;
use crate::tunnel::{Grant, Pace, Problem, Status};

/// How much there may be of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tunnels in all.
    pub tunnels: usize,
    /// Tunnels of one edge.
    pub tunnels_per_edge: usize,
    /// Connections in all, those that wait for a request and those that carry.
    pub connections: usize,
    /// Connections that have not said yet who they are.
    pub handshakes: usize,
    /// What the relay may carry a second in each direction: BASS's T(s). None: it is not known.
    pub capacity: Option<Bitrate>,
    /// What is reserved for an edge that nobody has assigned to this relay.
    pub reserve: Bitrate,
    /// Memory of the kernel for connections whose bytes come; others have little.
    pub buffers: DataSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tunnels: 16_384,
            tunnels_per_edge: 512,
            connections: 32_768,
            handshakes: 1024,
            capacity: None,
            reserve: Bitrate::from_mbps(1),
            buffers: DataSize::from_mib(1024),
        }
    }
}

impl Limits {
    /// The same, or less where a process that may have so many descriptors cannot do it: a connection needs one, a tunnel
    /// another one to its server, a handshake one, and some are kept for everything else.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let Self { tunnels, connections, handshakes, .. } = self;
        let room = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(ASIDE);
        let wanted = tunnels.saturating_add(connections).saturating_add(handshakes);
        if wanted <= room {
            return self;
        }
        // Tunnels come first, two descriptors for each; what is left is for connections that wait, and a thirty-second in any case:
        // without one no tunnel begins. Handshakes are short: about a hundredth is theirs, but 64 where a quarter allows it, and more
        // where nobody else wants it.
        let spare = room.saturating_sub(tunnels.saturating_mul(2));
        let handshakes = handshakes.min((room / 96).max(64.min(room / 4)).max(spare / 4)).max(1);
        let rest = room.saturating_sub(handshakes);
        let waiting = connections.saturating_sub(tunnels).min(rest / 32);
        let tunnels = tunnels.min(connections).min(rest.saturating_sub(waiting) / 2).max(1);
        let connections = connections.min(rest.saturating_sub(tunnels)).max(1);
        Self { tunnels, connections, handshakes, ..self }
    }
}

/// Descriptors for everything that is neither a connection nor a tunnel. chosen: listeners, runtimes, the control socket and who
/// asks at it, the service, lists, look-ups, and servers whose addresses are tried side by side.
const ASIDE: usize = 96;

/// Connections of one edge beside its tunnels, that wait for a request. chosen: an edge keeps two or three ready.
const READY_PER_EDGE: usize = 64;

/// Everybody who is here.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    began: std::time::Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    up: Shares<Name>,
    down: Shares<Name>,
    edges: BTreeMap<Name, Edge>,
    connections: usize,
    tunnels: usize,
    draining: bool,
    /// The fleet wants it to take no new tunnels for now.
    closed: bool,
    /// What the fleet has reserved for whom.
    assigned: BTreeMap<Name, Bitrate>,
    /// Of edges that have gone.
    passed: [u64; 2],
}

#[derive(Debug, Default)]
struct Edge {
    connections: usize,
    tunnels: usize,
    reserved: Option<Bitrate>,
    meter: Arc<Meter>,
}

/// The bytes of an edge.
#[derive(Debug, Default)]
pub(super) struct Meter {
    up: AtomicU64,
    down: AtomicU64,
}

/// How an edge stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EdgeState {
    /// Its name.
    pub name: String,
    /// Its connections, those that wait too.
    pub connections: usize,
    /// Its tunnels.
    pub tunnels: usize,
    /// What is reserved for it.
    #[serde(rename = "reserved_bps")]
    pub reserved: Bitrate,
    /// Bytes that it has sent since it came.
    pub up_bytes: u64,
    /// Bytes that it has received since it came.
    pub down_bytes: u64,
}

impl State {
    /// Reserves what is to be, as far as there is room; who is here comes before those who are not.
    fn settle(&mut self, reserve: Bitrate) {
        let Self { up, down, edges, assigned, .. } = self;
        up.keep(|name| assigned.contains_key(name) || edges.contains_key(name));
        down.keep(|name| assigned.contains_key(name) || edges.contains_key(name));
        let (here, waiting): (Vec<_>, Vec<_>) = edges.iter().partition(|(_, edge)| edge.reserved.is_some());
        let absent = assigned.keys().filter(|name| edges.get(*name).is_none_or(|edge| edge.reserved.is_none()));
        // Who only waits with his connections, and is assigned no longer.
        let left = waiting.into_iter().map(|(name, _)| name).filter(|name| !assigned.contains_key(*name));
        let of = |name: &Name| (name.clone(), assigned.get(name).copied().unwrap_or(reserve));
        let targets: Vec<(Name, Bitrate)> = left
            .filter(|name| !up.of(name).is_zero())
            .map(|name| (name.clone(), Bitrate::ZERO))
            .chain(here.into_iter().map(|(name, _)| name).chain(absent).map(of))
            .collect();
        let (less, more): (Vec<_>, Vec<_>) = targets.into_iter().partition(|(name, target)| *target <= up.of(name));
        for (name, target) in less.into_iter().chain(more) {
            // Both have the same capacity and the same reservations.
            if up.admit(&name, target).is_ok() {
                let _ = down.admit(&name, target);
            }
            if let Some(edge) = edges.get_mut(&name).filter(|edge| edge.reserved.is_some()) {
                edge.reserved = Some(up.of(&name));
            }
        }
    }
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let (up, down) = (Shares::new(limits.capacity), Shares::new(limits.capacity));
        let state = State {
            up,
            down,
            edges: BTreeMap::new(),
            connections: 0,
            tunnels: 0,
            draining: false,
            closed: false,
            assigned: BTreeMap::new(),
            passed: [0; 2],
        };
        Arc::new(Self { limits, began: std::time::Instant::now(), state: Mutex::new(state) })
    }

    /// A connection whose edge is known.
    pub(super) fn enter(self: &Arc<Self>, name: Name) -> Result<Seat, Problem> {
        let mut state = self.lock();
        if state.connections >= self.limits.connections {
            return Err(no_room("this relay has as many connections as it may have"));
        }
        let most = self.limits.tunnels_per_edge.saturating_add(READY_PER_EDGE);
        if state.edges.get(&name).is_some_and(|edge| edge.connections >= most) {
            let words = format!("{name} has {most} connections, as many as it may have");
            return Err(Problem::new(Status::TooMany, "connection_limit_reached", words));
        }
        state.connections += 1;
        let edge = state.edges.entry(name.clone()).or_default();
        edge.connections += 1;
        let meter = Arc::clone(&edge.meter);
        drop(state);
        Ok(Seat { registry: Arc::clone(self), name, meter, tunnel: false })
    }

    /// No tunnels from now on, or tunnels again.
    pub(super) fn drain(&self, draining: bool) {
        self.lock().draining = draining;
    }

    /// No tunnels for as long as the fleet says so.
    pub(super) fn close(&self, closed: bool) {
        self.lock().closed = closed;
    }

    /// What is reserved for whom from now on.
    pub(super) fn assign(&self, assigned: BTreeMap<Name, Bitrate>) {
        let mut state = self.lock();
        state.assigned = assigned;
        state.settle(self.limits.reserve);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn assigned(&self) -> BTreeMap<Name, Bitrate> {
        self.lock().assigned.clone()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// Tunnels that are open.
    pub(super) fn tunnels(&self) -> usize {
        self.lock().tunnels
    }

    /// What is reserved in all.
    pub(super) fn reserved(&self) -> Bitrate {
        self.lock().up.reserved()
    }

    /// Bytes from edges and to edges since the relay began.
    pub(super) fn passed(&self) -> [u64; 2] {
        let state = self.lock();
        state.edges.values().fold(state.passed, |[up, down], edge| {
            [up + edge.meter.up.load(Ordering::Relaxed), down + edge.meter.down.load(Ordering::Relaxed)]
        })
    }

    pub(super) fn edges(&self) -> Vec<EdgeState> {
        let told = |(name, edge): (&Name, &Edge)| EdgeState {
            name: name.to_string(),
            connections: edge.connections,
            tunnels: edge.tunnels,
            reserved: edge.reserved.unwrap_or_default(),
            up_bytes: edge.meter.up.load(Ordering::Relaxed),
            down_bytes: edge.meter.down.load(Ordering::Relaxed),
        };
        self.lock().edges.iter().map(told).collect()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_room(words: &str) -> Problem {
    Problem::new(Status::NoRoom, "connection_limit_reached", words)
}

/// One connection's place, and its tunnel's.
#[derive(Debug)]
pub(super) struct Seat {
    registry: Arc<Registry>,
    name: Name,
    meter: Arc<Meter>,
    tunnel: bool,
}

impl Seat {
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// A place for its tunnel.
    pub(super) fn open(&mut self) -> Result<(), Problem> {
        let limits = &self.registry.limits;
        let mut state = self.registry.lock();
        let State { up, down, edges, tunnels, draining, closed, assigned, .. } = &mut *state;
        let Some(edge) = edges.get_mut(&self.name) else { return Err(no_room("the connection has ended")) };
        if *draining || *closed {
            return Err(no_room("this relay is draining"));
        }
        if edge.tunnels >= limits.tunnels_per_edge {
            let words = format!("{} has {} tunnels, as many as it may have", self.name, edge.tunnels);
            return Err(Problem::new(Status::TooMany, "connection_limit_reached", words));
        }
        if *tunnels >= limits.tunnels {
            return Err(no_room("this relay has as many tunnels as it may have"));
        }
        if edge.reserved.is_none() {
            let reserve = assigned.get(&self.name).copied().unwrap_or(limits.reserve);
            up.admit(&self.name, reserve).map_err(|full| no_room(&full.to_string()))?;
            let _ = down.admit(&self.name, reserve);
            edge.reserved = Some(reserve);
        }
        (edge.tunnels, *tunnels, self.tunnel) = (edge.tunnels + 1, *tunnels + 1, true);
        Ok(())
    }
}

impl Pace for Seat {
    fn ask(&mut self, is_up: bool, wanted: DataSize) -> Grant {
        if self.registry.limits.capacity.is_none() {
            return Grant::Now(wanted);
        }
        let now = self.registry.now();
        let mut state = self.registry.lock();
        if is_up { state.up.ask(now, &self.name, wanted) } else { state.down.ask(now, &self.name, wanted) }
    }

    fn passed(&mut self, is_up: bool, granted: DataSize, passed: DataSize) {
        let counter = if is_up { &self.meter.up } else { &self.meter.down };
        counter.fetch_add(passed.bytes(), Ordering::Relaxed);
        if self.registry.limits.capacity.is_some() && passed < granted {
            let mut state = self.registry.lock();
            let shares = if is_up { &mut state.up } else { &mut state.down };
            shares.passed(&self.name, granted, passed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let State { edges, connections, tunnels, passed, .. } = &mut *state;
        *connections -= 1;
        *tunnels -= usize::from(self.tunnel);
        let Some(edge) = edges.get_mut(&self.name) else { return };
        edge.connections -= 1;
        edge.tunnels -= usize::from(self.tunnel);
        if edge.connections == 0 {
            passed[0] += edge.meter.up.load(Ordering::Relaxed);
            passed[1] += edge.meter.down.load(Ordering::Relaxed);
            edges.remove(&self.name);
            state.settle(self.registry.limits.reserve);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn one_edge_does_not_take_all_connections() {
        let registry = Registry::new(Limits { tunnels_per_edge: 2, connections: 100, ..Limits::default() });
        let seats: Vec<Seat> = (0..100).map_while(|_| registry.enter(name("a")).ok()).collect();
        assert_eq!((seats.len(), registry.enter(name("a")).unwrap_err().status), (66, Status::TooMany));
        assert!(registry.enter(name("b")).is_ok());
    }

    #[test]
    fn what_the_fleet_says_is_reserved_is() {
        let limits = Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() };
        let registry = Registry::new(limits);
        registry.assign([(name("a"), Bitrate::from_mbps(30)), (name("b"), Bitrate::from_mbps(70))].into());
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|edge| registry.enter(name(edge)).unwrap());
        a.open().unwrap();
        assert_eq!(b.open().unwrap_err().status, Status::NoRoom);
        c.open().unwrap();
        assert_eq!(registry.reserved(), Bitrate::from_mbps(31));
        // What is more than there is leaves him what he has.
        registry.assign([(name("a"), Bitrate::from_mbps(99)), (name("c"), Bitrate::from_mbps(5))].into());
        assert_eq!(registry.reserved(), Bitrate::from_mbps(35));
        registry.close(true);
        assert_eq!(b.open().unwrap_err().status, Status::NoRoom);
        registry.close(false);
        b.open().unwrap();
    }

    #[test]
    fn the_order_of_names_decides_nothing_and_room_that_comes_free_is_used() {
        let limits = Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() };
        let registry = Registry::new(limits);
        let assign = |of: &[(&str, u64)]| {
            registry.assign(of.iter().map(|(edge, rate)| (name(edge), Bitrate::from_mbps(*rate))).collect());
        };
        assign(&[("a", 20), ("b", 70)]);
        let [mut a, mut b] = ["a", "b"].map(|edge| registry.enter(name(edge)).unwrap());
        a.open().unwrap();
        b.open().unwrap();
        // The one that comes first in the alphabet grows by what the other one gives.
        assign(&[("a", 70), ("b", 20)]);
        assert_eq!(
            registry.edges().iter().map(|edge| edge.reserved.bits_per_sec()).collect::<Vec<_>>(),
            [70_000_000, 20_000_000]
        );
        // One who is not here has his room, and a stranger does not get it.
        assign(&[("a", 70), ("d", 25)]);
        drop(b);
        let [mut c, mut d] = ["c", "d"].map(|edge| registry.enter(name(edge)).unwrap());
        assert_eq!(c.open().unwrap_err().status, Status::NoRoom);
        d.open().unwrap();
        drop(d);
        assert_eq!(c.open().unwrap_err().status, Status::NoRoom);
        // What there was no room for is there when somebody has left.
        assign(&[("a", 40), ("c", 40)]);
        c.open().unwrap();
        assign(&[("a", 40), ("c", 90)]);
        assert_eq!(registry.reserved(), Bitrate::from_mbps(80));
        assign(&[("c", 90)]);
        assert_eq!(registry.reserved(), Bitrate::from_mbps(91));
        drop((a, c));
        assert_eq!(registry.reserved(), Bitrate::from_mbps(90));
        assign(&[]);
        assert_eq!(registry.reserved(), Bitrate::ZERO);
    }

    #[test]
    fn who_waits_without_a_tunnel_keeps_nothing_that_is_no_longer_assigned() {
        let registry = Registry::new(Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() });
        registry.assign([(name("a"), Bitrate::from_mbps(90))].into());
        let mut warm = registry.enter(name("a")).unwrap();
        registry.assign([(name("b"), Bitrate::from_mbps(90))].into());
        assert_eq!(registry.reserved(), Bitrate::from_mbps(90));
        registry.enter(name("b")).unwrap().open().unwrap();
        registry.assign([].into());
        assert_eq!(registry.reserved(), Bitrate::ZERO);
        warm.open().unwrap();
        assert_eq!(registry.reserved(), Limits::default().reserve);
    }

    #[test]
    fn limits_are_what_descriptors_allow() {
        let usual = Limits::default();
        assert_eq!(usual.within(1 << 20), usual);
        for descriptors in [0, 64, 128, 1024, 4096, 20_000, 50_000] {
            let limits = usual.within(descriptors);
            let all = limits.tunnels + limits.connections + limits.handshakes + ASIDE;
            assert!(all as u64 <= descriptors.max(ASIDE as u64 + 3), "{descriptors}: {limits:?}");
        }
        // Tunnels come first: two descriptors for each, and some for connections that wait.
        let all = usual.within(20_000);
        assert_eq!((all.tunnels, all.connections, all.handshakes), (9541, 10_156, 207));
        // Who wants none that wait has them all for tunnels.
        let all = Limits { tunnels: 9800, connections: 9800, ..usual }.within(20_000);
        assert_eq!((all.tunnels, all.connections), (9800, 9800));
        let few = Limits { tunnels: 10, connections: 20, handshakes: 5, ..usual };
        assert_eq!(few.within(1024), few);
    }

    #[test]
    fn room_is_looked_for_in_order_and_free_again() {
        let limits = Limits {
            tunnels: 3,
            tunnels_per_edge: 2,
            connections: 5,
            capacity: Some(Bitrate::from_mbps(100)),
            reserve: Bitrate::from_mbps(40),
            ..Limits::default()
        };
        let registry = Registry::new(limits);
        let mut seats: Vec<Seat> = (0..3).map(|_| registry.enter(name("a")).unwrap()).collect();
        seats[0].open().unwrap();
        seats[1].open().unwrap();
        assert_eq!(seats[2].open().unwrap_err().status, Status::TooMany);
        let mut other = registry.enter(name("b")).unwrap();
        other.open().unwrap();
        let mut third = registry.enter(name("c")).unwrap();
        assert_eq!(third.open().unwrap_err().words, "this relay has as many tunnels as it may have");
        assert_eq!(registry.enter(name("d")).unwrap_err().status, Status::NoRoom);
        seats.remove(0);
        let words = third.open().unwrap_err().words;
        assert_eq!(words, "40.0Mbit/s are not free: 80.0Mbit/s of 100.0Mbit/s are reserved");
        drop(other);
        third.open().unwrap();
        assert_eq!((registry.tunnels(), registry.reserved()), (2, Bitrate::from_mbps(80)));
        registry.drain(true);
        assert_eq!(seats[1].open().unwrap_err().words, "this relay is draining");
        third.passed(true, DataSize::from_bytes(9), DataSize::from_bytes(7));
        drop((seats, third));
        assert_eq!((registry.tunnels(), registry.reserved(), registry.passed()), (0, Bitrate::ZERO, [7, 0]));
        assert_eq!(registry.edges(), []);
    }
}
