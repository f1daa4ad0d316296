//! `marline edge`: accepts connections of applications and carries them over all links to a relay (the B-box of BASS, section III-A).
//!
//! Clients connect by SOCKS5 or HTTP CONNECT, or a LAN's connections are redirected here. For each of them the edge opens a tunnel over
//! MPTCP and TLS to a relay, which connects to the origin server (`relay_pool`). If no relay is available, the edge may connect to the
//! origin server itself over one link (`direct`).
//!
//! 1. [`marline_core::paths`] decides, for all MPTCP connections of this host, which links carry a connection and when. The edge only
//!    decides over which link a connection begins.
//! 2. Spare connections to the relay are kept open, so that a new flow costs one RTT to the relay and not three (`relay_pool`, rule 1).
//! 3. Relays are tried in their order; one that failed is tried last until an attempt succeeds. The order is that of the command line, or
//!    comes from the fleet service ([`SelectorDriver`], [`relay_selection`](marline_core::fleet::relay_selection)).
//! 4. The number of flows is limited, in total and per client address ([`AdmissionConfig`]). Clients other than this host cannot reach this
//!    host's own addresses (`target_acl`). Live streams have priority over other traffic (`shaper`).
//! 5. LAN packets that no tunnel carries, above all UDP, leave over the best single link (`udp_link` chooses it, `lan_routing` sets it up).
//! 6. A direct connection is the last resort, is reported to the user, and needs [`Config::allow_direct`]: it shows the origin server
//!    another source address, and uses one link.
//!
//! Modules:
//! - clients and flows: `listener`, `target_acl` (what they may reach), `flow`, `direct`, `private_networks`, `local_domain`
//! - relays: `relay_list` (addresses and health), `relay_pool`, `dial`, `connect_request`, `handshake_limiter`, `trust` (certificates),
//!   `selector_driver` (the fleet service), `throughput_probe` with `rate_convergence`, `state_file`
//! - pacing: `shaper` with `live_match` (live streams first), `short_queue`, `traffic_meter`
//! - links: `link_rates`, `unused_links`, `link_probe`, `backoff`, `portal` (captive portals)
//! - packets without a tunnel: `lan_routing`, `udp_watch` (unanswered UDP), `dns_link`, `dns_watch` (unanswered DNS)

mod backoff;
mod connect_request;
mod dial;
mod direct;
mod dns_link;
mod dns_watch;
mod flow;
mod handshake_limiter;
mod lan_routing;
mod link_probe;
mod link_rates;
mod listener;
mod live_match;
mod local_domain;
mod portal;
mod private_networks;
mod rate_convergence;
mod relay_list;
mod relay_pool;
mod selector_driver;
mod shaper;
mod short_queue;
mod state_file;
mod target_acl;
mod throughput_probe;
mod traffic_meter;
mod trust;
mod udp_watch;
mod unused_links;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::fleet::relay_selection::PersistedState;
pub use marline_core::fleet::relay_selection::{ProbeLimits, ProbeResult};
pub use marline_core::fleet::udp_link::{UdpLinkReason, UdpLinkState};
use marline_core::link_choice::LinkFailure;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::admission::ConnAdmission;
use marline_net::links::{InterfaceList, RetryingMonitor};
use tokio::sync::{Semaphore, oneshot, watch};

pub use crate::listen_error::ListenError;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use connect_request::parse_response;
pub use dns_link::{DnsLinkOverride, DnsLinkReason, DnsLinkState};
pub use link_rates::LinkState;
pub use listener::{ClientListener, serve_lan};
pub use live_match::LiveMatch;
pub use local_domain::LocalDomain;
pub use portal::PortalProbe;
pub use relay_list::RelayConfig;
pub use selector_driver::{FleetStatus, SelectorDriver};
pub use state_file::{StateFile, run_state_writer};
pub use trust::{ClientTrust, install_credentials, run_trust};
pub use unused_links::UnusedLink;

use crate::congestion::CongestionControl;
pub use crate::link_dialer::FailingLink;
use crate::list_reload::ListReload;
pub use crate::list_reload::read_crl;
use crate::service::api_types::Endpoint;

use crate::tunnel::Target;

/// Options of an edge.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses on which clients reach it by SOCKS5 or CONNECT.
    pub listen: Vec<SocketAddr>,
    /// The relays that it may use, in order of preference.
    pub relays: Vec<RelayConfig>,
    /// How many spare connections to the first relay are kept open.
    pub spare_connections: usize,
    /// Whether flows may connect directly to the origin server while no relay is available.
    pub allow_direct: bool,
    /// The congestion control towards relays; `None`: the kernel's default.
    pub congestion: Option<CongestionControl>,
    /// Whether it also accepts redirected connections of a LAN.
    pub lan: bool,
    /// Which clients are served, and which flows have priority.
    pub admission: AdmissionConfig,
    /// How captive portals are detected that do not intercept the connection to the relay.
    pub portal_probe: PortalProbe,
    /// Domains whose names this host resolves if no relay can, in addition to those that are always local.
    pub local_domains: Vec<LocalDomain>,
}

/// Admission limits of an edge, and the flows that have priority.
#[derive(Clone, Debug)]
pub struct AdmissionConfig {
    /// Flows that have priority over all others; by default RTMP.
    pub live_matches: Vec<LiveMatch>,
    /// The maximum number of open flows.
    pub max_flows: usize,
    /// The maximum number for one client address; loopback addresses are only bound by `max_flows`.
    pub max_flows_per_client: usize,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        Self {
            live_matches: vec![LiveMatch::rtmp()],
            max_flows: MAX_FLOWS,
            max_flows_per_client: MAX_FLOWS_PER_CLIENT,
        }
    }
}

/// Our choice: a household with several browsers has some hundred flows. It stays below the 512 tunnels that a relay carries for one edge
/// ([`Limits`](crate::relay::Limits)), because a flow that is requested from a relay twice counts twice there.
const MAX_FLOWS: usize = 448;
/// Our choice: one client cannot take all slots, and it is enough for a browser.
const MAX_FLOWS_PER_CLIENT: usize = 320;

/// File descriptors of one flow: both sockets, one to sample the queue, and two more to sample a live stream.
const FDS_PER_FLOW: u64 = 5;
/// Our choice: listeners, spare connections, concurrent connection attempts, the fleet service, lists, DNS lookups.
const RESERVED_FDS: u64 = 96;

impl AdmissionConfig {
    /// Reduces the limits if a process with this many file descriptors could not keep so many flows open.
    #[must_use]
    pub fn fit_descriptors(self, descriptors: u64) -> Self {
        let max_flows =
            usize::try_from(descriptors.saturating_sub(RESERVED_FDS) / FDS_PER_FLOW).unwrap_or(usize::MAX).max(2);
        let Self { max_flows: flows, max_flows_per_client: flows_of_one, .. } = self;
        if flows <= max_flows {
            return self;
        }
        Self { max_flows, max_flows_per_client: flows_of_one.min((max_flows / 4 * 3).max(1)), ..self }
    }
}

/// Counts of flows, and the relay used last.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FlowStats {
    /// Currently open flows.
    pub open: u64,
    /// Flows carried since the start, by relay label.
    pub carried: BTreeMap<String, u64>,
    /// Flows that connected directly to their origin servers.
    pub direct: u64,
    /// Flows that failed.
    pub failed: u64,
    /// Of the failed flows, those for which no relay was available and a direct connection was not allowed.
    #[serde(default)]
    pub refused: u64,
    /// The relay of the newest flow; `None`: it connected directly, or there was no flow yet.
    pub last_relay: Option<String>,
}

/// State of one relay of the list for new flows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RelayStatus {
    /// The label for people.
    pub label: String,
    /// Where it listens, in order of preference.
    pub addresses: Vec<Endpoint>,
    /// Whether the last attempt to use it failed.
    pub failing: bool,
    /// Why it failed; `None`: it did not, or was not tried yet.
    #[serde(default)]
    pub error: Option<String>,
    /// Whether connections to it fall back to plain TCP over every link: then a flow uses one link.
    #[serde(default)]
    pub without_mptcp: bool,
    /// Payload bytes sent to it since it was added to the list.
    pub sent_bytes: u64,
    /// Payload bytes received from it.
    pub received_bytes: u64,
}

/// An edge: the state that its flows share.
#[derive(Debug)]
pub struct Edge {
    config: Config,
    relay_pool: Arc<relay_pool::RelayPool>,
    shaper: shaper::Shaper,
    admission: Mutex<ConnAdmission<oneshot::Sender<()>>>,
    state: watch::Sender<FlowStats>,
    links: watch::Sender<Vec<LinkState>>,
    udp_link: watch::Sender<Option<UdpLinkState>>,
    dns_links: watch::Sender<Option<DnsLinkState>>,
    /// The interfaces that carry LAN packets without a tunnel and this host's own DNS queries.
    lan_uplink: watch::Sender<BTreeSet<String>>,
    /// Links over which UDP of the LAN is not answered (`udp_watch`).
    unanswered_links: watch::Sender<BTreeSet<String>>,
    /// Links whose DNS servers do not answer (`dns_watch`).
    dns_failures: watch::Sender<BTreeSet<String>>,
    public_names: private_networks::PublicNames,
    /// Why the state file could not be written the last time.
    state_file_error: watch::Sender<Option<String>>,
    unused_links: watch::Sender<Vec<UnusedLink>>,
    stream_origin: watch::Sender<live_match::StreamOrigin>,
    direct_meter: Arc<traffic_meter::TrafficMeter>,
    /// Limit the name lookups of direct flows, and the refused clients that get a reply.
    lookup_permits: Arc<Semaphore>,
    refusal_permits: Arc<Semaphore>,
    /// Interface of the VPN that has the default route.
    vpn: watch::Sender<Option<String>>,
    /// What was wrong with the revocation list when it was last read.
    list_reload: ListReload,
}

impl Edge {
    /// Creates an edge with the credentials and the certificate authority of `trusted`.
    pub fn new(config: Config, trusted: impl Into<ClientTrust>) -> Arc<Self> {
        let relay_pool = relay_pool::RelayPool::new(&config, trusted.into());
        let shaper = shaper::Shaper::new(config.admission.live_matches.clone());
        let admission = Mutex::new(
            ConnAdmission::new(config.admission.max_flows, config.admission.max_flows_per_client)
                .exempting_loopback(),
        );
        Arc::new(Self {
            config,
            relay_pool,
            shaper,
            admission,
            state: watch::Sender::default(),
            links: watch::Sender::default(),
            udp_link: watch::Sender::default(),
            dns_links: watch::Sender::default(),
            lan_uplink: watch::Sender::default(),
            unanswered_links: watch::Sender::default(),
            dns_failures: watch::Sender::default(),
            public_names: private_networks::PublicNames::default(),
            state_file_error: watch::Sender::default(),
            unused_links: watch::Sender::default(),
            stream_origin: watch::Sender::default(),
            direct_meter: Arc::default(),
            lookup_permits: Arc::new(Semaphore::new(direct::MAX_LOOKUPS)),
            vpn: watch::Sender::default(),
            refusal_permits: Arc::new(Semaphore::new(listener::MAX_REFUSALS)),
            list_reload: ListReload::default(),
        })
    }

    /// The counts of flows. Receivers are notified of changes.
    pub fn state(&self) -> watch::Receiver<FlowStats> {
        self.state.subscribe()
    }

    /// The links as last sampled.
    pub fn links(&self) -> Vec<LinkState> {
        self.mark_unanswered(self.links.borrow().clone())
    }

    /// Marks the links over which UDP of the LAN is not answered.
    fn mark_unanswered(&self, mut links: Vec<LinkState>) -> Vec<LinkState> {
        let unanswered = self.unanswered_links.borrow();
        links.iter_mut().for_each(|link| link.unresponsive |= unanswered.contains(&link.name));
        links
    }

    /// Which link LAN packets without a tunnel take; `None`: the edge serves no LAN, or has not checked yet. Receivers are notified of
    /// changes.
    pub fn udp_link(&self) -> watch::Receiver<Option<UdpLinkState>> {
        self.udp_link.subscribe()
    }

    /// Over which links this host's own DNS queries leave; `None`: the edge serves no LAN, or has not checked yet. Receivers are notified
    /// of changes.
    pub fn dns_links(&self) -> watch::Receiver<Option<DnsLinkState>> {
        self.dns_links.subscribe()
    }

    /// State of the relays for new flows, in order of preference.
    pub fn relays(&self) -> Vec<RelayStatus> {
        let row = |entry: Arc<relay_list::RelayEntry>| {
            let reading = entry.traffic_meter.read();
            RelayStatus {
                label: entry.config.label.clone(),
                addresses: entry.config.endpoints.clone(),
                failing: entry.has_failed(),
                error: entry.failure_reason(),
                without_mptcp: entry.is_without_mptcp(),
                sent_bytes: reading.up,
                received_bytes: reading.down,
            }
        };
        self.relay_pool.relays.all().into_iter().map(row).collect()
    }

    /// Changes when a relay fails, fails for another reason, or recovers.
    pub fn relay_changes(&self) -> watch::Receiver<u64> {
        self.relay_pool.changes()
    }

    /// Why the state file cannot be written; `None`: it can, or has not been written yet. Receivers are notified of changes.
    pub fn state_file_error(&self) -> watch::Receiver<Option<String>> {
        self.state_file_error.subscribe()
    }

    /// Links that connections to relays do not use, and why. Receivers are notified of changes.
    pub fn unused_links(&self) -> watch::Receiver<Vec<UnusedLink>> {
        self.unused_links.subscribe()
    }

    /// The TLS configuration towards the fleet service ([`Client::with_tls`](crate::service::Client::with_tls)): the edge's certificate,
    /// and the authorities that it trusts.
    pub fn client_config(self: &Arc<Self>) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let edge = Arc::clone(self);
        move || edge.relay_pool.trusted().tls
    }

    /// What a later run needs if it uses no fleet service: the last addresses of the relays of the command line.
    pub fn save(&self) -> PersistedState {
        let configured = self.relay_pool.relays.all().into_iter().filter(|entry| entry.config.member.is_none());
        let saved_addresses = |entry: Arc<relay_list::RelayEntry>| {
            Some((entry.config.endpoints.first()?.to_string(), entry.last_addresses()?))
        };
        PersistedState { addresses: configured.filter_map(saved_addresses).collect(), ..PersistedState::default() }
    }

    /// Restores what an earlier run saved: a relay's last addresses are used while its name cannot be resolved.
    pub fn restore(&self, saved: &PersistedState) {
        for entry in self.relay_pool.relays.all() {
            let endpoint = entry.config.endpoints.first().map(ToString::to_string);
            let known =
                endpoint.and_then(|address| saved.addresses.get(&address)).filter(|known| !known.is_empty());
            if let Some(addresses) = known {
                entry.restore_addresses(addresses.clone());
            }
        }
    }

    /// Replaces the credentials and trusted authorities.
    pub fn set_trust(&self, trusted: ClientTrust) {
        self.relay_pool.set_trust(trusted);
    }

    /// Replaces the relays for new flows; the best comes first.
    pub fn set_relays(&self, relays: &[RelayConfig]) {
        self.relay_pool.set_relays(relays);
    }

    /// Measures the throughput to the relay with this label; `None`: it is not on the list. The size is what the measurement sent.
    pub async fn probe(
        &self,
        label: &str,
        limits: &ProbeLimits,
    ) -> Option<(std::io::Result<ProbeResult>, DataSize)> {
        let entry = self.relay_pool.relays.all().into_iter().find(|entry| entry.config.label == label)?;
        Some(
            throughput_probe::probe(
                &entry,
                &self.relay_pool.trusted(),
                limits,
                self.config.congestion.clone(),
                &self.relay_pool.dialer,
            )
            .await,
        )
    }

    /// The rate that all flows other than live streams may send at together; `None`: unlimited.
    pub fn allowance(&self) -> Option<Bitrate> {
        self.shaper.allowance()
    }

    fn admission(&self) -> MutexGuard<'_, ConnAdmission<oneshot::Sender<()>>> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maintains spare connections, retries of failed relays, and probes of links and portals, until dropped.
    pub async fn run_relay_pool(&self) -> std::convert::Infallible {
        tokio::select! {
            never = self.relay_pool.run_spares() => never,
            never = self.relay_pool.run_link_changes() => never,
            never = self.relay_pool.run_retries() => never,
            never = self.relay_pool.run_link_probes() => never,
            never = self.relay_pool.run_portal_probes() => never,
        }
    }

    /// Samples the links once, so that the first connections begin over links that are up; `run_dir` is that of `marline paths`.
    pub async fn sample_links(&self, run_dir: &Path) {
        self.sample_links_into(&mut link_rates::LinkRates::default(), Instant::default(), run_dir, false).await;
    }

    /// Samples the links periodically until dropped; `run_dir` is that of `marline paths`.
    pub async fn poll_links(&self, run_dir: &Path) -> std::convert::Infallible {
        let (epoch, mut links) = (std::time::Instant::now(), link_rates::LinkRates::default());
        let (mut failing, mut monitor, mut stripped) =
            (self.relay_pool.dialer.failing(), RetryingMonitor::new(), 0);
        for round in 0_u64.. {
            let now = Instant::from_millis(u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX));
            let states = self
                .sample_links_into(&mut links, now, run_dir, round % unused_links::SAMPLES_PER_CHECK == 0)
                .await;
            let next = tokio::time::sleep(link_rates::SAMPLE_INTERVAL);
            tokio::pin!(next);
            loop {
                self.publish_links(states.clone());
                tokio::select! {
                    () = &mut next => break,
                    // A failed link is published at once, not at the next sample.
                    _ = failing.changed() => {
                        let is_stripped = |row: &FailingLink| row.reason == LinkFailure::MptcpStripped && row.alternative.is_some();
                        let stripped_now = failing.borrow_and_update().iter().filter(|row| is_stripped(row)).count();
                        // Spare connections that use one link are replaced: the alternative link gives them several.
                        if stripped_now > stripped {
                            self.relay_pool.drop_spares();
                        }
                        stripped = stripped_now;
                    }
                    // Traffic that a VPN must carry may not bypass it even for a moment, so a network change is checked before the next
                    // sample.
                    () = monitor.changed() => {
                        self.check_vpn(run_dir).await;
                        tokio::time::sleep(ROUTE_SETTLE_TIME).await;
                    }
                }
            }
        }
        std::future::pending().await
    }

    async fn sample_links_into(
        &self,
        links: &mut link_rates::LinkRates,
        now: Instant,
        run_dir: &Path,
        with_unused: bool,
    ) -> Vec<LinkState> {
        let dir = run_dir.to_owned();
        let sampling = tokio::task::spawn_blocking(move || {
            let sample = link_rates::sample_links(&dir);
            let unused = with_unused.then(|| unused_links::find_unused(&sample));
            (sample, unused, marline_net::links::list_interfaces().ok())
        });
        let Ok((sample, unused, survey)) = sampling.await else { return self.links() };
        if let Some(found) = unused {
            self.unused_links.send_if_modified(|unused| std::mem::replace(unused, found.clone()) != found);
        }
        let states = links.update(now, sample.clone());
        if let Some(survey) = survey {
            self.set_dial_links(&sample, &states, survey);
        }
        states
    }

    /// Checks whether a VPN has appeared or disappeared since the last sample of the links.
    async fn check_vpn(&self, run_dir: &Path) {
        let Ok(Ok(survey)) = tokio::task::spawn_blocking(marline_net::links::list_interfaces).await else { return };
        if !self.update_vpn(survey.vpn) {
            return;
        }
        // The kernel's routes decide until it is known which links may bypass the VPN.
        self.relay_pool.dialer.use_kernel_routes();
        tokio::time::sleep(DAEMON_DELAY).await;
        let dir = run_dir.to_owned();
        let sample = move || (link_rates::sample_links(&dir), marline_net::links::list_interfaces());
        if let Ok((sample, Ok(survey))) = tokio::task::spawn_blocking(sample).await {
            self.set_dial_links(&sample, &[], survey);
            self.relay_pool.drop_spares();
        }
    }

    /// Sets the links over which connections begin from now on.
    fn set_dial_links(&self, sample: &link_rates::LinkSample, states: &[LinkState], survey: InterfaceList) {
        let dial_links = link_rates::links_to_dial(sample, states, &survey);
        let is_link = |name: &str| dial_links.iter().any(|(link, _)| link.name == name);
        let others: Vec<_> =
            survey.interfaces.iter().filter(|interface| !is_link(&interface.name)).cloned().collect();
        let has_vpn = survey.vpn.is_some();
        if self.update_vpn(survey.vpn) && has_vpn {
            // The daemon that manages the links may not have noticed the VPN yet.
            self.relay_pool.dialer.use_kernel_routes();
        } else if self.relay_pool.dialer.set_links(dial_links, &others) {
            self.relay_pool.retry_now();
        }
    }

    /// Records the VPN that has the default route now; returns whether it changed. Spare connections from before bypass the new VPN, or use
    /// one that has ended, so they are dropped.
    fn update_vpn(&self, vpn: Option<String>) -> bool {
        let is_news = self.vpn.send_replace(vpn.clone()) != vpn;
        if is_news {
            self.relay_pool.drop_spares();
        }
        is_news
    }

    /// Publishes the links, with the failures that connection attempts found.
    fn publish_links(&self, mut links: Vec<LinkState>) {
        for failing_link in self.relay_pool.dialer.failing().borrow().iter() {
            if let Some(link) = links.iter_mut().find(|link| link.name == failing_link.name) {
                // A link that carries data of open flows is busy, not in an outage.
                link.unresponsive |=
                    failing_link.reason.is_outage() && link.rate.is_zero() && link.down_rate.is_zero();
                link.mptcp_stripped = failing_link.reason == LinkFailure::MptcpStripped;
                link.failure = Some(failing_link.reason.description().to_owned()).filter(|_| !link.mptcp_stripped);
            }
        }
        self.links.send_if_modified(|current| std::mem::replace(current, links.clone()) != links);
    }

    /// Links over which connections to relays do not begin. Receivers are notified of changes.
    pub fn failing_links(&self) -> watch::Receiver<Vec<FailingLink>> {
        self.relay_pool.dialer.failing()
    }

    /// Whether the URL of the portal probe may be wrong or blocked: the responses over all links look like a portal's. Receivers are
    /// notified of changes.
    pub fn portal_probe_doubted(&self) -> watch::Receiver<bool> {
        self.relay_pool.dialer.portal_probe_doubted()
    }

    /// Records the target of a new flow, for the choice of a relay near the live stream's origin server.
    fn note_target(&self, target: &Target) {
        if let Ok(origin) = target.authority().parse() {
            self.stream_origin
                .send_if_modified(|stream_origin| stream_origin.update(origin, self.shaper.is_live(target)));
        }
    }
}

/// Pause after a VPN has appeared or disappeared before the links are used again. Our choice: by then the daemon that manages the links has
/// also noticed the change.
const DAEMON_DELAY: Duration = Duration::from_millis(300);
/// Pause after a change of the network before the next change is handled. Our choice: a routing daemon changes many routes one after the
/// other.
const ROUTE_SETTLE_TIME: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_limits_fit_the_relays_limits_and_the_file_descriptors() {
        let (edge_limits, relay_limits) = (AdmissionConfig::default(), crate::relay::Limits::default());
        // So the edge decides which flow is evicted, and the relay does not just refuse the newest.
        assert!(
            edge_limits.max_flows < relay_limits.tunnels_per_edge
                && edge_limits.max_flows_per_client < edge_limits.max_flows
        );
        let bounds = |descriptors| {
            let AdmissionConfig { max_flows: flows, max_flows_per_client: flows_of_one, .. } =
                AdmissionConfig::default().fit_descriptors(descriptors);
            (flows, flows_of_one)
        };
        assert_eq!(bounds(16_384), (edge_limits.max_flows, edge_limits.max_flows_per_client));
        assert_eq!([bounds(1024), bounds(256), bounds(0)], [(185, 138), (32, 24), (2, 1)]);
    }
}
