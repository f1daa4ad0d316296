//! The path manager for kernel MPTCP: `marline paths` and `marline run`, for unmodified programs and servers.
//!
//! The policy of [`marline_core::paths`] is driven by the kernel's MPTCP events, counters of subflows (sock_diag),
//! interfaces and their addresses (rtnetlink), and requests of the control socket. Its decisions become commands to the
//! kernel's path manager, a decision log, and answers to each [`Ask`].
//!
//! Main types: [`Job`] says what to manage, [`drive`] does it, [`Host`](host_config::Host) changes the host's settings and puts
//! them back, [`Snapshot`] is what a status shows, [`transparent::Forwarder`] gives MPTCP to connections of programs that do not
//! speak it, and [`gateway::Gateway`] takes the traffic of a LAN.
//!
//! 1. The policy decides, this crate acts: addresses, ports, address ids and the kernel's refusals stay here.
//! 2. A link is the interface of its name. Its interface may go and come back, and further links may come ([`Job::choice`]).
//! 3. What the driver needs of the host before it begins (sysctl, source routing) and puts back at its end is one value
//!    behind one trait, [`Ground`].
//! 4. Whatever was lost (an event, the daemon itself) is found again in the kernel's own list of sockets.
//!
//! Where to start reading: `driver` (the event loop), `kernel` (netlink), [`host_config`] (what is changed on the host),
//! [`doctor`] (what prevents MPTCP here).

mod budgets;
pub mod control;
pub mod doctor;
mod driver;
mod error;
pub mod gateway;
pub mod host_config;
mod kernel;
pub mod run;
mod shared_policy;
mod snapshot;
pub mod status;
pub mod subflow_limit;
pub mod transparent;

use std::net::IpAddr;
use std::path::PathBuf;

use marline_core::paths::{Config, ConnId, LinkConfig};
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};
use marline_net::links::{InterfaceList, LinkSelection};
use tokio::sync::{mpsc, oneshot};

pub use budgets::Budgets;
pub use driver::{PathsRecord, Policy, drive};
pub use error::PathsError;
pub use shared_policy::SharedPolicy;
pub use snapshot::{Connection, Decision, LinkState, Management, Snapshot, SubflowState, Totals};

/// What one run of the driver needs.
pub struct Job {
    /// The policy's configuration. The name of each link is the name of its interface.
    pub config: Config,
    /// How its links were chosen: what comes while it runs and would have been chosen is used as well.
    pub selection: LinkSelection,
    /// What was used of its links' budgets before; the configuration's are what is left of them.
    pub budgets: Budgets,
    /// How the kernel is told.
    pub mode: Mode,
    /// Links may be used beside a VPN that is the host's way to the Internet; otherwise they are down while there is one.
    pub bypass_vpn: bool,
    /// Where the log of `marline replay` goes; none: nowhere.
    pub decision_log: Option<PathBuf>,
    /// What others ask; once all senders are gone nobody asks any more, which ends nothing.
    pub queries: mpsc::Receiver<DriverQuery>,
    /// What is laid before the driver begins and taken up when it ends.
    pub host_config: Box<dyn HostConfigurator>,
}

/// How the kernel is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Each connection by itself: `net.mptcp.path_manager=userspace`.
    #[default]
    Userspace,
    /// All connections of the host alike, by the kernel's own path manager and its list of endpoints.
    KernelPm,
    /// Nothing is told and no privilege is needed: what would be done is noted.
    DryRun,
}

/// What others ask of a running driver.
#[derive(Debug)]
pub enum DriverQuery {
    /// How everything stands.
    Snapshot(oneshot::Sender<Snapshot>),
    /// The newest decisions about one connection, oldest first; none: there is no such connection.
    Explain(ConnId, oneshot::Sender<Option<(Connection, Vec<Decision>)>>),
}

/// The host as the driver needs it.
///
/// [`lay`](Ground::lay) is called once before anything else; [`follow`](Ground::follow) once directly after it and again
/// after each change of interfaces, addresses or routes; [`restore`](Ground::restore) once at the end, also when the
/// driver ends with an error.
pub trait HostConfigurator {
    /// Sets what a run needs (the path manager's sysctl, for one), and what an earlier run left behind first.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do; nothing is changed then.
    fn apply(&mut self, mode: Mode) -> Result<(), PathsError>;

    /// There is one more link; the next [`follow`](Ground::follow) is to give it what it needs.
    fn add_link(&mut self, _link: &LinkConfig) {}

    /// Makes the source routing fit the interfaces. Trouble with one of them is told and does not end the run.
    fn update_routing(&mut self, survey: &InterfaceList);

    /// The largest packets that are to be sent and accepted over an interface (in bytes) from the next
    /// [`follow`](Ground::follow) on; none: those of the interface itself. The reason is a line for the log; none: it is only
    /// being tried.
    fn set_mtu(&mut self, _interface: &str, _mtu: Option<u16>, _reason: Option<&str>) {}

    /// Looks whether what was laid is still so, and puts back what somebody else has changed: about once a second, and when
    /// the kernel refuses a command because it is not.
    fn recheck_sysctls(&mut self) {}

    /// What stands in the way of something because somebody else changed it, a sentence each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Endpoints are about to be added to the kernel's own path manager, or made backups; `there` are those that it has.
    ///
    /// # Errors
    /// They could not be put back after a crash: then nothing may be done.
    fn record_endpoints(&mut self, _added: &[Endpoint], _existing: &[Endpoint]) -> Result<(), PathsError> {
        Ok(())
    }

    /// Its limits are about to be set.
    ///
    /// # Errors
    /// They could not be put back after a crash: then they may not be set.
    fn record_limits(&mut self, _previous: Limits, _new_limits: Limits) -> Result<(), PathsError> {
        Ok(())
    }

    /// Whether an endpoint on this address would be the driver's own, of this run or of one that crashed.
    fn is_own_address(&self, _address: IpAddr) -> bool {
        false
    }

    /// A dry run would do this, one line; said once for as long as it stays the same.
    fn report_dry_run(&mut self, _message: &str) {}

    /// Puts everything back, endpoints and limits too.
    fn restore(&mut self);
}

/// A host that is left as it is, because somebody else has laid the ground.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHostConfig;

impl HostConfigurator for NoHostConfig {
    fn apply(&mut self, _mode: Mode) -> Result<(), PathsError> {
        Ok(())
    }
    fn update_routing(&mut self, _survey: &InterfaceList) {}
    fn restore(&mut self) {}
}
