//! Identity of a member: the name and role in its certificate.
//!
//! 1. The certificate contains the identity as one URI (RFC 5280 §4.2.1.6), `marline://edge/NAME`. Its DNS names are
//!    addresses under which a relay or the fleet service is reached, not identities.
//! 2. A certificate without such a URI, or with two, has no identity.
//! 3. The role is part of the identity: an edge's certificate is not accepted where a relay's is required.

use std::fmt::{self, Display};
use std::str::FromStr;

pub use marline_core::fleet::Name;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Role of a member, which determines its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Sends its traffic through relays.
    Edge,
    /// Forwards the traffic of edges.
    Relay,
    /// Assigns relays to edges.
    Fleet,
    /// Queries and controls the other members.
    Operator,
}

impl Role {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Edge, "edge"), (Self::Relay, "relay"), (Self::Fleet, "fleet"), (Self::Operator, "operator")];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(role, _)| *role == self).map_or("", |(_, name)| name)
    }
}

impl Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text).map(|(role, _)| *role);
        found.ok_or_else(|| format!("`{text}` is not a role: expected edge, relay, fleet or operator"))
    }
}

/// Role and name of a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The member's role.
    pub role: Role,
    /// The member's name.
    pub name: Name,
}

impl Identity {
    /// Reads the identity from a certificate, which must have been verified.
    ///
    /// # Errors
    /// If it contains no identity, or several.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|error| format!("the certificate: {error}"))?;
        let mut uris = parsed.valid_uri_names().filter(|uri| uri.starts_with(SCHEME));
        match (uris.next(), uris.next()) {
            (Some(uri), None) => uri.parse(),
            (None, _) => Err(format!("the certificate has no {SCHEME} name")),
            (Some(_), Some(_)) => Err(format!("the certificate has two {SCHEME} names")),
        }
    }
}

impl Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.role, self.name)
    }
}

impl FromStr for Identity {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix(SCHEME).and_then(|remaining| remaining.split_once('/'));
        let (role, name) = parts.ok_or_else(|| format!("`{text}` is not {SCHEME}ROLE/NAME"))?;
        Ok(Self { role: role.parse()?, name: name.parse()? })
    }
}

const SCHEME: &str = "marline://";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_formatting_and_parsing() {
        for text in ["marline://edge/cam-7", "marline://relay/fra.1", "marline://operator/0"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        for text in [
            "marline://edge/",
            "marline://edge/Cam",
            "marline://edge/a/b",
            "marline://king/a",
            "edge/a",
            "marline://edge/..",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
