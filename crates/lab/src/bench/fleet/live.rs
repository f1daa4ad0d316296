//! Live video by RTMP over links none of which could carry it, undisturbed (`live`) and while links fail (`cut`).
//!
//! 1. `live` plays at the two ends of what is asked for: at 1.3 times the best link, and at 0.85 of all links together, both
//!    counted in payload (1448 of 1500 bytes).
//! 2. `cut` plays at 1.3 times the best of three equal links: two of them carry it while the third is away. The first link fails,
//!    works again, then the second one does; both in one way.
//! 3. A stream that was not whole is a problem, and not a figure.

use std::time::Duration;

use marline_core::units::Bitrate;
use marline_sim::spec::LinkSpec;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::LabError;
use crate::live::{Broadcast, Cut, How, Show, broadcast, two_cuts};

/// Mbit/s from the client, round trips in milliseconds.
const UNEVEN: [(u32, u32); 3] = [(4, 30), (3, 60), (2, 100)];
const EVEN: [(u32, u32); 3] = [(4, 30), (4, 50), (4, 80)];

/// chosen: an encoder before a camera, which cannot wait as ffmpeg does before a test picture, holds about two seconds of frames
/// before it drops some.
const BEHIND: f64 = 2.0;

/// Of a link's rate is payload at an MTU of 1500 bytes.
const PAYLOAD: f64 = 1448.0 / 1500.0;

fn links(of: [(u32, u32); 3]) -> Vec<LinkSpec> {
    let one = |(at, (up, rtt)): (usize, &(u32, u32))| {
        let kind = if at == 0 { "wifi" } else { "lte" };
        link(&format!("l{at},kind={kind},rate=20Mbit/s,up={up}Mbit/s,rtt={rtt}ms"))
    };
    of.iter().enumerate().map(one).collect()
}

/// This many times the best link, and this share of all of them.
fn times_best(of: [(u32, u32); 3], times: f64) -> Bitrate {
    rate(of.iter().map(|(up, _)| *up).max().unwrap_or(0), times)
}

fn of_all(of: [(u32, u32); 3], share: f64) -> Bitrate {
    rate(of.iter().map(|(up, _)| *up).sum(), share)
}

fn rate(mbps: u32, share: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((f64::from(mbps) * 1e6 * PAYLOAD * share) as u64)
}

/// The case `live`.
pub(super) fn run(bench: &Bench, sheet: &mut Sheet) -> Result<(), LabError> {
    let rows = [("1.3 × best", times_best(UNEVEN, 1.3)), ("0.85 × all", of_all(UNEVEN, 0.85))];
    for (row, rate) in rows.iter().filter(|(row, _)| bench.wants("live", row)) {
        let show = Show { length: Duration::from_secs(bench.seconds.into()), rate: *rate };
        for run in 0..bench.runs {
            let case = format!("live {row}");
            let Some(seen) = one(bench, sheet, &case, (&links(UNEVEN), show, &[], run))? else { return Ok(()) };
            add(sheet, &case, "s behind the camera", Floor::AtMost(BEHIND), seen.behind_s);
            add(sheet, &case, "s of stall", Floor::Stated, seen.stall_s);
            add(sheet, &case, "s to buffer", Floor::Stated, seen.delay_s);
            for (at, what) in ["% over l0", "% over l1", "% over l2"].into_iter().enumerate() {
                add(sheet, &case, what, Floor::Stated, seen.share(at) * 100.0);
            }
        }
    }
    Ok(())
}

/// The case `cut`.
pub(super) fn cut(bench: &Bench, sheet: &mut Sheet) -> Result<(), LabError> {
    // Twelve seconds at least: two failures of two seconds each, with time between them.
    let show =
        Show { length: Duration::from_secs(u64::from(bench.seconds / 5).max(12)), rate: times_best(EVEN, 1.3) };
    for (row, how, most) in [("carrier", How::Carrier, 1.5), ("silent", How::Silent, 2.5)] {
        if !bench.wants("cut", row) {
            continue;
        }
        for run in 0..bench.runs {
            let case = format!("cut {row}");
            let cuts = two_cuts(show.length, [how; 2]);
            let Some(seen) = one(bench, sheet, &case, (&links(EVEN), show, &cuts, run))? else { return Ok(()) };
            add(sheet, &case, "RTMP disconnects", Floor::AtMost(0.0), seen.disconnects as f64);
            for felt in &seen.cuts {
                add(sheet, &case, "s of stall", Floor::AtMost(most), felt.stall_s);
            }
            add(sheet, &case, "s of stall, the longest", Floor::AtMost(most), seen.stall_s);
            add(sheet, &case, "s behind the camera", Floor::Stated, seen.behind_s);
            add(sheet, &case, "s to buffer", Floor::Stated, seen.delay_s);
        }
    }
    Ok(())
}

/// One broadcast, and what is asked of all of them; none: the user wants an end.
fn one(
    bench: &Bench,
    sheet: &mut Sheet,
    case: &str,
    (links, show, cuts, run): (&[LinkSpec], Show, &[Cut], u32),
) -> Result<Option<Broadcast>, LabError> {
    if is_stopped() {
        return Ok(None);
    }
    let Some(seen) = broadcast(&bench.setting(links, 1, run), show, cuts)? else { return Ok(None) };
    add(sheet, case, "packets missing", Floor::AtMost(0.0), (seen.received.missing + seen.received.foreign) as f64);
    if let Some(dropped) = seen.dropped {
        add(sheet, case, "frames dropped", Floor::AtMost(0.0), dropped as f64);
    }
    if !seen.is_whole() {
        let why = seen.failed.clone().unwrap_or_else(|| format!("{:?}", seen.received));
        sheet.problem(case, "marline", run, &why);
    }
    if let Some(why) = &seen.suspect {
        sheet.suspect(case, why);
    }
    Ok(Some(seen))
}

fn add(sheet: &mut Sheet, case: &str, what: &'static str, floor: Floor, figure: f64) {
    sheet.add(case, what, ("marline", &floor), "marline", figure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_lie_where_they_are_asked_for() {
        let best = rate(4, 1.0).bits_per_sec() as f64;
        let all = rate(9, 1.0).bits_per_sec() as f64;
        let (low, high) =
            (times_best(UNEVEN, 1.3).bits_per_sec() as f64, of_all(UNEVEN, 0.85).bits_per_sec() as f64);
        assert!((low / best - 1.3).abs() < 1e-6 && (high / all - 0.85).abs() < 1e-6);
        // While one of three is away, two of four carry it.
        assert!((times_best(EVEN, 1.3).bits_per_sec() as f64) < 0.7 * rate(8, 1.0).bits_per_sec() as f64);
        assert_eq!(links(EVEN).len(), 3);
    }
}
