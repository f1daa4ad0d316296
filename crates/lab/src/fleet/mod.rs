//! A complete fleet in a lab: an edge in the client namespace, relays and the fleet service in the server
//! namespace. Test programs reach servers through edge and relay.
//!
//! | | address |
//! |---|---|
//! | fleet service | `10.99.0.1:4444`; runs only if it assigns relays ([`RelayAssignment::Fleet`]) |
//! | relay i (from 0) | `10.99.0.(11+i):4443`, so that one host can vanish and the others stay |
//! | servers | `10.99.0.1`, on the ports [`SERVER_PORTS`]; a private address, so relays need `--allow-net` for it |
//! | edge | `127.0.0.1:1088` in the client namespace; with [`EdgeAccess::Lan`] also the gateway of a LAN behind it |
//!
//! 1. All members run `marline` as child processes with an empty home directory; new certificates are created each
//!    time.
//! 2. The fleet is ready when the edge is ready: its links are managed before its first flow. If the fleet service
//!    assigns relays, the edge has measured them and received an assignment.
//! 3. The links start before the edge does.

pub(crate) mod client_flow;
mod process;

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use clap::ValueEnum;
use marline_sim::spec::LinkSpec;

use crate::lan::{self, LabLan};
use crate::network::SERVER;
use crate::server::TempDir;
use crate::{Congestion, Lab, LabError, LabSpec, Service};
use process::relay_host;
pub(crate) use process::{CA_DIR, FleetProcess, MemberFiles, cpu_time_of, relay_in_use, relay_name};

/// How an edge gets its relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum RelayAssignment {
    /// From the edge's command line, which names all relays.
    CommandLine,
    /// From the fleet service, with which relays and edge register.
    Fleet,
}

/// How programs reach the edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum EdgeAccess {
    /// Through the edge's proxy with CONNECT; ffmpeg, which cannot use it, through socat.
    Proxy,
    /// Transparently: the edge is the gateway of a LAN.
    Lan,
}

/// How the edge's command line names the relays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelayAddressing {
    /// By their addresses.
    Address,
    /// By host names, which the edge resolves with this name server.
    HostName(Ipv4Addr),
    /// It names one relay that does not exist, and permits direct connections.
    Absent,
}

/// Configuration of the fleet and its lab.
#[derive(Clone, Debug)]
pub(crate) struct FleetConfig<'a> {
    /// The links; the first one is the default route.
    pub(crate) links: &'a [LinkSpec],
    pub(crate) relays: u8,
    pub(crate) assignment: RelayAssignment,
    pub(crate) access: EdgeAccess,
    /// Congestion control of all connections.
    pub(crate) congestion: Congestion,
    /// Seed of all random loss.
    pub(crate) seed: u64,
    /// Path of marline's executable.
    pub(crate) program: &'a Path,
}

/// Address of the edge's proxy, in the client namespace.
pub(crate) const EDGE_ADDRESS: &str = "127.0.0.1:1088";
/// Ports of servers to which relays may connect.
pub(crate) const SERVER_PORTS: [u16; 2] = [1935, 9000];

/// A running fleet; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct LabFleet {
    // Fields are dropped in this order: the edge must restore the host configuration before its network goes.
    edge: Option<FleetProcess>,
    relays: Vec<FleetProcess>,
    _fleet_service: Option<FleetProcess>,
    lan: Option<LabLan>,
    lab: Lab,
    start_time: Instant,
    member_files: MemberFiles,
    temp_dir: TempDir,
}

impl LabFleet {
    /// Builds the fleet and waits until the edge is ready.
    pub(crate) fn start(config: &FleetConfig<'_>) -> Result<Self, LabError> {
        let mut fleet = Self::without_edge(config)?;
        fleet.start_edge(config, RelayAddressing::Address)?;
        Ok(fleet)
    }

    /// Starts the edge and waits until it is ready. `addressing` applies to the relays of its command line.
    pub(crate) fn start_edge(
        &mut self,
        config: &FleetConfig<'_>,
        addressing: RelayAddressing,
    ) -> Result<(), LabError> {
        let mut args = vec!["edge".to_owned(), "--listen".into(), EDGE_ADDRESS.into()];
        args.extend(["--certificate".into(), "edge.pem".into()]);
        args.extend(["--run-dir".into(), self.folder().join("run").display().to_string()]);
        args.extend(config.links.iter().flat_map(|link| ["--link".into(), link.name.clone()]));
        match (config.assignment, addressing) {
            (RelayAssignment::CommandLine, RelayAddressing::Absent) => {
                args.extend(["--relay".into(), ABSENT_RELAY.to_string(), "--direct".into()])
            }
            (RelayAssignment::CommandLine, addressing) => args.extend((0..config.relays).flat_map(|index| {
                let host_name =
                    matches!(addressing, RelayAddressing::HostName(_)).then(|| relay_host(index.into()));
                ["--relay".into(), host_name.unwrap_or_else(|| relay_address(index).to_string())]
            })),
            (RelayAssignment::Fleet, _) => args.extend([
                "--fleet".into(),
                service_url(),
                "--origin".into(),
                format!("{SERVER}:{}", SERVER_PORTS[0]),
            ]),
        }
        if config.access == EdgeAccess::Lan {
            self.lan = Some(LabLan::build(&self.lab)?);
            args.extend(["--lan".into(), lan::LAN_DEVICE.into()]);
        }
        let mut command = match addressing {
            RelayAddressing::HostName(server) => self.with_name_server(server, &args)?,
            RelayAddressing::Address | RelayAddressing::Absent => self.marline_command(&args),
        };
        let lab = &self.lab;
        let edge = FleetProcess::start("edge", self.folder(), &mut command, |command| lab.spawn(command))?;
        let edge = edge.wait_until_ready("listens on")?;
        self.edge = Some(if config.assignment == RelayAssignment::Fleet {
            edge.wait_until_ready("has assigned")?
        } else {
            edge
        });
        Ok(())
    }

    /// Command that runs marline with an `/etc/resolv.conf` that names this server.
    fn with_name_server(&self, server: Ipv4Addr, args: &[String]) -> Result<Command, LabError> {
        let file = self.folder().join("resolv.conf");
        std::fs::write(&file, format!("nameserver {server}\n")).map_err(LabError::at_step("resolv.conf"))?;
        let mut shell = Command::new("sh");
        shell.args(["-c", "mount --bind \"$0\" \"$(readlink -f /etc/resolv.conf)\" && exec \"$@\""]);
        shell.arg(file).arg(self.member_files.program());
        Ok(self.member_files.command_with(shell, self.folder(), args))
    }

    /// Starts a relay with a certificate of another authority at this address in the server namespace. It ends when
    /// the result is dropped.
    pub(crate) fn start_foreign_relay(&self, listen: SocketAddr) -> Result<FleetProcess, LabError> {
        let folder = self.folder().join("stranger");
        std::fs::create_dir(&folder).map_err(LabError::at_step("directory of another authority"))?;
        let members = MemberFiles::new(self.member_files.program(), &folder, &[relay_address(0)])?;
        let certificate = format!("{}.pem", relay_name(0));
        let args = ["relay", "--listen", &listen.to_string(), "--certificate", &certificate];
        let mut command = members.command(&folder, &args);
        let spawn = |command: &mut Command| self.lab.spawn_at_server(command);
        FleetProcess::start("stranger", &folder, &mut command, spawn)?.wait_until_ready("listens on")
    }

    /// Builds everything but the edge.
    pub(crate) fn without_edge(config: &FleetConfig<'_>) -> Result<Self, LabError> {
        let lab = Lab::start(&LabSpec {
            congestion: config.congestion,
            seed: config.seed,
            service: Service::None,
            ..LabSpec::new(config.links.to_vec())
        })?;
        lab.start_links()?;
        let start_time = Instant::now();
        let folder = TempDir::new().map_err(LabError::at_step("directory of the fleet"))?;
        let addresses: Vec<Ipv4Addr> = (0..config.relays).map(relay_address).collect();
        let members = MemberFiles::new(config.program, folder.path(), &addresses)?;
        let mut fleet = Self {
            edge: None,
            relays: Vec::new(),
            _fleet_service: None,
            lan: None,
            lab,
            start_time,
            member_files: members,
            temp_dir: folder,
        };
        if config.assignment == RelayAssignment::Fleet {
            let listen = format!("{SERVER}:{SERVICE_PORT}");
            fleet._fleet_service =
                Some(fleet.start_at_server("service", &["fleet", "run", "--ca-dir", CA_DIR, "--listen", &listen])?);
        }
        for index in 0..config.relays {
            fleet.lab.set_address(relay_address(index), true)?;
            let relay = fleet.start_relay(index, config.assignment)?;
            fleet.relays.push(relay);
        }
        Ok(fleet)
    }

    fn start_relay(&self, index: u8, assign: RelayAssignment) -> Result<FleetProcess, LabError> {
        let address_and_port = format!("{}:{RELAY_PORT}", relay_address(index));
        let certificate = format!("{}.pem", relay_name(index.into()));
        let server = SERVER.to_string();
        let mut args =
            vec!["relay", "--listen", &address_and_port, "--certificate", &certificate, "--allow-net", &server];
        let ports = SERVER_PORTS.map(|port| port.to_string());
        args.extend(ports.iter().flat_map(|port| ["--allow-port", port]));
        let url = service_url();
        if assign == RelayAssignment::Fleet {
            args.extend(["--fleet", &url, "--announce", &address_and_port, "--capacity", RELAY_CAPACITY]);
        }
        self.start_at_server(&relay_name(index.into()), &args)
    }

    fn start_at_server(&self, name: &str, args: &[&str]) -> Result<FleetProcess, LabError> {
        let mut command = self.marline_command(args);
        let member =
            FleetProcess::start(name, self.folder(), &mut command, |command| self.lab.spawn_at_server(command));
        member?.wait_until_ready("listens on")
    }

    /// Command that runs marline, in the directory of the fleet's files.
    fn marline_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        self.member_files.command(self.folder(), args)
    }

    /// Starts a command on the LAN host if there is a LAN, otherwise in the client namespace.
    pub(crate) fn spawn(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        match &self.lan {
            Some(lan) => self.lab.spawn_in(&lan.namespace, command),
            None => self.lab.spawn(command),
        }
    }

    /// The lab that the fleet runs in.
    pub(crate) const fn lab(&self) -> &Lab {
        &self.lab
    }

    /// When the links were started.
    pub(crate) const fn start_time(&self) -> Instant {
        self.start_time
    }

    /// Directory of the fleet's files and logs.
    pub(crate) fn folder(&self) -> &Path {
        self.temp_dir.path()
    }

    /// The process of relay `index` (from 0); `None` if there is no such relay.
    pub(crate) fn relay(&self, index: usize) -> Option<&FleetProcess> {
        self.relays.get(index)
    }

    /// Index of the relay that new flows use, according to the edge's log.
    pub(crate) fn relay_in_use(&self) -> Option<usize> {
        let edge_log = self.edge_log();
        let relay = relay_in_use(&edge_log)?;
        (0..self.relays.len()).find(|index| {
            let address = u8::try_from(*index).map(relay_address);
            relay == relay_name(*index) || address.is_ok_and(|address| relay == address.to_string())
        })
    }

    /// Kills a relay with SIGKILL; its host still responds, with RST.
    pub(crate) fn kill_relay(&mut self, index: usize) {
        if let Some(relay) = self.relays.get_mut(index) {
            relay.kill();
        }
    }

    /// Makes a relay's host vanish: its address no longer responds.
    pub(crate) fn remove_relay_host(&self, index: usize) -> Result<(), LabError> {
        self.lab.set_address(relay_address(u8::try_from(index).unwrap_or(u8::MAX)), false)
    }

    /// Log of the edge so far.
    pub(crate) fn edge_log(&self) -> String {
        self.edge.as_ref().map(FleetProcess::log_text).unwrap_or_default()
    }
}

/// Address of relay `index` (from 0).
pub(crate) fn relay_address(index: u8) -> Ipv4Addr {
    let [a, b, c, _] = SERVER.octets();
    Ipv4Addr::new(a, b, c, 11 + index)
}

fn service_url() -> String {
    format!("https://{SERVER}:{SERVICE_PORT}")
}

/// An address that no host has (documentation range of RFC 5737).
const ABSENT_RELAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// Our choice: the programs' default ports.
const RELAY_PORT: u16 = 4443;
const SERVICE_PORT: u16 = 4444;
/// Our choice: more than any link here. The fleet service requires a capacity.
const RELAY_CAPACITY: &str = "200Mbit/s";
