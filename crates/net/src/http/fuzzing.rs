//! HTTP/1.1 for the fuzz targets: the private parsers behind names that can be called from outside.
//!
//! Nothing is decided here: what the targets see is what a connection sees.

use std::time::SystemTime;

use marline_core::fetch::{Head, ReqId, Trouble};
use marline_core::units::DataSize;

use super::chunked::ChunkDecoder;
use super::{Event, Sink, response, response_head};

/// The status of a proxy's response to CONNECT.
pub fn connect_status(head: &[u8]) -> Option<u16> {
    super::upstream_proxy::response_status(head)
}

/// The answers of one connection, without the connection.
pub struct ResponseParser(response::ResponseParser);

impl ResponseParser {
    /// Nothing has been asked for.
    #[expect(clippy::new_without_default, reason = "the same words as the type that it stands for")]
    pub fn new() -> Self {
        Self(response::ResponseParser::new())
    }

    /// A request was sent behind the others.
    pub fn expect_response(&mut self, req: ReqId) {
        self.0.expect_response(req);
    }

    /// The body of the answer at hand may flow.
    pub fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        self.0.accept(req, limit);
    }

    /// An answer is not wanted.
    pub fn cancel(&mut self, req: ReqId) {
        self.0.cancel(req);
    }

    /// Whether bytes are of use now.
    pub fn wants_bytes(&self) -> bool {
        self.0.wants_bytes()
    }

    /// What can be said without further bytes.
    #[expect(clippy::should_implement_trait, reason = "the same words as the type that it stands for")]
    pub fn next_event(&mut self) -> Option<Event> {
        self.0.next_event()
    }

    /// Takes bytes from the front of what has come.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> (usize, Option<Event>) {
        self.0.feed(bytes, sink)
    }

    /// The connection has ended.
    pub fn on_eof(&mut self, error: Option<Trouble>, unread: usize) {
        self.0.on_eof(error, unread);
    }
}

/// Decodes a chunked body that comes in these pieces. Says how many bytes belong to it and whether it is complete; none:
/// it is broken.
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

/// Reads the fields of a head: what decides, and the Content-Disposition. None: the framing is in doubt.
pub fn fields<'a>(
    status: u16,
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    now: SystemTime,
) -> Option<(Head, Option<String>)> {
    let parsed = head::parse_head(status, true, fields, now).ok()?;
    Some((parsed.head, parsed.content_disposition))
}
