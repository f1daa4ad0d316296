//! Bytes from one connection to another, one direction.
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
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// One direction, to its end; `moved` hears of the bytes about twice a second.
pub(crate) async fn pass(
    from: &TcpStream,
    to: &TcpStream,
    mut moved: impl FnMut(DataSize, Duration),
) -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    // Larger pipes are a favour of the kernel's.
    let _ = rustix::pipe::fcntl_setpipe_size(&write, PIPE);
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let (mut since, mut bytes) = (Instant::now(), 0);
    loop {
        let came = from.async_io(Interest::READABLE, || Ok(splice(from, None, &write, None, PIPE, flags)?)).await;
        let mut left = match came {
            Ok(0) => break,
            // A socket that cannot be spliced (MPTCP): nothing has been taken from it.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                copy(from, to).await?;
                break;
            }
            came => came?,
        };
        bytes += left as u64;
        while left > 0 {
            left -= to.async_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, left, flags)?)).await?;
        }
        let time = since.elapsed();
        if time >= TELL_EVERY {
            moved(DataSize::from_bytes(bytes), time);
            (since, bytes) = (Instant::now(), 0);
        }
    }
    moved(DataSize::from_bytes(bytes), since.elapsed());
    // The other end may be gone already.
    let _ = socket2::SockRef::from(&to.as_fd()).shutdown(Shutdown::Write);
    Ok(())
}

/// The same through memory.
async fn copy(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
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
    }
}

/// chosen: what a connection of 400 Mbit/s brings in 5 ms.
const PIPE: usize = 256 * 1024;
const TELL_EVERY: Duration = Duration::from_millis(500);

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
                pass(&from, &to, |bytes, _| told += bytes.bytes()).await.unwrap();
            } else {
                copy(&from, &to).await.unwrap();
                drop(to);
            }
        };
        let mut out = Vec::new();
        let ((), (), got) = tokio::join!(send, pass, receiver.read_to_end(&mut out));
        got.unwrap();
        assert!(out == data);
        assert!(!spliced || told == data.len() as u64);
    }

    #[test]
    fn bytes_pass_through_the_pipe_and_through_memory() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            through(true).await;
            through(false).await;
        });
    }
}
