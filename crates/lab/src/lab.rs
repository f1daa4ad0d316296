//! The lab: client and server namespaces, the links between them, a server, and commands that run as if these links
//! were the machine's own.

use std::io;
use std::net::Ipv4Addr;
use std::process::{Child, Command};
use std::time::Duration;

use marline_sim::spec::{LinkEventKind, LinkSpec};
use marline_sys::namespace::NetNs;
use marline_sys::process::PidNamespace;
use marline_sys::{clock, namespace};

use crate::emulator::{EmulationReport, Emulator};
use crate::network::{self, Namespaces};
use crate::peak_rss::PeakRss;
use crate::run::RunningProcess;
use crate::server::{LabServer, remove_stale_dirs};
use crate::{CommandRun, CongestionReport, LabError, LabSpec, Task, acquire_privileges, wan_topology};

/// A running lab. Dropping it ends every process in it; so does the end of this process, however it ends.
#[derive(Debug)]
pub struct Lab {
    // Fields are dropped in this order: the PID namespace comes after the owners of processes in it.
    server: Option<LabServer>,
    emulator: Emulator,
    pid_namespace: PidNamespace,
    namespaces: Namespaces,
    links: Vec<LinkSpec>,
    build_time: Duration,
}

impl Lab {
    /// Builds the lab: namespaces, links, emulator, server. Takes some tens of milliseconds. No packet passes the
    /// links before the first command.
    ///
    /// # Errors
    /// When the description is invalid, the machine does not permit labs, a program is missing or the server fails.
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
        let (emulator, pid_namespace) = Emulator::start(links, events, spec.seed)?;
        let mut lab = Self {
            server: None,
            emulator,
            pid_namespace,
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

    /// Runs a command in the client namespace and waits for it. Links, traces, events and counters start with it.
    ///
    /// # Errors
    /// When it cannot be started, or the emulator has ended. A command that fails is a result, not an error.
    pub fn run(&self, task: &Task) -> Result<CommandRun, LabError> {
        let mut command = task.command(&self.placeholders());
        for (name, value) in self.placeholders() {
            let name = name.trim_matches(['{', '}']).to_uppercase();
            command.env(format!("MARLINE_LAB_{name}"), value);
        }
        let dropped_before = self.kernel_drops()?;
        let memory = PeakRss::start();
        let started = self.namespaces.client.run(|| {
            // Programs that read /sys should see these links. Where mounting is refused they see the machine's own.
            let _ = namespace::unshare_mounts().and_then(|()| namespace::mount_sysfs());
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

    /// Starts a command in the client namespace, in the lab's PID namespace, so that it ends with the lab.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.namespaces.client.run(|| {
            let _ = namespace::unshare_mounts().and_then(|()| namespace::mount_sysfs());
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// Starts a command in the server namespace, in the lab's PID namespace.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn spawn_at_server(&self, command: &mut Command) -> io::Result<Child> {
        self.spawn_in(&self.namespaces.server, command)
    }

    /// Starts a command in another network namespace, in the lab's PID namespace.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn spawn_in(&self, network: &NetNs, command: &mut Command) -> io::Result<Child> {
        network.run(|| {
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// Runs a command in the server namespace and returns its output, for example `ss -tin` for the sender's
    /// sockets.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn output_at_server(&self, command: &mut Command) -> io::Result<std::process::Output> {
        self.namespaces.server.run(|| command.output())
    }

    /// Runs `work` on a thread in the client namespace. Sockets it opens belong there; processes it starts are not
    /// in the lab's PID namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, and the errors of `work`.
    pub(crate) fn run_at_client<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespaces.client.run(work)
    }

    /// Like [`Self::spawn`], at a site behind the server ([`crate::wan_topology`]).
    ///
    /// # Errors
    /// When the site does not exist or the program cannot be started.
    pub(crate) fn spawn_at_site(&self, site: usize, command: &mut Command) -> io::Result<Child> {
        self.site_namespace(site)?.run(|| {
            self.pid_namespace.enter()?;
            command.spawn()
        })
    }

    /// Like [`Self::run_at_client`], at a site behind the server.
    ///
    /// # Errors
    /// When the site does not exist or cannot be entered, and the errors of `work`.
    pub(crate) fn run_at_site<T: Send>(
        &self,
        site: usize,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        self.site_namespace(site)?.run(work)
    }

    fn site_namespace(&self, site: usize) -> io::Result<&NetNs> {
        self.namespaces.site(site).ok_or_else(|| io::Error::other(format!("there is no site {site}")))
    }

    /// Like [`Self::run_at_client`], in the server namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, and the errors of `work`.
    pub(crate) fn run_at_server<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.namespaces.server.run(work)
    }

    /// Starts links, traces, events and counters now, without a command.
    pub(crate) fn start_links(&self) -> Result<(), LabError> {
        self.emulator.start_run(clock::now())
    }

    /// Counters of the links since their start.
    pub(crate) fn emulation_report(&self) -> Result<EmulationReport, LabError> {
        // Links carry nothing before they start, so there are no earlier drops to subtract.
        self.with_kernel_drops(self.emulator.report()?, &[])
    }

    /// Applies a change to a link at once, from any thread, for example when a user walks out of reach.
    ///
    /// # Errors
    /// When there is no link of this name, or the emulator has ended.
    pub fn change_link(&self, link: &str, change: LinkEventKind) -> Result<(), LabError> {
        self.emulator.change(self.link_index(link)?, change)
    }

    /// Drops the next `count` packets of the client that carry an MP_PRIO option (change of a subflow's priority)
    /// over this link.
    ///
    /// # Errors
    /// When there is no link of this name, or the emulator has ended.
    pub fn lose_mp_prio(&self, link: &str, count: u32) -> Result<(), LabError> {
        self.emulator.lose_mp_prio(self.link_index(link)?, count)
    }

    /// Takes the client's device of this link down or up, like unplugging a cable. Unlike a [`LinkEventKind`], the
    /// client's kernel notices the change.
    ///
    /// # Errors
    /// When there is no link of this name, or the kernel refuses.
    pub fn set_device_up(&self, link: &str, up: bool) -> Result<(), LabError> {
        let (index, congestion) = (self.link_index(link)?, self.namespaces.congestion.requested);
        let change = || Ok(network::set_device(index, link, up, congestion));
        self.namespaces.client.run(change).map_err(LabError::at_step(format!("device {link}")))?
    }

    /// Adds one more address to the server, or removes it. Removing it makes the host with this address vanish
    /// without closing its connections.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn set_address(&self, address: Ipv4Addr, is_present: bool) -> Result<(), LabError> {
        let change = || network::set_address(address, is_present);
        self.namespaces.server.run(change).map_err(LabError::at_step(format!("address {address}")))
    }

    fn link_index(&self, link: &str) -> Result<usize, LabError> {
        let index = self.links.iter().position(|spec| spec.name == link);
        index.ok_or_else(|| LabError::Spec(format!("there is no link `{link}`")))
    }

    /// Which congestion control the connections really use.
    pub fn congestion(&self) -> &CongestionReport {
        &self.namespaces.congestion
    }

    /// How long building the lab took.
    pub fn build_time(&self) -> Duration {
        self.build_time
    }

    /// URLs of what is served, over HTTP and over HTTPS; `None` without a server.
    pub fn urls(&self) -> Option<(String, String)> {
        self.server.as_ref().map(|server| (server.url(), server.secure_url()))
    }

    /// Certificate file of the authority that signed the server's certificate.
    pub(crate) fn ca_file(&self) -> Option<std::path::PathBuf> {
        self.server.as_ref()?.ca_file().map(std::path::Path::to_path_buf)
    }

    /// Placeholders in commands and their values.
    fn placeholders(&self) -> Vec<(&'static str, String)> {
        let Some(server) = &self.server else { return Vec::new() };
        let mut placeholders = vec![("{url}", server.url()), ("{urls}", server.secure_url())];
        placeholders.extend(server.ca_file().map(|file| ("{ca}", file.to_string_lossy().into_owned())));
        placeholders
    }

    /// Fills in how many packets the kernel dropped since `before`, which holds one count per link (missing ones
    /// count as 0).
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

    /// Packets that the kernel dropped so far before they reached the emulator, per link, summed over all
    /// namespaces.
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
        self.pid_namespace.kill_all();
        if let Some(server) = &mut self.server {
            server.reap();
        }
    }
}
