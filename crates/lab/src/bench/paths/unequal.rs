//! Links that are far from equal: both together must not be slower than the better one alone, nor than the kernel's own
//! way with both.
//!
//! The kernel's own scheduler often is slower than one link alone (the head of the line waits for the slow link), above all
//! when the connection begins on the slow one, whose queue at the server holds what was written before the fast one
//! joined. Links over a long way are there because a window that opens late looks like a slow link.

use std::time::Duration;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::LabError;
use crate::mptcp::fetch::Until;
use crate::mptcp::stage::Who;
use crate::server::Payload;

/// Rates in Mbit/s and round trips in milliseconds: Wi-Fi's, LTE's.
const NEAR: [u32; 2] = [30, 60];
const FAR: [u32; 2] = [150, 150];
const PAIRS: [([u32; 2], [u32; 2]); 8] = [
    ([50, 5], NEAR),
    ([5, 50], NEAR),
    ([20, 1], NEAR),
    ([1, 20], NEAR),
    ([8, 61], NEAR),
    ([61, 8], NEAR),
    ([20, 20], FAR),
    ([20, 5], FAR),
];

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    let payload = Payload::new(bench.args.size).map_err(LabError::at("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for ([wifi, lte], rtts) in PAIRS {
        let far = if rtts == FAR { format!("@{}", rtts[0]) } else { String::new() };
        let row = format!("{wifi}+{lte}{far}");
        if !bench.wants("unequal", &row) {
            continue;
        }
        let case = format!("unequal {row}");
        let links = [
            link(&format!("wifi,rate={wifi}Mbit/s,up=10Mbit/s,rtt={}ms", rtts[0])),
            link(&format!("lte,rate={lte}Mbit/s,up=10Mbit/s,rtt={}ms", rtts[1])),
        ];
        let best = Who::Single(usize::from(lte > wifi));
        let ours = Who::THROUGHPUT.name(&links);
        let names = |who: &[Who]| who.iter().map(|who| who.name(&links)).collect();
        let later = Floor::AtLeastTimes(0.97, names(&[best, Who::Mptcp]));
        // Where the first subflow is the slow one, what is in its queue comes late.
        let whole = if lte > wifi { Floor::AtLeastTimes(0.93, names(&[best])) } else { Floor::Stated };
        for run in 0..bench.args.runs {
            for who in [best, Who::Mptcp, Who::Mptcpd, Who::THROUGHPUT] {
                if is_stopped() {
                    return Ok(());
                }
                let scene = bench.scene(&links, &[], &file, run);
                let Some(stage) = bench.stage(sheet, &case, &scene, (who, run)) else { continue };
                let name_of = who.name(&links);
                match stage.download(&name, until(bench, wifi.max(lte)))? {
                    Err(why) => sheet.problem(&case, &name_of, run, &why),
                    Ok(got) if got.sha256.as_deref() != Some(payload.sha256()) => {
                        sheet.problem(&case, &name_of, run, &"the bytes are others");
                    }
                    Ok(got) => {
                        let mbps = |rate: f64| rate * 8.0 / 1e6;
                        let after = mbps(got.rate_from(LATER));
                        sheet.add(&case, "Mbit/s from 5 s on", (&ours, &later), &name_of, after);
                        let all = mbps(got.rate_from(Duration::ZERO));
                        sheet.add(&case, "Mbit/s in all", (&ours, &whole), &name_of, all);
                    }
                }
                if let Some(why) = stage.lab().emulation()?.suspect() {
                    sheet.suspect(&case, &why);
                }
            }
        }
    }
    Ok(())
}

/// When whoever decides should have found out.
const LATER: Duration = Duration::from_secs(5);

/// Five times what the better link needs.
fn until(bench: &Bench<'_>, mbps: u32) -> Until {
    let seconds = bench.args.size.bytes() * 8 / 1_000_000 / u64::from(mbps) * 5 + 60;
    Until { limit: Duration::from_secs(seconds), stay: None, sum: true }
}
