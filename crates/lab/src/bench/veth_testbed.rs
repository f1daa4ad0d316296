//! Two network namespaces joined by plain veth pairs: no emulation, the full speed of the kernel.
//!
//! It measures what emulated links would hide: the CPU cost of a client. Addresses are as in the lab ([`crate::network`]): link i (from 0)
//! is `10.(i+1).0.0/24`, the server is `10.99.0.1`.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, SourceRule, family, messages};
use marline_sys::clock;
use marline_sys::namespace::NetNs;
use marline_sys::netlink::RouteSocket;
use marline_sys::process::PidNamespace;

use crate::network::{Namespaces, SERVER};
use crate::peak_rss::PeakRss;
use crate::run::{FinishedProcess, RunningProcess};
use crate::server::LabServer;
use crate::veth::veth_request;
use crate::{Congestion, CongestionReport, LabError, Service, Task, acquire_privileges};

pub(super) struct VethTestbed {
    server: LabServer,
    namespaces: Namespaces,
    pid_namespace: Option<PidNamespace>,
    /// Dropping the sender ends the thread of the PID namespace.
    _keep_alive: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl VethTestbed {
    /// Builds the testbed with a server of this service; `names` are the client's devices.
    pub(super) fn start(names: &[&str], service: &Service) -> Result<Self, LabError> {
        acquire_privileges()?;
        let new_namespace =
            |side| NetNs::new().map_err(LabError::at_step(format!("network namespace of the {side}")));
        let (client, server) = (new_namespace("client")?, new_namespace("server")?);
        let peer = server.as_fd().as_raw_fd();
        client
            .run(|| {
                let socket = RouteSocket::open()?;
                names.iter().try_for_each(|name| socket.request(&veth_request(name, peer)).map(drop))
            })
            .map_err(LabError::at_step("veth pairs"))?;
        client.run(|| configure_end(names, true)).map_err(LabError::at_step("the client's addresses"))?;
        server.run(|| configure_end(names, false)).map_err(LabError::at_step("the server's addresses"))?;
        // The congestion control has no effect here, without delay and loss.
        let congestion =
            CongestionReport { requested: Congestion::Cubic, client: String::new(), server: String::new() };
        let networks = Namespaces { client, server, sites: Vec::new(), congestion };
        let (keep_alive, dropped) = mpsc::channel::<()>();
        let (result_sender, receiver) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            if result_sender.send(PidNamespace::create()).is_ok() {
                let _ = dropped.recv();
            }
        });
        let result = receiver.recv().map_err(|_| LabError::Server("the PID namespace's thread ended".into()))?;
        let pid_namespace = result.map_err(LabError::at_step("PID namespace"))?;
        let server = LabServer::start(service, false, 0, &networks, &pid_namespace)?;
        let server = server.ok_or_else(|| LabError::Server("no service to start".into()))?;
        Ok(Self {
            server,
            namespaces: networks,
            pid_namespace: Some(pid_namespace),
            _keep_alive: keep_alive,
            thread: Some(thread),
        })
    }

    /// Runs a command in the client namespace and waits for it.
    pub(super) fn run(&self, task: &Task) -> Result<FinishedProcess, LabError> {
        let mut command = task.command(&[("{url}", self.server.url())]);
        let memory = PeakRss::start();
        let started = self.namespaces.client.run(|| {
            if let Some(pid_namespace) = &self.pid_namespace {
                pid_namespace.enter()?;
            }
            let start_time = clock::now();
            Ok((command.spawn()?, start_time))
        });
        let program = || task.program.to_string_lossy().into_owned();
        let (child, start_time) = started.map_err(|source| LabError::Start { program: program(), source })?;
        RunningProcess::new(child, start_time, memory)?.wait(task.limit)
    }

    /// Starts a command in the client namespace, in the testbed's PID namespace.
    pub(super) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        self.namespaces.client.run(|| {
            if let Some(pid_namespace) = &self.pid_namespace {
                pid_namespace.enter()?;
            }
            command.spawn()
        })
    }

    /// Runs `work` on a thread in the client namespace.
    pub(super) fn run_at_client<T: Send>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send,
    ) -> std::io::Result<T> {
        self.namespaces.client.run(work)
    }

    pub(super) fn server(&self) -> &LabServer {
        &self.server
    }
}

impl Drop for VethTestbed {
    fn drop(&mut self) {
        if let Some(pid_namespace) = &self.pid_namespace {
            pid_namespace.kill_all();
        }
        self.server.reap();
        // The PID namespace must be waited for before the thread that opened it may end.
        drop(self.pid_namespace.take());
        let (closed, _) = mpsc::channel();
        self._keep_alive = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Configures addresses and routes of one end, on a thread in its namespace.
fn configure_end(names: &[&str], is_client: bool) -> std::io::Result<()> {
    for (name, value) in [("all/rp_filter", "0"), ("default/rp_filter", "0")] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}"), value);
    }
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let socket = RouteSocket::open()?;
    let send = |request: Request| socket.request(&request.finish(1)).map(drop);
    send(LinkChange { up: Some(true), ..LinkChange::default() }.request(1))?;
    if !is_client {
        send(Address::assign(1, SERVER.into(), 32))?;
    }
    let reply = socket.request(&Request::dump_links().finish(1))?;
    let all: Vec<Link> = messages(&reply).filter_map(|message| Link::parse(&message)).collect();
    for (at, name) in names.iter().enumerate() {
        let index = all.iter().find(|link| link.name == *name).map_or(0, |link| link.index);
        let link_number = u8::try_from(at + 1).unwrap_or(u8::MAX);
        let own_address = IpAddr::V4(Ipv4Addr::new(10, link_number, 0, if is_client { 2 } else { 1 }));
        let network = IpAddr::V4(Ipv4Addr::new(10, link_number, 0, 0));
        send(LinkChange { up: Some(true), ..LinkChange::default() }.request(index))?;
        send(Address::assign(index, own_address, 24))?;
        let route = Route { source: Some(own_address), ..Route::default_via_interface(family::V4, index) };
        let source = if is_client { own_address } else { SERVER.into() };
        send(Route { destination: Some((network, 24)), source: Some(source), ..route.clone() }.install())?;
        if is_client {
            let number = u32::from(link_number);
            send(Route { metric: 100 + number, ..route.clone() }.install())?;
            send(Route { table: 1000 + number, ..route }.install())?;
            send(SourceRule::new((own_address, 32), 1000 + number, 1000 + number).add())?;
        }
    }
    Ok(())
}
