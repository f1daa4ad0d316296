//! Tunnels: connections that are passed through, for CONNECT and plain HTTP requests ([`forward`]) and for SOCKS5
//! ([`socks5`]).
//!
//! A tunnel is a TCP connection to a host and port over the link that suits the host; its bytes are spliced in both
//! directions.
//!
//! 1. The links are tried in the order of [`LinkSelector`](marline_core::proxy::LinkSelector), and names are resolved
//!    over each link. Failures, handshake times and throughput are reported to the selector.
//! 2. [`marline_net::splice`] moves the bytes between the two connections.

pub(crate) mod forward;
pub(crate) mod socks5;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_core::proxy::ClientHost;
use marline_core::units::DataSize;
use marline_download::{CountingStream, Flow};
use marline_net::egress::EgressPolicy;
use marline_net::splice::{self, Direction};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::upstream::links::UpstreamLinks;

/// Opens tunnels.
pub(crate) struct Tunnels {
    pub(crate) links: Rc<UpstreamLinks>,
    /// A tunnel without any traffic is closed after this time.
    pub(crate) idle_timeout: Duration,
}

/// A connection to a host, and the link that it uses.
pub(crate) struct Tunnel {
    /// `None` once it was taken.
    stream: Option<TcpStream>,
    links: Rc<UpstreamLinks>,
    idle_timeout: Duration,
    pub(crate) flow: Rc<Flow>,
    /// The entry in the link selector; `None`: the connection uses no link.
    link_use: Option<LinkUse>,
    /// Start of the current rate measurement, and the bytes received since.
    rate_window: Cell<(Instant, u64)>,
}

impl Tunnels {
    /// Opens a connection over the link that suits the host, if the egress policy permits the destination. `kind` names the
    /// purpose in the status.
    ///
    /// # Errors
    /// The egress policy's refusal, if there was one; otherwise the error of the last link that was tried.
    pub(crate) async fn open(
        &self,
        kind: &'static str,
        (host, port): (&str, u16),
        egress: EgressPolicy,
    ) -> Result<Tunnel, ConnError> {
        let host_name = host.trim_start_matches('[').trim_end_matches(']');
        let (network, links) = (&self.links.network, &self.links);
        let tunnel = |stream, link_use: Option<LinkUse>| {
            enable_keepalive(&stream);
            let link = link_use.as_ref().map(|link_use| link_use.link.as_str());
            Tunnel {
                stream: Some(stream),
                links: Rc::clone(links),
                idle_timeout: self.idle_timeout,
                flow: network.traffic.open_flow(kind, (host_name, port), egress.requester(), link),
                link_use,
                rate_window: Cell::new((Instant::now(), 0)),
            }
        };
        if network.needs_no_link(host_name) {
            let (stream, _) = network.connect_tcp(host_name, port, None, egress).await?;
            return Ok(tunnel(stream, None));
        }
        let mut last_error =
            ConnError { kind: ConnErrorKind::Unreachable, text: format!("{host}: no link is usable") };
        let mut forbidden = None;
        let key = (egress.requester(), host_name.to_ascii_lowercase());
        for interface in links.ranked_for_host(&key) {
            let link_use = LinkUse::new(links, &interface.name, &key);
            match network.connect_tcp(host_name, port, Some(&interface), egress).await {
                Ok((stream, handshake)) => {
                    links.selector.borrow_mut().on_connected(links.now(), &interface.name, &key, handshake);
                    return Ok(tunnel(stream, Some(link_use)));
                }
                // Other links would be refused as well, unless the name resolves to a different address there.
                Err(error) if error.is_refusal() => forbidden = Some(error),
                Err(error) => {
                    // A host that refuses has responded over this link, and an unknown name is not the fault of the link.
                    if !matches!(error.kind, ConnErrorKind::Refused | ConnErrorKind::Dns) {
                        links.selector.borrow_mut().on_failed(links.now(), &interface.name);
                    }
                    last_error = error;
                }
            }
        }
        // A refused address is more informative than a link that cannot resolve the name.
        Err(forbidden.unwrap_or(last_error))
    }
}

/// Enables keep-alive probes, which detect a server that has disappeared.
fn enable_keepalive(stream: &TcpStream) {
    let keep_alive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    // A failure only delays this detection.
    let _ = SockRef::from(stream).set_tcp_keepalive(&keep_alive);
}

impl Tunnel {
    /// Takes the connection, for use by an HTTP client. The remaining tunnel still counts it as open.
    pub(crate) fn take_stream(&mut self) -> Option<CountingStream> {
        self.stream.take().map(|stream| CountingStream::new(stream, Arc::clone(&self.flow.counters)))
    }

    /// Relays bytes in both directions until both sides have finished, or nothing was transferred for the idle timeout.
    /// `early_data` was already received from the client.
    pub(crate) async fn relay(mut self, client: TcpStream, early_data: &[u8]) {
        let Some(mut server) = self.stream.take() else { return };
        if server.write_all(early_data).await.is_err() {
            return;
        }
        self.flow.counters.tx_bytes.fetch_add(early_data.len() as u64, Ordering::Relaxed);
        self.forward_both_ways(&client, &server).await;
    }

    /// Relays bytes between two connections. The server's was [taken](Self::take_stream).
    pub(crate) async fn forward_both_ways(&self, client: &TcpStream, server: &TcpStream) {
        let on_moved = |direction, size: DataSize| match direction {
            Direction::Up => drop(self.flow.counters.tx_bytes.fetch_add(size.bytes(), Ordering::Relaxed)),
            Direction::Down => {
                self.flow.counters.rx_bytes.fetch_add(size.bytes(), Ordering::Relaxed);
                self.on_received(size);
            }
        };
        if let Err(error) = splice::splice_both(client, server, self.idle_timeout, on_moved).await {
            tracing::debug!(host = self.flow.host, %error, "tunnel failed");
        }
    }

    /// Reports the throughput of a connection that was [taken](Self::take_stream) to the link selector. Never returns.
    pub(crate) async fn report_rate(&self) {
        let mut reported = 0;
        loop {
            tokio::time::sleep(RATE_INTERVAL).await;
            let down = self.flow.counters.rx_bytes.load(Ordering::Relaxed);
            let new_bytes = down - std::mem::replace(&mut reported, down);
            if new_bytes > 0 {
                self.on_received(DataSize::from_bytes(new_bytes));
            }
        }
    }

    /// Accounts received bytes and reports the throughput about twice a second.
    fn on_received(&self, size: DataSize) {
        let (window_start, bytes) = self.rate_window.get();
        let (bytes, elapsed) = (bytes + size.bytes(), window_start.elapsed());
        if elapsed < RATE_INTERVAL {
            return self.rate_window.set((window_start, bytes));
        }
        self.rate_window.set((Instant::now(), 0));
        if let Some(LinkUse { link, key, id, .. }) = &self.link_use {
            let mut selector = self.links.selector.borrow_mut();
            selector.on_activity(self.links.now(), key, *id);
            selector.on_transfer(link, DataSize::from_bytes(bytes), elapsed);
        }
    }
}

/// Counts a connection as open in the link selector until this is dropped.
struct LinkUse {
    links: Rc<UpstreamLinks>,
    link: String,
    key: ClientHost,
    /// The selector's number of this connection.
    id: u64,
}

impl LinkUse {
    fn new(links: &Rc<UpstreamLinks>, link: &str, key: &ClientHost) -> Self {
        let id = links.selector.borrow_mut().on_opening(links.now(), link, key);
        Self { links: Rc::clone(links), link: link.to_owned(), key: key.clone(), id }
    }
}

impl Drop for LinkUse {
    fn drop(&mut self) {
        self.links.selector.borrow_mut().on_closed(&self.link, &self.key, self.id);
    }
}

/// RFC 5382 §5: a NAT keeps an idle connection for at least this long, so programs expect it.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(124 * 60);
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// How often the throughput of a tunnel is reported to the link selector.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
