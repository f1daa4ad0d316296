//! Upstream proxies: selects the proxy of a URL, and opens tunnels through it.
//!
//! `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy` have the same meaning as in curl; `no_proxy` may also
//! contain networks (`10.0.0.0/8`). A proxy on the command line replaces the first three. Each link connects to the
//! proxy separately, so a proxy that is reachable over several links does not reduce a download to one of them.
//!
//! An `https` URL, and every URL behind a SOCKS5 proxy, is tunneled: the proxy sees only the host and the port. An
//! `http` URL is sent to an HTTP proxy in absolute form (RFC 9112 section 3.2.2). The proxy resolves names, except
//! for `socks5://`, where they are resolved over the link, as in curl.
//!
//! A proxy that is itself reached over TLS (`https://`) is rejected: it would need TLS inside TLS for every body
//! byte.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use http::HeaderValue;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use marline_core::fetch::{ConnError, ConnErrorKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower_service::Service as _;
use url::Url;

use super::{conn_error, is_loopback_url, resolver_host, socket_error};

/// The rules that select a proxy for a URL. Clones share them; by default no URL has a proxy.
#[derive(Clone)]
pub struct ProxyRules {
    rules: Arc<Matcher>,
    /// The user named the proxy on the command line, so it applies to URLs of this machine as well.
    is_explicit: bool,
}

/// One proxy, as selected for a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    kind: ProxyKind,
    host: String,
    port: u16,
    /// User and password, not encoded.
    login: Option<(String, String)>,
}

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
    unresponsive_since: Option<Instant>,
    /// When the last attempt ended or was dropped, if none is pending.
    idle_since: Option<Instant>,
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
    /// Records that the proxy has responded.
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

/// The protocol of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProxyKind {
    Http,
    /// SOCKS5 (RFC 1928). With `remote_dns` (`socks5h`) the proxy resolves names.
    Socks5 {
        remote_dns: bool,
    },
}

/// Why a proxy setting is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProxyError {
    /// The text is not `[SCHEME://][USER:PASSWORD@]HOST[:PORT]`.
    #[error(
        "{source_name}: not a proxy: write HOST[:PORT], before it USER:PASSWORD@ if the proxy requires a login, and before that http:, \
         socks5: or socks5h: with two slashes"
    )]
    Malformed {
        /// The option or variable with the setting.
        source_name: String,
    },
    /// The scheme is not supported.
    #[error("{source_name}: a proxy of the kind `{scheme}` is not supported: use http, socks5 or socks5h")]
    Scheme {
        /// The option or variable with the setting.
        source_name: String,
        /// The scheme in the setting.
        scheme: String,
    },
}

/// Proxy options of the command line, which take precedence over the variables.
#[derive(Clone, Default)]
pub struct ProxySettings {
    /// The proxy for all URLs; `-x`. An empty text disables proxies.
    pub proxy: Option<String>,
    /// Hosts, domains and networks that are reached directly; `--noproxy`.
    pub no_proxy: Option<String>,
}

impl ProxyRules {
    /// Builds the rules from the options and, where an option is missing, from the environment. `variable` reads the
    /// environment.
    ///
    /// # Errors
    /// An option or a variable is not a supported proxy. The error does not contain secrets.
    pub fn new(settings: &ProxySettings, variable: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        // Lower case takes precedence, as in curl. HTTP_PROXY is ignored: a web server sets it for CGI programs from
        // a field of the request.
        let first_set = |names: &[&'static str]| {
            names
                .iter()
                .find_map(|name| variable(name).filter(|value| !value.is_empty()).map(|value| (*name, value)))
        };
        let mut rules = Matcher::builder();
        if let Some(all) = &settings.proxy {
            if !all.is_empty() {
                rules = rules.all(parse_proxy("-x", all)?);
            }
        } else {
            if let Some((name, value)) = first_set(&["http_proxy"]) {
                rules = rules.http(parse_proxy(name, &value)?);
            }
            if let Some((name, value)) = first_set(&["https_proxy", "HTTPS_PROXY"]) {
                rules = rules.https(parse_proxy(name, &value)?);
            }
            if let Some((name, value)) = first_set(&["all_proxy", "ALL_PROXY"]) {
                rules = rules.all(parse_proxy(name, &value)?);
            }
        }
        let no_proxy =
            settings.no_proxy.clone().or_else(|| first_set(&["no_proxy", "NO_PROXY"]).map(|(_, value)| value));
        let rules = Arc::new(rules.no(no_proxy.unwrap_or_default()).build());
        Ok(Self { rules, is_explicit: settings.proxy.is_some() })
    }

    /// The proxy of a URL; `None`: it is reached directly. The variables do not apply to URLs of this machine, as in
    /// Go.
    pub fn proxy_for(&self, url: &Url) -> Option<Proxy> {
        if !self.is_explicit && is_loopback_url(url) {
            return None;
        }
        // Without the path, which may contain characters that the `http` crate rejects.
        let port = url.port_or_known_default()?;
        let uri = http::Uri::builder()
            .scheme(url.scheme())
            .authority(host_and_port(&resolver_host(url), port))
            .path_and_query("/");
        let intercept = self.rules.intercept(&uri.build().ok()?)?;
        let uri = intercept.uri();
        let kind = match uri.scheme_str()? {
            "socks5" => ProxyKind::Socks5 { remote_dns: false },
            "socks5h" => ProxyKind::Socks5 { remote_dns: true },
            _ => ProxyKind::Http,
        };
        let login = match (intercept.raw_auth(), intercept.basic_auth()) {
            (Some((user, password)), _) => Some((user.to_owned(), password.to_owned())),
            (None, Some(basic)) => decode_basic_auth(basic),
            (None, None) => None,
        };
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Proxy { kind, host, port: uri.port_u16().unwrap_or(DEFAULT_PORT), login })
    }
}

impl Proxy {
    /// Adds the name of this proxy to an error of a connection through it. Errors of the server's certificate are not
    /// the proxy's fault and stay unchanged.
    pub fn attribute_error(&self, error: ConnError) -> ConnError {
        let (name, address) = (self.to_string(), host_and_port(&self.host, self.port));
        if error.text.contains(&name) || error.kind == ConnErrorKind::Tls {
            return error;
        }
        let text =
            error.text.strip_prefix(&address).map_or(error.text.as_str(), |rest| rest.trim_start_matches(": "));
        ConnError { text: format!("{name}: {text}"), ..error }
    }

    /// The host of the proxy: a name, or an address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the proxy resolves the names of URLs, so that the link must not.
    pub fn resolves_names(&self) -> bool {
        self.kind != ProxyKind::Socks5 { remote_dns: false }
    }

    /// Whether the proxy runs on this machine; then no link is used to reach it.
    pub fn is_local(&self) -> bool {
        let is_this_host = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
        self.host == "localhost" || self.host.ends_with(".localhost") || self.host.parse().is_ok_and(is_this_host)
    }

    /// Whether requests for this URL are sent in absolute form instead of through a tunnel.
    pub fn uses_absolute_form(&self, url: &Url) -> bool {
        self.kind == ProxyKind::Http && url.scheme() == "http"
    }

    /// The value of `Proxy-Authorization` for requests in absolute form (RFC 9110 section 11.7.2).
    pub fn authorization(&self) -> Option<HeaderValue> {
        let (user, password) = self.login.as_ref()?;
        let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

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

/// Shows the address without the login.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy {}", host_and_port(&self.host, self.port))
    }
}

/// Shows the kind and the address without the login.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {self}", self.kind)
    }
}

impl Default for ProxyRules {
    fn default() -> Self {
        Self { rules: Arc::new(Matcher::builder().build()), is_explicit: false }
    }
}

impl fmt::Debug for ProxyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyRules")
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

/// Checks that the text is a supported proxy, and returns it in the form that hyper-util expects.
fn parse_proxy(source_name: &str, text: &str) -> Result<String, ProxyError> {
    let malformed = || ProxyError::Malformed { source_name: source_name.to_owned() };
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let (scheme, rest) = text.split_once("://").ok_or_else(malformed)?;
    let scheme = scheme.to_ascii_lowercase();
    if !["http", "socks5", "socks5h"].contains(&scheme.as_str()) {
        return Err(ProxyError::Scheme { source_name: source_name.to_owned(), scheme });
    }
    let text = format!("{scheme}://{}", rest.split(['/', '?', '#']).next().unwrap_or_default());
    let uri: http::Uri = text.parse().map_err(|_| malformed())?;
    let host = uri.host().filter(|host| !host.is_empty());
    host.map(|_| text).ok_or_else(malformed)
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

/// Decodes the user and the password of a `Basic` value.
fn decode_basic_auth(basic: &HeaderValue) -> Option<(String, String)> {
    let encoded = basic.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Formats `HOST:PORT`, with brackets around an IPv6 address.
fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// How long a proxy may take to open a tunnel. Meanwhile it waits for the server's SYN-ACK, which takes a dozen
/// seconds through an anonymity network.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts that are further apart do not count as one period without response. chosen: longer than a download waits
/// before it tries again.
const MAX_ATTEMPT_GAP: Duration = Duration::from_secs(3);
/// Default port of a proxy, as in curl.
const DEFAULT_PORT: u16 = 1080;
/// Maximum length of a response to CONNECT.
const MAX_HEAD_LEN: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

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

    fn proxies(settings: &ProxySettings, variables: &[(&str, &str)]) -> Result<ProxyRules, ProxyError> {
        let read = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        ProxyRules::new(settings, read)
    }

    fn proxy_of(settings: &ProxySettings, variables: &[(&str, &str)], url: &str) -> Option<String> {
        proxies(settings, variables).unwrap().proxy_for(&url.parse().unwrap()).map(|proxy| proxy.to_string())
    }

    fn proxy_option(all: &str) -> ProxySettings {
        ProxySettings { proxy: Some(all.to_owned()), no_proxy: None }
    }

    #[test]
    fn variables_have_the_same_meaning_as_in_curl() {
        let variables = [
            ("http_proxy", "http://p:3128"),
            ("HTTPS_PROXY", "s.example"),
            ("no_proxy", "10.0.0.0/8, .local.example,fd00::/8,exact.example"),
        ];
        let none = ProxySettings::default();
        for (url, want) in [
            ("http://h/f", Some("proxy p:3128")),
            ("https://h/f", Some("proxy s.example:1080")),
            ("http://10.1.2.3/f", None),
            ("http://11.1.2.3/f", Some("proxy p:3128")),
            ("http://[fd00::1]/f", None),
            ("https://a.local.example/", None),
            ("https://exact.example/", None),
            ("https://sub.exact.example/", None),
            ("https://notexact.example/", Some("proxy s.example:1080")),
        ] {
            assert_eq!(proxy_of(&none, &variables, url).as_deref(), want, "{url}");
        }
        assert_eq!(proxy_of(&none, &[("HTTP_PROXY", "http://p:1")], "http://h/"), None);
        assert_eq!(
            proxy_of(&none, &[("all_proxy", "socks5h://[::1]:9")], "http://h/").as_deref(),
            Some("proxy [::1]:9")
        );
        assert_eq!(proxy_of(&none, &[("http_proxy", "p:1"), ("no_proxy", "*")], "http://h/"), None);
        for own in ["http://localhost/", "http://127.0.0.1:8080/", "http://[::1]/"] {
            assert_eq!(proxy_of(&none, &[("http_proxy", "p:1")], own), None, "{own}");
            assert!(proxy_of(&proxy_option("p:1"), &[], own).is_some(), "{own}");
        }
        assert!(proxy_of(&none, &[("http_proxy", "p:1")], "http://h/a|b^c?{d}").is_some());
    }

    #[test]
    fn the_option_takes_precedence_over_the_variables() {
        let variables = [("http_proxy", "http://p:3128"), ("no_proxy", "h")];
        assert_eq!(proxy_of(&proxy_option("socks5://q:1"), &variables, "https://i/").as_deref(), Some("proxy q:1"));
        assert_eq!(proxy_of(&proxy_option(""), &variables, "http://i/"), None);
        let except = ProxySettings { proxy: None, no_proxy: Some("i".into()) };
        assert_eq!(proxy_of(&except, &variables, "http://h/").as_deref(), Some("proxy p:3128"));
        assert_eq!(proxy_of(&except, &variables, "http://i/"), None);
    }

    #[test]
    fn an_invalid_proxy_is_reported_without_its_password() {
        for (text, expected) in [
            ("ftp://me:secret@p:1", "`ftp` is not supported"),
            ("https://me:secret@p:1", "`https` is not supported"),
            ("http://", "not a proxy"),
            ("http://me:secret@:1", "not a proxy"),
            ("http://a b", "not a proxy"),
        ] {
            let line = proxies(&proxy_option(text), &[]).unwrap_err().to_string();
            assert!(line.starts_with("-x: ") && line.contains(expected), "{text}: {line}");
            assert!(!line.contains("secret"), "{line}");
        }
        let login = proxies(&proxy_option("http://me:s%40cret@p"), &[])
            .unwrap()
            .proxy_for(&"http://h/".parse().unwrap())
            .unwrap();
        assert_eq!(login.login, Some(("me".into(), "s@cret".into())));
        assert!(!format!("{login:?} {login}").contains("cret"));
    }

    /// Plays the proxy's side of an exchange: for each step, expects to read the first bytes and sends the second
    /// ones.
    async fn run_script(proxy: &str, script: &[(&[u8], &[u8])]) -> Result<Vec<u8>, ConnError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text = proxy.replace("PORT", &address.port().to_string());
        let proxy = proxies(&proxy_option(&text), &[]).unwrap().proxy_for(&"https://h/".parse().unwrap()).unwrap();
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

    #[test]
    fn absolute_form_is_used_for_http_only() {
        let proxy =
            proxies(&proxy_option("http://p"), &[]).unwrap().proxy_for(&"http://h/".parse().unwrap()).unwrap();
        assert!(proxy.uses_absolute_form(&"http://h/".parse().unwrap()));
        assert!(!proxy.uses_absolute_form(&"https://h/".parse().unwrap()));
        let proxy = proxies(&proxy_option("socks5://localhost"), &[])
            .unwrap()
            .proxy_for(&"http://h/".parse().unwrap())
            .unwrap();
        assert!(!proxy.uses_absolute_form(&"http://h/".parse().unwrap()));
        assert!(proxy.is_local() && !proxy.resolves_names());
    }
}
