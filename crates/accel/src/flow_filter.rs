//! Flow filter: parses `--flows`.
//!
//! Examples: `tcp dst port 443`, `tcp dst port 80 or 443`, `host 10.0.0.1 and port 443`. The result is turned into
//! matches of packet rules, a list for each alternative.
//!
//! 1. The filter describes packets that leave: `dst` is the server's end, `src` the local one; without either the
//!    server's is meant.
//! 2. `port N`, `port N-M`, `host ADDRESS`, `net ADDRESS/BITS`; behind one of them `or` may be followed by further
//!    values of the same kind alone.
//! 3. `and` binds closer than `or`. `tcp` may stand before any condition and has no effect, because only TCP is
//!    accelerated.
//! 4. An alternative with an address matches only that address's family.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Alternatives, each of which is a list of conditions; empty: all flows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowFilter {
    alternatives: Vec<Vec<Condition>>,
    text: String,
}

/// A condition on one end of a flow; one of the values suffices.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Condition {
    is_source: bool,
    values: Vec<Value>,
}

impl Condition {
    /// Whether it is about ports; else it is about addresses.
    fn is_port(&self) -> bool {
        self.values.iter().any(|value| matches!(value, Value::Ports(..)))
    }

    /// Whether no packet can meet both.
    fn excludes(&self, other: &Self) -> bool {
        self.is_source == other.is_source && self.is_port() == other.is_port()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Ports(u16, u16),
    /// An address, and how many of its bits count.
    Net(IpAddr, u8),
}

impl FlowFilter {
    /// Whether all TCP flows match.
    pub(super) fn is_all(&self) -> bool {
        self.alternatives.is_empty()
    }

    /// Matches of packet rules for these flows: arguments of `iptables` (or of `ip6tables`), a list for each rule.
    pub(super) fn matches(&self, v6: bool) -> Vec<Vec<String>> {
        if self.alternatives.is_empty() {
            return vec![Vec::new()];
        }
        self.alternatives.iter().flat_map(|conditions| rules_for(conditions, v6)).collect()
    }

    /// The same for incoming packets: the ends are swapped.
    pub(super) fn matches_incoming(&self, v6: bool) -> Vec<Vec<String>> {
        let turned = |token: String| match token.as_str() {
            "--sport" => "--dport".to_owned(),
            "--dport" => "--sport".to_owned(),
            "-s" => "-d".to_owned(),
            "-d" => "-s".to_owned(),
            _ => token,
        };
        self.matches(v6).into_iter().map(|tokens| tokens.into_iter().map(turned).collect()).collect()
    }
}

/// One rule for each choice of one value of each condition; none where a family does not fit.
fn rules_for(conditions: &[Condition], v6: bool) -> Vec<Vec<String>> {
    let mut rules = vec![Vec::new()];
    for condition in conditions {
        let chosen = |value: &Value| match_args(condition.is_source, value, v6);
        let choices: Vec<Vec<String>> = condition.values.iter().filter_map(chosen).collect();
        let with =
            |rule: &Vec<String>| choices.iter().map(|tokens| [&rule[..], tokens].concat()).collect::<Vec<_>>();
        rules = rules.iter().flat_map(with).collect();
    }
    rules
}

fn match_args(is_source: bool, value: &Value, v6: bool) -> Option<Vec<String>> {
    let (name, text) = match value {
        Value::Ports(from, to) => (if is_source { "--sport" } else { "--dport" }, format!("{from}:{to}")),
        Value::Net(address, _) if address.is_ipv6() != v6 => return None,
        Value::Net(address, bits) => (if is_source { "-s" } else { "-d" }, format!("{address}/{bits}")),
    };
    Some(vec![name.to_owned(), text])
}

impl fmt::Display for FlowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.text.is_empty() { "all TCP" } else { &self.text })
    }
}

impl FromStr for FlowFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let mut remaining = &tokens[..];
        let mut alternatives = Vec::new();
        let mut conditions = Vec::new();
        // `tcp` alone matches everything anyway.
        while remaining != ["tcp"] || !alternatives.is_empty() || !conditions.is_empty() {
            let next = take_condition(&mut remaining)?;
            if conditions.iter().any(|one: &Condition| one.excludes(&next)) {
                let kind = if next.is_port() { "port" } else { "address" };
                return Err(format!("a packet has one {kind} at that end; `or` in place of `and` means either"));
            }
            conditions.push(next);
            match remaining.split_first() {
                None => break,
                Some((&"and", tail)) => remaining = tail,
                Some((&"or", tail)) => {
                    alternatives.push(std::mem::take(&mut conditions));
                    remaining = tail;
                }
                Some((token, _)) => return Err(format!("`{token}`: expected `and`, `or` or the end")),
            }
        }
        alternatives.extend(Some(conditions).filter(|conditions| !conditions.is_empty()));
        Ok(Self { alternatives, text: tokens.join(" ") })
    }
}

/// Takes one condition from the beginning of `rest`.
fn take_condition(remaining: &mut &[&str]) -> Result<Condition, String> {
    if let Some((&"tcp", tail)) = remaining.split_first() {
        *remaining = tail;
    }
    let mut take = || {
        let (token, tail) = remaining.split_first()?;
        *remaining = tail;
        Some(*token)
    };
    const KINDS: &str = "`port N`, `host ADDRESS` or `net ADDRESS/BITS`";
    let first = take().ok_or_else(|| format!("it ends where {KINDS} is expected"))?;
    let is_source = first == "src";
    let kind = if is_source || first == "dst" { take().unwrap_or_default() } else { first };
    if !["port", "host", "net"].contains(&kind) {
        let token = if kind.is_empty() { first } else { kind };
        return Err(format!("`{token}`: expected {KINDS}, perhaps after `tcp`, `dst` or `src`"));
    }
    let token = take().ok_or_else(|| format!("`{kind}` has no value"))?;
    let mut values = vec![parse_value(kind, token)?];
    while let [first, second, tail @ ..] = *remaining
        && *first == "or"
        && !KEYWORDS.contains(second)
    {
        values.push(parse_value(kind, second)?);
        *remaining = tail;
    }
    Ok(Condition { is_source, values })
}

const KEYWORDS: [&str; 8] = ["tcp", "dst", "src", "port", "host", "net", "and", "or"];

fn parse_value(kind: &str, token: &str) -> Result<Value, String> {
    match kind {
        "port" => {
            let (from, to) = token.split_once('-').unwrap_or((token, token));
            let ports = from.parse().ok().zip(to.parse().ok()).filter(|(from, to)| *from > 0 && from <= to);
            ports
                .map(|(from, to)| Value::Ports(from, to))
                .ok_or_else(|| format!("`port {token}`: expected a port, or two such as 8000-8999"))
        }
        "host" => {
            let address: IpAddr =
                token.parse().map_err(|_| format!("`host {token}`: expected an address such as 192.0.2.1"))?;
            Ok(Value::Net(address, if address.is_ipv6() { 128 } else { 32 }))
        }
        _ => {
            let net = token.split_once('/').and_then(|(address, bits)| {
                let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
                (bits <= if address.is_ipv6() { 128 } else { 32 }).then_some(Value::Net(address, bits))
            });
            net.ok_or_else(|| format!("`net {token}`: expected a network such as 192.0.2.0/24"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(text: &str, v6: bool) -> Vec<String> {
        text.parse::<FlowFilter>().unwrap().matches(v6).iter().map(|tokens| tokens.join(" ")).collect()
    }

    #[test]
    fn expressions_become_matches() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("tcp dst port 443", &["--dport 443:443"], &["--dport 443:443"]),
            ("port 80 or 443", &["--dport 80:80", "--dport 443:443"], &["--dport 80:80", "--dport 443:443"]),
            ("src port 5000-5010", &["--sport 5000:5010"], &["--sport 5000:5010"]),
            ("host 10.0.0.1", &["-d 10.0.0.1/32"], &[]),
            (
                "host 10.0.0.1 or fd00::1 and port 80",
                &["-d 10.0.0.1/32 --dport 80:80"],
                &["-d fd00::1/128 --dport 80:80"],
            ),
            (
                "net 10.0.0.0/8 or tcp port 22 and src host 10.1.0.2",
                &["-d 10.0.0.0/8", "--dport 22:22 -s 10.1.0.2/32"],
                &[],
            ),
            ("src port 9 and dst port 443", &["--sport 9:9 --dport 443:443"], &["--sport 9:9 --dport 443:443"]),
            ("tcp", &[""], &[""]),
        ];
        for (text, v4, v6) in table {
            assert_eq!(
                (&matches(text, false)[..], &matches(text, true)[..]),
                (&v4.to_tokens()[..], &v6.to_tokens()[..]),
                "{text}"
            );
            assert_eq!(text.parse::<FlowFilter>().unwrap().to_string(), *text);
        }
        assert_eq!(FlowFilter::default().matches(true), [Vec::<String>::new()], "no filter: all flows");
    }

    trait ToTokens {
        fn to_tokens(&self) -> Vec<String>;
    }
    impl ToTokens for &[&str] {
        fn to_tokens(&self) -> Vec<String> {
            self.iter().map(|tokens| (*tokens).to_owned()).collect()
        }
    }

    #[test]
    fn a_wrong_word_is_named_in_the_error() {
        for (text, expected) in [
            ("", "it ends"),
            ("udp port 53", "`udp`: expected `port N`"),
            ("tcp dst port", "`port` has no value"),
            ("port 0", "`port 0`"),
            ("port 99999", "`port 99999`"),
            ("port 9-8", "`port 9-8`"),
            ("port 443 or", "it ends"),
            ("port 443 or x", "`port x`"),
            ("port 443 port 80", "`port`: expected `and`, `or` or the end"),
            ("dst", "`dst`: expected"),
            ("host example.org", "`host example.org`: expected an address"),
            ("net 10.0.0.0/33", "`net 10.0.0.0/33`"),
            ("not port 80", "`not`"),
            ("port 80 and tcp", "it ends"),
            ("port 80 and port 443", "a packet has one port at that end"),
            ("host 10.0.0.1 and port 80 and net 10.0.0.0/8", "a packet has one address at that end"),
        ] {
            let error = text.parse::<FlowFilter>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
