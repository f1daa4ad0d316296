//! Rules: which table a packet is looked up in.

use core::net::IpAddr;

use super::{Attributes, Message, Request, family, kind, u8_at};

/// The fixed part: family, lengths of the prefixes, TOS, table, two that are reserved, action, flags.
const FIXED: usize = 12;

/// "Packets from these addresses go by that table."
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// The addresses that packets come from, with the length of their common prefix.
    pub source: (IpAddr, u8),
    /// The table to look them up in.
    pub table: u32,
    /// Its place among the rules: smaller comes earlier (0 local, 32766 main).
    pub priority: u32,
    /// Routes of the table whose prefix is this long or shorter do not count; none: all count.
    pub suppress: Option<u32>,
    /// Whose rule it is (`RTPROT_…`); 0: nobody says.
    pub protocol: u8,
}

impl Rule {
    /// A rule of nobody's, for all routes of the table.
    pub const fn new(source: (IpAddr, u8), table: u32, priority: u32) -> Self {
        Self { source, table, priority, suppress: None, protocol: 0 }
    }

    /// Reads a `NEW_RULE`; `None` for anything else, and for a rule that does not send a source's packets to a table.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let body = message.body;
        if message.kind != kind::NEW_RULE || u8_at(body, 7)? != TO_TABLE {
            return None;
        }
        let (mut source, mut table, mut priority) = (None, u32::from(u8_at(body, 4)?), 0);
        let (mut suppress, mut protocol) = (None, 0);
        for attribute in Attributes::after(body, FIXED) {
            match attribute.kind {
                SRC => source = attribute.address(),
                PRIORITY => priority = attribute.u32()?,
                TABLE => table = attribute.u32()?,
                // All ones say that none is suppressed.
                SUPPRESS_PREFIX => suppress = attribute.u32().filter(|length| *length != u32::MAX),
                PROTOCOL => protocol = u8_at(attribute.value, 0)?,
                _ => {}
            }
        }
        Some(Self { source: (source?, u8_at(body, 2)?), table, priority, suppress, protocol })
    }

    /// The request for all rules of `family` (0: all families). The reply consists of messages for
    /// [`Rule::parse`].
    pub fn dump(family: u8) -> Request {
        let mut body = [0; FIXED];
        body[0] = family;
        Request::new(kind::GET_RULE, Request::DUMP, &body)
    }

    /// The request that adds it; it fails if the same rule exists.
    pub fn add(&self) -> Request {
        self.request(kind::NEW_RULE, Request::CHANGE | Request::CREATE)
    }

    /// The request that removes it; it fails if there is none like it.
    pub fn remove(&self) -> Request {
        self.request(kind::DEL_RULE, Request::CHANGE)
    }

    fn request(&self, kind: u16, flags: u16) -> Request {
        let (address, prefix) = self.source;
        let mut body = [0; FIXED];
        body[0] = if address.is_ipv4() { family::V4 } else { family::V6 };
        body[2] = prefix;
        body[4] = u8::try_from(self.table).unwrap_or(0);
        // Without this action the rule would refuse the packets (EINVAL from connect).
        body[7] = TO_TABLE;
        let mut request = Request::new(kind, flags, &body);
        request.address(SRC, address);
        request.u32(PRIORITY, self.priority);
        if let Some(length) = self.suppress {
            request.u32(SUPPRESS_PREFIX, length);
        }
        request.u32(TABLE, self.table);
        if self.protocol != 0 {
            request.attribute(PROTOCOL, &[self.protocol]);
        }
        request
    }
}

const SRC: u16 = 2;
const PRIORITY: u16 = 6;
/// `FRA_SUPPRESS_PREFIXLEN`.
const SUPPRESS_PREFIX: u16 = 14;
const TABLE: u16 = 15;
const PROTOCOL: u16 = 21;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::{Attributes, messages};

    #[test]
    fn a_rule_names_its_source_its_table_and_its_action() {
        let source: IpAddr = "10.1.0.2".parse().unwrap();
        let bytes = Rule::new((source, 32), 1001, 1000).add().finish(1);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.body[2], message.body[7]), (kind::NEW_RULE, 32, TO_TABLE));
        let of = |kind| Attributes::after(message.body, FIXED).find(|a| a.kind == kind).unwrap();
        assert_eq!(of(SRC).address(), Some(source));
        assert_eq!(of(TABLE).u32(), Some(1001));
    }

    #[test]
    fn an_added_rule_reads_back_as_itself_and_its_removal_says_the_same() {
        for (source, suppress, protocol) in [("10.1.0.2", None, 0), ("2001:db8::2", Some(3), 109)] {
            let rule = Rule { suppress, protocol, ..Rule::new((source.parse().unwrap(), 32), 70_001, 20_000) };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            assert_eq!(Rule::parse(&messages(&add).next().unwrap()), Some(rule));
            let message = messages(&remove).next().unwrap();
            assert_eq!(message.kind, kind::DEL_RULE);
            assert_eq!(message.body, messages(&add).next().unwrap().body);
        }
    }

    #[test]
    fn other_rules_and_short_ones_are_none() {
        // `ip rule` of every machine: all packets by the table main.
        let mut body = [0; 12];
        (body[0], body[4], body[7]) = (family::V4, 254, TO_TABLE);
        for length in 0..=12 {
            let message = Message { kind: kind::NEW_RULE, flags: 0, sequence: 0, body: &body[..length] };
            assert_eq!(Rule::parse(&message), None);
        }
    }
}
