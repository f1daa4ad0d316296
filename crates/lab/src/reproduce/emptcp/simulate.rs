//! One case in virtual time, and the clairvoyant's optimum.
//!
//! 1. The state machine is that of `marline paths`, over the simulator's model of kernel MPTCP
//!    ([`marline_sim::mptcp_sim`]). TCP over one link is the same without a path manager.
//! 2. The paper turns RFC 2861 off at the server (section 3.6: a suspended subflow keeps its window); here this
//!    applies to the server of eMPTCP only. The paper's second change of the sender, an RTT of zero for a subflow
//!    that is used again, does not exist in upstream kernels, whose scheduler does not use RTTs.
//! 3. The MDP's schedule is computed from the timeline of the rates, and applied second by second ([`MdpPolicy`]).
//! 4. The clairvoyant knows all rates, needs no round trips, and ends no later than the client that it is compared
//!    with.

use std::time::Duration;

use marline_core::energy::{Model, RadioModel};
use marline_core::link::LinkKind;
use marline_core::paths::{Config, Goal, Paths, Policy};
use marline_core::units::{DataSize, Instant};
use marline_sim::clairvoyant::mdp::{MdpSchedule, RateChain};
use marline_sim::clairvoyant::{Grid, Transfer};
use marline_sim::mptcp_sim::{
    MdpPolicy, MptcpOutcome, MptcpScenario, MptcpSim, NoPolicy, PAYLOAD_SHARE, RateSchedule, download_workload,
    link_configs, page_workload,
};
use marline_sim::spec::LinkSpec;

use super::config::{EmptcpClient, RunConfig, Work};
use super::real::{RunResult, STEP_S, TimelinePoint};
use crate::mptcp::web_page;

/// Result of a case, in virtual or real time. Times are in seconds, energies in joules.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CaseResult {
    pub(super) seconds: f64,
    /// Payload in bytes.
    pub(super) bytes: f64,
    pub(super) energy_j: f64,
    /// Bytes of IP packets over Wi-Fi and LTE.
    pub(super) ip_bytes: [f64; 2],
    /// How often LTE's radio left the idle state; `None` if unknown.
    pub(super) promotions: Option<f64>,
    /// Mean rate from the fifth second on, in Mbit/s.
    pub(super) settled_mbps: Option<f64>,
    pub(super) timeline: Vec<TimelinePoint>,
    /// The clairvoyant's result for the same bytes and end, if it was computed.
    pub(super) optimum: Option<Optimum>,
}

/// Result of a clairvoyant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Optimum {
    /// Energy of the best schedule found.
    pub(super) energy: f64,
    /// Lower bound of the energy of any schedule.
    pub(super) lower_bound: f64,
    /// Time in which both links at their full rates deliver everything.
    pub(super) min_seconds: f64,
}

impl CaseResult {
    /// Joules per million bytes.
    pub(super) fn joules_per_megabyte(&self) -> f64 {
        self.energy_j / (self.bytes / 1e6).max(1e-9)
    }

    /// Seconds per million bytes, to compare runs of fixed length.
    pub(super) fn seconds_per_megabyte(&self) -> f64 {
        self.seconds / (self.bytes / 1e6).max(1e-9)
    }
}

impl From<&RunResult> for CaseResult {
    fn from(measured: &RunResult) -> Self {
        let carried = |at: usize| measured.links.get(at).map_or(0.0, |link| link.ip_bytes as f64);
        Self {
            seconds: measured.seconds,
            bytes: measured.bytes as f64,
            energy_j: measured.energy_j,
            ip_bytes: [carried(0), carried(1)],
            promotions: measured.links.get(1).and_then(|link| link.promotions).map(f64::from),
            settled_mbps: measured.settled_mbps,
            timeline: measured.timeline.clone(),
            optimum: None,
        }
    }
}

/// Simulates one case.
pub(super) fn simulate(
    run: &RunConfig,
    client: EmptcpClient,
    model: &Model,
    seed: u64,
) -> Result<CaseResult, String> {
    let alone = match client {
        EmptcpClient::TcpWifi => Some(0),
        EmptcpClient::TcpLte => Some(1),
        _ => None,
    };
    let links: Vec<LinkSpec> = match alone {
        Some(at) => run.links.get(at..=at).unwrap_or_default().to_vec(),
        None => run.links.clone(),
    };
    let work = match run.work {
        Work::File(size) => download_workload(size),
        // More than any link carries within the time.
        Work::Timed { .. } => download_workload(DataSize::from_bytes(1 << 50)),
        Work::Page => page_workload(&web_page::objects(), web_page::MAX_CONNECTIONS),
    };
    let mut scenario = MptcpScenario::new(model.clone(), links, work);
    scenario.seed = seed;
    scenario.is_mptcp = alone.is_none();
    scenario.server.keeps_cwnd = EmptcpClient::PUBLISHED.contains(&client);
    scenario.sample_interval = Duration::from_secs(1);
    scenario.time_limit = match run.work {
        Work::Timed { length } => length,
        _ => TIME_LIMIT,
    };
    let limit = scenario.time_limit;
    let outcome = match (alone, client) {
        (Some(_), _) => MptcpSim::new(scenario, NoPolicy).run().0,
        (None, EmptcpClient::Mdp) => MptcpSim::new(scenario, mdp_policy(run, model).ok_or("no schedule")?).run().0,
        (None, _) => MptcpSim::new(scenario, Paths::new(config(run, client, model))).run().0,
    };
    if let Some(nonsense) = outcome.invalid_commands.first() {
        return Err(nonsense.clone());
    }
    let time = match (outcome.finished_at, run.work) {
        (Some(time), _) => time,
        (None, Work::Timed { .. }) => limit,
        (None, _) => return Err(format!("only {} within {limit:?}", outcome.delivered)),
    };
    Ok(to_result(&outcome, time, alone))
}

fn to_result(outcome: &MptcpOutcome, time: Duration, alone: Option<usize>) -> CaseResult {
    let mut carried = [0.0; 2];
    for (at, link) in outcome.links.iter().enumerate() {
        carried[alone.unwrap_or(at).min(1)] = link.bytes.bytes() as f64 / PAYLOAD_SHARE;
    }
    let from = outcome.delivered_between(Duration::ZERO, SETTLED_AFTER);
    let settled_mbit = (outcome.delivered - from).bytes() as f64 * 8e-6;
    let promotions = |at: usize| outcome.links.get(at).map_or(0.0, |link| f64::from(link.promotions));
    let step = STEP_S as usize;
    let timeline = outcome.samples.chunks(step).zip(1..).filter_map(|(chunk, at): (_, usize)| {
        let last = chunk.last()?;
        let before = (at - 1) * step;
        let mbps = |link: usize| {
            let upto = |at: usize| {
                let sample = at.checked_sub(1).and_then(|at| outcome.samples.get(at));
                sample.and_then(|sample| sample.links.get(link)).map_or(0, |size| size.bytes())
            };
            let bytes = upto(before + chunk.len()).saturating_sub(upto(before)) as f64;
            bytes * 8e-6 / PAYLOAD_SHARE / chunk.len() as f64
        };
        let mbps = match alone {
            Some(0) => [mbps(0), 0.0],
            Some(_) => [0.0, mbps(0)],
            None => [mbps(0), mbps(1)],
        };
        Some(TimelinePoint { mbps, energy_j: last.energy_so_far.as_joules_f64() })
    });
    CaseResult {
        seconds: time.as_secs_f64(),
        bytes: outcome.delivered.bytes() as f64,
        energy_j: outcome.energy().as_joules_f64(),
        ip_bytes: carried,
        promotions: Some(match alone {
            Some(0) => 0.0,
            Some(_) => promotions(0),
            None => promotions(1),
        }),
        settled_mbps: (time > SETTLED_AFTER * 2).then(|| settled_mbit / (time - SETTLED_AFTER).as_secs_f64()),
        timeline: timeline.collect(),
        optimum: None,
    }
}

fn config(run: &RunConfig, client: EmptcpClient, model: &Model) -> Config {
    let mut config = Config::new(model.clone(), link_configs(&run.links));
    config.policy = match client {
        EmptcpClient::Emptcp => Policy::Emptcp,
        EmptcpClient::EmptcpSettled => Policy::EmptcpSettled,
        EmptcpClient::EmptcpTable => Policy::EmptcpTable,
        EmptcpClient::WifiFirst => Policy::WifiFirst,
        EmptcpClient::Marline | EmptcpClient::MarlineThroughput => Policy::Marline,
        EmptcpClient::Mptcp | EmptcpClient::TcpWifi | EmptcpClient::TcpLte | EmptcpClient::Mdp => Policy::Mptcp,
    };
    if client == EmptcpClient::MarlineThroughput {
        config.goal = Goal::Speed;
    }
    config
}

/// Number of states in which the MDP's schedule uses LTE, and number of states that it can reach.
pub(super) fn mdp_lte_states(run: &RunConfig, model: &Model) -> (usize, usize) {
    mdp_schedule(run, model).map_or((0, 0), |(schedule, _)| schedule.second_link_states())
}

/// The MDP's schedule, and the rates that it is based on.
fn mdp_schedule(run: &RunConfig, model: &Model) -> Option<(MdpSchedule, [(RateChain, RateSchedule); 2])> {
    let length = 1000;
    let rate_of = |spec: &LinkSpec| {
        let course = RateSchedule::new(spec, &[], Duration::from_secs(length));
        let rates: Vec<_> = (0..length).map(|at| course.rate_at(Instant::from_millis(at * 1000))).collect();
        (RateChain::new(&rates, MDP_LEVELS), course)
    };
    let [wifi, lte] = run.links.as_slice() else { return None };
    let (wifi, lte) = (rate_of(wifi), rate_of(lte));
    let (first, second) = (model.radio(LinkKind::Wifi)?, model.radio(LinkKind::Lte)?);
    Some((MdpSchedule::new((&wifi.0, first), (&lte.0, second)), [wifi, lte]))
}

fn mdp_policy(run: &RunConfig, model: &Model) -> Option<MdpPolicy> {
    let (schedule, links) = mdp_schedule(run, model)?;
    Some(MdpPolicy::new(schedule, links, model.radio(LinkKind::Lte)?.tail.time()))
}

/// The clairvoyant's result for this many payload bytes by this time.
pub(super) fn optimum(run: &RunConfig, model: &Model, bytes: f64, seconds: f64) -> Option<Optimum> {
    let by = Duration::from_secs_f64(seconds);
    let bin = (by / 240).clamp(Duration::from_millis(50), Duration::from_secs(1));
    let supply = |spec: &LinkSpec| RateSchedule::new(spec, &[], by).capacity_curve(1.0, bin, by + bin);
    // All sizes are counted on the wire.
    let size = DataSize::from_bytes((bytes / PAYLOAD_SHARE) as u64);
    let transfer = Transfer { links: run.links.iter().map(supply).collect(), size };
    let radios: Vec<RadioModel> = run.links.iter().filter_map(|spec| model.radio(spec.kind)).copied().collect();
    let grid = Grid { bin, grain: size / GRAINS_PER_TRANSFER };
    let least = transfer.min_energy(&radios, model.concurrent(), by, grid)?;
    Some(Optimum {
        energy: least.energy.as_joules_f64(),
        lower_bound: least.lower_bound.as_joules_f64(),
        min_seconds: transfer.min_time()?.as_secs_f64(),
    })
}

/// Time after which slow start is over.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// TCP over bad Wi-Fi needs 45 minutes for a quarter of a gigabyte.
const TIME_LIMIT: Duration = Duration::from_secs(6000);
/// Number of rate levels in the MDP.
const MDP_LEVELS: usize = 10;
/// Resolution of a clairvoyant's transfer.
const GRAINS_PER_TRANSFER: u64 = 2000;

#[cfg(test)]
mod tests {
    use super::super::config::DEFAULT_RTTS_MS;
    use super::*;
    use crate::mptcp::testbed::ENERGY_MODEL;
    use crate::results::energy::device_model;

    #[test]
    fn tcp_over_wifi_uses_the_energy_of_its_time_and_bits() {
        let model = device_model(ENERGY_MODEL);
        let run = RunConfig::new(&[12.0], &[10.0], DEFAULT_RTTS_MS, Work::File(DataSize::from_bytes(30_000_000)));
        let played = simulate(&run, EmptcpClient::TcpWifi, &model, 1).unwrap();
        assert!((20.7..21.5).contains(&played.seconds), "{}", played.seconds);
        // 469.1 mW, and 112.6 nJ for each bit on the wire.
        let by_hand = 0.4691 * played.seconds + 112.6e-9 * 8.0 * 30e6 / 1448.0 * 1500.0;
        assert!((played.energy_j / by_hand - 1.0).abs() < 0.02, "{} instead of {by_hand}", played.energy_j);
        assert_eq!((played.ip_bytes[1], played.promotions), (0.0, Some(0.0)));
    }

    #[test]
    fn no_client_is_better_than_the_clairvoyant() {
        let model = device_model(ENERGY_MODEL);
        for (rates, rtt) in
            [([12.0, 10.0], DEFAULT_RTTS_MS), ([3.3, 4.1], [80, 110]), ([2.2, 14.0], DEFAULT_RTTS_MS)]
        {
            let file = Work::File(DataSize::from_bytes(16_777_216));
            let run = RunConfig::new(&rates[..1], &rates[1..], rtt, file);
            for client in
                [EmptcpClient::Mptcp, EmptcpClient::Emptcp, EmptcpClient::WifiFirst, EmptcpClient::Marline]
            {
                let played = simulate(&run, client, &model, 1).unwrap();
                let Optimum { energy, lower_bound: bound, min_seconds: soonest } =
                    optimum(&run, &model, played.bytes, played.seconds).unwrap();
                assert!(bound <= energy, "{rates:?} {client:?}: {bound} {energy}");
                assert!(energy <= played.energy_j * 1.005, "{rates:?} {client:?}: {energy} {}", played.energy_j);
                assert!(soonest <= played.seconds, "{rates:?} {client:?}: {soonest} {}", played.seconds);
            }
        }
    }

    #[test]
    fn mptcp_uses_both_links_and_a_timed_run_has_its_length() {
        let model = device_model(ENERGY_MODEL);
        let length = Duration::from_secs(40);
        let run = RunConfig::new(&[12.0], &[10.0], DEFAULT_RTTS_MS, Work::Timed { length });
        let both = simulate(&run, EmptcpClient::Mptcp, &model, 1).unwrap();
        let wifi = simulate(&run, EmptcpClient::TcpWifi, &model, 1).unwrap();
        assert_eq!((both.seconds, wifi.seconds), (40.0, 40.0));
        assert!(both.bytes > 1.6 * wifi.bytes && both.promotions == Some(1.0));
        assert_eq!(both.timeline.len(), 20);
        assert!((both.timeline[10].mbps[1] - 10.0).abs() < 0.5, "{:?}", both.timeline[10]);
    }
}
