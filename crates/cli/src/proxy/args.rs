//! What can be written behind `marline proxy` and `marline play`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::fetch::MeteredUse;
use marline_core::stream::{GreenBagParams, Objective, Policy};
use marline_core::units::DataSize;
use marline_net::links::LinkArg;
use marline_proxy::{SpreadMode, StartMode};

use crate::Secret;
use crate::args::{parse_metered_use, parse_positive_duration};

/// The last lines of `marline proxy --help`.
pub(crate) const AFTER_PROXY: &str = "\
Examples:
  marline proxy
      Play http://127.0.0.1:8480/https://example.org/film.mp4 with any player; stop with Ctrl-C.
  curl -x http://127.0.0.1:8480 https://example.org/      (HTTP proxy)
  curl --socks5-hostname 127.0.0.1:8480 https://example.org/      (SOCKS5 on the same port)
  marline proxy --link wlan0 --link wwan0,metered=yes --metered use

What is played comes over all links at once; every other connection goes over the link that suits it. The address of
status and events is printed at the start; its token changes each time.";

/// The last lines of `marline play --help`.
pub(crate) const AFTER_PLAY: &str = "\
Examples:
  marline play https://example.org/film.mp4
      Print the address for a player; `marline proxy` must be running.
  marline play --player mpv https://example.org/film.mp4
      Start the player, and a proxy for as long as it runs if there is none.
  marline play --player mpv -H 'Referer: https://example.org/' https://cdn.example.org/live.m3u8
      Send a header field that the server asks for.
  marline play --page https://example.org/film.mp4
      Print the address of a page that plays it and shows what each link does.";

/// `marline proxy`.
#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// Where players and programs find the proxy.
    #[arg(long, default_value = "127.0.0.1:8480", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Where status and events are; port 0 takes a free one. Always on this machine.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    pub status_listen: SocketAddr,
    /// Let other hosts use it too, where --listen is an address that they can reach. Nobody is asked for a password.
    #[arg(long)]
    pub allow_lan: bool,
    /// What the links are, and whom to trust.
    #[command(flatten)]
    pub links: LinkArgs,
    /// Connections of one program to one host: auto (a host keeps its link, but where a program has several busy connections to it
    /// they are spread over the links), always (each goes to the best link now) or never (a host keeps its link).
    #[arg(long, default_value = "auto", value_name = "WORD")]
    pub spread: SpreadMode,
    /// Close a tunnel (CONNECT, SOCKS5, WebSocket) in which nothing moves for this long.
    #[arg(long, default_value = "124min", value_name = "TIME", value_parser = parse_positive_duration)]
    pub idle_timeout: Duration,
    /// How much may wait for one player; 1MiB at least.
    #[arg(long, default_value = "32MB", value_name = "SIZE", value_parser = parse_buffer_size)]
    pub window: DataSize,
    /// How much may wait for all players; 1MiB at least.
    #[arg(long, default_value = "512MB", value_name = "SIZE", value_parser = parse_buffer_size)]
    pub memory: DataSize,
    /// Which link brings what of a video, and which radios sleep.
    #[command(flatten)]
    pub playback: PlaybackArgs,
    /// Write every input and decision of each answer into this folder, a file for each, for `marline replay`.
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
    /// Hear from mpv how it stands; start mpv with `--input-ipc-server=` and the same path.
    #[arg(long, value_name = "PATH")]
    pub mpv_socket: Option<PathBuf>,
    /// Print where it is as one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub quiet: bool,
}

/// How videos are played, once the proxy knows how long they are.
#[derive(Debug, Args)]
pub struct PlaybackArgs {
    /// Who decides: marline, greenbag-p (never lets a link rest) or greenbag-e.
    #[arg(long, default_value = "marline", value_name = "NAME")]
    pub policy: Policy,
    /// The published policies otherwise than published, for comparisons: segment=500KiB,recovery=off,split=equal.
    #[arg(long, value_name = "WORDS", value_parser = parse_greenbag, hide = true)]
    pub greenbag: Option<GreenBagParams>,
    /// What marline minimizes once the video arrives in time: energy, or cost (the prices of the links in the configuration file; without
    /// prices the bytes over metered links; needs --metered use).
    #[arg(long, default_value = "energy", value_name = "energy|cost")]
    pub goal: Objective,
    /// Where the links cannot carry a video: smooth (one longer wait before it starts, 30 s at most) or fast (start at
    /// once, wait in the middle).
    #[arg(long, default_value = "smooth", value_name = "WORD")]
    pub start_mode: StartMode,
    /// The device whose radios the links are taken for: a name or a file (`marline energy models`), or none.
    #[arg(long, value_name = "MODEL")]
    pub energy_model: Option<String>,
}

/// A size of the players' memory. With less than the smallest window no player gets a byte.
fn parse_buffer_size(text: &str) -> Result<DataSize, String> {
    let size: DataSize = text.parse().map_err(|error| format!("{error}"))?;
    if size < MIN_BUFFER {
        return Err("too small to play anything: use 1MiB or more".to_owned());
    }
    Ok(size)
}

const MIN_BUFFER: DataSize = DataSize::from_mib(1);

fn parse_greenbag(text: &str) -> Result<GreenBagParams, String> {
    let mut params = GreenBagParams::default();
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("segment", size)) => {
                params.segment_size = size.parse().map_err(|error| format!("segment: {error}"))?;
                if params.segment_size.is_zero() {
                    return Err("segment: nothing can be brought in pieces of nothing".to_owned());
                }
            }
            Some(("recovery", word @ ("on" | "off"))) => params.recovery_enabled = word == "on",
            Some(("split", word @ ("adaptive" | "equal"))) => params.adaptive_subsegments = word == "adaptive",
            _ => return Err(format!("`{part}`: there are segment=SIZE, recovery=on|off and split=adaptive|equal")),
        }
    }
    Ok(params)
}

/// What `proxy` and `play` have in common.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Use this interface, on these terms; repeat for more. Without it: every link that works.
    #[arg(long, value_name = "IFACE[,…]")]
    pub link: Vec<LinkArg>,
    /// Use the links below an active VPN instead of the VPN alone.
    #[arg(long)]
    pub bypass_vpn: bool,
    /// Links that cost money: avoid (only when all others have failed), use or never [default: avoid].
    #[arg(long, value_name = "WORD", value_parser = parse_metered_use)]
    pub metered: Option<MeteredUse>,
    /// Trust only the certificates in this PEM file, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// `marline play`.
#[derive(Debug, Args)]
pub struct PlayArgs {
    /// What to play (http or https).
    #[arg(value_name = "URL")]
    pub url: Secret,
    /// Start this program with the address as its last word; further words may stand before it.
    #[arg(long, value_name = "PLAYER")]
    pub player: Option<String>,
    /// Send this header field to the origin of the URL, for playlists and segments too; repeat for more. The proxy is then one of
    /// its own, on a free port if another one listens already.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub header: Vec<Secret>,
    /// Run a proxy and print the address of a page that plays it, for a browser; stop with Ctrl-C.
    #[arg(long, conflicts_with = "with")]
    pub page: bool,
    /// Where the proxy is, or is to be.
    #[arg(long, default_value = "127.0.0.1:8480", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// How it is played, where a proxy has to be started.
    #[command(flatten)]
    pub playback: PlaybackArgs,
    /// What the links are, and whom to trust, where a proxy has to be started.
    #[command(flatten)]
    pub links: LinkArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_players_memory_has_a_least_size() {
        for good in ["1MiB", "2MB", "512MB"] {
            assert!(parse_buffer_size(good).is_ok(), "{good}");
        }
        for bad in ["0B", "1B", "1MB", "1023KiB"] {
            assert!(parse_buffer_size(bad).unwrap_err().contains("use 1MiB or more"), "{bad}");
        }
        assert!(parse_buffer_size("32").is_err());
    }

    #[test]
    fn the_published_policies_can_be_had_otherwise() {
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
