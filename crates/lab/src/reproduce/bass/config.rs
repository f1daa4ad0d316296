//! Configuration of the cases: the links of an edge, relays, an origin, the path segments between them, and the
//! routes of an upload. The same cases are used in virtual and in real time.
//!
//! 1. A [`PathSegment`] lies between the Internet side of the edge's links and a relay, between a relay and the
//!    origin, and between the links and the origin (the route without a relay).
//! 2. A relay at a fraction of a path has that fraction of its RTT and of its loss before it, and the rest behind
//!    it. So a split path is no better than the whole. A relay improves throughput only because each half recovers
//!    from loss sooner and loses less.
//! 3. Origins are drawn uniformly from [`ORIGIN_RTT`] and [`ORIGIN_LOSS`], seeded by their number, so that all
//!    clients use the same ones. Of BASS's own origins (60 PlanetLab nodes) only the resulting gains are published.
//! 4. All randomness is drawn here, except for losses, which the links draw from the case's seed.

use std::ops::Range;

use marline_core::units::{Bitrate, Duration, Ratio};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::{LinkSpec, Loss};

/// An emulated path segment between two sites.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PathSegment {
    pub(super) rtt: Duration,
    /// Loss in each direction.
    pub(super) loss: Ratio,
    pub(super) rate: Bitrate,
}

/// A relay, described by the path segments to it and from it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RelayPosition {
    /// From the edge's links to the relay.
    pub(super) from_edge: PathSegment,
    /// From the relay to the origin.
    pub(super) to_origin: PathSegment,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum UploadRoute {
    /// Plain TCP to the origin over the link with this index: B_o(c) is the best of these.
    Direct(usize),
    /// Edge and relay over the first link alone: the effect of splitting the connection.
    Split(usize),
    /// Edge and relay over all links: B_o(c, s).
    Through(usize),
    /// From the edge over all links to the relay itself: B(c, s).
    ToRelay(usize),
    /// Plain TCP from the relay to the origin: B_o(s).
    FromRelay(usize),
    /// Edge and the relay that the fleet service assigns.
    Assigned,
}

/// Environment of a measurement, and the routes that are measured in it.
#[derive(Clone, Debug)]
pub(super) struct UploadCase {
    pub(super) artefact: &'static str,
    pub(super) name: String,
    pub(super) links: Vec<LinkSpec>,
    pub(super) direct: PathSegment,
    pub(super) relays: Vec<RelayPosition>,
    pub(super) routes: Vec<UploadRoute>,
    /// Length of each upload.
    pub(super) length: Duration,
    /// Seed of all random loss.
    pub(super) seed: u64,
}

impl UploadRoute {
    /// Name in tables and files; `links` are those of the case.
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
    /// A segment with the rate of the Internet's backbone.
    pub(super) const fn new(rtt: Duration, loss: Ratio) -> Self {
        Self { rtt, loss, rate: BACKBONE_RATE }
    }

    /// This fraction of the segment (RTT and loss).
    fn fraction(self, part: f64) -> Self {
        let loss = Ratio::from_ppm((f64::from(self.loss.ppm()) * part) as u32);
        Self { rtt: self.rtt.mul_f64(part), loss, ..self }
    }

    /// The segment as an emulated link of this name.
    pub(super) fn link(self, name: &str) -> LinkSpec {
        LinkSpec { loss: Loss::Independent(self.loss), ..LinkSpec::constant(name, self.rate, self.rtt) }
    }
}

impl RelayPosition {
    /// A relay at this fraction of a path (rule 2).
    pub(super) fn at_fraction(path: PathSegment, part: f64) -> Self {
        Self { from_edge: path.fraction(part), to_origin: path.fraction(1.0 - part) }
    }

    /// A relay next to the edge, and as close to the origin.
    pub(super) const fn near_edge() -> Self {
        let leg = PathSegment::new(Duration::from_millis(1), Ratio::ZERO);
        Self { from_edge: leg, to_origin: leg }
    }
}

/// The path from the edge's links to the n-th origin (rule 3).
pub(super) fn random_origin(n: u64) -> PathSegment {
    let mut rng = RandomStream::new(n, "origin", 0, Purpose::Other);
    PathSegment::new(random_millis(&mut rng, ORIGIN_RTT), Ratio::from_ppm(random_in(&mut rng, ORIGIN_LOSS) as u32))
}

/// The n-th origin with three relays, for the selection of relays. Each relay has its own segment to the origin.
pub(super) fn random_relays(seed: u64) -> (PathSegment, Vec<RelayPosition>) {
    let mut rng = RandomStream::new(seed, "choice", 0, Purpose::Other);
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
    (random_origin(seed), relays.into())
}

/// The segment between the edge's links and a relay at this distance.
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

/// A link with this rate in both directions.
pub(super) fn link(name: &str, mbps: u64, rtt_ms: u64) -> LinkSpec {
    LinkSpec::constant(name, Bitrate::from_mbps(mbps), Duration::from_millis(rtt_ms))
}

/// BASS section V-C: two interfaces of 8 Mbit/s. Our choice: typical RTTs of two Wi-Fi networks.
pub(super) fn two_8mbps_links() -> Vec<LinkSpec> {
    vec![link("wifi0", 8, 10), link("wifi1", 8, 20)]
}

/// Positions of the relays of an origin, as fractions of its path. Our choice: three, as many as an edge measures
/// (BASS section IV-B).
pub(super) const POSITIONS: [f64; 3] = [0.25, 0.5, 0.75];
/// Number of origins (BASS section V: 60 nodes).
pub(super) const ORIGINS: u64 = 60;
/// RTT of an origin in milliseconds. Our choice: from the same region to the other side of the earth.
const ORIGIN_RTT: Range<u64> = 20..300;
/// Loss of an origin in ppm. Our choice: uniformly up to 2 %, so that the mean is 1 %.
const ORIGIN_LOSS: Range<u64> = 0..20_000;
/// Distances of the relays of [`random_relays`] in kilometers. Our choice: nearby, in the same country, across an
/// ocean.
const RELAY_DISTANCES_KM: [u32; 3] = [100, 1500, 6000];
/// Rate from a relay to the origin in Mbit/s. Our choice: below and above the sum of two links of 8 Mbit/s.
const RELAY_ORIGIN_MBPS: Range<u64> = 6..30;
/// Loss from a relay to the origin in ppm. Our choice: paths of a data center lose less than those of
/// [`ORIGIN_LOSS`].
const RELAY_ORIGIN_LOSS: Range<u64> = 0..2_000;
/// RTT of 1 ms per 100 km, as the fleet service estimates distances: the speed of light in fiber.
const MICROS_PER_KM: u64 = 10;
/// Loss in ppm per number of kilometers. Our choice: the mean of the origins, 1 % at an RTT of 160 ms.
const LOSS_PPM: (u32, u32) = (10_000, 16_000);
/// Rate of the Internet's backbone: more than any of the links.
const BACKBONE_RATE: Bitrate = Bitrate::from_mbps(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_lie_in_the_ranges_and_are_reproducible() {
        let all: Vec<PathSegment> = (0..ORIGINS).map(random_origin).collect();
        assert!(all.iter().all(|route| (20..300).contains(&route.rtt.as_millis()) && route.loss.ppm() < 20_000));
        let mean = all.iter().map(|route| route.rtt.as_secs_f64()).sum::<f64>() / 60.0;
        assert!((0.14..0.18).contains(&mean), "{mean}");
        let loss = all.iter().map(|route| route.loss.as_f64()).sum::<f64>() / 60.0;
        assert!((0.008..0.012).contains(&loss), "{loss}");
        assert_eq!(all, (0..ORIGINS).map(random_origin).collect::<Vec<_>>());
    }

    #[test]
    fn a_split_path_is_no_better_than_the_whole() {
        let route = random_origin(7);
        for part in POSITIONS {
            let relay = RelayPosition::at_fraction(route, part);
            let apart = (relay.from_edge.rtt + relay.to_origin.rtt).abs_diff(route.rtt);
            assert!(apart < Duration::from_micros(1), "{apart:?}");
            assert!(relay.from_edge.loss.ppm() + relay.to_origin.loss.ppm() + 1 >= route.loss.ppm());
        }
    }
}
