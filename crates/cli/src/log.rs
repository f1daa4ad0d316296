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

use crate::Exit;

/// A line of the log.
pub(crate) type Line = Record<Config, Input, Output>;

/// What the machine was made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Config {
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
pub(crate) enum Input {
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
pub(crate) enum Output {
    /// Of a stream, or of a download.
    Stream(stream::Output),
    /// Of MPTCP.
    Paths(paths::Output),
    /// Of packets.
    Accel(accel::Output),
}

/// Who wrote a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    Fetch,
    Stream,
    Paths,
    Accel,
}

/// The log in this file; `-` is standard input.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, Exit> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path)
        .map_err(|error| Exit::failed(format!("{}: {error}: the log cannot be read", path.display())))?;
    Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
}

/// A log that is being read.
#[derive(Debug)]
pub(crate) struct Log<R> {
    from: R,
    text: Vec<u8>,
    line: u64,
    begun: bool,
    /// None: nothing has been read yet.
    writer: Option<Writer>,
    broken_off: Option<u64>,
}

impl<R: BufRead> Log<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, text: Vec::new(), line: 0, begun: false, writer: None, broken_off: None }
    }

    /// The next record; none: the log is over. Trouble comes with its line, counted from 1.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, (u64, String)> {
        if self.broken_off.is_some() {
            return Ok(None);
        }
        self.text.clear();
        self.line += 1;
        let line = self.line;
        let read = (&mut self.from).take(LONGEST_LINE).read_until(b'\n', &mut self.text);
        if read.map_err(|error| (line, format!("the log cannot be read: {error}")))? == 0 {
            return if self.begun { Ok(None) } else { Err((1, "the log is empty".to_owned())) };
        }
        let whole = self.text.last() == Some(&b'\n');
        if !whole && self.text.len() as u64 == LONGEST_LINE {
            return Err((line, format!("longer than {LONGEST_LINE} bytes: this is no log of marline")));
        }
        let record = match self.parse() {
            Ok(record) => record,
            Err(_) if !whole && self.begun => {
                self.broken_off = Some(line);
                return Ok(None);
            }
            Err(error) => return Err((line, damage(&error, line))),
        };
        match (self.begun, matches!(record, Record::Start { .. })) {
            (false, false) => Err((line, "the log does not begin with its version and configuration".into())),
            (true, true) => Err((line, "a second beginning in one log".into())),
            _ => {
                self.begun = true;
                Ok(Some(record))
            }
        }
    }

    /// The line as it was read.
    fn parse(&mut self) -> serde_json::Result<Line> {
        match self.writer {
            Some(writer) => parse(writer, &self.text),
            // What it is shows in the first line; the commonest one says what is wrong.
            None => {
                let mut error = None;
                for writer in [Writer::Fetch, Writer::Stream, Writer::Paths, Writer::Accel] {
                    match parse(writer, &self.text) {
                        Ok(line) => {
                            self.writer = Some(writer);
                            return Ok(line);
                        }
                        Err(other) => error = error.or(Some(other)),
                    }
                }
                error.map_or_else(|| parse(Writer::Fetch, &self.text), Err)
            }
        }
    }

    /// The line of the newest record.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// The line at which the log breaks off.
    pub(crate) fn broken_off(&self) -> Option<u64> {
        self.broken_off
    }
}

fn parse(writer: Writer, text: &[u8]) -> serde_json::Result<Line> {
    Ok(match writer {
        Writer::Fetch => of(
            serde_json::from_slice::<FetchRecord>(text)?,
            |config| Config::Fetch(Box::new(config)),
            |input| Input::Stream(input.into()),
            |output| Output::Stream(stream::Output::Fetch(output)),
        ),
        Writer::Stream => of(
            serde_json::from_slice::<StreamRecord>(text)?,
            |config| Config::Stream(Box::new(config)),
            Input::Stream,
            Output::Stream,
        ),
        Writer::Paths => of(
            serde_json::from_slice::<PathsRecord>(text)?,
            |config| Config::Paths(Box::new(config)),
            Input::Paths,
            Output::Paths,
        ),
        Writer::Accel => of(
            serde_json::from_slice::<Record<accel::Config, accel::Input, accel::Output>>(text)?,
            |config| Config::Accel(Box::new(config)),
            Input::Accel,
            Output::Accel,
        ),
    })
}

/// One machine's record as any machine's.
fn of<C, I, O>(
    record: Record<C, I, O>,
    config_of: impl Fn(C) -> Config,
    input_of: impl Fn(I) -> Input,
    output_of: impl Fn(O) -> Output,
) -> Line {
    match record {
        Record::Start { version, config } => Record::Start { version, config: config_of(config) },
        Record::In { at, input } => Record::In { at, input: input_of(input) },
        Record::Tick { at } => Record::Tick { at },
        Record::Out { output } => Record::Out { output: output_of(output) },
    }
}

/// serde_json's message without its own line number, which counts within our line.
fn damage(error: &serde_json::Error, line: u64) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    let what = if line == 1 { "this is no log of marline" } else { "the log is damaged" };
    format!("{what}: {text}, at column {}", error.column())
}

/// Bytes. A record holds a few hundred; a resumed run's first line holds every span of its journal.
const LONGEST_LINE: u64 = 16 << 20;
