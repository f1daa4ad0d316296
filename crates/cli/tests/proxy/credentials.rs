//! Cookies and header fields of players: they are sent to their own origin with playlists, segments and prefetched segments, and to
//! no other origin.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use crate::proxy::Proxy;
use crate::server::{Request, Resource, Response, Server};

const HLS: (&str, &str) = ("Content-Type", "application/x-mpegurl");
const SEGMENTS: usize = 4;

/// A playlist with these segment addresses.
fn list(segments: impl Iterator<Item = String>) -> Response {
    let lines: String = segments.map(|url| format!("#EXTINF:2,\n{url}\n")).collect();
    let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n{lines}#EXT-X-ENDLIST\n");
    Response::page(200, &text).with(HLS.0, HLS.1)
}

/// The port of the requested host.
fn port(request: &Request) -> &str {
    request.field("host").and_then(|host| host.rsplit_once(':')).map(|(_, port)| port).unwrap()
}

/// A server whose playlists have segments next to them, at another host name, or at another port of the same host.
fn channel(file: impl Fn(&Request) -> Response + Send + Sync + 'static, other: u16) -> Server {
    Server::start(move |request| match request.path.as_str() {
        "/list.m3u8" => list((1..=SEGMENTS).map(|n| format!("{n}.ts"))),
        "/cdn.m3u8" => list((1..=SEGMENTS).map(|n| format!("http://localhost:{}/{n}.ts", port(request)))),
        "/port.m3u8" => list((1..=SEGMENTS).map(|n| format!("http://127.0.0.1:{other}/{n}.ts"))),
        "/moved.m3u8" => Response::redirect(302, &format!("http://localhost:{}/list.m3u8", port(request))),
        _ => file(request),
    })
}

/// Requests a playlist and then each of its segments; returns the status and body of each segment.
fn play(proxy: &Proxy, list: &str, args: &[&str]) -> Vec<(u16, Vec<u8>)> {
    let got = proxy.get(list, args);
    assert_eq!(got.status, 200, "{}", got.text());
    let base = url::Url::parse(&proxy.media_url(list)).unwrap();
    let text = got.text();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let urls: Vec<String> = lines.map(|line| base.join(line).unwrap().to_string()).collect();
    assert_eq!(urls.len(), SEGMENTS, "{text}");
    urls.iter()
        .map(|url| {
            let got = proxy.request(url, args);
            assert!(got.field("set-cookie").is_none());
            (got.status, got.body)
        })
        .collect()
}

#[test]
fn cookies_are_returned_to_their_server_and_never_reach_the_player() {
    let resource = Resource::new(20_000);
    let file = resource.clone();
    let server = Server::start(move |request| {
        let cookie = request.field("cookie").unwrap_or_default();
        let has_cookie = |pair: &str| cookie.split("; ").any(|sent| sent == pair);
        match request.path.as_str() {
            // As CloudFront does: the master playlist sets the cookie that segments need.
            "/ck/m.m3u8" => list((1..=SEGMENTS).map(|n| format!("{n}.ts"))).with("Set-Cookie", "k=1; Path=/ck"),
            "/ck/other.m3u8" => {
                list((1..=SEGMENTS).map(|n| format!("http://localhost:{}/ck/{n}.ts", port(request))))
                    .with("Set-Cookie", "k=1; Path=/; Domain=localhost")
            }
            // A redirect to the same address until the cookie comes back.
            "/gate" if !has_cookie("gate=open") => {
                Response::redirect(302, "/gate").with("Set-Cookie", "gate=open; Path=/; HttpOnly")
            }
            "/gate" => file.respond(request),
            path if path.starts_with("/ck/") && has_cookie("k=1") => file.respond(request),
            _ => Response::status(403),
        }
    });
    let proxy = Proxy::start(&[]);
    let of_list = play(&proxy, &server.url("/ck/m.m3u8"), &["-A", "one"]);
    assert!(of_list.iter().all(|(status, body)| *status == 200 && *body == *resource.data));
    // The cookie is sent neither for another player nor to another host.
    assert_eq!(proxy.get(&server.url("/ck/1.ts"), &["-A", "two"]).status, 403);
    let other_list = play(&proxy, &server.url("/ck/other.m3u8"), &["-A", "three"]);
    assert!(other_list.iter().all(|(status, _)| *status == 403));
    for args in [&["-A", "four"][..], &["-A", "five", "-r", "100-199"]] {
        let got = proxy.get(&server.url("/gate"), args);
        let part = if args.len() > 2 { &resource.data[100..200] } else { &resource.data[..] };
        assert!(got.body == *part && got.field("set-cookie").is_none(), "{}", got.status);
    }
}

#[test]
fn playlist_variables_of_one_user_are_not_visible_to_another() {
    let server = Server::start(move |request| {
        let is_let_in = request.field("authorization").is_some() || request.field("x-token").is_some();
        match request.path.as_str() {
            "/master.m3u8" if !is_let_in => Response::status(401),
            "/master.m3u8" => {
                let define = "#EXT-X-DEFINE:NAME=\"tok\",VALUE=\"SECRET\"";
                let text = format!("#EXTM3U\n{define}\n#EXT-X-STREAM-INF:BANDWIDTH=1\n/media.m3u8\n");
                Response::page(200, &text).with(HLS.0, HLS.1)
            }
            _ => {
                let import = "#EXT-X-DEFINE:IMPORT=\"tok\"\n#EXT-X-TARGETDURATION:4";
                Response::page(200, &format!("#EXTM3U\n{import}\n#EXTINF:4,\n/1.ts?t={{$tok}}\n"))
                    .with(HLS.0, HLS.1)
            }
        }
    });
    let (media, master) = (server.url("/media.m3u8"), server.url("/master.m3u8"));
    let with_login = |url: &str| url.replace("http://", "http://me:pw@");
    for (has_authorization, args) in
        [(true, &["-A", "a", "-H", "Authorization: Bearer one"][..]), (false, &["-A", "b", "-H", "X-Token: one"])]
    {
        let proxy = Proxy::start(&[]);
        let read = |url: &str, args: &[&str]| {
            let got = proxy.get(url, args);
            assert!(got.text().contains("t=SECRET") || !got.text().contains("SECRET"), "{}", got.text());
            (got.status, got.text().contains("t=SECRET"))
        };
        assert_eq!(proxy.get(&master, args).status, 200);
        assert_eq!(read(&media, args), (200, true));
        // Fields that vary between requests do not identify another user.
        let again = [args, &["-H", "Accept: video/*", "-H", "CMCD-Request: bl=2000"]].concat();
        assert_eq!(read(&media, &again), (200, true));
        for other in [
            &["-A", "c"][..],
            &args[..2],
            &[
                args[0],
                args[1],
                args[2],
                if has_authorization { "Authorization: Bearer two" } else { "X-Token: two" },
            ],
        ] {
            assert_eq!(read(&media, other), (502, false), "{other:?}");
        }
        assert_eq!(read(&with_login(&media), args), (502, false));
        // Another user of the same program reads the same playlist: each keeps its own variables.
        assert_eq!(proxy.get(&with_login(&master), &args[..2]).status, 200);
        assert_eq!(read(&with_login(&media), &args[..2]), (200, true));
        assert_eq!(read(&media, args), (200, true));
        assert_eq!(read(&media, &args[..2]), (502, false));
    }
}

/// Header fields that a player sends by itself, as options of curl.
const PLAYER_FIELDS: [&str; 14] = [
    "-A",
    "Mozilla/5.0 player",
    "-H",
    "Origin: https://site.example",
    "-H",
    "Referer: https://site.example/page?secret",
    "-H",
    "X-Tok: secret",
    "-H",
    "Cookie: a=secret",
    "-H",
    "Authorization: Bearer secret",
    "-H",
    "Icy-MetaData: 1",
];

#[test]
fn header_fields_of_a_player_reach_their_origin_and_no_other() {
    let resource = Resource::new(20_000);
    let (one, other) = (resource.clone(), resource.clone());
    let other_server = Server::start(move |request| other.respond(request));
    let server = channel(move |request| one.respond(request), other_server.address.port());
    let proxy = Proxy::start(&[]);
    let has_field = |request: &Request, name: &str, value: &str| request.field(name) == Some(value);
    for path in ["/list.m3u8", "/cdn.m3u8", "/port.m3u8", "/moved.m3u8"] {
        let (before, before_elsewhere) = (server.requests().len(), other_server.requests().len());
        let got = play(&proxy, &server.url(path), &PLAYER_FIELDS);
        assert!(got.iter().all(|(status, body)| *status == 200 && *body == *resource.data), "{path}");
        let requests = [&server.requests()[before..], &other_server.requests()[before_elsewhere..]].concat();
        let home = format!("{}", server.address);
        let (at_home, away): (Vec<_>, Vec<_>) =
            requests.iter().partition(|request| request.field("host") == Some(home.as_str()));
        assert_eq!(at_home.len() > SEGMENTS, path == "/list.m3u8", "{path}: {}", at_home.len());
        assert_eq!(away.len() >= SEGMENTS, path != "/list.m3u8", "{path}");
        for request in at_home {
            assert!(
                has_field(request, "x-tok", "secret") && has_field(request, "cookie", "a=secret"),
                "{path}: {request:?}"
            );
            assert!(has_field(request, "authorization", "Bearer secret"), "{path}: {request:?}");
            assert!(has_field(request, "referer", "https://site.example/page?secret"), "{path}: {request:?}");
        }
        for request in requests.iter().filter(|received| received.field("host") != Some(home.as_str())) {
            assert!(!format!("{request:?}").contains("secret"), "{path}: {request:?}");
            assert!(has_field(request, "referer", "https://site.example/"), "{path}: {request:?}");
        }
        for request in &requests {
            assert!(has_field(request, "origin", "https://site.example"), "{path}: {request:?}");
            assert!(has_field(request, "user-agent", "Mozilla/5.0 player"), "{path}: {request:?}");
            assert!(request.field("icy-metadata").is_none(), "{path}: {request:?}");
        }
    }
    // For a browser all sites behind the proxy are one origin, so its secrets are not forwarded.
    let before = server.requests().len();
    let browser = [&PLAYER_FIELDS[..2], &PLAYER_FIELDS[6..], &["-H", "Sec-Fetch-Site: none"]].concat();
    assert_eq!(proxy.get(&server.url("/1.ts"), &browser).status, 200);
    let requests = &server.requests()[before..];
    assert!(!requests.is_empty() && !format!("{requests:?}").contains("secret"), "{requests:?}");
}

#[test]
fn users_with_other_credentials_never_get_each_others_bytes() {
    let resource_of = |user: &str| Resource::other(20_000, 1 + u64::from(user == "b"));
    // "a:pw" and "b:pw"
    let user = |request: &Request| match (
        request.field("cookie"),
        request.field("authorization"),
        request.field("x-user"),
    ) {
        (Some("u=a"), ..) | (_, Some("Basic YTpwdw==" | "Bearer a"), _) | (_, _, Some("a")) => Some("a"),
        (Some("u=b"), ..) | (_, Some("Basic Yjpwdw==" | "Bearer b"), _) | (_, _, Some("b")) => Some("b"),
        _ => None,
    };
    let answer = move |request: &Request| match (user(request), request.path.as_str()) {
        (None, _) => Response::status(401),
        (_, "/list.m3u8") => list((1..=SEGMENTS).map(|n| format!("{n}.ts"))),
        (Some(user), _) => resource_of(user).respond(request),
    };
    let server = Server::start(answer);
    let proxy = Proxy::start(&[]);
    for field in ["Cookie: u=USER", "Authorization: Bearer USER", "X-User: USER", "LOGIN"] {
        let request = |user: &str, path: &str| {
            let url = match field {
                "LOGIN" if !user.is_empty() => format!("http://{user}:pw@{}{path}", server.address),
                _ => server.url(path),
            };
            let field = field.replace("USER", user);
            let args = ["-A", "player", "-H", &field];
            proxy.get(&url, if user.is_empty() || field == "LOGIN" { &args[..2] } else { &args })
        };
        for path in ["/list.m3u8", "/1.ts", "/2.ts", "/3.ts", "/4.ts"] {
            let [anonymous, a, b] = ["", "a", "b"].map(|user| request(user, path));
            assert_eq!((a.status, b.status, anonymous.status), (200, 200, 401), "{field} {path}");
            if path == "/1.ts" {
                // The next segment is prefetched for one of them, and must not be given to another.
                proxy.wait_for_status("a segment ahead", |now| {
                    let mut ahead = now["prefetches"].as_array().into_iter().flatten();
                    ahead.any(|of_user| of_user["prefetched_bytes"].as_u64() >= Some(20_000))
                });
            }
            if path != "/list.m3u8" {
                assert!(a.body == *resource_of("a").data && b.body == *resource_of("b").data, "{field} {path}");
            }
        }
    }
}

fn marline(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marline")).args(args).env("HOME", "/nonexistent").output().unwrap()
}

#[test]
fn header_fields_of_the_command_line_are_sent_only_for_its_player() {
    let resource = Resource::new(20_000);
    let file = resource.clone();
    let server = channel(
        move |request| match request.field("x-tok") {
            Some("secret") => file.respond(request),
            _ => Response::status(403),
        },
        9,
    );
    let dir = tempfile::tempdir().unwrap();
    let player = dir.path().join("player");
    // Requests the playlist and the first segment, and then that segment without the token in its address.
    let script = r#"#!/bin/sh
set -e
cd "$1"
curl -sS -o list "$2"
grep -v '^#' list | sed -n 2p > second
curl -sS -o one "${2%list.m3u8}1.ts"
# http://ADDRESS/TOKEN/URL
address=$(echo "$2" | cut -d/ -f1-3)
url=$(echo "$2" | cut -d/ -f5-)
curl -sS -o /dev/null -w '%{http_code}' "$address/${url%list.m3u8}1.ts" > bare
"#;
    std::fs::write(&player, script).unwrap();
    std::fs::set_permissions(&player, std::fs::Permissions::from_mode(0o755)).unwrap();
    let proxy = Proxy::start(&[]);
    let (taken, free) = (proxy.address.to_string(), {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    });
    for (n, listen) in [taken, free].iter().enumerate() {
        let out = dir.path().join(n.to_string());
        std::fs::create_dir(&out).unwrap();
        let with = format!("{} {}", player.display(), out.display());
        let url = server.url("/list.m3u8");
        let played = marline(&["play", "--player", &with, "-H", "X-Tok: secret", "--listen", listen, &url]);
        let stderr = String::from_utf8_lossy(&played.stderr).into_owned();
        assert_eq!(played.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
        assert!(std::fs::read(out.join("one")).unwrap() == *resource.data);
        assert_eq!(std::fs::read_to_string(out.join("second")).unwrap().trim(), "2.ts");
        assert_eq!(std::fs::read_to_string(out.join("bare")).unwrap(), "403");
    }
    let url = server.url("/list.m3u8");
    for (args, expected) in [
        (&["play", "-H", "X-Tok: secret", &url][..], "--player"),
        (&["play", "-H", "X-Tok secret", "--page", &url], "Name: value"),
        (&["play", "-H", "Host: secret", "--page", &url], "sets this field itself"),
    ] {
        let refused = marline(args);
        let stderr = String::from_utf8(refused.stderr).unwrap();
        assert_eq!((refused.status.code(), stderr.lines().count()), (Some(64), 1), "{stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("secret"), "{stderr}");
    }
}
