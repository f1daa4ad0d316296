//! End-to-end tests of `marline get` with several files and mirrors: the built program against servers on the loopback interface.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const SIZE: usize = 1_500_000;

/// Pseudo-random bytes determined by the seed.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

/// The response of a path of the server.
#[derive(Clone)]
enum Page {
    /// A file with ranges, the ETag `"same"`, and these further header fields.
    File(Arc<Vec<u8>>, &'static str),
    Status(u16),
    /// A file sent at this many bytes per second on each connection.
    Slow(Arc<Vec<u8>>, usize),
}

struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(pages: impl IntoIterator<Item = (&'static str, Page)>) -> Self {
        let pages: BTreeMap<&str, Page> = pages.into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heads, pages) = (listener.local_addr().unwrap(), Arc::default(), Arc::new(pages));
        let seen: Arc<Mutex<Vec<String>>> = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (pages, seen) = (Arc::clone(&pages), Arc::clone(&seen));
                // An I/O error, such as a client that disconnects, ends only this thread.
                std::thread::spawn(move || drop(serve(stream, &pages, &seen)));
            }
        });
        Self { address, heads }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, pages: &BTreeMap<&str, Page>, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        seen.lock().unwrap().push(head.clone());
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let (body, fields, rate) = match pages.get(path.as_str()) {
            None => (None, "404", usize::MAX),
            Some(Page::Status(status)) => {
                write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            Some(Page::File(body, fields)) => (Some(body), *fields, usize::MAX),
            Some(Page::Slow(body, rate)) => (Some(body), "", *rate),
        };
        let Some(body) = body else {
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let range = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let (first, last) = range.as_deref().and_then(|range| range.split_once('-')).unwrap_or(("0", ""));
        let first: usize = first.parse().unwrap_or(0);
        let last = last.parse().unwrap_or(usize::MAX).min(body.len().max(1) - 1);
        let part = &body[first.min(body.len())..(last + 1).min(body.len())];
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nETag: \"same\"\r\n{fields}Content-Length: {}\r\nContent-Range: bytes {first}-{last}/{}\r\n\r\n",
            part.len(),
            body.len()
        )?;
        for piece in part.chunks(16_384) {
            stream.write_all(piece)?;
            if rate < usize::MAX {
                std::thread::sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64));
            }
        }
    }
}

fn plain(body: &Arc<Vec<u8>>) -> Page {
    Page::File(Arc::clone(body), "")
}

fn marline(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
    command.args(args).env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.current_dir(home.path()).stdin(Stdio::null());
    command
}

fn get(home: &TempDir, args: &[&str]) -> Output {
    let args: Vec<&str> = ["get"].iter().chain(args).copied().collect();
    marline(home, &args).output().unwrap()
}

fn succeeded(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
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

fn assert_file(home: &TempDir, name: &str, body: &[u8]) {
    assert!(std::fs::read(home.path().join(name)).unwrap() == body, "{name} has other bytes");
}

#[test]
fn several_urls_are_several_files_even_with_equal_lengths_and_etags() {
    let parts: Vec<Arc<Vec<u8>>> = (1..=3).map(|n| Arc::new(bytes(n, SIZE))).collect();
    let server = Server::start([
        ("/b.7z.001", plain(&parts[0])),
        ("/b.7z.002", plain(&parts[1])),
        ("/b.7z.003", plain(&parts[2])),
    ]);
    let urls = ["/b.7z.001", "/b.7z.002", "/b.7z.003"].map(|path| server.url(path));
    for json in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let mut args = vec!["-q"];
        args.extend(json.then_some("--json"));
        args.extend(urls.iter().map(String::as_str));
        let output = get(&home, &args);
        succeeded(&output);
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
    let body = Arc::new(bytes(1, 10_000));
    let server =
        Server::start([("/good", plain(&body)), ("/gone", Page::Status(404)), ("/busy", Page::Status(500))]);
    let home = tempfile::tempdir().unwrap();
    let url = |path: &str| server.url(path);
    let (good, gone, busy) = (url("/good"), url("/gone"), url("/busy"));
    let output = get(&home, &["--json", "--retry", "0", &busy, &good, &gone]);
    assert_eq!(output.status.code(), Some(66), "{}", stderr_of(&output));
    assert_file(&home, "good", &body);
    assert_eq!(file_names(home.path()), ["good"]);
    let objects = objects(&output);
    assert_eq!(objects["good"]["bytes"], 10_000);
    for (name, kind, code, status) in [("gone", "http4xx", 66, "404 (not found)"), ("busy", "http5xx", 75, "500 (")]
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
    let body = Arc::new(bytes(1, 10_000));
    let server = Server::start([("/f", plain(&body)), ("/401", Page::Status(401)), ("/503", Page::Status(503))]);
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
    let files: Vec<Arc<Vec<u8>>> = (0..6).map(|n| Arc::new(bytes(n, 20_000 + n as usize))).collect();
    let named = "Content-Disposition: attachment; filename=\"report.pdf\"\r\n";
    let named = |n: usize| Page::File(Arc::clone(&files[n]), named);
    let server = Server::start([
        // The first file arrives last.
        ("/a/f", Page::Slow(Arc::clone(&files[0]), 20_000)),
        ("/b/f", plain(&files[1])),
        ("/c/f", plain(&files[2])),
        ("/dl?3", named(3)),
        ("/dl?4", named(4)),
        ("/dl?5", named(5)),
    ]);
    let home = tempfile::tempdir().unwrap();
    let urls = ["/a/f", "/b/f", "/c/f", "/dl?3", "/dl?4", "/dl?5"].map(|path| server.url(path));
    let mut args = vec!["-q", "-d", "new/dir", "-j", "6"];
    args.extend(urls.iter().map(String::as_str));
    let names = ["f", "f.1", "f.2", "report.pdf", "report.pdf.1", "report.pdf.2"];
    succeeded(&get(&home, &args));
    for (name, file) in names.iter().zip(&files) {
        assert_file(&home, &format!("new/dir/{name}"), file);
    }
    assert_eq!(file_names(&home.path().join("new/dir")), names);
}

#[test]
fn without_a_digest_two_sources_are_never_mixed() {
    let (one, other) = (Arc::new(bytes(1, SIZE)), Arc::new(bytes(2, SIZE)));
    let (first, second) = (Server::start([("/f", plain(&one))]), Server::start([("/g", plain(&other))]));
    let home = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        succeeded(&get(&home, &["-q", "-o", "f", "--mirror", &second.url("/g"), &first.url("/f")]));
        assert_file(&home, "f", &one);
    }
    assert!(second.heads().is_empty(), "the mirror was used without a digest");
    // The first source lacks the file: the whole file comes from the mirror, and a line reports that.
    let output = get(&home, &["-o", "f", "--mirror", &second.url("/g"), &first.url("/absent")]);
    succeeded(&output);
    assert_file(&home, "f", &other);
    let line = format!("the whole file is fetched from {} instead", second.url("/g"));
    assert!(stderr_of(&output).contains(&line), "{}", stderr_of(&output));
}

#[test]
fn a_digest_catches_a_source_with_another_file() {
    let (one, other) = (Arc::new(bytes(1, SIZE)), Arc::new(bytes(2, SIZE)));
    let (good, bad) = (Server::start([("/f", plain(&one))]), Server::start([("/f", plain(&other))]));
    let home = tempfile::tempdir().unwrap();
    let checksum = format!("sha256={}", sha256(&one));
    // The wrong source first: its file is fetched and does not match, and the other source is used.
    let args = ["--checksum", &checksum, "-o", "f", "--mirror", &good.url("/f"), &bad.url("/f")];
    let output = get(&home, &args);
    succeeded(&output);
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
    let files: Vec<Arc<Vec<u8>>> = (0..4).map(|n| Arc::new(bytes(n, 30_000))).collect();
    let server = Server::start([
        ("/0", plain(&files[0])),
        ("/1", plain(&files[1])),
        ("/2", plain(&files[2])),
        ("/3", plain(&files[3])),
    ]);
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
    succeeded(&get(&home, &["-q", "-i", "list", &url("/3")]));
    for (name, n) in [("zero.bin", 0), ("sub/1", 1), ("absent", 2), ("3", 3)] {
        assert_file(&home, name, &files[n]);
    }
    // From standard input.
    let home = tempfile::tempdir().unwrap();
    let mut child = marline(&home, &["get", "-q", "-i", "-"]).stdin(Stdio::piped()).spawn().unwrap();
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
    let (one, two) = (Arc::new(bytes(1, 300_000)), Arc::new(bytes(2, 200_000)));
    let origin = Server::start([("/one", plain(&one)), ("/two", plain(&two))]);
    let home = tempfile::tempdir().unwrap();
    let text = format!("{}\n  out=a.bin\n{}\n", origin.url("/one"), origin.url("/two"));
    std::fs::write(home.path().join("list"), text).unwrap();
    let run = || {
        let output = get(&home, &["-i", "list", "--json"]);
        succeeded(&output);
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
    assert_file(&home, "a.bin", b"changed");
    assert_file(&home, "a.bin.1", &one);
    assert_file(&home, "two", &two);
    let (first, second, _) = run();
    assert_eq!((first, second), (300_000, 200_000));
    assert_eq!(file_names(home.path()).len(), 4, "{:?}", file_names(home.path()));
}

#[test]
fn a_small_file_does_not_wait_for_a_large_one() {
    let (large, small) = (Arc::new(bytes(1, 4_000_000)), Arc::new(bytes(2, 200_000)));
    let server = Server::start([("/large", plain(&large)), ("/small", plain(&small))]);
    let home = tempfile::tempdir().unwrap();
    let args = ["-q", "--json", "--limit-rate", "8Mbit/s", &server.url("/large"), &server.url("/small")];
    let output = get(&home, &args);
    succeeded(&output);
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
    let files: Vec<Arc<Vec<u8>>> = (0..24).map(|n| Arc::new(bytes(n, 5_000))).collect();
    let paths: Vec<&'static str> = (0..24).map(|n| &*format!("/{n:02}").leak()).collect();
    let server = Server::start(paths.iter().zip(&files).map(|(path, file)| (*path, plain(file))));
    let home = tempfile::tempdir().unwrap();
    let urls: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
    let mut args = vec!["-q", "--json"];
    args.extend(urls.iter().map(String::as_str));
    let output = get(&home, &args);
    succeeded(&output);
    for (path, file) in paths.iter().zip(&files) {
        assert_file(&home, &path[1..], file);
    }
    let all = objects(&output);
    assert_eq!(all.len(), 24);
    let requests = server.heads().len();
    assert!(requests <= 24 * 2, "{requests} requests");
}

#[test]
fn a_cookie_set_with_one_file_is_sent_for_the_next_files_of_its_host() {
    let body = Arc::new(bytes(1, 5_000));
    let first = Page::File(Arc::clone(&body), "Set-Cookie: s=1; Path=/\r\n");
    let server = Server::start([("/first", first), ("/second", plain(&body)), ("/third", plain(&body))]);
    let home = tempfile::tempdir().unwrap();
    let other = server.url("/third").replace("127.0.0.1", "localhost");
    succeeded(&get(&home, &["-q", "-j", "1", &server.url("/first"), &server.url("/second"), &other]));
    let heads = server.heads();
    let sent = |path: &str| {
        let mut heads = heads.iter().filter(|head| head.starts_with(&format!("GET {path} ")));
        heads.any(|head| head.to_ascii_lowercase().contains("cookie: s=1"))
    };
    assert_eq!(["/first", "/second", "/third"].map(sent), [false, true, false], "{heads:#?}");
}

#[test]
fn logs_of_several_files_replay() {
    let files: Vec<Arc<Vec<u8>>> = (0..2).map(|n| Arc::new(bytes(n, SIZE))).collect();
    let server = Server::start([("/0", plain(&files[0])), ("/1", plain(&files[1]))]);
    let home = tempfile::tempdir().unwrap();
    let (a, b) = (server.url("/0"), server.url("/1"));
    let output = get(&home, &["-q", "--trace", "log", &a, &b]);
    assert_eq!((output.status.code(), stderr_of(&output).contains("name a directory")), (Some(64), true));
    succeeded(&get(&home, &["-q", "--trace", "logs/", &a, &b]));
    for n in [1, 2] {
        let output = marline(&home, &["replay", &format!("logs/{n}.ndjson")]).output().unwrap();
        succeeded(&output);
        assert!(output.stdout.starts_with(b"equal: "));
    }
}

#[test]
fn fields_and_logins_for_one_origin_are_not_sent_to_another() {
    let body = Arc::new(bytes(1, 10_000));
    let (home_server, other) = (Server::start([("/f", plain(&body))]), Server::start([("/f", plain(&body))]));
    let home = tempfile::tempdir().unwrap();
    let fields = ["-H", "X-Token: secret", "-H", "Cookie: id=1", "--user", "me:pass"];
    let args: Vec<&str> = ["-q", "-d", "x"].iter().chain(&fields).copied().collect();
    let (a, b) = (home_server.url("/f"), other.url("/f"));
    succeeded(&get(&home, &[&args[..], &[&a, &b]].concat()));
    let has_header =
        |server: &Server, text: &str| server.heads().iter().any(|head| head.to_lowercase().contains(text));
    for text in ["x-token", "cookie", "authorization"] {
        assert!(has_header(&home_server, text), "{text}");
    }
    assert!(!has_header(&other, "cookie") && !has_header(&other, "authorization"), "{:?}", other.heads());
}
