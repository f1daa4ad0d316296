//! Which links are to carry a connection.
//!
//! In: a connection, the host's links and radios. Out: a [`Choice`] and its reason. Nothing is done here.
//!
//! What every policy shares: a link can be chosen when it is up, its budget is not spent, its path is not taken for dead,
//! and it has a subflow or may be given one. When nothing can be chosen, everything stays as it is.

mod emptcp;
mod energy;
mod guard;
mod speed;
mod trials;

pub use emptcp::least_wait;
pub(super) use trials::{Trials, Verdict};

use super::config::{Policy, Profile};
use super::conn::{Conn, Pulse};
use super::host::Host;
use super::links::Links;
use super::reason::{Hindrance, Reason};

/// What is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// Links that carry.
    pub(super) active: Links,
    /// Links that are joined and stand by.
    pub(super) spare: Links,
    /// Of those that do not carry: links whose subflows go, instead of standing by.
    pub(super) destroy: Links,
    pub(super) reason: Reason,
}

impl Choice {
    pub(super) const fn new(active: Links, reason: Reason) -> Self {
        Self { active, spare: Links::NONE, destroy: Links::NONE, reason }
    }
}

impl Conn {
    /// What is best now.
    pub(super) fn choose(&mut self, host: &Host) -> Choice {
        let usable = self.usable(host);
        let spent = spent(host);
        let Some(home) = self.home.filter(|home| usable.has(*home)).or_else(|| usable.first()) else {
            let carrying = self.carrying();
            let links = if carrying.is_empty() { self.joined() } else { carrying };
            return Choice::new(
                links,
                match spent.and(self.joined()).first() {
                    Some(link) => Reason::Spent { links, link },
                    None => Reason::Needed { links, lost: links },
                },
            );
        };
        let mut choice = match host.config.policy {
            Policy::Mptcp => Choice::new(usable, Reason::Fixed("all links join at once", usable)),
            Policy::WifiFirst => {
                let reason = Reason::Fixed("the first link alone while it works", Links::one(home));
                Choice { spare: usable, ..Choice::new(Links::one(home), reason) }
            }
            Policy::Marline => self.ours(host, usable, home),
            _ => self.by_table(host, usable, home),
        };
        let gone = self.joined().without(usable);
        if let Some(link) = spent.and(self.joined().or(Links::one(home))).first() {
            choice.reason = Reason::Spent { links: choice.active, link };
        } else if host.config.policy == Policy::Marline && !gone.and(choice.active.or(self.active)).is_empty() {
            choice.reason = Reason::Needed { links: choice.active, lost: gone };
        } else if let Some((link, why)) = self.refused_by(host, usable) {
            choice.reason = Reason::Refused { links: choice.active, link, why };
        }
        choice.destroy = choice.destroy.or(spent);
        choice.spare = choice.spare.without(spent);
        choice
    }

    fn ours(&mut self, host: &Host, usable: Links, home: usize) -> Choice {
        if self.pulse == Pulse::Idle
            && !self.carrying().and(usable).is_empty()
            && !self.active.and(usable).is_empty()
        {
            if host.config.profile == Profile::Energy {
                return self.resting(host, usable, home);
            }
            let links = self.active.and(usable);
            return Choice::new(links, Reason::Idle { links });
        }
        match host.config.profile {
            Profile::Energy => self.cheapest(host, usable, home),
            Profile::Throughput => self.fastest(host, usable),
            Profile::Latency => self.shortest(host, usable, home),
            Profile::Metered => {
                let free = usable.iter().filter(|at| host.link(*at).is_some_and(|link| !link.terms.metered));
                let free = free.fold(Links::NONE, Links::with);
                if free.is_empty() {
                    return Choice::new(Links::one(home), Reason::Only { link: home });
                }
                let home = if free.has(home) { home } else { free.first().unwrap_or(home) };
                let choice = self.cheapest(host, free, home);
                let reason = if choice.active.len() == 1 {
                    Reason::Unmetered { links: choice.active }
                } else {
                    choice.reason
                };
                Choice { reason, ..choice }
            }
        }
    }

    /// The links that can carry it.
    fn usable(&self, host: &Host) -> Links {
        let joined = self.joined();
        let can = |at: &usize| {
            let alive = self.paths.get(*at).is_some_and(|path| path.dead.is_none());
            let open = host.link(*at).is_some_and(|link| !link.spent());
            alive && open && (joined.has(*at) || self.is_joinable(host, *at))
        };
        let usable = host.up().iter().filter(can).fold(Links::NONE, Links::with);
        match usable.is_empty() {
            // Better a path that seems dead than none.
            true => self.joined().and(host.up()).without(spent(host)),
            false => usable,
        }
    }

    /// A link that is up and whose join was refused.
    fn refused_by(&self, host: &Host, usable: Links) -> Option<(usize, Hindrance)> {
        let refused = |at: usize| Some((at, self.paths.get(at)?.refused?));
        host.up().without(usable).iter().find_map(refused)
    }
}

fn spent(host: &Host) -> Links {
    let spent = host.links.iter().enumerate().filter(|(_, link)| link.spent());
    spent.fold(Links::NONE, |links, (at, _)| links.with(at))
}
