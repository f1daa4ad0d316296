//! Options of a download, fixed before it starts.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ByteRange, UrlId, Validator};
use crate::units::{Bitrate, DataSize, Ratio};

/// All options that influence decisions. A decision log begins with it, so that the log can be replayed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Policy that sizes requests and assigns them to links.
    pub policy: Policy,
    /// Number of mirrors given by the user: URLs that claim to have the file, numbered from 0.
    pub mirrors: u16,
    /// Whether metered links are used.
    pub metered: MeteredUse,
    /// How far requests may reach beyond the in-order reader's position; none: any part may be fetched at any time,
    /// because the output is a file.
    pub reader_window: Option<DataSize>,
    /// The first request covers the whole file, so that its response alone can deliver it (`bytes=0-`). Ignored with a
    /// reader window and for a resumed download.
    #[serde(default)]
    pub open_ended_first: bool,
    /// Bytes of an earlier run, and the file that they belong to.
    pub resume: Option<Resume>,
    /// The user gave a checksum of the whole file, so responses without validators may be combined.
    pub has_checksum: bool,
    /// What the known digest covers. It proves that bytes of several mirrors are of one file; none: mirrors are never
    /// combined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<DigestScope>,
    /// The size that the file must have, if it is known from elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_size: Option<DataSize>,
    /// Failures in a row, without a received byte between them, that a link or mirror may have; with one more it is given
    /// up.
    pub retries: u32,
    /// Redirects in a row, without a received byte between them, that are followed.
    #[serde(default = "default_max_redirects")]
    pub max_redirects: u32,
    /// Maximum number of connections per link.
    pub max_connections: u32,
    /// Parameters that the thesis leaves open; used by its policies only.
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

/// RFC 9110 §15.4 recommends a limit; browsers and wget follow 20 redirects, curl 50.
const fn default_max_redirects() -> u32 {
    50
}

/// Policy that sizes requests and assigns them to links. "Thesis" is the multi-link HTTP thesis (`docs/how-it-works/algorithms.md`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One link, one request for the whole file (thesis §4.3.1).
    Single,
    /// An equal part of the file for each link (thesis §4.3.2).
    Naive,
    /// Upper limit shared in proportion to throughput (thesis §4.3.3, Algorithm 1).
    StaticLimit,
    /// The limit follows the measured throughput (thesis §4.3.4, Algorithm 2).
    DynamicLimit,
    /// Requests of at least the bandwidth-delay product (thesis §4.3.5, Algorithm 3 with the diff padding).
    BdpLimit,
    /// marline's own policy; see `scheduler`.
    #[default]
    Marline,
}

impl Policy {
    /// All policies, those of the thesis first.
    pub const ALL: [Self; 6] =
        [Self::Single, Self::Naive, Self::StaticLimit, Self::DynamicLimit, Self::BdpLimit, Self::Marline];

    /// Name used in options and reports.
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

/// The name is not that of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{0}`: use single, naive, static-limit, dynamic-limit, bdp-limit or marline")]
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
    /// Only while no unmetered link works.
    #[default]
    Avoid,
    /// Like unmetered links.
    Use,
    /// Never.
    Never,
}

/// What the known digests cover: they prove that bytes of several mirrors are of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DigestScope {
    /// One digest of the whole file.
    File,
    /// One digest for each piece of this size; the last piece may be shorter.
    Pieces(DataSize),
}

/// What an earlier run has received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Size of the whole file.
    pub total: DataSize,
    /// Validator of the file. Without a validator nothing can be resumed.
    pub validator: Validator,
    /// The bytes that are stored, in any order.
    pub ranges: Vec<ByteRange>,
    /// The mirror that they came from; none: several, so that a digest must prove them. Missing in older logs, which
    /// used the first mirror.
    #[serde(default = "first_mirror")]
    pub mirror: Option<UrlId>,
}

fn first_mirror() -> Option<UrlId> {
    Some(UrlId(0))
}

/// Values that the thesis set by hand in its configuration file (§4.4.3, §8.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThesisParams {
    /// Algorithm 1's static upper limit; 4000 KB in the worked example (§4.3.3).
    pub static_limit: DataSize,
    /// Bandwidth of each link, a constant that the thesis found by trial for each scenario (§8.2.2): 30,000 KB/s in the
    /// worked examples (§4.3.4, §4.3.5). None: the peak rate seen so far (§4.3.4).
    pub bandwidth: Option<Bitrate>,
    /// Factor of Algorithm 3's diff padding; 0.3 in the worked example (§4.3.5).
    pub padding: Ratio,
    /// Fraction of a request that must be complete before the next one starts (§4.2.2).
    pub overlap: Ratio,
    /// Fail-over of slow links (§8.2.4).
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

/// The thesis's rules for links that have become slow (§8.2.4). Its measurements were made without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlowLinkRule {
    /// A slow link keeps its requests.
    #[default]
    Off,
    /// Links below this rate are slow; 100 KB/s in the thesis's listing.
    Static(Bitrate),
    /// Links below this share of the mean rate of all links are slow; 0.2 in the thesis's listing.
    Dynamic(Ratio),
}

/// Duration of a link's first ban, whatever its reason (a refusal, a captive portal, a slow link under a
/// [`SlowLinkRule`]); then the link is probed. Each further ban takes twice as long, at most 64 times this. For slow
/// links, the thesis leaves the duration open (§8.2.4).
pub const INITIAL_BAN: Duration = Duration::from_secs(5);
