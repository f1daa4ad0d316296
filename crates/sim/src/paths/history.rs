//! Random histories: does a connection survive everything that can happen to its links, and is the machine bearable?
//!
//! In: a seed and who decides. Out: nothing, or a [`Defect`] that the same seed finds again.
//!
//! 1. A seed draws the links and what happens to them (silent death, outages, other rates, carrier lost and found, a link
//!    that is plugged in later), lost MP_PRIO options, a server that refuses joins, a restart of the daemon, and what is fetched by how many connections.
//!    One link is honest: nothing ever happens to it. Where the first link may die for ever, the server accepts joins.
//! 2. Everything that was asked for comes, every byte once and in order; ours promises that as long as one link works,
//!    the published policies promise nothing once the first link is dead.
//! 3. No command is about what the machine was not told of; of ours there are at most `MOST_COMMANDS` a minute for each
//!    connection (published eMPTCP decides anew with each sample, and flaps where links are near a threshold), and of
//!    anybody's at most `MOST_TICKS` calls a second.
//! 4. What was suspended is suspended: a server that has not heard it goes on for `LONGEST_UNHEARD` at most, and what
//!    it has heard it keeps to.
//! 5. The machine runs under [`Checked`], and its log must replay, also with old times in it.

use marline_core::decision_log::Record;
use marline_core::energy::Model;
use marline_core::link::{LinkId, LinkKind};
use marline_core::paths::{Config, Goal, Input, LinkConfig, Output, Paths, Policy};
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};

use super::{Arrival, Carrier, Flow, Outcome, Request, Scene, World};
use crate::contract::{Checked, Log, clamp, replay};
use crate::history::Defect;
use crate::rng::{Purpose, Stream};
use crate::spec::{Change, Event, LinkSpec};

/// Commands for one connection within a minute. chosen: a switch every two seconds, with its repetition, is flapping.
const MOST_COMMANDS: usize = 60;
/// Calls of the machine within a second for each connection, on the average of a run: a look every 50 ms, its answers,
/// and as much again.
const MOST_TICKS: usize = 150;
/// Half a second and two drains of a link whose queue lasts a second, for each of six tries: at four options of ten lost,
/// five in a row are lost once in a hundred times.
const LONGEST_UNHEARD: Duration = Duration::from_secs(20);
/// And the longest outage: what a link holds back comes after it, and no option passes before.
const LONGEST_OUTAGE: Duration = Duration::from_millis(30_100);
/// Longer than 30 MB take over the slowest honest link, with all pauses.
const LIMIT: Duration = Duration::from_secs(3000);

/// Runs the history of `seed`.
///
/// # Errors
/// The first thing that was wrong.
///
/// # Panics
/// When the machine breaks rule 1 or 3 of the contract.
pub fn history(seed: u64, policy: Policy, model: &Model) -> Result<(), Defect> {
    let mut chance = Stream::new(seed, "paths history", 0, Purpose::Other);
    let (scene, config, restart) = weather(&mut chance, seed, policy, model);
    let drawn = format!("{scene:?} restart {restart:?}");
    let requested: u64 = scene.pools.iter().flatten().map(|request| request.size.bytes()).sum();
    let flows = scene.flows.len();
    let dies = scene.events.iter().any(|event| event.change == Change::Down && event.at >= FOREVER);
    let cut = |event: &Event| matches!(event.change, Change::Down | Change::Hold);
    let outage = !scene.carrier.is_empty() || scene.events.iter().any(cut);
    let unheard = LONGEST_UNHEARD + if outage { LONGEST_OUTAGE } else { Duration::ZERO };
    let fresh = || Checked::new(config.clone(), Paths::new(config.clone()));
    let mut world = World::new(scene, fresh());
    let mut logs = Vec::new();
    if let Some(at) = restart {
        world.run_until(Instant::ZERO + at);
        logs.push(world.adopt(fresh()).into_parts().1);
    }
    let (outcome, machine) = world.run();
    logs.push(machine.into_parts().1);
    let defect = |wrong: String| {
        let records = logs.iter().flatten().map(|record| format!("{record:?}"));
        let log = std::iter::once(drawn.clone()).chain(records).collect();
        Defect { seed, policy: format!("{policy:?}"), wrong, log }
    };
    let must_end = policy == Policy::Marline || !dies;
    judge(&outcome, requested, must_end, unheard).map_err(&defect)?;
    if policy == Policy::Marline {
        is_calm(&outcome, flows).map_err(&defect)?;
    }
    for log in &logs {
        bearable(log, flows).map_err(&defect)?;
        let make = |config: &Config| Paths::new(config.clone());
        replay(make, log).map_err(|found| defect(format!("rule 4: {found}")))?;
        clamp(make, log).map_err(|found| defect(format!("rule 2: {found}")))?;
    }
    Ok(())
}

fn judge(outcome: &Outcome, requested: u64, must_end: bool, unheard: Duration) -> Result<(), String> {
    if let Some(nonsense) = outcome.nonsense.first() {
        return Err(nonsense.clone());
    }
    let delivered = outcome.delivered.bytes();
    match outcome.finished {
        None if must_end => return Err(format!("not finished: {delivered} of {requested} bytes")),
        Some(_) if delivered != requested => return Err(format!("finished with {delivered} of {requested} bytes")),
        _ => {}
    }
    if let Some(link) = outcome.links.iter().find(|link| !link.leaked.is_zero()) {
        return Err(format!("{} carried {} although it was suspended", link.name, link.leaked));
    }
    if outcome.unheard > unheard {
        return Err(format!("a suspended subflow went on for {:?} unheard", outcome.unheard));
    }
    Ok(())
}

/// Not too many commands.
fn is_calm(outcome: &Outcome, flows: usize) -> Result<(), String> {
    let minute = Duration::from_secs(60);
    let times = &outcome.commanded;
    for (at, first) in times.iter().enumerate() {
        let many = times.get(at..).unwrap_or_default().iter().take_while(|later| later.since(*first) < minute);
        let many = many.count();
        if many > MOST_COMMANDS * flows {
            return Err(format!("{many} commands in a minute from {first} on, for {flows} connections"));
        }
    }
    Ok(())
}

/// Not too many calls for the time that it took.
fn bearable(log: &Log<Config, Paths>, flows: usize) -> Result<(), String> {
    let time = |record: &Record<Config, Input, Output>| match record {
        Record::In { at, .. } | Record::Tick { at } => Some(*at),
        _ => None,
    };
    let calls: Vec<Instant> = log.iter().filter_map(time).collect();
    let (Some(first), Some(last)) = (calls.first(), calls.last()) else { return Ok(()) };
    let seconds = usize::try_from(last.since(*first).as_secs()).unwrap_or(0) + 2;
    if calls.len() > MOST_TICKS * seconds * flows {
        return Err(format!("{} calls in {seconds} s for {flows} connections", calls.len()));
    }
    Ok(())
}

/// What lasts from then on lasts for ever.
const FOREVER: Duration = Duration::from_secs(2500);

fn weather(chance: &mut Stream, seed: u64, policy: Policy, model: &Model) -> (Scene, Config, Option<Duration>) {
    let count = 2 + usize::try_from(chance.below(2)).unwrap_or(0);
    let honest = usize::try_from(chance.below(count as u64)).unwrap_or(0);
    let names = [("wifi", LinkKind::Wifi), ("lte", LinkKind::Lte), ("eth", LinkKind::Ethernet)];
    let mut links = Vec::new();
    let mut terms = Vec::new();
    for (at, (name, kind)) in (0_u16..).zip(names).take(count) {
        links.push(link(chance, name, kind, usize::from(at) == honest));
        terms.push(LinkConfig {
            id: LinkId(at),
            name: name.to_string(),
            kind,
            metered: kind == LinkKind::Lte && one_in(chance, 3),
            budget: (usize::from(at) != honest && one_in(chance, 5))
                .then(|| DataSize::from_bytes(100_000 + chance.below(5_000_000))),
        });
    }
    let mut scene = Scene::new(model.clone(), links, work(chance));
    scene.limit = LIMIT;
    scene.seed = seed;
    scene.prio_loss = Ratio::from_percent(if one_in(chance, 2) { 0 } else { 10 + chance.below(30) as u32 });
    scene.server.keeps_window = one_in(chance, 2);
    scene.server.joins = usize::try_from(chance.below(3)).unwrap_or(0);
    for at in (0..count).filter(|at| *at != honest) {
        if one_in(chance, 3) {
            continue;
        }
        // Everything begins while the first link works.
        let mut time = Duration::from_millis(5000 + chance.below(20_000));
        for _ in 0..=chance.below(5) {
            let lasts = Duration::from_millis(100 + chance.below(30_000));
            trouble(chance, &mut scene, at, time, lasts);
            time += lasts + Duration::from_millis(500 + chance.below(20_000));
        }
        if one_in(chance, 4) {
            let dead = |at: Duration, name: &str| Event { at, link: name.to_string(), change: Change::Down };
            let name = scene.links[at].name.clone();
            scene.events.push(dead(time, &name));
            // As a mark for the judge; it is down already.
            scene.events.push(dead(FOREVER, &name));
            scene.server.joins = 2;
        }
    }
    arrive(&mut Stream::new(seed, "arrivals", 0, Purpose::Other), &mut scene, &mut terms);
    let mut config = Config::new(model.clone(), terms);
    config.policy = policy;
    let profiles = [Goal::Energy, Goal::Speed, Goal::Latency, Goal::Cost];
    config.goal = profiles[usize::try_from(chance.below(6)).unwrap_or(0).min(5) % 4];
    let restart = one_in(chance, 4).then(|| Duration::from_millis(500 + chance.below(30_000)));
    (scene, config, restart)
}

/// One link, and not the first, comes while it runs. It has a stream of its own, so that the rest of a history is as it was.
fn arrive(chance: &mut Stream, scene: &mut Scene, terms: &mut Vec<LinkConfig>) {
    if one_in(chance, 3) {
        let at = 1 + usize::try_from(chance.below(terms.len() as u64 - 1)).unwrap_or(0);
        let terms = terms.remove(at);
        scene.arrivals.push(Arrival { at: Duration::from_millis(chance.below(20_000)), terms });
    }
}

fn link(chance: &mut Stream, name: &str, kind: LinkKind, honest: bool) -> LinkSpec {
    let rate = Bitrate::from_bits_per_sec(if honest { 500_000 } else { 100_000 } << chance.below(7));
    let mut link = LinkSpec::constant(name, rate, Duration::from_millis(5 + chance.below(200)));
    link.kind = kind;
    if !honest && one_in(chance, 3) {
        link.loss = Ratio::from_ppm(u32::try_from(chance.below(20_000)).unwrap_or(0)).into();
    }
    link
}

fn trouble(chance: &mut Stream, scene: &mut Scene, link: usize, at: Duration, lasts: Duration) {
    let name = scene.links[link].name.clone();
    let mut event = |at: Duration, change: Change| scene.events.push(Event { at, link: name.clone(), change });
    match chance.below(4) {
        0 => {
            event(at, Change::Down);
            event(at + lasts, Change::Back);
        }
        1 => {
            event(at, Change::Hold);
            event(at + lasts, Change::Back);
        }
        2 => event(at, Change::Rate(Bitrate::from_bits_per_sec(200_000 << chance.below(7)))),
        _ => {
            scene.carrier.push(Carrier { at, link, up: false });
            scene.carrier.push(Carrier { at: at + lasts, link, up: true });
        }
    }
}

fn work(chance: &mut Stream) -> (Vec<Flow>, Vec<Vec<Request>>) {
    let flows = 1 + usize::try_from(chance.below(6)).unwrap_or(0);
    let mut pools = Vec::new();
    for _ in 0..1 + chance.below(flows.min(2) as u64) {
        let requests = (0..1 + chance.below(8)).map(|_| {
            let after = if one_in(chance, 2) { Duration::ZERO } else { Duration::from_millis(chance.below(8000)) };
            let digits = 8 + chance.below(13);
            let size = DataSize::from_bytes(1 + chance.below(1 << digits));
            Request { after, size }
        });
        pools.push(requests.collect::<Vec<_>>());
    }
    let start = |chance: &mut Stream| Duration::from_millis(chance.below(2000));
    let all = (0..flows).map(|at| Flow { start: start(chance), first: 0, pool: at % pools.len() });
    (all.collect(), pools)
}

fn one_in(chance: &mut Stream, n: u64) -> bool {
    chance.below(n) == 0
}
