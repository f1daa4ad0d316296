//! The machines keep the machine contract, whatever the policy and the weather: a download, and a stream with a player.

use std::fmt::Debug;

use marline_core::decision_log::Record;
use marline_core::fetch::{self, Fetch, MeteredUse};
use marline_core::machine::Machine;
use marline_core::playback::{BufferThresholds, MediaProfile, Player};
use marline_core::stream::{self, PlayerInput, Stream};
use marline_core::units::{Bitrate, DataSize, Duration, Instant};
use marline_sim::contract::{Checked, Log, clamp, replay};
use marline_sim::world::{Fault, Order, Scene, What, World};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn scenes() -> Vec<(&'static str, Scene)> {
    let link = |line: &str| line.parse().expect("a link");
    let two = || {
        Scene::new(
            DataSize::from_bytes(5_000_000),
            [link("wifi,rate=20Mbit/s,rtt=20ms"), link("lte,rate=10Mbit/s,rtt=50ms")],
        )
    };
    let mut dying = two();
    dying.events = vec!["500ms:wifi=down".parse().expect("an event"), "4s:wifi=up".parse().expect("an event")];
    let mut faulty = two();
    faulty.server.faults = vec![
        Fault::always(What::Truncate(DataSize::from_kib(200))).times(2),
        Fault::always(What::Reset(DataSize::from_kib(100))).times(2),
        Fault::always(What::Status(503, Some(Duration::from_secs(1)))).times(1),
    ];
    let lossy = Scene::new(
        DataSize::from_bytes(3_000_000),
        [link("wifi,rate=20Mbit/s,rtt=30ms,loss=1%"), link("lte,rate=20Mbit/s,rtt=60ms")],
    );
    let mut whole = two();
    whole.server.ranges = false;
    vec![("steady", two()), ("dying", dying), ("faulty", faulty), ("lossy", lossy), ("whole", whole)]
}

/// Runs a machine under watch and puts its log to the proof.
fn proven<C, M>(name: &str, scene: Scene, config: C, make: fn(&C) -> M, player: Option<Player>) -> Log<C, M>
where
    C: Clone,
    M: Machine<Input: From<fetch::Input> + Clone, Output: Into<Order> + Clone + PartialEq + Debug>,
{
    let watched = Checked::new(config.clone(), make(&config));
    let mut world = World::new(scene, watched);
    if let Some(player) = player {
        world = world.watched_by(player);
    }
    let (outcome, watched) = world.run_machine(Duration::from_secs(300));
    println!("{name}: {:?} {:?}", outcome.finished, outcome.failed);
    let log = watched.into_parts().1;
    let (_, outputs) = replay(make, &log).unwrap_or_else(|found| panic!("{name}: rule 4: {found}"));
    assert!(outputs > 0);
    clamp(make, &log).unwrap_or_else(|found| panic!("{name}: rule 2: {found}"));
    log
}

fn survives_its_lines<C, I, O>(name: &str, log: Vec<Record<C, I, O>>)
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

fn download(policy: fetch::Policy) -> fetch::Config {
    fetch::Config { policy, ..fetch::Config::default() }
}

/// The scene's file as a video of two thirds of what its links carry, or one that nobody knows.
fn video(scene: &Scene, policy: stream::Policy, known: bool) -> (stream::Config, Player) {
    let size = scene.server.editions[0].size;
    let video = MediaProfile::variable([(size / Bitrate::from_mbps(20), size)]).expect("a video");
    let thresholds = BufferThresholds { low: DataSize::from_kib(256), high: None };
    let mut config = stream::Config { policy, player: thresholds, ..stream::Config::default() };
    config.fetch.reader_window = Some(DataSize::from_kib(1024));
    config.fetch.metered = MeteredUse::Use;
    config.video = known.then(|| video.clone());
    (config, Player::new(video, thresholds, Instant::ZERO))
}

#[test]
fn a_download_keeps_rules_1_to_4_with_every_policy() {
    for policy in fetch::Policy::ALL {
        for (name, scene) in scenes() {
            let make = |config: &fetch::Config| Fetch::new(config.clone());
            proven(&format!("{policy} {name}"), scene, download(policy), make, None);
        }
    }
}

#[test]
fn a_stream_keeps_rules_1_to_4_with_every_policy() {
    for policy in [stream::Policy::Marline, stream::Policy::GreenbagP, stream::Policy::GreenbagE] {
        for (name, scene) in scenes() {
            for known in [true, false] {
                let (config, player) = video(&scene, policy, known);
                let make = |config: &stream::Config| Stream::new(config.clone());
                let name = format!("{policy:?} {name} {known}");
                let log = proven(&name, scene.clone(), config, make, Some(player));
                survives_its_lines(&name, log);
            }
        }
    }
}

#[test]
fn a_downloads_log_survives_its_lines() {
    for (name, scene) in scenes() {
        let make = |config: &fetch::Config| Fetch::new(config.clone());
        survives_its_lines(name, proven(name, scene, download(fetch::Policy::Marline), make, None));
    }
}

#[test]
fn a_players_words_survive_their_lines() {
    let video = MediaProfile::constant(Bitrate::from_mbps(3), Duration::from_secs(9)).expect("a video");
    let player = BufferThresholds::GREENBAG;
    let position = Duration::from_millis(1234);
    for word in [
        PlayerInput::Seek { offset: u64::MAX },
        PlayerInput::Video { video, player, position, is_playing: true },
        PlayerInput::Position { position, is_playing: false },
    ] {
        let word = stream::Input::from(word);
        let line = serde_json::to_string(&word).expect("a line");
        assert_eq!(serde_json::from_str::<stream::Input>(&line).expect("a word"), word, "{line}");
    }
}
