//! `marline-lab bench returning-link`: time until a link that recovers carries payload of a running transfer again.
//!
//! | case | how the link fails for five seconds |
//! |---|---|
//! | `down` | `ip link set down` |
//! | `removed` | its interface disappears, and returns with another index |
//! | `carrier` | its interface loses the carrier and keeps its address |
//! | `lease` | its interface has no address for one second, then another one |
//! | `silent` | packets are dropped and the interface stays up |
//! | `dark` | both links drop all packets for 75 s (only with `--long` or `--case`) |
//!
//! 1. Each case is measured for downloads and uploads, for an MPTCP program under `marline paths` and for a program
//!    behind `marline edge` and a relay. First the link with the default route fails and recovers, then the other
//!    one.
//! 2. The time counts from the recovery until [`RECOVERY_BYTES`] have arrived over the link, in steps of 100 ms.
//! 3. The figures do not affect the exit code. It is 1 only if a transfer was incomplete or could not be measured.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::Args;
use marline_sim::spec::{LinkEventKind, LinkSpec};

use super::CommonArgs;
use super::cases::{self, Cases, parse_link};
use super::report::{ReportTable, Threshold};
use crate::fleet::client_flow::{ClientTransport, Direction, transfer};
use crate::fleet::{EdgeAccess, FleetConfig, LabFleet, RelayAssignment};
use crate::interrupt::is_interrupted;
use crate::mptcp::daemon::{DaemonConfig, PathsDaemon};
use crate::result_file::ResultFile;
use crate::results::Backend;
use crate::runner::command::prepare_run;
use crate::{Congestion, EmulationReport, Lab, LabError, LabSpec, Service};

/// Options of `marline-lab bench returning-link`.
#[derive(Clone, Debug, Args)]
pub(super) struct ReturningArgs {
    /// Only these cases: down, removed, carrier, lease, silent, dark, all; or one of their rows, `down upload
    /// edge`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Also measure `dark` (both links fail), which takes two minutes per row.
    #[arg(long = "long")]
    with_outage: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["down", "removed", "carrier", "lease", "silent", "dark"];

pub(super) fn run(args: &ReturningArgs) -> Result<u8, LabError> {
    let cases = Cases::new("a returning link", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.common.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    for (program, package) in [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")] {
        crate::server::find_program(program)
            .ok_or(LabError::MissingProgram { program: program.into(), package })?;
    }
    let mut wanted = cases.selected_cases();
    wanted.retain(|case| *case != "dark" || args.with_outage || !args.cases.is_empty());
    let mut report = ReportTable::default();
    cases::run_cases(&wanted, |case| {
        for (direction, direction_name) in [Direction::Down, Direction::Up].into_iter().zip(["download", "upload"])
        {
            for (transport, name) in [(ClientTransport::Mptcp, "paths"), (ClientTransport::Edge, "edge")] {
                let row = format!("{direction_name} {name}");
                for run in 0..args.common.runs.unwrap_or(1) {
                    if cases.is_selected(case, &row) && !is_interrupted() {
                        measure(&mut report, (case, &row), (direction, transport), run)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    cases::finish(file, "", &report.table(), &report.to_json(), report.problems)
}

/// A lab in which an edge or a path manager selects the links.
enum SteeredTestbed {
    Edge(LabFleet),
    // Fields are dropped in this order: the daemon must restore the host configuration before its network goes.
    Paths { _daemon: PathsDaemon, lab: Lab, start_time: Instant },
}

impl SteeredTestbed {
    fn build(links: &[LinkSpec], transport: ClientTransport, run: u32) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let seed = u64::from(run) + 1;
        if transport == ClientTransport::Edge {
            let (assign, congestion) = (RelayAssignment::CommandLine, Congestion::Cubic);
            let access = EdgeAccess::Proxy;
            let config =
                FleetConfig { links, relays: 1, assignment: assign, access, congestion, seed, program: &program };
            return LabFleet::start(&config).map(Self::Edge);
        }
        let lab = Lab::start(&LabSpec { seed, service: Service::None, ..LabSpec::new(links.to_vec()) })?;
        let configs = DaemonConfig {
            program,
            policy: "marline",
            goal: "speed",
            model: "none",
            links: links.iter().map(|link| format!("{},kind={}", link.name, link.kind)).collect(),
            trace: None,
        };
        let daemon = PathsDaemon::start(&lab, configs)?;
        lab.start_links()?;
        Ok(Self::Paths { _daemon: daemon, lab, start_time: Instant::now() })
    }

    const fn lab(&self) -> &Lab {
        match self {
            Self::Edge(fleet) => fleet.lab(),
            Self::Paths { lab, .. } => lab,
        }
    }

    /// When the links were started.
    const fn start_time(&self) -> Instant {
        match self {
            Self::Edge(fleet) => fleet.start_time(),
            Self::Paths { start_time: zero, .. } => *zero,
        }
    }
}

/// Measures one run of a row: a transfer during which the links fail and recover.
fn measure(
    report: &mut ReportTable,
    (case, row): (&str, &str),
    (direction, transport): (Direction, ClientTransport),
    run: u32,
) -> Result<(), LabError> {
    let label = format!("{case} {row}");
    let links = [parse_link("l0,kind=wifi,rate=5Mbit/s,rtt=40ms"), parse_link("l1,kind=lte,rate=5Mbit/s,rtt=60ms")];
    let testbed = SteeredTestbed::build(&links, transport, run)?;
    let (lab, is_outage) = (testbed.lab(), case == "dark");
    // Dead subflows count against the server's limit until they time out.
    let mut limits = Command::new("ip");
    limits.args(["mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "0"]);
    lab.output_at_server(&mut limits).map_err(LabError::at_step("ip mptcp limits"))?;
    std::thread::sleep(SETTLE_TIME);
    let bytes = if is_outage { 8_000_000 } else { 28_000_000 };
    let limit = Duration::from_secs(if is_outage { 180 } else { 90 });
    let (return_times, result) = std::thread::scope(|scope| {
        let transferred = scope.spawn(|| transfer(lab, transport, direction, bytes, limit));
        let return_times = if is_outage { fail_both_links(&testbed) } else { fail_each_link(&testbed, case) };
        (return_times, transferred.join())
    });
    let transferred = result.unwrap_or_else(|_| Ok(Err("the client's thread panicked".into())))?;
    let (return_times, emulation) = (return_times?, lab.emulation_report()?);
    if let Err(reason) = transferred {
        report.problem(&label, "marline", run, &format!("the transfer is incomplete: {reason}"));
    }
    let threshold = Threshold::AtMost(if is_outage { 3.0 } else { 2.0 });
    for (index, return_time) in return_times.iter().enumerate() {
        let link_range = if is_outage { 0..links.len() } else { index..index + 1 };
        let metric = match (is_outage, index) {
            (true, _) => "s until data flows",
            (_, 0) => "s until the first link carries",
            _ => "s until the second link carries",
        };
        let recovery_time =
            time_until_bytes(&emulation, link_range, direction, *return_time).unwrap_or_else(|remaining_time| {
                report.log(&label, &format!(", {metric}: not until the end of the transfer"));
                remaining_time
            });
        report.add(&label, metric, ("marline", &threshold), "marline", recovery_time.as_secs_f64());
    }
    if let Some(reason) = emulation.unreliable_reason() {
        report.mark_unreliable(&label, &reason);
    }
    Ok(())
}

/// Makes each link fail and recover, one after the other. Returns the times of the recoveries since the start of
/// the links.
fn fail_each_link(testbed: &SteeredTestbed, case: &str) -> Result<Vec<Duration>, LabError> {
    let (lab, mut return_times) = (testbed.lab(), Vec::new());
    for (index, name) in ["l0", "l1"].into_iter().enumerate() {
        std::thread::sleep(TIME_BETWEEN_OUTAGES);
        let outage = Outage::start(lab, case, index, name)?;
        std::thread::sleep(if case == "lease" { Duration::from_secs(1) } else { OUTAGE_TIME });
        outage.stop()?;
        return_times.push(testbed.start_time().elapsed());
    }
    std::thread::sleep(TIME_BETWEEN_OUTAGES);
    Ok(return_times)
}

/// Makes both links drop all packets for [`LONG_OUTAGE`]. Returns the time of the recovery.
fn fail_both_links(testbed: &SteeredTestbed) -> Result<Vec<Duration>, LabError> {
    std::thread::sleep(TIME_BETWEEN_OUTAGES);
    ["l0", "l1"].iter().try_for_each(|name| testbed.lab().change_link(name, LinkEventKind::Down))?;
    let deadline = Instant::now() + LONG_OUTAGE;
    while Instant::now() < deadline && !is_interrupted() {
        std::thread::sleep(Duration::from_millis(100));
    }
    ["l0", "l1"].iter().try_for_each(|name| testbed.lab().change_link(name, LinkEventKind::Restore))?;
    Ok(vec![testbed.start_time().elapsed()])
}

/// A link during its failure.
struct Outage<'a> {
    lab: &'a Lab,
    case: &'a str,
    index: usize,
    device: &'a str,
    /// For an interface that is removed: the process that owns the network namespace it is moved to, and its index.
    holder: Option<(Child, String)>,
}

impl<'a> Outage<'a> {
    fn start(lab: &'a Lab, case: &'a str, link_index: usize, device: &'a str) -> Result<Self, LabError> {
        let mut outage = Self { lab, case, index: link_index, device, holder: None };
        match case {
            "down" => outage.shell("ip link set $1 down")?,
            "carrier" => outage.shell("ip link set $1 carrier off")?,
            "lease" => outage.shell("ip address delete 10.$2.0.2/24 dev $1")?,
            "silent" => lab.change_link(device, LinkEventKind::Down)?,
            _ => {
                let index = lab
                    .run_at_client(|| std::fs::read_to_string(format!("/proc/thread-self/net/dev_snmp6/{device}")));
                let index = index.map_err(LabError::at_step(format!("the index of {device}")))?;
                let index = index.split_whitespace().nth(1).unwrap_or_default().to_owned();
                let mut command = Command::new("unshare");
                command.args(["--net", "sleep", "600"]);
                let child = lab.run_at_client(|| command.spawn()).map_err(LabError::at_step("another network"))?;
                outage.holder = Some((child, index));
                outage.shell("until ! [ /proc/$3/ns/net -ef /proc/self/ns/net ]; do sleep 0.02; done; ip link set $1 netns $3")?;
            }
        }
        Ok(outage)
    }

    /// Ends the failure.
    fn stop(&self) -> Result<(), LabError> {
        match self.case {
            "down" => self.lab.set_device_up(self.device, true),
            "carrier" => self.shell("ip link set $1 carrier on"),
            "lease" => self.shell(&format!("ip address add 10.$2.0.3/24 dev $1; {DEFAULT_ROUTE_COMMAND}")),
            "silent" => self.lab.change_link(self.device, LinkEventKind::Restore),
            // Another device occupies the old index meanwhile, so that the interface gets a new one.
            _ => self.shell(&format!(
                "ip link add hold0 index $4 type veth peer name hold1
                 nsenter --net=/proc/$3/ns/net ip link set $1 netns $$
                 ip link delete hold0; ip address add 10.$2.0.2/24 dev $1; ip link set $1 up; {DEFAULT_ROUTE_COMMAND}"
            )),
        }
    }

    /// Runs a script in the client namespace: `$1` is the interface, `$2` its number, `$3` the PID of the holder,
    /// `$4` the interface's index.
    fn shell(&self, script: &str) -> Result<(), LabError> {
        let (pid, index) = self.holder.as_ref().map_or((0, ""), |(child, index)| (child.id(), index));
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh", self.device, &(self.index + 1).to_string(), &pid.to_string(), index]);
        let step = || format!("{} of {}", self.case, self.device);
        let output = self.lab.run_at_client(|| command.output()).map_err(LabError::at_step(step()))?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let setup_error = || LabError::Setup { step: step(), source: std::io::Error::other(stderr) };
        output.status.success().then_some(()).ok_or_else(setup_error)
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.holder {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Time from the recovery until [`RECOVERY_BYTES`] had arrived over these links. The error is the time until the
/// end of the transfer, if they did not arrive.
fn time_until_bytes(
    emulation: &EmulationReport,
    links: std::ops::Range<usize>,
    direction: Direction,
    return_time: Duration,
) -> Result<Duration, Duration> {
    let links = emulation.links.get(links).unwrap_or_default();
    let timelines: Vec<_> = links
        .iter()
        .map(|link| match direction {
            Direction::Down => &link.down_timeline,
            Direction::Up => &link.up_timeline,
        })
        .collect();
    let slots = timelines.iter().map(|slots| slots.len()).max().unwrap_or(0);
    let end = |slot: usize| {
        (EmulationReport::SLOT * u32::try_from(slot + 1).unwrap_or(u32::MAX)).saturating_sub(return_time)
    };
    let mut bytes = 0;
    for slot in (return_time.as_millis() / EmulationReport::SLOT.as_millis()) as usize..slots {
        bytes += timelines.iter().filter_map(|slots| slots.get(slot)).map(|size| size.bytes()).sum::<u64>();
        if bytes >= RECOVERY_BYTES {
            return Ok(end(slot));
        }
    }
    Err(end(slots))
}

/// Installs the default route over the interface, as a DHCP client does.
const DEFAULT_ROUTE_COMMAND: &str = "ip route replace default via 10.$2.0.1 dev $1 metric 10$2";
/// Our choice: more than probes and retransmissions, and less than 0.1 s of a link.
const RECOVERY_BYTES: u64 = 50_000;
/// After this time connections are managed and the edge's connections are ready.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Our choice: long enough for both links to carry data.
const TIME_BETWEEN_OUTAGES: Duration = Duration::from_secs(4);
/// Our choice: longer than it takes to detect that a link drops all packets.
const OUTAGE_TIME: Duration = Duration::from_secs(5);
const LONG_OUTAGE: Duration = Duration::from_secs(75);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_listed_in_the_help() {
        let help =
            <ReturningArgs as clap::Args>::augment_args(clap::Command::new("x")).render_long_help().to_string();
        assert!(help.contains(&CASES.join(", ")), "{help}");
    }
}
