//! Session descriptions (RFC 4566): the first video track, its control URL and whether it is H.264.
//!
//! Three kinds of lines are read, all others are ignored. The crate `sdp-types` (0.3.1) was measured and not used: it reads a description
//! as a whole or not at all. Of 18 descriptions by cameras in the tests of the crate `retina` it rejects one, that of a common
//! maker (TP-Link), for a number too many in the `o=` line, which nothing here needs.

/// Video track of a session description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VideoTrack {
    /// Absolute or relative control URL. Without one, the session's URL controls its only track.
    pub control: Option<String>,
    /// Whether the codec is H.264, whose layers [`Layer`](crate::proto::Layer) distinguishes.
    pub is_h264: bool,
}

/// Finds the first video track of a description.
pub fn first_video_track(description: &str) -> Option<VideoTrack> {
    let mut track: Option<VideoTrack> = None;
    for line in description.lines() {
        let line = line.trim_end();
        if line.starts_with("m=") {
            if track.is_some() {
                break;
            }
            if line.starts_with("m=video ") {
                track = Some(VideoTrack { control: None, is_h264: false });
            }
        } else if let Some(track) = &mut track {
            if let Some(control) = line.strip_prefix("a=control:") {
                track.control = Some(control.trim().to_owned());
            } else if line.starts_with("a=rtpmap:") {
                track.is_h264 |= line.split(' ').nth(1).is_some_and(|codec| codec.starts_with("H264/"));
            }
        }
    }
    track
}

/// Resolves the control URL of a track against the URL of its session (RFC 2326 appendix C.1.1).
pub fn control_url(session: &str, control: Option<&str>) -> String {
    match control {
        None | Some("*") => session.to_owned(),
        Some(control) if control.starts_with("rtsp://") => control.to_owned(),
        Some(control) => format!("{}/{control}", session.trim_end_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_video_track_is_found() {
        let sdp = "v=0\r\na=control:*\r\nm=audio 0 RTP/AVP 97\r\na=control:track2\r\nm=video 0 RTP/AVP 96\r\n\
                   a=rtpmap:96 H264/90000\r\na=control:track1\r\nm=video 0 RTP/AVP 98\r\na=control:track3\r\n";
        assert_eq!(first_video_track(sdp), Some(VideoTrack { control: Some("track1".into()), is_h264: true }));
        assert_eq!(first_video_track("m=audio 0 RTP/AVP 0\r\n"), None);
        assert_eq!(control_url("rtsp://cam/live/", Some("track1")), "rtsp://cam/live/track1");
        assert_eq!(control_url("rtsp://cam/live", Some("rtsp://cam/x")), "rtsp://cam/x");
        assert_eq!(control_url("rtsp://cam/live", None), "rtsp://cam/live");
    }

    #[test]
    fn lines_that_break_the_rules_do_not_matter() {
        let tp_link = "v=0\r\no=- 14665860 31787219 1 IN IP4 192.168.2.29\r\ns=Session\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n\
                       a=control:track1\r\na=rtpmap:96 H265/90000\r\nm=application/TP-LINK 0 RTP/AVP smart/1/90000\r\n";
        assert_eq!(first_video_track(tp_link), Some(VideoTrack { control: Some("track1".into()), is_h264: false }));
    }
}
