//! End-to-end tests of `marline get` with one file: output, report, exit codes, interruption and resumption.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{assert_success, marline};
use crate::server::{Resource, Response, Server};

/// The file of every path of the server: 3 MB.
fn file() -> Vec<u8> {
    resource().data.to_vec()
}

fn resource() -> Resource {
    Resource::new(3_000_000)
}

/// A home directory, and a server with Basic authentication below `/auth` and an encoded file below `/gzip`.
fn home_and_server() -> (TempDir, Server) {
    let resource = resource();
    let server = Server::start(move |request| {
        let response = resource.respond(request);
        // me:pa:ss
        let is_authorized = request.field("Authorization") == Some("Basic bWU6cGE6c3M=");
        match request.path.as_str() {
            path if path.starts_with("/auth") && !is_authorized => Response::status(401),
            path if path.starts_with("/absent") => Response::status(404),
            path if path.starts_with("/gzip") => response.with("Content-Encoding", "x-gzip"),
            _ => response,
        }
    });
    (tempfile::tempdir().unwrap(), server)
}

/// The same with a server that stops sending after 2 MB, until the test allows more.
fn home_and_paused_server() -> (TempDir, Server) {
    let (home, server) = home_and_server();
    server.allow_bytes(2_000_000);
    (home, server)
}

#[test]
fn a_file_is_fetched_reported_recorded_and_replayed() {
    let (home, server) = home_and_server();
    let args = ["get", "--json", "--trace", "log", &server.url("/dir/name.bin?q")];
    let output = marline(home.path(), &args).output().unwrap();
    assert_success(&output);
    assert_eq!(std::fs::read(home.path().join("name.bin")).unwrap(), file());
    let mut left: Vec<_> =
        std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["log", "name.bin"], "unexpected files were left");

    // All fields are documented in docs/json.md.
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let documented = |key: &str| page.contains(&format!("`{key}`"));
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for key in keys(&report).iter().chain(&keys(&report["links"][0])) {
        assert!(documented(key), "docs/json.md does not describe the field {key}");
    }
    for key in [
        "url",
        "bytes",
        "seconds",
        "goodput_mbps",
        "policy",
        "link_delta_s",
        "wasted_bytes",
        "cpu_s",
        "peak_rss_bytes",
    ] {
        assert!(report.get(key).is_some(), "{key}");
    }
    let link = [
        "name",
        "kind",
        "bytes",
        "goodput_mbps",
        "requests",
        "connections",
        "first_byte_s",
        "last_byte_s",
        "rtt_ms",
        "retries",
        "state",
    ];
    for key in link {
        assert!(report["links"][0].get(key).is_some(), "{key}");
    }
    assert_eq!(report["bytes"], 3_000_000);
    assert_eq!(report["policy"], "marline");

    let output = marline(home.path(), &["replay", "log"]).output().unwrap();
    assert_success(&output);
    assert!(output.stdout.starts_with(b"equal: "));
    // A decision that was changed by hand is reported with its line.
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    let line = 1 + log.lines().position(|line| line.contains("\"out\":\"request\"")).unwrap();
    std::fs::write(
        home.path().join("log"),
        log.replacen("\"out\":\"request\",\"req\":0", "\"out\":\"request\",\"req\":7", 1),
    )
    .unwrap();
    let output = marline(home.path(), &["replay", "log"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with(&format!("marline: log:{line}: different: the log has {{")), "{stderr}");
}

#[test]
fn standard_output_carries_the_file_and_nothing_else() {
    let (home, server) = home_and_server();
    let output =
        marline(home.path(), &["get", "-o", "-", "--json", "--quiet", &server.url("/f")]).output().unwrap();
    assert_success(&output);
    assert!(output.stdout == file(), "standard output is not the file");
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(report["path"], Value::Null);
}

#[test]
fn a_login_is_accepted_in_every_form_and_never_shown() {
    let (home, server) = home_and_server();
    let refused = marline(home.path(), &["get", "-q", &server.url("/auth/f")]).output().unwrap();
    assert_eq!(refused.status.code(), Some(66));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("401 (unauthorized); a login is required: use --user"), "{stderr}");
    let login = home.path().join("login");
    std::fs::write(&login, "me:pa:ss\n").unwrap();
    // A password file that others may read is refused, and the password is not printed.
    std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = marline(home.path(), &["get", "--user-file", "login", &server.url("/auth/f")]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(
        stderr.contains("login: users other than its owner may read it (mode 0644): chmod 600")
            && !stderr.contains("pa:ss"),
        "{stderr}"
    );
    std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o600)).unwrap();
    let in_url = server.url("/auth/f").replace("http://", "http://me:pa%3Ass@");
    let option_sets: [&[&str]; 3] = [
        &["--user", "me:pa:ss", &server.url("/auth/f")],
        &["--user-file", "login", &server.url("/auth/f")],
        &[&in_url],
    ];
    for options in option_sets {
        let args: Vec<&str> =
            ["get", "--json", "--trace", "log", "-o", "f"].iter().chain(options).copied().collect();
        let output = marline(home.path(), &args).env("MARLINE_LOG", "trace").output().unwrap();
        assert_success(&output);
        let log = std::fs::read(home.path().join("log")).unwrap();
        for text in [&output.stdout, &output.stderr, &log] {
            let text = String::from_utf8_lossy(text);
            assert!(
                !text.contains("pa:ss") && !text.contains("pa%3Ass") && !text.contains("bWU6cGE6c3M"),
                "{text}"
            );
        }
    }
    let output =
        marline(home.path(), &["get", "-q", &server.url("/auth/f")]).env("MARLINE_USER", "me:pa:ss").output();
    assert_success(&output.unwrap());
}

#[test]
fn a_refusal_by_the_server_ends_with_66_and_its_status() {
    let (home, server) = home_and_server();
    let output = marline(home.path(), &["get", "-q", &server.url("/absent")]).output().unwrap();
    assert_eq!(output.status.code(), Some(66));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("marline: {}: the server answers 404 (not found)\n", server.url("/absent")));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "a file was left behind");
}

#[test]
fn the_query_of_a_signed_url_is_shown_nowhere() {
    let (home, server) = home_and_server();
    for path in ["/f?X-Amz-Signature=5ecret", "/none?X-Amz-Signature=5ecret"] {
        for extra_args in [&[][..], &["--json"]] {
            let url = server.url(path);
            let args = [&["get", "--retry", "1", "-o", "f", &url][..], extra_args].concat();
            let output = marline(home.path(), &args).env("MARLINE_LOG", "trace").output().unwrap();
            for text in [output.stdout, output.stderr] {
                let text = String::from_utf8_lossy(&text).into_owned();
                assert!(
                    !text.contains("5ecret"),
                    "{args:?}: {}",
                    text.lines().find(|l| l.contains("5ecret")).unwrap()
                );
            }
        }
    }
}

#[test]
fn a_wrong_checksum_ends_with_65_and_a_right_one_with_0() {
    let (home, server) = home_and_server();
    let wrong = format!("sha256={}", "0".repeat(64));
    let output =
        marline(home.path(), &["get", "-o", "f", "--checksum", &wrong, &server.url("/f")]).output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("checksum mismatch"), "{stderr}");
    assert!(!home.path().join("f").exists());
    // The error message contains the right checksum.
    let got = stderr.split(" is ").nth(1).and_then(|remaining| remaining.split(',').next()).unwrap();
    let output =
        marline(home.path(), &["get", "-o", "f", "--checksum", &format!("sha256={got}"), &server.url("/f")])
            .output();
    assert_success(&output.unwrap());
}

#[test]
fn the_last_line_names_the_target_as_the_user_wrote_it() {
    let (home, server) = home_and_server();
    let made = Command::new("mkfifo").arg(home.path().join("pipe")).status().unwrap();
    assert!(made.success());
    std::fs::create_dir(home.path().join("dir")).unwrap();
    std::fs::write(home.path().join("old"), "old").unwrap();
    std::os::unix::fs::symlink("dir/aim", home.path().join("link")).unwrap();
    std::fs::write(home.path().join("dir/aim"), "old").unwrap();
    let absolute = home.path().join("g").display().to_string();
    let url = server.url("/f");
    let table: [(&[&str], &str); 9] = [
        (&[], "f"),
        // Now the file exists.
        (&[], "f"),
        (&["-o", "old"], "old"),
        (&["-o", "./dir/new"], "./dir/new"),
        (&["-o", "dir/"], "dir/f"),
        (&["-o", "link"], "link"),
        (&["-o", &absolute], &absolute),
        (&["-o", "/dev/null"], "/dev/null"),
        (&["-o", "pipe"], "pipe"),
    ];
    for (args, target) in table {
        let args: Vec<&str> = ["get", "--json", &url].iter().chain(args).copied().collect();
        let child = marline(home.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if target == "pipe" {
            assert!(std::fs::read(home.path().join("pipe")).unwrap() == file());
        }
        let output = child.wait_with_output().unwrap();
        assert_success(&output);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with(&format!("marline: {target}: 3.0MB in ")), "{args:?}: {last}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["path"], target, "{args:?}");
    }
    assert!(std::fs::read(home.path().join("dir/aim")).unwrap() == file(), "the symbolic link was not followed");
    let output = marline(home.path(), &["get", "-o", "-", &url]).output().unwrap();
    assert_success(&output);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.lines().last().unwrap().starts_with("marline: standard output: 3.0MB"), "{stderr}");
}

#[test]
fn resuming_is_announced_only_where_it_is_possible() {
    let (home, server) = home_and_paused_server();
    // Connections are never accepted, so no byte arrives.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_url = format!("http://{}/f", silent.local_addr().unwrap());
    for (url, target) in [(silent_url.as_str(), "f"), (&server.url("/f"), "-")] {
        let output =
            marline(home.path(), &["get", "-q", "--max-time", "400ms", "-o", target, url]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.ends_with("not complete within 0.4s; the same command starts from zero\n"), "{stderr}");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "no file may remain");
    }
    server.allow_bytes(2_000_000);
    let output = marline(home.path(), &["get", "-q", "--max-time", "400ms", "-o", "f", &server.url("/f")]).output();
    let stderr = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(stderr.ends_with("run the same command again to resume\n"), "{stderr}");
    assert!(home.path().join("f.part.journal").exists());
}

#[test]
fn the_first_failure_is_reported_at_once_and_once() {
    let home = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}/f");
    let output = marline(home.path(), &["get", "--retry", "3", "--max-time", "20s", &url]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(68), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines[0], format!("marline: link lo: {free}: connection refused; trying again"), "{stderr}");
    assert_eq!(stderr.matches("trying again").count(), 1, "{stderr}");
    assert_eq!(*lines.last().unwrap(), format!("marline: {url}: gave up: {free}: connection refused"));
    let output = marline(home.path(), &["get", "--retry", "0", &url]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        stderr,
        format!("marline: {url}: gave up: {free}: connection refused\n"),
        "without retries there is no notice about trying again"
    );
}

#[test]
fn a_failure_names_an_ignored_proxy_variable() {
    let home = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = marline(home.path(), &["get", "-q", "--retry", "0", &format!("http://{free}/f")]);
    let output = command.env("HTTP_PROXY", "http://me:secret@127.0.0.1:1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.ends_with("; HTTP_PROXY is set but ignored: set http_proxy in lower case, or use -x\n"),
        "{stderr}"
    );
    assert!(!stderr.contains("secret"), "{stderr}");
    let mut command = marline(home.path(), &["get", "-q", "--retry", "0", "-x", "", &format!("http://{free}/f")]);
    let output = command.env("HTTP_PROXY", "http://me:secret@127.0.0.1:1").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("marline: http://{free}/f: gave up: {free}: connection refused\n"), "with -x");
}

#[test]
fn a_link_option_for_a_url_on_this_machine_is_reported() {
    let (home, server) = home_and_server();
    let url = server.url("/f");
    for args in [&["--link", "nope0"][..], &["--limit-rate", "nope0=1Mbit/s"]] {
        let output = marline(home.path(), &[&["get", "-o", "f", &url], args].concat()).output().unwrap();
        assert_success(&output);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.starts_with("marline: link nope0: no such interface; the URL is on this machine"),
            "{stderr}"
        );
    }
    // The limit of the loopback interface applies: 3 MB in two seconds.
    let begun = std::time::Instant::now();
    let output = marline(home.path(), &["get", "-o", "f", "--limit-rate", "lo=12Mbit/s", &url]).output().unwrap();
    assert_success(&output);
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
}

#[test]
fn the_option_continue_does_no_harm() {
    let (home, server) = home_and_server();
    for option in ["-c", "--continue"] {
        let output = marline(home.path(), &["get", option, "-o", "f", "-q", &server.url("/f")]).output().unwrap();
        assert_success(&output);
        assert!(std::fs::read(home.path().join("f")).unwrap() == file());
    }
}

#[test]
fn ctrl_c_stops_with_130_and_the_same_command_resumes() {
    let (home, server) = home_and_paused_server();
    let slow = server.url("/f");
    let mut child = marline(home.path(), &["get", "-q", "-o", "f", &slow]).stderr(Stdio::piped()).spawn().unwrap();
    let part: PathBuf = home.path().join("f.part");
    let arrived = || std::fs::metadata(&part).map_or(0, |file| file.len());
    while arrived() < 1_000_000 {
        assert_eq!(child.try_wait().unwrap(), None, "the download ended before the signal");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_success(&Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).output().unwrap());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, "marline: stopped; run the same command again to resume\n");
    assert!(!home.path().join("f").exists());

    let earlier = server.requests().len();
    server.allow_bytes(u64::MAX);
    let output = marline(home.path(), &["get", "-q", "--json", "-o", "f", &slow]).output().unwrap();
    assert_success(&output);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["resumed_bytes"].as_u64().unwrap() > 0, "{report}");
    assert!(std::fs::read(home.path().join("f")).unwrap() == file());
    let was_requested_again = server.requests()[earlier..]
        .iter()
        .any(|request| request.range.as_ref().is_some_and(|range| range.start == 0));
    assert!(!was_requested_again, "the first bytes were requested again");
}

#[test]
fn the_time_limit_ends_with_1_and_the_next_run_completes() {
    let (home, server) = home_and_paused_server();
    let args = ["get", "-q", "-o", "f", "--max-time", "300ms", &server.url("/f")];
    let output = marline(home.path(), &args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not complete within 0.3s"));
    assert!(!home.path().join("f").exists());
    server.allow_bytes(u64::MAX);
    assert_success(&marline(home.path(), &["get", "-q", "-o", "f", &server.url("/f")]).output().unwrap());
    assert!(std::fs::read(home.path().join("f")).unwrap() == file());
}

#[test]
fn unwritable_targets_and_logs_are_reported() {
    let (home, server) = home_and_server();
    let url = server.url("/f");
    for (args, expected) in [
        (&["-o", "absent/f"][..], "the directory absent does not exist"),
        (&["-o", "f", "--trace", "absent/log"], "absent/log: the decision log cannot be written: No such file"),
    ] {
        let args: Vec<&str> = ["get", "-q"].iter().chain(args).copied().chain([url.as_str()]).collect();
        let output = marline(home.path(), &args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(74), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.matches('\n').count() == 1, "{args:?}: {stderr}");
    }
    assert!(!home.path().join("f").exists());
}

#[test]
fn an_existing_log_is_not_truncated_by_a_run_that_cannot_start() {
    let (home, server) = home_and_paused_server();
    let log = home.path().join("log");
    std::fs::write(&log, "precious\n").unwrap();
    let url = server.url("/f");
    let refused = |args: &[&str], expected: &str, code: i32| {
        let args = [&["get", "-q", "--trace"], args, &[&url]].concat();
        let output = marline(home.path(), &args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.matches('\n').count() == 1, "{args:?}: {stderr}");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "precious\n", "{args:?}");
    };
    refused(&["log", "-o", "absent/f"], "does not exist", 74);
    let slow = server.url("/f");
    let first = ["get", "-q", "-o", "f", "--trace", "first", &slow];
    let mut child = marline(home.path(), &first).stderr(Stdio::null()).spawn().unwrap();
    while std::fs::metadata(home.path().join("f.part")).map_or(0, |part| part.len()) < 1_000_000 {
        assert_eq!(child.try_wait().unwrap(), None, "the download ended too early");
        std::thread::sleep(Duration::from_millis(5));
    }
    refused(&["log", "-o", "f"], "another run of marline is downloading this file", 74);
    refused(&["first", "-o", "g"], "another run of marline writes this file", 74);
    server.allow_bytes(u64::MAX);
    assert!(child.wait().unwrap().success());
    assert_success(&marline(home.path(), &["replay", "first"]).output().unwrap());
    let mut left: Vec<_> =
        std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["f", "first", "log"]);
}

#[test]
fn a_log_that_is_the_download_itself_is_refused() {
    let (home, server) = home_and_server();
    std::fs::write(home.path().join("old"), "old").unwrap();
    std::fs::hard_link(home.path().join("old"), home.path().join("same")).unwrap();
    std::os::unix::fs::symlink("w.part", home.path().join("link")).unwrap();
    let url = server.url("/w");
    let trace_dir = home.path().join("w").display().to_string();
    for args in [
        &["--trace", "w"][..],
        &["--trace", "w", "-o", "./w"],
        &["--trace", &trace_dir],
        &["--trace", "w.part", "-o", "w"],
        &["--trace", "w.part.journal"],
        &["--trace", "link"],
        &["--trace", "same", "-o", "old"],
    ] {
        let output = marline(home.path(), &[&["get", "-q"], args, &[&url]].concat()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains("would overwrite the download"), "{args:?}: {stderr}");
    }
    let out = std::fs::File::create(home.path().join("out")).unwrap();
    let output =
        marline(home.path(), &["get", "-q", "--trace", "out", "-o", "-", &url]).stdout(out).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(std::fs::read(home.path().join("old")).unwrap(), b"old");
    assert!(!home.path().join("w").exists() && !home.path().join("w.part").exists());
}

#[test]
fn a_foreign_part_file_is_left_alone_and_a_failed_start_leaves_nothing() {
    let (home, server) = home_and_server();
    std::fs::write(home.path().join("f.part"), "precious").unwrap();
    let output = marline(home.path(), &["get", "-q", &server.url("/f")]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{stderr}");
    assert!(stderr.starts_with("marline: f.part: ") && stderr.contains("move it away"), "{stderr}");
    assert_eq!(std::fs::read(home.path().join("f.part")).unwrap(), b"precious");
    let output = marline(home.path(), &["get", "-q", "--trace", "absent/log", &server.url("/g")]).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert!(!home.path().join("g.part").exists());
}

#[test]
fn an_encoded_file_is_stored_encoded_and_that_is_reported() {
    let (home, server) = home_and_server();
    let output = marline(home.path(), &["get", &server.url("/gzip/f.tgz")]).output().unwrap();
    assert_success(&output);
    assert!(std::fs::read(home.path().join("f.tgz")).unwrap() == file());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.matches("encoded (x-gzip)").count(), 1, "{stderr}");
}

#[test]
fn a_file_is_not_written_to_a_terminal() {
    let (home, server) = home_and_server();
    let command = format!("{} get -q -o - {}", env!("CARGO_BIN_EXE_marline"), server.url("/f"));
    let ran = Command::new("script").args(["-qec", &command, "/dev/null"]).current_dir(home.path()).output();
    let Ok(output) = ran else { return eprintln!("skipped: the program script is not installed") };
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(64), "{stdout}");
    assert!(stdout.contains("standard output is a terminal") && server.requests().is_empty(), "{stdout}");
}

#[test]
fn an_unreadable_configuration_is_reported_and_fatal_only_if_named() {
    let (home, server) = home_and_server();
    // A directory cannot be read as a file, even by root.
    std::fs::create_dir_all(home.path().join(".config/marline/marline.toml")).unwrap();
    let output = marline(home.path(), &["get", "-q", &server.url("/f")]).output().unwrap();
    assert_success(&output);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("cannot be read; continuing without it") && stderr.matches('\n').count() == 1,
        "{stderr}"
    );
    let output = marline(home.path(), &["get", "--config", ".config", &server.url("/f")]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn a_closed_standard_output_is_an_error() {
    let (home, server) = home_and_server();
    let command = |to: &str| {
        let script = format!("exec \"$0\" get -q -o - \"$1\" {to}");
        let program = env!("CARGO_BIN_EXE_marline");
        Command::new("sh")
            .args(["-c", &script, program, &server.url("/f")])
            .current_dir(home.path())
            .output()
            .unwrap()
    };
    let output = command(">&-");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{stderr}");
    assert!(stderr.starts_with("marline: standard output: opening failed: Bad file descriptor"), "{stderr}");
    assert_success(&command("> /dev/null"));
    assert_success(&command("<> /dev/null 1<&0"));
}
