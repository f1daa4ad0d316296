//! Which machines the pump drives: the download, and what stands on it.
//!
//! In: nothing. Out: what the pump needs of a machine besides the contract of [`Machine`].
//!
//! 1. A machine's input has room for everything that happens to a download, and its output is an order of the
//!    download's or a word of its own: so one pump drives them all, as the world of `sim` does.
//! 2. A log begins with the machine's configuration, from which the machine is made.
//!
//! A pump that owns a trait object was not used: the calls are the hot path of every download, and the log needs the
//! types.

use std::fmt::Debug;

use marline_core::fetch::{self, Fetch};
use marline_core::machine::Machine;
use marline_core::stream::{self, Stream, StreamEvent};
use serde::Serialize;

/// A machine that the pump drives.
pub(super) trait DownloadMachine:
    Machine<
        Input: From<fetch::Input> + Clone + Debug + Serialize,
        Output: Into<MachineOutput> + Clone + Debug + Serialize,
    >
{
    /// What it is made from.
    type Config: Clone + Serialize;

    /// As a log begins.
    fn from_config(config: Self::Config) -> Self;

    /// Where the download stands.
    fn status(&self) -> fetch::Status;
}

/// An output, as the pump understands it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum MachineOutput {
    /// On the network, or for the user.
    Fetch(fetch::Output),
    /// What only a stream says.
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
            stream::Output::Stream(said) => Self::Stream(said),
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
