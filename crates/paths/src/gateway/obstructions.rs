//! What on this host stops a LAN's packets while a gateway runs, and when that changes: firewalls of other programs (`firewall`),
//! forwarding that was switched off, and the gateway's own standing firewall (`standing_firewall`), which another program may remove.
//!
//! `nft` runs when the kernel says that the rules are another generation, which costs one message a second. What was read is judged again
//! now and then, since links that come or go can change the answer. A kernel that tells no generation has its rules read then, too.

use std::time::{Duration, Instant};

use marline_core::wire::netlink::{messages, nftables};
use marline_net::links::list_interfaces;
use marline_sys::netlink::{Protocol, Socket};

use super::firewall::Ruleset;
use super::firewall_report::report_firewalls;
use super::iptables_legacy;
use super::nft_rules::Lan;
use super::standing_firewall::FirewallKeeper;
use crate::host_config::forwarding::ForwardingMonitor;
use crate::transparent::nft;

/// chosen: a line about what was changed by hand comes while the hand is still there.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// chosen: a link that comes is looked at soon enough.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// What is looked at again and again.
#[derive(Debug)]
pub(super) struct ObstructionChecker {
    lan: Lan,
    forwarding_monitor: ForwardingMonitor,
    firewall_keeper: FirewallKeeper,
    socket: Option<Socket>,
    /// The generation of the rules that were read last, and when they were judged.
    last_read: Option<(Option<u32>, Instant)>,
    ruleset: Ruleset,
    /// Why there are no rules to judge.
    read_error: Option<String>,
    firewall_reports: Vec<String>,
    is_closed: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstructions {
    /// What was set again just now, a line each.
    pub repaired: Vec<String>,
    /// What stops the LAN's packets and what helps, a line each.
    pub obstructions: Vec<String>,
    /// What could not be checked and why, a line each.
    pub unchecked: Vec<String>,
    /// The firewall that keeps the LAN closed after a crash is in force.
    pub is_closed: bool,
}

impl ObstructionChecker {
    pub(super) fn new(lan: Lan, firewall_keeper: FirewallKeeper, enabled_here: (bool, bool)) -> Self {
        Self {
            lan,
            forwarding_monitor: ForwardingMonitor::new(enabled_here),
            firewall_keeper,
            socket: Socket::open(Protocol::Netfilter).ok(),
            last_read: None,
            ruleset: Ruleset::default(),
            read_error: None,
            firewall_reports: Vec::new(),
            is_closed: true,
        }
    }

    /// Looks. Blocks for as long as nft runs, if it has to.
    pub(super) fn check(&mut self) -> Obstructions {
        let now = Instant::now();
        // This may run on after the gateway has ended and restored the settings.
        let forwarding_monitor = &mut self.forwarding_monitor;
        let (repaired, mut obstructions) =
            self.firewall_keeper.run_unless_ended(|| forwarding_monitor.check(now)).unwrap_or_default();
        let generation = self.generation();
        let is_recheck_due =
            self.last_read.is_none_or(|(_, read_at)| now.duration_since(read_at) >= RECHECK_INTERVAL);
        let has_changed = self.last_read.is_none_or(|(last_generation, _)| last_generation != generation);
        // Without a generation, or where the last attempt has failed, there is only the time.
        let has_no_generation = generation.is_none() || self.read_error.is_some() || !self.is_closed;
        if has_changed || (is_recheck_due && has_no_generation) {
            self.is_closed = self.firewall_keeper.ensure_installed();
            self.read_rules();
        }
        if has_changed || is_recheck_due {
            self.last_read = Some((generation, now));
            // What cannot be looked at is as it was.
            if let Ok(survey) = list_interfaces() {
                self.firewall_reports = report_firewalls(&self.ruleset, &survey, &self.lan);
            }
        }
        obstructions.extend(self.firewall_reports.iter().cloned());
        let unchecked = self.read_error.iter().cloned().chain(iptables_legacy::unchecked_notices()).collect();
        Obstructions { repaired, obstructions, unchecked, is_closed: self.is_closed }
    }

    fn read_rules(&mut self) {
        // Without the elements of named sets, which may be very many.
        let json_listing = nft::list_ruleset(&["--json", "--terse"]).map_err(|error| error.to_string());
        let text = || nft::list_ruleset(&["--handle", "--terse"]).ok();
        let ruleset = json_listing.and_then(|json| Ruleset::parse(&json, text).map_err(|error| error.to_string()));
        self.read_error = ruleset.as_ref().err().map(|error| {
            format!(
                "not checked: the rules of other firewalls cannot be listed ({error}); it takes an nft with JSON (on OpenWrt the package \
                 nftables-json)"
            )
        });
        // Rules that cannot be read are taken to be as they were.
        if let Ok(ruleset) = ruleset {
            self.ruleset = ruleset;
        }
    }

    fn generation(&self) -> Option<u32> {
        let reply = self.socket.as_ref()?.request(&nftables::generation_request().finish(1)).ok()?;
        messages(&reply).find_map(|message| nftables::generation(&message))
    }
}
