//! What a world is made of, as plain data.
//!
//! In: links, flows, what happens to them, and what the accelerator may do. Out: everything that a [`World`](super::World)
//! needs; equal scenes give equal outcomes.

use marline_core::accel::Config;
use marline_core::link::LinkId;
use marline_core::units::{Duration, Ratio};

use crate::spec::{LinkSpec, Loss};
use crate::tcp::Algorithm;

/// A client with its links, and servers behind them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all chance comes from.
    pub seed: u64,
    /// The link whose flows are helped.
    pub primary: LinkSpec,
    /// The link that helps, if there is one.
    pub secondary: Option<LinkSpec>,
    /// When links are dark.
    pub outages: Vec<Outage>,
    /// The connections.
    pub flows: Vec<FlowScript>,
    /// The accelerator; none: plain TCP.
    pub config: Option<Config>,
    /// When it comes; what is there by then it has not seen begin.
    pub attached_at: Duration,
    /// When it dies.
    pub killed_at: Option<Duration>,
    /// Packets that nobody expects.
    pub malformed: Vec<(Duration, Malformed)>,
    /// How ranges are served.
    pub server: ServerBehavior,
    /// When the world ends at the latest.
    pub limit: Duration,
}

impl Scenario {
    /// The primary link.
    pub const PRIMARY: LinkId = LinkId(1);
    /// The link that helps.
    pub const SECONDARY: LinkId = LinkId(2);

    /// One flow over one link, nothing happens, plain TCP.
    pub fn new(primary: LinkSpec, plan: FlowScript) -> Self {
        Self {
            seed: 1,
            primary,
            secondary: None,
            outages: Vec::new(),
            flows: vec![plan],
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

/// A link carries nothing for a while, and says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// Which link.
    pub link: LinkId,
    /// Since the start.
    pub at: Duration,
    /// For how long.
    pub duration: Duration,
    /// The interface tells that its carrier is gone, and when it is back.
    pub is_carrier_lost: bool,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowScript {
    /// When the client opens it.
    pub start: Duration,
    /// What is asked and answered, one after the other.
    pub exchanges: Vec<Exchange>,
    /// How it ends.
    pub close: Close,
    /// Plain HTTP; else nobody can read it.
    pub is_http: bool,
    /// The accelerator is meant for it; else no packet of it comes near.
    pub is_accelerated: bool,
    /// IPv6.
    pub is_v6: bool,
    /// The server's congestion control.
    pub algorithm: Algorithm,
    /// SACK is agreed on.
    pub sack: bool,
    /// Timestamps are agreed on.
    pub timestamps: bool,
    /// What its packets towards the client lose on a hop of its own behind the primary link, such as a radio link that
    /// other flows do not share.
    pub loss: Loss,
    /// The client's window scale; zero bounds its window to 64 KiB.
    pub scale: u8,
    /// Where the sequence numbers of client and server begin.
    pub numbers: [u32; 2],
    /// Where their clocks stand at time zero.
    pub clocks: [u32; 2],
}

impl FlowScript {
    /// One answer of so many bytes to a request of 200; the server closes. CUBIC, SACK, timestamps.
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

    /// The same the other way: what was answered is sent, and what was sent is the answer.
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

    /// The client sends more than it gets.
    pub fn is_upload(&self) -> bool {
        let sum = |part: fn(&Exchange) -> u64| self.exchanges.iter().map(part).sum::<u64>();
        sum(|exchange| exchange.request) > sum(|exchange| exchange.response)
    }
}

/// A request and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// After the answer before.
    pub pause: Duration,
    /// Bytes; where the flow is plain HTTP, its text is as long as it is.
    pub request: u64,
    /// Bytes of the resource.
    pub response: u64,
}

/// Who ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// The server, behind its last answer.
    Server,
    /// The client, when it has it all.
    Client,
    /// The server resets it after so many acknowledged bytes.
    ServerReset(u64),
    /// The client resets it after so many bytes.
    ClientReset(u64),
}

/// A packet that nobody expects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Malformed {
    /// Random bytes leave.
    NoiseOut,
    /// Random bytes pass.
    NoiseIn,
    /// A packet of a flow that is there passes with some of its bytes changed; the stack throws it away.
    MutantIn,
    /// A packet like one of a flow that is there leaves, from another port, with some of its bytes changed.
    MutantOut,
}

/// How ranges are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerBehavior {
    /// How often a range cannot be had.
    pub failure: Ratio,
    /// How often fewer bytes come than were asked for.
    pub truncation: Ratio,
    /// How long an answer takes at most, beside the link's time.
    pub max_delay: Duration,
}
