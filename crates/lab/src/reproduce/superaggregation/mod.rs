//! `marline lab reproduce super`: the evaluation of Super-aggregation (§2, §3, §6 and §8) again.
//!
//! In: which artefacts, which senders, who. Out: tables for people, or rows in the form of every reproduction (`--json`).
//!
//! 1. Real time only: what is shown is what a stock kernel's sender does, with cubic, reno and BBR, and no model of it.
//! 2. Plain TCP, the paper's form and ours take turns within each run, with the same losses and blackouts; each cell is kept in
//!    `evidence/super/lab.jsonl` as soon as it is done, and `--continue` goes on there.
//! 3. `--quick` does every point once, with cubic alone and for some seconds.
//! 4. What the accelerator cannot do is left out with a line that says so; the rest is measured all the same.
//! 5. The exit code is 1 if something else could not be measured.

mod cell;
mod energy;
mod paper;
mod reason;
mod rows;
mod setting;
mod table;

use marline_core::units::DataSize;

use super::ReproduceArgs;
use super::store::Store;
use crate::bench::is_stopped;
use crate::evidence::{By, Machine};
use crate::runner::command::{begin, print, say};
use crate::server::Payload;
use crate::{Congestion, LabError};
use cell::Cell;
use rows::Results;
use setting::{Case, MEASURED, Way};

/// What can be asked for.
const KNOWN: [&str; 9] = ["F1", "F2a", "F2b", "F2c", "F5", "F6", "F7", "F8", "S8"];
/// Repetitions (`issue`: five or more).
const RUNS: u32 = 5;
/// What 30 Mbit/s carry in the longest run.
const SIZE: DataSize = DataSize::from_bytes(250_000_000);

/// Does it, and gives the exit code.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let chosen = Chosen::of(&args.cases)?;
    if args.sim {
        return Err(LabError::Spec("super has no --sim: what it shows is what a real sender does".into()));
    }
    let senders = match (args.senders.is_empty(), args.quick) {
        (false, _) => args.senders.clone(),
        (true, true) => vec![Congestion::Cubic],
        (true, false) => vec![Congestion::Cubic, Congestion::Reno, Congestion::Bbr],
    };
    match begin(By::Lab) {
        Err(error) if args.quick => {
            say(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
        begun => begun?,
    }
    let cases = chosen.cases(args.quick, &args.clients)?;
    let runs = if args.quick { 1 } else { args.runs.unwrap_or(RUNS) };
    let store = match args.quick {
        true => None,
        false => Some(Store::<Cell>::open(&args.out.join("super").join("lab.jsonl"), args.go_on, 1.0)?),
    };
    let (cells, failed) = measure(&cases, &senders, runs, store)?;
    if is_stopped() {
        say(&format!("stopped; {} cells are kept, go on with --continue", cells.len()));
        return Ok(130);
    }
    let rows = Results { cases: &cases, cells: &cells, senders: &senders }.rows();
    if args.json {
        rows.iter().for_each(|row| print(&serde_json::to_string(row).unwrap_or_default()));
        return Ok(u8::from(failed));
    }
    print(
        "\nSuper-aggregation (MobiCom 2009): the paper's figure / ours, in real time over emulated links, kernel TCP.",
    );
    print("The paper plots its figures without numbers; what its text says stands in the columns `paper`.");
    print(&Machine::here().line());
    for artefact in KNOWN.into_iter().filter(|artefact| chosen.wants(artefact)) {
        if let Some(table) = table::table(&rows, artefact) {
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table.plain()));
        }
    }
    if chosen.wants("F7") {
        say(
            "F7's `paper` hides losses as the paper does, and fetches them by ranges instead of a replayed connection",
        );
        say(
            "F7(a) is left out: how fast one lost segment is fetched is not told apart from the others' by `status`",
        );
    }
    Ok(u8::from(failed))
}

/// The artefacts that are asked for, and of them the points: `F6`, `F6 2s, 50ms` by its first words.
struct Chosen(Vec<String>);

impl Chosen {
    fn of(named: &[String]) -> Result<Self, LabError> {
        match named.iter().find(|word| !KNOWN.contains(&artefact_of(word))) {
            Some(unknown) => Err(LabError::Spec(format!(
                "no artefact `{unknown}` of Super-aggregation; there are: {}",
                KNOWN.join(", ")
            ))),
            None => Ok(Self(named.to_vec())),
        }
    }

    fn wants(&self, artefact: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| artefact_of(word) == artefact)
    }

    /// What is to be measured, by whom.
    fn cases(&self, quick: bool, ways: &[String]) -> Result<Vec<Case>, LabError> {
        let named = |case: &Case| {
            let is = |word: &String| {
                let rest = word.strip_prefix(artefact_of(word)).unwrap_or_default().trim();
                artefact_of(word) == case.artefact && case.name.starts_with(rest)
            };
            // The account of §8 has the rates of two points.
            let account = [("F1", "11g-mixed"), ("F5", "11g-mixed, 50ms")];
            let counted = self.0.iter().any(|word| word == "S8") && account.contains(&(case.artefact, &case.name));
            self.0.is_empty() || self.0.iter().any(is) || counted
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

fn artefact_of(word: &str) -> &str {
    word.split(' ').next().unwrap_or_default()
}

/// Does what the store does not have; gives all that it has then, and whether something failed.
fn measure(
    cases: &[Case],
    senders: &[Congestion],
    runs: u32,
    mut store: Option<Store<Cell>>,
) -> Result<(Vec<Cell>, bool), LabError> {
    let mut cells = store.as_mut().map(|store| std::mem::take(&mut store.earlier)).unwrap_or_default();
    let payload = Payload::new(SIZE).map_err(LabError::at("a file in memory"))?;
    let program = std::env::current_exe().map_err(LabError::at("the path of this program"))?;
    let seconds: u64 = cases.iter().map(|case| case.length.as_secs() * case.ways.len() as u64).sum();
    let minutes = seconds * senders.len() as u64 * u64::from(runs) / 60;
    say(&format!("{minutes} minutes of connections, at least; stop with Ctrl-C, go on with --continue"));
    let (mut failed, mut refused) = (false, Vec::<&'static str>::new());
    for (case, sender, run) in turns(cases, senders, runs) {
        for way in in_turn(&case.ways, run) {
            if is_stopped() {
                return Ok((cells, failed));
            }
            let there = cells.iter().any(|cell| cell.is_good() && cell.is(case, way, sender, run));
            if there || refused.contains(&way.name) {
                continue;
            }
            let cell = Cell::measure(case, way, sender, run, (&payload, &program));
            // The user's end breaks a run off: that is no result.
            if is_stopped() {
                return Ok((cells, failed));
            }
            match cell.problem.as_ref().filter(|why| why.starts_with(CANNOT)) {
                Some(why) => {
                    say(&format!("`{}` is left out: {why}", way.name));
                    refused.push(way.name);
                }
                None => {
                    say(&cell.line());
                    failed |= !cell.is_good();
                    store.as_mut().map_or(Ok(()), |store| store.keep(&cell))?;
                    cells.push(cell);
                }
            }
        }
    }
    Ok((cells, failed))
}

/// How an accelerator that does not start is told.
const CANNOT: &str = "cannot start `marline accel`";

/// Every point with every sender, run by run, so that an early end has something of all.
fn turns<'a>(
    cases: &'a [Case],
    senders: &'a [Congestion],
    runs: u32,
) -> impl Iterator<Item = (&'a Case, Congestion, u32)> {
    (0..runs).flat_map(move |run| {
        cases.iter().flat_map(move |case| senders.iter().map(move |sender| (case, *sender, run)))
    })
}

/// The ways of a run, beginning with another one each time.
fn in_turn(ways: &[Way], run: u32) -> impl Iterator<Item = &Way> {
    let first = run as usize % ways.len().max(1);
    ways.iter().cycle().skip(first).take(ways.len())
}

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
        assert!(Chosen::of(&["F3".into()]).is_err());
    }

    #[test]
    fn only_who_is_wanted_takes_part() {
        let cases = chosen(&["F1", "F6"]).cases(true, &["plain".into(), "ideal".into()]).unwrap();
        assert!(cases.iter().all(|case| case.artefact == "F6" && case.ways.len() == 2));
        assert!(chosen(&["F1"]).cases(false, &["ours".into()]).is_err());
    }

    #[test]
    fn each_run_begins_with_another_way_and_does_all() {
        let case = &setting::cases("F6")[0];
        let names = |run| in_turn(&case.ways, run).map(|way| way.name).collect::<Vec<_>>();
        assert_eq!(names(0), ["plain", "paper", "ours", "ideal"]);
        assert_eq!(names(5), ["paper", "ours", "ideal", "plain"]);
        assert_eq!(turns(std::slice::from_ref(case), &Congestion::ALL, 2).count(), 6);
    }
}
