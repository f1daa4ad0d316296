//! What rtnetlink reports about a network device.

use marline_core::link::LinkKind;
use marline_core::wire::netlink::{Attributes, Link, Message};

/// What rtnetlink reports about a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceInfo {
    pub(super) index: u32,
    pub(super) name: String,
    /// `ARPHRD_*`: the link-layer type.
    pub(super) arphrd: u16,
    /// The `IFF_*` flags.
    pub(super) flags: u32,
    pub(super) mtu: u32,
    /// The device below (of a VLAN), or the peer (of a veth).
    pub(super) lower_device: Option<u32>,
    /// Index of the bridge or bond of which the device is a port.
    pub(super) controller: Option<u32>,
    /// IFLA_INFO_KIND: the type of a virtual device.
    pub(super) info_kind: Option<String>,
    /// The alias that an administrator or program has set.
    pub(super) alias: Option<String>,
    /// The hardware address.
    pub(super) mac: Vec<u8>,
}

/// Prefix of the alias of an emulated link; the kind follows.
const LAB_ALIAS: &str = "marline-lab kind=";

impl DeviceInfo {
    /// Parses an RTM_NEWLINK message.
    pub(super) fn parse(message: &Message<'_>) -> Option<Self> {
        /// Length of `struct ifinfomsg`, which precedes the attributes.
        const IFINFOMSG_LEN: usize = 16;
        const IFLA_ADDRESS: u16 = 1;
        const IFLA_LINK: u16 = 5;
        let link = Link::parse(message).filter(|link| !link.name.is_empty())?;
        let (mut lower_device, mut mac) = (None, Vec::new());
        for attribute in Attributes::of(message.body.get(IFINFOMSG_LEN..)?) {
            match attribute.kind {
                IFLA_ADDRESS => mac = attribute.value.to_vec(),
                IFLA_LINK => lower_device = attribute.u32(),
                _ => {}
            }
        }
        Some(Self {
            index: link.index,
            name: link.name,
            arphrd: link.hardware_type,
            flags: link.flags,
            mtu: link.mtu,
            lower_device,
            controller: Some(link.controller).filter(|index| *index != 0),
            info_kind: Some(link.info_kind).filter(|driver| !driver.is_empty()),
            alias: Some(link.alias).filter(|alias| !alias.is_empty()),
            mac,
        })
    }

    /// The kind that the laboratory has set for an emulated link.
    pub(super) fn emulated_kind(&self) -> Option<LinkKind> {
        let kind = self.alias.as_deref()?.strip_prefix(LAB_ALIAS)?;
        Some(kind.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default())
    }

    /// Whether it is a virtual device of this type.
    pub(super) fn has_info_kind(&self, info: &str) -> bool {
        self.info_kind.as_deref() == Some(info)
    }
}
