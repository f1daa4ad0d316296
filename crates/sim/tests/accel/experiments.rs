//! Scenarios in which each mechanism of the accelerator acts: what its tuned values are judged by, beside random
//! histories.
//!
//! The links are slower than those of the result tables, so that minutes of a flow cost little.

use marline_core::accel::{Config, Mechanism, Mechanisms};
use marline_core::units::{Bitrate, Duration, Ratio};
use marline_sim::accel::{Exchange, FlowScript, Outage, Scenario, ServerBehavior};
use marline_sim::spec::{LinkSpec, Loss};
use marline_sim::tcp::Algorithm;

use Mechanism::{
    AckOffload, AckOffloadAsPublished, EarlyAck, EifelUndo, FastFetch, FreezeInFlight, OutageRevert, WithheldAck,
    ZeroWindowFreeze,
};

/// The scenarios for the options of a mechanism, by their name in the options.
pub(crate) fn scenarios_of(mechanism: &str) -> Vec<Scenario> {
    match mechanism {
        "observation" => [loss(), uploads(), offload().into_iter().take(4).collect()].concat(),
        "eifel_undo" => [loss(), uploads()].concat(),
        "withheld_ack" => [loss(), uploads(), outages(&[OutageRevert, WithheldAck])].concat(),
        "outage" => [uploads(), outages(&[OutageRevert, WithheldAck])].concat(),
        "zero_window" => [outages(&[ZeroWindowFreeze]), outages(&[FreezeInFlight])].concat(),
        "ack_offload" => offload(),
        "secondary" => [offload(), holes(), outages(&[FreezeInFlight])].concat(),
        "early_ack" | "fetch" | "fast_fetch" => holes(),
        _ => Vec::new(),
    }
}

const SECONDARY: &str = "lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms";

/// A flow without end over this link, for so many seconds.
fn download(link: &str, seconds: u64, mechanisms: &[Mechanism]) -> Scenario {
    let link: LinkSpec = format!("wifi,{link}").parse().expect("a link");
    let mut scenario = Scenario::new(link, FlowScript::download(400_000_000));
    scenario.limit = Duration::from_secs(seconds);
    scenario.config =
        Some(Config { mechanisms: Mechanisms::of(mechanisms), ..Config::new(Scenario::PRIMARY, None) });
    scenario
}

/// The same with a secondary link.
fn assisted(link: &str, secondary: &str, seconds: u64, mechanisms: &[Mechanism]) -> Scenario {
    let mut scenario = download(link, seconds, mechanisms);
    scenario.secondary = Some(secondary.parse().expect("a link"));
    scenario.config = Some(Config {
        mechanisms: Mechanisms::of(mechanisms),
        ..Config::new(Scenario::PRIMARY, Some(Scenario::SECONDARY))
    });
    scenario
}

/// With a second flow that is accelerated or not.
fn beside(mut scenario: Scenario, is_accelerated: bool) -> Scenario {
    let start = Duration::from_millis(700);
    scenario.flows.push(FlowScript { start, is_accelerated, ..scenario.flows[0].clone() });
    scenario
}

/// With random loss on the flow's own hop.
fn over_hop(mut scenario: Scenario, loss: &str) -> Scenario {
    let loss: Loss = loss.parse().expect("a loss");
    scenario.flows.iter_mut().for_each(|flow| flow.loss = loss);
    scenario
}

/// With these outages of the primary link, in milliseconds.
fn with_outages(
    mut scenario: Scenario,
    link: marline_core::link::LinkId,
    outages: &[(u64, u64)],
    is_carrier_lost: bool,
) -> Scenario {
    scenario.outages.extend(outages.iter().map(|(at, duration)| Outage {
        link,
        at: Duration::from_millis(*at),
        duration: Duration::from_millis(*duration),
        is_carrier_lost,
    }));
    scenario
}

/// Random loss, full queues, policers, a path that changes.
fn loss() -> Vec<Scenario> {
    let usual = [EifelUndo, WithheldAck, OutageRevert];
    let run = |link: &str, seconds| download(link, seconds, &usual);
    let early = |link: &str| {
        let mut scenario = assisted(link, SECONDARY, 40, &[EarlyAck, EifelUndo]);
        scenario.flows.iter_mut().for_each(|flow| flow.is_http = true);
        scenario
    };
    vec![
        early("rate=10Mbit/s,rtt=50ms,queue=5ms"),
        early("rate=10Mbit/s,rtt=50ms,queue=15ms"),
        early("rate=4Mbit/s,rtt=100ms,queue=15ms,loss=0.2%"),
        beside(early("rate=10Mbit/s,rtt=50ms,queue=30ms"), false),
        run("rate=20Mbit/s,rtt=50ms,queue=100ms,loss=1%", 40),
        run("rate=20Mbit/s,rtt=50ms,queue=100ms,loss=3%", 40),
        run("rate=20Mbit/s,rtt=200ms,queue=100ms,loss=1%", 40),
        run("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=1%", 60),
        run("rate=4Mbit/s,rtt=200ms,queue=100ms,loss=1%", 60),
        run("rate=10Mbit/s,rtt=50ms,queue=100ms,loss=0.1%", 60),
        run("rate=4Mbit/s,rtt=50ms,queue=20ms,loss=3%", 60),
        run("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=ge:0.3%/30%/100%", 60),
        run("rate=4Mbit/s,rtt=50ms,queue=200ms,codel,loss=1%", 60),
        run("rate=4Mbit/s,rtt=50ms,queue=5ms,loss=0.3%", 60),
        // The next refusals of a policed path, each twice as long.
        run("rate=20Mbit/s,rtt=50ms,queue=100ms,loss=0.3%,police=1Mbit/s:16KiB", 1200),
        // A path that was trusted is policed from then on, and the other way round.
        run("rate=4Mbit/s,steps=60s:1Mbit/s+120s:4Mbit/s,rtt=50ms,queue=10ms,loss=1%", 400),
        beside(run("rate=4Mbit/s,rtt=50ms,queue=100ms", 60), true),
        beside(run("rate=4Mbit/s,rtt=50ms,queue=20ms", 60), true),
        beside(over_hop(run("rate=4Mbit/s,rtt=50ms,queue=20ms", 60), "1%"), false),
        beside(over_hop(run("rate=4Mbit/s,rtt=50ms,queue=100ms", 60), "0.3%"), true),
        beside(run("rate=20Mbit/s,rtt=50ms,queue=100ms,police=4Mbit/s:64KiB", 200), true),
        run("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=1%,jitter=10ms", 60),
        run("rate=4Mbit/s,rtt=20ms,queue=100ms,loss=1%,jitter=4ms,reorder", 60),
        over_hop(run("rate=20Mbit/s,rtt=50ms,queue=100ms", 40), "1%"),
        over_hop(run("rate=20Mbit/s,rtt=50ms,queue=100ms", 40), "3%"),
        over_hop(run("rate=20Mbit/s,rtt=200ms,queue=100ms", 40), "1%"),
        over_hop(run("rate=20Mbit/s,rtt=50ms,queue=5ms", 40), "0.3%"),
        beside(over_hop(run("rate=20Mbit/s,rtt=50ms,queue=20ms", 40), "1%"), false),
        short_flows(over_hop(run("rate=20Mbit/s,rtt=50ms,queue=100ms", 60), "1%")),
        short_flows(over_hop(run("rate=20Mbit/s,rtt=50ms,queue=100ms", 60), "ge:0.3%/30%/100%")),
        short_flows(run("rate=20Mbit/s,rtt=100ms,queue=100ms,loss=0.5%", 60)),
        // Some pauses.
        requests(run("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=1%", 120)),
    ]
}

/// With requests and pauses instead of one long response.
fn requests(mut scenario: Scenario) -> Scenario {
    let exchange = |n: u64| Exchange { pause: Duration::from_millis(n * 700), request: 300, response: 600_000 + n };
    scenario.flows.iter_mut().for_each(|flow| flow.exchanges = (0..20).map(exchange).collect());
    scenario
}

/// With short flows from the same server while the first one lasts.
fn short_flows(mut scenario: Scenario) -> Scenario {
    let flow = |n: u64| FlowScript { start: Duration::from_secs(20 + n), ..FlowScript::download(400_000) };
    let loss = scenario.flows[0].loss;
    scenario.flows.extend((0..30).map(|n| FlowScript { loss, ..flow(n) }));
    scenario
}

fn uploads() -> Vec<Scenario> {
    let usual = [EifelUndo, WithheldAck, OutageRevert];
    let up = |mut scenario: Scenario| {
        scenario.flows = scenario.flows.into_iter().map(FlowScript::reversed).collect();
        scenario
    };
    vec![
        up(download("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=1%", 60, &usual)),
        up(download("rate=4Mbit/s,rtt=200ms,queue=100ms,loss=0.1%", 60, &usual)),
        up(with_outages(
            download("rate=4Mbit/s,rtt=50ms,queue=100ms", 60, &usual),
            Scenario::PRIMARY,
            &[(10_000, 2_000), (20_000, 12_000)],
            false,
        )),
    ]
}

/// Short and long outages, with and without a lost carrier.
fn outages(mechanisms: &[Mechanism]) -> Vec<Scenario> {
    let run = |link: &str, seconds| {
        let mut scenario = assisted(link, SECONDARY, seconds, mechanisms);
        scenario.flows.iter_mut().for_each(|flow| flow.is_http = true);
        scenario
    };
    let fail =
        |scenario, outages, is_carrier_lost| with_outages(scenario, Scenario::PRIMARY, outages, is_carrier_lost);
    let (near, far) = ("rate=4Mbit/s,rtt=50ms,queue=100ms", "rate=4Mbit/s,rtt=200ms,queue=100ms,loss=0.1%");
    vec![
        fail(run(near, 60), &[(10_100, 2_000), (30_000, 900)], false),
        fail(run(far, 60), &[(10_100, 2_000), (30_000, 900)], false),
        fail(run(near, 60), &[(10_000, 12_000)], true),
        fail(run(far, 60), &[(10_000, 12_000)], false),
        fail(run(near, 200), &[(10_000, 100_000)], false),
        fail(run("rate=1Mbit/s,rtt=400ms,queue=300ms", 60), &[(10_000, 3_000)], false),
        fail(run("rate=4Mbit/s,rtt=50ms,queue=100ms,loss=3%", 60), &[(10_000, 3_000), (20_000, 400)], false),
        fail(requests(run(near, 60)), &[(2_000, 1_000), (7_000, 5_000)], false),
        fail(beside(run(near, 60), true), &[(10_000, 4_000)], false),
        with_outages(
            fail(run(near, 60), &[(10_000, 4_000)], false),
            Scenario::SECONDARY,
            &[(9_000, 3_000), (12_500, 6_000)],
            false,
        ),
    ]
}

/// ACKs that share the air with the data, and those that do not.
fn offload() -> Vec<Scenario> {
    let usual = [AckOffload, EifelUndo, WithheldAck, OutageRevert];
    let run = |link: &str, secondary: &str, seconds| assisted(link, secondary, seconds, &usual);
    let thin = "lte,rate=900kbit/s,up=100kbit/s,rtt=150ms,queue=600ms";
    let mixed = "medium=11g-mixed,rtt=50ms,queue=100ms";
    vec![
        run(mixed, SECONDARY, 40),
        run(mixed, thin, 40),
        run("medium=11g-mixed,rtt=200ms,queue=100ms", SECONDARY, 40),
        run("medium=11g-mixed,rtt=50ms,queue=100ms,loss=0.1%", SECONDARY, 40),
        run("medium=11g-mixed,rtt=50ms,queue=300ms", "lte,rate=900kbit/s,up=400kbit/s,rtt=400ms,queue=600ms", 40),
        run("medium=11b,rtt=50ms,queue=100ms", SECONDARY, 120),
        run("rate=4Mbit/s,rtt=50ms,queue=100ms", SECONDARY, 120),
        run("rate=4Mbit/s,rtt=50ms,queue=20ms", "lte,rate=900kbit/s,up=50kbit/s,rtt=300ms,queue=600ms", 120),
        run("rate=4Mbit/s,rtt=150ms,queue=100ms,loss=0.02%", SECONDARY, 120),
        run("rate=20Mbit/s,rtt=50ms,queue=100ms,police=4Mbit/s:64KiB", SECONDARY, 120),
        // The window of the receiver is the limit, so that no queue stands.
        {
            let mut scenario = run("medium=11g-mixed,rtt=100ms,queue=100ms", SECONDARY, 60);
            scenario.flows.iter_mut().for_each(|flow| flow.scale = 0);
            scenario
        },
        with_outages(run(mixed, SECONDARY, 60), Scenario::SECONDARY, &[(12_000, 3_000), (30_000, 30_000)], false),
        // It cannot be used when a trial begins.
        with_outages(run(mixed, SECONDARY, 30), Scenario::SECONDARY, &[(1_000, 28_000)], false),
        // The sender is the limit.
        requests(run(mixed, SECONDARY, 40)),
        run("medium=11g-mixed,rtt=50ms,queue=10ms", SECONDARY, 40),
        run("medium=11g-mixed,rtt=20ms,queue=10ms", "lte,rate=900kbit/s,up=400kbit/s,rtt=30ms,queue=600ms", 40),
        run(
            "medium=11g-mixed,rtt=5ms,queue=5ms,loss=0.05%",
            "lte,rate=900kbit/s,up=400kbit/s,rtt=10ms,queue=600ms",
            40,
        ),
        run(
            "medium=11g-mixed,rtt=50ms,queue=100ms,jitter=10ms",
            "lte,rate=900kbit/s,up=400kbit/s,rtt=150ms,queue=600ms,loss=3%,jitter=40ms",
            40,
        ),
        beside(run(mixed, thin, 40), true),
        {
            let mut scenario = run(mixed, thin, 40);
            configure(&mut scenario, 100);
            scenario
        },
        assisted(mixed, thin, 20, &[AckOffloadAsPublished]),
    ]
}

/// The rates of the secondary link are configured, in kbit/s.
fn configure(scenario: &mut Scenario, up: u64) {
    let rate = |kbps: u64| Some(Bitrate::from_bits_per_sec(kbps * 1000));
    scenario.config.iter_mut().for_each(|config| {
        config.secondary_links.iter_mut().for_each(|link| (link.up, link.down) = (rate(up), rate(900)));
    });
}

/// Holes that are filled by ranges or by a mirrored connection.
fn holes() -> Vec<Scenario> {
    let run = |link: &str, secondary: &str, mechanisms: &[Mechanism]| {
        let mut scenario = assisted(link, secondary, 40, mechanisms);
        scenario.flows.iter_mut().for_each(|flow| flow.is_http = true);
        scenario
    };
    let fast = "lte,rate=3Mbit/s,up=1Mbit/s,rtt=60ms,queue=200ms";
    let serve = |mut scenario: Scenario, failure, truncation, delay| {
        scenario.server = ServerBehavior {
            failure: Ratio::from_percent(failure),
            truncation: Ratio::from_percent(truncation),
            max_delay: Duration::from_millis(delay),
        };
        scenario
    };
    let light = "rate=4Mbit/s,rtt=50ms,queue=100ms,loss=0.1%";
    let heavy = "rate=4Mbit/s,rtt=50ms,queue=100ms,loss=2%";
    let bursts = "rate=4Mbit/s,rtt=100ms,queue=100ms,loss=ge:1%/25%/100%";
    let sets: [&[Mechanism]; 3] = [&[EarlyAck], &[FastFetch], &[FastFetch, EarlyAck, FreezeInFlight]];
    let mut all = Vec::new();
    for mechanisms in sets {
        all.extend([
            run(light, SECONDARY, mechanisms),
            run(heavy, SECONDARY, mechanisms),
            run(bursts, fast, mechanisms),
            run(heavy, "lte,rate=200kbit/s,up=60kbit/s,rtt=400ms,queue=1s", mechanisms),
            serve(run(heavy, SECONDARY, mechanisms), 20, 10, 900),
            serve(run(heavy, fast, mechanisms), 0, 0, 4000),
            with_outages(
                run(heavy, fast, mechanisms),
                Scenario::PRIMARY,
                &[(10_000, 2_000), (20_000, 8_000)],
                false,
            ),
            with_outages(
                run(heavy, fast, mechanisms),
                Scenario::SECONDARY,
                &[(8_000, 2_000), (15_000, 12_000)],
                false,
            ),
            with_outages(
                run("rate=10Mbit/s,rtt=100ms,queue=300ms,loss=1%", SECONDARY, mechanisms),
                Scenario::PRIMARY,
                &[(10_000, 2_000), (25_000, 1_000)],
                false,
            ),
            requests(run(heavy, fast, mechanisms)),
            beside(run(heavy, SECONDARY, mechanisms), true),
            beside(beside(beside(run(light, fast, mechanisms), true), true), true),
            run("rate=2Mbit/s,rtt=300ms,queue=100ms,loss=1%", fast, mechanisms),
        ]);
    }
    // A whole flight is fetched after an outage.
    let far = "rate=20Mbit/s,rtt=200ms,queue=100ms";
    for duration in [2_000, 10_000] {
        let frozen = run(far, SECONDARY, &[FreezeInFlight]);
        all.push(with_outages(frozen, Scenario::PRIMARY, &[(12_000, duration)], false));
    }
    all.push(download(heavy, 40, &[EarlyAck]));
    all.iter_mut().for_each(|scenario| scenario.flows.iter_mut().for_each(|flow| flow.is_http = true));
    let mut reno = run(heavy, fast, &[FastFetch, EarlyAck]);
    reno.flows.iter_mut().for_each(|flow| flow.algorithm = Algorithm::Reno);
    configure(&mut reno, 400);
    all.push(reno);
    all
}
