//! HTTP requests of the emulated player: one long response that is read slowly, and short requests to the proxy's
//! status port over one connection.
//!
//! The client of marline itself was not used: it measures, retries and uses several links. Here the proxy is what
//! is measured.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::http::{HttpConnection, ResponseHead, timed_out};

/// A response of known length whose body is being read.
#[derive(Debug)]
pub(super) struct HttpResponse {
    connection: HttpConnection,
    /// Length of the body in bytes.
    pub(super) length: u64,
}

impl HttpResponse {
    /// Requests a URL from the media port of a proxy and waits for the head of the response.
    pub(super) fn get(media: SocketAddr, url: &str, limit: Duration) -> Result<Self, String> {
        let request = || -> io::Result<(HttpConnection, ResponseHead)> {
            let mut connection = connect(media, limit)?;
            connection.get(&media.to_string(), &format!("/{url}"), &[("User-Agent", "marline-lab-player")])?;
            let head = connection.read_head(timed_out)?;
            Ok((connection, head))
        };
        let (mut connection, head) = request().map_err(|error| format!("the proxy's response: {error}"))?;
        if head.status != 200 {
            let body = connection.read_body(head.length.unwrap_or(0).min(1000)).unwrap_or_default();
            let body_text = String::from_utf8_lossy(&body);
            return Err(format!("the proxy responds {}: {}", head.status, body_text.trim()));
        }
        let length = head.length.ok_or("the proxy's response has no Content-Length")?;
        Ok(Self { connection, length })
    }

    /// Reads some of the body; `None` if nothing arrived within `wait`, zero bytes if the proxy closed the
    /// connection.
    pub(super) fn read(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<Option<usize>> {
        self.connection.set_read_timeout(wait)?;
        self.connection.read(buffer)
    }
}

/// Client of the proxy's status port.
#[derive(Debug)]
pub(super) struct StatusClient {
    host: String,
    /// Path with the token, with a slash at both ends.
    path: String,
    connection: Option<HttpConnection>,
}

impl StatusClient {
    /// `status_url` is the URL that the proxy prints: `http://127.0.0.1:PORT/TOKEN/`.
    pub(super) fn new(status_url: &str) -> Result<Self, String> {
        let parts = status_url.strip_prefix("http://").and_then(|remaining| remaining.split_once('/'));
        let (host, path) = parts.ok_or_else(|| format!("`{status_url}` is not the URL of a status port"))?;
        let slash = if path.ends_with('/') { "" } else { "/" };
        Ok(Self { host: host.to_owned(), path: format!("/{path}{slash}"), connection: None })
    }

    /// Gets one JSON object.
    pub(super) fn get(&mut self, object_path: &str) -> Result<Value, String> {
        let body =
            self.request("GET", object_path, "").map_err(|error| format!("the proxy's {object_path}: {error}"))?;
        serde_json::from_slice(&body).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// Posts one JSON object.
    pub(super) fn post(&mut self, object_path: &str, object: &Value) -> Result<(), String> {
        let outcome = self.request("POST", object_path, &object.to_string());
        outcome.map(drop).map_err(|error| format!("the proxy's {object_path}: {error}"))
    }

    /// Returns the body of a successful response. If the idle connection has been closed meanwhile, opens a new
    /// one, once.
    fn request(&mut self, method: &str, object_path: &str, object: &str) -> io::Result<Vec<u8>> {
        if let Some(connection) = self.connection.take()
            && let Ok(body) = self.request_over(connection, method, object_path, object)
        {
            return Ok(body);
        }
        let address = self.host.parse().map_err(io::Error::other)?;
        self.request_over(connect(address, STATUS_TIMEOUT)?, method, object_path, object)
    }

    fn request_over(
        &mut self,
        mut connection: HttpConnection,
        method: &str,
        object_path: &str,
        object: &str,
    ) -> io::Result<Vec<u8>> {
        let length = object.len().to_string();
        let fields = [("Content-Type", "application/json"), ("Content-Length", length.as_str())];
        let fields = if object.is_empty() { &[][..] } else { &fields };
        connection.send(method, &self.host, &format!("{}{object_path}", self.path), fields, object.as_bytes())?;
        let head = connection.read_head(timed_out)?;
        let length = head.length.ok_or_else(|| io::Error::other("a response without Content-Length"))?;
        let body = connection.read_body(length)?;
        if head.status != 200 {
            let body_text = format!("{}: {}", head.status, String::from_utf8_lossy(&body).trim());
            return Err(io::Error::other(body_text));
        }
        self.connection = Some(connection);
        Ok(body)
    }
}

/// Connects; reads wait for `timeout` at most.
fn connect(address: SocketAddr, timeout: Duration) -> io::Result<HttpConnection> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    Ok(HttpConnection::new(stream))
}

/// The status port is on this machine and answers at once; the margin is for a busy machine.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_address_and_token() {
        let page = StatusClient::new("http://127.0.0.1:4711/token/").unwrap();
        assert_eq!((page.host.as_str(), page.path.as_str()), ("127.0.0.1:4711", "/token/"));
        assert!(StatusClient::new("127.0.0.1").is_err());
    }
}
