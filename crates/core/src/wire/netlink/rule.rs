//! Rules: which table a packet is looked up in. Written only; nothing of marline reads them.

use core::net::IpAddr;

use super::{Request, family, kind};

/// "Packets from these addresses go by that table."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The addresses that packets come from, with the length of their common prefix.
    pub source: (IpAddr, u8),
    /// The table to look them up in.
    pub table: u32,
    /// Its place among the rules: smaller comes earlier (0 local, 32766 main).
    pub priority: u32,
}

impl Rule {
    /// The request that adds it; it fails if the same rule exists.
    pub fn add(&self) -> Request {
        let (address, prefix) = self.source;
        let mut body = [0; 12];
        body[0] = if address.is_ipv4() { family::V4 } else { family::V6 };
        body[2] = prefix;
        body[4] = u8::try_from(self.table).unwrap_or(0);
        // Without this action the rule would refuse the packets (EINVAL from connect).
        body[7] = TO_TABLE;
        let mut request = Request::new(kind::NEW_RULE, Request::CHANGE | Request::CREATE, &body);
        request.address(SRC, address);
        request.u32(PRIORITY, self.priority);
        request.u32(TABLE, self.table);
        request
    }
}

const SRC: u16 = 2;
const PRIORITY: u16 = 6;
const TABLE: u16 = 15;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::{Attributes, messages};

    #[test]
    fn a_rule_names_its_source_its_table_and_its_action() {
        let source: IpAddr = "10.1.0.2".parse().unwrap();
        let bytes = Rule { source: (source, 32), table: 1001, priority: 1000 }.add().finish(1);
        let message = messages(&bytes).next().unwrap();
        assert_eq!((message.kind, message.body[2], message.body[7]), (kind::NEW_RULE, 32, TO_TABLE));
        let of = |kind| Attributes::after(message.body, 12).find(|a| a.kind == kind).unwrap();
        assert_eq!(of(SRC).address(), Some(source));
        assert_eq!(of(TABLE).u32(), Some(1001));
    }
}
