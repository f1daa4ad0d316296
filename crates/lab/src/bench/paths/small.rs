//! Case `small` of `bench paths`: 256 KB over good and bad links (eMPTCP section 5.2). No more energy than TCP over
//! Wi-Fi, no more time than MPTCP.

use std::time::Duration;

use marline_core::units::DataSize;

use super::super::report::{ReportTable, Threshold};
use super::{PathsBench, parse_link};
use crate::LabError;
use crate::interrupt::is_interrupted;
use crate::mptcp::energy;
use crate::mptcp::http_client::StopCondition;
use crate::mptcp::testbed::{ENERGY_MODEL, PathVariant};
use crate::results::energy::device_model;
use crate::server::Payload;

/// The categories (eMPTCP section 5.1: bad means below 8 Mbit/s), with the rates of Wi-Fi and LTE in Mbit/s.
/// Our choice: in the middle of the rates measured there.
const CATEGORIES: [(&str, u32, u32); 4] =
    [("bad + bad", 4, 4), ("bad + good", 4, 16), ("good + bad", 16, 4), ("good + good", 16, 16)];

pub(super) fn run(bench: &PathsBench<'_>, report: &mut ReportTable) -> Result<(), LabError> {
    let payload = Payload::new(DataSize::from_kib(256)).map_err(LabError::at_step("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for (category, wifi, lte) in
        CATEGORIES.into_iter().filter(|(category, ..)| bench.is_selected("small", category))
    {
        let case = format!("small {category}");
        let links = [
            parse_link(&format!("wifi,rate={wifi}Mbit/s,up=5Mbit/s,rtt=40ms")),
            parse_link(&format!("lte,rate={lte}Mbit/s,up=5Mbit/s,rtt=70ms")),
        ];
        let marline_name = PathVariant::MARLINE.name(&links);
        let energy_threshold = Threshold::AtMostTimes(1.03, vec![PathVariant::SingleLinkTcp(0).name(&links)]);
        let time_threshold = Threshold::AtMostTimes(1.05, vec![PathVariant::KernelMptcp.name(&links)]);
        for run in 0..bench.args.runs {
            for variant in [
                PathVariant::SingleLinkTcp(0),
                PathVariant::SingleLinkMptcp,
                PathVariant::KernelMptcp,
                PathVariant::Mptcpd,
                PathVariant::EMPTCP,
                PathVariant::MARLINE,
            ] {
                if is_interrupted() {
                    return Ok(());
                }
                let config = bench.testbed_config(&links, &[], &file, run);
                let Some(testbed) = bench.start_testbed(report, &case, &config, (variant, run)) else { continue };
                let variant_name = variant.name(&links);
                let stop = StopCondition { limit: Duration::from_secs(30), stop_after: None, wants_sha256: true };
                match testbed.download(&name, stop)? {
                    Err(reason) => report.problem(&case, &variant_name, run, &reason),
                    Ok(download) => {
                        let emulation = testbed.emulation_report()?;
                        let breakdown = energy::energy_of_packets(&emulation, device_model(ENERGY_MODEL));
                        report.add(
                            &case,
                            "J",
                            (&marline_name, &energy_threshold),
                            &variant_name,
                            breakdown.total().as_joules_f64(),
                        );
                        report.add(
                            &case,
                            "s",
                            (&marline_name, &time_threshold),
                            &variant_name,
                            download.time.as_secs_f64(),
                        );
                        let packets = emulation.links.get(1).map_or(0, |lte| lte.traffic_samples.len());
                        let no_packets = Threshold::AtMost(0.0);
                        report.add(
                            &case,
                            "moments with packets on LTE",
                            (&marline_name, &no_packets),
                            &variant_name,
                            packets as f64,
                        );
                        if let Some(reason) = emulation.unreliable_reason() {
                            report.mark_unreliable(&case, &reason);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}
