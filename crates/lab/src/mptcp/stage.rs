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

use marline_sim::spec::{Event, LinkSpec};
use serde_json::Value;

use super::daemon::{Daemon, Settings};
use super::endpoint;
use super::fetch::{self, Got, Speaks, Until};
use super::page::{self, Loaded};
use super::peer::Mptcpd;
use crate::{Congestion, Emulation, Lab, LabError, LabSpec, Sender, Service};

/// Who decides. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// TCP over the link with this place.
    Single(usize),
    /// Nobody: MPTCP over the first link.
    Alone,
    /// The kernel.
    Mptcp,
    /// mptcpd, as distributions have it.
    Mptcpd,
    /// The kernel, all but the first link being backups.
    WifiFirst,
    /// The daemon: a policy and a profile.
    Daemon(&'static str, &'static str),
}

impl Who {
    /// Our re-implementation of eMPTCP, read literally.
    pub(crate) const EMPTCP: Self = Self::Daemon("emptcp", "energy");
    /// Its other readings (`marline_core::paths::Policy`).
    pub(crate) const SETTLED: Self = Self::Daemon("emptcp-settled", "energy");
    pub(crate) const TABLE: Self = Self::Daemon("emptcp-table", "energy");
    /// Ours.
    pub(crate) const MARLINE: Self = Self::Daemon("marline", "energy");
    /// Ours, for the most bytes a second.
    pub(crate) const THROUGHPUT: Self = Self::Daemon("marline", "throughput");

    /// As tables name it.
    pub(crate) fn name(self, links: &[LinkSpec]) -> String {
        match self {
            Self::Single(at) => format!("single:{}", links.get(at).map_or("?", |link| &link.name)),
            Self::Alone => format!("mptcp:{}", links.first().map_or("?", |link| &link.name)),
            Self::Mptcp => "mptcp".into(),
            Self::Mptcpd => "mptcpd".into(),
            Self::WifiFirst => "wifi-first".into(),
            Self::Daemon("marline", "energy") => "marline".into(),
            Self::Daemon(policy, "energy") => policy.into(),
            Self::Daemon(policy, profile) => format!("{policy} {profile}"),
        }
    }
}

/// Where it happens.
#[derive(Clone, Debug)]
pub(crate) struct Scene<'a> {
    /// The first one is the default route.
    pub(crate) links: &'a [LinkSpec],
    /// What happens to them.
    pub(crate) events: &'a [Event],
    /// The directory or file that is served.
    pub(crate) served: &'a Path,
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
pub(crate) const DEVICE: &str = "emptcp-s3";

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Stage {
    // Dropped in this order: the daemon puts back what it changed, then its network goes.
    daemon: Option<Daemon>,
    _peer: Option<Mptcpd>,
    lab: Lab,
    links: Vec<String>,
    who: Who,
}

impl Stage {
    /// Builds it.
    pub(crate) fn start(scene: &Scene<'_>, who: Who) -> Result<Self, LabError> {
        let lab = Lab::start(&LabSpec {
            events: scene.events.to_vec(),
            congestion: scene.congestion,
            seed: scene.seed,
            service: Service::Files(scene.served.to_path_buf()),
            sender: Sender { mptcp: true, keeps_window: [Who::EMPTCP, Who::SETTLED, Who::TABLE].contains(&who) },
            ..LabSpec::new(scene.links.to_vec())
        })?;
        let links: Vec<String> = scene.links.iter().map(|link| link.name.clone()).collect();
        let others: Vec<(usize, &str)> = links.iter().map(String::as_str).enumerate().skip(1).collect();
        let (mut daemon, mut peer) = (None, None);
        match who {
            Who::Single(_) | Who::Alone => {}
            Who::Mptcp => endpoint::join_over(&lab, &others, false)?,
            Who::Mptcpd => peer = Some(Mptcpd::start(&lab, links.len())?),
            Who::WifiFirst => endpoint::join_over(&lab, &others, true)?,
            Who::Daemon(policy, profile) => {
                let links = scene.links.iter().map(|link| format!("{},kind={}", link.name, link.kind)).collect();
                let settings = Settings {
                    program: scene.program.to_path_buf(),
                    policy,
                    profile,
                    model: DEVICE,
                    links,
                    trace: scene.trace.clone(),
                };
                daemon = Some(Daemon::start(&lab, settings)?);
            }
        }
        Ok(Self { daemon, _peer: peer, lab, links, who })
    }

    /// What the client's sockets speak.
    pub(crate) fn speaks(&self) -> Speaks<'_> {
        match self.who {
            Who::Single(at) => Speaks::Tcp(self.links.get(at).map_or("", String::as_str)),
            _ => Speaks::Mptcp,
        }
    }

    /// Downloads; the links' clock begins now.
    pub(crate) fn download(&self, path: &str, until: Until) -> Result<Result<Got, String>, LabError> {
        self.lab.begin()?;
        Ok(self.lab.inside(|| fetch::download(self.speaks(), path, until)).map_err(|error| error.to_string()))
    }

    /// Loads the page; the links' clock begins now.
    pub(crate) fn page(&self, limit: Duration) -> Result<Result<Loaded, String>, LabError> {
        self.lab.begin()?;
        Ok(self.lab.inside(|| page::load(self.speaks(), limit)).map_err(|error| error.to_string()))
    }

    /// What the links did since then, once the ends of connections have passed.
    pub(crate) fn emulation(&self) -> Result<Emulation, LabError> {
        std::thread::sleep(SETTLING);
        self.lab.emulation()
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
    pub(crate) const fn parts(&mut self) -> (&Lab, Option<&mut Daemon>) {
        (&self.lab, self.daemon.as_mut())
    }

    /// What the daemon says of itself.
    pub(crate) fn said(&self) -> Option<Value> {
        self.daemon.as_ref()?.status(&self.lab).ok()
    }
}

/// The ends of connections: several round trips of the slowest link, and a drain of its queue.
const SETTLING: Duration = Duration::from_millis(1500);
