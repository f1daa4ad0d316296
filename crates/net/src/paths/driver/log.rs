//! The machine with its log: every input with its time, every output behind it (`docs/replay.md`).
//!
//! The log of a daemon is flushed once a second: what a kill takes is no more than that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use marline_core::machine::Machine;
use marline_core::paths::{Config, Input, Output};
use marline_core::replay::Record;
use marline_core::units::Instant;

use super::super::PathsError;
use crate::get::log_file;

/// One line of a log.
pub type PathsRecord = Record<Config, Input, Output>;

/// The machine, and the file that hears what it hears.
#[derive(Debug)]
pub(super) struct Logged<M> {
    machine: M,
    log: Option<(PathBuf, BufWriter<File>)>,
    error: Option<PathsError>,
}

impl<M: Machine<Input = Input, Output = Output>> Logged<M> {
    /// The log begins with the configuration that the machine was made from.
    pub(super) fn new(machine: M, config: Config, trace: Option<PathBuf>) -> Result<Self, PathsError> {
        let open = |path: PathBuf| match log_file(&path) {
            Ok(file) => Ok((path, BufWriter::new(file))),
            Err(error) => Err(PathsError::Trace { path, error }),
        };
        let mut logged = Self { machine, log: trace.map(open).transpose()?, error: None };
        logged.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        Ok(logged)
    }

    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        tracing::trace!(at = %now, ?input);
        if self.log.is_some() {
            self.write(|| Record::In { at: now, input: input.clone() });
        }
        self.machine.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        self.machine.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<Output> {
        let output = self.machine.poll()?;
        tracing::debug!(?output);
        if self.log.is_some() {
            self.write(|| Record::Out { output: output.clone() });
        }
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
            self.error.get_or_insert(PathsError::Trace { path: path.clone(), error });
            self.log = None;
        }
    }

    /// Ends the log; tells what went wrong with it, which never disturbs the work itself.
    pub(super) fn finish(mut self) -> Result<M, PathsError> {
        self.flush();
        self.error.map_or(Ok(self.machine), Err)
    }

    fn write(&mut self, record: impl FnOnce() -> PathsRecord) {
        let Some((path, file)) = &mut self.log else { return };
        let written = serde_json::to_writer(&mut *file, &record()).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|()| file.write_all(b"\n")) {
            self.error = Some(PathsError::Trace { path: path.clone(), error });
            self.log = None;
        }
    }
}
