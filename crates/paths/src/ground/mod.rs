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
//! 2. Everything is written down before it is changed and struck out after it was put back (`ledger`), or marked
//!    (`routing`).
//! 3. What somebody else changes meanwhile is put back, a few times (`contest`, `hold`).
//! 4. A start after a crash takes over what the crashed run left and still fits: no connection notices.

mod claim;
mod contest;
mod endpoints;
#[cfg(test)]
mod fault;
pub(super) mod forwarding;
mod hold;
mod ledger;
mod listeners;
#[cfg(test)]
mod live;
mod preview;
mod routing;
mod settings;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use marline_core::paths::LinkConfig;
use marline_core::wire::netlink::mptcp::{Endpoint, Limits};
use marline_net::directory::Directory;

pub use claim::{Claim, ClaimError, Role};
pub use listeners::Listener;
pub(super) use listeners::{events_group, listeners, rival};
pub use preview::Preview;
pub use routing::Roads;
pub(super) use routing::exit_of;
pub(super) use settings::{ENABLED, PATH_MANAGER, PM_TYPE, Settings};

use marline_net::links::InterfaceList;

use self::contest::Contest;
#[cfg(test)]
use self::fault::step;
use self::hold::Hold;
use self::ledger::{Ledger, network};
use self::routing::Kernel;
use super::kernel::PathManager;
use super::{Ground, Mode, PathsError};

/// Where sockets and ledgers are.
pub const RUN_DIR: &str = "/run/marline";

/// This host, laid for a run. Whatever way that ends, all is put back when this is dropped, if not before.
pub struct Host {
    run_dir: PathBuf,
    roads: Roads,
    tell: Box<dyn FnMut(&str)>,
    laid: Option<Ledger>,
    contest: Contest,
    /// MTUs of links, by interface, where full-sized packets are lost on the way.
    mtus: BTreeMap<String, u16>,
    /// The settings that must stay as they were laid.
    holds: Vec<Hold>,
    /// What was told of routing, so that it is told once.
    told: Vec<String>,
    _claim: Claim,
}

impl Host {
    /// Whoever holds the claim may lay this host for these links; what is changed, and what went wrong, is told.
    pub fn new(claim: Claim, run_dir: &Path, roads: Roads, tell: Box<dyn FnMut(&str)>) -> Self {
        let run_dir = run_dir.to_owned();
        let (contest, mtus, holds, told) = (Contest::default(), BTreeMap::new(), Vec::new(), Vec::new());
        Self { run_dir, roads, tell, laid: None, contest, mtus, holds, told, _claim: claim }
    }

    fn tell(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            (self.tell)(&line);
        }
    }
}

impl Ground for Host {
    fn lay(&mut self, mode: Mode) -> Result<(), PathsError> {
        let Checked { settings, mut ledger, dead } = checked(&self.run_dir, mode)?;
        match settings.lay(mode, dead, &mut ledger) {
            Ok(lines) => self.tell(lines),
            Err((name, error)) => {
                let (_, troubles) = settings.restore(&mut ledger);
                self.tell(troubles);
                return Err(if name.is_empty() { unwritten(error) } else { refused(&name, &error) });
            }
        }
        // A crashed run may have led connections to a forwarder that this one does not have, or has anew.
        if let Err(error) = Kernel::open().and_then(|kernel| kernel.clear_detour()) {
            self.tell([format!("the detour of a run that was killed cannot be removed: {error}")]);
        }
        if mode != Mode::KernelPm {
            // A crashed run has left them, and none of this one knows of them.
            let (lines, troubles) = endpoints::restore(&mut ledger);
            self.tell(lines.into_iter().chain(troubles));
        }
        self.holds = held(&settings, mode, &ledger);
        self.laid = Some(ledger);
        Ok(())
    }

    fn hold(&mut self) {
        if self.laid.is_none() {
            return;
        }
        let (settings, now) = (Settings::system(), Instant::now());
        let told = self.holds.iter_mut().filter_map(|hold| keep(&settings, hold, now));
        let told: Vec<String> = told.collect();
        self.tell(told);
    }

    fn notes(&self) -> Vec<String> {
        self.holds.iter().filter_map(Hold::note).collect()
    }

    fn note_endpoints(&mut self, wanted: &[Endpoint], there: &[Endpoint]) -> Result<(), PathsError> {
        self.laid.as_mut().map_or(Ok(()), |ledger| endpoints::note(ledger, wanted, there)).map_err(unwritten)
    }

    fn note_limits(&mut self, was: Limits, set: Limits) -> Result<(), PathsError> {
        self.laid.as_mut().map_or(Ok(()), |ledger| endpoints::note_limits(ledger, was, set)).map_err(unwritten)
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        let places = self.laid.as_ref().map(|ledger| ledger.changes().endpoints.as_slice()).unwrap_or_default();
        places.iter().any(|place| place.address == address && place.was.is_none())
    }

    fn take_up(&mut self, link: &LinkConfig) {
        self.roads.links.push(link.name.clone());
        let metered = if link.metered { ", metered" } else { "" };
        (self.tell)(&format!("{} ({}{metered}) has come, and is used from now on", link.name, link.kind));
    }

    fn set_mtu(&mut self, interface: &str, mtu: Option<u16>, reason: Option<&str>) {
        match mtu {
            Some(mtu) => drop(self.mtus.insert(interface.to_owned(), mtu)),
            None => drop(self.mtus.remove(interface)),
        }
        let Some(reason) = reason else { return };
        (self.tell)(&match mtu {
            None => reason.to_owned(),
            Some(_) => format!(
                "{reason}; `ip link set {interface} mtu …` sets the right one for good, and `marline paths doctor --probe \
                 HOST:PORT` finds it"
            ),
        });
    }

    fn follow(&mut self, survey: &InterfaceList) {
        if self.laid.is_none() {
            return;
        }
        let follow = |kernel: Kernel| kernel.follow(&self.roads, survey, &self.mtus, &mut self.contest);
        let troubles = match Kernel::open().and_then(follow) {
            Ok(troubles) => troubles,
            Err(error) => vec![format!("the kernel does not tell its rules and routes: {error}")],
        };
        let fresh: Vec<String> = troubles.iter().filter(|line| !self.told.contains(line)).cloned().collect();
        self.tell(fresh);
        self.told = troubles;
    }

    fn restore(&mut self) {
        if let Some(mut ledger) = self.laid.take() {
            let (_, troubles) = put_back(&mut ledger);
            self.tell(troubles);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.restore();
    }
}

/// The settings that must stay while it runs: the path manager, and that MPTCP is on where the run has switched it on.
fn held(settings: &Settings, mode: Mode, ledger: &Ledger) -> Vec<Hold> {
    let (name, set) = settings.manager(mode);
    let on = ledger.changes().settings.iter().find(|entry| entry.name == ENABLED);
    let on = on.map(|entry| Hold::new(ENABLED, entry.set.clone()));
    std::iter::once(Hold::new(name, set.to_owned())).chain(on).collect()
}

/// Looks whether a setting is as it should be, and puts it back if that may be. Returns what is to be told.
fn keep(settings: &Settings, hold: &mut Hold, now: Instant) -> Option<String> {
    let found = settings.read(hold.name)?;
    if found == hold.set {
        return hold.is_right();
    }
    match hold.is_wrong(now, &found) {
        Ok(()) => Some(match settings.write(hold.name, &hold.set) {
            Ok(()) => hold.is_mended(now, &found),
            Err(error) => hold.lose(&found, &format!("it cannot be set back ({error})")),
        }),
        Err(told) => told,
    }
}

/// Whether a run could begin: kernel, privilege, settings, other path managers. Nothing is changed. Returns a line for
/// the user if a program that has gone has left its path manager behind.
///
/// # Errors
/// One line that says what stands in the way.
pub fn check(run_dir: &Path, mode: Mode) -> Result<Option<String>, PathsError> {
    checked(run_dir, mode).map(|Checked { settings, dead, .. }| {
        let (name, kernel) = settings.manager(Mode::KernelPm);
        dead.then(|| {
            format!(
                "{name}: found set to a program, and none listens: probably a `marline paths` with another run \
                 directory was killed; {kernel}, the kernel's default, is put back at the end, and `marline paths \
                 restore --run-dir DIR` with that directory puts back what else it had changed"
            )
        })
    })
}

/// A machine on which a run may begin.
struct Checked {
    settings: Settings,
    ledger: Ledger,
    /// Paths are to be managed by a program that has gone.
    dead: bool,
}

fn checked(run_dir: &Path, mode: Mode) -> Result<Checked, PathsError> {
    let settings = Settings::system();
    if !settings.has_mptcp() {
        return Err(PathsError::NoMptcp(io::ErrorKind::NotFound.into()));
    }
    if !may_administer() {
        return Err(PathsError::NotPermitted { what: "steering this network".to_owned() });
    }
    let ledger = Ledger::open(run_dir).map_err(unwritten)?;
    // Set by a run of ours that crashed, it says nothing of others.
    let ours = ledger.changes().settings.iter().any(|entry| [PATH_MANAGER, PM_TYPE].contains(&entry.name.as_str()));
    let userspace = settings.is_userspace() && !ours;
    let listeners = listeners();
    if let Some(daemon) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Err(PathsError::Ground(ClaimError::Held(daemon.process).to_string()));
    }
    if let Some(other) = rival(&listeners, userspace) {
        return Err(PathsError::Ground(format!(
            "another path manager is active: {}; stop it first (`marline paths doctor` says how)",
            other.shown()
        )));
    }
    settings.may_lay(mode).map_err(|(name, error)| refused(name, &error))?;
    // Where it cannot be written, whoever administers the machine has set it for a run to come.
    let dead = userspace && settings.is_writable(settings.manager(mode).0);
    Ok(Checked { settings, ledger, dead })
}

/// A daemon of ours that steers this network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// Its process, as far as this user may know.
    pub process: Option<u32>,
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("`marline paths`")?;
        self.process.map_or(Ok(()), |process| write!(f, " (process {process})"))
    }
}

/// The daemon that steers this network: the one that listens to the kernel's events, whatever its run directory, or the
/// one that holds the claim. Where this user may not see whose socket listens, a program that does and a control socket
/// in the run directory, or in the usual one, are one daemon of ours: only who administers the network may listen.
pub(super) fn daemon(run_dir: &Path, listeners: &[Listener]) -> Option<Running> {
    if let Some(listener) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Some(Running { process: listener.process });
    }
    let held = Claim::held(run_dir, Role::Steer).map(|process| Running { process: Some(process) });
    held.or_else(|| {
        let unknown = listeners.iter().any(|listener| listener.name.is_empty());
        let sockets = unknown.then(|| std::fs::read_to_string("/proc/thread-self/net/unix").ok()).flatten()?;
        let listens = |run_dir: &Path| has_socket(&sockets, &socket(run_dir));
        (listens(run_dir) || listens(Path::new(RUN_DIR))).then_some(Running { process: None })
    })
}

/// Whether somebody listens at this path, by the kernel's list (proc_pid_net(5)); only the path has slashes in it.
fn has_socket(sockets: &str, path: &Path) -> bool {
    sockets.lines().any(|line| line.find('/').and_then(|at| line.get(at..)).is_some_and(|at| Path::new(at) == path))
}

/// What came of putting things back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Restored {
    /// What was put back, a line each.
    pub lines: Vec<String>,
    /// What could not be, and why or what next, a line each.
    pub left: Vec<String>,
}

/// Puts back what a run that crashed has left behind.
///
/// # Errors
/// A daemon runs, and puts everything back itself; or nothing can be put back, and why.
pub fn restore(run_dir: &Path) -> Result<Restored, PathsError> {
    if !may_administer() {
        return Err(PathsError::NotPermitted { what: "putting settings and routes back".to_owned() });
    }
    let made = run_directory(run_dir)?;
    // First, and even where another part runs: it belongs to nobody who does.
    let gateway = super::gateway::restore(run_dir);
    let restored = match restore_in(run_dir) {
        Ok(mut restored) => {
            restored.lines.splice(..0, gateway.lines);
            restored.left.extend(gateway.left);
            Ok(restored)
        }
        Err(error) if gateway == Restored::default() => Err(error),
        Err(error) => {
            let left = gateway.left.into_iter().chain([error.to_string()]);
            Ok(Restored { lines: gateway.lines, left: left.collect() })
        }
    };
    if made {
        // Where something is left in it, it is needed.
        let _ = std::fs::remove_dir(run_dir);
    }
    restored
}

fn restore_in(run_dir: &Path) -> Result<Restored, PathsError> {
    let runs = |process: Option<u32>| {
        let process = process.map(|process| format!(" (process {process})")).unwrap_or_default();
        PathsError::Ground(format!("a `marline paths`{process} runs: stop it, and it puts everything back itself"))
    };
    let _claim = Claim::take(run_dir, Role::Steer).map_err(|error| match error {
        ClaimError::Held(process) => runs(process),
        error => error.into(),
    })?;
    let listeners = listeners();
    if let Some(daemon) = listeners.iter().find(|listener| listener.is_daemon()) {
        return Err(runs(daemon.process));
    }
    let mut ledger = Ledger::open(run_dir).map_err(unwritten)?;
    let (lines, mut left) = put_back(&mut ledger);
    // Nobody listens at it: whoever did would hold the claim.
    let _ = std::fs::remove_file(socket(run_dir));
    let settings = Settings::system();
    let ((name, set), (_, kernel)) = (settings.manager(Mode::Userspace), settings.manager(Mode::KernelPm));
    // Where it cannot be written, it was set from outside for a run to come.
    let is_dead = settings.is_userspace() && rival(&listeners, true).is_none() && settings.is_writable(name);
    if left.is_empty() && is_dead {
        left.push(format!(
            "{name}: still {set}, although no program listens, and {} has no note of what it was: a run with another \
             run directory is put back by `marline paths restore --run-dir DIR`, anything else by `sysctl -w {name}={kernel}`",
            run_dir.display()
        ));
    }
    Ok(Restored { lines, left })
}

/// What was put back, and what could not be.
fn put_back(ledger: &mut Ledger) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut troubles) = endpoints::restore(ledger);
    let settings = Settings::system().restore(ledger);
    lines.extend(settings.0);
    troubles.extend(settings.1);
    match Kernel::open().and_then(|kernel| kernel.clear()) {
        Ok((0, more)) => troubles.extend(more),
        Ok((count, more)) => {
            lines.push(format!("{count} rules and routes removed"));
            troubles.extend(more);
        }
        Err(error) => troubles.push(format!("rules and routes cannot be removed: {error}")),
    }
    (lines, troubles)
}

/// What a run has changed and not put back: what it left behind, where it does not run any more.
pub(super) fn leftovers(run_dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    if let Ok(ledger) = Ledger::open(run_dir) {
        let changes = ledger.changes();
        let changed = changes.settings.iter().filter(|entry| entry.set != entry.was);
        lines.extend(changed.map(|entry| format!("{}={}", entry.name, entry.set)));
        lines.extend(changes.endpoints.iter().map(|place| format!("endpoint {}", place.address)));
        lines.extend(changes.limits.map(|limits| format!("a limit of {} subflows", limits.set.0)));
    }
    if let Some(count) = Kernel::open().and_then(|kernel| kernel.count()).ok().filter(|count| *count > 0) {
        lines.push(format!("{count} rules and routes"));
    }
    lines.extend(super::gateway::leftovers(run_dir));
    lines
}

/// Endpoints of the kernel's own path manager that no run has made, as far as this run directory tells.
///
/// # Errors
/// They cannot be read: that takes CAP_NET_ADMIN.
pub fn endpoints_of_others(run_dir: &Path) -> io::Result<Vec<Endpoint>> {
    let places = Ledger::open(run_dir).map(|ledger| ledger.changes().endpoints.clone()).unwrap_or_default();
    let is_ours =
        |endpoint: &Endpoint| places.iter().any(|place| place.address == endpoint.address && place.was.is_none());
    let all = PathManager::open().map_err(io::Error::other)?.endpoints()?;
    Ok(all.into_iter().filter(|endpoint| !is_ours(endpoint)).collect())
}

/// Whether a program, not the kernel, manages the paths of this network namespace.
pub fn is_userspace() -> bool {
    Settings::system().is_userspace()
}

/// Endpoints of the kernel's own path manager, whoever set them.
///
/// # Errors
/// They cannot be read: that takes CAP_NET_ADMIN and a kernel with MPTCP.
pub fn endpoints() -> io::Result<Vec<Endpoint>> {
    PathManager::open().map_err(io::Error::other)?.endpoints()
}

/// Where the socket of this network's daemon is in a run directory: each network namespace has a name of its own, so
/// that whoever asks from inside one reaches the daemon that steers it.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join(format!("paths-{}.sock", network().unwrap_or_default()))
}

/// Makes the run directory if it is not there, and looks whether it is safe: nobody but root and its owner may be able
/// to put anything into it. Says whether it was made.
///
/// # Errors
/// One line that says what to do.
pub fn run_directory(path: &Path) -> Result<bool, PathsError> {
    Directory::make(path).map_err(|error| {
        let line = format!("{error}: it cannot be the run directory; name another one with --run-dir");
        if error.kind() == io::ErrorKind::PermissionDenied {
            PathsError::Unwritable(line)
        } else {
            PathsError::Ground(line)
        }
    })
}

/// A change of the machine or of the ledger is about to be made.
///
/// # Errors
/// None; a test's machine may end here.
#[cfg(not(test))]
const fn step() -> io::Result<()> {
    Ok(())
}

/// Whether this process has CAP_NET_ADMIN.
pub(crate) fn may_administer() -> bool {
    /// `CAP_NET_ADMIN`.
    const NET_ADMIN: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set & NET_ADMIN != 0)
}

fn unwritten(error: io::Error) -> PathsError {
    let line = format!("{error}: without it nothing is changed; name another directory with --run-dir");
    if error.kind() == io::ErrorKind::PermissionDenied {
        PathsError::Unwritable(line)
    } else {
        PathsError::Ground(line)
    }
}

fn refused(name: &str, error: &io::Error) -> PathsError {
    let next = match error.kind() {
        io::ErrorKind::PermissionDenied => "it needs CAP_NET_ADMIN over this network",
        io::ErrorKind::ReadOnlyFilesystem => {
            "/proc/sys is read-only here (a container, ProtectKernelTunables=): set it from outside"
        }
        _ => "`marline paths doctor` may know more",
    };
    PathsError::Ground(format!("{name} cannot be set: {error}: {next}"))
}
