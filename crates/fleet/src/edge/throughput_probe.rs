//! Throughput probe: measures B(c, s), the rate at which this edge can send to a relay over all its links, by sending data (BASS section
//! IV-B).
//!
//! 1. The connection is the same as a flow's: MPTCP over all links and TLS, with the edge's certificate. The relay reports each tenth of a
//!    second how many bytes it has received. When the rate has settled (`rate_convergence`), the connection is reset, and data in its send
//!    queue is discarded.
//! 2. If the bytes are used up that probes may send over metered links in a day, the probe uses a single other link, without MPTCP: its
//!    result is a lower bound.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline_core::fleet::relay_selection::{ProbeLimits, ProbeResult};
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

/// Runs a probe. Returns the bytes sent as well, because a failed probe also costs traffic.
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
    // Data in the send queue is not worth transmitting.
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
                // A relay that refuses closes the connection; its response is read below.
                if let Err(error) = ended {
                    tracing::debug!(%error, "the relay stopped receiving a probe");
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
    let no_counts = || io::Error::new(io::ErrorKind::TimedOut, "no byte counts from the relay in time");
    convergence.best_rate().or(counts.mean_rate()).ok_or_else(no_counts)
}

/// Sends chunks until `max_bytes` are sent, then the last (empty) chunk.
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
        while let Some(wait) = queue.delay() {
            sleep(wait).await;
        }
        writer.write_all(&chunk).await?;
        *sent += chunk.len() as u64;
    }
    writer.write_all(b"0\r\n\r\n").await?;
    writer.flush().await
}

/// Parses the relay's response: its head, then byte counts as lines in chunks.
#[derive(Debug, Default)]
struct CountReader {
    bytes: Vec<u8>,
    has_head: bool,
    is_finished: bool,
    last_count: Option<(u64, Duration)>,
}

/// Maximum length of unparsed data. Our choice: more than a hundred lines.
const MAX_RESPONSE: usize = 16 * 1024;

impl CountReader {
    /// Parses received data; returns the counts that are complete.
    fn feed(&mut self, bytes: &[u8]) -> io::Result<Vec<(u64, Duration)>> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_RESPONSE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the relay's response is too long"));
        }
        if !self.has_head {
            match parse_response(&self.bytes)? {
                None => return Ok(Vec::new()),
                Some(answer) if answer.status == 200 => drop(self.bytes.drain(..answer.head_len)),
                Some(answer) => return Err(io::Error::other(format!("{} {}", answer.status, answer.details))),
            }
            self.has_head = true;
        }
        let mut counts = Vec::new();
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim();
            // Lines without a space belong to the chunked encoding: a chunk size or an empty line.
            if let Some((count, nanos)) = line.split_once(' ') {
                let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "malformed byte count from the relay");
                let count = count.parse().map_err(wrong)?;
                let time = Duration::from_nanos(nanos.parse().map_err(wrong)?);
                self.last_count = Some((count, time));
                counts.push((count, time));
            }
            self.is_finished |= line == "0";
        }
        Ok(counts)
    }

    /// The mean of the whole probe, for one that was shorter than a window.
    fn mean_rate(&self) -> Option<Bitrate> {
        let (count, time) = self.last_count.filter(|(count, time)| *count > 0 && !time.is_zero())?;
        Some(DataSize::from_bytes(count) / time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relays_counts_are_parsed_however_the_data_is_split() {
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
