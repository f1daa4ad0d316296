//! Who gets which bytes, how many are on the way, and how it ends (rules of `super::super::plan` and `tail`).

use super::*;
use crate::fetch::Policy;

const TAG: Option<&str> = Some("\"v1\"");

/// A link in a toy world: constant rate, constant delay, one connection.
struct Pipe {
    link: LinkId,
    bytes_per_ms: u64,
    delay: u64,
    /// When each request is seen by the server.
    seen: BTreeMap<ReqId, u64>,
    sent: BTreeMap<ReqId, u64>,
    idle: u64,
    last: u64,
    /// How long the server thinks before each answer, and until when it does now, and of what.
    think: u64,
    thinking: Option<(ReqId, u64)>,
}

/// Runs to the end in steps of a millisecond; gives the time.
fn run(desk: &mut Desk, pipes: &mut [Pipe], total: u64) -> u64 {
    for pipe in pipes.iter() {
        desk.connect(pipe.link, pipe.delay * 2);
    }
    for ms in 0..60_000 {
        for pipe in pipes.iter_mut() {
            for (req, _) in desk.asked(pipe.link) {
                pipe.seen.entry(req).or_insert(ms + pipe.delay * 2);
            }
            let mut room = pipe.bytes_per_ms;
            while room > 0 {
                let ready = desk.asked(pipe.link).into_iter().find(|(req, _)| pipe.seen[req] <= ms);
                let Some((req, asked)) = ready else {
                    pipe.idle += u64::from(ms > pipe.delay * 4);
                    break;
                };
                if pipe.think > 0 && pipe.thinking.is_none_or(|(of, _)| of != req) {
                    pipe.thinking = Some((req, ms + pipe.think));
                }
                if pipe.thinking.is_some_and(|(_, until)| ms < until) {
                    break;
                }
                if asked.at.is_none() {
                    desk.part(req, total, TAG);
                }
                let Ask::Span(span) = asked.ask else { panic!() };
                let span = span.intersect(Span::new(0, total));
                let sent = pipe.sent.entry(req).or_default();
                let now = room.min(span.len().bytes() - *sent);
                *sent += now;
                room -= now;
                let all = *sent == span.len().bytes();
                pipe.last = ms;
                desk.bytes(req, now);
                if desk.done {
                    return ms;
                }
                if all {
                    desk.end(req);
                }
            }
        }
        desk.pass(Duration::from_millis(1));
    }
    panic!("not done");
}

fn pipe(link: LinkId, mbps: u64, rtt: u64) -> Pipe {
    Pipe {
        link,
        bytes_per_ms: mbps * 125,
        delay: rtt / 2,
        seen: BTreeMap::new(),
        sent: BTreeMap::new(),
        idle: 0,
        last: 0,
        think: 0,
        thinking: None,
    }
}

#[test]
fn a_server_that_thinks_before_each_answer_is_asked_for_much_at_a_time() {
    for think in [50, 100, 400] {
        let total = 40_000_000;
        let mut desk = Desk::new(Config::default());
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        let mut pipes = [Pipe { think, ..pipe(A, 80, 20) }];
        let time = run(&mut desk, &mut pipes, total);
        let alone = total / (80 * 125) + think + 40;
        // The first bytes are a request of their own, and by them the next one's size is guessed.
        assert!(time <= alone + alone / 20 + think * 2, "{think}: {time} ms, one request takes {alone}");

        let mut desk = Desk::two(Config::default());
        let mut pipes = [Pipe { think, ..pipe(A, 80, 20) }, Pipe { think, ..pipe(B, 61, 50) }];
        let time = run(&mut desk, &mut pipes, total);
        let ideal = total / (141 * 125) + think + 60;
        assert!(time <= ideal + ideal / 5 + think, "{think}: {time} ms over two links instead of {ideal}");
        let wasted = desk.fetch.status().wasted.bytes();
        assert!(wasted <= total / 100, "{think}: wasted {wasted}");
    }
}

#[test]
fn two_steady_links_end_together_and_never_drain() {
    for (a, b) in [((80, 20), (61, 50)), ((8, 20), (61, 50)), ((50, 20), (5, 100)), ((30, 20), (30, 60))] {
        let total = 20_000_000;
        let mut desk = Desk::two(Config::default());
        let mut pipes = [pipe(A, a.0, a.1), pipe(B, b.0, b.1)];
        let time = run(&mut desk, &mut pipes, total);
        let ideal = total / ((a.0 + b.0) * 125);
        let delta = pipes[0].last.abs_diff(pipes[1].last);
        let idle = pipes.iter().map(|p| p.idle).max().unwrap();
        assert!(delta <= 30, "{a:?} {b:?}: delta {delta} ms");
        assert!(idle <= 40, "{a:?} {b:?}: drained for {idle} ms");
        assert!(time <= ideal + ideal / 50 + 100, "{a:?} {b:?}: {time} ms instead of {ideal}");
        let wasted = desk.fetch.status().wasted.bytes();
        assert!(wasted <= total / 100, "{a:?} {b:?}: wasted {wasted}");
    }
}

#[test]
fn a_slow_second_link_never_delays_a_small_file() {
    let total = 1_000_000;
    let alone = {
        let mut desk = Desk::new(Config::default());
        desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
        run(&mut desk, &mut [pipe(A, 50, 20)], total)
    };
    let mut desk = Desk::two(Config::default());
    let both = run(&mut desk, &mut [pipe(A, 50, 20), pipe(B, 2, 300)], total);
    assert!(both <= alone + 2, "{both} ms instead of {alone}");
}

#[test]
fn the_order_of_the_links_does_not_matter() {
    let total = 20_000_000;
    let mut times = Vec::new();
    for swap in [false, true] {
        let mut desk = Desk::two(Config::default());
        let (a, b) = if swap { (B, A) } else { (A, B) };
        times.push(run(&mut desk, &mut [pipe(a, 80, 20), pipe(b, 20, 60)], total));
    }
    assert!(times[0].abs_diff(times[1]) <= 20, "{times:?}");
}

#[test]
fn a_window_is_never_overrun() {
    let window = DataSize::from_mib(2);
    let mut desk = Desk::two(Config { window: Some(window), ..Config::default() });
    desk.connect(A, 20);
    desk.part(desk.first(A), 100_000_000, TAG);
    desk.connect(B, 20);
    let mut consumed = 0;
    for round in 0..2000_u64 {
        let far = desk.reqs.values().filter_map(|a| match a.ask {
            Ask::Span(span) => Some(span.end),
            _ => None,
        });
        assert!(far.max().unwrap_or(0) <= consumed + window.bytes());
        let link = if round % 3 == 0 { B } else { A };
        let Some((req, asked)) = desk.asked(link).first().cloned() else { continue };
        if asked.at.is_none() {
            desk.part(req, 100_000_000, TAG);
        }
        let Ask::Span(span) = asked.ask else { panic!() };
        desk.pass(Duration::from_millis(3));
        desk.bytes(req, span.len().bytes());
        desk.end(req);
        let frontier = desk.fetch.status().frontier;
        if frontier > consumed {
            consumed = frontier;
            desk.tell(Input::Consumed { upto: consumed });
        }
    }
    assert!(consumed > 20_000_000, "{consumed}");
}

#[test]
fn the_thesis_starts_the_next_request_at_sixty_percent() {
    let mut desk = Desk::two(Config { policy: Policy::StaticLimit, ..Config::default() });
    desk.connect(A, 20);
    desk.connect(B, 20);
    let req = desk.first(A);
    desk.part(req, 100_000_000, TAG);
    let Ask::Span(span) = desk.reqs[&req].ask else { panic!() };
    let size = span.len().bytes();
    desk.bytes(req, size * 59 / 100);
    assert_eq!(desk.asked(A).len(), 1);
    desk.bytes(req, size / 100 + 1);
    assert_eq!(desk.asked(A).len(), 2);
}

#[test]
fn naive_gives_each_link_its_half() {
    let total = 10_000_000;
    let mut desk = Desk::two(Config { policy: Policy::Naive, ..Config::default() });
    let mut pipes = [pipe(A, 80, 20), pipe(B, 10, 20)];
    run(&mut desk, &mut pipes, total);
    let status = desk.fetch.status();
    let (a, b) = (status.links[0].1.bytes(), status.links[1].1.bytes());
    assert_eq!(a + b, total);
    assert!(a.abs_diff(b) <= 300_000, "{a} {b}");
    assert!(pipes[1].last > pipes[0].last + 2000, "the slow half ends much later");
}

#[test]
fn single_asks_once_and_uses_one_link() {
    let mut desk = Desk::two(Config { policy: Policy::Single, ..Config::default() });
    assert!(desk.on(B).is_empty());
    desk.connect(A, 20);
    assert_eq!(desk.reqs[&desk.first(A)].ask, Ask::From(0));
    desk.deliver_all(A, 5_000_000, TAG);
    assert!(desk.done);
}
