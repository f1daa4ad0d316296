//! Netlink request that creates a veth pair between two network namespaces.

/// Builds the request. Both ends have the same name; the peer end is created in the namespace of the file
/// descriptor (`linux/if_link.h`, `linux/veth.h`).
pub(crate) fn veth_request(name: &str, peer_ns_fd: i32) -> Vec<u8> {
    /// `struct ifinfomsg`, all of it zero.
    const FIXED: [u8; 16] = [0; 16];
    let attribute = |kind: u16, value: &[u8]| {
        let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let named = attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    let other = [&FIXED[..], &named, &attribute(IFLA_NET_NS_FD, &peer_ns_fd.to_ne_bytes())].concat();
    let data = attribute(IFLA_INFO_DATA, &attribute(VETH_INFO_PEER, &other));
    let info = attribute(IFLA_LINKINFO, &[attribute(IFLA_INFO_KIND, b"veth\0"), data].concat());
    let body = [&FIXED[..], &named, &info].concat();
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&RTM_NEWLINK.to_ne_bytes());
    message.extend_from_slice(&CREATE_FLAGS.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    message
}

const RTM_NEWLINK: u16 = 16;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE`.
const CREATE_FLAGS: u16 = 0x1 | 0x4 | 0x200 | 0x400;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
