//! The scenario of a seed.
//!
//! Rates, round-trip times, queues and lengths are drawn uniformly by their logarithm. A flow is as long as plain TCP
//! would need some seconds for (by Mathis' formula if packets are lost), so that a history costs milliseconds whatever
//! its links.

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::link::LinkId;
use marline_core::units::{Bitrate, Duration, Ratio};

use crate::accel::scenario::{Close, Exchange, FlowScript, Malformed, Outage, Scenario, ServerBehavior};
use crate::rng::{Purpose, RandomStream};
use crate::spec::{LinkSpec, Loss, QueueLimit, Uplink};
use crate::tcp::Algorithm;

/// The scenario of a seed.
pub fn generate(seed: u64) -> Scenario {
    let mut rng = RandomSource(RandomStream::new(seed, "accel", 0, Purpose::Other));
    let primary = primary_link(&mut rng);
    let secondary = (!rng.one_in(4)).then(|| secondary_link(&mut rng));
    let duration = 2.0 + 10.0 * rng.uniform();
    let count = 1 + rng.below(4);
    let bytes =
        (plain_tcp_rate(&primary) * duration / count as f64).clamp(2_000.0, MAX_BYTES as f64 / count as f64);
    let flows = (0..count).map(|_| flow(&mut rng, bytes, duration));
    // Determined by the seed directly and not by a draw, so that other seeds keep their meaning.
    let is_upward = seed % UPLOAD_PERIOD == UPLOAD_PERIOD / 2;
    let flows = flows.map(|script| if is_upward { script.reversed() } else { script }).collect();
    let mut outages = outages(&mut rng, Scenario::PRIMARY, duration);
    if secondary.is_some() && rng.one_in(3) {
        outages.extend(self::outages(&mut rng, Scenario::SECONDARY, duration));
    }
    let mut config = Config::new(Scenario::PRIMARY, secondary.as_ref().map(|_| Scenario::SECONDARY));
    config.mechanisms = mechanisms(&mut rng, seed);
    if rng.one_in(3) {
        let (up, down) = (kbps(100.0), kbps(300.0));
        config
            .secondary_links
            .iter_mut()
            .for_each(|secondary| (secondary.up, secondary.down) = (Some(up), Some(down)));
    }
    let attached_at = if rng.one_in(3) { rng.seconds(duration) } else { Duration::ZERO };
    let killed_at = rng.one_in(4).then(|| attached_at + rng.seconds(duration));
    let malformed = malformed(&mut rng, duration);
    let server = ServerBehavior {
        failure: Ratio::from_percent(*rng.pick(&[0, 0, 0, 5, 30, 100])),
        truncation: Ratio::from_percent(*rng.pick(&[0, 0, 0, 5, 30])),
        max_delay: Duration::from_millis(*rng.pick(&[0, 0, 50, 1000, 6000])),
    };
    let limit = Duration::from_secs(900);
    Scenario {
        seed,
        primary,
        secondary,
        outages,
        flows,
        config: Some(config),
        attached_at,
        killed_at,
        malformed,
        server,
        limit,
    }
}

/// The source of random numbers.
struct RandomSource(RandomStream);

impl RandomSource {
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

    /// Uniform by the logarithm.
    fn log(&mut self, least: f64, max: f64) -> f64 {
        least * (max / least).powf(self.uniform())
    }

    fn seconds(&mut self, max: f64) -> Duration {
        Duration::from_secs_f64(max * self.uniform())
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        from.get(at).unwrap_or(&from[0])
    }

    /// A number of 32 bits, often near its maximum.
    fn number(&mut self) -> u32 {
        let any = (self.0.draw() >> 32) as u32;
        if self.one_in(2) { u32::MAX - any % 100_000 } else { any }
    }
}

fn kbps(kbps: f64) -> Bitrate {
    Bitrate::from_bits_per_sec((kbps * 1e3) as u64)
}

fn primary_link(rng: &mut RandomSource) -> LinkSpec {
    let rate = kbps(rng.log(1000.0, 100_000.0));
    let rtt = Duration::from_secs_f64(rng.log(0.005, 0.4));
    let mut spec = LinkSpec::constant("wifi", rate, rtt);
    if rng.one_in(2) {
        spec.uplink = Uplink::Rate(kbps(rng.log(0.1, 1.0) * rate.bits_per_sec() as f64 / 1e3));
    }
    spec.queue = Some(QueueLimit::Time(Duration::from_secs_f64(rng.log(0.005, 0.5))));
    spec.loss = loss(rng, 50_000.0);
    if rng.one_in(6) {
        spec.jitter = rtt.mul_f64(0.25 * rng.uniform());
        spec.reorder = rng.one_in(2);
    }
    spec
}

fn secondary_link(rng: &mut RandomSource) -> LinkSpec {
    let rate = |rng: &mut RandomSource| kbps(rng.log(50.0, 1000.0));
    let rtt = Duration::from_secs_f64(rng.log(0.03, 0.6));
    let mut spec = LinkSpec::constant("lte", rate(rng), rtt);
    spec.uplink = Uplink::Rate(rate(rng));
    spec.queue = Some(QueueLimit::Time(Duration::from_secs_f64(rng.log(0.1, 1.0))));
    spec.loss = loss(rng, 20_000.0);
    spec
}

/// None, each packet by itself, or in bursts; `max` is the highest mean loss, in millionths.
fn loss(rng: &mut RandomSource, max: f64) -> Loss {
    let ppm = |share: f64| Ratio::from_ppm(share as u32);
    match rng.below(4) {
        0 => Loss::NONE,
        1 | 2 => Loss::Independent(ppm(rng.log(200.0, max))),
        _ => {
            // Bursts of 2 to 6 packets of which half are lost. Their length is counted in packets, not in time: a
            // longer one would hold a sender that has timed out for minutes.
            let leave = rng.log(160_000.0, 500_000.0);
            let bad = 500_000.0;
            let mean = rng.log(200.0, max);
            Loss::GilbertElliott {
                enter_bad: ppm(leave * mean / (bad - mean)),
                leave_bad: ppm(leave),
                loss_in_bad: ppm(bad),
            }
        }
    }
}

/// Bytes per second of plain TCP.
fn plain_tcp_rate(spec: &LinkSpec) -> f64 {
    let rate = match spec.downlink {
        crate::spec::Downlink::Rate { initial, .. } => initial.bits_per_sec() as f64 / 8.0,
        _ => 1e6,
    };
    let loss = f64::from(spec.loss.mean().ppm()).max(1.0) / 1e6;
    let mathis = 1448.0 * 1.2 / (spec.rtt.as_secs_f64() * loss.sqrt());
    rate.min(mathis)
}

fn flow(rng: &mut RandomSource, bytes: f64, duration: f64) -> FlowScript {
    let exchanges = if rng.one_in(2) { 1 } else { 1 + rng.below(6) };
    let each = (bytes * rng.log(0.05, 1.0) / exchanges as f64) as u64;
    let exchange = |rng: &mut RandomSource| Exchange {
        pause: if rng.one_in(2) { Duration::ZERO } else { rng.seconds(3.0) },
        request: rng.log(40.0, 4000.0) as u64,
        response: 1 + rng.below(2 * each.max(1)),
    };
    let total = each * exchanges;
    let close = match rng.below(10) {
        0 => Close::ServerReset(rng.below(total + 1)),
        1 => Close::ClientReset(rng.below(total + 1)),
        2..5 => Close::Client,
        _ => Close::Server,
    };
    FlowScript {
        start: if rng.one_in(2) { Duration::ZERO } else { rng.seconds(duration / 2.0) },
        exchanges: (0..exchanges).map(|_| exchange(rng)).collect(),
        close,
        is_http: rng.one_in(2),
        is_accelerated: true,
        is_v6: rng.one_in(3),
        algorithm: *rng.pick(&[Algorithm::Cubic, Algorithm::Cubic, Algorithm::Reno]),
        sack: !rng.one_in(10),
        timestamps: !rng.one_in(10),
        loss: Loss::NONE,
        scale: if rng.one_in(10) { 0 } else { 7 },
        numbers: [rng.number(), rng.number()],
        clocks: [rng.number(), rng.number()],
    }
}

fn outages(rng: &mut RandomSource, link: LinkId, duration: f64) -> Vec<Outage> {
    let mut outages: Vec<Outage> = Vec::new();
    let mut at = 0.0;
    for _ in 0..*rng.pick(&[0, 0, 1, 1, 2, 3]) {
        at += 0.2 + duration * rng.uniform();
        let duration_s = rng.log(0.1, 12.0);
        let [since, duration] = [at, duration_s].map(Duration::from_secs_f64);
        outages.push(Outage { link, at: since, duration, is_carrier_lost: rng.one_in(2) });
        at += duration_s;
    }
    outages
}

fn mechanisms(rng: &mut RandomSource, seed: u64) -> Mechanisms {
    if rng.one_in(3) {
        return Mechanisms::of(&USUAL_MECHANISMS);
    }
    let mut mechanisms = Mechanisms::of(&[]);
    let share = 1 + rng.below(3);
    for mechanism in Mechanism::ALL.into_iter().filter(|one| *one != Mechanism::OutageRevert) {
        // Mechanisms that are harmful by themselves are drawn more rarely.
        let share = if USUAL_MECHANISMS.contains(&mechanism) { share } else { 4 };
        mechanisms.set(mechanism, rng.one_in(share));
        if mechanism == Mechanism::EarlyAck {
            // A removed mechanism was drawn here. Without this draw all seeds would mean other histories.
            let _ = rng.one_in(share);
        }
    }
    // Determined by the seed directly, too.
    mechanisms.set(Mechanism::OutageRevert, (seed / UPLOAD_PERIOD).is_multiple_of(OUTAGE_REVERT_PERIOD));
    mechanisms
}

fn malformed(rng: &mut RandomSource, duration: f64) -> Vec<(Duration, Malformed)> {
    let all = [Malformed::NoiseOut, Malformed::NoiseIn, Malformed::MutantIn, Malformed::MutantOut];
    let count = if rng.one_in(3) { rng.below(30) } else { 0 };
    (0..count).map(|_| (rng.seconds(2.0 * duration), *rng.pick(&all))).collect()
}

/// The most frequent set: all that are not harmful by themselves. It stays when the defaults change, so that a seed
/// keeps its meaning.
const USUAL_MECHANISMS: [Mechanism; 5] = [
    Mechanism::AckOffload,
    Mechanism::EifelUndo,
    Mechanism::WithheldAck,
    Mechanism::OutageRevert,
    Mechanism::EarlyAck,
];
/// Of the histories that do not use [`USUAL_MECHANISMS`], one in so many has `Mechanism::OutageRevert`.
const OUTAGE_REVERT_PERIOD: u64 = 4;
/// One of so many histories uploads.
const UPLOAD_PERIOD: u64 = 6;
/// Of all flows of a history together; the random lengths of responses may double it. Our choice: some ten thousand packets, which take
/// some milliseconds.
const MAX_BYTES: u64 = 12_000_000;
