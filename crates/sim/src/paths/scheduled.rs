//! The schedule of a Markov decision process ([`crate::optimum::mdp`]) in command of connections (eMPTCP §4.6).
//!
//! In: the schedule, and the courses of both links, whose rates it knows at each second's beginning. Out: commands: one
//! link carries for a second, the other one stands by.
//!
//! 1. The second link is joined when the schedule first wants it, and not before.
//! 2. The second radio counts as awake for its tail after the last second in which it was used.
//! 3. A rate is that of the link, and not one that was measured: an observer of the state has nothing to find out.
//!
//! A connection cannot be told over which link a byte is to go; both links as priorities is what its client has.

use std::collections::{BTreeMap, VecDeque};

use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::paths::{Command, CommandId, ConnId, Input, Output, SubflowId};
use marline_core::units::{Duration, Instant};

use super::Course;
use crate::optimum::mdp::{Chain, Choice, Schedule};

/// A schedule from outside, as a policy. Links are numbered from zero.
#[derive(Debug)]
pub struct Scheduled {
    schedule: Schedule,
    links: [(Chain, Course); 2],
    /// The second radio's tail.
    tail: Duration,
    conns: BTreeMap<ConnId, Conn>,
    choice: Choice,
    /// The end of the last second in which the second one was used.
    used: Option<Instant>,
    next: Instant,
    commands: u64,
    out: VecDeque<Output>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Conn {
    /// By link: the subflow, and whether it was asked to be a backup.
    subflows: [Option<(SubflowId, bool)>; 2],
    /// The second link is being joined.
    asked: bool,
}

/// The unit of time of the process.
const STEP: Duration = Duration::from_secs(1);

impl Scheduled {
    /// In command from the beginning on.
    pub fn new(schedule: Schedule, links: [(Chain, Course); 2], tail: Duration) -> Self {
        let mut new = Self {
            schedule,
            links,
            tail,
            conns: BTreeMap::new(),
            choice: Choice::First,
            used: None,
            next: Instant::ZERO,
            commands: 0,
            out: VecDeque::new(),
        };
        new.tick(Instant::ZERO);
        new
    }

    /// Brings a connection to where the schedule is: what is to carry first, so that something always does.
    fn steer(&mut self, id: ConnId) {
        let Some(mut conn) = self.conns.get(&id).copied() else { return };
        let (carries, rests) = if self.choice == Choice::First { (0, 1) } else { (1, 0) };
        match conn.subflows[carries] {
            Some((subflow, true)) => {
                conn.subflows[carries] = Some((subflow, false));
                self.command(id, Command::SetBackup { subflow, backup: false });
            }
            None if carries == 1 && !conn.asked => {
                conn.asked = true;
                self.command(id, Command::Join { link: LinkId(1), backup: false });
            }
            _ => {}
        }
        if let ([Some(_), Some(_)], Some((subflow, false))) = (conn.subflows, conn.subflows[rests]) {
            conn.subflows[rests] = Some((subflow, true));
            self.command(id, Command::SetBackup { subflow, backup: true });
        }
        self.conns.insert(id, conn);
    }

    fn command(&mut self, conn: ConnId, what: Command) {
        let command = CommandId(self.commands);
        self.commands += 1;
        self.out.push_back(Output::Command { id: command, conn, command: what });
    }
}

impl Machine for Scheduled {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, _now: Instant, input: Input) {
        let place = |link: Option<LinkId>| link.map(|link| usize::from(link.0)).filter(|link| *link < 2);
        match input {
            Input::Opened { conn, .. } => drop(self.conns.insert(conn, Conn::default())),
            Input::Closed { conn } => drop(self.conns.remove(&conn)),
            Input::SubflowUp { conn, subflow } => {
                if let (Some(known), Some(link)) = (self.conns.get_mut(&conn), place(subflow.link)) {
                    known.subflows[link] = Some((subflow.id, subflow.backup));
                    known.asked &= link != 1;
                }
                self.steer(conn);
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
        if now < self.next {
            return;
        }
        let [first, second] = [0, 1].map(|at| self.links[at].0.level(self.links[at].1.rate(now)));
        let awake = self.used.is_some_and(|used| now.since(used) < self.tail);
        self.choice = self.schedule.choice(first, second, awake);
        self.next = now + STEP;
        if self.choice == Choice::Second {
            self.used = Some(self.next);
        }
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.steer(conn));
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        Some((self.next, ()))
    }
}
