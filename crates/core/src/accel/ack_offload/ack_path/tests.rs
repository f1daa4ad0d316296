//! The two paths of an ACK, tried over a queue, a hole and a link that carries nothing.

use super::*;
use crate::units::DataSize;
use crate::wire::packet::{Ack, Flags, SackBlocks, Seq, SeqRange, Timestamps};

/// A flow of 20 Mbit/s with offload and 16 without, behind a queue of 60 ms, whose ACKs leave every millisecond.
struct World {
    selector: AckPathSelector,
    holes: SackHoles,
    now: Instant,
    total: u64,
    /// Offloaded ACKs arrive.
    arrives: bool,
    /// What is still to be echoed.
    echoes: Vec<(Instant, TcpTimestamp)>,
}

const RTTS_MS: [u64; 2] = [50, 105];

impl World {
    fn new() -> Self {
        let (selector, holes) = (AckPathSelector::new(&AckOffloadOptions::DEFAULT), SackHoles::default());
        Self { selector, holes, now: Instant::ZERO, total: 0, arrives: true, echoes: Vec::new() }
    }

    /// Runs for so many milliseconds and returns the path of each ACK.
    fn run(&mut self, millis: u64, hole: bool) -> Vec<AckPath> {
        let mut paths = Vec::new();
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let now = self.now;
            let ts_val = TcpTimestamp::new(u32::try_from(now.since(Instant::ZERO).as_millis()).unwrap());
            self.total += if self.selector.is_on { 2500 } else { 2000 };
            let blocks: &[SeqRange] = if hole { &[SeqRange::with_len(Seq::new(200), 9)] } else { &[] };
            let (seq, ack) = (Seq::new(1), Seq::new(100));
            let sacks = SackBlocks::of(blocks);
            let timestamps = Some(Timestamps { ts_val, ts_ecr: ts_val });
            let ack = Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps, sack_blocks: sacks };
            self.holes.on_ack(now, &ack, 1448);
            let queue = Duration::from_millis(60);
            let moment = TrialSample {
                received: DataSize::from_bytes(self.total),
                queue: Some(queue),
                max_queue: queue,
                rtt: Duration::from_millis(RTTS_MS[0]),
                is_eligible: true,
                has_started: true,
                is_link_ready: true,
                ..TrialSample::new(now)
            };
            let path = self.selector.select(moment, &self.holes, false);
            paths.push(path);
            let rtt = match path {
                AckPath::Secondary => {
                    self.selector.on_offloaded(now, Some(ts_val));
                    self.arrives.then_some(RTTS_MS[1])
                }
                AckPath::Delayed(delay) => self
                    .selector
                    .delay(now, alloc::vec![1], AckInfo { ack, has_rewritten_echo: false, scale: 0 }, delay)
                    .map(|_| RTTS_MS[0]),
            };
            self.echoes.extend(rtt.map(|rtt| (now + Duration::from_millis(rtt) + queue, ts_val)));
            while let Some(at) = self.echoes.iter().position(|(at, _)| *at <= now) {
                let (_, ts_val) = self.echoes.remove(at);
                self.selector.on_echo(now, ts_val, Some(queue));
            }
            self.selector.take_due(now, false);
            self.selector.has_failed(now);
        }
        paths
    }
}

fn elsewhere(paths: &[AckPath]) -> usize {
    paths.iter().filter(|path| **path == AckPath::Secondary).count()
}

#[test]
fn while_data_is_missing_acks_are_delayed_as_on_the_secondary_link() {
    let mut world = World::new();
    let paths = world.run(5000, false);
    assert!(elsewhere(&paths) > 4400 && world.selector.is_on);
    let hole = world.run(200, true);
    assert_eq!(elsewhere(&hole), 0);
    for path in &hole {
        let AckPath::Delayed(delay) = path else { panic!() };
        assert!((54..=57).contains(&delay.as_millis()), "{delay:?}");
    }
    let after = world.run(1000, false);
    assert_eq!(elsewhere(&after), 1000 - 59, "and it continues when the hole is closed");
}

#[test]
fn when_offload_ends_the_delay_fades() {
    let mut world = World::new();
    world.run(5000, false);
    let end = world.run(7000, true);
    let delays: Vec<u128> = end
        .iter()
        .map(|path| match path {
            AckPath::Delayed(delay) => delay.as_millis(),
            AckPath::Secondary => panic!("with holes"),
        })
        .collect();
    assert!(delays[1990] >= 54 && (20..35).contains(&delays[4000]) && delays[6100] == 0, "{delays:?}");
    assert!(delays.windows(2).all(|pair| pair[0] >= pair[1]));
    assert!(!world.selector.is_on);
}

#[test]
fn an_open_hole_is_no_sign_that_acks_do_not_arrive() {
    let mut world = World::new();
    while !world.selector.is_on {
        world.run(1, false);
    }
    assert!(world.selector.deadline().is_some(), "an echo is awaited");
    world.run(1800, true);
    assert!(!world.selector.trial().has_no_benefit(), "no ACK was offloaded that could be echoed");
}

#[test]
fn where_acks_do_not_arrive_offload_ends_within_a_second() {
    let mut world = World::new();
    world.arrives = false;
    let paths = world.run(5000, false);
    assert!((400..700).contains(&elsewhere(&paths)), "{}", elsewhere(&paths));
    assert!(world.selector.trial().has_no_benefit());
}
