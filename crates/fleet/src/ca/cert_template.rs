//! Contents of a certificate before a key is known: identity, addresses and lifetime.
//!
//! 1. Only relays and the fleet service have addresses, and they need at least one, because their clients verify the address.
//! 2. The lifetime is at least a minute and at most ten years, which is the lifetime of the authority itself.

use std::time::Duration;

use marline_core::fleet::Address;
use marline_core::units::parse_duration;
use serde::{Deserialize, Serialize};

use super::{CaError, LIFETIME, serde_text};
use crate::identity::{Identity, Role};

/// Contents of a certificate to be issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TemplateRepr", into = "TemplateRepr")]
pub struct CertTemplate {
    identity: Identity,
    addresses: Vec<Address>,
    lifetime: Duration,
}

impl CertTemplate {
    /// Creates a template from an identity, its addresses and the lifetime of its certificate.
    ///
    /// # Errors
    /// If the addresses do not match the role, or the lifetime is too short or too long.
    pub fn new(identity: Identity, addresses: Vec<Address>, lifetime: Duration) -> Result<Self, CaError> {
        let role = identity.role;
        let wrong = match (is_server_role(role), addresses.is_empty()) {
            (true, true) => Some(format!("{identity}: a certificate of the role {role} needs an address")),
            (false, false) => Some(format!("{identity}: a certificate of the role {role} has no addresses")),
            _ if addresses.len() > MAX_ADDRESSES => {
                Some(format!("{identity}: more than {MAX_ADDRESSES} addresses"))
            }
            _ if !(MIN_LIFETIME..=LIFETIME).contains(&lifetime) => {
                Some(format!("{identity}: the lifetime must be 1min to 3650d, not {lifetime:?}"))
            }
            _ => None,
        };
        wrong.map_or(Ok(Self { identity, addresses, lifetime }), |wrong| Err(CaError::Refused(wrong)))
    }

    /// Identity of the member.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Addresses under which the member is reached; empty for clients.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Lifetime of the certificate.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }
}

/// Whether members of this role are servers.
pub(super) fn is_server_role(role: Role) -> bool {
    matches!(role, Role::Relay | Role::Fleet)
}

const MIN_LIFETIME: Duration = Duration::from_secs(60);
/// Highest number of addresses. Our choice: keeps a token short enough to be pasted into a terminal as one line.
const MAX_ADDRESSES: usize = 16;

/// Serialized form of a template in a token.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateRepr {
    #[serde(with = "serde_text")]
    identity: Identity,
    addresses: Vec<Address>,
    #[serde(rename = "life")]
    lifetime: String,
}

impl From<CertTemplate> for TemplateRepr {
    fn from(template: CertTemplate) -> Self {
        let CertTemplate { identity, addresses, lifetime } = template;
        Self { identity, addresses, lifetime: format!("{}s", lifetime.as_secs()) }
    }
}

impl TryFrom<TemplateRepr> for CertTemplate {
    type Error = String;
    fn try_from(written: TemplateRepr) -> Result<Self, String> {
        let life = parse_duration(&written.lifetime).map_err(|error| error.to_string())?;
        Self::new(written.identity, written.addresses, life).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(identity: &str, addresses: &[&str], seconds: u64) -> Result<CertTemplate, String> {
        let addresses = addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        let life = Duration::from_secs(seconds);
        CertTemplate::new(identity.parse()?, addresses, life).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_need_addresses_and_clients_have_none() {
        assert!(template("marline://edge/a", &[], 60).is_ok());
        assert!(template("marline://relay/a", &["r.example", "192.0.2.1", "2001:db8::1"], 60).is_ok());
        assert!(template("marline://edge/a", &["r.example"], 60).unwrap_err().contains("has no addresses"));
        assert!(template("marline://fleet/a", &[], 60).unwrap_err().contains("needs an address"));
        assert!(template("marline://relay/a", &["r.example:443"], 60).unwrap_err().contains("without a port"));
        assert!(template("marline://relay/a", &["*.example"], 60).is_err());
    }

    #[test]
    fn the_lifetime_is_limited_and_a_template_survives_serialization() {
        for seconds in [0, 59, 3650 * 86_400 + 1] {
            assert!(template("marline://edge/a", &[], seconds).unwrap_err().contains("must be 1min"));
        }
        let one = template("marline://relay/a", &["r.example", "192.0.2.1"], 3600).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(
            text,
            r#"{"identity":"marline://relay/a","addresses":["r.example","192.0.2.1"],"life":"3600s"}"#
        );
        assert_eq!(serde_json::from_str::<CertTemplate>(&text).unwrap(), one);
        assert!(serde_json::from_str::<CertTemplate>(&text.replace("relay", "edge")).is_err());
    }
}
