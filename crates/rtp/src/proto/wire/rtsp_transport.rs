//! RTSP Transport header (RFC 2326 section 12.39): the ports between which RTP and RTCP flow.
//!
//! Only RTP over UDP to one receiver is accepted. Parameters that this module does not use are ignored, because servers write them in
//! many ways. The parser of `rtsp-types` (0.1.3) was measured and not used for that reason: one parameter that it cannot read,
//! such as `ssrc=0x1234`, a trailing `;` or `ttl=999` in another alternative, makes the whole header an error.

/// Ports of RTP and RTCP.
pub type PortPair = (u16, u16);

/// RTP over UDP to one receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transport {
    /// `RTP/AVP` or `RTP/AVPF`, with or without `/UDP`, as the peer wrote it.
    pub profile: String,
    /// Ports of the receiver.
    pub client: PortPair,
    /// Ports of the sender, which its response announces.
    pub server: Option<PortPair>,
    /// Address of the sender, if it differs from the RTSP server.
    pub source: Option<String>,
}

impl Transport {
    /// The first alternative of a header that is RTP over UDP, or `None` if there is none.
    pub fn parse(header: &str) -> Option<Self> {
        header.split(',').find_map(Self::parse_spec)
    }

    fn parse_spec(spec: &str) -> Option<Self> {
        let mut params = spec.split(';').map(str::trim);
        let profile = params.next()?;
        let plain = profile.strip_suffix("/UDP").unwrap_or(profile);
        if !matches!(plain, "RTP/AVP" | "RTP/AVPF") {
            return None;
        }
        let (mut client, mut server, mut source) = (None, None, None);
        for param in params {
            match param.split_once('=') {
                Some(("client_port", value)) => client = Some(port_pair(value)?),
                Some(("server_port", value)) => server = Some(port_pair(value)?),
                Some(("source", value)) => source = Some(value.to_owned()),
                None if param == "multicast" => return None,
                _ => {}
            }
        }
        Some(Self { profile: profile.to_owned(), client: client?, server, source })
    }

    /// Writes the header with other ports. Requests have no server ports.
    pub fn to_header(&self, client: PortPair, server: Option<PortPair>) -> String {
        let mut text = format!("{};unicast;client_port={}-{}", self.profile, client.0, client.1);
        if let Some((media, reports)) = server {
            text += &format!(";server_port={media}-{reports}");
        }
        text
    }
}

/// Parses `5000-5001` or `5000`, which stands for the same pair.
fn port_pair(text: &str) -> Option<PortPair> {
    let (first, second) = match text.split_once('-') {
        Some((first, second)) => (first.parse().ok()?, second.parse().ok()?),
        None => (text.parse().ok()?, text.parse::<u16>().ok()?.checked_add(1)?),
    };
    (first != 0 && second != 0).then_some((first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_alternative_over_udp_is_taken() {
        let header = "RTP/AVP/TCP;unicast;interleaved=0-1,RTP/AVP/UDP;unicast;client_port=5000-5001;mode=play";
        let transport = Transport::parse(header).unwrap();
        assert_eq!((transport.client, transport.server), ((5000, 5001), None));
        assert_eq!(
            transport.to_header((7, 8), Some((9, 10))),
            "RTP/AVP/UDP;unicast;client_port=7-8;server_port=9-10"
        );
        let answer =
            Transport::parse("RTP/AVP;unicast;source=10.0.0.9;client_port=7-8;server_port=90;ssrc=1").unwrap();
        assert_eq!((answer.server, answer.source.as_deref()), (Some((90, 91)), Some("10.0.0.9")));
    }

    #[test]
    fn unused_parameters_do_not_matter() {
        for header in [
            "RTP/AVP;unicast;client_port=1-2;ssrc=0x1234",
            "RTP/AVP;unicast;client_port=1-2;",
            "RTP/AVP;multicast;ttl=999,RTP/AVP;unicast;client_port=1-2;mode=\"PLAY",
        ] {
            assert_eq!(Transport::parse(header).map(|transport| transport.client), Some((1, 2)), "{header}");
        }
    }

    #[test]
    fn other_transports_and_invalid_ports_are_rejected() {
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
}
