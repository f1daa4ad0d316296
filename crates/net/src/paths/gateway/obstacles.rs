//! What on this host stops a LAN's packets while a gateway runs, and when that changes: firewalls of other programs (`firewall`) and
//! forwarding that was switched off.
//!
//! Rules are read when the kernel says that they are another generation, which costs one message a second; `nft` runs only then. Links
//! that come or go can change the answer, too, so it is asked for again now and then.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use marline_core::wire::netlink::{messages, nftables};
use marline_sys::netlink::{Protocol, Socket};

use super::firewall::{Dropped, Packet, dropped_by};
use super::rules::Lan;
use crate::links::{Interface, Survey, survey};
use crate::paths::forward::detour::LAN;
use crate::paths::forward::nft;
use crate::paths::ground::forwarding::Guard;

/// chosen: a line about what was changed by hand comes while the hand is still there.
pub(super) const EACH: Duration = Duration::from_secs(1);
/// chosen: a link that comes is looked at soon enough.
const AT_LEAST: Duration = Duration::from_secs(30);

/// What is looked at again and again.
#[derive(Debug)]
pub(super) struct Obstacles {
    lan: Lan,
    guard: Guard,
    socket: Option<Socket>,
    /// The generation of the rules that were read last, and when.
    read: Option<(Option<u32>, Instant)>,
    firewalls: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What was set again just now, a line each.
    pub mended: Vec<String>,
    /// What stops the LAN's packets and what helps, a line each.
    pub stops: Vec<String>,
}

impl Obstacles {
    pub(super) fn new(lan: Lan, switched: (bool, bool)) -> Self {
        let socket = Socket::open(Protocol::Netfilter).ok();
        Self { lan, guard: Guard::new(switched), socket, read: None, firewalls: Vec::new() }
    }

    /// Looks. Blocks for as long as nft runs, if it has to.
    pub(super) fn look(&mut self) -> Found {
        let now = Instant::now();
        let (mended, mut stops) = self.guard.look(now);
        let generation = self.generation();
        let is_old = |(read, at): (Option<u32>, Instant)| {
            now.duration_since(at) >= AT_LEAST || (read.is_some() && read != generation)
        };
        if self.read.is_none_or(is_old) {
            self.read = Some((generation, now));
            // Without nft, or with a list that cannot be read, nothing is known.
            if let (Ok(list), Ok(survey)) = (nft::run("list ruleset\n"), survey()) {
                self.firewalls = firewalls(&list, &survey, &self.lan);
            }
        }
        stops.extend(self.firewalls.iter().cloned());
        Found { mended, stops }
    }

    fn generation(&self) -> Option<u32> {
        let answer = self.socket.as_ref()?.request(&nftables::generation_request().finish(1)).ok()?;
        messages(&answer).find_map(|message| nftables::generation(&message))
    }
}

/// A line for each firewall that stops the LAN.
fn firewalls(list: &str, survey: &Survey, lan: &Lan) -> Vec<String> {
    let is_link = |interface: &&Interface| interface.v4.is_some() || interface.v6.is_some();
    let links: Vec<String> = survey.interfaces.iter().filter(is_link).map(|link| link.name.clone()).collect();
    let has_docker = list.contains("chain DOCKER-USER {");
    let mut lines = Vec::new();
    for name in &lan.0 {
        let own = survey.named(name);
        let sender = own.and_then(|own| own.networks.iter().find(|of| of.address.is_ipv4())).copied();
        let has_v6 = own.is_some_and(|own| own.addresses.iter().any(IpAddr::is_ipv6));
        let is_meant = |by: &Dropped| has_v6 || !by.table.starts_with("ip6 ");
        let packet =
            Packet { hook: "forward", from: name, to: &links, protocol: "udp", mark: 0, state: "new", sender };
        let mut forward = if links.is_empty() { Vec::new() } else { dropped_by(list, &packet) };
        if let Some(link) = links.first() {
            let back =
                Packet { from: link, to: std::slice::from_ref(name), state: "established", sender: None, ..packet };
            let back = dropped_by(list, &back).into_iter().filter(|by| !forward.contains(by));
            forward.extend(back.collect::<Vec<_>>());
        }
        lines.extend(forward.iter().filter(|by| is_meant(by)).map(|by| stopped_forward(by, name, has_docker)));
        let packet = Packet {
            hook: "input",
            from: name,
            to: &[],
            protocol: "tcp",
            mark: LAN.mark,
            state: "new",
            sender: sender.or(own.and_then(|own| own.networks.first().copied())),
        };
        let input = dropped_by(list, &packet);
        lines.extend(input.iter().filter(|by| is_meant(by)).map(|by| stopped_input(by, name)));
    }
    lines
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

fn stopped_forward(by: &Dropped, lan: &str, has_docker: bool) -> String {
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
    format!("{} drops UDP and the rest of {lan} on the way to the links: {remedy} lets them pass", place(by))
}

fn stopped_input(by: &Dropped, lan: &str) -> String {
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
    format!("{} drops TCP of {lan}, which comes to this program: {remedy}", place(by))
}
