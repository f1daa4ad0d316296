//! What players, servers and links may bring to a stream over two links.

use marline_core::units::{Duration, Instant};
use marline_rtp::proto::rtsp::{MAX_BODY, MAX_HEAD, Message, is_repeatable};
use marline_rtp::proto::rtsp_transport::Transport;
use marline_rtp::proto::sdp::{control_url, first_video_track};
use marline_rtp::proto::url_rewrite::replace_authority;
use marline_rtp::proto::{RtcpKind, RtcpRouter, RtpPacket, StreamMerger};

use crate::bytes::Bytes;

/// Bytes of a connection.
///
/// A message is the same wherever the bytes were cut, and what was read is written such that it reads back.
pub fn rtsp(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(track) = first_video_track(&text) {
        assert!(control_url("rtsp://cam/live", track.control.as_deref()).starts_with("rtsp://"));
    }
    if let Some(transport) = Transport::parse(&text) {
        let again =
            Transport::parse(&transport.to_header(transport.client, transport.server)).expect("it reads back");
        assert_eq!((again.client, again.server), (transport.client, transport.server));
    }
    assert_eq!(replace_authority(&text, "cam:554", "cam:554"), text, "moved to where it was");
    let mut rest = bytes;
    while let Ok(Some((message, taken))) = Message::parse(rest) {
        assert!(taken > 0 && message.body.len() <= MAX_BODY && message.start_line.len() <= MAX_HEAD);
        assert!(message.method().is_some() != message.status().is_some(), "a request or an answer");
        assert!(!is_repeatable(&message) || message.session_id().is_some());
        for cut in [0, taken / 2, taken - 1] {
            assert!(Message::parse(&rest[..cut]).is_ok_and(|whole| whole.is_none()), "not whole yet");
        }
        let emitted = message.to_bytes();
        let (again, all) = Message::parse(&emitted).expect("what was written is read").expect("whole");
        assert_eq!((again.start_line, again.body, all), (message.start_line, message.body, emitted.len()));
        rest = &rest[taken..];
    }
}

/// Packets over two links: for each, four bytes that say which link, how much later, how long; then its bytes.
///
/// Whoever has the right name, and a number that is not late, leaves exactly once; what is due is done.
pub fn merge(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let (mut merge, mut router) = (StreamMerger::new(Duration::from_millis(100), true), RtcpRouter::default());
    let (mut now, mut came, mut left) = (Instant::ZERO, 0_u64, 0_u64);
    while !decisions.is_empty() {
        let (how, wait) = (decisions.u8(), u64::from(decisions.u8()));
        let length = usize::from(decisions.u16() % 300);
        let packet = decisions.take(length).to_vec();
        router.route(&packet, how & 4 != 0);
        assert!(RtcpKind::parse(&packet).is_none() || RtpPacket::parse(&packet).is_none(), "one of both");
        now += Duration::from_millis(wait);
        while let Some(due) = merge.deadline().filter(|due| *due <= now) {
            merge.tick(due);
            assert!(merge.deadline().is_none_or(|next| next > due), "what is due is done");
            left += drain(&mut merge);
        }
        if how & 1 == 0 {
            came += 1;
            merge.on_primary(now, packet);
        } else {
            merge.on_base_layer(now, packet);
        }
        left += drain(&mut merge);
    }
    while let Some(due) = merge.deadline() {
        merge.tick(due);
        left += drain(&mut merge);
    }
    let counts = merge.counts();
    assert!(left <= came + counts.base_layer, "out of nothing");
    assert!(counts.filled <= counts.base_layer);
}

fn drain(merge: &mut StreamMerger) -> u64 {
    std::iter::from_fn(|| merge.poll()).count() as u64
}
