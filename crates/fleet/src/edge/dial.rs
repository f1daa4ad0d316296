//! A new connection: to a relay over MPTCP and TLS, or to any address over one link.
//!
//! In: addresses. Out: the first connection that stands, and the time that its handshake took.
//!
//! Data in the socket's queue that was not sent yet is kept short ([`NOT_SENT`]): what waits there cannot go over another
//! link any more, and a live stream's newest picture would wait behind it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relays::Station;
use super::trust::Trusted;
use crate::congestion::Congestion;
use crate::race::race;
use crate::tunnel::Wire;

/// chosen: three SYNs would be 7 s, and a live stream cannot wait so long; another relay may be near.
pub(super) const CONNECT: Duration = Duration::from_millis(1500);
const HANDSHAKE: Duration = Duration::from_secs(3);
/// chosen: what 100 Mbit/s send in 10 ms.
const NOT_SENT: u32 = 128 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(10);

/// A connection to a relay.
pub(super) type Road = TlsStream<Wire>;

/// How a connection is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct By {
    /// Over this device alone; none: as the kernel and the links' policy have it.
    pub(super) device: Option<String>,
    /// Without MPTCP.
    pub(super) plain: bool,
    /// With this congestion control; none: the kernel's.
    pub(super) congestion: Option<Congestion>,
}

/// A connection to this relay, and the round trip of its first handshake.
pub(super) async fn dial(station: &Station, trusted: &Trusted, by: &By) -> io::Result<(Road, Duration)> {
    let late = |what: &'static str| move |_| io::Error::new(io::ErrorKind::TimedOut, what);
    let addresses = station.addresses().await?;
    let begun = Instant::now();
    let reached = race(&addresses, |address| connect(address, by.clone()));
    let socket = timeout(CONNECT, reached).await.map_err(late("no answer"))??;
    let round_trip = begun.elapsed();
    let shaken = TlsConnector::from(trusted.tls.clone()).connect(station.at.server.clone(), Wire::new(socket));
    let road = timeout(HANDSHAKE, shaken).await.map_err(late("no TLS handshake in time"))??;
    check(&road, station, trusted)?;
    Ok((road, round_trip))
}

/// Whether this relay may carry (still).
pub(super) fn check(road: &Road, station: &Station, trusted: &Trusted) -> io::Result<()> {
    let shown = road.get_ref().1.peer_certificates();
    let checked = trusted.check(shown, station.at.member.as_ref());
    checked.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
}

/// One connection.
pub(super) async fn connect(address: SocketAddr, by: By) -> io::Result<TcpStream> {
    let domain = Domain::for_address(address);
    let new = |protocol| Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(protocol));
    // A kernel without MPTCP has one link at a time.
    let mptcp = if by.plain { new(Protocol::TCP) } else { new(Protocol::MPTCP) };
    let socket = mptcp.or_else(|_| new(Protocol::TCP))?;
    if let Some(device) = &by.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    // Older kernels refuse some of these for MPTCP: then small packets wait, or a dead relay is found later.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_keepalive(true);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_AGAIN));
    if let Some(congestion) = &by.congestion {
        congestion.set(&socket);
    }
    let socket = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
    // MPTCP knows this option since Linux 5.19 or so; without it more waits in the queue.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(NOT_SENT);
    Ok(socket)
}
