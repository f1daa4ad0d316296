//! The journal of an unfinished download, as a crash or another program may have left it.

use marline_core::wire::download_journal::{
    Header, MAX_VALIDATOR_LEN, Mac, PageCacheEpoch, RECORD_LEN, Record, StoredValidator, valid_records,
};

use crate::bytes::Bytes;

/// If the first byte is even, the rest is the content of a journal file. If it is odd, the rest decides what is written
/// to a journal, and which bits of the journal are damaged.
pub fn journal(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    if bytes.u8().is_multiple_of(2) { check_existing(bytes.0) } else { check_written(bytes) }
}

/// FNV-1a in place of a cryptographic MAC: the fuzzer can find matching values, so it also reaches the code behind the
/// check.
fn mac(bytes: &[u8]) -> Mac {
    let hash = |seed: u64| bytes.iter().fold(seed, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&hash(0xcbf2_9ce4_8422_2325).to_le_bytes());
    out[8..].copy_from_slice(&hash(1).to_le_bytes());
    out
}

fn check_existing(bytes: &[u8]) {
    let Ok((header, header_mac, length)) = Header::parse(bytes, mac) else { return };
    assert_eq!(length % RECORD_LEN, 0);
    let (emitted, again) = header.emit(mac);
    assert_eq!((emitted.len(), again), (length, header_mac));
    assert_eq!(Header::parse(&emitted, mac), Ok((header.clone(), header_mac, length)));
    for record in valid_records(bytes.get(length..).unwrap_or_default(), header_mac, mac) {
        let (Record::Written { start, end } | Record::Synced { start, end }) = record;
        assert!(start < end, "{record:?}");
    }
}

fn check_written(mut bytes: Bytes<'_>) {
    let text = |bytes: &mut Bytes<'_>| {
        let length = usize::from(bytes.u8());
        String::from_utf8_lossy(bytes.take(length)).into_owned()
    };
    let header = Header {
        nonce: bytes.u64(),
        file_size: bytes.size(),
        url_digest: [bytes.u8(); 32],
        epoch: PageCacheEpoch { boot_id: [bytes.u8(); 16], mount_namespace: bytes.size(), mount: bytes.size() },
        partial_file: [bytes.u8(); 16],
        validator: if bytes.u8().is_multiple_of(2) {
            StoredValidator::Etag(text(&mut bytes))
        } else {
            StoredValidator::LastModified(text(&mut bytes))
        },
    };
    let (damaged, mask) = (usize::from(bytes.u16()), bytes.u8());
    let (mut file, header_mac) = header.emit(mac);
    let length = file.len();
    let (StoredValidator::Etag(text) | StoredValidator::LastModified(text)) = &header.validator;
    assert!(text.len() <= MAX_VALIDATOR_LEN);
    // The written records; none in place of records that must not be read: empty ranges, and the damaged one.
    let mut expected = Vec::new();
    while !bytes.is_empty() {
        // File offsets are signed.
        let (start, end) = (bytes.size() & (u64::MAX >> 1), bytes.size());
        let record = if bytes.u8().is_multiple_of(2) {
            Record::Written { start, end }
        } else {
            Record::Synced { start, end }
        };
        file.extend(record.emit(&header_mac, mac));
        expected.push((start < end).then_some(record));
    }
    if let Some(byte) = file.get_mut(damaged) {
        *byte ^= mask;
        if damaged >= length && mask != 0 {
            expected[(damaged - length) / RECORD_LEN] = None;
        }
    }
    let header_end = length - length % RECORD_LEN;
    match Header::parse(&file, mac) {
        Ok((parsed, _, parsed_length)) => {
            assert_eq!((&parsed, parsed_length), (&header, length), "a damaged header was accepted");
            let records: Vec<Record> = valid_records(&file[length..], header_mac, mac).collect();
            let expected: Vec<Record> = expected.into_iter().flatten().collect();
            assert_eq!(records, expected, "a damaged record was accepted, or a valid one rejected");
        }
        Err(error) => assert!(mask != 0 && damaged < header_end, "a valid header was rejected: {error}"),
    }
}
