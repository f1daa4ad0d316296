//! Finds the DNS servers of a link on OpenWrt, whose netifd records them by logical interface (`wan`), not by device
//! (`eth1`, `pppoe-wan`).
//!
//! `/tmp/resolv.conf.d/resolv.conf.auto` has a section for each logical interface (`# Interface wan`), and
//! `/etc/config/network` (UCI) names the device of each. netifd derives further names from both: `PROTOCOL-wan` for
//! PPP and tunnels, and `wan_4` and `wan_6` for the parts of an interface that a modem brings up. A modem is
//! identified by its control device, which sysfs maps to an interface.
//!
//! Servers of a logical interface that the configuration lacks count for the link to which the kernel's route to them
//! points. `ubus` was not used: it would start a process for each look-up.

use super::server_notation::{is_routed_over, nameservers};
use super::system_paths::SystemPaths;
use crate::links::Interface;

/// The first of these that is not empty is read. The second one is that of OpenWrt before 21.02.
const RESOLV_CONF_AUTO: [&str; 2] = ["tmp/resolv.conf.d/resolv.conf.auto", "tmp/resolv.conf.auto"];
const UCI_NETWORK: &str = "etc/config/network";
/// Our choice: more logical interfaces than any router has.
const MAX_INTERFACES: usize = 64;

/// The servers of the link as texts, in the order of the file.
pub(super) fn server_texts(paths: &SystemPaths, link: &Interface) -> Vec<String> {
    let Some(text) = RESOLV_CONF_AUTO.iter().map(|file| paths.read(file)).find(|text| !text.is_empty()) else {
        return Vec::new();
    };
    let configuration = paths.read(UCI_NETWORK);
    let interfaces = uci_interfaces(&configuration);
    let mut link_servers = Vec::new();
    for (name, servers) in sections(&text).into_iter().take(MAX_INTERFACES) {
        match find_interface(&interfaces, name) {
            Some(interface) if is_device_of(paths, &interfaces, interface, link) => link_servers.extend(servers),
            Some(_) => {}
            None => link_servers.extend(servers.into_iter().filter(|server| is_routed_over(paths, link, server))),
        }
    }
    link_servers
}

/// The logical interfaces in the file, each with its servers. Lines before the first section are ignored.
fn sections(text: &str) -> Vec<(&str, Vec<String>)> {
    let mut sections: Vec<(&str, Vec<String>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("# Interface "), sections.last_mut()) {
            (Some(name), _) => sections.push((name.trim(), Vec::new())),
            (None, Some((_, servers))) => servers.extend(nameservers(line)),
            (None, None) => {}
        }
    }
    sections
}

/// A logical interface in the configuration.
#[derive(Debug, Default, PartialEq, Eq)]
struct UciInterface<'a> {
    name: &'a str,
    devices: Vec<&'a str>,
}

fn uci_interfaces(text: &str) -> Vec<UciInterface<'_>> {
    let (mut interfaces, mut is_interface) = (Vec::<UciInterface<'_>>::new(), false);
    for line in text.lines() {
        let mut fields = line.split_whitespace().map(|field| field.trim_matches(['\'', '"']));
        match (fields.next(), fields.next()) {
            (Some("config"), kind) => {
                is_interface = kind == Some("interface") && interfaces.len() < MAX_INTERFACES;
                if is_interface {
                    interfaces.push(UciInterface { name: fields.next().unwrap_or_default(), devices: Vec::new() });
                }
            }
            // `ifname` is the older option name, and may list several devices.
            (Some("option"), Some("device" | "ifname")) if is_interface => {
                interfaces.last_mut().into_iter().for_each(|interface| interface.devices.extend(fields.by_ref()));
            }
            _ => {}
        }
    }
    interfaces
}

fn find_interface<'a, 'b>(networks: &'b [UciInterface<'a>], name: &str) -> Option<&'b UciInterface<'a>> {
    let by_name = |name: &str| networks.iter().find(|interface| interface.name == name);
    by_name(name).or_else(|| by_name(name.strip_suffix("_4").or_else(|| name.strip_suffix("_6"))?))
}

/// Whether the link is the device of this logical interface.
fn is_device_of(
    paths: &SystemPaths,
    interfaces: &[UciInterface<'_>],
    interface: &UciInterface<'_>,
    link: &Interface,
) -> bool {
    // `@wan` means the device of another logical interface.
    let alias = interface.devices.iter().find_map(|device| device.strip_prefix('@'));
    let alias = alias.and_then(|name| interfaces.iter().find(|alias| alias.name == name));
    [Some(interface), alias].into_iter().flatten().any(|interface| {
        let is_derived = link
            .name
            .strip_suffix(interface.name)
            .is_some_and(|remaining| remaining.is_empty() || remaining.ends_with('-'));
        is_derived || interface.devices.iter().any(|device| *device == link.name || is_modem(paths, device, link))
    })
}

/// Whether the link belongs to a modem, which the configuration names by its control device or its sysfs path.
fn is_modem(paths: &SystemPaths, device: &str, link: &Interface) -> bool {
    let class = paths.root.join("sys/class");
    if let Some(control) = device.strip_prefix("/dev/").filter(|control| !control.contains('/')) {
        let is_net_of =
            |subsystem: &str| class.join(subsystem).join(control).join("device/net").join(&link.name).exists();
        return is_net_of("usbmisc") || is_net_of("usb");
    }
    let Some(device_path) = device.strip_prefix("/sys/devices/") else { return false };
    let is_below = |path: std::path::PathBuf| path.starts_with(paths.root.join("sys/devices").join(device_path));
    class.join("net").join(&link.name).canonicalize().is_ok_and(is_below)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::IpAddr;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::dns::tests::{system_files, test_link};

    const RESOLV_CONF_TEXT: &str = "# Interface lan\n# Interface wan\nnameserver 192.168.1.1\nsearch lan\n# Interface wan6\nnameserver fe80::1%eth1\n\
        # Interface dsl\nnameserver 62.1.1.1\n# Interface lte_4\nnameserver 10.64.0.1\nnameserver 10.64.0.2\n\
        # Interface mm_4\nnameserver 10.65.0.1\n# Interface other\nnameserver 10.66.0.1\n";
    const NETWORK_TEXT: &str = "config interface 'loopback'\n\toption device 'lo'\n\nconfig device\n\toption name 'br-lan'\n\toption device 'eth9'\n\n\
        config interface 'wan'\n\toption proto 'dhcp'\n\toption device 'eth1'\n\nconfig interface wan6\n\toption device \"@wan\"\n\n\
        config interface 'dsl'\n\toption proto 'pppoe'\n\toption ifname 'eth2'\n\n\
        config interface 'lte'\n\toption device '/dev/cdc-wdm0'\n\toption proto 'qmi'\n\n\
        config interface 'mm'\n\toption device '/sys/devices/usb1/1-2'\n";

    /// The kernel's routes: only 10.66.0.1 has one, over link 7.
    fn route(address: IpAddr) -> Option<u32> {
        (address == IpAddr::from([10, 66, 0, 1])).then_some(7)
    }

    fn servers_of(file: &str, name: &str, index: u32) -> Vec<String> {
        let root = system_files(&[
            (file, RESOLV_CONF_TEXT),
            (UCI_NETWORK, NETWORK_TEXT),
            ("sys/class/usbmisc/cdc-wdm0/device/net/wwan0/x", ""),
        ]);
        let modem = root.path().join("sys/devices/usb1/1-2/1-2:1.4/net/wwan1");
        fs::create_dir_all(&modem).unwrap();
        fs::create_dir_all(root.path().join("sys/class/net")).unwrap();
        symlink(modem, root.path().join("sys/class/net/wwan1")).unwrap();
        let root = root.path().canonicalize().unwrap();
        server_texts(
            &SystemPaths { root, dns_port: 53, route_lookup: route },
            &test_link(name, index, &["10.9.0.2/24"]),
        )
    }

    #[test]
    fn each_link_has_the_servers_of_its_logical_interfaces() {
        for file in RESOLV_CONF_AUTO {
            assert_eq!(servers_of(file, "eth1", 3), ["192.168.1.1", "fe80::1%eth1"]);
            assert_eq!(servers_of(file, "pppoe-dsl", 4), ["62.1.1.1"], "a name that netifd derives");
            assert_eq!(servers_of(file, "wwan0", 5), ["10.64.0.1", "10.64.0.2"], "a modem by its control device");
            assert_eq!(servers_of(file, "wwan1", 6), ["10.65.0.1"], "a modem by its sysfs path");
            assert_eq!(
                servers_of(file, "usb0", 7),
                ["10.66.0.1"],
                "the kernel's route to the server uses this link"
            );
            for other in ["eth9", "eth11", "eth", "br-lan", "lte_4"] {
                assert_eq!(servers_of(file, other, 8), [""; 0], "{other}");
            }
        }
        assert_eq!(servers_of("etc/resolv.conf", "eth1", 3), [""; 0]);
    }

    #[test]
    fn malformed_files_yield_no_servers() {
        assert_eq!(
            uci_interfaces(
                "config\nconfig interface\n\toption device\noption\n\n config device x\n option ifname y"
            ),
            [UciInterface::default()]
        );
        assert_eq!(sections("nameserver 1.1.1.1\n# Interface\nnameserver 2.2.2.2\n"), []);
    }
}
