//! The bytes of one tunnel, both ways, until both have ended.
//!
//! In: both ends' connections, one of them TLS; what was read of them already. Out: the same bytes on the other
//! side, their ends, and how many they were.
//!
//! 1. What has been taken and not been sent yet is the only thing that is kept, and nothing more is taken meanwhile: a slow
//!    receiver slows its sender.
//! 2. The end of one direction is passed on, and the other one goes on.
//! 3. What the edge sends goes as its share of the relay's capacity lets it ([`Pace`]); so does what it receives.
//! 4. Memory to read into is shared by all tunnels of a thread: an idle one holds none.
//!
//! Splice cannot be used: what one side sends is sealed.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use marline_core::units::{DataSize, Duration};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a direction asks before it takes bytes, and tells after it has.
pub(crate) trait Pace {
    /// Whether so much may pass now.
    fn ask(&mut self, up: bool, wanted: DataSize) -> Grant;
    /// So much of what was granted has passed.
    fn passed(&mut self, up: bool, granted: DataSize, passed: DataSize);
}

/// What somebody who wants to send is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// So much at once. It counts as sent until it is told what was.
    Now(DataSize),
    /// Nothing; ask again after this.
    Later(Duration),
}

/// chosen: four records of TLS.
const PIECE: usize = 64 * 1024;

thread_local! {
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// Carries everything. `early` is for the far end and came from the near one already, `late` the other way round.
pub(crate) async fn carry<E, S>(
    near: &mut E,
    far: &mut S,
    early: Vec<u8>,
    late: Vec<u8>,
    pace: &mut impl Pace,
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Way { kept: early, ..Way::new(true) };
    let mut down = Way { kept: late, ..Way::new(false) };
    std::future::poll_fn(|cx| {
        let up = up.poll(cx, near, far, pace)?;
        let down = down.poll(cx, far, near, pace)?;
        if up.is_ready() && down.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction.
struct Way {
    up: bool,
    state: State,
    /// Taken and not sent yet, from `sent` on.
    kept: Vec<u8>,
    sent: usize,
    wait: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing more comes; what is kept goes, and then the end.
    Ending,
    Ended,
}

impl Way {
    fn new(up: bool) -> Self {
        Self { up, state: State::Open, kept: Vec::new(), sent: 0, wait: None }
    }

    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        pace: &mut impl Pace,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(self.send(cx, to))?;
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    // A receiver that has gone already has got the end.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.state = State::Ended;
                }
                State::Open => match self.take(cx, from, to, pace) {
                    Poll::Ready(taken) => taken?,
                    Poll::Pending => {
                        // Nothing more for now: what TLS holds back goes.
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    /// Everything that is kept.
    fn send(&mut self, cx: &mut Context<'_>, to: &mut (impl AsyncWrite + Unpin)) -> Poll<io::Result<()>> {
        while let Some(rest) = self.kept.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *to).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        if self.sent > 0 {
            (self.kept, self.sent) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }

    /// A piece from the one to the other; what the other does not take at once is kept.
    fn take<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        pace: &mut impl Pace,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let granted = ready!(self.granted(cx, pace));
        SHARED.with_borrow_mut(|shared| {
            let room = usize::try_from(granted.bytes()).unwrap_or(PIECE).min(PIECE);
            let mut piece = ReadBuf::new(shared.get_mut(..room).unwrap_or_default());
            let came = Pin::new(&mut *from).poll_read(cx, &mut piece);
            let bytes = piece.filled();
            pace.passed(self.up, granted, DataSize::from_bytes(bytes.len() as u64));
            ready!(came)?;
            if bytes.is_empty() {
                self.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            let sent = match Pin::new(&mut *to).poll_write(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            self.kept.extend_from_slice(bytes.get(sent..).unwrap_or_default());
            Poll::Ready(Ok(()))
        })
    }

    /// How much may be taken, once anything may.
    fn granted(&mut self, cx: &mut Context<'_>, pace: &mut impl Pace) -> Poll<DataSize> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            match pace.ask(self.up, DataSize::from_bytes(PIECE as u64)) {
                Grant::Now(size) => return Poll::Ready(size),
                Grant::Later(time) => {
                    self.wait = Some(Box::pin(tokio::time::sleep(time.max(Duration::from_millis(1)))))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// Lets pass what it is told to, and counts.
    #[derive(Default)]
    struct Counting {
        waits: u32,
        passed: [u64; 2],
        open: u64,
    }

    impl Pace for Counting {
        fn ask(&mut self, _: bool, wanted: DataSize) -> Grant {
            if self.waits > 0 {
                self.waits -= 1;
                return Grant::Later(Duration::from_millis(5));
            }
            self.open += wanted.bytes().min(10_000);
            Grant::Now(wanted.min(DataSize::from_bytes(10_000)))
        }
        fn passed(&mut self, up: bool, granted: DataSize, passed: DataSize) {
            self.open -= granted.bytes();
            self.passed[usize::from(up)] += passed.bytes();
        }
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    #[test]
    fn both_ways_are_carried_to_their_ends() {
        block_on(async {
            let ((mut program, mut edge), (mut server, mut origin)) = (duplex(1000), duplex(700));
            let question: Vec<u8> = (0..50_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
            let mut pace = Counting { waits: 3, ..Counting::default() };
            let talk = async {
                program.write_all(&question).await.unwrap();
                program.shutdown().await.unwrap();
                let mut answer = String::new();
                program.read_to_string(&mut answer).await.unwrap();
                assert_eq!(answer, "answer");
            };
            let serve = async {
                let mut heard = Vec::new();
                origin.read_to_end(&mut heard).await.unwrap();
                assert!(heard.strip_prefix(b"early").unwrap() == question);
                origin.write_all(b"answer").await.unwrap();
                drop(origin);
            };
            let carried = carry(&mut edge, &mut server, b"early".to_vec(), Vec::new(), &mut pace);
            let (carried, (), ()) = tokio::join!(carried, talk, serve);
            carried.unwrap();
            assert_eq!((pace.passed, pace.open, pace.waits), ([6, 50_000], 0, 0));
        });
    }

    #[test]
    fn a_slow_receiver_slows_its_sender() {
        block_on(async {
            let ((mut program, mut edge), (mut server, _origin)) = (duplex(1000), duplex(1000));
            let mut pace = Counting::default();
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
                carried = carry(&mut edge, &mut server, Vec::new(), Vec::new(), &mut pace) => panic!("{carried:?}"),
                written = written => written,
            };
            assert!(stuck <= 4000, "{stuck} bytes were taken for a server that takes 1000");
        });
    }
}
