//! The binary that libFuzzer drives: one for all targets; `MARLINE_FUZZ_TARGET` says which one runs.
//!
//! A binary for each target was not used: all would carry the same crates and be linked one by one.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use marline_fuzz::{Target, target};

/// The chosen target.
static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("MARLINE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        eprintln!("MARLINE_FUZZ_TARGET=`{name}` is none of the targets: see fuzz/README.md");
        std::process::exit(64)
    })
});

fuzz_target!(|bytes: &[u8]| CHOSEN.check(bytes));
