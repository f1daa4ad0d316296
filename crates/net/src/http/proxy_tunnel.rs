//! Tunnels through upstream proxies, by CONNECT and by SOCKS5.
//!
//! Both exchanges end exactly at the first byte of the tunnel. The SOCKS5 client is that of hyper-util. CONNECT is
//! written here, because its errors must say what the user can do about a refusal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::rt::TokioIo;
use marline_core::fetch::{ConnError, ConnErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower_service::Service as _;

use super::upstream_proxy::{Proxy, ProxyKind};
use super::url_parts::host_and_port;
use super::{conn_error, socket_error};

/// A tunnel through a proxy to a host.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// The proxy that opens the tunnel.
    pub proxy: Proxy,
    /// The host: a name, or an address without brackets.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Measures how long the proxy has been unresponsive.
    pub response_timer: ProxyResponseTimer,
}

/// Measures since when a proxy accepts connections without responding on any of them. Clones, one for each connection
/// over a link, share the state: an unresponsive proxy is given up after `RESPONSE_TIMEOUT`, however many
/// connections try it one after another.
#[derive(Clone, Debug, Default)]
pub struct ProxyResponseTimer(Arc<Mutex<ResponseTimerState>>);

#[derive(Debug, Default)]
struct ResponseTimerState {
    /// Start of the first attempt since the proxy's last response; `None`: there was no attempt since then.
    unresponsive_since: Option<Instant>,
    /// When the last attempt ended or was dropped, if none is pending.
    idle_since: Option<Instant>,
    /// Number of attempts that await a response.
    pending: u32,
    /// The proxy has responded before.
    has_responded: bool,
}

/// An attempt that awaits the proxy's response.
struct PendingAttempt<'a> {
    timer: &'a ProxyResponseTimer,
    deadline: Instant,
}

impl ProxyResponseTimer {
    fn start_attempt(&self) -> PendingAttempt<'_> {
        let (mut timer, now) = (self.lock(), Instant::now());
        // After a pause without attempts the proxy may have become responsive again, so the measurement restarts.
        if timer.idle_since.is_some_and(|idle_since| now.duration_since(idle_since) > MAX_ATTEMPT_GAP) {
            timer.unresponsive_since = None;
        }
        (timer.pending, timer.idle_since) = (timer.pending + 1, None);
        let deadline = *timer.unresponsive_since.get_or_insert(now) + RESPONSE_TIMEOUT;
        PendingAttempt { timer: self, deadline }
    }

    fn lock(&self) -> MutexGuard<'_, ResponseTimerState> {
        // No code panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingAttempt<'_> {
    /// Records that the proxy has responded, be it by a refusal or by closing the connection.
    fn on_response(&self) {
        let mut timer = self.timer.lock();
        (timer.unresponsive_since, timer.has_responded) = (None, true);
    }
}

impl Drop for PendingAttempt<'_> {
    fn drop(&mut self) {
        let mut timer = self.timer.lock();
        timer.pending -= 1;
        if timer.pending == 0 {
            timer.idle_since = Some(Instant::now());
        }
    }
}

impl Proxy {
    /// Opens a tunnel by CONNECT (RFC 9110 section 9.3.6).
    async fn http_connect(&self, mut socket: TcpStream, host: &str, port: u16) -> Result<TcpStream, ConnError> {
        let authority = host_and_port(host, port);
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n").into_bytes();
        if let Some(value) = self.authorization() {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(value.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let to_conn_error = |error: std::io::Error| socket_error(&self.to_string(), &error);
        socket.write_all(&request).await.map_err(to_conn_error)?;
        let mut head = Vec::with_capacity(512);
        loop {
            // Byte by byte, so that nothing after the head is consumed from the tunnel. A head has a few hundred
            // bytes.
            let byte = socket.read_u8().await.map_err(to_conn_error)?;
            head.push(byte);
            let not_http = || {
                let text = format!("{self}: the response to CONNECT is not HTTP");
                conn_error(ConnErrorKind::Protocol, text)
            };
            let is_http = |head: &[u8]| head.iter().zip(b"HTTP/").all(|(byte, known)| byte == known);
            if head.len() > MAX_HEAD_LEN || !is_http(&head) {
                return Err(not_http());
            }
            if !head.ends_with(b"\n\r\n") && !head.ends_with(b"\n\n") {
                continue;
            }
            match response_status(&head) {
                Some(200..300) => return Ok(socket),
                Some(100..200) => head.clear(),
                None => return Err(not_http()),
                status => return Err(self.refused_error(status, &authority)),
            }
        }
    }

    fn refused_error(&self, status: Option<u16>, authority: &str) -> ConnError {
        let text = match status {
            Some(407) if self.login.is_none() => {
                format!("{self} requires a user and a password (status 407): write -x USER:PASSWORD@HOST:PORT")
            }
            Some(407) => format!("{self} does not accept the user and the password (status 407)"),
            Some(status) => format!("{self} refuses a tunnel to {authority} (status {status})"),
            None => format!("{self}: the response to CONNECT is not HTTP"),
        };
        // A repeated request would get the same response.
        let is_permanent = matches!(status, Some(400..=499)) && !matches!(status, Some(408 | 429));
        conn_error(if is_permanent { ConnErrorKind::Forbidden } else { ConnErrorKind::Refused }, text)
    }

    /// Opens a tunnel by SOCKS5 (RFC 1928), with a user and a password if there are any (RFC 1929).
    async fn socks5_connect(&self, socket: TcpStream, host: &str, port: u16) -> Result<TcpStream, ConnError> {
        let uri = |authority: String| {
            http::Uri::builder().scheme("socks5").authority(authority).path_and_query("/").build()
        };
        let (Ok(proxy), Ok(target)) = (uri(host_and_port(&self.host, self.port)), uri(host_and_port(host, port)))
        else {
            return Err(conn_error(ConnErrorKind::Dns, format!("{host}: not a host name")));
        };
        let mut client = SocksV5::new(proxy, OpenedConn(Some(TokioIo::new(socket))));
        if let Some((user, password)) = &self.login {
            client = client.with_auth(user.clone(), password.clone());
        }
        let tunnel = client.call(target).await;
        tunnel.map(TokioIo::into_inner).map_err(|error| {
            conn_error(
                ConnErrorKind::Refused,
                format!("{self}: no tunnel to {}: {error}", host_and_port(host, port)),
            )
        })
    }
}

impl Tunnel {
    /// Opens the tunnel over a connection to the proxy, and returns the connection.
    ///
    /// # Errors
    /// The proxy refuses, requires another login, does not respond, or does not speak its protocol.
    pub async fn open(&self, socket: TcpStream) -> Result<TcpStream, ConnError> {
        let pending = self.response_timer.start_attempt();
        let opened = async {
            match self.proxy.kind {
                ProxyKind::Http => self.proxy.http_connect(socket, &self.host, self.port).await,
                ProxyKind::Socks5 { .. } => self.proxy.socks5_connect(socket, &self.host, self.port).await,
            }
        };
        if let Ok(opened) = tokio::time::timeout_at(pending.deadline, opened).await {
            pending.on_response();
            return opened;
        }
        let within = RESPONSE_TIMEOUT.as_secs();
        let text = format!("{} accepts connections and does not answer ({within} s)", self.proxy);
        // A proxy that has never responded would most likely not respond to a retry either.
        let has_responded = pending.timer.lock().has_responded;
        Err(conn_error(if has_responded { ConnErrorKind::TimedOut } else { ConnErrorKind::Forbidden }, text))
    }
}

/// Passes a connection that is already open to the SOCKS5 client, which expects to open one itself.
struct OpenedConn(Option<TokioIo<TcpStream>>);

impl tower_service::Service<http::Uri> for OpenedConn {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        std::future::ready(self.0.take().ok_or_else(|| std::io::ErrorKind::NotConnected.into()))
    }
}

/// Parses the status of a response. Its fields are irrelevant for a tunnel (RFC 9110 section 9.3.6), so errors in
/// them do not matter.
pub(super) fn response_status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\n').next()?.trim_ascii_end();
    let status_line = [line, b"\r\n\r\n"].concat();
    let mut response = httparse::Response::new(&mut []);
    response.parse(&status_line).ok()?;
    response.code
}

/// How long a proxy may take to respond, from the first attempt since its last response. Meanwhile it waits for the
/// server's SYN-ACK, which takes a dozen seconds through an anonymity network.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts that are further apart do not count as one period without response. Our choice: longer than a download
/// waits before it tries again.
const MAX_ATTEMPT_GAP: Duration = Duration::from_secs(3);
/// Maximum length of a response to CONNECT.
const MAX_HEAD_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::{ProxyRules, ProxySettings};

    #[test]
    fn a_pause_between_attempts_does_not_count_as_unresponsive() {
        let timer = ProxyResponseTimer::default();
        let first = timer.start_attempt().deadline;
        assert_eq!(timer.start_attempt().deadline, first, "the next attempt, soon after");
        let aged = |by: Duration| {
            let mut state = timer.lock();
            state.idle_since = state.idle_since.map(|left| left - by);
        };
        aged(MAX_ATTEMPT_GAP + Duration::from_millis(1));
        let later = timer.start_attempt();
        assert!(later.deadline > first);
        // While an attempt is pending, the measurement continues.
        assert_eq!(timer.start_attempt().deadline, later.deadline);
        later.on_response();
        assert!(timer.lock().has_responded && timer.lock().unresponsive_since.is_none());
        drop(later);
        assert_eq!(timer.lock().pending, 0);
    }

    /// Plays the proxy's side of an exchange: for each step, expects to read the first bytes and sends the second
    /// ones.
    async fn run_script(address_text: &str, script: &[(&[u8], &[u8])]) -> Result<Vec<u8>, ConnError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text = address_text.replace("PORT", &address.port().to_string());
        let proxy = proxy(&text);
        let script: Vec<(Vec<u8>, Vec<u8>)> = script.iter().map(|(a, b)| (a.to_vec(), b.to_vec())).collect();
        let serve = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            for (expected, answer) in &script {
                let mut got = vec![0; expected.len()];
                socket.read_exact(&mut got).await.unwrap();
                assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(expected));
                socket.write_all(answer).await.unwrap();
            }
        });
        let tunnel =
            Tunnel { proxy, host: "host.example".into(), port: 443, response_timer: ProxyResponseTimer::default() };
        let tunnel = tunnel.open(TcpStream::connect(address).await.unwrap()).await;
        let mut rest = Vec::new();
        if let Ok(mut tunnel) = tunnel {
            tunnel.read_to_end(&mut rest).await.unwrap();
            serve.await.unwrap();
            return Ok(rest);
        }
        serve.await.unwrap();
        tunnel.map(|_| rest)
    }

    fn run_script_blocking(proxy: &str, script: &[(&[u8], &[u8])]) -> Result<Vec<u8>, ConnError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run_script(proxy, script))
    }

    #[test]
    fn bytes_after_the_head_stay_in_the_tunnel() {
        let request = b"CONNECT host.example:443 HTTP/1.1\r\nHost: host.example:443\r\n\r\n";
        let script: &[(&[u8], &[u8])] = &[(request, b"HTTP/1.1 200 OK\r\nVia: p\r\n\r\nhello")];
        assert_eq!(run_script_blocking("http://127.0.0.1:PORT", script).unwrap(), b"hello");
    }

    #[test]
    fn a_refusal_states_what_the_proxy_requires() {
        let request = b"CONNECT host.example:443 HTTP/1.1\r\nHost: host.example:443\r\n\r\n";
        let script: &[(&[u8], &[u8])] = &[(request, b"HTTP/1.1 407 No\r\n\r\n")];
        assert!(
            run_script_blocking("127.0.0.1:PORT", script)
                .unwrap_err()
                .text
                .contains("requires a user and a password (status 407)")
        );
        let script: &[(&[u8], &[u8])] = &[(request, b"HTTP/1.1 403 No\r\n\r\n")];
        assert!(
            run_script_blocking("127.0.0.1:PORT", script)
                .unwrap_err()
                .text
                .contains("refuses a tunnel to host.example:443")
        );
        let script: &[(&[u8], &[u8])] = &[(request, b"SSH-2.0-x\r\n")];
        assert!(run_script_blocking("127.0.0.1:PORT", script).unwrap_err().text.contains("is not HTTP"));
        let request = b"CONNECT host.example:443 HTTP/1.1\r\nHost: host.example:443\r\n\
                        Proxy-Authorization: Basic bWU6eA==\r\n\r\n";
        let script: &[(&[u8], &[u8])] = &[(request, b"HTTP/1.1 200 OK\r\n\r\n")];
        assert!(run_script_blocking("http://me:x@127.0.0.1:PORT", script).is_ok());
    }

    #[test]
    fn socks5_requests_the_host_and_logs_in() {
        let request = b"\x05\x01\x00\x03\x0chost.example\x01\xbb";
        let granted = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00";
        let script: &[(&[u8], &[u8])] = &[(b"\x05\x01\x00", b"\x05\x00"), (request, granted)];
        assert!(run_script_blocking("socks5h://127.0.0.1:PORT", script).is_ok());
        let script: &[(&[u8], &[u8])] =
            &[(b"\x05\x01\x02", b"\x05\x02"), (b"\x01\x02me\x01x", b"\x01\x00"), (request, granted)];
        assert!(run_script_blocking("socks5://me:x@127.0.0.1:PORT", script).is_ok());
        let refused = b"\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00";
        let script: &[(&[u8], &[u8])] = &[(b"\x05\x01\x00", b"\x05\x00"), (request, refused)];
        let line = run_script_blocking("socks5h://127.0.0.1:PORT", script).unwrap_err().text;
        assert!(line.contains("no tunnel to host.example:443"), "{line}");
    }

    fn proxy(text: &str) -> Proxy {
        let settings = ProxySettings { proxy: Some(text.to_owned()), no_proxy: None };
        let rules = ProxyRules::new(&settings, |_| None).unwrap();
        rules.proxy_for(&"https://h/".parse().unwrap()).unwrap()
    }
}
