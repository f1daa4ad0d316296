//! Decodes chunked bodies (RFC 9112 section 7.1) in place.
//!
//! It takes bytes in pieces of any size, and returns the slices among them that are payload, and where the body ends.
//! Nothing is copied, and only two numbers and a state are kept, so a hostile server cannot make it grow. It rejects
//! sizes of more than 15 significant hexadecimal digits, size lines with more than 16 KiB of leading zeros, blanks
//! and extensions, and trailers of more than 64 KiB. These limits hold for each chunk, not for the body: Apache pads
//! each size with blanks, and storage services sign each chunk in an extension.

/// The bytes are not a valid chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChunkError;

/// Position of the decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkState {
    /// Before the first digit of a size.
    Size,
    /// Within a size, after this number of significant digits.
    Digits(u8),
    /// Within an extension, which may follow a size up to the line end.
    Extension,
    /// After the CR of a size line.
    SizeEnd,
    /// Within the payload of a chunk.
    Data,
    /// After the payload, before its CR.
    DataCr,
    /// After the payload, before its LF.
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    /// Within a trailer line.
    Trailer,
    /// After the CR of the final empty line.
    LastLf,
    /// After the end of the body.
    Done,
}

/// Decoder of one body.
#[derive(Clone, Debug)]
pub(super) struct ChunkDecoder {
    state: ChunkState,
    /// Remaining payload bytes of this chunk.
    remaining: u64,
    /// Bytes of this size line other than significant digits, or bytes of trailers, so far.
    framing_bytes: usize,
}

impl ChunkDecoder {
    pub(super) fn new() -> Self {
        Self { state: ChunkState::Size, remaining: 0, framing_bytes: 0 }
    }

    /// Whether the body is complete.
    pub(super) fn is_done(&self) -> bool {
        self.state == ChunkState::Done
    }

    /// Decodes bytes; `payload` gets each slice of payload. Returns how many bytes belong to the body: all of them,
    /// unless it ends among them.
    ///
    /// # Errors
    /// The framing is invalid; payload before that position has been passed on.
    pub(super) fn feed(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> Result<usize, ChunkError> {
        let mut at = 0;
        while at < bytes.len() && self.state != ChunkState::Done {
            if self.state == ChunkState::Data {
                let left = usize::try_from(self.remaining).unwrap_or(usize::MAX);
                let take = left.min(bytes.len() - at);
                payload(&bytes[at..at + take]);
                at += take;
                self.remaining -= take as u64;
                if self.remaining == 0 {
                    self.state = ChunkState::DataCr;
                }
            } else {
                self.state = self.step_framing(bytes[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// Processes one byte of framing.
    fn step_framing(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        use ChunkState::*;
        let max_extra = match self.state {
            Digits(0) | Extension => MAX_SIZE_LINE_LEN,
            TrailerStart | Trailer => MAX_TRAILERS_LEN,
            _ => usize::MAX,
        };
        if max_extra != usize::MAX {
            self.framing_bytes += 1;
            if self.framing_bytes > max_extra {
                return Err(ChunkError);
            }
        }
        match (self.state, byte) {
            (Size | Digits(_), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.push_digit(byte),
            (Digits(_), b'\r') => Ok(SizeEnd),
            (Digits(_), b'\n') => Ok(self.end_size_line()),
            (Digits(_), b';' | b' ' | b'\t') => Ok(Extension),
            (Extension, b'\r') => Ok(SizeEnd),
            (Extension, b'\n') => Ok(self.end_size_line()),
            (Extension, _) => Ok(Extension),
            (SizeEnd, b'\n') => Ok(self.end_size_line()),
            (DataCr, b'\r') => Ok(DataLf),
            (DataCr | DataLf, b'\n') => {
                self.framing_bytes = 0;
                Ok(Size)
            }
            (TrailerStart, b'\r') => Ok(LastLf),
            (TrailerStart | LastLf, b'\n') => Ok(Done),
            (Trailer, b'\n') => Ok(TrailerStart),
            (TrailerStart | Trailer, _) => Ok(Trailer),
            _ => Err(ChunkError),
        }
    }

    fn push_digit(&mut self, byte: u8) -> Result<ChunkState, ChunkError> {
        let digits = if let ChunkState::Digits(n) = self.state { n } else { 0 };
        if digits >= MAX_SIZE_DIGITS {
            return Err(ChunkError);
        }
        let value = (byte as char).to_digit(16).ok_or(ChunkError)?;
        self.remaining = self.remaining << 4 | u64::from(value);
        Ok(ChunkState::Digits(if self.remaining == 0 { 0 } else { digits + 1 }))
    }

    fn end_size_line(&mut self) -> ChunkState {
        self.framing_bytes = 0;
        if self.remaining == 0 { ChunkState::TrailerStart } else { ChunkState::Data }
    }
}

/// 60 bits: more than the size of any file, and far from an overflow.
const MAX_SIZE_DIGITS: u8 = 15;
/// Our choice: far more than the length of a signature in an extension, and as much as curl accepts in such a line.
const MAX_SIZE_LINE_LEN: usize = 16 * 1024;
/// Our choice: far more than the length of any real trailer.
const MAX_TRAILERS_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), ChunkError> {
        let (mut decoder, mut out, mut used) = (ChunkDecoder::new(), Vec::new(), 0);
        for piece in pieces {
            used += decoder.feed(piece, |bytes| out.extend_from_slice(bytes))?;
        }
        Ok((out, used, decoder.is_done()))
    }

    fn encode(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            out.extend_from_slice(format!("{:X};x=\"y\"\r\n", part.len()).as_bytes());
            out.extend_from_slice(part);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\nTrailer: value\r\n\r\n");
        out
    }

    #[test]
    fn bytes_after_the_body_are_not_consumed() {
        assert_eq!(decode(&[b"3\r\nabc\r\n0\r\n\r\nHTTP/1.1"]), Ok((b"abc".to_vec(), 13, true)));
    }

    #[test]
    fn invalid_framing_is_rejected() {
        for bad in [
            &b"x\r\n"[..],
            b"\r\n",
            b"3\r\nabcd\r\n",
            b"1234567890abcdef\r\n",
            b"3\rabc",
            b"-1\r\n",
            b"3\r\nabc\rx",
        ] {
            assert_eq!(decode(&[bad]), Err(ChunkError), "{}", String::from_utf8_lossy(bad));
        }
        for (start, filler) in [("1;", b'e'), ("1", b' '), ("", b'0'), ("0\r\n", b't'), ("0\r\n", b'\n')] {
            let endless = [start.as_bytes().to_vec(), vec![filler; 70_000]].concat();
            let ends = filler == b'\n';
            assert_eq!(decode(&[&endless]).is_err(), !ends, "{start} {}", char::from(filler));
        }
        let lines = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(20_000)].concat();
        assert_eq!(decode(&[&lines]), Err(ChunkError));
    }

    #[test]
    fn limits_apply_to_each_chunk_and_not_to_the_body() {
        type SizeLine = fn(usize) -> String;
        let lines: [SizeLine; 6] = [
            |n| format!("{n:<8x}\r\n"),
            |n| format!("{n:x}{}\r\n", " ".repeat(3000)),
            |n| format!("{n:x};chunk-signature={}\r\n", "a".repeat(64)),
            |n| format!("{n:x} ; a = \"b\"\r\n"),
            |n| format!("{n:016x}\r\n"),
            |n| format!("{n:064X}\n"),
        ];
        for line in lines {
            let chunk = [line(3).as_bytes(), b"abc\r\n"].concat();
            let body = [chunk.repeat(5000), line(0).into_bytes(), b"T: ".to_vec(), vec![b't'; 30_000]].concat();
            let body = [&body[..], b"\r\n\r\n"].concat();
            assert_eq!(decode(&[&body]), Ok((b"abc".repeat(5000), body.len(), true)), "{}", line(3));
        }
    }

    proptest! {
        #[test]
        fn a_body_is_decoded_equally_wherever_it_is_cut(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5),
        ) {
            let (wire, want) = (encode(&parts), parts.concat());
            for cut in 0..=wire.len() {
                let (first, second) = wire.split_at(cut);
                prop_assert_eq!(decode(&[first, second]), Ok((want.clone(), wire.len(), true)));
            }
            let bytes: Vec<&[u8]> = wire.chunks(1).collect();
            prop_assert_eq!(decode(&bytes), Ok((want, wire.len(), true)));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[&bytes]);
        }
    }
}
