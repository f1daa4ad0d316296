//! Output of a machine as the simulator understands it, for all kinds of machines.

use marline_core::{fetch, stream};

/// An output, reduced to what the simulator executes.
#[derive(Clone, PartialEq, Debug)]
pub enum MachineOutput {
    /// A command of the download.
    Fetch(fetch::Output),
    /// The player may read all bytes before this offset.
    Deliver(u64),
    /// An output for reports only, which the simulator ignores.
    Ignored,
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
            stream::Output::Stream(stream::StreamEvent::Deliver { end }) => Self::Deliver(end),
            stream::Output::Stream(_) => Self::Ignored,
        }
    }
}
