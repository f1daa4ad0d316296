//! Measures two thousand edges with ten thousand flows (9,800 with a limit of 20,000 open files) at a relay process, and checks that no
//! flow fails.
//!
//! `cargo build --release -p marline && MARLINE=$PWD/target/release/marline cargo test -p marline-fleet --test tunnels -- --ignored --nocapture load`
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_fleet::ca::{Authority, UtcSeconds};
use marline_fleet::tls::{Credentials, client_config};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::*;

const EDGES: usize = 2000;
/// Concurrent handshakes of the test: real edges do not all connect at the same instant.
const MAX_HANDSHAKES: usize = 64;
/// The data that each flow sends repeatedly to a server that reads nothing.
static PAYLOAD: [u8; 65_536] = [1; 65_536];

struct RelayProcess {
    child: Child,
    address: SocketAddr,
}

impl RelayProcess {
    fn start(dir: &Path, port: u16, connections: usize) -> Self {
        let marline =
            std::env::var("MARLINE").expect("set MARLINE to the path of the program: see the top of this file");
        let marline = std::fs::canonicalize(&marline).unwrap_or_else(|error| panic!("{marline}: {error}"));
        let line = format!(
            "exec {} relay --listen 127.0.0.1:0 --certificate {} --revoked {} --run-dir {} --allow-net 127.0.0.1 --allow-port {port} --max-connections {connections}",
            marline.display(),
            dir.join("relay/r1.pem").display(),
            dir.join("ca/revoked.pem").display(),
            dir.join("run").display(),
        );
        let mut child = Command::new("sh").args(["-c", &line]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut message = String::new();
        lines.read_line(&mut message).unwrap();
        let address =
            message.split_once("listens on ").unwrap_or_else(|| panic!("{message}")).1.trim().parse().unwrap();
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| println!("relay: {line}")));
        Self { child, address }
    }

    /// Resident memory and CPU time of the process, and memory of all TCP sockets in this network namespace.
    fn resource_use(&self) -> ResourceUse {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap();
        let number = |text: &str, key: &str| {
            let remaining = text.split_once(key).unwrap_or_else(|| panic!("{key}: {text}")).1;
            remaining.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let stat = read("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let sockets = std::fs::read_to_string("/proc/net/sockstat").unwrap();
        let tcp = sockets.lines().find(|line| line.starts_with("TCP:")).unwrap();
        ResourceUse {
            resident: number(&read("status"), "VmRSS:") << 10,
            processor: ticks as f64 / 100.0,
            sockets: number(tcp, " mem ") * 4096,
        }
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct ResourceUse {
    resident: u64,
    processor: f64,
    sockets: u64,
}

impl ResourceUse {
    fn print(&self, when: &str, before: &Self) {
        println!(
            "{when}: relay {:.1} MiB resident ({:+.1}), kernel's TCP buffers {:.1} MiB, {:.2} s of CPU time",
            self.resident as f64 / f64::from(1 << 20),
            (self.resident as f64 - before.resident as f64) / f64::from(1 << 20),
            self.sockets as f64 / f64::from(1 << 20),
            self.processor - before.processor,
        );
    }
}

async fn open_flow(
    credentials: &Credentials,
    relay: SocketAddr,
    server: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = client_config(credentials, None, true).unwrap();
    let socket = TcpStream::connect(relay).await?;
    // Unsent data must wait at the relay rather than here.
    socket2::SockRef::from(&socket).set_send_buffer_size(32 << 10)?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut edge = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    edge.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\n").as_bytes()).await?;
    let head = read_response_head(&mut edge).await;
    if head.starts_with("HTTP/1.1 200 ") { Ok(edge) } else { Err(std::io::Error::other(head)) }
}

async fn check_echo(edge: &mut TlsStream<TcpStream>) -> std::io::Result<()> {
    let (sent, mut received) = ([7; 16_384], [0; 16_384]);
    edge.write_all(&sent).await?;
    edge.flush().await?;
    edge.read_exact(&mut received).await?;
    if received == sent { Ok(()) } else { Err(std::io::Error::other("the echoed bytes differ")) }
}

/// A server that echoes 16 KiB on each connection and then reads nothing more.
async fn reluctant_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = vec![0; 16_384];
                if socket.read_exact(&mut received).await.is_ok() && socket.write_all(&received).await.is_ok() {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    address
}

#[test]
#[ignore = "minutes, and 18,000 open files: cargo build -p marline; MARLINE=$PWD/target/debug/marline cargo test -p marline-fleet --test tunnels -- --ignored --nocapture load"]
fn load() {
    let descriptors = marline_net::rlimit::raise_nofile_limit();
    // Each flow has two sockets in this process and two in the relay.
    let flows_in_all = usize::try_from(descriptors).unwrap_or(usize::MAX).saturating_sub(400) / 2;
    let flows_in_all = flows_in_all.min(EDGES * 5);
    assert!(descriptors >= 18_000, "{descriptors} open files are too few (ulimit -Hn)");
    block_on(async {
        let dir = TempDir::new().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "load", UtcSeconds::now()).unwrap();
        let _ = issue_member(&authority, dir.path(), "marline://relay/r1", &["127.0.0.1"]);
        std::fs::rename(dir.path().join("r1-0"), dir.path().join("relay")).unwrap();
        let started_at = Instant::now();
        let edges: Vec<Arc<Credentials>> = (0..EDGES)
            .map(|n| Arc::new(issue_member(&authority, dir.path(), &format!("marline://edge/e{n}"), &[])))
            .collect();
        println!("{EDGES} certificates in {:.1} s", started_at.elapsed().as_secs_f64());
        let server = reluctant_server().await;
        let relay = RelayProcess::start(dir.path(), server.port(), flows_in_all + 40);
        let before = relay.resource_use();
        before.print("before", &before);

        let (started_at, permits) = (Instant::now(), Arc::new(Semaphore::new(MAX_HANDSHAKES)));
        let mut opening = tokio::task::JoinSet::new();
        for n in 0..flows_in_all {
            let (credentials, permits, to) = (Arc::clone(&edges[n % EDGES]), Arc::clone(&permits), relay.address);
            opening.spawn(async move {
                let _permit = permits.acquire_owned().await.unwrap();
                timeout(Duration::from_secs(60), open_flow(&credentials, to, server)).await.unwrap()
            });
        }
        let mut flows = Vec::new();
        while let Some(opened) = opening.join_next().await {
            flows.push(opened.unwrap().unwrap());
        }
        let opened = relay.resource_use();
        let rate = flows.len() as f64 / started_at.elapsed().as_secs_f64();
        println!("{} flows of {EDGES} edges, {rate:.0} per second", flows.len());
        opened.print("all open and idle", &before);

        let mut talking = tokio::task::JoinSet::new();
        for mut edge in flows {
            talking.spawn(async move {
                check_echo(&mut edge).await.unwrap();
                edge
            });
        }
        let flows = talking.join_all().await;
        relay.resource_use().print("each has sent and received 16 KiB", &before);

        let mut stuck = tokio::task::JoinSet::new();
        for mut edge in flows {
            stuck.spawn(async move {
                let sends = async { while edge.write_all(&PAYLOAD).await.is_ok() {} };
                assert!(timeout(Duration::from_secs(30), sends).await.is_err(), "the connection broke");
                edge
            });
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        let most = relay.resource_use();
        most.print("each sends, and the server reads nothing", &before);
        let bound = (40 << 20) + (64 << 10) * flows_in_all as u64;
        assert!(most.resident - before.resident <= bound, "more than docs/fleet-reference.md states: {bound}");
        let flows = stuck.join_all().await;
        relay.resource_use().print("ten seconds later", &before);
        assert_eq!(flows.len(), flows_in_all);
        drop(flows);
        tokio::time::sleep(Duration::from_secs(5)).await;
        relay.resource_use().print("all flows have ended", &before);
    });
}
