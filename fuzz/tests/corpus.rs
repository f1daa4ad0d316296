//! Runs every committed input through every target, so that a repaired defect does not return. Needs no libFuzzer.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite fails the test")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_fuzz::{TARGETS, Target};
use marline_sim::scenario::Scenario;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The committed inputs of a target, in a fixed order.
fn inputs(target: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(corpus().join(target)).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// `FUZZ_INPUT=broken/dbus-crash-1 FUZZ_TARGET=dbus cargo test` runs one input in a build with symbols for backtraces.
#[test]
fn the_input_named_by_the_environment_passes() {
    let (Ok(input), Ok(target)) = (std::env::var("FUZZ_INPUT"), std::env::var("FUZZ_TARGET")) else { return };
    let target = marline_fuzz::target(&target).unwrap();
    target.check(&fs::read(input).unwrap());
}

#[test]
fn every_committed_input_passes_every_target() {
    let mut failed = Vec::new();
    for input in TARGETS.iter().flat_map(|target| inputs(target.name)) {
        let bytes = fs::read(&input).unwrap();
        for target in TARGETS {
            if catch_unwind(|| target.check(&bytes)).is_err() {
                failed.push(format!("{} with {}", target.name, input.display()));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Disproportionate cost becomes visible when the input is enlarged.
#[test]
fn enlarged_inputs_have_proportional_cost() {
    const LEN: usize = 96 * 1024;
    let mut failed = Vec::new();
    // The input of `fetch_ops` is no format but a list of operations, so repetition only makes the download longer.
    for target in TARGETS.into_iter().filter(|target| target.name != "fetch_ops") {
        for input in inputs(target.name) {
            let bytes = fs::read(&input).unwrap();
            // The whole input repeated, each byte repeated, and the first half followed by repetitions of the second.
            let half = bytes.len() / 2;
            let repeated: Vec<u8> = bytes.iter().copied().cycle().take(LEN).collect();
            let runs = bytes.iter().flat_map(|byte| std::iter::repeat_n(*byte, LEN / bytes.len().max(1))).collect();
            let second_half = bytes[..half].iter().chain(bytes[half..].iter().cycle()).copied().take(LEN).collect();
            for (how, bytes) in [("repeated", repeated), ("runs", runs), ("second half repeated", second_half)] {
                failed.extend(check_cost(target, &format!("{how} {}", input.display()), bytes));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Playlists and manifests that are designed to be expensive, as large as the proxy accepts them.
#[test]
fn expensive_playlists_and_manifests_have_proportional_cost() {
    let hls = |lines: &str| format!("#EXTM3U\n{lines}");
    let define = |value: &str| format!("#EXT-X-DEFINE:NAME=\"x\",VALUE=\"{value}\"\n");
    let dash = |set: &str| {
        format!(
            "<MPD mediaPresentationDuration=\"PT9H\"><Period><AdaptationSet>{set}</AdaptationSet></Period></MPD>"
        )
    };
    let many = |count: usize, item: &str| item.repeat(count);
    let long = many(8000, "y");
    let attributes: String = (0..60_000).map(|n| format!(" a{n}=''")).collect();
    let representations = many(10_000, "<Representation id=''/>");
    let template = |media: &str, within: &str| {
        format!("<SegmentTemplate duration='1' media='{media}$Time$'>{within}</SegmentTemplate>{representations}")
    };
    let lists = [
        ("playlist", hls(&many(200_000, "/a\n"))),
        ("playlist", hls(&many(60_000, "#EXTINF:1,\na\n"))),
        ("playlist", hls(&(define(&long) + &many(50_000, "{$x}\n")))),
        ("playlist", hls(&(define("y") + &many(400_000, "{$")))),
        ("playlist", hls(&format!("#EXT-X-KEY:{}", many(100_000, "URI=\"/\",")))),
        ("playlist", hls(&many(100_000, "# /http://"))),
        ("playlist", hls(&format!("# {}", many(100_000, "/http:/")))),
        ("playlist", hls(&format!("#EXT-X-KEY:{}", many(100_000, "URI=\"")))),
        (
            "manifest",
            dash(&format!(
                "<SegmentTemplate media='$RepresentationID$/$Number$'/>{}",
                many(20_000, "<Representation id='/x'/>")
            )),
        ),
        ("manifest", format!("<MPD{attributes}/>")),
        ("manifest", format!("<MPD>{}</MPD>", many(300, &format!("<a{}/>", &attributes[..800])))),
        ("manifest", format!("<MPD>{}{}</MPD>", many(30_000, "<a><BaseURL>x/</BaseURL>"), many(30_000, "</a>"))),
        ("manifest", format!("<MPD>{}{}</MPD>", many(30_000, "<p:a xmlns:p='u'>"), many(30_000, "</p:a>"))),
        ("manifest", dash(&template(&many(400, "$RepresentationID$"), ""))),
        ("manifest", dash(&template("", "<SegmentTimeline><S t='0' d='1' r='9999999'/></SegmentTimeline>"))),
        (
            "manifest",
            dash(&format!(
                "<SegmentList>{}</SegmentList>{representations}",
                many(20_000, "<SegmentURL media='s'/>")
            )),
        ),
        ("manifest", format!("<MPD>{}", many(500_000, "<="))),
    ];
    let failed: Vec<String> = lists
        .into_iter()
        .enumerate()
        .filter_map(|(index, (name, text))| {
            check_cost(marline_fuzz::target(name).unwrap(), &format!("list {index}"), text.into_bytes())
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs a target and describes the input if the target panics or takes too long.
fn check_cost(target: Target, input: &str, bytes: Vec<u8>) -> Option<String> {
    let start = Instant::now();
    let panicked = catch_unwind(|| target.check(&bytes)).is_err();
    let elapsed = start.elapsed();
    (panicked || elapsed > TIME_LIMIT).then(|| format!("{} with {input}: {elapsed:?}", target.name))
}

/// A hundred times the duration of the slowest input on an idle machine; quadratic cost takes minutes.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A replay line or scenario whose field names are out of date would be skipped, and would test nothing.
#[test]
fn inputs_of_serialized_formats_parse() {
    for input in inputs("replay") {
        for line in fs::read_to_string(&input).unwrap().lines() {
            let record = serde_json::from_str::<Record<Config, Input, Output>>(line);
            // Some inputs contain reversed ranges on purpose; a record with one is rejected.
            let is_expected =
                record.as_ref().map_or_else(|e| e.to_string().contains("ends before it starts"), |_| true);
            assert!(is_expected, "{}: {record:?}\n{line}", input.display());
        }
    }
    for input in inputs("scenarios") {
        let scenario = Scenario::read(&input);
        assert!(scenario.is_ok(), "{}: {scenario:?}", input.display());
    }
}

#[test]
fn every_target_has_inputs_and_every_folder_a_target() {
    for target in TARGETS {
        assert!(!inputs(target.name).is_empty(), "corpus/{} is empty", target.name);
    }
    for folder in fs::read_dir(corpus()).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(marline_fuzz::target(&name).is_some(), "corpus/{name} belongs to no target");
    }
}

#[test]
fn the_corpus_stays_small() {
    let bytes: u64 =
        TARGETS.iter().flat_map(|target| inputs(target.name)).map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(
        bytes < 128 * 1024,
        "the corpus has {bytes} bytes: commit only inputs that show something new (`fuzz/run` keeps its own in fuzz/found)"
    );
}
