//! The words of `marline edge`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use marline_fleet::edge::Live;

pub(crate) const AFTER_HELP: &str = "\
Examples:
  sudo marline edge --relay relay.example.org --certificate cam-7.pem
      Carry what programs send to 127.0.0.1:1088 (SOCKS5 or CONNECT) over all links to the relay, and on from there.
  sudo marline edge --lan wlan1 --relay relay.example.org --certificate cam-7.pem
      Be the gateway of those who are on wlan1: their TCP connections go the same way, unchanged.
  ALL_PROXY=socks5h://127.0.0.1:1088 curl -T film.mp4 https://upload.example.org/
      A program that knows proxies uses it as it is.

Certificates come from `marline fleet ca issue edge NAME`. With CAP_NET_ADMIN the links are steered as `marline paths
--profile throughput` does; without it the kernel does what it does by itself. UDP is not carried: a LAN's passes over
the link of the default route. What `--lan` changes on this machine is undone at the end or, after a crash, at the next
start or by `marline paths restore`; it needs CAP_NET_ADMIN and nft. docs/edge-box.md is the guide to a box.";

/// Words of `marline edge`.
#[derive(Debug, Args)]
pub struct EdgeArgs {
    /// A relay, the best first; may be given several times. Its certificate must have this name [default port: 4443].
    #[arg(long, required = true, value_name = "HOST[:PORT]")]
    pub(super) relay: Vec<String>,
    /// This edge's certificate, as `marline fleet ca issue` writes it.
    #[arg(long, value_name = "FILE")]
    pub(super) certificate: PathBuf,
    /// Its key [default: beside the certificate, NAME.key].
    #[arg(long, value_name = "FILE")]
    pub(super) key: Option<PathBuf>,
    /// The authority's certificate [default: beside it, ca.pem].
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// Where programs reach it; may be given several times. Whoever can reach it may use it.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1088")]
    pub(super) listen: Vec<SocketAddr>,
    /// Be the gateway of the LAN at this interface, or these; may be given several times.
    #[arg(long, value_name = "IFACE[,…]", value_delimiter = ',')]
    pub(super) lan: Vec<String>,
    /// A live stream, before which all others wait: where it goes; may be given several times. RTMP (port 1935) always is one.
    #[arg(long, value_name = "PORT|HOST[:PORT]")]
    pub(super) live: Vec<Live>,
    /// Connections to the relay that wait ready.
    #[arg(long, value_name = "N", default_value = "2")]
    pub(super) warm: usize,
    /// Refuse flows while no relay can be had, instead of sending them over one link.
    #[arg(long)]
    pub(super) no_direct: bool,
    /// Use only these links, as `marline paths --link`.
    #[arg(long, value_name = "IFACE[,…]")]
    pub(super) link: Vec<String>,
    /// What the links are used for, as `marline paths --profile`.
    #[arg(long, value_name = "PROFILE", default_value = "throughput")]
    pub(super) profile: String,
    /// Leave the links as they are: `marline paths` runs already, or nothing is to be changed here.
    #[arg(long)]
    pub(super) no_paths: bool,
    /// As `marline paths --run-dir`.
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
}
