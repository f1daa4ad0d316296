//! The state machine of a download or stream, together with its decision log ([`marline_net::logged`]) and its
//! energy meter.

use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_core::stream;
use marline_core::units::Instant;

use super::machine::{DownloadMachine, MachineOutput};
use super::{DownloadEnergy, DownloadError};
use marline_net::recorded_machine::{self, LogError, LogFile};

/// One record of a download's decision log.
pub type FetchRecord = Record<Config, Input, Output>;

/// One record of a stream's decision log.
pub type StreamRecord = Record<stream::Config, stream::Input, stream::Output>;

/// A machine with its decision log and energy meter.
#[derive(Debug)]
pub(super) struct Logged<M: DownloadMachine> {
    inner: recorded_machine::RecordedMachine<M, M::Config>,
    /// Energy meter of its transfers; none: energy is not measured.
    pub(super) energy_meter: Option<DownloadEnergy>,
}

/// Creates the file of a decision log, or truncates an older one. A log that another run is writing is not touched.
pub(super) fn create(path: Option<&Path>) -> Result<Option<LogFile>, DownloadError> {
    recorded_machine::create_log_file(path.map(Path::to_owned)).map_err(log_error)
}

fn log_error((path, error): LogError) -> DownloadError {
    DownloadError::DecisionLog { path, error }
}

impl<M: DownloadMachine> Logged<M> {
    pub(super) fn new(config: M::Config, log: Option<LogFile>) -> Self {
        let machine = M::from_config(config.clone());
        Self { inner: recorded_machine::RecordedMachine::with_log(machine, config, log), energy_meter: None }
    }

    /// The machine, for reading its state.
    pub(super) const fn machine(&self) -> &M {
        self.inner.machine()
    }

    /// Passes an input that every machine accepts to the energy meter and the machine.
    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        if let Some(energy_meter) = &mut self.energy_meter {
            energy_meter.on_input(now, &input);
        }
        self.handle_own(now, input.into());
    }

    /// Passes an input that only this type of machine accepts.
    pub(super) fn handle_own(&mut self, now: Instant, input: M::Input) {
        self.inner.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        if let Some(energy_meter) = &mut self.energy_meter {
            energy_meter.tick(now);
        }
        self.inner.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<MachineOutput> {
        let machine_output = self.inner.poll()?.into();
        if let (Some(energy_meter), MachineOutput::Fetch(output)) = (&mut self.energy_meter, &machine_output) {
            energy_meter.on_output(output);
        }
        Some(machine_output)
    }

    /// Ends the log and returns the first error of writing it. Such an error never interrupts the download itself.
    pub(super) fn finish(self) -> Result<(), DownloadError> {
        self.inner.finish().map(drop).map_err(log_error)
    }
}
