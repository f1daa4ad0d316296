//! Routing rules for packets that this host sends to or from one UDP or TCP port (Linux 4.17).
//!
//! The kernel treats locally generated packets as received over the loopback interface, so the rule matches that
//! interface (`ip rule add iif lo ipproto udp dport 53 lookup TABLE`). Sockets bound to a device find only routes over
//! that device, whatever the table.

use super::rule::{INTERFACE, RuleCommon};
use super::{Message, Request, kind, u8_at, u16_at};

/// Rule: packets that this host sends to or from this port use this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRule {
    /// Address family: [`family::V4`](super::family::V4) or [`family::V6`](super::family::V6).
    pub family: u8,
    /// The transport protocol by its number: 6 TCP, 17 UDP.
    pub transport: u8,
    /// The port to match, as source or destination.
    pub port: Port,
    /// Routing table to use.
    pub table: u32,
    /// Priority among the rules: smaller comes first (0 local, 32766 main).
    pub priority: u32,
    /// Ignore routes of the table with a prefix of at most this length; `None`: use all.
    pub suppress: Option<u32>,
    /// The program that added the rule (`RTPROT_…`); 0: not recorded.
    pub protocol: u8,
}

/// A port to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The destination port.
    To(u16),
    /// The source port.
    From(u16),
}

impl PortRule {
    /// Parses a message of kind `NEW_RULE`; `None` for any other message, and for rules that select no table or lack
    /// the loopback, the transport or exactly one single port. Further selectors are ignored.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let (mut is_loopback, mut transport, mut ports) = (false, None, [None; 2]);
        let common = RuleCommon::parse(message, |attribute| match attribute.kind {
            INTERFACE => is_loopback = attribute.text() == LOOPBACK,
            TRANSPORT => transport = attribute.u8(),
            SOURCE_PORTS => ports[0] = single_port(attribute.value),
            DESTINATION_PORTS => ports[1] = single_port(attribute.value),
            _ => {}
        })?;
        let port = match ports {
            [None, Some(to)] => Port::To(to),
            [Some(from), None] => Port::From(from),
            _ => return None,
        };
        let RuleCommon { table, priority, suppress_prefixlength: suppress, protocol } = common;
        let family = u8_at(message.body, 0)?;
        is_loopback.then_some(Self { family, transport: transport?, port, table, priority, suppress, protocol })
    }

    /// The request that adds the rule; it fails if the same rule exists.
    pub fn add(&self) -> Request {
        self.request(kind::NEW_RULE, Request::CHANGE | Request::CREATE)
    }

    /// The request that removes the rule; it fails if no such rule exists.
    pub fn remove(&self) -> Request {
        self.request(kind::DEL_RULE, Request::CHANGE)
    }

    fn request(&self, kind: u16, flags: u16) -> Request {
        let Self { table, priority, suppress, protocol, .. } = *self;
        let common = RuleCommon { table, priority, suppress_prefixlength: suppress, protocol };
        let (attribute, port) = match self.port {
            Port::To(port) => (DESTINATION_PORTS, port),
            Port::From(port) => (SOURCE_PORTS, port),
        };
        let [low, high] = port.to_ne_bytes();
        common.request(kind, flags, (self.family, 0), |request| {
            request.text(INTERFACE, LOOPBACK);
            request.attribute(TRANSPORT, &[self.transport]);
            // First and last port of the range.
            request.attribute(attribute, &[low, high, low, high]);
        })
    }
}

/// The port of a `struct fib_rule_port_range` that contains a single port.
fn single_port(range: &[u8]) -> Option<u16> {
    let (first, last) = (u16_at(range, 0)?, u16_at(range, 2)?);
    (first == last).then_some(first)
}

/// Interface over which rules see the packets that this host generates.
const LOOPBACK: &str = "lo";
/// Attributes of a rule (`linux/fib_rules.h`): `FRA_IP_PROTO`, `FRA_SPORT_RANGE`, `FRA_DPORT_RANGE`.
const TRANSPORT: u16 = 22;
const SOURCE_PORTS: u16 = 23;
const DESTINATION_PORTS: u16 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::{SourceRule, TproxyRoute, family, messages};

    #[test]
    fn a_port_rule_reads_back_as_itself_and_not_as_another_kind_of_rule() {
        for (family, transport, port, suppress) in
            [(family::V4, 17, Port::To(53), Some(1)), (family::V6, 6, Port::From(853), None)]
        {
            let rule =
                PortRule { family, transport, port, table: 28_004, priority: 32_765, suppress, protocol: 109 };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            let message = messages(&add).next().unwrap();
            assert_eq!(PortRule::parse(&message), Some(rule));
            assert_eq!((SourceRule::parse(&message), TproxyRoute::parse(&message)), (None, None));
            let removal = messages(&remove).next().unwrap();
            assert_eq!((removal.kind, PortRule::parse(&removal)), (kind::DEL_RULE, None));
            assert_eq!(removal.body, message.body);
        }
    }

    #[test]
    fn rules_for_other_interfaces_port_ranges_or_without_a_transport_are_rejected() {
        let leads = RuleCommon { table: 28_004, priority: 32_765, suppress_prefixlength: None, protocol: 109 };
        let parse_rule = |interface: &str, transport: &[u8], ports: &[u8]| {
            let rule = leads.request(kind::NEW_RULE, Request::CHANGE, (family::V4, 0), |request| {
                request.text(INTERFACE, interface);
                request.attribute(TRANSPORT, transport);
                request.attribute(DESTINATION_PORTS, ports);
            });
            PortRule::parse(&messages(&rule.finish(1)).next().unwrap())
        };
        let range = |first: u16, last: u16| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
        assert!(parse_rule("lo", &[17], &range(53, 53)).is_some());
        assert!(parse_rule("lan0", &[17], &range(53, 53)).is_none());
        assert!(parse_rule("lo", &[17], &range(53, 54)).is_none());
        assert!(parse_rule("lo", &[17], &[53]).is_none());
        assert!(parse_rule("lo", &[], &range(53, 53)).is_none());
    }
}
