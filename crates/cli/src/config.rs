//! Configuration file: kind, cost and limits of this host's links, and settings of `marline paths`, in TOML.
//!
//! [`ConfigFile`] is the parsed file. `docs/marline.toml` is a sample that explains every field; a test parses it.
//!
//! 1. An unknown field, a value without its unit or a link described twice is rejected with file and line. A typo in
//!    `metered` would otherwise cost money.
//! 2. It is no error if the default file does not exist. If it cannot be read (it may belong to another user), there is a
//!    notice and the run continues without it. A file named by `--config` must be readable.
//! 3. The command line overrides the file, field by field.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use marline_core::fetch::MeteredUse;
use marline_core::link::LinkKind;
use marline_core::paths::{Goal, Policy};
use marline_core::units::{Bitrate, DataSize};
use marline_net::links::{LinkArg, parse_rate_limit};
use marline_paths::transparent::PortRange;
use serde::{Deserialize, Deserializer};

use crate::CliError;
use crate::directories::config_dir;

/// The parsed configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Use of metered links unless `--metered` is given. Default: avoid them while another link works.
    #[serde(default)]
    pub metered: Option<MeteredUse>,
    /// Energy model of the device's radios (a name, a file, or `none`) unless `--energy-model` is given. Default: `typical`.
    #[serde(default, rename = "energy-model")]
    pub energy_model: Option<String>,
    /// Settings of `marline paths`.
    #[serde(default)]
    pub paths: PathsConfig,
    /// Properties and limits of links, by interface name.
    #[serde(default, rename = "link")]
    pub links: BTreeMap<InterfaceName, LinkConfig>,
}

/// Section `[paths]` of the configuration file. The command line overrides it, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PathsConfig {
    /// Goal of marline's own policy (energy, speed, latency or cost), unless `--goal` is given.
    pub goal: Option<Goal>,
    /// The algorithm that decides which links are used, marline's or for comparisons a published one, unless `--policy`
    /// is given.
    pub policy: Option<Policy>,
    /// As `--link`, but only names: properties of links are in `[link.NAME]`.
    pub links: Vec<InterfaceName>,
    /// Further links, as `--link NAME,optional`: they need not exist yet.
    pub optional_links: Vec<InterfaceName>,
    /// Carries out the policy's decisions through the kernel's path manager, for all connections alike, as `--kernel-pm`
    /// does.
    pub kernel_pm: bool,
    /// Uses the links below an active VPN, outside the VPN, as `--bypass-vpn` does.
    pub bypass_vpn: bool,
    /// Forwards plain TCP connections of this host's programs as MPTCP, as `--transparent` does.
    pub transparent: bool,
    /// As `--cgroup`: `transparent` forwards only connections of programs in this control group.
    pub cgroup: Option<PathBuf>,
    /// As `--port`: `transparent` forwards only connections to these ports, given as numbers and ranges.
    #[serde(deserialize_with = "parse_ports")]
    pub ports: Vec<PortRange>,
    /// Directory of the control socket, of the undo log (previous host settings, for recovery after a crash) and of the usage of
    /// budgets, unless `--run-dir` is given.
    pub run_dir: Option<PathBuf>,
}

/// An interface name that the kernel would accept, without the properties that `--link` may append.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Properties and limits of one link. Kind and metering are detected if they are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Access technology, such as `wifi` or `lte`.
    #[serde(default, deserialize_with = "parse_text")]
    pub kind: Option<LinkKind>,
    /// Whether traffic on the link costs money.
    #[serde(default)]
    pub metered: Option<bool>,
    /// Most bytes that may go over the link: for `marline get` in one run, for `marline proxy` in each response to a player, for the path
    /// manager (`marline paths`, `marline edge`) in all its runs together.
    #[serde(default, deserialize_with = "parse_text")]
    pub budget: Option<DataSize>,
    /// Upper limit of the link's rate: for `marline get` all files together, for `marline proxy` each response to a player separately. Other
    /// traffic is not limited.
    #[serde(default, rename = "limit", deserialize_with = "parse_rate")]
    pub rate_limit: Option<Bitrate>,
    /// Price of 10^9 bytes. The currency is arbitrary, but it must be the same for all links.
    #[serde(default, rename = "price-per-gb", deserialize_with = "parse_text")]
    pub price: Option<Price>,
}

/// An amount of money in millionths of the currency unit.
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
    /// The file cannot be read.
    #[error("{}: {error}: the configuration file cannot be read", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}:{line}: {message}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Description of the mistake.
        message: String,
    },
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl ConfigFile {
    /// Reads the file named by `--config`, or else the default file if it exists.
    ///
    /// # Errors
    /// The file is invalid, or it was named and cannot be read.
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = named.map(Path::to_owned).or_else(default_path) else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) if named.is_none() => {
                let warning = ConfigError::Unreadable { path, error };
                crate::output::print_notice(&format!("{warning}; continuing without it"));
                Ok(Self::default())
            }
            Err(error) => Err(ConfigError::Unreadable { path, error }),
        }
    }

    /// Parses `text`, the content of the file at `path`; the path only appears in errors.
    ///
    /// # Errors
    /// The text is not TOML, or it has unknown fields or invalid values.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let error_start = error.span().map_or(0, |span| span.start.min(text.len()));
            let text_before = text.as_bytes().get(..error_start).unwrap_or_default();
            let line = text_before.iter().filter(|byte| **byte == b'\n').count() + 1;
            ConfigError::Invalid { path: path.to_owned(), line, message: error.message().trim().replace('\n', " ") }
        })
    }

    /// The links that the file describes. They do not count as named by the user: no warning is due if one is not used.
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

    /// Prices of 10^9 bytes in millionths of the currency unit, by interface name.
    pub fn prices(&self) -> Vec<(String, u64)> {
        self.links.iter().filter_map(|(name, link)| Some((name.0.clone(), link.price?.0))).collect()
    }

    /// Fills the fields that are missing in `named` (from the command line) with those of the same link in the file.
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

/// Default file: `$XDG_CONFIG_HOME/marline/marline.toml`, else `~/.config/marline/marline.toml`.
fn default_path() -> Option<PathBuf> {
    Some(config_dir()?.join("marline.toml"))
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

/// Deserializes a list of ports and ranges: `[443, "8000-8999"]`.
fn parse_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PortRange>, D::Error> {
    let parse_port = |value: toml::Value| match value {
        toml::Value::Integer(number) => number.to_string().parse(),
        toml::Value::String(text) => text.parse(),
        // No other value is a port: its text yields the error.
        other => other.to_string().parse(),
    };
    let values = Vec::<toml::Value>::deserialize(deserializer)?;
    values.into_iter().map(parse_port).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// Deserializes a rate limit written as on the command line: `"20Mbit/s"` or, in bytes per second, `"2M"`.
fn parse_rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bitrate>, D::Error> {
    parse_rate_limit(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

/// Deserializes a value written as on the command line: `"2GB"`, `"lte"`.
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
    fn the_sample_is_valid_with_every_setting_uncommented() {
        let sample = include_str!("../../../docs/marline.toml");
        parse(sample).unwrap();
        let all: String = sample
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(if line.starts_with('#') { "" } else { line }))
            .flat_map(|line| [line, "\n"])
            .collect();
        let file = parse(&all).unwrap();
        assert!(file.metered.is_some() && file.energy_model.is_some());
        let PathsConfig { goal, policy, links, optional_links, kernel_pm, transparent, run_dir, .. } = &file.paths;
        let PathsConfig { bypass_vpn, cgroup, ports, .. } = &file.paths;
        assert!(*bypass_vpn && cgroup.is_some() && ports.len() == 2);
        assert!(
            goal.is_some()
                && policy.is_some()
                && links.len() == 2
                && optional_links.len() == 1
                && run_dir.is_some()
        );
        assert!(*kernel_pm && *transparent);
        let link = &file.links[&InterfaceName("wwan0".into())];
        assert!(
            link.kind.is_some() && link.metered.is_some() && link.budget.is_some() && link.rate_limit.is_some()
        );
        assert_eq!(file.prices(), [("wwan0".to_owned(), 4_500_000)]);
    }

    #[test]
    fn an_invalid_file_is_rejected_with_the_line_of_the_mistake() {
        for (text, line, expected) in [
            ("metered = 'avoid'\n[link.w]\nmeterd = true\n", 3, "unknown field `meterd`"),
            ("meterd = 'avoid'\n", 1, "unknown field `meterd`"),
            ("[link.w]\n\nbudget = '2'\n", 3, "`2` is not a size such as 500KiB"),
            ("[link.w]\nbudget = 2000\n", 2, "invalid type"),
            ("[link.w]\nlimit = '20MB'\n", 2, "a rate such as 20Mbit/s"),
            ("[link.w]\nprice-per-gb = '4,50'\n", 2, "`4,50` is not a price such as 4.50"),
            ("[link.w]\nprice-per-gb = '-1'\n", 2, "`-1` is not a price"),
            ("[link.w]\nkind = '6g'\n", 2, "`6g` is not a kind of link"),
            ("[paths]\ngaol = 'energy'\n", 2, "unknown field `gaol`"),
            ("[paths]\ngoal = 'fast'\n", 2, "unknown variant `fast`"),
            ("[paths]\nports = [0]\n", 2, "`0` is no port: 1 to 65535"),
            ("[paths]\nports = ['9-8']\n", 2, "`9-8` is no port"),
            ("[paths]\nports = [true]\n", 2, "`true` is no port"),
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
    fn the_command_line_overrides_the_file_field_by_field() {
        let file = parse("[link.w]\nkind = 'lte'\nmetered = true\nlimit = '5Mbit/s'\n").unwrap();
        let named: LinkArg = "w,metered=no".parse().unwrap();
        let named = file.with_config(named);
        assert_eq!((named.kind, named.metered), (Some(LinkKind::Lte), Some(false)));
        assert_eq!(named.rate_limit, Some(Bitrate::from_mbps(5)));
    }
}
