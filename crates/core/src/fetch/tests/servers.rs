//! Servers for the tests: heads that they send, and a loop that lets one respond to every request.

use super::*;
use crate::fetch::Resume;

/// Length of the file in bytes.
pub(super) const SIZE: u64 = 3_000_000;
/// ETag of the file.
pub(super) const TAG: Option<&str> = Some("\"v1\"");

pub(super) fn bytes(n: u64) -> Option<DataSize> {
    Some(DataSize::from_bytes(n))
}

pub(super) fn etag(tag: &str) -> Option<Validator> {
    Some(Validator::Etag(tag.into()))
}

/// A driver with one link.
pub(super) fn one_link() -> TestDriver {
    TestDriver::with_one_link(Config::default())
}

/// Head of a 206 with these bytes.
pub(super) fn partial_head(range: ByteRange, total: u64, tag: Option<&str>) -> ResponseHead {
    ResponseHead {
        status: 206,
        length: Some(range.len()),
        range: Some(ContentRange { range: Some(range), total: bytes(total) }),
        validator: tag.and_then(etag),
        ..ResponseHead::default()
    }
}

pub(super) fn requested_range(driver: &TestDriver, req: ReqId) -> ByteRange {
    match driver.reqs[&req].range {
        RequestRange::Bounded(range) => range,
        requested => panic!("{requested:?}"),
    }
}

/// Responds to requests, one at a time per connection, until the download is over. `respond` gives the response head;
/// none: not yet. With status 0 the connection is reset instead. A connection is closed if its response was longer than
/// accepted, or if the head announces it. Returns the number of requests.
pub(super) fn serve(
    driver: &mut TestDriver,
    mut respond: impl FnMut(&TestDriver, LinkId, ReqId) -> Option<ResponseHead>,
) -> u32 {
    let (mut requests, mut heads) = (0, BTreeMap::new());
    for _ in 0..20_000 {
        if driver.done || driver.failed.is_some() {
            break;
        }
        for (conn, (link, _)) in driver.conns.clone() {
            if !driver.conns.contains_key(&conn) {
                continue;
            }
            if !driver.connected.contains(&conn) {
                driver.on_connected(conn, Protocol::Http1, 5, None);
                continue;
            }
            let next = driver.requests_on(link).into_iter().find(|(_, request)| request.conn == conn);
            let Some((req, _)) = next else { continue };
            let unanswered = !heads.contains_key(&req);
            if unanswered {
                let Some(head) = respond(driver, link, req) else { continue };
                requests += 1;
                if head.status == 0 {
                    driver.close_conn(conn, ConnErrorKind::Reset);
                    continue;
                }
                heads.insert(req, head.clone());
                driver.handle(Input::Head { req, head });
            }
            let (Some(head), Some(at)) =
                (heads.get(&req), driver.reqs.get(&req).and_then(|request| request.next_offset))
            else {
                continue;
            };
            let range = head.range.and_then(|range| range.range).filter(|_| matches!(head.status, 200 | 206));
            assert_eq!(at, range.map_or(0, |range| range.start), "bytes are stored at a wrong offset");
            let body = range.map_or(head.length.unwrap_or_default(), ByteRange::len);
            let wanted = driver.accepted_lens.get(&req).copied().flatten().unwrap_or(body);
            driver.advance(Duration::from_millis(2));
            if !driver.reqs.contains_key(&req) {
                continue;
            }
            driver.deliver(req, wanted.min(body).bytes());
            if driver.done {
                break;
            }
            if driver.reqs.contains_key(&req) {
                driver.end_response(req);
            }
            if (head.closes_connection || body > wanted) && driver.conns.contains_key(&conn) {
                driver.close_conn(conn, ConnErrorKind::CleanClose);
            }
        }
        driver.advance(Duration::from_millis(5));
    }
    requests
}

/// The response of a server that behaves correctly.
pub(super) fn honest_response(driver: &TestDriver, req: ReqId, tag: Option<&str>) -> ResponseHead {
    match driver.reqs[&req].range {
        RequestRange::Bounded(range) => partial_head(range.intersect(ByteRange::new(0, SIZE)), SIZE, tag),
        RequestRange::From(start) => partial_head(ByteRange::new(start, SIZE), SIZE, tag),
        RequestRange::Full => ResponseHead {
            status: 200,
            length: bytes(SIZE),
            validator: tag.and_then(etag),
            ..ResponseHead::default()
        },
    }
}

pub(super) fn status_head(status: u16) -> ResponseHead {
    ResponseHead { status, length: bytes(0), ..ResponseHead::default() }
}

/// Configuration of a download of which an earlier run has left the first megabyte.
pub(super) fn resume_config() -> Config {
    let resume = Resume {
        total: DataSize::from_bytes(SIZE),
        validator: Validator::Etag("\"v1\"".into()),
        ranges: alloc::vec![ByteRange::new(0, 1_000_000)],
        mirror: Some(UrlId(0)),
    };
    Config { resume: Some(resume), ..Config::default() }
}
