//! MPTCP policies in the main cases of eMPTCP's evaluation, as a reviewed table that shows every change of
//! behavior.
//!
//! `UPDATE_TABLES=1 cargo test -p marline-sim --test paths tables` writes the table again; review the differences.
//! Figures are rounded, so that only changes of behavior change them.

use std::fmt::Write;

use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::paths::{Config, Paths, Policy};
use marline_core::units::{DataSize, Duration};
use marline_sim::contract::{ContractChecker, replay, replay_with_stale_times};
use marline_sim::mptcp_sim::{
    MptcpOutcome, MptcpScenario, MptcpSim, download_workload, link_configs, page_workload,
};
use marline_sim::spec::LinkSpec;

use crate::saved_tables::compare_with_saved;

const POLICIES: [(&str, Policy); 5] = [
    ("mptcp", Policy::Mptcp),
    ("wifi-first", Policy::WifiFirst),
    ("emptcp", Policy::Emptcp),
    ("emptcp-settled", Policy::EmptcpSettled),
    ("marline", Policy::Marline),
];

fn phone_model() -> Model {
    let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    toml::from_str::<ModelSpec>(text).expect("a model").into_model("emptcp-s3").expect("a phone").0
}

struct TableCase {
    name: &'static str,
    wifi: &'static str,
    lte: &'static str,
    /// Size of the download; `None` for a page of 107 objects.
    kilobytes: Option<u64>,
    events: &'static [&'static str],
}

const GOOD_LTE: &str = "lte,rate=10Mbit/s,rtt=60ms";

const CASES: &[TableCase] = &[
    TableCase {
        name: "256 KB",
        wifi: "wifi,rate=4Mbit/s,rtt=40ms",
        lte: GOOD_LTE,
        kilobytes: Some(262),
        events: &[],
    },
    TableCase { name: "page", wifi: "wifi,rate=15Mbit/s,rtt=40ms", lte: GOOD_LTE, kilobytes: None, events: &[] },
    TableCase {
        name: "good Wi-Fi",
        wifi: "wifi,rate=15Mbit/s,rtt=30ms",
        lte: GOOD_LTE,
        kilobytes: Some(64_000),
        events: &[],
    },
    TableCase {
        name: "bad Wi-Fi",
        wifi: "wifi,rate=800kbit/s,rtt=30ms",
        lte: GOOD_LTE,
        kilobytes: Some(64_000),
        events: &[],
    },
    TableCase {
        name: "both bad, 16 MB",
        wifi: "wifi,rate=3Mbit/s,rtt=40ms",
        lte: "lte,rate=4Mbit/s,rtt=70ms",
        kilobytes: Some(16_000),
        events: &[],
    },
    TableCase {
        name: "on and off",
        wifi: "wifi,rate=800kbit/s,steps=30s:15Mbit/s+60s:800kbit/s+100s:15Mbit/s,rtt=30ms,queue=60kB",
        lte: GOOD_LTE,
        kilobytes: Some(128_000),
        events: &[],
    },
    TableCase {
        name: "out of range",
        wifi: "wifi,rate=15Mbit/s,steps=20s:4Mbit/s+23s:300kbit/s+40s:15Mbit/s,rtt=30ms,queue=60kB",
        lte: GOOD_LTE,
        kilobytes: Some(100_000),
        events: &[],
    },
    TableCase {
        name: "dies in silence",
        wifi: "wifi,rate=15Mbit/s,rtt=30ms",
        lte: GOOD_LTE,
        kilobytes: Some(64_000),
        events: &["10s:wifi=down"],
    },
];

/// Runs a case inside a contract checker, then replays its log.
fn run(case: &TableCase, policy: Policy, model: &Model) -> MptcpOutcome {
    let links: Vec<LinkSpec> = [case.wifi, case.lte].map(|line| line.parse().expect("a link")).into();
    let mut config = Config::new(model.clone(), link_configs(&links));
    config.policy = policy;
    let objects: Vec<DataSize> = (0..107).map(|at| DataSize::from_bytes(3000 + at % 17 * 2500)).collect();
    let workload = match case.kilobytes {
        Some(kilobytes) => download_workload(DataSize::from_bytes(kilobytes * 1000)),
        None => page_workload(&objects, 6),
    };
    let mut scenario = MptcpScenario::new(model.clone(), links, workload);
    scenario.events = case.events.iter().map(|event| event.parse().expect("an event")).collect();
    scenario.time_limit = Duration::from_secs(1500);
    let make = |config: &Config| Paths::new(config.clone());
    let (outcome, checked) = MptcpSim::new(scenario, ContractChecker::new(config.clone(), make(&config))).run();
    let log = checked.into_parts().1;
    replay(make, &log).unwrap_or_else(|found| panic!("{}: rule 4: {found}", case.name));
    replay_with_stale_times(make, &log).unwrap_or_else(|found| panic!("{}: rule 2: {found}", case.name));
    assert!(outcome.invalid_commands.is_empty(), "{}: {:?}", case.name, outcome.invalid_commands);
    outcome
}

/// Rounded to two significant digits.
fn round_to_two_digits(value: f64) -> String {
    match value {
        _ if value >= 99.5 => format!("{:.0}", (value / 10.0).round() * 10.0),
        _ if value >= 9.95 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

#[test]
fn the_main_cases_match_the_reviewed_table() {
    let model = phone_model();
    let mut table = String::from(
        "MPTCP by policy, Wi-Fi first; energy by emptcp-s3 with tails (commands: joins + priorities + ends)\n\n",
    );
    let head = ["case", "policy", "s", "J", "MB LTE", "wakes", "commands"];
    writeln!(
        table,
        "{:18}{:16}{:>8}{:>8}{:>9}{:>7}{:>11}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6]
    )
    .expect("text");
    for case in CASES {
        for (name, policy) in POLICIES {
            let outcome = run(case, policy, &model);
            let lte = &outcome.links[1];
            let time =
                outcome.finished_at.map_or_else(|| "–".into(), |time| round_to_two_digits(time.as_secs_f64()));
            let [joins, prios, ends] = outcome.command_counts;
            writeln!(
                table,
                "{:18}{name:16}{time:>8}{:>8}{:>9}{:>7}{:>11}",
                case.name,
                round_to_two_digits(outcome.energy().as_joules_f64()),
                round_to_two_digits(lte.bytes.bytes() as f64 / 1e6),
                lte.promotions,
                format!("{joins}+{prios}+{ends}"),
            )
            .expect("text");
            assert_eq!(lte.leaked, DataSize::ZERO, "{} {name}", case.name);
        }
    }
    compare_with_saved("paths.txt", &table);
}

#[test]
fn no_radio_is_woken_where_one_link_is_enough() {
    let model = phone_model();
    for (name, policy) in [("emptcp", Policy::Emptcp), ("marline", Policy::Marline)] {
        for case in CASES.iter().filter(|case| ["256 KB", "page", "good Wi-Fi"].contains(&case.name)) {
            let outcome = run(case, policy, &model);
            assert_eq!(outcome.links[1].promotions, 0, "{name}: {}", case.name);
        }
    }
}
