//! The driver against this very kernel: two cables between two network namespaces, a server and a client that speak
//! MPTCP, and a machine whose outputs the test gives. They need root, `ip` and `tc`, and say so where these are absent.
//!
//! What decides is bytes, states and the kernel's counters. A wait ends when its condition holds, and fails after a time
//! that is far beyond anything that a loaded machine needs.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::Command as Process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant as Clock};

use marline_core::energy::{ConcurrentDraw, Model};
use marline_core::link::{LinkId, LinkKind};
use marline_core::machine::Machine;
use marline_core::paths::{
    CloseReason, Command, CommandError, CommandId, Config, ConnId, Counters, EstablishedSubflow, Input, IpFamily,
    LinkConfig, Output, Paths, SubflowId,
};
use marline_core::units::{Instant, Power};
use marline_net::links::{InterfaceList, LinkSelection};
use marline_sys::namespace::{Network, is_privileged, mount_sys, private_mounts};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::super::ground::{Claim, Host, Roads, Role};
use super::super::{Ask, Budgets, Ground, Job, Mode, PathsError, Snapshot, Untouched};
use super::{drive, drive_with};

mod other;
mod path_mtu;
mod policy;
mod recovery;
mod returns;
mod steering;

const FIRST: LinkId = LinkId(0);
const SECOND: LinkId = LinkId(1);

/// Longer than anything takes; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

fn run(program: &str, arguments: &str) {
    let output = Process::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

/// `ip` in the server's network.
fn on(server: &Network, arguments: &str) {
    server
        .run(|| {
            ip(arguments);
            Ok(())
        })
        .unwrap();
}

/// The client's and the server's network, joined by two cables of 20 Mbit/s; the server has one address behind both.
fn between_two_networks(work: impl FnOnce(&Network) + Send) {
    let has = |program: &str| Process::new(program).arg("-V").output().is_ok();
    if !is_privileged() || !has("ip") || !has("tc") {
        eprintln!("skipped: needs CAP_NET_ADMIN, CAP_SYS_ADMIN and the programs ip and tc");
        return;
    }
    if !std::path::Path::new("/proc/sys/net/mptcp/path_manager").exists() {
        eprintln!("skipped: this kernel has no net.mptcp.path_manager (Linux 6.15, CONFIG_MPTCP)");
        return;
    }
    let (client, server) = (Network::new().unwrap(), Network::new().unwrap());
    server
        .run(|| {
            ip("link set lo up");
            ip("address add 10.9.0.1/32 dev lo");
            ip("address add fd00:9::1/128 dev lo nodad");
            // Each subflow whose interface is removed counts at the server until it times out there.
            ip("mptcp limits set subflows 8");
            Ok(())
        })
        .unwrap();
    client
        .run(|| {
            ip("link set lo up");
            for link in 1..=2 {
                plug(&server, link);
                ip(&format!("rule add from 10.{link}.0.2 table {link}"));
                ip(&format!("-6 rule add from fd00:{link}::2 table {link}"));
            }
            private_mounts()?;
            mount_sys()?;
            work(&server);
            Ok(())
        })
        .unwrap();
}

/// A cable from this network to the server's, with addresses and routes.
fn plug(server: &Network, link: u8) {
    let there = format!("/proc/{}/fd/{}", std::process::id(), server.as_fd().as_raw_fd());
    ip(&format!("link add c{link} type veth peer name s{link} netns {there}"));
    ip(&format!("address add 10.{link}.0.2/24 dev c{link}"));
    ip(&format!("address add fd00:{link}::2/64 dev c{link} nodad"));
    ip(&format!("link set c{link} up"));
    on(server, &format!("address add 10.{link}.0.1/24 dev s{link}"));
    on(server, &format!("address add fd00:{link}::1/64 dev s{link} nodad"));
    on(server, &format!("link set s{link} up"));
    let slow = format!("qdisc add dev s{link} root tbf rate 20mbit burst 64k limit 100k");
    server
        .run(|| {
            run("tc", &slow);
            Ok(())
        })
        .unwrap();
    ip(&format!("route add default via 10.{link}.0.1 dev c{link} metric {link}00"));
    ip(&format!("-6 route add default via fd00:{link}::1 dev c{link} metric {link}00"));
    ip(&format!("route add default via 10.{link}.0.1 dev c{link} table {link}"));
    ip(&format!("-6 route add default via fd00:{link}::1 dev c{link} table {link}"));
}

fn mptcp(address: SocketAddr) -> Socket {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::from(262))).unwrap()
}

/// How many bytes a server sends that ends after them.
const ENDING: usize = 150_000;

/// A server in its own network that sends to each client for as long as that reads. It ends with the process.
fn serve(network: &Network, address: &str) -> SocketAddr {
    let address: SocketAddr = address.parse().unwrap();
    let bound = network
        .run(|| {
            let listener = mptcp(address);
            listener.set_reuse_address(true)?;
            listener.bind(&address.into())?;
            listener.listen(64)?;
            Ok(listener)
        })
        .unwrap();
    let at = bound.local_addr().unwrap().as_socket().unwrap();
    thread::spawn(move || {
        while let Ok((peer, _)) = bound.accept() {
            thread::spawn(move || {
                let mut peer: TcpStream = peer.into();
                let mut hello = [0];
                let zeros = [0; 16_384];
                while peer.read(&mut hello).is_ok_and(|read| read > 0) {
                    if hello[0] == b'u' {
                        let mut taken = vec![0; 65_536];
                        while peer.read(&mut taken).is_ok_and(|read| read > 0) {}
                    }
                    if hello[0] == b'e' {
                        // All of it fits in the send buffer.
                        let _ = SockRef::from(&peer).set_send_buffer_size(1 << 20);
                        let _ = peer.write_all(&vec![0; ENDING]);
                        let _ = peer.shutdown(std::net::Shutdown::Write);
                        continue;
                    }
                    if hello[0] == b'd' {
                        while peer.write_all(&zeros).is_ok() {}
                    }
                    if hello[0] == b'p' {
                        // 2 Mbit/s, of which nothing waits to be sent.
                        while peer.write_all(&zeros[..5000]).is_ok() {
                            thread::sleep(Duration::from_millis(20));
                        }
                    }
                    if peer.write_all(b"k").is_err() {
                        return;
                    }
                }
            });
        }
    });
    at
}

/// A connection; it is reset when it is dropped, so that nothing of it lingers on the cables.
struct Client(TcpStream);

impl Client {
    fn connect(server: SocketAddr) -> Self {
        let socket = mptcp(server);
        socket.connect(&server.into()).unwrap();
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        Self(socket.into())
    }

    /// One byte there and one back: the connection is fully established then.
    fn greet(server: SocketAddr) -> Self {
        let mut client = Self::connect(server);
        client.0.write_all(b"h").unwrap();
        client.0.read_exact(&mut [0]).unwrap();
        client
    }

    /// Downloads until it is dropped.
    fn download(server: SocketAddr) -> (Self, Arc<AtomicU64>) {
        Self::receive(server, b"d")
    }

    /// The same from a server that has little to send.
    fn trickle(server: SocketAddr) -> (Self, Arc<AtomicU64>) {
        Self::receive(server, b"p")
    }

    fn receive(server: SocketAddr, what: &[u8; 1]) -> (Self, Arc<AtomicU64>) {
        let mut client = Self::greet(server);
        client.0.write_all(what).unwrap();
        let mut reader = client.0.try_clone().unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&read);
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                count.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        (client, read)
    }
}

impl Client {
    /// Uploads until it is dropped.
    fn upload(server: SocketAddr) -> Self {
        let mut client = Self::greet(server);
        client.0.write_all(b"u").unwrap();
        let mut writer = client.0.try_clone().unwrap();
        thread::spawn(move || while writer.write_all(&[0; 16_384]).is_ok() {});
        client
    }
}

impl Drop for Client {
    /// The reader's half of it ends too.
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A machine without a mind: it keeps what it hears, and says what the test gives it.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Lines>>);

#[derive(Default)]
struct Lines {
    now: Instant,
    heard: Vec<Input>,
    to_say: VecDeque<Output>,
}

impl Machine for Script {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: Input) {
        let mut lines = self.0.lock().unwrap();
        lines.now = now;
        lines.heard.push(input);
    }
    fn tick(&mut self, now: Instant) {
        self.0.lock().unwrap().now = now;
    }
    fn poll(&mut self) -> Option<Output> {
        self.0.lock().unwrap().to_say.pop_front()
    }
    fn deadline(&self) -> Option<(Instant, ())> {
        Some((self.0.lock().unwrap().now + Duration::from_millis(5), ()))
    }
}

/// The userspace path manager, as the ground would set it.
struct Switched(&'static str);

impl Ground for Switched {
    fn lay(&mut self, _mode: Mode) -> Result<(), PathsError> {
        self.hold();
        Ok(())
    }
    fn hold(&mut self) {
        std::fs::write("/proc/sys/net/mptcp/path_manager", self.0).unwrap();
    }
    fn follow(&mut self, _survey: &InterfaceList) {}
    fn restore(&mut self) {}
}

/// The links of all tests, and a device that draws nothing.
fn config() -> Config {
    let terms =
        |link, name: &str, kind| LinkConfig { id: link, name: name.into(), kind, metered: false, budget: None };
    let links = vec![terms(FIRST, "c1", LinkKind::Wifi), terms(SECOND, "c2", LinkKind::Lte)];
    Config::new(Model::new("nothing", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap(), links)
}

/// This network as the daemon lays it.
fn host(run_dir: &std::path::Path) -> Host {
    let roads = Roads { links: vec!["c1".into(), "c2".into()], named: true };
    let claim = Claim::take(run_dir, Role::Steer).unwrap();
    Host::new(claim, run_dir, roads, Box::new(|line| eprintln!("told: {line}")))
}

/// What ends a driver.
type Stop = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// What lays the host, given a run directory.
type Lay = Box<dyn FnOnce(&std::path::Path) -> Box<dyn Ground> + Send>;

/// A driver that runs on a thread of its own, in the same network.
struct Running {
    script: Script,
    next: u64,
    control: mpsc::Sender<Ask>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<(), PathsError>>>,
}

impl Running {
    fn start(mode: Mode) -> Self {
        Self::with(mode, super::ROOM, None)
    }

    /// With so much room for events, and with a log.
    fn with(mode: Mode, room: usize, trace: Option<PathBuf>) -> Self {
        let script = Script::default();
        let machine = script.clone();
        let running = Self::of(config(), mode, trace, move |runtime, job, stop| {
            runtime.block_on(drive_with(machine, job, room, stop)).map(drop)
        });
        let running = Self { script, ..running };
        running.hears("both links up", |heard| {
            [FIRST, SECOND].iter().all(|link| heard.contains(&Input::LinkUp { link: *link })).then_some(())
        });
        running
    }

    /// With a real policy; nothing is said or heard.
    fn policy(config: Config, trace: Option<PathBuf>) -> Self {
        let machine = Paths::new(config.clone());
        Self::of(config, Mode::Userspace, trace, move |runtime, job, stop| {
            runtime.block_on(drive(machine, job, stop)).map(drop)
        })
    }

    /// A driver with a real policy that lays routes as the daemon does.
    fn laid(config: Config) -> Self {
        Self::laid_in(Mode::Userspace, config)
    }

    fn laid_in(mode: Mode, config: Config) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let place = run_dir.path().to_owned();
        let machine = Paths::new(config.clone());
        let ground: Lay = Box::new(|run_dir| Box::new(host(run_dir)));
        Self::on(ground, place, config, mode, None, move |runtime, job, stop| {
            let _run_dir = run_dir;
            runtime.block_on(drive(machine, job, stop)).map(drop)
        })
    }

    /// A driver with the script, in a run directory that an earlier one may have used.
    fn after(mode: Mode, run_dir: PathBuf) -> Self {
        let script = Script::default();
        let machine = script.clone();
        let running = Self::in_place(run_dir, config(), mode, None, move |runtime, job, stop| {
            runtime.block_on(drive(machine, job, stop)).map(drop)
        });
        Self { script, ..running }
    }

    fn of(
        config: Config,
        mode: Mode,
        trace: Option<PathBuf>,
        work: impl FnOnce(&Runtime, Job, Stop) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let place = run_dir.path().to_owned();
        Self::in_place(place, config, mode, trace, move |runtime, job, stop| {
            let _run_dir = run_dir;
            work(runtime, job, stop)
        })
    }

    fn in_place(
        run_dir: PathBuf,
        config: Config,
        mode: Mode,
        trace: Option<PathBuf>,
        work: impl FnOnce(&Runtime, Job, Stop) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let ground: Lay = match mode {
            Mode::Userspace => Box::new(|_| Box::new(Switched("userspace"))),
            // What is put back at the end is the ground's to know.
            Mode::KernelPm => Box::new(|run_dir| Box::new(host(run_dir))),
            Mode::DryRun => Box::new(|_| Box::new(Untouched)),
        };
        Self::on(ground, run_dir, config, mode, trace, work)
    }

    fn on(
        ground: Lay,
        run_dir: PathBuf,
        config: Config,
        mode: Mode,
        trace: Option<PathBuf>,
        work: impl FnOnce(&Runtime, Job, Stop) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let (control, asked) = mpsc::channel(8);
        let (stop, stopped) = oneshot::channel();
        // A new thread begins in the namespaces of the one that starts it.
        let thread = thread::spawn(move || {
            let ground = ground(&run_dir);
            let job = Job {
                config,
                choice: LinkSelection::Named(Vec::new()),
                budgets: Budgets::default(),
                mode,
                beside_vpn: false,
                trace,
                control: asked,
                ground,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            work(&runtime, job, Box::pin(async { drop(stopped.await) }))
        });
        Self { script: Script::default(), next: 0, control, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until the condition gives something of what was heard so far.
    fn hears<T>(&self, what: &str, condition: impl Fn(&[Input]) -> Option<T>) -> T {
        let started = Clock::now();
        loop {
            let lines = self.script.0.lock().unwrap();
            if let Some(found) = condition(&lines.heard) {
                return found;
            }
            if started.elapsed() > PATIENCE {
                let heard = lines.heard.iter().filter(|input| !matches!(input, Input::InterfaceCounters { .. }));
                panic!("{what}: never; heard {:?}", heard.collect::<Vec<_>>());
            }
            drop(lines);
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn say(&self, output: Output) {
        self.script.0.lock().unwrap().to_say.push_back(output);
    }

    /// Gives a command and waits for its answer.
    fn commands(&mut self, conn: ConnId, what: Command) -> Option<CommandError> {
        let command = CommandId(self.next);
        self.next += 1;
        self.say(Output::Command { id: command, conn, command: what });
        self.hears(&format!("an answer to {what:?}"), |heard| {
            heard.iter().find_map(|input| match input {
                Input::CommandDone { command: of, error: refused } if *of == command => Some(*refused),
                _ => None,
            })
        })
    }

    /// Looks once, and waits for counters of each of these subflows that are newer than the look.
    fn looks(&self, conn: ConnId, subflows: &[SubflowId]) -> BTreeMap<SubflowId, Counters> {
        let before = self.script.0.lock().unwrap().heard.len();
        self.say(Output::Poll { conn });
        self.hears("counters", |heard| {
            let mut found = BTreeMap::new();
            for input in &heard[before..] {
                if let Input::Counters { subflow, counters, .. } = input {
                    found.insert(*subflow, *counters);
                }
            }
            subflows.iter().all(|subflow| found.contains_key(subflow)).then_some(found)
        })
    }

    /// Looks until the condition holds.
    fn sees(
        &self,
        what: &str,
        conn: ConnId,
        subflow: SubflowId,
        condition: impl Fn(&Counters) -> bool,
    ) -> Counters {
        let started = Clock::now();
        loop {
            let seen = self.looks(conn, &[subflow])[&subflow];
            if condition(&seen) {
                return seen;
            }
            assert!(started.elapsed() < PATIENCE, "{what}: never; last seen {seen:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Looks until this subflow has received so many bytes; `false` if it ends before.
    fn brings(&self, conn: ConnId, subflow: SubflowId, bytes: u64) -> bool {
        let started = Clock::now();
        loop {
            self.say(Output::Poll { conn });
            let ends = |input: &Input| match input {
                Input::Counters { subflow: of, counters, .. } if *of == subflow => {
                    (counters.received.bytes() > bytes).then_some(true)
                }
                Input::SubflowDown { subflow: of, .. } if *of == subflow => Some(false),
                _ => None,
            };
            let end = self.script.0.lock().unwrap().heard.iter().rev().find_map(ends);
            if let Some(end) = end {
                return end;
            }
            assert!(started.elapsed() < PATIENCE, "{subflow:?} brings too little");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The next connection after `known` ones, with its first subflow.
    fn opened(&self, known: usize) -> (ConnId, EstablishedSubflow) {
        self.hears("a connection", |heard| {
            let mut conns = heard.iter().filter_map(|input| match input {
                Input::Opened { conn, .. } => Some(*conn),
                _ => None,
            });
            let conn = conns.nth(known)?;
            heard.iter().find_map(|input| match input {
                Input::SubflowUp { conn: of, subflow } if *of == conn && subflow.initial => Some((conn, *subflow)),
                _ => None,
            })
        })
    }

    /// The newest subflow over a link.
    fn up(&self, conn: ConnId, link: LinkId, known: &[SubflowId]) -> EstablishedSubflow {
        self.hears("a subflow", |heard| {
            heard.iter().find_map(|input| match input {
                Input::SubflowUp { conn: of, subflow }
                    if *of == conn && subflow.link == Some(link) && !known.contains(&subflow.id) =>
                {
                    Some(*subflow)
                }
                _ => None,
            })
        })
    }

    fn down(&self, subflow: SubflowId) -> CloseReason {
        self.hears("the end of a subflow", |heard| {
            heard.iter().find_map(|input| match input {
                Input::SubflowDown { subflow: of, reason: why, .. } if *of == subflow => Some(*why),
                _ => None,
            })
        })
    }

    fn snapshot(&self) -> Snapshot {
        let (to, answer) = oneshot::channel();
        self.control.blocking_send(Ask::Snapshot(to)).unwrap();
        answer.blocking_recv().unwrap()
    }

    fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// The application goes on. What came over one path may wait for what comes over another.
fn grows(read: &AtomicU64, before: u64) {
    let started = Clock::now();
    while read.load(Ordering::Relaxed) <= before {
        assert!(started.elapsed() < PATIENCE, "the application gets nothing any more");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes stand still over a time in which those of the other subflow grow by much.
fn stands_still(driver: &Running, conn: ConnId, still: SubflowId, moving: SubflowId) {
    let started = Clock::now();
    loop {
        let before = driver.looks(conn, &[still, moving]);
        let goal = before[&moving].received.bytes() + 500_000;
        let after = driver.sees("the other subflow carries on", conn, moving, |seen| seen.received.bytes() > goal);
        assert!(after.received.bytes() > goal);
        let again = driver.looks(conn, &[still]);
        if again[&still].received == before[&still].received {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "a suspended subflow still receives: {again:?}");
    }
}
