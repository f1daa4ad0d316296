//! The map of a fleet: places, rates and who measures whom.
//!
//! In: a [`Plan`]. Out: a [`Fleet`], from which boxes are drawn one after the other.

use std::ops::RangeInclusive;

use marline_core::assign::{Candidate, Instance};
use marline_core::units::{Bitrate, Ratio};

use crate::rng::{Purpose, RandomStream};

/// What a fleet is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetSpec {
    /// How many relays.
    pub relay_count: usize,
    /// How many boxes.
    pub edge_count: usize,
    /// How many relays a box measures.
    pub candidates_per_edge: RangeInclusive<u64>,
    /// What boxes would send over what relays have: rule 4 of the [module](super).
    pub load: Ratio,
    /// Decides everything else.
    pub seed: u64,
}

/// A box: its own rate, and what it measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeSpec {
    /// B_o(c).
    pub direct_rate: Bitrate,
    /// B_o(c, s) of the relays nearby.
    pub candidates: Vec<Candidate>,
}

/// Relays, cities and a source of boxes.
#[derive(Clone, Debug)]
pub struct Fleet {
    spec: FleetSpec,
    cities: Vec<City>,
    relays: Vec<Relay>,
    /// The running sums of the cities' shares.
    cumulative_shares: Vec<f64>,
    rng: Sampler,
}

#[derive(Clone, Debug)]
struct City {
    position: Position,
    /// The relays that a box of this city may find nearest.
    nearest_relays: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Relay {
    position: Position,
    /// What it has to each origin.
    origin_rates: Vec<Bitrate>,
    /// Its share of what all relays have.
    capacity_share: f64,
}

/// Kilometres.
#[derive(Clone, Copy, Debug)]
struct Position {
    east: f64,
    north: f64,
}

impl Fleet {
    /// Draws cities and relays.
    pub fn new(spec: &FleetSpec) -> Self {
        let mut rng = Sampler(RandomStream::new(spec.seed, "fleet", 0, Purpose::Other));
        let count = (spec.relay_count / RELAYS_PER_CITY).max(MIN_CITIES);
        let positions: Vec<Position> = (0..count).map(|_| rng.uniform_position()).collect();
        let origins: Vec<Position> = (0..ORIGINS).map(|_| positions[rng.below(count)]).collect();
        let populations: Vec<f64> = (1..=count).map(|rank| 1.0 / rank as f64).collect();
        let cumulative_shares = cumulative_sums(&populations);
        let relays: Vec<Relay> = (0..spec.relay_count)
            .map(|index| {
                // The first ones so that no city is without one, the others where people are.
                let city = if index < count { index } else { rng.weighted_index(&cumulative_shares) };
                let position = rng.position_near(positions[city], CITY_SPREAD);
                let origin_rates =
                    origins.iter().map(|origin| rng.origin_rate(position.distance_to(*origin))).collect();
                Relay { position, origin_rates, capacity_share: 0.5 + rng.uniform() }
            })
            .collect();
        let cities = positions.iter().map(|position| City {
            position: *position,
            nearest_relays: nearest(&relays, *position, NEAREST_RELAYS),
        });
        let cities = cities.collect();
        Self { spec: spec.clone(), cities, relays, cumulative_shares, rng }
    }

    /// The next box.
    pub fn next_edge(&mut self) -> EdgeSpec {
        self.next_edge_with_measurements().0
    }

    /// The next box, and of each of its candidates how far away it is, in kilometres, and B(c, s): what reaches it, whatever it
    /// passes on.
    pub fn next_edge_with_measurements(&mut self) -> (EdgeSpec, Vec<(f64, Bitrate)>) {
        let city = &self.cities[self.rng.weighted_index(&self.cumulative_shares)];
        let position = self.rng.position_near(city.position, CITY_SPREAD);
        let origin = self.rng.below(ORIGINS);
        let direct_rate = DIRECT_RATE_MEDIAN * libm::exp(DIRECT_RATE_SIGMA * self.rng.standard_normal());
        let rate_multiple = self.rng.rate_multiple();
        let (min_count, max_count) = (*self.spec.candidates_per_edge.start(), *self.spec.candidates_per_edge.end());
        let count = min_count + self.rng.0.below(max_count - min_count + 1);
        let mut nearest: Vec<(f64, usize)> =
            city.nearest_relays.iter().map(|at| (position.distance_to(self.relays[*at].position), *at)).collect();
        nearest.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut candidates = Vec::with_capacity(count as usize);
        let mut relay_rates = Vec::with_capacity(count as usize);
        for (distance, relay) in nearest.into_iter().take(count as usize) {
            let noise = libm::exp(NOISE_SIGMA * self.rng.standard_normal());
            let relay_rate = direct_rate
                * (rate_multiple * noise / (1.0 + distance / HALF_RATE_DISTANCE)).clamp(1.0, MAX_RATE_MULTIPLE);
            relay_rates.push((distance, rate(relay_rate)));
            candidates.push(Candidate::through(relay, rate(relay_rate), self.relays[relay].origin_rates[origin]));
        }
        (EdgeSpec { direct_rate: rate(direct_rate), candidates }, relay_rates)
    }

    /// As many boxes as planned.
    pub fn edges(&mut self) -> Vec<EdgeSpec> {
        (0..self.spec.edge_count).map(|_| self.next_edge()).collect()
    }

    /// What each relay has, so that these boxes are the planned load.
    pub fn capacities(&self, edges: &[EdgeSpec]) -> Vec<Bitrate> {
        let best = |member: &EdgeSpec| {
            let rates = member.candidates.iter().map(|candidate| candidate.rate);
            rates.max().filter(|rate| *rate > member.direct_rate).unwrap_or_default().bits_per_sec() as f64
        };
        let total_capacity = edges.iter().map(best).sum::<f64>() / self.spec.load.as_f64();
        let shares: f64 = self.relays.iter().map(|relay| relay.capacity_share).sum();
        self.relays.iter().map(|relay| rate(total_capacity * relay.capacity_share / shares)).collect()
    }

    /// The instance of the plan.
    ///
    /// # Panics
    /// Never: what is drawn here is well-formed.
    pub fn generate_instance(spec: &FleetSpec) -> Instance {
        let mut fleet = Self::new(spec);
        let edges = fleet.edges();
        instance(&fleet.capacities(&edges), &edges)
    }
}

/// The instance of these relays and boxes.
///
/// # Panics
/// When a box names a relay that is not there, or the relays have more than an instance can hold.
pub fn instance(capacities: &[Bitrate], edges: &[EdgeSpec]) -> Instance {
    let mut instance = Instance::new(capacities).expect("what the relays have is what boxes can send");
    for member in edges {
        instance.add(member.direct_rate, &member.candidates).expect("boxes name relays nearby, each once");
    }
    instance
}

impl Position {
    fn distance_to(self, other: Self) -> f64 {
        libm::hypot(self.east - other.east, self.north - other.north)
    }
}

/// Numbers of the shapes that are needed here.
#[derive(Clone, Debug)]
struct Sampler(RandomStream);

impl Sampler {
    /// Evenly from 0 to 1.
    fn uniform(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, deviation 1: sums of twelve even ones, which are normal enough.
    fn standard_normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn weighted_index(&mut self, sums: &[f64]) -> usize {
        let target = self.uniform() * sums.last().copied().unwrap_or(0.0);
        sums.partition_point(|sum| *sum <= target).min(sums.len().saturating_sub(1))
    }

    fn uniform_position(&mut self) -> Position {
        Position { east: self.uniform() * PLANE_SIDE, north: self.uniform() * PLANE_SIDE }
    }

    fn position_near(&mut self, centre: Position, spread: f64) -> Position {
        Position {
            east: centre.east + spread * self.standard_normal(),
            north: centre.north + spread * self.standard_normal(),
        }
    }

    fn origin_rate(&mut self, distance: f64) -> Bitrate {
        rate(
            ORIGIN_RATE_MEDIAN * libm::exp(0.5 * self.standard_normal())
                / (1.0 + distance / ORIGIN_HALF_RATE_DISTANCE),
        )
    }

    /// How many times its own rate a box reaches at best.
    fn rate_multiple(&mut self) -> f64 {
        (RATE_MULTIPLE_MEDIAN * libm::exp(RATE_MULTIPLE_SIGMA * self.standard_normal()))
            .clamp(MIN_RATE_MULTIPLE, MAX_RATE_MULTIPLE)
    }
}

fn nearest(relays: &[Relay], place: Position, count: usize) -> Vec<usize> {
    let mut by_distance: Vec<(f64, usize)> =
        relays.iter().enumerate().map(|(at, relay)| (place.distance_to(relay.position), at)).collect();
    by_distance.sort_by(|a, b| a.0.total_cmp(&b.0));
    by_distance.into_iter().take(count).map(|(_, at)| at).collect()
}

fn cumulative_sums(values: &[f64]) -> Vec<f64> {
    values
        .iter()
        .scan(0.0, |sum, part| {
            *sum += part;
            Some(*sum)
        })
        .collect()
}

fn rate(bits: f64) -> Bitrate {
    Bitrate::from_bits_per_sec(bits as u64)
}

/// chosen: as in BASS's own evaluation there are several relays to choose from in a region.
const RELAYS_PER_CITY: usize = 4;
const MIN_CITIES: usize = 3;
/// BASS §V-A has PlanetLab nodes as originals; twenty of them are enough to differ.
const ORIGINS: usize = 20;
/// The plane, and how far from its city something lies, in kilometres.
const PLANE_SIDE: f64 = 4000.0;
const CITY_SPREAD: f64 = 40.0;
/// The distance at which half of the rate is left. chosen: BASS figure 8 has no numbers at its axes.
const HALF_RATE_DISTANCE: f64 = 400.0;
/// Among so many relays near a city its boxes find their nearest ones.
const NEAREST_RELAYS: usize = 16;
/// Six of ten below 1 Mbit/s (BASS §I): a log-normal rate of median e^(−0.253 σ).
const DIRECT_RATE_SIGMA: f64 = 1.0;
const DIRECT_RATE_MEDIAN: f64 = 776_000.0;
/// See rule 2 of the module. chosen: with noise and distance the best of a box's candidates is 5.2 times its own in the mean.
const RATE_MULTIPLE_MEDIAN: f64 = 3.8;
const RATE_MULTIPLE_SIGMA: f64 = 0.7;
const MIN_RATE_MULTIPLE: f64 = 1.2;
const MAX_RATE_MULTIPLE: f64 = 16.0;
const NOISE_SIGMA: f64 = 0.2;
/// What a relay has to an origin next to it, and the distance at which half of it is left.
const ORIGIN_RATE_MEDIAN: f64 = 100_000_000.0;
const ORIGIN_HALF_RATE_DISTANCE: f64 = 2000.0;
