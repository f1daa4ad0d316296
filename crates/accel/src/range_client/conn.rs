//! One connection to one server over one link, and its fetches.
//!
//! 1. Requests are sent at once, behind those that are not answered yet.
//! 2. A server that closes between two responses, as servers do after some hundred requests or some seconds, costs a
//!    new connection and no bytes: what it has not begun to answer is requested again there. Two connections in a row
//!    that have answered nothing end it.
//! 3. A connection that delivers nothing for [`STALL_TIMEOUT`] although something is due is given up with all that is
//!    due.
//! 4. What was cancelled still comes, because HTTP/1.1 cannot cancel a request; when everything was cancelled, the
//!    connection is closed.
//! 5. A connection that has been idle for [`IDLE_TIMEOUT`] ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use marline_core::accel::{Fetch, FetchId};
use marline_core::fetch::{ReqId, ResponseHead};
use marline_core::units::DataSize;
use marline_net::http::{Connection, Event, ResponseMeta, Sink};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpSocket;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout};

use super::super::FetchCommand;
use super::FetchCallback;
use super::assembler::RangeAssembler;
use super::multipart::MultipartByteranges;

/// Server of a connection, and the link over which it is reached.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) device: String,
    pub(super) mark: Option<u32>,
    pub(super) server: SocketAddr,
}

/// A fetch on its connection.
struct FetchJob {
    fetch: Fetch,
    req: ReqId,
    assembler: RangeAssembler,
    body: Body,
}

/// What the body of its response is.
enum Body {
    /// The response head has not arrived yet.
    NoHead,
    /// One range. The next byte of the body has this offset in the resource.
    SingleRange(u64),
    /// Several ranges, as `multipart/byteranges` (RFC 9110 section 14.6).
    Multipart(MultipartByteranges),
    /// The response is not of the requested ranges; its body is ignored.
    Invalid,
}

/// The fetches of a connection, the oldest first.
struct FetchJobs {
    queue: VecDeque<FetchJob>,
    callback: FetchCallback,
    load: Arc<AtomicUsize>,
    last_id: u32,
    /// Whether this connection has answered anything, and the one before it has.
    answered: (bool, bool),
}

/// What happened on the connection.
enum ConnEvent {
    Command(Option<FetchCommand>),
    Http(Event),
    Timeout,
}

/// Reports all ranges of a fetch that cannot even be begun.
pub(super) fn fail_all(fetch: &Fetch, callback: &FetchCallback) {
    (0..).zip(&fetch.ranges).for_each(|(range, _)| callback(fetch.id, range, None));
}

/// Serves a connection until it is idle or no commands can come.
pub(super) async fn run_conn(
    endpoint: Endpoint,
    mut commands: UnboundedReceiver<FetchCommand>,
    load: Arc<AtomicUsize>,
    callback: FetchCallback,
) {
    let mut queue = FetchJobs { queue: VecDeque::new(), callback, load, last_id: 0, answered: (true, true) };
    loop {
        if queue.queue.is_empty() {
            match timeout(IDLE_TIMEOUT, commands.recv()).await {
                Ok(Some(command)) => queue.on_command(command),
                Ok(None) => return,
                Err(_) => break,
            }
            continue;
        }
        match timeout(CONNECT_TIMEOUT, connect(&endpoint)).await {
            Ok(Ok(connection)) => queue.run(connection, &mut commands).await,
            Ok(Err(error)) => {
                tracing::debug!(server = %endpoint.server, device = endpoint.device, %error, "missing bytes cannot be fetched");
                queue.give_up();
            }
            Err(_) => queue.give_up(),
        }
        if commands.is_closed() && commands.is_empty() {
            queue.give_up();
            return;
        }
    }
    // A command that came in this very moment is not lost.
    commands.close();
    while let Some(command) = commands.recv().await {
        if let FetchCommand::Fetch(fetch) = command {
            fail_all(&fetch, &queue.callback);
        }
    }
}

async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    let socket =
        Socket::new(Domain::for_address(endpoint.server), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.bind_device(Some(endpoint.device.as_bytes()))?;
    if let Some(mark) = endpoint.mark {
        socket.set_mark(mark)?;
    }
    socket.set_tcp_nodelay(true)?;
    Connection::from_socket(TcpSocket::from_std_stream(socket.into()).connect(endpoint.server).await?)
}

impl FetchJobs {
    /// Queues a fetch, or cancels one.
    fn on_command(&mut self, command: FetchCommand) {
        match command {
            FetchCommand::Fetch(fetch) => {
                let wanted = RangeAssembler::of(&fetch);
                let req = self.next_request_id();
                self.queue.push_back(FetchJob { fetch, req, assembler: wanted, body: Body::NoHead });
            }
            FetchCommand::Cancel(id) => self.cancel(id),
        }
    }

    fn next_request_id(&mut self) -> ReqId {
        self.last_id += 1;
        ReqId(self.last_id)
    }

    fn cancel(&mut self, id: FetchId) {
        for job in self.queue.iter_mut().filter(|job| job.fetch.id == id) {
            job.assembler.give_up();
        }
    }

    /// Sends all requests over this connection, and those that come meanwhile, until the connection or the work is
    /// over.
    async fn run(&mut self, mut connection: Connection, commands: &mut UnboundedReceiver<FetchCommand>) {
        self.answered = (false, self.answered.0);
        self.renumber();
        self.queue.iter().for_each(|job| job.send_request(&mut connection));
        let mut scratch = vec![0; READ_BUFFER];
        // Since the server has sent something, or it is due.
        let mut since = Instant::now();
        loop {
            let was_idle = self.queue.is_empty();
            let limit = since + if was_idle { KEEP_ALIVE } else { STALL_TIMEOUT };
            let event = tokio::select! {
                order = commands.recv() => ConnEvent::Command(order),
                event = poll_fn(|cx| connection.poll_event(cx, &mut scratch, self, DataSize::MAX)) => ConnEvent::Http(event),
                () = tokio::time::sleep_until(limit) => ConnEvent::Timeout,
            };
            match event {
                ConnEvent::Command(None) => return self.give_up(),
                ConnEvent::Command(Some(command)) => {
                    let before = self.queue.len();
                    self.on_command(command);
                    if was_idle {
                        since = Instant::now();
                    }
                    self.queue.iter().skip(before).for_each(|job| job.send_request(&mut connection));
                    if !self.queue.is_empty() && self.queue.iter().all(|job| job.assembler.is_done()) {
                        // Nothing of what is still to come is wanted.
                        return self.give_up();
                    }
                }
                ConnEvent::Http(event) => {
                    since = Instant::now();
                    if !self.on_event(&mut connection, event) {
                        return;
                    }
                }
                ConnEvent::Timeout => return self.give_up(),
            }
        }
    }

    /// What happened on the connection; `false`: it is over.
    fn on_event(&mut self, connection: &mut Connection, event: Event) -> bool {
        match event {
            Event::Head { req, head, meta, .. } => {
                let Some(job) = self.queue.iter_mut().find(|job| job.req == req) else { return false };
                if !job.on_head(&head, &meta) {
                    // Its body could be the whole file: another connection is better for the others.
                    self.finish(req);
                    return false;
                }
                connection.accept(req, Some(DataSize::from_bytes(job.assembler.max_response())));
            }
            Event::Data { req, .. } => {
                if self.queue.iter().any(|job| job.req == req && matches!(job.body, Body::Invalid)) {
                    self.finish(req);
                    return false;
                }
            }
            Event::End { req, .. } | Event::Aborted { req, .. } => {
                self.answered.0 = true;
                self.finish(req);
            }
            Event::Closed { .. } => {
                // A response that had begun is lost; the others are requested again, unless that would fail again.
                let would_fail_again = self.answered == (false, false);
                let is_lost = |job: &FetchJob| would_fail_again || !matches!(job.body, Body::NoHead);
                let lost: Vec<ReqId> = self.queue.iter().filter(|job| is_lost(job)).map(|job| job.req).collect();
                lost.into_iter().for_each(|req| self.finish(req));
                return false;
            }
        }
        true
    }

    /// Fetches that are to be requested again get new numbers, because the connection is another.
    fn renumber(&mut self) {
        for at in 0..self.queue.len() {
            let req = self.next_request_id();
            if let Some(job) = self.queue.get_mut(at) {
                job.req = req;
                job.body = Body::NoHead;
                job.assembler.restart();
            }
        }
    }

    /// A fetch is over: what it has not delivered cannot be fetched.
    fn finish(&mut self, req: ReqId) {
        let Some(at) = self.queue.iter().position(|job| job.req == req) else { return };
        if let Some(mut job) = self.queue.remove(at) {
            self.load.fetch_sub(1, Ordering::Relaxed);
            job.assembler.give_up().into_iter().for_each(|range| (self.callback)(job.fetch.id, range, None));
        }
    }

    fn give_up(&mut self) {
        while let Some(req) = self.queue.front().map(|job| job.req) {
            self.finish(req);
        }
    }
}

impl Sink for FetchJobs {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(job) = self.queue.iter_mut().find(|job| job.req == req) else { return };
        let (id, callback, wanted) = (job.fetch.id, &self.callback, &mut job.assembler);
        let mut deliver =
            |at: u64, bytes: &[u8]| wanted.add(at, bytes, |range, bytes| callback(id, range, Some(bytes)));
        match &mut job.body {
            Body::SingleRange(at) => {
                deliver(*at, bytes);
                *at += bytes.len() as u64;
            }
            Body::Multipart(parts) => {
                if parts.feed(bytes, &mut deliver).is_err() {
                    job.body = Body::Invalid;
                }
            }
            Body::NoHead | Body::Invalid => {}
        }
    }
}

impl FetchJob {
    fn send_request(&self, connection: &mut Connection) {
        // A fetch that was canceled before its request was sent requests one byte: so responses stay in the order of
        // requests.
        let range = self.assembler.range_field().unwrap_or_else(|| "bytes=0-0".to_owned());
        let head = format!("{}Range: {range}\r\nIf-Range: {}\r\n\r\n", self.fetch.request, self.fetch.etag);
        connection.request_raw(self.req, head.as_bytes());
    }

    /// Whether the answer has what was asked for.
    fn on_head(&mut self, head: &ResponseHead, meta: &ResponseMeta) -> bool {
        let is_same = meta.etag.as_ref().is_some_and(|etag| *etag == self.fetch.etag);
        if head.status != 206 || head.is_encoded || !is_same {
            return false;
        }
        self.body = match (head.range.and_then(|range| Some((range.range?, range.total?))), &meta.content_type) {
            (Some((span, total)), _) if total == self.fetch.length => Body::SingleRange(span.start),
            (Some(_), _) => return false,
            (None, Some(kind)) => match MultipartByteranges::of(kind, self.fetch.length.bytes()) {
                Some(parts) => Body::Multipart(parts),
                None => return false,
            },
            (None, None) => return false,
        };
        true
    }
}

/// Our choice: a slow start over a slow link; the machine has asked elsewhere by then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Our choice: a connection that brings nothing for so long although something is due is dead.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Our choice: less than servers keep connections (nginx: 75 s, Apache: 5 s; the latter is noticed).
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long a connection without requests stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Our choice: one read; holes are a few segments.
const READ_BUFFER: usize = 64 * 1024;
