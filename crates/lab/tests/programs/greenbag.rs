//! `marline-lab reproduce greenbag` over real TCP: a video of ten seconds through the proxy, with all policies, and
//! the same in virtual time.
//!
//! The player compares every byte and fails on a wrong one. No measured time decides; the tests check that there
//! are values, and for which policies. Where the machine permits no lab, the reason is printed and the rest is
//! tested.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::common;

fn reproduce(home: &TempDir, args: &[&str]) -> Output {
    let mut command = common::lab();
    command.args(["reproduce", "greenbag"]).args(args).env("HOME", home.path());
    command.current_dir(home.path()).output().unwrap()
}

#[test]
fn a_short_video_is_played_by_every_policy_over_real_tcp() {
    let home = tempfile::tempdir().unwrap();
    let output = reproduce(&home, &["--quick", "--case", "F11", "--json", "--trace", "traces"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["artefact"] == "F11" && row["backend"] == "sim"), "{stderr}");
    if let Some(why) = stderr.lines().find(|line| line.starts_with("skipped: the lab")) {
        eprintln!("{why}");
        return;
    }
    for policy in ["greenbag-p", "greenbag-e", "marline"] {
        for by in ["lab", "sim"] {
            let value = |metric: &str| {
                let is_row = |row: &&Value| {
                    (row["artefact"] == "short" && row["backend"] == by)
                        && (row["policy"] == policy && row["metric"] == metric)
                };
                rows.iter().find(is_row).unwrap()["measured"].as_f64()
            };
            // Ten seconds of video take at least ten seconds.
            assert!(value("playback_time").unwrap() >= 10.0, "{policy} {by}: {stderr}");
            assert!(value("energy").unwrap() > 0.0 && value("stalls").is_some(), "{policy} {by}: {stderr}");
        }
        // The proxy's decision log replays with equal results.
        let folder = home.path().join(format!("traces/short-80%-{policy}-0"));
        let logs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!logs.is_empty(), "{}", folder.display());
        for log in logs {
            let replay = Command::new(common::marline()).arg("replay").arg(&log).output().unwrap();
            assert!(replay.status.success(), "{policy}: {}", String::from_utf8_lossy(&replay.stderr));
        }
    }
}

#[test]
fn existing_results_are_not_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("evidence/greenbag");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("lab.jsonl"), "{}\n").unwrap();
    let output = reproduce(&home, &["--case", "F13"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: {stderr}");
        return;
    }
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains("--continue"), "{stderr}");
}
