//! Tests of the driver against the real kernel: two links between two network namespaces, a server and a client with
//! MPTCP, and a scripted machine. They need root, `ip` and `tc`, and are skipped with a message where these are
//! absent.
//!
//! Assertions concern bytes, states and the kernel's counters. A wait ends when its condition holds, and fails after
//! a time that is far beyond the needs of a loaded machine.

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
use marline_sys::namespace::{NetNs, is_privileged, mount_sysfs, unshare_mounts};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::super::host_config::{HostConfig, InstanceLock, Role, RoutedLinks};
use super::super::{Budgets, DriverQuery, HostConfigurator, Job, Mode, NoHostConfig, PathsError, Snapshot};
use super::{drive, drive_with};

mod modes;
mod outages;
mod path_mtu;
mod policy;
mod recovery;
mod steering;

const FIRST_LINK: LinkId = LinkId(0);
const SECOND_LINK: LinkId = LinkId(1);

/// Timeout that only a failure reaches.
const TIMEOUT: Duration = Duration::from_secs(20);

fn run_command(program: &str, arguments: &str) {
    let output = Process::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn ip(arguments: &str) {
    run_command("ip", arguments);
}

/// Runs `ip` in the server's namespace.
fn ip_in(server: &NetNs, arguments: &str) {
    server
        .run(|| {
            ip(arguments);
            Ok(())
        })
        .unwrap();
}

/// Creates the namespaces of client and server, joined by two links of 20 Mbit/s; the server has one address behind
/// both.
fn with_two_networks(test: impl FnOnce(&NetNs) + Send) {
    let is_installed = |program: &str| Process::new(program).arg("-V").output().is_ok();
    if !is_privileged() || !is_installed("ip") || !is_installed("tc") {
        eprintln!("skipped: needs CAP_NET_ADMIN, CAP_SYS_ADMIN and the programs ip and tc");
        return;
    }
    if !std::path::Path::new("/proc/sys/net/mptcp/path_manager").exists() {
        eprintln!("skipped: this kernel has no net.mptcp.path_manager (Linux 6.15, CONFIG_MPTCP)");
        return;
    }
    let (client, server) = (NetNs::new().unwrap(), NetNs::new().unwrap());
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
                add_veth(&server, link);
                ip(&format!("rule add from 10.{link}.0.2 table {link}"));
                ip(&format!("-6 rule add from fd00:{link}::2 table {link}"));
            }
            unshare_mounts()?;
            mount_sysfs()?;
            test(&server);
            Ok(())
        })
        .unwrap();
}

/// Creates a link from this namespace to the server's, with addresses and routes.
fn add_veth(server: &NetNs, link: u8) {
    let netns_path = format!("/proc/{}/fd/{}", std::process::id(), server.as_fd().as_raw_fd());
    ip(&format!("link add c{link} type veth peer name s{link} netns {netns_path}"));
    ip(&format!("address add 10.{link}.0.2/24 dev c{link}"));
    ip(&format!("address add fd00:{link}::2/64 dev c{link} nodad"));
    ip(&format!("link set c{link} up"));
    ip_in(server, &format!("address add 10.{link}.0.1/24 dev s{link}"));
    ip_in(server, &format!("address add fd00:{link}::1/64 dev s{link} nodad"));
    ip_in(server, &format!("link set s{link} up"));
    let qdisc = format!("qdisc add dev s{link} root tbf rate 20mbit burst 64k limit 100k");
    server
        .run(|| {
            run_command("tc", &qdisc);
            Ok(())
        })
        .unwrap();
    ip(&format!("route add default via 10.{link}.0.1 dev c{link} metric {link}00"));
    ip(&format!("-6 route add default via fd00:{link}::1 dev c{link} metric {link}00"));
    ip(&format!("route add default via 10.{link}.0.1 dev c{link} table {link}"));
    ip(&format!("-6 route add default via fd00:{link}::1 dev c{link} table {link}"));
}

fn mptcp_socket(address: SocketAddr) -> Socket {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::from(262))).unwrap()
}

/// Number of bytes that the server sends in response to `e`, after which it closes its direction.
const FINITE_RESPONSE_LEN: usize = 150_000;

/// Starts a server in its namespace, which ends with the process. Each byte of a client selects what it does: `u` reads
/// everything, `d` sends as long as the client reads, `p` sends 2 Mbit/s, `e` sends [`FINITE_RESPONSE_LEN`] bytes and
/// closes its direction; to any other byte it replies with one byte.
fn start_server(netns: &NetNs, address: &str) -> SocketAddr {
    let address: SocketAddr = address.parse().unwrap();
    let listener = netns
        .run(|| {
            let listener = mptcp_socket(address);
            listener.set_reuse_address(true)?;
            listener.bind(&address.into())?;
            listener.listen(64)?;
            Ok(listener)
        })
        .unwrap();
    let local_addr = listener.local_addr().unwrap().as_socket().unwrap();
    thread::spawn(move || {
        while let Ok((peer, _)) = listener.accept() {
            thread::spawn(move || {
                let mut peer: TcpStream = peer.into();
                let mut mode = [0];
                let zeros = [0; 16_384];
                while peer.read(&mut mode).is_ok_and(|read| read > 0) {
                    if mode[0] == b'u' {
                        let mut discarded = vec![0; 65_536];
                        while peer.read(&mut discarded).is_ok_and(|read| read > 0) {}
                    }
                    if mode[0] == b'e' {
                        // All of it fits in the send buffer.
                        let _ = SockRef::from(&peer).set_send_buffer_size(1 << 20);
                        let _ = peer.write_all(&vec![0; FINITE_RESPONSE_LEN]);
                        let _ = peer.shutdown(std::net::Shutdown::Write);
                        continue;
                    }
                    if mode[0] == b'd' {
                        while peer.write_all(&zeros).is_ok() {}
                    }
                    if mode[0] == b'p' {
                        // 2 Mbit/s, so that the send buffer stays empty.
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
    local_addr
}

/// A connection that is reset on drop, so that no data of it lingers on the links.
struct Client(TcpStream);

impl Client {
    fn connect(server: SocketAddr) -> Self {
        let socket = mptcp_socket(server);
        socket.connect(&server.into()).unwrap();
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        Self(socket.into())
    }

    /// Exchanges one byte in each direction: the connection is fully established then.
    fn connect_established(server: SocketAddr) -> Self {
        let mut client = Self::connect(server);
        client.0.write_all(b"h").unwrap();
        client.0.read_exact(&mut [0]).unwrap();
        client
    }

    /// Downloads until it is dropped.
    fn download(server: SocketAddr) -> (Self, Arc<AtomicU64>) {
        Self::start_download(server, b"d")
    }

    /// Downloads slowly, from a server that has little to send.
    fn download_slowly(server: SocketAddr) -> (Self, Arc<AtomicU64>) {
        Self::start_download(server, b"p")
    }

    fn start_download(server: SocketAddr, mode: &[u8; 1]) -> (Self, Arc<AtomicU64>) {
        let mut client = Self::connect_established(server);
        client.0.write_all(mode).unwrap();
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
        let mut client = Self::connect_established(server);
        client.0.write_all(b"u").unwrap();
        let mut writer = client.0.try_clone().unwrap();
        thread::spawn(move || while writer.write_all(&[0; 16_384]).is_ok() {});
        client
    }
}

impl Drop for Client {
    /// The reader's half ends as well.
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// A scripted machine: records inputs and yields the outputs that the test provides.
#[derive(Clone, Default)]
struct ScriptedMachine(Arc<Mutex<ScriptState>>);

#[derive(Default)]
struct ScriptState {
    now: Instant,
    inputs: Vec<Input>,
    outputs: VecDeque<Output>,
}

impl Machine for ScriptedMachine {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: Input) {
        let mut state = self.0.lock().unwrap();
        state.now = now;
        state.inputs.push(input);
    }
    fn tick(&mut self, now: Instant) {
        self.0.lock().unwrap().now = now;
    }
    fn poll(&mut self) -> Option<Output> {
        self.0.lock().unwrap().outputs.pop_front()
    }
    fn deadline(&self) -> Option<(Instant, ())> {
        Some((self.0.lock().unwrap().now + Duration::from_millis(5), ()))
    }
}

/// Sets the userspace path manager, as the host configuration would.
struct PathManagerSysctl(&'static str);

impl HostConfigurator for PathManagerSysctl {
    fn apply(&mut self, _mode: Mode) -> Result<(), PathsError> {
        self.recheck_sysctls();
        Ok(())
    }
    fn recheck_sysctls(&mut self) {
        std::fs::write("/proc/sys/net/mptcp/path_manager", self.0).unwrap();
    }
    fn update_routing(&mut self, _survey: &InterfaceList) {}
    fn restore(&mut self) {}
}

/// Configuration with the links of all tests, and a device without energy use.
fn test_config() -> Config {
    let link_config =
        |link, name: &str, kind| LinkConfig { id: link, name: name.into(), kind, metered: false, budget: None };
    let links = vec![link_config(FIRST_LINK, "c1", LinkKind::Wifi), link_config(SECOND_LINK, "c2", LinkKind::Lte)];
    Config::new(Model::new("nothing", BTreeMap::new(), ConcurrentDraw::default(), Power::ZERO).unwrap(), links)
}

/// The host configuration of the daemon for this namespace.
fn host_config(run_dir: &std::path::Path) -> HostConfig {
    let routed_links = RoutedLinks { links: vec!["c1".into(), "c2".into()], is_explicit: true };
    let lock = InstanceLock::acquire(run_dir, Role::Paths).unwrap();
    HostConfig::new(lock, run_dir, routed_links, Box::new(|line| eprintln!("notice: {line}")))
}

/// Stops a driver when it is sent.
type StopFuture = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// Creates a host configuration for a run directory.
type HostConfigFactory = Box<dyn FnOnce(&std::path::Path) -> Box<dyn HostConfigurator> + Send>;

/// A driver that runs on its own thread, in the same namespace.
struct RunningDriver {
    machine: ScriptedMachine,
    next: u64,
    queries: mpsc::Sender<DriverQuery>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<(), PathsError>>>,
}

impl RunningDriver {
    fn start(mode: Mode) -> Self {
        Self::with_rcvbuf(mode, super::EVENT_RCVBUF, None)
    }

    /// Starts with this receive buffer for events, and with a decision log.
    fn with_rcvbuf(mode: Mode, rcvbuf_size: usize, decision_log: Option<PathBuf>) -> Self {
        let scripted = ScriptedMachine::default();
        let machine = scripted.clone();
        let driver = Self::spawn(test_config(), mode, decision_log, move |runtime, job, stop| {
            runtime.block_on(drive_with(machine, job, rcvbuf_size, stop)).map(drop)
        });
        let driver = Self { machine: scripted, ..driver };
        driver.wait_for_input("both links up", |inputs| {
            [FIRST_LINK, SECOND_LINK]
                .iter()
                .all(|link| inputs.contains(&Input::LinkUp { link: *link }))
                .then_some(())
        });
        driver
    }

    /// Starts with a real policy instead of the script.
    fn with_policy(config: Config, decision_log: Option<PathBuf>) -> Self {
        let machine = Paths::new(config.clone());
        Self::spawn(config, Mode::Userspace, decision_log, move |runtime, job, stop| {
            runtime.block_on(drive(machine, job, stop)).map(drop)
        })
    }

    /// Starts with a real policy and the routing of the daemon.
    fn with_host_config(config: Config) -> Self {
        Self::with_host_config_in(Mode::Userspace, config)
    }

    fn with_host_config_in(mode: Mode, config: Config) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let run_dir_path = run_dir.path().to_owned();
        let machine = Paths::new(config.clone());
        let make_host_config: HostConfigFactory = Box::new(|run_dir| Box::new(host_config(run_dir)));
        Self::spawn_with(make_host_config, run_dir_path, config, mode, None, move |runtime, job, stop| {
            let _run_dir = run_dir;
            runtime.block_on(drive(machine, job, stop)).map(drop)
        })
    }

    /// Starts with the script, in a run directory that an earlier driver may have used.
    fn in_run_dir(mode: Mode, run_dir: PathBuf) -> Self {
        let scripted = ScriptedMachine::default();
        let machine = scripted.clone();
        let driver = Self::spawn_in(run_dir, test_config(), mode, None, move |runtime, job, stop| {
            runtime.block_on(drive(machine, job, stop)).map(drop)
        });
        Self { machine: scripted, ..driver }
    }

    fn spawn(
        config: Config,
        mode: Mode,
        decision_log: Option<PathBuf>,
        run_driver: impl FnOnce(&Runtime, Job, StopFuture) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let run_dir_path = run_dir.path().to_owned();
        Self::spawn_in(run_dir_path, config, mode, decision_log, move |runtime, job, stop| {
            let _run_dir = run_dir;
            run_driver(runtime, job, stop)
        })
    }

    fn spawn_in(
        run_dir: PathBuf,
        config: Config,
        mode: Mode,
        decision_log: Option<PathBuf>,
        run_driver: impl FnOnce(&Runtime, Job, StopFuture) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let make_host_config: HostConfigFactory = match mode {
            Mode::Userspace => Box::new(|_| Box::new(PathManagerSysctl("userspace"))),
            // The host configuration knows what to restore at the end.
            Mode::KernelPm => Box::new(|run_dir| Box::new(host_config(run_dir))),
            Mode::DryRun => Box::new(|_| Box::new(NoHostConfig)),
        };
        Self::spawn_with(make_host_config, run_dir, config, mode, decision_log, run_driver)
    }

    fn spawn_with(
        make_host_config: HostConfigFactory,
        run_dir: PathBuf,
        config: Config,
        mode: Mode,
        decision_log: Option<PathBuf>,
        run_driver: impl FnOnce(&Runtime, Job, StopFuture) -> Result<(), PathsError> + Send + 'static,
    ) -> Self {
        let (queries, queries_rx) = mpsc::channel(8);
        let (stop, stop_rx) = oneshot::channel();
        // A new thread starts in the namespaces of its creator.
        let thread = thread::spawn(move || {
            let host_config = make_host_config(&run_dir);
            let job = Job {
                config,
                selection: LinkSelection::Named(Vec::new()),
                budgets: Budgets::default(),
                mode,
                bypass_vpn: false,
                decision_log,
                queries: queries_rx,
                host_config,
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            run_driver(&runtime, job, Box::pin(async { drop(stop_rx.await) }))
        });
        Self { machine: ScriptedMachine::default(), next: 0, queries, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until the condition yields a value from the recorded inputs.
    fn wait_for_input<T>(&self, description: &str, condition: impl Fn(&[Input]) -> Option<T>) -> T {
        let started = Clock::now();
        loop {
            let state = self.machine.0.lock().unwrap();
            if let Some(found) = condition(&state.inputs) {
                return found;
            }
            if started.elapsed() > TIMEOUT {
                let inputs = state.inputs.iter().filter(|input| !matches!(input, Input::InterfaceCounters { .. }));
                panic!("{description}: never; inputs {:?}", inputs.collect::<Vec<_>>());
            }
            drop(state);
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn push_output(&self, output: Output) {
        self.machine.0.lock().unwrap().outputs.push_back(output);
    }

    /// Executes a command and waits for its result.
    fn execute(&mut self, conn: ConnId, operation: Command) -> Option<CommandError> {
        let command = CommandId(self.next);
        self.next += 1;
        self.push_output(Output::Command { id: command, conn, command: operation });
        self.wait_for_input(&format!("the result of {operation:?}"), |inputs| {
            inputs.iter().find_map(|input| match input {
                Input::CommandDone { command: other, error } if *other == command => Some(*error),
                _ => None,
            })
        })
    }

    /// Polls once, and waits for newer counters of each of these subflows.
    fn poll_counters(&self, conn: ConnId, subflows: &[SubflowId]) -> BTreeMap<SubflowId, Counters> {
        let first_new = self.machine.0.lock().unwrap().inputs.len();
        self.push_output(Output::Poll { conn });
        self.wait_for_input("counters", |inputs| {
            let mut found = BTreeMap::new();
            for input in &inputs[first_new..] {
                if let Input::Counters { subflow, counters, .. } = input {
                    found.insert(*subflow, *counters);
                }
            }
            subflows.iter().all(|subflow| found.contains_key(subflow)).then_some(found)
        })
    }

    /// Polls until the condition holds.
    fn wait_for_counters(
        &self,
        description: &str,
        conn: ConnId,
        subflow: SubflowId,
        condition: impl Fn(&Counters) -> bool,
    ) -> Counters {
        let started = Clock::now();
        loop {
            let counters = self.poll_counters(conn, &[subflow])[&subflow];
            if condition(&counters) {
                return counters;
            }
            assert!(started.elapsed() < TIMEOUT, "{description}: never; last seen {counters:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Polls until this subflow has received so many bytes; `false` if it ends before.
    fn has_received(&self, conn: ConnId, subflow: SubflowId, bytes: u64) -> bool {
        let started = Clock::now();
        loop {
            self.push_output(Output::Poll { conn });
            let outcome_of = |input: &Input| match input {
                Input::Counters { subflow: other, counters, .. } if *other == subflow => {
                    (counters.received.bytes() > bytes).then_some(true)
                }
                Input::SubflowDown { subflow: other, .. } if *other == subflow => Some(false),
                _ => None,
            };
            let outcome = self.machine.0.lock().unwrap().inputs.iter().rev().find_map(outcome_of);
            if let Some(outcome) = outcome {
                return outcome;
            }
            assert!(started.elapsed() < TIMEOUT, "{subflow:?} receives too little");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The connection that was opened after `index` earlier ones, with its initial subflow.
    fn wait_for_connection(&self, index: usize) -> (ConnId, EstablishedSubflow) {
        self.wait_for_input("a connection", |inputs| {
            let mut conns = inputs.iter().filter_map(|input| match input {
                Input::Opened { conn, .. } => Some(*conn),
                _ => None,
            });
            let conn = conns.nth(index)?;
            inputs.iter().find_map(|input| match input {
                Input::SubflowUp { conn: other, subflow } if *other == conn && subflow.initial => {
                    Some((conn, *subflow))
                }
                _ => None,
            })
        })
    }

    /// A subflow over a link that is not among the `known` ones.
    fn wait_for_subflow(&self, conn: ConnId, link: LinkId, known: &[SubflowId]) -> EstablishedSubflow {
        self.wait_for_input("a subflow", |inputs| {
            inputs.iter().find_map(|input| match input {
                Input::SubflowUp { conn: owner, subflow }
                    if *owner == conn && subflow.link == Some(link) && !known.contains(&subflow.id) =>
                {
                    Some(*subflow)
                }
                _ => None,
            })
        })
    }

    fn wait_for_subflow_end(&self, subflow: SubflowId) -> CloseReason {
        self.wait_for_input("the end of a subflow", |inputs| {
            inputs.iter().find_map(|input| match input {
                Input::SubflowDown { subflow: other, reason, .. } if *other == subflow => Some(*reason),
                _ => None,
            })
        })
    }

    fn snapshot(&self) -> Snapshot {
        let (reply_tx, reply_rx) = oneshot::channel();
        self.queries.blocking_send(DriverQuery::Snapshot(reply_tx)).unwrap();
        reply_rx.blocking_recv().unwrap()
    }

    fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// Waits until the application reads more. Data of one path may wait for data of another.
fn wait_for_progress(read: &AtomicU64, before: u64) {
    let started = Clock::now();
    while read.load(Ordering::Relaxed) <= before {
        assert!(started.elapsed() < TIMEOUT, "the application receives no data any more");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a subflow receives nothing over a time in which the other one receives much.
fn wait_until_idle(driver: &RunningDriver, conn: ConnId, idle_subflow: SubflowId, active_subflow: SubflowId) {
    let started = Clock::now();
    loop {
        let before = driver.poll_counters(conn, &[idle_subflow, active_subflow]);
        let goal = before[&active_subflow].received.bytes() + 500_000;
        let after = driver.wait_for_counters("the other subflow carries on", conn, active_subflow, |counters| {
            counters.received.bytes() > goal
        });
        assert!(after.received.bytes() > goal);
        let after = driver.poll_counters(conn, &[idle_subflow]);
        if after[&idle_subflow].received == before[&idle_subflow].received {
            return;
        }
        assert!(started.elapsed() < TIMEOUT, "a suspended subflow still receives: {after:?}");
    }
}
