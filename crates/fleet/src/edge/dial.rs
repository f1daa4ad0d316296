//! A new connection: to a relay over MPTCP and TLS, or to any address over one link.
//!
//! In: addresses. Out: the first connection that stands, and the time that its handshake took.
//!
//! Data in the socket's queue that was not sent yet is kept short ([`NOT_SENT`]): what waits there cannot go over another
//! link any more, and a live stream's newest picture would wait behind it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_core::link_choice::Race;
use marline_net::links::Interface;
use marline_net::mptcp::is_spoken;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relays::{MptcpSeen, Station};
use super::trust::Trusted;
use crate::congestion::Congestion;
use crate::race::race;
use crate::starts::{Shows, Starts};
use crate::tunnel::Wire;

/// chosen: three SYNs would be 7 s, and a live stream cannot wait so long; another relay may be near.
pub(super) const CONNECT: Duration = Duration::from_millis(1500);
const HANDSHAKE: Duration = Duration::from_secs(3);
/// chosen: a satellite's SYN-ACK comes before.
const PLAIN_AFTER: Duration = Duration::from_millis(700);
/// chosen: until after MPTCP's second SYN, which is sent after 1 s, and before the third one, upon whose loss the kernel gives up MPTCP for
/// all destinations.
const PLAIN_WAITS: Duration = Duration::from_millis(500);
/// chosen: what 100 Mbit/s send in 10 ms.
const NOT_SENT: u32 = 128 * 1024;
/// How many handshakes begin at once, and how long each of them counts. chosen: a small processor finishes so many well within
/// [`HANDSHAKE`], and over a satellite 250 flows still begin in a second.
const TURNS: usize = 64;
const TURN: Duration = Duration::from_millis(250);
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

/// Spreads out handshakes that begin together. If hundreds ran at once, none would be over before nearly all are, and a busy
/// processor would make a healthy relay look like one that does not answer.
#[derive(Debug)]
pub(super) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(TURNS))
    }
}

impl Turns {
    pub(super) async fn take<T>(&self, handshake: impl Future<Output = T>) -> T {
        let turn = self.0.acquire().await;
        tokio::pin!(handshake);
        match timeout(TURN, &mut handshake).await {
            Ok(ended) => ended,
            Err(_) => {
                drop(turn);
                handshake.await
            }
        }
    }
}

/// A connection to this relay over the first link that reaches it, and the round trip of its first handshake.
pub(super) async fn dial(
    station: &Arc<Station>,
    trusted: &Trusted,
    by: &By,
    starts: &Arc<Starts>,
) -> io::Result<(Road, Duration)> {
    // A device that was named is used alone.
    if by.device.is_some() {
        return dial_over(station, trusted, by, None, starts).await.map(|(dialled, _)| dialled);
    }
    let (station, trusted, by, of) = (Arc::clone(station), trusted.clone(), by.clone(), Arc::clone(starts));
    let attempt = move |link: Option<Arc<Interface>>| {
        let (station, trusted, by, of) = (Arc::clone(&station), trusted.clone(), by.clone(), Arc::clone(&of));
        async move { dial_over(&station, &trusted, &by, link.as_deref(), &of).await }
    };
    starts.start(Race::new, attempt).await
}

/// The same over this link alone; none: as the kernel has it.
pub(super) async fn dial_over(
    station: &Station,
    trusted: &Trusted,
    by: &By,
    link: Option<&Interface>,
    starts: &Starts,
) -> io::Result<((Road, Duration), Shows)> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
    let (mut addresses, mut by) = (station.addresses_over(link, starts).await?, by.clone());
    let is_behind = addresses.iter().any(|address| starts.is_behind_links(address.ip()));
    if let Some(link) = link.filter(|_| is_behind) {
        addresses = Starts::of_families(addresses, link)?;
        by.device = Some(link.name.clone());
    }
    let begun = Instant::now();
    let (socket, is_plain) = timeout(CONNECT, reach(&addresses, &by)).await.map_err(late)??;
    let round_trip = begun.elapsed();
    station.answers(by.device.as_deref(), true);
    let road = shake(socket, station, trusted).await.inspect_err(|_| {
        // While other flows are carried, the processor or the link is busy, and the relay is what answers.
        if !station.has_carried_since(begun) {
            station.answers(by.device.as_deref(), false);
        }
    })?;
    if link.is_some() {
        station.has_found(addresses);
    }
    let shows = match link {
        _ if !is_behind => Shows::Nothing,
        _ if is_plain => Shows::WithoutMptcp,
        Some(link) => speaks(&road, station, link, starts),
        None => Shows::Reached,
    };
    Ok(((road, round_trip), shows))
}

/// The relay proves that it is the one.
async fn shake(socket: TcpStream, station: &Station, trusted: &Trusted) -> io::Result<Road> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time");
    let shaken = TlsConnector::from(trusted.tls.clone()).connect(station.at.server.clone(), Wire::new(socket));
    let road = timeout(HANDSHAKE, shaken).await.map_err(late)??;
    check(&road, station, trusted)?;
    Ok(road)
}

/// Whether a connection speaks MPTCP. A fallback to plain TCP is not reported by the kernel.
fn speaks(road: &Road, station: &Station, link: &Interface, starts: &Starts) -> Shows {
    let Some(speaks) = is_spoken(road.get_ref().0.socket()) else { return Shows::Reached };
    match station.note_mptcp(&link.name, &starts.names(), speaks) {
        MptcpSeen::Stripped => Shows::Stripped,
        MptcpSeen::Spoken => Shows::Reached,
        MptcpSeen::Off => {
            starts.none_strips();
            Shows::Reached
        }
    }
}

/// A connection to one of these addresses, and whether it had to be made without MPTCP: some networks drop SYNs with its option.
async fn reach(addresses: &[SocketAddr], by: &By) -> io::Result<(TcpStream, bool)> {
    let with = race(addresses, |address| connect(address, by.clone()));
    tokio::pin!(with);
    if by.plain {
        return with.await.map(|socket| (socket, false));
    }
    tokio::select! {
        first = &mut with => return first.map(|socket| (socket, false)),
        () = sleep(PLAIN_AFTER) => {}
    }
    let plain = By { plain: true, ..by.clone() };
    let without = async {
        let reached = race(addresses, |address| connect(address, plain.clone())).await;
        sleep(PLAIN_WAITS).await;
        reached
    };
    tokio::pin!(without);
    tokio::select! {
        reached = &mut with => match reached {
            Ok(socket) => Ok((socket, false)),
            Err(error) => without.await.map(|socket| (socket, true)).map_err(|_| error),
        },
        reached = &mut without => match reached {
            Ok(socket) => Ok((socket, true)),
            Err(_) => with.await.map(|socket| (socket, false)),
        },
    }
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
        match socket.bind_device(Some(device.as_bytes())) {
            // Before Linux 5.7 it needs CAP_NET_RAW: then the kernel chooses the link.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn few_handshakes_begin_at_once_and_none_waits_for_those_that_hang() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (turns, running, most) = (Arc::new(Turns::default()), Arc::new(AtomicUsize::new(0)), 3 * TURNS);
            let mut all = JoinSet::new();
            for _ in 0..most {
                let (turns, running) = (Arc::clone(&turns), Arc::clone(&running));
                all.spawn(async move {
                    let handshake = async {
                        let at_once = running.fetch_add(1, Ordering::Relaxed) + 1;
                        tokio::task::yield_now().await;
                        running.fetch_sub(1, Ordering::Relaxed);
                        at_once
                    };
                    turns.take(handshake).await
                });
            }
            while let Some(at_once) = all.join_next().await {
                assert!(at_once.unwrap() <= TURNS);
            }
            let mut hanging = JoinSet::new();
            for _ in 0..most {
                let (turns, running) = (Arc::clone(&turns), Arc::clone(&running));
                hanging.spawn(async move {
                    let handshake = async {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await;
                    };
                    turns.take(handshake).await;
                });
            }
            let begun = Instant::now();
            while running.load(Ordering::Relaxed) < most {
                assert!(begun.elapsed() < Duration::from_secs(20), "{running:?} have begun");
                sleep(TURN / 10).await;
            }
            assert!(begun.elapsed() >= 2 * TURN);
        });
    }
}
