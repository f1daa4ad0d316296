//! One upload in real time: who sends, who receives, and how much came when.
//!
//! In: a running lab, where it begins and where it ends. Out: the rates that the receiver had.
//!
//! 1. The sender sends as much as it can for a time; what the receiver has by then counts, whatever is on its way.
//! 2. Through an edge it asks for a tunnel like any program (CONNECT); that is part of the time.
//! 3. Both ends are threads of this process with sockets in the lab's namespaces: nothing is installed, and one clock measures.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::measured::{Measured, SETTLED};
use crate::Lab;
use crate::fleet::flow::tunnel;
use crate::mptcp::fetch::STOPPED;
use crate::places::address;

/// Where an upload begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum From<'a> {
    /// At the client, by plain TCP over this device.
    Device(&'a str),
    /// At the client, through the edge there.
    Edge,
    /// At this place, by plain TCP.
    Place(usize),
}

/// Uploads for so long to a place.
pub(super) fn upload(lab: &Lab, from: From<'_>, to: usize, length: Duration) -> io::Result<Measured> {
    let end = SocketAddr::from((address(to), PORT));
    let listener = lab.inside_at(to, || TcpListener::bind(end))?;
    let began = Instant::now();
    let over = began + length;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&listener, began, over));
        let sent = match from {
            From::Place(place) => lab.inside_at(place, || send(TcpStream::connect_timeout(&end, length)?, over)),
            From::Device(name) => lab.inside(|| send(bound(name, end, length)?, over)),
            From::Edge => lab.inside(|| send(tunnel(end, length)?, over)),
        };
        let received = receiving.join().unwrap_or_else(|_| Err(io::Error::other("the receiver has failed")));
        sent?;
        let timeline = received?;
        match timeline.iter().sum::<u64>() {
            0 => Err(io::Error::other(format!("nothing came within {} s", length.as_secs()))),
            _ => Ok(rates(&timeline, length)),
        }
    })
}

fn rates(timeline: &[u64], length: Duration) -> Measured {
    let settled = SETTLED.min(length / 2);
    let mbps = |from: Duration| {
        let skipped = (from.as_nanos() / SLOT.as_nanos()) as usize;
        let bytes: u64 = timeline.iter().skip(skipped).sum();
        bytes as f64 * 8e-6 / (length - from).as_secs_f64().max(1e-9)
    };
    Measured::of(mbps(Duration::ZERO), mbps(settled))
}

/// A connection over a device.
fn bound(device: &str, end: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket.connect_timeout(&end.into(), limit)?;
    Ok(socket.into())
}

fn send(mut stream: TcpStream, over: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(TURN))?;
    let part = vec![0; PART];
    while Instant::now() < over {
        if marline_sys::signal::caught().is_some() {
            return Err(io::Error::other(STOPPED));
        }
        match stream.write(&part) {
            Ok(_) => {}
            Err(error) if is_no_end(&error) => {}
            // The receiver closes when its time is over.
            Err(_) if Instant::now() >= over => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes the first connection, and counts by slots what comes over it.
fn receive(listener: &TcpListener, began: Instant, over: Instant) -> io::Result<Vec<u64>> {
    listener.set_nonblocking(true)?;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if is_no_end(&error) && Instant::now() < over => std::thread::sleep(LOOK),
            Err(error) if is_no_end(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TURN))?;
    let (mut timeline, mut buffer) = (Vec::new(), vec![0; PART]);
    loop {
        let read = stream.read(&mut buffer);
        let now = Instant::now();
        if now >= over {
            return Ok(timeline);
        }
        match read {
            Ok(0) => return Err(io::Error::other("the connection ended before its time")),
            Ok(length) => {
                let slot = (now.duration_since(began).as_nanos() / SLOT.as_nanos()) as usize;
                timeline.resize(timeline.len().max(slot + 1), 0);
                timeline[slot] += length as u64;
            }
            Err(error) if is_no_end(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_no_end(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Where the receiver listens: a port that relays are told to allow.
pub(super) const PORT: u16 = 9000;
/// A slot of the receiver's account.
const SLOT: Duration = Duration::from_millis(100);
/// How long a call may wait before the clock is looked at, and how often a listener is.
const TURN: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(2);
const PART: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_rate_leaves_out_the_beginning() {
        let mut timeline = vec![0_u64; 30];
        timeline.extend([125_000; 70]);
        let measured = rates(&timeline, Duration::from_secs(10));
        assert_eq!((measured.mbps, measured.steady_mbps), (7.0, 10.0));
    }

    #[test]
    fn what_comes_by_the_end_is_counted_and_silence_is_no_error_of_the_receiver() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let end = listener.local_addr().unwrap();
        let began = Instant::now();
        let over = began + Duration::from_millis(400);
        let timeline = std::thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&listener, began, over));
            send(TcpStream::connect(end).unwrap(), over).unwrap();
            receiving.join().unwrap().unwrap()
        });
        assert!(timeline.iter().sum::<u64>() > 0 && timeline.len() <= 4);
        assert!(receive(&listener, began, over).unwrap().is_empty());
    }
}
