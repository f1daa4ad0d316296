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

use super::ask::answer;
use super::dial::{By, Road, dial};
use super::queue::Queue;
use super::relays::Station;
use super::settle::Settle;
use super::trust::Trusted;
use crate::congestion::Congestion;
use crate::starts::Starts;
use crate::tunnel::PROBE;

/// How much a probe may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Bytes at most.
    pub most: DataSize,
    /// For how long at most, once the connection stands.
    pub time: Duration,
    /// Over this device alone.
    pub only: Option<String>,
}

/// What a probe has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// B(c, s).
    pub rate: Bitrate,
    /// Of the connection's first handshake.
    pub round_trip: Duration,
    /// What was sent for it.
    pub bytes: DataSize,
}

/// Measures. What was sent is told whether it succeeds or not.
pub(super) async fn probe(
    station: &Arc<Station>,
    trusted: &Trusted,
    terms: &Terms,
    congestion: Option<Congestion>,
    starts: &Arc<Starts>,
) -> (io::Result<Probed>, DataSize) {
    let by = By { device: terms.only.clone(), plain: terms.only.is_some(), congestion };
    let (mut road, round_trip) = match dial(station, trusted, &by, starts).await {
        Ok(dialled) => dialled,
        Err(error) => return (Err(error), DataSize::ZERO),
    };
    let mut sent = 0;
    let measured = measure(&mut road, terms, round_trip, &mut sent).await;
    // What waits in the queue is not worth a link's time.
    let _ = SockRef::from(road.get_ref().0.socket()).set_linger(Some(Duration::ZERO));
    let bytes = DataSize::from_bytes(sent);
    (measured.map(|rate| Probed { rate, round_trip, bytes }), bytes)
}

async fn measure(road: &mut Road, terms: &Terms, round_trip: Duration, sent: &mut u64) -> io::Result<Bitrate> {
    let head = format!("PUT {PROBE} HTTP/1.1\r\nHost: relay\r\nTransfer-Encoding: chunked\r\n\r\n");
    road.write_all(head.as_bytes()).await?;
    let queue = Queue::of(road.get_ref().0.socket());
    let (mut from, mut to) = tokio::io::split(road);
    let mut settle = Settle::new(round_trip);
    let mut words = Words::default();
    let late = sleep(terms.time + round_trip);
    tokio::pin!(late);
    let sending = send(&mut to, &queue, terms.most.bytes(), sent);
    tokio::pin!(sending);
    let mut open = true;
    let mut bytes = [0; 2048];
    loop {
        tokio::select! {
            () = &mut late => break,
            ended = &mut sending, if open => {
                open = false;
                // A relay that refuses closes; what it says is read below.
                if let Err(error) = ended {
                    tracing::debug!(%error, "a probe is not taken any more");
                }
            }
            read = from.read(&mut bytes) => {
                let came = read?;
                for (count, time) in words.take(bytes.get(..came).unwrap_or_default())? {
                    if let Some(rate) = settle.heard(count, time) {
                        return Ok(rate);
                    }
                }
                if came == 0 || words.ended {
                    break;
                }
            }
        }
    }
    let nothing = || io::Error::new(io::ErrorKind::TimedOut, "the relay has counted nothing in time");
    settle.reached().or(words.overall()).ok_or_else(nothing)
}

/// Chunks, until so much was sent; then the last one.
async fn send(to: &mut WriteHalf<&mut Road>, queue: &Queue, most: u64, sent: &mut u64) -> io::Result<()> {
    const SIZE: usize = 16 * 1024;
    let mut chunk = format!("{SIZE:x}\r\n").into_bytes();
    chunk.resize(chunk.len() + SIZE, 0);
    chunk.extend(b"\r\n");
    while *sent < most {
        while let Some(wait) = queue.wait() {
            sleep(wait).await;
        }
        to.write_all(&chunk).await?;
        *sent += chunk.len() as u64;
    }
    to.write_all(b"0\r\n\r\n").await?;
    to.flush().await
}

/// What the relay says: its head, and lines in chunks.
#[derive(Debug, Default)]
struct Words {
    bytes: Vec<u8>,
    begun: bool,
    ended: bool,
    last: Option<(u64, Duration)>,
}

/// chosen: a hundred lines are less.
const LONGEST: usize = 16 * 1024;

impl Words {
    /// The counts in what has come.
    fn take(&mut self, bytes: &[u8]) -> io::Result<Vec<(u64, Duration)>> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the relay says too much"));
        }
        if !self.begun {
            match answer(&self.bytes)? {
                None => return Ok(Vec::new()),
                Some(answer) if answer.status == 200 => drop(self.bytes.drain(..answer.len)),
                Some(answer) => return Err(io::Error::other(format!("{} {}", answer.status, answer.words))),
            }
            self.begun = true;
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
                self.last = Some((count, time));
                counts.push((count, time));
            }
            self.ended |= line == "0";
        }
        Ok(counts)
    }

    /// The mean of all, for what was too short for a window.
    fn overall(&self) -> Option<Bitrate> {
        let (count, time) = self.last.filter(|(count, time)| *count > 0 && !time.is_zero())?;
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
            let mut words = Words::default();
            let counts: Vec<_> = text.chunks(cut).flat_map(|part| words.take(part).unwrap()).collect();
            assert_eq!(counts, [(1000, Duration::from_millis(100)), (3000, Duration::from_millis(200))], "{cut}");
            assert!(words.ended);
        }
        let refused = Words::default().take(b"HTTP/1.1 429 Too Many Requests\r\n\r\n").unwrap_err();
        assert!(refused.to_string().starts_with("429"), "{refused}");
        assert!(Words::default().take(&[b'x'; 20_000]).is_err());
        let mut words = Words { begun: true, ..Words::default() };
        assert!(words.take(b"a b\n").is_err());
    }
}
