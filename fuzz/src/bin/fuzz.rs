//! Binary for libFuzzer. It contains all targets; `MARLINE_FUZZ_TARGET` selects the one that runs.
//!
//! A binary per target was not used: each of them would contain the same crates and be linked separately.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use marline_fuzz::{Target, target};

/// The selected target.
static SELECTED: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("MARLINE_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        eprintln!("MARLINE_FUZZ_TARGET=`{name}` is not a target: see fuzz/README.md for their names");
        std::process::exit(64)
    })
});

fuzz_target!(|bytes: &[u8]| SELECTED.check(bytes));
