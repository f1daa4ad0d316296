//! Serves one connection of an edge after its TLS handshake: reads one request, and carries the tunnel to its end.
//!
//! 1. An edge may open connections in advance and send its request later ([`IDLE_TIMEOUT`]), so that a connection is ready for the next
//!    flow. After the first byte the rest of the head must arrive within [`HEAD_TIMEOUT`], which ends connections that send one byte
//!    a minute.
//! 2. A connection carries one tunnel. After any other response it is closed, because the early data behind the head is not a request.
//! 3. If one side fails, or the relay itself, the other side is reset: an incomplete stream must never look complete.
//! 4. A tunnel ends when its certificate is revoked. A draining relay closes the connections that still wait for a request.

use std::io;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::egress::is_own_address;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::audit::FlowRecord;
use super::edge_conn::EdgeConn;
use super::origin_rates::RateWindow;
use super::rcvbuf_budget::TunnelRcvbuf;
use super::registry::ConnPermit;
use super::throughput_probe;
use super::upstream::{UpstreamContext, connect};
use super::{Relay, ServerTrust};
use crate::tls::{Peer, TlsError};
use crate::tunnel::{
    CONNECTED, PaceGrant, Pacer, Problem, Request, Status, UploadProgress, close, copy_bidirectional_with, parse,
};

/// Our choice: no longer than the timeouts of mobile NATs (RFC 5382: at least 2 h 4 min; operators: 5 to 30 min).
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Our choice: a head is one packet; enough for two retransmissions of it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Our choice: time for the last bytes of a response to arrive before the connection is reset.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many refused connections may linger that long. They count towards no limit, and need one descriptor each. Our choice: a third of the
/// descriptors that are reserved for everything except tunnels.
pub(super) const MAX_REFUSALS: usize = 32;
/// For all other refused connections. They receive the response if the edge has sent no early data.
const SHORT_LINGER_TIMEOUT: Duration = Duration::from_millis(20);

/// Serves one connection to its end.
pub(super) async fn serve(mut conn: EdgeConn, relay: &Relay) {
    let result = match Peer::of(conn.get_ref().1.peer_certificates()) {
        Ok(peer) => admit(&mut conn, peer, relay).await,
        Err(error) => Err(denied(&error)),
    };
    if let Err(problem) = result {
        tracing::debug!(why = problem.details, "request refused");
        match relay.refusal_permits.try_acquire() {
            Ok(_permit) => send_problem(&mut conn, &problem, LINGER_TIMEOUT).await,
            Err(_) => send_problem(&mut conn, &problem, SHORT_LINGER_TIMEOUT).await,
        }
    }
}

fn denied(why: &TlsError) -> Problem {
    Problem::new(Status::Forbidden, "http_request_denied", why.to_string())
}

/// Serves one request of an authenticated edge.
async fn admit(conn: &mut EdgeConn, peer: Peer, relay: &Relay) -> Result<(), Problem> {
    let mut trusted = relay.trusted.clone();
    // TLS does not verify the certificate again in a resumed session.
    trusted.borrow().check(&peer).map_err(|why| denied(&why))?;
    let mut permit = relay.registry.admit(peer.identity.name.clone())?;
    let mut flow = FlowRecord::new(&peer.identity.name);
    let result = serve_request(conn, &peer, relay, (&mut trusted, &mut permit), &mut flow).await;
    if let Some(audit) = &relay.config.audit
        && !matches!(result, Ok(Served::NoFlow))
    {
        if let Err(problem) = &result {
            flow.set_refused(problem);
        }
        audit.write(flow);
    }
    result.map(drop)
}

/// The outcome of a request.
enum Served {
    /// A tunnel was carried to its end.
    Carried,
    /// The edge closed the connection without a request, or sent a probe.
    NoFlow,
}

async fn serve_request(
    conn: &mut EdgeConn,
    peer: &Peer,
    relay: &Relay,
    (trusted, permit): (&mut watch::Receiver<Arc<ServerTrust>>, &mut ConnPermit),
    flow: &mut FlowRecord,
) -> Result<Served, Problem> {
    let request = tokio::select! {
        request = read_request(conn) => request?,
        why = wait_for_revocation(trusted, peer) => return Err(denied(&why)),
        () = relay.wait_for_drain() => return Err(Problem::new(Status::ServiceUnavailable, "connection_limit_reached", "this relay is draining")),
    };
    let (target, early_data) = match request {
        Some(EdgeRequest::Tunnel(Request::Connect(target), early)) => (target, early),
        Some(EdgeRequest::Probe(_)) if relay.registry.is_draining() || relay.registry.is_closed() => {
            return Err(Problem::new(
                Status::ServiceUnavailable,
                "connection_limit_reached",
                "this relay is draining",
            ));
        }
        Some(EdgeRequest::Probe(early_data)) => {
            return throughput_probe::serve_probe(conn, &early_data, permit, &relay.probes)
                .await
                .map(|()| Served::NoFlow);
        }
        None => return Ok(Served::NoFlow),
    };
    // The idle time of a connection opened in advance is not part of the flow.
    *flow = FlowRecord::new(&peer.identity.name);
    flow.set_target(&target);
    permit.open_tunnel()?;
    let context = UpstreamContext {
        acl: &relay.config.acl,
        is_own: &is_own_address,
        resolver: &relay.resolver,
        congestion: relay.config.congestion.as_ref(),
    };
    let mut server = connect(&target, &peer.identity.name, &context, flow).await?;
    close::reset_on_close(&server);
    tracing::debug!(edge = %permit.name(), host = target.host, port = target.port, "tunnel opened");
    let rcvbuf = TunnelRcvbuf::new(&relay.rcvbuf_budget);
    let window = target.authority().parse().ok().map(|origin| RateWindow::new(&relay.origins, origin));
    let mut pacer = CountingPacer { permit, sent: [0; 2] };
    // Revocation ends the copying with an error, so that both sides are reset below.
    let copying = async {
        conn.write_all(CONNECTED.as_bytes()).await?;
        conn.flush().await?;
        tokio::select! {
            ended = copy_flow(conn, &mut server, early_data, (&mut pacer, rcvbuf, window)) => ended,
            why = wait_for_revocation(trusted, peer) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        }
    };
    let ended = copying.await;
    flow.set_carried(pacer.sent, ended.as_ref().err());
    match ended {
        Ok(()) => close::close_gracefully(&server),
        Err(error) => {
            tracing::debug!(edge = %pacer.permit.name(), host = target.host, port = target.port, %error, "tunnel interrupted");
            close::reset_on_close(conn.get_ref().0.socket());
        }
    }
    Ok(Served::Carried)
}

/// The edge's share of the relay's capacity, with the bytes that this flow has used: from the edge, and to it.
struct CountingPacer<'a> {
    permit: &'a mut ConnPermit,
    sent: [u64; 2],
}

impl Pacer for CountingPacer<'_> {
    fn request(&mut self, up: bool, wanted: DataSize) -> PaceGrant {
        self.permit.request(up, wanted)
    }

    fn settle(&mut self, up: bool, granted: DataSize, sent: DataSize) {
        self.sent[usize::from(!up)] += sent.bytes();
        self.permit.settle(up, granted, sent);
    }
}

async fn copy_flow(
    conn: &mut EdgeConn,
    server: &mut TcpStream,
    early_data: Vec<u8>,
    (pacer, mut rcvbuf, mut window): (&mut CountingPacer<'_>, TunnelRcvbuf, Option<RateWindow<'_>>),
) -> io::Result<()> {
    let watch = |cx: &mut Context<'_>, conn: &EdgeConn, progress: UploadProgress| {
        rcvbuf.update(cx, conn.get_ref().0.socket(), progress.received);
        if let Some(window) = &mut window {
            window.update(progress.received, progress.is_blocked);
        }
    };
    copy_bidirectional_with((conn, server), (early_data, Vec::new()), pacer, watch).await
}

/// A request, with the data received behind it.
enum EdgeRequest {
    Tunnel(Request, Vec<u8>),
    Probe(Vec<u8>),
}

/// Reads the request; none: the edge closed the connection without one.
async fn read_request(conn: &mut EdgeConn) -> Result<Option<EdgeRequest>, Problem> {
    let mut bytes = Vec::with_capacity(1024);
    let timed_out = |_| Problem::new(Status::RequestTimeout, "http_request_error", "no request arrived in time");
    let first = timeout(IDLE_TIMEOUT, conn.read_buf(&mut bytes)).await.map_err(timed_out)?;
    if !matches!(first, Ok(1..)) {
        return Ok(None);
    }
    let read_request = async {
        loop {
            if let Some(len) = throughput_probe::parse_request(&bytes) {
                return Ok(Some(EdgeRequest::Probe(bytes.split_off(len))));
            }
            if let Some((request, len)) = parse(&bytes)? {
                let early_data = bytes.split_off(len);
                return Ok(Some(EdgeRequest::Tunnel(request, early_data)));
            }
            if !matches!(conn.read_buf(&mut bytes).await, Ok(1..)) {
                return Ok(None);
            }
        }
    };
    timeout(HEAD_TIMEOUT, read_request).await.map_err(timed_out)?
}

/// Waits until the peer's certificate is not accepted any more, and returns the reason.
async fn wait_for_revocation(trusted: &mut watch::Receiver<Arc<ServerTrust>>, peer: &Peer) -> TlsError {
    loop {
        if let Err(why) = trusted.borrow_and_update().check(peer) {
            return why;
        }
        if trusted.changed().await.is_err() {
            // The sender is gone, because the relay is shutting down.
            std::future::pending::<()>().await;
        }
    }
}

/// Sends the problem, and closes so that the edge can receive it.
async fn send_problem(conn: &mut EdgeConn, problem: &Problem, linger: Duration) {
    let exchange = async {
        conn.write_all(problem.to_response().as_bytes()).await?;
        conn.shutdown().await?;
        // Read early data to its end: closing a socket with unread data sends a reset, which can discard the response.
        let mut discard_buf = [0; 4096];
        while conn.read(&mut discard_buf).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(linger, exchange).await;
}
