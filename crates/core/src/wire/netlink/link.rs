//! Network interfaces as `ip link` shows them, and the few properties that marline sets.

use alloc::string::String;

use super::{Attributes, Message, Request, kind, u16_at, u32_at, u64_at};

/// Length of the fixed part: family, type, index, flags, mask of changed flags.
const FIXED_LEN: usize = 16;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Index, unique in the network namespace.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Hardware type (`ARPHRD_…`): 1 Ethernet and Wi-Fi, 772 loopback, 65534 none (tunnels, TUN, most modems).
    pub hardware_type: u16,
    /// `IFF_…` flags; see the methods.
    pub flags: u32,
    /// MTU in bytes; 0 if the kernel did not report it.
    pub mtu: u32,
    /// Length of the transmission queue in packets.
    pub tx_queue_len: u32,
    /// Operational state by RFC 2863: 6 up, 0 unknown (TUN, some modems), 2 down.
    pub oper_state: u8,
    /// Alias (`ip link set … alias`); empty if none.
    pub alias: String,
    /// Link type that the driver reports (`bridge`, `veth`, `wireguard`, `tun`, …); empty for hardware.
    pub info_kind: String,
    /// Index of the bridge or bond that the interface belongs to; 0 if none.
    pub controller: u32,
    /// Outgoing packets that the kernel dropped because the transmission queue was full.
    pub tx_dropped: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

impl Link {
    /// Parses a message of kind `NEW_LINK` or `DEL_LINK`; `None` for any other.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, kind::NEW_LINK | kind::DEL_LINK) {
            return None;
        }
        let body = message.body;
        let mut link = Self {
            hardware_type: u16_at(body, 2)?,
            index: u32_at(body, 4)?,
            flags: u32_at(body, 8)?,
            ..Self::default()
        };
        for attribute in Attributes::after(body, FIXED_LEN) {
            match attribute.kind {
                IFNAME => link.name = attribute.text(),
                MTU => link.mtu = attribute.u32().unwrap_or(0),
                MASTER => link.controller = attribute.u32().unwrap_or(0),
                TXQLEN => link.tx_queue_len = attribute.u32().unwrap_or(0),
                OPERSTATE => link.oper_state = attribute.value.first().copied().unwrap_or(0),
                LINKINFO => {
                    let driver = attribute.nested().find(|a| a.kind == INFO_KIND);
                    link.info_kind = driver.map(|a| a.text()).unwrap_or_default();
                }
                IFALIAS => link.alias = attribute.text(),
                STATS64 => link.read_stats(attribute.value),
                _ => {}
            }
        }
        Some(link)
    }

    /// Reads the counters of `struct rtnl_link_stats64`.
    fn read_stats(&mut self, counters: &[u8]) {
        let counter = |at| u64_at(counters, at).unwrap_or(0);
        (self.received_bytes, self.sent_bytes, self.tx_dropped) = (counter(16), counter(24), counter(56));
    }

    /// Whether the administrator has set it up (`IFF_UP`).
    pub const fn is_up(&self) -> bool {
        self.flags & 0x1 != 0
    }

    /// Whether it has a carrier (`IFF_LOWER_UP`).
    pub const fn has_carrier(&self) -> bool {
        self.flags & 0x1_0000 != 0
    }

    /// Whether it is a loopback interface (`IFF_LOOPBACK`).
    pub const fn is_loopback(&self) -> bool {
        self.flags & 0x8 != 0
    }
}

/// Properties to set on an interface; those that are `None` are unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// Set the interface up or down.
    pub up: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Length of the transmission queue in packets.
    pub tx_queue_len: Option<u32>,
    /// Alias of the interface.
    pub alias: Option<&'a str>,
}

impl LinkChange<'_> {
    /// The request that applies this change to the interface with number `index`.
    pub fn request(&self, index: u32) -> Request {
        let mut body = [0; FIXED_LEN];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        if let Some(up) = self.up {
            body[8..12].copy_from_slice(&u32::from(up).to_ne_bytes());
            body[12..16].copy_from_slice(&1_u32.to_ne_bytes());
        }
        let mut request = Request::new(kind::NEW_LINK, Request::CHANGE, &body);
        if let Some(mtu) = self.mtu {
            request.u32(MTU, mtu);
        }
        if let Some(queue) = self.tx_queue_len {
            request.u32(TXQLEN, queue);
        }
        if let Some(alias) = self.alias {
            request.attribute(IFALIAS, alias.as_bytes());
        }
        request
    }
}

const IFNAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const TXQLEN: u16 = 13;
const OPERSTATE: u16 = 16;
const LINKINFO: u16 = 18;
const IFALIAS: u16 = 20;
const STATS64: u16 = 23;
/// Inside `LINKINFO`.
const INFO_KIND: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;

    #[test]
    fn a_change_reads_back_as_the_link_it_describes() {
        let change = LinkChange {
            up: Some(true),
            mtu: Some(1280),
            tx_queue_len: Some(5000),
            alias: Some("marline-lab kind=wifi"),
        };
        let bytes = change.request(9).finish(1);
        let link = Link::parse(&messages(&bytes).next().unwrap()).unwrap();
        assert_eq!((link.index, link.mtu, link.tx_queue_len), (9, 1280, 5000));
        assert_eq!(link.alias, "marline-lab kind=wifi");
        assert!(link.is_up() && !link.is_loopback());
    }

    #[test]
    fn other_and_short_messages_are_not_parsed_as_links() {
        let body = [0; 12];
        assert_eq!(Link::parse(&Message { kind: kind::NEW_ROUTE, flags: 0, sequence: 0, body: &body }), None);
        assert_eq!(Link::parse(&Message { kind: kind::NEW_LINK, flags: 0, sequence: 0, body: &body[..11] }), None);
    }
}
