//! Reasons why an edge cannot use a relay: each fault is named in the log, in `marline edge status` and in `marline edge status --json`.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use marline_fleet::ca::{Authority, CertTemplate, MemberFiles, UtcSeconds};
use marline_fleet::identity::{Identity, Role};
use serde_json::Value;
use tempfile::TempDir;

use crate::members::{ESTABLISHED, MARLINE, Running, TIMEOUT, marline, members, server, tunnel};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A directory with the authorities `ca` and `ca-2` and certificates of their members, and an echo server.
struct Fixture {
    dir: TempDir,
    server: SocketAddr,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { dir: members(), server: server() };
        fixture.run_ok("fleet ca init --ca-dir ca-2 --name other");
        fixture
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn run_ok(&self, args: &str) {
        let out = marline(self.path(), args);
        assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// Writes the certificate and key of a member of `ca`, issued at `made` and valid for `life`.
    fn member(&self, identity: &str, address: &str, made: UtcSeconds, life: Duration) {
        let authority = Authority::open(&self.path().join("ca")).unwrap();
        let identity: Identity = identity.parse().unwrap();
        let addresses = if identity.role == Role::Relay { vec![address.parse().unwrap()] } else { vec![] };
        let grant = CertTemplate::new(identity.clone(), addresses, life).unwrap();
        let (chain, key) = authority.issue_with_key(&grant, made).unwrap();
        MemberFiles::of(self.path(), &identity.name).unwrap().write(&chain, Some(&key)).unwrap();
    }

    /// Starts a relay of `ca` that may connect to the echo server only. `extra_args` begins with a space.
    fn relay(&self, name: &str, extra_args: &str) -> Running {
        let port = self.server.port();
        Running::start(
            self.path(),
            &format!(
                "relay --listen 127.0.0.1:0 --certificate {name}.pem --revoked ca/revoked.pem --run-dir run-{name} --allow-net 127.0.0.1 \
                 --allow-port {port}{extra_args}"
            ),
        )
    }

    /// Arguments of an edge whose only relay is `relay` and that sends no flow directly; `run` is its run directory.
    fn edge_args(&self, run: &str, relay: &str, extra_args: &str) -> String {
        let certificate = if extra_args.contains("--certificate") { "" } else { " --certificate e1.pem" };
        format!(
            "edge --portal-probe off --no-paths --no-direct --spare-connections 0 --listen 127.0.0.1:0 --run-dir {run} --relay {relay}{certificate}{extra_args}"
        )
    }

    /// Expects the reason and the remedy of an edge that cannot use its only relay in the log, in the status and in its JSON form.
    fn expect(&self, edge: &mut Running, run: &str, reason: &str, remedy: &str) {
        let log = edge.line_with("cannot be used: ");
        let line = log.lines().last().unwrap();
        assert!(line.contains(remedy), "{reason}: {line}");
        let begun = Instant::now();
        let status = loop {
            let out = marline(self.path(), &format!("edge status --json --run-dir {run}"));
            let status: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            if status["relays"][0]["reason"].is_string() || begun.elapsed() > TIMEOUT {
                break status;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let row = &status["relays"][0];
        assert_eq!(row["reason"], reason, "{status:#}");
        assert!(row["error"].is_string() && row["remedy"].as_str().unwrap().contains(remedy), "{row:#}");
        let shown = marline(self.path(), &format!("edge status --run-dir {run}"));
        let shown = String::from_utf8(shown.stdout).unwrap();
        let relay =
            shown.lines().find(|line| line.contains("cannot be used: ")).unwrap_or_else(|| panic!("{shown}"));
        assert!(relay.contains(remedy), "{relay}");
    }

    /// Starts an edge with this relay and expects the reason and the remedy.
    fn fails(&self, relay: &str, extra_args: &str, reason: &str, remedy: &str) {
        let run = format!("run-{}", relay.replace(['.', ':', '[', ']'], "-"));
        let run = format!("{run}-{reason}");
        let mut edge = Running::start(self.path(), &self.edge_args(&run, relay, extra_args));
        self.expect(&mut edge, &run, reason, remedy);
    }
}

#[test]
fn invalid_certificates_of_a_relay_have_their_reasons() {
    let fixture = Fixture::new();
    let now = UtcSeconds::now();
    fixture.member("marline://relay/early", "127.0.0.1", now.saturating_add(DAY), DAY);
    fixture.member("marline://relay/late", "127.0.0.1", now.saturating_sub(DAY), HOUR);
    fixture.member("marline://relay/gone", "127.0.0.1", now, DAY);
    fixture.member("marline://relay/elsewhere", "127.0.0.2", now, DAY);
    fixture.run_ok("fleet ca revoke --role relay gone --ca-dir ca");
    fixture.run_ok("fleet ca issue relay foreign --ca-dir ca-2 --address 127.0.0.1 --out two");
    for (name, reason, remedy) in [
        ("early", "not-valid-yet", "the clock of this machine may be behind"),
        ("late", "expired", "the relay has to renew its certificate"),
        ("gone", "revoked", "use another relay"),
        ("elsewhere", "wrong-name", "the relay's certificate is for other names"),
    ] {
        let relay = fixture.relay(name, "");
        fixture.fails(&relay.address.to_string(), " --revoked ca/revoked.pem", reason, remedy);
    }
    let args = "relay --listen 127.0.0.1:0 --certificate two/foreign.pem --run-dir run-foreign";
    let relay = Running::start(fixture.path(), args);
    fixture.fails(&relay.address.to_string(), "", "wrong-server", "captive portal");
}

#[test]
fn invalid_certificates_of_an_edge_have_their_reasons() {
    let fixture = Fixture::new();
    let now = UtcSeconds::now();
    fixture.member("marline://edge/early", "", now.saturating_add(DAY), DAY);
    fixture.member("marline://edge/late", "", now.saturating_sub(DAY), HOUR);
    fixture.member("marline://edge/gone", "", now, DAY);
    fixture.run_ok("fleet ca revoke --role edge gone --ca-dir ca");
    let relay = fixture.relay("r1", "");
    for (name, reason, remedy) in [
        ("early", "edge-certificate-dates", "both clocks"),
        ("late", "edge-certificate-dates", "both clocks"),
        ("gone", "edge-revoked", "enrol it again"),
    ] {
        let run = format!("run-edge-{name}");
        let args = fixture.edge_args(&run, &relay.address.to_string(), &format!(" --certificate {name}.pem"));
        let mut edge = Running::start(fixture.path(), &args);
        assert_ne!(tunnel(edge.address, fixture.server).0, ESTABLISHED);
        fixture.expect(&mut edge, &run, reason, remedy);
    }
    // The relay trusts only its own authority; the edge trusts both.
    fixture.run_ok("fleet ca issue relay foreign --ca-dir ca-2 --address 127.0.0.1 --out two");
    let args = "relay --listen 127.0.0.1:0 --certificate two/foreign.pem --run-dir run-foreign";
    let relay = Running::start(fixture.path(), args);
    let pem = |name: &str| std::fs::read_to_string(fixture.path().join(name)).unwrap();
    std::fs::write(fixture.path().join("both.pem"), pem("ca/ca.pem") + &pem("ca-2/ca.pem")).unwrap();
    let args = fixture.edge_args("run-both", &relay.address.to_string(), " --fleet-ca both.pem");
    let mut edge = Running::start(fixture.path(), &args);
    assert_ne!(tunnel(edge.address, fixture.server).0, ESTABLISHED);
    fixture.expect(
        &mut edge,
        "run-both",
        "edge-untrusted",
        "the relay does not trust the authority of this edge's certificate",
    );
}

/// The relay refuses the edge's certificate after the TLS handshake is complete for the edge, so a spare connection seems established.
#[test]
fn a_relay_that_refuses_an_edge_is_not_reported_as_usable_again() {
    let fixture = Fixture::new();
    fixture.run_ok("fleet ca revoke --role edge e1 --ca-dir ca");
    let relay = fixture.relay("r1", "");
    let args =
        fixture.edge_args("run-refused", &relay.address.to_string(), "").replace(" --spare-connections 0", "");
    let mut edge = Running::start(fixture.path(), &args.replace(" --no-direct", ""));
    assert_eq!(tunnel(edge.address, fixture.server).0, ESTABLISHED);
    fixture.expect(&mut edge, "run-refused", "edge-revoked", "enrol it again");
    for _ in 0..20 {
        // This flow goes directly.
        assert_eq!(tunnel(edge.address, fixture.server).0, ESTABLISHED);
        std::thread::sleep(Duration::from_millis(100));
        let out = marline(fixture.path(), "edge status --json --run-dir run-refused");
        let status: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(status["relays"][0]["reason"], "edge-revoked", "{status:#}");
    }
    let (_, log) = edge.stop("-TERM");
    assert!(!log.contains("can be used again"), "{log}");
}

#[test]
fn full_and_draining_relays_have_their_reasons() {
    let fixture = Fixture::new();
    fixture.run_ok("fleet ca issue edge e2 --ca-dir ca --out .");
    fixture.run_ok("fleet ca issue relay r2 --ca-dir ca --address 127.0.0.1 --out .");
    fixture.run_ok("fleet ca issue relay r3 --ca-dir ca --address 127.0.0.1 --out .");
    let few = fixture.relay("r1", " --max-tunnels 1");
    let reserved = fixture.relay("r2", " --capacity 1500kbit/s --reserve-per-edge 1Mbit/s");
    let drains = fixture.relay("r3", "");
    fixture.run_ok("relay drain --name r3 --run-dir run-r3");
    let mut flows = Vec::new();
    for (relay, reason, remedy) in [
        (&few, "full", "--max-tunnels"),
        (&reserved, "full", "raise the limits"),
        (&drains, "draining", "drain --undo"),
    ] {
        let (at, run) = (relay.address.to_string(), format!("run-{}", relay.address.port()));
        if reason == "full" {
            let args = fixture.edge_args(&format!("{run}-other"), &at, " --certificate e2.pem");
            let other = Running::start(fixture.path(), &args);
            let (status, flow) = tunnel(other.address, fixture.server);
            assert_eq!(status, ESTABLISHED);
            flows.push((other, flow));
        }
        let mut edge = Running::start(fixture.path(), &fixture.edge_args(&run, &at, ""));
        assert!(tunnel(edge.address, fixture.server).0.starts_with("HTTP/1.1 503 "));
        fixture.expect(&mut edge, &run, reason, remedy);
    }
}

#[test]
fn addresses_without_a_relay_have_their_reasons() {
    let fixture = Fixture::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fixture.fails(&closed.to_string(), "", "refused", "no process listens on this port: start the relay");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    fixture.fails(&silent.local_addr().unwrap().to_string(), "", "silent", "the relay does not respond");
    for (answer, reason, remedy) in [
        (&b"HTTP/1.1 302 Found\r\n\r\n"[..], "wrong-server", "captive portal"),
        (b"", "closed", "closed the connection"),
    ] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = other.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut socket in other.incoming().flatten() {
                let _ = std::io::Read::read(&mut socket, &mut [0; 4096]);
                let _ = socket.write_all(answer);
            }
        });
        fixture.fails(&at, "", reason, remedy);
    }
}

/// An edge starts although the name of its only relay cannot be resolved yet and no flow may go directly.
#[test]
fn an_edge_keeps_running_while_the_name_of_its_relay_cannot_be_resolved() {
    let fixture = Fixture::new();
    let begun = Instant::now();
    let args = fixture.edge_args("run-names", "relay.invalid:4443", "");
    let mut edge = Running::start(fixture.path(), &args);
    assert!(begun.elapsed() < Duration::from_secs(5), "the edge has to listen before names are resolved");
    fixture.expect(&mut edge, "run-names", "names", "the name cannot be resolved");
    assert!(edge.child.try_wait().unwrap().is_none());
}

#[test]
fn a_missing_route_has_its_reason() {
    let fixture = Fixture::new();
    let args = fixture.edge_args("run-unreachable", "192.0.2.1:4443", "");
    let script = format!("ip link set lo up && exec {MARLINE} {args}");
    if !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: network namespaces cannot be created here");
        return;
    }
    let mut command = Command::new("unshare");
    let mut edge = Running::of(command.args(["--net", "sh", "-c", &script]).current_dir(fixture.path()));
    fixture.expect(&mut edge, "run-unreachable", "unreachable", "no route to the address");
}

#[test]
fn log_and_status_say_whether_flows_without_a_relay_are_refused_or_go_directly() {
    let fixture = Fixture::new();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fleet = format!("--fleet https://{closed}");
    for (name, upstream_args) in [("relay", format!("--relay {closed}")), ("fleet", fleet)] {
        for (code, option, refusal) in
            [("refused", " --no-direct", "are refused (--no-direct)"), ("direct", "", "go directly, over one link")]
        {
            let run = format!("run-{name}-{code}");
            // Without a state file from an earlier run, the edge knows no relay.
            let args = format!(
                "edge --portal-probe off --no-paths --spare-connections 0 --listen 127.0.0.1:0 --run-dir {run} {upstream_args} --certificate e1.pem --state-file {run}.json{option}"
            );
            let mut edge = Running::start(fixture.path(), &args);
            if name == "fleet" {
                let log = edge.line_with("the fleet's service does not answer: ");
                let line = log.lines().last().unwrap();
                assert!(line.contains(&format!("; no relay is known: new flows {refusal}")), "{line}");
            }
            let is_carried = tunnel(edge.address, fixture.server).0 == ESTABLISHED;
            assert_eq!(is_carried, code == "direct");
            edge.line_with(&format!("new flows {refusal}: no relay is available"));
            let status = marline(fixture.path(), &format!("edge status --json --run-dir {run}"));
            let status: Value = serde_json::from_slice(&status.stdout).unwrap();
            assert_eq!(status["without_relay"], code, "{status:#}");
            let counts = if is_carried { [1, 0, 0] } else { [0, 1, 1] };
            let flows = &status["flows"];
            assert_eq!([&flows["direct"], &flows["failed"], &flows["refused"]], counts.map(Value::from).each_ref());
            let shown = marline(fixture.path(), &format!("edge status --run-dir {run}"));
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains(&format!("no relay is available: new flows {refusal}")), "{shown}");
        }
    }
}
