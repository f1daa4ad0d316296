//! Case `suspend` of `bench paths`: traffic on a suspended link. LTE joins while Wi-Fi is bad, and is suspended
//! when Wi-Fi becomes good.
//!
//! 1. [`SuspendedTraffic`] defines when a link counts as suspended.
//! 2. marline closes subflows on links whose promotion costs more energy, instead of suspending them. So it is
//!    measured with two modems, which cost the same.

use std::time::Duration;

use marline_core::units::DataSize;

use super::super::report::{ReportTable, Threshold};
use super::{PathsBench, parse_link};
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::mptcp::http_client::StopCondition;
use crate::mptcp::suspended_traffic::SuspendedTraffic;
use crate::mptcp::testbed::PathVariant;
use crate::server::Payload;

pub(super) fn run(bench: &PathsBench<'_>, report: &mut ReportTable) -> Result<(), LabError> {
    const CASE: &str = "suspend";
    let payload = Payload::new(DataSize::from_bytes(160_000_000)).map_err(LabError::at_step("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let wifi = "wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB";
    let links = [parse_link(wifi), parse_link("lte,rate=8Mbit/s,up=5Mbit/s,rtt=70ms")];
    let modem_links = [parse_link(&format!("{wifi},kind=lte")), links[1].clone()];
    let events = ["12s:wifi=rate=20Mbit/s".parse().expect("an event")];
    let marline_name = PathVariant::MARLINE.name(&links);
    for run in 0..bench.args.runs {
        for (variant, links) in [(PathVariant::EMPTCP, &links), (PathVariant::MARLINE, &modem_links)] {
            if is_interrupted() {
                return Ok(());
            }
            let config = bench.testbed_config(links, &events, &file, run);
            let Some(testbed) = bench.start_testbed(report, CASE, &config, (variant, run)) else { continue };
            let variant_name = variant.name(links);
            let stop = StopCondition { limit: Duration::from_secs(240), stop_after: None, wants_sha256: true };
            let download = match testbed.download(&name, stop)? {
                Ok(download) if download.sha256.as_deref() == Some(payload.sha256()) => download,
                Ok(_) => {
                    report.problem(CASE, &variant_name, run, &"wrong bytes");
                    continue;
                }
                Err(reason) => {
                    report.problem(CASE, &variant_name, run, &reason);
                    continue;
                }
            };
            let emulation = testbed.emulation_report()?;
            let Some(suspended) = SuspendedTraffic::measure(&emulation, 1, download.time) else {
                report.problem(CASE, &variant_name, run, &"LTE was not suspended for half a minute");
                continue;
            };
            let mut add = |metric, threshold, figure| {
                report.add(CASE, metric, (&marline_name, &threshold), &variant_name, figure)
            };
            add("payload bytes over LTE after the drain", Threshold::AtMost(0.0), suspended.payload as f64);
            add("control kB a minute", Threshold::AtMost(2.0), suspended.control_per_minute / 1e3);
            add("s until the last payload", Threshold::Stated, suspended.drain_s);
            add("s watched", Threshold::Stated, suspended.watched_s);
            if let Some(reason) = emulation.unreliable_reason() {
                report.mark_unreliable(CASE, &reason);
            }
        }
    }
    Ok(())
}
