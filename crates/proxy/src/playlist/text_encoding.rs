//! Playlists in other encodings than UTF-8, and with bytes that are invalid in any encoding.
//!
//! RFC 8216 section 4 requires UTF-8, but some playlists have titles in Latin-1, which players tolerate. So each byte
//! that is not UTF-8 is mapped to a private character while a playlist is parsed, and back to that byte afterwards.
//! Within a URL it is percent-encoded, as players request it. UTF-16 with a byte order mark is converted to UTF-8.

use std::borrow::Cow;
use std::ops::Range;

use super::parse_budget::{PlaylistError, limit_error, malformed_error};

/// A body as text.
pub(crate) struct DecodedText<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Some of its characters stand for bytes.
    has_escaped_bytes: bool,
    /// The text was converted from UTF-16.
    pub(crate) is_converted: bool,
}

impl<'a> DecodedText<'a> {
    /// Decodes a body into a text of at most `max_len` bytes.
    ///
    /// # Errors
    /// The text is longer, or the body has the byte order mark of UTF-16 and is invalid.
    pub(crate) fn decode(body: &'a [u8], max_len: u64) -> Result<Self, PlaylistError> {
        let (has_bytes, is_converted) = (false, false);
        let decode_utf16 = |decode: fn([u8; 2]) -> u16| {
            if body.len() as u64 / 2 * 3 > max_len {
                return Err(limit_error("the playlist becomes too long as UTF-8"));
            }
            let pairs = body.get(2..).unwrap_or_default().chunks_exact(2);
            let units =
                pairs.map(|pair| decode([pair.first().copied().unwrap_or(0), pair.get(1).copied().unwrap_or(0)]));
            let text: Result<String, _> = char::decode_utf16(units).collect();
            let text =
                text.map_err(|_| malformed_error("the playlist begins like UTF-16 and is not valid UTF-16"))?;
            Ok(Self { text: Cow::Owned(declare_utf8(text)), has_escaped_bytes: has_bytes, is_converted: true })
        };
        match body {
            [0xff, 0xfe, ..] => return decode_utf16(u16::from_le_bytes),
            [0xfe, 0xff, ..] => return decode_utf16(u16::from_be_bytes),
            _ => {}
        }
        if let Ok(text) = std::str::from_utf8(body)
            && !(body.contains(&ESCAPE_LEAD_BYTE) && text.contains(is_escaped_byte))
        {
            return Ok(Self { text: Cow::Borrowed(text), has_escaped_bytes: has_bytes, is_converted });
        }
        let mut text = String::new();
        for chunk in body.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_escaped_byte(c) {
                    text.extend(c.encode_utf8(&mut [0; 4]).bytes().filter_map(escape_byte));
                } else {
                    text.push(c);
                }
            }
            text.extend(chunk.invalid().iter().copied().filter_map(escape_byte));
            if text.len() as u64 > max_len {
                return Err(limit_error("too many bytes of the playlist are not UTF-8"));
            }
        }
        Ok(Self { text: Cow::Owned(text), has_escaped_bytes: true, is_converted })
    }

    /// Encodes the rewritten text, with the original bytes restored.
    pub(crate) fn encode(&self, rewritten: String) -> Vec<u8> {
        if !self.has_escaped_bytes {
            return rewritten.into_bytes();
        }
        let mut bytes = Vec::with_capacity(rewritten.len());
        for c in rewritten.chars() {
            match unescape_byte(c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        bytes
    }
}

/// Changes the encoding in the XML declaration, if there is one, to UTF-8.
fn declare_utf8(text: String) -> String {
    let Some(Range { start: encoding_start, end: encoding_end }) = encoding_range(&text) else { return text };
    let (before, after) =
        (text.get(..encoding_start).unwrap_or_default(), text.get(encoding_end..).unwrap_or_default());
    format!("{before}UTF-8{after}")
}

/// The encoding that an XML declaration names.
pub(crate) fn declared_encoding(text: &str) -> Option<&str> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    text.get(encoding_range(text)?)
}

/// Whether ASCII characters represent themselves in an encoding, by its name in an XML declaration.
pub(crate) fn is_ascii_compatible(encoding: &str) -> bool {
    let name: String = encoding.trim().to_ascii_lowercase().replace(['-', '_'], "");
    // The text is not UTF-16, whatever the declaration says; parsers ignore that.
    let exact_names = ["utf8", "utf16", "utf16le", "utf16be", "ascii", "latin1", "gb2312", "gbk", "big5"];
    exact_names.contains(&&*name)
        || ["usascii", "iso8859", "windows12", "cp12", "euc", "koi8"].iter().any(|prefix| name.starts_with(prefix))
}

fn encoding_range(text: &str) -> Option<Range<usize>> {
    let end = text.strip_prefix("<?xml").and_then(|remaining| remaining.find("?>"))?;
    let declaration = text.get(.."<?xml".len() + end)?;
    let at = declaration.to_ascii_lowercase().find("encoding")?;
    let open = at + declaration.get(at..)?.find(['"', '\''])?;
    let quote = declaration.get(open..)?.chars().next()?;
    let len = declaration.get(open + 1..)?.find(quote)?;
    Some(open + 1..open + 1 + len)
}

/// Percent-encodes the bytes of a URL that are not UTF-8.
pub(crate) fn percent_encoded(address: Cow<'_, str>) -> Cow<'_, str> {
    if address.is_ascii() || !address.contains(is_escaped_byte) {
        return address;
    }
    let mut out = String::new();
    for c in address.chars() {
        match unescape_byte(c) {
            Some(byte) => out.push_str(percent_encoding::percent_encode_byte(byte)),
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The last characters of the last plane, which is for private use: 128 of them stand for the bytes from 0x80 on.
const ESCAPE_BASE: u32 = 0x10_ff00;

/// The first byte of these characters in UTF-8.
const ESCAPE_LEAD_BYTE: u8 = 0xf4;

fn escape_byte(byte: u8) -> Option<char> {
    char::from_u32(ESCAPE_BASE + u32::from(byte))
}

fn unescape_byte(c: char) -> Option<u8> {
    u32::from(c).checked_sub(ESCAPE_BASE + 0x80).and_then(|byte| u8::try_from(byte + 0x80).ok())
}

fn is_escaped_byte(c: char) -> bool {
    unescape_byte(c).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf_8_are_restored_and_percent_encoded_in_urls() {
        for body in
            [&b"caf\xe9/\xc3\xa9.ts"[..], b"\xf4\x8f\xbf\xa9 genuine", b"plain", b"\xff", b"\x80\xff\xf0\x9f"]
        {
            let decoded = DecodedText::decode(body, 1000).unwrap();
            assert_eq!(decoded.encode(decoded.text.clone().into_owned()), body);
        }
        let decoded = DecodedText::decode(b"caf\xe9/\xc3\xa9.ts", 1000).unwrap();
        assert_eq!(percent_encoded(decoded.text), "caf%E9/é.ts");
        assert!(DecodedText::decode(&[0x80; 300], 1000).is_err());
    }

    #[test]
    fn the_xml_declaration_gets_the_new_encoding() {
        for (text, want) in [
            (
                "<?xml version=\"1.0\" encoding=\"UTF-16\"?><MPD/>",
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><MPD/>",
            ),
            (
                "<?xml version='1.0' Encoding = 'utf-16le' ?><MPD/>",
                "<?xml version='1.0' Encoding = 'UTF-8' ?><MPD/>",
            ),
            ("<?xml version='1.0'?><MPD encoding='x'/>", "<?xml version='1.0'?><MPD encoding='x'/>"),
            ("<MPD/>", "<MPD/>"),
            ("<?xml encoding", "<?xml encoding"),
            ("<?xml encoding='?>", "<?xml encoding='?>"),
        ] {
            assert_eq!(declare_utf8(text.to_owned()), want);
        }
        assert_eq!(declared_encoding("\u{feff}<?xml version='1.0' encoding='UTF-7'?><MPD/>"), Some("UTF-7"));
        for (name, expected) in
            [("utf-8", true), ("ISO-8859-15", true), ("UTF-7", false), ("IBM037", false), ("UCS-4", false)]
        {
            assert_eq!(is_ascii_compatible(name), expected, "{name}");
        }
    }

    #[test]
    fn utf_16_is_converted_to_utf_8() {
        for (mark, encode) in [(0xfeff_u16, u16::to_le_bytes as fn(u16) -> [u8; 2]), (0xfeff, u16::to_be_bytes)] {
            let units = std::iter::once(mark).chain("#EXTM3U\né😀".encode_utf16());
            let body: Vec<u8> = units.flat_map(encode).collect();
            let decoded = DecodedText::decode(&body, 1000).unwrap();
            assert!(decoded.is_converted && decoded.text == "#EXTM3U\né😀");
            assert!(DecodedText::decode(&body, 10).is_err());
        }
        assert!(DecodedText::decode(b"\xff\xfe\x00\xd8\x00\x00", 1000).is_err());
    }
}
