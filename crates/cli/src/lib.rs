//! User interface of `marline`: command line, configuration file, progress display, status output and exit codes.
//!
//! It translates arguments, environment variables and the configuration file into calls of the capability crates, for
//! example into a [`Batch`](download::Batch) for `marline-download`.
//!
//! 1. All user input is parsed before any file is opened or any request is sent, so a typo has no side effect.
//! 2. Standard output carries only results (the file, a table, a JSON object); notices about them go to standard error.
//! 3. An error is one line: what failed, on which link or file, why, and the remedy.
//! 4. Nothing is started that a 10 KB download does not need: one thread, a second one only to resolve a host name, and no logging unless
//!    it is requested.
//!
//! Programs that need the download without the command line use [`download`] directly.
//!
//! Each command has a module of its name (`play` is in `proxy`, `restore` in `paths`). `command_line` has the list of commands, `args` the
//! options of several commands, `config` the configuration file, `credentials` the files of fleet members, `control` the errors of control
//! sockets, `decision_log` the reader of logs, `progress` the progress display, `privileges` what daemons drop, and `reload_signal` SIGHUP.

#[cfg(feature = "accel")]
mod accel;
mod args;
mod command_line;
mod config;
mod control;
#[cfg(feature = "fleet")]
mod credentials;
mod decision_log;
mod directories;
#[cfg(feature = "fleet")]
mod edge;
mod energy;
#[cfg(feature = "fleet")]
mod fleet;
mod get;
mod links;
mod output;
mod paths;
mod privileges;
mod progress;
mod proxy;
#[cfg(feature = "fleet")]
mod relay;
mod reload_signal;
mod replay;
mod run;
mod secret;

use std::ffi::OsString;
use std::process::ExitCode;

pub use command_line::{Cli, Command};
pub use config::{ConfigError, ConfigFile};
/// Downloads: describe them in a [`download::Batch`], then [`download::run`] it.
pub use marline_download as download;
pub use marline_terminal::CliError;
pub use secret::Secret;

/// Runs one command line and returns its exit code. The first argument is the program's name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = command_line::parse(args).and_then(|cli| {
        start_logging(&cli.command)?;
        cli.config()?;
        match cli.command {
            Command::Get(get) => get::run(*get, cli.config.as_deref()),
            Command::Links(links) => links::run(&links, cli.config.as_deref()),
            Command::Replay(replay) => replay::run(&replay),
            Command::Energy(energy) => energy::run(&energy, cli.config.as_deref()),
            Command::Paths(args) => paths::run(*args, cli.config.as_deref()),
            Command::Restore(args) => paths::restore_from_args(&args, cli.config.as_deref()),
            Command::Proxy(args) => proxy::run(*args, cli.config.as_deref()),
            Command::Play(args) => proxy::play(*args, cli.config.as_deref()),
            Command::Run(args) => run::run(args),
            #[cfg(feature = "fleet")]
            Command::Fleet(args) => fleet::run(*args),
            #[cfg(feature = "fleet")]
            Command::Relay(args) => relay::run(*args),
            #[cfg(feature = "fleet")]
            Command::Edge(args) => edge::run(*args, cli.config.as_deref()),
            #[cfg(feature = "accel")]
            Command::Accel(args) => accel::run(*args),
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => marline_terminal::output::print_failure(NAME, &error),
    }
}

/// Starts the log that the environment requests. Without one, the daemons of the fleet print only those events that an
/// operator must act on.
fn start_logging(command: &Command) -> Result<(), CliError> {
    if marline_terminal::log::start_log()? {
        return Ok(());
    }
    #[cfg(feature = "fleet")]
    if let Command::Relay(_) | Command::Edge(_) | Command::Fleet(_) = command {
        fleet::init_default_log();
    }
    #[cfg(not(feature = "fleet"))]
    let _ = command;
    Ok(())
}

/// The program's name, which prefixes each notice.
const NAME: &str = "marline";
