//! Registry of connected edges, their connections and tunnels, and admission control for new ones.
//!
//! Each admitted connection gets a [`ConnPermit`], which releases everything when dropped; others get the [`Problem`] to respond with.
//!
//! 1. The limits of a new tunnel are checked in this order: the relay drains; the limit of the edge; the limit of the relay; the
//!    unreserved capacity. An edge's reservation begins with its first tunnel and ends with its last connection. A reservation assigned
//!    by the fleet exists as long as it is assigned, whether the edge is connected or not.
//! 2. Bytes of each edge and direction are counted without a lock. Capacity is shared under a lock that is held for a few steps.
//! 3. When reservations change, reductions are applied first and then increases, as far as capacity is available. An edge whose increase
//!    does not fit keeps its present reservation; it is tried again when an edge has left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::fleet::fair_share::{CapacityExceeded, FairScheduler, Input, Output};
use marline_core::machine::Machine as _;
use marline_core::units::{Bitrate, DataSize, Instant};

use crate::identity::Name;
use crate::tunnel::{PaceGrant, Pacer, Problem, Status};

/// Limits of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tunnels in total.
    pub tunnels: usize,
    /// Tunnels of one edge.
    pub tunnels_per_edge: usize,
    /// Connections in total, with or without a tunnel.
    pub connections: usize,
    /// Connections in the TLS handshake.
    pub handshakes: usize,
    /// Capacity for each direction: BASS's T(s). None: unlimited, because it is not known.
    pub capacity: Option<Bitrate>,
    /// Reservation of an edge that the fleet has not assigned to this relay.
    pub default_reservation: Bitrate,
    /// Kernel memory for large receive buffers of active connections (see `rcvbuf_budget`).
    pub receive_buffers: DataSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tunnels: 16_384,
            tunnels_per_edge: 512,
            connections: 32_768,
            handshakes: 1024,
            capacity: None,
            default_reservation: Bitrate::from_mbps(1),
            receive_buffers: DataSize::from_mib(1024),
        }
    }
}

impl Limits {
    /// The same limits, reduced to what a process with this many file descriptors can handle: one for each connection, another one for
    /// each tunnel's connection to its server, one for each handshake, and `RESERVED_FDS` for everything else.
    #[must_use]
    pub fn fit_descriptors(self, descriptors: u64) -> Self {
        let Self { tunnels, connections, handshakes, .. } = self;
        let available_fds = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(RESERVED_FDS);
        let needed_fds = tunnels.saturating_add(connections).saturating_add(handshakes);
        if needed_fds <= available_fds {
            return self;
        }
        // Tunnels have priority, with two descriptors each. The rest is for connections that wait, at least a thirty-second, because
        // without a waiting connection no tunnel can begin. Handshakes are short: they get about a hundredth, but up to 64 if that is
        // no more than a quarter, and more if the descriptors are not needed otherwise.
        let spare_fds = available_fds.saturating_sub(tunnels.saturating_mul(2));
        let handshakes =
            handshakes.min((available_fds / 96).max(64.min(available_fds / 4)).max(spare_fds / 4)).max(1);
        let remaining = available_fds.saturating_sub(handshakes);
        let waiting = connections.saturating_sub(tunnels).min(remaining / 32);
        let tunnels = tunnels.min(connections).min(remaining.saturating_sub(waiting) / 2).max(1);
        let connections = connections.min(remaining.saturating_sub(tunnels)).max(1);
        Self { tunnels, connections, handshakes, ..self }
    }
}

/// Descriptors for everything except connections and tunnels. Our choice: listeners, runtimes, the control socket and its clients, the
/// service, lists, DNS lookups, and connection attempts to several addresses of a server at once.
const RESERVED_FDS: usize = 96;

/// Connections of one edge beyond its tunnels that may wait for a request. Our choice: an edge keeps two or three ready.
const SPARES_PER_EDGE: usize = 64;

/// All connected edges.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    epoch: std::time::Instant,
    state: Mutex<RegistryState>,
}

#[derive(Debug)]
struct RegistryState {
    up: FairScheduler<Name>,
    down: FairScheduler<Name>,
    edges: BTreeMap<Name, EdgeEntry>,
    connections: usize,
    tunnels: usize,
    is_draining: bool,
    /// The fleet has requested that no new tunnels be accepted.
    is_closed: bool,
    /// The reservations that the fleet has assigned.
    assigned: BTreeMap<Name, Bitrate>,
    /// Bytes of edges that have disconnected: up, down.
    departed_bytes: [u64; 2],
}

#[derive(Debug, Default)]
struct EdgeEntry {
    connections: usize,
    tunnels: usize,
    reserved: Option<Bitrate>,
    counters: Arc<ByteCounters>,
}

/// Byte counters of an edge.
#[derive(Debug, Default)]
pub(super) struct ByteCounters {
    up: AtomicU64,
    down: AtomicU64,
}

/// The state of a connected edge.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConnectedEdge {
    /// Name of the edge.
    pub name: String,
    /// Its connections, with or without a tunnel.
    pub connections: usize,
    /// Its tunnels.
    pub tunnels: usize,
    /// The rate reserved for it.
    #[serde(rename = "reserved_bps")]
    pub reserved: Bitrate,
    /// Bytes received from it since it connected.
    pub up_bytes: u64,
    /// Bytes sent to it since it connected.
    pub down_bytes: u64,
}

impl RegistryState {
    /// Makes the reservations equal to the assigned ones, as far as capacity is available (rule 3). Edges with tunnels come first.
    fn apply_reservations(&mut self, now: Instant, reserve: Bitrate) {
        let Self { up, down, edges, assigned, .. } = self;
        let present: BTreeSet<Name> = assigned.keys().chain(edges.keys()).cloned().collect();
        for direction in [&mut *up, &mut *down] {
            direction.handle(now, Input::RetainOnly(present.clone()));
        }
        let (active, waiting): (Vec<_>, Vec<_>) = edges.iter().partition(|(_, edge)| edge.reserved.is_some());
        // Assigned edges without a tunnel: their reservations are kept, but come after those in use.
        let absent = assigned.keys().filter(|name| edges.get(*name).is_none_or(|edge| edge.reserved.is_none()));
        // Edges that have only waiting connections, and are not assigned any more.
        let waiting_unassigned =
            waiting.into_iter().map(|(name, _)| name).filter(|name| !assigned.contains_key(*name));
        let target_of = |name: &Name| (name.clone(), assigned.get(name).copied().unwrap_or(reserve));
        let targets: Vec<(Name, Bitrate)> = waiting_unassigned
            .filter(|name| !up.reserved_for(name).is_zero())
            .map(|name| (name.clone(), Bitrate::ZERO))
            .chain(active.into_iter().map(|(name, _)| name).chain(absent).map(target_of))
            .collect();
        // Reductions first: they free the capacity for the increases, whatever the order of names.
        let (shrinking, growing): (Vec<_>, Vec<_>) =
            targets.into_iter().partition(|(name, target)| *target <= up.reserved_for(name));
        for (name, target) in shrinking.into_iter().chain(growing) {
            // If the capacity does not suffice, the edge keeps its previous reservation.
            let _ = reserve_in([&mut *up, &mut *down], now, &name, target);
            if let Some(edge) = edges.get_mut(&name).filter(|edge| edge.reserved.is_some()) {
                edge.reserved = Some(up.reserved_for(&name));
            }
        }
    }
}

/// Reserves a rate in both directions. They have the same capacity and the same reservations, so the second one cannot fail.
fn reserve_in(
    directions: [&mut FairScheduler<Name>; 2],
    now: Instant,
    edge: &Name,
    rate: Bitrate,
) -> Result<(), CapacityExceeded> {
    for direction in directions {
        direction.handle(now, Input::Reserve { edge: edge.clone(), rate });
        if let Some(Output::Reserved(result)) = direction.poll() {
            result?;
        }
    }
    Ok(())
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let (up, down) = (FairScheduler::new(limits.capacity), FairScheduler::new(limits.capacity));
        let state = RegistryState {
            up,
            down,
            edges: BTreeMap::new(),
            connections: 0,
            tunnels: 0,
            is_draining: false,
            is_closed: false,
            assigned: BTreeMap::new(),
            departed_bytes: [0; 2],
        };
        Arc::new(Self { limits, epoch: std::time::Instant::now(), state: Mutex::new(state) })
    }

    /// Admits a connection of an authenticated edge.
    pub(super) fn admit(self: &Arc<Self>, name: Name) -> Result<ConnPermit, Problem> {
        let mut state = self.lock();
        if state.connections >= self.limits.connections {
            return Err(unavailable("this relay has as many connections as it may have"));
        }
        let limit = self.limits.tunnels_per_edge.saturating_add(SPARES_PER_EDGE);
        if state.edges.get(&name).is_some_and(|edge| edge.connections >= limit) {
            let details = format!("{name} has {limit} connections, as many as it may have");
            return Err(Problem::new(Status::TooManyRequests, "connection_limit_reached", details));
        }
        state.connections += 1;
        let edge = state.edges.entry(name.clone()).or_default();
        edge.connections += 1;
        let counters = Arc::clone(&edge.counters);
        drop(state);
        Ok(ConnPermit { registry: Arc::clone(self), name, counters, has_tunnel: false })
    }

    /// Sets whether the relay itself refuses new tunnels.
    pub(super) fn set_draining(&self, draining: bool) {
        self.lock().is_draining = draining;
    }

    /// Sets whether the fleet has requested that new tunnels be refused.
    pub(super) fn set_closed(&self, closed: bool) {
        self.lock().is_closed = closed;
    }

    /// Replaces the assigned reservations.
    pub(super) fn set_assigned(&self, assigned: BTreeMap<Name, Bitrate>) {
        let mut state = self.lock();
        state.assigned = assigned;
        state.apply_reservations(self.now(), self.limits.default_reservation);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    pub(super) fn assigned(&self) -> BTreeMap<Name, Bitrate> {
        self.lock().assigned.clone()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.lock().is_draining
    }

    /// The number of open tunnels.
    pub(super) fn tunnels(&self) -> usize {
        self.lock().tunnels
    }

    /// The sum of all reservations.
    pub(super) fn reserved(&self) -> Bitrate {
        self.lock().up.reserved()
    }

    /// Bytes from edges and to edges since the start of the relay.
    pub(super) fn total_bytes(&self) -> [u64; 2] {
        let state = self.lock();
        state.edges.values().fold(state.departed_bytes, |[up, down], edge| {
            [up + edge.counters.up.load(Ordering::Relaxed), down + edge.counters.down.load(Ordering::Relaxed)]
        })
    }

    pub(super) fn edges(&self) -> Vec<ConnectedEdge> {
        let status_of = |(name, edge): (&Name, &EdgeEntry)| ConnectedEdge {
            name: name.to_string(),
            connections: edge.connections,
            tunnels: edge.tunnels,
            reserved: edge.reserved.unwrap_or_default(),
            up_bytes: edge.counters.up.load(Ordering::Relaxed),
            down_bytes: edge.counters.down.load(Ordering::Relaxed),
        };
        self.lock().edges.iter().map(status_of).collect()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        // No code under this lock panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unavailable(details: &str) -> Problem {
    Problem::new(Status::ServiceUnavailable, "connection_limit_reached", details)
}

/// The permit for one connection and its tunnel; dropping it releases both.
#[derive(Debug)]
pub(super) struct ConnPermit {
    registry: Arc<Registry>,
    name: Name,
    counters: Arc<ByteCounters>,
    has_tunnel: bool,
}

impl ConnPermit {
    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Admits the tunnel of this connection.
    pub(super) fn open_tunnel(&mut self) -> Result<(), Problem> {
        let limits = &self.registry.limits;
        let mut state = self.registry.lock();
        let RegistryState { up, down, edges, tunnels, is_draining: draining, is_closed: closed, assigned, .. } =
            &mut *state;
        let Some(edge) = edges.get_mut(&self.name) else { return Err(unavailable("the connection has ended")) };
        if *draining || *closed {
            return Err(unavailable("this relay is draining"));
        }
        if edge.tunnels >= limits.tunnels_per_edge {
            let details = format!("{} has {} tunnels, as many as it may have", self.name, edge.tunnels);
            return Err(Problem::new(Status::TooManyRequests, "connection_limit_reached", details));
        }
        if *tunnels >= limits.tunnels {
            return Err(unavailable("this relay has as many tunnels as it may have"));
        }
        if edge.reserved.is_none() {
            let reserve = assigned.get(&self.name).copied().unwrap_or(limits.default_reservation);
            let now = self.registry.now();
            reserve_in([up, down], now, &self.name, reserve).map_err(|full| unavailable(&full.to_string()))?;
            edge.reserved = Some(reserve);
        }
        (edge.tunnels, *tunnels, self.has_tunnel) = (edge.tunnels + 1, *tunnels + 1, true);
        Ok(())
    }
}

impl Pacer for ConnPermit {
    fn request(&mut self, is_up: bool, wanted: DataSize) -> PaceGrant {
        if self.registry.limits.capacity.is_none() {
            return PaceGrant::Granted(wanted);
        }
        let now = self.registry.now();
        let mut state = self.registry.lock();
        let direction = if is_up { &mut state.up } else { &mut state.down };
        direction.handle(now, Input::Request { edge: self.name.clone(), wanted });
        match direction.poll() {
            Some(Output::Grant(grant)) => grant,
            // Not reached: each request has one reply.
            _ => PaceGrant::Granted(DataSize::ZERO),
        }
    }

    fn settle(&mut self, is_up: bool, granted: DataSize, sent: DataSize) {
        let counter = if is_up { &self.counters.up } else { &self.counters.down };
        counter.fetch_add(sent.bytes(), Ordering::Relaxed);
        if self.registry.limits.capacity.is_some() && sent < granted {
            let now = self.registry.now();
            let mut state = self.registry.lock();
            let direction = if is_up { &mut state.up } else { &mut state.down };
            direction.handle(now, Input::Settle { edge: self.name.clone(), granted, sent });
        }
    }
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        let RegistryState { edges, connections, tunnels, departed_bytes, .. } = &mut *state;
        *connections -= 1;
        *tunnels -= usize::from(self.has_tunnel);
        let Some(edge) = edges.get_mut(&self.name) else { return };
        edge.connections -= 1;
        edge.tunnels -= usize::from(self.has_tunnel);
        if edge.connections == 0 {
            departed_bytes[0] += edge.counters.up.load(Ordering::Relaxed);
            departed_bytes[1] += edge.counters.down.load(Ordering::Relaxed);
            edges.remove(&self.name);
            state.apply_reservations(self.registry.now(), self.registry.limits.default_reservation);
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
        let permits: Vec<ConnPermit> = (0..100).map_while(|_| registry.admit(name("a")).ok()).collect();
        assert_eq!((permits.len(), registry.admit(name("a")).unwrap_err().status), (66, Status::TooManyRequests));
        assert!(registry.admit(name("b")).is_ok());
    }

    #[test]
    fn reservations_assigned_by_the_fleet_are_enforced() {
        let limits = Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() };
        let registry = Registry::new(limits);
        registry.set_assigned([(name("a"), Bitrate::from_mbps(30)), (name("b"), Bitrate::from_mbps(70))].into());
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|edge| registry.admit(name(edge)).unwrap());
        a.open_tunnel().unwrap();
        assert_eq!(b.open_tunnel().unwrap_err().status, Status::ServiceUnavailable);
        c.open_tunnel().unwrap();
        assert_eq!(registry.reserved(), Bitrate::from_mbps(31));
        // An assignment beyond the capacity leaves the edge its present reservation.
        registry.set_assigned([(name("a"), Bitrate::from_mbps(99)), (name("c"), Bitrate::from_mbps(5))].into());
        assert_eq!(registry.reserved(), Bitrate::from_mbps(35));
        registry.set_closed(true);
        assert_eq!(b.open_tunnel().unwrap_err().status, Status::ServiceUnavailable);
        registry.set_closed(false);
        b.open_tunnel().unwrap();
    }

    #[test]
    fn reservations_do_not_depend_on_the_order_of_names_and_use_freed_capacity() {
        let limits = Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() };
        let registry = Registry::new(limits);
        let assign = |assignments: &[(&str, u64)]| {
            registry.set_assigned(
                assignments.iter().map(|(edge, rate)| (name(edge), Bitrate::from_mbps(*rate))).collect(),
            );
        };
        assign(&[("a", 20), ("b", 70)]);
        let [mut a, mut b] = ["a", "b"].map(|edge| registry.admit(name(edge)).unwrap());
        a.open_tunnel().unwrap();
        b.open_tunnel().unwrap();
        // The edge that sorts first grows by the capacity that the other one gives up.
        assign(&[("a", 70), ("b", 20)]);
        assert_eq!(
            registry.edges().iter().map(|edge| edge.reserved.bits_per_sec()).collect::<Vec<_>>(),
            [70_000_000, 20_000_000]
        );
        // Capacity is kept for an assigned edge that is not connected, and an unassigned edge does not get it.
        assign(&[("a", 70), ("d", 25)]);
        drop(b);
        let [mut c, mut d] = ["c", "d"].map(|edge| registry.admit(name(edge)).unwrap());
        assert_eq!(c.open_tunnel().unwrap_err().status, Status::ServiceUnavailable);
        d.open_tunnel().unwrap();
        drop(d);
        assert_eq!(c.open_tunnel().unwrap_err().status, Status::ServiceUnavailable);
        // An increase that did not fit is applied when another edge has left.
        assign(&[("a", 40), ("c", 40)]);
        c.open_tunnel().unwrap();
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
    fn an_edge_without_a_tunnel_loses_a_reservation_that_is_no_longer_assigned() {
        let registry = Registry::new(Limits { capacity: Some(Bitrate::from_mbps(100)), ..Limits::default() });
        registry.set_assigned([(name("a"), Bitrate::from_mbps(90))].into());
        let mut idle_permit = registry.admit(name("a")).unwrap();
        registry.set_assigned([(name("b"), Bitrate::from_mbps(90))].into());
        assert_eq!(registry.reserved(), Bitrate::from_mbps(90));
        registry.admit(name("b")).unwrap().open_tunnel().unwrap();
        registry.set_assigned([].into());
        assert_eq!(registry.reserved(), Bitrate::ZERO);
        idle_permit.open_tunnel().unwrap();
        assert_eq!(registry.reserved(), Limits::default().default_reservation);
    }

    #[test]
    fn limits_fit_the_available_descriptors() {
        let usual = Limits::default();
        assert_eq!(usual.fit_descriptors(1 << 20), usual);
        for descriptors in [0, 64, 128, 1024, 4096, 20_000, 50_000] {
            let limits = usual.fit_descriptors(descriptors);
            let all = limits.tunnels + limits.connections + limits.handshakes + RESERVED_FDS;
            assert!(all as u64 <= descriptors.max(RESERVED_FDS as u64 + 3), "{descriptors}: {limits:?}");
        }
        // Tunnels have priority: two descriptors for each, and some for connections that wait.
        let all = usual.fit_descriptors(20_000);
        assert_eq!((all.tunnels, all.connections, all.handshakes), (9541, 10_156, 207));
        // Without a limit for waiting connections all descriptors are for tunnels.
        let all = Limits { tunnels: 9800, connections: 9800, ..usual }.fit_descriptors(20_000);
        assert_eq!((all.tunnels, all.connections), (9800, 9800));
        let few = Limits { tunnels: 10, connections: 20, handshakes: 5, ..usual };
        assert_eq!(few.fit_descriptors(1024), few);
    }

    #[test]
    fn limits_are_checked_in_order_and_capacity_is_released() {
        let limits = Limits {
            tunnels: 3,
            tunnels_per_edge: 2,
            connections: 5,
            capacity: Some(Bitrate::from_mbps(100)),
            default_reservation: Bitrate::from_mbps(40),
            ..Limits::default()
        };
        let registry = Registry::new(limits);
        let mut permits: Vec<ConnPermit> = (0..3).map(|_| registry.admit(name("a")).unwrap()).collect();
        permits[0].open_tunnel().unwrap();
        permits[1].open_tunnel().unwrap();
        assert_eq!(permits[2].open_tunnel().unwrap_err().status, Status::TooManyRequests);
        let mut other = registry.admit(name("b")).unwrap();
        other.open_tunnel().unwrap();
        let mut third = registry.admit(name("c")).unwrap();
        assert_eq!(third.open_tunnel().unwrap_err().details, "this relay has as many tunnels as it may have");
        assert_eq!(registry.admit(name("d")).unwrap_err().status, Status::ServiceUnavailable);
        permits.remove(0);
        let details = third.open_tunnel().unwrap_err().details;
        assert_eq!(details, "40.0Mbit/s are not free: 80.0Mbit/s of 100.0Mbit/s are reserved");
        drop(other);
        third.open_tunnel().unwrap();
        assert_eq!((registry.tunnels(), registry.reserved()), (2, Bitrate::from_mbps(80)));
        registry.set_draining(true);
        assert_eq!(permits[1].open_tunnel().unwrap_err().details, "this relay is draining");
        third.settle(true, DataSize::from_bytes(9), DataSize::from_bytes(7));
        drop((permits, third));
        assert_eq!((registry.tunnels(), registry.reserved(), registry.total_bytes()), (0, Bitrate::ZERO, [7, 0]));
        assert_eq!(registry.edges(), []);
    }
}
