//! Faulty and false relays, as an edge sees them: vanished hosts, stale responses, certificates of others, revoked certificates.
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marline_fleet::ca::{Authority, RevocationFile, UtcSeconds};
use marline_fleet::edge::ClientTrust;
use marline_fleet::relay::Limits;
use marline_fleet::tls::{ClientAuth, Credentials, server_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::edge::{edge_stats, relay_config, socks_connect, start_edge};
use crate::fixture::*;

/// Forwards to an address until the sender is set. Then it forwards nothing and closes nothing, like a host that has lost its
/// network.
async fn vanishing_proxy(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (vanish_tx, vanish_rx) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut vanish_rx = vanish_rx.clone();
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(to).await.unwrap();
                let vanished = async { drop(vanish_rx.wait_for(|is_vanished| *is_vanished).await) };
                let has_vanished = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => false,
                    () = vanished => true,
                };
                if has_vanished {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (address, vanish_tx)
}

/// A TLS server with a member's certificate, which sends `first` at once and counts the requests.
async fn fake_relay(
    fixture: &TestRelay,
    credentials: Credentials,
    first: &'static str,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let revoked = RevocationFile::open(&fixture.authority.crl_path(), credentials.authority()).unwrap();
    let clients = ClientAuth { roles: vec![marline_fleet::identity::Role::Edge], allow_unauthenticated: false };
    let config = server_config(&credentials, revoked.crl_der(), &clients, true).unwrap();
    let (acceptor, requests) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::clone(&requests));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let Ok(mut tls) = acceptor.accept(socket).await else { return };
                tls.write_all(first.as_bytes()).await.unwrap();
                let mut bytes = [0; 1024];
                while let Ok(1..) = tls.read(&mut bytes).await {
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = tls.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await;
                }
            });
        }
    });
    (address, requests)
}

async fn wait_for_spares(fixture: &TestRelay, count: usize) {
    while fixture.relay.state().edges.iter().map(|edge| edge.connections).sum::<usize>() < count {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_vanished_relay_delays_one_flow_briefly_and_later_flows_not_at_all() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (first, vanish_tx) = vanishing_proxy(fixture.address).await;
        let (edge, at) = start_edge(&fixture, &[first, fixture.address], 2, false).await;
        wait_for_spares(&fixture, 2).await;
        vanish_tx.send(true).unwrap();
        let started_at = std::time::Instant::now();
        let (code, mut program) = socks_connect(at, server).await;
        let took = started_at.elapsed();
        assert_eq!(code, 0);
        crate::edge::check_echo(&mut program).await;
        assert_eq!(edge_stats(&edge).carried.get("r1"), Some(&1));
        // Once the failure is known, neither the relay nor its spare connections are used.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let started_at = std::time::Instant::now();
        assert_eq!(socks_connect(at, server).await.0, 0);
        println!("the first flow took {took:?}, the next one {:?}", started_at.elapsed());
        assert_eq!(edge_stats(&edge).carried.get("r1"), Some(&2));
        assert_eq!(edge_stats(&edge).carried.get("r0"), None);
    });
}

#[test]
fn a_stale_response_on_a_spare_connection_is_not_taken_for_the_reply() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let credentials =
            issue_member(&fixture.authority, fixture.dir.path(), "marline://relay/r9", &["127.0.0.1"]);
        let stale = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let (first, request) = fake_relay(&fixture, credentials, stale).await;
        let (edge, at) = start_edge(&fixture, &[first, fixture.address], 1, false).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(socks_connect(at, server).await.0, 0);
        // The response that the relay sent before the request was not taken for the reply to it.
        assert_eq!((edge_stats(&edge).failed, edge_stats(&edge).carried.get("r1")), (0, Some(&1)));
        assert!(request.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn only_a_server_with_a_relays_certificate_is_used() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        for identity in ["marline://fleet/f1", "marline://relay/r9"] {
            let credentials = issue_member(&fixture.authority, fixture.dir.path(), identity, &["127.0.0.1"]);
            let (address, request) = fake_relay(&fixture, credentials, "").await;
            let (_, at) = start_edge(&fixture, &[address], 0, false).await;
            let is_relay = identity.contains("relay");
            assert_eq!(socks_connect(at, server).await.0 == 0, is_relay, "{identity}");
            assert_eq!(request.load(Ordering::Relaxed) > 0, is_relay, "{identity}");
        }
    });
}

#[test]
fn a_relay_must_have_the_name_that_the_fleet_has_assigned() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (edge, listener) = start_edge(&fixture, &[], 0, false).await;
        for (member, code) in [("r2", 1), ("r1", 0)] {
            let mut relay = relay_config(0, fixture.address);
            relay.member = Some(member.parse().unwrap());
            edge.set_relays(&[relay]);
            assert_eq!(socks_connect(listener, server).await.0, code, "{member}");
        }
    });
}

#[test]
fn a_revoked_relay_gets_no_new_flows() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let (edge, at) = start_edge(&fixture, &[fixture.address], 2, false).await;
        wait_for_spares(&fixture, 2).await;
        let (code, mut old_tunnel) = socks_connect(at, server).await;
        assert_eq!(code, 0);
        fixture.authority.revoke_name(&"marline://relay/r1".parse().unwrap(), UtcSeconds::now()).unwrap();
        let authority = Authority::open(&fixture.dir.path().join("ca")).unwrap();
        let credentials = fixture.edge_credentials("cam-1");
        let list = RevocationFile::open(&authority.crl_path(), credentials.authority()).unwrap();
        edge.set_trust(ClientTrust::new(&credentials, Some(list)).unwrap());
        // Not even over a spare connection opened before the revocation.
        assert_eq!(socks_connect(at, server).await.0, 1);
        crate::edge::check_echo(&mut old_tunnel).await;
    });
}

#[test]
fn a_program_on_the_edges_host_reaches_that_host_also_with_a_public_listener() {
    block_on(async {
        let (fixture, server) = (TestRelay::start(Limits::default()).await, echo_server().await);
        let config = marline_fleet::edge::Config {
            listen: vec!["0.0.0.0:0".parse().unwrap()],
            relays: Vec::new(),
            spare_connections: 0,
            allow_direct: true,
            congestion: None,
            lan: false,
            admission: marline_fleet::edge::AdmissionConfig::default(),
            portal_probe: marline_fleet::edge::PortalProbe::OFF,
            local_domains: Vec::new(),
        };
        let tls = marline_fleet::tls::client_config(&fixture.edge_credentials("cam-1"), None, true).unwrap();
        let edge = marline_fleet::edge::Edge::new(config, Arc::new(tls));
        let listener = marline_fleet::edge::ClientListener::open(&edge).await.unwrap();
        let at = SocketAddr::new("127.0.0.1".parse().unwrap(), listener.addresses()[0].port());
        let serving_edge = Arc::clone(&edge);
        tokio::spawn(async move { listener.serve(&serving_edge).await });
        let (code, _) = timeout(Duration::from_secs(10), socks_connect(at, server)).await.unwrap();
        // Clients with another address are refused; the edge's unit tests show that.
        assert_eq!((code, edge_stats(&edge).direct), (0, 1));
    });
}
