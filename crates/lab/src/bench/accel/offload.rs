//! ACKs that share the air with their data: an 802.11g cell, with a second link for the ACKs.
//!
//! 1. UDP in the same cell and run shows what the air carries without ACKs.
//! 2. There are two cells: `11g-mixed`, in which plain TCP is slower than UDP by as much as in Super-aggregation's
//!    figure 2(a), and `11g` alone.
//! 3. The second link has 400 or 100 kbit/s up: it cannot carry all ACKs, but some of them.

use std::time::Duration;

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use crate::LabError;
use crate::accel::{Contender, Medium, Stream, Topology, udp};
use crate::interrupt::is_interrupted;

/// Rows: the cell, the second link's upstream rate in kbit/s, and the rate of UDP in Mbit/s, which is more than the
/// cell carries.
const ROWS: [(&str, &str, u32, f64); 4] = [
    ("11g-mixed", "11g-mixed", 400, 30.0),
    ("11g-mixed 100k", "11g-mixed", 100, 30.0),
    ("11g", "11g", 400, 45.0),
    ("11g 100k", "11g", 100, 45.0),
];

pub(super) fn units(bench: &Bench) -> Vec<BenchRun<'_>> {
    let (length, from) = bench.time(24, 4);
    let wanted = ROWS.into_iter().filter(|(row, ..)| bench.wants("offload", row));
    let run = |at: (&'static str, &'static str, u32, f64), run| {
        let duration = length * u32::try_from(contenders(run, bench.includes_accel).len()).unwrap_or(u32::MAX);
        BenchRun::new(run, duration, move |sheet| {
            each(bench, sheet, at, run, (length, from));
            Ok(())
        })
    };
    wanted.flat_map(|row| (0..bench.runs(5)).map(move |number| run(row, number))).collect()
}

/// One run of a row.
fn each(
    bench: &Bench,
    sheet: &mut ReportTable,
    (row, preset, up, offered): (&str, &'static str, u32, f64),
    run: u32,
    (length, from): (Duration, Duration),
) {
    let case = format!("offload {row}");
    let world = Topology {
        medium: Medium::Medium(preset),
        cell: Some((900, up)),
        congestion: bench.congestion,
        ..Topology::default_links(u64::from(run) + 1)
    };
    let flood = || -> Result<f64, LabError> {
        let (lab, _) = bench.workshop.build(&world, &bench.payload, &Contender::Plain)?;
        lab.start_links()?;
        let time = (length - from).min(Duration::from_secs(8));
        udp::goodput(&lab, offered, time).map_err(LabError::at_step("UDP"))
    };
    let mut figures: Vec<(&str, f64)> = Vec::new();
    for contender in contenders(run, bench.includes_accel) {
        let mbps = match &contender {
            None => flood().map(Some),
            Some(contender) => tcp(bench, sheet, &case, &world, contender, (length, from)),
        };
        let name = contender.as_ref().map_or("udp", Contender::name);
        match mbps {
            // An interrupted trial is no result.
            _ if is_interrupted() => break,
            Ok(None) => break,
            Err(why) => sheet.problem(&case, name, run, &why),
            Ok(Some(mbps)) => {
                sheet.add(&case, "Mbit/s", ("ours", &Threshold::Stated), name, mbps);
                figures.push((name, mbps));
            }
        }
    }
    judge(sheet, &case, &figures);
}

fn contenders(run: u32, includes_accel: bool) -> Vec<Option<Contender>> {
    let mut order = vec![None, Some(Contender::Plain)];
    order.extend(includes_accel.then(|| Some(Contender::default_mechanisms())));
    let first = run as usize % order.len();
    order.rotate_left(first);
    order
}

fn tcp(
    bench: &Bench,
    sheet: &mut ReportTable,
    case: &str,
    world: &Topology,
    contender: &Contender,
    (length, from): (Duration, Duration),
) -> Result<Option<f64>, LabError> {
    let Some(taken) = bench.trial(world, contender, &[Stream::new(true)], length)? else { return Ok(None) };
    if let Some(why) = taken.problem {
        return Err(LabError::Server(why));
    }
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
    let air = taken.emulation.links.first().map_or(0.0, |link| {
        link.uplink.airtime.as_secs_f64() / (link.uplink.airtime + link.downlink.airtime).as_secs_f64().max(1e-9)
    });
    sheet.add(case, "share of the air for ACKs", ("ours", &Threshold::Stated), contender.name(), air);
    Ok(Some(taken.mbps(0, from, length)))
}

fn judge(sheet: &mut ReportTable, case: &str, figures: &[(&str, f64)]) {
    let figure_of = |name: &str| figures.iter().find(|(contender, _)| *contender == name).map(|(_, mbps)| *mbps);
    for (metric, bound, with) in [("of udp", 0.95, "udp"), ("of plain", 1.15, "plain")] {
        for contender in ["ours", "plain"].into_iter().filter(|contender| *contender != with) {
            if let Some(ratio) = figure_of(contender).zip(figure_of(with)).map(|(one, other)| one / other.max(1e-9))
            {
                sheet.add(case, metric, ("ours", &Threshold::AtLeast(bound)), contender, ratio);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_held_beside_udp_and_plain_of_the_same_run() {
        let mut sheet = ReportTable::default();
        judge(&mut sheet, "offload 11g", &[("udp", 20.0), ("plain", 15.0), ("ours", 19.2)]);
        let lines: Vec<String> = sheet.table().rows.iter().map(|cells| cells.join("|")).collect();
        assert_eq!(lines[0], "offload 11g|of udp|0.960|0.960–0.960|plain 0.750|≥ 0.950|met|1");
        assert_eq!(lines[1], "offload 11g|of plain|1.280|1.280–1.280||≥ 1.150|met|1");
        assert_eq!(contenders(0, false).len(), 2);
    }
}
