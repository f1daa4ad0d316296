//! FLV reader for the streams that ffmpeg writes and nginx records. It returns the coded audio and video packets in
//! order, each identified by a hash of its content.
//!
//! 1. A tag has a header of 11 bytes, a body, and the length of the tag (Adobe FLV 10.1, annex E.4).
//! 2. Only coded packets count. Metadata (script data, decoder configuration, end of sequence) is rewritten by each
//!    program.
//! 3. A packet is identified by its SHA-256, so a changed byte makes it a different packet. The hash includes the
//!    first byte of the body, which gives the coding.

use sha2::{Digest, Sha256};

/// Type of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum MediaKind {
    Audio,
    Video,
}

/// A coded packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlvPacket {
    pub(crate) kind: MediaKind,
    /// Decoding time in milliseconds since the start of the stream.
    pub(crate) millis: u32,
    /// SHA-256 of the tag's body.
    pub(crate) digest: [u8; 32],
}

/// Incremental reader of a stream.
#[derive(Debug, Default)]
pub(crate) struct FlvReader {
    pending: Vec<u8>,
    has_header: bool,
}

impl FlvReader {
    /// Appends received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Returns the coded packets that are complete, and consumes them.
    pub(crate) fn packets(&mut self) -> Result<Vec<FlvPacket>, String> {
        let mut consumed = 0;
        if !self.has_header {
            let Some(head) = self.pending.get(..FILE_HEADER_LEN) else { return Ok(Vec::new()) };
            if !head.starts_with(b"FLV\x01") {
                return Err("not an FLV stream".into());
            }
            (self.has_header, consumed) = (true, FILE_HEADER_LEN);
        }
        let mut packets = Vec::new();
        while let Some((tag, bytes_after)) = self.pending.get(consumed..).and_then(split_tag) {
            packets.extend(tag.packet());
            consumed = self.pending.len() - bytes_after;
        }
        self.pending.drain(..consumed);
        Ok(packets)
    }
}

/// Length of the file header and of the (zero) length field after it.
const FILE_HEADER_LEN: usize = 13;
/// Length of a tag's header.
const TAG_HEADER_LEN: usize = 11;

struct FlvTag<'a> {
    kind: u8,
    millis: u32,
    body: &'a [u8],
}

/// Splits off the first tag; returns it and the number of bytes after it, or `None` if it is incomplete.
fn split_tag(bytes: &[u8]) -> Option<(FlvTag<'_>, usize)> {
    let &[kind, a, b, c, d, e, f, g, ..] = bytes else { return None };
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    // The most significant byte is stored last (annex E.4.1, TimestampExtended).
    let millis = u32::from_be_bytes([g, d, e, f]);
    let body = bytes.get(TAG_HEADER_LEN..TAG_HEADER_LEN + length)?;
    let bytes_after = bytes.len().checked_sub(TAG_HEADER_LEN + length + 4)?;
    Some((FlvTag { kind: kind & 0x1f, millis, body }, bytes_after))
}

impl FlvTag<'_> {
    fn packet(&self) -> Option<FlvPacket> {
        let kind = match self.kind {
            8 => MediaKind::Audio,
            9 => MediaKind::Video,
            _ => return None,
        };
        // For AAC and H.264 the second byte distinguishes configuration (0), packet (1) and end of sequence (2).
        if *self.body.get(1)? != 1 {
            return None;
        }
        Some(FlvPacket { kind, millis: self.millis, digest: Sha256::digest(self.body).into() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tag with this body.
    fn tag(kind: u8, millis: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let time = millis.to_be_bytes();
        let head = [kind, length[1], length[2], length[3], time[1], time[2], time[3], time[0], 0, 0, 0];
        let size = u32::try_from(TAG_HEADER_LEN + body.len()).unwrap().to_be_bytes();
        [&head[..], body, &size].concat()
    }

    fn stream() -> Vec<u8> {
        let head = b"FLV\x01\x05\x00\x00\x00\x09\x00\x00\x00\x00".to_vec();
        let tags = [
            tag(18, 0, b"\x02\x00\x0aonMetaData"),
            tag(9, 0, b"\x17\x00\x00\x00\x00config"),
            tag(9, 40, b"\x17\x01\x00\x00\x00first"),
            tag(8, 46, b"\xaf\x01sound"),
            tag(9, 0x0123_4567, b"\x27\x01\x00\x00\x00second"),
            tag(9, 80, b"\x17\x02\x00\x00\x00"),
        ];
        [head, tags.concat()].concat()
    }

    #[test]
    fn coded_packets_are_found_however_the_bytes_are_split() {
        let mut full_reader = FlvReader::default();
        full_reader.push(&stream());
        let packets = full_reader.packets().unwrap();
        let kinds_and_times: Vec<_> = packets.iter().map(|packet| (packet.kind, packet.millis)).collect();
        assert_eq!(
            kinds_and_times,
            [(MediaKind::Video, 40), (MediaKind::Audio, 46), (MediaKind::Video, 0x0123_4567)]
        );
        let (mut reader, mut single) = (FlvReader::default(), Vec::new());
        for byte in stream() {
            reader.push(&[byte]);
            single.extend(reader.packets().unwrap());
        }
        assert_eq!(single, packets);
    }

    #[test]
    fn a_changed_byte_makes_a_different_packet() {
        let read = |bytes: &[u8]| {
            let mut reader = FlvReader::default();
            reader.push(bytes);
            reader.packets().unwrap()
        };
        let mut other = stream();
        let at = other.windows(5).position(|part| part == b"first").unwrap();
        other[at] ^= 1;
        let (one, other) = (read(&stream()), read(&other));
        assert_ne!(one[0].digest, other[0].digest);
        assert_eq!(one[1..], other[1..]);
    }

    #[test]
    fn other_formats_are_refused_and_incomplete_tags_are_kept() {
        let mut reader = FlvReader::default();
        reader.push(b"<html>");
        assert_eq!(reader.packets(), Ok(Vec::new()));
        reader.push(b"not found</html>");
        assert!(reader.packets().is_err());
        let mut reader = FlvReader::default();
        let bytes = stream();
        reader.push(&bytes[..bytes.len() - 30]);
        assert_eq!(reader.packets().unwrap().len(), 2);
    }
}
