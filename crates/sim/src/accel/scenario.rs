//! What a [`World`](super::World) is made of, as plain data: links, flows, events, and the accelerator. Equal scenarios
//! have equal outcomes.

use marline_core::accel::Config;
use marline_core::link::LinkId;
use marline_core::units::{Duration, Ratio};

use crate::spec::{LinkSpec, Loss};
use crate::tcp::Algorithm;

/// A client with its links, and servers behind them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The source of all randomness.
    pub seed: u64,
    /// The link whose flows are accelerated.
    pub primary: LinkSpec,
    /// The second link, if there is one.
    pub secondary: Option<LinkSpec>,
    /// Outages of links.
    pub outages: Vec<Outage>,
    /// The connections.
    pub flows: Vec<FlowScript>,
    /// The accelerator; none: plain TCP.
    pub config: Option<Config>,
    /// When it starts; it has not observed the beginning of earlier flows.
    pub attached_at: Duration,
    /// When it is killed.
    pub killed_at: Option<Duration>,
    /// Unexpected packets.
    pub malformed: Vec<(Duration, Malformed)>,
    /// How ranges are served.
    pub server: ServerBehavior,
    /// When the simulation ends at the latest.
    pub limit: Duration,
}

impl Scenario {
    /// The primary link.
    pub const PRIMARY: LinkId = LinkId(1);
    /// The second link.
    pub const SECONDARY: LinkId = LinkId(2);

    /// One flow over one link without events, plain TCP.
    pub fn new(primary: LinkSpec, script: FlowScript) -> Self {
        Self {
            seed: 1,
            primary,
            secondary: None,
            outages: Vec::new(),
            flows: vec![script],
            config: None,
            attached_at: Duration::ZERO,
            killed_at: None,
            malformed: Vec::new(),
            server: ServerBehavior::default(),
            limit: Duration::from_secs(600),
        }
    }

    /// The same without an accelerator.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self { config: None, killed_at: None, malformed: Vec::new(), ..self.clone() }
    }
}

/// A link carries nothing for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// Which link.
    pub link: LinkId,
    /// Since the start.
    pub at: Duration,
    /// Its length.
    pub duration: Duration,
    /// The interface reports that its carrier is lost, and when it is back.
    pub is_carrier_lost: bool,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowScript {
    /// When the client opens it.
    pub start: Duration,
    /// Requests and responses, one after the other.
    pub exchanges: Vec<Exchange>,
    /// How it ends.
    pub close: Close,
    /// Plain HTTP; otherwise its bytes cannot be parsed.
    pub is_http: bool,
    /// Its packets pass the accelerator.
    pub is_accelerated: bool,
    /// IPv6.
    pub is_v6: bool,
    /// The server's congestion control.
    pub algorithm: Algorithm,
    /// SACK is agreed on.
    pub sack: bool,
    /// Timestamps are agreed on.
    pub timestamps: bool,
    /// Loss towards the client on a hop of its own behind the primary link, such as a radio link that other flows do
    /// not share.
    pub loss: Loss,
    /// The client's window scale; zero bounds its window to 64 KiB.
    pub scale: u8,
    /// Initial sequence numbers of client and server.
    pub numbers: [u32; 2],
    /// Their timestamps at time zero.
    pub clocks: [u32; 2],
}

impl FlowScript {
    /// One response of so many bytes to a request of 200 bytes; the server closes. CUBIC, SACK, timestamps.
    pub fn download(bytes: u64) -> Self {
        Self {
            start: Duration::ZERO,
            exchanges: vec![Exchange { pause: Duration::ZERO, request: 200, response: bytes }],
            close: Close::Server,
            is_http: false,
            is_accelerated: true,
            is_v6: false,
            algorithm: Algorithm::Cubic,
            sack: true,
            timestamps: true,
            loss: Loss::NONE,
            scale: 7,
            numbers: [1_000_000, u32::MAX - 50_000],
            clocks: [7_000_000, 90_000],
        }
    }

    /// The same in the other direction: requests are as long as responses were, and vice versa.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        for exchange in &mut self.exchanges {
            (exchange.request, exchange.response) = (exchange.response, exchange.request);
        }
        let answers: u64 = self.exchanges.iter().map(|exchange| exchange.response).sum();
        let close = match self.close {
            Close::ServerReset(bytes) => Close::ServerReset(bytes.min(answers)),
            Close::ClientReset(bytes) => Close::ClientReset(bytes.min(answers)),
            other => other,
        };
        Self { is_http: false, close, ..self }
    }

    /// Whether the client sends more than it receives.
    pub fn is_upload(&self) -> bool {
        let sum = |part: fn(&Exchange) -> u64| self.exchanges.iter().map(part).sum::<u64>();
        sum(|exchange| exchange.request) > sum(|exchange| exchange.response)
    }
}

/// A request and its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Time between the previous response (or the handshake) and this request.
    pub pause: Duration,
    /// Bytes; ignored for plain HTTP, whose text determines its length.
    pub request: u64,
    /// Bytes of the resource.
    pub response: u64,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// The server closes, after its last response.
    Server,
    /// The client closes when it has received everything.
    Client,
    /// The server resets it after so many acknowledged bytes.
    ServerReset(u64),
    /// The client resets it after so many received bytes.
    ClientReset(u64),
}

/// An unexpected packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Malformed {
    /// Random bytes leave.
    NoiseOut,
    /// Random bytes arrive.
    NoiseIn,
    /// A packet of a flow arrives with some bytes changed; the stack discards it.
    MutantIn,
    /// A copy of a packet of a flow leaves from another port, with some bytes changed.
    MutantOut,
}

/// How ranges are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerBehavior {
    /// How often a range fails.
    pub failure: Ratio,
    /// How often a range is shorter than requested.
    pub truncation: Ratio,
    /// The greatest delay of a response, in addition to that of the link.
    pub max_delay: Duration,
}
