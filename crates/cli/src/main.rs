//! The `marline` program: passes the command line to the library and returns its exit code.
//!
//! Everything else is in the library, so that tests can run each function without starting the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline::run(std::env::args_os())
}
