//! Two network namespaces joined by plain veth pairs: no emulation, all the speed that the kernel has.
//!
//! For what emulated links would hide: a client's own cost. Addresses and routes are as in the lab
//! ([`crate::network`]): link i is `10.(i+1).0.0/24`, the server is `10.99.0.1`.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

use marline_core::wire::netlink::{Address, Link, LinkChange, Request, Route, SourceRule, family, messages};
use marline_sys::clock;
use marline_sys::namespace::Network;
use marline_sys::netlink::RouteSocket;
use marline_sys::process::Room;

use crate::memory::Memory;
use crate::network::{Networks, SERVER};
use crate::run::{Ended, Running};
use crate::server::Server;
use crate::veth::veth;
use crate::{Congestion, CongestionReport, LabError, Service, Task, prepare};

/// The running pair.
pub(super) struct Wired {
    server: Server,
    networks: Networks,
    room: Option<Room>,
    /// Its end lets the room's thread end.
    _alive: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Wired {
    /// Builds it, with a server of this service; the client's devices are called by `names`.
    pub(super) fn start(names: &[&str], service: &Service) -> Result<Self, LabError> {
        prepare()?;
        let new = |side| Network::new().map_err(LabError::at(format!("network namespace of the {side}")));
        let (client, server) = (new("client")?, new("server")?);
        let peer = server.as_fd().as_raw_fd();
        client
            .run(|| {
                let socket = RouteSocket::open()?;
                names.iter().try_for_each(|name| socket.request(&veth(name, peer)).map(drop))
            })
            .map_err(LabError::at("veth pairs"))?;
        client.run(|| configure(names, true)).map_err(LabError::at("the client's addresses"))?;
        server.run(|| configure(names, false)).map_err(LabError::at("the server's addresses"))?;
        // The system's congestion control: without delay or loss it decides nothing.
        let congestion =
            CongestionReport { wanted: Congestion::Cubic, client: String::new(), server: String::new() };
        let networks = Networks { client, server, places: Vec::new(), congestion };
        let (alive, over) = mpsc::channel::<()>();
        let (ready, room) = mpsc::sync_channel(1);
        let thread = std::thread::spawn(move || {
            if ready.send(Room::open()).is_ok() {
                let _ = over.recv();
            }
        });
        let room = room.recv().map_err(|_| LabError::Server("no room".into()))?;
        let room = room.map_err(LabError::at("PID namespace"))?;
        let server = Server::start(service, false, 0, &networks, &room)?;
        let server = server.ok_or_else(|| LabError::Server("nothing to serve".into()))?;
        Ok(Self { server, networks, room: Some(room), _alive: alive, thread: Some(thread) })
    }

    /// Runs a command at the client's end.
    pub(super) fn run(&self, task: &Task) -> Result<Ended, LabError> {
        let mut command = task.command(&[("{url}", self.server.url())]);
        let memory = Memory::before();
        let started = self.networks.client.run(|| {
            if let Some(room) = &self.room {
                room.enter()?;
            }
            let zero = clock::now();
            Ok((command.spawn()?, zero))
        });
        let program = || task.program.to_string_lossy().into_owned();
        let (child, zero) = started.map_err(|source| LabError::Start { program: program(), source })?;
        Running::new(child, zero, memory)?.wait(task.limit)
    }

    /// Starts a command at the client's end, in the room.
    pub(super) fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        self.networks.client.run(|| {
            if let Some(room) = &self.room {
                room.enter()?;
            }
            command.spawn()
        })
    }

    /// Runs `work` on a thread at the client's end.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
        self.networks.client.run(work)
    }

    /// The server.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.kill();
        }
        self.server.reap();
        // The room is waited for by the thread's process; only then may its thread end.
        drop(self.room.take());
        let (closed, _) = mpsc::channel();
        self._alive = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Addresses and routes of one end, on a thread inside.
fn configure(names: &[&str], is_client: bool) -> std::io::Result<()> {
    for (name, value) in [("all/rp_filter", "0"), ("default/rp_filter", "0")] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}"), value);
    }
    let _ = std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
    let socket = RouteSocket::open()?;
    let ask = |request: Request| socket.request(&request.finish(1)).map(drop);
    ask(LinkChange { up: Some(true), ..LinkChange::default() }.request(1))?;
    if !is_client {
        ask(Address::assign(1, SERVER.into(), 32))?;
    }
    let reply = socket.request(&Request::dump_links().finish(1))?;
    let all: Vec<Link> = messages(&reply).filter_map(|message| Link::parse(&message)).collect();
    for (at, name) in names.iter().enumerate() {
        let index = all.iter().find(|link| link.name == *name).map_or(0, |link| link.index);
        let number = u8::try_from(at + 1).unwrap_or(u8::MAX);
        let own = IpAddr::V4(Ipv4Addr::new(10, number, 0, if is_client { 2 } else { 1 }));
        let network = IpAddr::V4(Ipv4Addr::new(10, number, 0, 0));
        ask(LinkChange { up: Some(true), ..LinkChange::default() }.request(index))?;
        ask(Address::assign(index, own, 24))?;
        let route = Route { source: Some(own), ..Route::default_via_interface(family::V4, index) };
        let near = if is_client { own } else { SERVER.into() };
        ask(Route { destination: Some((network, 24)), source: Some(near), ..route.clone() }.install())?;
        if is_client {
            let number = u32::from(number);
            ask(Route { metric: 100 + number, ..route.clone() }.install())?;
            ask(Route { table: 1000 + number, ..route }.install())?;
            ask(SourceRule::new((own, 32), 1000 + number, 1000 + number).add())?;
        }
    }
    Ok(())
}
