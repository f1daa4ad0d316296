//! Cases without a gain, in which nothing may become worse: a clean link, a sender that does not slow down after loss,
//! loss that is congestion.
//!
//! | row | links and sender |
//! |---|---|
//! | `clean` | no loss, CUBIC |
//! | `bbr` | 1 % loss, BBR |
//! | `bbr clean` | no loss, BBR |
//! | `congestion` | no loss, the sender of `--congestion`; a plain flow over HTTP beside an accelerated one over TLS |
//! | `congestion http` | the same with the protocols exchanged |
//!
//! In the last two rows one flow is accelerated (`--flows`), and the other one is judged: its goodput and that of both, its retransmitted
//! segments, and the packets that the queue dropped, compared with two plain flows. Both combinations are measured because the flow whose
//! bytes arrive first (without a TLS handshake) gets more of the link.

use std::time::Duration;

use marline_core::units::Ratio;

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use super::paired::{self, Requirement, Row};
use crate::accel::{Contender, Stream, Topology, TrialResult};
use crate::{Congestion, LabError};

/// Rows with one flow: percent lost, and the sender.
const ALONE: [(&str, u32, Congestion); 3] =
    [("clean", 0, Congestion::Cubic), ("bbr", 1, Congestion::Bbr), ("bbr clean", 0, Congestion::Bbr)];

pub(super) fn units(bench: &Bench) -> Vec<BenchRun<'_>> {
    let mut units = Vec::new();
    let (length, from) = bench.time(33, 3);
    for (name, loss, congestion) in ALONE.into_iter().filter(|(name, ..)| bench.wants("harmless", name)) {
        let row = Row {
            name: format!("harmless {name}"),
            is_tls: true,
            outage: None,
            length,
            from,
            requirements: vec![Requirement::OfPlain(0.98)],
            contender: Contender::default_mechanisms(),
        };
        let world =
            move |seed| Topology { loss: Ratio::from_percent(loss), congestion, ..Topology::default_links(seed) };
        units.extend(paired::units(bench, row, bench.runs(5), world));
    }
    for pair in PAIRS.iter().filter(|pair| bench.wants("harmless", pair.name)) {
        let duration = length * if bench.includes_accel { 2 } else { 1 };
        let unit =
            |run| BenchRun::new(run, duration, move |sheet| congestion(bench, sheet, pair, run, (length, from)));
        units.extend((0..bench.runs(5)).map(unit));
    }
    units
}

const STREAMS: [Stream; 2] = [Stream::new(true), Stream::new(false)];

/// Which of [`STREAMS`] is accelerated, and which is not.
struct Pair {
    name: &'static str,
    accelerated: &'static str,
    other: usize,
    /// The other one's port of the server.
    port: u16,
}

const PAIRS: [Pair; 2] = [
    Pair { name: "congestion", accelerated: "tcp dst port 443", other: 1, port: 80 },
    Pair { name: "congestion http", accelerated: "tcp dst port 80", other: 0, port: 443 },
];

fn congestion(
    bench: &Bench,
    sheet: &mut ReportTable,
    pair: &Pair,
    run: u32,
    (length, from): (Duration, Duration),
) -> Result<(), LabError> {
    let case = &format!("harmless {}", pair.name);
    let world = Topology { congestion: bench.congestion, ..Topology::default_links(u64::from(run) + 1) };
    let mut contenders = vec![Contender::Plain];
    contenders.extend(bench.includes_accel.then(|| Contender::default_mechanisms().with_flows(pair.accelerated)));
    let first = run as usize % contenders.len();
    contenders.rotate_left(first);
    for contender in &contenders {
        match bench.trial(&world, contender, &STREAMS, length) {
            Err(why) => sheet.problem(case, contender.name(), run, &why),
            Ok(None) => break,
            Ok(Some(taken)) => match &taken.problem {
                Some(why) => sheet.problem(case, contender.name(), run, why),
                None => figures(sheet, case, pair, (contender, &taken), (length, from)),
            },
        }
    }
    Ok(())
}

fn figures(
    sheet: &mut ReportTable,
    case: &str,
    pair: &Pair,
    (contender, taken): (&Contender, &TrialResult),
    (length, from): (Duration, Duration),
) {
    let plain = || vec!["plain".to_owned()];
    let (no_less, no_more) = (Threshold::AtLeastTimes(0.98, plain()), Threshold::AtMostTimes(1.0, plain()));
    let both = taken.mbps(0, from, length) + taken.mbps(1, from, length);
    sheet.add(case, "Mbit/s of both", ("ours", &no_less), contender.name(), both);
    sheet.add(
        case,
        "Mbit/s of the other",
        ("ours", &no_less),
        contender.name(),
        taken.mbps(pair.other, from, length),
    );
    if let Some(sample) = taken.last(pair.port) {
        let again = sample.retransmitted as f64;
        sheet.add(case, "segments of the other sent again", ("ours", &no_more), contender.name(), again);
    }
    let dropped = taken.emulation.links.first().map_or(0, |link| link.downlink.dropped_queue_full.packets);
    sheet.add(case, "packets dropped by the queue", ("ours", &no_more), contender.name(), dropped as f64);
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
}
