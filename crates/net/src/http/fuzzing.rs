//! Entry points of the HTTP/1.1 parsers for the fuzz targets.
//!
//! They only forward, so the targets test the same code that a connection uses.

use std::time::SystemTime;

use marline_core::fetch::{ConnError, ReqId, ResponseHead};
use marline_core::units::DataSize;

use super::chunked::ChunkDecoder;
use super::{Event, Sink, response, response_head};

/// The status of a proxy's response to CONNECT.
pub fn connect_status(head: &[u8]) -> Option<u16> {
    super::proxy_tunnel::response_status(head)
}

/// The response parser of one connection, without sockets.
pub struct ResponseParser(response::ResponseParser);

impl ResponseParser {
    /// A parser without pending requests.
    #[expect(clippy::new_without_default, reason = "same method names as the wrapped type")]
    pub fn new() -> Self {
        Self(response::ResponseParser::new())
    }

    /// Registers a request. Requests must be registered in the order in which they were sent.
    pub fn expect_response(&mut self, req: ReqId) {
        self.0.expect_response(req);
    }

    /// Accepts the body of the current response, up to `limit` bytes. No effect if `req` is not the current request.
    pub fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        self.0.accept(req, limit);
    }

    /// Cancels a request. The parser stops when it reaches the response of this request.
    pub fn cancel(&mut self, req: ReqId) {
        self.0.cancel(req);
    }

    /// Whether the parser can use more bytes now. It cannot while a response head waits for [`Self::accept`].
    pub fn wants_bytes(&self) -> bool {
        self.0.wants_bytes()
    }

    /// The next event that needs no further bytes: the end of a body, or of the connection.
    #[expect(clippy::should_implement_trait, reason = "same method names as the wrapped type")]
    pub fn next_event(&mut self) -> Option<Event> {
        self.0.next_event()
    }

    /// Parses bytes until the first event. Returns the number of bytes used, and the event. The caller passes the unused
    /// bytes again.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> (usize, Option<Event>) {
        self.0.feed(bytes, sink)
    }

    /// Reports that the connection has ended, with an error or normally (`None`). `unread` bytes of an incomplete head are
    /// buffered.
    pub fn on_eof(&mut self, error: Option<ConnError>, unread: usize) {
        self.0.on_eof(error, unread);
    }
}

/// Decodes a chunked body that arrives in these pieces. Returns how many bytes belong to it and whether it is
/// complete; `None`: it is invalid.
pub fn chunked<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut payload: impl FnMut(&[u8]),
) -> Option<(usize, bool)> {
    let (mut chunks, mut used) = (ChunkDecoder::new(), 0);
    for piece in pieces {
        used += chunks.feed(piece, &mut payload).ok()?;
    }
    Some((used, chunks.is_done()))
}

/// Parses the header fields of a response. Returns the head for `marline_core` and the Content-Disposition. `None`: the
/// framing of the body is ambiguous, for example with two different Content-Length fields.
pub fn fields<'a>(
    status: u16,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Option<(ResponseHead, Option<String>)> {
    // `true`: the response is HTTP/1.1, so the connection is persistent.
    let parsed = response_head::parse_head(status, true, fields, now).ok()?;
    Some((parsed.head, parsed.content_disposition))
}
