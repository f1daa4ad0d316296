//! Random histories of MPTCP connections: do they survive everything that can happen to links, with bearable
//! effort?
//!
//! [`run_seed`] runs the history of a seed under a policy and returns the first [`Defect`], which the same seed
//! reproduces.
//!
//! 1. The seed determines the links and their events: outages without any signal, held packets, rate changes, carrier loss, and a link that
//!    is plugged in later. It also determines lost MP_PRIO options, a server that refuses joins, a restart of the daemon, and the downloads
//!    and their connections. Nothing happens to one honest link, except that it may be the one plugged in later. If a link fails
//!    permanently, the server accepts joins.
//! 2. Every requested byte is delivered once and in order. The Marline policy guarantees this while one link works.
//!    The published policies guarantee nothing once a link is dead.
//! 3. No command refers to an object that was not reported to the machine. The Marline policy sends at most
//!    `MAX_COMMANDS_PER_MINUTE` per connection (the published eMPTCP decides again with every sample, and flaps
//!    near a threshold). Every policy needs at most `MAX_CALLS_PER_SECOND`.
//! 4. Suspended subflows stay suspended. A server that has not received the MP_PRIO option continues for at most
//!    `MAX_PRIO_LAG`; once it has received the option, it must obey.
//! 5. The machine runs inside a [`ContractChecker`], and its log must replay, also with times in the past.

use marline_core::decision_log::Record;
use marline_core::energy::Model;
use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{Config, Goal, Input, LinkConfig, Output, Paths, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};

use super::{CarrierChange, Flow, LinkArrival, MptcpOutcome, MptcpScenario, MptcpSim, Request};
use crate::contract::{ContractChecker, DecisionLog, replay, replay_with_stale_times};
use crate::fuzz_fetch::Defect;
use crate::rng::{Purpose, RandomStream};
use crate::spec::{LinkEvent, LinkEventKind, LinkSpec};

/// Commands per connection within a minute. Our choice: a switch every two seconds, each repeated once, is
/// flapping.
const MAX_COMMANDS_PER_MINUTE: usize = 60;
/// Calls of the machine per second and connection, on average over a run: a poll every 50 ms with its responses,
/// and the same again for everything else.
const MAX_CALLS_PER_SECOND: usize = 150;
/// For each of six attempts half a second, and twice the time to drain a queue of one second. If 40 % of the
/// options are lost, five in a row are lost once in a hundred times.
const MAX_PRIO_LAG: Duration = Duration::from_secs(20);
/// The longest outage, added where one occurs: held packets arrive after it, and no option passes before.
const MAX_OUTAGE: Duration = Duration::from_millis(30_100);
/// Longer than 30 MB take over the slowest honest link, with all pauses.
const TIME_LIMIT: Duration = Duration::from_secs(3000);

/// Runs the history of `seed`.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// If the machine violates rule 1 or 3 of the contract.
pub fn run_seed(seed: u64, policy: Policy, model: &Model) -> Result<(), Defect> {
    let mut rng = RandomStream::new(seed, "paths history", 0, Purpose::Other);
    let (scenario, config, restart_at) = random_scenario(&mut rng, seed, policy, model);
    let description = format!("{scenario:?} restart {restart_at:?}");
    let requested: u64 = scenario.request_pools.iter().flatten().map(|request| request.size.bytes()).sum();
    let flows = scenario.flows.len();
    let is_permanent =
        scenario.events.iter().any(|event| event.change == LinkEventKind::Down && event.at >= PERMANENT_FROM);
    let is_outage = |event: &LinkEvent| matches!(event.change, LinkEventKind::Down | LinkEventKind::Hold);
    let has_outage = !scenario.carrier_changes.is_empty() || scenario.events.iter().any(is_outage);
    let max_prio_lag = MAX_PRIO_LAG + if has_outage { MAX_OUTAGE } else { Duration::ZERO };
    let new_machine = || ContractChecker::new(config.clone(), Paths::new(config.clone()));
    let mut sim = MptcpSim::new(scenario, new_machine());
    let mut logs = Vec::new();
    if let Some(at) = restart_at {
        sim.run_until(Instant::ZERO + at);
        logs.push(sim.replace_machine(new_machine()).into_parts().1);
    }
    let (outcome, machine) = sim.run();
    logs.push(machine.into_parts().1);
    let defect = |problem: String| {
        let records = logs.iter().flatten().map(|record| format!("{record:?}"));
        let log = std::iter::once(description.clone()).chain(records).collect();
        Defect { seed, policy: format!("{policy:?}"), problem, log }
    };
    let must_end = policy == Policy::Marline || !is_permanent;
    check_outcome(&outcome, requested, must_end, max_prio_lag).map_err(&defect)?;
    if policy == Policy::Marline {
        check_command_rate(&outcome, flows).map_err(&defect)?;
    }
    for log in &logs {
        check_call_rate(log, flows).map_err(&defect)?;
        let make = |config: &Config| Paths::new(config.clone());
        replay(make, log).map_err(|found| defect(format!("rule 4: {found}")))?;
        replay_with_stale_times(make, log).map_err(|found| defect(format!("rule 2: {found}")))?;
    }
    Ok(())
}

fn check_outcome(
    outcome: &MptcpOutcome,
    requested: u64,
    must_end: bool,
    max_prio_lag: Duration,
) -> Result<(), String> {
    if let Some(command) = outcome.invalid_commands.first() {
        return Err(command.clone());
    }
    let delivered = outcome.delivered.bytes();
    match outcome.finished_at {
        None if must_end => return Err(format!("not finished: {delivered} of {requested} bytes")),
        Some(_) if delivered != requested => return Err(format!("finished with {delivered} of {requested} bytes")),
        _ => {}
    }
    if let Some(link) = outcome.links.iter().find(|link| !link.leaked.is_zero()) {
        return Err(format!("{} carried {} although it was suspended", link.name, link.leaked));
    }
    if outcome.max_prio_lag > max_prio_lag {
        return Err(format!(
            "a suspended subflow continued for {:?} because no MP_PRIO had arrived",
            outcome.max_prio_lag
        ));
    }
    Ok(())
}

/// Checks that no minute has too many commands.
fn check_command_rate(outcome: &MptcpOutcome, flows: usize) -> Result<(), String> {
    let minute = Duration::from_secs(60);
    let times = &outcome.command_times;
    for (at, first) in times.iter().enumerate() {
        let count = times.get(at..).unwrap_or_default().iter().take_while(|time| time.since(*first) < minute);
        let count = count.count();
        if count > MAX_COMMANDS_PER_MINUTE * flows {
            return Err(format!("{count} commands in a minute from {first} on, for {flows} connections"));
        }
    }
    Ok(())
}

/// Checks the number of calls in relation to the simulated time.
fn check_call_rate(log: &DecisionLog<Config, Paths>, flows: usize) -> Result<(), String> {
    let time = |record: &Record<Config, Input, Output>| match record {
        Record::In { at, .. } | Record::Tick { at } => Some(*at),
        _ => None,
    };
    let calls: Vec<Instant> = log.iter().filter_map(time).collect();
    let (Some(first), Some(last)) = (calls.first(), calls.last()) else { return Ok(()) };
    let seconds = usize::try_from(last.since(*first).as_secs()).unwrap_or(0) + 2;
    if calls.len() > MAX_CALLS_PER_SECOND * seconds * flows {
        return Err(format!("{} calls in {seconds} s for {flows} connections", calls.len()));
    }
    Ok(())
}

/// An outage that lasts until then lasts forever.
const PERMANENT_FROM: Duration = Duration::from_secs(2500);

fn random_scenario(
    rng: &mut RandomStream,
    seed: u64,
    policy: Policy,
    model: &Model,
) -> (MptcpScenario, Config, Option<Duration>) {
    let count = 2 + usize::try_from(rng.below(2)).unwrap_or(0);
    let honest_link = usize::try_from(rng.below(count as u64)).unwrap_or(0);
    let names = [("wifi", LinkKind::Wifi), ("lte", LinkKind::Lte), ("eth", LinkKind::Ethernet)];
    let mut links = Vec::new();
    let mut configs = Vec::new();
    for (at, (name, kind)) in (0_u16..).zip(names).take(count) {
        links.push(random_link(rng, name, kind, usize::from(at) == honest_link));
        configs.push(LinkConfig {
            id: LinkId(at),
            name: name.to_string(),
            kind,
            metered: kind == LinkKind::Lte && one_in(rng, 3),
            budget: (usize::from(at) != honest_link && one_in(rng, 5))
                .then(|| DataSize::from_bytes(100_000 + rng.below(5_000_000))),
        });
    }
    let mut scenario = MptcpScenario::new(model.clone(), links, random_workload(rng));
    scenario.time_limit = TIME_LIMIT;
    scenario.seed = seed;
    scenario.prio_loss = Ratio::from_percent(if one_in(rng, 2) { 0 } else { 10 + rng.below(30) as u32 });
    scenario.server.keeps_cwnd = one_in(rng, 2);
    scenario.server.max_joins = usize::try_from(rng.below(3)).unwrap_or(0);
    for at in (0..count).filter(|at| *at != honest_link) {
        if one_in(rng, 3) {
            continue;
        }
        // All faults begin later than the connections, so the first link works at the beginning.
        let mut time = Duration::from_millis(5000 + rng.below(20_000));
        for _ in 0..=rng.below(5) {
            let duration = Duration::from_millis(100 + rng.below(30_000));
            add_fault(rng, &mut scenario, at, time, duration);
            time += duration + Duration::from_millis(500 + rng.below(20_000));
        }
        if one_in(rng, 4) {
            let down_event =
                |at: Duration, name: &str| LinkEvent { at, link: name.to_string(), change: LinkEventKind::Down };
            let name = scenario.links[at].name.clone();
            scenario.events.push(down_event(time, &name));
            // Only a mark for the checks in [`run_seed`]: the link is already down.
            scenario.events.push(down_event(PERMANENT_FROM, &name));
            scenario.server.max_joins = 2;
        }
    }
    add_late_link(&mut RandomStream::new(seed, "arrivals", 0, Purpose::Other), &mut scenario, &mut configs);
    let mut config = Config::new(model.clone(), configs);
    config.policy = policy;
    let goals = [Goal::Energy, Goal::Speed, Goal::Latency, Goal::Cost];
    config.goal = goals[usize::try_from(rng.below(6)).unwrap_or(0).min(5) % 4];
    let restart = one_in(rng, 4).then(|| Duration::from_millis(500 + rng.below(30_000)));
    (scenario, config, restart)
}

/// Lets one link, but not the first one, arrive during the run. It has its own random stream, so that the other
/// events of the history do not depend on it.
fn add_late_link(rng: &mut RandomStream, scenario: &mut MptcpScenario, configs: &mut Vec<LinkConfig>) {
    if one_in(rng, 3) {
        let at = 1 + usize::try_from(rng.below(configs.len() as u64 - 1)).unwrap_or(0);
        let config = configs.remove(at);
        scenario.link_arrivals.push(LinkArrival { at: Duration::from_millis(rng.below(20_000)), config });
    }
}

fn random_link(rng: &mut RandomStream, name: &str, kind: LinkKind, honest: bool) -> LinkSpec {
    let rate = Bitrate::from_bits_per_sec(if honest { 500_000 } else { 100_000 } << rng.below(7));
    let mut link = LinkSpec::constant(name, rate, Duration::from_millis(5 + rng.below(200)));
    link.kind = kind;
    if !honest && one_in(rng, 3) {
        link.loss = Ratio::from_ppm(u32::try_from(rng.below(20_000)).unwrap_or(0)).into();
    }
    link
}

fn add_fault(rng: &mut RandomStream, scenario: &mut MptcpScenario, link: usize, at: Duration, duration: Duration) {
    let name = scenario.links[link].name.clone();
    let mut event =
        |at: Duration, change: LinkEventKind| scenario.events.push(LinkEvent { at, link: name.clone(), change });
    match rng.below(4) {
        0 => {
            event(at, LinkEventKind::Down);
            event(at + duration, LinkEventKind::Restore);
        }
        1 => {
            event(at, LinkEventKind::Hold);
            event(at + duration, LinkEventKind::Restore);
        }
        2 => event(at, LinkEventKind::Rate(Bitrate::from_bits_per_sec(200_000 << rng.below(7)))),
        _ => {
            scenario.carrier_changes.push(CarrierChange { at, link, has_carrier: false });
            scenario.carrier_changes.push(CarrierChange { at: at + duration, link, has_carrier: true });
        }
    }
}

fn random_workload(rng: &mut RandomStream) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flows = 1 + usize::try_from(rng.below(6)).unwrap_or(0);
    let mut pools = Vec::new();
    for _ in 0..1 + rng.below(flows.min(2) as u64) {
        let requests = (0..1 + rng.below(8)).map(|_| {
            let after = if one_in(rng, 2) { Duration::ZERO } else { Duration::from_millis(rng.below(8000)) };
            let digits = 8 + rng.below(13);
            let size = DataSize::from_bytes(1 + rng.below(1 << digits));
            Request { delay: after, size }
        });
        pools.push(requests.collect::<Vec<_>>());
    }
    let start = |rng: &mut RandomStream| Duration::from_millis(rng.below(2000));
    let all = (0..flows).map(|at| Flow { start: start(rng), initial_link: 0, pool: at % pools.len() });
    (all.collect(), pools)
}

fn one_in(rng: &mut RandomStream, n: u64) -> bool {
    rng.below(n) == 0
}
