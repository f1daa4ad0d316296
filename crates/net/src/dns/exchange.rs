//! One server asked for one name over one link.
//!
//! In: the server, the device to bind to, the name, the families. Out: the addresses of both families, or why not.
//!
//! 1. Both questions go out at once from one socket with its own port and random numbers (RFC 5452 §4).
//! 2. Once one family has answered with addresses the other gets 50 ms more (RFC 8305 §3).
//! 3. Silence: the open questions are sent once more. A truncated answer is fetched over TCP (RFC 7766 §5). A server
//!    that does not know EDNS is asked without (RFC 6891 §7).
//! 4. Datagrams that answer something else are ignored, and do not end the waiting.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use super::message::{FORMAT_ERROR, Family, NOT_IMPLEMENTED, Reply, question, reply};

/// What a server gives for a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Addresses of both families, in the server's order; never empty.
    pub(super) addresses: Vec<IpAddr>,
    /// How long that is true.
    pub(super) ttl: Duration,
}

/// Why a server gives no address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Nothing {
    /// It answers that there is no such name, or no address: another server of the link would say the same.
    Denied(String),
    /// It did not answer, or cannot: another server might.
    Failed(String),
}

/// chosen: how long each round waits. The first covers the slowest satellite's round trip; both together are shorter
/// than a user's patience with a dead server (glibc: 5 s).
const ROUNDS: [Duration; 2] = [Duration::from_millis(800), Duration::from_millis(1200)];

/// RFC 8305 §3, "Resolution Delay".
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// A question that has no answer yet.
struct Open {
    family: Family,
    id: u16,
    edns: bool,
}

impl Open {
    fn new(family: Family) -> Self {
        Self { family, id: random_id(), edns: true }
    }
}

/// Asks the server, from this device if one is given.
pub(super) async fn ask(
    server: SocketAddr,
    device: Option<&str>,
    name: &str,
    families: &[Family],
) -> Result<Found, Nothing> {
    let failed = |error: io::Error| Nothing::Failed(format!("DNS server {server}: {error}"));
    let socket = udp(server, device).map_err(failed)?;
    let mut talk = Talk {
        server,
        device,
        name,
        open: families.iter().copied().map(Open::new).collect(),
        found: None,
        why: None,
    };
    let mut buffer = vec![0; 4096];
    for round in ROUNDS {
        for open in &talk.open {
            talk.send(&socket, open).await.map_err(failed)?;
        }
        let mut until = Instant::now() + round;
        while !talk.open.is_empty() {
            match timeout_at(until, socket.recv(&mut buffer)).await {
                Ok(received) => {
                    let bytes = buffer.get(..received.map_err(failed)?).unwrap_or_default();
                    if talk.hear(&socket, bytes).await.map_err(failed)? && talk.found.is_some() {
                        until = until.min(Instant::now() + RESOLUTION_DELAY);
                    }
                }
                Err(_) => break,
            }
        }
        if talk.found.is_some() || talk.open.is_empty() {
            break;
        }
    }
    let silent = || Nothing::Failed(format!("DNS server {server} does not answer"));
    talk.found.ok_or_else(|| talk.why.filter(|_| talk.open.is_empty()).unwrap_or_else(silent))
}

/// The state of one exchange.
struct Talk<'a> {
    server: SocketAddr,
    device: Option<&'a str>,
    name: &'a str,
    open: Vec<Open>,
    found: Option<Found>,
    why: Option<Nothing>,
}

impl Talk<'_> {
    async fn send(&self, socket: &UdpSocket, open: &Open) -> io::Result<()> {
        let bytes = self.bytes(open)?;
        // A server that was closed a moment ago makes this fail, and the next round may succeed.
        socket.send(&bytes).await.map(|_| ())
    }

    fn bytes(&self, open: &Open) -> io::Result<Vec<u8>> {
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` cannot be a host's name", self.name));
        question(open.id, self.name, open.family, open.edns).ok_or_else(invalid)
    }

    /// Takes a datagram; whether it answered a question.
    async fn hear(&mut self, socket: &UdpSocket, bytes: &[u8]) -> io::Result<bool> {
        let answers = |open: &Open| reply(bytes, open.id, self.name, open.family);
        let Some((at, said)) = self.open.iter().enumerate().find_map(|(at, open)| Some((at, answers(open)?)))
        else {
            return Ok(false);
        };
        let mut open = self.open.swap_remove(at);
        match said {
            Reply::Truncated => {
                let whole = timeout(ROUNDS[1], self.over_tcp(&open)).await;
                match whole.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    Ok(said) => self.settle(said),
                    Err(error) => self.fail(format!("over TCP: {error}")),
                }
            }
            Reply::Failure(FORMAT_ERROR | NOT_IMPLEMENTED) if open.edns => {
                open.edns = false;
                self.send(socket, &open).await?;
                self.open.push(open);
            }
            said => self.settle(said),
        }
        Ok(true)
    }

    fn settle(&mut self, said: Reply) {
        match said {
            Reply::Addresses { addresses, ttl } if !addresses.is_empty() => {
                let found = self.found.get_or_insert_with(|| Found { addresses: Vec::new(), ttl });
                found.addresses.extend(addresses);
                found.ttl = found.ttl.min(ttl);
            }
            Reply::Addresses { .. } => {
                self.why.get_or_insert_with(|| {
                    Nothing::Denied(format!("{} has no address that this link can use", self.name))
                });
            }
            Reply::NoSuchName => {
                self.why = Some(Nothing::Denied(format!("{}: no such name, says {}", self.name, self.server.ip())));
                self.open.clear();
            }
            Reply::Failure(code) => self.fail(format!("response code {code}")),
            Reply::Truncated => self.fail("truncated even over TCP".to_owned()),
        }
    }

    fn fail(&mut self, why: String) {
        self.why = Some(Nothing::Failed(format!("DNS server {}: {why}", self.server)));
    }

    /// The same question over TCP.
    async fn over_tcp(&self, open: &Open) -> io::Result<Reply> {
        let socket = if self.server.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind_device(self.device.map(str::as_bytes))?;
        let mut stream = socket.connect(self.server).await?;
        let question = self.bytes(open)?;
        let framed = [&(question.len() as u16).to_be_bytes()[..], &question].concat();
        stream.write_all(&framed).await?;
        let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut bytes).await?;
        let other = || io::Error::new(io::ErrorKind::InvalidData, "it answers something else");
        reply(&bytes, open.id, self.name, open.family).ok_or_else(other)
    }
}

/// A datagram socket that talks to this server only.
fn udp(server: SocketAddr, device: Option<&str>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind_device(device.map(str::as_bytes))?;
    socket.connect(&server.into())?;
    UdpSocket::from_std(socket.into())
}

/// A number that nobody can guess: std seeds its hash keys from the kernel's random source.
fn random_id() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}
