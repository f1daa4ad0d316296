//! The interface that the driver needs from a state machine: implemented by `Fetch` (a download) and by `Stream` (a
//! download that feeds a player).
//!
//! 1. Every machine accepts the inputs of a download. Its outputs are those of a download, or stream events. So one
//!    driver serves all machines, as the simulated world of `sim` does.
//! 2. A decision log begins with the machine's configuration, so that a replay can construct the machine.
//!
//! A trait object was rejected: these calls are on the hot path of every download, and the log needs the concrete
//! types.

use std::fmt::Debug;

use marline_core::fetch::{self, Fetch};
use marline_core::machine::Machine;
use marline_core::stream::{self, Stream, StreamEvent};
use serde::Serialize;

/// A state machine that the driver can run.
pub(super) trait DownloadMachine:
    Machine<
        Input: From<fetch::Input> + Clone + Debug + Serialize,
        Output: Into<MachineOutput> + Clone + Debug + Serialize,
    >
{
    /// The configuration: the first record of a decision log.
    type Config: Clone + Serialize;

    /// Constructs the machine in its initial state.
    fn from_config(config: Self::Config) -> Self;

    /// The progress of the download: its size, received bytes, and the status of each link.
    fn status(&self) -> fetch::Status;
}

/// An output of either machine, in the form that the driver executes.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum MachineOutput {
    /// A command for the network, or a notice for the user.
    Fetch(fetch::Output),
    /// An event that only streams have (delivery, link mode).
    Stream(StreamEvent),
}

impl From<fetch::Output> for MachineOutput {
    fn from(output: fetch::Output) -> Self {
        Self::Fetch(output)
    }
}

impl From<stream::Output> for MachineOutput {
    fn from(output: stream::Output) -> Self {
        match output {
            stream::Output::Fetch(output) => Self::Fetch(output),
            stream::Output::Stream(event) => Self::Stream(event),
        }
    }
}

impl DownloadMachine for Fetch {
    type Config = fetch::Config;

    fn from_config(config: fetch::Config) -> Self {
        Self::new(config)
    }

    fn status(&self) -> fetch::Status {
        Self::status(self)
    }
}

impl DownloadMachine for Stream {
    type Config = stream::Config;

    fn from_config(config: stream::Config) -> Self {
        Self::new(config)
    }

    fn status(&self) -> fetch::Status {
        Self::status(self)
    }
}
