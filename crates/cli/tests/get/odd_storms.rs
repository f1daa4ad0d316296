//! Servers that close connections or ignore pipelined requests: retries must not multiply, not even while another link is unresponsive.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::network::Network;
use crate::program::Program;
use crate::server::{Resource, Response, Server, Step};

const BODY: &[u8] = b"small file\n";

fn small(status: u16) -> Response {
    let answer = Response::status(status).with("ETag", "\"x\"").with("Content-Length", "11");
    answer.with_steps([Step::Raw(BODY.to_vec())])
}

/// Servers of a small file, by how they end responses and connections.
fn servers(network: &Network) -> Vec<(&'static str, Server)> {
    vec![
        ("close200", network.serve(|_| small(200).with("Connection", "close"))),
        ("keep200", network.serve(|_| small(200))),
        (
            "http10",
            network.serve(|_| {
                let mut answer = small(200).http_1_0().without("Content-Length").without("ETag");
                answer.steps.push(Step::Close);
                answer
            }),
        ),
        (
            "keep206",
            network.serve(|request| match &request.range {
                Some(range) if range.start >= 11 => Response::status(416).with("Content-Range", "bytes */11"),
                _ => small(206).with("Content-Range", "bytes 0-10/11"),
            }),
        ),
        (
            "close-silently",
            network.serve(|_| {
                let mut answer = small(200);
                answer.steps.push(Step::Close);
                answer
            }),
        ),
        ("close403", network.serve(|_| Response::status(403).with("Connection", "close"))),
        ("close503", network.serve(|_| Response::status(503).with("Connection", "close"))),
        ("close-nothing", network.serve(|_| Response::garbage(b""))),
    ]
}

#[test]
fn an_unresponsive_link_does_not_multiply_requests() {
    let Some(network) = Network::two_links() else { return };
    let servers = servers(&network);
    network.cut("lte0");
    thread::scope(|scope| {
        for (name, server) in &servers {
            let network = &network;
            scope.spawn(move || {
                let program = network.program();
                let ended =
                    program.run(&[&server.url("/f"), "-o", "out", "--json", "--retry", "3", "--max-time", "15s"]);
                let request_count = server.requests().len();
                println!("{name}: {:?} after {request_count} requests: {:?}", ended.code, ended.notices());
                assert!(request_count <= 8, "{name}: {request_count} requests for {} bytes", BODY.len());
                if name.starts_with("keep") || name.starts_with("close200") || *name == "http10" {
                    assert_eq!(program.file("out").as_deref(), Some(BODY), "{name}: {}", ended.err);
                }
            });
        }
    });
}

/// A server that answers only the first request of each read and ignores the pipelined ones; `reads_of_two` counts the ignored requests.
fn ignoring_pipelined(resource: &Resource, reads_of_two: &Arc<AtomicUsize>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (data, twos) = (Arc::clone(&resource.data), Arc::clone(reads_of_two));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (data, twos) = (Arc::clone(&data), Arc::clone(&twos));
            thread::spawn(move || answer_first_of_each_read(stream, &data, &twos));
        }
    });
    // This server is a placeholder: only its address is used.
    let mut server = Server::start(|_| Response::status(404));
    server.address = address;
    server
}

fn answer_first_of_each_read(mut stream: TcpStream, data: &[u8], twos: &AtomicUsize) -> Option<()> {
    let _ = stream.set_nodelay(true);
    loop {
        let mut heads = Vec::new();
        while !heads.windows(4).any(|four| four == b"\r\n\r\n") {
            let mut piece = [0; 65_536];
            let len = stream.read(&mut piece).ok().filter(|len| *len > 0)?;
            heads.extend_from_slice(&piece[..len]);
        }
        let text = String::from_utf8_lossy(&heads).into_owned();
        twos.fetch_add(text.matches("\r\n\r\n").count() - 1, Ordering::Relaxed);
        let range = text.lines().find_map(|line| line.strip_prefix("Range: bytes="))?;
        let (start, end) = range.split_once('-')?;
        let (start, end) = (start.parse::<usize>().ok()?, end.parse::<usize>().map_or(data.len(), |end| end + 1));
        let (end, total) = (end.min(data.len()), data.len());
        let head = format!(
            "HTTP/1.1 206 X\r\nETag: \"a\"\r\nContent-Range: bytes {start}-{}/{total}\r\nContent-Length: {}\r\n\r\n",
            end - 1,
            end - start
        );
        stream.write_all(head.as_bytes()).ok()?;
        for piece in data[start..end].chunks(40_000) {
            stream.write_all(piece).ok()?;
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_server_that_ignores_pipelined_requests_gets_no_more_of_them() {
    let resource = Resource::new(4_000_000);
    let forgotten = Arc::new(AtomicUsize::new(0));
    let server = ignoring_pipelined(&resource, &forgotten);
    let program = Program::new();
    let report = program.get(&server.url("/file")).report();
    assert!(program.file("out").unwrap() == *resource.data, "{report}");
    let forgotten = forgotten.load(Ordering::Relaxed);
    println!("{} s, {forgotten} forgotten", report["seconds"]);
    // The pipelined requests of one read are ignored; after that the program must not pipeline again.
    assert!(forgotten <= 40, "{forgotten}");
}
