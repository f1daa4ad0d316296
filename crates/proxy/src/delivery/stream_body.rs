//! Body of one response to a player, read from the window of a download (its bounded buffer in memory).
//!
//! The bytes leave in order. Dropping the body, which happens when the player closes its connection, ends the transfer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use marline_download::store::StreamIdentity;
use marline_download::{DownloadError, ResourceInfo};
use marline_net::egress::EgressPolicy;
use url::Url;

use super::Delivery;
use crate::client::admission::ConnPermit;
use crate::client::windows::RevocableWindow;
use crate::player::track_playback::TrackSegment;
use crate::upstream::single_link::{PeekOutcome, concat};

/// A response whose head is known and whose stream is opened later. `opening` yields `None` if it cannot be opened.
pub(crate) struct DeferredBody {
    pub(crate) opening: Pin<Box<dyn Future<Output = Option<Box<StreamBody>>>>>,
    /// The length of the body, which the head has announced.
    pub(crate) remaining: u64,
    /// The connection on which it is sent.
    pub(crate) permit: Option<Rc<ConnPermit>>,
}

/// The state of the transfer that fills a body.
pub(crate) struct TransferState {
    /// The metadata of its first successful upstream response.
    pub(crate) description: Rc<RefCell<Option<ResourceInfo>>>,
    /// The result of the transfer; `None` while it runs.
    pub(crate) outcome: Rc<RefCell<Option<Result<(), DownloadError>>>>,
    /// Every link has failed, and none is expected back soon.
    pub(crate) all_links_down: Rc<Cell<bool>>,
}

/// The body of one response to a player, read from the window of a session's download.
pub(crate) struct StreamBody {
    id: u64,
    delivery: Rc<Delivery>,
    segment: Option<Rc<TrackSegment>>,
    window: Rc<RevocableWindow>,
    pub(crate) transfer: TransferState,
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
    pub(crate) fn new(
        id: u64,
        from: u64,
        delivery: Rc<Delivery>,
        segment: Option<Rc<TrackSegment>>,
        window: Rc<RevocableWindow>,
        transfer: TransferState,
    ) -> Self {
        Self {
            id,
            delivery,
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
    pub(crate) fn set_connection(&self, permit: &Rc<ConnPermit>) {
        self.window.set_connection(permit);
    }

    /// Waits for the first byte, or the end. Returns the size and the validator of the resource.
    pub(crate) async fn wait_for_identity(&self) -> Option<StreamIdentity> {
        let reader = self.window.reader()?;
        let identity = poll_fn(|cx| reader.poll_identity(cx)).await;
        reader.fix_identity();
        identity
    }

    /// Waits until every link has failed. Never returns while one works.
    pub(crate) async fn wait_until_all_links_down(&self) {
        while !self.transfer.all_links_down.get() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sets the number of bytes that are announced to the player.
    pub(crate) fn set_length(&mut self, bytes: Option<u64>) {
        self.remaining = bytes;
    }

    /// How many bytes of the announced length are still to be delivered; `None`: the length is unknown.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Whether the transfer has failed and no byte is buffered.
    pub(crate) fn has_failed_without_data(&self) -> bool {
        let has_some = self.window.reader().is_some_and(|reader| reader.buffered().1 > 0);
        !has_some && !matches!(*self.transfer.outcome.borrow(), Some(Ok(())) | None)
    }

    /// Reads bytes until `is_enough` accepts them or the body ends. They stay part of the body.
    pub(crate) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> PeekOutcome {
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
    pub(crate) fn peeked(&self) -> &[u8] {
        &self.peeked
    }

    /// Polls a body that is not subject to the startup gate.
    pub(crate) fn poll_ungated(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.delivery.film.open_gate();
        self.poll_bytes(cx)
    }

    /// The URL after all redirects, and the destinations to which URLs in this body may lead.
    pub(crate) fn source_url(&self) -> Option<(Url, EgressPolicy)> {
        let description = self.transfer.description.borrow();
        description.as_ref().map(|info| (info.url.clone(), info.egress.referred_by(info.server)))
    }

    fn add_peeked(&mut self, mut bytes: Bytes) {
        let remaining = self.remaining.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
        bytes.truncate(remaining.saturating_sub(self.peeked.len()));
        self.window.on_read(self.delivery.now());
        self.delivery.on_bytes_read(self.next_offset + self.peeked.len() as u64, &bytes);
        self.peeked = concat(std::mem::take(&mut self.peeked), bytes);
    }

    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
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
        let mut allowed = self.delivery.deliverable_bytes(self.start, self.next_offset, self.peeked.len() as u64);
        if allowed == 0 && !self.peeked.is_empty() {
            self.delivery.film.register_waker(cx);
            if self.transfer.outcome.borrow().is_none() {
                return Poll::Pending;
            }
            // The transfer has ended, so waiting for more data is pointless.
            self.delivery.release_startup();
            allowed = u64::MAX;
        }
        let bytes = self.peeked.split_to(usize::try_from(allowed).unwrap_or(usize::MAX).min(self.peeked.len()));
        let len = bytes.len() as u64;
        self.remaining = self.remaining.map(|left| left.saturating_sub(len));
        self.delivery.responses.add_delivered(len);
        self.next_offset += len;
        if let Some(segment) = &self.segment {
            segment.on_read(self.next_offset - self.start, self.remaining == Some(0));
        }
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        let is_complete = self.remaining.is_none_or(|left| left == 0);
        self.delivery.on_response_ended(self.id, self.window.size(), is_complete);
    }
}

/// As often as a transfer reports its progress.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
