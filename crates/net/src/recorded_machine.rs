//! A machine with its log: every input with its time, every output behind it (`docs/replay.md`).
//!
//! In: a file, perhaps. Out: the machine as it is, and lines for `marline replay`.
//!
//! 1. The first line is the configuration that the machine was made from.
//! 2. A log that cannot be written any more ends there, and never disturbs the work itself: [`Logged::failed`] says so once, to who
//!    asks.
//! 3. A daemon flushes it once a second: what a kill takes is no more than that.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

use marline_core::decision_log::Record;
use marline_core::machine::Machine;
use marline_core::units::Instant;
use serde::Serialize;

use crate::private_file::create_log;

/// The machine, and the file that hears what it hears.
#[derive(Debug)]
pub struct RecordedMachine<M, C> {
    machine: M,
    log_file: Option<LogFile>,
    error: Option<LogError>,
    config: PhantomData<C>,
}

/// An open log, with its path for messages.
pub type LogFile = (PathBuf, BufWriter<File>);

/// Which log cannot be written, and why.
pub type LogError = (PathBuf, io::Error);

/// Creates the file of a log, or empties an older one. While another run writes it, it is left alone.
///
/// # Errors
/// The file cannot be created, or another run writes it.
pub fn create_log_file(path: Option<PathBuf>) -> Result<Option<LogFile>, LogError> {
    let Some(path) = path else { return Ok(None) };
    match create_log(&path) {
        Ok(file) => Ok(Some((path, BufWriter::new(file)))),
        Err(error) => Err((path, error)),
    }
}

impl<M, C> RecordedMachine<M, C>
where
    M: Machine<Input: Clone + Serialize + std::fmt::Debug, Output: Clone + Serialize + std::fmt::Debug>,
    C: Serialize,
{
    /// The log begins with the configuration that the machine was made from.
    ///
    /// # Errors
    /// The log cannot be created.
    pub fn new(machine: M, config: C, path: Option<PathBuf>) -> Result<Self, LogError> {
        Ok(Self::with_log(machine, config, create_log_file(path)?))
    }

    /// The same with a log that was created before the configuration was known.
    pub fn with_log(machine: M, config: C, log_file: Option<LogFile>) -> Self {
        let mut recorded = Self { machine, log_file, error: None, config: PhantomData };
        recorded.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        recorded
    }

    /// The machine in its present state.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// Writes the input down and hands it to the machine.
    pub fn handle(&mut self, now: Instant, input: M::Input) {
        tracing::trace!(at = %now, ?input);
        if self.log_file.is_some() {
            self.write(|| Record::In { at: now, input: input.clone() });
        }
        self.machine.handle(now, input);
    }

    /// Writes down that time has passed, and tells the machine.
    pub fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        self.machine.tick(now);
    }

    /// The next output of the machine, written down.
    pub fn poll(&mut self) -> Option<M::Output> {
        let output = self.machine.poll()?;
        tracing::debug!(?output);
        if self.log_file.is_some() {
            self.write(|| Record::Out { output: output.clone() });
        }
        Some(output)
    }

    /// When the machine is to be called next; none: when something happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline().map(|(at, _)| at)
    }

    /// What was written so far is in the file from now on.
    pub fn flush(&mut self) {
        if let Some(Err(error)) = self.log_file.as_mut().map(|(_, file)| file.flush()) {
            self.fail(error);
        }
    }

    /// What went wrong with the log since the last time this was asked.
    pub fn take_error(&mut self) -> Option<LogError> {
        self.error.take()
    }

    /// Ends the log; the machine, unless something went wrong with the log.
    pub fn finish(mut self) -> Result<M, LogError> {
        self.flush();
        self.error.map_or(Ok(self.machine), Err)
    }

    fn write(&mut self, record: impl FnOnce() -> Record<C, M::Input, M::Output>) {
        let Some((_, file)) = &mut self.log_file else { return };
        let result = serde_json::to_writer(&mut *file, &record()).map_err(io::Error::from);
        if let Err(error) = result.and_then(|()| file.write_all(b"\n")) {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.error = self.log_file.take().map(|(path, _)| (path, error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says back what it hears.
    #[derive(Debug, Default)]
    struct Echo(Option<u8>);

    impl Machine for Echo {
        type Input = u8;
        type Output = u8;
        type Reason = ();
        fn handle(&mut self, _: Instant, input: u8) {
            self.0 = Some(input);
        }
        fn tick(&mut self, _: Instant) {}
        fn poll(&mut self) -> Option<u8> {
            self.0.take()
        }
        fn deadline(&self) -> Option<(Instant, ())> {
            None
        }
    }

    #[test]
    fn every_call_is_a_line_and_a_disk_that_is_full_ends_the_log_alone() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("log");
        let run = |path: PathBuf| {
            let mut recorded = RecordedMachine::new(Echo::default(), "set", Some(path)).unwrap();
            recorded.handle(Instant::ZERO, 7);
            assert_eq!((recorded.poll(), recorded.poll()), (Some(7), None));
            recorded.tick(Instant::ZERO);
            recorded.flush();
            recorded.take_error()
        };
        assert!(run(path.clone()).is_none());
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 4);
        assert_eq!(run("/dev/full".into()).unwrap().1.kind(), io::ErrorKind::StorageFull);
        RecordedMachine::new(Echo::default(), "set", Some(temp_dir.path().join("none/log"))).unwrap_err();
    }
}
