//! Whether other firewalls of this host let a LAN's packets pass: what nft lists of them, gone through for one packet.
//!
//! A box that runs Docker has a FORWARD policy of DROP, one with ufw or firewalld drops what comes in. Either stops the LAN without a
//! word: rules of one table do not overrule those of another one. So the chains of each hook are followed for the packet that matters,
//! as the kernel follows them, and what drops it is named. Rules of iptables-nft are in the same list; those of iptables-legacy are not.
//!
//! A match that is not understood may hold or not. Where a rule with such a match accepts, nothing is reported: a false alarm would be
//! worse than none.

use std::net::IpAddr;

use crate::links::Network;

/// A packet whose way is followed.
#[derive(Clone, Debug)]
pub(super) struct Packet<'a> {
    /// `forward` or `input`.
    pub(super) hook: &'a str,
    /// The interface over which it comes in.
    pub(super) from: &'a str,
    /// The interfaces over which it may leave; none: it stays here.
    pub(super) to: &'a [String],
    /// `udp` or `tcp`.
    pub(super) protocol: &'a str,
    /// Its mark.
    pub(super) mark: u32,
    /// Of its connection: `new` or `established`.
    pub(super) state: &'a str,
    /// An address of the LAN, which is the network of its sender.
    pub(super) sender: Option<Network>,
}

/// A chain that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    /// Family and table, as nft writes them: `ip filter`.
    pub(super) table: String,
    /// The base chain: `FORWARD`.
    pub(super) chain: String,
    /// Its policy drops, rather than a rule.
    pub(super) policy: bool,
}

/// A chain of the list.
#[derive(Debug, Default)]
struct Chain<'a> {
    table: &'a str,
    name: &'a str,
    /// Of a base chain of filters.
    hook: Option<&'a str>,
    drops: bool,
    rules: Vec<Vec<&'a str>>,
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

/// Whether a match holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    No,
    /// It holds for some of these packets.
    Some,
    Maybe,
    Yes,
}

/// chosen: as the kernel's bound of jumps (NFT_JUMP_STACK_SIZE).
const DEPTH: usize = 16;
/// chosen: rules that are gone through for one packet; a list of blocked addresses is a set, not a rule each.
const RULES: usize = 20_000;

/// The base chains of other programs that drop a packet. `list` is what `nft list ruleset` prints.
pub(super) fn dropped_by(list: &str, packet: &Packet<'_>) -> Vec<Dropped> {
    let chains = chains(list);
    let base = chains.iter().filter(|chain| chain.hook == Some(packet.hook) && !is_ours(chain.table));
    let dropped = base.filter_map(|chain| {
        let mut left = RULES;
        let end = follow(&chains, chain, packet, 0, &mut left);
        let policy = end == End::Through && chain.drops;
        (policy || end == End::Dropped).then(|| Dropped {
            table: chain.table.to_owned(),
            chain: chain.name.to_owned(),
            policy,
        })
    });
    dropped.collect()
}

fn is_ours(table: &str) -> bool {
    table.split(' ').nth(1).is_some_and(|name| name == "marline" || name.starts_with("marline-"))
}

/// Reads the list.
fn chains(list: &str) -> Vec<Chain<'_>> {
    let (mut all, mut table, mut current) = (Vec::new(), "", None::<Chain<'_>>);
    for line in list.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("table ").and_then(|rest| rest.strip_suffix(" {")) {
            table = rest;
        } else if let Some(name) = line.strip_prefix("chain ").and_then(|rest| rest.strip_suffix(" {")) {
            current = Some(Chain { table, name, ..Chain::default() });
        } else if line == "}" {
            all.extend(current.take());
        } else if let Some(chain) = &mut current {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() == Some(&"type") {
                let after = |word: &str| {
                    let at = words.iter().position(|other| *other == word)?;
                    words.get(at.saturating_add(1)).map(|next| next.trim_end_matches(';'))
                };
                // Chains of the type `nat` see the first packet only, and are no filters.
                chain.hook = after("hook").filter(|_| after("type") == Some("filter"));
                chain.drops = after("policy") == Some("drop");
            } else if !words.is_empty() {
                chain.rules.push(words);
            }
        }
    }
    all
}

fn follow(chains: &[Chain<'_>], chain: &Chain<'_>, packet: &Packet<'_>, depth: usize, left: &mut usize) -> End {
    for rule in &chain.rules {
        *left = left.saturating_sub(1);
        if *left == 0 || depth > DEPTH {
            return End::Unknown;
        }
        let (holds, verdict) = judge(rule, packet);
        let end = match verdict {
            _ if holds == Holds::No => continue,
            Verdict::Accept if holds == Holds::Yes => End::Accepted,
            Verdict::Accept if holds == Holds::Maybe => End::Unknown,
            Verdict::Drop if holds == Holds::Yes => End::Dropped,
            Verdict::Return if holds == Holds::Yes => return End::Through,
            // Whether the rest of the chain is seen is not known.
            Verdict::Return if holds == Holds::Maybe => return End::Unknown,
            Verdict::Jump(name) | Verdict::Goto(name) if holds >= Holds::Maybe => {
                let next = chains.iter().find(|other| other.table == chain.table && other.name == name);
                let end =
                    next.map_or(End::Through, |next| follow(chains, next, packet, depth.saturating_add(1), left));
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Accept,
    Drop,
    Return,
    Jump(&'a str),
    Goto(&'a str),
    None,
}

/// Whether a rule holds for the packet, and what it says then.
fn judge<'a>(rule: &[&'a str], packet: &Packet<'_>) -> (Holds, Verdict<'a>) {
    let mut holds = Holds::Yes;
    let mut words = Words { rest: rule };
    while let Some(word) = words.next() {
        let found = match word {
            "accept" => return (holds, Verdict::Accept),
            "drop" | "reject" => return (holds, Verdict::Drop),
            "return" => return (holds, Verdict::Return),
            "jump" => return (holds, Verdict::Jump(words.next().unwrap_or_default())),
            "goto" => return (holds, Verdict::Goto(words.next().unwrap_or_default())),
            "counter" => {
                if words.rest.first() == Some(&"packets") {
                    words.skip(4);
                }
                Holds::Yes
            }
            "comment" => return (holds, Verdict::None),
            "iifname" | "iif" => words.value().holds(|name| is_name(name, packet.from)),
            "oifname" | "oif" => {
                let value = words.value();
                // One of the ways out is enough: which one is taken is not known.
                let ways = packet.to.iter().map(|to| value.holds(|name| is_name(name, to)));
                ways.max().unwrap_or(if value.negated { Holds::Yes } else { Holds::No })
            }
            "ct" if words.rest.first() == Some(&"state") => {
                words.skip(1);
                if words.rest.first() == Some(&"vmap") {
                    words.skip(1);
                    match words.value().verdict_of(packet.state) {
                        Some(verdict) => return (holds, verdict),
                        None => Holds::No,
                    }
                } else {
                    words.value().holds(|state| state.split(',').any(|state| state == packet.state))
                }
            }
            "meta" => match words.next() {
                Some("l4proto") => words.value().holds(|name| name == packet.protocol),
                Some("nfproto") => {
                    let version =
                        packet.sender.map_or("ipv4", |of| if of.address.is_ipv4() { "ipv4" } else { "ipv6" });
                    words.value().holds(|name| name == version)
                }
                Some("mark") if words.rest.first() != Some(&"set") && words.rest.first() != Some(&"&") => {
                    words.value().holds(|mark| number(mark) == Some(packet.mark))
                }
                Some("iifname" | "iif") => words.value().holds(|name| is_name(name, packet.from)),
                _ => Holds::Maybe,
            },
            "ip" | "ip6" => match words.next() {
                Some("protocol" | "nexthdr") => words.value().holds(|name| name == packet.protocol),
                Some("saddr") => words.network(packet),
                Some("daddr") => {
                    words.value();
                    Holds::Some
                }
                _ => Holds::Maybe,
            },
            // Its address is not the host's own, nor one of many.
            "fib" if words.rest.starts_with(&["daddr", "type"]) => {
                words.skip(2);
                words.value().holds(|kind| kind == "unicast")
            }
            "tcp" | "udp" | "icmp" | "icmpv6" | "sctp" | "esp" | "ah" | "igmp" | "th" => {
                if word == "th" || word == packet.protocol { Holds::Some } else { Holds::No }
            }
            // A name of a family stands before nothing else; what belongs to a match that is not understood is passed over.
            _ => Holds::Maybe,
        };
        holds = holds.min(found);
        if holds == Holds::No {
            return (Holds::No, Verdict::None);
        }
    }
    (holds, Verdict::None)
}

/// The words of a rule that are left.
struct Words<'r, 'a> {
    rest: &'r [&'a str],
}

/// What a match compares with.
struct Value<'a> {
    negated: bool,
    parts: Vec<&'a str>,
}

impl<'a> Words<'_, 'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn skip(&mut self, count: usize) {
        self.rest = self.rest.get(count..).unwrap_or_default();
    }

    /// `X`, `!= X`, `{ X, Y }`.
    fn value(&mut self) -> Value<'a> {
        let mut first = self.next();
        let negated = first == Some("!=");
        if negated || first == Some("==") {
            first = self.next();
        }
        let mut parts = Vec::new();
        if first == Some("{") {
            while let Some(word) = self.next().filter(|word| *word != "}") {
                parts.push(word.trim_end_matches(','));
            }
        } else {
            parts.extend(first);
        }
        Value { negated, parts }
    }

    /// Whether the sender's network is in the one that follows.
    fn network(&mut self, packet: &Packet<'_>) -> Holds {
        let value = self.value();
        let Some(sender) = packet.sender else { return Holds::Maybe };
        if value.parts.iter().any(|part| part.starts_with('@')) {
            return Holds::Maybe;
        }
        value.holds(|part| {
            let (address, bits) =
                part.split_once('/').unwrap_or((part, if part.contains(':') { "128" } else { "32" }));
            let network = address.parse::<IpAddr>().ok().zip(bits.parse().ok());
            network.is_some_and(|(address, prefix)| Network { address, prefix }.contains(sender.address))
        })
    }
}

impl<'a> Value<'a> {
    fn holds(&self, is: impl Fn(&str) -> bool) -> Holds {
        if self.parts.iter().any(|part| part.starts_with('@')) {
            return Holds::Maybe;
        }
        let found = self.parts.iter().any(|part| is(part));
        if found == self.negated { Holds::No } else { Holds::Yes }
    }

    /// Of `{ established : accept, new : jump x }`.
    fn verdict_of(&self, key: &str) -> Option<Verdict<'a>> {
        let at = self.parts.windows(2).position(|pair| pair[0] == key && pair[1] == ":")?;
        match *self.parts.get(at.saturating_add(2))? {
            "accept" => Some(Verdict::Accept),
            "drop" => Some(Verdict::Drop),
            "return" => Some(Verdict::Return),
            "jump" => self.parts.get(at.saturating_add(3)).map(|name| Verdict::Jump(name)),
            "goto" => self.parts.get(at.saturating_add(3)).map(|name| Verdict::Goto(name)),
            _ => None,
        }
    }
}

/// `"wan*"` stands for all that begin so.
fn is_name(pattern: &str, name: &str) -> bool {
    let pattern = pattern.trim_matches('"');
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

fn number(text: &str) -> Option<u32> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(list: &str) -> Vec<(String, bool)> {
        let to = ["wan1".to_owned(), "wwan0".to_owned()];
        let sender = Some(Network { address: "192.168.77.1".parse().unwrap(), prefix: 24 });
        let packet =
            Packet { hook: "forward", from: "lan0", to: &to, protocol: "udp", mark: 0, state: "new", sender };
        dropped_by(list, &packet).into_iter().map(|by| (format!("{} {}", by.table, by.chain), by.policy)).collect()
    }

    fn input(list: &str) -> bool {
        let packet = Packet {
            hook: "input",
            from: "lan0",
            to: &[],
            protocol: "tcp",
            mark: 0x6d62,
            state: "new",
            sender: None,
        };
        !dropped_by(list, &packet).is_empty()
    }

    /// A table with one base chain, and others.
    fn list(head: &str, rules: &[&str], others: &str) -> String {
        format!(
            "table ip filter {{\n\tchain BASE {{\n\t\t{head}\n\t\t{}\n\t}}\n{others}\n}}\n",
            rules.join("\n\t\t")
        )
    }

    const DROPS: &str = "type filter hook forward priority filter; policy drop;";
    const ACCEPTS: &str = "type filter hook forward priority filter; policy accept;";
    const DOCKER: [&str; 4] = [
        "counter packets 0 bytes 0 jump DOCKER-USER",
        "oifname \"docker0\" ct state related,established counter packets 0 bytes 0 accept",
        "iifname \"docker0\" oifname != \"docker0\" counter packets 0 bytes 0 accept",
        "iifname \"docker0\" oifname \"docker0\" counter packets 0 bytes 0 accept",
    ];
    const USER: &str = "\tchain DOCKER-USER {\n\t\tcounter packets 0 bytes 0 return\n\t}";

    #[test]
    fn dockers_policy_drops_a_lans_packets_until_a_rule_accepts_them() {
        assert_eq!(forward(&list(DROPS, &DOCKER, USER)), [("ip filter BASE".to_owned(), true)]);
        for rule in [
            "iifname \"lan0\" counter packets 0 bytes 0 accept",
            "iifname \"lan*\" accept",
            "iifname { \"eth7\", \"lan0\" } oifname \"wan1\" ct state new counter packets 5 bytes 7 accept",
            "ip saddr 192.168.0.0/16 counter packets 0 bytes 0 accept",
            "iifname != \"docker0\" accept",
            "ct state vmap { established : accept, related : accept, new : accept }",
            "meta l4proto { tcp, udp } accept",
        ] {
            let user = format!("\tchain DOCKER-USER {{\n\t\t{rule}\n\t\tcounter packets 0 bytes 0 return\n\t}}");
            assert_eq!(forward(&list(DROPS, &DOCKER, &user)), [], "{rule}");
        }
        for rule in [
            "iifname \"lan1\" accept",
            "iifname \"lan0\" ct state related,established accept",
            "ip saddr 10.0.0.0/8 accept",
            "udp dport 53 counter packets 0 bytes 0 accept",
            "tcp dport 22 accept",
            "iifname \"lan0\" oifname \"docker0\" accept",
            "ct state vmap { established : accept, invalid : drop }",
        ] {
            let user = format!("\tchain DOCKER-USER {{\n\t\t{rule}\n\t\tcounter packets 0 bytes 0 return\n\t}}");
            assert_eq!(forward(&list(DROPS, &DOCKER, &user)).len(), 1, "{rule}");
        }
    }

    #[test]
    fn rules_drop_as_policies_do_and_what_is_not_known_is_no_alarm() {
        assert_eq!(
            forward(&list(ACCEPTS, &["iifname \"docker0\" accept", "drop"], "")),
            [("ip filter BASE".into(), false)]
        );
        assert_eq!(forward(&list(ACCEPTS, &["reject with icmpx admin-prohibited"], "")).len(), 1);
        assert_eq!(
            forward(&list(ACCEPTS, &["goto x", "accept"], "\tchain x {\n\t\tiifname \"lan0\" drop\n\t}")).len(),
            1
        );
        assert_eq!(forward(&list(ACCEPTS, &["ct state invalid drop", "tcp dport 25 reject"], "")), []);
        for rule in ["ip saddr @known accept", "meta skuid 7 accept", "meta mark & 0xff == 1 accept"] {
            assert_eq!(forward(&list(DROPS, &[rule], "")), [], "{rule}");
        }
        assert_eq!(forward(&list("type nat hook forward priority 0; policy drop;", &[], "")), []);
        let ours = list(DROPS, &[], "").replace("ip filter", "inet marline-lan");
        assert_eq!(forward(&ours), []);
        // Chains that lead to each other, and pieces of a list.
        let ring = list(DROPS, &["jump a"], "\tchain a {\n\t\tjump b\n\t}\n\tchain b {\n\t\tjump a\n\t}");
        assert_eq!(forward(&ring), []);
        for end in 0..ring.len() {
            forward(&ring[..end]);
        }
    }

    #[test]
    fn a_firewall_of_what_comes_in_has_to_accept_the_mark() {
        let drops = "type filter hook input priority filter; policy drop;";
        let ufw = ["iifname \"lo\" accept", "ct state related,established accept", "jump ufw-not-local"];
        let others = "\tchain ufw-not-local {\n\t\tfib daddr type local counter packets 0 bytes 0 return\n\t\tfib daddr type multicast return\n\t\tlimit rate 3/minute burst 10 packets jump log\n\t\tdrop\n\t}\n\tchain log {\n\t\tlog prefix \"[UFW BLOCK] \"\n\t}";
        assert!(input(&list(drops, &ufw, others)));
        let lets = ["meta mark 0x00006d62 counter packets 0 bytes 0 accept"];
        assert!(!input(&list(drops, &[&lets[..], &ufw[..]].concat(), others)));
        assert!(!input(&list(drops, &["iifname \"lan0\" accept"], "")));
        assert!(input(&list(drops, &["tcp dport { 22, 80 } accept", "iifname \"lan0\" udp dport 67 accept"], "")));
    }
}
