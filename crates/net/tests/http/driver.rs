//! A small driver for one connection, and servers for it to connect to.

use std::collections::BTreeMap;
use std::fs;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use marline_core::fetch::{ByteRange, ConnError, ConnErrorKind, ReqId, RequestRange};
use marline_core::units::DataSize;
use marline_net::egress::EgressPolicy;
use marline_net::http::{Connection, DialRequest, Event, GetRequest, Http2Windows, Sink};
use tokio::runtime::{Builder, Runtime};

/// Far longer than any test takes: only a hang reaches it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The received bodies by request.
#[derive(Default)]
pub(crate) struct Bodies(pub(crate) BTreeMap<u32, Vec<u8>>);

impl Sink for Bodies {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        self.0.entry(req.0).or_default().extend_from_slice(bytes);
    }
}

/// One connection and what was received over it.
pub(crate) struct TestClient {
    runtime: Runtime,
    pub(crate) conn: Connection,
    pub(crate) bodies: Bodies,
    scratch: Vec<u8>,
    /// Bytes that the events reported, by request.
    byte_counts: BTreeMap<u32, u64>,
}

/// A single-threaded runtime, like the one of the program.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A request to connect to an unencrypted server on the loopback.
pub(crate) fn dial_to(address: SocketAddr) -> DialRequest {
    DialRequest {
        device: None,
        mptcp: false,
        addresses: vec![address],
        server_name: "localhost".into(),
        tls: None,
        timeout: Duration::from_secs(10),
        http2_windows: Http2Windows::default(),
        egress: EgressPolicy::user(),
        tunnel: None,
        sent_bytes: None,
    }
}

/// A GET request for a range of `/data`.
pub(crate) fn get_request(range: RequestRange) -> GetRequest {
    GetRequest {
        path_and_query: "/data".into(),
        authority: "localhost".into(),
        range,
        if_range: None,
        headers: Vec::new(),
    }
}

/// The range of piece `n` (counted from 0) of a resource that is divided into pieces of `size` bytes.
pub(crate) fn range_of(n: u32, size: u64) -> RequestRange {
    RequestRange::Bounded(ByteRange::new(u64::from(n) * size, u64::from(n + 1) * size))
}

impl TestClient {
    pub(crate) fn dial(dial: DialRequest) -> Result<Self, ConnError> {
        let runtime = runtime();
        let conn = runtime.block_on(Connection::dial(dial))?;
        Ok(Self {
            runtime,
            conn,
            bodies: Bodies::default(),
            scratch: vec![0; 128 * 1024],
            byte_counts: BTreeMap::new(),
        })
    }

    /// The next event; a hang fails the test.
    pub(crate) fn next_event(&mut self) -> Event {
        self.next_event_within(DataSize::MAX)
    }

    /// The next event when about `max_body` body bytes may be read.
    pub(crate) fn next_event_within(&mut self, max_body: DataSize) -> Event {
        let Self { runtime, conn, bodies, scratch, .. } = self;
        let event = poll_fn(|cx| conn.poll_event(cx, scratch, bodies, max_body));
        let event =
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, event).await }).expect("an event in time");
        if let Event::Data { req, len } = event {
            *self.byte_counts.entry(req.0).or_default() += len.bytes();
        }
        event
    }

    /// Whether no event is ready when about `max_body` body bytes may be read.
    pub(crate) fn is_pending(&mut self, max_body: DataSize) -> bool {
        let Self { runtime, conn, bodies, scratch, .. } = self;
        let once = poll_fn(|cx| Poll::Ready(conn.poll_event(cx, scratch, bodies, max_body).is_pending()));
        runtime.block_on(once)
    }

    /// Accepts every response until `ends` have ended, a response was cut off, or the connection has ended. Returns
    /// all events except data events, whose sums are compared with the bodies.
    pub(crate) fn run_until_ends(&mut self, ends: usize) -> Vec<Event> {
        let (mut events, mut ended) = (Vec::new(), 0);
        while ended < ends {
            let event = self.next_event();
            match &event {
                Event::Head { req, .. } => self.conn.accept(*req, None),
                Event::Data { .. } => {}
                Event::End { .. } | Event::Aborted { .. } => ended += 1,
                Event::Closed { .. } => ended = ends,
            }
            if !matches!(event, Event::Data { .. }) {
                events.push(event);
            }
        }
        for (&req, &bytes) in &self.byte_counts {
            assert_eq!(self.bodies.0.get(&req).map_or(0, |body| body.len() as u64), bytes, "request {req}");
        }
        events
    }
}

/// The error kind of the last event.
pub(crate) fn last_error_kind(events: &[Event]) -> Option<ConnErrorKind> {
    match events.last() {
        Some(Event::Closed { error: trouble } | Event::Aborted { error: trouble, .. }) => Some(trouble.kind),
        _ => None,
    }
}

/// A server for one connection that runs the test's script.
pub(crate) fn serve_script(script: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            script(stream);
        }
    });
    address
}

/// Reads requests until `n` have arrived; returns their text.
pub(crate) fn read_requests(stream: &mut TcpStream, n: usize) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while text.matches("\r\n\r\n").count() < n {
        match stream.read(&mut buffer) {
            Ok(got) if got > 0 => text.push_str(&String::from_utf8_lossy(&buffer[..got])),
            _ => break,
        }
    }
    text
}

/// A server that reads `n` requests, sends the pieces as separate segments, and closes.
pub(crate) fn serve_canned(n: usize, pieces: Vec<Vec<u8>>) -> SocketAddr {
    serve_script(move |mut stream| {
        stream.set_nodelay(true).expect("an option");
        read_requests(&mut stream, n);
        for piece in pieces {
            if stream.write_all(&piece).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Bytes without a pattern that would hide a wrong offset.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let blocks = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    blocks.flatten().take(len).collect()
}

/// A server certificate, signed by an authority of its own.
pub(crate) struct TestIdentity {
    pub(crate) ca_pem: String,
    pub(crate) cert: rcgen::Certificate,
    pub(crate) key: rcgen::KeyPair,
}

/// Creates an identity for one name. Its certificate expires at the start of the year `not_after`; `None`: it is
/// valid.
pub(crate) fn make_identity(name: &str, not_after: Option<i32>) -> TestIdentity {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().expect("a key");
    // The authority has a unique name; otherwise another authority of the same name would be tried with the wrong
    // key.
    let key_id = data_encoding::HEXLOWER.encode(ca_key.public_key_raw());
    params.distinguished_name.push(rcgen::DnType::CommonName, &key_id[key_id.len() - 16..]);
    let ca_pem = params.self_signed(&ca_key).expect("an authority").pem();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    if let Some(year) = not_after {
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
    }
    let key = rcgen::KeyPair::generate().expect("a key");
    let cert = params.signed_by(&key, &issuer).expect("a certificate");
    TestIdentity { ca_pem, cert, key }
}

/// A real nginx that serves one file as `/data`; it ends with the test.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) data: Arc<Vec<u8>>,
    pub(crate) dir: tempfile::TempDir,
}

impl Nginx {
    /// Starts nginx with directives for its server block; with an identity it uses TLS and HTTP/2. Returns `None`,
    /// and prints the reason, if nginx is not installed.
    pub(crate) fn start(directives: &str, len: usize, identity: Option<&TestIdentity>) -> Option<Self> {
        if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
            eprintln!("skipped: nginx is not installed");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let data = Arc::new(content(len));
        fs::write(dir.path().join("data"), &*data).expect("the file");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
        let (mut listen, mut tls) = (format!("listen {address};"), String::new());
        if let Some(identity) = identity {
            fs::write(dir.path().join("cert.pem"), identity.cert.pem()).expect("a certificate");
            fs::write(dir.path().join("key.pem"), identity.key.serialize_pem()).expect("a key");
            fs::write(dir.path().join("ca.pem"), &identity.ca_pem).expect("an authority");
            listen = format!("listen {address} ssl http2;");
            tls = format!("ssl_certificate {0}/cert.pem; ssl_certificate_key {0}/key.pem;", dir.path().display());
        }
        let conf = format!(
            "daemon off; worker_processes 1; pid {0}/pid; error_log {0}/error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f;\n\
             uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n\
             server {{ {listen} {tls} root {0}; {directives} }} }}",
            dir.path().display()
        );
        make_readable(dir.path());
        fs::write(dir.path().join("conf"), conf).expect("a configuration");
        let child = Command::new("nginx")
            .args(["-e", "stderr", "-c"])
            .arg(dir.path().join("conf"))
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx starts");
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self { child, address, data, dir })
    }

    /// A request to connect over TLS that trusts this server's authority.
    pub(crate) fn dial_tls(&self, name: &str, http2: bool) -> DialRequest {
        let config = marline_net::http::tls_config(Some(&self.dir.path().join("ca.pem")), http2);
        DialRequest { server_name: name.into(), tls: Some(config.expect("an authority")), ..dial_to(self.address) }
    }
}

/// Makes the files readable for nginx's workers, which may run as another user.
fn make_readable(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("permissions");
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master is asked to stop, because otherwise its workers remain; it is killed only if it does not react.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        for _ in 0..300 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
