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
    if !first.is_empty() && OTHER_ENCODINGS.iter().any(|begins| begins.starts_with(first)) {
        return Look::Unsure;
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
        [b'[', ..] if is_begin(bytes, PLS) => Look::Is(Kind::Unread),
        [b'[', ..] if is_all && is_begin(PLS, bytes) => Look::Unsure,
        [b'<', ..] => {
            match outermost(bytes).map(|name| name.rsplit(|byte| *byte == b':').next().unwrap_or_default()) {
                // ffmpeg ignores the case of names.
                Some(name) if ROOTS.iter().any(|root| name.eq_ignore_ascii_case(root)) => Look::Is(Kind::Manifest),
                Some(name) if UNREAD_ROOTS.iter().any(|root| name.eq_ignore_ascii_case(root)) => {
                    Look::Is(Kind::Unread)
                }
                Some(_) => Look::Other,
                None => unsure,
            }
        }
        _ => Look::Other,
    }
}

/// Whether these are the first bytes of sound, pictures or video in one of the usual formats. They need [`MEDIUM`] bytes.
pub(super) fn is_medium(first: &[u8]) -> bool {
    const MAGICS: [&[u8]; 12] = [
        b"\x1a\x45\xdf\xa3",
        b"ID3",
        b"OggS",
        b"fLaC",
        b"RIFF",
        b"FLV\x01",
        b"\x30\x26\xb2\x75",
        b"\0\0\x01\xba",
        b"\0\0\x01\xb3",
        b"\xff\xd8\xff",
        b"\x89PNG",
        b"GIF8",
    ];
    const BOXES: [&[u8]; 11] =
        [b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"mdat", b"free", b"skip", b"wide", b"emsg", b"prft"];
    let is_mpeg = match first {
        // Audio begins with eleven ones.
        [0xff, next, ..] => (0xe0..0xfe).contains(next),
        // A packet of a transport stream without an error.
        [0x47, next, ..] => next & 0xa0 == 0,
        _ => false,
    };
    let kind = first.get(4..8).unwrap_or_default();
    is_mpeg || MAGICS.iter().any(|magic| first.starts_with(magic)) || BOXES.contains(&kind)
}

/// Whether bytes begin with others, whatever their case.
fn is_begin(bytes: &[u8], with: &[u8]) -> bool {
    bytes.get(..with.len()).is_some_and(|bytes| bytes.eq_ignore_ascii_case(with))
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
/// What a medium needs to be known.
pub(super) const MEDIUM: usize = 8;
const TAG: &[u8] = b"#EXTM3U";
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";
/// A manifest, and the parts of it that it may have in documents of their own (`xlink:href`).
const ROOTS: [&[u8]; 3] = [b"MPD", b"Period", b"AdaptationSet"];
/// ASX, SMIL, XSPF, and the playlist of the Windows Media Player.
const UNREAD_ROOTS: [&[u8]; 4] = [b"asx", b"smil", b"playlist", b"wpl"];
const PLS: &[u8] = b"[playlist]";
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
            ("[Playlist]\nFile1=x", Look::Is(Kind::Unread)),
            ("<?xml version='1.0'?><playlist version='1'>", Look::Is(Kind::Unread)),
            ("<ASX version='3'>", Look::Is(Kind::Unread)),
            ("[play", Look::Unsure),
            ("[1,2]", Look::Other),
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
    fn no_first_bytes_of_a_list_are_taken_for_something_else() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
        for list in [
            b"#EXTM3U\n".to_vec(),
            b"\n\r\n #EXTM3U".to_vec(),
            b"\xef\xbb\xbf\t#EXTM3U".to_vec(),
            b"\xef\xbb\xbf<!-- x --><MPD>".to_vec(),
            [vec![0xfe, 0xff], utf16("\n#EXTM3U")].concat(),
            utf16("<?xml version='1.0'?><MPD>"),
            b"\0\0\0<\0\0\0?".to_vec(),
            b"\x4c\x6f\xa7\x94".to_vec(),
        ] {
            for len in 0..list.len() {
                assert_ne!(look(&list[..len]), Look::Other, "{:?}", &list[..len]);
            }
            assert!(matches!(look(&list), Look::Is(_)), "{list:?}");
            assert!(!is_medium(&list));
        }
        for medium in [&b"\0\0\0\x18ftypmp42"[..], b"\x47\x40\0\x10", b"\xff\xfb\x90\0", b"ID3\x04", b"OggS\0"] {
            assert!(look(medium) == Look::Other && is_medium(medium), "{medium:?}");
        }
        // Beginnings of codings that are not known: zstd, xz, bzip2, compress, LZMA.
        for coded in [&b"\x28\xb5\x2f\xfd"[..], b"\xfd7zXZ", b"BZh9", b"\x1f\x9d\x90", b"\x5d\0\0"] {
            assert!(!is_medium(coded), "{coded:?}");
        }
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
