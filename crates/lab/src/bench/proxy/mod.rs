//! `marline-lab bench proxy`: what players and programs have of `marline proxy`, beside what they would have without it.
//!
//! | case | what | beside |
//! |---|---|---|
//! | `speed` | a file through the proxy on plain wires, HTTP and HTTPS, one wire and two | `marline get` into a pipe; nginx as a proxy for processor time |
//! | `start` | the first picture over two links | the better link alone |
//! | `seek` | the first byte of another offset; HTTP, HTTPS/1.1, HTTP/2 | a loaded round trip of the better link |
//! | `death` | a link falls silent with 4 MB in the player | nothing may stand still |
//! | `slow` | a good link with one of 0.3 Mbit/s and 400 ms beside it | the good link alone |
//! | `many_players` | two hundred players, six hundred that do not read, one that pauses | the bound of memory |
//!
//! 1. Ours and the reference take turns, beginning with another one each time; medians are compared.
//! 2. Real kernel TCP and nginx; the player is emulated ([`player`]), its bytes are compared with the file's.
//! 3. A figure decides no exit code: it is 1 only if something could not be played. Suspect runs are named.

mod many_players;
mod mp4_fixture;
mod playback;
mod player;
mod speed;
mod testbed;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::units::DataSize;
use serde::Serialize;
use serde_json::json;

use super::cases::{self, Cases, is_interrupted};
use crate::LabError;
use crate::html_report::Table;
use crate::result_file::ResultFile;
use crate::results::{Backend, stats};
use crate::runner::command::{notice, prepare_run};

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
    /// How long the player of `many_players` that pauses does so; nginx gives up after a minute.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_pause)]
    pause: Duration,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    marline_core::units::parse_duration(text).map_err(|_| "is no duration such as 20s".to_owned())
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["speed", "start", "seek", "death", "slow", "crowd"];

/// What must hold of a figure, given the reference's.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Threshold {
    /// At most so many times the reference, and so much more.
    AtMost { times: f64, plus: f64 },
    /// At least so many times the reference.
    AtLeast { times: f64 },
    /// It is only stated.
    Stated,
}

/// One figure over all repetitions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProxyReportRow {
    case: String,
    metric: &'static str,
    threshold: Threshold,
    marline: Vec<f64>,
    reference: Vec<f64>,
    reference_name: &'static str,
    unreliable_reasons: Vec<String>,
}

/// All rows so far, and what went wrong.
#[derive(Debug, Default)]
pub(super) struct ProxyReport {
    rows: Vec<ProxyReportRow>,
    problems: u32,
}

impl ProxyReport {
    fn row_mut(
        &mut self,
        case: &str,
        metric: &'static str,
        reference_name: &'static str,
        threshold: Threshold,
    ) -> &mut ProxyReportRow {
        let index = self.rows.iter().position(|row| row.case == case && row.metric == metric);
        let index = index.unwrap_or_else(|| {
            let (marline, reference, suspect) = Default::default();
            self.rows.push(ProxyReportRow {
                case: case.into(),
                metric,
                threshold,
                marline,
                reference,
                reference_name,
                unreliable_reasons: suspect,
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Something could not be measured.
    fn problem(&mut self, case: &str, run: u32, reason: &dyn std::fmt::Display) {
        self.problems += 1;
        notice(&format!("{case} run {run}: FAILED: {reason}"));
    }
}

impl ProxyReportRow {
    /// Our figure, or the reference's; and what makes it doubtful.
    fn add(&mut self, marline: bool, figure: f64, unreliable_reason: Option<String>) {
        let name = if marline { "proxy" } else { self.reference_name };
        let note = unreliable_reason.as_ref().map(|reason| format!("; suspect: {reason}")).unwrap_or_default();
        notice(&format!("{}, {}: {name}: {figure:.3}{note}", self.case, self.metric));
        if marline { &mut self.marline } else { &mut self.reference }.push(figure);
        self.unreliable_reasons.extend(unreliable_reason);
    }

    /// What the floor is, in the figure's own unit.
    fn bound(&self) -> Option<f64> {
        let reference = stats::median(&self.reference)?;
        match self.threshold {
            Threshold::AtMost { times, plus } => Some(reference * times + plus),
            Threshold::AtLeast { times } => Some(reference * times),
            Threshold::Stated => None,
        }
    }

    fn verdict(&self) -> &'static str {
        let (Some(marline), Some(bound)) = (stats::median(&self.marline), self.bound()) else {
            return if matches!(self.threshold, Threshold::Stated) { "stated" } else { "no run" };
        };
        let is_met = match self.threshold {
            Threshold::AtLeast { .. } => marline >= bound,
            Threshold::AtMost { .. } | Threshold::Stated => marline <= bound + 1e-9,
        };
        if is_met { "met" } else { "missed" }
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>| match value {
            None => "–".to_owned(),
            Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.3}"),
        };
        let (marline, reference) = (stats::median(&self.marline), stats::median(&self.reference));
        let ratio = marline
            .zip(reference)
            .filter(|(_, reference)| *reference > 0.0)
            .map(|(our_value, reference_value)| our_value / reference_value);
        let sign = if matches!(self.threshold, Threshold::AtLeast { .. }) { "≥" } else { "≤" };
        let range = stats::range(&self.marline).map(|(min, max)| format!("{min:.3}–{max:.3}"));
        vec![
            self.case.clone(),
            self.metric.into(),
            number(marline),
            range.unwrap_or_default(),
            number(reference),
            self.reference_name.into(),
            number(ratio),
            self.bound().map_or("–".into(), |bound| format!("{sign} {}", number(Some(bound)))),
            self.verdict().into(),
            format!("{}{}", self.marline.len(), if self.unreliable_reasons.is_empty() { "" } else { "*" }),
        ]
    }
}

pub(super) fn run(args: &ProxyArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the proxy", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    for (program, package) in [("nginx", "nginx-light"), ("curl", "curl")] {
        if crate::server::find_program(program).is_none() {
            return Err(LabError::MissingProgram { program: program.into(), package });
        }
    }
    let mut report = ProxyReport::default();
    cases::run_cases(&cases.selected_cases(), |case| match case {
        "speed" => speed::run(&mut report, args.runs, args.size),
        "start" => playback::start(&mut report, args.runs),
        "seek" => playback::seek(&mut report, args.runs),
        "death" => playback::link_failure(&mut report, args.runs),
        "slow" => playback::slow(&mut report, args.runs),
        _ => many_players::run(&mut report, args.runs, args.pause),
    })?;
    let row = |row: &ProxyReportRow| json!({"row": row, "bound": row.bound(), "word": row.verdict()});
    let rows = report.rows.iter().map(row).collect();
    cases::finish(file, "", &table(&report), &rows, report.problems)
}

fn table(report: &ProxyReport) -> Table {
    const HEAD: [&str; 10] = ["case", "what", "ours", "min–max", "reference", "of", "ratio", "floor", "", "runs"];
    let unreliable = report
        .rows
        .iter()
        .flat_map(|row| row.unreliable_reasons.first().map(|reason| format!("{}: {reason}", row.case)));
    let unreliable: Vec<String> = unreliable.collect();
    let note = match unreliable.is_empty() {
        true => "Medians.".to_owned(),
        false => format!("Medians. * suspect: {}", unreliable.join("; ")),
    };
    Table {
        header: HEAD.map(str::to_owned).to_vec(),
        rows: report.rows.iter().map(ProxyReportRow::cells).collect(),
        note: Some(note),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_met_by_its_median_and_says_so() {
        let mut report = ProxyReport::default();
        let row = report.row_mut("seek", "ms", "loaded round trip", Threshold::AtMost { times: 1.0, plus: 50.0 });
        for figure in [90.0, 119.0, 300.0] {
            row.add(true, figure, None);
        }
        assert_eq!(row.verdict(), "no run");
        row.add(false, 70.0, Some("late".into()));
        assert_eq!((row.verdict(), row.bound()), ("met", Some(120.0)));
        row.add(true, 301.0, None);
        assert_eq!(row.verdict(), "missed");
        let row = report.row_mut("speed", "Mbit/s", "get", Threshold::AtLeast { times: 0.9 });
        row.add(true, 9.0, None);
        row.add(false, 10.0, None);
        assert_eq!(row.verdict(), "met");
        assert!(table(&report).note.unwrap().contains("late"));
        assert_eq!(report.rows.len(), 2);
    }
}
