//! The words of `marline edge`.

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

use crate::credentials::{MemberFileArgs, RevocationArgs};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  sudo marline edge --fleet https://fleet.example.org:4444 --certificate cam-7.pem
      Carry what programs send to 127.0.0.1:1088 (SOCKS5 or CONNECT) over all links to the relay that the fleet's service
      chooses, and on from there.
  sudo marline edge --relay relay.example.org --certificate cam-7.pem
      The same through this relay, without a service.
  sudo marline edge --lan wlan1 --fleet https://fleet.example.org:4444 --certificate cam-7.pem
      Be the gateway of those who are on wlan1: their TCP connections go the same way, unchanged.
  ALL_PROXY=socks5h://127.0.0.1:1088 curl -T film.mp4 https://upload.example.org/
      A program that knows proxies uses it as it is.
  marline edge status
      Which relay serves, what was measured, and what each link carries.

Certificates come from `marline fleet enroll`, or from `marline fleet ca issue edge NAME`. With CAP_NET_ADMIN the links are
steered as `marline paths --goal speed` does; without it the kernel does what it does by itself. UDP is not carried: a LAN's passes over
the one link that has shown the highest rate, a metered one only where there is no other. What `--lan` changes on this machine is undone at the end or, after a crash, at the next
start or by `marline restore`; until then the LAN stays closed to the outside. It needs CAP_NET_ADMIN and nft. docs/edge-box.md is the guide to a box.";

/// `marline edge`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct EdgeArgs {
    /// What to do [default: carry until stopped].
    #[command(subcommand)]
    pub(super) command: Option<EdgeCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// The verbs of `marline edge`.
#[derive(Debug, Subcommand)]
pub(super) enum EdgeCommand {
    /// Show the relay in use, those that were measured, flows, and what each link carries.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// As the edge's --run-dir.
        #[arg(long, value_name = "DIR")]
        run_dir: Option<PathBuf>,
    },
}

/// Words of an edge that carries.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Ask the fleet's service which relay to use.
    #[arg(long, value_name = "URL")]
    pub(super) fleet: Option<String>,
    /// A relay, the best first; may be given several times. Its certificate must have this name [default port: 4443]. With
    /// --fleet: when those of the service do not carry.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) relay: Vec<String>,
    #[command(flatten)]
    pub(super) member_files: MemberFileArgs,
    #[command(flatten)]
    pub(super) revocations: RevocationArgs,
    /// Where programs reach it; may be given several times. Whoever can reach it may use it.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1088")]
    pub(super) listen: Vec<SocketAddr>,
    /// Be the gateway of the LAN at this interface, or these; may be given several times. TCP is carried over all links, UDP
    /// and the rest pass over the best single one.
    #[arg(long, value_name = "IFACE[,…]", value_delimiter = ',')]
    pub(super) lan: Vec<String>,
    /// A live stream, before which all others wait: where it goes; may be given several times. RTMP (port 1935) always is one.
    #[arg(long, value_name = "PORT|HOST[:PORT]")]
    pub(super) live_streams: Vec<LiveMatch>,
    /// The congestion control towards relays, on every link [default: the kernel's].
    #[arg(long, value_name = "NAME")]
    pub(super) congestion: Option<CongestionControl>,
    /// Connections to the relay that wait ready.
    #[arg(long, value_name = "N", default_value = "2")]
    pub(super) spare_connections: usize,
    /// Refuse flows while no relay can be had, instead of sending them in plain text over one link; and follow the fleet's service
    /// where it gives no relay: with `no-gain` keep the one in use, with `no-capacity` wait. The default with --lan.
    #[arg(long)]
    pub(super) no_direct: bool,
    /// With --lan: send flows directly over one link while no relay can be had. The default without --lan.
    #[arg(long, conflicts_with = "no_direct")]
    pub(super) direct: bool,
    /// What is requested over a link, by plain HTTP, to find a captive portal: a page or a redirect in place of the answer 204 is one. Requested
    /// when a link has come up or failed and while no relay works. `off`: nothing.
    #[arg(long, value_name = "URL|off", default_value = PortalProbe::DEFAULT)]
    pub(super) portal_probe: PortalProbe,
    /// Names of this domain are those of private networks, as names without a dot and those of lan, local, internal, home.arpa and fritz.box
    /// are: where no relay knows one, programs that use the proxy reach it by the name servers of this machine and its links. May be given
    /// several times. Name no domain below which others choose names.
    #[arg(long, value_name = "SUFFIX")]
    pub(super) local_domain: Vec<LocalDomain>,
    #[command(flatten)]
    pub(super) fleet_requests: FleetRequestArgs,
    /// Use only these links, as `marline paths --link`.
    #[arg(long, value_name = "IFACE[,…]")]
    pub(super) link: Vec<String>,
    /// What marline aims for: speed, latency, energy or cost, as `marline paths --goal`. With latency the edge also prefers the nearest
    /// of the relays that are fast enough.
    #[arg(long, default_value = "speed", value_name = "GOAL")]
    pub(super) goal: Goal,
    /// Leave the links as they are: `marline paths` runs already, or nothing is to be changed here.
    #[arg(long)]
    pub(super) no_paths: bool,
    /// As `marline paths --run-dir`; `marline edge status` asks here.
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
}

impl RunArgs {
    /// Whether flows go to their servers without a relay where none can be had.
    pub(super) fn allows_direct(&self) -> bool {
        self.without_relay() == NoRelayPolicy::Direct
    }

    /// What becomes of flows where no relay can be had.
    pub(super) fn without_relay(&self) -> NoRelayPolicy {
        let is_direct = self.direct || (self.lan.is_empty() && !self.no_direct);
        if is_direct { NoRelayPolicy::Direct } else { NoRelayPolicy::Refused }
    }
}

/// What becomes of a new flow while no relay can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NoRelayPolicy {
    /// It goes to its server directly, over one link.
    Direct,
    /// It is refused.
    Refused,
}

impl NoRelayPolicy {
    /// For people, behind "new flows"; `lan`: the edge serves a LAN.
    pub(super) const fn description(self, serves_lan: bool) -> &'static str {
        match (self, serves_lan) {
            (Self::Direct, _) => "go directly, over one link (--no-direct refuses them)",
            (Self::Refused, false) => "are refused (--no-direct)",
            (Self::Refused, true) => {
                "are refused (--no-direct, the default with --lan; --direct lets them go over one link)"
            }
        }
    }
}

/// What the service is told and how it is asked.
#[derive(Debug, Args)]
pub(super) struct FleetRequestArgs {
    /// Where the stream goes to, for the service's choice [default: where the newest live stream goes, or flow].
    #[arg(long, value_name = "HOST:PORT", requires = "fleet")]
    pub(super) origin: Option<Endpoint>,
    /// More than this is not needed [default: whatever can be had].
    #[arg(long, value_name = "RATE")]
    pub(super) target_rate: Option<Bitrate>,
    /// Where the edge is, in degrees north and east.
    #[arg(long, value_name = "LATITUDE,LONGITUDE", allow_hyphen_values = true, requires = "fleet")]
    pub(super) position: Option<Position>,
    /// What one measurement may send over metered links; ten times this a day. 0: nothing.
    #[arg(long, value_name = "SIZE", default_value = "2MB", value_parser = parse_size)]
    pub(super) probe_bytes: DataSize,
    /// Where it is kept what is known of relays: rates, and addresses that serve while a name cannot be looked up [default with
    /// --fleet: edge-NAME.json in /var/lib/marline for root, otherwise in ~/.local/state/marline; without it: nothing is kept].
    #[arg(long, value_name = "FILE")]
    pub(super) state_file: Option<PathBuf>,
}

fn parse_size(text: &str) -> Result<DataSize, String> {
    if text == "0" { Ok(DataSize::ZERO) } else { text.parse().map_err(|error| format!("{error}")) }
}
