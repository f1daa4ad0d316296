//! `marline replay`: feeds the inputs of a decision log to the machine of this version and compares the decisions.
//!
//! The log comes from `--trace` of a download, a stream, `marline paths` or `marline accel` (`docs/replay.md`). The result
//! is one line: the number of equal decisions, or the first line of the log that differs.
//!
//! 1. Only one line is in memory at a time, so a log may have any length.
//! 2. A last line that has no line end and cannot be parsed means that the run was killed; everything before it is compared.
//! 3. Any other invalid line is reported as damage with its line number. The exit code is the same as for a difference.
//! 4. A log of another version is accepted: the purpose may be to find out whether that version decided differently.

use std::io::BufRead;
use std::path::PathBuf;

use clap::Args;
use marline_core::accel::Accelerator;
use marline_core::decision_log::{Record, Replayer};
use marline_core::fetch::Fetch;
use marline_core::machine::Machine;
use marline_core::paths::Paths;
use marline_core::stream::{self, Stream};
use marline_core::units::Instant;

use crate::CliError;
use crate::decision_log::{self, LogReader, LogRecord, MachineConfig, MachineInput, MachineOutput};

/// End of the output of `marline replay --help`.
pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline get --trace run.ndjson https://example.org/big.iso
  marline replay run.ndjson

Exit codes: 0 all decisions are equal, 1 a decision differs (its line is printed) or damaged log.";

/// `marline replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Log written by `--trace`; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Result of a replay without differences.
#[derive(Debug, PartialEq, Eq)]
struct ReplayResult {
    /// Records that were read: the start record, inputs, ticks and decisions.
    records: u64,
    /// Decisions that were compared.
    outputs: u64,
    /// Version of marline that wrote the log.
    version: String,
    /// Number of the incomplete last line, if there is one.
    truncated_at: Option<u64>,
}

/// Replays the file and prints the result.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let name = args.file.display();
    let comparison = replay(decision_log::open(&args.file)?);
    let comparison = comparison.map_err(|(line, problem)| CliError::failed(format!("{name}:{line}: {problem}")))?;
    let mut text = format!("equal: {} decisions from {} records", comparison.outputs, comparison.records);
    if comparison.version != env!("CARGO_PKG_VERSION") {
        text += &format!(", written by version {}", comparison.version);
    }
    if let Some(line) = comparison.truncated_at {
        text += &format!("; the log is truncated at line {line} (the run was killed)");
    }
    crate::output::print_result(&(text + "\n"))
}

/// Replays every line of the log. An error has the number of the first wrong line, counted from 1.
fn replay(log: impl BufRead) -> Result<ReplayResult, (u64, String)> {
    let mut log = LogReader::new(log);
    let mut replayer: Option<Replayer<RecordedMachine>> = None;
    let mut version = String::new();
    while let Some(record) = log.next_record()? {
        if let Record::Start { version: recorded_version, config } = &record {
            version.clone_from(recorded_version);
            replayer = Some(Replayer::new(RecordedMachine::from(config.clone())));
        }
        if let Some(replayer) = &mut replayer {
            feed(replayer, record, log.line_number())?;
        }
    }
    let (records, outputs) = replayer.map_or((0, 0), |replayer| replayer.counts());
    Ok(ReplayResult { records, outputs, version, truncated_at: log.truncated_at() })
}

fn feed(replayer: &mut Replayer<RecordedMachine>, record: LogRecord, line: u64) -> Result<(), (u64, String)> {
    replayer.feed(record).map_err(|difference| {
        let describe = |output: Option<MachineOutput>, absent: &str| match output {
            Some(output) => serde_json::to_string(&output).unwrap_or_else(|_| format!("{output:?}")),
            None => absent.to_owned(),
        };
        let logged = describe(difference.logged, "no further decision here");
        let replayed = describe(difference.actual, "nothing");
        (line, format!("different: the log has {logged}, this version decides {replayed}"))
    })
}

/// Machine of the kind that wrote the log. Inputs and decisions of a download are wrapped in those of a stream.
enum RecordedMachine {
    Fetch(Box<Fetch>),
    Stream(Box<Stream>),
    Paths(Box<Paths>),
    Accel(Box<Accelerator>),
}

impl From<MachineConfig> for RecordedMachine {
    fn from(config: MachineConfig) -> Self {
        match config {
            MachineConfig::Fetch(config) => Self::Fetch(Box::new(Fetch::new(*config))),
            MachineConfig::Stream(config) => Self::Stream(Box::new(Stream::new(*config))),
            MachineConfig::Paths(config) => Self::Paths(Box::new(Paths::new(*config))),
            MachineConfig::Accel(config) => Self::Accel(Box::new(Accelerator::new(*config))),
        }
    }
}

impl Machine for RecordedMachine {
    type Input = MachineInput;
    type Output = MachineOutput;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: MachineInput) {
        match (self, input) {
            (Self::Fetch(fetch), MachineInput::Stream(stream::Input::Fetch(input))) => fetch.handle(now, input),
            (Self::Stream(stream), MachineInput::Stream(input)) => stream.handle(now, input),
            (Self::Paths(paths), MachineInput::Paths(input)) => paths.handle(now, input),
            (Self::Accel(accel), MachineInput::Accel(input)) => accel.handle(now, input),
            // Unreachable: the reader rejects records of another machine.
            _ => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        match self {
            Self::Fetch(fetch) => fetch.tick(now),
            Self::Stream(stream) => stream.tick(now),
            Self::Paths(paths) => paths.tick(now),
            Self::Accel(accel) => accel.tick(now),
        }
    }

    fn poll(&mut self) -> Option<MachineOutput> {
        match self {
            Self::Fetch(fetch) => fetch.poll().map(|output| MachineOutput::Stream(stream::Output::Fetch(output))),
            Self::Stream(stream) => stream.poll().map(MachineOutput::Stream),
            Self::Paths(paths) => paths.poll().map(MachineOutput::Paths),
            Self::Accel(accel) => accel.poll().map(MachineOutput::Accel),
        }
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        match self {
            Self::Fetch(fetch) => fetch.deadline().map(|(at, _)| (at, ())),
            Self::Stream(stream) => stream.deadline().map(|(at, _)| (at, ())),
            Self::Paths(paths) => paths.deadline().map(|(at, _)| (at, ())),
            Self::Accel(accel) => accel.deadline().map(|(at, _)| (at, ())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::energy::{ConcurrentDraw, Model};
    use marline_core::link::{LinkId, LinkKind, LinkProfile};
    use marline_core::units::Duration;
    use marline_core::units::Power;
    use marline_core::{accel, fetch, paths};
    use std::io::BufReader;

    /// Log of a download with one link that is up, with the decisions that the machine makes.
    fn log() -> Vec<String> {
        log_of(MachineConfig::Fetch(Box::default()))
    }

    fn log_of(config: MachineConfig) -> Vec<String> {
        let profile = LinkProfile::new("eth0", LinkKind::Ethernet);
        let link_up = fetch::Input::LinkUp { link: LinkId(0), profile };
        log_with(config, MachineInput::Stream(link_up.into()))
    }

    fn log_with(config: MachineConfig, first_input: MachineInput) -> Vec<String> {
        let mut machine = RecordedMachine::from(config.clone());
        let mut records = vec![LogRecord::Start { version: "0.0.0".into(), config }];
        machine.handle(Instant::ZERO, first_input.clone());
        records.push(LogRecord::In { at: Instant::ZERO, input: first_input });
        while let Some(output) = machine.poll() {
            records.push(LogRecord::Out { output });
        }
        let next_tick = Instant::ZERO + Duration::from_millis(1);
        machine.tick(next_tick);
        records.push(LogRecord::Tick { at: next_tick });
        while let Some(output) = machine.poll() {
            records.push(LogRecord::Out { output });
        }
        records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect()
    }

    fn replay_lines(lines: &[String]) -> Result<ReplayResult, (u64, String)> {
        replay(lines.concat().as_bytes())
    }

    #[test]
    fn a_log_replays_equal() {
        let equal = replay_lines(&log()).unwrap();
        assert_eq!((equal.records, equal.version.as_str()), (log().len() as u64, "0.0.0"));
        assert!(equal.outputs > 0, "a link that is up is used");
        assert_eq!(equal.truncated_at, None);
    }

    #[test]
    fn the_log_of_a_stream_replays_equal() {
        let config = stream::Config { policy: stream::Policy::GreenbagE, ..stream::Config::default() };
        let equal = replay_lines(&log_of(MachineConfig::Stream(Box::new(config)))).unwrap();
        assert!(equal.outputs > 0);
    }

    #[test]
    fn the_log_of_the_path_manager_replays_equal() {
        let model =
            Model::new("none", std::collections::BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap();
        let config = paths::Config::new(model, Vec::new());
        let opened = paths::Input::Opened { conn: paths::ConnId(7), adopted: false, deny_join_id0: false };
        let equal =
            replay_lines(&log_with(MachineConfig::Paths(Box::new(config)), MachineInput::Paths(opened))).unwrap();
        assert!(equal.records > 2);
    }

    #[test]
    fn the_log_of_the_accelerator_replays_equal() {
        let config = accel::Config::new(LinkId(0), None);
        let outgoing = accel::Input::Outgoing(accel::PacketBytes(vec![0x45, 0, 0, 1]));
        let equal =
            replay_lines(&log_with(MachineConfig::Accel(Box::new(config)), MachineInput::Accel(outgoing))).unwrap();
        assert!(equal.outputs > 0, "packets that cannot be parsed are forwarded unchanged");
    }

    #[test]
    fn recorded_logs_replay_with_the_recorded_counts() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim/tests/replay");
        let results = std::fs::read_to_string(dir.join("results.txt")).unwrap();
        for row in results.lines().skip(1) {
            let columns: Vec<&str> = row.split_whitespace().collect();
            let file = dir.join(columns[0]).with_extension("ndjson");
            let equal = replay(decision_log::open(&file).unwrap())
                .unwrap_or_else(|(line, message)| panic!("{row}: {line}: {message}"));
            assert_eq!([equal.records.to_string(), equal.outputs.to_string()], columns[1..3], "{row}");
        }
        assert_eq!(results.lines().count(), 6, "a heading and five logs");
    }

    #[test]
    fn a_changed_decision_is_found_at_its_line() {
        let mut lines = log();
        let index = lines.iter().position(|line| line.contains("\"log\":\"out\"")).unwrap();
        lines[index] = lines[index].replace("\"link\":0", "\"link\":1");
        let (line, text) = replay_lines(&lines).unwrap_err();
        assert_eq!(line, index as u64 + 1);
        assert!(text.starts_with("different: the log has {"), "{text}");
        lines.remove(index);
        let (line, text) = replay_lines(&lines).unwrap_err();
        assert_eq!(line, index as u64 + 1);
        assert!(text.contains("no further decision here") || text.contains("different"), "{text}");
    }

    #[test]
    fn a_damaged_log_names_the_line_of_the_damage() {
        let good = log();
        let replay_damaged = |at: usize, text: &str| {
            let mut lines = good.clone();
            lines[at] = text.to_owned();
            replay_lines(&lines).unwrap_err()
        };
        for (at, text, line, expected) in [
            (0, "not json\n", 1, "not a decision log of marline"),
            (0, "", 1, "does not begin with its version"),
            (1, "{\"log\":\"in\",\"at\":0}\n", 2, "the log is damaged: missing field `input`"),
            (1, "\u{0}\u{0}\n", 2, "the log is damaged"),
            (1, &good[0], 2, "a second start record"),
            (1, "{\"log\":\"in\",\"at\":-5,\"input\":{}}\n", 2, "the log is damaged"),
        ] {
            let (found, message) = replay_damaged(at, text);
            assert_eq!(found, line, "{text:?}: {message}");
            assert!(message.contains(expected), "{text:?}: {message}");
        }
        assert_eq!(replay_lines(&[]).unwrap_err(), (1, "the log is empty".into()));
    }

    #[test]
    fn a_truncated_log_is_replayed_up_to_its_last_complete_line() {
        let mut lines = log();
        let last = lines.last_mut().unwrap();
        last.truncate(last.len() / 2);
        let equal = replay_lines(&lines).unwrap();
        assert_eq!(equal.truncated_at, Some(lines.len() as u64));
    }

    #[test]
    fn an_endless_line_is_rejected_at_the_size_limit() {
        let endless = BufReader::new(std::io::repeat(b'x'));
        assert!(replay(endless).unwrap_err().1.contains("not a decision log of marline"));
    }
}
