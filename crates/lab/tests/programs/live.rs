//! `marline-lab demo live` and `marline-lab bench fleet`: unmodified ffmpeg and nginx at both ends of edge and
//! relay, in a lab.
//!
//! No measured time decides: packets, connections and bytes do. Where the machine permits no lab, the reason is
//! printed and the test is skipped; a missing program fails it, with the name of its package.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common;

fn lab(args: &[&str], dir: &Path) -> Output {
    common::lab().args(args).env("HOME", dir).current_dir(dir).output().unwrap()
}

/// The JSON record of a run that ended with exit code 0; `None` if no lab is possible.
fn record(args: &[&str]) -> Option<Value> {
    if !Path::new("/proc/sys/net/mptcp/enabled").exists() {
        eprintln!("skipped: this kernel has no MPTCP");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = lab(&[args, &["--json", "record.json"]].concat(), dir.path());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) {
        eprintln!("skipped: {stderr}");
        return None;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    Some(serde_json::from_str(&std::fs::read_to_string(dir.path().join("record.json")).unwrap()).unwrap())
}

#[test]
fn every_frame_arrives_while_links_fail_and_a_recovered_link_is_used_again() {
    let Some(record) = record(&["demo", "live", "--seconds", "16", "--cut", "carrier"]) else { return };
    assert_eq!(record["complete"], true);
    let seen = &record["broadcast"];
    assert_eq!(seen["frames_sent"], 16 * 25);
    assert_eq!((&seen["frames_received"], &seen["missing"]), (&(16 * 25).into(), &0.into()));
    assert_eq!((&seen["disconnects"], &seen["dropped_frames"]), (&0.into(), &0.into()));
    assert!(seen["relay"].is_string(), "{}", seen["relay"]);
    // No single link could have carried the stream.
    let bytes = |at: usize| seen["links"][at][1].as_u64().unwrap();
    assert!((0..3).all(|at| bytes(at) > 500_000), "{}", seen["links"]);
    // The first link was down from second 4 to second 6.7. Slots 48 to 63 lie within, with a margin.
    let slots: Vec<u64> =
        seen["timeline"][0].as_array().unwrap().iter().map(|slot| slot.as_u64().unwrap()).collect();
    let away: u64 = slots.iter().skip(48).take(16).sum();
    let back: u64 = slots.iter().skip(80).sum();
    assert_eq!(away, 0, "{slots:?}");
    assert!(back > 500_000, "it is not used again: {slots:?}");
}

#[test]
fn a_flow_works_after_its_relay_was_killed() {
    let Some(record) = record(&["bench", "fleet", "--quick", "--case", "killed kill -9"]) else { return };
    let rows = record["rows"].as_array().unwrap();
    let named = |row: &&Value| row["row"]["case"] == "killed kill -9";
    let row = rows.iter().find(named).unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!((&row["bound"], &row["row"]["figures"][0][0]), (&3.0.into(), &"marline".into()));
}

#[test]
fn invalid_options_are_refused_before_anything_is_created() {
    let dir = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["demo", "live", "--link", "a,rate=4Mbit/s"][..], "two links fail in turn"),
        (&["demo", "live", "--seconds", "1"], "--seconds"),
        (&["demo", "live", "--bitrate", "6"], "--bitrate"),
        (&["demo", "live", "--quick"], "--quick"),
        (
            &["bench", "fleet", "--case", "uplod"],
            "no case `uplod` of the fleet; there are: upload, download, live, cut, killed, cpu",
        ),
        (&["bench", "fleet", "--quick", "--runs", "2"], "--runs"),
    ] {
        let output = lab(args, dir.path());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
