//! Cost of the accelerator: processor time for each packet that it handles, and speed of links on which it has nothing
//! to do.
//!
//! | row | what |
//! |---|---|
//! | `user` | processor time of the accelerator over the packets that it held or captured; 1 % loss, the default mechanisms |
//! | `bpf` | time of the accelerator's BPF program for an ACK, in a row (`BPF_PROG_TEST_RUN`); also what the kernel counts of its runs at the link (`kernel.bpf_stats_enabled`) |
//! | `300` | speed of a link of 300 Mbit/s |
//! | `1000` | the same of 1 Gbit/s with ACK offload by BPF alone |
//!
//! 1. Processor time is that of the process and of the kernel on its behalf, from the start of the download to its end.
//! 2. The BPF program offloads if only ACK offload is enabled and the second link's rate is given.
//! 3. What the kernel counts at the link includes its counting, and the cache misses of a program that has not run
//!    since the previous packet: a program that does nothing counts half a microsecond there.
//! 4. The emulator needs an idle machine for 1 Gbit/s; runs that it cannot carry are named suspect. So these runs are
//!    exclusive.

use std::time::Duration;

use marline_core::units::Ratio;

use super::super::accel::run::BenchRun;
use super::super::report::{ReportTable, Threshold};
use super::Bench;
use super::paired::{self, Requirement, Row};
use crate::accel::{Contender, Medium, Stream, Topology, TrialResult};

pub(super) fn units(bench: &Bench) -> Vec<BenchRun<'_>> {
    let mut units = Vec::new();
    if bench.includes_accel && bench.wants("cost", "user") {
        units.extend(packets(bench, USER, 1, &Contender::default_mechanisms()));
    }
    if bench.includes_accel && bench.wants("cost", "bpf") {
        units.extend(packets(bench, BPF, 0, &steered()));
    }
    // No run may reach the end of the file.
    let speeds = [("300", 300_000, 5, Contender::default_mechanisms()), ("1000", 1_000_000, 3, steered())];
    for (name, kbps, seconds, contender) in speeds {
        if !bench.wants("cost", name) {
            continue;
        }
        let (length, from) = bench.time(seconds, 1);
        let row = Row {
            name: format!("cost {name}"),
            is_tls: false,
            outage: None,
            length,
            from,
            requirements: vec![Requirement::OfPlain(0.97)],
            contender,
        };
        let world = move |seed| Topology {
            medium: Medium::Rate(kbps),
            rtt: Duration::from_millis(10),
            congestion: bench.congestion,
            ..Topology::default_links(seed)
        };
        units.extend(paired::units(bench, row, bench.runs(5), world));
    }
    units.into_iter().map(BenchRun::exclusive).collect()
}

/// ACK offload by BPF, over the usual second link.
fn steered() -> Contender {
    let up = Topology::default_links(0).cell.map_or(0, |(_, up)| up);
    Contender::only("ours", "ack-offload").with_uplink(up)
}

const USER: &str = "cost user";
const BPF: &str = "cost bpf";

fn packets<'a>(bench: &'a Bench, case: &'static str, loss: u32, contender: &Contender) -> Vec<BenchRun<'a>> {
    let (length, _) = bench.time(30, 0);
    let unit = |run: u32| {
        let contender = contender.clone();
        BenchRun::new(run, length, move |sheet| {
            // If the kernel does not count, only the runs in a row are measured.
            let _counting = (case == BPF).then(Counting::start);
            let world = Topology { loss: Ratio::from_percent(loss), ..Topology::default_links(u64::from(run) + 1) };
            match bench.trial(&world, &contender, &[Stream::new(true)], length) {
                Err(why) => sheet.problem(case, "ours", run, &why),
                Ok(taken) => taken.iter().for_each(|taken| figures(sheet, case, taken)),
            }
            Ok(())
        })
    };
    (0..bench.runs(5)).map(unit).collect()
}

fn figures(sheet: &mut ReportTable, case: &str, taken: &TrialResult) {
    if let Some(why) = taken.emulation.unreliable_reason() {
        sheet.mark_unreliable(case, &why);
    }
    if case == BPF {
        let Some((each, in_place)) = taken.bpf else {
            return sheet.log(case, ": the accelerator has no BPF program in the kernel");
        };
        sheet.add(case, "ns a packet", ("ours", &Threshold::AtMost(200.0)), "ours", each);
        if let Some(each) = in_place {
            sheet.add(case, "ns in place", ("ours", &Threshold::Stated), "ours", each);
        }
        return;
    }
    // Packets that it held, and packets that it captured.
    let count = |name: &str| taken.status.as_ref().and_then(|status| status["counts"][name].as_u64());
    let packets = count("queued").unwrap_or(0) + count("captured").unwrap_or(0);
    if packets == 0 {
        sheet.log(case, ": no packet came to the accelerator");
        return;
    }
    let each = taken.cpu.unwrap_or_default().as_secs_f64() * 1e6 / packets as f64;
    sheet.add(case, "µs a packet", ("ours", &Threshold::AtMost(10.0)), "ours", each);
}

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Makes the kernel count the time of BPF programs until this is dropped. If it counted before, it goes on.
struct Counting(bool);

impl Counting {
    fn start() -> Option<Self> {
        let was = std::fs::read_to_string(STATS).ok()?.trim() == "1";
        std::fs::write(STATS, "1").ok()?;
        Some(Self(was))
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if !self.0 {
            let _ = std::fs::write(STATS, "0");
        }
    }
}
