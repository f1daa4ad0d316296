//! Reasons of the policy's decisions, and one readable sentence for each.
//!
//! A connection stores the [`Reason`]. The sentence is created only on demand. A change of rates or costs alone is not
//! reported again ([`Reason::is_same_kind`]).

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
    /// The policy has a fixed rule, for example "all links join at once". The text states the rule.
    Fixed(&'static str, LinkSet),
    /// No further link for now. The transfer may end before the energy for waking the radio of another link pays off.
    Waiting { links: LinkSet },
    /// No data is being transferred.
    Idle { links: LinkSet },
    /// This is the only usable link.
    Only { link: usize },
    /// All usable links are metered, and the goal is low cost: only this link is used.
    AllMetered { link: usize },
    /// No usable link could be compared, because the energy model does not describe `link`. Such links count as free.
    NoRadioModel { links: LinkSet, link: usize },
    /// Decision by eMPTCP's energy information base: a table of rates at which the most efficient set changes. `limit` is
    /// the rate of the first link above which the first link alone is most efficient, given the rate of the second;
    /// `None`: it is so at no rate.
    Eib { links: LinkSet, first_rate: Bitrate, second_rate: Bitrate, limit: Option<Bitrate> },
    /// The set with the least energy for the expected bytes. `other` is the best alternative. `wake_cost` is the part of
    /// `other_cost` for waking radios: now, or again later if the set lets a radio that is awake go idle.
    LeastEnergy {
        links: LinkSet,
        rate: Bitrate,
        other: LinkSet,
        cost: Energy,
        other_cost: Energy,
        wake_cost: Energy,
        expected: DataSize,
    },
    /// Solo trial: one link is used alone to measure its rate. `previous_rate` was measured before the trial.
    Trial { link: usize, previous_rate: Bitrate },
    /// `link` is used for a short time to measure its present rate.
    Reprobe { links: LinkSet, link: usize },
    /// The links that give the highest throughput, which after a trial may be one alone; `rate` is that of all of them.
    Fastest { links: LinkSet, rate: Bitrate },
    /// A slow link is not used because it would cause head-of-line blocking on the others.
    LeftOut { links: LinkSet, slow: usize, slow_rate: Bitrate, rate: Bitrate },
    /// The path with the shortest RTT.
    ShortestRtt { link: usize, millis: u64 },
    /// One unmetered link carries, and the goal is low cost: metered links are not used while an unmetered one works,
    /// however slow it is.
    Unmetered { links: LinkSet },
    /// Links that were in use have failed.
    Failover { links: LinkSet, lost: LinkSet },
    /// A link is up, but a subflow over it is not possible.
    JoinRefused { links: LinkSet, link: usize, obstacle: JoinObstacle },
    /// The data budget of `link` is spent. If no other link is usable, `link` is used nevertheless.
    BudgetSpent { links: LinkSet, link: usize },
}

/// Why no subflow can be created over a link that is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JoinObstacle {
    /// The server refused a subflow over the link.
    ServerRefused,
    /// The link has only addresses of this family, and no address of the server in that family is known.
    NotAnnounced(IpFamily),
    /// The link has only addresses of this family, and the program's socket accepts only the other one.
    SocketFamily(IpFamily),
}

impl Reason {
    /// Whether `other` has the same variant and concerns the same links, so that only its figures may differ.
    /// The alternative of `LeastEnergy` counts as a figure.
    pub(super) fn is_same_kind(&self, other: &Self) -> bool {
        let links = |reason: &Self| reason.links();
        // The links that a reason is about, besides those that are used.
        let subject = |reason: &Self| match *reason {
            Self::JoinRefused { link, obstacle, .. } => (LinkSet::single(link), Some(obstacle)),
            Self::Reprobe { link, .. }
            | Self::LeftOut { slow: link, .. }
            | Self::BudgetSpent { link, .. }
            | Self::NoRadioModel { link, .. } => (LinkSet::single(link), None),
            Self::Failover { lost, .. } => (lost, None),
            _ => (LinkSet::EMPTY, None),
        };
        core::mem::discriminant(self) == core::mem::discriminant(other)
            && links(self) == links(other)
            && subject(self) == subject(other)
    }

    fn links(&self) -> LinkSet {
        match *self {
            Self::Undecided => LinkSet::EMPTY,
            Self::Only { link }
            | Self::AllMetered { link }
            | Self::Trial { link, .. }
            | Self::ShortestRtt { link, .. } => LinkSet::single(link),
            Self::Fixed(_, links)
            | Self::Waiting { links }
            | Self::NoRadioModel { links, .. }
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
            Self::Waiting { links } => {
                let alone = if links.len() == 1 { " alone" } else { "" };
                format!("{}{alone}: the transfer may end before another radio saves energy", names(links))
            }
            Self::Idle { links } => format!("{}: no data is being transferred", names(links)),
            Self::Only { link } => format!("{} alone: no other link is usable now", name(link)),
            Self::AllMetered { link } => format!("{} alone: every usable link is metered", name(link)),
            Self::NoRadioModel { links, link } => {
                format!("{}: the energy model does not describe {}, which counts as free", names(links), name(link))
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_about_another_link_is_of_another_kind() {
        let links = LinkSet::single(0).with(1);
        let rate = Bitrate::ZERO;
        let reasons: [fn(LinkSet, usize, Bitrate) -> Reason; 4] = [
            |links, link, _| Reason::Reprobe { links, link },
            |links, slow, rate| Reason::LeftOut { links, slow, slow_rate: rate, rate },
            |links, link, _| Reason::Failover { links, lost: LinkSet::single(link) },
            |links, link, _| Reason::BudgetSpent { links, link },
        ];
        for reason in reasons {
            assert!(reason(links, 2, rate).is_same_kind(&reason(links, 2, Bitrate::from_mbps(5))));
            assert!(!reason(links, 2, rate).is_same_kind(&reason(links, 3, rate)));
        }
    }
}
