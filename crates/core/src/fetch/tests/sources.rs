//! Several URLs of one file (rules of `super::super::sources`).

use super::*;
use crate::fetch::Resume;

const SIZE: u64 = 3_000_000;
const TAG: Option<&str> = Some("\"v1\"");
const FIRST: OriginId = OriginId(0);
const SECOND: OriginId = OriginId(1);

fn two_sources() -> Config {
    Config { origins: 2, ..Config::default() }
}

fn proven(proof: Proof) -> Config {
    Config { proof: Some(proof), ..two_sources() }
}

impl Desk {
    /// Every connection that was ordered stands, and every request is answered by its source's server: with its range,
    /// or with this status.
    fn serve(&mut self, status: impl Fn(OriginId) -> u16, most: u32) {
        for _ in 0..most {
            if self.done || self.failed.is_some() {
                return;
            }
            for (conn, (_, origin)) in self.conns.clone() {
                if self.fetch.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    self.stands(conn, Protocol::Http1, 5, None);
                }
                let asked = self.reqs.iter().find(|(_, asked)| asked.conn == conn).map(|(req, _)| *req);
                let Some(req) = asked else { continue };
                match status(origin) {
                    206 => self.answer(req),
                    status => self.status(req, status),
                }
                if self.done || self.failed.is_some() {
                    return;
                }
            }
            self.pass(Duration::from_millis(10));
        }
    }

    fn answer(&mut self, req: ReqId) {
        let Some(Asked { at: None, ask, .. }) = self.reqs.get(&req).cloned() else { return };
        self.part(req, SIZE, TAG);
        if let (Ask::Span(span), true) = (ask, self.reqs.contains_key(&req)) {
            self.bytes(req, span.intersect(Span::new(0, SIZE)).len().bytes());
        }
        if self.reqs.contains_key(&req) {
            self.end(req);
        }
    }

    /// The sources of which something is in its place.
    fn used(&self) -> Vec<OriginId> {
        let mut of: Vec<OriginId> = self.came.iter().map(|(origin, _)| *origin).collect();
        of.sort();
        of.dedup();
        of
    }

    /// Answers what is to be verified; `good` judges by the sources of the bytes.
    fn judge(&mut self, good: impl Fn(Span, &[OriginId]) -> bool) {
        for span in core::mem::take(&mut self.verify) {
            // What came last is in its place.
            let mut of: BTreeMap<u64, OriginId> = BTreeMap::new();
            for (origin, came) in &self.came {
                let both = came.intersect(span);
                (both.start..both.end).step_by(1000).for_each(|at| {
                    of.insert(at / 1000, *origin);
                });
            }
            let mut of: Vec<OriginId> = of.into_values().collect();
            of.sort();
            of.dedup();
            let good = good(span, &of);
            self.tell(Input::Verified { span, good });
        }
    }
}

#[test]
fn equal_lengths_and_validators_do_not_make_one_file_of_two_urls() {
    let mut desk = Desk::two(two_sources());
    desk.serve(|_| 206, 1000);
    assert!(desk.done);
    assert_eq!(desk.used(), [FIRST]);
    assert!(desk.verify.is_empty());
}

#[test]
fn a_source_that_refuses_from_the_start_is_left_by_all_links() {
    for status in [404, 403, 503, 429, 451] {
        let mut desk = Desk::two(two_sources());
        desk.serve(|origin| if origin == FIRST { status } else { 206 }, 3000);
        assert!(desk.done, "{status}: {:?} {:?}", desk.failed, desk.notices);
        assert_eq!(desk.used(), [SECOND], "{status}");
        let left = |notice: &&Notice| matches!(notice, Notice::NextSource { from_zero: false, .. });
        assert_eq!(desk.notices.iter().filter(left).count(), 1, "{:?}", desk.notices);
    }
}

#[test]
fn of_a_source_that_fails_half_way_nothing_is_kept() {
    let mut desk = Desk::two(two_sources());
    desk.serve(|_| 206, 2);
    assert!(!desk.done && desk.fetch.status().done.bytes() > 100_000);
    desk.serve(|origin| if origin == FIRST { 404 } else { 206 }, 30_000);
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    assert_eq!((desk.used(), desk.restarts), ([SECOND].to_vec(), 1), "{:?}", desk.notices);
    let told = |notice: &Notice| matches!(notice, Notice::NextSource { left: FIRST, from_zero: true, .. });
    assert!(desk.notices.iter().any(told), "{:?}", desk.notices);
}

#[test]
fn when_no_source_has_the_file_the_last_refusal_is_the_end() {
    let mut desk = Desk::two(two_sources());
    desk.serve(|origin| if origin == FIRST { 403 } else { 404 }, 3000);
    assert_eq!(desk.failed, Some(Failure::Status { status: 404 }));
}

#[test]
fn a_refusal_over_all_links_blames_none_of_them() {
    let mut desk = Desk::two(Config::default());
    desk.serve(|_| 404, 3000);
    assert_eq!(desk.failed, Some(Failure::Status { status: 404 }));
    assert_eq!(desk.notices, []);
}

#[test]
fn an_earlier_run_goes_on_with_the_source_that_it_was_of() {
    let resume = |source| Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        have: alloc::vec![Span::new(0, 1_000_000)],
        source,
    };
    let mut desk = Desk::two(Config { resume: Some(resume(Some(SECOND))), ..two_sources() });
    desk.connect(A, 5);
    assert_eq!(desk.asked(A)[0].1.if_range, Some(Validator::Etag("\"v1\"".into())));
    desk.serve(|_| 206, 1000);
    assert!(desk.done && desk.restarts == 0);
    assert_eq!(desk.used(), [SECOND]);

    // That one is gone: its bytes are of no use for the other one, though that has the same validator.
    let mut desk = Desk::two(Config { resume: Some(resume(Some(SECOND))), ..two_sources() });
    desk.serve(|origin| if origin == SECOND { 404 } else { 206 }, 30_000);
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    assert_eq!((desk.used(), desk.restarts), ([FIRST].to_vec(), 1));
}

#[test]
fn a_digest_lets_every_link_ask_another_source_and_is_verified() {
    let mut desk = Desk::two(proven(Proof::Whole));
    desk.serve(|_| 206, 100);
    assert_eq!(desk.used(), [FIRST, SECOND]);
    assert!(!desk.done && desk.conns.is_empty(), "nothing may change the bytes now");
    assert_eq!(desk.verify, [Span::new(0, SIZE)]);
    // However long that takes.
    desk.pass(Duration::from_secs(1000));
    desk.judge(|_, _| true);
    assert!(desk.done);
}

#[test]
fn a_whole_that_does_not_match_is_fetched_again_from_one_source_after_the_other() {
    for liar in [FIRST, SECOND] {
        let mut desk = Desk::two(proven(Proof::Whole));
        desk.serve(|_| 206, 100);
        desk.judge(|_, of| !of.contains(&liar));
        assert!(!desk.done && desk.restarts == 1);
        desk.serve(|_| 206, 1000);
        assert_eq!(desk.used(), [FIRST], "one alone");
        desk.judge(|_, of| !of.contains(&liar));
        if liar == FIRST {
            assert!(!desk.done && desk.failed.is_none(), "the other one may be right");
            desk.serve(|_| 206, 1000);
            assert_eq!(desk.used(), [SECOND]);
            desk.judge(|_, of| !of.contains(&liar));
        }
        assert!(desk.done, "{:?}", desk.notices);
    }
}

/// What a source does with each request.
#[derive(Clone, Copy)]
enum Manner {
    Ranges,
    Status(u16),
    /// A whole file of so many bytes without a validator.
    Whole(u64),
    /// The same, and the connection ends after so many bytes.
    Breaks(u64, u64),
}

impl Desk {
    /// Every connection stands, every request is answered in its source's manner, and what is to be verified is verified.
    fn serve_each(&mut self, manner: impl Fn(OriginId) -> Manner, good: impl Fn(&[OriginId]) -> bool) {
        for _ in 0..2000 {
            for (conn, (_, origin)) in self.conns.clone() {
                if self.fetch.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    self.stands(conn, Protocol::Http1, 5, None);
                }
                let asked = self.reqs.iter().find(|(_, asked)| asked.conn == conn).map(|(req, _)| *req);
                let Some(req) = asked else { continue };
                match manner(origin) {
                    Manner::Ranges => {
                        self.part(req, SIZE, TAG);
                        let len = self.lens.get(&req).copied().flatten().map(DataSize::bytes);
                        if let Some(len) = len.filter(|_| self.reqs.contains_key(&req)) {
                            self.bytes(req, len);
                        }
                        if self.reqs.contains_key(&req) {
                            self.end(req);
                        }
                    }
                    Manner::Status(status) => self.status(req, status),
                    Manner::Whole(size) | Manner::Breaks(_, size) => {
                        self.whole(req, Some(size), None);
                        let is_taken = |desk: &Self| desk.reqs.get(&req).is_some_and(|asked| asked.at.is_some());
                        match manner(origin) {
                            Manner::Breaks(at, _) if is_taken(self) => {
                                if at > 0 {
                                    self.bytes(req, at);
                                }
                                self.close(conn, TroubleKind::Truncated);
                            }
                            _ if is_taken(self) => {
                                self.bytes(req, size);
                                self.end(req);
                            }
                            _ => {}
                        }
                    }
                }
            }
            self.judge(|_, of| good(of));
            if self.done || self.failed.is_some() {
                return;
            }
            self.pass(Duration::from_millis(10));
        }
    }
}

#[test]
fn where_a_digest_decides_the_next_source_is_asked_whatever_the_others_do() {
    use Manner::{Breaks, Ranges, Status, Whole};
    let lists: [&[Manner]; 9] = [
        &[Breaks(300_000, SIZE), Ranges],
        &[Breaks(300_000, SIZE), Whole(SIZE)],
        &[Breaks(0, SIZE), Ranges],
        &[Status(404), Breaks(300_000, SIZE), Whole(2000), Ranges],
        &[Breaks(1, SIZE), Breaks(SIZE - 1, SIZE), Breaks(10, 1000), Status(503), Ranges],
        // All but the last one deliver another file.
        &[Ranges, Ranges, Ranges],
        &[Whole(SIZE), Ranges, Whole(SIZE - 1), Ranges, Ranges],
        &[Ranges, Breaks(300_000, SIZE), Ranges, Status(404), Whole(SIZE)],
        &[Whole(2000), Whole(2000), Whole(2000), Whole(2000), Whole(2000), Whole(SIZE)],
    ];
    for list in lists {
        for links in [1, 2] {
            let config = Config {
                origins: u16::try_from(list.len()).unwrap(),
                proof: Some(Proof::Whole),
                open_first: true,
                ..Config::default()
            };
            let mut desk = if links == 2 { Desk::two(config) } else { Desk::new(config) };
            if links == 1 {
                desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
            }
            let last = OriginId(u16::try_from(list.len() - 1).unwrap());
            let manner = |origin: OriginId| list[usize::from(origin.0)];
            desk.serve_each(manner, |of| of == [last]);
            let case = list.iter().map(|manner| match manner {
                Ranges => "ranges".into(),
                Status(status) => status.to_string(),
                Whole(size) => alloc::format!("whole {size}"),
                Breaks(at, _) => alloc::format!("breaks {at}"),
            });
            let case: Vec<_> = case.collect();
            assert!(desk.done, "{links} links, {case:?}: {:?} {:#?}", desk.failed, desk.notices);
            assert!(
                desk.stood.len() < 40 * list.len(),
                "{links} links, {case:?}: {} connections",
                desk.stood.len()
            );
        }
    }
}

#[test]
fn where_every_source_fails_the_download_ends_soon() {
    use Manner::{Breaks, Ranges, Status, Whole};
    let lists: [&[Manner]; 6] = [
        &[Breaks(300_000, SIZE), Breaks(300_000, SIZE)],
        &[Ranges, Whole(SIZE), Ranges],
        &[Status(404), Breaks(300_000, SIZE), Status(404)],
        &[Ranges; 12],
        &[Status(404), Ranges],
        &[Ranges, Status(403)],
    ];
    for list in lists {
        let origins = u16::try_from(list.len()).unwrap();
        let mut desk = Desk::two(Config { origins, proof: Some(Proof::Whole), ..Config::default() });
        desk.serve_each(|origin: OriginId| list[usize::from(origin.0)], |_| false);
        let has_other = list.iter().any(|manner| matches!(manner, Ranges | Whole(_)));
        let at = lists.iter().position(|other| core::ptr::eq(*other, list));
        assert!(desk.failed.is_some(), "{at:?}: {:#?}", desk.notices);
        assert_eq!(desk.failed == Some(Failure::Digest), has_other, "{at:?}: {:?}", desk.failed);
        assert!(
            desk.restarts <= 40 && desk.stood.len() < 60 * list.len(),
            "{} {}",
            desk.restarts,
            desk.stood.len()
        );
    }
}

#[test]
fn a_source_that_delivers_a_bad_piece_is_excluded_and_good_pieces_stay() {
    let mut desk = Desk::two(proven(Proof::Pieces(DataSize::from_bytes(30_000))));
    for _ in 0..2000 {
        desk.serve(|_| 206, 1);
        desk.judge(|_, of| !of.contains(&SECOND));
    }
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
    assert_eq!(desk.restarts, 0);
    let told = |notice: &Notice| matches!(notice, Notice::Mismatch { .. });
    assert!(desk.notices.iter().any(told), "{:?}", desk.notices);
    let wasted = desk.fetch.status().wasted.bytes();
    assert!(wasted > 0 && wasted < SIZE / 2, "{wasted}");
}

#[test]
fn the_first_source_may_be_the_liar() {
    let mut desk = Desk::two(proven(Proof::Pieces(DataSize::from_bytes(100_000))));
    for _ in 0..2000 {
        desk.serve(|_| 206, 1);
        desk.judge(|_, of| !of.contains(&FIRST));
    }
    assert!(desk.done, "{:?} {:?}", desk.failed, desk.notices);
}

#[test]
fn when_all_sources_lie_the_digest_is_the_reason() {
    let mut desk = Desk::two(proven(Proof::Pieces(DataSize::from_bytes(100_000))));
    for _ in 0..2000 {
        desk.serve(|_| 206, 1);
        desk.judge(|_, _| false);
    }
    assert_eq!(desk.failed, Some(Failure::Digest));
}

#[test]
fn bytes_of_an_earlier_run_are_verified_too() {
    let resume = Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        have: alloc::vec![Span::new(0, 1_000_000)],
        source: None,
    };
    let config = Config { resume: Some(resume), ..proven(Proof::Pieces(DataSize::from_bytes(100_000))) };
    let mut desk = Desk::two(config);
    let bad = Span::new(200_000, 300_000);
    let mut seen = false;
    for _ in 0..1000 {
        let first = !seen;
        seen |= desk.verify.contains(&bad);
        desk.judge(|span, _| span != bad || !first);
        desk.serve(|_| 206, 1);
    }
    assert!(desk.done && seen, "{:?} {:?}", desk.failed, desk.notices);
    assert!(desk.came.iter().any(|(_, span)| !span.intersect(bad).is_empty()), "fetched again");
}

#[test]
fn a_source_that_a_server_names_is_asked_when_that_one_fails() {
    let mut desk = Desk::two(Config::default());
    desk.tell(Input::Source { origin: OriginId(7) });
    desk.serve(|_| 206, 2);
    assert_eq!(desk.used(), [FIRST]);
    desk.serve(|origin| if origin == FIRST { 404 } else { 206 }, 30_000);
    assert!(desk.done, "{:?}", desk.notices);
    assert_eq!((desk.used(), desk.restarts), ([OriginId(7)].to_vec(), 1));
}

#[test]
fn a_digest_that_a_server_tells_lets_sources_be_combined_later() {
    let mut desk = Desk::two(two_sources());
    desk.tell(Input::Proof { proof: Proof::Whole });
    desk.serve(|_| 206, 2);
    assert_eq!(desk.used(), [FIRST]);
    desk.serve(|origin| if origin == FIRST { 404 } else { 206 }, 30_000);
    assert_eq!((desk.used(), desk.restarts), ([FIRST, SECOND].to_vec(), 0), "{:?}", desk.notices);
    desk.judge(|_, _| true);
    assert!(desk.done);
}

#[test]
fn a_file_of_another_size_than_expected_is_not_begun() {
    let mut desk = Desk::two(Config { expected: Some(DataSize::from_bytes(SIZE + 1)), ..Config::default() });
    desk.serve(|_| 206, 100);
    assert!(matches!(desk.failed, Some(Failure::Protocol { .. })), "{:?}", desk.failed);
    assert!(desk.came.is_empty());
}

#[test]
fn a_reader_in_order_never_gets_bytes_of_two_sources() {
    let window = Some(DataSize::from_mib(16));
    let mut desk = Desk::two(Config { window, ..proven(Proof::Whole) });
    desk.serve(|_| 206, 2);
    desk.tell(Input::Consumed { upto: 1000 });
    desk.serve(|origin| if origin == FIRST { 404 } else { 206 }, 30_000);
    assert!(!desk.done && desk.restarts == 0);
    assert_eq!(desk.used(), [FIRST]);
}
