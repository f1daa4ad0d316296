//! Where media goes: RTSP's Transport header (RFC 2326 §12.39), tracks of a description (RFC 4566), and addresses in texts.
//!
//! In: texts of either side. Out: ports, tracks, and the same texts with another address.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// Two ports, for media and for its reports.
pub type Ports = (u16, u16);

/// One way of transport that both can do: RTP over UDP, to one receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transport {
    /// As it was written: `RTP/AVP`, `RTP/AVPF`, perhaps with `/UDP`.
    pub profile: String,
    /// The receiver's ports.
    pub client: Ports,
    /// The sender's.
    pub server: Option<Ports>,
    /// The sender's address, where it is not the server's.
    pub source: Option<String>,
}

impl Transport {
    /// The first way of a header that is one; none: only other ways are in it.
    pub fn parse(header: &str) -> Option<Self> {
        header.split(',').find_map(Self::one)
    }

    fn one(way: &str) -> Option<Self> {
        let mut words = way.split(';').map(str::trim);
        let profile = words.next()?;
        let plain = profile.strip_suffix("/UDP").unwrap_or(profile);
        if !matches!(plain, "RTP/AVP" | "RTP/AVPF") {
            return None;
        }
        let (mut client, mut server, mut source) = (None, None, None);
        for word in words {
            match word.split_once('=') {
                Some(("client_port", value)) => client = Some(ports(value)?),
                Some(("server_port", value)) => server = Some(ports(value)?),
                Some(("source", value)) => source = Some(value.to_owned()),
                None if word == "multicast" => return None,
                _ => {}
            }
        }
        Some(Self { profile: profile.to_owned(), client: client?, server, source })
    }

    /// As a header, with these ports; without the sender's in a request.
    pub fn emit(&self, client: Ports, server: Option<Ports>) -> String {
        let mut text = format!("{};unicast;client_port={}-{}", self.profile, client.0, client.1);
        if let Some((media, reports)) = server {
            text += &format!(";server_port={media}-{reports}");
        }
        text
    }
}

/// `5000-5001`, or the first alone.
fn ports(text: &str) -> Option<Ports> {
    let (first, second) = match text.split_once('-') {
        Some((first, second)) => (first.parse().ok()?, second.parse().ok()?),
        None => (text.parse().ok()?, text.parse::<u16>().ok()?.checked_add(1)?),
    };
    (first != 0 && second != 0).then_some((first, second))
}

/// A track of video in a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Track {
    /// Its own address, or what is to be added to the session's; none: the session has one track alone.
    pub control: Option<String>,
    /// Whether it is H.264, whose layers can be told apart.
    pub is_h264: bool,
}

/// The first track of video in a description.
pub fn video(description: &str) -> Option<Track> {
    let mut track: Option<Track> = None;
    for line in description.lines() {
        let line = line.trim_end();
        if line.starts_with("m=") {
            if track.is_some() {
                break;
            }
            if line.starts_with("m=video ") {
                track = Some(Track { control: None, is_h264: false });
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
pub fn address(session: &str, control: Option<&str>) -> String {
    match control {
        None | Some("*") => session.to_owned(),
        Some(control) if control.starts_with("rtsp://") => control.to_owned(),
        Some(control) => format!("{}/{control}", session.trim_end_matches('/')),
    }
}

/// The text with `rtsp://to` wherever it has `rtsp://from`; `from` and `to` are hosts with their ports.
pub fn moved(text: &str, from: &str, to: &str) -> String {
    let (scheme, mut rest, mut out) = ("rtsp://", text, String::new());
    while let Some(at) = rest.find(scheme) {
        let (before, after) = rest.split_at(at + scheme.len());
        out += before;
        let ends = |left: &str| !left.starts_with(|c: char| c.is_ascii_alphanumeric() || "-.:@".contains(c));
        match after.strip_prefix(from).filter(|left| ends(left)) {
            Some(left) => {
                out += to;
                rest = left;
            }
            None => rest = after,
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_way_over_udp_is_taken() {
        let header = "RTP/AVP/TCP;unicast;interleaved=0-1,RTP/AVP/UDP;unicast;client_port=5000-5001;mode=play";
        let transport = Transport::parse(header).unwrap();
        assert_eq!((transport.client, transport.server), ((5000, 5001), None));
        assert_eq!(transport.emit((7, 8), Some((9, 10))), "RTP/AVP/UDP;unicast;client_port=7-8;server_port=9-10");
        let answer =
            Transport::parse("RTP/AVP;unicast;source=10.0.0.9;client_port=7-8;server_port=90;ssrc=1").unwrap();
        assert_eq!((answer.server, answer.source.as_deref()), (Some((90, 91)), Some("10.0.0.9")));
    }

    #[test]
    fn other_ways_are_none() {
        for header in [
            "",
            "RTP/AVP/TCP;unicast;interleaved=0-1",
            "RTP/AVP;multicast;client_port=1-2",
            "RTP/SAVP;unicast;client_port=1-2",
            "RTP/AVP;unicast",
            "RTP/AVP;client_port=70000-70001",
            "RTP/AVP;client_port=65535",
            "RTP/AVP;client_port=0-1",
        ] {
            assert_eq!(Transport::parse(header), None, "{header}");
        }
    }

    #[test]
    fn the_first_video_of_a_description_is_the_track() {
        let sdp = "v=0\r\na=control:*\r\nm=audio 0 RTP/AVP 97\r\na=control:track2\r\nm=video 0 RTP/AVP 96\r\n\
                   a=rtpmap:96 H264/90000\r\na=control:track1\r\nm=video 0 RTP/AVP 98\r\na=control:track3\r\n";
        assert_eq!(video(sdp), Some(Track { control: Some("track1".into()), is_h264: true }));
        assert_eq!(video("m=audio 0 RTP/AVP 0\r\n"), None);
        assert_eq!(address("rtsp://cam/live/", Some("track1")), "rtsp://cam/live/track1");
        assert_eq!(address("rtsp://cam/live", Some("rtsp://cam/x")), "rtsp://cam/x");
        assert_eq!(address("rtsp://cam/live", None), "rtsp://cam/live");
    }

    #[test]
    fn addresses_are_moved_and_others_stay() {
        let text = "url=rtsp://cam:554/a,rtsp://cam:5541/b;rtsp://cam:554";
        assert_eq!(
            moved(text, "cam:554", "127.0.0.1:8554"),
            "url=rtsp://127.0.0.1:8554/a,rtsp://cam:5541/b;rtsp://127.0.0.1:8554"
        );
        assert_eq!(moved("rtsp://camera/", "cam", "x"), "rtsp://camera/");
    }
}
