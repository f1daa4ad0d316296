//! As much of an HTTP/1.1 client as an emulated player needs: one long answer that is read slowly, and a page that is
//! asked and told small things over one connection.
//!
//! The proxy's client was not used: it measures, retries and spreads over links, and here it is the other side that is
//! measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer of known length that is under way.
#[derive(Debug)]
pub(super) struct HttpResponse {
    stream: TcpStream,
    /// What came with the head.
    buffered: Vec<u8>,
    /// How long its body is.
    pub(super) length: u64,
}

impl HttpResponse {
    /// Asks a proxy's media port for a URL, and waits for the head.
    pub(super) fn get(media: SocketAddr, url: &str, limit: Duration) -> Result<Self, String> {
        let ask = || -> io::Result<(TcpStream, Vec<u8>, ResponseHead)> {
            let mut stream = TcpStream::connect(media)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            let request = format!("GET /{url} HTTP/1.1\r\nHost: {media}\r\nUser-Agent: marline-lab-player\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let (early, head) = read_head(&mut stream)?;
            Ok((stream, early, head))
        };
        let (stream, mut early, head) = ask().map_err(|error| format!("the proxy's answer: {error}"))?;
        if head.status != 200 {
            let mut stream = stream;
            let _ = Read::by_ref(&mut stream).take(head.length.unwrap_or(0).min(1000)).read_to_end(&mut early);
            let said = String::from_utf8_lossy(&early);
            return Err(format!("the proxy answers {}: {}", head.status, said.trim()));
        }
        let length = head.length.ok_or("the proxy's answer has no length")?;
        Ok(Self { stream, buffered: early, length })
    }

    /// Some of the body; none: nothing came in this time. Zero bytes: the proxy has closed.
    pub(super) fn read(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<Option<usize>> {
        if !self.buffered.is_empty() {
            let length = self.buffered.len().min(buffer.len());
            let remaining = self.buffered.split_off(length);
            buffer.iter_mut().zip(&self.buffered).for_each(|(to, byte)| *to = *byte);
            self.buffered = remaining;
            return Ok(Some(length));
        }
        self.stream.set_read_timeout(Some(wait))?;
        match self.stream.read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The proxy's status port.
#[derive(Debug)]
pub(super) struct StatusClient {
    host: String,
    /// With the token, and a slash at both ends.
    path: String,
    stream: Option<TcpStream>,
}

impl StatusClient {
    /// `status_url`: as the proxy prints it, `http://127.0.0.1:PORT/TOKEN/`.
    pub(super) fn new(status_url: &str) -> Result<Self, String> {
        let parts = status_url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (host, path) = parts.ok_or_else(|| format!("`{status_url}` is no address of a status"))?;
        let slash = if path.ends_with('/') { "" } else { "/" };
        Ok(Self { host: host.to_owned(), path: format!("/{path}{slash}"), stream: None })
    }

    /// One object.
    pub(super) fn get(&mut self, object_path: &str) -> Result<Value, String> {
        let request = format!("GET {}{object_path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.host);
        let body = self.request(&request).map_err(|error| format!("the proxy's {object_path}: {error}"))?;
        serde_json::from_slice(&body).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// Tells one object.
    pub(super) fn post(&mut self, object_path: &str, object: &Value) -> Result<(), String> {
        let (path, host, text) = (&self.path, &self.host, object.to_string());
        let fields = format!("Content-Type: application/json\r\nContent-Length: {}", text.len());
        let request = format!("POST {path}{object_path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n\r\n{text}");
        self.request(&request).map(drop).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// The body of a good answer. An idle connection that was closed meanwhile is opened anew, once.
    fn request(&mut self, request: &str) -> io::Result<Vec<u8>> {
        if let Some(stream) = self.stream.take()
            && let Ok(body) = self.request_over(stream, request)
        {
            return Ok(body);
        }
        let stream = TcpStream::connect(&self.host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STATUS_TIMEOUT))?;
        self.request_over(stream, request)
    }

    fn request_over(&mut self, mut stream: TcpStream, request: &str) -> io::Result<Vec<u8>> {
        stream.write_all(request.as_bytes())?;
        let (mut body, head) = read_head(&mut stream)?;
        let length = head.length.ok_or_else(|| io::Error::other("an answer without a length"))?;
        let left = length.saturating_sub(body.len() as u64);
        Read::by_ref(&mut stream).take(left).read_to_end(&mut body)?;
        if head.status != 200 {
            let said = format!("{}: {}", head.status, String::from_utf8_lossy(&body).trim());
            return Err(io::Error::other(said));
        }
        self.stream = Some(stream);
        Ok(body)
    }
}

/// What is read of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ResponseHead {
    status: u16,
    length: Option<u64>,
}

/// Reads a head, and what came behind it.
fn read_head(stream: &mut TcpStream) -> io::Result<(Vec<u8>, ResponseHead)> {
    let mut held = Vec::new();
    let mut part = [0; 4096];
    loop {
        if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            let early = held.split_off(end + 4);
            let head = parse_head(&held).ok_or_else(|| io::Error::other("no HTTP answer"))?;
            return Ok((early, head));
        }
        if held.len() > MAX_HEAD {
            return Err(io::Error::other("a head without an end"));
        }
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => held.extend(part.get(..length).unwrap_or_default()),
        }
    }
}

fn parse_head(head: &[u8]) -> Option<ResponseHead> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    };
    Some(ResponseHead { status, length: lines.find_map(field) })
}

/// The status port is on this machine and answers at once.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// No head of ours is half as long.
const MAX_HEAD: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_a_status_and_perhaps_a_length() {
        let head = parse_head(b"HTTP/1.1 200 OK\r\nContent-length: 12\r\n\r\n");
        assert_eq!(head, Some(ResponseHead { status: 200, length: Some(12) }));
        assert_eq!(parse_head(b"HTTP/1.1 503 No\r\n\r\n"), Some(ResponseHead { status: 503, length: None }));
        for bad in ["", "HTTP/2 200\r\n", "SIP/2.0 200 OK\r\n"] {
            assert_eq!(parse_head(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_status_has_its_address_and_token() {
        let page = StatusClient::new("http://127.0.0.1:4711/token/").unwrap();
        assert_eq!((page.host.as_str(), page.path.as_str()), ("127.0.0.1:4711", "/token/"));
        assert!(StatusClient::new("127.0.0.1").is_err());
    }
}
