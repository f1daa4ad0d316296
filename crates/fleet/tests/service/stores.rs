//! Requirements for each store that several processes share: a single Redis server and a cluster alike.

use marline_fleet::service::store::{Leader, RedisSecrets, RedisStore};

use super::redis_servers::*;
use super::*;

/// A bid for a lease of one minute, by a process that leads in `epoch` or does not lead (`None`). A new epoch must be greater than `above`.
fn bid(holder: &str, epoch: Option<u64>, above: u64) -> Bid {
    let address = format!("{holder}.example:4444");
    Bid { holder: holder.into(), address, epoch, min_epoch: above, lease: Duration::from_secs(60) }
}

fn check_shared_store(open: impl Fn() -> Box<dyn Store>) {
    let now = UtcSeconds::now();
    let (mut store_a, mut store_b) = (open(), open());
    let led_by =
        |holder: &str, epoch| BidOutcome::Lost(Leader { epoch, address: format!("{holder}.example:4444") });
    // One process leads at a time, each change of the leader begins a later epoch, and resigning ends a lease at once.
    assert_eq!(store_a.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(1));
    assert_eq!(store_b.bid(&bid("b", None, 0), now).unwrap(), led_by("a", 1));
    assert_eq!(store_a.bid(&bid("a", Some(1), 0), now).unwrap(), BidOutcome::Won(1));
    assert_eq!(
        store_a.bid(&bid("a", Some(1), 7), now).unwrap(),
        BidOutcome::Won(8),
        "above the epoch that a relay has seen"
    );
    store_b.resign("b").unwrap();
    assert_eq!(store_b.bid(&bid("b", None, 0), now).unwrap(), led_by("a", 8), "it had no lease to give up");
    store_a.resign("a").unwrap();
    assert_eq!(store_b.bid(&bid("b", None, 0), now).unwrap(), BidOutcome::Won(9));
    assert_eq!(store_a.bid(&bid("a", Some(8), 0), now).unwrap(), led_by("b", 9));

    // Only the leader may write rows.
    let row = |key: &str, row: Option<&str>| (key.to_owned(), row.map(str::to_owned));
    assert!(
        !store_a.put_rows(8, &[row("relay/old", Some("{}"))]).unwrap(),
        "another process leads in a later epoch"
    );
    assert!(store_b.put_rows(9, &[row("relay/a", Some("1")), row("edge/b", Some("2"))]).unwrap());
    assert!(store_b.put_rows(9, &[row("relay/a", None), row("edge/c", Some("3"))]).unwrap());
    assert_eq!(store_a.rows().unwrap(), [("edge/b".into(), "2".into()), ("edge/c".into(), "3".into())]);
    let many: Vec<_> = (0..3000).map(|n| row(&format!("edge/n{n}"), Some("row"))).collect();
    assert!(store_b.put_rows(9, &many).unwrap());
    assert_eq!(store_a.rows().unwrap().len(), 3002);

    // Drains by operators.
    let entry =
        |key: &str, time| Entry { key: key.into(), value: "ann".into(), expires_at: now.saturating_add(time) };
    store_a.put(&entry("drain/fra", DAY)).unwrap();
    store_a.put(&entry("drain/ams", Duration::from_secs(10))).unwrap();
    store_a.put(&entry("other", DAY)).unwrap();
    assert_eq!(
        store_b.list("drain/", now).unwrap(),
        [entry("drain/ams", Duration::from_secs(10)), entry("drain/fra", DAY)]
    );
    assert_eq!(
        store_b.list("drain/", now.saturating_add(Duration::from_secs(11))).unwrap(),
        [entry("drain/fra", DAY)]
    );
    store_b.remove("drain/fra").unwrap();
    store_b.remove("drain/fra").unwrap();
    assert_eq!(store_a.list("drain/f", now).unwrap(), []);

    // A token can be used only once, at whichever process.
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(store_a.claim(nonce, now.saturating_add(DAY)).unwrap());
    assert!(!store_b.claim(nonce, now.saturating_add(DAY)).unwrap());

    // The newest revocation list.
    assert_eq!(store_a.put_if_newer("revoked/x", 3, "three").unwrap(), None);
    assert_eq!(store_b.put_if_newer("revoked/x", 2, "two").unwrap().as_deref(), Some("three"));
    assert_eq!(store_b.put_if_newer("revoked/x", 4, "four").unwrap(), None);
    assert_eq!(store_a.put_if_newer("revoked/x", 3, "three").unwrap().as_deref(), Some("four"));
    assert_eq!(store_b.put_if_newer("revoked/x", 4, "four").unwrap(), None);
    assert_eq!(
        store_a.put_if_newer("revoked/x", 4, "vier").unwrap().as_deref(),
        Some("four"),
        "two lists with the same number"
    );
}

#[test]
fn a_single_server_meets_the_requirements() {
    let server = RedisServer::start(&[]);
    check_shared_store(|| server.store());
    assert!(server.query::<i64>(&["TTL", "marline:spent:0123456789abcdef0123456789abcdef"]) > 86_400);
}

#[test]
fn a_cluster_meets_the_requirements() {
    let cluster = RedisCluster::start();
    check_shared_store(|| store_at(&cluster.url()));
}

#[test]
fn a_lease_ends_by_itself() {
    let server = RedisServer::start(&[]);
    let (mut store_a, mut store_b) = (server.store(), server.store());
    let now = UtcSeconds::now();
    let short = Bid { lease: Duration::from_millis(50), ..bid("a", None, 0) };
    assert_eq!(store_a.bid(&short, now).unwrap(), BidOutcome::Won(1));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        store_a.bid(&Bid { epoch: Some(1), ..short }, now).unwrap(),
        BidOutcome::Won(1),
        "no other process has bid"
    );
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(store_b.bid(&bid("b", None, 0), now).unwrap(), BidOutcome::Won(2));
}

#[test]
fn member_rows_do_not_expire_while_a_process_leads() {
    let server = RedisServer::start(&[]);
    let (mut a, now) = (server.store(), UtcSeconds::now());
    assert_eq!(a.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(1));
    assert!(a.put_rows(1, &[("relay/a".into(), Some("{}".into()))]).unwrap());
    // Shortly before the rows expire.
    server.query::<()>(&["EXPIRE", "marline:{test}:members", "5"]);
    assert_eq!(a.bid(&bid("a", Some(1), 0), now).unwrap(), BidOutcome::Won(1));
    assert!(server.query::<i64>(&["TTL", "marline:{test}:members"]) > 80_000);
    assert_eq!(a.rows().unwrap().len(), 1);
}

#[test]
fn regions_are_independent_but_a_token_is_used_once_in_all() {
    let server = RedisServer::start(&[]);
    let at = nodes(&format!("redis://127.0.0.1:{}", server.port));
    let open =
        |region: &str| RedisStore::new(at.clone(), region.parse().unwrap(), RedisSecrets::default()).unwrap();
    let (mut north, mut south, now) = (open("north"), open("south"), UtcSeconds::now());
    assert_eq!(north.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(1));
    assert_eq!(south.bid(&bid("b", None, 0), now).unwrap(), BidOutcome::Won(1));
    north.put(&Entry { key: "drain/x".into(), value: "ann".into(), expires_at: now.saturating_add(DAY) }).unwrap();
    assert_eq!(south.list("", now).unwrap(), []);
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(north.claim(nonce, now).unwrap() && !south.claim(nonce, now).unwrap());
}

#[test]
fn a_full_server_keeps_the_lease_and_reports_failed_writes() {
    let server = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let (mut store_a, mut store_b) = (server.store(), server.store());
    let now = UtcSeconds::now();
    assert_eq!(store_a.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(1));
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store_a.bid(&bid("a", Some(1), 0), now).unwrap(), BidOutcome::Won(1));
    store_a.resign("a").unwrap();
    assert_eq!(
        store_b.bid(&bid("b", None, 0), now).unwrap(),
        BidOutcome::Won(2),
        "another process can take over as well"
    );
    let message = store_b
        .put(&Entry { key: "drain/x".into(), value: "ann".into(), expires_at: now })
        .unwrap_err()
        .to_string();
    assert!(message.starts_with("redis://127.0.0.1:") && message.contains("maxmemory"), "{message}");
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(store_b.claim(nonce, now).is_err(), "a token whose use cannot be stored is refused");
    assert!(store_b.put_rows(2, &[("relay/a".into(), Some("{}".into()))]).is_err());
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(store_b.claim(nonce, now.saturating_add(DAY)).unwrap());
}

#[test]
fn a_password_is_required_and_never_printed() {
    let server = RedisServer::start(&[]);
    server.query::<()>(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let at = nodes(&format!("redis://127.0.0.1:{}", server.port));
    let open = |password: Option<&str>| {
        let secrets = RedisSecrets { password: password.map(str::to_owned), authority: None };
        assert_eq!(format!("{secrets:?}"), "MASKED");
        RedisStore::new(at.clone(), "test".parse().unwrap(), secrets).unwrap()
    };
    let mut right = open(Some("hunter2"));
    assert_eq!(right.bid(&bid("a", None, 0), UtcSeconds::now()).unwrap(), BidOutcome::Won(1));
    for wrong in [None, Some("hunter3")] {
        let message = open(wrong).bid(&bid("b", None, 0), UtcSeconds::now()).unwrap_err().to_string();
        assert!(!message.contains("hunter"), "{message}");
    }
}
