//! Accepts the edge's clients: SOCKS5 (RFC 1928) and HTTP CONNECT (RFC 9110 section 9.3.6) on one port, and redirected connections of a
//! LAN.
//!
//! A proxy client names its target and gets the replies of its protocol. A LAN client does not know about the edge: it gets the bytes of
//! its server, or a reset.
//!
//! 1. The first byte distinguishes the protocols: 5 is SOCKS5's version, and no HTTP method begins with it.
//! 2. The listeners are bound to loopback addresses unless the user configures others. Any host that can reach a listener may use it,
//!    within the limits of [`ConnAdmission`](marline_net::admission::ConnAdmission), but cannot reach this host itself through it
//!    ([`target_acl`]).
//! 3. After a refusal, data that the client has already sent is read and discarded, for a short time and up to [`MAX_DISCARDED`]. Closing a
//!    socket with unread data would reset the connection, and the client might not receive the reply.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_net::egress::EgressPolicy;
use marline_net::socks5;
use marline_paths::gateway::{Gateway, GatewayError};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Edge, dns_watch, flow, lan_routing, private_networks, target_acl, udp_watch};
use crate::listen_error::ListenError;
use crate::tunnel::{CONNECTED, Problem, Request, Status, Target, close, parse};

/// How long a client's request may take to arrive. Our choice: clients run on this host or on its LAN.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Our choice: how long the last bytes of a reply may take before the connection is reset; the same as a relay's.
const LINGER: Duration = Duration::from_secs(2);
/// Our choice: a sleeping phone answers within minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Our choice: more than a client sends before it reads the reply.
const MAX_DISCARDED: usize = 256 * 1024;

/// How many refused clients get a reply at once; the others are reset.
pub(super) const MAX_REFUSALS: usize = 256;

/// The open listeners of an edge.
#[derive(Debug)]
pub struct ClientListener {
    listeners: Vec<TcpListener>,
}

impl ClientListener {
    /// Opens a listener on each configured address.
    ///
    /// # Errors
    /// The address is in use, or not one of this host's.
    pub async fn open(edge: &Edge) -> Result<Self, ListenError> {
        let mut listeners = Vec::new();
        for address in &edge.config.listen {
            let bound = TcpListener::bind(address).await;
            listeners.push(bound.map_err(|error| ListenError { address: *address, error })?);
        }
        Ok(Self { listeners })
    }

    /// The addresses of the listeners, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Accepts and serves clients until dropped.
    pub async fn serve(self, edge: &Arc<Edge>) {
        let mut accepting = tokio::task::JoinSet::new();
        let shaper_edge = Arc::clone(edge);
        accepting.spawn(async move { match shaper_edge.shaper.watch().await {} });
        for listener in self.listeners {
            accepting.spawn(accept(listener, Arc::clone(edge)));
        }
        accepting.join_all().await;
    }
}

async fn accept(listener: TcpListener, edge: Arc<Edge>) {
    loop {
        match listener.accept().await {
            Ok((client, client_addr)) => admit(client, client_addr, None, &edge),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Serves LAN clients, and routes LAN packets that need no tunnel, until the gateway is lost or this is dropped.
///
/// # Errors
/// The rules that redirect connections to the edge were removed.
pub async fn serve_lan(gateway: &mut Gateway, edge: &Arc<Edge>) -> GatewayError {
    let beyond = gateway.non_tcp_route();
    tokio::select! {
        lost = accept_lan(gateway, edge) => lost,
        never = lan_routing::run(beyond, edge) => match never {},
        never = udp_watch::run(edge) => match never {},
        never = dns_watch::run(edge) => match never {},
    }
}

async fn accept_lan(gateway: &mut Gateway, edge: &Arc<Edge>) -> GatewayError {
    loop {
        match gateway.accept().await {
            Ok((client, destination)) => match client.peer_addr() {
                Ok(client_addr) => admit(client, client_addr, Some(destination), edge),
                Err(error) => tracing::debug!(%error, "LAN client has closed its connection already"),
            },
            Err(lost) => return lost,
        }
    }
}

/// Serves a connection, if the limits allow it; a flow that is evicted for it is reset. A redirected LAN connection has its `destination`.
fn admit(mut client: TcpStream, client_addr: SocketAddr, destination: Option<SocketAddr>, edge: &Arc<Edge>) {
    let (evict_tx, mut evict_rx) = oneshot::channel();
    let Ok((permit, evicted)) = edge.admission().admit(client_addr.ip(), evict_tx) else {
        tracing::debug!(%client_addr, "client refused: limit of flows reached");
        return refuse_at_capacity(client, destination, edge);
    };
    if let Some(evicted_tx) = evicted {
        // The evicted flow may have ended on its own.
        let _ = evicted_tx.send(());
    }
    // A client that left the LAN without closing its connections must not hold its slots forever.
    let _ = SockRef::from(&client)
        .set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL));
    let edge = Arc::clone(edge);
    tokio::spawn(async move {
        tokio::select! {
            () = async {
                match destination {
                    Some(destination) => serve_lan_client(&mut client, client_addr, destination, &edge).await,
                    None => serve_client(&mut client, client_addr, &edge).await,
                }
            } => {}
            Ok(()) = &mut evict_rx => close::reset_on_close(&client),
        }
        edge.admission().release(permit);
    });
}

/// Replies that the limit is reached, in the client's protocol. LAN clients, and those beyond [`MAX_REFUSALS`], are reset.
fn refuse_at_capacity(mut client: TcpStream, destination: Option<SocketAddr>, edge: &Edge) {
    close::reset_on_close(&client);
    let Some(permit) = Arc::clone(&edge.refusal_permits).try_acquire_owned().ok().filter(|_| destination.is_none())
    else {
        return;
    };
    tokio::spawn(async move {
        let _permit = permit;
        let Ok(Ok((protocol, ..))) = timeout(LINGER, read_request(&mut client)).await else { return };
        let problem = Problem::new(
            Status::ServiceUnavailable,
            "connection_limit_reached",
            "the edge has reached its limit of flows".to_owned(),
        );
        match protocol {
            ProxyProtocol::Socks5 => send_refusal(&mut client, &socks5::reply(socks5_reply(problem.status))).await,
            ProxyProtocol::HttpConnect => send_refusal(&mut client, problem.to_response().as_bytes()).await,
        }
        close::close_gracefully(&client);
    });
}

/// Serves a redirected connection, whose client does not know about the edge.
async fn serve_lan_client(client: &mut TcpStream, client_addr: SocketAddr, destination: SocketAddr, edge: &Edge) {
    // If this fails, small packets are delayed, nothing else.
    let _ = client.set_nodelay(true);
    let target = Target::new(&destination.ip().to_canonical().to_string(), destination.port());
    let target = target.filter(|target| !target_acl::is_forbidden(client_addr, target));
    let Some(target) = target else { return close::reset_on_close(client) };
    match flow::open(
        edge,
        &target,
        EgressPolicy::for_peer(client_addr),
        private_networks::PrivateAccess::UnroutedOnly,
    )
    .await
    {
        Ok(upstream) => flow::forward(edge, upstream, &target, client, Vec::new()).await,
        Err(problem) => {
            tracing::debug!(%client_addr, %destination, why = problem.details, "flow refused");
            close::reset_on_close(client);
        }
    }
}

/// The protocol of a proxy client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyProtocol {
    Socks5,
    HttpConnect,
}

async fn serve_client(client: &mut TcpStream, client_addr: SocketAddr, edge: &Edge) {
    // If this fails, small packets are delayed, nothing else.
    let _ = client.set_nodelay(true);
    let Ok(Ok((protocol, target, from_client))) = timeout(REQUEST_TIMEOUT, read_request(client)).await else {
        return;
    };
    let upstream = if target_acl::is_forbidden(client_addr, &target) {
        let details = format!("{} is an address of the edge itself, which other hosts may not reach", target.host);
        Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", details))
    } else {
        flow::open(
            edge,
            &target,
            EgressPolicy::for_peer(client_addr),
            private_networks::private_access(edge, client_addr),
        )
        .await
    };
    match (upstream, protocol) {
        (Ok(upstream), protocol) => {
            let sent = match protocol {
                ProxyProtocol::Socks5 => client.write_all(&socks5::reply(socks5::SUCCEEDED)).await,
                ProxyProtocol::HttpConnect => client.write_all(CONNECTED.as_bytes()).await,
            };
            if sent.is_ok() {
                flow::forward(edge, upstream, &target, client, from_client).await;
            }
        }
        (Err(problem), ProxyProtocol::Socks5) => {
            send_refusal(client, &socks5::reply(socks5_reply(problem.status))).await
        }
        (Err(problem), ProxyProtocol::HttpConnect) => send_refusal(client, problem.to_response().as_bytes()).await,
    }
}

/// The reply code for a status (RFC 1928 section 6).
fn socks5_reply(status: Status) -> u8 {
    match status {
        Status::Forbidden => socks5::NOT_ALLOWED,
        Status::BadGateway | Status::GatewayTimeout => socks5::HOST_UNREACHABLE,
        _ => socks5::GENERAL_FAILURE,
    }
}

/// Reads the request: the protocol, the target, and payload that the client has sent after the request.
async fn read_request(client: &mut TcpStream) -> io::Result<(ProxyProtocol, Target, Vec<u8>)> {
    let mut first = [0];
    client.peek(&mut first).await?;
    if first == [5] {
        return match socks5::read_request(client).await? {
            Ok((host, port)) => match Target::new(&host, port) {
                Some(target) => Ok((ProxyProtocol::Socks5, target, Vec::new())),
                None => refuse_request(client, &socks5::reply(socks5::GENERAL_FAILURE)).await,
            },
            Err(code) => refuse_request(client, &socks5::reply(code)).await,
        };
    }
    let mut bytes = Vec::with_capacity(512);
    loop {
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match parse(&bytes) {
            Ok(Some((Request::Connect(target), len))) => {
                let early_data = bytes.split_off(len);
                return Ok((ProxyProtocol::HttpConnect, target, early_data));
            }
            Ok(None) => {}
            Err(problem) => return refuse_request(client, Problem::to_response(&problem).as_bytes()).await,
        }
    }
}

async fn refuse_request<T>(client: &mut TcpStream, response: &[u8]) -> io::Result<T> {
    send_refusal(client, response).await;
    Err(io::ErrorKind::InvalidInput.into())
}

/// Sends a refusal, and closes the connection so that the client receives it.
async fn send_refusal(client: &mut TcpStream, response: &[u8]) {
    let exchange = async {
        client.write_all(response).await?;
        client.shutdown().await?;
        let (mut discard_buf, mut left) = ([0; 1024], MAX_DISCARDED);
        while left > 0 {
            let read = client.read(&mut discard_buf).await?;
            left = left.checked_sub(read).filter(|_| read > 0).unwrap_or(0);
        }
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, exchange).await;
}
