//! Playlists and manifests that are made to exhaust CPU or memory: the proxy survives with little memory and other clients do not wait.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::memory::peak;
use crate::proxy::Proxy;
use crate::server::{Response, Server, Step};

/// A playlist or manifest of a hostile server.
struct Hostile {
    name: &'static str,
    path: String,
    encoding: &'static str,
    body: Vec<u8>,
}

fn hls(lines: impl IntoIterator<Item = String>) -> Vec<u8> {
    let mut text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n".to_owned();
    for line in lines {
        text += &line;
        text.push('\n');
    }
    text.into_bytes()
}

fn define(name: &str, value: &str) -> String {
    format!("#EXT-X-DEFINE:NAME=\"{name}\",VALUE=\"{value}\"")
}

fn dash(template: &str, representations: usize, id: &str) -> Vec<u8> {
    let all: String = (0..representations).map(|n| format!("<Representation id=\"{id}{n}\"/>")).collect();
    format!(
        "<MPD mediaPresentationDuration=\"PT40000S\"><Period><AdaptationSet>{template}{all}</AdaptationSet></Period></MPD>"
    )
    .into_bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn all() -> Vec<Hostile> {
    let long = "x".repeat(8000);
    let nested = (0..9).map(|n| define(&format!("v{n}"), &format!("{{$v{}}}", n + 1).repeat(10)));
    let nested = nested.chain([define("v9", "AAAAAAAAAA"), "#EXTINF:4,".into(), "{$v0}.ts".into()]);
    let names = (0..4000).map(|n| define(&format!("n{n}"), "b"));
    let names = names.chain((0..4000).map(|n| format!("#EXTINF:4,\n{{$x}}{n}.ts")));
    let value = [define("x", &long)].into_iter().chain((0..200_000).map(|n| format!("#EXTINF:4,\n/{{$x}}{n}")));
    let braces = [define("x", "y"), "{$".repeat(2_000_000)];
    let deep: String = (0..50_000).map(|n| format!("<a{n}><BaseURL>x/</BaseURL>")).collect();
    let ends: String = (0..50_000).rev().map(|n| format!("</a{n}>")).collect();
    let spaces: String = (0..20_000).map(|n| format!("<p{n}:a xmlns:p{n}=\"u\">")).collect();
    let no_spaces: String = (0..20_000).rev().map(|n| format!("</p{n}:a>")).collect();
    let attributes = |count: usize| (0..count).map(|n| format!(" a{n}=\"\"")).collect::<String>();
    let entities: String =
        (0..9).map(|n| format!("<!ENTITY e{} \"{}\">", n + 1, format!("&e{n};").repeat(10))).collect();
    let urls = "<SegmentURL media=\"s.m4s\"/>".repeat(20_000);
    let path = |path: &str| path.to_owned();
    let plain = |name, path, body| Hostile { name, path, encoding: "", body };
    vec![
        plain("variables within variables", path("/1.m3u8"), hls(nested)),
        plain("4000 variables, 4000 references", path("/2.m3u8"), hls(names)),
        plain("a long variable, 200,000 references", path("/3.m3u8"), hls(value)),
        plain("references that do not end", path("/4.m3u8"), hls(braces)),
        plain("a million short addresses", path("/5.m3u8"), hls((0..1_000_000).map(|_| path("/a")))),
        plain("400,000 segments", path("/6.m3u8"), hls((0..400_000).map(|n| format!("#EXTINF:1,\n{n}")))),
        plain(
            "a million attributes",
            path("/7.m3u8"),
            hls([format!("#EXT-X-KEY:{}", "URI=\"/\",".repeat(900_000))]),
        ),
        plain(
            "a long address of its own",
            format!("/{}/8.m3u8", "y".repeat(12_000)),
            hls((0..400_000).map(|n| format!("#EXTINF:1,\n{n}"))),
        ),
        plain(
            "a long identifier in each position",
            path("/9.mpd"),
            dash(
                &format!(
                    "<SegmentTemplate duration=\"1\" media=\"{}$Number$\"/>",
                    "$RepresentationID$".repeat(15_000)
                ),
                1,
                &"A".repeat(100_000),
            ),
        ),
        plain(
            "a long template for each representation",
            path("/10.mpd"),
            dash(&format!("<SegmentTemplate duration=\"1\" media=\"{long}$Number$\"/>"), 50_000, ""),
        ),
        plain(
            "a long timeline for each representation",
            path("/11.mpd"),
            dash(
                "<SegmentTemplate media=\"s$Time$-$RepresentationID$\"><SegmentTimeline><S t=\"0\" d=\"1\" r=\"19999999\"/></SegmentTimeline></SegmentTemplate>",
                40_000,
                "",
            ),
        ),
        plain(
            "a long list for each representation",
            path("/12.mpd"),
            dash(&format!("<SegmentList duration=\"1\">{urls}</SegmentList>"), 20_000, ""),
        ),
        plain("attributes without end", path("/13.mpd"), format!("<MPD{}/>", attributes(150_000)).into_bytes()),
        plain(
            "many attributes, many times",
            path("/14.mpd"),
            format!("<MPD>{}</MPD>", format!("<a{}/>", attributes(120)).repeat(1500)).into_bytes(),
        ),
        plain("bases within bases", path("/15.mpd"), format!("<MPD>{deep}{ends}</MPD>").into_bytes()),
        plain(
            "namespaces within namespaces",
            path("/16.mpd"),
            format!("<MPD>{spaces}{no_spaces}</MPD>").into_bytes(),
        ),
        plain(
            "entities within entities",
            path("/17.mpd"),
            format!("<!DOCTYPE MPD [<!ENTITY e0 \"x\">{entities}]><MPD>&e9;</MPD>").into_bytes(),
        ),
        plain("angle brackets", path("/18.mpd"), format!("<MPD>{}", "<".repeat(1_900_000)).into_bytes()),
        plain("a hundred megabytes", path("/19.m3u8"), hls(["/x\n".repeat(33_000_000)])),
        Hostile {
            name: "a compressed bomb",
            path: path("/20.m3u8"),
            encoding: "gzip",
            body: gzip(&hls([path("/x\n").repeat(60_000_000)])),
        },
        Hostile {
            name: "a bomb within a bomb",
            path: path("/21"),
            encoding: "gzip, gzip",
            body: gzip(&gzip(&hls(["x".repeat(100_000_000)]))),
        },
        Hostile {
            name: "members without end",
            path: path("/22.m3u8"),
            encoding: "gzip",
            body: [gzip(b"#EXTM3U\n"), gzip(b"").repeat(400_000)].concat(),
        },
    ]
}

#[test]
fn hostile_playlists_need_little_memory_and_delay_no_other_client() {
    let hostile = all();
    let lists: Vec<_> = hostile.iter().map(|list| (list.path.clone(), list.encoding, list.body.clone())).collect();
    let server = Server::start(move |request| {
        if request.path == "/small.m3u8" {
            return Response::page(200, "#EXTM3U\n#EXTINF:2,\n/seg.ts\n#EXT-X-ENDLIST\n")
                .with("Content-Type", "application/x-mpegurl");
        }
        let Some((_, encoding, body)) = lists.iter().find(|(path, ..)| *path == request.path) else {
            return Response::status(404);
        };
        let kind = if request.path.ends_with("mpd") { "application/dash+xml" } else { "application/x-mpegurl" };
        let answer =
            Response::page(200, "").with("Content-Type", kind).with("Content-Length", &body.len().to_string());
        let answer = if encoding.is_empty() { answer } else { answer.with("Content-Encoding", encoding) };
        answer.with_steps([Step::Raw(body.clone())])
    });
    let proxy = Proxy::start(&[]);
    let base = peak(proxy.pid());
    let small = server.url("/small.m3u8");
    assert_eq!(proxy.get(&small, &[]).status, 200);
    let over = AtomicBool::new(false);
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut waits = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let got = proxy.get(&small, &["-A", "Another"]);
                waits.push(began.elapsed());
                assert_eq!(got.status, 200, "{}", got.text());
            }
            waits
        });
        for list in &hostile {
            let began = Instant::now();
            let got = proxy.get(&server.url(&list.path), &[]);
            let line = String::from_utf8_lossy(&got.body[..got.body.len().min(90)]).replace('\n', " ");
            eprintln!(
                "{:45} {:9} bytes: {} with {:8} bytes after {:4} ms, {:3} MB resident; {line}",
                list.name,
                list.body.len(),
                got.status,
                got.body.len(),
                began.elapsed().as_millis(),
                peak(proxy.pid()) / 1_000_000
            );
            assert!(matches!(got.status, 200 | 502), "{}: {}", list.name, got.status);
            assert!(got.body.len() <= 3 * list.body.len() + (5 << 20), "{}: {} bytes", list.name, got.body.len());
        }
        // All of them in parallel.
        let began = Instant::now();
        let proxy = &proxy;
        let all: Vec<_> = hostile.iter().map(|list| (list, server.url(&list.path))).collect();
        std::thread::scope(|scope| {
            for (list, url) in all {
                scope.spawn(move || {
                    let status = proxy.get(&url, &[]).status;
                    assert!(matches!(status, 200 | 502 | 503), "{}: {status}", list.name);
                });
            }
        });
        eprintln!("all at once: {} ms", began.elapsed().as_millis());
        over.store(true, Ordering::Relaxed);
        waits.join().unwrap()
    });
    let longest = waits.iter().max().unwrap();
    eprintln!("another client: {} playlists, the longest wait {} ms", waits.len(), longest.as_millis());
    let most = peak(proxy.pid());
    eprintln!("{} MB resident at most, {} MB of it before", most / 1_000_000, base / 1_000_000);
    assert!(most - base < 100_000_000, "{most} resident, {base} before");
    // Each request was answered, otherwise curl would have given up after a minute. The times depend on the machine.
    assert!(!waits.is_empty());
    // Refusals have a reason, and the proxy continues to work.
    assert_eq!(proxy.get(&small, &[]).status, 200);
    let refusal = proxy.get(&server.url(&hostile[1].path), &[]);
    assert!(
        refusal.status == 502 && refusal.text().starts_with("this playlist cannot be played through the proxy: "),
        "{}",
        refusal.text()
    );
}
