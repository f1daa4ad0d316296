//! A lab in which somebody decides over the paths of MPTCP connections, and a client that uses them.
//!
//! In: links, what is served, who decides. Out: a place in which to download; then joules, packets and what the daemon
//! says.
//!
//! | who | the client's sockets | who decides |
//! |---|---|---|
//! | `single:LINK` | plain TCP over one link | nobody |
//! | `mptcp:LINK` | MPTCP | nobody: the first link alone, to see what the protocol itself costs |
//! | `mptcp` | MPTCP | the kernel, with an endpoint for each link but the first |
//! | `mptcpd` | MPTCP | the kernel, with the endpoints that mptcpd makes of all addresses |
//! | `wifi-first` | MPTCP | the kernel, with endpoints that are backups (Raiciu et al.; eMPTCP §4.6) |
//! | `emptcp`, `marline` | MPTCP | `marline paths`, with this policy |
//!
//! 1. Everything is fresh: no metrics of TCP, no learnt rates, no warm connection.
//! 2. The links' clock begins with the download, when whoever decides is ready.
//! 3. Published eMPTCP's server does not halve windows in a pause (RFC 2861 off, §3.6); everybody else's is left as it is.
//! 4. The account is closed a while after the last byte: the end of a connection has packets of its own, on every subflow.

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

/// Who decides. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathVariant {
    /// TCP over the link with this place.
    SingleLinkTcp(usize),
    /// Nobody: MPTCP over the first link.
    SingleLinkMptcp,
    /// The kernel.
    KernelMptcp,
    /// mptcpd, as distributions have it.
    Mptcpd,
    /// The kernel, all but the first link being backups.
    WifiFirst,
    /// The daemon: a policy and a profile.
    Daemon(&'static str, &'static str),
}

impl PathVariant {
    /// Our re-implementation of eMPTCP, read literally.
    pub(crate) const EMPTCP: Self = Self::Daemon("emptcp", "energy");
    /// Its other readings (`marline_core::paths::Policy`).
    pub(crate) const EMPTCP_SETTLED: Self = Self::Daemon("emptcp-settled", "energy");
    pub(crate) const EMPTCP_TABLE: Self = Self::Daemon("emptcp-table", "energy");
    /// Ours.
    pub(crate) const MARLINE: Self = Self::Daemon("marline", "energy");
    /// Ours, for the most bytes a second.
    pub(crate) const MARLINE_THROUGHPUT: Self = Self::Daemon("marline", "speed");

    /// As tables name it.
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

/// Where it happens.
#[derive(Clone, Debug)]
pub(crate) struct TestbedConfig<'a> {
    /// The first one is the default route.
    pub(crate) links: &'a [LinkSpec],
    /// What happens to them.
    pub(crate) events: &'a [LinkEvent],
    /// The directory or file that is served.
    pub(crate) served_file: &'a Path,
    /// The server's.
    pub(crate) congestion: Congestion,
    /// Decides every loss.
    pub(crate) seed: u64,
    /// marline's executable.
    pub(crate) program: &'a Path,
    /// The file for the daemon's log.
    pub(crate) trace: Option<PathBuf>,
}

/// The device whose radios are paid for (eMPTCP's).
pub(crate) const ENERGY_MODEL: &str = "emptcp-s3";

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Testbed {
    // Dropped in this order: the daemon puts back what it changed, then its network goes.
    daemon: Option<PathsDaemon>,
    _mptcpd: Option<Mptcpd>,
    lab: Lab,
    links: Vec<String>,
    variant: PathVariant,
}

impl Testbed {
    /// Builds it.
    pub(crate) fn start(config: &TestbedConfig<'_>, who: PathVariant) -> Result<Self, LabError> {
        let lab = Lab::start(&LabSpec {
            events: config.events.to_vec(),
            congestion: config.congestion,
            seed: config.seed,
            service: Service::Files(config.served_file.to_path_buf()),
            sender: ServerTcp {
                mptcp: true,
                keeps_cwnd: [PathVariant::EMPTCP, PathVariant::EMPTCP_SETTLED, PathVariant::EMPTCP_TABLE]
                    .contains(&who),
            },
            ..LabSpec::new(config.links.to_vec())
        })?;
        let links: Vec<String> = config.links.iter().map(|link| link.name.clone()).collect();
        let others: Vec<(usize, &str)> = links.iter().map(String::as_str).enumerate().skip(1).collect();
        let (mut daemon, mut peer) = (None, None);
        match who {
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
        Ok(Self { daemon, _mptcpd: peer, lab, links, variant: who })
    }

    /// What the client's sockets speak.
    pub(crate) fn socket_protocol(&self) -> SocketProtocol<'_> {
        match self.variant {
            PathVariant::SingleLinkTcp(at) => SocketProtocol::Tcp(self.links.get(at).map_or("", String::as_str)),
            _ => SocketProtocol::Mptcp,
        }
    }

    /// Downloads; the links' clock begins now.
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

    /// Loads the page; the links' clock begins now.
    pub(crate) fn load_page(&self, limit: Duration) -> Result<Result<PageResult, String>, LabError> {
        self.lab.start_links()?;
        Ok(self
            .lab
            .run_at_client(|| web_page::load_page(self.socket_protocol(), limit))
            .map_err(|error| error.to_string()))
    }

    /// What the links did since then, once the ends of connections have passed.
    pub(crate) fn emulation_report(&self) -> Result<EmulationReport, LabError> {
        std::thread::sleep(SETTLE_TIME);
        self.lab.emulation_report()
    }

    /// The lab.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The daemon's pid.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.daemon.as_ref()?.pid()
    }

    /// The lab and the daemon, if there is one.
    pub(crate) const fn lab_and_daemon(&mut self) -> (&Lab, Option<&mut PathsDaemon>) {
        (&self.lab, self.daemon.as_mut())
    }

    /// What the daemon says of itself.
    pub(crate) fn daemon_status(&self) -> Option<Value> {
        self.daemon.as_ref()?.status(&self.lab).ok()
    }
}

/// The ends of connections: several round trips of the slowest link, and a drain of its queue.
const SETTLE_TIME: Duration = Duration::from_millis(1500);
