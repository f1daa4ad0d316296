//! RTSP connections of a session: connect, read messages, write messages.
//!
//! A task reads each connection and sends its messages to one channel, followed by one event for its end. A session thus handles the
//! messages of the player and of both server connections in a single loop.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline_sys::device::bind_to_device;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::Sender;

use crate::proto::LinkRole;
use crate::proto::rtsp::{Message, ParseError};

/// The peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Player,
    Server(LinkRole),
}

/// A message, or the end of a connection if there is none.
#[derive(Debug)]
pub(crate) struct RtspEvent {
    pub(crate) from: Side,
    pub(crate) message: Option<Message>,
    /// At the end of a connection: why its bytes could not be parsed, if that is the reason.
    pub(crate) error: Option<ParseError>,
}

/// Connects to the server from a socket that is bound to a device.
pub(crate) async fn connect(device: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    bind_to_device(&socket, device)?;
    let stream = tokio::time::timeout(IO_TIMEOUT, socket.connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends the messages of one connection to `events`, until the connection or the receiver ends.
pub(crate) async fn read(from: Side, mut half: OwnedReadHalf, events: Sender<RtspEvent>) {
    let (mut bytes, mut error) = (Vec::new(), None);
    'connection: loop {
        loop {
            match Message::parse(&bytes) {
                Ok(Some((message, taken))) => {
                    bytes.drain(..taken);
                    if events.send(RtspEvent { from, message: Some(message), error: None }).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(parse_error) => {
                    error = Some(parse_error);
                    break 'connection;
                }
            }
        }
        match half.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    // The session may have ended in the meantime.
    let _ = events.send(RtspEvent { from, message: None, error }).await;
}

/// Writes a message. A connection that accepts no data for [`IO_TIMEOUT`] is an error.
pub(crate) async fn write(half: &mut OwnedWriteHalf, message: &Message) -> io::Result<()> {
    tokio::time::timeout(IO_TIMEOUT, half.write_all(&message.to_bytes())).await?
}

/// Longer than an outage of a few seconds, which must not end a session.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
