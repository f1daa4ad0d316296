//! Playlists and manifests: their addresses are rewritten to lead to the proxy, and the next segments are prefetched.

use std::time::{Duration, Instant};

use crate::proxy::{Player, Proxy};
use crate::server::{Request, Resource, Response, Server, Step};

const SEGMENT: usize = 400_000;

fn list(content_type: &str, text: &str) -> Response {
    Response::page(200, text).with("Content-Type", content_type)
}

fn segment(number: usize) -> Resource {
    Resource::other(SEGMENT, number as u64).with("ETag", &format!("\"{number}\""))
}

/// Serves segments by the number in their name (`…7.ts`); a test adds its playlists.
fn segments(request: &Request) -> Response {
    let name = request.path.trim_end_matches(".ts");
    let number = name.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    number.map_or_else(|| Response::status(404), |number| segment(number).respond(request))
}

fn playlist(lines: impl IntoIterator<Item = String>) -> String {
    let segments = lines.into_iter().map(|line| format!("#EXTINF:2.0,\n{line}\n"));
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n{}#EXT-X-ENDLIST\n", segments.collect::<String>())
}

fn is_requested(server: &Server, path: &str) -> bool {
    server.requests().iter().any(|request| request.path == path)
}

fn wait(description: &str, until: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !until() {
        assert!(Instant::now() < end, "never {description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn addresses_of_a_playlist_lead_to_the_proxy_and_the_rest_is_unchanged() {
    let server = Server::start(|request| match request.path.as_str() {
        "/live" => Response::redirect(302, "/edge/live.m3u8?token=x"),
        "/edge/live.m3u8?token=x" => {
            let text = "#EXTM3U\r\n#EXT-X-OWN:7\r\n#EXT-X-KEY:METHOD=AES-128,URI=\"/key\"\r\n#EXTINF:2,\r\nseg1.ts\r\n\
                #EXTINF:2,\r\n/seg2.ts";
            list("application/x-mpegURL", text).with("ETag", "\"1\"")
        }
        "/plain.m3u8" => list("text/plain", &playlist(["seg1.ts".into()])),
        _ => Response::status(404),
    });
    let proxy = Proxy::start(&[]);
    let (via, url) = (format!("http://{}/", proxy.address), server.url(""));
    // The first time it is recognized by its type; the second time its URL is known.
    for _ in 0..2 {
        for args in [&[][..], &["-r", "0-"]] {
            let got = proxy.get(&server.url("/live"), args);
            assert_eq!((got.status, got.field("content-type")), (200, Some("application/x-mpegURL")));
            assert_eq!(
                got.text(),
                format!(
                    "#EXTM3U\r\n#EXT-X-OWN:7\r\n#EXT-X-KEY:METHOD=AES-128,URI=\"{via}{url}/key\"\r\n#EXTINF:2,\r\n\
                    {via}{url}/edge/seg1.ts\r\n#EXTINF:2,\r\n{via}{url}/seg2.ts"
                )
            );
            assert!(got.field("etag").is_none(), "a rewritten playlist must not carry the origin's ETag");
        }
    }
    let head = proxy.get(&server.url("/live"), &["-I"]);
    assert_eq!(
        head.field("content-length"),
        Some(proxy.get(&server.url("/live"), &[]).text().len().to_string().as_str())
    );
    assert_eq!(proxy.get(&server.url("/plain.m3u8"), &[]).text(), playlist(["seg1.ts".into()]));
    assert_eq!(proxy.get(&server.url("/none.m3u8"), &[]).status, 404);
}

#[test]
fn addresses_of_a_manifest_lead_to_the_proxy() {
    let server = Server::start(|request| match request.path.as_str() {
        "/a/m.mpd" => list("application/dash+xml", "<MPD><BaseURL>/b/</BaseURL><!-- x --></MPD>"),
        _ => Response::status(404),
    });
    let proxy = Proxy::start(&[]);
    let got = proxy.get(&server.url("/a/m.mpd"), &[]);
    assert_eq!(
        got.text(),
        format!("<MPD><BaseURL>http://{}/{}</BaseURL><!-- x --></MPD>", proxy.address, server.url("/b/"))
    );
    assert_eq!(got.field("content-type"), Some("application/dash+xml"));
}

#[test]
fn a_playlist_with_errors_is_rewritten_as_far_as_possible() {
    const BODIES: [(&str, &[u8], &[u8]); 5] = [
        ("duration", b"#EXTM3U\n#EXTINF:two,\n/1.ts\n", b"#EXTM3U\n#EXTINF:two,\n@/1.ts\n"),
        ("latin", b"#EXTM3U\n#EXTINF:2,caf\xe9\n/caf\xe9.ts\n", b"#EXTM3U\n#EXTINF:2,caf\xe9\n@/caf%E9.ts\n"),
        ("quote", b"#EXTM3U\n#EXT-X-KEY:X=\"\n/1.ts\n", b"#EXTM3U\n#EXT-X-KEY:X=\"\n@/1.ts\n"),
        ("return", b"#EXTM3U\r#EXTINF:2,\r/1.ts\r", b"#EXTM3U\r#EXTINF:2,\r@/1.ts\r"),
        ("map", b"#EXTM3U\n#EXT-X-MAP:URI=/i.mp4\n", b"#EXTM3U\n#EXT-X-MAP:URI=@/i.mp4\n"),
    ];
    let raw = |body: Vec<u8>| {
        let length = body.len().to_string();
        Response::page(200, "").with("Content-Length", &length).with_steps([Step::Raw(body)])
    };
    let server = Server::start(move |request| {
        let name = request.path.trim_start_matches('/').trim_end_matches(".m3u8");
        match BODIES.iter().find(|(body_name, ..)| *body_name == name) {
            Some((_, body, _)) => raw(body.to_vec()),
            None if name == "utf16" => {
                let units = std::iter::once(0xfeff).chain("#EXTM3U\n#EXTINF:2,é\n/1.ts\n".encode_utf16());
                raw(units.flat_map(u16::to_le_bytes).collect())
                    .with("Content-Type", "audio/x-mpegurl; charset=utf-16")
            }
            None if name == "broken.mpd" => list("application/dash+xml", "<MPD><BaseURL>/http://h/x</MPD>"),
            // A film with the name of a playlist.
            None => Resource::new(100_000).with("Content-Type", "video/mp4").respond(request),
        }
    });
    let proxy = Proxy::start(&[]);
    let via = proxy.media_url(&server.url(""));
    for (name, _, want) in BODIES {
        let got = proxy.get(&server.url(&format!("/{name}.m3u8")), &[]).body;
        let at = want.iter().position(|byte| *byte == b'@').unwrap();
        let want = [&want[..at], via.as_bytes(), &want[at + 1..]].concat();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&want), "{name}");
        assert!(got == want, "{name}");
    }
    let got = proxy.get(&server.url("/utf16.m3u8"), &[]);
    assert_eq!(got.text(), format!("#EXTM3U\n#EXTINF:2,é\n{via}/1.ts\n"));
    assert_eq!(got.field("content-type"), Some("application/vnd.apple.mpegurl"));
    let broken = proxy.get(&server.url("/broken.mpd"), &[]).text();
    assert_eq!(broken, "<MPD><BaseURL>/from-list-local/http://h/x</MPD>");
    let now = proxy.status();
    let mut reasons = now["sessions"].as_array().unwrap().iter().map(|session| session["reason"].as_str().unwrap());
    assert!(
        reasons.any(|reason| reason.starts_with("the playlist is passed on unparsed: it is not well-formed XML")),
        "{now:#}"
    );
    let film = proxy.get(&server.url("/film.m3u8"), &["-r", "10-19"]);
    assert_eq!((film.status, film.field("content-type")), (206, Some("video/mp4")));
}

#[test]
fn the_next_segments_are_prefetched_and_requested_once() {
    let server = Server::start(|request| match request.path.as_str() {
        "/list.m3u8" => list("application/x-mpegurl", &playlist((1..=9).map(|n| format!("s{n}.ts")))),
        _ => segments(request),
    });
    let proxy = Proxy::start(&[]);
    proxy.get(&server.url("/list.m3u8"), &[]);
    assert!(proxy.get(&server.url("/s1.ts"), &[]).body == *segment(1).data);
    wait("asked for the fourth", || is_requested(&server, "/s4.ts"));
    let now =
        proxy.wait_for_status("three ahead", |now| now["prefetches"][0]["prefetched_bytes"] == 3 * SEGMENT as u64);
    assert_eq!(
        (&now["prefetches"][0]["prefetched_segments"], &now["prefetches"][0]["prefetched_s"]),
        (&3.into(), &6.0.into())
    );
    assert!(!is_requested(&server, "/s5.ts"), "at most three segments are prefetched");
    for number in 2..=9 {
        let before = server.requests().len();
        let args = [&["-r", "0-"][..], &[]][number % 2];
        let got = proxy.get(&server.url(&format!("/s{number}.ts")), args);
        assert!(got.body == *segment(number).data, "{number}");
        assert_eq!(got.status, [206, 200][number % 2]);
        let path = format!("/s{number}.ts");
        assert!(
            server.requests()[before..].iter().all(|request| request.path != path),
            "segment {number} was requested again"
        );
        wait("ahead", || number > 6 || is_requested(&server, &format!("/s{}.ts", number + 3)));
    }
}

#[test]
fn prefetched_segments_are_dropped_after_a_seek_or_a_change_of_rendition() {
    let master = "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nlow.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=2\nhigh.m3u8\n";
    let server = Server::start(move |request| match request.path.as_str() {
        "/master.m3u8" => list("application/x-mpegurl", master),
        "/low.m3u8" => list("application/x-mpegurl", &playlist((10..40).map(|n| format!("l{n}.ts")))),
        "/high.m3u8" => list("application/x-mpegurl", &playlist((10..40).map(|n| format!("h{n}.ts")))),
        _ => segments(request),
    });
    let proxy = Proxy::start(&[]);
    for path in ["/master.m3u8", "/low.m3u8", "/high.m3u8", "/l10.ts"] {
        assert_eq!(proxy.get(&server.url(path), &[]).status, 200);
    }
    wait("ahead", || is_requested(&server, "/l13.ts"));
    // A seek.
    proxy.get(&server.url("/l30.ts"), &[]);
    wait("ahead", || is_requested(&server, "/l33.ts"));
    let tracks = |now: &serde_json::Value| now["prefetches"].as_array().unwrap().len();
    let now =
        proxy.wait_for_status("three ahead", |now| now["prefetches"][0]["prefetched_bytes"] == 3 * SEGMENT as u64);
    assert_eq!(tracks(&now), 1);
    // Another rendition: prefetched segments of the first one are dropped.
    proxy.get(&server.url("/h31.ts"), &[]);
    let now = proxy.wait_for_status("ahead of the other", |now| {
        tracks(now) == 1 && now["prefetches"][0]["playlist"].as_str().unwrap().ends_with("high.m3u8")
    });
    assert!(now["window_bytes"].as_u64() <= Some(32_000_000), "{now:#}");
    assert!(!is_requested(&server, "/l14.ts") && !is_requested(&server, "/l34.ts"));
}

#[test]
fn a_segment_requested_during_the_previous_one_gets_its_head_at_once_and_its_bytes_in_order() {
    let server = Server::start(|request| match request.path.as_str() {
        "/list.m3u8" => list("application/x-mpegurl", &playlist((1..=9).map(|n| format!("s{n}.ts")))),
        _ => segments(request),
    })
    .limit_rate(100_000);
    let proxy = Proxy::start(&[]);
    proxy.request(&proxy.media_url(&server.url("/list.m3u8")), &["-A", "Player"]);
    let mut first = Player::start(&proxy, &server.url("/s1.ts"), 0);
    assert!(first.read(1000) == segment(1).data[..1000]);
    // Its response head has arrived, for which the proxy requested a single byte.
    let mut second = Player::start(&proxy, &server.url("/s2.ts"), 0);
    let requests_of =
        |path: &str| server.requests().into_iter().filter(|request| request.path == path).collect::<Vec<_>>();
    assert_eq!(requests_of("/s2.ts").iter().map(|request| request.range.clone()).collect::<Vec<_>>(), [Some(0..1)]);
    assert!(first.read(SEGMENT - 1000) == segment(1).data[1000..]);
    assert!(second.read(SEGMENT) == *segment(2).data);
}

#[test]
fn segments_that_are_ranges_of_one_file_are_prefetched() {
    let file = Resource::new(4 * SEGMENT);
    let served = file.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/list.m3u8" => {
            let piece = |n: usize| format!("#EXT-X-BYTERANGE:{SEGMENT}@{}\nfile.ts", n * SEGMENT);
            list("application/x-mpegurl", &playlist((0..4).map(piece)))
        }
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&[]);
    proxy.get(&server.url("/list.m3u8"), &[]);
    let range = |n: usize| format!("{}-{}", n * SEGMENT, (n + 1) * SEGMENT - 1);
    for n in 0..4 {
        let got = proxy.get(&server.url("/file.ts"), &["-r", &range(n)]);
        assert_eq!(got.status, 206);
        assert!(got.body == file.data[n * SEGMENT..(n + 1) * SEGMENT], "{n}");
        if n == 0 {
            proxy.wait_for_status("ahead", |now| now["prefetches"][0]["prefetched_bytes"] == 3 * SEGMENT as u64);
        }
    }
    assert!(server.sent_bytes() <= 4 * SEGMENT as u64 + 100_000, "{} bytes were sent", server.sent_bytes());
}

#[test]
fn unrequested_content_encodings_are_passed_on_or_refused() {
    let file = segment(1).with("Content-Encoding", "gzip");
    let served = file.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/list.m3u8" => list("application/x-mpegurl", "\u{1f}gzip or so").with("Content-Encoding", "gzip"),
        "/named.m3u8" => list("text/plain", &playlist(["/1.ts".to_owned()])).with("Content-Encoding", "utf-8"),
        "/unknown.m3u8" => list("text/plain", "zstandard or so").with("Content-Encoding", "zstd"),
        _ => served.respond(request),
    });
    let proxy = Proxy::start(&[]);
    for (path, len) in [("/list.m3u8", 11), ("/1.ts", SEGMENT)] {
        let got = proxy.get(&server.url(path), &[]);
        assert_eq!((got.status, got.field("content-encoding"), got.body.len()), (200, Some("gzip"), len), "{path}");
    }
    let named = proxy.get(&server.url("/named.m3u8"), &[]);
    assert_eq!((named.status, named.field("content-encoding")), (200, None));
    assert_eq!(named.text(), playlist([proxy.media_url(&server.url("/1.ts"))]));
    let unknown = proxy.get(&server.url("/unknown.m3u8"), &[]);
    assert!(unknown.status == 502 && unknown.text().contains("its encoding is not known"), "{}", unknown.text());
    let part = proxy.get(&server.url("/1.ts"), &["-r", "1000-1999"]);
    assert_eq!((part.status, part.field("content-encoding")), (206, Some("gzip")));
    assert!(part.body == file.data[1000..2000]);
}
