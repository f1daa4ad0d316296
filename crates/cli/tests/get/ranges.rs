//! Servers that serve ranges in unusual ways, or not at all, and files that change during a download.

use std::time::Duration;

use crate::program::Program;
use crate::server::{Resource, Response, Server, Step};

const SIZE: usize = 6_000_000;

/// Downloads from `server`; the file must equal `resource`.
#[track_caller]
fn fetched(server: &Server, resource: &Resource) -> crate::program::Ended {
    let program = Program::new();
    let ended = program.get(&server.url("/file"));
    let report = ended.report();
    assert!(program.file("out").unwrap() == *resource.data, "the file differs: {report}");
    assert_eq!(report["bytes"], resource.len());
    assert_eq!(program.files(), ["out"]);
    ended
}

#[test]
fn a_correct_server_causes_no_notice() {
    let resource = Resource::new(SIZE);
    let server = Server::honest(&resource);
    let ended = fetched(&server, &resource);
    ended.assert_no_notices();
    assert_eq!(ended.report()["wasted_bytes"], 0);
    assert_eq!(server.sent_bytes(), resource.len());
}

#[test]
fn an_empty_file_is_a_file() {
    let resource = Resource::new(0);
    fetched(&Server::honest(&resource), &resource).assert_no_notices();
}

#[test]
fn a_server_that_ignores_ranges_is_read_in_one_response() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    fetched(&Server::start(move |_| all.full_response()), &resource)
        .assert_notice("the server does not serve ranges");
    let all = resource.clone();
    fetched(&Server::start(move |_| all.full_response().with("Accept-Ranges", "none")), &resource)
        .assert_notice("the server does not serve ranges");
}

#[test]
fn a_chunked_body_has_no_length_and_is_read_to_its_end() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |_| {
        let chunks = (0..all.len()).step_by(70_001).map(|at| Step::Chunk(at..(at + 70_001).min(all.len())));
        let steps: Vec<Step> = chunks.chain([Step::Raw(b"0\r\n\r\n".to_vec())]).collect();
        all.full_response().without("Content-Length").with("Transfer-Encoding", "chunked").with_steps(steps)
    });
    fetched(&server, &resource).assert_notice("the server does not state the length of the file");
}

#[test]
fn a_chunked_body_that_breaks_off_yields_no_file() {
    let all = Resource::new(SIZE);
    let server = Server::start(move |_| {
        all.full_response()
            .without("Content-Length")
            .with("Transfer-Encoding", "chunked")
            .with_steps([Step::Chunk(0..1_000_000), Step::Close])
    });
    let line = Program::new().refused(&[&server.url("/file"), "--retry", "1"], 68);
    assert!(line.contains("in the middle of an answer"), "{line}");
}

#[test]
fn an_http_1_0_server_closes_at_the_end_of_the_file() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |_| {
        all.full_response().http_1_0().without("Content-Length").with_steps([Step::Data(0..all.len()), Step::Close])
    });
    fetched(&server, &resource).assert_notice("the server does not state the length of the file");
}

#[test]
fn a_server_that_closes_after_each_response_is_used_to_the_end() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| all.respond(request).with("Connection", "close"));
    fetched(&server, &resource).assert_no_notices();
}

#[test]
fn a_server_that_closes_without_announcing_it_is_used_to_the_end() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    // HTTP/1.1 requires `Connection: close` before that; some servers omit it.
    let server = Server::start(move |request| {
        let mut answer = all.respond(request);
        answer.steps.push(Step::Close);
        answer
    });
    fetched(&server, &resource).assert_no_notices();
}

#[test]
fn ranges_that_stop_short_are_continued() {
    let resource = Resource::new(2_000_000);
    let all = resource.clone();
    // RFC 9110 section 15.3.7 permits a server to send less than was requested.
    let server = Server::start(move |request| match &request.range {
        Some(range) if range.start < all.len() => {
            all.part(range.start..range.end.min(range.start + 50_000).min(all.len()))
        }
        _ => all.respond(request),
    });
    fetched(&server, &resource).assert_no_notices();
}

#[test]
fn ranges_of_unknown_total_length_lead_to_a_single_response() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| match &request.range {
        Some(range) => {
            let end = range.end.min(all.len());
            let answer = all.part(range.start..end);
            answer.with("Content-Range", &format!("bytes {}-{}/*", range.start, end - 1))
        }
        None => all.full_response(),
    });
    fetched(&server, &resource).assert_notice("the server does not state the length of the file");
}

/// Breaks off the first response, which could carry the whole file.
fn broken_at_first(request: &crate::server::Request, answer: Response) -> Response {
    if request.nth == 0 { answer.broken_after(1_000_000, [Step::Close]) } else { answer }
}

#[test]
fn without_a_validator_responses_are_never_combined() {
    for resource in [Resource::new(SIZE).with("ETag", ""), Resource::new(SIZE).with("ETag", "W/\"1\"")] {
        let server = Server::honest(&resource);
        fetched(&server, &resource).assert_notice("the server gives no strong validator");
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn a_checksum_permits_combining_responses_without_a_validator() {
    let resource = Resource::new(SIZE).with("ETag", "");
    let server = Server::honest(&resource);
    let program = Program::new();
    let sum = format!("sha256={}", crate::program::digest("sha256sum", &resource.data));
    let ended = program.run(&[&server.url("/file"), "-o", "out", "--json", "--checksum", &sum]);
    ended.report();
    ended.assert_no_notices();
    assert!(program.file("out").unwrap() == *resource.data);
    assert!(server.requests().iter().all(|request| request.range.is_some()));
}

#[test]
fn a_date_is_a_validator_if_it_is_old_enough() {
    let resource = Resource::new(SIZE)
        .with("ETag", "")
        .with("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
        .with("Last-Modified", "Sat, 05 Nov 1994 08:49:37 GMT");
    let all = resource.clone();
    let server = Server::start(move |request| broken_at_first(request, all.respond(request)));
    fetched(&server, &resource);
    assert!(
        server.requests().iter().any(|request| request.field("If-Range") == Some("Sat, 05 Nov 1994 08:49:37 GMT"))
    );
    // Two versions within one second have the same date (RFC 9110 section 8.8.2.2).
    let fresh = resource.with("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
    fetched(&Server::honest(&fresh), &fresh).assert_notice("the server gives no strong validator");
}

#[test]
fn a_file_that_changes_during_the_download_is_fetched_again_as_a_whole() {
    let (old, new) = (Resource::other(SIZE, 1), Resource::other(SIZE + 1000, 2));
    let after = new.clone();
    let server = Server::start(move |request| {
        broken_at_first(request, if request.nth == 0 { old.respond(request) } else { after.respond(request) })
    });
    fetched(&server, &new).assert_notice("the file has changed on the server: starting again");
}

#[test]
fn a_file_that_changes_with_each_request_is_one_of_its_versions() {
    let server = Server::start(|request| {
        let answer = Resource::other(3_000_000, request.nth as u64).respond(request);
        if request.range.is_some() { answer.broken_after(1_000_000, [Step::Close]) } else { answer }
    });
    let program = Program::new();
    let ended = program.get(&server.url("/file"));
    ended.report();
    ended.assert_notice("the server reports another version of the file in each response");
    let file = program.file("out").unwrap();
    let last = server.requests().len() as u64;
    assert!((0..last).any(|nth| file == *Resource::other(3_000_000, nth).data), "mixed");
}

#[test]
fn a_single_response_416_does_not_shorten_the_file() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    // One response claims that the file has become shorter; the next ones do not.
    let server = Server::start(move |request| {
        if request.nth == 1 {
            return Response::status(416).with("Content-Range", "bytes */1000");
        }
        all.respond(request)
    });
    fetched(&server, &resource).assert_no_notices();
}

#[test]
fn an_encoded_file_is_stored_encoded_and_that_is_reported() {
    let resource = Resource::new(SIZE).with("Content-Encoding", "gzip");
    fetched(&Server::honest(&resource), &resource).assert_notice("encoded (gzip)");
    let all = resource.clone();
    fetched(&Server::start(move |_| all.full_response()), &resource).assert_notice("encoded (gzip)");
}

#[test]
fn a_range_that_was_not_requested_is_never_written() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| match (&request.range, request.nth) {
        (Some(range), 1) => {
            let end = range.end.min(all.len());
            let answer = all.part(range.start..end);
            answer.with("Content-Range", &format!("bytes {}-{}/{}", range.start + 1, end, all.len()))
        }
        _ => all.respond(request),
    });
    fetched(&server, &resource).assert_no_notices();
}

#[test]
fn a_range_of_a_file_of_another_size_is_never_written() {
    let (resource, other) = (Resource::new(SIZE), Resource::other(SIZE / 2, 1));
    let all = resource.clone();
    let server = Server::start(move |request| {
        broken_at_first(request, if request.nth == 1 { other.respond(request) } else { all.respond(request) })
    });
    fetched(&server, &resource).assert_notice("the file has changed on the server: starting again");
}

#[test]
fn retry_after_of_a_busy_server_is_respected() {
    for fields in [
        vec![("Retry-After", "1")],
        vec![("Date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("Retry-After", "Sun, 06 Nov 1994 08:49:38 GMT")],
    ] {
        for status in [429, 503] {
            let resource = Resource::new(1_000_000);
            let (all, fields) = (resource.clone(), fields.clone());
            let server = Server::start(move |request| {
                let busy =
                    fields.iter().fold(Response::status(status), |busy, (name, value)| busy.with(name, value));
                if request.nth == 0 { busy } else { all.respond(request) }
            });
            let ended = fetched(&server, &resource);
            ended.assert_notice(&format!("the server answers {status}: waiting 1.0s"));
            assert!(ended.report()["seconds"].as_f64().unwrap() >= 1.0);
        }
    }
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let server = Server::start(|_| Response::status(503).with("Retry-After", "0"));
    let line = Program::new().refused(&[&server.url("/file"), "--retry", "3"], 75);
    assert!(line.contains("the server answers 503"), "{line}");
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_temporary_error_is_retried() {
    for status in [500, 502, 504, 408] {
        let resource = Resource::new(1_000_000);
        let all = resource.clone();
        let server = Server::start(
            move |request| if request.nth == 0 { Response::status(status) } else { all.respond(request) },
        );
        fetched(&server, &resource).assert_notice(&format!("the server answers {status}"));
    }
}

#[test]
fn a_permanent_error_is_final() {
    for status in [400, 401, 403, 404, 410, 451, 501, 511] {
        let server = Server::start(move |_| Response::page(status, "<p>no"));
        let line = Program::new().refused(&[&server.url("/file")], if status < 500 { 66 } else { 75 });
        let hint = if status == 401 { "; a login is required: use --user, or correct the given one" } else { "" };
        assert!(line.contains(&format!("the server answers {status} (")), "{line}");
        assert!(line.ends_with(&format!("){hint}")), "{line}");
        // Errors that the Range field may cause are retried without it.
        let others = match status {
            400 | 403 | 501 => 2,
            404 | 410 | 451 => 1,
            _ => 0,
        };
        assert_eq!(server.requests().len(), 1 + others);
    }
}

#[test]
fn pauses_in_the_body_lose_nothing() {
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    let server = Server::start(move |request| {
        let answer = all.respond(request);
        if request.nth % 4 == 1 {
            answer.broken_after(50_000, [Step::Wait(Duration::from_millis(600))])
        } else {
            answer
        }
    });
    fetched(&server, &resource);
}
