//! The DNS servers of a link on OpenWrt, whose netifd writes them down by logical interfaces (`wan`), not by devices (`eth1`, `pppoe-wan`).
//!
//! `/tmp/resolv.conf.d/resolv.conf.auto` has a section for each logical interface (`# Interface wan`), and `/etc/config/network` (UCI) says
//! which device that has. netifd derives names of its own from both: `PROTOCOL-wan` for PPP and tunnels, `wan_4` and `wan_6` for the parts of
//! an interface that a modem brings up. A modem is named by its control device, which sysfs knows.
//!
//! Servers of an interface that the configuration lacks count for the link by which the kernel's route to them leads. `ubus` was not used: it
//! is a process for each look-up.

use super::leases::nameservers;
use super::servers::{Places, is_route};
use crate::links::Interface;

/// The second one is that of OpenWrt before 21.02.
const FILES: [&str; 2] = ["tmp/resolv.conf.d/resolv.conf.auto", "tmp/resolv.conf.auto"];
const CONFIGURATION: &str = "etc/config/network";
/// Chosen: more than any router has.
const MOST: usize = 64;

/// The servers of the link, as words, in the file's order.
pub(super) fn words(places: &Places, link: &Interface) -> Vec<String> {
    let Some(text) = FILES.iter().map(|file| places.read(file)).find(|text| !text.is_empty()) else {
        return Vec::new();
    };
    let configuration = places.read(CONFIGURATION);
    let networks = networks(&configuration);
    let mut found = Vec::new();
    for (name, servers) in sections(&text).into_iter().take(MOST) {
        match network(&networks, name) {
            Some(network) if is_on(places, &networks, network, link) => found.extend(servers),
            Some(_) => {}
            None => found.extend(servers.into_iter().filter(|server| is_route(places, link, server))),
        }
    }
    found
}

/// The logical interfaces, each with its servers. What comes before the first one is of none.
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
struct Network<'a> {
    name: &'a str,
    devices: Vec<&'a str>,
}

fn networks(text: &str) -> Vec<Network<'_>> {
    let (mut networks, mut is_interface) = (Vec::<Network<'_>>::new(), false);
    for line in text.lines() {
        let mut words = line.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
        match (words.next(), words.next()) {
            (Some("config"), kind) => {
                is_interface = kind == Some("interface") && networks.len() < MOST;
                if is_interface {
                    networks.push(Network { name: words.next().unwrap_or_default(), devices: Vec::new() });
                }
            }
            // `ifname` is the older name, and may list several.
            (Some("option"), Some("device" | "ifname")) if is_interface => {
                networks.last_mut().into_iter().for_each(|network| network.devices.extend(words.by_ref()));
            }
            _ => {}
        }
    }
    networks
}

fn network<'a, 'b>(networks: &'b [Network<'a>], name: &str) -> Option<&'b Network<'a>> {
    let named = |name: &str| networks.iter().find(|network| network.name == name);
    named(name).or_else(|| named(name.strip_suffix("_4").or_else(|| name.strip_suffix("_6"))?))
}

/// Whether the link is the device of this logical interface.
fn is_on(places: &Places, networks: &[Network<'_>], network: &Network<'_>, link: &Interface) -> bool {
    // `@wan`: that of another logical interface.
    let other = network.devices.iter().find_map(|device| device.strip_prefix('@'));
    let other = other.and_then(|name| networks.iter().find(|other| other.name == name));
    [Some(network), other].into_iter().flatten().any(|network| {
        let is_derived =
            link.name.strip_suffix(network.name).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'));
        is_derived || network.devices.iter().any(|device| *device == link.name || is_modem(places, device, link))
    })
}

/// Whether the link is that of a modem, which is named by its control device or by its place in sysfs.
fn is_modem(places: &Places, device: &str, link: &Interface) -> bool {
    let class = places.root.join("sys/class");
    if let Some(control) = device.strip_prefix("/dev/").filter(|control| !control.contains('/')) {
        let of = |subsystem: &str| class.join(subsystem).join(control).join("device/net").join(&link.name).exists();
        return of("usbmisc") || of("usb");
    }
    let Some(place) = device.strip_prefix("/sys/devices/") else { return false };
    let is_below = |path: std::path::PathBuf| path.starts_with(places.root.join("sys/devices").join(place));
    class.join("net").join(&link.name).canonicalize().is_ok_and(is_below)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::IpAddr;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::dns::tests::{link, places};

    const AUTO: &str = "# Interface lan\n# Interface wan\nnameserver 192.168.1.1\nsearch lan\n# Interface wan6\nnameserver fe80::1%eth1\n\
        # Interface dsl\nnameserver 62.1.1.1\n# Interface lte_4\nnameserver 10.64.0.1\nnameserver 10.64.0.2\n\
        # Interface mm_4\nnameserver 10.65.0.1\n# Interface other\nnameserver 10.66.0.1\n";
    const NETWORK: &str = "config interface 'loopback'\n\toption device 'lo'\n\nconfig device\n\toption name 'br-lan'\n\toption device 'eth9'\n\n\
        config interface 'wan'\n\toption proto 'dhcp'\n\toption device 'eth1'\n\nconfig interface wan6\n\toption device \"@wan\"\n\n\
        config interface 'dsl'\n\toption proto 'pppoe'\n\toption ifname 'eth2'\n\n\
        config interface 'lte'\n\toption device '/dev/cdc-wdm0'\n\toption proto 'qmi'\n\n\
        config interface 'mm'\n\toption device '/sys/devices/usb1/1-2'\n";

    fn route(address: IpAddr) -> Option<u32> {
        (address == IpAddr::from([10, 66, 0, 1])).then_some(7)
    }

    fn of(file: &str, name: &str, index: u32) -> Vec<String> {
        let root = places(&[
            (file, AUTO),
            (CONFIGURATION, NETWORK),
            ("sys/class/usbmisc/cdc-wdm0/device/net/wwan0/x", ""),
        ]);
        let modem = root.path().join("sys/devices/usb1/1-2/1-2:1.4/net/wwan1");
        fs::create_dir_all(&modem).unwrap();
        fs::create_dir_all(root.path().join("sys/class/net")).unwrap();
        symlink(modem, root.path().join("sys/class/net/wwan1")).unwrap();
        let root = root.path().canonicalize().unwrap();
        words(&Places { root, port: 53, route }, &link(name, index, &["10.9.0.2/24"]))
    }

    #[test]
    fn each_link_has_the_servers_of_its_logical_interfaces() {
        for file in FILES {
            assert_eq!(of(file, "eth1", 3), ["192.168.1.1", "fe80::1%eth1"]);
            assert_eq!(of(file, "pppoe-dsl", 4), ["62.1.1.1"], "a name that netifd derives");
            assert_eq!(of(file, "wwan0", 5), ["10.64.0.1", "10.64.0.2"], "a modem by its control device");
            assert_eq!(of(file, "wwan1", 6), ["10.65.0.1"], "a modem by its place");
            assert_eq!(of(file, "usb0", 7), ["10.66.0.1"], "the kernel's route to the server leads there");
            for other in ["eth9", "eth11", "eth", "br-lan", "lte_4"] {
                assert_eq!(of(file, other, 8), [""; 0], "{other}");
            }
        }
        assert_eq!(of("etc/resolv.conf", "eth1", 3), [""; 0]);
    }

    #[test]
    fn what_is_not_written_as_netifd_does_gives_nothing() {
        assert_eq!(
            networks("config\nconfig interface\n\toption device\noption\n\n config device x\n option ifname y"),
            [Network::default()]
        );
        assert_eq!(sections("nameserver 1.1.1.1\n# Interface\nnameserver 2.2.2.2\n"), []);
    }
}
