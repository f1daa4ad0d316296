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

use super::forwarding::{FORWARD_V4, FORWARD_V6, is_advertisements};
use super::ledger::{Changes, Ledger, Setting};
use super::{Mode, step};

/// Where settings are; a test brings a directory of its own.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    root: PathBuf,
}

pub(crate) const ENABLED: &str = "net.mptcp.enabled";
pub(crate) const PATH_MANAGER: &str = "net.mptcp.path_manager";
pub(crate) const PM_TYPE: &str = "net.mptcp.pm_type";
/// Least, default and most of TCP's receive buffer, in bytes. Read and written is the default alone.
pub(super) const BUFFER: &str = "net.ipv4.tcp_rmem";
/// The receive buffer that a subflow begins with, in bytes. chosen: half of it is window, which is 140 Mbit/s at 60 ms and 56 at
/// 150 ms; memory is used only for what is received and not read.
const ROOM: u32 = 2 << 20;

impl Settings {
    /// Those of this network.
    pub(crate) fn system() -> Self {
        Self { root: PathBuf::from("/proc/sys") }
    }

    #[cfg(test)]
    pub(crate) fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// A setting's value; none: this kernel has no such setting.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        if name == BUFFER {
            return self.buffer().map(|[_, usual, _]| usual.to_string());
        }
        fs::read_to_string(self.path(name)).ok().map(|text| text.trim().to_owned())
    }

    /// The three values of [`BUFFER`].
    fn buffer(&self) -> Option<[u32; 3]> {
        let text = fs::read_to_string(self.path(BUFFER)).ok()?;
        let sizes: Option<Vec<u32>> = text.split_whitespace().map(|size| size.parse().ok()).collect();
        sizes?.try_into().ok()
    }

    /// A setting of one interface, whose name may have dots in it.
    pub(crate) fn read_of_interface(&self, folder: &str, interface: &str, name: &str) -> Option<String> {
        let path = self.root.join(folder).join(interface).join(name);
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    /// Whether this process may write it.
    pub(crate) fn is_writable(&self, name: &str) -> bool {
        self.may_write(name).is_ok()
    }

    fn may_write(&self, name: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.path(name)).map(drop)
    }

    pub(super) fn write(&self, name: &str, value: &str) -> io::Result<()> {
        step()?;
        match self.buffer().filter(|_| name == BUFFER) {
            Some([least, _, most]) => fs::write(self.path(name), format!("{least} {value} {most}")),
            None => fs::write(self.path(name), value),
        }
    }

    /// Dots separate, and an interface's own dots are written as slashes (sysctl(8)).
    fn path(&self, name: &str) -> PathBuf {
        let swapped = |letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        self.root.join(name.chars().map(swapped).collect::<String>())
    }

    /// The interfaces that have settings of IPv6, and `default` for those to come, sorted.
    pub(super) fn interfaces_of_ipv6(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("net/ipv6/conf")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name != "all").collect();
        names.sort();
        names
    }

    /// Whether this kernel has MPTCP.
    pub(crate) fn has_mptcp(&self) -> bool {
        self.read(ENABLED).is_some()
    }

    /// Whether paths are managed by a program.
    pub(crate) fn is_userspace(&self) -> bool {
        match self.read(PATH_MANAGER) {
            Some(name) => name == "userspace",
            None => self.read(PM_TYPE).is_some_and(|number| number != "0"),
        }
    }

    /// The setting of the path manager, and what it says for a mode.
    pub(super) fn manager(&self, mode: Mode) -> (&'static str, &'static str) {
        match (self.read(PATH_MANAGER).is_some(), mode) {
            (true, Mode::Userspace) => (PATH_MANAGER, "userspace"),
            (true, _) => (PATH_MANAGER, "kernel"),
            (false, Mode::Userspace) => (PM_TYPE, "1"),
            (false, _) => (PM_TYPE, "0"),
        }
    }

    /// What a run needs, as names and values.
    pub(super) fn wanted(&self, mode: Mode) -> Vec<(&'static str, String)> {
        let manager = self.manager(mode);
        let fixed = [(ENABLED, "1"), manager].map(|(name, value)| (name, value.to_owned()));
        let buffer = self.buffer().map(|[_, usual, most]| (BUFFER, usual.max(ROOM.min(most)).to_string()));
        fixed.into_iter().chain(buffer).collect()
    }

    /// Whether all that a run must change can be changed.
    ///
    /// # Errors
    /// The name of the first setting that cannot, and why.
    pub(super) fn may_lay(&self, mode: Mode) -> Result<(), (&'static str, io::Error)> {
        let changed = |(name, set): &(&str, String)| *name != BUFFER && self.read(name).as_ref() != Some(set);
        let mut changed = self.wanted(mode).into_iter().filter(changed);
        changed.try_for_each(|(name, _)| self.may_write(name).map_err(|error| (name, error)))
    }

    /// Makes the settings fit, with what they were in the ledger first. Returns a line for each that was changed. A path
    /// manager that is `dead` was a program's that has gone: the kernel's own is what is put back.
    ///
    /// # Errors
    /// The name of the setting, or nothing for the ledger, and why. What was changed until then is in the ledger.
    pub(super) fn lay(
        &self,
        mode: Mode,
        dead: bool,
        ledger: &mut Ledger,
    ) -> Result<Vec<String>, (String, io::Error)> {
        let (mut settings, mut changes) = (Vec::new(), Vec::new());
        let (manager, kernel) = self.manager(Mode::KernelPm);
        for (name, set) in self.wanted(mode) {
            let now = self.read(name).unwrap_or_default();
            let is_ours = |entry: &&Setting| entry.name == name && entry.is_ours(&now);
            let earlier = ledger.changes().settings.iter().find(is_ours);
            let was = match earlier {
                Some(entry) => entry.was.clone(),
                None if dead && name == manager => kernel.to_owned(),
                None => now.clone(),
            };
            // What gives way to what it was is an entry until it has.
            if was != set || now != set {
                let before = (now != was && now != set).then(|| now.clone());
                settings.push(Setting { name: name.into(), was, set: set.clone(), before });
            }
            if now != set {
                changes.push((name, now, set));
            }
        }
        ledger.write(Changes { settings, ..ledger.changes().clone() }).map_err(|error| (String::new(), error))?;
        let mut lines = Vec::new();
        for (name, was, set) in changes {
            match self.write(name, &set) {
                Ok(()) if dead && name == manager => lines.push(format!("{name}: {set} (it was {was})")),
                Ok(()) => lines.push(format!("{name}: {set} (it was {was}, and is put back at the end)")),
                Err(error) if name == BUFFER => lines.push(format!(
                    "{name}: stays {was}, as {set} cannot be set ({error}): a link that joins late may stay slow"
                )),
                Err(error) => return Err((name.to_owned(), error)),
            }
        }
        Ok(lines)
    }

    /// Puts back what the ledger knows, and strikes it out. Returns a line for each.
    ///
    /// # Errors
    /// One line for each that cannot be put back; it stays in the ledger.
    pub(super) fn restore(&self, ledger: &mut Ledger) -> (Vec<String>, Vec<String>) {
        let (mut lines, mut troubles, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for entry in ledger.changes().settings.clone() {
            let Setting { name, was, .. } = &entry;
            if !is_plausible(&entry) {
                // The ledger's folder may belong to a user who is less than root, and a name is a path.
                troubles.push(format!("{name}: no run changes that; somebody has written into the ledger"));
                continue;
            }
            match self.read(name) {
                Some(now) if now == *was => {}
                Some(now) if !entry.is_ours(&now) => {
                    lines.push(format!("{name}: left at {now}, which somebody else has set since"));
                }
                _ => match self.write(name, was) {
                    Ok(()) => lines.push(format!("{name}: {was} again")),
                    Err(error) => {
                        troubles.push(format!("{name}: cannot be set back to {was}: {error}"));
                        left.push(entry);
                    }
                },
            }
        }
        if let Err(error) = ledger.write(Changes { settings: left, ..ledger.changes().clone() }) {
            troubles.push(error.to_string());
        }
        (lines, troubles)
    }
}

impl Setting {
    /// Whether a run of ours may have set it to this.
    pub(super) fn is_ours(&self, now: &str) -> bool {
        now == self.set || self.before.as_deref() == Some(now)
    }
}

/// Whether a run could have noted this: one of our names, and a word or a size for a value.
fn is_plausible(entry: &Setting) -> bool {
    let is_word =
        |value: &str| value.len() <= 32 && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let fits = |value: &str| match entry.name.as_str() {
        BUFFER | FORWARD_V4 | FORWARD_V6 => value.parse::<u32>().is_ok(),
        name if is_advertisements(name) => value.parse::<u8>().is_ok(),
        ENABLED | PATH_MANAGER | PM_TYPE => is_word(value),
        _ => false,
    };
    fits(&entry.was) && fits(&entry.set)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    struct Machine {
        sysctl: tempfile::TempDir,
        run: tempfile::TempDir,
    }

    impl Machine {
        fn new(settings: &[(&str, &str)]) -> Self {
            let machine = Self { sysctl: tempfile::tempdir().unwrap(), run: tempfile::tempdir().unwrap() };
            for folder in ["net/mptcp", "net/ipv4"] {
                fs::create_dir_all(machine.sysctl.path().join(folder)).unwrap();
            }
            for (name, value) in settings {
                fs::write(machine.settings().path(name), format!("{value}\n")).unwrap();
            }
            machine
        }

        fn settings(&self) -> Settings {
            Settings::at(self.sysctl.path().to_owned())
        }

        fn ledger(&self) -> Ledger {
            Ledger::open(self.run.path()).unwrap()
        }

        fn buffer(&self) -> String {
            fs::read_to_string(self.settings().path(BUFFER)).unwrap().trim().to_owned()
        }

        fn lay(&self, mode: Mode) -> Vec<String> {
            self.settings().lay(mode, false, &mut self.ledger()).unwrap()
        }

        fn restore(&self) -> Vec<String> {
            let (lines, troubles) = self.settings().restore(&mut self.ledger());
            assert!(troubles.is_empty(), "{troubles:?}");
            assert_eq!(fs::read_dir(self.run.path()).unwrap().count(), 0, "the ledger is gone");
            lines
        }

        fn is_manager(&self, value: &str) {
            assert_eq!(self.settings().read(PATH_MANAGER).as_deref(), Some(value));
        }

        fn is(&self, values: &[&str]) {
            let now: Vec<_> = [ENABLED, PATH_MANAGER].map(|name| self.settings().read(name).unwrap()).into();
            assert_eq!(now, values);
        }
    }

    #[test]
    fn what_differs_is_set_and_put_back() {
        let machine = Machine::new(&[(ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let lines = machine.lay(Mode::Userspace);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[1], "net.mptcp.path_manager: userspace (it was kernel, and is put back at the end)");
        machine.is(&["1", "userspace"]);
        assert_eq!(machine.restore(), ["net.mptcp.enabled: 0 again", "net.mptcp.path_manager: kernel again"]);
        machine.is(&["0", "kernel"]);
    }

    #[test]
    fn what_fits_is_neither_set_nor_put_back() {
        let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "userspace")]);
        assert_eq!(machine.lay(Mode::Userspace), [""; 0]);
        assert_eq!(machine.restore(), [""; 0]);
        machine.is(&["1", "userspace"]);
    }

    #[test]
    fn after_a_crash_the_first_value_is_put_back_and_not_the_crashed_runs() {
        let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        machine.lay(Mode::Userspace);
        // It is killed; the next run finds the setting as it wants it.
        assert_eq!(machine.lay(Mode::Userspace), [""; 0]);
        machine.restore();
        machine.is(&["1", "kernel"]);
        // Killed again, and the next run wants the other path manager.
        machine.lay(Mode::Userspace);
        machine.lay(Mode::KernelPm);
        machine.is(&["1", "kernel"]);
        machine.restore();
        machine.is(&["1", "kernel"]);
    }

    #[test]
    fn a_path_manager_that_a_program_has_left_gives_way_to_the_kernels_own() {
        for mode in [Mode::Userspace, Mode::KernelPm] {
            let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "userspace")]);
            machine.settings().lay(mode, true, &mut machine.ledger()).unwrap();
            // It is killed, and the next run knows from the ledger.
            machine.lay(Mode::Userspace);
            machine.is(&["1", "userspace"]);
            machine.restore();
            machine.is(&["1", "kernel"]);
            let older = Machine::new(&[(ENABLED, "1"), (PM_TYPE, "1")]);
            older.settings().lay(mode, true, &mut older.ledger()).unwrap();
            older.restore();
            assert_eq!(older.settings().read(PM_TYPE).as_deref(), Some("0"));
        }
    }

    #[test]
    fn what_cannot_be_written_is_known_before_anything_is() {
        let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        machine.settings().may_lay(Mode::Userspace).unwrap();
        // A program that runs cannot be written, not even by root.
        let file = machine.settings().path(ENABLED);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", &file).unwrap();
        let (name, _) = machine.settings().may_lay(Mode::Userspace).unwrap_err();
        assert_eq!(name, ENABLED);
        machine.is_manager("kernel");
    }

    #[test]
    fn what_somebody_else_has_set_since_is_left_alone() {
        let machine = Machine::new(&[(ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        machine.lay(Mode::Userspace);
        fs::write(machine.settings().path(PATH_MANAGER), "bpf").unwrap();
        let lines = machine.restore();
        assert!(lines[1].contains("left at bpf, which somebody else has set since"), "{lines:?}");
        machine.is(&["0", "bpf"]);
    }

    #[test]
    fn a_late_subflow_has_room_and_what_is_larger_stays() {
        let cases = [
            ("4096\t131072\t6291456", "4096 2097152 6291456"),
            ("4096\t131072\t1000000", "4096 1000000 1000000"),
            ("4096\t4194304\t6291456", "4096\t4194304\t6291456"),
            ("not three sizes", "not three sizes"),
        ];
        for (was, set) in cases {
            let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "userspace"), (BUFFER, was)]);
            machine.lay(Mode::Userspace);
            assert_eq!(machine.buffer(), set);
            machine.restore();
            assert_eq!(machine.buffer(), was.replace('\t', if was == set { "\t" } else { " " }));
        }
    }

    #[test]
    fn what_somebody_else_makes_of_the_most_stays() {
        let fits = [(ENABLED, "1"), (PATH_MANAGER, "userspace")];
        let machine = Machine::new(&[fits[0], fits[1], (BUFFER, "4096 131072 6291456")]);
        machine.lay(Mode::Userspace);
        fs::write(machine.settings().path(BUFFER), "4096 2097152 33554432").unwrap();
        machine.restore();
        assert_eq!(machine.buffer(), "4096 131072 33554432");
    }

    #[test]
    fn a_buffer_that_cannot_be_written_is_told_and_no_more() {
        let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        // A file that nobody may write, root included.
        let sealed = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::io::write(&sealed, b"4096 131072 6291456").unwrap();
        fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        let place = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        std::os::unix::fs::symlink(place, machine.settings().path(BUFFER)).unwrap();
        let lines = machine.lay(Mode::Userspace);
        assert!(lines[1].starts_with("net.ipv4.tcp_rmem: stays 131072, as 2097152 cannot be set"), "{lines:?}");
        machine.is(&["1", "userspace"]);
        assert_eq!(machine.restore(), ["net.mptcp.path_manager: kernel again"]);
    }

    #[test]
    fn an_older_kernel_has_a_number_for_it() {
        let machine = Machine::new(&[(ENABLED, "1"), (PM_TYPE, "0")]);
        machine.lay(Mode::Userspace);
        assert_eq!(machine.settings().read(PM_TYPE).as_deref(), Some("1"));
        machine.restore();
        assert_eq!(machine.settings().read(PM_TYPE).as_deref(), Some("0"));
    }

    #[test]
    fn without_a_ledger_nothing_is_changed() {
        let machine = Machine::new(&[(ENABLED, "0"), (PATH_MANAGER, "kernel")]);
        let mut ledger = Ledger::open(std::path::Path::new("/nonexistent")).unwrap();
        machine.settings().lay(Mode::Userspace, false, &mut ledger).unwrap_err();
        machine.is(&["0", "kernel"]);
    }

    #[test]
    fn what_no_run_can_have_noted_is_not_written() {
        let machine = Machine::new(&[(ENABLED, "1"), (PATH_MANAGER, "kernel")]);
        let victim = machine.sysctl.path().join("victim");
        fs::write(&victim, "whole").unwrap();
        let note = |name: &str, was: &str| Setting {
            name: name.into(),
            was: was.into(),
            set: "userspace".into(),
            before: None,
        };
        let absolute = victim.to_string_lossy().replace('/', ".");
        let settings = vec![
            note(&absolute, "forged"),
            note("victim", "forged"),
            note(PATH_MANAGER, "two words\n"),
            note(BUFFER, "1 2 3"),
        ];
        let mut ledger = machine.ledger();
        ledger.write(Changes { settings, ..Changes::default() }).unwrap();
        let (lines, troubles) = machine.settings().restore(&mut ledger);
        assert_eq!((lines.len(), troubles.len()), (0, 4), "{troubles:?}");
        assert_eq!(fs::read_to_string(victim).unwrap(), "whole");
        machine.is(&["1", "kernel"]);
    }
}
