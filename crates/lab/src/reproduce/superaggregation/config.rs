//! The links and blackouts over which Super-aggregation's figures were measured, as topologies of the lab.
//!
//! | artefact | the paper's | here |
//! |---|---|---|
//! | `F1` | 802.11g and b, EVDO | the same cells, a second link of 500 kbit/s, chosen to give the paper's 3 % of g and 16 % of b |
//! | `F2a` | TCP and UDP in one cell | `11g-mixed`, `11b`, `11b-paper` (its overhead chosen to come near the paper's 70 %); an ACK for two segments, and for each |
//! | `F2b` | a blackout of 2 s | 11 s into a connection |
//! | `F2c` | random loss | 0 to 5 % |
//! | `F5` | ACKs over EVDO, RTT of Wi-Fi | `11g-mixed` and `11b`, 50 to 200 ms |
//! | `F6` | blackouts every 20 s on average, 100 s | the same, 60 s |
//! | `F7` | random loss | 0 to 5 %, 50 to 200 ms, plain HTTP |
//! | `F8` | a walk through three access points | Wi-Fi alone, then both; two blackouts of 2 s; 1 % loss behind the second |
//!
//! 1. `paper` is one re-implementation of a mechanism of the paper, the figure's own alone, and not its strongest reading
//!    ([`super::paper::LIMITS`] says what each one lacks); `ours` is everything that is on by default, in `F7` and `F8` early ACK as well. Of §3.3 it is
//!    `fast-fetch`: holes are filled from a replayed connection; those that it cannot reach in time are left to the sender.
//!    `ranges` beside it is `early-ack` alone, the same holes filled by range requests: the paper publishes that form too, for
//!    applications that can ask for ranges (§3.3, §8).
//! 2. The connections of `F6` last 60 s instead of 100 s, with about three blackouts instead of five.

use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::spec::{LinkEvent, LinkEventKind};

use crate::Congestion;
use crate::accel::outages::{self, Outage};
use crate::accel::topology::{CELL, PRIMARY};
use crate::accel::{Contender, Medium, Stream, Topology};

/// The traffic of a run.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Workload {
    /// Downloads, with or without a program that assists them.
    Download(Vec<Stream>, Contender),
    /// Datagrams, so many Mbit/s.
    UdpFlood(f64),
}

/// What is run at a point of a figure, and its name in tables.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) work: Workload,
    /// Without loss and blackouts.
    pub(super) without_faults: bool,
    /// The client acknowledges each segment.
    pub(super) acks_every_segment: bool,
}

impl Variant {
    fn new(name: &'static str, work: Workload) -> Self {
        Self { name, work, without_faults: false, acks_every_segment: false }
    }

    fn single_download(contender: Contender, secure: bool) -> Self {
        Self::new(contender.name(), Workload::Download(vec![Stream::new(secure)], contender))
    }

    /// Plain TCP without loss and blackouts.
    fn ideal(secure: bool) -> Self {
        let download = Workload::Download(vec![Stream::new(secure)], Contender::Plain);
        Self { without_faults: true, ..Self::new(IDEAL, download) }
    }
}

/// Name of the variant without loss and blackouts, with which the others are compared.
pub(super) const IDEAL: &str = "ideal";

/// One point of a figure.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct FigurePoint {
    pub(super) artefact: &'static str,
    pub(super) name: String,
    /// Its links; seed and sender are those of the run.
    pub(super) testbed: Topology,
    /// How long each blackout is; they are drawn for each run.
    pub(super) blackout_length: Option<Duration>,
    pub(super) variants: Vec<Variant>,
    pub(super) length: Duration,
    /// Time from which on received bytes count.
    pub(super) counted_from: Duration,
    /// Times at which something changes, within the run: rates are reported for each part.
    pub(super) part_bounds: Vec<Duration>,
    /// How often TCP_INFO of the sender is sampled.
    pub(super) sample_interval: Duration,
}

impl FigurePoint {
    fn new(artefact: &'static str, name: String, testbed: Topology, variants: Vec<Variant>, seconds: u64) -> Self {
        Self {
            artefact,
            name,
            testbed,
            blackout_length: None,
            variants,
            length: SECONDS(seconds),
            counted_from: SECONDS(4),
            part_bounds: Vec::new(),
            sample_interval: Duration::from_millis(250),
        }
    }

    /// The blackouts of a run.
    pub(super) fn outages(&self, run: u32) -> Vec<Outage> {
        self.blackout_length.map_or(Vec::new(), |length| outages::draw(u64::from(run) + 1, length, self.length))
    }

    /// The links of one variant in a run.
    pub(super) fn world(&self, variant: &Variant, sender: Congestion, run: u32) -> Topology {
        let mut testbed = Topology {
            congestion: sender,
            seed: u64::from(run) + 1,
            each_acknowledged: self.testbed.each_acknowledged || variant.acks_every_segment,
            ..self.testbed.clone()
        };
        if variant.without_faults {
            testbed.loss = Ratio::ZERO;
            testbed.events.clear();
        } else {
            testbed.events.extend(outages::events(PRIMARY, &self.outages(run)));
        }
        testbed
    }

    /// When the primary link recovers for the last time, by the point's own events.
    pub(super) fn last_blackout_end(&self) -> Option<Duration> {
        let mut back = self
            .testbed
            .events
            .iter()
            .filter(|event| event.link == PRIMARY && event.change == LinkEventKind::Restore);
        back.next_back().map(|event| event.at)
    }

    /// The same for `--quick`: shorter, so that some runs have no blackout.
    pub(super) fn quick(mut self) -> Self {
        if self.part_bounds.is_empty() {
            self.length = self.length.min(SECONDS(if self.blackout_length.is_some() { 20 } else { 6 }));
            self.counted_from = self.counted_from.min(SECONDS(1));
        }
        self
    }
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;
/// RTTs in milliseconds of the figures over several RTTs (§6.2: 50 ms is representative; figures 5(c), 6(b), 7(c)).
const RTTS: [u64; 4] = [50, 100, 150, 200];

fn wifi_testbed(preset: &'static str) -> Topology {
    Topology { medium: Medium::Medium(preset), ..Topology::default_links(0) }
}

fn plain_paper_ours(mechanism: &str, secure: bool) -> Vec<Variant> {
    let paper = Contender::only("paper", mechanism);
    vec![
        Variant::single_download(Contender::Plain, secure),
        Variant::single_download(paper, secure),
        Variant::single_download(
            if secure { Contender::default_mechanisms() } else { Contender::with_early_ack() },
            secure,
        ),
    ]
}

/// The artefacts that are measured; `S8` is made of `F1` and `F5`.
pub(super) const MEASURED: [&str; 8] = ["F1", "F2a", "F2b", "F2c", "F5", "F6", "F7", "F8"];

/// The points of an artefact.
pub(super) fn cases(artefact: &str) -> Vec<FigurePoint> {
    match artefact {
        "F1" => ["11g-mixed", "11b"].map(f1_case).into(),
        "F2a" => ["11g-mixed", "11b", "11b-paper"].map(f2a_case).into(),
        "F2b" => vec![f2b_case()],
        "F2c" => [0, 1_000, 10_000, 20_000, 30_000, 40_000, 50_000].map(f2c_case).into(),
        "F5" => f5_cases(),
        "F6" => f6_cases(),
        "F7" => f7_cases(),
        "F8" => vec![f8_case()],
        _ => Vec::new(),
    }
}

fn f1_case(preset: &'static str) -> FigurePoint {
    let over = |link| Stream { over: Some(link), ..Stream::new(false) };
    let variant = |name, streams| Variant::new(name, Workload::Download(streams, Contender::Plain));
    let variants = vec![
        variant("wifi", vec![over(PRIMARY)]),
        variant("cell", vec![over(CELL)]),
        variant("both", vec![over(PRIMARY), over(CELL)]),
    ];
    // Our choice: what makes the paper's 3 % of 802.11g and 16 % of 802.11b.
    FigurePoint::new("F1", preset.into(), Topology { cell: Some((500, 150)), ..wifi_testbed(preset) }, variants, 20)
}

fn f2a_case(preset: &'static str) -> FigurePoint {
    let plain = || Variant::single_download(Contender::Plain, false);
    let each = Variant { name: "plain, an ACK a segment", acks_every_segment: true, ..plain() };
    // More than the cell carries.
    let offered = if preset == "11g-mixed" { 30.0 } else { 9.0 };
    FigurePoint::new(
        "F2a",
        preset.into(),
        wifi_testbed(preset),
        vec![plain(), each, Variant::new("udp", Workload::UdpFlood(offered))],
        20,
    )
}

fn f2b_case() -> FigurePoint {
    let event = |at, change| LinkEvent { at: SECONDS(at), link: PRIMARY.into(), change };
    let testbed = Topology {
        events: vec![event(11, LinkEventKind::Down), event(13, LinkEventKind::Restore)],
        ..Topology::default_links(0)
    };
    let case =
        FigurePoint::new("F2b", "2s, 50ms".into(), testbed, plain_paper_ours("zero-window-freeze", true), 24);
    FigurePoint {
        part_bounds: vec![SECONDS(4), SECONDS(11), SECONDS(13), SECONDS(15), SECONDS(24)],
        sample_interval: Duration::from_millis(50),
        ..case
    }
}

fn f2c_case(ppm: u32) -> FigurePoint {
    let loss = Ratio::from_ppm(ppm);
    let variants = vec![Variant::single_download(Contender::Plain, true), Variant::ideal(true)];
    FigurePoint::new("F2c", format!("{loss}, 50ms"), Topology { loss, ..Topology::default_links(0) }, variants, 24)
}

fn f5_cases() -> Vec<FigurePoint> {
    let make_point = |preset, rtt: u64, each: bool| {
        let suffix = if each { ", an ACK a segment" } else { "" };
        let testbed = Topology { rtt: Duration::from_millis(rtt), each_acknowledged: each, ..wifi_testbed(preset) };
        let name = format!("{preset}, {rtt}ms{suffix}");
        FigurePoint::new("F5", name, testbed, plain_paper_ours("ack-offload-as-published", true), 24)
    };
    let points = ["11g-mixed", "11b"].into_iter().flat_map(|preset| RTTS.map(|rtt| (preset, rtt, false)));
    points
        .chain([("11g-mixed", 50, true), ("11b-paper", 50, true)])
        .map(|(preset, rtt, each)| make_point(preset, rtt, each))
        .collect()
}

fn f6_cases() -> Vec<FigurePoint> {
    let make_point = |(outage_s, rtt): (u64, u64)| {
        let testbed = Topology { rtt: Duration::from_millis(rtt), ..Topology::default_links(0) };
        let mut variants = plain_paper_ours("zero-window-freeze", true);
        variants.push(Variant::ideal(true));
        let case = FigurePoint::new("F6", format!("{outage_s}s, {rtt}ms"), testbed, variants, 60);
        FigurePoint { blackout_length: Some(SECONDS(outage_s)), counted_from: Duration::ZERO, ..case }
    };
    RTTS.map(|rtt| (2, rtt))
        .into_iter()
        .chain([4, 6, 8, 10].map(|outage_s| (outage_s, 50)))
        .map(make_point)
        .collect()
}

fn f7_cases() -> Vec<FigurePoint> {
    let make_point = |(ppm, rtt): (u32, u64)| {
        let loss = Ratio::from_ppm(ppm);
        let testbed = Topology { loss, rtt: Duration::from_millis(rtt), ..Topology::default_links(0) };
        let mut variants = plain_paper_ours("fast-fetch", false);
        variants.push(Variant::single_download(Contender::only("ranges", "early-ack"), false));
        variants.push(Variant::ideal(false));
        FigurePoint::new("F7", format!("{loss}, {rtt}ms"), testbed, variants, 30)
    };
    let losses = [0, 1_000, 3_000, 10_000, 20_000, 30_000, 40_000, 50_000].map(|ppm| (ppm, 50));
    losses.into_iter().chain([100, 150, 200].map(|rtt| (10_000, rtt))).map(make_point).collect()
}

/// Our choice: three access points of some twenty seconds each, as the paper's figure shows them.
fn f8_case() -> FigurePoint {
    let event = |at, link: &str, change| LinkEvent { at: SECONDS(at), link: link.into(), change };
    let one_percent = LinkEventKind::Loss(Ratio::from_percent(1).into());
    let events = vec![
        event(0, CELL, LinkEventKind::Down),
        event(15, CELL, LinkEventKind::Restore),
        event(30, PRIMARY, LinkEventKind::Down),
        event(32, PRIMARY, LinkEventKind::Restore),
        event(47, PRIMARY, LinkEventKind::Down),
        event(49, PRIMARY, LinkEventKind::Restore),
        event(49, PRIMARY, one_percent),
    ];
    let variants = plain_paper_ours("ack-offload-as-published,zero-window-freeze,fast-fetch", false);
    let case = FigurePoint::new(
        "F8",
        "11g-mixed, 50ms".into(),
        Topology { events, ..wifi_testbed("11g-mixed") },
        variants,
        64,
    );
    FigurePoint {
        part_bounds: [0, 15, 30, 32, 47, 49, 64].map(SECONDS).into(),
        counted_from: Duration::ZERO,
        ..case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_artefact_has_points_and_no_two_of_one_name() {
        for artefact in MEASURED {
            let all = cases(artefact);
            assert!(!all.is_empty(), "{artefact}");
            for (at, case) in all.iter().enumerate() {
                assert!(all[..at].iter().all(|other| other.name != case.name), "{artefact} {}", case.name);
                assert!(case.counted_from < case.length && case.artefact == artefact);
            }
        }
    }

    #[test]
    fn the_ideal_has_no_trouble_and_everybody_else_the_same() {
        let case = &cases("F6")[0];
        let worlds: Vec<Topology> =
            case.variants.iter().map(|variant| case.world(variant, Congestion::Reno, 3)).collect();
        assert!(worlds[3].events.is_empty() && worlds[3].loss == Ratio::ZERO);
        assert!(!worlds[0].events.is_empty());
        assert_eq!((&worlds[0], &worlds[1]), (&worlds[2], &worlds[2]));
        assert_eq!((worlds[0].seed, worlds[0].congestion), (4, Congestion::Reno));
    }

    #[test]
    fn in_a_hurry_every_blackout_case_has_a_blackout() {
        for case in
            cases("F6").into_iter().map(FigurePoint::quick).filter(|case| case.blackout_length < Some(SECONDS(8)))
        {
            assert!((0..5).any(|run| !case.outages(run).is_empty()), "{}", case.name);
        }
    }
}
