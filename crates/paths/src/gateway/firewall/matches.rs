//! Evaluates a match expression of a rule for a packet (libnftables-json(5), expressions).

use std::net::IpAddr;

use marline_net::links::Subnet;
use serde_json::Value;

/// A packet for which rules are evaluated.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Packet<'a> {
    /// `prerouting`, `forward`, `postrouting` or `input`.
    pub(in super::super) hook: &'a str,
    /// Whether it is an IPv4 packet; otherwise IPv6.
    pub(in super::super) is_ipv4: bool,
    /// Incoming interface.
    pub(in super::super) iif: &'a str,
    /// Outgoing interface; none: the packet is for this host, or the interface is not known yet.
    pub(in super::super) oif: Option<&'a str>,
    /// Transport protocol: `udp` or `tcp`.
    pub(in super::super) protocol: &'a str,
    /// The packet's firewall mark; 0 if it has none.
    pub(in super::super) mark: u64,
    /// State of its connection: `new` or `established`.
    pub(in super::super) ct_state: &'a str,
    pub(in super::super) source: AddressScope,
    pub(in super::super) destination: AddressScope,
}

/// Scope of an address of the packet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum AddressScope {
    /// In the LAN, with its network if that is known.
    Lan(Option<Subnet>),
    Internet,
}

/// Whether a match applies to the packets for which a [`Packet`] stands. The order is that of precedence: of several
/// matches of a rule the lowest counts, of several values of a match the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MatchResult {
    No,
    /// It applies to some of these packets, such as those to one port.
    Sometimes,
    /// Unknown, because the match cannot be interpreted.
    Maybe,
    Yes,
}

impl Packet<'_> {
    /// Whether `lhs` equals, or with `is_negated` does not equal, `rhs`.
    pub(super) fn matches(&self, lhs: &Value, is_negated: bool, rhs: &Value) -> MatchResult {
        // A match on a header that the packet lacks fails, also when negated.
        if !self.has_header(lhs) {
            return MatchResult::No;
        }
        match (is_negated, self.compare(lhs, rhs)) {
            (false, result) => result,
            (true, MatchResult::No) => MatchResult::Yes,
            (true, MatchResult::Yes) => MatchResult::No,
            (true, MatchResult::Maybe) => MatchResult::Maybe,
            // All packets except some, which are most of them.
            (true, MatchResult::Sometimes) => MatchResult::Yes,
        }
    }

    fn has_header(&self, lhs: &Value) -> bool {
        let payload = lhs.pointer("/&/0").unwrap_or(lhs);
        match payload.pointer("/payload/protocol").and_then(Value::as_str) {
            Some("ip" | "icmp" | "igmp") if !self.is_ipv4 => false,
            Some("ip6" | "icmpv6") if self.is_ipv4 => false,
            Some(
                protocol
                @ ("tcp" | "udp" | "udplite" | "sctp" | "dccp" | "icmp" | "icmpv6" | "igmp" | "esp" | "ah"),
            ) => protocol == self.protocol,
            _ => true,
        }
    }

    fn compare(&self, lhs: &Value, value: &Value) -> MatchResult {
        if value.as_str().is_some_and(|name| name.starts_with('@')) {
            return MatchResult::Maybe;
        }
        let any_of = |values: &Vec<Value>| {
            values.iter().map(|value| self.compare(lhs, value)).max().unwrap_or(MatchResult::No)
        };
        let Some((tag, body)) = value.as_object().and_then(|value| value.iter().next()) else {
            return value.as_array().map_or_else(|| self.compare_value(lhs, value), any_of);
        };
        match (tag.as_str(), body) {
            ("set", Value::Array(values)) => any_of(values),
            ("elem", _) => body.get("val").map_or(MatchResult::Maybe, |value| self.compare(lhs, value)),
            ("concat", Value::Array(values)) => match lhs.get("concat").and_then(Value::as_array) {
                Some(parts) if parts.len() == values.len() => {
                    let pairs = parts.iter().zip(values);
                    pairs.map(|(lhs, value)| self.matches(lhs, false, value)).min().unwrap_or(MatchResult::Maybe)
                }
                _ => MatchResult::Maybe,
            },
            ("prefix" | "range", _) => self.compare_value(lhs, value),
            _ => MatchResult::Maybe,
        }
    }

    /// Compares with a single value.
    fn compare_value(&self, lhs: &Value, value: &Value) -> MatchResult {
        let text_value = value.as_str();
        let text_field = |object: &Value, field: &str| object.get(field).and_then(Value::as_str).map(str::to_owned);
        let Some((tag, body)) = lhs.as_object().and_then(|lhs| lhs.iter().next()) else {
            return MatchResult::Maybe;
        };
        match tag.as_str() {
            "meta" => match (body.get("key").and_then(Value::as_str), text_value) {
                (Some("iifname" | "iif"), Some(name)) => yes_or_no(is_interface_name(name, self.iif)),
                (Some("oifname" | "oif"), Some(name)) => {
                    yes_or_no(self.oif.is_some_and(|oif| is_interface_name(name, oif)))
                }
                (Some("l4proto"), _) => self.compare_protocol(value),
                (Some("nfproto"), Some(version)) => {
                    yes_or_no(version == if self.is_ipv4 { "ipv4" } else { "ipv6" })
                }
                (Some("protocol"), Some(name)) => yes_or_no(name == if self.is_ipv4 { "ip" } else { "ip6" }),
                (Some("pkttype"), Some(kind)) => yes_or_no(matches!(kind, "host" | "unicast")),
                (Some("mark"), _) => compare_number(value, self.mark),
                _ => MatchResult::Maybe,
            },
            "ct" => match (body.get("key").and_then(Value::as_str), text_value) {
                (Some("state"), Some(state)) => yes_or_no(state == self.ct_state),
                (Some("direction"), Some(direction)) => {
                    yes_or_no(direction == if self.ct_state == "new" { "original" } else { "reply" })
                }
                // The packets considered here have no destination NAT.
                (Some("status"), Some("dnat")) => MatchResult::No,
                _ => MatchResult::Maybe,
            },
            "payload" => match (text_field(body, "protocol").as_deref(), text_field(body, "field").as_deref()) {
                (Some("ip" | "ip6"), Some("protocol" | "nexthdr")) => self.compare_protocol(value),
                (Some("ip" | "ip6"), Some("saddr")) => self.source.compare_range(value, self.is_ipv4),
                (Some("ip" | "ip6"), Some("daddr")) => self.destination.compare_range(value, self.is_ipv4),
                (Some("tcp" | "udp" | "th"), _) => MatchResult::Sometimes,
                _ => MatchResult::Maybe,
            },
            // Its addresses are unicast and do not belong to the host.
            "fib" if text_field(body, "result").as_deref() == Some("type") => {
                text_value.map_or(MatchResult::Maybe, |kind| yes_or_no(kind == "unicast"))
            }
            "&" => {
                let (operand, mask) = (body.get(0), body.get(1).and_then(Value::as_u64));
                let is_mark =
                    operand.and_then(|value| value.pointer("/meta/key")).and_then(Value::as_str) == Some("mark");
                match mask {
                    Some(mask) if is_mark => compare_number(value, self.mark & mask),
                    _ if operand.is_some_and(|value| value.get("payload").is_some()) => MatchResult::Sometimes,
                    _ => MatchResult::Maybe,
                }
            }
            _ => MatchResult::Maybe,
        }
    }

    fn compare_protocol(&self, value: &Value) -> MatchResult {
        match (value.as_str(), value.as_u64()) {
            (Some(name), _) => yes_or_no(name == self.protocol),
            (None, Some(number)) => yes_or_no(number == if self.protocol == "tcp" { 6 } else { 17 }),
            _ => MatchResult::Maybe,
        }
    }
}

impl AddressScope {
    /// Whether an address of this scope is in the range.
    fn compare_range(self, value: &Value, is_ipv4: bool) -> MatchResult {
        let Some((first, last)) = address_range(value, is_ipv4) else { return MatchResult::Maybe };
        if first == 0 && last == all_ones(is_ipv4) {
            return MatchResult::Yes;
        }
        let Self::Lan(network) = self else { return MatchResult::Sometimes };
        let Some(network) = network else { return MatchResult::Maybe };
        let (lan_first, lan_last) = prefix_range(network.address, network.prefix_len);
        if first <= lan_first && lan_last <= last {
            MatchResult::Yes
        } else if last < lan_first || lan_last < first {
            MatchResult::No
        } else {
            MatchResult::Sometimes
        }
    }
}

/// First and last address of an address, prefix or range, as numbers; none: another family, or no address.
fn address_range(value: &Value, is_ipv4: bool) -> Option<(u128, u128)> {
    let address_of =
        |value: &Value| value.as_str()?.parse::<IpAddr>().ok().filter(|address| address.is_ipv4() == is_ipv4);
    if let Some(prefix) = value.get("prefix") {
        let bits = prefix.get("len").and_then(Value::as_u64).and_then(|bits| u8::try_from(bits).ok())?;
        return Some(prefix_range(address_of(prefix.get("addr")?)?, bits));
    }
    if let Some(range) = value.get("range") {
        return Some((address_bits(address_of(range.get(0)?)?), address_bits(address_of(range.get(1)?)?)));
    }
    address_of(value).map(|address| (address_bits(address), address_bits(address)))
}

fn prefix_range(address: IpAddr, prefix: u8) -> (u128, u128) {
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let host_bits = all_ones(address.is_ipv4()).checked_shr(prefix.min(bits).into()).unwrap_or(0);
    (address_bits(address) & !host_bits, address_bits(address) | host_bits)
}

fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn all_ones(is_ipv4: bool) -> u128 {
    if is_ipv4 { u32::MAX.into() } else { u128::MAX }
}

fn yes_or_no(is_true: bool) -> MatchResult {
    if is_true { MatchResult::Yes } else { MatchResult::No }
}

fn compare_number(value: &Value, actual: u64) -> MatchResult {
    let bound = |index| value.get("range").and_then(|range| range.get(index)).and_then(Value::as_u64);
    match (value.as_u64(), bound(0), bound(1)) {
        (Some(number), ..) => yes_or_no(number == actual),
        (None, Some(first), Some(last)) => yes_or_no((first..=last).contains(&actual)),
        // A symbolic name for a mark, which the host defines.
        _ => MatchResult::Maybe,
    }
}

/// `wan*` matches all names with this prefix.
fn is_interface_name(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}
