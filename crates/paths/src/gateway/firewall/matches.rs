//! Whether a comparison of a rule holds for a packet (libnftables-json(5), expressions).

use std::net::IpAddr;

use marline_net::links::Subnet;
use serde_json::Value;

/// A packet whose way is followed.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Packet<'a> {
    /// `prerouting`, `forward`, `postrouting` or `input`.
    pub(in super::super) hook: &'a str,
    /// Of IPv4, or of IPv6.
    pub(in super::super) is_ipv4: bool,
    /// The interface over which it comes in.
    pub(in super::super) from: &'a str,
    /// The interface over which it leaves; none: it stays here, or that is not known yet.
    pub(in super::super) to: Option<&'a str>,
    /// The transport protocol: `udp` or `tcp`.
    pub(in super::super) protocol: &'a str,
    /// The packet's firewall mark; 0 if it has none.
    pub(in super::super) mark: u64,
    /// Of its connection: `new` or `established`.
    pub(in super::super) state: &'a str,
    pub(in super::super) source: Side,
    pub(in super::super) destination: Side,
}

/// Where an address of the packet is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Side {
    /// In the LAN, whose network this is, if it is known.
    Lan(Option<Subnet>),
    Internet,
}

/// Whether a match holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    No,
    /// It holds for some of these packets.
    Some,
    Maybe,
    Yes,
}

impl Packet<'_> {
    /// Whether `left` is, or is not, `right`.
    pub(super) fn holds(&self, left: &Value, negated: bool, right: &Value) -> Holds {
        // A header that the packet does not have fails each comparison.
        if !self.has(left) {
            return Holds::No;
        }
        match (negated, self.equals(left, right)) {
            (false, holds) => holds,
            (true, Holds::No) => Holds::Yes,
            (true, Holds::Yes) => Holds::No,
            (true, Holds::Maybe) => Holds::Maybe,
            // All but some, which are most.
            (true, Holds::Some) => Holds::Yes,
        }
    }

    fn has(&self, left: &Value) -> bool {
        let inner = left.pointer("/&/0").unwrap_or(left);
        match inner.pointer("/payload/protocol").and_then(Value::as_str) {
            Some("ip" | "icmp" | "igmp") if !self.is_ipv4 => false,
            Some("ip6" | "icmpv6") if self.is_ipv4 => false,
            Some(
                protocol
                @ ("tcp" | "udp" | "udplite" | "sctp" | "dccp" | "icmp" | "icmpv6" | "igmp" | "esp" | "ah"),
            ) => protocol == self.protocol,
            _ => true,
        }
    }

    fn equals(&self, left: &Value, value: &Value) -> Holds {
        if value.as_str().is_some_and(|name| name.starts_with('@')) {
            return Holds::Maybe;
        }
        let any =
            |values: &Vec<Value>| values.iter().map(|value| self.equals(left, value)).max().unwrap_or(Holds::No);
        let Some((kind, body)) = value.as_object().and_then(|value| value.iter().next()) else {
            return value.as_array().map_or_else(|| self.is(left, value), any);
        };
        match (kind.as_str(), body) {
            ("set", Value::Array(values)) => any(values),
            ("elem", _) => body.get("val").map_or(Holds::Maybe, |value| self.equals(left, value)),
            ("concat", Value::Array(values)) => match left.get("concat").and_then(Value::as_array) {
                Some(lefts) if lefts.len() == values.len() => {
                    let each = lefts.iter().zip(values);
                    each.map(|(left, value)| self.holds(left, false, value)).min().unwrap_or(Holds::Maybe)
                }
                _ => Holds::Maybe,
            },
            ("prefix" | "range", _) => self.is(left, value),
            _ => Holds::Maybe,
        }
    }

    /// The same for one value.
    fn is(&self, left: &Value, value: &Value) -> Holds {
        let word = value.as_str();
        let text = |of: &Value, field: &str| of.get(field).and_then(Value::as_str).map(str::to_owned);
        let Some((kind, body)) = left.as_object().and_then(|left| left.iter().next()) else { return Holds::Maybe };
        match kind.as_str() {
            "meta" => match (body.get("key").and_then(Value::as_str), word) {
                (Some("iifname" | "iif"), Some(name)) => sure(is_name(name, self.from)),
                (Some("oifname" | "oif"), Some(name)) => sure(self.to.is_some_and(|to| is_name(name, to))),
                (Some("l4proto"), _) => self.is_protocol(value),
                (Some("nfproto"), Some(version)) => sure(version == if self.is_ipv4 { "ipv4" } else { "ipv6" }),
                (Some("protocol"), Some(name)) => sure(name == if self.is_ipv4 { "ip" } else { "ip6" }),
                (Some("pkttype"), Some(kind)) => sure(matches!(kind, "host" | "unicast")),
                (Some("mark"), _) => is_number(value, self.mark),
                _ => Holds::Maybe,
            },
            "ct" => match (body.get("key").and_then(Value::as_str), word) {
                (Some("state"), Some(state)) => sure(state == self.state),
                (Some("direction"), Some(direction)) => {
                    sure(direction == if self.state == "new" { "original" } else { "reply" })
                }
                // It goes where its sender has sent it.
                (Some("status"), Some("dnat")) => Holds::No,
                _ => Holds::Maybe,
            },
            "payload" => match (text(body, "protocol").as_deref(), text(body, "field").as_deref()) {
                (Some("ip" | "ip6"), Some("protocol" | "nexthdr")) => self.is_protocol(value),
                (Some("ip" | "ip6"), Some("saddr")) => self.source.is(value, self.is_ipv4),
                (Some("ip" | "ip6"), Some("daddr")) => self.destination.is(value, self.is_ipv4),
                (Some("tcp" | "udp" | "th"), _) => Holds::Some,
                _ => Holds::Maybe,
            },
            // Its addresses are not the host's own, nor those of many.
            "fib" if text(body, "result").as_deref() == Some("type") => {
                word.map_or(Holds::Maybe, |kind| sure(kind == "unicast"))
            }
            "&" => {
                let (of, mask) = (body.get(0), body.get(1).and_then(Value::as_u64));
                let of_mark = of.and_then(|of| of.pointer("/meta/key")).and_then(Value::as_str) == Some("mark");
                match mask {
                    Some(mask) if of_mark => is_number(value, self.mark & mask),
                    _ if of.is_some_and(|of| of.get("payload").is_some()) => Holds::Some,
                    _ => Holds::Maybe,
                }
            }
            _ => Holds::Maybe,
        }
    }

    fn is_protocol(&self, value: &Value) -> Holds {
        match (value.as_str(), value.as_u64()) {
            (Some(name), _) => sure(name == self.protocol),
            (None, Some(number)) => sure(number == if self.protocol == "tcp" { 6 } else { 17 }),
            _ => Holds::Maybe,
        }
    }
}

impl Side {
    /// Whether an address of this side is one of these.
    fn is(self, value: &Value, is_ipv4: bool) -> Holds {
        let Some((first, last)) = addresses(value, is_ipv4) else { return Holds::Maybe };
        if first == 0 && last == whole(is_ipv4) {
            return Holds::Yes;
        }
        let Self::Lan(network) = self else { return Holds::Some };
        let Some(network) = network else { return Holds::Maybe };
        let (own_first, own_last) = span(network.address, network.prefix_len);
        if first <= own_first && own_last <= last {
            Holds::Yes
        } else if last < own_first || own_last < first {
            Holds::No
        } else {
            Holds::Some
        }
    }
}

/// The first and the last of an address, a prefix or a range, as numbers; none: it is none of this family.
fn addresses(value: &Value, is_ipv4: bool) -> Option<(u128, u128)> {
    let one = |value: &Value| value.as_str()?.parse::<IpAddr>().ok().filter(|address| address.is_ipv4() == is_ipv4);
    if let Some(prefix) = value.get("prefix") {
        let bits = prefix.get("len").and_then(Value::as_u64).and_then(|bits| u8::try_from(bits).ok())?;
        return Some(span(one(prefix.get("addr")?)?, bits));
    }
    if let Some(range) = value.get("range") {
        return Some((number(one(range.get(0)?)?), number(one(range.get(1)?)?)));
    }
    one(value).map(|address| (number(address), number(address)))
}

fn span(address: IpAddr, prefix: u8) -> (u128, u128) {
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let rest = whole(address.is_ipv4()).checked_shr(prefix.min(bits).into()).unwrap_or(0);
    (number(address) & !rest, number(address) | rest)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn whole(is_ipv4: bool) -> u128 {
    if is_ipv4 { u32::MAX.into() } else { u128::MAX }
}

fn sure(holds: bool) -> Holds {
    if holds { Holds::Yes } else { Holds::No }
}

fn is_number(value: &Value, own: u64) -> Holds {
    let bound = |at| value.get("range").and_then(|range| range.get(at)).and_then(Value::as_u64);
    match (value.as_u64(), bound(0), bound(1)) {
        (Some(number), ..) => sure(number == own),
        (None, Some(first), Some(last)) => sure((first..=last).contains(&own)),
        // A name of the host's own for a mark.
        _ => Holds::Maybe,
    }
}

/// `wan*` stands for all that begin so.
fn is_name(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}
