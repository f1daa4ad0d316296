//! Responses to players: bytes, ranges, conditional requests, errors.

use std::time::Duration;

use crate::nginx::{Nginx, identity};
use crate::proxy::{Player, Proxy};
use crate::server::{Resource, Response, Server, Step};

const SIZE: usize = 8_000_000;

#[test]
fn a_file_is_delivered_unchanged_whole_and_in_ranges() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("", &resource, None) else { return };
    let proxy = Proxy::start(&[]);
    let url = format!("http://{}/file", nginx.address);
    let full_reply = proxy.get(&url, &[]);
    assert_eq!((full_reply.status, full_reply.field("content-length")), (200, Some("8000000")));
    assert_eq!(full_reply.field("accept-ranges"), Some("bytes"));
    assert!(full_reply.body == *resource.data);
    let etag = full_reply.field("etag").unwrap();
    for (range, from, to) in [
        ("0-", 0, SIZE),
        ("0-0", 0, 1),
        ("100-4000099", 100, 4_000_100),
        ("7999999-", SIZE - 1, SIZE),
        ("5000000-9999999", 5_000_000, SIZE),
        ("-1000", SIZE - 1000, SIZE),
        // Several ranges that reduce to one: those beyond the end are dropped, adjacent ones are merged.
        ("8000000-8000001,0-1", 0, 2),
        ("10-19,20-29,15-24", 10, 30),
    ] {
        let part = proxy.get(&url, &["-r", range]);
        assert_eq!(part.status, 206, "{range}");
        let content_range = format!("bytes {from}-{}/{SIZE}", to - 1);
        assert_eq!(part.field("content-range"), Some(content_range.as_str()), "{range}");
        assert_eq!(part.field("etag"), Some(etag), "{range}");
        assert!(part.body == resource.data[from..to], "{range}");
    }
    let several = proxy.get(&url, &["-r", "10-19,30-39"]);
    assert!(several.status == 200 && several.body == *resource.data, "{}", several.status);
    for range in ["8000000-", "8000000-8000001,9000000-"] {
        let beyond = proxy.get(&url, &["-r", range]);
        assert_eq!((beyond.status, beyond.field("content-range")), (416, Some("bytes */8000000")), "{range}");
    }
}

#[test]
fn the_first_request_may_be_for_any_range_or_head() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("", &resource, None) else { return };
    let url = format!("http://{}/file", nginx.address);
    let part = Proxy::start(&[]).get(&url, &["-r", "3000000-3999999"]);
    assert_eq!((part.status, part.field("content-range")), (206, Some("bytes 3000000-3999999/8000000")));
    assert!(part.body == resource.data[3_000_000..4_000_000]);
    let last = Proxy::start(&[]).get(&url, &["-r", "-10"]);
    assert!(last.status == 206 && last.body == resource.data[SIZE - 10..]);
    let head = Proxy::start(&[]).get(&url, &["-I"]);
    assert_eq!((head.status, head.field("content-length"), head.body.len()), (200, Some("8000000"), 0));
    assert!(head.field("etag").is_some() && head.field("last-modified").is_some());
    let beyond = Proxy::start(&[]).get(&url, &["-r", "9000000-"]);
    assert_eq!(beyond.status, 416);
}

#[test]
fn conditional_requests_are_answered_with_the_origins_validators() {
    let resource = Resource::new(100_000);
    let Some(nginx) = Nginx::start("", &resource, None) else { return };
    let proxy = Proxy::start(&[]);
    let url = format!("http://{}/file", nginx.address);
    let first = proxy.get(&url, &[]);
    let (etag, date) = (first.field("etag").unwrap(), first.field("last-modified").unwrap());
    let status = |field: String| proxy.get(&url, &["-H", &field, "-r", "0-9"]).status;
    assert_eq!(status(format!("If-None-Match: {etag}")), 304);
    assert_eq!(status(format!("If-None-Match: \"x\", W/{etag}")), 304);
    assert_eq!(status("If-None-Match: \"x\"".into()), 206);
    assert_eq!(status(format!("If-Modified-Since: {date}")), 304);
    assert_eq!(status("If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT".into()), 206);
    assert_eq!(status(format!("If-Range: {etag}")), 206);
    assert_eq!(status("If-Range: \"x\"".into()), 200);
    // Conditions are evaluated before ranges, and ranges apply to GET only (RFC 9110).
    let beyond = proxy.get(&url, &["-H", &format!("If-None-Match: {etag}"), "-r", "9000000-"]);
    assert_eq!(beyond.status, 304);
    let head = proxy.get(&url, &["-I", "-r", "0-9"]);
    assert_eq!((head.status, head.field("content-length")), (200, Some("100000")));
    // The file is replaced: the proxy revalidates it.
    nginx.replace(&Resource::other(100_001, 7));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(status(format!("If-None-Match: {etag}")), 206);
}

#[test]
fn errors_are_explained_in_one_line() {
    let server = Server::start(|request| match request.path.as_str() {
        "/page" => Response::page(200, "<script>alert(1)</script>"),
        "/forbidden" => Response::page(403, "<h1>no</h1>"),
        _ => Response::status(404),
    });
    let proxy = Proxy::start(&[]);
    let refused = "http://127.0.0.1:9/file";
    for (url, args, status, expected) in [
        (server.url("/none"), &[][..], 404, "the server responded with status 404"),
        (server.url("/none"), &["-r", "5-"], 404, "the server responded with status 404"),
        (server.url("/forbidden"), &[], 403, "the server responded with status 403"),
        (refused.to_owned(), &[], 502, "connection refused"),
        (refused.to_owned(), &["-r", "5-"], 502, "connection refused"),
        ("nonsense".to_owned(), &[], 400, "the path is not a URL"),
        ("ftp://127.0.0.1/x".to_owned(), &[], 400, "only http and https"),
        (server.url("/page"), &["-d", "x"], 405, "only GET and HEAD"),
        (proxy.media_url(&server.url("/page")), &[], 508, "the proxy itself"),
    ] {
        let got = proxy.get(&url, args);
        let text = got.text();
        assert_eq!((got.status, text.lines().count()), (status, 1), "{url}: {text}");
        assert!(text.contains(expected), "{url}: {text}");
    }
    // A connection with an unread response is not reused.
    assert_eq!(proxy.get(&server.url("/none"), &["-I"]).status, 404);
    let page = proxy.get(&server.url("/page"), &[]);
    assert_eq!((page.status, page.field("x-content-type-options")), (200, Some("nosniff")));
    assert!(page.field("content-security-policy").unwrap().starts_with("sandbox"), "{page:?}");
}

#[test]
fn a_server_without_ranges_or_validators_is_played() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("max_ranges 0;", &resource, None) else { return };
    let proxy = Proxy::start(&[]);
    let url = format!("http://{}/file", nginx.address);
    for args in [&[][..], &["-r", "0-"], &["-r", "5000-"]] {
        let got = proxy.get(&url, args);
        assert_eq!((got.status, got.field("accept-ranges")), (200, Some("none")), "{args:?}");
        assert!(got.body == *resource.data, "{args:?}");
    }
    let reason = proxy.status()["sessions"][0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("no provable ranges"), "{reason}");

    // Without a validator, ranges are passed on one by one.
    let small = Resource::new(300_000);
    let served = small.clone();
    let server = Server::start(move |request| served.respond(request).without("ETag").without("Last-Modified"));
    let url = server.url("/file");
    let part = proxy.get(&url, &["-r", "1000-199999"]);
    assert_eq!((part.status, part.field("content-range")), (206, Some("bytes 1000-199999/300000")));
    assert!(part.body == small.data[1000..200_000]);
    assert!(proxy.get(&url, &[]).body == *small.data);
}

#[test]
fn redirects_are_followed_and_remembered() {
    let resource = Resource::new(300_000);
    let served = resource.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/film" => Response::redirect(302, "/edge"),
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&[]);
    let url = server.url("/film");
    assert!(proxy.get(&url, &[]).body == *resource.data);
    assert!(proxy.get(&url, &["-r", "1000-"]).body == resource.data[1000..]);
    let requests = server.requests();
    assert_eq!(requests.iter().filter(|request| request.path == "/film").count(), 1, "{requests:?}");
}

#[test]
fn an_expired_redirect_target_is_resolved_again() {
    let resource = Resource::new(300_000);
    let served = resource.clone();
    let server = Server::start(move |request| match (request.path.as_str(), request.nth) {
        ("/film", 0) => Response::redirect(302, "/signed?1"),
        ("/film", _) => Response::redirect(302, "/signed?2"),
        // The first signed URL is valid for the first 20 requests.
        ("/signed?1", nth) if nth > 20 => Response::status(403),
        ("/signed?1", _) => served.respond(request).with("Connection", "close"),
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&[]);
    let url = server.url("/film");
    assert!(proxy.get(&url, &[]).body == *resource.data);
    while server.requests().len() <= 20 {
        proxy.get(&url, &["-r", "0-9"]);
    }
    assert!(proxy.get(&url, &["-r", "1000-"]).body == resource.data[1000..]);
    assert!(server.requests().iter().any(|request| request.path == "/signed?2"));
}

#[test]
fn tls_with_http_2_is_played() {
    let resource = Resource::new(SIZE);
    let identity = identity("localhost", None);
    let Some(nginx) = Nginx::start("http2 on;", &resource, Some(&identity)) else { return };
    let authority = nginx.authority();
    let proxy = Proxy::start(&["--ca-file", authority.to_str().unwrap()]);
    let url = format!("https://localhost:{}/file", nginx.address.port());
    assert!(proxy.get(&url, &[]).body == *resource.data);
    for from in [10, 4_000_000, 7_999_990] {
        assert!(proxy.get(&url, &["-r", &format!("{from}-")]).body == resource.data[from..]);
    }
    let distrusted = Proxy::start(&[]).get(&url, &[]);
    assert!(distrusted.status == 502 && distrusted.text().contains("not trusted"), "{}", distrusted.text());
}

#[test]
fn a_changed_file_ends_the_response_and_the_next_request_gets_the_new_file() {
    let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE + 10, 2));
    let Some(nginx) = Nginx::start("limit_rate 2m;", &old, None) else { return };
    let proxy = Proxy::start(&["--window", "1MiB"]);
    let url = format!("http://{}/file", nginx.address);
    let mut player = Player::start(&proxy, &url, 0);
    let first = player.read(1_000_000);
    nginx.replace(&new);
    let remaining = player.read_remaining(SIZE);
    let all = [first, remaining].concat();
    // A running response continues with the old file; no byte of the new one follows.
    assert!(old.data.starts_with(&all), "two files are mixed");
    let again = proxy.get(&url, &["-r", "5-1000004"]);
    assert_eq!(again.field("content-range"), Some("bytes 5-1000004/8000010"));
    assert!(again.body == new.data[5..1_000_005]);
}

#[test]
fn a_response_that_breaks_off_is_continued_without_the_player_noticing() {
    let resource = Resource::new(2_000_000);
    let served = resource.clone();
    let server = Server::start(move |request| match request.nth {
        0..3 => served.respond(request).broken_after(100_000, [Step::Reset]),
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&[]);
    assert!(proxy.get(&server.url("/file"), &[]).body == *resource.data);
}

#[test]
fn a_seek_uses_a_spare_connection() {
    let resource = Resource::new(40_000_000);
    let server = Server::honest(&resource).limit_rate(2_000_000);
    let proxy = Proxy::start(&["--window", "4MiB"]);
    let url = server.url("/file");
    let mut player = Player::start(&proxy, &url, 0);
    assert!(player.read(100_000) == resource.data[..100_000]);
    proxy.wait_for_status("a spare connection", |now| now["idle_connections"].as_u64() > Some(0));
    let busy = server.requests().iter().map(|request| request.conn).max().unwrap();
    drop(player);
    let mut player = Player::start(&proxy, &url, 20_000_000);
    assert!(player.read(100_000) == resource.data[20_000_000..20_100_000]);
    let requests = server.requests();
    let seek =
        requests.iter().find(|request| request.range.as_ref().is_some_and(|r| r.start == 20_000_000)).unwrap();
    // The spare connection was the last one opened; a new connection for the seek would have a higher number.
    assert_eq!(seek.conn, busy + 1);
}

#[test]
fn a_player_that_disconnects_stops_the_transfer() {
    let resource = Resource::new(40_000_000);
    let server = Server::honest(&resource).limit_rate(4_000_000);
    let proxy = Proxy::start(&[]);
    let mut player = Player::start(&proxy, &server.url("/file"), 0);
    player.read(100_000);
    drop(player);
    proxy.wait_for_status("over", |now| now["sessions"][0]["state"] == "idle");
    let before = server.sent_bytes();
    std::thread::sleep(Duration::from_millis(500));
    // Only what the server had already handed to its kernel.
    assert!(server.sent_bytes() <= before + 1_000_000, "{} after {before}", server.sent_bytes());
}

#[test]
fn a_pause_longer_than_the_servers_timeouts_loses_no_byte() {
    let resource = Resource::new(60_000_000);
    let Some(nginx) = Nginx::start("send_timeout 1s; keepalive_timeout 1s;", &resource, None) else { return };
    let proxy = Proxy::start(&["--window", "2MiB"]);
    let mut player = Player::start(&proxy, &format!("http://{}/file", nginx.address), 0);
    let mut got = player.read(1_000_000);
    std::thread::sleep(Duration::from_secs(4));
    got.extend(player.read(59_000_000));
    assert!(got == *resource.data);
}

#[test]
fn random_seeks_get_the_right_bytes_from_a_server_that_breaks_off() {
    let resource = Resource::new(3_000_000);
    let served = resource.clone();
    let server = Server::start(move |request| match request.nth % 4 {
        3 => served.respond(request).broken_after(request.nth as u64 * 997 % 200_000, [Step::Reset]),
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&["--window", "1MiB"]);
    let url = server.url("/file");
    // The linear congruential generator of Numerical Recipes: equal steps in each run.
    let mut dice = 7_u32;
    let mut below = |n: u32| {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(dice) * u64::from(n)) >> 32) as usize
    };
    for step in 0..60 {
        let from = below(3_000_000);
        let len = (1 + below(400_000)).min(3_000_000 - from);
        let mut player = Player::start(&proxy, &url, from as u64);
        assert!(player.read(len) == resource.data[from..from + len], "step {step}: {len} bytes from {from}");
    }
}

#[test]
fn an_empty_file_is_delivered_although_the_server_refuses_ranges_of_it() {
    let server = Server::start(|request| match request.range {
        Some(_) => Response::status(416).with("Content-Range", "bytes */0"),
        None => Response::status(200),
    });
    let proxy = Proxy::start(&[]);
    for args in [&[][..], &["-I"], &["-r", "0-"], &["-r", "5-9"]] {
        let got = proxy.get(&server.url("/empty"), args);
        assert_eq!((got.status, got.field("content-length")), (200, Some("0")), "{args:?}: {}", got.text());
    }
}
