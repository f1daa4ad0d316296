//! Relays that are not what they seem, seen from an edge: silent ones, late words, certificates of others, taken back ones.
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marline_fleet::ca::{Authority, Revocations, Stamp};
use marline_fleet::edge::Trusted;
use marline_fleet::relay::Limits;
use marline_fleet::tls::{Clients, Credentials, server_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::edge::{at, carried, edge, socks};
use crate::place::*;

/// Leads to an address until it is told to be silent: then nothing comes through and nothing is closed, as when a host
/// has vanished.
async fn vanishing(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (silence, silent) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut silent = silent.clone();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(to).await.unwrap();
                let silenced = async { drop(silent.wait_for(|is| *is).await) };
                let is_silent = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => false,
                    () = silenced => true,
                };
                if is_silent {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (address, silence)
}

/// Something that speaks TLS with a member's certificate, says `first` at once, and counts what it is asked.
async fn pretender(place: &Place, own: Credentials, first: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let revoked = Revocations::open(&place.authority.revocations_path(), own.authority()).unwrap();
    let clients = Clients { roles: vec![marline_fleet::identity::Role::Edge], strangers: false };
    let config = server_config(&own, revoked.crl(), &clients, true).unwrap();
    let (acceptor, asked) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::clone(&asked));
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
    (address, asked)
}

async fn ready(place: &Place, count: usize) {
    while place.relay.state().edges.iter().map(|edge| edge.connections).sum::<usize>() < count {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_relay_that_vanishes_costs_one_flow_a_moment_and_the_next_nothing() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let (first, silence) = vanishing(place.address).await;
        let (edge, at) = edge(&place, &[first, place.address], 2, false).await;
        ready(&place, 2).await;
        silence.send(true).unwrap();
        let begun = std::time::Instant::now();
        let (code, mut program) = socks(at, server).await;
        let took = begun.elapsed();
        assert_eq!(code, 0);
        crate::edge::says_back(&mut program).await;
        assert_eq!(carried(&edge).carried.get("r1"), Some(&1));
        // Once it is known that the first one is gone nobody waits for it, nor for what was ready there.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let begun = std::time::Instant::now();
        assert_eq!(socks(at, server).await.0, 0);
        println!("the first flow took {took:?}, the next one {:?}", begun.elapsed());
        assert_eq!(carried(&edge).carried.get("r1"), Some(&2));
        assert_eq!(carried(&edge).carried.get("r0"), None);
    });
}

#[test]
fn a_late_word_of_a_ready_connection_is_no_answer() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let own = member(&place.authority, place.dir.path(), "marline://relay/r9", &["127.0.0.1"]);
        let stale = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let (first, asked) = pretender(&place, own, stale).await;
        let (edge, at) = edge(&place, &[first, place.address], 1, false).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(socks(at, server).await.0, 0);
        // What it said of itself before the request was not taken for the answer to it.
        assert_eq!((carried(&edge).failed, carried(&edge).carried.get("r1")), (0, Some(&1)));
        assert!(asked.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn only_a_relay_carries() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        for identity in ["marline://fleet/f1", "marline://relay/r9"] {
            let own = member(&place.authority, place.dir.path(), identity, &["127.0.0.1"]);
            let (address, asked) = pretender(&place, own, "").await;
            let (_, at) = edge(&place, &[address], 0, false).await;
            let is_relay = identity.contains("relay");
            assert_eq!(socks(at, server).await.0 == 0, is_relay, "{identity}");
            assert_eq!(asked.load(Ordering::Relaxed) > 0, is_relay, "{identity}");
        }
    });
}

#[test]
fn the_relay_that_the_fleet_has_named_is_that_one() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let (edge, front) = edge(&place, &[], 0, false).await;
        for (member, code) in [("r2", 1), ("r1", 0)] {
            let mut relay = at(0, place.address);
            relay.member = Some(member.parse().unwrap());
            edge.lead(&[relay]);
            assert_eq!(socks(front, server).await.0, code, "{member}");
        }
    });
}

#[test]
fn a_relay_that_was_taken_back_carries_no_more() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let (edge, at) = edge(&place, &[place.address], 2, false).await;
        ready(&place, 2).await;
        let (code, mut old) = socks(at, server).await;
        assert_eq!(code, 0);
        place.authority.revoke_name(&"marline://relay/r1".parse().unwrap(), Stamp::now()).unwrap();
        let authority = Authority::open(&place.dir.path().join("ca")).unwrap();
        let own = place.edge("cam-1");
        let list = Revocations::open(&authority.revocations_path(), own.authority()).unwrap();
        edge.trust(Trusted::new(&own, Some(list)).unwrap());
        // Not even over a connection that stood before.
        assert_eq!(socks(at, server).await.0, 1);
        crate::edge::says_back(&mut old).await;
    });
}

#[test]
fn a_program_of_the_edges_machine_reaches_that_machine_also_where_others_may_connect() {
    block_on(async {
        let (place, server) = (Place::open(Limits::default()).await, echo().await);
        let config = marline_fleet::edge::Config {
            listen: vec!["0.0.0.0:0".parse().unwrap()],
            relays: Vec::new(),
            warm: 0,
            direct: true,
            congestion: None,
            lan: false,
            guests: marline_fleet::edge::GuestTerms::default(),
            portal_probe: marline_fleet::edge::PortalProbe::OFF,
            local_domains: Vec::new(),
        };
        let tls = marline_fleet::tls::client_config(&place.edge("cam-1"), None, true).unwrap();
        let edge = marline_fleet::edge::Edge::new(config, Arc::new(tls));
        let front = marline_fleet::edge::Front::open(&edge).await.unwrap();
        let at = SocketAddr::new("127.0.0.1".parse().unwrap(), front.addresses()[0].port());
        let attending = Arc::clone(&edge);
        tokio::spawn(async move { front.attend(&attending).await });
        let (code, _) = timeout(Duration::from_secs(10), socks(at, server)).await.unwrap();
        // Clients with another address are refused: see `direct` and `local` of the edge.
        assert_eq!((code, carried(&edge).direct), (0, 1));
    });
}
