//! Command-line arguments of `marline relay`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::units::{Bitrate, DataSize, parse_duration};
use marline_fleet::congestion::CongestionControl;
use marline_fleet::relay::Limits;
use marline_fleet::relay::acl::{Acl, HostPattern, IpPrefix, PortRange};
use marline_fleet::service::Position;
use marline_fleet::service::api_types::Endpoint;

use super::control::RelayCommand;
use crate::args::{CongestionArgs, RunDirArgs};
use crate::credentials::{MemberFileArgs, RevocationArgs};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init && marline fleet ca issue relay fra-1 --address relay.example.org --out .
  marline relay --listen 0.0.0.0:4443 --listen '[::]:4443' --certificate fra-1.pem
      Forward connections of edges of this authority to public servers, ports 1935, 443 and 80.
  curl --proxy https://relay.example.org:4443 --proxy-cert cam-7.pem --proxy-key cam-7.key --proxy-cacert ca.pem URL
      Use the relay from any program that supports CONNECT over TLS, with an edge's certificate.
  marline relay status
      Show tunnels, edges and servers of the relay on this host.
  marline relay drain
      Accept no new tunnels while existing ones continue (--undo: accept them again).

An edge uses all its links if the relay's kernel supports MPTCP (Linux 5.6 and later). The first SIGTERM drains the relay:
it accepts no new tunnels and exits when the existing ones have ended. The second SIGTERM ends it
at once. `marline relay stop` acts as the first SIGTERM, `marline relay stop --now` as the second.

Exit codes: 0 success or stopped, 1 failure or no relay responds, 64 wrong usage,
77 not permitted.";

/// Arguments of `marline relay`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct RelayArgs {
    /// Subcommand [default: run the relay until it is stopped].
    #[command(subcommand)]
    pub(super) command: Option<RelayCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Arguments of a running relay.
#[derive(Debug, Args)]
#[command(mut_arg("congestion", |arg| {
    arg.help("Congestion control of connections to servers [default: bbr if this kernel has it and this user may use it]")
}))]
#[command(mut_arg("run_dir", |arg| {
    arg.help("Directory of the control socket for `status`, `drain` and `stop` [default: /run/marline, or $XDG_RUNTIME_DIR/marline]")
}))]
pub(super) struct RunArgs {
    /// Listen here; repeat for more.
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    pub(super) listen: Vec<SocketAddr>,
    #[command(flatten)]
    pub(super) files: MemberFileArgs,
    #[command(flatten)]
    pub(super) revoked: RevocationArgs,
    /// Allow connections to this port or range of ports; repeat for more [default: 1935, 443, 80].
    #[arg(long, value_name = "PORT[-PORT]")]
    allow_port: Vec<PortRange>,
    /// Allow only this destination name, or with `*.` all names below it; repeat for more [default: all names].
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<HostPattern>,
    /// Allow destinations in this network although it is not public; repeat for more.
    #[arg(long, value_name = "NETWORK/BITS")]
    pub(super) allow_net: Vec<IpPrefix>,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) congestion_args: CongestionArgs<CongestionControl>,
    /// Announce this relay to the fleet service, which assigns edges to it and provides the newest revocation list.
    #[arg(long, value_name = "URL", requires = "announce", requires = "capacity")]
    pub(super) fleet: Option<String>,
    /// Public address of the relay, by a name or address of its certificate; repeat for more.
    #[arg(long, value_name = "HOST:PORT", requires = "fleet")]
    pub(super) announce: Vec<Endpoint>,
    /// Geographic position of the relay, in degrees north and east.
    #[arg(long, value_name = "LATITUDE,LONGITUDE", allow_hyphen_values = true, requires = "fleet")]
    pub(super) position: Option<Position>,
    /// Number of threads that forward traffic.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) threads: NonZeroUsize,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    /// Append a JSON line to FILE for each flow, carried or refused.
    ///
    /// A line has times, edge, target, address, verdict with its reason, and bytes in both directions. SIGHUP reopens the
    /// file after a rotation. If the disk is full, lines are lost and the relay continues.
    #[arg(long, value_name = "FILE")]
    pub(super) audit_log: Option<PathBuf>,
    /// Longest time that existing tunnels may last after the first SIGTERM or SIGINT, or after `marline relay stop`.
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = parse_duration)]
    pub(super) drain_timeout: Duration,
}

/// Arguments for the capacity and the limits of a relay.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// Capacity of the relay in each direction: never exceeded, and shared fairly among edges [default: unlimited].
    #[arg(long, value_name = "RATE")]
    capacity: Option<Bitrate>,
    /// Part of the capacity that is reserved for each connected edge to which the fleet service has assigned none.
    #[arg(long, value_name = "RATE", default_value = "1Mbit/s")]
    reserve_per_edge: Bitrate,
    /// Most tunnels of all edges together.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tunnels)]
    max_tunnels: usize,
    /// Most tunnels of one edge.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tunnels_per_edge)]
    max_tunnels_per_edge: usize,
    /// Most connections of all edges together, including idle ones.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: usize,
    /// Kernel memory for the receive buffers of all edges' connections, 4 MiB for each connection that receives.
    ///
    /// When it is used up, further connections have buffers of 128 KiB and are slower over several links.
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().receive_buffers)]
    max_buffers: DataSize,
}

impl LimitArgs {
    /// Limits of the relay; those without an option have their defaults.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            capacity: self.capacity,
            default_reservation: self.reserve_per_edge,
            tunnels: self.max_tunnels,
            tunnels_per_edge: self.max_tunnels_per_edge,
            connections: self.max_connections,
            receive_buffers: self.max_buffers,
            ..Limits::default()
        }
    }
}

impl RunArgs {
    /// Destination ports that are allowed.
    pub(super) fn allowed_ports(&self) -> Vec<PortRange> {
        if self.allow_port.is_empty() { Acl::default().ports } else { self.allow_port.clone() }
    }
}
