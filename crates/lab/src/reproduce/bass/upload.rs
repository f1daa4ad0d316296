//! One upload in the lab: sender, receiver, and the received bytes over time.
//!
//! 1. The sender sends as much as it can for a given time. What the receiver has by then counts; bytes in flight do
//!    not.
//! 2. Through an edge the sender opens a tunnel with CONNECT, as any program would; that is part of the time.
//! 3. Both ends are threads of this process with sockets in the lab's namespaces: no other program is needed, and
//!    one clock measures both.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::measurement::{SETTLE_TIME, UploadResult};
use crate::Lab;
use crate::fleet::client_flow::tunnel;
use crate::mptcp::http_client::STOPPED_BY_USER;
use crate::wan_topology::site_address;

/// Where an upload begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum UploadSource<'a> {
    /// In the client namespace, with plain TCP over this device.
    Device(&'a str),
    /// In the client namespace, through the edge.
    Edge,
    /// At this site, with plain TCP.
    Site(usize),
}

/// Uploads to a site for this time.
pub(super) fn upload(
    lab: &Lab,
    source: UploadSource<'_>,
    site: usize,
    length: Duration,
) -> io::Result<UploadResult> {
    let end = SocketAddr::from((site_address(site), RECEIVER_PORT));
    let listener = lab.run_at_site(site, || TcpListener::bind(end))?;
    let start = Instant::now();
    let over = start + length;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| count_by_slot(&listener, start, over));
        let sent = match source {
            UploadSource::Site(site) => {
                lab.run_at_site(site, || send_until(TcpStream::connect_timeout(&end, length)?, over))
            }
            UploadSource::Device(name) => lab.run_at_client(|| send_until(connect_over(name, end, length)?, over)),
            UploadSource::Edge => lab.run_at_client(|| send_until(tunnel(end, length)?, over)),
        };
        let received = receiving.join().unwrap_or_else(|_| Err(io::Error::other("the receiver's thread panicked")));
        sent?;
        let timeline = received?;
        match timeline.iter().sum::<u64>() {
            0 => Err(io::Error::other(format!("nothing arrived within {} s", length.as_secs()))),
            _ => Ok(to_result(&timeline, length)),
        }
    })
}

fn to_result(timeline: &[u64], length: Duration) -> UploadResult {
    let settled = SETTLE_TIME.min(length / 2);
    let mbps = |from: Duration| {
        let skipped = (from.as_nanos() / SLOT.as_nanos()) as usize;
        let bytes: u64 = timeline.iter().skip(skipped).sum();
        bytes as f64 * 8e-6 / (length - from).as_secs_f64().max(1e-9)
    };
    UploadResult::rounded(mbps(Duration::ZERO), mbps(settled))
}

fn connect_over(device: &str, target: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.connect_timeout(&target.into(), limit)?;
    Ok(socket.into())
}

fn send_until(mut stream: TcpStream, deadline: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    let part = vec![0; CHUNK_SIZE];
    while Instant::now() < deadline {
        if marline_sys::signal::last_caught().is_some() {
            return Err(io::Error::other(STOPPED_BY_USER));
        }
        match stream.write(&part) {
            Ok(_) => {}
            Err(error) if is_retryable(&error) => {}
            // The receiver closes the connection at the deadline, so errors after it are expected.
            Err(_) if Instant::now() >= deadline => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Accepts the first connection and counts the received bytes per slot.
fn count_by_slot(listener: &TcpListener, start: Instant, deadline: Instant) -> io::Result<Vec<u64>> {
    listener.set_nonblocking(true)?;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if is_retryable(&error) && Instant::now() < deadline => {
                std::thread::sleep(ACCEPT_POLL_INTERVAL)
            }
            Err(error) if is_retryable(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    let (mut timeline, mut buffer) = (Vec::new(), vec![0; CHUNK_SIZE]);
    loop {
        let read = stream.read(&mut buffer);
        let now = Instant::now();
        if now >= deadline {
            return Ok(timeline);
        }
        match read {
            Ok(0) => return Err(io::Error::other("the connection ended too early")),
            Ok(length) => {
                let slot = (now.duration_since(start).as_nanos() / SLOT.as_nanos()) as usize;
                timeline.resize(timeline.len().max(slot + 1), 0);
                timeline[slot] += length as u64;
            }
            Err(error) if is_retryable(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Port of the receiver, which relays are configured to allow.
pub(super) const RECEIVER_PORT: u16 = 9000;
/// Length of a slot of the receiver's timeline.
const SLOT: Duration = Duration::from_millis(100);
/// Timeout of socket calls, after which the deadline is checked; and interval of polling the listener.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(100);
const ACCEPT_POLL_INTERVAL: Duration = Duration::from_millis(2);
const CHUNK_SIZE: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_rate_excludes_the_beginning() {
        let mut timeline = vec![0_u64; 30];
        timeline.extend([125_000; 70]);
        let measured = to_result(&timeline, Duration::from_secs(10));
        assert_eq!((measured.mbps, measured.steady_mbps), (7.0, 10.0));
    }

    #[test]
    fn bytes_received_until_the_deadline_count_and_their_absence_is_no_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let end = listener.local_addr().unwrap();
        let start = Instant::now();
        let over = start + Duration::from_millis(400);
        let timeline = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| count_by_slot(&listener, start, over));
            send_until(TcpStream::connect(end).unwrap(), over).unwrap();
            receiving.join().unwrap().unwrap()
        });
        assert!(timeline.iter().sum::<u64>() > 0 && timeline.len() <= 4);
        assert!(count_by_slot(&listener, start, over).unwrap().is_empty());
    }
}
