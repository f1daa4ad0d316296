//! Combines the states of driver and policy into a status.

use std::time::Duration;

use marline_core::energy::{EnergyBreakdown, RadioState};
use marline_core::link::LinkId;
use marline_core::paths::{ConnId, Paths};
use marline_core::units::{Bitrate, Instant};

use super::{
    Connection, Decision, Explanation, ForwarderStatus, Link, RunInfo, Status, StatusCounts, Subflow, SubflowState,
};
use crate::{Snapshot, snapshot};

impl Status {
    /// Combines the states of driver and policy, with at most `max_connections` connections.
    pub fn new(run_info: &RunInfo, snapshot: &Snapshot, policy: &Paths, max_connections: Option<usize>) -> Self {
        let mut connections: Vec<Connection> =
            snapshot.connections.iter().map(|conn| connection_status(conn, snapshot.at, &snapshot.links)).collect();
        let count =
            |predicate: fn(&Connection) -> bool| connections.iter().filter(|conn| predicate(conn)).count() as u64;
        let counts = StatusCounts {
            managed: count(|conn| conn.management.is_managed()),
            active: count(|conn| conn.down_mbps > 0.0),
            adopted: count(|conn| conn.adopted),
            unmanaged: count(|conn| !conn.management.is_managed()),
            fallen_back: snapshot.totals.fallen_back,
            plain_now: snapshot.totals.plain_now,
            commands: snapshot.totals.commands,
            refused: snapshot.totals.refused,
            resyncs: snapshot.totals.resyncs,
        };
        let energy = policy.energy_so_far(snapshot.at);
        let links: Vec<Link> =
            snapshot.links.iter().map(|state| link_status(state, &connections, policy, &energy)).collect();
        connections
            .sort_by(|a, b| b.down_mbps.total_cmp(&a.down_mbps).then(b.received_bytes.cmp(&a.received_bytes)));
        connections.truncate(max_connections.unwrap_or(usize::MAX));
        for connection in &mut connections {
            connection.state = conn_state_text(policy, connection.token);
        }
        let radio_joules: Vec<f64> = links.iter().filter_map(|link| link.energy_j).collect();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: as_seconds(snapshot.at.since(Instant::ZERO)),
            mode: snapshot.mode.clone(),
            policy: run_info.policy,
            goal: run_info.goal,
            energy_model: run_info.energy_model.clone(),
            energy_j: (!radio_joules.is_empty()).then(|| radio_joules.iter().sum()),
            links,
            counts,
            forwarder: run_info.forwarder.as_deref().map(ForwarderStatus::from_counters),
            connections,
            notes: run_info.notes.iter().chain(&snapshot.notes).cloned().collect(),
        }
    }
}

impl Explanation {
    /// Combines a connection with its decisions. `snapshot` is of the same moment and provides the time and link names.
    pub fn new(
        conn: &snapshot::Connection,
        decisions: &[snapshot::Decision],
        snapshot: &Snapshot,
        policy: &Paths,
    ) -> Self {
        let decisions = decisions.iter().map(|decision| Decision {
            age_s: as_seconds(snapshot.at.since(decision.at)),
            text: decision.text.clone(),
        });
        let connection = connection_status(conn, snapshot.at, &snapshot.links);
        let state = conn_state_text(policy, connection.token);
        Self { connection: Connection { state, ..connection }, decisions: decisions.collect() }
    }
}

fn conn_state_text(policy: &Paths, token: u32) -> String {
    policy.conn_status(ConnId(token)).map(|status| status.state).unwrap_or_default()
}

fn link_status(
    state: &snapshot::LinkState,
    connections: &[Connection],
    policy: &Paths,
    energy: &EnergyBreakdown,
) -> Link {
    let status = policy.link_statuses().find(|status| status.link == state.id);
    let radio = status.as_ref().and_then(|status| status.radio).map(RadioState::name);
    let subflows_over = || {
        connections
            .iter()
            .flat_map(|conn| &conn.subflows)
            .filter(|subflow| subflow.link.as_ref() == Some(&state.name))
    };
    let active = subflows_over().filter(|subflow| subflow.state == SubflowState::Active).count();
    Link {
        name: state.name.clone(),
        kind: state.kind,
        metered: status.as_ref().is_some_and(|status| status.metered),
        up: state.up,
        silent: status.as_ref().is_some_and(|status| status.is_unresponsive),
        active: active as u64,
        suspended: (subflows_over().count() - active) as u64,
        received_bytes: state.received.bytes(),
        sent_bytes: state.sent.bytes(),
        down_mbps: state.rate.as_mbps_f64(),
        budget_used_bytes: state.budget_used.map(|used| used.bytes()),
        budget_left_bytes: status.and_then(|status| status.budget_left).map(|remaining| remaining.bytes()),
        radio: radio.map(str::to_owned),
        energy_j: energy.radio(state.id).map(|radio_energy| radio_energy.total().as_joules_f64()),
    }
}

fn connection_status(conn: &snapshot::Connection, now: Instant, links: &[snapshot::LinkState]) -> Connection {
    let name = |link: LinkId| links.iter().find(|state| state.id == link).map(|state| state.name.clone());
    let subflows: Vec<Subflow> = conn.subflows.iter().map(|s| subflow_status(s, s.link.and_then(name))).collect();
    Connection {
        token: conn.id.0,
        server: conn.server,
        age_s: as_seconds(now.since(conn.since)),
        adopted: conn.adopted,
        management: conn.management,
        received_bytes: conn.received.bytes(),
        sent_bytes: conn.sent.bytes(),
        // `sum()` of an empty iterator of floats is negative zero.
        down_mbps: subflows.iter().filter_map(|s| s.down_mbps).fold(0.0, |sum, mbps| sum + mbps),
        state: String::new(),
        reason: conn.reason.clone(),
        subflows,
    }
}

fn subflow_status(subflow: &snapshot::SubflowState, link: Option<String>) -> Subflow {
    let counters = &subflow.counters;
    let state = match (counters.backup, counters.peer_backup) {
        (true, _) if subflow.rate.is_some_and(|rate| rate > Bitrate::ZERO) => SubflowState::Draining,
        (true, _) => SubflowState::Suspended,
        (false, true) => SubflowState::PeerBackup,
        (false, false) => SubflowState::Active,
    };
    Subflow {
        link,
        local: subflow.local,
        remote: subflow.remote,
        initial: subflow.initial,
        state,
        received_bytes: counters.received.bytes(),
        sent_bytes: counters.sent.bytes(),
        down_mbps: subflow.rate.map(Bitrate::as_mbps_f64),
        rtt_ms: counters.receiver_rtt.or(counters.rtt).map(|rtt| as_seconds(rtt) * 1e3),
    }
}

fn as_seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
