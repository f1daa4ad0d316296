//! An ACK's two ways, tried over a queue, a hole and a link that carries nothing.

use super::*;
use crate::units::DataSize;
use crate::wire::packet::{Ack, Flags, SackBlocks, Seq, SeqRange, Timestamps};

/// A flow of 20 Mbit/s with help and 16 without, behind a queue of 60 ms, whose ACKs leave every millisecond.
struct World {
    detour: AckPathSelector,
    holes: SackHoles,
    now: Instant,
    total: u64,
    /// ACKs by the second link arrive.
    arrives: bool,
    /// What is still to be echoed.
    echoes: Vec<(Instant, TcpTimestamp)>,
}

const WAYS: [u64; 2] = [50, 105];

impl World {
    fn new() -> Self {
        let (detour, holes) = (AckPathSelector::default(), SackHoles::default());
        Self { detour, holes, now: Instant::ZERO, total: 0, arrives: true, echoes: Vec::new() }
    }

    /// So many milliseconds; the way of each ACK.
    fn run(&mut self, millis: u64, hole: bool) -> Vec<AckPath> {
        let mut roads = Vec::new();
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            let now = self.now;
            let stamp = TcpTimestamp::new(u32::try_from(now.since(Instant::ZERO).as_millis()).unwrap());
            self.total += if self.detour.is_on() { 2500 } else { 2000 };
            let blocks: &[SeqRange] = if hole { &[SeqRange::with_len(Seq::new(200), 9)] } else { &[] };
            let (seq, ack) = (Seq::new(1), Seq::new(100));
            let sacks = SackBlocks::of(blocks);
            let timestamps = Some(Timestamps { ts_val: stamp, ts_ecr: stamp });
            let ack = Ack { seq, ack, window: 9, flags: Flags::ACK, timestamps, sack_blocks: sacks };
            self.holes.on_ack(now, &ack, 1448);
            let queue = Duration::from_millis(60);
            let moment = TrialSample {
                received: DataSize::from_bytes(self.total),
                queue: Some(queue),
                max_queue: queue,
                rtt: Duration::from_millis(WAYS[0]),
                is_eligible: true,
                has_started: true,
                is_link_ready: true,
                ..TrialSample::new(now)
            };
            let road = self.detour.select(moment, &self.holes, false);
            roads.push(road);
            let takes = match road {
                AckPath::Secondary => {
                    self.detour.on_offloaded(now, Some(stamp));
                    self.arrives.then_some(WAYS[1])
                }
                AckPath::Delayed(late) => self
                    .detour
                    .delay(now, alloc::vec![1], AckInfo { ack, has_rewritten_echo: false, scale: 0 }, late)
                    .map(|_| WAYS[0]),
            };
            self.echoes.extend(takes.map(|takes| (now + Duration::from_millis(takes) + queue, stamp)));
            while let Some(at) = self.echoes.iter().position(|(at, _)| *at <= now) {
                let (_, stamp) = self.echoes.remove(at);
                self.detour.on_echo(now, stamp, Some(queue));
            }
            self.detour.take_due(now, false);
            self.detour.has_failed(now);
        }
        roads
    }
}

fn elsewhere(roads: &[AckPath]) -> usize {
    roads.iter().filter(|road| **road == AckPath::Secondary).count()
}

#[test]
fn while_something_is_missing_acks_are_as_late_as_over_the_second_link() {
    let mut world = World::new();
    let roads = world.run(5000, false);
    assert!(elsewhere(&roads) > 4400 && world.detour.is_on());
    let hole = world.run(200, true);
    assert_eq!(elsewhere(&hole), 0);
    for road in &hole {
        let AckPath::Delayed(late) = road else { panic!() };
        assert!((54..=57).contains(&late.as_millis()), "{late:?}");
    }
    let after = world.run(1000, false);
    assert_eq!(elsewhere(&after), 1000 - 59, "and goes on when it is closed");
}

#[test]
fn when_it_ends_the_delay_fades() {
    let mut world = World::new();
    world.run(5000, false);
    let end = world.run(7000, true);
    let lates: Vec<u128> = end
        .iter()
        .map(|road| match road {
            AckPath::Delayed(late) => late.as_millis(),
            AckPath::Secondary => panic!("with holes"),
        })
        .collect();
    assert!(lates[1990] >= 54 && (20..35).contains(&lates[4000]) && lates[6100] == 0, "{lates:?}");
    assert!(lates.windows(2).all(|pair| pair[0] >= pair[1]));
    assert!(!world.detour.is_on());
}

#[test]
fn a_hole_that_is_open_is_no_sign_that_acks_do_not_arrive() {
    let mut world = World::new();
    while !world.detour.is_on() {
        world.run(1, false);
    }
    assert!(world.detour.deadline().is_some(), "a proof is waited for");
    world.run(1800, true);
    assert!(!world.detour.trial().has_no_benefit(), "nothing went there that could be echoed");
}

#[test]
fn where_acks_do_not_arrive_it_ends_before_a_second_is_over() {
    let mut world = World::new();
    world.arrives = false;
    let roads = world.run(5000, false);
    assert!((400..700).contains(&elsewhere(&roads)), "{}", elsewhere(&roads));
    assert!(world.detour.trial().has_no_benefit());
}
