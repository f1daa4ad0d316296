//! Geography of a synthetic fleet: positions of cities, relays and edges, and the rates between them.
//!
//! A [`FleetSpec`] determines a [`Fleet`], which generates one edge after the other.

use std::ops::RangeInclusive;

use marline_core::assign::{Candidate, Instance};
use marline_core::units::{Bitrate, Ratio};

use crate::rng::{Purpose, RandomStream};

/// Parameters of a synthetic fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetSpec {
    /// Number of relays; the number of cities follows from it.
    pub relay_count: usize,
    /// Number of edges that exist at the same time.
    pub edge_count: usize,
    /// Range of the number of relays that an edge measures.
    pub candidates_per_edge: RangeInclusive<u64>,
    /// Demand of all edges divided by the capacity of all relays: rule 4 of the [module](super).
    pub load: Ratio,
    /// Determines all random draws.
    pub seed: u64,
}

/// An edge: its direct rate and its measurements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeSpec {
    /// B_o(c): rate to the origin server without a relay.
    pub direct_rate: Bitrate,
    /// B_o(c, s): rate through each of the nearby relays.
    pub candidates: Vec<Candidate>,
}

/// Relays, cities and a generator of edges.
#[derive(Clone, Debug)]
pub struct Fleet {
    spec: FleetSpec,
    cities: Vec<City>,
    relays: Vec<Relay>,
    /// Running sums of the cities' populations.
    cumulative_shares: Vec<f64>,
    rng: Sampler,
}

#[derive(Clone, Debug)]
struct City {
    position: Position,
    /// Indices of the relays that may be nearest to an edge of this city.
    nearest_relays: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Relay {
    position: Position,
    /// Rate to each origin server.
    origin_rates: Vec<Bitrate>,
    /// Weight in the distribution of the total capacity.
    capacity_share: f64,
}

/// Kilometres from a corner of the plane.
#[derive(Clone, Copy, Debug)]
struct Position {
    east: f64,
    north: f64,
}

impl Fleet {
    /// Draws the positions of cities, origin servers and relays.
    pub fn new(spec: &FleetSpec) -> Self {
        let mut rng = Sampler(RandomStream::new(spec.seed, "fleet", 0, Purpose::Other));
        let count = (spec.relay_count / RELAYS_PER_CITY).max(MIN_CITIES);
        let positions: Vec<Position> = (0..count).map(|_| rng.uniform_position()).collect();
        let origins: Vec<Position> = (0..ORIGINS).map(|_| positions[rng.below(count)]).collect();
        let populations: Vec<f64> = (1..=count).map(|rank| 1.0 / rank as f64).collect();
        let cumulative_shares = cumulative_sums(&populations);
        let relays: Vec<Relay> = (0..spec.relay_count)
            .map(|index| {
                // The first relays give each city one; the others follow the population.
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

    /// Draws an edge with its candidates; consecutive calls give different edges.
    pub fn next_edge(&mut self) -> EdgeSpec {
        self.next_edge_with_measurements().0
    }

    /// Draws the next edge and returns, for each candidate, its distance in kilometres and B(c, s): the rate from
    /// edge to relay, regardless of the relay's rate to the origin server.
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

    /// Draws as many edges as specified.
    pub fn edges(&mut self) -> Vec<EdgeSpec> {
        (0..self.spec.edge_count).map(|_| self.next_edge()).collect()
    }

    /// Capacity of each relay, such that these edges cause the specified load.
    pub fn capacities(&self, edges: &[EdgeSpec]) -> Vec<Bitrate> {
        let best = |edge: &EdgeSpec| {
            let rates = edge.candidates.iter().map(|candidate| candidate.rate);
            rates.max().filter(|rate| *rate > edge.direct_rate).unwrap_or_default().bits_per_sec() as f64
        };
        let total_capacity = edges.iter().map(best).sum::<f64>() / self.spec.load.as_f64();
        let shares: f64 = self.relays.iter().map(|relay| relay.capacity_share).sum();
        self.relays.iter().map(|relay| rate(total_capacity * relay.capacity_share / shares)).collect()
    }

    /// Draws a fleet and builds its assignment problem.
    ///
    /// # Panics
    /// Never: generated instances are well-formed.
    pub fn generate_instance(spec: &FleetSpec) -> Instance {
        let mut fleet = Self::new(spec);
        let edges = fleet.edges();
        instance(&fleet.capacities(&edges), &edges)
    }
}

/// The assignment problem of these relays and edges.
///
/// # Panics
/// If an edge names an unknown relay, or the total capacity exceeds what an instance can represent.
pub fn instance(capacities: &[Bitrate], edges: &[EdgeSpec]) -> Instance {
    let mut instance = Instance::new(capacities).expect("the capacities derive from the demand of the edges");
    for edge in edges {
        instance.add(edge.direct_rate, &edge.candidates).expect("each edge lists existing relays, each once");
    }
    instance
}

impl Position {
    fn distance_to(self, other: Self) -> f64 {
        libm::hypot(self.east - other.east, self.north - other.north)
    }
}

/// Random numbers with the distributions needed here.
#[derive(Clone, Debug)]
struct Sampler(RandomStream);

impl Sampler {
    /// Uniform between 0 and 1.
    fn uniform(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, standard deviation 1: a sum of twelve uniform numbers is close enough to normal.
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

    /// The best rate of an edge through a relay, as a multiple of its direct rate.
    fn rate_multiple(&mut self) -> f64 {
        (RATE_MULTIPLE_MEDIAN * libm::exp(RATE_MULTIPLE_SIGMA * self.standard_normal()))
            .clamp(MIN_RATE_MULTIPLE, MAX_RATE_MULTIPLE)
    }
}

fn nearest(relays: &[Relay], position: Position, count: usize) -> Vec<usize> {
    let mut by_distance: Vec<(f64, usize)> =
        relays.iter().enumerate().map(|(at, relay)| (position.distance_to(relay.position), at)).collect();
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

/// Our choice: as in BASS's own evaluation, a region has several relays to choose from.
const RELAYS_PER_CITY: usize = 4;
const MIN_CITIES: usize = 3;
/// BASS §V-A uses PlanetLab nodes as origin servers; twenty of them are enough for variety.
const ORIGINS: usize = 20;
/// Side of the plane and standard deviation of the distance from a city in each direction, in kilometres.
const PLANE_SIDE: f64 = 4000.0;
const CITY_SPREAD: f64 = 40.0;
/// Distance in kilometres at which half of the rate is left. Our choice: BASS figure 8 has no numbers on its axes.
const HALF_RATE_DISTANCE: f64 = 400.0;
/// Edges look for their nearest relays among this many near their city.
const NEAREST_RELAYS: usize = 16;
/// Six of ten direct rates are below 1 Mbit/s (BASS §I): a log-normal distribution with a median of e^(−0.253 σ)
/// Mbit/s.
const DIRECT_RATE_SIGMA: f64 = 1.0;
const DIRECT_RATE_MEDIAN: f64 = 776_000.0;
/// Rule 2 of the module. Our choice: with noise and distance, the best candidate has 5.2 times the direct rate on
/// average.
const RATE_MULTIPLE_MEDIAN: f64 = 3.8;
const RATE_MULTIPLE_SIGMA: f64 = 0.7;
const MIN_RATE_MULTIPLE: f64 = 1.2;
const MAX_RATE_MULTIPLE: f64 = 16.0;
const NOISE_SIGMA: f64 = 0.2;
/// Median rate of a relay to an adjacent origin server in bit/s, and the distance in kilometres that halves it.
const ORIGIN_RATE_MEDIAN: f64 = 100_000_000.0;
const ORIGIN_HALF_RATE_DISTANCE: f64 = 2000.0;
