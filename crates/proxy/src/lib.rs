//! The local proxy of `marline proxy` and `marline play`: accepts players, browsers and programs on one port and uses
//! all links.
//!
//! Media is downloaded over all links at once. Every other connection goes over the link that suits its host best.
//!
//! ```text
//!   GET /https://host/path ──▶ media ──▶ session ──▶ marline_download::RangeDownload: all links, in order
//!   GET http://host/path   ──▶ forward ─┐
//!   CONNECT host:port      ──▶ forward ─┼─▶ tunnel: one connection over one link (LinkSelector), spliced
//!   SOCKS5 (first byte 5)  ──▶ socks5 ──┘
//!   status port: /TOKEN/status, /TOKEN/events, /TOKEN/play
//! ```
//!
//! Main types: [`Options`] configures a proxy, [`run()`] serves until it is stopped, and [`ProxyAddresses`] holds the
//! addresses on which it listens.
//!
//! 1. Everything runs on one thread, in a local task set, so sessions share state without locks.
//! 2. The proxy listens on the loopback only, unless the user names another address and confirms it as well
//!    ([`Options::allow_lan`]).
//! 3. Memory is bounded in total ([`Options::memory`]) and for each player ([`Options::window`]). When a player stops
//!    reading, its links stop as well.
//! 4. The first byte of a connection distinguishes SOCKS5 from HTTP, so one port serves both.
//!
//! The folders, from the top: `page` (status and player page), `media` (requests of players, prefetching), `tunnel`
//! (everything that is not media), `response` (bodies), `session` (one player at one URL), `delivery` (transfers and the
//! bodies that they fill), `player` (the video and reports of players), `playlist` (HLS and DASH), `upstream` (requests to
//! servers), `client` (admission, memory, what clients request). Each uses only those after it.
//!
//! Where to start reading: `media::handler`, then `session::open`.
//!
//! No server framework is used: there are four kinds of requests and no routes.

mod abort_on_drop;
mod client;
mod clock;
mod delivery;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod media;
mod page;
mod player;
mod playlist;
mod response;
mod session;
mod tunnel;
mod upstream;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use marline_core::energy::Model;
use marline_core::fetch::MeteredUse;
use marline_core::stream::{GreenBagParams, Objective, Policy};
use marline_core::units::DataSize;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};
use url::Url;

pub use marline_core::proxy::{SpreadMode, StartMode, UnknownSpreadMode, UnknownStartMode};
pub use marline_download::{ClientContextError, Links};
pub use upstream::origin_headers::OriginHeaders;

use marline_download::ClientContext;
use marline_net::egress::EgressPolicy;

use client::admission::{ClientAdmission, ConnPermit};
use client::buffer_budget::BufferBudget;
use client::origin_check;
use client::stream::ClientStream;
use client::token::Token;
use media::handler::MediaHandler;
use media::prefetch::Prefetcher;
use page::player_page;
use page::status::StatusHandler;
use player::mpv_ipc;
use player::report::PlayerReport;
use response::body::ProxyBody;
use session::options::SessionOptions;
use session::table::Sessions;
use tunnel::{Tunnels, forward, socks5};
use upstream::links::UpstreamLinks;

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
    /// Whether and when metered links are used.
    pub metered: MeteredUse,
    /// PEM file with the only certificate authorities to trust; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// How many bytes may be buffered for one player.
    pub window: DataSize,
    /// How many bytes may be buffered for all players together.
    pub memory: DataSize,
    /// Decides which link fetches which bytes of a video, and which radios stay idle.
    pub policy: Policy,
    /// Parameters of the published GreenBag policies.
    pub greenbag: GreenBagParams,
    /// What the policy minimizes.
    pub objective: Objective,
    /// Whether the connections of one client to one host are spread over the links.
    pub spread_mode: SpreadMode,
    /// A tunnel without any traffic is closed after this time.
    pub idle_timeout: Duration,
    /// Header fields for one origin (`-H`), in addition to those of the player.
    pub origin_headers: Option<OriginHeaders>,
    /// Whether the start of playback is delayed when the links are slower than the video.
    pub start_mode: StartMode,
    /// The device whose radio parameters apply to the links; `None`: radios cost no energy, so none is kept idle.
    pub energy_model: Option<Model>,
    /// Price of received data by interface name, in millionths of the currency for 10^9 bytes.
    pub prices: Vec<(String, u64)>,
    /// The folder for decision logs, one for each response; `None`: none are written.
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

/// Runs a proxy until SIGINT, SIGTERM or the completion of `until`. Calls `started` with the addresses once they are
/// bound. Needs a tokio runtime with I/O and time, and runs entirely on the calling task.
///
/// # Errors
/// When it cannot start. A proxy that has started ends only on request.
pub async fn run(
    options: Options,
    started: impl FnOnce(&ProxyAddresses),
    until: impl Future<Output = ()>,
) -> Result<(), ProxyError> {
    LocalSet::new().run_until(serve(options, started, until)).await
}

async fn serve(
    options: Options,
    started: impl FnOnce(&ProxyAddresses),
    until: impl Future<Output = ()>,
) -> Result<(), ProxyError> {
    if !options.listen.ip().is_loopback() && !options.allow_lan {
        return Err(ProxyError::ListenNotLoopback(options.listen));
    }
    if !options.status_listen.ip().is_loopback() {
        return Err(ProxyError::StatusNotLoopback(options.status_listen));
    }
    // A player needs several upstream connections. With fewer descriptors, excess connections are refused; the rest
    // works.
    let descriptors = marline_net::rlimit::raise_nofile_limit();
    // Large playlist texts are allocated and freed on several threads.
    marline_sys::memory::return_large_blocks();
    let media_listener = bind(options.listen).await?;
    let status_listener = bind(options.status_listen).await?;
    let token = Token::new().map_err(ProxyError::Token)?;
    let session_options = SessionOptions::from_options(&options);
    let mpv_socket = options.mpv_socket;
    let (network, notices) = ClientContext::new(options.links, options.ca_file.as_deref())?;
    let buffer_budget = BufferBudget::new(options.memory, options.window);
    let links = Rc::new(UpstreamLinks::new(
        Rc::new(network),
        session_options.stream.fetch.metered,
        session_options.spread_mode,
    ));
    let tunnels = Tunnels { links: Rc::clone(&links), idle_timeout: session_options.idle_timeout };
    let sessions = Rc::new(Sessions::new(Rc::clone(&links), buffer_budget, session_options));
    let prefetcher = Rc::new(Prefetcher::new(Rc::clone(&sessions)));
    let media = MediaHandler::new(Rc::clone(&sessions), Rc::clone(&prefetcher));
    let status = Rc::new(StatusHandler::new(Rc::clone(&sessions), Rc::clone(&prefetcher)));
    let media_port = Rc::new(MediaPort { media, tunnels });
    // Signal handlers are installed before `started` runs, because the caller may stop the proxy right after it.
    let mut signals: Vec<_> = [SignalKind::interrupt(), SignalKind::terminate()]
        .into_iter()
        .filter_map(|kind| signal(kind).ok())
        .collect();
    started(&ProxyAddresses {
        media_addr: media_listener.1,
        status_url: format!("http://{}/{}/", status_listener.1, token.as_str()),
        notices,
    });

    let network = Rc::clone(&links.network);
    spawn_local(async move { network.run().await });
    let published_status = Rc::clone(&status);
    spawn_local(async move { published_status.publish_loop().await });
    spawn_local(async move { prefetcher.expire_idle().await });
    if let Some(path) = mpv_socket {
        let on_report = move |url: &Url, report: &PlayerReport| {
            sessions.on_player_report(url, report);
        };
        spawn_local(async move { mpv_ipc::run(links.clock, &path, on_report).await });
    }
    let (media_clients, status_clients) =
        (ClientAdmission::new(max_connections(descriptors)), ClientAdmission::new(MAX_STATUS_CONNECTIONS));
    let token = Rc::new(token);
    let accept_media = accept(&media_listener.0, &media_clients, |stream, peer, permit| {
        let (port, timeout) = (Rc::clone(&media_port), media_clients.idle_timeout());
        serve_until_evicted(port, stream, (peer, media_listener.1), permit, timeout)
    });
    let accept_status = accept(&status_listener.0, &status_clients, |stream, _, permit| {
        let (status, token, address) = (Rc::clone(&status), Rc::clone(&token), status_listener.1);
        let http = http1_builder(status_clients.idle_timeout());
        async move {
            let (stream, is_served) = ClientStream::new(stream);
            let service = service_fn(|request: Request<Incoming>| async {
                is_served.store(true, Ordering::Relaxed);
                permit.on_request();
                Ok::<_, Infallible>(
                    player_page::handle(&status, request, (address, media_listener.1), &token).await,
                )
            });
            tokio::select! {
                _ = http.serve_connection(TokioIo::new(stream), service) => {}
                () = permit.wait_for_eviction() => {}
            }
        }
    });
    let stopped = std::future::poll_fn(|cx| {
        if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    });
    tokio::select! {
        () = accept_media => {}
        () = accept_status => {}
        () = stopped => {}
        () = until => {}
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ProxyError> {
    let bind_error = |error| ProxyError::Bind { address, error };
    let listener = TcpListener::bind(address).await.map_err(bind_error)?;
    let bound = listener.local_addr().map_err(bind_error)?;
    Ok((listener, bound))
}

/// Accepts connections forever, each served in a task of its own, as far as the admission control permits.
async fn accept<F>(
    listener: &TcpListener,
    clients: &Rc<ClientAdmission>,
    serve: impl Fn(TcpStream, SocketAddr, Rc<ConnPermit>) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Most likely the process has no descriptors left. Closing an idle connection frees one.
            clients.evict_idle();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(permit) = clients.admit(peer.ip()) else { continue };
        let _ = stream.set_nodelay(true);
        // Detects clients that have disappeared, which would otherwise hold their permit forever.
        let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keep_alive);
        spawn_local(serve(stream, peer, permit));
    }
}

/// The maximum number of client connections for a descriptor limit: a tunnel needs six descriptors, with both its
/// pipes, and a player five connections.
fn max_connections(descriptors: u64) -> usize {
    usize::try_from(descriptors / 8).unwrap_or(usize::MAX).clamp(16, MAX_CONNECTIONS)
}

/// What serves the requests of the media port.
struct MediaPort {
    media: MediaHandler,
    tunnels: Tunnels,
}

/// Serves one connection of the media port until it ends or is evicted.
async fn serve_until_evicted(
    port: Rc<MediaPort>,
    stream: TcpStream,
    (peer, listener): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
    timeout: Duration,
) {
    let task_permit = Rc::clone(&permit);
    tokio::select! {
        () = serve_client(port, stream, (peer, listener), task_permit, timeout) => {}
        () = permit.wait_for_eviction() => tracing::debug!(%peer, "connection closed to admit another client"),
    }
}

async fn serve_client(
    port: Rc<MediaPort>,
    stream: TcpStream,
    (peer, listener): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
    timeout: Duration,
) {
    let mut first_byte = [0; 1];
    match tokio::time::timeout(timeout, stream.peek(&mut first_byte)).await {
        Ok(Ok(1)) if first_byte == [5] => {
            let egress = EgressPolicy::for_peer(peer).with_listener(listener);
            return socks5::serve(&port.tunnels, stream, egress, &permit).await;
        }
        Ok(Ok(1)) => {}
        _ => return,
    }
    let (stream, is_served) = ClientStream::new(stream);
    let service = service_fn(|request: Request<Incoming>| {
        is_served.store(true, Ordering::Relaxed);
        let (port, request_permit) = (Rc::clone(&port), Rc::clone(&permit));
        async move {
            request_permit.on_request();
            Ok::<_, Infallible>(route(&port, request, (listener, peer), request_permit).await)
        }
    });
    if let Err(error) = http1_builder(timeout).serve_connection(TokioIo::new(stream), service).with_upgrades().await
    {
        tracing::debug!(%peer, %error, "client connection failed");
    }
}

async fn route(
    port: &MediaPort,
    request: Request<Incoming>,
    (listener, peer): (SocketAddr, SocketAddr),
    permit: Rc<ConnPermit>,
) -> Response<ProxyBody> {
    let egress = EgressPolicy::for_peer(peer).with_listener(listener);
    if request.method() == Method::CONNECT {
        return forward::open_tunnel(&port.tunnels, request, egress, permit).await;
    }
    if request.uri().scheme().is_some() {
        return forward::forward_request(&port.tunnels, request, egress, permit).await;
    }
    let is_same_site = origin_check::is_same_site(request.headers());
    let mut response = port.media.handle(&request, (listener, peer), &permit).await;
    if is_same_site {
        // The player page is served from another port. Browsers load media from an IP address for it only with this
        // field.
        let name = "cross-origin-resource-policy";
        response.headers_mut().insert(name, http::HeaderValue::from_static("cross-origin"));
    }
    response
}

/// The server side of HTTP/1.1, with small buffers for each connection. `timeout` limits how long a request head may
/// take.
fn http1_builder(timeout: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Some(timeout))
        .max_buf_size(MAX_HEAD_BUFFER)
        .keep_alive(true);
    builder
}

/// chosen: twice what two hundred players with five connections each need.
const MAX_CONNECTIONS: usize = 2000;
/// chosen: enough for the pages and players of one user, with their event streams.
const MAX_STATUS_CONNECTIONS: usize = 256;
/// chosen: a sleeping phone responds within minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The largest request head. Bodies are not buffered here.
const MAX_HEAD_BUFFER: usize = 64 * 1024;
