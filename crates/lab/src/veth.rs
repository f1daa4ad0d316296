//! Pairs of wires between two network namespaces.

/// The request for a pair of this name, the other end of the same name in the namespace of this descriptor
/// (`linux/if_link.h`, `linux/veth.h`).
pub(crate) fn veth(name: &str, peer: i32) -> Vec<u8> {
    /// `struct ifinfomsg`, all of it zero.
    const FIXED: [u8; 16] = [0; 16];
    let attribute = |kind: u16, value: &[u8]| {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let named = attribute(IFNAME, &[name.as_bytes(), &[0]].concat());
    let other = [&FIXED[..], &named, &attribute(NET_NS_FD, &peer.to_ne_bytes())].concat();
    let data = attribute(INFO_DATA, &attribute(VETH_PEER, &other));
    let info = attribute(LINKINFO, &[attribute(INFO_KIND, b"veth\0"), data].concat());
    let body = [&FIXED[..], &named, &info].concat();
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&NEW_LINK.to_ne_bytes());
    message.extend_from_slice(&CREATE.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    message
}

const NEW_LINK: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE`.
const CREATE: u16 = 0x1 | 0x4 | 0x200 | 0x400;
const IFNAME: u16 = 3;
const LINKINFO: u16 = 18;
const NET_NS_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
