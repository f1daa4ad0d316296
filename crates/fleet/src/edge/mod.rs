//! `marline edge`: takes connections of applications and carries them over all links to a relay (BASS's B-box, §III-A).
//!
//! In: connections of programs that speak SOCKS5 or CONNECT. Out: for each, one connection over MPTCP and TLS to a relay, which
//! goes on to the server (`road`); where no relay can be had, one to the server itself over the machine's own way.
//!
//! 1. Which links carry a connection to the relay, and when, is decided by [`marline_core::paths`] for all MPTCP connections of this
//!    machine; here is only who is asked to carry on.
//! 2. A connection to the relay waits ready, so that a flow costs one round trip and not four (`road`, 2).
//! 3. Relays are asked in their order; one that failed is asked last until it has answered again.
//! 4. Who uses it is bounded, in all and by address (`guests`); from elsewhere nobody reaches this machine itself (`local`); and a
//!    live stream goes before what else is sent (`priority`).
//! 5. Direct is the last resort, is told once, and is a choice ([`Config::direct`]): it shows the server another address, and uses
//!    one link.

mod flow;
mod front;
mod guests;
mod lanes;
mod live;
mod local;
mod priority;
mod queue;
mod road;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::units::Bitrate;
use tokio::sync::{oneshot, watch};

pub use front::{Front, FrontError, attend_lan};
pub use live::Live;
pub use road::RelayAt;

/// What an edge does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where programs reach it.
    pub listen: Vec<SocketAddr>,
    /// The relays that it may use, the best first.
    pub relays: Vec<RelayAt>,
    /// Connections to the best relay that wait ready.
    pub warm: usize,
    /// Whether a server is reached without a relay where none can be had.
    pub direct: bool,
    /// Whom it serves, and who comes first.
    pub guests: GuestTerms,
}

/// Whom an edge serves, and who comes first.
#[derive(Clone, Debug)]
pub struct GuestTerms {
    /// Flows that come before all others; RTMP unless something else is said.
    pub live: Vec<Live>,
    /// How many flows there may be.
    pub flows: usize,
    /// How many of one address.
    pub flows_of_one: usize,
}

impl Default for GuestTerms {
    fn default() -> Self {
        Self { live: vec![Live::rtmp()], flows: FLOWS, flows_of_one: FLOWS_OF_ONE }
    }
}

/// chosen: two descriptors each; a household with several browsers has some hundred.
const FLOWS: usize = 1024;
/// chosen: one client cannot take all places, and a browser has enough.
const FLOWS_OF_ONE: usize = 512;

/// How an edge stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EdgeState {
    /// Flows that are open.
    pub open: u64,
    /// Flows that were carried by each relay, in their order.
    pub carried: Vec<u64>,
    /// Flows that went to their servers directly.
    pub direct: u64,
    /// Flows that could not be carried.
    pub failed: u64,
}

/// An edge: what its flows share.
#[derive(Debug)]
pub struct Edge {
    config: Config,
    roads: road::Roads,
    lanes: lanes::Lanes,
    guests: Mutex<guests::Guests<oneshot::Sender<()>>>,
    local: local::Local,
    state: watch::Sender<EdgeState>,
}

impl Edge {
    /// An edge that is known to relays by what is in `tls`.
    pub fn new(config: Config, tls: Arc<rustls::ClientConfig>) -> Arc<Self> {
        let state = EdgeState { carried: vec![0; config.relays.len()], ..EdgeState::default() };
        let roads = road::Roads::new(&config, tls);
        let lanes = lanes::Lanes::new(config.guests.live.clone());
        let guests = Mutex::new(guests::Guests::new(config.guests.flows, config.guests.flows_of_one));
        Arc::new(Self {
            config,
            roads,
            lanes,
            guests,
            local: local::Local::ask(),
            state: watch::Sender::new(state),
        })
    }

    /// How it stands; changes are told.
    pub fn state(&self) -> watch::Receiver<EdgeState> {
        self.state.subscribe()
    }

    /// What flows that are not live streams may send together just now; none: as much as they can.
    pub fn allowance(&self) -> Option<Bitrate> {
        self.lanes.allowance()
    }

    fn guests(&self) -> MutexGuard<'_, guests::Guests<oneshot::Sender<()>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps connections ready until dropped.
    pub async fn keep_warm(&self) -> std::convert::Infallible {
        self.roads.keep_warm().await
    }
}
