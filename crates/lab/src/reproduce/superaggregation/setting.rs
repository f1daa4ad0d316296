//! What Super-aggregation's figures were measured over, as worlds of the lab.
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
//!    `ranges` beside it is `hide` alone, the same holes filled by range requests: the paper publishes that form too, for
//!    applications that can ask for ranges (§3.3, §8).
//! 2. Connections last a minute at most instead of 100 s: three blackouts say what five do, in two thirds of the time.

use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::spec::{Change, Event};

use crate::Congestion;
use crate::accel::outages::{self, Outage};
use crate::accel::topology::{CELL, PRIMARY};
use crate::accel::{Contender, Medium, Stream, Topology};

/// What is done in a cell.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Work {
    /// Downloads, with somebody's help or nobody's.
    Download(Vec<Stream>, Contender),
    /// Datagrams, so many Mbit/s.
    Flood(f64),
}

/// Who does it, as tables name it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// Without loss and blackouts.
    pub(super) untroubled: bool,
    /// The client acknowledges each segment.
    pub(super) each_acknowledged: bool,
}

impl Way {
    fn new(name: &'static str, work: Work) -> Self {
        Self { name, work, untroubled: false, each_acknowledged: false }
    }

    fn one(who: Contender, secure: bool) -> Self {
        Self::new(who.name(), Work::Download(vec![Stream::new(secure)], who))
    }

    /// Plain TCP where nothing is lost and nothing dark.
    fn ideal(secure: bool) -> Self {
        let download = Work::Download(vec![Stream::new(secure)], Contender::Plain);
        Self { untroubled: true, ..Self::new(IDEAL, download) }
    }
}

/// The way that is held beside others, as if there were no trouble.
pub(super) const IDEAL: &str = "ideal";

/// One point of a figure.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Case {
    pub(super) artefact: &'static str,
    pub(super) name: String,
    /// Its links; seed and sender are those of the run.
    pub(super) world: Topology,
    /// How long each blackout is; they are drawn for each run.
    pub(super) dark: Option<Duration>,
    pub(super) ways: Vec<Way>,
    pub(super) length: Duration,
    /// From when on it counts.
    pub(super) from: Duration,
    /// Times at which something changes, within the run: rates are told for each part.
    pub(super) parts: Vec<Duration>,
    /// How often the sender is looked at.
    pub(super) look: Duration,
}

impl Case {
    fn new(artefact: &'static str, name: String, world: Topology, ways: Vec<Way>, seconds: u64) -> Self {
        Self {
            artefact,
            name,
            world,
            dark: None,
            ways,
            length: S(seconds),
            from: S(4),
            parts: Vec::new(),
            look: Duration::from_millis(250),
        }
    }

    /// The blackouts of a run.
    pub(super) fn outages(&self, run: u32) -> Vec<Outage> {
        self.dark.map_or(Vec::new(), |length| outages::draw(u64::from(run) + 1, length, self.length))
    }

    /// The links of one way in a run.
    pub(super) fn world(&self, way: &Way, sender: Congestion, run: u32) -> Topology {
        let mut world = Topology {
            congestion: sender,
            seed: u64::from(run) + 1,
            each_acknowledged: self.world.each_acknowledged || way.each_acknowledged,
            ..self.world.clone()
        };
        if way.untroubled {
            world.loss = Ratio::ZERO;
            world.events.clear();
        } else {
            world.events.extend(outages::events(PRIMARY, &self.outages(run)));
        }
        world
    }

    /// The last time at which the first link is there again by the case's own events.
    pub(super) fn resumes(&self) -> Option<Duration> {
        let mut back =
            self.world.events.iter().filter(|event| event.link == PRIMARY && event.change == Change::Back);
        back.next_back().map(|event| event.at)
    }

    /// In a hurry: short, and blackouts where they fall into it.
    pub(super) fn quick(mut self) -> Self {
        if self.parts.is_empty() {
            self.length = self.length.min(S(if self.dark.is_some() { 20 } else { 6 }));
            self.from = self.from.min(S(1));
        }
        self
    }
}

const S: fn(u64) -> Duration = Duration::from_secs;
/// Where several points are measured (§6.2: 50 ms is representative; figures 5(c), 6(b), 7(c)).
const RTTS: [u64; 4] = [50, 100, 150, 200];

fn cell(preset: &'static str) -> Topology {
    Topology { medium: Medium::Medium(preset), ..Topology::default_links(0) }
}

fn three(mechanism: &str, secure: bool) -> Vec<Way> {
    let paper = Contender::only("paper", mechanism);
    vec![
        Way::one(Contender::Plain, secure),
        Way::one(paper, secure),
        Way::one(if secure { Contender::default_mechanisms() } else { Contender::with_early_ack() }, secure),
    ]
}

/// The artefacts that are measured; `S8` is made of `F1` and `F5`.
pub(super) const MEASURED: [&str; 8] = ["F1", "F2a", "F2b", "F2c", "F5", "F6", "F7", "F8"];

/// The points of an artefact.
pub(super) fn cases(artefact: &str) -> Vec<Case> {
    match artefact {
        "F1" => ["11g-mixed", "11b"].map(aggregated).into(),
        "F2a" => ["11g-mixed", "11b", "11b-paper"].map(contended).into(),
        "F2b" => vec![dark_once()],
        "F2c" => [0, 1_000, 10_000, 20_000, 30_000, 40_000, 50_000].map(lossy).into(),
        "F5" => offloaded(),
        "F6" => frozen(),
        "F7" => fetched(),
        "F8" => vec![walk()],
        _ => Vec::new(),
    }
}

fn aggregated(preset: &'static str) -> Case {
    let over = |link| Stream { over: Some(link), ..Stream::new(false) };
    let way = |name, streams| Way::new(name, Work::Download(streams, Contender::Plain));
    let ways = vec![
        way("wifi", vec![over(PRIMARY)]),
        way("cell", vec![over(CELL)]),
        way("both", vec![over(PRIMARY), over(CELL)]),
    ];
    // chosen: what makes the paper's 3 % of 802.11g and 16 % of 802.11b.
    Case::new("F1", preset.into(), Topology { cell: Some((500, 150)), ..cell(preset) }, ways, 20)
}

fn contended(preset: &'static str) -> Case {
    let plain = || Way::one(Contender::Plain, false);
    let each = Way { name: "plain, an ACK a segment", each_acknowledged: true, ..plain() };
    // More than the cell carries.
    let offered = if preset == "11g-mixed" { 30.0 } else { 9.0 };
    Case::new("F2a", preset.into(), cell(preset), vec![plain(), each, Way::new("udp", Work::Flood(offered))], 20)
}

fn dark_once() -> Case {
    let event = |at, change| Event { at: S(at), link: PRIMARY.into(), change };
    let world =
        Topology { events: vec![event(11, Change::Down), event(13, Change::Back)], ..Topology::default_links(0) };
    let case = Case::new("F2b", "2s, 50ms".into(), world, three("zero-window-freeze", true), 24);
    Case { parts: vec![S(4), S(11), S(13), S(15), S(24)], look: Duration::from_millis(50), ..case }
}

fn lossy(ppm: u32) -> Case {
    let loss = Ratio::from_ppm(ppm);
    let ways = vec![Way::one(Contender::Plain, true), Way::ideal(true)];
    Case::new("F2c", format!("{loss}, 50ms"), Topology { loss, ..Topology::default_links(0) }, ways, 24)
}

fn offloaded() -> Vec<Case> {
    let of = |preset, rtt: u64, each: bool| {
        let each_word = if each { ", an ACK a segment" } else { "" };
        let world = Topology { rtt: Duration::from_millis(rtt), each_acknowledged: each, ..cell(preset) };
        let name = format!("{preset}, {rtt}ms{each_word}");
        Case::new("F5", name, world, three("ack-offload-as-published", true), 24)
    };
    let points = ["11g-mixed", "11b"].into_iter().flat_map(|preset| RTTS.map(|rtt| (preset, rtt, false)));
    points
        .chain([("11g-mixed", 50, true), ("11b-paper", 50, true)])
        .map(|(preset, rtt, each)| of(preset, rtt, each))
        .collect()
}

fn frozen() -> Vec<Case> {
    let of = |(dark, rtt): (u64, u64)| {
        let world = Topology { rtt: Duration::from_millis(rtt), ..Topology::default_links(0) };
        let mut ways = three("zero-window-freeze", true);
        ways.push(Way::ideal(true));
        let case = Case::new("F6", format!("{dark}s, {rtt}ms"), world, ways, 60);
        Case { dark: Some(S(dark)), from: Duration::ZERO, ..case }
    };
    RTTS.map(|rtt| (2, rtt)).into_iter().chain([4, 6, 8, 10].map(|dark| (dark, 50))).map(of).collect()
}

fn fetched() -> Vec<Case> {
    let of = |(ppm, rtt): (u32, u64)| {
        let loss = Ratio::from_ppm(ppm);
        let world = Topology { loss, rtt: Duration::from_millis(rtt), ..Topology::default_links(0) };
        let mut ways = three("fast-fetch", false);
        ways.push(Way::one(Contender::only("ranges", "early-ack"), false));
        ways.push(Way::ideal(false));
        Case::new("F7", format!("{loss}, {rtt}ms"), world, ways, 30)
    };
    let losses = [0, 1_000, 3_000, 10_000, 20_000, 30_000, 40_000, 50_000].map(|ppm| (ppm, 50));
    losses.into_iter().chain([100, 150, 200].map(|rtt| (10_000, rtt))).map(of).collect()
}

/// chosen: three access points of some twenty seconds each, as the paper's figure shows them.
fn walk() -> Case {
    let event = |at, link: &str, change| Event { at: S(at), link: link.into(), change };
    let one_percent = Change::Loss(Ratio::from_percent(1).into());
    let events = vec![
        event(0, CELL, Change::Down),
        event(15, CELL, Change::Back),
        event(30, PRIMARY, Change::Down),
        event(32, PRIMARY, Change::Back),
        event(47, PRIMARY, Change::Down),
        event(49, PRIMARY, Change::Back),
        event(49, PRIMARY, one_percent),
    ];
    let ways = three("ack-offload-as-published,zero-window-freeze,fast-fetch", false);
    let case = Case::new("F8", "11g-mixed, 50ms".into(), Topology { events, ..cell("11g-mixed") }, ways, 64);
    Case { parts: [0, 15, 30, 32, 47, 49, 64].map(S).into(), from: Duration::ZERO, ..case }
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
                assert!(case.from < case.length && case.artefact == artefact);
            }
        }
    }

    #[test]
    fn the_ideal_has_no_trouble_and_everybody_else_the_same() {
        let case = &cases("F6")[0];
        let worlds: Vec<Topology> = case.ways.iter().map(|way| case.world(way, Congestion::Reno, 3)).collect();
        assert!(worlds[3].events.is_empty() && worlds[3].loss == Ratio::ZERO);
        assert!(!worlds[0].events.is_empty());
        assert_eq!((&worlds[0], &worlds[1]), (&worlds[2], &worlds[2]));
        assert_eq!((worlds[0].seed, worlds[0].congestion), (4, Congestion::Reno));
    }

    #[test]
    fn in_a_hurry_every_blackout_case_has_a_blackout() {
        for case in cases("F6").into_iter().map(Case::quick).filter(|case| case.dark < Some(S(8))) {
            assert!((0..5).any(|run| !case.outages(run).is_empty()), "{}", case.name);
        }
    }
}
