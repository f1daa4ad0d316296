//! Determines the access technology of an interface ([`LinkKind`]) from rtnetlink and, for real hardware, sysfs.
//!
//! 1. The alias `marline-lab kind=K` takes precedence: an emulated link is a TUN device that stands for a link of
//!    kind K.
//! 2. The kernel names the type of a virtual device (IFLA_INFO_KIND). A VLAN, bond or bridge has the kind of the
//!    devices below it.
//! 3. Hardware is looked up in sysfs, which shows the devices of one network namespace. So an entry counts only if
//!    its index and hardware address agree with rtnetlink's. Otherwise the predictable names (`wl…`, `ww…`) decide.
//! 4. A PPP device has the kind of what it runs on (`super::ppp`): an access line, a modem, or a tunnel.
//! 5. A modem is called LTE, whatever its generation: only ModemManager knows the generation, and no decision depends
//!    on it. So is a phone that tethers over USB. A modem that emulates an Ethernet card cannot be distinguished from
//!    one; the user can set `kind=`.
//!
//! The generic netlink family nl80211 would identify Wi-Fi without sysfs, at the price of two more exchanges with the
//! kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use marline_core::link::LinkKind;

use super::device_info::DeviceInfo;
use super::interface::is_interface_name;
use super::ppp;

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_TUNNEL: u16 = 768;
const ARPHRD_TUNNEL6: u16 = 769;
const ARPHRD_SIT: u16 = 776;
const ARPHRD_IPGRE: u16 = 778;
const ARPHRD_IP6GRE: u16 = 823;
const ARPHRD_NONE: u16 = 0xfffe;

/// Types of virtual devices that encapsulate packets in other packets.
const TUNNEL_KINDS: [&str; 21] = [
    "tun",
    "wireguard",
    "amneziawg",
    "ovpn",
    "ipip",
    "ip6tnl",
    "sit",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "erspan",
    "ip6erspan",
    "vti",
    "vti6",
    "xfrm",
    "vxlan",
    "geneve",
    "bareudp",
    "gtp",
    "amt",
];

/// Determines the kind of link of a device.
pub(super) fn link_kind(link: &DeviceInfo, devices: &BTreeMap<u32, DeviceInfo>, sysfs: &Sysfs) -> LinkKind {
    kind_at_depth(link, devices, sysfs, 0)
}

/// Follows the devices below each other. The depth is bounded, because the kernel's list may contain a cycle.
fn kind_at_depth(link: &DeviceInfo, devices: &BTreeMap<u32, DeviceInfo>, sysfs: &Sysfs, depth: u8) -> LinkKind {
    if let Some(kind) = link.emulated_kind() {
        return kind;
    }
    let kind_of = |device: &DeviceInfo| {
        if depth < 4 { kind_at_depth(device, devices, sysfs, depth + 1) } else { LinkKind::Other }
    };
    match link.info_kind.as_deref() {
        Some(info) if TUNNEL_KINDS.contains(&info) => LinkKind::Tunnel,
        Some("wwan" | "rmnet") => LinkKind::Lte,
        Some("vlan" | "macvlan" | "ipvlan" | "macvtap") => link
            .lower_device
            .and_then(|lower_device| devices.get(&lower_device))
            .filter(|lower_device| lower_device.index != link.index)
            .map_or(LinkKind::Other, kind_of),
        Some("bridge" | "bond" | "team") => {
            // Ports of containers and virtual machines do not count: the bridge's uplink decides its kind.
            let ports =
                devices.values().filter(|port| port.controller == Some(link.index) && port.index != link.index);
            common_kind(ports.filter(|port| !port.has_info_kind("veth") && !port.has_info_kind("tun")).map(kind_of))
        }
        // Inside a container, its uplink behaves like an Ethernet link.
        Some("veth") => LinkKind::Ethernet,
        _ if ppp::is_ppp(link) => {
            ppp::transport_kind(&ppp::ppp_transport(link, devices, &sysfs.fs_root), |lower_device| {
                devices
                    .values()
                    .find(|device| device.name == lower_device && device.index != link.index)
                    .map(kind_of)
            })
        }
        Some(_) => LinkKind::Other,
        None => hardware_kind(link, sysfs),
    }
}

/// The kind of all devices, if they agree.
fn common_kind(mut kinds: impl Iterator<Item = LinkKind>) -> LinkKind {
    let Some(first) = kinds.next() else { return LinkKind::Other };
    if kinds.all(|kind| kind == first) { first } else { LinkKind::Other }
}

fn hardware_kind(link: &DeviceInfo, sysfs: &Sysfs) -> LinkKind {
    if let Some(device) = sysfs.matching_device(link) {
        return match (device.devtype.as_deref(), device.driver.as_deref(), link.arphrd) {
            (Some("wlan"), _, _) => LinkKind::Wifi,
            (Some("wwan"), _, _) => LinkKind::Lte,
            // Tethered phones: Android uses RNDIS, and the iPhone its own protocol.
            (_, Some("rndis_host" | "ipheth"), _) => LinkKind::Lte,
            (_, _, ARPHRD_ETHER) if device.has_hardware => LinkKind::Ethernet,
            (_, _, hardware) => kind_by_arphrd(hardware),
        };
    }
    match (link.name.as_str(), link.arphrd) {
        (name, _) if name.starts_with("wl") => LinkKind::Wifi,
        (name, _) if name.starts_with("ww") || name.starts_with("rmnet") => LinkKind::Lte,
        (_, ARPHRD_ETHER) => LinkKind::Ethernet,
        (_, hardware) => kind_by_arphrd(hardware),
    }
}

fn kind_by_arphrd(hardware: u16) -> LinkKind {
    match hardware {
        ARPHRD_NONE | ARPHRD_TUNNEL | ARPHRD_TUNNEL6 | ARPHRD_SIT | ARPHRD_IPGRE | ARPHRD_IP6GRE => {
            LinkKind::Tunnel
        }
        _ => LinkKind::Other,
    }
}

/// The devices of `/sys/class/net`, or of a copy of it in a test.
pub(super) struct Sysfs {
    class_net: PathBuf,
    /// The root of the file system in which programs such as pppd record their devices.
    fs_root: PathBuf,
}

/// Properties that sysfs adds for a device.
struct SysfsDevice {
    /// `DEVTYPE` from its uevent file; `wlan` also for old wireless drivers that lack it.
    devtype: Option<String>,
    driver: Option<String>,
    /// Whether a hardware device is behind the interface.
    has_hardware: bool,
}

impl Sysfs {
    pub(super) fn of_system() -> Self {
        Self { fs_root: PathBuf::from("/"), ..Self::at(Path::new("/sys/class/net")) }
    }

    /// A copy of sysfs, without files of other programs.
    pub(super) fn at(root: &Path) -> Self {
        Self { class_net: root.to_owned(), fs_root: PathBuf::from("/nonexistent") }
    }

    /// The sysfs entry, if it is the same device as rtnetlink's.
    fn matching_device(&self, link: &DeviceInfo) -> Option<SysfsDevice> {
        if !is_interface_name(&link.name) {
            return None;
        }
        let directory = self.class_net.join(&link.name);
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let mac: Vec<_> = link.mac.iter().map(|byte| format!("{byte:02x}")).collect();
        if read("ifindex")?.trim() != link.index.to_string() || read("address")?.trim() != mac.join(":") {
            return None;
        }
        let devtype = read("uevent")
            .and_then(|text| text.lines().find_map(|l| l.strip_prefix("DEVTYPE=").map(str::to_owned)));
        let is_wireless = directory.join("wireless").exists() || directory.join("phy80211").exists();
        let driver = fs::read_link(directory.join("device/driver")).ok();
        Some(SysfsDevice {
            devtype: if is_wireless { Some("wlan".to_owned()) } else { devtype },
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            has_hardware: directory.join("device").exists(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_device(name: &str, hardware: u16, info: Option<&str>) -> DeviceInfo {
        DeviceInfo {
            index: 3,
            name: name.into(),
            arphrd: hardware,
            info_kind: info.map(str::to_owned),
            ..DeviceInfo::default()
        }
    }

    /// The kind of a device that is the only one, without sysfs.
    fn kind_without_others(link: &DeviceInfo) -> LinkKind {
        link_kind(link, &BTreeMap::new(), &Sysfs::at(Path::new("/nonexistent")))
    }

    #[test]
    fn an_emulated_link_has_the_kind_of_its_alias() {
        let mut tun = test_device("wifi", ARPHRD_NONE, Some("tun"));
        assert_eq!(kind_without_others(&tun), LinkKind::Tunnel);
        for (alias, kind) in [
            ("marline-lab kind=wifi", Some(LinkKind::Wifi)),
            ("marline-lab kind=lte rate=5Mbit/s", Some(LinkKind::Lte)),
            ("marline-lab kind=pigeon", Some(LinkKind::Other)),
            ("my kind=wifi", None),
        ] {
            tun.alias = Some(alias.into());
            assert_eq!(tun.emulated_kind(), kind, "{alias}");
            assert_eq!(kind_without_others(&tun), kind.unwrap_or(LinkKind::Tunnel), "{alias}");
        }
    }

    #[test]
    fn names_decide_where_sysfs_shows_another_namespace() {
        for (name, hardware, info, kind) in [
            ("wlp3s0", ARPHRD_ETHER, None, LinkKind::Wifi),
            ("wwan0", ARPHRD_NONE, None, LinkKind::Lte),
            ("wwan0", ARPHRD_NONE, Some("wwan"), LinkKind::Lte),
            ("enp1s0", ARPHRD_ETHER, None, LinkKind::Ethernet),
            ("eth0", ARPHRD_ETHER, Some("veth"), LinkKind::Ethernet),
            ("ppp0", 512, None, LinkKind::Tunnel),
            ("ppp0", 512, Some("ppp"), LinkKind::Tunnel),
            ("wg0", ARPHRD_NONE, Some("wireguard"), LinkKind::Tunnel),
            ("tap0", ARPHRD_ETHER, Some("tun"), LinkKind::Tunnel),
            ("he", ARPHRD_SIT, None, LinkKind::Tunnel),
            ("dummy0", ARPHRD_ETHER, Some("dummy"), LinkKind::Other),
        ] {
            assert_eq!(kind_without_others(&test_device(name, hardware, info)), kind, "{name} {info:?}");
        }
    }

    #[test]
    fn a_bond_has_the_kind_of_its_ports_and_cycles_end() {
        let mut all = BTreeMap::new();
        let mut add = |index, name: &str, info: Option<&str>, master, lower| {
            all.insert(
                index,
                DeviceInfo {
                    index,
                    controller: master,
                    lower_device: lower,
                    ..test_device(name, ARPHRD_ETHER, info)
                },
            );
        };
        add(1, "eth0", None, Some(9), None);
        add(2, "eth1", None, Some(9), None);
        add(9, "bond0", Some("bond"), None, None);
        add(10, "bond0.7", Some("vlan"), None, Some(9));
        add(11, "wlan0", None, Some(12), None);
        add(12, "br0", Some("bridge"), None, None);
        add(13, "vethx", Some("veth"), Some(12), None);
        add(14, "odd0", Some("vlan"), None, Some(15));
        add(15, "odd1", Some("vlan"), None, Some(14));
        add(16, "br1", Some("bridge"), None, None);
        let kind_of = |index| link_kind(&all[&index], &all, &Sysfs::at(Path::new("/nonexistent")));
        assert_eq!(kind_of(9), LinkKind::Ethernet);
        assert_eq!(kind_of(10), LinkKind::Ethernet);
        assert_eq!(kind_of(12), LinkKind::Wifi);
        assert_eq!(kind_of(14), LinkKind::Other);
        assert_eq!(kind_of(16), LinkKind::Other);
    }

    #[test]
    fn sysfs_identifies_hardware_and_is_ignored_for_another_device() {
        let root = tempfile::tempdir().unwrap();
        let make = |name: &str, index: u32, uevent: &str, driver: Option<&str>, wireless: bool| {
            let directory = root.path().join(name);
            fs::create_dir_all(directory.join("device")).unwrap();
            fs::write(directory.join("ifindex"), format!("{index}\n")).unwrap();
            fs::write(directory.join("address"), "02:00:00:00:00:0a\n").unwrap();
            fs::write(directory.join("uevent"), uevent).unwrap();
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("/sys/bus/x/{driver}"), directory.join("device/driver"))
                    .unwrap();
            }
            if wireless {
                fs::create_dir(directory.join("phy80211")).unwrap();
            }
        };
        make("net0", 3, "DEVTYPE=wlan\nINTERFACE=net0\n", None, false);
        make("net1", 3, "INTERFACE=net1\n", Some("brcmfmac"), true);
        make("net2", 3, "DEVTYPE=wwan\n", Some("qmi_wwan"), false);
        make("net3", 3, "", Some("rndis_host"), false);
        make("net4", 3, "", Some("e1000e"), false);
        make("net5", 4, "DEVTYPE=wwan\n", None, false);
        let sysfs = Sysfs::at(root.path());
        let kind_of = |name: &str| {
            let link = DeviceInfo { mac: vec![2, 0, 0, 0, 0, 10], ..test_device(name, ARPHRD_ETHER, None) };
            link_kind(&link, &BTreeMap::new(), &sysfs)
        };
        assert_eq!(kind_of("net0"), LinkKind::Wifi);
        assert_eq!(kind_of("net1"), LinkKind::Wifi);
        assert_eq!(kind_of("net2"), LinkKind::Lte);
        assert_eq!(kind_of("net3"), LinkKind::Lte);
        assert_eq!(kind_of("net4"), LinkKind::Ethernet);
        assert_eq!(kind_of("net5"), LinkKind::Ethernet, "index 4 is not index 3");
        assert_eq!(kind_of("../net0"), LinkKind::Ethernet, "no name may leave the directory");
    }
}
