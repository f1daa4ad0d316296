//! The machine's outputs, executed by the kernel model: polls, joins, priorities, removals.
//!
//! Polls and commands are answered at once, as the kernel does over netlink; the effect of a join or an MP_PRIO follows later. Commands
//! about objects that were never reported are refused and recorded as invalid. Those about objects that are gone are only refused, since a
//! subflow may disappear while a command about it is in transit.

use marline_core::paths::{CloseReason, Command, CommandError, CommandId, ConnId, Input, Output, SubflowId};
use marline_core::units::Instant;

use super::{ConnStage, Event, KernelModel, SYN_TIMEOUT};

impl KernelModel {
    /// Executes an output of the machine.
    pub(in super::super) fn execute(&mut self, now: Instant, output: Output) {
        self.now = self.now.max(now);
        match output {
            Output::Poll { conn } => self.poll_counters(conn),
            Output::Command { id: command, conn, command: action } => self.execute_command(command, conn, action),
            Output::Note { reason, .. } => self.notes.push((self.now, reason)),
            // This model has no MTU limits.
            Output::SetMtu { .. } => {}
        }
    }

    fn poll_counters(&mut self, conn: ConnId) {
        let Some(conn_index) = self.known_conn(conn) else { return };
        for sub in self.conns[conn_index].subflows.clone() {
            if self.subflows[sub].is_open_at_client && self.subflows[sub].is_reported {
                let counters = self.counters(sub);
                self.machine_inputs.push_back(Input::Counters { conn, subflow: SubflowId(sub as u64), counters });
            }
        }
    }

    /// Index of a connection that is open and was reported to the machine.
    fn known_conn(&mut self, conn: ConnId) -> Option<usize> {
        let index = usize::try_from(conn.0).ok().filter(|at| *at < self.conns.len());
        let known = index.filter(|at| matches!(self.conns[*at].stage, ConnStage::Reported | ConnStage::Closed));
        if known.is_none() {
            self.invalid_commands.push(format!("{}: connection {} is not known", self.now, conn.0));
        }
        known.filter(|at| self.conns[*at].stage == ConnStage::Reported)
    }

    fn execute_command(&mut self, command: CommandId, conn: ConnId, action: Command) {
        let kind = match action {
            Command::Join { .. } => 0,
            Command::SetBackup { .. } => 1,
            Command::Destroy { .. } => 2,
        };
        self.command_counts[kind] += 1;
        self.command_times.push(self.now);
        let error = match self.known_conn(conn) {
            None => Some(CommandError::NoConnection),
            Some(at) => self.apply_command(at, action).err(),
        };
        self.machine_inputs.push_back(Input::CommandDone { command, error });
        // The kernel reports the end of a subflow after the response to the command.
        if let (Command::Destroy { subflow }, None) = (action, error)
            && let Ok(sub) = usize::try_from(subflow.0)
        {
            self.report_subflow_down(sub, CloseReason::Closed);
        }
    }

    fn apply_command(&mut self, conn: usize, action: Command) -> Result<(), CommandError> {
        match action {
            Command::Join { link, backup } => self.start_join(conn, usize::from(link.0), backup),
            Command::SetBackup { subflow, backup } => {
                let at = self.find_subflow(conn, subflow)?;
                let sub = &mut self.subflows[at];
                sub.client_backup = backup;
                sub.prio_lag = if backup && !sub.server_backup { sub.prio_lag.or(Some((0, None))) } else { None };
                let is_lost = self.rng.bernoulli(self.scenario.prio_loss);
                if let Some(arrival) = self.send_control(self.subflows[at].link).filter(|_| !is_lost) {
                    self.schedule_event(arrival, Event::MpPrioArrived(at, backup));
                }
                Ok(())
            }
            Command::Destroy { subflow } => {
                let at = self.find_subflow(conn, subflow)?;
                if let Some(arrival) = self.send_control(self.subflows[at].link) {
                    self.schedule_event(arrival, Event::ResetArrived(at));
                }
                Ok(())
            }
        }
    }

    fn find_subflow(&mut self, conn: usize, subflow: SubflowId) -> Result<usize, CommandError> {
        let at = usize::try_from(subflow.0).ok().filter(|at| *at < self.subflows.len());
        match at.filter(|at| self.subflows[*at].conn == conn && self.subflows[*at].is_reported) {
            Some(at) if self.subflows[at].is_open_at_client => Ok(at),
            Some(_) => Err(CommandError::NoSubflow),
            None => {
                self.invalid_commands.push(format!("{}: subflow {} is not known", self.now, subflow.0));
                Err(CommandError::NoSubflow)
            }
        }
    }

    fn start_join(&mut self, conn: usize, link: usize, backup: bool) -> Result<(), CommandError> {
        if self.links.get(link).is_none_or(|link| !link.has_carrier) {
            return Err(CommandError::NoAddress);
        }
        self.schedule_event(self.now, Event::Syn { conn, link, backup, attempt: 0 });
        Ok(())
    }

    /// Sends the SYN of a join; it is repeated until it is acknowledged or its retries are used up.
    pub(super) fn send_syn(&mut self, conn: usize, link: usize, backup: bool, attempt: u32) {
        if self.conns[conn].stage != ConnStage::Reported || !self.links[link].has_carrier {
            return;
        }
        match self.send_control(link).filter(|_| !self.links[link].next_is_lost()) {
            Some(arrival) => {
                self.schedule_event(arrival + self.links[link].rtt, Event::JoinArrived { conn, link, backup })
            }
            None if attempt < SYN_RETRIES => {
                self.schedule_event(
                    self.now + SYN_TIMEOUT * (1 << attempt),
                    Event::Syn { conn, link, backup, attempt: attempt + 1 },
                );
            }
            None => {}
        }
    }

    /// The third packet of a join has arrived at the server.
    pub(super) fn on_joined(&mut self, conn: usize, link: usize, backup: bool) {
        if self.conns[conn].stage != ConnStage::Reported || !self.links[link].carries_response(self.now) {
            return;
        }
        let open_subflows =
            self.conns[conn].subflows.iter().filter(|sub| self.subflows[**sub].is_open_at_server).count();
        let at = self.add_subflow(conn, link, backup, false);
        self.report_subflow_up(at);
        if open_subflows > self.scenario.server.max_joins {
            self.subflows[at].is_open_at_server = false;
            self.schedule_event(self.now + self.links[link].one_way_delay(), Event::JoinReset(at));
        } else {
            self.schedule_data(conn);
        }
    }
}

/// Retransmissions of a join's SYN, after 1 s and 3 s; then the join is abandoned.
const SYN_RETRIES: u32 = 2;
