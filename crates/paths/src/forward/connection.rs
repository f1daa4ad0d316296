//! One connection: from a program that speaks TCP to a server that may speak MPTCP.
//!
//! In: the program's connection. Out: the same bytes on a connection of ours to where it was going.
//!
//! 1. Ours has the mark that the rules let pass: without it, it would be led here again.
//! 2. A failure before or in the middle is a reset for both sides, never an end that looks clean; so is the forwarder's own end.
//! 3. Delays of small packets are the ends' business: ours add none (`TCP_NODELAY`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use marline_core::units::DataSize;
use marline_net::{mptcp, splice};
use marline_sys::mptcp::Spoken;
use rustix::net::sockopt::set_tcp_congestion;
use socket2::{SockRef, Socket};
use tokio::net::{TcpSocket, TcpStream};

use super::rules::MARK;
use super::{Config, Counts, ForwardError};

/// Whether connections to servers can be made here: MPTCP is there, and a mark may be set.
pub(super) fn may_be_made() -> Result<(), ForwardError> {
    let probe = ours(SocketAddr::from(([127, 0, 0, 1], 0)));
    probe.map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ForwardError::NotPermitted,
        _ => ForwardError::Socket { what: "an MPTCP socket", error },
    })
}

/// Carries a connection to its end.
pub(super) async fn carry(near: TcpStream, config: &Config, counts: &Counts) {
    let Some(going) = destination(&near) else {
        tracing::debug!("a connection that no rule has led here");
        return reset(&near);
    };
    let far = match tokio::time::timeout(config.connect, connect(going)).await {
        Ok(Ok(far)) => far,
        failed => {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            let why = failed.map_or_else(|_| "no answer".to_owned(), |tried| told(tried.err()));
            tracing::debug!(%going, why, "not reached");
            return reset(&near);
        }
    };
    let spoken = Spoken::of(&far).unwrap_or(Spoken::Never);
    let sort = if spoken == Spoken::Yes { &counts.mptcp } else { &counts.fallen_back };
    sort.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(%going, ?spoken, "connected");
    counts.open.fetch_add(1, Ordering::Relaxed);
    let _open = Open(&counts.open);
    // From now on whatever ends it; but for an end of both sides.
    reset(&near);
    reset(&far);
    match relay(&near, &far, config, &counts.bytes).await {
        Ok(()) => {
            end(&near);
            end(&far);
        }
        Err(error) => tracing::debug!(%going, %error, "broke"),
    }
}

fn told(error: Option<io::Error>) -> String {
    error.map(|error| error.to_string()).unwrap_or_default()
}

/// Counts a connection as open.
struct Open<'a>(&'a AtomicU64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a connection was going before it was led here; none: here.
fn destination(near: &TcpStream) -> Option<SocketAddr> {
    near.local_addr().ok().filter(|going| !going.ip().is_loopback())
}

async fn connect(going: SocketAddr) -> io::Result<TcpStream> {
    let (socket, going) = ours(going)?;
    socket.set_tcp_nodelay(true)?;
    TcpSocket::from_std_stream(socket.into()).connect(going).await
}

fn ours(going: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let (socket, going) = mptcp::mptcp_socket_to(going)?;
    socket.set_mark(MARK)?;
    Ok((socket, going))
}

/// Both directions, until both have ended.
async fn relay(near: &TcpStream, far: &TcpStream, config: &Config, bytes: &AtomicU64) -> io::Result<()> {
    near.set_nodelay(true)?;
    // Nothing congests the loopback, and pacing (BBR, if it is the machine's default) would only slow this leg down. It is
    // part of every kernel; a sandbox that forbids it changes nothing else.
    let _ = set_tcp_congestion(near, "reno");
    let moved = |_, size: DataSize| {
        bytes.fetch_add(size.bytes(), Ordering::Relaxed);
    };
    splice::splice_both(near, far, config.idle, moved).await
}

/// The other end shall learn that this is no orderly end.
fn reset(socket: &impl AsFd) {
    // On an error the end looks clean, which is what it would be without trying.
    let _ = SockRef::from(&socket.as_fd()).set_linger(Some(Duration::ZERO));
}

/// It is one: what still waits to be sent is sent.
fn end(socket: &impl AsFd) {
    let _ = SockRef::from(&socket.as_fd()).set_linger(None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn one_direction_ends_and_the_other_goes_on() {
        block_on(async {
            let ((mut program, near), (far, mut server)) = (pair().await, pair().await);
            let bytes = AtomicU64::new(0);
            let config = Config::default();
            let talk = async {
                program.write_all(b"question").await.unwrap();
                program.shutdown().await.unwrap();
                let mut heard = Vec::new();
                server.read_to_end(&mut heard).await.unwrap();
                assert_eq!(heard, b"question");
                server.write_all(b"answer").await.unwrap();
                drop(server);
                heard.clear();
                program.read_to_end(&mut heard).await.unwrap();
                assert_eq!(heard, b"answer");
            };
            let (carried, ()) = tokio::join!(relay(&near, &far, &config, &bytes), talk);
            carried.unwrap();
            assert_eq!(bytes.into_inner(), 14);
        });
    }

    #[test]
    fn silence_ends_a_connection() {
        block_on(async {
            let ((program, near), (far, _server)) = (pair().await, pair().await);
            let config = Config { idle: Duration::from_millis(20), ..Config::default() };
            let error = relay(&near, &far, &config, &AtomicU64::new(0)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(program);
        });
    }

    #[test]
    fn who_comes_by_himself_was_going_nowhere() {
        block_on(async {
            let (_program, near) = pair().await;
            assert_eq!(destination(&near), None);
        });
    }

    #[test]
    fn what_broke_on_one_side_is_reset_on_the_other() {
        block_on(async {
            let (mut program, near) = pair().await;
            reset(&near);
            drop(near);
            let error = program.read(&mut [0; 1]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        });
    }
}
