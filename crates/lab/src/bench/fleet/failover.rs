//! Case `killed` of `bench fleet`: the relay in use disappears, and a program opens a new flow. Measured is the
//! time until its first bytes return.
//!
//! | row | how the relay disappears |
//! |---|---|
//! | `kill -9` | its process is killed; its host responds with RST |
//! | `vanished` | its host no longer responds |
//!
//! 1. Before that, a flow through the relay works, so that the edge has ready connections to it.
//! 2. Then five flows are opened one after the other. The first one gets a ready connection that is dead, the later
//!    ones depend on what the edge has learned. The slowest one counts.

use std::time::Duration;

use super::super::report::{ReportTable, Threshold};
use super::{FleetBench, parse_link};
use crate::LabError;
use crate::fleet::{LabFleet, client_flow};
use crate::interrupt::is_interrupted;

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

/// Opens a flow, gives the edge time to prepare further connections, and opens another flow.
fn warm_up(fleet: &LabFleet) -> Result<(), String> {
    client_flow::echo_round_trip(fleet.lab(), FLOW_TIMEOUT)?;
    std::thread::sleep(WARM_UP_TIME);
    client_flow::echo_round_trip(fleet.lab(), FLOW_TIMEOUT).map(drop)
}

/// Our choice: several RTTs.
const WARM_UP_TIME: Duration = Duration::from_secs(1);
/// Our choice: more than the number of ready connections that the edge keeps.
const FLOW_COUNT: u32 = 5;
/// A flow that takes longer has failed.
const FLOW_TIMEOUT: Duration = Duration::from_secs(30);
