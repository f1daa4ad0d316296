//! An edge in front of relays over loopback: programs that use SOCKS5 and CONNECT, and relays that fail or drain.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marline_fleet::edge::{AdmissionConfig, ClientListener, Config, Edge, FlowStats, PortalProbe, RelayConfig};
use marline_fleet::relay::Limits;
use marline_fleet::tls::client_config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::fixture::*;

/// Starts an edge that knows these relays; returns it with the address at which programs connect.
pub(crate) async fn start_edge(
    fixture: &TestRelay,
    relays: &[SocketAddr],
    spare_connections: usize,
    allow_direct: bool,
) -> (Arc<Edge>, SocketAddr) {
    start_edge_with(fixture, relays, spare_connections, allow_direct, AdmissionConfig::default()).await
}

async fn start_edge_with(
    fixture: &TestRelay,
    relays: &[SocketAddr],
    spare_connections: usize,
    allow_direct: bool,
    admission: AdmissionConfig,
) -> (Arc<Edge>, SocketAddr) {
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        relays: relays.iter().enumerate().map(|(n, address)| relay_config(n, *address)).collect(),
        spare_connections,
        allow_direct,
        congestion: None,
        lan: false,
        admission,
        portal_probe: PortalProbe::OFF,
        local_domains: Vec::new(),
    };
    let tls = client_config(&fixture.edge_credentials("cam-1"), None, true).unwrap();
    let edge = Edge::new(config, Arc::new(tls));
    let listener = ClientListener::open(&edge).await.unwrap();
    let address = listener.addresses()[0];
    let (serving_edge, pool_edge) = (Arc::clone(&edge), Arc::clone(&edge));
    tokio::spawn(async move { listener.serve(&serving_edge).await });
    tokio::spawn(async move { pool_edge.run_relay_pool().await });
    (edge, address)
}

/// The configuration of a relay at this address, with the label r0, r1 and so on.
pub(crate) fn relay_config(n: usize, address: SocketAddr) -> RelayConfig {
    let endpoints = vec![address.to_string().parse().unwrap()];
    RelayConfig { label: format!("r{n}"), server_name: "127.0.0.1".try_into().unwrap(), endpoints, member: None }
}

/// The address of a port without a listener.
pub(crate) async fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Requests a flow by SOCKS5 without authentication; returns the reply code (RFC 1928 section 6: 0 succeeded, 1 general failure, 2 not
/// allowed, 4 host unreachable) and the connection.
pub(crate) async fn socks_connect(edge: SocketAddr, to: SocketAddr) -> (u8, TcpStream) {
    let mut program = TcpStream::connect(edge).await.unwrap();
    let SocketAddr::V4(v4) = to else { panic!("{to}") };
    let request = [&[5, 1, 0, 5, 1, 0, 1][..], &v4.ip().octets(), &to.port().to_be_bytes()].concat();
    program.write_all(&request).await.unwrap();
    let mut response = [0; 12];
    timeout(Duration::from_secs(10), program.read_exact(&mut response)).await.unwrap().unwrap();
    (response[3], program)
}

pub(crate) async fn check_echo(program: &mut TcpStream) {
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n.wrapping_mul(7919) >> 7) as u8).collect();
    let mut received = vec![0; sent.len()];
    let (mut from, mut to) = program.split();
    let (wrote, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut received));
    wrote.unwrap();
    read.unwrap();
    assert!(received == sent);
}

pub(crate) fn edge_stats(edge: &Edge) -> FlowStats {
    edge.state().borrow().clone()
}

#[test]
fn programs_reach_a_server_through_the_relay() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (edge, at) = start_edge(&fixture, &[fixture.address], 1, false).await;
        let (code, mut program) = socks_connect(at, server).await;
        assert_eq!(code, 0);
        check_echo(&mut program).await;
        let mut other = TcpStream::connect(at).await.unwrap();
        // Data that a program sends before the response is not lost.
        other.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nahead").as_bytes()).await.unwrap();
        // The head of the response has 39 bytes.
        let mut received = vec![0; 39 + 5];
        other.read_exact(&mut received).await.unwrap();
        assert_eq!(received, b"HTTP/1.1 200 Connection established\r\n\r\nahead");
        other.shutdown().await.unwrap();
        assert_eq!(other.read(&mut received).await.unwrap(), 0);
        assert_eq!(edge_stats(&edge).carried, BTreeMap::from([("r0".to_owned(), 2)]));
        assert!(fixture.relay.state().up_bytes >= 300_005);
    });
}

#[test]
fn a_flow_uses_another_relay_if_the_first_is_unreachable() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (edge, at) = start_edge(&fixture, &[unused_address().await, fixture.address], 0, false).await;
        let (code, mut program) = socks_connect(at, server).await;
        assert_eq!(code, 0);
        check_echo(&mut program).await;
        // The only other relay refuses new tunnels while it drains.
        fixture.relay.drain();
        assert_eq!(socks_connect(at, server).await.0, 1);
        check_echo(&mut program).await;
        let state = edge_stats(&edge);
        assert_eq!((state.carried, state.failed), (BTreeMap::from([("r1".to_owned(), 1)]), 1));
    });
}

#[test]
fn a_used_spare_connection_is_replaced() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (_, at) = start_edge(&fixture, &[fixture.address], 2, false).await;
        let waiting =
            |fixture: &TestRelay| fixture.relay.state().edges.iter().map(|edge| edge.connections).sum::<usize>();
        while waiting(&fixture) < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (code, mut program) = socks_connect(at, server).await;
        assert_eq!(code, 0);
        check_echo(&mut program).await;
        // The pool replaces the spare connection that the flow has taken.
        while waiting(&fixture) < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// Forwards to an address, and counts the connections.
async fn counting_proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let accepted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    (address, count)
}

#[test]
fn a_relay_that_refuses_connections_is_not_flooded() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        fixture.relay.drain();
        let (first, count) = counting_proxy(fixture.address).await;
        let (_edge, _at) = start_edge(&fixture, &[first], 2, false).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let accepted = count.load(Ordering::Relaxed);
        // Two spare connections at the start, two one second later, and two another two seconds later; some margin.
        assert!((2..20).contains(&accepted), "{accepted} connections in four seconds");
        // After the drain has ended, spare connections are opened again.
        assert!(fixture.relay.undrain());
        let has_spares = || fixture.relay.state().edges.iter().map(|edge| edge.connections).sum::<usize>() == 2;
        timeout(Duration::from_secs(20), async {
            while !has_spares() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
    });
}

#[test]
fn without_a_relay_a_server_is_reached_directly_if_configured() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (edge_, at) = start_edge(&fixture, &[unused_address().await], 0, true).await;
        let (code, mut program) = socks_connect(at, server).await;
        assert_eq!(code, 0);
        check_echo(&mut program).await;
        assert_eq!(edge_stats(&edge_).direct, 1);
        let (strict, at) = start_edge(&fixture, &[unused_address().await], 0, false).await;
        assert_eq!(socks_connect(at, server).await.0, 1);
        assert_eq!((edge_stats(&strict).direct, edge_stats(&strict).failed), (0, 1));
    });
}

#[test]
fn a_target_refused_by_a_relays_rules_is_not_tried_directly() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let (edge, at) = start_edge(&fixture, &[fixture.address], 0, true).await;
        assert_eq!(socks_connect(at, "127.0.0.2:80".parse().unwrap()).await.0, 2);
        assert_eq!(socks_connect(at, unused_address().await).await.0, 4);
        let state = edge_stats(&edge);
        assert_eq!((state.direct, state.failed, state.open), (0, 2, 0));
    });
}

#[test]
fn a_refusal_arrives_despite_much_early_data() {
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let (_, at) = start_edge(&fixture, &[fixture.address], 0, false).await;
        // A target that the relay's rules refuse, and a method that is not supported.
        for (request, status) in [("CONNECT 127.0.0.2:80 HTTP/1.1", "403"), ("GET / HTTP/1.1", "405")] {
            let mut program = TcpStream::connect(at).await.unwrap();
            program.write_all(format!("{request}\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            program.write_all(&[b'x'; 100_000]).await.unwrap();
            // The edge receives all of it before it can respond, and must still respond.
            tokio::time::sleep(Duration::from_millis(100)).await;
            program.shutdown().await.unwrap();
            let mut received = String::new();
            program.read_to_string(&mut received).await.unwrap();
            assert!(received.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {received}");
        }
    });
}

/// Opens a flow from this loopback address, and checks that the server echoes its data.
async fn flow_from(client: &str, edge: SocketAddr, server: SocketAddr) -> Option<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{client}:0").parse().unwrap()).unwrap();
    let mut program = socket.connect(edge).await.unwrap();
    program.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nahead").as_bytes()).await.ok()?;
    let mut received = vec![0; 39 + 5];
    program.read_exact(&mut received).await.ok()?;
    assert!(received.ends_with(b"ahead"));
    Some(program)
}

#[test]
fn a_client_with_too_many_flows_loses_its_own() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let admission = AdmissionConfig { max_flows: 4, max_flows_per_client: 3, ..AdmissionConfig::default() };
        let (edge, at) = start_edge_with(&fixture, &[fixture.address], 0, false, admission).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(flow_from("127.0.0.2", at, server).await.unwrap());
        }
        // The limit for each address does not apply to programs on the edge's own host.
        let mut others = vec![flow_from("127.0.0.3", at, server).await.unwrap()];
        // All slots are in use: the newest flow of the client with the most flows is evicted, with a reset.
        others.push(flow_from("127.0.0.4", at, server).await.unwrap());
        let mut newest = open.pop().unwrap();
        let error = timeout(Duration::from_secs(10), newest.read(&mut [0; 1])).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        for program in open.iter_mut().chain(&mut others) {
            check_echo(program).await;
        }
        assert_eq!(edge_stats(&edge).open, 4);
        // When these flows have ended, new ones are admitted.
        drop((open, others));
        while edge_stats(&edge).open > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(flow_from("127.0.0.2", at, server).await.is_some());
    });
}

/// A server that echoes one byte, and then reports how the connection ended.
async fn end_reporting_server() -> (SocketAddr, tokio::sync::mpsc::Receiver<std::io::Result<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, (end_tx, end_rx)) = (listener.local_addr().unwrap(), tokio::sync::mpsc::channel(8));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let end_tx = end_tx.clone();
            tokio::spawn(async move {
                let mut byte = [0];
                socket.read_exact(&mut byte).await.unwrap();
                socket.write_all(&byte).await.unwrap();
                end_tx.send(socket.read(&mut byte).await).await.unwrap();
            });
        }
    });
    (address, end_rx)
}

/// Opens a flow from this loopback address to a server that echoes one byte.
async fn open_flow(client: &str, edge: SocketAddr, server: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{client}:0").parse().unwrap()).unwrap();
    let mut program = socket.connect(edge).await.unwrap();
    program.write_all(format!("CONNECT {server} HTTP/1.1\r\n\r\nx").as_bytes()).await.unwrap();
    program.read_exact(&mut [0; 39 + 1]).await.unwrap();
    program
}

#[test]
fn an_incomplete_stream_never_looks_complete() {
    let is_reset = |end: &std::io::Result<usize>| {
        end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    };
    block_on(async {
        let fixture = TestRelay::start(Limits::default()).await;
        let (server, mut ends) = end_reporting_server().await;
        for relays in [vec![fixture.address], Vec::new()] {
            let admission = AdmissionConfig { max_flows: 2, max_flows_per_client: 2, ..AdmissionConfig::default() };
            let (_edge, at) = start_edge_with(&fixture, &relays, 0, true, admission).await;
            let mut first = open_flow("127.0.0.2", at, server).await;
            let mut second = open_flow("127.0.0.2", at, server).await;
            // A flow of another client evicts the second one.
            let third = open_flow("127.0.0.3", at, server).await;
            let end = timeout(Duration::from_secs(10), ends.recv()).await.unwrap().unwrap();
            assert!(is_reset(&end), "{end:?} of an evicted flow, relays: {relays:?}");
            assert!(second.read(&mut [0]).await.is_err());
            // A regular end is passed on to both sides.
            first.shutdown().await.unwrap();
            let end = timeout(Duration::from_secs(10), ends.recv()).await.unwrap().unwrap();
            assert!(matches!(end, Ok(0)), "{end:?}");
            assert_eq!(first.read(&mut [0]).await.unwrap(), 0);
            // A reset by the program is passed on as a reset.
            socket2::SockRef::from(&third).set_linger(Some(Duration::ZERO)).unwrap();
            drop(third);
            let end = timeout(Duration::from_secs(10), ends.recv()).await.unwrap().unwrap();
            assert!(is_reset(&end), "{end:?}");
        }
    });
}

#[test]
fn after_a_relay_is_killed_no_incomplete_stream_looks_complete() {
    let relay_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fixture = relay_runtime.block_on(TestRelay::start(Limits::default()));
    let (kill, killed) = tokio::sync::oneshot::channel::<()>();
    let relay = std::thread::spawn(move || drop(relay_runtime.block_on(killed)));
    block_on(async {
        let (server, mut ends) = end_reporting_server().await;
        let (_edge, at) = start_edge(&fixture, &[fixture.address], 0, false).await;
        let mut program = open_flow("127.0.0.2", at, server).await;
        drop(kill);
        relay.join().unwrap();
        let end = timeout(Duration::from_secs(10), ends.recv()).await.unwrap().unwrap();
        assert!(end.is_err(), "the stream looked complete to the server: {end:?}");
        let end = timeout(Duration::from_secs(10), program.read(&mut [0])).await.unwrap();
        assert!(end.is_err(), "the stream looked complete to the program: {end:?}");
    });
}
