//! The rules that lead this host's plain TCP to the forwarder: one table of nftables, which ends with its holder.
//!
//! In: which connections are meant ([`Scope`]) and where the forwarder listens. Out: a table in the kernel while a
//! `Held` lives.
//!
//! 1. Led away are connections that this host opens, out of an interface other than the loopback: what stays on this
//!    host goes to its own addresses, which Linux routes over the loopback. It is decided once, for the SYN, and kept in
//!    the connection's mark; the packets get the mark of the detour, and on the loopback the
//!    forwarder's socket (TPROXY).
//! 2. Not led away are sockets with a mark (the forwarder's own, and programs that route by themselves), sockets that are
//!    bound to a device (the detour has no way for them: who asked for a link gets it), those that ask for MPTCP
//!    themselves (by the option in their SYN), and link-local IPv6, whose addresses mean nothing without their interface.
//! 3. The table has an owner, and ends with it (`nft`).

use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use super::nft::{self, NftError, NftTableGuard};

/// The mark of the forwarder's own connections.
pub const FORWARDER_MARK: u32 = 0x77;
/// The mark of connections that are led away, and of their packets. chosen: "ma", which nobody else uses.
pub(super) const DIVERTED_MARK: u32 = 0x6d61;
/// The table's name.
pub const TABLE: &str = "marline";

/// Which connections are led to the forwarder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Those of the programs in this control group; none: those of all programs.
    pub cgroup: Option<Cgroup>,
    /// Those to these ports; none named: all.
    pub ports: Vec<PortRange>,
}

/// A port, or several in a row.
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

/// A control group of the second version, below its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// As nft finds it: relative to its own idea of where they are mounted.
    path: String,
    /// How far it is below the root.
    level: usize,
}

impl Cgroup {
    /// The group at `path`: relative to the mount of control groups, as `systemd-cgls` shows it, or absolute.
    ///
    /// # Errors
    /// A line that says why there is no such group.
    pub fn find(path: &Path) -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| format!("mountinfo: {e}"))?;
        let Some(mount) = cgroup2_mount(&mounts) else {
            return Err("no control groups of the second version are mounted here (cgroup2)".into());
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
            return Err(format!("{}: there is no such control group", group_dir.display()));
        }
        let Ok(nft_path) = group_dir.strip_prefix(NFT_CGROUP_ROOT) else {
            return Err(format!("{}: nft knows control groups below {NFT_CGROUP_ROOT} only", group_dir.display()));
        };
        Ok(Self { path: nft_path.display().to_string(), level: relative.components().count() })
    }
}

/// Where the second version of control groups is mounted (proc_pid_mountinfo(5)).
fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (fields, fs_type) = line.split_once(" - ")?;
        let mount_point = fields.split(' ').nth(4)?;
        fs_type.starts_with("cgroup2 ").then(|| mount_point.into())
    })
}

/// What may stand in a name between nft's quotation marks; systemd writes everything else as `\x2d`.
fn is_plain_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-@:\\".contains(&byte)
}

/// The table as nft reads it: it commits when a line ends.
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
    // A table of ours without an owner is nobody's. One line is one transaction.
    let reset = format!("add table inet {TABLE}; delete table inet {TABLE}");
    let chain = |name: &str, rules: &[String]| format!("chain {name} {{ {}; }}; ", rules.join("; "));
    let (output_chain, prerouting) = (chain("output", &rules), chain("arriving", &prerouting));
    format!("{reset}\ntable inet {TABLE} {{ flags owner; {output_chain}{prerouting}}}\n")
}

fn port_text(ports: &PortRange) -> String {
    if ports.first == ports.last { ports.first.to_string() } else { format!("{}-{}", ports.first, ports.last) }
}

/// For which families the forwarder listens.
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

/// Puts the table in force for as long as what it returns lives.
///
/// # Errors
/// No nft; no privilege; a kernel without TPROXY; somebody else's table of that name.
pub(super) async fn install(scope: &Scope, port: u16, families: IpFamilies) -> Result<NftTableGuard, NftError> {
    NftTableGuard::new(&table_text(scope, port, families), TABLE).await
}

/// Whether the table could be put in force. Nothing is changed. Blocks for as long as nft runs.
///
/// # Errors
/// Those of [`hold`].
pub(super) fn check_table(scope: &Scope, families: IpFamilies) -> Result<(), NftError> {
    nft::check(&table_text(scope, PLACEHOLDER_PORT, families))
}

/// For a table that is never in force.
const PLACEHOLDER_PORT: u16 = 1;
const NFT_CGROUP_ROOT: &str = "/sys/fs/cgroup";

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: IpFamilies = IpFamilies { ipv4: true, ipv6: true };

    #[test]
    fn everything_but_what_stays_here_and_what_is_mptcp_is_led_away() {
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
    fn ports_groups_and_families_narrow_it() {
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
    fn what_is_no_port_is_refused() {
        for text in ["", "0", "65536", "-1", "90-80", "80-", "http", "1-2-3", " 80"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
        assert_eq!(port_text(&"80-80".parse().unwrap()), "80");
    }

    #[test]
    fn a_group_that_is_not_there_or_is_none_is_refused() {
        for path in ["", "/", "..", "a/../b", "no such group", "a\"; flush ruleset", "nosuch.slice"] {
            assert!(Cgroup::find(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn the_mount_of_the_second_version_is_found() {
        let mounts = "24 1 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      36 35 0:30 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mount(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(cgroup2_mount("1 2 3\n\n - x"), None);
    }
}
