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
use marline_download::store::StreamIdentity;
use marline_download::{DownloadError, ResourceInfo};
use marline_net::egress::EgressPolicy;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use url::Url;

use super::client_admission::ConnPermit;
use super::revocable_windows::RevocableWindow;
use super::session::{Session, wait_for_identity};
use super::single_link::{PeekOutcome, SingleLinkResponse, concat};
use super::track_playback::TrackSegment;

/// The body of an answer.
pub(super) enum ProxyBody {
    /// Some bytes of ours.
    Text(Full<Bytes>),
    /// What a session plays.
    Stream(Box<StreamBody>),
    /// What a session will play when its turn comes.
    Deferred(DeferredBody),
    /// What one answer brings.
    SingleLink(Pin<Box<dyn Future<Output = PendingChunk>>>),
    /// What another server sends.
    Forwarded(Incoming),
    /// Server-sent events.
    Events(Receiver<String>),
}

/// An answer whose head is known and whose bytes come later; nothing: they cannot be had.
pub(super) struct DeferredBody {
    pub(super) opening: Pin<Box<dyn Future<Output = Option<Box<StreamBody>>>>>,
    pub(super) remaining: u64,
    /// The connection that it is sent on.
    pub(super) permit: Option<Rc<ConnPermit>>,
}

/// An answer that is passed on, and its next piece.
type PendingChunk = (Box<SingleLinkResponse>, Option<Result<Bytes, marline_core::fetch::ConnError>>);

impl ProxyBody {
    /// What one answer brings.
    pub(super) fn single_link(response: Box<SingleLinkResponse>) -> Self {
        Self::SingleLink(Box::pin(next_chunk(response)))
    }
}

async fn next_chunk(mut response: Box<SingleLinkResponse>) -> PendingChunk {
    let next = response.next_chunk().await;
    (response, next)
}

/// A task that ends with its owner.
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The work behind a body.
pub(super) struct TransferState {
    /// What its first good answer said.
    pub(super) description: Rc<RefCell<Option<ResourceInfo>>>,
    /// How it ended.
    pub(super) outcome: Rc<RefCell<Option<Result<(), DownloadError>>>>,
    /// No link brings anything, and none is expected to soon.
    pub(super) all_links_down: Rc<Cell<bool>>,
}

/// The bytes of one answer to a player.
pub(super) struct StreamBody {
    id: u64,
    session: Rc<Session>,
    segment: Option<Rc<TrackSegment>>,
    window: Rc<RevocableWindow>,
    pub(super) transfer: TransferState,
    /// Where it began.
    start: u64,
    /// Where the next byte is from.
    next_offset: u64,
    /// Bytes that have come, and may not go yet.
    peeked: Bytes,
    /// Bytes that were promised and not delivered; none: until the end.
    remaining: Option<u64>,
}

impl StreamBody {
    pub(super) fn new(
        id: u64,
        from: u64,
        session: Rc<Session>,
        segment: Option<Rc<TrackSegment>>,
        window: Rc<RevocableWindow>,
        transfer: TransferState,
    ) -> Self {
        Self {
            id,
            session,
            segment,
            window,
            transfer,
            start: from,
            next_offset: from,
            peeked: Bytes::new(),
            remaining: None,
        }
    }

    /// It is sent on this connection, which is closed when its window is revoked.
    pub(super) fn set_connection(&self, permit: &Rc<ConnPermit>) {
        self.window.set_connection(permit);
    }

    /// Waits for the first byte, or the end.
    pub(super) async fn wait_for_identity(&self) -> Option<StreamIdentity> {
        let reader = self.window.reader()?;
        let identity = wait_for_identity(&reader).await;
        reader.fix_identity();
        identity
    }

    /// Waits until every link is given up; for ever while one is not.
    pub(super) async fn wait_until_all_links_down(&self) {
        while !self.transfer.all_links_down.get() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The player is told of so many bytes.
    pub(super) fn set_length(&mut self, bytes: Option<u64>) {
        self.remaining = bytes;
    }

    /// Nothing has come, and nothing will.
    pub(super) fn has_failed_without_data(&self) -> bool {
        let has_some = self.window.reader().is_some_and(|reader| reader.buffered().1 > 0);
        !has_some && !matches!(*self.transfer.outcome.borrow(), Some(Ok(())) | None)
    }

    /// Takes bytes in until there are enough of them, or the end; they stay.
    pub(super) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> PeekOutcome {
        while !is_enough(&self.peeked) {
            let is_complete = self.remaining == Some(self.peeked.len() as u64);
            let reader = self.window.reader().filter(|_| !is_complete);
            let bytes = match reader {
                Some(reader) => poll_fn(|cx| reader.poll_next(cx)).await,
                None => None,
            };
            let Some(bytes) = bytes else {
                let has_ended = is_complete || matches!(*self.transfer.outcome.borrow(), Some(Ok(())));
                return if has_ended { PeekOutcome::Ended } else { PeekOutcome::Failed };
            };
            self.add_peeked(bytes);
        }
        PeekOutcome::Enough
    }

    /// The bytes that have been taken in.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.peeked
    }

    /// The next bytes of a body of which nothing is held back.
    pub(super) fn poll_ungated(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.session.startup_gate.release();
        self.poll_bytes(cx)
    }

    /// Where it comes from, behind all redirects, and what addresses in it may lead to.
    pub(super) fn source_url(&self) -> Option<(Url, EgressPolicy)> {
        let learnt = self.transfer.description.borrow();
        learnt.as_ref().map(|learnt| (learnt.url.clone(), learnt.egress.referred_by(learnt.server)))
    }

    fn add_peeked(&mut self, mut bytes: Bytes) {
        let remaining = self.remaining.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        bytes.truncate(remaining.saturating_sub(self.peeked.len()));
        self.window.on_read(self.session.now());
        self.session.on_bytes_read(self.next_offset + self.peeked.len() as u64, &bytes);
        self.peeked = concat(std::mem::take(&mut self.peeked), bytes);
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining == Some(0) {
            return Poll::Ready(None);
        }
        if self.peeked.is_empty() {
            let Some(reader) = self.window.reader() else {
                return Poll::Ready(Some(Err(io::Error::other("its memory is needed for another client"))));
            };
            let Poll::Ready(next) = reader.poll_next(cx) else { return Poll::Pending };
            let is_finished = || matches!(*self.transfer.outcome.borrow(), Some(Ok(())));
            match (next, self.remaining) {
                (Some(bytes), _) => self.add_peeked(bytes),
                (None, None) if is_finished() => return Poll::Ready(None),
                // The connection is cut, which the player takes for what it is.
                (None, _) => return Poll::Ready(Some(Err(io::Error::other("the transfer broke off")))),
            }
        }
        let mut allowed = self.session.deliverable_bytes(self.start, self.next_offset, self.peeked.len() as u64);
        if allowed == 0 && !self.peeked.is_empty() {
            self.session.startup_gate.register_waker(cx);
            if self.transfer.outcome.borrow().is_none() {
                return Poll::Pending;
            }
            // Everything has come, or nothing more will: nobody waits for it.
            self.session.release_startup();
            allowed = u64::MAX;
        }
        let bytes = self.peeked.split_to(usize::try_from(allowed).unwrap_or(usize::MAX).min(self.peeked.len()));
        let len = bytes.len() as u64;
        self.remaining = self.remaining.map(|left| left.saturating_sub(len));
        self.session.delivered_bytes.set(self.session.delivered_bytes.get() + len);
        self.next_offset += len;
        if let Some(segment) = &self.segment {
            segment.on_read(self.next_offset - self.start, self.remaining == Some(0));
        }
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.session.left_early.set(self.remaining.is_some_and(|left| left > 0));
        self.session.on_response_ended(self.id, self.window.size());
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let framed = |bytes: Option<io::Result<Bytes>>| bytes.map(|bytes| bytes.map(Frame::data));
        let this = self.get_mut();
        if let Self::Deferred(deferred) = this {
            match deferred.opening.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(stream)) => {
                    deferred.permit.iter().for_each(|permit| stream.set_connection(permit));
                    *this = Self::Stream(stream);
                }
                Poll::Ready(None) => {
                    *this = Self::Text(Full::default());
                    return Poll::Ready(Some(Err(io::Error::other("the transfer cannot begin"))));
                }
            }
        }
        match this {
            // It has become something else above.
            Self::Deferred(_) => Poll::Pending,
            Self::Text(text) => Pin::new(text).poll_frame(cx).map(|f| f.map(|f| f.map_err(|never| match never {}))),
            Self::Stream(stream) => stream.poll_bytes(cx).map(framed),
            Self::SingleLink(pending) => {
                let Poll::Ready((single, next)) = pending.as_mut().poll(cx) else { return Poll::Pending };
                *pending = Box::pin(next_chunk(single));
                Poll::Ready(framed(next.map(|next| next.map_err(|trouble| io::Error::other(trouble.text)))))
            }
            Self::Forwarded(body) => Pin::new(body).poll_frame(cx).map(|f| f.map(|f| f.map_err(io::Error::other))),
            Self::Events(events) => {
                events.poll_recv(cx).map(|e| e.map(|e| Ok(Frame::data(Bytes::from(format!("data: {e}\n\n"))))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Stream(stream) => stream.remaining == Some(0),
            Self::Forwarded(body) => body.is_end_stream(),
            Self::Deferred(deferred) => deferred.remaining == 0,
            Self::SingleLink(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Stream(stream) => stream.remaining.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Deferred(deferred) => SizeHint::with_exact(deferred.remaining),
            Self::Forwarded(body) => body.size_hint(),
            Self::SingleLink(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}

/// As often as a transfer tells how it goes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes as a body.
pub(super) fn full_body(bytes: Bytes) -> ProxyBody {
    ProxyBody::Text(Full::new(bytes))
}

/// A text as a body.
pub(super) fn text_body(text: impl Into<String>) -> ProxyBody {
    let mut text: String = text.into();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    ProxyBody::Text(Full::new(Bytes::from(text)))
}
