//! Routing rules: select the table in which a packet is looked up.

use alloc::string::String;
use core::net::IpAddr;

use super::{Attribute, Attributes, Message, Request, family, kind, u8_at};

/// Length of the fixed part: family, prefix lengths, TOS, table, two reserved bytes, action, flags.
const FIXED_LEN: usize = 12;

/// Rule: packets from these source addresses use this table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRule {
    /// Source prefix to match.
    pub source: (IpAddr, u8),
    /// Match only packets of sockets bound to the interface of this name; `None`: all packets.
    pub oif: Option<String>,
    /// Routing table to use.
    pub table: u32,
    /// Priority among the rules: smaller comes first (0 local, 32766 main).
    pub priority: u32,
    /// Ignore routes of the table with a prefix of at most this length; `None`: use all.
    pub suppress_prefixlength: Option<u32>,
    /// The program that added the rule (`RTPROT_…`); 0: not recorded.
    pub protocol: u8,
}

impl SourceRule {
    /// A rule without a recorded program, for all routes of the table.
    pub const fn new(source: (IpAddr, u8), table: u32, priority: u32) -> Self {
        Self { source, oif: None, table, priority, suppress_prefixlength: None, protocol: 0 }
    }

    /// Parses a message of kind `NEW_RULE`; `None` for any other message, and for rules that match no source or select
    /// no table. Further selectors (such as a mark) are ignored: the caller recognizes its rules by the other fields.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let (mut source, mut device) = (None, None);
        let common = RuleCommon::parse(message, |attribute| match attribute.kind {
            SRC => source = attribute.address(),
            OUTPUT => device = Some(attribute.text()),
            _ => {}
        })?;
        let RuleCommon { table, priority, suppress_prefixlength: suppress, protocol } = common;
        Some(Self {
            source: (source?, u8_at(message.body, 2)?),
            oif: device,
            table,
            priority,
            suppress_prefixlength: suppress,
            protocol,
        })
    }

    /// Request for all rules of `family` (0: all families). The reply consists of messages for [`SourceRule::parse`].
    pub fn dump(family: u8) -> Request {
        let mut body = [0; FIXED_LEN];
        body[0] = family;
        Request::new(kind::GET_RULE, Request::DUMP, &body)
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
        let Self { source: (address, prefix), table, priority, suppress_prefixlength: suppress, protocol, .. } =
            *self;
        let family = if address.is_ipv4() { family::V4 } else { family::V6 };
        let common = RuleCommon { table, priority, suppress_prefixlength: suppress, protocol };
        common.request(kind, flags, (family, prefix), |request| {
            request.address(SRC, address);
            if let Some(device) = &self.oif {
                request.text(OUTPUT, device);
            }
        })
    }
}

/// Rule: packets received over this interface use this table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IifRule {
    /// Address family: [`family::V4`] or [`family::V6`].
    pub family: u8,
    /// Name of the interface, which need not exist yet.
    pub interface: String,
    /// Routing table to use.
    pub table: u32,
    /// Priority among the rules: smaller comes first (0 local, 32766 main).
    pub priority: u32,
    /// Ignore routes of the table with a prefix of at most this length; `None`: use all.
    pub suppress_prefixlength: Option<u32>,
    /// The program that added the rule (`RTPROT_…`); 0: not recorded.
    pub protocol: u8,
}

impl IifRule {
    /// Parses a message of kind `NEW_RULE`; `None` for any other message, and for rules that match no interface or
    /// select no table. Further selectors (such as a port) are ignored: the caller recognizes its rules by the other
    /// fields.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let mut interface = None;
        let common = RuleCommon::parse(message, |attribute| {
            if attribute.kind == INTERFACE {
                interface = Some(attribute.text());
            }
        })?;
        let RuleCommon { table, priority, suppress_prefixlength: suppress, protocol } = common;
        Some(Self {
            family: u8_at(message.body, 0)?,
            interface: interface?,
            table,
            priority,
            suppress_prefixlength: suppress,
            protocol,
        })
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
        let Self { table, priority, suppress_prefixlength: suppress, protocol, .. } = *self;
        let common = RuleCommon { table, priority, suppress_prefixlength: suppress, protocol };
        common.request(kind, flags, (self.family, 0), |request| request.text(INTERFACE, &self.interface))
    }
}

/// Fields that all kinds of rules share: table, priority and owner.
pub(super) struct RuleCommon {
    pub(super) table: u32,
    pub(super) priority: u32,
    pub(super) suppress_prefixlength: Option<u32>,
    pub(super) protocol: u8,
}

impl RuleCommon {
    /// Parses the common part of a rule that selects a table; other attributes are passed to `on_selector`.
    pub(super) fn parse<'a>(message: &Message<'a>, mut on_selector: impl FnMut(Attribute<'a>)) -> Option<Self> {
        let body = message.body;
        if message.kind != kind::NEW_RULE || u8_at(body, 7)? != TO_TABLE {
            return None;
        }
        let mut common =
            Self { table: u32::from(u8_at(body, 4)?), priority: 0, suppress_prefixlength: None, protocol: 0 };
        for attribute in Attributes::after(body, FIXED_LEN) {
            match attribute.kind {
                PRIORITY => common.priority = attribute.u32()?,
                TABLE => common.table = attribute.u32()?,
                // All ones: no route is suppressed.
                SUPPRESS_PREFIX => {
                    common.suppress_prefixlength = attribute.u32().filter(|length| *length != u32::MAX)
                }
                PROTOCOL => common.protocol = u8_at(attribute.value, 0)?,
                _ => on_selector(attribute),
            }
        }
        Some(common)
    }

    /// Builds the request; `prefix` is the prefix length of the source.
    pub(super) fn request(
        &self,
        kind: u16,
        flags: u16,
        (family, prefix): (u8, u8),
        write_selector: impl FnOnce(&mut Request),
    ) -> Request {
        let mut body = [0; FIXED_LEN];
        (body[0], body[2]) = (family, prefix);
        body[4] = u8::try_from(self.table).unwrap_or(0);
        // Without this action the rule would reject the packets (`connect` fails with EINVAL).
        body[7] = TO_TABLE;
        let mut request = Request::new(kind, flags, &body);
        write_selector(&mut request);
        request.u32(PRIORITY, self.priority);
        if let Some(length) = self.suppress_prefixlength {
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
    fn a_rule_contains_source_table_and_action() {
        let source: IpAddr = "10.1.0.2".parse().unwrap();
        let bytes = SourceRule::new((source, 32), 1001, 1000).add().finish(1);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.body[2], message.body[7]), (kind::NEW_RULE, 32, TO_TABLE));
        let attribute = |kind| Attributes::after(message.body, FIXED_LEN).find(|a| a.kind == kind).unwrap();
        assert_eq!(attribute(SRC).address(), Some(source));
        assert_eq!(attribute(TABLE).u32(), Some(1001));
    }

    #[test]
    fn an_added_rule_reads_back_as_itself_and_its_removal_is_equal() {
        for (source, device, suppress, protocol) in
            [("10.1.0.2", Some("wwan1"), None, 0), ("2001:db8::2", None, Some(3), 109)]
        {
            let device = device.map(Into::into);
            let source = (source.parse().unwrap(), 32);
            let rule = SourceRule {
                oif: device,
                suppress_prefixlength: suppress,
                protocol,
                ..SourceRule::new(source, 70_001, 20_000)
            };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            assert_eq!(SourceRule::parse(&messages(&add).next().unwrap()).as_ref(), Some(&rule));
            let message = messages(&remove).next().unwrap();
            assert_eq!(message.kind, kind::DEL_RULE);
            assert_eq!(message.body, messages(&add).next().unwrap().body);
        }
    }

    #[test]
    fn an_interface_rule_reads_back_as_itself_and_not_as_a_source_rule() {
        for (family, suppress) in [(family::V4, Some(1)), (family::V6, None)] {
            let interface = "br-lan".into();
            let rule = IifRule {
                family,
                interface,
                table: 28_003,
                priority: 20_003,
                suppress_prefixlength: suppress,
                protocol: 109,
            };
            let (add, remove) = (rule.add().finish(1), rule.remove().finish(1));
            let message = messages(&add).next().unwrap();
            assert_eq!((IifRule::parse(&message).as_ref(), SourceRule::parse(&message)), (Some(&rule), None));
            assert_eq!(message.body[..4], [family, 0, 0, 0]);
            let message = messages(&remove).next().unwrap();
            assert_eq!((message.kind, IifRule::parse(&message)), (kind::DEL_RULE, None));
            assert_eq!(message.body, messages(&add).next().unwrap().body);
        }
        let source = SourceRule::new(("10.1.0.2".parse().unwrap(), 32), 1001, 1000).add().finish(1);
        assert_eq!(IifRule::parse(&messages(&source).next().unwrap()), None);
    }

    #[test]
    fn other_and_short_rules_are_rejected() {
        // The default rule of every host: all packets use table main.
        let mut body = [0; 12];
        (body[0], body[4], body[7]) = (family::V4, 254, TO_TABLE);
        for length in 0..=12 {
            let message = Message { kind: kind::NEW_RULE, flags: 0, sequence: 0, body: &body[..length] };
            assert_eq!((SourceRule::parse(&message), IifRule::parse(&message)), (None, None));
        }
    }
}
