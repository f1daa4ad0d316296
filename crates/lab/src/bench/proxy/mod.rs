//! `marline-lab bench proxy`: what `marline proxy` gives players and programs, compared with the same without it.
//!
//! | case | what | compared with |
//! |---|---|---|
//! | `speed` | a file through the proxy over veth pairs, HTTP and HTTPS, one link and two | `marline get` into a pipe; nginx as a proxy for CPU time |
//! | `start` | the first frame over two links | the better link alone |
//! | `seek` | the first byte at another offset; HTTP, HTTPS/1.1, HTTP/2 | the loaded RTT of the better link |
//! | `death` | a link drops all packets when the player has buffered 4 MB | no stall permitted |
//! | `slow` | a good link together with one of 0.3 Mbit/s and 400 ms | the good link alone |
//! | `crowd` | two hundred players, six hundred clients that do not read, one player that pauses | the memory limit |
//!
//! 1. marline and the reference take turns, and each repetition begins with another one; medians are compared.
//! 2. Kernel TCP and nginx are real; the player is emulated ([`player`]), and every byte is compared with the file.
//! 3. The figures do not affect the exit code. It is 1 only if something could not be played. Unreliable runs are
//!    marked.

mod many_players;
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

use super::cases::{self, Cases};
use crate::LabError;
use crate::html_report::Table;
use crate::result_file::ResultFile;
use crate::results::{Backend, stats};
use crate::runner::command::{notice, prepare_run};

/// Options of `marline-lab bench proxy`.
#[derive(Clone, Debug, Args)]
pub(super) struct ProxyArgs {
    /// Only these cases: speed, start, seek, death, slow, crowd, all.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Number of repetitions.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Size of each download of `speed`.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    size: DataSize,
    /// Length of the pause in `crowd`; nginx closes the connection after a minute.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_pause)]
    pause: Duration,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    marline_core::units::parse_duration(text).map_err(|_| "is not a duration such as 20s".to_owned())
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["speed", "start", "seek", "death", "slow", "crowd"];

/// What a figure must satisfy, relative to the reference.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Threshold {
    /// At most this factor times the reference, plus a constant.
    AtMost { times: f64, plus: f64 },
    /// At least this factor times the reference.
    AtLeast { times: f64 },
    /// No threshold; the figure is only reported.
    Stated,
}

/// One metric of one case over all repetitions.
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

/// All rows so far, and the number of failed measurements.
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
            let (marline, reference, unreliable_reasons) = Default::default();
            self.rows.push(ProxyReportRow {
                case: case.into(),
                metric,
                threshold,
                marline,
                reference,
                reference_name,
                unreliable_reasons,
            });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Reports a measurement that failed.
    fn problem(&mut self, case: &str, run: u32, reason: &dyn std::fmt::Display) {
        self.problems += 1;
        notice(&format!("{case} run {run}: FAILED: {reason}"));
    }
}

impl ProxyReportRow {
    /// Adds a figure of marline or of the reference, and why it is unreliable, if so.
    fn add(&mut self, marline: bool, figure: f64, unreliable_reason: Option<String>) {
        let name = if marline { "proxy" } else { self.reference_name };
        let note = unreliable_reason.as_ref().map(|reason| format!("; suspect: {reason}")).unwrap_or_default();
        notice(&format!("{}, {}: {name}: {figure:.3}{note}", self.case, self.metric));
        if marline { &mut self.marline } else { &mut self.reference }.push(figure);
        self.unreliable_reasons.extend(unreliable_reason);
    }

    /// The threshold in the unit of the figure.
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
    let row = |row: &ProxyReportRow| json!({"row": row, "bound": row.bound(), "verdict": row.verdict()});
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
    fn the_median_decides_whether_a_row_is_met() {
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
