//! What edges, relays and the fleet service send each other; their JSON form is the API of the service.
//!
//! Values are validated while they are parsed: unknown fields are rejected, and so are lists longer than a well-behaved member
//! needs. `docs/fleet-api.json` describes the same bodies as OpenAPI; a test of the crate `fleet` compares the two.
//!
//! 1. No body contains the sender's name: the certificate identifies the sender.
//! 2. Field names in JSON carry their unit (`_bps`, `_ms`, `_km`); a rate is a whole number of bits per second.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Address, Endpoint, Name, Position};
use crate::units::Bitrate;

/// Version of the fleet's state; later versions compare greater. Each leader begins a new epoch, and `version` counts within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateVersion {
    /// Incremented whenever a process becomes leader.
    pub epoch: u64,
    /// Incremented by each change of an assignment within the epoch.
    pub version: u64,
}

/// A relay's heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// T(s): the capacity of the relay.
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// R(s): the unused part of the capacity, as the relay measures it.
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// Addresses at which edges reach the relay.
    pub addresses: Vec<Endpoint>,
    /// The name or address in its certificate that edges verify.
    pub server_name: Address,
    /// Geographical position of the relay.
    #[serde(default)]
    pub position: Option<Position>,
    /// B_o(s): measured rates from the relay to origin servers. For a server that is not listed the relay's capacity is assumed.
    #[serde(default, rename = "origin_rates_bps")]
    pub origin_rates: BTreeMap<Endpoint, Bitrate>,
    /// Lower bounds of B_o(s): the highest rates that its edges have sent to these servers, without reaching the limit.
    #[serde(default, rename = "origin_lower_bounds_bps")]
    pub origin_lower_bounds: BTreeMap<Endpoint, Bitrate>,
    /// The relay takes no new streams.
    #[serde(default)]
    pub draining: bool,
    /// The last version that the relay received. Reservations are not sent again if they have not changed since.
    #[serde(default)]
    pub seen_version: StateVersion,
    /// The reservations that the relay holds, if the last reply requested them ([`HeartbeatReply::report_reservations`]).
    #[serde(default, rename = "reservations_bps", skip_serializing_if = "Option::is_none")]
    pub reservations: Option<BTreeMap<Name, Bitrate>>,
}

/// Reply to a relay's heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// The version that this reply describes.
    pub version: StateVersion,
    /// Interval to the next heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the newest revocation list.
    pub revocations: u64,
    /// An operator wants the relay to drain.
    pub draining: bool,
    /// The complete set of reservations at this relay; none: unchanged since `seen_version`.
    pub reservations: Option<Vec<Reservation>>,
    /// The service has lost its state: the relay must send its next heartbeat at once, with the reservations that it holds.
    #[serde(default)]
    pub report_reservations: bool,
}

/// The reservation of one edge, as its relay receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The name of the edge.
    pub edge: Name,
    /// The rate reserved for it.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// The version in which the reservation was made.
    pub version: StateVersion,
}

/// An edge's request for a relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignmentRequest {
    /// The origin server of its stream.
    pub origin: Endpoint,
    /// B_o(c): the rate to the origin server over the edge's best single link, without a relay.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
    /// The rate that the stream needs at most; none: unlimited.
    #[serde(default, rename = "target_bps")]
    pub target_rate: Option<Bitrate>,
    /// Geographical position of the edge.
    #[serde(default)]
    pub position: Option<Position>,
    /// The relays that the edge has measured.
    pub measurements: Vec<RelayMeasurement>,
}

/// An edge's measurement of one relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayMeasurement {
    /// The name of the relay.
    pub relay: Name,
    /// B(c, s): the rate from the edge to the relay over all links.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The minimum RTT to the relay, in milliseconds.
    #[serde(default)]
    pub rtt_ms: Option<u32>,
}

/// An edge's periodic report: its request, its current assignment, and the throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The current request, with the same fields as when it was first sent.
    pub request: AssignmentRequest,
    /// Throughput through the relay since the last report.
    #[serde(rename = "throughput_bps")]
    pub throughput: Bitrate,
    /// The rate that the edge's programs offered in the same time; none: equal to `throughput`.
    #[serde(default, rename = "offered_bps")]
    pub offered_rate: Option<Bitrate>,
    /// The assignment that the edge uses.
    #[serde(default)]
    pub assignment: Option<CurrentAssignment>,
}

/// An assignment that an edge holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurrentAssignment {
    /// The name of the relay.
    pub relay: Name,
    /// The rate reserved there.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// The version in which the assignment was made.
    pub version: StateVersion,
}

/// Reply to an edge's request, report or release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentReply {
    /// The assigned relay.
    pub assignment: Option<Assignment>,
    /// Why no relay is assigned.
    pub reason: Option<NoRelayReason>,
    /// Interval to the next report, in milliseconds.
    pub heartbeat_ms: u64,
    /// Number of the newest revocation list, available at `/v1/revoked`.
    #[serde(default)]
    pub revocations: u64,
}

/// The assignment of a relay to an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The name of the relay.
    pub relay: Name,
    /// Addresses of the relay; empty: it has not sent a heartbeat since the service started.
    pub addresses: Vec<Endpoint>,
    /// The name or address for which the relay's certificate must be valid.
    pub server_name: Option<Address>,
    /// The rate reserved for the edge.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// Remaining lease in milliseconds; each report renews it.
    pub lease_ms: u64,
    /// The version in which the assignment was made.
    pub version: StateVersion,
}

/// Why an edge has no relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoRelayReason {
    /// The matching has not finished; the edge repeats the request.
    Pending,
    /// None of the measured relays is known, healthy and open to new streams.
    NoRelay,
    /// No relay is faster than the edge's best single link.
    NoGain,
    /// Other edges gain more from the remaining capacity.
    NoCapacity,
    /// The edge has released its relay.
    Released,
}

impl NoRelayReason {
    /// The reason as text for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::NoRelay => "no relay",
            Self::NoGain => "no gain",
            Self::NoCapacity => "no capacity",
            Self::Released => "released",
        }
    }
}

/// A relay that an edge may measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The name of the relay.
    pub relay: Name,
    /// Addresses of the relay.
    pub addresses: Vec<Endpoint>,
    /// The name or address for which the relay's certificate must be valid.
    pub server_name: Address,
    /// R(s): the unused capacity, as the service calculates it.
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// T(s): the capacity of the relay.
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// B_o(s) to the origin server in the query, if the relay has measured it.
    #[serde(rename = "origin_rate_bps")]
    pub origin_rate: Option<Bitrate>,
    /// Distance from the edge in kilometres; none: unknown.
    pub distance_km: Option<f64>,
}

/// A relay's row in the operator's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelaySummary {
    /// The name of the relay.
    pub name: Name,
    /// T(s): its capacity.
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// R(s): the unused capacity, as the service calculates it.
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// The sum over its edges: the reservation of each, and its throughput beyond that as far as it counts (at most as much again).
    #[serde(rename = "claimed_bps")]
    pub claimed: Bitrate,
    /// Number of edges assigned to it.
    pub edges: usize,
    /// Its last heartbeat arrived in time, or the service has just started (grace period).
    pub healthy: bool,
    /// It takes no new streams, by its own decision or an operator's.
    pub draining: bool,
    /// Time since its last heartbeat, in milliseconds.
    pub age_ms: u64,
    /// Addresses at which edges reach it.
    pub addresses: Vec<Endpoint>,
    /// Its geographical position.
    pub position: Option<Position>,
    /// When its last presented certificate expires, such as `2026-10-02T12:00:00Z`; none: it has not contacted the current leader.
    pub certificate_not_after: Option<String>,
    /// Addresses of the processes that use its certificate at the same time; empty: only one process does.
    #[serde(default)]
    pub duplicate_addresses: Vec<IpAddr>,
}

/// An edge's row in the operator's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeSummary {
    /// The name of the edge.
    pub name: Name,
    /// The origin server of its stream.
    pub origin: Endpoint,
    /// B_o(c): the rate of its best single link.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
    /// The assigned relay.
    pub relay: Option<Name>,
    /// The rate reserved for it.
    #[serde(rename = "reservation_bps")]
    pub reservation: Option<Bitrate>,
    /// Its last reported throughput.
    #[serde(rename = "throughput_bps")]
    pub throughput: Bitrate,
    /// Why it has no relay.
    pub reason: Option<NoRelayReason>,
    /// The version in which the assignment was made.
    pub version: Option<StateVersion>,
    /// Time since its last request or report, in milliseconds.
    pub age_ms: u64,
    /// As [`RelaySummary::certificate_not_after`].
    pub certificate_not_after: Option<String>,
    /// Addresses of the processes that use its certificate at the same time; empty: only one process does.
    #[serde(default)]
    pub duplicate_addresses: Vec<IpAddr>,
}

impl Heartbeat {
    /// Checks the bounds that the types do not enforce.
    ///
    /// # Errors
    /// A value is outside its bounds: zero capacity, or more rate or entries than a well-behaved relay needs.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.capacity > MAX_RATE || self.capacity.is_zero() {
            return Err(format!("capacity_bps: must be at least 1 and at most {}", MAX_RATE.bits_per_sec()));
        }
        if !(1..=MAX_ADDRESSES).contains(&self.addresses.len())
            || self.origin_rates.len().max(self.origin_lower_bounds.len()) > MAX_ORIGINS
        {
            return Err(format!(
                "1 to {MAX_ADDRESSES} addresses, and at most {MAX_ORIGINS} origin_rates_bps and origin_lower_bounds_bps, are allowed"
            ));
        }
        if self.reservations.as_ref().is_some_and(|assignment| assignment.len() > MAX_RESERVATIONS) {
            return Err(format!("reservations_bps: at most {MAX_RESERVATIONS} edges are allowed"));
        }
        Ok(())
    }

    /// Whether both describe the relay itself equally; its load is ignored.
    pub(super) fn is_same_relay(&self, other: &Self) -> bool {
        // Lower bounds change with each heartbeat, and no decision depends on them.
        let Self {
            capacity,
            free: _,
            addresses,
            server_name,
            position,
            origin_rates: origins,
            origin_lower_bounds: _,
            draining,
            seen_version: _,
            reservations: _,
        } = self;
        *capacity == other.capacity
            && *addresses == other.addresses
            && *server_name == other.server_name
            && *position == other.position
            && *origins == other.origin_rates
            && *draining == other.draining
    }
}

impl AssignmentRequest {
    /// Checks what the types do not enforce.
    ///
    /// # Errors
    /// A relay is listed twice, or there are more measurements than a well-behaved edge sends.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.measurements.len() > MAX_MEASUREMENTS {
            return Err(format!("measurements: at most {MAX_MEASUREMENTS} relays are allowed"));
        }
        let mut names = BTreeSet::new();
        match self.measurements.iter().find(|one| !names.insert(&one.relay)) {
            Some(duplicate) => Err(format!("measurements: relay {} is listed twice", duplicate.relay)),
            None => Ok(()),
        }
    }
}

/// Our choice: 1 Tbit/s; a matching can represent the sum of nine thousand such relays.
const MAX_RATE: Bitrate = Bitrate::from_mbps(1_000_000);
/// Our choice: the largest number of addresses in a certificate.
const MAX_ADDRESSES: usize = 16;
/// Our choice: eight times as many as a relay keeps.
const MAX_ORIGINS: usize = 512;
/// Our choice: the largest number of tunnels of a relay (`Limits` of the relay).
pub const MAX_RESERVATIONS: usize = 16_384;
/// Our choice: BASS measures 3 relays (§IV-B).
const MAX_MEASUREMENTS: usize = 32;
