//! What the machine asks for: looks, joins, priorities, ends.
//!
//! Each look and each command is answered at once, as the kernel does it over netlink; what comes of a join or of an
//! MP_PRIO comes later. Commands about what the machine was never told of, or was told the end of, are refused and noted
//! as nonsense, except that a subflow may end while its command is on the way.

use marline_core::paths::{CloseReason, Command, CommandError, CommandId, ConnId, Input, Output, SubflowId};
use marline_core::units::Instant;

use super::{Event, Kernel, SYN_AGAIN, Stage};

impl Kernel {
    /// Does what the machine asks.
    pub(in super::super) fn obey(&mut self, now: Instant, output: Output) {
        self.now = self.now.max(now);
        match output {
            Output::Poll { conn } => self.look(conn),
            Output::Command { id: command, conn, command: what } => self.command(command, conn, what),
            Output::Note { reason, .. } => self.notes.push((self.now, reason)),
            // Packets of any size pass here.
            Output::SetMtu { .. } => {}
        }
    }

    fn look(&mut self, conn: ConnId) {
        let Some(at) = self.known(conn) else { return };
        for sub in self.conns[at].subs.clone() {
            if self.subs[sub].here && self.subs[sub].told {
                let counters = self.counters(sub);
                self.inbox.push_back(Input::Counters { conn, subflow: SubflowId(sub as u64), counters });
            }
        }
    }

    /// A connection that is open and that the machine knows of.
    fn known(&mut self, conn: ConnId) -> Option<usize> {
        let at = usize::try_from(conn.0).ok().filter(|at| *at < self.conns.len());
        let told = at.filter(|at| matches!(self.conns[*at].stage, Stage::Told | Stage::Closed));
        if told.is_none() {
            self.nonsense.push(format!("{}: connection {} is not known", self.now, conn.0));
        }
        told.filter(|at| self.conns[*at].stage == Stage::Told)
    }

    fn command(&mut self, command: CommandId, conn: ConnId, what: Command) {
        let kind = match what {
            Command::Join { .. } => 0,
            Command::SetBackup { .. } => 1,
            Command::Destroy { .. } => 2,
        };
        self.commands[kind] += 1;
        self.commanded.push(self.now);
        let refused = match self.known(conn) {
            None => Some(CommandError::NoConnection),
            Some(at) => self.carry_out(at, what).err(),
        };
        self.inbox.push_back(Input::CommandDone { command, error: refused });
        // The kernel tells of a subflow's end behind the answer.
        if let (Command::Destroy { subflow }, None) = (what, refused)
            && let Ok(sub) = usize::try_from(subflow.0)
        {
            self.tell_down(sub, CloseReason::Closed);
        }
    }

    fn carry_out(&mut self, conn: usize, what: Command) -> Result<(), CommandError> {
        match what {
            Command::Join { link, backup } => self.join(conn, usize::from(link.0), backup),
            Command::SetBackup { subflow, backup } => {
                let at = self.subflow(conn, subflow)?;
                let sub = &mut self.subs[at];
                sub.backup = backup;
                sub.unheard = if backup && !sub.heard { sub.unheard.or(Some((0, None))) } else { None };
                let lost = self.random.happens(self.scene.prio_loss);
                if let Some(then) = self.control(self.subs[at].link).filter(|_| !lost) {
                    self.plan(then, Event::Prio(at, backup));
                }
                Ok(())
            }
            Command::Destroy { subflow } => {
                let at = self.subflow(conn, subflow)?;
                if let Some(then) = self.control(self.subs[at].link) {
                    self.plan(then, Event::Reset(at));
                }
                Ok(())
            }
        }
    }

    fn subflow(&mut self, conn: usize, subflow: SubflowId) -> Result<usize, CommandError> {
        let at = usize::try_from(subflow.0).ok().filter(|at| *at < self.subs.len());
        match at.filter(|at| self.subs[*at].conn == conn && self.subs[*at].told) {
            Some(at) if self.subs[at].here => Ok(at),
            Some(_) => Err(CommandError::NoSubflow),
            None => {
                self.nonsense.push(format!("{}: subflow {} is not known", self.now, subflow.0));
                Err(CommandError::NoSubflow)
            }
        }
    }

    fn join(&mut self, conn: usize, link: usize, backup: bool) -> Result<(), CommandError> {
        if self.links.get(link).is_none_or(|link| !link.carrier) {
            return Err(CommandError::NoAddress);
        }
        self.plan(self.now, Event::Syn { conn, link, backup, tries: 0 });
        Ok(())
    }

    /// A join's first packet goes out, again and again until it is answered or the driver ends it.
    pub(super) fn syn(&mut self, conn: usize, link: usize, backup: bool, tries: u32) {
        if self.conns[conn].stage != Stage::Told || !self.links[link].carrier {
            return;
        }
        match self.control(link).filter(|_| !self.links[link].loses()) {
            Some(then) => self.plan(then + self.links[link].rtt, Event::Joined { conn, link, backup }),
            None if tries < SYNS_AGAIN => {
                self.plan(self.now + SYN_AGAIN * (1 << tries), Event::Syn { conn, link, backup, tries: tries + 1 });
            }
            None => {}
        }
    }

    /// The third packet of a join has arrived.
    pub(super) fn joined(&mut self, conn: usize, link: usize, backup: bool) {
        if self.conns[conn].stage != Stage::Told || !self.links[link].answers(self.now) {
            return;
        }
        let there = self.conns[conn].subs.iter().filter(|sub| self.subs[**sub].there).count();
        let at = self.add_sub(conn, link, backup, false);
        self.tell_up(at);
        if there > self.scene.server.joins {
            self.subs[at].there = false;
            self.plan(self.now + self.links[link].way(), Event::Refused(at));
        } else {
            self.push(conn);
        }
    }
}

/// How often a join's SYN is sent again: after 1 s and 3 s, and then the driver ends it.
const SYNS_AGAIN: u32 = 2;
