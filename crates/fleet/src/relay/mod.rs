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

pub mod announce;
pub mod audit;
pub mod control;
mod door;
mod names;
mod origins;
mod probe;
mod reach;
mod registry;
mod rooms;
pub mod rules;
mod serve;
mod trust;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

pub use door::{DoorError, Doors};
pub use origins::Origin;
pub use registry::{EdgeState, Limits};
pub use trust::{Trust, TrustError, Trusted};

use marline_core::units::Bitrate;

use crate::congestion::Congestion;
use crate::identity::Name;
use registry::Registry;

/// What a relay does.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Where it carries to.
    pub rules: rules::Rules,
    /// How much.
    pub limits: Limits,
    /// The congestion control towards servers; none: the kernel's.
    pub congestion: Option<Congestion>,
    /// Where each flow is written down; none: nowhere.
    pub audit: Option<Arc<audit::Log>>,
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
    pub edges: Vec<EdgeState>,
}

/// A relay: what its connections share.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    trusted: watch::Receiver<Arc<Trusted>>,
    registry: Arc<Registry>,
    probes: probe::Probes,
    names: names::Names,
    rooms: Arc<rooms::Rooms>,
    origins: origins::Origins,
    course: watch::Sender<Course>,
    /// Places for those who are told no.
    refusals: Semaphore,
}

impl Relay {
    /// A relay that trusts what `trusted` says last.
    pub fn new(config: Config, trusted: watch::Receiver<Arc<Trusted>>) -> Arc<Self> {
        let registry = Registry::new(config.limits);
        let (names, rooms) = (names::Names::default(), rooms::Rooms::new(config.limits.buffers));
        let probes = probe::Probes::default();
        let (origins, course) = (origins::Origins::default(), watch::Sender::new(Course::Open));
        let refusals = Semaphore::new(serve::REFUSALS);
        Arc::new(Self { config, trusted, registry, probes, names, rooms, origins, course, refusals })
    }

    /// Takes no new tunnels; those that are open end when they end.
    pub fn drain(&self) {
        self.set_out_on(Course::Draining);
    }

    /// Takes new tunnels again; whether it does: one that is ending does not.
    pub fn take_in_again(&self) -> bool {
        self.course.send_if_modified(|course| {
            let may = *course <= Course::Draining;
            if may {
                *course = Course::Open;
                // In here, or one that was told to end in between would take tunnels again.
                self.registry.drain(false);
            }
            may
        })
    }

    /// Drains, and is to end when the last tunnel has, or at once.
    pub fn stop(&self, now: bool) {
        self.set_out_on(if now { Course::Over } else { Course::Ending });
    }

    fn set_out_on(&self, next: Course) {
        self.course.send_modify(|course| {
            // What ends does not go back.
            *course = next.max(*course);
            self.registry.drain(true);
        });
    }

    /// Ends when it is to end, if it waits for its tunnels or not.
    pub async fn stopped(&self, now: bool) {
        let least = if now { Course::Over } else { Course::Ending };
        // The sender is here: it does not go.
        let _ = self.course.subscribe().wait_for(|course| *course >= least).await;
    }

    fn is_ending(&self) -> bool {
        *self.course.borrow() >= Course::Ending
    }

    /// Ends when it drains and the last tunnel has ended.
    pub async fn empty(&self) {
        self.drained().await;
        while self.registry.tunnels() > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// How it stands.
    pub fn state(&self) -> RelayState {
        let [up_bytes, down_bytes] = self.registry.passed();
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
    pub fn origins(&self) -> Vec<Origin> {
        self.origins.known()
    }

    /// Ends when it drains.
    async fn drained(&self) {
        // The sender is here: it does not go.
        let _ = self.course.subscribe().wait_for(|course| *course >= Course::Draining).await;
    }
}

/// Where it is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Course {
    /// It takes new tunnels.
    Open,
    /// It takes none.
    Draining,
    /// It takes none, and ends with the last one.
    Ending,
    /// It ends now.
    Over,
}

/// How often it is looked whether the last tunnel has ended.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);
