//! What on this host stops a LAN's packets while a gateway runs, and when that changes: firewalls of other programs (`firewall`),
//! forwarding that was switched off, and the gateway's own standing firewall (`block`), which another program may remove.
//!
//! `nft` runs when the kernel says that the rules are another generation, which costs one message a second. What was read is judged again
//! now and then, since links that come or go can change the answer. A kernel that tells no generation has its rules read then, too.

use std::time::{Duration, Instant};

use marline_core::wire::netlink::{messages, nftables};
use marline_net::links::list_interfaces;
use marline_sys::netlink::{Protocol, Socket};

use super::block::Keeper;
use super::firewall::Ruleset;
use super::legacy;
use super::report::firewalls;
use super::rules::Lan;
use crate::forward::nft;
use crate::ground::forwarding::Guard;

/// chosen: a line about what was changed by hand comes while the hand is still there.
pub(super) const EACH: Duration = Duration::from_secs(1);
/// chosen: a link that comes is looked at soon enough.
const AT_LEAST: Duration = Duration::from_secs(30);

/// What is looked at again and again.
#[derive(Debug)]
pub(super) struct Obstacles {
    lan: Lan,
    guard: Guard,
    keeper: Keeper,
    socket: Option<Socket>,
    /// The generation of the rules that were read last, and when they were judged.
    read: Option<(Option<u32>, Instant)>,
    ruleset: Ruleset,
    /// Why there are no rules to judge.
    unread: Option<String>,
    firewalls: Vec<String>,
    closed: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What was set again just now, a line each.
    pub mended: Vec<String>,
    /// What stops the LAN's packets and what helps, a line each.
    pub stops: Vec<String>,
    /// What could not be checked and why, a line each.
    pub unchecked: Vec<String>,
    /// The firewall that keeps the LAN closed after a crash is in force.
    pub closed: bool,
}

impl Obstacles {
    pub(super) fn new(lan: Lan, keeper: Keeper, switched: (bool, bool)) -> Self {
        Self {
            lan,
            guard: Guard::new(switched),
            keeper,
            socket: Socket::open(Protocol::Netfilter).ok(),
            read: None,
            ruleset: Ruleset::default(),
            unread: None,
            firewalls: Vec::new(),
            closed: true,
        }
    }

    /// Looks. Blocks for as long as nft runs, if it has to.
    pub(super) fn look(&mut self) -> Found {
        let now = Instant::now();
        // This may run on after the gateway has ended and restored the settings.
        let guard = &mut self.guard;
        let (mended, mut stops) = self.keeper.unless_ended(|| guard.look(now)).unwrap_or_default();
        let generation = self.generation();
        let is_late = self.read.is_none_or(|(_, at)| now.duration_since(at) >= AT_LEAST);
        let is_other = self.read.is_none_or(|(read, _)| read != generation);
        // Without a generation, or where the last attempt has failed, there is only the time.
        let is_blind = generation.is_none() || self.unread.is_some() || !self.closed;
        if is_other || (is_late && is_blind) {
            self.closed = self.keeper.keep();
            self.read_rules();
        }
        if is_other || is_late {
            self.read = Some((generation, now));
            // What cannot be looked at is as it was.
            if let Ok(survey) = list_interfaces() {
                self.firewalls = firewalls(&self.ruleset, &survey, &self.lan);
            }
        }
        stops.extend(self.firewalls.iter().cloned());
        let unchecked = self.unread.iter().cloned().chain(legacy::unchecked()).collect();
        Found { mended, stops, unchecked, closed: self.closed }
    }

    fn read_rules(&mut self) {
        // Without the elements of named sets, which may be very many.
        let listed = nft::list(&["--json", "--terse"]).map_err(|error| error.to_string());
        let text = || nft::list(&["--handle", "--terse"]).ok();
        let read = listed.and_then(|json| Ruleset::read(&json, text).map_err(|error| error.to_string()));
        self.unread = read.as_ref().err().map(|error| {
            format!(
                "not checked: the rules of other firewalls cannot be listed ({error}); it takes an nft with JSON (on OpenWrt the package \
                 nftables-json)"
            )
        });
        // Rules that cannot be read are taken to be as they were.
        if let Ok(read) = read {
            self.ruleset = read;
        }
    }

    fn generation(&self) -> Option<u32> {
        let answer = self.socket.as_ref()?.request(&nftables::generation_request().finish(1)).ok()?;
        messages(&answer).find_map(|message| nftables::generation(&message))
    }
}
