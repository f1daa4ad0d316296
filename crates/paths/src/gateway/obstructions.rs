//! Finds out what on this host drops a LAN's packets while a gateway runs, and when that changes: firewalls of other
//! programs (`firewall`), forwarding that was switched off, and the removal of the gateway's standing firewall
//! (`standing_firewall`) by another program.
//!
//! `nft` runs only when the kernel reports another generation of the rules, which costs one netlink message per
//! second. The rules that were read are judged again periodically, since links that appear or disappear can change
//! the result. If the kernel reports no generation, the rules are read at the same interval.

use std::time::{Duration, Instant};

use marline_core::wire::netlink::{messages, nftables};
use marline_net::links::list_interfaces;
use marline_sys::netlink::{Protocol, Socket};

use super::firewall::Ruleset;
use super::firewall_report::report_firewalls;
use super::iptables_legacy;
use super::nft_rules::Lan;
use super::standing_firewall::FirewallReinstaller;
use crate::host_config::forwarding::ForwardingMonitor;
use crate::transparent::nft;

/// Our choice: an administrator who changes a firewall sees the effect while still working on it.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Our choice: soon enough for a new link.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// State of the periodic check.
#[derive(Debug)]
pub(super) struct ObstructionChecker {
    lan: Lan,
    forwarding_monitor: ForwardingMonitor,
    firewall_reinstaller: FirewallReinstaller,
    socket: Option<Socket>,
    /// Generation of the rules that were read last, and the time of their judgement.
    last_read: Option<(Option<u32>, Instant)>,
    ruleset: Ruleset,
    /// Why the rules could not be read.
    read_error: Option<String>,
    firewall_reports: Vec<String>,
    is_closed: bool,
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstructions {
    /// Repairs of this check, one line each.
    pub repaired: Vec<String>,
    /// What drops the LAN's packets, with a remedy, one line each.
    pub obstructions: Vec<String>,
    /// What could not be checked and why, one line each.
    pub unchecked: Vec<String>,
    /// Whether the standing firewall, which keeps the LAN closed after a crash, is in force.
    pub is_closed: bool,
}

impl ObstructionChecker {
    pub(super) fn new(lan: Lan, firewall_reinstaller: FirewallReinstaller, enabled_here: (bool, bool)) -> Self {
        Self {
            lan,
            forwarding_monitor: ForwardingMonitor::new(enabled_here),
            firewall_reinstaller,
            socket: Socket::open(Protocol::Netfilter).ok(),
            last_read: None,
            ruleset: Ruleset::default(),
            read_error: None,
            firewall_reports: Vec::new(),
            is_closed: true,
        }
    }

    /// Checks the host. Blocks while nft runs, if that is necessary.
    pub(super) fn check(&mut self) -> Obstructions {
        let now = Instant::now();
        // This may still run after the gateway has ended and restored the settings.
        let forwarding_monitor = &mut self.forwarding_monitor;
        let (repaired, mut obstructions) =
            self.firewall_reinstaller.run_unless_ended(|| forwarding_monitor.check(now)).unwrap_or_default();
        let generation = self.generation();
        let is_recheck_due =
            self.last_read.is_none_or(|(_, read_at)| now.duration_since(read_at) >= RECHECK_INTERVAL);
        let has_changed = self.last_read.is_none_or(|(last_generation, _)| last_generation != generation);
        // Without a generation, or after a failed attempt, only the time triggers a new reading.
        let has_no_generation = generation.is_none() || self.read_error.is_some() || !self.is_closed;
        if has_changed || (is_recheck_due && has_no_generation) {
            self.is_closed = self.firewall_reinstaller.ensure_installed();
            self.read_rules();
        }
        if has_changed || is_recheck_due {
            self.last_read = Some((generation, now));
            // Without a list of interfaces the last reports remain.
            if let Ok(survey) = list_interfaces() {
                self.firewall_reports = report_firewalls(&self.ruleset, &survey, &self.lan);
            }
        }
        obstructions.extend(self.firewall_reports.iter().cloned());
        let unchecked = self.read_error.iter().cloned().chain(iptables_legacy::unchecked_notices()).collect();
        Obstructions { repaired, obstructions, unchecked, is_closed: self.is_closed }
    }

    fn read_rules(&mut self) {
        // Without the elements of named sets, which may be very many (`--terse`).
        let json_listing = nft::list_ruleset(&["--json", "--terse"]).map_err(|error| error.to_string());
        let text = || nft::list_ruleset(&["--handle", "--terse"]).ok();
        let ruleset = json_listing.and_then(|json| Ruleset::parse(&json, text).map_err(|error| error.to_string()));
        self.read_error = ruleset.as_ref().err().map(|error| {
            format!(
                "not checked: the rules of other firewalls cannot be listed ({error}); an nft with JSON support is needed (on OpenWrt the package \
                 nftables-json)"
            )
        });
        // Unreadable rules count as unchanged.
        if let Ok(ruleset) = ruleset {
            self.ruleset = ruleset;
        }
    }

    fn generation(&self) -> Option<u32> {
        let reply = self.socket.as_ref()?.request(&nftables::generation_request().finish(1)).ok()?;
        messages(&reply).find_map(|message| nftables::generation(&message))
    }
}
