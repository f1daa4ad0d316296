//! Destinations to which the proxy and `get` refuse to connect: this host, cloud metadata services and private networks, when
//! the request comes from another host or a server's redirect or playlist leads there.

use std::time::{Duration, Instant};

use crate::lan::{Lan, PROXY_PROTOCOLS, ProxyProtocol};
use crate::proxy::Proxy;
use crate::server::{Resource, Response, Server, Step};

/// Limit for refusals: they must not wait for a destination that does not respond.
const AT_ONCE: Duration = Duration::from_secs(4);
/// SOCKS5 reply code: connection not allowed by ruleset (RFC 1928).
const NOT_ALLOWED: u16 = 2;

/// A public server with a file, redirects (`/to?URL`), and playlists that contain the URL after their `?`.
fn public(lan: &Lan) -> Server {
    let resource = Resource::new(20_000);
    lan.network.serve(move |request| match request.path.split_once('?') {
        Some(("/to", target)) => Response::redirect(302, target),
        Some(("/list.m3u8", target)) => {
            Response::page(200, &list(target)).with("Content-Type", "application/x-mpegurl")
        }
        Some(("/key.m3u8", target)) => {
            let key = format!("#EXT-X-KEY:METHOD=AES-128,URI=\"{target}\"");
            Response::page(200, &format!("#EXTM3U\n{key}\n#EXTINF:2,\n/1.ts\n"))
        }
        Some(("/channels.m3u", target)) => Response::page(200, &format!("#EXTM3U\n#EXTINF:-1,A channel\n{target}\n")),
        Some(("/template.mpd", target)) => Response::page(
            200,
            &format!(
                "<MPD mediaPresentationDuration=\"PT9S\"><Period><AdaptationSet><SegmentTemplate duration=\"1\" \
                 media=\"$Number$.m4s\" initialization=\"{target}?$RepresentationID$\"/><Representation id=\"a\"/>\
                 </AdaptationSet></Period></MPD>"
            ),
        ),
        // Invalid playlists that players accept and that the proxy reads differently.
        Some(("/video", target)) => {
            Response::page(200, &format!("#EXTM3U\n#EXTINF:2,\n{target}\n")).with("Content-Type", "video/mp2t")
        }
        Some(("/quote", target)) => {
            Response::page(200, &format!("#EXTM3U\n#EXT-X-KEY:METHOD=NONE,X=\"\n#EXTINF:2,\n/{target}\n"))
        }
        Some(("/latin1", target)) => {
            let text = [&b"#EXTM3U\n#EXTINF:2,\xe9\n/"[..], target.as_bytes(), b"\n"].concat();
            let length = text.len().to_string();
            Response::page(200, "").with("Content-Length", &length).with_steps([Step::Raw(text)])
        }
        Some(("/return", target)) => {
            Response::page(200, &format!("#EXTM3U\n#EXTINF:2,\r/{target}\n#EXTINF:2,\n/1.ts\n"))
        }
        Some(("/map", target)) => {
            Response::page(200, &format!("#EXTM3U\n#EXT-X-MAP:URI=/{target}\n#EXTINF:2,\n/1.ts\n"))
        }
        Some(("/id.mpd", target)) => Response::page(
            200,
            &format!(
                "<MPD mediaPresentationDuration=\"PT9S\"><Period><AdaptationSet><SegmentTemplate duration=\"1\" \
                 media=\"$RepresentationID$\"/><Representation id=\"/{target}\"/></AdaptationSet></Period></MPD>"
            ),
        ),
        // Manifests from which a player derives other URLs than the proxy.
        Some(("/bases.mpd", target)) => Response::page(
            200,
            &format!(
                "<MPD mediaPresentationDuration=\"PT9S\"><BaseURL>/a/b/c/d/e/f/g/h/</BaseURL><BaseURL>/</BaseURL><Period>\
                 <AdaptationSet><SegmentTemplate duration=\"1\" media=\"../../../../{target}?$Number$\"/>\
                 <Representation id=\"1\" bandwidth=\"1\"/></AdaptationSet></Period></MPD>"
            ),
        ),
        Some(("/doctype.mpd" | "/doctype", target)) => Response::page(
            200,
            &format!("<?xml version=\"1.0\"?><!DOCTYPE MPD>\n<MPD><BaseURL>/{target}</BaseURL></MPD>"),
        ),
        Some(("/entity", target)) => {
            let target = target.replace(':', "&c;");
            let entity = "<!DOCTYPE MPD [<!ENTITY c ':'>]>";
            Response::page(200, &format!("{entity}<MPD><BaseURL>/{target}</BaseURL></MPD>"))
        }
        Some(("/references", target)) => {
            let target = target.replace(':', "&#58;");
            Response::page(200, &format!("<MPD><BaseURL>&#47;{target}</BaseURL></MPD><x>"))
        }
        Some(("/utf7.mpd", target)) => {
            let target = target.replace(':', "+ADo-");
            let declaration = "<?xml version=\"1.0\" encoding=\"UTF-7\"?>";
            Response::page(200, &format!("{declaration}<MPD><BaseURL>/{target}</BaseURL></MPD>"))
        }
        Some(("/case.mpd", target)) => {
            let target = target.replace(':', "&#58;");
            Response::page(200, &format!("<mpd><baseurl>/{target}</baseurl></mpd>"))
        }
        Some(("/comment.mpd" | "/comment", target)) => {
            let comment = "x".repeat(9000);
            Response::page(200, &format!("<!--{comment}--><MPD><BaseURL>/{target}</BaseURL></MPD>"))
        }
        _ => resource.respond(request),
    })
}

/// A playlist with two segments, the second one at this URL.
fn list(second: &str) -> String {
    format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n/1.ts\n#EXTINF:2,\n{second}\n#EXT-X-ENDLIST\n")
}

/// Names that the name server knows, with their addresses.
const NAMES: [(&str, &[&str]); 9] = [
    ("neighbour.test", &["192.168.91.2"]),
    ("zero.test", &["0.0.0.0"]),
    ("loop.test", &["127.0.0.1"]),
    ("loop6.test", &["::1"]),
    ("own.test", &["10.77.1.2"]),
    ("second.test", &["10.77.1.3"]),
    ("mapped.test", &["::ffff:127.0.0.1"]),
    ("router.test", &["10.77.1.1"]),
    ("public.test", &["203.0.113.9"]),
];

/// Hosts that denote this host for every client.
const OWN_HOSTS: [&str; 18] = [
    "127.0.0.1",
    "127.9.9.9",
    "localhost",
    "a.localhost",
    "0.0.0.0",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:10.77.1.2]",
    "10.77.1.2",
    "10.77.1.3",
    "10.77.2.2",
    "192.168.91.1",
    "[fd91::1]",
    "zero.test",
    "loop.test",
    "own.test",
    "second.test",
];

#[test]
fn other_hosts_reach_nothing_of_this_host_by_any_proxy_protocol() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let proxy = lan.proxy(&[]);
    for form in PROXY_PROTOCOLS {
        for host in OWN_HOSTS {
            let began = Instant::now();
            let got = lan.request_from_lan(&proxy, form, &format!("http://{host}:{}/", lan.host_service.port));
            // Refused also for IPv6 addresses, although no link has IPv6.
            let refused = if form == ProxyProtocol::Socks { NOT_ALLOWED } else { 403 };
            assert_eq!(got.status, refused, "{form:?} {host}: {}", got.text());
            assert!(began.elapsed() < AT_ONCE, "{form:?} {host}: {:?}", began.elapsed());
        }
        // An address that is added later is protected at once.
        let late_address = format!("10.77.1.{}", 20 + form as u8);
        lan.network.client_ip(&format!("address add {late_address}/24 dev wifi0\n"));
        let got = lan.request_from_lan(&proxy, form, &format!("http://{late_address}:{}/", lan.host_service.port));
        assert!(matches!(got.status, 403 | NOT_ALLOWED), "{form:?} {late_address}: {}", got.status);
    }
    assert_eq!(lan.host_service.connections(), 0, "refused, but connected to");
}

#[test]
fn other_hosts_reach_only_their_own_network_and_the_internet() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    for form in PROXY_PROTOCOLS {
        let refused = if form == ProxyProtocol::Socks { NOT_ALLOWED } else { 403 };
        for host in ["10.77.1.1", "10.77.2.1", "router.test", "169.254.169.254", "100.100.100.200", "[fe80::1]"] {
            let got = lan.request_from_lan(&proxy, form, &format!("http://{host}:{}/", lan.router.port));
            assert_eq!(got.status, refused, "{form:?} {host}: {}", got.text());
        }
        let got = lan.request_from_lan(&proxy, form, &server.url("/file"));
        assert!(got.status == 200 || got.status == 206, "{form:?}: {}", got.status);
        let got = lan.request_from_lan(&proxy, form, &format!("http://public.test:{}/file", server.address.port()));
        assert!(got.status == 200 || got.status == 206, "{form:?} by name: {} {}", got.status, got.text());
    }
    assert_eq!(lan.router.connections(), 0);
    let neighbour = format!("http://192.168.91.2:{}/", lan.neighbour.port);
    for form in PROXY_PROTOCOLS {
        let got = lan.request_from_lan(&proxy, form, &neighbour);
        assert_eq!((got.status, got.text().trim()), (200, "SECRET"), "{form:?}");
    }
}

#[test]
fn local_programs_reach_every_host_they_name() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let proxy = lan.proxy(&[]);
    for form in PROXY_PROTOCOLS {
        for host in ["127.0.0.1", "localhost", "10.77.1.2", "10.77.1.3", "10.77.2.2", "loop.test", "own.test"] {
            let got = lan.request_locally(&proxy, form, &format!("http://{host}:{}/", lan.host_service.port));
            assert_eq!((got.status, got.text().trim()), (200, "SECRET"), "{form:?} {host}");
        }
        let got = lan.request_locally(&proxy, form, &format!("http://router.test:{}/", lan.router.port));
        assert_eq!(got.status, 200, "{form:?}: {}", got.text());
        // Hosts of the LAN, which no link reaches.
        for host in ["192.168.91.2", "neighbour.test", "[fd91::2]"] {
            let began = Instant::now();
            let got = lan.request_locally(&proxy, form, &format!("http://{host}:{}/", lan.neighbour.port));
            assert_eq!((got.status, got.text().trim()), (200, "SECRET"), "{form:?} {host}");
            assert!(began.elapsed() < AT_ONCE, "{form:?} {host}: {:?}", began.elapsed());
        }
    }
}

#[test]
fn a_public_server_leads_no_client_into_local_networks() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    let (host_port, router) = (lan.host_service.port, lan.router.port);
    let targets = [
        format!("http://127.0.0.1:{host_port}/admin"),
        format!("http://localhost:{host_port}/admin"),
        format!("http://loop.test:{host_port}/admin"),
        format!("http://zero.test:{host_port}/admin"),
        format!("http://10.77.1.2:{host_port}/admin"),
        format!("http://second.test:{host_port}/admin"),
        format!("http://192.168.91.1:{host_port}/admin"),
        format!("http://10.77.1.1:{router}/admin"),
        format!("http://router.test:{router}/admin"),
        "http://169.254.169.254/latest/".to_owned(),
        format!("http://[::1]:{host_port}/admin"),
        format!("http://[fd91::1]:{host_port}/admin"),
        "http://[64:ff9b::7f00:1]/admin".to_owned(),
        "http://[::ffff:10.77.1.1]/admin".to_owned(),
    ];
    for target in &targets {
        let redirect = server.url(&format!("/to?{target}"));
        // Also with two redirects.
        let twice = server.url(&format!("/to?{redirect}"));
        for url in [&redirect, &twice] {
            let began = Instant::now();
            let reply = lan.request_locally(&proxy, ProxyProtocol::Media, url);
            assert_eq!(reply.status, 403, "{url}: {}", reply.text());
            assert!(began.elapsed() < AT_ONCE, "{url}: {:?}", began.elapsed());
            assert!(reply.text().contains("refused; request that URL directly"), "{}", reply.text());
            assert_eq!(lan.request_from_lan(&proxy, ProxyProtocol::Media, url).status, 403, "{url}");
        }
        let list = server.url(&format!("/list.m3u8?{target}"));
        let play = || [list.clone(), server.url("/1.ts"), target.clone()];
        for (n, url) in play().iter().enumerate() {
            let got = lan.request_locally(&proxy, ProxyProtocol::Media, url);
            assert_eq!(got.status, if n == 2 { 403 } else { 200 }, "{url}: {}", got.text());
            if n == 1 {
                // Time in which the proxy would prefetch the next segment.
                std::thread::sleep(Duration::from_millis(700));
            }
        }
        let got: Vec<u16> =
            play().iter().map(|url| lan.request_from_lan(&proxy, ProxyProtocol::Media, url).status).collect();
        assert_eq!(got, [200, 200, 403], "{target}");
    }
    assert_eq!((lan.host_service.connections(), lan.router.connections()), (0, 0));
}

#[test]
fn no_kind_of_address_in_a_playlist_leads_into_local_networks() {
    let Some(lan) = Lan::new() else { return };
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    let target = format!("http://10.77.1.1:{}/admin", lan.router.port);
    for (list, query) in [("key.m3u8", ""), ("channels.m3u", ""), ("template.mpd", "?a")] {
        let list = server.url(&format!("/{list}?{target}"));
        assert_eq!(lan.request_locally(&proxy, ProxyProtocol::Media, &list).status, 200, "{list}");
        let got = lan.request_locally(&proxy, ProxyProtocol::Media, &format!("{target}{query}"));
        assert_eq!(got.status, 403, "{list}: {}", got.text());
    }
    assert_eq!(lan.router.connections(), 0);
}

#[test]
fn no_invalid_playlist_that_players_accept_leads_into_local_networks() {
    let Some(lan) = Lan::new() else { return };
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    let target = format!("http://10.77.1.1:{}/admin", lan.router.port);
    for name in ["video", "quote", "latin1", "return", "map", "id.mpd"] {
        // The User-Agent makes each a different player for the proxy.
        let got = lan.request_as_player(name, &proxy, &server.url(&format!("/{name}?{target}")));
        assert_eq!(got.status, 200, "{name}: {}", got.text());
        let got = lan.request_as_player(name, &proxy, &target);
        assert_eq!(got.status, 403, "{name}: {}", got.text());
    }
    for (name, why) in [
        ("doctype.mpd", "document type declaration"),
        ("doctype", "document type declaration"),
        ("entity", "document type declaration"),
        ("references", "character references"),
        ("utf7.mpd", "an encoding that the proxy does not read"),
        ("case.mpd", "in another case"),
    ] {
        let got = lan.request_as_player(name, &proxy, &server.url(&format!("/{name}?{target}")));
        assert!(got.status == 502 && got.text().contains(why), "{name}: {} {}", got.status, got.text());
    }
    // The target becomes a part of a path on the playlist's own server.
    let proxied = |path: &str| format!("http://127.0.0.1:{}/{}", proxy.address.port(), server.url(path));
    for (name, path) in [("bases.mpd", "/a/b/c/d/"), ("comment.mpd", "/"), ("comment", "/")] {
        let text = lan.request_as_player(name, &proxy, &server.url(&format!("/{name}?{target}"))).text();
        let want = proxied(&format!("{path}{target}"));
        assert!(text.contains(&want) && text.matches(&target).count() == 1, "{name}: {want}: {text}");
    }
    // A player with another name is refused as well.
    assert_eq!(lan.request_as_player("another", &proxy, &target).status, 403);
    assert_eq!(lan.router.connections(), 0);
    // A service of the host that no playlist named is allowed.
    let local_url = format!("http://10.77.1.2:{}/", lan.host_service.port);
    assert_eq!(lan.request_as_player("video", &proxy, &local_url).status, 200);
}

/// The addresses in a text that lead to the proxy.
fn addresses(text: &str, proxy: &Proxy) -> Vec<String> {
    let via = format!("http://127.0.0.1:{}/", proxy.address.port());
    let ends = |c: char| "\"'<> \r\n".contains(c);
    let parts = text.split(&via).skip(1);
    parts
        .map(|remaining| remaining.split(ends).next().unwrap_or_default().replace("$RepresentationID$", "a"))
        .collect()
}

#[test]
fn an_address_from_a_playlist_is_restricted_for_every_client_at_any_time() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    let target = format!("http://router.test:{}/admin", lan.router.port);
    for list in ["list.m3u8", "key.m3u8", "channels.m3u", "template.mpd"] {
        let text = lan.request_as_player("reader", &proxy, &server.url(&format!("/{list}?{target}"))).text();
        let all = addresses(&text, &proxy);
        let named = all.iter().find(|address| address.contains("router.test")).unwrap();
        for agent in ["reader", "player"] {
            assert_eq!(lan.request_as_player(agent, &proxy, named).status, 403, "{list}: {named}");
        }
        // Also by a proxy that has never read the playlist.
        assert_eq!(lan.request_as_player("player", &lan.proxy(&[]), named).status, 403, "{list}: {named}");
    }
    assert_eq!(lan.router.connections(), 0);
    let proxy = lan.proxy(&[]);
    for (mark, status) in [("", 200), ("from-list-private/", 200), ("from-list-private/from-list/", 403)] {
        let got = lan.request_as_player("user", &proxy, &format!("{mark}{target}x"));
        assert_eq!(got.status, status, "{mark}: {}", got.text());
    }
    let local_url = format!("http://127.0.0.1:{}/", lan.host_service.port);
    for (mark, status) in [("", 200), ("from-list-private/", 403), ("from-list/", 403), ("from-list-local/", 200)] {
        assert_eq!(lan.request_as_player("user", &proxy, &format!("{mark}{local_url}")).status, status, "{mark}");
    }
}

#[test]
fn odd_addresses_in_a_playlist_restrict_only_themselves() {
    let Some(lan) = Lan::new() else { return };
    let (server, proxy) = (public(&lan), lan.proxy(&[]));
    let port = lan.router.port;
    for odd in [
        "http://a$b/x".to_owned(),
        "https://archive.example/http://h/f".to_owned(),
        "http://{$host}/x".to_owned(),
        format!("http://10.77.1.1:{}/x", port.wrapping_add(1)),
        "http://10.77.2.1/x".to_owned(),
    ] {
        for list in ["list.m3u8", "channels.m3u"] {
            assert_eq!(
                lan.request_locally(&proxy, ProxyProtocol::Media, &server.url(&format!("/{list}?{odd}"))).status,
                200
            );
            for user in [
                format!("http://10.77.1.1:{port}/mine"),
                format!("http://127.0.0.1:{}/mine", lan.host_service.port),
            ] {
                let got = lan.request_locally(&proxy, ProxyProtocol::Media, &user);
                assert_eq!(got.status, 200, "{list} {odd}: {user}: {}", got.text());
            }
        }
    }
}

#[test]
fn a_private_server_may_redirect_to_private_servers_and_the_loopback_to_itself() {
    let Some(lan) = Lan::new() else { return };
    let proxy = lan.proxy(&[]);
    let listener =
        crate::network::Network::in_namespace(&lan.network.server(), || std::net::TcpListener::bind("0.0.0.0:0"));
    let private = Server::on(listener, |request| match request.path.split_once('?') {
        Some((_, target)) => Response::redirect(302, target),
        None => Response::status(404),
    });
    let url = |target: &str| format!("http://10.77.1.1:{}/to?{target}", private.address.port());
    let got =
        lan.request_locally(&proxy, ProxyProtocol::Media, &url(&format!("http://10.77.2.1:{}/", lan.router.port)));
    assert_eq!(got.status, 200, "{}", got.text());
    let before = lan.host_service.connections();
    let got = lan.request_locally(
        &proxy,
        ProxyProtocol::Media,
        &url(&format!("http://127.0.0.1:{}/", lan.host_service.port)),
    );
    assert_eq!((got.status, lan.host_service.connections()), (403, before), "{}", got.text());
    let listener =
        crate::network::Network::in_namespace(&lan.network.client(), || std::net::TcpListener::bind("127.0.0.1:0"));
    let local = Server::on(listener, |request| Response::redirect(302, request.path.split_once('?').unwrap().1));
    let got = lan.request_locally(
        &proxy,
        ProxyProtocol::Media,
        &local.url(&format!("/?http://127.0.0.1:{}/", lan.host_service.port)),
    );
    assert_eq!((got.status, got.text().trim()), (200, "SECRET"));
}

#[test]
fn a_name_that_starts_to_resolve_to_this_host_is_refused() {
    let Some(lan) = Lan::new() else { return };
    // The name is resolved over both links, hence two public answers first.
    let public_first: &[&str] = &["203.0.113.9", "203.0.113.9", "127.0.0.1"];
    let names = ["a.test", "b.test", "c.test", "d.test", "get.test"].map(|name| (name, public_first));
    lan.name_server(&[&names[..], &[("mixed.test", &["127.0.0.1 203.0.113.9"])]].concat());
    let resource = Resource::new(300_000);
    let served = resource.clone();
    // Equal ports on both hosts: the name alone decides.
    let port = lan.host_service.port;
    let listener = lan.network.in_server_namespace(move || std::net::TcpListener::bind(("203.0.113.9", port)));
    let server = Server::on(listener, move |request| served.respond(request)).limit_rate(200_000);
    let proxy = lan.proxy(&[]);
    for (form, name) in PROXY_PROTOCOLS.into_iter().zip(["a.test", "b.test", "c.test", "d.test"]) {
        let url = format!("http://{name}:{port}/file");
        assert_eq!(lan.request_locally(&proxy, form, &url).status, 200, "{form:?}");
        for _ in 0..3 {
            // The proxy caches an answer for two seconds.
            std::thread::sleep(Duration::from_millis(2200));
            let got = lan.request_locally(&proxy, form, &url.replace("file", "other"));
            assert_ne!(got.text().trim(), "SECRET", "{form:?}");
        }
    }
    let got = lan.network.program().get(&format!("http://get.test:{port}/file"));
    assert_eq!(got.code, Some(0), "{}", got.err);
    let got = lan.request_locally(&proxy, ProxyProtocol::Media, &format!("http://mixed.test:{port}/file"));
    assert_eq!(got.status, 200);
    assert_eq!(lan.host_service.connections(), 0);
    assert!(!server.requests().is_empty());
}

#[test]
fn a_public_name_that_becomes_private_is_refused_over_every_link() {
    let Some(lan) = Lan::new() else { return };
    // Together with a public address, then alone, and over one of the links.
    lan.name_server(&[
        ("beside.test", &["10.77.1.1 203.0.113.9", "10.77.1.1 203.0.113.9", "10.77.1.1"]),
        ("later.test", &["203.0.113.9", "10.77.1.1"]),
        ("only.test", &["10.77.1.1"]),
    ]);
    let resource = Resource::new(3000);
    let served = resource.clone();
    // Equal ports on both addresses: the name alone decides.
    let listener = lan.network.in_server_namespace(|| std::net::TcpListener::bind(("203.0.113.9", 0)));
    let port = listener.local_addr().unwrap().port();
    let router = lan.network.in_server_namespace(move || std::net::TcpListener::bind(("10.77.1.1", port)));
    let router = Server::on(router, |_| Response::page(200, "SECRET"));
    let server = Server::on(listener, move |request| match request.path.as_str() {
        "/list.m3u8" => {
            Response::page(200, "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n/1.ts\n#EXTINF:2,\n/admin\n")
        }
        _ => served.respond(request),
    });
    let proxy = lan.proxy(&[]);
    for name in ["beside.test", "later.test"] {
        let url = |path: &str| format!("http://{name}:{port}{path}");
        assert_eq!(lan.request_locally(&proxy, ProxyProtocol::Media, &url("/list.m3u8")).status, 200, "{name}");
        for form in PROXY_PROTOCOLS {
            std::thread::sleep(Duration::from_millis(2200));
            let got = lan.request_locally(&proxy, form, &url("/admin"));
            assert_ne!(got.text().trim(), "SECRET", "{name} {form:?}");
        }
    }
    assert!(router.requests().is_empty() && !server.requests().is_empty());
    // A name that has been private from the start is allowed.
    let got = lan.request_locally(&proxy, ProxyProtocol::Media, &format!("http://only.test:{port}/admin"));
    assert_eq!(got.text().trim(), "SECRET");
}

#[test]
fn a_download_follows_no_redirect_into_local_networks() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let server = public(&lan);
    let program = lan.network.program();
    for target in [
        format!("http://127.0.0.1:{}/x", lan.host_service.port),
        format!("http://own.test:{}/x", lan.host_service.port),
        format!("http://10.77.1.3:{}/x", lan.host_service.port),
        format!("http://router.test:{}/x", lan.router.port),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
    ] {
        let began = std::time::Instant::now();
        let message = program.refused(&[&server.url(&format!("/to?{target}"))], 68);
        assert!(message.contains("refused; request that URL directly if you mean it"), "{message}");
        assert!(began.elapsed() < Duration::from_secs(10), "{target}: {:?}", began.elapsed());
    }
    assert_eq!((lan.host_service.connections(), lan.router.connections()), (0, 0));
    // A URL from the user may be private.
    let got = program.get(&format!("http://router.test:{}/x", lan.router.port));
    assert_eq!(got.code, Some(0), "{}", got.err);
}

#[test]
fn requests_that_lead_back_to_the_proxy_are_refused_as_loops() {
    let Some(lan) = Lan::new() else { return };
    lan.name_server(&NAMES);
    let proxy = lan.proxy(&[]);
    let port = proxy.address.port();
    for form in PROXY_PROTOCOLS {
        let looped = if form == ProxyProtocol::Socks { NOT_ALLOWED } else { 508 };
        for host in ["127.0.0.1", "localhost", "127.0.0.2", "10.77.1.2", "10.77.2.2", "192.168.91.1", "own.test"] {
            let url = format!("http://{host}:{port}/http://{host}:{port}/http://203.0.113.9/x");
            assert_eq!(lan.request_locally(&proxy, form, &url).status, looped, "{form:?} {host}");
            assert_eq!(lan.request_from_lan(&proxy, form, &url).status, looped, "{form:?} {host} from the LAN");
        }
    }
}
