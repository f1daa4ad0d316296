//! The client's links and their outages.

use marline_core::link::LinkId;
use marline_core::units::{Bitrate, Duration, Instant};

use crate::accel::payload::LinkPayload;
use crate::accel::scenario::{Outage, Scenario};
use crate::link::{Direction, Link};
use crate::rng::{Purpose, RandomStream};
use crate::spec::{Downlink, LinkEventKind, LinkSpec, Uplink};

/// The links, the primary one first.
#[derive(Debug)]
pub(super) struct Links {
    links: Vec<(LinkId, LinkSpec, Link<LinkPayload>)>,
    outages: Vec<Outage>,
    rng: RandomStream,
}

impl Links {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let specs = std::iter::once((Scenario::PRIMARY, &scenario.primary))
            .chain(scenario.secondary.as_ref().map(|spec| (Scenario::SECONDARY, spec)));
        let mut links: Vec<_> =
            specs.map(|(id, spec)| (id, spec.clone(), Link::new(spec, scenario.seed))).collect();
        for outage in &scenario.outages {
            if let Some((.., link)) = links.iter_mut().find(|(id, ..)| *id == outage.link) {
                let at = Instant::ZERO + outage.at;
                link.schedule(at, LinkEventKind::Down);
                link.schedule(at + outage.duration, LinkEventKind::Restore);
            }
        }
        let rng = RandomStream::new(scenario.seed, "gateway", 0, Purpose::Other);
        Self { links, outages: scenario.outages.clone(), rng }
    }

    /// Whether a link carries nothing now. A link that does not exist is down.
    pub(super) fn is_down(&self, id: LinkId, now: Instant) -> bool {
        let covers = |outage: &&Outage| {
            let start = Instant::ZERO + outage.at;
            outage.link == id && start <= now && now < start + outage.duration
        };
        self.spec(id).is_none() || self.outages.iter().any(|outage| covers(&outage))
    }

    /// When a gateway's reply to a probe that is sent now arrives; none if either is lost or the link is down then.
    pub(super) fn probe_reply_at(&mut self, id: LinkId, now: Instant) -> Option<Instant> {
        let spec = self.spec(id)?;
        let (loss, delay) = (spec.loss.mean(), (spec.rtt / 8).min(MAX_GATEWAY_RTT));
        let delay = if id == Scenario::PRIMARY { delay } else { delay + self.queueing_delay(id) };
        let lost = self.rng.bernoulli(loss) || self.rng.bernoulli(loss);
        let at = now + delay + Duration::from_micros(500 + self.rng.below(1000));
        (!lost && !self.is_down(id, now) && !self.is_down(id, at)).then_some(at)
    }

    /// How long a packet that the client sends now waits in the link's queue; zero on a shared medium or with a trace.
    fn queueing_delay(&self, id: LinkId) -> Duration {
        let Some((_, spec, link)) = self.links.iter().find(|(other, ..)| *other == id) else {
            return Duration::ZERO;
        };
        let rate = match (&spec.uplink, &spec.downlink) {
            (Uplink::Rate(rate), Downlink::Rate { .. }) => *rate,
            (Uplink::SameAsDownlink, Downlink::Rate { initial: first, .. }) => *first,
            _ => Bitrate::ZERO,
        };
        if rate.is_zero() { Duration::ZERO } else { link.stats(Direction::Up).queued.bytes / rate }
    }

    /// The round-trip time to a server, without queues.
    pub(super) fn rtt(&self, id: LinkId) -> Duration {
        self.spec(id).map_or(Duration::ZERO, |spec| spec.rtt)
    }

    /// A link's downstream rate at the start; 1 Mbit/s if it has none (a shared medium or a trace).
    pub(super) fn rate(&self, id: LinkId) -> Bitrate {
        match self.spec(id).map(|spec| &spec.downlink) {
            Some(Downlink::Rate { initial: first, .. }) => *first,
            _ => Bitrate::from_mbps(1),
        }
    }

    /// Packets that a link has delivered to the client.
    pub(super) fn received_packets(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| link.stats(Direction::Down).delivered.packets)
    }

    /// Packets towards the client that a link dropped because of congestion: its queue was full or, with CoDel, too
    /// slow, or its policer dropped them.
    pub(super) fn dropped(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| {
            let stats = link.stats(Direction::Down);
            (stats.dropped_queue_full + stats.dropped_codel + stats.dropped_policer).packets
        })
    }

    /// IP bytes that the client has sent over a link.
    pub(super) fn sent(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| link.stats(Direction::Up).offered.bytes.bytes())
    }

    /// Sends a packet over a link. False if there is no such link.
    pub(super) fn push(&mut self, id: LinkId, direction: Direction, payload: LinkPayload, now: Instant) -> bool {
        let found = self.links.iter_mut().find(|(other, ..)| *other == id);
        found.map(|(.., link)| link.push(direction, payload, now)).is_some()
    }

    /// The next packet that has arrived by now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(LinkId, Direction, LinkPayload)> {
        self.links.iter_mut().find_map(|(id, _, link)| {
            let (direction, payload) = link.pop(now)?;
            Some((*id, direction, payload))
        })
    }

    /// When the next one may arrive.
    pub(super) fn next(&self) -> Option<Instant> {
        self.links.iter().filter_map(|(.., link)| link.next_event()).min()
    }

    fn spec(&self, id: LinkId) -> Option<&LinkSpec> {
        self.links.iter().find(|(other, ..)| *other == id).map(|(_, spec, _)| spec)
    }
}

/// Upper limit of a gateway's RTT, which is otherwise an eighth of the server's. Our choice: a gateway is near, wherever the server is.
const MAX_GATEWAY_RTT: Duration = Duration::from_millis(8);
