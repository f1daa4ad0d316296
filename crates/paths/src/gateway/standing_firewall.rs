//! Standing firewall of a LAN's gateway: survives the process, so that nothing from outside reaches the LAN after a
//! crash.
//!
//! A gateway enables forwarding (`ip_forward`). Its other rules end with the process, by design: TPROXY to a dead
//! process would break every connection. Without rules the host would then be an open router to the LAN. So a second
//! table, `inet marline-lan`, has no owner. It is installed before forwarding is switched on, and removed after
//! forwarding is off again, at an orderly end or by `marline restore`. A restart replaces it in one transaction,
//! without a gap.
//!
//! It drops:
//!
//! 1. For each IP version that the host forwards only because of the gateway: everything that does not come from the
//!    LAN, except replies to connections of the LAN. A host that was a router before keeps its own firewall's rules.
//! 2. Unless flows may go directly: TCP from the LAN to public addresses, and to private ones for which the host has
//!    only a default route ([`private_networks`]). While the gateway runs, all of that goes to the edge and is not
//!    forwarded; after a crash it would leave without encryption. The kernel determines the routes by policy routing
//!    rules. While these do not exist, TCP to all private addresses is dropped: at the start, and if the table must
//!    stay although the rules are removed ([`seal`]).

use std::sync::{Arc, Mutex, PoisonError};

use super::nft_rules::{self, Lan};
use super::private_networks;
use crate::transparent::{NftError, nft};

pub(super) const TABLE: &str = "marline-lan";

/// Contents of the installed table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StandingFirewall {
    /// Interfaces of the LAN that it keeps closed.
    pub lan: Vec<String>,
    /// Whether it drops packets of IPv4 and of IPv6 that other rules would accept.
    pub(super) drops_families: (bool, bool),
    /// Whether TCP of the LAN may leave without the edge.
    allows_direct: bool,
}

/// Destinations that TCP of the LAN may reach without the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LanReach {
    /// All destinations: flows may go directly.
    All,
    /// Private networks with a route that is more specific than a default route.
    Routed,
    /// No destination beyond the LAN.
    LanOnly,
}

impl LanReach {
    /// Reach while a gateway runs.
    pub(super) fn for_running(allows_direct: bool) -> Self {
        if allows_direct { Self::All } else { Self::Routed }
    }

    /// Reach while the policy routing rules do not exist, so that the kernel cannot look up routes.
    pub(super) fn without_routing_rules(allows_direct: bool) -> Self {
        if allows_direct { Self::All } else { Self::LanOnly }
    }
}

/// Reinstalls the firewall if another program removes it (`nft flush ruleset`), until the gateway ends.
#[derive(Clone, Debug)]
pub(super) struct FirewallReinstaller {
    lan: Lan,
    allows_direct: bool,
    enabled_here: (bool, bool),
    /// Locked during repairs, so that none happens after the gateway has ended.
    has_ended: Arc<Mutex<bool>>,
}

impl FirewallReinstaller {
    pub(super) fn new(lan: Lan, allows_direct: bool, enabled_here: (bool, bool)) -> Self {
        Self { lan, allows_direct, enabled_here, has_ended: Arc::default() }
    }

    /// Reinstalls the firewall if it is missing. Returns whether it is in force. Blocks while nft runs.
    pub(super) fn ensure_installed(&self) -> bool {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_ended || read_installed().is_some() {
            return !*has_ended;
        }
        match install(&self.lan, LanReach::for_running(self.allows_direct), self.enabled_here) {
            Ok(()) => {
                tracing::warn!("another program removed the table inet {TABLE}; it was installed again");
                true
            }
            Err(error) => {
                tracing::warn!(
                    "the table inet {TABLE} was removed and cannot be installed again: {error}; the LAN is not protected after a crash"
                );
                false
            }
        }
    }

    /// Runs an action unless the gateway has ended; [`end`](Self::end) waits for it.
    pub(super) fn run_unless_ended<T>(&self, action: impl FnOnce() -> T) -> Option<T> {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        (!*has_ended).then(action)
    }

    /// No repair happens after this has returned. Blocks while nft runs.
    pub(super) fn end(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// Installs the firewall, replacing that of an earlier run. Blocks while nft runs.
///
/// # Errors
/// No nft, no privilege, or the kernel refuses.
pub(super) fn install(lan: &Lan, reach: LanReach, enabled_here: (bool, bool)) -> Result<(), NftError> {
    nft::run_commands(&table_text(lan, reach, enabled_here)).map(drop)
}

/// Closes private networks as well, before the policy routing rules are removed that determine their routes.
pub(super) fn seal(firewall: &StandingFirewall) {
    let reach = LanReach::without_routing_rules(firewall.allows_direct);
    if let Err(error) = install(&Lan(firewall.lan.clone()), reach, firewall.drops_families) {
        tracing::warn!("cannot replace the table inet {TABLE}: {error}");
    }
}

/// Removes the firewall, if it is installed. Blocks while nft runs.
///
/// # Errors
/// As [`install`].
pub(super) fn remove() -> Result<(), NftError> {
    nft::run_commands(&delete_table()).map(drop)
}

/// The installed firewall; none: it does not exist, or cannot be read (without CAP_NET_ADMIN or nft). Blocks while
/// nft runs.
pub(super) fn read_installed() -> Option<StandingFirewall> {
    nft::run_commands(&format!("list table inet {TABLE}\n")).ok().map(|text| parse_listing(&text))
}

fn delete_table() -> String {
    format!("add table inet {TABLE}; delete table inet {TABLE}\n")
}

fn table_text(lan: &Lan, reach: LanReach, enabled_here: (bool, bool)) -> String {
    let lan = lan.to_nft_set();
    let mut rules = vec!["type filter hook forward priority -1; policy accept".to_owned()];
    if reach != LanReach::All {
        rules.push(format!("iifname {lan} meta l4proto tcp {} accept", nft_rules::inbound_reply_match()));
    }
    let lan_tcp_match = format!("iifname {lan} oifname != {lan} meta l4proto tcp");
    match reach {
        LanReach::All => {}
        LanReach::Routed => rules.extend(
            private_networks::excluded_matches().map(|destination| format!("{lan_tcp_match} {destination} drop")),
        ),
        LanReach::LanOnly => rules.push(format!("{lan_tcp_match} drop")),
    }
    rules.push(format!("iifname {lan} accept"));
    rules.push(format!("oifname {lan} ct state established,related accept"));
    for (is_enabled_here, family) in [(enabled_here.0, "ipv4"), (enabled_here.1, "ipv6")] {
        if is_enabled_here {
            rules.push(format!("meta nfproto {family} drop"));
        }
    }
    // One transaction: an earlier table is replaced without a gap.
    let chain = |name: &str, rules: &[String]| format!("chain {name} {{ {}; }}; ", rules.join("; "));
    let mut chains = vec![chain("closed", &rules)];
    if reach == LanReach::Routed {
        // After the gateway's own table, whose TPROXY takes what goes to the edge.
        let mut unrouted_rules = vec!["type filter hook prerouting priority -151; policy accept".to_owned()];
        unrouted_rules.extend(nft_rules::lan_tcp_rules(&lan));
        unrouted_rules.extend(private_networks::jump_rules());
        chains.insert(0, chain("unrouted", &unrouted_rules));
        chains.insert(0, chain(private_networks::PRIVATE_CHAIN, &private_networks::unrouted_rules()));
    }
    format!("{}table inet {TABLE} {{ {}}}\n", delete_table(), chains.concat())
}

/// Parses nft's listing of the table.
fn parse_listing(text: &str) -> StandingFirewall {
    let mut lan: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.contains("oifname")) {
        // Names are quoted, so every second part is one.
        for name in line.split('"').skip(1).step_by(2) {
            if !lan.iter().any(|known| known == name) {
                lan.push(name.to_owned());
            }
        }
    }
    let drops_family = |family: &str| text.lines().any(|line| line.trim() == format!("meta nfproto {family} drop"));
    let allows_direct =
        !text.lines().any(|line| line.contains("meta l4proto tcp") && line.trim().ends_with(" drop"));
    StandingFirewall { lan, drops_families: (drops_family("ipv4"), drops_family("ipv6")), allows_direct }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan(names: &[&str]) -> Lan {
        Lan::new(names.iter().map(|name| (*name).to_owned()).collect()).unwrap()
    }

    #[test]
    fn the_firewall_covers_only_enabled_families_and_has_no_owner() {
        let text = table_text(&lan(&["lan0"]), LanReach::Routed, (true, false));
        assert!(text.contains("meta nfproto ipv4 drop") && !text.contains("nfproto ipv6 drop"), "{text}");
        let closed = "iifname { \"lan0\" } oifname != { \"lan0\" } meta l4proto tcp ip daddr != { 10.0.0.0/8, ";
        assert!(text.contains(closed) && text.contains("tcp ip6 daddr != { fc00::/7, fec0::/10 } drop"), "{text}");
        assert!(
            !text.contains("flags owner") && text.starts_with("add table inet marline-lan; delete table"),
            "{text}"
        );
        assert!(!table_text(&lan(&["lan0"]), LanReach::All, (true, true)).contains("l4proto tcp"));
    }

    #[test]
    fn private_networks_require_a_route_lookup() {
        let text = table_text(&lan(&["lan0"]), LanReach::Routed, (true, false));
        let order =
            ["meta mark 0x6d62 return", "mark != 0 drop", "fib daddr . mark oif missing drop", "jump private"];
        let mut offset = 0;
        for rule in order {
            offset += text[offset..].find(rule).unwrap_or_else(|| panic!("{rule} is not in its place: {text}"));
        }
        let sealed_text = table_text(&lan(&["lan0"]), LanReach::LanOnly, (true, false));
        assert!(
            sealed_text.contains("iifname { \"lan0\" } oifname != { \"lan0\" } meta l4proto tcp drop"),
            "{sealed_text}"
        );
        assert!(!sealed_text.contains("prerouting"), "{sealed_text}");
    }

    #[test]
    fn no_repair_happens_after_the_gateway_has_ended() {
        let reinstaller = FirewallReinstaller::new(lan(&["lan0"]), false, (true, true));
        assert_eq!(reinstaller.run_unless_ended(|| 1), Some(1));
        let (start_tx, start_rx) = std::sync::mpsc::channel();
        let (reinstaller_clone, is_done) = (reinstaller.clone(), Arc::new(Mutex::new(false)));
        let setting = Arc::clone(&is_done);
        let checker = std::thread::spawn(move || {
            reinstaller_clone.run_unless_ended(|| {
                start_tx.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                *setting.lock().unwrap() = true;
            })
        });
        start_rx.recv().unwrap();
        reinstaller.end();
        assert!(*is_done.lock().unwrap(), "`end` waits for a running action");
        assert_eq!((checker.join().unwrap(), reinstaller.run_unless_ended(|| 2)), (Some(()), None));
    }

    #[test]
    fn the_listing_of_nft_is_parsed() {
        let text = "table inet marline-lan {\n\tchain closed {\n\t\ttype filter hook forward priority filter - 1; policy accept;\n\
                    \t\tiifname { \"br-lan\", \"wlan1\" } accept\n\t\toifname { \"br-lan\", \"wlan1\" } ct state established,related accept\n\
                    \t\tmeta nfproto ipv6 drop\n\t}\n}\n";
        let firewall = StandingFirewall {
            lan: vec!["br-lan".into(), "wlan1".into()],
            drops_families: (false, true),
            allows_direct: true,
        };
        assert_eq!(parse_listing(text), firewall);
        let lan_tcp_match =
            "\t\tiifname \"lan0\" oifname != \"lan0\" meta l4proto tcp ip daddr { 100.100.100.200 } drop\n";
        let without_direct = parse_listing(lan_tcp_match);
        assert!(!without_direct.allows_direct && without_direct.lan == ["lan0"], "{without_direct:?}");
    }
}
