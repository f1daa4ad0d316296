//! Bodies of playlists that come compressed although the server was asked for them as they are.
//!
//! A compressed text can be a thousand times smaller than what comes out of it, so the output has a bound and is charged to
//! a [`Cost`] as it comes. What a decoder needs beside it is bounded by the formats: 32 KiB for deflate, 16 MiB for Brotli.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Read};

use super::cost::{Cost, ListError, limit, malformed};

/// What was done to a body, as Content-Encoding says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
}

/// The codings of a value of Content-Encoding (RFC 9110 section 8.4), in the order in which they were applied.
///
/// # Errors
/// One of them is not known, or there are too many.
pub(super) fn codings(encoding: &str) -> Result<Vec<Coding>, ListError> {
    let mut codings = Vec::new();
    for name in encoding.split(',') {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => codings.push(Coding::Gzip),
            "deflate" => codings.push(Coding::Deflate),
            "br" => codings.push(Coding::Brotli),
            name if NO_CODINGS.contains(&name) => {}
            _ => return Err(malformed("its encoding is not known")),
        }
        if codings.len() > MOST_CODINGS {
            return Err(malformed("it is encoded several times"));
        }
    }
    Ok(codings)
}

/// The format of a body with this coding; none: it is not encoded. Players tell gzip and zlib apart by the header, whatever the
/// server calls them, and some servers send deflate without the header that RFC 9110 asks for.
fn format(input: &[u8], coding: Coding) -> Option<Format> {
    match coding {
        Coding::Brotli => Some(Format::Brotli),
        _ if input.starts_with(&GZIP) => Some(Format::Gzip),
        _ if is_zlib(input) => Some(Format::Zlib),
        Coding::Deflate => Some(Format::Bare),
        Coding::Gzip => None,
    }
}

/// The text behind a value of Content-Encoding: the coding that was applied last is undone first.
///
/// # Errors
/// The coding is not known, the body is damaged, or what comes out of it is longer than `most`.
pub(super) fn decoded(body: &[u8], encoding: &str, most: usize, cost: &mut Cost) -> Result<Vec<u8>, ListError> {
    let mut bytes = None;
    for coding in codings(encoding)?.into_iter().rev() {
        let input = bytes.as_deref().unwrap_or(body);
        let Some(format) = format(input, coding) else { continue };
        bytes = Some(match format {
            Format::Gzip => gzip(input, most, cost)?,
            Format::Zlib => read(flate2::read::ZlibDecoder::new(input), most, cost)?,
            Format::Bare => read(flate2::read::DeflateDecoder::new(input), most, cost)?,
            Format::Brotli => read(brotli_decompressor::Decompressor::new(input, BUFFER), most, cost)?,
        });
    }
    match bytes {
        Some(bytes) => Ok(bytes),
        None if body.len() > most => Err(limit("it is too long")),
        None => Ok(body.to_vec()),
    }
}

/// What comes out of the first bytes of a body, at most so much, and whether the next byte cannot be decoded, however many follow.
pub(super) fn beginning<'a>(first: &'a [u8], codings: &[Coding], most: usize) -> (Cow<'a, [u8]>, bool) {
    let (mut text, mut is_damaged) = (Cow::Borrowed(first), false);
    for coding in codings.iter().rev() {
        // A header has two bytes.
        if text.len() < GZIP.len() {
            return (Cow::default(), is_damaged);
        }
        let Some(format) = format(&text, *coding) else { continue };
        let (out, damaged) = first_out(&text, format, most);
        (text, is_damaged) = (Cow::Owned(out), is_damaged | damaged);
    }
    (text, is_damaged)
}

fn first_out(input: &[u8], format: Format, most: usize) -> (Vec<u8>, bool) {
    let has_ended = Cell::new(false);
    let input = Source { left: input, has_ended: &has_ended };
    let mut from: Box<dyn Read + '_> = match format {
        Format::Gzip => Box::new(flate2::read::MultiGzDecoder::new(input)),
        Format::Zlib => Box::new(flate2::read::ZlibDecoder::new(input)),
        Format::Bare => Box::new(flate2::read::DeflateDecoder::new(input)),
        Format::Brotli => Box::new(brotli_decompressor::Decompressor::new(input, BUFFER)),
    };
    let (mut out, mut len) = (vec![0; most], 0);
    let is_damaged = loop {
        let Some(rest) = out.get_mut(len..).filter(|rest| !rest.is_empty()) else { break false };
        match from.read(rest) {
            Ok(0) => break false,
            Ok(more) => len += more,
            // A decoder that wants more than there is reports an error as well.
            Err(_) => break !has_ended.get(),
        }
    };
    out.truncate(len);
    (out, is_damaged)
}

#[derive(Clone, Copy)]
enum Format {
    Gzip,
    Zlib,
    /// Deflate without a header.
    Bare,
    Brotli,
}

/// The first bytes of a body, and whether a decoder wanted more of them.
struct Source<'a> {
    left: &'a [u8],
    has_ended: &'a Cell<bool>,
}

impl Read for Source<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.has_ended.set(self.has_ended.get() || self.left.is_empty());
        self.left.read(to)
    }
}

/// All members, one after the other. flate2's own decoder of several would go through any number of empty ones at once.
fn gzip(mut input: &[u8], most: usize, cost: &mut Cost) -> Result<Vec<u8>, ListError> {
    let mut all = Vec::new();
    loop {
        let mut member = flate2::bufread::GzDecoder::new(input);
        append(&mut all, &mut member, most, cost)?;
        input = member.into_inner();
        // Anything else behind a member is padding.
        if !input.starts_with(&GZIP) {
            return Ok(all);
        }
    }
}

fn read(mut from: impl Read, most: usize, cost: &mut Cost) -> Result<Vec<u8>, ListError> {
    let mut all = Vec::new();
    append(&mut all, &mut from, most, cost)?;
    Ok(all)
}

fn append(to: &mut Vec<u8>, from: &mut impl Read, most: usize, cost: &mut Cost) -> Result<(), ListError> {
    // A decoder's tables are set up even for nothing.
    cost.work(SET_UP)?;
    let mut buffer = [0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => {
                cost.work(len)?;
                if to.capacity() - to.len() < len {
                    // Doubling would take up memory that nobody has counted.
                    to.reserve_exact(len.max(to.len() / 8));
                }
                to.extend_from_slice(buffer.get(..len).unwrap_or_default());
                if to.len() > most {
                    return Err(limit(format!("it has more than {} MiB when it is decoded", most >> 20)));
                }
            }
            Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(malformed("its encoding is damaged")),
        }
    }
}

/// Whether a zlib header stands at the beginning (RFC 1950 section 2.2).
fn is_zlib(input: &[u8]) -> bool {
    match input {
        [method, flags, ..] => method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31),
        _ => false,
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What servers write there before a body that is not encoded.
const NO_CODINGS: [&str; 11] =
    ["", "identity", "none", "binary", "7bit", "8bit", "utf-8", "utf8", "us-ascii", "iso-8859-1", "windows-1252"];
const MOST_CODINGS: usize = 2;
const BUFFER: usize = 8 * 1024;
const SET_UP: usize = 4 * 1024;

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::super::address::tests::affordable;
    use super::*;

    pub(in super::super) fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn text(body: &[u8], encoding: &str) -> Result<Vec<u8>, ListError> {
        decoded(body, encoding, 1 << 20, &mut affordable())
    }

    #[test]
    fn each_coding_is_undone() {
        let plain = b"#EXTM3U\n".repeat(1000);
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        let mut bare = DeflateEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&plain).unwrap();
        bare.write_all(&plain).unwrap();
        assert_eq!(text(&gzipped(&plain), "gzip").unwrap(), plain);
        assert_eq!(text(&gzipped(&gzipped(&plain)), "GZIP, x-gzip").unwrap(), plain);
        assert_eq!(text(&zlib.finish().unwrap(), "deflate").unwrap(), plain);
        assert_eq!(text(&bare.finish().unwrap(), "deflate").unwrap(), plain);
        assert_eq!(text(&plain, "identity").unwrap(), plain);
        // "#EXTM3U\n" by the reference encoder.
        let brotli = [0x8b, 0x03, 0x80, 0x23, 0x45, 0x58, 0x54, 0x4d, 0x33, 0x55, 0x0a, 0x03];
        assert_eq!(text(&brotli, "br").unwrap(), b"#EXTM3U\n");
        // Servers name a coding that they have not applied, twice what they have applied once, or one for the other.
        assert_eq!(text(&plain, "gzip").unwrap(), plain);
        assert_eq!(text(&gzipped(&plain), "gzip, gzip").unwrap(), plain);
        assert_eq!(text(&gzipped(&plain), "deflate, utf-8,").unwrap(), plain);
        let two = [gzipped(b"#EXT"), gzipped(b"M3U\n"), b"padding".to_vec()].concat();
        assert_eq!(text(&two, "gzip").unwrap(), b"#EXTM3U\n");
    }

    #[test]
    fn the_beginning_is_decoded_through_all_codings() {
        let out = |first: &[u8], encoding: &str| {
            let (text, is_damaged) = beginning(first, &codings(encoding).unwrap(), 1 << 16);
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
        let nothing = [0, 0, 0, 0xff, 0xff].repeat(1000);
        assert_eq!(out(&nothing, "deflate"), (Vec::new(), false));
        assert_eq!(out(&[&b"\x78\x9c"[..], &nothing].concat(), "deflate"), (Vec::new(), false));
        assert_eq!(out(b"\x07\x07\x07\x07\x07", "deflate"), (Vec::new(), true));
        assert_eq!(out(&[0xff; 100], "br"), (Vec::new(), true));
        assert!(codings("zstd").is_err() && codings("gzip;q=1").is_err());
    }

    #[test]
    fn what_cannot_be_undone_is_said_and_a_bomb_ends_at_its_bound() {
        for (body, encoding) in
            [(&b"\x1f\x8bx"[..], "gzip"), (b"plain", "br"), (b"x", "zstd"), (b"x", "gzip, gzip, gzip")]
        {
            assert!(matches!(text(body, encoding), Err(ListError::Malformed(_))), "{encoding}");
        }
        let bomb = gzipped(&vec![b'x'; 30 << 20]);
        assert!(bomb.len() < 40_000);
        assert!(matches!(text(&bomb, "gzip"), Err(ListError::Limit(_))));
        assert!(matches!(text(&gzipped(&bomb), "gzip, gzip"), Err(ListError::Limit(_))));
        let empty = gzipped(b"").repeat(100_000);
        assert!(matches!(text(&empty, "gzip"), Err(ListError::Limit(_))));
    }
}
