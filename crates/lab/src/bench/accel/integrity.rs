//! Whole files with all impairments at once: loss, an outage, a fixed rate or an 802.11g cell, a second link or none, TLS or not, different
//! in each run.
//!
//! 1. Each byte is compared with the file's as it arrives, also the length, and curl must exit without an error.
//! 2. No run may pause for longer than its outage and five seconds.
//! 3. The impairments of a run are determined by its number.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::{DataSize, Ratio};
use marline_sim::rng::{Purpose, RandomStream as Numbers};
use marline_sim::spec::{LinkEvent, LinkEventKind};

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use crate::accel::{Contender, Medium, Stream, Topology, topology};
use crate::server::Payload;
use crate::{Congestion, LabError};

/// Our choice: a few seconds of the link, so that the impairments happen during the transfer.
const SIZE: DataSize = DataSize::from_bytes(8_000_000);
/// A transfer that is incomplete by then is stuck: at 3 % and 200 ms plain TCP has 0.3 Mbit/s.
const LIMIT: Duration = Duration::from_secs(300);
/// The mean duration of a run, for the estimate. Our choice: the mean of a hundred.
const USUAL: Duration = Duration::from_secs(15);
/// The longest pause in addition to the outage.
const STALL: Duration = Duration::from_secs(5);

/// The impairments of a run.
struct RandomCase {
    world: Topology,
    secure: bool,
    outage: Duration,
}

impl fmt::Display for RandomCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology { medium: air, rtt, loss, cell, congestion, .. } = &self.world;
        let air = match air {
            Medium::Rate(kbps) => format!("{kbps} kbit/s"),
            Medium::Medium(preset) => (*preset).to_owned(),
        };
        let cell = cell.map_or("no cell".to_owned(), |(down, up)| format!("cell {down}/{up} kbit/s"));
        let (rtt, outage) = (rtt.as_millis(), self.outage.as_millis());
        let over = if self.secure { "TLS" } else { "HTTP" };
        write!(f, "{air}, {rtt} ms, {loss} lost, outage of {outage} ms, {cell}, {congestion}, {over}")
    }
}

fn random_case(run: u32) -> RandomCase {
    let mut random = Numbers::new(u64::from(run) + 1, "integrity", 0, Purpose::Other);
    let mut below = |n: usize| usize::try_from(random.below(n as u64)).unwrap_or(0);
    let loss = [0, 1_000, 10_000, 30_000][below(4)];
    let outage = Duration::from_millis([0, 300, 1000, 2000, 5000][below(5)]);
    let from = Duration::from_millis(300 + 100 * below(25) as u64);
    let event = |at, change| LinkEvent { at, link: topology::PRIMARY.into(), change };
    let events = match outage.is_zero() {
        true => Vec::new(),
        false => vec![event(from, LinkEventKind::Down), event(from + outage, LinkEventKind::Restore)],
    };
    let drawn = Topology {
        medium: [Medium::Rate(20_000), Medium::Rate(5_000), Medium::Medium("11g")][below(3)],
        rtt: Duration::from_millis([20, 50, 200][below(3)]),
        loss: Ratio::from_ppm(loss),
        cell: [Some((900, 400)), Some((600, 100)), Some((50, 50)), None][below(4)],
        events,
        congestion: Congestion::ALL[below(3)],
        ..Topology::default_links(u64::from(run) + 1)
    };
    RandomCase { world: drawn, secure: below(2) == 0, outage }
}

pub(super) fn units(bench: &Bench) -> Result<Vec<BenchRun<'_>>, LabError> {
    if !bench.wants("integrity", "files") {
        return Ok(Vec::new());
    }
    let payload = Arc::new(Payload::new(SIZE).map_err(LabError::at_step("a file in memory"))?);
    let runs = bench.runs.unwrap_or(if bench.quick { 3 } else { 100 });
    let unit = |run| {
        let payload = payload.clone();
        BenchRun::new(run, USUAL, move |sheet| one(bench, sheet, run, &payload))
    };
    Ok((0..runs).map(unit).collect())
}

/// Downloads one file under random conditions and compares each byte.
fn one(bench: &Bench, sheet: &mut ReportTable, run: u32, payload: &Payload) -> Result<(), LabError> {
    let (drawn, contender) =
        (random_case(run), if bench.includes_accel { Contender::with_early_ack() } else { Contender::Plain });
    let streams = [Stream::new(drawn.secure)];
    let taken = match bench.trial_of(payload, &drawn.world, &contender, &streams, LIMIT) {
        Err(why) => {
            sheet.problem(CASE, contender.name(), run, &why);
            return Ok(());
        }
        Ok(None) => return Ok(()),
        Ok(Some(taken)) => taken,
    };
    let Some(flow) = taken.flows.first() else { return Ok(()) };
    let short = flow.bytes != SIZE.bytes() || !flow.is_complete;
    let why = taken.problem.clone().or_else(|| short.then(|| format!("{} of {SIZE} came", flow.bytes)));
    if let Some(why) = &why {
        sheet.problem(CASE, contender.name(), run, &format!("{why}; {drawn}"));
    }
    let (none, about) = (Threshold::AtMost(0.0), contender.name());
    let stalled = flow.pause > drawn.outage + STALL;
    if stalled {
        sheet.log(CASE, &format!(": {about}: nothing came for {:.1} s: {drawn}", flow.pause.as_secs_f64()));
    }
    sheet.add(CASE, "longest pause, s", (about, &Threshold::Stated), about, flow.pause.as_secs_f64());
    sheet.count(CASE, "files that were not right", (about, &none), about, u32::from(why.is_some()));
    sheet.count(CASE, "runs with a stall", (about, &none), about, u32::from(stalled));
    Ok(())
}

const CASE: &str = "integrity files";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_runs_meet_everything_and_the_same_each_time() {
        let all: Vec<RandomCase> = (0..100).map(random_case).collect();
        assert!(all.iter().any(|drawn| drawn.world.cell.is_none()));
        assert!(all.iter().any(|drawn| !drawn.secure && drawn.world.loss > Ratio::ZERO && !drawn.outage.is_zero()));
        for congestion in Congestion::ALL {
            assert!(all.iter().any(|drawn| drawn.world.congestion == congestion));
        }
        assert_eq!(random_case(17).world, all[17].world);
        for drawn in &all {
            assert_eq!(drawn.outage.is_zero(), drawn.world.events.is_empty());
        }
    }
}
