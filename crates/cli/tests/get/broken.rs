//! Connections that break, stall, send wrong lengths or end too early.

use std::net::TcpListener;
use std::time::Duration;

use crate::program::{Ended, Program};
use crate::server::{Request, Resource, Response, Server, Step};

const SIZE: usize = 6_000_000;

/// Downloads a file whose responses `spoil` changes; the file must be correct nevertheless.
#[track_caller]
fn survives(spoil: impl Fn(&Request, Response) -> Response + Send + Sync + 'static) -> (Ended, Server) {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| spoil(request, all.respond(request)));
    let program = Program::new();
    let ended = program.get(&server.url("/file"));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "the file differs: {report}");
    assert_eq!(program.files(), ["out"]);
    (ended, server)
}

#[test]
fn every_third_response_is_truncated() {
    survives(
        |request, answer| if request.nth % 3 == 1 { answer.broken_after(70_000, [Step::Close]) } else { answer },
    );
}

#[test]
fn every_third_response_is_reset_in_its_body() {
    survives(
        |request, answer| if request.nth % 3 == 1 { answer.broken_after(70_000, [Step::Reset]) } else { answer },
    );
}

#[test]
fn the_first_connection_is_reset_before_the_response() {
    survives(|request, answer| if request.conn == 0 { answer.with_steps([Step::Reset]) } else { answer });
}

#[test]
fn a_response_longer_than_its_content_length_does_no_harm() {
    survives(|request, mut answer| {
        if request.nth == 0 {
            answer.steps.push(Step::Raw(vec![b'x'; 5000]));
        }
        answer
    });
}

#[test]
fn a_response_with_more_bytes_than_its_range_does_no_harm() {
    survives(|request, mut answer| {
        if request.nth == 1
            && let [Step::Data(span)] = &answer.steps[..]
        {
            let length = span.end - span.start + 777;
            answer.steps.push(Step::Raw(vec![b'x'; 777]));
            return answer.with("Content-Length", &length.to_string());
        }
        answer
    });
}

#[test]
fn garbage_instead_of_a_response_head_is_retried() {
    for garbage in [&b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"\r\n\r\n\0\0\0"]
    {
        let garbage = garbage.to_vec();
        survives(move |request, answer| if request.nth == 1 { Response::garbage(&garbage) } else { answer });
    }
}

#[test]
fn a_server_that_sends_only_garbage_is_given_up_with_the_reason() {
    let server = Server::start(|_| Response::garbage(b"SSH-2.0-OpenSSH_9.2\r\n"));
    let line = Program::new().refused(&[&server.url("/file"), "--retry", "2"], 76);
    assert!(line.contains("the server does not speak HTTP/1.1"), "{line}");
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn conflicting_lengths_in_a_response_head_are_rejected() {
    survives(|request, answer| if request.nth == 1 { answer.with("content-length ", "7") } else { answer });
    survives(|request, answer| if request.nth == 1 { answer.with("Content-Length", "7, 8") } else { answer });
}

#[test]
fn a_hang_in_the_middle_is_waited_out_or_worked_around() {
    let (ended, _) = survives(|request, answer| {
        if request.nth == 1 { answer.broken_after(50_000, [Step::Wait(Duration::from_secs(2))]) } else { answer }
    });
    assert!(ended.report()["wasted_bytes"].as_u64().unwrap() < 1_000_000, "{}", ended.report());
}

#[test]
fn a_hang_before_the_first_byte_is_waited_out_or_worked_around() {
    survives(|request, answer| {
        let mut answer = answer;
        if request.conn == 0 {
            answer.steps.insert(0, Step::Wait(Duration::from_secs(2)));
        }
        answer
    });
}

#[test]
fn a_response_that_arrives_byte_by_byte_is_read() {
    let resource = Resource::new(60);
    let server = Server::honest(&resource).limit_rate(100);
    let program = Program::new();
    program.get(&server.url("/file")).report();
    assert_eq!(program.file("out").unwrap(), *resource.data);
}

#[test]
fn a_refused_connection_is_given_up_after_the_retries() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let line = Program::new().refused(&[&format!("http://{closed}/file"), "--retry", "2"], 68);
    assert!(line.contains("refused"), "{line}");
}

#[test]
fn a_server_that_resets_every_connection_is_given_up() {
    let server = Server::start(|_| Response::garbage(b"").with_steps([Step::Reset]));
    let line = Program::new().refused(&[&server.url("/file"), "--retry", "2"], 68);
    assert!(line.contains("reset") || line.contains("closed"), "{line}");
}

#[test]
fn a_single_response_that_breaks_off_is_requested_again_from_the_start() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| {
        let response = all.full_response();
        if request.nth < 2 { response.broken_after(1_000_000, [Step::Close]) } else { response }
    });
    let program = Program::new();
    let ended = program.get(&server.url("/file"));
    ended.report();
    assert!(program.file("out").unwrap() == *resource.data);
}

#[test]
fn the_time_limit_ends_a_slow_download_and_keeps_its_bytes() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource).limit_rate(1_500_000);
    let program = Program::new();
    let url = server.url("/file");
    let line = program.refused(&[&url, "--max-time", "1500ms"], 1);
    assert!(line.ends_with("not complete within 1.5s; run the same command again to resume"), "{line}");
    let server = server.limit_rate(0);
    let report = program.get(&url).report();
    assert!(report["resumed_bytes"].as_u64().unwrap() > 1_000_000, "{report}");
    assert!(program.file("out").unwrap() == *resource.data);
    assert!(server.sent_bytes() < resource.len() + 1_000_000);
}
