//! Opens a connection to a server over one link, including a proxy tunnel and TLS.
//!
//! 1. The socket is bound to the device before the SYN is sent, so the connection cannot use the route or address of
//!    another link.
//! 2. Each address is checked when its turn comes ([`EgressPolicy`]); forbidden ones are skipped.
//! 3. Happy Eyeballs (RFC 8305 section 5): the next address is tried [`ATTEMPT_DELAY`] after the latest attempt
//!    began, or as soon as all attempts so far have failed. The first connection is used, and the other attempts are
//!    dropped.
//! 4. If all attempts fail, the error of the first address is reported, because it was the preferred one.
//! 5. One timeout covers everything, including TLS.
//!
//! The receive buffer is not set: the kernel's autotuning follows the path, and a fixed size would disable it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::BufReader;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use marline_core::fetch::{ConnError, ConnErrorKind};

use super::http1::Http1;
use super::http2::Http2;
use super::transport::{TLS_READ_BUFFER, Transport};
use super::{Connection, Http2Windows, ProtocolState, Tunnel, conn_error, socket_error, socket_path_sample, tls};
use crate::egress::{AddressZone, EgressPolicy, Forbidden};
use crate::links::is_outside_links_and_not_on;
use crate::mptcp::{self, unmapped};

/// Everything that is needed to open one connection over one link.
#[derive(Clone, Debug)]
pub struct DialRequest {
    /// The interface to bind to; `None`: the routing table decides.
    pub device: Option<String>,
    /// Request MPTCP. If the peer or this kernel does not support it, the connection uses TCP.
    pub mptcp: bool,
    /// Addresses of the server or proxy, the preferred one first.
    pub addresses: Vec<SocketAddr>,
    /// The name that the certificate must be valid for: a host name, or an address without brackets.
    pub server_name: String,
    /// TLS configuration, including ALPN; `None`: plain TCP and HTTP/1.1. See [`tls_config`](super::tls_config).
    pub tls: Option<Arc<ClientConfig>>,
    /// Maximum time for connecting, the proxy tunnel and TLS together.
    pub timeout: Duration,
    /// Flow-control windows, if HTTP/2 is negotiated.
    pub http2_windows: Http2Windows,
    /// Which addresses may be connected to.
    pub egress: EgressPolicy,
    /// The addresses are those of a proxy, which must open this tunnel before anything else is sent.
    pub tunnel: Option<Tunnel>,
    /// Counts the bytes of requests without TLS overhead; `None`: they are not counted.
    pub sent_bytes: Option<Arc<AtomicU64>>,
}

/// A connected socket, and the time from its SYN to the SYN-ACK.
struct ConnectedSocket {
    socket: TcpStream,
    handshake: Duration,
}

type Attempt<'a> = Pin<Box<dyn Future<Output = io::Result<ConnectedSocket>> + Send + 'a>>;

impl DialRequest {
    pub(super) async fn connect(self) -> Result<Connection, ConnError> {
        let timed_out = |_| {
            let text = format!("{}: no answer within {:?}", self.server_name, self.timeout);
            Err(conn_error(ConnErrorKind::TimedOut, text))
        };
        tokio::time::timeout(self.timeout, self.establish()).await.unwrap_or_else(timed_out)
    }

    /// Opens a plain TCP connection. Returns the socket, and the time from its SYN to the SYN-ACK. The proxy tunnel
    /// and TLS are left to the caller.
    ///
    /// # Errors
    /// As [`Connection::dial`].
    pub async fn connect_tcp(&self) -> Result<(TcpStream, Duration), ConnError> {
        let raced = tokio::time::timeout(self.timeout, self.happy_eyeballs()).await;
        let timed_out = |_| {
            let text = format!("{}: no answer within {:?}", self.server_name, self.timeout);
            Err(conn_error(ConnErrorKind::TimedOut, text))
        };
        raced.unwrap_or_else(timed_out).map(|ConnectedSocket { socket, handshake }| (socket, handshake))
    }

    async fn establish(&self) -> Result<Connection, ConnError> {
        let ConnectedSocket { socket, handshake } = self.happy_eyeballs().await?;
        let to_conn_error = |error: io::Error| socket_error(&self.server_name, &error);
        let local = unmapped(socket.local_addr().map_err(to_conn_error)?);
        let peer = unmapped(socket.peer_addr().map_err(to_conn_error)?);
        let socket = match &self.tunnel {
            Some(tunnel) => tunnel.open(socket).await?,
            None => socket,
        };
        let protocol_state = match &self.tls {
            None => ProtocolState::Http1(Box::new(Http1::new(Transport::plain(socket, self.sent_bytes.clone())))),
            Some(config) => self.handshake_tls(socket, config).await?,
        };
        Ok(Connection { protocol_state, handshake, local, peer })
    }

    async fn handshake_tls(
        &self,
        socket: TcpStream,
        config: &Arc<ClientConfig>,
    ) -> Result<ProtocolState, ConnError> {
        let name = ServerName::try_from(self.server_name.clone()).map_err(|_| {
            conn_error(ConnErrorKind::Tls, format!("`{}` is not a valid name for a certificate", self.server_name))
        })?;
        let reader = BufReader::with_capacity(TLS_READ_BUFFER, socket);
        let connected = TlsConnector::from(Arc::clone(config)).connect(name, reader).await;
        let stream = connected.map_err(|error| tls::handshake_error(&self.server_name, &error))?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = Transport::tls(stream, self.sent_bytes.clone());
        if !http2 {
            return Ok(ProtocolState::Http1(Box::new(Http1::new(stream))));
        }
        let to_conn_error = |error: io::Error| socket_error(&self.server_name, &error);
        let socket = stream.socket().as_fd().try_clone_to_owned().map_err(to_conn_error)?;
        Ok(ProtocolState::Http2(Box::new(Http2::start(stream, self.http2_windows).await?), socket))
    }

    /// Races the addresses (rules 2 to 4); returns the first socket that connects.
    async fn happy_eyeballs(&self) -> Result<ConnectedSocket, ConnError> {
        let mut running: Vec<(SocketAddr, Attempt<'_>)> = Vec::new();
        let mut failed: Vec<(SocketAddr, io::Error)> = Vec::new();
        let mut forbidden = None;
        let mut waiting = self.addresses.iter();
        let mut next_attempt = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        std::future::poll_fn(|cx| {
            loop {
                // Backwards, so that removing a failed attempt does not shift those still to be polled.
                for index in (0..running.len()).rev() {
                    match running[index].1.as_mut().poll(cx) {
                        Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(connected)),
                        Poll::Ready(Err(error)) => failed.push((running.remove(index).0, error)),
                        Poll::Pending => {}
                    }
                }
                // The next address starts when no attempt runs, or when the latest attempt has had its head start.
                let due = running.is_empty() || next_attempt.as_mut().poll(cx).is_ready();
                match if due { waiting.next() } else { None } {
                    Some(&address) => {
                        let zone = AddressZone::of(address.ip());
                        if let Err(why) = self.egress.check_zone(address, zone) {
                            tracing::debug!(host = self.server_name, %address, "address forbidden, not connecting");
                            forbidden = Some(why);
                            continue;
                        }
                        // Links do not reach this machine itself, nor networks outside the links, such as the LAN of
                        // the host that sent the request. Then the socket is not bound.
                        let is_local = zone == AddressZone::Host
                            || (zone == AddressZone::Private && self.egress.requester().is_some());
                        let device = self
                            .device
                            .as_deref()
                            .filter(|device| !(is_local || is_outside_links_and_not_on(address.ip(), device)));
                        running.push((address, Box::pin(connect_one(device, self.mptcp, address))));
                        next_attempt.as_mut().reset(tokio::time::Instant::now() + ATTEMPT_DELAY);
                    }
                    // All addresses were tried. The task is woken by a running attempt; `next_attempt` no longer
                    // matters.
                    None if running.is_empty() => return Poll::Ready(Err(self.dial_error(&failed, forbidden))),
                    None => return Poll::Pending,
                }
            }
        })
        .await
    }

    fn dial_error(&self, failed: &[(SocketAddr, io::Error)], forbidden: Option<Forbidden>) -> ConnError {
        let first = self.addresses.iter().find_map(|a| failed.iter().find(|(address, _)| address == a));
        match (first, forbidden) {
            (Some((address, error)), _) => socket_error(&address.to_string(), error),
            (None, Some(why)) => why.conn_error(&self.server_name),
            (None, None) => conn_error(ConnErrorKind::Dns, format!("{} has no address", self.server_name)),
        }
    }
}

/// Connects one socket to one address.
async fn connect_one(device: Option<&str>, mptcp: bool, address: SocketAddr) -> io::Result<ConnectedSocket> {
    let opened = if mptcp { mptcp::mptcp_socket_to(address).ok() } else { None };
    let (socket, address) = match opened {
        Some(opened) => opened,
        None => {
            let domain = Domain::for_address(address);
            (Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?, address)
        }
    };
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.set_tcp_nodelay(true)?;
    let started_at = Instant::now();
    let socket = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
    let measured = socket_path_sample(socket.as_fd()).rtt;
    let handshake = if measured.is_zero() { started_at.elapsed() } else { measured };
    Ok(ConnectedSocket { socket, handshake })
}

/// RFC 8305 section 8 recommends 250 ms and allows 100 ms to 2 s. Our choice: 200 ms, more than the RTT of most access
/// links.
const ATTEMPT_DELAY: Duration = Duration::from_millis(200);
