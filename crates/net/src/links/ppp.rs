//! What is behind a PPP device: an access line, or a VPN.
//!
//! The kernel shows the same device for DSL (PPPoE), for a modem on a serial port, and for L2TP, PPTP and SSL VPNs that
//! run pppd on a pseudo-terminal. A PPP device is a VPN unless something proves that it is an access line, because half of
//! a download beside a VPN is worse than one link too few. The proofs, in this order:
//!
//! 1. pppd's database (`/run/pppd2.tdb`) and its command line (by `/run/pppN.pid`) name the device that it runs on: a network
//!    interface means PPPoE, a serial port with hardware behind it a modem. The pppd must still run.
//! 2. `/proc/net/pppol2tp` names the PPP devices of the kernel's L2TP sessions: VPNs.
//! 3. `/proc/net/pppoe` lists the PPPoE sessions of this network namespace (ethertype 0x8864) with the interface below each,
//!    but not their PPP devices. If there are at least as many of them as devices left, all of these are PPPoE.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use marline_core::link::LinkKind;

use super::kind::Facts;
use super::named::is_interface_name;

/// What a PPP device runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Below {
    /// PPPoE, and the interface with the session, if it is known.
    Ethernet(Option<String>),
    /// A serial port: a modem.
    Modem,
    /// Something that other links carry.
    Vpn,
}

const ARPHRD_PPP: u16 = 512;
/// Chosen: a hundred times what a busy machine's files have.
const MOST: u64 = 1 << 20;

/// Whether it is a PPP device.
pub(super) fn is_ppp(link: &Facts) -> bool {
    link.is("ppp") || (link.info.is_none() && link.hardware == ARPHRD_PPP)
}

/// What this PPP device runs on, by the files below `root`.
pub(super) fn below(link: &Facts, all: &BTreeMap<u32, Facts>, root: &Path) -> Below {
    if let Some(below) = proof(link, all, root) {
        return below;
    }
    let sessions = sessions(root);
    let (mut known, mut unknown) = (0, 0);
    for other in all.values().filter(|other| is_ppp(other)) {
        match proof(other, all, root) {
            Some(Below::Ethernet(_)) => known += 1,
            Some(_) => {}
            None => unknown += 1,
        }
    }
    if sessions.is_empty() || sessions.len() < known + unknown {
        return Below::Vpn;
    }
    let first = sessions.first().filter(|first| sessions.iter().all(|other| other == *first));
    Below::Ethernet(first.cloned())
}

/// What is said of this very device.
fn proof(link: &Facts, all: &BTreeMap<u32, Facts>, root: &Path) -> Option<Below> {
    if !is_interface_name(&link.name) {
        return None;
    }
    if is_l2tp(&link.name, root) {
        return Some(Below::Vpn);
    }
    let (device, words) = pppd(&link.name, root)?;
    let ethernet = |name: &str| all.values().find(|other| other.name == name && !is_ppp(other));
    let name = device.as_deref().map(|device| device.trim_start_matches("/dev/").trim_start_matches("nic-"));
    if let Some(below) = name.and_then(ethernet) {
        return Some(Below::Ethernet(Some(below.name.clone())));
    }
    if name.is_some_and(|name| is_serial(name, root)) {
        return Some(Below::Modem);
    }
    let says = |what: &str| words.iter().any(|word| word.contains(what));
    if says("pppoe") && !says("l2tp") && !says("pptp") {
        // The program `pppoe`, which carries the sessions itself, or a plugin whose device is in a file of options.
        return Some(Below::Ethernet(None));
    }
    // A pseudo-terminal: another program carries the packets.
    name.map(|_| Below::Vpn)
}

/// The device that a running pppd has for this interface, and the words of its command line.
fn pppd(interface: &str, root: &Path) -> Option<(Option<String>, Vec<String>)> {
    let pid_file = text(&root.join(format!("run/{interface}.pid")));
    let recorded = ["run/pppd2.tdb", "run/pppd/pppd2.tdb", "var/run/pppd2.tdb"]
        .iter()
        .find_map(|path| record(&bytes(&root.join(path)), interface));
    let pid = pid_file.lines().next().map(str::trim).filter(|pid| is_number(pid)).map(str::to_owned);
    let pid = pid.or_else(|| recorded.as_ref().map(|(pid, _)| pid.clone()))?;
    // A record of one that was killed stays, and the interface may be another one by now.
    if !text(&root.join(format!("proc/{pid}/comm"))).trim_end().starts_with("pppd") {
        return None;
    }
    let words = text(&root.join(format!("proc/{pid}/cmdline")));
    let words: Vec<String> = words.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let device = recorded.filter(|(of, _)| *of == pid).map(|(_, device)| device);
    let named = || words.iter().find(|word| word.starts_with("/dev/") || word.starts_with("nic-")).cloned();
    Some((device.or_else(named), words))
}

/// The process and the device that pppd's database has for an interface: records are text, `NAME=value;` each.
fn record(database: &[u8], interface: &str) -> Option<(String, String)> {
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    database.split(|byte| !printable(byte)).find_map(|run| {
        let run = std::str::from_utf8(run).ok()?;
        let value = |name: &str| run.split(';').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let pid = value("PPPD_PID").filter(|pid| is_number(pid))?;
        (value("IFNAME") == Some(interface)).then(|| Some((pid.to_owned(), value("DEVICE")?.to_owned())))?
    })
}

/// Whether it is a serial port with hardware behind it, a Bluetooth one included.
fn is_serial(name: &str, root: &Path) -> bool {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let class = root.join("sys/class/tty").join(name);
    plain && (class.join("device").exists() || (name.starts_with("rfcomm") && class.exists()))
}

fn is_l2tp(interface: &str, root: &Path) -> bool {
    let sessions = text(&root.join("proc/net/pppol2tp"));
    sessions.lines().any(|line| line.trim().strip_prefix("interface ") == Some(interface))
}

/// The interfaces below PPPoE sessions, one for each session: number, address, interface.
fn sessions(root: &Path) -> Vec<String> {
    let list = text(&root.join("proc/net/pppoe"));
    let lower =
        |line: &str| line.split_whitespace().nth(2).filter(|name| is_interface_name(name)).map(str::to_owned);
    list.lines().skip(1).filter_map(lower).collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() < 11 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What cannot be read proves nothing.
    let _ = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    bytes
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&bytes(path)).into_owned()
}

/// The kind of link that this means; `lower`: of the interface with this name.
pub(super) fn kind(below: &Below, lower: impl FnOnce(&str) -> Option<LinkKind>) -> LinkKind {
    match below {
        Below::Ethernet(name) => name.as_deref().and_then(lower).unwrap_or(LinkKind::Ethernet),
        Below::Modem => LinkKind::Lte,
        Below::Vpn => LinkKind::Tunnel,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn links(names: &[&str]) -> BTreeMap<u32, Facts> {
        let facts = |(index, name): (u32, &&str)| {
            let info = name.starts_with("ppp").then(|| "ppp".to_owned());
            (index, Facts { index, name: (*name).into(), info, ..Facts::default() })
        };
        (1..).zip(names).map(facts).collect()
    }

    fn root(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn of(name: &str, names: &[&str], files: &[(&str, &str)]) -> Below {
        let (all, root) = (links(names), root(files));
        let link = all.values().find(|link| link.name == name).unwrap();
        below(link, &all, root.path())
    }

    const PPPOE: (&str, &str) =
        ("proc/net/pppoe", "Id       Address              Device\n0000002A 02:00:00:00:00:01     eth1\n");
    const COMM: (&str, &str) = ("proc/77/comm", "pppd\n");

    #[test]
    fn without_a_proof_it_is_a_vpn() {
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &[]), Below::Vpn);
        let header = ("proc/net/pppoe", "Id       Address              Device\n");
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &[header]), Below::Vpn);
        // openfortivpn and sstpc: pppd on a pseudo-terminal.
        let fortinet =
            [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\x00/dev/pts/3\x00230400\0:192.0.2.1\0")];
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &fortinet), Below::Vpn);
        let pptp =
            [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0pty\0pptp vpn.example --nolaunchpppd\0")];
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &pptp), Below::Vpn);
    }

    #[test]
    fn a_session_of_pppoe_is_a_line() {
        assert_eq!(of("ppp0", &["eth1", "ppp0"], &[PPPOE]), Below::Ethernet(Some("eth1".into())));
        // One session and two devices: which is which is known only if something says so of one of them.
        assert_eq!(of("ppp0", &["eth1", "ppp0", "ppp1"], &[PPPOE]), Below::Vpn);
        let l2tp = ("proc/net/pppol2tp", "PPPoL2TP driver info, V2.0\n  SESSION 'x'\n   interface ppp1\n");
        assert_eq!(of("ppp0", &["eth1", "ppp0", "ppp1"], &[PPPOE, l2tp]), Below::Ethernet(Some("eth1".into())));
        assert_eq!(of("ppp1", &["eth1", "ppp0", "ppp1"], &[PPPOE, l2tp]), Below::Vpn);
        // A VPN over DSL, which pppd says of both.
        let database = "\x00junk\x01PPPD_PID=77;DEVICE=eth1;IFNAME=ppp0;\x00\x02PPPD_PID=78;DEVICE=/dev/pts/1;IFNAME=ppp1;\x00";
        let both = [("run/pppd2.tdb", database), COMM, ("proc/78/comm", "pppd\n"), PPPOE];
        assert_eq!(of("ppp0", &["eth1", "ppp0", "ppp1"], &both), Below::Ethernet(Some("eth1".into())));
        assert_eq!(of("ppp1", &["eth1", "ppp0", "ppp1"], &both), Below::Vpn);
        // The program `pppoe`, of which the kernel knows no session.
        let program = [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0pty\0/usr/sbin/pppoe -I eth1\0")];
        assert_eq!(of("ppp0", &["eth1", "ppp0"], &program), Below::Ethernet(None));
    }

    #[test]
    fn a_modem_on_a_serial_port_is_a_line_and_a_name_alone_is_not() {
        let modem = [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0/dev/ttyUSB2\x00115200\0")];
        let hardware = ("sys/class/tty/ttyUSB2/device/uevent", "");
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &[&modem[..], &[hardware]].concat()), Below::Modem);
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &modem), Below::Vpn, "a link to a pseudo-terminal");
        let blue = [("run/pppd2.tdb", "PPPD_PID=77;DEVICE=/dev/rfcomm0;IFNAME=ppp0;"), COMM];
        let class = ("sys/class/tty/rfcomm0/uevent", "");
        assert_eq!(of("ppp0", &["eth0", "ppp0"], &[&blue[..], &[class]].concat()), Below::Modem);
    }

    #[test]
    fn what_a_dead_pppd_has_left_proves_nothing() {
        let left = ("run/pppd2.tdb", "PPPD_PID=77;DEVICE=eth1;IFNAME=ppp0;");
        assert_eq!(of("ppp0", &["eth1", "ppp0"], &[left]), Below::Vpn);
        assert_eq!(of("ppp0", &["eth1", "ppp0"], &[left, ("proc/77/comm", "bash\n")]), Below::Vpn);
        let noise = ("run/pppd2.tdb", "PPPD_PID=../../x;DEVICE=eth1;IFNAME=ppp0;IFNAME=;;==;");
        assert_eq!(of("ppp0", &["eth1", "ppp0"], &[noise, ("run/ppp0.pid", "../../etc\n")]), Below::Vpn);
    }
}
