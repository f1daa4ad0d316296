//! Flows of programs through an edge, and servers for them: one that takes, one that gives, an echo.
//!
//! In: a target, how many bytes, which way. Out: when which of them arrived.
//!
//! 1. Bytes are counted where they arrive: what lies in the sender's buffers has not been carried.
//! 2. Time counts from before the connection to the end of the last byte: opening and slow start are part of a transfer.
//! 3. Server and client are threads of this program in the two namespaces; sockets are plain.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::EDGE;
use crate::network::SERVER;
use crate::{Lab, LabError};

/// Where the servers of this module listen, at the server's end.
pub(crate) const TARGET: (Ipv4Addr, u16) = (SERVER, 9000);

/// How a program goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// To the edge, with CONNECT.
    Edge,
    /// Plain TCP over the default route.
    Plain,
    /// MPTCP that begins over the default route.
    Mptcp,
}

impl Way {
    /// A connection to the target, on a thread at the client's end.
    pub(crate) fn open(self, patience: Duration) -> io::Result<TcpStream> {
        match self {
            Self::Edge => tunnel(TARGET.into(), patience),
            Self::Plain => connect(TARGET.into(), patience),
            Self::Mptcp => {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
                socket.connect_timeout(&SocketAddr::from(TARGET).into(), patience)?;
                prepared(socket.into(), patience)
            }
        }
    }

    /// What the server must speak; an edge's relay comes with plain TCP.
    const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Edge | Self::Plain => None,
            Self::Mptcp => Some(Protocol::MPTCP),
        }
    }
}

/// A tunnel of the edge to there, asked for like any program does, on a thread at the client's end.
pub(crate) fn tunnel(end: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let mut stream = connect(EDGE.parse().map_err(io::Error::other)?, patience)?;
    write!(stream, "CONNECT {end} HTTP/1.1\r\nHost: {end}\r\n\r\n")?;
    answered(&mut stream)?;
    Ok(stream)
}

fn connect(at: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    prepared(TcpStream::connect_timeout(&at, patience)?, patience)
}

fn prepared(stream: TcpStream, patience: Duration) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads the head of an answer, byte by byte: what follows is the flow's.
fn answered(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
        if head.len() > 8192 {
            return Err(io::Error::other("the edge's answer has no end"));
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(io::Error::other(format!("the edge answers {}", head.lines().next().unwrap_or_default()))),
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// From it.
    Down,
}

/// A transfer as its receiver saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Bytes that arrived.
    pub(crate) bytes: u64,
    /// From before the connection to the last of them.
    pub(crate) time: Duration,
    /// From [`SETTLED`] on, bits a second.
    pub(crate) later: f64,
}

impl Arrived {
    /// Mbit/s in all.
    pub(crate) fn mbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Windows are open after so long; rates from then on are beside the whole ones.
pub(crate) const SETTLED: Duration = Duration::from_secs(3);

/// When how many bytes arrived.
type Arrivals = Vec<(Instant, u64)>;

/// Carries so many bytes; the error is one of the flow, not of the lab.
pub(crate) fn transfer(
    lab: &Lab,
    way: Way,
    direction: Direction,
    bytes: u64,
    limit: Duration,
) -> Result<Result<Arrived, String>, LabError> {
    let (began, served) = (Instant::now(), server(lab, way, direction, bytes)?);
    let client = lab.inside(|| {
        let mut stream = way.open(limit)?;
        match direction {
            Direction::Up => give(&mut stream, bytes).map(|()| None),
            Direction::Down => Ok(Some(take(&mut stream))),
        }
    });
    Ok(match client {
        Err(error) => Err(format!("at the client: {error}")),
        Ok(Some(arrivals)) => counted(&arrivals, began, bytes),
        Ok(None) => match served.recv_timeout(limit) {
            Ok(arrivals) => counted(&arrivals, began, bytes),
            Err(_) => Err("it does not end".to_owned()),
        },
    })
}

/// So many bytes, and the end.
fn give(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let block = vec![0x5a_u8; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(block.len() as u64) as usize;
        stream.write_all(block.get(..length).unwrap_or_default())?;
        left -= length as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

/// All that comes.
fn take(stream: &mut TcpStream) -> Arrivals {
    let (mut seen, mut buffer) = (Vec::new(), vec![0; 256 * 1024]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        seen.push((Instant::now(), length as u64));
    }
    seen
}

/// What the arrivals come to.
fn counted(arrivals: &[(Instant, u64)], began: Instant, wanted: u64) -> Result<Arrived, String> {
    let bytes: u64 = arrivals.iter().map(|(_, bytes)| bytes).sum();
    if bytes != wanted {
        return Err(format!("{bytes} of {wanted} bytes arrived"));
    }
    let end = arrivals.last().map_or(began, |(at, _)| *at);
    let from = began + SETTLED;
    let later: u64 = arrivals.iter().filter(|(at, _)| *at > from).map(|(_, bytes)| bytes).sum();
    let span = end.saturating_duration_since(from).as_secs_f64();
    Ok(Arrived { bytes, time: end - began, later: if span > 0.0 { later as f64 * 8.0 / span } else { 0.0 } })
}

/// A server of one connection; what arrived there when comes at its end.
fn server(lab: &Lab, way: Way, direction: Direction, bytes: u64) -> Result<Receiver<Arrivals>, LabError> {
    let listener = listen(lab, TARGET.into(), way.protocol())?;
    let (done, arrivals) = mpsc::channel();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        match direction {
            // Nobody waits any more: the upload was given up.
            Direction::Up => drop(done.send(take(&mut stream))),
            // The client tells what has not come.
            Direction::Down => drop(give(&mut stream, bytes)),
        }
    });
    Ok(arrivals)
}

/// A server that says back what it hears, for as long as the lab lasts.
pub(crate) fn echo(lab: &Lab) -> Result<(), LabError> {
    echo_at(lab, TARGET.into())
}

/// The same there.
pub(crate) fn echo_at(lab: &Lab, address: SocketAddr) -> Result<(), LabError> {
    let listener = listen(lab, address, None)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = io::copy(&mut &stream, &mut &stream);
            });
        }
    });
    Ok(())
}

/// Sends a word through the edge and waits for it; how long that took, from before the connection on.
pub(crate) fn said_back(lab: &Lab, patience: Duration) -> Result<Duration, String> {
    said_back_from(lab, TARGET.into(), patience)
}

/// The same from there.
pub(crate) fn said_back_from(lab: &Lab, server: SocketAddr, patience: Duration) -> Result<Duration, String> {
    let began = Instant::now();
    let word = b"is anybody there?";
    let heard = lab.inside(|| {
        let mut stream = tunnel(server, patience)?;
        stream.write_all(word)?;
        let mut heard = [0; 17];
        stream.read_exact(&mut heard)?;
        Ok(heard)
    });
    match heard {
        Ok(heard) if heard == *word => Ok(began.elapsed()),
        Ok(_) => Err("other bytes came back".into()),
        Err(error) => Err(format!("{error} after {:.1?}", began.elapsed())),
    }
}

/// A listener at the server's end. A port that an earlier one has left may be used again at once.
fn listen(lab: &Lab, address: SocketAddr, protocol: Option<Protocol>) -> Result<TcpListener, LabError> {
    let open = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, protocol)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(64)?;
        Ok(socket.into())
    };
    lab.inside_server(open).map_err(LabError::at("a listener at the server's end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_counted_from_before_its_connection() {
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let seen = [(at(1000), 1_000_000), (at(4000), 500_000), (at(5000), 500_000)];
        let arrived = counted(&seen, began, 2_000_000).unwrap();
        assert_eq!((arrived.time, arrived.mbps()), (Duration::from_secs(5), 3.2));
        assert_eq!(arrived.later, 4e6);
        assert!(counted(&seen, began, 2_000_001).unwrap_err().contains("2000000 of 2000001"));
    }
}
