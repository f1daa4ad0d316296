//! What the accelerator parses of the flows that it maps to HTTP resources, and of servers that it fetches from.

use marline_accel::fuzzing::byte_ranges;
use marline_core::accel::{HttpMap, ObservedSegment, PosRange};
use marline_core::wire::packet::Seq;

use crate::bytes::Bytes;

/// A client's bytes, a server's bytes, and how both are cut. The first two bytes give the length of the client's.
///
/// Every offset lies within its resource. What a flow that was observed in pieces, in any order, requests for comparison lies where
/// the flow that was observed as a whole has it.
pub fn http_map(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let client = usize::from(decisions.u16() % 1024);
    let start = Seq::new(u32::from(decisions.u16()) << 16 | u32::from(decisions.u16()));
    let requests = decisions.take(client);
    let responses = Bytes(decisions.0).take(2048);
    let whole = follow(start, requests, responses, &mut Bytes(&[]));
    let mut cut = follow(start, requests, responses, &mut Bytes(bytes));
    let Some(begin) = whole.position(start) else { return };
    for at in 0..responses.len() as u64 + 4096 {
        let range = PosRange::new(begin + at, begin + at + 9);
        if let Some(place) = whole.locate(range) {
            assert!(place.offset + range.len() <= place.resource.length);
            assert!(place.resource.request.starts_with("GET /") && place.resource.request.ends_with("\r\n"));
            assert!(!place.resource.request.contains("\r\n\r\n"), "a second request within the first");
            assert!(place.resource.etag.starts_with('"') && !place.resource.etag.contains('\n'));
        }
    }
    while let Some((range, place)) = cut.take_check() {
        if whole.not_fetchable().is_none() && whole.locate(range).is_some() {
            assert_eq!(whole.locate(range), Some(place));
        }
        assert!(cut.is_check(range.start) && cut.locate(range).is_none(), "trusted before it was compared");
        assert!(cut.on_check_fetched(range.start, &[]) && cut.not_fetchable().is_some());
    }
}

/// A map that has observed both streams, in pieces that the decisions choose, or whole; the bytes are genuine.
fn follow(start: Seq, requests: &[u8], responses: &[u8], decisions: &mut Bytes<'_>) -> HttpMap {
    let mut map = HttpMap::default();
    map.on_request_segment(&segment(Seq::new(7), start, requests));
    while !decisions.is_empty() {
        let (stream, is_up) = if decisions.u8().is_multiple_of(4) { (requests, true) } else { (responses, false) };
        let at = usize::from(decisions.u16()) % (stream.len() + 1);
        let piece = Bytes(stream.get(at..).unwrap_or_default()).take(usize::from(decisions.u16() % 1460));
        let by = u32::try_from(at).unwrap_or(0);
        if is_up {
            map.on_request_segment(&segment(Seq::new(7).plus(by), start, piece));
        } else {
            map.on_response_segment(&segment(start.plus(by), Seq::new(7), piece));
        }
    }
    map.on_response_segment(&segment(start, Seq::new(7), responses));
    // A long body continues, and none of it is captured.
    let behind = start.plus(u32::try_from(responses.len()).unwrap_or(0));
    map.on_response_segment(&ObservedSegment { length: 1400, payload: &[], ..segment(behind, Seq::new(7), &[]) });
    if let Some((range, _)) = map.take_check() {
        let begin = map.position(start).unwrap_or_default();
        let from = usize::try_from(range.start - begin).unwrap_or(usize::MAX);
        let sample = responses.get(from..).map(|rest| Bytes(rest).take(range.len() as usize)).unwrap_or_default();
        map.on_check_fetched(range.start, sample);
        assert!(map.locate(range).is_some(), "equal bytes are not trusted");
    }
    map
}

fn segment(seq: Seq, ack: Seq, payload: &[u8]) -> ObservedSegment<'_> {
    ObservedSegment { seq, ack, length: u32::try_from(payload.len()).unwrap_or(u32::MAX), payload }
}

/// A body of several ranges: a byte says how long the pieces are, a line which Content-Type it has.
pub fn ranges(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let (size, whole) = (usize::from(decisions.u8()) + 1, u64::from(decisions.u16()));
    let text = decisions.0;
    let line = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    let (kind, body) = (String::from_utf8_lossy(&text[..line]), text.get(line + 1..).unwrap_or_default());
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut got: Vec<(u64, u8)> = Vec::new();
        let end = byte_ranges(&kind, whole, pieces, |at, bytes| {
            assert!(at + bytes.len() as u64 <= whole, "beyond the resource");
            got.extend(bytes.iter().zip(at..).map(|(byte, at)| (at, *byte)));
        });
        end.map(|()| got)
    };
    let (one, many) = (read(&mut std::iter::once(body)), read(&mut body.chunks(size)));
    assert_eq!(one, many, "where it was cut matters");
    assert!(one.is_none_or(|got| got.len() <= body.len()));
}
