//! Where programs reach the edge: SOCKS5 (RFC 1928) and CONNECT (RFC 9110 §9.3.6) on one port.
//!
//! In: a program's connection. Out: where it wants to go, and the answers that its language has.
//!
//! 1. The first byte tells which language it is: 5 is SOCKS5's version, and no method of HTTP begins with it.
//! 2. Listeners are the loopback's unless the user names others: whoever can reach one may use it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_net::proxy::socks5;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Edge, flow};
use crate::tunnel::{CONNECTED, Problem, Request, Status, Target, parse};

/// chosen: a program on this machine or beside it.
const PATIENCE: Duration = Duration::from_secs(10);
const BREATH: Duration = Duration::from_millis(50);

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
        for listener in self.listeners {
            accepting.spawn(accept(listener, Arc::clone(edge)));
        }
        accepting.join_all().await;
    }
}

async fn accept(listener: TcpListener, edge: Arc<Edge>) {
    loop {
        match listener.accept().await {
            Ok((near, _)) => {
                let edge = Arc::clone(&edge);
                tokio::spawn(async move { serve(near, &edge).await });
            }
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// The language of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Socks,
    Connect,
}

async fn serve(mut near: TcpStream, edge: &Edge) {
    // What cannot be set changes the pace of small packets, nothing else.
    let _ = near.set_nodelay(true);
    let Ok(Ok((language, target, early))) = timeout(PATIENCE, hear(&mut near)).await else { return };
    let way = flow::open(edge, &target).await;
    let told = match (&way, language) {
        (Ok(_), Language::Socks) => near.write_all(&socks5::answer(socks5::SUCCEEDED)).await,
        (Ok(_), Language::Connect) => near.write_all(CONNECTED.as_bytes()).await,
        (Err(problem), Language::Socks) => near.write_all(&socks5::answer(code(problem.status))).await,
        (Err(problem), Language::Connect) => near.write_all(problem.answer().as_bytes()).await,
    };
    if let (Ok(way), Ok(())) = (way, told) {
        flow::carry_on(edge, way, near, early).await;
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
                None => refuse(near, &socks5::answer(socks5::GENERAL)).await,
            },
            Err(code) => refuse(near, &socks5::answer(code)).await,
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
            Err(problem) => return refuse(near, Problem::answer(&problem).as_bytes()).await,
        }
    }
}

async fn refuse<T>(near: &mut TcpStream, answer: &[u8]) -> io::Result<T> {
    near.write_all(answer).await?;
    near.shutdown().await?;
    // What it has sent is read away, so that the answer is not lost with a reset.
    let mut sink = [0; 1024];
    while near.read(&mut sink).await? > 0 {}
    Err(io::ErrorKind::InvalidInput.into())
}
