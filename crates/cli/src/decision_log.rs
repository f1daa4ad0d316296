//! Reading the logs of `--trace`, line by line.
//!
//! In: one JSON object a line (`docs/replay.md`). Out: records, or the first line that is none.
//!
//! 1. A log is never held: one of any length needs one line of memory.
//! 2. It begins with its version and configuration, and does so once.
//! 3. A last line without a line end is where the run was killed; everything before it still counts.
//! 4. The first line tells whether a download, a stream, MPTCP's policy or the accelerator wrote it. A download's lines are given as a
//!    stream's, of which they are a part.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::{accel, fetch, paths, stream};
use marline_download::{FetchRecord, StreamRecord};
use marline_paths::PathsRecord;
use serde::Serialize;

use crate::CliError;

/// A line of the log.
pub(crate) type LogRecord = Record<MachineConfig, MachineInput, MachineOutput>;

/// What the machine was made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineConfig {
    /// A download.
    Fetch(Box<fetch::Config>),
    /// A stream.
    Stream(Box<stream::Config>),
    /// MPTCP's policy.
    Paths(Box<paths::Config>),
    /// The accelerator of TCP.
    Accel(Box<accel::Config>),
}

/// What the driver reported.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineInput {
    /// Of a stream, or of a download.
    Stream(stream::Input),
    /// Of MPTCP.
    Paths(paths::Input),
    /// Of packets.
    Accel(accel::Input),
}

/// What the machine asked for.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum MachineOutput {
    /// Of a stream, or of a download.
    Stream(stream::Output),
    /// Of MPTCP.
    Paths(paths::Output),
    /// Of packets.
    Accel(accel::Output),
}

/// Who wrote a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LogKind {
    Fetch,
    Stream,
    Paths,
    Accel,
}

/// The log in this file; `-` is standard input.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path)
        .map_err(|error| CliError::failed(format!("{}: {error}: the log cannot be read", path.display())))?;
    Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
}

/// A log that is being read.
#[derive(Debug)]
pub(crate) struct LogReader<R> {
    source: R,
    buffer: Vec<u8>,
    line_number: u64,
    has_started: bool,
    /// None: nothing has been read yet.
    kind: Option<LogKind>,
    truncated_at: Option<u64>,
}

impl<R: BufRead> LogReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self {
            source: from,
            buffer: Vec::new(),
            line_number: 0,
            has_started: false,
            kind: None,
            truncated_at: None,
        }
    }

    /// The next record; none: the log is over. Trouble comes with its line, counted from 1.
    pub(crate) fn next_record(&mut self) -> Result<Option<LogRecord>, (u64, String)> {
        if self.truncated_at.is_some() {
            return Ok(None);
        }
        self.buffer.clear();
        self.line_number += 1;
        let line_number = self.line_number;
        let bytes_read = (&mut self.source).take(MAX_LINE).read_until(b'\n', &mut self.buffer);
        if bytes_read.map_err(|error| (line_number, format!("the log cannot be read: {error}")))? == 0 {
            return if self.has_started { Ok(None) } else { Err((1, "the log is empty".to_owned())) };
        }
        let is_complete_line = self.buffer.last() == Some(&b'\n');
        if !is_complete_line && self.buffer.len() as u64 == MAX_LINE {
            return Err((line_number, format!("longer than {MAX_LINE} bytes: this is no log of marline")));
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
            (true, true) => Err((line_number, "a second beginning in one log".into())),
            _ => {
                self.has_started = true;
                Ok(Some(record))
            }
        }
    }

    /// The line as it was read.
    fn parse(&mut self) -> serde_json::Result<LogRecord> {
        match self.kind {
            Some(writer) => parse(writer, &self.buffer),
            // What it is shows in the first line; the commonest one says what is wrong.
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

    /// The line of the newest record.
    pub(crate) fn line_number(&self) -> u64 {
        self.line_number
    }

    /// The line at which the log breaks off.
    pub(crate) fn truncated_at(&self) -> Option<u64> {
        self.truncated_at
    }
}

fn parse(writer: LogKind, text: &[u8]) -> serde_json::Result<LogRecord> {
    Ok(match writer {
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

/// One machine's record as any machine's.
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

/// serde_json's message without its own line number, which counts within our line.
fn parse_error(error: &serde_json::Error, line: u64) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let problem = if line == 1 { "this is no log of marline" } else { "the log is damaged" };
    format!("{problem}: {text}, at column {}", error.column())
}

/// Bytes. A record holds a few hundred; a resumed run's first line holds every span of its journal.
const MAX_LINE: u64 = 16 << 20;
