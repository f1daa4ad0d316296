//! What is known of a resource, and its responses to a player: a head, and the bytes that follow.

use std::ops::Range;
use std::time::Instant;

use marline_core::fetch::{ByteRange, RequestRange};
use marline_core::units::DataSize;
use marline_download::KnownResource;
use marline_net::egress::EgressPolicy;
use marline_net::http::ResponseMeta;
use url::Url;

use crate::client::range::{self, RequestedRange};
use crate::delivery::stream_body::StreamBody;
use crate::upstream::request_error::RequestError;
use crate::upstream::single_link::{PeekOutcome, SingleLinkResponse};

/// What is known of a resource whose ranges provably belong together.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    /// Size and strong validator.
    pub(crate) known: KnownResource,
    pub(crate) description: ResponseMeta,
    /// The URL after all redirects.
    pub(crate) url: Url,
    /// The destinations to which this URL may connect.
    pub(crate) egress: EgressPolicy,
    /// When a response of the origin server last confirmed all this.
    pub(crate) checked_at: Instant,
}

/// The head of a response to the player.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    pub(crate) description: ResponseMeta,
    /// Size of the resource; `None`: unknown.
    pub(crate) total: Option<u64>,
    /// The byte range of a 206; `None`: a 200.
    pub(crate) range: Option<Range<u64>>,
    /// Whether the player may request ranges of it.
    pub(crate) accepts_ranges: bool,
}

/// The bytes that follow a head.
pub(crate) enum ResponseBody {
    /// Downloaded over all links.
    Stream(Box<StreamBody>),
    /// Passed on from one upstream response over one link.
    SingleLink(Box<SingleLinkResponse>),
}

impl ResponseBody {
    /// Reads bytes until `is_enough` accepts them or the body ends. They stay part of the body.
    pub(crate) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> PeekOutcome {
        match self {
            Self::Stream(stream) => stream.peek(is_enough).await,
            Self::SingleLink(single) => single.peek(is_enough).await,
        }
    }

    /// The bytes that [`peek`](Self::peek) has read.
    pub(crate) fn peeked(&self) -> &[u8] {
        match self {
            Self::Stream(stream) => stream.peeked(),
            Self::SingleLink(single) => single.peeked(),
        }
    }
}

impl Resource {
    pub(crate) fn response_head(&self, requested: RequestedRange) -> Result<ResponseHead, RequestError> {
        let total = self.known.total.bytes();
        let range = requested
            .resolve(total)
            .map_err(|range::UnsatisfiableRange| RequestError::RangeNotSatisfiable(total))?;
        Ok(ResponseHead { description: self.description.clone(), total: Some(total), range, accepts_ranges: true })
    }
}

/// The upstream request for the range that a player wants. `total` is the size of the resource, if known.
pub(crate) fn upstream_range(requested: RequestedRange, total: Option<u64>) -> RequestRange {
    match (requested, total) {
        (RequestedRange::Full, _) => RequestRange::Full,
        (RequestedRange::Bytes(from, None), _) => RequestRange::From(from),
        (RequestedRange::Bytes(from, Some(to)), _) => RequestRange::Bounded(ByteRange::new(from, to)),
        (RequestedRange::Suffix(len), Some(total)) => RequestRange::From(total.saturating_sub(len)),
        (RequestedRange::Suffix(_), None) => RequestRange::Full,
    }
}

/// The head and body of an upstream response that is passed on unchanged.
pub(crate) fn passthrough(response: SingleLinkResponse) -> Result<(ResponseHead, ResponseBody), RequestError> {
    let range = response.head.range.and_then(|range| range.range).map(|range| range.start..range.end);
    let total = response.head.range.and_then(|range| range.total).or(response.head.length);
    match response.head.status {
        206 if range.is_some() => {}
        200 => {}
        416 => return Err(RequestError::RangeNotSatisfiable(total.map_or(0, DataSize::bytes))),
        status => return Err(RequestError::Status(status)),
    }
    let range = range.filter(|_| response.head.status == 206);
    let total = total.map(DataSize::bytes);
    let head = ResponseHead { description: response.described.clone(), total, range, accepts_ranges: true };
    Ok((head, ResponseBody::SingleLink(Box::new(response))))
}
