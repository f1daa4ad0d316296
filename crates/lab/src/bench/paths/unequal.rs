//! Case `unequal` of `bench paths`: links with very different rates. Both together must not be slower than the
//! better one alone, nor than the kernel's own path management.
//!
//! The kernel's scheduler is often slower than one link alone (head-of-line blocking by the slow link). That holds
//! above all if the connection starts on the slow link: its queue at the server holds what was written before the
//! fast link joined. Links with a long RTT are included, because a window that opens late looks like a slow link.

use std::time::Duration;

use super::super::report::{ReportTable, Threshold};
use super::{PathsBench, parse_link};
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::mptcp::http_client::StopCondition;
use crate::mptcp::testbed::PathVariant;
use crate::server::Payload;

/// RTTs in milliseconds of Wi-Fi and LTE; the pairs below have rates in Mbit/s.
const SHORT_RTTS: [u32; 2] = [30, 60];
const LONG_RTTS: [u32; 2] = [150, 150];
const PAIRS: [([u32; 2], [u32; 2]); 8] = [
    ([50, 5], SHORT_RTTS),
    ([5, 50], SHORT_RTTS),
    ([20, 1], SHORT_RTTS),
    ([1, 20], SHORT_RTTS),
    ([8, 61], SHORT_RTTS),
    ([61, 8], SHORT_RTTS),
    ([20, 20], LONG_RTTS),
    ([20, 5], LONG_RTTS),
];

pub(super) fn run(bench: &PathsBench<'_>, report: &mut ReportTable) -> Result<(), LabError> {
    let payload = Payload::new(bench.args.size).map_err(LabError::at_step("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ([wifi, lte], rtts) in PAIRS {
        let rtt_suffix = if rtts == LONG_RTTS { format!("@{}", rtts[0]) } else { String::new() };
        let row = format!("{wifi}+{lte}{rtt_suffix}");
        if !bench.is_selected("unequal", &row) {
            continue;
        }
        let case = format!("unequal {row}");
        let links = [
            parse_link(&format!("wifi,rate={wifi}Mbit/s,up=10Mbit/s,rtt={}ms", rtts[0])),
            parse_link(&format!("lte,rate={lte}Mbit/s,up=10Mbit/s,rtt={}ms", rtts[1])),
        ];
        let best_link = PathVariant::SingleLinkTcp(usize::from(lte > wifi));
        let marline_name = PathVariant::MARLINE_THROUGHPUT.name(&links);
        let names = |variants: &[PathVariant]| variants.iter().map(|variant| variant.name(&links)).collect();
        let late_threshold = Threshold::AtLeastTimes(0.97, names(&[best_link, PathVariant::KernelMptcp]));
        // If the first subflow is the slow one, the bytes in its queue arrive late.
        let total_threshold =
            if lte > wifi { Threshold::AtLeastTimes(0.93, names(&[best_link])) } else { Threshold::Stated };
        for run in 0..bench.args.runs {
            for variant in
                [best_link, PathVariant::KernelMptcp, PathVariant::Mptcpd, PathVariant::MARLINE_THROUGHPUT]
            {
                if is_interrupted() {
                    return Ok(());
                }
                let config = bench.testbed_config(&links, &[], &file, run);
                let Some(testbed) = bench.start_testbed(report, &case, &config, (variant, run)) else { continue };
                let variant_name = variant.name(&links);
                match testbed.download(&name, stop_condition(bench, wifi.max(lte)))? {
                    Err(reason) => report.problem(&case, &variant_name, run, &reason),
                    Ok(got) if got.sha256.as_deref() != Some(payload.sha256()) => {
                        report.problem(&case, &variant_name, run, &"wrong bytes");
                    }
                    Ok(download) => {
                        let mbps = |rate: f64| rate * 8.0 / 1e6;
                        let late_mbps = mbps(download.rate_from(SETTLED_AFTER));
                        report.add(
                            &case,
                            "Mbit/s from 5 s on",
                            (&marline_name, &late_threshold),
                            &variant_name,
                            late_mbps,
                        );
                        let total_mbps = mbps(download.rate_from(Duration::ZERO));
                        report.add(
                            &case,
                            "Mbit/s in all",
                            (&marline_name, &total_threshold),
                            &variant_name,
                            total_mbps,
                        );
                    }
                }
                if let Some(reason) = testbed.lab().emulation_report()?.unreliable_reason() {
                    report.mark_unreliable(&case, &reason);
                }
            }
        }
    }
    Ok(())
}

/// Time after which the path manager should have recognized the link rates.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Time limit: five times what the better link needs, and a minute.
fn stop_condition(bench: &PathsBench<'_>, mbps: u32) -> StopCondition {
    let seconds = bench.args.size.bytes() * 8 / 1_000_000 / u64::from(mbps) * 5 + 60;
    StopCondition { limit: Duration::from_secs(seconds), stop_after: None, wants_sha256: true }
}
