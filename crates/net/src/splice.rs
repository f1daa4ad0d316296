//! Forwards bytes between two connections in both directions, including the end of each direction.
//!
//! 1. Bytes go through a pipe in the kernel (splice(2)), which takes a third of the processor time of a copy. Sockets
//!    that do not support splice are copied through memory.
//! 2. Data is read only as fast as the receiving side accepts it. So this host's receive buffer for the sending side
//!    fills up, and the receive window that it advertises slows the sender down.
//! 3. The end of one direction is forwarded, and the other direction continues: TCP allows half-closed connections,
//!    and some protocols rely on them.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Direction of forwarded bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Forwards both directions until both have ended, or until nothing was transferred in either one for `idle` (for at
/// most [`HALF_CLOSED_TIMEOUT`] once one has ended). `moved` is called for each piece that was forwarded.
///
/// # Errors
/// Either connection failed, or nothing was transferred for too long.
pub async fn splice_both(
    client: &TcpStream,
    server: &TcpStream,
    idle: Duration,
    moved: impl Fn(Direction, DataSize),
) -> io::Result<()> {
    let activity = ActivityTimer::new();
    let on_moved = |direction| {
        let (activity, moved) = (&activity, &moved);
        move |size| {
            activity.touch();
            moved(direction, size);
        }
    };
    let mut up = std::pin::pin!(splice_direction(client, server, on_moved(Direction::Up)));
    let mut down = std::pin::pin!(splice_direction(server, client, on_moved(Direction::Down)));
    let client_ended_last = tokio::select! {
        ended = &mut up => { ended?; false }
        ended = &mut down => { ended?; true }
        error = activity.wait_idle(idle) => return Err(error),
    };
    tokio::select! {
        ended = async { if client_ended_last { up.await } else { down.await } } => ended,
        error = activity.wait_idle(idle.min(HALF_CLOSED_TIMEOUT)) => Err(error),
    }
}

/// When bytes were last transferred, in either direction.
struct ActivityTimer {
    epoch: Instant,
    /// Milliseconds since `epoch`.
    last_ms: AtomicU64,
}

impl ActivityTimer {
    fn new() -> Self {
        Self { epoch: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn touch(&self) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// Returns an error when nothing was transferred for `timeout`.
    async fn wait_idle(&self, timeout: Duration) -> io::Error {
        let started_at = self.epoch.elapsed();
        loop {
            let last_activity = Duration::from_millis(self.last_ms.load(Ordering::Relaxed)).max(started_at);
            match (last_activity + timeout).checked_sub(self.epoch.elapsed()) {
                Some(time_left) if !time_left.is_zero() => tokio::time::sleep(time_left).await,
                _ => return io::Error::new(io::ErrorKind::TimedOut, "no data for too long"),
            }
        }
    }
}

/// Forwards one direction until its end.
async fn splice_direction(from: &TcpStream, to: &TcpStream, mut moved: impl FnMut(DataSize)) -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // A larger pipe is an optimization: the kernel may refuse it.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE_LEN);
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        let received =
            from.async_io(Interest::READABLE, || Ok(splice(from, None, &write, None, PIPE_LEN, flags)?)).await;
        let mut in_pipe = match received {
            Ok(0) => break,
            // This kind of socket does not support splice (MPTCP). No bytes were taken from it yet.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                copy_direction(from, to, moved).await?;
                break;
            }
            result => result?,
        };
        let piece = in_pipe;
        while in_pipe > 0 {
            in_pipe -=
                to.async_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, in_pipe, flags)?)).await?;
        }
        moved(DataSize::from_bytes(piece as u64));
    }
    // The receiver may have closed its end already.
    let _ = socket2::SockRef::from(&to.as_fd()).shutdown(Shutdown::Write);
    Ok(())
}

/// Forwards one direction through memory instead of a pipe.
async fn copy_direction(from: &TcpStream, to: &TcpStream, mut moved: impl FnMut(DataSize)) -> io::Result<()> {
    let mut buffer = vec![0; PIPE_LEN];
    loop {
        from.readable().await?;
        let len = match from.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        let mut unsent = buffer.get(..len).unwrap_or_default();
        if unsent.is_empty() {
            return Ok(());
        }
        while !unsent.is_empty() {
            to.writable().await?;
            match to.try_write(unsent) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => unsent = unsent.get(sent?..).unwrap_or_default(),
            }
        }
        moved(DataSize::from_bytes(len as u64));
    }
}

/// How long a connection may be idle after one direction has ended.
pub const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Our choice: 5 ms of a connection at 400 Mbit/s.
const PIPE_LEN: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    /// Sends data through the pipe or through memory and compares it.
    async fn relay_through(spliced: bool) {
        let ((mut sender, from), (to, mut receiver)) = (tcp_pair().await, tcp_pair().await);
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
        let mut moved_bytes = 0;
        let send = async {
            sender.write_all(&data).await.unwrap();
            sender.shutdown().await.unwrap();
        };
        let pass = async {
            if spliced {
                splice_direction(&from, &to, |bytes| moved_bytes += bytes.bytes()).await.unwrap();
            } else {
                copy_direction(&from, &to, |bytes| moved_bytes += bytes.bytes()).await.unwrap();
                drop(to);
            }
        };
        let mut out = Vec::new();
        let ((), (), got) = tokio::join!(send, pass, receiver.read_to_end(&mut out));
        got.unwrap();
        assert!(out == data);
        assert_eq!(moved_bytes, data.len() as u64);
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn bytes_are_forwarded_through_the_pipe_and_through_memory() {
        block_on(async {
            relay_through(true).await;
            relay_through(false).await;
        });
    }

    #[test]
    fn an_idle_connection_is_ended() {
        block_on(async {
            let ((_near, from), (to, _remote)) = (tcp_pair().await, tcp_pair().await);
            let ended = splice_both(&from, &to, Duration::from_millis(50), |_, _| {}).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_connection_that_transfers_data_continues() {
        block_on(async {
            let ((mut near, from), (to, mut remote)) = (tcp_pair().await, tcp_pair().await);
            let began = Instant::now();
            let idle = Duration::from_secs(4);
            let carried = async {
                // Only one direction transfers data, in total for longer than the idle timeout.
                while began.elapsed() < idle * 5 / 4 {
                    near.write_all(b"x").await.unwrap();
                    remote.read_u8().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::select! {
                ended = splice_both(&from, &to, idle, |_, _| {}) => panic!("ended: {ended:?}"),
                () = carried => {}
            }
            // Both ends have closed: the call returns at once, not by the timeout.
            let relay = async {
                drop((near, remote));
                splice_both(&from, &to, Duration::from_secs(60), |_, _| {}).await
            };
            let _ = tokio::time::timeout(Duration::from_secs(20), relay).await.unwrap();
        });
    }

    #[test]
    fn the_other_direction_of_a_half_closed_connection_continues() {
        block_on(async {
            let ((mut near, from), (to, mut remote)) = (tcp_pair().await, tcp_pair().await);
            near.shutdown().await.unwrap();
            let response = async {
                assert_eq!(remote.read(&mut [0]).await.unwrap(), 0);
                remote.write_all(b"answer").await.unwrap();
                drop(remote);
                let mut got = String::new();
                near.read_to_string(&mut got).await.unwrap();
                got
            };
            let (ended, got) = tokio::join!(splice_both(&from, &to, Duration::from_secs(60), |_, _| {}), response);
            assert_eq!((ended.is_ok(), got.as_str()), (true, "answer"));
        });
    }
}
