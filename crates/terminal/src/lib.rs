//! Terminal interface that the programs `marline` and `marline-lab` share: command line, output, log and exit codes.
//!
//! 1. [`command_line`] parses the arguments and turns a mistake into one line.
//! 2. [`output`] writes to standard output and standard error and escapes untrusted text; it lists the few exceptions.
//! 3. [`table`], [`findings`] and [`screen`] render status: tables, findings of a check, and a text that is updated in place.
//! 4. [`log`] starts the log that `MARLINE_LOG` requests.
//! 5. [`CliError`] is the failure of a command: a message and an exit code.
//!
//! This is a crate of its own and not part of `marline-net`, since the laboratory would then have to build all of
//! `marline-net`. If one program's library contained it, the other program would have to link that whole program.

mod cli_error;
pub mod command_line;
pub mod findings;
pub mod log;
pub mod output;
pub mod screen;
pub mod table;

pub use cli_error::CliError;
