//! `marline relay` and `marline edge` as processes: tunnels through both, their status, and how they end.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;

use crate::members::{ESTABLISHED, Running, marline, members, server, tunnel};

fn relay(dir: &Path, server: SocketAddr) -> Running {
    let port = server.port();
    let args = format!(
        "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --run-dir run --allow-net 127.0.0.1 --allow-port {port} --threads 2"
    );
    Running::start(dir, &args)
}

fn edge(dir: &Path, relay: SocketAddr) -> Running {
    let args = format!(
        "edge --portal-probe off --no-paths --run-dir run --listen 127.0.0.1:0 --relay {relay} --certificate e1.pem --no-direct"
    );
    Running::start(dir, &args)
}

#[test]
fn a_programs_bytes_pass_through_edge_and_relay() {
    let (dir, server) = (members(), server());
    let relay = relay(dir.path(), server);
    let edge = edge(dir.path(), relay.address);
    let (status, mut program) = tunnel(edge.address, server);
    assert_eq!(status, ESTABLISHED);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
    let (mut writer, copy) = (program.try_clone().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    program.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent);
    let (code, log) = edge.stop("-TERM");
    assert_eq!(code, Some(0));
    assert!(log.contains("new flows go through 127.0.0.1"), "{log}");
    assert_eq!(relay.stop("-TERM").0, Some(0));
}

#[test]
fn a_draining_relay_ends_with_its_last_tunnel() {
    let (dir, server) = (members(), server());
    let mut relay = relay(dir.path(), server);
    let edge = edge(dir.path(), relay.address);
    let (_, mut old_tunnel) = tunnel(edge.address, server);
    relay.signal("-TERM");
    // The relay drains from here on and logs that.
    relay.line_with("draining: 1 tunnels are open");
    let (status, _) = tunnel(edge.address, server);
    assert!(status.starts_with("HTTP/1.1 503 "), "{status}");
    old_tunnel.write_all(b"still").unwrap();
    old_tunnel.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = String::new();
    old_tunnel.read_to_string(&mut received).unwrap();
    assert_eq!(received, "still");
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
}

#[test]
fn status_counts_sent_and_received_bytes_of_relays_and_links() {
    let dir = members();
    // A server that answers one byte with 6 MB.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.read_exact(&mut [0]);
            let _ = socket.write_all(&vec![7; 6_000_000]);
        }
    });
    let (relay, status) = (relay(dir.path(), server), || {
        let out = marline(dir.path(), "edge status --run-dir run --json");
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    });
    let edge = edge(dir.path(), relay.address);
    let (_, mut program) = tunnel(edge.address, server);
    program.write_all(b"x").unwrap();
    let mut received = Vec::new();
    program.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 6_000_000);
    let text = String::from_utf8(marline(dir.path(), "edge status --run-dir run").stdout).unwrap();
    assert!(text.contains("received") && text.contains("6.0MB"), "{text}");
    let now = status();
    assert_eq!(
        (&now["relays"][0]["sent_bytes"], &now["relays"][0]["received_bytes"]),
        (&1.into(), &6_000_000.into())
    );
    assert_eq!(now["steering"], serde_json::json!({"active": false, "reason": "--no-paths"}));
    for link in now["links"].as_array().unwrap() {
        assert!(
            link["received_bytes"].is_u64() && link["sent_bytes"].is_u64() && link["down_bps"].is_u64(),
            "{now}"
        );
    }
    assert_eq!(edge.stop("-TERM").0, Some(0));
}

#[test]
fn an_unreachable_relay_is_reported_at_the_start_and_when_it_becomes_reachable() {
    let (dir, server) = (members(), server());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let good = relay(dir.path(), server);
    for relays in [format!("--relay {free}"), format!("--relay {} --relay localhost:{}", good.address, free.port())]
    {
        let args = format!(
            "edge --portal-probe off --no-paths --run-dir run2 --listen 127.0.0.1:0 {relays} --certificate e1.pem"
        );
        let mut edge = Running::start(dir.path(), &args);
        let log = edge.line_with("cannot be used: ");
        assert!(log.contains("refused") && log.contains("the edge keeps trying"), "{log}");
        let status = marline(dir.path(), "edge status --run-dir run2");
        assert!(String::from_utf8_lossy(&status.stdout).contains("cannot be used: "), "{status:?}");
        if !relays.contains("localhost") {
            let args = format!(
                "relay --listen {free} --certificate r1.pem --revoked ca/revoked.pem --run-dir run3 --allow-net 127.0.0.1"
            );
            let late = Running::start(dir.path(), &args);
            let log = edge.line_with("can be used again");
            // Attempts in between cause no further lines.
            assert!(!log.contains("cannot be used"), "{log}");
            drop(late);
        }
        assert_eq!(edge.stop("-TERM").0, Some(0));
    }
}

#[test]
fn the_state_of_relays_is_saved_without_a_service_if_a_state_file_is_named() {
    let (dir, server) = (members(), server());
    let relay = relay(dir.path(), server);
    let args = format!(
        "edge --portal-probe off --no-paths --run-dir run2 --listen 127.0.0.1:0 --relay {} --certificate e1.pem --state-file kept/edge.json",
        relay.address
    );
    let edge = Running::start(dir.path(), &args);
    assert_eq!(tunnel(edge.address, server).0, ESTABLISHED);
    let (code, log) = edge.stop("-TERM");
    assert_eq!(code, Some(0), "{log}");
    let saved: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("kept/edge.json")).unwrap()).unwrap();
    let relay_address = relay.address.to_string();
    assert_eq!(saved["state"]["addresses"][&relay_address], serde_json::json!([relay_address]), "{saved}");
    assert_eq!(tunnel(Running::start(dir.path(), &args).address, server).0, ESTABLISHED);
}

#[test]
fn the_relays_audit_log_has_edge_target_verdict_and_bytes_of_each_flow() {
    let (dir, server) = (members(), server());
    let dir = dir.path();
    let args = format!(
        "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --run-dir run --allow-net 127.0.0.1 --allow-port {} \
         --allow-port 1 --audit-log audit.ndjson",
        server.port()
    );
    let relay = Running::start(dir, &args);
    let edge = edge(dir, relay.address);
    let request = |target: &str| {
        let mut program = std::net::TcpStream::connect(edge.address).unwrap();
        program.write_all(format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
        let mut head = [0; 12];
        program.read_exact(&mut head).unwrap();
        (String::from_utf8_lossy(&head[9..]).into_owned(), program)
    };
    let (status, mut program) = request(&server.to_string());
    assert_eq!(status, "200");
    program.write_all(b"hello").unwrap();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    program.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(request("127.0.0.1:22").0, "403");
    assert_eq!(request(&format!("10.1.2.3:{}", server.port())).0, "403");
    assert_eq!(request("127.0.0.1:1").0, "502");
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let until = |name: &str, count: usize| {
        let begun = std::time::Instant::now();
        while lines(name).len() < count {
            assert!(begun.elapsed() < crate::members::TIMEOUT, "{name}: {:?}", lines(name));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        lines(name)
    };
    let all = until("audit.ndjson", 4);
    let record_of =
        |target: &str| all.iter().find(|line| line["target"] == target).unwrap_or_else(|| panic!("{all:?}"));
    let carried = record_of(&server.to_string());
    assert_eq!((&carried["edge"], &carried["verdict"]), (&"e1".into(), &"allowed".into()));
    assert_eq!((&carried["up_bytes"], &carried["down_bytes"]), (&5.into(), &5.into()));
    assert_eq!(carried["address"], server.to_string());
    assert!(
        carried["time"].is_string() && carried["duration_ms"].is_u64() && carried["rule"].is_null(),
        "{carried}"
    );
    let port = record_of("127.0.0.1:22");
    assert_eq!(
        (&port["verdict"], &port["rule"], &port["address"]),
        (&"refused".into(), &"allow-port".into(), &serde_json::Value::Null)
    );
    let private = record_of(&format!("10.1.2.3:{}", server.port()));
    assert_eq!((&private["verdict"], &private["rule"]), (&"refused".into(), &"allow-net".into()));
    assert_eq!(private["address"], format!("10.1.2.3:{}", server.port()));
    let closed = record_of("127.0.0.1:1");
    assert_eq!((&closed["verdict"], &closed["rule"]), (&"failed".into(), &"connection_refused".into()));
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(std::fs::metadata(dir.join("audit.ndjson")).unwrap().mode() & 0o777, 0o600);
    // Rotation as with logrotate.
    std::fs::rename(dir.join("audit.ndjson"), dir.join("audit.1")).unwrap();
    relay.signal("-HUP");
    wait_until_exists(&dir.join("audit.ndjson"));
    assert_eq!(request("127.0.0.1:22").0, "403");
    assert_eq!((until("audit.ndjson", 1).len(), lines("audit.1").len()), (1, 4));
    drop(edge);
    assert_eq!(relay.stop("-TERM").0, Some(0));
}

fn wait_until_exists(path: &Path) {
    let begun = std::time::Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < crate::members::TIMEOUT, "{}", path.display());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn keys_that_others_may_read_are_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = members();
    let dir = dir.path();
    for (key, args) in [
        ("r1.key", "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem"),
        (
            "e1.key",
            "edge --portal-probe off --no-paths --listen 127.0.0.1:0 --relay 127.0.0.1:1 --certificate e1.pem",
        ),
    ] {
        std::fs::set_permissions(dir.join(key), std::fs::Permissions::from_mode(0o644)).unwrap();
        let out = marline(dir, args);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(64), "{stderr}");
        assert!(
            stderr.contains(&format!("{key}: users other than its owner may read it (mode 0644): chmod 600")),
            "{stderr}"
        );
    }
}

#[test]
fn configuration_errors_are_one_line_before_anything_listens() {
    let dir = members();
    for (args, code, expected) in [
        ("relay --certificate r1.pem", 64, "--listen"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --revoked none.pem", 64, "none.pem: no such file"),
        (
            "relay --listen 127.0.0.1:0 --certificate e1.pem --revoked ca/revoked.pem",
            64,
            "but that of a relay is needed",
        ),
        ("relay --listen 127.0.0.1:0 --certificate none.pem --revoked ca/revoked.pem", 64, "none.pem"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --allow-port 0", 64, "is not a port"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --allow-net 10.0.0.0/33", 64, "is not an address prefix"),
        (
            "relay --listen 192.0.2.1:4443 --certificate r1.pem --revoked ca/revoked.pem",
            1,
            "listen on 192.0.2.1:4443",
        ),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --fleet https://127.0.0.1:1", 64, "--announce"),
        (
            "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --fleet https://127.0.0.1:1 --announce a.example:1 --capacity 1Mbit/s",
            64,
            "--announce a.example:1: the certificate of marline://relay/r1 is for other names and addresses",
        ),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --position 99,0", 64, "is not a position"),
        ("edge --relay 127.0.0.1 --certificate r1.pem --no-paths", 64, "but that of an edge is needed"),
        ("edge --relay 127.0.0.1:x --certificate e1.pem --no-paths", 64, "the text after the colon is not a port"),
        ("edge --certificate e1.pem", 64, "--relay"),
        ("edge --relay 127.0.0.1", 64, "--certificate"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --fleet ftp://x", 64, "--fleet: ftp://x"),
        (
            "edge --relay 127.0.0.1 --certificate e1.pem --goal energy --goal latency",
            64,
            "cannot be used multiple times",
        ),
        ("edge --relay 127.0.0.1 --certificate e1.pem --goal fast", 64, "speed, latency, energy or cost"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --origin a:80", 64, "--fleet"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --revoked none.pem", 64, "none.pem: no such file"),
        (
            "edge --relay 127.0.0.1 --certificate none.pem",
            64,
            "none.pem: no such file; create it with `marline fleet enroll` or",
        ),
        ("edge --relay 127.0.0.1 --certificate e1.pem --key none.key", 64, "none.key: no such file; set the key"),
        (
            "edge --relay 127.0.0.1 --certificate e1.pem --fleet-ca none.pem",
            64,
            "certificate of the authority with --fleet-ca",
        ),
        ("edge status --run-dir .", 1, "no marline edge daemon runs in this network namespace"),
    ] {
        let out = marline(dir.path(), args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args}: {text}");
        assert!(text.contains(expected), "{args}: {text}");
    }
}
