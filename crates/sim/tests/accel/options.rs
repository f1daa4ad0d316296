//! Which tuned values of the accelerator have an effect: each one is divided and multiplied by ten, and some random
//! histories are played with it.
//!
//! A value that changes nothing in any history, in either direction, is a candidate for removal, together with the code
//! that uses it. `OPTION=ack_offload` plays only the options whose path contains that text, `HISTORY_CASES=n` more
//! histories:
//!
//! ```text
//! cargo test --release -p marline-sim --test accel options -- --ignored --nocapture
//! ```

use marline_core::accel::Options;
use marline_sim::accel::World;
use marline_sim::accel::random::generate;
use serde_json::Value;

use crate::cases::case_count;

/// What happens in the history of a seed with these options.
fn outcome(seed: u64, options: &'static Options) -> String {
    let mut scenario = generate(seed);
    scenario.config.iter_mut().for_each(|config| config.options = options);
    format!("{:?}", World::new(scenario).run())
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
    let seeds = 0..u64::from(case_count(60));
    let usual: Vec<String> = seeds.clone().map(|seed| outcome(seed, &Options::DEFAULT)).collect();
    let mut without = Vec::new();
    for path in all.iter().filter(|path| path.contains(&wanted)) {
        let [less, more] = [0.1, 10.0].map(|factor| {
            let options = scaled(path, factor);
            seeds.clone().zip(&usual).filter(|(seed, usual)| outcome(*seed, options) != **usual).count()
        });
        println!("{path:44} {less:4} {more:4} of {} histories change", usual.len());
        if less + more == 0 {
            without.push(path.as_str());
        }
    }
    println!("without effect: {without:?}");
}
