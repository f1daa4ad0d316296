//! The kernel's settings (sysctl) that a run needs, and how they are put back.
//!
//! In: how connections are to be told ([`Mode`]). Out: settings that fit, each written down before it is changed.
//!
//! 1. Only what differs is changed: `net.mptcp.enabled` where it is 0, and the path manager.
//! 2. A setting is put back only if it still says what was set: what somebody else has set since is his.
//!    So is what a program has left that has gone: nobody listens, and the kernel's own path manager is what is put back.
//! 3. Kernels before 6.16 know the path manager as a number (`net.mptcp.pm_type`).
//! 4. A subflow that joins late keeps the receive buffer of a new socket, as the kernel raises it only when that of the whole
//!    connection grows (`mptcp_rcv_space_adjust`): 128 KiB, which are 7 Mbit/s at 140 ms. So the default that sockets begin with
//!    is raised to [`ROOM`] (`net.ipv4.tcp_rmem`, which IPv6 goes by as well); what is larger stays. Of its three values only
//!    this one is ours, and a system that does not let us write it has slower late subflows, no more.
//!
//! CAP_NET_ADMIN alone may write them: the kernel gives everything below `net.` of a network namespace to whoever
//! administers that network (`net_ctl_permissions`), of whatever user he is.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::forwarding::{FORWARD_V4, FORWARD_V6, is_accept_ra_sysctl};
use super::undo_log::{Changes, SysctlEntry, UndoLog};
use super::{Mode, crash_point};

/// Where settings are; a test brings a directory of its own.
#[derive(Clone, Debug)]
pub(crate) struct Sysctls {
    proc_sys: PathBuf,
}

pub(crate) const MPTCP_ENABLED: &str = "net.mptcp.enabled";
pub(crate) const PATH_MANAGER: &str = "net.mptcp.path_manager";
pub(crate) const PM_TYPE: &str = "net.mptcp.pm_type";
/// Least, default and most of TCP's receive buffer, in bytes. Read and written is the default alone.
pub(super) const TCP_RMEM: &str = "net.ipv4.tcp_rmem";
/// The receive buffer that a subflow begins with, in bytes. chosen: half of it is window, which is 140 Mbit/s at 60 ms and 56 at
/// 150 ms; memory is used only for what is received and not read.
const MIN_DEFAULT_RCVBUF: u32 = 2 << 20;

impl Sysctls {
    /// Those of this network.
    pub(crate) fn of_system() -> Self {
        Self { proc_sys: PathBuf::from("/proc/sys") }
    }

    #[cfg(test)]
    pub(crate) fn with_root(proc_sys: PathBuf) -> Self {
        Self { proc_sys }
    }

    /// A setting's value; none: this kernel has no such setting.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        if name == TCP_RMEM {
            return self.tcp_rmem().map(|[_, default_size, _]| default_size.to_string());
        }
        fs::read_to_string(self.path(name)).ok().map(|text| text.trim().to_owned())
    }

    /// The three values of [`BUFFER`].
    fn tcp_rmem(&self) -> Option<[u32; 3]> {
        let text = fs::read_to_string(self.path(TCP_RMEM)).ok()?;
        let sizes: Option<Vec<u32>> = text.split_whitespace().map(|size| size.parse().ok()).collect();
        sizes?.try_into().ok()
    }

    /// A setting of one interface, whose name may have dots in it.
    pub(crate) fn read_of_interface(&self, dir: &str, interface: &str, name: &str) -> Option<String> {
        let path = self.proc_sys.join(dir).join(interface).join(name);
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    /// Whether this process may write it.
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

    /// Dots separate, and an interface's own dots are written as slashes (sysctl(8)).
    fn path(&self, name: &str) -> PathBuf {
        let swap = |character| match character {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        self.proc_sys.join(name.chars().map(swap).collect::<String>())
    }

    /// The interfaces that have settings of IPv6, and `default` for those to come, sorted.
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

    /// Whether paths are managed by a program.
    pub(crate) fn is_userspace(&self) -> bool {
        match self.read(PATH_MANAGER) {
            Some(name) => name == "userspace",
            None => self.read(PM_TYPE).is_some_and(|number| number != "0"),
        }
    }

    /// The setting of the path manager, and what it says for a mode.
    pub(super) fn path_manager_setting(&self, mode: Mode) -> (&'static str, &'static str) {
        match (self.read(PATH_MANAGER).is_some(), mode) {
            (true, Mode::Userspace) => (PATH_MANAGER, "userspace"),
            (true, _) => (PATH_MANAGER, "kernel"),
            (false, Mode::Userspace) => (PM_TYPE, "1"),
            (false, _) => (PM_TYPE, "0"),
        }
    }

    /// What a run needs, as names and values.
    pub(super) fn required(&self, mode: Mode) -> Vec<(&'static str, String)> {
        let path_manager = self.path_manager_setting(mode);
        let fixed = [(MPTCP_ENABLED, "1"), path_manager].map(|(name, value)| (name, value.to_owned()));
        let buffer = self.tcp_rmem().map(|[_, default_size, max_size]| {
            (TCP_RMEM, default_size.max(MIN_DEFAULT_RCVBUF.min(max_size)).to_string())
        });
        fixed.into_iter().chain(buffer).collect()
    }

    /// Whether all that a run must change can be changed.
    ///
    /// # Errors
    /// The name of the first setting that cannot, and why.
    pub(super) fn check_applicable(&self, mode: Mode) -> Result<(), (&'static str, io::Error)> {
        let needs_change =
            |(name, value): &(&str, String)| *name != TCP_RMEM && self.read(name).as_ref() != Some(value);
        let mut to_change = self.required(mode).into_iter().filter(needs_change);
        to_change.try_for_each(|(name, _)| self.check_writable(name).map_err(|error| (name, error)))
    }

    /// Makes the settings fit, with what they were in the ledger first. Returns a line for each that was changed. A path
    /// manager that is `dead` was a program's that has gone: the kernel's own is what is put back.
    ///
    /// # Errors
    /// The name of the setting, or nothing for the ledger, and why. What was changed until then is in the ledger.
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
            let is_own_entry = |entry: &&SysctlEntry| entry.name == name && entry.is_own_value(&current);
            let recorded = undo_log.changes().settings.iter().find(is_own_entry);
            let previous = match recorded {
                Some(entry) => entry.previous.clone(),
                None if is_abandoned && name == path_manager => kernel_value.to_owned(),
                None => current.clone(),
            };
            // What gives way to what it was is an entry until it has.
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
                Ok(()) => messages.push(format!("{name}: {value} (it was {previous}, and is put back at the end)")),
                Err(error) if name == TCP_RMEM => messages.push(format!(
                    "{name}: stays {previous}, as {value} cannot be set ({error}): a link that joins late may stay slow"
                )),
                Err(error) => return Err((name.to_owned(), error)),
            }
        }
        Ok(messages)
    }

    /// Puts back what the ledger knows, and strikes it out. Returns a line for each.
    ///
    /// # Errors
    /// One line for each that cannot be put back; it stays in the ledger.
    pub(super) fn restore(&self, undo_log: &mut UndoLog) -> (Vec<String>, Vec<String>) {
        let (mut messages, mut errors, mut remaining) = (Vec::new(), Vec::new(), Vec::new());
        for entry in undo_log.changes().settings.clone() {
            let SysctlEntry { name, previous, .. } = &entry;
            if !is_valid_entry(&entry) {
                // The ledger's folder may belong to a user who is less than root, and a name is a path.
                errors.push(format!("{name}: no run changes that; somebody has written into the ledger"));
                continue;
            }
            match self.read(name) {
                Some(current) if current == *previous => {}
                Some(current) if !entry.is_own_value(&current) => {
                    messages.push(format!("{name}: left at {current}, which somebody else has set since"));
                }
                _ => match self.write(name, previous) {
                    Ok(()) => messages.push(format!("{name}: {previous} again")),
                    Err(error) => {
                        errors.push(format!("{name}: cannot be set back to {previous}: {error}"));
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
    /// Whether a run of ours may have set it to this.
    pub(super) fn is_own_value(&self, current: &str) -> bool {
        current == self.value || self.crashed_value.as_deref() == Some(current)
    }
}

/// Whether a run could have noted this: one of our names, and a word or a size for a value.
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
            assert_eq!(fs::read_dir(self.run_dir.path()).unwrap().count(), 0, "the ledger is gone");
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
    fn what_differs_is_set_and_put_back() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let messages = fixture.apply(Mode::Userspace);
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[1], "net.mptcp.path_manager: userspace (it was kernel, and is put back at the end)");
        fixture.assert_values(&["1", "userspace"]);
        assert_eq!(fixture.restore(), ["net.mptcp.enabled: 0 again", "net.mptcp.path_manager: kernel again"]);
        fixture.assert_values(&["0", "kernel"]);
    }

    #[test]
    fn what_fits_is_neither_set_nor_put_back() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")]);
        assert_eq!(fixture.apply(Mode::Userspace), [""; 0]);
        assert_eq!(fixture.restore(), [""; 0]);
        fixture.assert_values(&["1", "userspace"]);
    }

    #[test]
    fn after_a_crash_the_first_value_is_put_back_and_not_the_crashed_runs() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        fixture.apply(Mode::Userspace);
        // It is killed; the next run finds the setting as it wants it.
        assert_eq!(fixture.apply(Mode::Userspace), [""; 0]);
        fixture.restore();
        fixture.assert_values(&["1", "kernel"]);
        // Killed again, and the next run wants the other path manager.
        fixture.apply(Mode::Userspace);
        fixture.apply(Mode::KernelPm);
        fixture.assert_values(&["1", "kernel"]);
        fixture.restore();
        fixture.assert_values(&["1", "kernel"]);
    }

    #[test]
    fn a_path_manager_that_a_program_has_left_gives_way_to_the_kernels_own() {
        for mode in [Mode::Userspace, Mode::KernelPm] {
            let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")]);
            fixture.sysctls().apply(mode, true, &mut fixture.undo_log()).unwrap();
            // It is killed, and the next run knows from the ledger.
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
    fn what_cannot_be_written_is_known_before_anything_is() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        fixture.sysctls().check_applicable(Mode::Userspace).unwrap();
        // A program that runs cannot be written, not even by root.
        let file = fixture.sysctls().path(MPTCP_ENABLED);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", &file).unwrap();
        let (name, _) = fixture.sysctls().check_applicable(Mode::Userspace).unwrap_err();
        assert_eq!(name, MPTCP_ENABLED);
        fixture.assert_path_manager("kernel");
    }

    #[test]
    fn what_somebody_else_has_set_since_is_left_alone() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        fixture.apply(Mode::Userspace);
        fs::write(fixture.sysctls().path(PATH_MANAGER), "bpf").unwrap();
        let messages = fixture.restore();
        assert!(messages[1].contains("left at bpf, which somebody else has set since"), "{messages:?}");
        fixture.assert_values(&["0", "bpf"]);
    }

    #[test]
    fn a_late_subflow_has_room_and_what_is_larger_stays() {
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
    fn what_somebody_else_makes_of_the_most_stays() {
        let fitting = [(MPTCP_ENABLED, "1"), (PATH_MANAGER, "userspace")];
        let fixture = SysctlFixture::new(&[fitting[0], fitting[1], (TCP_RMEM, "4096 131072 6291456")]);
        fixture.apply(Mode::Userspace);
        fs::write(fixture.sysctls().path(TCP_RMEM), "4096 2097152 33554432").unwrap();
        fixture.restore();
        assert_eq!(fixture.tcp_rmem(), "4096 131072 33554432");
    }

    #[test]
    fn a_buffer_that_cannot_be_written_is_told_and_no_more() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        // A file that nobody may write, root included.
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
        assert_eq!(fixture.restore(), ["net.mptcp.path_manager: kernel again"]);
    }

    #[test]
    fn an_older_kernel_has_a_number_for_it() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "1"), (PM_TYPE, "0")]);
        fixture.apply(Mode::Userspace);
        assert_eq!(fixture.sysctls().read(PM_TYPE).as_deref(), Some("1"));
        fixture.restore();
        assert_eq!(fixture.sysctls().read(PM_TYPE).as_deref(), Some("0"));
    }

    #[test]
    fn without_a_ledger_nothing_is_changed() {
        let fixture = SysctlFixture::new(&[(MPTCP_ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let mut undo_log = UndoLog::open(std::path::Path::new("/nonexistent")).unwrap();
        fixture.sysctls().apply(Mode::Userspace, false, &mut undo_log).unwrap_err();
        fixture.assert_values(&["0", "kernel"]);
    }

    #[test]
    fn what_no_run_can_have_noted_is_not_written() {
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
