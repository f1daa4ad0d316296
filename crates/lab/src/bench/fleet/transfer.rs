//! Uploads and downloads through edge and relay over all links, over each of them alone, and without either.
//!
//! | who | what |
//! |---|---|
//! | `marline` | edge and relay, all links |
//! | `edge:LINK` | edge and relay, this link alone |
//! | `tcp:LINK` | plain TCP over this link, to the same server |
//!
//! Each takes what its links carry in the same time. In all, it counts from before its connection; `from 3 s on` is beside it,
//! for windows that open.

use std::time::Duration;

use marline_sim::spec::LinkSpec;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::fleet::Fleet;
use crate::fleet::flow::{Direction, Way, transfer};
use crate::{Lab, LabError, LabSpec};

/// Links of a row: Mbit/s the way that is measured, and round trip in milliseconds.
struct Row {
    name: &'static str,
    links: &'static [(u32, u32)],
    asked: Asked,
}

/// What is asked of it.
enum Asked {
    /// This of the sum of the single goodputs.
    Sum(f64),
    /// This of the better link alone.
    Best(f64),
}

const ROWS: [Row; 5] = [
    Row { name: "8+8", links: &[(8, 40), (8, 80)], asked: Asked::Sum(0.92) },
    Row { name: "8+8 20/120 ms", links: &[(8, 20), (8, 120)], asked: Asked::Sum(0.92) },
    Row { name: "5+10+3", links: &[(5, 20), (10, 60), (3, 120)], asked: Asked::Sum(0.92) },
    Row { name: "20+2", links: &[(20, 40), (2, 80)], asked: Asked::Best(0.97) },
    Row { name: "20+2 120/20 ms", links: &[(20, 120), (2, 20)], asked: Asked::Best(0.97) },
];

/// So long the edge is up before. chosen: its connections to the relay are ready, over all links; a box is on before its stream.
const UP: Duration = Duration::from_secs(3);

/// As modems do: much more towards the client, when that is not what is measured.
fn links(row: &Row, direction: Direction) -> Vec<LinkSpec> {
    let one = |(at, (rate, rtt)): (usize, &(u32, u32))| {
        let kind = if at == 0 { "wifi" } else { "lte" };
        let rates = match direction {
            Direction::Up => format!("rate=40Mbit/s,up={rate}Mbit/s"),
            Direction::Down => format!("rate={rate}Mbit/s,up=2Mbit/s"),
        };
        link(&format!("l{at},kind={kind},{rates},rtt={rtt}ms"))
    };
    row.links.iter().enumerate().map(one).collect()
}

pub(super) fn run(bench: &Bench, sheet: &mut Sheet, direction: Direction) -> Result<(), LabError> {
    for row in ROWS.iter().filter(|row| bench.wants(case(direction), row.name)) {
        let links = links(row, direction);
        for run in 0..bench.runs {
            for way in ways(links.len(), run) {
                if is_stopped() {
                    return Ok(());
                }
                one(bench, sheet, direction, (row, &links), (way, run))?;
            }
        }
    }
    Ok(())
}

/// The case's name.
fn case(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "upload",
        Direction::Down => "download",
    }
}

/// Over what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    All,
    Edge(usize),
    Tcp(usize),
}

/// In turns: who begins changes with each run.
fn ways(links: usize, run: u32) -> Vec<Who> {
    let each = (0..links).flat_map(|at| [Who::Edge(at), Who::Tcp(at)]);
    let mut ways: Vec<Who> = [Who::All].into_iter().chain(each).collect();
    let length = ways.len();
    ways.rotate_left(run as usize % length);
    ways
}

fn one(
    bench: &Bench,
    sheet: &mut Sheet,
    direction: Direction,
    (row, links): (&Row, &[LinkSpec]),
    (who, run): (Who, u32),
) -> Result<(), LabError> {
    let case = format!("{} {}", case(direction), row.name);
    let used: Vec<LinkSpec> = match who {
        Who::All => links.to_vec(),
        Who::Edge(at) | Who::Tcp(at) => links.get(at).cloned().into_iter().collect(),
    };
    let rates = |at: usize| row.links.get(at).map_or(0, |(rate, _)| *rate);
    let bytes = match who {
        Who::All => volume(row.links.iter().map(|(rate, _)| *rate), bench.transfer),
        Who::Edge(at) | Who::Tcp(at) => volume([rates(at)], bench.transfer),
    };
    let limit = Duration::from_secs(u64::from(bench.transfer) * 5 + 30);
    let (arrived, suspect) = match who {
        Who::Tcp(_) => {
            let lab = Lab::start(&LabSpec {
                congestion: bench.congestion,
                seed: u64::from(run) + 1,
                ..LabSpec::new(used.clone())
            })?;
            lab.begin()?;
            (transfer(&lab, Way::Plain, direction, bytes, limit)?, lab.emulation()?.suspect())
        }
        _ => {
            let fleet = Fleet::start(&bench.setting(&used, 1, run))?;
            std::thread::sleep(UP);
            (transfer(fleet.lab(), Way::Edge, direction, bytes, limit)?, fleet.lab().emulation()?.suspect())
        }
    };
    let name = name(who, links);
    match arrived {
        Err(why) => sheet.problem(&case, &name, run, &why),
        Ok(arrived) => {
            sheet.add(&case, "Mbit/s in all", ("marline", &floor(row, links)), &name, arrived.mbps());
            sheet.add(&case, "Mbit/s from 3 s on", ("marline", &Floor::Stated), &name, arrived.later / 1e6);
        }
    }
    if let Some(why) = suspect {
        sheet.suspect(&case, &why);
    }
    Ok(())
}

fn name(who: Who, links: &[LinkSpec]) -> String {
    let link = |at: usize| links.get(at).map_or("?", |link| &link.name).to_owned();
    match who {
        Who::All => "marline".into(),
        Who::Edge(at) => format!("edge:{}", link(at)),
        Who::Tcp(at) => format!("tcp:{}", link(at)),
    }
}

fn floor(row: &Row, links: &[LinkSpec]) -> Floor {
    let alone = (0..links.len()).map(|at| name(Who::Edge(at), links)).collect();
    match row.asked {
        Asked::Sum(share) => Floor::AtLeastSum(share, alone),
        Asked::Best(share) => Floor::AtLeastTimes(share, alone),
    }
}

/// The bytes that so many Mbit/s carry in so many seconds.
fn volume(rates: impl IntoIterator<Item = u32>, seconds: u32) -> u64 {
    rates.into_iter().map(u64::from).sum::<u64>() * 125_000 * u64::from(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_takes_what_its_links_carry_in_the_same_time() {
        let all = links(&ROWS[2], Direction::Up);
        assert_eq!(volume([5, 10, 3], 20), 18_000_000 / 8 * 20);
        let names: Vec<String> = ways(3, 0).into_iter().map(|who| name(who, &all)).collect();
        assert_eq!(names, ["marline", "edge:l0", "tcp:l0", "edge:l1", "tcp:l1", "edge:l2", "tcp:l2"]);
        assert_eq!(ways(3, 8)[0], ways(3, 1)[0]);
    }

    #[test]
    fn floors_are_about_the_links_alone() {
        let names = vec!["edge:l0".to_owned(), "edge:l1".to_owned()];
        let floor = |row: &Row| format!("{:?}", floor(row, &links(row, Direction::Up)));
        assert_eq!(floor(&ROWS[0]), format!("{:?}", Floor::AtLeastSum(0.92, names.clone())));
        assert_eq!(floor(&ROWS[3]), format!("{:?}", Floor::AtLeastTimes(0.97, names)));
    }
}
