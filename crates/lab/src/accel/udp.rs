//! The capacity of a link without ACKs: datagrams at more than its rate, counted where they arrive.
//!
//! 1. Datagrams have 1464 bytes, as in Super-aggregation §3.1.
//! 2. The first second is not counted: the queue fills in it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Lab;
use crate::accel::topology;

/// Bytes of a datagram's payload.
const PAYLOAD: usize = 1464;
/// The client's port.
const PORT: u16 = 9001;
/// How often datagrams are sent. Our choice: few enough at once for the queue.
const SEND_INTERVAL: Duration = Duration::from_millis(2);
/// The time that is not counted.
const WARM_UP: Duration = Duration::from_secs(1);

/// Mbit/s of payload that arrive if `mbps` are sent.
pub(crate) fn goodput(lab: &Lab, mbps: f64, length: Duration) -> io::Result<f64> {
    let receiver = lab.run_at_client(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?;
    let sender = lab.run_at_site(topology::server_site_index(), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    receiver.set_read_timeout(Some(Duration::from_millis(100)))?;
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let flood = std::thread::spawn(move || flood(&sender, mbps, &stop));
    let received_bytes = count(&receiver, length);
    over.store(true, Ordering::Relaxed);
    let sent = flood.join().map_err(|_| io::Error::other("the sender broke down"))?;
    let bytes = received_bytes?;
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
                // Buffers are full when more is sent than the link carries.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            sent += 1;
        }
        std::thread::sleep(SEND_INTERVAL);
    }
    Ok(())
}

/// Bytes that arrive within `length` after [`WARM_UP`].
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
        if since > WARM_UP + length {
            return Ok(bytes);
        }
        if since > WARM_UP {
            bytes += got;
        }
    }
}
