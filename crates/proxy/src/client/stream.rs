//! The connection of a client: adds a line of text to the responses that hyper sends on its own.
//!
//! hyper answers a request that it cannot parse with an empty 400 (414 or 431 if it is too long) and has no hook for the
//! body. Such a response is recognized when it is written: the last request that was read did not reach the service, and the
//! head has only the three fields that hyper sets.
//!
//! Reading each request before hyper does was not used: it would need a second parser for the framing of bodies.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The connection of a client; see the [module documentation](self).
pub(crate) struct ClientStream {
    stream: TcpStream,
    /// The service has received a request since bytes were last read. So the response is its own, and not hyper's.
    is_served: Arc<AtomicBool>,
    replacement: Option<ReplacedResponse>,
}

/// A response that is written instead of another one.
struct ReplacedResponse {
    bytes: Vec<u8>,
    written: usize,
    /// The length of the response that it replaces.
    replaced_len: usize,
}

impl ClientStream {
    /// The flag must be set when a request reaches the service.
    pub(crate) fn new(stream: TcpStream) -> (Self, Arc<AtomicBool>) {
        let is_served = Arc::new(AtomicBool::new(false));
        (Self { stream, is_served: Arc::clone(&is_served), replacement: None }, is_served)
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    /// Starts to replace the bytes if they are a response of hyper. Returns whether a replacement is being written.
    fn begin_replacement(&mut self, bytes: &[u8]) -> bool {
        if self.replacement.is_none() && !self.is_served.load(Ordering::Relaxed) {
            self.replacement = with_explanation(bytes).map(|bytes_with_text| ReplacedResponse {
                bytes: bytes_with_text,
                written: 0,
                replaced_len: bytes.len(),
            });
        }
        self.replacement.is_some()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.is_served.store(false, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !self.begin_replacement(buf) {
            return Pin::new(&mut self.stream).poll_write(cx, buf);
        }
        let Self { stream, replacement: explained, .. } = &mut *self;
        let Some(response) = explained else { return Poll::Ready(Ok(0)) };
        while let Some(unwritten) = response.bytes.get(response.written..).filter(|slice| !slice.is_empty()) {
            match ready!(Pin::new(&mut *stream).poll_write(cx, unwritten))? {
                0 => return Poll::Ready(Ok(0)),
                written => response.written += written,
            }
        }
        let replaced_len = response.replaced_len;
        *explained = None;
        Poll::Ready(Ok(replaced_len))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [only] if self.begin_replacement(only) => self.poll_write(cx, only),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The response with a line of text, if it is one of hyper's own.
fn with_explanation(response: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(response).ok()?.strip_suffix("\r\n\r\n")?;
    let (status, fields) = head.split_once("\r\n")?;
    let message = match status.strip_prefix("HTTP/1.1 ")?.get(..3)? {
        "400" => {
            "the request is not valid HTTP, or its URL has a character that must be percent-encoded (%3C for <)"
        }
        "414" => "the URL of the request is too long",
        "431" => "the header fields of the request are too long",
        _ => return None,
    };
    let is_hyper_field =
        |field: &str| matches!(field, "connection: close" | EMPTY_BODY_FIELD) || field.starts_with("date: ");
    if !(fields.split("\r\n").all(is_hyper_field) && fields.contains(EMPTY_BODY_FIELD)) {
        return None;
    }
    let entity_fields = format!(
        "content-type: text/plain; charset=utf-8\r\nx-content-type-options: nosniff\r\ncontent-length: {}",
        message.len() + 1
    );
    Some(
        format!("{status}\r\n{}\r\n\r\n{message}\n", fields.replace(EMPTY_BODY_FIELD, &entity_fields)).into_bytes(),
    )
}

const EMPTY_BODY_FIELD: &str = "content-length: 0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_responses_of_hyper_itself_are_explained() {
        let response = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let text = String::from_utf8(with_explanation(response.as_bytes()).unwrap()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{text}");
        assert!(head.contains("date: x") && body.contains("%3C") && body.lines().count() == 1, "{text}");
        for other in [
            response.replace("400 Bad Request", "200 OK"),
            response.replace("date: x", "server: y"),
            response.replace("content-length: 0", "content-length: 2"),
            response.replace("content-length: 0\r\n", ""),
            format!("{response}x"),
        ] {
            assert_eq!(with_explanation(other.as_bytes()), None, "{other}");
        }
    }
}
