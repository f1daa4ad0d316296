//! One connection of an edge, from its handshake's end to its own.
//!
//! In: a connection, and who it is. Out: one request answered; a tunnel carried to its end.
//!
//! 1. An edge may wait with its request ([`WARM`]), so that a connection is ready when a flow comes. Once a byte of the head is there
//!    the rest has [`HEAD`]: who sends one byte a minute is gone.
//! 2. One connection carries one tunnel. After any other answer it is closed: what the edge has sent ahead is no request.
//! 3. What breaks on one side, or with the relay itself, is reset on the other: half a stream is never taken for a whole.
//! 4. A certificate that is revoked meanwhile ends the tunnel; a relay that drains ends those that wait.

use std::io;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::reach::is_own;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::audit::Flow;
use super::origins::Window;
use super::probe;
use super::reach::{Ways, reach};
use super::registry::Seat;
use super::rooms::Room;
use super::{Relay, Trusted};
use crate::tls::{Peer, TlsError};
use crate::tunnel::{CONNECTED, Going, Grant, Pace, Problem, Request, Status, Wire, carry_watched, end, parse};

/// chosen: a mobile network's NAT forgets sooner than that (RFC 5382: 2 h 4 min; operators: 5 to 30 min).
const WARM: Duration = Duration::from_secs(300);
/// chosen: a head is one packet; two retransmissions of it.
const HEAD: Duration = Duration::from_secs(10);
/// chosen: how long an answer's last bytes may be on their way before the connection is reset.
const LINGER: Duration = Duration::from_secs(2);
/// How many have so long at once: they have no seat, and a descriptor each. chosen: a third of what is kept aside for others than
/// tunnels.
pub(super) const REFUSALS: usize = 32;
/// The others hear it if they have sent nothing ahead.
const INSTANT: Duration = Duration::from_millis(20);

pub(super) type Edge = TlsStream<Wire>;

/// Serves one connection to its end.
pub(super) async fn serve(mut edge: Edge, relay: &Relay) {
    let served = match Peer::of(edge.get_ref().1.peer_certificates()) {
        Ok(peer) => admit(&mut edge, peer, relay).await,
        Err(error) => Err(denied(&error)),
    };
    if let Err(problem) = served {
        tracing::debug!(why = problem.words, "not carried");
        match relay.refusals.try_acquire() {
            Ok(_place) => answer(&mut edge, &problem, LINGER).await,
            Err(_) => answer(&mut edge, &problem, INSTANT).await,
        }
    }
}

fn denied(why: &TlsError) -> Problem {
    Problem::new(Status::Forbidden, "http_request_denied", why.to_string())
}

/// One request of somebody who is known.
async fn admit(edge: &mut Edge, peer: Peer, relay: &Relay) -> Result<(), Problem> {
    let mut trusted = relay.trusted.clone();
    // A resumed session has been asked nothing.
    trusted.borrow().check(&peer).map_err(|why| denied(&why))?;
    let mut seat = relay.registry.enter(peer.identity.name.clone())?;
    let mut flow = Flow::new(&peer.identity.name);
    let served = one(edge, &peer, relay, (&mut trusted, &mut seat), &mut flow).await;
    if let Some(audit) = &relay.config.audit
        && !matches!(served, Ok(Served::NoFlow))
    {
        if let Err(problem) = &served {
            flow.refused(problem);
        }
        audit.write(flow);
    }
    served.map(drop)
}

/// What became of a request.
enum Served {
    /// A tunnel was carried to its end.
    Flow,
    /// The edge went without asking, or measured.
    NoFlow,
}

async fn one(
    edge: &mut Edge,
    peer: &Peer,
    relay: &Relay,
    (trusted, seat): (&mut watch::Receiver<Arc<Trusted>>, &mut Seat),
    flow: &mut Flow,
) -> Result<Served, Problem> {
    let asked = tokio::select! {
        asked = request(edge) => asked?,
        why = no_more(trusted, peer) => return Err(denied(&why)),
        () = relay.drained() => return Err(Problem::new(Status::NoRoom, "connection_limit_reached", "this relay is draining")),
    };
    let (target, early) = match asked {
        Some(Asked::Tunnel(Request::Connect(target), early)) => (target, early),
        Some(Asked::Probe(_)) if relay.registry.is_draining() || relay.registry.is_closed() => {
            return Err(Problem::new(Status::NoRoom, "connection_limit_reached", "this relay is draining"));
        }
        Some(Asked::Probe(early)) => {
            return probe::count(edge, &early, seat, &relay.probes).await.map(|()| Served::NoFlow);
        }
        None => return Ok(Served::NoFlow),
    };
    // Waiting with a ready connection is no part of the flow.
    *flow = Flow::new(&peer.identity.name);
    flow.to(&target);
    seat.open()?;
    let ways = Ways {
        rules: &relay.config.rules,
        own: &is_own,
        names: &relay.names,
        congestion: relay.config.congestion.as_ref(),
    };
    let mut server = reach(&target, &peer.identity.name, &ways, flow).await?;
    end::broken(&server);
    tracing::debug!(edge = %seat.name(), host = target.host, port = target.port, "carried");
    let room = Room::new(&relay.rooms);
    let window = target.authority().parse().ok().map(|origin| Window::new(&relay.origins, origin));
    let mut counted = Counted { seat, passed: [0; 2] };
    let carrying = async {
        edge.write_all(CONNECTED.as_bytes()).await?;
        edge.flush().await?;
        tokio::select! {
            ended = carried(edge, &mut server, early, (&mut counted, room, window)) => ended,
            why = no_more(trusted, peer) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        }
    };
    let ended = carrying.await;
    flow.carried(counted.passed, ended.as_ref().err());
    match ended {
        Ok(()) => end::whole(&server),
        Err(error) => {
            tracing::debug!(edge = %counted.seat.name(), host = target.host, port = target.port, %error, "broke");
            end::broken(edge.get_ref().0.socket());
        }
    }
    Ok(Served::Flow)
}

/// An edge's share of the relay, and what this flow has taken of it: from the edge, and to it.
struct Counted<'a> {
    seat: &'a mut Seat,
    passed: [u64; 2],
}

impl Pace for Counted<'_> {
    fn ask(&mut self, up: bool, wanted: DataSize) -> Grant {
        self.seat.ask(up, wanted)
    }

    fn passed(&mut self, up: bool, granted: DataSize, passed: DataSize) {
        self.passed[usize::from(!up)] += passed.bytes();
        self.seat.passed(up, granted, passed);
    }
}

async fn carried(
    edge: &mut Edge,
    server: &mut TcpStream,
    early: Vec<u8>,
    (seat, mut room, mut window): (&mut Counted<'_>, Room, Option<Window<'_>>),
) -> io::Result<()> {
    let watch = |cx: &mut Context<'_>, edge: &Edge, going: Going| {
        room.watch(cx, edge.get_ref().0.socket(), going.up);
        if let Some(window) = &mut window {
            window.watch(going.up, going.waits);
        }
    };
    carry_watched((edge, server), (early, Vec::new()), seat, watch).await
}

/// A request, and what came behind it.
enum Asked {
    Tunnel(Request, Vec<u8>),
    Probe(Vec<u8>),
}

/// None: the edge has gone without asking.
async fn request(edge: &mut Edge) -> Result<Option<Asked>, Problem> {
    let mut bytes = Vec::with_capacity(1024);
    let late = |_| Problem::new(Status::TimedOut, "http_request_error", "no request in time");
    let first = timeout(WARM, edge.read_buf(&mut bytes)).await.map_err(late)?;
    if !matches!(first, Ok(1..)) {
        return Ok(None);
    }
    let rest = async {
        loop {
            if let Some(len) = probe::asked(&bytes) {
                return Ok(Some(Asked::Probe(bytes.split_off(len))));
            }
            if let Some((request, len)) = parse(&bytes)? {
                let early = bytes.split_off(len);
                return Ok(Some(Asked::Tunnel(request, early)));
            }
            if !matches!(edge.read_buf(&mut bytes).await, Ok(1..)) {
                return Ok(None);
            }
        }
    };
    timeout(HEAD, rest).await.map_err(late)?
}

/// Ends when somebody may not be here any more.
async fn no_more(trusted: &mut watch::Receiver<Arc<Trusted>>, peer: &Peer) -> TlsError {
    loop {
        if let Err(why) = trusted.borrow_and_update().check(peer) {
            return why;
        }
        if trusted.changed().await.is_err() {
            // Nobody tells any more: the relay ends.
            std::future::pending::<()>().await;
        }
    }
}

/// Says why not, and closes so that it is heard.
async fn answer(edge: &mut Edge, problem: &Problem, linger: Duration) {
    let said = async {
        edge.write_all(problem.answer().as_bytes()).await?;
        edge.shutdown().await?;
        // What was sent ahead is read away: a socket closed over it would reset, and the answer be lost.
        let mut sink = [0; 4096];
        while edge.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(linger, said).await;
}
