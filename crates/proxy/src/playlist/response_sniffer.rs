//! Detects playlists and manifests by the first bytes of a response.
//!
//! From the response head and the bytes that have arrived so far, it derives a [`SniffResult`].
//!
//! 1. A playlist that reaches the player without being rewritten could lead it anywhere. So the bytes of every response
//!    are examined: another response of the same URL, or for another range, may have had different ones.
//! 2. The bytes are decoded through all codings of Content-Encoding. A body in an unknown coding is passed on only if
//!    its bytes are those of media, because a player may know the coding.
//! 3. If the bytes are not conclusive, more are waited for. If that is still so when more bytes have arrived than
//!    precede the content of any other file, the response is parsed as a playlist.
//! 4. Text that is declared a playlist is one even without a header (radio stations send the URL of their stream so).
//! 5. If bytes arrive one by one, not each of them triggers an evaluation.

use std::cell::Cell;

use super::content_coding::{self, ContentCoding};
use super::format::PlaylistFormat;
use super::signature::{BOM, MAX_SNIFFED, MEDIA_MAGIC_LEN, Signature, is_media, sniff_bytes};

/// The result of examining the first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SniffResult {
    Playlist(PlaylistFormat),
    NotAPlaylist,
    /// More bytes are needed.
    NeedMore,
    /// It could be anything, because its coding is unknown.
    UnknownEncoding,
}

/// Why no more bytes of a response follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyEnd {
    /// The resource has ended.
    Complete,
    /// The requested range ends before the resource does.
    Partial,
}

/// State of examining one response.
pub(crate) struct ResponseSniffer {
    /// `None`: one of them is unknown.
    codings: Option<Vec<ContentCoding>>,
    /// The format by media type or name.
    declared: Option<PlaylistFormat>,
    /// The response begins with the first byte of the resource.
    is_from_start: bool,
    /// The number of bytes at the last evaluation; `None`: there was none.
    decided_len: Cell<Option<usize>>,
    result: Cell<SniffResult>,
}

impl ResponseSniffer {
    /// `called` is the format by media type or name, `start` the offset of the first byte.
    pub(crate) fn new(encoding: Option<&str>, called: Option<PlaylistFormat>, start: u64) -> Self {
        let codings = content_coding::parse_codings(encoding.unwrap_or_default()).ok();
        Self {
            codings,
            declared: called,
            is_from_start: start == 0,
            decided_len: Cell::new(None),
            result: Cell::new(SniffResult::NeedMore),
        }
    }

    /// Evaluates the bytes if enough have arrived since the last time: an eighth more, or the maximum.
    pub(crate) fn sniff(&self, prefix: &[u8]) -> SniffResult {
        let is_enough = self
            .decided_len
            .get()
            .is_none_or(|seen_len| prefix.len() > seen_len + seen_len / 8 || prefix.len() >= MAX_SNIFFED);
        if is_enough { self.sniff_now(prefix) } else { self.result.get() }
    }

    /// Evaluates the bytes during a pause, because no more may arrive for a while.
    pub(crate) fn sniff_now(&self, prefix: &[u8]) -> SniffResult {
        if self.result.get() == SniffResult::NeedMore && self.decided_len.get() != Some(prefix.len()) {
            self.decided_len.set(Some(prefix.len()));
            self.result.set(self.classify(prefix, None));
        }
        self.result.get()
    }

    /// Evaluates the bytes when no more will arrive.
    pub(crate) fn sniff_at_end(&self, prefix: &[u8], end: BodyEnd) -> SniffResult {
        self.classify(prefix, Some(end))
    }

    fn classify(&self, prefix: &[u8], end: Option<BodyEnd>) -> SniffResult {
        let Some(codings) = &self.codings else {
            return match sniff_bytes(prefix) {
                Signature::Playlist(kind) => SniffResult::Playlist(kind),
                _ if is_media(prefix) => SniffResult::NotAPlaylist,
                _ if prefix.len() < MEDIA_MAGIC_LEN && end.is_none() => SniffResult::NeedMore,
                _ if prefix.is_empty() => SniffResult::NotAPlaylist,
                _ => SniffResult::UnknownEncoding,
            };
        };
        let (decoded, is_damaged) = content_coding::decode_prefix(prefix, codings, MAX_SNIFFED);
        match (sniff_bytes(&decoded), end) {
            (Signature::Playlist(kind), _) => SniffResult::Playlist(kind),
            (Signature::NotAPlaylist, _) => self.classify_headerless(&decoded, end),
            (Signature::NeedMore, _) if is_damaged => self.classify_undecodable(prefix),
            (Signature::NeedMore, Some(end)) => self.classify_truncated(&decoded, end),
            // The server can send headers and empty blocks endlessly.
            (Signature::NeedMore, None) if prefix.len() >= MAX_SNIFFED => {
                SniffResult::Playlist(PlaylistFormat::Dash)
            }
            (Signature::NeedMore, None) => SniffResult::NeedMore,
        }
    }

    /// Classifies text that does not begin like a playlist.
    fn classify_headerless(&self, text: &[u8], end: Option<BodyEnd>) -> SniffResult {
        let Some(format) = self.declared.filter(|_| self.is_from_start) else { return SniffResult::NotAPlaylist };
        let is_text_byte = |byte: &u8| *byte >= b' ' || matches!(*byte, b'\t' | b'\n' | b'\r');
        match end {
            _ if !text.iter().all(is_text_byte) => SniffResult::NotAPlaylist,
            _ if text.len() >= MIN_HEADERLESS_TEXT => SniffResult::Playlist(format),
            Some(BodyEnd::Complete) => SniffResult::Playlist(format),
            // Whether the rest is a playlist was decided when the whole resource was requested.
            Some(BodyEnd::Partial) => SniffResult::NotAPlaylist,
            None => SniffResult::NeedMore,
        }
    }

    /// Classifies a body that cannot be decoded. A player may be able to, so it is parsed as a playlist, which fails
    /// with the reason.
    fn classify_undecodable(&self, prefix: &[u8]) -> SniffResult {
        if is_media(prefix) || !self.is_from_start {
            SniffResult::NotAPlaylist
        } else {
            SniffResult::Playlist(PlaylistFormat::Dash)
        }
    }

    /// Classifies a response whose bytes are not conclusive and of which no more will arrive.
    fn classify_truncated(&self, text: &[u8], end: BodyEnd) -> SniffResult {
        match text.strip_prefix(BOM).unwrap_or(text).trim_ascii_start() {
            _ if !self.is_from_start => SniffResult::NotAPlaylist,
            [b'#', ..] if end == BodyEnd::Partial || self.declared == Some(PlaylistFormat::Hls) => {
                SniffResult::Playlist(PlaylistFormat::Hls)
            }
            [b'<', ..] => SniffResult::Playlist(PlaylistFormat::Dash),
            _ => SniffResult::NotAPlaylist,
        }
    }
}

/// This much text, declared as a playlist, is no beginning of another file. Our choice: one in nine random bytes is a
/// control character.
const MIN_HEADERLESS_TEXT: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::playlist::content_coding::tests::gzipped;

    const PLAYLIST: SniffResult = SniffResult::Playlist(PlaylistFormat::Hls);
    const MANIFEST: SniffResult = SniffResult::Playlist(PlaylistFormat::Dash);
    const LIST: &[u8] = b"#EXTM3U\n#EXTINF:4,\n/http://127.0.0.1:7001/x\n";

    fn plain_sniffer() -> ResponseSniffer {
        ResponseSniffer::new(None, None, 0)
    }

    /// The result for a body that arrives byte by byte.
    fn sniff_bytewise(sniffer: &ResponseSniffer, body: &[u8]) -> SniffResult {
        let results = (0..=body.len()).map(|len| sniffer.sniff_now(&body[..len]));
        results.into_iter().find(|verdict| *verdict != SniffResult::NeedMore).unwrap_or(SniffResult::NeedMore)
    }

    #[test]
    fn a_playlist_is_detected_in_every_encoding_and_at_any_speed() {
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
        // An uncompressed block of Brotli, after empty ones.
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
            assert_eq!(
                sniff_bytewise(&ResponseSniffer::new(Some(encoding), None, 0), &body),
                PLAYLIST,
                "{encoding}"
            );
            assert_eq!(ResponseSniffer::new(Some(encoding), None, 0).sniff(&body), PLAYLIST, "{encoding}");
            assert_eq!(ResponseSniffer::new(Some(encoding), None, 700).sniff(&body), PLAYLIST, "{encoding}");
        }
    }

    #[test]
    fn an_endless_inconclusive_beginning_is_parsed_as_a_playlist() {
        for (encoding, body) in [
            ("", b"\n".repeat(MAX_SNIFFED)),
            ("deflate", [0, 0, 0, 0xff, 0xff].repeat(MAX_SNIFFED / 5 + 1)),
            ("gzip", gzipped(b"").repeat(MAX_SNIFFED / 20 + 1)),
            ("gzip", [&b"\x1f\x8b\x08\x08\0\0\0\0\0\0"[..], &b"n".repeat(MAX_SNIFFED)].concat()),
        ] {
            let beginning = ResponseSniffer::new(Some(encoding), None, 0);
            assert_eq!(beginning.sniff(&body[..MAX_SNIFFED / 2]), SniffResult::NeedMore, "{encoding}");
            assert_eq!(beginning.sniff(&body), MANIFEST, "{encoding}");
        }
        // A body that the proxy cannot decode could be a playlist for a player that can.
        assert_eq!(ResponseSniffer::new(Some("br"), None, 0).sniff(&[0xff; 100]), MANIFEST);
    }

    #[test]
    fn an_unknown_coding_is_accepted_for_media_only() {
        for encoding in ["zstd", "dcb", "gzip;q=1", "gzip, zstd", "gzip, gzip, gzip"] {
            let sniff = |body: &[u8]| ResponseSniffer::new(Some(encoding), None, 0).sniff(body);
            assert_eq!(sniff(b"\x28\xb5\x2f\xfd\x04\0\0\0\0"), SniffResult::UnknownEncoding, "{encoding}");
            assert_eq!(sniff(b"\x28\xb5"), SniffResult::NeedMore, "{encoding}");
            assert_eq!(sniff(b"\0\0\0\x18ftypmp42"), SniffResult::NotAPlaylist, "{encoding}");
        }
        let damaged = |body: &[u8]| ResponseSniffer::new(Some("br"), None, 0).sniff(body);
        assert_eq!(
            damaged(b"\x47\x40\x11\x10\0\x42\xf0\x25\0\x01\xc1\0\0\xff\x01\xff\0"),
            SniffResult::NotAPlaylist
        );
    }

    #[test]
    fn media_are_recognized_by_their_first_bytes() {
        for first in [&b"\0\0\0\x18"[..], b"\x47", b"ID3", b"OggS", b"\xff\xfb", b"\x1a", b"WEBVTT", b"1\n00:"] {
            assert_eq!(plain_sniffer().sniff(first), SniffResult::NotAPlaylist, "{first:?}");
        }
        assert_eq!(ResponseSniffer::new(Some("gzip"), None, 0).sniff(b"\x47\x40"), SniffResult::NotAPlaylist);
    }

    #[test]
    fn text_that_is_declared_a_playlist_is_one() {
        let sniff =
            |body: &[u8], end| ResponseSniffer::new(None, Some(PlaylistFormat::Hls), 0).sniff_at_end(body, end);
        assert_eq!(sniff(b"http://h/stream\n", BodyEnd::Complete), PLAYLIST);
        assert_eq!(sniff("h\u{e9}".as_bytes(), BodyEnd::Complete), PLAYLIST);
        assert_eq!(sniff(b"http", BodyEnd::Partial), SniffResult::NotAPlaylist);
        assert_eq!(sniff(b"\x47\x40\x11\x10", BodyEnd::Complete), SniffResult::NotAPlaylist);
        let first = |body: &[u8]| ResponseSniffer::new(None, Some(PlaylistFormat::Hls), 0).sniff(body);
        assert_eq!(first(b"http://h/stream\n"), SniffResult::NeedMore);
        assert_eq!(first(&b"http://h/stream\n".repeat(32)), PLAYLIST);
        assert_eq!(first(b"abcd\0"), SniffResult::NotAPlaylist);
        assert_eq!(plain_sniffer().sniff(b"http://h/stream\n"), SniffResult::NotAPlaylist);
    }

    #[test]
    fn an_inconclusive_response_is_classified_at_its_end() {
        for (body, end, verdict) in [
            (&b"#EX"[..], BodyEnd::Complete, SniffResult::NotAPlaylist),
            (b"#EX", BodyEnd::Partial, PLAYLIST),
            (b"<!DOCTYPE MPD [", BodyEnd::Complete, MANIFEST),
            (b"  ", BodyEnd::Complete, SniffResult::NotAPlaylist),
            (b"", BodyEnd::Complete, SniffResult::NotAPlaylist),
            (b"\0\0", BodyEnd::Partial, SniffResult::NotAPlaylist),
        ] {
            assert_eq!(plain_sniffer().sniff_at_end(body, end), verdict, "{body:?}");
        }
    }

    #[test]
    fn single_bytes_do_not_each_trigger_an_evaluation() {
        let beginning = plain_sniffer();
        let body = b" ".repeat(MAX_SNIFFED);
        let mut decisions = 0;
        for len in 0..=body.len() {
            beginning.sniff(&body[..len]);
            decisions += usize::from(beginning.decided_len.get() == Some(len));
        }
        assert!(decisions < 200 && beginning.sniff(&body) == MANIFEST, "{decisions}");
    }
}
