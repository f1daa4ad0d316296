//! Runs every built-in scenario, scaled down, in virtual time: they parse, they end, and the file is complete.

use marline_sim::scenario::Protocol;
use marline_sim::spec::LinkSpec;

use super::*;
use crate::scenarios::{self, CARRIED};

/// Size of a scaled case in bytes. Not smaller: Algorithm 2 of the thesis has no lower limit and requests a few
/// bytes at a time if the file is small and its constant bandwidth is large (section 4.3.5 gives that as the reason
/// for Algorithm 3).
const SMALL: f64 = 10_000_000.0;

#[test]
fn every_built_in_scenario_runs_in_virtual_time() {
    let traces = scenarios::trace_directories(&[]);
    for (name, _) in CARRIED {
        let scenario = scenarios::load(name).unwrap();
        for case in &scenario.cases {
            let mut case = case.scaled((SMALL / case.size.bytes() as f64).min(1.0));
            if let Err(error) = case.load(&traces) {
                eprintln!("skipped: {name} {}: {error}; set MARLINE_TRACES", case.name);
                continue;
            }
            for client in scenario.clients.iter().filter(|client| client.is_marline()) {
                let outcome = virtual_time::simulate_download(&case, client, 0, scenario.protocol);
                assert!(outcome.is_complete(), "{name} {} {client}: {:?}", case.name, outcome.problem);
                let carried: u64 = outcome.links.iter().map(|link| link.ip_bytes).sum();
                assert!(carried >= outcome.requested_bytes, "{name} {}: {carried} bytes", case.name);
            }
        }
    }
}

#[test]
fn clients_take_turns_and_existing_outcomes_are_skipped() {
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"100KB\"\nruns = 2\nclients = [\"marline\", \"naive\", \"curl\"]\n\
                links = [\"wifi,rate=80Mbit/s,rtt=20ms\", \"lte,rate=61Mbit/s,rtt=50ms\"]\n";
    let scenario = Scenario::parse(text, std::path::Path::new("t")).unwrap();
    let plan = RunPlan {
        scenario: &scenario,
        runs: 2,
        backend: Backend::Sim,
        traces: Vec::new(),
        samples_process: false,
        shows_progress: false,
    };
    let mut command = Vec::new();
    let done = |_: &str, client: &Client, run| run == 1 && *client == Client::MARLINE;
    let results = plan.run(done, |outcome| command.push((outcome.run, outcome.client.clone()))).unwrap();
    let expected = [(0, "marline"), (0, "naive"), (1, "naive")];
    assert_eq!(command, expected.map(|(run, client)| (run, client.to_string())));
    assert_eq!(results.skipped.len(), 1, "curl is not simulated");
    assert_eq!(results.outcomes.len(), 3);
}

#[test]
fn a_missing_trace_skips_its_case_and_names_the_searched_directories() {
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"100KB\"\nclients = [\"marline\"]\n\
                links = [\"wifi,trace=no-such-trace.down\"]\n";
    let scenario = Scenario::parse(text, std::path::Path::new("t")).unwrap();
    let plan = RunPlan {
        scenario: &scenario,
        runs: 1,
        backend: Backend::Sim,
        traces: Vec::new(),
        samples_process: false,
        shows_progress: false,
    };
    let results = plan.run(|_, _, _| false, |_| ()).unwrap();
    assert!(results.outcomes.is_empty());
    assert!(results.skipped[0].1.contains("--traces"), "{:?}", results.skipped);
}

#[test]
fn a_client_of_a_failed_link_has_a_time_limit() {
    let link = |name: &str| LinkSpec::constant(name, marline_core::units::Bitrate::from_mbps(8), Duration::ZERO);
    let case = Case {
        name: "x".into(),
        links: vec![link("wifi"), link("lte")],
        events: vec!["0s:wifi=down".parse().unwrap()],
        size: DataSize::from_bytes(1_000_000),
        threshold: None,
        baseline: None,
        sigma: Vec::new(),
    };
    let alone = "single:wifi".parse().unwrap();
    let longest = time_limit(&case, &alone);
    assert!(longest > Duration::from_secs(60) && longest < Duration::from_secs(70), "{longest:?}");
    let outcome = virtual_time::simulate_download(&case, &alone, 0, Protocol::Http);
    assert!(outcome.problem.is_some() && outcome.links[0].span_s.is_none());
}

#[test]
fn other_clients_download_in_real_time_and_the_file_is_verified() {
    let installed = |program| crate::server::find_program(program).is_some();
    if crate::acquire_privileges().is_err() || !["curl", "aria2c", "nginx"].into_iter().all(installed) {
        eprintln!("skipped: needs the right to make namespaces and TUN devices, curl, aria2 and nginx");
        return;
    }
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"2MB\"\nclients = [\"curl:lte\", \"aria2-s2\"]\n\
                links = [\"wifi,rate=30Mbit/s,rtt=10ms\", \"lte,rate=20Mbit/s,rtt=20ms\"]\n";
    for protocol in ["http", "https"] {
        let text = format!("{text}protocol = \"{protocol}\"\n");
        let scenario = Scenario::parse(&text, std::path::Path::new("t")).unwrap();
        let plan = RunPlan {
            scenario: &scenario,
            runs: 1,
            backend: Backend::Lab,
            traces: Vec::new(),
            samples_process: true,
            shows_progress: false,
        };
        let results = match plan.run(|_, _, _| false, |_| ()) {
            Err(LabError::Tun { source, .. }) => {
                eprintln!("skipped: no TUN device: {source}");
                return;
            }
            results => results.unwrap(),
        };
        let [curl, aria2] = results.outcomes.as_slice() else { panic!("{results:?}") };
        assert_eq!((&curl.problem, &aria2.problem), (&None, &None));
        // curl may use one link only: its bytes are there, the other link is idle.
        assert!(curl.links[1].ip_bytes > 2_000_000 && curl.links[0].ip_bytes < 100_000, "{:?}", curl.links);
        assert!(aria2.links.iter().all(|link| link.ip_bytes > 100_000), "{:?}", aria2.links);
        assert!(curl.seconds >= curl.ideal_s.unwrap() && curl.cpu_s.is_some() && curl.peak_rss_bytes.is_some());
    }
}

#[test]
fn a_wrong_file_and_a_failing_program_are_reported_as_problems() {
    if crate::acquire_privileges().is_err()
        || ["curl", "nginx"].iter().any(|p| crate::server::find_program(p).is_none())
    {
        eprintln!("skipped: needs the right to make namespaces and TUN devices, curl and nginx");
        return;
    }
    let text = "name = \"t\"\ndescription = \"\"\nsize = \"100KB\"\nclients = [\"curl\"]\n\
                links = [\"wifi,rate=30Mbit/s,rtt=10ms\"]\n";
    let scenario = Scenario::parse(text, std::path::Path::new("t")).unwrap();
    let payload = Payload::new(DataSize::from_bytes(100_000)).unwrap();
    let curl = "curl".parse().unwrap();
    let download = |case, program| real::DownloadSpec {
        case,
        client: &curl,
        run: 0,
        payload: &payload,
        uses_tls: true,
        program,
        samples_process: false,
        shows_progress: false,
    };
    // The server serves another file under the same name than the one that is expected.
    let other = Payload::new(DataSize::from_bytes(100_001)).unwrap();
    std::fs::copy(other.path(), payload.path()).unwrap();
    let outcome = match real::run_download(&download(&scenario.cases[0], std::path::Path::new("none"))) {
        Err(LabError::Tun { source, .. }) => {
            eprintln!("skipped: no TUN device: {source}");
            return;
        }
        outcome => outcome.unwrap(),
    };
    assert_eq!(outcome.problem.as_deref(), Some("wrong SHA-256"));
}
