//! Status and events: accessible with the token, and not for pages of other sites.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::proxy::{Player, Proxy};
use crate::server::{Resource, Server};

#[test]
fn the_status_shows_sessions_without_their_secrets() {
    let resource = Resource::new(20_000_000);
    let server = Server::honest(&resource).limit_rate(1_000_000);
    let proxy = Proxy::start(&["--window", "2MiB"]);
    let url = server.url("/file?token=secret").replace("http://", "http://me:hidden@");
    let mut player = Player::start(&proxy, &url, 1000);
    player.read(100_000);
    // The bytes of each link are counted a moment after their delivery.
    let has_traffic = |session: &serde_json::Value| {
        session["rate_bps"].as_u64() > Some(0) && session["links"][0]["bytes"].as_u64() > Some(100_000)
    };
    let now = proxy.wait_for_status("a rate and a link's bytes", |now| has_traffic(&now["sessions"][0]));
    let session = &now["sessions"][0];
    assert_eq!(session["url"], format!("http://{}/file?…", server.address));
    assert_eq!((session["total"].as_u64(), session["state"].as_str()), (Some(20_000_000), Some("playing")));
    assert_eq!(session["responses"][0]["from"], 1000);
    assert!(session["responses"][0]["in_order_end"].as_u64() >= session["responses"][0]["read_end"].as_u64());
    assert!(now["window_bytes"].as_u64() > Some(0));
    let text = now.to_string();
    assert!(!text.contains("secret") && !text.contains("hidden") && !text.contains("me:"), "{text}");
    // The login was sent to the origin nevertheless.
    assert_eq!(server.requests()[0].field("authorization"), Some("Basic bWU6aGlkZGVu"));
}

#[test]
fn the_status_is_refused_without_the_token_and_to_foreign_pages() {
    let proxy = Proxy::start(&[]);
    let good = format!("{}status", proxy.status_url);
    let (root, token) = proxy.status_url.trim_end_matches('/').rsplit_once('/').unwrap();
    let host = root.trim_start_matches("http://");
    let port = host.rsplit_once(':').unwrap().1;
    let wrong = format!("{root}/{}/status", token.replace(|c: char| c.is_ascii_digit(), "0").replace('a', "b"));
    let same_origin = format!("Origin: {root}");
    let rebound = format!("Host: evil.example:{port}");
    for (address, args, status) in [
        (good.as_str(), &[][..], 200),
        (&good, &["-H", same_origin.as_str()], 200),
        (&good, &["-H", "Origin: http://evil.example"], 403),
        (&good, &["-H", "Origin: null"], 403),
        (&good, &["-H", "Sec-Fetch-Site: cross-site"], 403),
        (&good, &["-H", "Sec-Fetch-Site: same-site"], 403),
        (&good, &["-H", rebound.as_str()], 421),
        (&good, &["-d", "x"], 405),
        (&wrong, &[], 404),
        (&format!("{root}/status"), &[], 404),
        (&format!("{root}/"), &[], 404),
    ] {
        let got = proxy.request(address, args);
        assert_eq!(got.status, status, "{address} {args:?}: {}", got.text());
        assert!(got.field("access-control-allow-origin").is_none());
    }
    // The media port does not serve the status, with or without the token.
    let media = proxy.request(&format!("http://{}/{token}/status", proxy.address), &[]);
    assert_eq!(media.status, 400);
}

#[test]
fn the_proxys_own_page_explains_its_use_and_shows_no_secret() {
    let proxy = Proxy::start(&[]);
    let root = format!("http://{}/", proxy.address);
    let (status, token) = proxy.status_url.trim_end_matches('/').rsplit_once('/').unwrap();
    let page = proxy.request(&root, &[]);
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    let text = page.text();
    for expected in
        [format!("{root}https://"), format!("curl -x {}", root.trim_end_matches('/')), "SOCKS".to_owned()]
    {
        assert!(text.contains(&expected), "{expected}: {text}");
    }
    assert!(!text.contains(token) && !text.contains(status) && !text.contains("{{"), "{text}");
    let policy = page.field("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe") && !text.contains("<script"), "{policy}");
    let head = proxy.request(&root, &["-I"]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("content-length").unwrap().parse(), Ok(page.body.len()));
    // The page is refused to other sites and under foreign host names, like everything else.
    assert_eq!(proxy.request(&root, &["-H", "Sec-Fetch-Site: cross-site"]).status, 403);
    assert_eq!(proxy.request(&root, &["-H", "Host: evil.example"]).status, 421);
    assert_eq!(proxy.request(&root, &["-X", "POST"]).status, 405);
}

#[test]
fn the_media_port_refuses_foreign_pages_and_rebound_names() {
    let resource = Resource::new(1000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&[]);
    let url = server.url("/file");
    let port = proxy.address.port();
    for (field, status) in [
        (format!("Host: evil.example:{port}"), 421),
        (format!("Host: localhost:{port}"), 200),
        ("Host: 127.0.0.1".to_owned(), 421),
        ("Sec-Fetch-Site: cross-site".to_owned(), 403),
        ("Sec-Fetch-Site: same-origin".to_owned(), 200),
        // Without Sec-Fetch-Site the client is no browser and may send any Origin.
        ("Origin: http://evil.example".to_owned(), 200),
        ("Origin: null".to_owned(), 200),
    ] {
        assert_eq!(proxy.get(&url, &["-H", &field]).status, status, "{field}");
    }
    for (origin, status) in [("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 200)] {
        let origin = format!("Origin: {origin}");
        let args = ["-H", "Sec-Fetch-Site: same-site", "-H", &origin];
        assert_eq!(proxy.get(&url, &args).status, status, "{origin}");
    }
    assert_eq!(server.requests().len(), 5, "a refused request reached the server");
}

#[test]
fn events_are_streamed_as_they_happen() {
    let resource = Resource::new(1_000_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&[]);
    let (host, path) = proxy.status_url.trim_start_matches("http://").split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path}events HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("HTTP/1.1 200"));
    assert!(lines.any(|line| line.starts_with("data: {\"event\":\"status\"")));
    proxy.get(&server.url("/file"), &[]);
    let session = lines.find(|line| line.contains("\"event\":\"session\"")).unwrap();
    assert!(session.contains(&server.url("/file")), "{session}");
}
