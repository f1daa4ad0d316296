//! The `marline-lab` program: hands the command line to the library and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    marline_lab::cli::main(std::env::args_os())
}
