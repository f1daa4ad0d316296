//! The machine of a download or stream with its decision log ([`crate::logged`]), and with the energy of what it does.

use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_core::stream;
use marline_core::units::Instant;

use super::driven::{Driven, Order};
use super::{GetError, Joules};
use marline_net::logged::{self, Failed, Log};

/// One line of a download's log.
pub type FetchRecord = Record<Config, Input, Output>;

/// One line of a stream's log.
pub type StreamRecord = Record<stream::Config, stream::Input, stream::Output>;

/// The machine with its log.
#[derive(Debug)]
pub(super) struct Logged<M: Driven> {
    inner: logged::Logged<M, M::Config>,
    /// The energy of its transfers, if it is to be measured.
    pub(super) joules: Option<Joules>,
}

/// Creates the file of a log, or empties an older one. While another run writes it, it is left alone.
pub(super) fn create(path: Option<&Path>) -> Result<Option<Log>, GetError> {
    logged::create(path.map(Path::to_owned)).map_err(unwritten)
}

fn unwritten((path, error): Failed) -> GetError {
    GetError::Trace { path, error }
}

impl<M: Driven> Logged<M> {
    pub(super) fn new(config: M::Config, log: Option<Log>) -> Self {
        let machine = M::from_config(config.clone());
        Self { inner: logged::Logged::with_log(machine, config, log), joules: None }
    }

    /// The machine in its present state.
    pub(super) const fn machine(&self) -> &M {
        self.inner.machine()
    }

    /// Something happened on the network, or the reader has taken something.
    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        if let Some(joules) = &mut self.joules {
            joules.input(now, &input);
        }
        self.handle_own(now, input.into());
    }

    /// Something happened of which only this machine knows.
    pub(super) fn handle_own(&mut self, now: Instant, input: M::Input) {
        self.inner.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        if let Some(joules) = &mut self.joules {
            joules.tick(now);
        }
        self.inner.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<Order> {
        let order = self.inner.poll()?.into();
        if let (Some(joules), Order::Fetch(output)) = (&mut self.joules, &order) {
            joules.output(output);
        }
        Some(order)
    }

    /// Ends the log; tells what went wrong with it, which never disturbs the download itself.
    pub(super) fn finish(self) -> Result<(), GetError> {
        self.inner.finish().map(drop).map_err(unwritten)
    }
}
