//! Whether other firewalls of this host let a LAN's packets pass: the rules of nftables, gone through for one packet.
//!
//! A box that runs Docker has a FORWARD policy of DROP, one with ufw or firewalld drops what comes in. Either stops the LAN without a
//! word: rules of one table do not overrule those of another one. So the chains of each hook are followed for the packet that matters,
//! as the kernel follows them, and what drops it is named. Rules of iptables-nft are in the same list; those of iptables-legacy are not.
//!
//! Tables of the families `bridge`, `netdev` and `arp` do not count: routed packets do not pass their hooks for forwarding. Dormant tables
//! do not count either.
//!
//! A match that is not understood may hold or not. Where a rule with such a match accepts, nothing is reported: a false alarm would be
//! worse than none.

mod iptables;
mod matches;
mod ruleset;
#[cfg(test)]
mod tests;
mod text;

pub(super) use matches::{Packet, Side};
pub(super) use ruleset::Ruleset;

use matches::Holds;
use ruleset::{Chain, Statement, Verdict};

/// A chain that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Dropped {
    /// Family and table, as nft writes them: `ip filter`.
    pub(super) table: String,
    /// The base chain: `FORWARD`.
    pub(super) chain: String,
    /// Its policy drops, rather than a rule.
    pub(super) policy: bool,
}

/// Where a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accepted,
    Dropped,
    /// It came to the end of the chain, or back from it.
    Through,
    /// A rule that may hold accepts it.
    Unknown,
}

/// chosen: as the kernel's bound of jumps (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;
/// chosen: rules that are gone through for one packet; a list of blocked addresses is a set, not a rule each.
const RULES: usize = 20_000;

/// The base chains of other programs that drop a packet.
pub(super) fn dropped_by(ruleset: &Ruleset, packet: &Packet<'_>) -> Vec<Dropped> {
    let family = if packet.is_ipv4 { "ip" } else { "ip6" };
    let base = ruleset.chains().filter(|(place, chain)| {
        let is_hooked = chain.base.as_ref().is_some_and(|base| base.hook == packet.hook);
        is_hooked && (place.family == family || place.family == "inet") && !is_ours(&place.table)
    });
    let dropped = base.filter_map(|(place, chain)| {
        let mut way = Way { ruleset, packet, family: &place.family, table: &place.table, left: RULES };
        let end = way.follow(chain, 0);
        let policy = end == End::Through && chain.base.as_ref().is_some_and(|base| base.drops);
        (policy || end == End::Dropped).then(|| Dropped {
            table: format!("{} {}", place.family, place.table),
            chain: place.chain.clone(),
            policy,
        })
    });
    dropped.collect()
}

fn is_ours(table: &str) -> bool {
    table == "marline" || table.starts_with("marline-")
}

/// A packet on its way through the chains of one table.
struct Way<'a> {
    ruleset: &'a Ruleset,
    packet: &'a Packet<'a>,
    family: &'a str,
    table: &'a str,
    /// Rules that may still be looked at.
    left: usize,
}

impl<'a> Way<'a> {
    fn follow(&mut self, chain: &'a Chain, depth: usize) -> End {
        for rule in &chain.rules {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 || depth > DEPTH {
                return End::Unknown;
            }
            let (holds, verdict) = self.judge(rule);
            let end = match verdict {
                _ if holds == Holds::No => continue,
                Verdict::Unknown if holds >= Holds::Maybe => End::Unknown,
                Verdict::Accept if holds == Holds::Yes => End::Accepted,
                Verdict::Accept if holds == Holds::Maybe => End::Unknown,
                Verdict::Drop if holds == Holds::Yes => End::Dropped,
                Verdict::Return if holds == Holds::Yes => return End::Through,
                // Whether the rest of the chain is seen is not known.
                Verdict::Return if holds == Holds::Maybe => return End::Unknown,
                Verdict::Jump(name) | Verdict::Goto(name) if holds >= Holds::Maybe => {
                    let next = self.ruleset.chain(self.family, self.table, name);
                    let end = next.map_or(End::Through, |next| self.follow(next, depth.saturating_add(1)));
                    match (end, holds) {
                        (End::Accepted, Holds::Maybe) => End::Unknown,
                        (End::Dropped, Holds::Maybe) => continue,
                        (End::Through, Holds::Yes) if matches!(verdict, Verdict::Goto(_)) => return End::Through,
                        (end, _) => end,
                    }
                }
                _ => continue,
            };
            if end != End::Through {
                return end;
            }
        }
        End::Through
    }

    /// Whether a rule holds for the packet, and what it says then.
    fn judge(&self, rule: &'a [Statement]) -> (Holds, &'a Verdict) {
        let mut holds = Holds::Yes;
        for statement in rule {
            holds = holds.min(match statement {
                Statement::Match { left, negated, right } => self.packet.holds(left, *negated, right),
                Statement::Partly => Holds::Some,
                Statement::Unknown => Holds::Maybe,
                Statement::Verdict(verdict) => return (holds, verdict),
                Statement::Map { key, entries } => {
                    let (found, verdict) = self.choose(key, entries);
                    return (holds.min(found), verdict);
                }
            });
            if holds == Holds::No {
                break;
            }
        }
        (holds, &Verdict::Continue)
    }

    /// The verdict of a map.
    fn choose(
        &self,
        key: &'a serde_json::Value,
        entries: &'a [(serde_json::Value, Verdict)],
    ) -> (Holds, &'a Verdict) {
        let found = |(of, verdict): &'a (serde_json::Value, Verdict)| (self.packet.holds(key, false, of), verdict);
        let named = entries.iter().filter(|(of, _)| of != ruleset::CATCH_ALL);
        let best = named.map(found).max_by_key(|(holds, _)| *holds);
        match best {
            Some((Holds::Yes, verdict)) => (Holds::Yes, verdict),
            Some((Holds::Maybe, _)) => (Holds::Maybe, &Verdict::Unknown),
            Some((Holds::Some, _)) => (Holds::Some, &Verdict::Continue),
            Some((Holds::No, _)) | None => {
                let rest = entries.iter().find(|(of, _)| of == ruleset::CATCH_ALL);
                rest.map_or((Holds::No, &Verdict::Continue), |(_, verdict)| (Holds::Yes, verdict))
            }
        }
    }
}
