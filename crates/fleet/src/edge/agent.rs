//! The edge and the fleet's service: what the [`machine`](super::machine) wants asked and measured is done here.
//!
//! In: a service, an edge, and what was known before. Out: the relays that the edge leads its flows to; the newest revocation
//! list in its file.
//!
//! 1. One thing at a time. Flows do not wait for any of it.
//! 2. A service that does not answer is said once, and once more when it answers again.
//! 3. Relays of the command line come after those of the service.
//! 4. The list of the revoked is fetched when the service's answer names a newer one than is held; one that could not be had or
//!    kept is fetched again after a minute.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::{Bitrate, DataSize, Instant};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Edge;
use super::links::{LinkNow, best};
use super::machine::{Config, LinksNow, Machine, Output, RelayKnown, Sample};
use super::meter::Reading;
use super::relays::RelayAt;
use super::remembered::{Keeper, Remembered};
use crate::ca::{CaError, Revocations};
use crate::identity::Name;
use crate::service::words::{Candidate, Held, Reason, Standing};
use crate::service::{Client, ClientError};

/// chosen: what is wrong with a list or its file is not right five seconds later, and is said each time.
const AGAIN: Duration = Duration::from_secs(60);
/// chosen: an edge that ends is not held up.
const RELEASE: Duration = Duration::from_secs(2);
/// chosen: the first look at the links takes less.
const LINKS: Duration = Duration::from_secs(3);
/// The machine's time begins so late that there is a before.
const BEGINNING: Duration = Duration::from_secs(100 * 86_400);

/// What an edge has of the fleet's service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetView {
    /// The service answers.
    pub reached: bool,
    /// Why not.
    pub why: Option<String>,
    /// What it has given.
    pub given: Option<Held>,
    /// Why it has given nothing.
    pub reason: Option<Reason>,
    /// New flows wait until it gives a relay: none has room, and nothing may go directly.
    #[serde(default)]
    pub waiting: bool,
    /// The relays that flows are led to, the best first.
    pub relays: Vec<RelayKnown>,
    /// B_o(c): the most that one link has shown alone.
    #[serde(rename = "alone_bps")]
    pub alone: Bitrate,
}

/// Asks the service for an edge.
pub struct Agent {
    edge: Arc<Edge>,
    client: Client,
    machine: Machine,
    begun: std::time::Instant,
    keeper: Keeper,
    /// Whose list, and where.
    list: (CertificateDer<'static>, PathBuf),
    /// When the list could not be fetched.
    unlisted: Option<std::time::Instant>,
    named: Vec<RelayAt>,
    readings: BTreeMap<Name, Reading>,
    sampled: std::time::Instant,
    direct: (Reading, Bitrate),
    view: watch::Sender<FleetView>,
}

impl Agent {
    /// For this edge. `named` are the relays of the command line, `list` is where the revocation list of `authority` is kept.
    pub fn new(
        edge: &Arc<Edge>,
        client: Client,
        config: Config,
        remembered: Remembered,
        list: (CertificateDer<'static>, &Path),
        named: Vec<RelayAt>,
    ) -> Self {
        let client = client.over(Arc::clone(&edge.roads.starts));
        let machine = Machine::new(config, remembered.read(), Instant::default() + BEGINNING);
        let now = std::time::Instant::now();
        Self {
            edge: Arc::clone(edge),
            client,
            machine,
            begun: now,
            keeper: Keeper::new(remembered, edge.state_trouble.clone()),
            list: (list.0, list.1.to_owned()),
            unlisted: None,
            named,
            readings: BTreeMap::new(),
            sampled: now,
            direct: (Reading::default(), Bitrate::ZERO),
            view: watch::Sender::default(),
        }
    }

    /// How it stands; changes are told.
    pub fn view(&self) -> watch::Receiver<FleetView> {
        self.view.subscribe()
    }

    /// Asks, measures and leads until dropped.
    pub async fn run(&mut self) -> Infallible {
        let (mut links, mut wanted) = (self.edge.links.subscribe(), self.edge.wanted.subscribe());
        self.act().await;
        // Rates belong to links.
        let _ = timeout(LINKS, links.wait_for(|links| !links.is_empty())).await.map(drop);
        let edge = Arc::clone(&self.edge);
        loop {
            self.look(&links.borrow_and_update().clone());
            if let Some(origin) = wanted.borrow_and_update().origin.clone()
                && self.machine.origin(origin)
            {
                self.keeper.note();
            }
            self.note_failures();
            if self.machine.deadline().is_some_and(|deadline| deadline <= self.now()) {
                self.sample();
                self.machine.tick(self.now());
            }
            self.act().await;
            self.show();
            // Everything has been answered, so there is one.
            let deadline = self.machine.deadline().unwrap_or_else(|| self.now() + LINKS);
            tokio::select! {
                () = sleep(deadline.since(self.now())) => {}
                () = edge.roads.failing() => {}
                _ = links.changed() => {}
                _ = wanted.changed() => {}
            }
        }
    }

    /// Tells the service that its relay is needed no longer, and keeps what is known.
    pub async fn release(&mut self) {
        self.keeper.end(self.machine.save()).await;
        let nothing = serde_json::json!({});
        let released = self.client.send::<Standing>("/v1/edges/release", &nothing);
        if let Ok(Err(error)) = timeout(RELEASE, released).await {
            tracing::debug!(%error, "not released; the lease will end");
        }
    }

    fn now(&self) -> Instant {
        Instant::default() + BEGINNING + self.begun.elapsed()
    }

    /// What the machine wants.
    async fn act(&mut self) {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Candidates => match self.client.fetch::<Vec<Candidate>>(&self.near()).await {
                    Ok(candidates) => self.machine.candidates(candidates, self.now()),
                    Err(error) => self.unreachable(&error),
                },
                Output::Probe(relay, terms) => {
                    let measured = self.edge.probe(relay.as_str(), &terms).await;
                    let (probed, sent) = match measured {
                        Some((Ok(probed), sent)) => (Some(probed), sent),
                        Some((Err(error), sent)) => {
                            tracing::warn!(%relay, %error, "not measured");
                            (None, sent)
                        }
                        None => (None, DataSize::ZERO),
                    };
                    self.machine.probed(&relay, probed, sent, self.now());
                }
                Output::Request(wish) => {
                    let asked = self.client.send("/v1/edges/request", &wish).await;
                    self.answered(asked).await;
                }
                Output::Report(report) => {
                    let asked = self.client.send("/v1/edges/report", &report).await;
                    self.answered(asked).await;
                }
                Output::Use(names) => {
                    let found = names.iter().filter_map(|name| place(&self.machine.relay(name)?));
                    let relays: Vec<RelayAt> = found.chain(self.named.iter().cloned()).collect();
                    self.edge.lead(&relays);
                }
                Output::Keep => self.keeper.note(),
            }
        }
        self.keeper.keep(|| self.machine.save());
    }

    async fn answered(&mut self, asked: Result<Standing, ClientError>) {
        match asked {
            Ok(standing) => {
                let newest = standing.revocations;
                self.machine.standing(standing, self.now());
                let was = self.view.borrow().why.is_some();
                if was {
                    tracing::info!("the fleet's service answers again");
                }
                self.view.send_modify(|view| (view.reached, view.why) = (true, None));
                if self.is_behind(newest)
                    && let Err(error) = self.fetch_list().await
                {
                    tracing::warn!("the revocation list: {error}");
                    self.unlisted = Some(std::time::Instant::now());
                }
            }
            Err(error) => self.unreachable(&error),
        }
    }

    fn unreachable(&mut self, error: &ClientError) {
        self.machine.unreachable(self.now());
        let words = error.to_string();
        if self.view.borrow().why.is_none() {
            tracing::warn!("{words}: flows go on with the relays that are known");
        }
        self.view.send_modify(|view| (view.reached, view.why) = (false, Some(words)));
    }

    /// Candidates near it, for its origin.
    fn near(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let wish = self.machine.wish();
        query.append_pair("origin", &wish.origin.to_string());
        // A position prints itself as JSON alone.
        let position = wish.position.and_then(|position| serde_json::to_value(position).ok());
        for field in ["latitude", "longitude"] {
            if let Some(degrees) = position.as_ref().and_then(|position| position.get(field)) {
                query.append_pair(field, &degrees.to_string());
            }
        }
        format!("/v1/candidates?{}", query.finish())
    }

    /// Rule 5.
    fn is_behind(&self, newest: u64) -> bool {
        let held = self.edge.roads.trusted().revocations.map(|list| list.number());
        held.is_none_or(|held| held < newest) && self.unlisted.is_none_or(|at| at.elapsed() >= AGAIN)
    }

    async fn fetch_list(&mut self) -> Result<(), ListError> {
        let text = self.client.text("/v1/revoked").await?;
        let (authority, path) = &self.list;
        let trusted = self.edge.roads.trusted();
        if trusted.others.have_issued(&text) {
            // While the authority is replaced, the service may be of the other one, whose list belongs into `ca.pem`.
            self.unlisted = Some(std::time::Instant::now());
            return Ok(());
        }
        match trusted.revocations {
            Some(held) => held.take(&text)?,
            None => Revocations::bring(path, trusted.authority.as_ref().unwrap_or(authority), &text)?,
        };
        Ok(())
    }

    fn look(&mut self, links: &[LinkNow]) {
        if links.is_empty() {
            return;
        }
        let up = || links.iter().filter(|link| link.up);
        let free: Vec<LinkNow> = up().filter(|link| !link.metered).cloned().collect();
        let one = best(links).map_or(Bitrate::ZERO, |link| link.most);
        let now = LinksNow {
            up: up().map(|link| link.name.clone()).collect(),
            metered: up().any(|link| link.metered),
            free: best(&free).or(free.first()).map(|link| link.name.clone()),
            alone: one.max(self.direct.1),
        };
        self.machine.links(now, self.now());
    }

    fn note_failures(&mut self) {
        for station in self.edge.roads.relays.all() {
            if let Some(relay) = &station.at.member {
                self.machine.failed(relay, station.has_failed(), self.now());
            }
        }
    }

    /// What has gone through each relay since the last look.
    fn sample(&mut self) {
        let time = self.sampled.elapsed();
        if time < Duration::from_secs(1) {
            return;
        }
        self.sampled = std::time::Instant::now();
        let since = |now: Reading, before: Reading| Sample {
            sent: DataSize::from_bytes(now.up.saturating_sub(before.up)),
            waited: now.waited.saturating_sub(before.waited),
        };
        let mut samples = Vec::new();
        for station in self.edge.roads.relays.all() {
            let Some(relay) = station.at.member.clone() else { continue };
            let now = station.meter.read();
            let before = self.readings.insert(relay.clone(), now).filter(|before| before.up <= now.up);
            samples.push((relay, since(now, before.unwrap_or_default())));
        }
        let direct = self.edge.direct.read();
        self.direct.1 = self.direct.1.max(since(direct, self.direct.0).sent / time);
        self.direct.0 = direct;
        self.machine.traffic(&samples, time, self.now());
    }

    fn show(&self) {
        let ((given, reason), waits) = (self.machine.given(), self.machine.waits());
        self.edge.roads.hold(waits);
        self.view.send_modify(|view| {
            view.given = given.cloned();
            view.reason = reason;
            view.waiting = waits;
            view.relays = self.machine.used().iter().filter_map(|name| self.machine.relay(name)).collect();
            view.alone = self.machine.alone();
        });
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// Where a relay is, once that is known.
fn place(known: &RelayKnown) -> Option<RelayAt> {
    Some(RelayAt {
        label: known.relay.to_string(),
        server: known.server_name.as_ref()?.server_name().clone(),
        places: known.addresses.clone(),
        member: Some(known.relay.clone()),
    })
}

#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error(transparent)]
    List(#[from] CaError),
}
