//! Connections of a browser: kept alive for later requests, and several in parallel. The costly radio is meant for
//! large transfers, and these are none.

use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::paths::{Config, Paths};
use marline_core::units::{DataSize, Duration};
use marline_sim::mptcp_sim::{Flow, MptcpOutcome, MptcpScenario, MptcpSim, Request, link_configs, page_workload};
use marline_sim::spec::LinkSpec;

fn phone_model() -> Model {
    let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    toml::from_str::<ModelSpec>(text).expect("a model").into_model("emptcp-s3").expect("a phone").0
}

fn run(wifi: &str, workload: (Vec<Flow>, Vec<Vec<Request>>)) -> MptcpOutcome {
    let lines = [&format!("wifi,rate={wifi},rtt=40ms"), "lte,rate=10Mbit/s,rtt=60ms"];
    let links: Vec<LinkSpec> = lines.map(|line| line.parse().expect("a link")).into();
    let config = Config::new(phone_model(), link_configs(&links));
    let (outcome, _) = MptcpSim::new(MptcpScenario::new(phone_model(), links, workload), Paths::new(config)).run();
    assert!(outcome.invalid_commands.is_empty(), "{:?}", outcome.invalid_commands);
    outcome
}

#[test]
fn small_responses_after_a_large_one_wake_no_radio() {
    let first = Request { delay: Duration::ZERO, size: DataSize::from_mib(16) };
    let small = |after| Request { delay: Duration::from_millis(after), size: DataSize::from_bytes(20_000) };
    let pool: Vec<Request> =
        [first, small(30_000)].into_iter().chain(std::iter::repeat_n(small(400), 29)).collect();
    // Allowed promotions of LTE: for the large response, and for the FIN of a subflow that could not be removed
    // because Wi-Fi had not carried data yet.
    for (wifi, max_promotions) in [("15Mbit/s", 0), ("4Mbit/s", 0), ("2Mbit/s", 1), ("800kbit/s", 2)] {
        let flow = Flow { start: Duration::ZERO, initial_link: 0, pool: 0 };
        let outcome = run(wifi, (vec![flow], vec![pool.clone()]));
        let large_done_at = outcome
            .samples
            .iter()
            .position(|sample| sample.delivered >= first.size)
            .expect("the large response arrived");
        let lte = |at: usize| outcome.samples.get(at).map(|sample| sample.links[1]);
        let last = outcome.samples.len() - 1;
        assert!(
            last > large_done_at + 40 && outcome.delivered == first.size + DataSize::from_bytes(600_000),
            "{wifi}"
        );
        assert_eq!(lte(large_done_at + 20), lte(last), "{wifi}: {:?}", outcome.notes);
        assert!(
            outcome.links[1].promotions <= max_promotions,
            "{wifi}: {} {:?}",
            outcome.links[1].promotions,
            outcome.notes
        );
    }
}

#[test]
fn six_connections_of_a_page_do_not_count_as_a_large_transfer() {
    // 3.2 MB in total; all six connections have passed τ when half of it has arrived.
    let objects = vec![DataSize::from_bytes(30_000); 107];
    for wifi in ["2Mbit/s", "3Mbit/s", "6Mbit/s"] {
        let outcome = run(wifi, page_workload(&objects, 6));
        assert_eq!(outcome.links[1].promotions, 0, "{wifi}: {:?}", outcome.notes);
        assert_eq!(outcome.delivered, DataSize::from_bytes(107 * 30_000));
    }
}
