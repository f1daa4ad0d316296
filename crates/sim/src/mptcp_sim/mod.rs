//! MPTCP connections over links, with the policy of `marline paths` (or another one) in command of them.
//!
//! In: a [`Scene`] (links and what happens to them, what is downloaded, how the server behaves) and a machine with the
//! words of [`marline_core::paths`]. Out: an [`Outcome`]: times, bytes and joules.
//!
//! 1. The kernel and the network are `kernel`: handshakes, MPTCP's scheduler, MP_PRIO, backups, reassembly. A subflow's
//!    sender is `sender`, a link `link` on a [`Course`]; [`World`] drives the machine as its driver is to do it
//!    (`core/paths/event.rs`), and this is all that it does. [`fuzz`] lets everything happen that can.
//! 2. Downloads only, as in eMPTCP's evaluation (§3.6). From the client go requests, options and acknowledgements; they
//!    take half a round trip and no bandwidth. All but acknowledgements can be lost.
//! 3. Everything is an event at its time, a few packets at a time; nothing happens in steps. A quarter of a gigabyte
//!    takes a tenth of a second.
//! 4. What kernel MPTCP does was measured (upstream, 6.18); a test holds the model to the collapse on unequal links that
//!    was measured there: 1 + 20 Mbit/s carry about 5.5 together, 2 + 20 about 13, 4 + 20 about 22.5.
//!
//! [`crate::http_sim`] was not used: its connections fetch ranges, one link each, and its TCP is a packet at a time, which
//! takes seconds for what is a row of a table here.

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

/// Bytes of a connection, by their place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DataRange {
    offset: u64,
    len: u64,
}

/// A host with links, a server, and a machine that decides.
#[derive(Debug)]
pub struct MptcpSim<M> {
    kernel: KernelModel,
    machine: M,
    now: Instant,
}

impl<M: Machine<Input = Input, Output = Output>> MptcpSim<M> {
    /// A scene at its beginning, with this machine; it hears of the links first.
    ///
    /// # Panics
    /// When the scene's links name traces that were not loaded.
    pub fn new(scenario: MptcpScenario, machine: M) -> Self {
        let kernel = KernelModel::new(scenario);
        let mut sim = Self { kernel, machine, now: Instant::ZERO };
        sim.kernel.report_links();
        sim.feed_inputs();
        sim
    }

    /// Runs to the end: everything has been fetched and closed, or the scene's limit is over.
    pub fn run(mut self) -> (MptcpOutcome, M) {
        self.run_until(Instant::FAR_FUTURE);
        (self.kernel.outcome(self.now), self.machine)
    }

    /// Runs to its end or to `until`, whichever is first.
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

    /// Another machine takes over, as after a restart of the daemon: it hears of the links and of the connections that
    /// run. Gives the old one.
    pub fn replace_machine(&mut self, machine: M) -> M {
        let previous = std::mem::replace(&mut self.machine, machine);
        self.kernel.report_links();
        self.kernel.report_open_conns();
        self.feed_inputs();
        previous
    }

    /// What came of it so far.
    pub fn outcome(&self) -> MptcpOutcome {
        self.kernel.outcome(self.now)
    }

    /// Tells the machine all that there is to tell, and does what it asks.
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

/// A machine that never asks for anything: what is in command of plain TCP.
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

/// What waits to be told.
type InputQueue = VecDeque<Input>;
