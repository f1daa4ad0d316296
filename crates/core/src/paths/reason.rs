//! Reasons of decisions, for people: one plain sentence with figures.
//!
//! A connection stores the value instead of the sentence. The sentence is written only on demand, and a change of
//! figures alone is not reported ([`Reason::is_same_kind`]).

use alloc::format;
use alloc::string::{String, ToString};

use super::event::IpFamily;
use super::links::LinkSet;
use crate::units::{Bitrate, DataSize, Energy};

/// Basis of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// No decision was made yet.
    Undecided,
    /// The policy always uses these links; the text is its rule.
    Fixed(&'static str, LinkSet),
    /// Not yet eligible for further links: the transfer may end soon.
    Waiting { link: usize },
    /// No data is being transferred.
    Idle { links: LinkSet },
    /// No other link is usable.
    Only { link: usize },
    /// Decision by eMPTCP's energy information base.
    Eib { links: LinkSet, first_rate: Bitrate, second_rate: Bitrate, limit: Option<Bitrate> },
    /// The set with the least energy for the expected bytes.
    LeastEnergy {
        links: LinkSet,
        rate: Bitrate,
        other: LinkSet,
        cost: Energy,
        other_cost: Energy,
        wake_cost: Energy,
        expected: DataSize,
    },
    /// Solo trial: one link alone.
    Trial { link: usize, previous_rate: Bitrate },
    /// A link is used for a moment to measure its present rate.
    Reprobe { links: LinkSet, link: usize },
    /// All links that increase the throughput.
    Fastest { links: LinkSet, rate: Bitrate },
    /// A slow link is left out because it would delay the others.
    LeftOut { links: LinkSet, slow: usize, slow_rate: Bitrate, rate: Bitrate },
    /// The path with the shortest RTT.
    ShortestRtt { link: usize, millis: u64 },
    /// Unmetered links suffice.
    Unmetered { links: LinkSet },
    /// Links that were in use have failed.
    Failover { links: LinkSet, lost: LinkSet },
    /// A link is up, but a subflow over it was refused.
    JoinRefused { links: LinkSet, link: usize, obstacle: JoinObstacle },
    /// The budget of a link is spent.
    BudgetSpent { links: LinkSet, link: usize },
}

/// Why a link that is up cannot be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinObstacle {
    /// The server refused a subflow over it.
    ServerRefused,
    /// The link has only addresses of this family, and no address of the server in that family is known.
    NotAnnounced(IpFamily),
    /// The link has only addresses of this family, and the program's socket accepts only the other one.
    SocketFamily(IpFamily),
}

impl Reason {
    /// Whether `other` differs only in figures.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        let links = |reason: &Self| reason.links();
        let obstacle_of = |reason: &Self| match *reason {
            Self::JoinRefused { link, obstacle, .. } => Some((link, obstacle)),
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

    /// The reason as one sentence; `name` returns the name of a link.
    pub(super) fn sentence(&self, name: impl Fn(usize) -> String) -> String {
        let names = |links: LinkSet| link_names(links, &name);
        match *self {
            Self::Undecided => "no decision yet".to_string(),
            Self::Fixed(rule, links) => format!("{}: {rule}", names(links)),
            Self::Waiting { link } => {
                format!("{} alone: the transfer may end before another radio saves energy", name(link))
            }
            Self::Idle { links } => format!("{}: no data is being transferred", names(links)),
            Self::Only { link } => format!("{} alone: no other link is usable now", name(link)),
            Self::Eib { links, first_rate, second_rate, limit } => match limit {
                Some(limit) => {
                    format!("{}: first link {first_rate}, second {second_rate}, threshold {limit}", names(links))
                }
                None => format!("{}: first link {first_rate}, second {second_rate}", names(links)),
            },
            Self::LeastEnergy { links, rate, other, cost, other_cost, wake_cost, expected } => {
                let waking = if wake_cost.is_zero() {
                    String::new()
                } else {
                    format!(" ({wake_cost} of it to wake radios, now or later)")
                };
                format!(
                    "{} at {rate}: {cost} for the {expected} expected; {} would cost {other_cost}{waking}",
                    names(links),
                    names(other),
                )
            }
            Self::Trial { link, previous_rate } => {
                format!("{} alone on trial: the rate before was {previous_rate}", name(link))
            }
            Self::Reprobe { links, link } => {
                format!("{}: measuring the present rate of {}", names(links), name(link))
            }
            Self::Fastest { links, rate } => format!("{}: {rate} together", names(links)),
            Self::LeftOut { links, slow, slow_rate, rate } => {
                format!("{} at {rate}: {} at {slow_rate} would hold it up", names(links), name(slow))
            }
            Self::ShortestRtt { link, millis } => format!("{}: shortest RTT, {millis}ms", name(link)),
            Self::Unmetered { links } => format!("{}: unmetered", names(links)),
            Self::Failover { links, lost } => format!("{}: {} does not work", names(links), names(lost)),
            Self::JoinRefused { links, link, obstacle } => {
                let (links, link) = (names(links), name(link));
                match obstacle {
                    JoinObstacle::ServerRefused => format!("{links}: the server refuses subflows over {link}"),
                    JoinObstacle::NotAnnounced(family) => {
                        format!("{links}: {link} has only {family}, and the server announced no {family} address")
                    }
                    JoinObstacle::SocketFamily(family) => {
                        let socket_family = family.other();
                        format!(
                            "{links}: {link} has only {family}, and the program's socket is for {socket_family} only"
                        )
                    }
                }
            }
            Self::BudgetSpent { links, link } if links == LinkSet::single(link) => {
                format!("{}: its budget is spent, and no other link is usable now", name(link))
            }
            Self::BudgetSpent { links, link } => format!("{}: the budget of {} is spent", names(links), name(link)),
        }
    }
}

/// Joins the names of links: `wifi`, `wifi and lte`, or `no link`.
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
