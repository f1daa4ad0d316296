//! Command-line arguments of `marline edge`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use marline_core::paths::Goal;
use marline_core::units::{Bitrate, DataSize};
use marline_fleet::congestion::CongestionControl;
use marline_fleet::edge::{LiveMatch, LocalDomain, PortalProbe};
use marline_fleet::service::Position;
use marline_fleet::service::api_types::Endpoint;
use serde::{Deserialize, Serialize};

use crate::args::{CongestionArgs, DaemonLinkArgs, JsonArgs, RunDirArgs};
use crate::credentials::{MemberFileArgs, RevocationArgs};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  sudo marline edge --fleet https://fleet.example.org:4444 --certificate cam-7.pem
      Accept connections of programs at 127.0.0.1:1088 (SOCKS5 or CONNECT) and carry them over all
      links to the relay that the fleet service assigns, which forwards them to their servers.
  sudo marline edge --relay relay.example.org --certificate cam-7.pem
      The same through a fixed relay, without a fleet service.
  sudo marline edge --lan wlan1 --fleet https://fleet.example.org:4444 --certificate cam-7.pem
      Act as the gateway of the hosts on wlan1: their TCP connections are carried as well, without
      any setting on the hosts.
  ALL_PROXY=socks5h://127.0.0.1:1088 curl -T film.mp4 https://upload.example.org/
      Use the edge from a program that supports proxies.
  marline edge status
      Show the relay in use, measured rates, and the traffic of each link.

Create the certificate with `marline fleet enroll` or `marline fleet ca issue edge NAME`. With
CAP_NET_ADMIN the MPTCP paths are managed as by `marline paths --goal speed`; without it
the kernel manages them. UDP is not carried to the relay: UDP of a LAN uses the single link with
the highest measured rate, a metered one only if there is no other. `--lan` needs CAP_NET_ADMIN
and nft. Its changes to the host are undone at exit or, after a crash, by the next start or
`marline restore`; until then the LAN stays blocked from the outside. docs/bonding.md is the
guide for gateways.";

/// `marline edge`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct EdgeArgs {
    /// Subcommand [default: run the edge until it is stopped].
    #[command(subcommand)]
    pub(super) command: Option<EdgeCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Subcommands of `marline edge`.
#[derive(Debug, Subcommand)]
pub(super) enum EdgeCommand {
    /// Show the relay in use, measured relays, flows, and the traffic of each link.
    Status {
        #[command(flatten)]
        format: JsonArgs,
        #[command(flatten)]
        run_dir_args: RunDirArgs,
    },
}

/// Arguments of a running edge.
#[derive(Debug, Args)]
#[command(mut_arg("congestion", |arg| {
    arg.help("Congestion control of connections to relays, on every link [default: that of the kernel]")
}))]
#[command(mut_arg("link", |arg| {
    arg.help("Use only this link; repeat for more (see `marline paths --link`). It need not exist yet").long_help(None)
}))]
pub(super) struct RunArgs {
    /// Get relays from the fleet service at this URL.
    #[arg(long, value_name = "URL")]
    pub(super) fleet: Option<String>,
    /// Use this relay [default port: 4443]; repeat for more, best first.
    ///
    /// The relay's certificate must be for this name. With --fleet, these relays are used while no relay of the service
    /// works.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) relay: Vec<String>,
    #[command(flatten)]
    pub(super) member_files: MemberFileArgs,
    #[command(flatten)]
    pub(super) revocations: RevocationArgs,
    /// Accept SOCKS5 and CONNECT here; repeat for more. Every host that can reach the address may use it.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1088")]
    pub(super) listen: Vec<SocketAddr>,
    /// Act as the gateway of the LAN at this interface; repeat for more.
    ///
    /// TCP is carried over all links; UDP and other packets use the best single link.
    #[arg(long, value_name = "IFACE[,…]", value_delimiter = ',')]
    pub(super) lan: Vec<String>,
    /// Give flows to this destination priority as live streams; repeat for more. RTMP (port 1935) always has priority.
    #[arg(long = "live", value_name = "PORT|HOST[:PORT]")]
    pub(super) live_streams: Vec<LiveMatch>,
    #[command(flatten)]
    pub(super) congestion_args: CongestionArgs<CongestionControl>,
    /// Number of spare connections to the first working relay that are kept open for new flows.
    #[arg(long, value_name = "N", default_value = "2")]
    pub(super) spare_connections: usize,
    /// Refuse flows while no relay is available, instead of sending them directly over one link; the default with --lan.
    ///
    /// If the fleet service assigns no relay, the edge keeps the current one (reason `no_gain`) or lets flows wait (reason
    /// `no_capacity`).
    #[arg(long)]
    pub(super) no_direct: bool,
    /// Send flows directly over one link, without the relay's encryption, while no relay is available; the default without
    /// --lan.
    #[arg(long, conflicts_with = "no_direct")]
    pub(super) direct: bool,
    /// Request this URL over a link to detect a captive portal, or `off`.
    ///
    /// A page or a redirect instead of status 204 indicates a portal. The request is plain HTTP, sent when a link has come
    /// up or failed, and repeatedly while it has a portal, while no relay works, or while flows go directly.
    #[arg(long, value_name = "URL|off", default_value = PortalProbe::DEFAULT)]
    pub(super) portal_probe: PortalProbe,
    /// Treat names below this domain as names of private networks; repeat for more.
    ///
    /// If no relay can resolve such a name, the name servers of this host and its links resolve it for programs that use the
    /// address of --listen. Names without a dot and those below lan, local, internal, home.arpa and fritz.box are always private. Do not
    /// use a domain below which others can register names.
    #[arg(long, value_name = "SUFFIX")]
    pub(super) local_domain: Vec<LocalDomain>,
    #[command(flatten)]
    pub(super) fleet_requests: FleetRequestArgs,
    #[command(flatten)]
    pub(super) links: DaemonLinkArgs,
    /// Goal of the path manager: speed, latency, energy or cost, as `marline paths --goal`.
    ///
    /// With latency, the edge also prefers the nearest of the relays that are fast enough.
    #[arg(long, default_value = "speed", value_name = "speed|latency|energy|cost")]
    pub(super) goal: Goal,
    /// Do not manage MPTCP paths: `marline paths` runs already, or the host configuration must not be changed.
    #[arg(long)]
    pub(super) no_paths: bool,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
}

impl RunArgs {
    /// Whether flows go to their servers directly while no relay is available.
    pub(super) fn allows_direct(&self) -> bool {
        self.no_relay_policy() == NoRelayPolicy::Direct
    }

    /// Policy for flows while no relay is available: refused by default with `--lan`, otherwise direct.
    pub(super) fn no_relay_policy(&self) -> NoRelayPolicy {
        let is_direct = self.direct || (self.lan.is_empty() && !self.no_direct);
        if is_direct { NoRelayPolicy::Direct } else { NoRelayPolicy::Refused }
    }
}

/// Policy for new flows while no relay is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoRelayPolicy {
    /// The flow goes to its server directly, over one link.
    Direct,
    /// The flow is refused.
    Refused,
}

impl NoRelayPolicy {
    /// Description that continues a sentence beginning with "new flows".
    pub(super) const fn description(self, serves_lan: bool) -> &'static str {
        match (self, serves_lan) {
            (Self::Direct, _) => "go directly, over one link (--no-direct refuses them)",
            (Self::Refused, false) => "are refused (--no-direct)",
            (Self::Refused, true) => {
                "are refused (--no-direct, the default with --lan; --direct sends them over one link)"
            }
        }
    }
}

/// Arguments for requests to the fleet service, and for the measurement of relays.
#[derive(Debug, Args)]
pub(super) struct FleetRequestArgs {
    /// Destination for which the service chooses a relay [default: that of the newest live stream, or else of the newest flow].
    #[arg(long, value_name = "HOST:PORT", requires = "fleet")]
    pub(super) origin: Option<Endpoint>,
    /// Upload rate that this edge needs from its relay [default: as much as possible].
    #[arg(long, value_name = "RATE")]
    pub(super) target_rate: Option<Bitrate>,
    /// Geographic position of the edge, in degrees north and east.
    #[arg(long, value_name = "LATITUDE,LONGITUDE", allow_hyphen_values = true, requires = "fleet")]
    pub(super) position: Option<Position>,
    /// Most bytes that one rate measurement may send over metered links; at most ten times this per day. 0: none.
    #[arg(long, value_name = "SIZE", default_value = "2MB", value_parser = parse_size)]
    pub(super) probe_bytes: DataSize,
    /// File that keeps measured rates and resolved addresses of relays for the next start.
    ///
    /// The addresses are used while a name cannot be resolved. Default with --fleet: edge-NAME.json in the StateDirectory= of a systemd
    /// unit, or else in /var/lib/marline for root and in ~/.local/state/marline for others. Without --fleet nothing is kept by default.
    #[arg(long, value_name = "FILE")]
    pub(super) state_file: Option<PathBuf>,
}

/// Parses a size; unlike elsewhere, `0` needs no unit.
fn parse_size(text: &str) -> Result<DataSize, String> {
    if text == "0" { Ok(DataSize::ZERO) } else { text.parse().map_err(|error| format!("{error}")) }
}
