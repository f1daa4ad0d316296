//! Bodies of the proxy's responses: texts, streams over all links, single-link responses, forwarded bodies, and events.
//!
//! [`ProxyBody`] implements hyper's `Body`. Dropping a body, which happens when the player closes its connection, ends
//! all work behind it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::mpsc::Receiver;

use crate::delivery::stream_body::{DeferredBody, StreamBody};
use crate::upstream::single_link::SingleLinkResponse;

/// The body of a response.
pub(crate) enum ProxyBody {
    /// Bytes that the proxy itself has produced.
    Text(Full<Bytes>),
    /// Downloaded over all links.
    Stream(Box<StreamBody>),
    /// Downloaded over all links, and not opened yet.
    Deferred(DeferredBody),
    /// The body of one upstream response.
    SingleLink(Pin<Box<dyn Future<Output = PendingChunk>>>),
    /// The body of another server's response, forwarded as it arrives.
    Forwarded(Incoming),
    /// Server-sent events.
    Events(Receiver<String>),
}

/// A single-link response and its next chunk, once it has arrived.
type PendingChunk = (Box<SingleLinkResponse>, Option<Result<Bytes, marline_core::fetch::ConnError>>);

impl ProxyBody {
    /// Wraps one upstream response.
    pub(crate) fn single_link(response: Box<SingleLinkResponse>) -> Self {
        Self::SingleLink(Box::pin(next_chunk(response)))
    }
}

async fn next_chunk(mut response: Box<SingleLinkResponse>) -> PendingChunk {
    let next = response.next_chunk().await;
    (response, next)
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
            Self::Stream(stream) => stream.remaining() == Some(0),
            Self::Forwarded(body) => body.is_end_stream(),
            Self::Deferred(deferred) => deferred.remaining == 0,
            Self::SingleLink(_) | Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Stream(stream) => stream.remaining().map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Deferred(deferred) => SizeHint::with_exact(deferred.remaining),
            Self::Forwarded(body) => body.size_hint(),
            Self::SingleLink(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}

pub(crate) fn full_body(bytes: Bytes) -> ProxyBody {
    ProxyBody::Text(Full::new(bytes))
}

/// A text as a body, with a newline at its end.
pub(crate) fn text_body(text: impl Into<String>) -> ProxyBody {
    let mut text: String = text.into();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    ProxyBody::Text(Full::new(Bytes::from(text)))
}
