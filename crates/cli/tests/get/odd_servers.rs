//! Servers of the public Internet with unusual responses, as issue reports of other download programs describe them.
//!
//! A [`Behavior`] is a path of one server and what it answers there. Each must yield the bytes that curl gets.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::server::{Request, Resource, Response, Step};

/// The behavior of a server at one path.
pub(crate) struct Behavior {
    /// The path, without its slash.
    pub(crate) name: &'static str,
    pub(crate) answer: fn(&Request, &Resource) -> Response,
}

/// The file's size in bytes: small, so that the cost of each request is visible.
pub(crate) const SIZE: usize = 400_000;

/// The response to a request: that of the behavior whose name is the path.
pub(crate) fn answer(behaviors: &[Behavior], request: &Request, all: &Resource) -> Response {
    let path = request.path.trim_start_matches('/');
    let path = path.split('?').next().unwrap_or(path);
    // A redirect's target is named after the path that leads to it.
    let name = path.strip_prefix("target-").unwrap_or(path);
    if name == "expired-302-page" {
        return Response::page(200, "<html>expired</html>");
    }
    let behavior = behaviors.iter().find(|behavior| behavior.name == name);
    behavior.map_or_else(|| Response::status(404), |behavior| (behavior.answer)(request, all))
}

const fn behavior(name: &'static str, answer: fn(&Request, &Resource) -> Response) -> Behavior {
    Behavior { name, answer }
}

pub(crate) const REPORTED: &[Behavior] = &[
    behavior("ok", |request, all| all.clone().with("Last-Modified", OLD_DATE).with("Date", NOW).respond(request)),
    behavior("slow", |request, all| all.respond(request).slowly(8000, Duration::from_millis(80))),
    behavior("whole206", |_, all| all.part(0..all.len())),
    behavior("creq", |request, all| {
        with_content_range(request, all, |range, total| format!("bytes={range}/{total}"))
    }),
    behavior("signed", |request, all| signed(request, all, 800, 403)),
    behavior("small", |request, all| limited(request, all, 131_072, 403)),
    behavior("flip", |request, all| flip(request, all, false)),
    behavior("gz", |request, all| all.clone().with("Content-Encoding", "gzip").respond(request)),
    behavior("chunk", chunked),
    behavior("crlf", |request, all| with_trailing_bytes(request, all, b"\r\n")),
    behavior("junk", |request, all| with_trailing_bytes(request, all, b"JUNK")),
];

/// Behaviors related to those of the reports.
pub(crate) const RELATED: &[Behavior] = &[
    // Content-Range with an unusual spelling, a wrong value, or missing.
    behavior("range-colon", |request, all| {
        with_content_range(request, all, |range, total| format!("bytes: {range}/{total}"))
    }),
    behavior("range-bare", |request, all| {
        with_content_range(request, all, |range, total| format!("{range}/{total}"))
    }),
    behavior("range-blanks", |request, all| {
        with_content_range(request, all, |range, total| format!("BYTES   {} / {total}", range.replace('-', " - ")))
    }),
    behavior("range-star", |request, all| with_content_range(request, all, |range, _| format!("bytes {range}/*"))),
    behavior("range-no-total", |request, all| {
        with_content_range(request, all, |range, _| format!("bytes {range}"))
    }),
    behavior("range-other-unit", |request, all| {
        with_content_range(request, all, |range, total| format!("items {range}/{total}"))
    }),
    behavior("range-missing", |request, all| ranged(request, all, |answer| answer.without("Content-Range"))),
    behavior("range-beyond", |request, all| {
        with_content_range(request, all, |range, _| format!("bytes {range}/7"))
    }),
    behavior("multipart", |request, all| {
        ranged(request, all, |answer| {
            answer.without("Content-Range").with("Content-Type", "multipart/byteranges; boundary=x")
        })
    }),
    behavior("length-more", |request, all| {
        ranged(request, all, |mut answer| {
            let [Step::Data(span)] = &answer.steps[..] else { return answer };
            let length = span.end - span.start + 5;
            answer.steps.push(Step::Raw(b"12345".to_vec()));
            answer.with("Content-Length", &length.to_string())
        })
    }),
    behavior("length-less", |request, all| {
        ranged(request, all, |answer| {
            let [Step::Data(span)] = &answer.steps[..] else { return answer };
            let cut = span.start..span.end - 1;
            answer.clone().with("Content-Length", &(cut.end - cut.start).to_string()).with_steps([Step::Data(cut)])
        })
    }),
    behavior("total-wrong", |request, all| {
        with_content_range(request, all, |range, total| format!("bytes {range}/{}", total + 1))
    }),
    // Responses with other ranges than the requested ones.
    behavior("aligned", |request, all| {
        with_other_range(request, all, |range| range.start / 65_536 * 65_536..range.end + 50_000)
    }),
    behavior("open-end", |request, all| with_other_range(request, all, |range| range.start..u64::MAX)),
    behavior("short", |request, all| {
        with_other_range(request, all, |range| range.start..range.end.min(range.start + 20_000))
    }),
    behavior("tiny", |request, all| {
        with_other_range(request, all, |range| range.start..range.end.min(range.start + 10))
    }),
    behavior(
        "sometimes200",
        |request, all| if request.nth % 3 == 2 { all.full_response() } else { all.respond(request) },
    ),
    behavior(
        "sometimes206",
        |request, all| {
            if request.nth % 3 == 2 { all.part(0..all.len()) } else { all.respond(request) }
        },
    ),
    behavior("accept-none", |request, all| all.clone().with("Accept-Ranges", "none").respond(request)),
    // Refusals.
    behavior("small-400", |request, all| limited(request, all, 100_000, 400)),
    behavior("small-413", |request, all| limited(request, all, 32_768, 413)),
    behavior("small-416", |request, all| limited(request, all, 65_536, 416)),
    behavior("small-500", |request, all| limited(request, all, 70_000, 500)),
    behavior("only-ranges", |request, all| {
        if request.range.is_none() { Response::status(403) } else { limited(request, all, 5000, 403) }
    }),
    behavior(
        "no-ranges-403",
        |request, all| if request.range.is_some() { Response::status(403) } else { all.full_response() },
    ),
    behavior(
        "no-ranges-501",
        |request, all| if request.range.is_some() { Response::status(501) } else { all.full_response() },
    ),
    behavior(
        "no-ranges-500",
        |request, all| if request.range.is_some() { Response::status(500) } else { all.full_response() },
    ),
    // Redirect targets that expire.
    behavior("signed-410", |request, all| signed(request, all, 300, 410)),
    behavior("signed-404", |request, all| signed(request, all, 500, 404)),
    behavior("once", |request, all| {
        static USED: OnceLock<std::sync::Mutex<std::collections::BTreeSet<String>>> = OnceLock::new();
        if !request.path.starts_with("/target-") {
            return Response::redirect(302, &format!("/target-once?n={}", request.nth));
        }
        let fresh = USED.get_or_init(Default::default).lock().unwrap().insert(request.path.clone());
        if fresh { all.respond(request).slowly(20_000, Duration::from_millis(40)) } else { Response::status(403) }
    }),
    // Validators.
    behavior("flip-honest", |request, all| flip(request, all, true)),
    behavior("weak", |request, all| all.clone().with("ETag", "W/\"1\"").respond(request)),
    behavior("weak-dated", |request, all| {
        all.clone().with("ETag", "W/\"1\"").with("Last-Modified", OLD_DATE).with("Date", NOW).respond(request)
    }),
    behavior("unquoted", |request, all| all.clone().with("ETag", "abc").respond(request)),
    behavior("no-tag", |request, all| all.clone().with("ETag", "").respond(request)),
    behavior("future", |request, all| {
        let all = all.clone().with("ETag", "").with("Last-Modified", "Sat, 01 Aug 2099 10:00:00 GMT");
        all.with("Date", NOW).respond(request)
    }),
    behavior("no-date", |request, all| {
        all.clone().with("ETag", "").with("Last-Modified", OLD_DATE).respond(request)
    }),
    behavior("tag-each-time", |request, all| {
        all.clone().with("ETag", &format!("\"{}\"", request.nth)).respond(request)
    }),
    // Connections.
    behavior("close", |request, all| all.respond(request).with("Connection", "close")),
    behavior("close-3", |request, all| {
        let answer = all.respond(request);
        if request.on_conn % 3 == 2 { answer.with("Connection", "close") } else { answer }
    }),
    behavior("close-silently", |request, all| {
        let mut answer = all.respond(request);
        answer.steps.push(Step::Close);
        answer
    }),
    behavior("reset-behind", |request, all| {
        let mut answer = all.respond(request);
        answer.steps.extend([Step::Wait(Duration::from_millis(20)), Step::Reset]);
        answer
    }),
    behavior("http10", |request, all| all.respond(request).http_1_0().with("Connection", "close")),
    behavior("http10-keeps", |request, all| all.respond(request).http_1_0().with("Connection", "keep-alive")),
    behavior("until-close", |_, all| {
        all.full_response().http_1_0().without("Content-Length").with_steps([Step::Data(0..all.len()), Step::Close])
    }),
    // Response heads.
    behavior("icy", |_, all| {
        let answer =
            all.full_response().without("Content-Length").with_steps([Step::Data(0..all.len()), Step::Close]);
        answer.rewrite_head(|head| head.replace("HTTP/1.1 ", "ICY "))
    }),
    behavior("line-feeds", |request, all| all.respond(request).rewrite_head(|head| head.replace("\r\n", "\n"))),
    behavior("folded", |request, all| {
        let answer = all.respond(request).with("X-Long", "one,");
        answer.rewrite_head(|head| head.replace("one,\r\n", "one,\r\n\t two\r\n"))
    }),
    behavior("blanks", |request, all| all.respond(request).rewrite_head(|head| head.replace("ETag: ", "ETag : "))),
    behavior("no-value", |request, all| all.respond(request).with("X-Empty", "")),
    behavior("no-reason", |request, all| all.respond(request).rewrite_head(|head| head.replace(" Reason", ""))),
    behavior("no-colon", |request, all| {
        all.respond(request).with("X-Mark", "1").rewrite_head(|head| head.replace("X-Mark: 1", "no colon here"))
    }),
    behavior("two-lengths", |request, all| {
        all.respond(request).rewrite_head(|head| {
            let line = head.lines().find(|line| line.starts_with("Content-Length")).unwrap_or_default().to_owned();
            head.replacen(&line, &format!("{line}\r\n{line}"), 1)
        })
    }),
    behavior("interim", |request, all| {
        all.respond(request).rewrite_head(|head| {
            format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n{head}")
        })
    }),
    // Many small chunks: padded chunk sizes as of Apache httpd 2.0, signed chunks as of storage services.
    behavior("chunk-blanks", |_, all| in_small_chunks(all, |size| format!("{size:<32x}\r\n"))),
    behavior("chunk-zeros", |_, all| in_small_chunks(all, |size| format!("{size:032X}\r\n"))),
    behavior("chunk-signed", |_, all| {
        in_small_chunks(all, |size| format!("{size:x};chunk-signature={}\r\n", "a".repeat(64)))
    }),
    // Status lines and lengths that other programs accept.
    behavior("line-2", |request, all| {
        all.respond(request).rewrite_head(|head| head.replacen("HTTP/1.1", "HTTP/2.0", 1))
    }),
    behavior("line-glued", |request, all| {
        all.respond(request)
            .rewrite_head(|head| head.replacen("206 Reason", "206Reason", 1).replacen("200 Reason", "200Reason", 1))
    }),
    behavior("length-unit", |request, all| {
        all.respond(request).rewrite_head(|head| {
            head.replacen("Content-Length: ", "Content-Length:+", 1).replacen("\r\nETag", "B\r\nETag", 1)
        })
    }),
    // Redirects.
    behavior("hops", |request, all| {
        let hop = request.path.rsplit('=').next().and_then(|hop| hop.parse::<u32>().ok()).unwrap_or(0);
        if hop < 30 { Response::redirect(302, &format!("/hops?n={}", hop + 1)) } else { all.respond(request) }
    }),
    behavior("latin-1", |request, all| match request.path.split_once('?') {
        Some((_, "f%E9")) => all.respond(request),
        _ => Response::garbage(b"HTTP/1.1 302 Found\r\nLocation: /latin-1?f\xe9\r\nContent-Length: 0\r\n\r\n"),
    }),
    behavior("redirect-login", |request, all| {
        if request.field("Authorization") == Some("Basic dTpw") {
            return all.respond(request);
        }
        let host = request.field("Host").unwrap_or_default();
        match request.path.contains('?') {
            true => Response::status(401),
            false => Response::redirect(302, &format!("http://u:p@{host}/redirect-login?there")),
        }
    }),
    behavior("length-and-chunks", |request, all| {
        let answer = chunked(request, all);
        answer.with("Content-Length", "7")
    }),
    behavior("status-203", |_, all| all.full_response().rewrite_head(|head| head.replace(" 200 ", " 203 "))),
];

/// URLs that work once, range requests that are answered by something else, redirect targets that expire without an error status, slow
/// servers, and response heads that curl accepts.
pub(crate) const REFUSING: &[Behavior] = &[
    // URLs that work once.
    behavior("only-once-404", |request, all| only_once(request, all, || Response::status(404))),
    behavior("only-once-403", |request, all| only_once(request, all, || Response::status(403))),
    behavior("only-once-429", |request, all| {
        only_once(request, all, || Response::status(429).with("Retry-After", "3600"))
    }),
    behavior("only-once-page", |request, all| only_once(request, all, || Response::page(200, "<html>gone</html>"))),
    behavior("only-once-close", |request, all| only_once(request, all, || Response::garbage(b""))),
    behavior("only-once-silent", |request, all| only_once(request, all, no_response)),
    // Servers that refuse range requests in different ways.
    behavior("range-close", |request, all| refusing(request, all, || Response::garbage(b""))),
    behavior("range-garbage", |request, all| refusing(request, all, || Response::garbage(b"!!\r\n\r\n"))),
    behavior("range-silent", |request, all| refusing(request, all, no_response)),
    behavior("range-429", |request, all| refusing(request, all, || Response::status(429))),
    behavior("range-503", |request, all| refusing(request, all, || Response::status(503))),
    behavior("range-404", |request, all| refusing(request, all, || Response::status(404))),
    behavior("range-empty", |request, all| refusing(request, all, || Response::page(200, ""))),
    behavior("range-416-within", |request, all| {
        refusing(request, all, || Response::status(416).with("Content-Range", "bytes */400000"))
    }),
    behavior("range-204", |request, all| refusing(request, all, || Response::status(204))),
    behavior("range-304", |request, all| {
        refusing(request, all, || Response::status(304).without("Content-Length"))
    }),
    behavior("range-302", |request, all| refusing(request, all, || Response::status(302))),
    behavior("range-nowhere", |request, all| refusing(request, all, || Response::redirect(302, "/nowhere"))),
    behavior("range-circle", |request, all| refusing(request, all, || Response::redirect(302, "/range-circle"))),
    behavior("range-page", |request, all| {
        refusing(request, all, || Response::page(200, "<!DOCTYPE html><html>log in</html>"))
    }),
    behavior("range-stub", |request, all| {
        let answer = all.respond(request);
        if request.range.is_none() { answer } else { answer.broken_after(1000, [Step::Close]) }
    }),
    // Targets that expire.
    behavior("expired-page", |request, all| {
        signed_by(request, all, 300, || Response::page(200, "<html>expired</html>"))
    }),
    behavior("expired-json", |request, all| {
        signed_by(request, all, 300, || Response::page(200, "{}").with("Content-Type", "application/json"))
    }),
    behavior("expired-500", |request, all| signed_by(request, all, 300, || Response::status(500))),
    behavior("expired-503", |request, all| signed_by(request, all, 300, || Response::status(503))),
    behavior("expired-302", |request, all| {
        signed_by(request, all, 300, || Response::redirect(302, "/expired-302-page"))
    }),
    behavior("thinks", |request, all| {
        std::thread::sleep(Duration::from_secs(11));
        all.respond(request)
    }),
    // Heads.
    behavior("blank-continuation", |request, all| {
        let answer = all.respond(request).with("X-Long", "one,");
        answer.rewrite_head(|head| head.replace("one,\r\n", "one,\r\n \r\n two\r\n"))
    }),
    behavior("blank-continuation-before-length", |request, all| {
        all.respond(request)
            .rewrite_head(|head| head.replace("Content-Length", "X-Long: one,\r\n \r\nContent-Length"))
    }),
    behavior("long-head", |request, all| {
        (0..100).fold(all.respond(request), |answer, n| answer.with(&format!("X-{n}"), &"y".repeat(2000)))
    }),
    behavior("small-letters", |request, all| {
        all.respond(request).rewrite_head(|head| head.replace("HTTP/1.1", "http/1.1"))
    }),
    behavior("length-plus", |_, all| {
        all.full_response().rewrite_head(|head| head.replace("Content-Length: ", "Content-Length: +"))
    }),
    behavior("length-words", |_, all| {
        all.full_response()
            .rewrite_head(|head| head.replace("Content-Length: 400000", "Content-Length: 400000 bytes"))
    }),
    behavior("total-plus", |request, all| {
        with_content_range(request, all, |range, total| format!("bytes {range}/+{total}"))
    }),
    behavior("coding-twice", |request, all| {
        const LINE: &str = "Transfer-Encoding: chunked\r\n";
        let answer = chunked(request, all);
        if request.range.is_none() {
            answer
        } else {
            answer.rewrite_head(|head| head.replace(LINE, &LINE.repeat(2)))
        }
    }),
    behavior("status-300", |_, all| all.full_response().rewrite_head(|head| head.replace(" 200 ", " 300 "))),
    behavior("status-302", |_, all| all.full_response().rewrite_head(|head| head.replace(" 200 ", " 302 "))),
];

/// Answers the first request of each program with the file, later ones with `otherwise`.
fn only_once(request: &Request, all: &Resource, otherwise: impl Fn() -> Response) -> Response {
    static USED: OnceLock<std::sync::Mutex<std::collections::BTreeSet<String>>> = OnceLock::new();
    let agent = request.field("User-Agent").unwrap_or_default();
    let program = format!("{} {} {}", request.path, agent.contains("curl"), request.from.is_loopback());
    let fresh = USED.get_or_init(Default::default).lock().unwrap().insert(program);
    if fresh { all.respond(request).slowly(20_000, Duration::from_millis(20)) } else { otherwise() }
}

/// Answers range requests with `otherwise`, others with the whole file.
fn refusing(request: &Request, all: &Resource, otherwise: impl Fn() -> Response) -> Response {
    if request.range.is_some() { otherwise() } else { all.full_response() }
}

/// Sends nothing for longer than any program waits.
fn no_response() -> Response {
    Response::garbage(b"").with_steps([Step::Wait(Duration::from_secs(60)), Step::Close])
}

const OLD_DATE: &str = "Sat, 01 Aug 2020 10:00:00 GMT";
const NOW: &str = "Thu, 26 Nov 2026 10:00:00 GMT";

/// The correct response, changed by `change` if it is a range.
fn ranged(request: &Request, all: &Resource, change: impl Fn(Response) -> Response) -> Response {
    let answer = all.respond(request);
    if request.range.as_ref().is_some_and(|range| range.start < all.len()) { change(answer) } else { answer }
}

/// The correct response with a Content-Range that `spell` writes from a range such as `0-9` and the total.
fn with_content_range(request: &Request, all: &Resource, spell: impl Fn(&str, u64) -> String) -> Response {
    let Some(range) = &request.range else { return all.full_response() };
    let text = format!("{}-{}", range.start, range.end.min(all.len()) - 1);
    ranged(request, all, |answer| answer.with("Content-Range", &spell(&text, all.len())))
}

/// Answers with another range, which `other` computes from the requested one.
fn with_other_range(request: &Request, all: &Resource, other: impl Fn(&Range<u64>) -> Range<u64>) -> Response {
    match &request.range {
        Some(range) if range.start < all.len() => {
            let other = other(range);
            all.part(other.start..other.end.min(all.len()))
        }
        _ => all.respond(request),
    }
}

/// Answers ranges larger than `limit` with `status`.
fn limited(request: &Request, all: &Resource, limit: u64, status: u16) -> Response {
    let large = request.range.as_ref().is_some_and(|range| range.end.min(all.len()) - range.start > limit);
    if large { Response::status(status) } else { all.respond(request) }
}

/// A redirect to a slow target that expires `lifetime` milliseconds after the redirect and then answers `status`.
fn signed(request: &Request, all: &Resource, lifetime: u128, status: u16) -> Response {
    signed_by(request, all, lifetime, || Response::status(status))
}

/// The same; `expired` is the response of the expired target.
fn signed_by(request: &Request, all: &Resource, lifetime: u128, expired: impl Fn() -> Response) -> Response {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = START.get_or_init(Instant::now).elapsed().as_millis();
    match request.path.split_once("?until=") {
        Some((_, until)) if now <= until.parse().unwrap_or(0) => {
            all.respond(request).slowly(8000, Duration::from_millis(40))
        }
        Some(_) => expired(),
        None => Response::redirect(302, &format!("/target-{}?until={}", &request.path[1..], now + lifetime)),
    }
}

/// Two back ends behind one address: the ETag depends on the connection, and If-Range is compared with it. `honest` back ends
/// also compare dates, and send their date with the whole file.
fn flip(request: &Request, all: &Resource, honest: bool) -> Response {
    let tag = format!("\"b{}\"", request.conn % 2);
    let all = all.clone().with("ETag", &tag);
    let dated = all.clone().with("Last-Modified", OLD_DATE).with("Date", NOW);
    let condition = request.field("If-Range").filter(|_| request.range.is_some());
    if condition.is_some_and(|condition| condition != tag && !(honest && condition == OLD_DATE)) {
        return if honest { dated.full_response() } else { all.full_response() };
    }
    dated.respond(request).slowly(4000, Duration::from_millis(20))
}

/// The whole file in chunks of 128 bytes; `size` writes the size line of a chunk.
fn in_small_chunks(all: &Resource, size: impl Fn(usize) -> String) -> Response {
    let mut wire = Vec::new();
    for chunk in all.data.chunks(128) {
        wire.extend_from_slice(size(chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(size(0).as_bytes());
    wire.extend_from_slice(b"\r\n");
    Response::status(200)
        .without("Content-Length")
        .with("Transfer-Encoding", "chunked")
        .with_steps([Step::Raw(wire)])
}

/// The correct response with chunked transfer coding if it is a range.
fn chunked(request: &Request, all: &Resource) -> Response {
    ranged(request, all, |answer| {
        let [Step::Data(span)] = &answer.steps[..] else { return answer };
        let span = span.clone();
        let chunks = (span.start..span.end).step_by(50_000).map(|at| Step::Chunk(at..(at + 50_000).min(span.end)));
        let steps: Vec<Step> = chunks.chain([Step::Raw(b"0;last=1\r\n\r\n".to_vec())]).collect();
        answer.without("Content-Length").with("Transfer-Encoding", "chunked").with_steps(steps)
    })
}

/// The correct response followed by bytes that do not belong to it.
fn with_trailing_bytes(request: &Request, all: &Resource, trailing: &[u8]) -> Response {
    let mut answer = all.respond(request);
    answer.steps.push(Step::Raw(trailing.to_vec()));
    answer
}
