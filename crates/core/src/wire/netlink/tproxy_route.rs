//! Transparent proxy routing: a rule and a route that deliver marked packets locally, whatever their destination.
//!
//! A [`TproxyRoute`] consists of a mark, a table and a rule priority. It builds the requests that add and remove the
//! rule and its one route, and parses such rules. The rule alone also selects an ordinary table for marked packets.
//!
//! The rule matches the mark alone (`ip rule add fwmark MARK lookup TABLE`, optionally with `suppress_prefixlength`).
//! The route matches every destination (`ip route add local default dev lo table TABLE`). A socket bound to a device
//! finds no route over the loopback in this table, so its packets are matched against the remaining rules instead.

use super::{Attributes, Message, Request, family, kind, u8_at};

/// A rule and a route that deliver packets with this mark locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TproxyRoute {
    /// Address family: [`family::V4`] or [`family::V6`].
    pub family: u8,
    /// The packet mark to match.
    pub mark: u32,
    /// Table that contains the route.
    pub table: u32,
    /// Priority of the rule: smaller comes first (0 local, 32766 main).
    pub priority: u32,
    /// The rule ignores routes of the table with a prefix of at most this length; `None`: it uses all.
    pub suppress_prefixlength: Option<u32>,
    /// Owner of rule and route (`RTPROT_…`).
    pub protocol: u8,
}

impl TproxyRoute {
    /// Parses a message of kind `NEW_RULE`; `None` for any other message, and for rules that match no mark or select no
    /// table. Further selectors are ignored: the caller recognizes its rules by the other fields.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        let body = message.body;
        if message.kind != kind::NEW_RULE || u8_at(body, 7)? != TO_TABLE {
            return None;
        }
        let (mut mark, mut table, mut priority, mut protocol) = (None, u32::from(u8_at(body, 4)?), 0, 0);
        let mut suppress = None;
        for attribute in Attributes::after(body, FIXED_LEN) {
            match attribute.kind {
                RULE_MARK => mark = attribute.u32(),
                TABLE => table = attribute.u32()?,
                RULE_PRIORITY => priority = attribute.u32()?,
                // All ones: no route is suppressed.
                RULE_SUPPRESS => suppress = attribute.u32().filter(|length| *length != u32::MAX),
                RULE_PROTOCOL => protocol = u8_at(attribute.value, 0)?,
                _ => {}
            }
        }
        Some(Self {
            family: u8_at(body, 0)?,
            mark: mark?,
            table,
            priority,
            suppress_prefixlength: suppress,
            protocol,
        })
    }

    /// The request that adds the rule; it fails if the same rule exists.
    pub fn add_rule(&self) -> Request {
        self.rule_request(kind::NEW_RULE, Request::CHANGE | Request::CREATE)
    }

    /// The request that removes the rule; it fails if no such rule exists.
    pub fn remove_rule(&self) -> Request {
        self.rule_request(kind::DEL_RULE, Request::CHANGE)
    }

    /// The request that installs the route over the loopback interface with this index.
    pub fn install_route(&self, loopback: u32) -> Request {
        self.route_request(kind::NEW_ROUTE, Request::CHANGE | Request::CREATE_OR_REPLACE, loopback)
    }

    /// The request that removes the route; it fails if no such route exists.
    pub fn remove_route(&self, loopback: u32) -> Request {
        self.route_request(kind::DEL_ROUTE, Request::CHANGE, loopback)
    }

    fn rule_request(&self, kind: u16, flags: u16) -> Request {
        let mut body = [0; FIXED_LEN];
        body[0] = self.family;
        body[4] = self.table_byte();
        body[7] = TO_TABLE;
        let mut request = Request::new(kind, flags, &body);
        request.u32(RULE_PRIORITY, self.priority);
        request.u32(RULE_MARK, self.mark);
        if let Some(length) = self.suppress_prefixlength {
            request.u32(RULE_SUPPRESS, length);
        }
        request.u32(TABLE, self.table);
        request.attribute(RULE_PROTOCOL, &[self.protocol]);
        request
    }

    fn route_request(&self, kind: u16, flags: u16, loopback: u32) -> Request {
        let mut body = [0; FIXED_LEN];
        body[0] = self.family;
        body[4] = self.table_byte();
        body[5] = self.protocol;
        body[6] = if self.family == family::V4 { SCOPE_HOST } else { 0 };
        body[7] = LOCAL;
        let mut request = Request::new(kind, flags, &body);
        request.u32(ROUTE_LINK, loopback);
        request.u32(TABLE, self.table);
        request
    }

    /// Tables above 255 do not fit the header's byte: 252 (`RT_TABLE_COMPAT`) refers to the attribute.
    fn table_byte(&self) -> u8 {
        u8::try_from(self.table).unwrap_or(252)
    }
}

/// Length of the fixed part of both: family, prefix lengths, TOS, table; then two reserved bytes and the action, or
/// protocol, scope and type; flags.
const FIXED_LEN: usize = 12;
/// `FRA_PRIORITY`, `FRA_FWMARK`, `FRA_SUPPRESS_PREFIXLEN`, `FRA_PROTOCOL`, `RTA_OIF`; `FRA_TABLE` equals `RTA_TABLE`.
const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_SUPPRESS: u16 = 14;
const RULE_PROTOCOL: u16 = 21;
const ROUTE_LINK: u16 = 4;
const TABLE: u16 = 15;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;
/// `RTN_LOCAL`, `RT_SCOPE_HOST`.
const LOCAL: u8 = 2;
const SCOPE_HOST: u8 = 254;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::{Attributes, Route, SourceRule, messages};

    #[test]
    fn the_rule_matches_the_mark_and_the_route_every_destination() {
        let tproxy = TproxyRoute {
            family: family::V4,
            mark: 0x6d61,
            table: 28_001,
            priority: 108,
            suppress_prefixlength: None,
            protocol: 109,
        };
        for (request, kind) in [(tproxy.add_rule(), kind::NEW_RULE), (tproxy.remove_rule(), kind::DEL_RULE)] {
            let bytes = request.finish(1);
            let message = messages(&bytes).next().unwrap();
            assert_eq!((message.kind, message.body[2], message.body[7]), (kind, 0, TO_TABLE));
            let attribute =
                |kind| Attributes::after(message.body, FIXED_LEN).find(|a| a.kind == kind).unwrap().u32();
            assert_eq!(
                (attribute(RULE_MARK), attribute(TABLE), attribute(RULE_PRIORITY)),
                (Some(0x6d61), Some(28_001), Some(108))
            );
            assert_eq!(SourceRule::parse(&message), None, "it is not a source rule");
            assert_eq!(TproxyRoute::parse(&message).is_some(), kind == kind::NEW_RULE);
        }
        let bytes = tproxy.install_route(1).finish(1);
        let route = Route::parse(&messages(&bytes).next().unwrap()).unwrap();
        assert_eq!(
            (route.destination, route.interface, route.table, route.route_type),
            (None, Some(1), 28_001, LOCAL)
        );
        assert_eq!(route.protocol, 109);
        let bytes = tproxy.add_rule().finish(1);
        assert_eq!(TproxyRoute::parse(&messages(&bytes).next().unwrap()), Some(tproxy));
        let with_suppression = TproxyRoute { suppress_prefixlength: Some(1), ..tproxy };
        let bytes = with_suppression.add_rule().finish(1);
        assert_eq!(TproxyRoute::parse(&messages(&bytes).next().unwrap()), Some(with_suppression));
        let rule = SourceRule::new(("10.1.0.2".parse().unwrap(), 32), 28_001, 108).add().finish(1);
        assert_eq!(TproxyRoute::parse(&messages(&rule).next().unwrap()), None, "it matches a source");
    }
}
