//! What the policy is told before it starts.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::energy::Model;
use crate::link::{LinkId, LinkKind};
use crate::units::{Bitrate, DataSize, Ratio, UnknownName};

/// Everything that shapes the decisions, apart from what happens. A log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Who decides.
    pub policy: Policy,
    /// What is to be small or large; the published policies know energy only.
    pub goal: Goal,
    /// What the radio of each kind of link draws; kinds that it does not describe cost nothing.
    pub energy: Model,
    /// The links that may be used from the start on, in the order of their numbers; [`super::Input::Link`] adds to them.
    /// Subflows over others are left alone.
    pub links: Vec<LinkConfig>,
    /// κ: bytes over the first link before another one is joined (eMPTCP §3.5, §4.1).
    pub kappa: DataSize,
    /// τ: how long a slow first link is waited for instead (eMPTCP §3.5, eq. 1).
    pub tau: Duration,
    /// The safety factor of switching (eMPTCP §3.4).
    pub safety: Ratio,
    /// What a link is taken for that was never used (eMPTCP §3.2).
    pub assumed_rate: Bitrate,
    /// Whether who sends from here keeps what waits on subflows short ([`super::queue`]), so that slower links help uploads.
    #[serde(default)]
    pub short_queues: bool,
    /// Whether all connections are steered as one, with one subflow for each link: the kernel's own path manager.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub kernel_path_manager: bool,
    /// How long a lowered MTU of a link holds before full-sized packets are tried again.
    #[serde(default = "raise_mtu_after", skip_serializing_if = "is_default_raise_mtu_after")]
    pub raise_mtu_after: Duration,
}

impl Config {
    /// RFC 8899, section 5.1.1: PMTU_RAISE_TIMER.
    const RAISE_MTU_AFTER: Duration = Duration::from_secs(600);

    /// eMPTCP's own figures: κ = 1 MB, τ = 3 s, 10 %, 5 Mbit/s.
    pub fn new(energy: Model, links: Vec<LinkConfig>) -> Self {
        Self {
            policy: Policy::default(),
            goal: Goal::default(),
            energy,
            links,
            kappa: DataSize::from_bytes(1_000_000),
            tau: Duration::from_secs(3),
            safety: Ratio::from_ppm(100_000),
            assumed_rate: Bitrate::from_mbps(5),
            short_queues: false,
            kernel_path_manager: false,
            raise_mtu_after: Self::RAISE_MTU_AFTER,
        }
    }
}

const fn raise_mtu_after() -> Duration {
    Config::RAISE_MTU_AFTER
}

fn is_default_raise_mtu_after(raise_mtu_after: &Duration) -> bool {
    *raise_mtu_after == Config::RAISE_MTU_AFTER
}

/// One link, and on what terms it may be used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Its number.
    pub id: LinkId,
    /// Its name, for people.
    pub name: String,
    /// The access technology: which radio of the model it is.
    pub kind: LinkKind,
    /// Whether each byte costs money.
    pub metered: bool,
    /// How many bytes may pass its interface from now on, both ways, before connections leave it, whoever has sent them;
    /// none: as many as they want. Stopping what other programs do over it is nobody's task here.
    pub budget: Option<DataSize>,
}

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Ours.
    #[default]
    Marline,
    /// eMPTCP to the letter (§3), as far as a client of upstream's MPTCP can: see `docs/algorithms.md`.
    Emptcp,
    /// The same, but a path is judged when its window is open and ten samples were taken of it, as eq. 1 asks of Wi-Fi.
    EmptcpSettled,
    /// eMPTCP to the letter, and LTE alone where Table 2's first column says so (§3.3; §3.4 leaves that out).
    EmptcpTable,
    /// "MPTCP with WiFi First" (Raiciu et al.; eMPTCP §4.6): all others are backups from the start.
    WifiFirst,
    /// What the kernel does by itself: every link joins at once, nothing is suspended.
    Mptcp,
}

/// What decisions are for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The fewest joules for what is transferred.
    #[default]
    Energy,
    /// The most bytes per second, never less than the best link alone.
    Speed,
    /// The shortest way, with another one ready to take over at once.
    Latency,
    /// The fewest bytes over metered links: they help only when the others do not work.
    Cost,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Marline, Self::Emptcp, Self::EmptcpSettled, Self::EmptcpTable, Self::WifiFirst, Self::Mptcp];

    /// Whether it is eMPTCP, in whatever reading.
    pub const fn is_emptcp(self) -> bool {
        matches!(self, Self::Emptcp | Self::EmptcpSettled | Self::EmptcpTable)
    }

    /// Whether it is eMPTCP and believes each sample from the first one on.
    pub(super) const fn trusts_first_sample(self) -> bool {
        matches!(self, Self::Emptcp | Self::EmptcpTable)
    }
}

impl FromStr for Policy {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "marline" => Ok(Self::Marline),
            "emptcp" => Ok(Self::Emptcp),
            "emptcp-settled" => Ok(Self::EmptcpSettled),
            "emptcp-table" => Ok(Self::EmptcpTable),
            "wifi-first" => Ok(Self::WifiFirst),
            "mptcp" => Ok(Self::Mptcp),
            _ => Err(UnknownName {
                name: name.to_string(),
                kind: "policy",
                known: "marline, emptcp, emptcp-settled, emptcp-table, wifi-first or mptcp",
            }),
        }
    }
}

impl FromStr for Goal {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "energy" => Ok(Self::Energy),
            "throughput" => Ok(Self::Speed),
            "latency" => Ok(Self::Latency),
            "metered" => Ok(Self::Cost),
            _ => Err(UnknownName {
                name: name.to_string(),
                kind: "profile",
                known: "energy, throughput, latency or metered",
            }),
        }
    }
}
