//! Reader of decision logs (`--trace`): yields one record per line.
//!
//! A log has one JSON object per line (`docs/replay.md`). The reader reports the first line that is invalid.
//!
//! 1. Only one line is in memory at a time, so a log may have any length.
//! 2. The first record, and only the first, is the start record with version and configuration.
//! 3. A last line that has no line end and cannot be parsed means that the run was killed; all records before it are valid.
//! 4. The first line shows which machine wrote the log: download, stream, MPTCP policy or accelerator. Records of a download
//!    are returned as those of a stream, since a stream contains a download.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::{accel, fetch, paths, stream};
use marline_download::{FetchRecord, StreamRecord};
use marline_paths::PathsRecord;
use serde::Serialize;

use crate::CliError;

/// One record of a log of any machine.
pub(crate) type LogRecord = Record<MachineConfig, MachineInput, MachineOutput>;

/// Configuration of the machine that wrote the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineConfig {
    /// Configuration of a download.
    Fetch(Box<fetch::Config>),
    Stream(Box<stream::Config>),
    /// Configuration of the MPTCP path manager.
    Paths(Box<paths::Config>),
    /// Configuration of the TCP accelerator.
    Accel(Box<accel::Config>),
}

/// Input that the driver gave to the machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineInput {
    /// Input of a stream or a download.
    Stream(stream::Input),
    /// Input of the MPTCP path manager.
    Paths(paths::Input),
    /// Input of the TCP accelerator.
    Accel(accel::Input),
}

/// Decision of the machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineOutput {
    /// Decision of a stream or a download.
    Stream(stream::Output),
    /// Decision of the MPTCP path manager.
    Paths(paths::Output),
    /// Decision of the TCP accelerator.
    Accel(accel::Output),
}

/// Machine that wrote a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LogKind {
    Fetch,
    Stream,
    Paths,
    Accel,
}

/// Opens the log at `path`; `-` is standard input.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path)
        .map_err(|error| CliError::failed(format!("{}: {error}: cannot read the log", path.display())))?;
    Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
}

/// Reads a log record by record.
#[derive(Debug)]
pub(crate) struct LogReader<R> {
    source: R,
    buffer: Vec<u8>,
    line_number: u64,
    has_started: bool,
    /// Machine that wrote the log; `None` before the first record.
    kind: Option<LogKind>,
    /// Number of the incomplete last line.
    truncated_at: Option<u64>,
}

impl<R: BufRead> LogReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self { source, buffer: Vec::new(), line_number: 0, has_started: false, kind: None, truncated_at: None }
    }

    /// Returns the next record, or `None` at the end of the log.
    ///
    /// # Errors
    /// The number of the invalid line, counted from 1, and the problem.
    pub(crate) fn next_record(&mut self) -> Result<Option<LogRecord>, (u64, String)> {
        if self.truncated_at.is_some() {
            return Ok(None);
        }
        self.buffer.clear();
        self.line_number += 1;
        let line_number = self.line_number;
        let bytes_read = (&mut self.source).take(MAX_LINE).read_until(b'\n', &mut self.buffer);
        if bytes_read.map_err(|error| (line_number, format!("cannot read the log: {error}")))? == 0 {
            return if self.has_started { Ok(None) } else { Err((1, "the log is empty".to_owned())) };
        }
        let is_complete_line = self.buffer.last() == Some(&b'\n');
        if !is_complete_line && self.buffer.len() as u64 == MAX_LINE {
            return Err((line_number, format!("longer than {MAX_LINE} bytes: not a decision log of marline")));
        }
        let record = match self.parse() {
            Ok(record) => record,
            Err(_) if !is_complete_line && self.has_started => {
                self.truncated_at = Some(line_number);
                return Ok(None);
            }
            Err(error) => return Err((line_number, parse_error(&error, line_number))),
        };
        match (self.has_started, matches!(record, Record::Start { .. })) {
            (false, false) => {
                Err((line_number, "the log does not begin with its version and configuration".into()))
            }
            (true, true) => Err((line_number, "the log has a second start record".into())),
            _ => {
                self.has_started = true;
                Ok(Some(record))
            }
        }
    }

    /// Parses the line in the buffer.
    fn parse(&mut self) -> serde_json::Result<LogRecord> {
        match self.kind {
            Some(kind) => parse(kind, &self.buffer),
            // Only the first line shows the kind of the log. If no kind fits, the error of the first and most common kind,
            // a download, is reported.
            None => {
                let mut first_error = None;
                for kind in [LogKind::Fetch, LogKind::Stream, LogKind::Paths, LogKind::Accel] {
                    match parse(kind, &self.buffer) {
                        Ok(line) => {
                            self.kind = Some(kind);
                            return Ok(line);
                        }
                        Err(parse_error) => first_error = first_error.or(Some(parse_error)),
                    }
                }
                first_error.map_or_else(|| parse(LogKind::Fetch, &self.buffer), Err)
            }
        }
    }

    /// Line number of the newest record, counted from 1.
    pub(crate) fn line_number(&self) -> u64 {
        self.line_number
    }

    /// Number of the incomplete last line, if there is one.
    pub(crate) fn truncated_at(&self) -> Option<u64> {
        self.truncated_at
    }
}

fn parse(kind: LogKind, text: &[u8]) -> serde_json::Result<LogRecord> {
    Ok(match kind {
        LogKind::Fetch => map_record(
            serde_json::from_slice::<FetchRecord>(text)?,
            |config| MachineConfig::Fetch(Box::new(config)),
            |input| MachineInput::Stream(input.into()),
            |output| MachineOutput::Stream(stream::Output::Fetch(output)),
        ),
        LogKind::Stream => map_record(
            serde_json::from_slice::<StreamRecord>(text)?,
            |config| MachineConfig::Stream(Box::new(config)),
            MachineInput::Stream,
            MachineOutput::Stream,
        ),
        LogKind::Paths => map_record(
            serde_json::from_slice::<PathsRecord>(text)?,
            |config| MachineConfig::Paths(Box::new(config)),
            MachineInput::Paths,
            MachineOutput::Paths,
        ),
        LogKind::Accel => map_record(
            serde_json::from_slice::<Record<accel::Config, accel::Input, accel::Output>>(text)?,
            |config| MachineConfig::Accel(Box::new(config)),
            MachineInput::Accel,
            MachineOutput::Accel,
        ),
    })
}

/// Converts the record of one machine into that of any machine.
fn map_record<C, I, O>(
    record: Record<C, I, O>,
    config_of: impl Fn(C) -> MachineConfig,
    input_of: impl Fn(I) -> MachineInput,
    output_of: impl Fn(O) -> MachineOutput,
) -> LogRecord {
    match record {
        Record::Start { version, config } => Record::Start { version, config: config_of(config) },
        Record::In { at, input } => Record::In { at, input: input_of(input) },
        Record::Tick { at } => Record::Tick { at },
        Record::Out { output } => Record::Out { output: output_of(output) },
    }
}

/// Describes a parse error of line `line`. serde_json's own line number is removed, since it counts within the line.
fn parse_error(error: &serde_json::Error, line: u64) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let problem = if line == 1 { "not a decision log of marline" } else { "the log is damaged" };
    format!("{problem}: {text}, at column {}", error.column())
}

/// Most bytes of a line. A record has a few hundred bytes, but the first line of a resumed run has every range of its journal.
const MAX_LINE: u64 = 16 << 20;
