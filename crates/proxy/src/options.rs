//! Configuration of a proxy, and why it cannot start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::fetch::MeteredUse;
use marline_core::proxy::{SpreadMode, StartMode};
use marline_core::stream::{GreenBagParams, Objective, Policy};
use marline_core::units::DataSize;
use marline_download::{ClientContextError, Links};

use crate::tunnel;
use crate::upstream::origin_headers::OriginHeaders;

/// Configuration of a proxy.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where players, browsers and other programs connect. Default: 127.0.0.1:8480.
    pub listen: SocketAddr,
    /// Address of the status port (status, events, player page). Default: a free port on the loopback.
    pub status_listen: SocketAddr,
    /// Permits a [`listen`](Self::listen) address beyond the loopback, where other hosts can use the proxy.
    pub allow_lan: bool,
    /// The links that may be used.
    pub links: Links,
    /// Whether and when metered links are used. Default: only while no unmetered link works.
    pub metered: MeteredUse,
    /// PEM file with the only certificate authorities to trust; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// How many bytes may be buffered for one player. Default: 32 MB.
    pub window: DataSize,
    /// How many bytes may be buffered for all players together. Default: 512 MB.
    pub memory: DataSize,
    /// Decides which link fetches which bytes of a video, and which radios stay idle.
    pub policy: Policy,
    /// Parameters of the published GreenBag policies.
    pub greenbag: GreenBagParams,
    /// What the policy minimizes.
    pub objective: Objective,
    /// Whether the connections of one client to one host are spread over the links.
    pub spread_mode: SpreadMode,
    /// A tunnel without any traffic is closed after this time. Default: 124 minutes.
    pub idle_timeout: Duration,
    /// Header fields for one origin (`-H`), in addition to those of the player.
    pub origin_headers: Option<OriginHeaders>,
    /// Whether the start of playback is delayed when the links are slower than the video.
    pub start_mode: StartMode,
    /// The device whose radio parameters apply to the links; `None`: radios cost no energy, so none is kept idle.
    pub energy_model: Option<Model>,
    /// Price of received data by interface name, in millionths of the currency for 10^9 bytes.
    pub prices: Vec<(String, u64)>,
    /// The folder for decision logs (which `marline replay` runs again), one for each response; `None`: none are
    /// written.
    pub trace_dir: Option<PathBuf>,
    /// The IPC socket of an mpv (`--input-ipc-server`), from which the proxy reads the state of playback.
    pub mpv_socket: Option<PathBuf>,
}

impl Options {
    /// The defaults: media port 8480, any free status port, 32 MB for one player, 512 MB in total.
    pub fn new(links: Links) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8480)),
            status_listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            allow_lan: false,
            links,
            metered: MeteredUse::Avoid,
            ca_file: None,
            window: DataSize::from_bytes(32_000_000),
            memory: DataSize::from_bytes(512_000_000),
            policy: Policy::default(),
            greenbag: GreenBagParams::default(),
            objective: Objective::default(),
            spread_mode: SpreadMode::default(),
            idle_timeout: tunnel::IDLE_TIMEOUT,
            origin_headers: None,
            start_mode: StartMode::default(),
            energy_model: None,
            prices: Vec::new(),
            trace_dir: None,
            mpv_socket: None,
        }
    }
}

/// The addresses of a running proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyAddresses {
    /// Address of the media port, with the port number that was bound.
    pub media_addr: SocketAddr,
    /// URL of the status port, including its access token.
    pub status_url: String,
    /// Messages about the links for the user.
    pub notices: Vec<String>,
}

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The media address is not on the loopback, and [`Options::allow_lan`] is not set.
    #[error("{0}: other hosts could use this proxy; add --allow-lan to permit that")]
    ListenNotLoopback(SocketAddr),
    /// The status address is not on the loopback.
    #[error(
        "--status-listen {0}: status and events are served on this machine only; use 127.0.0.1:PORT or [::1]:PORT"
    )]
    StatusNotLoopback(SocketAddr),
    /// An address cannot be bound.
    #[error("{address}: {}", bind_error_text(.error))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the system call.
        error: io::Error,
    },
    /// The system provides no random bytes for the access token.
    #[error("cannot create a random access token: {0}")]
    Token(io::Error),
    /// The links or the certificate authorities cannot be used.
    #[error(transparent)]
    Network(#[from] ClientContextError),
}

fn bind_error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is already in use; is another proxy running?".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => "not permitted: ports below 1024 need CAP_NET_BIND_SERVICE".to_owned(),
        _ => error.to_string(),
    }
}
