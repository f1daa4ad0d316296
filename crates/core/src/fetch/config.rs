//! What a download is told before it starts.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, UrlId, Validator};
use crate::units::{Bitrate, DataSize, Ratio};

/// Everything that shapes a download, apart from what happens on the network. A log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How requests are sized and placed.
    pub policy: Policy,
    /// How many sources were given: URLs that are said to have the file. Their numbers begin with 0.
    pub mirrors: u16,
    /// Whether metered links are used.
    pub metered: MeteredUse,
    /// How far beyond the in-order reader a span may reach; none: the file is random access.
    pub reader_window: Option<DataSize>,
    /// The first request asks for the whole file, so that its response alone can bring it. Not with a window or for a
    /// download that is resumed.
    #[serde(default)]
    pub open_ended_first: bool,
    /// An earlier run's bytes and the file that they are of.
    pub resume: Option<Resume>,
    /// The user gave a checksum of the whole, so answers without validators may be put together.
    pub has_checksum: bool,
    /// What proves that bytes of several sources are of one file; none: sources are never combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<DigestScope>,
    /// The size that the file must have, where that is known from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_size: Option<DataSize>,
    /// Failed tries in a row, without a byte of progress between them, before a link or an origin is given up.
    pub retries: u32,
    /// Redirects in a row, without a byte between them, that are followed.
    #[serde(default = "default_max_redirects")]
    pub max_redirects: u32,
    /// The most connections on one link.
    pub max_connections: u32,
    /// What the thesis left open, for its policies only.
    pub thesis: ThesisParams,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Marline,
            mirrors: 1,
            metered: MeteredUse::Avoid,
            reader_window: None,
            open_ended_first: false,
            resume: None,
            has_checksum: false,
            digest: None,
            expected_size: None,
            retries: 5,
            max_redirects: default_max_redirects(),
            max_connections: 16,
            thesis: ThesisParams::default(),
        }
    }
}

/// RFC 9110 §15.4 asks for a limit; browsers and wget allow 20, curl 50.
const fn default_max_redirects() -> u32 {
    50
}

/// How requests are sized and placed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One link, one request (thesis §4.3.1).
    Single,
    /// An equal part for each link (thesis §4.3.2).
    Naive,
    /// Thesis §4.3.3, Algorithm 1.
    StaticLimit,
    /// Thesis §4.3.4, Algorithm 2.
    DynamicLimit,
    /// Thesis §4.3.5, Algorithm 3 with the diff padding.
    BdpLimit,
    /// Ours.
    #[default]
    Marline,
}

impl Policy {
    /// All of them, the thesis's first.
    pub const ALL: [Self; 6] =
        [Self::Single, Self::Naive, Self::StaticLimit, Self::DynamicLimit, Self::BdpLimit, Self::Marline];

    /// The word used in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Naive => "naive",
            Self::StaticLimit => "static-limit",
            Self::DynamicLimit => "dynamic-limit",
            Self::BdpLimit => "bdp-limit",
            Self::Marline => "marline",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The word is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy: single, naive, static-limit, dynamic-limit, bdp-limit or marline")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(s: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|p| p.name() == s).ok_or_else(|| UnknownPolicy(s.to_string()))
    }
}

/// Whether links that cost money are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeteredUse {
    /// Only when all others have failed.
    #[default]
    Avoid,
    /// Like any other.
    Use,
    /// Not at all.
    Never,
}

/// What proves that bytes of several sources are of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DigestScope {
    /// A digest of the whole file.
    File,
    /// Digests of pieces of this size; the last one may be shorter.
    Pieces(DataSize),
}

/// What an earlier run left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The whole file's size.
    pub total: DataSize,
    /// The file's validator. Without one nothing can be resumed.
    pub validator: Validator,
    /// The bytes that are in their place, in any order.
    pub ranges: Vec<ByteRange>,
    /// The source that they are of; none: of several, and a digest is to prove them. A log that does not say so is of a
    /// run that took the first one.
    #[serde(default = "first_mirror")]
    pub mirror: Option<UrlId>,
}

fn first_mirror() -> Option<UrlId> {
    Some(UrlId(0))
}

/// What the thesis set by hand in its configuration file (§4.4.3, §8.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThesisParams {
    /// Algorithm 1's static upper limit; the worked example has 4000 KB (§4.3.3).
    pub static_limit: DataSize,
    /// Bandwidth of each link: a constant, found by trial in each scenario (§8.2.2), that is 30,000 KB/s in the worked
    /// examples (§4.3.4, §4.3.5); none: the peak seen so far (§4.3.4).
    pub bandwidth: Option<Bitrate>,
    /// Algorithm 3's factor of the diff padding; the worked example has 0.3 (§4.3.5).
    pub padding: Ratio,
    /// How much of a request is complete when the next one starts (§4.2.2).
    pub overlap: Ratio,
    /// Slow-link fail-over (§8.2.4).
    pub slow_link: SlowLinkRule,
}

impl Default for ThesisParams {
    fn default() -> Self {
        Self {
            static_limit: DataSize::from_bytes(4_000_000),
            bandwidth: Some(Bitrate::from_mbps(240)),
            padding: Ratio::from_percent(30),
            overlap: Ratio::from_percent(60),
            slow_link: SlowLinkRule::Off,
        }
    }
}

/// The thesis's rules for a link that has become slow (§8.2.4). The thesis measured without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowLinkRule {
    /// A slow link keeps its requests.
    #[default]
    Off,
    /// Slow is what is below this rate; the listing has 100 KB/s.
    Static(Bitrate),
    /// Slow is what is below this share of the mean of all links; the listing has 0.2.
    Dynamic(Ratio),
}

/// How long a banned link rests before it is probed for the first time. The thesis leaves it open (§8.2.4).
pub const INITIAL_BAN: Duration = Duration::from_secs(5);
