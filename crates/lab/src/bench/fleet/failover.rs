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

use super::super::report::{ReportTable, Threshold};
use super::{FleetBench, is_interrupted, parse_link};
use crate::LabError;
use crate::fleet::{LabFleet, client_flow};

pub(super) fn run(bench: &FleetBench, report: &mut ReportTable) -> Result<(), LabError> {
    let links = [
        parse_link("l0,kind=wifi,rate=20Mbit/s,up=8Mbit/s,rtt=40ms"),
        parse_link("l1,kind=lte,rate=20Mbit/s,up=8Mbit/s,rtt=80ms"),
    ];
    for row in ["kill -9", "vanished"] {
        if !bench.is_selected("killed", row) {
            continue;
        }
        let case = format!("killed {row}");
        for run in 0..bench.runs {
            if is_interrupted() {
                return Ok(());
            }
            let mut fleet = LabFleet::start(&bench.fleet_config(&links, 3, run))?;
            client_flow::start_echo(fleet.lab())?;
            if let Err(reason) = warm_up(&fleet) {
                report.problem(&case, "marline", run, &reason);
                continue;
            }
            let Some(relay_in_use) = fleet.relay_in_use() else {
                report.problem(&case, "marline", run, &format!("no relay is used: {}", fleet.edge_log().trim()));
                continue;
            };
            match row {
                "kill -9" => fleet.kill_relay(relay_in_use),
                _ => fleet.remove_relay_host(relay_in_use)?,
            }
            let mut slowest = Duration::ZERO;
            for flow_number in 0..FLOW_COUNT {
                match client_flow::echo_round_trip(fleet.lab(), FLOW_TIMEOUT) {
                    Ok(time) => slowest = slowest.max(time),
                    Err(reason) => report.problem(&case, "marline", run, &format!("flow {flow_number}: {reason}")),
                }
            }
            let threshold = Threshold::AtMost(3.0);
            report.add(
                &case,
                "s until a new flow works",
                ("marline", &threshold),
                "marline",
                slowest.as_secs_f64(),
            );
            if fleet.relay_in_use() == Some(relay_in_use) {
                report.problem(&case, "marline", run, &"no flow went through another relay");
            }
            if let Some(reason) = fleet.lab().emulation_report()?.unreliable_reason() {
                report.mark_unreliable(&case, &reason);
            }
        }
    }
    Ok(())
}

/// A flow that works, and time for the edge to have others ready.
fn warm_up(fleet: &LabFleet) -> Result<(), String> {
    client_flow::echo_round_trip(fleet.lab(), FLOW_TIMEOUT)?;
    std::thread::sleep(WARM_UP_TIME);
    client_flow::echo_round_trip(fleet.lab(), FLOW_TIMEOUT).map(drop)
}

/// chosen: some round trips.
const WARM_UP_TIME: Duration = Duration::from_secs(1);
/// chosen: more than the edge keeps ready.
const FLOW_COUNT: u32 = 5;
/// A flow that needs this long has not worked.
const FLOW_TIMEOUT: Duration = Duration::from_secs(30);
