//! The fetch machine keeps the machine contract, whatever the policy and the weather.

use marline_core::fetch::{Config, Fetch, Policy};
use marline_core::replay::Record;
use marline_core::units::{DataSize, Duration};
use marline_sim::contract::{Checked, Log, clamp, replay};
use marline_sim::world::{Fault, Outcome, Scene, What, World};

type Watched = Checked<Config, Fetch>;

fn make(config: &Config) -> Fetch {
    Fetch::new(config.clone())
}

fn run(scene: Scene, policy: Policy) -> (Outcome, Log<Config, Fetch>) {
    let config = Config { policy, ..Config::default() };
    let watched: Watched = Checked::new(config.clone(), make(&config));
    let (outcome, watched) = World::new(scene, watched).run_machine(Duration::from_secs(300));
    (outcome, watched.into_parts().1)
}

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
    vec![("steady", two()), ("dying", dying), ("faulty", faulty), ("lossy", lossy)]
}

#[test]
fn every_policy_keeps_rules_1_to_4() {
    for policy in Policy::ALL {
        for (name, scene) in scenes() {
            let (outcome, log) = run(scene, policy);
            println!("{policy} {name}: {:?} {:?}", outcome.finished, outcome.failed);
            let (_, outputs) =
                replay(make, &log).unwrap_or_else(|found| panic!("{policy}, {name}: rule 4: {found}"));
            assert!(outputs > 0);
            clamp(make, &log).unwrap_or_else(|found| panic!("{policy}, {name}: rule 2: {found}"));
        }
    }
}

#[test]
fn a_log_survives_its_lines() {
    for (name, scene) in scenes() {
        let (_, log) = run(scene, Policy::Marline);
        for record in log {
            let line = serde_json::to_string(&record).expect("a line");
            let read: Record<_, _, _> =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{name}: {line}: {e}"));
            assert_eq!(read, record, "{line}");
        }
    }
}
