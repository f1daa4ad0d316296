//! The command line: what can be written, and what each word means.
//!
//! Arguments go in, a [`Cli`] that cannot be wrong in itself comes out, or an [`Exit`] with one line.
//!
//! 1. Every value with a dimension carries its unit (`20Mbit/s`, `50ms`, `500KiB`).
//! 2. Whatever may hold a secret (`--user`, `-H`, a URL) is taken as plain text here and parsed by
//!    [`get`](crate::get), because clap repeats a refused value in its message.
//! 3. Nothing is read or opened.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use marline_core::fetch::MeteredUse;
use marline_core::units::parse_duration;

use crate::CliError;

/// Several network links behave as one good link.
#[derive(Debug, Parser)]
#[command(name = "marline", version, max_term_width = 100, subcommand_required = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Read this configuration file instead of ~/.config/marline/marline.toml.
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  marline get https://example.org/big.iso    download on all links of this machine
  marline links                              which links there are, and why one is not used
  marline help get                           everything about `get`

Exit codes: 0 done, 1 failed, 64 wrong usage, 65 the bytes do not match their digest, 66 the server
refuses (4xx), 67 an HTML page instead of the file, 68 the server cannot be reached, 69 no usable
network link, 74 the bytes cannot be stored, 75 the server fails (5xx), 76 the server does not answer
what was asked, 77 a privilege is missing, 130 stopped by Ctrl-C.

Set MARLINE_LOG=debug to see what happens inside.";

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Download a file on all links at once.
    #[command(after_help = crate::get::AFTER_HELP)]
    Get(Box<crate::get::GetArgs>),
    /// Show this machine's links, and why a link is not used.
    #[command(after_help = AFTER_LINKS)]
    Links(LinksArgs),
    /// Run a log of decisions again and prove that they come out the same.
    #[command(after_help = AFTER_REPLAY)]
    Replay(ReplayArgs),
    /// Count the joules of a recorded download, and show what is known of radios.
    #[command(after_help = crate::energy::AFTER_HELP)]
    Energy(crate::energy::EnergyArgs),
    /// Play and browse over all links: a local proxy for players, browsers and programs.
    #[command(after_help = crate::proxy::AFTER_PROXY)]
    Proxy(Box<crate::proxy::ProxyArgs>),
    /// Print the address at which a player finds a URL, or start the player.
    #[command(after_help = crate::proxy::AFTER_PLAY)]
    Play(Box<crate::proxy::PlayArgs>),
    /// Steer the MPTCP connections of all programs, by energy and cost.
    #[command(after_help = crate::paths::AFTER_HELP)]
    Paths(Box<crate::paths::PathsArgs>),
    /// Put this host back as it was before a `marline paths` or `marline edge` that has crashed.
    #[command(after_help = crate::paths::AFTER_RESTORE)]
    Restore(crate::paths::RestoreArgs),
    /// Run a command whose TCP connections are MPTCP connections.
    #[command(after_help = crate::run::AFTER_HELP)]
    Run(crate::run::RunArgs),
    /// Relays for edges: who belongs to a fleet, and who serves whom.
    #[cfg(feature = "fleet")]
    Fleet(Box<crate::fleet::FleetArgs>),
    /// Carry edges' connections to their servers.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::relay::AFTER_HELP)]
    Relay(Box<crate::relay::RelayArgs>),
    /// Carry programs' connections over all links to a relay.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::edge::AFTER_HELP)]
    Edge(Box<crate::edge::EdgeArgs>),
    /// Make TCP on one link faster, with a thin second link beside it.
    #[cfg(feature = "accel")]
    #[command(after_help = crate::accel::AFTER_HELP)]
    Accel(Box<crate::accel::AccelArgs>),
}

const AFTER_LINKS: &str = "\
Examples:
  marline links
  marline links --json | jq -r '.[] | select(.verdict == \"usable\") | .name'";

const AFTER_REPLAY: &str = "\
Examples:
  marline get --trace run.ndjson https://example.org/big.iso
  marline replay run.ndjson

Exit code 0: every decision came out the same. 1: one did not (its line is shown), or the log is damaged.";

/// `marline links`.
#[derive(Debug, Args)]
pub struct LinksArgs {
    /// Print one JSON array.
    #[arg(long)]
    pub json: bool,
    /// Show the links below an active VPN as `marline get --bypass-vpn` would use them.
    #[arg(long)]
    pub bypass_vpn: bool,
}

/// `marline replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The log that `--trace` wrote; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

pub(crate) fn parse_metered_use(word_value: &str) -> Result<MeteredUse, String> {
    match word_value {
        "avoid" => Ok(MeteredUse::Avoid),
        "use" => Ok(MeteredUse::Use),
        "never" => Ok(MeteredUse::Never),
        _ => Err("say avoid, use or never".into()),
    }
}

pub(crate) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("no time at all is too short".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads the command line. Help and version are printed here and end with success.
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
}
