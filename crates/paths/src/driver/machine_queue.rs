//! The policy's machine with its clock and the outputs that are not executed yet.
//!
//! Polls are collected apart from other outputs: several requests to poll one connection are one poll, and all polls
//! of a round are sent to the kernel together.

use std::collections::{BTreeSet, VecDeque};

use marline_core::paths::{Config, ConnId, Input, Output};
use marline_core::units::Instant;
use marline_net::recorded_machine::{LogError, MachineEvent, RecordedMachine};

use super::Policy;

/// See the module documentation.
pub(super) struct MachineQueue<M> {
    machine: RecordedMachine<M, Config>,
    started: std::time::Instant,
    outputs: VecDeque<Output>,
    polls: BTreeSet<ConnId>,
}

impl<M: Policy> MachineQueue<M> {
    pub(super) fn new(machine: RecordedMachine<M, Config>) -> Self {
        Self { machine, started: std::time::Instant::now(), outputs: VecDeque::new(), polls: BTreeSet::new() }
    }

    /// Time since the start of the run.
    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// The system's time at which this time is reached.
    pub(super) fn system_time(&self, at: Instant) -> std::time::Instant {
        self.started + at.since(Instant::ZERO)
    }

    /// Passes an input to the machine and queues the outputs that it causes.
    pub(super) fn feed(&mut self, input: Input) {
        self.step(self.now(), MachineEvent::Input(input));
    }

    /// Ticks the machine if its deadline has come.
    pub(super) fn tick_if_due(&mut self, now: Instant) {
        if self.machine.is_due(now) {
            self.step(now, MachineEvent::Tick);
        }
    }

    /// One step of the machine. Its outputs are queued, because a command or a poll may have results at once.
    fn step(&mut self, now: Instant, event: MachineEvent<Input>) {
        let Self { machine, outputs, polls, .. } = self;
        machine.step(now, event, |output| match output {
            Output::Poll { conn } => drop(polls.insert(conn)),
            output => outputs.push_back(output),
        });
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// Whether outputs or polls wait for execution.
    pub(super) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty() || !self.polls.is_empty()
    }

    pub(super) fn take_outputs(&mut self) -> VecDeque<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub(super) fn request_poll(&mut self, conn: ConnId) {
        self.polls.insert(conn);
    }

    /// Drops the poll of a connection that has ended.
    pub(super) fn cancel_poll(&mut self, conn: ConnId) {
        self.polls.remove(&conn);
    }

    pub(super) fn take_polls(&mut self) -> BTreeSet<ConnId> {
        std::mem::take(&mut self.polls)
    }

    /// Writes buffered lines of the decision log.
    pub(super) fn flush(&mut self) {
        self.machine.flush();
    }

    /// Ends the decision log and returns the machine.
    pub(super) fn finish(self) -> Result<M, LogError> {
        self.machine.finish()
    }
}
