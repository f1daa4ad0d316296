//! Tests that `docs/fleet-api.json` matches the types of the API, field by field for each body.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::units::Bitrate;
use serde_json::Value;

use super::api_types::{
    Assignment, AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, EdgeSummary, Endpoint, Heartbeat,
    HeartbeatReply, NoRelayReason, RelayMeasurement, RelaySummary, Report, Reservation, ServiceStatus,
    StateVersion,
};
use super::problem::Problem;
use super::{DrainReply, DrainRequest, EnrolReply, EnrolRequest, Position};
use crate::ca::Address;
use crate::identity::Name;

fn name() -> Name {
    "a".parse().unwrap()
}

/// One value of each body type, with every optional field present.
fn sample_bodies() -> Vec<(&'static str, Value)> {
    let (rate, version, text) = (Bitrate::from_mbps(1), StateVersion { epoch: 1, version: 2 }, String::new);
    let (endpoint, address): (Endpoint, Address) = ("a.example:1".parse().unwrap(), "a.example".parse().unwrap());
    let position = Some(Position::new(1.0, 2.0).unwrap());
    let addresses = vec![endpoint];
    let origin = || addresses[0].clone();
    let measured = RelayMeasurement { relay: name(), rate, rtt_ms: Some(1) };
    let current_assignment = CurrentAssignment { relay: name(), reservation: rate, version };
    let request = AssignmentRequest {
        origin: origin(),
        best_link_rate: rate,
        target_rate: Some(rate),
        position,
        measurements: vec![measured.clone()],
    };
    let heartbeat = Heartbeat {
        capacity: rate,
        free: rate,
        addresses: addresses.clone(),
        server_name: address,
        position,
        origin_rates: BTreeMap::from([(origin(), rate)]),
        origin_lower_bounds: BTreeMap::from([(origin(), rate)]),
        draining: true,
        seen_version: version,
        reservations: Some(BTreeMap::from([(name(), rate)])),
    };
    let assignment = Assignment {
        relay: name(),
        addresses: addresses.clone(),
        server_name: Some(heartbeat.server_name.clone()),
        reservation: rate,
        lease_ms: 1,
        version,
    };
    let candidate = Candidate {
        relay: name(),
        addresses: addresses.clone(),
        server_name: heartbeat.server_name.clone(),
        free: rate,
        capacity: rate,
        origin_rate: Some(rate),
        distance_km: Some(1.0),
    };
    let heartbeat_reply = HeartbeatReply {
        version,
        heartbeat_ms: 1,
        revocations: 1,
        draining: true,
        reservations: None,
        report_reservations: true,
    };
    let relay = RelaySummary {
        name: name(),
        capacity: rate,
        free: rate,
        claimed: rate,
        edges: 1,
        healthy: true,
        draining: true,
        age_ms: 1,
        addresses: addresses.clone(),
        position,
        certificate_not_after: Some(text()),
        duplicate_addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
    };
    let edge = EdgeSummary {
        name: name(),
        origin: origin(),
        best_link_rate: rate,
        relay: Some(name()),
        reservation: Some(rate),
        throughput: rate,
        reason: Some(NoRelayReason::NoGain),
        version: Some(version),
        age_ms: 1,
        certificate_not_after: Some(text()),
        duplicate_addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
    };
    let report = Report {
        request: request.clone(),
        throughput: rate,
        offered_rate: Some(rate),
        assignment: Some(current_assignment.clone()),
    };
    let reply =
        AssignmentReply { assignment: Some(assignment.clone()), reason: None, heartbeat_ms: 1, revocations: 1 };
    let service = ServiceStatus {
        name: name(),
        store: text(),
        region: Some(text()),
        is_leader: true,
        leader_address: Some(text()),
        epoch: Some(1),
        error: Some(text()),
    };
    let enrolled = EnrolReply { certificate: text(), authority: text(), not_after: text() };
    let problem = Problem { status: 400, title: text(), detail: text() };
    macro_rules! values {
        ($($kind:literal $value:expr),+ $(,)?) => { vec![$(($kind, serde_json::to_value($value).unwrap())),+] };
    }
    values![
        "StateVersion" version, "Position" position, "RelayMeasurement" measured, "CurrentAssignment" current_assignment, "AssignmentRequest" request, "Heartbeat" heartbeat,
        "HeartbeatReply" heartbeat_reply, "Reservation" Reservation { edge: name(), reservation: rate, version }, "Report" report,
        "AssignmentReply" reply, "Assignment" assignment, "Candidate" candidate, "RelaySummary" relay, "EdgeSummary" edge,
        "EnrolRequest" EnrolRequest { token: text(), request: text() }, "EnrolReply" enrolled,
        "DrainRequest" DrainRequest { draining: true, duration_ms: Some(1) }, "DrainReply" DrainReply { known: true, durable: true },
        "Problem" problem, "ServiceStatus" service,
    ]
}

#[test]
fn each_body_has_exactly_the_fields_of_its_schema() {
    let description: Value = serde_json::from_str(include_str!("../../../../docs/fleet-api.json")).unwrap();
    let schemas = description["components"]["schemas"].as_object().unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let all = sample_bodies();
    for (kind, value) in &all {
        assert_eq!(keys(&schemas[*kind]["properties"]), keys(value), "{kind}");
    }
    let objects = schemas.iter().filter(|(_, schema)| schema["type"] == "object").map(|(kind, _)| kind.as_str());
    assert_eq!(objects.collect::<BTreeSet<_>>(), all.iter().map(|(kind, _)| *kind).collect());
}

#[test]
fn closed_schemas_reject_unknown_fields() {
    let description: Value = serde_json::from_str(include_str!("../../../../docs/fleet-api.json")).unwrap();
    for (kind, mut value) in sample_bodies() {
        let closed = description["components"]["schemas"][kind]["additionalProperties"] == Value::Bool(false);
        value["unknown"] = Value::Null;
        let refused = match kind {
            "StateVersion" => serde_json::from_value::<StateVersion>(value).is_err(),
            "Position" => serde_json::from_value::<Position>(value).is_err(),
            "RelayMeasurement" => serde_json::from_value::<RelayMeasurement>(value).is_err(),
            "CurrentAssignment" => serde_json::from_value::<CurrentAssignment>(value).is_err(),
            "AssignmentRequest" => serde_json::from_value::<AssignmentRequest>(value).is_err(),
            "Heartbeat" => serde_json::from_value::<Heartbeat>(value).is_err(),
            "Report" => serde_json::from_value::<Report>(value).is_err(),
            "EnrolRequest" => serde_json::from_value::<EnrolRequest>(value).is_err(),
            "DrainRequest" => serde_json::from_value::<DrainRequest>(value).is_err(),
            _ => false,
        };
        assert_eq!(refused, closed, "{kind}");
    }
}
