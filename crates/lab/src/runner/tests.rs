//! Every carried scenario, small, in virtual time: they parse, they end, and the file is whole.

use marline_sim::scenario::Protocol;
use marline_sim::spec::LinkSpec;

use super::*;
use crate::scenarios::{self, CARRIED};

/// What a scaled case downloads. Not less: the thesis's Algorithm 2 has no lower limit, and asks for a few bytes at a
/// time where the file is small and its constant bandwidth large (§4.3.5 gives that as the reason for Algorithm 3).
const SMALL: f64 = 10_000_000.0;

#[test]
fn every_carried_scenario_runs_in_virtual_time() {
    let traces = scenarios::trace_directories(&[]);
    for (name, _) in CARRIED {
        let scenario = scenarios::find(name).unwrap();
        for case in &scenario.cases {
            let mut case = case.scaled((SMALL / case.size.bytes() as f64).min(1.0));
            if let Err(error) = case.load(&traces) {
                eprintln!("skipped: {name} {}: {error}; set MARLINE_TRACES", case.name);
                continue;
            }
            for client in scenario.clients.iter().filter(|client| client.is_ours()) {
                let outcome = virtual_time::outcome(&case, client, 0, scenario.protocol);
                assert!(outcome.is_good(), "{name} {} {client}: {:?}", case.name, outcome.problem);
                let carried: u64 = outcome.links.iter().map(|link| link.bytes).sum();
                assert!(carried >= outcome.bytes, "{name} {}: {carried} bytes", case.name);
            }
        }
    }
}

#[test]
fn a_plan_takes_turns_and_leaves_out_what_is_done() {
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"100KB\"\nruns = 2\nclients = [\"marline\", \"naive\", \"curl\"]\n\
                links = [\"wifi,rate=80Mbit/s,rtt=20ms\", \"lte,rate=61Mbit/s,rtt=50ms\"]\n";
    let scenario = Scenario::parse(text, std::path::Path::new("t")).unwrap();
    let plan = Plan { scenario: &scenario, runs: 2, by: By::Sim, traces: Vec::new(), samples: false, show: false };
    let mut order = Vec::new();
    let done = |_: &str, client: &Client, run| run == 1 && *client == Client::OURS;
    let results = plan.run(done, |outcome| order.push((outcome.run, outcome.client.clone()))).unwrap();
    let expected = [(0, "marline"), (0, "naive"), (1, "naive")];
    assert_eq!(order, expected.map(|(run, client)| (run, client.to_string())));
    assert_eq!(results.skipped.len(), 1, "curl is not simulated");
    assert_eq!(results.outcomes.len(), 3);
}

#[test]
fn a_missing_trace_skips_its_case_and_says_where_to_look() {
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"100KB\"\nclients = [\"marline\"]\n\
                links = [\"wifi,trace=no-such-trace.down\"]\n";
    let scenario = Scenario::parse(text, std::path::Path::new("t")).unwrap();
    let plan = Plan { scenario: &scenario, runs: 1, by: By::Sim, traces: Vec::new(), samples: false, show: false };
    let results = plan.run(|_, _, _| false, |_| ()).unwrap();
    assert!(results.outcomes.is_empty());
    assert!(results.skipped[0].1.contains("--traces"), "{:?}", results.skipped);
}

#[test]
fn a_client_of_a_dead_link_has_a_limit_too() {
    let link = |name: &str| LinkSpec::constant(name, marline_core::units::Bitrate::from_mbps(8), Duration::ZERO);
    let case = Case {
        name: "x".into(),
        links: vec![link("wifi"), link("lte")],
        events: vec!["0s:wifi=down".parse().unwrap()],
        size: DataSize::from_bytes(1_000_000),
        floor: None,
        peer: None,
        sigma: Vec::new(),
    };
    let alone = "single:wifi".parse().unwrap();
    let longest = limit(&case, &alone);
    assert!(longest > Duration::from_secs(60) && longest < Duration::from_secs(70), "{longest:?}");
    let outcome = virtual_time::outcome(&case, &alone, 0, Protocol::Http);
    assert!(outcome.problem.is_some() && outcome.links[0].span_s.is_none());
}
