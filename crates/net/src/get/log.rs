//! The machine with its log: every input with its time, every output behind it (design §2; `docs/replay.md`).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use marline_core::fetch::{Config, Fetch, Input, Output};
use marline_core::machine::Machine as _;
use marline_core::replay::Record;
use marline_core::units::Instant;

use super::{GetError, Joules};

/// One line of a download's log.
pub type FetchRecord = Record<Config, Input, Output>;

/// The machine, and the file that hears what it hears.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) machine: Fetch,
    /// The joules of it, if somebody wants to know them.
    pub(super) joules: Option<Joules>,
    log: Option<Log>,
    error: Option<GetError>,
}

/// An open log, with its path for messages.
pub(super) type Log = (PathBuf, BufWriter<File>);

/// Creates the file of a log.
pub(super) fn create(path: Option<&Path>) -> Result<Option<Log>, GetError> {
    let Some(path) = path else { return Ok(None) };
    let told = |error| GetError::Trace { path: path.to_owned(), error };
    Ok(Some((path.to_owned(), BufWriter::new(File::create(path).map_err(told)?))))
}

/// Removes a log in which nothing was written.
pub(super) fn discard(log: Option<&Log>) {
    // A device or a pipe is somebody else's.
    if let Some((path, _)) = log
        && path.symlink_metadata().is_ok_and(|meta| meta.is_file())
    {
        let _ = std::fs::remove_file(path);
    }
}

impl Logged {
    pub(super) fn new(config: Config, log: Option<Log>) -> Self {
        let mut logged = Self { machine: Fetch::new(config.clone()), joules: None, log, error: None };
        logged.write(|| Record::Start { version: env!("CARGO_PKG_VERSION").to_owned(), config });
        logged
    }

    pub(super) fn handle(&mut self, now: Instant, input: Input) {
        tracing::trace!(at = %now, ?input);
        self.write(|| Record::In { at: now, input: input.clone() });
        if let Some(joules) = &mut self.joules {
            joules.input(now, &input);
        }
        self.machine.handle(now, input);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.write(|| Record::Tick { at: now });
        if let Some(joules) = &mut self.joules {
            joules.tick(now);
        }
        self.machine.tick(now);
    }

    pub(super) fn poll(&mut self) -> Option<Output> {
        let output = self.machine.poll()?;
        tracing::debug!(?output);
        self.write(|| Record::Out { output: output.clone() });
        if let Some(joules) = &mut self.joules {
            joules.output(&output);
        }
        Some(output)
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

    fn write(&mut self, record: impl FnOnce() -> FetchRecord) {
        let Some((path, file)) = &mut self.log else { return };
        let written = serde_json::to_writer(&mut *file, &record()).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|()| file.write_all(b"\n")) {
            self.error = Some(GetError::Trace { path: path.clone(), error });
            self.log = None;
        }
    }
}
