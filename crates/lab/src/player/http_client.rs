//! Minimal HTTP/1.1 client of the emulated player: one long response that is read slowly, and short requests to the
//! proxy's status port over one connection.
//!
//! The client of the proxy itself was not used: it measures, retries and uses several links. Here the proxy is what
//! is measured.
//! measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response of known length whose body is being read.
#[derive(Debug)]
pub(super) struct HttpResponse {
    stream: TcpStream,
    /// Bytes of the body that arrived together with the head.
    buffered: Vec<u8>,
    /// Length of the body in bytes.
    pub(super) length: u64,
}

impl HttpResponse {
    /// Requests a URL from the media port of a proxy and waits for the head of the response.
    pub(super) fn get(media: SocketAddr, url: &str, limit: Duration) -> Result<Self, String> {
        let send_request = || -> io::Result<(TcpStream, Vec<u8>, ResponseHead)> {
            let mut stream = TcpStream::connect(media)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            let request = format!("GET /{url} HTTP/1.1\r\nHost: {media}\r\nUser-Agent: marline-lab-player\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let (early, head) = read_head(&mut stream)?;
            Ok((stream, early, head))
        };
        let (stream, mut early, head) = send_request().map_err(|error| format!("the proxy's response: {error}"))?;
        if head.status != 200 {
            let mut stream = stream;
            let _ = Read::by_ref(&mut stream).take(head.length.unwrap_or(0).min(1000)).read_to_end(&mut early);
            let body_text = String::from_utf8_lossy(&early);
            return Err(format!("the proxy responds {}: {}", head.status, body_text.trim()));
        }
        let length = head.length.ok_or("the proxy's response has no Content-Length")?;
        Ok(Self { stream, buffered: early, length })
    }

    /// Reads some of the body; `None` if nothing arrived within `wait`, zero bytes if the proxy closed the
    /// connection.
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

/// Client of the proxy's status port.
#[derive(Debug)]
pub(super) struct StatusClient {
    host: String,
    /// Path with the token, with a slash at both ends.
    path: String,
    stream: Option<TcpStream>,
}

impl StatusClient {
    /// `status_url` is the URL that the proxy prints: `http://127.0.0.1:PORT/TOKEN/`.
    pub(super) fn new(status_url: &str) -> Result<Self, String> {
        let parts = status_url.strip_prefix("http://").and_then(|remaining| remaining.split_once('/'));
        let (host, path) = parts.ok_or_else(|| format!("`{status_url}` is not the URL of a status port"))?;
        let slash = if path.ends_with('/') { "" } else { "/" };
        Ok(Self { host: host.to_owned(), path: format!("/{path}{slash}"), stream: None })
    }

    /// Gets one JSON object.
    pub(super) fn get(&mut self, object_path: &str) -> Result<Value, String> {
        let request = format!("GET {}{object_path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.path, self.host);
        let body = self.request(&request).map_err(|error| format!("the proxy's {object_path}: {error}"))?;
        serde_json::from_slice(&body).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// Posts one JSON object.
    pub(super) fn post(&mut self, object_path: &str, object: &Value) -> Result<(), String> {
        let (path, host, text) = (&self.path, &self.host, object.to_string());
        let fields = format!("Content-Type: application/json\r\nContent-Length: {}", text.len());
        let request = format!("POST {path}{object_path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n\r\n{text}");
        self.request(&request).map(drop).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// Returns the body of a successful response. If the idle connection has been closed meanwhile, opens a new
    /// one, once.
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
        let length = head.length.ok_or_else(|| io::Error::other("a response without Content-Length"))?;
        let left = length.saturating_sub(body.len() as u64);
        Read::by_ref(&mut stream).take(left).read_to_end(&mut body)?;
        if head.status != 200 {
            let body_text = format!("{}: {}", head.status, String::from_utf8_lossy(&body).trim());
            return Err(io::Error::other(body_text));
        }
        self.stream = Some(stream);
        Ok(body)
    }
}

/// The fields of a response's head that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ResponseHead {
    status: u16,
    length: Option<u64>,
}

/// Reads the head of a response; also returns the bytes received after it.
fn read_head(stream: &mut TcpStream) -> io::Result<(Vec<u8>, ResponseHead)> {
    let mut received = Vec::new();
    let mut part = [0; 4096];
    loop {
        if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let early = received.split_off(end + 4);
            let head = parse_head(&received).ok_or_else(|| io::Error::other("not an HTTP response"))?;
            return Ok((early, head));
        }
        if received.len() > MAX_HEAD {
            return Err(io::Error::other("the head of the response is too long"));
        }
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => received.extend(part.get(..length).unwrap_or_default()),
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

/// The status port is on this machine and answers at once; the margin is for a busy machine.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for the head of a response; those of the proxy are less than half as long.
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
