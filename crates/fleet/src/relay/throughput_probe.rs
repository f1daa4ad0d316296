//! Throughput probe: an edge sends bytes to the relay, which counts and discards them (BASS §IV-B, B(c, s)).
//!
//! The request is `PUT /.well-known/marline/probe` with a chunked body (RFC 9112 §7.1), over a connection like any other of an edge. The
//! response contains a line each [`REPORT_INTERVAL`]: the bytes received so far, and the nanoseconds since the relay sent the head of the
//! response. The probe ends with the body or the connection, or after [`MAX_BYTES`] or [`MAX_TIME`]. An edge that has enough data
//! closes the connection.
//!
//! 1. Only edges authenticated by their certificate can probe. Bytes of a probe count against the edge's share of the relay's
//!    capacity, like those of a tunnel.
//! 2. Each edge may run one probe at a time, all edges together [`MAX_PROBES`], and none while the relay accepts no new tunnels.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout_at};

use super::edge_conn::EdgeConn;
use super::registry::ConnPermit;
use crate::identity::Name;
use crate::tunnel::{PROBE_PATH, PaceGrant, Pacer as _, Problem, Status};

/// Our choice: an edge needs one and a half seconds.
const MAX_TIME: Duration = Duration::from_secs(4);
/// Our choice: 67 Mbit/s for that long, which is enough to compare relays.
const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// Our choice: a fifteenth of the time that an edge measures.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Our choice: each probe needs a buffer.
const MAX_PROBES: usize = 64;
/// Our choice: the size of a tunnel's reads.
const READ_SIZE: usize = 64 * 1024;

const RESPONSE_HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n\
                    Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";

/// The edges that are probing.
#[derive(Debug, Default)]
pub(super) struct ActiveProbes(Mutex<BTreeSet<Name>>);

/// The permit of an edge to probe; released when dropped.
struct ProbePermit<'a>(&'a ActiveProbes, Name);

impl ActiveProbes {
    fn admit(&self, name: &Name) -> Result<ProbePermit<'_>, Problem> {
        let mut probing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if probing.len() >= MAX_PROBES {
            return Err(Problem::new(
                Status::ServiceUnavailable,
                "connection_limit_reached",
                "too many probes are running",
            ));
        }
        if !probing.insert(name.clone()) {
            let details = format!("{name} already runs a probe");
            return Err(Problem::new(Status::TooManyRequests, "connection_limit_reached", details));
        }
        Ok(ProbePermit(self, name.clone()))
    }
}

impl Drop for ProbePermit<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// The length of the request's head, if it is complete and that of a probe.
pub(super) fn parse_request(bytes: &[u8]) -> Option<usize> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(len)) = head.parse(bytes) else { return None };
    let chunked = |field: &httparse::Header<'_>| {
        field.name.eq_ignore_ascii_case("transfer-encoding") && field.value.eq_ignore_ascii_case(b"chunked")
    };
    let is_probe = head.method == Some("PUT") && head.path == Some(PROBE_PATH) && head.headers.iter().any(chunked);
    is_probe.then_some(len)
}

/// Counts the received bytes and reports them to the edge.
pub(super) async fn serve_probe(
    conn: &mut EdgeConn,
    early_data: &[u8],
    permit: &mut ConnPermit,
    probes: &ActiveProbes,
) -> Result<(), Problem> {
    let _permit = probes.admit(permit.name())?;
    if let Err(error) = receive(conn, early_data, permit).await {
        tracing::debug!(edge = %permit.name(), %error, "probe interrupted");
    }
    Ok(())
}

async fn receive(conn: &mut EdgeConn, early_data: &[u8], permit: &mut ConnPermit) -> io::Result<()> {
    conn.write_all(RESPONSE_HEAD.as_bytes()).await?;
    conn.flush().await?;
    let mut body = ChunkedBody::default();
    let mut buf = vec![0; READ_SIZE];
    let started_at = Instant::now();
    let deadline = tokio::time::Instant::now() + MAX_TIME;
    let (mut bytes, mut last_report) = (early_data.len() as u64, started_at);
    let mut is_open = body.feed(early_data)?;
    while is_open && bytes < MAX_BYTES {
        let granted = match permit.request(true, DataSize::from_bytes(READ_SIZE as u64)) {
            PaceGrant::Granted(size) => size,
            PaceGrant::RetryAfter(time) => {
                sleep(time.min(REPORT_INTERVAL)).await;
                if tokio::time::Instant::now() >= deadline {
                    break;
                }
                continue;
            }
        };
        let size = usize::try_from(granted.bytes()).unwrap_or(READ_SIZE).clamp(1, READ_SIZE);
        let read = timeout_at(deadline, conn.read(buf.get_mut(..size).unwrap_or_default())).await;
        let len = read.as_ref().ok().and_then(|read| read.as_ref().ok()).copied().unwrap_or_default();
        // The unused part of the grant goes back, also after a timeout or an error.
        permit.settle(true, granted, DataSize::from_bytes(len as u64));
        let Ok(read) = read else { break };
        if read? == 0 {
            return Ok(());
        }
        bytes += len as u64;
        is_open = body.feed(buf.get(..len).unwrap_or_default())?;
        if last_report.elapsed() >= REPORT_INTERVAL {
            last_report = Instant::now();
            send_count(conn, bytes, started_at.elapsed()).await?;
        }
    }
    send_count(conn, bytes, started_at.elapsed()).await?;
    conn.write_all(b"0\r\n\r\n").await?;
    conn.shutdown().await
}

async fn send_count(conn: &mut EdgeConn, bytes: u64, time: Duration) -> io::Result<()> {
    let line = format!("{bytes} {}\n", time.as_nanos());
    conn.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await?;
    conn.flush().await
}

/// Parser that finds the end of a chunked body.
#[derive(Debug, Default)]
struct ChunkedBody {
    /// The rest of the current chunk in bytes, including its line end.
    left: u64,
    line: Vec<u8>,
}

impl ChunkedBody {
    /// Consumes bytes; returns whether the body continues.
    fn feed(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        while !bytes.is_empty() {
            let skip = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= skip as u64;
            bytes = bytes.get(skip..).unwrap_or_default();
            let Some((first, remaining)) = bytes.split_first() else { break };
            bytes = remaining;
            self.line.push(*first);
            if *first == b'\n' {
                match httparse::parse_chunk_size(&self.line) {
                    Ok(httparse::Status::Complete((_, 0))) => return Ok(false),
                    Ok(httparse::Status::Complete((_, size))) => self.left = size.saturating_add(2),
                    _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "invalid chunk size")),
                }
                self.line.clear();
            } else if self.line.len() > 64 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the chunk size line is too long"));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_recognized_by_its_path_and_a_chunked_body() {
        let head = format!("PUT {PROBE_PATH} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(parse_request(format!("{head}5\r\n").as_bytes()), Some(head.len()));
        assert_eq!(parse_request(&head.as_bytes()[..20]), None);
        for other in [head.replace("PUT", "POST"), head.replace("probe", "prob"), head.replace("chunked", "x")] {
            assert_eq!(parse_request(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_body_ends_with_its_last_chunk_however_it_is_split() {
        let text = b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
        for cut in 1..text.len() {
            let mut body = ChunkedBody::default();
            let mut open = Vec::new();
            for part in text.chunks(cut) {
                open.push(body.feed(part).unwrap());
                if open.last() == Some(&false) {
                    break;
                }
            }
            assert_eq!(open.iter().filter(|open| !**open).count(), 1, "{cut}");
        }
        assert!(ChunkedBody::default().feed(b"hello\r\n").is_err());
        assert!(ChunkedBody::default().feed(&[b'1'; 100]).is_err());
    }

    #[test]
    fn an_edge_runs_one_probe_at_a_time() {
        let probes = ActiveProbes::default();
        let name: Name = "cam-1".parse().unwrap();
        let permit = probes.admit(&name).ok();
        assert_eq!(probes.admit(&name).err().unwrap().status, Status::TooManyRequests);
        assert!(probes.admit(&"cam-2".parse().unwrap()).is_ok());
        drop(permit);
        assert!(probes.admit(&name).is_ok());
    }
}
