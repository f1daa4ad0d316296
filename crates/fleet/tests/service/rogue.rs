//! Those who are not who they should be: a relay where the service is expected, and connections that take places.

use marline_fleet::service::words::{BeatAnswer, Standing};
use marline_fleet::tls::server_config;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

#[test]
fn a_relay_on_the_services_address_is_not_taken_for_the_service() {
    block_on(async {
        let place = Place::open().await;
        let revoked = place.authority().revocations_path();
        let revocations = marline_fleet::ca::Revocations::open(&revoked, place.authority().certificate()).unwrap();
        for (identity, is) in [("marline://relay/fra-1", false), ("marline://fleet/f2", true)] {
            let clients = Clients { roles: vec![Role::Edge, Role::Relay], strangers: true };
            let own = place.member(identity);
            let config = server_config(&own, revocations.crl(), &clients, true).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}", listener.local_addr().unwrap());
            let heard = Arc::new(AtomicBool::new(false));
            let hears = Arc::clone(&heard);
            tokio::spawn(async move {
                let acceptor = TlsAcceptor::from(Arc::new(config));
                while let Ok((socket, _)) = listener.accept().await {
                    let Ok(mut stream) = acceptor.accept(socket).await else { continue };
                    let mut byte = [0];
                    hears.fetch_or(stream.read(&mut byte).await.is_ok_and(|count| count > 0), Ordering::SeqCst);
                }
            });
            let known = client_config(&place.member("marline://edge/cam-7"), None, true).unwrap();
            let pinned = marline_fleet::tls::first_contact_config(place.authority().fingerprint(), true).unwrap();
            for tls in [known, pinned] {
                let asked = Client::new(&url, tls).unwrap().fetch::<Value>("/v1/health").await;
                let said = asked.unwrap_err().to_string();
                assert_eq!(said.contains("marline://relay/fra-1 answers there"), !is, "{said}");
            }
            assert_eq!(heard.load(Ordering::SeqCst), is, "{identity}: it was told something");
        }
    });
}

#[test]
fn each_member_hears_of_a_new_list_and_may_read_it() {
    block_on(async {
        let place = Place::open().await;
        let mut edge = place.client("marline://edge/cam-7");
        let mut relay = place.client("marline://relay/fra-1");
        let report = report(wish(5, &[]), None);
        let before: Standing = edge.send("/v1/edges/report", &report).await.unwrap();
        place.member("marline://edge/cam-8");
        place.authority().revoke_name(&"marline://edge/cam-8".parse().unwrap(), Stamp::now()).unwrap();
        until("the edge hears of it", async || {
            edge.send::<Standing>("/v1/edges/report", &report).await.unwrap().revocations > before.revocations
        })
        .await;
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        assert_eq!(told.revocations, before.revocations + 1);
        let file = std::fs::read_to_string(place.authority().revocations_path()).unwrap();
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        for mut client in [edge, relay] {
            assert_eq!(plain(&client.text("/v1/revoked").await.unwrap()), plain(&file));
        }
    });
}

/// A connection from this address of the loopback that says nothing.
async fn silent(place: &Place, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(place.address).await.unwrap()
}

async fn is_closed(stream: &mut TcpStream, wait: Duration) -> bool {
    matches!(tokio::time::timeout(wait, stream.read(&mut [0])).await, Ok(Ok(0) | Err(_)))
}

#[test]
fn strangers_who_say_nothing_keep_nobody_from_enrolling() {
    block_on(async {
        let limits = Limits { strangers: 2, ..Limits::default() };
        let place = Place::with(limits, |path| Box::new(Embedded::open(path).unwrap())).await;
        let pinned = || marline_fleet::tls::first_contact_config(place.authority().fingerprint(), true).unwrap();
        let mut taken = Vec::new();
        for _ in 0..4 {
            let socket = silent(&place, "127.0.0.2").await;
            let tls = tokio_rustls::TlsConnector::from(Arc::new(pinned()));
            taken.push(tls.connect("127.0.0.1".try_into().unwrap(), socket).await.unwrap());
        }
        let mut honest = Client::new(&place.url(), pinned()).unwrap();
        honest.fetch::<Value>("/v1/health").await.unwrap();
        // The oldest of those had to go, and no more of them than needed.
        let mut open = 0;
        for mut stream in taken {
            let ended = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut [0])).await;
            open += usize::from(ended.is_err());
        }
        assert_eq!(open, 1);
    });
}

#[test]
fn who_found_the_hall_full_takes_no_place_among_the_handshakes() {
    block_on(async {
        let limits = Limits { connections: 3, handshakes: 3, ..Limits::default() };
        let place = Place::with(limits, |path| Box::new(Embedded::open(path).unwrap())).await;
        let mut members: Vec<Client> = (0..3).map(|n| place.client(&format!("marline://relay/r{n}"))).collect();
        for member in &mut members {
            member.fetch::<Value>("/v1/health").await.unwrap();
        }
        let wait = Duration::from_secs(20);
        for from in ["127.0.0.2", "127.0.0.3"] {
            assert!(is_closed(&mut silent(&place, from).await, wait).await, "{from}: the hall is full");
        }
        drop(members);
        let mut one = place.client("marline://relay/r3");
        until("there is room again", async || one.fetch::<Value>("/v1/health").await.is_ok()).await;
        drop(one);
        // Three at once, as the limit says: the first one is not sent away for those who have long gone.
        let mut three = Vec::new();
        for _ in 0..3 {
            three.push(silent(&place, "127.0.0.4").await);
        }
        for stream in &mut three {
            assert!(!is_closed(stream, Duration::from_millis(300)).await, "a place is taken by nobody");
        }
    });
}

#[test]
fn a_relay_announces_only_hosts_that_its_certificate_is_for() {
    block_on(async {
        let place = Place::open().await;
        let mut relay = place.client("marline://relay/fra-1");
        let mut edge = place.client("marline://edge/cam-7");
        let good = || beat(100, Mark::default());
        let evil = |server_name: &str, addresses: &[&str]| Beat {
            server_name: server_name.parse().unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..good()
        };
        for (beat, host) in [
            (evil("evil.example", &["127.0.0.1:4443"]), "evil.example"),
            (evil("127.0.0.1", &["evil.example:443"]), "evil.example"),
            (evil("127.0.0.1", &["127.0.0.1:4443", "192.168.1.1:80"]), "192.168.1.1"),
            (evil("127.0.0.1", &["[::1]:4443"]), "::1"),
            (evil("127.0.0.1", &["127.0.0.2:4443"]), "127.0.0.2"),
        ] {
            let problem = refused(relay.send::<BeatAnswer>("/v1/relays/heartbeat", &beat).await);
            assert!(problem.status == 403 && problem.detail.contains(host), "{problem:?}");
        }
        let offered: Value = edge.fetch("/v1/candidates?origin=live.example:1935").await.unwrap();
        assert_eq!(offered, serde_json::json!([]), "nothing of it is known");
        relay.send::<BeatAnswer>("/v1/relays/heartbeat", &good()).await.unwrap();
        let other_port = evil("127.0.0.1", &["127.0.0.1:4443", "127.0.0.1:443"]);
        relay.send::<BeatAnswer>("/v1/relays/heartbeat", &other_port).await.unwrap();
    });
}
