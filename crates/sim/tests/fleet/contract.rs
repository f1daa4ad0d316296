//! The machine contract for the machines of bonding: relay selection, scheduling, fair share, live priority and the
//! choice of the UDP link.

use std::fmt::Debug;

use marline_core::decision_log::Record;
use marline_core::fleet::Name;
use marline_core::fleet::fair_share::FairScheduler;
use marline_core::fleet::live_priority::LivePriority;
use marline_core::fleet::relay_selection::{self, RelaySelector, SelectorConfig};
use marline_core::fleet::scheduling::{self, FleetScheduler, SchedulerConfig};
use marline_core::fleet::udp_link::UdpLinkSelector;
use marline_core::machine::Machine;
use marline_core::units::{Bitrate, Duration, Instant};
use marline_sim::contract::{ContractChecker, replay, replay_with_stale_times};
use marline_sim::fleet::histories;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks the rules of the contract on the history that `run` drives, and that its log is the same after a round trip
/// through JSON. Returns the number of outputs.
fn check<C, M>(config: &C, make: fn(&C) -> M, run: impl Fn(ContractChecker<C, M>) -> ContractChecker<C, M>) -> u64
where
    C: Clone + Serialize + DeserializeOwned + PartialEq + Debug,
    M: Machine,
    M::Input: Clone + Serialize + DeserializeOwned + PartialEq + Debug,
    M::Output: Clone + Serialize + DeserializeOwned + PartialEq + Debug,
{
    let log = run(ContractChecker::new(config.clone(), make(config))).into_parts().1;
    let (_, outputs) = replay(make, &log).unwrap_or_else(|found| panic!("rule 4: {found}"));
    replay_with_stale_times(make, &log).unwrap_or_else(|found| panic!("rule 2: {found}"));
    for record in log {
        let line = serde_json::to_string(&record).expect("a line");
        let read: Record<C, M::Input, M::Output> = serde_json::from_str(&line).expect("a record");
        assert_eq!(serde_json::to_string(&read).expect("a line"), line);
    }
    outputs
}

#[test]
fn the_scheduler_keeps_rules_1_to_4() {
    let config: scheduling::Config = (SchedulerConfig::default(), 1, Instant::from_millis(1000));
    for seed in 0..6 {
        let make = |(config, epoch, start): &scheduling::Config| FleetScheduler::new(*config, *epoch, *start);
        let outputs =
            check(&config, make, |machine| histories::run_scheduler(machine, seed, Duration::from_secs(20 * 60)));
        assert!(outputs > 1000, "{outputs}");
    }
}

#[test]
fn the_relay_selection_keeps_rules_1_to_4() {
    let start = Instant::from_millis(86_400_000);
    for (seed, never_direct) in [(1, false), (2, true), (3, true)] {
        let config: relay_selection::Config =
            (SelectorConfig { never_direct, ..SelectorConfig::default() }, None, start);
        let make = |(config, saved, start): &relay_selection::Config| {
            RelaySelector::new(config.clone(), saved.clone(), *start)
        };
        let outputs = check(&config, make, |machine| {
            histories::run_selector(machine, seed, start, Duration::from_secs(4 * 3600))
        });
        assert!(outputs > 500, "{outputs}");
    }
}

#[test]
fn the_fair_share_keeps_rules_1_to_4() {
    let make = |capacity: &Option<Bitrate>| FairScheduler::<Name>::new(*capacity);
    for capacity in [Some(Bitrate::from_mbps(20)), None] {
        let outputs =
            check(&capacity, make, |machine| histories::run_fair_share(machine, 1, Duration::from_secs(20)));
        assert!(outputs > 1000, "{outputs}");
    }
}

#[test]
fn the_live_priority_keeps_rules_1_to_4() {
    let outputs = check(
        &(),
        |()| LivePriority::default(),
        |machine| histories::run_live_priority(machine, Duration::from_secs(30)),
    );
    assert!(outputs > 1000, "{outputs}");
}

#[test]
fn the_choice_of_the_udp_link_keeps_rules_1_to_4() {
    for seed in 0..4 {
        let outputs = check(
            &(),
            |()| UdpLinkSelector::default(),
            |machine| histories::run_udp_link(machine, seed, Duration::from_secs(3600)),
        );
        assert!(outputs > 10, "{outputs}");
    }
}
