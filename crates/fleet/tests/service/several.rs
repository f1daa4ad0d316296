//! Several processes of the service, which share a real Redis: any of them answers, one matches, and whatever is killed, no
//! relay and no edge loses what it has.

use marline_fleet::service::words::{BeatAnswer, RelayRow, ServiceRow, Standing};
use marline_fleet::service::{Drain, Drained, Enrol};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use super::redis_servers::*;
use super::*;

/// One process of the service.
pub(super) struct Process {
    pub(super) url: String,
    desk: Arc<Desk>,
    running: Vec<JoinHandle<()>>,
}

impl Process {
    pub(super) async fn start(place: &Place, name: &str, store: Box<dyn Store>) -> Self {
        Self::with(place, place.authority(), name, store).await
    }

    async fn with(place: &Place, authority: Authority, name: &str, store: Box<dyn Store>) -> Self {
        let own = place.member(&format!("marline://fleet/{name}"));
        let roles = vec![Role::Edge, Role::Relay, Role::Operator, Role::Fleet];
        let trust = Trust::of(own, &authority.revocations_path(), Clients { roles, strangers: true }).unwrap();
        let config = Config { window: Duration::from_millis(20), ..Config::default() };
        let desk = Desk::open(config, &name.parse().unwrap(), store, authority, trust.newest()).unwrap();
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let counter = Counter::open(Arc::clone(&desk), &listen, Limits::default()).await.unwrap();
        let address = counter.addresses()[0];
        desk.reached_at(&address.to_string().parse().unwrap());
        let keeps = Arc::clone(&desk);
        let running = vec![
            tokio::spawn(async move { match keeps.keep().await {} }),
            tokio::spawn(async move { match trust.keep().await {} }),
            tokio::spawn(async move { counter.attend(std::future::pending(), Duration::ZERO).await }),
        ];
        Self { url: format!("https://{address}"), desk, running }
    }

    pub(super) async fn leads(self) -> Self {
        until("the first one leads", async || self.desk.leads()).await;
        self
    }

    /// As a kill does it: nobody is told.
    async fn kill(self) {
        for task in self.running {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Two processes, of which the first one leads.
pub(super) async fn two(place: &Place, mut store: impl FnMut() -> Box<dyn Store>) -> (Process, Process) {
    let first = Process::start(place, "f1", store()).await.leads().await;
    let second = Process::start(place, "f2", store()).await;
    knows_who_leads(place, &second).await;
    (first, second)
}

pub(super) async fn knows_who_leads(place: &Place, process: &Process) {
    let mut ann = client_at(&process.url, &place.member("marline://operator/ann"));
    until("it knows who leads", async || {
        let row: ServiceRow = ann.fetch("/v1/service").await.unwrap();
        row.leads || row.matcher.is_some_and(|place| !place.is_empty())
    })
    .await;
}

/// A relay and an edge that has it, asked for at these processes.
async fn relay_and_edge(place: &Place, at_relay: &Process, at_edge: &Process) -> (Client, Client, Held) {
    let mut relay = client_at(&at_relay.url, &place.member("marline://relay/fra-1"));
    let mut edge = client_at(&at_edge.url, &place.member("marline://edge/cam-7"));
    relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
    let got: Standing = edge.send("/v1/edges/request", &wish(5, &[("fra-1", 40)])).await.unwrap();
    let got = got.assignment.unwrap();
    (relay, edge, Held { relay: got.relay, reservation: got.reservation, mark: got.mark })
}

#[test]
fn any_process_answers_and_one_matches() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        let (mut relay, mut edge, held) = relay_and_edge(&place, &second, &first).await;
        let kept: Standing =
            edge.send("/v1/edges/report", &report(wish(5, &[("fra-1", 40)]), Some(held))).await.unwrap();
        assert_eq!(kept.assignment.unwrap().reservation, mbps(40));
        let mut ann = client_at(&second.url, &place.member("marline://operator/ann"));
        let rows: Vec<RelayRow> = ann.fetch("/v1/relays").await.unwrap();
        assert_eq!((rows.len(), rows[0].edges), (1, 1));
        // A member's certificate is shown, and not that of the process that has passed on what it said.
        let (_, short) = place.aged("marline://relay/ams-1", Duration::ZERO);
        let mut other = client_at(&second.url, &short);
        other.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        let rows: Vec<RelayRow> = ann.fetch("/v1/relays").await.unwrap();
        assert_eq!(rows[0].certificate_ends, Some(short.span().unwrap().ends.to_string()));
        let drain = Drain { draining: true, for_ms: None };
        let drained: Drained = ann.send("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, Drained { known: true, durable: true });
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        assert!(told.draining && told.mark.epoch == 1);
        // What one refuses is refused as if it had been asked itself.
        let twice = wish(5, &[("fra-1", 1), ("fra-1", 2)]);
        let mut other = client_at(&second.url, &place.member("marline://edge/cam-8"));
        assert_eq!(refused(other.send::<Value>("/v1/edges/request", &twice).await).status, 422);
        let row: ServiceRow = ann.fetch("/v1/service").await.unwrap();
        assert_eq!((row.leads, row.epoch, row.region.as_deref()), (false, Some(1), Some("test")));
        assert_eq!(Some(format!("https://{}", row.matcher.unwrap())), Some(first.url.clone()));
        // Nobody but a process of the service speaks for others.
        let url = first.url.trim_start_matches("https://").to_owned();
        let as_relay = forged(&url, &place.member("marline://edge/cam-8"), "marline://operator/ann").await;
        assert!(as_relay.starts_with("HTTP/1.1 403"), "{as_relay}");
        let as_fleet = forged(&url, &place.member("marline://fleet/f9"), "marline://operator/ann").await;
        assert!(as_fleet.starts_with("HTTP/1.1 200"), "{as_fleet}");
    });
}

/// What is answered to who says that he asks for somebody else.
async fn forged(address: &str, own: &Credentials, member: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let tls = tokio_rustls::TlsConnector::from(Arc::new(client_config(own, None, true).unwrap()));
    let socket = TcpStream::connect(address).await.unwrap();
    let mut stream = tls.connect("127.0.0.1".try_into().unwrap(), socket).await.unwrap();
    let ask = format!("GET /v1/edges HTTP/1.1\r\nhost: x\r\nmarline-for: {member}\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_token_is_used_once_and_a_list_reaches_all() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let copy = copy_of(&place);
        let first = Process::start(&place, "f1", server.store()).await.leads().await;
        let second = Process::with(&place, Authority::open(&copy).unwrap(), "f2", server.store()).await;
        let grant = Grant::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token = place.authority().token(&grant, DAY, Stamp::now()).unwrap().reveal().to_owned();
        let enrol = Enrol { token, request: marline_fleet::ca::NewKey::generate().unwrap().request };
        let ann = place.member("marline://operator/ann");
        client_at(&second.url, &ann).send::<Value>("/v1/enrol", &enrol).await.unwrap();
        assert_eq!(refused(client_at(&first.url, &ann).send::<Value>("/v1/enrol", &enrol).await).status, 409);
        let mut cam = client_at(&second.url, &place.member("marline://edge/cam-7"));
        cam.fetch::<Value>("/v1/health").await.unwrap();
        place.authority().revoke_name(&"marline://edge/cam-7".parse().unwrap(), Stamp::now()).unwrap();
        until("the other machine knows who was revoked", async || cam.fetch::<Value>("/v1/health").await.is_err())
            .await;
        assert_eq!(
            std::fs::read(copy.join("revoked.pem")).unwrap(),
            std::fs::read(place.path("ca/revoked.pem")).unwrap()
        );
    });
}

#[test]
fn two_machines_that_revoke_before_they_hear_of_each_other_lose_nobody() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let members = ["marline://edge/cam-7", "marline://edge/cam-8"].map(|edge| place.member(edge));
        let copy = copy_of(&place);
        let first = Process::start(&place, "f1", server.store()).await;
        let second = Process::with(&place, Authority::open(&copy).unwrap(), "f2", server.store()).await;
        let there = Authority::open(&copy).unwrap();
        place.authority().revoke_name(&members[0].peer().unwrap().identity, Stamp::now()).unwrap();
        there.revoke_name(&members[1].peer().unwrap().identity, Stamp::now()).unwrap();
        for process in [&first, &second] {
            for own in &members {
                until("both are out everywhere", async || {
                    client_at(&process.url, own).fetch::<Value>("/v1/health").await.is_err()
                })
                .await;
            }
        }
        // And whoever is taken back next lets neither of them in again.
        let third = place.member("marline://edge/cam-9");
        place.authority().revoke_name(&third.peer().unwrap().identity, Stamp::now()).unwrap();
        until("the third one is out", async || {
            client_at(&second.url, &third).fetch::<Value>("/v1/health").await.is_err()
        })
        .await;
        for own in &members {
            assert!(client_at(&second.url, own).fetch::<Value>("/v1/health").await.is_err());
        }
    });
}

/// Another machine's directory, with a copy of the authority.
fn copy_of(place: &Place) -> PathBuf {
    let copy = place.path("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for file in ["ca.key", "ca.pem", "issued.jsonl", "revoked.pem"] {
        std::fs::copy(place.path("ca").join(file), copy.join(file)).unwrap();
    }
    copy
}

#[test]
fn when_the_matcher_is_killed_another_one_goes_on_with_what_it_knew() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        let (mut relay, mut edge, had) = relay_and_edge(&place, &second, &second).await;
        until("it is written", async || server.ask::<u64>(&["HLEN", "marline:{test}:members"]) == 2).await;
        first.kill().await;
        // Who asks meanwhile keeps what it has; heartbeats are answered all the time.
        until("the second one leads", async || {
            relay.send::<Value>("/v1/relays/heartbeat", &beat(100, had.mark)).await.unwrap();
            second.desk.leads()
        })
        .await;
        // Before anybody has spoken again: another edge finds the relay, and gets what the first one leaves.
        let mut other = client_at(&second.url, &place.member("marline://edge/cam-8"));
        let got: Standing = other.send("/v1/edges/request", &wish(5, &[("fra-1", 60)])).await.unwrap();
        assert_eq!(
            got.assignment.map(|got| got.reservation),
            Some(mbps(50)),
            "the first one's 40 are not to be had"
        );
        let kept: Standing =
            edge.send("/v1/edges/report", &report(wish(5, &[("fra-1", 40)]), Some(had.clone()))).await.unwrap();
        let kept = kept.assignment.unwrap();
        assert_eq!((kept.relay, kept.reservation, kept.mark), (had.relay, had.reservation, had.mark));
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, had.mark)).await.unwrap();
        assert_eq!((told.mark.epoch, told.assignments.unwrap().len()), (2, 2));
    });
}

#[test]
fn a_store_that_is_gone_and_comes_back_empty_is_whole_again() {
    block_on(async {
        let mut server = Server::start(&[]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        let (mut relay, mut edge, had) = relay_and_edge(&place, &first, &second).await;
        let mut ann = client_at(&first.url, &place.member("marline://operator/ann"));
        let drain = Drain { draining: true, for_ms: None };
        ann.send::<Value>("/v1/relays/nyc-1/drain", &drain).await.unwrap();
        let mut trouble = first.desk.trouble();
        server.kill();
        until("nobody leads", async || {
            let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, had.mark)).await.unwrap();
            assert!(told.mark <= had.mark || told.mark.epoch == had.mark.epoch, "nothing was decided since");
            !first.desk.leads() && !second.desk.leads()
        })
        .await;
        assert!(trouble.borrow_and_update().is_some(), "and it is said");
        let problem = refused(edge.send::<Value>("/v1/edges/request", &wish(5, &[("fra-1", 40)])).await);
        assert_eq!((problem.status, problem.title.as_str()), (503, "not-leading"));
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, had.mark)).await.unwrap();
        assert_eq!(told.mark.epoch, had.mark.epoch);
        server.again();
        until("somebody leads", async || first.desk.leads() || second.desk.leads()).await;
        let leads = if first.desk.leads() { &first } else { &second };
        knows_who_leads(&place, &first).await;
        knows_who_leads(&place, &second).await;
        // Whoever it is, and whatever it remembers: each has spoken once.
        let mut relay = client_at(&leads.url, &place.member("marline://relay/fra-1"));
        let beat = beat(100, had.mark);
        until("its epoch is a later one", async || {
            relay.send::<BeatAnswer>("/v1/relays/heartbeat", &beat).await.unwrap().mark > had.mark
        })
        .await;
        let kept: Standing =
            edge.send("/v1/edges/report", &report(wish(5, &[("fra-1", 40)]), Some(had.clone()))).await.unwrap();
        let kept = kept.assignment.unwrap();
        assert_eq!((kept.relay, kept.reservation), (had.relay, had.reservation));
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat).await.unwrap();
        assert_eq!(told.assignments.unwrap()[0].reservation, mbps(40));
        // The other one has never heard it.
        let knows = first.desk.leads();
        until("what operators said is written again", async || {
            !knows || server.try_ask::<bool>(&["HEXISTS", "marline:{test}:said", "drain/nyc-1"]).unwrap_or(false)
        })
        .await;
        until("that it is back is said", async || {
            [&first, &second].iter().all(|process| process.desk.trouble().borrow().is_none())
        })
        .await;
    });
}

#[test]
fn a_full_store_stops_nobody_that_is_shared() {
    block_on(async {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let (_relay, _edge, held) = relay_and_edge(&place, &first, &second).await;
        assert_eq!(held.reservation, mbps(40));
        let mut ann = client_at(&second.url, &place.member("marline://operator/ann"));
        let drain = Drain { draining: true, for_ms: None };
        let drained: Drained = ann.send("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, Drained { known: true, durable: false });
        until("it is said", async || first.desk.trouble().borrow().is_some()).await;
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        until("rows are written after all", async || server.ask::<u64>(&["HLEN", "marline:{test}:members"]) == 2)
            .await;
        until("that it is over is said", async || first.desk.trouble().borrow().is_none()).await;
        assert!(first.desk.leads());
    });
}

/// A way to the store that can be closed without a word.
struct Way {
    port: u16,
    open: tokio::sync::watch::Sender<bool>,
}

async fn way_to(port: u16) -> Way {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = Way { port: listener.local_addr().unwrap().port(), open: tokio::sync::watch::Sender::new(true) };
    let open = way.open.subscribe();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let mut open = open.clone();
            tokio::spawn(async move {
                let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (near, far) = (near.into_split(), far.into_split());
                tokio::select! {
                    () = carry(near.0, far.1, open.clone()) => {}
                    () = carry(far.0, near.1, open.clone()) => {}
                }
                // Both sides stay as they are while nothing passes.
                let _ = open.wait_for(|open| *open).await;
            });
        }
    });
    way
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut open: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = open.wait_for(|open| *open).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

#[test]
fn who_is_cut_off_from_the_store_steps_down_before_another_one_leads() {
    let server = Server::start(&[]);
    block_on(async {
        let place = Place::bare();
        let way = way_to(server.port).await;
        let mut first = Some(place_of(&way));
        let (first, second) = two(&place, || first.take().unwrap_or_else(|| server.store())).await;
        let (mut relay, _, held) = relay_and_edge(&place, &first, &first).await;
        until("it is written", async || server.ask::<u64>(&["HLEN", "marline:{test}:members"]) == 2).await;
        way.open.send_replace(false);
        until("the other one leads", async || {
            // The one that leads is looked at first: what it says of itself only ever ends.
            let (was, is) = (first.desk.leads(), second.desk.leads());
            assert!(!(was && is), "both lead");
            is
        })
        .await;
        // It answers relays nevertheless, with nothing that is newer.
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, held.mark)).await.unwrap();
        assert!(told.mark.epoch <= held.mark.epoch);
        way.open.send_replace(true);
        let mut ann = client_at(&first.url, &place.member("marline://operator/ann"));
        until("it knows who leads", async || {
            ann.fetch::<ServiceRow>("/v1/service").await.unwrap().epoch == Some(2)
        })
        .await;
        until("it asks the one that leads", async || {
            let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, held.mark)).await.unwrap();
            told.mark.epoch == 2 && told.assignments.is_some_and(|edges| edges.len() == 1)
        })
        .await;
        assert!(!first.desk.leads() && second.desk.leads());
    });
}

fn place_of(way: &Way) -> Box<dyn Store> {
    store_at(&format!("redis://127.0.0.1:{}", way.port))
}

#[test]
fn two_that_lead_for_a_moment_do_no_harm() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let (first, second) = two(&place, || server.store()).await;
        let (mut at_first, _, held) = relay_and_edge(&place, &first, &first).await;
        let mut at_second = client_at(&second.url, &place.member("marline://relay/fra-1"));
        // A primary has died with the newest words, and its replica lets another one lead: in the same epoch.
        for _ in 0..3 {
            server.ask::<()>(&["FLUSHALL"]);
            tokio::time::sleep(Duration::from_millis(1200)).await;
        }
        // A relay that hears both takes only what is newer, and in the end one leads whom it hears.
        let mut seen = held.mark;
        until("one leads whom the relay hears", async || {
            for client in [&mut at_first, &mut at_second] {
                let told: BeatAnswer = client.send("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
                seen = seen.max(told.mark);
            }
            let told: BeatAnswer = at_first.send("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
            let other: BeatAnswer = at_second.send("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
            first.desk.leads() != second.desk.leads() && told.mark == other.mark && told.mark >= seen
        })
        .await;
    });
}

#[test]
fn a_primary_that_is_killed_costs_nobody_anything() {
    block_on(async {
        let mut cluster = Cluster::start();
        let place = Place::bare();
        let (first, second) = two(&place, || store_at(&cluster.place())).await;
        let (mut relay, mut edge, had) = relay_and_edge(&place, &first, &second).await;
        let primary = cluster.primary_of_test();
        cluster.0[primary].kill();
        let mut ann = client_at(&second.url, &place.member("marline://operator/ann"));
        let drain = Drain { draining: true, for_ms: None };
        until("the replica remembers what operators say", async || {
            relay.send::<Value>("/v1/relays/heartbeat", &beat(100, had.mark)).await.unwrap();
            let drained = ann.send::<Drained>("/v1/relays/nyc-1/drain", &drain).await;
            drained.is_ok_and(|drained| drained.durable)
        })
        .await;
        until("somebody leads", async || first.desk.leads() || second.desk.leads()).await;
        let report = report(wish(5, &[("fra-1", 40)]), Some(had.clone()));
        let mut kept = None;
        until("the edge is answered", async || {
            kept = edge.send::<Standing>("/v1/edges/report", &report).await.ok();
            kept.is_some()
        })
        .await;
        let kept = kept.unwrap().assignment.unwrap();
        assert_eq!((kept.relay, kept.reservation), (had.relay, had.reservation));
    });
}

#[test]
fn an_epoch_that_is_none_is_a_trouble_until_it_is_repaired() {
    block_on(async {
        let server = Server::start(&[]);
        let place = Place::bare();
        let process = Process::start(&place, "f1", server.store()).await.leads().await;
        let mut ann = client_at(&process.url, &place.member("marline://operator/ann"));
        let (mut relay, _, held) = relay_and_edge(&place, &process, &process).await;
        let mut seen = held.mark;
        let keys = ["marline:{test}:epoch", "marline:{test}:lead"];
        for (n, value) in
            ["text", "1e300", "18446744073709551615", "9007199254740992", "-1", " 7", "0x10", ""].iter().enumerate()
        {
            // Nobody holds the lead any more, and the next bid reads the value.
            server.ask::<()>(&["DEL", keys[1]]);
            server.ask::<()>(&["SET", keys[0], value]);
            let mut row = None;
            until("it is reported", async || {
                let now: ServiceRow = ann.fetch("/v1/service").await.unwrap();
                let is_told = now.trouble.as_ref().is_some_and(|trouble| trouble.contains(keys[0]));
                row = Some(now);
                is_told
            })
            .await;
            let trouble = row.unwrap().trouble.unwrap();
            assert!(trouble.contains(&format!("`{value}`")) && trouble.contains("redis-cli DEL"), "{trouble}");
            // It does not flicker while other calls to the store succeed.
            for _ in 0..if n == 0 { 25 } else { 3 } {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let now: ServiceRow = ann.fetch("/v1/service").await.unwrap();
                assert!(now.trouble.is_some(), "{value}");
            }
            server.ask::<()>(&["DEL", keys[0]]);
            until("it matches again", async || {
                let now: ServiceRow = ann.fetch("/v1/service").await.unwrap();
                now.leads && now.trouble.is_none()
            })
            .await;
            // The relay takes what it is told: no epoch goes back.
            until("the relay is told something newer", async || {
                let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
                let is_newer = told.mark > seen;
                seen = seen.max(told.mark);
                is_newer
            })
            .await;
        }
        // Somebody else's lead with such an epoch, and a place that is no place.
        server.ask::<()>(&["HSET", keys[1], "holder", "other", "epoch", "1e300", "place", "x\r\n\u{1b}[2J"]);
        until("it is reported", async || {
            let now: ServiceRow = ann.fetch("/v1/service").await.unwrap();
            now.trouble.is_some_and(|trouble| trouble.contains(keys[1]))
        })
        .await;
    });
}
