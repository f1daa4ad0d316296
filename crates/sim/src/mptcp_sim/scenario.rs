//! Scenario of the MPTCP simulator: links, downloads, a server.
//!
//! 1. A [`Flow`] is one connection. It takes [`Request`]s from a pool, one after the other; flows with a common
//!    pool are the parallel connections of a browser.
//! 2. A flow that finds its pool empty closes its connection. This sends a FIN over each subflow, including
//!    suspended ones.

use marline_core::energy::Model;
use marline_core::link::LinkId;
use marline_core::paths::LinkConfig;
use marline_core::units::{DataSize, Duration, Ratio};

use crate::spec::{LinkEvent, LinkSpec};

/// A host with links, what it downloads, and the server.
#[derive(Clone, Debug)]
pub struct MptcpScenario {
    /// In the order of their indices.
    pub links: Vec<LinkSpec>,
    /// Changes of the links themselves.
    pub events: Vec<LinkEvent>,
    /// Carrier changes of their interfaces.
    pub carrier_changes: Vec<CarrierChange>,
    /// Links that appear during the run.
    pub link_arrivals: Vec<LinkArrival>,
    /// The connections to be opened.
    pub flows: Vec<Flow>,
    /// Requests of the connections, by pool.
    pub request_pools: Vec<Vec<Request>>,
    /// The server that responds to them.
    pub server: MptcpServer,
    /// Whether the connections use MPTCP; plain TCP connections are not reported to the machine.
    pub is_mptcp: bool,
    /// Probability that an MP_PRIO option is lost on a working link.
    pub prio_loss: Ratio,
    /// Energy model of the host's radios.
    pub model: Model,
    /// The run ends here at the latest.
    pub time_limit: Duration,
    /// Interval of the [`ProgressSample`](super::ProgressSample)s.
    pub sample_interval: Duration,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// A connection, which takes its requests from a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Time of its SYN, since the start of the run.
    pub start: Duration,
    /// Index of the link of its first subflow.
    pub initial_link: usize,
    /// Index of the pool of its requests.
    pub pool: usize,
}

/// A request with its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Time that the client waits before it sends the request.
    pub delay: Duration,
    /// Size of the response.
    pub size: DataSize,
}

/// An interface loses or regains its carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CarrierChange {
    /// Time since the start.
    pub at: Duration,
    /// Index of the link.
    pub link: usize,
    /// Whether it has carrier from then on.
    pub has_carrier: bool,
}

/// An interface is plugged in: it has carrier from then on, and was not reported before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkArrival {
    /// Time since the start.
    pub at: Duration,
    /// Configuration reported to the machine; its id is the index of the link in the scenario.
    pub config: LinkConfig,
}

/// Behavior of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MptcpServer {
    /// Additional subflows that it accepts (2 by default, as in `ip mptcp limits`); further joins are reset when
    /// they come up.
    pub max_joins: usize,
    /// Whether the congestion window survives a pause (eMPTCP §3.6; `tcp_slow_start_after_idle=0`).
    pub keeps_cwnd: bool,
    /// The client's receive buffer: upper limit of a connection's bytes in flight and out of order.
    pub receive_window: DataSize,
}

/// Configuration of these links for a machine: ids are indices, and all links are unmetered.
pub fn link_configs(links: &[LinkSpec]) -> Vec<LinkConfig> {
    let config_of = |(link, spec): (LinkId, &LinkSpec)| LinkConfig {
        id: link,
        name: spec.name.clone(),
        kind: spec.kind,
        metered: false,
        budget: None,
    };
    (0..).map(LinkId).zip(links).map(config_of).collect()
}

impl Default for MptcpServer {
    fn default() -> Self {
        Self { max_joins: 2, keeps_cwnd: false, receive_window: DataSize::from_bytes(3_000_000) }
    }
}

impl MptcpScenario {
    /// A scenario with this workload over these links and the default server.
    pub fn new(model: Model, links: Vec<LinkSpec>, workload: (Vec<Flow>, Vec<Vec<Request>>)) -> Self {
        let (flows, pools) = workload;
        Self {
            links,
            events: Vec::new(),
            carrier_changes: Vec::new(),
            link_arrivals: Vec::new(),
            flows,
            request_pools: pools,
            server: MptcpServer::default(),
            is_mptcp: true,
            prio_loss: Ratio::ZERO,
            model,
            time_limit: Duration::from_secs(3600),
            sample_interval: Duration::from_secs(1),
            seed: 1,
        }
    }
}

/// Workload of one connection with one response.
pub fn download_workload(size: DataSize) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
    (vec![flow], vec![vec![Request { delay: Duration::ZERO, size }]])
}

/// Workload of a web page: objects over several connections, each of which requests the next object when it is
/// idle.
pub fn page_workload(objects: &[DataSize], connections: usize) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
    let requests = objects.iter().map(|size| Request { delay: Duration::ZERO, size: *size }).collect();
    (vec![flow; connections], vec![requests])
}
