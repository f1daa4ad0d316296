//! Opens connections: to a relay over MPTCP and TLS, or to any address over one link.
//!
//! Connecting to a relay returns the first connection that succeeds and the RTT of its handshake. Handshakes are started a few at a time
//! (`handshake_limiter`), and plain TCP is tried where a network drops SYNs with MPTCP's option.
//!
//! Unsent data in the socket's queue is kept short ([`NOTSENT_LOWAT`]): data that is queued there can no longer go over another link, and a
//! live stream's newest picture would have to wait behind it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_net::links::Interface;
use marline_net::mptcp::{self, is_negotiated};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::relay_list::{MptcpSupport, RelayEntry};
use super::trust::ClientTrust;
use crate::congestion::CongestionControl;
use crate::happy_eyeballs::connect_first;
use crate::link_dialer::{ConnObservation, LinkDialer};
use crate::tunnel::BufferedSocket;

/// Our choice: three SYNs of the kernel take 7 s, and a live stream cannot wait so long; another relay may be close.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long MPTCP alone is tried before plain TCP is tried as well. Our choice: longer than the handshake over a satellite link.
const PLAIN_TCP_DELAY: Duration = Duration::from_millis(700);
/// How long a plain TCP connection then waits for MPTCP. Our choice: it ends after MPTCP's second SYN, which the kernel sends after 1 s,
/// and before the third one, after whose loss the kernel stops using MPTCP for all destinations.
const PLAIN_TCP_GRACE: Duration = Duration::from_millis(500);
/// Our choice: what 100 Mbit/s send in 10 ms.
const NOTSENT_LOWAT: u32 = 128 * 1024;
const KEEPALIVE_TIME: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// A connection to a relay.
pub(super) type RelayConn = TlsStream<BufferedSocket>;

/// How a connection is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DialOptions {
    /// Bind to this device; `None`: routes and the links' policy decide.
    pub(super) device: Option<String>,
    /// Use plain TCP instead of MPTCP.
    pub(super) plain_tcp: bool,
    /// Use this congestion control; `None`: the kernel's default.
    pub(super) congestion: Option<CongestionControl>,
}

/// Connects to this relay over the first link that reaches it; returns the connection and the RTT of its first handshake.
pub(super) async fn dial(
    entry: &Arc<RelayEntry>,
    trusted: &ClientTrust,
    options: &DialOptions,
    dialer: &Arc<LinkDialer>,
) -> io::Result<(RelayConn, Duration)> {
    // If a device is given, no other link is tried.
    if options.device.is_some() {
        return dial_over(entry, trusted, options, None, dialer).await.map(|(dialled, _)| dialled);
    }
    let (entry, trusted, options, link_dialer) =
        (Arc::clone(entry), trusted.clone(), options.clone(), Arc::clone(dialer));
    let attempt = move |link: Option<Arc<Interface>>| {
        let (entry, trusted, options, link_dialer) =
            (Arc::clone(&entry), trusted.clone(), options.clone(), Arc::clone(&link_dialer));
        async move { dial_over(&entry, &trusted, &options, link.as_deref(), &link_dialer).await }
    };
    dialer.connect(attempt).await
}

/// Connects to this relay over this link only; `None`: routes decide.
pub(super) async fn dial_over(
    entry: &RelayEntry,
    trusted: &ClientTrust,
    options: &DialOptions,
    link: Option<&Interface>,
    dialer: &LinkDialer,
) -> io::Result<((RelayConn, Duration), ConnObservation)> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer");
    let (mut addresses, mut options) = (entry.addresses_over(link, dialer).await?, options.clone());
    let is_behind_links = addresses.iter().any(|address| dialer.is_behind_links(address.ip()));
    if let Some(link) = link.filter(|_| is_behind_links) {
        addresses = LinkDialer::with_link_families(addresses, link)?;
        options.device = Some(link.name.clone());
    }
    let started_at = Instant::now();
    let (socket, is_plain) =
        timeout(CONNECT_TIMEOUT, connect_with_fallback(&addresses, &options)).await.map_err(timed_out)??;
    let rtt = started_at.elapsed();
    entry.note_answer(options.device.as_deref(), true);
    let conn = tls_handshake(socket, entry, trusted).await.inspect_err(|_| {
        // While other flows are carried, the processor or the link is busy, and the server at this address is the relay.
        if !entry.has_tunnel_since(started_at) {
            entry.note_answer(options.device.as_deref(), false);
        }
    })?;
    if link.is_some() {
        entry.set_addresses(addresses);
    }
    let observation = match link {
        _ if !is_behind_links => ConnObservation::NotViaLinks,
        _ if is_plain => ConnObservation::MptcpDropped,
        Some(link) => observe_mptcp(&conn, entry, link, dialer),
        None => ConnObservation::Reached,
    };
    Ok(((conn, rtt), observation))
}

/// Completes the TLS handshake and checks that the server is this relay.
pub(super) async fn tls_handshake(
    socket: TcpStream,
    entry: &RelayEntry,
    trusted: &ClientTrust,
) -> io::Result<RelayConn> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time");
    let handshake = TlsConnector::from(trusted.tls.clone())
        .connect(entry.config.server_name.clone(), BufferedSocket::new(socket));
    let conn = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(timed_out)??;
    check_peer(&conn, entry, trusted)?;
    Ok(conn)
}

/// Records whether a connection speaks MPTCP. The kernel does not report a fallback to plain TCP as an error.
fn observe_mptcp(conn: &RelayConn, entry: &RelayEntry, link: &Interface, dialer: &LinkDialer) -> ConnObservation {
    let Some(speaks) = is_negotiated(conn.get_ref().0.socket()) else { return ConnObservation::Reached };
    match entry.note_mptcp(&link.name, &dialer.link_names(), speaks) {
        MptcpSupport::Stripped => ConnObservation::MptcpStripped,
        MptcpSupport::Supported => ConnObservation::Reached,
        MptcpSupport::Unsupported => {
            dialer.clear_mptcp_stripped();
            ConnObservation::Reached
        }
    }
}

/// Connects to one of these addresses; returns whether it had to be done without MPTCP, because some networks drop SYNs with its option.
async fn connect_with_fallback(addresses: &[SocketAddr], options: &DialOptions) -> io::Result<(TcpStream, bool)> {
    let mptcp = connect_first(addresses, |address| connect(address, options.clone()));
    tokio::pin!(mptcp);
    if options.plain_tcp {
        return mptcp.await.map(|socket| (socket, false));
    }
    tokio::select! {
        result = &mut mptcp => return result.map(|socket| (socket, false)),
        () = sleep(PLAIN_TCP_DELAY) => {}
    }
    // MPTCP has not connected in time: its SYN may be lost or dropped. Plain TCP is tried as well, and its result waits for a grace period,
    // in which a retransmitted MPTCP SYN may still succeed.
    let plain_options = DialOptions { plain_tcp: true, ..options.clone() };
    let plain_tcp = async {
        let reached = connect_first(addresses, |address| connect(address, plain_options.clone())).await;
        sleep(PLAIN_TCP_GRACE).await;
        reached
    };
    tokio::pin!(plain_tcp);
    tokio::select! {
        reached = &mut mptcp => match reached {
            Ok(socket) => Ok((socket, false)),
            Err(error) => plain_tcp.await.map(|socket| (socket, true)).map_err(|_| error),
        },
        reached = &mut plain_tcp => match reached {
            Ok(socket) => Ok((socket, true)),
            Err(_) => mptcp.await.map(|socket| (socket, false)),
        },
    }
}

/// Checks the relay's certificate against the current trust configuration and revocation list.
pub(super) fn check_peer(conn: &RelayConn, entry: &RelayEntry, trusted: &ClientTrust) -> io::Result<()> {
    let presented = conn.get_ref().1.peer_certificates();
    let checked = trusted.check_relay(presented, entry.config.member.as_ref());
    checked.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
}

/// Opens one TCP or MPTCP connection.
pub(super) async fn connect(address: SocketAddr, options: DialOptions) -> io::Result<TcpStream> {
    // A kernel without MPTCP uses one link at a time.
    let opened = if options.plain_tcp { None } else { mptcp::mptcp_socket_to(address).ok() };
    let (socket, address) = match opened {
        Some(opened) => opened,
        None => {
            let domain = Domain::for_address(address);
            (Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?, address)
        }
    };
    if let Some(device) = &options.device {
        match socket.bind_device(Some(device.as_bytes())) {
            // Before Linux 5.7, binding needs CAP_NET_RAW; without it the kernel chooses the link.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    // Older kernels refuse some of these options for MPTCP. Then small packets are delayed, or a dead relay is detected later.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_keepalive(true);
    let _ =
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL));
    if let Some(congestion) = &options.congestion {
        congestion.apply_to(&socket);
    }
    let socket = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
    // MPTCP supports this option since about Linux 5.19; without it more data is queued.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(NOTSENT_LOWAT);
    Ok(socket)
}
