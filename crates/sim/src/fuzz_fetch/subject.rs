//! Machines that the random histories can test.
//!
//! A download and a stream differ in their configuration, and a stream also gets inputs from a player. Everything
//! on the network is the same for both, so the driver needs only the methods of [`Subject`].

use marline_core::fetch::{self, Fetch};
use marline_core::machine::Machine;
use marline_core::stream::{self, PlayerInput, Stream};
use marline_core::units::DataSize;

/// A machine that a driver of downloads can run.
pub trait Subject:
    Machine<Input: From<fetch::Input> + Clone, Output: Into<stream::Output> + Clone + PartialEq> + Sized
{
    /// Configuration from which the machine is created, also at replay.
    type Config: Clone;

    /// Creates a machine; equal configurations must give equal machines.
    fn make(config: &Self::Config) -> Self;

    /// Progress of the download, by the machine's own accounting.
    fn status(&self) -> fetch::Status;

    /// Wraps an input of a player; `None` if the machine has no player.
    fn player_input(input: PlayerInput) -> Option<Self::Input>;

    /// The machine as a stream, if it is one.
    fn stream(&self) -> Option<&Stream>;

    /// Useful bytes by the machine's own count.
    fn useful_bytes(&self) -> DataSize {
        self.status().received
    }
}

impl Subject for Fetch {
    type Config = fetch::Config;

    fn make(config: &fetch::Config) -> Self {
        Self::new(config.clone())
    }

    fn status(&self) -> fetch::Status {
        self.status()
    }

    fn player_input(_viewer: PlayerInput) -> Option<fetch::Input> {
        None
    }

    fn stream(&self) -> Option<&Stream> {
        None
    }
}

impl Subject for Stream {
    type Config = stream::Config;

    fn make(config: &stream::Config) -> Self {
        Self::new(config.clone())
    }

    fn status(&self) -> fetch::Status {
        self.status()
    }

    fn player_input(input: PlayerInput) -> Option<stream::Input> {
        Some(input.into())
    }

    fn stream(&self) -> Option<&Stream> {
        Some(self)
    }
}
