//! Tests of the simulator with a machine that requests everything at once on the first link.

use std::collections::VecDeque;

use marline_core::fetch::{Config as FetchConfig, Fetch, RequestRange, UrlId};
use marline_core::units::{Bitrate, Ratio};

use super::*;
use crate::spec::{LinkSpec, Loss};

/// Opens one connection on the first link and requests the whole file.
#[derive(Debug, Default)]
struct SingleRequestMachine {
    outputs: VecDeque<Output>,
    inputs: Vec<(Instant, Input)>,
}

impl Machine for SingleRequestMachine {
    type Input = Input;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: Input) {
        match &input {
            Input::LinkUp { link, .. } if link.0 == 0 => {
                self.outputs.push_back(Output::Connect {
                    conn: ConnId(0),
                    link: *link,
                    url: UrlId(0),
                    address: None,
                });
            }
            Input::Connected { conn, .. } => {
                let (req, range) = (ReqId(0), RequestRange::Full);
                self.outputs.push_back(Output::Request { req, conn: *conn, range, if_range: None });
            }
            Input::Head { req, head } => {
                self.outputs.push_back(Output::AcceptBody {
                    req: *req,
                    offset: 0,
                    len: head.length,
                    is_other_mirror: false,
                });
            }
            Input::End { .. } => self.outputs.push_back(Output::Done),
            _ => {}
        }
        self.inputs.push((now, input));
    }
    fn tick(&mut self, _now: Instant) {}
    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn deadline(&self) -> Option<(Instant, ())> {
        None
    }
}

const MB: u64 = 1_000_000;
const LIMIT: Duration = Duration::from_secs(600);

fn wifi(mbps: u64, rtt: u64) -> LinkSpec {
    LinkSpec::constant("wifi", Bitrate::from_mbps(mbps), Duration::from_millis(rtt))
}

fn lte(mbps: u64, rtt: u64) -> LinkSpec {
    LinkSpec::constant("lte", Bitrate::from_mbps(mbps), Duration::from_millis(rtt))
}

fn megabytes_size(megabytes: u64) -> DataSize {
    DataSize::from_bytes(megabytes * MB)
}

fn run_single(scenario: HttpScenario) -> (HttpOutcome, SingleRequestMachine) {
    HttpSim::new(scenario, SingleRequestMachine::default()).run_and_return_machine(LIMIT)
}

fn run_marline(scenario: HttpScenario) -> HttpOutcome {
    HttpSim::new(scenario, Fetch::new(FetchConfig::default())).run(LIMIT)
}

fn millis(outcome: &HttpOutcome) -> u128 {
    outcome.finished_at.expect("it ends").as_millis()
}

#[test]
fn small_files_take_as_long_as_with_curl_in_the_lab() {
    // Measured with curl, nginx and real kernels on such links; 10 to 15 ms of it are the start of the program.
    let first = [(10_000, 54), (262_144, 137), (MB, 215), (5 * MB, 630)].map(|case| (wifi(80, 20), case));
    let fourth = [(10_000, 59), (262_144, 148), (MB, 266), (5 * MB, 931)].map(|case| (wifi(50, 20), case));
    for (link, (bytes, measured)) in first.into_iter().chain(fourth) {
        let (outcome, _) = run_single(HttpScenario::new(DataSize::from_bytes(bytes), [link]));
        let sim = millis(&outcome) + 13;
        println!("{bytes}: {sim} ms, measured {measured} ms");
        assert!(sim.abs_diff(measured) * 10 <= measured, "{bytes}: {sim} ms, measured {measured} ms");
    }
}

#[test]
fn one_connection_is_as_fast_as_kernel_tcp() {
    // 100 MB with curl over one link, real kernels with CUBIC at both ends.
    let lossy = LinkSpec { loss: Loss::Independent(Ratio::from_ppm(5000)), ..wifi(20, 30) };
    let cases = [
        ("80/20", wifi(80, 20), "", 10_470),
        ("61/50", lte(61, 50), "", 13_900),
        ("50/20", wifi(50, 20), "", 16_680),
        ("300/30", wifi(300, 30), "", 3_010),
        ("30/50", lte(30, 50), "", 27_880),
        ("20/60", lte(20, 60), "", 41_730),
        ("20/30, 0.5%", lossy, "", 135_000),
        ("40/20, down from 3 s to 8 s", wifi(40, 20), "3s:wifi=down 8s:wifi=up", 29_540),
    ];
    for (name, link, events, measured) in cases {
        let events = events.split_whitespace().map(|event| event.parse().expect("an event")).collect();
        let (outcome, _) = run_single(HttpScenario { events, ..HttpScenario::new(megabytes_size(100), [link]) });
        let sim = millis(&outcome);
        println!("{name}: {sim} ms, measured {measured} ms");
        assert!(sim.abs_diff(measured) * 10 <= measured, "{name}: {sim} ms, measured {measured} ms");
    }
}

#[test]
fn tls_costs_one_more_rtt() {
    let plain = HttpScenario::new(DataSize::from_bytes(10_000), [wifi(80, 20)]);
    let tls = HttpScenario { uses_tls: true, ..plain.clone() };
    let extra_ms = millis(&run_single(tls).0) - millis(&run_single(plain).0);
    assert!((20..=21).contains(&extra_ms), "{extra_ms} ms");
}

#[test]
fn reported_bytes_add_up_to_the_file() {
    let scenario = HttpScenario::new(
        megabytes_size(3),
        [LinkSpec { loss: Loss::Independent(Ratio::from_percent(1)), ..wifi(20, 30) }],
    );
    let (outcome, machine) = run_single(scenario);
    let data = |input: &Input| if let Input::Data { len, .. } = input { *len } else { DataSize::ZERO };
    assert_eq!(machine.inputs.iter().map(|(_, input)| data(input)).sum::<DataSize>(), megabytes_size(3));
    assert_eq!(outcome.links[0].timeline.iter().copied().sum::<DataSize>(), megabytes_size(3));
    assert_eq!((outcome.covered, outcome.wasted), (megabytes_size(3), DataSize::ZERO));
    let samples = machine.inputs.iter().filter(|(_, input)| matches!(input, Input::Sample { .. })).count();
    let expected = usize::try_from(millis(&outcome) / 50).unwrap();
    assert!(samples.abs_diff(expected) <= 2, "{samples} samples, {expected} expected");
}

#[test]
fn equal_scenarios_give_equal_runs() {
    let scenario = HttpScenario::new(
        megabytes_size(3),
        [LinkSpec { loss: Loss::Independent(Ratio::from_percent(1)), ..wifi(20, 30) }],
    );
    let (first, second) = (run_single(scenario.clone()).1, run_single(scenario).1);
    assert_eq!(first.inputs, second.inputs);
}

#[test]
fn refused_truncated_and_reset_connections_are_reported() {
    for (fault, kind) in [
        (FaultKind::RefuseConnection, ConnErrorKind::Refused),
        (FaultKind::Truncate(DataSize::from_kib(100)), ConnErrorKind::Truncated),
        (FaultKind::Reset(DataSize::from_kib(100)), ConnErrorKind::Reset),
    ] {
        let mut scenario = HttpScenario::new(megabytes_size(3), [wifi(20, 30)]);
        scenario.server.faults.push(Fault::always(fault));
        let (outcome, machine) = run_single(scenario);
        assert_eq!(outcome.finished_at, None);
        let last_input = machine.inputs.last().map(|(_, input)| input.clone());
        assert_eq!(last_input, Some(Input::Closed { conn: ConnId(0), error: conn_error(kind) }));
    }
}

#[test]
fn a_stalled_response_stays_open() {
    let mut scenario = HttpScenario::new(megabytes_size(3), [wifi(20, 30)]);
    scenario.server.faults.push(Fault::always(FaultKind::Stall(DataSize::from_kib(100))));
    let (outcome, machine) = run_single(scenario);
    assert_eq!(outcome.covered, DataSize::from_kib(100));
    assert!(!machine.inputs.iter().any(|(_, input)| matches!(input, Input::Closed { .. })));
}

#[test]
fn the_per_connection_rate_of_the_server_is_kept() {
    let mut scenario = HttpScenario::new(megabytes_size(2), [wifi(80, 20)]);
    scenario.server.per_connection_rate = Some(Bitrate::from_mbps(8));
    assert!((1900..2100).contains(&millis(&run_single(scenario).0)));
}

#[test]
fn marline_aggregates_two_links() {
    let outcome = run_marline(HttpScenario::new(megabytes_size(100), [wifi(80, 20), lte(61, 50)]));
    assert!(outcome.is_complete(), "{:?} {:?}", outcome.failed, outcome.notices);
    println!("{} ms, delta {:?}, wasted {:?}", millis(&outcome), outcome.link_delta, outcome.wasted);
    assert!(millis(&outcome) < 7000);
}
