//! Several mirrors of one file (`mirrors`).

use super::*;
use crate::fetch::Resume;

const SIZE: u64 = 3_000_000;
const TAG: Option<&str> = Some("\"v1\"");
const FIRST_MIRROR: UrlId = UrlId(0);
const SECOND_MIRROR: UrlId = UrlId(1);

fn two_mirrors() -> Config {
    Config { mirrors: 2, ..Config::default() }
}

fn digest_config(scope: DigestScope) -> Config {
    Config { digest: Some(scope), ..two_mirrors() }
}

impl TestDriver {
    /// Establishes every connection and responds to every request: with its range if `status` is 206 for the request's
    /// mirror, otherwise with that status. `most`: number of rounds, 10 ms each.
    fn serve(&mut self, status: impl Fn(UrlId) -> u16, most: u32) {
        for _ in 0..most {
            if self.done || self.failed.is_some() {
                return;
            }
            for (conn, (_, mirror)) in self.conns.clone() {
                if self.fetch.transfers.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    self.on_connected(conn, Protocol::Http1, 5, None);
                }
                let request = self.reqs.iter().find(|(_, request)| request.conn == conn).map(|(req, _)| *req);
                let Some(req) = request else { continue };
                match status(mirror) {
                    206 => self.respond(req),
                    status => self.respond_status(req, status),
                }
                if self.done || self.failed.is_some() {
                    return;
                }
            }
            self.advance(Duration::from_millis(10));
        }
    }

    fn respond(&mut self, req: ReqId) {
        let Some(SentRequest { next_offset: None, range: requested, .. }) = self.reqs.get(&req).cloned() else {
            return;
        };
        self.respond_partial(req, SIZE, TAG);
        if let (RequestRange::Bounded(range), true) = (requested, self.reqs.contains_key(&req)) {
            self.deliver(req, range.intersect(ByteRange::new(0, SIZE)).len().bytes());
        }
        if self.reqs.contains_key(&req) {
            self.end_response(req);
        }
    }

    /// The mirrors from which bytes are stored.
    fn mirrors_used(&self) -> Vec<UrlId> {
        let mut mirrors: Vec<UrlId> = self.received.iter().map(|(mirror, _)| *mirror).collect();
        mirrors.sort();
        mirrors.dedup();
        mirrors
    }

    /// Responds to `Verify` outputs. `good` decides by the range and the mirrors of its bytes.
    fn verify_ranges(&mut self, good: impl Fn(ByteRange, &[UrlId]) -> bool) {
        for range in core::mem::take(&mut self.verify) {
            // The bytes that arrived last are stored.
            let mut by_offset: BTreeMap<u64, UrlId> = BTreeMap::new();
            for (mirror, received) in &self.received {
                let both = received.intersect(range);
                (both.start..both.end).step_by(1000).for_each(|at| {
                    by_offset.insert(at / 1000, *mirror);
                });
            }
            let mut mirrors: Vec<UrlId> = by_offset.into_values().collect();
            mirrors.sort();
            mirrors.dedup();
            let good = good(range, &mirrors);
            self.handle(Input::Verified { range, matches: good });
        }
    }
}

#[test]
fn without_a_digest_equal_lengths_and_validators_do_not_combine_two_mirrors() {
    let mut driver = TestDriver::with_two_links(two_mirrors());
    driver.serve(|_| 206, 1000);
    assert!(driver.done);
    assert_eq!(driver.mirrors_used(), [FIRST_MIRROR]);
    assert!(driver.verify.is_empty());
}

#[test]
fn a_mirror_that_refuses_from_the_start_is_left_by_all_links() {
    for status in [404, 403, 503, 429, 451] {
        let mut driver = TestDriver::with_two_links(two_mirrors());
        driver.serve(|mirror| if mirror == FIRST_MIRROR { status } else { 206 }, 3000);
        assert!(driver.done, "{status}: {:?} {:?}", driver.failed, driver.notices);
        assert_eq!(driver.mirrors_used(), [SECOND_MIRROR], "{status}");
        let left = |notice: &&Notice| matches!(notice, Notice::MirrorSwitched { discards_data: false, .. });
        assert_eq!(driver.notices.iter().filter(left).count(), 1, "{:?}", driver.notices);
    }
}

#[test]
fn nothing_is_kept_of_a_mirror_that_fails_half_way() {
    let mut driver = TestDriver::with_two_links(two_mirrors());
    driver.serve(|_| 206, 2);
    assert!(!driver.done && driver.fetch.status().received.bytes() > 100_000);
    driver.serve(|mirror| if mirror == FIRST_MIRROR { 404 } else { 206 }, 30_000);
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    assert_eq!((driver.mirrors_used(), driver.restarts), ([SECOND_MIRROR].to_vec(), 1), "{:?}", driver.notices);
    let is_switch = |notice: &Notice| {
        matches!(notice, Notice::MirrorSwitched { failed: FIRST_MIRROR, discards_data: true, .. })
    };
    assert!(driver.notices.iter().any(is_switch), "{:?}", driver.notices);
}

#[test]
fn if_no_mirror_has_the_file_the_last_refusal_is_reported() {
    let mut driver = TestDriver::with_two_links(two_mirrors());
    driver.serve(|mirror| if mirror == FIRST_MIRROR { 403 } else { 404 }, 3000);
    assert_eq!(driver.failed, Some(Failure::BadStatus { status: 404 }));
}

#[test]
fn a_refusal_over_all_links_bans_none_of_them() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.serve(|_| 404, 3000);
    assert_eq!(driver.failed, Some(Failure::BadStatus { status: 404 }));
    assert_eq!(driver.notices, []);
}

#[test]
fn a_resumed_download_continues_with_its_mirror() {
    let resume = |mirror| Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        ranges: alloc::vec![ByteRange::new(0, 1_000_000)],
        mirror,
    };
    let mut driver =
        TestDriver::with_two_links(Config { resume: Some(resume(Some(SECOND_MIRROR))), ..two_mirrors() });
    driver.connect_newest(A, 5);
    assert_eq!(driver.requests_on(A)[0].1.if_range, Some(Validator::Etag("\"v1\"".into())));
    driver.serve(|_| 206, 1000);
    assert!(driver.done && driver.restarts == 0);
    assert_eq!(driver.mirrors_used(), [SECOND_MIRROR]);

    // That mirror is gone. Its bytes are not used for the other one, although that has the same validator.
    let mut driver =
        TestDriver::with_two_links(Config { resume: Some(resume(Some(SECOND_MIRROR))), ..two_mirrors() });
    driver.serve(|mirror| if mirror == SECOND_MIRROR { 404 } else { 206 }, 30_000);
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    assert_eq!((driver.mirrors_used(), driver.restarts), ([FIRST_MIRROR].to_vec(), 1));
}

#[test]
fn with_a_digest_each_link_uses_another_mirror_and_the_file_is_verified() {
    let mut driver = TestDriver::with_two_links(digest_config(DigestScope::File));
    driver.serve(|_| 206, 100);
    assert_eq!(driver.mirrors_used(), [FIRST_MIRROR, SECOND_MIRROR]);
    assert!(!driver.done && driver.conns.is_empty(), "nothing may change the bytes during verification");
    assert_eq!(driver.verify, [ByteRange::new(0, SIZE)]);
    // However long the verification takes.
    driver.advance(Duration::from_secs(1000));
    driver.verify_ranges(|_, _| true);
    assert!(driver.done);
}

#[test]
fn after_a_mismatch_the_file_is_fetched_from_one_mirror_after_the_other() {
    for bad_mirror in [FIRST_MIRROR, SECOND_MIRROR] {
        let mut driver = TestDriver::with_two_links(digest_config(DigestScope::File));
        driver.serve(|_| 206, 100);
        driver.verify_ranges(|_, mirrors| !mirrors.contains(&bad_mirror));
        assert!(!driver.done && driver.restarts == 1);
        driver.serve(|_| 206, 1000);
        assert_eq!(driver.mirrors_used(), [FIRST_MIRROR], "only one mirror");
        driver.verify_ranges(|_, mirrors| !mirrors.contains(&bad_mirror));
        if bad_mirror == FIRST_MIRROR {
            assert!(!driver.done && driver.failed.is_none(), "the other mirror may have the right file");
            driver.serve(|_| 206, 1000);
            assert_eq!(driver.mirrors_used(), [SECOND_MIRROR]);
            driver.verify_ranges(|_, mirrors| !mirrors.contains(&bad_mirror));
        }
        assert!(driver.done, "{:?}", driver.notices);
    }
}

/// How a mirror responds to each request.
#[derive(Clone, Copy)]
enum MirrorBehaviour {
    Ranges,
    Status(u16),
    /// A whole file of this size without a validator.
    Full(u64),
    /// The same with the second value as the size, but the connection ends after the first number of bytes.
    Truncated(u64, u64),
}

impl TestDriver {
    /// Establishes every connection, responds to every request as its mirror does, and verifies what is to be verified.
    fn serve_each(&mut self, behaviour: impl Fn(UrlId) -> MirrorBehaviour, good: impl Fn(&[UrlId]) -> bool) {
        for _ in 0..2000 {
            for (conn, (_, mirror)) in self.conns.clone() {
                if self.fetch.transfers.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                    self.on_connected(conn, Protocol::Http1, 5, None);
                }
                let request = self.reqs.iter().find(|(_, request)| request.conn == conn).map(|(req, _)| *req);
                let Some(req) = request else { continue };
                match behaviour(mirror) {
                    MirrorBehaviour::Ranges => {
                        self.respond_partial(req, SIZE, TAG);
                        let len = self.accepted_lens.get(&req).copied().flatten().map(DataSize::bytes);
                        if let Some(len) = len.filter(|_| self.reqs.contains_key(&req)) {
                            self.deliver(req, len);
                        }
                        if self.reqs.contains_key(&req) {
                            self.end_response(req);
                        }
                    }
                    MirrorBehaviour::Status(status) => self.respond_status(req, status),
                    MirrorBehaviour::Full(size) | MirrorBehaviour::Truncated(_, size) => {
                        self.respond_full(req, Some(size), None);
                        let is_taken = |driver: &Self| {
                            driver.reqs.get(&req).is_some_and(|request| request.next_offset.is_some())
                        };
                        match behaviour(mirror) {
                            MirrorBehaviour::Truncated(at, _) if is_taken(self) => {
                                if at > 0 {
                                    self.deliver(req, at);
                                }
                                self.close_conn(conn, ConnErrorKind::Truncated);
                            }
                            _ if is_taken(self) => {
                                self.deliver(req, size);
                                self.end_response(req);
                            }
                            _ => {}
                        }
                    }
                }
            }
            self.verify_ranges(|_, mirrors| good(mirrors));
            if self.done || self.failed.is_some() {
                return;
            }
            self.advance(Duration::from_millis(10));
        }
    }
}

#[test]
fn with_a_digest_a_good_mirror_is_found_whatever_the_others_do() {
    use MirrorBehaviour::{Full, Ranges, Status, Truncated};
    let lists: [&[MirrorBehaviour]; 9] = [
        &[Truncated(300_000, SIZE), Ranges],
        &[Truncated(300_000, SIZE), Full(SIZE)],
        &[Truncated(0, SIZE), Ranges],
        &[Status(404), Truncated(300_000, SIZE), Full(2000), Ranges],
        &[Truncated(1, SIZE), Truncated(SIZE - 1, SIZE), Truncated(10, 1000), Status(503), Ranges],
        // All mirrors except the last one deliver another file.
        &[Ranges, Ranges, Ranges],
        &[Full(SIZE), Ranges, Full(SIZE - 1), Ranges, Ranges],
        &[Ranges, Truncated(300_000, SIZE), Ranges, Status(404), Full(SIZE)],
        &[Full(2000), Full(2000), Full(2000), Full(2000), Full(2000), Full(SIZE)],
    ];
    for list in lists {
        for links in [1, 2] {
            let config = Config {
                mirrors: u16::try_from(list.len()).unwrap(),
                digest: Some(DigestScope::File),
                open_ended_first: true,
                ..Config::default()
            };
            let mut driver = if links == 2 { TestDriver::with_two_links(config) } else { TestDriver::new(config) };
            if links == 1 {
                driver.link_up(A, LinkProfile::new("a", LinkKind::Wifi));
            }
            let last = UrlId(u16::try_from(list.len() - 1).unwrap());
            let behaviour = |mirror: UrlId| list[usize::from(mirror.0)];
            driver.serve_each(behaviour, |mirrors| mirrors == [last]);
            let case = list.iter().map(|behaviour| match behaviour {
                Ranges => "ranges".into(),
                Status(status) => status.to_string(),
                Full(size) => alloc::format!("whole {size}"),
                Truncated(at, _) => alloc::format!("breaks {at}"),
            });
            let case: Vec<_> = case.collect();
            assert!(driver.done, "{links} links, {case:?}: {:?} {:#?}", driver.failed, driver.notices);
            assert!(
                driver.connected.len() < 40 * list.len(),
                "{links} links, {case:?}: {} connections",
                driver.connected.len()
            );
        }
    }
}

#[test]
fn if_every_mirror_fails_the_download_ends_soon() {
    use MirrorBehaviour::{Full, Ranges, Status, Truncated};
    let lists: [&[MirrorBehaviour]; 6] = [
        &[Truncated(300_000, SIZE), Truncated(300_000, SIZE)],
        &[Ranges, Full(SIZE), Ranges],
        &[Status(404), Truncated(300_000, SIZE), Status(404)],
        &[Ranges; 12],
        &[Status(404), Ranges],
        &[Ranges, Status(403)],
    ];
    for list in lists {
        let mirrors = u16::try_from(list.len()).unwrap();
        let mut driver =
            TestDriver::with_two_links(Config { mirrors, digest: Some(DigestScope::File), ..Config::default() });
        driver.serve_each(|mirror: UrlId| list[usize::from(mirror.0)], |_| false);
        let has_other = list.iter().any(|behaviour| matches!(behaviour, Ranges | Full(_)));
        let at = lists.iter().position(|other| core::ptr::eq(*other, list));
        assert!(driver.failed.is_some(), "{at:?}: {:#?}", driver.notices);
        assert_eq!(driver.failed == Some(Failure::DigestMismatch), has_other, "{at:?}: {:?}", driver.failed);
        assert!(
            driver.restarts <= 40 && driver.connected.len() < 60 * list.len(),
            "{} {}",
            driver.restarts,
            driver.connected.len()
        );
    }
}

#[test]
fn a_mirror_that_delivers_a_bad_piece_is_excluded_and_good_pieces_are_kept() {
    let mut driver = TestDriver::with_two_links(digest_config(DigestScope::Pieces(DataSize::from_bytes(30_000))));
    for _ in 0..2000 {
        driver.serve(|_| 206, 1);
        driver.verify_ranges(|_, mirrors| !mirrors.contains(&SECOND_MIRROR));
    }
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
    assert_eq!(driver.restarts, 0);
    let is_mismatch = |notice: &Notice| matches!(notice, Notice::DigestMismatch { .. });
    assert!(driver.notices.iter().any(is_mismatch), "{:?}", driver.notices);
    let wasted = driver.fetch.status().wasted.bytes();
    assert!(wasted > 0 && wasted < SIZE / 2, "{wasted}");
}

#[test]
fn the_first_mirror_may_be_the_bad_one() {
    let mut driver = TestDriver::with_two_links(digest_config(DigestScope::Pieces(DataSize::from_bytes(100_000))));
    for _ in 0..2000 {
        driver.serve(|_| 206, 1);
        driver.verify_ranges(|_, mirrors| !mirrors.contains(&FIRST_MIRROR));
    }
    assert!(driver.done, "{:?} {:?}", driver.failed, driver.notices);
}

#[test]
fn if_all_mirrors_deliver_bad_pieces_a_digest_mismatch_is_reported() {
    let mut driver = TestDriver::with_two_links(digest_config(DigestScope::Pieces(DataSize::from_bytes(100_000))));
    for _ in 0..2000 {
        driver.serve(|_| 206, 1);
        driver.verify_ranges(|_, _| false);
    }
    assert_eq!(driver.failed, Some(Failure::DigestMismatch));
}

#[test]
fn bytes_of_an_earlier_run_are_verified_too() {
    let resume = Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        ranges: alloc::vec![ByteRange::new(0, 1_000_000)],
        mirror: None,
    };
    let config =
        Config { resume: Some(resume), ..digest_config(DigestScope::Pieces(DataSize::from_bytes(100_000))) };
    let mut driver = TestDriver::with_two_links(config);
    let bad = ByteRange::new(200_000, 300_000);
    let mut has_mismatched = false;
    for _ in 0..1000 {
        let first = !has_mismatched;
        has_mismatched |= driver.verify.contains(&bad);
        driver.verify_ranges(|range, _| range != bad || !first);
        driver.serve(|_| 206, 1);
    }
    assert!(driver.done && has_mismatched, "{:?} {:?}", driver.failed, driver.notices);
    assert!(driver.received.iter().any(|(_, range)| !range.intersect(bad).is_empty()), "fetched again");
}

#[test]
fn a_mirror_named_by_a_server_is_used_when_the_first_one_fails() {
    let mut driver = TestDriver::with_two_links(Config::default());
    driver.handle(Input::Mirror { mirror: UrlId(7) });
    driver.serve(|_| 206, 2);
    assert_eq!(driver.mirrors_used(), [FIRST_MIRROR]);
    driver.serve(|mirror| if mirror == FIRST_MIRROR { 404 } else { 206 }, 30_000);
    assert!(driver.done, "{:?}", driver.notices);
    assert_eq!((driver.mirrors_used(), driver.restarts), ([UrlId(7)].to_vec(), 1));
}

#[test]
fn a_digest_named_by_a_server_lets_mirrors_be_combined_later() {
    let mut driver = TestDriver::with_two_links(two_mirrors());
    driver.handle(Input::Digest { scope: DigestScope::File });
    driver.serve(|_| 206, 2);
    assert_eq!(driver.mirrors_used(), [FIRST_MIRROR]);
    driver.serve(|mirror| if mirror == FIRST_MIRROR { 404 } else { 206 }, 30_000);
    assert_eq!(
        (driver.mirrors_used(), driver.restarts),
        ([FIRST_MIRROR, SECOND_MIRROR].to_vec(), 0),
        "{:?}",
        driver.notices
    );
    driver.verify_ranges(|_, _| true);
    assert!(driver.done);
}

#[test]
fn a_file_of_another_size_than_expected_is_not_begun() {
    let mut driver = TestDriver::with_two_links(Config {
        expected_size: Some(DataSize::from_bytes(SIZE + 1)),
        ..Config::default()
    });
    driver.serve(|_| 206, 100);
    assert!(matches!(driver.failed, Some(Failure::ProtocolViolation { .. })), "{:?}", driver.failed);
    assert!(driver.received.is_empty());
}

#[test]
fn an_in_order_reader_never_gets_bytes_of_two_mirrors() {
    let window = Some(DataSize::from_mib(16));
    let mut driver =
        TestDriver::with_two_links(Config { reader_window: window, ..digest_config(DigestScope::File) });
    driver.serve(|_| 206, 2);
    driver.handle(Input::Consumed { end: 1000 });
    driver.serve(|mirror| if mirror == FIRST_MIRROR { 404 } else { 206 }, 30_000);
    assert!(!driver.done && driver.restarts == 0);
    assert_eq!(driver.mirrors_used(), [FIRST_MIRROR]);
}
