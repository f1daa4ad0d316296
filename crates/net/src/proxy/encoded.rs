//! Bodies of playlists that come compressed although the server was asked for them as they are.
//!
//! A compressed text can be a thousand times smaller than what comes out of it, so the output has a bound and is charged to
//! a [`Cost`] as it comes. What a decoder needs beside it is bounded by the formats: 32 KiB for deflate, 16 MiB for Brotli.

use std::io::Read;

use super::cost::{Cost, ListError, limit, malformed};

/// The text behind a value of Content-Encoding (RFC 9110 section 8.4): of several codings the last one was applied last.
///
/// # Errors
/// The coding is not known, the body is damaged, or what comes out of it is longer than `most`.
pub(super) fn decoded(body: &[u8], encoding: &str, most: usize, cost: &mut Cost) -> Result<Vec<u8>, ListError> {
    let codings: Vec<&str> = encoding.split(',').map(str::trim).filter(|coding| !coding.is_empty()).collect();
    if codings.len() > MOST_CODINGS {
        return Err(malformed("it is encoded several times"));
    }
    let mut bytes = None;
    for coding in codings.iter().rev() {
        let input = bytes.as_deref().unwrap_or(body);
        let output = match coding.to_ascii_lowercase().as_str() {
            "identity" => continue,
            "gzip" | "x-gzip" => gzip(input, most, cost)?,
            // Some servers send the bare format, without the header that RFC 9110 asks for.
            "deflate" if is_zlib(input) => read(flate2::read::ZlibDecoder::new(input), most, cost)?,
            "deflate" => read(flate2::read::DeflateDecoder::new(input), most, cost)?,
            "br" => read(brotli_decompressor::Decompressor::new(input, BUFFER), most, cost)?,
            _ => return Err(malformed("its encoding is not known")),
        };
        bytes = Some(output);
    }
    Ok(bytes.unwrap_or_else(|| body.to_vec()))
}

/// Whether all codings of a value of Content-Encoding can be undone.
pub(super) fn is_known(encoding: &str) -> bool {
    let known = ["", "identity", "gzip", "x-gzip", "deflate", "br"];
    encoding.split(',').all(|coding| known.iter().any(|known| coding.trim().eq_ignore_ascii_case(known)))
}

/// What comes out of the first bytes of a body, at most so much; none: the coding is not known, or these are not its bytes.
pub(super) fn beginning(first: &[u8], encoding: &str, most: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; most];
    let mut from: Box<dyn Read + '_> = match encoding.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" if first.iter().zip(GZIP).all(|(byte, magic)| *byte == magic) => {
            Box::new(flate2::read::GzDecoder::new(first))
        }
        "deflate" if is_zlib(first) => Box::new(flate2::read::ZlibDecoder::new(first)),
        "deflate" => Box::new(flate2::read::DeflateDecoder::new(first)),
        "br" => Box::new(brotli_decompressor::Decompressor::new(first, BUFFER)),
        _ => return None,
    };
    let mut len = 0;
    // The bytes end in the middle of the coding, so there is an error behind what they hold.
    while let Some(Ok(more @ 1..)) = out.get_mut(len..).filter(|rest| !rest.is_empty()).map(|rest| from.read(rest))
    {
        len += more;
    }
    drop(from);
    out.truncate(len);
    Some(out)
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

pub(super) const GZIP: [u8; 2] = [0x1f, 0x8b];
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
        let two = [gzipped(b"#EXT"), gzipped(b"M3U\n"), b"padding".to_vec()].concat();
        assert_eq!(text(&two, "gzip").unwrap(), b"#EXTM3U\n");
    }

    #[test]
    fn what_cannot_be_undone_is_said_and_a_bomb_ends_at_its_bound() {
        for (body, encoding) in
            [(&b"plain"[..], "gzip"), (b"plain", "br"), (b"x", "zstd"), (b"x", "gzip, gzip, gzip")]
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
