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
use super::link_rates::{LinkState, best_link};
use super::relay_list::RelayConfig;
use super::relay_selector::{LinkFacts, Output, RelayInfo, RelaySelector, SelectorConfig, TrafficSample};
use super::state_file::{StateFile, StateWriter};
use super::traffic_meter::MeterReading;
use crate::ca::{CaError, RevocationFile};
use crate::identity::Name;
use crate::service::api_types::{AssignmentReply, Candidate, CurrentAssignment, NoRelayReason};
use crate::service::{Client, ClientError};

/// chosen: what is wrong with a list or its file is not right five seconds later, and is said each time.
const CRL_RETRY: Duration = Duration::from_secs(60);
/// chosen: an edge that ends is not held up.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// chosen: the first look at the links takes less.
const FIRST_LINKS_TIMEOUT: Duration = Duration::from_secs(3);
/// The machine's time begins so late that there is a before.
const EPOCH_OFFSET: Duration = Duration::from_secs(100 * 86_400);

/// What an edge has of the fleet's service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// The service answers.
    pub reachable: bool,
    /// Why not.
    pub error: Option<String>,
    /// What it has given.
    pub assignment: Option<CurrentAssignment>,
    /// Why it has given nothing.
    pub reason: Option<NoRelayReason>,
    /// New flows wait until it gives a relay: none has room, and nothing may go directly.
    #[serde(default)]
    pub waiting: bool,
    /// The relays that flows are led to, the best first.
    pub relays: Vec<RelayInfo>,
    /// B_o(c): the most that one link has shown alone.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
}

/// Asks the service for an edge.
pub struct SelectorDriver {
    edge: Arc<Edge>,
    client: Client,
    selector: RelaySelector,
    epoch: std::time::Instant,
    state_writer: StateWriter,
    /// Whose list, and where.
    crl: (CertificateDer<'static>, PathBuf),
    /// When the list could not be fetched.
    crl_failed_at: Option<std::time::Instant>,
    configured: Vec<RelayConfig>,
    readings: BTreeMap<Name, MeterReading>,
    sampled_at: std::time::Instant,
    direct_traffic: (MeterReading, Bitrate),
    status: watch::Sender<FleetStatus>,
}

impl SelectorDriver {
    /// For this edge. `named` are the relays of the command line, `list` is where the revocation list of `authority` is kept.
    pub fn new(
        edge: &Arc<Edge>,
        client: Client,
        config: SelectorConfig,
        state_file: StateFile,
        list: (CertificateDer<'static>, &Path),
        configured: Vec<RelayConfig>,
    ) -> Self {
        let client = client.with_dialer(Arc::clone(&edge.relay_pool.dialer));
        let machine = RelaySelector::new(config, state_file.read(), Instant::default() + EPOCH_OFFSET);
        let now = std::time::Instant::now();
        Self {
            edge: Arc::clone(edge),
            client,
            selector: machine,
            epoch: now,
            state_writer: StateWriter::new(state_file, edge.state_file_error.clone()),
            crl: (list.0, list.1.to_owned()),
            crl_failed_at: None,
            configured,
            readings: BTreeMap::new(),
            sampled_at: now,
            direct_traffic: (MeterReading::default(), Bitrate::ZERO),
            status: watch::Sender::default(),
        }
    }

    /// How it stands; changes are told.
    pub fn status(&self) -> watch::Receiver<FleetStatus> {
        self.status.subscribe()
    }

    /// Asks, measures and leads until dropped.
    pub async fn run(&mut self) -> Infallible {
        let (mut links, mut wanted) = (self.edge.links.subscribe(), self.edge.stream_origin.subscribe());
        self.run_outputs().await;
        // Rates belong to links.
        let _ = timeout(FIRST_LINKS_TIMEOUT, links.wait_for(|links| !links.is_empty())).await.map(drop);
        let edge = Arc::clone(&self.edge);
        loop {
            self.update_links(&links.borrow_and_update().clone());
            if let Some(origin) = wanted.borrow_and_update().origin.clone()
                && self.selector.set_origin(origin)
            {
                self.state_writer.mark_dirty();
            }
            self.note_failures();
            if self.selector.deadline().is_some_and(|deadline| deadline <= self.now()) {
                self.sample();
                self.selector.tick(self.now());
            }
            self.run_outputs().await;
            self.publish_status();
            // Everything has been answered, so there is one.
            let deadline = self.selector.deadline().unwrap_or_else(|| self.now() + FIRST_LINKS_TIMEOUT);
            tokio::select! {
                () = sleep(deadline.since(self.now())) => {}
                () = edge.relay_pool.relay_failed() => {}
                _ = links.changed() => {}
                _ = wanted.changed() => {}
            }
        }
    }

    /// Tells the service that its relay is needed no longer, and keeps what is known.
    pub async fn release(&mut self) {
        self.state_writer.finish(self.selector.save()).await;
        let nothing = serde_json::json!({});
        let released = self.client.post::<AssignmentReply>("/v1/edges/release", &nothing);
        if let Ok(Err(error)) = timeout(RELEASE_TIMEOUT, released).await {
            tracing::debug!(%error, "not released; the lease will end");
        }
    }

    fn now(&self) -> Instant {
        Instant::default() + EPOCH_OFFSET + self.epoch.elapsed()
    }

    /// What the machine wants.
    async fn run_outputs(&mut self) {
        while let Some(output) = self.selector.poll() {
            match output {
                Output::FetchCandidates => match self.client.get::<Vec<Candidate>>(&self.candidates_path()).await {
                    Ok(candidates) => self.selector.handle_candidates(candidates, self.now()),
                    Err(error) => self.note_unreachable(&error),
                },
                Output::Probe(relay, limits) => {
                    let result = self.edge.probe(relay.as_str(), &limits).await;
                    let (probe, sent) = match result {
                        Some((Ok(probed), sent)) => (Some(probed), sent),
                        Some((Err(error), sent)) => {
                            tracing::warn!(%relay, %error, "not measured");
                            (None, sent)
                        }
                        None => (None, DataSize::ZERO),
                    };
                    self.selector.handle_probe(&relay, probe, sent, self.now());
                }
                Output::RequestAssignment(wish) => {
                    let response = self.client.post("/v1/edges/request", &wish).await;
                    self.handle_reply(response).await;
                }
                Output::SendReport(report) => {
                    let response = self.client.post("/v1/edges/report", &report).await;
                    self.handle_reply(response).await;
                }
                Output::UseRelays(names) => {
                    let configs = names.iter().filter_map(|name| relay_config(&self.selector.relay_info(name)?));
                    let relays: Vec<RelayConfig> = configs.chain(self.configured.iter().cloned()).collect();
                    self.edge.set_relays(&relays);
                }
                Output::Persist => self.state_writer.mark_dirty(),
            }
        }
        self.state_writer.write_if_due(|| self.selector.save());
    }

    async fn handle_reply(&mut self, response: Result<AssignmentReply, ClientError>) {
        match response {
            Ok(reply) => {
                let newest = reply.revocations;
                self.selector.handle_reply(reply, self.now());
                let was_unreachable = self.status.borrow().error.is_some();
                if was_unreachable {
                    tracing::info!("the fleet's service answers again");
                }
                self.status.send_modify(|view| (view.reachable, view.error) = (true, None));
                if self.needs_crl(newest)
                    && let Err(error) = self.fetch_crl().await
                {
                    tracing::warn!("the revocation list: {error}");
                    self.crl_failed_at = Some(std::time::Instant::now());
                }
            }
            Err(error) => self.note_unreachable(&error),
        }
    }

    fn note_unreachable(&mut self, error: &ClientError) {
        self.selector.handle_unreachable(self.now());
        let text = error.to_string();
        if self.status.borrow().error.is_none() {
            tracing::warn!("{text}: flows go on with the relays that are known");
        }
        self.status.send_modify(|view| (view.reachable, view.error) = (false, Some(text)));
    }

    /// Candidates near it, for its origin.
    fn candidates_path(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let request = self.selector.assignment_request();
        query.append_pair("origin", &request.origin.to_string());
        // A position prints itself as JSON alone.
        let position = request.position.and_then(|position| serde_json::to_value(position).ok());
        for field in ["latitude", "longitude"] {
            if let Some(degrees) = position.as_ref().and_then(|position| position.get(field)) {
                query.append_pair(field, &degrees.to_string());
            }
        }
        format!("/v1/candidates?{}", query.finish())
    }

    /// Rule 5.
    fn needs_crl(&self, newest: u64) -> bool {
        let held = self.edge.relay_pool.trusted().revocations.map(|list| list.number());
        held.is_none_or(|held| held < newest) && self.crl_failed_at.is_none_or(|at| at.elapsed() >= CRL_RETRY)
    }

    async fn fetch_crl(&mut self) -> Result<(), CrlError> {
        let text = self.client.get_text("/v1/revoked").await?;
        let (authority, path) = &self.crl;
        let trusted = self.edge.relay_pool.trusted();
        if trusted.other_authorities.has_issued(&text) {
            // While the authority is replaced, the service may be of the other one, whose list belongs into `ca.pem`.
            self.crl_failed_at = Some(std::time::Instant::now());
            return Ok(());
        }
        match trusted.revocations {
            Some(held) => held.update(&text)?,
            None => RevocationFile::install_if_newer(path, trusted.authority.as_ref().unwrap_or(authority), &text)?,
        };
        Ok(())
    }

    fn update_links(&mut self, links: &[LinkState]) {
        if links.is_empty() {
            return;
        }
        let up = || links.iter().filter(|link| link.up);
        let free: Vec<LinkState> = up().filter(|link| !link.metered).cloned().collect();
        let best_rate = best_link(links).map_or(Bitrate::ZERO, |link| link.peak_rate);
        let facts = LinkFacts {
            up: up().map(|link| link.name.clone()).collect(),
            metered: up().any(|link| link.metered),
            unmetered: best_link(&free).or(free.first()).map(|link| link.name.clone()),
            best_rate: best_rate.max(self.direct_traffic.1),
        };
        self.selector.set_links(facts, self.now());
    }

    fn note_failures(&mut self) {
        for entry in self.edge.relay_pool.relays.all() {
            if let Some(relay) = &entry.config.member {
                self.selector.set_failed(relay, entry.has_failed(), self.now());
            }
        }
    }

    /// What has gone through each relay since the last look.
    fn sample(&mut self) {
        let time = self.sampled_at.elapsed();
        if time < Duration::from_secs(1) {
            return;
        }
        self.sampled_at = std::time::Instant::now();
        let sample_since = |now: MeterReading, before: MeterReading| TrafficSample {
            sent: DataSize::from_bytes(now.up.saturating_sub(before.up)),
            blocked: now.blocked.saturating_sub(before.blocked),
        };
        let mut samples = Vec::new();
        for entry in self.edge.relay_pool.relays.all() {
            let Some(relay) = entry.config.member.clone() else { continue };
            let now = entry.traffic_meter.read();
            let before = self.readings.insert(relay.clone(), now).filter(|before| before.up <= now.up);
            samples.push((relay, sample_since(now, before.unwrap_or_default())));
        }
        let direct = self.edge.direct_meter.read();
        self.direct_traffic.1 = self.direct_traffic.1.max(sample_since(direct, self.direct_traffic.0).sent / time);
        self.direct_traffic.0 = direct;
        self.selector.record_traffic(&samples, time, self.now());
    }

    fn publish_status(&self) {
        let ((given, reason), is_waiting) = (self.selector.assignment(), self.selector.is_waiting());
        self.edge.relay_pool.set_held(is_waiting);
        self.status.send_modify(|view| {
            view.assignment = given.cloned();
            view.reason = reason;
            view.waiting = is_waiting;
            view.relays =
                self.selector.relays_in_use().iter().filter_map(|name| self.selector.relay_info(name)).collect();
            view.best_link_rate = self.selector.best_link_rate();
        });
    }
}

impl std::fmt::Debug for SelectorDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("machine", &self.selector).finish_non_exhaustive()
    }
}

/// Where a relay is, once that is known.
fn relay_config(known: &RelayInfo) -> Option<RelayConfig> {
    Some(RelayConfig {
        label: known.relay.to_string(),
        server_name: known.server_name.as_ref()?.server_name().clone(),
        endpoints: known.addresses.clone(),
        member: Some(known.relay.clone()),
    })
}

#[derive(Debug, thiserror::Error)]
enum CrlError {
    #[error(transparent)]
    Service(#[from] ClientError),
    #[error(transparent)]
    List(#[from] CaError),
}
