//! An HTTP/1.1 connection (RFC 9112) with pipelined requests and responses in the same order.
//!
//! This module handles the socket; [`ResponseParser`] parses the bytes.
//!
//! 1. A call reads once, directly into the caller's buffer, and the body goes from there to the sink.
//! 2. While a body of known length is due, at most its remainder and about a head after it are read. So the bytes to
//!    be buffered are never more than a few KiB, and no connection needs a large buffer of its own.
//! 3. A failed write does not end the connection: the server may have responded before it closed. Reading finds the
//!    end.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;

use super::response::ResponseParser;
use super::transport::Transport;
use super::{Event, GetRequest, Sink, socket_error};

/// State of one connection.
pub(super) struct Http1 {
    stream: Transport,
    responses: ResponseParser,
    /// Heads of requests that were not written yet.
    write_buffer: Vec<u8>,
    /// Bytes that were read and not parsed yet: part of a head, or what followed one.
    unparsed: Vec<u8>,
    /// Error of the last read, kept until the bytes before it are delivered.
    deferred_error: Option<io::Error>,
}

impl Http1 {
    pub(super) fn new(stream: Transport) -> Self {
        Self {
            stream,
            responses: ResponseParser::new(),
            write_buffer: Vec::new(),
            unparsed: Vec::new(),
            deferred_error: None,
        }
    }

    pub(super) fn request(&mut self, req: ReqId, get: &GetRequest) {
        get.write_http1(&mut self.write_buffer);
        self.responses.expect_response(req);
    }

    /// Queues a request that is already encoded.
    pub(super) fn request_raw(&mut self, req: ReqId, head: &[u8]) {
        self.write_buffer.extend_from_slice(head);
        self.responses.expect_response(req);
    }

    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        self.responses.accept(req, limit);
    }

    pub(super) fn cancel(&mut self, req: ReqId) {
        self.responses.cancel(req);
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    pub(super) fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        sink: &mut dyn Sink,
        max_body: DataSize,
    ) -> Poll<Event> {
        self.write(cx);
        loop {
            if let Some(event) = self.responses.next_event() {
                return Poll::Ready(event);
            }
            if !self.responses.wants_bytes() {
                return Poll::Pending;
            }
            // `max_body` limits only body bytes; a head must be read completely to be useful.
            let in_body = self.responses.in_body();
            let max_body =
                if in_body { usize::try_from(max_body.bytes()).unwrap_or(usize::MAX) } else { usize::MAX };
            // Bytes that followed an earlier head or body come before new ones. If the parser uses none of them, the
            // head is incomplete and more must be read.
            if !self.unparsed.is_empty() {
                let part = self.unparsed.get(..max_body).unwrap_or(&self.unparsed);
                let (used, event) = self.responses.feed(part, sink);
                self.unparsed.drain(..used);
                if let Some(event) = event {
                    return Poll::Ready(event);
                }
                if used > 0 {
                    continue;
                }
            }
            let size = self.responses.read_size().min(scratch.len()).min(max_body);
            if size == 0 {
                return Poll::Pending;
            }
            match std::task::ready!(self.read(cx, &mut scratch[..size])) {
                Ok(0) => self.responses.on_eof(None, self.unparsed.len()),
                Ok(n) => {
                    if let Some(event) = self.parse_read(&scratch[..n], sink) {
                        return Poll::Ready(event);
                    }
                }
                // TLS ended without close_notify. That is an error only inside a body whose end is known by its
                // length or chunks.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof
                        && (!self.responses.in_body() || self.responses.is_until_close()) =>
                {
                    self.responses.on_eof_without_tls_close(self.unparsed.len());
                }
                Err(error) => {
                    let failure = socket_error("connection lost", &error);
                    self.responses.on_eof(Some(failure), self.unparsed.len());
                }
            }
        }
    }

    /// Passes new bytes to the parser, and buffers the rest.
    fn parse_read(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Option<Event> {
        let (used, event) = if self.unparsed.is_empty() { self.responses.feed(bytes, sink) } else { (0, None) };
        self.unparsed.extend_from_slice(&bytes[used..]);
        event
    }

    /// Reads a plain socket once. TLS returns at most one record at a time, so it is read until the buffer is full or
    /// nothing is pending.
    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.deferred_error.take() {
            return Poll::Ready(Err(error));
        }
        let records = self.stream.is_tls();
        let mut buffer = ReadBuf::new(buffer);
        loop {
            let before = buffer.filled().len();
            let end = match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending if before == 0 => return Poll::Pending,
                Poll::Ready(Err(error)) if before == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => {
                    self.deferred_error = Some(error);
                    true
                }
                Poll::Pending => true,
                Poll::Ready(Ok(())) => buffer.filled().len() == before,
            };
            if end || !records || buffer.remaining() == 0 {
                return Poll::Ready(Ok(buffer.filled().len()));
            }
        }
    }

    /// Writes as much as the socket accepts.
    fn write(&mut self, cx: &mut Context<'_>) {
        while !self.write_buffer.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.write_buffer) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.write_buffer.drain(..n);
                }
                Poll::Ready(_) => self.write_buffer.clear(),
                Poll::Pending => return,
            }
        }
        // Only TLS buffers anything to flush; its errors appear when reading.
        let _ = Pin::new(&mut self.stream).poll_flush(cx);
    }
}
