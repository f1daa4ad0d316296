//! Whether an answer is a playlist or a manifest, by its first bytes.
//!
//! In: what the head says, and the first bytes as they come. Out: a [`Verdict`].
//!
//! 1. A list that reaches the player without having been read could lead it anywhere. So the bytes of each answer count: another
//!    answer of the same URL may have had other ones, and so may the answer to another range.
//! 2. The bytes are decoded through all codings of Content-Encoding. A body in a coding that is not known is passed on only if its
//!    bytes are those of a medium: a player may know the coding.
//! 3. Bytes that decide nothing are waited for. What is still undecided when as much has come as no other file has before its
//!    beginning is read as a list.
//! 4. Text that is called a playlist is one without a header (radio stations send the address of their stream so).
//! 5. Bytes that come one by one do not cost a decision each.

use std::cell::Cell;

use super::encoded::{self, Coding};
use super::playlist_answer::Kind;
use super::recognize::{BOM, Look, MEDIUM, MOST, is_medium, look};

/// What an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    List(Kind),
    Other,
    /// More bytes are needed.
    Unsure,
    /// It could be anything behind its encoding.
    UnknownCoding,
}

/// Where the bytes of an answer end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// With the resource.
    Whole,
    /// Before its end, as the request wanted.
    Part,
}

/// The first bytes of an answer.
pub(super) struct Beginning {
    /// None: one of them is not known.
    codings: Option<Vec<Coding>>,
    /// It is called a list.
    called: Option<Kind>,
    /// It begins with the resource.
    is_start: bool,
    /// How many bytes the last decision had; none: there was none.
    seen: Cell<Option<usize>>,
    verdict: Cell<Verdict>,
}

impl Beginning {
    /// `called`: what its type or name says. `start`: the offset of the first byte.
    pub(super) fn new(encoding: Option<&str>, called: Option<Kind>, start: u64) -> Self {
        let codings = encoded::codings(encoding.unwrap_or_default()).ok();
        Self { codings, called, is_start: start == 0, seen: Cell::new(None), verdict: Cell::new(Verdict::Unsure) }
    }

    /// Decides if enough bytes have come since the last time: an eighth, up to the bound.
    pub(super) fn decide(&self, first: &[u8]) -> Verdict {
        let is_enough = self.seen.get().is_none_or(|seen| first.len() > seen + seen / 8 || first.len() >= MOST);
        if is_enough { self.decide_now(first) } else { self.verdict.get() }
    }

    /// Decides after a pause: no more bytes may come for a while.
    pub(super) fn decide_now(&self, first: &[u8]) -> Verdict {
        if self.verdict.get() == Verdict::Unsure && self.seen.get() != Some(first.len()) {
            self.seen.set(Some(first.len()));
            self.verdict.set(self.verdict_of(first, None));
        }
        self.verdict.get()
    }

    /// Decides when no more bytes will come.
    pub(super) fn decide_at_end(&self, first: &[u8], end: End) -> Verdict {
        self.verdict_of(first, Some(end))
    }

    fn verdict_of(&self, first: &[u8], end: Option<End>) -> Verdict {
        let Some(codings) = &self.codings else {
            return match look(first) {
                Look::Is(kind) => Verdict::List(kind),
                _ if is_medium(first) => Verdict::Other,
                _ if first.len() < MEDIUM && end.is_none() => Verdict::Unsure,
                _ if first.is_empty() => Verdict::Other,
                _ => Verdict::UnknownCoding,
            };
        };
        let (text, is_damaged) = encoded::beginning(first, codings, MOST);
        match (look(&text), end) {
            (Look::Is(kind), _) => Verdict::List(kind),
            (Look::Other, _) => self.without_header(&text, end),
            (Look::Unsure, _) if is_damaged => self.damaged(first),
            (Look::Unsure, Some(end)) => self.undecided(&text, end),
            // Nothing but headers and empty blocks, as many as the server likes.
            (Look::Unsure, None) if first.len() >= MOST => Verdict::List(Kind::Manifest),
            (Look::Unsure, None) => Verdict::Unsure,
        }
    }

    /// Text whose first bytes are of no list.
    fn without_header(&self, text: &[u8], end: Option<End>) -> Verdict {
        let Some(kind) = self.called.filter(|_| self.is_start) else { return Verdict::Other };
        let is_text = |byte: &u8| *byte >= b' ' || matches!(*byte, b'\t' | b'\n' | b'\r');
        match end {
            _ if !text.iter().all(is_text) => Verdict::Other,
            _ if text.len() >= ENOUGH_TEXT => Verdict::List(kind),
            Some(End::Whole) => Verdict::List(kind),
            // What the rest is was decided when the whole was requested.
            Some(End::Part) => Verdict::Other,
            None => Verdict::Unsure,
        }
    }

    /// A body that this decoder cannot read. Another one may, so it is read as a list, which ends with the reason.
    fn damaged(&self, first: &[u8]) -> Verdict {
        if is_medium(first) || !self.is_start { Verdict::Other } else { Verdict::List(Kind::Manifest) }
    }

    /// What an answer is taken for whose bytes decide nothing, and of which no more will come.
    fn undecided(&self, text: &[u8], end: End) -> Verdict {
        match text.strip_prefix(BOM).unwrap_or(text).trim_ascii_start() {
            _ if !self.is_start => Verdict::Other,
            [b'#', ..] if end == End::Part || self.called == Some(Kind::Playlist) => Verdict::List(Kind::Playlist),
            [b'<', ..] => Verdict::List(Kind::Manifest),
            _ => Verdict::Other,
        }
    }
}

/// So much text of what is called a list is no beginning of something else. chosen: of random bytes one in nine is a control
/// character.
const ENOUGH_TEXT: usize = 512;

#[cfg(test)]
mod tests {
    use super::super::encoded::tests::gzipped;
    use super::*;

    const PLAYLIST: Verdict = Verdict::List(Kind::Playlist);
    const MANIFEST: Verdict = Verdict::List(Kind::Manifest);
    const LIST: &[u8] = b"#EXTM3U\n#EXTINF:4,\n/http://127.0.0.1:7001/x\n";

    fn plain() -> Beginning {
        Beginning::new(None, None, 0)
    }

    /// What is decided of a body that comes byte by byte.
    fn slowly(beginning: &Beginning, body: &[u8]) -> Verdict {
        let decided = (0..=body.len()).map(|len| beginning.decide_now(&body[..len]));
        decided.into_iter().find(|verdict| *verdict != Verdict::Unsure).unwrap_or(Verdict::Unsure)
    }

    #[test]
    fn a_list_is_known_however_it_is_encoded_and_however_slowly_it_comes() {
        let twice = gzipped(&gzipped(LIST));
        let empty = [0, 0, 0, 0xff, 0xff].repeat(1000);
        let stored = [&[1, LIST.len() as u8, 0, !(LIST.len() as u8), 0xff], LIST].concat();
        let bare = [&empty[..], &stored].concat();
        let sum = LIST.iter().fold((1_u32, 0_u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65521;
            (a, (a + b) % 65521)
        });
        let zlib = [&b"\x78\x9c"[..], &bare, &(sum.1 << 16 | sum.0).to_be_bytes()].concat();
        let members = [gzipped(b"").repeat(300), gzipped(LIST)].concat();
        // An uncompressed block of Brotli, behind empty ones.
        let brotli = [&b"\x8b\x03\x80"[..], b"#EXTM3U\n\x03"].concat();
        for (encoding, body) in [
            ("", LIST.to_vec()),
            ("", [b"\n", LIST].concat()),
            ("", [BOM, LIST].concat()),
            ("utf-8", LIST.to_vec()),
            ("gzip", gzipped(LIST)),
            ("gzip, gzip", twice),
            ("identity, gzip", gzipped(LIST)),
            ("gzip,", gzipped(LIST)),
            ("gzip, gzip", gzipped(LIST)),
            ("deflate", gzipped(LIST)),
            ("gzip", LIST.to_vec()),
            ("zstd", LIST.to_vec()),
            ("deflate", bare),
            ("gzip", zlib.clone()),
            ("deflate", zlib),
            ("gzip", members),
            ("br", brotli),
        ] {
            assert_eq!(slowly(&Beginning::new(Some(encoding), None, 0), &body), PLAYLIST, "{encoding}");
            assert_eq!(Beginning::new(Some(encoding), None, 0).decide(&body), PLAYLIST, "{encoding}");
            assert_eq!(Beginning::new(Some(encoding), None, 700).decide(&body), PLAYLIST, "{encoding}");
        }
    }

    #[test]
    fn a_beginning_without_end_is_read_as_a_list() {
        for (encoding, body) in [
            ("", b"\n".repeat(MOST)),
            ("deflate", [0, 0, 0, 0xff, 0xff].repeat(MOST / 5 + 1)),
            ("gzip", gzipped(b"").repeat(MOST / 20 + 1)),
            ("gzip", [&b"\x1f\x8b\x08\x08\0\0\0\0\0\0"[..], &b"n".repeat(MOST)].concat()),
        ] {
            let beginning = Beginning::new(Some(encoding), None, 0);
            assert_eq!(beginning.decide(&body[..MOST / 2]), Verdict::Unsure, "{encoding}");
            assert_eq!(beginning.decide(&body), MANIFEST, "{encoding}");
        }
        // What the proxy cannot decode could be a list for a player that can.
        assert_eq!(Beginning::new(Some("br"), None, 0).decide(&[0xff; 100]), MANIFEST);
    }

    #[test]
    fn a_coding_that_is_not_known_is_for_media_alone() {
        for encoding in ["zstd", "dcb", "gzip;q=1", "gzip, zstd", "gzip, gzip, gzip"] {
            let of = |body: &[u8]| Beginning::new(Some(encoding), None, 0).decide(body);
            assert_eq!(of(b"\x28\xb5\x2f\xfd\x04\0\0\0\0"), Verdict::UnknownCoding, "{encoding}");
            assert_eq!(of(b"\x28\xb5"), Verdict::Unsure, "{encoding}");
            assert_eq!(of(b"\0\0\0\x18ftypmp42"), Verdict::Other, "{encoding}");
        }
        let damaged = |body: &[u8]| Beginning::new(Some("br"), None, 0).decide(body);
        assert_eq!(damaged(b"\x47\x40\x11\x10\0\x42\xf0\x25\0\x01\xc1\0\0\xff\x01\xff\0"), Verdict::Other);
    }

    #[test]
    fn media_are_known_at_once() {
        for first in [&b"\0\0\0\x18"[..], b"\x47", b"ID3", b"OggS", b"\xff\xfb", b"\x1a", b"WEBVTT", b"1\n00:"] {
            assert_eq!(plain().decide(first), Verdict::Other, "{first:?}");
        }
        assert_eq!(Beginning::new(Some("gzip"), None, 0).decide(b"\x47\x40"), Verdict::Other);
    }

    #[test]
    fn text_that_is_called_a_playlist_is_one() {
        let of = |body: &[u8], end| Beginning::new(None, Some(Kind::Playlist), 0).decide_at_end(body, end);
        assert_eq!(of(b"http://h/stream\n", End::Whole), PLAYLIST);
        assert_eq!(of("h\u{e9}".as_bytes(), End::Whole), PLAYLIST);
        assert_eq!(of(b"http", End::Part), Verdict::Other);
        assert_eq!(of(b"\x47\x40\x11\x10", End::Whole), Verdict::Other);
        let first = |body: &[u8]| Beginning::new(None, Some(Kind::Playlist), 0).decide(body);
        assert_eq!(first(b"http://h/stream\n"), Verdict::Unsure);
        assert_eq!(first(&b"http://h/stream\n".repeat(32)), PLAYLIST);
        assert_eq!(first(b"abcd\0"), Verdict::Other);
        assert_eq!(plain().decide(b"http://h/stream\n"), Verdict::Other);
    }

    #[test]
    fn an_answer_that_ends_undecided_is_what_it_looks_like() {
        for (body, end, verdict) in [
            (&b"#EX"[..], End::Whole, Verdict::Other),
            (b"#EX", End::Part, PLAYLIST),
            (b"<!DOCTYPE MPD [", End::Whole, MANIFEST),
            (b"  ", End::Whole, Verdict::Other),
            (b"", End::Whole, Verdict::Other),
            (b"\0\0", End::Part, Verdict::Other),
        ] {
            assert_eq!(plain().decide_at_end(body, end), verdict, "{body:?}");
        }
    }

    #[test]
    fn single_bytes_are_not_decided_one_by_one() {
        let beginning = plain();
        let body = b" ".repeat(MOST);
        let mut decisions = 0;
        for len in 0..=body.len() {
            beginning.decide(&body[..len]);
            decisions += usize::from(beginning.seen.get() == Some(len));
        }
        assert!(decisions < 200 && beginning.decide(&body) == MANIFEST, "{decisions}");
    }
}
