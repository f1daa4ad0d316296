//! Addresses in certificates.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::{self, Display};
use core::net::IpAddr;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Address of a relay or the fleet service, for which its certificate is valid: a DNS name or an IP address, without
/// a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address(String);

impl Address {
    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_string()));
        }
        let wrong = || format!("`{text}` is not an address: expected a DNS name or an IP address, without a port");
        is_dns_name(text).then(|| Self(text.to_owned())).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Address {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0
    }
}

/// Whether rustls accepts this DNS name: at most 253 bytes, labels of 1 to 63 letters, digits, underscores and
/// hyphens (none at either end of a label), and a last label that is not a number. A final dot is allowed.
fn is_dns_name(text: &str) -> bool {
    let labels = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = labels.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && labels.split('.').all(is_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_names_and_ip_addresses_are_addresses() {
        for (text, shown) in [
            ("relay.example", "relay.example"),
            ("a_b.example.", "a_b.example."),
            ("192.0.2.1", "192.0.2.1"),
            ("2001:DB8::1", "2001:db8::1"),
            ("7.example", "7.example"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().as_str(), shown);
        }
        for text in
            ["", ".", "a..b", "-a.example", "a-.example", "relay.example:1", "[::1]", "a.7", "*.example", "a b"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
