//! Status of `marline paths` as the control socket sends it and `status`, `watch` and `explain` print it.
//!
//! It combines a [`Snapshot`] of the driver, the policy's state of radios and budgets, and the options of the run
//! ([`RunInfo`]) into JSON that reads back as the same values.
//!
//! 1. Names contain their unit, as everywhere in JSON (`docs/json.md`). `None` means "unknown" or "never", never
//!    zero.
//! 2. Times are ages or durations, not timestamps, because the reader has another clock.
//! 3. The busiest connections come first, so that a truncated list shows those that matter.
//! 4. The reader has the same version or a newer one: missing fields have defaults, and unknown fields are ignored.
//!
//! The driver's own values are not serialized for this: the status is a stable interface for programs, and the
//! driver's values must be free to change.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_core::energy::{EnergyBreakdown, RadioState};
use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{ConnId, Goal, Paths, Policy};
use marline_core::units::{Bitrate, Instant};
use serde::{Deserialize, Serialize};

use super::{Management, Snapshot, snapshot, transparent};

/// Options of a run that a status shows.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// The policy that decides on paths.
    pub policy: Policy,
    /// The goal of the policy.
    pub goal: Goal,
    /// Device of the energy model, whose radios stand for the links; none: no model.
    pub energy_model: Option<String>,
    /// Problems found at the start, one sentence each.
    pub notes: Vec<String>,
    /// Counters of the forwarder of plain TCP; none: it does not run.
    pub forwarder: Option<Arc<transparent::ForwarderCounters>>,
}

/// The whole status at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// How long it has run.
    pub uptime_s: f64,
    /// Management mode: `userspace` (each connection separately), `kernel-pm` (all together) or `dry-run` (none).
    pub mode: String,
    /// The policy that decides on paths.
    pub policy: Policy,
    /// The goal of the policy.
    pub goal: Goal,
    /// Device of the energy model, whose radios stand for the links; none: no model.
    pub energy_model: Option<String>,
    /// Energy of that device's radios since the start, for all traffic of the links; none: the model has none of the
    /// radios.
    pub energy_j: Option<f64>,
    /// The links of the run, in the order of their ids.
    pub links: Vec<Link>,
    /// Numbers of connections and commands.
    pub counts: StatusCounts,
    /// Forwarding of plain TCP of this host's programs; none: it is off.
    #[serde(default)]
    pub forwarder: Option<ForwarderStatus>,
    /// The connections, the busiest first, up to the requested number.
    pub connections: Vec<Connection>,
    /// Present problems, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Numbers of connections and commands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCounts {
    /// Managed connections, separately or all together.
    pub managed: u64,
    /// Connections that receive data now.
    pub active: u64,
    /// Open connections that are older than the daemon.
    pub adopted: u64,
    /// Unmanaged MPTCP connections: opened before the switch of the path manager, or only observed.
    pub unmanaged: u64,
    /// Connections since the start that requested MPTCP and fell back to plain TCP, because the server or a middlebox
    /// does not support it.
    pub fallen_back: u64,
    /// Open sockets that requested MPTCP and are plain TCP.
    pub plain_now: u64,
    /// Commands that the kernel executed.
    pub commands: u64,
    /// Commands that the kernel refused.
    pub refused: u64,
    /// Number of resynchronizations after lost kernel events.
    pub resyncs: u64,
}

/// Forwarding of plain TCP of this host's programs as MPTCP (`--transparent`), since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ForwarderStatus {
    /// Connections that are open now.
    pub open: u64,
    /// Connections whose server uses MPTCP.
    pub mptcp: u64,
    /// Connections without MPTCP, because the server or a middlebox does not support it.
    pub fallen_back: u64,
    /// Connections whose server could not be reached.
    pub failed: u64,
    /// Forwarded bytes in both directions.
    pub bytes: u64,
}

impl ForwarderStatus {
    fn from_counters(counts: &transparent::ForwarderCounters) -> Self {
        Self {
            open: counts.open(),
            mptcp: counts.mptcp(),
            fallen_back: counts.fallen_back(),
            failed: counts.failed(),
            bytes: counts.bytes(),
        }
    }
}

/// Status of one link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Link {
    /// Name of the interface.
    pub name: String,
    /// Assumed access technology.
    pub kind: LinkKind,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// Whether it can carry subflows now.
    pub up: bool,
    /// Whether a liveness probe got no reply and no data has arrived since.
    #[serde(default)]
    pub silent: bool,
    /// Number of subflows that may carry data.
    pub active: u64,
    /// Number of suspended subflows (backups).
    pub suspended: u64,
    /// Bytes received over the interface since the start, of all programs.
    pub received_bytes: u64,
    /// Bytes sent over the interface since the start.
    pub sent_bytes: u64,
    /// Receive rate in the last second.
    pub down_mbps: f64,
    /// Used part of its budget, including earlier runs; none: no budget.
    #[serde(default)]
    pub budget_used_bytes: Option<u64>,
    /// Remaining part of its budget; none: no budget.
    #[serde(default)]
    pub budget_left_bytes: Option<u64>,
    /// Radio state: `idle`, `promotion`, `active` or `tail`; none: the model has no such radio.
    #[serde(default)]
    pub radio: Option<String>,
    /// Energy of that radio since the start, including the present tail.
    #[serde(default)]
    pub energy_j: Option<f64>,
}

/// Status of one connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// Its local token, in hexadecimal, as used by `explain` and `ss -M`.
    #[serde(with = "hexadecimal")]
    pub token: u32,
    /// The address and port of the server.
    pub server: Option<SocketAddr>,
    /// Time since the daemon first saw it.
    pub age_s: f64,
    /// Whether it is older than the daemon.
    pub adopted: bool,
    /// Management: `userspace`, `kernel_pm` (together with all others), `predates_switch` (unmanaged: opened before the
    /// path manager was switched) or `dry_run`.
    pub management: Management,
    /// Bytes that its program received, each counted once if the kernel reports that; otherwise the sum of its subflows.
    pub received_bytes: u64,
    /// Bytes that its program sent.
    pub sent_bytes: u64,
    /// Present receive rate.
    pub down_mbps: f64,
    /// State in short: `waiting`, `idle`, or the names of the links that carry it; empty before a decision.
    #[serde(default)]
    pub state: String,
    /// The policy's reason for its use of links; empty before the first decision.
    pub reason: String,
    /// Its subflows.
    pub subflows: Vec<Subflow>,
}

/// Status of one subflow.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Subflow {
    /// Its link; none: its interface is no link of the run.
    pub link: Option<String>,
    /// Local address and port.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
    /// Whether it is the first subflow of its connection.
    pub initial: bool,
    /// Whether it may carry data.
    pub state: SubflowState,
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
    /// Present receive rate; none: fewer than two recent samples.
    pub down_mbps: Option<f64>,
    /// RTT; the receiver's estimate if there is one.
    pub rtt_ms: Option<f64>,
}

/// Whether a subflow may carry data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubflowState {
    /// It carries data.
    Active,
    /// It was made a backup and still receives data: bytes in flight, or the MP_PRIO option was lost.
    Draining,
    /// It is a backup.
    Suspended,
    /// The peer has made it a backup.
    PeerBackup,
}

impl SubflowState {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Suspended => "suspended",
            Self::PeerBackup => "peer's backup",
        }
    }
}

/// A decision or action on a connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Age of the decision.
    pub age_s: f64,
    /// Description in one line.
    pub text: String,
}

/// The newest decisions about one connection, oldest first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Its present status.
    pub connection: Connection,
    /// The decisions; the driver keeps a few dozen.
    pub decisions: Vec<Decision>,
}

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

/// A token as eight hexadecimal digits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(token: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{token:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        u32::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
    }
}

fn as_seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use marline_core::energy::{ConcurrentDraw, Model, PowerCurve, RadioModel};
    use marline_core::paths::{Config, ConnId, Counters, LinkConfig, SubflowId};
    use marline_core::units::{DataSize, EnergyPerBit, Power};

    use super::*;

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
        let draw =
            PowerCurve { base: Power::from_milliwatts(1000), per_bit: EnergyPerBit::ZERO, second_slope: None };
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
}
