//! Random histories of the download machine.
//!
//! `HISTORY_SEED=n` runs one history with each policy and prints the first one with a defect; `HISTORY_CASES=n`
//! runs more than usual. `cargo test -p marline-sim --test download history::survey -- --ignored --nocapture` runs many
//! histories, groups the defects by kind, and names the shortest history of each kind; `HISTORY_FIRST=n` starts at
//! another seed.

use marline_core::fetch::Policy;
use marline_sim::fuzz_fetch::{Defect, DefectSurvey, Guarantee, fuzz_download};

use crate::cases::{case_count, env_number};

fn run_seed(seed: u64, policy: Policy) -> Result<(), Defect> {
    let guarantee = if policy == Policy::Marline { Guarantee::Terminates } else { Guarantee::CorrectnessOnly };
    fuzz_download(seed, policy, guarantee)
}

#[test]
fn the_history_named_by_history_seed_has_no_defect() {
    let Some(seed) = env_number("HISTORY_SEED") else { return };
    for policy in Policy::ALL.into_iter().rev() {
        match run_seed(seed, policy) {
            Ok(()) => println!("seed {seed}, policy {policy}: good"),
            Err(defect) => panic!("{}\n{defect}", defect.log.join("\n")),
        }
    }
}

/// Histories that once had a defect, with its description.
const KNOWN_FAILURES: &[(u64, &str)] = &[
    (235, "resumed: an unusable range contained the file's size, and a portal's page of another size was accepted"),
    (545, "the connection of a response with a validator was lost, and a page without one was accepted"),
    (2304, "after an unusable range of a known version a page without a validator was accepted"),
    (
        5176,
        "two whole files without validators differed in size, and the first was accepted without a range request",
    ),
    (5541, "a response without a length was lost, and a page without its validator was accepted"),
    (8194, "the body of a redirect without a target was accepted, although another link had the file"),
    (9659, "after an unusable range all connections were closed and no new one was opened"),
    (
        4084,
        "a link requested a range beyond the end again and again, because a parked response held the first bytes",
    ),
    (1002552, "a page was accepted on the link that had received the file's size with a range"),
    (2001764, "a link that had requested a range beyond a small file's end was never used again"),
    (1001668, "a portal's page was accepted because it came first, although two links had described the file"),
    (2000735, "a page without a validator was accepted on the link that had received the file's size with one"),
    (2001220, "a page was accepted although another link had begun to deliver the file as a range"),
    (1000845, "a truncated file was accepted although the link had received a larger size with the same validator"),
    (
        111454142763924217,
        "the single response failed because of aborts on faulty links, while an honest link was on standby",
    ),
    (
        12121603822366511366,
        "resumed on a server without ranges, another link's page with the same validator was accepted",
    ),
    (18000476420150918214, "a portal's page was accepted although another link had received another size"),
    (6074054741356112942, "the second attempt of a single response got another file"),
    (7947471993247032449, "of two whole files the portal's page was accepted because it came first"),
    (9989722118115791764, "a stream waited forever for its single response on an unresponsive link"),
    (258, "resumed with nothing left to fetch, it requested nothing and failed after two minutes"),
    (
        10503352296665693167,
        "a new version without Content-Length was not recognized as a change, and its links were banned forever",
    ),
    (1406, "after the single response was lost, no connection requested it again"),
    (2761, "the single response was awaited on an unresponsive link while another one worked"),
    (1004, "the single response was awaited on an unresponsive link for two minutes"),
    (727, "resumed on a server that serves no ranges, every link was banned again and again"),
    (393, "a portal's page was accepted because the other link's request was beyond the file's end"),
    (3921, "a portal's page was accepted because the other link had received status 502"),
    (163, "a second response without a validator was accepted in addition to the first"),
    (37, "two responses without validators were combined because the first had announced the whole file"),
];

#[test]
fn known_failures_stay_fixed() {
    let defect: Vec<String> = KNOWN_FAILURES
        .iter()
        .flat_map(|found| Policy::ALL.map(|policy| (found, policy)))
        .filter_map(|((seed, once), policy)| Some(format!("{} (once: {once})", run_seed(*seed, policy).err()?)))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
#[ignore = "the property below over thousands of seeds: HISTORY_CASES=5000 cargo test -p marline-sim --test download history::survey -- --ignored --nocapture"]
fn survey() {
    let mut survey = DefectSurvey::default();
    let first = env_number("HISTORY_FIRST").unwrap_or(0);
    for seed in first..first + u64::from(case_count(3000)) {
        // The Marline policy always, the thesis's policies in turn, because their histories without progress take
        // long.
        let other_policy = Policy::ALL[usize::try_from(seed % 5).unwrap_or(0)];
        for defect in [Policy::Marline, other_policy].into_iter().filter_map(|policy| run_seed(seed, policy).err())
        {
            println!("{defect}");
            survey.add(defect);
        }
    }
    let kinds = survey.summary();
    assert!(kinds.is_empty(), "{} kinds of defects:\n{}", kinds.len(), kinds.join("\n"));
}

/// Histories with a defect that is not fixed yet. A survey of 20,000 seeds finds these, and four that finish late
/// or lose a link (3795, 5776, 6661, 10545).
const UNFIXED: &[(u64, &str)] =
    &[(4522, "a redirect's page is accepted as the file if no response had a size or a validator")];

/// Uses fixed seeds, unlike the survey.
#[test]
fn marline_has_no_defect_in_random_histories() {
    let defect: Vec<String> = (0..u64::from(case_count(300)))
        .filter(|seed| UNFIXED.iter().all(|(open, _)| open != seed))
        .filter_map(|seed| Some(run_seed(seed, Policy::Marline).err()?.to_string()))
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}

#[test]
fn no_policy_produces_a_wrong_file() {
    let defect: Vec<String> = (0..u64::from(case_count(300)))
        .filter_map(|seed| {
            let policy = Policy::ALL[usize::try_from(seed).unwrap_or(0) % Policy::ALL.len()];
            Some(run_seed(seed, policy).err()?.to_string())
        })
        .collect();
    assert!(defect.is_empty(), "{}", defect.join("\n"));
}
