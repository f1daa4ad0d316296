//! End-to-end tests of `marline get` with several files and mirrors: the built program against servers on the loopback interface.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::program::{assert_success, marline};
use crate::server::{Request, Resource, Response, Server};

const SIZE: usize = 1_500_000;

/// A file, determined by the seed. All files have the same ETag.
fn file(seed: u64, len: usize) -> Resource {
    Resource::other(len, seed).with("ETag", "\"same\"")
}

/// Files that differ in their seeds only.
fn files(count: u64, len: usize) -> Vec<Resource> {
    (0..count).map(|seed| file(seed, len)).collect()
}

fn sha256(file: &Resource) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(&*file.data))
}

/// The responses of a server with these files. The status of other paths is 404.
fn by_path<'a>(
    files: impl IntoIterator<Item = (&'a str, &'a Resource)>,
) -> impl Fn(&Request) -> Response + Send + Sync + 'static {
    let files: BTreeMap<String, Resource> =
        files.into_iter().map(|(path, file)| (path.to_owned(), file.clone())).collect();
    move |request| files.get(&request.path).map_or_else(|| Response::status(404), |file| file.respond(request))
}

fn server_of<'a>(files: impl IntoIterator<Item = (&'a str, &'a Resource)>) -> Server {
    Server::start(by_path(files))
}

/// A server of one file. The status of the paths `/401`, `/500` and `/503` is in their name.
fn start_with_errors(path: &str, file: &Resource) -> Server {
    let respond = by_path([(path, file)]);
    Server::start(move |request| match request.path.as_str() {
        "/401" => Response::status(401),
        "/500" => Response::status(500),
        "/503" => Response::status(503),
        _ => respond(request),
    })
}

fn get(home: &TempDir, args: &[&str]) -> Output {
    let args: Vec<&str> = ["get"].iter().chain(args).copied().collect();
    marline(home.path(), &args).output().unwrap()
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The objects that `--json` printed, by the last segment of their URLs.
fn objects(output: &Output) -> BTreeMap<String, Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let object = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    let name = |value: &Value| value["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    text.lines().map(object).map(|value| (name(&value), value)).collect()
}

fn file_names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

fn assert_file(home: &TempDir, name: &str, expected: &Resource) {
    assert!(std::fs::read(home.path().join(name)).unwrap() == *expected.data, "{name} has other bytes");
}

#[test]
fn several_urls_are_several_files_even_with_equal_lengths_and_etags() {
    let parts = files(3, SIZE);
    let server = server_of([("/b.7z.001", &parts[0]), ("/b.7z.002", &parts[1]), ("/b.7z.003", &parts[2])]);
    let urls = ["/b.7z.001", "/b.7z.002", "/b.7z.003"].map(|path| server.url(path));
    for json in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let mut args = vec!["-q"];
        args.extend(json.then_some("--json"));
        args.extend(urls.iter().map(String::as_str));
        let output = get(&home, &args);
        assert_success(&output);
        assert_eq!(stderr_of(&output), "");
        for (n, part) in parts.iter().enumerate() {
            assert_file(&home, &format!("b.7z.00{}", n + 1), part);
        }
        assert_eq!(file_names(home.path()), ["b.7z.001", "b.7z.002", "b.7z.003"]);
        if json {
            let objects = objects(&output);
            assert_eq!(objects.len(), 3);
            for (name, object) in &objects {
                assert_eq!((&object["schema"], &object["bytes"]), (&1.into(), &SIZE.into()), "{object}");
                assert_eq!(object["path"], name.as_str());
                assert!(object.get("error").is_none());
            }
        }
    }
}

#[test]
fn a_failed_file_has_a_json_object_and_the_worst_exit_code_counts() {
    let body = file(1, 10_000);
    let server = start_with_errors("/good", &body);
    let home = tempfile::tempdir().unwrap();
    let url = |path: &str| server.url(path);
    let (good, gone, busy) = (url("/good"), url("/gone"), url("/500"));
    let output = get(&home, &["--json", "--retry", "0", &busy, &good, &gone]);
    assert_eq!(output.status.code(), Some(66), "{}", stderr_of(&output));
    assert_file(&home, "good", &body);
    assert_eq!(file_names(home.path()), ["good"]);
    let objects = objects(&output);
    assert_eq!(objects["good"]["bytes"], 10_000);
    for (name, kind, code, status) in [("gone", "http4xx", 66, "404 (not found)"), ("500", "http5xx", 75, "500 (")]
    {
        let object = &objects[name];
        assert_eq!((&object["kind"], &object["exit_code"]), (&kind.into(), &code.into()), "{object}");
        assert!(object["error"].as_str().unwrap().contains(status), "{object}");
        assert_eq!(object["schema"], 1);
        let line = format!("{}/{name}: the server answers {status}", server.url(""));
        assert!(stderr_of(&output).contains(&line), "{}", stderr_of(&output));
    }
    assert!(
        !stderr_of(&output).contains("where others deliver") && !stderr_of(&output).contains("link lo: not used"),
        "{}",
        stderr_of(&output)
    );
    assert!(
        stderr_of(&output).ends_with("marline: 2 of 3 files could not be downloaded\n"),
        "{}",
        stderr_of(&output)
    );
    // A single failed file has an object as well.
    let output = get(&home, &["--json", "-q", &gone]);
    assert_eq!(
        (output.status.code(), stderr_of(&output)),
        (Some(66), format!("marline: {gone}: the server answers 404 (not found)\n"))
    );
    assert_eq!(self::objects(&output)["gone"]["exit_code"], 66);
}

#[test]
fn kinds_of_failures_have_their_exit_codes() {
    let body = file(1, 10_000);
    let server = start_with_errors("/f", &body);
    let home = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = format!("http://{free}/f");
    let wrong = format!("sha256={}", "0".repeat(64));
    let (f, login, busy) = (server.url("/f"), server.url("/401"), server.url("/503"));
    for (args, code) in [
        (&["--retry", "0", login.as_str()][..], 66),
        (&["--retry", "0", &busy], 75),
        (&["--retry", "0", &refused], 68),
        (&["--checksum", &wrong, "-o", "x", &f], 65),
        (&["-o", "absent/f", &f], 74),
        (&["-o", "f", &f, &f], 64),
        (&["-o", "-", &f, &f], 64),
        (&["--link", "nope0", "http://192.0.2.1/f"], 69),
        (&["--max-time", "200ms", "--retry", "99", &busy], 1),
    ] {
        let args: Vec<&str> = ["-q", "--json"].iter().chain(args).copied().collect();
        let output = get(&home, &args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr_of(&output));
        if code != 64 {
            let object: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(object["exit_code"], code, "{args:?}: {object}");
        }
    }
}

#[test]
fn equal_names_get_numbers_in_the_order_of_the_list_and_keep_them() {
    let files: Vec<Resource> = (0..6).map(|n| file(n, 20_000 + n as usize)).collect();
    let paths = ["/a/f", "/b/f", "/c/f", "/dl?3", "/dl?4", "/dl?5"];
    let respond = by_path(paths.into_iter().zip(&files));
    let server = Server::start(move |request| {
        let response = respond(request);
        match request.path.as_str() {
            // The first file arrives last.
            "/a/f" => response.slowly(1000, Duration::from_millis(50)),
            path if path.starts_with("/dl") => {
                response.with("Content-Disposition", "attachment; filename=\"report.pdf\"")
            }
            _ => response,
        }
    });
    let home = tempfile::tempdir().unwrap();
    let urls = paths.map(|path| server.url(path));
    let mut args = vec!["-q", "-d", "new/dir", "-j", "6"];
    args.extend(urls.iter().map(String::as_str));
    let names = ["f", "f.1", "f.2", "report.pdf", "report.pdf.1", "report.pdf.2"];
    assert_success(&get(&home, &args));
    for (name, file) in names.iter().zip(&files) {
        assert_file(&home, &format!("new/dir/{name}"), file);
    }
    assert_eq!(file_names(&home.path().join("new/dir")), names);
}

#[test]
fn without_a_digest_two_sources_are_never_mixed() {
    let (one, other) = (file(1, SIZE), file(2, SIZE));
    let (first, second) = (server_of([("/f", &one)]), server_of([("/g", &other)]));
    let home = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        assert_success(&get(&home, &["-q", "-o", "f", "--mirror", &second.url("/g"), &first.url("/f")]));
        assert_file(&home, "f", &one);
    }
    assert!(second.requests().is_empty(), "the mirror was used without a digest");
    // The first source lacks the file: the whole file comes from the mirror, and a line reports that.
    let output = get(&home, &["-o", "f", "--mirror", &second.url("/g"), &first.url("/absent")]);
    assert_success(&output);
    assert_file(&home, "f", &other);
    let line = format!("the whole file is fetched from {} instead", second.url("/g"));
    assert!(stderr_of(&output).contains(&line), "{}", stderr_of(&output));
}

#[test]
fn a_digest_catches_a_source_with_another_file() {
    let (one, other) = (file(1, SIZE), file(2, SIZE));
    let (good, bad) = (server_of([("/f", &one)]), server_of([("/f", &other)]));
    let home = tempfile::tempdir().unwrap();
    let checksum = format!("sha256={}", sha256(&one));
    // The wrong source first: its file is fetched and does not match, and the other source is used.
    let args = ["--checksum", &checksum, "-o", "f", "--mirror", &good.url("/f"), &bad.url("/f")];
    let output = get(&home, &args);
    assert_success(&output);
    assert_file(&home, "f", &one);
    assert!(stderr_of(&output).contains("do not match their digest"), "{}", stderr_of(&output));
    // Two wrong sources.
    let output =
        get(&home, &["-q", "--checksum", &checksum, "-o", "g", "--mirror", &bad.url("/f"), &bad.url("/f")]);
    assert_eq!(output.status.code(), Some(65), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("checksum mismatch"), "{}", stderr_of(&output));
    assert!(!home.path().join("g").exists());
}

#[test]
fn a_list_is_read_with_its_options() {
    let files = files(4, 30_000);
    let server = server_of([("/0", &files[0]), ("/1", &files[1]), ("/2", &files[2]), ("/3", &files[3])]);
    let home = tempfile::tempdir().unwrap();
    let url = |path| server.url(path);
    let list = format!(
        "# my files\n{}\n  out=zero.bin\n{}\n  dir=sub\n  checksum=sha-256={}\n{}\t{}\n\n",
        url("/0"),
        url("/1"),
        sha256(&files[1]),
        url("/absent"),
        url("/2")
    );
    std::fs::write(home.path().join("list"), &list).unwrap();
    assert_success(&get(&home, &["-q", "-i", "list", &url("/3")]));
    for (name, n) in [("zero.bin", 0), ("sub/1", 1), ("absent", 2), ("3", 3)] {
        assert_file(&home, name, &files[n]);
    }
    // From standard input.
    let home = tempfile::tempdir().unwrap();
    let mut child = marline(home.path(), &["get", "-q", "-i", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_file(&home, "zero.bin", &files[0]);
    // Errors are reported with their line, and nothing is fetched.
    for (text, expected) in [
        (format!("{}\n  split=4\n", url("/0")), "list: line 2: unknown option `split`"),
        (format!("{}\n  out=../x\n", url("/0")), "line 2: out=../x is not a file below the directory"),
        (String::new(), "the list has no URL"),
    ] {
        std::fs::write(home.path().join("list"), text).unwrap();
        let output = get(&home, &["-i", "list"]);
        assert_eq!(output.status.code(), Some(64));
        assert!(stderr_of(&output).contains(expected), "{}", stderr_of(&output));
    }
}

#[test]
fn files_that_an_earlier_run_has_completed_are_not_fetched_again() {
    let (one, two) = (file(1, 300_000), file(2, 200_000));
    let origin = server_of([("/one", &one), ("/two", &two)]);
    let home = tempfile::tempdir().unwrap();
    let text = format!("{}\n  out=a.bin\n{}\n", origin.url("/one"), origin.url("/two"));
    std::fs::write(home.path().join("list"), text).unwrap();
    let run = || {
        let output = get(&home, &["-i", "list", "--json"]);
        assert_success(&output);
        let objects = objects(&output);
        let resumed = |path: &str| objects[path]["resumed_bytes"].as_u64().unwrap();
        (resumed("one"), resumed("two"), stderr_of(&output))
    };
    let (first, second, _) = run();
    assert_eq!((first, second), (0, 0));
    let (first, second, text) = run();
    assert_eq!((first, second), (300_000, 200_000), "{text}");
    assert!(text.contains("already completed by an earlier run, and unchanged"), "{text}");
    assert_file(&home, "a.bin", &one);
    assert_file(&home, "two", &two);
    // A file that was changed since is fetched again: one whose name comes from the list is kept and gets a sibling, others are replaced.
    for name in ["a.bin", "two"] {
        std::fs::write(home.path().join(name), "changed").unwrap();
    }
    let (first, second, _) = run();
    assert_eq!((first, second), (0, 0));
    assert_eq!(std::fs::read(home.path().join("a.bin")).unwrap(), b"changed");
    assert_file(&home, "a.bin.1", &one);
    assert_file(&home, "two", &two);
    let (first, second, _) = run();
    assert_eq!((first, second), (300_000, 200_000));
    assert_eq!(file_names(home.path()).len(), 4, "{:?}", file_names(home.path()));
}

#[test]
fn a_small_file_does_not_wait_for_a_large_one() {
    let (large, small) = (file(1, 4_000_000), file(2, 200_000));
    let server = server_of([("/large", &large), ("/small", &small)]);
    let home = tempfile::tempdir().unwrap();
    let args = ["-q", "--json", "--limit-rate", "8Mbit/s", &server.url("/large"), &server.url("/small")];
    let output = get(&home, &args);
    assert_success(&output);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.lines().next().unwrap().contains("/small"), "{text}");
    let seconds = |name: &str| objects(&output)[name]["seconds"].as_f64().unwrap();
    // Both files share the limit: 4.2 MB at 1 MB/s.
    assert!(seconds("large") > 3.5, "{text}");
    assert!(seconds("small") < seconds("large") / 2.0, "{text}");
    assert_file(&home, "large", &large);
    assert_file(&home, "small", &small);
}

#[test]
fn one_connection_serves_many_small_files() {
    let files = files(24, 5_000);
    let paths: Vec<String> = (0..24).map(|n| format!("/{n:02}")).collect();
    let server = server_of(paths.iter().map(String::as_str).zip(&files));
    let home = tempfile::tempdir().unwrap();
    let urls: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
    let mut args = vec!["-q", "--json"];
    args.extend(urls.iter().map(String::as_str));
    let output = get(&home, &args);
    assert_success(&output);
    for (path, file) in paths.iter().zip(&files) {
        assert_file(&home, &path[1..], file);
    }
    let all = objects(&output);
    assert_eq!(all.len(), 24);
    let requests = server.requests().len();
    assert!(requests <= 24 * 2, "{requests} requests");
}

#[test]
fn a_cookie_set_with_one_file_is_sent_for_the_next_files_of_its_host() {
    let body = file(1, 5_000);
    let first = body.clone().with("Set-Cookie", "s=1; Path=/");
    let server = server_of([("/first", &first), ("/second", &body), ("/third", &body)]);
    let home = tempfile::tempdir().unwrap();
    let other = server.url("/third").replace("127.0.0.1", "localhost");
    assert_success(&get(&home, &["-q", "-j", "1", &server.url("/first"), &server.url("/second"), &other]));
    let requests = server.requests();
    let sent = |path: &str| {
        let mut requests = requests.iter().filter(|request| request.path == path);
        requests.any(|request| request.field("Cookie").is_some_and(|cookies| cookies.contains("s=1")))
    };
    assert_eq!(["/first", "/second", "/third"].map(sent), [false, true, false], "{requests:#?}");
}

#[test]
fn logs_of_several_files_replay() {
    let files = files(2, SIZE);
    let server = server_of([("/0", &files[0]), ("/1", &files[1])]);
    let home = tempfile::tempdir().unwrap();
    let (a, b) = (server.url("/0"), server.url("/1"));
    let output = get(&home, &["-q", "--trace", "log", &a, &b]);
    assert_eq!((output.status.code(), stderr_of(&output).contains("name a directory")), (Some(64), true));
    assert_success(&get(&home, &["-q", "--trace", "logs/", &a, &b]));
    for n in [1, 2] {
        let output = marline(home.path(), &["replay", &format!("logs/{n}.ndjson")]).output().unwrap();
        assert_success(&output);
        assert!(output.stdout.starts_with(b"equal: "));
    }
}

#[test]
fn fields_and_logins_for_one_origin_are_not_sent_to_another() {
    let body = file(1, 10_000);
    let (home_server, other) = (server_of([("/f", &body)]), server_of([("/f", &body)]));
    let home = tempfile::tempdir().unwrap();
    let fields = ["-H", "X-Token: secret", "-H", "Cookie: id=1", "--user", "me:pass"];
    let args: Vec<&str> = ["-q", "-d", "x"].iter().chain(&fields).copied().collect();
    let (a, b) = (home_server.url("/f"), other.url("/f"));
    assert_success(&get(&home, &[&args[..], &[&a, &b]].concat()));
    let has_field =
        |server: &Server, name: &str| server.requests().iter().any(|request| request.field(name).is_some());
    for name in ["X-Token", "Cookie", "Authorization"] {
        assert!(has_field(&home_server, name), "{name}");
    }
    assert!(!has_field(&other, "Cookie") && !has_field(&other, "Authorization"), "{:?}", other.requests());
}
