//! What a machine asks of the world, whichever machine it is.

use marline_core::{fetch, stream};

/// An output, as the world understands it.
#[derive(Clone, PartialEq, Debug)]
pub enum MachineOutput {
    /// Something on the network.
    Fetch(fetch::Output),
    /// The player may read everything before this offset.
    Deliver(u64),
    /// Said for reports.
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
            stream::Output::Stream(stream::StreamEvent::Deliver { end: upto }) => Self::Deliver(upto),
            stream::Output::Stream(_) => Self::Ignored,
        }
    }
}
