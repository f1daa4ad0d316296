//! `marline-lab bench accel` and `marline-lab reproduce super`: the accelerator between a stock kernel's TCP and curl,
//! in a lab.
//!
//! No timing decides, but that there are figures, and that each byte is correct (a wrong one is a failed run with an
//! exit code of its own). Where the machine permits no lab, the reason is printed and the test is skipped.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common;

fn lab(args: &[&str], dir: &Path) -> Output {
    common::lab().args(args).env("HOME", dir).current_dir(dir).output().unwrap()
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Why nothing of this can be done here, if so.
fn refusal(dir: &Path) -> Option<String> {
    let check = Command::new(common::marline()).args(["accel", "doctor"]).output().unwrap();
    if !check.status.success() {
        return Some(stderr_of(&check));
    }
    let lab = lab(&["doctor"], dir);
    (!lab.status.success()).then(|| stderr_of(&lab))
}

#[test]
fn a_lossy_link_has_figures_of_plain_tcp_and_of_the_accelerator() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(why) = refusal(dir.path()) {
        eprintln!("skipped: {why}");
        return;
    }
    let args = ["bench", "accel", "--quick", "--case", "loss 50ms", "--json", "record.json"];
    let output = lab(&args, dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    let record = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let rows = record["rows"].as_array().unwrap();
    let row = |metric: &str| rows.iter().find(|row| row["row"]["metric"] == metric).unwrap();
    let figures = row("Mbit/s")["row"]["figures"].as_array().unwrap();
    let mut names: Vec<&str> = figures.iter().map(|figure| figure[0].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["ours", "plain"]);
    assert!(figures.iter().all(|figure| figure[1][0].as_f64().unwrap() > 0.0), "{figures:?}");
    assert_eq!(row("of plain")["bound"], 4.0);
}

#[test]
fn an_upload_over_a_lossy_link_is_exact_and_its_reductions_are_undone() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(why) = refusal(dir.path()) {
        eprintln!("skipped: {why}");
        return;
    }
    // Random losses decide when the trial of the path test begins, so a run may end before it.
    let mut undone = false;
    let mut lines = Vec::new();
    for _ in 0..3 {
        let args = ["bench", "accel", "--quick", "--case", "upload 1% 50ms", "--json", "record.json"];
        let output = lab(&args, dir.path());
        assert_eq!(
            output.status.code(),
            Some(0),
            "a byte was wrong, or there was no sender: {}",
            stderr_of(&output)
        );
        let record = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        let rows = record["rows"].as_array().unwrap();
        let figures =
            rows.iter().find(|row| row["row"]["metric"] == "Mbit/s").unwrap()["row"]["figures"].as_array().unwrap();
        assert_eq!(figures.len(), 2, "plain and ours: {figures:?}");
        assert!(figures.iter().all(|figure| figure[1][0].as_f64().unwrap() > 0.0), "{figures:?}");
        let text = stderr_of(&output);
        let line = text.lines().find(|line| line.contains("upload 1% 50ms") && line.contains(": active:")).unwrap();
        undone = line.contains("undo") && !line.contains("; 0 reductions undone");
        lines.push(line.to_owned());
        std::fs::remove_file(dir.path().join("record.json")).unwrap();
        if undone {
            break;
        }
    }
    assert!(undone, "no reduction was undone in {} runs: {lines:#?}", lines.len());
}

#[test]
fn a_cell_has_figures_of_tcp_and_udp_and_of_the_paper() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["reproduce", "super", "--quick", "--case", "F2a 11b-paper", "--json"];
    let output = lab(&args, dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    if let Some(why) = stderr_of(&output).lines().find(|line| line.starts_with("skipped: the lab")) {
        eprintln!("{why}");
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let gain = rows.iter().find(|row| row["policy"] == "cubic udp" && row["metric"] == "gain").unwrap();
    assert_eq!((&gain["paper"], &gain["backend"]), (&70.0.into(), &"lab".into()));
    assert!(gain["measured"].is_f64(), "{text}");
    assert!(!dir.path().join("evidence").exists(), "a look is not kept");
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_created() {
    let dir = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["bench", "accel", "--case", "los"][..], "no case `los` of the accelerator; there are: loss, loss-http"),
        (&["bench", "accel", "--jobs", "0"], "--jobs"),
        (&["reproduce", "super", "--case", "F3"], "no artefact `F3` of Super-aggregation"),
        (&["reproduce", "super", "--sim"], "super has no --sim"),
        (&["reproduce", "super", "--sender", "vegas"], "`vegas` is none of cubic, bbr, reno"),
        (&["reproduce", "bass", "--sender", "reno"], "--sender has no effect on bass"),
    ] {
        let output = lab(args, dir.path());
        assert_eq!(output.status.code(), Some(64), "{args:?}: {}", stderr_of(&output));
        assert!(stderr_of(&output).contains(expected), "{args:?}: {}", stderr_of(&output));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
