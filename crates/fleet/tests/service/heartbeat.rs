//! A relay that sends heartbeats to the service, over loopback.

use marline_fleet::relay::heartbeat::{HeartbeatConfig, send_heartbeats};
use marline_fleet::relay::{self, Listeners, Relay};
use marline_fleet::service::api_types::{AssignmentReply, RelaySummary};
use marline_fleet::service::{DrainReply, DrainRequest};

use super::*;

/// The messages that the relay has reported about the service.
type ReportLog = Arc<std::sync::Mutex<Vec<String>>>;

/// A relay of 100 Mbit/s with its listeners, and the parameters of its heartbeats.
pub(super) struct AnnouncedRelay {
    pub(super) relay: Arc<Relay>,
    pub(super) listeners: Listeners,
    pub(super) trust: TrustStore,
    pub(super) config: HeartbeatConfig,
    pub(super) client: Client,
}

impl AnnouncedRelay {
    /// A relay that keeps its revocation list in this file.
    pub(super) fn new(service: &TestService, revoked: &Path) -> Self {
        let credentials = service.member("marline://relay/r1");
        std::fs::copy(service.authority().crl_path(), revoked).unwrap();
        let client = service.client_of(&credentials);
        let trust = TrustStore::new(credentials, revoked).unwrap();
        let config = relay::Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            limits: relay::Limits { capacity: Some(mbps(100)), ..relay::Limits::default() },
            ..relay::Config::default()
        };
        let relay = Relay::new(config, trust.subscribe());
        let listeners = Listeners::open(&relay).unwrap();
        let heartbeat_config = HeartbeatConfig {
            capacity: mbps(100),
            addresses: vec![listeners.addresses()[0].to_string().parse().unwrap()],
            server_name: "127.0.0.1".parse().unwrap(),
            position: None,
        };
        Self { relay, listeners, trust, config: heartbeat_config, client }
    }
}

/// Starts a relay that sends heartbeats; returns it with the file of its revocation list.
async fn announce_relay(service: &TestService) -> (Arc<Relay>, PathBuf, ReportLog) {
    let revoked = service.path("revoked-of-r1.pem");
    let AnnouncedRelay { relay, config, client, .. } = AnnouncedRelay::new(service, &revoked);
    let announcing = Arc::clone(&relay);
    let log = ReportLog::default();
    let lines = Arc::clone(&log);
    let report = move |line: &str| lines.lock().unwrap().push(line.to_owned());
    tokio::spawn(async move { match send_heartbeats(&announcing, &config, client, report).await {} });
    (relay, revoked, log)
}

#[test]
fn a_relay_receives_assignments_drains_and_the_revocation_list() {
    block_on(async {
        let service = TestService::start_default().await;
        let (relay, revoked, _) = announce_relay(&service).await;
        let mut ann = service.client("marline://operator/ann");
        wait_until("listed", async || {
            let rows: Vec<RelaySummary> = ann.get("/v1/relays").await.unwrap();
            rows.first().is_some_and(|row| row.name.as_str() == "r1" && row.capacity == mbps(100))
        })
        .await;
        let mut cam = service.client("marline://edge/cam-1");
        let reply: AssignmentReply =
            cam.post("/v1/edges/request", &assignment_request(5, &[("r1", 30)])).await.unwrap();
        assert_eq!(
            reply.assignment.map(|it| (it.relay.to_string(), it.reservation)),
            Some(("r1".into(), mbps(30)))
        );
        wait_until("assigned", async || relay.assigned() == [("cam-1".parse().unwrap(), mbps(30))].into()).await;
        let drain = DrainRequest { draining: true, duration_ms: None };
        let _: DrainReply = ann.post("/v1/relays/r1/drain", &drain).await.unwrap();
        wait_until("closed", async || relay.state().closed).await;
        let before = std::fs::read(&revoked).unwrap();
        service.authority().revoke_name(&"marline://edge/cam-1".parse().unwrap(), UtcSeconds::now()).unwrap();
        wait_until("a new list", async || std::fs::read(&revoked).unwrap() != before).await;
    });
}

#[test]
fn an_unreachable_service_changes_nothing() {
    block_on(async {
        let mut service = TestService::start_default().await;
        let (relay, _, log) = announce_relay(&service).await;
        let mut cam = service.client("marline://edge/cam-1");
        wait_until("assigned", async || {
            let _: AssignmentReply =
                cam.post("/v1/edges/request", &assignment_request(5, &[("r1", 30)])).await.unwrap();
            !relay.assigned().is_empty()
        })
        .await;
        service.stop().await;
        // The next heartbeat fails.
        tokio::time::sleep(SchedulerConfig::default().heartbeat + Duration::from_secs(1)).await;
        assert_eq!(relay.assigned().len(), 1);
        assert!(!relay.state().closed);
        let messages = log.lock().unwrap().clone();
        assert_eq!(
            (messages.len(), messages[0].as_str()),
            (2, "the fleet's service knows this relay"),
            "{messages:?}"
        );
        assert!(
            messages[1].contains("does not answer: ") && messages[1].contains("streams continue"),
            "{messages:?}"
        );
    });
}
