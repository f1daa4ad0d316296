//! What a link carries without any answer: datagrams at more than its rate, counted where they arrive.
//!
//! In: a running lab, a rate that is more than the link's, a time. Out: Mbit/s of payload.
//!
//! 1. Datagrams of 1464 bytes, as Super-aggregation's (§3.1).
//! 2. The first second is not counted: the queue fills in it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::world;
use crate::Lab;

/// Bytes of a datagram's payload.
const PAYLOAD: usize = 1464;
/// Where the client listens.
const PORT: u16 = 9001;
/// How often datagrams are sent. chosen: few enough at once for the queue.
const TURN: Duration = Duration::from_millis(2);
/// What is not counted.
const BEFORE: Duration = Duration::from_secs(1);

/// See the [module](self). `mbps` is what is offered.
pub(crate) fn goodput(lab: &Lab, mbps: f64, length: Duration) -> io::Result<f64> {
    let receiver = lab.run_at_client(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    let sender = lab.run_at_site(world::place(), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    let flood = std::thread::spawn(move || flood(&sender, mbps, &told));
    let counted = count(&receiver, length);
    over.store(true, Ordering::Relaxed);
    let sent = flood.join().map_err(|_| io::Error::other("the sender broke down"))?;
    let bytes = counted?;
    sent?;
    Ok(bytes as f64 * 8e-6 / length.as_secs_f64())
}

fn flood(socket: &UdpSocket, mbps: f64, over: &AtomicBool) -> io::Result<()> {
    let to = SocketAddr::from((Ipv4Addr::new(10, 1, 0, 2), PORT));
    let (began, datagram, mut sent) = (Instant::now(), [0_u8; PAYLOAD], 0_u64);
    while !over.load(Ordering::Relaxed) {
        let due = (began.elapsed().as_secs_f64() * mbps * 1e6 / 8.0 / PAYLOAD as f64) as u64;
        while sent < due {
            match socket.send_to(&datagram, to) {
                Ok(_) => {}
                // Full buffers are what a flood meets.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            sent += 1;
        }
        std::thread::sleep(TURN);
    }
    Ok(())
}

/// Bytes that come within `length` after [`BEFORE`].
fn count(socket: &UdpSocket, length: Duration) -> io::Result<u64> {
    let (began, mut buffer, mut bytes) = (Instant::now(), [0_u8; 2048], 0);
    loop {
        let got = match socket.recv(&mut buffer) {
            Ok(got) => got as u64,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        let since = began.elapsed();
        if since > BEFORE + length {
            return Ok(bytes);
        }
        if since > BEFORE {
            bytes += got;
        }
    }
}
