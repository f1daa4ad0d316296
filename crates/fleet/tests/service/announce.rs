//! A relay that announces itself to the service, over loopback.

use marline_fleet::relay::announce::{Terms, announce};
use marline_fleet::relay::{self, Doors, Relay};
use marline_fleet::service::words::{RelayRow, Standing};
use marline_fleet::service::{Drain, Drained};

use super::*;

/// What it has said of the service.
type Said = Arc<std::sync::Mutex<Vec<String>>>;

/// A relay of 100 Mbit/s that listens, and what it announces itself with.
pub(super) struct Station {
    pub(super) relay: Arc<Relay>,
    pub(super) doors: Doors,
    pub(super) trust: Trust,
    pub(super) terms: Terms,
    pub(super) client: Client,
}

impl Station {
    /// With its list of the revoked in this file.
    pub(super) fn new(place: &Place, revoked: &Path) -> Self {
        let own = place.member("marline://relay/r1");
        std::fs::copy(place.authority().revocations_path(), revoked).unwrap();
        let client = place.client_of(&own);
        let trust = Trust::new(own, revoked).unwrap();
        let config = relay::Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            limits: relay::Limits { capacity: Some(mbps(100)), ..relay::Limits::default() },
            ..relay::Config::default()
        };
        let relay = Relay::new(config, trust.newest());
        let doors = Doors::open(&relay).unwrap();
        let terms = Terms {
            capacity: mbps(100),
            addresses: vec![doors.addresses()[0].to_string().parse().unwrap()],
            server_name: "127.0.0.1".parse().unwrap(),
            position: None,
        };
        Self { relay, doors, trust, terms, client }
    }
}

/// A relay that has announced itself, and the file of its list.
async fn announced(place: &Place) -> (Arc<Relay>, PathBuf, Said) {
    let revoked = place.path("revoked-of-r1.pem");
    let Station { relay, terms, client, .. } = Station::new(place, &revoked);
    let announcing = Arc::clone(&relay);
    let said = Said::default();
    let lines = Arc::clone(&said);
    let say = move |line: &str| lines.lock().unwrap().push(line.to_owned());
    tokio::spawn(async move { match announce(&announcing, &terms, client, say).await {} });
    (relay, revoked, said)
}

#[test]
fn a_relay_is_known_assigned_closed_and_told_who_was_revoked() {
    block_on(async {
        let place = Place::open().await;
        let (relay, revoked, _) = announced(&place).await;
        let mut ann = place.client("marline://operator/ann");
        until("listed", async || {
            let rows: Vec<RelayRow> = ann.fetch("/v1/relays").await.unwrap();
            rows.first().is_some_and(|row| row.name.as_str() == "r1" && row.capacity == mbps(100))
        })
        .await;
        let mut cam = place.client("marline://edge/cam-1");
        let standing: Standing = cam.send("/v1/edges/request", &wish(5, &[("r1", 30)])).await.unwrap();
        assert_eq!(
            standing.assignment.map(|it| (it.relay.to_string(), it.reservation)),
            Some(("r1".into(), mbps(30)))
        );
        until("assigned", async || relay.assigned() == [("cam-1".parse().unwrap(), mbps(30))].into()).await;
        let drain = Drain { draining: true, for_ms: None };
        let _: Drained = ann.send("/v1/relays/r1/drain", &drain).await.unwrap();
        until("closed", async || relay.state().closed).await;
        let before = std::fs::read(&revoked).unwrap();
        place.authority().revoke_name(&"marline://edge/cam-1".parse().unwrap(), Stamp::now()).unwrap();
        until("a new list", async || std::fs::read(&revoked).unwrap() != before).await;
    });
}

#[test]
fn a_service_that_is_gone_changes_nothing() {
    block_on(async {
        let mut place = Place::open().await;
        let (relay, _, said) = announced(&place).await;
        let mut cam = place.client("marline://edge/cam-1");
        until("assigned", async || {
            let _: Standing = cam.send("/v1/edges/request", &wish(5, &[("r1", 30)])).await.unwrap();
            !relay.assigned().is_empty()
        })
        .await;
        place.stop().await;
        // The next heartbeat finds nobody.
        tokio::time::sleep(Config::default().heartbeat + Duration::from_secs(1)).await;
        assert_eq!(relay.assigned().len(), 1);
        assert!(!relay.state().closed);
        let said = said.lock().unwrap().clone();
        assert_eq!((said.len(), said[0].as_str()), (2, "the fleet's service knows this relay"), "{said:?}");
        assert!(said[1].contains("does not answer: ") && said[1].contains("streams go on"), "{said:?}");
    });
}
