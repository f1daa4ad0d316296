//! Local domains: domains whose names belong to hosts in private networks and are not registered in the public DNS.
//!
//! A name of another domain may belong to an attacker, who changes its addresses to private ones (DNS rebinding). Therefore this host
//! resolves no other names for proxy clients (`private_networks`), unless the user configures their domain.
//!
//! The whole of `.box` is not included, because it is a public top-level domain. `fritz.box` belongs to the manufacturer of the routers
//! that use it.

use std::str::FromStr;

/// A domain that is local together with all names below it. Lower case, without dots at its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDomain(String);

impl LocalDomain {
    fn contains(&self, name: &str) -> bool {
        is_in_domain(&self.0, name)
    }
}

impl FromStr for LocalDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let domain = text.trim_start_matches('.').trim_end_matches('.').to_ascii_lowercase();
        let is_label = |label: &str| {
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(is_of_name)
        };
        // An IP address has no domain.
        let is_name =
            domain.split('.').all(is_label) && domain.rsplit('.').next().is_some_and(|last| !is_number(last));
        if domain.len() > MAX_NAME_LEN || !is_name {
            return Err(format!("`{text}` is not a domain name such as office.example or corp"));
        }
        Ok(Self(domain))
    }
}

/// Whether a name is local: a name without a dot, or one in these domains or in those that are always local.
pub(super) fn is_local(name: &str, domains: &[LocalDomain]) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_always = !name.contains('.') || BUILT_IN_DOMAINS.iter().any(|domain| is_in_domain(domain, &name));
    !name.is_empty() && (is_always || domains.iter().any(|domain| domain.contains(&name)))
}

fn is_in_domain(domain: &str, name: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
}

/// Domains that are always local. `home.arpa`: RFC 8375. `internal`: reserved by ICANN for private use. `local`: RFC 6762. `lan`: not a
/// top-level domain, OpenWrt's default.
const BUILT_IN_DOMAINS: [&str; 5] = ["fritz.box", "home.arpa", "internal", "lan", "local"];
/// Maximum length of a name as text, without the dot at its end (RFC 1035 section 3.1).
const MAX_NAME_LEN: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_local_by_its_domain() {
        let domains = ["Office.Example.", ".corp"].map(|domain| domain.parse().unwrap());
        for (name, always, with) in [
            ("nas", true, true),
            ("nas.lan", true, true),
            ("NAS.Home.Arpa.", true, true),
            ("a.b.internal", true, true),
            ("printer.local", true, true),
            ("fritz.box", true, true),
            ("nas.fritz.box", true, true),
            // Anyone may register these.
            ("evil.box", false, false),
            ("evilfritz.box", false, false),
            ("lan.example.org", false, false),
            ("wlan.example", false, false),
            ("www.office.example", false, true),
            ("office.example", false, true),
            ("backoffice.example", false, false),
            ("a.corp", false, true),
            (".", false, false),
            ("", false, false),
        ] {
            assert_eq!((is_local(name, &[]), is_local(name, &domains)), (always, with), "{name}");
        }
    }

    #[test]
    fn a_domain_must_be_a_valid_name() {
        for wrong in ["", ".", "a..b", "192.0.2.1", "a b", "https://a.example/", "[::1]", "*.example"] {
            assert!(wrong.parse::<LocalDomain>().is_err(), "{wrong}");
        }
    }
}
