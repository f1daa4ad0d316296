//! What do the bytes of a connection's answering stream mean?
//!
//! In: what the server writes, piece by piece. Out: the same pieces, as far as the stream has arrived at the client.
//!
//! TCP here carries counts only; this is the text that the counts stand for, seen by both ends.

use std::collections::VecDeque;

use marline_core::fetch::{ByteRange, ReqId, ResponseHead};

/// The stream from the server.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseStream {
    /// What was written and not yet read, each with the stream's offset behind it.
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
    /// The head of an answer.
    Head(ReqId, Box<ResponseHead>),
    /// Some of its body: these bytes of that edition.
    Body(ReqId, Option<usize>, ByteRange),
    /// The answer is complete.
    End(ReqId),
    /// The answer will never be complete.
    Abort(ReqId),
}

impl ResponseStream {
    /// The server writes a piece of `len` bytes.
    pub(super) fn write(&mut self, piece: StreamPiece, len: u64) {
        self.bytes_written += len;
        if let (StreamPiece::Body(req, version, added), Some((end, StreamPiece::Body(last, last_version, span)))) =
            (&piece, self.pieces.back_mut())
            && (*req, *version, added.start) == (*last, *last_version, span.end)
        {
            *end = self.bytes_written;
            span.end = added.end;
            return;
        }
        self.pieces.push_back((self.bytes_written, piece));
    }

    /// The next piece, if the stream is complete up to `complete`; of a body as much as there is.
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

    /// Bytes read that were no body.
    pub(super) const fn overhead(&self) -> u64 {
        self.overhead_bytes
    }

    /// Whether everything was read.
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
        let mut script = ResponseStream::default();
        script.write(StreamPiece::Head(REQ, Box::default()), 300);
        script.write(body(50, 60), 10);
        script.write(body(60, 80), 20);
        script.write(StreamPiece::End(REQ), 0);
        assert_eq!(script.read(299), None);
        assert_eq!(script.read(305), Some(StreamPiece::Head(REQ, Box::default())));
        assert_eq!(script.read(305), Some(body(50, 55)));
        assert_eq!(script.read(305), None);
        assert_eq!(script.read(330), Some(body(55, 80)));
        assert_eq!(script.read(330), Some(StreamPiece::End(REQ)));
        assert!(script.is_drained());
        assert_eq!(script.overhead(), 300);
    }
}
