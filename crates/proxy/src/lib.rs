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
mod listener;
mod media;
mod media_port;
mod options;
mod page;
mod player;
mod playlist;
mod response;
mod session;
mod tunnel;
mod upstream;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};
use url::Url;

pub use marline_core::proxy::{SpreadMode, StartMode, UnknownSpreadMode, UnknownStartMode};
pub use marline_download::{ClientContextError, Links};
pub use options::{Options, ProxyAddresses, ProxyError};
pub use upstream::origin_headers::OriginHeaders;

use marline_download::ClientContext;

use client::admission::ClientAdmission;
use client::buffer_budget::BufferBudget;
use client::stream::ClientStream;
use client::token::Token;
use listener::{accept, bind, http1_builder, max_connections};
use media::handler::MediaHandler;
use media::prefetch::Prefetcher;
use media_port::{MediaPort, serve_until_evicted};
use page::player_page;
use page::status::StatusHandler;
use player::mpv_ipc;
use player::report::PlayerReport;
use session::options::SessionOptions;
use session::table::Sessions;
use tunnel::Tunnels;
use upstream::links::UpstreamLinks;

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

/// Our choice: enough for the pages and players of one user, with their event streams.
const MAX_STATUS_CONNECTIONS: usize = 256;
