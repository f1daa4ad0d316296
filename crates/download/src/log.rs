//! The machine with its log: every input with its time, every output behind it (design §2; `docs/replay.md`).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Input, Output};
use marline_core::stream;
use marline_core::units::Instant;
use marline_net::private_file::create_log;

use super::driven::{Driven, Order};
use super::{GetError, Joules};

/// One line of a download's log.
pub type FetchRecord = Record<Config, Input, Output>;

/// One line of a stream's log.
pub type StreamRecord = Record<stream::Config, stream::Input, stream::Output>;

/// The machine, and the file that hears what it hears.
#[derive(Debug)]
pub(super) struct Logged<M> {
    pub(super) machine: M,
    /// The joules of it, if somebody wants to know them.
    pub(super) joules: Option<Joules>,
    log: Option<Log>,
    error: Option<GetError>,
}

/// An open log, with its path for messages.
pub(super) type Log = (PathBuf, BufWriter<File>);

/// Creates the file of a log, or empties an older one. While another run writes it, it is left alone.
pub(super) fn create(path: Option<&Path>) -> Result<Option<Log>, GetError> {
    let Some(path) = path else { return Ok(None) };
    let file = create_log(path).map_err(|error| GetError::Trace { path: path.to_owned(), error })?;
    Ok(Some((path.to_owned(), BufWriter::new(file))))
}

impl<M: Driven> Logged<M> {
    pub(super) fn new(config: M::Config, log: Option<Log>) -> Self {
        let mut logged = Self { machine: M::from_config(config.clone()), joules: None, log, error: None };
        logged.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        logged
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
        tracing::trace!(at = %now, ?input);
        self.write(|| Record::In { at: now, input: input.clone() });
        self.machine.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        if let Some(joules) = &mut self.joules {
            joules.tick(now);
        }
        self.machine.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<Order> {
        let output = self.machine.poll()?;
        tracing::debug!(?output);
        self.write(|| Record::Out { output: output.clone() });
        let order = output.into();
        if let (Some(joules), Order::Fetch(output)) = (&mut self.joules, &order) {
            joules.output(output);
        }
        Some(order)
    }

    /// Ends the log; tells what went wrong with it, which never disturbs the download itself.
    pub(super) fn finish(mut self) -> Result<(), GetError> {
        if let Some((path, file)) = &mut self.log
            && let Err(error) = file.flush()
        {
            self.error.get_or_insert(GetError::Trace { path: path.clone(), error });
        }
        self.error.map_or(Ok(()), Err)
    }

    fn write(&mut self, record: impl FnOnce() -> Record<M::Config, M::Input, M::Output>) {
        let Some((path, file)) = &mut self.log else { return };
        let written = serde_json::to_writer(&mut *file, &record()).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|()| file.write_all(b"\n")) {
            self.error = Some(GetError::Trace { path: path.clone(), error });
            self.log = None;
        }
    }
}
