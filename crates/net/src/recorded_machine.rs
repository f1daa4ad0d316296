//! Runs a state machine and records its decision log: each input with its time, then the outputs that follow
//! (`docs/replay.md`).
//!
//! The log is optional. `marline replay` feeds a log to the same machine again and compares the outputs.
//!
//! 1. The first line is the configuration that the machine was created with.
//! 2. If the log cannot be written any more, it ends there, and the machine runs on undisturbed. [`RecordedMachine::take_error`]
//!    reports the error once.
//! 3. [`RecordedMachine::step`] is one step of an event loop: it records an event, passes it to the machine, executes
//!    all outputs, and returns when to step again. The executor is a callback that does not reach the machine, so that
//!    no input can come between the outputs of a step; results of commands are events of later steps.
//! 4. An event loop that needs more control calls `handle`, `tick` and `poll` itself: the accelerator must write down
//!    what it will acknowledge early before it executes the outputs, and it returns one of them as a packet verdict.
//! 5. Daemons flush the log once a second, so a process that is killed loses at most the last second of it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;
use std::path::PathBuf;

use marline_core::decision_log::Record;
use marline_core::machine::Machine;
use marline_core::units::Instant;
use serde::Serialize;

use crate::private_file::create_log;

/// A state machine, and the log that records all its inputs and outputs.
#[derive(Debug)]
pub struct RecordedMachine<M, C> {
    machine: M,
    log_file: Option<LogFile>,
    error: Option<LogError>,
    config: PhantomData<C>,
}

/// An open log, with its path for error messages.
pub type LogFile = (PathBuf, BufWriter<File>);

/// Path of a log that cannot be written, and the error.
pub type LogError = (PathBuf, io::Error);

/// What a machine processes in one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MachineEvent<I> {
    /// The driver reports an event, or the result of a command.
    Input(I),
    /// Only time has passed.
    Tick,
}

/// Creates the log file, or truncates an existing one. A log that another running process writes is not touched.
/// Returns `None` without a path.
///
/// # Errors
/// The file cannot be created, or another process writes it.
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
    /// Wraps `machine` and creates the log at `path`, which begins with the configuration of the machine. Without a
    /// path there is no log.
    ///
    /// # Errors
    /// The log cannot be created.
    pub fn new(machine: M, config: C, path: Option<PathBuf>) -> Result<Self, LogError> {
        Ok(Self::with_log(machine, config, create_log_file(path)?))
    }

    /// Like [`new`](Self::new), with a log that was created before the configuration was known.
    pub fn with_log(machine: M, config: C, log_file: Option<LogFile>) -> Self {
        let mut recorded = Self { machine, log_file, error: None, config: PhantomData };
        recorded.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        recorded
    }

    /// Read access to the machine: its state changes only through the recorded calls.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// Records an event and passes it to the machine, then records all outputs and passes them to `execute`.
    /// Returns when the next tick is due, for the timer of the event loop; `None`: only another input can change
    /// something.
    pub fn step(
        &mut self,
        now: Instant,
        event: MachineEvent<M::Input>,
        mut execute: impl FnMut(M::Output),
    ) -> Option<Instant> {
        match event {
            MachineEvent::Input(input) => self.handle(now, input),
            MachineEvent::Tick => self.tick(now),
        }
        while let Some(output) = self.poll() {
            execute(output);
        }
        self.deadline()
    }

    /// Whether the machine waits for a tick by now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|due| due <= now)
    }

    /// Records the input and passes it to the machine.
    pub fn handle(&mut self, now: Instant, input: M::Input) {
        tracing::trace!(at = %now, ?input);
        if self.log_file.is_some() {
            self.write(|| Record::In { at: now, input: input.clone() });
        }
        self.machine.handle(now, input);
    }

    /// Records that time has passed, and calls the machine's `tick`.
    pub fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        self.machine.tick(now);
    }

    /// Takes the next output of the machine and records it.
    pub fn poll(&mut self) -> Option<M::Output> {
        let output = self.machine.poll()?;
        tracing::debug!(?output);
        if self.log_file.is_some() {
            self.write(|| Record::Out { output: output.clone() });
        }
        Some(output)
    }

    /// When `tick` must be called next; `None`: only another input can change something.
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline().map(|(at, _)| at)
    }

    /// Writes all buffered records to the file.
    pub fn flush(&mut self) {
        if let Some(Err(error)) = self.log_file.as_mut().map(|(_, file)| file.flush()) {
            self.fail(error);
        }
    }

    /// The error that ended the log, returned once.
    pub fn take_error(&mut self) -> Option<LogError> {
        self.error.take()
    }

    /// Flushes and closes the log. Returns the machine, or the error if the log is incomplete.
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

    /// Outputs each input once.
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
    fn a_step_executes_all_outputs() {
        let mut recorded = RecordedMachine::new(Echo::default(), "set", None).unwrap();
        let mut executed = Vec::new();
        recorded.step(Instant::ZERO, MachineEvent::Input(7), |output| executed.push(output));
        let next = recorded.step(Instant::ZERO, MachineEvent::Tick, |output| executed.push(output));
        assert_eq!((executed, next), (vec![7], None));
        assert!(!recorded.is_due(Instant::ZERO));
    }

    #[test]
    fn each_call_writes_a_line_and_a_full_disk_ends_only_the_log() {
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
