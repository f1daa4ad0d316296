//! Determines what a PPP device runs on: an access line, a modem, or a VPN.
//!
//! The kernel shows the same kind of device for DSL (PPPoE), for a modem on a serial port, and for L2TP, PPTP and SSL
//! VPNs that run pppd on a pseudo-terminal. A PPP device counts as a VPN unless it is proven to be an access line,
//! because half of a download outside a VPN is worse than one link too few. The proofs, in this order:
//!
//! 1. `/proc/net/pppol2tp` names the PPP devices of the kernel's L2TP sessions, which are VPNs.
//! 2. pppd's database (`/run/pppd2.tdb`) and its command line (found by `/run/pppN.pid`) name the device that it runs
//!    on. A network interface means PPPoE, and a serial port with hardware behind it a modem. The pppd process must
//!    still run.
//! 3. `/proc/net/pppoe` lists the PPPoE sessions of this network namespace (ethertype 0x8864) with the interface
//!    below each, but not their PPP devices. If there are enough sessions for the devices that are PPPoE by proof 2
//!    and for all undetermined ones, the latter are PPPoE.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use marline_core::link::LinkKind;

use super::device_info::DeviceInfo;
use super::interface::is_interface_name;

/// What a PPP device runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PppTransport {
    /// PPPoE over this interface, if it is known.
    Pppoe(Option<String>),
    /// A serial port, so a modem.
    Modem,
    /// Another program or the kernel's L2TP: packets are carried by other links.
    Vpn,
}

const ARPHRD_PPP: u16 = 512;
/// Our choice: a hundred times the length of these files on a busy machine.
const MAX_FILE_LEN: u64 = 1 << 20;

/// Whether the device is a PPP device.
pub(super) fn is_ppp(link: &DeviceInfo) -> bool {
    link.has_info_kind("ppp") || (link.info_kind.is_none() && link.arphrd == ARPHRD_PPP)
}

/// What this PPP device runs on, according to the files below `root`.
pub(super) fn ppp_transport(link: &DeviceInfo, devices: &BTreeMap<u32, DeviceInfo>, root: &Path) -> PppTransport {
    if let Some(transport) = proven_transport(link, devices, root) {
        return transport;
    }
    let sessions = pppoe_sessions(root);
    // Proof 3: count the PPP devices that need a PPPoE session, this one included.
    let (mut with_session, mut undetermined) = (0, 0);
    for device in devices.values().filter(|device| is_ppp(device)) {
        match proven_transport(device, devices, root) {
            Some(PppTransport::Pppoe(_)) => with_session += 1,
            Some(_) => {}
            None => undetermined += 1,
        }
    }
    // With fewer sessions than devices it is not known which device is PPPoE; a VPN is the safe assumption.
    if sessions.is_empty() || sessions.len() < with_session + undetermined {
        return PppTransport::Vpn;
    }
    // The interface below is known only if all sessions use the same one.
    let first = sessions.first().filter(|first| sessions.iter().all(|session| session == *first));
    PppTransport::Pppoe(first.cloned())
}

/// What proofs 1 and 2 show for this device; `None`: nothing.
fn proven_transport(link: &DeviceInfo, devices: &BTreeMap<u32, DeviceInfo>, root: &Path) -> Option<PppTransport> {
    if !is_interface_name(&link.name) {
        return None;
    }
    if is_l2tp_session(&link.name, root) {
        return Some(PppTransport::Vpn);
    }
    let (device, cmdline) = pppd_process(&link.name, root)?;
    let ethernet = |name: &str| devices.values().find(|candidate| candidate.name == name && !is_ppp(candidate));
    let name = device.as_deref().map(|device| device.trim_start_matches("/dev/").trim_start_matches("nic-"));
    if let Some(transport) = name.and_then(ethernet) {
        return Some(PppTransport::Pppoe(Some(transport.name.clone())));
    }
    if name.is_some_and(|name| is_serial_port(name, root)) {
        return Some(PppTransport::Modem);
    }
    let has_arg = |text: &str| cmdline.iter().any(|arg| arg.contains(text));
    if has_arg("pppoe") && !has_arg("l2tp") && !has_arg("pptp") {
        // Either the program `pppoe`, which carries the session itself, or a plugin whose device is in an options
        // file.
        return Some(PppTransport::Pppoe(None));
    }
    // A pseudo-terminal: another program carries the packets.
    name.map(|_| PppTransport::Vpn)
}

/// The device of the running pppd of this interface, and the words of its command line.
fn pppd_process(interface: &str, root: &Path) -> Option<(Option<String>, Vec<String>)> {
    let pid_file = read_text(&root.join(format!("run/{interface}.pid")));
    let recorded = ["run/pppd2.tdb", "run/pppd/pppd2.tdb", "var/run/pppd2.tdb"]
        .iter()
        .find_map(|path| pppd_record(&read_bytes(&root.join(path)), interface));
    let pid = pid_file.lines().next().map(str::trim).filter(|pid| is_decimal(pid)).map(str::to_owned);
    let pid = pid.or_else(|| recorded.as_ref().map(|(pid, _)| pid.clone()))?;
    // The record of a killed pppd remains, and the interface or the process ID may be used by something else by now.
    if !read_text(&root.join(format!("proc/{pid}/comm"))).trim_end().starts_with("pppd") {
        return None;
    }
    let cmdline = read_text(&root.join(format!("proc/{pid}/cmdline")));
    let cmdline: Vec<String> = cmdline.split('\0').filter(|arg| !arg.is_empty()).map(str::to_owned).collect();
    let device = recorded.filter(|(pid_in_record, _)| *pid_in_record == pid).map(|(_, device)| device);
    let from_cmdline = || cmdline.iter().find(|arg| arg.starts_with("/dev/") || arg.starts_with("nic-")).cloned();
    Some((device.or_else(from_cmdline), cmdline))
}

/// The process ID and the device in pppd's database for an interface. Records are text, a series of `NAME=value;`.
fn pppd_record(database: &[u8], interface: &str) -> Option<(String, String)> {
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    database.split(|byte| !printable(byte)).find_map(|text_run| {
        let text_run = std::str::from_utf8(text_run).ok()?;
        let value = |name: &str| text_run.split(';').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let pid = value("PPPD_PID").filter(|pid| is_decimal(pid))?;
        (value("IFNAME") == Some(interface)).then(|| Some((pid.to_owned(), value("DEVICE")?.to_owned())))?
    })
}

/// Whether it is a serial port with hardware behind it, or a Bluetooth one.
fn is_serial_port(name: &str, root: &Path) -> bool {
    let is_plain_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let class = root.join("sys/class/tty").join(name);
    is_plain_name && (class.join("device").exists() || (name.starts_with("rfcomm") && class.exists()))
}

fn is_l2tp_session(interface: &str, root: &Path) -> bool {
    let sessions = read_text(&root.join("proc/net/pppol2tp"));
    sessions.lines().any(|line| line.trim().strip_prefix("interface ") == Some(interface))
}

/// The interfaces below the PPPoE sessions, one per session. The columns are session, address, interface.
fn pppoe_sessions(root: &Path) -> Vec<String> {
    let list = read_text(&root.join("proc/net/pppoe"));
    let kind_of_lower =
        |line: &str| line.split_whitespace().nth(2).filter(|name| is_interface_name(name)).map(str::to_owned);
    list.lines().skip(1).filter_map(kind_of_lower).collect()
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.len() < 11 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A file that cannot be read proves nothing.
    let _ = File::open(path).and_then(|file| file.take(MAX_FILE_LEN).read_to_end(&mut bytes));
    bytes
}

fn read_text(path: &Path) -> String {
    String::from_utf8_lossy(&read_bytes(path)).into_owned()
}

/// The kind of link for a transport; `kind_of_lower` returns the kind of the interface with a name.
pub(super) fn transport_kind(
    transport: &PppTransport,
    kind_of_lower: impl FnOnce(&str) -> Option<LinkKind>,
) -> LinkKind {
    match transport {
        PppTransport::Pppoe(name) => name.as_deref().and_then(kind_of_lower).unwrap_or(LinkKind::Ethernet),
        PppTransport::Modem => LinkKind::Lte,
        PppTransport::Vpn => LinkKind::Tunnel,
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn links(names: &[&str]) -> BTreeMap<u32, DeviceInfo> {
        let device = |(index, name): (u32, &&str)| {
            let info = name.starts_with("ppp").then(|| "ppp".to_owned());
            (index, DeviceInfo { index, name: (*name).into(), info_kind: info, ..DeviceInfo::default() })
        };
        (1..).zip(names).map(device).collect()
    }

    fn fake_root(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn transport_of(name: &str, names: &[&str], files: &[(&str, &str)]) -> PppTransport {
        let (all, root) = (links(names), fake_root(files));
        let link = all.values().find(|link| link.name == name).unwrap();
        ppp_transport(link, &all, root.path())
    }

    const PPPOE: (&str, &str) =
        ("proc/net/pppoe", "Id       Address              Device\n0000002A 02:00:00:00:00:01     eth1\n");
    const COMM: (&str, &str) = ("proc/77/comm", "pppd\n");

    #[test]
    fn a_ppp_device_without_proof_is_a_vpn() {
        assert_eq!(transport_of("ppp0", &["eth0", "ppp0"], &[]), PppTransport::Vpn);
        let header = ("proc/net/pppoe", "Id       Address              Device\n");
        assert_eq!(transport_of("ppp0", &["eth0", "ppp0"], &[header]), PppTransport::Vpn);
        // openfortivpn and sstpc run pppd on a pseudo-terminal.
        let fortinet =
            [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\x00/dev/pts/3\x00230400\0:192.0.2.1\0")];
        assert_eq!(transport_of("ppp0", &["eth0", "ppp0"], &fortinet), PppTransport::Vpn);
        let pptp =
            [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0pty\0pptp vpn.example --nolaunchpppd\0")];
        assert_eq!(transport_of("ppp0", &["eth0", "ppp0"], &pptp), PppTransport::Vpn);
    }

    #[test]
    fn a_pppoe_session_is_an_access_line() {
        assert_eq!(transport_of("ppp0", &["eth1", "ppp0"], &[PPPOE]), PppTransport::Pppoe(Some("eth1".into())));
        // One session and two devices: only further proof about one of them can show which one has the session.
        assert_eq!(transport_of("ppp0", &["eth1", "ppp0", "ppp1"], &[PPPOE]), PppTransport::Vpn);
        let l2tp = ("proc/net/pppol2tp", "PPPoL2TP driver info, V2.0\n  SESSION 'x'\n   interface ppp1\n");
        assert_eq!(
            transport_of("ppp0", &["eth1", "ppp0", "ppp1"], &[PPPOE, l2tp]),
            PppTransport::Pppoe(Some("eth1".into()))
        );
        assert_eq!(transport_of("ppp1", &["eth1", "ppp0", "ppp1"], &[PPPOE, l2tp]), PppTransport::Vpn);
        // A VPN over DSL; pppd recorded both.
        let database = "\x00junk\x01PPPD_PID=77;DEVICE=eth1;IFNAME=ppp0;\x00\x02PPPD_PID=78;DEVICE=/dev/pts/1;IFNAME=ppp1;\x00";
        let both = [("run/pppd2.tdb", database), COMM, ("proc/78/comm", "pppd\n"), PPPOE];
        assert_eq!(
            transport_of("ppp0", &["eth1", "ppp0", "ppp1"], &both),
            PppTransport::Pppoe(Some("eth1".into()))
        );
        assert_eq!(transport_of("ppp1", &["eth1", "ppp0", "ppp1"], &both), PppTransport::Vpn);
        // The program `pppoe`, whose session the kernel does not know.
        let program = [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0pty\0/usr/sbin/pppoe -I eth1\0")];
        assert_eq!(transport_of("ppp0", &["eth1", "ppp0"], &program), PppTransport::Pppoe(None));
    }

    #[test]
    fn a_serial_port_is_a_modem_only_with_hardware_behind_it() {
        let modem = [("run/ppp0.pid", "77\n"), COMM, ("proc/77/cmdline", "pppd\0/dev/ttyUSB2\x00115200\0")];
        let hardware = ("sys/class/tty/ttyUSB2/device/uevent", "");
        assert_eq!(
            transport_of("ppp0", &["eth0", "ppp0"], &[&modem[..], &[hardware]].concat()),
            PppTransport::Modem
        );
        assert_eq!(
            transport_of("ppp0", &["eth0", "ppp0"], &modem),
            PppTransport::Vpn,
            "a link to a pseudo-terminal"
        );
        let bluetooth = [("run/pppd2.tdb", "PPPD_PID=77;DEVICE=/dev/rfcomm0;IFNAME=ppp0;"), COMM];
        let class = ("sys/class/tty/rfcomm0/uevent", "");
        assert_eq!(
            transport_of("ppp0", &["eth0", "ppp0"], &[&bluetooth[..], &[class]].concat()),
            PppTransport::Modem
        );
    }

    #[test]
    fn files_of_a_dead_pppd_prove_nothing() {
        let stale = ("run/pppd2.tdb", "PPPD_PID=77;DEVICE=eth1;IFNAME=ppp0;");
        assert_eq!(transport_of("ppp0", &["eth1", "ppp0"], &[stale]), PppTransport::Vpn);
        assert_eq!(
            transport_of("ppp0", &["eth1", "ppp0"], &[stale, ("proc/77/comm", "bash\n")]),
            PppTransport::Vpn
        );
        let noise = ("run/pppd2.tdb", "PPPD_PID=../../x;DEVICE=eth1;IFNAME=ppp0;IFNAME=;;==;");
        assert_eq!(
            transport_of("ppp0", &["eth1", "ppp0"], &[noise, ("run/ppp0.pid", "../../etc\n")]),
            PppTransport::Vpn
        );
    }
}
