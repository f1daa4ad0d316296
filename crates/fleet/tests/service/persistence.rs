//! State that survives a restart of the service, and state that members report again.

use marline_fleet::service::api_types::{AssignmentReply, HeartbeatReply, RelaySummary};
use marline_fleet::service::{DrainReply, DrainRequest, EnrolRequest};
use serde_json::Value;

use super::*;

#[test]
fn a_lost_store_is_recovered_within_two_heartbeats() {
    block_on(async {
        let mut service = TestService::start_default().await;
        let mut relay = service.client("marline://relay/fra-1");
        let mut edge = service.client("marline://edge/cam-7");
        let request = assignment_request(5, &[("fra-1", 40)]);
        relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        let got: AssignmentReply = edge.post("/v1/edges/request", &request).await.unwrap();
        let initial = got.assignment.unwrap();
        service.stop().await;
        std::fs::remove_file(service.path("store")).unwrap();
        service.start(Limits::default(), |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        // The relay has seen epoch 7 of an earlier process; the new process must continue above it.
        let assignment = CurrentAssignment {
            relay: initial.relay.clone(),
            reservation: initial.reservation,
            version: initial.version,
        };
        let assignment_reply: AssignmentReply =
            edge.post("/v1/edges/report", &report(request.clone(), Some(assignment.clone()))).await.unwrap();
        let assigned = assignment_reply.assignment.unwrap();
        assert_eq!((&assigned.relay, assigned.reservation), (&initial.relay, initial.reservation));
        let seen_version = StateVersion { epoch: 7, version: 3 };
        relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let first_reply: HeartbeatReply =
            relay.post("/v1/relays/heartbeat", &heartbeat(100, seen_version)).await.unwrap();
        assert_eq!(
            (first_reply.report_reservations, first_reply.version, &first_reply.reservations),
            (true, seen_version, &None),
            "the relay keeps its reservations"
        );
        // A lying edge that reports earlier takes nothing from the relay's list of reservations.
        let mut liar = service.client("marline://edge/liar");
        let lie = CurrentAssignment { reservation: mbps(90), ..assignment.clone() };
        let all = super::assignment_request(5, &[("fra-1", 90)]);
        liar.post::<AssignmentReply>("/v1/edges/report", &report(all, Some(lie))).await.unwrap();
        let list = std::collections::BTreeMap::from([("cam-7".parse().unwrap(), mbps(40))]);
        let heartbeat_with_list = Heartbeat { reservations: Some(list), ..heartbeat(100, seen_version) };
        let reply: HeartbeatReply = relay.post("/v1/relays/heartbeat", &heartbeat_with_list).await.unwrap();
        assert_eq!((reply.report_reservations, reply.version.epoch), (false, 8));
        let reserved = reply.reservations.unwrap();
        assert_eq!(reserved.len(), 1);
        assert_eq!((reserved[0].edge.as_str(), reserved[0].reservation), ("cam-7", mbps(40)));
        let again: AssignmentReply =
            edge.post("/v1/edges/report", &report(request, Some(assignment))).await.unwrap();
        let again = again.assignment.unwrap();
        assert_eq!((again.relay, again.addresses.len()), (initial.relay, 1));
    });
}

#[test]
fn drains_and_used_tokens_survive_a_kill() {
    block_on(async {
        let mut service = TestService::start_default().await;
        let mut ann = service.client("marline://operator/ann");
        let drain = DrainRequest { draining: true, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, DrainReply { known: false, durable: true });
        let hour = DrainRequest { draining: true, duration_ms: Some(3_600_000) };
        ann.post::<Value>("/v1/relays/ams-1/drain", &hour).await.unwrap();
        ann.post::<Value>("/v1/relays/nyc-1/drain", &hour).await.unwrap();
        ann.post::<Value>("/v1/relays/nyc-1/drain", &DrainRequest { draining: false, duration_ms: None })
            .await
            .unwrap();
        let template = CertTemplate::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token =
            service.authority().create_token(&template, DAY, UtcSeconds::now()).unwrap().reveal().to_owned();
        let request = marline_fleet::ca::KeyWithRequest::generate().unwrap().request;
        let enrol = EnrolRequest { token, request };
        ann.post::<Value>("/v1/enrol", &enrol).await.unwrap();
        service.stop().await;
        // Even if the authority's own list is lost, the store knows the token.
        std::fs::remove_file(service.path("ca/spent")).unwrap();
        service.start(Limits::default(), |path| Box::new(EmbeddedStore::open(path).unwrap())).await;
        assert_eq!(expect_problem(ann.post::<Value>("/v1/enrol", &enrol).await).status, 409);
        for (name, draining) in [("fra-1", true), ("ams-1", true), ("nyc-1", false)] {
            let mut relay = service.client(&format!("marline://relay/{name}"));
            let reply: HeartbeatReply =
                relay.post("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
            assert_eq!((reply.draining, reply.version.epoch), (draining, 2), "{name}");
        }
    });
}

#[test]
fn a_full_store_stops_no_member() {
    block_on(async {
        let full = Arc::new(AtomicBool::new(false));
        let fault = Arc::clone(&full);
        let store = |path: &Path| -> Box<dyn Store> {
            Box::new(FaultyStore { inner: EmbeddedStore::open(path).unwrap(), full: fault })
        };
        let service = TestService::with(Limits::default(), store).await;
        let mut relay = service.client("marline://relay/fra-1");
        let mut edge = service.client("marline://edge/cam-7");
        let mut ann = service.client("marline://operator/ann");
        relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        full.store(true, Ordering::Relaxed);
        let got: AssignmentReply =
            edge.post("/v1/edges/request", &assignment_request(5, &[("fra-1", 40)])).await.unwrap();
        assert!(got.assignment.is_some());
        let mut errors = service.coordinator.clone().unwrap().errors();
        let drain = DrainRequest { draining: true, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: false }, "applied, but not stored");
        let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
        assert!(rows[0].draining);
        assert!(errors.borrow_and_update().as_ref().unwrap().contains("no space left"));
        ann.post::<Value>("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert!(!errors.has_changed().unwrap(), "it is reported once");
        // If the use of a token cannot be stored, enrolment fails and the token stays valid.
        let template = CertTemplate::new("marline://edge/cam-9".parse().unwrap(), vec![], DAY).unwrap();
        let token =
            service.authority().create_token(&template, DAY, UtcSeconds::now()).unwrap().reveal().to_owned();
        let enrol = EnrolRequest { token, request: marline_fleet::ca::KeyWithRequest::generate().unwrap().request };
        assert_eq!(expect_problem(edge.post::<Value>("/v1/enrol", &enrol).await).status, 503);
        full.store(false, Ordering::Relaxed);
        edge.post::<Value>("/v1/enrol", &enrol).await.unwrap();
        let drained: DrainReply = ann.post("/v1/relays/fra-1/drain", &drain).await.unwrap();
        assert!(drained.durable);
        // The bid for leadership recovers at its own interval.
        let over = tokio::time::timeout(Duration::from_secs(30), errors.wait_for(Option::is_none)).await;
        assert!(over.is_ok_and(|over| over.is_ok()));
    });
}

#[test]
fn a_process_that_is_not_the_leader_reports_it() {
    block_on(async {
        let store = |path: &Path| -> Box<dyn Store> {
            let mut store = EmbeddedStore::open(path).unwrap();
            let now = UtcSeconds::now();
            let lease = Duration::from_secs(3);
            let bid = Bid { holder: "f2".into(), address: String::new(), epoch: None, min_epoch: 0, lease };
            store.bid(&bid, now).unwrap();
            Box::new(store)
        };
        let service = TestService::with(Limits::default(), store).await;
        let mut relay = service.client("marline://relay/fra-1");
        let heartbeat = heartbeat(100, StateVersion::default());
        let reply: HeartbeatReply = relay.post("/v1/relays/heartbeat", &heartbeat).await.unwrap();
        assert_eq!(reply.version, StateVersion::default(), "a relay ignores this version");
        let mut edge = service.client("marline://edge/cam-7");
        let problem = expect_problem(edge.post::<Value>("/v1/edges/request", &assignment_request(5, &[])).await);
        assert_eq!((problem.status, problem.title.as_str()), (503, "not_leading"));
        assert_eq!(relay.get::<Value>("/v1/health").await.unwrap()["status"], "standby");
        // The lease of the other process ends, because it does not bid again.
        wait_until("it leads", async || {
            relay.post::<HeartbeatReply>("/v1/relays/heartbeat", &heartbeat).await.unwrap().version.epoch == 2
        })
        .await;
    });
}

#[test]
fn a_stopping_service_finishes_requests_and_closes_connections() {
    block_on(async {
        let mut service = TestService::start_default().await;
        let mut relay = service.client("marline://relay/fra-1");
        let mut edge = service.client("marline://edge/cam-7");
        relay.post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default())).await.unwrap();
        edge.get::<Value>("/v1/health").await.unwrap();
        let end = Arc::clone(&service.stop);
        let second_request = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            end.notify_one();
        };
        let request = assignment_request(5, &[("fra-1", 40)]);
        let (got, ()) = tokio::join!(edge.post::<AssignmentReply>("/v1/edges/request", &request), second_request);
        assert!(got.unwrap().assignment.is_some());
        let listener_task = service.running.pop().unwrap();
        tokio::time::timeout(Duration::from_secs(1), listener_task)
            .await
            .expect("no connection delays the end")
            .unwrap();
        assert!(relay.get::<Value>("/v1/health").await.is_err());
    });
}
