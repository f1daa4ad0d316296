//! Links that die, hang, come back, cost money, or are spent (rules of `super::super::health`).

use super::*;
use crate::fetch::{Ban, MeteredUse};

const SIZE: u64 = 50_000_000;
const TAG: Option<&str> = Some("\"v1\"");

/// Both links have delivered a little.
fn running() -> Desk {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        desk.connect(link, 20);
        let req = desk.first(link);
        desk.part(req, SIZE, TAG);
        desk.bytes(req, 1000);
    }
    desk
}

#[test]
fn a_dead_link_gives_its_spans_back() {
    let mut desk = running();
    desk.tell(Input::LinkDown { link: A });
    assert!(desk.on(A).is_empty());
    desk.deliver_all(B, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn a_silent_link_keeps_its_bytes_until_the_others_have_nothing_else() {
    let mut desk = running();
    for _ in 0..10 {
        desk.pass(Duration::from_millis(100));
        let req = desk.first(B);
        desk.bytes(req, 5000);
    }
    let held: Vec<Span> = desk.asked(A).iter().filter_map(|(_, a)| span_of(a)).collect();
    assert!(!held.is_empty());
    let taken = |desk: &Desk| {
        desk.asked(B)
            .iter()
            .filter_map(|(_, a)| span_of(a))
            .any(|s| s.start < held[0].end && s.end > 1000 && s.start >= held[0].start)
    };
    assert!(!taken(&desk), "asked for at once");
    desk.deliver_all(B, SIZE, TAG);
    assert!(desk.done, "and in the end without the silent link");
}

fn span_of(asked: &Asked) -> Option<Span> {
    match asked.ask {
        Ask::Span(span) => Some(span),
        _ => None,
    }
}

#[test]
fn a_silent_link_is_probed_by_fresh_connections_and_the_first_to_deliver_wins() {
    let mut desk = running();
    let old = desk.on(A)[0];
    for _ in 0..20 {
        desk.pass(Duration::from_millis(100));
        let req = desk.first(B);
        desk.bytes(req, 1000);
    }
    let probes = desk.on(A).len() - 1;
    assert!((2..=12).contains(&probes), "{probes}");
    assert!(desk.notices.iter().any(|n| matches!(n, Notice::Silent { link: A, .. })));
    let fresh = desk.connect(A, 20);
    assert_eq!(desk.on(A), [old, fresh]);
    let req = desk.asked(A).iter().find(|(_, a)| a.conn == fresh).expect("it is asked").0;
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 1000);
    assert_eq!(desk.on(A), [fresh], "the stuck one is closed");
    assert!(desk.notices.contains(&Notice::Back { link: A }));
}

#[test]
fn a_refused_connection_is_tried_again_with_pauses_and_then_given_up() {
    let mut desk = Desk::new(Config { retries: 3, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut tries = 0;
    while desk.failed.is_none() && tries < 20 {
        if let Some(conn) = desk.on(A).first().copied() {
            tries += 1;
            desk.close(conn, TroubleKind::Refused);
        }
        desk.pass(Duration::from_millis(50));
    }
    assert_eq!(tries, 4);
    assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?}", desk.failed);
    assert!(desk.now > Instant::from_millis(1000), "{}", desk.now);
}

#[test]
fn a_server_that_closes_after_each_answer_is_no_failure() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let mut rounds = 0;
    while !desk.done && rounds < 1000 {
        rounds += 1;
        let conn = desk.connect(A, 5);
        let (req, asked) = desk.asked(A)[0].clone();
        desk.part(req, 2_000_000, TAG);
        let len = span_of(&asked).unwrap().intersect(Span::new(0, 2_000_000)).len().bytes();
        desk.bytes(req, len);
        if desk.done {
            break;
        }
        desk.end(req);
        desk.close(conn, TroubleKind::Finished);
        desk.pass(Duration::from_millis(1));
    }
    assert!(desk.done && desk.notices.is_empty(), "{:?}", desk.notices);
}

#[test]
fn a_metered_link_stands_by() {
    let metered = LinkProfile { metered: true, ..LinkProfile::new("lte", LinkKind::Lte) };
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("wifi", LinkKind::Wifi));
    desk.link(B, metered.clone());
    desk.connect(A, 5);
    desk.part(desk.first(A), SIZE, TAG);
    assert!(desk.on(B).is_empty());
    desk.tell(Input::LinkDown { link: A });
    assert_eq!(desk.on(B).len(), 1, "now it is needed");
    assert!(desk.notices.contains(&Notice::MeteredInUse { link: B }));

    let mut desk = Desk::new(Config { metered: MeteredUse::Never, ..Config::default() });
    desk.link(A, LinkProfile::new("wifi", LinkKind::Wifi));
    desk.link(B, metered);
    desk.tell(Input::LinkDown { link: A });
    desk.pass(Duration::from_secs(60));
    assert!(desk.on(B).is_empty());
}

#[test]
fn a_budget_is_never_exceeded() {
    let budget = 300_000;
    let profile =
        LinkProfile { budget: Some(DataSize::from_bytes(budget)), ..LinkProfile::new("b", LinkKind::Lte) };
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.link(B, profile);
    desk.connect(A, 20);
    desk.part(desk.first(A), SIZE, TAG);
    desk.connect(B, 20);
    let mut got = 0;
    while let Some((req, asked)) = desk.asked(B).first().cloned() {
        desk.part(req, SIZE, TAG);
        let len = span_of(&asked).unwrap().len().bytes();
        got += len;
        desk.pass(Duration::from_millis(20));
        desk.bytes(req, len);
        desk.end(req);
    }
    assert_eq!(got, budget);
    assert!(desk.notices.iter().any(|n| matches!(n, Notice::BudgetSpent { link: B, .. })));
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.done);
}

#[test]
fn a_link_whose_budget_is_spent_does_not_help_a_laggard() {
    let mut desk = Desk::two(Config::default());
    for link in [A, B] {
        desk.connect(link, 20);
        desk.part(desk.first(link), 200_000, TAG);
    }
    // Everything is on its way; B is quick, and has just been told that it may carry no more.
    let (slow, quick) = (desk.first(A), desk.first(B));
    for _ in 0..6 {
        desk.pass(Duration::from_millis(5));
        desk.bytes(slow, 500);
        desk.bytes(quick, 10_000);
    }
    let spent = DataSize::from_bytes(1);
    desk.link(B, LinkProfile { budget: Some(spent), ..LinkProfile::new("b", LinkKind::Lte) });
    let before = desk.asked(B).len();
    desk.pass(Duration::from_millis(400));
    assert!(desk.asked(B).len() <= before, "{:?}", desk.asked(B));
}

#[test]
fn a_link_that_appears_half_way_joins() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 20);
    desk.part(desk.first(A), SIZE, TAG);
    desk.link(B, LinkProfile::new("b", LinkKind::Lte));
    desk.connect(B, 20);
    assert_eq!(desk.asked(B).len(), 1);
}

#[test]
fn when_nothing_comes_from_anywhere_the_run_ends_resumable() {
    let mut desk = running();
    desk.pass(Duration::from_secs(119));
    assert_eq!(desk.failed, None);
    desk.pass(Duration::from_secs(3));
    assert!(matches!(desk.failed, Some(Failure::NoLink { .. })), "{:?}", desk.failed);
}

#[test]
fn a_link_whose_first_connection_takes_long_is_asked_as_soon_as_one_stands() {
    let mut desk = Desk::two(Config::default());
    desk.tell(Input::LinkDown { link: A });
    // A slow name server, or a radio that has to wake up first.
    desk.pass(Duration::from_millis(2300));
    desk.connect(B, 40);
    assert_eq!(desk.asked(B).len(), 1, "the connection stands and nothing is asked on it");
    desk.deliver_all(B, 3_000_000, TAG);
    assert!(desk.done);
}

#[test]
fn a_handshake_over_a_satellite_is_not_overtaken_by_its_own_repetitions() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    let first = desk.on(B)[0];
    for _ in 0..25 {
        desk.pass(Duration::from_millis(100));
        desk.bytes(req, 1000);
    }
    assert!(desk.on(B).contains(&first), "given up after {:?}: {:?}", desk.now, desk.on(B));
    desk.stands(first, Protocol::Http1, 2500, None);
    assert_eq!(desk.on(B), [first]);
    assert_eq!(desk.asked(B).len(), 1);
}

#[test]
fn a_server_that_accepts_and_never_answers_is_not_flooded_with_connections() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 20);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    let mut stand = Vec::new();
    for _ in 0..200 {
        for conn in desk.on(B).into_iter().filter(|conn| !stand.contains(conn)).collect::<Vec<_>>() {
            desk.stands(conn, Protocol::Http1, 20, None);
            stand.push(conn);
        }
        desk.pass(Duration::from_millis(100));
        desk.bytes(req, 10);
    }
    assert!(stand.len() <= 12, "{} connections in 20 s", stand.len());
    // A late answer counts all the same.
    let late = desk.first(B);
    desk.part(late, SIZE, TAG);
    desk.bytes(late, 1000);
    assert_eq!(desk.on(B).len(), 1);
}

#[test]
fn a_wrong_certificate_is_not_tried_again() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let conn = desk.on(A)[0];
    desk.close(conn, TroubleKind::Tls);
    assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?}", desk.failed);
}

#[test]
fn the_silence_of_an_only_link_is_noticed_without_any_other_input() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.pass(Duration::from_millis(600));
    assert_eq!(desk.on(A).len(), 2, "a second SYN");
}

#[test]
fn a_spent_budget_of_the_only_link_is_the_end_and_says_so() {
    let mut desk = Desk::new(Config::default());
    let budget = Some(DataSize::from_bytes(1000));
    desk.link(A, LinkProfile { budget, ..LinkProfile::new("a", LinkKind::Lte) });
    desk.connect(A, 20);
    let (req, asked) = desk.asked(A)[0].clone();
    assert_eq!(asked.ask, Ask::Span(Span::new(0, 1000)), "the probe, too, is within it");
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 1000);
    assert_eq!(desk.failed, Some(Failure::Budget));
}

#[test]
fn a_revived_connection_owns_its_bytes_again() {
    let mut desk = running();
    for _ in 0..10 {
        desk.pass(Duration::from_millis(100));
        let req = desk.first(B);
        desk.bytes(req, 1000);
    }
    let held = desk.asked(A)[0].0;
    // Everything else is on its way, so what A holds is released; then A speaks again.
    desk.fetch.release(A);
    desk.bytes(held, 1000);
    assert!(desk.fetch.ledger.free(0, 65_536).is_none(), "free although it is on its way");
}

#[test]
fn a_reader_that_pauses_silences_nobody() {
    let mut desk = Desk::new(Config { window: Some(DataSize::from_mib(1)), ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.whole(req, Some(SIZE), None);
    desk.bytes(req, 1_030_000);
    desk.pass(Duration::from_secs(300));
    assert!(desk.failed.is_none() && desk.on(A).len() == 1, "{:?}", desk.notices);
    desk.tell(Input::Consumed { upto: 1_000_000 });
    desk.pass(Duration::from_secs(3));
    assert!(desk.on(A).len() > 1, "now something should come");
}

#[test]
fn the_rate_of_a_link_counts_what_closed_connections_brought() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    for _ in 0..8 {
        let conn = desk.connect(A, 5);
        let req = desk.first(A);
        desk.part(req, 80_000_000, Some("\"v1\""));
        desk.bytes(req, 10_000);
        desk.close(conn, TroubleKind::Truncated);
        desk.pass(Duration::from_millis(250));
    }
    let rate = desk.fetch.status().links[0].2.bits_per_sec();
    assert!((200_000..500_000).contains(&rate), "{rate}");
}

fn mirrors() -> Desk {
    let mut desk = Desk::new(Config { origins: 2, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk
}

#[test]
fn a_mirror_that_asks_for_a_pause_is_left_for_the_next_one() {
    for status in [429, 500, 503] {
        let mut desk = mirrors();
        desk.connect(A, 5);
        let retry_after = Some(Duration::from_secs(60));
        desk.tell(Input::Head { req: desk.first(A), head: Head { status, retry_after, ..Head::default() } });
        desk.pass(Duration::from_millis(10));
        assert_eq!(desk.conns[&desk.on(A)[0]].1, OriginId(1), "{status}");
        assert!(matches!(desk.notices[..], [Notice::NextSource { from_zero: false, .. }]), "{:?}", desk.notices);
        // When that one does, too, it is waited for.
        desk.connect(A, 5);
        desk.tell(Input::Head { req: desk.first(A), head: Head { status, retry_after, ..Head::default() } });
        desk.pass(Duration::from_secs(50));
        assert!(desk.conns.is_empty());
        desk.pass(Duration::from_secs(11));
        desk.connect(A, 5);
        desk.deliver_all(A, 3_000_000, Some("\"v1\""));
        assert!(desk.done);
    }
}

#[test]
fn a_mirror_that_says_nothing_is_left_for_the_next_one() {
    for stands in [false, true] {
        let mut desk = mirrors();
        if stands {
            desk.connect(A, 5);
        }
        desk.pass(Duration::from_secs(5));
        let places: Vec<_> = desk.on(A).iter().map(|conn| desk.conns[conn].1).collect();
        assert!(!places.is_empty() && places.iter().all(|at| *at == OriginId(1)), "{places:?}");
        desk.connect(A, 5);
        desk.deliver_all(A, 3_000_000, Some("\"v1\""));
        assert!(desk.done);
    }
}

#[test]
fn a_link_that_comes_back_finds_the_mirror_that_lives() {
    let mut desk = mirrors();
    let mut asked = Vec::new();
    for _ in 0..60 {
        desk.pass(Duration::from_millis(500));
        asked.extend(desk.on(A).last().map(|conn| desk.conns[conn].1.0));
    }
    asked.dedup();
    assert!(asked.starts_with(&[0, 1, 0, 1]), "{asked:?}");
    let told = desk.notices.iter().filter(|notice| matches!(notice, Notice::NextSource { .. })).count();
    assert_eq!(told, 1, "{:?}", desk.notices);
}

#[test]
fn a_mirror_from_which_others_hear_is_not_left_by_a_silent_link() {
    let mut desk = Desk::two(Config { origins: 2, proof: Some(Proof::Whole), ..Config::default() });
    desk.connect(A, 5);
    desk.status(desk.first(A), 503);
    desk.connect(A, 5);
    desk.part(desk.first(A), 800_000_000, Some("\"v1\""));
    for _ in 0..100 {
        desk.bytes(desk.first(A), 10);
        desk.pass(Duration::from_millis(100));
    }
    assert!(desk.on(B).iter().all(|conn| desk.conns[conn].1 == OriginId(1)));
}

fn with_budget(metered: bool, budget: u64) -> LinkProfile {
    LinkProfile { metered, budget: Some(DataSize::from_bytes(budget)), ..LinkProfile::new("x", LinkKind::Lte) }
}

#[test]
fn a_budget_of_nothing_is_spent_from_the_start() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, with_budget(false, 0));
    assert_eq!(desk.notices, [Notice::BudgetSpent { link: A, budget: DataSize::ZERO }]);
    desk.pass(Duration::from_secs(2));
    assert_eq!(desk.failed, Some(Failure::Budget));

    let mut desk = Desk::new(Config::default());
    desk.link(A, with_budget(false, 0));
    desk.link(B, LinkProfile { metered: true, ..LinkProfile::new("b", LinkKind::Lte) });
    desk.connect(B, 5);
    desk.deliver_all(B, 3_000_000, Some("\"v1\""));
    assert!(desk.done, "a metered link does what the other may not: {:?}", desk.failed);
}

#[test]
fn a_whole_file_beyond_the_budget_is_not_begun() {
    let mut desk = Desk::two(Config::default());
    desk.link(A, with_budget(false, 100_000));
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(200_000), Some("\"v1\""));
    assert_eq!(desk.notices, [Notice::Banned { link: A, why: Ban::Budget, probing: false }]);
    desk.connect(B, 5);
    let req = desk.first(B);
    desk.whole(req, Some(200_000), Some("\"v1\""));
    desk.bytes(req, 200_000);
    assert!(desk.done);

    let mut desk = Desk::new(Config::default());
    desk.link(A, with_budget(false, 100_000));
    desk.connect(A, 5);
    desk.whole(desk.first(A), Some(200_000), None);
    assert_eq!(desk.failed, Some(Failure::Budget));
}

#[test]
fn a_server_that_takes_requests_and_says_nothing_is_to_blame_and_not_its_links() {
    let mut desk = Desk::two(Config::default());
    for _ in 0..130 {
        for (conn, (_, _)) in desk.conns.clone() {
            if desk.reqs.values().all(|asked| asked.conn != conn) {
                desk.stands(conn, Protocol::Http1, 5, None);
            }
        }
        desk.pass(Duration::from_secs(1));
    }
    assert_eq!(desk.failed, Some(Failure::NoAnswer));
}

#[test]
fn a_pause_is_told_with_what_was_asked_for_and_not_at_the_end() {
    let mut desk = Desk::new(Config { retries: 1, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    let hour = Duration::from_secs(3600);
    let head = Head { status: 503, retry_after: Some(hour), ..Head::default() };
    desk.connect(A, 5);
    desk.tell(Input::Head { req: desk.first(A), head: head.clone() });
    let told = [Notice::Pause { link: A, wait: Duration::from_secs(300), asked: Some(hour), status: 503 }];
    assert_eq!(desk.notices, told);
    desk.pass(Duration::from_secs(301));
    desk.connect(A, 5);
    desk.tell(Input::Head { req: desk.first(A), head });
    assert_eq!(desk.failed, Some(Failure::Status { status: 503 }));
    let pauses: Vec<_> = desk.notices.into_iter().filter(|told| matches!(told, Notice::Pause { .. })).collect();
    assert_eq!(pauses, told);
}

#[test]
fn a_forbidden_address_is_not_tried_again() {
    let mut desk = Desk::new(Config { retries: 3, ..Config::default() });
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    desk.close(desk.on(A)[0], TroubleKind::Forbidden);
    assert!(matches!(desk.failed, Some(Failure::Retries { .. })), "{:?}", desk.failed);
}

#[test]
fn an_address_that_is_forbidden_over_one_link_leaves_the_file_to_the_others() {
    let mut desk = running();
    desk.close(desk.on(A)[0], TroubleKind::Forbidden);
    assert_eq!(desk.failed, None);
    let req = desk.first(B);
    desk.bytes(req, 1000);
    assert!(desk.notices.iter().any(|n| matches!(n, Notice::Banned { link: A, .. })), "{:?}", desk.notices);
}
