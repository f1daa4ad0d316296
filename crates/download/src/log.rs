//! The machine of a download or stream with its decision log ([`crate::logged`]), and with the energy of what it does.

use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_core::stream;
use marline_core::units::Instant;

use super::machine::{DownloadMachine, MachineOutput};
use super::{DownloadEnergy, DownloadError};
use marline_net::logged::{self, Failed, Log};

/// One line of a download's log.
pub type FetchRecord = Record<Config, Input, Output>;

/// One line of a stream's log.
pub type StreamRecord = Record<stream::Config, stream::Input, stream::Output>;

/// The machine with its log.
#[derive(Debug)]
pub(super) struct Logged<M: DownloadMachine> {
    inner: logged::Logged<M, M::Config>,
    /// The energy of its transfers, if it is to be measured.
    pub(super) joules: Option<DownloadEnergy>,
}

/// Creates the file of a log, or empties an older one. While another run writes it, it is left alone.
pub(super) fn create(path: Option<&Path>) -> Result<Option<Log>, DownloadError> {
    logged::create(path.map(Path::to_owned)).map_err(unwritten)
}

fn unwritten((path, error): Failed) -> DownloadError {
    DownloadError::DecisionLog { path, error }
}

impl<M: DownloadMachine> Logged<M> {
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
            joules.on_input(now, &input);
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

    pub(super) fn poll(&mut self) -> Option<MachineOutput> {
        let order = self.inner.poll()?.into();
        if let (Some(joules), MachineOutput::Fetch(output)) = (&mut self.joules, &order) {
            joules.on_output(output);
        }
        Some(order)
    }

    /// Ends the log; tells what went wrong with it, which never disturbs the download itself.
    pub(super) fn finish(self) -> Result<(), DownloadError> {
        self.inner.finish().map(drop).map_err(unwritten)
    }
}
