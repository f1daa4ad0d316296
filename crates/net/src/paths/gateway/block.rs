//! The firewall of a LAN's gateway that outlives the process: after a crash, nothing from outside reaches the LAN.
//!
//! A gateway makes the host pass packets on (`ip_forward`). Its other rules end with the process, by design: TPROXY to a process that has
//! died would cut every connection off. Without rules, the host would then be an open router to the LAN. So a second table,
//! `inet marline-lan`, has no owner: it is installed before forwarding is switched on, and removed after forwarding is off again, at an
//! orderly end or by `marline restore`. A restart replaces it in one transaction, so it is never absent in between.
//!
//! What it drops:
//!
//! 1. For each IP version that the host forwards only because of the gateway: everything that does not come from the LAN, except replies to
//!    connections of the LAN. A host that was a router before keeps its own firewall's rules.
//! 2. Unless flows may go directly: TCP from the LAN to beyond it, but for private networks ([`private`]). While the gateway runs all of that
//!    goes to the edge and none is forwarded; after a crash it would leave in plain text.

use std::sync::{Arc, Mutex, PoisonError};

use super::private;
use super::rules::Lan;
use crate::paths::forward::{NftError, nft};

/// The table's name.
pub(super) const TABLE: &str = "marline-lan";

/// What stands of it in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The interfaces of the LAN that it keeps closed.
    pub lan: Vec<String>,
    /// Whether it drops what other rules would let through, of IPv4 and of IPv6.
    pub(super) drops: (bool, bool),
}

/// Puts it back where another program has removed it (`nft flush ruleset`), until the gateway ends.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    lan: Lan,
    direct: bool,
    switched: (bool, bool),
    /// Held while it is put back, so that none comes back behind the end of the gateway.
    ended: Arc<Mutex<bool>>,
}

impl Keeper {
    pub(super) fn new(lan: Lan, direct: bool, switched: (bool, bool)) -> Self {
        Self { lan, direct, switched, ended: Arc::default() }
    }

    /// Whether it is in force now. Blocks for as long as nft runs.
    pub(super) fn keep(&self) -> bool {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended || standing().is_some() {
            return !*ended;
        }
        match install(&self.lan, self.direct, self.switched) {
            Ok(()) => {
                tracing::warn!("another program has removed the table inet {TABLE}; it is in force again");
                true
            }
            Err(error) => {
                tracing::warn!("the table inet {TABLE} is gone and cannot be put in force: {error}");
                false
            }
        }
    }

    /// It is not put back any more once this has returned. Blocks for as long as nft runs.
    pub(super) fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// Puts it in force, in place of what an earlier run has left. Blocks for as long as nft runs.
///
/// # Errors
/// No nft, no privilege, or a kernel that refuses.
pub(super) fn install(lan: &Lan, direct: bool, switched: (bool, bool)) -> Result<(), NftError> {
    nft::run(&table(lan, direct, switched)).map(drop)
}

/// Removes it, if it is there. Blocks for as long as nft runs.
///
/// # Errors
/// As [`install`].
pub(super) fn remove() -> Result<(), NftError> {
    nft::run(&nothing()).map(drop)
}

/// Whether it stands, and for which interfaces; none also where that cannot be seen (without CAP_NET_ADMIN or nft). Blocks for as long as
/// nft runs.
pub(super) fn standing() -> Option<Standing> {
    nft::run(&format!("list table inet {TABLE}\n")).ok().map(|text| parse(&text))
}

fn nothing() -> String {
    format!("add table inet {TABLE}; delete table inet {TABLE}\n")
}

fn table(lan: &Lan, direct: bool, switched: (bool, bool)) -> String {
    let names: Vec<String> = lan.0.iter().map(|name| format!("\"{name}\"")).collect();
    let lan = format!("{{ {} }}", names.join(", "));
    let mut rules = vec!["type filter hook forward priority -1; policy accept".to_owned()];
    if !direct {
        rules.extend(
            private::others().map(|to| format!("iifname {lan} oifname != {lan} meta l4proto tcp {to} drop")),
        );
    }
    rules.push(format!("iifname {lan} accept"));
    rules.push(format!("oifname {lan} ct state established,related accept"));
    for (is_ours, family) in [(switched.0, "ipv4"), (switched.1, "ipv6")] {
        if is_ours {
            rules.push(format!("meta nfproto {family} drop"));
        }
    }
    // One transaction: whatever stood before is replaced without a gap.
    format!("{}table inet {TABLE} {{ chain closed {{ {}; }}; }}\n", nothing(), rules.join("; "))
}

/// nft's listing of the table.
fn parse(text: &str) -> Standing {
    let mut lan: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.contains("oifname")) {
        // Names stand in quotes; every second piece is one.
        for name in line.split('"').skip(1).step_by(2) {
            if !lan.iter().any(|known| known == name) {
                lan.push(name.to_owned());
            }
        }
    }
    let drops = |family: &str| text.lines().any(|line| line.trim() == format!("meta nfproto {family} drop"));
    Standing { lan, drops: (drops("ipv4"), drops("ipv6")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan(names: &[&str]) -> Lan {
        Lan::new(names.iter().map(|name| (*name).to_owned()).collect()).unwrap()
    }

    #[test]
    fn it_drops_only_where_the_gateway_made_the_host_a_router_and_has_no_owner() {
        let text = table(&lan(&["lan0"]), false, (true, false));
        assert!(text.contains("meta nfproto ipv4 drop") && !text.contains("nfproto ipv6 drop"), "{text}");
        let closed = "iifname { \"lan0\" } oifname != { \"lan0\" } meta l4proto tcp ip daddr != { 10.0.0.0/8, ";
        assert!(text.contains(closed) && text.contains("tcp ip6 daddr != { fc00::/7, fec0::/10 } drop"), "{text}");
        assert!(
            !text.contains("flags owner") && text.starts_with("add table inet marline-lan; delete table"),
            "{text}"
        );
        assert!(!table(&lan(&["lan0"]), true, (true, true)).contains("l4proto tcp"));
    }

    #[test]
    fn nfts_listing_tells_what_it_keeps_closed() {
        let text = "table inet marline-lan {\n\tchain closed {\n\t\ttype filter hook forward priority filter - 1; policy accept;\n\
                    \t\tiifname { \"br-lan\", \"wlan1\" } accept\n\t\toifname { \"br-lan\", \"wlan1\" } ct state established,related accept\n\
                    \t\tmeta nfproto ipv6 drop\n\t}\n}\n";
        assert_eq!(parse(text), Standing { lan: vec!["br-lan".into(), "wlan1".into()], drops: (false, true) });
    }
}
