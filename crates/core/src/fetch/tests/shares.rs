//! Links that other downloads share (rules of `super::super::share`).

use super::*;

const SIZE: u64 = 30_000_000;
const TAG: Option<&str> = Some("\"v1\"");

impl Desk {
    fn share_of(&mut self, link: LinkId, share: Share) {
        self.tell(Input::Share { link, share });
    }
}

#[test]
fn a_link_that_is_taken_away_finishes_what_it_was_asked_for() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    let req = desk.first(A);
    desk.part(req, SIZE, TAG);
    desk.bytes(req, 10_000);
    desk.share_of(A, Share::Rest);
    assert!(desk.reqs.contains_key(&req), "the answer is not cut off");
    desk.bytes(req, 55_536);
    desk.end(req);
    desk.deliver_all(A, SIZE, TAG);
    assert!(desk.on(A).is_empty(), "closed, for another download");
    desk.pass(Duration::from_secs(10));
    assert!(desk.on(A).is_empty());
    desk.share_of(A, Share::Full);
    desk.connect(A, 5);
    assert!(!desk.asked(A).is_empty());
}

#[test]
fn a_link_can_be_taken_away_before_it_comes() {
    let mut desk = Desk::new(Config::default());
    desk.share_of(A, Share::Rest);
    desk.link(A, LinkProfile::new("a", LinkKind::Wifi));
    assert!(desk.on(A).is_empty());
}

#[test]
fn patience_does_not_run_out_while_everything_is_taken_away() {
    let mut desk = Desk::two(Config::default());
    desk.share_of(A, Share::Rest);
    desk.share_of(B, Share::Rest);
    desk.pass(Duration::from_secs(1000));
    assert_eq!((desk.failed.clone(), desk.conns.len()), (None, 0));
    desk.share_of(B, Share::One);
    desk.connect(B, 5);
    desk.deliver_all(B, 100_000, TAG);
    assert!(desk.done, "{:?}", desk.failed);
}

#[test]
fn what_a_silent_link_was_asked_for_is_given_up_with_it() {
    let mut desk = Desk::two(Config::default());
    desk.connect(A, 5);
    desk.connect(B, 5);
    desk.part(desk.first(A), SIZE, TAG);
    desk.bytes(desk.first(A), 10_000);
    desk.share_of(A, Share::Rest);
    for _ in 0..100 {
        let req = desk.first(B);
        if desk.reqs[&req].at.is_none() {
            desk.part(req, SIZE, TAG);
        }
        desk.bytes(req, 100);
        desk.pass(Duration::from_millis(100));
    }
    assert!(desk.on(A).is_empty());
}

#[test]
fn beside_another_download_there_is_one_connection() {
    let mut desk = Desk::new(Config::default());
    desk.link(A, LinkProfile::new("a", LinkKind::Satellite));
    // On a long way several climb at once.
    desk.connect(A, 600);
    let serve = |desk: &mut Desk| {
        for conn in desk.on(A) {
            if desk.fetch.conns.get(&conn).is_some_and(|conn| !conn.is_open()) {
                desk.stands(conn, Protocol::Http1, 600, None);
            }
            let asked = desk.reqs.iter().find(|(_, asked)| asked.conn == conn).map(|(req, _)| *req);
            let Some(req) = asked else { continue };
            if desk.reqs[&req].at.is_none() {
                desk.part(req, SIZE * 10, TAG);
            }
            let Ask::Span(span) = desk.reqs[&req].ask else { panic!() };
            let left = span.end - desk.reqs[&req].at.unwrap();
            desk.bytes(req, left.min(3000));
            if left <= 3000 {
                desk.end(req);
            }
        }
        desk.pass(Duration::from_millis(100));
    };
    for _ in 0..20 {
        serve(&mut desk);
    }
    assert!(desk.on(A).len() > 1, "{}", desk.on(A).len());
    desk.share_of(A, Share::One);
    for _ in 0..400 {
        serve(&mut desk);
    }
    assert_eq!(desk.on(A).len(), 1);
}

#[test]
fn a_load_tells_what_is_wanted_and_what_is_in_use() {
    let mut desk = Desk::two(Config::default());
    let load = |desk: &Desk, link: LinkId| desk.fetch.loads().into_iter().find(|load| load.link == link).unwrap();
    assert!(load(&desk, A).wants && load(&desk, A).busy);
    desk.share_of(A, Share::Rest);
    assert!(load(&desk, A).wants && !load(&desk, A).busy);
    desk.connect(B, 5);
    desk.whole(desk.first(B), Some(SIZE), TAG);
    desk.pass(Duration::from_secs(20));
    assert!(!load(&desk, A).wants, "everything comes as one answer over the other link");
    assert!(load(&desk, B).wants);
}
