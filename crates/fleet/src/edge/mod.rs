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
mod agent;
mod ask;
mod dial;
mod direct;
mod flow;
mod front;
mod lanes;
mod links;
mod live;
mod local;
mod local_domain;
pub mod machine;
mod meter;
mod nameless;
mod names;
mod nearby;
mod pass;
mod portal;
mod priority;
mod probe;
mod queue;
mod reached;
mod relays;
mod remembered;
mod rest;
mod road;
mod settle;
mod trust;
mod unanswered;
mod unused;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::link_choice::LinkFailure;
use marline_core::units::{Bitrate, DataSize, Instant};
use marline_net::admission::Guests;
use marline_net::links::{Monitor, Survey};
use tokio::sync::{Semaphore, oneshot, watch};

pub use agent::{Agent, FleetView};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ask::answer;
pub use front::{Front, FrontError, attend_lan};
pub use links::LinkNow;
pub use live::Live;
pub use local_domain::LocalDomain;
pub use names::{NamesNow, NamesOver, NamesWhy};
pub use portal::PortalProbe;
pub use probe::{Probed, Terms as ProbeTerms};
pub use relays::RelayAt;
pub use remembered::{Remembered, keep_state};
pub use rest::{RestNow, RestWhy};
pub use trust::{Trusted, keep_trust, list, show};
pub use unused::UnusedLink;

use self::machine::Saved;
use crate::congestion::Congestion;
use crate::list_reload::ListReload;
use crate::service::words::Endpoint;
pub use crate::starts::FailingLink;

use crate::tunnel::Target;

/// What an edge does.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where programs reach it.
    pub listen: Vec<SocketAddr>,
    /// The relays that it may use, the best first.
    pub relays: Vec<RelayAt>,
    /// Connections to the best relay that wait ready.
    pub warm: usize,
    /// Whether a server is reached without a relay where none can be had.
    pub direct: bool,
    /// The congestion control towards relays; none: the kernel's.
    pub congestion: Option<Congestion>,
    /// Whether a LAN's connections come as well.
    pub lan: bool,
    /// Whom it serves, and who comes first.
    pub guests: GuestTerms,
    /// How captive portals are looked for that do not answer in a relay's place.
    pub portal_probe: PortalProbe,
    /// Domains whose names this box looks up where no relay knows them, beside those that are always local.
    pub local_domains: Vec<LocalDomain>,
}

/// Whom an edge serves, and who comes first.
#[derive(Clone, Debug)]
pub struct GuestTerms {
    /// Flows that come before all others; RTMP unless something else is said.
    pub live: Vec<Live>,
    /// How many flows there may be.
    pub flows: usize,
    /// How many of one address; the loopback's may have all.
    pub flows_of_one: usize,
}

impl Default for GuestTerms {
    fn default() -> Self {
        Self { live: vec![Live::rtmp()], flows: FLOWS, flows_of_one: FLOWS_OF_ONE }
    }
}

/// chosen: a household with several browsers has some hundred; and a relay carries 512 of one edge
/// ([`Limits`](crate::relay::Limits)), a flow that is asked for twice counted twice.
const FLOWS: usize = 448;
/// chosen: one client cannot take all places, and a browser has enough.
const FLOWS_OF_ONE: usize = 320;

/// Descriptors of one flow: both its sides, the one that its queue is looked at by, and two by which a live stream is.
const OF_A_FLOW: u64 = 5;
/// chosen: listeners, connections that wait ready, addresses that are tried side by side, the service, lists, look-ups.
const ASIDE: u64 = 96;

impl GuestTerms {
    /// The same, or fewer flows where a process that may have so many descriptors cannot have them.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let room = usize::try_from(descriptors.saturating_sub(ASIDE) / OF_A_FLOW).unwrap_or(usize::MAX).max(2);
        let Self { flows, flows_of_one, .. } = self;
        if flows <= room {
            return self;
        }
        Self { flows: room, flows_of_one: flows_of_one.min((room / 4 * 3).max(1)), ..self }
    }
}

/// How an edge stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EdgeState {
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
    pub last: Option<String>,
}

/// One of the relays that new flows are led to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RelayRow {
    /// What people call it.
    pub label: String,
    /// Where it listens.
    pub addresses: Vec<Endpoint>,
    /// It did not carry when it was asked last.
    pub failing: bool,
    /// Why it did not; none: it carries, or was not asked yet.
    #[serde(default)]
    pub why: Option<String>,
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
    roads: Arc<road::Roads>,
    lanes: lanes::Lanes,
    guests: Mutex<Guests<oneshot::Sender<()>>>,
    state: watch::Sender<EdgeState>,
    links: watch::Sender<Vec<LinkNow>>,
    rest: watch::Sender<Option<RestNow>>,
    names: watch::Sender<Option<NamesNow>>,
    /// The interfaces by which the rest of a LAN's packets and this host's own name queries leave.
    passing: watch::Sender<BTreeSet<String>>,
    /// Links over which UDP of the LAN goes unanswered (`unanswered`).
    silent: watch::Sender<BTreeSet<String>>,
    /// Links whose name servers give no names (`nameless`).
    nameless: watch::Sender<BTreeSet<String>>,
    public_names: nearby::PublicNames,
    /// Why what is known of relays could not be written down last.
    state_trouble: watch::Sender<Option<String>>,
    unused: watch::Sender<Vec<UnusedLink>>,
    wanted: watch::Sender<live::Wanted>,
    direct: Arc<meter::Meter>,
    look_ups: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    /// The tunnel that has the default route.
    vpn: watch::Sender<Option<String>>,
    /// What was wrong with the revocation list when it was read last.
    list_reload: ListReload,
}

impl Edge {
    /// An edge that is known to relays by what is in `trusted`, and trusts whom that trusts.
    pub fn new(config: Config, trusted: impl Into<Trusted>) -> Arc<Self> {
        let roads = road::Roads::new(&config, trusted.into());
        let lanes = lanes::Lanes::new(config.guests.live.clone());
        let guests = Mutex::new(Guests::new(config.guests.flows, config.guests.flows_of_one).exempting_loopback());
        Arc::new(Self {
            config,
            roads,
            lanes,
            guests,
            state: watch::Sender::default(),
            links: watch::Sender::default(),
            rest: watch::Sender::default(),
            names: watch::Sender::default(),
            passing: watch::Sender::default(),
            silent: watch::Sender::default(),
            nameless: watch::Sender::default(),
            public_names: nearby::PublicNames::default(),
            state_trouble: watch::Sender::default(),
            unused: watch::Sender::default(),
            wanted: watch::Sender::default(),
            direct: Arc::default(),
            look_ups: Arc::new(Semaphore::new(direct::LOOK_UPS)),
            vpn: watch::Sender::default(),
            refusals: Arc::new(Semaphore::new(front::REFUSALS)),
            list_reload: ListReload::default(),
        })
    }

    /// How it stands; changes are told.
    pub fn state(&self) -> watch::Receiver<EdgeState> {
        self.state.subscribe()
    }

    /// Its links as they were seen last.
    pub fn links(&self) -> Vec<LinkNow> {
        self.with_silent(self.links.borrow().clone())
    }

    /// The same with links over which UDP of the LAN goes unanswered.
    fn with_silent(&self, mut links: Vec<LinkNow>) -> Vec<LinkNow> {
        let silent = self.silent.borrow();
        links.iter_mut().for_each(|link| link.silent |= silent.contains(&link.name));
        links
    }

    /// Which way the rest of a LAN's packets takes; none: it serves no LAN, or has not checked yet. Receivers are notified of changes.
    pub fn rest(&self) -> watch::Receiver<Option<RestNow>> {
        self.rest.subscribe()
    }

    /// Over which links this host's own name queries leave; none: it serves no LAN, or has not checked yet. Receivers are notified of changes.
    pub fn names(&self) -> watch::Receiver<Option<NamesNow>> {
        self.names.subscribe()
    }

    /// The relays that new flows are led to, the best first.
    pub fn relays(&self) -> Vec<RelayRow> {
        let row = |station: Arc<relays::Station>| {
            let passed = station.meter.read();
            RelayRow {
                label: station.at.label.clone(),
                addresses: station.at.places.clone(),
                failing: station.has_failed(),
                why: station.failure(),
                without_mptcp: station.is_without_mptcp(),
                sent_bytes: passed.up,
                received_bytes: passed.down,
            }
        };
        self.roads.relays.all().into_iter().map(row).collect()
    }

    /// Changes when one of its relays fails, fails for another reason, or carries again.
    pub fn relay_changes(&self) -> watch::Receiver<u64> {
        self.roads.changes()
    }

    /// Why what is known of relays cannot be written down; none: it can be, or was not yet. Changes are told.
    pub fn state_trouble(&self) -> watch::Receiver<Option<String>> {
        self.state_trouble.subscribe()
    }

    /// Links that connections to relays do not use, and why. Changes are told.
    pub fn unused(&self) -> watch::Receiver<Vec<UnusedLink>> {
        self.unused.subscribe()
    }

    /// What it shows to the service ([`Client::showing`](crate::service::Client::showing)), and whom it takes for it.
    pub fn shows(self: &Arc<Self>) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let edge = Arc::clone(self);
        move || edge.roads.trusted().tls
    }

    /// What a later run needs to know where it asks no service: where the relays of the command line are.
    pub fn save(&self) -> Saved {
        let named = self.roads.relays.all().into_iter().filter(|station| station.at.member.is_none());
        let of = |station: Arc<relays::Station>| Some((station.at.places.first()?.to_string(), station.found()?));
        Saved { addresses: named.filter_map(of).collect(), ..Saved::default() }
    }

    /// Begins with what an earlier run has saved: a relay's last addresses serve while its name cannot be looked up.
    pub fn recall(&self, saved: &Saved) {
        for station in self.roads.relays.all() {
            let place = station.at.places.first().map(ToString::to_string);
            let known = place.and_then(|place| saved.addresses.get(&place)).filter(|known| !known.is_empty());
            if let Some(addresses) = known {
                station.recall(addresses.clone());
            }
        }
    }

    /// Trusts others from now on.
    pub fn trust(&self, trusted: Trusted) {
        self.roads.trust(trusted);
    }

    /// Uses these relays for new flows from now on, the best first.
    pub fn lead(&self, relays: &[RelayAt]) {
        self.roads.lead(relays);
    }

    /// Measures what it reaches to a relay of its list, by its label; none: it is not on the list. And what was sent for that.
    pub async fn probe(&self, label: &str, terms: &ProbeTerms) -> Option<(std::io::Result<Probed>, DataSize)> {
        let station = self.roads.relays.all().into_iter().find(|station| station.at.label == label)?;
        Some(
            probe::probe(
                &station,
                &self.roads.trusted(),
                terms,
                self.config.congestion.clone(),
                &self.roads.starts,
            )
            .await,
        )
    }

    /// What flows that are not live streams may send together just now; none: as much as they can.
    pub fn allowance(&self) -> Option<Bitrate> {
        self.lanes.allowance()
    }

    fn guests(&self) -> MutexGuard<'_, Guests<oneshot::Sender<()>>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps connections ready until dropped.
    pub async fn keep_warm(&self) -> std::convert::Infallible {
        tokio::select! {
            never = self.roads.keep_warm() => never,
            never = self.roads.keep_current() => never,
            never = self.roads.keep_trying() => never,
            never = self.roads.keep_probing() => never,
            never = self.roads.keep_probing_portals() => never,
        }
    }

    /// Looks at its links once, so that the first connections begin over those that are there; `run_dir` is that of `marline paths`.
    pub async fn look(&self, run_dir: &Path) {
        self.look_with(&mut links::Links::default(), Instant::default(), run_dir, false).await;
    }

    /// Looks at its links until dropped; `run_dir` is that of `marline paths`.
    pub async fn keep_looking(&self, run_dir: &Path) -> std::convert::Infallible {
        let (begun, mut links) = (std::time::Instant::now(), links::Links::default());
        let (mut failing, mut monitor, mut stripped) = (self.roads.starts.failing(), Monitor::new().ok(), 0);
        for round in 0_u64.. {
            let now = Instant::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
            let seen = self.look_with(&mut links, now, run_dir, round % unused::EACH == 0).await;
            let next = tokio::time::sleep(links::LOOK);
            tokio::pin!(next);
            loop {
                self.publish(seen.clone());
                tokio::select! {
                    () = &mut next => break,
                    // A link that does not answer is left at once, not at the next look.
                    _ = failing.changed() => {
                        let is_stripped = |row: &FailingLink| row.why == LinkFailure::MptcpStripped && row.instead.is_some();
                        let now = failing.borrow_and_update().iter().filter(|row| is_stripped(row)).count();
                        // Ready connections that use one link are made again over the link that gives several.
                        if now > stripped {
                            self.roads.drop_ready();
                        }
                        stripped = now;
                    }
                    // What a VPN is to carry goes beside it not even for a moment.
                    () = changed(&mut monitor) => {
                        self.look_for_vpn(run_dir).await;
                        tokio::time::sleep(CHANGES).await;
                    }
                }
            }
        }
        std::future::pending().await
    }

    async fn look_with(
        &self,
        links: &mut links::Links,
        now: Instant,
        run_dir: &Path,
        with_unused: bool,
    ) -> Vec<LinkNow> {
        let dir = run_dir.to_owned();
        let looked = tokio::task::spawn_blocking(move || {
            let look = links::look(&dir);
            let unused = with_unused.then(|| unused::look(&look));
            (look, unused, marline_net::links::survey().ok())
        });
        let Ok((look, unused, survey)) = looked.await else { return self.links() };
        if let Some(found) = unused {
            self.unused.send_if_modified(|unused| std::mem::replace(unused, found.clone()) != found);
        }
        let seen = links.look(now, look.clone());
        if let Some(survey) = survey {
            self.begin_over(&look, &seen, survey);
        }
        seen
    }

    /// Looks whether a VPN has come or gone since the last look at the links.
    async fn look_for_vpn(&self, run_dir: &Path) {
        let Ok(Ok(survey)) = tokio::task::spawn_blocking(marline_net::links::survey).await else { return };
        if !self.is_behind_vpn(survey.vpn) {
            return;
        }
        // As the kernel's routes have it, until it is known which links are used beside the VPN.
        self.roads.starts.forget_links();
        tokio::time::sleep(STEERED).await;
        let dir = run_dir.to_owned();
        let look = move || (links::look(&dir), marline_net::links::survey());
        if let Ok((look, Ok(survey))) = tokio::task::spawn_blocking(look).await {
            self.begin_over(&look, &[], survey);
            self.roads.drop_ready();
        }
    }

    /// Connections begin over these links from now on.
    fn begin_over(&self, look: &links::Look, seen: &[LinkNow], survey: Survey) {
        let beginnings = links::beginnings(look, seen, &survey);
        let is_link = |name: &str| beginnings.iter().any(|(link, _)| link.name == name);
        let others: Vec<_> =
            survey.interfaces.iter().filter(|interface| !is_link(&interface.name)).cloned().collect();
        let has_vpn = survey.vpn.is_some();
        if self.is_behind_vpn(survey.vpn) && has_vpn {
            // Whoever steers the links may not have seen it yet.
            self.roads.starts.forget_links();
        } else if self.roads.starts.set_links(beginnings, &others) {
            self.roads.retry_now();
        }
    }

    /// The tunnel that has the default route now; whether that is news. Connections from before lead past it, or through one that has
    /// ended.
    fn is_behind_vpn(&self, vpn: Option<String>) -> bool {
        let is_news = self.vpn.send_replace(vpn.clone()) != vpn;
        if is_news {
            self.roads.drop_ready();
        }
        is_news
    }

    /// Publishes the links with what attempts to begin connections have shown of them.
    fn publish(&self, mut links: Vec<LinkNow>) {
        for failing in self.roads.starts.failing().borrow().iter() {
            if let Some(link) = links.iter_mut().find(|link| link.name == failing.name) {
                // One that carries running flows is busy, and not gone.
                link.silent |= failing.why.is_outage() && link.rate.is_zero() && link.down.is_zero();
                link.mptcp_stripped = failing.why == LinkFailure::MptcpStripped;
                link.why = Some(failing.why.words().to_owned()).filter(|_| !link.mptcp_stripped);
            }
        }
        self.links.send_if_modified(|now| std::mem::replace(now, links.clone()) != links);
    }

    /// Links over which connections to relays do not begin. Changes are reported.
    pub fn failing_links(&self) -> watch::Receiver<Vec<FailingLink>> {
        self.roads.starts.failing()
    }

    /// Whether the URL of the portal probe may be wrong or blocked: it is answered like a portal over each link. Receivers are notified of changes.
    pub fn portal_probe_doubted(&self) -> watch::Receiver<bool> {
        self.roads.starts.portal_probe_doubted()
    }

    /// A flow wants to go there.
    fn wants(&self, target: &Target) {
        if let Ok(origin) = target.authority().parse() {
            self.wanted.send_if_modified(|wanted| wanted.hear(origin, self.lanes.is_live(target)));
        }
    }
}

/// chosen: until then whoever steers the links has seen the change as well.
const STEERED: Duration = Duration::from_millis(300);
/// chosen: a routing daemon changes many routes one by one.
const CHANGES: Duration = Duration::from_millis(100);

/// Ends when the kernel's routes or interfaces have changed; never where it does not say.
async fn changed(monitor: &mut Option<Monitor>) {
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
        let (usual, of_a_relay) = (GuestTerms::default(), crate::relay::Limits::default());
        // So it is the edge that decides who has to go, and not who came last.
        assert!(usual.flows < of_a_relay.tunnels_per_edge && usual.flows_of_one < usual.flows);
        let bounds = |descriptors| {
            let GuestTerms { flows, flows_of_one, .. } = GuestTerms::default().within(descriptors);
            (flows, flows_of_one)
        };
        assert_eq!(bounds(16_384), (usual.flows, usual.flows_of_one));
        assert_eq!([bounds(1024), bounds(256), bounds(0)], [(185, 138), (32, 24), (2, 1)]);
    }
}
