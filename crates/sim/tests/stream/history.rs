//! Random histories of the stream machine, with a player.
//!
//! `HISTORY_SEED=n` runs one history with each policy and prints the first one with a defect; `HISTORY_CASES=n`
//! runs more than usual. `cargo test -p marline-sim --test stream history::survey -- --ignored --nocapture` runs
//! many histories, groups the defects by kind, and names the shortest history of each kind; `HISTORY_FIRST=n`
//! starts at another seed.

use marline_core::stream::Policy;
use marline_sim::fuzz_fetch::{DefectSurvey, fuzz_stream};

use crate::cases::{case_count, env_number};

const POLICIES: [Policy; 3] = [Policy::Marline, Policy::GreenbagP, Policy::GreenbagE];

#[test]
fn the_history_named_by_history_seed_has_no_defect() {
    let Some(seed) = env_number("HISTORY_SEED") else { return };
    for policy in POLICIES {
        match fuzz_stream(seed, policy) {
            Ok(()) => println!("seed {seed}, policy {policy:?}: good"),
            Err(defect) => panic!("{}\n{defect}", defect.log.join("\n")),
        }
    }
}

/// Histories that once had a defect, with its description.
const KNOWN_FAILURES: &[(u64, &str)] = &[
    (184, "the only link was on standby, as an earlier run had left it, and was never woken"),
    (235, "a reader that had seeked beyond the end had more bytes than the file"),
    (4, "after a seek beyond the end of the new version, data was requested again and again"),
    (289, "a link's first request was beyond the window, and it never got another one"),
    (178, "without a window, the ranges of an unresponsive link were not requested elsewhere"),
    (435, "with a small window, a request without a response was mistaken for one that the reader delays"),
    (
        795,
        "the single response was awaited on an unresponsive link, while other links that had recovered were not tried again",
    ),
    (1774, "a reader that paused with a full window was mistaken for a network failure"),
    (2128, "a seek ahead of the single response restarted it from zero"),
];

#[test]
fn known_failures_stay_fixed() {
    let defect: Vec<String> = KNOWN_FAILURES
        .iter()
        .flat_map(|found| POLICIES.map(|policy| (found, policy)))
        .filter_map(|((seed, once), policy)| Some(format!("{} (once: {once})", fuzz_stream(*seed, policy).err()?)))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
#[ignore = "the property below over thousands of seeds: HISTORY_CASES=5000 cargo test -p marline-sim --test stream history::survey -- --ignored --nocapture"]
fn survey() {
    let mut survey = DefectSurvey::default();
    let first = env_number("HISTORY_FIRST").unwrap_or(0);
    for seed in first..first + u64::from(case_count(3000)) {
        for defect in POLICIES.into_iter().filter_map(|policy| fuzz_stream(seed, policy).err()) {
            println!("{defect}");
            survey.add(defect);
        }
    }
    let kinds = survey.summary();
    assert!(kinds.is_empty(), "{} kinds of defects:\n{}", kinds.len(), kinds.join("\n"));
}

#[test]
fn a_stream_has_no_defect_in_random_histories() {
    // The same seeds in each run; the survey uses further ones.
    let defect: Vec<String> = (0..u64::from(case_count(200)))
        .flat_map(|seed| POLICIES.map(|policy| fuzz_stream(seed, policy)))
        .filter_map(|ended| Some(ended.err()?.to_string()))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}
