//! Decodes playlists that servers send compressed although the proxy does not request that.
//!
//! A decompressed text can be a thousand times larger than its input, so the output is bounded and charged to a
//! [`ParseBudget`] as it is produced. The formats bound the additional memory of a decoder: 32 KiB for deflate, 16 MiB
//! for Brotli.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Read};

use super::parse_budget::{ParseBudget, PlaylistError, limit_error, malformed_error};

/// A coding named in Content-Encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContentCoding {
    Gzip,
    Deflate,
    Brotli,
}

/// Parses a value of Content-Encoding (RFC 9110 section 8.4). The codings are in the order in which they were applied.
///
/// # Errors
/// One of them is unknown, or there are too many.
pub(crate) fn parse_codings(encoding: &str) -> Result<Vec<ContentCoding>, PlaylistError> {
    let mut codings = Vec::new();
    for name in encoding.split(',') {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => codings.push(ContentCoding::Gzip),
            "deflate" => codings.push(ContentCoding::Deflate),
            "br" => codings.push(ContentCoding::Brotli),
            name if IDENTITY_NAMES.contains(&name) => {}
            _ => return Err(malformed_error("its encoding is not known")),
        }
        if codings.len() > MAX_CODINGS {
            return Err(malformed_error("it has too many content encodings"));
        }
    }
    Ok(codings)
}

/// The format of a body with this coding; `None`: it is not compressed. Players distinguish gzip and zlib by the
/// header, whatever the server calls them, and some servers send deflate without the header that RFC 9110 requires.
fn detect_compression(input: &[u8], coding: ContentCoding) -> Option<CompressionFormat> {
    match coding {
        ContentCoding::Brotli => Some(CompressionFormat::Brotli),
        _ if input.starts_with(&GZIP_MAGIC) => Some(CompressionFormat::Gzip),
        _ if is_zlib(input) => Some(CompressionFormat::Zlib),
        ContentCoding::Deflate => Some(CompressionFormat::RawDeflate),
        ContentCoding::Gzip => None,
    }
}

/// Decodes a body according to its Content-Encoding, beginning with the coding that was applied last.
///
/// # Errors
/// The coding is unknown, the body is damaged, or the result is longer than `max_len`.
pub(crate) fn decode(
    body: &[u8],
    encoding: &str,
    max_len: usize,
    budget: &mut ParseBudget,
) -> Result<Vec<u8>, PlaylistError> {
    let mut bytes = None;
    for coding in parse_codings(encoding)?.into_iter().rev() {
        let input = bytes.as_deref().unwrap_or(body);
        let Some(format) = detect_compression(input, coding) else { continue };
        bytes = Some(match format {
            CompressionFormat::Gzip => gunzip(input, max_len, budget)?,
            CompressionFormat::Zlib => read(flate2::read::ZlibDecoder::new(input), max_len, budget)?,
            CompressionFormat::RawDeflate => read(flate2::read::DeflateDecoder::new(input), max_len, budget)?,
            CompressionFormat::Brotli => {
                read(brotli_decompressor::Decompressor::new(input, BUFFER_SIZE), max_len, budget)?
            }
        });
    }
    match bytes {
        Some(bytes) => Ok(bytes),
        None if body.len() > max_len => Err(limit_error("the playlist is too long")),
        None => Ok(body.to_vec()),
    }
}

/// Decodes the first bytes of a body, to at most `max_len` bytes. Also returns whether the next byte cannot be decoded,
/// however many follow.
pub(crate) fn decode_prefix<'a>(
    prefix: &'a [u8],
    codings: &[ContentCoding],
    max_len: usize,
) -> (Cow<'a, [u8]>, bool) {
    let (mut decoded, mut is_damaged) = (Cow::Borrowed(prefix), false);
    for coding in codings.iter().rev() {
        // A header has two bytes.
        if decoded.len() < GZIP_MAGIC.len() {
            return (Cow::default(), is_damaged);
        }
        let Some(format) = detect_compression(&decoded, *coding) else { continue };
        let (out, is_damaged_here) = decompress_prefix(&decoded, format, max_len);
        (decoded, is_damaged) = (Cow::Owned(out), is_damaged | is_damaged_here);
    }
    (decoded, is_damaged)
}

fn decompress_prefix(input: &[u8], format: CompressionFormat, max_len: usize) -> (Vec<u8>, bool) {
    let has_ended = Cell::new(false);
    let input = PrefixReader { remaining: input, has_ended: &has_ended };
    let mut decoder: Box<dyn Read + '_> = match format {
        CompressionFormat::Gzip => Box::new(flate2::read::MultiGzDecoder::new(input)),
        CompressionFormat::Zlib => Box::new(flate2::read::ZlibDecoder::new(input)),
        CompressionFormat::RawDeflate => Box::new(flate2::read::DeflateDecoder::new(input)),
        CompressionFormat::Brotli => Box::new(brotli_decompressor::Decompressor::new(input, BUFFER_SIZE)),
    };
    let (mut out, mut len) = (vec![0; max_len], 0);
    let is_damaged = loop {
        let Some(free) = out.get_mut(len..).filter(|slice| !slice.is_empty()) else { break false };
        match decoder.read(free) {
            Ok(0) => break false,
            Ok(len_read) => len += len_read,
            // A decoder that needs more input reports an error as well.
            Err(_) => break !has_ended.get(),
        }
    };
    out.truncate(len);
    (out, is_damaged)
}

#[derive(Clone, Copy)]
enum CompressionFormat {
    Gzip,
    Zlib,
    /// Deflate without a header.
    RawDeflate,
    Brotli,
}

/// The first bytes of a body. Records whether a decoder wanted more of them.
struct PrefixReader<'a> {
    remaining: &'a [u8],
    has_ended: &'a Cell<bool>,
}

impl Read for PrefixReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.has_ended.set(self.has_ended.get() || self.remaining.is_empty());
        self.remaining.read(to)
    }
}

/// Decompresses all members. flate2's MultiGzDecoder would process any number of empty members in one call.
fn gunzip(mut input: &[u8], max_len: usize, budget: &mut ParseBudget) -> Result<Vec<u8>, PlaylistError> {
    let mut decoded = Vec::new();
    loop {
        let mut member_decoder = flate2::bufread::GzDecoder::new(input);
        read_into(&mut decoded, &mut member_decoder, max_len, budget)?;
        input = member_decoder.into_inner();
        // Other data after a member is padding.
        if !input.starts_with(&GZIP_MAGIC) {
            return Ok(decoded);
        }
    }
}

fn read(mut decoder: impl Read, max_len: usize, budget: &mut ParseBudget) -> Result<Vec<u8>, PlaylistError> {
    let mut decoded = Vec::new();
    read_into(&mut decoded, &mut decoder, max_len, budget)?;
    Ok(decoded)
}

fn read_into(
    out: &mut Vec<u8>,
    decoder: &mut impl Read,
    max_len: usize,
    budget: &mut ParseBudget,
) -> Result<(), PlaylistError> {
    // Setting up the tables of a decoder costs work even for an empty body.
    budget.charge_work(DECODER_SETUP_COST)?;
    let mut buffer = [0; BUFFER_SIZE];
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                budget.charge_work(len)?;
                if out.capacity() - out.len() < len {
                    // Doubling the capacity would allocate memory that is not accounted.
                    out.reserve_exact(len.max(out.len() / 8));
                }
                out.extend_from_slice(buffer.get(..len).unwrap_or_default());
                if out.len() > max_len {
                    return Err(limit_error(format!("the decoded playlist has more than {} MiB", max_len >> 20)));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(malformed_error("its compressed data is damaged")),
        }
    }
}

/// Whether the bytes begin with a zlib header (RFC 1950 section 2.2).
fn is_zlib(input: &[u8]) -> bool {
    match input {
        [method, flags, ..] => method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31),
        _ => false,
    }
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Values of Content-Encoding that servers use for bodies without an encoding.
const IDENTITY_NAMES: [&str; 11] =
    ["", "identity", "none", "binary", "7bit", "8bit", "utf-8", "utf8", "us-ascii", "iso-8859-1", "windows-1252"];
/// Maximum number of codings that are applied one after another.
const MAX_CODINGS: usize = 2;
const BUFFER_SIZE: usize = 8 * 1024;
/// Work that is charged for creating a decoder, in bytes.
const DECODER_SETUP_COST: usize = 4 * 1024;

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;
    use crate::playlist::url_rewrite::tests::test_budget;

    pub(crate) fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn decode_text(body: &[u8], encoding: &str) -> Result<Vec<u8>, PlaylistError> {
        decode(body, encoding, 1 << 20, &mut test_budget())
    }

    #[test]
    fn each_coding_is_decoded() {
        let plain = b"#EXTM3U\n".repeat(1000);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        let mut bare = DeflateEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&plain).unwrap();
        bare.write_all(&plain).unwrap();
        assert_eq!(decode_text(&gzipped(&plain), "gzip").unwrap(), plain);
        assert_eq!(decode_text(&gzipped(&gzipped(&plain)), "GZIP, x-gzip").unwrap(), plain);
        assert_eq!(decode_text(&zlib.finish().unwrap(), "deflate").unwrap(), plain);
        assert_eq!(decode_text(&bare.finish().unwrap(), "deflate").unwrap(), plain);
        assert_eq!(decode_text(&plain, "identity").unwrap(), plain);
        // "#EXTM3U\n" by the reference encoder.
        let brotli = [0x8b, 0x03, 0x80, 0x23, 0x45, 0x58, 0x54, 0x4d, 0x33, 0x55, 0x0a, 0x03];
        assert_eq!(decode_text(&brotli, "br").unwrap(), b"#EXTM3U\n");
        // Some servers name a coding that they have not applied, name it twice, or confuse two of them.
        assert_eq!(decode_text(&plain, "gzip").unwrap(), plain);
        assert_eq!(decode_text(&gzipped(&plain), "gzip, gzip").unwrap(), plain);
        assert_eq!(decode_text(&gzipped(&plain), "deflate, utf-8,").unwrap(), plain);
        let two = [gzipped(b"#EXT"), gzipped(b"M3U\n"), b"padding".to_vec()].concat();
        assert_eq!(decode_text(&two, "gzip").unwrap(), b"#EXTM3U\n");
    }

    #[test]
    fn a_prefix_is_decoded_through_all_codings() {
        let out = |first: &[u8], encoding: &str| {
            let (text, is_damaged) = decode_prefix(first, &parse_codings(encoding).unwrap(), 1 << 16);
            (text.into_owned(), is_damaged)
        };
        let list = b"#EXTM3U\n".repeat(100);
        for encoding in ["gzip", "identity, gzip", "gzip,", "utf-8,, X-GZIP"] {
            let body = gzipped(&list);
            let (text, is_damaged) = out(&body, encoding);
            assert!(text == list && !is_damaged, "{encoding}");
            let (text, is_damaged) = out(body.get(..body.len() - 9).unwrap(), encoding);
            assert!(list.starts_with(&text) && !is_damaged, "{encoding}");
            assert_eq!(out(&body[..5], encoding), (Vec::new(), false));
        }
        assert_eq!(out(&gzipped(&gzipped(&list)), "gzip, gzip").0, list);
        assert_eq!(out(&[gzipped(b""), gzipped(b""), gzipped(&list)].concat(), "gzip").0, list);
        let empty_blocks = [0, 0, 0, 0xff, 0xff].repeat(1000);
        assert_eq!(out(&empty_blocks, "deflate"), (Vec::new(), false));
        assert_eq!(out(&[&b"\x78\x9c"[..], &empty_blocks].concat(), "deflate"), (Vec::new(), false));
        assert_eq!(out(b"\x07\x07\x07\x07\x07", "deflate"), (Vec::new(), true));
        assert_eq!(out(&[0xff; 100], "br"), (Vec::new(), true));
        assert!(parse_codings("zstd").is_err() && parse_codings("gzip;q=1").is_err());
    }

    #[test]
    fn undecodable_bodies_and_bombs_are_refused() {
        for (body, encoding) in
            [(&b"\x1f\x8bx"[..], "gzip"), (b"plain", "br"), (b"x", "zstd"), (b"x", "gzip, gzip, gzip")]
        {
            assert!(matches!(decode_text(body, encoding), Err(PlaylistError::Malformed(_))), "{encoding}");
        }
        let bomb = gzipped(&vec![b'x'; 30 << 20]);
        assert!(bomb.len() < 40_000);
        assert!(matches!(decode_text(&bomb, "gzip"), Err(PlaylistError::Limit(_))));
        assert!(matches!(decode_text(&gzipped(&bomb), "gzip, gzip"), Err(PlaylistError::Limit(_))));
        let empty = gzipped(b"").repeat(100_000);
        assert!(matches!(decode_text(&empty, "gzip"), Err(PlaylistError::Limit(_))));
    }
}
