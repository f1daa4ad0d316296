//! One upload in virtual time.
//!
//! In: a [`Case`], a [`Way`]. Out: [`Measured`].
//!
//! 1. TCP and MPTCP are sim's models of the kernel's ([`marline_sim::paths`]), steered as `marline paths --profile throughput` does.
//!    Links are the same both ways, so that a download stands for an upload.
//! 2. What lies behind a link adds its round trip to the link's and its loss to the link's; its queue is not modelled, for it is
//!    wider than the links.
//! 3. Through a relay an upload has what BASS says (Algorithm 1, line 6): the smaller one of what reaches the relay and of what
//!    the relay reaches. Edge, relay, TLS and their buffers are not modelled: real time has them.

use marline_core::paths::{Config, Goal, Paths, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Ratio};
use marline_sim::paths::{Nobody, Scene, World, download, terms};
use marline_sim::spec::{Carrier, LinkSpec, Loss};

use super::measured::{Measured, SETTLED};
use super::setting::{Case, Leg, Way};
use crate::evidence::joules::device;
use crate::mptcp::stage::DEVICE;

/// Uploads.
pub(super) fn upload(case: &Case, way: Way) -> Result<Measured, String> {
    let behind = |leg: Leg| case.links.iter().map(move |link| in_series(link, leg)).collect::<Vec<_>>();
    let relay = |at: usize| case.relays.get(at).copied().ok_or_else(|| format!("there is no relay {}", at + 1));
    let run = |links: Vec<LinkSpec>| carried(links, case.length, case.seed);
    let onward = |at: usize| relay(at).and_then(|relay| run(vec![relay.onward.link("onward")]));
    match way {
        Way::Direct(at) => run(behind(case.direct).into_iter().skip(at).take(1).collect()),
        Way::To(at) => run(behind(relay(at)?.to)),
        Way::From(at) => onward(at),
        Way::Split(at) => {
            let first = run(behind(relay(at)?.to).into_iter().take(1).collect())?;
            Ok(Measured { relay: Some(at), ..first.least(onward(at)?) })
        }
        Way::Through(at) => Ok(Measured { relay: Some(at), ..run(behind(relay(at)?.to))?.least(onward(at)?) }),
        Way::Fleet => upload(case, Way::Through(best_relay(case))),
    }
}

/// The relay through which most goes, by line 6; the first of equals.
pub(super) fn best_relay(case: &Case) -> usize {
    let rate = |at: usize| upload(case, Way::Through(at)).map_or(0.0, |measured| measured.mbps);
    let rates: Vec<f64> = (0..case.relays.len()).map(rate).collect();
    best_of(&rates)
}

/// The place of the largest; the first of equals.
pub(super) fn best_of(rates: &[f64]) -> usize {
    let better = |best: usize, at: usize| if rates[at] > rates[best] { at } else { best };
    (0..rates.len()).reduce(better).unwrap_or(0)
}

/// A link and what is behind it, as one (rule 2).
fn in_series(link: &LinkSpec, leg: Leg) -> LinkSpec {
    let kept = link.loss.mean().complement().as_f64() * leg.loss.complement().as_f64();
    let loss = Loss::Each(Ratio::from_ppm(((1.0 - kept) * 1e6).round() as u32));
    LinkSpec { rtt: link.rtt + leg.rtt, loss, ..link.clone() }
}

/// What these links carry in this time.
fn carried(links: Vec<LinkSpec>, length: Duration, seed: u64) -> Result<Measured, String> {
    if links.is_empty() {
        return Err("there is no such link".into());
    }
    let model = device(DEVICE);
    let config = Config { policy: Policy::Marline, goal: Goal::Speed, ..Config::new(model.clone(), terms(&links)) };
    // More than any link carries by then.
    let mut scene = Scene::new(model, links, download(DataSize::from_bytes(1 << 50)));
    (scene.seed, scene.limit, scene.sample) = (seed, length, SAMPLE);
    scene.mptcp = scene.links.len() > 1;
    scene.server.joins = scene.links.len();
    let widest = scene.links.iter().map(rate).max().unwrap_or_default();
    // The window of a kernel that lets buffers grow: several round trips of the widest link.
    scene.server.window = scene.server.window.max(widest * WINDOW);
    let outcome = match scene.mptcp {
        true => World::new(scene, Paths::new(config)).run().0,
        false => World::new(scene, Nobody).run().0,
    };
    if let Some(nonsense) = outcome.nonsense.first() {
        return Err(nonsense.clone());
    }
    let mbps = |size: DataSize, time: Duration| size.bytes() as f64 * 8e-6 / time.as_secs_f64().max(1e-9);
    let settled = SETTLED.min(length / 2);
    let later = outcome.delivered_between(settled, length);
    Ok(Measured::of(mbps(outcome.delivered, length), mbps(later, length - settled)))
}

fn rate(link: &LinkSpec) -> Bitrate {
    match &link.down {
        Carrier::Rate { first, .. } => *first,
        _ => Bitrate::ZERO,
    }
}

/// How finely the course is followed.
const SAMPLE: Duration = Duration::from_millis(100);
/// chosen: no window shall hold back what the links' own could carry.
const WINDOW: Duration = Duration::from_millis(800);

#[cfg(test)]
mod tests {
    use super::super::setting::{self, Relay};
    use super::*;

    fn case(direct: Leg) -> Case {
        Case {
            artefact: "F11",
            name: "a".into(),
            links: setting::two_of_eight(),
            direct,
            relays: setting::POSITIONS.map(|part| Relay::at(direct, part)).into(),
            ways: Vec::new(),
            length: Duration::from_secs(10),
            seed: 1,
        }
    }

    #[test]
    fn both_links_through_a_relay_carry_twice_a_link_where_nothing_is_lost() {
        let clean = case(Leg::new(Duration::from_millis(40), Ratio::ZERO));
        let one = upload(&clean, Way::Direct(0)).unwrap().steady_mbps;
        let both = upload(&clean, Way::Through(1)).unwrap().steady_mbps;
        assert!((7.0..8.0).contains(&one), "{one}");
        assert!((1.85..2.1).contains(&(both / one)), "{both} over {one}");
    }

    #[test]
    fn a_way_that_is_split_answers_loss_sooner() {
        let bad = case(Leg::new(Duration::from_millis(200), Ratio::from_ppm(10_000)));
        let [direct, split, through] =
            [Way::Direct(0), Way::Split(1), Way::Through(1)].map(|way| upload(&bad, way).unwrap().mbps);
        assert!(split > 1.5 * direct && through >= split, "{direct} {split} {through}");
        assert_eq!(upload(&bad, Way::Fleet).unwrap().relay, Some(best_relay(&bad)));
    }

    #[test]
    fn links_in_series_add_round_trips_and_losses() {
        let lossy = LinkSpec { loss: Loss::Each(Ratio::from_percent(1)), ..setting::link("wifi0", 8, 10) };
        let both = in_series(&lossy, Leg::new(Duration::from_millis(30), Ratio::from_percent(2)));
        assert_eq!((both.rtt, both.loss.mean().ppm()), (Duration::from_millis(40), 29_800));
    }

    #[test]
    fn the_first_of_equals_is_best() {
        assert_eq!((best_of(&[1.0, 3.0, 3.0]), best_of(&[])), (1, 0));
    }
}
