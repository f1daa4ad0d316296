//! `marline relay`: carries edges' connections to origin servers (the aggregation server of BASS, §III-A).
//!
//! It accepts connections over MPTCP and TLS 1.3; the client certificate identifies the edge. For each CONNECT request it opens a TCP
//! connection to the target, if the access rules ([`acl`]) and the limits permit it.
//!
//! 1. Only clients with a certificate of an edge are served; there are no other credentials (`listener`).
//! 2. Listeners use MPTCP; clients that speak plain TCP are served as well.
//! 3. A draining relay still listens, because additional MPTCP subflows of open connections come to the same port.
//! 4. A revoked certificate ends its connections within seconds, including running streams (`server_trust`).
//! 5. Each thread has its own runtime. Threads share only the listeners, the `registry` and the other fields of [`Relay`].
//!
//! - `listener`, `edge_conn`, `conn`: from an accepted connection over its TLS handshake to the end of its tunnel
//! - [`acl`], `resolver`, `upstream`: which targets are allowed, their addresses, and the connection to them
//! - `registry`: connected edges, limits and reservations; `rcvbuf_budget`: kernel memory of receive buffers
//! - `throughput_probe`, `origin_rates`: rates from edges, and to origin servers
//! - [`heartbeat`], [`control`], [`audit`]: the fleet service, the control socket and the log of flows

pub mod acl;
pub mod audit;
mod conn;
pub mod control;
mod edge_conn;
pub mod heartbeat;
mod listener;
mod origin_rates;
mod rcvbuf_budget;
mod registry;
mod resolver;
mod throughput_probe;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

pub use crate::listen_error::ListenError;
pub use crate::server_trust::{ServerTrust, TrustError, TrustStore};
pub use listener::Listeners;
pub use origin_rates::OriginRate;
pub use registry::{ConnectedEdge, Limits};

use marline_core::units::Bitrate;

use crate::congestion::CongestionControl;
use crate::identity::Name;
use registry::Registry;

/// Configuration of a relay.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// The targets to which edges may connect.
    pub acl: acl::Acl,
    /// Limits for connections, tunnels and capacity.
    pub limits: Limits,
    /// Congestion control of connections to servers; none: the kernel's default.
    pub congestion: Option<CongestionControl>,
    /// Records each flow; none: no records.
    pub audit: Option<Arc<audit::AuditLog>>,
}

/// The current state of a relay, for its owner.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RelayState {
    /// Open tunnels.
    pub tunnels: usize,
    /// The relay itself accepts no new tunnels.
    pub draining: bool,
    /// The fleet has requested that the relay accept no new tunnels.
    pub closed: bool,
    /// The part of its capacity that is reserved.
    #[serde(rename = "reserved_bps")]
    pub reserved: Bitrate,
    /// Bytes received from edges since the start.
    pub up_bytes: u64,
    /// Bytes sent to edges since the start.
    pub down_bytes: u64,
    /// Connected edges, sorted by name.
    pub edges: Vec<ConnectedEdge>,
}

/// A relay: the state that all its connections share.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    trusted: watch::Receiver<Arc<ServerTrust>>,
    registry: Arc<Registry>,
    probes: throughput_probe::ActiveProbes,
    resolver: resolver::Resolver,
    rcvbuf_budget: Arc<rcvbuf_budget::RcvbufBudget>,
    origins: origin_rates::OriginRates,
    lifecycle: watch::Sender<LifecycleState>,
    /// Limits the refused connections that get a full linger time.
    refusal_permits: Semaphore,
}

impl Relay {
    /// A relay that always uses the latest value of `trusted`.
    pub fn new(config: Config, trusted: watch::Receiver<Arc<ServerTrust>>) -> Arc<Self> {
        let registry = Registry::new(config.limits);
        let (resolver, rcvbuf_budget) =
            (resolver::Resolver::default(), rcvbuf_budget::RcvbufBudget::new(config.limits.receive_buffers));
        let probes = throughput_probe::ActiveProbes::default();
        let (origins, lifecycle) = (origin_rates::OriginRates::default(), watch::Sender::new(LifecycleState::Open));
        let refusal_permits = Semaphore::new(conn::MAX_REFUSALS);
        Arc::new(Self {
            config,
            trusted,
            registry,
            probes,
            resolver,
            rcvbuf_budget,
            origins,
            lifecycle,
            refusal_permits,
        })
    }

    /// Accepts no new tunnels; open ones continue.
    pub fn drain(&self) {
        self.set_lifecycle(LifecycleState::Draining);
    }

    /// Accepts new tunnels again. Returns false if the relay is stopping, which cannot be undone.
    pub fn undrain(&self) -> bool {
        self.lifecycle.send_if_modified(|state| {
            let can_undrain = *state <= LifecycleState::Draining;
            if can_undrain {
                *state = LifecycleState::Open;
                // Inside the closure: otherwise a stop between the two changes would be followed by new tunnels.
                self.registry.set_draining(false);
            }
            can_undrain
        })
    }

    /// Drains and stops: at once (`now`), or when the last tunnel has ended.
    pub fn stop(&self, now: bool) {
        self.set_lifecycle(if now { LifecycleState::StopNow } else { LifecycleState::StopWhenIdle });
    }

    fn set_lifecycle(&self, next: LifecycleState) {
        self.lifecycle.send_modify(|state| {
            // A relay that is stopping does not return to an earlier state.
            *state = next.max(*state);
            self.registry.set_draining(true);
        });
    }

    /// Waits for an order to stop: to stop at once (`now`), or of any kind.
    pub async fn wait_for_stop(&self, now: bool) {
        let target = if now { LifecycleState::StopNow } else { LifecycleState::StopWhenIdle };
        // `self` owns the sender, so the channel is not closed.
        let _ = self.lifecycle.subscribe().wait_for(|state| *state >= target).await;
    }

    fn is_ending(&self) -> bool {
        *self.lifecycle.borrow() >= LifecycleState::StopWhenIdle
    }

    /// Waits until the relay drains and the last tunnel has ended.
    pub async fn wait_until_idle(&self) {
        self.wait_for_drain().await;
        while self.registry.tunnels() > 0 {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        }
    }

    /// The current state.
    pub fn state(&self) -> RelayState {
        let [up_bytes, down_bytes] = self.registry.total_bytes();
        RelayState {
            tunnels: self.registry.tunnels(),
            draining: self.registry.is_draining(),
            closed: self.registry.is_closed(),
            reserved: self.registry.reserved(),
            up_bytes,
            down_bytes,
            edges: self.registry.edges(),
        }
    }

    /// The reservations that the fleet service has assigned, by edge.
    pub fn assigned(&self) -> BTreeMap<Name, Bitrate> {
        self.registry.assigned()
    }

    /// The measured rates to origin servers.
    pub fn origins(&self) -> Vec<OriginRate> {
        self.origins.rates()
    }

    /// Waits until the relay drains.
    async fn wait_for_drain(&self) {
        // `self` owns the sender, so the channel is not closed.
        let _ = self.lifecycle.subscribe().wait_for(|state| *state >= LifecycleState::Draining).await;
    }
}

/// The life cycle of a relay. It goes back only from `Draining` to `Open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LifecycleState {
    /// Accepts new tunnels.
    Open,
    /// Accepts no new tunnels.
    Draining,
    /// Accepts no new tunnels, and stops when the last one has ended.
    StopWhenIdle,
    /// Stops at once.
    StopNow,
}

/// Interval of the check whether the last tunnel has ended.
const IDLE_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);
