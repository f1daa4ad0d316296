//! What can be written behind `marline accel`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use marline_accel::Flows;
use marline_core::accel::Mechanism;
use marline_core::units::Bitrate;
use marline_rtp::RtspUrl;

/// The last lines of `marline accel --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline accel check
      Is this machine fit, and what helps where it is not?
  sudo marline accel --primary wlan0
      Help the TCP flows of wlan0 by what needs no second link, until Ctrl-C; then all is as before.
  sudo marline accel --primary wlan0 --secondary wwan0 --flows 'tcp dst port 443'
      With a second link beside it, and only flows to servers' port 443.
  sudo marline accel --primary wlan0 --secondary wwan0 --enable hide
      With early ACK: losses of plain HTTP are acknowledged before their bytes are there, and fetched over the second link.
  marline accel rtp --primary wlan0 --secondary wwan0 rtsp://camera/live
      A camera's stream for a player on this machine, with reports and commands over the second link.
  marline accel status
      Which mechanism is in force for each flow, and what it gains.

Mechanisms, on unless disabled: offload, undo, reserve, revert. Off unless enabled, as it acknowledges data that has not
arrived: hide. Off unless enabled, for comparison: offload-as-published, freeze, freeze-flight and
fast-fetch, forms of the mechanisms of a paper of 2009 (freeze-flight is its form for Linux senders; fast-fetch takes all
that the second link brings). offload and these four need a second link. undo, reserve and revert help what this machine
sends as well.

--flows: `port N`, `port N-M`, `host ADDRESS`, `net ADDRESS/BITS`, with `dst` (the server's end, the default) or `src` before
them, joined by `and` and `or` (`tcp dst port 80 or 443`).

Changed while it runs: at most two chains of packet rules for the primary link (iptables -t mangle -S). They go at the end
or, after a crash, at the next start or by `marline accel stop`; until then packets pass them untouched. It needs
CAP_NET_ADMIN and CAP_NET_RAW. docs/accel.md tells what is done to flows, and when nothing is.

Exit codes: 0 stopped and all put back, 1 failed, 64 wrong usage, 69 a link cannot be used, 77 a privilege is missing.";

/// `marline accel`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AccelArgs {
    /// What to do [default: run].
    #[command(subcommand)]
    pub(super) verb: Option<AccelVerb>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// The verbs of `marline accel`.
#[derive(Debug, Subcommand)]
pub(super) enum AccelVerb {
    /// Show links and flows, and what is done for them.
    Status {
        #[command(flatten)]
        daemon: Daemon,
        /// Print a JSON array, one object for each that runs.
        #[arg(long)]
        json: bool,
    },
    /// End what runs, and remove what a crash has left.
    Stop {
        #[command(flatten)]
        daemon: Daemon,
    },
    /// Examine this machine: what stands in the way, and what helps.
    Check {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Play an RTSP stream over two links: reports, commands and the base layer over the secondary one as well.
    #[command(after_help = RTP_HELP)]
    Rtp(Box<RtpArgs>),
    /// Wait for a run's end, and pay what it has left owed to flows; runs start it.
    #[command(hide = true)]
    Keep(KeepArgs),
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
    /// How long packets behind a hole wait for the base layer, at most 5s.
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = reorder_wait)]
    pub(super) reorder_wait: Duration,
    /// Print the counters at the end as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
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

/// What a keeper is told by the run that starts it.
#[derive(Debug, Args)]
pub(super) struct KeepArgs {
    /// Where what is owed is written down.
    #[arg(long, value_name = "FILE")]
    pub(super) ledger: PathBuf,
    /// The run's links, the primary one first.
    #[arg(long = "link", value_name = "IFACE")]
    pub(super) links: Vec<String>,
}

/// Which daemon.
#[derive(Debug, Args)]
pub(super) struct Daemon {
    /// The one that helps this link, where there are several.
    #[arg(long, value_name = "IFACE")]
    pub(super) primary: Option<String>,
    /// Where its socket is [default: /run/marline-accel].
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
}

/// A run's words.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The link whose flows are helped.
    #[arg(long, value_name = "IFACE", required = true)]
    pub(super) primary: Option<String>,
    /// A link that helps; repeat for more, the best first.
    #[arg(long, value_name = "IFACE")]
    pub(super) secondary: Vec<String>,
    /// Help only these flows, such as 'tcp dst port 443' [default: all TCP].
    #[arg(long, value_name = "WORDS")]
    pub(super) flows: Option<Flows>,
    /// Switch these on, too.
    #[arg(long, value_name = "MECHANISM,…", value_delimiter = ',')]
    pub(super) enable: Vec<Mechanism>,
    /// Switch these off.
    #[arg(long, value_name = "MECHANISM,…", value_delimiter = ',')]
    pub(super) disable: Vec<Mechanism>,
    /// What a secondary link carries from here; once for each, in their order [default: found out].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) secondary_up: Vec<Bitrate>,
    /// What a secondary link carries to here; once for each, in their order [default: found out].
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) secondary_down: Vec<Bitrate>,
    /// Who is asked whether the primary link is alive [default: its gateway].
    #[arg(long, value_name = "ADDRESS")]
    pub(super) primary_gateway: Option<IpAddr>,
    /// Who is asked whether a secondary link is alive; once for each, in their order [default: its gateway].
    #[arg(long, value_name = "ADDRESS")]
    pub(super) secondary_gateway: Vec<IpAddr>,
    /// Have a relay send acknowledgements: refused, for there are none that it could send.
    #[arg(long, value_name = "RELAY", hide = true)]
    pub(super) via: Option<String>,
    /// Write every decision and its inputs to FILE, for `marline replay`. Each packet's bytes are in it.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Where the socket for `status` and `stop` is made [default: /run/marline-accel].
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
    /// Print how it stood at its end, as one JSON object.
    #[arg(long)]
    pub(super) json: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

fn rate(s: &str) -> Result<Bitrate, String> {
    let rate: Bitrate = s.parse().map_err(|error: marline_core::units::ParseUnitError| error.to_string())?;
    if rate.is_zero() { Err("a link without any rate helps nobody; leave it out instead".into()) } else { Ok(rate) }
}
