//! Determines whether other firewalls of this host drop a LAN's packets, by evaluating the nftables rules for one
//! packet.
//!
//! A host that runs Docker has the FORWARD policy DROP; one with ufw or firewalld drops incoming packets. Either
//! blocks the LAN without any message, because rules of one table do not override those of another. So the chains of
//! each hook are evaluated for the relevant packet, as the kernel does, and chains that drop it are reported. The
//! list contains rules of iptables-nft, but not those of iptables-legacy.
//!
//! Tables of the families `bridge`, `netdev` and `arp` are ignored, because routed packets do not pass their hooks
//! for forwarding. Dormant tables are ignored, too.
//!
//! A match that cannot be interpreted may apply or not. If a rule with such a match accepts, nothing is reported: a
//! false alarm would be worse than none.

mod iptables;
mod matches;
mod rule_text;
mod ruleset;
mod statement;
#[cfg(test)]
mod tests;

pub(super) use matches::{AddressScope, Packet};
pub(super) use ruleset::Ruleset;

use matches::MatchResult;
use ruleset::Chain;
use statement::{CATCH_ALL, Statement, Verdict};

/// A base chain that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DroppingChain {
    /// Family and table in the notation of nft: `ip filter`.
    pub(super) table: String,
    /// Name of the base chain: `FORWARD`.
    pub(super) chain: String,
    /// Whether its policy drops the packet, rather than a rule.
    pub(super) by_policy: bool,
}

/// Result of evaluating a chain for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketFate {
    Accepted,
    Dropped,
    /// It reached the end of the chain, or a `return`.
    Continued,
    /// A rule that may apply accepts it.
    Unknown,
}

/// Our choice: the kernel's limit of nested jumps (NFT_JUMP_STACK_SIZE).
const MAX_JUMP_DEPTH: usize = 16;
/// Maximum number of rules evaluated for one packet. Our choice: long lists of blocked addresses are sets, not single
/// rules.
const MAX_RULES: usize = 20_000;

/// The base chains of other programs that drop a packet.
pub(super) fn dropping_chains(ruleset: &Ruleset, packet: &Packet<'_>) -> Vec<DroppingChain> {
    let family = if packet.is_ipv4 { "ip" } else { "ip6" };
    let base_chains = ruleset.chains().filter(|(key, chain)| {
        let is_hooked = chain.base.as_ref().is_some_and(|base| base.hook == packet.hook);
        is_hooked && (key.family == family || key.family == "inet") && !is_own_table(&key.table)
    });
    let dropped = base_chains.filter_map(|(key, chain)| {
        let mut traversal =
            ChainTraversal { ruleset, packet, family: &key.family, table: &key.table, rules_left: MAX_RULES };
        let fate = traversal.traverse(chain, 0);
        let by_policy =
            fate == PacketFate::Continued && chain.base.as_ref().is_some_and(|base| base.drops_by_default);
        (by_policy || fate == PacketFate::Dropped).then(|| DroppingChain {
            table: format!("{} {}", key.family, key.table),
            chain: key.chain.clone(),
            by_policy,
        })
    });
    dropped.collect()
}

fn is_own_table(table: &str) -> bool {
    table == "marline" || table.starts_with("marline-")
}

/// Evaluation of one packet in the chains of one table.
struct ChainTraversal<'a> {
    ruleset: &'a Ruleset,
    packet: &'a Packet<'a>,
    family: &'a str,
    table: &'a str,
    /// Number of rules that may still be evaluated.
    rules_left: usize,
}

impl<'a> ChainTraversal<'a> {
    fn traverse(&mut self, chain: &'a Chain, depth: usize) -> PacketFate {
        for rule in &chain.rules {
            self.rules_left = self.rules_left.saturating_sub(1);
            if self.rules_left == 0 || depth > MAX_JUMP_DEPTH {
                return PacketFate::Unknown;
            }
            let (result, verdict) = self.evaluate(rule);
            let fate = match verdict {
                _ if result == MatchResult::No => continue,
                Verdict::Unknown if result >= MatchResult::Maybe => PacketFate::Unknown,
                Verdict::Accept if result == MatchResult::Yes => PacketFate::Accepted,
                Verdict::Accept if result == MatchResult::Maybe => PacketFate::Unknown,
                Verdict::Drop if result == MatchResult::Yes => PacketFate::Dropped,
                Verdict::Return if result == MatchResult::Yes => return PacketFate::Continued,
                // Whether the packet reaches the rest of the chain is unknown.
                Verdict::Return if result == MatchResult::Maybe => return PacketFate::Unknown,
                Verdict::Jump(target) | Verdict::Goto(target) if result >= MatchResult::Maybe => {
                    let next = self.ruleset.chain(self.family, self.table, target);
                    let fate =
                        next.map_or(PacketFate::Continued, |next| self.traverse(next, depth.saturating_add(1)));
                    match (fate, result) {
                        (PacketFate::Accepted, MatchResult::Maybe) => PacketFate::Unknown,
                        // If it is unknown whether the jump is taken, an acceptance behind it makes the result
                        // unknown, and a drop behind it is no proof: the next rule decides.
                        (PacketFate::Dropped, MatchResult::Maybe) => continue,
                        (PacketFate::Continued, MatchResult::Yes) if matches!(verdict, Verdict::Goto(_)) => {
                            return PacketFate::Continued;
                        }
                        (fate, _) => fate,
                    }
                }
                _ => continue,
            };
            if fate != PacketFate::Continued {
                return fate;
            }
        }
        PacketFate::Continued
    }

    /// Whether a rule applies to the packet, and its verdict.
    fn evaluate(&self, rule: &'a [Statement]) -> (MatchResult, &'a Verdict) {
        let mut result = MatchResult::Yes;
        for statement in rule {
            result = result.min(match statement {
                Statement::Match { lhs, is_negated, rhs } => self.packet.matches(lhs, *is_negated, rhs),
                Statement::SometimesMatch => MatchResult::Sometimes,
                Statement::UnknownMatch => MatchResult::Maybe,
                Statement::Verdict(verdict) => return (result, verdict),
                Statement::Map { key, entries } => {
                    let (result_for, verdict) = self.look_up(key, entries);
                    return (result.min(result_for), verdict);
                }
            });
            if result == MatchResult::No {
                break;
            }
        }
        (result, &Verdict::Continue)
    }

    /// The verdict of a verdict map for this packet.
    fn look_up(
        &self,
        key: &'a serde_json::Value,
        entries: &'a [(serde_json::Value, Verdict)],
    ) -> (MatchResult, &'a Verdict) {
        let result_for =
            |(value, verdict): &'a (serde_json::Value, Verdict)| (self.packet.matches(key, false, value), verdict);
        let listed = entries.iter().filter(|(value, _)| value != CATCH_ALL);
        let best = listed.map(result_for).max_by_key(|(result, _)| *result);
        match best {
            Some((MatchResult::Yes, verdict)) => (MatchResult::Yes, verdict),
            Some((MatchResult::Maybe, _)) => (MatchResult::Maybe, &Verdict::Unknown),
            Some((MatchResult::Sometimes, _)) => (MatchResult::Sometimes, &Verdict::Continue),
            Some((MatchResult::No, _)) | None => {
                let default = entries.iter().find(|(value, _)| value == CATCH_ALL);
                default.map_or((MatchResult::No, &Verdict::Continue), |(_, verdict)| (MatchResult::Yes, verdict))
            }
        }
    }
}
