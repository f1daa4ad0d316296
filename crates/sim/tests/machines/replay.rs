//! Recorded decision logs of all machines that have one: they must replay with the recorded results.
//!
//! `tests/replay/*.ndjson` are logs as `--trace` writes them, recorded in virtual time. `results*.txt` hold for
//! each of them the number of records, the number of decisions, and a digest of the figures in its decisions. The
//! digest covers numbers, booleans and packets. It does not cover names, so it stays the same when a field or a
//! variant is renamed and a script converts the logs.
//!
//! A change that keeps the behavior keeps all of this. Record the logs again only if behavior changes on purpose:
//! `UPDATE_REPLAY=1 cargo test -p marline-sim --test machines replay`.
//!
//! The tests of `marline replay` read the same files.

use std::fmt::{Debug, Write};
use std::path::PathBuf;

use marline_core::accel::{self, Accelerator, Mechanism, Mechanisms, SecondaryLink};
use marline_core::decision_log::{Record, Replayer};
use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::fetch::{self, Fetch};
use marline_core::fleet::Name;
use marline_core::fleet::fair_share::FairScheduler;
use marline_core::fleet::live_priority::LivePriority;
use marline_core::fleet::relay_selection::{self, RelaySelector, SelectorConfig};
use marline_core::fleet::scheduling::{self, FleetScheduler, SchedulerConfig};
use marline_core::fleet::udp_link::UdpLinkSelector;
use marline_core::machine::Machine;
use marline_core::paths::{self, Paths};
use marline_core::playback::{BufferThresholds, MediaProfile, Player};
use marline_core::stream::{self, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};
use marline_sim::contract::{ContractChecker, DecisionLog};
use marline_sim::fleet::histories;
use marline_sim::http_sim::{Fault, FaultKind, HttpScenario, HttpSim, MachineOutput, PresenceChange};
use marline_sim::spec::LinkSpec;
use marline_sim::{accel as packets, mptcp_sim as mptcp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A log, with the functions that record it and replay its text.
struct RecordedLog {
    name: &'static str,
    record: fn() -> String,
    replay: fn(&str, &str) -> ReplayResult,
}

/// Number of records, number of decisions, and the digest of their figures.
type ReplayResult = (u64, u64, u64);

/// Logs that `marline replay` reads as well.
const DRIVER_LOGS: [RecordedLog; 5] = [
    RecordedLog {
        name: "fetch",
        record: || to_ndjson(&record_download()),
        replay: |name, text| replay_log(name, text, |config: fetch::Config| Fetch::new(config)),
    },
    RecordedLog {
        name: "stream",
        record: || to_ndjson(&record_video()),
        replay: |name, text| replay_log(name, text, |config: stream::Config| Stream::new(config)),
    },
    RecordedLog {
        name: "paths",
        record: || to_ndjson(&record_connections()),
        replay: |name, text| replay_log(name, text, |config: paths::Config| Paths::new(config)),
    },
    RecordedLog {
        name: "accel",
        record: || to_ndjson(&record_default_acceleration()),
        replay: |name, text| replay_log(name, text, |config: accel::Config| Accelerator::new(config)),
    },
    RecordedLog {
        name: "accel-published",
        record: || to_ndjson(&record_published_mechanisms()),
        replay: |name, text| replay_log(name, text, |config: accel::Config| Accelerator::new(config)),
    },
];

/// Logs of the machines of bonding.
const FLEET_LOGS: [RecordedLog; 5] = [
    RecordedLog {
        name: "relay-selection",
        record: || to_ndjson(&record_relay_selection()),
        replay: |name, text| {
            replay_log(name, text, |(config, saved, start): relay_selection::Config| {
                RelaySelector::new(config, saved, start)
            })
        },
    },
    RecordedLog {
        name: "scheduling",
        record: || to_ndjson(&record_scheduling()),
        replay: |name, text| {
            replay_log(name, text, |(config, epoch, start): scheduling::Config| {
                FleetScheduler::new(config, epoch, start)
            })
        },
    },
    RecordedLog {
        name: "fair-share",
        record: || to_ndjson(&record_fair_share()),
        replay: |name, text| replay_log(name, text, FairScheduler::<Name>::new),
    },
    RecordedLog {
        name: "live-priority",
        record: || to_ndjson(&record_live_priority()),
        replay: |name, text| replay_log(name, text, |()| LivePriority::default()),
    },
    RecordedLog {
        name: "udp-link",
        record: || to_ndjson(&record_udp_link()),
        replay: |name, text| replay_log(name, text, |()| UdpLinkSelector::default()),
    },
];

#[test]
fn recorded_logs_replay_with_the_recorded_result() {
    check_results(&DRIVER_LOGS, "results.txt");
}

#[test]
fn recorded_logs_of_the_fleet_replay_with_the_recorded_result() {
    check_results(&FLEET_LOGS, "results-fleet.txt");
}

/// Replays these logs and compares the results with those in this file.
fn check_results(logs: &[RecordedLog], file: &str) {
    let mut results = String::from("log                records  decisions  digest of figures\n");
    for RecordedLog { name, record, replay } in logs {
        let path = log_dir().join(name).with_extension("ndjson");
        if is_update_requested() {
            std::fs::write(&path, record()).expect("a log");
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (records, decisions, digest) = replay(name, &text);
        writeln!(results, "{name:16}{records:10}{decisions:11}  {digest:016x}").expect("text");
    }
    let path = log_dir().join(file);
    if is_update_requested() {
        std::fs::write(&path, &results).expect("the results");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("the results"), results);
}

/// Replays a log line by line. Each line must also serialize to the same text.
fn replay_log<C, M>(name: &str, text: &str, make: impl Fn(C) -> M) -> ReplayResult
where
    C: Serialize + DeserializeOwned,
    M: Machine<Input: Serialize + DeserializeOwned, Output: Serialize + DeserializeOwned + PartialEq + Debug>,
{
    let mut replayer: Option<Replayer<M>> = None;
    let mut digest = FNV_OFFSET_BASIS;
    for (line, number) in text.lines().zip(1..) {
        let record: Record<C, M::Input, M::Output> =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}:{number}: {error}"));
        assert_eq!(serde_json::to_string(&record).expect("a line"), line, "{name}:{number}");
        if let Record::Out { output } = &record {
            let mut figures = Vec::new();
            collect_figures(&serde_json::to_value(output).expect("a value"), &mut figures);
            figures.sort();
            figures.iter().for_each(|figure| digest = add_to_digest(digest, figure));
        }
        match (&mut replayer, record) {
            (None, Record::Start { config, version }) => {
                let mut first = Replayer::new(make(config));
                let config = ();
                first
                    .feed(Record::Start { version, config })
                    .expect("a start record has no predecessor to differ from");
                replayer = Some(first);
            }
            (Some(replayer), record) => {
                replayer.feed(record).unwrap_or_else(|found| panic!("{name}:{number}: {found}"));
            }
            (None, _) => panic!("{name}:{number}: the log does not begin with its configuration"),
        }
    }
    let (records, decisions) = replayer.map_or((0, 0), |replayer| replayer.counts());
    (records, decisions, digest)
}

/// Collects the numbers, booleans and packets (hexadecimal) of a value.
fn collect_figures(value: &Value, figures: &mut Vec<String>) {
    match value {
        Value::Bool(_) | Value::Number(_) => figures.push(value.to_string()),
        Value::String(text)
            if text.len() >= MIN_PACKET_HEX_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            figures.push(text.clone());
        }
        Value::Array(values) => values.iter().for_each(|value| collect_figures(value, figures)),
        Value::Object(fields) => fields.values().for_each(|value| collect_figures(value, figures)),
        Value::Null | Value::String(_) => {}
    }
}

/// FNV-1a with 64 bits (RFC 9923), with a separator after each figure.
fn add_to_digest(digest: u64, figure: &str) -> u64 {
    let bytes = figure.bytes().chain([b'\n']);
    bytes.fold(digest, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A download over a link with an outage, a lossy one that disappears and returns, and a metered one, from a server with faults.
fn record_download() -> DecisionLog<fetch::Config, Fetch> {
    let links = ["wifi,rate=4Mbit/s,rtt=20ms", "lte,rate=2Mbit/s,rtt=50ms,loss=1%", "umts,rate=1Mbit/s,rtt=80ms"];
    let mut scenario = HttpScenario::new(DataSize::from_bytes(1_200_000), links.map(link));
    scenario.links[2].profile.metered = true;
    scenario.events = vec![event("700ms:wifi=down"), event("3s:wifi=up")];
    let presence_change =
        |at, present| PresenceChange { at: Duration::from_millis(at), link: "lte".into(), is_present: present };
    scenario.presence_changes = vec![presence_change(1500, false), presence_change(1900, true)];
    scenario.server.faults = vec![
        Fault::always(FaultKind::Truncate(DataSize::from_kib(200))).times(1),
        Fault::always(FaultKind::Reset(DataSize::from_kib(100))).times(1),
        Fault::always(FaultKind::Status(503, Some(Duration::from_secs(1)))).times(1),
        Fault::always(FaultKind::Stall(DataSize::from_kib(300))).times(1),
    ];
    scenario.server.keepalive_requests = Some(6);
    let config = fetch::Config { open_ended_first: true, mirrors: 2, ..fetch::Config::default() };
    record(scenario, config, |config| Fetch::new(config.clone()), None)
}

/// A video whose first link becomes too slow, fails and recovers.
fn record_video() -> DecisionLog<stream::Config, Stream> {
    let links = ["wifi,rate=1Mbit/s,rtt=30ms", "lte,rate=1Mbit/s,rtt=60ms"];
    let size = DataSize::from_bytes(1_500_000);
    let video = MediaProfile::variable([(Duration::from_secs(20), size)]).expect("a video");
    let thresholds = BufferThresholds { low: DataSize::from_kib(64), high: None };
    let mut scenario = HttpScenario::new(size, links.map(link));
    scenario.events = vec![event("5s:wifi=rate=100kbit/s"), event("9s:wifi=down"), event("12s:wifi=up")];
    let mut config = stream::Config { player: thresholds, ..stream::Config::default() };
    config.fetch.reader_window = Some(DataSize::from_kib(256));
    config.video = Some(video.clone());
    let player = Player::new(video, thresholds, Instant::ZERO);
    record(scenario, config, |config| Stream::new(config.clone()), Some(player))
}

fn record<C, M>(scenario: HttpScenario, config: C, make: fn(&C) -> M, player: Option<Player>) -> DecisionLog<C, M>
where
    M: Machine<Input: From<fetch::Input> + Clone, Output: Into<MachineOutput> + Clone>,
{
    let machine = make(&config);
    let mut sim = HttpSim::new(scenario, ContractChecker::new(config, machine));
    if let Some(player) = player {
        sim = sim.with_player(player);
    }
    let (outcome, machine) = sim.run_and_return_machine(Duration::from_secs(300));
    assert!(outcome.finished_at.is_some(), "{:?} {:?}", outcome.failed, outcome.notices);
    machine.into_parts().1
}

/// A page over several connections, then larger responses. There is an outage, a loss of carrier and a link plugged
/// in later, and a second machine takes over in the middle.
fn record_connections() -> DecisionLog<paths::Config, Paths> {
    let (_, model) =
        BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    let model: Model =
        toml::from_str::<ModelSpec>(model).expect("a model").into_model("emptcp-s3").expect("a phone").0;
    let links: Vec<LinkSpec> =
        ["wifi,rate=6Mbit/s,rtt=40ms", "lte,rate=10Mbit/s,rtt=60ms", "eth,rate=4Mbit/s,rtt=20ms"].map(link).into();
    let mut configs = mptcp::link_configs(&links);
    configs[1].budget = Some(DataSize::from_bytes(20_000_000));
    let late_link = configs.pop().expect("three links");
    let request =
        |after, size| mptcp::Request { delay: Duration::from_millis(after), size: DataSize::from_bytes(size) };
    let large = vec![request(0, 3_000_000), request(2000, 300_000), request(4000, 2_000_000)];
    let (mut flows, mut pools) = mptcp::page_workload(&[DataSize::from_bytes(30_000); 12], 2);
    flows.push(mptcp::Flow { start: Duration::from_millis(500), initial_link: 0, pool: pools.len() });
    pools.push(large);
    let mut scenario = mptcp::MptcpScenario::new(model.clone(), links, (flows, pools));
    scenario.events = vec![event("3s:wifi=rate=300kbit/s"), event("5s:lte=down"), event("7s:lte=up")];
    let carrier = |at, up| mptcp::CarrierChange { at: Duration::from_millis(at), link: 0, has_carrier: up };
    scenario.carrier_changes = vec![carrier(8000, false), carrier(10_000, true)];
    scenario.link_arrivals = vec![mptcp::LinkArrival { at: Duration::from_millis(9000), config: late_link }];
    scenario.prio_loss = Ratio::from_percent(20);
    scenario.server.max_joins = 1;
    let config = paths::Config::new(model, configs);
    let new_machine = || ContractChecker::new(config.clone(), Paths::new(config.clone()));
    let mut sim = mptcp::MptcpSim::new(scenario, new_machine());
    sim.run_until(Instant::from_millis(1500));
    sim.replace_machine(new_machine());
    let (outcome, machine) = sim.run();
    assert!(outcome.invalid_commands.is_empty() && outcome.finished_at.is_some(), "{outcome:?}");
    machine.into_parts().1
}

/// The default mechanisms, for an encrypted download and an upload, over a lossy link with one outage.
fn record_default_acceleration() -> DecisionLog<accel::Config, Accelerator> {
    let mut secure = packets::FlowScript::download(0);
    // With pauses between the exchanges: it takes seconds until a path is trusted, and the log has a line per
    // packet.
    let exchange = packets::Exchange { pause: Duration::from_millis(700), request: 200, response: 70_000 };
    secure.exchanges = vec![exchange; 8];
    let mut scenario = packets::Scenario::new(link("wifi,rate=20Mbit/s,rtt=20ms,queue=100ms,loss=3%"), secure);
    scenario.seed = 6;
    let start = Duration::from_millis(20);
    scenario.flows.push(packets::FlowScript { start, ..packets::FlowScript::download(60_000).reversed() });
    scenario.outages = vec![outage(6100, 700, false)];
    let (log, undone) = record_accelerated(scenario, Mechanisms::default());
    assert!(undone > 0, "nothing is undone");
    log
}

/// Early ACKs, the mirrored connection and the published mechanisms, for a download over plain HTTP, over a lossy link with two outages.
fn record_published_mechanisms() -> DecisionLog<accel::Config, Accelerator> {
    use Mechanism::{AckOffloadAsPublished, EarlyAck, FastFetch, FreezeInFlight, ZeroWindowFreeze};
    let http = packets::FlowScript { is_http: true, ..packets::FlowScript::download(70_000) };
    let mut scenario = packets::Scenario::new(link("wifi,rate=2Mbit/s,rtt=50ms,queue=100ms,loss=2%"), http);
    scenario.seed = 3;
    scenario.outages = vec![outage(200, 500, false), outage(1100, 500, false)];
    record_accelerated(
        scenario,
        Mechanisms::of(&[AckOffloadAsPublished, ZeroWindowFreeze, FreezeInFlight, EarlyAck, FastFetch]),
    )
    .0
}

fn outage(at: u64, duration: u64, is_carrier_lost: bool) -> packets::Outage {
    let [at, duration] = [at, duration].map(Duration::from_millis);
    packets::Outage { link: packets::Scenario::PRIMARY, at, duration, is_carrier_lost }
}

/// Runs a scenario and returns its log and the number of reductions undone.
fn record_accelerated(
    mut scenario: packets::Scenario,
    mechanisms: Mechanisms,
) -> (DecisionLog<accel::Config, Accelerator>, u64) {
    scenario.secondary = Some(link("lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms"));
    let secondary = SecondaryLink {
        up: Some(Bitrate::from_bits_per_sec(400_000)),
        ..SecondaryLink::new(packets::Scenario::SECONDARY)
    };
    let config = accel::Config::new(packets::Scenario::PRIMARY, None);
    scenario.config = Some(accel::Config { secondary_links: vec![secondary], mechanisms, ..config });
    let mut sim = packets::World::new(scenario);
    let mut undone = 0;
    for at in (0..15_000).step_by(100).map(Instant::from_millis) {
        sim.run_until(at);
        let views = sim.accelerator().map(|machine| machine.flows(at)).unwrap_or_default();
        undone = views.iter().map(|view| view.undone_reductions).fold(undone, u64::max);
    }
    let outcome = sim.outcome();
    assert!(outcome.defects.is_empty(), "{:?}", outcome.defects);
    assert!(outcome.flows.iter().all(|flow| flow.finished.is_some() && !flow.was_reset), "{:?}", outcome.flows);
    (sim.into_log().expect("there is an accelerator"), undone)
}

/// The relay selection of an edge with two links, one of them metered at times.
fn record_relay_selection() -> DecisionLog<relay_selection::Config, RelaySelector> {
    let start = Instant::from_millis(86_400_000);
    let config = (SelectorConfig { never_direct: true, ..SelectorConfig::default() }, None, start);
    let machine = RelaySelector::new(config.0.clone(), None, start);
    let time = Duration::from_secs(20 * 60);
    histories::run_selector(ContractChecker::new(config, machine), 1, start, time).into_parts().1
}

/// A fleet of three relays and eight edges, with drains and changes of the leader.
fn record_scheduling() -> DecisionLog<scheduling::Config, FleetScheduler> {
    let (config, start) = (SchedulerConfig::default(), Instant::from_millis(1000));
    let machine = FleetScheduler::new(config, 1, start);
    let checked = ContractChecker::new((config, 1, start), machine);
    histories::run_scheduler(checked, 3, Duration::from_secs(120)).into_parts().1
}

/// Four edges that share a relay's capacity.
fn record_fair_share() -> DecisionLog<Option<Bitrate>, FairScheduler<Name>> {
    let capacity = Some(Bitrate::from_mbps(20));
    let checked = ContractChecker::new(capacity, FairScheduler::new(capacity));
    histories::run_fair_share(checked, 1, Duration::from_secs(3)).into_parts().1
}

/// A live stream beside two bulk flows.
fn record_live_priority() -> DecisionLog<(), LivePriority> {
    let checked = ContractChecker::new((), LivePriority::default());
    histories::run_live_priority(checked, Duration::from_secs(4)).into_parts().1
}

/// Three links whose rates and states change.
fn record_udp_link() -> DecisionLog<(), UdpLinkSelector> {
    let checked = ContractChecker::new((), UdpLinkSelector::default());
    histories::run_udp_link(checked, 1, Duration::from_secs(900)).into_parts().1
}

fn to_ndjson<C: Serialize, I: Serialize, O: Serialize>(log: &[Record<C, I, O>]) -> String {
    log.iter().map(|record| serde_json::to_string(record).expect("a line") + "\n").collect()
}

fn link(line: &str) -> LinkSpec {
    line.parse().expect("a link")
}

fn event(line: &str) -> marline_sim::spec::LinkEvent {
    line.parse().expect("an event")
}

fn log_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/replay")
}

fn is_update_requested() -> bool {
    std::env::var_os("UPDATE_REPLAY").is_some()
}

/// Hexadecimal digits of the smallest packet: an IP header has at least 20 bytes.
const MIN_PACKET_HEX_DIGITS: usize = 40;
/// Initial value of FNV-1a.
const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
