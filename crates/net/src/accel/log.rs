//! The machine with its log: every input with its time, every output behind it (`docs/replay.md`).
//!
//! In: a file, perhaps. Out: the machine as it is, and lines for `marline replay`. A log that cannot be written any more is told
//! once and given up: packets do not wait for a disk that is full.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use marline_core::accel::{Accelerator, Config, Input, Output};
use marline_core::machine::Machine;
use marline_core::replay::Record;
use marline_core::units::Instant;

use super::AccelError;
use crate::get::log_file;

/// One line of a log.
pub type AccelRecord = Record<Config, Input, Output>;

/// The machine, and the file that hears what it hears.
#[derive(Debug)]
pub(super) struct Logged {
    machine: Accelerator,
    log: Option<(PathBuf, BufWriter<File>)>,
}

impl Logged {
    /// The log begins with the configuration that the machine is made from.
    pub(super) fn new(config: Config, trace: Option<&Path>) -> Result<Self, AccelError> {
        let open = |path: &Path| match log_file(path) {
            Ok(file) => Ok((path.to_owned(), BufWriter::new(file))),
            Err(error) => Err(AccelError::Unfit(format!("{}: the log cannot be written: {error}", path.display()))),
        };
        let mut logged = Self { machine: Accelerator::new(config.clone()), log: trace.map(open).transpose()? };
        logged.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        Ok(logged)
    }

    pub(super) fn machine(&self) -> &Accelerator {
        &self.machine
    }

    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        self.write(|| Record::In { at: now, input: input.clone() });
        self.machine.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        self.machine.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<Output> {
        let output = self.machine.poll()?;
        self.write(|| Record::Out { output: output.clone() });
        Some(output)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.machine.deadline().map(|(at, _)| at)
    }

    /// What was written so far is in the file from now on.
    pub(super) fn flush(&mut self) {
        if let Some((path, file)) = &mut self.log
            && let Err(error) = file.flush()
        {
            tracing::error!(file = %path.display(), %error, "the log ends here");
            self.log = None;
        }
    }

    fn write(&mut self, record: impl FnOnce() -> AccelRecord) {
        let Some((path, file)) = &mut self.log else { return };
        let written = serde_json::to_writer(&mut *file, &record()).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|()| file.write_all(b"\n")) {
            tracing::error!(file = %path.display(), %error, "the log ends here");
            self.log = None;
        }
    }
}
