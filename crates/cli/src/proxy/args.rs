//! Command-line arguments of `marline proxy` and `marline play`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::stream::{GreenBagParams, Objective, Policy};
use marline_core::units::DataSize;
use marline_proxy::{SpreadMode, StartMode};

use crate::Secret;
use crate::args::{CaFileArgs, EnergyModelArgs, JsonArgs, LinkArgs, TraceArgs, parse_positive_duration};

/// End of the output of `marline proxy --help`.
pub(crate) const AFTER_PROXY: &str = "\
Examples:
  marline proxy
      Run the proxy; then open http://127.0.0.1:8480/https://example.org/film.mp4 with any player.
      Stop it with Ctrl-C.
  curl -x http://127.0.0.1:8480 https://example.org/      (HTTP proxy)
  curl --socks5-hostname 127.0.0.1:8480 https://example.org/      (SOCKS5 on the same port)
  marline proxy --link wlan0 --link wwan0,metered=yes --metered use

Videos are downloaded over all links at once; each other connection uses the best link for it. The
URL for status and events is printed at the start; it contains a token that changes with each
start.";

/// End of the output of `marline play --help`.
pub(crate) const AFTER_PLAY: &str = "\
Examples:
  marline play https://example.org/film.mp4
      Print the URL for a player; `marline proxy` must be running.
  marline play --player mpv https://example.org/film.mp4
      Start the player. If no proxy runs, one is started for as long as the player runs.
  marline play --player mpv -H 'Referer: https://example.org/' https://cdn.example.org/live.m3u8
      Send a header field that the server requires.
  marline play --page https://example.org/film.mp4
      Print the URL of a page that plays the video and shows the traffic of each link.";

/// `marline proxy`.
#[derive(Debug, Args)]
#[command(mut_arg("trace", |arg| {
    arg.help("Write a decision log for `marline replay` into this directory for each response").value_name("DIR")
}))]
#[command(mut_arg("json", |arg| arg.help("Print the addresses of the proxy as one JSON object on standard output")))]
pub struct ProxyArgs {
    /// Accept players and programs at this address.
    #[arg(long, default_value = "127.0.0.1:8480", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Serve status and events at this loopback address; port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    pub status_listen: SocketAddr,
    /// Allow other hosts to use the proxy, without a password, if they can reach the address of --listen.
    #[arg(long)]
    pub allow_lan: bool,
    /// Links to use.
    #[command(flatten)]
    pub links: LinkArgs,
    /// Trusted certificate authorities.
    #[command(flatten)]
    pub authorities: CaFileArgs,
    /// Distribution of the connections of one program to one host: auto, always or never.
    ///
    /// auto: all connections to a host use one link, unless several of them are busy; then further ones are spread over the links.
    /// always: each connection uses the best link at its start. never: all connections to a host use one link.
    #[arg(long, default_value = "auto", value_name = "auto|always|never")]
    pub spread: SpreadMode,
    /// Close a tunnel (CONNECT, SOCKS5, WebSocket) that has carried nothing in either direction for this time.
    #[arg(long, default_value = "124min", value_name = "TIME", value_parser = parse_positive_duration)]
    pub idle_timeout: Duration,
    /// Most bytes that are buffered for one player; at least 1MiB.
    #[arg(long, default_value = "32MB", value_name = "SIZE", value_parser = parse_buffer_size)]
    pub window: DataSize,
    /// Most bytes that are buffered for all players together; at least 1MiB.
    #[arg(long, default_value = "512MB", value_name = "SIZE", value_parser = parse_buffer_size)]
    pub memory: DataSize,
    /// Distribution of videos over links.
    #[command(flatten)]
    pub playback: PlaybackArgs,
    /// Decision logs.
    #[command(flatten)]
    pub log: TraceArgs,
    /// Read the player state of mpv from this socket; start mpv with `--input-ipc-server=` and the same path.
    #[arg(long, value_name = "PATH")]
    pub mpv_socket: Option<PathBuf>,
    /// Format of the addresses.
    #[command(flatten)]
    pub format: JsonArgs,
    /// Print only errors.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Options for the playback of videos. They apply once the proxy knows the duration of a video.
#[derive(Debug, Args)]
#[command(mut_arg("energy_model", |arg| {
    arg.help("Device energy model: a name or a file (see `marline energy models`), or none [default: typical]")
}))]
pub struct PlaybackArgs {
    /// Scheduling policy: marline, greenbag-p (uses all links all the time) or greenbag-e (saves energy).
    #[arg(long, default_value = "marline", value_name = "NAME")]
    pub policy: Policy,
    /// Variants of the published policies, for comparisons: segment=500KiB,recovery=off,split=equal.
    #[arg(long, value_name = "PARAMS", value_parser = parse_greenbag, hide = true)]
    pub greenbag: Option<GreenBagParams>,
    /// What marline minimizes while the video plays without stalls: energy or cost.
    ///
    /// cost is the price of the bytes (`price-per-gb` in the configuration file); without prices it is the number of bytes over metered
    /// links. It needs --metered use.
    #[arg(long, default_value = "energy", value_name = "energy|cost")]
    pub goal: Objective,
    /// Start of a video that the links are too slow for: smooth or fast.
    ///
    /// smooth: wait longer before the start, at most 30 s. fast: start at once and stall later.
    #[arg(long = "start", default_value = "smooth", value_name = "smooth|fast")]
    pub start_mode: StartMode,
    /// Device energy model.
    #[command(flatten)]
    pub model: EnergyModelArgs,
}

/// Parses a buffer size. With less than the smallest window no player would receive a byte.
fn parse_buffer_size(text: &str) -> Result<DataSize, String> {
    let size: DataSize = text.parse().map_err(|error| format!("{error}"))?;
    if size < MIN_BUFFER {
        return Err("too small for playback: use 1MiB or more".to_owned());
    }
    Ok(size)
}

const MIN_BUFFER: DataSize = DataSize::from_mib(1);

/// Parses the value of the hidden option `--greenbag`.
fn parse_greenbag(text: &str) -> Result<GreenBagParams, String> {
    let mut params = GreenBagParams::default();
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("segment", size)) => {
                params.segment_size = size.parse().map_err(|error| format!("segment: {error}"))?;
                if params.segment_size.is_zero() {
                    return Err("segment: the size must not be zero".to_owned());
                }
            }
            Some(("recovery", value @ ("on" | "off"))) => params.recovery_enabled = value == "on",
            Some(("split", value @ ("adaptive" | "equal"))) => params.adaptive_subsegments = value == "adaptive",
            _ => return Err(format!("`{part}`: use segment=SIZE, recovery=on|off or split=adaptive|equal")),
        }
    }
    Ok(params)
}

/// `marline play`.
#[derive(Debug, Args)]
pub struct PlayArgs {
    /// URL of the video (http or https).
    #[arg(value_name = "URL")]
    pub url: Secret,
    /// Start this player, with the URL of the video through the proxy as its last argument; the value may include other arguments.
    #[arg(long, value_name = "PLAYER")]
    pub player: Option<String>,
    /// Send this header field to the origin of the URL, also for playlists and segments; repeat for more.
    ///
    /// This starts a separate proxy, on a free port if another proxy is running.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub header: Vec<Secret>,
    /// Run a proxy and print the URL of a player page for a browser; stop it with Ctrl-C.
    #[arg(long, conflicts_with = "player")]
    pub page: bool,
    /// Address of the running proxy, or of the one to start.
    #[arg(long, default_value = "127.0.0.1:8480", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Playback options of a proxy that is started.
    #[command(flatten)]
    pub playback: PlaybackArgs,
    /// Links of a proxy that is started.
    #[command(flatten)]
    pub links: LinkArgs,
    /// Certificate authorities of a proxy that is started.
    #[command(flatten)]
    pub authorities: CaFileArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_a_minimum_size() {
        for good in ["1MiB", "2MB", "512MB"] {
            assert!(parse_buffer_size(good).is_ok(), "{good}");
        }
        for bad in ["0B", "1B", "1MB", "1023KiB"] {
            assert!(parse_buffer_size(bad).unwrap_err().contains("use 1MiB or more"), "{bad}");
        }
        assert!(parse_buffer_size("32").is_err());
    }

    #[test]
    fn variants_of_the_published_policies_are_parsed() {
        let set = parse_greenbag("segment=1000KiB,split=equal").unwrap();
        assert_eq!(
            (set.segment_size, set.adaptive_subsegments, set.recovery_enabled),
            (DataSize::from_kib(1000), false, true)
        );
        assert!(!parse_greenbag("recovery=off").unwrap().recovery_enabled);
        for bad in ["", "segment=0B", "segment=9", "recovery=no", "split", "recover=off"] {
            assert!(parse_greenbag(bad).is_err(), "{bad}");
        }
    }
}
