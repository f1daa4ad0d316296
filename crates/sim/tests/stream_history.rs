//! The stream in random histories, with somebody who watches.
//!
//! `HISTORY_SEED=n` runs one history with each policy and prints the first that is wrong; `HISTORY_CASES=n` runs more
//! than usual.
//! `cargo test -p marline-sim --test stream_history survey -- --ignored --nocapture` sorts what it finds in many
//! histories by what is wrong, and names the shortest one of each sort; `HISTORY_FIRST=n` begins with another seed.

mod cases;

use std::collections::BTreeMap;

use marline_core::stream::Policy;
use marline_sim::fuzz_fetch::{Defect, fuzz_stream};

use cases::{case_count, env_number};

const POLICIES: [Policy; 3] = [Policy::Marline, Policy::GreenbagP, Policy::GreenbagE];

#[test]
fn a_named_history_runs_again() {
    let Some(seed) = env_number("HISTORY_SEED") else { return };
    for policy in POLICIES {
        match fuzz_stream(seed, policy) {
            Ok(()) => println!("seed {seed}, policy {policy:?}: good"),
            Err(defect) => panic!("{}\n{defect}", defect.log.join("\n")),
        }
    }
}

/// Histories that once found something, each with what it found.
const KNOWN_FAILURES: &[(u64, &str)] = &[
    (184, "the only link rested, as an earlier run had left it, and nobody woke it"),
    (235, "a reader that had jumped beyond the end had more bytes than the file"),
    (4, "a reader that had jumped beyond the end of what the file became was asked for without end"),
    (289, "a link was first asked for bytes beyond the window, and then for nothing else"),
    (178, "what a silent link owed was left to it, where there was no window"),
    (435, "in a small window a question that nobody answered passed for one that the reader holds up"),
    (795, "the one answer was waited for on a silent link while others, silent once, were not tried again"),
    (1774, "a reader that paused with its window full was taken for a network that is gone"),
    (2128, "a jump ahead of the one answer began it again from zero"),
];

#[test]
fn old_findings_stay_mended() {
    let defect: Vec<String> = KNOWN_FAILURES
        .iter()
        .flat_map(|found| POLICIES.map(|policy| (found, policy)))
        .filter_map(|((seed, once), policy)| Some(format!("{} (once: {once})", fuzz_stream(*seed, policy).err()?)))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
#[ignore = "the property below over thousands of seeds: HISTORY_CASES=5000 cargo test -p marline-sim --test stream_history survey -- --ignored --nocapture"]
fn survey() {
    let mut defect_kinds: BTreeMap<String, (u32, Defect)> = BTreeMap::new();
    let first = env_number("HISTORY_FIRST").unwrap_or(0);
    for seed in first..first + u64::from(case_count(3000)) {
        for defect in POLICIES.into_iter().filter_map(|policy| fuzz_stream(seed, policy).err()) {
            println!("{defect}");
            let kind = format!("{} {}", defect.policy, defect.problem);
            let kind = kind.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
            let (count, shortest) = defect_kinds.entry(kind).or_insert_with(|| (0, defect.clone()));
            *count += 1;
            if defect.log.len() < shortest.log.len() {
                *shortest = defect;
            }
        }
    }
    for (count, shortest) in defect_kinds.values() {
        println!("{count} times; in {} records: {shortest}", shortest.log.len());
    }
    assert!(defect_kinds.is_empty(), "{} sorts of defects", defect_kinds.len());
}

#[test]
fn a_stream_survives_any_history() {
    // The same ones at each run; the survey goes on from there.
    let defect: Vec<String> = (0..u64::from(case_count(200)))
        .flat_map(|seed| POLICIES.map(|policy| fuzz_stream(seed, policy)))
        .filter_map(|ended| Some(ended.err()?.to_string()))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}
