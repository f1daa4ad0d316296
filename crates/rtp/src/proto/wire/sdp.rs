//! The first track of video in a session description (RFC 4566).

/// A track of video in a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VideoTrack {
    /// Its own address, or what is to be added to the session's; none: the session has one track alone.
    pub control: Option<String>,
    /// Whether it is H.264, whose layers can be told apart.
    pub is_h264: bool,
}

/// The first track of video in a description.
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

/// The address of a track, in a session with this address (RFC 2326 appendix C.1.1).
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
    fn the_first_video_of_a_description_is_the_track() {
        let sdp = "v=0\r\na=control:*\r\nm=audio 0 RTP/AVP 97\r\na=control:track2\r\nm=video 0 RTP/AVP 96\r\n\
                   a=rtpmap:96 H264/90000\r\na=control:track1\r\nm=video 0 RTP/AVP 98\r\na=control:track3\r\n";
        assert_eq!(first_video_track(sdp), Some(VideoTrack { control: Some("track1".into()), is_h264: true }));
        assert_eq!(first_video_track("m=audio 0 RTP/AVP 0\r\n"), None);
        assert_eq!(control_url("rtsp://cam/live/", Some("track1")), "rtsp://cam/live/track1");
        assert_eq!(control_url("rtsp://cam/live", Some("rtsp://cam/x")), "rtsp://cam/x");
        assert_eq!(control_url("rtsp://cam/live", None), "rtsp://cam/live");
    }
}
