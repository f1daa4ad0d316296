//! A small HTTP/1.1 server that misbehaves exactly as a test defines.
//!
//! A test passes a function from a request to a [`Response`]: plain data with a head and the [`Step`]s of its body. The server
//! records all requests and all sent bytes.
//!
//! 1. Every connection has its own thread and is read in order, so pipelined requests are answered in order.
//! 2. [`Resource::respond`] is the response of a correct server; a test changes only what it is about.
//! 3. Sent bytes are bytes of the resource; they count when they are handed to the kernel.
//!
//! Real servers do not break off, lie or hang on command. Where nginx shows a behavior by itself, the tests use nginx
//! (`nginx`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A request as the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Path and query of the request target.
    pub(crate) path: String,
    /// The requested byte range; its end is `u64::MAX` if the request leaves it open.
    pub(crate) range: Option<Range<u64>>,
    fields: Vec<(String, String)>,
    /// Number of earlier requests to the server.
    pub(crate) nth: usize,
    /// Number of the connection, from zero.
    pub(crate) conn: usize,
    /// Number of earlier requests on its connection.
    pub(crate) on_conn: usize,
    /// The client's address; in a network of two links it identifies the link.
    pub(crate) from: IpAddr,
}

impl Request {
    /// The value of a header field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether the request came over `wifi0` of a [`Network`](crate::network::Network).
    pub(crate) fn over_wifi(&self) -> bool {
        self.from.to_string().starts_with("10.77.1.")
    }
}

/// A step after the response head: bytes to send, a pause, or the end of the connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes of the resource, at the server's rate limit.
    Data(Range<u64>),
    /// The same as one chunk of the chunked transfer coding.
    Chunk(Range<u64>),
    /// Exactly these bytes.
    Raw(Vec<u8>),
    /// Pauses for this time.
    Wait(Duration),
    /// Resets the connection (TCP RST).
    Reset,
    /// Closes the connection (TCP FIN).
    Close,
}

/// A response: head and steps of the body.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    status_line: String,
    fields: Vec<(String, String)>,
    /// Rewrites the text of the head, for heads that violate HTTP.
    head_rewriter: Option<fn(&str) -> String>,
    resource: Option<Resource>,
    pub(crate) steps: Vec<Step>,
}

impl Response {
    /// A response without a body.
    pub(crate) fn status(status: u16) -> Self {
        let fields = vec![("Content-Length".to_owned(), "0".to_owned())];
        let line = format!("HTTP/1.1 {status} Reason");
        Self { status_line: line, fields, head_rewriter: None, resource: None, steps: Vec::new() }
    }

    /// An HTML page.
    pub(crate) fn page(status: u16, text: &str) -> Self {
        Self::status(status)
            .with("Content-Type", "text/html")
            .with("Content-Length", &text.len().to_string())
            .with_steps([Step::Raw(text.as_bytes().to_vec())])
    }

    /// A redirect to the URL `to`.
    pub(crate) fn redirect(status: u16, to: &str) -> Self {
        Self::status(status).with("Location", to)
    }

    /// Sends these bytes and nothing else, not even a head.
    pub(crate) fn garbage(bytes: &[u8]) -> Self {
        let steps = vec![Step::Raw(bytes.to_vec()), Step::Close];
        Self { status_line: String::new(), fields: Vec::new(), head_rewriter: None, resource: None, steps }
    }

    /// Sets a header field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Removes a header field.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    /// Makes it a response of HTTP/1.0.
    pub(crate) fn http_1_0(mut self) -> Self {
        self.status_line = self.status_line.replace("HTTP/1.1", "HTTP/1.0");
        self
    }

    /// Sets a function that rewrites the text of the head.
    pub(crate) fn rewrite_head(mut self, spelling: fn(&str) -> String) -> Self {
        self.head_rewriter = Some(spelling);
        self
    }

    /// Sends the body in pieces of this size, with a pause after each.
    pub(crate) fn slowly(mut self, piece: u64, pause: Duration) -> Self {
        let [Step::Data(all)] = &self.steps[..] else { return self };
        let all = all.clone();
        let pieces = (all.start..all.end).step_by(piece as usize);
        self.steps = pieces.flat_map(|at| [Step::Data(at..(at + piece).min(all.end)), Step::Wait(pause)]).collect();
        self
    }

    /// Replaces the steps.
    pub(crate) fn with_steps(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps = steps.into_iter().collect();
        self
    }

    /// Inserts these steps after `after` bytes of the body; the rest of the body follows them.
    pub(crate) fn broken_after(mut self, after: u64, steps: impl IntoIterator<Item = Step>) -> Self {
        let [Step::Data(all)] = &self.steps[..] else { return self };
        let all = all.clone();
        let at = (all.start + after).min(all.end);
        self.steps = vec![Step::Data(all.start..at)];
        self.steps.extend(steps);
        self.steps.push(Step::Data(at..all.end));
        self
    }
}

/// A file on the server.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) data: Arc<Vec<u8>>,
    fields: Vec<(String, String)>,
}

impl Resource {
    /// A file of `len` pseudo-random bytes with a strong validator.
    pub(crate) fn new(len: usize) -> Self {
        Self::other(len, 1)
    }

    /// Another file of that length, determined by the seed.
    pub(crate) fn other(len: usize, seed: u64) -> Self {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut data = Vec::with_capacity(len + 8);
        while data.len() < len {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            data.extend_from_slice(&x.to_le_bytes());
        }
        data.truncate(len);
        Self { data: Arc::new(data), fields: vec![("ETag".to_owned(), format!("\"v{seed}\""))] }
    }

    /// Sets a header field of every response; an empty value removes it.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(n, _)| n != name);
        if !value.is_empty() {
            self.fields.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// The response of a correct server (RFC 9110 section 14).
    pub(crate) fn respond(&self, request: &Request) -> Response {
        let current = request.field("If-Range").is_none_or(|tag| self.fields.iter().any(|(_, value)| value == tag));
        match &request.range {
            Some(range) if current && range.start >= self.len() => {
                Response::status(416).with("Content-Range", &format!("bytes */{}", self.len()))
            }
            Some(range) if current => self.part(range.start..range.end.min(self.len())),
            _ => self.full_response(),
        }
    }

    /// The response 206 with this range.
    pub(crate) fn part(&self, range: Range<u64>) -> Response {
        self.body(206, range.clone())
            .with("Content-Range", &format!("bytes {}-{}/{}", range.start, range.end - 1, self.len()))
    }

    /// The response 200 with the whole file.
    pub(crate) fn full_response(&self) -> Response {
        self.body(200, 0..self.len())
    }

    fn body(&self, status: u16, range: Range<u64>) -> Response {
        let mut answer = Response::status(status).with("Content-Length", &(range.end - range.start).to_string());
        for (name, value) in &self.fields {
            answer = answer.with(name, value);
        }
        answer.resource = Some(self.clone());
        answer.with_steps([Step::Data(range)])
    }
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

/// State that all threads of a server share.
struct ServerState {
    handler: Box<Handler>,
    /// Rate limit of each connection in bytes per second; zero means none.
    rate_limit: AtomicU64,
    /// How many further bytes of resources may be sent on all connections together.
    allowance: AtomicU64,
    requests: Mutex<Vec<Request>>,
    sent: Mutex<Vec<Range<u64>>>,
    conns: AtomicUsize,
}

/// A running server. It serves until the test's process ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<ServerState>,
}

impl Server {
    /// Starts a server on the loopback interface at a free port.
    pub(crate) fn start(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), handler)
    }

    /// Starts a server on this socket.
    pub(crate) fn on(
        listener: TcpListener,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(ServerState {
            handler: Box::new(handler),
            rate_limit: AtomicU64::new(0),
            allowance: AtomicU64::new(u64::MAX),
            requests: Mutex::new(Vec::new()),
            sent: Mutex::new(Vec::new()),
            conns: AtomicUsize::new(0),
        });
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::clone(&state) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                thread::spawn(move || state.serve(stream));
            }
        });
        server
    }

    /// Starts a correct server of one file.
    pub(crate) fn honest(resource: &Resource) -> Self {
        let resource = resource.clone();
        Self::start(move |request| resource.respond(request))
    }

    /// Limits each connection to so many bytes per second from now on.
    pub(crate) fn limit_rate(self, bytes: u64) -> Self {
        self.state.rate_limit.store(bytes, Ordering::Relaxed);
        self
    }

    /// From now on sends at most so many bytes of resources on all connections together, and then pauses.
    pub(crate) fn allow_bytes(&self, bytes: u64) {
        self.state.allowance.store(bytes, Ordering::Relaxed);
    }

    /// The URL of a path of this server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests received until now.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// How many bytes of resources were sent, duplicates included.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.state.sent.lock().unwrap().iter().map(|span| span.end - span.start).sum()
    }

    /// How many bytes were sent more than once. A snapshot: the server's threads continue.
    pub(crate) fn resent_bytes(&self) -> u64 {
        let mut spans = self.state.sent.lock().unwrap().clone();
        spans.sort_by_key(|span| span.start);
        let (mut again, mut upto) = (0, 0);
        for span in spans {
            again += span.end.min(upto.max(span.start)) - span.start;
            upto = upto.max(span.end);
        }
        again
    }

    /// Waits until this many bytes of resources were sent; panics after 20 s.
    pub(crate) fn wait_sent(&self, bytes: u64) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.sent_bytes() < bytes {
            assert!(Instant::now() < end, "{bytes} bytes were never requested; {} were sent", self.sent_bytes());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl ServerState {
    fn serve(&self, stream: TcpStream) {
        let conn = self.conns.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true);
        // A small send buffer keeps `sent` close to what the client has read.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 128 * 1024);
        let Ok(from) = stream.peer_addr() else { return };
        let Ok(reading) = stream.try_clone() else { return };
        let mut reading = BufReader::new(reading);
        let mut on_conn = 0;
        while let Some((path, fields)) = read_request(&mut reading) {
            let range = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("range"));
            let range = range.and_then(|(_, value)| parse_range(value));
            let request = {
                let mut all = self.requests.lock().unwrap();
                let request = Request { path, range, fields, nth: all.len(), conn, on_conn, from: from.ip() };
                on_conn += 1;
                all.push(request.clone());
                request
            };
            let answer = (self.handler)(&request);
            if self.send_response(&stream, &answer).is_none() {
                break;
            }
        }
    }

    /// Sends the response. None if the connection has ended or must be closed.
    fn send_response(&self, mut stream: &TcpStream, answer: &Response) -> Option<()> {
        if !answer.status_line.is_empty() {
            let fields: String = answer.fields.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            let head = format!("{}\r\n{fields}\r\n", answer.status_line);
            stream.write_all(answer.head_rewriter.map_or(head.clone(), |spell| spell(&head)).as_bytes()).ok()?;
        }
        for step in &answer.steps {
            match step {
                Step::Data(span) => self.send_data(stream, answer.resource.as_ref()?, span.clone())?,
                Step::Chunk(span) => {
                    stream.write_all(format!("{:x}\r\n", span.end - span.start).as_bytes()).ok()?;
                    self.send_data(stream, answer.resource.as_ref()?, span.clone())?;
                    stream.write_all(b"\r\n").ok()?;
                }
                Step::Raw(bytes) => stream.write_all(bytes).ok()?,
                Step::Wait(time) => thread::sleep(*time),
                Step::Reset => {
                    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
                    return None;
                }
                Step::Close => {
                    let _ = stream.shutdown(Shutdown::Write);
                    return None;
                }
            }
        }
        let closes = |(name, value): &(String, String)| name == "Connection" && value == "close";
        (!answer.fields.iter().any(closes)).then_some(())
    }

    /// Waits until bytes may be sent; returns how many, at most `bytes`.
    fn take_allowance(&self, bytes: u64) -> u64 {
        let remaining = |allowance: u64| match allowance {
            0 => None,
            u64::MAX => Some(u64::MAX),
            allowance => Some(allowance.saturating_sub(bytes)),
        };
        loop {
            match self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, remaining) {
                Ok(allowance) => return allowance.min(bytes),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn send_data(&self, mut stream: &TcpStream, resource: &Resource, span: Range<u64>) -> Option<()> {
        let entry = {
            let mut sent = self.sent.lock().unwrap();
            sent.push(span.start..span.start);
            sent.len() - 1
        };
        let started = Instant::now();
        let mut at = span.start;
        while at < span.end {
            let rate_limit = self.rate_limit.load(Ordering::Relaxed);
            let most = if rate_limit == 0 { 256 * 1024 } else { (rate_limit / 100).clamp(1, 64 * 1024) };
            let end = at + self.take_allowance(most.min(span.end - at));
            stream.write_all(&resource.data[at as usize..end as usize]).ok()?;
            at = end;
            self.sent.lock().unwrap()[entry].end = at;
            if rate_limit > 0 {
                let due = Duration::from_secs_f64((at - span.start) as f64 / rate_limit as f64);
                thread::sleep(due.saturating_sub(started.elapsed()));
            }
        }
        Some(())
    }
}

fn read_request(reading: &mut impl BufRead) -> Option<(String, Vec<(String, String)>)> {
    let mut next = || {
        let mut line = String::new();
        match reading.take(64 * 1024).read_line(&mut line) {
            Ok(1..) => Some(line.trim_end().to_owned()),
            _ => None,
        }
    };
    let line = next()?;
    let path = line.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let mut fields = Vec::new();
    loop {
        let line = next()?;
        if line.is_empty() {
            return Some((path, fields));
        }
        let (name, value) = line.split_once(": ")?;
        fields.push((name.to_owned(), value.to_owned()));
    }
}

fn parse_range(value: &str) -> Option<Range<u64>> {
    let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
    let end = if end.is_empty() { u64::MAX } else { end.parse::<u64>().ok()? + 1 };
    Some(start.parse().ok()?..end)
}
