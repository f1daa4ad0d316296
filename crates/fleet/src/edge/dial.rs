//! A new connection: to a relay over MPTCP and TLS, or to any address over one link.
//!
//! In: addresses. Out: the first connection that stands, and the time that its handshake took.
//!
//! 1. Addresses are tried as RFC 8305 has it: the families take turns, the next one at once when one fails, and after
//!    [`STAGGER`] when it hangs.
//! 2. Data in the socket's queue that was not sent yet is kept short ([`NOT_SENT`]): what waits there cannot go over another
//!    link any more, and a live stream's newest picture would wait behind it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relays::Station;
use super::trust::Trusted;
use crate::congestion::Congestion;
use crate::tunnel::Wire;

/// chosen: three SYNs would be 7 s, and a live stream cannot wait so long; another relay may be near.
pub(super) const CONNECT: Duration = Duration::from_millis(1500);
const HANDSHAKE: Duration = Duration::from_secs(3);
/// RFC 8305 §5.
const STAGGER: Duration = Duration::from_millis(250);
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

/// Rule 1.
pub(super) async fn race<F>(addresses: &[SocketAddr], connect: impl Fn(SocketAddr) -> F) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>> + Send + 'static,
{
    let mut rest = in_turns(addresses).into_iter();
    let mut running = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    loop {
        if let Some(address) = rest.next() {
            running.spawn(connect(address));
        }
        let is_last = rest.len() == 0;
        tokio::select! {
            joined = running.join_next() => match joined {
                Some(Ok(Ok(socket))) => return Ok(socket),
                Some(Ok(Err(error))) => last = error,
                Some(Err(error)) => last = io::Error::other(error),
                None if is_last => return Err(last),
                None => {}
            },
            () = sleep(STAGGER), if !is_last => {}
        }
    }
}

/// The families take turns, the first one's first.
fn in_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| address.is_ipv6() == first_is_v6);
    let longest = one.len().max(other.len());
    (0..longest).flat_map(|at| [one.get(at).copied(), other.get(at).copied()]).flatten().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (a, b, c, d) = (at("[::1]:1"), at("[::2]:1"), at("[::3]:1"), at("1.2.3.4:1"));
        assert_eq!(in_turns(&[a, b, c, d]), [a, d, b, c]);
        assert_eq!(in_turns(&[d, a]), [d, a]);
        assert_eq!(in_turns(&[]), []);
    }

    #[test]
    fn the_next_address_is_tried_when_one_hangs_or_fails() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let good = listener.local_addr().unwrap();
            let (hangs, fails): (SocketAddr, SocketAddr) =
                ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap());
            let connect = move |address| async move {
                if address == hangs {
                    std::future::pending::<()>().await;
                }
                if address == fails {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                TcpStream::connect(address).await
            };
            let reached = race(&[fails, hangs, good], connect).await.unwrap();
            assert_eq!(reached.peer_addr().unwrap(), good);
            assert_eq!(race(&[fails], connect).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(race(&[], connect).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }
}
