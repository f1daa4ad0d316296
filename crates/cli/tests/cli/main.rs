//! The command line, and the files in `contrib/` that use it. No test needs a network or a privilege.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

mod command_line;
mod energy;
#[cfg(feature = "fleet")]
mod packaging;
