//! Servers of the public Internet with unusual responses, as issue reports of other download programs describe them.
//!
//! A [`Manner`] is a path of one server and what it answers there. Each must yield the bytes that curl gets.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::server::{Answer, Asked, Resource, Step};

/// The behavior of a server at one path.
pub(crate) struct Manner {
    /// The path, without its slash.
    pub(crate) name: &'static str,
    pub(crate) answer: fn(&Asked, &Resource) -> Answer,
}

/// The file's size in bytes: small, so that the cost of each request is visible.
pub(crate) const SIZE: usize = 400_000;

/// The response to a request: that of the behavior whose name is the path.
pub(crate) fn answer(manners: &[Manner], asked: &Asked, all: &Resource) -> Answer {
    let path = asked.path.trim_start_matches('/');
    let path = path.split('?').next().unwrap_or(path);
    // A redirect's target is named after the path that leads to it.
    let name = path.strip_prefix("target-").unwrap_or(path);
    if name == "expired-302-page" {
        return Answer::page(200, "<html>expired</html>");
    }
    let manner = manners.iter().find(|manner| manner.name == name);
    manner.map_or_else(|| Answer::status(404), |manner| (manner.answer)(asked, all))
}

const fn manner(name: &'static str, answer: fn(&Asked, &Resource) -> Answer) -> Manner {
    Manner { name, answer }
}

/// Behaviors from the reports.
pub(crate) const REPORTED: &[Manner] = &[
    manner("ok", |asked, all| all.clone().with("Last-Modified", OLD).with("Date", NOW).answer(asked)),
    manner("slow", |asked, all| all.answer(asked).slowly(8000, Duration::from_millis(80))),
    manner("whole206", |_, all| all.part(0..all.len())),
    manner("creq", |asked, all| spelled(asked, all, |range, total| format!("bytes={range}/{total}"))),
    manner("signed", |asked, all| signed(asked, all, 800, 403)),
    manner("small", |asked, all| limited(asked, all, 131_072, 403)),
    manner("flip", |asked, all| flip(asked, all, false)),
    manner("gz", |asked, all| all.clone().with("Content-Encoding", "gzip").answer(asked)),
    manner("chunk", chunked),
    manner("crlf", |asked, all| behind(asked, all, b"\r\n")),
    manner("junk", |asked, all| behind(asked, all, b"JUNK")),
];

/// Behaviors related to those of the reports.
pub(crate) const RELATED: &[Manner] = &[
    // Content-Range with an unusual spelling, a wrong value, or missing.
    manner("range-colon", |asked, all| spelled(asked, all, |range, total| format!("bytes: {range}/{total}"))),
    manner("range-bare", |asked, all| spelled(asked, all, |range, total| format!("{range}/{total}"))),
    manner("range-blanks", |asked, all| {
        spelled(asked, all, |range, total| format!("BYTES   {} / {total}", range.replace('-', " - ")))
    }),
    manner("range-star", |asked, all| spelled(asked, all, |range, _| format!("bytes {range}/*"))),
    manner("range-no-total", |asked, all| spelled(asked, all, |range, _| format!("bytes {range}"))),
    manner("range-other-unit", |asked, all| spelled(asked, all, |range, total| format!("items {range}/{total}"))),
    manner("range-missing", |asked, all| ranged(asked, all, |answer| answer.without("Content-Range"))),
    manner("range-beyond", |asked, all| spelled(asked, all, |range, _| format!("bytes {range}/7"))),
    manner("multipart", |asked, all| {
        ranged(asked, all, |answer| {
            answer.without("Content-Range").with("Content-Type", "multipart/byteranges; boundary=x")
        })
    }),
    manner("length-more", |asked, all| {
        ranged(asked, all, |mut answer| {
            let [Step::Data(span)] = &answer.steps[..] else { return answer };
            let length = span.end - span.start + 5;
            answer.steps.push(Step::Raw(b"12345".to_vec()));
            answer.with("Content-Length", &length.to_string())
        })
    }),
    manner("length-less", |asked, all| {
        ranged(asked, all, |answer| {
            let [Step::Data(span)] = &answer.steps[..] else { return answer };
            let cut = span.start..span.end - 1;
            answer.clone().with("Content-Length", &(cut.end - cut.start).to_string()).then([Step::Data(cut)])
        })
    }),
    manner("total-wrong", |asked, all| spelled(asked, all, |range, total| format!("bytes {range}/{}", total + 1))),
    // Responses with other ranges than the requested ones.
    manner("aligned", |asked, all| wider(asked, all, |range| range.start / 65_536 * 65_536..range.end + 50_000)),
    manner("open-end", |asked, all| wider(asked, all, |range| range.start..u64::MAX)),
    manner("short", |asked, all| wider(asked, all, |range| range.start..range.end.min(range.start + 20_000))),
    manner("tiny", |asked, all| wider(asked, all, |range| range.start..range.end.min(range.start + 10))),
    manner("sometimes200", |asked, all| if asked.nth % 3 == 2 { all.whole() } else { all.answer(asked) }),
    manner(
        "sometimes206",
        |asked, all| {
            if asked.nth % 3 == 2 { all.part(0..all.len()) } else { all.answer(asked) }
        },
    ),
    manner("accept-none", |asked, all| all.clone().with("Accept-Ranges", "none").answer(asked)),
    // Refusals.
    manner("small-400", |asked, all| limited(asked, all, 100_000, 400)),
    manner("small-413", |asked, all| limited(asked, all, 32_768, 413)),
    manner("small-416", |asked, all| limited(asked, all, 65_536, 416)),
    manner("small-500", |asked, all| limited(asked, all, 70_000, 500)),
    manner(
        "only-ranges",
        |asked, all| {
            if asked.range.is_none() { Answer::status(403) } else { limited(asked, all, 5000, 403) }
        },
    ),
    manner("no-ranges-403", |asked, all| if asked.range.is_some() { Answer::status(403) } else { all.whole() }),
    manner("no-ranges-501", |asked, all| if asked.range.is_some() { Answer::status(501) } else { all.whole() }),
    manner("no-ranges-500", |asked, all| if asked.range.is_some() { Answer::status(500) } else { all.whole() }),
    // Redirect targets that expire.
    manner("signed-410", |asked, all| signed(asked, all, 300, 410)),
    manner("signed-404", |asked, all| signed(asked, all, 500, 404)),
    manner("once", |asked, all| {
        static USED: OnceLock<std::sync::Mutex<std::collections::BTreeSet<String>>> = OnceLock::new();
        if !asked.path.starts_with("/target-") {
            return Answer::redirect(302, &format!("/target-once?n={}", asked.nth));
        }
        let fresh = USED.get_or_init(Default::default).lock().unwrap().insert(asked.path.clone());
        if fresh { all.answer(asked).slowly(20_000, Duration::from_millis(40)) } else { Answer::status(403) }
    }),
    // Validators.
    manner("flip-honest", |asked, all| flip(asked, all, true)),
    manner("weak", |asked, all| all.clone().with("ETag", "W/\"1\"").answer(asked)),
    manner("weak-dated", |asked, all| {
        all.clone().with("ETag", "W/\"1\"").with("Last-Modified", OLD).with("Date", NOW).answer(asked)
    }),
    manner("unquoted", |asked, all| all.clone().with("ETag", "abc").answer(asked)),
    manner("no-tag", |asked, all| all.clone().with("ETag", "").answer(asked)),
    manner("future", |asked, all| {
        let all = all.clone().with("ETag", "").with("Last-Modified", "Sat, 01 Aug 2099 10:00:00 GMT");
        all.with("Date", NOW).answer(asked)
    }),
    manner("no-date", |asked, all| all.clone().with("ETag", "").with("Last-Modified", OLD).answer(asked)),
    manner("tag-each-time", |asked, all| all.clone().with("ETag", &format!("\"{}\"", asked.nth)).answer(asked)),
    // Connections.
    manner("close", |asked, all| all.answer(asked).with("Connection", "close")),
    manner("close-3", |asked, all| {
        let answer = all.answer(asked);
        if asked.on_conn % 3 == 2 { answer.with("Connection", "close") } else { answer }
    }),
    manner("close-silently", |asked, all| {
        let mut answer = all.answer(asked);
        answer.steps.push(Step::Close);
        answer
    }),
    manner("reset-behind", |asked, all| {
        let mut answer = all.answer(asked);
        answer.steps.extend([Step::Wait(Duration::from_millis(20)), Step::Reset]);
        answer
    }),
    manner("http10", |asked, all| all.answer(asked).old().with("Connection", "close")),
    manner("http10-keeps", |asked, all| all.answer(asked).old().with("Connection", "keep-alive")),
    manner("until-close", |_, all| {
        all.whole().old().without("Content-Length").then([Step::Data(0..all.len()), Step::Close])
    }),
    // Response heads.
    manner("icy", |_, all| {
        let answer = all.whole().without("Content-Length").then([Step::Data(0..all.len()), Step::Close]);
        answer.spelled(|head| head.replace("HTTP/1.1 ", "ICY "))
    }),
    manner("line-feeds", |asked, all| all.answer(asked).spelled(|head| head.replace("\r\n", "\n"))),
    manner("folded", |asked, all| {
        let answer = all.answer(asked).with("X-Long", "one,");
        answer.spelled(|head| head.replace("one,\r\n", "one,\r\n\t two\r\n"))
    }),
    manner("blanks", |asked, all| all.answer(asked).spelled(|head| head.replace("ETag: ", "ETag : "))),
    manner("no-value", |asked, all| all.answer(asked).with("X-Empty", "")),
    manner("no-reason", |asked, all| all.answer(asked).spelled(|head| head.replace(" Reason", ""))),
    manner("no-colon", |asked, all| {
        all.answer(asked).with("X-Mark", "1").spelled(|head| head.replace("X-Mark: 1", "no colon here"))
    }),
    manner("two-lengths", |asked, all| {
        all.answer(asked).spelled(|head| {
            let line = head.lines().find(|line| line.starts_with("Content-Length")).unwrap_or_default().to_owned();
            head.replacen(&line, &format!("{line}\r\n{line}"), 1)
        })
    }),
    manner("interim", |asked, all| {
        all.answer(asked).spelled(|head| {
            format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n{head}")
        })
    }),
    // Many small chunks: padded chunk sizes as of Apache httpd 2.0, signed chunks as of storage services.
    manner("chunk-blanks", |_, all| in_small_chunks(all, |size| format!("{size:<32x}\r\n"))),
    manner("chunk-zeros", |_, all| in_small_chunks(all, |size| format!("{size:032X}\r\n"))),
    manner("chunk-signed", |_, all| {
        in_small_chunks(all, |size| format!("{size:x};chunk-signature={}\r\n", "a".repeat(64)))
    }),
    // Status lines and lengths that other programs accept.
    manner("line-2", |asked, all| all.answer(asked).spelled(|head| head.replacen("HTTP/1.1", "HTTP/2.0", 1))),
    manner("line-glued", |asked, all| {
        all.answer(asked)
            .spelled(|head| head.replacen("206 Reason", "206Reason", 1).replacen("200 Reason", "200Reason", 1))
    }),
    manner("length-unit", |asked, all| {
        all.answer(asked).spelled(|head| {
            head.replacen("Content-Length: ", "Content-Length:+", 1).replacen("\r\nETag", "B\r\nETag", 1)
        })
    }),
    // Redirects.
    manner("hops", |asked, all| {
        let hop = asked.path.rsplit('=').next().and_then(|hop| hop.parse::<u32>().ok()).unwrap_or(0);
        if hop < 30 { Answer::redirect(302, &format!("/hops?n={}", hop + 1)) } else { all.answer(asked) }
    }),
    manner("latin-1", |asked, all| match asked.path.split_once('?') {
        Some((_, "f%E9")) => all.answer(asked),
        _ => Answer::garbage(b"HTTP/1.1 302 Found\r\nLocation: /latin-1?f\xe9\r\nContent-Length: 0\r\n\r\n"),
    }),
    manner("redirect-login", |asked, all| {
        if asked.field("Authorization") == Some("Basic dTpw") {
            return all.answer(asked);
        }
        let host = asked.field("Host").unwrap_or_default();
        match asked.path.contains('?') {
            true => Answer::status(401),
            false => Answer::redirect(302, &format!("http://u:p@{host}/redirect-login?there")),
        }
    }),
    manner("length-and-chunks", |asked, all| {
        let answer = chunked(asked, all);
        answer.with("Content-Length", "7")
    }),
    manner("status-203", |_, all| all.whole().spelled(|head| head.replace(" 200 ", " 203 "))),
];

/// URLs that work once, range requests that are answered by something else, redirect targets that expire without an error status, slow
/// servers, and response heads that curl accepts.
pub(crate) const REFUSING: &[Manner] = &[
    // URLs that work once.
    manner("only-once-404", |asked, all| only_once(asked, all, || Answer::status(404))),
    manner("only-once-403", |asked, all| only_once(asked, all, || Answer::status(403))),
    manner("only-once-429", |asked, all| only_once(asked, all, || Answer::status(429).with("Retry-After", "3600"))),
    manner("only-once-page", |asked, all| only_once(asked, all, || Answer::page(200, "<html>gone</html>"))),
    manner("only-once-close", |asked, all| only_once(asked, all, || Answer::garbage(b""))),
    manner("only-once-silent", |asked, all| only_once(asked, all, silent)),
    // Servers that refuse range requests in different ways.
    manner("range-close", |asked, all| refusing(asked, all, || Answer::garbage(b""))),
    manner("range-garbage", |asked, all| refusing(asked, all, || Answer::garbage(b"!!\r\n\r\n"))),
    manner("range-silent", |asked, all| refusing(asked, all, silent)),
    manner("range-429", |asked, all| refusing(asked, all, || Answer::status(429))),
    manner("range-503", |asked, all| refusing(asked, all, || Answer::status(503))),
    manner("range-404", |asked, all| refusing(asked, all, || Answer::status(404))),
    manner("range-empty", |asked, all| refusing(asked, all, || Answer::page(200, ""))),
    manner("range-416-within", |asked, all| {
        refusing(asked, all, || Answer::status(416).with("Content-Range", "bytes */400000"))
    }),
    manner("range-204", |asked, all| refusing(asked, all, || Answer::status(204))),
    manner("range-304", |asked, all| refusing(asked, all, || Answer::status(304).without("Content-Length"))),
    manner("range-302", |asked, all| refusing(asked, all, || Answer::status(302))),
    manner("range-nowhere", |asked, all| refusing(asked, all, || Answer::redirect(302, "/nowhere"))),
    manner("range-circle", |asked, all| refusing(asked, all, || Answer::redirect(302, "/range-circle"))),
    manner("range-page", |asked, all| {
        refusing(asked, all, || Answer::page(200, "<!DOCTYPE html><html>log in</html>"))
    }),
    manner("range-stub", |asked, all| {
        let answer = all.answer(asked);
        if asked.range.is_none() { answer } else { answer.broken_after(1000, [Step::Close]) }
    }),
    // Targets that expire.
    manner("expired-page", |asked, all| signed_by(asked, all, 300, || Answer::page(200, "<html>expired</html>"))),
    manner("expired-json", |asked, all| {
        signed_by(asked, all, 300, || Answer::page(200, "{}").with("Content-Type", "application/json"))
    }),
    manner("expired-500", |asked, all| signed_by(asked, all, 300, || Answer::status(500))),
    manner("expired-503", |asked, all| signed_by(asked, all, 300, || Answer::status(503))),
    manner("expired-302", |asked, all| signed_by(asked, all, 300, || Answer::redirect(302, "/expired-302-page"))),
    manner("thinks", |asked, all| {
        std::thread::sleep(Duration::from_secs(11));
        all.answer(asked)
    }),
    // Heads.
    manner("blank-continuation", |asked, all| {
        let answer = all.answer(asked).with("X-Long", "one,");
        answer.spelled(|head| head.replace("one,\r\n", "one,\r\n \r\n two\r\n"))
    }),
    manner("blank-continuation-before-length", |asked, all| {
        all.answer(asked).spelled(|head| head.replace("Content-Length", "X-Long: one,\r\n \r\nContent-Length"))
    }),
    manner("long-head", |asked, all| {
        (0..100).fold(all.answer(asked), |answer, n| answer.with(&format!("X-{n}"), &"y".repeat(2000)))
    }),
    manner("small-letters", |asked, all| all.answer(asked).spelled(|head| head.replace("HTTP/1.1", "http/1.1"))),
    manner("length-plus", |_, all| {
        all.whole().spelled(|head| head.replace("Content-Length: ", "Content-Length: +"))
    }),
    manner("length-words", |_, all| {
        all.whole().spelled(|head| head.replace("Content-Length: 400000", "Content-Length: 400000 bytes"))
    }),
    manner("total-plus", |asked, all| spelled(asked, all, |range, total| format!("bytes {range}/+{total}"))),
    manner("coding-twice", |asked, all| {
        const LINE: &str = "Transfer-Encoding: chunked\r\n";
        let answer = chunked(asked, all);
        if asked.range.is_none() { answer } else { answer.spelled(|head| head.replace(LINE, &LINE.repeat(2))) }
    }),
    manner("status-300", |_, all| all.whole().spelled(|head| head.replace(" 200 ", " 300 "))),
    manner("status-302", |_, all| all.whole().spelled(|head| head.replace(" 200 ", " 302 "))),
];

/// Answers the first request of each program with the file, later ones with `otherwise`.
fn only_once(asked: &Asked, all: &Resource, otherwise: impl Fn() -> Answer) -> Answer {
    static USED: OnceLock<std::sync::Mutex<std::collections::BTreeSet<String>>> = OnceLock::new();
    let agent = asked.field("User-Agent").unwrap_or_default();
    let program = format!("{} {} {}", asked.path, agent.contains("curl"), asked.from.is_loopback());
    let fresh = USED.get_or_init(Default::default).lock().unwrap().insert(program);
    if fresh { all.answer(asked).slowly(20_000, Duration::from_millis(20)) } else { otherwise() }
}

/// Answers range requests with `otherwise`, others with the whole file.
fn refusing(asked: &Asked, all: &Resource, otherwise: impl Fn() -> Answer) -> Answer {
    if asked.range.is_some() { otherwise() } else { all.whole() }
}

/// Sends nothing for longer than any program waits.
fn silent() -> Answer {
    Answer::garbage(b"").then([Step::Wait(Duration::from_secs(60)), Step::Close])
}

const OLD: &str = "Sat, 01 Aug 2020 10:00:00 GMT";
const NOW: &str = "Thu, 26 Nov 2026 10:00:00 GMT";

/// The correct response, changed by `change` if it is a range.
fn ranged(asked: &Asked, all: &Resource, change: impl Fn(Answer) -> Answer) -> Answer {
    let answer = all.answer(asked);
    if asked.range.as_ref().is_some_and(|range| range.start < all.len()) { change(answer) } else { answer }
}

/// The correct response with a Content-Range that `spell` writes from a range such as `0-9` and the total.
fn spelled(asked: &Asked, all: &Resource, spell: impl Fn(&str, u64) -> String) -> Answer {
    let Some(range) = &asked.range else { return all.whole() };
    let text = format!("{}-{}", range.start, range.end.min(all.len()) - 1);
    ranged(asked, all, |answer| answer.with("Content-Range", &spell(&text, all.len())))
}

/// Answers with another range, which `other` computes from the requested one.
fn wider(asked: &Asked, all: &Resource, other: impl Fn(&Range<u64>) -> Range<u64>) -> Answer {
    match &asked.range {
        Some(range) if range.start < all.len() => {
            let other = other(range);
            all.part(other.start..other.end.min(all.len()))
        }
        _ => all.answer(asked),
    }
}

/// Answers ranges larger than `limit` with `status`.
fn limited(asked: &Asked, all: &Resource, limit: u64, status: u16) -> Answer {
    let large = asked.range.as_ref().is_some_and(|range| range.end.min(all.len()) - range.start > limit);
    if large { Answer::status(status) } else { all.answer(asked) }
}

/// A redirect to a slow target that expires after `lives` milliseconds and then answers `status`.
fn signed(asked: &Asked, all: &Resource, lives: u128, status: u16) -> Answer {
    signed_by(asked, all, lives, || Answer::status(status))
}

/// The same; `expired` is the response of the expired target.
fn signed_by(asked: &Asked, all: &Resource, lives: u128, expired: impl Fn() -> Answer) -> Answer {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = START.get_or_init(Instant::now).elapsed().as_millis();
    match asked.path.split_once("?until=") {
        Some((_, until)) if now <= until.parse().unwrap_or(0) => {
            all.answer(asked).slowly(8000, Duration::from_millis(40))
        }
        Some(_) => expired(),
        None => Answer::redirect(302, &format!("/target-{}?until={}", &asked.path[1..], now + lives)),
    }
}

/// Two back ends behind one address: the ETag depends on the connection, and If-Range is compared with it. `honest` back ends
/// also compare dates.
fn flip(asked: &Asked, all: &Resource, honest: bool) -> Answer {
    let tag = format!("\"b{}\"", asked.conn % 2);
    let all = all.clone().with("ETag", &tag);
    let dated = all.clone().with("Last-Modified", OLD).with("Date", NOW);
    let condition = asked.field("If-Range").filter(|_| asked.range.is_some());
    if condition.is_some_and(|condition| condition != tag && !(honest && condition == OLD)) {
        return if honest { dated.whole() } else { all.whole() };
    }
    dated.answer(asked).slowly(4000, Duration::from_millis(20))
}

/// The whole file in chunks of 128 bytes; `size` writes the size line of a chunk.
fn in_small_chunks(all: &Resource, size: impl Fn(usize) -> String) -> Answer {
    let mut wire = Vec::new();
    for chunk in all.data.chunks(128) {
        wire.extend_from_slice(size(chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(size(0).as_bytes());
    wire.extend_from_slice(b"\r\n");
    Answer::status(200).without("Content-Length").with("Transfer-Encoding", "chunked").then([Step::Raw(wire)])
}

/// The correct response with chunked transfer coding if it is a range.
fn chunked(asked: &Asked, all: &Resource) -> Answer {
    ranged(asked, all, |answer| {
        let [Step::Data(span)] = &answer.steps[..] else { return answer };
        let span = span.clone();
        let chunks = (span.start..span.end).step_by(50_000).map(|at| Step::Chunk(at..(at + 50_000).min(span.end)));
        let steps: Vec<Step> = chunks.chain([Step::Raw(b"0;last=1\r\n\r\n".to_vec())]).collect();
        answer.without("Content-Length").with("Transfer-Encoding", "chunked").then(steps)
    })
}

/// The correct response followed by bytes that do not belong to it.
fn behind(asked: &Asked, all: &Resource, what: &[u8]) -> Answer {
    let mut answer = all.answer(asked);
    answer.steps.push(Step::Raw(what.to_vec()));
    answer
}
