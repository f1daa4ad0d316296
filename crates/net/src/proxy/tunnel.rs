//! Connections that are passed through: for CONNECT, SOCKS5, and requests that are forwarded.
//!
//! In: a host and a port. Out: a TCP connection over the link that suits the host, and its bytes both ways.
//!
//! 1. The links are tried in the order of [`Choice`](super::choice::Choice), names resolved on each; a link that fails
//!    is learnt of, and so is what comes over it and how fast.
//! 2. Where both legs are TCP, bytes go through a pipe in the kernel (splice): a third of the processor time of a copy.
//! 3. The end of one direction is passed on, and the other one goes on: that is how TCP works, and some protocols
//!    rely on it.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use marline_core::fetch::{Trouble, TroubleKind};
use marline_core::units::DataSize;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;

use super::session::Sessions;

/// A connection to a host, and the link that it is on.
pub(super) struct Tunnel {
    /// None when somebody has taken it.
    stream: Option<TcpStream>,
    sessions: Rc<Sessions>,
    /// None: this machine itself.
    link: Option<String>,
}

/// Opens a connection over the link that suits the host. `local` tells whether this machine's own services may be
/// reached.
///
/// # Errors
/// The last link's trouble.
pub(super) async fn open(sessions: &Rc<Sessions>, host: &str, port: u16, local: bool) -> Result<Tunnel, Trouble> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let network = &sessions.network;
    let refused = || Trouble {
        kind: TroubleKind::Refused,
        text: format!("{host}: other hosts may not reach what is on this machine"),
    };
    if is_own(bare) {
        if !local {
            return Err(refused());
        }
        let (stream, _) = network.connect(bare, port, None).await?;
        return Ok(Tunnel { stream: Some(stream), sessions: Rc::clone(sessions), link: None });
    }
    let mut last = Trouble { kind: TroubleKind::Unreachable, text: format!("{host}: no link can be used now") };
    for interface in sessions.interfaces(bare) {
        match network.connect(bare, port, Some(&interface)).await {
            Ok((stream, handshake)) => {
                // A name, or the address of a link, may mean this machine, too.
                if !local && stays_here(&stream) {
                    return Err(refused());
                }
                sessions.choice.borrow_mut().connected(sessions.now(), &interface.name, bare, handshake);
                return Ok(Tunnel {
                    stream: Some(stream),
                    sessions: Rc::clone(sessions),
                    link: Some(interface.name),
                });
            }
            Err(trouble) => {
                // A host that refuses answers over this link, and a name that is unknown is nobody's fault.
                if !matches!(trouble.kind, TroubleKind::Refused | TroubleKind::Name) {
                    sessions.choice.borrow_mut().failed(sessions.now(), &interface.name);
                }
                last = trouble;
            }
        }
    }
    Err(last)
}

/// Whether a host is this machine, by whatever link; the kernel takes the unspecified address for the loopback.
fn is_own(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(own)
}

/// Whether both ends of a connection are this machine's.
fn stays_here(stream: &TcpStream) -> bool {
    let (Ok(far), Ok(near)) = (stream.peer_addr(), stream.local_addr()) else { return false };
    far.ip().to_canonical().is_loopback() || far.ip() == near.ip()
}

impl Tunnel {
    /// The connection, for somebody who speaks HTTP on it. What is left counts it as open.
    pub(super) fn take(&mut self) -> Option<TcpStream> {
        self.stream.take()
    }

    /// Passes bytes both ways until both ends are done; `first` came from the near end already.
    pub(super) async fn relay(mut self, near: TcpStream, first: &[u8]) {
        let Some(mut far) = self.stream.take() else { return };
        if far.write_all(first).await.is_err() {
            return;
        }
        let down = pass(&far, &near, |bytes, time| {
            if let Some(link) = &self.link {
                self.sessions.choice.borrow_mut().moved(link, bytes, time);
            }
        });
        let up = pass(&near, &far, |_, _| {});
        if let Err(error) = tokio::try_join!(down, up) {
            tracing::debug!(%error, "a tunnel broke");
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            self.sessions.choice.borrow_mut().ended(link);
        }
    }
}

/// One direction, to its end; `moved` hears of the bytes about twice a second.
async fn pass(from: &TcpStream, to: &TcpStream, mut moved: impl FnMut(DataSize, Duration)) -> io::Result<()> {
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
    use tokio::io::AsyncReadExt as _;
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
    fn this_machine_is_known_by_all_its_names() {
        for host in
            ["localhost", "LocalHost", "a.localhost", "127.8.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"]
        {
            assert!(is_own(host), "{host}");
        }
        for host in ["example.org", "localhost.example", "192.0.2.1", "2001:db8::1", ""] {
            assert!(!is_own(host), "{host}");
        }
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
