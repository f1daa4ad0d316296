//! `marline edge`: takes connections of applications and carries them over all links to a relay (BASS's B-box, §III-A).
//!
//! In: connections of programs that speak SOCKS5 or CONNECT. Out: for each, one connection over MPTCP and TLS to a relay, which
//! goes on to the server (`road`); where no relay can be had, one to the server itself over the machine's own way.
//!
//! 1. Which links carry a connection to the relay, and when, is decided by [`marline_core::paths`] for all MPTCP connections of this
//!    machine; here is only who is asked to carry on.
//! 2. A connection to the relay waits ready, so that a flow costs one round trip and not four (`road`, 2).
//! 3. Relays are asked in their order; one that failed is asked last until it has answered again.
//! 4. Direct is the last resort, is told once, and is a choice ([`Config::direct`]): it shows the server another address, and uses
//!    one link.

mod flow;
mod front;
mod road;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

pub use front::{Front, FrontError};
pub use road::RelayAt;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use road::answer;

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
}

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
    state: watch::Sender<EdgeState>,
}

impl Edge {
    /// An edge that is known to relays by what is in `tls`.
    pub fn new(config: Config, tls: Arc<rustls::ClientConfig>) -> Arc<Self> {
        let state = EdgeState { carried: vec![0; config.relays.len()], ..EdgeState::default() };
        let roads = road::Roads::new(&config, tls);
        Arc::new(Self { config, roads, state: watch::Sender::new(state) })
    }

    /// How it stands; changes are told.
    pub fn state(&self) -> watch::Receiver<EdgeState> {
        self.state.subscribe()
    }

    /// Keeps connections ready until dropped.
    pub async fn keep_warm(&self) -> std::convert::Infallible {
        self.roads.keep_warm().await
    }
}
