//! Heads of answers: as an honest server gives them, or as the bytes say.

use marline_core::fetch::{Ask, ContentRange, Head, OriginId, Span};
use marline_core::units::{DataSize, Duration};

use super::validator;
use crate::bytes::Bytes;

/// What a server answers that has `size` bytes of edition 0 and serves ranges.
pub(super) fn honest(ask: Ask, size: u64) -> Head {
    let total = DataSize::from_bytes(size);
    let asked = match ask {
        Ask::Whole => {
            return Head { status: 200, length: Some(total), validator: Some(validator(0)), ..Head::default() };
        }
        Ask::From(start) => Span::new(start, size.max(start)),
        Ask::Span(span) => span,
    };
    let span = asked.intersect(Span::new(0, size));
    if span.is_empty() || span.start != asked.start {
        let range = Some(ContentRange { span: None, total: Some(total) });
        return Head { status: 416, length: Some(DataSize::ZERO), range, ..Head::default() };
    }
    Head {
        status: 206,
        length: Some(span.len()),
        range: Some(ContentRange { span: Some(span), total: Some(total) }),
        validator: Some(validator(0)),
        ..Head::default()
    }
}

/// The honest answer, changed as the bytes say: one bit for each thing that can be wrong with it.
pub(super) fn hostile(bytes: &mut Bytes<'_>, ask: Ask, size: u64, origins: u16) -> Head {
    let changes = bytes.u16();
    let mut head = honest(ask, size);
    let changed = |bit: u16| changes & 1 << bit != 0;
    if changed(0) {
        head.status = bytes.one_of(&[200, 206, 302, 416, 503, 429, 500, 404, 403, 204, 408, 301, 0, 999]);
    }
    if changed(1) {
        head.length = if bytes.u8().is_multiple_of(2) { None } else { Some(DataSize::from_bytes(bytes.size())) };
    }
    if changed(2) {
        let total = if bytes.u8().is_multiple_of(4) { None } else { Some(DataSize::from_bytes(bytes.size())) };
        let end = total.map_or(u64::MAX, DataSize::bytes);
        let (start, len) = (bytes.size(), bytes.size());
        // The parser of Content-Range lets nothing else through: not empty, not beyond the end, not silent.
        let span = Span::at(start, DataSize::from_bytes(len)).intersect(Span::new(0, end));
        let span = if span.is_empty() { None } else { Some(span) };
        head.range = if span.is_none() && total.is_none() { None } else { Some(ContentRange { span, total }) };
    }
    if changed(3) {
        head.validator = match bytes.u8() % 5 {
            0 => None,
            edition => Some(validator(edition - 1)),
        };
    }
    if changed(4) {
        // The same span of a file of another size.
        let total = DataSize::from_bytes(bytes.size());
        if let Some(range) = &mut head.range
            && range.span.is_none_or(|span| span.end <= total.bytes())
        {
            range.total = Some(total);
        }
    }
    if changed(5) {
        head.retry_after = Some(Duration::from_millis(bytes.size()));
    }
    if changed(6) {
        let target = OriginId(origins + u16::from(bytes.u8() % 3));
        head.location = if bytes.u8().is_multiple_of(4) { None } else { Some(target) };
    }
    head.refuses_ranges = changed(7);
    head.encoded = changed(8);
    head.closes = changed(9);
    if changed(10) {
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
