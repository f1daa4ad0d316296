//! The MPTCP simulator compared with measurements of the kernel, controlled by small scripted machines.

use marline_core::energy::Model;
use marline_core::link::LinkId;
use marline_core::machine::Machine;
use marline_core::paths::{Command, CommandId, ConnId, Input, Output, SubflowId};
use marline_core::units::{DataSize, Duration, Instant};

use super::*;
use crate::spec::LinkSpec;

/// Energy model of eMPTCP's phone.
fn phone_model() -> Model {
    let (_, text) = marline_core::energy::BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").unwrap();
    toml::from_str::<marline_core::energy::ModelSpec>(text).unwrap().into_model("emptcp-s3").unwrap().0
}

fn parse_links(lines: &[&str]) -> Vec<LinkSpec> {
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

fn scenario(lines: &[&str], megabytes: u64) -> MptcpScenario {
    MptcpScenario::new(
        phone_model(),
        parse_links(lines),
        download_workload(DataSize::from_bytes(megabytes * 1_000_000)),
    )
}

/// A command; its time counts from the opening of the connection.
#[derive(Clone, Debug)]
enum ScriptStep {
    Join(u16, bool),
    /// On the n-th subflow that came up.
    Prio(usize, bool),
    Destroy(usize),
}

/// A machine that executes a list of commands.
#[derive(Debug, Default)]
struct ScriptedMachine {
    steps: Vec<(Duration, ScriptStep)>,
    opened_at: Option<Instant>,
    next_step: usize,
    subflows: Vec<SubflowId>,
    outputs: VecDeque<Output>,
    inputs: Vec<(Instant, Input)>,
}

impl ScriptedMachine {
    fn new(steps: &[(u64, ScriptStep)]) -> Self {
        let steps = steps.iter().map(|(ms, step)| (Duration::from_millis(*ms), step.clone())).collect();
        Self { steps, ..Self::default() }
    }

    fn input_time(&self, condition: impl Fn(&Input) -> bool) -> Option<Instant> {
        self.inputs.iter().find(|(_, input)| condition(input)).map(|(at, _)| *at)
    }
}

impl Machine for ScriptedMachine {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: Input) {
        match &input {
            Input::Opened { .. } => self.opened_at = Some(now),
            Input::SubflowUp { subflow, .. } => self.subflows.push(subflow.id),
            _ => {}
        }
        self.inputs.push((now, input));
        self.tick(now);
    }

    fn tick(&mut self, now: Instant) {
        while let Some((at, _)) = self.deadline().filter(|(at, ())| *at <= now) {
            let (_, step) = &self.steps[self.next_step];
            self.next_step += 1;
            let action = match step {
                ScriptStep::Join(link, backup) => Command::Join { link: LinkId(*link), backup: *backup },
                ScriptStep::Prio(n, backup) => Command::SetBackup { subflow: self.subflows[*n], backup: *backup },
                ScriptStep::Destroy(n) => Command::Destroy { subflow: self.subflows[*n] },
            };
            let command = CommandId(at.as_nanos() + self.next_step as u64);
            self.outputs.push_back(Output::Command { id: command, conn: ConnId(0), command: action });
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        let (after, _) = self.steps.get(self.next_step)?;
        Some((self.opened_at? + *after, ()))
    }
}

fn run(scenario: MptcpScenario, steps: &[(u64, ScriptStep)]) -> (MptcpOutcome, ScriptedMachine) {
    let (outcome, script) = MptcpSim::new(scenario, ScriptedMachine::new(steps)).run();
    assert!(outcome.invalid_commands.is_empty(), "{:?}", outcome.invalid_commands);
    (outcome, script)
}

/// Payload rate from 5 s to 15 s, in Mbit/s.
fn steady_rate(outcome: &MptcpOutcome) -> f64 {
    let bytes = outcome.delivered_between(Duration::from_secs(5), Duration::from_secs(15));
    bytes.bytes() as f64 * 8.0 / 10e6
}

#[test]
fn one_link_is_filled() {
    let (outcome, _) = run(scenario(&["wifi,rate=20Mbit/s,rtt=40ms"], 30), &[]);
    let time = outcome.finished_at.unwrap().as_secs_f64();
    assert!((12.6..13.4).contains(&time), "{time}");
    assert_eq!(outcome.delivered, DataSize::from_bytes(30_000_000));
    assert_eq!(outcome.duplicate_bytes, DataSize::ZERO);
}

#[test]
fn unequal_links_collapse_as_measured() {
    // As measured in the laboratory: queues of 30 KB on Wi-Fi and 100 KB on LTE, minimal delay. Rates in Mbit/s:
    // Wi-Fi alone, then the limits for both links together.
    let mut wrong = 0;
    for (wifi, low, high) in [(1, 5.0, 7.5), (2, 11.0, 14.5), (4, 21.5, 23.0)] {
        let wifi = format!("wifi,rate={wifi}Mbit/s,rtt=1ms,queue=30000B");
        let scenario = scenario(&[&wifi, "lte,rate=20Mbit/s,rtt=1ms,queue=100000B"], 60);
        let (outcome, _) = run(scenario, &[(0, ScriptStep::Join(1, false))]);
        let rate = steady_rate(&outcome);
        println!("{wifi}: {rate:.1} Mbit/s");
        wrong += u32::from(!(low..high).contains(&rate));
    }
    assert_eq!(wrong, 0);
}

#[test]
fn unequal_links_collapse_at_realistic_rtts_as_well() {
    let rate = |first: &str, second: &str| {
        let (outcome, _) = run(scenario(&[first, second], 200), &[(0, ScriptStep::Join(1, false))]);
        steady_rate(&outcome)
    };
    let good = "lte,rate=20Mbit/s,rtt=60ms";
    let (slow_first, slow_second) = (
        rate("wifi,rate=1Mbit/s,rtt=30ms", good),
        rate("wifi,rate=20Mbit/s,rtt=30ms", "lte,rate=1Mbit/s,rtt=60ms"),
    );
    let equal = rate("wifi,rate=16Mbit/s,rtt=30ms", "lte,rate=16Mbit/s,rtt=60ms");
    println!("{slow_first:.1} {slow_second:.1} {equal:.1}");
    assert!(slow_first < 15.0 && slow_second < 15.0, "both are below 19 alone: {slow_first}, {slow_second}");
    assert!(equal > 0.97 * 32.0 * PAYLOAD_SHARE, "{equal}");
}

#[test]
fn a_quarter_of_a_gigabyte_is_delivered_completely() {
    let scenario = scenario(&["wifi,rate=1Mbit/s,rtt=30ms", "lte,rate=10Mbit/s,rtt=60ms"], 256);
    let (outcome, _) = run(scenario, &[(0, ScriptStep::Join(1, false)), (3000, ScriptStep::Prio(0, true))]);
    assert_eq!(outcome.delivered, DataSize::from_bytes(256_000_000));
    let time = outcome.finished_at.unwrap().as_secs_f64();
    assert!((214.0..225.0).contains(&time), "LTE alone, 10 Mbit/s: {time}");
}

#[test]
fn a_suspended_link_drains_and_then_carries_nothing_until_it_is_resumed() {
    let scenario = scenario(&["wifi,rate=10Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 60);
    let steps = [
        (500, ScriptStep::Join(1, false)),
        (5000, ScriptStep::Prio(1, true)),
        (15_000, ScriptStep::Prio(1, false)),
    ];
    let (outcome, _) = run(scenario, &steps);
    let lte =
        |second: usize| outcome.samples[second].links[1].bytes() - outcome.samples[second - 1].links[1].bytes();
    assert!(lte(4) > 2_000_000, "{}", lte(4));
    assert!(lte(6) < 600_000, "the drain: {}", lte(6));
    assert!((8..14).all(|second| lte(second) == 0), "nothing");
    assert!(lte(17) > 2_000_000, "{}", lte(17));
    assert_eq!(outcome.links[1].leaked, DataSize::ZERO);
    assert_eq!(outcome.links[1].promotions, 1, "its tail had not ended");
}

#[test]
fn a_lost_mp_prio_has_no_effect_until_it_is_repeated() {
    let mut scenario = scenario(&["wifi,rate=10Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 60);
    scenario.events = vec!["3s:lte=down".parse().unwrap(), "3100ms:lte=up".parse().unwrap()];
    // The commands' times count from the opening, 140 ms after the start. The MP_PRIO sent at 2950 ms is lost with
    // all other packets of the outage.
    let steps =
        [(0, ScriptStep::Join(1, false)), (2950, ScriptStep::Prio(1, true)), (10_000, ScriptStep::Prio(1, true))];
    let (outcome, _) = run(scenario, &steps);
    let lte =
        |second: usize| outcome.samples[second].links[1].bytes() - outcome.samples[second - 1].links[1].bytes();
    assert!(lte(8) > 1_500_000, "{}", lte(8));
    assert!((13..16).all(|second| lte(second) == 0));
}

#[test]
fn data_of_a_destroyed_subflow_is_reinjected_on_the_other() {
    let scenario = scenario(&["wifi,rate=1Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 20);
    let (outcome, script) = run(scenario, &[(1000, ScriptStep::Join(1, false)), (3000, ScriptStep::Destroy(0))]);
    assert_eq!(outcome.delivered, DataSize::from_bytes(20_000_000));
    let time = outcome.finished_at.unwrap().as_secs_f64();
    assert!(time < 12.5, "{time}");
    let down = |input: &Input| matches!(input, Input::SubflowDown { subflow, .. } if subflow.0 == 0);
    assert!(script.input_time(down).is_some());
}

#[test]
fn a_backup_takes_over_when_the_first_link_fails_without_a_signal() {
    let mut scenario = scenario(&["wifi,rate=10Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 40);
    scenario.events = vec!["5s:wifi=down".parse().unwrap()];
    let (outcome, _) = run(scenario, &[(0, ScriptStep::Join(1, true))]);
    assert_eq!(outcome.delivered, DataSize::from_bytes(40_000_000));
    let lte = |second: usize| outcome.samples[second].links[1].bytes();
    assert_eq!(lte(4), 0);
    assert!(lte(6) > 1_000_000, "within two seconds: {}", lte(6));
}

#[test]
fn a_server_at_its_subflow_limit_resets_the_join_without_data_loss() {
    let mut scenario = scenario(&["wifi,rate=10Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 10);
    scenario.server.max_joins = 0;
    let (outcome, script) = run(scenario, &[(0, ScriptStep::Join(1, false))]);
    let up =
        script.input_time(|input| matches!(input, Input::SubflowUp { subflow, .. } if subflow.id.0 == 1)).unwrap();
    let down =
        script.input_time(|input| matches!(input, Input::SubflowDown { subflow, .. } if subflow.0 == 1)).unwrap();
    assert_eq!(up.since(script.opened_at.unwrap()), Duration::from_millis(90), "one and a half RTTs");
    assert_eq!(down.since(up), Duration::from_millis(30));
    assert_eq!((outcome.delivered.bytes(), outcome.links[1].bytes.bytes()), (10_000_000, 0));
    assert_eq!(outcome.links[1].promotions, 1, "the handshake woke the radio");
}

#[test]
fn a_page_is_fetched_over_six_connections() {
    let objects = vec![DataSize::from_bytes(10_000); 107];
    let scenario = MptcpScenario::new(
        phone_model(),
        parse_links(&["wifi,rate=16Mbit/s,rtt=40ms"]),
        page_workload(&objects, 6),
    );
    let (outcome, _) = MptcpSim::new(scenario, NoPolicy).run();
    assert_eq!(outcome.delivered, DataSize::from_bytes(1_070_000));
    let time = outcome.finished_at.unwrap().as_secs_f64();
    assert!((0.7..1.3).contains(&time), "18 objects in sequence, one RTT each: {time}");
}

#[test]
fn a_replaced_machine_is_informed_about_open_connections() {
    let scenario = scenario(&["wifi,rate=10Mbit/s,rtt=40ms", "lte,rate=20Mbit/s,rtt=60ms"], 40);
    let mut sim = MptcpSim::new(scenario, ScriptedMachine::new(&[(0, ScriptStep::Join(1, false))]));
    sim.run_until(Instant::from_millis(5000));
    sim.replace_machine(ScriptedMachine::new(&[(1, ScriptStep::Prio(1, true))]));
    let (outcome, script) = sim.run();
    assert!(script.input_time(|input| matches!(input, Input::Opened { adopted: true, .. })).is_some());
    assert_eq!((script.subflows.len(), outcome.invalid_commands.len()), (2, 0));
    let lte = |second: usize| outcome.samples[second].links[1].bytes();
    assert_eq!(lte(8), lte(12));
}

#[test]
fn an_mdp_schedule_uses_the_second_link_where_it_is_cheaper() {
    use crate::clairvoyant::mdp::{MdpSchedule, RateChain};
    use marline_core::energy::{PowerCurve, RadioModel};
    use marline_core::units::{EnergyPerBit, Power};

    // The first radio's power rises with its rate. From 10 s on it is fast, so the second radio is cheaper.
    let lines = ["wifi,rate=2Mbit/s,steps=10s:16Mbit/s,rtt=30ms", "lte,rate=8Mbit/s,rtt=60ms"];
    let scenario = scenario(&lines, 20);
    let radio = |base, per_bit| {
        let (base, per_bit) = (Power::from_milliwatts(base), EnergyPerBit::from_picojoules(per_bit));
        RadioModel::new(PowerCurve { base, per_bit, ..PowerCurve::default() })
    };
    let links = [0, 1].map(|at| {
        let schedule = RateSchedule::new(&scenario.links[at], &[], Duration::from_secs(20));
        let rates: Vec<_> = (0..20).map(|at| schedule.rate_at(Instant::from_millis(at * 1000))).collect();
        (RateChain::new(&rates, 8), schedule)
    });
    let schedule = MdpSchedule::new((&links[0].0, &radio(300, 200_000)), (&links[1].0, &radio(900, 0)));
    let (mut sim, second) = (MptcpSim::new(scenario, MdpPolicy::new(schedule, links, Duration::ZERO)), 1);
    sim.run_until(Instant::from_millis(9900));
    let before = sim.outcome();
    assert!(before.links[0].bytes > DataSize::from_bytes(2_000_000) && before.links[second].bytes.is_zero());
    sim.run_until(Instant::from_millis(12_000));
    let joined = sim.outcome();
    sim.run_until(Instant::from_millis(15_000));
    let after = sim.outcome();
    assert!(after.invalid_commands.is_empty(), "{:?}", after.invalid_commands);
    assert_eq!(after.links[0].bytes, joined.links[0].bytes, "it is a backup");
    assert!(after.links[second].bytes > joined.links[second].bytes + DataSize::from_bytes(2_000_000));
}
