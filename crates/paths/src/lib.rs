//! The path manager for kernel MPTCP: `marline paths` and `marline run`, for unmodified programs and servers that support MPTCP.
//!
//! Runs the policy of [`marline_core::paths`], a state machine without I/O. Its inputs are the kernel's MPTCP events, counters of subflows
//! (sock_diag), interfaces and their addresses (rtnetlink), and requests of the control socket. Its decisions become
//! commands to the kernel's path manager, entries of a decision log, and replies to each [`DriverQuery`].
//!
//! Main types: [`Job`] says what to manage and [`drive`] runs it. [`HostConfig`](host_config::HostConfig) changes
//! settings of the host and restores them, and a [`Snapshot`] is what `status` shows. [`transparent::Forwarder`]
//! gives MPTCP to connections of programs that use plain TCP, [`gateway::Gateway`] serves the traffic of a LAN, and
//! [`run::start`] turns the TCP sockets of one command into MPTCP sockets.
//!
//! 1. The policy decides and this crate acts: addresses, ports, address ids and the errors of the kernel stay here.
//! 2. A link is identified by the name of its interface. The interface may disappear and come back, and further links
//!    may be added during a run ([`Job::selection`]).
//! 3. Everything that the driver changes on the host at its start (sysctl, source routing) and restores at its end is
//!    behind one trait, [`HostConfigurator`].
//! 4. If an event was lost or the daemon was restarted, the state is rebuilt from the kernel's list of sockets
//!    (sock_diag).
//!
//! Where to start reading: `driver` (the event loop), `kernel` (netlink), [`host_config`] (what is changed on the
//! host), [`doctor`] (what prevents MPTCP here).

mod budgets;
pub mod control;
pub mod doctor;
mod driver;
mod error;
pub mod gateway;
pub mod host_config;
mod kernel;
pub mod restore;
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

/// Parameters of one run of the driver.
pub struct Job {
    /// The policy's configuration. The name of each link is the name of its interface.
    pub config: Config,
    /// How the links were chosen. Interfaces that appear during the run and match are used as well.
    pub selection: LinkSelection,
    /// Data that earlier runs used of each link's budget. `config` contains only the part that remained at the start.
    pub budgets: Budgets,
    /// How commands reach the kernel.
    pub mode: Mode,
    /// Whether links may be used while a VPN has the default route. If not, the policy treats them as down for as long as
    /// the VPN exists; the interfaces themselves stay up.
    pub bypass_vpn: bool,
    /// File of the decision log for `marline replay`; none: no log is written.
    pub decision_log: Option<PathBuf>,
    /// Queries from other tasks. The run continues when all senders are dropped.
    pub queries: mpsc::Receiver<DriverQuery>,
    /// Changes of the host that are applied at the start and restored at the end.
    pub host_config: Box<dyn HostConfigurator>,
}

/// How the decisions of the policy reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Each connection is managed separately: `net.mptcp.path_manager=userspace`.
    #[default]
    Userspace,
    /// All connections of the host are managed alike, through the kernel's own path manager and its list of
    /// endpoints.
    KernelPm,
    /// No command is sent and no privilege is needed: the commands are only reported.
    DryRun,
}

/// A query to a running driver, with the sender of its reply.
#[derive(Debug)]
pub enum DriverQuery {
    /// The current state of links, connections and totals.
    Snapshot(oneshot::Sender<Snapshot>),
    /// The most recent decisions about one connection, in chronological order. `None`: no such connection is open, and
    /// none has ended within the last minute.
    Explain(ConnId, oneshot::Sender<Option<(Connection, Vec<Decision>)>>),
}

/// The changes on the host that a driver needs.
///
/// [`apply`](Self::apply) is called once, before anything else. [`update_routing`](Self::update_routing) is called
/// directly after it, after each change of interfaces, addresses or routes, and every 30 s. [`restore`](Self::restore)
/// is called once at the end, also when the driver ends with an error.
pub trait HostConfigurator {
    /// Changes the settings that a run needs (the path manager's sysctl, for example), and adopts or removes what a
    /// crashed run left behind.
    ///
    /// # Errors
    /// One line that states the problem and the remedy. Nothing is changed in this case.
    fn apply(&mut self, mode: Mode) -> Result<(), PathsError>;

    /// Adds a link to those that are managed. The next [`update_routing`](Self::update_routing) sets up its routing.
    fn add_link(&mut self, _link: &LinkConfig) {}

    /// Adapts the source routing to the current interfaces, addresses and routes. An error on one interface is logged and
    /// does not end the run.
    fn update_routing(&mut self, survey: &InterfaceList);

    /// Limits the packet size over an interface, in bytes, from the next [`update_routing`](Self::update_routing) on.
    /// The limit applies to both directions. A `mtu` of `None` removes it, so that the interface's own MTU applies. The
    /// `reason` is written to the log; it is `None` for a trial of a packet size, which is not logged.
    fn set_mtu(&mut self, _interface: &str, _mtu: Option<u16>, _reason: Option<&str>) {}

    /// Checks whether the settings still have the values that were set, and sets them again if another program has
    /// changed them. Called about once a second, and when the kernel refuses a command because of such a change.
    fn recheck_sysctls(&mut self) {}

    /// Current problems that changes by other programs cause, one sentence each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Writes to the undo log that endpoints will be added to the kernel's path manager or become backups. `existing` lists
    /// its present endpoints, so that they can be restored.
    ///
    /// # Errors
    /// The undo log could not be written. The endpoints must then not be changed, because they could not be restored after
    /// a crash.
    fn record_endpoints(&mut self, _added: &[Endpoint], _existing: &[Endpoint]) -> Result<(), PathsError> {
        Ok(())
    }

    /// Writes to the undo log that the limits of the kernel's path manager will be changed.
    ///
    /// # Errors
    /// The undo log could not be written: the limits must not be changed.
    fn record_limits(&mut self, _previous: Limits, _new_limits: Limits) -> Result<(), PathsError> {
        Ok(())
    }

    /// Whether the driver created the endpoint with this address, in this run or in one that crashed.
    fn is_own_address(&self, _address: IpAddr) -> bool {
        false
    }

    /// Reports what a run without `--dry-run` would do, in one line. Repetitions of the same message are dropped.
    fn report_dry_run(&mut self, _message: &str) {}

    /// Restores everything, including endpoints and limits.
    fn restore(&mut self);
}

/// Changes nothing: for a host whose sysctls and routing are configured already.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHostConfig;

impl HostConfigurator for NoHostConfig {
    fn apply(&mut self, _mode: Mode) -> Result<(), PathsError> {
        Ok(())
    }
    fn update_routing(&mut self, _survey: &InterfaceList) {}
    fn restore(&mut self) {}
}
