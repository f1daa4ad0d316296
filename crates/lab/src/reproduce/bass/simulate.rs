//! One upload in virtual time.
//!
//! 1. TCP and MPTCP are the simulator's models of the kernel's ([`marline_sim::mptcp_sim`]), managed as `marline
//!    paths` does for throughput. Links are symmetric, so that a download stands for an upload.
//! 2. A segment behind a link adds its RTT and loss to those of the link. Its queue is not modeled, because the
//!    segment is faster than the links.
//! 3. Through a relay an upload has the rate of BASS's Algorithm 1, line 6: the smaller of the rates to the relay
//!    and from the relay. Edge, relay, TLS and their buffers are not modeled; the lab has them.

use marline_core::paths::{Config, Goal, Paths, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Ratio};
use marline_sim::mptcp_sim::{MptcpScenario, MptcpSim, NoPolicy, download_workload, link_configs};
use marline_sim::spec::{Downlink, LinkSpec, Loss};

use super::config::{PathSegment, UploadCase, UploadRoute};
use super::measurement::{SETTLE_TIME, UploadResult};
use crate::mptcp::testbed::ENERGY_MODEL;
use crate::results::energy::device_model;

/// Simulates one upload.
pub(super) fn upload(case: &UploadCase, route: UploadRoute) -> Result<UploadResult, String> {
    let combined =
        |leg: PathSegment| case.links.iter().map(move |link| combined_link(link, leg)).collect::<Vec<_>>();
    let relay = |at: usize| case.relays.get(at).copied().ok_or_else(|| format!("there is no relay {}", at + 1));
    let run = |links: Vec<LinkSpec>| simulate_links(links, case.length, case.seed);
    let onward = |at: usize| relay(at).and_then(|relay| run(vec![relay.to_origin.link("onward")]));
    match route {
        UploadRoute::Direct(at) => run(combined(case.direct).into_iter().skip(at).take(1).collect()),
        UploadRoute::ToRelay(at) => run(combined(relay(at)?.from_edge)),
        UploadRoute::FromRelay(at) => onward(at),
        UploadRoute::Split(at) => {
            let first = run(combined(relay(at)?.from_edge).into_iter().take(1).collect())?;
            Ok(UploadResult { relay: Some(at), ..first.min(onward(at)?) })
        }
        UploadRoute::Through(at) => {
            Ok(UploadResult { relay: Some(at), ..run(combined(relay(at)?.from_edge))?.min(onward(at)?) })
        }
        UploadRoute::Assigned => upload(case, UploadRoute::Through(best_relay(case))),
    }
}

/// Index of the relay with the highest rate by line 6; the first of equals.
pub(super) fn best_relay(case: &UploadCase) -> usize {
    let rate = |at: usize| upload(case, UploadRoute::Through(at)).map_or(0.0, |measured| measured.mbps);
    let rates: Vec<f64> = (0..case.relays.len()).map(rate).collect();
    index_of_max(&rates)
}

/// Index of the largest value; the first of equals.
pub(super) fn index_of_max(rates: &[f64]) -> usize {
    let better = |best: usize, at: usize| if rates[at] > rates[best] { at } else { best };
    (0..rates.len()).reduce(better).unwrap_or(0)
}

/// A link and the segment behind it as one link (rule 2).
fn combined_link(link: &LinkSpec, leg: PathSegment) -> LinkSpec {
    let delivery_rate = link.loss.mean().complement().as_f64() * leg.loss.complement().as_f64();
    let loss = Loss::Independent(Ratio::from_ppm(((1.0 - delivery_rate) * 1e6).round() as u32));
    LinkSpec { rtt: link.rtt + leg.rtt, loss, ..link.clone() }
}

/// Simulates what these links carry in this time.
fn simulate_links(links: Vec<LinkSpec>, length: Duration, seed: u64) -> Result<UploadResult, String> {
    if links.is_empty() {
        return Err("there is no such link".into());
    }
    let model = device_model(ENERGY_MODEL);
    let config =
        Config { policy: Policy::Marline, goal: Goal::Speed, ..Config::new(model.clone(), link_configs(&links)) };
    // More than any link carries within the length.
    let mut scenario = MptcpScenario::new(model, links, download_workload(DataSize::from_bytes(1 << 50)));
    (scenario.seed, scenario.time_limit, scenario.sample_interval) = (seed, length, SAMPLE_INTERVAL);
    scenario.is_mptcp = scenario.links.len() > 1;
    scenario.server.max_joins = scenario.links.len();
    let widest = scenario.links.iter().map(rate).max().unwrap_or_default();
    // The receive window of a kernel with growing buffers: several RTTs at the rate of the fastest link.
    scenario.server.receive_window = scenario.server.receive_window.max(widest * RECEIVE_WINDOW_TIME);
    let outcome = match scenario.is_mptcp {
        true => MptcpSim::new(scenario, Paths::new(config)).run().0,
        false => MptcpSim::new(scenario, NoPolicy).run().0,
    };
    if let Some(nonsense) = outcome.invalid_commands.first() {
        return Err(nonsense.clone());
    }
    let mbps = |size: DataSize, time: Duration| size.bytes() as f64 * 8e-6 / time.as_secs_f64().max(1e-9);
    let settled = SETTLE_TIME.min(length / 2);
    let settled_bytes = outcome.delivered_between(settled, length);
    Ok(UploadResult::rounded(mbps(outcome.delivered, length), mbps(settled_bytes, length - settled)))
}

fn rate(link: &LinkSpec) -> Bitrate {
    match &link.downlink {
        Downlink::Rate { initial: first, .. } => *first,
        _ => Bitrate::ZERO,
    }
}

/// Interval of the recorded timeline.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Our choice: the receive window must not limit the rate of the links.
const RECEIVE_WINDOW_TIME: Duration = Duration::from_millis(800);

#[cfg(test)]
mod tests {
    use super::super::config::{self, RelayPosition};
    use super::*;

    fn case(direct: PathSegment) -> UploadCase {
        UploadCase {
            artefact: "F11",
            name: "a".into(),
            links: config::two_8mbps_links(),
            direct,
            relays: config::POSITIONS.map(|part| RelayPosition::at_fraction(direct, part)).into(),
            routes: Vec::new(),
            length: Duration::from_secs(10),
            seed: 1,
        }
    }

    #[test]
    fn without_loss_both_links_through_a_relay_carry_twice_the_rate_of_one() {
        let clean = case(PathSegment::new(Duration::from_millis(40), Ratio::ZERO));
        let one = upload(&clean, UploadRoute::Direct(0)).unwrap().steady_mbps;
        let both = upload(&clean, UploadRoute::Through(1)).unwrap().steady_mbps;
        assert!((7.0..8.0).contains(&one), "{one}");
        assert!((1.85..2.1).contains(&(both / one)), "{both} over {one}");
    }

    #[test]
    fn a_split_path_recovers_from_loss_sooner() {
        let bad = case(PathSegment::new(Duration::from_millis(200), Ratio::from_ppm(10_000)));
        let [direct, split, through] = [UploadRoute::Direct(0), UploadRoute::Split(1), UploadRoute::Through(1)]
            .map(|route| upload(&bad, route).unwrap().mbps);
        assert!(split > 1.5 * direct && through >= split, "{direct} {split} {through}");
        assert_eq!(upload(&bad, UploadRoute::Assigned).unwrap().relay, Some(best_relay(&bad)));
    }

    #[test]
    fn links_in_series_add_rtts_and_losses() {
        let lossy = LinkSpec { loss: Loss::Independent(Ratio::from_percent(1)), ..config::link("wifi0", 8, 10) };
        let both = combined_link(&lossy, PathSegment::new(Duration::from_millis(30), Ratio::from_percent(2)));
        assert_eq!((both.rtt, both.loss.mean().ppm()), (Duration::from_millis(40), 29_800));
    }

    #[test]
    fn the_first_of_equals_is_best() {
        assert_eq!((index_of_max(&[1.0, 3.0, 3.0]), index_of_max(&[])), (1, 0));
    }
}
