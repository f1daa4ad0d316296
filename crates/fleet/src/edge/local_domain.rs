//! Local domains: names of hosts in private networks, which are not registered in the public DNS.
//!
//! A name of another domain may be one of an attacker, who changes its addresses to private ones (DNS rebinding). So this box looks up no
//! other names by itself for programs that use the proxy (`nearby`), unless the user names their domain.
//!
//! `.box` as a whole is not among them: it is a public top-level domain. `fritz.box` belongs to the maker of routers that use it.

use std::str::FromStr;

/// A domain whose names, and all names below it, are local. Lower case, without dots at its ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDomain(String);

impl LocalDomain {
    fn has(&self, name: &str) -> bool {
        has(&self.0, name)
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
        // An address has no domain.
        let is_name =
            domain.split('.').all(is_label) && domain.rsplit('.').next().is_some_and(|last| !is_number(last));
        if domain.len() > LONGEST || !is_name {
            return Err(format!("`{text}` is no domain such as office.example or corp"));
        }
        Ok(Self(domain))
    }
}

/// Whether a name is local: one without a dot, or one of these domains or of those that are always local.
pub(super) fn is_local(name: &str, domains: &[LocalDomain]) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_always = !name.contains('.') || ALWAYS.iter().any(|domain| has(domain, &name));
    !name.is_empty() && (is_always || domains.iter().any(|domain| domain.has(&name)))
}

fn has(domain: &str, name: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
}

/// `home.arpa`: RFC 8375. `internal`: ICANN has reserved it for private use. `local`: RFC 6762. `lan`: no top-level domain, OpenWrt's default.
const ALWAYS: [&str; 5] = ["fritz.box", "home.arpa", "internal", "lan", "local"];
/// RFC 1035, section 3.1, as text.
const LONGEST: usize = 253;

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
            // Anybody may register these.
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
    fn a_domain_is_a_name() {
        for wrong in ["", ".", "a..b", "192.0.2.1", "a b", "https://a.example/", "[::1]", "*.example"] {
            assert!(wrong.parse::<LocalDomain>().is_err(), "{wrong}");
        }
    }
}
