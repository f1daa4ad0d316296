//! The machines that histories are made for.
//!
//! A download and a stream differ in what they are made from, and in that a stream hears of its player. Everything that
//! happens on the network is the same for both, so the driver asks only this of them.

use marline_core::fetch::{self, Fetch};
use marline_core::machine::Machine;
use marline_core::stream::{self, PlayerInput, Stream};
use marline_core::units::DataSize;

/// A machine that somebody can drive who knows the download's words.
pub trait Subject:
    Machine<Input: From<fetch::Input> + Clone, Output: Into<stream::Output> + Clone + PartialEq> + Sized
{
    /// What it is made from.
    type Config: Clone;

    /// Makes it.
    fn make(config: &Self::Config) -> Self;

    /// Where its download stands.
    fn status(&self) -> fetch::Status;

    /// The word of a player; none: it knows of no player.
    fn player_input(input: PlayerInput) -> Option<Self::Input>;

    /// The stream that it is, if it is one.
    fn stream(&self) -> Option<&Stream>;

    /// Useful bytes, as it counts them.
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

    fn player_input(viewer: PlayerInput) -> Option<stream::Input> {
        Some(viewer.into())
    }

    fn stream(&self) -> Option<&Stream> {
        Some(self)
    }
}
