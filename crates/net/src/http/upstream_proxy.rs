//! Upstream proxies: which proxy a URL uses, from options and variables. `proxy_tunnel` opens tunnels through it.
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
use std::sync::Arc;

use base64::Engine as _;
use http::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use marline_core::fetch::{ConnError, ConnErrorKind};
use url::Url;

use super::url_parts::{host_and_port, is_loopback_host, is_loopback_url, resolver_host};

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
    pub(super) kind: ProxyKind,
    pub(super) host: String,
    pub(super) port: u16,
    /// User and password, not encoded.
    pub(super) login: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProxyKind {
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
        let text = error
            .text
            .strip_prefix(&address)
            .map_or(error.text.as_str(), |remaining| remaining.trim_start_matches(": "));
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
        is_loopback_host(&self.host)
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

/// Checks that the text is a supported proxy, and returns it in the form that hyper-util expects.
fn parse_proxy(source_name: &str, text: &str) -> Result<String, ProxyError> {
    let malformed = || ProxyError::Malformed { source_name: source_name.to_owned() };
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let (scheme, remaining) = text.split_once("://").ok_or_else(malformed)?;
    let scheme = scheme.to_ascii_lowercase();
    if !["http", "socks5", "socks5h"].contains(&scheme.as_str()) {
        return Err(ProxyError::Scheme { source_name: source_name.to_owned(), scheme });
    }
    let text = format!("{scheme}://{}", remaining.split(['/', '?', '#']).next().unwrap_or_default());
    let uri: http::Uri = text.parse().map_err(|_| malformed())?;
    let host = uri.host().filter(|host| !host.is_empty());
    host.map(|_| text).ok_or_else(malformed)
}

/// Decodes the user and the password of a `Basic` value.
fn decode_basic_auth(basic: &HeaderValue) -> Option<(String, String)> {
    let encoded = basic.to_str().ok()?.strip_prefix("Basic ")?;
    let text = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Default port of a proxy, as in curl.
const DEFAULT_PORT: u16 = 1080;
#[cfg(test)]
mod tests {
    use super::*;

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
        for local_url in ["http://localhost/", "http://127.0.0.1:8080/", "http://[::1]/"] {
            assert_eq!(proxy_of(&none, &[("http_proxy", "p:1")], local_url), None, "{local_url}");
            assert!(proxy_of(&proxy_option("p:1"), &[], local_url).is_some(), "{local_url}");
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
