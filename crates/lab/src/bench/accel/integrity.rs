//! Whole files through everything at once: loss, a blackout, a shared cell or none, TLS or not, each time others.
//!
//! 1. Each byte is compared with the file's as it comes, the length with the file's, and curl must be content.
//! 2. No run may stand still for longer than its blackout and five seconds.
//! 3. What is drawn for a run follows from its number.

use std::time::Duration;

use marline_core::units::{DataSize, Ratio};
use marline_sim::rng::{Purpose, Stream as Numbers};
use marline_sim::spec::{Change, Event};

use super::super::sheet::{Floor, Sheet};
use super::super::turns::is_stopped;
use super::Bench;
use crate::accel::{Air, Stream, Trial, Who, World, world};
use crate::server::Payload;
use crate::{Congestion, LabError};

/// chosen: a few seconds of the link, so that what is drawn falls into it.
const SIZE: DataSize = DataSize::from_bytes(8_000_000);
/// A file that has not come by then is stuck: at 3 % and 200 ms plain TCP brings 0.3 Mbit/s.
const LIMIT: Duration = Duration::from_secs(300);

/// What a run meets.
struct Drawn {
    world: World,
    secure: bool,
    dark: Duration,
}

fn draw(run: u32) -> Drawn {
    let mut random = Numbers::new(u64::from(run) + 1, "integrity", 0, Purpose::Other);
    let mut below = |n: usize| usize::try_from(random.below(n as u64)).unwrap_or(0);
    let loss = [0, 1_000, 10_000, 30_000][below(4)];
    let dark = Duration::from_millis([0, 300, 1000, 2000, 5000][below(5)]);
    let from = Duration::from_millis(300 + 100 * below(25) as u64);
    let event = |at, change| Event { at, link: world::PRIMARY.into(), change };
    let events = match dark.is_zero() {
        true => Vec::new(),
        false => vec![event(from, Change::Down), event(from + dark, Change::Back)],
    };
    let drawn = World {
        air: [Air::Rate(20_000), Air::Rate(5_000), Air::Medium("11g")][below(3)],
        rtt: Duration::from_millis([20, 50, 200][below(3)]),
        loss: Ratio::from_ppm(loss),
        cell: [Some((900, 400)), Some((600, 100)), Some((50, 50)), None][below(4)],
        events,
        congestion: Congestion::ALL[below(3)],
        ..World::usual(u64::from(run) + 1)
    };
    Drawn { world: drawn, secure: below(2) == 0, dark }
}

pub(super) fn run(bench: &Bench, sheet: &mut Sheet) -> Result<(), LabError> {
    let runs = if bench.quick { 3 } else { bench.runs(100) };
    if !bench.wants("integrity", "files") {
        return Ok(());
    }
    let payload = Payload::new(SIZE).map_err(LabError::at("a file in memory"))?;
    let who = if bench.ours { Who::ours() } else { Who::Plain };
    let (mut wrong, mut stalls, mut done) = (0_u32, 0_u32, 0_u32);
    for run in 0..runs {
        if is_stopped() {
            break;
        }
        let drawn = draw(run);
        let streams = [Stream::new(drawn.secure)];
        let (world, program) = (&drawn.world, bench.program.as_path());
        let trial =
            Trial { world, who: &who, streams: &streams, length: LIMIT, look: None, payload: &payload, program };
        let taken = match trial.run() {
            Err(why) => {
                sheet.problem(CASE, who.name(), run, &why);
                if matches!(why, LabError::Start { .. }) {
                    break;
                }
                continue;
            }
            Ok(taken) => taken,
        };
        done += 1;
        let Some(flow) = taken.flows.first() else { continue };
        let short = flow.bytes != SIZE.bytes() || !flow.whole;
        let why = taken.problem.clone().or_else(|| short.then(|| format!("{} of {SIZE} came", flow.bytes)));
        if let Some(why) = why {
            wrong += 1;
            sheet.problem(CASE, who.name(), run, &why);
        }
        stalls += u32::from(flow.pause > drawn.dark + Duration::from_secs(5));
        sheet.add(CASE, "longest pause, s", (who.name(), &Floor::Stated), who.name(), flow.pause.as_secs_f64());
    }
    if done > 0 {
        let none = Floor::AtMost(0.0);
        sheet.add(CASE, "files that were not right", (who.name(), &none), who.name(), f64::from(wrong));
        sheet.add(CASE, "runs with a stall", (who.name(), &none), who.name(), f64::from(stalls));
    }
    Ok(())
}

const CASE: &str = "integrity files";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_runs_meet_everything_and_the_same_each_time() {
        let all: Vec<Drawn> = (0..100).map(draw).collect();
        assert!(all.iter().any(|drawn| drawn.world.cell.is_none()));
        assert!(all.iter().any(|drawn| !drawn.secure && drawn.world.loss > Ratio::ZERO && !drawn.dark.is_zero()));
        for congestion in Congestion::ALL {
            assert!(all.iter().any(|drawn| drawn.world.congestion == congestion));
        }
        assert_eq!(draw(17).world, all[17].world);
        for drawn in &all {
            assert_eq!(drawn.dark.is_zero(), drawn.world.events.is_empty());
        }
    }
}
