//! One upload in real time: a lab with an edge, relays, a fleet service and an origin, all of them the programs
//! that users run.
//!
//! | site | is |
//! |---|---|
//! | the client | the edge and the sender |
//! | 0 | the Internet side of the edge's links; the fleet service |
//! | 1 | the origin |
//! | 2, 3, … | the relays |
//!
//! 1. Edge, relays and fleet service are `marline` as processes, with certificates of one authority that is created
//!    once.
//! 2. Each lab is fresh: no cached TCP metrics, no learned rates. Only the edge's connections to its relay are
//!    ready, as in normal operation.
//! 3. Plain TCP and the edge's subflows use the selected congestion control. A relay sends to the origin with its
//!    own default (`marline relay --congestion`: BBR if the kernel has it). So [`UploadRoute::FromRelay`] (plain
//!    TCP from the relay) does not predict [`UploadRoute::Through`], and the gains of `Through` and `Split` over
//!    `Direct` compare different algorithms.
//! 4. `--by-fleet` adds the fleet service's choice ([`UploadRoute::Assigned`]): the edge gets the address of the
//!    fleet service and of no relay. The relays are fresh and the edge names no origin, so the fleet service has no
//!    B_o(s) and selects by B(c, s) alone.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use marline_sim::spec::LinkSpec;

use super::config::{UploadCase, UploadRoute};
use super::measurement::UploadResult;
use super::upload::{self, RECEIVER_PORT, UploadSource};
use crate::fleet::{CA_DIR, FleetProcess, MemberFiles, relay_in_use, relay_name};
use crate::server::TempDir;
use crate::wan_topology::site_address;
use crate::{Congestion, Lab, LabError, LabSpec, Segment};

/// State shared by all cases.
#[derive(Debug)]
pub(super) struct UploadRunner {
    pub(super) congestion: Congestion,
    /// The authority and the certificates of all members, created once.
    member_files: MemberFiles,
    _temp_dir: TempDir,
    /// Only one lab is built at a time: building is short and would delay the packets of running labs.
    build_lock: Mutex<()>,
}

/// Sites of the origin and of the first relay.
const ORIGIN_SITE: usize = 1;
const FIRST_RELAY_SITE: usize = 2;
/// Number of relays that have certificates.
const MAX_RELAYS: usize = 3;

impl UploadRunner {
    /// Creates the authority and the certificates.
    pub(super) fn new(congestion: Congestion) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let folder = TempDir::new().map_err(LabError::at_step("directory of the certificates"))?;
        let addresses: Vec<Ipv4Addr> =
            (0..MAX_RELAYS).map(|relay| site_address(FIRST_RELAY_SITE + relay)).collect();
        let members = MemberFiles::new(&program, folder.path(), &addresses)?;
        Ok(Self { congestion, member_files: members, _temp_dir: folder, build_lock: Mutex::default() })
    }

    /// Runs one upload. The inner error is a failure of the upload, the outer one of the lab.
    pub(super) fn upload(
        &self,
        case: &UploadCase,
        route: UploadRoute,
    ) -> Result<Result<UploadResult, String>, LabError> {
        let lab = {
            // The lock protects no data, so the panic of another thread does not matter.
            let _one_at_a_time = self.build_lock.lock().unwrap_or_else(PoisonError::into_inner);
            Lab::start(&LabSpec {
                congestion: self.congestion,
                seed: case.seed,
                segments: segments(case),
                ..LabSpec::new(case.links.clone())
            })?
        };
        // The links must carry data before the measurement, because the edge connects to its relay.
        lab.start_links()?;
        let folder = TempDir::new().map_err(LabError::at_step("directory of the lab's files"))?;
        let run = |from: UploadSource<'_>, to: usize| {
            upload::upload(&lab, from, to, case.length).map_err(|e| e.to_string())
        };
        let site = |relay: usize| FIRST_RELAY_SITE + relay;
        let result = match route {
            UploadRoute::Direct(at) => {
                let name = case.links.get(at).map_or("", |link| &link.name);
                run(UploadSource::Device(name), ORIGIN_SITE)
            }
            UploadRoute::FromRelay(relay) => run(UploadSource::Site(site(relay)), ORIGIN_SITE),
            UploadRoute::Split(relay) | UploadRoute::Through(relay) | UploadRoute::ToRelay(relay) => {
                let processes = self
                    .start_processes(&lab, folder.path(), case, route, &[relay])
                    .map_err(|error| error.to_string());
                let to = if route == UploadRoute::ToRelay(relay) { site(relay) } else { ORIGIN_SITE };
                processes
                    .and_then(|_stage| run(UploadSource::Edge, to))
                    .map(|got| UploadResult { relay: Some(relay), ..got })
            }
            UploadRoute::Assigned => {
                let all: Vec<usize> = (0..case.relays.len()).collect();
                let processes =
                    self.start_processes(&lab, folder.path(), case, route, &all).map_err(|error| error.to_string());
                processes.and_then(|processes| {
                    let got = run(UploadSource::Edge, ORIGIN_SITE)?;
                    let relay = relay_index_in_use(&processes.edge.log_text())
                        .ok_or("the edge's log does not name a relay")?;
                    Ok(UploadResult { relay: Some(relay), ..got })
                })
            }
        };
        let emulation = lab.emulation_report()?;
        let unseen = emulation.links.iter().map(|link| link.dropped_before_emulator).sum();
        let late_s = emulation.lateness.p99.as_secs_f64();
        Ok(result.map(|got| UploadResult { p99_lateness_s: late_s, dropped_before_emulator: unseen, ..got }))
    }

    /// Starts the processes that the route needs, and waits until they are ready.
    fn start_processes(
        &self,
        lab: &Lab,
        work_dir: &Path,
        case: &UploadCase,
        route: UploadRoute,
        relays: &[usize],
    ) -> Result<Processes, LabError> {
        let by_fleet = route == UploadRoute::Assigned;
        let service = by_fleet.then(|| self.start_service(lab, work_dir)).transpose()?;
        let relays = relays.iter().map(|relay| self.start_relay(lab, work_dir, *relay, by_fleet));
        let relays = relays.collect::<Result<Vec<_>, _>>()?;
        let mut command = self.member_files.command(work_dir, &["edge"]);
        command.args(["--certificate", "edge.pem", "--no-direct"]).arg("--run-dir").arg(work_dir);
        match route {
            UploadRoute::Assigned => command.args(["--fleet", &service_url()]),
            UploadRoute::Split(relay) | UploadRoute::Through(relay) | UploadRoute::ToRelay(relay) => {
                command.arg("--relay").arg(format!("{}:{RELAY_PORT}", site_address(FIRST_RELAY_SITE + relay)))
            }
            UploadRoute::Direct(_) | UploadRoute::FromRelay(_) => &mut command,
        };
        match route {
            // Without path management, a connection uses only the link of the default route.
            UploadRoute::Split(_) => command.arg("--no-paths"),
            _ => command.args(case.links.iter().flat_map(|link| ["--link", &link.name])),
        };
        let edge = FleetProcess::start("edge", work_dir, &mut command, |command| lab.spawn(command))?
            .wait_until_ready(READY_MESSAGE)?;
        // The edge prepares two connections: three RTTs each, and subflows over the other links.
        std::thread::sleep(if by_fleet { ASSIGNMENT_TIMEOUT } else { WARM_UP_TIME });
        Ok(Processes { edge, _relays: relays, _service: service })
    }

    fn start_relay(
        &self,
        lab: &Lab,
        work_dir: &Path,
        relay: usize,
        announced: bool,
    ) -> Result<FleetProcess, LabError> {
        let site = FIRST_RELAY_SITE + relay;
        let at = format!("{}:{RELAY_PORT}", site_address(site));
        let name = relay_name(relay);
        let mut command = self.member_files.command(work_dir, &["relay"]);
        command.args(["--listen", &at, "--certificate", &format!("{name}.pem"), "--allow-net", "10.99.0.0/24"]);
        // Uploads to the relay itself end at its own address, which must be allowed explicitly.
        command.args(["--allow-net", &site_address(site).to_string()]);
        // The relay needs its own copy of the revocation list, because updates from the fleet service are written
        // to it.
        let revoked = work_dir.join(format!("{name}-revoked.pem"));
        let original = self.member_files.folder().join("revoked.pem");
        std::fs::copy(original, &revoked).map_err(LabError::at_step(format!("{name}'s revocation list")))?;
        command.args(["--allow-port", &RECEIVER_PORT.to_string(), "--revoked"]).arg(revoked);
        if announced {
            command.args(["--fleet", &service_url(), "--announce", &at, "--capacity", "200Mbit/s"]);
        }
        FleetProcess::start(&name, work_dir, &mut command, |command| lab.spawn_at_site(site, command))?
            .wait_until_ready(READY_MESSAGE)
    }

    /// Starts the fleet service with a copy of the authority's directory, which a running service locks.
    fn start_service(&self, lab: &Lab, work_dir: &Path) -> Result<FleetProcess, LabError> {
        let copy = work_dir.join(CA_DIR);
        let copied = Command::new("cp").arg("-a").arg(self.member_files.folder().join(CA_DIR)).arg(&copy).status();
        if !copied.is_ok_and(|status| status.success()) {
            return Err(LabError::Server("the authority cannot be copied".into()));
        }
        let mut command = self.member_files.command(work_dir, &["fleet"]);
        let service_address = site_address(0).to_string();
        command
            .args([
                "run",
                "--listen",
                &format!("{service_address}:{SERVICE_PORT}"),
                "--address",
                &service_address,
                "--ca-dir",
            ])
            .arg(copy);
        FleetProcess::start("service", work_dir, &mut command, |command| lab.spawn_at_site(0, command))?
            .wait_until_ready(READY_MESSAGE)
    }
}

/// Processes of one upload; dropping them ends all.
#[derive(Debug)]
struct Processes {
    edge: FleetProcess,
    _relays: Vec<FleetProcess>,
    _service: Option<FleetProcess>,
}

/// The segments between the sites of a case.
fn segments(case: &UploadCase) -> Vec<Segment> {
    let between = |from: usize, to: usize, link: LinkSpec| Segment { from, to, link };
    let mut all = vec![between(0, ORIGIN_SITE, case.direct.link("direct"))];
    for (at, relay) in case.relays.iter().enumerate() {
        let site = FIRST_RELAY_SITE + at;
        all.push(between(0, site, relay.from_edge.link(&format!("to{at}"))));
        all.push(between(site, ORIGIN_SITE, relay.to_origin.link(&format!("onward{at}"))));
    }
    all
}

/// Index of the relay of new flows, according to the last such line of the edge's log.
fn relay_index_in_use(edge_log: &str) -> Option<usize> {
    let used = relay_in_use(edge_log)?;
    (0..MAX_RELAYS)
        .find(|relay| used == relay_name(*relay) || used == site_address(FIRST_RELAY_SITE + relay).to_string())
}

fn service_url() -> String {
    format!("https://{}:{SERVICE_PORT}", site_address(0))
}

/// Log text that shows that a process is ready.
const READY_MESSAGE: &str = "listens on";
const RELAY_PORT: u16 = 4443;
const SERVICE_PORT: u16 = 4444;
/// Twice three RTTs of 400 ms.
const WARM_UP_TIME: Duration = Duration::from_millis(2500);
/// An edge measures its candidates for at most five seconds before it requests an assignment.
const ASSIGNMENT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::cases::{Effort, MEASURED_ARTEFACTS, cases};
    use super::*;

    #[test]
    fn every_case_can_be_built() {
        for artefact in MEASURED_ARTEFACTS {
            for case in cases(artefact, Effort { runs: 1, quick: true, includes_fleet: false }) {
                assert!(case.relays.len() <= MAX_RELAYS);
                let spec = LabSpec { segments: segments(&case), ..LabSpec::new(case.links.clone()) };
                spec.validate().unwrap();
            }
        }
    }

    #[test]
    fn the_relay_in_use_is_read_from_the_edges_log() {
        let edge_log = "marline: edge listens\nmarline: new flows go through 10.99.0.3\nmarline: new flows go through 10.99.0.4\n";
        assert_eq!(relay_index_in_use(edge_log), Some(1));
        assert_eq!(relay_index_in_use("marline: new flows go directly"), None);
    }
}
