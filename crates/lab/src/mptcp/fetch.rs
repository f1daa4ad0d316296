//! A small client of HTTP/1.1 whose sockets are MPTCP or plain TCP: one connection, kept, one request at a time.
//!
//! In: which protocol, over which device, what. Out: how much came, when, and its checksum if that is wanted.
//!
//! 1. It is an application like any other: it knows nothing of paths, and no option of its sockets is special but the
//!    protocol.
//! 2. The clock begins before the connection does, and stops with the last byte.
//! 3. Use it on a thread at the client's end ([`Lab::inside`](crate::Lab::inside)).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, Socket, Type};

use crate::network::SERVER;

/// What a client's sockets speak, and over what they begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Speaks<'a> {
    /// MPTCP; its first subflow takes the default route.
    Mptcp,
    /// Plain TCP over this device.
    Tcp(&'a str),
}

/// An open connection to the lab's server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// What was read behind the head of an answer.
    early: Vec<u8>,
}

/// What came of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Got {
    /// Bytes of the body.
    pub(crate) bytes: u64,
    /// From the beginning to the last of them.
    pub(crate) time: Duration,
    /// Bytes by slots of [`SLOT`] since the beginning.
    pub(crate) timeline: Vec<u64>,
    /// The longest time in which nothing came, from the first byte on.
    pub(crate) pause: Duration,
    /// In hexadecimal digits; none: it was not asked for, or it is not whole.
    pub(crate) sha256: Option<String>,
}

/// The length of a slot of [`Got::timeline`].
pub(crate) const SLOT: Duration = Duration::from_millis(100);

impl Got {
    /// Bytes a second from this time on.
    pub(crate) fn rate_from(&self, from: Duration) -> f64 {
        let slot = (from.as_nanos() / SLOT.as_nanos()) as usize;
        let bytes: u64 = self.timeline.iter().skip(slot).sum();
        bytes as f64 / self.time.saturating_sub(from).as_secs_f64().max(1e-3)
    }
}

/// When to stop, and what to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    /// Longer than this nobody waits: an error.
    pub(crate) limit: Duration,
    /// After this time it is left as it is: what came until then is the result.
    pub(crate) stay: Option<Duration>,
    /// Whether the checksum is wanted.
    pub(crate) sum: bool,
}

impl Connection {
    /// Connects to port 80 of the lab's server.
    pub(crate) fn open(speaks: Speaks<'_>, limit: Duration) -> io::Result<Self> {
        let protocol = if speaks == Speaks::Mptcp { Protocol::MPTCP } else { Protocol::TCP };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
        if let Speaks::Tcp(device) = speaks {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        socket.connect_timeout(&std::net::SocketAddr::from((SERVER, 80)).into(), limit)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TURN))?;
        Ok(Self { stream, early: Vec::new() })
    }

    /// Asks for a path and reads the answer. `began`: when the clock did.
    pub(crate) fn get(&mut self, path: &str, began: Instant, until: Until) -> io::Result<Got> {
        write!(self.stream, "GET /{path} HTTP/1.1\r\nHost: {SERVER}\r\n{HEAD}\r\n")?;
        let length = self.head(began, until.limit)?;
        let mut got = Got::default();
        let mut digest = until.sum.then(Sha256::new);
        let (mut buffer, mut last) = (vec![0; 256 * 1024], None::<Duration>);
        while got.bytes < length {
            let (count, part) = match std::mem::take(&mut self.early) {
                early if early.is_empty() => (self.some(&mut buffer)?, &buffer),
                early => {
                    buffer.get_mut(..early.len()).ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(&early);
                    (Some(early.len()), &buffer)
                }
            };
            let now = began.elapsed();
            match count {
                None if now > until.limit => return Err(too_late(got.bytes, length, now)),
                None => {}
                Some(0) => return Err(io::Error::other(format!("it ended after {} of {length} bytes", got.bytes))),
                Some(count) => {
                    if let Some(digest) = &mut digest {
                        digest.update(part.get(..count).unwrap_or_default());
                    }
                    let slot = (now.as_nanos() / SLOT.as_nanos()) as usize;
                    got.timeline.resize(got.timeline.len().max(slot + 1), 0);
                    got.timeline[slot] += count as u64;
                    got.bytes += count as u64;
                    got.pause = got.pause.max(last.map_or(Duration::ZERO, |last| now.saturating_sub(last)));
                    (got.time, last) = (now, Some(now));
                }
            }
            if until.stay.is_some_and(|stay| now >= stay) {
                return Ok(got);
            }
            if now > until.limit {
                return Err(too_late(got.bytes, length, now));
            }
        }
        got.sha256 = digest.map(|digest| data_encoding::HEXLOWER.encode(&digest.finalize()));
        Ok(got)
    }

    /// Asks for a path and reads no faster than this, until told to stop; how much came.
    pub(crate) fn trickle(mut self, path: &str, rate: Bitrate, over: &AtomicBool) -> io::Result<u64> {
        write!(self.stream, "GET /{path} HTTP/1.1\r\nHost: {SERVER}\r\n\r\n")?;
        let (began, mut bytes, mut part) = (Instant::now(), 0, [0; 8192]);
        while !over.load(Ordering::Relaxed) {
            if bytes > (rate * began.elapsed()).bytes() {
                std::thread::sleep(TURN);
                continue;
            }
            match self.some(&mut part)? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes += count.unwrap_or(0) as u64,
            }
        }
        Ok(bytes)
    }

    /// Reads the head of an answer; the length of its body.
    fn head(&mut self, began: Instant, limit: Duration) -> io::Result<u64> {
        let mut held = Vec::new();
        let mut part = [0; 4096];
        loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                self.early = held.split_off(end + 4);
                return length_of(&held).ok_or_else(|| {
                    let first = held.split(|byte| *byte == b'\r').next().unwrap_or_default();
                    io::Error::other(format!("the server answers `{}`", String::from_utf8_lossy(first)))
                });
            }
            match self.some(&mut part)? {
                None if began.elapsed() > limit => return Err(too_late(0, 0, began.elapsed())),
                None => {}
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(length) => held.extend(part.get(..length).unwrap_or_default()),
            }
        }
    }

    /// Some bytes; none: nothing came for a while.
    fn some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.stream.read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                match marline_sys::signal::caught() {
                    Some(_) => Err(io::Error::other(STOPPED)),
                    None => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }
}

/// A download over a connection of its own.
pub(crate) fn download(speaks: Speaks<'_>, path: &str, until: Until) -> io::Result<Got> {
    let began = Instant::now();
    Connection::open(speaks, until.limit)?.get(path, began, until)
}

/// The body's length, of an answer with status 200.
fn length_of(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    lines.next()?.strip_prefix("HTTP/1.1 200 ")?;
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

fn too_late(bytes: u64, length: u64, time: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{bytes} of {length} bytes after {:.0} s", time.as_secs_f64()))
}

/// The user wants an end.
pub(crate) const STOPPED: &str = "stopped";
/// The rest of a request's head: as much as browsers say of themselves, cookies left out.
const HEAD: &str = "User-Agent: Mozilla/5.0 (Linux; Android 4.4.2) AppleWebKit/537.36 (KHTML, like Gecko) Mobile Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.8\r\nConnection: keep-alive\r\n";
/// How long a read waits before it looks at the clock.
const TURN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_the_length_of_what_was_found() {
        assert_eq!(length_of(b"HTTP/1.1 200 OK\r\nContent-length: 12\r\n\r\n"), Some(12));
        assert_eq!(length_of(b"HTTP/1.1 404 Not Found\r\nContent-length: 12\r\n\r\n"), None);
        assert_eq!(length_of(b"\xff"), None);
    }

    #[test]
    fn the_rate_leaves_out_what_came_before() {
        let mut timeline = vec![1_000_000; 50];
        timeline.extend([2_000_000; 50]);
        let got = Got { bytes: 150_000_000, time: Duration::from_secs(10), timeline, ..Got::default() };
        assert_eq!(got.rate_from(Duration::from_secs(5)), 20e6);
        assert_eq!(got.rate_from(Duration::ZERO), 15e6);
    }
}
