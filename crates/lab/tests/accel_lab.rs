//! `marline-lab bench accel` and `marline-lab reproduce super`: the accelerator between a stock kernel's TCP and curl,
//! in a lab.
//!
//! No timing decides, but that there are figures, and that each byte is correct (a wrong one is a failed run with an
//! exit code of its own). Where the machine permits no lab, the reason is printed and the test is skipped.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(words: &[&str], place: &Path) -> Output {
    common::lab().args(words).env("HOME", place).current_dir(place).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Why nothing of this can be done here, if so.
fn refusal(place: &Path) -> Option<String> {
    let check = Command::new(common::marline()).args(["accel", "doctor"]).output().unwrap();
    if !check.status.success() {
        return Some(said(&check));
    }
    let lab = lab(&["doctor"], place);
    (!lab.status.success()).then(|| said(&lab))
}

#[test]
fn a_lossy_link_has_figures_of_plain_tcp_and_of_the_accelerator() {
    let place = tempfile::tempdir().unwrap();
    if let Some(why) = refusal(place.path()) {
        eprintln!("skipped: {why}");
        return;
    }
    let words = ["bench", "accel", "--quick", "--case", "loss 50ms", "--json", "record.json"];
    let output = lab(&words, place.path());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let record = std::fs::read_to_string(place.path().join("record.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let rows = record["rows"].as_array().unwrap();
    let row = |what: &str| rows.iter().find(|row| row["row"]["metric"] == what).unwrap();
    let figures = row("Mbit/s")["row"]["figures"].as_array().unwrap();
    let mut who: Vec<&str> = figures.iter().map(|figure| figure[0].as_str().unwrap()).collect();
    who.sort_unstable();
    assert_eq!(who, ["ours", "plain"]);
    assert!(figures.iter().all(|figure| figure[1][0].as_f64().unwrap() > 0.0), "{figures:?}");
    assert_eq!(row("of plain")["bound"], 4.0);
}

#[test]
fn an_upload_over_a_lossy_link_is_exact_and_its_reductions_are_undone() {
    let place = tempfile::tempdir().unwrap();
    if let Some(why) = refusal(place.path()) {
        eprintln!("skipped: {why}");
        return;
    }
    // Random losses decide when the trial of the path test begins, so a run may end before it.
    let mut undone = false;
    let mut lines = Vec::new();
    for _ in 0..3 {
        let words = ["bench", "accel", "--quick", "--case", "upload 1% 50ms", "--json", "record.json"];
        let output = lab(&words, place.path());
        assert_eq!(output.status.code(), Some(0), "a byte was wrong, or there was no sender: {}", said(&output));
        let record = std::fs::read_to_string(place.path().join("record.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let rows = record["rows"].as_array().unwrap();
        let figures =
            rows.iter().find(|row| row["row"]["metric"] == "Mbit/s").unwrap()["row"]["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 2, "plain and ours: {figures:?}");
        assert!(figures.iter().all(|figure| figure[1][0].as_f64().unwrap() > 0.0), "{figures:?}");
        let text = said(&output);
        let line = text.lines().find(|line| line.contains("upload 1% 50ms") && line.contains(": active:")).unwrap();
        undone = line.contains("undo") && !line.contains("; 0 reductions undone");
        lines.push(line.to_owned());
        std::fs::remove_file(place.path().join("record.json")).unwrap();
        if undone {
            break;
        }
    }
    assert!(undone, "no reduction was undone in {} runs: {lines:#?}", lines.len());
}

#[test]
fn a_cell_has_figures_of_tcp_and_udp_and_of_the_paper() {
    let place = tempfile::tempdir().unwrap();
    let words = ["reproduce", "super", "--quick", "--case", "F2a 11b-paper", "--json"];
    let output = lab(&words, place.path());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    if let Some(why) = said(&output).lines().find(|line| line.starts_with("skipped: the lab")) {
        eprintln!("{why}");
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let gain = rows.iter().find(|row| row["policy"] == "cubic udp" && row["metric"] == "gain").unwrap();
    assert_eq!((&gain["paper"], &gain["backend"]), (&70.0.into(), &"lab".into()));
    assert!(gain["measured"].is_f64(), "{text}");
    assert!(!place.path().join("evidence").exists(), "a look is not kept");
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_created() {
    let place = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (&["bench", "accel", "--case", "los"][..], "no case `los` of the accelerator; there are: loss, loss-http"),
        (&["bench", "accel", "--jobs", "0"], "--jobs"),
        (&["reproduce", "super", "--case", "F3"], "no artefact `F3` of Super-aggregation"),
        (&["reproduce", "super", "--sim"], "super has no --sim"),
        (&["reproduce", "super", "--sender", "vegas"], "`vegas` is none of cubic, bbr, reno"),
        (&["reproduce", "bass", "--sender", "reno"], "--sender has no effect on bass"),
    ] {
        let output = lab(words, place.path());
        assert_eq!(output.status.code(), Some(64), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}
