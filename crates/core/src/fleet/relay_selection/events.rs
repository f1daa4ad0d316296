//! Options, inputs and outputs of the relay selection.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::PersistedState;
use crate::fleet::messages::{AssignmentReply, AssignmentRequest, Candidate, Report};
use crate::fleet::{Endpoint, Name, Position};
use crate::units::{Bitrate, DataSize, Instant};

/// Options of the selection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectorConfig {
    /// The origin server of the stream; `None`: it is learned from the flows ([`Input::Origin`]).
    pub origin: Option<Endpoint>,
    /// The rate that the edge needs; `None`: as much as possible.
    pub target_rate: Option<Bitrate>,
    /// The geographic position of the edge.
    pub position: Option<Position>,
    /// Whether the nearest relay that is fast enough is preferred to the fastest: one with 80 % of the highest rate, or with
    /// `target_rate` if that is lower.
    pub prefer_near: bool,
    /// The bytes that one probe may send over metered links; all probes of a day together ten times as many. Zero: none.
    pub probe_bytes: DataSize,
    /// Whether no flow goes directly (`--no-direct`): then replies without an assignment are followed as well.
    pub never_direct: bool,
}

impl Default for SelectorConfig {
    /// Our choice: 2 MB are ten seconds of a live stream.
    fn default() -> Self {
        Self {
            origin: None,
            target_rate: None,
            position: None,
            prefer_near: false,
            probe_bytes: DataSize::from_bytes(2_000_000),
            never_direct: false,
        }
    }
}

/// What a [`RelaySelector`](super::RelaySelector) was created with: its options, what an earlier run saved and how long ago, and the time.
pub type Config = (SelectorConfig, Option<(PersistedState, Duration)>, Instant);

/// An event, or the result of an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The service has offered these candidates.
    Candidates(Vec<Candidate>),
    /// A probe has ended.
    ProbeEnded {
        /// The relay that was measured.
        relay: Name,
        /// The measurement; `None`: the probe failed.
        result: Option<ProbeResult>,
        /// The bytes that it sent, also if it failed.
        sent: DataSize,
    },
    /// The service has replied to a request or a report.
    Reply(AssignmentReply),
    /// The service did not answer, or its reply was not usable.
    Unreachable,
    /// A relay has failed, or recovered.
    RelayFailed {
        /// The relay.
        relay: Name,
        /// Whether it fails now.
        has_failed: bool,
    },
    /// The traffic through relays in a period of this length.
    Traffic {
        /// The traffic of each relay.
        samples: Vec<(Name, TrafficSample)>,
        /// The length of the period.
        time: Duration,
    },
    /// The current links.
    Links(LinkFacts),
    /// The target of a new flow or stream, which is the origin server from now on unless the options name one.
    Origin(Endpoint),
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Request candidates; the result is [`Input::Candidates`] or [`Input::Unreachable`].
    FetchCandidates,
    /// Measure the throughput to this relay; the result is [`Input::ProbeEnded`].
    Probe(Name, ProbeLimits),
    /// Request an assignment; the result is [`Input::Reply`] or [`Input::Unreachable`].
    RequestAssignment(AssignmentRequest),
    /// Send a report; the result is [`Input::Reply`] or [`Input::Unreachable`].
    SendReport(Report),
    /// Use these relays for new flows, in this order.
    UseRelays(Vec<Name>),
    /// The state has changed and should be saved ([`RelaySelector::save`](super::RelaySelector::save)).
    Persist,
}

/// Purpose of the next deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Candidates are requested.
    Refresh,
    /// A report is sent.
    Report,
}

/// Limits of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeLimits {
    /// Maximum number of bytes to send.
    pub max_bytes: DataSize,
    /// Maximum duration after the connection is open.
    pub max_time: Duration,
    /// Send over this interface only; `None`: over all links.
    pub device: Option<String>,
}

/// Result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// B(c, s), the throughput to the relay.
    pub rate: Bitrate,
    /// RTT of the connection's first handshake.
    pub rtt: Duration,
    /// Bytes sent by the probe.
    pub bytes: DataSize,
}

/// Traffic through one relay in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficSample {
    /// Bytes from clients that were sent to the relay.
    pub sent: DataSize,
    /// For how long data from at least one client waited because its connection to the relay accepted no more.
    pub blocked: Duration,
}

/// Properties of the current links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// The names of the links that are up.
    pub up: Vec<String>,
    /// Whether one of them is metered.
    pub metered: bool,
    /// The best unmetered link.
    pub unmetered: Option<String>,
    /// B_o(c): the highest rate that a single link has shown lately. The selector keeps the maximum until the set of links changes.
    pub best_rate: Bitrate,
}
