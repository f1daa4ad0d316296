//! Missing bytes, fetched from a real nginx and from servers that lie.

#[path = "../../net/tests/http/driver.rs"]
#[allow(dead_code, reason = "the tests of HTTP use the rest")]
mod driver;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use marline_accel::{FetchCommand, LinkDevices, run_range_client};
use marline_core::accel::{Fetch, FetchId};
use marline_core::link::LinkId;
use marline_core::units::DataSize;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use driver::{Nginx, read_requests, serve_canned, serve_script};

/// Far longer than any test takes: only a hang meets it.
const TIMEOUT: Duration = Duration::from_secs(20);

type RangeResponse = (FetchId, u32, Option<Vec<u8>>);

/// The range client, and its responses.
struct FillClient {
    runtime: Runtime,
    commands: UnboundedSender<FetchCommand>,
    responses: UnboundedReceiver<RangeResponse>,
}

impl FillClient {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (commands, receiver) = unbounded_channel();
        let (sender, responses) = unbounded_channel();
        let devices = LinkDevices { devices: BTreeMap::from([(LinkId(0), "lo".to_owned())]), mark: None };
        let callback =
            Arc::new(move |fetch, range, bytes| sender.send((fetch, range, bytes)).expect("the receiver exists"));
        runtime.spawn(run_range_client(devices, receiver, callback));
        Self { runtime, commands, responses }
    }

    fn send_fetch(&self, fetch: Fetch) {
        self.commands.send(FetchCommand::Fetch(fetch)).expect("it lives");
    }

    /// So many responses, in the order in which they came.
    fn take_responses(&mut self, count: usize) -> Vec<RangeResponse> {
        let Self { runtime, responses, .. } = self;
        let next = async { tokio::time::timeout(TIMEOUT, responses.recv()).await };
        let first = runtime.block_on(next).expect("an answer in time").expect("it lives");
        let mut all = vec![first];
        while all.len() < count {
            let next = async { tokio::time::timeout(TIMEOUT, responses.recv()).await };
            all.push(runtime.block_on(next).expect("an answer in time").expect("it lives"));
        }
        all
    }
}

fn fetch(id: u64, server: SocketAddr, length: usize, ranges: &[(u64, u64)]) -> Fetch {
    Fetch {
        id: FetchId(id),
        link: LinkId(0),
        server,
        request: "GET /data HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n".into(),
        etag: "\"x\"".into(),
        length: DataSize::from_bytes(length as u64),
        ranges: ranges.to_vec(),
    }
}

/// The tag that nginx gives to its file.
fn etag(nginx: &Nginx) -> String {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(nginx.dir.path().join("data")).expect("the file");
    format!("\"{:x}-{:x}\"", file.mtime(), file.size())
}

#[test]
fn holes_come_whole_and_right_over_connections_that_stay() {
    let Some(nginx) = Nginx::start("keepalive_requests 7;", 400_000, None) else { return };
    let (mut carrier, etag) = (FillClient::new(), etag(&nginx));
    let mut wanted = BTreeMap::new();
    for id in 0..40_u64 {
        let at = |n: u64| (id * 9_973 + n * 4_000) % 390_000;
        let ranges: Vec<(u64, u64)> = (0..=id % 5).map(|n| (at(n), at(n) + 1448)).collect();
        wanted.extend(ranges.iter().zip(0_u32..).map(|(range, n)| ((FetchId(id), n), *range)));
        carrier.send_fetch(Fetch { etag: etag.clone(), ..fetch(id, nginx.address, 400_000, &ranges) });
    }
    for (id, range, bytes) in carrier.take_responses(wanted.len()) {
        let (start, end) = wanted.remove(&(id, range)).expect("answered once");
        assert!(bytes.as_deref() == Some(&nginx.data[start as usize..end as usize]), "{id:?} {range}");
    }
    assert!(wanted.is_empty());
}

#[test]
fn another_file_is_no_answer_and_the_next_one_is() {
    let Some(nginx) = Nginx::start("", 100_000, None) else { return };
    let mut carrier = FillClient::new();
    carrier.send_fetch(fetch(1, nginx.address, 100_000, &[(0, 10), (50, 60)]));
    let none: Vec<RangeResponse> = (0..2).map(|range| (FetchId(1), range, None)).collect();
    assert_eq!(carrier.take_responses(2), none, "If-Range fails");
    let right = etag(&nginx);
    carrier.send_fetch(Fetch { etag: right.clone(), ..fetch(2, nginx.address, 99_999, &[(0, 10)]) });
    assert_eq!(carrier.take_responses(1), [(FetchId(2), 0, None)], "another length");
    carrier.send_fetch(Fetch { etag: right.clone(), ..fetch(3, nginx.address, 100_000, &[(200_000, 200_010)]) });
    assert_eq!(carrier.take_responses(1), [(FetchId(3), 0, None)], "416");
    carrier.send_fetch(Fetch { etag: right, ..fetch(4, nginx.address, 100_000, &[(7, 17)]) });
    assert_eq!(carrier.take_responses(1), [(FetchId(4), 0, Some(nginx.data[7..17].to_vec()))]);
}

#[test]
fn an_unused_address_and_a_missing_link_are_reported() {
    let mut carrier = FillClient::new();
    let unused_address =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("an address");
    carrier.send_fetch(fetch(1, unused_address, 100, &[(0, 10)]));
    assert_eq!(carrier.take_responses(1), [(FetchId(1), 0, None)]);
    carrier.send_fetch(Fetch { link: LinkId(9), ..fetch(2, unused_address, 100, &[(0, 10)]) });
    assert_eq!(carrier.take_responses(1), [(FetchId(2), 0, None)]);
}

#[test]
fn a_server_that_lies_gives_nothing() {
    let tagged = |etag: &str, range: &str, body: &str| {
        let length = body.len();
        let head = format!("HTTP/1.1 206 P\r\n{etag}Content-Length: {length}\r\nContent-Range: bytes {range}");
        format!("{head}\r\n\r\n{body}").into_bytes()
    };
    let one = |range: &str, body: &str| tagged("ETag: \"x\"\r\n", range, body);
    for (lie, want) in [
        (one("0-9/100", "0123456789"), Some(b"0123456789".to_vec())),
        (tagged("ETag: \"y\"\r\n", "0-9/100", "0123456789"), None),
        (tagged("", "0-9/100", "0123456789"), None),
        (one("10-19/100", "0123456789"), None),
        (one("0-9/101", "0123456789"), None),
        (one("0-9/100", "01234"), None),
        (b"HTTP/1.1 206 P\r\nContent-Length: 10\r\n\r\n0123456789".to_vec(), None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789".to_vec(), None),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n".to_vec(), None),
        (b"nonsense".to_vec(), None),
    ] {
        let text = String::from_utf8_lossy(&lie).into_owned();
        let mut carrier = FillClient::new();
        carrier.send_fetch(fetch(1, serve_canned(1, vec![lie]), 100, &[(0, 10)]));
        assert_eq!(carrier.take_responses(1), [(FetchId(1), 0, want)], "{text}");
    }
}

#[test]
fn the_request_is_the_applications_own_with_ranges_and_their_condition() {
    let (sender, requests_seen) = std::sync::mpsc::channel();
    let address = serve_script(move |mut stream| {
        sender.send(read_requests(&mut stream, 1)).expect("the receiver exists");
        let _ = stream.write_all(b"HTTP/1.1 404 N\r\nContent-Length: 0\r\n\r\n");
    });
    let mut carrier = FillClient::new();
    carrier.send_fetch(fetch(1, address, 100, &[(0, 10), (20, 30)]));
    assert_eq!(carrier.take_responses(2).len(), 2);
    let want = "GET /data HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n\
                Range: bytes=0-9,20-29\r\nIf-Range: \"x\"\r\n\r\n";
    assert_eq!(requests_seen.recv().expect("a request"), want);
}

#[test]
fn what_was_cancelled_is_not_answered() {
    let Some(nginx) = Nginx::start("", 10_000, None) else { return };
    let (mut carrier, etag) = (FillClient::new(), etag(&nginx));
    // A server that takes the request and says nothing.
    let unresponsive = serve_script(|mut stream| {
        read_requests(&mut stream, 1);
        std::thread::sleep(TIMEOUT);
    });
    carrier.send_fetch(fetch(1, unresponsive, 10_000, &[(0, 10)]));
    carrier.commands.send(FetchCommand::Cancel(FetchId(1))).expect("it lives");
    carrier.send_fetch(Fetch { etag, ..fetch(2, nginx.address, 10_000, &[(0, 10)]) });
    assert_eq!(carrier.take_responses(1), [(FetchId(2), 0, Some(nginx.data[..10].to_vec()))]);
}
