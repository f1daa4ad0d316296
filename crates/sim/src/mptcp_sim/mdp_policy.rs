//! The schedule of a Markov decision process ([`crate::clairvoyant::mdp`]) as a policy for MPTCP connections
//! (eMPTCP §4.6).
//!
//! From the schedule and the rates of both links, which it knows at the beginning of each second, it derives
//! commands. One link carries data for a second, the other one is a backup.
//!
//! 1. The second link is joined when the schedule first selects it.
//! 2. The second radio counts as awake until its tail has ended after the last second of use.
//! 3. Rates are those of the link itself, not measured ones, so the policy suffers no estimation errors.
//!
//! A connection cannot choose the link of each byte; a client can only set the priorities of both links.

use std::collections::{BTreeMap, VecDeque};

use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::paths::{Command, CommandId, ConnId, Input, Output, SubflowId};
use marline_core::units::{Duration, Instant};

use super::RateSchedule;
use crate::clairvoyant::mdp::{InterfaceChoice, MdpSchedule, RateChain};

/// Executes a given schedule; links are numbered from zero.
#[derive(Debug)]
pub struct MdpPolicy {
    schedule: MdpSchedule,
    links: [(RateChain, RateSchedule); 2],
    /// Tail time of the second radio.
    tail_time: Duration,
    conns: BTreeMap<ConnId, ScheduledConn>,
    choice: InterfaceChoice,
    /// End of the last second in which the second link was used.
    second_used_until: Option<Instant>,
    next_decision: Instant,
    command_count: u64,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Default, Debug)]
struct ScheduledConn {
    /// For each link, the subflow and whether it was made a backup.
    subflows: [Option<(SubflowId, bool)>; 2],
    /// Whether a join on the second link is in progress.
    join_requested: bool,
}

/// The process's unit of time.
const DECISION_INTERVAL: Duration = Duration::from_secs(1);

impl MdpPolicy {
    /// A policy that makes its first decision at time zero.
    pub fn new(schedule: MdpSchedule, links: [(RateChain, RateSchedule); 2], tail: Duration) -> Self {
        let mut new = Self {
            schedule,
            links,
            tail_time: tail,
            conns: BTreeMap::new(),
            choice: InterfaceChoice::First,
            second_used_until: None,
            next_decision: Instant::ZERO,
            command_count: 0,
            outputs: VecDeque::new(),
        };
        new.tick(Instant::ZERO);
        new
    }

    /// Applies the decision to a connection. The active link is enabled first, so that one link is always usable.
    fn apply_choice(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.get(&id).copied() else { return };
        let (active, standby) = if self.choice == InterfaceChoice::First { (0, 1) } else { (1, 0) };
        match conn.subflows[active] {
            Some((subflow, true)) => {
                conn.subflows[active] = Some((subflow, false));
                self.command(id, Command::SetBackup { subflow, backup: false });
            }
            None if active == 1 && !conn.join_requested => {
                conn.join_requested = true;
                self.command(id, Command::Join { link: LinkId(1), backup: false });
            }
            _ => {}
        }
        if let ([Some(_), Some(_)], Some((subflow, false))) = (conn.subflows, conn.subflows[standby]) {
            conn.subflows[standby] = Some((subflow, true));
            self.command(id, Command::SetBackup { subflow, backup: true });
        }
        self.conns.insert(id, conn);
    }

    fn command(&mut self, conn: ConnId, action: Command) {
        let command = CommandId(self.command_count);
        self.command_count += 1;
        self.outputs.push_back(Output::Command { id: command, conn, command: action });
    }
}

impl Machine for MdpPolicy {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, _now: Instant, input: Input) {
        let link_index = |link: Option<LinkId>| link.map(|link| usize::from(link.0)).filter(|link| *link < 2);
        match input {
            Input::Opened { conn, .. } => drop(self.conns.insert(conn, ScheduledConn::default())),
            Input::Closed { conn } => drop(self.conns.remove(&conn)),
            Input::SubflowUp { conn, subflow } => {
                if let (Some(conn_state), Some(link)) = (self.conns.get_mut(&conn), link_index(subflow.link)) {
                    conn_state.subflows[link] = Some((subflow.id, subflow.backup));
                    conn_state.join_requested &= link != 1;
                }
                self.apply_choice(conn);
            }
            Input::SubflowDown { conn, subflow, .. } => {
                for known in self.conns.get_mut(&conn).into_iter().flat_map(|conn| &mut conn.subflows) {
                    *known = known.filter(|(id, _)| *id != subflow);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        if now < self.next_decision {
            return;
        }
        let [first, second] = [0, 1].map(|at| self.links[at].0.level(self.links[at].1.rate_at(now)));
        let awake = self.second_used_until.is_some_and(|used| now.since(used) < self.tail_time);
        self.choice = self.schedule.choice(first, second, awake);
        self.next_decision = now + DECISION_INTERVAL;
        if self.choice == InterfaceChoice::Second {
            self.second_used_until = Some(self.next_decision);
        }
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.apply_choice(conn));
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        Some((self.next_decision, ()))
    }
}
