//! Reading the logs of `--trace`, line by line.
//!
//! In: one JSON object a line (`docs/replay.md`). Out: records, or the first line that is none.
//!
//! 1. A log is never held: one of any length needs one line of memory.
//! 2. It begins with its version and configuration, and does so once.
//! 3. A last line without a line end is where the run was killed; everything before it still counts.
//! 4. The first line tells whether a download or a stream wrote it. A download's lines are given as a stream's, of which
//!    they are a part.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use marline_core::replay::Record;
use marline_core::{fetch, stream};
use marline_net::get::{FetchRecord, StreamRecord};
use serde::Serialize;

use crate::Exit;

/// A line of the log.
pub(crate) type Line = Record<Config, stream::Input, stream::Output>;

/// What the machine was made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Config {
    /// A download.
    Fetch(Box<fetch::Config>),
    /// A stream.
    Stream(Box<stream::Config>),
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
    /// It is a stream's.
    streams: bool,
    broken_off: Option<u64>,
}

impl<R: BufRead> Log<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, text: Vec::new(), line: 0, begun: false, streams: false, broken_off: None }
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
        if !self.streams {
            match serde_json::from_slice(&self.text) {
                Ok(record) => return Ok(of_fetch(record)),
                Err(error) if self.begun => return Err(error),
                // Nothing has been read yet: what it is shows here.
                Err(error) => match serde_json::from_slice::<StreamRecord>(&self.text) {
                    Ok(record) => {
                        self.streams = true;
                        return Ok(of_stream(record));
                    }
                    Err(_) => return Err(error),
                },
            }
        }
        serde_json::from_slice(&self.text).map(of_stream)
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

fn of_fetch(record: FetchRecord) -> Line {
    match record {
        Record::Start { version, config } => Record::Start { version, config: Config::Fetch(Box::new(config)) },
        Record::In { at, input } => Record::In { at, input: input.into() },
        Record::Tick { at } => Record::Tick { at },
        Record::Out { output } => Record::Out { output: stream::Output::Fetch(output) },
    }
}

fn of_stream(record: StreamRecord) -> Line {
    match record {
        Record::Start { version, config } => Record::Start { version, config: Config::Stream(Box::new(config)) },
        Record::In { at, input } => Record::In { at, input },
        Record::Tick { at } => Record::Tick { at },
        Record::Out { output } => Record::Out { output },
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
