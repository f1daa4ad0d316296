//! Bodies of the proxy's responses: texts, session streams, single-link responses, forwarded bodies, and events.
//!
//! [`ProxyBody`] implements hyper's `Body`. Dropping a body, which happens when the player closes its connection, ends
//! all work behind it.

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

/// The body of a response.
pub(super) enum ProxyBody {
    /// Bytes that the proxy itself has produced.
    Text(Full<Bytes>),
    /// A stream of a session.
    Stream(Box<StreamBody>),
    /// A stream of a session that has not been opened yet.
    Deferred(DeferredBody),
    /// The body of one upstream response.
    SingleLink(Pin<Box<dyn Future<Output = PendingChunk>>>),
    /// The body of another server's response, forwarded as it arrives.
    Forwarded(Incoming),
    /// Server-sent events.
    Events(Receiver<String>),
}

/// A response whose head is known and whose stream is opened later. `opening` yields `None` if it cannot be opened.
pub(super) struct DeferredBody {
    pub(super) opening: Pin<Box<dyn Future<Output = Option<Box<StreamBody>>>>>,
    /// The length of the body, which the head has announced.
    pub(super) remaining: u64,
    /// The connection on which it is sent.
    pub(super) permit: Option<Rc<ConnPermit>>,
}

/// A single-link response and its next chunk, once it has arrived.
type PendingChunk = (Box<SingleLinkResponse>, Option<Result<Bytes, marline_core::fetch::ConnError>>);

impl ProxyBody {
    /// Wraps one upstream response.
    pub(super) fn single_link(response: Box<SingleLinkResponse>) -> Self {
        Self::SingleLink(Box::pin(next_chunk(response)))
    }
}

async fn next_chunk(mut response: Box<SingleLinkResponse>) -> PendingChunk {
    let next = response.next_chunk().await;
    (response, next)
}

/// A task that is aborted when this is dropped.
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The state of the transfer that fills a body.
pub(super) struct TransferState {
    /// The metadata of its first successful upstream response.
    pub(super) description: Rc<RefCell<Option<ResourceInfo>>>,
    /// The result of the transfer; `None` while it runs.
    pub(super) outcome: Rc<RefCell<Option<Result<(), DownloadError>>>>,
    /// Every link has failed, and none is expected back soon.
    pub(super) all_links_down: Rc<Cell<bool>>,
}

/// The body of one response to a player, read from the window of a session's download.
pub(super) struct StreamBody {
    id: u64,
    session: Rc<Session>,
    segment: Option<Rc<TrackSegment>>,
    window: Rc<RevocableWindow>,
    pub(super) transfer: TransferState,
    /// The offset at which it began.
    start: u64,
    /// The offset of the next byte.
    next_offset: u64,
    /// Bytes that were read from the window and not yet delivered.
    peeked: Bytes,
    /// Bytes that were announced and not delivered yet; `None`: the length is unknown.
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

    /// Sets the connection on which it is sent. Revoking the window closes that connection.
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

    /// Waits until every link has failed. Never returns while one works.
    pub(super) async fn wait_until_all_links_down(&self) {
        while !self.transfer.all_links_down.get() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sets the number of bytes that are announced to the player.
    pub(super) fn set_length(&mut self, bytes: Option<u64>) {
        self.remaining = bytes;
    }

    /// Whether the transfer has failed and no byte is buffered.
    pub(super) fn has_failed_without_data(&self) -> bool {
        let has_some = self.window.reader().is_some_and(|reader| reader.buffered().1 > 0);
        !has_some && !matches!(*self.transfer.outcome.borrow(), Some(Ok(())) | None)
    }

    /// Reads bytes until `is_enough` accepts them or the body ends. They stay part of the body.
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

    /// The bytes that [`peek`](Self::peek) has read.
    pub(super) fn peeked(&self) -> &[u8] {
        &self.peeked
    }

    /// Polls a body that is not subject to the startup gate.
    pub(super) fn poll_ungated(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.session.startup_gate.release();
        self.poll_bytes(cx)
    }

    /// The URL after all redirects, and the destinations to which URLs in this body may lead.
    pub(super) fn source_url(&self) -> Option<(Url, EgressPolicy)> {
        let description = self.transfer.description.borrow();
        description.as_ref().map(|info| (info.url.clone(), info.egress.referred_by(info.server)))
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
                return Poll::Ready(Some(Err(io::Error::other(
                    "the response was ended because another client needs its memory",
                ))));
            };
            let Poll::Ready(next) = reader.poll_next(cx) else { return Poll::Pending };
            let is_finished = || matches!(*self.transfer.outcome.borrow(), Some(Ok(())));
            match (next, self.remaining) {
                (Some(bytes), _) => self.add_peeked(bytes),
                (None, None) if is_finished() => return Poll::Ready(None),
                // An error makes hyper cut the connection, so that the player does not take the body for complete.
                (None, _) => return Poll::Ready(Some(Err(io::Error::other("the transfer ended prematurely")))),
            }
        }
        // The startup gate may withhold some or all of the bytes.
        let mut allowed = self.session.deliverable_bytes(self.start, self.next_offset, self.peeked.len() as u64);
        if allowed == 0 && !self.peeked.is_empty() {
            self.session.startup_gate.register_waker(cx);
            if self.transfer.outcome.borrow().is_none() {
                return Poll::Pending;
            }
            // The transfer has ended, so waiting for more data is pointless.
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
                    return Poll::Ready(Some(Err(io::Error::other(
                        "the download of this response could not be started",
                    ))));
                }
            }
        }
        match this {
            // Unreachable: replaced by another variant above.
            Self::Deferred(_) => Poll::Pending,
            Self::Text(text) => Pin::new(text).poll_frame(cx).map(|f| f.map(|f| f.map_err(|never| match never {}))),
            Self::Stream(stream) => stream.poll_bytes(cx).map(framed),
            Self::SingleLink(pending) => {
                let Poll::Ready((single, next)) = pending.as_mut().poll(cx) else { return Poll::Pending };
                *pending = Box::pin(next_chunk(single));
                Poll::Ready(framed(next.map(|next| next.map_err(|error| io::Error::other(error.text)))))
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

/// As often as a transfer reports its progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Bytes as a body.
pub(super) fn full_body(bytes: Bytes) -> ProxyBody {
    ProxyBody::Text(Full::new(bytes))
}

/// A text as a body, with a newline at its end.
pub(super) fn text_body(text: impl Into<String>) -> ProxyBody {
    let mut text: String = text.into();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    ProxyBody::Text(Full::new(Bytes::from(text)))
}
