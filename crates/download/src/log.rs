//! The state machine of a download or stream, together with its decision log ([`marline_net::recorded_machine`]) and its
//! energy meter.

use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_core::stream;
use marline_core::units::Instant;

use super::machine::{DownloadMachine, MachineOutput};
use super::{DownloadEnergy, DownloadError};
use marline_net::recorded_machine::{self, LogError, LogFile, MachineEvent};

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

    /// One step of the machine with an input that every machine accepts: passes the event and then the outputs to the
    /// energy meter as well. Returns when the next step is due.
    pub(super) fn step(
        &mut self,
        now: Instant,
        event: MachineEvent<Input>,
        execute: impl FnMut(MachineOutput),
    ) -> Option<Instant> {
        if let Some(energy_meter) = &mut self.energy_meter {
            match &event {
                MachineEvent::Input(input) => energy_meter.on_input(now, input),
                MachineEvent::Tick => energy_meter.tick(now),
            }
        }
        let event = match event {
            MachineEvent::Input(input) => MachineEvent::Input(input.into()),
            MachineEvent::Tick => MachineEvent::Tick,
        };
        self.step_own(now, event, execute)
    }

    /// One step with an input that only this type of machine accepts. It is no traffic, so it uses no energy.
    pub(super) fn step_own(
        &mut self,
        now: Instant,
        event: MachineEvent<M::Input>,
        mut execute: impl FnMut(MachineOutput),
    ) -> Option<Instant> {
        let Self { inner, energy_meter } = self;
        inner.step(now, event, |output| {
            let output = output.into();
            if let (Some(energy_meter), MachineOutput::Fetch(output)) = (&mut *energy_meter, &output) {
                energy_meter.on_output(output);
            }
            execute(output);
        })
    }

    /// When the machine waits for the next tick.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    /// Whether the machine waits for a tick by now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.inner.is_due(now)
    }

    /// Ends the log and returns the first error of writing it. Such an error never interrupts the download itself.
    pub(super) fn finish(self) -> Result<(), DownloadError> {
        self.inner.finish().map(drop).map_err(log_error)
    }
}
