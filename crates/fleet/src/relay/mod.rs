//! `marline relay`: carries edges' connections to the servers that they mean (BASS's aggregation server, §III-A).
//!
//! In: connections over MPTCP and TLS 1.3 whose certificates say which edge they are of. Out: a TCP connection for each, to where
//! its request (CONNECT) wants, if [`rules`] allow it and there is room.
//!
//! 1. Nobody is carried who has no certificate of an edge: there is no other way in (`serve`).
//! 2. Listeners speak MPTCP; who speaks TCP alone is served as well.
//! 3. A relay that drains still listens: a link that joins a running connection comes to the same port, and would be refused.
//! 4. What is revoked ends within seconds, in mid-stream as well (`trust`).
//! 5. Threads have a runtime each and share nothing but the listeners and the `registry`.

pub mod acl;
pub mod audit;
mod conn;
pub mod control;
pub mod heartbeat;
mod listener;
mod origin_rates;
mod rcvbuf_budget;
mod registry;
mod resolver;
mod throughput_probe;
mod trust;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

pub use listener::{ListenError, Listeners};
pub use origin_rates::OriginRate;
pub use registry::{ConnectedEdge, Limits};
pub use trust::{ServerTrust, TrustError, TrustStore};

use marline_core::units::Bitrate;

use crate::congestion::CongestionControl;
use crate::identity::Name;
use registry::Registry;

/// What a relay does.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Where it carries to.
    pub acl: acl::Acl,
    /// How much.
    pub limits: Limits,
    /// The congestion control towards servers; none: the kernel's.
    pub congestion: Option<CongestionControl>,
    /// Where each flow is written down; none: nowhere.
    pub audit: Option<Arc<audit::AuditLog>>,
}

/// How a relay stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RelayState {
    /// Tunnels that are open.
    pub tunnels: usize,
    /// Whether it takes no new ones any more.
    pub draining: bool,
    /// Whether it takes no new ones for as long as the fleet says so.
    pub closed: bool,
    /// What is reserved of its capacity.
    #[serde(rename = "reserved_bps")]
    pub reserved: Bitrate,
    /// Bytes from edges since it began.
    pub up_bytes: u64,
    /// Bytes to edges since it began.
    pub down_bytes: u64,
    /// Edges that are connected, by name.
    pub edges: Vec<ConnectedEdge>,
}

/// A relay: what its connections share.
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
    /// Places for those who are told no.
    refusal_permits: Semaphore,
}

impl Relay {
    /// A relay that trusts what `trusted` says last.
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

    /// Takes no new tunnels; those that are open end when they end.
    pub fn drain(&self) {
        self.set_lifecycle(LifecycleState::Draining);
    }

    /// Takes new tunnels again; whether it does: one that is ending does not.
    pub fn undrain(&self) -> bool {
        self.lifecycle.send_if_modified(|state| {
            let may = *state <= LifecycleState::Draining;
            if may {
                *state = LifecycleState::Open;
                // In here, or one that was told to end in between would take tunnels again.
                self.registry.set_draining(false);
            }
            may
        })
    }

    /// Drains, and is to end when the last tunnel has, or at once.
    pub fn stop(&self, now: bool) {
        self.set_lifecycle(if now { LifecycleState::StopNow } else { LifecycleState::StopWhenIdle });
    }

    fn set_lifecycle(&self, next: LifecycleState) {
        self.lifecycle.send_modify(|state| {
            // What ends does not go back.
            *state = next.max(*state);
            self.registry.set_draining(true);
        });
    }

    /// Ends when it is to end, if it waits for its tunnels or not.
    pub async fn wait_for_stop(&self, now: bool) {
        let target = if now { LifecycleState::StopNow } else { LifecycleState::StopWhenIdle };
        // The sender is here: it does not go.
        let _ = self.lifecycle.subscribe().wait_for(|state| *state >= target).await;
    }

    fn is_ending(&self) -> bool {
        *self.lifecycle.borrow() >= LifecycleState::StopWhenIdle
    }

    /// Ends when it drains and the last tunnel has ended.
    pub async fn wait_until_idle(&self) {
        self.wait_for_drain().await;
        while self.registry.tunnels() > 0 {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        }
    }

    /// How it stands.
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

    /// What the fleet has reserved for whom.
    pub fn assigned(&self) -> BTreeMap<Name, Bitrate> {
        self.registry.assigned()
    }

    /// What it reaches to servers.
    pub fn origins(&self) -> Vec<OriginRate> {
        self.origins.rates()
    }

    /// Ends when it drains.
    async fn wait_for_drain(&self) {
        // The sender is here: it does not go.
        let _ = self.lifecycle.subscribe().wait_for(|state| *state >= LifecycleState::Draining).await;
    }
}

/// Where it is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LifecycleState {
    /// It takes new tunnels.
    Open,
    /// It takes none.
    Draining,
    /// It takes none, and ends with the last one.
    StopWhenIdle,
    /// It ends now.
    StopNow,
}

/// How often it is looked whether the last tunnel has ended.
const IDLE_CHECK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);
