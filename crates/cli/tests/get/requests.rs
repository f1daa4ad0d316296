//! Request options: those of curl and wget, cookies, logins by host, IP versions.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::program::Program;
use crate::server::{Request, Resource, Response, Server};

const SIZE: usize = 100_000;

/// The value of `Authorization` for the login `name:password`.
fn basic(login: &str) -> String {
    format!("Basic {}", STANDARD.encode(login))
}

fn fields(request: &Request, names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| request.field(name).map(str::to_owned)).collect()
}

/// A server that redirects to another origin, and that origin, which has the file.
fn redirected(resource: &Resource) -> (Server, Server) {
    let all = resource.clone();
    let other = Server::start(move |request| all.respond(request));
    let target = other.url("/file");
    (Server::start(move |_| Response::redirect(302, &target)), other)
}

#[test]
fn fields_set_by_options_reach_the_server_and_no_other_origin() {
    let resource = Resource::new(SIZE);
    let (first, other) = redirected(&resource);
    let program = Program::new();
    let args = ["-A", "me/1", "-e", "http://from.example/", "-b", "k=secret", "-L", "-f", "-s", "-S", "-C", "-"];
    program.run(&[&args[..], &[&first.url("/file"), "-o", "out", "--json"]].concat()).report();
    assert!(program.file("out").unwrap() == *resource.data);
    let names = ["User-Agent", "Referer", "Cookie"];
    let all = ["me/1", "http://from.example/", "k=secret"].map(|value| Some(value.to_owned()));
    assert_eq!(fields(&first.requests()[0], &names), all);
    assert_eq!(fields(&other.requests()[0], &names), [Some("me/1".to_owned()), None, None]);
}

#[test]
fn cookies_are_loaded_sent_and_saved() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    // Redirects set two cookies; the file needs both and one from the loaded file.
    let server = Server::start(move |request| {
        let cookies = request.field("Cookie").unwrap_or_default().to_owned();
        let has_cookie = |pair: &str| cookies.split("; ").any(|cookie| cookie == pair);
        match (has_cookie("kept=1"), has_cookie("a=1"), has_cookie("b=2")) {
            (false, ..) => Response::status(403),
            (_, false, _) => Response::redirect(302, "/file").with("Set-Cookie", "a=1; Path=/; Max-Age=1000"),
            (_, _, false) => Response::redirect(302, "/file").with("Set-Cookie", "b=2; Path=/"),
            _ => all.respond(request),
        }
    });
    let program = Program::new();
    std::fs::write(program.path("jar"), "127.0.0.1\tFALSE\t/\tFALSE\t0\tkept\t1\n").unwrap();
    let url = server.url("/file");
    program.run(&[&url, "-o", "out", "--json", "--load-cookies", "jar", "--save-cookies", "saved"]).report();
    assert!(program.file("out").unwrap() == *resource.data);
    let saved = String::from_utf8(program.file("saved").unwrap()).unwrap();
    for cookie in ["\tkept\t1\n", "\ta\t1\n", "\tb\t2\n"] {
        assert!(saved.contains(cookie), "{saved}");
    }
    // The next run loads the saved cookies; `-b FILE` is curl's option for that.
    let before = server.requests().len();
    program.run(&[&url, "-o", "again", "--json", "-b", "saved"]).report();
    assert!(server.requests()[before..].iter().all(|request| request.field("Cookie").unwrap().contains("b=2")));
    let line = Program::new().refused(&[&url, "--load-cookies", "missing"], 64);
    assert!(line.contains("missing: cookies cannot be loaded") && line.contains("loaded: No such file"), "{line}");
}

#[test]
fn logins_of_a_netrc_file_go_to_their_hosts_only() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| match request.path.as_str() {
        "/file" => all.respond(request),
        _ => Response::redirect(
            302,
            &format!("http://localhost:{}/file", request.field("Host").unwrap().split(':').nth(1).unwrap()),
        ),
    });
    let program = Program::new();
    let netrc = "machine 127.0.0.1 login one password 1\nmachine localhost login two password 2\n";
    std::fs::write(program.path("netrc"), netrc).unwrap();
    std::fs::write(program.path(".netrc"), netrc.replace("two", "three")).unwrap();
    for (args, second) in [(&["--netrc-file", "netrc"][..], "two:2"), (&["-n"], "three:2")] {
        let before = server.requests().len();
        program.run(&[&[&server.url("/login"), "-o", "out", "--json"][..], args].concat()).report();
        let requests = &server.requests()[before..];
        for request in requests {
            let login = if request.path == "/file" { second } else { "one:1" };
            assert_eq!(request.field("Authorization"), Some(basic(login).as_str()), "{}", request.path);
        }
    }
    // The command line has priority.
    let before = server.requests().len();
    program.run(&[&server.url("/login"), "-o", "out", "--json", "-n", "--user", "me:x"]).report();
    assert_eq!(server.requests()[before].field("Authorization"), Some(basic("me:x").as_str()));
    let program = Program::new();
    std::fs::write(program.path("broken"), "secret h login secret\n").unwrap();
    let line = program.refused(&[&server.url("/file"), "--netrc-file", "broken"], 64);
    assert!(line.contains("broken: not a netrc file") && !line.contains("secret"), "{line}");
}

#[test]
fn max_redirs_limits_consecutive_redirects() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| match request.path[1..].parse::<u32>() {
        Ok(0) => all.respond(request),
        Ok(n) => Response::redirect(302, &format!("/{}", n - 1)),
        Err(_) => Response::redirect(302, &request.path),
    });
    let program = Program::new();
    program.run(&[&server.url("/20"), "-o", "out", "--json"]).report();
    program.run(&[&server.url("/24"), "-o", "out", "--json", "--max-redirs", "24"]).report();
    for (path, most) in [("/21", "20"), ("/4", "3"), ("/1", "0"), ("/circle", "20")] {
        let program = Program::new();
        let line = program.refused(&[&server.url(path), "--max-redirs", most], 76);
        assert!(line.contains("--max-redirs"), "{path}: {line}");
    }
}

#[test]
fn remote_time_sets_the_modification_time_of_the_file() {
    let resource = Resource::new(SIZE).with("Last-Modified", "Sat, 01 Aug 2020 10:00:00 GMT");
    let server = Server::honest(&resource);
    let program = Program::new();
    program.run(&[&server.url("/file"), "-o", "out", "--json", "-R"]).report();
    let time = program.path("out").metadata().unwrap().modified().unwrap();
    assert_eq!(time, SystemTime::UNIX_EPOCH + Duration::from_secs(1_596_276_000));
    let server = Server::honest(&Resource::new(SIZE));
    let ended = program.run(&[&server.url("/file"), "-o", "other", "--json", "-R"]);
    ended.report();
    ended.assert_notice("the server sends no Last-Modified; the file keeps the time of the download");
}

#[test]
fn the_requested_ip_version_is_used() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource);
    let url = server.url("/file").replace("127.0.0.1", "localhost");
    let program = Program::new();
    program.run(&[&url, "-o", "out", "--json", "-4"]).report();
    assert!(program.file("out").unwrap() == *resource.data);
    let program = Program::new();
    let line = program.refused(&[&server.url("/file"), "-6", "--retry", "0"], 68);
    assert!(line.contains("127.0.0.1 has no IPv6 address"), "{line}");
}

#[test]
fn a_url_without_a_scheme_is_http() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource);
    let program = Program::new();
    program.run(&[server.url("/file").strip_prefix("http://").unwrap(), "-o", "out", "--json"]).report();
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn a_login_does_not_follow_a_redirect_to_another_port() {
    let resource = Resource::new(SIZE);
    let (first, other) = redirected(&resource);
    let program = Program::new();
    let args = ["--user", "me:secret", "-H", "X-Token: secret", "-b", "k=secret"];
    program.run(&[&args[..], &[&first.url("/file"), "-o", "out", "--json"]].concat()).report();
    let secrets = ["Authorization", "X-Token", "Cookie"];
    assert!(fields(&first.requests()[0], &secrets).iter().all(Option::is_some));
    assert!(other.requests().iter().all(|request| fields(request, &secrets).iter().all(Option::is_none)));
    let before = other.requests().len();
    let url = first.url("/file");
    program.run(&[&args[..], &["--location-trusted", &url, "-o", "again", "--json"]].concat()).report();
    assert!(fields(&other.requests()[before], &secrets).iter().all(Option::is_some));
}
