//! Copies the bytes of one tunnel in both directions until both have ended.
//!
//! One of the two connections uses TLS. Bytes that were read before the copying begins are passed in and sent first.
//!
//! 1. A direction holds only bytes that are received and not sent yet, and receives nothing more until they are sent. A
//!    slow receiver therefore slows down its sender.
//! 2. When one direction ends, the end is passed on (half-close) and the other direction continues.
//! 3. The edge's share of the relay's capacity limits both directions ([`Pacer`]).
//! 4. All tunnels of a thread share one read buffer. An idle tunnel holds no memory. A blocked tunnel holds one piece,
//!    which is smaller if many tunnels are blocked (`buffer`).
//! 5. The directions alternate, so that neither has to wait until the other is idle.
//! 6. A tunnel without progress for too long is closed ([`IdleTimeouts`]). Only its own bytes count, not those of other
//!    tunnels of the same edge.
//!
//! Splice cannot be used, because one of the connections is encrypted.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use marline_core::fleet::PaceGrant;
use marline_core::units::{DataSize, Duration};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::buffer::{TunnelBuffer, read_size};

/// Rate limit of a tunnel: grants bytes before they are read and accounts for them afterwards.
pub(crate) trait Pacer {
    /// Requests permission to transfer `wanted` bytes now; `up` is the direction from the client.
    fn request(&mut self, up: bool, wanted: DataSize) -> PaceGrant;
    /// Reports that `passed` of the `granted` bytes were transferred.
    fn settle(&mut self, up: bool, granted: DataSize, passed: DataSize);
}

/// Size of the read buffer. Our choice: four TLS records.
const READ_SIZE: usize = 64 * 1024;

thread_local! {
    static READ_BUF: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_SIZE]);
}

/// Progress of the direction from the client to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UploadProgress {
    /// Bytes received from the client.
    pub(crate) received: u64,
    /// Whether received bytes wait because the upstream does not accept them.
    pub(crate) is_blocked: bool,
}

/// Longest time without progress before a tunnel is closed.
#[derive(Clone, Copy, Debug)]
struct IdleTimeouts {
    /// Timeout while both sides may still send.
    both_open: Duration,
    /// Timeout after one side has ended. A client that sends its request and closes still awaits the response, which
    /// should not take this long.
    half_closed: Duration,
}

/// Our choice: a shell left open overnight still works in the morning. For half-closed connections nginx allows a
/// minute, as does Linux in `FIN_WAIT2`; RFC 5382 (REQ-5) requires four minutes for partially closed ones.
const IDLE_TIMEOUTS: IdleTimeouts =
    IdleTimeouts { both_open: Duration::from_secs(24 * 60 * 60), half_closed: Duration::from_secs(10 * 60) };

/// Copies everything. `from_client` was already received from the client, `from_upstream` from the upstream.
pub(crate) async fn copy_bidirectional<E, S>(
    client: &mut E,
    upstream: &mut S,
    from_client: Vec<u8>,
    from_upstream: Vec<u8>,
    pacer: &mut impl Pacer,
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    copy_bidirectional_with((client, upstream), (from_client, from_upstream), pacer, |_, _, _| {}).await
}

/// The same; after each step `watch` is called with the client connection and its progress.
pub(crate) async fn copy_bidirectional_with<E, S>(
    ends: (&mut E, &mut S),
    buffered: (Vec<u8>, Vec<u8>),
    pacer: &mut impl Pacer,
    watch: impl FnMut(&mut Context<'_>, &E, UploadProgress),
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    copy_with_timeouts(IDLE_TIMEOUTS, ends, buffered, pacer, watch).await
}

async fn copy_with_timeouts<E, S>(
    timeouts: IdleTimeouts,
    (client, upstream): (&mut E, &mut S),
    (from_client, from_upstream): (Vec<u8>, Vec<u8>),
    pacer: &mut impl Pacer,
    mut watch: impl FnMut(&mut Context<'_>, &E, UploadProgress),
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Direction { buffer: TunnelBuffer::new(from_client), ..Direction::new(true) };
    let mut down = Direction { buffer: TunnelBuffer::new(from_upstream), ..Direction::new(false) };
    let (mut idle_timer, mut is_up_next) = (IdleTimer::new(timeouts), true);
    // Alternate between the directions until both are closed or cannot proceed.
    std::future::poll_fn(|cx| {
        let (mut up_is_pending, mut down_is_pending) = (up.is_closed(), down.is_closed());
        while !(up_is_pending && down_is_pending) {
            if is_up_next && !up_is_pending {
                up_is_pending = up.step(cx, client, upstream, pacer)?.is_pending() || up.is_closed();
            } else if !is_up_next && !down_is_pending {
                down_is_pending = down.step(cx, upstream, client, pacer)?.is_pending() || down.is_closed();
            }
            is_up_next = !is_up_next;
        }
        watch(cx, client, UploadProgress { received: up.received, is_blocked: !up.buffer.pending().is_empty() });
        if up.is_closed() && down.is_closed() {
            return Poll::Ready(Ok(()));
        }
        idle_timer.poll(cx, up.progress.wrapping_add(down.progress), up.is_open() && down.is_open()).map(Err)
    })
    .await
}

/// Time since the last progress. The timer is not reset on each progress; when it fires, the time is checked.
struct IdleTimer {
    timeouts: IdleTimeouts,
    progress: u64,
    is_open: bool,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl IdleTimer {
    fn new(timeouts: IdleTimeouts) -> Self {
        let since = Instant::now();
        let timer = Box::pin(tokio::time::sleep_until(since + timeouts.both_open));
        Self { timeouts, progress: 0, is_open: true, since, timer }
    }

    /// Ready with an error once there has been no progress for too long.
    fn poll(&mut self, cx: &mut Context<'_>, progress: u64, is_open: bool) -> Poll<io::Error> {
        if progress != self.progress || is_open != self.is_open {
            (self.progress, self.since) = (progress, Instant::now());
        }
        let timeout = if is_open { self.timeouts.both_open } else { self.timeouts.half_closed };
        if std::mem::replace(&mut self.is_open, is_open) != is_open {
            self.timer.as_mut().reset(self.since + timeout);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let deadline = self.since + timeout;
            if deadline <= Instant::now() {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "idle for too long"));
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}

/// State of one direction of a tunnel.
struct Direction {
    is_up: bool,
    state: DirectionState,
    /// Bytes received and not sent yet.
    buffer: TunnelBuffer,
    /// Number of bytes received.
    received: u64,
    /// Counter of received bytes and of buffered bytes that were sent later; any change is progress.
    progress: u64,
    pacer_pause: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectionState {
    Open,
    /// The sender has ended; buffered bytes are sent, then the end is passed on.
    Draining,
    Closed,
}

impl Direction {
    fn new(up: bool) -> Self {
        Self {
            is_up: up,
            state: DirectionState::Open,
            buffer: TunnelBuffer::default(),
            received: 0,
            progress: 0,
            pacer_pause: None,
        }
    }

    fn is_open(&self) -> bool {
        self.state == DirectionState::Open
    }

    fn is_closed(&self) -> bool {
        self.state == DirectionState::Closed
    }

    /// Performs one step. Ready means that another step may be possible.
    fn step<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        pacer: &mut impl Pacer,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        ready!(self.send(cx, to))?;
        match self.state {
            DirectionState::Closed => {}
            DirectionState::Draining => {
                // A receiver that has already closed needs no end.
                let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                self.state = DirectionState::Closed;
            }
            DirectionState::Open => match self.receive(cx, from, to, pacer) {
                Poll::Ready(taken) => taken?,
                Poll::Pending => {
                    // Nothing more to read now: flush what TLS has buffered.
                    ready!(Pin::new(&mut *to).poll_flush(cx))?;
                    return Poll::Pending;
                }
            },
        }
        Poll::Ready(Ok(()))
    }

    /// Sends all buffered bytes.
    fn send(&mut self, cx: &mut Context<'_>, to: &mut (impl AsyncWrite + Unpin)) -> Poll<io::Result<()>> {
        while !self.buffer.pending().is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, self.buffer.pending()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => {
                    self.buffer.advance(sent);
                    self.progress = self.progress.wrapping_add(sent as u64);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Copies one piece. Bytes that the receiver does not accept at once are buffered.
    fn receive<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        pacer: &mut impl Pacer,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let granted = ready!(self.granted(cx, pacer));
        READ_BUF.with_borrow_mut(|shared| {
            let size = usize::try_from(granted.bytes()).unwrap_or(READ_SIZE).min(read_size(READ_SIZE));
            let mut read_buf = ReadBuf::new(shared.get_mut(..size).unwrap_or_default());
            let result = Pin::new(&mut *from).poll_read(cx, &mut read_buf);
            let bytes = read_buf.filled();
            pacer.settle(self.is_up, granted, DataSize::from_bytes(bytes.len() as u64));
            self.progress = self.progress.wrapping_add(bytes.len() as u64);
            self.received += bytes.len() as u64;
            ready!(result)?;
            if bytes.is_empty() {
                self.state = DirectionState::Draining;
                return Poll::Ready(Ok(()));
            }
            let sent = match Pin::new(&mut *to).poll_write(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            self.buffer.extend(bytes.get(sent..).unwrap_or_default());
            Poll::Ready(Ok(()))
        })
    }

    /// The number of bytes that may be read, once the pacer grants any.
    fn granted(&mut self, cx: &mut Context<'_>, pacer: &mut impl Pacer) -> Poll<DataSize> {
        loop {
            if let Some(pause) = &mut self.pacer_pause {
                ready!(pause.as_mut().poll(cx));
                self.pacer_pause = None;
            }
            match pacer.request(self.is_up, DataSize::from_bytes(READ_SIZE as u64)) {
                PaceGrant::Granted(size) => return Poll::Ready(size),
                PaceGrant::RetryAfter(time) => {
                    self.pacer_pause = Some(Box::pin(tokio::time::sleep(time.max(Duration::from_millis(1)))))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Grants at most 10,000 bytes at once, after some waits, and counts.
    #[derive(Default)]
    struct CountingPacer {
        waits: u32,
        passed: [u64; 2],
        open: u64,
    }

    impl Pacer for CountingPacer {
        fn request(&mut self, _: bool, wanted: DataSize) -> PaceGrant {
            if self.waits > 0 {
                self.waits -= 1;
                return PaceGrant::RetryAfter(Duration::from_millis(5));
            }
            self.open += wanted.bytes().min(10_000);
            PaceGrant::Granted(wanted.min(DataSize::from_bytes(10_000)))
        }
        fn settle(&mut self, up: bool, granted: DataSize, passed: DataSize) {
            self.open -= granted.bytes();
            self.passed[usize::from(up)] += passed.bytes();
        }
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn both_directions_are_copied_completely() {
        block_on(async {
            let ((mut program, mut edge), (mut server, mut origin)) = (duplex(1000), duplex(700));
            let request: Vec<u8> = (0..50_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
            let mut pacer = CountingPacer { waits: 3, ..CountingPacer::default() };
            let talk = async {
                program.write_all(&request).await.unwrap();
                program.shutdown().await.unwrap();
                let mut response = String::new();
                program.read_to_string(&mut response).await.unwrap();
                assert_eq!(response, "answer");
            };
            let serve = async {
                let mut received = Vec::new();
                origin.read_to_end(&mut received).await.unwrap();
                assert!(received.strip_prefix(b"early").unwrap() == request);
                origin.write_all(b"answer").await.unwrap();
                drop(origin);
            };
            let carried = copy_bidirectional(&mut edge, &mut server, b"early".to_vec(), Vec::new(), &mut pacer);
            let (carried, (), ()) = tokio::join!(carried, talk, serve);
            carried.unwrap();
            assert_eq!((pacer.passed, pacer.open, pacer.waits), ([6, 50_000], 0, 0));
        });
    }

    #[test]
    fn a_slow_receiver_slows_its_sender() {
        block_on(async {
            let ((mut program, mut edge), (mut server, _origin)) = (duplex(1000), duplex(1000));
            let mut pacer = CountingPacer::default();
            let written = async {
                let mut written = 0;
                loop {
                    match tokio::time::timeout(Duration::from_secs(1), program.write(&[0; 100])).await {
                        Ok(sent) => written += sent.unwrap(),
                        Err(_) => return written,
                    }
                }
            };
            let stuck = tokio::select! {
                carried = copy_bidirectional(&mut edge, &mut server, Vec::new(), Vec::new(), &mut pacer) => panic!("{carried:?}"),
                written = written => written,
            };
            assert!(stuck <= 4000, "{stuck} bytes were taken for a server that takes 1000");
        });
    }

    /// A socket that always has bytes to read and accepts all writes.
    struct BusySocket;

    impl AsyncRead for BusySocket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            out.put_slice(&[0; 100]);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for BusySocket {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Stops granting after 1000 pieces and records their directions.
    #[derive(Default)]
    struct RecordingPacer {
        taken: Vec<bool>,
    }

    /// Grants every request.
    struct UnlimitedPacer;

    impl Pacer for UnlimitedPacer {
        fn request(&mut self, _: bool, wanted: DataSize) -> PaceGrant {
            PaceGrant::Granted(wanted)
        }
        fn settle(&mut self, _: bool, _: DataSize, _: DataSize) {}
    }

    impl Pacer for RecordingPacer {
        fn request(&mut self, up: bool, wanted: DataSize) -> PaceGrant {
            self.taken.push(up);
            if self.taken.len() > 1000 {
                PaceGrant::RetryAfter(Duration::from_secs(3600))
            } else {
                PaceGrant::Granted(wanted)
            }
        }
        fn settle(&mut self, _: bool, _: DataSize, _: DataSize) {}
    }

    #[test]
    fn neither_direction_waits_until_the_other_is_idle() {
        block_on(async {
            let (mut pacer, mut client, mut upstream) = (RecordingPacer::default(), BusySocket, BusySocket);
            let carried = copy_bidirectional(&mut client, &mut upstream, Vec::new(), Vec::new(), &mut pacer);
            assert!(tokio::time::timeout(Duration::from_millis(50), carried).await.is_err());
            let ups = pacer.taken.iter().filter(|up| **up).count();
            assert!((400..=600).contains(&ups), "{ups} of {} pieces went up", pacer.taken.len());
        });
    }

    #[test]
    fn an_idle_tunnel_is_closed_and_earlier_if_half_closed() {
        block_on(async {
            let timeouts =
                IdleTimeouts { both_open: Duration::from_secs(3600), half_closed: Duration::from_millis(60) };
            let ((mut program, mut edge), (mut server, mut origin)) = (duplex(1000), duplex(1000));
            let (mut free, buffered) = (UnlimitedPacer, (Vec::new(), Vec::new()));
            let carried = copy_with_timeouts(timeouts, (&mut edge, &mut server), buffered, &mut free, |_, _, _| {});
            let talk = async {
                // Longer than the short timeout, which does not apply yet.
                tokio::time::sleep(Duration::from_millis(150)).await;
                program.shutdown().await.unwrap();
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    origin.write_all(b"x").await.unwrap();
                }
            };
            let (ended, ()) = tokio::join!(carried, talk);
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let mut received = Vec::new();
            drop((edge, server));
            program.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, b"xxxxx");
        });
    }
}
