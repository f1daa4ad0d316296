//! `marline relay` as a process: its control commands, a second relay of the same name, few file descriptors, and a crash under load.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::members::{ESTABLISHED, MARLINE, Running, check_echo, marline, members, server, tunnel};

/// Starts a relay that may connect to `server`; `before` are shell commands to run first.
fn relay(dir: &Path, before: &str, listen: &str, server: SocketAddr, extra_args: &str) -> Running {
    let port = server.port();
    let args = format!(
        "{before} exec {MARLINE} relay --listen {listen} --certificate r1.pem --revoked ca/revoked.pem --run-dir {}/run \
         --allow-net 127.0.0.1 --allow-port {port} {extra_args}",
        dir.display()
    );
    Running::of(Command::new("sh").current_dir(dir).args(["-c", &args]))
}

fn edge(dir: &Path, relay: SocketAddr) -> Running {
    let args = format!(
        "edge --portal-probe off --no-paths --listen 127.0.0.1:0 --relay {relay} --certificate e1.pem --no-direct --spare-connections 1"
    );
    Running::start(dir, &args)
}

/// Runs `marline relay` with the subcommand and options in `args`; returns its exit code and output.
fn control(dir: &Path, args: &str) -> (Option<i32>, String) {
    let run_dir = dir.join("run");
    let out = marline(dir, &format!("relay {args} --run-dir {}", run_dir.display()));
    (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
}

#[test]
fn the_owner_queries_drains_and_stops_a_relay() {
    let (dir, server) = (members(), server());
    let (code, output) = control(dir.path(), "status");
    assert!(
        code == Some(1) && output.contains("no marline relay daemon runs in this network namespace"),
        "{output}"
    );
    let mut relay = relay(dir.path(), "", "127.0.0.1:0", server, "--capacity 100Mbit/s");
    let edge = edge(dir.path(), relay.address);
    let (_, mut old_tunnel) = tunnel(edge.address, server);
    check_echo(&mut old_tunnel).unwrap();
    let (code, output) = control(dir.path(), "status");
    assert!(code == Some(0) && output.contains("relay r1: accepts new tunnels; 1 are open"), "{output}");
    let (_, output) = control(dir.path(), "status --json");
    let status: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(status["pid"], relay.child.id());
    assert_eq!(status["capacity_bps"], 100_000_000);
    assert_eq!(
        (&status["tunnels"], &status["draining"], &status["reserved_bps"]),
        (&1.into(), &false.into(), &1_000_000.into())
    );
    assert_eq!(status["edges"][0]["name"], "e1");
    // Only the owner may use the control socket.
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(dir.path().join("run/relay-r1.sock")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        control(dir.path(), "drain --name r1"),
        (Some(0), "relay r1: draining, accepts no new tunnels; 1 are open\n".to_owned())
    );
    assert!(tunnel(edge.address, server).0.starts_with("HTTP/1.1 503 "));
    check_echo(&mut old_tunnel).unwrap();
    assert_eq!(
        control(dir.path(), "drain --undo"),
        (Some(0), "relay r1: accepts new tunnels; 1 are open\n".to_owned())
    );
    // An edge that was refused returns after a while.
    let began = Instant::now();
    while tunnel(edge.address, server).0 != ESTABLISHED {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(200));
    }
    let (code, output) = control(dir.path(), "status --name r2");
    assert!(
        code == Some(1) && output.contains("no marline relay daemon runs in this network namespace"),
        "{output}"
    );
    assert_eq!(control(dir.path(), "stop").0, Some(0));
    let (code, output) = control(dir.path(), "drain --undo");
    assert!(code == Some(1) && output.contains("cannot be undone"), "{output}");
    check_echo(&mut old_tunnel).unwrap();
    drop(old_tunnel);
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
    assert!(!dir.path().join("run/relay-r1.sock").exists());
}

#[test]
fn a_second_relay_of_the_same_name_works_without_control_socket_and_stop_now_ends_at_once() {
    let (dir, server) = (members(), server());
    let mut first = relay(dir.path(), "", "127.0.0.1:0", server, "");
    let line = first.line();
    let began = Instant::now();
    while control(dir.path(), "status").0 != Some(0) {
        assert!(began.elapsed() < Duration::from_secs(60), "the first relay does not answer: {line}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut second = relay(dir.path(), "", "127.0.0.1:0", server, "");
    let log: Vec<String> = (0..3)
        .map_while(|_| Some(second.line()).filter(|line| !line.contains("cannot create the control socket")))
        .collect();
    assert!(log.len() < 3, "{log:?} {line}");
    let edge = edge(dir.path(), first.address);
    let (_, mut old_tunnel) = tunnel(edge.address, server);
    assert_eq!(control(dir.path(), "stop --now").0, Some(0));
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    assert!(check_echo(&mut old_tunnel).is_err());
    assert!(second.child.try_wait().unwrap().is_none());
}

#[test]
fn few_file_descriptors_are_reported_and_idle_connections_do_not_exhaust_them() {
    let (dir, server) = (members(), server());
    let mut relay = relay(dir.path(), "ulimit -n 256;", "127.0.0.1:0", server, "");
    let log = relay.line_with("open files");
    assert!(log.contains("limit of 256 open files: "), "{log}");
    // More connections than the relay has file descriptors.
    let silent: Vec<TcpStream> = (0..400).filter_map(|_| TcpStream::connect(relay.address).ok()).collect();
    let edge = edge(dir.path(), relay.address);
    let (status, mut program) = tunnel(edge.address, server);
    assert_eq!(status, ESTABLISHED);
    check_echo(&mut program).unwrap();
    // The revocation list is still read: tunnels of a revoked edge are closed.
    let revoked = marline(dir.path(), "fleet ca revoke --ca-dir ca --role edge e1");
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    assert!(program.read_exact(&mut [0]).is_err());
    drop(silent);
}

#[test]
fn a_relay_killed_and_restarted_under_load_carries_new_flows() {
    let (dir, server) = (members(), server());
    let mut first = relay(dir.path(), "", "127.0.0.1:0", server, "");
    let (edge, at) = (edge(dir.path(), first.address), first.address.to_string());
    let mut flows: Vec<TcpStream> = (0..50).map(|_| tunnel(edge.address, server).1).collect();
    flows.iter_mut().for_each(|flow| check_echo(flow).unwrap());
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // Every flow fails: a truncated stream never looks complete, and no flow hangs.
    for flow in &mut flows {
        assert!(check_echo(flow).is_err());
    }
    let second = relay(dir.path(), "", &at, server, "");
    let began = Instant::now();
    let mut program = loop {
        let (status, program) = tunnel(edge.address, server);
        if status == ESTABLISHED {
            break program;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{status}");
        std::thread::sleep(Duration::from_millis(200));
    };
    check_echo(&mut program).unwrap();
    assert_eq!(second.address, first.address);
    // The new relay replaces the control socket of the killed one.
    assert_eq!(control(dir.path(), "status").0, Some(0));
}
