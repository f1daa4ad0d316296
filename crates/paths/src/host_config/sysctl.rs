//! Kernel settings (sysctl) that a run needs: changes them, with a record of the previous values, and restores them.
//!
//! 1. Only settings that differ are changed: `net.mptcp.enabled` if it is 0, and the path manager.
//! 2. A setting is restored only if it still has the value of the run. A value that another program has set since is
//!    kept. If the previous value came from a program that has ended (userspace path manager without a listener), the
//!    kernel's own path manager is restored instead.
//! 3. Kernels before 6.16 represent the path manager as a number (`net.mptcp.pm_type`).
//! 4. A subflow that joins late keeps the receive buffer of a new socket, as the kernel raises it only when that of
//!    the whole connection grows (`mptcp_rcv_space_adjust`): 128 KiB, which limits it to at most 7 Mbit/s at 140 ms.
//!    Therefore the default receive buffer is raised to [`MIN_DEFAULT_RCVBUF`] (`net.ipv4.tcp_rmem`, which applies to
//!    IPv6 as well). A larger value is kept. Only the second of its three values is changed. If it cannot be written,
//!    late subflows are slower, and nothing else happens.
//!
//! CAP_NET_ADMIN suffices for writing, for any user: the kernel permits access to everything below `net.` of a
//! network namespace to processes with that capability in it (`net_ctl_permissions`).

use std::fs;
use std::io;
use std::path::PathBuf;

use super::undo_log::{Changes, SysctlEntry, UndoLog};
use super::{Mode, crash_point};

/// Access to settings below `/proc/sys`, or below another directory in tests.
#[derive(Clone, Debug)]
pub(crate) struct Sysctls {
    proc_sys: PathBuf,
}

/// Forwarding of IPv4.
pub(super) const FORWARD_V4: &str = "net.ipv4.ip_forward";
/// Forwarding of IPv6.
pub(super) const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
pub(crate) const MPTCP_ENABLED: &str = "net.mptcp.enabled";
pub(crate) const PATH_MANAGER: &str = "net.mptcp.path_manager";
pub(crate) const PM_TYPE: &str = "net.mptcp.pm_type";
/// Minimum, default and maximum of TCP's receive buffer, in bytes. Only the default is read and written.
pub(super) const TCP_RMEM: &str = "net.ipv4.tcp_rmem";
/// Initial receive buffer of a subflow, in bytes. Our choice: half of it is window, which permits 140 Mbit/s at 60 ms
/// and 56 at 150 ms. Memory is used only for data that is received and not yet read.
const MIN_DEFAULT_RCVBUF: u32 = 2 << 20;

impl Sysctls {
    /// The settings of this network namespace.
    pub(crate) fn of_system() -> Self {
        Self { proc_sys: PathBuf::from("/proc/sys") }
    }

    #[cfg(test)]
    pub(crate) fn with_root(proc_sys: PathBuf) -> Self {
        Self { proc_sys }
    }

    /// The value of a setting; none: this kernel does not have it.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        if name == TCP_RMEM {
            return self.tcp_rmem().map(|[_, default_size, _]| default_size.to_string());
        }
        fs::read_to_string(self.path(name)).ok().map(|text| text.trim().to_owned())
    }

    /// The three values of [`TCP_RMEM`].
    fn tcp_rmem(&self) -> Option<[u32; 3]> {
        let text = fs::read_to_string(self.path(TCP_RMEM)).ok()?;
        let sizes: Option<Vec<u32>> = text.split_whitespace().map(|size| size.parse().ok()).collect();
        sizes?.try_into().ok()
    }

    /// A setting of one interface; the name of the interface may contain dots.
    pub(crate) fn read_of_interface(&self, dir: &str, interface: &str, name: &str) -> Option<String> {
        let path = self.proc_sys.join(dir).join(interface).join(name);
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    /// Whether this process can write the setting.
    pub(crate) fn is_writable(&self, name: &str) -> bool {
        self.check_writable(name).is_ok()
    }

    fn check_writable(&self, name: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.path(name)).map(drop)
    }

    pub(super) fn write(&self, name: &str, value: &str) -> io::Result<()> {
        crash_point()?;
        match self.tcp_rmem().filter(|_| name == TCP_RMEM) {
            Some([min_size, _, max_size]) => fs::write(self.path(name), format!("{min_size} {value} {max_size}")),
            None => fs::write(self.path(name), value),
        }
    }

    /// Dots separate the parts of a name, and dots of interface names are written as slashes (sysctl(8)).
    fn path(&self, name: &str) -> PathBuf {
        let swap = |character| match character {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        self.proc_sys.join(name.chars().map(swap).collect::<String>())
    }

    /// Interfaces with IPv6 settings, and `default` for future ones, sorted.
    pub(super) fn ipv6_interfaces(&self) -> Vec<String> {
        let entries = fs::read_dir(self.proc_sys.join("net/ipv6/conf")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name != "all").collect();
        names.sort();
        names
    }

    /// Whether this kernel has MPTCP.
    pub(crate) fn has_mptcp(&self) -> bool {
        self.read(MPTCP_ENABLED).is_some()
    }

    /// Whether the path manager is set to userspace.
    pub(crate) fn is_userspace(&self) -> bool {
        match self.read(PATH_MANAGER) {
            Some(name) => name == "userspace",
            None => self.read(PM_TYPE).is_some_and(|number| number != "0"),
        }
    }

    /// Name of the path manager's setting on this kernel, and its value for a mode.
    pub(super) fn path_manager_setting(&self, mode: Mode) -> (&'static str, &'static str) {
        match (self.read(PATH_MANAGER).is_some(), mode) {
            (true, Mode::Userspace) => (PATH_MANAGER, "userspace"),
            (true, _) => (PATH_MANAGER, "kernel"),
            (false, Mode::Userspace) => (PM_TYPE, "1"),
            (false, _) => (PM_TYPE, "0"),
        }
    }

    /// Names and values of the settings that a run needs.
    pub(super) fn required(&self, mode: Mode) -> Vec<(&'static str, String)> {
        let path_manager = self.path_manager_setting(mode);
        let fixed = [(MPTCP_ENABLED, "1"), path_manager].map(|(name, value)| (name, value.to_owned()));
        let buffer = self.tcp_rmem().map(|[_, default_size, max_size]| {
            (TCP_RMEM, default_size.max(MIN_DEFAULT_RCVBUF.min(max_size)).to_string())
        });
        fixed.into_iter().chain(buffer).collect()
    }

    /// Checks that all required changes are possible. The receive buffer is optional.
    ///
    /// # Errors
    /// Name of the first setting that cannot be written, and the reason.
    pub(super) fn check_applicable(&self, mode: Mode) -> Result<(), (&'static str, io::Error)> {
        let needs_change =
            |(name, value): &(&str, String)| *name != TCP_RMEM && self.read(name).as_ref() != Some(value);
        let mut to_change = self.required(mode).into_iter().filter(needs_change);
        to_change.try_for_each(|(name, _)| self.check_writable(name).map_err(|error| (name, error)))
    }

    /// Sets the required values after recording the previous ones. Returns a line for each change. `is_abandoned`:
    /// the path manager was set by a program that has ended, so the kernel's own is recorded as the previous value.
    ///
    /// # Errors
    /// The name of the setting (empty for the undo log) and the reason. Changes made until then are in the undo log.
    pub(super) fn apply(
        &self,
        mode: Mode,
        is_abandoned: bool,
        undo_log: &mut UndoLog,
    ) -> Result<Vec<String>, (String, io::Error)> {
        let (mut entries, mut changes) = (Vec::new(), Vec::new());
        let (path_manager, kernel_value) = self.path_manager_setting(Mode::KernelPm);
        for (name, value) in self.required(mode) {
            let current = self.read(name).unwrap_or_default();
            // If a crashed run set the present value, its record of the previous value is kept.
            let is_own_entry = |entry: &&SysctlEntry| entry.name == name && entry.is_own_value(&current);
            let recorded = undo_log.changes().settings.iter().find(is_own_entry);
            let previous = match recorded {
                Some(entry) => entry.previous.clone(),
                None if is_abandoned && name == path_manager => kernel_value.to_owned(),
                None => current.clone(),
            };
            // A value of a crashed run that differs from its previous value needs an entry until it was replaced.
            if previous != value || current != value {
                let crashed_value = (current != previous && current != value).then(|| current.clone());
                entries.push(SysctlEntry { name: name.into(), previous, value: value.clone(), crashed_value });
            }
            if current != value {
                changes.push((name, current, value));
            }
        }
        undo_log
            .write(Changes { settings: entries, ..undo_log.changes().clone() })
            .map_err(|error| (String::new(), error))?;
        let mut messages = Vec::new();
        for (name, previous, value) in changes {
            match self.write(name, &value) {
                Ok(()) if is_abandoned && name == path_manager => messages.push(format!("{name}: {value} (it was {previous})")),
                Ok(()) => messages.push(format!("{name}: {value} (it was {previous}, and is restored at the end)")),
                Err(error) if name == TCP_RMEM => messages.push(format!(
                    "{name}: stays {previous}, as {value} cannot be set ({error}): subflows that join late may be slow"
                )),
                Err(error) => return Err((name.to_owned(), error)),
            }
        }
        Ok(messages)
    }

    /// Restores the recorded settings and removes their entries. Returns a line for each.
    ///
    /// # Errors
    /// One line for each setting that cannot be restored; its entry remains.
    pub(super) fn restore(&self, undo_log: &mut UndoLog) -> (Vec<String>, Vec<String>) {
        let (mut messages, mut errors, mut remaining) = (Vec::new(), Vec::new(), Vec::new());
        for entry in undo_log.changes().settings.clone() {
            let SysctlEntry { name, previous, .. } = &entry;
            if !is_valid_entry(&entry) {
                // The run directory may belong to an unprivileged user, and a name becomes a path below `/proc/sys`.
                errors.push(format!(
                    "{name}: ignored in the undo log: marline never changes this setting, the file was modified"
                ));
                continue;
            }
            match self.read(name) {
                Some(current) if current == *previous => {}
                Some(current) if !entry.is_own_value(&current) => {
                    messages.push(format!("{name}: left at {current}, which another program has set since"));
                }
                _ => match self.write(name, previous) {
                    Ok(()) => messages.push(format!("{name}: restored to {previous}")),
                    Err(error) => {
                        errors.push(format!("{name}: cannot be restored to {previous}: {error}"));
                        remaining.push(entry);
                    }
                },
            }
        }
        if let Err(error) = undo_log.write(Changes { settings: remaining, ..undo_log.changes().clone() }) {
            errors.push(error.to_string());
        }
        (messages, errors)
    }
}

impl SysctlEntry {
    /// Whether this value may come from a run of marline.
    pub(super) fn is_own_value(&self, current: &str) -> bool {
        current == self.value || self.crashed_value.as_deref() == Some(current)
    }
}

/// Whether marline could have written this entry: a known name, and a plausible value.
fn is_valid_entry(entry: &SysctlEntry) -> bool {
    let is_word =
        |value: &str| value.len() <= 32 && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let is_valid = |value: &str| match entry.name.as_str() {
        TCP_RMEM | FORWARD_V4 | FORWARD_V6 => value.parse::<u32>().is_ok(),
        name if is_accept_ra_sysctl(name) => value.parse::<u8>().is_ok(),
        MPTCP_ENABLED | PATH_MANAGER | PM_TYPE => is_word(value),
        _ => false,
    };
    is_valid(&entry.previous) && is_valid(&entry.value)
}

/// Whether it is the `accept_ra` setting of a valid interface name.
pub(super) fn is_accept_ra_sysctl(name: &str) -> bool {
    let interface =
        name.strip_prefix("net.ipv6.conf.").and_then(|prefix_removed| prefix_removed.strip_suffix(".accept_ra"));
    interface.is_some_and(|interface_part| {
        // In the path, dots of the name become slashes and slashes dots, so that names such as `..` must be excluded.
        let is_plain = interface_part.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
        is_plain && (1..=15).contains(&interface_part.len()) && !matches!(interface_part, "/" | "//")
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    struct SysctlFixture {
        proc_sys: tempfile::TempDir,
        run_dir: tempfile::TempDir,
    }

    impl SysctlFixture {
        fn new(entries: &[(&str, &str)]) -> Self {
            let fixture = Self { proc_sys: tempfile::tempdir().unwrap(), run_dir: tempfile::tempdir().unwrap() };
            for dir in ["net/mptcp", "net/ipv4"] {
                fs::create_dir_all(fixture.proc_sys.path().join(dir)).unwrap();
            }
            for (name, value) in entries {
                fs::write(fixture.sysctls().path(name), format!("{value}\n")).unwrap();
            }
            fixture
        }

        fn sysctls(&self) -> Sysctls {
            Sysctls::with_root(self.proc_sys.path().to_owned())
        }

        fn undo_log(&self) -> UndoLog {
            UndoLog::open(self.run_dir.path()).unwrap()
        }

        fn tcp_rmem(&self) -> String {
            fs::read_to_string(self.sysctls().path(TCP_RMEM)).unwrap().trim().to_owned()
        }

        fn apply(&self, mode: Mode) -> Vec<String> {
            self.sysctls().apply(mode, false, &mut self.undo_log()).unwrap()
        }

        fn restore(&self) -> Vec<String> {
            let (messages, errors) = self.sysctls().restore(&mut self.undo_log());
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(fs::read_dir(self.run_dir.path()).unwrap().count(), 0, "the undo log is removed");
            messages
        }

        fn assert_path_manager(&self, value: &str) {
            assert_eq!(self.sysctls().read(PATH_MANAGER).as_deref(), Some(value));
        }

        fn assert_values(&self, values: &[&str]) {
            let current: Vec<_> =
                [MPTCP_ENABLED, PATH_MANAGER].map(|name| self.sysctls().read(name).unwrap()).into();
            assert_eq!(current, values);
        }
    }

    #[test]
    fn settings_that_differ_are_set_and_restored() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let messages = fixture.apply(Mode::Userspace);
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[1], "net.mptcp.path_manager: userspace (it was kernel, and is restored at the end)");
        fixture.assert_values(&["1", "userspace"]);
        assert_eq!(
            fixture.restore(),
            ["net.mptcp.enabled: restored to 0", "net.mptcp.path_manager: restored to kernel"]
        );
        fixture.assert_values(&["0", "kernel"]);
    }

    #[test]
    fn settings_that_fit_are_neither_set_nor_restored() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")]);
        assert_eq!(fixture.apply(Mode::Userspace), [""; 0]);
        assert_eq!(fixture.restore(), [""; 0]);
        fixture.assert_values(&["1", "userspace"]);
    }

    #[test]
    fn after_a_crash_the_first_value_is_restored() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        fixture.apply(Mode::Userspace);
        // It is killed; the next run finds the setting as required.
        assert_eq!(fixture.apply(Mode::Userspace), [""; 0]);
        fixture.restore();
        fixture.assert_values(&["1", "kernel"]);
        // Killed again; the next run requires the other path manager.
        fixture.apply(Mode::Userspace);
        fixture.apply(Mode::KernelPm);
        fixture.assert_values(&["1", "kernel"]);
        fixture.restore();
        fixture.assert_values(&["1", "kernel"]);
    }

    #[test]
    fn an_abandoned_userspace_path_manager_is_replaced_by_the_kernels_own() {
        for mode in [Mode::Userspace, Mode::KernelPm] {
            let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")]);
            fixture.sysctls().apply(mode, true, &mut fixture.undo_log()).unwrap();
            // It is killed; the next run reads the previous value from the undo log.
            fixture.apply(Mode::Userspace);
            fixture.assert_values(&["1", "userspace"]);
            fixture.restore();
            fixture.assert_values(&["1", "kernel"]);
            let older = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PM_TYPE, "1")]);
            older.sysctls().apply(mode, true, &mut older.undo_log()).unwrap();
            older.restore();
            assert_eq!(older.sysctls().read(PM_TYPE).as_deref(), Some("0"));
        }
    }

    #[test]
    fn unwritable_settings_are_detected_before_any_change() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        fixture.sysctls().check_applicable(Mode::Userspace).unwrap();
        // The executable of a running process cannot be written, not even by root.
        let file = fixture.sysctls().path(MPTCP_ENABLED);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", &file).unwrap();
        let (name, _) = fixture.sysctls().check_applicable(Mode::Userspace).unwrap_err();
        assert_eq!(name, MPTCP_ENABLED);
        fixture.assert_path_manager("kernel");
    }

    #[test]
    fn values_that_another_program_has_set_since_are_kept() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        fixture.apply(Mode::Userspace);
        fs::write(fixture.sysctls().path(PATH_MANAGER), "bpf").unwrap();
        let messages = fixture.restore();
        assert!(messages[1].contains("left at bpf, which another program has set since"), "{messages:?}");
        fixture.assert_values(&["0", "bpf"]);
    }

    #[test]
    fn the_default_receive_buffer_is_raised_and_larger_values_are_kept() {
        let cases = [
            ("4096\t131072\t6291456", "4096 2097152 6291456"),
            ("4096\t131072\t1000000", "4096 1000000 1000000"),
            ("4096\t4194304\t6291456", "4096\t4194304\t6291456"),
            ("not three sizes", "not three sizes"),
        ];
        for (previous, value) in cases {
            let fixture =
                SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace"), (TCP_RMEM, previous)]);
            fixture.apply(Mode::Userspace);
            assert_eq!(fixture.tcp_rmem(), value);
            fixture.restore();
            assert_eq!(fixture.tcp_rmem(), previous.replace('\t', if previous == value { "\t" } else { " " }));
        }
    }

    #[test]
    fn a_changed_maximum_receive_buffer_is_kept() {
        let fitting = [(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")];
        let fixture = SysctlFixture::new(&[fitting[0], fitting[1], (TCP_RMEM, "4096 131072 6291456")]);
        fixture.apply(Mode::Userspace);
        fs::write(fixture.sysctls().path(TCP_RMEM), "4096 2097152 33554432").unwrap();
        fixture.restore();
        assert_eq!(fixture.tcp_rmem(), "4096 131072 33554432");
    }

    #[test]
    fn an_unwritable_receive_buffer_is_only_reported() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        // A file that cannot be written, not even by root.
        let sealed_file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::write(&sealed_file, b"4096 131072 6291456").unwrap();
        fcntl_add_seals(&sealed_file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        let fd_path = format!("/proc/self/fd/{}", sealed_file.as_raw_fd());
        std::os::unix::fs::symlink(fd_path, fixture.sysctls().path(TCP_RMEM)).unwrap();
        let messages = fixture.apply(Mode::Userspace);
        assert!(
            messages[1].starts_with("net.ipv4.tcp_rmem: stays 131072, as 2097152 cannot be set"),
            "{messages:?}"
        );
        fixture.assert_values(&["1", "userspace"]);
        assert_eq!(fixture.restore(), ["net.mptcp.path_manager: restored to kernel"]);
    }

    #[test]
    fn older_kernels_use_a_number_for_the_path_manager() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PM_TYPE, "0")]);
        fixture.apply(Mode::Userspace);
        assert_eq!(fixture.sysctls().read(PM_TYPE).as_deref(), Some("1"));
        fixture.restore();
        assert_eq!(fixture.sysctls().read(PM_TYPE).as_deref(), Some("0"));
    }

    #[test]
    fn without_an_undo_log_nothing_is_changed() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let mut undo_log = UndoLog::open(std::path::Path::new("/nonexistent")).unwrap();
        fixture.sysctls().apply(Mode::Userspace, false, &mut undo_log).unwrap_err();
        fixture.assert_values(&["0", "kernel"]);
    }

    #[test]
    fn forged_undo_log_entries_are_not_written() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        let victim = fixture.proc_sys.path().join("victim");
        fs::write(&victim, "whole").unwrap();
        let entry_of = |name: &str, previous: &str| SysctlEntry {
            name: name.into(),
            previous: previous.into(),
            value: "userspace".into(),
            crashed_value: None,
        };
        let absolute = victim.to_string_lossy().replace('/', ".");
        let entries = vec![
            entry_of(&absolute, "forged"),
            entry_of("victim", "forged"),
            entry_of(PATH_MANAGER, "two words\n"),
            entry_of(TCP_RMEM, "1 2 3"),
        ];
        let mut undo_log = fixture.undo_log();
        undo_log.write(Changes { settings: entries, ..Changes::default() }).unwrap();
        let (messages, errors) = fixture.sysctls().restore(&mut undo_log);
        assert_eq!((messages.len(), errors.len()), (0, 4), "{errors:?}");
        assert_eq!(fs::read_to_string(victim).unwrap(), "whole");
        fixture.assert_values(&["1", "kernel"]);
    }
}
