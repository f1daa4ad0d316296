//! What the host must be like for a run, and how it is put back: settings, source routing, and who may change them.
//!
//! In: how connections are to be told, which links there are, and a run directory. Out: a host that fits
//! ([`Host`], the driver's [`Ground`]), and afterwards the host as it was.
//!
//! ```text
//!   claim ──▶ check ──▶ ledger ──▶ settings ──▶ rules, routes ◀──▶ follow each change
//!     │         │                                     │
//!     │         └ wrong: one line, nothing changed    ▼
//!     └◀──────────────────────────────────────── all put back, ledger gone
//!
//!   kill -9 anywhere ──▶ at the next start: the ledger says what settings were,
//!                        the kernel says which rules and routes are ours
//! ```
//!
//! 1. Everything is checked before anything is changed.
//! 2. Everything is written down before it is changed and struck out after it was put back (`undo_log`), or marked
//!    (`source_routing`).
//! 3. What somebody else changes meanwhile is put back, a few times (`route_repair`, `sysctl_repair`).
//! 4. A start after a crash takes over what the crashed run left and still fits: no connection notices.

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

/// Where sockets and ledgers are.
pub const RUN_DIR: &str = "/run/marline";

/// This host, laid for a run. Whatever way that ends, all is put back when this is dropped, if not before.
pub struct HostConfig {
    run_dir: PathBuf,
    routed_links: RoutedLinks,
    notify: Box<dyn FnMut(&str)>,
    undo_log: Option<UndoLog>,
    route_repair: RouteRepairLimiter,
    /// MTUs of links, by interface, where full-sized packets are lost on the way.
    mtus: BTreeMap<String, u16>,
    /// The settings that must stay as they were laid.
    held_sysctls: Vec<HeldSysctl>,
    /// What was told of routing, so that it is told once.
    last_errors: Vec<String>,
    _lock: InstanceLock,
}

impl HostConfig {
    /// Whoever holds the claim may lay this host for these links; what is changed, and what went wrong, is told.
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
        let Preflight { sysctls, undo_log: mut ledger, is_abandoned } = preflight(&self.run_dir, mode)?;
        match sysctls.apply(mode, is_abandoned, &mut ledger) {
            Ok(messages) => self.notify_all(messages),
            Err((name, error)) => {
                let (_, errors) = sysctls.restore(&mut ledger);
                self.notify_all(errors);
                return Err(if name.is_empty() { undo_log_error(error) } else { sysctl_error(&name, &error) });
            }
        }
        // A crashed run may have led connections to a forwarder that this one does not have, or has anew.
        if let Err(error) = KernelRouting::open().and_then(|routing| routing.clear_policy_route()) {
            self.notify_all([format!("the detour of a run that was killed cannot be removed: {error}")]);
        }
        if mode != Mode::KernelPm {
            // A crashed run has left them, and none of this one knows of them.
            let (messages, errors) = endpoints::restore(&mut ledger);
            self.notify_all(messages.into_iter().chain(errors));
        }
        self.held_sysctls = sysctls_to_hold(&sysctls, mode, &ledger);
        self.undo_log = Some(ledger);
        Ok(())
    }

    fn recheck_sysctls(&mut self) {
        if self.undo_log.is_none() {
            return;
        }
        let (sysctls, now) = (Sysctls::of_system(), Instant::now());
        let messages = self.held_sysctls.iter_mut().filter_map(|held| recheck_sysctl(&sysctls, held, now));
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
        (self.notify)(&format!("{} ({}{metered_text}) has come, and is used from now on", link.name, link.kind));
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
                "{reason}; `ip link set {interface} mtu …` sets the right one for good, and `marline paths doctor --probe \
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
            Err(error) => vec![format!("the kernel does not tell its rules and routes: {error}")],
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

/// The settings that must stay while it runs: the path manager, and that MPTCP is on where the run has switched it on.
fn sysctls_to_hold(sysctls: &Sysctls, mode: Mode, undo_log: &UndoLog) -> Vec<HeldSysctl> {
    let (name, value) = sysctls.path_manager_setting(mode);
    let enabled_entry = undo_log.changes().settings.iter().find(|entry| entry.name == MPTCP_ENABLED);
    let enabled_entry = enabled_entry.map(|entry| HeldSysctl::new(MPTCP_ENABLED, entry.value.clone()));
    std::iter::once(HeldSysctl::new(name, value.to_owned())).chain(enabled_entry).collect()
}

/// Looks whether a setting is as it should be, and puts it back if that may be. Returns what is to be told.
fn recheck_sysctl(sysctls: &Sysctls, held: &mut HeldSysctl, now: Instant) -> Option<String> {
    let current = sysctls.read(held.name)?;
    if current == held.value {
        return held.on_correct();
    }
    match held.on_changed(now, &current) {
        Ok(()) => Some(match sysctls.write(held.name, &held.value) {
            Ok(()) => held.on_repaired(now, &current),
            Err(error) => held.give_up(&current, &format!("it cannot be set back ({error})")),
        }),
        Err(message) => message,
    }
}

/// Whether a run could begin: kernel, privilege, settings, other path managers. Nothing is changed. Returns a line for
/// the user if a program that has gone has left its path manager behind.
///
/// # Errors
/// One line that says what stands in the way.
pub fn check(run_dir: &Path, mode: Mode) -> Result<Option<String>, PathsError> {
    preflight(run_dir, mode).map(|Preflight { sysctls, is_abandoned, .. }| {
        let (name, kernel_value) = sysctls.path_manager_setting(Mode::KernelPm);
        is_abandoned.then(|| {
            format!(
                "{name}: found set to a program, and none listens: probably a `marline paths` with another run \
                 directory was killed; {kernel_value}, the kernel's default, is put back at the end, and `marline paths \
                 restore --run-dir DIR` with that directory puts back what else it had changed"
            )
        })
    })
}

/// A machine on which a run may begin.
struct Preflight {
    sysctls: Sysctls,
    undo_log: UndoLog,
    /// Paths are to be managed by a program that has gone.
    is_abandoned: bool,
}

fn preflight(run_dir: &Path, mode: Mode) -> Result<Preflight, PathsError> {
    let sysctls = Sysctls::of_system();
    if !sysctls.has_mptcp() {
        return Err(PathsError::NoMptcp(io::ErrorKind::NotFound.into()));
    }
    if !has_net_admin() {
        return Err(PathsError::NotPermitted { what: "steering this network".to_owned() });
    }
    let undo_log = UndoLog::open(run_dir).map_err(undo_log_error)?;
    // Set by a run of ours that crashed, it says nothing of others.
    let is_own_setting =
        undo_log.changes().settings.iter().any(|entry| [PATH_MANAGER, PM_TYPE].contains(&entry.name.as_str()));
    let userspace = sysctls.is_userspace() && !is_own_setting;
    let listeners = event_listeners();
    if let Some(daemon) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Err(PathsError::HostConfig(InstanceLockError::AlreadyHeld(daemon.process).to_string()));
    }
    if let Some(other_manager) = other_path_manager(&listeners, userspace) {
        return Err(PathsError::HostConfig(format!(
            "another path manager is active: {}; stop it first (`marline paths doctor` says how)",
            other_manager.describe()
        )));
    }
    sysctls.check_applicable(mode).map_err(|(name, error)| sysctl_error(name, &error))?;
    // Where it cannot be written, whoever administers the machine has set it for a run to come.
    let is_abandoned = userspace && sysctls.is_writable(sysctls.path_manager_setting(mode).0);
    Ok(Preflight { sysctls, undo_log, is_abandoned })
}

/// A daemon of ours that steers this network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningDaemon {
    /// Its process, as far as this user may know.
    pub process: Option<u32>,
}

impl std::fmt::Display for RunningDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("`marline paths`")?;
        self.process.map_or(Ok(()), |process| write!(f, " (process {process})"))
    }
}

/// The daemon that steers this network: the one that listens to the kernel's events, whatever its run directory, or the
/// one that holds the claim. Where this user may not see whose socket listens, a program that does and a control socket
/// in the run directory, or in the usual one, are one daemon of ours: only who administers the network may listen.
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

/// Whether somebody listens at this path, by the kernel's list (proc_pid_net(5)); only the path has slashes in it.
fn has_listening_socket(sockets: &str, path: &Path) -> bool {
    sockets.lines().any(|line| {
        line.find('/')
            .and_then(|path_text| line.get(path_text..))
            .is_some_and(|path_text| Path::new(path_text) == path)
    })
}

/// What came of putting things back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RestoreResult {
    /// What was put back, a line each.
    pub restored: Vec<String>,
    /// What could not be, and why or what next, a line each.
    pub remaining: Vec<String>,
}

/// Puts back what a run that crashed has left behind.
///
/// # Errors
/// A daemon runs, and puts everything back itself; or nothing can be put back, and why.
pub fn restore(run_dir: &Path) -> Result<RestoreResult, PathsError> {
    if !has_net_admin() {
        return Err(PathsError::NotPermitted { what: "putting settings and routes back".to_owned() });
    }
    let is_created = ensure_run_dir(run_dir)?;
    // First, and even where another part runs: it belongs to nobody who does.
    let gateway_result = super::gateway::restore(run_dir);
    let restored = match restore_locked(run_dir) {
        Ok(mut restored) => {
            restored.restored.splice(..0, gateway_result.restored);
            restored.remaining.extend(gateway_result.remaining);
            Ok(restored)
        }
        Err(error) if gateway_result == RestoreResult::default() => Err(error),
        Err(error) => {
            let remaining = gateway_result.remaining.into_iter().chain([error.to_string()]);
            Ok(RestoreResult { restored: gateway_result.restored, remaining: remaining.collect() })
        }
    };
    if is_created {
        // Where something is left in it, it is needed.
        let _ = std::fs::remove_dir(run_dir);
    }
    restored
}

fn restore_locked(run_dir: &Path) -> Result<RestoreResult, PathsError> {
    let running_error = |process: Option<u32>| {
        let process = process.map(|process| format!(" (process {process})")).unwrap_or_default();
        PathsError::HostConfig(format!(
            "a `marline paths`{process} runs: stop it, and it puts everything back itself"
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
    let mut undo_log = UndoLog::open(run_dir).map_err(undo_log_error)?;
    let (restored, mut remaining) = restore_all(&mut undo_log);
    // Nobody listens at it: whoever did would hold the claim.
    let _ = std::fs::remove_file(socket_path(run_dir));
    let sysctls = Sysctls::of_system();
    let ((name, value), (_, kernel_value)) =
        (sysctls.path_manager_setting(Mode::Userspace), sysctls.path_manager_setting(Mode::KernelPm));
    // Where it cannot be written, it was set from outside for a run to come.
    let is_abandoned =
        sysctls.is_userspace() && other_path_manager(&listeners, true).is_none() && sysctls.is_writable(name);
    if remaining.is_empty() && is_abandoned {
        remaining.push(format!(
            "{name}: still {value}, although no program listens, and {} has no note of what it was: a run with another \
             run directory is put back by `marline paths restore --run-dir DIR`, anything else by `sysctl -w {name}={kernel_value}`",
            run_dir.display()
        ));
    }
    Ok(RestoreResult { restored, remaining })
}

/// What was put back, and what could not be.
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

/// What a run has changed and not put back: what it left behind, where it does not run any more.
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
    restored.extend(super::gateway::leftovers(run_dir));
    restored
}

/// Endpoints of the kernel's own path manager that no run has made, as far as this run directory tells.
///
/// # Errors
/// They cannot be read: that takes CAP_NET_ADMIN.
pub fn foreign_endpoints(run_dir: &Path) -> io::Result<Vec<Endpoint>> {
    let entries = UndoLog::open(run_dir).map(|undo_log| undo_log.changes().endpoints.clone()).unwrap_or_default();
    let is_own = |endpoint: &Endpoint| {
        entries.iter().any(|entry| entry.address == endpoint.address && entry.previous_backup.is_none())
    };
    let endpoints = PathManager::open().map_err(io::Error::other)?.endpoints()?;
    Ok(endpoints.into_iter().filter(|endpoint| !is_own(endpoint)).collect())
}

/// Whether a program, not the kernel, manages the paths of this network namespace.
pub fn is_userspace() -> bool {
    Sysctls::of_system().is_userspace()
}

/// Endpoints of the kernel's own path manager, whoever set them.
///
/// # Errors
/// They cannot be read: that takes CAP_NET_ADMIN and a kernel with MPTCP.
pub fn kernel_endpoints() -> io::Result<Vec<Endpoint>> {
    PathManager::open().map_err(io::Error::other)?.endpoints()
}

/// Where the socket of this network's daemon is in a run directory: each network namespace has a name of its own, so
/// that whoever asks from inside one reaches the daemon that steers it.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join(format!("paths-{}.sock", netns_inode().unwrap_or_default()))
}

/// Makes the run directory if it is not there, and looks whether it is safe: nobody but root and its owner may be able
/// to put anything into it. Says whether it was made.
///
/// # Errors
/// One line that says what to do.
pub fn ensure_run_dir(path: &Path) -> Result<bool, PathsError> {
    RunDir::ensure(path).map_err(|error| {
        let message = format!("{error}: it cannot be the run directory; name another one with --run-dir");
        if error.kind() == io::ErrorKind::PermissionDenied {
            PathsError::NotWritable(message)
        } else {
            PathsError::HostConfig(message)
        }
    })
}

/// A change of the machine or of the ledger is about to be made.
///
/// # Errors
/// None; a test's machine may end here.
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
    let message = format!("{error}: without it nothing is changed; name another directory with --run-dir");
    if error.kind() == io::ErrorKind::PermissionDenied {
        PathsError::NotWritable(message)
    } else {
        PathsError::HostConfig(message)
    }
}

fn sysctl_error(name: &str, error: &io::Error) -> PathsError {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "it needs CAP_NET_ADMIN over this network",
        io::ErrorKind::ReadOnlyFilesystem => {
            "/proc/sys is read-only here (a container, ProtectKernelTunables=): set it from outside"
        }
        _ => "`marline paths doctor` may know more",
    };
    PathsError::HostConfig(format!("{name} cannot be set: {error}: {remedy}"))
}
