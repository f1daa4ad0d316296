//! Odd servers: whatever curl downloads in one piece, marline also downloads, over one link and over two.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::network::Network;
use crate::odd_servers::{Behavior, REFUSING, RELATED, REPORTED, SIZE, answer};
use crate::program::{Program, link};
use crate::server::{Resource, Response, Server, Step};

/// Permitted excess over curl's time; smaller differences are only printed.
const MAX_EXCESS: Duration = Duration::from_secs(10);

/// Downloads from each path with curl and with marline, four paths in parallel.
fn all_of(behaviors: &'static [Behavior], network: Option<&Network>) {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let handler = move |request: &crate::server::Request| answer(behaviors, request, &all);
    let server = match network {
        Some(network) => network.serve(handler),
        None => Server::start(handler),
    };
    let wrong = std::sync::Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(behavior) = behaviors.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    if let Err(why) = same_as_curl(behavior.name, &server, &resource, network) {
                        wrong.lock().unwrap().push(format!("{}: {why}", behavior.name));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn same_as_curl(name: &str, server: &Server, resource: &Resource, network: Option<&Network>) -> Result<(), String> {
    let program = network.map_or_else(Program::new, Network::program);
    let url = server.url(&format!("/{name}"));
    let began = Instant::now();
    let curl = curl(&url, &program, network);
    let curls = began.elapsed();
    let began = Instant::now();
    let ended = program.get(&url);
    let marline_time = began.elapsed();
    println!("{name:>18}: curl {:>6.2} s, marline {:>6.2} s", curls.as_secs_f64(), marline_time.as_secs_f64());
    if curl.is_some_and(|curl| curl != *resource.data) {
        println!("{name:>18}: curl gets something else");
    }
    if ended.code != Some(0) {
        return Err(format!("{:?}: {}", ended.code, ended.err));
    }
    if program.file("out").as_deref() != Some(&resource.data[..]) {
        return Err(format!("the file differs: {}", ended.err));
    }
    if marline_time > curls + MAX_EXCESS {
        return Err(format!("{marline_time:?} against {curls:?}: {}", ended.err));
    }
    let lines = ended.notices();
    if lines.len() > 4 {
        return Err(format!("{} lines: {lines:#?}", lines.len()));
    }
    Ok(())
}

/// The bytes that curl downloads; none if curl is not installed or fails.
fn curl(url: &str, program: &Program, network: Option<&Network>) -> Option<Vec<u8>> {
    let mut args = network.map(Network::client_prefix).unwrap_or_default();
    args.extend(["curl", "-sSL", "--http0.9", "--max-time", "20", "-o", "curl", url].map(str::to_owned));
    let mut command = Command::new(&args[0]);
    command.args(&args[1..]).current_dir(program.dir());
    command.stderr(std::process::Stdio::null()).status().ok()?;
    let got = program.file("curl")?;
    std::fs::remove_file(program.path("curl")).ok()?;
    Some(got)
}

#[test]
fn reported_servers_work_over_one_link() {
    all_of(REPORTED, None);
}

#[test]
fn reported_servers_work_over_two_links() {
    let Some(network) = Network::two_links() else { return };
    all_of(REPORTED, Some(&network));
}

#[test]
fn related_servers_work_over_one_link() {
    all_of(RELATED, None);
}

#[test]
fn related_servers_work_over_two_links() {
    let Some(network) = Network::two_links() else { return };
    all_of(RELATED, Some(&network));
}

#[test]
fn servers_that_refuse_all_but_one_request_work_over_one_link() {
    all_of(REFUSING, None);
}

#[test]
fn servers_that_refuse_all_but_one_request_work_over_two_links() {
    let Some(network) = Network::two_links() else { return };
    all_of(REFUSING, Some(&network));
}

#[test]
fn a_file_that_disappears_after_its_first_bytes_ends_the_run_soon_with_the_status() {
    let all = Resource::new(SIZE);
    let server = Server::start(move |request| match &request.range {
        Some(range) if request.nth == 0 => all.part(range.start..65_536),
        _ => Response::status(410),
    });
    let began = Instant::now();
    let line = Program::new().refused(&[&server.url("/file")], 66);
    assert!(line.contains("410") && began.elapsed() < Duration::from_secs(20), "{line} {:?}", began.elapsed());
}

#[test]
fn an_empty_response_is_an_empty_file() {
    let server = Server::start(|_| Response::status(204).without("Content-Length"));
    let program = Program::new();
    program.get(&server.url("/nothing")).report();
    assert_eq!(program.file("out"), Some(Vec::new()));
}

#[test]
fn an_empty_file_is_downloaded_from_a_server_that_refuses_every_range_of_it() {
    for sized in [true, false] {
        let server = Server::start(move |request| match (&request.range, sized) {
            (None, _) => Response::status(200),
            (Some(_), true) => Response::status(416).with("Content-Range", "bytes */0"),
            (Some(_), false) => Response::status(416),
        });
        let program = Program::new();
        program.get(&server.url("/empty")).report();
        assert_eq!(program.file("out"), Some(Vec::new()));
    }
}

#[test]
fn a_size_that_no_disk_holds_is_refused() {
    let all = Resource::new(65_536);
    let server =
        Server::start(move |_| all.part(0..all.len()).with("Content-Range", "bytes 0-65535/18446744073709551615"));
    let line = Program::new().refused(&[&server.url("/huge")], 74);
    assert!(line.contains("18446744.0TB"), "{line}");
}

#[test]
fn servers_behind_one_address_are_all_used() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = network.serve(move |request| answer(REPORTED, request, &all));
    let program = network.program();
    let ended = program.get(&server.url("/flip"));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "{report}");
    ended.assert_no_notices();
    for name in ["wifi0", "lte0"] {
        assert!(link(&report, name)["bytes"].as_u64().unwrap() > 50_000, "{report}");
    }
}

#[test]
fn two_files_of_equal_size_are_not_mixed_when_their_date_proves_nothing() {
    let Some(network) = Network::two_links() else { return };
    // Reproducible builds date all files alike; and two dates that differ by a second.
    for dates in
        [["Thu, 01 Jan 1970 00:00:01 GMT"; 2], ["Sat, 01 Aug 2020 10:00:00 GMT", "Sat, 01 Aug 2020 10:00:01 GMT"]]
    {
        let now = "Thu, 26 Nov 2026 10:00:00 GMT";
        let files = [1, 2].map(|seed| Resource::other(SIZE, seed).with("Date", now));
        let [one, two] = [0, 1].map(|n| files[n].clone().with("Last-Modified", dates[n]));
        let server = network
            .serve(move |request| if request.over_wifi() { one.respond(request) } else { two.respond(request) });
        let program = network.program();
        program.get(&server.url("/file")).report();
        let got = program.file("out").unwrap();
        assert!(files.iter().any(|file| got == *file.data), "mixed");
    }
}

#[test]
fn a_page_instead_of_the_file_is_not_kept() {
    let page = "<!DOCTYPE html><html><title>Log in</title></html>";
    let server = Server::start(move |_| Response::page(200, page));
    for name in ["big.zip", "v1/model.safetensors", "big.tar.gz?download=1"] {
        let kind = name.split('?').next().unwrap().rsplit('.').next().unwrap();
        let program = Program::new();
        let line = program.refused(&[&server.url(&format!("/{name}"))], 67);
        assert!(line.contains(&format!("the server sent an HTML page, not a {kind}")), "{line}");
        assert!(program.files().is_empty(), "{:?}", program.files());
    }
    for name in ["page.html", "page", "", "page.php?x=big.zip"] {
        let program = Program::new();
        program.get(&server.url(&format!("/{name}"))).report();
        assert_eq!(program.file("out").unwrap(), page.as_bytes(), "{name}");
    }
    let program = Program::new();
    program.run(&[&server.url("/big.zip"), "-o", "page.html", "--json"]).report();
    // A server that sends every file as HTML.
    let all = Resource::new(SIZE).with("Content-Type", "text/html");
    let server = Server::honest(&all);
    let program = Program::new();
    program.get(&server.url("/big.zip")).report();
    assert!(program.file("out").unwrap() == *all.data);
}

#[test]
fn a_server_that_allows_one_connection_per_address_is_downloaded_over_one_link() {
    let Some(network) = Network::two_links() else { return };
    let resource = Resource::new(3_000_000);
    let all = resource.clone();
    let busy = std::sync::Mutex::new((usize::MAX, Instant::now()));
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let refusals = refused.clone();
    // Both links share one public address (NAT): a second connection gets 503 while the first one is in use.
    let server = network.serve(move |request| {
        let mut busy = busy.lock().unwrap();
        if busy.0 == usize::MAX || busy.0 == request.conn || busy.1.elapsed() > Duration::from_secs(3) {
            *busy = (request.conn, Instant::now());
            return all.respond(request).slowly(20_000, Duration::from_millis(10));
        }
        refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Response::status(503)
    });
    let program = network.program();
    let ended = program.get(&server.url("/file"));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "{report}");
    println!("{} s, {:?}", report["seconds"], ended.notices());
    let refused = refused.load(std::sync::atomic::Ordering::Relaxed);
    assert!(ended.notices().len() <= 2 && refused < 12, "{refused} {:?}", ended.notices());
}

#[test]
fn slow_responses_are_waited_for() {
    let resource = Resource::new(30_000);
    let all = resource.clone();
    let server = Server::start(move |request| {
        let mut answer = all.respond(request).slowly(3000, Duration::from_millis(300));
        answer.steps.insert(0, Step::Wait(Duration::from_millis(700)));
        answer
    });
    let program = Program::new();
    program.get(&server.url("/file")).report();
    assert!(program.file("out").unwrap() == *resource.data);
}
