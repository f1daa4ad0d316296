//! Generic netlink: families have names, and the kernel gives out their numbers at each boot.
//!
//! In: the answer to [`Family::find`]. Out: [`Family`], with its number (the kind of all its messages) and those of its
//! groups of events.
//!
//! Behind a message's header stand one byte with the command and one with the version; see [`command`].

use alloc::string::String;
use alloc::vec::Vec;

use super::{Attributes, Message, Request, u8_at};

/// A family of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenlFamily {
    /// The kind of its messages.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// The version that the kernel speaks.
    pub version: u32,
    /// Its groups of events, by name, with the number to join.
    pub groups: Vec<(String, u32)>,
}

impl GenlFamily {
    /// Asks for the family of this name. The reply is one message, or the error `ENOENT`.
    pub fn lookup(name: &str) -> Request {
        let mut request = Request::new(CONTROL, Request::QUERY, &[GET_FAMILY, 1, 0, 0]);
        request.text(FAMILY_NAME, name);
        request
    }

    /// Reads the answer; `None` for anything else.
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

    /// The number of a group of events.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(of, _)| of == name).map(|(_, id)| *id)
    }
}

/// A group's name and number.
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

/// The command, or the event, that a message is.
pub(super) fn command(message: &Message<'_>) -> Option<u8> {
    u8_at(message.body, 0)
}

/// The attributes behind the command.
pub(super) fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    Attributes::after(message.body, FIXED_LEN)
}

/// Command, version, two spare bytes.
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
