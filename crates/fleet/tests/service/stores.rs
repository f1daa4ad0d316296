//! What each store must do that several share: one server and a cluster alike.

use marline_fleet::service::store::{Leader, Redis, Secrets};

use super::redis_servers::*;
use super::*;

fn bid(holder: &str, epoch: Option<u64>, above: u64) -> Bid {
    let place = format!("{holder}.example:4444");
    Bid { holder: holder.into(), place, epoch, above, lease: Duration::from_secs(60) }
}

fn keeps_its_word(open: impl Fn() -> Box<dyn Store>) {
    let now = Stamp::now();
    let (mut a, mut b) = (open(), open());
    let led_by = |holder: &str, epoch| Lead::Others(Leader { epoch, place: format!("{holder}.example:4444") });
    // One leads at a time, each lead is a later epoch, and who goes lets others in at once.
    assert_eq!(a.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(1));
    assert_eq!(b.lead(&bid("b", None, 0), now).unwrap(), led_by("a", 1));
    assert_eq!(a.lead(&bid("a", Some(1), 0), now).unwrap(), Lead::Mine(1));
    assert_eq!(a.lead(&bid("a", Some(1), 7), now).unwrap(), Lead::Mine(8), "above what a relay has seen");
    b.resign("b").unwrap();
    assert_eq!(b.lead(&bid("b", None, 0), now).unwrap(), led_by("a", 8), "it had nothing to resign");
    a.resign("a").unwrap();
    assert_eq!(b.lead(&bid("b", None, 0), now).unwrap(), Lead::Mine(9));
    assert_eq!(a.lead(&bid("a", Some(8), 0), now).unwrap(), led_by("b", 9));

    // Rows are those of who leads.
    let row = |key: &str, row: Option<&str>| (key.to_owned(), row.map(str::to_owned));
    assert!(!a.share(8, &[row("relay/old", Some("{}"))]).unwrap(), "it was overtaken");
    assert!(b.share(9, &[row("relay/a", Some("1")), row("edge/b", Some("2"))]).unwrap());
    assert!(b.share(9, &[row("relay/a", None), row("edge/c", Some("3"))]).unwrap());
    assert_eq!(a.shared().unwrap(), [("edge/b".into(), "2".into()), ("edge/c".into(), "3".into())]);
    let many: Vec<_> = (0..3000).map(|n| row(&format!("edge/n{n}"), Some("row"))).collect();
    assert!(b.share(9, &many).unwrap());
    assert_eq!(a.shared().unwrap().len(), 3002);

    // What operators said.
    let entry = |key: &str, time| Entry { key: key.into(), value: "ann".into(), until: now.after(time) };
    a.put(&entry("drain/fra", DAY)).unwrap();
    a.put(&entry("drain/ams", Duration::from_secs(10))).unwrap();
    a.put(&entry("other", DAY)).unwrap();
    assert_eq!(
        b.list("drain/", now).unwrap(),
        [entry("drain/ams", Duration::from_secs(10)), entry("drain/fra", DAY)]
    );
    assert_eq!(b.list("drain/", now.after(Duration::from_secs(11))).unwrap(), [entry("drain/fra", DAY)]);
    b.remove("drain/fra").unwrap();
    b.remove("drain/fra").unwrap();
    assert_eq!(a.list("drain/f", now).unwrap(), []);

    // A token is used once, whoever is shown it.
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(a.claim(nonce, now.after(DAY)).unwrap());
    assert!(!b.claim(nonce, now.after(DAY)).unwrap());

    // The newest list.
    assert_eq!(a.newest("revoked/x", 3, "three").unwrap(), None);
    assert_eq!(b.newest("revoked/x", 2, "two").unwrap().as_deref(), Some("three"));
    assert_eq!(b.newest("revoked/x", 4, "four").unwrap(), None);
    assert_eq!(a.newest("revoked/x", 3, "three").unwrap().as_deref(), Some("four"));
    assert_eq!(b.newest("revoked/x", 4, "four").unwrap(), None);
    assert_eq!(a.newest("revoked/x", 4, "vier").unwrap().as_deref(), Some("four"), "two were made at once");
}

#[test]
fn one_server_keeps_its_word() {
    let server = Server::start(&[]);
    keeps_its_word(|| server.store());
    assert!(server.ask::<i64>(&["TTL", "marline:spent:0123456789abcdef0123456789abcdef"]) > 86_400);
}

#[test]
fn a_cluster_keeps_its_word() {
    let cluster = Cluster::start();
    keeps_its_word(|| store_at(&cluster.place()));
}

#[test]
fn a_lead_ends_by_itself() {
    let server = Server::start(&[]);
    let (mut a, mut b) = (server.store(), server.store());
    let now = Stamp::now();
    let short = Bid { lease: Duration::from_millis(50), ..bid("a", None, 0) };
    assert_eq!(a.lead(&short, now).unwrap(), Lead::Mine(1));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(a.lead(&Bid { epoch: Some(1), ..short }, now).unwrap(), Lead::Mine(1), "nobody else wanted it");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(b.lead(&bid("b", None, 0), now).unwrap(), Lead::Mine(2));
}

#[test]
fn members_stay_as_long_as_somebody_leads_though_nothing_changes() {
    let server = Server::start(&[]);
    let (mut a, now) = (server.store(), Stamp::now());
    assert_eq!(a.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(1));
    assert!(a.share(1, &[("relay/a".into(), Some("{}".into()))]).unwrap());
    // Almost a day later.
    server.ask::<()>(&["EXPIRE", "marline:{test}:members", "5"]);
    assert_eq!(a.lead(&bid("a", Some(1), 0), now).unwrap(), Lead::Mine(1));
    assert!(server.ask::<i64>(&["TTL", "marline:{test}:members"]) > 80_000);
    assert_eq!(a.shared().unwrap().len(), 1);
}

#[test]
fn regions_do_not_know_each_other_but_a_token_is_used_once_in_all() {
    let server = Server::start(&[]);
    let at = nodes(&format!("redis://127.0.0.1:{}", server.port));
    let open = |region: &str| Redis::new(at.clone(), region.parse().unwrap(), Secrets::default()).unwrap();
    let (mut north, mut south, now) = (open("north"), open("south"), Stamp::now());
    assert_eq!(north.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(1));
    assert_eq!(south.lead(&bid("b", None, 0), now).unwrap(), Lead::Mine(1));
    north.put(&Entry { key: "drain/x".into(), value: "ann".into(), until: now.after(DAY) }).unwrap();
    assert_eq!(south.list("", now).unwrap(), []);
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(north.claim(nonce, now).unwrap() && !south.claim(nonce, now).unwrap());
}

#[test]
fn a_full_server_keeps_the_lead_and_says_what_it_cannot() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let (mut a, mut b) = (server.store(), server.store());
    let now = Stamp::now();
    assert_eq!(a.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(1));
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(a.lead(&bid("a", Some(1), 0), now).unwrap(), Lead::Mine(1));
    a.resign("a").unwrap();
    assert_eq!(b.lead(&bid("b", None, 0), now).unwrap(), Lead::Mine(2), "another one takes over as well");
    let said = b.put(&Entry { key: "drain/x".into(), value: "ann".into(), until: now }).unwrap_err().to_string();
    assert!(said.starts_with("redis://127.0.0.1:") && said.contains("maxmemory"), "{said}");
    let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
    assert!(b.claim(nonce, now).is_err(), "a token that cannot be remembered brings nothing");
    assert!(b.share(2, &[("relay/a".into(), Some("{}".into()))]).is_err());
    server.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(b.claim(nonce, now.after(DAY)).unwrap());
}

#[test]
fn a_password_is_asked_for_and_never_repeated() {
    let server = Server::start(&[]);
    server.ask::<()>(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let at = nodes(&format!("redis://127.0.0.1:{}", server.port));
    let open = |password: Option<&str>| {
        let secrets = Secrets { password: password.map(str::to_owned), authority: None };
        assert_eq!(format!("{secrets:?}"), "MASKED");
        Redis::new(at.clone(), "test".parse().unwrap(), secrets).unwrap()
    };
    let mut right = open(Some("hunter2"));
    assert_eq!(right.lead(&bid("a", None, 0), Stamp::now()).unwrap(), Lead::Mine(1));
    for wrong in [None, Some("hunter3")] {
        let said = open(wrong).lead(&bid("b", None, 0), Stamp::now()).unwrap_err().to_string();
        assert!(!said.contains("hunter"), "{said}");
    }
}
