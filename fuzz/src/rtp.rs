//! RTSP messages, RTP and RTCP packets as players, servers and links may deliver them.

use marline_core::units::{Duration, Instant};
use marline_rtp::proto::rtsp::{MAX_BODY, MAX_HEAD, Message, is_repeatable};
use marline_rtp::proto::rtsp_transport::Transport;
use marline_rtp::proto::sdp::{control_url, first_video_track};
use marline_rtp::proto::url_rewrite::replace_authority;
use marline_rtp::proto::{RtcpKind, RtcpRouter, RtpPacket, StreamMerger};

use crate::bytes::Bytes;

/// RTSP connections and session descriptions.
///
/// A message is the same wherever the byte stream is cut, and a message that was written parses to itself.
pub fn rtsp(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(track) = first_video_track(&text) {
        assert!(control_url("rtsp://cam/live", track.control.as_deref()).starts_with("rtsp://"));
    }
    if let Some(transport) = Transport::parse(&text) {
        let again =
            Transport::parse(&transport.to_header(transport.client, transport.server)).expect("it parses again");
        assert_eq!((again.client, again.server), (transport.client, transport.server));
    }
    assert_eq!(replace_authority(&text, "cam:554", "cam:554"), text, "an authority replaced by itself");
    let mut rest = bytes;
    while let Ok(Some((message, taken))) = Message::parse(rest) {
        assert!(taken > 0 && message.body.len() <= MAX_BODY && message.start_line.len() <= MAX_HEAD);
        assert!(message.method().is_some() != message.status().is_some(), "a request or a response");
        assert!(!is_repeatable(&message) || message.session_id().is_some());
        for cut in [0, taken / 2, taken - 1] {
            assert!(Message::parse(&rest[..cut]).is_ok_and(|message| message.is_none()), "incomplete");
        }
        let written = message.to_bytes();
        let (again, all) = Message::parse(&written).expect("a written message parses").expect("it is complete");
        assert_eq!((again.start_line, again.body, all), (message.start_line, message.body, written.len()));
        rest = &rest[taken..];
    }
}

/// Packets over two links. Four bytes for each select the link, the delay and the length; then its bytes follow.
///
/// No packet leaves twice, and each deadline is later than the last tick.
pub fn merge(bytes: &[u8]) {
    let mut decisions = Bytes(bytes);
    let (mut merge, mut router) = (StreamMerger::new(Duration::from_millis(100), true), RtcpRouter::default());
    let (mut now, mut arrived, mut released) = (Instant::ZERO, 0_u64, 0_u64);
    while !decisions.is_empty() {
        let (how, wait) = (decisions.u8(), u64::from(decisions.u8()));
        let length = usize::from(decisions.u16() % 300);
        let packet = decisions.take(length).to_vec();
        router.route(&packet, how & 4 != 0);
        assert!(
            RtcpKind::parse(&packet).is_none() || RtpPacket::parse(&packet).is_none(),
            "RTP and RTCP exclude each other"
        );
        now += Duration::from_millis(wait);
        while let Some(due) = merge.deadline().filter(|due| *due <= now) {
            merge.tick(due);
            assert!(merge.deadline().is_none_or(|next| next > due), "the next deadline is later");
            released += drain(&mut merge);
        }
        if how & 1 == 0 {
            arrived += 1;
            merge.on_primary(now, packet);
        } else {
            merge.on_base_layer(now, packet);
        }
        released += drain(&mut merge);
    }
    while let Some(due) = merge.deadline() {
        merge.tick(due);
        released += drain(&mut merge);
    }
    let counts = merge.counts();
    assert!(released <= arrived + counts.base_layer, "more packets leave than arrived");
    assert!(counts.filled <= counts.base_layer);
}

fn drain(merge: &mut StreamMerger) -> u64 {
    std::iter::from_fn(|| merge.poll()).count() as u64
}
