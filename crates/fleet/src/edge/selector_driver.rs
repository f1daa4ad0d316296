//! Driver of the relay selection: sends the requests of the [`RelaySelector`] to the fleet service, runs its probes, and sets the edge's
//! relays. It also keeps the file of the revocation list up to date.
//!
//! 1. Operations run one at a time. Flows do not wait for them.
//! 2. An unreachable service is logged once, and once more when it answers again.
//! 3. Relays of the command line come after those of the service.
//! 4. The revocation list is fetched when a reply of the service names a newer one. A list that could not be fetched or stored is fetched
//!    again after a minute.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_core::fleet::relay_selection::{
    Input, LinkFacts, Output, ProbeLimits, RelayInfo, RelaySelector, SelectorConfig, TrafficSample,
};
use marline_core::machine::Machine as _;
use marline_core::units::{Bitrate, DataSize, Instant};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Edge;
use super::link_rates::{LinkState, best_link};
use super::relay_list::RelayConfig;
use super::state_file::{StateFile, StateWriter};
use super::traffic_meter::MeterReading;
use crate::ca::{CaError, RevocationFile};
use crate::crypto::server_name;
use crate::identity::Name;
use crate::service::api_types::{
    AssignmentReply, AssignmentRequest, Candidate, CurrentAssignment, NoRelayReason, Report,
};
use crate::service::{Client, ClientError};

/// Our choice: a fault of a list or its file is usually not fixed within five seconds, and each attempt logs it.
const CRL_RETRY: Duration = Duration::from_secs(60);
/// Our choice: the shutdown of an edge is not delayed longer.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the first operation waits for a sample of the links. Our choice: the first one takes less.
const FIRST_LINKS_TIMEOUT: Duration = Duration::from_secs(3);
/// The selector's clock starts this late, so that times before the start can be expressed.
const EPOCH_OFFSET: Duration = Duration::from_secs(100 * 86_400);

/// State of the edge's relation to the fleet service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// Whether the service answers.
    pub reachable: bool,
    /// Why it does not; `None`: it does.
    pub error: Option<String>,
    /// The relay that it has assigned.
    pub assignment: Option<CurrentAssignment>,
    /// Why it has assigned none.
    pub reason: Option<NoRelayReason>,
    /// Whether new flows wait for an assignment: no relay has capacity, and no flow may go directly.
    #[serde(default)]
    pub waiting: bool,
    /// The relays for new flows, in order of preference.
    pub relays: Vec<RelayInfo>,
    /// B_o(c): the highest rate that a single link has reached.
    #[serde(rename = "best_link_bps")]
    pub best_link_rate: Bitrate,
}

/// An operation that takes time; one runs at a time.
enum Operation {
    Candidates,
    Probe(Name, ProbeLimits),
    Request(Box<AssignmentRequest>),
    Report(Box<Report>),
}

/// Runs the relay selection of one edge against a fleet service.
pub struct SelectorDriver {
    edge: Arc<Edge>,
    client: Client,
    selector: RelaySelector,
    /// The operation that the selector waits for, until it is started.
    operation: Option<Operation>,
    epoch: std::time::Instant,
    state_writer: StateWriter,
    /// The authority of the revocation list, and the path of its file.
    crl: (CertificateDer<'static>, PathBuf),
    /// When the revocation list could not be fetched the last time.
    crl_failed_at: Option<std::time::Instant>,
    configured: Vec<RelayConfig>,
    /// The traffic counters of each relay at the last sample, and when that was.
    readings: BTreeMap<Name, MeterReading>,
    sampled_at: std::time::Instant,
    /// The traffic counters of direct flows at the last sample, and their highest sending rate.
    direct_traffic: (MeterReading, Bitrate),
    status: watch::Sender<FleetStatus>,
}

impl SelectorDriver {
    /// Creates the driver of this edge. `configured` are the relays of the command line, `list` is the authority of the revocation list and
    /// the path of its file.
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
            operation: None,
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

    /// The current state. Receivers are notified of changes.
    pub fn status(&self) -> watch::Receiver<FleetStatus> {
        self.status.subscribe()
    }

    /// Runs the selection until dropped.
    pub async fn run(&mut self) -> Infallible {
        let (mut links, mut stream_origin) = (self.edge.links.subscribe(), self.edge.stream_origin.subscribe());
        self.run_outputs().await;
        // Rates are recorded with the links over which they were measured, so links must be known first.
        let _ = timeout(FIRST_LINKS_TIMEOUT, links.wait_for(|links| !links.is_empty())).await.map(drop);
        let edge = Arc::clone(&self.edge);
        loop {
            self.update_links(&links.borrow_and_update().clone());
            let origin = stream_origin.borrow_and_update().origin.clone();
            if let Some(origin) = origin {
                self.handle(Input::Origin(origin));
            }
            self.note_failures();
            if self.selector.deadline().is_some_and(|(deadline, _)| deadline <= self.now()) {
                self.sample();
                self.selector.tick(self.now());
            }
            self.run_outputs().await;
            self.publish_status();
            // No operation is in progress here, so there is a deadline.
            let deadline = self.selector.deadline().map_or_else(|| self.now() + FIRST_LINKS_TIMEOUT, |(at, _)| at);
            tokio::select! {
                () = sleep(deadline.since(self.now())) => {}
                () = edge.relay_pool.relay_failed() => {}
                _ = links.changed() => {}
                _ = stream_origin.changed() => {}
            }
        }
    }

    /// Saves the state, and informs the service that the edge no longer needs its relay.
    pub async fn release(&mut self) {
        self.state_writer.finish(self.selector.save()).await;
        let empty_body = serde_json::json!({});
        let released = self.client.post::<AssignmentReply>("/v1/edges/release", &empty_body);
        if let Ok(Err(error)) = timeout(RELEASE_TIMEOUT, released).await {
            tracing::debug!(%error, "cannot release the assignment; its lease will expire");
        }
    }

    fn now(&self) -> Instant {
        Instant::default() + EPOCH_OFFSET + self.epoch.elapsed()
    }

    /// Passes an input to the selector and carries out what can be done at once.
    fn handle(&mut self, input: Input) {
        self.selector.handle(self.now(), input);
        self.drain();
    }

    /// Takes all outputs of the selector. What takes time is left for [`SelectorDriver::run_outputs`].
    fn drain(&mut self) {
        while let Some(output) = self.selector.poll() {
            match output {
                Output::FetchCandidates => self.operation = Some(Operation::Candidates),
                Output::Probe(relay, limits) => self.operation = Some(Operation::Probe(relay, limits)),
                Output::RequestAssignment(request) => self.operation = Some(Operation::Request(Box::new(request))),
                Output::SendReport(report) => self.operation = Some(Operation::Report(Box::new(report))),
                Output::UseRelays(names) => {
                    let configs = names.iter().filter_map(|name| relay_config(&self.selector.relay_info(name)?));
                    let relays: Vec<RelayConfig> = configs.chain(self.configured.iter().cloned()).collect();
                    self.edge.set_relays(&relays);
                }
                Output::Persist => self.state_writer.mark_dirty(),
            }
        }
    }

    /// Runs the selector's operations until there is none.
    async fn run_outputs(&mut self) {
        self.drain();
        while let Some(operation) = self.operation.take() {
            match operation {
                Operation::Candidates => match self.client.get::<Vec<Candidate>>(&self.candidates_path()).await {
                    Ok(candidates) => self.handle(Input::Candidates(candidates)),
                    Err(error) => self.note_unreachable(&error),
                },
                Operation::Probe(relay, limits) => self.probe(relay, &limits).await,
                Operation::Request(request) => {
                    let response = self.client.post("/v1/edges/request", &request).await;
                    self.handle_reply(response).await;
                }
                Operation::Report(report) => {
                    let response = self.client.post("/v1/edges/report", &report).await;
                    self.handle_reply(response).await;
                }
            }
        }
        self.state_writer.write_if_due(|| self.selector.save());
    }

    async fn probe(&mut self, relay: Name, limits: &ProbeLimits) {
        let (result, sent) = match self.edge.probe(relay.as_str(), limits).await {
            Some((Ok(probed), sent)) => (Some(probed), sent),
            Some((Err(error), sent)) => {
                tracing::warn!(%relay, %error, "cannot measure the throughput to a relay");
                (None, sent)
            }
            None => (None, DataSize::ZERO),
        };
        self.handle(Input::ProbeEnded { relay, result, sent });
    }

    async fn handle_reply(&mut self, response: Result<AssignmentReply, ClientError>) {
        match response {
            Ok(reply) => {
                let newest = reply.revocations;
                self.handle(Input::Reply(reply));
                let was_unreachable = self.status.borrow().error.is_some();
                if was_unreachable {
                    tracing::info!("the fleet service answers again");
                }
                self.status.send_modify(|view| (view.reachable, view.error) = (true, None));
                if self.needs_crl(newest)
                    && let Err(error) = self.fetch_crl().await
                {
                    tracing::warn!("cannot update the revocation list: {error}");
                    self.crl_failed_at = Some(std::time::Instant::now());
                }
            }
            Err(error) => self.note_unreachable(&error),
        }
    }

    fn note_unreachable(&mut self, error: &ClientError) {
        self.handle(Input::Unreachable);
        let text = error.to_string();
        if self.status.borrow().error.is_none() {
            tracing::warn!("request to the fleet service failed: {text}; flows continue over the known relays");
        }
        self.status.send_modify(|view| (view.reachable, view.error) = (false, Some(text)));
    }

    /// The request path for candidates near the edge's position and for its origin.
    fn candidates_path(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        let request = self.selector.assignment_request();
        query.append_pair("origin", &request.origin.to_string());
        // The degrees of a position are only accessible in its JSON form.
        let position = request.position.and_then(|position| serde_json::to_value(position).ok());
        for field in ["latitude", "longitude"] {
            if let Some(degrees) = position.as_ref().and_then(|position| position.get(field)) {
                query.append_pair(field, &degrees.to_string());
            }
        }
        format!("/v1/candidates?{}", query.finish())
    }

    /// Whether a newer revocation list exists, and the last attempt to fetch one is long enough ago (rule 4).
    fn needs_crl(&self, newest: u64) -> bool {
        let crl_number = self.edge.relay_pool.trusted().revocations.map(|list| list.number());
        crl_number.is_none_or(|crl_number| crl_number < newest)
            && self.crl_failed_at.is_none_or(|at| at.elapsed() >= CRL_RETRY)
    }

    async fn fetch_crl(&mut self) -> Result<(), CrlError> {
        let text = self.client.get_text("/v1/revoked").await?;
        let (authority, path) = &self.crl;
        let trusted = self.edge.relay_pool.trusted();
        if trusted.other_authorities.has_issued(&text) {
            // While the authority is being replaced, the service may belong to the other one, whose list belongs into `ca.pem`.
            self.crl_failed_at = Some(std::time::Instant::now());
            return Ok(());
        }
        match trusted.revocations {
            Some(crl) => crl.update(&text)?,
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
        self.handle(Input::Links(facts));
    }

    fn note_failures(&mut self) {
        for entry in self.edge.relay_pool.relays.all() {
            if let Some(relay) = entry.config.member.clone() {
                self.handle(Input::RelayFailed { relay, has_failed: entry.has_failed() });
            }
        }
    }

    /// Records the traffic through each relay since the last call.
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
        self.handle(Input::Traffic { samples, time });
    }

    fn publish_status(&self) {
        let ((assignment, reason), is_waiting) = (self.selector.assignment(), self.selector.is_waiting());
        self.edge.relay_pool.set_waiting(is_waiting);
        self.status.send_modify(|view| {
            view.assignment = assignment.cloned();
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
        f.debug_struct("SelectorDriver").field("selector", &self.selector).finish_non_exhaustive()
    }
}

/// The address of a relay; `None`: it is not known yet.
fn relay_config(known: &RelayInfo) -> Option<RelayConfig> {
    Some(RelayConfig {
        label: known.relay.to_string(),
        server_name: server_name(known.server_name.as_ref()?)?,
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
