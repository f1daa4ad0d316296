//! The accelerator on the floors' cases in virtual time, as tables that changes are reviewed against.
//!
//! In: 20 Mbit/s with a queue of 100 ms, a helping link of 400 kbit/s up and 900 kbit/s down with 150 ms. Out:
//! `tables/accel.txt`, `tables/accel-upload.txt`, `tables/accel-dark.txt` and `tables/accel-replay.txt`, compared with what is kept there;
//! `UPDATE_TABLES=1` writes them anew. Exact figures are printed (`--nocapture`).
//!
//! 1. A goodput is what the client's application reads, without the first 6 s.
//! 2. Where chance is part of a case, the median of three seeds is shown, by 0.1 Mbit/s.
//! 3. Kernel: what Linux 6.18 at both ends did in namespaces with such links, one run each; the model of plain TCP is
//!    reviewed against it. It decides nothing here, and neither do floors.

mod review;

use std::fmt::Write;

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::units::{Duration, Instant};
use marline_sim::accel::{Blackout, Plan, Scene, World};
use marline_sim::rng::{Purpose, RandomStream};
use marline_sim::spec::LinkSpec;
use marline_sim::tcp::Algorithm;

use review::compare_with_saved;

const WARM: Duration = Duration::from_secs(6);
const SEEDS: std::ops::Range<u64> = 1..4;

/// A case: sender, round trip, loss, blackouts of so many seconds every 20 s.
#[derive(Clone, Copy)]
struct Case {
    algorithm: Algorithm,
    rtt: u64,
    loss: &'static str,
    dark: u64,
    /// What the kernel did without an accelerator, Mbit/s.
    kernel: Option<f64>,
}

const fn case(algorithm: Algorithm, rtt: u64, loss: &'static str, dark: u64, kernel: f64) -> Case {
    Case { algorithm, rtt, loss, dark, kernel: Some(kernel) }
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

fn scene(case: &Case, seed: u64, is_http: bool) -> Scene {
    let line = format!("wifi,rate=20Mbit/s,rtt={}ms,queue=100ms,loss={}", case.rtt, case.loss);
    let primary: LinkSpec = line.parse().expect("a link");
    let mut plan = Plan::download(400_000_000);
    plan.algorithm = case.algorithm;
    plan.is_http = is_http;
    let mut scene = Scene::new(primary, plan);
    scene.seed = seed;
    scene.helper = Some("lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms".parse().expect("a link"));
    if case.dark > 0 {
        // Beginning and length are drawn, by a quarter: where a timeout falls decides how long a sender idles afterwards.
        let mut chance = RandomStream::new(seed, "blackouts", 0, Purpose::Other);
        for n in 0..3 {
            let at = Duration::from_millis(10_000 + n * 20_000 + chance.below(5000));
            let lasts = Duration::from_millis(case.dark * (750 + chance.below(500)));
            scene.blackouts.push(Blackout { link: Scene::PRIMARY, at, lasts, is_told: false });
        }
    }
    scene
}

/// Goodput after the warm-up, Mbit/s.
fn goodput(scene: Scene, warm: Duration, lasts: Duration) -> f64 {
    let mut world = World::new(scene);
    world.run_until(Instant::ZERO + warm);
    let before = world.read(0);
    world.run_until(Instant::ZERO + warm + lasts);
    let wrong = world.outcome().wrong;
    assert!(wrong.is_empty(), "{wrong:?}");
    (world.read(0) - before) as f64 * 8.0 / lasts.as_secs_f64() / 1e6
}

/// What is enabled; none: plain TCP.
fn median(case: &Case, mechanisms: Option<&[Mechanism]>, is_http: bool) -> f64 {
    let lasts = Duration::from_secs(if case.dark > 0 { 60 } else { 20 });
    let mut all: Vec<f64> = SEEDS
        .map(|seed| {
            let mut scene = scene(case, seed, is_http);
            scene.config = mechanisms.map(|these| Config {
                mechanisms: Mechanisms::of(these),
                ..Config::new(Scene::PRIMARY, Some(Scene::HELPER))
            });
            goodput(scene, WARM, lasts)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn the_floors_cases_are_as_reviewed() {
    let tls = [Mechanism::Offload, Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert];
    let http = [&tls[..], &[Mechanism::Hide]].concat();
    let mut table = String::from("goodput in Mbit/s over 20 Mbit/s (loss each way, blackouts every 20 s)\n\n");
    writeln!(table, "{:32}{:>8}{:>8}{:>8}{:>8}{:>8}", "case", "kernel", "plain", "TLS", "gain", "HTTP")
        .expect("text");
    for case in CASES {
        let plain = median(case, None, false);
        let ours = median(case, Some(&tls), false);
        let read = median(case, Some(&http), true);
        let dark = if case.dark > 0 { format!(" {:>2} s dark", case.dark) } else { String::new() };
        let name =
            format!("{} {:>3} ms {:>4}{dark}", format!("{:?}", case.algorithm).to_lowercase(), case.rtt, case.loss);
        let kernel = case.kernel.map_or(String::from("-"), |kernel| format!("{kernel:.1}"));
        println!(
            "{name:30} kernel {kernel:>6}, plain {plain:.3}, TLS {ours:.3}, {:.2} times, HTTP {read:.3}",
            ours / plain
        );
        writeln!(table, "{name:32}{kernel:>8}{plain:8.1}{ours:8.1}{:8.1}{read:8.1}", ours / plain).expect("text");
    }
    compare_with_saved("accel.txt", &table);
}

/// Uploads (§3.5): round trip, loss of each packet, seconds of a blackout every 20 s.
const UPLOADS: &[(u64, &str, u64)] = &[(50, "0%", 0), (50, "1%", 0), (200, "1%", 0), (50, "0%", 10)];

/// What the server has read after the warm-up, Mbit/s; the median of three seeds.
fn uploaded(case: &Case, mechanisms: Option<&[Mechanism]>) -> f64 {
    let lasts = Duration::from_secs(if case.dark > 0 { 60 } else { 20 });
    let mut all: Vec<f64> = SEEDS
        .map(|seed| {
            let mut scene = scene(case, seed, false);
            scene.flows = scene.flows.into_iter().map(Plan::turned).collect();
            scene.config = mechanisms
                .map(|these| Config { mechanisms: Mechanisms::of(these), ..Config::new(Scene::PRIMARY, None) });
            let mut world = World::new(scene);
            world.run_until(Instant::ZERO + WARM);
            let before = world.taken(0);
            world.run_until(Instant::ZERO + WARM + lasts);
            let wrong = world.outcome().wrong;
            assert!(wrong.is_empty(), "{wrong:?}");
            (world.taken(0) - before) as f64 * 8.0 / lasts.as_secs_f64() / 1e6
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

#[test]
fn uploads_are_as_reviewed() {
    let mut table =
        String::from("goodput of uploads in Mbit/s over 20 Mbit/s (loss each way, blackouts every 20 s)\n\n");
    writeln!(table, "{:32}{:>8}{:>8}{:>8}", "case", "plain", "ours", "gain").expect("text");
    for (rtt, loss, dark) in UPLOADS.iter().copied() {
        let case = Case { algorithm: Cubic, rtt, loss, dark, kernel: None };
        let plain = uploaded(&case, None);
        let ours = uploaded(&case, Some(&[Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert]));
        let dark = if dark > 0 { format!(" {dark:>2} s dark") } else { String::new() };
        let name = format!("cubic {rtt:>3} ms {loss:>4}{dark}");
        println!("{name:30} plain {plain:.3}, ours {ours:.3}, {:.2} times", ours / plain);
        writeln!(table, "{name:32}{plain:8.1}{ours:8.1}{:8.1}", ours / plain).expect("text");
    }
    compare_with_saved("accel-upload.txt", &table);
}

#[test]
fn what_is_done_in_a_blackout_is_as_reviewed() {
    let ways: [(&str, Option<&[Mechanism]>); 5] = [
        ("plain", None),
        ("freeze", Some(&[Mechanism::Freeze])),
        ("flight", Some(&[Mechanism::FreezeFlight])),
        ("reserve", Some(&[Mechanism::Reserve])),
        ("revert", Some(&[Mechanism::Revert])),
    ];
    let mut table = String::from("goodput in Mbit/s over 20 Mbit/s, plain HTTP, blackouts every 20 s\n\n");
    let names: String = ways.iter().map(|(name, _)| format!("{name:>8}")).collect();
    writeln!(table, "{:24}{names}", "case").expect("text");
    for (rtt, dark) in [(50, 2), (50, 10), (200, 2), (200, 10)] {
        let case = Case { kernel: None, ..case(Cubic, rtt, "0%", dark, 0.0) };
        let figures: Vec<f64> = ways.iter().map(|(_, these)| median(&case, *these, true)).collect();
        let name = format!("cubic {rtt:>3} ms, {dark:>2} s dark");
        println!("{name}: {figures:.3?}");
        let figures: String = figures.iter().map(|figure| format!("{figure:8.1}")).collect();
        writeln!(table, "{name:24}{figures}").expect("text");
    }
    compare_with_saved("accel-dark.txt", &table);
}

/// ACKs that share the air with the data: sender, round trip, the cell, and the helping link's uplink in kbit/s. The last two
/// are no half-duplex cells: there ACKs elsewhere bring nothing.
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
fn offloads_cells_are_as_reviewed() {
    let mut table = String::from("goodput in Mbit/s, a queue of 100 ms; 20 s after 4 s\n\n");
    writeln!(table, "{:40}{:>8}{:>8}{:>8}", "case", "plain", "ours", "gain").expect("text");
    for (algorithm, rtt, cell, up) in CELLS {
        let primary: LinkSpec = format!("wifi,{cell},rtt={rtt}ms,queue=100ms").parse().expect("a link");
        let run = |config: Option<Config>| {
            let mut all: Vec<f64> = SEEDS
                .map(|seed| {
                    let plan = Plan { algorithm: *algorithm, ..Plan::download(400_000_000) };
                    let mut scene = Scene::new(primary.clone(), plan);
                    let helper = format!("lte,rate=900kbit/s,up={up}kbit/s,rtt=150ms,queue=600ms");
                    (scene.seed, scene.helper) = (seed, Some(helper.parse().expect("a link")));
                    scene.config.clone_from(&config);
                    goodput(scene, Duration::from_secs(4), Duration::from_secs(20))
                })
                .collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let tls = Mechanisms::of(&[Mechanism::Offload, Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert]);
        let config = Config { mechanisms: tls, ..Config::new(Scene::PRIMARY, Some(Scene::HELPER)) };
        let (plain, ours) = (run(None), run(Some(config)));
        let cc = format!("{algorithm:?}").to_lowercase();
        let name = format!("{cc} {rtt:>3} ms {cell} {up}k");
        println!("{name:40} plain {plain:.3}, ours {ours:.3}, {:.3} times", ours / plain);
        writeln!(table, "{name:40}{plain:8.1}{ours:8.1}{:8.2}", ours / plain).expect("text");
    }
    compare_with_saved("accel-offload.txt", &table);
}

/// How holes are filled: the first link's rate in Mbit/s, and its loss.
const HOLES: &[(u32, &str)] = &[(5, "0.1%"), (5, "1%"), (20, "0.1%"), (20, "1%")];

#[test]
fn how_holes_are_filled_is_as_reviewed() {
    let ways: [(&str, Option<&[Mechanism]>); 4] = [
        ("plain", None),
        ("ranges", Some(&[Mechanism::Hide])),
        ("replay", Some(&[Mechanism::FastFetch])),
        ("both", Some(&[Mechanism::FastFetch, Mechanism::Hide])),
    ];
    let mut table = String::from(
        "goodput in Mbit/s, plain HTTP, 50 ms; holes that a replayed connection filled of those seen, and what it brought in all\n\n",
    );
    let names: String = ways.iter().map(|(name, _)| format!("{name:>8}")).collect();
    writeln!(table, "{:24}{names}{:>20}{:>10}", "case", "filled (both)", "brought").expect("text");
    for (rate, loss) in HOLES {
        let (mut figures, mut told) = (String::new(), String::new());
        for (_, these) in &ways {
            let line = format!("wifi,rate={rate}Mbit/s,rtt=50ms,queue=100ms,loss={loss}");
            let case = Case { kernel: None, ..case(Cubic, 50, "0%", 0, 0.0) };
            let mut scene = scene(&case, 1, true);
            scene.primary = line.parse().expect("a link");
            scene.config = these.map(|these| Config {
                mechanisms: Mechanisms::of(these),
                ..Config::new(Scene::PRIMARY, Some(Scene::HELPER))
            });
            let lasts = Duration::from_secs(20);
            let mut world = World::new(scene);
            world.run_until(Instant::ZERO + lasts);
            let outcome = world.outcome();
            assert!(outcome.wrong.is_empty(), "{:?}", outcome.wrong);
            write!(figures, "{:8.1}", world.read(0) as f64 * 8.0 / lasts.as_secs_f64() / 1e6).expect("text");
            let views = world.accelerator().map(|machine| machine.flows(Instant::ZERO + lasts)).unwrap_or_default();
            let view = views.first();
            println!("{rate} {loss} {these:?}: {view:?} {:?}", outcome.asked);
            if let Some((view, replay)) = view.and_then(|view| view.replay.as_ref().map(|replay| (view, replay))) {
                told = format!(
                    "{:>20}{:>10}",
                    format!("{} of {}", replay.filled, view.holes),
                    replay.came.to_string()
                );
            }
        }
        writeln!(table, "{:24}{figures}{told}", format!("{rate} Mbit/s, {loss}")).expect("text");
    }
    compare_with_saved("accel-replay.txt", &table);
}

/// Of a flow that is not helped: the rate, its segments sent again and the queue's drops over half a minute with it; means of
/// sixteen starts.
fn beside(algorithm: Algorithm, rtt: u64, queue: u64, mechanisms: Option<&[Mechanism]>) -> [f64; 3] {
    const STARTS: u64 = 16;
    let lasts = Duration::from_secs(30);
    let mut sums = [0.0; 3];
    for seed in 0..STARTS {
        let link = format!("wifi,rate=20Mbit/s,rtt={rtt}ms,queue={queue}ms");
        let helped = Plan { algorithm, ..Plan::download(400_000_000) };
        let start = Duration::from_millis(seed * 13 % 100);
        let other = Plan { is_helped: false, start, ..helped.clone() };
        let mut scene = Scene::new(link.parse().expect("a link"), helped);
        scene.flows.push(other);
        scene.helper = Some("lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms".parse().expect("a link"));
        scene.config = mechanisms.map(|these| Config {
            mechanisms: Mechanisms::of(these),
            ..Config::new(Scene::PRIMARY, Some(Scene::HELPER))
        });
        let mut world = World::new(scene);
        world.run_until(Instant::ZERO + lasts);
        let rate = world.read(1) as f64 * 8.0 / lasts.as_secs_f64() / 1e6;
        for (sum, one) in sums.iter_mut().zip([rate, world.repeated(1) as f64, world.dropped() as f64]) {
            *sum += one / STARTS as f64;
        }
    }
    sums
}

#[test]
fn a_flow_beside_one_that_is_helped_is_as_reviewed() {
    let ways: [(&str, Option<&[Mechanism]>); 4] = [
        ("plain", None),
        ("undo, reserve", Some(&[Mechanism::Undo, Mechanism::Reserve])),
        ("offload", Some(&[Mechanism::Offload])),
        ("all", Some(&[Mechanism::Offload, Mechanism::Undo, Mechanism::Reserve, Mechanism::Revert])),
    ];
    let mut table = String::from("a flow beside one that is helped, 20 Mbit/s, 30 s, means of 16 starts\n\n");
    writeln!(table, "{:40}{:>8}{:>12}{:>10}", "case", "Mbit/s", "sent again", "dropped").expect("text");
    for (algorithm, rtt, queue) in [(Cubic, 50, 100), (Cubic, 50, 40), (Reno, 50, 100), (Cubic, 200, 100)] {
        for (name, these) in &ways {
            let [rate, again, dropped] = beside(algorithm, rtt, queue, *these);
            let cc = format!("{algorithm:?}").to_lowercase();
            let name = format!("{cc} {rtt:>3} ms, queue {queue:>3} ms, {name}");
            println!("{name:40} {rate:.2} Mbit/s, {again:.1} sent again, {dropped:.1} dropped");
            writeln!(table, "{name:40}{rate:8.1}{again:12.0}{dropped:10.0}").expect("text");
        }
    }
    compare_with_saved("accel-beside.txt", &table);
}
