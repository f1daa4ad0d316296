//! One connection to one server over one link, and the fetches that go over it.
//!
//! In: fetches and cancellations. Out: answers, range by range.
//!
//! 1. Requests are written at once, behind those that are not answered yet.
//! 2. A server that closes between two answers, as servers do after some hundred requests or some seconds, costs a new
//!    connection and no bytes: what it has not begun to answer is asked again there. Two connections in a row that have
//!    answered nothing end it.
//! 3. A connection that brings nothing for [`STALL`] although something is due is given up with all that is due.
//! 4. What was cancelled still comes, for HTTP/1.1 cannot take a request back; when everything was, the connection goes.
//! 5. A lane that has had nothing to do for [`REST`] ends.

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

use super::super::Errand;
use super::Answer;
use super::parts::Parts;
use super::wanted::Wanted;

/// Where a lane leads.
#[derive(Clone, Debug)]
pub(super) struct To {
    pub(super) device: String,
    pub(super) mark: Option<u32>,
    pub(super) server: SocketAddr,
}

/// A fetch on its lane.
struct Job {
    fetch: Fetch,
    req: ReqId,
    wanted: Wanted,
    body: Body,
}

/// What the body of its answer is.
enum Body {
    /// No head yet.
    None,
    /// Bytes from here on.
    One(u64),
    /// Several ranges.
    Several(Parts),
    /// Not what was asked for.
    Broken,
}

/// The fetches of a lane, the oldest first, and who hears of them.
struct Jobs {
    all: VecDeque<Job>,
    answer: Answer,
    open: Arc<AtomicUsize>,
    next: u32,
    /// Whether this connection has answered anything, and the one before it has.
    answered: (bool, bool),
}

/// What the connection has come to.
enum Turn {
    Order(Option<Errand>),
    Event(Event),
    Late,
}

/// All ranges of a fetch that cannot even be begun.
pub(super) fn refuse(fetch: &Fetch, answer: &Answer) {
    (0..).zip(&fetch.ranges).for_each(|(range, _)| answer(fetch.id, range, None));
}

/// Serves a lane until it rests or nobody is left who could ask.
pub(super) async fn run_lane(
    to: To,
    mut orders: UnboundedReceiver<Errand>,
    open: Arc<AtomicUsize>,
    answer: Answer,
) {
    let mut jobs = Jobs { all: VecDeque::new(), answer, open, next: 0, answered: (true, true) };
    loop {
        if jobs.all.is_empty() {
            match timeout(REST, orders.recv()).await {
                Ok(Some(errand)) => jobs.take(errand),
                Ok(None) => return,
                Err(_) => break,
            }
            continue;
        }
        match timeout(CONNECT, connect(&to)).await {
            Ok(Ok(connection)) => jobs.run(connection, &mut orders).await,
            Ok(Err(error)) => {
                tracing::debug!(server = %to.server, device = to.device, %error, "missing bytes cannot be fetched");
                jobs.give_up();
            }
            Err(_) => jobs.give_up(),
        }
        if orders.is_closed() && orders.is_empty() {
            jobs.give_up();
            return;
        }
    }
    // What was ordered in this very moment is not lost.
    orders.close();
    while let Some(errand) = orders.recv().await {
        if let Errand::Fetch(fetch) = errand {
            refuse(&fetch, &jobs.answer);
        }
    }
}

async fn connect(to: &To) -> io::Result<Connection> {
    let socket = Socket::new(Domain::for_address(to.server), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.bind_device(Some(to.device.as_bytes()))?;
    if let Some(mark) = to.mark {
        socket.set_mark(mark)?;
    }
    socket.set_tcp_nodelay(true)?;
    Connection::from_socket(TcpSocket::from_std_stream(socket.into()).connect(to.server).await?)
}

impl Jobs {
    /// An order that came.
    fn take(&mut self, errand: Errand) {
        match errand {
            Errand::Fetch(fetch) => {
                let wanted = Wanted::of(&fetch);
                let req = self.number();
                self.all.push_back(Job { fetch, req, wanted, body: Body::None });
            }
            Errand::Cancel(id) => self.cancel(id),
        }
    }

    fn number(&mut self) -> ReqId {
        self.next += 1;
        ReqId(self.next)
    }

    fn cancel(&mut self, id: FetchId) {
        for job in self.all.iter_mut().filter(|job| job.fetch.id == id) {
            job.wanted.give_up();
        }
    }

    /// Asks for all over this connection, and for what is ordered meanwhile, until the connection or the work is over.
    async fn run(&mut self, mut connection: Connection, orders: &mut UnboundedReceiver<Errand>) {
        self.answered = (false, self.answered.0);
        self.renew();
        self.all.iter().for_each(|job| job.ask(&mut connection));
        let mut scratch = vec![0; READ];
        // Since the server has brought something, or it is due.
        let mut since = Instant::now();
        loop {
            let was_idle = self.all.is_empty();
            let limit = since + if was_idle { KEEP } else { STALL };
            let turn = tokio::select! {
                order = orders.recv() => Turn::Order(order),
                event = poll_fn(|cx| connection.poll_event(cx, &mut scratch, self, DataSize::MAX)) => Turn::Event(event),
                () = tokio::time::sleep_until(limit) => Turn::Late,
            };
            match turn {
                Turn::Order(None) => return self.give_up(),
                Turn::Order(Some(errand)) => {
                    let before = self.all.len();
                    self.take(errand);
                    if was_idle {
                        since = Instant::now();
                    }
                    self.all.iter().skip(before).for_each(|job| job.ask(&mut connection));
                    if !self.all.is_empty() && self.all.iter().all(|job| job.wanted.is_done()) {
                        // Nothing of what is still to come is wanted.
                        return self.give_up();
                    }
                }
                Turn::Event(event) => {
                    since = Instant::now();
                    if !self.on_event(&mut connection, event) {
                        return;
                    }
                }
                Turn::Late => return self.give_up(),
            }
        }
    }

    /// What happened on the connection; `false`: it is over.
    fn on_event(&mut self, connection: &mut Connection, event: Event) -> bool {
        match event {
            Event::Head { req, head, meta: described, .. } => {
                let Some(job) = self.all.iter_mut().find(|job| job.req == req) else { return false };
                if !job.on_head(&head, &described) {
                    // Its body could be the whole file: rather another connection for the others.
                    self.end(req);
                    return false;
                }
                connection.accept(req, Some(DataSize::from_bytes(job.wanted.most())));
            }
            Event::Data { req, .. } => {
                if self.all.iter().any(|job| job.req == req && matches!(job.body, Body::Broken)) {
                    self.end(req);
                    return false;
                }
            }
            Event::End { req, .. } | Event::Aborted { req, .. } => {
                self.answered.0 = true;
                self.end(req);
            }
            Event::Closed { .. } => {
                // What had begun is lost; what had not is asked again, unless that is in vain.
                let is_vain = self.answered == (false, false);
                let is_lost = |job: &Job| is_vain || !matches!(job.body, Body::None);
                let lost: Vec<ReqId> = self.all.iter().filter(|job| is_lost(job)).map(|job| job.req).collect();
                lost.into_iter().for_each(|req| self.end(req));
                return false;
            }
        }
        true
    }

    /// Fetches that are to be asked again get other numbers, for the connection is another.
    fn renew(&mut self) {
        for at in 0..self.all.len() {
            let req = self.number();
            if let Some(job) = self.all.get_mut(at) {
                job.req = req;
                job.body = Body::None;
                job.wanted.again();
            }
        }
    }

    /// A fetch is over: what it has not brought cannot be had.
    fn end(&mut self, req: ReqId) {
        let Some(at) = self.all.iter().position(|job| job.req == req) else { return };
        if let Some(mut job) = self.all.remove(at) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            job.wanted.give_up().into_iter().for_each(|range| (self.answer)(job.fetch.id, range, None));
        }
    }

    fn give_up(&mut self) {
        while let Some(req) = self.all.front().map(|job| job.req) {
            self.end(req);
        }
    }
}

impl Sink for Jobs {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(job) = self.all.iter_mut().find(|job| job.req == req) else { return };
        let (id, answer, wanted) = (job.fetch.id, &self.answer, &mut job.wanted);
        let mut give =
            |at: u64, bytes: &[u8]| wanted.take(at, bytes, |range, bytes| answer(id, range, Some(bytes)));
        match &mut job.body {
            Body::One(at) => {
                give(*at, bytes);
                *at += bytes.len() as u64;
            }
            Body::Several(parts) => {
                if parts.feed(bytes, &mut give).is_err() {
                    job.body = Body::Broken;
                }
            }
            Body::None | Body::Broken => {}
        }
    }
}

impl Job {
    fn ask(&self, connection: &mut Connection) {
        // One that was cancelled before it was asked is asked for a byte: the order of answers stays simple.
        let range = self.wanted.field().unwrap_or_else(|| "bytes=0-0".to_owned());
        let head = format!("{}Range: {range}\r\nIf-Range: {}\r\n\r\n", self.fetch.request, self.fetch.etag);
        connection.request_raw(self.req, head.as_bytes());
    }

    /// Whether the answer has what was asked for.
    fn on_head(&mut self, head: &ResponseHead, described: &ResponseMeta) -> bool {
        let is_same = described.etag.as_ref().is_some_and(|etag| *etag == self.fetch.etag);
        if head.status != 206 || head.is_encoded || !is_same {
            return false;
        }
        self.body = match (head.range.and_then(|range| Some((range.range?, range.total?))), &described.content_type)
        {
            (Some((span, total)), _) if total == self.fetch.length => Body::One(span.start),
            (Some(_), _) => return false,
            (None, Some(kind)) => match Parts::of(kind, self.fetch.length.bytes()) {
                Some(parts) => Body::Several(parts),
                None => return false,
            },
            (None, None) => return false,
        };
        true
    }
}

/// chosen: a slow start over a slow link; the machine has asked elsewhere by then.
const CONNECT: Duration = Duration::from_secs(4);
/// chosen: a connection that brings nothing for so long although something is due is dead.
const STALL: Duration = Duration::from_secs(5);
/// chosen: less than servers keep connections (nginx: 75 s, Apache: 5 s; the latter is noticed).
const KEEP: Duration = Duration::from_secs(30);
/// How long a lane without work waits for some.
const REST: Duration = Duration::from_secs(30);
/// chosen: one read; holes are a few segments.
const READ: usize = 64 * 1024;
