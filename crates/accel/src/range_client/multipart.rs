//! Incremental parser of `multipart/byteranges` response bodies (RFC 9110 section 14.6).
//!
//! The body arrives in pieces of any size. The parser delivers the bytes of each part with their offset in the resource.
//!
//! 1. The length of a part comes from its Content-Range. The parser does not search for the delimiter inside a part, so
//!    the part may contain bytes that look like one.
//! 2. The Content-Range of a part must state the expected length of the resource, and a range within it. It is not
//!    compared with the requested ranges. After an error the parser stops, because the offset of all further bytes is
//!    unknown.
//! 3. Memory is bounded: only one incomplete line of at most [`MAX_LINE`] bytes is buffered. A part has at most
//!    [`MAX_LINES`] header fields, and at most as many other lines precede a delimiter.

use super::InvalidBody;

/// Parser of one body.
#[derive(Clone, Debug)]
pub(super) struct MultipartByteranges {
    /// `--` followed by the boundary parameter of the Content-Type.
    delimiter: Vec<u8>,
    /// Expected length of the resource in bytes.
    total_len: u64,
    /// Received bytes of the incomplete line.
    line: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Before a delimiter, after this number of other lines.
    BeforeDelimiter { lines: u32 },
    /// In the header fields of a part: number of fields so far, and the range as start and exclusive end.
    Fields { lines: u32, range: Option<(u64, u64)> },
    /// In the bytes of a part: offset of the next byte, and the exclusive end.
    Body { at: u64, end: u64 },
    /// After the closing delimiter (`--boundary--`): all further bytes are ignored.
    End,
}

impl MultipartByteranges {
    /// Creates the parser for a response. `None`: the Content-Type is not `multipart/byteranges`, or its boundary is missing
    /// or invalid.
    pub(super) fn of(content_type: &str, total_len: u64) -> Option<Self> {
        let (kind, parameters) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/byteranges") {
            return None;
        }
        let boundary = parameters.split(';').find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        })?;
        let fits =
            (1..=70).contains(&boundary.len()) && boundary.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        let delimiter = [b"--", boundary.as_bytes()].concat();
        fits.then_some(Self { delimiter, total_len, line: Vec::new(), state: State::BeforeDelimiter { lines: 0 } })
    }

    /// Parses the next bytes of the body. Calls `deliver` with the offset in the resource and the bytes.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        deliver: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), InvalidBody> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::End => return Ok(()),
                State::Body { at, end } => {
                    let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(bytes.len());
                    let (part_bytes, remaining) = bytes.split_at(count);
                    deliver(at, part_bytes);
                    let at = at + count as u64;
                    self.state =
                        if at == end { State::BeforeDelimiter { lines: 0 } } else { State::Body { at, end } };
                    remaining
                }
                State::BeforeDelimiter { .. } | State::Fields { .. } => self.read_line(bytes)?,
            };
        }
        Ok(())
    }

    /// Buffers bytes up to the end of the line, and parses the line once it is complete. Returns the bytes after it.
    fn read_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], InvalidBody> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let (line_bytes, remaining) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.line.len() + line_bytes.len() > MAX_LINE {
            return Err(InvalidBody);
        }
        self.line.extend_from_slice(line_bytes);
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r\n").ok_or(InvalidBody)?;
            self.state = self.state_after(line)?;
        } else if self.line.strip_prefix(self.delimiter.as_slice()) == Some(b"--") {
            // The body may end directly after the closing delimiter, without CRLF.
            self.state = State::End;
        }
        Ok(remaining)
    }

    /// The state after a complete line.
    fn state_after(&self, line: &[u8]) -> Result<State, InvalidBody> {
        match self.state {
            State::BeforeDelimiter { lines } => match line.strip_prefix(self.delimiter.as_slice()) {
                Some(remaining) if remaining.trim_ascii().is_empty() => Ok(State::Fields { lines: 0, range: None }),
                Some(remaining) if remaining.starts_with(b"--") => Ok(State::End),
                // The preamble, or the rest of the line after a part.
                _ if lines < MAX_LINES => Ok(State::BeforeDelimiter { lines: lines + 1 }),
                _ => Err(InvalidBody),
            },
            State::Fields { range: Some((at, end)), .. } if line.is_empty() => Ok(State::Body { at, end }),
            State::Fields { lines, .. } if line.is_empty() || lines >= MAX_LINES => Err(InvalidBody),
            State::Fields { lines, range } => {
                let field = line.split(|byte| *byte == b':').next().unwrap_or_default();
                if !field.trim_ascii().eq_ignore_ascii_case(b"content-range") {
                    return Ok(State::Fields { lines: lines + 1, range });
                }
                let value = line.get(field.len() + 1..).and_then(|value| std::str::from_utf8(value).ok());
                let range = value.and_then(|value| self.range(value.trim())).ok_or(InvalidBody)?;
                Ok(State::Fields { lines: lines + 1, range: Some(range) })
            }
            // `read_line` is not called in these states.
            State::Body { .. } | State::End => Ok(self.state),
        }
    }

    /// Parses a Content-Range into start and exclusive end: `bytes 5-9/20` is (5, 10).
    fn range(&self, value: &str) -> Option<(u64, u64)> {
        let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        let (start, end) = (number(first)?, number(last)?.checked_add(1)?);
        (start < end && end <= self.total_len && number(total)? == self.total_len).then_some((start, end))
    }
}

/// Maximum length of a line in bytes. Header lines of real servers are shorter.
const MAX_LINE: usize = 1024;
/// Maximum number of header fields of a part. Real servers send two or three.
const MAX_LINES: u32 = 16;

/// Access for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::MultipartByteranges;

    /// Parses a `multipart/byteranges` body in these pieces. `None`: the body is malformed or has another type.
    pub fn byte_ranges<'a>(
        content_type: &str,
        total_len: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut deliver: impl FnMut(u64, &[u8]),
    ) -> Option<()> {
        let mut parts = MultipartByteranges::of(content_type, total_len)?;
        for piece in pieces {
            parts.feed(piece, &mut deliver).ok()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A `multipart/byteranges` body as nginx sends it.
    fn body(ranges: &[(u64, u64)], data: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for (start, end) in ranges {
            let head = format!(
                "\r\n--0042\r\nContent-Type: text/plain\r\nContent-Range: bytes {start}-{}/{}\r\n\r\n",
                end - 1,
                data.len()
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(&data[*start as usize..*end as usize]);
        }
        body.extend_from_slice(b"\r\n--0042--\r\n");
        body
    }

    fn read(content_type: &str, pieces: &[&[u8]], total_len: u64) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut parts = MultipartByteranges::of(content_type, total_len)?;
        let mut got: Vec<(u64, Vec<u8>)> = Vec::new();
        for piece in pieces {
            let deliver = &mut |at: u64, bytes: &[u8]| match got.last_mut() {
                Some((start, all)) if *start + all.len() as u64 == at => all.extend_from_slice(bytes),
                _ => got.push((at, bytes.to_vec())),
            };
            parts.feed(piece, deliver).ok()?;
        }
        Some(got)
    }

    const TYPE: &str = "multipart/byteranges; boundary=0042";

    #[test]
    fn parts_are_parsed_wherever_the_body_is_cut() {
        let data = b"ab\r\n--0042\r\nContent-Range: bytes 0-5/40\r\n\r\n--0042--\r\nrest";
        let body = body(&[(0, 10), (20, 30), (40, data.len() as u64)], data);
        let want: Vec<(u64, Vec<u8>)> =
            [(0, 10), (20, 30), (40, data.len())].map(|(a, b)| (a as u64, data[a..b].to_vec())).to_vec();
        for cut in 0..=body.len() {
            let (first, second) = body.split_at(cut);
            assert_eq!(read(TYPE, &[first, second], data.len() as u64).as_ref(), Some(&want), "{cut}");
        }
        let single: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(read(TYPE, &single, data.len() as u64), Some(want));
    }

    #[test]
    fn malformed_or_inconsistent_bodies_are_rejected() {
        let data = [b'x'; 40];
        let good = body(&[(0, 10)], &data);
        assert!(read("multipart/byteranges;boundary=\"0042\"", &[&good], 40).is_some());
        for kind in ["text/plain; boundary=0042", "multipart/byteranges", "multipart/byteranges; boundary="] {
            assert!(read(kind, &[&good], 40).is_none(), "{kind}");
        }
        assert!(read(TYPE, &[&good], 41).is_none(), "a resource of another length");
        for (from, to) in
            [("0-9/40", "9-0/40"), ("0-9/40", "0-40/40"), ("0-9/40", "0-9/*"), ("bytes 0", "bytes +0")]
        {
            let bad = String::from_utf8(good.clone()).unwrap().replace(from, to);
            assert!(read(TYPE, &[bad.as_bytes()], 40).is_none(), "{to}");
        }
        assert!(read(TYPE, &[b"--0042\r\n\r\nno range"], 40).is_none());
        assert!(read(TYPE, &[&[b'a'; 2000]], 40).is_none(), "a line without an end");
        assert!(read(TYPE, &[&b"a\r\n".repeat(100)], 40).is_none(), "lines without an end");
    }

    proptest! {
        #[test]
        fn no_more_bytes_are_delivered_than_arrived(noise in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..60) {
            let body = [&body(&[(3, 9)], &[7; 20])[..cut], &noise].concat();
            let mut parts = MultipartByteranges::of(TYPE, 20).unwrap();
            let (mut bytes, mut beyond) = (0, false);
            let _ = parts.feed(&body, &mut |at, given| {
                bytes += given.len();
                beyond |= at + given.len() as u64 > 20;
            });
            prop_assert!(bytes <= body.len() && !beyond);
        }
    }
}
