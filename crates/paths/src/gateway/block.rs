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
//! 2. Unless flows may go directly: TCP from the LAN to public addresses, and to private ones for which the host has no more than a default
//!    route ([`private`]). While the gateway runs, all of that goes to the edge and is not forwarded; after a crash it would leave in plain
//!    text. The kernel tells which routes there are by rules of the routing policy. As long as those are not there, TCP to all private
//!    addresses is dropped: at the start, and where the table stays although the rules are removed ([`seal`]).

use std::sync::{Arc, Mutex, PoisonError};

use super::private;
use super::rules::{self, Lan};
use crate::forward::{NftError, nft};

/// The table's name.
pub(super) const TABLE: &str = "marline-lan";

/// What stands of it in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The interfaces of the LAN that it keeps closed.
    pub lan: Vec<String>,
    /// Whether it drops what other rules would let through, of IPv4 and of IPv6.
    pub(super) drops: (bool, bool),
    /// Whether TCP of the LAN may leave in plain text.
    direct: bool,
}

/// What TCP of the LAN may reach without an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Everything: flows may go directly.
    All,
    /// Private networks for which the host has more than a default route.
    Routed,
    /// Nothing beyond the LAN.
    Nothing,
}

impl Reach {
    /// Of a gateway that runs.
    pub(super) fn of(direct: bool) -> Self {
        if direct { Self::All } else { Self::Routed }
    }

    /// The same while there are no rules by which the kernel could tell.
    pub(super) fn without_rules(direct: bool) -> Self {
        if direct { Self::All } else { Self::Nothing }
    }
}

/// Puts it back where another program has removed it (`nft flush ruleset`), until the gateway ends.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    lan: Lan,
    direct: bool,
    switched: (bool, bool),
    /// Held while something is put back, so that nothing comes back behind the end of the gateway.
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
        match install(&self.lan, Reach::of(self.direct), self.switched) {
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

    /// Does this unless the gateway has ended; the end waits for it.
    pub(super) fn unless_ended<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        (!*ended).then(act)
    }

    /// Nothing is put back any more once this has returned. Blocks for as long as nft runs.
    pub(super) fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// Puts it in force, in place of what an earlier run has left. Blocks for as long as nft runs.
///
/// # Errors
/// No nft, no privilege, or a kernel that refuses.
pub(super) fn install(lan: &Lan, reach: Reach, switched: (bool, bool)) -> Result<(), NftError> {
    nft::run(&table(lan, reach, switched)).map(drop)
}

/// Closes private networks as well, before the rules are removed by which the kernel tells which of them have a route.
pub(super) fn seal(standing: &Standing) {
    let reach = Reach::without_rules(standing.direct);
    if let Err(error) = install(&Lan(standing.lan.clone()), reach, standing.drops) {
        tracing::warn!("the table inet {TABLE} cannot be replaced: {error}");
    }
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

fn table(lan: &Lan, reach: Reach, switched: (bool, bool)) -> String {
    let lan = lan.set();
    let mut rules = vec!["type filter hook forward priority -1; policy accept".to_owned()];
    if reach != Reach::All {
        rules.push(format!("iifname {lan} meta l4proto tcp {} accept", rules::others_began()));
    }
    let plain = format!("iifname {lan} oifname != {lan} meta l4proto tcp");
    match reach {
        Reach::All => {}
        Reach::Routed => rules.extend(private::others().map(|to| format!("{plain} {to} drop"))),
        Reach::Nothing => rules.push(format!("{plain} drop")),
    }
    rules.push(format!("iifname {lan} accept"));
    rules.push(format!("oifname {lan} ct state established,related accept"));
    for (is_ours, family) in [(switched.0, "ipv4"), (switched.1, "ipv6")] {
        if is_ours {
            rules.push(format!("meta nfproto {family} drop"));
        }
    }
    // One transaction: whatever stood before is replaced without a gap.
    let chain = |name: &str, rules: &[String]| format!("chain {name} {{ {}; }}; ", rules.join("; "));
    let mut chains = vec![chain("closed", &rules)];
    if reach == Reach::Routed {
        // After the gateway's own table, whose TPROXY takes what goes to the edge.
        let mut unrouted = vec!["type filter hook prerouting priority -151; policy accept".to_owned()];
        unrouted.extend(rules::beyond(&lan));
        unrouted.extend(private::jumps());
        chains.insert(0, chain("unrouted", &unrouted));
        chains.insert(0, chain(private::CHAIN, &private::unrouted()));
    }
    format!("{}table inet {TABLE} {{ {}}}\n", nothing(), chains.concat())
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
    let direct = !text.lines().any(|line| line.contains("meta l4proto tcp") && line.trim().ends_with(" drop"));
    Standing { lan, drops: (drops("ipv4"), drops("ipv6")), direct }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lan(names: &[&str]) -> Lan {
        Lan::new(names.iter().map(|name| (*name).to_owned()).collect()).unwrap()
    }

    #[test]
    fn it_drops_only_where_the_gateway_made_the_host_a_router_and_has_no_owner() {
        let text = table(&lan(&["lan0"]), Reach::Routed, (true, false));
        assert!(text.contains("meta nfproto ipv4 drop") && !text.contains("nfproto ipv6 drop"), "{text}");
        let closed = "iifname { \"lan0\" } oifname != { \"lan0\" } meta l4proto tcp ip daddr != { 10.0.0.0/8, ";
        assert!(text.contains(closed) && text.contains("tcp ip6 daddr != { fc00::/7, fec0::/10 } drop"), "{text}");
        assert!(
            !text.contains("flags owner") && text.starts_with("add table inet marline-lan; delete table"),
            "{text}"
        );
        assert!(!table(&lan(&["lan0"]), Reach::All, (true, true)).contains("l4proto tcp"));
    }

    #[test]
    fn private_networks_are_reached_only_while_the_kernel_is_asked_for_a_route() {
        let text = table(&lan(&["lan0"]), Reach::Routed, (true, false));
        let order =
            ["meta mark 0x6d62 return", "mark != 0 drop", "fib daddr . mark oif missing drop", "jump private"];
        let mut at = 0;
        for rule in order {
            at += text[at..].find(rule).unwrap_or_else(|| panic!("{rule} is not in its place: {text}"));
        }
        let sealed = table(&lan(&["lan0"]), Reach::Nothing, (true, false));
        assert!(sealed.contains("iifname { \"lan0\" } oifname != { \"lan0\" } meta l4proto tcp drop"), "{sealed}");
        assert!(!sealed.contains("prerouting"), "{sealed}");
    }

    #[test]
    fn nothing_is_put_back_behind_the_end_of_the_gateway() {
        let keeper = Keeper::new(lan(&["lan0"]), false, (true, true));
        assert_eq!(keeper.unless_ended(|| 1), Some(1));
        let (begun, begins) = std::sync::mpsc::channel();
        let (again, done) = (keeper.clone(), Arc::new(Mutex::new(false)));
        let setting = Arc::clone(&done);
        let look = std::thread::spawn(move || {
            again.unless_ended(|| {
                begun.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                *setting.lock().unwrap() = true;
            })
        });
        begins.recv().unwrap();
        keeper.end();
        assert!(*done.lock().unwrap(), "the end waits for what has begun");
        assert_eq!((look.join().unwrap(), keeper.unless_ended(|| 2)), (Some(()), None));
    }

    #[test]
    fn nfts_listing_tells_what_it_keeps_closed() {
        let text = "table inet marline-lan {\n\tchain closed {\n\t\ttype filter hook forward priority filter - 1; policy accept;\n\
                    \t\tiifname { \"br-lan\", \"wlan1\" } accept\n\t\toifname { \"br-lan\", \"wlan1\" } ct state established,related accept\n\
                    \t\tmeta nfproto ipv6 drop\n\t}\n}\n";
        let standing = Standing { lan: vec!["br-lan".into(), "wlan1".into()], drops: (false, true), direct: true };
        assert_eq!(parse(text), standing);
        let plain = "\t\tiifname \"lan0\" oifname != \"lan0\" meta l4proto tcp ip daddr { 100.100.100.200 } drop\n";
        let indirect = parse(plain);
        assert!(!indirect.direct && indirect.lan == ["lan0"], "{indirect:?}");
    }
}
