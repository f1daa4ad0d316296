//! The kernel's response to a request: an error number and, where the kernel gives one, an error message.
//!
//! A `NLMSG_ERROR` message is parsed into an [`Ack`]. The message text comes only on sockets with `NETLINK_EXT_ACK`. It
//! follows the repeated request, of which the response contains the header alone or, without the flag `NLM_F_CAPPED`,
//! all.

use alloc::string::String;

use super::{Attributes, HEADER_LEN, Message, aligned, kind, u32_at};

/// Acknowledgement of a request, or the error that it met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Sequence number of the request.
    pub sequence: u32,
    /// Error number as in `errno.h`; 0 for success.
    pub error: i32,
    /// The kernel's error message; empty if it gave none.
    pub message: String,
}

impl Ack {
    /// Parses a message of kind `ERROR`; `None` for any other.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        if message.kind != kind::ERROR {
            return None;
        }
        let number = u32_at(message.body, 0)?.cast_signed();
        let error = number.checked_neg().filter(|error| *error >= 0)?;
        let mut text = String::new();
        if message.flags & ACK_TLVS != 0 {
            let request_len = if message.flags & CAPPED != 0 {
                HEADER_LEN
            } else {
                usize::try_from(u32_at(message.body, ERROR_LEN)?).ok()?.max(HEADER_LEN)
            };
            let attributes = Attributes::after(message.body, ERROR_LEN.saturating_add(aligned(request_len)));
            let mut texts = attributes.filter(|a| a.kind == MSG);
            text = texts.next().map(|a| a.text()).unwrap_or_default();
        }
        Some(Self { sequence: message.sequence, error, message: text })
    }
}

/// Length of the error number, which precedes the repeated request.
const ERROR_LEN: usize = 4;
/// `NLM_F_CAPPED`.
const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`.
const ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`.
const MSG: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::netlink::messages;
    use alloc::vec::Vec;

    /// A response as the kernel writes it: -22, the header of the request, `invalid token`.
    fn invalid_token() -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in [
            &56_u32.to_ne_bytes()[..],
            &2_u16.to_ne_bytes(),
            &0x300_u16.to_ne_bytes(),
            &7_u32.to_ne_bytes(),
            &[0; 4],
            &(-22_i32).to_ne_bytes(),
            &76_u32.to_ne_bytes(),
            &28_u16.to_ne_bytes(),
            &5_u16.to_ne_bytes(),
            &7_u32.to_ne_bytes(),
            &[0; 4],
            &18_u16.to_ne_bytes(),
            &1_u16.to_ne_bytes(),
            b"invalid token\0\0\0",
        ] {
            bytes.extend_from_slice(part);
        }
        bytes
    }

    #[test]
    fn an_error_has_its_number_and_the_kernels_message() {
        let bytes = invalid_token();
        let ack = Ack::parse(&messages(&bytes).next().unwrap()).unwrap();
        assert_eq!(ack, Ack { sequence: 7, error: 22, message: "invalid token".into() });
    }

    #[test]
    fn a_damaged_response_never_causes_a_panic() {
        let good = invalid_token();
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = messages(&bad).filter_map(|m| Ack::parse(&m)).count();
            }
        }
        let least = Message { kind: kind::ERROR, flags: 0, sequence: 0, body: &i32::MIN.to_ne_bytes() };
        assert_eq!(Ack::parse(&least), None);
    }
}
