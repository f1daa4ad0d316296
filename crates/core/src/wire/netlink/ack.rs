//! What the kernel makes of a request: an error number, and in words what is wrong.
//!
//! In: a `NLMSG_ERROR` message. Out: [`Ack`]. The words come on sockets with `NETLINK_EXT_ACK`, behind the request that
//! the answer repeats: its header alone, or (flag `NLM_F_CAPPED` absent) all of it.

use alloc::string::String;

use super::{Attributes, HEADER_LEN, Message, aligned, kind, u32_at};

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The sequence number of the request.
    pub sequence: u32,
    /// The error's number as in `errno.h`; 0: done.
    pub error: i32,
    /// What is wrong, in the kernel's words; empty if it does not say.
    pub message: String,
}

impl Ack {
    /// Reads an `ERROR`; `None` for anything else.
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

/// The error number before the repeated request.
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

    /// An answer as the kernel writes it: -22, the request's header, `invalid token`.
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
    fn a_refusal_says_its_number_and_its_words() {
        let bytes = invalid_token();
        let ack = Ack::parse(&messages(&bytes).next().unwrap()).unwrap();
        assert_eq!(ack, Ack { sequence: 7, error: 22, message: "invalid token".into() });
    }

    #[test]
    fn no_damage_makes_it_panic() {
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
