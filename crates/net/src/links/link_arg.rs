//! A link as the user writes it in an option: `wlan0,kind=wifi,metered=no,budget=2GB,limit=10Mbit/s`.
//!
//! The interface comes first, then any of the four keys, each at most once. Unknown keys are rejected, so that a
//! typing error (`buget=2GB`) cannot cost money.

use std::str::FromStr;

use marline_core::link::{LinkKind, LinkProfile};
use marline_core::units::{Bitrate, DataSize, ParseUnitError};

use super::interface::is_interface_name;
use super::{Interface, MeteredHints, MeteredSource, MeteredStatus};

/// The user's settings for an interface. Values that are not set come from the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkArg {
    /// The name of the interface.
    pub name: String,
    /// The access technology (`kind=`).
    pub kind: Option<LinkKind>,
    /// Whether each byte costs money.
    pub metered: Option<bool>,
    /// Maximum number of bytes that the link may carry: for downloads in one run, for `marline paths`, which stores
    /// what was used, in all its runs together. `None`: no limit.
    pub budget: Option<DataSize>,
    /// Maximum rate of the link; `None`: no limit.
    pub rate_limit: Option<Bitrate>,
    /// Whether the user mentioned the interface in this command, so that a warning is due if it is not used. `false`
    /// for settings from the configuration file.
    pub is_explicit: bool,
}

impl LinkArg {
    /// An interface without any settings.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: None,
            metered: None,
            budget: None,
            rate_limit: None,
            is_explicit: false,
        }
    }

    /// The profile of an interface: the system's values, overridden by these settings.
    pub fn profile_for(&self, interface: &Interface, metered: &MeteredHints) -> LinkProfile {
        let mut interface = interface.clone();
        interface.metered = metered.get(&interface.name);
        let mut profile = LinkProfile::new(&interface.name, LinkKind::Other);
        self.apply_to(&mut interface, &mut profile);
        profile
    }

    /// Overrides the system's values by the user's settings.
    pub(super) fn apply_to(&self, interface: &mut Interface, profile: &mut LinkProfile) {
        if let Some(kind) = self.kind {
            interface.kind = kind;
        }
        if let Some(metered) = self.metered {
            interface.metered = Some(MeteredStatus { metered, source: MeteredSource::User });
        }
        profile.kind = interface.kind;
        profile.metered = interface.metered.is_some_and(|m| m.metered);
        profile.budget = self.budget.or(profile.budget);
        profile.rate_limit = self.rate_limit.or(profile.rate_limit);
    }
}

/// Why a text is not a valid link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseLinkArgError {
    /// The interface name is missing or impossible.
    #[error("`{0}` is not an interface name: 1 to 15 bytes without `/`, `:` or spaces")]
    Name(String),
    /// A part is not `key=value` with a known key.
    #[error("`{0}`: after the interface come kind=, metered=, budget= or limit=, separated by commas")]
    UnknownKey(String),
    /// A key occurs twice.
    #[error("`{0}=` is given twice")]
    Duplicate(String),
    /// A value cannot be parsed.
    #[error("{key}: {why}")]
    Value {
        /// The key with the invalid value.
        key: &'static str,
        /// The reason, as a text.
        why: String,
    },
}

impl FromStr for LinkArg {
    type Err = ParseLinkArgError;

    fn from_str(s: &str) -> Result<Self, ParseLinkArgError> {
        let mut parts = s.split(',');
        let name = parts.next().unwrap_or_default();
        if !is_interface_name(name) {
            return Err(ParseLinkArgError::Name(name.to_owned()));
        }
        let mut link_arg = Self::new(name);
        for part in parts {
            let (key, text) = part.split_once('=').ok_or_else(|| ParseLinkArgError::UnknownKey(part.to_owned()))?;
            let is_duplicate = match key {
                "kind" => link_arg.kind.replace(parse_value("kind", text)?).is_some(),
                "metered" => link_arg.metered.replace(parse_yes_no(text)?).is_some(),
                "budget" => link_arg.budget.replace(parse_value("budget", text)?).is_some(),
                "limit" => {
                    let limit =
                        parse_rate_limit(text).map_err(|why| ParseLinkArgError::Value { key: "limit", why })?;
                    link_arg.rate_limit.replace(limit).is_some()
                }
                _ => return Err(ParseLinkArgError::UnknownKey(part.to_owned())),
            };
            if is_duplicate {
                return Err(ParseLinkArgError::Duplicate(key.to_owned()));
            }
        }
        Ok(link_arg)
    }
}

/// Parses a rate with its unit, or bytes per second as curl and wget accept them: `2M`, `500k`.
///
/// # Errors
/// The text is neither; the message states the expected form.
pub fn parse_rate_limit(text: &str) -> Result<Bitrate, String> {
    let size = match text.as_bytes() {
        [.., digit, b'k' | b'K' | b'm' | b'M' | b'g' | b'G'] if digit.is_ascii_digit() => {
            text.to_ascii_uppercase().parse::<DataSize>().ok()
        }
        _ => None,
    };
    match size.and_then(|size| size.bytes().checked_mul(8)) {
        Some(bits) => Ok(Bitrate::from_bits_per_sec(bits)),
        None => text.parse().map_err(|error: ParseUnitError| format!("{error}, or bytes a second such as 2M")),
    }
}

fn parse_value<T: FromStr<Err: ToString>>(key: &'static str, text: &str) -> Result<T, ParseLinkArgError> {
    text.parse().map_err(|why: T::Err| ParseLinkArgError::Value { key, why: why.to_string() })
}

fn parse_yes_no(text: &str) -> Result<bool, ParseLinkArgError> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(ParseLinkArgError::Value { key: "metered", why: format!("`{text}` is neither yes nor no") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_parsed_with_all_its_settings() {
        let named: LinkArg = "wwan0,limit=10Mbit/s,kind=lte,metered=yes,budget=2GB".parse().unwrap();
        assert_eq!(named.name, "wwan0");
        assert_eq!(named.kind, Some(LinkKind::Lte));
        assert_eq!(named.metered, Some(true));
        assert_eq!(named.budget, Some(DataSize::from_bytes(2_000_000_000)));
        assert_eq!(named.rate_limit, Some(Bitrate::from_mbps(10)));
        assert_eq!("eth0".parse(), Ok(LinkArg::new("eth0")));
    }

    #[test]
    fn invalid_links_are_rejected_with_the_reason() {
        for (text, expected) in [
            ("", "is not an interface name"),
            ("../../etc", "is not an interface name"),
            ("a-name-that-is-too-long", "1 to 15 bytes"),
            ("eth0 ", "is not an interface name"),
            ("..", "is not an interface name"),
            ("eth0,", "after the interface come"),
            ("eth0,kind", "after the interface come"),
            ("eth0,buget=2GB", "`buget=2GB`"),
            ("eth0,kind=4g", "kind: `4g` is not a kind of link"),
            ("eth0,metered=maybe", "metered: `maybe` is neither yes nor no"),
            ("eth0,budget=2", "budget: `2` is not a size"),
            ("eth0,limit=10Mb", "limit: `10Mb` is not"),
            ("eth0,kind=wifi,kind=lte", "`kind=` is given twice"),
        ] {
            let error = text.parse::<LinkArg>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
