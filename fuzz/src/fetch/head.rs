//! Response heads: as a correct server would send them, or changed by the input.

use marline_core::fetch::{ByteRange, ContentRange, RequestRange, ResponseHead, UrlId};
use marline_core::units::{DataSize, Duration};

use super::validator;
use crate::bytes::Bytes;

/// Head of a server that supports ranges and has `size` bytes of version 0.
pub(super) fn correct(requested: RequestRange, size: u64) -> ResponseHead {
    let total = DataSize::from_bytes(size);
    let requested = match requested {
        RequestRange::Full => {
            return ResponseHead {
                status: 200,
                length: Some(total),
                validator: Some(validator(0)),
                ..ResponseHead::default()
            };
        }
        RequestRange::From(start) => ByteRange::new(start, size.max(start)),
        RequestRange::Bounded(range) => range,
    };
    let range = requested.intersect(ByteRange::new(0, size));
    if range.is_empty() || range.start != requested.start {
        let range = Some(ContentRange { range: None, total: Some(total) });
        return ResponseHead { status: 416, length: Some(DataSize::ZERO), range, ..ResponseHead::default() };
    }
    ResponseHead {
        status: 206,
        length: Some(range.len()),
        range: Some(ContentRange { range: Some(range), total: Some(total) }),
        validator: Some(validator(0)),
        ..ResponseHead::default()
    }
}

/// The correct head with changes from the input. Each bit of a mask changes one property.
pub(super) fn modified(
    bytes: &mut Bytes<'_>,
    requested: RequestRange,
    size: u64,
    first_redirect: u16,
) -> ResponseHead {
    let changes = bytes.u16();
    let mut head = correct(requested, size);
    let is_changed = |bit: u16| changes & 1 << bit != 0;
    if is_changed(0) {
        head.status = bytes.one_of(&[200, 206, 302, 416, 503, 429, 500, 404, 403, 204, 408, 301, 0, 999]);
    }
    if is_changed(1) {
        head.length = if bytes.u8().is_multiple_of(2) { None } else { Some(DataSize::from_bytes(bytes.size())) };
    }
    if is_changed(2) {
        let total = if bytes.u8().is_multiple_of(4) { None } else { Some(DataSize::from_bytes(bytes.size())) };
        let end = total.map_or(u64::MAX, DataSize::bytes);
        let (start, len) = (bytes.size(), bytes.size());
        // The parser of Content-Range rejects everything else: empty ranges, ranges beyond the end, and fields that
        // contain neither a range nor a total.
        let range = ByteRange::at(start, DataSize::from_bytes(len)).intersect(ByteRange::new(0, end));
        let range = if range.is_empty() { None } else { Some(range) };
        head.range = if range.is_none() && total.is_none() { None } else { Some(ContentRange { range, total }) };
    }
    if is_changed(3) {
        head.validator = match bytes.u8() % 5 {
            0 => None,
            version => Some(validator(version - 1)),
        };
    }
    if is_changed(4) {
        // The same range, of a file of another size.
        let total = DataSize::from_bytes(bytes.size());
        if let Some(content_range) = &mut head.range
            && content_range.range.is_none_or(|range| range.end <= total.bytes())
        {
            content_range.total = Some(total);
        }
    }
    if is_changed(5) {
        head.retry_after = Some(Duration::from_millis(bytes.size()));
    }
    if is_changed(6) {
        let target = UrlId(first_redirect + u16::from(bytes.u8() % 3));
        head.location = if bytes.u8().is_multiple_of(4) { None } else { Some(target) };
    }
    head.refuses_ranges = is_changed(7);
    head.is_encoded = is_changed(8);
    head.closes_connection = is_changed(9);
    if is_changed(10) {
        head.range = None;
    }
    if matches!(head.status, 204 | 304) {
        head.length = Some(DataSize::ZERO);
    }
    if !matches!(head.status, 206 | 416) {
        head.range = None;
    }
    head
}
