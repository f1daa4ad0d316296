//! What the programs `marline` and `marline-lab` do alike towards people and scripts.
//!
//! 1. [`command_line`] parses the arguments and turns a mistake into one line.
//! 2. [`output`] is the only way to standard output and standard error; it escapes text from outside.
//! 3. [`log`] starts the log that `MARLINE_LOG` requests.
//! 4. [`Exit`] is how a command ends: a line and an exit code.
//!
//! A part of `marline-net` was not used: the laboratory would have to build all of it. A library of one program that the other
//! one uses would make one of them contain the other.

pub mod command_line;
mod exit;
pub mod log;
pub mod output;

pub use exit::CliError;
