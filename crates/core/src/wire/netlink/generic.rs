//! Generic netlink: protocol families with names, to which the kernel assigns ids at each boot.
//!
//! The reply to [`GenlFamily::lookup`] parses into a [`GenlFamily`]. It contains the family's id, which is the kind of
//! all its messages, and the ids of its multicast groups for events.
//!
//! The message header is followed by one byte with the command and one with the version; see [`command`].

use alloc::string::String;
use alloc::vec::Vec;

use super::{Attributes, Message, Request, u8_at};

/// A generic netlink family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenlFamily {
    /// Id of the family: the kind of its messages.
    pub id: u16,
    /// Name of the family.
    pub name: String,
    /// Version of the family that the kernel implements.
    pub version: u32,
    /// Multicast groups for events, by name, with the id to join.
    pub groups: Vec<(String, u32)>,
}

impl GenlFamily {
    /// Request for the family of this name. The reply is one message, or the error `ENOENT`.
    pub fn lookup(name: &str) -> Request {
        let mut request = Request::new(CONTROL, Request::QUERY, &[GET_FAMILY, 1, 0, 0]);
        request.text(FAMILY_NAME, name);
        request
    }

    /// Parses the reply to [`Self::lookup`]; `None` for any other message.
    pub fn parse(message: &Message<'_>) -> Option<Self> {
        if message.kind != CONTROL || command(message)? != NEW_FAMILY {
            return None;
        }
        let (mut id, mut family) = (None, Self { id: 0, name: String::new(), version: 0, groups: Vec::new() });
        for attribute in attributes(message) {
            match attribute.kind {
                FAMILY_ID => id = attribute.u16(),
                FAMILY_NAME => family.name = attribute.text(),
                VERSION => family.version = attribute.u32().unwrap_or(0),
                GROUPS => {
                    family.groups = attribute.nested().filter_map(|group| parse_group(group.nested())).collect()
                }
                _ => {}
            }
        }
        Some(Self { id: id?, ..family })
    }

    /// Id of a multicast group.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(group, _)| group == name).map(|(_, id)| *id)
    }
}

/// Name and id of a multicast group.
fn parse_group(attributes: Attributes<'_>) -> Option<(String, u32)> {
    let (mut name, mut id) = (None, None);
    for attribute in attributes {
        match attribute.kind {
            GROUP_NAME => name = Some(attribute.text()),
            GROUP_ID => id = attribute.u32(),
            _ => {}
        }
    }
    Some((name?, id?))
}

/// The command or event number of a message.
pub(super) fn command(message: &Message<'_>) -> Option<u8> {
    u8_at(message.body, 0)
}

/// The attributes that follow the command.
pub(super) fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    Attributes::after(message.body, FIXED_LEN)
}

/// Command, version, two reserved bytes.
const FIXED_LEN: usize = 4;

// linux/genetlink.h
const CONTROL: u16 = 0x10;
const NEW_FAMILY: u8 = 1;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const VERSION: u16 = 3;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
