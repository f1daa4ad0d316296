//! Command-line arguments of `marline paths` and `marline restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_core::link::LinkKind;
use marline_core::paths::{Goal, Policy};
use marline_paths::transparent::PortRange;

#[cfg(feature = "fleet")]
use crate::args::LinkOption;
use crate::args::{DaemonLinkArgs, EnergyModelArgs, JsonArgs, RunDirArgs, TraceArgs, VpnArgs};

/// End of the output of `marline paths --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline paths doctor
      Check whether this host can run `marline paths`, with remedies.
  sudo marline paths
      Manage the MPTCP connections of all programs for the lowest energy, until Ctrl-C; then
      restore the host configuration.
  sudo marline paths --goal speed --link wlan0 --link wwan0,metered=yes,budget=2GB
      Use these two links for throughput; at most 2 GB over the second one.
  marline run -- curl -O https://example.org/big.iso
      Run a program with MPTCP connections, which the daemon then manages (--transparent does this
      for all programs).
  marline paths watch
      Show the managed connections, updated every second.
  marline paths explain 7b9c2f7a
      Show the decisions on one connection, by its token as shown by status, watch and `ss -ti`.

While it runs, the daemon sets net.mptcp.path_manager (and net.mptcp.enabled if it is 0) and adds
routing rules and routes with protocol 109, and with --kernel-pm MPTCP endpoints and limits. It
restores all of them at exit or, after a crash, at the next start or by `marline restore`. It
needs only CAP_NET_ADMIN; contrib/systemd has a unit. docs/mptcp.md is the user guide.

Exit codes: 0 stopped and restored, 1 failure, 64 wrong usage, 69 a link of --link does not exist,
77 CAP_NET_ADMIN is missing.";

const AFTER_DOCTOR: &str = "\
Examples:
  marline paths doctor
  marline paths doctor --probe mptcp.example.org:443
      Connect once over each link, and check whether the response has the MPTCP option.
  marline paths doctor --json | jq -r '.findings[] | select(.severity != \"ok\") | .remedy'

Exit codes: 0 this host can run `marline paths`, 1 it cannot.";

const AFTER_EIB: &str = "\
Examples:
  marline paths eib
  marline paths eib --energy-model emptcp-s3 --kinds wifi,lte

Each line is for one rate of the second link and has two thresholds of the first link's rate.
Below the lower one, the second link alone uses the least energy per byte; above the upper one,
the first link alone; between them, both links together.";

pub(crate) const AFTER_RESTORE: &str = "\
Restores sysctl settings, routing rules and routes, MPTCP endpoints and limits, and removes the
nftables table `inet marline-lan`, which blocks the LAN of a crashed edge from the outside.
Changes of a running daemon are not touched: it restores them itself. Needs CAP_NET_ADMIN. The
next start of the same daemon restores everything as well, so `marline restore` is not needed
before.

Exit codes: 0 restored or nothing to restore, 1 something could not be restored (it is named),
77 CAP_NET_ADMIN is missing.";

/// `marline paths`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PathsArgs {
    /// Subcommand [default: run].
    #[command(subcommand)]
    pub(super) command: Option<PathsCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Subcommands of `marline paths`.
#[derive(Debug, Subcommand)]
pub(super) enum PathsCommand {
    /// Manage MPTCP connections until stopped.
    Run(Box<RunArgs>),
    /// Show links, connections and current decisions.
    Status {
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        #[command(flatten)]
        format: JsonArgs,
        /// Show at most N connections, the busiest first [default: 100, or with --json all].
        #[arg(long, value_name = "N", value_parser = parse_count)]
        at_most: Option<usize>,
    },
    /// Show the output of `status`, updated every second.
    Watch {
        #[command(flatten)]
        run_dir_args: RunDirArgs,
    },
    /// Show the last decisions on one connection, with their figures.
    Explain {
        /// Token of the connection: eight hexadecimal digits, as shown by `status`, `ss -ti` and `ip mptcp monitor`.
        #[arg(value_name = "TOKEN", value_parser = parse_token)]
        token: u32,
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Check whether this host can run `marline paths`, and print remedies.
    #[command(after_help = AFTER_DOCTOR)]
    Doctor {
        /// Connect to this server over each link, to check that MPTCP and full-sized packets pass; repeat for more.
        #[arg(long, value_name = "HOST:PORT")]
        probe: Vec<String>,
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print which of two kinds of links, or both, uses the least energy per byte at given rates.
    #[command(after_help = AFTER_EIB)]
    Eib {
        #[command(flatten)]
        model: EnergyModelArgs,
        /// Kinds of the first and the second link, each with a radio in the model.
        #[arg(long, value_name = "KIND,KIND", default_value = "wifi,lte", value_parser = parse_kinds)]
        kinds: (LinkKind, LinkKind),
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Same as `marline restore`.
    Restore(RestoreArgs),
}

/// `marline restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    /// Print only errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// `marline paths run`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RunArgs {
    /// Goal of the policy marline: speed, latency, energy or cost [default: energy].
    #[arg(long, value_name = "GOAL")]
    pub(super) goal: Option<Goal>,
    /// Assume that programs on this host keep their send buffers short, as `marline edge` does.
    ///
    /// Then even a link with a twentieth of the fastest link's rate helps an upload.
    #[arg(long)]
    pub(super) short_queues: bool,
    /// Policy: marline, or for comparisons emptcp, wifi-first or mptcp [default: marline].
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<Policy>,
    #[command(flatten)]
    pub(super) links: DaemonLinkArgs,
    #[command(flatten)]
    pub(super) vpn: VpnArgs,
    #[command(flatten)]
    pub(super) model: EnergyModelArgs,
    /// Manage all connections together through the kernel's path manager: less precise, but it works on after a crash of the daemon.
    #[arg(long)]
    pub(super) kernel_pm: bool,
    /// Only print what would be done; changes nothing and needs no privileges.
    #[arg(long, conflicts_with = "kernel_pm")]
    pub(super) dry_run: bool,
    /// Forward new plain TCP connections of programs on this host as MPTCP.
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) transparent: bool,
    /// With --transparent: forward only connections of programs in this control group [default: all programs].
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup: Option<PathBuf>,
    /// With --transparent: forward only connections to this port or range of ports; repeat for more [default: all ports].
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(super) port: Vec<PortRange>,
    #[command(flatten)]
    pub(super) log: TraceArgs,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    /// Print only errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

#[cfg(feature = "fleet")]
impl RunArgs {
    /// Arguments of the path manager that runs in the process of an edge.
    pub(crate) fn for_edge(goal: Goal, links: Vec<LinkOption>, run_dir_args: RunDirArgs) -> Self {
        Self {
            goal: Some(goal),
            short_queues: true,
            links: DaemonLinkArgs { link: links },
            run_dir_args,
            quiet: true,
            ..Self::default()
        }
    }
}

/// Parses an MPTCP token, with or without `0x`.
fn parse_token(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let token = is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    token.ok_or_else(|| "a token is up to eight hexadecimal digits, such as 7b9c2f7a".to_owned())
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number of connections such as 20"))
}

fn parse_kinds(text: &str) -> Result<(LinkKind, LinkKind), String> {
    let Some((first, second)) = text.split_once(',') else {
        return Err("name two kinds of links, such as wifi,lte".to_owned());
    };
    let parse_kind =
        |kind_name: &str| kind_name.parse().map_err(|error: marline_core::link::UnknownLinkKind| error.to_string());
    Ok((parse_kind(first)?, parse_kind(second)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_hexadecimal_with_or_without_a_prefix() {
        assert_eq!(parse_token("7b9c2f7a"), Ok(0x7b9c_2f7a));
        assert_eq!(parse_token("0x10"), Ok(16));
        for bad in ["", "0x", "x", "123456789", "-1", "+1"] {
            assert!(parse_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn two_kinds_are_separated_by_a_comma() {
        assert_eq!(parse_kinds("wifi,nr"), Ok((LinkKind::Wifi, LinkKind::Nr)));
        for bad in ["wifi", "wifi,", "wifi,4g", "wifi,lte,nr"] {
            assert!(parse_kinds(bad).is_err(), "{bad}");
        }
    }
}
