//! Every committed input through every target: what was found once stays mended, on any machine, without libFuzzer.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use marline_fuzz::TARGETS;

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
    (target.run)(&fs::read(input).unwrap());
}

#[test]
fn no_committed_input_breaks_any_target() {
    let mut broken = Vec::new();
    for input in TARGETS.iter().flat_map(|target| inputs(target.name)) {
        let bytes = fs::read(&input).unwrap();
        for target in TARGETS {
            if catch_unwind(|| (target.run)(&bytes)).is_err() {
                broken.push(format!("{} with {}", target.name, input.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

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
