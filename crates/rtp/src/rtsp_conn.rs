//! Connections of RTSP: messages that come, and where they came from.
//!
//! In: a connection. Out: each of its messages on one channel, and one word when there are no more.

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

/// Who has said something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Player,
    Server(LinkRole),
}

/// What was said; none: nothing more comes.
#[derive(Debug)]
pub(crate) struct RtspEvent {
    pub(crate) from: Side,
    pub(crate) message: Option<Message>,
    /// Why nothing more comes, where it is not that the other side has closed.
    pub(crate) error: Option<ParseError>,
}

/// Connects over a device.
pub(crate) async fn connect(device: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    bind_to_device(&socket, device)?;
    let stream = tokio::time::timeout(IO_TIMEOUT, socket.connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads until there is no more, or nobody listens.
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
    // Whoever listened may have gone.
    let _ = events.send(RtspEvent { from, message: None, error }).await;
}

/// Writes a message; a connection that takes nothing for a while is given up.
pub(crate) async fn write(half: &mut OwnedWriteHalf, message: &Message) -> io::Result<()> {
    tokio::time::timeout(IO_TIMEOUT, half.write_all(&message.to_bytes())).await?
}

/// chosen: longer than a blackout of seconds.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
