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

use crate::proto::Line;
use crate::proto::rtsp::{Message, Refusal};

/// Who has said something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    Player,
    Server(Line),
}

/// What was said; none: nothing more comes.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) from: From,
    pub(crate) message: Option<Message>,
    /// Why nothing more comes, where it is not that the other side has closed.
    pub(crate) refusal: Option<Refusal>,
}

/// Connects over a device.
pub(crate) async fn connect(device: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    bind_to_device(&socket, device)?;
    let stream = tokio::time::timeout(PATIENCE, socket.connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads until there is no more, or nobody listens.
pub(crate) async fn read(from: From, mut half: OwnedReadHalf, tell: Sender<Heard>) {
    let (mut bytes, mut refusal) = (Vec::new(), None);
    'connection: loop {
        loop {
            match Message::parse(&bytes) {
                Ok(Some((message, taken))) => {
                    bytes.drain(..taken);
                    if tell.send(Heard { from, message: Some(message), refusal: None }).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(why) => {
                    refusal = Some(why);
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
    let _ = tell.send(Heard { from, message: None, refusal }).await;
}

/// Writes a message; a connection that takes nothing for a while is given up.
pub(crate) async fn write(half: &mut OwnedWriteHalf, message: &Message) -> io::Result<()> {
    tokio::time::timeout(PATIENCE, half.write_all(&message.emit())).await?
}

/// chosen: longer than a blackout of seconds.
const PATIENCE: Duration = Duration::from_secs(10);
