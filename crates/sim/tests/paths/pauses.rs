//! Applications that pause on lossy Wi-Fi, and links that fail without a signal: which links are abandoned.
//!
//! Wi-Fi loses single packets of handshakes, requests and data. This must not wake LTE. A link in an outage must be
//! abandoned as soon as an application needs it.

use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::paths::{Config, Goal, Paths};
use marline_core::units::{DataSize, Duration};
use marline_sim::mptcp_sim::{Flow, MptcpOutcome, MptcpScenario, MptcpSim, Request, link_configs};
use marline_sim::spec::LinkSpec;

fn phone_model() -> Model {
    let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    toml::from_str::<ModelSpec>(text).expect("a model").into_model("emptcp-s3").expect("a phone").0
}

/// Requests with responses of `bytes`, each sent `pause` after the previous response; Wi-Fi has the first subflow.
struct PauseCase<'a> {
    requests: usize,
    bytes: u64,
    pause: Duration,
    wifi: &'a str,
    events: &'a [&'a str],
    goal: Goal,
    seed: u64,
}

impl PauseCase<'_> {
    fn run(&self) -> MptcpOutcome {
        let links: Vec<LinkSpec> =
            [self.wifi, "lte,rate=10Mbit/s,rtt=60ms"].map(|line| line.parse().expect("a link")).into();
        let mut configs = link_configs(&links);
        configs[1].metered = true;
        let mut config = Config::new(phone_model(), configs);
        config.goal = self.goal;
        let request = Request { delay: self.pause, size: DataSize::from_bytes(self.bytes) };
        let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
        let mut scenario =
            MptcpScenario::new(phone_model(), links, (vec![flow], vec![vec![request; self.requests]]));
        scenario.events = self.events.iter().map(|event| event.parse().expect("an event")).collect();
        scenario.sample_interval = Duration::from_millis(100);
        scenario.seed = self.seed;
        scenario.time_limit = Duration::from_secs(3000);
        let (outcome, _) = MptcpSim::new(scenario, Paths::new(config)).run();
        assert!(outcome.invalid_commands.is_empty(), "{:?}", outcome.invalid_commands);
        outcome
    }
}

/// A chat: 2 KB every 3 s.
const CHAT_CASE: PauseCase<'static> = PauseCase {
    requests: 100,
    bytes: 2000,
    pause: Duration::from_secs(3),
    wifi: "wifi,rate=16Mbit/s,rtt=30ms",
    events: &[],
    goal: Goal::Energy,
    seed: 0,
};

/// A download in parts with pauses. LTE should help only if Wi-Fi fails, hence the goal is cost: by energy it would
/// pay where a loss of 10 % makes Wi-Fi slow.
const STOP_AND_GO_CASE: PauseCase<'static> =
    PauseCase { requests: 60, bytes: 500_000, pause: Duration::from_secs(4), goal: Goal::Cost, ..CHAT_CASE };

#[test]
fn lost_packets_of_pausing_applications_do_not_wake_lte() {
    for (kind, case) in [("chat", CHAT_CASE), ("stop and go", STOP_AND_GO_CASE)] {
        for loss in [1, 3, 10] {
            for (rtt, seed) in [(30, 1), (30, 2), (150, 1), (150, 2)] {
                let wifi = format!("wifi,rate=16Mbit/s,rtt={rtt}ms,loss={loss}%");
                let outcome = PauseCase { wifi: &wifi, seed, ..case }.run();
                let context = format!("{kind} {wifi} seed {seed}: {:?}", outcome.notes);
                assert!(outcome.finished_at.is_some(), "{context}");
                assert_eq!(outcome.links[1].promotions, 0, "{context}");
                assert!(outcome.notes.iter().all(|(_, note)| !note.contains("does not work")), "{context}");
            }
        }
    }
}

/// Seconds from `from` until LTE delivers payload.
fn seconds_until_lte(outcome: &MptcpOutcome, from: f64) -> f64 {
    let first = outcome.samples.iter().find(|sample| !sample.links[1].is_zero());
    first.map_or(f64::INFINITY, |sample| sample.at.since(marline_core::units::Instant::ZERO).as_secs_f64() - from)
}

#[test]
fn a_download_on_a_failed_link_continues_on_the_other_within_three_seconds() {
    for loss in ["0%", "1%"] {
        for seed in 1..4 {
            let wifi = format!("wifi,rate=16Mbit/s,rtt=150ms,loss={loss}");
            let case = PauseCase {
                requests: 1,
                bytes: 64_000_000,
                wifi: &wifi,
                events: &["15s:wifi=down"],
                seed,
                ..CHAT_CASE
            };
            let outcome = PauseCase { goal: Goal::Cost, ..case }.run();
            let time = seconds_until_lte(&outcome, 15.0);
            assert!((0.0..=3.0).contains(&time), "{wifi} seed {seed}: {time} {:?}", outcome.notes);
            assert!(outcome.finished_at.is_some(), "{wifi} seed {seed}");
        }
    }
}

#[test]
fn a_chat_on_a_failed_link_wakes_lte_with_its_next_request_and_not_before() {
    // The outage begins after a response, at different times before the next request.
    let undisturbed = PauseCase { requests: 30, ..CHAT_CASE }.run();
    let samples_after =
        |at: f64| undisturbed.samples.iter().filter(move |sample| sample.at.as_nanos() as f64 > at * 1e9);
    for after in [0.2, 1.0, 2.5] {
        // The end of a response.
        let begin = samples_after(60.0).next().expect("a sample after 60 s");
        let ended = samples_after(60.0).find(|sample| sample.delivered > begin.delivered).expect("a response");
        let ended = ended.at.as_nanos() as f64 / 1e9;
        let down_event = format!("{}ms:wifi=down", ((ended + after) * 1e3) as u64);
        let outcome = PauseCase { requests: 30, events: &[&down_event], ..CHAT_CASE }.run();
        let time = seconds_until_lte(&outcome, ended + 3.0);
        assert!((0.0..=4.5).contains(&time), "{down_event}: {time} {:?}", outcome.notes);
        // If the outage ends before the next request, nothing may have happened.
        let up_event = format!("{}ms:wifi=up", ((ended + 2.8) * 1e3) as u64);
        let outcome = PauseCase { requests: 30, events: &[&down_event, &up_event], ..CHAT_CASE }.run();
        assert_eq!(
            (outcome.links[1].promotions, outcome.finished_at.is_some()),
            (0, true),
            "{down_event}: {:?}",
            outcome.notes
        );
    }
}
