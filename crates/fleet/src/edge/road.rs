//! The way to a relay: connections over MPTCP and TLS, some of which wait ready.
//!
//! In: relays, and a target. Out: a tunnel to it through one of them, or why not.
//!
//! 1. Each relay has its addresses, tried one after the other, and a name that its certificate must have.
//! 2. [`Config::warm`](super::Config::warm) connections to the first relay that works wait ready: a flow takes the oldest one that is still open, and
//!    another one is made at once. They are made anew before the relay gives them up ([`FRESH`]).
//! 3. A relay that cannot be reached is asked after the others until [`PARDON`] has passed. What a relay answers to a request
//!    is the server's matter or the rules', and no reason to ask another one, but for "no room": then the next one is asked.
//! 4. Data in the socket's queue that was not sent yet is kept short ([`NOT_SENT`]): what waits there cannot go over another
//!    link any more, and a live stream's newest picture would wait behind it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Config;
use crate::tunnel::{Target, Wire};

/// chosen: less than the five minutes for which a relay waits.
const FRESH: Duration = Duration::from_secs(240);
/// chosen: how soon a relay that has come back is used again.
const PARDON: Duration = Duration::from_secs(10);
/// chosen: three SYNs would be 7 s, and a live stream cannot wait so long; another relay may be near.
const CONNECT: Duration = Duration::from_millis(1500);
const HANDSHAKE: Duration = Duration::from_secs(3);
/// What a relay needs to reach a server, and then some.
const ANSWER: Duration = Duration::from_secs(16);
/// chosen: what 100 Mbit/s send in 10 ms.
const NOT_SENT: u32 = 128 * 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(10);
/// The longest answer of a relay.
const LONGEST: usize = 4096;

/// Where a relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayAt {
    /// The name in its certificate.
    pub name: ServerName<'static>,
    /// Its addresses, the best first.
    pub addresses: Vec<SocketAddr>,
}

pub(super) type Road = TlsStream<Wire>;

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(super) enum RoadError {
    /// No relay could be reached, or none had room: the last one's words.
    #[error("no relay can be had: {0}")]
    None(String),
    /// A relay has answered: its status, and its words.
    #[error("{words}")]
    Refused { status: u16, words: String },
}

/// All ways.
#[derive(Debug)]
pub(super) struct Roads {
    relays: Vec<RelayAt>,
    warm: usize,
    tls: Arc<rustls::ClientConfig>,
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Ready connections, the oldest first: to which relay, since when.
    ready: VecDeque<(usize, Instant, Road)>,
    /// When a relay failed last.
    failed: Vec<Option<Instant>>,
}

impl Roads {
    pub(super) fn new(config: &Config, tls: Arc<rustls::ClientConfig>) -> Self {
        let state = State { failed: vec![None; config.relays.len()], ..State::default() };
        Self {
            relays: config.relays.clone(),
            warm: config.warm,
            tls,
            state: Mutex::new(state),
            taken: Notify::new(),
        }
    }

    /// A tunnel, the relay's number, and what came behind its answer. What is in `early` goes with the request.
    pub(super) async fn tunnel(&self, target: &Target, early: &[u8]) -> Result<(Road, usize, Vec<u8>), RoadError> {
        let mut last = "none is named".to_owned();
        'relays: for at in self.order() {
            // A connection that waited may have been given up by the other end: then a new one is made.
            while let Some(road) = self.take(at) {
                match ask(road, target, early).await {
                    Ok((road, rest)) => return Ok((road, at, rest)),
                    Err(Asked::Refused(status, words)) if status != NO_ROOM => {
                        return Err(RoadError::Refused { status, words });
                    }
                    Err(Asked::Refused(_, words)) => {
                        last = words;
                        self.note(at, Some(Instant::now()));
                        continue 'relays;
                    }
                    Err(Asked::Broke(_)) => {}
                }
            }
            let asked = match self.connect(at).await {
                Ok(road) => ask(road, target, early).await,
                Err(error) => Err(Asked::Broke(error)),
            };
            match asked {
                Ok((road, rest)) => {
                    self.note(at, None);
                    return Ok((road, at, rest));
                }
                Err(Asked::Refused(status, words)) if status != NO_ROOM => {
                    return Err(RoadError::Refused { status, words });
                }
                Err(Asked::Refused(_, words)) => last = words,
                Err(Asked::Broke(error)) => last = format!("{}: {error}", self.name(at)),
            }
            self.note(at, Some(Instant::now()));
            tracing::warn!(relay = self.name(at), why = last, "a relay does not carry");
        }
        Err(RoadError::None(last))
    }

    /// Keeps connections ready until dropped.
    pub(super) async fn keep_warm(&self) -> Infallible {
        loop {
            let Some(at) = self.order().first().copied() else { std::future::pending().await };
            self.drop_old(at);
            if self.lock().ready.len() < self.warm {
                match self.connect(at).await {
                    Ok(road) => {
                        self.note(at, None);
                        self.lock().ready.push_back((at, Instant::now(), road));
                        continue;
                    }
                    Err(error) => {
                        tracing::debug!(relay = self.name(at), %error, "not ready");
                        self.note(at, Some(Instant::now()));
                        tokio::time::sleep(CONNECT).await;
                    }
                }
            } else {
                let _ = timeout(FRESH / 8, self.taken.notified()).await;
            }
        }
    }

    /// Relays in the order in which they are asked.
    fn order(&self) -> Vec<usize> {
        let state = self.lock();
        let bad = |at: &usize| {
            state.failed.get(*at).is_some_and(|since| since.is_some_and(|since| since.elapsed() < PARDON))
        };
        let (last, first): (Vec<usize>, Vec<usize>) = (0..self.relays.len()).partition(bad);
        [first, last].concat()
    }

    fn take(&self, at: usize) -> Option<Road> {
        let mut state = self.lock();
        let found = state.ready.iter().position(|(relay, since, _)| *relay == at && since.elapsed() < FRESH)?;
        let (_, _, road) = state.ready.remove(found)?;
        drop(state);
        self.taken.notify_one();
        Some(road)
    }

    /// Those that are too old, or lead to a relay that is no longer the first.
    fn drop_old(&self, first: usize) {
        self.lock().ready.retain(|(at, since, _)| *at == first && since.elapsed() < FRESH);
    }

    fn note(&self, at: usize, failed: Option<Instant>) {
        if let Some(since) = self.lock().failed.get_mut(at) {
            *since = failed;
        }
    }

    fn name(&self, at: usize) -> String {
        self.relays.get(at).map(|relay| relay.name.to_str().into_owned()).unwrap_or_default()
    }

    /// A connection to this relay.
    async fn connect(&self, at: usize) -> io::Result<Road> {
        let relay = self.relays.get(at).ok_or(io::ErrorKind::NotFound)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
        for address in &relay.addresses {
            match timeout(CONNECT, connect(*address)).await {
                Ok(Ok(socket)) => {
                    let shaken =
                        TlsConnector::from(Arc::clone(&self.tls)).connect(relay.name.clone(), Wire::new(socket));
                    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time");
                    return timeout(HANDSHAKE, shaken).await.map_err(late)?;
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "no answer"),
            }
        }
        Err(last)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// HTTP's status of a relay that has no room or drains.
const NO_ROOM: u16 = 503;

enum Asked {
    Refused(u16, String),
    Broke(io::Error),
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let domain = Domain::for_address(address);
    let new = |protocol| Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(protocol));
    // A kernel without MPTCP has one link at a time.
    let socket = new(Protocol::MPTCP).or_else(|_| new(Protocol::TCP))?;
    // Older kernels refuse some of these for MPTCP: then small packets wait, or a dead relay is found later.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_keepalive(true);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE_AGAIN));
    let socket = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
    // MPTCP knows this option since Linux 5.19 or so; without it more waits in the queue.
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(NOT_SENT);
    Ok(socket)
}

/// Asks for a tunnel.
async fn ask(mut road: Road, target: &Target, early: &[u8]) -> Result<(Road, Vec<u8>), Asked> {
    let asked = async {
        let head = format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", target.authority());
        road.write_all(&[head.as_bytes(), early].concat()).await?;
        road.flush().await?;
        let mut bytes = Vec::with_capacity(512);
        loop {
            if road.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, words, len)) = answer(&bytes)? {
                return Ok((status, words, bytes.split_off(len)));
            }
        }
    };
    match timeout(ANSWER, asked).await {
        Ok(Ok((200, _, rest))) => Ok((road, rest)),
        Ok(Ok((status, words, _))) => Err(Asked::Refused(status, words)),
        Ok(Err(error)) => Err(Asked::Broke(error)),
        Err(_) => Err(Asked::Broke(io::Error::new(io::ErrorKind::TimedOut, "no answer"))),
    }
}

/// A relay's answer: its status, what it says, and how long its head is; none: there is more to come.
pub(crate) fn answer(bytes: &[u8]) -> io::Result<Option<(u16, String, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => {
            let status = head.code.ok_or_else(|| bad("an answer without a status"))?;
            let said = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("proxy-status"));
            let words = said.map_or(head.reason.unwrap_or_default().to_owned(), |field| {
                let text = String::from_utf8_lossy(field.value).into_owned();
                text.split_once("details=\"")
                    .map_or(text.clone(), |(_, rest)| rest.trim_end_matches('"').to_owned())
            });
            Ok(Some((status, words, len)))
        }
        Ok(httparse::Status::Partial) if bytes.len() < LONGEST => Ok(None),
        Ok(httparse::Status::Partial) => Err(bad("the answer is too long")),
        Err(error) => Err(bad(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::{Problem, Status};

    #[test]
    fn a_relays_answers_are_understood() {
        assert_eq!(
            answer(crate::tunnel::CONNECTED.as_bytes()).unwrap(),
            Some((200, "Connection established".to_owned(), 39))
        );
        let problem = Problem::new(Status::NoRoom, "connection_limit_reached", "this relay is draining").answer();
        let (status, words, _) = answer(problem.as_bytes()).unwrap().unwrap();
        assert_eq!((status, words.as_str()), (503, "this relay is draining"));
        assert!(answer(&problem.as_bytes()[..20]).unwrap().is_none());
        assert!(answer(b"SSH-2.0-x\r\n").is_err());
        assert!(answer(&[b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &[b'y'; 5000]].concat()).is_err());
    }
}
