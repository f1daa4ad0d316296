//! What the machine knows, for status, explanations and reports.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::conn::{Activity, Conn};
use super::{ConnId, Paths, SubflowId, reason};
use crate::energy::{EnergyBreakdown, RadioState};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// A connection as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnStatus {
    /// Which.
    pub conn: ConnId,
    /// In a word or two: `waiting`, `idle`, or the names of the links that carry it, with `only` behind one alone.
    pub state: String,
    /// Since when it is known.
    pub opened: Instant,
    /// All that it carried, both ways.
    pub carried: DataSize,
    /// What it is expected to carry yet.
    pub expected: DataSize,
    /// Why it is carried so: one sentence with figures.
    pub reason: String,
    /// Its subflows.
    pub subflows: Vec<SubflowStatus>,
}

/// A subflow as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubflowStatus {
    /// Which.
    pub subflow: SubflowId,
    /// Over which link; none: one that nobody told of.
    pub link: Option<LinkId>,
    /// Whether it is the connection's first one.
    pub initial: bool,
    /// Whether it was asked to stand by.
    pub backup: bool,
    /// Whether that has not shown yet in its bytes.
    pub is_priority_pending: bool,
    /// The median rate of the last two seconds in which it carried; none: it never did.
    pub rate: Option<Bitrate>,
    /// The round trip, with the queue as the receiver sees it.
    pub rtt: Duration,
    /// All that it carried, both ways.
    pub carried: DataSize,
    /// Whether its path is taken for dead.
    pub is_dead: bool,
}

/// A link as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// Which.
    pub link: LinkId,
    /// Its name.
    pub name: String,
    /// Whether each byte costs money.
    pub metered: bool,
    /// Whether it can carry subflows.
    pub up: bool,
    /// Whether a proof of life failed on it, and nothing has come over it since.
    pub is_silent: bool,
    /// What is expected of it: of all connections together, now or last; assumed where it was never used.
    pub rate: Bitrate,
    /// Whether connections use it now.
    pub is_used: bool,
    /// Payload that connections carried over it, both ways.
    pub carried: DataSize,
    /// What its budget still allows; none: it has none.
    pub budget_left: Option<DataSize>,
    /// What its radio does; none: the model does not describe it.
    pub radio: Option<RadioState>,
}

impl Paths {
    /// The connections that it knows.
    pub fn conn_ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.keys().copied()
    }

    /// One of them.
    pub fn conn_status(&self, conn: ConnId) -> Option<ConnStatus> {
        let conn = self.conns.get(&conn)?;
        let name = |index: usize| self.host.link_name(index);
        let path = |sub: &super::subflow::Subflow| {
            let path = sub.link.and_then(|index| conn.paths.get(index));
            SubflowStatus {
                subflow: sub.id,
                link: sub.link.and_then(|index| self.host.link(index)).map(|link| link.config.id),
                initial: sub.initial,
                backup: sub.backup,
                is_priority_pending: sub.pending_drain().is_some(),
                rate: path.and_then(|path| path.throughput.median()),
                rtt: sub.rtt(),
                carried: DataSize::from_bytes(sub.volume()),
                is_dead: path.is_some_and(|path| path.dead.is_some()),
            }
        };
        Some(ConnStatus {
            conn: conn.id,
            state: self.state(conn),
            opened: conn.opened,
            carried: DataSize::from_bytes(conn.volume),
            expected: conn.expected_bytes(&self.host),
            reason: conn.reason.sentence(name),
            subflows: conn.subflows.iter().filter(|sub| !sub.is_closing).map(path).collect(),
        })
    }

    fn state(&self, conn: &Conn) -> String {
        if conn.activity == Activity::Idle {
            return "idle".to_string();
        }
        if matches!(conn.reason, reason::Reason::Waiting { .. }) && conn.carrying_links().len() == 1 {
            return "waiting".to_string();
        }
        let carrying = conn.carrying_links();
        let mut text = reason::link_names(carrying, &|index| self.host.link_name(index));
        if carrying.len() == 1 {
            text.push_str(" only");
        }
        text
    }

    /// The links.
    pub fn link_statuses(&self) -> impl Iterator<Item = LinkStatus> + '_ {
        let states = move |link: LinkId| self.host.meter.radio(link).map(|radio| radio.state(self.host.now));
        self.host.links.iter().map(move |link| LinkStatus {
            link: link.config.id,
            name: link.config.name.clone(),
            metered: link.config.metered,
            up: link.up,
            is_silent: link.is_silent(),
            rate: link.rate(&self.host.config, self.host.now),
            is_used: link.is_used(),
            carried: link.carried,
            budget_left: link.budget_left(),
            radio: states(link.config.id),
        })
    }

    /// What the radios drew up to `now`.
    pub fn energy_so_far(&self, now: Instant) -> EnergyBreakdown {
        self.host.meter.energy_so_far(now)
    }

    /// The same, and what they draw until they sleep if nothing more comes.
    pub fn energy_until_idle(&self, now: Instant) -> EnergyBreakdown {
        self.host.meter.energy_until_idle(now)
    }
}
