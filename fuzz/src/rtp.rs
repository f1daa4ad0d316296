//! What players, servers and links may bring to a stream over two links.

use marline_core::units::{Duration, Instant};
use marline_rtp::proto::rtsp::{BODY_MAX, HEAD_MAX, Message, is_repeatable};
use marline_rtp::proto::transport::{Transport, address, moved, video};
use marline_rtp::proto::{Compound, Merge, Reports, Rtp};

use crate::bytes::Bytes;

/// Bytes of a connection.
///
/// A message is the same wherever the bytes were cut, and what was read is written such that it reads back.
pub fn rtsp(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(track) = video(&text) {
        assert!(address("rtsp://cam/live", track.control.as_deref()).starts_with("rtsp://"));
    }
    if let Some(transport) = Transport::parse(&text) {
        let again = Transport::parse(&transport.emit(transport.client, transport.server)).expect("it reads back");
        assert_eq!((again.client, again.server), (transport.client, transport.server));
    }
    assert_eq!(moved(&text, "cam:554", "cam:554"), text, "moved to where it was");
    let mut rest = bytes;
    while let Ok(Some((message, taken))) = Message::parse(rest) {
        assert!(taken > 0 && message.body.len() <= BODY_MAX && message.start.len() <= HEAD_MAX);
        assert!(message.method().is_some() != message.status().is_some(), "a request or an answer");
        assert!(!is_repeatable(&message) || message.session().is_some());
        for cut in [0, taken / 2, taken - 1] {
            assert!(Message::parse(&rest[..cut]).is_ok_and(|whole| whole.is_none()), "not whole yet");
        }
        let emitted = message.emit();
        let (again, all) = Message::parse(&emitted).expect("what was written is read").expect("whole");
        assert_eq!((again.start, again.body, all), (message.start, message.body, emitted.len()));
        rest = &rest[taken..];
    }
}

/// Packets over two links: for each, four bytes that say which link, how much later, how long; then its bytes.
///
/// Whoever has the right name, and a number that is not late, leaves exactly once; what is due is done.
pub fn merge(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let (mut merge, mut reports) = (Merge::new(Duration::from_millis(100), true), Reports::default());
    let (mut now, mut came, mut left) = (Instant::ZERO, 0_u64, 0_u64);
    while !decisions.is_empty() {
        let (how, wait) = (decisions.u8(), u64::from(decisions.u8()));
        let length = usize::from(decisions.u16() % 300);
        let packet = decisions.take(length).to_vec();
        reports.route(&packet, how & 4 != 0);
        assert!(Compound::parse(&packet).is_none() || Rtp::parse(&packet).is_none(), "one of both");
        now += Duration::from_millis(wait);
        while let Some(due) = merge.deadline().filter(|due| *due <= now) {
            merge.tick(due);
            assert!(merge.deadline().is_none_or(|next| next > due), "what is due is done");
            left += drain(&mut merge);
        }
        if how & 1 == 0 {
            came += 1;
            merge.on_first(now, packet);
        } else {
            merge.on_second(now, packet);
        }
        left += drain(&mut merge);
    }
    while let Some(due) = merge.deadline() {
        merge.tick(due);
        left += drain(&mut merge);
    }
    let counts = merge.counts();
    assert!(left <= came + counts.second, "out of nothing");
    assert!(counts.filled <= counts.second);
}

fn drain(merge: &mut Merge) -> u64 {
    std::iter::from_fn(|| merge.poll()).count() as u64
}
