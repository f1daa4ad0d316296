//! The bytes of a flow, in both directions: any range of either stream, from the requests and responses of a script.
//!
//! 1. A stream is a sequence of texts and resources. A resource's byte is a function of its number and its offset, so
//!    nothing has to be stored and everything can be compared.
//! 2. A flow of plain HTTP has readable heads; any other has pseudo-random bytes only, as TLS would show.

use std::net::SocketAddr;

use crate::accel::scenario::FlowScript;
use crate::link::Direction;

/// Both streams of a flow.
#[derive(Clone, Debug, Default)]
pub struct ByteStreams {
    up: Vec<Piece>,
    down: Vec<Piece>,
    /// Offset in the upstream at which each request ends.
    requests: Vec<u64>,
    responses: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    end: u64,
    content: PieceContent,
}

#[derive(Clone, Debug)]
enum PieceContent {
    Text(Vec<u8>),
    Resource(u64),
}

impl ByteStreams {
    /// Of the n-th flow of a scenario.
    pub(super) fn new(script: &FlowScript, n: usize, server: SocketAddr) -> Self {
        let mut content = Self { up: Vec::new(), down: Vec::new(), requests: Vec::new(), responses: Vec::new() };
        for (exchange, k) in script.exchanges.iter().zip(0_u64..) {
            let name = resource_id(n as u64, k);
            if script.is_http {
                let request = format!("GET /{name} HTTP/1.1\r\nHost: {server}\r\nAccept: */*\r\n\r\n");
                push(&mut content.up, request.len() as u64, PieceContent::Text(request.into_bytes()));
                let head = response_head(name, exchange.response);
                push(&mut content.down, head.len() as u64, PieceContent::Text(head.into_bytes()));
            } else {
                push(&mut content.up, exchange.request, PieceContent::Resource(!name));
            }
            push(&mut content.down, exchange.response, PieceContent::Resource(name));
            content.requests.push(end(&content.up));
            content.responses.push(end(&content.down));
        }
        content
    }

    /// Of a connection that requests one resource.
    pub(super) fn single_response(name: u64, length: u64) -> Self {
        let mut content = Self::default();
        let head = response_head(name, length);
        push(&mut content.down, head.len() as u64, PieceContent::Text(head.into_bytes()));
        push(&mut content.down, length, PieceContent::Resource(name));
        content.responses.push(end(&content.down));
        content
    }

    /// Where the requests end in the upstream.
    pub(super) fn requests(&self) -> &[u64] {
        &self.requests
    }

    /// Where the responses end in the downstream.
    pub(super) fn responses(&self) -> &[u64] {
        &self.responses
    }

    /// The bytes `from..to` of a stream; bytes beyond its end are zero.
    pub(super) fn bytes(&self, direction: Direction, from: u64, to: u64) -> Vec<u8> {
        let pieces = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(to - from).unwrap_or(0));
        let first = pieces.partition_point(|piece| piece.end <= from);
        let mut at = from;
        for piece in pieces.iter().skip(first).take_while(|piece| piece.start < to) {
            let (start, end) = (at - piece.start, to.min(piece.end) - piece.start);
            match &piece.content {
                PieceContent::Text(text) => {
                    bytes.extend_from_slice(text.get(index(start)..index(end)).unwrap_or(&[]))
                }
                PieceContent::Resource(name) => append_bytes(&mut bytes, *name, start, end),
            }
            at = piece.start + end;
        }
        bytes.resize(index(to - from), 0);
        bytes
    }
}

/// The number of the resource of the n-th flow's k-th request.
pub(super) const fn resource_id(n: u64, k: u64) -> u64 {
    n * 1000 + k + 1
}

/// The strong validator of a resource.
pub(super) fn etag(name: u64) -> String {
    format!("\"r{name}\"")
}

/// Bytes `from..to` of a resource.
pub(super) fn append_bytes(bytes: &mut Vec<u8>, name: u64, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let block = scramble(name, at / 8).to_le_bytes();
        let (first, last) = (index(at % 8), index((to - at / 8 * 8).min(8)));
        bytes.extend_from_slice(block.get(first..last).unwrap_or(&[]));
        at = (at / 8 + 1) * 8;
    }
}

fn response_head(name: u64, length: u64) -> String {
    let etag = etag(name);
    format!(
        "HTTP/1.1 200 OK\r\nServer: origin\r\nAccept-Ranges: bytes\r\nETag: {etag}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn push(pieces: &mut Vec<Piece>, length: u64, content: PieceContent) {
    let start = end(pieces);
    pieces.push(Piece { start, end: start + length, content });
}

fn end(pieces: &[Piece]) -> u64 {
    pieces.last().map_or(0, |piece| piece.end)
}

/// Eight bytes of a resource: pseudo-random, different for each resource and 8-byte block.
const fn scramble(name: u64, index: u64) -> u64 {
    let z = (name << 40 ^ index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 32)
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accel::scenario::Exchange;

    #[test]
    fn any_range_of_a_stream_gives_the_same_bytes() {
        let mut script = FlowScript::download(20_000);
        script.is_http = true;
        script.exchanges.push(Exchange { response: 77, ..script.exchanges[0] });
        let content = ByteStreams::new(&script, 0, "192.0.2.1:80".parse().unwrap());
        let end = *content.responses().last().unwrap();
        let response = content.bytes(Direction::Down, 0, end);
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
        for (from, to) in [(0, 1), (3, 200), (100, 400), (20_000, end - 5), (end - 3, end)] {
            assert_eq!(content.bytes(Direction::Down, from, to), &response[index(from)..index(to)], "{from}..{to}");
        }
        let request = content.bytes(Direction::Up, 0, content.requests()[0]);
        assert!(request.starts_with(b"GET /1 HTTP/1.1\r\n") && request.ends_with(b"\r\n\r\n"));
    }
}
