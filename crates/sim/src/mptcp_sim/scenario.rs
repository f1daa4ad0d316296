//! What there is and what happens: links, downloads, a server.
//!
//! 1. A [`Flow`] is one connection. It takes [`Request`]s from a pool, one after another; flows that share a pool are a
//!    browser's parallel connections.
//! 2. A flow that finds its pool empty closes its connection, which sends a FIN over each of its subflows: over one that
//!    sleeps, too.

use marline_core::energy::Model;
use marline_core::link::LinkId;
use marline_core::paths::LinkConfig;
use marline_core::units::{DataSize, Duration, Ratio};

use crate::spec::{LinkEvent, LinkSpec};

/// A host, its links, what it fetches and from whom.
#[derive(Clone, Debug)]
pub struct MptcpScenario {
    /// In the order of their numbers.
    pub links: Vec<LinkSpec>,
    /// What happens to them on the air.
    pub events: Vec<LinkEvent>,
    /// What happens to their interfaces.
    pub carrier_changes: Vec<CarrierChange>,
    /// Those of the links that are there only from some time on.
    pub link_arrivals: Vec<LinkArrival>,
    /// The connections.
    pub flows: Vec<Flow>,
    /// What they fetch.
    pub request_pools: Vec<Vec<Request>>,
    /// Who they fetch it from.
    pub server: MptcpServer,
    /// Whether the connections are MPTCP at all; else nobody is told of them.
    pub is_mptcp: bool,
    /// MP_PRIO options that are lost, of those that a working link carries.
    pub prio_loss: Ratio,
    /// What the radios draw.
    pub model: Model,
    /// It ends here, done or not.
    pub time_limit: Duration,
    /// How often a [`super::Sample`] is taken.
    pub sample_interval: Duration,
    /// Of everything that is drawn.
    pub seed: u64,
}

/// One connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// When it is opened.
    pub start: Duration,
    /// Over which link its first subflow goes.
    pub initial_link: usize,
    /// Which pool it takes its requests from.
    pub pool: usize,
}

/// One answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// How long the client waits before it asks.
    pub delay: Duration,
    /// How much comes.
    pub size: DataSize,
}

/// An interface loses its carrier or gets it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CarrierChange {
    /// When.
    pub at: Duration,
    /// Which link.
    pub link: usize,
    /// Whether it has carrier from then on.
    pub has_carrier: bool,
}

/// An interface is plugged in: it has carrier from then on, and nobody has heard of it before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkArrival {
    /// When.
    pub at: Duration,
    /// What the machine is told of it; its number says which link of the scene it is.
    pub config: LinkConfig,
}

/// How the other end behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MptcpServer {
    /// Subflows that it accepts beside the first one (`ip mptcp limits`: 2); a further one comes up and is reset.
    pub max_joins: usize,
    /// The congestion window outlives a pause (eMPTCP §3.6; `tcp_slow_start_after_idle=0`).
    pub keeps_cwnd: bool,
    /// The most bytes that a connection may have on its way and out of order: the client's receive buffer.
    pub receive_window: DataSize,
}

/// What a machine is told of these links: each by its place, free of charge.
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
    /// One download of this size over these links, the first of which carries the first subflow.
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

/// One connection, one answer.
pub fn download_workload(size: DataSize) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
    (vec![flow], vec![vec![Request { delay: Duration::ZERO, size }]])
}

/// A web page: objects over so many connections, each of which asks for the next object when it has one.
pub fn page_workload(objects: &[DataSize], connections: usize) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
    let requests = objects.iter().map(|size| Request { delay: Duration::ZERO, size: *size }).collect();
    (vec![flow; connections], vec![requests])
}
