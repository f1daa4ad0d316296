//! Rules: which table a packet is looked up in.

use alloc::string::String;
use core::net::IpAddr;

use super::{Attribute, Attributes, Message, Request, family, kind, u8_at};

/// The fixed part: family, lengths of the prefixes, TOS, table, two that are reserved, action, flags.
const FIXED: usize = 12;

/// "Packets from these addresses go by that table."
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// The addresses that packets come from, with the length of their common prefix.
    pub source: (IpAddr, u8),
    /// Only packets of sockets that are bound to the interface of this name; none: all packets.
    pub device: Option<String>,
    /// The table to look them up in.
    pub table: u32,
    /// Its place among the rules: smaller comes earlier (0 local, 32766 main).
    pub priority: u32,
    /// Routes of the table whose prefix is this long or shorter do not count; none: all count.
    pub suppress: Option<u32>,
    /// The program that added the rule (`RTPROT_…`); 0: not recorded.
    pub protocol: u8,
}

impl Rule {
    /// A rule of nobody's, for all routes of the table.
    pub const fn new(source: (IpAddr, u8), table: u32, priority: u32) -> Self {
        Self { source, device: None, table, priority, suppress: None, protocol: 0 }
    }

    /// Reads a `NEW_RULE`; `None` for anything else, and for a rule that does not send a source's packets to a table.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let (mut source, mut device) = (None, None);
        let leads = Leads::parse(message, |attribute| match attribute.kind {
            SRC => source = attribute.address(),
            OUTPUT => device = Some(attribute.text()),
            _ => {}
        })?;
        let Leads { table, priority, suppress, protocol } = leads;
        Some(Self { source: (source?, u8_at(message.body, 2)?), device, table, priority, suppress, protocol })
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
        let Self { source: (address, prefix), table, priority, suppress, protocol, .. } = *self;
        let family = if address.is_ipv4() { family::V4 } else { family::V6 };
        let leads = Leads { table, priority, suppress, protocol };
        leads.request(kind, flags, (family, prefix), |request| {
            request.address(SRC, address);
            if let Some(device) = &self.device {
                request.text(OUTPUT, device);
            }
        })
    }
}

/// "Packets that come in over this interface go by that table."
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inward {
    /// Address family: [`family::V4`] or [`family::V6`].
    pub family: u8,
    /// The interface's name. One that does not exist now may come.
    pub interface: String,
    /// The table to look them up in.
    pub table: u32,
    /// Its place among the rules: smaller comes earlier (0 local, 32766 main).
    pub priority: u32,
    /// Routes of the table whose prefix is this long or shorter do not count; none: all count.
    pub suppress: Option<u32>,
    /// The program that added the rule (`RTPROT_…`); 0: not recorded.
    pub protocol: u8,
}

impl Inward {
    /// Reads a `NEW_RULE`; `None` for anything else, and for a rule that does not send an interface's packets to a table.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let mut interface = None;
        let leads = Leads::parse(message, |attribute| {
            if attribute.kind == INTERFACE {
                interface = Some(attribute.text());
            }
        })?;
        let Leads { table, priority, suppress, protocol } = leads;
        Some(Self { family: u8_at(message.body, 0)?, interface: interface?, table, priority, suppress, protocol })
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
        let Self { table, priority, suppress, protocol, .. } = *self;
        let leads = Leads { table, priority, suppress, protocol };
        leads.request(kind, flags, (self.family, 0), |request| request.text(INTERFACE, &self.interface))
    }
}

/// What rules have in common: where they lead, and whose they are.
pub(super) struct Leads {
    pub(super) table: u32,
    pub(super) priority: u32,
    pub(super) suppress: Option<u32>,
    pub(super) protocol: u8,
}

impl Leads {
    /// Of a rule that sends packets to a table; what it asks of them goes to `asks`.
    pub(super) fn parse<'a>(message: &Message<'a>, mut asks: impl FnMut(Attribute<'a>)) -> Option<Self> {
        let body = message.body;
        if message.kind != kind::NEW_RULE || u8_at(body, 7)? != TO_TABLE {
            return None;
        }
        let mut leads = Self { table: u32::from(u8_at(body, 4)?), priority: 0, suppress: None, protocol: 0 };
        for attribute in Attributes::after(body, FIXED) {
            match attribute.kind {
                PRIORITY => leads.priority = attribute.u32()?,
                TABLE => leads.table = attribute.u32()?,
                // All ones say that none is suppressed.
                SUPPRESS_PREFIX => leads.suppress = attribute.u32().filter(|length| *length != u32::MAX),
                PROTOCOL => leads.protocol = u8_at(attribute.value, 0)?,
                _ => asks(attribute),
            }
        }
        Some(leads)
    }

    /// `prefix` is that of the source.
    pub(super) fn request(
        &self,
        kind: u16,
        flags: u16,
        (family, prefix): (u8, u8),
        asks: impl FnOnce(&mut Request),
    ) -> Request {
        let mut body = [0; FIXED];
        (body[0], body[2]) = (family, prefix);
        body[4] = u8::try_from(self.table).unwrap_or(0);
        // Without this action the rule would refuse the packets (EINVAL from connect).
        body[7] = TO_TABLE;
        let mut request = Request::new(kind, flags, &body);
        asks(&mut request);
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
/// `FRA_IIFNAME`.
pub(super) const INTERFACE: u16 = 3;
const PRIORITY: u16 = 6;
/// `FRA_OIFNAME`.
const OUTPUT: u16 = 17;
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
        for (source, device, suppress, protocol) in
            [("10.1.0.2", Some("wwan1"), None, 0), ("2001:db8::2", None, Some(3), 109)]
        {
            let device = device.map(Into::into);
            let source = (source.parse().unwrap(), 32);
            let rule = Rule { device, suppress, protocol, ..Rule::new(source, 70_001, 20_000) };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            assert_eq!(Rule::parse(&messages(&add).next().unwrap()).as_ref(), Some(&rule));
            let message = messages(&remove).next().unwrap();
            assert_eq!(message.kind, kind::DEL_RULE);
            assert_eq!(message.body, messages(&add).next().unwrap().body);
        }
    }

    #[test]
    fn a_rule_of_an_interface_reads_back_as_itself_and_is_no_rule_of_a_source() {
        for (family, suppress) in [(family::V4, Some(1)), (family::V6, None)] {
            let interface = "br-lan".into();
            let rule = Inward { family, interface, table: 28_003, priority: 20_003, suppress, protocol: 109 };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            let message = messages(&add).next().unwrap();
            assert_eq!((Inward::parse(&message).as_ref(), Rule::parse(&message)), (Some(&rule), None));
            assert_eq!(message.body[..4], [family, 0, 0, 0]);
            let message = messages(&remove).next().unwrap();
            assert_eq!((message.kind, Inward::parse(&message)), (kind::DEL_RULE, None));
            assert_eq!(message.body, messages(&add).next().unwrap().body);
        }
        let source = Rule::new(("10.1.0.2".parse().unwrap(), 32), 1001, 1000).add().finish(1);
        assert_eq!(Inward::parse(&messages(&source).next().unwrap()), None);
    }

    #[test]
    fn other_rules_and_short_ones_are_none() {
        // `ip rule` of every machine: all packets by the table main.
        let mut body = [0; 12];
        (body[0], body[4], body[7]) = (family::V4, 254, TO_TABLE);
        for length in 0..=12 {
            let message = Message { kind: kind::NEW_RULE, flags: 0, sequence: 0, body: &body[..length] };
            assert_eq!((Rule::parse(&message), Inward::parse(&message)), (None, None));
        }
    }
}
