//! The machine contract for a download and for a stream with a player, with every policy and under faults.

use std::fmt::Debug;

use marline_core::decision_log::Record;
use marline_core::fetch::{self, Fetch, MeteredUse};
use marline_core::machine::Machine;
use marline_core::playback::{BufferThresholds, MediaProfile, Player};
use marline_core::stream::{self, PlayerInput, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::contract::{ContractChecker, DecisionLog, replay, replay_with_stale_times};
use marline_sim::http_sim::{Fault, FaultKind, HttpScenario, HttpSim, MachineOutput};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn scenarios() -> Vec<(&'static str, HttpScenario)> {
    let link = |line: &str| line.parse().expect("a link");
    let two = || {
        HttpScenario::new(
            DataSize::from_bytes(5_000_000),
            [link("wifi,rate=20Mbit/s,rtt=20ms"), link("lte,rate=10Mbit/s,rtt=50ms")],
        )
    };
    let mut dying = two();
    dying.events = vec!["500ms:wifi=down".parse().expect("an event"), "4s:wifi=up".parse().expect("an event")];
    let mut faulty = two();
    faulty.server.faults = vec![
        Fault::always(FaultKind::Truncate(DataSize::from_kib(200))).times(2),
        Fault::always(FaultKind::Reset(DataSize::from_kib(100))).times(2),
        Fault::always(FaultKind::Status(503, Some(Duration::from_secs(1)))).times(1),
    ];
    let lossy = HttpScenario::new(
        DataSize::from_bytes(3_000_000),
        [link("wifi,rate=20Mbit/s,rtt=30ms,loss=1%"), link("lte,rate=20Mbit/s,rtt=60ms")],
    );
    let mut without_ranges = two();
    without_ranges.server.supports_ranges = false;
    vec![("steady", two()), ("dying", dying), ("faulty", faulty), ("lossy", lossy), ("whole", without_ranges)]
}

/// Runs a machine inside a contract checker, then replays its log.
fn run_checked<C, M>(
    name: &str,
    scenario: HttpScenario,
    config: C,
    make: fn(&C) -> M,
    player: Option<Player>,
) -> DecisionLog<C, M>
where
    C: Clone,
    M: Machine<Input: From<fetch::Input> + Clone, Output: Into<MachineOutput> + Clone + PartialEq + Debug>,
{
    let checked = ContractChecker::new(config.clone(), make(&config));
    let mut sim = HttpSim::new(scenario, checked);
    if let Some(player) = player {
        sim = sim.with_player(player);
    }
    let (outcome, checked) = sim.run_and_return_machine(Duration::from_secs(300));
    println!("{name}: {:?} {:?}", outcome.finished_at, outcome.failed);
    let log = checked.into_parts().1;
    let (_, outputs) = replay(make, &log).unwrap_or_else(|found| panic!("{name}: rule 4: {found}"));
    assert!(outputs > 0);
    replay_with_stale_times(make, &log).unwrap_or_else(|found| panic!("{name}: rule 2: {found}"));
    log
}

fn check_json_round_trip<C, I, O>(name: &str, log: Vec<Record<C, I, O>>)
where
    C: Serialize + DeserializeOwned + PartialEq + Debug,
    I: Serialize + DeserializeOwned + PartialEq + Debug,
    O: Serialize + DeserializeOwned + PartialEq + Debug,
{
    for record in log {
        let line = serde_json::to_string(&record).expect("a line");
        let read: Record<C, I, O> = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{name}: {line}: {e}"));
        assert_eq!(read, record, "{line}");
    }
}

fn download_config(policy: fetch::Policy) -> fetch::Config {
    fetch::Config { policy, ..fetch::Config::default() }
}

/// The scenario's file as a video of 20 Mbit/s, while the links carry 30 or 40; with `is_known` the stream gets its profile.
fn video_setup(scenario: &HttpScenario, policy: stream::Policy, is_known: bool) -> (stream::Config, Player) {
    let size = scenario.server.versions[0].size;
    let video = MediaProfile::variable([(size / Bitrate::from_mbps(20), size)]).expect("a video");
    let thresholds = BufferThresholds { low: DataSize::from_kib(256), high: None };
    let mut config = stream::Config { policy, player: thresholds, ..stream::Config::default() };
    config.fetch.reader_window = Some(DataSize::from_kib(1024));
    config.fetch.metered = MeteredUse::Use;
    config.video = is_known.then(|| video.clone());
    (config, Player::new(video, thresholds, Instant::ZERO))
}

#[test]
fn a_download_keeps_rules_1_to_4_with_every_policy() {
    for policy in fetch::Policy::ALL {
        for (name, scenario) in scenarios() {
            let make = |config: &fetch::Config| Fetch::new(config.clone());
            run_checked(&format!("{policy} {name}"), scenario, download_config(policy), make, None);
        }
    }
}

#[test]
fn a_stream_keeps_rules_1_to_4_with_every_policy() {
    for policy in [stream::Policy::Marline, stream::Policy::GreenbagP, stream::Policy::GreenbagE] {
        for (name, scenario) in scenarios() {
            for known in [true, false] {
                let (config, player) = video_setup(&scenario, policy, known);
                let make = |config: &stream::Config| Stream::new(config.clone());
                let name = format!("{policy:?} {name} {known}");
                let log = run_checked(&name, scenario.clone(), config, make, Some(player));
                check_json_round_trip(&name, log);
            }
        }
    }
}

#[test]
fn the_log_of_a_download_round_trips_through_json() {
    for (name, scenario) in scenarios() {
        let make = |config: &fetch::Config| Fetch::new(config.clone());
        check_json_round_trip(
            name,
            run_checked(name, scenario, download_config(fetch::Policy::Marline), make, None),
        );
    }
}

#[test]
fn inputs_of_a_player_round_trip_through_json() {
    let video = MediaProfile::constant(Bitrate::from_mbps(3), Duration::from_secs(9)).expect("a video");
    let player = BufferThresholds::GREENBAG;
    let position = Duration::from_millis(1234);
    for input in [
        PlayerInput::Seek { offset: u64::MAX },
        PlayerInput::Video { video, player, position, is_playing: true },
        PlayerInput::Position { position, is_playing: false },
    ] {
        let input = stream::Input::from(input);
        let line = serde_json::to_string(&input).expect("a line");
        assert_eq!(serde_json::from_str::<stream::Input>(&line).expect("an input"), input, "{line}");
    }
}
