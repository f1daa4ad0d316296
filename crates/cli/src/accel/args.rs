//! Arguments of `marline accel`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use marline_accel::FlowFilter;
use marline_core::accel::Mechanism;
use marline_core::units::Bitrate;
use marline_rtp::RtspUrl;

use crate::args::{JsonArgs, RunDirArgs, TraceArgs};

/// The last lines of `marline accel --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline accel doctor
      Can this machine run it? If not, what is missing, and what is the remedy?
  sudo marline accel --primary wlan0
      Accelerate the TCP flows of wlan0 with the mechanisms that need no second link, until Ctrl-C restores everything.
  sudo marline accel --primary wlan0 --secondary wwan0 --flows 'tcp dst port 443'
      With a second link, and only flows to port 443 of servers.
  sudo marline accel --primary wlan0 --secondary wwan0 --enable early-ack
      With early ACK: lost bytes of plain HTTP are acknowledged before they arrive, and fetched over the second link.
  marline accel rtp --primary wlan0 --secondary wwan0 rtsp://camera/live
      A camera's stream for a player on this machine, with reports and commands over the second link.
  marline accel status
      Which mechanisms are active for each flow, and what they gain.

Mechanisms, on unless disabled:
  ack-offload      ACKs leave over the second link, if a trial shows that the flow gains
  eifel-undo       the sender undoes reductions after random losses
  withheld-ack     one byte stays unacknowledged until an outage ends; its ACK then restarts the sender
  outage-revert    the sender reverts the timeouts of an outage
Off unless enabled, as it acknowledges data that has not arrived:
  early-ack        holes of plain HTTP are acknowledged, and fetched with range requests
Off unless enabled, for comparison with Super-aggregation (CoNEXT 2009):
  ack-offload-as-published, zero-window-freeze, freeze-in-flight (its form for Linux senders), and fast-fetch (a
  mirrored connection fills holes, and uses the whole second link)
ack-offload, and those for comparison, need a second link. eifel-undo, withheld-ack and outage-revert work for uploads as well.

--flows: `port N`, `port N-M`, `host ADDRESS`, `net ADDRESS/BITS`, preceded by `dst` (the server, the default) or `src`, and
joined by `and` and `or` (`tcp dst port 80 or 443`).

While it runs there are at most two chains of packet rules for the primary link in each of IPv4 and IPv6 (iptables -t mangle -S,
ip6tables -t mangle -S). They are removed at its end or, after a crash, at the next start or by `marline accel stop`; until then
packets pass them unchanged. It needs CAP_NET_ADMIN and CAP_NET_RAW. docs/accel-reference.md describes what is done to flows, and
when nothing is.

Exit codes: 0 stopped and everything restored, 1 failed, 64 wrong usage, 69 a link cannot be used, 77 a privilege is missing.";

/// `marline accel`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AccelArgs {
    /// What to do [default: run].
    #[command(subcommand)]
    pub(super) subcommand: Option<AccelCommand>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Subcommands of `marline accel`.
#[derive(Debug, Subcommand)]
pub(super) enum AccelCommand {
    /// Show links and flows, and which mechanisms are active.
    #[command(mut_arg("json", |arg| arg.help("Print a JSON array with one object for each accelerator that runs")))]
    Status {
        #[command(flatten)]
        daemon: DaemonArgs,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Stop accelerators, and remove packet rules that a crash has left for any link.
    Stop {
        #[command(flatten)]
        daemon: DaemonArgs,
    },
    /// Check this machine: what is missing, and what is the remedy.
    Doctor {
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Play an RTSP stream over two links: reports, commands and the base layer over the secondary one as well.
    #[command(after_help = RTP_HELP)]
    Rtp(Box<RtpArgs>),
    /// Wait for the end of a run, and fill holes that it acknowledged early; started by each run with such a mechanism.
    #[command(hide = true)]
    Repair(RepairArgs),
}

/// Text at the end of `marline accel rtp --help`.
const RTP_HELP: &str = "\
Examples:
  marline accel rtp --primary wlan0 --secondary wwan0 rtsp://camera/live
      Then: ffplay rtsp://127.0.0.1:8554/live, or: mpv --rtsp-transport=udp rtsp://127.0.0.1:8554/live
  marline accel rtp --primary wlan0 --secondary wwan0 --base rtsp://camera/keyframes rtsp://camera/live
      With the base layer of the stream over wwan0, which fills what wlan0 loses.

The server stays unmodified, and no privilege is needed. RTCP reports of the player take the secondary link. Requests within
a session (PAUSE, PLAY, TEARDOWN) are sent over both links, and the first successful response counts. --base names a stream
whose packets all carry media that is also in the main stream, such as its key frames alone or its lowest layer. Another
encoding of the same picture cannot fill holes; the summary at the end then says `base layer unrelated`.

Exit codes: 0 stopped, 1 failed, 64 wrong usage, 69 a link or the server cannot be used.";

/// Arguments of `marline accel rtp`.
#[derive(Debug, Args)]
#[command(mut_arg("json", |arg| arg.help("Print the counters at the end as one JSON object")))]
pub(super) struct RtpArgs {
    /// Link for media.
    #[arg(long, value_name = "IFACE")]
    pub(super) primary: String,
    /// Link for reports, commands and the base layer.
    #[arg(long, value_name = "IFACE")]
    pub(super) secondary: String,
    /// Loopback address at which the player finds the stream.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8554")]
    pub(super) listen: SocketAddr,
    /// URL of the base layer, requested over the secondary link [default: none].
    #[arg(long, value_name = "URL")]
    pub(super) base: Option<RtspUrl>,
    /// How long packets behind a hole (lost packets) wait for the base layer to fill it, at most 5s.
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = reorder_wait)]
    pub(super) reorder_wait: Duration,
    #[command(flatten)]
    pub(super) format: JsonArgs,
    /// Print nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// URL of the stream: rtsp://HOST[:PORT]/PATH.
    #[arg(value_name = "URL")]
    pub(super) url: RtspUrl,
}

fn reorder_wait(s: &str) -> Result<Duration, String> {
    let wait = marline_core::units::parse_duration(s).map_err(|error| error.to_string())?;
    if wait > Duration::from_secs(5) { Err("players do not wait longer than 5s".into()) } else { Ok(wait) }
}

/// Arguments of the repair process, given by the run that starts it.
#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    /// File that lists the early-acked holes.
    #[arg(long, value_name = "FILE")]
    pub(super) file: PathBuf,
    /// The run's links, the primary one first.
    #[arg(long = "link", value_name = "IFACE")]
    pub(super) links: Vec<String>,
}

/// Selects accelerators.
#[derive(Debug, Args)]
#[command(mut_arg("run_dir", |arg| arg.help("Directory of its control socket [default: /run/marline-accel]")))]
pub(super) struct DaemonArgs {
    /// Only the accelerator of this primary link [default: all in the run directory].
    #[arg(long, value_name = "IFACE")]
    pub(super) primary: Option<String>,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
}

/// Arguments of a run.
#[derive(Debug, Args)]
#[command(mut_arg("trace", |arg| {
    arg.help("Log every decision and its inputs to FILE, for `marline replay`. It contains the bytes of packets")
}))]
#[command(mut_arg("run_dir", |arg| {
    arg.help("Directory of the control socket for `status` and `stop` [default: /run/marline-accel]")
}))]
#[command(mut_arg("json", |arg| arg.help("Print the final status as one JSON object")))]
pub(super) struct RunArgs {
    /// The link whose flows are accelerated.
    #[arg(long, value_name = "IFACE", required = true)]
    pub(super) primary: Option<String>,
    /// A second link; repeat for more, the best first [default: none].
    #[arg(long, value_name = "IFACE")]
    pub(super) secondary: Vec<String>,
    /// Accelerate only these flows, such as 'tcp dst port 443' [default: all TCP].
    #[arg(long, value_name = "FILTER")]
    pub(super) flows: Option<FlowFilter>,
    /// Enable these mechanisms in addition to those that are on by default.
    #[arg(long, value_name = "MECHANISM,…", value_delimiter = ',')]
    pub(super) enable: Vec<Mechanism>,
    /// Disable these mechanisms.
    #[arg(long, value_name = "MECHANISM,…", value_delimiter = ',')]
    pub(super) disable: Vec<Mechanism>,
    /// Upstream rate of a secondary link; once for each, in their order [default: measured].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) secondary_up: Vec<Bitrate>,
    /// Downstream rate of a secondary link; once for each, in their order [default: measured].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) secondary_down: Vec<Bitrate>,
    /// Address that is probed to detect outages of the primary link [default: its gateway].
    #[arg(long, value_name = "ADDRESS")]
    pub(super) primary_gateway: Option<IpAddr>,
    /// Address that is probed to check a secondary link; once for each, in their order [default: its gateway].
    #[arg(long, value_name = "ADDRESS")]
    pub(super) secondary_gateway: Vec<IpAddr>,
    /// Have a relay send ACKs: always refused with the reason, as a relay has none that it could send.
    #[arg(long, value_name = "RELAY", hide = true)]
    pub(super) via: Option<String>,
    #[command(flatten)]
    pub(super) log: TraceArgs,
    #[command(flatten)]
    pub(super) run_dir_args: RunDirArgs,
    #[command(flatten)]
    pub(super) format: JsonArgs,
    /// Print errors only.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

fn rate(s: &str) -> Result<Bitrate, String> {
    let rate: Bitrate = s.parse().map_err(|error: marline_core::units::ParseUnitError| error.to_string())?;
    if rate.is_zero() { Err("a link without any rate is of no use; leave it out instead".into()) } else { Ok(rate) }
}
