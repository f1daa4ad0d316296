//! A link as the user names it: `wlan0,kind=wifi,metered=no,budget=2GB,limit=10Mbit/s`.
//!
//! The interface first, then any of the four keys, each once. A key that is not known is refused, so that a slip of
//! the pen (`buget=2GB`) cannot cost money.

use std::str::FromStr;

use marline_core::link::{LinkKind, LinkProfile};
use marline_core::units::{Bitrate, DataSize, ParseUnitError};

use super::{Interface, MeteredHints, MeteredSource, MeteredStatus};

/// What the user says of an interface. What is not said comes from the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkArg {
    /// The interface.
    pub name: String,
    /// The access technology.
    pub kind: Option<LinkKind>,
    /// Whether each byte costs money.
    pub metered: Option<bool>,
    /// How many bytes it may carry in one run.
    pub budget: Option<DataSize>,
    /// The most it may carry a second.
    pub rate_limit: Option<Bitrate>,
    /// Whether the user has just spoken of it, so that it is worth a line if it is not used. What is only known of it,
    /// from a configuration, is not.
    pub is_explicit: bool,
}

impl LinkArg {
    /// An interface of which nothing else is said.
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

    /// The terms of an interface, of which the user says this.
    pub fn profile_for(&self, interface: &Interface, metered: &MeteredHints) -> LinkProfile {
        let mut interface = interface.clone();
        interface.metered = metered.get(&interface.name);
        let mut profile = LinkProfile::new(&interface.name, LinkKind::Other);
        self.apply_to(&mut interface, &mut profile);
        profile
    }

    /// Puts what the user says over what the system says.
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

/// Why the text names no link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseLinkArgError {
    /// The interface is missing, or cannot be one.
    #[error("`{0}` is no name of an interface: 1 to 15 bytes without `/`, `:` or spaces")]
    Name(String),
    /// A part is not `key=value` with a known key.
    #[error("`{0}`: after the interface come kind=, metered=, budget= or limit=, separated by commas")]
    UnknownKey(String),
    /// A key comes twice.
    #[error("`{0}=` is said twice")]
    Duplicate(String),
    /// A value cannot be read.
    #[error("{key}: {why}")]
    Value {
        /// Which key.
        key: &'static str,
        /// Why not.
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
        let mut named = Self::new(name);
        for part in parts {
            let (key, text) = part.split_once('=').ok_or_else(|| ParseLinkArgError::UnknownKey(part.to_owned()))?;
            let twice = match key {
                "kind" => named.kind.replace(parse_value("kind", text)?).is_some(),
                "metered" => named.metered.replace(parse_yes_no(text)?).is_some(),
                "budget" => named.budget.replace(parse_value("budget", text)?).is_some(),
                "limit" => {
                    let limit =
                        parse_rate_limit(text).map_err(|why| ParseLinkArgError::Value { key: "limit", why })?;
                    named.rate_limit.replace(limit).is_some()
                }
                _ => return Err(ParseLinkArgError::UnknownKey(part.to_owned())),
            };
            if twice {
                return Err(ParseLinkArgError::Duplicate(key.to_owned()));
            }
        }
        Ok(named)
    }
}

/// A rate with its unit, or bytes a second as curl and wget write them: `2M`, `500k`.
///
/// # Errors
/// In words: it is neither.
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

/// What the kernel takes as a name (`dev_valid_name`): it also keeps a name from leaving `/sys/class/net`.
pub(super) fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_with_all_its_terms() {
        let named: LinkArg = "wwan0,limit=10Mbit/s,kind=lte,metered=yes,budget=2GB".parse().unwrap();
        assert_eq!(named.name, "wwan0");
        assert_eq!(named.kind, Some(LinkKind::Lte));
        assert_eq!(named.metered, Some(true));
        assert_eq!(named.budget, Some(DataSize::from_bytes(2_000_000_000)));
        assert_eq!(named.rate_limit, Some(Bitrate::from_mbps(10)));
        assert_eq!("eth0".parse(), Ok(LinkArg::new("eth0")));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_the_reason() {
        for (text, says) in [
            ("", "is no name of an interface"),
            ("../../etc", "is no name of an interface"),
            ("a-name-that-is-too-long", "1 to 15 bytes"),
            ("eth0 ", "is no name of an interface"),
            ("..", "is no name of an interface"),
            ("eth0,", "after the interface come"),
            ("eth0,kind", "after the interface come"),
            ("eth0,buget=2GB", "`buget=2GB`"),
            ("eth0,kind=4g", "kind: `4g` is not a kind of link"),
            ("eth0,metered=maybe", "metered: `maybe` is neither yes nor no"),
            ("eth0,budget=2", "budget: `2` is not a size"),
            ("eth0,limit=10Mb", "limit: `10Mb` is not"),
            ("eth0,kind=wifi,kind=lte", "`kind=` is said twice"),
        ] {
            let error = text.parse::<LinkArg>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
