//! Listeners to the kernel's MPTCP events: other path managers, and monitoring programs.
//!
//! The listeners are found in `/proc/net/netlink` by the multicast group of the events, and their processes by
//! `/proc/PID/fd`.
//!
//! The file shows only the first 32 groups of a socket. The group of the MPTCP events was 9 on every kernel that was
//! examined, because families get their groups in the order in which the kernel initializes them.

use std::fs;

use marline_core::wire::netlink::{GenlFamily, messages, mptcp};
use marline_sys::netlink::{Protocol, Socket};

/// A program that receives MPTCP events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventListener {
    /// Its process id, if it can be determined.
    pub process: Option<u32>,
    /// Its name; empty if it cannot be determined.
    pub name: String,
}

impl EventListener {
    /// `mptcpd (process 812)`.
    pub(crate) fn describe(&self) -> String {
        match (self.name.as_str(), self.process) {
            ("", None) => "an unknown program".to_owned(),
            ("", Some(process)) => format!("process {process}"),
            (name, None) => name.to_owned(),
            (name, Some(process)) => format!("{name} (process {process})"),
        }
    }

    /// Whether it is a daemon of marline: no other part of marline listens.
    pub(super) fn is_daemon(&self) -> bool {
        self.name == "marline"
    }

    /// Whether it is known to be a mere monitor: `ip mptcp monitor`. marline counts as well, whose daemons exclude
    /// each other by their lock.
    const fn is_known_monitor(name: &str) -> bool {
        matches!(name.as_bytes(), b"ip" | b"marline")
    }
}

/// The listener that manages paths: mptcpd in any case, and any other program that is no known monitor if the path
/// manager is set to userspace.
pub(crate) fn other_path_manager(listeners: &[EventListener], is_userspace: bool) -> Option<&EventListener> {
    let is_path_manager = |listener: &&EventListener| {
        listener.name == "mptcpd" || (is_userspace && !EventListener::is_known_monitor(&listener.name))
    };
    listeners.iter().find(is_path_manager)
}

/// Listeners in this network namespace, without this process.
pub(crate) fn event_listeners() -> Vec<EventListener> {
    let Some(group) = event_group() else { return Vec::new() };
    let table = fs::read_to_string("/proc/thread-self/net/netlink").unwrap_or_default();
    let candidates = listening_sockets(&table, group).into_iter().map(|(port, inode)| {
        let process = socket_owner(port, inode);
        let name = process.and_then(|process| fs::read_to_string(format!("/proc/{process}/comm")).ok());
        EventListener { process, name: name.unwrap_or_default().trim().to_owned() }
    });
    candidates.filter(|listener| listener.process != Some(std::process::id())).collect()
}

/// Multicast group of MPTCP events; none: the kernel has none.
pub(crate) fn event_group() -> Option<u32> {
    let socket = Socket::open(Protocol::Generic).ok()?;
    let reply = socket.request(&GenlFamily::lookup(mptcp::FAMILY).finish(1)).ok()?;
    messages(&reply).find_map(|message| GenlFamily::parse(&message))?.group(mptcp::EVENTS)
}

/// Netlink port and inode of each generic netlink socket that is subscribed to the group.
fn listening_sockets(table: &str, group: u32) -> Vec<(u32, u64)> {
    const GENERIC: &str = "16";
    let Some(bit) = group.checked_sub(1).and_then(|shift| 1_u32.checked_shl(shift)) else { return Vec::new() };
    let mut sockets = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, protocol, port, groups, .., inode] = fields[..] else { continue };
        let is_listening = u32::from_str_radix(groups, 16).is_ok_and(|groups| groups & bit != 0);
        if let (true, GENERIC, Ok(port), Ok(inode)) = (is_listening, protocol, port.parse(), inode.parse()) {
            sockets.push((port, inode));
        }
    }
    sockets
}

/// The process that holds a socket. The first netlink socket of a process has its process id as port. Otherwise all
/// processes are searched, as far as permitted: open files of other users, or of processes with further capabilities,
/// may be unreadable.
fn socket_owner(port: u32, inode: u64) -> Option<u32> {
    let link_target = format!("socket:[{inode}]");
    let holds_socket = |process: u32| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| file.as_os_str() == link_target.as_str())
    };
    let is_readable = || {
        let files = fs::read_dir(format!("/proc/{port}/fd")).into_iter().flatten().flatten();
        files.map(|file| fs::read_link(file.path())).any(|link| link.is_ok())
    };
    if holds_socket(port) {
        return Some(port);
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holder = processes.find(|process| holds_socket(*process));
    // If the files of that process cannot be read, the port is the best guess, provided that such a process exists.
    holder.or_else(|| (!is_readable() && fs::metadata(format!("/proc/{port}")).is_ok()).then_some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000071256081 0   0          00000000 0        0        0     2        0        4
00000000841ee05a 16  812        00000100 0        0        0     2        0        1506
00000000841ee05b 16  900        00000080 0        0        0     2        0        1507
00000000841ee05c 15  901        00000100 0        0        0     2        0        1508
00000000841ee05d 16  3012345678 00000180 0        0        0     2        0        1509
short line
";

    #[test]
    fn generic_sockets_of_the_group_are_found() {
        assert_eq!(listening_sockets(TABLE, 9), [(812, 1506), (3_012_345_678, 1509)]);
        for group in [0, 33, u32::MAX] {
            assert_eq!(listening_sockets(TABLE, group), [], "no such bit: {group}");
        }
    }

    #[test]
    fn mptcpd_always_counts_as_path_manager_and_others_in_userspace_mode() {
        let listener = |name: &str| EventListener { process: Some(7), name: name.into() };
        for (name, is_userspace, is_rival) in [
            ("mptcpd", false, true),
            ("mptcpd", true, true),
            ("ip", true, false),
            ("marline", true, false),
            ("other", false, false),
            ("other", true, true),
            ("", true, true),
        ] {
            assert_eq!(
                other_path_manager(&[listener(name)], is_userspace).is_some(),
                is_rival,
                "{name} {is_userspace}"
            );
        }
    }

    #[test]
    fn a_listener_is_found_by_the_process_that_holds_its_socket() {
        marline_net::testing::in_a_network(|| {
            let Some(group) = event_group() else {
                eprintln!("skipped: this kernel has no MPTCP path manager");
                return;
            };
            assert_eq!(event_listeners(), []);
            let mut monitor = std::process::Command::new("ip")
                .args(["mptcp", "monitor"])
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let mut found = Vec::new();
            for _ in 0..500 {
                found = event_listeners();
                if found.iter().any(|listener| listener.name == "ip") {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            monitor.kill().unwrap();
            monitor.wait().unwrap();
            let expected = EventListener { process: Some(monitor.id()), name: "ip".into() };
            assert_eq!(found, [expected], "group {group}");
        });
    }
}
