//! What passes a link that was suspended: LTE joins while Wi-Fi is bad, and is suspended when Wi-Fi becomes good.
//!
//! 1. What counts as suspended, and from when on, is [`Suspended`]'s.
//! 2. Ours ends subflows over what is dearer to wake instead of suspending them. So it has two modems, neither of which is.

use std::time::Duration;

use marline_core::units::DataSize;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::LabError;
use crate::mptcp::fetch::Until;
use crate::mptcp::stage::Who;
use crate::mptcp::suspended::Suspended;
use crate::server::Payload;

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    const CASE: &str = "suspend";
    let payload = Payload::new(DataSize::from_bytes(160_000_000)).map_err(LabError::at("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let home = "wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB";
    let links = [link(home), link("lte,rate=8Mbit/s,up=5Mbit/s,rtt=70ms")];
    let modems = [link(&format!("{home},kind=lte")), links[1].clone()];
    let events = ["12s:wifi=rate=20Mbit/s".parse().expect("an event")];
    let ours = Who::MARLINE.name(&links);
    for run in 0..bench.args.runs {
        for (who, links) in [(Who::EMPTCP, &links), (Who::MARLINE, &modems)] {
            if is_stopped() {
                return Ok(());
            }
            let scene = bench.scene(links, &events, &file, run);
            let Some(stage) = bench.stage(sheet, CASE, &scene, (who, run)) else { continue };
            let name_of = who.name(links);
            let until = Until { limit: Duration::from_secs(240), stay: None, sum: true };
            let got = match stage.download(&name, until)? {
                Ok(got) if got.sha256.as_deref() == Some(payload.sha256()) => got,
                Ok(_) => {
                    sheet.problem(CASE, &name_of, run, &"the bytes are others");
                    continue;
                }
                Err(why) => {
                    sheet.problem(CASE, &name_of, run, &why);
                    continue;
                }
            };
            let emulation = stage.emulation()?;
            let Some(after) = Suspended::of(&emulation, 1, got.time) else {
                sheet.problem(CASE, &name_of, run, &"LTE was not suspended for half a minute");
                continue;
            };
            let mut add = |what, floor, figure| sheet.add(CASE, what, (&ours, &floor), &name_of, figure);
            add("payload bytes over LTE after the drain", Floor::AtMost(0.0), after.payload as f64);
            add("control kB a minute", Floor::AtMost(2.0), after.control_a_minute / 1e3);
            add("s until the last payload", Floor::Stated, after.drain_s);
            add("s watched", Floor::Stated, after.watched_s);
            if let Some(why) = emulation.suspect() {
                sheet.suspect(CASE, &why);
            }
        }
    }
    Ok(())
}
