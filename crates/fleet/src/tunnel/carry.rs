//! The bytes of one tunnel, both ways, until both have ended.
//!
//! In: both ends' connections, one of them TLS; what was read of them already. Out: the same bytes on the other
//! side, their ends, and how many they were.
//!
//! 1. What has been taken and not been sent yet is the only thing that is kept, and nothing more is taken meanwhile: a slow
//!    receiver slows its sender.
//! 2. The end of one direction is passed on, and the other one goes on.
//! 3. What the edge sends goes as its share of the relay's capacity lets it ([`Pace`]); so does what it receives.
//! 4. Memory to read into is shared by all tunnels of a thread: an idle one holds none, and one that stands still holds a piece
//!    that is smaller where many do (`memory`).
//! 5. The directions take turns, so that neither waits for the other one to have nothing to do.
//! 6. A tunnel that says nothing for too long is over ([`Patience`]): its own bytes count, not its edge's.
//!
//! Splice cannot be used: what one side sends is sealed.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use marline_core::units::{DataSize, Duration};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::memory::{Kept, piece};

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

/// How the bytes from the near end go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Going {
    /// How many have come.
    pub(crate) up: u64,
    /// Whether some wait for the far end to take them.
    pub(crate) waits: bool,
}

/// How long no byte may move.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// While both ends may still send.
    open: Duration,
    /// When one of them has ended: who asks and ends waits for an answer, and nobody computes it for so long.
    half: Duration,
}

/// chosen: a shell that was left open over night is there in the morning; nginx gives a half-closed connection a minute,
/// Linux `FIN_WAIT2` one as well, RFC 5382 (REQ-5) what is closed on one side four.
const PATIENCE: Patience = Patience { open: Duration::from_secs(24 * 60 * 60), half: Duration::from_secs(10 * 60) };

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
    carry_watched((near, far), (early, late), pace, |_, _, _| {}).await
}

/// The same, and whenever anything has happened `watch` is told the near end, and how it goes.
pub(crate) async fn carry_watched<E, S>(
    ends: (&mut E, &mut S),
    came: (Vec<u8>, Vec<u8>),
    pace: &mut impl Pace,
    watch: impl FnMut(&mut Context<'_>, &E, Going),
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    carry_within(PATIENCE, ends, came, pace, watch).await
}

async fn carry_within<E, S>(
    patience: Patience,
    (near, far): (&mut E, &mut S),
    (early, late): (Vec<u8>, Vec<u8>),
    pace: &mut impl Pace,
    mut watch: impl FnMut(&mut Context<'_>, &E, Going),
) -> io::Result<()>
where
    E: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = Way { kept: Kept::new(early), ..Way::new(true) };
    let mut down = Way { kept: Kept::new(late), ..Way::new(false) };
    let (mut silence, mut is_ups_turn) = (Silence::new(patience), true);
    std::future::poll_fn(|cx| {
        let (mut up_waits, mut down_waits) = (up.has_ended(), down.has_ended());
        while !(up_waits && down_waits) {
            if is_ups_turn && !up_waits {
                up_waits = up.step(cx, near, far, pace)?.is_pending() || up.has_ended();
            } else if !is_ups_turn && !down_waits {
                down_waits = down.step(cx, far, near, pace)?.is_pending() || down.has_ended();
            }
            is_ups_turn = !is_ups_turn;
        }
        watch(cx, near, Going { up: up.taken, waits: !up.kept.rest().is_empty() });
        if up.has_ended() && down.has_ended() {
            return Poll::Ready(Ok(()));
        }
        silence.poll(cx, up.moved.wrapping_add(down.moved), up.is_open() && down.is_open()).map(Err)
    })
    .await
}

/// Since when nothing has moved. The clock is looked at when something has, the timer runs on.
struct Silence {
    patience: Patience,
    moved: u64,
    is_open: bool,
    since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Silence {
    fn new(patience: Patience) -> Self {
        let since = Instant::now();
        let timer = Box::pin(tokio::time::sleep_until(since + patience.open));
        Self { patience, moved: 0, is_open: true, since, timer }
    }

    /// Ready: it has lasted too long.
    fn poll(&mut self, cx: &mut Context<'_>, moved: u64, is_open: bool) -> Poll<io::Error> {
        if moved != self.moved || is_open != self.is_open {
            (self.moved, self.since) = (moved, Instant::now());
        }
        let longest = if is_open { self.patience.open } else { self.patience.half };
        if std::mem::replace(&mut self.is_open, is_open) != is_open {
            self.timer.as_mut().reset(self.since + longest);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let ends = self.since + longest;
            if ends <= Instant::now() {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "silent for too long"));
            }
            self.timer.as_mut().reset(ends);
        }
    }
}

/// One direction.
struct Way {
    up: bool,
    state: State,
    /// Taken and not sent yet.
    kept: Kept,
    /// Bytes that were taken, and those that were taken or sent after they had waited.
    taken: u64,
    moved: u64,
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
        Self { up, state: State::Open, kept: Kept::default(), taken: 0, moved: 0, wait: None }
    }

    fn is_open(&self) -> bool {
        self.state == State::Open
    }

    fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// One step; ready: there may be another one.
    fn step<R, W>(
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
        ready!(self.send(cx, to))?;
        match self.state {
            State::Ended => {}
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
        Poll::Ready(Ok(()))
    }

    /// Everything that is kept.
    fn send(&mut self, cx: &mut Context<'_>, to: &mut (impl AsyncWrite + Unpin)) -> Poll<io::Result<()>> {
        while !self.kept.rest().is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, self.kept.rest()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => {
                    self.kept.pass(sent);
                    self.moved = self.moved.wrapping_add(sent as u64);
                }
            }
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
            let room = usize::try_from(granted.bytes()).unwrap_or(PIECE).min(piece(PIECE));
            let mut piece = ReadBuf::new(shared.get_mut(..room).unwrap_or_default());
            let came = Pin::new(&mut *from).poll_read(cx, &mut piece);
            let bytes = piece.filled();
            pace.passed(self.up, granted, DataSize::from_bytes(bytes.len() as u64));
            self.moved = self.moved.wrapping_add(bytes.len() as u64);
            self.taken += bytes.len() as u64;
            ready!(came)?;
            if bytes.is_empty() {
                self.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            let sent = match Pin::new(&mut *to).poll_write(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            self.kept.put(bytes.get(sent..).unwrap_or_default());
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

    /// A socket that always has something to read, and takes everything.
    struct Busy;

    impl AsyncRead for Busy {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            out.put_slice(&[0; 100]);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Busy {
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

    /// Ends the tunnel after so many pieces.
    #[derive(Default)]
    struct Turns {
        taken: Vec<bool>,
    }

    /// As fast as both ends can.
    struct Free;

    impl Pace for Free {
        fn ask(&mut self, _: bool, wanted: DataSize) -> Grant {
            Grant::Now(wanted)
        }
        fn passed(&mut self, _: bool, _: DataSize, _: DataSize) {}
    }

    impl Pace for Turns {
        fn ask(&mut self, up: bool, wanted: DataSize) -> Grant {
            self.taken.push(up);
            if self.taken.len() > 1000 { Grant::Later(Duration::from_secs(3600)) } else { Grant::Now(wanted) }
        }
        fn passed(&mut self, _: bool, _: DataSize, _: DataSize) {}
    }

    #[test]
    fn neither_direction_waits_for_the_other_to_have_nothing_to_do() {
        block_on(async {
            let (mut turns, mut near, mut far) = (Turns::default(), Busy, Busy);
            let carried = carry(&mut near, &mut far, Vec::new(), Vec::new(), &mut turns);
            assert!(tokio::time::timeout(Duration::from_millis(50), carried).await.is_err());
            let ups = turns.taken.iter().filter(|up| **up).count();
            assert!((400..=600).contains(&ups), "{ups} of {} pieces went up", turns.taken.len());
        });
    }

    #[test]
    fn who_says_nothing_for_too_long_is_over_and_earlier_when_one_end_has_ended() {
        block_on(async {
            let patience = Patience { open: Duration::from_secs(3600), half: Duration::from_millis(60) };
            let ((mut program, mut edge), (mut server, mut origin)) = (duplex(1000), duplex(1000));
            let (mut free, came) = (Free, (Vec::new(), Vec::new()));
            let carried = carry_within(patience, (&mut edge, &mut server), came, &mut free, |_, _, _| {});
            let talk = async {
                // Longer than the short patience, which does not count yet.
                tokio::time::sleep(Duration::from_millis(150)).await;
                program.shutdown().await.unwrap();
                for _ in 0..5 {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    origin.write_all(b"x").await.unwrap();
                }
            };
            let (ended, ()) = tokio::join!(carried, talk);
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            let mut heard = Vec::new();
            drop((edge, server));
            program.read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, b"xxxxx");
        });
    }
}
