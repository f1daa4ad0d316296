//! Flows of test programs through an edge, and servers for them: a sink, a source and an echo server.
//!
//! 1. Bytes are counted at the receiver: data in the sender's buffers has not been transferred.
//! 2. Time counts from before the connection attempt to the last byte: connection setup and slow start are part of
//!    a transfer.
//! 3. Client and server are threads of this program in the two namespaces, with ordinary sockets.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::EDGE_ADDRESS;
use crate::network::SERVER;
use crate::{Lab, LabError};

/// Address of the servers of this module, in the server namespace.
pub(crate) const TARGET_ADDRESS: (Ipv4Addr, u16) = (SERVER, 9000);

/// How a program connects to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientTransport {
    /// Through the edge, with CONNECT.
    Edge,
    /// Plain TCP over the default route.
    Plain,
    /// MPTCP whose first subflow uses the default route.
    Mptcp,
}

impl ClientTransport {
    /// Connects to the target; must run on a thread in the client namespace.
    pub(crate) fn connect(self, timeout: Duration) -> io::Result<TcpStream> {
        match self {
            Self::Edge => tunnel(TARGET_ADDRESS.into(), timeout),
            Self::Plain => connect_tcp(TARGET_ADDRESS.into(), timeout),
            Self::Mptcp => {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
                socket.connect_timeout(&SocketAddr::from(TARGET_ADDRESS).into(), timeout)?;
                with_timeouts(socket.into(), timeout)
            }
        }
    }

    /// The protocol that the server must listen with; an edge's relay connects with plain TCP.
    const fn protocol(self) -> Option<Protocol> {
        match self {
            Self::Edge | Self::Plain => None,
            Self::Mptcp => Some(Protocol::MPTCP),
        }
    }
}

/// Opens a tunnel through the edge with CONNECT, as any program would; must run on a thread in the client
/// namespace.
pub(crate) fn tunnel(target: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let mut stream = connect_tcp(EDGE_ADDRESS.parse().map_err(io::Error::other)?, timeout)?;
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    read_connect_response(&mut stream)?;
    Ok(stream)
}

fn connect_tcp(address: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    with_timeouts(TcpStream::connect_timeout(&address, timeout)?, timeout)
}

fn with_timeouts(stream: TcpStream, timeout: Duration) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads the head of the response byte by byte, because the bytes after it belong to the flow.
fn read_connect_response(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
        if head.len() > 8192 {
            return Err(io::Error::other("the head of the edge's response is too long"));
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(io::Error::other(format!("the edge responds {}", head.lines().next().unwrap_or_default()))),
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the server.
    Up,
    /// From the server.
    Down,
}

/// A transfer as measured at its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferResult {
    /// Bytes received.
    pub(crate) bytes: u64,
    /// Time from before the connection attempt to the last byte.
    pub(crate) time: Duration,
    /// Rate after [`SETTLE_TIME`], in bit/s.
    pub(crate) settled_bps: f64,
}

impl TransferResult {
    /// Mean rate of the whole transfer in Mbit/s.
    pub(crate) fn mbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Time after which congestion and receive windows have opened; the rate after it is reported beside the mean rate.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(3);

/// Received chunks: time and number of bytes.
type Arrivals = Vec<(Instant, u64)>;

/// Transfers `bytes`. The inner error is a failure of the flow, the outer one a failure of the lab.
pub(crate) fn transfer(
    lab: &Lab,
    transport: ClientTransport,
    direction: Direction,
    bytes: u64,
    limit: Duration,
) -> Result<Result<TransferResult, String>, LabError> {
    let (start, server_arrivals) = (Instant::now(), start_server(lab, transport, direction, bytes)?);
    let client = lab.run_at_client(|| {
        let mut stream = transport.connect(limit)?;
        match direction {
            Direction::Up => send_bytes(&mut stream, bytes).map(|()| None),
            Direction::Down => Ok(Some(receive_all(&mut stream))),
        }
    });
    Ok(match client {
        Err(error) => Err(format!("at the client: {error}")),
        Ok(Some(arrivals)) => to_result(&arrivals, start, bytes),
        Ok(None) => match server_arrivals.recv_timeout(limit) {
            Ok(arrivals) => to_result(&arrivals, start, bytes),
            Err(_) => Err("the transfer did not end in time".to_owned()),
        },
    })
}

/// Sends this many bytes and closes the sending direction.
fn send_bytes(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let block = vec![0x5a_u8; 64 * 1024];
    let mut remaining = bytes;
    while remaining > 0 {
        let length = remaining.min(block.len() as u64) as usize;
        stream.write_all(block.get(..length).unwrap_or_default())?;
        remaining -= length as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)
}

/// Receives until the end of the stream or an error.
fn receive_all(stream: &mut TcpStream) -> Arrivals {
    let (mut arrivals, mut buffer) = (Vec::new(), vec![0; 256 * 1024]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        arrivals.push((Instant::now(), length as u64));
    }
    arrivals
}

/// Computes the result from the received chunks; an error if their number of bytes is not as expected.
fn to_result(arrivals: &[(Instant, u64)], start: Instant, expected: u64) -> Result<TransferResult, String> {
    let bytes: u64 = arrivals.iter().map(|(_, bytes)| bytes).sum();
    if bytes != expected {
        return Err(format!("{bytes} of {expected} bytes arrived"));
    }
    let end = arrivals.last().map_or(start, |(at, _)| *at);
    let settled_at = start + SETTLE_TIME;
    let late_bytes: u64 = arrivals.iter().filter(|(at, _)| *at > settled_at).map(|(_, bytes)| bytes).sum();
    let late_seconds = end.saturating_duration_since(settled_at).as_secs_f64();
    Ok(TransferResult {
        bytes,
        time: end - start,
        settled_bps: if late_seconds > 0.0 { late_bytes as f64 * 8.0 / late_seconds } else { 0.0 },
    })
}

/// Starts a server for one connection. The receiver gets its received chunks when the connection ends.
fn start_server(
    lab: &Lab,
    transport: ClientTransport,
    direction: Direction,
    bytes: u64,
) -> Result<Receiver<Arrivals>, LabError> {
    let listener = listen(lab, TARGET_ADDRESS.into(), transport.protocol())?;
    let (sender, arrivals) = mpsc::channel();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        match direction {
            // The receiver is gone if the upload was given up.
            Direction::Up => drop(sender.send(receive_all(&mut stream))),
            // If the transfer is incomplete, the client reports it.
            Direction::Down => drop(send_bytes(&mut stream, bytes)),
        }
    });
    Ok(arrivals)
}

/// Starts an echo server that runs as long as the lab.
pub(crate) fn start_echo(lab: &Lab) -> Result<(), LabError> {
    start_echo_at(lab, TARGET_ADDRESS.into())
}

/// The same at this address.
pub(crate) fn start_echo_at(lab: &Lab, address: SocketAddr) -> Result<(), LabError> {
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

/// Sends a message through the edge to the echo server and waits for its return. The result is the time from before
/// the connection attempt.
pub(crate) fn echo_round_trip(lab: &Lab, timeout: Duration) -> Result<Duration, String> {
    echo_round_trip_to(lab, TARGET_ADDRESS.into(), timeout)
}

/// The same for an echo server at this address.
pub(crate) fn echo_round_trip_to(lab: &Lab, server: SocketAddr, timeout: Duration) -> Result<Duration, String> {
    let start = Instant::now();
    // Any 17 bytes will do.
    let message = b"is anybody there?";
    let received = lab.run_at_client(|| {
        let mut stream = tunnel(server, timeout)?;
        stream.write_all(message)?;
        let mut buffer = [0; 17];
        stream.read_exact(&mut buffer)?;
        Ok(buffer)
    });
    match received {
        Ok(received) if received == *message => Ok(start.elapsed()),
        Ok(_) => Err("the echo server returned wrong bytes".into()),
        Err(error) => Err(format!("{error} after {:.1?}", start.elapsed())),
    }
}

/// Opens a listener in the server namespace. SO_REUSEADDR makes a port of an earlier listener usable at once.
fn listen(lab: &Lab, address: SocketAddr, protocol: Option<Protocol>) -> Result<TcpListener, LabError> {
    let bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, protocol)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(64)?;
        Ok(socket.into())
    };
    lab.run_at_server(bind).map_err(LabError::at_step("a listener at the server's end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_transfer_includes_its_connection_setup() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let seen = [(at(1000), 1_000_000), (at(4000), 500_000), (at(5000), 500_000)];
        let arrived = to_result(&seen, start, 2_000_000).unwrap();
        assert_eq!((arrived.time, arrived.mbps()), (Duration::from_secs(5), 3.2));
        assert_eq!(arrived.settled_bps, 4e6);
        assert!(to_result(&seen, start, 2_000_001).unwrap_err().contains("2000000 of 2000001"));
    }
}
