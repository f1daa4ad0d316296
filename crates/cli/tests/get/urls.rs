//! URLs and file names: redirects, unusual URLs, suggested names, logins, mirrors.

use std::net::TcpListener;

use crate::nginx::{Nginx, identity};
use crate::program::Program;
use crate::server::{Resource, Response, Server};

const SIZE: usize = 2_000_000;

#[test]
fn redirects_are_followed_to_the_file() {
    for status in [301, 302, 303, 307, 308] {
        let resource = Resource::new(SIZE);
        let all = resource.clone();
        let server = Server::start(move |request| match request.path.as_str() {
            "/file" => Response::redirect(status, "/a/b?c=d"),
            "/a/b?c=d" => Response::redirect(status, "../e"),
            "/e" => all.respond(request),
            _ => Response::status(404),
        });
        let program = Program::new();
        let ended = program.get(&server.url("/file"));
        let report = ended.report();
        ended.assert_no_notices();
        assert!(program.file("out").unwrap() == *resource.data);
        assert_eq!(report["url"], server.url("/file"));
        // The redirect is resolved once, not with each request.
        assert!(server.requests().iter().filter(|request| request.path != "/e").count() <= 4);
    }
}

#[test]
fn cookies_set_by_a_redirect_are_returned_and_reach_no_other_host() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| {
        let port = request.field("host").and_then(|host| host.rsplit_once(':')).map(|(_, port)| port).unwrap();
        match (request.path.as_str(), request.field("cookie")) {
            ("/file", None) => Response::redirect(302, "/file").with("Set-Cookie", "k=1; Path=/; HttpOnly"),
            ("/file", Some("k=1")) => Response::redirect(302, &format!("http://localhost:{port}/end")),
            ("/end", None) => all.respond(request),
            _ => Response::status(400),
        }
    });
    for _ in 0..2 {
        let program = Program::new();
        let ended = program.get(&server.url("/file"));
        ended.report();
        ended.assert_no_notices();
        assert!(program.file("out").unwrap() == *resource.data);
    }
    // Runs do not share cookies.
    let without = server
        .requests()
        .iter()
        .filter(|request| request.path == "/file" && request.field("cookie").is_none())
        .count();
    assert!((2..=4).contains(&without), "{without}");
}

#[test]
fn a_redirect_to_https_uses_tls() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("", &resource, Some(&identity("localhost", None))) else { return };
    let to = format!("https://localhost:{}/file", nginx.address.port());
    let server = Server::start(move |_| Response::redirect(301, &to));
    let url = server.url("/file");
    let program = Program::new();
    let ca_file = nginx.authority();
    program.run(&[&url, "-o", "out", "--json", "--ca-file", ca_file.to_str().unwrap()]).report();
    assert!(program.file("out").unwrap() == *resource.data);
    // The system's certificate authorities do not include this one.
    let line = Program::new().refused(&[&url, "--retry", "0"], 68);
    assert!(line.contains("certificate") || line.contains("no certificate authorities"), "{line}");
}

#[test]
fn a_redirect_loop_ends_the_run() {
    let server = Server::start(|request| Response::redirect(302, if request.path == "/a" { "/b" } else { "/a" }));
    let line = Program::new().refused(&[&server.url("/a")], 76);
    assert!(line.contains("too many redirects, or a redirect loop") && line.contains("--max-redirs"), "{line}");
    // Once with a range and once without.
    assert!(server.requests().len() < 35);
}

#[test]
fn a_redirect_with_an_invalid_target_is_reported() {
    for to in ["ftp://example.org/file", "http://[::1", "file:///etc/passwd"] {
        let server = Server::start(move |_| Response::redirect(302, to));
        let ended = Program::new().get(&server.url("/file"));
        assert_eq!(ended.code, Some(76), "{}", ended.err);
        assert!(ended.err.contains("redirect"), "{}", ended.err);
    }
    let server = Server::start(|_| Response::status(302));
    let line = Program::new().refused(&[&server.url("/file")], 76);
    assert!(line.contains("a redirect whose target cannot be read"), "{line}");
    // An empty target and one with a control byte are invalid.
    for to in ["", "/\u{1}"] {
        let server = Server::start(move |_| Response::redirect(302, to));
        let line = Program::new().refused(&[&server.url("/file")], 76);
        assert!(line.contains("a redirect whose target cannot be read"), "{line}");
        assert!(server.requests().len() <= 4);
    }
}

#[test]
fn secrets_are_sent_only_to_the_host_they_are_for() {
    let resource = Resource::new(SIZE);
    let other = Server::honest(&resource);
    let to = other.url("/file");
    let server = Server::start(move |request| {
        if request.field("Authorization").is_some() { Response::redirect(302, &to) } else { Response::status(401) }
    });
    let program = Program::new();
    let ended = program.run(&[
        &server.url("/file"),
        "-o",
        "out",
        "--json",
        "--user",
        "me:pa ss:word",
        "-H",
        "Cookie: key=value",
        "-H",
        "X-Kind: open",
    ]);
    ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
    let first = &server.requests()[0];
    assert_eq!(first.field("Authorization"), Some("Basic bWU6cGEgc3M6d29yZA=="));
    assert_eq!((first.field("Cookie"), first.field("X-Kind")), (Some("key=value"), Some("open")));
    for request in other.requests() {
        assert_eq!((request.field("Authorization"), request.field("Cookie")), (None, None));
        // Any field may contain a token.
        assert_eq!(request.field("X-Kind"), None);
    }
    let log = std::fs::read_to_string(program.path("decisions.log")).unwrap();
    assert!(!log.contains("word") && !log.contains("bWU6"), "a secret in the log");
}

#[test]
fn the_server_names_the_file_but_not_its_directory() {
    let table = [
        ("attachment; filename=\"report.pdf\"", "/x", "report.pdf"),
        ("attachment; filename=\"../../etc/passwd\"", "/x", "passwd"),
        ("attachment; filename=\"C:\\\\Windows\\\\evil.exe\"", "/x", "evil.exe"),
        ("attachment; filename=\".bashrc\"", "/x", "bashrc"),
        ("attachment; filename*=UTF-8''na%C3%AFve%2F..%2Ffile.txt; filename=plain", "/x", "file.txt"),
        ("attachment; filename=\"..\"", "/a/from-url.iso?x=1", "from-url.iso"),
        ("", "/a/%2e%2e%2f%2e%2e%2fb%20c.iso?x=/y", "b c.iso"),
        ("", "/", "download"),
    ];
    for (disposition, path, name) in table {
        let resource = Resource::new(50_000).with("Content-Disposition", disposition);
        let program = Program::new();
        let ended = program.run(&[&Server::honest(&resource).url(path), "--json"]);
        let report = ended.report();
        assert_eq!(program.files(), [name], "{disposition} {path}");
        assert!(program.file(name).unwrap() == *resource.data);
        assert!(report["path"].as_str().unwrap().ends_with(name), "{report}");
    }
}

#[test]
fn an_unusable_suggested_name_is_adapted_and_reported() {
    let long = format!("attachment; filename=\"{}.iso\"", "x".repeat(245));
    let table = [
        (long.as_str(), format!("{}.iso", "x".repeat(234)), "it is too long"),
        ("attachment; filename=\"-rf\"", "rf".to_owned(), "some of its characters are not safe"),
        (
            "attachment; filename*=UTF-8''a%E2%80%AEgpj.exe",
            "agpj.exe".to_owned(),
            "some of its characters are not safe",
        ),
    ];
    for (disposition, name, why) in table {
        let resource = Resource::new(50_000).with("Content-Disposition", disposition);
        let program = Program::new();
        let ended = program.run(&[&Server::honest(&resource).url("/nn"), "--json"]);
        ended.assert_notice(why);
        assert_eq!(program.files(), [name.as_str()], "{disposition}");
        assert!(program.file(&name).unwrap() == *resource.data);
    }
}

#[test]
fn a_name_suggested_by_the_server_replaces_no_file() {
    let resource = Resource::new(50_000).with("Content-Disposition", "attachment; filename=mine");
    let program = Program::new();
    std::fs::write(program.path("mine"), "precious").unwrap();
    let ended = program.run(&[&Server::honest(&resource).url("/x"), "--json"]);
    let report = ended.report();
    assert_eq!(program.file("mine").unwrap(), b"precious");
    let path = report["path"].as_str().unwrap();
    assert!(std::fs::read(program.dir().join(path)).unwrap() == *resource.data, "{report}");
}

#[test]
fn urls_are_normalized_before_they_are_sent() {
    for (written, sent) in [
        ("/a%20b/c?d=e%2Ff&g=%26", "/a%20b/c?d=e%2Ff&g=%26"),
        ("/a b/ä?q=ö x", "/a%20b/%C3%A4?q=%C3%B6%20x"),
        ("/a/../b/./c", "/b/c"),
        ("/file;v=1?a=[1]|{2}", "/file;v=1?a=[1]|{2}"),
        ("/f?#fragment", "/f?"),
        ("?only=query", "/?only=query"),
    ] {
        let resource = Resource::new(1000);
        let server = Server::honest(&resource);
        let program = Program::new();
        program.get(&server.url(written)).report();
        assert_eq!(server.requests()[0].path, sent, "{written}");
        assert_eq!(server.requests()[0].field("Host"), Some(server.address.to_string().as_str()));
    }
}

#[test]
fn an_ipv6_address_is_a_host() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        return eprintln!("skipped: no IPv6 on this machine");
    };
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::on(listener, move |request| all.respond(request));
    let program = Program::new();
    program.get(&server.url("/file")).report();
    assert!(program.file("out").unwrap() == *resource.data);
    let host = format!("[::1]:{}", server.address.port());
    assert_eq!(server.requests()[0].field("Host"), Some(host.as_str()));
}

#[test]
fn a_failing_source_is_replaced_by_the_next_one() {
    let resource = Resource::new(SIZE);
    let dead = || format!("http://{}/file", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let good = Server::honest(&resource);
    let lacking = Server::start(|_| Response::status(404));
    for bad in [dead(), lacking.url("/file")] {
        let program = Program::new();
        let ended = program.run(&[&good.url("/file"), "--mirror", &bad, "-o", "out", "--json"]);
        ended.report();
        assert!(program.file("out").unwrap() == *resource.data);
        let program = Program::new();
        let ended = program.run(&[&bad, "--mirror", &good.url("/file"), "-o", "out", "--json"]);
        ended.report();
        ended.assert_notice(": the whole file is fetched from ");
        assert!(program.file("out").unwrap() == *resource.data);
    }
}
