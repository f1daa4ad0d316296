//! `marline edge`: takes connections of applications and carries them over all links to a relay (BASS's B-box, §III-A).
//!
//! In: connections of programs that speak SOCKS5 or CONNECT. Out: for each, one connection over MPTCP and TLS to a relay, which
//! goes on to the server (`road`); where no relay can be had, one to the server itself over one link (`direct`).
//!
//! 1. Which links carry a connection to the relay, and when, is decided by [`marline_core::paths`] for all MPTCP connections of this
//!    machine; here is only who is asked to carry on.
//! 2. A connection to the relay waits ready, so that a flow costs one round trip and not four (`road`, 1).
//! 3. Relays are asked in their order; one that failed is asked last until it has answered again. The order is the command
//!    line's, or what the fleet's service says ([`Agent`], [`machine`]).
//! 4. Who uses it is bounded, in all and by address (`guests`); from elsewhere nobody reaches this machine itself (`local`); and a
//!    live stream goes before what else is sent (`priority`).
//! 5. What a LAN sends and no flow carries passes over the best single link (`rest` decides, `pass` does it).
//! 6. Direct is the last resort, is told once, and is a choice ([`Config::direct`]): it shows the server another address, and uses
//!    one link.

mod again;
mod connect_request;
mod dial;
mod direct;
mod flow;
mod lan_routing;
mod link_rates;
mod listener;
mod live_match;
mod live_priority;
mod local_domain;
mod nameless;
mod names;
mod portal;
mod private_networks;
mod rate_convergence;
mod reached;
mod relay_list;
mod relay_pool;
pub mod relay_selector;
mod selector_driver;
mod shaper;
mod short_queue;
mod state_file;
mod target_acl;
mod throughput_probe;
mod traffic_meter;
mod trust;
mod udp_link;
mod udp_watch;
mod unused;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::link_choice::LinkFailure;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::admission::ConnAdmission;
use marline_net::links::{InterfaceList, Monitor};
use tokio::sync::{Semaphore, oneshot, watch};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use connect_request::parse_response;
pub use link_rates::LinkState;
pub use listener::{ClientListener, ListenError, serve_lan};
pub use live_match::LiveMatch;
pub use local_domain::LocalDomain;
pub use names::{NamesNow, NamesOver, NamesWhy};
pub use portal::PortalProbe;
pub use relay_list::RelayConfig;
pub use selector_driver::{FleetStatus, SelectorDriver};
pub use state_file::{StateFile, run_state_writer};
pub use throughput_probe::{ProbeLimits, ProbeResult};
pub use trust::{ClientTrust, install_credentials, read_crl, run_trust};
pub use udp_link::{UdpLinkReason, UdpLinkState};
pub use unused::UnusedLink;

use self::relay_selector::PersistedState;
use crate::congestion::CongestionControl;
pub use crate::link_dialer::FailingLink;
use crate::list_reload::ListReload;
use crate::service::api_types::Endpoint;

use crate::tunnel::Target;

/// What an edge does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where programs reach it.
    pub listen: Vec<SocketAddr>,
    /// The relays that it may use, the best first.
    pub relays: Vec<RelayConfig>,
    /// Connections to the best relay that wait ready.
    pub spare_connections: usize,
    /// Whether a server is reached without a relay where none can be had.
    pub allow_direct: bool,
    /// The congestion control towards relays; none: the kernel's.
    pub congestion: Option<CongestionControl>,
    /// Whether a LAN's connections come as well.
    pub lan: bool,
    /// Whom it serves, and who comes first.
    pub admission: AdmissionConfig,
    /// How captive portals are looked for that do not answer in a relay's place.
    pub portal_probe: PortalProbe,
    /// Domains whose names this box looks up where no relay knows them, beside those that are always local.
    pub local_domains: Vec<LocalDomain>,
}

/// Whom an edge serves, and who comes first.
#[derive(Clone, Debug)]
pub struct AdmissionConfig {
    /// Flows that come before all others; RTMP unless something else is said.
    pub live_matches: Vec<LiveMatch>,
    /// How many flows there may be.
    pub max_flows: usize,
    /// How many of one address; the loopback's may have all.
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

/// chosen: a household with several browsers has some hundred; and a relay carries 512 of one edge
/// ([`Limits`](crate::relay::Limits)), a flow that is asked for twice counted twice.
const MAX_FLOWS: usize = 448;
/// chosen: one client cannot take all places, and a browser has enough.
const MAX_FLOWS_PER_CLIENT: usize = 320;

/// Descriptors of one flow: both its sides, the one that its queue is looked at by, and two by which a live stream is.
const FDS_PER_FLOW: u64 = 5;
/// chosen: listeners, connections that wait ready, addresses that are tried side by side, the service, lists, look-ups.
const RESERVED_FDS: u64 = 96;

impl AdmissionConfig {
    /// The same, or fewer flows where a process that may have so many descriptors cannot have them.
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

/// How an edge stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FlowStats {
    /// Flows that are open.
    pub open: u64,
    /// Flows that were carried, by relay.
    pub carried: BTreeMap<String, u64>,
    /// Flows that went to their servers directly.
    pub direct: u64,
    /// Flows that could not be carried.
    pub failed: u64,
    /// Of these, flows that no relay could be had for and that may not go directly.
    #[serde(default)]
    pub refused: u64,
    /// Which relay the newest flow went through; none: it went directly, or there was none yet.
    pub last_relay: Option<String>,
}

/// One of the relays that new flows are led to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RelayStatus {
    /// What people call it.
    pub label: String,
    /// Where it listens.
    pub addresses: Vec<Endpoint>,
    /// It did not carry when it was asked last.
    pub failing: bool,
    /// Why it did not; none: it carries, or was not asked yet.
    #[serde(default)]
    pub error: Option<String>,
    /// Connections to it fall back to plain TCP over each link: a flow uses one link.
    #[serde(default)]
    pub without_mptcp: bool,
    /// What went through it since it is used.
    pub sent_bytes: u64,
    /// What came.
    pub received_bytes: u64,
}

/// An edge: what its flows share.
#[derive(Debug)]
pub struct Edge {
    config: Config,
    relay_pool: Arc<relay_pool::RelayPool>,
    shaper: shaper::Shaper,
    admission: Mutex<ConnAdmission<oneshot::Sender<()>>>,
    state: watch::Sender<FlowStats>,
    links: watch::Sender<Vec<LinkState>>,
    udp_link: watch::Sender<Option<UdpLinkState>>,
    names: watch::Sender<Option<NamesNow>>,
    /// The interfaces by which the rest of a LAN's packets and this host's own name queries leave.
    lan_uplink: watch::Sender<BTreeSet<String>>,
    /// Links over which UDP of the LAN goes unanswered (`unanswered`).
    unanswered_links: watch::Sender<BTreeSet<String>>,
    /// Links whose name servers give no names (`nameless`).
    nameless: watch::Sender<BTreeSet<String>>,
    public_names: private_networks::PublicNames,
    /// Why what is known of relays could not be written down last.
    state_file_error: watch::Sender<Option<String>>,
    unused_links: watch::Sender<Vec<UnusedLink>>,
    stream_origin: watch::Sender<live_match::StreamOrigin>,
    direct_meter: Arc<traffic_meter::TrafficMeter>,
    lookup_permits: Arc<Semaphore>,
    refusal_permits: Arc<Semaphore>,
    /// The tunnel that has the default route.
    vpn: watch::Sender<Option<String>>,
    /// What was wrong with the revocation list when it was read last.
    list_reload: ListReload,
}

impl Edge {
    /// An edge that is known to relays by what is in `trusted`, and trusts whom that trusts.
    pub fn new(config: Config, trusted: impl Into<ClientTrust>) -> Arc<Self> {
        let roads = relay_pool::RelayPool::new(&config, trusted.into());
        let lanes = shaper::Shaper::new(config.admission.live_matches.clone());
        let guests = Mutex::new(
            ConnAdmission::new(config.admission.max_flows, config.admission.max_flows_per_client)
                .exempting_loopback(),
        );
        Arc::new(Self {
            config,
            relay_pool: roads,
            shaper: lanes,
            admission: guests,
            state: watch::Sender::default(),
            links: watch::Sender::default(),
            udp_link: watch::Sender::default(),
            names: watch::Sender::default(),
            lan_uplink: watch::Sender::default(),
            unanswered_links: watch::Sender::default(),
            nameless: watch::Sender::default(),
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

    /// How it stands; changes are told.
    pub fn state(&self) -> watch::Receiver<FlowStats> {
        self.state.subscribe()
    }

    /// Its links as they were seen last.
    pub fn links(&self) -> Vec<LinkState> {
        self.mark_unanswered(self.links.borrow().clone())
    }

    /// The same with links over which UDP of the LAN goes unanswered.
    fn mark_unanswered(&self, mut links: Vec<LinkState>) -> Vec<LinkState> {
        let unanswered = self.unanswered_links.borrow();
        links.iter_mut().for_each(|link| link.unresponsive |= unanswered.contains(&link.name));
        links
    }

    /// Which way the rest of a LAN's packets takes; none: it serves no LAN, or has not checked yet. Receivers are notified of changes.
    pub fn udp_link(&self) -> watch::Receiver<Option<UdpLinkState>> {
        self.udp_link.subscribe()
    }

    /// Over which links this host's own name queries leave; none: it serves no LAN, or has not checked yet. Receivers are notified of changes.
    pub fn names(&self) -> watch::Receiver<Option<NamesNow>> {
        self.names.subscribe()
    }

    /// The relays that new flows are led to, the best first.
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

    /// Changes when one of its relays fails, fails for another reason, or carries again.
    pub fn relay_changes(&self) -> watch::Receiver<u64> {
        self.relay_pool.changes()
    }

    /// Why what is known of relays cannot be written down; none: it can be, or was not yet. Changes are told.
    pub fn state_file_error(&self) -> watch::Receiver<Option<String>> {
        self.state_file_error.subscribe()
    }

    /// Links that connections to relays do not use, and why. Changes are told.
    pub fn unused_links(&self) -> watch::Receiver<Vec<UnusedLink>> {
        self.unused_links.subscribe()
    }

    /// What it shows to the service ([`Client::showing`](crate::service::Client::showing)), and whom it takes for it.
    pub fn client_config(self: &Arc<Self>) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let edge = Arc::clone(self);
        move || edge.relay_pool.trusted().tls
    }

    /// What a later run needs to know where it asks no service: where the relays of the command line are.
    pub fn save(&self) -> PersistedState {
        let configured = self.relay_pool.relays.all().into_iter().filter(|entry| entry.config.member.is_none());
        let saved_addresses = |entry: Arc<relay_list::RelayEntry>| {
            Some((entry.config.endpoints.first()?.to_string(), entry.last_addresses()?))
        };
        PersistedState { addresses: configured.filter_map(saved_addresses).collect(), ..PersistedState::default() }
    }

    /// Begins with what an earlier run has saved: a relay's last addresses serve while its name cannot be looked up.
    pub fn restore(&self, saved: &PersistedState) {
        for entry in self.relay_pool.relays.all() {
            let endpoint = entry.config.endpoints.first().map(ToString::to_string);
            let known = endpoint.and_then(|place| saved.addresses.get(&place)).filter(|known| !known.is_empty());
            if let Some(addresses) = known {
                entry.restore_addresses(addresses.clone());
            }
        }
    }

    /// Trusts others from now on.
    pub fn set_trust(&self, trusted: ClientTrust) {
        self.relay_pool.set_trust(trusted);
    }

    /// Uses these relays for new flows from now on, the best first.
    pub fn set_relays(&self, relays: &[RelayConfig]) {
        self.relay_pool.set_relays(relays);
    }

    /// Measures what it reaches to a relay of its list, by its label; none: it is not on the list. And what was sent for that.
    pub async fn probe(
        &self,
        label: &str,
        limits: &ProbeLimits,
    ) -> Option<(std::io::Result<ProbeResult>, DataSize)> {
        let entry = self.relay_pool.relays.all().into_iter().find(|station| station.config.label == label)?;
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

    /// What flows that are not live streams may send together just now; none: as much as they can.
    pub fn allowance(&self) -> Option<Bitrate> {
        self.shaper.allowance()
    }

    fn admission(&self) -> MutexGuard<'_, ConnAdmission<oneshot::Sender<()>>> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps connections ready until dropped.
    pub async fn run_relay_pool(&self) -> std::convert::Infallible {
        tokio::select! {
            never = self.relay_pool.run_spares() => never,
            never = self.relay_pool.run_link_changes() => never,
            never = self.relay_pool.run_retries() => never,
            never = self.relay_pool.run_link_probes() => never,
            never = self.relay_pool.keep_probing_portals() => never,
        }
    }

    /// Looks at its links once, so that the first connections begin over those that are there; `run_dir` is that of `marline paths`.
    pub async fn sample_links(&self, run_dir: &Path) {
        self.sample_links_into(&mut link_rates::LinkRates::default(), Instant::default(), run_dir, false).await;
    }

    /// Looks at its links until dropped; `run_dir` is that of `marline paths`.
    pub async fn poll_links(&self, run_dir: &Path) -> std::convert::Infallible {
        let (epoch, mut links) = (std::time::Instant::now(), link_rates::LinkRates::default());
        let (mut failing, mut monitor, mut stripped) = (self.relay_pool.dialer.failing(), Monitor::new().ok(), 0);
        for round in 0_u64.. {
            let now = Instant::from_millis(u64::try_from(epoch.elapsed().as_millis()).unwrap_or(u64::MAX));
            let states =
                self.sample_links_into(&mut links, now, run_dir, round % unused::SAMPLES_PER_CHECK == 0).await;
            let next = tokio::time::sleep(link_rates::SAMPLE_INTERVAL);
            tokio::pin!(next);
            loop {
                self.publish_links(states.clone());
                tokio::select! {
                    () = &mut next => break,
                    // A link that does not answer is left at once, not at the next look.
                    _ = failing.changed() => {
                        let is_stripped = |row: &FailingLink| row.reason == LinkFailure::MptcpStripped && row.alternative.is_some();
                        let stripped_now = failing.borrow_and_update().iter().filter(|row| is_stripped(row)).count();
                        // Ready connections that use one link are made again over the link that gives several.
                        if stripped_now > stripped {
                            self.relay_pool.drop_ready();
                        }
                        stripped = stripped_now;
                    }
                    // What a VPN is to carry goes beside it not even for a moment.
                    () = network_changed(&mut monitor) => {
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
            let unused = with_unused.then(|| unused::find_unused(&sample));
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

    /// Looks whether a VPN has come or gone since the last look at the links.
    async fn check_vpn(&self, run_dir: &Path) {
        let Ok(Ok(survey)) = tokio::task::spawn_blocking(marline_net::links::list_interfaces).await else { return };
        if !self.update_vpn(survey.vpn) {
            return;
        }
        // As the kernel's routes have it, until it is known which links are used beside the VPN.
        self.relay_pool.dialer.clear_links();
        tokio::time::sleep(DAEMON_DELAY).await;
        let dir = run_dir.to_owned();
        let sample = move || (link_rates::sample_links(&dir), marline_net::links::list_interfaces());
        if let Ok((sample, Ok(survey))) = tokio::task::spawn_blocking(sample).await {
            self.set_dial_links(&sample, &[], survey);
            self.relay_pool.drop_ready();
        }
    }

    /// Connections begin over these links from now on.
    fn set_dial_links(&self, sample: &link_rates::LinkSample, states: &[LinkState], survey: InterfaceList) {
        let dial_links = link_rates::links_to_dial(sample, states, &survey);
        let is_link = |name: &str| dial_links.iter().any(|(link, _)| link.name == name);
        let others: Vec<_> =
            survey.interfaces.iter().filter(|interface| !is_link(&interface.name)).cloned().collect();
        let has_vpn = survey.vpn.is_some();
        if self.update_vpn(survey.vpn) && has_vpn {
            // Whoever steers the links may not have seen it yet.
            self.relay_pool.dialer.clear_links();
        } else if self.relay_pool.dialer.set_links(dial_links, &others) {
            self.relay_pool.retry_now();
        }
    }

    /// The tunnel that has the default route now; whether that is news. Connections from before lead past it, or through one that has
    /// ended.
    fn update_vpn(&self, vpn: Option<String>) -> bool {
        let is_news = self.vpn.send_replace(vpn.clone()) != vpn;
        if is_news {
            self.relay_pool.drop_ready();
        }
        is_news
    }

    /// Publishes the links with what attempts to begin connections have shown of them.
    fn publish_links(&self, mut links: Vec<LinkState>) {
        for failing_link in self.relay_pool.dialer.failing().borrow().iter() {
            if let Some(link) = links.iter_mut().find(|link| link.name == failing_link.name) {
                // One that carries running flows is busy, and not gone.
                link.unresponsive |=
                    failing_link.reason.is_outage() && link.rate.is_zero() && link.down_rate.is_zero();
                link.mptcp_stripped = failing_link.reason == LinkFailure::MptcpStripped;
                link.failure = Some(failing_link.reason.description().to_owned()).filter(|_| !link.mptcp_stripped);
            }
        }
        self.links.send_if_modified(|current| std::mem::replace(current, links.clone()) != links);
    }

    /// Links over which connections to relays do not begin. Changes are reported.
    pub fn failing_links(&self) -> watch::Receiver<Vec<FailingLink>> {
        self.relay_pool.dialer.failing()
    }

    /// Whether the URL of the portal probe may be wrong or blocked: it is answered like a portal over each link. Receivers are notified of changes.
    pub fn portal_probe_doubted(&self) -> watch::Receiver<bool> {
        self.relay_pool.dialer.portal_probe_doubted()
    }

    /// A flow wants to go there.
    fn note_target(&self, target: &Target) {
        if let Ok(origin) = target.authority().parse() {
            self.stream_origin.send_if_modified(|wanted| wanted.update(origin, self.shaper.is_live(target)));
        }
    }
}

/// chosen: until then whoever steers the links has seen the change as well.
const DAEMON_DELAY: Duration = Duration::from_millis(300);
/// chosen: a routing daemon changes many routes one by one.
const ROUTE_SETTLE_TIME: Duration = Duration::from_millis(100);

/// Ends when the kernel's routes or interfaces have changed; never where it does not say.
async fn network_changed(monitor: &mut Option<Monitor>) {
    if let Some(open) = monitor
        && open.changed().await.is_ok()
    {
        return;
    }
    *monitor = None;
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_uses_an_edge_finds_room_at_its_relay_and_for_its_descriptors() {
        let (usual, of_a_relay) = (AdmissionConfig::default(), crate::relay::Limits::default());
        // So it is the edge that decides who has to go, and not who came last.
        assert!(usual.max_flows < of_a_relay.tunnels_per_edge && usual.max_flows_per_client < usual.max_flows);
        let bounds = |descriptors| {
            let AdmissionConfig { max_flows: flows, max_flows_per_client: flows_of_one, .. } =
                AdmissionConfig::default().fit_descriptors(descriptors);
            (flows, flows_of_one)
        };
        assert_eq!(bounds(16_384), (usual.max_flows, usual.max_flows_per_client));
        assert_eq!([bounds(1024), bounds(256), bounds(0)], [(185, 138), (32, 24), (2, 1)]);
    }
}
