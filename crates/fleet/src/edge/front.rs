//! Where programs reach the edge: SOCKS5 (RFC 1928) and CONNECT (RFC 9110 §9.3.6) on one port, and a LAN's own connections.
//!
//! In: a connection. Out: where it wants to go, and the answers that its language has; what a LAN's client has sent to
//! its server itself is answered by bytes or by a reset.
//!
//! 1. The first byte tells which language it is: 5 is SOCKS5's version, and no method of HTTP begins with it.
//! 2. Listeners are the loopback's unless the user names others: whoever can reach one may use it, within the bounds of
//!    [`Guests`](marline_net::admission::Guests), and does not reach this machine itself through it ([`local`]).
//! 3. What is refused is answered so that it is heard: what the program has sent is read away, for a short time and up to
//!    [`SENT_AHEAD`], as a socket closed over it would reset.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_net::paths::gateway::{Gateway, GatewayError};
use marline_net::proxy::socks5;
use marline_net::reach::Right;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Edge, flow, local, nameless, nearby, pass, unanswered};
use crate::tunnel::{CONNECTED, Problem, Request, Status, Target, end, parse};

/// chosen: a program on this machine or beside it.
const PATIENCE: Duration = Duration::from_secs(10);
const BREATH: Duration = Duration::from_millis(50);
/// chosen: how long an answer's last bytes may be on their way before the connection is reset; as a relay's.
const LINGER: Duration = Duration::from_secs(2);
/// chosen: a phone that sleeps answers within minutes.
const SILENT: Duration = Duration::from_secs(120);
const SILENT_AGAIN: Duration = Duration::from_secs(30);
/// chosen: what a program sends before it looks for an answer.
const SENT_AHEAD: usize = 256 * 1024;

/// How many are told at once that there is no room.
pub(super) const REFUSALS: usize = 256;

/// Why it cannot be listened.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}: {error}")]
pub struct FrontError {
    /// Where.
    pub address: SocketAddr,
    /// Why not.
    pub error: io::Error,
}

/// The listeners.
#[derive(Debug)]
pub struct Front {
    listeners: Vec<TcpListener>,
}

impl Front {
    /// Listens where the edge is to be found.
    ///
    /// # Errors
    /// Somebody else does, or the address is not this machine's.
    pub async fn open(edge: &Edge) -> Result<Self, FrontError> {
        let mut listeners = Vec::new();
        for address in &edge.config.listen {
            let bound = TcpListener::bind(address).await;
            listeners.push(bound.map_err(|error| FrontError { address: *address, error })?);
        }
        Ok(Self { listeners })
    }

    /// Where it is listened.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves programs until dropped.
    pub async fn attend(self, edge: &Arc<Edge>) {
        let mut accepting = tokio::task::JoinSet::new();
        let lanes = Arc::clone(edge);
        accepting.spawn(async move { match lanes.lanes.watch().await {} });
        for listener in self.listeners {
            accepting.spawn(accept(listener, Arc::clone(edge)));
        }
        accepting.join_all().await;
    }
}

async fn accept(listener: TcpListener, edge: Arc<Edge>) {
    loop {
        match listener.accept().await {
            Ok((near, from)) => admit(near, from, None, &edge),
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Serves a LAN's clients, and leads the rest of its packets, until the gateway is lost, or this is dropped.
///
/// # Errors
/// The rules that lead connections here have gone.
pub async fn attend_lan(gateway: &mut Gateway, edge: &Arc<Edge>) -> GatewayError {
    let beyond = gateway.beyond();
    tokio::select! {
        lost = accept_lan(gateway, edge) => lost,
        never = pass::lead(beyond, edge) => match never {},
        never = unanswered::watch(edge) => match never {},
        never = nameless::watch(edge) => match never {},
    }
}

async fn accept_lan(gateway: &mut Gateway, edge: &Arc<Edge>) -> GatewayError {
    loop {
        match gateway.arrive().await {
            Ok((near, going)) => match near.peer_addr() {
                Ok(from) => admit(near, from, Some(going), edge),
                Err(error) => tracing::debug!(%error, "gone already"),
            },
            Err(lost) => return lost,
        }
    }
}

/// Serves a connection, if there is room for one more; who has to go for it is reset. What a LAN has sent knows where it is `going`.
fn admit(mut near: TcpStream, from: SocketAddr, going: Option<SocketAddr>, edge: &Arc<Edge>) {
    let (goes, mut must_go) = oneshot::channel();
    let Ok((ticket, other)) = edge.guests().came(from.ip(), goes) else {
        tracing::debug!(%from, "no room");
        return refuse_for_lack_of_room(near, going, edge);
    };
    if let Some(other) = other {
        // One that has gone by itself does not hear it.
        let _ = other.send(());
    }
    // Who has left the LAN without a word keeps no place for ever.
    let _ =
        SockRef::from(&near).set_tcp_keepalive(&TcpKeepalive::new().with_time(SILENT).with_interval(SILENT_AGAIN));
    let edge = Arc::clone(edge);
    tokio::spawn(async move {
        tokio::select! {
            () = async {
                match going {
                    Some(going) => serve_lan(&mut near, from, going, &edge).await,
                    None => serve(&mut near, from, &edge).await,
                }
            } => {}
            Ok(()) = &mut must_go => end::broken(&near),
        }
        edge.guests().left(ticket);
    });
}

/// Answers that there is no room, in the language of the program; a LAN's client, and those beyond [`REFUSALS`], are reset.
fn refuse_for_lack_of_room(mut near: TcpStream, going: Option<SocketAddr>, edge: &Edge) {
    end::broken(&near);
    let Some(place) = Arc::clone(&edge.refusals).try_acquire_owned().ok().filter(|_| going.is_none()) else {
        return;
    };
    tokio::spawn(async move {
        let _place = place;
        let Ok(Ok((language, ..))) = timeout(LINGER, hear(&mut near)).await else { return };
        let problem = Problem::new(Status::NoRoom, "connection_limit_reached", "too many flows at once".to_owned());
        match language {
            Language::Socks => refuse(&mut near, &socks5::answer(code(problem.status))).await,
            Language::Connect => refuse(&mut near, problem.answer().as_bytes()).await,
        }
        end::whole(&near);
    });
}

/// A connection that was going to a server, and knows nothing of an edge.
async fn serve_lan(near: &mut TcpStream, from: SocketAddr, going: SocketAddr, edge: &Edge) {
    // What cannot be set changes the pace of small packets, nothing else.
    let _ = near.set_nodelay(true);
    let target = Target::new(&going.ip().to_canonical().to_string(), going.port());
    let target = target.filter(|target| !local::refuses(from, target));
    let Some(target) = target else { return end::broken(near) };
    match flow::open(edge, &target, Right::of_peer(from), nearby::Passes::BesideRoutes).await {
        Ok(way) => flow::carry_on(edge, way, &target, near, Vec::new()).await,
        Err(problem) => {
            tracing::debug!(%from, %going, why = problem.words, "not carried");
            end::broken(near);
        }
    }
}

/// The language of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Socks,
    Connect,
}

async fn serve(near: &mut TcpStream, from: SocketAddr, edge: &Edge) {
    // What cannot be set changes the pace of small packets, nothing else.
    let _ = near.set_nodelay(true);
    let Ok(Ok((language, target, early))) = timeout(PATIENCE, hear(near)).await else { return };
    let way = if local::refuses(from, &target) {
        let words = format!("{} is this machine's own, and not for others", target.host);
        Err(Problem::new(Status::Forbidden, "destination_ip_prohibited", words))
    } else {
        flow::open(edge, &target, Right::of_peer(from), nearby::may_pass(edge, from)).await
    };
    match (way, language) {
        (Ok(way), language) => {
            let told = match language {
                Language::Socks => near.write_all(&socks5::answer(socks5::SUCCEEDED)).await,
                Language::Connect => near.write_all(CONNECTED.as_bytes()).await,
            };
            if told.is_ok() {
                flow::carry_on(edge, way, &target, near, early).await;
            }
        }
        (Err(problem), Language::Socks) => refuse(near, &socks5::answer(code(problem.status))).await,
        (Err(problem), Language::Connect) => refuse(near, problem.answer().as_bytes()).await,
    }
}

/// RFC 1928 §6.
fn code(status: Status) -> u8 {
    match status {
        Status::Forbidden => socks5::NOT_ALLOWED,
        Status::Unreachable | Status::NoAnswer => socks5::HOST_UNREACHABLE,
        _ => socks5::GENERAL,
    }
}

/// Where it wants to go, and what it has sent behind that.
async fn hear(near: &mut TcpStream) -> io::Result<(Language, Target, Vec<u8>)> {
    let mut first = [0];
    near.peek(&mut first).await?;
    if first == [5] {
        return match socks5::hear(near).await? {
            Ok((host, port)) => match Target::new(&host, port) {
                Some(target) => Ok((Language::Socks, target, Vec::new())),
                None => refused(near, &socks5::answer(socks5::GENERAL)).await,
            },
            Err(code) => refused(near, &socks5::answer(code)).await,
        };
    }
    let mut bytes = Vec::with_capacity(512);
    loop {
        if near.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match parse(&bytes) {
            Ok(Some((Request::Connect(target), len))) => {
                let early = bytes.split_off(len);
                return Ok((Language::Connect, target, early));
            }
            Ok(None) => {}
            Err(problem) => return refused(near, Problem::answer(&problem).as_bytes()).await,
        }
    }
}

async fn refused<T>(near: &mut TcpStream, answer: &[u8]) -> io::Result<T> {
    refuse(near, answer).await;
    Err(io::ErrorKind::InvalidInput.into())
}

/// Says no, and closes so that it is heard.
async fn refuse(near: &mut TcpStream, answer: &[u8]) {
    let said = async {
        near.write_all(answer).await?;
        near.shutdown().await?;
        let (mut sink, mut left) = ([0; 1024], SENT_AHEAD);
        while left > 0 {
            let read = near.read(&mut sink).await?;
            left = left.checked_sub(read).filter(|_| read > 0).unwrap_or(0);
        }
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, said).await;
}
