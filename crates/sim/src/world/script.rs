//! What do the bytes of a connection's answering stream mean?
//!
//! In: what the server writes, piece by piece. Out: the same pieces, as far as the stream has arrived at the client.
//!
//! TCP here carries counts only; this is the text that the counts stand for, seen by both ends.

use std::collections::VecDeque;

use marline_core::fetch::{ByteRange, ReqId, ResponseHead};

/// The stream from the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    /// What was written and not yet read, each with the stream's offset behind it.
    pieces: VecDeque<(u64, Piece)>,
    written: u64,
    read: u64,
    overhead: u64,
}

/// A piece of the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
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

impl Script {
    /// The server writes a piece of `len` bytes.
    pub(super) fn write(&mut self, piece: Piece, len: u64) {
        self.written += len;
        if let (Piece::Body(req, edition, more), Some((end, Piece::Body(last, of, span)))) =
            (&piece, self.pieces.back_mut())
            && (*req, *edition, more.start) == (*last, *of, span.end)
        {
            *end = self.written;
            span.end = more.end;
            return;
        }
        self.pieces.push_back((self.written, piece));
    }

    /// The next piece, if the stream is complete up to `complete`; of a body as much as there is.
    pub(super) fn read(&mut self, complete: u64) -> Option<Piece> {
        let (end, piece) = self.pieces.front_mut()?;
        if let Piece::Body(req, edition, span) = piece
            && *end > complete
        {
            let len = complete.saturating_sub(self.read);
            let part = ByteRange::new(span.start, span.start + len);
            span.start = part.end;
            self.read += len;
            return (len > 0).then_some(Piece::Body(*req, *edition, part));
        }
        if *end > complete {
            return None;
        }
        let len = *end - self.read;
        self.read = *end;
        let (_, piece) = self.pieces.pop_front()?;
        if !matches!(piece, Piece::Body(..)) {
            self.overhead += len;
        }
        Some(piece)
    }

    /// Bytes read that were no body.
    pub(super) const fn overhead(&self) -> u64 {
        self.overhead
    }

    /// Whether everything was read.
    pub(super) fn is_read(&self) -> bool {
        self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQ: ReqId = ReqId(0);

    fn body(start: u64, end: u64) -> Piece {
        Piece::Body(REQ, Some(0), ByteRange::new(start, end))
    }

    #[test]
    fn a_body_is_read_as_it_arrives_and_a_head_only_whole() {
        let mut script = Script::default();
        script.write(Piece::Head(REQ, Box::default()), 300);
        script.write(body(50, 60), 10);
        script.write(body(60, 80), 20);
        script.write(Piece::End(REQ), 0);
        assert_eq!(script.read(299), None);
        assert_eq!(script.read(305), Some(Piece::Head(REQ, Box::default())));
        assert_eq!(script.read(305), Some(body(50, 55)));
        assert_eq!(script.read(305), None);
        assert_eq!(script.read(330), Some(body(55, 80)));
        assert_eq!(script.read(330), Some(Piece::End(REQ)));
        assert!(script.is_read());
        assert_eq!(script.overhead(), 300);
    }
}
