//! What the accelerator reads of flows that it mirrors, and of servers that it fetches from.

use marline_accel::fuzzing::byte_ranges;
use marline_core::accel::{Mirror, Seen, Stretch};
use marline_core::wire::packet::Seq;

use crate::bytes::Bytes;

/// A client's bytes, a server's bytes, and how both are cut. Where the first two bytes say how long the client's are.
///
/// A place lies within its resource; what a flow that was seen in pieces, in any order, asks to be compared lies where the
/// flow that was seen whole has it.
pub fn mirror(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let client = usize::from(decisions.u16() % 1024);
    let start = Seq::new(u32::from(decisions.u16()) << 16 | u32::from(decisions.u16()));
    let asked = decisions.take(client);
    let answered = Bytes(decisions.0).take(2048);
    let whole = follow(start, asked, answered, &mut Bytes(&[]));
    let mut cut = follow(start, asked, answered, &mut Bytes(bytes));
    let Some(begin) = whole.position(start) else { return };
    for at in 0..answered.len() as u64 + 4096 {
        let stretch = Stretch::new(begin + at, begin + at + 9);
        if let Some(place) = whole.place(stretch) {
            assert!(place.offset + stretch.bytes() <= place.resource.length);
            assert!(place.resource.request.starts_with("GET /") && place.resource.request.ends_with("\r\n"));
            assert!(!place.resource.request.contains("\r\n\r\n"), "a second request within the first");
            assert!(place.resource.etag.starts_with('"') && !place.resource.etag.contains('\n'));
        }
    }
    while let Some((stretch, place)) = cut.check() {
        if whole.refusal().is_none() && whole.place(stretch).is_some() {
            assert_eq!(whole.place(stretch), Some(place));
        }
        assert!(cut.awaits(stretch.start) && cut.place(stretch).is_none(), "trusted before it was compared");
        assert!(cut.checked(stretch.start, &[]) && cut.refusal().is_some());
    }
}

/// A mirror that has seen both streams, in pieces that the decisions choose, or whole; everything is as it was.
fn follow(start: Seq, asked: &[u8], answered: &[u8], decisions: &mut Bytes<'_>) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.asked(&seen(Seq::new(7), start, asked));
    while !decisions.is_empty() {
        let (stream, is_up) = if decisions.u8().is_multiple_of(4) { (asked, true) } else { (answered, false) };
        let at = usize::from(decisions.u16()) % (stream.len() + 1);
        let piece = Bytes(stream.get(at..).unwrap_or_default()).take(usize::from(decisions.u16() % 1460));
        let by = u32::try_from(at).unwrap_or(0);
        if is_up {
            mirror.asked(&seen(Seq::new(7).plus(by), start, piece));
        } else {
            mirror.answered(&seen(start.plus(by), Seq::new(7), piece));
        }
    }
    mirror.answered(&seen(start, Seq::new(7), answered));
    // A long body goes on; nobody looks into it.
    let behind = start.plus(u32::try_from(answered.len()).unwrap_or(0));
    mirror.answered(&Seen { length: 1400, payload: &[], ..seen(behind, Seq::new(7), &[]) });
    if let Some((stretch, _)) = mirror.check() {
        let begin = mirror.position(start).unwrap_or_default();
        let from = usize::try_from(stretch.start - begin).unwrap_or(usize::MAX);
        let sample =
            answered.get(from..).map(|rest| Bytes(rest).take(stretch.bytes() as usize)).unwrap_or_default();
        mirror.checked(stretch.start, sample);
        assert!(mirror.place(stretch).is_some(), "what is the same is not trusted");
    }
    mirror
}

fn seen(seq: Seq, ack: Seq, payload: &[u8]) -> Seen<'_> {
    Seen { seq, ack, length: u32::try_from(payload.len()).unwrap_or(u32::MAX), payload }
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
