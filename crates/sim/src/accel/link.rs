//! The client's links, and whether they are dark.

use marline_core::link::LinkId;
use marline_core::units::{Bitrate, Duration, Instant};

use super::carried::Carried;
use super::scene::{Blackout, Scene};
use crate::link::{Direction, Link};
use crate::rng::{Purpose, RandomStream};
use crate::spec::{Downlink, LinkEventKind, LinkSpec, Uplink};

/// The primary link first.
#[derive(Debug)]
pub(super) struct Links {
    links: Vec<(LinkId, LinkSpec, Link<Carried>)>,
    blackouts: Vec<Blackout>,
    chance: RandomStream,
}

impl Links {
    pub(super) fn new(scene: &Scene) -> Self {
        let specs = std::iter::once((Scene::PRIMARY, &scene.primary))
            .chain(scene.helper.as_ref().map(|spec| (Scene::HELPER, spec)));
        let mut links: Vec<_> = specs.map(|(id, spec)| (id, spec.clone(), Link::new(spec, scene.seed))).collect();
        for blackout in &scene.blackouts {
            if let Some((.., link)) = links.iter_mut().find(|(id, ..)| *id == blackout.link) {
                let at = Instant::ZERO + blackout.at;
                link.schedule(at, LinkEventKind::Down);
                link.schedule(at + blackout.lasts, LinkEventKind::Restore);
            }
        }
        let chance = RandomStream::new(scene.seed, "gateway", 0, Purpose::Other);
        Self { links, blackouts: scene.blackouts.clone(), chance }
    }

    /// Whether a link carries nothing now. One that is not there is dark.
    pub(super) fn is_dark(&self, id: LinkId, now: Instant) -> bool {
        let covers = |blackout: &&Blackout| {
            let start = Instant::ZERO + blackout.at;
            blackout.link == id && start <= now && now < start + blackout.lasts
        };
        self.spec(id).is_none() || self.blackouts.iter().any(|blackout| covers(&blackout))
    }

    /// When a link's gateway answers a question that is asked now, if it gets it.
    pub(super) fn answers_at(&mut self, id: LinkId, now: Instant) -> Option<Instant> {
        let spec = self.spec(id)?;
        let (loss, takes) = (spec.loss.mean(), (spec.rtt / 8).min(FARTHEST_GATEWAY));
        let takes = if id == Scene::PRIMARY { takes } else { takes + self.waits(id) };
        let lost = self.chance.bernoulli(loss) || self.chance.bernoulli(loss);
        let at = now + takes + Duration::from_micros(500 + self.chance.below(1000));
        (!lost && !self.is_dark(id, now) && !self.is_dark(id, at)).then_some(at)
    }

    /// How long what leaves over a link now waits in its queue; on a medium or a trace that is not told.
    fn waits(&self, id: LinkId) -> Duration {
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

    /// The round trip to a server, without queues.
    pub(super) fn rtt(&self, id: LinkId) -> Duration {
        self.spec(id).map_or(Duration::ZERO, |spec| spec.rtt)
    }

    /// What a link brings.
    pub(super) fn rate(&self, id: LinkId) -> Bitrate {
        match self.spec(id).map(|spec| &spec.downlink) {
            Some(Downlink::Rate { initial: first, .. }) => *first,
            _ => Bitrate::from_mbps(1),
        }
    }

    /// Packets that a link has brought.
    pub(super) fn brought(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| link.stats(Direction::Down).delivered.packets)
    }

    /// Packets towards the client that a link dropped because more came than it carries: its queue was full or, by CoDel,
    /// stood too long, or its policer let no more pass.
    pub(super) fn dropped(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| {
            let stats = link.stats(Direction::Down);
            (stats.dropped_queue_full + stats.dropped_codel + stats.dropped_policer).packets
        })
    }

    /// IP bytes that were given to a link, from here.
    pub(super) fn sent(&self, id: LinkId) -> u64 {
        let found = self.links.iter().find(|(other, ..)| *other == id);
        found.map_or(0, |(.., link)| link.stats(Direction::Up).offered.bytes.bytes())
    }

    /// Gives a packet to a link. False if there is no such link.
    pub(super) fn push(&mut self, id: LinkId, direction: Direction, carried: Carried, now: Instant) -> bool {
        let found = self.links.iter_mut().find(|(other, ..)| *other == id);
        found.map(|(.., link)| link.push(direction, carried, now)).is_some()
    }

    /// The next packet that has come by now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(LinkId, Direction, Carried)> {
        self.links.iter_mut().find_map(|(id, _, link)| {
            let (direction, carried) = link.pop(now)?;
            Some((*id, direction, carried))
        })
    }

    /// When one may come next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.links.iter().filter_map(|(.., link)| link.next_event()).min()
    }

    fn spec(&self, id: LinkId) -> Option<&LinkSpec> {
        self.links.iter().find(|(other, ..)| *other == id).map(|(_, spec, _)| spec)
    }
}

/// Chosen: a gateway is near, whatever lies behind it.
const FARTHEST_GATEWAY: Duration = Duration::from_millis(8);
