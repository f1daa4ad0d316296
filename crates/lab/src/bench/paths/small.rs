//! 256 KB over good and bad links (eMPTCP §5.2): no joules beyond Wi-Fi's, no time beyond MPTCP's.

use std::time::Duration;

use marline_core::units::DataSize;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::LabError;
use crate::evidence::joules::device;
use crate::mptcp::fetch::Until;
use crate::mptcp::joules;
use crate::mptcp::stage::{DEVICE, Who};
use crate::server::Payload;

/// The categories (eMPTCP §5.1: bad below 8 Mbit/s), Wi-Fi first; rates in Mbit/s. chosen: amid what was measured there.
const CATEGORIES: [(&str, u32, u32); 4] =
    [("bad + bad", 4, 4), ("bad + good", 4, 16), ("good + bad", 16, 4), ("good + good", 16, 16)];

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    let payload = Payload::new(DataSize::from_kib(256)).map_err(LabError::at("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for (category, wifi, lte) in CATEGORIES.into_iter().filter(|(category, ..)| bench.wants("small", category)) {
        let case = format!("small {category}");
        let links = [
            link(&format!("wifi,rate={wifi}Mbit/s,up=5Mbit/s,rtt=40ms")),
            link(&format!("lte,rate={lte}Mbit/s,up=5Mbit/s,rtt=70ms")),
        ];
        let ours = Who::MARLINE.name(&links);
        let energy = Floor::AtMostTimes(1.03, vec![Who::Single(0).name(&links)]);
        let time = Floor::AtMostTimes(1.05, vec![Who::Mptcp.name(&links)]);
        for run in 0..bench.args.runs {
            for who in [Who::Single(0), Who::Alone, Who::Mptcp, Who::Mptcpd, Who::EMPTCP, Who::MARLINE] {
                if is_stopped() {
                    return Ok(());
                }
                let scene = bench.scene(&links, &[], &file, run);
                let Some(stage) = bench.stage(sheet, &case, &scene, (who, run)) else { continue };
                let name_of = who.name(&links);
                let until = Until { limit: Duration::from_secs(30), stay: None, sum: true };
                match stage.download(&name, until)? {
                    Err(why) => sheet.problem(&case, &name_of, run, &why),
                    Ok(got) => {
                        let emulation = stage.emulation()?;
                        let account = joules::of_packets(&emulation, device(DEVICE));
                        sheet.add(&case, "J", (&ours, &energy), &name_of, account.total().as_joules_f64());
                        sheet.add(&case, "s", (&ours, &time), &name_of, got.time.as_secs_f64());
                        let packets = emulation.links.get(1).map_or(0, |lte| lte.signs.len());
                        let none = Floor::AtMost(0.0);
                        sheet.add(&case, "moments with packets on LTE", (&ours, &none), &name_of, packets as f64);
                        if let Some(why) = emulation.suspect() {
                            sheet.suspect(&case, &why);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}
