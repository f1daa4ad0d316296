//! `marline-lab reproduce bass`: the evaluation of BASS (§II-B and §V) again.
//!
//! In: which artefacts. Out: tables for people, or rows in the form of every reproduction (`--json`), and floors that are judged.
//!
//! 1. In real time edge, relays, service and origin are what users have, in namespaces with emulated links between them and kernel TCP
//!    and MPTCP over these ([`real`]); each upload is kept in `evidence/bass/lab.jsonl` as soon as it is done, and `--continue`
//!    goes on there.
//! 2. `--sim`: the same cases in virtual time ([`simulate`]), and figures 8 to 10 for 8 relays and 60 nodes ([`fleet`]), which no lab
//!    holds; nothing is kept.
//! 3. `--quick` does a few cases of each artefact with short uploads: under half a minute in virtual time.
//! 4. `--cc` is the congestion control of plain TCP and of the edge, in real time; a relay sends on with its own (BBR where
//!    the kernel has it). `--by-fleet` lets the fleet's service choose relays too.
//! 5. The exit code is 1 if an upload failed; a floor that is missed is said, and changes no code.

mod cases;
mod fleet;
mod measured;
mod play;
mod real;
mod rows;
mod send;
mod setting;
mod simulate;
mod table;

use super::ReproduceArgs;
use super::book::Book;
use super::cell;
use super::floor::{self, Floor};
use super::store::Store;
use crate::LabError;
use crate::bench::is_stopped;
use crate::evidence::{By, Row};
use crate::runner::command::{begin, print, say};
use cases::{Effort, KNOWN, MEASURED, measured_for};
use measured::{Cell, Upload};
use real::Workshop;
use rows::Results;
use setting::Case;

/// Does it, and gives the exit code: 1 if something could not be uploaded.
pub(super) fn run(args: &ReproduceArgs) -> Result<u8, LabError> {
    let chosen = Chosen::of(&args.cases)?;
    let by = if args.sim { By::Sim } else { By::Lab };
    if args.kept {
        let cells = super::read::<Cell>(args)?;
        let effort = Effort { runs: args.runs.unwrap_or(1), quick: false, fleet: false };
        return Ok(show(args, &chosen, &chosen.cases(effort, by), &cells, None, by));
    }
    if by == By::Lab {
        match begin(by) {
            Err(error) if args.quick => {
                say(&format!("skipped: the lab: {error}"));
                return Ok(0);
            }
            begun => begun?,
        }
    }
    let effort = Effort { runs: args.runs.unwrap_or(1), quick: args.quick, fleet: args.by_fleet };
    let cases = chosen.cases(effort, by);
    if by == By::Sim {
        let cells = play::simulated(&cases, args.cc.name())?;
        let drawn = if args.quick { QUICK_FLEETS } else { args.runs.unwrap_or(FLEETS) };
        return Ok(show(args, &chosen, &cases, &cells, Some(fleet::rows(|a| chosen.wants(a), drawn)), by));
    }
    let store = match args.quick {
        true => None,
        false => Some(Store::<Cell>::open(&args.file(), args.go_on, 1.0)?),
    };
    let played = play(args, &cases, store);
    let (cells, stopped) = match played {
        Err(error @ (LabError::UserNamespace { .. } | LabError::Tun { .. })) if args.quick => {
            say(&format!("skipped: the lab: {error}"));
            return Ok(0);
        }
        played => played?,
    };
    if stopped {
        say(&format!("stopped; {} uploads are kept, go on with --continue", cells.len()));
        return Ok(130);
    }
    Ok(show(args, &chosen, &cases, &cells, None, by))
}

/// The artefacts that are asked for, and of them the cases.
struct Chosen(Vec<String>);

impl Chosen {
    /// `F11`, or `F11 origin 3`.
    fn of(named: &[String]) -> Result<Self, LabError> {
        let chosen = Self(named.to_vec());
        match chosen.0.iter().find(|word| !KNOWN.contains(&artefact_of(word))) {
            Some(unknown) => {
                Err(LabError::Spec(format!("no artefact `{unknown}` of BASS; there are: {}", KNOWN.join(", "))))
            }
            None => Ok(chosen),
        }
    }

    fn wants(&self, artefact: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|word| artefact_of(word) == artefact)
    }

    /// What is to be measured. In virtual time the choice among relays is [`fleet`]'s.
    fn cases(&self, effort: Effort, by: By) -> Vec<Case> {
        let needs = |artefact: &str| KNOWN.iter().any(|known| measured_for(known) == artefact && self.wants(known));
        let mut all: Vec<Case> = MEASURED
            .into_iter()
            .filter(|artefact| needs(artefact))
            .filter(|artefact| by == By::Lab || *artefact != "F9")
            .flat_map(|artefact| cases::cases(artefact, effort))
            .collect();
        let is_named = |case: &Case, word: &String| {
            let rest = word.strip_prefix(artefact_of(word)).unwrap_or_default().trim();
            measured_for(artefact_of(word)) == case.artefact && (rest.is_empty() || rest == case.name)
        };
        all.retain(|case| self.0.is_empty() || self.0.iter().any(|word| is_named(case, word)));
        all
    }
}

fn artefact_of(word: &str) -> &str {
    word.split(' ').next().unwrap_or_default()
}

/// Does in real time what the store does not have; gives all that it has then, and whether the user stopped it.
fn play(args: &ReproduceArgs, cases: &[Case], store: Option<Store<Cell>>) -> Result<(Vec<Cell>, bool), LabError> {
    let workshop = Workshop::new(args.cc)?;
    let book = Book::new(store);
    play::real(cases, &book, &workshop, args.jobs.unwrap_or(1))?;
    Ok((book.into_cells(), is_stopped()))
}

/// Prints everything in the form that was asked for, and gives the exit code.
fn show(
    args: &ReproduceArgs,
    chosen: &Chosen,
    cases: &[Case],
    cells: &[Cell],
    drawn: Option<(Vec<Row>, Vec<Floor>)>,
    by: By,
) -> u8 {
    let results = Results { cases, cells, congestion: args.cc.name() };
    let (mut rows, mut floors) = results.rows(|artefact| chosen.wants(artefact));
    if let Some((more, judged)) = drawn {
        rows.extend(more);
        floors.extend(judged);
    }
    rows.extend(floors.iter().map(Floor::row));
    rows.iter_mut().for_each(|row| row.by = by);
    let of = |case: &Case| case.ways.iter().map(|way| (case.clone(), *way)).collect::<Vec<_>>();
    let last = |(case, way): (Case, _)| cell::last(cells, &Upload::of(&case, way, args.cc.name()));
    let problems: Vec<&Cell> =
        cases.iter().flat_map(of).filter_map(last).filter(|cell| cell.problem.is_some()).collect();
    let code = u8::from(!problems.is_empty());
    problems.iter().for_each(|cell| say(&cell.line()));
    if args.json {
        super::print_rows(args, &rows);
        return code;
    }
    let time = match by {
        By::Sim => "virtual time",
        By::Lab => "real time: edge, relays and kernel MPTCP over emulated links",
    };
    print(&format!("\nBASS (arXiv 1605.08969): the paper's figure / ours, in {time}."));
    print(&senders(by, args.cc.name()));
    print("The paper plots figures 5, 8 and 9 without numbers; what its text says stands in the column `paper`.");
    print("Left out: figures 2 to 4 (measurements of the authors' own networks) and 7.");
    print(&args.place());
    for artefact in KNOWN {
        if let Some(table) = table::table(&rows, artefact) {
            print(&format!("\n{artefact}: {}\n{}", title(artefact), table.plain()));
            if let Some(remark) = remark(artefact, by) {
                print(remark);
            }
        }
    }
    if let Some(table) = floor::table(&floors) {
        print(&format!("\nFloors:\n{}", table.plain()));
    }
    code
}

/// Which congestion control each sender has.
fn senders(by: By, edge: &str) -> String {
    match by {
        By::Sim => "Senders: one model of TCP without a choice of congestion control.".into(),
        By::Lab => format!(
            "Senders: {edge} in plain TCP and in the edge's subflows; from commit c55d955 on a relay sends to the origin with its \
             own default, BBR where the kernel has it. So gains compare BBR behind the relay with {edge} without one."
        ),
    }
}

/// What must be known to read a table.
fn remark(artefact: &str, by: By) -> Option<&'static str> {
    Some(match (artefact, by) {
        ("F5", By::Lab) => {
            "Links without loss and a relay 2 ms away: this is the most that edge and relay can bring, not what a network gives."
        }
        ("F8", _) => {
            "The fall with the distance is an input: each kilometre adds round trip and loss (real time), or divides the rate \
             (drawn fleets). The paper measured it."
        }
        ("F9", By::Lab) => {
            "Three relays, all of them measured: that an edge measures only the nearest of many is not in this table."
        }
        ("F9", By::Sim) => {
            "Fleets are drawn so that the best candidate has on average 5.2 times the box's own rate: the size of the gain is an \
             input."
        }
        ("F10", By::Lab) => {
            "The rate from a relay to the origin is measured with plain TCP, but the relay sends with BBR, so the foretold best \
             relay is not always the best one. The service (fleet) knew no such rate of these fresh relays and chose by the rate \
             to them alone."
        }
        ("F10", By::Sim) => {
            "γ is over a box's own candidates (the paper: over all relays), whose rates are known without error, and the best plan \
             is found by the same solver. It is not what a plan maximises: Algorithm 1 cut off after 10,000 plans gives more boxes \
             their best relay and gains less."
        }
        ("F11" | "F12", By::Lab) => {
            "The relay of an origin is the simulator's choice; the fleet's service is not asked, and --by-fleet changes nothing \
             here. Losses are drawn evenly from 0 to 2 %, which decides what splitting gains. The edge is connected to its relay \
             before the clock starts. Plain TCP counts with the fastest of its kept runs of the same seed."
        }
        ("F11" | "F12", By::Sim) => {
            "The relay of an origin is the simulator's choice. Losses are drawn evenly from 0 to 2 %, which decides what splitting \
             gains."
        }
        _ => return None,
    })
}

fn title(artefact: &str) -> &'static str {
    match artefact {
        "F5" => "upload over sets of two Wi-Fi and two 4G links, steady (§II-B)",
        "F8" => "bandwidth over distance (§V-B.1)",
        "F9" => "bandwidth by who chooses the relay (§V-B.2)",
        "F10" => "the hit rate γ: how many reach so much of the best relay's bandwidth (§V-B.2)",
        "F11" => "bandwidth at the origins, two links of 8 Mbit/s (§V-C), Mbit/s",
        "F12" => "the gain over plain TCP (§V-C)",
        _ => "uploads that have a floor, steady",
    }
}

/// Fleets that are drawn for figures 8 to 10.
const FLEETS: u32 = 20;
const QUICK_FLEETS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Chosen {
        Chosen::of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn cases_are_named_by_artefact_and_name() {
        let effort = Effort { runs: 1, quick: true, fleet: false };
        let names = |words: &[&str], by| {
            let cases = chosen(words).cases(effort, by);
            cases.iter().map(|case| format!("{} {}", case.artefact, case.name)).collect::<Vec<_>>()
        };
        assert_eq!(names(&["F12 origin 2"], By::Lab), ["F11 origin 2"]);
        assert_eq!(names(&["F10"], By::Lab), ["F9 origin 1"]);
        assert!(names(&["F10"], By::Sim).is_empty());
        assert!(names(&[], By::Lab).len() > 6);
        assert!(Chosen::of(&["F6".into()]).is_err());
    }

    #[test]
    fn everything_small_in_virtual_time_has_rows_and_floors() {
        let effort = Effort { runs: 1, quick: true, fleet: false };
        let all = chosen(&[]);
        let cases = all.cases(effort, By::Sim);
        let cells = play::simulated(&cases, "cubic").unwrap();
        assert!(cells.iter().all(|cell| cell.problem.is_none()));
        let (rows, floors) = Results { cases: &cases, cells: &cells, congestion: "cubic" }.rows(|_| true);
        for artefact in ["F5", "X-upload", "F8", "F11", "F12"] {
            assert!(table::table(&rows, artefact).is_some(), "{artefact}");
        }
        assert!(floors.iter().any(|floor| floor.artefact == "X-upload" && floor.met()));
        assert!(floors.iter().any(|floor| floor.artefact == "F12"));
    }
}
