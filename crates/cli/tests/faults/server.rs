//! A small HTTP/1.1 server that misbehaves exactly as it is told.
//!
//! In: a function from what was asked to an [`Answer`], which is data: a head and the [`Step`]s of its body. Out: the
//! bytes on the wire, and a record of what was asked and what was sent.
//!
//! 1. Every connection has a thread of its own and is read in order, so pipelined requests are answered in order.
//! 2. [`Resource::answer`] is what an honest server says; a test changes the one thing that it is about.
//! 3. What was sent is counted in bytes of the resource, as they are handed to the kernel.
//!
//! A real server was not used for these: none of them breaks off, lies and hangs on command. Where nginx does the
//! thing by itself, nginx does it (`nginx`).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// One request, as the server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Path and query.
    pub(crate) path: String,
    /// The range; its end is `u64::MAX` where it was left open.
    pub(crate) range: Option<Range<u64>>,
    fields: Vec<(String, String)>,
    /// How many requests came before it, to the whole server.
    pub(crate) nth: usize,
    /// The connection's number.
    pub(crate) conn: usize,
    /// How many requests came before it on its connection.
    pub(crate) on_conn: usize,
    /// The client's address: in a network of two links it tells the link.
    pub(crate) from: IpAddr,
}

impl Asked {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether it came over the first link of a [`Network`](crate::network::Network).
    pub(crate) fn over_wifi(&self) -> bool {
        self.from.to_string().starts_with("10.77.1.")
    }
}

/// A piece of what is sent after the head.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes of the resource, at the server's pace.
    Data(Range<u64>),
    /// The same as one chunk of the chunked coding.
    Chunk(Range<u64>),
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// Nothing for so long.
    Wait(Duration),
    /// The connection is reset.
    Reset,
    /// The connection is closed.
    Close,
}

/// A head and what follows.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    line: String,
    fields: Vec<(String, String)>,
    /// How the head is written, if not as HTTP says.
    spelling: Option<fn(&str) -> String>,
    resource: Option<Resource>,
    pub(crate) steps: Vec<Step>,
}

impl Answer {
    /// No body.
    pub(crate) fn status(status: u16) -> Self {
        let fields = vec![("Content-Length".to_owned(), "0".to_owned())];
        let line = format!("HTTP/1.1 {status} Said");
        Self { line, fields, spelling: None, resource: None, steps: Vec::new() }
    }

    /// A page of HTML.
    pub(crate) fn page(status: u16, text: &str) -> Self {
        Self::status(status)
            .with("Content-Type", "text/html")
            .with("Content-Length", &text.len().to_string())
            .then([Step::Raw(text.as_bytes().to_vec())])
    }

    /// Somewhere else.
    pub(crate) fn redirect(status: u16, to: &str) -> Self {
        Self::status(status).with("Location", to)
    }

    /// Sends these bytes and nothing else, not even a head.
    pub(crate) fn garbage(bytes: &[u8]) -> Self {
        let steps = vec![Step::Raw(bytes.to_vec()), Step::Close];
        Self { line: String::new(), fields: Vec::new(), spelling: None, resource: None, steps }
    }

    /// Sets a field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes a field away.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self
    }

    /// The first line is that of HTTP/1.0.
    pub(crate) fn old(mut self) -> Self {
        self.line = self.line.replace("HTTP/1.1", "HTTP/1.0");
        self
    }

    /// The head is written in another way.
    pub(crate) fn spelled(mut self, spelling: fn(&str) -> String) -> Self {
        self.spelling = Some(spelling);
        self
    }

    /// The body in pieces of this size, with a pause behind each.
    pub(crate) fn slowly(mut self, piece: u64, pause: Duration) -> Self {
        let [Step::Data(all)] = &self.steps[..] else { return self };
        let all = all.clone();
        let pieces = (all.start..all.end).step_by(piece as usize);
        self.steps = pieces.flat_map(|at| [Step::Data(at..(at + piece).min(all.end)), Step::Wait(pause)]).collect();
        self
    }

    /// These steps instead.
    pub(crate) fn then(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps = steps.into_iter().collect();
        self
    }

    /// The body, but after `after` bytes of it come these steps; what follows them is the rest.
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
    /// So many bytes that repeat nowhere, with a strong validator.
    pub(crate) fn new(len: usize) -> Self {
        Self::other(len, 1)
    }

    /// Another file of that length.
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

    /// With another field in every answer; an empty value takes it away.
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

    /// What an honest server says (RFC 9110 §14).
    pub(crate) fn answer(&self, asked: &Asked) -> Answer {
        let current = asked.field("If-Range").is_none_or(|tag| self.fields.iter().any(|(_, value)| value == tag));
        match &asked.range {
            Some(range) if current && range.start >= self.len() => {
                Answer::status(416).with("Content-Range", &format!("bytes */{}", self.len()))
            }
            Some(range) if current => self.part(range.start..range.end.min(self.len())),
            _ => self.whole(),
        }
    }

    /// 206.
    pub(crate) fn part(&self, range: Range<u64>) -> Answer {
        self.body(206, range.clone())
            .with("Content-Range", &format!("bytes {}-{}/{}", range.start, range.end - 1, self.len()))
    }

    /// 200.
    pub(crate) fn whole(&self) -> Answer {
        self.body(200, 0..self.len())
    }

    fn body(&self, status: u16, range: Range<u64>) -> Answer {
        let mut answer = Answer::status(status).with("Content-Length", &(range.end - range.start).to_string());
        for (name, value) in &self.fields {
            answer = answer.with(name, value);
        }
        answer.resource = Some(self.clone());
        answer.then([Step::Data(range)])
    }
}

type Handler = dyn Fn(&Asked) -> Answer + Send + Sync;

/// What all threads of a server share.
struct Desk {
    handler: Box<Handler>,
    /// Bytes a second on each connection; zero: as fast as it goes.
    pace: AtomicU64,
    asked: Mutex<Vec<Asked>>,
    sent: Mutex<Vec<Range<u64>>>,
    conns: AtomicUsize,
}

/// A running server. It serves until the test's process ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    desk: Arc<Desk>,
}

impl Server {
    /// On loopback, at a port that the system chooses.
    pub(crate) fn start(handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), handler)
    }

    /// On this socket.
    pub(crate) fn on(listener: TcpListener, handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let desk = Arc::new(Desk {
            handler: Box::new(handler),
            pace: AtomicU64::new(0),
            asked: Mutex::new(Vec::new()),
            sent: Mutex::new(Vec::new()),
            conns: AtomicUsize::new(0),
        });
        let server = Self { address: listener.local_addr().unwrap(), desk: Arc::clone(&desk) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let desk = Arc::clone(&desk);
                thread::spawn(move || desk.serve(stream));
            }
        });
        server
    }

    /// An honest server.
    pub(crate) fn honest(resource: &Resource) -> Self {
        let resource = resource.clone();
        Self::start(move |asked| resource.answer(asked))
    }

    /// Sends at most so many bytes a second on each connection from now on.
    pub(crate) fn pace(self, bytes: u64) -> Self {
        self.desk.pace.store(bytes, Ordering::Relaxed);
        self
    }

    /// The URL of a path here.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.desk.asked.lock().unwrap().clone()
    }

    /// How many bytes of resources were sent, doubles included.
    pub(crate) fn sent(&self) -> u64 {
        self.desk.sent.lock().unwrap().iter().map(|span| span.end - span.start).sum()
    }

    /// How many bytes were sent that had been sent before: of one moment, as the server's threads go on.
    pub(crate) fn sent_again(&self) -> u64 {
        let mut spans = self.desk.sent.lock().unwrap().clone();
        spans.sort_by_key(|span| span.start);
        let (mut again, mut upto) = (0, 0);
        for span in spans {
            again += span.end.min(upto.max(span.start)) - span.start;
            upto = upto.max(span.end);
        }
        again
    }

    /// Waits until so many bytes were sent.
    pub(crate) fn wait_sent(&self, bytes: u64) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.sent() < bytes {
            assert!(Instant::now() < end, "{bytes} bytes were never asked for; {} were sent", self.sent());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Desk {
    fn serve(&self, stream: TcpStream) {
        let conn = self.conns.fetch_add(1, Ordering::Relaxed);
        let _ = stream.set_nodelay(true);
        // Little is on its way that nobody has read yet.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 128 * 1024);
        let Ok(from) = stream.peer_addr() else { return };
        let Ok(reading) = stream.try_clone() else { return };
        let mut reading = BufReader::new(reading);
        let mut on_conn = 0;
        while let Some((path, fields)) = read_request(&mut reading) {
            let range = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("range"));
            let range = range.and_then(|(_, value)| parse_range(value));
            let asked = {
                let mut all = self.asked.lock().unwrap();
                let asked = Asked { path, range, fields, nth: all.len(), conn, on_conn, from: from.ip() };
                on_conn += 1;
                all.push(asked.clone());
                asked
            };
            let answer = (self.handler)(&asked);
            if self.say(&stream, &answer).is_none() {
                break;
            }
        }
    }

    /// None: the connection is over.
    fn say(&self, mut stream: &TcpStream, answer: &Answer) -> Option<()> {
        if !answer.line.is_empty() {
            let fields: String = answer.fields.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
            let head = format!("{}\r\n{fields}\r\n", answer.line);
            stream.write_all(answer.spelling.map_or(head.clone(), |spell| spell(&head)).as_bytes()).ok()?;
        }
        for step in &answer.steps {
            match step {
                Step::Data(span) => self.data(stream, answer.resource.as_ref()?, span.clone())?,
                Step::Chunk(span) => {
                    stream.write_all(format!("{:x}\r\n", span.end - span.start).as_bytes()).ok()?;
                    self.data(stream, answer.resource.as_ref()?, span.clone())?;
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

    fn data(&self, mut stream: &TcpStream, resource: &Resource, span: Range<u64>) -> Option<()> {
        let entry = {
            let mut sent = self.sent.lock().unwrap();
            sent.push(span.start..span.start);
            sent.len() - 1
        };
        let started = Instant::now();
        let mut at = span.start;
        while at < span.end {
            let pace = self.pace.load(Ordering::Relaxed);
            let most = if pace == 0 { 256 * 1024 } else { (pace / 100).clamp(1, 64 * 1024) };
            let end = (at + most).min(span.end);
            stream.write_all(&resource.data[at as usize..end as usize]).ok()?;
            at = end;
            self.sent.lock().unwrap()[entry].end = at;
            if pace > 0 {
                let due = Duration::from_secs_f64((at - span.start) as f64 / pace as f64);
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
