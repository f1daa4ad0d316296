//! Types of the request and response bodies of the API: the messages of `core`, and those that no machine handles.

pub use marline_core::fleet::Endpoint;
pub use marline_core::fleet::messages::{
    Assignment, AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, EdgeSummary, Heartbeat,
    HeartbeatReply, MAX_RESERVATIONS, NoRelayReason, RelayMeasurement, RelaySummary, Report, Reservation,
    StateVersion,
};
use serde::{Deserialize, Serialize};

use crate::identity::Name;

/// Status of one process of the service, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The name in its certificate.
    pub name: Name,
    /// Location of its store: a file, or `redis://HOST:PORT`.
    pub store: String,
    /// The region whose members it manages; none: the store is not shared with other processes.
    pub region: Option<String>,
    /// This process is the leader and makes the assignments.
    pub is_leader: bool,
    /// Address of the leader, if known.
    pub leader_address: Option<String>,
    /// Epoch of the leader.
    pub epoch: Option<u64>,
    /// Why the store or the certificate authority currently fails.
    pub error: Option<String>,
}

/// Body of an enrolment request: a token, and the public key to be certified.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The token that `marline fleet ca token` printed.
    pub token: String,
    /// Certificate request (PKCS #10) in PEM.
    pub request: String,
}

/// Reply to enrolment and to renewal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolReply {
    /// The issued certificate, followed by the certificate of its authority, in PEM.
    pub certificate: String,
    /// The issuing authority's certificate, then the other authorities that the service trusts with their revocation lists, in PEM.
    pub authority: String,
    /// When the certificate expires, as an RFC 3339 time in UTC.
    pub not_after: String,
}

/// An operator's request to drain a relay or to end its drain.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// `true`: the relay takes no new streams; `false`: it takes them again.
    pub draining: bool,
    /// How long the drain lasts, in milliseconds; none: until an operator ends it.
    #[serde(default)]
    pub duration_ms: Option<u64>,
}

/// Reply to [`DrainRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReply {
    /// The relay has sent a heartbeat to this service.
    pub known: bool,
    /// The store has accepted the change, so that it survives a restart of the service.
    pub durable: bool,
}
