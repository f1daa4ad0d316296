//! A line for each firewall of this host that stops a LAN's packets: which chain of which table, what it drops, and the command that lets it
//! pass.

use std::collections::{BTreeMap, BTreeSet};

use marline_net::links::{Interface, InterfaceList};

use super::firewall::{Dropped, Packet, Ruleset, Side, dropped_by};
use super::rules::Lan;
use crate::forward::detour::LAN;

/// What one chain drops of the packets of one interface of the LAN.
#[derive(Default)]
struct Stopped {
    /// Links to which no packets pass.
    links: BTreeSet<String>,
    /// Of IPv4, and of IPv6.
    versions: BTreeSet<bool>,
}

type Found = BTreeMap<Dropped, Stopped>;

/// A line for each firewall that stops the LAN.
pub(super) fn firewalls(ruleset: &Ruleset, survey: &InterfaceList, lan: &Lan) -> Vec<String> {
    let mut lines = Vec::new();
    for name in &lan.0 {
        let versions = versions(survey.by_name(name));
        let (mut forward, mut input) = (Found::new(), Found::new());
        let links: BTreeSet<&str> = versions.iter().flat_map(|(is_ipv4, _)| links(survey, *is_ipv4)).collect();
        for (is_ipv4, side) in &versions {
            let (is_ipv4, source) = (*is_ipv4, *side);
            let packet = |hook, to| Packet {
                hook,
                is_ipv4,
                from: name,
                to,
                protocol: "udp",
                mark: 0,
                state: "new",
                source,
                destination: Side::Internet,
            };
            for link in self::links(survey, is_ipv4) {
                let out = packet("forward", Some(link));
                let back = Packet { from: link, to: Some(name), state: "established", ..out };
                let back = Packet { source: Side::Internet, destination: source, ..back };
                // Filters at the other two hooks can drop them as well. Which of its addresses a packet has there depends on whether the
                // masquerade comes before or after: replies are not followed at prerouting, where their destination can be this host.
                let before = Packet { hook: "prerouting", to: None, ..out };
                let after = Packet { hook: "postrouting", source: Side::Lan(None), ..out };
                let back_after = Packet { hook: "postrouting", ..back };
                let packets = [before, out, after, back, back_after];
                for by in packets.iter().flat_map(|packet| dropped_by(ruleset, packet)) {
                    let stopped = forward.entry(by).or_default();
                    stopped.links.insert(link.to_owned());
                    stopped.versions.insert(is_ipv4);
                }
            }
            let arriving = Packet { protocol: "tcp", mark: LAN.mark.into(), ..packet("input", None) };
            for by in dropped_by(ruleset, &arriving) {
                input.entry(by).or_default().versions.insert(is_ipv4);
            }
        }
        let version = |by: &Dropped, stopped: &Stopped| match (versions.len(), stopped.versions.first()) {
            // The family of the other tables says it.
            (2, Some(is_ipv4)) if stopped.versions.len() == 1 && by.table.starts_with("inet ") => {
                if *is_ipv4 {
                    " (IPv4)"
                } else {
                    " (IPv6)"
                }
            }
            _ => "",
        };
        let has_docker = ruleset.has("ip", "filter", "DOCKER-USER");
        for (by, stopped) in &forward {
            let all = links.iter().all(|link| stopped.links.contains(*link));
            let names = || stopped.links.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let to = if all { "the links".to_owned() } else { names() };
            lines.push(stopped_forward(by, name, version(by, stopped), &to, has_docker));
        }
        lines.extend(input.iter().map(|(by, stopped)| stopped_input(by, name, version(by, stopped))));
    }
    lines
}

/// The versions of IP that an interface of the LAN has, each with its network. One without an address yet counts as IPv4.
fn versions(own: Option<&Interface>) -> Vec<(bool, Side)> {
    let network = |is_ipv4: bool| {
        let networks = own.into_iter().flat_map(|own| &own.subnets);
        networks.copied().find(|network| network.address.is_ipv4() == is_ipv4)
    };
    let found = [true, false].into_iter().filter_map(|is_ipv4| Some((is_ipv4, Side::Lan(Some(network(is_ipv4)?)))));
    let found: Vec<_> = found.collect();
    if found.is_empty() { vec![(true, Side::Lan(None))] } else { found }
}

/// The links that lead to the Internet by this version.
fn links(survey: &InterfaceList, is_ipv4: bool) -> impl Iterator<Item = &str> {
    let leads = move |link: &&Interface| if is_ipv4 { link.route_v4.is_some() } else { link.route_v6.is_some() };
    survey.interfaces.iter().filter(leads).map(|link| link.name.as_str())
}

/// `chain FORWARD of table ip filter (policy drop)`.
fn place(by: &Dropped) -> String {
    let how = if by.policy { "policy drop" } else { "a rule" };
    format!("chain {} of table {} ({how})", by.chain, by.table)
}

/// The program that writes rules into a table of its kind; none: nft.
fn iptables(by: &Dropped) -> Option<&'static str> {
    match by.table.as_str() {
        "ip filter" => Some("iptables"),
        "ip6 filter" => Some("ip6tables"),
        _ => None,
    }
}

fn stopped_forward(by: &Dropped, lan: &str, version: &str, to: &str, has_docker: bool) -> String {
    let remedy = match iptables(by) {
        Some(program) => {
            let chain = if has_docker && program == "iptables" { "DOCKER-USER" } else { by.chain.as_str() };
            format!(
                "`{program} -I {chain} -i {lan} -j ACCEPT; {program} -I {chain} -o {lan} -m conntrack --ctstate \
                 RELATED,ESTABLISHED -j ACCEPT`"
            )
        }
        None => {
            let Dropped { table, chain, .. } = by;
            format!(
                "`nft insert rule {table} {chain} iifname {lan} accept; nft insert rule {table} {chain} oifname {lan} ct state \
                 established,related accept`"
            )
        }
    };
    format!(
        "{} drops forwarded packets of {lan}{version} (UDP, ICMP, TCP to private networks) towards {to}. To allow them: {remedy}",
        place(by)
    )
}

fn stopped_input(by: &Dropped, lan: &str, version: &str) -> String {
    let mark = LAN.mark;
    let remedy = match iptables(by) {
        Some(program) => format!(
            "`{program} -I {} -i {lan} -m mark --mark {mark:#x} -j ACCEPT` lets it pass (with ufw in /etc/ufw/before.rules: \
             -A ufw-before-input -i {lan} -m mark --mark {mark:#x} -j ACCEPT)",
            by.chain
        ),
        None => {
            let Dropped { table, chain, .. } = by;
            format!("`nft insert rule {table} {chain} iifname {lan} meta mark {mark:#x} accept` lets it pass")
        }
    };
    format!("{} drops TCP of {lan}{version}, which comes to this program: {remedy}", place(by))
}
