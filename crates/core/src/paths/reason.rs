//! Why a connection is carried as it is: for people, with figures.
//!
//! In: what a decision rested on. Out: one plain sentence. The value is kept, and not the sentence: it is written when
//! somebody asks, and a change of figures alone is not worth a word ([`Reason::same`]).

use alloc::format;
use alloc::string::{String, ToString};

use super::event::IpFamily;
use super::links::Links;
use crate::units::{Bitrate, DataSize, Energy};

/// What a decision rested on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Nothing was decided yet.
    New,
    /// The policy is fixed.
    Fixed(&'static str, Links),
    /// It may end soon.
    Waiting { link: usize },
    /// Nothing moves.
    Idle { links: Links },
    /// There is only one.
    Only { link: usize },
    /// eMPTCP's table.
    Table { links: Links, first: Bitrate, second: Bitrate, limit: Option<Bitrate> },
    /// The least energy for what is expected.
    Cheapest {
        links: Links,
        rate: Bitrate,
        other: Links,
        cost: Energy,
        other_cost: Energy,
        fixed: Energy,
        rest: DataSize,
    },
    /// Fewer links, on trial.
    Trial { link: usize, both: Bitrate },
    /// To see whether one has become faster.
    Again { links: Links, link: usize },
    /// All that help.
    Fastest { links: Links, rate: Bitrate },
    /// Kept away for its speed.
    Away { links: Links, slow: usize, slow_rate: Bitrate, rate: Bitrate },
    /// The shortest round trip.
    Shortest { link: usize, millis: u64 },
    /// What costs no money.
    Unmetered { links: Links },
    /// Nothing else works.
    Needed { links: Links, lost: Links },
    /// A link that is up cannot be joined.
    Refused { links: Links, link: usize, why: Hindrance },
    /// The budget is gone.
    Spent { links: Links, link: usize },
}

/// Why a link that is up cannot be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hindrance {
    /// The server takes no subflow there.
    Server,
    /// It has addresses of this family alone, and no address of the server of that family is known.
    NotAnnounced(IpFamily),
    /// It has addresses of this family alone, and the program's socket is for the other one alone.
    Socket(IpFamily),
}

impl Reason {
    /// Whether a change to `other` is one of figures alone.
    pub(super) fn same(&self, other: &Self) -> bool {
        let links = |reason: &Self| reason.links();
        let why = |reason: &Self| match *reason {
            Self::Refused { link, why, .. } => Some((link, why)),
            _ => None,
        };
        core::mem::discriminant(self) == core::mem::discriminant(other)
            && links(self) == links(other)
            && why(self) == why(other)
    }

    fn links(&self) -> Links {
        match *self {
            Self::New => Links::NONE,
            Self::Waiting { link }
            | Self::Only { link }
            | Self::Trial { link, .. }
            | Self::Shortest { link, .. } => Links::one(link),
            Self::Fixed(_, links)
            | Self::Idle { links }
            | Self::Table { links, .. }
            | Self::Cheapest { links, .. }
            | Self::Fastest { links, .. }
            | Self::Again { links, .. }
            | Self::Away { links, .. }
            | Self::Unmetered { links }
            | Self::Needed { links, .. }
            | Self::Refused { links, .. }
            | Self::Spent { links, .. } => links,
        }
    }

    /// The sentence.
    pub(super) fn sentence(&self, name: impl Fn(usize) -> String) -> String {
        let names = |links: Links| names(links, &name);
        match *self {
            Self::New => "nothing was decided yet".to_string(),
            Self::Fixed(rule, links) => format!("{}: {rule}", names(links)),
            Self::Waiting { link } => {
                format!("{} alone: it may end before another radio pays", name(link))
            }
            Self::Idle { links } => format!("{}: nothing moves", names(links)),
            Self::Only { link } => format!("{} alone: no other link can carry it now", name(link)),
            Self::Table { links, first, second, limit } => match limit {
                Some(limit) => format!("{}: first link {first}, second {second}, threshold {limit}", names(links)),
                None => format!("{}: first link {first}, second {second}", names(links)),
            },
            Self::Cheapest { links, rate, other, cost, other_cost, fixed, rest } => {
                let waking = if fixed.is_zero() {
                    String::new()
                } else {
                    format!(" ({fixed} of it to wake radios, now or again)")
                };
                format!(
                    "{} at {rate}: {cost} for the {rest} expected; {} would cost {other_cost}{waking}",
                    names(links),
                    names(other),
                )
            }
            Self::Trial { link, both } => format!("{} alone on trial: before it was {both}", name(link)),
            Self::Again { links, link } => {
                format!("{} again, to see what {} brings now", names(links), name(link))
            }
            Self::Fastest { links, rate } => format!("{}: {rate} together", names(links)),
            Self::Away { links, slow, slow_rate, rate } => {
                format!("{} at {rate}: {} at {slow_rate} would hold it up", names(links), name(slow))
            }
            Self::Shortest { link, millis } => format!("{}: the shortest round trip, {millis}ms", name(link)),
            Self::Unmetered { links } => format!("{}: costs no money", names(links)),
            Self::Needed { links, lost } => format!("{}: {} does not work", names(links), names(lost)),
            Self::Refused { links, link, why } => {
                let (links, link) = (names(links), name(link));
                match why {
                    Hindrance::Server => format!("{links}: the server takes no subflow over {link}"),
                    Hindrance::NotAnnounced(family) => {
                        format!("{links}: {link} has only {family}, and the server announced no {family} address")
                    }
                    Hindrance::Socket(family) => {
                        let own = family.other();
                        format!("{links}: {link} has only {family}, and the program's socket is for {own} only")
                    }
                }
            }
            Self::Spent { links, link } if links == Links::one(link) => {
                format!("{}: its budget is spent, and no other link can carry it now", name(link))
            }
            Self::Spent { links, link } => format!("{}: the budget of {} is spent", names(links), name(link)),
        }
    }
}

/// `wifi`, `wifi and lte`, `no link`.
pub(super) fn names(links: Links, name: &impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for link in links.iter() {
        if !text.is_empty() {
            text.push_str(" and ");
        }
        text.push_str(&name(link));
    }
    if text.is_empty() { "no link".to_string() } else { text }
}
