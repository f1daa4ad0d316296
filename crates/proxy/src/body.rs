//! The bodies of answers: text, what a session plays, what one answer brings, what is forwarded, events.
//!
//! In: turns to be polled. Out: frames. What a player lets go of ends at once with everything behind it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use marline_download::store::Identity;
use marline_download::{GetError, Learnt};
use marline_net::reach::Right;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use url::Url;

use super::clients::Seat;
use super::loans::Loan;
use super::series::Part;
use super::session::{Session, begun};
use super::single::{Peeked, Single, joined};

/// The body of an answer.
pub(super) enum Reply {
    /// Some bytes of ours.
    Text(Full<Bytes>),
    /// What a session plays.
    Play(Box<Play>),
    /// What a session will play when its turn comes.
    Late(Late),
    /// What one answer brings.
    Single(Pin<Box<dyn Future<Output = Passed>>>),
    /// What another server sends.
    Forward(Incoming),
    /// Server-sent events.
    Events(Receiver<String>),
}

/// An answer whose head is known and whose bytes come later; nothing: they cannot be had.
pub(super) struct Late {
    pub(super) opening: Pin<Box<dyn Future<Output = Option<Box<Play>>>>>,
    pub(super) left: u64,
    /// The connection that it is sent on.
    pub(super) seat: Option<Rc<Seat>>,
}

/// An answer that is passed on, and its next piece.
type Passed = (Box<Single>, Option<Result<Bytes, marline_core::fetch::ConnError>>);

impl Reply {
    /// What one answer brings.
    pub(super) fn single(single: Box<Single>) -> Self {
        Self::Single(Box::pin(pass(single)))
    }
}

async fn pass(mut single: Box<Single>) -> Passed {
    let next = single.next().await;
    (single, next)
}

/// A task that ends with its owner.
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The work behind a body.
pub(super) struct Work {
    /// What its first good answer said.
    pub(super) learnt: Rc<RefCell<Option<Learnt>>>,
    /// How it ended.
    pub(super) outcome: Rc<RefCell<Option<Result<(), GetError>>>>,
    /// No link brings anything, and none is expected to soon.
    pub(super) hopeless: Rc<Cell<bool>>,
}

/// The bytes of one answer to a player.
pub(super) struct Play {
    id: u64,
    session: Rc<Session>,
    part: Option<Rc<Part>>,
    loan: Rc<Loan>,
    pub(super) work: Work,
    /// Where it began.
    from: u64,
    /// Where the next byte is from.
    at: u64,
    /// Bytes that have come, and may not go yet.
    held: Bytes,
    /// Bytes that were promised and not delivered; none: until the end.
    left: Option<u64>,
}

impl Play {
    pub(super) fn new(
        id: u64,
        from: u64,
        session: Rc<Session>,
        part: Option<Rc<Part>>,
        loan: Rc<Loan>,
        work: Work,
    ) -> Self {
        Self { id, session, part, loan, work, from, at: from, held: Bytes::new(), left: None }
    }

    /// It is sent on this connection, which is closed when its window is revoked.
    pub(super) fn set_connection(&self, seat: &Rc<Seat>) {
        self.loan.set_connection(seat);
    }

    /// Waits for the first byte, or the end.
    pub(super) async fn begun(&self) -> Option<Identity> {
        let reader = self.loan.reader()?;
        let identity = begun(&reader).await;
        reader.fix();
        identity
    }

    /// Waits until every link is given up; for ever while one is not.
    pub(super) async fn is_hopeless(&self) {
        while !self.work.hopeless.get() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The player is told of so many bytes.
    pub(super) fn promise(&mut self, bytes: Option<u64>) {
        self.left = bytes;
    }

    /// Nothing has come, and nothing will.
    pub(super) fn is_over_before_it_began(&self) -> bool {
        let has_some = self.loan.reader().is_some_and(|reader| reader.held().1 > 0);
        !has_some && !matches!(*self.work.outcome.borrow(), Some(Ok(())) | None)
    }

    /// Takes bytes in until there are enough of them, or the end; they stay.
    pub(super) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> Peeked {
        while !is_enough(&self.held) {
            let is_all = self.left == Some(self.held.len() as u64);
            let reader = self.loan.reader().filter(|_| !is_all);
            let bytes = match reader {
                Some(reader) => poll_fn(|cx| reader.poll_next(cx)).await,
                None => None,
            };
            let Some(bytes) = bytes else {
                let has_ended = is_all || matches!(*self.work.outcome.borrow(), Some(Ok(())));
                return if has_ended { Peeked::Ended } else { Peeked::Broken };
            };
            self.take(bytes);
        }
        Peeked::Enough
    }

    /// The bytes that have been taken in.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.held
    }

    /// The next bytes of a body of which nothing is held back.
    pub(super) fn poll_whole(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.session.hold.release();
        self.poll_bytes(cx)
    }

    /// Where it comes from, behind all redirects, and what addresses in it may lead to.
    pub(super) fn place(&self) -> Option<(Url, Right)> {
        let learnt = self.work.learnt.borrow();
        learnt.as_ref().map(|learnt| (learnt.url.clone(), learnt.right.led_by(learnt.server)))
    }

    fn take(&mut self, mut bytes: Bytes) {
        let left = self.left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        bytes.truncate(left.saturating_sub(self.held.len()));
        self.loan.on_read(self.session.now());
        self.session.takes(self.at + self.held.len() as u64, &bytes);
        self.held = joined(std::mem::take(&mut self.held), bytes);
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        if self.held.is_empty() {
            let Some(reader) = self.loan.reader() else {
                return Poll::Ready(Some(Err(io::Error::other("its memory is needed for another client"))));
            };
            let Poll::Ready(next) = reader.poll_next(cx) else { return Poll::Pending };
            let ended_well = || matches!(*self.work.outcome.borrow(), Some(Ok(())));
            match (next, self.left) {
                (Some(bytes), _) => self.take(bytes),
                (None, None) if ended_well() => return Poll::Ready(None),
                // The connection is cut, which the player takes for what it is.
                (None, _) => return Poll::Ready(Some(Err(io::Error::other("the transfer broke off")))),
            }
        }
        let mut room = self.session.room(self.from, self.at, self.held.len() as u64);
        if room == 0 && !self.held.is_empty() {
            self.session.hold.wait(cx);
            if self.work.outcome.borrow().is_none() {
                return Poll::Pending;
            }
            // Everything has come, or nothing more will: nobody waits for it.
            self.session.let_go();
            room = u64::MAX;
        }
        let bytes = self.held.split_to(usize::try_from(room).unwrap_or(usize::MAX).min(self.held.len()));
        let len = bytes.len() as u64;
        self.left = self.left.map(|left| left.saturating_sub(len));
        self.session.delivered.set(self.session.delivered.get() + len);
        self.at += len;
        if let Some(part) = &self.part {
            part.is_taken(self.at - self.from, self.left == Some(0));
        }
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Drop for Play {
    fn drop(&mut self) {
        self.session.left_early.set(self.left.is_some_and(|left| left > 0));
        self.session.ended(self.id, self.loan.size());
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let framed = |bytes: Option<io::Result<Bytes>>| bytes.map(|bytes| bytes.map(Frame::data));
        let this = self.get_mut();
        if let Self::Late(late) = this {
            match late.opening.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(play)) => {
                    late.seat.iter().for_each(|seat| play.set_connection(seat));
                    *this = Self::Play(play);
                }
                Poll::Ready(None) => {
                    *this = Self::Text(Full::default());
                    return Poll::Ready(Some(Err(io::Error::other("the transfer cannot begin"))));
                }
            }
        }
        match this {
            // It has become something else above.
            Self::Late(_) => Poll::Pending,
            Self::Text(text) => Pin::new(text).poll_frame(cx).map(|f| f.map(|f| f.map_err(|never| match never {}))),
            Self::Play(play) => play.poll_bytes(cx).map(framed),
            Self::Single(passing) => {
                let Poll::Ready((single, next)) = passing.as_mut().poll(cx) else { return Poll::Pending };
                *passing = Box::pin(pass(single));
                Poll::Ready(framed(next.map(|next| next.map_err(|trouble| io::Error::other(trouble.text)))))
            }
            Self::Forward(body) => Pin::new(body).poll_frame(cx).map(|f| f.map(|f| f.map_err(io::Error::other))),
            Self::Events(events) => {
                events.poll_recv(cx).map(|e| e.map(|e| Ok(Frame::data(Bytes::from(format!("data: {e}\n\n"))))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Play(play) => play.left == Some(0),
            Self::Forward(body) => body.is_end_stream(),
            Self::Late(late) => late.left == 0,
            Self::Single(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Play(play) => play.left.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Late(late) => SizeHint::with_exact(late.left),
            Self::Forward(body) => body.size_hint(),
            Self::Single(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}

/// As often as a transfer tells how it goes.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Bytes as a body.
pub(super) fn whole(bytes: Bytes) -> Reply {
    Reply::Text(Full::new(bytes))
}

/// A text as a body.
pub(super) fn text(text: impl Into<String>) -> Reply {
    let mut text: String = text.into();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Reply::Text(Full::new(Bytes::from(text)))
}
