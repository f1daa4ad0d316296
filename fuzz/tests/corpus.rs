//! Every committed input through every target: what was found once stays mended, on any machine, without libFuzzer.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_fuzz::{TARGETS, Target};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The committed inputs of a target.
fn inputs(target: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(corpus().join(target)).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// `FUZZ_INPUT=broken/dbus-crash-1 FUZZ_TARGET=dbus cargo test` runs one input, with a backtrace that has names.
#[test]
fn a_named_input_runs_again() {
    let (Ok(input), Ok(target)) = (std::env::var("FUZZ_INPUT"), std::env::var("FUZZ_TARGET")) else { return };
    let target = marline_fuzz::target(&target).unwrap();
    target.check(&fs::read(input).unwrap());
}

#[test]
fn no_committed_input_breaks_any_target() {
    let mut broken = Vec::new();
    for input in TARGETS.iter().flat_map(|target| inputs(target.name)) {
        let bytes = fs::read(&input).unwrap();
        for target in TARGETS {
            if catch_unwind(|| target.check(&bytes)).is_err() {
                broken.push(format!("{} with {}", target.name, input.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// What costs more than in proportion shows when there is more of it.
#[test]
fn inputs_repeated_many_times_cost_in_proportion() {
    const LEN: usize = 96 * 1024;
    let mut broken = Vec::new();
    // A machine's operations are no format, and their number is its time.
    for target in TARGETS.into_iter().filter(|target| target.name != "fetch_ops") {
        for input in inputs(target.name) {
            let bytes = fs::read(&input).unwrap();
            // Behind one another, each byte as a run, and the beginning once before many of the rest.
            let half = bytes.len() / 2;
            let repeated: Vec<u8> = bytes.iter().copied().cycle().take(LEN).collect();
            let runs = bytes.iter().flat_map(|byte| std::iter::repeat_n(*byte, LEN / bytes.len().max(1))).collect();
            let begun = bytes[..half].iter().chain(bytes[half..].iter().cycle()).copied().take(LEN).collect();
            for (how, bytes) in [("repeated", repeated), ("runs", runs), ("begun", begun)] {
                broken.extend(cost(target, &format!("{how} {}", input.display()), bytes));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Lists that are made to cost, as large as the proxy takes them.
#[test]
fn hostile_lists_cost_in_proportion() {
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
    let broken: Vec<String> = lists
        .into_iter()
        .enumerate()
        .filter_map(|(at, (name, text))| {
            cost(marline_fuzz::target(name).unwrap(), &format!("list {at}"), text.into_bytes())
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Runs a target; what is wrong with it.
fn cost(target: Target, what: &str, bytes: Vec<u8>) -> Option<String> {
    let began = Instant::now();
    let panicked = catch_unwind(|| target.check(&bytes)).is_err();
    let took = began.elapsed();
    (panicked || took > LONGEST).then(|| format!("{} with {what}: {took:?}", target.name))
}

/// A hundred times what the slowest takes alone: what is quadratic takes minutes.
const LONGEST: Duration = Duration::from_secs(60);

#[test]
fn each_target_has_inputs_and_each_folder_a_target() {
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
        "{bytes} bytes: `fuzz/run` keeps what it finds elsewhere; commit only what teaches"
    );
}
