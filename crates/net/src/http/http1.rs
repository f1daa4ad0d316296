//! An HTTP/1.1 connection (RFC 9112): requests out, pipelined; answers in, in order.
//!
//! In: requests, verdicts, turns to read. Out: events and body bytes. [`Answers`] knows what the bytes mean; here is
//! only the socket.
//!
//! 1. A turn reads once, straight into the caller's buffer, and the body goes from there to the sink.
//! 2. While a body of known length is due, no more is read than its rest and about a head behind it. So what has to
//!    be kept aside is never more than a few KiB, and no connection needs a buffer of its own.
//! 3. A failed write does not end anything: the server may have answered before it closed. Reading finds the end.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use marline_core::fetch::ReqId;
use marline_core::units::DataSize;

use super::answer::Answers;
use super::stream::Stream;
use super::{Event, Get, Sink, socket_trouble};

/// One connection.
pub(super) struct Http1 {
    stream: Stream,
    answers: Answers,
    /// Heads of requests that are not written yet.
    out: Vec<u8>,
    /// Bytes read and not yet taken: part of a head, or what lay behind one.
    held: Vec<u8>,
    /// What ended the last read, after bytes that had to be delivered first.
    deferred: Option<io::Error>,
}

impl Http1 {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, answers: Answers::new(), out: Vec::new(), held: Vec::new(), deferred: None }
    }

    pub(super) fn request(&mut self, req: ReqId, get: &Get) {
        get.emit(&mut self.out);
        self.answers.expect(req);
    }

    /// A request that is written already.
    pub(super) fn pass(&mut self, req: ReqId, head: &[u8]) {
        self.out.extend_from_slice(head);
        self.answers.expect(req);
    }

    pub(super) fn accept(&mut self, req: ReqId, limit: Option<DataSize>) {
        self.answers.accept(req, limit);
    }

    pub(super) fn cancel(&mut self, req: ReqId) {
        self.answers.cancel(req);
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    pub(super) fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        scratch: &mut [u8],
        sink: &mut dyn Sink,
        most: DataSize,
    ) -> Poll<Event> {
        self.write(cx);
        loop {
            if let Some(event) = self.answers.next() {
                return Poll::Ready(event);
            }
            if !self.answers.wants_bytes() {
                return Poll::Pending;
            }
            let in_body = self.answers.in_body();
            let most = if in_body { usize::try_from(most.bytes()).unwrap_or(usize::MAX) } else { usize::MAX };
            if !self.held.is_empty() {
                let part = self.held.get(..most).unwrap_or(&self.held);
                let (used, event) = self.answers.feed(part, sink);
                self.held.drain(..used);
                if let Some(event) = event {
                    return Poll::Ready(event);
                }
                if used > 0 {
                    continue;
                }
            }
            let size = self.answers.read_size().min(scratch.len()).min(most);
            if size == 0 {
                return Poll::Pending;
            }
            match std::task::ready!(self.read(cx, &mut scratch[..size])) {
                Ok(0) => self.answers.finish(None, self.held.len()),
                Ok(n) => {
                    if let Some(event) = self.take(&scratch[..n], sink) {
                        return Poll::Ready(event);
                    }
                }
                // TLS that ends without saying so: only inside a body that has an end of its own is that more than a plain end.
                Err(error)
                    if error.kind() == io::ErrorKind::UnexpectedEof
                        && (!self.answers.in_body() || self.answers.is_until_close()) =>
                {
                    self.answers.finish_bare(self.held.len());
                }
                Err(error) => {
                    let trouble = socket_trouble("connection lost", &error);
                    self.answers.finish(Some(trouble), self.held.len());
                }
            }
        }
    }

    /// Hands fresh bytes on, and keeps what is left of them.
    fn take(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Option<Event> {
        let (used, event) = if self.held.is_empty() { self.answers.feed(bytes, sink) } else { (0, None) };
        self.held.extend_from_slice(&bytes[used..]);
        event
    }

    /// One read of a plain socket. TLS gives at most a record at a time: there, as many as have come and fit.
    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.deferred.take() {
            return Poll::Ready(Err(error));
        }
        let records = self.stream.is_secure();
        let mut buffer = ReadBuf::new(buffer);
        loop {
            let before = buffer.filled().len();
            let end = match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending if before == 0 => return Poll::Pending,
                Poll::Ready(Err(error)) if before == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => {
                    self.deferred = Some(error);
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

    /// Writes what the socket takes.
    fn write(&mut self, cx: &mut Context<'_>) {
        while !self.out.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.out) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.out.drain(..n);
                }
                Poll::Ready(_) => self.out.clear(),
                Poll::Pending => return,
            }
        }
        // Only TLS has anything to flush, and its failures show when reading.
        let _ = Pin::new(&mut self.stream).poll_flush(cx);
    }
}
