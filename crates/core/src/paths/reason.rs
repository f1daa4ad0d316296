//! Why a connection is carried as it is: for people, with figures.
//!
//! In: what a decision rested on. Out: one plain sentence. The value is kept, and not the sentence: it is written when
//! somebody asks, and a change of figures alone is not worth a word ([`Reason::same`]).

use alloc::format;
use alloc::string::{String, ToString};

use super::event::IpFamily;
use super::links::LinkSet;
use crate::units::{Bitrate, DataSize, Energy};

/// What a decision rested on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// Nothing was decided yet.
    Undecided,
    /// The policy is fixed.
    Fixed(&'static str, LinkSet),
    /// It may end soon.
    Waiting { link: usize },
    /// Nothing moves.
    Idle { links: LinkSet },
    /// There is only one.
    Only { link: usize },
    /// eMPTCP's table.
    Eib { links: LinkSet, first_rate: Bitrate, second_rate: Bitrate, limit: Option<Bitrate> },
    /// The least energy for what is expected.
    LeastEnergy {
        links: LinkSet,
        rate: Bitrate,
        other: LinkSet,
        cost: Energy,
        other_cost: Energy,
        wake_cost: Energy,
        expected: DataSize,
    },
    /// Fewer links, on trial.
    Trial { link: usize, previous_rate: Bitrate },
    /// To see whether one has become faster.
    Reprobe { links: LinkSet, link: usize },
    /// All that help.
    Fastest { links: LinkSet, rate: Bitrate },
    /// Kept away for its speed.
    LeftOut { links: LinkSet, slow: usize, slow_rate: Bitrate, rate: Bitrate },
    /// The shortest round trip.
    ShortestRtt { link: usize, millis: u64 },
    /// What costs no money.
    Unmetered { links: LinkSet },
    /// Nothing else works.
    Failover { links: LinkSet, lost: LinkSet },
    /// A link that is up cannot be joined.
    JoinRefused { links: LinkSet, link: usize, obstacle: JoinObstacle },
    /// The budget is gone.
    BudgetSpent { links: LinkSet, link: usize },
}

/// Why a link that is up cannot be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinObstacle {
    /// The server takes no subflow there.
    ServerRefused,
    /// It has addresses of this family alone, and no address of the server of that family is known.
    NotAnnounced(IpFamily),
    /// It has addresses of this family alone, and the program's socket is for the other one alone.
    SocketFamily(IpFamily),
}

impl Reason {
    /// Whether a change to `other` is one of figures alone.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        let links = |reason: &Self| reason.links();
        let obstacle_of = |reason: &Self| match *reason {
            Self::JoinRefused { link, obstacle: why, .. } => Some((link, why)),
            _ => None,
        };
        core::mem::discriminant(self) == core::mem::discriminant(other)
            && links(self) == links(other)
            && obstacle_of(self) == obstacle_of(other)
    }

    fn links(&self) -> LinkSet {
        match *self {
            Self::Undecided => LinkSet::EMPTY,
            Self::Waiting { link }
            | Self::Only { link }
            | Self::Trial { link, .. }
            | Self::ShortestRtt { link, .. } => LinkSet::single(link),
            Self::Fixed(_, links)
            | Self::Idle { links }
            | Self::Eib { links, .. }
            | Self::LeastEnergy { links, .. }
            | Self::Fastest { links, .. }
            | Self::Reprobe { links, .. }
            | Self::LeftOut { links, .. }
            | Self::Unmetered { links }
            | Self::Failover { links, .. }
            | Self::JoinRefused { links, .. }
            | Self::BudgetSpent { links, .. } => links,
        }
    }

    /// The sentence.
    pub(super) fn sentence(&self, name: impl Fn(usize) -> String) -> String {
        let names = |links: LinkSet| link_names(links, &name);
        match *self {
            Self::Undecided => "nothing was decided yet".to_string(),
            Self::Fixed(rule, links) => format!("{}: {rule}", names(links)),
            Self::Waiting { link } => {
                format!("{} alone: it may end before another radio pays", name(link))
            }
            Self::Idle { links } => format!("{}: nothing moves", names(links)),
            Self::Only { link } => format!("{} alone: no other link can carry it now", name(link)),
            Self::Eib { links, first_rate: first, second_rate: second, limit } => match limit {
                Some(limit) => format!("{}: first link {first}, second {second}, threshold {limit}", names(links)),
                None => format!("{}: first link {first}, second {second}", names(links)),
            },
            Self::LeastEnergy { links, rate, other, cost, other_cost, wake_cost: fixed, expected: rest } => {
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
            Self::Trial { link, previous_rate: both } => {
                format!("{} alone on trial: before it was {both}", name(link))
            }
            Self::Reprobe { links, link } => {
                format!("{} again, to see what {} brings now", names(links), name(link))
            }
            Self::Fastest { links, rate } => format!("{}: {rate} together", names(links)),
            Self::LeftOut { links, slow, slow_rate, rate } => {
                format!("{} at {rate}: {} at {slow_rate} would hold it up", names(links), name(slow))
            }
            Self::ShortestRtt { link, millis } => format!("{}: the shortest round trip, {millis}ms", name(link)),
            Self::Unmetered { links } => format!("{}: costs no money", names(links)),
            Self::Failover { links, lost } => format!("{}: {} does not work", names(links), names(lost)),
            Self::JoinRefused { links, link, obstacle: why } => {
                let (links, link) = (names(links), name(link));
                match why {
                    JoinObstacle::ServerRefused => format!("{links}: the server takes no subflow over {link}"),
                    JoinObstacle::NotAnnounced(family) => {
                        format!("{links}: {link} has only {family}, and the server announced no {family} address")
                    }
                    JoinObstacle::SocketFamily(family) => {
                        let own = family.other();
                        format!("{links}: {link} has only {family}, and the program's socket is for {own} only")
                    }
                }
            }
            Self::BudgetSpent { links, link } if links == LinkSet::single(link) => {
                format!("{}: its budget is spent, and no other link can carry it now", name(link))
            }
            Self::BudgetSpent { links, link } => format!("{}: the budget of {} is spent", names(links), name(link)),
        }
    }
}

/// `wifi`, `wifi and lte`, `no link`.
pub(super) fn link_names(links: LinkSet, name: &impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for link in links.iter() {
        if !text.is_empty() {
            text.push_str(" and ");
        }
        text.push_str(&name(link));
    }
    if text.is_empty() { "no link".to_string() } else { text }
}
