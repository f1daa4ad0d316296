//! Whether `docs/fleet-api.json` says what the types say: field by field, for each body that there is.

use std::collections::{BTreeMap, BTreeSet};

use marline_core::units::Bitrate;
use serde_json::Value;

use super::problem::Problem;
use super::words::{
    Assignment, Beat, BeatAnswer, Candidate, EdgeRow, Endpoint, Held, Mark, Measured, Reason, RelayRow, Report,
    Reserved, ServiceRow, Standing, Wish,
};
use super::{Drain, Drained, Enrol, Enrolled, Position};
use crate::ca::Address;
use crate::identity::Name;

fn name() -> Name {
    "a".parse().unwrap()
}

/// One of each, with everything that it can say.
fn all() -> Vec<(&'static str, Value)> {
    let (rate, mark, text) = (Bitrate::from_mbps(1), Mark { epoch: 1, version: 2 }, String::new);
    let (endpoint, address): (Endpoint, Address) = ("a.example:1".parse().unwrap(), "a.example".parse().unwrap());
    let position = Some(Position::new(1.0, 2.0).unwrap());
    let addresses = vec![endpoint];
    let origin = || addresses[0].clone();
    let measured = Measured { relay: name(), rate, rtt_ms: Some(1) };
    let held = Held { relay: name(), reservation: rate, mark };
    let wish =
        Wish { origin: origin(), alone: rate, wanted: Some(rate), position, measured: vec![measured.clone()] };
    let beat = Beat {
        capacity: rate,
        free: rate,
        addresses: addresses.clone(),
        server_name: address,
        position,
        origins: BTreeMap::from([(origin(), rate)]),
        origins_least: BTreeMap::from([(origin(), rate)]),
        draining: true,
        seen: mark,
        held: Some(BTreeMap::from([(name(), rate)])),
    };
    let assignment = Assignment {
        relay: name(),
        addresses: addresses.clone(),
        server_name: Some(beat.server_name.clone()),
        reservation: rate,
        lease_ms: 1,
        mark,
    };
    let candidate = Candidate {
        relay: name(),
        addresses: addresses.clone(),
        server_name: beat.server_name.clone(),
        free: rate,
        capacity: rate,
        origin: Some(rate),
        distance_km: Some(1.0),
    };
    let told =
        BeatAnswer { mark, heartbeat_ms: 1, revocations: 1, draining: true, assignments: None, tell_held: true };
    let relay = RelayRow {
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
        certificate_ends: Some(text()),
        used_from: vec![std::net::Ipv4Addr::LOCALHOST.into()],
    };
    let edge = EdgeRow {
        name: name(),
        origin: origin(),
        alone: rate,
        relay: Some(name()),
        reservation: Some(rate),
        throughput: rate,
        reason: Some(Reason::NoGain),
        mark: Some(mark),
        age_ms: 1,
        certificate_ends: Some(text()),
        used_from: vec![std::net::Ipv4Addr::LOCALHOST.into()],
    };
    let report = Report { wish: wish.clone(), throughput: rate, offered: Some(rate), held: Some(held.clone()) };
    let standing = Standing { assignment: Some(assignment.clone()), reason: None, heartbeat_ms: 1, revocations: 1 };
    let service = ServiceRow {
        name: name(),
        store: text(),
        region: Some(text()),
        leads: true,
        matcher: Some(text()),
        epoch: Some(1),
        trouble: Some(text()),
    };
    let enrolled = Enrolled { certificate: text(), authority: text(), not_after: text() };
    let problem = Problem { status: 400, title: text(), detail: text() };
    macro_rules! values {
        ($($kind:literal $value:expr),+ $(,)?) => { vec![$(($kind, serde_json::to_value($value).unwrap())),+] };
    }
    values![
        "Mark" mark, "Position" position, "Measured" measured, "Held" held, "Wish" wish, "Beat" beat,
        "BeatAnswer" told, "Reserved" Reserved { edge: name(), reservation: rate, mark }, "Report" report,
        "Standing" standing, "Assignment" assignment, "Candidate" candidate, "RelayRow" relay, "EdgeRow" edge,
        "Enrol" Enrol { token: text(), request: text() }, "Enrolled" enrolled,
        "Drain" Drain { draining: true, for_ms: Some(1) }, "Drained" Drained { known: true, durable: true },
        "Problem" problem, "ServiceRow" service,
    ]
}

#[test]
fn each_body_has_the_fields_that_are_described() {
    let description: Value = serde_json::from_str(include_str!("../../../../docs/fleet-api.json")).unwrap();
    let schemas = description["components"]["schemas"].as_object().unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let all = all();
    for (kind, value) in &all {
        assert_eq!(keys(&schemas[*kind]["properties"]), keys(value), "{kind}");
    }
    let objects = schemas.iter().filter(|(_, schema)| schema["type"] == "object").map(|(kind, _)| kind.as_str());
    assert_eq!(objects.collect::<BTreeSet<_>>(), all.iter().map(|(kind, _)| *kind).collect());
}

#[test]
fn what_is_described_as_closed_refuses_other_fields() {
    let description: Value = serde_json::from_str(include_str!("../../../../docs/fleet-api.json")).unwrap();
    for (kind, mut value) in all() {
        let closed = description["components"]["schemas"][kind]["additionalProperties"] == Value::Bool(false);
        value["unknown"] = Value::Null;
        let refused = match kind {
            "Mark" => serde_json::from_value::<Mark>(value).is_err(),
            "Position" => serde_json::from_value::<Position>(value).is_err(),
            "Measured" => serde_json::from_value::<Measured>(value).is_err(),
            "Held" => serde_json::from_value::<Held>(value).is_err(),
            "Wish" => serde_json::from_value::<Wish>(value).is_err(),
            "Beat" => serde_json::from_value::<Beat>(value).is_err(),
            "Report" => serde_json::from_value::<Report>(value).is_err(),
            "Enrol" => serde_json::from_value::<Enrol>(value).is_err(),
            "Drain" => serde_json::from_value::<Drain>(value).is_err(),
            _ => false,
        };
        assert_eq!(refused, closed, "{kind}");
    }
}
