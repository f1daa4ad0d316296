//! The relay in use is gone, and a program begins a new flow: how long until its first bytes are back.
//!
//! | row | how it is gone |
//! |---|---|
//! | `kill -9` | its process is killed; its host answers with resets |
//! | `vanished` | its host answers nothing any more |
//!
//! 1. Before, one flow through the relay works, so that the edge has connections to it that wait ready.
//! 2. Five flows begin one after the other right afterwards: the first one meets what was ready, the later ones what the edge
//!    has learnt. The slowest counts.

use std::time::Duration;

use super::super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::LabError;
use crate::fleet::{Fleet, flow};

pub(super) fn run(bench: &Bench, sheet: &mut Sheet) -> Result<(), LabError> {
    let links = [
        link("l0,kind=wifi,rate=20Mbit/s,up=8Mbit/s,rtt=40ms"),
        link("l1,kind=lte,rate=20Mbit/s,up=8Mbit/s,rtt=80ms"),
    ];
    for row in ["kill -9", "vanished"] {
        if !bench.wants("killed", row) {
            continue;
        }
        let case = format!("killed {row}");
        for run in 0..bench.runs {
            if is_stopped() {
                return Ok(());
            }
            let mut fleet = Fleet::start(&bench.setting(&links, 3, run))?;
            flow::echo(fleet.lab())?;
            if let Err(why) = before(&fleet) {
                sheet.problem(&case, "marline", run, &why);
                continue;
            }
            let Some(used) = fleet.used() else {
                sheet.problem(&case, "marline", run, &format!("no relay is used: {}", fleet.edge_said().trim()));
                continue;
            };
            match row {
                "kill -9" => fleet.kill_relay(used),
                _ => fleet.vanish(used)?,
            }
            let mut slowest = Duration::ZERO;
            for turn in 0..FLOWS {
                match flow::said_back(fleet.lab(), PATIENCE) {
                    Ok(time) => slowest = slowest.max(time),
                    Err(why) => sheet.problem(&case, "marline", run, &format!("flow {turn}: {why}")),
                }
            }
            let floor = Floor::AtMost(3.0);
            sheet.add(&case, "s until a new flow works", ("marline", &floor), "marline", slowest.as_secs_f64());
            if fleet.used() == Some(used) {
                sheet.problem(&case, "marline", run, &"no flow went through another relay");
            }
            if let Some(why) = fleet.lab().emulation()?.suspect() {
                sheet.suspect(&case, &why);
            }
        }
    }
    Ok(())
}

/// A flow that works, and time for the edge to have others ready.
fn before(fleet: &Fleet) -> Result<(), String> {
    flow::said_back(fleet.lab(), PATIENCE)?;
    std::thread::sleep(READY);
    flow::said_back(fleet.lab(), PATIENCE).map(drop)
}

/// chosen: some round trips.
const READY: Duration = Duration::from_secs(1);
/// chosen: more than the edge keeps ready.
const FLOWS: u32 = 5;
/// A flow that needs this long has not worked.
const PATIENCE: Duration = Duration::from_secs(30);
