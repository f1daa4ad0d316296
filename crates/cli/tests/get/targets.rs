//! Targets of downloads: files that cannot be written, full disks, streams, checksums, rate limits.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::{Ended, Program, Running, digest};
use crate::server::{Request, Resource, Response, Server, Step};

const SIZE: usize = 6_000_000;

#[test]
fn a_file_is_kept_only_if_its_checksum_matches() {
    let resource = Resource::new(SIZE);
    let url = Server::honest(&resource).url("/file");
    for (name, program) in [("sha256", "sha256sum"), ("sha512", "sha512sum")] {
        let right = format!("{name}={}", digest(program, &resource.data));
        let wrong = format!("{name}={}", digest(program, b"another file"));
        let program = Program::new();
        program.run(&[&url, "-o", "out", "--json", "--checksum", &right]).report();
        assert!(program.file("out").unwrap() == *resource.data);
        let program = Program::new();
        let line = program.refused(&[&url, "--checksum", &wrong], 65);
        assert!(line.contains(&format!("checksum mismatch: {name} is ")), "{line}");
        // The next run uses none of the rejected bytes.
        program.run(&[&url, "-o", "out", "--json", "--checksum", &right]).report();
        assert!(program.file("out").unwrap() == *resource.data);
    }
}

#[test]
fn an_existing_file_is_replaced_only_by_a_complete_one() {
    let resource = Resource::new(SIZE);
    let program = Program::new();
    fs::write(program.path("out"), "old").unwrap();
    let server = Server::honest(&resource).limit_rate(1_000_000);
    let ended = program.run(&[&server.url("/file"), "-o", "out", "--max-time", "500ms"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(program.file("out").unwrap(), b"old");
    let server = server.limit_rate(0);
    program.get(&server.url("/file")).report();
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn an_unwritable_target_is_reported_before_any_request() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource);
    let url = server.url("/file");
    let program = Program::new();
    let fails = |to: &str| {
        let ended = program.run(&[&url, "-o", to, "-q"]);
        assert_eq!(ended.code, Some(74), "{to}: {}", ended.err);
        assert_eq!(ended.err.matches('\n').count(), 1, "{to}: {}", ended.err);
        ended.err
    };
    let stderr = fails("absent/out");
    assert!(stderr.contains("absent/out: the directory absent does not exist"), "{stderr}");
    fs::write(program.path("plain"), "").unwrap();
    assert!(fails("plain/out").contains("plain/out"));
    assert!(fails(&"n".repeat(300)).contains("too long"));
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_read_only_directory_is_reported() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource);
    // Root may write anywhere, so the program runs as another user.
    let root = rustix::process::geteuid().is_root();
    let unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"].map(str::to_owned);
    let mut program = Program::new().without_log();
    if root {
        program = program.with_prefix(unprivileged);
    }
    fs::set_permissions(program.dir(), Permissions::from_mode(0o555)).unwrap();
    let line = program.refused(&[&server.url("/file")], 74);
    fs::set_permissions(program.dir(), Permissions::from_mode(0o755)).unwrap();
    assert!(line.contains("cannot be written: Permission denied"), "{line}");
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_full_disk_is_detected_before_the_first_byte_is_written() {
    let Some(program) = small_disk("size=2m") else { return };
    let server = Server::honest(&Resource::new(SIZE));
    let ended = program.run(&[&server.url("/file"), "-o", "small/out", "-q"]);
    assert_eq!(ended.code, Some(74), "{}", ended.err);
    assert!(ended.err.contains("disk full: small/out needs "), "{}", ended.err);
    assert_eq!(ended.err.matches('\n').count(), 1, "{}", ended.err);
}

#[test]
fn a_disk_that_fills_during_the_download_is_reported() {
    let Some(program) = small_disk("size=2m") else { return };
    let resource = Resource::new(SIZE);
    // The length is not known beforehand.
    let server =
        Server::start(move |_| resource.full_response().without("Content-Length").with("Connection", "close"));
    let ended = program.run(&[&server.url("/file"), "-o", "small/out", "-q"]);
    assert_eq!(ended.code, Some(74), "{}", ended.err);
    assert!(ended.err.contains("disk full: small/out"), "{}", ended.err);
    assert_eq!(ended.err.matches('\n').count(), 1, "{}", ended.err);
}

/// A program whose directory `small` is a separate file system in its own mount namespace. None where that is not permitted.
fn small_disk(options: &str) -> Option<Program> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting a file system needs root");
        return None;
    }
    let program = Program::new();
    fs::create_dir(program.path("small")).unwrap();
    let mount = format!("mount -t tmpfs -o {options} none small && exec \"$@\"");
    let args = ["unshare", "--mount", "sh", "-c", &mount, "sh"].map(str::to_owned);
    Some(program.with_prefix(args))
}

#[test]
fn a_second_run_on_the_same_file_is_refused() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource).limit_rate(4_000_000);
    let program = Program::new();
    let url = server.url("/file");
    let first = program.start(&[&url, "-o", "out", "--json"]);
    server.wait_sent(500_000);
    let second = Program::new();
    let path = program.path("out");
    let ended = second.run(&[&url, "-o", path.to_str().unwrap(), "-q"]);
    assert_eq!(ended.code, Some(74), "{}", ended.err);
    assert!(ended.err.contains("another run of marline is downloading this file"), "{}", ended.err);
    first.wait().report();
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn a_journal_of_another_url_is_not_used() {
    let (resource, other) = (Resource::new(SIZE), Resource::other(SIZE, 9));
    let server = {
        let (a, b) = (resource.clone(), other.clone());
        Server::start(move |request| if request.path == "/a" { a.respond(request) } else { b.respond(request) })
    };
    let server = server.limit_rate(2_000_000);
    let program = Program::new();
    let stopped = program.run(&[&server.url("/a"), "-o", "out", "-q", "--max-time", "1500ms"]);
    assert_eq!(stopped.code, Some(1));
    assert!(program.files().iter().any(|name| name.ends_with(".journal")), "{:?}", program.files());
    let server = server.limit_rate(0);
    let ended = program.get(&server.url("/b"));
    ended.assert_notice("starting from zero: the earlier run's bytes belong to another URL");
    assert_eq!(ended.report()["resumed_bytes"], 0);
    assert!(program.file("out").unwrap() == *other.data);
}

#[test]
fn bytes_of_an_older_version_from_an_earlier_run_are_not_mixed_with_the_new_one() {
    let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE, 2));
    let program = Program::new();
    let changed = Arc::new(AtomicBool::new(false));
    let (is_new, before, after) = (changed.clone(), old, new.clone());
    let server = Server::start(move |request| {
        if is_new.load(Ordering::Relaxed) { after.respond(request) } else { before.respond(request) }
    });
    let server = server.limit_rate(2_000_000);
    let url = server.url("/file");
    program.run(&[&url, "-o", "out", "-q", "--max-time", "1500ms"]);
    changed.store(true, Ordering::Relaxed);
    let server = server.limit_rate(0);
    let ended = program.get(&url);
    ended.assert_notice("the file has changed on the server: starting again");
    assert!(program.file("out").unwrap() == *new.data);
    assert_eq!(ended.report()["resumed_bytes"], 0);
    drop(server);
}

/// Reads a whole file from a pipe and compares it, slowly for the first `slow` bytes; calls `on_read` with the number of bytes so far.
fn read_slowly(pipe: &mut impl Read, resource: &Resource, slow: usize, on_read: impl Fn(usize)) {
    let (mut got, mut piece) = (0, vec![0; 256 * 1024]);
    loop {
        let len = pipe.read(&mut piece).unwrap();
        if len == 0 {
            break;
        }
        assert!(piece[..len] == resource.data[got..got + len], "other bytes at {got}");
        got += len;
        if got < slow {
            std::thread::sleep(Duration::from_millis(10));
        }
        on_read(got);
    }
    assert_eq!(got, resource.data.len());
}

#[test]
fn a_stream_is_in_order_and_its_memory_bounded_with_a_slow_reader() {
    let resource = Resource::new(60_000_000);
    let server = Server::honest(&resource);
    let program = Program::new();
    let mut child = program.command(&[&server.url("/file"), "-o", "-", "--json", "-q"]).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let running = Running::new(child, Some(program.path("decisions.log")));
    read_slowly(&mut pipe, &resource, 10_000_000, |_| {});
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let report: serde_json::Value = serde_json::from_str(ended.err.trim()).unwrap();
    assert_eq!(report["path"], serde_json::Value::Null);
    assert!(report["peak_rss_bytes"].as_u64().unwrap() < memory_limit(), "{report}");
}

/// The memory limit in bytes of a download with a window of 16 MiB: the peak of a tiny download, most of which is the program's code,
/// plus twice the window.
fn memory_limit() -> u64 {
    let server = Server::honest(&Resource::new(1000));
    let report = Program::new().get(&server.url("/file")).report();
    report["peak_rss_bytes"].as_u64().unwrap() + (32 << 20)
}

/// Servers that answer every request with the whole file, in three encodings of its length.
const FULL_RESPONSES: [fn(&Resource) -> Response; 3] = [
    |all| all.full_response(),
    |all| all.full_response().without("Content-Length").with("Connection", "close"),
    |all| {
        let starts = (0..all.len()).step_by(100_000);
        let pieces = starts.map(|at| Step::Chunk(at..(at + 100_000).min(all.len())));
        let steps: Vec<Step> = pieces.chain([Step::Raw(b"0\r\n\r\n".to_vec())]).collect();
        all.full_response().without("Content-Length").with("Transfer-Encoding", "chunked").with_steps(steps)
    },
];

#[test]
fn a_slow_reader_of_a_single_response_slows_the_server_down() {
    const WINDOW: u64 = 16 << 20;
    for respond in FULL_RESPONSES {
        let resource = Resource::new(40_000_000);
        let all = resource.clone();
        let server = Server::start(move |_| respond(&all));
        let program = Program::new();
        let mut child = program.command(&[&server.url("/file"), "-o", "-", "--json", "-q"]).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let running = Running::new(child, Some(program.path("decisions.log")));
        read_slowly(&mut pipe, &resource, 6_000_000, |got| {
            // Beyond the window, only the pipe and the kernel's buffers hold bytes.
            let ahead = server.sent_bytes().saturating_sub(got as u64);
            assert!(ahead < WINDOW + (12 << 20), "{ahead} bytes ahead of the reader at {got}");
        });
        let ended = running.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let report: serde_json::Value = serde_json::from_str(ended.err.trim()).unwrap();
        assert!(report["peak_rss_bytes"].as_u64().unwrap() < memory_limit(), "{report}");
    }
}

#[test]
fn a_stream_without_reads_ends_on_a_signal_and_at_the_time_limit() {
    let resource = Resource::new(SIZE);
    for (args, signal, code, expected) in [
        (&["-q"][..], Some(Signal::INT), 130, "stopped"),
        (&["-q"], Some(Signal::TERM), 130, "stopped"),
        (&["-q", "--max-time", "1500ms"], None, 1, "not complete within 1.5s"),
    ] {
        let server = Server::honest(&resource);
        let program = Program::new();
        let url = server.url("/file");
        let mut child = program.command(&[&[&url, "-o", "-"][..], args].concat()).spawn().unwrap();
        let pipe = child.stdout.take().unwrap();
        let running = Running::new(child, Some(program.path("decisions.log")));
        // The whole file is in the window; only the reader is outstanding.
        server.wait_sent(resource.len());
        std::thread::sleep(Duration::from_millis(300));
        if let Some(signal) = signal {
            running.signal(signal);
        }
        let ended = running.wait();
        drop(pipe);
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        ended.assert_notice(expected);
    }
}

#[test]
fn a_closed_pipe_ends_the_run() {
    let server = Server::honest(&Resource::new(60_000_000));
    let program = Program::new();
    let mut child = program.command(&[&server.url("/file"), "-o", "-", "-q"]).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let running = Running::new(child, Some(program.path("decisions.log")));
    pipe.read_exact(&mut vec![0; 100_000]).unwrap();
    drop(pipe);
    let ended = running.wait();
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.matches('\n').count() <= 1 && !ended.err.contains("panic"), "{}", ended.err);
}

#[test]
fn a_stream_of_a_single_response_that_breaks_off_is_not_restarted() {
    let resource = Resource::new(SIZE);
    let server = Server::start(move |_| resource.full_response().broken_after(2_000_000, [Step::Close]));
    let program = Program::new();
    let ended = program.run(&[&server.url("/file"), "-o", "-", "-q"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.out.len() <= 2_000_000, "{} bytes were passed on", ended.out.len());
    assert_eq!(ended.err.matches('\n').count(), 1, "{}", ended.err);
}

#[test]
fn a_download_to_dev_null_leaves_no_file() {
    let resource = Resource::new(SIZE);
    let program = Program::new();
    let ended = program.run(&[&Server::honest(&resource).url("/file"), "-o", "/dev/null", "--json"]);
    assert_eq!(ended.report()["bytes"], resource.len());
    assert!(program.files().is_empty());
}

#[test]
fn a_named_pipe_receives_the_file_in_order() {
    let resource = Resource::new(SIZE);
    let program = Program::new();
    let made = std::process::Command::new("mkfifo").arg(program.path("pipe")).stdout(Stdio::null()).status();
    assert!(made.unwrap().success());
    let running = program.start(&[&Server::honest(&resource).url("/file"), "-o", "pipe", "--json"]);
    let got = fs::read(program.path("pipe")).unwrap();
    running.wait().report();
    assert!(got == *resource.data);
}

#[test]
fn a_rate_limit_is_not_exceeded() {
    let resource = Resource::new(2_000_000);
    let server = Server::honest(&resource);
    let url = server.url("/file");
    for args in [&["--limit-rate", "10Mbit/s"][..], &["--limit-rate", "1Gbit/s", "--limit-rate", "10Mbit/s"]] {
        let program = Program::new();
        let begun = Instant::now();
        let mut all = vec![url.as_str(), "-o", "out", "--json"];
        all.extend(args);
        program.run(&all).report();
        let least = 2_000_000.0 * 8.0 / 10e6;
        assert!(begun.elapsed().as_secs_f64() > least / 1.3, "{:?}", begun.elapsed());
        assert!(program.file("out").unwrap() == *resource.data);
    }
}

/// A first run stops after 1.5 s, before the end; for the second run, with the options `args`, the server answers with `respond`. Returns
/// the program, the result of the second run, and the server, which is correct again afterwards.
fn resumed(respond: fn(&Request, &Resource) -> Response, args: &[&str]) -> (Program, Ended, Server) {
    let program = Program::new();
    let has_changed = Arc::new(AtomicBool::new(false));
    let (resource, is_other) = (Resource::new(SIZE), has_changed.clone());
    let server = Server::start(move |request| {
        if is_other.load(Ordering::Relaxed) { respond(request, &resource) } else { resource.respond(request) }
    });
    let server = server.limit_rate(3_000_000);
    let url = server.url("/file");
    let first = program.run(&[&url, "-o", "out", "-q", "--max-time", "1500ms"]);
    assert_eq!(first.code, Some(1), "{}", first.err);
    has_changed.store(true, Ordering::Relaxed);
    let server = server.limit_rate(0);
    let ended = program.run(&[&[&url, "-o", "out", "--json"][..], args].concat());
    has_changed.store(false, Ordering::Relaxed);
    (program, ended, server)
}

#[test]
fn a_server_that_stopped_serving_ranges_gives_the_whole_file() {
    let table: [fn(&Request, &Resource) -> Response; 2] =
        [|_, all| all.full_response(), |_, all| all.full_response().without("ETag")];
    for respond in table {
        let (program, ended, _) = resumed(respond, &[]);
        ended.report();
        ended.assert_notice("the server does not serve ranges");
        assert!(program.file("out").unwrap() == *Resource::new(SIZE).data);
    }
}

#[test]
fn a_file_with_a_new_length_is_fetched_as_a_whole() {
    for (respond, len) in [
        (
            (|request, _| Resource::other(SIZE / 2, 7).respond(request)) as fn(&Request, &Resource) -> Response,
            SIZE / 2,
        ),
        (|request, _| Resource::other(SIZE * 2, 7).respond(request), SIZE * 2),
    ] {
        let (program, ended, _) = resumed(respond, &[]);
        ended.report();
        ended.assert_notice("the file has changed on the server: starting again");
        assert!(program.file("out").unwrap() == *Resource::other(len, 7).data);
    }
}

#[test]
fn a_portal_does_not_destroy_bytes_of_an_earlier_run() {
    let (program, ended, server) = resumed(
        |_, _| Response::page(200, "<html>log in").without("Content-Length").with("Connection", "close"),
        &["--max-time", "1s"],
    );
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    let report = program.get(&server.url("/file")).report();
    assert!(report["resumed_bytes"].as_u64().unwrap() > 1_000_000, "{report}");
    assert!(program.file("out").unwrap() == *Resource::new(SIZE).data);
}

#[test]
fn bytes_already_passed_on_are_not_mixed_with_a_newer_version() {
    let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE, 2));
    let server = Server::start(move |request| {
        if request.range.as_ref().is_some_and(|range| range.start > 0) {
            new.respond(request)
        } else {
            old.respond(request)
        }
    });
    let program = Program::new();
    let ended = program.run(&[&server.url("/file"), "-o", "-", "-q"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("the file changed on the server after"), "{}", ended.err);
    let first = Resource::other(SIZE, 1);
    assert!(ended.out[..] == first.data[..ended.out.len()], "other bytes in the stream");
}

#[test]
fn a_stream_accepts_a_single_response_of_unknown_length() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |_| all.full_response().without("Content-Length").with("Connection", "close"));
    let program = Program::new();
    let ended = program.run(&[&server.url("/file"), "-o", "-", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out == *resource.data);
}

/// A server may suggest any name, and a URL may end in any name: neither becomes an unfinished file of another download.
#[test]
fn files_planted_by_a_server_never_become_part_of_another_download() {
    let (genuine, evil) = (Resource::new(SIZE), Resource::other(SIZE, 9));
    let program = Program::new();
    let real = Server::honest(&genuine);
    for name in
        ["file.part", "file.part.journal", "FILE.Part", "file.part%E2%80%8B", "file%EF%BC%8Epart", "file.part. "]
    {
        let planted = Server::honest(
            &evil
                .clone()
                .with("Content-Disposition", &format!("attachment; filename*=UTF-8''{}", name.replace(' ', "%20"))),
        );
        program
            .run(&[&planted.url("/x"), "--json"])
            .assert_notice("this extension is reserved for unfinished downloads");
        let by_url = Server::honest(&evil);
        program.run(&[&by_url.url(&format!("/plant/{name}")), "--json"]).assert_notice("is changed to");
    }
    let is_final = |name: &String| !name.contains(".download");
    assert_eq!(program.files().into_iter().filter(is_final).count(), 0, "{:?}", program.files());
    // A browser might have saved both files: a part in the documented format and a genuine journal of another key.
    let victim = Program::new();
    let attacker = Program::new();
    let slow = Server::honest(&evil).limit_rate(2_000_000);
    let mut attack = attacker.command(&[&slow.url("/file"), "-o", "file", "-q", "--max-time", "1500ms"]);
    attack.env("XDG_STATE_HOME", attacker.dir()).status().unwrap();
    for name in ["file.part", "file.part.journal"] {
        std::fs::write(victim.path(name), attacker.file(name).unwrap()).unwrap();
    }
    let ended = victim.run(&[&real.url("/file"), "-o", "file", "-q"]);
    assert_eq!(ended.code, Some(74), "{}", ended.err);
    assert!(ended.err.contains("no journal of this user proves"), "{}", ended.err);
    assert!(victim.file("file").is_none());
    // Without the planted part, the download is the server's file.
    std::fs::remove_file(victim.path("file.part")).unwrap();
    victim.run(&[&real.url("/file"), "-o", "file", "--json"]).assert_notice("was not written with this user's key");
    assert!(victim.file("file").unwrap() == *genuine.data);
}
