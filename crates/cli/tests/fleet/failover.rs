//! A whole fleet as processes: the fleet service, three relays of different capacity, and an edge. Service and relays are killed, and flows
//! have to continue.
//!
//! Where namespaces are permitted (root, `unshare`, `ip`, MPTCP), the edge has two links and everything else is behind them. Elsewhere the
//! test runs over the loopback interface and prints that.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::members::{ESTABLISHED, MARLINE, Running, TIMEOUT, echo};

/// The network of a test: where the service, the relays and the origin server run.
struct FleetNetwork {
    dir: TempDir,
    /// Address of the service, the relays and the origin server.
    address: &'static str,
    /// Command prefix that starts a program in their namespace.
    remote_prefix: &'static [&'static str],
    /// Options of the edge for its links, with a leading space.
    link_options: &'static str,
}

impl FleetNetwork {
    fn command(&self, is_remote: bool, program: &str) -> Command {
        let args: Vec<&str> = if is_remote { [self.remote_prefix, &[program]].concat() } else { vec![program] };
        let mut command = Command::new(args[0]);
        command.args(&args[1..]).current_dir(self.dir.path()).env("HOME", self.dir.path()).stdin(Stdio::null());
        command
    }

    fn marline(&self, args: &str) -> Output {
        self.command(false, MARLINE).args(args.split(' ')).output().unwrap()
    }

    fn run_ok(&self, args: &str) -> String {
        let output = self.marline(args);
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn start(&self, is_remote: bool, args: &str) -> Running {
        let mut command = self.command(is_remote, MARLINE);
        Running::of(command.args(args.split(' ')))
    }

    /// Repeats a command with `--json` until its output is `good`, and returns that output.
    fn wait(&self, args: &str, good: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let output = self.marline(args);
            let value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            if good(&value) {
                return value;
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(begun.elapsed() < TIMEOUT, "{args}: {value:#} {stderr}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn status(&self, good: impl Fn(&Value) -> bool) -> Value {
        self.wait("edge status --json --run-dir run", good)
    }

    /// Path of the revocation list that the edge has fetched.
    fn revoked(&self) -> std::path::PathBuf {
        let mut files = std::fs::read_dir(self.dir.path()).unwrap().map(|file| file.unwrap());
        files.find(|file| file.file_name().to_str().unwrap().starts_with("revoked-")).unwrap().path()
    }

    fn service(&self, authority: &str) -> Running {
        self.start(true, &format!("fleet run --ca-dir {authority} --listen {0}:4444 --address {0}", self.address))
    }
}

/// An established tunnel through the edge.
fn tunnel(edge: SocketAddr, server: SocketAddr) -> TcpStream {
    let (status, program) = crate::members::tunnel(edge, server);
    assert_eq!(status, ESTABLISHED);
    program
}

fn check_echo(program: &mut TcpStream) {
    crate::members::check_echo(program).unwrap();
}

fn scenario(network: &FleetNetwork) {
    let remote_address = network.address;
    network.run_ok("fleet ca init --ca-dir ca --name test");
    for n in 1..=3 {
        network.run_ok(&format!("fleet ca issue relay r{n} --ca-dir ca --address {remote_address} --out relays"));
    }
    network.run_ok("fleet ca issue edge e1 --ca-dir ca --out .");
    network.run_ok("fleet ca issue operator ann --ca-dir ca --out .");
    let mut echo = network.command(true, std::env::current_exe().unwrap().to_str().unwrap());
    echo.args(["--exact", "failover::an_echo_server", "--ignored", "--nocapture"]).env("ECHO_AT", remote_address);
    let echoing = Running::of(&mut echo);
    let server = echoing.address;
    let mut service = Some(network.service("ca"));
    let url = format!("https://{remote_address}:4444");
    let mut relays: Vec<Option<Running>> = Vec::new();
    for (n, capacity) in [(1, 8), (2, 40), (3, 16)] {
        let args = format!(
            "relay --listen {remote_address}:500{n} --certificate relays/r{n}.pem --revoked ca/revoked.pem --allow-net {remote_address} \
             --allow-port {port} --capacity {capacity}Mbit/s --fleet {url} --announce {remote_address}:500{n}",
            port = server.port()
        );
        relays.push(Some(network.start(true, &args)));
    }
    // An operator in the edge's namespace reaches the service.
    network.wait(&format!("fleet status --json --fleet {url} --certificate ann.pem"), |status| {
        status["relays"].as_array().is_some_and(|relays| relays.len() == 3)
    });
    let args = format!(
        "edge --portal-probe off --fleet {url} --certificate e1.pem --listen 127.0.0.1:0 --state-file state.json --run-dir run --no-direct \
         --origin {server} --target-rate 4Mbit/s{}",
        network.link_options
    );
    let edge = network.start(false, &args);
    let given = |status: &Value| status["fleet"]["assignment"]["relay"].as_str().map(str::to_owned);
    let status = network.status(|status| given(status).is_some());
    let rows = status["fleet"]["relays"].as_array().unwrap();
    println!("measured: {rows:#?}\nlinks: {:#}", status["links"]);
    assert_eq!(rows.iter().filter(|row| row["rate_bps"].as_u64().is_some_and(|rate| rate > 0)).count(), 3);
    let first = given(&status).unwrap();
    // The revocation list came with the assignment, and the measurements are saved.
    let begun = Instant::now();
    while !(network.revoked().exists() && network.dir.path().join("state.json").exists()) {
        assert!(begun.elapsed() < TIMEOUT, "the edge saves its revocation list and its measurements");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut old_tunnel = tunnel(edge.address, server);
    check_echo(&mut old_tunnel);
    assert_eq!(network.status(|_| true)["flows"]["last_relay"].as_str(), Some(first.as_str()));

    // The service is killed: old and new flows continue, and the edge reports again when the service is restarted.
    drop(service.take());
    check_echo(&mut old_tunnel);
    let mut newer = tunnel(edge.address, server);
    check_echo(&mut newer);
    network.status(|status| status["fleet"]["error"].is_string());
    service = Some(network.service("ca"));
    network.status(|status| status["fleet"]["error"].is_null() && given(status).is_some());
    check_echo(&mut old_tunnel);
    check_echo(&mut newer);
    assert_eq!(network.status(|_| true)["flows"]["failed"], 0);

    // The response to the edge's next report carries the new revocation list.
    let (list, stood) = (network.revoked(), std::fs::read(network.dir.path().join("ca/revoked.pem")).unwrap());
    assert!(std::fs::read(&list).unwrap() == stood);
    network.run_ok("fleet ca issue edge e2 --ca-dir ca --out .");
    network.run_ok("fleet ca revoke --ca-dir ca --role edge e2");
    let (revoked, begun) = (std::fs::read(network.dir.path().join("ca/revoked.pem")).unwrap(), Instant::now());
    assert!(revoked != stood);
    while std::fs::read(&list).unwrap() != revoked {
        assert!(begun.elapsed() < TIMEOUT, "the newest revocation list has not arrived");
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("the newest revocation list arrived after {:?}", begun.elapsed());

    // An edge that reports over two links is not mistaken for two processes.
    let fleet = network.wait(&format!("fleet status --json --fleet {url} --certificate ann.pem"), |fleet| {
        fleet["edges"][0]["name"] == "e1"
    });
    assert_eq!(fleet["edges"][0]["duplicate_addresses"], serde_json::json!([]));

    // The edge's relay is killed: a new flow goes through another relay, and the service assigns another one.
    let relay_name = given(&network.status(|status| given(status).is_some())).unwrap();
    let number: usize = relay_name[1..].parse().unwrap();
    relays[number - 1] = None;
    let begun = Instant::now();
    let mut another = tunnel(edge.address, server);
    println!("a new flow after {relay_name} was killed: {:?}", begun.elapsed());
    check_echo(&mut another);
    let last = network.status(|_| true)["flows"]["last_relay"].as_str().unwrap().to_owned();
    assert_ne!(last, relay_name);
    network.status(|status| given(status).is_some_and(|given| given != relay_name));
    check_echo(&mut another);

    // An edge that starts while the service is down knows the relays from its state file.
    drop(service.take());
    assert_eq!(edge.stop("-TERM").0, Some(0));
    let edge = network.start(false, &args);
    check_echo(&mut tunnel(edge.address, server));
    let links = network.status(|_| true)["links"].clone();
    println!("links: {links:#}");
    assert_eq!(edge.stop("-TERM").0, Some(0));
    let output = network.marline("edge status --run-dir run");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no marline edge daemon runs in this network namespace")
    );
}

#[test]
fn flows_of_an_edge_survive_the_death_of_the_fleet_service_and_of_its_relay() {
    let args = ["--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"];
    let unshare_output = Command::new("unshare").args(args).args(["ip", "link"]).output();
    if unshare_output.is_ok_and(|output| output.status.success()) && Path::new("/proc/sys/net/mptcp").exists() {
        let program = std::env::current_exe().unwrap();
        let script = format!("{NETWORK}\nexec \"$0\" --exact failover::inside_a_network --ignored --nocapture");
        let mut command = Command::new("timeout");
        command.args(["300", "unshare"]).args(args).args(["sh", "-ec", &script]).arg(program);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let stderr = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
        println!("{stderr}");
        assert!(output.status.success() && stderr.contains("1 passed"), "{:?}\n{stderr}", output.status);
        return;
    }
    eprintln!("over the loopback interface: two links need root, unshare, ip and MPTCP");
    let dir = tempfile::tempdir().unwrap();
    scenario(&FleetNetwork { dir, address: "127.0.0.1", remote_prefix: &[], link_options: " --no-paths" });
}

/// Two links to the namespace `far`, which holds everything but the edge.
const NETWORK: &str = r"
mount -t tmpfs none /run
mkdir -p /run/netns
ip link set lo up
ip netns add far
ip -n far link set lo up
ip -n far address add 10.9.0.1/32 dev lo
for n in 0 1; do
    ip link add eth$n type veth peer name far$n netns far
    ip address add 10.$n.0.2/24 dev eth$n
    ip -n far address add 10.$n.0.1/24 dev far$n
    ip link set eth$n up
    ip -n far link set far$n up
    ip route add default via 10.$n.0.1 dev eth$n metric 10$n
done
";

#[test]
#[ignore = "run by flows_of_an_edge_survive_the_death_of_the_fleet_service_and_of_its_relay, in a network namespace"]
fn inside_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let links = " --link eth0,kind=wifi,metered=no --link eth1,kind=lte,metered=no";
    scenario(&FleetNetwork {
        dir,
        address: "10.9.0.1",
        remote_prefix: &["ip", "netns", "exec", "far"],
        link_options: links,
    });
}

/// Echo server of the scenario, at the address in `ECHO_AT`.
#[test]
#[ignore = "no test: an echo server that another test starts as a child process"]
fn an_echo_server() {
    let Ok(at) = std::env::var("ECHO_AT") else { return };
    let listener = TcpListener::bind((at.as_str(), 0)).unwrap();
    eprintln!("listens on {}", listener.local_addr().unwrap());
    echo(listener);
}

#[test]
fn a_copied_certificate_is_reported_with_both_addresses_and_both_copies_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let network = FleetNetwork { dir, address: "127.0.0.1", remote_prefix: &[], link_options: "" };
    for args in [
        "fleet ca init --ca-dir ca --name test",
        "fleet ca issue edge e1 --ca-dir ca --out .",
        "fleet ca issue operator ann --ca-dir ca --out .",
    ] {
        network.run_ok(args);
    }
    let port = free_port();
    let (four, six) = (format!("https://127.0.0.1:{port}"), format!("https://[::1]:{port}"));
    let args = format!(
        "fleet run --ca-dir ca --listen 127.0.0.1:{port} --listen [::1]:{port} --address 127.0.0.1 --address ::1"
    );
    let mut service = network.start(true, &args);
    let edge = |run_dir: &str, url: &str| {
        network.start(
            false,
            &format!(
                "edge --portal-probe off --no-paths --fleet {url} --certificate e1.pem --listen 127.0.0.1:0 --state-file {run_dir}.json --run-dir {run_dir}"
            ),
        )
    };
    // A restart of the first process does not count as a second process.
    drop(edge("run", &four));
    let edges = [edge("run", &four), edge("copy", &six)];
    let line = service.line_with("its certificate is used by several processes at the same time");
    let line = line.lines().last().unwrap();
    assert!(line.contains("marline://edge/e1: ") && line.contains("marline fleet ca token --role edge"), "{line}");
    assert!(line.contains("127.0.0.1") && line.contains("::1"), "{line}");
    let fleet: Value =
        serde_json::from_str(&network.run_ok(&format!("fleet status --json --fleet {four} --certificate ann.pem")))
            .unwrap();
    let mut addresses: Vec<&str> = fleet["edges"][0]["duplicate_addresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ["127.0.0.1", "::1"]);
    let shown = network.run_ok(&format!("fleet status --fleet {four} --certificate ann.pem"));
    assert!(shown.contains("edge e1: several processes use its certificate at the same time, at "), "{shown}");
    for run_dir in ["run", "copy"] {
        let status =
            network.wait(&format!("edge status --json --run-dir {run_dir}"), |status| status["fleet"].is_object());
        assert!(status["fleet"]["error"].is_null(), "{status:#}");
    }
    drop(edges);
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs `marline fleet enroll` with `token` on its standard input.
fn enrol(network: &FleetNetwork, token: &str, out: &str, url: &str) -> Output {
    let mut command = network.command(false, MARLINE);
    command.args(["fleet", "enroll", "--fleet", url, "--out", out]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_enrolment_token_yields_certificates_once() {
    let dir = tempfile::tempdir().unwrap();
    let network = FleetNetwork { dir, address: "127.0.0.1", remote_prefix: &[], link_options: "" };
    network.run_ok("fleet ca init --ca-dir ca --name test");
    network.run_ok("fleet ca init --ca-dir other --name other");
    let service = network.start(false, "fleet run --ca-dir ca --listen 127.0.0.1:0");
    let url = format!("https://{}", service.address);
    let token = network.run_ok("fleet ca token --role edge --name cam-7 --ca-dir ca");
    let relay = network.run_ok("fleet ca token --role relay --name fra-1 --address 127.0.0.1 --ca-dir ca");
    let wrong = network.run_ok("fleet ca token --role edge --name cam-7 --ca-dir other");
    // Enrolment creates the directory `box` itself.
    for name in ["again", "wrong", "taken"] {
        std::fs::create_dir(network.dir.path().join(name)).unwrap();
    }
    let refused = |output: &Output, code: i32, text: &str| {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(text) && stderr.matches('\n').count() == 1, "{stderr}");
        assert!(!stderr.contains(token.trim()), "a token is a secret");
    };
    // An existing file is detected before the token is used up.
    std::fs::write(network.dir.path().join("taken/cam-7.pem"), "x").unwrap();
    refused(&enrol(&network, &token, "taken", &url), 1, "cam-7.pem");
    let joined = enrol(&network, &token, "box", &url);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let mode_of = |file: &str| std::fs::metadata(network.dir.path().join("box").join(file)).unwrap().mode() & 0o777;
    assert_eq!(
        [mode_of("cam-7.key"), mode_of("cam-7.pem"), mode_of("ca.pem"), mode_of("revoked.pem")],
        [0o600, 0o644, 0o644, 0o644]
    );
    refused(&enrol(&network, &token, "again", &url), 1, "already been used");
    assert_eq!(std::fs::read_dir(network.dir.path().join("again")).unwrap().count(), 0);
    // The token is never sent to a service of another authority.
    refused(&enrol(&network, &wrong, "wrong", &url), 69, "UnknownIssuer");
    refused(&enrol(&network, "no token", "wrong", &url), 64, "not a complete enrolment token");
    assert!(enrol(&network, &relay, "box", &url).status.success());
    // The certificates are usable.
    let output = network.marline("edge --relay 127.0.0.1:1 --certificate box/fra-1.pem --no-paths");
    assert!(String::from_utf8_lossy(&output.stderr).contains("but that of an edge is needed"));
    let relay = "relay --listen 127.0.0.1:0 --certificate box/fra-1.pem";
    let relay = network.start(false, relay);
    let edge = format!(
        "edge --portal-probe off --relay {} --certificate box/cam-7.pem --no-paths --listen 127.0.0.1:0 --run-dir run",
        relay.address
    );
    assert_eq!(network.start(false, &edge).stop("-TERM").0, Some(0));
}

#[test]
fn flows_that_may_not_go_directly_wait_for_capacity_and_the_status_shows_it() {
    let network = FleetNetwork {
        dir: tempfile::tempdir().unwrap(),
        address: "127.0.0.1",
        remote_prefix: &[],
        link_options: "",
    };
    network.run_ok("fleet ca init --ca-dir ca --name test");
    network.run_ok("fleet ca issue relay r1 --ca-dir ca --address 127.0.0.1 --out .");
    for member in ["edge e1", "edge e2", "operator ann"] {
        network.run_ok(&format!("fleet ca issue {member} --ca-dir ca --out ."));
    }
    let server = crate::members::server();
    // Half of the relay's capacity may be assigned. A relay filled exactly to that limit is still offered and has no capacity left.
    let service = network.start(false, "fleet run --ca-dir ca --listen 127.0.0.1:0 --burst-headroom 50%");
    let url = format!("https://{}", service.address);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = format!(
        "relay --listen {free} --certificate r1.pem --revoked ca/revoked.pem --run-dir relay --allow-net 127.0.0.1 \
         --allow-port {} --capacity 8Mbit/s --fleet {url} --announce {free}",
        server.port()
    );
    let _relay = network.start(false, &relay);
    network.wait(&format!("fleet status --json --fleet {url} --certificate ann.pem"), |status| {
        status["relays"].as_array().is_some_and(|relays| relays.len() == 1)
    });
    let edge = |name: &str, wanted: &str| {
        let args = format!(
            "edge --portal-probe off --fleet {url} --certificate {name}.pem --listen 127.0.0.1:0 --run-dir {name} --state-file {name}.json \
             --no-paths --no-direct --spare-connections 0 --origin {server} --target-rate {wanted}"
        );
        network.start(false, &args)
    };
    let status = |name: &str, good: &dyn Fn(&Value) -> bool| {
        network.wait(&format!("edge status --json --run-dir {name}"), |status| good(&status["fleet"]))
    };
    let first = edge("e1", "4Mbit/s");
    status("e1", &|fleet| fleet["assignment"]["relay"] == "r1");
    check_echo(&mut tunnel(first.address, server));

    // The second edge knows and reaches the relay, but has to wait.
    let mut second = edge("e2", "4Mbit/s");
    let log = second.line_with("(no capacity); new flows wait until a relay has capacity");
    assert!(log.contains("--direct sends them without a relay"), "{log}");
    let now = status("e2", &|fleet| fleet["waiting"] == true);
    assert_eq!(
        (&now["fleet"]["reason"], &now["fleet"]["assignment"]),
        (&"no_capacity".into(), &Value::Null),
        "{now:#}"
    );
    let text = network.run_ok("edge status --run-dir e2");
    assert!(text.contains("wait"), "{text}");
    let address = second.address;
    let (answered, answer) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let (status, program) = crate::members::tunnel(address, server);
        let _ = answered.send(status);
        program
    });
    let early = answer.recv_timeout(Duration::from_secs(2));
    assert!(early.is_err(), "answered while there is no capacity: {early:?}");

    // Capacity becomes free, and the waiting flow is carried.
    assert_eq!(first.stop("-TERM").0, Some(0));
    second.line_with("r1");
    let status_line = answer.recv_timeout(TIMEOUT).unwrap();
    let mut waited = waiting.join().unwrap();
    // On a very busy machine the flow may time out before that. Then the next flow is carried.
    let is_late = status_line != ESTABLISHED;
    if is_late {
        assert!(status_line.contains(" 503 "), "{status_line}");
        let (status, program) = crate::members::tunnel(address, server);
        assert_eq!(status, ESTABLISHED);
        waited = program;
    }
    check_echo(&mut waited);
    let now = status("e2", &|fleet| fleet["assignment"]["relay"] == "r1");
    assert_eq!(now["fleet"]["waiting"], false);
    let failed = u64::from(is_late);
    assert_eq!((&now["flows"]["direct"], &now["flows"]["failed"]), (&0.into(), &failed.into()), "{now:#}");
    assert_eq!(second.stop("-TERM").0, Some(0));
}
