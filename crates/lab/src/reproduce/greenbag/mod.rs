//! `marline lab reproduce greenbag`: the evaluation of GreenBag (RTSS 2013, §V) again, with our own policy and a
//! clairvoyant beside it, and what this project asks of its policy beyond that.
//!
//! In: which artefacts. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. In virtual time everything is played by the machines that also run under `marline proxy`, over sim's links and its
//!    model of TCP: minutes of video in a fraction of a second each.
//! 2. `--quick` does all artefacts with few repetitions and few sizes.
//! 3. `--runs` changes how often chance is asked where it plays a part (figure 12, wandering links).

mod figures;
mod floors;
mod rows;
mod runner;
mod setting;
mod table;

use std::path::PathBuf;

use marline_core::units::Duration;

use super::ReproduceArgs;
use crate::evidence::Machine;
use crate::runner::command::{print, say};
use crate::{LabError, scenarios};
use figures::{ARTEFACTS, Effort, Figure, TRACES};
use setting::Setting;

/// Does it, and gives the exit code: 1 if something could not be played.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let wanted = wanted(&args.cases)?;
    if !args.sim && !args.quick {
        return Err(LabError::Spec("GreenBag's figures are made in virtual time: add --sim, or --quick".into()));
    }
    let effort = Effort { runs: args.runs.or(args.quick.then_some(QUICK_RUNS)), small: args.quick };
    let mut figures: Vec<Figure> =
        wanted.iter().filter(|name| **name != TRACES).flat_map(|name| figures::figures(name, effort)).collect();
    if wanted.contains(&TRACES) {
        figures.extend(recorded(&scenarios::trace_directories(&args.traces))?);
    }
    let done = runner::play(&figures, |figure| {
        if !args.json {
            say(&format!("{} {}", figure.artefact, figure.case));
        }
    });
    let floors = floors::floors(&done);
    let rows = rows::rows(&done, &floors);
    let problems: Vec<String> = done.iter().flat_map(runner::Done::problems).collect();
    problems.iter().for_each(|problem| say(problem));
    if args.json {
        for row in &rows {
            print(&serde_json::to_string(row).unwrap_or_default());
        }
        return Ok(u8::from(!problems.is_empty()));
    }
    print("\nGreenBag (RTSS 2013): playback, interruption and energy in virtual time, beside a clairvoyant.");
    print("The paper plots its figures and gives no numbers for them; those of its text stand further below.");
    print(&Machine::here().line());
    for artefact in wanted.iter().filter(|name| figures.iter().any(|figure| figure.artefact == **name)) {
        print(&format!("\n{artefact}: {}\n{}", title(artefact), table::table(&rows, artefact).plain()));
    }
    if let Some(table) = table::said(&rows) {
        print(&format!("What the paper's text says, and ours:\n{}", table.plain()));
    }
    if let Some(table) = table::floors(&floors) {
        print(&format!("Floors:\n{}", table.plain()));
    }
    Ok(u8::from(!problems.is_empty()))
}

/// Repetitions of `--quick`.
const QUICK_RUNS: u32 = 2;

/// The artefacts that were named; all, if none was.
fn wanted(named: &[String]) -> Result<Vec<&'static str>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([TRACES]);
    if let Some(unknown) = named.iter().find(|name| all().all(|known| known != name.as_str())) {
        let known: Vec<&str> = all().collect();
        return Err(LabError::Spec(format!("no artefact `{unknown}` of GreenBag: {}", known.join(", "))));
    }
    Ok(all().filter(|known| named.is_empty() || named.iter().any(|name| name == known)).collect())
}

/// The pairs of recorded links whose traces are there; of the others it is said why they are left out.
fn recorded(traces: &[PathBuf]) -> Result<Vec<Figure>, LabError> {
    let pairs = scenarios::find("greenbag-pairs")?;
    let (mut figures, mut skipped) = (Vec::new(), Vec::new());
    for case in &pairs.cases {
        match Setting::recorded(case, traces, PAIR_LENGTH, PAIR_SHARE) {
            Ok(setting) => figures.push(figures::recorded(case.name.clone(), setting)),
            Err(error) => skipped.push((case.name.as_str(), scenarios::trace_refusal(&error, traces))),
        }
    }
    if let Some((first, why)) = skipped.first() {
        say(&format!("skipped: {TRACES}: {} of {} pairs; {first}: {why}", skipped.len(), pairs.cases.len()));
    }
    Ok(figures)
}

/// What the videos of recorded pairs need: as in figure 13 at 80 %.
const PAIR_LENGTH: Duration = Duration::from_secs(120);
const PAIR_SHARE: f64 = 0.8;

fn title(artefact: &str) -> &'static str {
    match artefact {
        "F9a" => "size of segments × ratio of LTE to Wi-Fi, 6 Mbit/s in all, 40 s of video at 90 %",
        "F9b" => "size of segments × bit rate, 3 + 3 Mbit/s, 40 s of video",
        "F10" => "adaptive and equal subsegments × ratio of LTE to Wi-Fi, 40 s of video at 80 %",
        "F11" => "one hole of 15 s in Wi-Fi, the bandwidth being 110 % of the video's rate",
        "F12" => "holes of 6 to 25 s in Wi-Fi; 110 s of video at 110 % of the bandwidth, and with a tenth to spare",
        "F13" => "bit rate, 3 + 3 Mbit/s, 120 s of video",
        "F14" => "Table II's bandwidths, 117 s of video at 6.1 Mbit/s, segments of 1000 KiB",
        "X-over" => "bit rates above the bandwidth, 3 + 3 Mbit/s, 120 s of video",
        "X-fluct" => "bandwidths that wander (log-AR(1), 1 s, memory 0.8)",
        _ => "pairs of recorded links, 120 s of video at 80 % of what they carry on the average",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artefacts_are_named_and_unknown_ones_refused() {
        assert_eq!(wanted(&[]).unwrap().len(), 10);
        assert_eq!(wanted(&["X-over".into(), "F9a".into()]).unwrap(), ["F9a", "X-over"]);
        let refused = wanted(&["F15".into()]).unwrap_err().to_string();
        assert!(refused.contains("`F15`") && refused.contains("F9a, F9b"), "{refused}");
    }

    #[test]
    fn pairs_without_their_traces_are_left_out() {
        assert!(recorded(&[]).unwrap().is_empty());
        let pairs = scenarios::find("greenbag-pairs").unwrap();
        assert!(pairs.cases.len() >= 12 && pairs.cases.iter().all(|case| case.links.len() == 2));
    }
}
