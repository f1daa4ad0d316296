//! Configuration of the path management.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::str::FromStr;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::energy::Model;
use crate::link::{LinkId, LinkKind};
use crate::units::{Bitrate, DataSize, Ratio, UnknownName};

/// Everything that influences decisions, apart from events. A decision log begins with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The algorithm that decides.
    pub policy: Policy,
    /// The aim of [`Policy::Marline`]; the published policies only save energy.
    pub goal: Goal,
    /// Radio energy model; links whose kind it does not describe count as free.
    pub energy: Model,
    /// Links available from the start, in the order of their numbers; [`super::Input::LinkAdded`] adds further
    /// ones. Subflows over unknown links are left alone.
    pub links: Vec<LinkConfig>,
    /// κ: bytes, in both directions, that a connection must have carried before another link may be joined (eMPTCP
    /// §3.5, §4.1). The eMPTCP policies count the whole connection; [`Policy::Marline`] counts one response, and only
    /// with the goals of energy and cost.
    pub kappa: DataSize,
    /// τ: time after which another link may be joined although a slow initial link has not carried κ bytes (eMPTCP
    /// §3.5, eq. 1); counts from the same start as κ.
    pub tau: Duration,
    /// Hysteresis of the eMPTCP policies: share by which a rate must be beyond a threshold before the links change
    /// (eMPTCP §3.4). [`Policy::Marline`] has its own in joules.
    pub safety: Ratio,
    /// Assumed throughput of a link that was never used (eMPTCP §3.2).
    pub assumed_rate: Bitrate,
    /// Whether senders on this host keep their subflows' send queues short ([`super::send_gate`]), so that slower
    /// links help uploads.
    #[serde(default)]
    pub short_queues: bool,
    /// Whether the driver executes commands through the kernel's own path manager, which treats all connections
    /// alike and keeps one subflow per link. The policy decides as always; only the search for links that lose
    /// full-sized packets of downloads is off, for lack of a second subflow for comparison.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub kernel_path_manager: bool,
    /// How long a link keeps a lowered MTU before full-sized packets are tried again. Default: 10 minutes.
    #[serde(default = "raise_mtu_after", skip_serializing_if = "is_default_raise_mtu_after")]
    pub raise_mtu_after: Duration,
}

impl Config {
    /// RFC 8899, section 5.1.1: PMTU_RAISE_TIMER.
    const RAISE_MTU_AFTER: Duration = Duration::from_secs(600);

    /// Defaults, with eMPTCP's own values: κ = 1 MB, τ = 3 s, safety factor 10 %, assumed rate 5 Mbit/s.
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

/// One link and the limits of its use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Number of the link.
    pub id: LinkId,
    /// Interface name, for messages.
    pub name: String,
    /// Access technology; selects the radio of the energy model.
    pub kind: LinkKind,
    /// Whether each byte costs money.
    pub metered: bool,
    /// Number of bytes that may pass the interface, in both directions and of all programs, before connections leave
    /// the link; `None`: unlimited. Counts from the moment the machine gets this configuration: a caller that
    /// remembers earlier usage subtracts it first. Other programs' traffic is counted but not stopped.
    pub budget: Option<DataSize>,
}

/// The algorithm that decides which links are used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// marline's own policies, one for each [`Goal`].
    #[default]
    Marline,
    /// eMPTCP read literally (§3), as far as a client of upstream MPTCP can implement it: see `docs/how-it-works/algorithms.md`.
    Emptcp,
    /// eMPTCP, but a path is judged only after slow start and ten samples, as eq. 1 requires of Wi-Fi.
    EmptcpSettled,
    /// eMPTCP read literally, with LTE alone where the first column of Table 2 calls for it (§3.3; §3.4 leaves that
    /// out).
    EmptcpTable,
    /// "MPTCP with WiFi First" (Raiciu et al.; eMPTCP §4.6): all links but the initial one are backups from the
    /// start.
    WifiFirst,
    /// The kernel's default behavior: every link joins at once, nothing is suspended.
    Mptcp,
}

/// The aim of [`Policy::Marline`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// The least energy for the expected transfer.
    #[default]
    Energy,
    /// The highest throughput, never less than that of the best single link.
    #[serde(alias = "throughput")]
    Speed,
    /// The path with the shortest RTT, with the others established as backups.
    Latency,
    /// The fewest bytes over metered links: they are used only when no other link works.
    #[serde(alias = "metered")]
    Cost,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] =
        [Self::Marline, Self::Emptcp, Self::EmptcpSettled, Self::EmptcpTable, Self::WifiFirst, Self::Mptcp];

    /// Whether it is one of the readings of eMPTCP.
    pub const fn is_emptcp(self) -> bool {
        matches!(self, Self::Emptcp | Self::EmptcpSettled | Self::EmptcpTable)
    }

    /// Whether it is a literal reading of eMPTCP, in which every sample counts from the first one on.
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

impl Goal {
    /// The name of the goal on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Speed => "speed",
            Self::Latency => "latency",
            Self::Cost => "cost",
        }
    }
}

impl FromStr for Goal {
    type Err = UnknownName;
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "energy" => Ok(Self::Energy),
            "speed" => Ok(Self::Speed),
            "latency" => Ok(Self::Latency),
            "cost" => Ok(Self::Cost),
            _ => Err(UnknownName { name: name.to_string(), kind: "goal", known: "speed, latency, energy or cost" }),
        }
    }
}
