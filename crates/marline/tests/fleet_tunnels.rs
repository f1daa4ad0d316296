//! `marline relay` and `marline edge` as processes: a program's bytes over both, and how they end.
#![cfg(feature = "fleet")]
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

fn marline(dir: &Path, words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marline")).current_dir(dir).args(words.split(' ')).output().unwrap()
}

/// An authority, a relay's files and an edge's, all in one directory.
fn members() -> TempDir {
    let dir = TempDir::new().unwrap();
    for words in [
        "fleet ca init --dir ca --name test",
        "fleet ca issue relay r1 --dir ca --address 127.0.0.1 --out .",
        "fleet ca issue edge e1 --dir ca --out .",
    ] {
        let made = marline(dir.path(), words);
        assert!(made.status.success(), "{words}: {}", String::from_utf8_lossy(&made.stderr));
    }
    dir
}

/// A process that says where it listens.
struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
    address: SocketAddr,
}

impl Running {
    fn start(dir: &Path, words: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
        let mut child = command.current_dir(dir).args(words.split(' ')).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address = line.split_once("listens on ").unwrap_or_else(|| panic!("{line}")).1;
        let address = address.split([' ', ',', '\n']).next().unwrap().parse().unwrap();
        Self { child, lines, address }
    }

    /// Its exit code and what it has said, after this signal.
    fn stop(mut self, signal: &str) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        let mut said = String::new();
        self.lines.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that says back what it hears, for one connection after another.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &socket, &mut &socket);
                let _ = socket.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    address
}

fn relay(dir: &Path, server: SocketAddr) -> Running {
    let port = server.port();
    let words = format!(
        "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --run-dir run --allow-net 127.0.0.1 --allow-port {port} --threads 2"
    );
    Running::start(dir, &words)
}

fn edge(dir: &Path, relay: SocketAddr) -> Running {
    let words = format!(
        "edge --no-paths --run-dir run --listen 127.0.0.1:0 --relay {relay} --certificate e1.pem --no-direct"
    );
    Running::start(dir, &words)
}

/// A tunnel by CONNECT, and the status line of its answer.
fn tunnel(edge: SocketAddr, server: SocketAddr) -> (String, TcpStream) {
    let mut program = TcpStream::connect(edge).unwrap();
    program.write_all(format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        program.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    (head.lines().next().unwrap().to_owned(), program)
}

#[test]
fn a_programs_bytes_go_through_edge_and_relay() {
    let (dir, server) = (members(), echo());
    let relay = relay(dir.path(), server);
    let edge = edge(dir.path(), relay.address);
    let (status, mut program) = tunnel(edge.address, server);
    assert_eq!(status, "HTTP/1.1 200 Connection established");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
    let (mut writer, copy) = (program.try_clone().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    program.read_to_end(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(heard == sent);
    let (code, said) = edge.stop("-TERM");
    assert_eq!(code, Some(0));
    assert!(said.contains("new flows go through 127.0.0.1"), "{said}");
    assert_eq!(relay.stop("-TERM").0, Some(0));
}

#[test]
fn a_relay_ends_when_its_last_tunnel_has() {
    let (dir, server) = (members(), echo());
    let relay = relay(dir.path(), server);
    let edge = edge(dir.path(), relay.address);
    let (_, mut old) = tunnel(edge.address, server);
    let id = relay.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    // It drains from here on, and says so.
    let mut relay = relay;
    let mut line = String::new();
    while !line.contains("draining: ") && relay.lines.read_line(&mut line).unwrap() > 0 {}
    assert!(line.contains("draining: 1 tunnels are open"), "{line}");
    let (status, _) = tunnel(edge.address, server);
    assert!(status.starts_with("HTTP/1.1 503 "), "{status}");
    old.write_all(b"still").unwrap();
    old.shutdown(std::net::Shutdown::Write).unwrap();
    let mut heard = String::new();
    old.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "still");
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_is_wrong_is_said_in_one_line_before_anything_listens() {
    let dir = members();
    for (words, code, said) in [
        ("relay --certificate r1.pem", 64, "--listen"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem", 64, "revoked.pem: no such file"),
        ("relay --listen 127.0.0.1:0 --certificate e1.pem --revoked ca/revoked.pem", 64, "and not of a relay"),
        ("relay --listen 127.0.0.1:0 --certificate none.pem --revoked ca/revoked.pem", 64, "none.pem"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --allow-port 0", 64, "is no port"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --allow-net 10.0.0.0/33", 64, "is no network"),
        (
            "relay --listen 192.0.2.1:4443 --certificate r1.pem --revoked ca/revoked.pem",
            1,
            "listen on 192.0.2.1:4443",
        ),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --fleet https://127.0.0.1:1", 64, "--announce"),
        ("relay --listen 127.0.0.1:0 --certificate r1.pem --position 99,0", 64, "is no position"),
        ("edge --relay 127.0.0.1 --certificate r1.pem --no-paths", 64, "and not of an edge"),
        ("edge --relay 127.0.0.1:x --certificate e1.pem --no-paths", 64, "after the colon stands a port"),
        ("edge --certificate e1.pem", 64, "--relay"),
        ("edge --relay 127.0.0.1", 64, "--certificate"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --fleet ftp://x", 64, "--fleet: ftp://x"),
        (
            "edge --relay 127.0.0.1 --certificate e1.pem --minimise energy --profile latency",
            64,
            "cannot be used with",
        ),
        ("edge --relay 127.0.0.1 --certificate e1.pem --minimise money", 64, "latency, energy or metered-bytes"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --origin a:80", 64, "--fleet"),
        ("edge --relay 127.0.0.1 --certificate e1.pem --revoked none.pem", 64, "none.pem: no such file"),
        ("edge --relay none.invalid --certificate e1.pem --no-direct --no-paths", 69, "--relay none.invalid"),
        ("edge status --run-dir .", 1, "no `marline edge` runs here"),
    ] {
        let out = marline(dir.path(), words);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{words}: {text}");
        assert!(text.contains(said), "{words}: {text}");
    }
}
