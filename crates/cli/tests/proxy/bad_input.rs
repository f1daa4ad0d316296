//! Invalid input from clients and servers gets a clear response or a closed connection, and disturbs no other client.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::memory::{KERNEL_BUFFERS, peak};
use crate::network::Network;
use crate::proxy::{Player, Proxy};
use crate::server::{Resource, Response, Server};

/// Sends these bytes, closes the sending direction, and returns everything the proxy sends.
fn exchange(proxy: &Proxy, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(proxy.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The proxy may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn invalid_requests_are_refused_or_closed_and_disturb_no_other_client() {
    let resource = Resource::new(2_000_000);
    let server = Server::honest(&resource).limit_rate(4_000_000);
    let proxy = Proxy::start(&[]);
    let mut player = Player::start(&proxy, &server.url("/film"), 0);
    let mut got = player.read(100_000);
    let host = proxy.address;
    let get =
        |target: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes();
    let long = "x".repeat(200_000);
    let mut fields = format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n", server.url("/film")).into_bytes();
    (0..5000).for_each(|n| fields.extend(format!("X-{n}: y\r\n").into_bytes()));
    fields.extend(b"\r\n");
    for (bytes, statuses) in [
        (get("/http://"), &[b"400"][..]),
        (get("/http:///film"), &[b"400", b"404", b"502"]),
        (get("/http://[::1/film"), &[b"400"]),
        (get("/http://host:99999/film"), &[b"400"]),
        (get("/http://%00/film"), &[b"400"]),
        (get("/javascript:alert(1)"), &[b"400"]),
        (get("/file:///etc/passwd"), &[b"400"]),
        (get("//////"), &[b"400", b"404"]),
        (get("*"), &[b"400", b"405"]),
        (get(&format!("/http://host/{long}")), &[b"400", b"414", b"431"]),
        (fields, &[b"400", b"431"]),
        (b"\0\0\0\0\r\n\r\n".to_vec(), &[b"400"]),
        (b"GET /http://h/\xff\xfe HTTP/1.1\r\n\r\n".to_vec(), &[b"400", b"421"]),
        (b"GET\r\n\r\n".to_vec(), &[b"400"]),
        (b"CONNECT nowhere HTTP/1.1\r\nHost: nowhere\r\n\r\n".to_vec(), &[b"400"]),
        (b"CONNECT :0 HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), &[b"400", b"502"]),
    ] {
        let answer = exchange(&proxy, &bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let status = answer.get(9..12).unwrap_or_default();
        let good = answer.is_empty() || statuses.iter().any(|good| *good == status);
        assert!(good, "{shown:?}: {}", String::from_utf8_lossy(&answer));
    }
    // Requests that hyper itself refuses have a line of explanation as well.
    for (bytes, line) in [
        (get("/http://host/a<b"), "percent-encoded"),
        (get("/https://host/a?b=<c>"), "percent-encoded"),
        (get("http://host/a<b"), "percent-encoded"),
        (b"GET\r\n\r\n".to_vec(), "not valid HTTP"),
    ] {
        let answer = String::from_utf8(exchange(&proxy, &bytes)).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400") && head.contains("text/plain"), "{answer}");
        assert!(body.contains(line) && body.lines().count() == 1, "{answer}");
    }
    let authority = proxy.status_url.replace("http://", "");
    let mut page = TcpStream::connect(authority.split('/').next().unwrap()).unwrap();
    page.write_all(&get("/<")).unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("percent-encoded"), "{answer}");
    // SOCKS5 requests: truncated, without a supported method, of another version, with an invalid name.
    for bytes in
        [&[5][..], &[5, 200, 0], &[5, 1, 2], &[5, 1, 0, 4, 1, 0, 1], &[5, 1, 0, 5, 1, 0, 3, 2, 0, 255, 0, 80]]
    {
        let answer = exchange(&proxy, bytes);
        assert!(answer.len() <= 12 && answer.get(3) != Some(&0), "{bytes:?}: {answer:?}");
    }
    got.extend(player.read(1_900_000));
    assert!(got == *resource.data);
}

#[test]
fn a_server_without_ranges_is_played_over_the_best_link_and_the_status_says_why() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(3_000_000);
    let served = resource.clone();
    // The server responds half a second later over LTE than over Wi-Fi.
    let server = network.serve(move |request| {
        if !request.over_wifi() {
            std::thread::sleep(Duration::from_millis(500));
        }
        served.full_response()
    });
    let proxy = Proxy::with_prefix(network.client_prefix(), &["--metered", "use"]);
    let got = proxy.get(&server.url("/film"), &[]);
    assert!(got.status == 200 && got.body == *resource.data, "{}", got.status);
    assert_eq!(got.field("accept-ranges"), Some("none"));
    let now = proxy.status();
    let session = &now["sessions"][0];
    assert_eq!(session["reason"], "one response over one link: no provable ranges", "{now:#}");
    let over = |name: &str| {
        let links = now["links"].as_array().unwrap();
        links.iter().find(|link| link["name"] == name).and_then(|link| link["media"]["bytes"].as_u64()).unwrap_or(0)
    };
    assert!(over("wifi0") >= 3_000_000 && over("lte0") < 300_000, "{now:#}");
}

#[test]
fn head_is_answered_although_the_body_never_arrives() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/film", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                    let head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/1000\r\n\
                                ETag: \"a\"\r\n\r\n";
                    let _ = stream.write_all(head.as_bytes());
                }
            });
        }
    });
    let head = Proxy::start(&[]).get(&url, &["-I"]);
    assert_eq!((head.status, head.field("content-length")), (200, Some("1000")));
}

#[test]
fn playlists_that_attack_stack_or_memory_are_passed_on_unchanged() {
    let deep = format!("<MPD>{}{}</MPD>", "<a>".repeat(100_000), "</a>".repeat(100_000));
    let wide = format!("#EXTM3U\n{}", "#EXTINF:1,\n/s.ts\n".repeat(200_000));
    let endless = format!("#EXTM3U\n#EXTINF:1,\n/{}.ts\n", "x".repeat(6_000_000));
    let served = [("/deep.mpd", deep), ("/wide.m3u8", wide), ("/long.m3u8", endless)];
    let lists = served.clone();
    let server = Server::start(move |request| {
        let found = lists.iter().find(|(path, _)| *path == request.path);
        found.map_or_else(
            || Response::status(404),
            |(_, text)| {
                let kind =
                    if request.path.ends_with("mpd") { "application/dash+xml" } else { "application/x-mpegurl" };
                Response::page(200, text).with("Content-Type", kind)
            },
        )
    });
    let proxy = Proxy::start(&[]);
    for (path, text) in &served {
        let got = proxy.get(&server.url(path), &[]);
        let lines = |text: &str| text.lines().count();
        assert_eq!((got.status, lines(&got.text())), (200, lines(text)), "{path}: {:.200}", got.text());
    }
    assert_eq!(proxy.get(&server.url("/deep.mpd"), &[]).text(), served[0].1);
    assert!(peak(proxy.pid()) < 300_000_000, "{} resident", peak(proxy.pid()));
    assert_eq!(proxy.get(&server.url("/none"), &[]).status, 404);
}

#[test]
fn two_hundred_players_in_little_memory_play_or_get_503_with_retry_after() {
    const BOUND: u64 = 64 << 20;
    let resource = Resource::new(2_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&["--memory", "64MiB"]);
    let url = server.url("/film");
    let start_request = |n: usize| {
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (host, from) = (proxy.address, n * 1000);
        write!(stream, "GET /{url} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={from}-\r\nConnection: close\r\n\r\n")
            .unwrap();
        stream
    };
    let players: Vec<TcpStream> = (0..200).map(start_request).collect();
    let (mut played, mut refused) = (0, 0);
    for (n, mut player) in players.into_iter().enumerate() {
        let mut answer = Vec::new();
        player.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if head.starts_with("http/1.1 206") {
            assert!(answer[end + 4..] == resource.data[n * 1000..], "player {n}");
            played += 1;
        } else {
            assert!(head.starts_with("http/1.1 503") && head.contains("retry-after"), "player {n}: {head}");
            refused += 1;
        }
    }
    assert!(played >= 8, "{played} played, {refused} were refused");
    assert!(peak(proxy.pid()) < BOUND + (64 << 20) + KERNEL_BUFFERS, "{} resident", peak(proxy.pid()));
    // A later attempt succeeds.
    assert!(proxy.get(&url, &[]).body == *resource.data);
}
