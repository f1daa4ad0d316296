//! Goodput with the accelerator in simulated time, as tables against which changes are reviewed.
//!
//! Unless a table names others, the primary link has 20 Mbit/s and a queue of 100 ms, the secondary one 400 kbit/s up and 900 kbit/s down
//! at 150 ms. The tables `accel*.txt` in `tables` are compared with the results; `UPDATE_TABLES=1` writes them again. Exact figures are
//! printed (`--nocapture`).
//!
//! 1. Goodput is what the receiving application reads, without the first 6 s (4 s where ACKs are offloaded; nothing is left out for early
//!    ACKs and for competing flows).
//! 2. The median of three seeds is shown, to 0.1 Mbit/s; for early ACKs one seed, for competing flows the mean of 16.
//! 3. Kernel: Linux 6.18 at both ends in namespaces with such links, one run each, against which the model of plain TCP
//!    is reviewed. It decides nothing here.

use std::fmt::Write;

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::units::{Duration, Instant};
use marline_sim::accel::{FlowScript, Outage, Scenario, World};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::LinkSpec;
use marline_sim::tcp::Algorithm;

use crate::saved_tables::compare_with_saved;

const WARM_UP: Duration = Duration::from_secs(6);
const SEEDS: std::ops::Range<u64> = 1..4;

/// A case: sender, RTT in milliseconds, loss, and outages of about this many seconds, one in every 20 s.
#[derive(Clone, Copy)]
struct Case {
    algorithm: Algorithm,
    rtt: u64,
    loss: &'static str,
    outage: u64,
    /// Goodput of the kernel without an accelerator, Mbit/s.
    kernel: Option<f64>,
}

const fn case(algorithm: Algorithm, rtt: u64, loss: &'static str, outage: u64, kernel: f64) -> Case {
    Case { algorithm, rtt, loss, outage, kernel: Some(kernel) }
}

use Algorithm::{Cubic, Reno};

const CASES: &[Case] = &[
    case(Cubic, 50, "0%", 0, 19.3),
    case(Cubic, 50, "0.1%", 0, 9.24),
    case(Cubic, 50, "1%", 0, 2.75),
    case(Cubic, 50, "3%", 0, 1.08),
    case(Cubic, 200, "0%", 0, 19.2),
    case(Cubic, 200, "0.1%", 0, 4.42),
    case(Cubic, 200, "1%", 0, 0.83),
    case(Cubic, 200, "3%", 0, 0.31),
    Case { kernel: None, ..case(Reno, 50, "0%", 0, 0.0) },
    case(Reno, 50, "0.1%", 0, 9.54),
    case(Reno, 50, "1%", 0, 2.85),
    case(Reno, 50, "3%", 0, 1.31),
    case(Reno, 200, "0.1%", 0, 2.32),
    case(Reno, 200, "1%", 0, 0.66),
    case(Reno, 200, "3%", 0, 0.28),
    case(Cubic, 50, "0%", 2, 16.3),
    case(Cubic, 50, "0%", 10, 6.91),
    case(Cubic, 200, "0%", 2, 14.82),
    case(Cubic, 200, "0%", 10, 4.99),
    case(Reno, 50, "0%", 2, 16.38),
    case(Cubic, 50, "1%", 2, 2.04),
];

fn scenario(case: &Case, seed: u64, is_http: bool) -> Scenario {
    let line = format!("wifi,rate=20Mbit/s,rtt={}ms,queue=100ms,loss={}", case.rtt, case.loss);
    let primary: LinkSpec = line.parse().expect("a link");
    let mut plan = FlowScript::download(400_000_000);
    plan.algorithm = case.algorithm;
    plan.is_http = is_http;
    let mut scenario = Scenario::new(primary, plan);
    scenario.seed = seed;
    scenario.secondary = Some("lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms".parse().expect("a link"));
    if case.outage > 0 {
        // The start varies by 5 s and the length by a quarter: how long a sender idles afterwards depends on when its timeouts expire.
        let mut chance = RandomStream::new(seed, "blackouts", 0, Purpose::Other);
        for n in 0..3 {
            let at = Duration::from_millis(10_000 + n * 20_000 + chance.below(5000));
            let duration = Duration::from_millis(case.outage * (750 + chance.below(500)));
            scenario.outages.push(Outage { link: Scenario::PRIMARY, at, duration, is_carrier_lost: false });
        }
    }
    scenario
}

/// Goodput after the warm-up, Mbit/s.
fn goodput(scenario: Scenario, warm: Duration, duration: Duration) -> f64 {
    let mut world = World::new(scenario);
    world.run_until(Instant::ZERO + warm);
    let before = world.read(0);
    world.run_until(Instant::ZERO + warm + duration);
    let defects = world.outcome().defects;
    assert!(defects.is_empty(), "{defects:?}");
    (world.read(0) - before) as f64 * 8.0 / duration.as_secs_f64() / 1e6
}

/// The median goodput with these mechanisms; none: plain TCP.
fn median(case: &Case, mechanisms: Option<&[Mechanism]>, is_http: bool) -> f64 {
    let duration = Duration::from_secs(if case.outage > 0 { 60 } else { 20 });
    let mut all: Vec<f64> = SEEDS
        .map(|seed| {
            let mut scenario = scenario(case, seed, is_http);
            scenario.config = mechanisms.map(|enabled| Config {
                mechanisms: Mechanisms::of(enabled),
                ..Config::new(Scenario::PRIMARY, Some(Scenario::SECONDARY))
            });
            goodput(scenario, WARM_UP, duration)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn goodput_is_as_reviewed() {
    let tls = [Mechanism::AckOffload, Mechanism::EifelUndo, Mechanism::WithheldAck, Mechanism::OutageRevert];
    let http = [&tls[..], &[Mechanism::EarlyAck]].concat();
    let mut table =
        String::from("goodput in Mbit/s over 20 Mbit/s (loss in both directions, outages every 20 s)\n\n");
    writeln!(table, "{:32}{:>8}{:>8}{:>8}{:>8}{:>8}", "case", "kernel", "plain", "TLS", "gain", "HTTP")
        .expect("text");
    for case in CASES {
        let plain = median(case, None, false);
        let with_tls = median(case, Some(&tls), false);
        let read = median(case, Some(&http), true);
        let outage = if case.outage > 0 { format!(" {:>2} s down", case.outage) } else { String::new() };
        let name = format!(
            "{} {:>3} ms {:>4}{outage}",
            format!("{:?}", case.algorithm).to_lowercase(),
            case.rtt,
            case.loss
        );
        let kernel = case.kernel.map_or(String::from("-"), |kernel| format!("{kernel:.1}"));
        println!(
            "{name:30} kernel {kernel:>6}, plain {plain:.3}, TLS {with_tls:.3}, {:.2} times, HTTP {read:.3}",
            with_tls / plain
        );
        writeln!(table, "{name:32}{kernel:>8}{plain:8.1}{with_tls:8.1}{:8.1}{read:8.1}", with_tls / plain)
            .expect("text");
    }
    compare_with_saved("accel.txt", &table);
}

/// Uploads (Super-aggregation §3.5): round-trip time, loss, seconds of an outage every 20 s.
const UPLOADS: &[(u64, &str, u64)] = &[(50, "0%", 0), (50, "1%", 0), (200, "1%", 0), (50, "0%", 10)];

/// What the server has read after the warm-up, Mbit/s; the median of three seeds.
fn uploaded(case: &Case, mechanisms: Option<&[Mechanism]>) -> f64 {
    let duration = Duration::from_secs(if case.outage > 0 { 60 } else { 20 });
    let mut all: Vec<f64> = SEEDS
        .map(|seed| {
            let mut scenario = scenario(case, seed, false);
            scenario.flows = scenario.flows.into_iter().map(FlowScript::reversed).collect();
            scenario.config = mechanisms.map(|enabled| Config {
                mechanisms: Mechanisms::of(enabled),
                ..Config::new(Scenario::PRIMARY, None)
            });
            let mut world = World::new(scenario);
            world.run_until(Instant::ZERO + WARM_UP);
            let before = world.server_read(0);
            world.run_until(Instant::ZERO + WARM_UP + duration);
            let defects = world.outcome().defects;
            assert!(defects.is_empty(), "{defects:?}");
            (world.server_read(0) - before) as f64 * 8.0 / duration.as_secs_f64() / 1e6
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn upload_goodput_is_as_reviewed() {
    let mut table = String::from(
        "goodput of uploads in Mbit/s over 20 Mbit/s (loss in both directions, outages every 20 s)\n\n",
    );
    writeln!(table, "{:32}{:>8}{:>8}{:>8}", "case", "plain", "ours", "gain").expect("text");
    for (rtt, loss, outage) in UPLOADS.iter().copied() {
        let case = Case { algorithm: Cubic, rtt, loss, outage, kernel: None };
        let plain = uploaded(&case, None);
        let accel = uploaded(&case, Some(&[Mechanism::EifelUndo, Mechanism::WithheldAck, Mechanism::OutageRevert]));
        let outage = if outage > 0 { format!(" {outage:>2} s down") } else { String::new() };
        let name = format!("cubic {rtt:>3} ms {loss:>4}{outage}");
        println!("{name:30} plain {plain:.3}, ours {accel:.3}, {:.2} times", accel / plain);
        writeln!(table, "{name:32}{plain:8.1}{accel:8.1}{:8.1}", accel / plain).expect("text");
    }
    compare_with_saved("accel-upload.txt", &table);
}

#[test]
fn goodput_with_outages_is_as_reviewed() {
    let variants: [(&str, Option<&[Mechanism]>); 5] = [
        ("plain", None),
        ("freeze", Some(&[Mechanism::ZeroWindowFreeze])),
        ("in-flight", Some(&[Mechanism::FreezeInFlight])),
        ("withheld", Some(&[Mechanism::WithheldAck])),
        ("revert", Some(&[Mechanism::OutageRevert])),
    ];
    let mut table = String::from("goodput in Mbit/s over 20 Mbit/s, plain HTTP, outages every 20 s\n\n");
    let names: String = variants.iter().map(|(name, _)| format!("{name:>10}")).collect();
    writeln!(table, "{:24}{names}", "case").expect("text");
    for (rtt, outage) in [(50, 2), (50, 10), (200, 2), (200, 10)] {
        let case = Case { kernel: None, ..case(Cubic, rtt, "0%", outage, 0.0) };
        let figures: Vec<f64> = variants.iter().map(|(_, enabled)| median(&case, *enabled, true)).collect();
        let name = format!("cubic {rtt:>3} ms, {outage:>2} s down");
        println!("{name}: {figures:.3?}");
        let figures: String = figures.iter().map(|figure| format!("{figure:10.1}")).collect();
        writeln!(table, "{name:24}{figures}").expect("text");
    }
    compare_with_saved("accel-outage.txt", &table);
}

/// ACKs that share the air with the data: sender, round-trip time, cell, and upstream rate of the secondary link in
/// kbit/s. The last two links are not half-duplex: offloaded ACKs gain nothing there.
const CELLS: &[(Algorithm, u32, &str, u32)] = &[
    (Cubic, 50, "medium=11g-mixed", 400),
    (Cubic, 50, "medium=11g-mixed", 100),
    (Cubic, 50, "medium=11g", 400),
    (Cubic, 50, "medium=11g", 100),
    (Cubic, 200, "medium=11g-mixed", 400),
    (Reno, 50, "medium=11g-mixed", 400),
    (Reno, 200, "medium=11g-mixed", 400),
    (Cubic, 50, "rate=20Mbit/s", 400),
    (Cubic, 50, "rate=20Mbit/s", 50),
];

#[test]
fn goodput_with_ack_offload_is_as_reviewed() {
    let mut table = String::from("goodput in Mbit/s, a queue of 100 ms; 20 s after 4 s\n\n");
    writeln!(table, "{:40}{:>8}{:>8}{:>8}", "case", "plain", "ours", "gain").expect("text");
    for (algorithm, rtt, cell, up) in CELLS {
        let primary: LinkSpec = format!("wifi,{cell},rtt={rtt}ms,queue=100ms").parse().expect("a link");
        let run = |config: Option<Config>| {
            let mut all: Vec<f64> = SEEDS
                .map(|seed| {
                    let plan = FlowScript { algorithm: *algorithm, ..FlowScript::download(400_000_000) };
                    let mut scenario = Scenario::new(primary.clone(), plan);
                    let secondary = format!("lte,rate=900kbit/s,up={up}kbit/s,rtt=150ms,queue=600ms");
                    (scenario.seed, scenario.secondary) = (seed, Some(secondary.parse().expect("a link")));
                    scenario.config.clone_from(&config);
                    goodput(scenario, Duration::from_secs(4), Duration::from_secs(20))
                })
                .collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let tls = Mechanisms::of(&[
            Mechanism::AckOffload,
            Mechanism::EifelUndo,
            Mechanism::WithheldAck,
            Mechanism::OutageRevert,
        ]);
        let config = Config { mechanisms: tls, ..Config::new(Scenario::PRIMARY, Some(Scenario::SECONDARY)) };
        let (plain, accel) = (run(None), run(Some(config)));
        let cc = format!("{algorithm:?}").to_lowercase();
        let name = format!("{cc} {rtt:>3} ms {cell} {up}k");
        println!("{name:40} plain {plain:.3}, ours {accel:.3}, {:.3} times", accel / plain);
        writeln!(table, "{name:40}{plain:8.1}{accel:8.1}{:8.2}", accel / plain).expect("text");
    }
    compare_with_saved("accel-offload.txt", &table);
}

/// How holes are filled: the primary link's rate in Mbit/s, and its loss.
const HOLES: &[(u32, &str)] = &[(5, "0.1%"), (5, "1%"), (20, "0.1%"), (20, "1%")];

#[test]
fn goodput_with_early_ack_is_as_reviewed() {
    let variants: [(&str, Option<&[Mechanism]>); 4] = [
        ("plain", None),
        ("ranges", Some(&[Mechanism::EarlyAck])),
        ("mirror", Some(&[Mechanism::FastFetch])),
        ("both", Some(&[Mechanism::FastFetch, Mechanism::EarlyAck])),
    ];
    let mut table = String::from(
        "goodput in Mbit/s, plain HTTP, 50 ms; holes filled by a mirrored connection of all holes, and its bytes in total\n\n",
    );
    let names: String = variants.iter().map(|(name, _)| format!("{name:>8}")).collect();
    writeln!(table, "{:24}{names}{:>20}{:>10}", "case", "filled (both)", "received").expect("text");
    for (rate, loss) in HOLES {
        let (mut figures, mut details) = (String::new(), String::new());
        for (_, enabled) in &variants {
            let line = format!("wifi,rate={rate}Mbit/s,rtt=50ms,queue=100ms,loss={loss}");
            let case = Case { kernel: None, ..case(Cubic, 50, "0%", 0, 0.0) };
            let mut scenario = scenario(&case, 1, true);
            scenario.primary = line.parse().expect("a link");
            scenario.config = enabled.map(|enabled| Config {
                mechanisms: Mechanisms::of(enabled),
                ..Config::new(Scenario::PRIMARY, Some(Scenario::SECONDARY))
            });
            let duration = Duration::from_secs(20);
            let mut world = World::new(scenario);
            world.run_until(Instant::ZERO + duration);
            let outcome = world.outcome();
            assert!(outcome.defects.is_empty(), "{:?}", outcome.defects);
            write!(figures, "{:8.1}", world.read(0) as f64 * 8.0 / duration.as_secs_f64() / 1e6).expect("text");
            let views =
                world.accelerator().map(|machine| machine.flows(Instant::ZERO + duration)).unwrap_or_default();
            let view = views.first();
            println!("{rate} {loss} {enabled:?}: {view:?} {:?}", outcome.outputs);
            if let Some((view, replay)) =
                view.and_then(|view| view.mirrored_conn.as_ref().map(|replay| (view, replay)))
            {
                details = format!(
                    "{:>20}{:>10}",
                    format!("{} of {}", replay.filled_holes, view.holes),
                    replay.received.to_string()
                );
            }
        }
        writeln!(table, "{:24}{figures}{details}", format!("{rate} Mbit/s, {loss}")).expect("text");
    }
    compare_with_saved("accel-fast-fetch.txt", &table);
}

/// Of a flow without acceleration beside an accelerated one: its goodput, its retransmitted segments and the queue's
/// drops over half a minute; means of sixteen starts.
fn competing_flow(algorithm: Algorithm, rtt: u64, queue: u64, mechanisms: Option<&[Mechanism]>) -> [f64; 3] {
    const STARTS: u64 = 16;
    let duration = Duration::from_secs(30);
    let mut sums = [0.0; 3];
    for seed in 0..STARTS {
        let link = format!("wifi,rate=20Mbit/s,rtt={rtt}ms,queue={queue}ms");
        let accelerated = FlowScript { algorithm, ..FlowScript::download(400_000_000) };
        let start = Duration::from_millis(seed * 13 % 100);
        let other = FlowScript { is_accelerated: false, start, ..accelerated.clone() };
        let mut scenario = Scenario::new(link.parse().expect("a link"), accelerated);
        scenario.flows.push(other);
        scenario.secondary = Some("lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms".parse().expect("a link"));
        scenario.config = mechanisms.map(|enabled| Config {
            mechanisms: Mechanisms::of(enabled),
            ..Config::new(Scenario::PRIMARY, Some(Scenario::SECONDARY))
        });
        let mut world = World::new(scenario);
        world.run_until(Instant::ZERO + duration);
        let rate = world.read(1) as f64 * 8.0 / duration.as_secs_f64() / 1e6;
        for (sum, one) in sums.iter_mut().zip([rate, world.retransmitted(1) as f64, world.dropped() as f64]) {
            *sum += one / STARTS as f64;
        }
    }
    sums
}

#[test]
fn a_flow_beside_an_accelerated_one_is_as_reviewed() {
    let variants: [(&str, Option<&[Mechanism]>); 4] = [
        ("plain", None),
        ("undo, withheld", Some(&[Mechanism::EifelUndo, Mechanism::WithheldAck])),
        ("offload", Some(&[Mechanism::AckOffload])),
        (
            "all",
            Some(&[Mechanism::AckOffload, Mechanism::EifelUndo, Mechanism::WithheldAck, Mechanism::OutageRevert]),
        ),
    ];
    let mut table = String::from("a flow beside an accelerated one, 20 Mbit/s, 30 s, means of 16 starts\n\n");
    writeln!(table, "{:44}{:>8}{:>12}{:>10}", "case", "Mbit/s", "retransmits", "dropped").expect("text");
    for (algorithm, rtt, queue) in [(Cubic, 50, 100), (Cubic, 50, 40), (Reno, 50, 100), (Cubic, 200, 100)] {
        for (name, enabled) in &variants {
            let [rate, again, dropped] = competing_flow(algorithm, rtt, queue, *enabled);
            let cc = format!("{algorithm:?}").to_lowercase();
            let name = format!("{cc} {rtt:>3} ms, queue {queue:>3} ms, {name}");
            println!("{name:40} {rate:.2} Mbit/s, {again:.1} retransmits, {dropped:.1} dropped");
            writeln!(table, "{name:44}{rate:8.1}{again:12.0}{dropped:10.0}").expect("text");
        }
    }
    compare_with_saved("accel-beside.txt", &table);
}
