//! MPTCP simulator: connections over several links, controlled by the policy of `marline paths` or by another
//! machine.
//!
//! [`MptcpSim`] runs an [`MptcpScenario`] (links with their events, downloads, the server's behavior) with a
//! machine that has the inputs and outputs of [`marline_core::paths`]. It returns an [`MptcpOutcome`]: times, bytes
//! and joules.
//!
//! 1. `kernel` models both kernels and the network: handshakes, MPTCP's scheduler, MP_PRIO, backups, reassembly.
//!    `sender` is the sender of a subflow, `link` a link with a [`RateSchedule`]. [`MptcpSim`] only drives the
//!    machine, with the duties listed in `core/paths/event.rs`. [`fuzz`] runs random histories.
//! 2. Only downloads are simulated, as in eMPTCP's evaluation (§3.6). The client sends requests, options and
//!    acknowledgements; they take half an RTT and no bandwidth. All but acknowledgements can be lost.
//! 3. Everything is an event at its own time, for a few packets together; there are no time steps. A quarter of a
//!    gigabyte takes a tenth of a second.
//! 4. The model follows measurements of upstream kernel MPTCP (6.18). A test checks the measured collapse on
//!    unequal links: 1 + 20 Mbit/s carry about 5.5 Mbit/s together, 2 + 20 about 13, 4 + 20 about 22.5.
//!
//! [`crate::http_sim`] does not fit: its connections fetch ranges over one link each. Its TCP simulates every
//! packet, which would take seconds for one row of a table here.

pub mod fuzz;
mod kernel;
mod link;
mod mdp_policy;
mod outcome;
mod rate_schedule;
mod reassembly;
mod scenario;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use marline_core::machine::Machine;
use marline_core::paths::{Input, Output};
use marline_core::units::Instant;

pub use kernel::PAYLOAD_SHARE;
pub use mdp_policy::MdpPolicy;
pub use outcome::{MptcpLinkOutcome, MptcpOutcome, ProgressSample};
pub use rate_schedule::RateSchedule;
pub use scenario::{
    CarrierChange, Flow, LinkArrival, MptcpScenario, MptcpServer, Request, download_workload, link_configs,
    page_workload,
};

use kernel::KernelModel;

/// A range of a connection's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DataRange {
    offset: u64,
    len: u64,
}

/// A simulation: a host with links, a server, and a machine that decides.
#[derive(Debug)]
pub struct MptcpSim<M> {
    kernel: KernelModel,
    machine: M,
    now: Instant,
}

impl<M: Machine<Input = Input, Output = Output>> MptcpSim<M> {
    /// A simulation at time zero; the machine is first informed about the links.
    ///
    /// # Panics
    /// If a link uses a trace that was not loaded.
    pub fn new(scenario: MptcpScenario, machine: M) -> Self {
        let kernel = KernelModel::new(scenario);
        let mut sim = Self { kernel, machine, now: Instant::ZERO };
        sim.kernel.report_links();
        sim.feed_inputs();
        sim
    }

    /// Runs until everything has been fetched and closed, or the scenario's time limit is reached.
    pub fn run(mut self) -> (MptcpOutcome, M) {
        self.run_until(Instant::FAR_FUTURE);
        (self.kernel.outcome(self.now), self.machine)
    }

    /// Runs until the end or until `until`, whichever is first.
    pub fn run_until(&mut self, until: Instant) {
        while !self.kernel.is_over() {
            let event = self.kernel.next_event().unwrap_or(Instant::FAR_FUTURE);
            let tick = self.machine.deadline().map_or(Instant::FAR_FUTURE, |(at, _)| at);
            let next = event.min(tick).max(self.now);
            if next > until || next == Instant::FAR_FUTURE {
                break;
            }
            self.now = next;
            if event <= tick {
                self.kernel.step();
            } else {
                self.machine.tick(self.now);
                self.drain();
            }
            self.feed_inputs();
        }
    }

    /// Replaces the machine, as after a restart of the daemon. The new one is informed about the links and the open
    /// connections; the old one is returned.
    pub fn replace_machine(&mut self, machine: M) -> M {
        let previous = std::mem::replace(&mut self.machine, machine);
        self.kernel.report_links();
        self.kernel.report_open_conns();
        self.feed_inputs();
        previous
    }

    /// The outcome so far, including the tails of the radios from now on.
    pub fn outcome(&self) -> MptcpOutcome {
        self.kernel.outcome(self.now)
    }

    /// Passes all pending inputs to the machine and executes its outputs.
    fn feed_inputs(&mut self) {
        while let Some(input) = self.kernel.next_input() {
            self.machine.handle(self.now, input);
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.kernel.execute(self.now, output);
        }
    }
}

/// A machine without outputs, for plain TCP.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NoPolicy;

impl Machine for NoPolicy {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, _now: Instant, _input: Input) {}

    fn tick(&mut self, _now: Instant) {}

    fn poll(&mut self) -> Option<Output> {
        None
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        None
    }
}

/// Pending inputs of the machine.
type InputQueue = VecDeque<Input>;
