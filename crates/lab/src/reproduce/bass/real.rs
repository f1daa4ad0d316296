//! One upload in real time: a lab with an edge, relays and an origin, all of them as users have them.
//!
//! In: a [`Case`], a [`Way`]. Out: [`Measured`].
//!
//! | place | is |
//! |---|---|
//! | the client | the edge and who sends |
//! | 0 | the Internet's side of the edge's links; the fleet's service |
//! | 1 | the origin |
//! | 2, 3, … | the relays |
//!
//! 1. Edge, relays and service are `marline` as processes, with certificates of one authority that is made once.
//! 2. Everything is fresh: no metrics of TCP, no learnt rates; only the edge's connections to its relay are ready, as always.
//! 3. Plain TCP and the edge's subflows have the congestion control that was named. A relay sends to the origin with its own
//!    default (`marline relay --congestion`: BBR where the kernel has it), so `From` (plain TCP from the relay) does not say
//!    what `Through` brings, and gains of `Through` and `Split` over `Direct` are not like for like.
//! 4. `--by-fleet` adds the service's choice ([`Way::Fleet`]): the edge is told the service's address, and no relay's. The
//!    relays are fresh and the edge names no origin, so the service knows no B_o(s) and chooses by B(c, s) alone.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use marline_sim::spec::LinkSpec;

use super::measured::Measured;
use super::send::{self, From, PORT};
use super::setting::{Case, Way};
use crate::fleet::{AUTHORITY, Member, Members, in_use, relay_name};
use crate::places::{Segment, address};
use crate::server::Folder;
use crate::{Congestion, Lab, LabError, LabSpec};

/// What all cases have in common.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) congestion: Congestion,
    /// The authority and everybody's certificates, made once.
    members: Members,
    _folder: Folder,
    /// Labs are built one at a time: their making is short and would delay the packets of the others.
    building: Mutex<()>,
}

/// The places of the origin and of the first relay.
const ORIGIN: usize = 1;
const FIRST_RELAY: usize = 2;
/// Relays that have certificates.
const MOST_RELAYS: usize = 3;

impl Workshop {
    /// Makes an authority and its members.
    pub(super) fn new(congestion: Congestion) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let folder = Folder::new().map_err(LabError::at("a place for certificates"))?;
        let addresses: Vec<Ipv4Addr> = (0..MOST_RELAYS).map(|relay| address(FIRST_RELAY + relay)).collect();
        let members = Members::new(&program, folder.path(), &addresses)?;
        Ok(Self { congestion, members, _folder: folder, building: Mutex::default() })
    }

    /// Does it. The outer error is of the lab, the inner one of what was uploaded.
    pub(super) fn upload(&self, case: &Case, way: Way) -> Result<Result<Measured, String>, LabError> {
        let lab = {
            // Nothing is behind this lock that a failure of another thread could have spoilt.
            let _one_at_a_time = self.building.lock().unwrap_or_else(PoisonError::into_inner);
            Lab::start(&LabSpec {
                congestion: self.congestion,
                seed: case.seed,
                segments: segments(case),
                ..LabSpec::new(case.links.clone())
            })?
        };
        // Edges connect before anything is measured.
        lab.begin()?;
        let folder = Folder::new().map_err(LabError::at("a place for a lab's files"))?;
        let run = |from: From<'_>, to: usize| send::upload(&lab, from, to, case.length).map_err(|e| e.to_string());
        let place = |relay: usize| FIRST_RELAY + relay;
        let came = match way {
            Way::Direct(at) => {
                let name = case.links.get(at).map_or("", |link| &link.name);
                run(From::Device(name), ORIGIN)
            }
            Way::From(relay) => run(From::Place(place(relay)), ORIGIN),
            Way::Split(relay) | Way::Through(relay) | Way::To(relay) => {
                let stage = self.stage(&lab, folder.path(), case, way, &[relay]).map_err(|error| error.to_string());
                let to = if way == Way::To(relay) { place(relay) } else { ORIGIN };
                stage.and_then(|_stage| run(From::Edge, to)).map(|got| Measured { relay: Some(relay), ..got })
            }
            Way::Fleet => {
                let all: Vec<usize> = (0..case.relays.len()).collect();
                let stage = self.stage(&lab, folder.path(), case, way, &all).map_err(|error| error.to_string());
                stage.and_then(|stage| {
                    let got = run(From::Edge, ORIGIN)?;
                    let relay = assigned(&stage.edge.said()).ok_or("the edge does not say which relay it uses")?;
                    Ok(Measured { relay: Some(relay), ..got })
                })
            }
        };
        let emulation = lab.emulation()?;
        let unseen = emulation.links.iter().map(|link| link.unseen).sum();
        let late_s = emulation.lateness.p99.as_secs_f64();
        Ok(came.map(|got| Measured { late_s, unseen, ..got }))
    }

    /// Starts who is needed, and waits until they are ready.
    fn stage(&self, lab: &Lab, home: &Path, case: &Case, way: Way, relays: &[usize]) -> Result<Stage, LabError> {
        let by_fleet = way == Way::Fleet;
        let service = by_fleet.then(|| self.service(lab, home)).transpose()?;
        let relays = relays.iter().map(|relay| self.relay(lab, home, *relay, by_fleet));
        let relays = relays.collect::<Result<Vec<_>, _>>()?;
        let mut command = self.members.command(home, &["edge"]);
        command.args(["--certificate", "edge.pem", "--no-direct"]).arg("--run-dir").arg(home);
        match way {
            Way::Fleet => command.args(["--fleet", &service_url()]),
            Way::Split(relay) | Way::Through(relay) | Way::To(relay) => {
                command.arg("--relay").arg(format!("{}:{RELAY_PORT}", address(FIRST_RELAY + relay)))
            }
            Way::Direct(_) | Way::From(_) => &mut command,
        };
        match way {
            // Without anybody who steers, a connection has the default route's link.
            Way::Split(_) => command.arg("--no-paths"),
            _ => command.args(case.links.iter().flat_map(|link| ["--link", &link.name])),
        };
        let edge = Member::start("edge", home, &mut command, |command| lab.spawn(command))?.ready(READY)?;
        // Two connections are made ready: three round trips each, and the other links join.
        std::thread::sleep(if by_fleet { MEASURING } else { WARMING });
        Ok(Stage { edge, _relays: relays, _service: service })
    }

    fn relay(&self, lab: &Lab, home: &Path, relay: usize, announced: bool) -> Result<Member, LabError> {
        let place = FIRST_RELAY + relay;
        let at = format!("{}:{RELAY_PORT}", address(place));
        let name = relay_name(relay);
        let mut command = self.members.command(home, &["relay"]);
        command.args(["--listen", &at, "--certificate", &format!("{name}.pem"), "--allow-net", "10.99.0.0/24"]);
        // Uploads to the relay itself end on its own host, which no network opens.
        command.args(["--allow-net", &address(place).to_string()]);
        // A copy of its own: what the service brings is written there.
        let revoked = home.join(format!("{name}-revoked.pem"));
        let original = self.members.folder().join("revoked.pem");
        std::fs::copy(original, &revoked).map_err(LabError::at(format!("{name}'s list of the revoked")))?;
        command.args(["--allow-port", &PORT.to_string(), "--revoked"]).arg(revoked);
        if announced {
            command.args(["--fleet", &service_url(), "--announce", &at, "--capacity", "200Mbit/s"]);
        }
        Member::start(&name, home, &mut command, |command| lab.spawn_at(place, command))?.ready(READY)
    }

    /// The fleet's service, with a copy of the authority: a running one has it for itself.
    fn service(&self, lab: &Lab, home: &Path) -> Result<Member, LabError> {
        let copy = home.join(AUTHORITY);
        let copied = Command::new("cp").arg("-a").arg(self.members.folder().join(AUTHORITY)).arg(&copy).status();
        if !copied.is_ok_and(|status| status.success()) {
            return Err(LabError::Server("the authority cannot be copied".into()));
        }
        let mut command = self.members.command(home, &["fleet"]);
        let own = address(0).to_string();
        command.args(["run", "--listen", &format!("{own}:{SERVICE_PORT}"), "--address", &own, "--ca"]).arg(copy);
        Member::start("service", home, &mut command, |command| lab.spawn_at(0, command))?.ready(READY)
    }
}

/// Who runs during an upload; all end with it.
#[derive(Debug)]
struct Stage {
    edge: Member,
    _relays: Vec<Member>,
    _service: Option<Member>,
}

/// What lies between the places of a case.
fn segments(case: &Case) -> Vec<Segment> {
    let between = |from: usize, to: usize, link: LinkSpec| Segment { from, to, link };
    let mut all = vec![between(0, ORIGIN, case.direct.link("direct"))];
    for (at, relay) in case.relays.iter().enumerate() {
        let place = FIRST_RELAY + at;
        all.push(between(0, place, relay.to.link(&format!("to{at}"))));
        all.push(between(place, ORIGIN, relay.onward.link(&format!("onward{at}"))));
    }
    all
}

/// The relay that new flows go through, by the last word of the edge about it.
fn assigned(said: &str) -> Option<usize> {
    let used = in_use(said)?;
    (0..MOST_RELAYS).find(|relay| used == relay_name(*relay) || used == address(FIRST_RELAY + relay).to_string())
}

fn service_url() -> String {
    format!("https://{}:{SERVICE_PORT}", address(0))
}

/// What says that one of them is ready.
const READY: &str = "listens on";
const RELAY_PORT: u16 = 4443;
const SERVICE_PORT: u16 = 4444;
/// Three round trips of 400 ms, twice.
const WARMING: Duration = Duration::from_millis(2500);
/// An edge measures its candidates for five seconds at most, and asks.
const MEASURING: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::cases::{Effort, MEASURED, cases};
    use super::*;

    #[test]
    fn every_case_can_be_built() {
        for artefact in MEASURED {
            for case in cases(artefact, Effort { runs: 1, quick: true, fleet: false }) {
                assert!(case.relays.len() <= MOST_RELAYS);
                let spec = LabSpec { segments: segments(&case), ..LabSpec::new(case.links.clone()) };
                spec.validate().unwrap();
            }
        }
    }

    #[test]
    fn the_edge_says_which_relay_it_has() {
        let said = "marline: edge listens\nmarline: new flows go through 10.99.0.3\nmarline: new flows go through 10.99.0.4\n";
        assert_eq!(assigned(said), Some(1));
        assert_eq!(assigned("marline: new flows go directly"), None);
    }
}
