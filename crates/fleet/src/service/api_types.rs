//! What is said over the API: the bodies of requests and answers, as types.
//!
//! In: JSON. Out: values that cannot be wrong: unknown fields are refused, and so are lists that nobody needs who means well.
//! `docs/fleet-api.json` describes the same for others.
//!
//! 1. Nobody says who he is: that stands in his certificate, and no body has a field for it.
//! 2. Names carry their unit; a rate is a whole number of bits per second.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::str::FromStr;

use marline_core::units::Bitrate;
use serde::{Deserialize, Serialize};

use super::geo::Position;
use crate::ca::Address;
use crate::identity::Name;
use crate::tunnel::Target;

/// A host and a port: where an edge's stream goes to, or where a relay listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(String);

impl Endpoint {
    /// The host, an IPv6 address without its brackets.
    pub fn host(&self) -> String {
        let host = self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default()
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let target = Target::parse(text).ok_or_else(|| format!("`{text}` is not HOST:PORT"))?;
        let Target { host, port } = target;
        Ok(Self(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.0
    }
}

/// Which state of the fleet: a later one is greater. Epochs begin when somebody takes the lead, versions count in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateVersion {
    /// Who leads counts these up.
    pub epoch: u64,
    /// What changes counts these up.
    pub version: u64,
}

/// A relay's heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// T(s): what it can carry.
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// R(s): what it has left of that, as it sees it.
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// Where edges reach it.
    pub addresses: Vec<Endpoint>,
    /// The name or address in its certificate that edges verify.
    pub server_name: Address,
    /// Where it is.
    #[serde(default)]
    pub position: Option<Position>,
    /// B_o(s): what it reaches to servers, as far as it has measured; others are taken for no narrower than it is.
    #[serde(default, rename = "origin_rates_bps")]
    pub origin_rates: BTreeMap<Endpoint, Bitrate>,
    /// What it reaches to servers at least: its edges have not sent more.
    #[serde(default, rename = "origin_lower_bounds_bps")]
    pub origin_lower_bounds: BTreeMap<Endpoint, Bitrate>,
    /// It takes no new streams.
    #[serde(default)]
    pub draining: bool,
    /// The last state that it was told, for which it needs not be told again.
    #[serde(default)]
    pub seen_version: StateVersion,
    /// What it keeps for edges that were assigned to it, if it was asked ([`BeatAnswer::tell_held`]).
    #[serde(default, rename = "reservations_bps", skip_serializing_if = "Option::is_none")]
    pub reservations: Option<BTreeMap<Name, Bitrate>>,
}

/// What a relay's heartbeat is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// Which state this is.
    pub version: StateVersion,
    /// When the next heartbeat is expected.
    pub heartbeat_ms: u64,
    /// The number of the newest revocation list.
    pub revocations: u64,
    /// An operator wants it to drain.
    pub draining: bool,
    /// Its edges, all of them; none: as `seen` has it.
    pub reservations: Option<Vec<Reservation>>,
    /// The next heartbeat, which comes at once, is to say what the relay keeps for whom: the service has just begun.
    #[serde(default)]
    pub report_reservations: bool,
}

/// An edge, as its relay is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Which one.
    pub edge: Name,
    /// What is kept for it.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// Since when.
    pub version: StateVersion,
}

/// What an edge would have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignmentRequest {
    /// Where its stream goes to.
    pub origin: Endpoint,
    /// B_o(c): what it reaches there alone.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
    /// More than this it does not need; none: whatever it can get.
    #[serde(default, rename = "target_bps")]
    pub target_rate: Option<Bitrate>,
    /// Where it is.
    #[serde(default)]
    pub position: Option<Position>,
    /// The relays that it has measured.
    pub measurements: Vec<RelayMeasurement>,
}

/// A relay that an edge has measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayMeasurement {
    /// Which one.
    pub relay: Name,
    /// B(c, s): what the edge reaches to it over all its links.
    #[serde(rename = "rate_bps")]
    pub rate: Bitrate,
    /// The smallest round trip.
    #[serde(default)]
    pub rtt_ms: Option<u32>,
}

/// What an edge says regularly: what it would have, what it has, and how it goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// As in a request.
    pub request: AssignmentRequest,
    /// What went through its relay since the last report.
    #[serde(rename = "throughput_bps")]
    pub throughput: Bitrate,
    /// What its programs offered in the same time; none: no more than went through.
    #[serde(default, rename = "offered_bps")]
    pub offered_rate: Option<Bitrate>,
    /// The relay that it uses.
    #[serde(default)]
    pub assignment: Option<CurrentAssignment>,
}

/// An assignment that an edge holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurrentAssignment {
    /// Its relay.
    pub relay: Name,
    /// What is reserved there.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// Since when.
    pub version: StateVersion,
}

/// How an edge stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentReply {
    /// Its relay.
    pub assignment: Option<Assignment>,
    /// Why it has none.
    pub reason: Option<NoRelayReason>,
    /// When the next report is expected.
    pub heartbeat_ms: u64,
    /// The number of the newest revocation list, which is at `/v1/revoked`.
    #[serde(default)]
    pub revocations: u64,
}

/// A relay for an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Which one.
    pub relay: Name,
    /// Where it listens; empty: it has not announced itself since the service began.
    pub addresses: Vec<Endpoint>,
    /// What to verify its certificate by.
    pub server_name: Option<Address>,
    /// What is kept for the edge.
    #[serde(rename = "reservation_bps")]
    pub reservation: Bitrate,
    /// How long, if no report renews it.
    pub lease_ms: u64,
    /// Since when.
    pub version: StateVersion,
}

/// Why an edge has no relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoRelayReason {
    /// The matching is not done: ask again.
    Pending,
    /// None of the relays that it has measured is known, healthy and open to new streams.
    NoRelay,
    /// No relay brings more than it has alone.
    NoGain,
    /// Others gain more by what is left.
    NoCapacity,
    /// It let go of its relay.
    Released,
}

impl NoRelayReason {
    /// As people read it.
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
    /// Which one.
    pub relay: Name,
    /// Where it listens.
    pub addresses: Vec<Endpoint>,
    /// What to verify its certificate by.
    pub server_name: Address,
    /// R(s).
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// T(s).
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// B_o(s) to the server asked about, if the relay has measured it.
    #[serde(rename = "origin_rate_bps")]
    pub origin_rate: Option<Bitrate>,
    /// How far it is; none: not known.
    pub distance_km: Option<f64>,
}

/// One process of the service, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name, as its certificate has it.
    pub name: Name,
    /// Where its store is.
    pub store: String,
    /// The region whose members it knows; none: it shares its store with nobody.
    pub region: Option<String>,
    /// It is the one that matches.
    pub is_leader: bool,
    /// Where the one is reached that matches, as far as that is known.
    pub leader_address: Option<String>,
    /// The epoch of that one.
    pub epoch: Option<u64>,
    /// Why store or authority cannot now.
    pub error: Option<String>,
}

/// A relay, for operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelaySummary {
    /// Which one.
    pub name: Name,
    /// T(s).
    #[serde(rename = "capacity_bps")]
    pub capacity: Bitrate,
    /// R(s), as the service reckons it.
    #[serde(rename = "free_bps")]
    pub free: Bitrate,
    /// What its edges have reserved, or use where that is more.
    #[serde(rename = "claimed_bps")]
    pub claimed: Bitrate,
    /// How many edges have it.
    pub edges: usize,
    /// It was heard in time.
    pub healthy: bool,
    /// It takes no new streams, whoever wants that.
    pub draining: bool,
    /// How long ago it was heard.
    pub age_ms: u64,
    /// Where it listens.
    pub addresses: Vec<Endpoint>,
    /// Where it is.
    pub position: Option<Position>,
    /// When the certificate ends that it has shown last, `2026-10-02T12:00:00Z`; none: it has not spoken to who matches now.
    pub certificate_not_after: Option<String>,
    /// Addresses of the processes that use its certificate at the same time; empty: there is one.
    #[serde(default)]
    pub duplicate_addresses: Vec<IpAddr>,
}

/// An edge, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeSummary {
    /// Which one.
    pub name: Name,
    /// Where its stream goes to.
    pub origin: Endpoint,
    /// What it has alone.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
    /// Its relay.
    pub relay: Option<Name>,
    /// What is kept for it.
    #[serde(rename = "reservation_bps")]
    pub reservation: Option<Bitrate>,
    /// What it said last that goes through.
    #[serde(rename = "throughput_bps")]
    pub throughput: Bitrate,
    /// Why it has no relay.
    pub reason: Option<NoRelayReason>,
    /// Since which state it has it.
    pub version: Option<StateVersion>,
    /// How long ago it was heard.
    pub age_ms: u64,
    /// As of a relay.
    pub certificate_not_after: Option<String>,
    /// Addresses of the processes that use its certificate at the same time; empty: there is one.
    #[serde(default)]
    pub duplicate_addresses: Vec<IpAddr>,
}

impl Heartbeat {
    /// What its type does not say.
    ///
    /// # Errors
    /// More than anybody needs who means well.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.capacity > MAX_RATE || self.capacity.is_zero() {
            return Err(format!("capacity_bps: more than zero, and no more than {}", MAX_RATE.bits_per_sec()));
        }
        if !(1..=MAX_ADDRESSES).contains(&self.addresses.len())
            || self.origin_rates.len().max(self.origin_lower_bounds.len()) > MAX_ORIGINS
        {
            return Err(format!(
                "1 to {MAX_ADDRESSES} addresses and at most {MAX_ORIGINS} origin_rates_bps or origin_lower_bounds_bps"
            ));
        }
        if self.reservations.as_ref().is_some_and(|assignment| assignment.len() > MAX_RESERVATIONS) {
            return Err(format!("reservations_bps: at most {MAX_RESERVATIONS} edges"));
        }
        Ok(())
    }

    /// Whether it says the same of the relay itself, however loaded that is.
    pub(super) fn is_same_relay(&self, other: &Self) -> bool {
        // Rates that are lower bounds change all the time, and nothing is decided by them.
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
    /// What its type does not say.
    ///
    /// # Errors
    /// A relay twice, or more of them than anybody measures.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.measurements.len() > MAX_MEASUREMENTS {
            return Err(format!("measured: at most {MAX_MEASUREMENTS} relays"));
        }
        let mut names = BTreeSet::new();
        match self.measurements.iter().find(|one| !names.insert(&one.relay)) {
            Some(twice) => Err(format!("measured: relay {} is named twice", twice.relay)),
            None => Ok(()),
        }
    }
}

/// chosen: a terabit per second; eight thousand of them are what a matching can hold.
const MAX_RATE: Bitrate = Bitrate::from_mbps(1_000_000);
/// chosen: as many as a certificate names.
const MAX_ADDRESSES: usize = 16;
/// chosen: what a relay's 64 KiB hold.
const MAX_ORIGINS: usize = 512;
/// chosen: what a relay's tunnels can be at most (`Limits`).
pub(crate) const MAX_RESERVATIONS: usize = 16_384;
/// chosen: BASS measures 3 (§IV-B).
const MAX_MEASUREMENTS: usize = 32;
