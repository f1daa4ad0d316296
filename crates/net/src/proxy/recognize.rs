//! What a body is by its first bytes: a playlist of HLS, a manifest of DASH, or anything else.
//!
//! Servers give playlists any type and any name. RFC 8216 section 4 has `#EXTM3U` as the very first line, and a manifest has
//! an outermost element called MPD. Bodies that are neither show it with their first byte, nearly always.

use super::playlist_answer::Kind;

/// What the first bytes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Is(Kind),
    Other,
    /// More bytes are needed.
    Unsure,
}

/// Looks at the first bytes of a body.
pub(super) fn look(first: &[u8]) -> Look {
    // XML parsers recognize these without a byte order mark (XML 1.0 appendix F). They are refused when they are read.
    if OTHER_ENCODINGS.iter().any(|begins| first.starts_with(begins)) {
        return Look::Is(Kind::Manifest);
    }
    let decode: fn([u8; 2]) -> u16 = match first {
        [0xff] | [0xfe] => return Look::Unsure,
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return look_utf8(first),
    };
    // UTF-16; all that matters is in ASCII.
    let units = first.get(2..2 * MOST + 2).or(first.get(2..)).unwrap_or_default().chunks_exact(2);
    let unit = |pair: &[u8]| pair.try_into().map_or(0, decode);
    let bytes: Vec<u8> = units.map(|pair| u8::try_from(unit(pair)).unwrap_or(b'?')).collect();
    look_utf8(&bytes)
}

fn look_utf8(first: &[u8]) -> Look {
    let is_all = first.len() < MOST;
    let bytes = first.get(..MOST).unwrap_or(first);
    if is_all && BOM.starts_with(bytes) {
        return Look::Unsure;
    }
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes).trim_ascii_start();
    // Nothing else has so much before its outermost element, and a player may read on.
    let unsure = if is_all { Look::Unsure } else { Look::Is(Kind::Manifest) };
    match bytes {
        [] => unsure,
        [b'#', ..] if bytes.starts_with(TAG) => Look::Is(Kind::Playlist),
        [b'#', ..] if is_all && TAG.starts_with(bytes) => Look::Unsure,
        [b'<', ..] => {
            match outermost(bytes).map(|name| name.rsplit(|byte| *byte == b':').next().unwrap_or_default()) {
                // ffmpeg ignores the case of names.
                Some(name) if ROOTS.iter().any(|root| name.eq_ignore_ascii_case(root)) => Look::Is(Kind::Manifest),
                Some(_) => Look::Other,
                None => unsure,
            }
        }
        _ => Look::Other,
    }
}

/// What a body is taken for whose first bytes decide nothing, and of which no more comes in time or, if it `has_ended`, at all;
/// none: no list.
pub(super) fn undecided(first: &[u8], has_ended: bool) -> Option<Kind> {
    match first.strip_prefix(BOM).unwrap_or(first).trim_ascii_start() {
        [b'#', ..] if !has_ended => Some(Kind::Playlist),
        [b'<', ..] => Some(Kind::Manifest),
        _ => None,
    }
}

/// The name of the outermost element; none: it does not stand in these bytes.
fn outermost(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        bytes = bytes.trim_ascii_start();
        let end: &[u8] = match bytes {
            [b'<', b'?', ..] => b"?>",
            [b'<', b'!', b'-', b'-', ..] => b"-->",
            [b'<', b'!', b'D' | b'd', ..] => {
                bytes = behind_doctype(bytes)?;
                continue;
            }
            [b'<', b'!', next, ..] if *next != b'-' => return Some(b"!"),
            [b'<', b'!', ..] => return None,
            [b'<', name @ ..] => {
                let end = name.iter().position(|byte| byte.is_ascii_whitespace() || b"/><".contains(byte))?;
                return name.get(..end);
            }
            [] => return None,
            _ => return Some(b""),
        };
        let at = bytes.windows(end.len()).position(|window| window == end)?;
        bytes = bytes.get(at + end.len()..)?;
    }
}

/// What follows a document type declaration, whose internal subset has declarations of its own; none: it does not end.
fn behind_doctype(bytes: &[u8]) -> Option<&[u8]> {
    let (mut at, mut is_inside) = (2, false);
    loop {
        let rest = bytes.get(at..)?;
        let end: &[u8] = match rest {
            [b'<', b'!', b'-', b'-', ..] => b"-->",
            [b'<', b'?', ..] => b"?>",
            [b'"', ..] => b"\"",
            [b'\'', ..] => b"'",
            [b'>', after @ ..] if !is_inside => return Some(after),
            [byte, ..] => {
                is_inside = *byte == b'[' || is_inside && *byte != b']';
                at += 1;
                continue;
            }
            [] => return None,
        };
        let inner = rest.get(1..)?;
        at += 1 + inner.windows(end.len()).position(|window| window == end)? + end.len();
    }
}

/// So many bytes are looked at. chosen: many times the comment of a packager.
pub(super) const MOST: usize = 64 * 1024;
const TAG: &[u8] = b"#EXTM3U";
const BOM: &[u8] = b"\xef\xbb\xbf";
/// A manifest, and the parts of it that it may have in documents of their own (`xlink:href`).
const ROOTS: [&[u8]; 3] = [b"MPD", b"Period", b"AdaptationSet"];
/// `<?` in UTF-16 and UTF-32, `<?xm` in EBCDIC.
const OTHER_ENCODINGS: [&[u8]; 5] = [
    &[b'<', 0, b'?', 0],
    &[0, b'<', 0, b'?'],
    &[b'<', 0, 0, 0, b'?', 0, 0, 0],
    &[0, 0, 0, b'<', 0, 0, 0, b'?'],
    &[0x4c, 0x6f, 0xa7, 0x94],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_known_by_their_first_bytes_and_other_bodies_by_their_first_byte() {
        let playlist = Look::Is(Kind::Playlist);
        let manifest = Look::Is(Kind::Manifest);
        for (text, is) in [
            ("#EXTM3U\n", playlist),
            ("\u{feff}\r\n  #EXTM3U8", playlist),
            ("<MPD>", manifest),
            ("\u{feff}<?xml version=\"1.0\"?>\n<!-- a > b -->\n<mpd:MPD xmlns:mpd='x'", manifest),
            ("<?xml version=\"1.0\"?><svg>", Look::Other),
            ("<!DOCTYPE MPD>\n<MPD>", manifest),
            ("<!doctype x [<!-- ' ]> --><?a ]> ?><!ENTITY a ']>'>]\n><MPD>", manifest),
            ("<mpd>", manifest),
            ("<Period xmlns='x'>", manifest),
            ("<!DOCTYPE html>\n<html>", Look::Other),
            ("<!DOCTYPE html PUBLIC \"-//W3C//DTD XHTML 1.0//EN\" 'x'><html>", Look::Other),
            ("<!DOCTYPE MPD [", Look::Unsure),
            ("<html>", Look::Other),
            ("<MPDX>", Look::Other),
            ("#EXT-X", Look::Other),
            ("# comment", Look::Other),
            ("\0\0\0\u{18}ftyp", Look::Other),
            ("PK", Look::Other),
            ("", Look::Unsure),
            (" \n", Look::Unsure),
            ("#EXTM", Look::Unsure),
            ("<?xml version", Look::Unsure),
            ("<!-", Look::Unsure),
            ("<M", Look::Unsure),
        ] {
            assert_eq!(look(text.as_bytes()), is, "{text:?}");
        }
        assert_eq!(look(b"\xef\xbb"), Look::Unsure);
        assert_eq!(look(b"\x1f\x8b\x08"), Look::Other);
        for (mark, encode) in [(0xfeff_u16, u16::to_le_bytes as fn(u16) -> [u8; 2]), (0xfeff, u16::to_be_bytes)] {
            let of =
                |text: &str| std::iter::once(mark).chain(text.encode_utf16()).flat_map(encode).collect::<Vec<u8>>();
            assert_eq!(look(&of("#EXTM3U\né")), playlist);
            assert_eq!(look(&of("<?xml version='1.0' encoding='UTF-16'?><MPD>")), manifest);
            assert_eq!(look(&of("#EX")), Look::Unsure);
            assert_eq!(look(&of("é")), Look::Other);
        }
    }

    #[test]
    fn a_body_that_ends_before_the_tag_of_a_playlist_is_none() {
        assert_eq!(undecided(b"#EX", true), None);
        assert_eq!(undecided(b"#EX", false), Some(Kind::Playlist));
        assert_eq!(undecided(b"<!DOCTYPE MPD [", true), Some(Kind::Manifest));
        assert_eq!(undecided(b"  ", false), None);
    }

    #[test]
    fn a_long_beginning_hides_no_manifest() {
        let comment = format!("<!--{}-->", "x".repeat(5000));
        let doctype = format!("<!DOCTYPE MPD [{}]>", " ".repeat(5000));
        for before in [&comment, &doctype, &" ".repeat(5000), &format!("<?xml version='1.0'?>{comment}{doctype}")] {
            assert_eq!(look(format!("{before}<MPD>").as_bytes()), Look::Is(Kind::Manifest));
            assert_eq!(look(before.as_bytes()), Look::Unsure);
            assert_eq!(look(format!("{before}<svg>").as_bytes()), Look::Other);
        }
        // What is longer than any beginning is read as a manifest.
        for text in [" ".repeat(MOST), format!("<!--{}", "-".repeat(MOST)), format!("<{}", "M".repeat(MOST))] {
            assert_eq!(look(text.as_bytes()), Look::Is(Kind::Manifest));
        }
        let units = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert_eq!(look(&units("<?xml version='1.0'?><MPD>")), Look::Is(Kind::Manifest));
        assert_eq!(look(b"\0\0\0<ftypisom"), Look::Other);
    }
}
