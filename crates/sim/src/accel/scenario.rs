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
pub struct Scene {
    /// Where all chance comes from.
    pub seed: u64,
    /// The link whose flows are helped.
    pub primary: LinkSpec,
    /// The link that helps, if there is one.
    pub helper: Option<LinkSpec>,
    /// When links are dark.
    pub blackouts: Vec<Blackout>,
    /// The connections.
    pub flows: Vec<Plan>,
    /// The accelerator; none: plain TCP.
    pub config: Option<Config>,
    /// When it comes; what is there by then it has not seen begin.
    pub attached: Duration,
    /// When it dies.
    pub killed: Option<Duration>,
    /// Packets that nobody expects.
    pub hostile: Vec<(Duration, Hostility)>,
    /// How ranges are served.
    pub manners: Manners,
    /// When the world ends at the latest.
    pub limit: Duration,
}

impl Scene {
    /// The primary link.
    pub const PRIMARY: LinkId = LinkId(1);
    /// The link that helps.
    pub const HELPER: LinkId = LinkId(2);

    /// One flow over one link, nothing happens, plain TCP.
    pub fn new(primary: LinkSpec, plan: Plan) -> Self {
        Self {
            seed: 1,
            primary,
            helper: None,
            blackouts: Vec::new(),
            flows: vec![plan],
            config: None,
            attached: Duration::ZERO,
            killed: None,
            hostile: Vec::new(),
            manners: Manners::default(),
            limit: Duration::from_secs(600),
        }
    }

    /// The same without an accelerator.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self { config: None, killed: None, hostile: Vec::new(), ..self.clone() }
    }
}

/// A link carries nothing for a while, and says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blackout {
    /// Which link.
    pub link: LinkId,
    /// Since the start.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// The interface tells that its carrier is gone, and when it is back.
    pub is_told: bool,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When the client opens it.
    pub start: Duration,
    /// What is asked and answered, one after the other.
    pub exchanges: Vec<Exchange>,
    /// How it ends.
    pub close: Close,
    /// Plain HTTP; else nobody can read it.
    pub is_http: bool,
    /// The accelerator is meant for it; else no packet of it comes near.
    pub is_helped: bool,
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

impl Plan {
    /// One answer of so many bytes to a request of 200; the server closes. CUBIC, SACK, timestamps.
    pub fn download(bytes: u64) -> Self {
        Self {
            start: Duration::ZERO,
            exchanges: vec![Exchange { pause: Duration::ZERO, request: 200, answer: bytes }],
            close: Close::Server,
            is_http: false,
            is_helped: true,
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
    pub fn turned(mut self) -> Self {
        for exchange in &mut self.exchanges {
            (exchange.request, exchange.answer) = (exchange.answer, exchange.request);
        }
        let answers: u64 = self.exchanges.iter().map(|exchange| exchange.answer).sum();
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
        sum(|exchange| exchange.request) > sum(|exchange| exchange.answer)
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
    pub answer: u64,
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
pub enum Hostility {
    /// Random bytes leave.
    NoiseLeaves,
    /// Random bytes pass.
    NoisePasses,
    /// A packet of a flow that is there passes with some of its bytes changed; the stack throws it away.
    MutantPasses,
    /// A packet like one of a flow that is there leaves, from another port, with some of its bytes changed.
    MutantLeaves,
}

/// How ranges are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Manners {
    /// How often a range cannot be had.
    pub fails: Ratio,
    /// How often fewer bytes come than were asked for.
    pub short: Ratio,
    /// How long an answer takes at most, beside the link's time.
    pub late: Duration,
}
