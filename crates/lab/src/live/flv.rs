//! FLV, as ffmpeg writes it and nginx records it: the coded packets in it, told apart by what is in them.
//!
//! In: bytes as they come. Out: packets of audio and video, in order.
//!
//! 1. A tag has a head of 11 bytes, a body, and its length once more (Adobe FLV 10.1, annex E.4).
//! 2. Only coded packets count: what describes the stream (script data, the decoders' configuration, the end of a
//!    sequence) is written again by each program as it likes.
//! 3. A packet is known by its SHA-256: a changed byte makes it another one. The first byte of a body says how the rest is
//!    coded, and belongs to it.

use sha2::{Digest, Sha256};

/// What a packet carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum MediaKind {
    Audio,
    Video,
}

/// A coded packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlvPacket {
    pub(crate) kind: MediaKind,
    /// When it is to be decoded, in milliseconds from the stream's start.
    pub(crate) millis: u32,
    /// Of its body.
    pub(crate) digest: [u8; 32],
}

/// Reads a stream as it comes.
#[derive(Debug, Default)]
pub(crate) struct FlvReader {
    pending: Vec<u8>,
    has_header: bool,
}

impl FlvReader {
    /// More bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The coded packets that are whole by now.
    pub(crate) fn packets(&mut self) -> Result<Vec<FlvPacket>, String> {
        let mut consumed = 0;
        if !self.has_header {
            let Some(head) = self.pending.get(..FILE_HEADER_LEN) else { return Ok(Vec::new()) };
            if !head.starts_with(b"FLV\x01") {
                return Err("it is no FLV".into());
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

/// The file's head, with the length of the tag before the first one.
const FILE_HEADER_LEN: usize = 13;
/// A tag's head.
const TAG_HEADER_LEN: usize = 11;

struct FlvTag<'a> {
    kind: u8,
    millis: u32,
    body: &'a [u8],
}

/// The first tag, and how many bytes come after it; none: it is not whole yet.
fn split_tag(bytes: &[u8]) -> Option<(FlvTag<'_>, usize)> {
    let &[kind, a, b, c, d, e, f, g, ..] = bytes else { return None };
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    // Its highest byte comes last (annex E.4.1, TimestampExtended).
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
        // AAC and H.264 say in the second byte whether this is configuration (0), a packet (1) or an end (2).
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
        let whole = u32::try_from(TAG_HEADER_LEN + body.len()).unwrap().to_be_bytes();
        [&head[..], body, &whole].concat()
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
    fn coded_packets_are_found_however_the_bytes_come() {
        let mut whole = FlvReader::default();
        whole.push(&stream());
        let whole = whole.packets().unwrap();
        let told: Vec<_> = whole.iter().map(|packet| (packet.kind, packet.millis)).collect();
        assert_eq!(told, [(MediaKind::Video, 40), (MediaKind::Audio, 46), (MediaKind::Video, 0x0123_4567)]);
        let (mut reader, mut single) = (FlvReader::default(), Vec::new());
        for byte in stream() {
            reader.push(&[byte]);
            single.extend(reader.packets().unwrap());
        }
        assert_eq!(single, whole);
    }

    #[test]
    fn one_byte_makes_another_packet() {
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
    fn what_is_no_flv_is_refused_and_what_is_cut_off_is_waited_for() {
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
