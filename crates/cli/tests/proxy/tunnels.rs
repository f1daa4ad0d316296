//! Traffic that is not media: forwarded requests, CONNECT, SOCKS5.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::network::Network;
use crate::nginx::{Nginx, identity};
use crate::proxy::Proxy;
use crate::server::{Resource, Response, Server, Step};

const SIZE: usize = 5_000_000;

#[test]
fn a_file_passes_unchanged_through_each_proxy_protocol() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("", &resource, None) else { return };
    let proxy = Proxy::start(&[]);
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let url = format!("http://localhost:{}/file", nginx.address.port());
    for args in
        [&["-x", &address][..], &["-p", "-x", &address], &["--socks5", &socks], &["--socks5-hostname", &socks]]
    {
        let mut all = vec!["--noproxy", "", url.as_str()];
        all.extend(args);
        let output = proxy.curl(&all);
        assert!(output.stdout == *resource.data, "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_response_with_many_fields_is_forwarded() {
    let server = Server::start(|_| {
        (0..300)
            .fold(Response::page(200, "text"), |answer, n| answer.with(&format!("X-Field-{n}"), &"v".repeat(90)))
    });
    let proxy = Proxy::start(&[]);
    let address = format!("http://{}", proxy.address);
    let output = proxy.curl(&["-i", "--noproxy", "", "-x", &address, &server.url("/")]);
    let text = String::from_utf8_lossy(&output.stdout).to_ascii_lowercase();
    assert!(text.starts_with("http/1.1 200") && text.contains("x-field-299: v"), "{text:.300}");
}

#[test]
fn tls_passes_through_untouched() {
    let resource = Resource::new(SIZE);
    let identity = identity("localhost", None);
    let Some(nginx) = Nginx::start("http2 on;", &resource, Some(&identity)) else { return };
    let proxy = Proxy::start(&[]);
    let authority = nginx.authority();
    let url = format!("https://localhost:{}/file", nginx.address.port());
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    for args in [["-x", &address], ["--socks5-hostname", &socks]] {
        let mut all = vec!["--noproxy", "", "--cacert", authority.to_str().unwrap(), url.as_str()];
        all.extend(args);
        assert!(proxy.curl(&all).stdout == *resource.data, "{args:?}");
    }
}

#[test]
fn a_forwarded_request_arrives_without_proxy_fields() {
    let server = Server::start(|request| {
        let field_or_none = |name: &str| request.field(name).unwrap_or("none").to_owned();
        let text =
            ["host", "proxy-connection", "proxy-authorization", "x-mine", "via"].map(field_or_none).join(" ");
        Response::status(201)
            .with("Content-Length", &text.len().to_string())
            .with_steps([Step::Raw(text.into_bytes())])
    });
    let proxy = Proxy::start(&[]);
    let address = format!("http://me:secret@{}", proxy.address);
    let args = ["-x", &address, "--noproxy", "", "-H", "X-Mine: yes"];
    let got = proxy.request(&server.url("/x?y=z"), &args);
    assert_eq!((got.status, got.text()), (201, format!("{} none none yes none", server.address)));
    assert_eq!(server.requests()[0].path, "/x?y=z");
}

#[test]
fn a_refused_connection_is_reported_in_the_clients_protocol() {
    let proxy = Proxy::start(&[]);
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let got = proxy.request("http://127.0.0.1:9/", &["-x", &address, "--noproxy", ""]);
    assert!(got.status == 502 && got.text().contains("connection refused"), "{}", got.text());
    // curl exits with 56 for a refused CONNECT, 97 for SOCKS.
    let connect = proxy.curl(&["-p", "-x", &address, "--noproxy", "", "http://127.0.0.1:9/"]);
    assert!(String::from_utf8_lossy(&connect.stderr).contains("502"), "{connect:?}");
    let refused = proxy.curl(&["--socks5-hostname", &socks, "--noproxy", "", "http://127.0.0.1:9/"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("(5)"), "{refused:?}");
    let https =
        proxy.request("http://127.0.0.1:9/", &["-x", &address, "--noproxy", "", "--request-target", "https://h/"]);
    assert_eq!(https.status, 400);
}

#[test]
fn bytes_after_a_connect_request_are_not_lost() {
    let server = Server::honest(&Resource::new(100));
    let proxy = Proxy::start(&[]);
    let mut client = TcpStream::connect(proxy.address).unwrap();
    let request = format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\nGET /early HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        server.address
    );
    client.write_all(request.as_bytes()).unwrap();
    let mut buffer = [0; 200];
    let mut all = Vec::new();
    while !all.windows(12).any(|window| window == b"HTTP/1.1 200")
        || all.windows(8).filter(|s| *s == b"HTTP/1.1").count() < 2
    {
        let len = client.read(&mut buffer).unwrap();
        assert!(len > 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&buffer[..len]);
    }
    assert_eq!(server.requests()[0].path, "/early");
}

#[test]
fn a_connect_request_for_more_than_a_host_and_a_port_is_refused() {
    let echo = TcpListener::bind("127.0.0.1:0").unwrap();
    let (proxy, host) = (Proxy::start(&[]), echo.local_addr().unwrap());
    for (target, status) in [
        (host.to_string(), "200"),
        (format!("http://{host}"), "400"),
        (format!("http://{host}/"), "400"),
        (format!("me:pw@{host}"), "400"),
        (format!("@{host}"), "400"),
        (format!("https://me:pw@{host}/x"), "400"),
        ("127.0.0.1".to_owned(), "400"),
        ("127.0.0.1:0".to_owned(), "400"),
    ] {
        let mut client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(client, "CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut status_line = [0; 12];
        client.read_exact(&mut status_line).unwrap();
        assert_eq!(String::from_utf8_lossy(&status_line), format!("HTTP/1.1 {status}"), "{target}");
    }
}

#[test]
fn a_connect_request_with_a_body_is_refused() {
    let proxy = Proxy::start(&[]);
    for field in ["Content-Length: 5", "Content-Length: 0", "Transfer-Encoding: chunked"] {
        let mut client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(client, "CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n").unwrap();
        let mut status_line = [0; 12];
        client.read_exact(&mut status_line).unwrap();
        assert_eq!(&status_line, b"HTTP/1.1 400", "{field}");
    }
}

/// A server that upgrades to a protocol in which every byte returns increased by one.
fn upgrading() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
                if !(head.starts_with("get /chat http/1.1") && head.contains("upgrade: websocket")) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain");
                    return;
                }
                // The first bytes of the new protocol follow the head directly.
                let upgrade_head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                            Sec-WebSocket-Accept: x\r\n\r\nhi";
                stream.write_all(upgrade_head.as_bytes()).unwrap();
                let mut bytes = [0; 1000];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    bytes[..len].iter_mut().for_each(|byte| *byte += 1);
                    stream.write_all(&bytes[..len]).unwrap();
                }
            });
        }
    });
    address
}

#[test]
fn a_websocket_passes_through_the_plain_proxy() {
    let (server, proxy) = (upgrading(), Proxy::start(&[]));
    let open_client = |path: &str| {
        let mut client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(
            client,
            "GET http://{server}{path} HTTP/1.1\r\nHost: {server}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        .unwrap();
        client
    };
    let read_until = |client: &mut TcpStream, end: &str| {
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            text.push(char::from(byte[0]));
        }
        text.to_ascii_lowercase()
    };
    let mut client = open_client("/chat");
    let head = read_until(&mut client, "\r\n\r\n");
    assert!(head.starts_with("http/1.1 101") && head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n") && head.contains("sec-websocket-accept: x"), "{head}");
    read_until(&mut client, "hi");
    for (sent, back) in [("abc", "bcd"), ("xyz", "yz{")] {
        client.write_all(sent.as_bytes()).unwrap();
        read_until(&mut client, back);
    }
    let now = proxy.wait_for_status("a tunnel", |now| now["open_tunnels"] == 1);
    let tunnel = &now["tunnels"][0];
    assert_eq!((tunnel["kind"].as_str(), tunnel["host"].as_str()), (Some("upgrade"), Some("127.0.0.1")), "{now:#}");
    assert!(tunnel["sent_bytes"].as_u64() >= Some(6) && tunnel["bytes"].as_u64() >= Some(8), "{now:#}");
    drop(client);
    proxy.wait_for_status("no tunnel", |now| now["open_tunnels"] == 0);
    // A server that does not upgrade sends a normal response.
    let mut client = open_client("/other");
    assert!(read_until(&mut client, "plain").starts_with("http/1.1 200"));
}

#[test]
fn the_status_counts_forwarded_and_tunnelled_bytes() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    let served = resource.clone();
    let server = network.serve(move |request| served.respond(request)).limit_rate(4_000_000);
    let proxy = Proxy::with_prefix(network.client_prefix(), &["--metered", "use"]);
    let (address, socks) = (format!("http://{}", proxy.address), proxy.address.to_string());
    let url = server.url("/file");
    let links = |now: &serde_json::Value, field: &str| -> u64 {
        now["links"].as_array().unwrap().iter().filter_map(|link| link[field].as_u64()).sum()
    };
    for (index, (kind, args)) in
        [("http", &["-x", &address][..]), ("connect", &["-p", "-x", &address]), ("socks5", &["--socks5", &socks])]
            .into_iter()
            .enumerate()
    {
        let args = [args, &[url.as_str()]].concat();
        let output = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| proxy.curl(&args));
            let now = proxy.wait_for_status(kind, |now| {
                let bytes = now["tunnels"][0]["bytes"].as_u64();
                now["tunnels"][0]["kind"] == kind && bytes > Some(100_000)
            });
            assert_eq!((links(&now, "open_tunnels"), now["open_tunnels"].as_u64()), (1, Some(1)), "{now:#}");
            assert_eq!(now["tunnels"][0]["host"], "203.0.113.9");
            transfer.join().unwrap()
        });
        assert!(output.stdout == *resource.data, "{kind}");
        let now = proxy.wait_for_status("the end", |now| now["open_tunnels"] == 0);
        let expected_bytes = (index as u64 + 1) * SIZE as u64;
        assert!((expected_bytes..expected_bytes + 10_000).contains(&links(&now, "bytes")), "{kind}: {now:#}");
        assert!(links(&now, "sent_bytes") > 50 && links(&now, "tunnels") == index as u64 + 1, "{now:#}");
    }
    // Requests for media count as well.
    let before = links(&proxy.status(), "sent_bytes");
    assert!(proxy.get(&url, &[]).body == *resource.data);
    let now = proxy.status();
    assert!(links(&now, "sent_bytes") > before + 50, "{before}, {now:#}");
}

#[test]
fn an_idle_tunnel_ends_and_a_busy_one_continues() {
    let server = upgrading();
    let proxy = Proxy::start(&["--idle-timeout", "5s"]);
    let connect = || {
        let mut client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(client, "CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200"));
        client
    };
    let (mut idle, mut busy) = (connect(), connect());
    write!(busy, "GET /chat HTTP/1.1\r\nUpgrade: websocket\r\n\r\n").unwrap();
    let began = Instant::now();
    let mut bytes = [0; 1000];
    while began.elapsed() < Duration::from_secs(7) {
        busy.write_all(b"x").unwrap();
        assert!(busy.read(&mut bytes).unwrap() > 0);
        std::thread::sleep(Duration::from_millis(100));
    }
    // A close or a reset.
    assert!(matches!(idle.read(&mut bytes), Ok(0) | Err(_)));
    assert!(began.elapsed() < Duration::from_secs(30), "the proxy kept the idle tunnel open");
    proxy.wait_for_status("one tunnel", |now| now["open_tunnels"] == 1);
}
