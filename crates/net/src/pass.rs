//! Bytes from one connection to another.
//!
//! In: two sockets. Out: everything that the one receives, sent on the other, and its end.
//!
//! 1. Bytes go through a pipe in the kernel (splice): a third of the processor time of a copy. A socket that cannot do
//!    that is copied through memory.
//! 2. No more is taken than the other side takes: its sender is slowed down as by any receiver.
//! 3. The end of one direction is passed on, and the other one goes on: that is how TCP works, and some protocols
//!    rely on it.

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

/// Which way bytes go: up is from the near end to the far one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the near end to the far one.
    Up,
    /// From the far end to the near one.
    Down,
}

/// Both directions, until both have ended, or nothing has moved for so long. `moved` hears of each piece.
pub async fn relay(
    near: &TcpStream,
    far: &TcpStream,
    idle: Duration,
    moved: impl Fn(Way, DataSize),
) -> io::Result<()> {
    let last = Last::new();
    let told = |way| {
        let (last, moved) = (&last, &moved);
        move |size| {
            last.is_now();
            moved(way, size);
        }
    };
    let mut up = std::pin::pin!(pass(near, far, told(Way::Up)));
    let mut down = std::pin::pin!(pass(far, near, told(Way::Down)));
    let one_is_left = tokio::select! {
        ended = &mut up => { ended?; false }
        ended = &mut down => { ended?; true }
        error = last.silence(idle) => return Err(error),
    };
    tokio::select! {
        ended = async { if one_is_left { up.await } else { down.await } } => ended,
        error = last.silence(idle.min(HALF_CLOSED)) => Err(error),
    }
}

/// When something moved last.
struct Last {
    began: Instant,
    /// Milliseconds after that.
    at: AtomicU64,
}

impl Last {
    fn new() -> Self {
        Self { began: Instant::now(), at: AtomicU64::new(0) }
    }

    fn is_now(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.at.store(now, Ordering::Relaxed);
    }

    /// Ends when nothing has moved for this long.
    async fn silence(&self, longest: Duration) -> io::Error {
        let began = self.began.elapsed();
        loop {
            let last = Duration::from_millis(self.at.load(Ordering::Relaxed)).max(began);
            match (last + longest).checked_sub(self.began.elapsed()) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left).await,
                _ => return io::Error::new(io::ErrorKind::TimedOut, "silent for too long"),
            }
        }
    }
}

/// One direction, to its end.
async fn pass(from: &TcpStream, to: &TcpStream, mut moved: impl FnMut(DataSize)) -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // Larger pipes are a favour of the kernel's.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE);
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        let came = from.async_io(Interest::READABLE, || Ok(splice(from, None, &write, None, PIPE, flags)?)).await;
        let mut left = match came {
            Ok(0) => break,
            // A socket that cannot be spliced (MPTCP): nothing has been taken from it.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                copy(from, to, moved).await?;
                break;
            }
            came => came?,
        };
        let piece = left;
        while left > 0 {
            left -= to.async_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, left, flags)?)).await?;
        }
        moved(DataSize::from_bytes(piece as u64));
    }
    // The other end may be gone already.
    let _ = socket2::SockRef::from(&to.as_fd()).shutdown(Shutdown::Write);
    Ok(())
}

/// The same through memory.
async fn copy(from: &TcpStream, to: &TcpStream, mut moved: impl FnMut(DataSize)) -> io::Result<()> {
    let mut buffer = vec![0; PIPE];
    loop {
        from.readable().await?;
        let len = match from.try_read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            read => read?,
        };
        let mut rest = buffer.get(..len).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => rest = rest.get(sent?..).unwrap_or_default(),
            }
        }
        moved(DataSize::from_bytes(len as u64));
    }
}

/// How long a connection may be silent whose one end is closed already.
pub const HALF_CLOSED: Duration = Duration::from_secs(10 * 60);
/// chosen: what a connection of 400 Mbit/s brings in 5 ms.
const PIPE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    /// Sends through `pass` or `copy` and compares.
    async fn through(spliced: bool) {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
        let mut told = 0;
        let send = async {
            sender.write_all(&data).await.unwrap();
            sender.shutdown().await.unwrap();
        };
        let pass = async {
            if spliced {
                pass(&from, &to, |bytes| told += bytes.bytes()).await.unwrap();
            } else {
                copy(&from, &to, |bytes| told += bytes.bytes()).await.unwrap();
                drop(to);
            }
        };
        let mut out = Vec::new();
        let ((), (), got) = tokio::join!(send, pass, receiver.read_to_end(&mut out));
        got.unwrap();
        assert!(out == data);
        assert_eq!(told, data.len() as u64);
    }

    fn block_on(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    #[test]
    fn bytes_pass_through_the_pipe_and_through_memory() {
        block_on(async {
            through(true).await;
            through(false).await;
        });
    }

    #[test]
    fn a_connection_in_which_nothing_moves_ends() {
        block_on(async {
            let ((_near, from), (to, _far)) = (pair().await, pair().await);
            let ended = relay(&from, &to, Duration::from_millis(50), |_, _| {}).await;
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_connection_in_which_something_moves_goes_on() {
        block_on(async {
            let ((mut near, from), (to, mut far)) = (pair().await, pair().await);
            let began = Instant::now();
            let idle = Duration::from_secs(4);
            let carried = async {
                // Only one direction moves, for longer than the limit in all.
                while began.elapsed() < idle * 5 / 4 {
                    near.write_all(b"x").await.unwrap();
                    far.read_u8().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            tokio::select! {
                ended = relay(&from, &to, idle, |_, _| {}) => panic!("ended: {ended:?}"),
                () = carried => {}
            }
            // Both ends are gone: it is over, and not by the limit.
            let relay = async {
                drop((near, far));
                relay(&from, &to, Duration::from_secs(60), |_, _| {}).await
            };
            let _ = tokio::time::timeout(Duration::from_secs(20), relay).await.unwrap();
        });
    }

    #[test]
    fn of_a_half_closed_connection_the_other_direction_goes_on() {
        block_on(async {
            let ((mut near, from), (to, mut far)) = (pair().await, pair().await);
            near.shutdown().await.unwrap();
            let answer = async {
                assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
                far.write_all(b"answer").await.unwrap();
                drop(far);
                let mut got = String::new();
                near.read_to_string(&mut got).await.unwrap();
                got
            };
            let (ended, got) = tokio::join!(relay(&from, &to, Duration::from_secs(60), |_, _| {}), answer);
            assert_eq!((ended.is_ok(), got.as_str()), (true, "answer"));
        });
    }
}
