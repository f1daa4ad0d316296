//! One case in virtual time, and what a clairvoyant would have needed.
//!
//! In: a [`Setting`], who decides. Out: [`Played`].
//!
//! 1. The machine is the one of `marline paths`, over sim's model of kernel MPTCP ([`marline_sim::paths`]); TCP over one
//!    link is the same without anybody who decides.
//! 2. The paper's RFC 2861 switch (§3.6: a suspended subflow keeps its window) is the server's and not the client's; here
//!    eMPTCP's server has it and nobody else's. Its second change of the sender, a round trip of zero for a subflow that
//!    is used again, cannot be had upstream, and the upstream scheduler does not look at round trips.
//! 3. The MDP's schedule is computed from the course of the rates, and played second by second ([`Scheduled`]).
//! 4. The clairvoyant knows all rates, needs no round trips, and ends no later than who is compared with it.

use std::time::Duration;

use marline_core::energy::{Model, RadioModel};
use marline_core::link::LinkKind;
use marline_core::paths::{Config, Goal, Paths, Policy};
use marline_core::units::{DataSize, Instant};
use marline_sim::optimum::mdp::{Chain, Schedule};
use marline_sim::optimum::{Grid, Transfer};
use marline_sim::paths::{Course, Nobody, Outcome, PAYLOAD, Scene, Scheduled, World, download, page, terms};
use marline_sim::spec::LinkSpec;

use super::real::{Measured, Point, STEP_S};
use super::setting::{Setting, Who, Work};
use crate::mptcp::page;

/// What came of a case, in whatever time. Times in seconds, energies in joules.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Played {
    pub(super) seconds: f64,
    /// Payload.
    pub(super) bytes: f64,
    pub(super) energy: f64,
    /// Bytes of IP packets over each link: Wi-Fi, LTE.
    pub(super) carried: [f64; 2],
    /// How often LTE's radio left idle; none: not known.
    pub(super) wakes: Option<f64>,
    /// Mbit/s that the application got from the fifth second on.
    pub(super) later: Option<f64>,
    pub(super) course: Vec<Point>,
    /// The clairvoyant's, for the same bytes by the same end; none: nobody asked.
    pub(super) least: Option<Known>,
}

/// What a clairvoyant can.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Known {
    /// The energy of the best schedule that was found.
    pub(super) energy: f64,
    /// What no schedule stays below.
    pub(super) bound: f64,
    /// When both links at their full rates have brought it all.
    pub(super) soonest: f64,
}

impl Played {
    /// Joules for each million bytes.
    pub(super) fn per_megabyte(&self) -> f64 {
        self.energy / (self.bytes / 1e6).max(1e-9)
    }

    /// Seconds for each million bytes: what compares walks, which end when they end.
    pub(super) fn pace(&self) -> f64 {
        self.seconds / (self.bytes / 1e6).max(1e-9)
    }
}

impl From<&Measured> for Played {
    fn from(measured: &Measured) -> Self {
        let carried = |at: usize| measured.links.get(at).map_or(0.0, |link| link.carried_bytes as f64);
        Self {
            seconds: measured.seconds,
            bytes: measured.bytes as f64,
            energy: measured.energy_j,
            carried: [carried(0), carried(1)],
            wakes: measured.links.get(1).and_then(|link| link.wakes).map(f64::from),
            later: measured.later_mbps,
            course: measured.course.clone(),
            least: None,
        }
    }
}

/// Does it.
pub(super) fn play(setting: &Setting, who: Who, model: &Model, seed: u64) -> Result<Played, String> {
    let alone = match who {
        Who::TcpWifi => Some(0),
        Who::TcpLte => Some(1),
        _ => None,
    };
    let links: Vec<LinkSpec> = match alone {
        Some(at) => setting.links.get(at..=at).unwrap_or_default().to_vec(),
        None => setting.links.clone(),
    };
    let work = match setting.work {
        Work::File(size) => download(size),
        // More than any link carries by then.
        Work::Stay { .. } => download(DataSize::from_bytes(1 << 50)),
        Work::Page => page(&page::objects(), page::CONNECTIONS),
    };
    let mut scene = Scene::new(model.clone(), links, work);
    scene.seed = seed;
    scene.mptcp = alone.is_none();
    scene.server.keeps_window = Who::PUBLISHED.contains(&who);
    scene.sample = Duration::from_secs(1);
    scene.limit = match setting.work {
        Work::Stay { length } => length,
        _ => LIMIT,
    };
    let limit = scene.limit;
    let outcome = match (alone, who) {
        (Some(_), _) => World::new(scene, Nobody).run().0,
        (None, Who::Mdp) => World::new(scene, scheduled(setting, model).ok_or("no schedule")?).run().0,
        (None, _) => World::new(scene, Paths::new(config(setting, who, model))).run().0,
    };
    if let Some(nonsense) = outcome.nonsense.first() {
        return Err(nonsense.clone());
    }
    let time = match (outcome.finished, setting.work) {
        (Some(time), _) => time,
        (None, Work::Stay { .. }) => limit,
        (None, _) => return Err(format!("only {} within {limit:?}", outcome.delivered)),
    };
    Ok(played(&outcome, time, alone))
}

fn played(outcome: &Outcome, time: Duration, alone: Option<usize>) -> Played {
    let mut carried = [0.0; 2];
    for (at, link) in outcome.links.iter().enumerate() {
        carried[alone.unwrap_or(at).min(1)] = link.bytes.bytes() as f64 / PAYLOAD;
    }
    let from = outcome.delivered_between(Duration::ZERO, LATER);
    let rest = (outcome.delivered - from).bytes() as f64 * 8e-6;
    let wakes = |at: usize| outcome.links.get(at).map_or(0.0, |link| f64::from(link.wakes));
    let step = STEP_S as usize;
    let course = outcome.samples.chunks(step).zip(1..).filter_map(|(chunk, at): (_, usize)| {
        let last = chunk.last()?;
        let before = (at - 1) * step;
        let mbps = |link: usize| {
            let upto = |at: usize| {
                let sample = at.checked_sub(1).and_then(|at| outcome.samples.get(at));
                sample.and_then(|sample| sample.links.get(link)).map_or(0, |size| size.bytes())
            };
            let bytes = upto(before + chunk.len()).saturating_sub(upto(before)) as f64;
            bytes * 8e-6 / PAYLOAD / chunk.len() as f64
        };
        let mbps = match alone {
            Some(0) => [mbps(0), 0.0],
            Some(_) => [0.0, mbps(0)],
            None => [mbps(0), mbps(1)],
        };
        Some(Point { mbps, joules: last.spent.as_joules_f64() })
    });
    Played {
        seconds: time.as_secs_f64(),
        bytes: outcome.delivered.bytes() as f64,
        energy: outcome.energy().as_joules_f64(),
        carried,
        wakes: Some(match alone {
            Some(0) => 0.0,
            Some(_) => wakes(0),
            None => wakes(1),
        }),
        later: (time > LATER * 2).then(|| rest / (time - LATER).as_secs_f64()),
        course: course.collect(),
        least: None,
    }
}

fn config(setting: &Setting, who: Who, model: &Model) -> Config {
    let mut config = Config::new(model.clone(), terms(&setting.links));
    config.policy = match who {
        Who::Emptcp => Policy::Emptcp,
        Who::Settled => Policy::EmptcpSettled,
        Who::Table => Policy::EmptcpTable,
        Who::WifiFirst => Policy::WifiFirst,
        Who::Marline | Who::Throughput => Policy::Marline,
        Who::Mptcp | Who::TcpWifi | Who::TcpLte | Who::Mdp => Policy::Mptcp,
    };
    if who == Who::Throughput {
        config.goal = Goal::Speed;
    }
    config
}

/// In how many of the states that it can reach the MDP's schedule uses LTE, and of how many.
pub(super) fn mdp(setting: &Setting, model: &Model) -> (usize, usize) {
    schedule(setting, model).map_or((0, 0), |(schedule, _)| schedule.uses_second())
}

/// The MDP's schedule, and what it goes by.
fn schedule(setting: &Setting, model: &Model) -> Option<(Schedule, [(Chain, Course); 2])> {
    let length = 1000;
    let of = |spec: &LinkSpec| {
        let course = Course::new(spec, &[], Duration::from_secs(length));
        let rates: Vec<_> = (0..length).map(|at| course.rate(Instant::from_millis(at * 1000))).collect();
        (Chain::new(&rates, LEVELS), course)
    };
    let [wifi, lte] = setting.links.as_slice() else { return None };
    let (wifi, lte) = (of(wifi), of(lte));
    let (first, second) = (model.radio(LinkKind::Wifi)?, model.radio(LinkKind::Lte)?);
    Some((Schedule::new((&wifi.0, first), (&lte.0, second)), [wifi, lte]))
}

fn scheduled(setting: &Setting, model: &Model) -> Option<Scheduled> {
    let (schedule, links) = schedule(setting, model)?;
    Some(Scheduled::new(schedule, links, model.radio(LinkKind::Lte)?.tail.time()))
}

/// What a clairvoyant can with so many bytes of payload by then.
pub(super) fn least(setting: &Setting, model: &Model, bytes: f64, seconds: f64) -> Option<Known> {
    let by = Duration::from_secs_f64(seconds);
    let bin = (by / 240).clamp(Duration::from_millis(50), Duration::from_secs(1));
    let supply = |spec: &LinkSpec| Course::new(spec, &[], by).supply(1.0, bin, by + bin);
    // Everything is counted on the wire.
    let size = DataSize::from_bytes((bytes / PAYLOAD) as u64);
    let transfer = Transfer { links: setting.links.iter().map(supply).collect(), size };
    let radios: Vec<RadioModel> = setting.links.iter().filter_map(|spec| model.radio(spec.kind)).copied().collect();
    let grid = Grid { bin, grain: size / GRAINS };
    let least = transfer.least_energy(&radios, model.concurrent(), by, grid)?;
    Some(Known {
        energy: least.energy.as_joules_f64(),
        bound: least.bound.as_joules_f64(),
        soonest: transfer.least_time()?.as_secs_f64(),
    })
}

/// When slow start is over.
const LATER: Duration = Duration::from_secs(5);
/// TCP over bad Wi-Fi needs 45 minutes for a quarter of a gigabyte.
const LIMIT: Duration = Duration::from_secs(6000);
/// Of the MDP's rates.
const LEVELS: usize = 10;
/// Of a clairvoyant's transfer.
const GRAINS: u64 = 2000;

#[cfg(test)]
mod tests {
    use super::super::setting::NEAR;
    use super::*;
    use crate::evidence::joules::device;
    use crate::mptcp::stage::DEVICE;

    #[test]
    fn tcp_over_wifi_costs_what_its_time_and_bits_do() {
        let model = device(DEVICE);
        let setting = Setting::new(&[12.0], &[10.0], NEAR, Work::File(DataSize::from_bytes(30_000_000)));
        let played = play(&setting, Who::TcpWifi, &model, 1).unwrap();
        assert!((20.7..21.5).contains(&played.seconds), "{}", played.seconds);
        // 469.1 mW, and 112.6 nJ for each bit on the wire.
        let by_hand = 0.4691 * played.seconds + 112.6e-9 * 8.0 * 30e6 / 1448.0 * 1500.0;
        assert!((played.energy / by_hand - 1.0).abs() < 0.02, "{} instead of {by_hand}", played.energy);
        assert_eq!((played.carried[1], played.wakes), (0.0, Some(0.0)));
    }

    #[test]
    fn nobody_is_better_than_the_clairvoyant() {
        let model = device(DEVICE);
        for (rates, rtt) in [([12.0, 10.0], NEAR), ([3.3, 4.1], [80, 110]), ([2.2, 14.0], NEAR)] {
            let file = Work::File(DataSize::from_bytes(16_777_216));
            let setting = Setting::new(&rates[..1], &rates[1..], rtt, file);
            for who in [Who::Mptcp, Who::Emptcp, Who::WifiFirst, Who::Marline] {
                let played = play(&setting, who, &model, 1).unwrap();
                let Known { energy, bound, soonest } =
                    least(&setting, &model, played.bytes, played.seconds).unwrap();
                assert!(bound <= energy, "{rates:?} {who:?}: {bound} {energy}");
                assert!(energy <= played.energy * 1.005, "{rates:?} {who:?}: {energy} {}", played.energy);
                assert!(soonest <= played.seconds, "{rates:?} {who:?}: {soonest} {}", played.seconds);
            }
        }
    }

    #[test]
    fn mptcp_uses_both_and_a_walk_ends_when_it_ends() {
        let model = device(DEVICE);
        let length = Duration::from_secs(40);
        let setting = Setting::new(&[12.0], &[10.0], NEAR, Work::Stay { length });
        let both = play(&setting, Who::Mptcp, &model, 1).unwrap();
        let wifi = play(&setting, Who::TcpWifi, &model, 1).unwrap();
        assert_eq!((both.seconds, wifi.seconds), (40.0, 40.0));
        assert!(both.bytes > 1.6 * wifi.bytes && both.wakes == Some(1.0));
        assert_eq!(both.course.len(), 20);
        assert!((both.course[10].mbps[1] - 10.0).abs() < 0.5, "{:?}", both.course[10]);
    }
}
