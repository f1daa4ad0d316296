//! The lab: two ends, the links between them, a server, and commands that run as if these links were the machine's.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::time::Duration;

use marline_sim::spec::{LinkEventKind, LinkSpec};
use marline_sys::namespace::Network;
use marline_sys::process::Room;
use marline_sys::{clock, namespace};

use crate::emulator::{EmulationReport, Emulator};
use crate::network::{self, Namespaces};
use crate::peak_rss::PeakRss;
use crate::run::RunningProcess;
use crate::server::{LabServer, remove_stale_dirs};
use crate::{CommandRun, CongestionReport, LabError, LabSpec, Task, acquire_privileges, wan_topology};

/// A running lab. Dropping it ends everything in it; so does the end of this process, however it comes.
#[derive(Debug)]
pub struct Lab {
    // Declared in the order in which they are dropped: the room waits for the others' children.
    server: Option<LabServer>,
    emulator: Emulator,
    pid_namespace: Room,
    namespaces: Namespaces,
    links: Vec<LinkSpec>,
    build_time: Duration,
}

impl Lab {
    /// Builds it: namespaces, links, emulator, server. Takes some tens of milliseconds. Nothing passes the links
    /// before the first command.
    ///
    /// # Errors
    /// When the description makes no sense, the machine does not permit it, a program is missing or the server fails.
    pub fn start(spec: &LabSpec) -> Result<Self, LabError> {
        spec.validate()?;
        remove_stale_dirs();
        let started_at = clock::now();
        acquire_privileges()?;
        let (mut networks, mut pairs) = network::build(&spec.links, spec.congestion, spec.sender)?;
        let (site_namespaces, site_tun_pairs) =
            wan_topology::build_sites(&networks.server, &spec.segments, spec.congestion)?;
        networks.sites = site_namespaces;
        pairs.extend(site_tun_pairs);
        let all_links: Vec<LinkSpec> =
            spec.links.iter().chain(spec.segments.iter().map(|segment| &segment.link)).cloned().collect();
        let links = all_links.iter().cloned().zip(pairs).collect();
        let index_of = |name: &str| spec.link_index(name).unwrap_or_default();
        let events = spec.events.iter().map(|event| (event.at, index_of(&event.link), event.change)).collect();
        let (emulator, room) = Emulator::start(links, events, spec.seed)?;
        let mut lab = Self {
            server: None,
            emulator,
            pid_namespace: room,
            namespaces: networks,
            links: all_links,
            build_time: Duration::ZERO,
        };
        lab.server = LabServer::start(
            &spec.service,
            spec.sender.mptcp,
            spec.server_site,
            &lab.namespaces,
            &lab.pid_namespace,
        )?;
        lab.build_time = Duration::from_nanos(clock::now() - started_at);
        Ok(lab)
    }

    /// Runs a command at the client's end and waits for it. Links, traces, events and counters start with it.
    ///
    /// # Errors
    /// When it cannot be started, or the emulator is gone. A command that fails is a result, not an error.
    pub fn run(&self, task: &Task) -> Result<CommandRun, LabError> {
        let mut command = task.command(&self.placeholders());
        for (name, value) in self.placeholders() {
            let name = name.trim_matches(['{', '}']).to_uppercase();
            command.env(format!("MARLINE_LAB_{name}"), value);
        }
        let dropped_before = self.kernel_drops()?;
        let memory = PeakRss::start();
        let started = self.namespaces.client.run(|| {
            // Programs that look under /sys shall see these links. Where it is refused they see the machine's.
            let _ = namespace::private_mounts().and_then(|()| namespace::mount_sys());
            self.pid_namespace.enter()?;
            let start_time = clock::now();
            if let Err(error) = self.emulator.start_run(start_time) {
                return Ok(Err(error));
            }
            Ok(Ok((command.spawn()?, start_time)))
        });
        let program = || task.program.to_string_lossy().into_owned();
        let (child, start_time) = started.map_err(|source| LabError::Start { program: program(), source })??;
        let finished = RunningProcess::new(child, start_time, memory)?.wait(task.limit)?;
        let emulation = self.with_kernel_drops(self.emulator.report()?, &dropped_before)?;
        Ok(CommandRun {
            status: finished.usage.status,
            timed_out: finished.timed_out,
            wall: finished.wall,
            user: finished.usage.user,
            system: finished.usage.system,
            peak_memory: finished.peak_memory,
            stdout: finished.stdout,
            stderr: finished.stderr,
            emulation,
        })
    }

    /// Starts a command at the client's end, in the lab's room, which ends with the lab.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.namespaces.client.run(|| {
            let _ = namespace::private_mounts().and_then(|()| namespace::mount_sys());
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// Starts a command at the server's end, in the lab's room.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn_at_server(&self, command: &mut Command) -> io::Result<Child> {
        self.spawn_in(&self.namespaces.server, command)
    }

    /// Starts a command in another network, in the lab's room.
    ///
    /// # Errors
    /// Those of starting a program.
    pub(crate) fn spawn_in(&self, network: &Network, command: &mut Command) -> io::Result<Child> {
        network.run(|| {
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// Runs a command at the server's end and gives its output: to look at the sender's sockets (`ss -tin`).
    ///
    /// # Errors
    /// Those of starting a program.
    pub fn output_at_server(&self, command: &mut Command) -> io::Result<std::process::Output> {
        self.namespaces.server.run(|| command.output())
    }

    /// Runs `work` on a thread at the client's end: its sockets are there, its children are not in the room.
    ///
    /// # Errors
    /// Those of entering, and those of `work`.
    pub(crate) fn run_at_client<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespaces.client.run(work)
    }

    /// As [`Self::spawn`], at a place behind the server's end ([`crate::wan_topology`]).
    ///
    /// # Errors
    /// There is no such place, and those of starting a program.
    pub(crate) fn spawn_at_site(&self, site: usize, command: &mut Command) -> io::Result<Child> {
        self.site_namespace(site)?.run(|| {
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// As [`Self::inside`], at such a place.
    ///
    /// # Errors
    /// There is no such place, those of entering, and those of `work`.
    pub(crate) fn run_at_site<T: Send>(
        &self,
        site: usize,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.site_namespace(site)?.run(work)
    }

    fn site_namespace(&self, site: usize) -> io::Result<&Network> {
        self.namespaces.site(site).ok_or_else(|| io::Error::other(format!("there is no place {site}")))
    }

    /// The same at the server's end.
    ///
    /// # Errors
    /// Those of entering, and those of `work`.
    pub(crate) fn run_at_server<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespaces.server.run(work)
    }

    /// Links, traces, events and counters start now.
    pub(crate) fn start_links(&self) -> Result<(), LabError> {
        self.emulator.start_run(clock::now())
    }

    /// What the links did since they began.
    pub(crate) fn emulation_report(&self) -> Result<EmulationReport, LabError> {
        // Nothing was lost before, for nothing ran.
        self.with_kernel_drops(self.emulator.report()?, &[])
    }

    /// Changes a link now, from any thread, as when a user walks out of reach.
    ///
    /// # Errors
    /// There is no link of this name, or the emulator is gone.
    pub fn change_link(&self, link: &str, change: LinkEventKind) -> Result<(), LabError> {
        self.emulator.change(self.link_index(link)?, change)
    }

    /// Loses the next so many packets of the client that ask for another priority of a subflow over this link (MP_PRIO).
    ///
    /// # Errors
    /// There is no link of this name, or the emulator is gone.
    pub fn lose_mp_prio(&self, link: &str, count: u32) -> Result<(), LabError> {
        self.emulator.lose_mp_prio(self.link_index(link)?, count)
    }

    /// Takes the client's device of this link down or up, as when a cable is pulled: unlike a [`Change`] the client's
    /// kernel hears of it.
    ///
    /// # Errors
    /// There is no link of this name, or the kernel refuses.
    pub fn set_device_up(&self, link: &str, up: bool) -> Result<(), LabError> {
        let (index, congestion) = (self.link_index(link)?, self.namespaces.congestion.requested);
        let change = || Ok(network::set_device(index, link, up, congestion));
        self.namespaces.client.run(change).map_err(LabError::at_step(format!("device {link}")))?
    }

    /// Gives the server's end one more address, or takes it away: then whoever has it has vanished without a word.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set_address(&self, address: Ipv4Addr, is_present: bool) -> Result<(), LabError> {
        let change = || network::set_address(address, is_present);
        self.namespaces.server.run(change).map_err(LabError::at_step(format!("address {address}")))
    }

    fn link_index(&self, link: &str) -> Result<usize, LabError> {
        let index = self.links.iter().position(|spec| spec.name == link);
        index.ok_or_else(|| LabError::Spec(format!("there is no link `{link}`")))
    }

    /// Which congestion control connections have.
    pub fn congestion(&self) -> &CongestionReport {
        &self.namespaces.congestion
    }

    /// How long the building took.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }

    /// The addresses of what is served: over HTTP, and over HTTPS; none without a server.
    pub fn urls(&self) -> Option<(String, String)> {
        self.server.as_ref().map(|server| (server.url(), server.secure_url()))
    }

    /// The file of the certificate authority that vouches for what is served.
    pub(crate) fn ca_file(&self) -> Option<std::path::PathBuf> {
        self.server.as_ref()?.ca_file().map(std::path::Path::to_path_buf)
    }

    /// What stands in a command for what.
    fn placeholders(&self) -> Vec<(&'static str, String)> {
        let Some(server) = &self.server else { return Vec::new() };
        let mut placeholders = vec![("{url}", server.url()), ("{urls}", server.secure_url())];
        placeholders.extend(server.ca_file().map(|file| ("{ca}", file.to_string_lossy().into_owned())));
        placeholders
    }

    fn with_kernel_drops(
        &self,
        mut emulation: EmulationReport,
        before: &[u64],
    ) -> Result<EmulationReport, LabError> {
        for ((link, count), before) in
            emulation.links.iter_mut().zip(self.kernel_drops()?).zip(before.iter().chain(&[0; 64]))
        {
            link.dropped_before_emulator = count.saturating_sub(*before);
        }
        Ok(emulation)
    }

    /// Packets that the kernel dropped so far before the emulator saw them, link by link, both ends.
    fn kernel_drops(&self) -> Result<Vec<u64>, LabError> {
        let mut sums = vec![0; self.links.len()];
        let ends = [&self.namespaces.client, &self.namespaces.server];
        for namespace in ends.into_iter().chain(&self.namespaces.sites) {
            let drops =
                network::tun_drops(namespace, &self.links).map_err(LabError::at_step("counters of the devices"))?;
            sums.iter_mut().zip(drops).for_each(|(sum, dropped)| *sum += dropped);
        }
        Ok(sums)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.pid_namespace.kill();
        if let Some(server) = &mut self.server {
            server.reap();
        }
    }
}
