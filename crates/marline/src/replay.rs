//! `marline replay`: runs the decisions of a recorded download again and proves that they come out the same.
//!
//! A log of `--trace` goes in, one JSON object a line (`docs/replay-log.md`); one line comes out: how much was equal,
//! or the first line that was not.
//!
//! 1. The log is read line by line and never held: a log of any length needs one line of memory.
//! 2. A last line without a line end is where the run was killed; everything before it still counts.
//! 3. Anything else that cannot be read is damage, shown with its line; the exit code is that of a difference.
//! 4. A log of another version is replayed all the same: whether that version decided otherwise is the question.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use marline_core::fetch::{Config, Fetch, Input, Output};
use marline_core::replay::{Record, Replayer};

use crate::Exit;
use crate::args::ReplayArgs;

/// A line of the log.
type Line = Record<Config, Input, Output>;

/// How a replay went.
#[derive(Debug, PartialEq, Eq)]
struct Equal {
    /// Records fed.
    records: u64,
    /// Decisions that were compared.
    outputs: u64,
    /// The version that wrote the log.
    version: String,
    /// The line at which the log breaks off.
    broken_off: Option<u64>,
}

/// Replays the file and says how it went.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Exit> {
    let name = args.file.display();
    let equal = if args.file == Path::new("-") {
        replay(std::io::stdin().lock())
    } else {
        let file = File::open(&args.file)
            .map_err(|error| Exit::failed(format!("{name}: {error}: the log cannot be read")))?;
        replay(BufReader::with_capacity(1 << 16, file))
    };
    let equal = equal.map_err(|(line, what)| Exit::failed(format!("{name}:{line}: {what}")))?;
    let mut out = std::io::stdout();
    write!(out, "equal: {} decisions from {} records", equal.outputs, equal.records)?;
    if equal.version != env!("CARGO_PKG_VERSION") {
        write!(out, ", written by version {}", equal.version)?;
    }
    if let Some(line) = equal.broken_off {
        write!(out, "; the log breaks off in line {line} (the run was killed)")?;
    }
    writeln!(out)?;
    Ok(())
}

/// Feeds every line; the first trouble ends it with its line number, counted from 1.
fn replay(mut log: impl BufRead) -> Result<Equal, (u64, String)> {
    let mut replayer: Option<Replayer<Fetch>> = None;
    let mut version = String::new();
    let (mut text, mut line, mut broken_off) = (Vec::new(), 0, None);
    loop {
        text.clear();
        line += 1;
        let read = (&mut log).take(LONGEST_LINE).read_until(b'\n', &mut text);
        if read.map_err(|error| (line, format!("the log cannot be read: {error}")))? == 0 {
            break;
        }
        let whole = text.last() == Some(&b'\n');
        if !whole && text.len() as u64 == LONGEST_LINE {
            return Err((line, format!("longer than {LONGEST_LINE} bytes: this is no log of marline")));
        }
        let record: Line = match serde_json::from_slice(&text) {
            Ok(record) => record,
            Err(_) if !whole && replayer.is_some() => {
                broken_off = Some(line);
                break;
            }
            Err(error) => return Err((line, damage(&error, line))),
        };
        match (&mut replayer, record) {
            (None, Record::Start { version: wrote, config }) => {
                version.clone_from(&wrote);
                let mut fresh = Replayer::new(Fetch::new(config.clone()));
                feed(&mut fresh, Record::Start { version: wrote, config }, line)?;
                replayer = Some(fresh);
            }
            (None, _) => return Err((line, "the log does not begin with its version and configuration".into())),
            (Some(_), Record::Start { .. }) => return Err((line, "a second beginning in one log".into())),
            (Some(replayer), record) => feed(replayer, record, line)?,
        }
    }
    let replayer = replayer.ok_or_else(|| (1, "the log is empty".to_owned()))?;
    let (records, outputs) = replayer.counts();
    Ok(Equal { records, outputs, version, broken_off })
}

fn feed(replayer: &mut Replayer<Fetch>, record: Line, line: u64) -> Result<(), (u64, String)> {
    replayer.feed(record).map_err(|difference| {
        let show = |output: Option<Output>, none: &str| match output {
            Some(output) => serde_json::to_string(&output).unwrap_or_else(|_| format!("{output:?}")),
            None => none.to_owned(),
        };
        let logged = show(difference.logged, "no further decision here");
        let done = show(difference.done, "nothing");
        (line, format!("different: the log has {logged}, this version does {done}"))
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::link::{LinkId, LinkKind, LinkProfile};
    use marline_core::machine::Machine;
    use marline_core::units::{Duration, Instant};

    /// The log of a run on one link that is up, with what the machine really does.
    fn log() -> Vec<String> {
        let config = Config::default();
        let mut machine = Fetch::new(config.clone());
        let mut records = vec![Line::Start { version: "0.0.0".into(), config }];
        let up = Input::LinkUp { link: LinkId(0), profile: LinkProfile::new("eth0", LinkKind::Ethernet) };
        machine.handle(Instant::ZERO, up.clone());
        records.push(Line::In { at: Instant::ZERO, input: up });
        while let Some(output) = machine.poll() {
            records.push(Line::Out { output });
        }
        let later = Instant::ZERO + Duration::from_millis(1);
        machine.tick(later);
        records.push(Line::Tick { at: later });
        while let Some(output) = machine.poll() {
            records.push(Line::Out { output });
        }
        records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect()
    }

    fn replayed(lines: &[String]) -> Result<Equal, (u64, String)> {
        replay(lines.concat().as_bytes())
    }

    #[test]
    fn a_log_replays_equal() {
        let equal = replayed(&log()).unwrap();
        assert_eq!((equal.records, equal.version.as_str()), (log().len() as u64, "0.0.0"));
        assert!(equal.outputs > 0, "a link that is up is used");
        assert_eq!(equal.broken_off, None);
    }

    #[test]
    fn a_changed_decision_is_found_at_its_line() {
        let mut lines = log();
        let at = lines.iter().position(|line| line.contains("\"log\":\"out\"")).unwrap();
        lines[at] = lines[at].replace("\"link\":0", "\"link\":1");
        let (line, text) = replayed(&lines).unwrap_err();
        assert_eq!(line, at as u64 + 1);
        assert!(text.starts_with("different: the log has {"), "{text}");
        lines.remove(at);
        let (line, text) = replayed(&lines).unwrap_err();
        assert_eq!(line, at as u64 + 1);
        assert!(text.contains("no further decision here") || text.contains("different"), "{text}");
    }

    #[test]
    fn a_damaged_log_names_the_line_of_the_damage() {
        let good = log();
        let damaged = |at: usize, text: &str| {
            let mut lines = good.clone();
            lines[at] = text.to_owned();
            replayed(&lines).unwrap_err()
        };
        for (at, text, line, says) in [
            (0, "not json\n", 1, "this is no log of marline"),
            (0, "", 1, "does not begin with its version"),
            (1, "{\"log\":\"in\",\"at\":0}\n", 2, "the log is damaged: missing field `input`"),
            (1, "\u{0}\u{0}\n", 2, "the log is damaged"),
            (1, &good[0], 2, "a second beginning"),
            (1, "{\"log\":\"in\",\"at\":-5,\"input\":{}}\n", 2, "the log is damaged"),
        ] {
            let (found, what) = damaged(at, text);
            assert_eq!(found, line, "{text:?}: {what}");
            assert!(what.contains(says), "{text:?}: {what}");
        }
        assert_eq!(replayed(&[]).unwrap_err(), (1, "the log is empty".into()));
    }

    #[test]
    fn a_log_that_breaks_off_counts_up_to_there() {
        let mut lines = log();
        let last = lines.last_mut().unwrap();
        last.truncate(last.len() / 2);
        let equal = replayed(&lines).unwrap();
        assert_eq!(equal.broken_off, Some(lines.len() as u64));
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let endless = BufReader::new(std::io::repeat(b'x'));
        assert!(replay(endless).unwrap_err().1.contains("no log of marline"));
    }
}
