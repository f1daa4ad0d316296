//! Every playlist is rewritten before it reaches a player, however slowly its server sends it, in whatever encoding, and with any first bytes.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};

use crate::proxy::{Player, Proxy, Reply};
use crate::server::{Request, Resource, Response, Server, Step};

/// A segment address: a path that at the proxy would lead to another host than the playlist's.
const TARGET: &str = "/http://10.1.2.3/x";

fn list() -> String {
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{TARGET}\n#EXT-X-ENDLIST\n")
}

fn body(kind: &str, body: &[u8]) -> Response {
    in_two_parts(kind, body, body.len(), Duration::ZERO)
}

/// The same with this status.
fn body_of(status: u16, kind: &str, body: &[u8]) -> Response {
    let answer =
        Response::status(status).with("Content-Type", kind).with("Content-Length", &body.len().to_string());
    answer.with_steps([Step::Raw(body.to_vec())])
}

/// A body whose first bytes come at once, and the others after a pause.
fn in_two_parts(kind: &str, body: &[u8], first: usize, pause: Duration) -> Response {
    let (first, remaining) = body.split_at(first);
    let steps = [Step::Raw(first.to_vec()), Step::Wait(pause), Step::Raw(remaining.to_vec())];
    Response::page(200, "")
        .with("Content-Type", kind)
        .with("Content-Length", &body.len().to_string())
        .with_steps(steps)
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// The number of requests for a path.
fn count(server: &Server, path: &str) -> usize {
    server.requests().iter().filter(|request| request.path == path).count()
}

/// Asserts that the playlist arrived with rewritten addresses.
fn assert_is_rewritten(proxy: &Proxy, server: &Server, got: &Reply, description: &str) {
    let rewritten_url = format!("http://{}/{}", proxy.address, server.url(TARGET));
    assert_eq!((got.status, got.field("content-encoding")), (200, None), "{description}: {}", got.text());
    assert_eq!(got.text(), list().replace(TARGET, &rewritten_url), "{description}");
}

#[test]
fn every_response_for_a_url_is_inspected() {
    let (named, flips) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let film = Resource::new(300_000).with("Content-Type", "video/mp4");
    let server = Server::start(move |request| {
        let list = list();
        let is_range = request.field("range").is_some();
        match request.path.as_str() {
            // The first response is no playlist, the next one is.
            "/named.m3u8" if named.fetch_add(1, Ordering::SeqCst) == 0 => body("text/plain", b"\0 nothing\n"),
            "/typed" if flips.fetch_add(1, Ordering::SeqCst) < 3 => body("audio/mpegurl", b"\0 nothing\n"),
            "/typed" => body("audio/mpegurl", list.as_bytes()),
            "/ranges.m3u8" if !is_range => body("application/x-mpegurl", b"\0 nothing\n"),
            "/film.m3u8" => film.respond(request),
            _ => body("text/plain", list.as_bytes()),
        }
    });
    let proxy = Proxy::start(&[]);
    for (path, args) in [
        ("/named.m3u8", &[][..]),
        ("/ranges.m3u8", &["-r", "0-"]),
        ("/ranges.m3u8", &[]),
        // A server without ranges sends all of it.
        ("/whole", &["-r", "100-"]),
        ("/whole", &["-r", "-5"]),
    ] {
        assert_is_rewritten(&proxy, &server, &proxy.get(&server.url(path), args), path);
    }
    // A body that is no playlist loses its playlist type, because a player could parse it for that type alone.
    let none = proxy.get(&server.url("/typed"), &[]);
    assert_eq!(
        (none.text().as_str(), none.field("content-type")),
        ("\0 nothing\n", Some("application/octet-stream"))
    );
    while count(&server, "/typed") < 3 {
        proxy.get(&server.url("/typed"), &[]);
    }
    assert_is_rewritten(&proxy, &server, &proxy.get(&server.url("/typed"), &[]), "/typed");
    for (args, len) in [(&[][..], 300_000), (&["-r", "0-1"], 2), (&["-r", "1000-1999"], 1000)] {
        let got = proxy.get(&server.url("/film.m3u8"), args);
        assert_eq!((got.body.len(), got.field("content-type")), (len, Some("video/mp4")));
    }
}

#[test]
fn a_playlist_in_any_encoding_is_rewritten_or_refused() {
    let list = list();
    let empty_blocks = [0, 0, 0, 0xff, 0xff].repeat(1000);
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(list.as_bytes()).unwrap();
    let deflated = [empty_blocks, encoder.finish().unwrap()].concat();
    let (once, twice) = (gzip(list.as_bytes()), gzip(&gzip(list.as_bytes())));
    let video = b"\0\0\0\x18ftypmp42\0\0\0\0mp42".repeat(10);
    let subtitles = b"WEBVTT\n\n00:00.000 --> 00:01.000\nHello\n".to_vec();
    let served = [
        ("/twice", &["gzip, gzip"][..], twice.clone()),
        ("/fields", &["gzip", "gzip"], twice),
        ("/identity", &["identity, gzip"], once.clone()),
        ("/comma", &["gzip,"], once.clone()),
        ("/deflate", &["deflate"], deflated),
        ("/utf-8", &["utf-8"], list.clone().into_bytes()),
        ("/zstd", &["zstd"], b"\x28\xb5\x2f\xfd\x04\0\0\0\0\0\0\0".to_vec()),
        ("/unknown.m3u8", &["gzip", "zstd"], once),
        ("/video", &["zstd"], video.clone()),
        ("/subtitles", &["utf-8"], subtitles.clone()),
        ("/zipped", &["gzip"], gzip(&subtitles)),
    ];
    let answers = served.clone();
    let server = Server::start(move |request| {
        let Some((_, encodings, bytes)) = answers.iter().find(|(path, ..)| *path == request.path) else {
            return Response::status(404);
        };
        let answer = body("text/plain", bytes).with("Content-Encoding", &encodings.join("#"));
        // One header field for each encoding.
        answer.rewrite_head(|head| head.replace('#', "\r\nContent-Encoding: "))
    });
    let proxy = Proxy::start(&[]);
    for (path, encodings, bytes) in &served {
        for args in [&[][..], &["-r", "0-"]] {
            let got = proxy.get(&server.url(path), args);
            match *path {
                "/zstd" | "/unknown.m3u8" => {
                    let reason = got.text();
                    assert!(got.status == 502 && reason.contains("its encoding is not known"), "{path}: {reason}");
                }
                "/video" | "/subtitles" | "/zipped" => {
                    assert_eq!((got.status, got.field("content-encoding")), (200, Some(encodings[0])), "{path}");
                    assert!(got.body == *bytes, "{path}");
                }
                _ => assert_is_rewritten(&proxy, &server, &got, path),
            }
        }
    }
}

#[test]
fn a_slow_playlist_is_waited_for_and_slow_media_is_not() {
    const PAUSE: Duration = Duration::from_millis(2600);
    let served = [
        ("/head", list().into_bytes(), 0),
        ("/line", format!("\n{}", list()).into_bytes(), 1),
        ("/space", format!("  {}", list()).into_bytes(), 1),
        ("/mark", format!("\u{feff}{}", list()).into_bytes(), 1),
        ("/tag", list().into_bytes(), 5),
        ("/gzip", gzip(list().as_bytes()), 5),
    ];
    let answers = served.clone();
    let server = Server::start(move |request| match answers.iter().find(|(path, ..)| *path == request.path) {
        Some((path, bytes, first)) => {
            let answer = in_two_parts("text/plain", bytes, *first, PAUSE);
            if *path == "/gzip" { answer.with("Content-Encoding", "gzip") } else { answer }
        }
        None if request.path == "/cut.m3u8" => {
            body("text/plain", b"#EXT").with("Content-Length", "100").with_steps([Step::Close])
        }
        None => in_two_parts("video/mp2t", &b"\x47\x40\x11\x10".repeat(1000), 1, Duration::from_secs(8)),
    });
    let proxy = Proxy::start(&[]);
    std::thread::scope(|scope| {
        for (path, bytes, _) in &served {
            let (proxy, server) = (&proxy, &server);
            scope.spawn(move || {
                let mut got = proxy.get(&server.url(path), &["-A", path]);
                // Bytes before `#EXTM3U` are kept.
                let text = String::from_utf8_lossy(bytes).into_owned();
                let before = text.find('#').filter(|_| *path != "/gzip").unwrap_or_default();
                got.body.drain(..before);
                assert_is_rewritten(proxy, server, &got, path);
            });
        }
    });
    // The response head of a media file follows its first byte.
    let began = Instant::now();
    let head =
        proxy.curl(&["-o", "/dev/null", "-w", "%{time_starttransfer}", &proxy.media_url(&server.url("/film.ts"))]);
    let first: f64 = String::from_utf8_lossy(&head.stdout).parse().unwrap();
    assert!(first < 4.0 && began.elapsed() > Duration::from_secs(7), "{first}");
    // A body that breaks off before its kind is known is not passed on.
    assert_eq!(proxy.get(&server.url("/cut.m3u8"), &[]).status, 502);
}

#[test]
fn a_segment_that_is_a_playlist_is_rewritten_while_the_previous_one_is_running() {
    let first = Resource::new(4_000_000).with("ETag", "\"1\"").with("Content-Type", "video/mp2t");
    let (length, changes) = (list().len(), AtomicUsize::new(0));
    let ranges = move |request: &Request, text: &[u8]| {
        let (last, status) = match request.field("range") {
            Some("bytes=0-0") => (0, 206),
            Some(_) => (length - 1, 206),
            None => (length - 1, 200),
        };
        let answer = body_of(status, "text/plain", &text[..=last]).with("ETag", "\"a\"");
        if status == 200 { answer } else { answer.with("Content-Range", &format!("bytes 0-{last}/{length}")) }
    };
    let server = Server::start(move |request| match request.path.as_str() {
        "/a.m3u8" => {
            let segments = ["/1.ts", "/b", "/3.ts"].map(|path| format!("#EXTINF:4,\n{path}\n")).concat();
            let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n{segments}#EXT-X-ENDLIST\n");
            body("application/x-mpegurl", text.as_bytes())
        }
        "/c.m3u8" => {
            let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n/1.ts\n#EXTINF:4,\n/d\n#EXT-X-ENDLIST\n";
            body("application/x-mpegurl", text.as_bytes())
        }
        "/b" => ranges(request, list().as_bytes()),
        // The first byte differs from that of the later response.
        "/d" if changes.fetch_add(1, Ordering::SeqCst) == 0 => ranges(request, &b"G".repeat(length)),
        "/d" => ranges(request, list().as_bytes()),
        _ => first.respond(request),
    })
    .limit_rate(800_000);
    let proxy = Proxy::start(&[]);
    for (list, second) in [("/a.m3u8", "/b"), ("/c.m3u8", "/d")] {
        let args = ["-A", "Player"];
        assert_eq!(proxy.get(&server.url(list), &args).status, 200);
        let mut player = Player::start(&proxy, &server.url("/1.ts"), 0);
        player.read(10_000);
        let output = proxy.curl(&["-A", "Player", &proxy.media_url(&server.url(second))]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains(&format!("\n{TARGET}")), "{second}: {text}");
        drop(player);
        if second == "/b" {
            assert!(text.contains(&server.url(TARGET)), "{text}");
        }
    }
}

#[test]
fn a_playlist_without_a_header_is_read_by_its_type_or_name() {
    let text = format!("http://radio.example/stream\n{TARGET}\nnext.mp3\n");
    let served = text.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/radio" => body("audio/x-mpegurl", served.as_bytes()),
        "/text" => body("text/plain", served.as_bytes()),
        "/zipped.m3u" => body("text/plain", &gzip(served.as_bytes())).with("Content-Encoding", "gzip"),
        "/page.m3u8" => body("text/html", b"<!DOCTYPE html><html>none</html>"),
        _ => body("text/plain", served.as_bytes()),
    });
    let proxy = Proxy::start(&[]);
    let (via, target_url) = (format!("http://{}/", proxy.address), server.url(TARGET));
    let want = format!("{via}from-list-local/http://radio.example/stream\n{via}{target_url}\nnext.mp3\n");
    for path in ["/radio", "/radio.m3u", "/radio.M3U8", "/x?list=.m3u", "/zipped.m3u"] {
        for args in [&[][..], &["-r", "0-"]] {
            let got = proxy.get(&server.url(path), args);
            assert_eq!((got.status, got.text().as_str()), (200, want.as_str()), "{path}");
        }
    }
    assert_eq!(proxy.get(&server.url("/text"), &[]).text(), text);
    let page = proxy.get(&server.url("/page.m3u8"), &[]);
    assert_eq!((page.status, page.text().as_str()), (200, "<!DOCTYPE html><html>none</html>"));
}

#[test]
fn playlists_of_other_formats_are_recognized() {
    let pls = format!("[playlist]\nNumberOfEntries=1\nFile1={TARGET}\n");
    let asx = format!("<asx version=\"3.0\"><entry><ref href=\"{TARGET}\"/></entry></asx>");
    let text = format!("{TARGET}\n");
    let served = [("/a", "", &pls), ("/b.pls", "", &text), ("/c", "audio/x-scpls", &text), ("/d", "", &asx)];
    let served = served.map(|(path, kind, text)| (path, kind, text.clone()));
    let answers = served.clone();
    let server = Server::start(move |request| {
        let found = answers.iter().find(|(path, ..)| *path == request.path);
        found.map_or_else(|| Response::status(404), |(_, kind, text)| body(kind, text.as_bytes()))
    });
    let proxy = Proxy::start(&[]);
    for (path, _, text) in &served {
        let got = proxy.get(&server.url(path), &[]);
        assert_eq!((got.status, got.text()), (200, text.replace("/http", "/from-list-local/http")), "{path}");
    }
}

#[test]
fn a_server_with_a_late_first_byte_is_waited_for() {
    let film = Resource::new(1000).with("Content-Type", "video/mp4");
    let first = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let server = Server::start(move |request| {
        if first.lock().unwrap().insert(request.path.clone()) {
            std::thread::sleep(Duration::from_millis(20_500));
        }
        if request.path == "/slow.m3u8" {
            body("application/x-mpegurl", list().as_bytes())
        } else {
            film.respond(request)
        }
    });
    let proxy = Proxy::start(&[]);
    std::thread::scope(|scope| {
        for (path, args, status) in
            [("/slow.m3u8", &[][..], 200), ("/head", &["-I"], 200), ("/range", &["-r", "100-"], 206)]
        {
            let (proxy, server) = (&proxy, &server);
            scope.spawn(move || {
                let got = proxy.get(&server.url(path), args);
                assert_eq!(got.status, status, "{path}: {}", got.text());
            });
        }
    });
}

#[test]
fn a_playlist_with_another_success_status_is_rewritten() {
    let server = Server::start(|request| {
        let text = list();
        let (last, all) = (text.len() - 1, text.len());
        let answer = |status| body_of(status, "application/x-mpegurl", text.as_bytes());
        let part = |total: String| answer(206).with("Content-Range", &format!("bytes 0-{last}/{total}"));
        match request.path.as_str() {
            "/part.m3u8" => part(all.to_string()),
            "/open.m3u8" => part("*".to_owned()),
            "/half.m3u8" => part((2 * all).to_string()),
            _ => answer(203),
        }
    });
    let proxy = Proxy::start(&[]);
    for path in ["/part.m3u8", "/open.m3u8", "/changed.m3u8"] {
        assert_is_rewritten(&proxy, &server, &proxy.get(&server.url(path), &[]), path);
    }
    assert_eq!(proxy.get(&server.url("/half.m3u8"), &[]).status, 502);
}
