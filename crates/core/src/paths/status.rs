//! Status of connections and links, for `status` output, explanations and reports.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::conn::Conn;
use super::policy::expected_bytes;
use super::{ConnId, Paths, SubflowId, reason};
use crate::energy::{EnergyBreakdown, RadioState};
use crate::link::LinkId;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Status of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnStatus {
    /// The connection.
    pub conn: ConnId,
    /// Short state: `waiting`, `idle`, or the names of the links that carry it, followed by `only` if there is one.
    pub state: String,
    /// Time at which it was reported to the machine.
    pub opened: Instant,
    /// Bytes carried so far, in both directions.
    pub carried: DataSize,
    /// Bytes that it is expected to carry in the future.
    pub expected: DataSize,
    /// Reason of the present decision: one sentence with figures.
    pub reason: String,
    /// Its subflows, without those being closed.
    pub subflows: Vec<SubflowStatus>,
}

/// Status of a subflow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubflowStatus {
    /// The subflow.
    pub subflow: SubflowId,
    /// Its link; `None`: an unknown link.
    pub link: Option<LinkId>,
    /// Whether it is the connection's initial subflow.
    pub initial: bool,
    /// Whether it was requested as a backup.
    pub backup: bool,
    /// Whether a change of its priority has not shown in its byte counters yet.
    pub is_priority_pending: bool,
    /// Median rate of its path over the last two seconds of samples; `None`: there is no sample yet, or none since the
    /// connection was idle or the path had an outage.
    pub rate: Option<Bitrate>,
    /// RTT, including the queueing delay as seen by the receiver.
    pub rtt: Duration,
    /// Bytes carried so far, in both directions.
    pub carried: DataSize,
    /// Whether its path counts as dead.
    pub is_dead: bool,
}

/// Status of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The link.
    pub link: LinkId,
    /// Its name, from the configuration.
    pub name: String,
    /// Whether each byte costs money.
    pub metered: bool,
    /// Whether it can carry subflows.
    pub up: bool,
    /// Whether a liveness probe failed on it, and nothing was received over it since.
    pub is_unresponsive: bool,
    /// Expected throughput of all connections together: the present one, or the last one; an assumed one if it was
    /// never used.
    pub rate: Bitrate,
    /// Whether connections use it now.
    pub is_used: bool,
    /// Payload bytes that connections carried over it, in both directions.
    pub carried: DataSize,
    /// Remaining budget; `None`: unlimited.
    pub budget_left: Option<DataSize>,
    /// State of its radio; `None`: the energy model does not describe it.
    pub radio: Option<RadioState>,
}

impl Paths {
    /// All known connections.
    pub fn conn_ids(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.conns.keys().copied()
    }

    /// Status of one connection.
    pub fn conn_status(&self, conn: ConnId) -> Option<ConnStatus> {
        let conn = self.conns.get(&conn)?;
        let name = |index: usize| self.host.link_name(index);
        let path = |sub: &super::subflow::Subflow| {
            let path = sub.link.and_then(|index| conn.subflows.paths.get(index));
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
            opened: conn.traffic.opened(),
            carried: DataSize::from_bytes(conn.traffic.volume),
            expected: expected_bytes(&self.host, &conn.subflows, &conn.traffic, conn.initial_link),
            reason: conn.explanation.reason.sentence(name),
            subflows: conn.subflows.all.iter().filter(|sub| !sub.is_closing).map(path).collect(),
        })
    }

    fn state(&self, conn: &Conn) -> String {
        if !conn.polling.is_busy() {
            return "idle".to_string();
        }
        if matches!(conn.explanation.reason, reason::Reason::Waiting { .. })
            && conn.subflows.carrying_links().len() == 1
        {
            return "waiting".to_string();
        }
        let carrying = conn.subflows.carrying_links();
        let mut text = reason::link_names(carrying, &|index| self.host.link_name(index));
        if carrying.len() == 1 {
            text.push_str(" only");
        }
        text
    }

    /// Status of all links.
    pub fn link_statuses(&self) -> impl Iterator<Item = LinkStatus> + '_ {
        let states = move |link: LinkId| self.host.meter.radio(link).map(|radio| radio.state(self.host.now));
        self.host.links.iter().map(move |link| LinkStatus {
            link: link.config.id,
            name: link.config.name.clone(),
            metered: link.config.metered,
            up: link.up,
            is_unresponsive: link.is_unresponsive(),
            rate: link.rate(&self.host.config, self.host.now),
            is_used: link.is_used(),
            carried: link.carried,
            budget_left: link.budget_left(),
            radio: states(link.config.id),
        })
    }

    /// Energy that the radios drew up to `now`.
    pub fn energy_so_far(&self, now: Instant) -> EnergyBreakdown {
        self.host.meter.energy_so_far(now)
    }

    /// Energy that the radios drew up to `now`, plus what they draw until they are idle if no more traffic follows.
    pub fn energy_until_idle(&self, now: Instant) -> EnergyBreakdown {
        self.host.meter.energy_until_idle(now)
    }
}
