//! The journal beside a download, as a crash or another program may have left it.

use marline_core::wire::journal::{Header, Life, Mac, Mark, RECORD_LEN, Record, VALIDATOR_MAX, records};

use crate::bytes::Bytes;

/// An even first byte: the rest is a file as it was found. An odd one: the rest says what is written into a journal, and
/// which bits of it are damaged.
pub fn journal(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    if bytes.u8().is_multiple_of(2) { found(bytes.0) } else { written(bytes) }
}

/// FNV-1a, which a fuzzer can solve: what lies behind a right code is reached as well.
fn mac(bytes: &[u8]) -> Mac {
    let hash = |seed: u64| bytes.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
    out[8..].copy_from_slice(&hash(1).to_le_bytes());
    out
}

fn found(bytes: &[u8]) {
    let Ok((header, sealed, length)) = Header::parse(bytes, mac) else { return };
    assert_eq!(length % RECORD_LEN, 0);
    let (emitted, again) = header.emit(mac);
    assert_eq!((emitted.len(), again), (length, sealed));
    assert_eq!(Header::parse(&emitted, mac), Ok((header.clone(), sealed, length)));
    for record in records(bytes.get(length..).unwrap_or_default(), sealed, mac) {
        let (Record::Written { start, end } | Record::Synced { start, end }) = record;
        assert!(start < end, "{record:?}");
    }
}

fn written(mut bytes: Bytes<'_>) {
    let text = |bytes: &mut Bytes<'_>| {
        let length = usize::from(bytes.u8());
        String::from_utf8_lossy(bytes.take(length)).into_owned()
    };
    let header = Header {
        nonce: bytes.u64(),
        total: bytes.size(),
        url: [bytes.u8(); 32],
        life: Life { boot: [bytes.u8(); 16], namespace: bytes.size(), mount: bytes.size() },
        part: [bytes.u8(); 16],
        validator: if bytes.u8().is_multiple_of(2) {
            Mark::Etag(text(&mut bytes))
        } else {
            Mark::Date(text(&mut bytes))
        },
    };
    let (damaged, mask) = (usize::from(bytes.u16()), bytes.u8());
    let (mut file, sealed) = header.emit(mac);
    let length = file.len();
    let (Mark::Etag(text) | Mark::Date(text)) = &header.validator;
    assert!(text.len() <= VALIDATOR_MAX);
    let mut all = Vec::new();
    while !bytes.is_empty() {
        // Offsets of files are signed.
        let (start, end) = (bytes.size() & (u64::MAX >> 1), bytes.size());
        let record = if bytes.u8().is_multiple_of(2) {
            Record::Written { start, end }
        } else {
            Record::Synced { start, end }
        };
        file.extend(record.emit(&sealed, mac));
        all.push((start < end).then_some(record));
    }
    if let Some(byte) = file.get_mut(damaged) {
        *byte ^= mask;
        if damaged >= length && mask != 0 {
            all[(damaged - length) / RECORD_LEN] = None;
        }
    }
    let covered = length - length % RECORD_LEN;
    match Header::parse(&file, mac) {
        Ok((read, _, read_length)) => {
            assert_eq!((&read, read_length), (&header, length), "a damaged header is believed");
            let read: Vec<Record> = records(&file[length..], sealed, mac).collect();
            let good: Vec<Record> = all.into_iter().flatten().collect();
            assert_eq!(read, good, "a damaged record is believed, or a good one is not");
        }
        Err(error) => assert!(mask != 0 && damaged < covered, "a good header is refused: {error}"),
    }
}
