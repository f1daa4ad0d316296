//! `marline-lab bench returning-link`: how soon a link that comes back carries payload of a running transfer again.
//!
//! | case | how the link fails for five seconds |
//! |---|---|
//! | `down` | `ip link set down` |
//! | `removed` | its interface goes, and comes back with another index |
//! | `carrier` | its interface loses the carrier and keeps its address |
//! | `lease` | its interface has no address for a second, then another one |
//! | `silent` | packets vanish and the interface stays up |
//! | `dark` | both links are silent for 75 s (with `--long`) |
//!
//! 1. Each case is measured for downloads and uploads, for an MPTCP program under `marline paths` and for a program behind
//!    `marline edge` and a relay. First the link with the default route fails and returns, then the other one.
//! 2. The time counts from the link's return until [`ENOUGH`] bytes have arrived over it, in steps of 100 ms.
//! 3. A figure decides no exit code: it is 1 only if a transfer was not whole or could not be measured.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::Args;
use marline_sim::spec::{Change, LinkSpec};

use super::CommonArgs;
use super::sheet::{Floor, Sheet};
use super::turns::{self, Cases, is_stopped, link};
use crate::evidence::By;
use crate::fleet::flow::{Direction, Way, transfer};
use crate::fleet::{Assign, Fleet, Setting, Through};
use crate::mptcp::daemon::{Daemon, Settings};
use crate::result_file::ResultFile;
use crate::runner::command::begin;
use crate::{Congestion, Emulation, Lab, LabError, LabSpec, Service};

/// `marline-lab bench returning-link`.
#[derive(Clone, Debug, Args)]
pub(super) struct ReturningArgs {
    /// Only these: down, removed, carrier, lease, silent, dark, all; or one of their rows, `down upload edge`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Measure `dark` as well, two minutes a row.
    #[arg(long)]
    long: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// The cases, in the order of the table.
const CASES: [&str; 6] = ["down", "removed", "carrier", "lease", "silent", "dark"];

pub(super) fn run(args: &ReturningArgs) -> Result<u8, LabError> {
    let cases = Cases::new("a returning link", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.common.json.as_ref())?;
    begin(By::Lab)?;
    for (program, package) in [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")] {
        crate::server::find(program).ok_or(LabError::Missing { program: program.into(), package })?;
    }
    let mut wanted = cases.wanted();
    wanted.retain(|case| *case != "dark" || args.long || !args.cases.is_empty());
    let mut sheet = Sheet::default();
    turns::each(&wanted, |case| {
        for (direction, way) in [Direction::Down, Direction::Up].into_iter().zip(["download", "upload"]) {
            for (through, name) in [(Way::Mptcp, "paths"), (Way::Edge, "edge")] {
                let row = format!("{way} {name}");
                for run in 0..args.common.runs.unwrap_or(1) {
                    if cases.wants(case, &row) && !is_stopped() {
                        one(&mut sheet, (case, &row), (direction, through), run)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    turns::end(file, "", &sheet.table(), &sheet.record(), sheet.problems)
}

/// A lab with somebody who steers connections.
enum Place {
    Edge(Fleet),
    // Dropped in this order: the daemon puts back what it changed, then its network goes.
    Paths { _daemon: Daemon, lab: Lab, zero: Instant },
}

impl Place {
    fn start(links: &[LinkSpec], through: Way, run: u32) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let seed = u64::from(run) + 1;
        if through == Way::Edge {
            let (assign, congestion) = (Assign::Fixed, Congestion::Cubic);
            let through = Through::Proxy;
            let setting = Setting { links, relays: 1, assign, through, congestion, seed, program: &program };
            return Fleet::start(&setting).map(Self::Edge);
        }
        let lab = Lab::start(&LabSpec { seed, service: Service::None, ..LabSpec::new(links.to_vec()) })?;
        let settings = Settings {
            program,
            policy: "marline",
            profile: "throughput",
            model: "none",
            links: links.iter().map(|link| format!("{},kind={}", link.name, link.kind)).collect(),
            trace: None,
        };
        let daemon = Daemon::start(&lab, settings)?;
        lab.begin()?;
        Ok(Self::Paths { _daemon: daemon, lab, zero: Instant::now() })
    }

    const fn lab(&self) -> &Lab {
        match self {
            Self::Edge(fleet) => fleet.lab(),
            Self::Paths { lab, .. } => lab,
        }
    }

    /// When the links' clock began.
    const fn zero(&self) -> Instant {
        match self {
            Self::Edge(fleet) => fleet.zero(),
            Self::Paths { zero, .. } => *zero,
        }
    }
}

fn one(
    sheet: &mut Sheet,
    (case, row): (&str, &str),
    (direction, through): (Direction, Way),
    run: u32,
) -> Result<(), LabError> {
    let label = format!("{case} {row}");
    let links = [link("l0,kind=wifi,rate=5Mbit/s,rtt=40ms"), link("l1,kind=lte,rate=5Mbit/s,rtt=60ms")];
    let place = Place::start(&links, through, run)?;
    let (lab, dark) = (place.lab(), case == "dark");
    // Dead subflows count at the server until they time out.
    let mut limits = Command::new("ip");
    limits.args(["mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "0"]);
    lab.at_server(&mut limits).map_err(LabError::at("ip mptcp limits"))?;
    std::thread::sleep(SETTLED);
    let bytes = if dark { 8_000_000 } else { 28_000_000 };
    let limit = Duration::from_secs(if dark { 180 } else { 90 });
    let (returns, carried) = std::thread::scope(|scope| {
        let carried = scope.spawn(|| transfer(lab, through, direction, bytes, limit));
        let returns = if dark { darkness(&place) } else { outages(&place, case) };
        (returns, carried.join())
    });
    let carried = carried.unwrap_or_else(|_| Ok(Err("the client broke down".into())))?;
    let (returns, emulation) = (returns?, lab.emulation()?);
    if let Err(why) = carried {
        sheet.problem(&label, "marline", run, &format!("the transfer was not whole: {why}"));
    }
    let floor = Floor::AtMost(if dark { 3.0 } else { 2.0 });
    for (at, returned) in returns.iter().enumerate() {
        let among = if dark { 0..links.len() } else { at..at + 1 };
        let what = match (dark, at) {
            (true, _) => "s until data flows",
            (_, 0) => "s until the first link carries",
            _ => "s until the second link carries",
        };
        let after = again(&emulation, among, direction, *returned).unwrap_or_else(|never| {
            sheet.tell(&label, &format!(", {what}: not until the end of the transfer"));
            never
        });
        sheet.add(&label, what, ("marline", &floor), "marline", after.as_secs_f64());
    }
    if let Some(why) = emulation.suspect() {
        sheet.suspect(&label, &why);
    }
    Ok(())
}

/// Each link fails and returns, one after the other. When they returned.
fn outages(place: &Place, case: &str) -> Result<Vec<Duration>, LabError> {
    let (lab, mut returns) = (place.lab(), Vec::new());
    for (at, name) in ["l0", "l1"].into_iter().enumerate() {
        std::thread::sleep(BEFORE);
        let outage = Outage::begin(lab, case, at, name)?;
        std::thread::sleep(if case == "lease" { Duration::from_secs(1) } else { AWAY });
        outage.end()?;
        returns.push(place.zero().elapsed());
    }
    std::thread::sleep(BEFORE);
    Ok(returns)
}

/// Both links are silent for a while.
fn darkness(place: &Place) -> Result<Vec<Duration>, LabError> {
    std::thread::sleep(BEFORE);
    ["l0", "l1"].iter().try_for_each(|name| place.lab().change(name, Change::Down))?;
    let until = Instant::now() + DARK;
    while Instant::now() < until && !is_stopped() {
        std::thread::sleep(Duration::from_millis(100));
    }
    ["l0", "l1"].iter().try_for_each(|name| place.lab().change(name, Change::Back))?;
    Ok(vec![place.zero().elapsed()])
}

/// A link that is away.
struct Outage<'a> {
    lab: &'a Lab,
    case: &'a str,
    at: usize,
    name: &'a str,
    /// In a network of its own, for an interface that is removed; and the interface's index.
    elsewhere: Option<(Child, String)>,
}

impl<'a> Outage<'a> {
    fn begin(lab: &'a Lab, case: &'a str, at: usize, name: &'a str) -> Result<Self, LabError> {
        let mut outage = Self { lab, case, at, name, elsewhere: None };
        match case {
            "down" => outage.shell("ip link set $1 down")?,
            "carrier" => outage.shell("ip link set $1 carrier off")?,
            "lease" => outage.shell("ip address delete 10.$2.0.2/24 dev $1")?,
            "silent" => lab.change(name, Change::Down)?,
            _ => {
                let index =
                    lab.inside(|| std::fs::read_to_string(format!("/proc/thread-self/net/dev_snmp6/{name}")));
                let index = index.map_err(LabError::at(format!("the index of {name}")))?;
                let index = index.split_whitespace().nth(1).unwrap_or_default().to_owned();
                let mut command = Command::new("unshare");
                command.args(["--net", "sleep", "600"]);
                let child = lab.inside(|| command.spawn()).map_err(LabError::at("another network"))?;
                outage.elsewhere = Some((child, index));
                outage.shell("until ! [ /proc/$3/ns/net -ef /proc/self/ns/net ]; do sleep 0.02; done; ip link set $1 netns $3")?;
            }
        }
        Ok(outage)
    }

    fn end(&self) -> Result<(), LabError> {
        match self.case {
            "down" => self.lab.set_device(self.name, true),
            "carrier" => self.shell("ip link set $1 carrier on"),
            "lease" => self.shell(&format!("ip address add 10.$2.0.3/24 dev $1; {ROUTE}")),
            "silent" => self.lab.change(self.name, Change::Back),
            // Something else has its index meanwhile, so that it gets another one.
            _ => self.shell(&format!(
                "ip link add hold0 index $4 type veth peer name hold1
                 nsenter --net=/proc/$3/ns/net ip link set $1 netns $$
                 ip link delete hold0; ip address add 10.$2.0.2/24 dev $1; ip link set $1 up; {ROUTE}"
            )),
        }
    }

    /// Runs a script at the client's end: `$1` is the interface, `$2` its number, `$3` a process elsewhere, `$4` its index.
    fn shell(&self, script: &str) -> Result<(), LabError> {
        let (pid, index) = self.elsewhere.as_ref().map_or((0, ""), |(child, index)| (child.id(), index));
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh", self.name, &(self.at + 1).to_string(), &pid.to_string(), index]);
        let step = || format!("{} of {}", self.case, self.name);
        let output = self.lab.inside(|| command.output()).map_err(LabError::at(step()))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let failed = || LabError::Setup { step: step(), source: std::io::Error::other(said) };
        output.status.success().then_some(()).ok_or_else(failed)
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.elsewhere {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long it took from a return until [`ENOUGH`] bytes had arrived over these links; the error: they did not in this time.
fn again(
    emulation: &Emulation,
    links: std::ops::Range<usize>,
    direction: Direction,
    returned: Duration,
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
    let end =
        |slot: usize| (Emulation::SLOT * u32::try_from(slot + 1).unwrap_or(u32::MAX)).saturating_sub(returned);
    let mut bytes = 0;
    for slot in (returned.as_millis() / Emulation::SLOT.as_millis()) as usize..slots {
        bytes += timelines.iter().filter_map(|slots| slots.get(slot)).map(|size| size.bytes()).sum::<u64>();
        if bytes >= ENOUGH {
            return Ok(end(slot));
        }
    }
    Err(end(slots))
}

/// The default route over the interface, as a DHCP client makes it.
const ROUTE: &str = "ip route replace default via 10.$2.0.1 dev $1 metric 10$2";
/// chosen: more than probes and retransmissions, and less than 0.1 s of a link.
const ENOUGH: u64 = 50_000;
/// Connections are steered, and the edge's are ready.
const SETTLED: Duration = Duration::from_secs(2);
/// chosen: both links carry.
const BEFORE: Duration = Duration::from_secs(4);
/// chosen: longer than it takes to find a link silent.
const AWAY: Duration = Duration::from_secs(5);
const DARK: Duration = Duration::from_secs(75);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_written_in_the_help() {
        let help =
            <ReturningArgs as clap::Args>::augment_args(clap::Command::new("x")).render_long_help().to_string();
        assert!(help.contains(&CASES.join(", ")), "{help}");
    }
}
