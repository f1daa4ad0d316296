//! Cases `live` and `cut` of `bench fleet`: live video over RTMP, over links none of which could carry it alone. In
//! `live` the links work, in `cut` they fail in turn.
//!
//! 1. `live` uses both limits of the requirement: 1.3 times the best link, and 0.85 of all links together, counted
//!    in payload (1448 of 1500 bytes).
//! 2. `cut` uses 1.3 times the best of three equal links, which two links can carry while the third is down. The
//!    first link fails and recovers, then the second one, in the same way.
//! 3. An incomplete stream is reported as a problem, not as a figure.

use std::time::Duration;

use marline_core::units::Bitrate;
use marline_sim::spec::LinkSpec;

use super::super::report::{ReportTable, Threshold};
use super::{FleetBench, parse_link};
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::live::{Broadcast, BroadcastConfig, FailureMode, LinkFailure, broadcast, two_failures};

/// Uplink rate in Mbit/s and RTT in milliseconds of each link.
const UNEQUAL_LINKS: [(u32, u32); 3] = [(4, 30), (3, 60), (2, 100)];
const EQUAL_LINKS: [(u32, u32); 3] = [(4, 30), (4, 50), (4, 80)];

/// Our choice: a live encoder cannot block as ffmpeg does with a test picture. It holds about two seconds of frames
/// before it drops some.
const MAX_ENCODER_LAG_S: f64 = 2.0;

/// Share of a link's rate that is TCP payload at an MTU of 1500 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

fn links(rates: [(u32, u32); 3]) -> Vec<LinkSpec> {
    let spec = |(at, (up, rtt)): (usize, &(u32, u32))| {
        let kind = if at == 0 { "wifi" } else { "lte" };
        parse_link(&format!("l{at},kind={kind},rate=20Mbit/s,up={up}Mbit/s,rtt={rtt}ms"))
    };
    rates.iter().enumerate().map(spec).collect()
}

/// This factor times the payload rate of the best link.
fn times_best_link(rates: [(u32, u32); 3], times: f64) -> Bitrate {
    payload_rate(rates.iter().map(|(up, _)| *up).max().unwrap_or(0), times)
}

/// This share of the payload rate of all links.
fn share_of_all_links(rates: [(u32, u32); 3], share: f64) -> Bitrate {
    payload_rate(rates.iter().map(|(up, _)| *up).sum(), share)
}

fn payload_rate(mbps: u32, share: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((f64::from(mbps) * 1e6 * PAYLOAD_SHARE * share) as u64)
}

/// Case `live`: the links work.
pub(super) fn run(bench: &FleetBench, report: &mut ReportTable) -> Result<(), LabError> {
    let rows = [
        ("1.3 × best", times_best_link(UNEQUAL_LINKS, 1.3)),
        ("0.85 × all", share_of_all_links(UNEQUAL_LINKS, 0.85)),
    ];
    for (row, bitrate) in rows.iter().filter(|(row, _)| bench.is_selected("live", row)) {
        let config = BroadcastConfig { length: Duration::from_secs(bench.seconds.into()), rate: *bitrate };
        for run in 0..bench.runs {
            let case = format!("live {row}");
            let Some(broadcast) = run_broadcast(bench, report, &case, (&links(UNEQUAL_LINKS), config, &[], run))?
            else {
                return Ok(());
            };
            add(
                report,
                &case,
                "s behind the camera",
                Threshold::AtMost(MAX_ENCODER_LAG_S),
                broadcast.encoder_lag_s,
            );
            add(report, &case, "s of stall", Threshold::Stated, broadcast.stall_s);
            add(report, &case, "s to buffer", Threshold::Stated, broadcast.required_buffer_s);
            for (at, metric) in ["% over l0", "% over l1", "% over l2"].into_iter().enumerate() {
                add(report, &case, metric, Threshold::Stated, broadcast.link_share(at) * 100.0);
            }
        }
    }
    Ok(())
}

/// Case `cut`: the links fail in turn.
pub(super) fn run_failures(bench: &FleetBench, report: &mut ReportTable) -> Result<(), LabError> {
    // At least twelve seconds: two failures of two seconds each, with time between them.
    let config = BroadcastConfig {
        length: Duration::from_secs(u64::from(bench.seconds / 5).max(12)),
        rate: times_best_link(EQUAL_LINKS, 1.3),
    };
    for (row, mode, max_stall) in [("carrier", FailureMode::CarrierLost, 1.5), ("silent", FailureMode::Silent, 2.5)]
    {
        if !bench.is_selected("cut", row) {
            continue;
        }
        for run in 0..bench.runs {
            let case = format!("cut {row}");
            let failures = two_failures(config.length, [mode; 2]);
            let Some(broadcast) =
                run_broadcast(bench, report, &case, (&links(EQUAL_LINKS), config, &failures, run))?
            else {
                return Ok(());
            };
            add(report, &case, "RTMP disconnects", Threshold::AtMost(0.0), broadcast.disconnects as f64);
            for impact in &broadcast.failures {
                add(report, &case, "s of stall", Threshold::AtMost(max_stall), impact.stall_s);
            }
            add(report, &case, "s of stall, the longest", Threshold::AtMost(max_stall), broadcast.stall_s);
            add(report, &case, "s behind the camera", Threshold::Stated, broadcast.encoder_lag_s);
            add(report, &case, "s to buffer", Threshold::Stated, broadcast.required_buffer_s);
        }
    }
    Ok(())
}

/// Runs one broadcast and adds the figures that apply to all of them; `None` if the user interrupted.
fn run_broadcast(
    bench: &FleetBench,
    report: &mut ReportTable,
    case: &str,
    (links, show, cuts, run): (&[LinkSpec], BroadcastConfig, &[LinkFailure], u32),
) -> Result<Option<Broadcast>, LabError> {
    if is_interrupted() {
        return Ok(None);
    }
    let Some(broadcast) = broadcast(&bench.fleet_config(links, 1, run), show, cuts)? else { return Ok(None) };
    add(
        report,
        case,
        "packets missing",
        Threshold::AtMost(0.0),
        (broadcast.received.missing + broadcast.received.unexpected) as f64,
    );
    if let Some(dropped) = broadcast.dropped_frames {
        add(report, case, "frames dropped", Threshold::AtMost(0.0), dropped as f64);
    }
    if !broadcast.is_complete() {
        let reason = broadcast.failed.clone().unwrap_or_else(|| format!("{:?}", broadcast.received));
        report.problem(case, "marline", run, &reason);
    }
    if let Some(reason) = &broadcast.unreliable_reason {
        report.mark_unreliable(case, reason);
    }
    Ok(Some(broadcast))
}

fn add(report: &mut ReportTable, case: &str, metric: &'static str, threshold: Threshold, figure: f64) {
    report.add(case, metric, ("marline", &threshold), "marline", figure);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_rates_match_the_requirement() {
        let best = payload_rate(4, 1.0).bits_per_sec() as f64;
        let all = payload_rate(9, 1.0).bits_per_sec() as f64;
        let (low, high) = (
            times_best_link(UNEQUAL_LINKS, 1.3).bits_per_sec() as f64,
            share_of_all_links(UNEQUAL_LINKS, 0.85).bits_per_sec() as f64,
        );
        assert!((low / best - 1.3).abs() < 1e-6 && (high / all - 0.85).abs() < 1e-6);
        // While one of the three links is down, the other two carry the stream.
        assert!(
            (times_best_link(EQUAL_LINKS, 1.3).bits_per_sec() as f64)
                < 0.7 * payload_rate(8, 1.0).bits_per_sec() as f64
        );
        assert_eq!(links(EQUAL_LINKS).len(), 3);
    }
}
