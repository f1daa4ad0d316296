//! The lab: two ends, the links between them, a server, and commands that run as if these links were the machine's.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::time::Duration;

use marline_sim::spec::{Change, LinkSpec};
use marline_sys::namespace::Network;
use marline_sys::process::Room;
use marline_sys::{clock, namespace};

use crate::emulator::{Emulation, Emulator};
use crate::memory::Memory;
use crate::network::{self, Networks};
use crate::run::Running;
use crate::server::{Server, sweep_all};
use crate::{CongestionReport, LabError, LabSpec, Run, Task, places, prepare};

/// A running lab. Dropping it ends everything in it; so does the end of this process, however it comes.
#[derive(Debug)]
pub struct Lab {
    // Declared in the order in which they are dropped: the room waits for the others' children.
    server: Option<Server>,
    emulator: Emulator,
    room: Room,
    networks: Networks,
    links: Vec<LinkSpec>,
    started: Duration,
}

impl Lab {
    /// Builds it: namespaces, links, emulator, server. Takes some tens of milliseconds. Nothing passes the links
    /// before the first command.
    ///
    /// # Errors
    /// When the description makes no sense, the machine does not permit it, a program is missing or the server fails.
    pub fn start(spec: &LabSpec) -> Result<Self, LabError> {
        spec.validate()?;
        sweep_all();
        let before = clock::now();
        prepare()?;
        let (mut networks, mut pairs) = network::build(&spec.links, spec.congestion, spec.sender)?;
        let (behind, ends) = places::build(&networks.server, &spec.segments, spec.congestion)?;
        networks.places = behind;
        pairs.extend(ends);
        let all: Vec<LinkSpec> =
            spec.links.iter().chain(spec.segments.iter().map(|segment| &segment.link)).cloned().collect();
        let links = all.iter().cloned().zip(pairs).collect();
        let place = |name: &str| spec.link(name).unwrap_or_default();
        let events = spec.events.iter().map(|event| (event.at, place(&event.link), event.change)).collect();
        let (emulator, room) = Emulator::start(links, events, spec.seed)?;
        let mut lab = Self { server: None, emulator, room, networks, links: all, started: Duration::ZERO };
        lab.server = Server::start(&spec.service, spec.sender.mptcp, spec.place, &lab.networks, &lab.room)?;
        lab.started = Duration::from_nanos(clock::now() - before);
        Ok(lab)
    }

    /// Runs a command at the client's end and waits for it. Links, traces, events and counters start with it.
    ///
    /// # Errors
    /// When it cannot be started, or the emulator is gone. A command that fails is a result, not an error.
    pub fn run(&self, task: &Task) -> Result<Run, LabError> {
        let mut command = task.command(&self.words());
        for (name, value) in self.words() {
            let name = name.trim_matches(['{', '}']).to_uppercase();
            command.env(format!("MARLINE_LAB_{name}"), value);
        }
        let unseen_before = self.unseen()?;
        let memory = Memory::before();
        let started = self.networks.client.run(|| {
            // Programs that look under /sys shall see these links. Where it is refused they see the machine's.
            let _ = namespace::private_mounts().and_then(|()| namespace::mount_sys());
            self.room.enter()?;
            let zero = clock::now();
            if let Err(error) = self.emulator.begin(zero) {
                return Ok(Err(error));
            }
            Ok(Ok((command.spawn()?, zero)))
        });
        let program = || task.program.to_string_lossy().into_owned();
        let (child, zero) = started.map_err(|source| LabError::Start { program: program(), source })??;
        let ended = Running::new(child, zero, memory)?.wait(task.limit)?;
        let emulation = self.with_unseen(self.emulator.report()?, &unseen_before)?;
        Ok(Run {
            status: ended.usage.status,
            timed_out: ended.timed_out,
            wall: ended.wall,
            user: ended.usage.user,
            system: ended.usage.system,
            peak_memory: ended.peak_memory,
            stdout: ended.stdout,
            stderr: ended.stderr,
            emulation,
        })
    }

    /// Starts a command at the client's end, in the lab's room, which ends with the lab.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.networks.client.run(|| {
            let _ = namespace::private_mounts().and_then(|()| namespace::mount_sys());
            self.room.enter()?;
            command.spawn()
        })
    }

    /// Starts a command at the server's end, in the lab's room.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn_at_server(&self, command: &mut Command) -> io::Result<Child> {
        self.spawn_in(&self.networks.server, command)
    }

    /// Starts a command in another network, in the lab's room.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn_in(&self, network: &Network, command: &mut Command) -> io::Result<Child> {
        network.run(|| {
            self.room.enter()?;
            command.spawn()
        })
    }

    /// Runs a command at the server's end and gives its output: to look at the sender's sockets (`ss -tin`).
    ///
    /// # Errors
    /// Those of starting a program.
    pub fn at_server(&self, command: &mut Command) -> io::Result<std::process::Output> {
        self.networks.server.run(|| command.output())
    }

    /// Runs `work` on a thread at the client's end: its sockets are there, its children are not in the room.
    ///
    /// # Errors
    /// Those of entering, and those of `work`.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.networks.client.run(work)
    }

    /// As [`Self::spawn`], at a place behind the server's end ([`crate::places`]).
    ///
    /// # Errors
    /// There is no such place, and those of starting a program.
    pub(crate) fn spawn_at(&self, place: usize, command: &mut Command) -> io::Result<Child> {
        self.at(place)?.run(|| {
            self.room.enter()?;
            command.spawn()
        })
    }

    /// As [`Self::inside`], at such a place.
    ///
    /// # Errors
    /// There is no such place, those of entering, and those of `work`.
    pub(crate) fn inside_at<T: Send>(
        &self,
        place: usize,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.at(place)?.run(work)
    }

    fn at(&self, place: usize) -> io::Result<&Network> {
        self.networks.at(place).ok_or_else(|| io::Error::other(format!("there is no place {place}")))
    }

    /// The same at the server's end.
    ///
    /// # Errors
    /// Those of entering, and those of `work`.
    pub(crate) fn inside_server<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.networks.server.run(work)
    }

    /// Links, traces, events and counters start now.
    pub(crate) fn begin(&self) -> Result<(), LabError> {
        self.emulator.begin(clock::now())
    }

    /// What the links did since they began.
    pub(crate) fn emulation(&self) -> Result<Emulation, LabError> {
        // Nothing was lost before, for nothing ran.
        self.with_unseen(self.emulator.report()?, &[])
    }

    /// Changes a link now, from any thread, as when a user walks out of reach.
    ///
    /// # Errors
    /// There is no link of this name, or the emulator is gone.
    pub fn change(&self, link: &str, change: Change) -> Result<(), LabError> {
        self.emulator.change(self.place(link)?, change)
    }

    /// Loses the next so many packets of the client that ask for another priority of a subflow over this link (MP_PRIO).
    ///
    /// # Errors
    /// There is no link of this name, or the emulator is gone.
    pub fn lose_priorities(&self, link: &str, count: u32) -> Result<(), LabError> {
        self.emulator.lose(self.place(link)?, count)
    }

    /// Takes the client's device of this link down or up, as when a cable is pulled: unlike a [`Change`] the client's
    /// kernel hears of it.
    ///
    /// # Errors
    /// There is no link of this name, or the kernel refuses.
    pub fn set_device(&self, link: &str, up: bool) -> Result<(), LabError> {
        let (at, wanted) = (self.place(link)?, self.networks.congestion.wanted);
        let set = || Ok(network::set_device(at, link, up, wanted));
        self.networks.client.run(set).map_err(LabError::at(format!("device {link}")))?
    }

    /// Gives the server's end one more address, or takes it away: then whoever has it has vanished without a word.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set_address(&self, address: Ipv4Addr, there: bool) -> Result<(), LabError> {
        let set = || network::set_address(address, there);
        self.networks.server.run(set).map_err(LabError::at(format!("address {address}")))
    }

    fn place(&self, link: &str) -> Result<usize, LabError> {
        let at = self.links.iter().position(|spec| spec.name == link);
        at.ok_or_else(|| LabError::Spec(format!("there is no link `{link}`")))
    }

    /// Which congestion control connections have.
    pub fn congestion(&self) -> &CongestionReport {
        &self.networks.congestion
    }

    /// How long the building took.
    pub fn build_time(&self) -> Duration {
        self.started
    }

    /// The addresses of what is served: over HTTP, and over HTTPS; none without a server.
    pub fn urls(&self) -> Option<(String, String)> {
        self.server.as_ref().map(|server| (server.url(), server.secure_url()))
    }

    /// The file of the certificate authority that vouches for what is served.
    pub(crate) fn authority(&self) -> Option<std::path::PathBuf> {
        self.server.as_ref()?.authority().map(std::path::Path::to_path_buf)
    }

    /// What stands in a command for what.
    fn words(&self) -> Vec<(&'static str, String)> {
        let Some(server) = &self.server else { return Vec::new() };
        let mut words = vec![("{url}", server.url()), ("{urls}", server.secure_url())];
        words.extend(server.authority().map(|file| ("{ca}", file.to_string_lossy().into_owned())));
        words
    }

    fn with_unseen(&self, mut emulation: Emulation, before: &[u64]) -> Result<Emulation, LabError> {
        for ((link, now), before) in
            emulation.links.iter_mut().zip(self.unseen()?).zip(before.iter().chain(&[0; 64]))
        {
            link.unseen = now.saturating_sub(*before);
        }
        Ok(emulation)
    }

    /// Packets that the kernel dropped so far before the emulator saw them, link by link, both ends.
    fn unseen(&self) -> Result<Vec<u64>, LabError> {
        let mut sums = vec![0; self.links.len()];
        let ends = [&self.networks.client, &self.networks.server];
        for end in ends.into_iter().chain(&self.networks.places) {
            let dropped = network::drops(end, &self.links).map_err(LabError::at("counters of the devices"))?;
            sums.iter_mut().zip(dropped).for_each(|(sum, dropped)| *sum += dropped);
        }
        Ok(sums)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.room.kill();
        if let Some(server) = &mut self.server {
            server.reap();
        }
    }
}
