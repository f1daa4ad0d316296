//! What a seed means.
//!
//! In: a seed. Out: a [`Scene`].
//!
//! Rates, round trips, queues and lengths are drawn evenly by their logarithm. Flows are as long as plain TCP would need a
//! few seconds for (by Mathis' formula where packets are lost), so that a history costs milliseconds whatever its links.

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::link::LinkId;
use marline_core::units::{Bitrate, Duration, Ratio};

use crate::accel::scene::{Blackout, Close, Exchange, Hostility, Manners, Plan, Scene};
use crate::rng::{Purpose, RandomStream};
use crate::spec::{LinkSpec, Loss, QueueLimit, Uplink};
use crate::tcp::Algorithm;

/// The scene of a seed.
pub fn draw(seed: u64) -> Scene {
    let mut chance = Chance(RandomStream::new(seed, "accel", 0, Purpose::Other));
    let primary = primary(&mut chance);
    let helper = (!chance.one_in(4)).then(|| helper(&mut chance));
    let lasts = 2.0 + 10.0 * chance.uniform();
    let count = 1 + chance.below(4);
    let bytes = (pace(&primary) * lasts / count as f64).clamp(2_000.0, MOST_BYTES as f64 / count as f64);
    let flows = (0..count).map(|_| flow(&mut chance, bytes, lasts));
    // By the seed and not by chance, so that what other seeds mean stays.
    let is_upward = seed % UPWARD == UPWARD / 2;
    let flows = flows.map(|plan| if is_upward { plan.turned() } else { plan }).collect();
    let mut blackouts = blackouts(&mut chance, Scene::PRIMARY, lasts);
    if helper.is_some() && chance.one_in(3) {
        blackouts.extend(self::blackouts(&mut chance, Scene::HELPER, lasts));
    }
    let mut config = Config::new(Scene::PRIMARY, helper.as_ref().map(|_| Scene::HELPER));
    config.mechanisms = mechanisms(&mut chance, seed);
    if chance.one_in(3) {
        let (up, down) = (kbps(100.0), kbps(300.0));
        config.helpers.iter_mut().for_each(|helper| (helper.up, helper.down) = (Some(up), Some(down)));
    }
    let attached = if chance.one_in(3) { chance.seconds(lasts) } else { Duration::ZERO };
    let killed = chance.one_in(4).then(|| attached + chance.seconds(lasts));
    let hostile = hostile(&mut chance, lasts);
    let manners = Manners {
        fails: Ratio::from_percent(*chance.pick(&[0, 0, 0, 5, 30, 100])),
        short: Ratio::from_percent(*chance.pick(&[0, 0, 0, 5, 30])),
        late: Duration::from_millis(*chance.pick(&[0, 0, 50, 1000, 6000])),
    };
    let limit = Duration::from_secs(900);
    Scene {
        seed,
        primary,
        helper,
        blackouts,
        flows,
        config: Some(config),
        attached,
        killed,
        hostile,
        manners,
        limit,
    }
}

/// Where the numbers come from.
struct Chance(RandomStream);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Between zero and one.
    fn uniform(&mut self) -> f64 {
        (self.0.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Evenly by the logarithm.
    fn log(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.uniform())
    }

    fn seconds(&mut self, most: f64) -> Duration {
        Duration::from_secs_f64(most * self.uniform())
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        from.get(at).unwrap_or(&from[0])
    }

    /// A number of 32 bits, often near its end.
    fn number(&mut self) -> u32 {
        let any = (self.0.draw() >> 32) as u32;
        if self.one_in(2) { u32::MAX - any % 100_000 } else { any }
    }
}

fn kbps(kbps: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((kbps * 1e3) as u64)
}

fn primary(chance: &mut Chance) -> LinkSpec {
    let rate = kbps(chance.log(1000.0, 100_000.0));
    let rtt = Duration::from_secs_f64(chance.log(0.005, 0.4));
    let mut spec = LinkSpec::constant("wifi", rate, rtt);
    if chance.one_in(2) {
        spec.uplink = Uplink::Rate(kbps(chance.log(0.1, 1.0) * rate.bits_per_sec() as f64 / 1e3));
    }
    spec.queue = Some(QueueLimit::Time(Duration::from_secs_f64(chance.log(0.005, 0.5))));
    spec.loss = loss(chance, 50_000.0);
    if chance.one_in(6) {
        spec.jitter = rtt.mul_f64(0.25 * chance.uniform());
        spec.reorder = chance.one_in(2);
    }
    spec
}

fn helper(chance: &mut Chance) -> LinkSpec {
    let rate = |chance: &mut Chance| kbps(chance.log(50.0, 1000.0));
    let rtt = Duration::from_secs_f64(chance.log(0.03, 0.6));
    let mut spec = LinkSpec::constant("lte", rate(chance), rtt);
    spec.uplink = Uplink::Rate(rate(chance));
    spec.queue = Some(QueueLimit::Time(Duration::from_secs_f64(chance.log(0.1, 1.0))));
    spec.loss = loss(chance, 20_000.0);
    spec
}

/// None, each packet by itself, or in bursts; `most` in millionths.
fn loss(chance: &mut Chance, most: f64) -> Loss {
    let ppm = |share: f64| Ratio::from_ppm(share as u32);
    match chance.below(4) {
        0 => Loss::NONE,
        1 | 2 => Loss::Independent(ppm(chance.log(200.0, most))),
        _ => {
            // Bursts of 2 to 6 packets of which half are lost. They last in packets, not in time: a longer one would hold a
            // sender that has timed out for minutes.
            let leave = chance.log(160_000.0, 500_000.0);
            let bad = 500_000.0;
            let mean = chance.log(200.0, most);
            Loss::GilbertElliott {
                enter_bad: ppm(leave * mean / (bad - mean)),
                leave_bad: ppm(leave),
                loss_in_bad: ppm(bad),
            }
        }
    }
}

/// Bytes a second that plain TCP gets.
fn pace(spec: &LinkSpec) -> f64 {
    let rate = match spec.downlink {
        crate::spec::Downlink::Rate { initial: first, .. } => first.bits_per_sec() as f64 / 8.0,
        _ => 1e6,
    };
    let loss = f64::from(spec.loss.mean().ppm()).max(1.0) / 1e6;
    let mathis = 1448.0 * 1.2 / (spec.rtt.as_secs_f64() * loss.sqrt());
    rate.min(mathis)
}

fn flow(chance: &mut Chance, bytes: f64, lasts: f64) -> Plan {
    let exchanges = if chance.one_in(2) { 1 } else { 1 + chance.below(6) };
    let each = (bytes * chance.log(0.05, 1.0) / exchanges as f64) as u64;
    let exchange = |chance: &mut Chance| Exchange {
        pause: if chance.one_in(2) { Duration::ZERO } else { chance.seconds(3.0) },
        request: chance.log(40.0, 4000.0) as u64,
        answer: 1 + chance.below(2 * each.max(1)),
    };
    let total = each * exchanges;
    let close = match chance.below(10) {
        0 => Close::ServerReset(chance.below(total + 1)),
        1 => Close::ClientReset(chance.below(total + 1)),
        2..5 => Close::Client,
        _ => Close::Server,
    };
    Plan {
        start: if chance.one_in(2) { Duration::ZERO } else { chance.seconds(lasts / 2.0) },
        exchanges: (0..exchanges).map(|_| exchange(chance)).collect(),
        close,
        is_http: chance.one_in(2),
        is_helped: true,
        is_v6: chance.one_in(3),
        algorithm: *chance.pick(&[Algorithm::Cubic, Algorithm::Cubic, Algorithm::Reno]),
        sack: !chance.one_in(10),
        timestamps: !chance.one_in(10),
        loss: Loss::NONE,
        scale: if chance.one_in(10) { 0 } else { 7 },
        numbers: [chance.number(), chance.number()],
        clocks: [chance.number(), chance.number()],
    }
}

fn blackouts(chance: &mut Chance, link: LinkId, lasts: f64) -> Vec<Blackout> {
    let mut blackouts: Vec<Blackout> = Vec::new();
    let mut at = 0.0;
    for _ in 0..*chance.pick(&[0, 0, 1, 1, 2, 3]) {
        at += 0.2 + lasts * chance.uniform();
        let takes = chance.log(0.1, 12.0);
        let [since, takes_for] = [at, takes].map(Duration::from_secs_f64);
        blackouts.push(Blackout { link, at: since, lasts: takes_for, is_told: chance.one_in(2) });
        at += takes;
    }
    blackouts
}

fn mechanisms(chance: &mut Chance, seed: u64) -> Mechanisms {
    if chance.one_in(3) {
        return Mechanisms::of(&USUAL);
    }
    let mut mechanisms = Mechanisms::of(&[]);
    let share = 1 + chance.below(3);
    for mechanism in Mechanism::ALL.into_iter().filter(|one| *one != Mechanism::Revert) {
        // What harms by itself is drawn more rarely.
        let share = if USUAL.contains(&mechanism) { share } else { 4 };
        mechanisms.set(mechanism, chance.one_in(share));
        if mechanism == Mechanism::Hide {
            // A mechanism that has been removed was drawn here. Without this draw all seeds would mean other histories.
            let _ = chance.one_in(share);
        }
    }
    // By the seed, too.
    mechanisms.set(Mechanism::Revert, (seed / UPWARD).is_multiple_of(REVERTS));
    mechanisms
}

fn hostile(chance: &mut Chance, lasts: f64) -> Vec<(Duration, Hostility)> {
    let all = [Hostility::NoiseLeaves, Hostility::NoisePasses, Hostility::MutantPasses, Hostility::MutantLeaves];
    let count = if chance.one_in(3) { chance.below(30) } else { 0 };
    (0..count).map(|_| (chance.seconds(2.0 * lasts), *chance.pick(&all))).collect()
}

/// What histories have most often: all that does not harm by itself. It stays when the defaults change, so that a seed goes on
/// to mean the same history.
const USUAL: [Mechanism; 5] =
    [Mechanism::Offload, Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert, Mechanism::Hide];
/// Of so many histories without all of [`USUAL`] one has it.
const REVERTS: u64 = 4;
/// Of so many histories one goes up.
const UPWARD: u64 = 6;
/// Of all flows of a history together. Chosen: some ten thousand packets at most, some milliseconds.
const MOST_BYTES: u64 = 12_000_000;
