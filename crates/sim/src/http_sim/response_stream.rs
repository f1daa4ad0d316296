//! Meaning of the bytes in a connection's response stream.
//!
//! The simulated TCP carries only byte counts. This module keeps the pieces that the server writes, and returns
//! them to the client as the bytes arrive.

use std::collections::VecDeque;

use marline_core::fetch::{ByteRange, ReqId, ResponseHead};

/// The stream from the server to the client.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseStream {
    /// Pieces written and not yet read, each with the stream offset at its end.
    pieces: VecDeque<(u64, StreamPiece)>,
    bytes_written: u64,
    bytes_read: u64,
    overhead_bytes: u64,
}

/// A piece of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StreamPiece {
    /// The server's part of a TLS handshake.
    Handshake,
    Head(ReqId, Box<ResponseHead>),
    /// Part of a body: a range of a version of the file.
    Body(ReqId, Option<usize>, ByteRange),
    /// The response is complete.
    End(ReqId),
    /// The response was aborted and will never be complete.
    Abort(ReqId),
}

impl ResponseStream {
    /// The server writes a piece of `len` bytes; adjacent parts of one body are merged.
    pub(super) fn write(&mut self, piece: StreamPiece, len: u64) {
        self.bytes_written += len;
        if let (StreamPiece::Body(req, version, added), Some((end, StreamPiece::Body(last, last_version, range)))) =
            (&piece, self.pieces.back_mut())
            && (*req, *version, added.start) == (*last, *last_version, range.end)
        {
            *end = self.bytes_written;
            range.end = added.end;
            return;
        }
        self.pieces.push_back((self.bytes_written, piece));
    }

    /// The next piece, if `received` bytes of the stream have arrived; of a body, the part that has arrived.
    pub(super) fn read(&mut self, received: u64) -> Option<StreamPiece> {
        let (end, piece) = self.pieces.front_mut()?;
        if let StreamPiece::Body(req, version, span) = piece
            && *end > received
        {
            let len = received.saturating_sub(self.bytes_read);
            let part = ByteRange::new(span.start, span.start + len);
            span.start = part.end;
            self.bytes_read += len;
            return (len > 0).then_some(StreamPiece::Body(*req, *version, part));
        }
        if *end > received {
            return None;
        }
        let len = *end - self.bytes_read;
        self.bytes_read = *end;
        let (_, piece) = self.pieces.pop_front()?;
        if !matches!(piece, StreamPiece::Body(..)) {
            self.overhead_bytes += len;
        }
        Some(piece)
    }

    /// Bytes read that were not body.
    pub(super) const fn overhead(&self) -> u64 {
        self.overhead_bytes
    }

    /// Whether the client has read everything.
    pub(super) fn is_drained(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQ: ReqId = ReqId(0);

    fn body(start: u64, end: u64) -> StreamPiece {
        StreamPiece::Body(REQ, Some(0), ByteRange::new(start, end))
    }

    #[test]
    fn a_body_is_read_as_it_arrives_and_a_head_only_whole() {
        let mut stream = ResponseStream::default();
        stream.write(StreamPiece::Head(REQ, Box::default()), 300);
        stream.write(body(50, 60), 10);
        stream.write(body(60, 80), 20);
        stream.write(StreamPiece::End(REQ), 0);
        assert_eq!(stream.read(299), None);
        assert_eq!(stream.read(305), Some(StreamPiece::Head(REQ, Box::default())));
        assert_eq!(stream.read(305), Some(body(50, 55)));
        assert_eq!(stream.read(305), None);
        assert_eq!(stream.read(330), Some(body(55, 80)));
        assert_eq!(stream.read(330), Some(StreamPiece::End(REQ)));
        assert!(stream.is_drained());
        assert_eq!(stream.overhead(), 300);
    }
}
