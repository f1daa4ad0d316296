//! Options that several commands have. Each is declared once, here; a command flattens the struct.
//!
//! If an option means something more special in one command, that command replaces the help text (`mut_arg`), not the option.
//! Options for certificates of a fleet are in `credentials`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use marline_core::fetch::MeteredUse;
use marline_core::units::parse_duration;
use marline_net::links::{LinkArg, ParseLinkArgError};
use serde::Serialize;

use crate::CliError;
use crate::output::{print_result, to_json};

/// Links of a download or a proxy.
#[derive(Clone, Debug, Args)]
pub struct LinkArgs {
    /// Use only this link; repeat for more [default: all working links].
    ///
    /// Properties may follow the name, separated by commas: kind=KIND, metered=yes|no, budget=SIZE, limit=RATE.
    #[arg(long, value_name = "IFACE[,…]")]
    pub link: Vec<LinkArg>,
    /// Whether links below a VPN are used.
    #[command(flatten)]
    pub vpn: VpnArgs,
    /// Use of metered links: avoid (only while no other link works), use, or never [default: avoid].
    #[arg(long, value_name = "avoid|use|never", value_parser = parse_metered_use)]
    pub metered: Option<MeteredUse>,
}

/// Links of a daemon, which waits for those that do not exist yet.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct DaemonLinkArgs {
    /// Use only this link; repeat for more [default: all links that work, now or later].
    ///
    /// Properties may follow the name, separated by commas: kind=KIND, metered=yes|no, budget=SIZE (for all runs together), and optional:
    /// the interface need not exist yet.
    #[arg(long, value_name = "IFACE[,…]")]
    pub(crate) link: Vec<LinkOption>,
}

/// Whether links below a VPN are used.
#[derive(Clone, Debug, Default, Args)]
pub struct VpnArgs {
    /// Use the links below an active VPN instead of the VPN alone.
    #[arg(long)]
    pub bypass_vpn: bool,
}

/// Trusted certificate authorities of HTTPS servers.
#[derive(Clone, Debug, Args)]
pub struct CaFileArgs {
    /// Trust only the certificate authorities in this PEM file [default: those of the system].
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// Congestion control of a command's TCP connections. `C` checks the name.
#[derive(Clone, Debug, Args)]
pub(crate) struct CongestionArgs<
    C: FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>> + Clone + Send + Sync + 'static,
> {
    /// Congestion control of each socket, such as cubic or bbr [default: that of the host].
    #[arg(long, value_name = "NAME")]
    pub(crate) congestion: Option<C>,
}

/// Device energy model with which a command counts energy.
#[derive(Clone, Debug, Default, Args)]
pub struct EnergyModelArgs {
    /// Device energy model: a name or a file (see `marline energy models`) [default: typical].
    #[arg(long, value_name = "NAME|FILE")]
    pub energy_model: Option<String>,
}

/// Run directory of a daemon.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RunDirArgs {
    /// Directory of the daemon's control socket and of its state for recovery after a crash [default: /run/marline, or for an
    /// unprivileged user's control socket $XDG_RUNTIME_DIR/marline].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Decision log of a run.
#[derive(Clone, Debug, Default, Args)]
pub struct TraceArgs {
    /// Write a decision log for `marline replay` to FILE.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// Format of a result.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl JsonArgs {
    /// Prints the value on standard output: as indented JSON, or as the text that `render` makes of it.
    pub(crate) fn print<T: Serialize>(self, value: &T, render: impl FnOnce(&T) -> String) -> Result<(), CliError> {
        print_result(&if self.json { to_json(value)? } else { render(value) })
    }
}

/// Value of `--link` of a daemon that waits for its links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LinkOption {
    /// Interface and properties of the link.
    pub(crate) link: LinkArg,
    /// Whether the interface may be missing (`optional`): the daemon then waits for it. Otherwise a missing interface is an error,
    /// since its name may be a typo.
    pub(crate) is_optional: bool,
}

impl FromStr for LinkOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (optional_parts, link_parts): (Vec<&str>, Vec<&str>) =
            text.split(',').partition(|part| *part == "optional");
        let link = link_parts.join(",").parse().map_err(|error| match error {
            // The error of `LinkArg` would name `limit=`, which is only for `get` and `proxy`, and would not name `optional`.
            ParseLinkArgError::UnknownKey(part) => {
                format!(
                    "`{part}`: use kind=, metered=, budget= or optional after the interface, separated by commas"
                )
            }
            error => error.to_string(),
        })?;
        Ok(Self { link, is_optional: !optional_parts.is_empty() })
    }
}

/// Parses the value of `--metered`.
fn parse_metered_use(text: &str) -> Result<MeteredUse, String> {
    match text {
        "avoid" => Ok(MeteredUse::Avoid),
        "use" => Ok(MeteredUse::Use),
        "never" => Ok(MeteredUse::Never),
        _ => Err("use `avoid`, `use` or `never`".into()),
    }
}

/// Parses a duration with its unit, such as `50ms`, that must be longer than zero.
pub(crate) fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("zero is too short".into()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use marline_core::link::LinkKind;

    use super::*;

    #[test]
    fn a_link_may_be_optional() {
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
}
