//! What can be written behind `marline paths`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use marline_core::link::LinkKind;
use marline_core::paths::{Goal, Policy};
use marline_net::links::{LinkArg, ParseLinkArgError};
use marline_paths::transparent::PortRange;

/// The last lines of `marline paths --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline paths doctor
      Is this machine fit, and what helps where it is not?
  sudo marline paths
      Steer the MPTCP connections of all programs for the fewest joules, until Ctrl-C; then all is as before.
  sudo marline paths --goal speed --link wlan0 --link wwan0,metered=yes,budget=2GB
      These two links, for speed; at most 2 GB over the second one.
  marline run -- curl -O https://example.org/big.iso
      A program that asks for MPTCP, so that there is something to steer (--transparent does it for all).
  marline paths watch
  marline paths explain 7b9c2f7a
      What is steered now; and why one connection, by the token that status, watch and `ss -ti` show.

Changed while it runs, and put back at its end or, after a crash, at the next start or by `marline restore`:
net.mptcp.path_manager (and net.mptcp.enabled where it is 0), and routing rules with protocol 109. It needs
CAP_NET_ADMIN and nothing else; contrib/systemd has a unit. docs/paths.md is the operator's guide.

Exit codes: 0 stopped and all put back, 1 failed, 64 wrong usage, 69 no usable link, 77 CAP_NET_ADMIN is missing.";

const AFTER_DOCTOR: &str = "\
Examples:
  marline paths doctor
  marline paths doctor --probe mptcp.example.org:443
      Connect once over each link, and see whether MPTCP's option comes back.
  marline paths doctor --json | jq -r '.findings[] | select(.severity != \"ok\") | .remedy'

Exit code 0: nothing stands in the way. 1: something does.";

const AFTER_EIB: &str = "\
Examples:
  marline paths eib
  marline paths eib --energy-model emptcp-s3 --kinds wifi,lte

One line for each rate of the second link: below the first threshold of the first link's rate the second one alone
costs the fewest joules a byte, above the other threshold the first one alone, between them both together.";

pub(crate) const AFTER_RESTORE: &str = "\
Settings (sysctl), routing rules and routes, MPTCP endpoints and limits, and the table `inet marline-lan` of nftables, which keeps the LAN of
an edge that has crashed closed. Nothing of a daemon that runs is touched: it puts everything back itself. Needs CAP_NET_ADMIN. The next start
of the same daemon takes over what was left, and needs no `marline restore` before.

Exit codes: 0 put back, or nothing to put back; 1 something could not be put back, which is named; 77 CAP_NET_ADMIN is missing.";

/// `marline paths`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PathsArgs {
    /// What to do [default: run].
    #[command(subcommand)]
    pub(super) command: Option<PathsCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// The verbs of `marline paths`.
#[derive(Debug, Subcommand)]
pub(super) enum PathsCommand {
    /// Steer MPTCP connections until stopped.
    Run(Box<RunArgs>),
    /// Show links, connections and what is decided.
    Status {
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Show no more connections than this, the busiest first.
        #[arg(long, value_name = "N", value_parser = parse_count)]
        at_most: Option<usize>,
    },
    /// Show the same, painted anew every second.
    Watch {
        #[command(flatten)]
        run_dir_args: RunDirArgs,
    },
    /// Tell why a connection is carried as it is: its last decisions, with their figures.
    Explain {
        /// The connection: eight hexadecimal digits, as `status`, `ss -ti` and `ip mptcp monitor` show them.
        #[arg(value_name = "TOKEN", value_parser = parse_token)]
        token: u32,
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Examine this machine: what stands in the way, and what helps.
    #[command(after_help = AFTER_DOCTOR)]
    Doctor {
        /// Connect to this server over each link, to see whether MPTCP and full-sized packets get through; repeat for more.
        #[arg(long, value_name = "HOST:PORT")]
        probe: Vec<String>,
        #[command(flatten)]
        run_dir_args: RunDirArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print which of two kinds of links, or both, cost the fewest joules a byte, by their rates.
    #[command(after_help = AFTER_EIB)]
    Eib {
        /// The device: a name or a file (`marline energy models`).
        #[arg(long, value_name = "NAME|FILE")]
        energy_model: Option<String>,
        /// The two kinds of links.
        #[arg(long, value_name = "KIND,KIND", default_value = "wifi,lte", value_parser = parse_kinds)]
        kinds: (LinkKind, LinkKind),
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// The same as `marline restore`.
    Restore(RestoreArgs),
}

/// `marline restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// `marline paths run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// What marline aims for: speed (the highest throughput), latency, energy or cost (the fewest bytes over metered links)
    /// [default: energy].
    #[arg(long, value_name = "GOAL")]
    pub(super) goal: Option<Goal>,
    /// Programs here keep what they have not sent short, as `marline edge` does: then a link of a twentieth helps an upload.
    #[arg(long)]
    pub(super) short_queues: bool,
    /// Who decides: marline, or for comparisons emptcp, wifi-first or mptcp [default: marline].
    #[arg(long, value_name = "NAME")]
    pub(super) policy: Option<Policy>,
    /// Use this interface, on these terms; repeat for more; with `,optional` it need not be there yet. Without it: every link
    /// that works, or comes to work, also what is plugged in later.
    #[arg(long, value_name = "IFACE[,…]")]
    pub(super) link: Vec<LinkOption>,
    /// Use the links below an active VPN instead of the VPN alone.
    #[arg(long)]
    pub(super) bypass_vpn: bool,
    /// The device whose radios the links are taken for: a name or a file (`marline energy models`) [default: typical].
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) energy_model: Option<String>,
    /// Steer all connections together, through the kernel's own path manager: less exact, and it outlives a crash.
    #[arg(long)]
    pub(super) kernel_pm: bool,
    /// Change nothing and need no privilege: only say what would be done.
    #[arg(long, conflicts_with = "kernel_pm")]
    pub(super) dry_run: bool,
    /// Lead plain TCP of this host's programs on as MPTCP, too.
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) transparent: bool,
    /// Of --transparent: only the programs in this control group.
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup: Option<PathBuf>,
    /// Of --transparent: only connections to this port, or these; repeat for more.
    #[arg(long, value_name = "PORT[-PORT]")]
    pub(super) port: Vec<PortRange>,
    /// Write every input and decision to FILE, for `marline replay`.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// What `--link` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LinkOption {
    /// The interface and its terms.
    pub(super) link: LinkArg,
    /// It is waited for if there is none of its name; otherwise that is an error, for it may be a slip of the pen.
    pub(super) is_optional: bool,
}

impl FromStr for LinkOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (optional_parts, link_parts): (Vec<&str>, Vec<&str>) =
            text.split(',').partition(|part| *part == "optional");
        let link = link_parts.join(",").parse().map_err(|error| match error {
            // A download's links have a limit, and cannot be waited for.
            ParseLinkArgError::UnknownKey(part) => {
                format!(
                    "`{part}`: after the interface come kind=, metered=, budget= or optional, separated by commas"
                )
            }
            error => error.to_string(),
        })?;
        Ok(Self { link, is_optional: !optional_parts.is_empty() })
    }
}

/// Where a daemon is.
#[derive(Clone, Debug, Args)]
pub(super) struct RunDirArgs {
    /// Where the daemon's socket and its notes for the time after a crash are [default: /run/marline].
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
}

fn parse_token(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let token = is_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
    token.ok_or_else(|| "a token is up to eight hexadecimal digits, such as 7b9c2f7a".to_owned())
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is no number of connections, such as 20"))
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
    fn a_token_is_hexadecimal_with_or_without_its_mark() {
        assert_eq!(parse_token("7b9c2f7a"), Ok(0x7b9c_2f7a));
        assert_eq!(parse_token("0x10"), Ok(16));
        for bad in ["", "0x", "x", "123456789", "-1", "+1"] {
            assert!(parse_token(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_link_may_be_waited_for() {
        let parse_link =
            |text: &str| text.parse::<LinkOption>().map(|wanted| (wanted.link.name, wanted.is_optional));
        assert_eq!(parse_link("usb0"), Ok(("usb0".into(), false)));
        assert_eq!(parse_link("usb0,optional"), Ok(("usb0".into(), true)));
        let link: LinkOption = "usb0,optional,kind=lte,budget=2GB".parse().unwrap();
        assert_eq!((link.link.kind, link.is_optional), (Some(LinkKind::Lte), true));
        assert_eq!(link.link.budget.map(|budget| budget.bytes()), Some(2_000_000_000));
        for bad in ["optional", "usb0,soon", "usb0,optional=yes"] {
            assert!(parse_link(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn two_kinds_are_named_with_a_comma() {
        assert_eq!(parse_kinds("wifi,nr"), Ok((LinkKind::Wifi, LinkKind::Nr)));
        for bad in ["wifi", "wifi,", "wifi,4g", "wifi,lte,nr"] {
            assert!(parse_kinds(bad).is_err(), "{bad}");
        }
    }
}
