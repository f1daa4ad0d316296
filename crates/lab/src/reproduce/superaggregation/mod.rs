//! `marline-lab reproduce super`: the evaluation of Super-aggregation (§2, §3, §6 and §8) again.
//!
//! In: which artefacts, which senders, who. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. Real time only: what is shown is what a stock kernel's sender does, with cubic, reno and BBR, and no model of it.
//! 2. Plain TCP, `paper` and ours take turns within each run, with the same losses and blackouts; each cell is kept in
//!    `evidence/super/lab.jsonl` as soon as it is done, and `--continue` goes on there. A cell that is measured again in a later
//!    session is then compared with one of an earlier session, and perhaps of another build.
//! 3. Several cells may be measured side by side (`--jobs`); which points with which senders, and how long that takes, is
//!    [`plan`]'s.
//! 4. `--quick` does every point once, with cubic alone and for some seconds.
//! 5. What the accelerator cannot do is left out with a line that says so; the rest is measured all the same.
//! 6. The exit code is 1 if something else could not be measured.

mod cell;
mod energy;
mod paper;
mod plan;
mod reason;
mod rows;
mod setting;
mod table;

use std::sync::{Mutex, PoisonError};

use marline_core::units::DataSize;

use super::ReproduceArgs;
use super::book::Book;
use super::store::Store;
use crate::accel::TrialEnv;
use crate::bench::is_stopped;
use crate::crowd::{MOST_JOBS, PLACE};
use crate::evidence::By;
use crate::runner::command::{begin, print, say};
use crate::server::Payload;
use crate::{Congestion, LabError};
use cell::Cell;
use plan::Item;
use rows::Results;
use setting::{Case, MEASURED};

/// What can be asked for.
const KNOWN: [&str; 9] = ["F1", "F2a", "F2b", "F2c", "F5", "F6", "F7", "F8", "S8"];
/// Repetitions (`issue`: five or more).
const RUNS: u32 = 5;
/// What 30 Mbit/s carry in the longest run.
const SIZE: DataSize = DataSize::from_bytes(250_000_000);

/// Does it, and gives the exit code.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let chosen = Chosen::of(&args.cases)?;
    let jobs = jobs(args)?;
    if args.sim {
        return Err(LabError::Spec("super has no --sim: what it shows is what a real sender does".into()));
    }
    let senders = match (args.senders.is_empty(), args.quick) {
        (false, _) => args.senders.clone(),
        (true, true) => vec![Congestion::Cubic],
        (true, false) => vec![Congestion::Cubic, Congestion::Reno, Congestion::Bbr],
    };
    let cases = chosen.cases(args.quick, &args.clients)?;
    let is_named = |case: &Case| chosen.names(case);
    let cells = if args.kept {
        super::read::<Cell>(args)?
    } else {
        match begin(By::Lab) {
            Err(error) if args.quick => {
                say(&format!("skipped: the lab: {error}"));
                return Ok(0);
            }
            begun => begun?,
        }
        let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
        let store = match args.quick {
            true => None,
            false => Some(Store::<Cell>::open(&args.file(), args.go_on, 1.0)?),
        };
        measure(&plan::items(&cases, &senders, runs, is_named), jobs, store)?
    };
    if is_stopped() && !args.quick {
        say(&format!("stopped; {} cells are kept, go on with --continue", cells.len()));
        return Ok(130);
    }
    if is_stopped() {
        say("interrupted: what follows is no result");
    }
    let failed = cells.iter().any(|cell| cell.problem.is_some());
    let code = if is_stopped() { 130 } else { u8::from(failed) };
    let rows = Results { cases: &cases, cells: &cells, senders: &senders }.rows();
    if args.json {
        super::print_rows(args, &rows);
        return Ok(code);
    }
    print(
        "\nSuper-aggregation (CoNEXT 2009): the paper's figure / ours, in real time over emulated links, kernel TCP.",
    );
    print("The paper plots its figures without numbers; what its text says stands in the columns `paper:`.");
    print(
        "The client `paper` is our re-implementation of one reading of the paper, over senders that it did not have:",
    );
    paper::LIMITS.iter().for_each(|limit| print(limit));
    print(&args.place());
    for artefact in KNOWN.into_iter().filter(|artefact| chosen.wants(artefact)) {
        if let Some(table) = table::table(&rows, artefact) {
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table.plain()));
            if let Some(out) = plan::left_out(artefact, &cases, &senders, is_named) {
                print(&out);
            }
        }
    }
    if chosen.wants("F7") {
        print(
            "F7: `ranges` (hide) is the form with range requests, which the paper publishes too. F7(a) is left out: how fast one lost \
             segment is fetched is not told apart from the others' by `status`.",
        );
    }
    Ok(code)
}

/// The artefacts that are asked for, and of them the points: `F6`, `F6 2s, 50ms` by its first words.
struct Chosen(Vec<String>);

impl Chosen {
    fn of(pieces: &[String]) -> Result<Self, LabError> {
        let mut named: Vec<String> = Vec::new();
        for piece in pieces {
            // The list is cut at commas, and a point's name has one with a space behind it.
            match named.last_mut().filter(|_| piece.starts_with(' ')) {
                Some(last) => *last += &format!(",{piece}"),
                None => named.push(piece.clone()),
            }
        }
        match named.iter().find(|word| !KNOWN.contains(&artefact_of(word))) {
            Some(unknown) => Err(LabError::Spec(format!(
                "no artefact `{unknown}` of Super-aggregation; there are: {}",
                KNOWN.join(", ")
            ))),
            None => Ok(Self(named)),
        }
    }

    fn wants(&self, artefact: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| artefact_of(word) == artefact)
    }

    /// Whether the user named this point, and not all of its artefact.
    fn names(&self, case: &Case) -> bool {
        let is = |word: &&String| artefact_of(word) == case.artefact && word.len() > case.artefact.len();
        self.0.iter().filter(is).any(|word| is_point(word, case))
    }

    /// What is to be measured, by whom.
    fn cases(&self, quick: bool, ways: &[String]) -> Result<Vec<Case>, LabError> {
        let named = |case: &Case| {
            // The account of §8 has the rates of two points.
            let account = [("F1", "11g-mixed"), ("F5", "11g-mixed, 50ms")];
            let counted = self.0.iter().any(|word| word == "S8") && account.contains(&(case.artefact, &case.name));
            self.0.is_empty() || self.0.iter().any(|word| is_point(word, case)) || counted
        };
        let mut all: Vec<Case> = MEASURED.into_iter().flat_map(setting::cases).filter(named).collect();
        if quick {
            all = all.into_iter().map(Case::quick).collect();
        }
        if !ways.is_empty() {
            for case in &mut all {
                case.ways.retain(|way| ways.iter().any(|wanted| wanted == way.name));
            }
            all.retain(|case| !case.ways.is_empty());
        }
        match all.is_empty() {
            true => Err(LabError::Spec("nothing is called so: see docs/benchmarks.md for points and ways".into())),
            false => Ok(all),
        }
    }
}

/// Whether a word names this point: its artefact, and its name's first words.
fn is_point(word: &str, case: &Case) -> bool {
    let rest = word.strip_prefix(artefact_of(word)).unwrap_or_default().trim();
    artefact_of(word) == case.artefact && case.name.starts_with(rest)
}

fn artefact_of(word: &str) -> &str {
    word.split(' ').next().unwrap_or_default()
}

/// So many cells at once.
fn jobs(args: &ReproduceArgs) -> Result<usize, LabError> {
    let most = usize::from(MOST_JOBS);
    match args.jobs.unwrap_or(1) {
        jobs if jobs > most => {
            Err(LabError::Spec(format!("--jobs {jobs}: at most {most} labs side by side, more are late")))
        }
        jobs => Ok(jobs),
    }
}

/// Does what the store does not have; gives all that it has then.
fn measure(items: &[Vec<Item<'_>>], jobs: usize, store: Option<Store<Cell>>) -> Result<Vec<Cell>, LabError> {
    let book = Book::new(store);
    let payload = Payload::new(SIZE).map_err(LabError::at("a file in memory"))?;
    let workshop = TrialEnv::new()?;
    let effort = plan::effort(items, |item| book.has(&item.point()), jobs);
    say(&format!("{}; stop with Ctrl-C, go on with --continue", plan::told(effort, jobs)));
    let refused = Mutex::new(Vec::<&'static str>::new());
    let refused = || refused.lock().unwrap_or_else(PoisonError::into_inner);
    let one = |item: &Item<'_>| {
        let way = item.way.name;
        if refused().contains(&way) {
            return Ok(None);
        }
        match cell::measure(item.case, item.way, item.sender, item.run, (&payload, &workshop)) {
            _ if is_stopped() => Ok(None),
            Ok(came) => Ok(Some(came)),
            Err(why) if why.to_string().starts_with(CANNOT) => {
                let mut refused = refused();
                if !refused.contains(&way) {
                    say(&format!("`{way}` is left out: {why}"));
                    refused.push(way);
                }
                Ok(None)
            }
            Err(why) => Ok(Some(Err(why.to_string()))),
        }
    };
    book.measure(items, jobs, Item::point, |_| PLACE, one)?;
    Ok(book.into_cells())
}

/// How an accelerator that does not start is told.
const CANNOT: &str = "cannot start `marline accel`";

fn title(artefact: &str) -> &'static str {
    match artefact {
        "F1" => "two connections over two links (§2.2)",
        "F2a" => "what ACKs take of a cell (§3.1)",
        "F2b" => "a connection over a blackout of 2 s (§3.2)",
        "F2c" => "random loss (§3.3)",
        "F5" => "ACKs over the second link (§6.3)",
        "F6" => "blackouts every 20 s on average (§6.4)",
        "F7" => "random loss, plain HTTP (§6.5)",
        "F8" => "a walk through three access points (§6.6)",
        _ => "joules of 10 MB (§8)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Chosen {
        Chosen::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn points_are_named_by_their_first_words() {
        let names = |words: &[&str]| {
            let cases = chosen(words).cases(false, &[]).unwrap();
            cases.iter().map(|case| format!("{} {}", case.artefact, case.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&["F6 10s"]), ["F6 10s, 50ms"]);
        assert_eq!(names(&["S8"]), ["F1 11g-mixed", "F5 11g-mixed, 50ms"]);
        assert_eq!(names(&["F2b"]).len(), 1);
        assert!(names(&[]).len() > 30);
        assert_eq!(names(&["F6 2s", " 200ms", "F6 10s"]), ["F6 2s, 200ms", "F6 10s, 50ms"]);
        assert!(Chosen::of(&["F3".into()]).is_err() && Chosen::of(&["F6".into(), "F3".into()]).is_err());
    }

    #[test]
    fn only_who_is_wanted_takes_part() {
        let cases = chosen(&["F1", "F6"]).cases(true, &["plain".into(), "ideal".into()]).unwrap();
        assert!(cases.iter().all(|case| case.artefact == "F6" && case.ways.len() == 2));
        assert!(chosen(&["F1"]).cases(false, &["ours".into()]).is_err());
    }

    #[test]
    fn more_labs_at_once_than_a_machine_bears_are_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ReproduceArgs,
        }
        let parse = |words: &[&str]| {
            let line = [&["reproduce", "super"], words].concat();
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.args)
        };
        let of = |words: &[&str]| jobs(&parse(words).unwrap());
        assert_eq!((of(&[]).unwrap(), of(&["--jobs", "6"]).unwrap(), of(&["--parallel", "4"]).unwrap()), (1, 6, 4));
        assert!(of(&["--jobs", "17"]).unwrap_err().to_string().contains("at most 16"));
        assert!(parse(&["--jobs", "0"]).is_err());
    }

    #[test]
    fn a_point_is_named_by_more_than_its_artefact() {
        let case = &setting::cases("F6")[1];
        assert!(chosen(&["F6 2s, 100ms"]).names(case) && chosen(&["F6 2s"]).names(case));
        assert!(!chosen(&["F6"]).names(case) && !chosen(&[]).names(case) && !chosen(&["F6 10s"]).names(case));
    }
}
