//! Classifies a body by its first bytes: an HLS playlist, a DASH manifest, or anything else.
//!
//! Servers use any media type and name for playlists. RFC 8216 section 4 requires `#EXTM3U` as the very first line, and
//! a manifest has the root element MPD. Nearly all other bodies differ in their first byte.

use super::format::PlaylistFormat;

/// The class of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signature {
    Playlist(PlaylistFormat),
    NotAPlaylist,
    /// More bytes are needed.
    NeedMore,
}

/// Classifies a body by its first bytes.
pub(crate) fn sniff_bytes(prefix: &[u8]) -> Signature {
    // XML parsers recognize these encodings without a byte order mark (XML 1.0 appendix F). The text is refused when it
    // is parsed.
    if UNSUPPORTED_ENCODINGS.iter().any(|signature| prefix.starts_with(signature)) {
        return Signature::Playlist(PlaylistFormat::Dash);
    }
    if !prefix.is_empty() && UNSUPPORTED_ENCODINGS.iter().any(|signature| signature.starts_with(prefix)) {
        return Signature::NeedMore;
    }
    let decode: fn([u8; 2]) -> u16 = match prefix {
        [0xff] | [0xfe] => return Signature::NeedMore,
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return sniff_utf8(prefix),
    };
    // UTF-16. Only ASCII characters matter here.
    let units = prefix.get(2..2 * MAX_SNIFFED + 2).or(prefix.get(2..)).unwrap_or_default().chunks_exact(2);
    let unit = |pair: &[u8]| pair.try_into().map_or(0, decode);
    let bytes: Vec<u8> = units.map(|pair| u8::try_from(unit(pair)).unwrap_or(b'?')).collect();
    sniff_utf8(&bytes)
}

fn sniff_utf8(prefix: &[u8]) -> Signature {
    let may_need_more = prefix.len() < MAX_SNIFFED;
    let bytes = prefix.get(..MAX_SNIFFED).unwrap_or(prefix);
    if may_need_more && BOM.starts_with(bytes) {
        return Signature::NeedMore;
    }
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes).trim_ascii_start();
    // No other file has so much before its root element, and a player may continue to read.
    let undecided = if may_need_more { Signature::NeedMore } else { Signature::Playlist(PlaylistFormat::Dash) };
    match bytes {
        [] => undecided,
        [b'#', ..] if bytes.starts_with(HLS_HEADER) => Signature::Playlist(PlaylistFormat::Hls),
        [b'#', ..] if may_need_more && HLS_HEADER.starts_with(bytes) => Signature::NeedMore,
        [b'[', ..] if starts_with_ignore_case(bytes, PLS_HEADER) => Signature::Playlist(PlaylistFormat::Other),
        [b'[', ..] if may_need_more && starts_with_ignore_case(PLS_HEADER, bytes) => Signature::NeedMore,
        [b'<', ..] => {
            match root_element(bytes).map(|name| name.rsplit(|byte| *byte == b':').next().unwrap_or_default()) {
                // ffmpeg ignores the case of names.
                Some(name) if DASH_ROOTS.iter().any(|root| name.eq_ignore_ascii_case(root)) => {
                    Signature::Playlist(PlaylistFormat::Dash)
                }
                Some(name) if OTHER_ROOTS.iter().any(|root| name.eq_ignore_ascii_case(root)) => {
                    Signature::Playlist(PlaylistFormat::Other)
                }
                Some(_) => Signature::NotAPlaylist,
                None => undecided,
            }
        }
        _ => Signature::NotAPlaylist,
    }
}

/// Whether these are the first [`MEDIA_MAGIC_LEN`] bytes of audio, images or video in a common format.
pub(crate) fn is_media(prefix: &[u8]) -> bool {
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
    let is_mpeg = match prefix {
        // MPEG audio begins with eleven one bits.
        [0xff, next, ..] => (0xe0..0xfe).contains(next),
        // A packet of a transport stream without the error bit.
        [0x47, next, ..] => next & 0xa0 == 0,
        _ => false,
    };
    let box_type = prefix.get(4..8).unwrap_or_default();
    is_mpeg || MAGICS.iter().any(|magic| prefix.starts_with(magic)) || BOXES.contains(&box_type)
}

/// Whether bytes begin with a prefix, ignoring case.
fn starts_with_ignore_case(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.get(..prefix.len()).is_some_and(|bytes| bytes.eq_ignore_ascii_case(prefix))
}

/// The name of the root element; `None`: these bytes do not contain it.
fn root_element(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        bytes = bytes.trim_ascii_start();
        let terminator: &[u8] = match bytes {
            [b'<', b'?', ..] => b"?>",
            [b'<', b'!', b'-', b'-', ..] => b"-->",
            [b'<', b'!', b'D' | b'd', ..] => {
                bytes = after_doctype(bytes)?;
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
        let end_at = bytes.windows(terminator.len()).position(|window| window == terminator)?;
        bytes = bytes.get(end_at + terminator.len()..)?;
    }
}

/// The bytes after a document type declaration, whose internal subset contains declarations of its own; `None`: it does
/// not end.
fn after_doctype(bytes: &[u8]) -> Option<&[u8]> {
    let (mut position, mut is_in_subset) = (2, false);
    loop {
        let remaining = bytes.get(position..)?;
        let terminator: &[u8] = match remaining {
            [b'<', b'!', b'-', b'-', ..] => b"-->",
            [b'<', b'?', ..] => b"?>",
            [b'"', ..] => b"\"",
            [b'\'', ..] => b"'",
            [b'>', after @ ..] if !is_in_subset => return Some(after),
            [byte, ..] => {
                is_in_subset = *byte == b'[' || is_in_subset && *byte != b']';
                position += 1;
                continue;
            }
            [] => return None,
        };
        let after_open = remaining.get(1..)?;
        position +=
            1 + after_open.windows(terminator.len()).position(|window| window == terminator)? + terminator.len();
    }
}

/// The maximum number of bytes that are examined. Our choice: many times the comment of a packager.
pub(crate) const MAX_SNIFFED: usize = 64 * 1024;
/// The number of bytes that identify media.
pub(crate) const MEDIA_MAGIC_LEN: usize = 8;
const HLS_HEADER: &[u8] = b"#EXTM3U";
pub(crate) const BOM: &[u8] = b"\xef\xbb\xbf";
/// A manifest, and the fragments that may be documents of their own (`xlink:href`).
const DASH_ROOTS: [&[u8]; 3] = [b"MPD", b"Period", b"AdaptationSet"];
/// ASX, SMIL, XSPF, and the playlist of the Windows Media Player.
const OTHER_ROOTS: [&[u8]; 4] = [b"asx", b"smil", b"playlist", b"wpl"];
const PLS_HEADER: &[u8] = b"[playlist]";
/// `<?` in UTF-16 and UTF-32, `<?xm` in EBCDIC.
const UNSUPPORTED_ENCODINGS: [&[u8]; 5] = [
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
    fn playlists_are_detected_by_their_first_bytes_and_other_bodies_by_one() {
        let playlist = Signature::Playlist(PlaylistFormat::Hls);
        let manifest = Signature::Playlist(PlaylistFormat::Dash);
        for (text, expected) in [
            ("#EXTM3U\n", playlist),
            ("\u{feff}\r\n  #EXTM3U8", playlist),
            ("<MPD>", manifest),
            ("\u{feff}<?xml version=\"1.0\"?>\n<!-- a > b -->\n<mpd:MPD xmlns:mpd='x'", manifest),
            ("<?xml version=\"1.0\"?><svg>", Signature::NotAPlaylist),
            ("<!DOCTYPE MPD>\n<MPD>", manifest),
            ("<!doctype x [<!-- ' ]> --><?a ]> ?><!ENTITY a ']>'>]\n><MPD>", manifest),
            ("<mpd>", manifest),
            ("<Period xmlns='x'>", manifest),
            ("[Playlist]\nFile1=x", Signature::Playlist(PlaylistFormat::Other)),
            ("<?xml version='1.0'?><playlist version='1'>", Signature::Playlist(PlaylistFormat::Other)),
            ("<ASX version='3'>", Signature::Playlist(PlaylistFormat::Other)),
            ("[play", Signature::NeedMore),
            ("[1,2]", Signature::NotAPlaylist),
            ("<!DOCTYPE html>\n<html>", Signature::NotAPlaylist),
            ("<!DOCTYPE html PUBLIC \"-//W3C//DTD XHTML 1.0//EN\" 'x'><html>", Signature::NotAPlaylist),
            ("<!DOCTYPE MPD [", Signature::NeedMore),
            ("<html>", Signature::NotAPlaylist),
            ("<MPDX>", Signature::NotAPlaylist),
            ("#EXT-X", Signature::NotAPlaylist),
            ("# comment", Signature::NotAPlaylist),
            ("\0\0\0\u{18}ftyp", Signature::NotAPlaylist),
            ("PK", Signature::NotAPlaylist),
            ("", Signature::NeedMore),
            (" \n", Signature::NeedMore),
            ("#EXTM", Signature::NeedMore),
            ("<?xml version", Signature::NeedMore),
            ("<!-", Signature::NeedMore),
            ("<M", Signature::NeedMore),
        ] {
            assert_eq!(sniff_bytes(text.as_bytes()), expected, "{text:?}");
        }
        assert_eq!(sniff_bytes(b"\xef\xbb"), Signature::NeedMore);
        assert_eq!(sniff_bytes(b"\x1f\x8b\x08"), Signature::NotAPlaylist);
        for (mark, encode) in [(0xfeff_u16, u16::to_le_bytes as fn(u16) -> [u8; 2]), (0xfeff, u16::to_be_bytes)] {
            let encode_text =
                |text: &str| std::iter::once(mark).chain(text.encode_utf16()).flat_map(encode).collect::<Vec<u8>>();
            assert_eq!(sniff_bytes(&encode_text("#EXTM3U\né")), playlist);
            assert_eq!(sniff_bytes(&encode_text("<?xml version='1.0' encoding='UTF-16'?><MPD>")), manifest);
            assert_eq!(sniff_bytes(&encode_text("#EX")), Signature::NeedMore);
            assert_eq!(sniff_bytes(&encode_text("é")), Signature::NotAPlaylist);
        }
    }

    #[test]
    fn no_prefix_of_a_playlist_is_taken_for_another_file() {
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
                assert_ne!(sniff_bytes(&list[..len]), Signature::NotAPlaylist, "{:?}", &list[..len]);
            }
            assert!(matches!(sniff_bytes(&list), Signature::Playlist(_)), "{list:?}");
            assert!(!is_media(&list));
        }
        for medium in [&b"\0\0\0\x18ftypmp42"[..], b"\x47\x40\0\x10", b"\xff\xfb\x90\0", b"ID3\x04", b"OggS\0"] {
            assert!(sniff_bytes(medium) == Signature::NotAPlaylist && is_media(medium), "{medium:?}");
        }
        // Beginnings of unknown codings: zstd, xz, bzip2, compress, LZMA.
        for coded in [&b"\x28\xb5\x2f\xfd"[..], b"\xfd7zXZ", b"BZh9", b"\x1f\x9d\x90", b"\x5d\0\0"] {
            assert!(!is_media(coded), "{coded:?}");
        }
    }

    #[test]
    fn a_manifest_is_detected_after_a_long_beginning() {
        let comment = format!("<!--{}-->", "x".repeat(5000));
        let doctype = format!("<!DOCTYPE MPD [{}]>", " ".repeat(5000));
        for before in [&comment, &doctype, &" ".repeat(5000), &format!("<?xml version='1.0'?>{comment}{doctype}")] {
            assert_eq!(sniff_bytes(format!("{before}<MPD>").as_bytes()), Signature::Playlist(PlaylistFormat::Dash));
            assert_eq!(sniff_bytes(before.as_bytes()), Signature::NeedMore);
            assert_eq!(sniff_bytes(format!("{before}<svg>").as_bytes()), Signature::NotAPlaylist);
        }
        // An endless beginning is parsed as a manifest.
        for text in [
            " ".repeat(MAX_SNIFFED),
            format!("<!--{}", "-".repeat(MAX_SNIFFED)),
            format!("<{}", "M".repeat(MAX_SNIFFED)),
        ] {
            assert_eq!(sniff_bytes(text.as_bytes()), Signature::Playlist(PlaylistFormat::Dash));
        }
        let units = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        assert_eq!(sniff_bytes(&units("<?xml version='1.0'?><MPD>")), Signature::Playlist(PlaylistFormat::Dash));
        assert_eq!(sniff_bytes(b"\0\0\0<ftypisom"), Signature::NotAPlaylist);
    }
}
