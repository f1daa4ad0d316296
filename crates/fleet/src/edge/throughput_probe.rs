//! B(c, s): how fast this edge sends to a relay over all its links, by sending (BASS §IV-B).
//!
//! In: a relay, and how much may be sent for how long. Out: the rate that the relay has counted, and the round trip.
//!
//! 1. It is the same connection as a flow's: MPTCP with all links and TLS, with the edge's certificate. The relay says each
//!    tenth of a second what has come; when the rate has settled (`settle`) the connection is reset, and what waits in its queue
//!    is not sent.
//! 2. Where the bytes of a link are dear and used up, the probe goes over one other link alone, without MPTCP: what that
//!    brings is a lower bound.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::time::sleep;

use super::connect_request::parse_response;
use super::dial::{DialOptions, RelayConn, dial};
use super::rate_convergence::RateConvergence;
use super::relay_list::RelayEntry;
use super::short_queue::SendQueue;
use super::trust::ClientTrust;
use crate::congestion::CongestionControl;
use crate::link_dialer::LinkDialer;
use crate::tunnel::PROBE_PATH;

/// How much a probe may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeLimits {
    /// Bytes at most.
    pub max_bytes: DataSize,
    /// For how long at most, once the connection stands.
    pub max_time: Duration,
    /// Over this device alone.
    pub device: Option<String>,
}

/// What a probe has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// B(c, s).
    pub rate: Bitrate,
    /// Of the connection's first handshake.
    pub rtt: Duration,
    /// What was sent for it.
    pub bytes: DataSize,
}

/// Measures. What was sent is told whether it succeeds or not.
pub(super) async fn probe(
    entry: &Arc<RelayEntry>,
    trusted: &ClientTrust,
    limits: &ProbeLimits,
    congestion: Option<CongestionControl>,
    dialer: &Arc<LinkDialer>,
) -> (io::Result<ProbeResult>, DataSize) {
    let options = DialOptions { device: limits.device.clone(), plain_tcp: limits.device.is_some(), congestion };
    let (mut conn, rtt) = match dial(entry, trusted, &options, dialer).await {
        Ok(dialled) => dialled,
        Err(error) => return (Err(error), DataSize::ZERO),
    };
    let mut sent = 0;
    let result = measure(&mut conn, limits, rtt, &mut sent).await;
    // What waits in the queue is not worth a link's time.
    let _ = SockRef::from(conn.get_ref().0.socket()).set_linger(Some(Duration::ZERO));
    let bytes = DataSize::from_bytes(sent);
    (result.map(|rate| ProbeResult { rate, rtt, bytes }), bytes)
}

async fn measure(conn: &mut RelayConn, limits: &ProbeLimits, rtt: Duration, sent: &mut u64) -> io::Result<Bitrate> {
    let head = format!("PUT {PROBE_PATH} HTTP/1.1\r\nHost: relay\r\nTransfer-Encoding: chunked\r\n\r\n");
    conn.write_all(head.as_bytes()).await?;
    let queue = SendQueue::of(conn.get_ref().0.socket());
    let (mut reader, mut writer) = tokio::io::split(conn);
    let mut convergence = RateConvergence::new(rtt);
    let mut counts = CountReader::default();
    let deadline = sleep(limits.max_time + rtt);
    tokio::pin!(deadline);
    let sending = send(&mut writer, &queue, limits.max_bytes.bytes(), sent);
    tokio::pin!(sending);
    let mut is_sending = true;
    let mut bytes = [0; 2048];
    loop {
        tokio::select! {
            () = &mut deadline => break,
            ended = &mut sending, if is_sending => {
                is_sending = false;
                // A relay that refuses closes; what it says is read below.
                if let Err(error) = ended {
                    tracing::debug!(%error, "a probe is not taken any more");
                }
            }
            read = reader.read(&mut bytes) => {
                let len = read?;
                for (count, time) in counts.feed(bytes.get(..len).unwrap_or_default())? {
                    if let Some(rate) = convergence.add(count, time) {
                        return Ok(rate);
                    }
                }
                if len == 0 || counts.is_finished {
                    break;
                }
            }
        }
    }
    let no_counts = || io::Error::new(io::ErrorKind::TimedOut, "the relay has counted nothing in time");
    convergence.best_rate().or(counts.mean_rate()).ok_or_else(no_counts)
}

/// Chunks, until so much was sent; then the last one.
async fn send(
    writer: &mut WriteHalf<&mut RelayConn>,
    queue: &SendQueue,
    max_bytes: u64,
    sent: &mut u64,
) -> io::Result<()> {
    const SIZE: usize = 16 * 1024;
    let mut chunk = format!("{SIZE:x}\r\n").into_bytes();
    chunk.resize(chunk.len() + SIZE, 0);
    chunk.extend(b"\r\n");
    while *sent < max_bytes {
        while let Some(wait) = queue.wait() {
            sleep(wait).await;
        }
        writer.write_all(&chunk).await?;
        *sent += chunk.len() as u64;
    }
    writer.write_all(b"0\r\n\r\n").await?;
    writer.flush().await
}

/// What the relay says: its head, and lines in chunks.
#[derive(Debug, Default)]
struct CountReader {
    bytes: Vec<u8>,
    has_head: bool,
    is_finished: bool,
    last_count: Option<(u64, Duration)>,
}

/// chosen: a hundred lines are less.
const MAX_RESPONSE: usize = 16 * 1024;

impl CountReader {
    /// The counts in what has come.
    fn feed(&mut self, bytes: &[u8]) -> io::Result<Vec<(u64, Duration)>> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_RESPONSE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the relay says too much"));
        }
        if !self.has_head {
            match parse_response(&self.bytes)? {
                None => return Ok(Vec::new()),
                Some(answer) if answer.status == 200 => drop(self.bytes.drain(..answer.len)),
                Some(answer) => return Err(io::Error::other(format!("{} {}", answer.status, answer.words))),
            }
            self.has_head = true;
        }
        let mut counts = Vec::new();
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim();
            // The lines between are those of the chunks: one number, or none.
            if let Some((count, nanos)) = line.split_once(' ') {
                let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "the relay does not count");
                let count = count.parse().map_err(wrong)?;
                let time = Duration::from_nanos(nanos.parse().map_err(wrong)?);
                self.last_count = Some((count, time));
                counts.push((count, time));
            }
            self.is_finished |= line == "0";
        }
        Ok(counts)
    }

    /// The mean of all, for what was too short for a window.
    fn mean_rate(&self) -> Option<Bitrate> {
        let (count, time) = self.last_count.filter(|(count, time)| *count > 0 && !time.is_zero())?;
        Some(DataSize::from_bytes(count) / time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relays_counts_are_understood_however_they_are_cut() {
        let text =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n1000 100000000\n\r\n10\r\n3000 200000000\n\r\n0\r\n\r\n";
        for cut in 1..text.len() {
            let mut reader = CountReader::default();
            let counts: Vec<_> = text.chunks(cut).flat_map(|part| reader.feed(part).unwrap()).collect();
            assert_eq!(counts, [(1000, Duration::from_millis(100)), (3000, Duration::from_millis(200))], "{cut}");
            assert!(reader.is_finished);
        }
        let refused = CountReader::default().feed(b"HTTP/1.1 429 Too Many Requests\r\n\r\n").unwrap_err();
        assert!(refused.to_string().starts_with("429"), "{refused}");
        assert!(CountReader::default().feed(&[b'x'; 20_000]).is_err());
        let mut reader = CountReader { has_head: true, ..CountReader::default() };
        assert!(reader.feed(b"a b\n").is_err());
    }
}
