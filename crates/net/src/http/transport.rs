//! The byte stream of a connection: plain TCP, or TLS over TCP.
//!
//! A plain socket is read directly into the caller's buffer. rustls reads 4 KiB at a time, which would be a system
//! call each, so there is a read buffer below TLS. It costs one copy, far less than the calls that it saves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connected socket, with an optional counter of the bytes that are written to it.
pub(super) struct Transport {
    kind: TransportKind,
    sent_bytes: Option<Arc<AtomicU64>>,
}

enum TransportKind {
    Plain(TcpStream),
    Tls(Box<TlsStream<BufReader<TcpStream>>>),
}

impl Transport {
    pub(super) fn plain(tcp: TcpStream, sent: Option<Arc<AtomicU64>>) -> Self {
        Self { kind: TransportKind::Plain(tcp), sent_bytes: sent }
    }

    /// `sent` counts the bytes before encryption.
    pub(super) fn tls(tls: TlsStream<BufReader<TcpStream>>, sent: Option<Arc<AtomicU64>>) -> Self {
        Self { kind: TransportKind::Tls(Box::new(tls)), sent_bytes: sent }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.kind, TransportKind::Tls(_))
    }

    /// The socket, to query the kernel about it.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        match &self.kind {
            TransportKind::Plain(tcp) => tcp.as_fd(),
            TransportKind::Tls(tls) => tls.get_ref().0.get_ref().as_fd(),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            TransportKind::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            TransportKind::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.kind {
            TransportKind::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            TransportKind::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        };
        if let (Poll::Ready(Ok(bytes)), Some(sent)) = (&written, &self.sent_bytes) {
            sent.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            TransportKind::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            TransportKind::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            TransportKind::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            TransportKind::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// A stream with a limited read budget. Without a limit the HTTP/2 codec would read as long as bytes arrive, and
/// buffer all of them.
pub(super) struct LimitedStream {
    stream: Transport,
    budget: ReadBudget,
}

/// How much may still be read from a [`LimitedStream`]. Shared with its owner, because the codec does not return the
/// stream.
#[derive(Clone, Default)]
pub(super) struct ReadBudget(Arc<AtomicUsize>);

impl ReadBudget {
    pub(super) fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Whether reading stopped because of the budget and not for lack of data. Then nothing wakes the task.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl LimitedStream {
    pub(super) fn new(stream: Transport) -> (Self, ReadBudget) {
        let budget = ReadBudget::default();
        budget.set(usize::MAX);
        (Self { stream, budget: budget.clone() }, budget)
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.budget.is_exhausted() {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let budget = self.budget.0.load(Ordering::Relaxed);
        self.budget.set(budget.saturating_sub(buf.filled().len() - before));
        result
    }
}

/// Writing ignores failures because the peer has closed: the server may have sent the reason (GOAWAY) before. Reading
/// finds the end of the connection. The codec sends its own GOAWAY before it reports the server's, so that may fail
/// as well.
impl AsyncWrite for LimitedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf).map(|result| ignore_peer_close(result, buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map(|result| ignore_peer_close(result, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx).map(|result| ignore_peer_close(result, ()))
    }
}

/// The result of a write, or `done` if the peer has closed.
fn ignore_peer_close<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    match result {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected) => Ok(done),
        result => result,
    }
}

/// The size of a read below TLS: four TLS records of maximum length. Each TLS connection has such a buffer.
pub(super) const TLS_READ_BUFFER: usize = 64 * 1024;
