//! Classification of errors of a relay or the fleet service: a reason code for programs and a remedy for the operator.
//!
//! The errors are texts from rustls, the kernel, the name resolver and relays, so they are recognized by their words. An
//! integration test (`tests/fleet/edge_reasons.rs`) provokes each fault and expects its reason, so that it fails when a newer
//! library changes its words.

/// Kind of the peer that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerKind {
    /// A relay of the fleet.
    Relay,
    /// The fleet service.
    Service,
}

/// A fault that is recognized by the text of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The peer's authority has revoked this edge's certificate.
    EdgeRevoked,
    /// The peer considers this edge's certificate expired or not valid yet.
    EdgeCertificateDates,
    /// The peer does not trust the authority of this edge's certificate.
    EdgeUntrusted,
    /// The peer's certificate is not valid yet.
    NotValidYet,
    /// The peer's certificate has expired.
    Expired,
    /// The peer's certificate has been revoked.
    Revoked,
    /// The peer's certificate is for other names and addresses.
    WrongName,
    /// Another server responds: one of another authority or role, or one that does not speak TLS.
    WrongServer,
    /// The relay accepts no new flows.
    Draining,
    /// The relay has reached its limit of flows or connections, or its capacity is reserved.
    Full,
    /// The name has no address, or no name server responds.
    NameResolution,
    /// The link has no address of the peer's family.
    NoAddressFamily,
    /// No process listens at the peer's address.
    Refused,
    /// There is no route to the peer.
    Unreachable,
    /// The peer does not respond.
    Timeout,
    /// The connection was reset or closed.
    Closed,
}

impl Fault {
    /// Recognizes the fault in the text of an error. The order of the patterns matters, since some texts match several.
    pub(super) fn recognize(error_text: &str) -> Option<Self> {
        let text = error_text.to_ascii_lowercase();
        let contains_any = |phrases: &[&str]| phrases.iter().any(|part| text.contains(part));
        // Libraries write the names of TLS alerts with spaces or without.
        let is_expired = contains_any(&[
            "certificateexpired",
            "certificate expired",
            "certificate has expired",
            "the certificate ended",
        ]);
        // An alert that was received is the peer's verdict on this edge's certificate.
        if contains_any(&["fatal alert"]) {
            return match () {
                () if contains_any(&["revoked"]) => Some(Self::EdgeRevoked),
                () if is_expired => Some(Self::EdgeCertificateDates),
                () if contains_any(&[
                    "unknownca",
                    "unknown ca",
                    "badcertificate",
                    "decrypterror",
                    "certificateunknown",
                ]) =>
                {
                    Some(Self::EdgeUntrusted)
                }
                () => None,
            };
        }
        let patterns: [(&[&str], Self); 14] = [
            (&["not valid yet", "notvalidyet"], Self::NotValidYet),
            (&["revoked"], Self::Revoked),
            (&["not valid for name", "notvalidforname", "not valid for any names"], Self::WrongName),
            (
                &[
                    "unknownissuer",
                    "unknown issuer",
                    "badsignature",
                    "invalid peer certificate",
                    "is not a relay",
                    "is not the relay",
                ],
                Self::WrongServer,
            ),
            (&["received corrupt message", "and not the fleet's service"], Self::WrongServer),
            (&["is draining"], Self::Draining),
            (&["as it may have", "are not free"], Self::Full),
            (&["the destination has nothing else"], Self::NoAddressFamily),
            (&["lookup", "no address is known", "the name", "name server", "no such host"], Self::NameResolution),
            (&["connection refused"], Self::Refused),
            (&["unreachable", "no route to host"], Self::Unreachable),
            (&["no answer", "no tls handshake in time", "timed out", "does not answer"], Self::Timeout),
            (&["connection reset", "broken pipe"], Self::Closed),
            (&["eof", "end of file"], Self::Closed),
        ];
        if is_expired {
            return Some(Self::Expired);
        }
        patterns.into_iter().find(|(parts, _)| contains_any(parts)).map(|(_, reason)| reason)
    }

    /// Reason code for programs; docs/fleet-reference.md lists them.
    pub(super) const fn code(self) -> &'static str {
        match self {
            Self::EdgeRevoked => "edge-revoked",
            Self::EdgeCertificateDates => "edge-certificate-dates",
            Self::EdgeUntrusted => "edge-untrusted",
            Self::NotValidYet => "not-valid-yet",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::WrongName => "wrong-name",
            Self::WrongServer => "wrong-server",
            Self::Draining => "draining",
            Self::Full => "full",
            Self::NameResolution => "names",
            Self::NoAddressFamily => "no-family",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "silent",
            Self::Closed => "closed",
        }
    }

    /// Remedy for the operator, printed after the error.
    pub(super) fn remedy(self, peer_kind: PeerKind) -> String {
        let peer = match peer_kind {
            PeerKind::Relay => "relay",
            PeerKind::Service => "service",
        };
        match self {
            Self::EdgeRevoked => "this edge's certificate has been revoked: enrol it again".to_owned(),
            Self::EdgeCertificateDates => format!(
                "the {peer} considers this edge's certificate expired or not valid yet: check its dates and both clocks (`timedatectl`)"
            ),
            Self::EdgeUntrusted => {
                format!("the {peer} does not trust the authority of this edge's certificate: compare ca.pem on both")
            }
            Self::NotValidYet => "the clock of this machine may be behind (`timedatectl`)".to_owned(),
            Self::Expired => format!(
                "the {peer} has to renew its certificate, or the clock of this machine is ahead (`timedatectl`)"
            ),
            Self::Revoked => match peer_kind {
                PeerKind::Relay => "the relay's certificate has been revoked: use another relay".to_owned(),
                PeerKind::Service => "the service's certificate has been revoked: issue another one".to_owned(),
            },
            Self::WrongName => format!(
                "the {peer}'s certificate is for other names: use one of these names, or issue it with --address for this one"
            ),
            Self::WrongServer => format!(
                "another server responds at this address, such as a captive portal, or the {peer} belongs to another authority: \
                 compare ca.pem on both"
            ),
            Self::Draining => "it accepts no new flows: configure a second relay, or cancel the drain (`marline relay drain --undo` or \
                               `marline fleet drain --undo`)"
                .to_owned(),
            Self::Full => "configure a second relay, or raise the limits of this one (`marline relay --capacity`, --max-tunnels, \
                           --max-connections)"
                .to_owned(),
            Self::NameResolution => "the name cannot be resolved: check its spelling and the name servers of the links".to_owned(),
            Self::NoAddressFamily => format!(
                "give the {peer} an address of a family that this link has (IPv4 or IPv6), or get the other family from the link's provider"
            ),
            Self::Refused => format!("no process listens on this port: start the {peer}, or check its port and firewalls"),
            Self::Unreachable => "this host or a router has no route to the address: check routes and firewalls".to_owned(),
            Self::Timeout => format!("the {peer} does not respond: check the address, firewalls, and whether the {peer} runs"),
            Self::Closed => format!("a firewall or a proxy may have closed the connection, or the {peer} was restarted"),
        }
    }
}

/// The error followed by the remedy, if the fault is recognized.
pub(super) fn with_remedy(error_text: &str, peer_kind: PeerKind) -> String {
    match Fault::recognize(error_text) {
        Some(reason) => format!("{error_text}; {}", reason.remedy(peer_kind)),
        None => error_text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_recognized_by_the_error_texts_of_libraries_and_relays() {
        for (why, code, remedy) in [
            (
                "r1: invalid peer certificate: certificate not valid yet: verification time 3 (UNIX)",
                "not-valid-yet",
                "behind",
            ),
            ("invalid peer certificate: certificate expired: verification time 9 (UNIX)", "expired", "is ahead"),
            ("received fatal alert: CertificateExpired", "edge-certificate-dates", "both clocks"),
            ("received fatal alert: CertificateRevoked", "edge-revoked", "enrol it again"),
            ("received fatal alert: UnknownCA", "edge-untrusted", "compare ca.pem"),
            ("received fatal alert: DecryptError", "edge-untrusted", "compare ca.pem"),
            ("invalid peer certificate: Revoked", "revoked", "another relay"),
            ("fra-1: the certificate has been revoked", "revoked", "another relay"),
            ("invalid peer certificate: UnknownIssuer", "wrong-server", "captive portal"),
            ("invalid peer certificate: BadSignature", "wrong-server", "captive portal"),
            ("received corrupt message of type InvalidContentType", "wrong-server", "captive portal"),
            ("marline://edge/e2 is not a relay", "wrong-server", "another server"),
            ("invalid peer certificate: certificate not valid for name \"10.0.0.9\"", "wrong-name", "--address"),
            ("this relay is draining", "draining", "--undo"),
            ("this relay has as many tunnels as it may have", "full", "--max-tunnels"),
            ("1.0Mbit/s are not free: 9.0Mbit/s of 9.0Mbit/s are reserved", "full", "--capacity"),
            ("failed to lookup address information: Name or service not known", "names", "spelling"),
            ("the name server does not answer", "names", "name servers"),
            ("wwan0 has no IPv6, and the destination has nothing else", "no-family", "family"),
            ("Connection refused (os error 111)", "refused", "no process listens"),
            ("Network is unreachable (os error 101)", "unreachable", "no route to the address"),
            ("No route to host (os error 113)", "unreachable", "no route to the address"),
            ("no answer", "silent", "does not respond"),
            ("no TLS handshake in time", "silent", "does not respond"),
            ("Connection reset by peer (os error 104)", "closed", "closed the connection"),
            ("tls handshake eof", "closed", "closed the connection"),
        ] {
            let reason = Fault::recognize(why).unwrap_or_else(|| panic!("{why}"));
            assert_eq!(reason.code(), code, "{why}");
            let explained = with_remedy(why, PeerKind::Relay);
            assert!(explained.starts_with(why) && explained.contains(remedy), "{explained}");
        }
        for why in ["received fatal alert: InternalError", "an answer without a status"] {
            assert_eq!(with_remedy(why, PeerKind::Service), why);
        }
    }
}
