//! Testbed for MPTCP: a lab with one of several path managers, and a client that downloads over it.
//!
//! | variant | sockets of the client | path manager |
//! |---|---|---|
//! | `single:LINK` | plain TCP over one link | none |
//! | `mptcp:LINK` | MPTCP | none: only the first link, to measure the cost of the protocol itself |
//! | `mptcp` | MPTCP | the kernel, with an endpoint for each link but the first |
//! | `mptcpd` | MPTCP | the kernel, with the endpoints that mptcpd creates for all addresses |
//! | `wifi-first` | MPTCP | the kernel, with backup endpoints (Raiciu et al.; eMPTCP section 4.6) |
//! | `emptcp`, `marline` | MPTCP | `marline paths` with this policy |
//!
//! 1. Each testbed is fresh: no cached TCP metrics, no learned rates, no open connection.
//! 2. The links start with the download, after the path manager is ready.
//! 3. For published eMPTCP the server keeps its congestion windows in a pause (RFC 2861 off, section 3.6); for all
//!    other variants the setting is unchanged.
//! 4. The energy accounting ends [`SETTLE_TIME`] after the last byte, because closing a connection causes packets
//!    on every subflow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use marline_sim::spec::{LinkEvent, LinkSpec};
use serde_json::Value;

use super::daemon::{DaemonConfig, PathsDaemon};
use super::endpoint;
use super::http_client::{self, DownloadResult, SocketProtocol, StopCondition};
use super::mptcpd::Mptcpd;
use super::web_page::{self, PageResult};
use crate::{Congestion, EmulationReport, Lab, LabError, LabSpec, ServerTcp, Service};

/// Path manager and protocol; see the [module documentation](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathVariant {
    /// Plain TCP over the link with this index.
    SingleLinkTcp(usize),
    /// MPTCP over the first link, without path manager.
    SingleLinkMptcp,
    /// The kernel, with an endpoint for each link but the first.
    KernelMptcp,
    /// mptcpd with its default plugin.
    Mptcpd,
    /// The kernel, with all endpoints as backups.
    WifiFirst,
    /// `marline paths` with this policy and goal.
    Daemon(&'static str, &'static str),
}

impl PathVariant {
    /// eMPTCP as implemented here, following the paper literally.
    pub(crate) const EMPTCP: Self = Self::Daemon("emptcp", "energy");
    /// eMPTCP in other readings of the paper (`marline_core::paths::Policy`).
    pub(crate) const EMPTCP_SETTLED: Self = Self::Daemon("emptcp-settled", "energy");
    pub(crate) const EMPTCP_TABLE: Self = Self::Daemon("emptcp-table", "energy");
    /// marline's policy, for the least energy.
    pub(crate) const MARLINE: Self = Self::Daemon("marline", "energy");
    /// marline's policy, for the highest throughput.
    pub(crate) const MARLINE_THROUGHPUT: Self = Self::Daemon("marline", "speed");

    /// Name in tables.
    pub(crate) fn name(self, links: &[LinkSpec]) -> String {
        match self {
            Self::SingleLinkTcp(at) => format!("single:{}", links.get(at).map_or("?", |link| &link.name)),
            Self::SingleLinkMptcp => format!("mptcp:{}", links.first().map_or("?", |link| &link.name)),
            Self::KernelMptcp => "mptcp".into(),
            Self::Mptcpd => "mptcpd".into(),
            Self::WifiFirst => "wifi-first".into(),
            Self::Daemon("marline", "energy") => "marline".into(),
            Self::Daemon(policy, "energy") => policy.into(),
            // The name of these rows in committed results.
            Self::Daemon(policy, "speed") => format!("{policy} throughput"),
            Self::Daemon(policy, goal) => format!("{policy} {goal}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TestbedConfig<'a> {
    /// The links; the first one is the default route.
    pub(crate) links: &'a [LinkSpec],
    pub(crate) events: &'a [LinkEvent],
    /// Directory or file that the server serves.
    pub(crate) served_file: &'a Path,
    /// Congestion control of server and client.
    pub(crate) congestion: Congestion,
    /// Seed of all random loss.
    pub(crate) seed: u64,
    /// Path of marline's executable.
    pub(crate) program: &'a Path,
    /// File for the daemon's decision log.
    pub(crate) trace: Option<PathBuf>,
}

/// Device model for energy accounting (the device of the eMPTCP paper).
pub(crate) const ENERGY_MODEL: &str = "emptcp-s3";

/// The running testbed; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Testbed {
    // Fields are dropped in this order: the daemon must restore the host configuration before its network goes.
    daemon: Option<PathsDaemon>,
    _mptcpd: Option<Mptcpd>,
    lab: Lab,
    links: Vec<String>,
    variant: PathVariant,
}

impl Testbed {
    /// Builds the lab and starts the path manager.
    pub(crate) fn start(config: &TestbedConfig<'_>, variant: PathVariant) -> Result<Self, LabError> {
        let lab = Lab::start(&LabSpec {
            events: config.events.to_vec(),
            congestion: config.congestion,
            seed: config.seed,
            service: Service::Files(config.served_file.to_path_buf()),
            sender: ServerTcp {
                mptcp: true,
                keeps_cwnd: [PathVariant::EMPTCP, PathVariant::EMPTCP_SETTLED, PathVariant::EMPTCP_TABLE]
                    .contains(&variant),
            },
            ..LabSpec::new(config.links.to_vec())
        })?;
        let links: Vec<String> = config.links.iter().map(|link| link.name.clone()).collect();
        let others: Vec<(usize, &str)> = links.iter().map(String::as_str).enumerate().skip(1).collect();
        let (mut daemon, mut peer) = (None, None);
        match variant {
            PathVariant::SingleLinkTcp(_) | PathVariant::SingleLinkMptcp => {}
            PathVariant::KernelMptcp => endpoint::add_endpoints(&lab, &others, false)?,
            PathVariant::Mptcpd => peer = Some(Mptcpd::start(&lab, links.len())?),
            PathVariant::WifiFirst => endpoint::add_endpoints(&lab, &others, true)?,
            PathVariant::Daemon(policy, profile) => {
                let links = config.links.iter().map(|link| format!("{},kind={}", link.name, link.kind)).collect();
                let configs = DaemonConfig {
                    program: config.program.to_path_buf(),
                    policy,
                    goal: profile,
                    model: ENERGY_MODEL,
                    links,
                    trace: config.trace.clone(),
                };
                daemon = Some(PathsDaemon::start(&lab, configs)?);
            }
        }
        Ok(Self { daemon, _mptcpd: peer, lab, links, variant })
    }

    /// Protocol of the client's sockets.
    pub(crate) fn socket_protocol(&self) -> SocketProtocol<'_> {
        match self.variant {
            PathVariant::SingleLinkTcp(at) => SocketProtocol::Tcp(self.links.get(at).map_or("", String::as_str)),
            _ => SocketProtocol::Mptcp,
        }
    }

    /// Starts the links and downloads. The inner error is a failure of the download, the outer one of the lab.
    pub(crate) fn download(
        &self,
        path: &str,
        until: StopCondition,
    ) -> Result<Result<DownloadResult, String>, LabError> {
        self.lab.start_links()?;
        Ok(self
            .lab
            .run_at_client(|| http_client::download(self.socket_protocol(), path, until))
            .map_err(|error| error.to_string()))
    }

    /// Starts the links and loads the page. The inner error is a failure of the download, the outer one of the lab.
    pub(crate) fn load_page(&self, limit: Duration) -> Result<Result<PageResult, String>, LabError> {
        self.lab.start_links()?;
        Ok(self
            .lab
            .run_at_client(|| web_page::load_page(self.socket_protocol(), limit))
            .map_err(|error| error.to_string()))
    }

    /// Counters of the links since their start, after the connections have been closed.
    pub(crate) fn emulation_report(&self) -> Result<EmulationReport, LabError> {
        std::thread::sleep(SETTLE_TIME);
        self.lab.emulation_report()
    }

    /// The lab of the testbed.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The daemon's PID, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.daemon.as_ref()?.pid()
    }

    /// The lab and the daemon, if there is one.
    pub(crate) const fn lab_and_daemon(&mut self) -> (&Lab, Option<&mut PathsDaemon>) {
        (&self.lab, self.daemon.as_mut())
    }

    /// The daemon's status, if there is a daemon.
    pub(crate) fn daemon_status(&self) -> Option<Value> {
        self.daemon.as_ref()?.status(&self.lab).ok()
    }
}

/// Time for closing connections: several RTTs of the slowest link and the time to empty its queue.
const SETTLE_TIME: Duration = Duration::from_millis(1500);
