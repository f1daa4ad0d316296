//! The nftables rules that redirect this host's plain TCP to the forwarder: one table that disappears with its owner.
//!
//! 1. Redirected are connections that this host opens over an interface other than the loopback. Connections within
//!    this host go to its own addresses, which Linux routes over the loopback. The decision is made once, for the
//!    SYN, and stored in the connection's mark. The packets get a mark for the policy route to the loopback, where
//!    TPROXY delivers them to the forwarder's socket.
//! 2. Not redirected are sockets with a mark (the forwarder's own, and programs with their own policy routing),
//!    sockets that are bound to a device (the policy route does not apply to them, and their program has chosen the
//!    link), sockets that use MPTCP themselves (option in their SYN), and link-local IPv6, whose addresses are
//!    ambiguous without their interface.
//! 3. The table has an owner and disappears with it (`nft`).

use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use super::nft::{self, NftError, NftTableGuard};

/// Mark of the forwarder's own connections.
pub const FORWARDER_MARK: u32 = 0x77;
/// Mark of redirected connections and of their packets. Our choice: "ma" in ASCII, which no other known program uses.
pub(super) const DIVERTED_MARK: u32 = 0x6d61;
/// Name of the table.
pub const TABLE: &str = "marline";

/// Selects the connections that are redirected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only connections of programs in this control group; none: of all programs.
    pub cgroup: Option<Cgroup>,
    /// Only connections to these ports; empty: to all.
    pub ports: Vec<PortRange>,
}

/// A port or a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl std::str::FromStr for PortRange {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (first, last) = s.split_once('-').unwrap_or((s, s));
        let port = |s: &str| s.parse().ok().filter(|port| *port != 0);
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!("`{s}` is no port: 1 to 65535, or a range such as 8000-8999")),
        }
    }
}

/// A control group (version 2) below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Path for nft, relative to its mount point of control groups.
    path: String,
    /// Depth below the root.
    level: usize,
}

impl Cgroup {
    /// The group at `path`: relative to the mount point of control groups, as shown by `systemd-cgls`, or absolute.
    ///
    /// # Errors
    /// A line that states why the group cannot be used.
    pub fn find(path: &Path) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("mountinfo: {e}"))?;
        let Some(mount) = cgroup2_mount(&mounts) else {
            return Err("control groups version 2 (cgroup2) are not mounted here".into());
        };
        let relative = path.strip_prefix(&mount).unwrap_or_else(|_| path.strip_prefix("/").unwrap_or(path));
        let has_plain_parts = relative.components().all(|part| matches!(part, Component::Normal(_)));
        let name =
            relative.to_str().filter(|name| has_plain_parts && !name.is_empty() && name.bytes().all(is_plain_byte));
        let Some(name) = name else {
            return Err(format!("{}: not the path of a control group below {}", path.display(), mount.display()));
        };
        let group_dir = mount.join(name);
        if !group_dir.join("cgroup.procs").exists() {
            return Err(format!("{}: no such control group", group_dir.display()));
        }
        let Ok(nft_path) = group_dir.strip_prefix(NFT_CGROUP_ROOT) else {
            return Err(format!(
                "{}: nft supports only control groups below {NFT_CGROUP_ROOT}",
                group_dir.display()
            ));
        };
        Ok(Self { path: nft_path.display().to_string(), level: relative.components().count() })
    }
}

/// Mount point of control groups version 2 (proc_pid_mountinfo(5)).
fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (fields, fs_type) = line.split_once(" - ")?;
        let mount_point = fields.split(' ').nth(4)?;
        fs_type.starts_with("cgroup2 ").then(|| mount_point.into())
    })
}

/// Characters permitted in a name between nft's quotation marks; systemd encodes all others as `\x2d`.
fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-@:\\".contains(&byte)
}

/// The table in nft syntax; nft commits at the end of a line.
fn table_text(scope: &Scope, port: u16, families: IpFamilies) -> String {
    let mut rules = vec![
        "type route hook output priority -150; policy accept".to_owned(),
        "meta l4proto != tcp return".into(),
        "meta mark != 0 return".into(),
        "oifname \"lo\" return".into(),
        format!("ct mark {DIVERTED_MARK:#x} ct direction original meta mark set {DIVERTED_MARK:#x} return"),
        "tcp flags & (fin | syn | rst | ack) != syn return".into(),
        "ct mark != 0 return".into(),
        "ip6 daddr fe80::/10 return".into(),
        "tcp option mptcp exists return".into(),
    ];
    let mut divert_rule = String::new();
    match families {
        IpFamilies { ipv6: false, .. } => divert_rule += "meta nfproto ipv4 ",
        IpFamilies { ipv4: false, .. } => divert_rule += "meta nfproto ipv6 ",
        _ => {}
    }
    if let Some(Cgroup { path, level }) = &scope.cgroup {
        divert_rule += &format!("socket cgroupv2 level {level} \"{path}\" ");
    }
    divert_rule += &match scope.ports.as_slice() {
        [] => String::new(),
        ports => format!("tcp dport {{ {} }} ", ports.iter().map(port_text).collect::<Vec<_>>().join(", ")),
    };
    divert_rule += &format!("ct mark set {DIVERTED_MARK:#x} meta mark set {DIVERTED_MARK:#x}");
    rules.push(divert_rule);
    let prerouting = [
        "type filter hook prerouting priority -150; policy accept".to_owned(),
        format!("iifname \"lo\" meta mark {DIVERTED_MARK:#x} meta l4proto tcp tproxy to :{port}"),
    ];
    // A table of this name without an owner is a leftover and is deleted. One line is one transaction.
    let reset = format!("add table inet {TABLE}; delete table inet {TABLE}");
    let chain = |name: &str, rules: &[String]| format!("chain {name} {{ {}; }}; ", rules.join("; "));
    let (output_chain, prerouting) = (chain("output", &rules), chain("arriving", &prerouting));
    format!("{reset}\ntable inet {TABLE} {{ flags owner; {output_chain}{prerouting}}}\n")
}

fn port_text(ports: &PortRange) -> String {
    if ports.first == ports.last { ports.first.to_string() } else { format!("{}-{}", ports.first, ports.last) }
}

/// Address families for which the forwarder listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpFamilies {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

impl IpFamilies {
    pub(crate) fn from_addresses(listen_addresses: &[IpAddr]) -> Self {
        Self {
            ipv4: listen_addresses.iter().any(IpAddr::is_ipv4),
            ipv6: listen_addresses.iter().any(IpAddr::is_ipv6),
        }
    }
}

/// Installs the table for the lifetime of the returned guard.
///
/// # Errors
/// No nft, no privilege, a kernel without TPROXY, or a table of that name with another owner.
pub(super) async fn install(scope: &Scope, port: u16, families: IpFamilies) -> Result<NftTableGuard, NftError> {
    NftTableGuard::new(&table_text(scope, port, families), TABLE).await
}

/// Checks whether the table could be installed. Changes nothing. Blocks while nft runs.
///
/// # Errors
/// As [`install`].
pub(super) fn check_table(scope: &Scope, families: IpFamilies) -> Result<(), NftError> {
    nft::check(&table_text(scope, PLACEHOLDER_PORT, families))
}

/// Port for a table that is only checked and never installed.
const PLACEHOLDER_PORT: u16 = 1;
const NFT_CGROUP_ROOT: &str = "/sys/fs/cgroup";

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: IpFamilies = IpFamilies { ipv4: true, ipv6: true };

    #[test]
    fn all_but_local_and_mptcp_connections_are_redirected() {
        let text = table_text(&Scope::default(), 7000, BOTH);
        let order =
            ["mark != 0 return", "\"lo\" return", "!= syn return", "fe80::/10 return", "mptcp exists return"];
        let mut offset = 0;
        for rule in order.iter().chain(&["; ct mark set 0x6d61 meta mark set 0x6d61;", "tproxy to :7000"]) {
            let found = text[offset..].find(rule).unwrap_or_else(|| panic!("{rule} is not in its place: {text}"));
            offset += found;
        }
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("flags owner"));
    }

    #[test]
    fn ports_groups_and_families_narrow_the_scope() {
        let ports = vec!["443".parse().unwrap(), "8000-8999".parse().unwrap()];
        let cgroup = Some(Cgroup { path: "system.slice/a.service".into(), level: 2 });
        let text = table_text(&Scope { cgroup, ports }, 7000, IpFamilies { ipv4: true, ipv6: false });
        let rule = "meta nfproto ipv4 socket cgroupv2 level 2 \"system.slice/a.service\" \
                    tcp dport { 443, 8000-8999 } ct mark set 0x6d61";
        assert!(text.contains(rule), "{text}");
        let text = table_text(&Scope::default(), 7000, IpFamilies { ipv4: false, ipv6: true });
        assert!(text.contains("meta nfproto ipv6 ct mark set 0x6d61"), "{text}");
    }

    #[test]
    fn invalid_ports_are_refused() {
        for text in ["", "0", "65536", "-1", "90-80", "80-", "http", "1-2-3", " 80"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        assert_eq!(port_text(&"80-80".parse().unwrap()), "80");
    }

    #[test]
    fn missing_or_invalid_control_groups_are_refused() {
        for path in ["", "/", "..", "a/../b", "no such group", "a\"; flush ruleset", "nosuch.slice"] {
            assert!(Cgroup::find(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn the_cgroup2_mount_point_is_found() {
        let mounts = "24 1 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      36 35 0:30 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mount(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(cgroup2_mount("1 2 3\n\n - x"), None);
    }
}
