//! Isolation of clients: no client can use up all connections or windows (the buffers of responses), or get what was prefetched with
//! another login.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lan::{Lan, ProxyProtocol};
use crate::network::Network;
use crate::proxy::Proxy;
use crate::server::{Resource, Response, Server};

/// Opens up to `count` connections from the LAN host and sends these bytes on each; stops when no more can be opened.
fn open_conns(lan: &Lan, at: SocketAddr, count: usize, bytes: &'static [u8]) -> Vec<TcpStream> {
    let descriptors = usize::try_from(marline_net::rlimit::raise_nofile_limit()).unwrap_or(usize::MAX);
    let count = count.min(descriptors.saturating_sub(200));
    Network::in_namespace(lan.name(), move || {
        let mut open = Vec::new();
        for _ in 0..count {
            let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { break };
            let _ = std::io::Write::write_all(&mut stream, bytes);
            open.push(stream);
        }
        Ok(open)
    })
}

#[test]
fn idle_connections_of_one_host_do_not_lock_out_other_clients() {
    let Some(lan) = Lan::new() else { return };
    let resource = Resource::new(20_000);
    let server = lan.network.serve(move |request| resource.respond(request));
    let proxy = lan.proxy(&[]);
    let at = SocketAddr::new([192, 168, 91, 1].into(), proxy.address.port());
    lan.ip(&["address", "add", "192.168.91.3/24", "dev", "c0"]);
    for bytes in [&b""[..], b"GET /", b"\x05"] {
        let _open = open_conns(&lan, at, 2200, bytes);
        let began = Instant::now();
        // Another host, a program of this machine, and the user's own status.
        let args = ["netns", "exec", lan.name(), "curl", "-sS", "--max-time", "20", "--interface", "192.168.91.3"];
        let other =
            Command::new("ip").args(args).arg(format!("http://{at}/{}", server.url("/file"))).output().unwrap();
        assert_eq!(other.stdout.len(), 20_000, "{}", String::from_utf8_lossy(&other.stderr));
        assert_eq!(lan.request_locally(&proxy, ProxyProtocol::Media, &server.url("/file")).status, 200);
        assert!(proxy.status()["links"].as_array().is_some_and(|links| links.len() == 2));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn prefetched_segments_are_given_only_to_the_login_that_they_were_fetched_with() {
    // "me:pw"
    const LOGIN: &str = "Basic bWU6cHc=";
    const LIST: &str =
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n1.ts\n#EXTINF:2,\n2.ts\n#EXTINF:2,\n3.ts\n#EXT-X-ENDLIST\n";
    let resource = Resource::new(20_000);
    let served = resource.clone();
    let server = Server::start(move |request| match request.field("authorization") {
        Some(LOGIN) if request.path == "/list.m3u8" => {
            Response::page(200, LIST).with("Content-Type", "application/x-mpegurl")
        }
        Some(LOGIN) => served.respond(request),
        _ => Response::status(401),
    });
    let proxy = Proxy::start(&[]);
    let url = |login: &str, path: &str| format!("http://{login}{}/{path}", server.address);
    let player = ["-A", "player"];
    for (login, language) in [("", "en"), ("me:wrong@", "en"), ("other:pw@", "en")] {
        assert_eq!(proxy.get(&url("me:pw@", "list.m3u8"), &player).status, 200);
        assert_eq!(proxy.get(&url("me:pw@", "1.ts"), &player).status, 200);
        proxy.wait_for_status("a prefetched segment", |now| {
            now["prefetches"][0]["prefetched_bytes"].as_u64() >= Some(20_000)
        });
        let field = format!("Accept-Language: {language}");
        assert_eq!(proxy.get(&url(login, "2.ts"), &["-A", "player", "-H", &field]).status, 401, "{login}");
        assert_eq!(proxy.get(&url(login, "2.ts"), &player).status, 401, "{login}");
    }
    let got = proxy.get(&url("me:pw@", "2.ts"), &player);
    assert!(got.status == 200 && got.body == *resource.data, "{}", got.status);
}

#[test]
fn unread_responses_of_one_host_do_not_lock_out_other_clients() {
    let Some(lan) = Lan::new() else { return };
    let film = Resource::new(4_000_000);
    let (film, short) = (film, Resource::new(20_000));
    let server = lan.network.serve(move |request| match request.path.as_str() {
        "/file" => short.respond(request),
        "/list.m3u8" => {
            let list = format!("#EXTM3U\n{}", "#EXTINF:2,\nhttp://h/1.ts\n".repeat(20_000));
            Response::page(200, &list).with("Content-Type", "application/x-mpegurl")
        }
        _ => film.respond(request),
    });
    // 32 windows of 1 MiB in half of this memory, of which clients on other hosts may use 28.
    let proxy = lan.proxy(&["--memory", "64M"]);
    let at = SocketAddr::new([192, 168, 91, 1].into(), proxy.address.port());
    lan.ip(&["address", "add", "192.168.91.3/24", "dev", "c0"]);
    for path in ["film", "list.m3u8"] {
        let request = format!("GET /{} HTTP/1.1\r\nHost: {at}\r\n\r\n", server.url(&format!("/{path}")));
        let _open = open_conns(&lan, at, 60, Box::leak(request.into_bytes().into_boxed_slice()));
        std::thread::sleep(Duration::from_secs(3));
        for n in 0..4 {
            let url = server.url("/file");
            let args =
                ["netns", "exec", lan.name(), "curl", "-sS", "--max-time", "20", "--interface", "192.168.91.3"];
            let other = Command::new("ip").args(args).arg(format!("http://{at}/{url}")).output().unwrap();
            assert_eq!(other.stdout.len(), 20_000, "{path} {n}: {}", String::from_utf8_lossy(&other.stdout));
            let reply = lan.request_locally(&proxy, ProxyProtocol::Media, &url);
            assert_eq!(reply.status, 200, "{path} {n}: {}", reply.text());
            let list = lan.request_locally(&proxy, ProxyProtocol::Media, &server.url(&format!("/list.m3u8?{n}")));
            assert_eq!(list.status, 200, "{path} {n}: {}", list.text());
        }
    }
}
