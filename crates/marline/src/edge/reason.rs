//! What an operator can do about a relay that cannot be used, by what the libraries say of it.

/// The reason with the remedy behind it, where one is known.
pub(super) fn explained(why: &str) -> String {
    match remedy(why) {
        Some(remedy) => format!("{why}; {remedy}"),
        None => why.to_owned(),
    }
}

fn remedy(why: &str) -> Option<&'static str> {
    let text = why.to_ascii_lowercase();
    let says = |part: &str| text.contains(part);
    let is_alert = says("fatal alert");
    // Libraries write the names of alerts with spaces or without.
    let expired = says("certificateexpired") || says("certificate expired") || says("certificate has expired");
    let revoked = says("certificaterevoked") || says("revoked");
    if is_alert && revoked {
        return Some("this edge's certificate has been revoked: enrol it again");
    }
    if is_alert && expired {
        return Some(
            "the relay takes this edge's certificate for expired or not valid yet: look at its dates, and at both clocks",
        );
    }
    if says("not valid yet") || says("notvalidyet") {
        return Some("the clock of this machine may be behind (`timedatectl`)");
    }
    if expired {
        return Some(
            "the relay has to renew its certificate, or the clock of this machine is ahead (`timedatectl`)",
        );
    }
    if revoked {
        return Some("the relay's certificate has been revoked: another relay has to be named");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_clocks_and_certificates_are_told_apart() {
        for (why, remedy) in [
            (
                "fra-1: invalid peer certificate: certificate not valid yet: verification time 3 (UNIX)",
                "may be behind",
            ),
            (
                "fra-1: invalid peer certificate: certificate expired: verification time 9 (UNIX)",
                "clock of this machine is ahead",
            ),
            ("received fatal alert: CertificateExpired", "both clocks"),
            ("received fatal alert: CertificateRevoked", "enrol it again"),
            ("invalid peer certificate: Revoked", "another relay"),
            ("fra-1: the certificate has been revoked", "another relay"),
        ] {
            let explained = explained(why);
            assert!(explained.starts_with(why) && explained.contains(remedy), "{explained}");
        }
        for why in ["no answer", "Connection refused (os error 111)", "the relay drains"] {
            assert_eq!(explained(why), why);
        }
    }
}
