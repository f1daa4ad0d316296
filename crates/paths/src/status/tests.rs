//! What a status shows of a snapshot and a policy, and how it is serialized.

use std::time::Duration;

use marline_core::energy::{ConcurrentDraw, Model, PowerCurve, RadioModel};
use marline_core::link::LinkId;
use marline_core::paths::{Config, ConnId, Counters, LinkConfig, Paths, SubflowId};
use marline_core::units::{Bitrate, DataSize, EnergyPerBit, Instant, Power};

use super::*;
use crate::{Snapshot, snapshot};

fn run_info() -> RunInfo {
    RunInfo {
        policy: Policy::WifiFirst,
        goal: Goal::Cost,
        energy_model: Some("typical".into()),
        notes: Vec::new(),
        forwarder: Some(Arc::default()),
    }
}

/// A policy with a radio for Wi-Fi and none for LTE.
fn policy() -> Paths {
    let link_config = |number, name: &str, kind, budget| LinkConfig {
        id: LinkId(number),
        name: name.into(),
        kind,
        metered: false,
        budget,
    };
    let draw = PowerCurve { base: Power::from_milliwatts(1000), per_bit: EnergyPerBit::ZERO, second_slope: None };
    let radios = [(LinkKind::Wifi, RadioModel::new(draw))].into();
    let model = Model::new("one", radios, ConcurrentDraw::default(), Power::ZERO).unwrap();
    let links = vec![
        link_config(0, "wlan0", LinkKind::Wifi, None),
        link_config(1, "wwan0", LinkKind::Lte, Some(DataSize::from_bytes(5))),
    ];
    Paths::new(Config::new(model, links))
}

#[test]
fn radios_and_budgets_come_from_the_policy() {
    let status = Status::new(&run_info(), &snapshot(), &policy(), None);
    let [wlan, wwan] = &status.links[..] else { panic!("{status:?}") };
    assert_eq!((wlan.radio.as_deref(), wlan.energy_j, wlan.budget_left_bytes), (Some("idle"), Some(0.0), None));
    assert_eq!((wwan.radio.as_deref(), wwan.energy_j, wwan.budget_left_bytes), (None, None, Some(5)));
    assert_eq!(status.energy_j, Some(0.0));
}

fn link(number: u16, name: &str) -> snapshot::LinkState {
    snapshot::LinkState {
        id: LinkId(number),
        name: name.into(),
        kind: LinkKind::Wifi,
        up: true,
        received: DataSize::from_bytes(10),
        sent: DataSize::from_bytes(20),
        rate: Bitrate::from_mbps(3),
        budget_used: None,
        subflows: 1,
    }
}

fn subflow(link: u16, backup: bool, rate: Option<u64>) -> snapshot::SubflowState {
    snapshot::SubflowState {
        id: SubflowId(u64::from(link)),
        link: Some(LinkId(link)),
        local: "10.1.0.2:5000".parse().unwrap(),
        remote: "10.9.0.1:80".parse().unwrap(),
        initial: link == 0,
        counters: Counters {
            received: DataSize::from_bytes(100),
            backup,
            rtt: Some(Duration::from_millis(20)),
            ..Counters::default()
        },
        rate: rate.map(Bitrate::from_mbps),
        age: None,
    }
}

fn connection(token: u32, subflows: Vec<snapshot::SubflowState>) -> snapshot::Connection {
    snapshot::Connection {
        id: ConnId(token),
        server: None,
        adopted: false,
        management: Management::Userspace,
        since: Instant::ZERO,
        reason: String::new(),
        received: DataSize::from_bytes(100),
        sent: DataSize::from_bytes(7),
        subflows,
    }
}

fn snapshot() -> Snapshot {
    let connections = vec![
        connection(1, vec![subflow(0, false, None)]),
        connection(2, vec![subflow(0, false, Some(8)), subflow(1, true, Some(0)), subflow(9, true, Some(2))]),
        snapshot::Connection { management: Management::PredatesSwitch, ..connection(3, Vec::new()) },
    ];
    Snapshot {
        at: Instant::ZERO + Duration::from_secs(2),
        mode: "userspace".into(),
        links: vec![link(0, "wlan0"), link(1, "wwan0")],
        connections,
        ..Snapshot::default()
    }
}

#[test]
fn notes_of_the_snapshot_follow_those_of_the_start() {
    let run_info = RunInfo { notes: vec!["of the start".into()], ..run_info() };
    let snapshot = Snapshot { notes: vec!["of now".into()], ..snapshot() };
    assert_eq!(Status::new(&run_info, &snapshot, &policy(), None).notes, ["of the start", "of now"]);
}

#[test]
fn the_busiest_connections_come_first_and_all_are_counted() {
    let status = Status::new(&run_info(), &snapshot(), &policy(), Some(1));
    assert_eq!(status.connections.iter().map(|c| c.token).collect::<Vec<_>>(), [2]);
    assert_eq!((status.counts.managed, status.counts.unmanaged, status.counts.active), (2, 1, 1));
    assert_eq!((status.links[0].active, status.links[0].suspended), (2, 0));
    assert_eq!((status.links[1].active, status.links[1].suspended), (0, 1));
    let [wlan, wwan, other] = &status.connections[0].subflows[..] else { panic!("{status:?}") };
    assert_eq!((wlan.link.as_deref(), wlan.state), (Some("wlan0"), SubflowState::Active));
    assert_eq!((wwan.link.as_deref(), wwan.state), (Some("wwan0"), SubflowState::Suspended));
    assert_eq!((other.link.as_deref(), other.state), (None, SubflowState::Draining));
    assert!(wlan.down_mbps.is_some_and(f64::is_sign_positive));
    let idle = Status::new(&run_info(), &snapshot(), &policy(), None).connections.pop().unwrap();
    assert!(idle.down_mbps == 0.0 && idle.down_mbps.is_sign_positive(), "{idle:?}");
    assert_eq!((wlan.rtt_ms, status.connections[0].down_mbps), (Some(20.0), 10.0));
}

#[test]
fn connections_that_are_managed_together_count_as_managed() {
    let mut snapshot = snapshot();
    snapshot.connections.truncate(2);
    snapshot.connections.iter_mut().for_each(|connection| connection.management = Management::KernelPm);
    let status = Status::new(&run_info(), &snapshot, &policy(), None);
    assert_eq!((status.counts.managed, status.counts.unmanaged), (2, 0));
    assert!(serde_json::to_string(&status).unwrap().contains(r#""management":"kernel_pm""#));
}

#[test]
fn totals_of_a_connection_are_not_the_sum_of_its_subflows() {
    let status = Status::new(&run_info(), &snapshot(), &policy(), Some(1));
    let [connection] = &status.connections[..] else { panic!("{status:?}") };
    assert_eq!((connection.received_bytes, connection.sent_bytes, connection.subflows.len()), (100, 7, 3));
}

#[test]
fn a_status_reads_back_as_it_was_written() {
    let status = Status::new(&run_info(), &snapshot(), &policy(), None);
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    for part in [
        r#""policy":"wifi-first""#,
        r#""management":"predates_switch""#,
        r#""state":"draining""#,
        r#""token":"00000002""#,
        r#""forwarder":{"open":0,"#,
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn missing_fields_of_an_older_daemon_have_defaults() {
    let status = Status {
        counts: StatusCounts::default(),
        ..Status::new(&run_info(), &Snapshot::default(), &policy(), None)
    };
    let mut value = serde_json::to_value(&status).unwrap();
    value.as_object_mut().unwrap().remove("notes");
    value["counts"] = serde_json::json!({});
    value["more"] = serde_json::json!("a field of tomorrow");
    assert_eq!(serde_json::from_value::<Status>(value).unwrap(), status);
}
