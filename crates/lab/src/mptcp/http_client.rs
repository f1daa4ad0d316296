//! Downloads over MPTCP or plain TCP, on one persistent HTTP connection.
//!
//! 1. It behaves like any application: it does not know about paths, and the protocol is the only special option of
//!    its sockets.
//! 2. Time counts from before the connection attempt to the last byte.
//! 3. Use it on a thread in the client namespace ([`Lab::run_at_client`](crate::Lab::run_at_client)).

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::Bitrate;
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, Socket, Type};

use crate::http::HttpConnection;
use crate::network::SERVER;

/// Protocol of the client's sockets, and the link they start on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocketProtocol<'a> {
    /// MPTCP; the first subflow uses the default route.
    Mptcp,
    /// Plain TCP, bound to this device.
    Tcp(&'a str),
}

/// An open connection to the lab's server.
#[derive(Debug)]
pub(crate) struct Connection {
    http: HttpConnection,
}

/// Result of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct DownloadResult {
    /// Bytes of the body.
    pub(crate) bytes: u64,
    /// Time from the start to the last byte.
    pub(crate) time: Duration,
    /// Bytes per slot of [`SLOT`] since the start.
    pub(crate) timeline: Vec<u64>,
    /// Longest time without data, after the first byte.
    pub(crate) longest_pause: Duration,
    /// SHA-256 in hexadecimal digits; `None` if not requested or if the body is incomplete.
    pub(crate) sha256: Option<String>,
}

/// Length of a slot of [`DownloadResult::timeline`].
pub(crate) const SLOT: Duration = Duration::from_millis(100);

impl DownloadResult {
    /// Mean rate from this time on, in bytes per second.
    pub(crate) fn rate_from(&self, from: Duration) -> f64 {
        let slot = (from.as_nanos() / SLOT.as_nanos()) as usize;
        let bytes: u64 = self.timeline.iter().skip(slot).sum();
        bytes as f64 / self.time.saturating_sub(from).as_secs_f64().max(1e-3)
    }
}

/// When a download ends, and whether it is hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopCondition {
    /// The download fails after this time.
    pub(crate) limit: Duration,
    /// The download ends after this time; the bytes received until then are the result.
    pub(crate) stop_after: Option<Duration>,
    /// Whether to compute the SHA-256.
    pub(crate) wants_sha256: bool,
}

impl Connection {
    /// Connects to port 80 of the lab's server.
    pub(crate) fn open(socket_protocol: SocketProtocol<'_>, limit: Duration) -> io::Result<Self> {
        let protocol = if socket_protocol == SocketProtocol::Mptcp { Protocol::MPTCP } else { Protocol::TCP };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
        if let SocketProtocol::Tcp(device) = socket_protocol {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        socket.connect_timeout(&std::net::SocketAddr::from((SERVER, 80)).into(), limit)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok(Self { http: HttpConnection::new(stream) })
    }

    /// Requests a path and reads the response. `start` is the time from which durations count.
    pub(crate) fn get(&mut self, path: &str, start: Instant, until: StopCondition) -> io::Result<DownloadResult> {
        self.http.get(&SERVER.to_string(), &format!("/{path}"), &BROWSER_FIELDS)?;
        let length = self.read_head(start, until.limit)?;
        let mut got = DownloadResult::default();
        let mut digest = until.wants_sha256.then(Sha256::new);
        let (mut buffer, mut last) = (vec![0; 256 * 1024], None::<Duration>);
        while got.bytes < length {
            let count = self.read_some(&mut buffer)?;
            let now = start.elapsed();
            match count {
                None if now > until.limit => return Err(timeout_error(got.bytes, length, now)),
                None => {}
                Some(0) => return Err(io::Error::other(format!("ended after {} of {length} bytes", got.bytes))),
                Some(count) => {
                    if let Some(digest) = &mut digest {
                        digest.update(buffer.get(..count).unwrap_or_default());
                    }
                    let slot = (now.as_nanos() / SLOT.as_nanos()) as usize;
                    got.timeline.resize(got.timeline.len().max(slot + 1), 0);
                    got.timeline[slot] += count as u64;
                    got.bytes += count as u64;
                    got.longest_pause =
                        got.longest_pause.max(last.map_or(Duration::ZERO, |last| now.saturating_sub(last)));
                    (got.time, last) = (now, Some(now));
                }
            }
            if until.stop_after.is_some_and(|deadline| now >= deadline) {
                return Ok(got);
            }
            if now > until.limit {
                return Err(timeout_error(got.bytes, length, now));
            }
        }
        got.sha256 = digest.map(|digest| data_encoding::HEXLOWER.encode(&digest.finalize()));
        Ok(got)
    }

    /// Requests a path and reads at most at this rate until `is_over` is set. Returns the number of bytes.
    pub(crate) fn read_slowly(mut self, path: &str, rate: Bitrate, is_over: &AtomicBool) -> io::Result<u64> {
        self.http.get(&SERVER.to_string(), &format!("/{path}"), &[])?;
        let (start, mut bytes, mut part) = (Instant::now(), 0, [0; 8192]);
        while !is_over.load(Ordering::Relaxed) {
            if bytes > (rate * start.elapsed()).bytes() {
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            match self.read_some(&mut part)? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes += count.unwrap_or(0) as u64,
            }
        }
        Ok(bytes)
    }

    /// Reads the head of a response and returns the length of its body.
    fn read_head(&mut self, start: Instant, limit: Duration) -> io::Result<u64> {
        let head = self.http.read_head(|| {
            check_not_stopped()?;
            if start.elapsed() > limit { Err(timeout_error(0, 0, start.elapsed())) } else { Ok(()) }
        })?;
        let length = head.length.filter(|_| head.status == 200);
        length.ok_or_else(|| io::Error::other(format!("the server responds `{} {}`", head.status, head.reason)))
    }

    /// Reads some bytes; `None` if none arrived within [`POLL_INTERVAL`].
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let count = self.http.read(buffer)?;
        if count.is_none() {
            check_not_stopped()?;
        }
        Ok(count)
    }
}

/// Fails if the user has interrupted the program.
fn check_not_stopped() -> io::Result<()> {
    if marline_sys::signal::last_caught().is_some() { Err(io::Error::other(STOPPED_BY_USER)) } else { Ok(()) }
}

/// Downloads over a new connection.
pub(crate) fn download(
    socket_protocol: SocketProtocol<'_>,
    path: &str,
    until: StopCondition,
) -> io::Result<DownloadResult> {
    let start = Instant::now();
    Connection::open(socket_protocol, until.limit)?.get(path, start, until)
}

fn timeout_error(bytes: u64, length: u64, time: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{bytes} of {length} bytes after {:.0} s", time.as_secs_f64()))
}

/// Error text when the user interrupts.
pub(crate) const STOPPED_BY_USER: &str = "stopped";
/// Further request headers, as browsers send them, without cookies.
const BROWSER_FIELDS: [(&str, &str); 4] = [
    (
        "User-Agent",
        "Mozilla/5.0 (Linux; Android 4.4.2) AppleWebKit/537.36 (KHTML, like Gecko) Mobile Safari/537.36",
    ),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"),
    ("Accept-Language", "en-US,en;q=0.8"),
    ("Connection", "keep-alive"),
];
/// Timeout of a read, after which limits are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_excludes_earlier_bytes() {
        let mut timeline = vec![1_000_000; 50];
        timeline.extend([2_000_000; 50]);
        let got = DownloadResult {
            bytes: 150_000_000,
            time: Duration::from_secs(10),
            timeline,
            ..DownloadResult::default()
        };
        assert_eq!(got.rate_from(Duration::from_secs(5)), 20e6);
        assert_eq!(got.rate_from(Duration::ZERO), 15e6);
    }
}
