//! A whole fleet in a lab: an edge at the client's end, relays and the service that assigns them at the server's.
//!
//! In: links, so many relays, who assigns them. Out: a place where programs reach servers through edge and relay.
//!
//! | | where |
//! |---|---|
//! | service | `10.99.0.1:4444`; there is one if it assigns ([`Assign::Fleet`]) |
//! | relay i (from 0) | `10.99.0.(11+i):4443`, so that one host can vanish and the others stay |
//! | servers | `10.99.0.1`, on ports of [`PORTS`]; `--allow-net` opens it to the relays, for it is a private address |
//! | edge | `127.0.0.1:1088` at the client's end; with [`Through::Lan`] also the gateway of a LAN behind it |
//!
//! 1. All of them are `marline` as child processes, with a home of nobody's; certificates are made anew each time.
//! 2. It is ready when the edge is: its links are steered before its first flow, and where the service assigns relays it has
//!    measured them and been given one.
//! 3. The links' clock begins before the edge does.

pub(crate) mod flow;
mod member;

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::ValueEnum;
use marline_sim::spec::LinkSpec;

use crate::lan::{self, Lan};
use crate::network::SERVER;
use crate::server::Folder;
use crate::{Congestion, Lab, LabError, LabSpec, Service};
use member::relay_host;
pub(crate) use member::{AUTHORITY, Member, Members, cpu_of, in_use, relay_name};

/// Who says which relay an edge uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Assign {
    /// The edge's command line, which names all relays.
    Fixed,
    /// The fleet's service, to which relays and edge announce themselves.
    Fleet,
}

/// How programs reach the edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Through {
    /// By socat, which asks the edge with CONNECT.
    Proxy,
    /// Not knowing of it: the edge is the gateway of a LAN.
    Lan,
}

/// How an edge knows the relays of its command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// By their addresses.
    ByAddress,
    /// By their names, for which it asks this server.
    ByName(Ipv4Addr),
    /// It knows one that does not exist, and may do without.
    Absent,
}

/// What is built.
#[derive(Clone, Debug)]
pub(crate) struct Setting<'a> {
    /// The first one is the default route.
    pub(crate) links: &'a [LinkSpec],
    /// So many relays.
    pub(crate) relays: u8,
    pub(crate) assign: Assign,
    pub(crate) through: Through,
    /// Of all connections.
    pub(crate) congestion: Congestion,
    /// Decides every loss.
    pub(crate) seed: u64,
    /// marline's executable.
    pub(crate) program: &'a Path,
}

/// Where programs reach the edge, at the client's end.
pub(crate) const EDGE: &str = "127.0.0.1:1088";
/// Ports of servers that relays may carry to.
pub(crate) const PORTS: [u16; 2] = [1935, 9000];

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Fleet {
    // Dropped in this order: the edge puts back what it changed, then its network goes.
    edge: Option<Member>,
    relays: Vec<Member>,
    _service: Option<Member>,
    lan: Option<Lan>,
    lab: Lab,
    zero: Instant,
    members: Members,
    folder: Folder,
}

impl Fleet {
    /// Builds it, and waits until the edge is ready.
    pub(crate) fn start(setting: &Setting<'_>) -> Result<Self, LabError> {
        let mut fleet = Self::without_edge(setting)?;
        fleet.start_edge(setting, Known::ByAddress)?;
        Ok(fleet)
    }

    /// Starts the edge, and waits until it is ready. `known`: how it knows the relays of its command line.
    pub(crate) fn start_edge(&mut self, setting: &Setting<'_>, known: Known) -> Result<(), LabError> {
        let mut words = vec!["edge".to_owned(), "--listen".into(), EDGE.into()];
        words.extend(["--certificate".into(), "edge.pem".into()]);
        words.extend(["--run-dir".into(), self.folder().join("run").display().to_string()]);
        words.extend(setting.links.iter().flat_map(|link| ["--link".into(), link.name.clone()]));
        match (setting.assign, known) {
            (Assign::Fixed, Known::Absent) => {
                words.extend(["--relay".into(), NO_RELAY.to_string(), "--direct".into()])
            }
            (Assign::Fixed, known) => words.extend((0..setting.relays).flat_map(|at| {
                let named = matches!(known, Known::ByName(_)).then(|| relay_host(at.into()));
                ["--relay".into(), named.unwrap_or_else(|| address(at).to_string())]
            })),
            (Assign::Fleet, _) => {
                words.extend(["--fleet".into(), service_url(), "--origin".into(), format!("{SERVER}:{}", PORTS[0])])
            }
        }
        if setting.through == Through::Lan {
            self.lan = Some(Lan::behind(&self.lab)?);
            words.extend(["--lan".into(), lan::DEVICE.into()]);
        }
        let mut command = match known {
            Known::ByName(server) => self.with_name_server(server, &words)?,
            Known::ByAddress | Known::Absent => self.marline(&words),
        };
        let lab = &self.lab;
        let edge = Member::start("edge", self.folder(), &mut command, |command| lab.spawn(command))?;
        let edge = edge.ready("listens on")?;
        self.edge = Some(if setting.assign == Assign::Fleet { edge.ready("has given")? } else { edge });
        Ok(())
    }

    /// This program where `/etc/resolv.conf` names this server.
    fn with_name_server(&self, server: Ipv4Addr, words: &[String]) -> Result<Command, LabError> {
        let file = self.folder().join("resolv.conf");
        std::fs::write(&file, format!("nameserver {server}\n")).map_err(LabError::at("resolv.conf"))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", "mount --bind \"$0\" \"$(readlink -f /etc/resolv.conf)\" && exec \"$@\""]);
        shell.arg(file).arg(self.members.program());
        Ok(self.members.command_by(shell, self.folder(), words))
    }

    /// A relay of another authority at this address of the server's end, for as long as it is held.
    pub(crate) fn stranger(&self, listen: SocketAddr) -> Result<Member, LabError> {
        let folder = self.folder().join("stranger");
        std::fs::create_dir(&folder).map_err(LabError::at("a place for another authority"))?;
        let members = Members::new(self.members.program(), &folder, &[address(0)])?;
        let certificate = format!("{}.pem", relay_name(0));
        let words = ["relay", "--listen", &listen.to_string(), "--certificate", &certificate];
        let mut command = members.command(&folder, &words);
        let spawn = |command: &mut Command| self.lab.spawn_at_server(command);
        Member::start("stranger", &folder, &mut command, spawn)?.ready("listens on")
    }

    /// Everything but the edge.
    pub(crate) fn without_edge(setting: &Setting<'_>) -> Result<Self, LabError> {
        let lab = Lab::start(&LabSpec {
            congestion: setting.congestion,
            seed: setting.seed,
            service: Service::None,
            ..LabSpec::new(setting.links.to_vec())
        })?;
        lab.begin()?;
        let zero = Instant::now();
        let folder = Folder::new().map_err(LabError::at("a place for the fleet"))?;
        let addresses: Vec<Ipv4Addr> = (0..setting.relays).map(address).collect();
        let members = Members::new(setting.program, folder.path(), &addresses)?;
        let mut fleet =
            Self { edge: None, relays: Vec::new(), _service: None, lan: None, lab, zero, members, folder };
        if setting.assign == Assign::Fleet {
            let listen = format!("{SERVER}:{SERVICE}");
            fleet._service =
                Some(fleet.at_server("service", &["fleet", "run", "--ca", AUTHORITY, "--listen", &listen])?);
        }
        for at in 0..setting.relays {
            fleet.lab.set_address(address(at), true)?;
            let relay = fleet.relay(at, setting.assign)?;
            fleet.relays.push(relay);
        }
        Ok(fleet)
    }

    fn relay(&self, at: u8, assign: Assign) -> Result<Member, LabError> {
        let reached = format!("{}:{RELAY}", address(at));
        let certificate = format!("{}.pem", relay_name(at.into()));
        let server = SERVER.to_string();
        let mut words = vec!["relay", "--listen", &reached, "--certificate", &certificate, "--allow-net", &server];
        let ports = PORTS.map(|port| port.to_string());
        words.extend(ports.iter().flat_map(|port| ["--allow-port", port]));
        let url = service_url();
        if assign == Assign::Fleet {
            words.extend(["--fleet", &url, "--announce", &reached, "--capacity", CAPACITY]);
        }
        self.at_server(&relay_name(at.into()), &words)
    }

    fn at_server(&self, name: &str, words: &[&str]) -> Result<Member, LabError> {
        let mut command = self.marline(words);
        let member = Member::start(name, self.folder(), &mut command, |command| self.lab.spawn_at_server(command));
        member?.ready("listens on")
    }

    /// This program, in the folder of the fleet's files.
    fn marline<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        self.members.command(self.folder(), words)
    }

    /// Starts a command of a LAN's member, if there is a LAN, else of the client itself.
    pub(crate) fn spawn(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        match &self.lan {
            Some(lan) => self.lab.spawn_in(&lan.network, command),
            None => self.lab.spawn(command),
        }
    }

    /// The lab.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// When the links' clock began.
    pub(crate) const fn zero(&self) -> Instant {
        self.zero
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Relay number `at`, if it has not been killed.
    pub(crate) fn relay_at(&self, at: usize) -> Option<&Member> {
        self.relays.get(at)
    }

    /// Which relay new flows go through, as the edge has said it.
    pub(crate) fn used(&self) -> Option<usize> {
        let said = self.edge_said();
        let used = in_use(&said)?;
        (0..self.relays.len()).find(|at| {
            let address = u8::try_from(*at).map(address);
            used == relay_name(*at) || address.is_ok_and(|address| used == address.to_string())
        })
    }

    /// `kill -9` for a relay: its host answers for it, with resets.
    pub(crate) fn kill_relay(&mut self, at: usize) {
        if let Some(relay) = self.relays.get_mut(at) {
            relay.kill();
        }
    }

    /// A relay's host vanishes: nobody answers any more.
    pub(crate) fn vanish(&self, at: usize) -> Result<(), LabError> {
        self.lab.set_address(address(u8::try_from(at).unwrap_or(u8::MAX)), false)
    }

    /// What the edge has said.
    pub(crate) fn edge_said(&self) -> String {
        self.edge.as_ref().map(Member::said).unwrap_or_default()
    }
}

/// Where relay number `at` listens.
pub(crate) fn address(at: u8) -> Ipv4Addr {
    let [a, b, c, _] = SERVER.octets();
    Ipv4Addr::new(a, b, c, 11 + at)
}

fn service_url() -> String {
    format!("https://{SERVER}:{SERVICE}")
}

/// RFC 5737: an address that no host has.
const NO_RELAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// chosen: as the programs' own defaults.
const RELAY: u16 = 4443;
const SERVICE: u16 = 4444;
/// chosen: more than any link here; the service wants to know it.
const CAPACITY: &str = "200Mbit/s";
