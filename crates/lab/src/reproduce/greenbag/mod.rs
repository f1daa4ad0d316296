//! `marline-lab reproduce greenbag`: the evaluation of GreenBag (RTSS 2013, §V) again, with our own policy and a
//! clairvoyant beside it, and what this project asks of its policy beyond that.
//!
//! In: which artefacts. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. In real time everything is played through `marline proxy` over kernel TCP and emulated links ([`real`]), many cases
//!    at once ([`cells`]), each kept in `evidence/greenbag/lab.jsonl` as soon as it is done; `--continue` goes on there.
//!    The same cases in virtual time stand beside it.
//! 2. In virtual time (`--sim`) it is the machine of `marline proxy` over sim's links and its model of TCP: minutes of
//!    video in a fraction of a second each, and so more of them.
//! 3. `--quick` does all artefacts in virtual time with few repetitions and few sizes, and a few seconds of video in real
//!    time; where the machine forbids a lab, it says so and leaves that part out.
//! 4. `--runs` changes how often chance is asked where it plays a part (figure 12, wandering links).

mod cells;
mod figures;
mod floors;
mod real;
mod rows;
mod runner;
mod setting;
mod table;

use std::path::PathBuf;

use marline_core::units::Duration;

use super::ReproduceArgs;
use super::book::Book;
use super::floor;
use super::store::Store;
use crate::bench::is_stopped;
use crate::evidence::By;
use crate::runner::command::{begin, print, say};
use crate::runner::rounded;
use crate::{LabError, scenarios};
use cells::Cell;
use figures::{ARTEFACTS, Effort, Figure, TRACES};
use real::Workshop;
use runner::Done;
use setting::Setting;

/// Does it, and gives the exit code: 1 if something could not be played.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let wanted = wanted(&args.cases)?;
    if args.quick {
        return quick(args, &wanted);
    }
    if args.sim {
        let figures = figures_of(args, &wanted, Effort::FULL)?;
        return Ok(show(args, &figures, None, &simulated(args, &figures)));
    }
    let (figures, cells) = if args.kept {
        (figures_of(args, &wanted, Effort::LAB)?, super::read::<Cell>(args)?)
    } else {
        begin(By::Lab)?;
        let figures = figures_of(args, &wanted, Effort::LAB)?;
        let store = Store::open(&args.file(), args.go_on, 1.0)?;
        let (cells, stopped) = real(args, &figures, store)?;
        if stopped {
            say(&format!("stopped; {} cases are kept, go on with --continue", cells.len()));
            return Ok(130);
        }
        (figures, cells)
    };
    let figures = cells::played(figures, &cells);
    let each = |figure: &Figure, who, run| cells::judged(&cells, figure, who, run);
    say(if args.kept { "what a clairvoyant would have needed" } else { BESIDE });
    let real = with_suspects(runner::gather(&figures, each, |_| {}), &figures, &cells);
    let beside = if args.kept { Vec::new() } else { simulated(args, &figures) };
    Ok(show(args, &figures, Some(&real), &beside))
}

const BESIDE: &str = "what a clairvoyant would have needed, and the same in virtual time";

fn with_suspects(mut done: Vec<Done>, figures: &[Figure], cells: &[Cell]) -> Vec<Done> {
    for (done, figure) in done.iter_mut().zip(figures) {
        done.suspects = figure.who.iter().map(|who| (*who, cells::suspects(cells, figure, *who))).collect();
    }
    done
}

/// What is wanted, as far as its traces are there.
fn figures_of(args: &ReproduceArgs, wanted: &[&'static str], effort: Effort) -> Result<Vec<Figure>, LabError> {
    let effort = Effort { runs: args.runs, ..effort };
    let mut figures: Vec<Figure> =
        wanted.iter().filter(|name| **name != TRACES).flat_map(|name| figures::figures(name, effort)).collect();
    if wanted.contains(&TRACES) {
        figures.extend(recorded(&scenarios::trace_directories(&args.traces))?);
    }
    figures.retain_mut(|figure| figure.keep(&args.cases));
    if figures.is_empty() && wanted != [TRACES] {
        return Err(LabError::Spec(format!(
            "no case `{}`: `F13 80% marline` is how one is named",
            args.cases.join(", ")
        )));
    }
    Ok(figures)
}

fn simulated(args: &ReproduceArgs, figures: &[Figure]) -> Vec<Done> {
    runner::play(figures, |figure| {
        if !args.json {
            say(&format!("{} {}", figure.artefact, figure.case));
        }
    })
}

/// Plays in real time what the store does not have; gives all that it has then, and whether the user stopped it.
fn real(args: &ReproduceArgs, figures: &[Figure], store: Store<Cell>) -> Result<(Vec<Cell>, bool), LabError> {
    let at_once = args.jobs.unwrap_or_else(usual_crowd);
    let videos = runner::items(figures).into_iter().map(|(at, ..)| figures[at].settings[0].video().duration());
    let least = videos.sum::<Duration>() / u32::try_from(at_once.max(1)).unwrap_or(u32::MAX);
    say(&format!("{} of video, {at_once} at once; stop with Ctrl-C, go on with --continue", rounded(least)));
    let workshop = Workshop::new(args.trace.clone())?;
    let book = Book::new(Some(store));
    cells::play(figures, &book, &workshop, at_once)?;
    Ok((book.into_cells(), is_stopped()))
}

/// So many cases at once: each needs a twentieth of a core, and all of them leave half of the machine to itself.
fn usual_crowd() -> usize {
    8 * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// All artefacts in virtual time, and a short film in real time.
fn quick(args: &ReproduceArgs, wanted: &[&'static str]) -> Result<u8, LabError> {
    // Privilege first: it must be asked for while there is one thread.
    let lab = if args.sim { None } else { Some(begin(By::Lab)) };
    let figures = figures_of(args, wanted, Effort::QUICK)?;
    let code = show(args, &figures, None, &simulated(args, &figures));
    let short = figures::short();
    let played = match lab {
        None => return Ok(code),
        Some(Err(error)) => Err(error),
        Some(Ok(())) => {
            let workshop = Workshop::new(args.trace.clone())?;
            let book = Book::new(None).telling(Some("lab: "));
            let played = cells::play(&short, &book, &workshop, QUICK_CROWD);
            played.map(|()| (is_stopped(), book.into_cells()))
        }
    };
    let cells = match played {
        Ok((true, _)) => return Ok(130),
        Ok((false, cells)) => cells,
        Err(error) => {
            say(&format!("skipped: the lab: {error}"));
            return Ok(code);
        }
    };
    let shown = cells::played(short, &cells);
    let real = runner::gather(&shown, |figure, who, run| cells::judged(&cells, figure, who, run), |_| {});
    Ok(code.max(show(args, &shown, Some(&real), &runner::play(&shown, |_| {}))))
}

/// All of the short film's cases at once.
const QUICK_CROWD: usize = 3;

/// Prints everything in the form that was asked for, and gives the exit code.
fn show(args: &ReproduceArgs, figures: &[Figure], real: Option<&[Done]>, simulated: &[Done]) -> u8 {
    let (done, by) = real.map_or((simulated, By::Sim), |real| (real, By::Lab));
    let floors = floors::floors(done);
    let rows = rows::rows(done, &floors, by);
    let suspects: usize = done.iter().flat_map(|done| &done.suspects).map(|(_, count)| count).sum();
    let beside = real.filter(|_| !simulated.is_empty());
    let beside = beside.map(|_| rows::rows(simulated, &floors::floors(simulated), By::Sim));
    let beside = beside.as_deref();
    let problems: Vec<String> = done.iter().flat_map(Done::problems).collect();
    problems.iter().for_each(|problem| say(problem));
    if args.json {
        super::print_rows(args, rows.iter().chain(beside.unwrap_or_default()));
        return u8::from(!problems.is_empty());
    }
    let time = match by {
        By::Sim => "virtual time",
        By::Lab if beside.is_none() => "real time over kernel TCP and emulated links",
        By::Lab => "real time over kernel TCP and emulated links, beside virtual time (sim)",
    };
    print(&format!("\nGreenBag (RTSS 2013): playback, interruption and energy in {time}, and a clairvoyant's."));
    print("The paper plots its figures and gives no numbers for them; those of its text stand further below.");
    print(
        "greenbag-p and greenbag-e are our re-implementation: w_r, w_e and the chooser's margin are chosen, recovery and the choice \
         of links have conditions of our own (docs/algorithms.md). The player has no high threshold, figure 14 included.",
    );
    print(&args.place());
    for artefact in ARTEFACTS.into_iter().chain([TRACES, figures::SHORT]) {
        if figures.iter().any(|figure| figure.artefact == artefact) {
            let table = table::table(&rows, beside, artefact);
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table.plain()));
        }
    }
    if suspects > 0 {
        print(&format!("{suspects} playings are suspect (see the notes of --json); --continue does them again."));
    }
    if let Some(table) = table::said(&rows, beside) {
        print(&format!("What the paper's text says, and ours:\n{}", table.plain()));
    }
    if let Some(table) = floor::table(&floors) {
        print(&format!("Floors:\n{}", table.plain()));
    }
    u8::from(!problems.is_empty())
}

/// The artefacts that were named; all, if none was.
fn wanted(named: &[String]) -> Result<Vec<&'static str>, LabError> {
    let all = || ARTEFACTS.into_iter().chain([TRACES]);
    let artefact = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
    if let Some(unknown) = named.iter().find(|name| all().all(|known| known != artefact(name))) {
        let known: Vec<&str> = all().collect();
        return Err(LabError::Spec(format!("no artefact `{unknown}` of GreenBag: {}", known.join(", "))));
    }
    Ok(all().filter(|known| named.is_empty() || named.iter().any(|name| artefact(name) == *known)).collect())
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
        figures::SHORT => "3 + 3 Mbit/s, 10 s of video at 80 %",
        "X-fluct" => {
            "bandwidths that wander (log-AR(1), 1 s, memory 0.8); a constant of marline was chosen on the first 20 draws"
        }
        _ => "pairs of recorded links, 120 s of video at 80 % of what they carry on the average",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artefacts_are_named_and_unknown_ones_refused() {
        assert_eq!(wanted(&[]).unwrap().len(), 10);
        assert_eq!(wanted(&["X-over 110% marline".into(), "F9a".into()]).unwrap(), ["F9a", "X-over"]);
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
