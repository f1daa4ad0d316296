//! `marline-lab reproduce bass`: all artefacts scaled down in virtual time, and one upload over edge, relay and
//! kernel MPTCP.
//!
//! No measured time decides. The tests check that there are values, for which clients, and that thresholds are
//! compared. Where the machine permits no lab, the reason is printed and the rest is tested.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::common;

fn reproduce(home: &TempDir, args: &[&str]) -> Output {
    let mut command = common::lab();
    command.args(["reproduce", "bass"]).args(args).env("HOME", home.path());
    command.current_dir(home.path()).output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_artefact_has_rows_in_virtual_time_and_thresholds_are_compared() {
    let home = tempfile::tempdir().unwrap();
    let rows = rows(&reproduce(&home, &["--sim", "--quick", "--json"]));
    for artefact in ["F5", "F8", "F9", "F10", "F11", "F12", "X-upload"] {
        assert!(rows.iter().any(|row| row["artefact"] == artefact && row["backend"] == "sim"), "{artefact}");
    }
    let thresholds: Vec<&Value> = rows.iter().filter(|row| row["metric"] == "floor").collect();
    assert!(
        thresholds.len() >= 3 && thresholds.iter().all(|row| row["note"].as_str().unwrap().starts_with("floor: "))
    );
    let paper = |metric: &str| rows.iter().find(|row| row["artefact"] == "F12" && row["metric"] == metric).unwrap();
    assert_eq!((paper("mean")["paper"].as_f64(), paper("most")["paper"].as_f64()), (Some(5.11), Some(14.59)));
    assert!(!home.path().join("evidence").exists());
}

#[test]
fn an_upload_goes_over_both_links_through_edge_and_relay() {
    let home = tempfile::tempdir().unwrap();
    let output = reproduce(&home, &["--quick", "--case", "X-upload,F8 100 km", "--json"]);
    if let Some(why) = String::from_utf8_lossy(&output.stderr).lines().find(|line| line.starts_with("skipped:")) {
        eprintln!("{why}");
        return;
    }
    let rows = rows(&output);
    for client in ["tcp:wifi0", "tcp:lte0", "edge"] {
        let is_row = |row: &&Value| row["policy"] == client && row["metric"] == "rate" && row["backend"] == "lab";
        assert!(rows.iter().find(is_row).unwrap()["measured"].as_f64().unwrap() > 0.0, "{client}");
    }
    // An upload that ends at the relay itself.
    let is_row = |row: &&Value| row["artefact"] == "F8" && row["metric"] == "rate";
    assert!(rows.iter().find(is_row).unwrap()["measured"].as_f64().unwrap() > 0.0);
}

#[test]
fn unknown_artefacts_and_useless_options_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let output = reproduce(&home, &["--sim", "--case", "F7"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no artefact `F7` of BASS; available: F5"));
    let output = reproduce(&home, &["--sim", "--scale", "0.5"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--scale has no effect on bass: it is for emptcp"));
}
