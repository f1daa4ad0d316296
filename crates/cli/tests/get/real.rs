//! nginx with common configurations: short-lived connections, files that are replaced, TLS, HTTP/2.

use std::time::Duration;

use crate::nginx::{Nginx, identity};
use crate::program::Program;
use crate::server::Resource;

const SIZE: usize = 8_000_000;

#[test]
fn connections_that_end_after_one_or_three_responses_waste_no_bytes() {
    for answers in [1, 3] {
        let resource = Resource::new(SIZE);
        let settings = format!("keepalive_requests {answers};");
        let Some(nginx) = Nginx::start(&settings, &resource, None) else { return };
        let program = Program::new();
        let ended = program.get(&format!("http://{}/file", nginx.address));
        let report = ended.report();
        ended.assert_no_notices();
        assert!(program.file("out").unwrap() == *resource.data);
        // The first response carries the whole file.
        assert_eq!(report["links"][0]["connections"], 1, "{report}");
        assert_eq!(report["wasted_bytes"], 0, "{report}");
        assert_eq!(report["links"][0]["state"], "idle", "{report}");
    }
}

#[test]
fn ranges_that_nginx_does_not_serve_are_not_requested_again() {
    let resource = Resource::new(SIZE);
    let Some(nginx) = Nginx::start("max_ranges 0;", &resource, None) else { return };
    let program = Program::new();
    let ended = program.get(&format!("http://{}/file", nginx.address));
    ended.report();
    ended.assert_notice("the server does not serve ranges");
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn a_file_that_is_replaced_during_the_download_is_never_mixed() {
    // nginx's ETag is strong; without it, its Last-Modified is only strong a minute later and not used.
    for (settings, expected) in
        [("limit_rate 3m;", None), ("limit_rate 3m; etag off;", Some("the server gives no strong validator"))]
    {
        let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE + 4321, 2));
        let Some(nginx) = Nginx::start(settings, &old, None) else { return };
        let program = Program::new();
        let url = format!("http://{}/file", nginx.address);
        let running = program.start(&[&url, "-o", "out", "--json"]);
        std::thread::sleep(Duration::from_millis(700));
        nginx.replace(&new);
        let ended = running.wait();
        let report = ended.report();
        if let Some(expected) = expected {
            ended.assert_notice(expected);
        }
        let file = program.file("out").unwrap();
        // A response that runs when the file is replaced continues with the whole old file.
        assert!(file == *new.data || file == *old.data, "{report}");
    }
}

#[test]
fn http_2_carries_a_download_also_with_few_requests_for_each_connection() {
    for settings in ["http2 on;", "http2 on; keepalive_requests 3;"] {
        let resource = Resource::new(SIZE);
        let identity = identity("localhost", None);
        let Some(nginx) = Nginx::start(settings, &resource, Some(&identity)) else { return };
        let program = Program::new();
        let url = format!("https://localhost:{}/file", nginx.address.port());
        let authority = nginx.authority();
        let ended = program.run(&[&url, "-o", "out", "--json", "--ca-file", authority.to_str().unwrap()]);
        ended.report();
        ended.assert_no_notices();
        assert!(program.file("out").unwrap() == *resource.data, "{settings}");
    }
}

#[test]
fn an_invalid_certificate_ends_the_run_with_its_reason() {
    let resource = Resource::new(1000);
    let (good, other, expired) =
        (identity("localhost", None), identity("other.example", None), identity("localhost", Some(2020)));
    // A name in a certificate must not send escape sequences to the terminal.
    let escape = identity("\u{1b}[31mother", None);
    let table = [
        (&other, true, "the certificate is for other.example, not for localhost"),
        (&escape, true, "the certificate is for \\u001b[31mother, not for localhost"),
        (&expired, true, "the certificate expired "),
        (&good, false, "not trusted"),
    ];
    for (identity, known, expected) in table {
        let Some(nginx) = Nginx::start("", &resource, Some(identity)) else { return };
        let url = format!("https://localhost:{}/file", nginx.address.port());
        let program = Program::new();
        let authority = nginx.authority();
        let mut args = vec![url.as_str(), "--retry", "1"];
        if known {
            args.extend(["--ca-file", authority.to_str().unwrap()]);
        }
        let line = program.refused(&args, 68);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_ca_file_without_certificates_is_reported() {
    let program = Program::new();
    std::fs::write(program.path("ca.pem"), "nothing").unwrap();
    for (file, expected) in [("ca.pem", "ca.pem"), ("absent.pem", "absent.pem")] {
        let line = program.refused(&["https://localhost:1/file", "--ca-file", file], 64);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_redirect_away_from_https_is_not_followed() {
    let resource = Resource::new(1000);
    let identity = identity("localhost", None);
    let settings = "location = /file { return 302 http://localhost/other; }";
    let Some(nginx) = Nginx::start(settings, &resource, Some(&identity)) else { return };
    let program = Program::new();
    let url = format!("https://localhost:{}/file", nginx.address.port());
    let ended = program.run(&[&url, "-o", "out", "--ca-file", nginx.authority().to_str().unwrap()]);
    assert_eq!(ended.code, Some(76), "{}", ended.err);
    ended.assert_notice("the redirect from https to http://localhost/other is not followed");
    assert!(program.files().is_empty(), "{:?}", program.files());
}
