//! Makes TCP on one link faster, with a thin second link beside it and nothing changed at the server: Super-aggregation
//! (MobiCom 2009).
//!
//! In: packets of the primary link as they leave, and as they pass; answers of gateways; fetched bytes. Out: what leaves
//! instead, packets more over either link, packets for the own stack, and questions.
//!
//! 1. What is not understood, or is not known to be helped, leaves as it came. A flow is never quieter for longer than
//!    plain TCP would be: whatever is kept back has a deadline.
//! 2. What has come is what the own stack says: its ACKs and their SACK blocks. Packets that pass are only looked at for
//!    their time and for the heads of HTTP, so that nothing of the downward way depends on this.
//! 3. Each mechanism is a file, named as the component in the paper's figure 3; a flow puts them in their order (§3.4).

mod config;
mod event;
mod fetcher;
mod view;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::machine::Machine;
use crate::units::Instant;

pub use config::{Config, Helper, Mechanism, Mechanisms};
pub use event::{Bytes, Input, Output, Sight, Wake};
pub use fetcher::{Fetch, FetchId};
pub use view::{FlowView, LinkView};

/// Of a packet that is only looked at, so many bytes are shown: the longest headers of IP and TCP, with room for
/// extension headers of IPv6.
pub const SIGHT: usize = 160;

/// The machine. See the [module](self).
#[derive(Debug)]
pub struct Accelerator {
    config: Config,
    outputs: VecDeque<Output>,
}

impl Accelerator {
    /// A machine that knows no flow yet.
    pub fn new(config: Config) -> Self {
        Self { config, outputs: VecDeque::new() }
    }

    /// What it was told at the start.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// All flows, those that are known longest first.
    pub fn flows(&self, _now: Instant) -> Vec<FlowView> {
        Vec::new()
    }

    /// The links, the primary one first.
    pub fn links(&self, _now: Instant) -> Vec<LinkView> {
        Vec::new()
    }
}

impl Machine for Accelerator {
    type Input = Input;
    type Output = Output;
    type Reason = Wake;

    fn handle(&mut self, _now: Instant, input: Input) {
        if let Input::Leaving(packet) = input {
            self.outputs.push_back(Output::Leave(packet));
        }
    }

    fn tick(&mut self, _now: Instant) {}

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, Wake)> {
        None
    }
}
