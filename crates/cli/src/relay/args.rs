//! The words of `marline relay`.

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
use crate::credentials::{MemberFileArgs, RevocationArgs};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init && marline fleet ca issue relay fra-1 --address relay.example.org --out .
  marline relay --listen 0.0.0.0:4443 --listen '[::]:4443' --certificate fra-1.pem
      Carry edges of this authority to public servers, ports 1935, 443 and 80.
  curl --proxy https://relay.example.org:4443 --proxy-cert cam-7.pem --proxy-key cam-7.key --proxy-cacert ca.pem URL
      Any program that speaks CONNECT over TLS is an edge, if it has an edge's certificate.
  marline relay status
  marline relay drain
      What the relay on this machine carries; take no new tunnels (--undo: again), and go on with the old ones.

An edge uses all its links if the relay's kernel speaks MPTCP (Linux 5.6 and later). The first SIGTERM drains: no new
tunnels, the old ones end; the second one ends at once. `marline relay stop` does the same.

Exit codes: 0 done or stopped, 1 failed or no relay answers, 64 wrong usage, 77 this user may not ask.";

/// Words of `marline relay`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct RelayArgs {
    /// What to do [default: carry].
    #[command(subcommand)]
    pub(super) command: Option<RelayCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// What a relay carries, and how.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Listen here; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    pub(super) listen: Vec<SocketAddr>,
    #[command(flatten)]
    pub(super) files: MemberFileArgs,
    #[command(flatten)]
    pub(super) revoked: RevocationArgs,
    /// Carry to this port or range; may be given several times [default: 1935, 443, 80].
    #[arg(long, value_name = "PORT[-PORT]")]
    allow_port: Vec<PortRange>,
    /// Carry to this name, or with *. to all below it, and to no other; may be given several times [default: all].
    #[arg(long, value_name = "NAME")]
    pub(super) allow_host: Vec<HostPattern>,
    /// Carry to this network though it is not public; may be given several times.
    #[arg(long, value_name = "NETWORK/BITS")]
    pub(super) allow_net: Vec<IpPrefix>,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    /// The congestion control towards servers [default: bbr where this kernel has it and lets this user use it].
    #[arg(long, value_name = "NAME")]
    pub(super) congestion: Option<CongestionControl>,
    /// Announce this relay to the fleet's service, which assigns edges to it and has the newest list of the revoked.
    #[arg(long, value_name = "URL", requires = "announce", requires = "capacity")]
    pub(super) fleet: Option<String>,
    /// Where edges reach it, by a name or address of its certificate; may be given several times.
    #[arg(long, value_name = "HOST:PORT", requires = "fleet")]
    pub(super) announce: Vec<Endpoint>,
    /// Where it is, in degrees north and east.
    #[arg(long, value_name = "LATITUDE,LONGITUDE", allow_hyphen_values = true, requires = "fleet")]
    pub(super) position: Option<Position>,
    /// Threads that carry.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) threads: NonZeroUsize,
    /// Where the socket for `status`, `drain` and `stop` is [default: /run/marline, or $XDG_RUNTIME_DIR/marline].
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) run_dir: Option<PathBuf>,
    /// Append a JSON line to FILE for each flow, carried or refused: edge, target, address, verdict, bytes. SIGHUP opens it again
    /// after a rotation; a full disk loses lines and does not stop the relay.
    #[arg(long, value_name = "FILE")]
    pub(super) audit_log: Option<PathBuf>,
    /// How long old tunnels may last after the first SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "12h", value_parser = parse_duration)]
    pub(super) drain_timeout: Duration,
}

/// How much there may be of everything.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// What this relay may carry a second, each way; shared fairly, and never exceeded [default: not known, no limit].
    #[arg(long, value_name = "RATE")]
    capacity: Option<Bitrate>,
    /// What is reserved of it for each edge that is here.
    #[arg(long, value_name = "RATE", default_value = "1Mbit/s")]
    reserve_per_edge: Bitrate,
    /// Tunnels in all.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tunnels)]
    max_tunnels: usize,
    /// Tunnels of one edge.
    #[arg(long, value_name = "N", default_value_t = Limits::default().tunnels_per_edge)]
    max_tunnels_per_edge: usize,
    /// Connections in all, those that wait for a request too.
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections)]
    max_connections: usize,
    /// Memory of the kernel for connections whose bytes come, 4 MiB for each; beyond it they have 128 KiB, and are slower over
    /// several links.
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().receive_buffers)]
    max_buffers: DataSize,
}

impl LimitArgs {
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
    pub(super) fn allowed_ports(&self) -> Vec<PortRange> {
        if self.allow_port.is_empty() { Acl::default().ports } else { self.allow_port.clone() }
    }
}
