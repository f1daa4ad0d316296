//! Reports for each firewall of this host that drops a LAN's packets: the chain and table, the dropped packets, and a
//! command that permits them.

use std::collections::{BTreeMap, BTreeSet};

use marline_net::links::{Interface, InterfaceList};

use super::firewall::{AddressScope, DroppingChain, Packet, Ruleset, dropping_chains};
use super::nft_rules::Lan;
use crate::transparent::policy_route::LAN_TRAFFIC;

/// Packets of one LAN interface that a chain drops.
#[derive(Default)]
struct DroppedPackets {
    /// Links to which packets are dropped.
    links: BTreeSet<String>,
    /// Affected IP versions; true: IPv4.
    versions: BTreeSet<bool>,
}

type DropReport = BTreeMap<DroppingChain, DroppedPackets>;

/// One line for each firewall that drops packets of the LAN.
pub(super) fn report_firewalls(ruleset: &Ruleset, survey: &InterfaceList, lan: &Lan) -> Vec<String> {
    let mut reports = Vec::new();
    for name in &lan.0 {
        let versions = ip_versions(survey.by_name(name));
        let (mut forward, mut input) = (DropReport::new(), DropReport::new());
        let links: BTreeSet<&str> =
            versions.iter().flat_map(|(is_ipv4, _)| links_for_version(survey, *is_ipv4)).collect();
        for (is_ipv4, scope) in &versions {
            let (is_ipv4, source) = (*is_ipv4, *scope);
            let packet = |hook, to| Packet {
                hook,
                is_ipv4,
                iif: name,
                oif: to,
                protocol: "udp",
                mark: 0,
                ct_state: "new",
                source,
                destination: AddressScope::Internet,
            };
            for link in self::links_for_version(survey, is_ipv4) {
                let outgoing = packet("forward", Some(link));
                let reply = Packet { iif: link, oif: Some(name), ct_state: "established", ..outgoing };
                let reply = Packet { source: AddressScope::Internet, destination: source, ..reply };
                // Filters at the other two hooks can drop packets as well. The addresses of a packet at a hook depend
                // on whether the masquerade comes before or after it. Replies are not followed at prerouting, where
                // their destination can be this host.
                let at_prerouting = Packet { hook: "prerouting", oif: None, ..outgoing };
                let at_postrouting = Packet { hook: "postrouting", source: AddressScope::Lan(None), ..outgoing };
                let reply_at_postrouting = Packet { hook: "postrouting", ..reply };
                let packets = [at_prerouting, outgoing, at_postrouting, reply, reply_at_postrouting];
                for chain_drop in packets.iter().flat_map(|packet| dropping_chains(ruleset, packet)) {
                    let dropped = forward.entry(chain_drop).or_default();
                    dropped.links.insert(link.to_owned());
                    dropped.versions.insert(is_ipv4);
                }
            }
            let to_edge = Packet { protocol: "tcp", mark: LAN_TRAFFIC.mark.into(), ..packet("input", None) };
            for chain_drop in dropping_chains(ruleset, &to_edge) {
                input.entry(chain_drop).or_default().versions.insert(is_ipv4);
            }
        }
        let version =
            |chain_drop: &DroppingChain, dropped: &DroppedPackets| match (versions.len(), dropped.versions.first())
            {
                // Tables of a single family need no suffix.
                (2, Some(is_ipv4)) if dropped.versions.len() == 1 && chain_drop.table.starts_with("inet ") => {
                    if *is_ipv4 {
                        " (IPv4)"
                    } else {
                        " (IPv6)"
                    }
                }
                _ => "",
            };
        let has_docker = ruleset.has_chain("ip", "filter", "DOCKER-USER");
        for (chain_drop, dropped) in &forward {
            let covers_all = links.iter().all(|link| dropped.links.contains(*link));
            let link_names = || dropped.links.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let destination = if covers_all { "the links".to_owned() } else { link_names() };
            reports.push(forward_notice(chain_drop, name, version(chain_drop, dropped), &destination, has_docker));
        }
        reports.extend(
            input.iter().map(|(chain_drop, dropped)| input_notice(chain_drop, name, version(chain_drop, dropped))),
        );
    }
    reports
}

/// IP versions of a LAN interface, each with its network. An interface without an address counts as IPv4.
fn ip_versions(lan_interface: Option<&Interface>) -> Vec<(bool, AddressScope)> {
    let network_of = |is_ipv4: bool| {
        let networks = lan_interface.into_iter().flat_map(|lan_interface| &lan_interface.subnets);
        networks.copied().find(|network| network.address.is_ipv4() == is_ipv4)
    };
    let versions_found = [true, false]
        .into_iter()
        .filter_map(|is_ipv4| Some((is_ipv4, AddressScope::Lan(Some(network_of(is_ipv4)?)))));
    let versions_found: Vec<_> = versions_found.collect();
    if versions_found.is_empty() { vec![(true, AddressScope::Lan(None))] } else { versions_found }
}

/// Links with a default route of this IP version.
fn links_for_version(survey: &InterfaceList, is_ipv4: bool) -> impl Iterator<Item = &str> {
    let has_route =
        move |link: &&Interface| if is_ipv4 { link.route_v4.is_some() } else { link.route_v6.is_some() };
    survey.interfaces.iter().filter(has_route).map(|link| link.name.as_str())
}

/// `chain FORWARD of table ip filter (policy drop)`.
fn chain_text(chain_drop: &DroppingChain) -> String {
    let cause = if chain_drop.by_policy { "policy drop" } else { "a rule" };
    format!("chain {} of table {} ({cause})", chain_drop.chain, chain_drop.table)
}

/// The iptables program of such a table; none: nft.
fn iptables_program(chain_drop: &DroppingChain) -> Option<&'static str> {
    match chain_drop.table.as_str() {
        "ip filter" => Some("iptables"),
        "ip6 filter" => Some("ip6tables"),
        _ => None,
    }
}

fn forward_notice(
    chain_drop: &DroppingChain,
    lan: &str,
    version: &str,
    destination: &str,
    has_docker: bool,
) -> String {
    let remedy = match iptables_program(chain_drop) {
        Some(program) => {
            let chain = if has_docker && program == "iptables" { "DOCKER-USER" } else { chain_drop.chain.as_str() };
            format!(
                "`{program} -I {chain} -i {lan} -j ACCEPT; {program} -I {chain} -o {lan} -m conntrack --ctstate \
                 RELATED,ESTABLISHED -j ACCEPT`"
            )
        }
        None => {
            let DroppingChain { table, chain, .. } = chain_drop;
            format!(
                "`nft insert rule {table} {chain} iifname {lan} accept; nft insert rule {table} {chain} oifname {lan} ct state \
                 established,related accept`"
            )
        }
    };
    format!(
        "{} drops forwarded packets of {lan}{version} (UDP, ICMP, TCP to private networks) towards {destination}. To allow them: {remedy}",
        chain_text(chain_drop)
    )
}

fn input_notice(chain_drop: &DroppingChain, lan: &str, version: &str) -> String {
    let edge_mark = LAN_TRAFFIC.mark;
    let remedy = match iptables_program(chain_drop) {
        Some(program) => format!(
            "`{program} -I {} -i {lan} -m mark --mark {edge_mark:#x} -j ACCEPT` (with ufw in /etc/ufw/before.rules: \
             -A ufw-before-input -i {lan} -m mark --mark {edge_mark:#x} -j ACCEPT)",
            chain_drop.chain
        ),
        None => {
            let DroppingChain { table, chain, .. } = chain_drop;
            format!("`nft insert rule {table} {chain} iifname {lan} meta mark {edge_mark:#x} accept`")
        }
    };
    format!(
        "{} drops TCP of {lan}{version} that is redirected to this program. To allow it: {remedy}",
        chain_text(chain_drop)
    )
}
