//! The `marline` program: hands the command line to the library and returns its exit code.
//!
//! Nothing else is here, so that whatever the program can do, a test can do without starting it.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline::run(std::env::args_os())
}
