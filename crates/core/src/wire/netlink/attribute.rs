//! Netlink attributes: length, type, value and padding. After its fixed part every message consists of attributes.

use alloc::string::String;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Request, aligned, u8_at, u16_at, u32_at};

/// Length and type of an attribute.
const HEADER_LEN: usize = 4;
/// The two top bits of the type are the flags "nested" and "network byte order"; the rest is the type.
const TYPE_MASK: u16 = 0x3fff;
/// Flag of a nested attribute (`NLA_F_NESTED`), which families newer than the routing table's require.
pub(super) const NESTED: u16 = 0x8000;

/// One attribute of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The type, without the flag bits.
    pub kind: u16,
    /// The value, without padding.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The value as a 32-bit integer; `None` if it is shorter.
    pub fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// The first byte of the value; `None` if it is empty.
    pub fn u8(&self) -> Option<u8> {
        u8_at(self.value, 0)
    }

    /// The value as a 16-bit integer; `None` if it is shorter.
    pub fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    /// The value as a 16-bit integer in network byte order, which some messages use for ports.
    pub(super) fn port(&self) -> Option<u16> {
        u16_at(self.value, 0).map(u16::from_be)
    }

    /// The value as text up to the terminating zero; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        let end = self.value.iter().position(|&b| b == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(self.value.get(..end).unwrap_or(&[])).into_owned()
    }

    /// The value as an address of 4 or 16 bytes; `None` for any other length.
    pub fn address(&self) -> Option<IpAddr> {
        if let Ok(v4) = <[u8; 4]>::try_from(self.value) {
            return Some(Ipv4Addr::from(v4).into());
        }
        <[u8; 16]>::try_from(self.value).ok().map(|v6| Ipv6Addr::from(v6).into())
    }

    /// The attributes nested in the value.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::of(self.value)
    }
}

/// Iterator over the attributes in a byte slice; ends at the first truncated one.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    remaining: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Iterates over the attributes in `bytes`.
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { remaining: bytes }
    }

    /// Iterates over the attributes that follow the fixed part of a message's body.
    pub(super) fn after(body: &'a [u8], fixed: usize) -> Self {
        Self::of(body.get(aligned(fixed)..).unwrap_or(&[]))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let length = usize::from(u16_at(self.remaining, 0)?);
        let kind = u16_at(self.remaining, 2)? & TYPE_MASK;
        let value = self.remaining.get(HEADER_LEN..length)?;
        self.remaining = self.remaining.get(aligned(length)..).unwrap_or(&[]);
        Some(Attribute { kind, value })
    }
}

impl Request {
    /// Appends one attribute. A value over 65,531 bytes cannot be encoded, and its attribute is left out; marline
    /// writes none of that size.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let Ok(length) = u16::try_from(HEADER_LEN + value.len()) else { return };
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    pub(super) fn u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    pub(super) fn u16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends text with its terminating zero.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = alloc::vec::Vec::from(value.as_bytes());
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    pub(super) fn address(&mut self, kind: u16, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.attribute(kind, &v4.octets()),
            IpAddr::V6(v6) => self.attribute(kind, &v6.octets()),
        }
    }

    /// Appends an attribute that contains the attributes that `inner` appends.
    pub(super) fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute(kind, &[]);
        inner(self);
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn attributes_read_back_as_they_were_written() {
        let mut request = Request::new(1, 0, &[]);
        request.u32(4, 0xdead_beef);
        request.text(3, "wlan0");
        request.address(1, IpAddr::from([10, 0, 0, 1]));
        request.address(1, "fd00::1".parse().unwrap());
        request.nest(8, |r| r.text(16, "cubic"));
        let bytes = request.finish(0);
        let all: Vec<_> = Attributes::of(&bytes[16..]).collect();
        assert_eq!(all.len(), 5);
        assert_eq!(all[0].u32(), Some(0xdead_beef));
        assert_eq!(all[1].text(), "wlan0");
        assert_eq!(all[2].address(), Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(all[3].address(), Some("fd00::1".parse().unwrap()));
        assert_eq!(all[4].nested().next().unwrap().text(), "cubic");
    }

    #[test]
    fn truncation_and_wrong_lengths_never_cause_a_panic() {
        let mut request = Request::new(1, 0, &[]);
        request.text(3, "wlan0");
        request.nest(8, |r| r.u32(16, 1));
        let bytes = request.finish(0);
        for cut in 16..bytes.len() {
            assert!(Attributes::of(&bytes[16..cut]).count() < 2);
        }
        for length in 0_u16..64 {
            let mut bad = bytes[16..].to_vec();
            bad[..2].copy_from_slice(&length.to_ne_bytes());
            let _ = Attributes::of(&bad).flat_map(|a| a.nested()).count();
        }
    }
}
