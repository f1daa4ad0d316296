//! MPTCP policies in virtual time: random histories, guarantees in simple scenarios, and the machine contract.
//!
//! `PATHS_SEED=n` runs one history with each policy and prints the first one with a defect; `HISTORY_CASES=n` runs
//! more than usual. `cargo test -p marline-sim --test paths history::survey -- --ignored --nocapture` runs many and groups
//! the defects.

use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{Config, LinkConfig, Paths, Policy};
use marline_core::units::{DataSize, Duration};
use marline_sim::contract::ContractChecker;
use marline_sim::fuzz_fetch::DefectSurvey;
use marline_sim::mptcp_sim::fuzz::run_seed;
use marline_sim::mptcp_sim::{LinkArrival, MptcpScenario, MptcpSim, download_workload};

use crate::cases::{case_count, env_number};

const POLICIES: [Policy; 4] = [Policy::Marline, Policy::Emptcp, Policy::WifiFirst, Policy::Mptcp];

fn phone_model() -> Model {
    let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    toml::from_str::<ModelSpec>(text).expect("a model").into_model("emptcp-s3").expect("a phone").0
}

#[test]
fn a_link_plugged_in_later_is_used_beside_slow_wifi() {
    let link_config = |number, name: &str, kind| LinkConfig {
        id: LinkId(number),
        name: name.to_owned(),
        kind,
        metered: false,
        budget: None,
    };
    let links = ["wifi,rate=1Mbit/s,rtt=30ms,kind=wifi", "usb,rate=12Mbit/s,rtt=60ms,kind=lte"];
    let links = links.map(|line| line.parse().expect("a link")).to_vec();
    let mut scenario =
        MptcpScenario::new(phone_model(), links, download_workload(DataSize::from_bytes(16_000_000)));
    let at = Duration::from_secs(10);
    scenario.link_arrivals.push(LinkArrival { at, config: link_config(1, "usb", LinkKind::Lte) });
    let config = Config::new(phone_model(), vec![link_config(0, "wifi", LinkKind::Wifi)]);
    let (outcome, _) = MptcpSim::new(scenario, ContractChecker::new(config.clone(), Paths::new(config))).run();
    assert_eq!(outcome.invalid_commands, [""; 0]);
    assert!(outcome.links[1].bytes > DataSize::from_bytes(10_000_000), "{outcome:?}");
    assert!(outcome.finished_at.is_some_and(|end| end < Duration::from_secs(40)), "{outcome:?}");
}

#[test]
fn a_download_that_starts_on_very_slow_wifi_uses_lte() {
    let link_configs = [(0, "wifi", LinkKind::Wifi), (1, "lte", LinkKind::Lte)];
    let configs = link_configs.map(|(number, name, kind)| LinkConfig {
        id: LinkId(number),
        name: name.to_owned(),
        kind,
        metered: false,
        budget: None,
    });
    for (rate, rtt) in [(30, 30), (30, 150), (50, 30), (50, 150), (100, 30), (200, 150)] {
        let wifi = format!("wifi,rate={rate}kbit/s,rtt={rtt}ms,kind=wifi");
        let links = [wifi.as_str(), "lte,rate=10Mbit/s,rtt=60ms,kind=lte"];
        let links = links.map(|line| line.parse().expect("a link")).to_vec();
        let scenario = MptcpScenario::new(phone_model(), links, download_workload(DataSize::from_bytes(8_000_000)));
        let config = Config::new(phone_model(), configs.to_vec());
        let (outcome, _) = MptcpSim::new(scenario, ContractChecker::new(config.clone(), Paths::new(config))).run();
        assert!(outcome.finished_at.is_some_and(|end| end < Duration::from_secs(30)), "{rate} {rtt} {outcome:?}");
    }
}

#[test]
fn the_history_named_by_paths_seed_has_no_defect() {
    let Some(seed) = env_number("PATHS_SEED") else { return };
    for policy in POLICIES.into_iter().rev() {
        match run_seed(seed, policy, &phone_model()) {
            Ok(()) => println!("seed {seed}, policy {policy:?}: good"),
            Err(defect) => panic!("{}\n{defect}", defect.log.join("\n")),
        }
    }
}

#[test]
fn known_failures_stay_fixed() {
    // The defects were, in the order in which they were found, which is not that of the seeds (some seeds showed the same one): a spent
    // budget together with a server that refuses joins; the last subflow destroyed for a liveness probe that was refused; RTTs that
    // overlap; a stalled link considered alive just before it was lost; a link that failed while the server was waiting to retransmit; a
    // pause mistaken for the time without a received MP_PRIO; probe subflows that replaced what they probed, repeatedly; probes every two
    // seconds while a request was waiting for its retransmission.
    let seeds =
        [427_015_528_070_069_931, 14_997_245_168_203_534_378, 490, 269, 522, 998, 21_918, 25_861, 41_046, 61_705];
    for seed in seeds {
        for policy in POLICIES {
            if let Err(defect) = run_seed(seed, policy, &phone_model()) {
                panic!("{defect}");
            }
        }
    }
}

#[test]
#[ignore = "the properties below over thousands of seeds: HISTORY_CASES=5000 cargo test -p marline-sim --test paths history::survey -- --ignored --nocapture"]
fn survey() {
    let mut survey = DefectSurvey::default();
    let (first, phone) = (env_number("HISTORY_FIRST").unwrap_or(0), phone_model());
    for seed in first..first + u64::from(case_count(1000)) {
        let other_policy = POLICIES[1 + usize::try_from(seed % 3).unwrap_or(0)];
        for defect in
            [Policy::Marline, other_policy].into_iter().filter_map(|policy| run_seed(seed, policy, &phone).err())
        {
            println!("{defect}");
            survey.add(defect);
        }
    }
    let kinds = survey.summary();
    assert!(kinds.is_empty(), "{} kinds of defects:\n{}", kinds.len(), kinds.join("\n"));
}

/// Fixed seeds, so that a failure is due to a change and not to chance.
fn check_seeds(policy: Policy, seeds: std::ops::Range<u64>) {
    let phone = phone_model();
    for seed in seeds {
        if let Err(defect) = run_seed(seed, policy, &phone) {
            panic!("{defect}");
        }
    }
}

#[test]
fn published_policies_have_no_defect_in_random_histories() {
    for policy in &POLICIES[1..] {
        check_seeds(*policy, 0..u64::from(case_count(100)));
    }
}

#[test]
fn marline_has_no_defect_in_random_histories() {
    check_seeds(Policy::Marline, 0..u64::from(case_count(400)));
}
