//! What is measured: an edge's links, relays, an origin, what lies between them, and the ways that an upload can take.
//!
//! In: seeds. Out: [`Case`]s, for virtual and for real time alike.
//!
//! 1. A [`Leg`] lies between the Internet's side of the edge's links and a relay, between a relay and the origin, and between the
//!    former and the origin: the way of who has no relay.
//! 2. A relay that stands at a part of the way has that part of its round trip and of its loss, and leaves the rest: a way that
//!    is split is no better than the whole one. What a relay gains, it gains because each half answers sooner and loses less.
//! 3. Origins are drawn evenly from the ranges of [`ORIGIN_RTT`] and [`ORIGIN_LOSS`] by their number: every client meets the same
//!    ones. BASS's own (60 PlanetLab nodes) are known by nothing but the gains that they led to.
//! 4. Chance is drawn here and nowhere else, but for losses, which the links draw from the case's seed.

use std::ops::Range;

use marline_core::units::{Bitrate, Duration, Ratio};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::{LinkSpec, Loss};

/// Something between two places.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PathSegment {
    pub(super) rtt: Duration,
    /// Each way.
    pub(super) loss: Ratio,
    pub(super) rate: Bitrate,
}

/// A relay, by its ways.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RelayPosition {
    /// From the edge's links to it.
    pub(super) from_edge: PathSegment,
    /// From it to the origin.
    pub(super) to_origin: PathSegment,
}

/// Which way an upload takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum UploadRoute {
    /// Plain TCP over the link with this place to the origin: B_o(c) is the best of these.
    Direct(usize),
    /// Edge and relay, over the first link alone: what splitting the connection brings.
    Split(usize),
    /// Edge and relay, over all links: B_o(c, s).
    Through(usize),
    /// From the edge over all links to the relay itself: B(c, s).
    ToRelay(usize),
    /// Plain TCP from the relay to the origin: B_o(s).
    FromRelay(usize),
    /// Edge and the relay that the fleet's service assigns.
    Assigned,
}

/// One measurement's surroundings, and the ways that are measured there.
#[derive(Clone, Debug)]
pub(super) struct UploadCase {
    pub(super) artefact: &'static str,
    pub(super) name: String,
    pub(super) links: Vec<LinkSpec>,
    pub(super) direct: PathSegment,
    pub(super) relays: Vec<RelayPosition>,
    pub(super) routes: Vec<UploadRoute>,
    /// How long each upload lasts.
    pub(super) length: Duration,
    /// Decides every loss.
    pub(super) seed: u64,
}

impl UploadRoute {
    /// As tables and files name it, with the links of its case.
    pub(super) fn name(self, links: &[LinkSpec]) -> String {
        match self {
            Self::Direct(at) => format!("tcp:{}", links.get(at).map_or("?", |link| &link.name)),
            Self::Split(relay) => format!("split-{}", relay + 1),
            Self::Through(relay) => format!("relay-{}", relay + 1),
            Self::ToRelay(relay) => format!("to-relay-{}", relay + 1),
            Self::FromRelay(relay) => format!("from-relay-{}", relay + 1),
            Self::Assigned => "fleet".into(),
        }
    }
}

impl PathSegment {
    /// A leg as wide as the Internet's middle.
    pub(super) const fn new(rtt: Duration, loss: Ratio) -> Self {
        Self { rtt, loss, rate: BACKBONE_RATE }
    }

    /// This part of it.
    fn fraction(self, part: f64) -> Self {
        let loss = Ratio::from_ppm((f64::from(self.loss.ppm()) * part) as u32);
        Self { rtt: self.rtt.mul_f64(part), loss, ..self }
    }

    /// As a link of this name.
    pub(super) fn link(self, name: &str) -> LinkSpec {
        LinkSpec { loss: Loss::Independent(self.loss), ..LinkSpec::constant(name, self.rate, self.rtt) }
    }
}

impl RelayPosition {
    /// At this part of a way (rule 2).
    pub(super) fn at_fraction(path: PathSegment, part: f64) -> Self {
        Self { from_edge: path.fraction(part), to_origin: path.fraction(1.0 - part) }
    }

    /// Beside the edge, and as near to the origin.
    pub(super) const fn beside_edge() -> Self {
        let leg = PathSegment::new(Duration::from_millis(1), Ratio::ZERO);
        Self { from_edge: leg, to_origin: leg }
    }
}

/// The n-th origin (rule 3): its way from the edge's links.
pub(super) fn random_origin(n: u64) -> PathSegment {
    let mut rng = RandomStream::new(n, "origin", 0, Purpose::Other);
    PathSegment::new(random_millis(&mut rng, ORIGIN_RTT), Ratio::from_ppm(random_in(&mut rng, ORIGIN_LOSS) as u32))
}

/// The n-th set of three relays with an origin, for the choice among relays: each relay has a way of its own to the origin.
pub(super) fn random_relays(n: u64) -> (PathSegment, Vec<RelayPosition>) {
    let mut rng = RandomStream::new(n, "choice", 0, Purpose::Other);
    let relays = RELAY_DISTANCES_KM.map(|away| {
        let onward = PathSegment {
            rate: Bitrate::from_mbps(random_in(&mut rng, RELAY_ORIGIN_MBPS)),
            ..PathSegment::new(
                random_millis(&mut rng, ORIGIN_RTT),
                Ratio::from_ppm(random_in(&mut rng, RELAY_ORIGIN_LOSS) as u32),
            )
        };
        RelayPosition { from_edge: path_of_length(away), to_origin: onward }
    });
    (random_origin(n), relays.into())
}

/// What lies between the edge's links and a relay so far away.
pub(super) fn path_of_length(kilometres: u32) -> PathSegment {
    let rtt = Duration::from_micros(u64::from(kilometres) * MICROS_PER_KM);
    PathSegment::new(rtt, Ratio::from_ppm(kilometres * LOSS_PPM.0 / LOSS_PPM.1))
}

fn random_in(rng: &mut RandomStream, range: Range<u64>) -> u64 {
    range.start + rng.below(range.end - range.start)
}

fn random_millis(rng: &mut RandomStream, millis: Range<u64>) -> Duration {
    Duration::from_millis(random_in(rng, millis))
}

/// A link of so many Mbit/s both ways.
pub(super) fn link(name: &str, mbps: u64, rtt_ms: u64) -> LinkSpec {
    LinkSpec::constant(name, Bitrate::from_mbps(mbps), Duration::from_millis(rtt_ms))
}

/// BASS §V-C: two interfaces of 8 Mbit/s. chosen: the round trips of a Wi-Fi's network and of a second one.
pub(super) fn two_8mbps_links() -> Vec<LinkSpec> {
    vec![link("wifi0", 8, 10), link("wifi1", 8, 20)]
}

/// Where the relays of an origin stand on its way. chosen: three, as many as a box measures (BASS §IV-B).
pub(super) const POSITIONS: [f64; 3] = [0.25, 0.5, 0.75];
/// BASS §V: 60 nodes.
pub(super) const ORIGINS: u64 = 60;
/// Milliseconds. chosen: from the same region to the other side of the earth.
const ORIGIN_RTT: Range<u64> = 20..300;
/// Parts of a million. chosen: up to 2 %, evenly, so that 1 % is the mean.
const ORIGIN_LOSS: Range<u64> = 0..20_000;
/// The relays of [`choice`], in kilometres. chosen: next door, in the country, across an ocean.
const RELAY_DISTANCES_KM: [u32; 3] = [100, 1500, 6000];
/// What a relay has towards an origin. chosen: below and above what two links of 8 Mbit/s bring.
const RELAY_ORIGIN_MBPS: Range<u64> = 6..30;
/// Parts of a million. chosen: a data centre's ways lose less than those of [`ORIGIN_LOSS`].
const RELAY_ORIGIN_LOSS: Range<u64> = 0..2_000;
/// A round trip of 1 ms for 100 km, as the fleet's service estimates distances: light in fibre.
const MICROS_PER_KM: u64 = 10;
/// Parts of a million for so many kilometres. chosen: as [`origin`]s have in the mean, 1 % on a round trip of 160 ms.
const LOSS_PPM: (u32, u32) = (10_000, 16_000);
/// What the middle of the Internet carries here: more than any of the links.
const BACKBONE_RATE: Bitrate = Bitrate::from_mbps(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_the_ranges_and_the_same_each_time() {
        let all: Vec<PathSegment> = (0..ORIGINS).map(random_origin).collect();
        assert!(all.iter().all(|route| (20..300).contains(&route.rtt.as_millis()) && route.loss.ppm() < 20_000));
        let mean = all.iter().map(|route| route.rtt.as_secs_f64()).sum::<f64>() / 60.0;
        assert!((0.14..0.18).contains(&mean), "{mean}");
        let loss = all.iter().map(|route| route.loss.as_f64()).sum::<f64>() / 60.0;
        assert!((0.008..0.012).contains(&loss), "{loss}");
        assert_eq!(all, (0..ORIGINS).map(random_origin).collect::<Vec<_>>());
    }

    #[test]
    fn a_way_that_is_split_is_no_better_than_the_whole() {
        let route = random_origin(7);
        for part in POSITIONS {
            let relay = RelayPosition::at_fraction(route, part);
            let apart = (relay.from_edge.rtt + relay.to_origin.rtt).abs_diff(route.rtt);
            assert!(apart < Duration::from_micros(1), "{apart:?}");
            assert!(relay.from_edge.loss.ppm() + relay.to_origin.loss.ppm() + 1 >= route.loss.ppm());
        }
    }
}
