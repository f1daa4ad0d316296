//! The fetch machine in random histories.
//!
//! `HISTORY_SEED=n` runs one history with each policy and prints the first that is wrong; `HISTORY_CASES=n` runs more
//! than usual.
//! `cargo test -p marline-sim --test history survey -- --ignored --nocapture` sorts what it finds in many histories by
//! what is wrong, and names the shortest one of each sort; `HISTORY_FIRST=n` begins with another seed.

mod cases;

use std::collections::BTreeMap;

use marline_core::fetch::Policy;
use marline_sim::fuzz_fetch::{Defect, Guarantee, fuzz_download};

use cases::{case_count, env_number};

fn run_seed(seed: u64, policy: Policy) -> Result<(), Defect> {
    let guarantee = if policy == Policy::Marline { Guarantee::Terminates } else { Guarantee::CorrectnessOnly };
    fuzz_download(seed, policy, guarantee)
}

#[test]
fn a_named_history_runs_again() {
    let Some(seed) = env_number("HISTORY_SEED") else { return };
    for policy in Policy::ALL.into_iter().rev() {
        match run_seed(seed, policy) {
            Ok(()) => println!("seed {seed}, policy {policy}: good"),
            Err(defect) => panic!("{}\n{defect}", defect.log.join("\n")),
        }
    }
}

/// Histories that once found something, each with what it found.
const KNOWN_FAILURES: &[(u64, &str)] = &[
    (235, "resumed, an unusable range named the file's size, and a portal's page of another size was taken"),
    (545, "the connection of a response with a validator was lost, and a page without one was taken"),
    (2304, "after an unusable range of a known version a page without a validator was taken"),
    (
        5176,
        "two whole files without validators differed in size, and the first was taken without a request for a range",
    ),
    (5541, "an answer without a length was lost, and a page without its validator was taken"),
    (8194, "the body of a redirect without a target was taken, although another link had the file"),
    (9659, "after an unusable range all connections were closed and no new one was opened"),
    (
        4084,
        "a link requested a range beyond the end again and again, because a parked response held the first bytes",
    ),
    (1002552, "a page was taken on the link that had been told the file's size with a range"),
    (2001764, "a link that had asked beyond a small file's end was never asked again"),
    (1001668, "a portal's page was taken because it came first, although two links had spoken of the file"),
    (2000735, "a page without a validator was taken on the link that had been told the file's size with one"),
    (2001220, "a page was taken although another link had begun to deliver the file as a range"),
    (1000845, "a file cut short was taken although the same link had been told more under the same validator"),
    (
        111454142763924217,
        "the one answer was given up for what broke off on lying links, while an honest one rested",
    ),
    (
        12121603822366511366,
        "resumed on a server without ranges, another link's page with the same validator was taken",
    ),
    (18000476420150918214, "a portal's page was taken although another link had been told another size"),
    (6074054741356112942, "the second try of one answer was another file's"),
    (7947471993247032449, "of two whole files the portal's page was taken, because it had come first"),
    (9989722118115791764, "a stream's one answer was waited for on a silent link until the end"),
    (258, "resumed with nothing left to fetch, it asked for nothing and failed after two minutes"),
    (10503352296665693167, "a new edition without Content-Length was no change, its links were banned for ever"),
    (1406, "after the one answer was lost, no connection was asked for the next one"),
    (2761, "the one answer was waited for on a silent link, while another one worked"),
    (1004, "the one answer was waited for on a silent link for two minutes"),
    (727, "resumed on a server that serves no ranges, every link was banned again and again"),
    (393, "a portal's page was taken for the file, because the other link had been asked beyond the file's end"),
    (3921, "a portal's page was taken for the file, because the other link had been told 502"),
    (163, "a second answer without a validator was accepted beside the first"),
    (37, "two answers without validators were put together, because the first had promised everything"),
];

#[test]
fn old_findings_stay_mended() {
    let defect: Vec<String> = KNOWN_FAILURES
        .iter()
        .flat_map(|found| Policy::ALL.map(|policy| (found, policy)))
        .filter_map(|((seed, once), policy)| Some(format!("{} (once: {once})", run_seed(*seed, policy).err()?)))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
#[ignore = "the property below over thousands of seeds: HISTORY_CASES=5000 cargo test -p marline-sim --test history survey -- --ignored --nocapture"]
fn survey() {
    let mut defect_kinds: BTreeMap<String, (u32, Defect)> = BTreeMap::new();
    let first = env_number("HISTORY_FIRST").unwrap_or(0);
    for seed in first..first + u64::from(case_count(3000)) {
        // Ours always, the thesis's in turn: their dead ends take long.
        let other_policy = Policy::ALL[usize::try_from(seed % 5).unwrap_or(0)];
        for defect in [Policy::Marline, other_policy].into_iter().filter_map(|policy| run_seed(seed, policy).err())
        {
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

/// Histories that find something which is not mended yet. The survey of 20,000 seeds finds them and four that end late or without a
/// link (3795, 5776, 6661, 10545).
const UNFIXED: &[(u64, &str)] =
    &[(4522, "a redirect's page is taken for the file, where no answer has told a size or a validator")];

/// Fixed seeds, unlike the survey's.
#[test]
fn marline_survives_any_history() {
    let defect: Vec<String> = (0..u64::from(case_count(300)))
        .filter(|seed| UNFIXED.iter().all(|(open, _)| open != seed))
        .filter_map(|seed| Some(run_seed(seed, Policy::Marline).err()?.to_string()))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
fn no_policy_makes_a_wrong_file() {
    let defect: Vec<String> = (0..u64::from(case_count(300)))
        .filter_map(|seed| {
            let policy = Policy::ALL[usize::try_from(seed).unwrap_or(0) % Policy::ALL.len()];
            Some(run_seed(seed, policy).err()?.to_string())
        })
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}
