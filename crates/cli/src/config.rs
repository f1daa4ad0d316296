//! The configuration file: what this machine's links are and cost, so that no command line has to repeat it.
//!
//! TOML text in, a [`ConfigFile`] out. `docs/marline.toml` is a sample that explains every field, and a test reads it.
//!
//! 1. An unknown field, a value without its unit or a link described twice is refused with file and line. A typo in
//!    `metered` would otherwise cost money.
//! 2. No file at the usual place is no error, and one that may not be read (another user's) is worth one line; a file
//!    named by `--config` must be there.
//! 3. The command line wins over the file, field by field.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use marline_core::fetch::MeteredUse;
use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize};
use marline_net::links::{LinkArg, parse_rate_limit};
use serde::{Deserialize, Deserializer};

use crate::CliError;
use crate::paths::PathsConfig;

/// What the configuration file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Whether metered links are used, where `--metered` does not say; none: avoid.
    #[serde(default)]
    pub metered: Option<MeteredUse>,
    /// The device model of energy reports, where `--energy-model` does not say: a name or a file; none: the default.
    #[serde(default, rename = "energy-model")]
    pub energy_model: Option<String>,
    /// How `marline paths` runs.
    #[serde(default)]
    pub paths: PathsConfig,
    /// Terms of use by interface name.
    #[serde(default)]
    pub links: BTreeMap<InterfaceName, LinkConfig>,
}

/// The name of an interface, as the kernel would accept it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// It.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What one interface is and costs. Whatever is left out is found by the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The access technology.
    #[serde(default, deserialize_with = "parse_text")]
    pub kind: Option<LinkKind>,
    /// Whether each byte costs money.
    #[serde(default)]
    pub metered: Option<bool>,
    /// How many bytes one run may use.
    #[serde(default, deserialize_with = "parse_text")]
    pub budget: Option<DataSize>,
    /// The most it may carry a second.
    #[serde(default, rename = "limit", deserialize_with = "parse_rate")]
    pub rate_limit: Option<Bitrate>,
    /// What 10^9 bytes cost, in whatever currency, as long as it is one.
    #[serde(default, rename = "price-per-gb", deserialize_with = "parse_text")]
    pub price: Option<Price>,
}

/// A sum of money in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price(pub u64);

impl FromStr for Price {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (units, fraction) = text.split_once('.').unwrap_or((text, ""));
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let price = || {
            let padded = format!("{fraction:0<6}").parse::<u64>().ok()?;
            units.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(padded).map(Self)
        };
        let is_plain = !units.is_empty() && are_digits(units) && are_digits(fraction) && fraction.len() <= 6;
        is_plain.then(price).flatten().ok_or_else(|| format!("`{text}` is not a price such as 4.50"))
    }
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("{}: {error}: the configuration file cannot be read", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Its text is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// Its path.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl ConfigFile {
    /// Reads the file named by `--config`, or the one at the usual place if there is one.
    ///
    /// # Errors
    /// When the file is wrong, or cannot be read although it was named.
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = named.map(Path::to_owned).or_else(default_path) else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) if named.is_none() => {
                let warning = ConfigError::Unreadable { path, error };
                crate::output::say(&format!("{warning}; going on without it"));
                Ok(Self::default())
            }
            Err(error) => Err(ConfigError::Unreadable { path, error }),
        }
    }

    /// Understands the text of the file at `path`.
    ///
    /// # Errors
    /// When the text is no TOML, or says what this file cannot say.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let error_start = error.span().map_or(0, |span| span.start.min(text.len()));
            let text_before = text.as_bytes().get(..error_start).unwrap_or_default();
            let line = text_before.iter().filter(|byte| **byte == b'\n').count() + 1;
            ConfigError::Invalid { path: path.to_owned(), line, message: error.message().trim().replace('\n', " ") }
        })
    }

    /// The interfaces it describes.
    pub fn described_links(&self) -> Vec<LinkArg> {
        let mut described = Vec::new();
        for (name, link) in &self.links {
            described.push(LinkArg {
                name: name.0.clone(),
                kind: link.kind,
                metered: link.metered,
                budget: link.budget,
                rate_limit: link.rate_limit,
                is_explicit: false,
            });
        }
        described
    }

    /// The prices, by interface.
    pub fn prices(&self) -> Vec<(String, u64)> {
        self.links.iter().filter_map(|(name, link)| Some((name.0.clone(), link.price?.0))).collect()
    }

    /// `named` with what the file knows of the same interface wherever the command line says nothing.
    pub fn with_config(&self, named: LinkArg) -> LinkArg {
        let Some((_, link)) = self.links.iter().find(|(name, _)| name.0 == named.name) else { return named };
        LinkArg {
            kind: named.kind.or(link.kind),
            metered: named.metered.or(link.metered),
            budget: named.budget.or(link.budget),
            rate_limit: named.rate_limit.or(link.rate_limit),
            ..named
        }
    }
}

/// `$XDG_CONFIG_HOME/marline/marline.toml`, else `~/.config/marline/marline.toml`.
fn default_path() -> Option<PathBuf> {
    Some(config_dir()?.join("marline.toml"))
}

/// `$XDG_CONFIG_HOME/marline`, else `~/.config/marline`.
pub(crate) fn config_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(base.join("marline"))
}

impl<'de> Deserialize<'de> for InterfaceName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse::<LinkArg>() {
            Ok(named) if named.name == text => Ok(Self(text)),
            Ok(_) => Err(serde::de::Error::custom(format!("`{text}` is not an interface name"))),
            Err(error) => Err(serde::de::Error::custom(error)),
        }
    }
}

/// A value written as on the command line: `"2GB"`, `"20Mbit/s"`, `"lte"`.
fn parse_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bitrate>, D::Error> {
    parse_rate_limit(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn parse_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, String> {
        ConfigFile::parse(text, Path::new("m.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn the_sample_is_understood_with_every_comment_sign_removed() {
        let sample = include_str!("../../../docs/marline.toml");
        parse(sample).unwrap();
        let all: String = sample
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(if line.starts_with('#') { "" } else { line }))
            .flat_map(|line| [line, "\n"])
            .collect();
        let file = parse(&all).unwrap();
        assert!(file.metered.is_some() && file.energy_model.is_some());
        let PathsConfig {
            goal: profile,
            policy,
            links,
            optional_links: later,
            kernel_pm,
            transparent,
            run_dir,
            ..
        } = &file.paths;
        let PathsConfig { bypass_vpn, cgroup, ports: port, .. } = &file.paths;
        assert!(*bypass_vpn && cgroup.is_some() && port.len() == 2);
        assert!(profile.is_some() && policy.is_some() && links.len() == 2 && later.len() == 1 && run_dir.is_some());
        assert!(*kernel_pm && *transparent);
        let link = &file.links[&InterfaceName("wwan0".into())];
        assert!(
            link.kind.is_some() && link.metered.is_some() && link.budget.is_some() && link.rate_limit.is_some()
        );
        assert_eq!(file.prices(), [("wwan0".to_owned(), 4_500_000)]);
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        for (text, line, expected) in [
            ("metered = 'avoid'\n[link.w]\nmeterd = true\n", 3, "unknown field `meterd`"),
            ("meterd = 'avoid'\n", 1, "unknown field `meterd`"),
            ("[link.w]\n\nbudget = '2'\n", 3, "`2` is not a size such as 500KiB"),
            ("[link.w]\nbudget = 2000\n", 2, "invalid type"),
            ("[link.w]\nlimit = '20MB'\n", 2, "a rate such as 20Mbit/s"),
            ("[link.w]\nprice-per-gb = '4,50'\n", 2, "`4,50` is not a price such as 4.50"),
            ("[link.w]\nprice-per-gb = '-1'\n", 2, "`-1` is not a price"),
            ("[link.w]\nkind = '6g'\n", 2, "`6g` is not a kind of link"),
            ("[paths]\nprofil = 'energy'\n", 2, "unknown field `profil`"),
            ("[paths]\nprofile = 'fast'\n", 2, "unknown variant `fast`"),
            ("[paths]\nport = [0]\n", 2, "`0` is no port: 1 to 65535"),
            ("[paths]\nport = ['9-8']\n", 2, "`9-8` is no port"),
            ("[paths]\nport = [true]\n", 2, "`true` is no port"),
            ("[paths]\nenergy-model = 'typical'\n", 2, "unknown field `energy-model`"),
            ("[paths]\ntrace = 'x'\n", 2, "unknown field `trace`"),
            ("[paths]\nlinks = ['a b']\n", 2, "is not an interface name"),
            ("metered = 'maybe'\n", 1, "unknown variant `maybe`"),
            ("[link.w]\nmetered = true\n[link.w]\n", 3, "duplicate"),
            ("[link.w]\n[link.'eth0,metered=no']\n", 2, "is not an interface name"),
            ("[link\n", 1, ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("m.toml:{line}: ")), "{text:?}: {error}");
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_command_line_wins_field_by_field() {
        let file = parse("[link.w]\nkind = 'lte'\nmetered = true\nlimit = '5Mbit/s'\n").unwrap();
        let named: LinkArg = "w,metered=no".parse().unwrap();
        let named = file.with_config(named);
        assert_eq!((named.kind, named.metered), (Some(LinkKind::Lte), Some(false)));
        assert_eq!(named.rate_limit, Some(Bitrate::from_mbps(5)));
    }
}
