//! The map of a fleet: places, rates and who measures whom.
//!
//! In: a [`Plan`]. Out: a [`Fleet`], from which boxes are drawn one after the other.

use std::ops::RangeInclusive;

use marline_core::assign::{Candidate, Instance};
use marline_core::units::{Bitrate, Ratio};

use crate::rng::{Purpose, Stream};

/// What a fleet is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many relays.
    pub relays: usize,
    /// How many boxes.
    pub boxes: usize,
    /// How many relays a box measures.
    pub candidates: RangeInclusive<u64>,
    /// What boxes would send over what relays have: rule 4 of the [module](super).
    pub load: Ratio,
    /// Decides everything else.
    pub seed: u64,
}

/// A box: its own rate, and what it measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// B_o(c).
    pub own: Bitrate,
    /// B_o(c, s) of the relays nearby.
    pub candidates: Vec<Candidate>,
}

/// Relays, cities and a source of boxes.
#[derive(Clone, Debug)]
pub struct Fleet {
    plan: Plan,
    cities: Vec<City>,
    relays: Vec<Relay>,
    /// The running sums of the cities' shares.
    shares: Vec<f64>,
    chance: Chance,
}

#[derive(Clone, Debug)]
struct City {
    place: Place,
    /// The relays that a box of this city may find nearest.
    near: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Relay {
    place: Place,
    /// What it has to each origin.
    onward: Vec<Bitrate>,
    /// Its share of what all relays have.
    share: f64,
}

/// Kilometres.
#[derive(Clone, Copy, Debug)]
struct Place {
    east: f64,
    north: f64,
}

impl Fleet {
    /// Draws cities and relays.
    pub fn new(plan: &Plan) -> Self {
        let mut chance = Chance(Stream::new(plan.seed, "fleet", 0, Purpose::Other));
        let count = (plan.relays / RELAYS_PER_CITY).max(LEAST_CITIES);
        let places: Vec<Place> = (0..count).map(|_| chance.somewhere()).collect();
        let origins: Vec<Place> = (0..ORIGINS).map(|_| places[chance.below(count)]).collect();
        let people: Vec<f64> = (1..=count).map(|rank| 1.0 / rank as f64).collect();
        let shares = running(&people);
        let relays: Vec<Relay> = (0..plan.relays)
            .map(|at| {
                // The first ones so that no city is without one, the others where people are.
                let city = if at < count { at } else { chance.one_of(&shares) };
                let place = chance.near(places[city], SPREAD);
                let onward = origins.iter().map(|origin| chance.onward(place.to(*origin))).collect();
                Relay { place, onward, share: 0.5 + chance.even() }
            })
            .collect();
        let cities = places.iter().map(|place| City { place: *place, near: nearest(&relays, *place, NEAR) });
        let cities = cities.collect();
        Self { plan: plan.clone(), cities, relays, shares, chance }
    }

    /// The next box.
    pub fn member(&mut self) -> Member {
        self.measured().0
    }

    /// The next box, and of each of its candidates how far away it is, in kilometres, and B(c, s): what reaches it, whatever it
    /// passes on.
    pub fn measured(&mut self) -> (Member, Vec<(f64, Bitrate)>) {
        let city = &self.cities[self.chance.one_of(&self.shares)];
        let place = self.chance.near(city.place, SPREAD);
        let origin = self.chance.below(ORIGINS);
        let own = OWN_MEDIAN * libm::exp(OWN_SIGMA * self.chance.normal());
        let times = self.chance.times();
        let (least, most) = (*self.plan.candidates.start(), *self.plan.candidates.end());
        let count = least + self.chance.0.below(most - least + 1);
        let mut near: Vec<(f64, usize)> =
            city.near.iter().map(|at| (place.to(self.relays[*at].place), *at)).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut candidates = Vec::with_capacity(count as usize);
        let mut reached = Vec::with_capacity(count as usize);
        for (distance, at) in near.into_iter().take(count as usize) {
            let noise = libm::exp(NOISE * self.chance.normal());
            let uplink = own * (times * noise / (1.0 + distance / HALF)).clamp(1.0, MOST_TIMES);
            reached.push((distance, rate(uplink)));
            candidates.push(Candidate::through(at, rate(uplink), self.relays[at].onward[origin]));
        }
        (Member { own: rate(own), candidates }, reached)
    }

    /// As many boxes as planned.
    pub fn members(&mut self) -> Vec<Member> {
        (0..self.plan.boxes).map(|_| self.member()).collect()
    }

    /// What each relay has, so that these boxes are the planned load.
    pub fn rooms(&self, members: &[Member]) -> Vec<Bitrate> {
        let best = |member: &Member| {
            let rates = member.candidates.iter().map(|candidate| candidate.rate);
            rates.max().filter(|rate| *rate > member.own).unwrap_or_default().bits_per_sec() as f64
        };
        let all = members.iter().map(best).sum::<f64>() / self.plan.load.as_f64();
        let shares: f64 = self.relays.iter().map(|relay| relay.share).sum();
        self.relays.iter().map(|relay| rate(all * relay.share / shares)).collect()
    }

    /// The instance of the plan.
    ///
    /// # Panics
    /// Never: what is drawn here is well-formed.
    pub fn instance(plan: &Plan) -> Instance {
        let mut fleet = Self::new(plan);
        let members = fleet.members();
        instance(&fleet.rooms(&members), &members)
    }
}

/// The instance of these relays and boxes.
///
/// # Panics
/// When a box names a relay that is not there, or the relays have more than an instance can hold.
pub fn instance(rooms: &[Bitrate], members: &[Member]) -> Instance {
    let mut instance = Instance::new(rooms).expect("what the relays have is what boxes can send");
    for member in members {
        instance.add(member.own, &member.candidates).expect("boxes name relays nearby, each once");
    }
    instance
}

impl Place {
    fn to(self, other: Self) -> f64 {
        libm::hypot(self.east - other.east, self.north - other.north)
    }
}

/// Numbers of the shapes that are needed here.
#[derive(Clone, Debug)]
struct Chance(Stream);

impl Chance {
    /// Evenly from 0 to 1.
    fn even(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Mean 0, deviation 1: sums of twelve even ones, which are normal enough.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn one_of(&mut self, sums: &[f64]) -> usize {
        let drawn = self.even() * sums.last().copied().unwrap_or(0.0);
        sums.partition_point(|sum| *sum <= drawn).min(sums.len().saturating_sub(1))
    }

    fn somewhere(&mut self) -> Place {
        Place { east: self.even() * SIDE, north: self.even() * SIDE }
    }

    fn near(&mut self, place: Place, spread: f64) -> Place {
        Place { east: place.east + spread * self.normal(), north: place.north + spread * self.normal() }
    }

    fn onward(&mut self, distance: f64) -> Bitrate {
        rate(ONWARD * libm::exp(0.5 * self.normal()) / (1.0 + distance / FAR))
    }

    /// How many times its own rate a box reaches at best.
    fn times(&mut self) -> f64 {
        (TIMES_MEDIAN * libm::exp(TIMES_SIGMA * self.normal())).clamp(LEAST_TIMES, MOST_TIMES)
    }
}

fn nearest(relays: &[Relay], place: Place, count: usize) -> Vec<usize> {
    let mut near: Vec<(f64, usize)> =
        relays.iter().enumerate().map(|(at, relay)| (place.to(relay.place), at)).collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    near.into_iter().take(count).map(|(_, at)| at).collect()
}

fn running(parts: &[f64]) -> Vec<f64> {
    parts
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
const LEAST_CITIES: usize = 3;
/// BASS §V-A has PlanetLab nodes as originals; twenty of them are enough to differ.
const ORIGINS: usize = 20;
/// The plane, and how far from its city something lies, in kilometres.
const SIDE: f64 = 4000.0;
const SPREAD: f64 = 40.0;
/// The distance at which half of the rate is left. chosen: BASS figure 8 has no numbers at its axes.
const HALF: f64 = 400.0;
/// Among so many relays near a city its boxes find their nearest ones.
const NEAR: usize = 16;
/// Six of ten below 1 Mbit/s (BASS §I): a log-normal rate of median e^(−0.253 σ).
const OWN_SIGMA: f64 = 1.0;
const OWN_MEDIAN: f64 = 776_000.0;
/// See rule 2 of the module. chosen: with noise and distance the best of a box's candidates is 5.2 times its own in the mean.
const TIMES_MEDIAN: f64 = 3.8;
const TIMES_SIGMA: f64 = 0.7;
const LEAST_TIMES: f64 = 1.2;
const MOST_TIMES: f64 = 16.0;
const NOISE: f64 = 0.2;
/// What a relay has to an origin next to it, and the distance at which half of it is left.
const ONWARD: f64 = 100_000_000.0;
const FAR: f64 = 2000.0;
