//! One download in virtual time: marline's state machine with the simulator's links and its model of TCP.

use marline_core::fetch::{Config, Fetch, ThesisParams};
use marline_core::units::Bitrate;
use marline_sim::http_sim::{HttpLinkOutcome as Simulated, HttpScenario, HttpSim};
use marline_sim::scenario::{Case, Client, Protocol};

use super::time_limit;
use crate::results::{Backend, DownloadOutcome, LinkOutcome};

/// Simulates repetition `run` of a case with one of marline's clients. The scenario's traces (recorded rates of links) must
/// have been loaded.
pub(super) fn simulate_download(case: &Case, client: &Client, run: u32, protocol: Protocol) -> DownloadOutcome {
    let Client::Marline { policy, only_link: only } = client else {
        unreachable!("only marline is simulated");
    };
    let links = case.links.iter().filter(|link| only.as_ref().is_none_or(|only| *only == link.name)).cloned();
    let mut config = HttpScenario::new(case.size, links);
    let is_used = |name: &str| config.links.iter().any(|link| link.spec.name == name);
    config.events = case.events.iter().filter(|event| is_used(&event.link)).cloned().collect();
    config.uses_tls = protocol == Protocol::Https;
    config.seed = u64::from(run) + 1;
    let limit = time_limit(case, client);
    let fetch = Fetch::new(Config {
        policy: *policy,
        thesis: thesis_params(),
        open_ended_first: true,
        ..Config::default()
    });
    let result = HttpSim::new(config, fetch).run(limit);
    let problem = match (&result.failed, result.finished_at) {
        (Some((failure, _)), _) => Some(format!("{failure:?}")),
        (None, None) => Some("not complete in time".to_string()),
        (None, Some(_)) if !result.is_complete() => Some("the file is incomplete".to_string()),
        _ => None,
    };
    let seconds = result.finished_at.or(result.failed.map(|(_, at)| at)).unwrap_or(limit);
    let used = result.links.iter().filter(|link| link.last_byte.is_some()).count();
    DownloadOutcome {
        case: case.name.clone(),
        client: client.to_string(),
        run,
        backend: Backend::Sim,
        requested_bytes: case.size.bytes(),
        problem,
        seconds: seconds.as_secs_f64(),
        ideal_s: case.ideal_time().map(|ideal| ideal.as_secs_f64()),
        links: case.links.iter().map(|spec| link_outcome(spec, &result.links)).collect(),
        link_delta_s: (used > 1).then_some(result.link_delta.as_secs_f64()),
        wasted_bytes: Some(result.wasted.bytes()),
        cpu_s: None,
        cpu_pressure: None,
        peak_rss_bytes: None,
        energy_j: None,
        energy_model: None,
        process: None,
        unreliable_reason: None,
    }
}

/// Parameters of the thesis's algorithms. The bandwidth of each link is that of the worked examples in sections 4.3.4 and
/// 4.3.5: 30,000 KB/s (240 Mbit/s), half of the sum of both links. The thesis's measurements used a bandwidth that was set
/// by hand for each scenario; it does not state these values.
fn thesis_params() -> ThesisParams {
    ThesisParams { bandwidth: Some(Bitrate::from_mbps(240)), ..ThesisParams::default() }
}

/// Results of a link; empty if the client did not use it. The simulator counts payload, the outcome the IP packets that
/// carry it.
fn link_outcome(spec: &marline_sim::spec::LinkSpec, simulated: &[Simulated]) -> LinkOutcome {
    let did = simulated.iter().find(|link| link.name == spec.name);
    let mtu = spec.mtu.bytes();
    let packets = |payload: u64| payload * mtu / (mtu - HEADER_LEN);
    LinkOutcome {
        name: spec.name.clone(),
        kind: spec.kind,
        ip_bytes: did.map_or(0, |link| packets(link.body_bytes.bytes())),
        span_s: did.and_then(|link| Some((link.first_byte?.as_secs_f64(), link.last_byte?.as_secs_f64()))),
        median_mbps: None,
        energy_j: None,
        timeline: did
            .map_or_else(Vec::new, |link| link.timeline.iter().map(|slot| packets(slot.bytes())).collect()),
    }
    .with_median()
}

/// Bytes of the headers of IPv4 and TCP in each packet, with the timestamps option of TCP.
const HEADER_LEN: u64 = 20 + 20 + 12;
