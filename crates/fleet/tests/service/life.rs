//! What outlasts the service, and what announces itself again.

use marline_fleet::service::words::{BeatAnswer, RelayRow, Standing};
use marline_fleet::service::{Drain, Drained, Enrol};
use serde_json::Value;

use super::*;

#[test]
fn a_store_that_is_lost_is_whole_again_after_two_heartbeats() {
    block_on(async {
        let mut place = Place::open().await;
        let mut relay = place.client("marline://relay/fra-1");
        let mut edge = place.client("marline://edge/cam-7");
        let wish = wish(5, &[("fra-1", 40)]);
        relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        let got: Standing = edge.send("/v1/edges/request", &wish).await.unwrap();
        let had = got.assignment.unwrap();
        place.stop().await;
        std::fs::remove_file(place.path("store")).unwrap();
        place.start(Limits::default(), |path| Box::new(Embedded::open(path).unwrap())).await;
        // The relay has seen epoch 7 of some process before: the new one must not be taken for an older one.
        let held = Held { relay: had.relay.clone(), reservation: had.reservation, mark: had.mark };
        let kept: Standing =
            edge.send("/v1/edges/report", &report(wish.clone(), Some(held.clone()))).await.unwrap();
        let kept = kept.assignment.unwrap();
        assert_eq!((&kept.relay, kept.reservation), (&had.relay, had.reservation));
        let seen = Mark { epoch: 7, version: 3 };
        relay.send::<Value>("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, seen)).await.unwrap();
        assert_eq!((asked.tell_held, asked.mark, &asked.assignments), (true, seen, &None), "it keeps what it has");
        // A liar who speaks before it takes nothing of what it keeps for others.
        let mut liar = place.client("marline://edge/liar");
        let lie = Held { reservation: mbps(90), ..held.clone() };
        let all = super::wish(5, &[("fra-1", 90)]);
        liar.send::<Standing>("/v1/edges/report", &report(all, Some(lie))).await.unwrap();
        let list = std::collections::BTreeMap::from([("cam-7".parse().unwrap(), mbps(40))]);
        let says = Beat { held: Some(list), ..beat(100, seen) };
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &says).await.unwrap();
        assert_eq!((told.tell_held, told.mark.epoch), (false, 8));
        let reserved = told.assignments.unwrap();
        assert_eq!(reserved.len(), 1);
        assert_eq!((reserved[0].edge.as_str(), reserved[0].reservation), ("cam-7", mbps(40)));
        let again: Standing = edge.send("/v1/edges/report", &report(wish, Some(held))).await.unwrap();
        let again = again.assignment.unwrap();
        assert_eq!((again.relay, again.addresses.len()), (had.relay, 1));
    });
}

#[test]
fn what_operators_said_and_tokens_that_were_spent_outlast_a_kill() {
    block_on(async {
        let mut place = Place::open().await;
        let mut ann = place.client("marline://operator/ann");
        let drain = Drain { draining: true, for_ms: None };
        let drained: Drained = ann.send("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, Drained { known: false, durable: true });
        let hour = Drain { draining: true, for_ms: Some(3_600_000) };
        ann.send::<Value>("/v1/relays/ams-1/drain", &hour).await.unwrap();
        ann.send::<Value>("/v1/relays/nyc-1/drain", &hour).await.unwrap();
        ann.send::<Value>("/v1/relays/nyc-1/drain", &Drain { draining: false, for_ms: None }).await.unwrap();
        let grant = Grant::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token = place.authority().token(&grant, DAY, Stamp::now()).unwrap().reveal().to_owned();
        let request = marline_fleet::ca::NewKey::generate().unwrap().request;
        let enrol = Enrol { token, request };
        ann.send::<Value>("/v1/enrol", &enrol).await.unwrap();
        place.stop().await;
        // The authority's own list may be lost as well: the store still knows.
        std::fs::remove_file(place.path("ca/spent")).unwrap();
        place.start(Limits::default(), |path| Box::new(Embedded::open(path).unwrap())).await;
        assert_eq!(refused(ann.send::<Value>("/v1/enrol", &enrol).await).status, 409);
        for (name, draining) in [("fra-1", true), ("ams-1", true), ("nyc-1", false)] {
            let mut relay = place.client(&format!("marline://relay/{name}"));
            let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
            assert_eq!((told.draining, told.mark.epoch), (draining, 2), "{name}");
        }
    });
}

#[test]
fn a_store_that_is_full_stops_nobody() {
    block_on(async {
        let full = Arc::new(AtomicBool::new(false));
        let fault = Arc::clone(&full);
        let store = |path: &Path| -> Box<dyn Store> {
            Box::new(Faulty { inner: Embedded::open(path).unwrap(), full: fault })
        };
        let place = Place::with(Limits::default(), store).await;
        let mut relay = place.client("marline://relay/fra-1");
        let mut edge = place.client("marline://edge/cam-7");
        let mut ann = place.client("marline://operator/ann");
        relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        full.store(true, Ordering::Relaxed);
        let got: Standing = edge.send("/v1/edges/request", &wish(5, &[("fra-1", 40)])).await.unwrap();
        assert!(got.assignment.is_some());
        let mut trouble = place.desk.clone().unwrap().trouble();
        let drain = Drain { draining: true, for_ms: None };
        let drained: Drained = ann.send("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, Drained { known: true, durable: false }, "done, and said not to last");
        let rows: Vec<RelayRow> = ann.fetch("/v1/relays").await.unwrap();
        assert!(rows[0].draining);
        assert!(trouble.borrow_and_update().as_ref().unwrap().contains("no space left"));
        ann.send::<Value>("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert!(!trouble.has_changed().unwrap(), "it is said once");
        // A token that cannot be remembered brings nothing, and is not lost by it.
        let grant = Grant::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token = place.authority().token(&grant, DAY, Stamp::now()).unwrap().reveal().to_owned();
        let enrol = Enrol { token, request: marline_fleet::ca::NewKey::generate().unwrap().request };
        assert_eq!(refused(edge.send::<Value>("/v1/enrol", &enrol).await).status, 503);
        full.store(false, Ordering::Relaxed);
        edge.send::<Value>("/v1/enrol", &enrol).await.unwrap();
        let drained: Drained = ann.send("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert!(drained.durable);
        // The lead is renewed at its own times.
        let over = tokio::time::timeout(Duration::from_secs(30), trouble.wait_for(Option::is_none)).await;
        assert!(over.is_ok_and(|over| over.is_ok()));
    });
}

#[test]
fn who_does_not_lead_says_so() {
    block_on(async {
        let store = |path: &Path| -> Box<dyn Store> {
            let mut store = Embedded::open(path).unwrap();
            let now = Stamp::now();
            let lease = Duration::from_secs(3);
            let bid = Bid { holder: "f2".into(), place: String::new(), epoch: None, above: 0, lease };
            store.lead(&bid, now).unwrap();
            Box::new(store)
        };
        let place = Place::with(Limits::default(), store).await;
        let mut relay = place.client("marline://relay/fra-1");
        let beat = beat(100, Mark::default());
        let told: BeatAnswer = relay.send("/v1/relays/heartbeat", &beat).await.unwrap();
        assert_eq!(told.mark, Mark::default(), "which is no news to any relay");
        let mut edge = place.client("marline://edge/cam-7");
        let problem = refused(edge.send::<Value>("/v1/edges/request", &wish(5, &[])).await);
        assert_eq!((problem.status, problem.title.as_str()), (503, "not-leading"));
        assert_eq!(relay.fetch::<Value>("/v1/health").await.unwrap()["status"], "standby");
        // The other one does not bid again.
        until("it leads", async || {
            relay.send::<BeatAnswer>("/v1/relays/heartbeat", &beat).await.unwrap().mark.epoch == 2
        })
        .await;
    });
}

#[test]
fn a_service_that_ends_answers_what_it_was_asked_and_closes_the_rest() {
    block_on(async {
        let mut place = Place::open().await;
        let mut relay = place.client("marline://relay/fra-1");
        let mut edge = place.client("marline://edge/cam-7");
        relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
        edge.fetch::<Value>("/v1/health").await.unwrap();
        let end = Arc::clone(&place.end);
        let later = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            end.notify_one();
        };
        let wish = wish(5, &[("fra-1", 40)]);
        let (got, ()) = tokio::join!(edge.send::<Standing>("/v1/edges/request", &wish), later);
        assert!(got.unwrap().assignment.is_some());
        let attending = place.running.pop().unwrap();
        tokio::time::timeout(Duration::from_secs(1), attending).await.expect("nobody holds it up").unwrap();
        assert!(relay.fetch::<Value>("/v1/health").await.is_err());
    });
}
