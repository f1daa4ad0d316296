//! The journal beside a download, as a crash or another program may have left it.

use marline_core::wire::journal::{Header, Life, Mark, RECORD_LEN, Record, VALIDATOR_MAX, records};

use crate::bytes::Bytes;

/// An even first byte: the rest is a file as it was found. An odd one: the rest says what is written into a journal, and
/// which bits of it are damaged.
pub fn journal(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    if bytes.u8().is_multiple_of(2) { found(bytes.0) } else { written(bytes) }
}

fn found(bytes: &[u8]) {
    let Ok((header, length)) = Header::parse(bytes) else { return };
    assert_eq!(length % RECORD_LEN, 0);
    let emitted = header.emit();
    assert_eq!(emitted.len(), length);
    assert_eq!(Header::parse(&emitted), Ok((header.clone(), length)));
    for record in records(bytes.get(length..).unwrap_or_default(), header.nonce) {
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
        validator: if bytes.u8().is_multiple_of(2) {
            Mark::Etag(text(&mut bytes))
        } else {
            Mark::Date(text(&mut bytes))
        },
    };
    let (damaged, mask) = (usize::from(bytes.u16()), bytes.u8());
    let mut file = header.emit();
    let length = file.len();
    let (Mark::Etag(text) | Mark::Date(text)) = &header.validator;
    assert!(text.len() <= VALIDATOR_MAX);
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (start, end) = (bytes.size(), bytes.size());
        let record = if bytes.u8().is_multiple_of(2) {
            Record::Written { start, end }
        } else {
            Record::Synced { start, end }
        };
        file.extend(record.emit(header.nonce));
        all.push((start < end).then_some(record));
    }
    if let Some(byte) = file.get_mut(damaged) {
        *byte ^= mask;
        if damaged >= length && mask != 0 {
            all[(damaged - length) / RECORD_LEN] = None;
        }
    }
    let covered = length - length % RECORD_LEN;
    match Header::parse(&file) {
        Ok((read, read_length)) => {
            assert_eq!((&read, read_length), (&header, length), "a damaged header is believed");
            let read: Vec<Record> = records(&file[length..], header.nonce).collect();
            let good: Vec<Record> = all.into_iter().flatten().collect();
            assert_eq!(read, good, "a damaged record is believed, or a good one is not");
        }
        Err(error) => assert!(mask != 0 && damaged < covered, "a good header is refused: {error}"),
    }
}
