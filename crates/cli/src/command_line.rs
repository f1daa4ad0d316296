//! Command line of `marline`: the top-level command and its subcommands.
//!
//! Parsing yields a [`Cli`] whose values are valid, or a [`CliError`] with a one-line message. Each command defines its own arguments;
//! options of several commands are in [`args`](crate::args).
//!
//! 1. Every value with a dimension carries its unit (`20Mbit/s`, `50ms`, `500KiB`). As in curl, a rate limit such as `2M` is in bytes per
//!    second.
//! 2. Options that may hold a secret (`--user`, `-H`, a URL) are taken as plain text here and parsed by
//!    [`get`](crate::get), because clap repeats a rejected value in its message.
//! 3. No file is read or opened here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, Parser, Subcommand};

use crate::CliError;

/// Makes several network links behave as one good link.
#[derive(Debug, Parser)]
#[command(name = "marline", version, max_term_width = 100, subcommand_required = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Read this configuration file instead of ~/.config/marline/marline.toml; other options override its settings.
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    pub config: Option<PathBuf>,
    /// The subcommand and its options.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  marline get https://example.org/big.iso    download a file over all links of this machine
  marline links                              list the links, and why a link is not used
  marline help get                           show the complete help of `get`

Exit codes: 0 success, 1 failure, 64 wrong usage, 65 checksum mismatch, 66 client error from the
server (4xx), 67 HTML page instead of the file, 68 server unreachable, 69 no usable network link,
74 data cannot be stored, 75 server error (5xx), 76 response does not match the request,
77 missing privilege, 130 interrupted by Ctrl-C.

Set MARLINE_LOG=debug to write a log to standard error.";

impl Cli {
    /// The configuration file named by `--config`.
    ///
    /// # Errors
    /// The command reads no configuration file, so that naming one is a mistake.
    pub(crate) fn config(&self) -> Result<Option<&Path>, CliError> {
        let Some(path) = self.config.as_deref() else { return Ok(None) };
        match self.command.name_without_config() {
            None => Ok(Some(path)),
            Some(name) => Err(CliError::usage(format!(
                "--config: `marline {name}` reads no configuration file; give its options on the command line"
            ))),
        }
    }
}

/// Hides `--config` from the help of a command that reads no configuration file. clap adds the global option only to
/// commands that do not define one of this name. A value is refused by [`Cli::config`], with the reason.
fn hidden_config() -> Arg {
    let parser = clap::value_parser!(PathBuf);
    Arg::new("config").long("config").value_name("FILE").value_parser(parser).global(true).hide(true)
}

/// Subcommands of `marline`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Download files over all links at once.
    #[command(after_help = crate::get::AFTER_HELP)]
    Get(Box<crate::get::GetArgs>),
    /// Show this machine's links, and why a link is not used.
    #[command(after_help = crate::links::AFTER_HELP)]
    Links(crate::links::LinksArgs),
    /// Replay a decision log and check that this version makes the same decisions.
    #[command(after_help = crate::replay::AFTER_HELP, arg = hidden_config())]
    Replay(crate::replay::ReplayArgs),
    /// Compute the radio energy of a recorded download, and show the device energy models.
    #[command(after_help = crate::energy::AFTER_HELP)]
    Energy(crate::energy::EnergyArgs),
    /// Run a local proxy that uses all links, for video players, browsers and other programs.
    #[command(after_help = crate::proxy::AFTER_PROXY)]
    Proxy(Box<crate::proxy::ProxyArgs>),
    /// Print the proxy address of a video URL, or start a player with it.
    #[command(after_help = crate::proxy::AFTER_PLAY)]
    Play(Box<crate::proxy::PlayArgs>),
    /// Manage the MPTCP connections of all programs by energy, cost and throughput.
    #[command(after_help = crate::paths::AFTER_HELP)]
    Paths(Box<crate::paths::PathsArgs>),
    /// Restore the host configuration after `marline paths` or `marline edge` has crashed.
    #[command(after_help = crate::paths::AFTER_RESTORE)]
    Restore(crate::paths::RestoreArgs),
    /// Run a command with MPTCP instead of TCP.
    #[command(after_help = crate::run::AFTER_HELP, arg = hidden_config())]
    Run(crate::run::RunArgs),
    /// Manage a fleet of edges and relays: certificates, and the service that assigns relays to edges.
    #[cfg(feature = "fleet")]
    #[command(arg = hidden_config())]
    Fleet(Box<crate::fleet::FleetArgs>),
    /// Run a relay, which forwards the connections of edges to their servers.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::relay::AFTER_HELP, arg = hidden_config())]
    Relay(Box<crate::relay::RelayArgs>),
    /// Run an edge, which carries connections of programs or a LAN over all links to a relay.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::edge::AFTER_HELP)]
    Edge(Box<crate::edge::EdgeArgs>),
    /// Accelerate TCP on one link with the help of a slow second link.
    #[cfg(feature = "accel")]
    #[command(after_help = crate::accel::AFTER_HELP, arg = hidden_config())]
    Accel(Box<crate::accel::AccelArgs>),
}

impl Command {
    /// The command's name, if it reads no configuration file.
    fn name_without_config(&self) -> Option<&'static str> {
        match self {
            Self::Replay(_) => Some("replay"),
            Self::Run(_) => Some("run"),
            #[cfg(feature = "fleet")]
            Self::Fleet(_) => Some("fleet"),
            #[cfg(feature = "fleet")]
            Self::Relay(_) => Some("relay"),
            #[cfg(feature = "accel")]
            Self::Accel(_) => Some("accel"),
            _ => None,
        }
    }
}

/// Parses the command line; see [`marline_terminal::command_line::parse`].
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, CliError> {
    marline_terminal::command_line::parse(args)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn clap_accepts_its_own_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_configuration_file_is_refused_by_commands_that_read_none() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["marline"], args].concat()).unwrap();
        for args in [
            &["--config", "f", "accel", "--primary", "wlan0"][..],
            &["accel", "--primary", "wlan0", "--config", "f"],
            &["accel", "status", "--config", "f"],
            &["accel", "rtp", "--primary", "a", "--secondary", "b", "rtsp://h/s", "--config", "f"],
            &["replay", "log", "--config", "f"],
            &["--config", "f", "run", "--", "true"],
            &["relay", "status", "--config", "f"],
            &["fleet", "status", "--fleet", "https://fleet.test", "--certificate", "c.pem", "--config", "f"],
        ] {
            let message = parse(args).config().unwrap_err().message.unwrap();
            assert!(message.contains("reads no configuration file"), "{args:?}: {message}");
        }
        for args in [
            &["links", "--config", "f"][..],
            &["--config", "f", "paths", "status"],
            &["edge", "status", "--config", "f"],
        ] {
            assert_eq!(parse(args).config().unwrap(), Some(Path::new("f")), "{args:?}");
        }
        // The program of `marline run` gets its own option.
        assert_eq!(parse(&["run", "--", "program", "--config", "f"]).config().unwrap(), None);
        let mut program = Cli::command();
        program.build();
        let hides_config = |command: &&clap::Command| {
            command.get_arguments().any(|arg| arg.get_id() == "config" && arg.is_hide_set())
        };
        let mut hidden: Vec<&str> =
            program.get_subcommands().filter(hides_config).map(clap::Command::get_name).collect();
        hidden.sort_unstable();
        assert_eq!(hidden, ["accel", "fleet", "relay", "replay", "run"]);
    }
}
