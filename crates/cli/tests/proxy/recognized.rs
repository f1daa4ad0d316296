//! Playlists that only their content identifies, compressed playlists, and low-latency HLS responses that servers hold back on purpose.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use crate::network::Network;
use crate::proxy::Proxy;
use crate::server::{Resource, Response, Server, Step};

fn bytes(content_type: &str, body: &[u8]) -> Response {
    let answer = Response::page(200, "").with("Content-Length", &body.len().to_string());
    let answer = if content_type.is_empty() {
        answer.without("Content-Type")
    } else {
        answer.with("Content-Type", content_type)
    };
    answer.with_steps([Step::Raw(body.to_vec())])
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn playlists_are_rewritten_whatever_their_type_and_name() {
    let hls = "#EXTM3U\n#EXTINF:2,\n/abs/s0.ts\n#EXTINF:2,\nhttp://other.example/s1.ts\n";
    let dash = "<?xml version=\"1.0\"?>\n<!-- packager -->\n<MPD><BaseURL>/b/</BaseURL></MPD>";
    let server = Server::start(move |request| {
        let (path, kind) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match path {
            "/live/list" | "/live/get.php" => bytes(kind, hls.as_bytes()),
            "/live/mark" => bytes(kind, format!("\u{feff}\r\n {hls}").as_bytes()),
            "/live/manifest" => bytes(kind, dash.as_bytes()),
            _ => Response::status(404),
        }
    });
    let proxy = Proxy::start(&[]);
    let url = |path: &str| server.url(path);
    let via = |path: &str| format!("http://{}/{}", proxy.address, url(path));
    for kind in ["", "text/plain", "application/octet-stream", "text/html; charset=utf-8", "binary/octet-stream"] {
        for (path, args) in [("/live/list", &[][..]), ("/live/get.php", &["-r", "0-"]), ("/live/mark", &[])] {
            let before = server.requests().len();
            let got = proxy.get(&url(&format!("{path}?{kind}")).replace(' ', "%20"), args);
            let text = got.text();
            assert_eq!(got.status, 200, "{path} {kind}: {text}");
            assert!(text.contains(&format!("\n{}\n", via("/abs/s0.ts"))), "{path} {kind}: {text}");
            assert!(
                text.contains(&format!("\nhttp://{}/from-list-local/http://other.example/s1.ts\n", proxy.address)),
                "{text}"
            );
            // It is requested only once, because some URLs work once.
            assert_eq!(server.requests().len() - before, 1, "{path} {kind}");
        }
        let text = proxy.get(&url(&format!("/live/manifest?{kind}")).replace(' ', "%20"), &[]).text();
        assert!(text.contains(&format!("<BaseURL>{}</BaseURL>", via("/b/"))), "{kind}: {text}");
    }
}

#[test]
fn other_files_pass_unchanged() {
    let large = Resource::new(3_000_000).with("Content-Type", "application/octet-stream");
    let film = large.clone();
    let texts = [
        ("/empty", ""),
        ("/short", "#EX"),
        ("/comment", "# EXTM3U\n/a.ts\n"),
        ("/page", "<!DOCTYPE html><html></html>"),
        ("/picture", "<?xml version=\"1.0\"?><svg/>"),
        ("/spaces", "   \n\n  "),
    ];
    let server = Server::start(move |request| match texts.iter().find(|(path, _)| *path == request.path) {
        Some((_, text)) => bytes("text/plain", text.as_bytes()),
        None => film.respond(request),
    });
    let proxy = Proxy::start(&[]);
    for (path, text) in texts {
        let got = proxy.get(&server.url(path), &[]);
        assert_eq!((got.status, got.text().as_str()), (200, text), "{path}");
    }
    assert!(proxy.get(&server.url("/film"), &[]).body == *large.data);
    let part = proxy.get(&server.url("/film"), &["-r", "1000-1999"]);
    assert!(part.status == 206 && part.body == large.data[1000..2000]);
}

#[test]
fn compressed_playlists_are_decompressed_and_rewritten() {
    let hls = format!("#EXTM3U\n{}", "#EXTINF:2,\n/abs/s0.ts\n".repeat(500));
    let (mut zlib, mut bare) =
        (ZlibEncoder::new(Vec::new(), Compression::best()), DeflateEncoder::new(Vec::new(), Compression::best()));
    zlib.write_all(hls.as_bytes()).unwrap();
    bare.write_all(hls.as_bytes()).unwrap();
    // "#EXTM3U\n", compressed by the reference encoder.
    let brotli = vec![0x8b, 0x03, 0x80, 0x23, 0x45, 0x58, 0x54, 0x4d, 0x33, 0x55, 0x0a, 0x03];
    let bodies = [
        ("/a.m3u8", "gzip", gzip(hls.as_bytes())),
        ("/b.m3u8", "deflate", zlib.finish().unwrap()),
        ("/c.m3u8", "deflate", bare.finish().unwrap()),
        ("/plain", "gzip", gzip(hls.as_bytes())),
        ("/d.m3u8", "br", brotli),
    ];
    let served = bodies.clone();
    let server = Server::start(move |request| {
        let Some((_, encoding, body)) = served.iter().find(|(path, ..)| *path == request.path) else {
            return Response::status(404);
        };
        bytes("text/plain", body).with("Content-Encoding", encoding)
    });
    let proxy = Proxy::start(&[]);
    let via = format!("http://{}/{}", proxy.address, server.url("/abs/s0.ts"));
    for (path, encoding, _) in &bodies {
        let got = proxy.get(&server.url(path), &[]);
        assert_eq!((got.status, got.field("content-encoding")), (200, None), "{path} {encoding}");
        let text = if *encoding == "br" { "#EXTM3U\n".to_owned() } else { hls.replace("/abs/s0.ts", &via) };
        assert_eq!(got.text(), text, "{path} {encoding}");
    }
}

#[test]
fn a_response_held_back_on_purpose_is_requested_once() {
    let Some(network) = Network::two_links() else { return };
    let list =
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\ns7.mp4\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"p8.mp4\"\n";
    let server = network.serve(move |request| {
        let kind = "application/x-mpegurl";
        if request.path.contains("_HLS_msn") || request.path == "/p8.mp4" {
            std::thread::sleep(Duration::from_secs(4));
        }
        if request.path == "/p8.mp4" { bytes("video/mp4", b"part") } else { bytes(kind, list.as_bytes()) }
    });
    let proxy = Proxy::with_prefix(network.client_prefix(), &["--metered", "use"]);
    assert_eq!(proxy.get(&server.url("/block.m3u8"), &[]).status, 200);
    for path in ["/block.m3u8?_HLS_msn=8&_HLS_part=1", "/p8.mp4"] {
        let got = proxy.get(&server.url(path), &[]);
        assert_eq!(got.status, 200, "{}", got.text());
        let request_count = server.requests().into_iter().filter(|request| request.path == path).count();
        assert_eq!(request_count, 1, "{path} was requested over both links");
    }
    // Each reload has another URL, and all belong to one playlist.
    let now = proxy.status();
    assert!(now["prefetches"].as_array().unwrap().len() <= 1, "{now:#}");
}
