//! Survey of policies on random links and sizes: are the decisions of `marline` good where no rule was designed for
//! them?
//!
//! `cargo test -p marline-sim --test paths survey:: -- --ignored --nocapture` prints the table; `SURVEY_DRAWS=n` sets
//! the number of draws per kind.
//!
//! 1. The size (256 KB to 300 MB) and both rates (Wi-Fi 0.5 to 30, LTE 2 to 40 Mbit/s) are log-uniform. Both RTTs (20 to 150 ms) are
//!    uniform. In draws of the second kind Wi-Fi alternates between two random rates, after times with a mean of 21 s.
//! 2. All policies get the same draws. Compared are energy (including tails) and energy times time, as geometric
//!    means of the ratios, and the worst single ratio.

use marline_core::energy::{BUILT_IN, Model, ModelSpec};
use marline_core::paths::{Config, Paths, Policy};
use marline_core::units::{DataSize, Duration};
use marline_sim::mptcp_sim::{MptcpScenario, MptcpSim, NoPolicy, download_workload, link_configs};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::LinkSpec;

/// One random case.
#[derive(Debug)]
struct SurveyDraw {
    bytes: u64,
    wifi: String,
    lte: String,
}

/// Uniform between 0 and 1.
fn uniform(rng: &mut RandomStream) -> f64 {
    (rng.draw() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Log-uniform between `min` and `max`.
fn logarithmic(rng: &mut RandomStream, min: f64, max: f64) -> f64 {
    min * (max / min).powf(uniform(rng))
}

fn draw(seed: u64, is_changing: bool) -> SurveyDraw {
    let mut rng = RandomStream::new(seed, "survey", is_changing.into(), Purpose::Other);
    let bytes = logarithmic(&mut rng, 256e3, 300e6) as u64;
    let mut wifi = || format!("{:.0}kbit/s", logarithmic(&mut rng, 500.0, 30_000.0));
    let rates = [wifi(), wifi()];
    let lte = logarithmic(&mut rng, 2000.0, 40_000.0);
    let rtt = [(); 2].map(|()| 20.0 + 130.0 * uniform(&mut rng));
    let mut steps = Vec::new();
    let mut at = 0.0;
    while is_changing && at < 2000.0 {
        at += 1.0 - 20.0 * (1.0 - uniform(&mut rng)).ln();
        steps.push(format!("{:.0}ms:{}", at * 1e3, rates[(steps.len() + 1) % 2]));
    }
    let steps = if steps.is_empty() { String::new() } else { format!(",steps={}", steps.join("+")) };
    SurveyDraw {
        bytes,
        wifi: format!("wifi,rate={}{steps},rtt={:.0}ms,queue=60kB", rates[0], rtt[0]),
        lte: format!("lte,rate={lte:.0}kbit/s,rtt={:.0}ms,queue=100kB", rtt[1]),
    }
}

fn phone_model() -> Model {
    let (_, text) = BUILT_IN.into_iter().find(|(name, _)| *name == "emptcp-s3").expect("the built-in model exists");
    toml::from_str::<ModelSpec>(text).expect("a model").into_model("emptcp-s3").expect("a phone").0
}

/// Seconds and joules; without a policy, plain TCP over Wi-Fi.
fn run_draw(draw: &SurveyDraw, policy: Option<Policy>, model: &Model) -> [f64; 2] {
    let lines = if policy.is_some() { vec![&draw.wifi, &draw.lte] } else { vec![&draw.wifi] };
    let links: Vec<LinkSpec> = lines.into_iter().map(|line| line.parse().expect("a link")).collect();
    let mut config = Config::new(model.clone(), link_configs(&links));
    let mut scenario =
        MptcpScenario::new(model.clone(), links, download_workload(DataSize::from_bytes(draw.bytes)));
    scenario.time_limit = Duration::from_secs(20_000);
    scenario.is_mptcp = policy.is_some();
    // The paper's server keeps its windows (§3.6).
    scenario.server.keeps_cwnd = policy == Some(Policy::Emptcp);
    let outcome = match policy {
        None => MptcpSim::new(scenario, NoPolicy).run().0,
        Some(policy) => {
            config.policy = policy;
            MptcpSim::new(scenario, Paths::new(config)).run().0
        }
    };
    assert!(outcome.invalid_commands.is_empty(), "{:?}", outcome.invalid_commands);
    let time = outcome.finished_at.unwrap_or_else(|| panic!("{policy:?} never ends: {draw:?}"));
    [time.as_secs_f64(), outcome.energy().as_joules_f64()]
}

const COMPARED_POLICIES: [(&str, Option<Policy>); 3] =
    [("emptcp", Some(Policy::Emptcp)), ("mptcp", Some(Policy::Mptcp)), ("TCP over Wi-Fi", None)];

/// For each compared policy and each draw, the ratios of energy and of energy times time.
fn ratios(draws: &[SurveyDraw]) -> Vec<Vec<[f64; 2]>> {
    let model = phone_model();
    let draw_ratios = |draw: &SurveyDraw| {
        let [time, energy] = run_draw(draw, Some(Policy::Marline), &model);
        COMPARED_POLICIES.map(|(_, policy)| {
            let [their_time, their_energy] = run_draw(draw, policy, &model);
            [energy / their_energy, energy * time / (their_energy * their_time)]
        })
    };
    let rows: Vec<_> = draws.iter().map(draw_ratios).collect();
    (0..COMPARED_POLICIES.len()).map(|other| rows.iter().map(|row| row[other]).collect()).collect()
}

fn geometric_mean(ratios: &[[f64; 2]], column: usize) -> f64 {
    (ratios.iter().map(|ratio| ratio[column].ln()).sum::<f64>() / ratios.len() as f64).exp()
}

#[test]
#[ignore = "minutes: cargo test -p marline-sim --test paths survey:: -- --ignored --nocapture"]
fn survey() {
    let count = std::env::var("SURVEY_DRAWS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    println!("{:10}{:16}{:>8}{:>8}{:>8}{:>8}", "Wi-Fi", "marline over", "J", "worst", "J s", "worst");
    for (name, changing) in [("steady", false), ("changing", true)] {
        let draws: Vec<SurveyDraw> = (0..count).map(|seed| draw(seed, changing)).collect();
        for ((other, _), ratios) in COMPARED_POLICIES.iter().zip(ratios(&draws)) {
            let worst = |column: usize| ratios.iter().map(|ratio| ratio[column]).fold(0.0, f64::max);
            let [energy, product] = [0, 1].map(|index| geometric_mean(&ratios, index));
            println!("{name:10}{other:16}{energy:8.3}{:8.2}{product:8.3}{:8.2}", worst(0), worst(1));
        }
    }
}

#[test]
fn marline_needs_less_energy_than_published_policies_on_random_links() {
    for changing in [false, true] {
        let draws: Vec<SurveyDraw> = (1000..1012).map(|seed| draw(seed, changing)).collect();
        let all = ratios(&draws);
        let [emptcp, mptcp] = [&all[0], &all[1]].map(|ratios| [0, 1].map(|column| geometric_mean(ratios, column)));
        assert!(emptcp[0] < 1.0 && emptcp[1] < 1.0, "eMPTCP, changing Wi-Fi: {changing}: {emptcp:?}");
        assert!(mptcp[0] < 0.8, "MPTCP, changing Wi-Fi: {changing}: {mptcp:?}");
    }
}
