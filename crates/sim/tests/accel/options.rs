//! Which tuned values of the accelerator have an effect: each one is divided and multiplied by ten, and some random
//! histories are played with it, and the scenarios in which its mechanism acts (`experiments`).
//!
//! A value that changes nothing in any of them, in either direction, is a candidate for removal, together with the code
//! that uses it. `OPTION=ack_offload,secondary` plays only the options whose path contains one of these texts,
//! `HISTORY_CASES=n` more histories:
//!
//! ```text
//! cargo test --release -p marline-sim --test accel options -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;

use marline_core::accel::Options;
use marline_core::units::Instant;
use marline_sim::accel::random::generate;
use marline_sim::accel::{Scenario, World};
use serde_json::Value;

use crate::cases::case_count;
use crate::experiments::scenarios_of;

/// What happens in a scenario with these options.
fn outcome(scenario: &Scenario, options: &'static Options) -> String {
    let mut scenario = scenario.clone();
    scenario.config.iter_mut().for_each(|config| config.options = options);
    let (limit, mut world) = (scenario.limit, World::new(scenario));
    world.run_until(Instant::ZERO + limit);
    format!("{:?}", world.outcome())
}

/// The paths of all numbers below `value`; a duration, which has two, counts as one.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    match value.as_object() {
        Some(fields) if !fields.contains_key("nanos") => {
            fields.iter().for_each(|(name, value)| paths(value, &format!("{path}/{name}"), found));
        }
        _ => found.push(path.to_owned()),
    }
}

/// The options with one of them multiplied by `factor`.
fn scaled(path: &str, factor: f64) -> &'static Options {
    let mut options = serde_json::to_value(Options::DEFAULT).expect("options are plain values");
    let value = options.pointer_mut(path).expect("a path of the options");
    let scale = |number: &Value| (number.as_u64().expect("a number") as f64 * factor).round().max(1.0) as u64;
    *value = match value.as_object() {
        Some(duration) => {
            let number = |name: &str| duration.get(name).and_then(Value::as_u64).unwrap_or(0);
            let nanos = ((number("secs") * 1_000_000_000 + number("nanos")) as f64 * factor) as u64;
            serde_json::json!({ "secs": nanos / 1_000_000_000, "nanos": nanos % 1_000_000_000 })
        }
        None => scale(value).into(),
    };
    Box::leak(Box::new(serde_json::from_value(options).expect("the same types")))
}

#[test]
#[ignore = "minutes: cargo test --release -p marline-sim --test accel options -- --ignored --nocapture"]
fn each_option_has_an_effect() {
    let mut all = Vec::new();
    paths(&serde_json::to_value(Options::DEFAULT).expect("options are plain values"), "", &mut all);
    let wanted = std::env::var("OPTION").unwrap_or_default();
    let random = Cases::new((0..u64::from(case_count(60))).map(generate).collect());
    let (mut without, mut of_mechanism) = (Vec::new(), BTreeMap::<&str, Cases>::new());
    for path in all.iter().filter(|path| wanted.split(',').any(|wanted| path.contains(wanted))) {
        let mechanism = path.split('/').nth(1).unwrap_or_default();
        let own = of_mechanism.entry(mechanism).or_insert_with(|| Cases::new(scenarios_of(mechanism)));
        let options = [0.1, 10.0].map(|factor| scaled(path, factor));
        let changed = own.first_changed(options).map(|at| format!("scenario {at}"));
        match changed.or_else(|| Some(format!("random history {}", random.first_changed(options)?))) {
            Some(changed) => println!("{path:44} changes {changed}"),
            None => {
                println!("{path:44} changes nothing");
                without.push(path.as_str());
            }
        }
    }
    println!("{} of {} without effect: {without:?}", without.len(), all.len());
}

/// Scenarios, each with its outcome at the usual options.
struct Cases(Vec<(Scenario, String)>);

impl Cases {
    fn new(scenarios: Vec<Scenario>) -> Self {
        let usual = |scenario| {
            let outcome = outcome(&scenario, &Options::DEFAULT);
            (scenario, outcome)
        };
        Self(scenarios.into_iter().map(usual).collect())
    }

    /// The first scenario that ends otherwise with one of these options; two are played at a time.
    #[allow(
        clippy::disallowed_methods,
        reason = "each scenario has a world of its own, and results are put in order"
    )]
    fn first_changed(&self, options: [&'static Options; 2]) -> Option<usize> {
        self.0.iter().position(|(scenario, usual)| {
            std::thread::scope(|scope| {
                let workers = options.map(|options| scope.spawn(|| outcome(scenario, options) != *usual));
                workers.map(|worker| worker.join().expect("a worker")).contains(&true)
            })
        })
    }
}
