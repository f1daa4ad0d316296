//! Host configuration of a run: changes settings and source routing, ensures that only one daemon does so, and
//! restores everything afterwards.
//!
//! [`HostConfig`] implements the driver's [`HostConfigurator`] for a mode, the links and a run directory.
//!
//! ```text
//!   lock ──▶ check ──▶ undo log ──▶ settings ──▶ rules, routes ◀──▶ follow each change
//!     │        │                                     │
//!     │        └ problem: one line, nothing changed  ▼
//!     └◀──────────────────────────────────────── everything restored, undo log removed
//!
//!   kill -9 anywhere ──▶ at the next start: the undo log has the previous settings,
//!                        the kernel lists marline's rules and routes
//! ```
//!
//! 1. Everything is checked before anything is changed.
//! 2. Settings are recorded before they are changed, and the record is removed after they were restored (`undo_log`).
//!    Rules and routes carry a mark instead (`source_routing`).
//! 3. Changes by other programs are reverted, a limited number of times (`route_repair`, `sysctl_repair`).
//! 4. A start after a crash adopts what the crashed run left and still fits, without an effect on connections.

#[cfg(test)]
mod crash;
mod dry_run;
mod endpoints;
mod event_listeners;
pub(super) mod forwarding;
mod instance_lock;
#[cfg(test)]
mod netns_tests;
mod route_repair;
mod source_routing;
mod sysctl;
mod sysctl_repair;
mod undo_log;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use marline_core::paths::LinkConfig;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};
use marline_net::run_dir::RunDir;

pub use dry_run::DryRun;
pub use event_listeners::EventListener;
pub(super) use event_listeners::{event_group, event_listeners, other_path_manager};
pub use instance_lock::{InstanceLock, InstanceLockError, Role};
pub use source_routing::RoutedLinks;
pub(super) use source_routing::exit_interface;
pub(super) use sysctl::{MPTCP_ENABLED, PATH_MANAGER, PM_TYPE, Sysctls};

use marline_net::links::InterfaceList;

#[cfg(test)]
use self::crash::crash_point;
use self::route_repair::RouteRepairLimiter;
use self::source_routing::KernelRouting;
use self::sysctl_repair::HeldSysctl;
use self::undo_log::{UndoLog, netns_inode};
use super::kernel::PathManager;
use super::{HostConfigurator, Mode, PathsError};

/// Default run directory: control sockets, lock files and undo logs.
pub const RUN_DIR: &str = "/run/marline";

/// Configuration of this host for one run. Dropping it restores everything that
/// [`restore`](HostConfigurator::restore) has not restored.
pub struct HostConfig {
    run_dir: PathBuf,
    routed_links: RoutedLinks,
    notify: Box<dyn FnMut(&str)>,
    undo_log: Option<UndoLog>,
    route_repair: RouteRepairLimiter,
    /// MTUs of links, by interface name, where larger packets are lost on the path.
    mtus: BTreeMap<String, u16>,
    /// Settings that must keep their values during the run.
    held_sysctls: Vec<HeldSysctl>,
    /// Routing errors of the last update, so that each is reported once.
    last_errors: Vec<String>,
    _lock: InstanceLock,
}

impl HostConfig {
    /// Creates the configuration for these links. The lock proves that no other daemon runs. `notify` receives lines
    /// about changes and errors.
    pub fn new(
        lock: InstanceLock,
        run_dir: &Path,
        routed_links: RoutedLinks,
        notify: Box<dyn FnMut(&str)>,
    ) -> Self {
        let run_dir = run_dir.to_owned();
        let (route_repair, mtus, held_sysctls, last_errors) =
            (RouteRepairLimiter::default(), BTreeMap::new(), Vec::new(), Vec::new());
        Self {
            run_dir,
            routed_links,
            notify,
            undo_log: None,
            route_repair,
            mtus,
            held_sysctls,
            last_errors,
            _lock: lock,
        }
    }

    fn notify_all(&mut self, messages: impl IntoIterator<Item = String>) {
        for message in messages {
            (self.notify)(&message);
        }
    }
}

impl HostConfigurator for HostConfig {
    fn apply(&mut self, mode: Mode) -> Result<(), PathsError> {
        let Preflight { sysctls, mut undo_log, is_abandoned } = preflight(&self.run_dir, mode)?;
        match sysctls.apply(mode, is_abandoned, &mut undo_log) {
            Ok(messages) => self.notify_all(messages),
            Err((name, error)) => {
                let (_, errors) = sysctls.restore(&mut undo_log);
                self.notify_all(errors);
                return Err(if name.is_empty() { undo_log_error(error) } else { sysctl_error(&name, &error) });
            }
        }
        // A crashed run may have diverted connections to a forwarder, which this run does not have or will set up
        // again.
        if let Err(error) = KernelRouting::open().and_then(|routing| routing.clear_policy_route()) {
            self.notify_all([format!("cannot remove the policy route of a crashed run: {error}")]);
        }
        if mode != Mode::KernelPm {
            // Endpoints of a crashed run, which this mode does not use.
            let (messages, errors) = endpoints::restore(&mut undo_log);
            self.notify_all(messages.into_iter().chain(errors));
        }
        // From now on `recheck_sysctls` keeps these values, and `restore` undoes all changes.
        self.held_sysctls = sysctls_to_hold(&sysctls, mode, &undo_log);
        self.undo_log = Some(undo_log);
        Ok(())
    }

    fn recheck_sysctls(&mut self) {
        if self.undo_log.is_none() {
            return;
        }
        let (sysctls, now) = (Sysctls::of_system(), Instant::now());
        let messages = self.held_sysctls.iter_mut().filter_map(|sysctl| recheck_sysctl(&sysctls, sysctl, now));
        let messages: Vec<String> = messages.collect();
        self.notify_all(messages);
    }

    fn notes(&self) -> Vec<String> {
        self.held_sysctls.iter().filter_map(HeldSysctl::note).collect()
    }

    fn record_endpoints(&mut self, added: &[Endpoint], existing: &[Endpoint]) -> Result<(), PathsError> {
        self.undo_log
            .as_mut()
            .map_or(Ok(()), |undo_log| endpoints::record_endpoints(undo_log, added, existing))
            .map_err(undo_log_error)
    }

    fn record_limits(&mut self, previous: Limits, new: Limits) -> Result<(), PathsError> {
        self.undo_log
            .as_mut()
            .map_or(Ok(()), |undo_log| endpoints::record_limits(undo_log, previous, new))
            .map_err(undo_log_error)
    }

    fn is_own_address(&self, address: IpAddr) -> bool {
        let entries =
            self.undo_log.as_ref().map(|undo_log| undo_log.changes().endpoints.as_slice()).unwrap_or_default();
        entries.iter().any(|entry| entry.address == address && entry.previous_backup.is_none())
    }

    fn add_link(&mut self, link: &LinkConfig) {
        self.routed_links.links.push(link.name.clone());
        let metered_text = if link.metered { ", metered" } else { "" };
        (self.notify)(&format!("{} ({}{metered_text}) appeared, and is used from now on", link.name, link.kind));
    }

    fn set_mtu(&mut self, interface: &str, mtu: Option<u16>, reason: Option<&str>) {
        match mtu {
            Some(mtu) => drop(self.mtus.insert(interface.to_owned(), mtu)),
            None => drop(self.mtus.remove(interface)),
        }
        let Some(reason) = reason else { return };
        (self.notify)(&match mtu {
            None => reason.to_owned(),
            Some(_) => format!(
                "{reason}; `ip link set {interface} mtu …` sets the right MTU permanently, and `marline paths doctor --probe \
                 HOST:PORT` finds it"
            ),
        });
    }

    fn update_routing(&mut self, survey: &InterfaceList) {
        if self.undo_log.is_none() {
            return;
        }
        let apply =
            |routing: KernelRouting| routing.apply(&self.routed_links, survey, &self.mtus, &mut self.route_repair);
        let errors = match KernelRouting::open().and_then(apply) {
            Ok(errors) => errors,
            Err(error) => vec![format!("cannot read the kernel's rules and routes: {error}")],
        };
        let new_errors: Vec<String> =
            errors.iter().filter(|error| !self.last_errors.contains(error)).cloned().collect();
        self.notify_all(new_errors);
        self.last_errors = errors;
    }

    fn restore(&mut self) {
        if let Some(mut undo_log) = self.undo_log.take() {
            let (_, errors) = restore_all(&mut undo_log);
            self.notify_all(errors);
        }
    }
}

impl Drop for HostConfig {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Settings to hold during the run: the path manager, and `net.mptcp.enabled` if the run has switched it on.
fn sysctls_to_hold(sysctls: &Sysctls, mode: Mode, undo_log: &UndoLog) -> Vec<HeldSysctl> {
    let (name, value) = sysctls.path_manager_setting(mode);
    let enabled_entry = undo_log.changes().settings.iter().find(|entry| entry.name == MPTCP_ENABLED);
    let enabled_entry = enabled_entry.map(|entry| HeldSysctl::new(MPTCP_ENABLED, entry.value.clone()));
    std::iter::once(HeldSysctl::new(name, value.to_owned())).chain(enabled_entry).collect()
}

/// Checks a held setting and writes it again if that is permitted. Returns a line to report, if any.
fn recheck_sysctl(sysctls: &Sysctls, sysctl: &mut HeldSysctl, now: Instant) -> Option<String> {
    let current = sysctls.read(sysctl.name)?;
    if current == sysctl.value {
        return sysctl.on_correct();
    }
    match sysctl.on_changed(now, &current) {
        Ok(()) => Some(match sysctls.write(sysctl.name, &sysctl.value) {
            Ok(()) => sysctl.on_repaired(now, &current),
            Err(error) => sysctl.give_up(&current, &format!("it cannot be restored ({error})")),
        }),
        Err(message) => message,
    }
}

/// Checks whether a run can start: kernel, privilege, settings, other path managers. Changes nothing. Returns a line
/// for the user if a program has ended and left the path manager set to userspace.
///
/// # Errors
/// One line that states the obstacle.
pub fn check(run_dir: &Path, mode: Mode) -> Result<Option<String>, PathsError> {
    preflight(run_dir, mode).map(|Preflight { sysctls, is_abandoned, .. }| {
        let (name, kernel_value) = sysctls.path_manager_setting(Mode::KernelPm);
        is_abandoned.then(|| {
            format!(
                "{name}: set to userspace, but no program listens: probably a `marline paths` with another run \
                 directory was killed; {kernel_value}, the kernel's default, is set at the end, and `marline paths \
                 restore --run-dir DIR` with that directory restores what else it had changed"
            )
        })
    })
}

/// Result of a successful preflight check.
struct Preflight {
    sysctls: Sysctls,
    undo_log: UndoLog,
    /// The path manager is set to userspace by a program that has ended.
    is_abandoned: bool,
}

fn preflight(run_dir: &Path, mode: Mode) -> Result<Preflight, PathsError> {
    let sysctls = Sysctls::of_system();
    if !sysctls.has_mptcp() {
        return Err(PathsError::NoMptcp(io::ErrorKind::NotFound.into()));
    }
    if !has_net_admin() {
        return Err(PathsError::NotPermitted { operation: "managing paths in this network namespace".to_owned() });
    }
    let undo_log = UndoLog::open(run_dir).map_err(undo_log_error)?;
    // A value that a crashed run of marline set is no sign of another program.
    let is_own_setting =
        undo_log.changes().settings.iter().any(|entry| [PATH_MANAGER, PM_TYPE].contains(&entry.name.as_str()));
    let userspace = sysctls.is_userspace() && !is_own_setting;
    let listeners = event_listeners();
    if let Some(daemon) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Err(PathsError::HostConfig(InstanceLockError::AlreadyHeld(daemon.process).to_string()));
    }
    if let Some(other_manager) = other_path_manager(&listeners, userspace) {
        return Err(PathsError::HostConfig(format!(
            "another path manager is active: {}; stop it first (`marline paths doctor` shows how)",
            other_manager.describe()
        )));
    }
    sysctls.check_applicable(mode).map_err(|(name, error)| sysctl_error(name, &error))?;
    // If it cannot be written, an administrator has set it from outside for this run.
    let is_abandoned = userspace && sysctls.is_writable(sysctls.path_manager_setting(mode).0);
    Ok(Preflight { sysctls, undo_log, is_abandoned })
}

/// A running `marline paths` daemon of this network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningDaemon {
    /// Its process id, if this user may see it.
    pub process: Option<u32>,
}

impl std::fmt::Display for RunningDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("`marline paths`")?;
        self.process.map_or(Ok(()), |process| write!(f, " (process {process})"))
    }
}

/// Finds the daemon of this network namespace: the one that listens to the kernel's events, whatever its run
/// directory, or the holder of the instance lock. An unprivileged user may not see the owner of a listening netlink
/// socket. In that case an unknown listener together with a listening control socket, in this run directory or the
/// default one, counts as a daemon: listening to the events takes CAP_NET_ADMIN.
pub(super) fn find_daemon(run_dir: &Path, listeners: &[EventListener]) -> Option<RunningDaemon> {
    if let Some(listener) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Some(RunningDaemon { process: listener.process });
    }
    let holder = InstanceLock::holder(run_dir, Role::Paths).map(|process| RunningDaemon { process: Some(process) });
    holder.or_else(|| {
        let has_unknown = listeners.iter().any(|listener| listener.name.is_empty());
        let sockets = has_unknown.then(|| std::fs::read_to_string("/proc/thread-self/net/unix").ok()).flatten()?;
        let is_listening = |run_dir: &Path| has_listening_socket(&sockets, &socket_path(run_dir));
        (is_listening(run_dir) || is_listening(Path::new(RUN_DIR))).then_some(RunningDaemon { process: None })
    })
}

/// Whether a unix socket listens at this path, by the kernel's list (proc_pid_net(5)), in which only the path
/// contains slashes.
fn has_listening_socket(sockets: &str, path: &Path) -> bool {
    sockets.lines().any(|line| {
        line.find('/')
            .and_then(|path_text| line.get(path_text..))
            .is_some_and(|path_text| Path::new(path_text) == path)
    })
}

/// Result of restoring the host.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RestoreResult {
    /// Restored items, one line each.
    pub restored: Vec<String>,
    /// Items that remain, with the reason or the next step, one line each.
    pub remaining: Vec<String>,
}

/// Restores what a crashed run has changed for its links.
///
/// # Errors
/// A daemon runs, which restores everything itself when it stops; or nothing can be restored.
pub(super) fn restore(run_dir: &Path) -> Result<RestoreResult, PathsError> {
    let running_error = |process: Option<u32>| {
        let process = process.map(|process| format!(" (process {process})")).unwrap_or_default();
        PathsError::HostConfig(format!(
            "a `marline paths`{process} is running: stop it, and it restores everything itself"
        ))
    };
    let _lock = InstanceLock::acquire(run_dir, Role::Paths).map_err(|error| match error {
        InstanceLockError::AlreadyHeld(process) => running_error(process),
        error => error.into(),
    })?;
    let listeners = event_listeners();
    if let Some(daemon) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Err(running_error(daemon.process));
    }
    // With the lock held, and no listening daemon of another run directory, nothing changes the host concurrently.
    let mut undo_log = UndoLog::open(run_dir).map_err(undo_log_error)?;
    let (restored, mut remaining) = restore_all(&mut undo_log);
    // No process listens at this socket: it would hold the lock.
    let _ = std::fs::remove_file(socket_path(run_dir));
    let sysctls = Sysctls::of_system();
    let ((name, value), (_, kernel_value)) =
        (sysctls.path_manager_setting(Mode::Userspace), sysctls.path_manager_setting(Mode::KernelPm));
    // If it cannot be written, it was set from outside for a future run.
    let is_abandoned =
        sysctls.is_userspace() && other_path_manager(&listeners, true).is_none() && sysctls.is_writable(name);
    if remaining.is_empty() && is_abandoned {
        remaining.push(format!(
            "{name}: still {value}, although no program listens, and {} has no undo log with the previous value: a run with another \
             run directory is undone by `marline paths restore --run-dir DIR`, anything else by `sysctl -w {name}={kernel_value}`",
            run_dir.display()
        ));
    }
    Ok(RestoreResult { restored, remaining })
}

/// Restores endpoints, settings, rules and routes. Returns lines about restored items, and errors.
fn restore_all(undo_log: &mut UndoLog) -> (Vec<String>, Vec<String>) {
    let (mut restored, mut errors) = endpoints::restore(undo_log);
    let sysctls = Sysctls::of_system().restore(undo_log);
    restored.extend(sysctls.0);
    errors.extend(sysctls.1);
    match KernelRouting::open().and_then(|routing| routing.clear()) {
        Ok((0, routing_errors)) => errors.extend(routing_errors),
        Ok((count, routing_errors)) => {
            restored.push(format!("{count} rules and routes removed"));
            errors.extend(routing_errors);
        }
        Err(error) => errors.push(format!("rules and routes cannot be removed: {error}")),
    }
    (restored, errors)
}

/// Changes of a run that are not restored yet, one text each.
pub(super) fn leftovers(run_dir: &Path) -> Vec<String> {
    let mut restored = Vec::new();
    if let Ok(undo_log) = UndoLog::open(run_dir) {
        let changes = undo_log.changes();
        let changed_entries = changes.settings.iter().filter(|entry| entry.value != entry.previous);
        restored.extend(changed_entries.map(|entry| format!("{}={}", entry.name, entry.value)));
        restored.extend(changes.endpoints.iter().map(|entry| format!("endpoint {}", entry.address)));
        restored.extend(changes.limits.map(|limits| format!("a limit of {} subflows", limits.value.0)));
    }
    if let Some(count) = KernelRouting::open().and_then(|routing| routing.count()).ok().filter(|count| *count > 0) {
        restored.push(format!("{count} rules and routes"));
    }
    restored
}

/// Endpoints of the kernel's path manager that do not belong to a run with this run directory.
///
/// # Errors
/// They cannot be read, which requires CAP_NET_ADMIN.
pub fn foreign_endpoints(run_dir: &Path) -> io::Result<Vec<Endpoint>> {
    let entries = UndoLog::open(run_dir).map(|undo_log| undo_log.changes().endpoints.clone()).unwrap_or_default();
    let is_own = |endpoint: &Endpoint| {
        entries.iter().any(|entry| entry.address == endpoint.address && entry.previous_backup.is_none())
    };
    let endpoints = PathManager::open().map_err(io::Error::other)?.endpoints()?;
    Ok(endpoints.into_iter().filter(|endpoint| !is_own(endpoint)).collect())
}

/// Whether the path manager of this network namespace is set to userspace.
pub fn is_userspace() -> bool {
    Sysctls::of_system().is_userspace()
}

/// All endpoints of the kernel's path manager.
///
/// # Errors
/// They cannot be read, which requires CAP_NET_ADMIN and a kernel with MPTCP.
pub fn kernel_endpoints() -> io::Result<Vec<Endpoint>> {
    PathManager::open().map_err(io::Error::other)?.endpoints()
}

/// Path of the control socket in a run directory. The name contains the number of the network namespace, so that a
/// client reaches the daemon of its own namespace.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(format!("paths-{}.sock", netns_inode().unwrap_or_default()))
}

/// Creates the run directory if needed, and checks that only root and its owner can write to it. Returns whether it
/// was created.
///
/// # Errors
/// One line with the remedy.
pub fn ensure_run_dir(path: &Path) -> Result<bool, PathsError> {
    RunDir::ensure(path).map_err(|error| {
        let message = format!("{error}: not usable as run directory; choose another one with --run-dir");
        if error.kind() == io::ErrorKind::PermissionDenied {
            PathsError::NotWritable(message)
        } else {
            PathsError::HostConfig(message)
        }
    })
}

/// Called before each change of the host or of the undo log. Tests simulate a crash here.
///
/// # Errors
/// None, outside tests.
#[cfg(not(test))]
const fn crash_point() -> io::Result<()> {
    Ok(())
}

/// Whether this process has CAP_NET_ADMIN.
pub(crate) fn has_net_admin() -> bool {
    /// `CAP_NET_ADMIN`.
    const NET_ADMIN: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|message| message.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|capabilities| capabilities & NET_ADMIN != 0)
}

fn undo_log_error(error: io::Error) -> PathsError {
    let message =
        format!("{error}: without the undo log nothing is changed; choose another directory with --run-dir");
    if error.kind() == io::ErrorKind::PermissionDenied {
        PathsError::NotWritable(message)
    } else {
        PathsError::HostConfig(message)
    }
}

fn sysctl_error(name: &str, error: &io::Error) -> PathsError {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "it needs CAP_NET_ADMIN in this network namespace",
        io::ErrorKind::ReadOnlyFilesystem => {
            "/proc/sys is read-only here (a container, ProtectKernelTunables=): set it from outside"
        }
        _ => "`marline paths doctor` may show the cause",
    };
    PathsError::HostConfig(format!("{name}: cannot be set: {error}: {remedy}"))
}
