//! Forwarding settings of a host between a LAN and its links, and their restoration.
//!
//! 1. Each setting is recorded in a separate undo log (`edge-N.json`, N is the number of the network namespace) before
//!    it is changed. After a crash the first recorded value counts.
//! 2. A host that forwards IPv6 ignores router advertisements unless `accept_ra=2`. So this is set first for the
//!    links and for future interfaces. Otherwise each link would lose its default route when its last advertisement
//!    expires.
//! 3. One process per network namespace does this, under an instance lock. A process that gets the lock restores what
//!    a crashed one has left.

use std::path::Path;
use std::time::Instant;

use super::instance_lock::{InstanceLock, InstanceLockError, Role};
use super::recheck_sysctl;
use super::sysctl::{FORWARD_V4, FORWARD_V6, Sysctls};
use super::sysctl_repair::HeldSysctl;
use super::undo_log::{Changes, SysctlEntry, UndoLog};
use super::{ensure_run_dir, has_net_admin, sysctl_error, undo_log_error};
use crate::PathsError;

/// Accept router advertisements even while forwarding.
const ACCEPT_RA_ALWAYS: &str = "2";

/// The host forwards packets while this value lives.
#[derive(Debug)]
pub(crate) struct Forwarding {
    undo_log: UndoLog,
    /// Changes, one line each.
    pub(crate) changes: Vec<String>,
    /// Whether the host forwards only because of this run: IPv4, IPv6.
    pub(crate) enabled_here: (bool, bool),
    _lock: InstanceLock,
}

/// Monitors the forwarding settings. A setting that another program has reset (`sysctl --system`) is set again if
/// this run had changed it, and reported otherwise.
#[derive(Debug)]
pub(crate) struct ForwardingMonitor {
    held_sysctls: Vec<(HeldSysctl, bool)>,
}

impl ForwardingMonitor {
    /// `enabled_here`: the settings that this run has changed.
    pub(crate) fn new(enabled_here: (bool, bool)) -> Self {
        let held_sysctl = |name| HeldSysctl::for_forwarding(name, "1".to_owned());
        Self {
            held_sysctls: vec![
                (held_sysctl(FORWARD_V4), enabled_here.0),
                (held_sysctl(FORWARD_V6), enabled_here.1),
            ],
        }
    }

    /// Checks the settings and restores them where permitted. Returns lines about repairs and about present problems.
    pub(crate) fn check(&mut self, now: Instant) -> (Vec<String>, Vec<String>) {
        let sysctls = Sysctls::of_system();
        self.check_in(&sysctls, now)
    }

    fn check_in(&mut self, sysctls: &Sysctls, now: Instant) -> (Vec<String>, Vec<String>) {
        let (mut repaired, mut problems) = (Vec::new(), Vec::new());
        for (sysctl, is_enabled_here) in &mut self.held_sysctls {
            if *is_enabled_here {
                // Failed or abandoned repairs appear in the note.
                repaired.extend(recheck_sysctl(sysctls, sysctl, now).filter(|_| sysctl.note().is_none()));
                problems.extend(sysctl.note());
            } else if sysctls.read(sysctl.name).is_some_and(|value| value == "0") {
                let name = sysctl.name;
                problems.push(format!(
                    "{name} is 0, set by another program: UDP and other non-TCP traffic of the LAN is not forwarded until it is 1 \
                     (`sysctl -w {name}=1`)"
                ));
            }
        }
        (repaired, problems)
    }
}

impl Forwarding {
    /// Applies the settings and adopts those of a killed run. `close` is called before anything is changed, with the
    /// IP versions that the host forwards only because of this run: the firewall that keeps the LAN closed must exist
    /// first.
    ///
    /// # Errors
    /// One line that states the obstacle. Changes made until then are restored.
    pub(crate) fn apply(
        run_dir: &Path,
        lan: &[String],
        close: impl FnOnce((bool, bool)) -> Result<(), PathsError>,
    ) -> Result<Self, PathsError> {
        if !has_net_admin() {
            return Err(PathsError::NotPermitted { operation: "serving a LAN".to_owned() });
        }
        ensure_run_dir(run_dir)?;
        let lock = InstanceLock::acquire(run_dir, Role::Gateway).map_err(|error| match error {
            InstanceLockError::AlreadyHeld(process) => {
                let process = process.map(|process| format!(" (process {process})")).unwrap_or_default();
                PathsError::HostConfig(format!(
                    "another `marline edge --lan`{process} already serves a LAN in this network namespace; stop it first"
                ))
            }
            error => error.into(),
        })?;
        let undo_log = UndoLog::open_named(run_dir, UNDO_LOG_NAME).map_err(undo_log_error)?;
        let mut forwarding = Self { undo_log, changes: Vec::new(), enabled_here: (false, false), _lock: lock };
        forwarding.apply_in(&Sysctls::of_system(), lan, close)?;
        Ok(forwarding)
    }

    /// Restores everything and returns whether that succeeded. Later calls do nothing.
    pub(crate) fn restore(&mut self) -> bool {
        let (_, errors) = Sysctls::of_system().restore(&mut self.undo_log);
        for message in &errors {
            tracing::warn!(message, "cannot restore a setting");
        }
        errors.is_empty()
    }

    fn apply_in(
        &mut self,
        sysctls: &Sysctls,
        lan: &[String],
        close: impl FnOnce((bool, bool)) -> Result<(), PathsError>,
    ) -> Result<(), PathsError> {
        let required = required_sysctls(sysctls, lan);
        self.record(sysctls, &required).map_err(undo_log_error)?;
        let is_recorded = |name: &str| self.undo_log.changes().settings.iter().any(|entry| entry.name == name);
        self.enabled_here = (is_recorded(FORWARD_V4), is_recorded(FORWARD_V6));
        close(self.enabled_here)?;
        for (name, value) in required {
            let current = sysctls.read(&name).unwrap_or_default();
            if current != value {
                sysctls.write(&name, &value).map_err(|error| sysctl_error(&name, &error))?;
                self.changes.push(format!("{name}: {value} (it was {current}, and is restored at the end)"));
            }
        }
        Ok(())
    }

    /// Records the settings before they are changed. Entries of a killed run are kept while they match the present
    /// values.
    fn record(&mut self, sysctls: &Sysctls, required: &[(String, String)]) -> std::io::Result<()> {
        let is_current =
            |entry: &SysctlEntry| sysctls.read(&entry.name).is_some_and(|current| entry.is_own_value(&current));
        let mut entries: Vec<SysctlEntry> =
            self.undo_log.changes().settings.iter().filter(|e| is_current(e)).cloned().collect();
        for (name, value) in required {
            let previous = sysctls.read(name).unwrap_or_default();
            if previous != *value && !entries.iter().any(|entry| entry.name == *name) {
                entries.push(SysctlEntry {
                    name: name.clone(),
                    previous,
                    value: value.clone(),
                    crashed_value: None,
                });
            }
        }
        self.undo_log.write(Changes { settings: entries, ..Changes::default() })
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Whether this host forwards packets now: IPv4, IPv6.
pub(crate) fn is_forwarding() -> (bool, bool) {
    let sysctls = Sysctls::of_system();
    let is_on = |name| sysctls.read(name).is_some_and(|value| value != "0");
    (is_on(FORWARD_V4), is_on(FORWARD_V6))
}

/// Settings of a forwarding host, in the order in which they are set.
fn required_sysctls(sysctls: &Sysctls, lan: &[String]) -> Vec<(String, String)> {
    let mut required = Vec::new();
    let links = sysctls.ipv6_interfaces().into_iter().filter(|name| !lan.contains(name));
    for name in links.map(|link| accept_ra_sysctl(&link)) {
        if sysctls.read(&name).as_deref() == Some("1") {
            required.push((name, ACCEPT_RA_ALWAYS.to_owned()));
        }
    }
    for name in [FORWARD_V4, FORWARD_V6] {
        if sysctls.read(name).is_some() {
            required.push((name.to_owned(), "1".to_owned()));
        }
    }
    required
}

/// The `accept_ra` setting of an interface; dots of its name are written as slashes (sysctl(8)).
fn accept_ra_sysctl(interface: &str) -> String {
    format!("net.ipv6.conf.{}.accept_ra", interface.replace('.', "/"))
}

/// Restores what a killed run has left: restored items, and errors. None: a run is active.
pub(crate) fn restore(run_dir: &Path) -> Option<(Vec<String>, Vec<String>)> {
    let _lock = match InstanceLock::acquire(run_dir, Role::Gateway) {
        Err(InstanceLockError::AlreadyHeld(_)) => return None,
        Err(error) => return Some((Vec::new(), vec![error.to_string()])),
        Ok(lock) => lock,
    };
    Some(match UndoLog::open_named(run_dir, UNDO_LOG_NAME) {
        Ok(mut undo_log) => Sysctls::of_system().restore(&mut undo_log),
        Err(error) => (Vec::new(), vec![error.to_string()]),
    })
}

/// Changes of such a run that are not restored yet. None: a run is active.
pub(crate) fn leftovers(run_dir: &Path) -> Option<Vec<String>> {
    if InstanceLock::holder(run_dir, Role::Gateway).is_some() {
        return None;
    }
    let undo_log = UndoLog::open_named(run_dir, UNDO_LOG_NAME);
    let changes = undo_log.map(|undo_log| undo_log.changes().clone()).unwrap_or_default();
    Some(changes.settings.iter().map(|entry| format!("{}={}", entry.name, entry.value)).collect())
}

/// File name prefix of the undo log.
const UNDO_LOG_NAME: &str = "edge";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::sysctl::is_accept_ra_sysctl;
    use super::*;

    /// A `/proc/sys` with these settings.
    fn sysctl_fixture(sysctls: &[(&str, &str)]) -> (tempfile::TempDir, Sysctls) {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in sysctls {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{value}\n")).unwrap();
        }
        let sysctls = Sysctls::with_root(root.path().to_owned());
        (root, sysctls)
    }

    fn apply_forwarding(run_dir: &Path, sysctls: &Sysctls) -> Forwarding {
        let lock = InstanceLock::acquire(run_dir, Role::Gateway).unwrap();
        let undo_log = UndoLog::open_named(run_dir, UNDO_LOG_NAME).unwrap();
        let mut forwarding =
            Forwarding { undo_log, changes: Vec::new(), enabled_here: (false, false), _lock: lock };
        forwarding.apply_in(sysctls, &["lan0".to_owned()], |_| Ok(())).unwrap();
        forwarding
    }

    const HOST_SYSCTLS: [(&str, &str); 6] = [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/lan0/accept_ra", "1"),
        ("net/ipv6/conf/wwan0/accept_ra", "1"),
        ("net/ipv6/conf/eth0.7/accept_ra", "0"),
    ];

    #[test]
    fn links_accept_router_advertisements_before_forwarding_is_enabled() {
        let (_root, sysctls) = sysctl_fixture(&HOST_SYSCTLS);
        let required = required_sysctls(&sysctls, &["lan0".to_owned()]);
        let names: Vec<&str> = required.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["net.ipv6.conf.default.accept_ra", "net.ipv6.conf.wwan0.accept_ra", FORWARD_V4, FORWARD_V6]
        );
    }

    #[test]
    fn after_a_crash_the_first_values_are_restored() {
        let ((root, sysctls), run_dir) = (sysctl_fixture(&HOST_SYSCTLS), tempfile::tempdir().unwrap());
        let mut killed = apply_forwarding(run_dir.path(), &sysctls);
        assert_eq!(killed.enabled_here, (true, true));
        // As with a killed process: its undo log stays, its lock ends.
        killed.undo_log = UndoLog::open_named(Path::new("/nonexistent"), UNDO_LOG_NAME).unwrap();
        drop(killed);
        let mut next = apply_forwarding(run_dir.path(), &sysctls);
        assert_eq!((next.enabled_here, next.changes.len()), ((true, true), 0));
        let (restored, errors) = sysctls.restore(&mut next.undo_log);
        assert_eq!((restored.len(), errors.len()), (4, 0), "{restored:?} {errors:?}");
        for (name, value) in HOST_SYSCTLS {
            assert_eq!(fs::read_to_string(root.path().join(name)).unwrap().trim(), value, "{name}");
        }
    }

    #[test]
    fn a_host_that_forwarded_before_still_forwards_afterwards() {
        let ((root, sysctls), run_dir) =
            (sysctl_fixture(&[("net/ipv4/ip_forward", "1")]), tempfile::tempdir().unwrap());
        let mut forwarding = apply_forwarding(run_dir.path(), &sysctls);
        assert_eq!((forwarding.enabled_here, forwarding.changes.len()), ((false, false), 0));
        sysctls.restore(&mut forwarding.undo_log);
        assert_eq!(fs::read_to_string(root.path().join("net/ipv4/ip_forward")).unwrap().trim(), "1");
    }

    #[test]
    fn settings_reset_by_another_program_are_restored_or_reported() {
        let (root, sysctls) =
            sysctl_fixture(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]);
        let (mut monitor, now) = (ForwardingMonitor::new((true, false)), Instant::now());
        assert_eq!(monitor.check_in(&sysctls, now), (vec![], vec![]));
        let reset = || fs::write(root.path().join("net/ipv4/ip_forward"), "0").unwrap();
        for _ in 0..6 {
            reset();
            let (repaired, problems) = monitor.check_in(&sysctls, now);
            assert!(repaired[0].contains("restored to 1") && problems.is_empty(), "{repaired:?} {problems:?}");
            assert_eq!(sysctls.read(FORWARD_V4).as_deref(), Some("1"));
        }
        reset();
        let (repaired, problems) = monitor.check_in(&sysctls, now);
        assert!(repaired.is_empty() && problems[0].contains("not forwarded until it is 1"), "{problems:?}");
        fs::write(root.path().join("net/ipv4/ip_forward"), "1").unwrap();
        fs::write(root.path().join("net/ipv6/conf/all/forwarding"), "0").unwrap();
        let (_, problems) = monitor.check_in(&sysctls, now);
        assert!(
            problems.len() == 1 && problems[0].contains("`sysctl -w net.ipv6.conf.all.forwarding=1`"),
            "{problems:?}"
        );
    }

    #[test]
    fn only_settings_of_interfaces_are_believed_to_be_ours() {
        for name in ["net.ipv6.conf.wwan0.accept_ra", "net.ipv6.conf.eth0/7.accept_ra"] {
            assert!(is_accept_ra_sysctl(name), "{name}");
        }
        for name in ["net.ipv6.conf..accept_ra", "net.ipv6.conf.//.accept_ra", "net.ipv6.conf.a.b.accept_ra", "x"] {
            assert!(!is_accept_ra_sysctl(name), "{name}");
        }
    }
}
