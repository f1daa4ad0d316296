//! `marline fleet run` and its clients as processes: files, exit codes, signals, crashes, shared stores.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use marline_fleet::ca::{Authority, CertTemplate, MemberFiles, UtcSeconds};
use marline_fleet::identity::{Identity, Role};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    /// Writes a file with mode 0600.
    fn secret(&self, name: &str, bytes: &[u8]) {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A home directory with an authority and the certificate of the operator `ann`.
    fn new() -> Self {
        let home = Self(TempDir::new().unwrap());
        for args in [
            &["fleet", "ca", "init", "--ca-dir", "ca"][..],
            &["fleet", "ca", "issue", "operator", "ann", "--ca-dir", "ca"],
        ] {
            assert!(home.command(args).output().unwrap().status.success());
        }
        home
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
        command.args(args).env_clear().env("HOME", self.0.path()).env("PATH", "/usr/bin:/bin");
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn refused(&self, args: &[&str], code: i32) -> String {
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{args:?}: not one line: {stderr}");
        stderr
    }
}

struct Service {
    child: Child,
    url: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Service {
    fn start(home: &Home) -> Self {
        Self::with(home, &[])
    }

    fn with(home: &Home, extra_args: &[&str]) -> Self {
        let args = ["fleet", "run", "--ca-dir", "ca", "--listen", "127.0.0.1:0"];
        Self::of(home.command(&[&args, extra_args].concat()))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("marline: marline://fleet/fleet listens on ");
        let address = address.unwrap_or_else(|| panic!("{line}"));
        Self { child, url: format!("https://{address}"), stderr }
    }

    fn query(&self, home: &Home, args: &[&str]) -> Output {
        let with = ["--fleet", &self.url, "--certificate", "ann.pem"];
        home.command(&[&["fleet"], args, &with].concat()).output().unwrap()
    }

    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).unwrap();
        (code, stderr)
    }
}

#[test]
fn a_service_is_queried_controlled_killed_and_restarted() {
    let home = Home::new();
    let service = Service::start(&home);
    let json = |output: Output| -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let empty = json(service.query(&home, &["status", "--json"]));
    assert_eq!((empty["relays"].as_array().unwrap().len(), empty["edges"].as_array().unwrap().len()), (0, 0));
    let table = service.query(&home, &["status"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.starts_with("fleet is the leader, epoch 1, store ca/fleet.redb\n\nrelay  state  free"),
        "{table}"
    );
    let drained = service.query(&home, &["drain", "fra-1", "--for", "1h"]);
    assert!(drained.status.success());
    assert!(String::from_utf8(drained.stderr).unwrap().contains("relay fra-1 is not connected"));
    // A second service with the same store or the same address does not start; and it leaves
    // nothing on the list of issued certificates.
    let issued = || std::fs::read_to_string(home.0.path().join("ca/issued.jsonl")).unwrap();
    let before = issued();
    let message = home.refused(&["fleet", "run", "--ca-dir", "ca", "--listen", "127.0.0.1:0"], 1);
    assert!(message.contains("fleet.redb"), "{message}");
    let at = service.url.trim_start_matches("https://");
    let message = home.refused(&["fleet", "run", "--ca-dir", "ca", "--listen", at, "--store", "other.redb"], 1);
    assert!(message.contains(&format!("listen on {at}: ")), "{message}");
    assert_eq!(issued(), before);
    service.end(Signal::KILL);
    let service = Service::start(&home);
    assert!(service.query(&home, &["drain", "fra-1", "--undo"]).status.success());
    let begun = Instant::now();
    let (code, stderr) = service.end(Signal::TERM);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(begun.elapsed() < Duration::from_secs(3));
}

/// Redis on the loopback interface with a password, and its port; killed when dropped.
struct Redis(Child, u16);

impl Redis {
    fn start(home: &Home) -> Self {
        Self::with(home, "--port", &[])
    }

    /// Redis with TLS only and the certificate `dir/redis.pem`.
    fn with_tls(home: &Home, dir: &str) -> Self {
        let (certificate, key) = (format!("{dir}/redis.pem"), format!("{dir}/redis.key"));
        let extra_args = ["--port", "0", "--tls-auth-clients", "no", "--tls-cert-file", &certificate];
        let extra_args = [&extra_args[..], &["--tls-key-file", &key, "--tls-ca-cert-file", &certificate]].concat();
        Self::with(home, "--tls-port", &extra_args)
    }

    fn with(home: &Home, listens: &str, extra_args: &[&str]) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args([listens, &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--requirepass", "hunter2"]);
        command.args(extra_args);
        command.current_dir(home.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("redis-server is needed: .ci/need redis-server:redis-server");
        Self(child, port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never {description}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn services_share_redis_and_one_takes_over_when_the_leader_is_killed() {
    let home = Home::new();
    let redis = Redis::start(&home);
    let store = format!("redis://127.0.0.1:{}", redis.1);
    home.secret("pw", b"hunter2\n");
    let start = |extra_args: &[&str]| {
        let args = ["--store", &store, "--store-password-file", "pw", "--region", "north"];
        Service::with(&home, &[&args, extra_args].concat())
    };
    let status = |service: &Service| -> Value {
        let output = service.query(&home, &["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let first = start(&[]);
    wait_until("the first service leads", || status(&first)["service"]["is_leader"] == true);
    let second = start(&[]);
    let matcher = first.url.trim_start_matches("https://").to_owned();
    wait_until("the second service knows the leader", || {
        status(&second)["service"]["leader_address"] == matcher.as_str()
    });
    let service = &status(&second)["service"];
    assert_eq!((service["region"].as_str(), service["store"].as_str()), (Some("north"), Some(store.as_str())));
    let shown = String::from_utf8(second.query(&home, &["status"]).stdout).unwrap();
    assert!(
        shown.starts_with(&format!("fleet responds, {matcher} is the leader, epoch 1, region north, ")),
        "{shown}"
    );
    assert!(second.query(&home, &["drain", "fra-1"]).status.success());
    first.end(Signal::KILL);
    wait_until("the second service leads", || status(&second)["service"]["epoch"] == 2);
    // A service that ends in order releases leadership at once, and no output contains the password.
    let third = start(&[]);
    wait_until("the third service knows the leader", || status(&third)["service"]["epoch"] == 2);
    let (code, stderr) = second.end(Signal::TERM);
    assert_eq!((code, stderr.contains("hunter")), (Some(0), false));
    wait_until("the third service leads", || status(&third)["service"]["is_leader"] == true);
    drop(redis);
    wait_until("the status shows that the store is gone", || status(&third)["service"]["error"].is_string());
    wait_until("no service leads", || !third.query(&home, &["status"]).status.success());
    let shown = String::from_utf8(third.query(&home, &["status"]).stdout).unwrap();
    assert!(shown.contains("the leader is unknown") && shown.contains(&format!("error: {store}")), "{shown}");
    let (code, stderr) = third.end(Signal::TERM);
    assert!(code == Some(0) && stderr.contains("the service continues") && !stderr.contains("hunter"), "{stderr}");
}

#[test]
fn redis_is_used_over_tls_and_only_with_the_right_authority() {
    let home = Home::new();
    for args in [
        &["fleet", "ca", "init", "--ca-dir", "other"][..],
        &[
            "fleet",
            "ca",
            "issue",
            "fleet",
            "redis",
            "--address",
            "127.0.0.1",
            "--ca-dir",
            "other",
            "--out",
            "other",
        ],
    ] {
        assert!(home.command(args).output().unwrap().status.success());
    }
    let redis = Redis::with_tls(&home, "other");
    let store = format!("rediss://127.0.0.1:{}", redis.1);
    home.secret("pw", b"hunter2\n");
    home.secret("wrong", b"hunter3\n");
    let start = |authority: &str, password: &str| {
        let args = ["--store", &store, "--store-password-file", password, "--store-ca-file", authority];
        Service::with(&home, &args)
    };
    let leads = |service: &Service| {
        let status: Value =
            serde_json::from_slice(&service.query(&home, &["status", "--json"]).stdout).unwrap_or_default();
        (status["service"]["is_leader"] == true, status["service"]["error"].as_str().map(str::to_owned))
    };
    let service = start("other/ca.pem", "pw");
    wait_until("the service leads", || leads(&service).0);
    assert!(service.query(&home, &["drain", "fra-1"]).status.success());
    let (code, stderr) = service.end(Signal::TERM);
    assert!(code == Some(0) && !stderr.contains("hunter"), "{stderr}");
    for (authority, password, why) in [("ca/ca.pem", "pw", "certificate"), ("other/ca.pem", "wrong", "Password")] {
        let service = start(authority, password);
        wait_until("the status shows the error of the store", || leads(&service).1.is_some());
        let (is_leader, trouble) = leads(&service);
        let shown = trouble.unwrap();
        assert!(!is_leader && shown.starts_with(&store) && shown.contains(why), "{shown}");
        let (code, stderr) = service.end(Signal::TERM);
        let store_errors: Vec<&str> = stderr.lines().filter(|line| line.contains(&store)).collect();
        assert!(code == Some(0) && store_errors.len() == 1 && store_errors[0].contains(why), "{stderr}");
        assert!(!stderr.contains("hunter") && !shown.contains("hunter"), "{stderr}");
    }
    // A store without TLS is refused as well if TLS was requested.
    let plain = Redis::start(&home);
    let plain_store = format!("rediss://127.0.0.1:{}", plain.1);
    let service = Service::with(
        &home,
        &["--store", &plain_store, "--store-ca-file", "other/ca.pem", "--store-password-file", "pw"],
    );
    wait_until("the status shows the error of the store", || leads(&service).1.is_some());
    assert!(!service.end(Signal::TERM).1.contains("hunter"));
}

/// Sets the file size limit of the service; none removes it.
fn limit_file_size(service: &Service, most: Option<u64>) {
    let (pid, was) = (Pid::from_child(&service.child), rustix::process::getrlimit(Resource::Fsize));
    rustix::process::prlimit(Some(pid), Resource::Fsize, Rlimit { current: most, maximum: was.maximum }).unwrap();
}

#[test]
fn a_full_disk_does_not_end_the_service_is_reported_once_and_may_recover() {
    let home = Home::new();
    // With SIGXFSZ ignored, the file size limit is an error as on a full disk.
    let args = ["fleet", "run", "--ca-dir", "ca", "--listen", "127.0.0.1:0"];
    let marline = home.command(&args);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(marline.get_program()).args(marline.get_args());
    command.env_clear().env("HOME", home.0.path()).current_dir(home.0.path()).stdin(Stdio::null());
    let service = Service::of(command);
    let token = |name: &str| {
        let args = ["fleet", "ca", "token", "--role", "edge", "--name", name, "--ca-dir", "ca"];
        let output = home.command(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        home.secret(name, &output.stdout);
    };
    let enrol = |name: &str| {
        let args = ["fleet", "enroll", "--fleet", &service.url, "--token-file", name, "--out", "."];
        home.command(&args).output().unwrap()
    };
    let drain = || {
        let output = service.query(&home, &["drain", "fra-1"]);
        assert!(output.status.success(), "the drain works in any case");
        String::from_utf8(output.stderr).unwrap().contains("the drain is lost when the service restarts")
    };
    token("cam-1");
    assert!(!drain());
    limit_file_size(&service, Some(0));
    for _ in 0..3 {
        assert!(drain(), "the response says that the drain is not saved");
        assert!(service.query(&home, &["status"]).status.success(), "the service continues to work");
    }
    let refused = enrol("cam-1");
    assert!(!refused.status.success() && !home.0.path().join("cam-1.pem").exists());
    limit_file_size(&service, None);
    assert!(!drain(), "the disk has free space again");
    let enrolled = enrol("cam-1");
    assert!(enrolled.status.success(), "{}", String::from_utf8_lossy(&enrolled.stderr));
    let (code, stderr) = service.end(Signal::TERM);
    let error_count = stderr.lines().filter(|line| line.contains("the service continues")).count();
    assert_eq!((code, error_count), (Some(0), 1), "{stderr}");
}

#[test]
fn only_operators_may_query_the_service() {
    let home = Home::new();
    let service = Service::start(&home);
    assert!(
        home.command(&["fleet", "ca", "issue", "edge", "cam-7", "--ca-dir", "ca"])
            .output()
            .unwrap()
            .status
            .success()
    );
    let message = home.refused(&["fleet", "status", "--fleet", &service.url, "--certificate", "cam-7.pem"], 64);
    assert!(
        message.contains("certificate of marline://edge/cam-7, but that of an operator is needed"),
        "{message}"
    );
    let url = service.url.clone();
    assert_eq!(service.end(Signal::INT).0, Some(0));
    let message = home.refused(&["fleet", "status", "--fleet", &url, "--certificate", "ann.pem"], 69);
    assert!(message.contains("refused"), "{message}");
}

#[test]
fn usage_errors_change_nothing() {
    let home = Home::new();
    let run = ["fleet", "run", "--ca-dir", "ca", "--listen"];
    home.secret("open", b"hunter2\n");
    std::fs::set_permissions(home.0.path().join("open"), std::fs::Permissions::from_mode(0o640)).unwrap();
    for (args, expected) in [
        (&["0.0.0.0:0"][..], "set the public address for the certificate with --address"),
        (
            &["127.0.0.1:0", "--store", "redis://a", "--store-password-file", "open"],
            "open: users other than its owner may read it (mode 0640): chmod 600",
        ),
        (&["127.0.0.1:0", "--burst-headroom", "100%"], "--burst-headroom 100%"),
        (&["127.0.0.1:0", "--batch-window", "5s"], "--batch-window"),
        (&["127.0.0.1:0", "--reallocation-interval", "1s"], "--reallocation-interval"),
        (&["127.0.0.1:0", "--certificate", "ann.pem"], "but that of a fleet service is needed"),
        (&["127.0.0.1:0", "--certificate", "absent.pem"], "absent.pem"),
        (&["127.0.0.1:0", "--store", "redis://:hunter2@a"], "--store-password-file"),
        (&["127.0.0.1:0", "--store", "redis://a", "--store-password-file", "absent"], "absent: "),
        (&["127.0.0.1:0", "--store", "redis://a", "--store-ca-file", "ca.pem"], "write rediss://"),
        (&["127.0.0.1:0", "--store", "x.redb", "--peer", "a:1"], "redis://HOST:PORT"),
    ] {
        let message = home.refused(&[&run, args].concat(), 64);
        assert!(message.contains(expected), "{args:?}: {message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    assert!(!home.0.path().join("ca/fleet.redb").exists());
    let refusal = |url| home.refused(&["fleet", "status", "--fleet", url, "--certificate", "ann.pem"], 64);
    assert!(refusal("http://a.example").contains("not a URL such as"));
    let login = refusal("https://ann:hunter2@a.example");
    assert!(login.contains("not a URL such as") && !login.contains("hunter2"), "{login}");
    assert!(
        home.refused(&["fleet", "run", "--ca-dir", "absent", "--listen", "127.0.0.1:0"], 1)
            .contains("no authority here")
    );
}

/// Writes the certificate and key of a member; the certificate is valid for a minute and was issued `age` ago.
fn issue_aged(home: &Home, identity: &str, age: Duration) {
    let authority = Authority::open(&home.0.path().join("ca")).unwrap();
    let identity: Identity = identity.parse().unwrap();
    let addresses = if identity.role == Role::Relay { vec!["127.0.0.1".parse().unwrap()] } else { vec![] };
    let grant = CertTemplate::new(identity.clone(), addresses, Duration::from_secs(60)).unwrap();
    let (chain, key) = authority.issue_with_key(&grant, UtcSeconds::now().saturating_sub(age)).unwrap();
    MemberFiles::of(home.0.path(), &identity.name).unwrap().write(&chain, Some(&key)).unwrap();
}

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn relays_and_edges_renew_their_certificates_and_operators_use_a_command() {
    let home = Home::new();
    let service = Service::start(&home);
    let file = |name: &str| std::fs::read(home.0.path().join(name)).unwrap();
    issue_aged(&home, "marline://operator/bob", Duration::from_secs(45));
    let renew = ["fleet", "renew", "--fleet", &service.url, "--certificate", "bob.pem"];
    let (before, key) = (file("bob.pem"), file("bob.key"));
    let output = home.command(&renew).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"bob.pem\n".to_vec()));
    assert!(file("bob.pem") != before && file("bob.key") == key);
    let status_args = ["fleet", "status", "--fleet", &service.url, "--certificate", "bob.pem", "--json"];
    assert!(home.command(&status_args).output().unwrap().status.success(), "the renewed certificate is accepted");
    let message = home.refused(&renew, 1);
    assert!(message.contains("marline://operator/bob: it is renewed from "), "{message}");

    // A relay and an edge whose certificates expire 15 s after their start.
    let age = Duration::from_secs(45);
    issue_aged(&home, "marline://relay/r1", age);
    issue_aged(&home, "marline://edge/e1", age);
    let begun = Instant::now();
    std::fs::copy(home.0.path().join("ca/revoked.pem"), home.0.path().join("revoked.pem")).unwrap();
    let run = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        let stderr = std::fs::File::create(home.0.path().join(format!("{}.said", args[0]))).unwrap();
        Running(home.command(&args).stdout(Stdio::null()).stderr(stderr).spawn().unwrap())
    };
    let fleet = service.url.clone();
    let first = [file("r1.pem"), file("e1.pem")];
    let _relay = run(&format!(
        "relay --listen 127.0.0.1:0 --certificate r1.pem --fleet {fleet} --announce 127.0.0.1:4443 --capacity 9Mbit/s --run-dir run"
    ));
    let _edge = run(&format!(
        "edge --portal-probe off --listen 127.0.0.1:0 --certificate e1.pem --fleet {fleet} --no-paths --state-file state.json --run-dir run"
    ));
    wait_until("both have another one", || file("r1.pem") != first[0] && file("e1.pem") != first[1]);
    // The first certificates have expired: later reports prove that the new ones are used.
    std::thread::sleep(Duration::from_secs(16).saturating_sub(begun.elapsed()));
    let over = Instant::now();
    wait_until("both have reported", || {
        std::thread::sleep(Duration::from_millis(500));
        let output = service.query(&home, &["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let age = |rows: &str| status[rows][0]["age_ms"].as_u64().map(Duration::from_millis);
        ["relays", "edges"].iter().all(|rows| age(rows).is_some_and(|age| age < over.elapsed()))
    });
    for log_name in ["relay.said", "edge.said"] {
        let log = String::from_utf8(file(log_name)).unwrap();
        assert!(log.contains("\nmarline: the certificate was renewed, until "), "{log}");
    }
    assert_eq!(service.end(Signal::TERM).0, Some(0));
    wait_until("the relay logs that the service does not respond", || {
        let log = String::from_utf8(file("relay.said")).unwrap();
        log.contains("; streams continue, and reservations stay in force\n")
    });
}
