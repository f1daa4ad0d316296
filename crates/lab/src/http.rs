//! HTTP/1.1 client of the laboratory: one blocking connection, one request at a time, over any TCP socket.
//!
//! The clients that measure are built on it: the emulated players, the web page and the downloads over MPTCP.
//!
//! hyper is not used. These clients are threads in network namespaces, they take bytes from the socket at the moment at which the
//! emulated program would, and they record when each byte arrived. hyper reads ahead into a buffer of its own, so that a player that has
//! stopped reading would still receive, and it needs an event loop for each thread. httparse parses the heads.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection and the bytes that were received after the head of a response.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    stream: TcpStream,
    buffered: Vec<u8>,
}

/// The fields of a response's head that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    /// Text of the status line after the status.
    pub(crate) reason: String,
    /// Content-Length.
    pub(crate) length: Option<u64>,
}

/// Limit for the head of a response; those of the proxy are less than half as long.
const MAX_HEAD: usize = 16_384;
/// Limit for the fields of a head.
const MAX_FIELDS: usize = 64;

impl HttpConnection {
    /// Uses this connected socket. Its read timeout is the longest time that [`Self::read`] waits.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, buffered: Vec::new() }
    }

    /// Sets the longest time that [`Self::read`] waits.
    pub(crate) fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(time))
    }

    /// Sends a GET request with these further header fields.
    pub(crate) fn get(&mut self, host: &str, path: &str, fields: &[(&str, &str)]) -> io::Result<()> {
        self.send("GET", host, path, fields, b"")
    }

    /// Sends a request. `path` begins with a slash.
    pub(crate) fn send(
        &mut self,
        method: &str,
        host: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        self.buffered.clear();
        self.stream.write_all(&[head.as_bytes(), body].concat())
    }

    /// Waits for the head of the response. `on_timeout` is called whenever the read timeout has passed; its error ends the wait.
    pub(crate) fn read_head(&mut self, mut on_timeout: impl FnMut() -> io::Result<()>) -> io::Result<ResponseHead> {
        let (mut received, mut part) = (Vec::new(), [0; 4096]);
        loop {
            if let Some((head, length)) = parse_head(&received)? {
                self.buffered = received.split_off(length);
                return Ok(head);
            }
            if received.len() > MAX_HEAD {
                return Err(io::Error::other("the head of the response is too long"));
            }
            match self.read(&mut part)? {
                None => on_timeout()?,
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(length) => received.extend(part.get(..length).unwrap_or_default()),
            }
        }
    }

    /// Reads some bytes of the body; `None` if none arrived within the read timeout, 0 at the end of the connection.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if !self.buffered.is_empty() {
            let length = self.buffered.as_slice().read(buffer)?;
            self.buffered.drain(..length);
            return Ok(Some(length));
        }
        match self.stream.read(buffer) {
            Ok(length) => Ok(Some(length)),
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a body of this length.
    pub(crate) fn read_body(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut part = [0; 4096];
        while (body.len() as u64) < length {
            let left = usize::try_from(length - body.len() as u64).unwrap_or(usize::MAX).min(part.len());
            match self.read(part.get_mut(..left).unwrap_or_default())? {
                None => return Err(io::ErrorKind::TimedOut.into()),
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => body.extend(part.get(..count).unwrap_or_default()),
            }
        }
        Ok(body)
    }
}

/// Whether the error only means that no data has arrived yet.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// An error for waits that end at the first timeout.
pub(crate) fn timed_out() -> io::Result<()> {
    Err(io::ErrorKind::TimedOut.into())
}

/// The head and its length in bytes; none while it is incomplete.
fn parse_head(received: &[u8]) -> io::Result<Option<(ResponseHead, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(received);
    let parsed = parsed.map_err(|error| io::Error::other(format!("not an HTTP response: {error}")))?;
    let httparse::Status::Complete(end) = parsed else { return Ok(None) };
    let mut lengths = response.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse().ok());
    let head = ResponseHead {
        status: response.code.unwrap_or_default(),
        reason: response.reason.unwrap_or_default().to_owned(),
        length,
    };
    Ok(Some((head, end)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_head_has_a_status_and_perhaps_a_length() {
        let head = |text: &str| parse_head(text.as_bytes());
        let complete = "HTTP/1.1 200 OK\r\nContent-length: 12\r\n\r\n";
        let expected = ResponseHead { status: 200, reason: "OK".into(), length: Some(12) };
        assert_eq!(head(&format!("{complete}body")).unwrap(), Some((expected, complete.len())));
        assert_eq!(head("HTTP/1.1 503 No\r\n\r\n").unwrap().unwrap().0.length, None);
        assert_eq!(head("HTTP/1.1 200 OK\r\nContent-le").unwrap(), None);
        for bad in ["SSH-2.0\r\n\r\n", "\u{ff}"] {
            assert!(head(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_bytes_after_the_head_belong_to_the_body() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = HttpConnection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (mut server, _) = listener.accept().unwrap();
        client.set_read_timeout(Duration::from_millis(1)).unwrap();
        client.get("h", "/x", &[("Range", "bytes=3-")]).unwrap();
        let mut request = [0; 64];
        let length = server.read(&mut request).unwrap();
        assert_eq!(&request[..length], b"GET /x HTTP/1.1\r\nHost: h\r\nRange: bytes=3-\r\n\r\n");
        assert!(client.read_head(timed_out).is_err_and(|error| is_timeout(&error)));
        server.write_all(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nab").unwrap();
        client.set_read_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(client.read_head(timed_out).unwrap().status, 206);
        server.write_all(b"cde").unwrap();
        assert_eq!(client.read_body(5).unwrap(), b"abcde");
        drop(server);
        assert_eq!(client.read(&mut [0; 8]).unwrap(), Some(0));
    }
}
