//! `marline-lab bench proxy`: what players and programs have of `marline proxy`, beside what they would have without it.
//!
//! | case | what | beside |
//! |---|---|---|
//! | `speed` | a file through the proxy on plain wires, HTTP and HTTPS, one wire and two | `marline get` into a pipe; nginx as a proxy for processor time |
//! | `start` | the first picture over two links | the better link alone |
//! | `seek` | the first byte of another offset; HTTP, HTTPS/1.1, HTTP/2 | a loaded round trip of the better link |
//! | `death` | a link falls silent with 4 MB in the player | nothing may stand still |
//! | `slow` | a good link with one of 0.3 Mbit/s and 400 ms beside it | the good link alone |
//! | `crowd` | two hundred players, six hundred that do not read, one that pauses | the bound of memory |
//!
//! 1. Ours and the reference take turns, beginning with another one each time; medians are compared.
//! 2. Real kernel TCP and nginx; the player is emulated ([`player`]), its bytes are compared with the file's.
//! 3. A figure decides no exit code: it is 1 only if something could not be played. Suspect runs are named.

mod crowd;
mod film;
mod player;
mod playing;
mod speed;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::units::DataSize;
use serde::Serialize;
use serde_json::json;

use super::turns::{self, Cases, is_stopped};
use crate::LabError;
use crate::evidence::{By, stats};
use crate::page::Table;
use crate::result_file::ResultFile;
use crate::runner::command::{begin, say};

/// `marline-lab bench proxy`.
#[derive(Clone, Debug, Args)]
pub(super) struct ProxyArgs {
    /// Only these: speed, start, seek, death, slow, crowd, all.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much is downloaded each time in `speed`.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: DataSize,
    /// How long the player of `crowd` that pauses does so; nginx gives up after a minute.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = pause)]
    pause: Duration,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn pause(word: &str) -> Result<Duration, String> {
    marline_core::units::parse_duration(word).map_err(|_| "is no duration such as 20s".to_owned())
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["speed", "start", "seek", "death", "slow", "crowd"];

/// What must hold of a figure, given the reference's.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Floor {
    /// At most so many times the reference, and so much more.
    AtMost { times: f64, plus: f64 },
    /// At least so many times the reference.
    AtLeast { times: f64 },
    /// It is only stated.
    Stated,
}

/// One figure over all repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    case: String,
    what: &'static str,
    floor: Floor,
    ours: Vec<f64>,
    reference: Vec<f64>,
    beside: &'static str,
    suspect: Vec<String>,
}

/// All rows so far, and what went wrong.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    rows: Vec<Row>,
    problems: u32,
}

impl Sheet {
    fn row(&mut self, case: &str, what: &'static str, beside: &'static str, floor: Floor) -> &mut Row {
        let at = self.rows.iter().position(|row| row.case == case && row.what == what);
        let at = at.unwrap_or_else(|| {
            let (ours, reference, suspect) = Default::default();
            self.rows.push(Row { case: case.into(), what, floor, ours, reference, beside, suspect });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// Something could not be measured.
    fn problem(&mut self, case: &str, run: u32, why: &dyn std::fmt::Display) {
        self.problems += 1;
        say(&format!("{case} run {run}: FAILED: {why}"));
    }
}

impl Row {
    /// Our figure, or the reference's; and what makes it doubtful.
    fn add(&mut self, ours: bool, figure: f64, suspect: Option<String>) {
        let who = if ours { "proxy" } else { self.beside };
        let mark = suspect.as_ref().map(|why| format!("; suspect: {why}")).unwrap_or_default();
        say(&format!("{}, {}: {who}: {figure:.3}{mark}", self.case, self.what));
        if ours { &mut self.ours } else { &mut self.reference }.push(figure);
        self.suspect.extend(suspect);
    }

    /// What the floor is, in the figure's own unit.
    fn bound(&self) -> Option<f64> {
        let reference = stats::median(&self.reference)?;
        match self.floor {
            Floor::AtMost { times, plus } => Some(reference * times + plus),
            Floor::AtLeast { times } => Some(reference * times),
            Floor::Stated => None,
        }
    }

    fn word(&self) -> &'static str {
        let (Some(ours), Some(bound)) = (stats::median(&self.ours), self.bound()) else {
            return if matches!(self.floor, Floor::Stated) { "stated" } else { "no run" };
        };
        let met = match self.floor {
            Floor::AtLeast { .. } => ours >= bound,
            Floor::AtMost { .. } | Floor::Stated => ours <= bound + 1e-9,
        };
        if met { "met" } else { "missed" }
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>| match value {
            None => "–".to_owned(),
            Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.3}"),
        };
        let (ours, reference) = (stats::median(&self.ours), stats::median(&self.reference));
        let ratio = ours.zip(reference).filter(|(_, reference)| *reference > 0.0).map(|(o, r)| o / r);
        let sign = if matches!(self.floor, Floor::AtLeast { .. }) { "≥" } else { "≤" };
        let range = stats::range(&self.ours).map(|(least, most)| format!("{least:.3}–{most:.3}"));
        vec![
            self.case.clone(),
            self.what.into(),
            number(ours),
            range.unwrap_or_default(),
            number(reference),
            self.beside.into(),
            number(ratio),
            self.bound().map_or("–".into(), |bound| format!("{sign} {}", number(Some(bound)))),
            self.word().into(),
            format!("{}{}", self.ours.len(), if self.suspect.is_empty() { "" } else { "*" }),
        ]
    }
}

pub(super) fn run(args: &ProxyArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the proxy", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    for (program, package) in [("nginx", "nginx-light"), ("curl", "curl")] {
        if crate::server::find(program).is_none() {
            return Err(LabError::Missing { program: program.into(), package });
        }
    }
    let mut sheet = Sheet::default();
    turns::each(&cases.wanted(), |case| match case {
        "speed" => speed::run(&mut sheet, args.runs, args.size),
        "start" => playing::start(&mut sheet, args.runs),
        "seek" => playing::seek(&mut sheet, args.runs),
        "death" => playing::death(&mut sheet, args.runs),
        "slow" => playing::slow(&mut sheet, args.runs),
        _ => crowd::run(&mut sheet, args.runs, args.pause),
    })?;
    let row = |row: &Row| json!({"row": row, "bound": row.bound(), "word": row.word()});
    let rows = sheet.rows.iter().map(row).collect();
    turns::end(file, "", &table(&sheet), &rows, sheet.problems)
}

fn table(sheet: &Sheet) -> Table {
    const HEAD: [&str; 10] = ["case", "what", "ours", "min–max", "reference", "of", "ratio", "floor", "", "runs"];
    let suspects = sheet.rows.iter().flat_map(|row| row.suspect.first().map(|why| format!("{}: {why}", row.case)));
    let suspects: Vec<String> = suspects.collect();
    let note = match suspects.is_empty() {
        true => "Medians.".to_owned(),
        false => format!("Medians. * suspect: {}", suspects.join("; ")),
    };
    Table {
        head: HEAD.map(str::to_owned).to_vec(),
        rows: sheet.rows.iter().map(Row::cells).collect(),
        note: Some(note),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_met_by_its_median_and_says_so() {
        let mut sheet = Sheet::default();
        let row = sheet.row("seek", "ms", "loaded round trip", Floor::AtMost { times: 1.0, plus: 50.0 });
        for figure in [90.0, 119.0, 300.0] {
            row.add(true, figure, None);
        }
        assert_eq!(row.word(), "no run");
        row.add(false, 70.0, Some("late".into()));
        assert_eq!((row.word(), row.bound()), ("met", Some(120.0)));
        row.add(true, 301.0, None);
        assert_eq!(row.word(), "missed");
        let row = sheet.row("speed", "Mbit/s", "get", Floor::AtLeast { times: 0.9 });
        row.add(true, 9.0, None);
        row.add(false, 10.0, None);
        assert_eq!(row.word(), "met");
        assert!(table(&sheet).note.unwrap().contains("late"));
        assert_eq!(sheet.rows.len(), 2);
    }
}
