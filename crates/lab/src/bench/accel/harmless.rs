//! What must be left as it is: a clean link, a sender that loss does not slow down, loss that is congestion.
//!
//! | row | links and sender |
//! |---|---|
//! | `clean` | no loss, cubic |
//! | `bbr` | 1 % loss, BBR |
//! | `bbr clean` | no loss, BBR |
//! | `congestion` | no loss, cubic; a flow over plain HTTP, not helped, beside one over TLS that is |
//! | `congestion http` | the same the other way round |
//!
//! In the last two one flow is helped (`--flows`), and what is judged is the other one: segments that its sender sent again,
//! and packets that the queue dropped, beside the same with two flows that nobody helps. Both ways round, for the flow whose
//! bytes come first (no handshake of TLS) has more of the link with nobody's help.

use std::time::Duration;

use marline_core::units::Ratio;

use super::super::report::{ReportTable, Threshold};
use super::Bench;
use super::paired::{self, Asked, Row};
use super::unit::Unit;
use crate::accel::{Stream, Taken, Who, World};
use crate::{Congestion, LabError};

/// Rows with one flow: percent lost, and the sender.
const ALONE: [(&str, u32, Congestion); 3] =
    [("clean", 0, Congestion::Cubic), ("bbr", 1, Congestion::Bbr), ("bbr clean", 0, Congestion::Bbr)];

pub(super) fn units(bench: &Bench) -> Vec<Unit<'_>> {
    let mut units = Vec::new();
    let (length, from) = bench.time(33, 3);
    for (name, loss, congestion) in ALONE.into_iter().filter(|(name, ..)| bench.wants("harmless", name)) {
        let row = Row {
            name: format!("harmless {name}"),
            secure: true,
            dark: None,
            length,
            from,
            asked: vec![Asked::OfPlain(0.98)],
            ours: Who::ours(),
        };
        let world = move |seed| World { loss: Ratio::from_percent(loss), congestion, ..World::usual(seed) };
        units.extend(paired::units(bench, row, bench.runs(5), world));
    }
    for pair in PAIRS.iter().filter(|pair| bench.wants("harmless", pair.name)) {
        let takes = length * if bench.ours { 2 } else { 1 };
        let unit = |run| Unit::new(run, takes, move |sheet| congestion(bench, sheet, pair, run, (length, from)));
        units.extend((0..bench.runs(5)).map(unit));
    }
    units
}

const STREAMS: [Stream; 2] = [Stream::new(true), Stream::new(false)];

/// Who of [`STREAMS`] is helped, and who is not.
struct Pair {
    name: &'static str,
    helped: &'static str,
    other: usize,
    /// The other one's port of the server.
    port: u16,
}

const PAIRS: [Pair; 2] = [
    Pair { name: "congestion", helped: "tcp dst port 443", other: 1, port: 80 },
    Pair { name: "congestion http", helped: "tcp dst port 80", other: 0, port: 443 },
];

fn congestion(
    bench: &Bench,
    sheet: &mut ReportTable,
    pair: &Pair,
    run: u32,
    (length, from): (Duration, Duration),
) -> Result<(), LabError> {
    let case = &format!("harmless {}", pair.name);
    let world = World { congestion: bench.congestion, ..World::usual(u64::from(run) + 1) };
    let mut turns = vec![Who::Plain];
    turns.extend(bench.ours.then(|| Who::ours().with_flows(pair.helped)));
    let first = run as usize % turns.len();
    turns.rotate_left(first);
    for who in &turns {
        match bench.trial(&world, who, &STREAMS, length) {
            Err(why) => sheet.problem(case, who.name(), run, &why),
            Ok(None) => break,
            Ok(Some(taken)) => match &taken.problem {
                Some(why) => sheet.problem(case, who.name(), run, why),
                None => figures(sheet, case, pair, (who, &taken), (length, from)),
            },
        }
    }
    Ok(())
}

fn figures(
    sheet: &mut ReportTable,
    case: &str,
    pair: &Pair,
    (who, taken): (&Who, &Taken),
    (length, from): (Duration, Duration),
) {
    let plain = || vec!["plain".to_owned()];
    let (no_less, no_more) = (Threshold::AtLeastTimes(0.98, plain()), Threshold::AtMostTimes(1.0, plain()));
    let both = taken.mbps(0, from, length) + taken.mbps(1, from, length);
    sheet.add(case, "Mbit/s of both", ("ours", &no_less), who.name(), both);
    sheet.add(case, "Mbit/s of the other", ("ours", &no_less), who.name(), taken.mbps(pair.other, from, length));
    if let Some(sample) = taken.last(pair.port) {
        let again = sample.retransmitted as f64;
        sheet.add(case, "segments of the other sent again", ("ours", &no_more), who.name(), again);
    }
    let dropped = taken.emulation.links.first().map_or(0, |link| link.downlink.dropped_queue_full.packets);
    sheet.add(case, "packets dropped by the queue", ("ours", &no_more), who.name(), dropped as f64);
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
}
