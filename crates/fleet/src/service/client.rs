//! Client of the fleet API: one keep-alive connection to the service, authenticated with a member's certificate.
//!
//! 1. If a call fails on a reused connection, it is repeated once on a new connection; every call is idempotent. The same happens after a
//!    403, because the certificate may have expired while the connection was open.
//! 2. A call has [`CALL_TIMEOUT`]. On a reused connection it has [`REUSED_CALL_TIMEOUT`] and is then repeated on a new one: the peer may
//!    have vanished without closing it, and a relay's heartbeat must arrive before the relay counts as unhealthy.
//! 3. A name may resolve to several addresses, one for each process. If one does not respond within [`ADDRESS_TIMEOUT`], the next one is
//!    tried.
//! 4. The peer must have the role `fleet`: a relay's certificate may be valid for the same address, but a relay is not the service.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use marline_net::egress::AddressZone;
use marline_net::links::{Interface, non_default_route_interface};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Url;

use super::problem::Problem;
use crate::ca::Nonce;
use crate::identity::Role;
use crate::link_dialer::{ConnObservation, LinkDialer, connect_over};
use crate::tls::Peer;

/// Our choice: the service may take two seconds to decide a request for a relay, and a slow link needs several RTTs.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Our choice: the service may take two seconds to decide a request for a relay. For a heartbeat, this plus one unresponsive address is
/// less than the three heartbeats after which a relay counts as unhealthy.
const REUSED_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Our choice: a handshake over a slow link takes less, and up to three machines may be down.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);
/// Bytes. Our choice: the list of fifty thousand edges, three hundred bytes each.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is not that of a service.
    #[error("{0}: not a URL such as https://fleet.example.org:4444")]
    Url(String),
    /// The service cannot be reached, or the connection broke.
    #[error("{service}: {text}")]
    Network {
        /// Host and port of the service.
        service: String,
        /// The cause.
        text: String,
    },
    /// The service has refused the request.
    #[error("{0}")]
    Refused(#[from] Problem),
}

/// A connection to the service, as its members use it.
pub struct Client {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Box<dyn Fn() -> Arc<rustls::ClientConfig> + Send + Sync>,
    connection: Option<SendRequest<Full<Bytes>>>,
    link_use: LinkUse,
    /// The member for which this process acts; none: for itself.
    on_behalf_of: Option<OnBehalfOf>,
    /// Random number of this process, which distinguishes processes with the same certificate; none: the system's random source failed.
    instance: Option<Nonce>,
}

/// A member on whose behalf a process of the service forwards a request.
struct OnBehalfOf {
    identity: String,
    not_after: String,
    process: Option<CallerProcess>,
}

/// The calling process of a member: its instance number and its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerProcess {
    pub(super) instance: Nonce,
    pub(super) address: IpAddr,
}

/// How the link for connections to the service is selected.
enum LinkUse {
    /// By the kernel's routing table.
    KernelRoutes,
    /// The dialer tries its links until one reaches the service.
    Dialer(Arc<LinkDialer>),
    /// As with a dialer, over the links that exist when the connection is opened.
    SurveyedLinks,
}

/// The service's endpoint, and the TLS configuration that authenticates it.
#[derive(Clone)]
struct ServiceTarget {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
}

impl ServiceTarget {
    /// Connects over this link; none: by the kernel's routing table.
    async fn connect_over_link(
        &self,
        link: Option<&Interface>,
        dialer: &LinkDialer,
    ) -> io::Result<(TlsStream<TcpStream>, ConnObservation)> {
        let mut addresses: Vec<_> = match link {
            None => lookup_host((self.host.as_str(), self.port)).await?.collect(),
            Some(link) => dialer.resolve(None, (&self.host, self.port), link).await?,
        };
        // A service on this host, on a LAN of this host or behind a static route is reached by the kernel's routes alone. The dialer
        // learns this from the result, so that it does not take the link for the path to the service.
        let is_behind_links = addresses.iter().any(|address| {
            dialer.is_behind_links(address.ip()) && !is_behind_static_route(address.ip(), link, dialer)
        });
        let link = link.filter(|_| is_behind_links);
        if let Some(link) = link {
            addresses = LinkDialer::with_link_families(addresses, link)?;
        }
        let device = link.map(|link| link.name.as_str());
        let stream = self.connect_any(&addresses, device).await?;
        Ok((stream, if is_behind_links { ConnObservation::Reached } else { ConnObservation::NotViaLinks }))
    }

    /// Tries the addresses in order (rule 3). The last one has the rest of the call's time.
    async fn connect_any(
        &self,
        addresses: &[SocketAddr],
        device: Option<&str>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name does not resolve to any address");
        let (last, others) = addresses.split_last().ok_or_else(none)?;
        for address in others {
            match timeout(ADDRESS_TIMEOUT, self.connect(*address, device)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => tracing::debug!(%address, %error, "cannot connect; trying the next address"),
                Err(_) => tracing::debug!(%address, "no response from the service; trying another address"),
            }
        }
        self.connect(*last, device).await
    }

    async fn connect(&self, address: SocketAddr, device: Option<&str>) -> io::Result<TlsStream<TcpStream>> {
        let socket = connect_over(address, device).await?;
        socket.set_nodelay(true)?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(self.name.clone(), socket).await?;
        let denied = |text: String| io::Error::new(io::ErrorKind::PermissionDenied, text);
        let peer = Peer::of(stream.get_ref().1.peer_certificates()).map_err(|error| denied(error.to_string()))?;
        if peer.identity.role != Role::Fleet {
            return Err(denied(format!("the peer is {}, and not the fleet's service", peer.identity)));
        }
        Ok(stream)
    }
}

/// Whether the kernel reaches an address by a static route that the dialer's links do not know.
fn is_behind_static_route(address: IpAddr, link: Option<&Interface>, dialer: &LinkDialer) -> bool {
    let is_own = link.is_some_and(|link| link.is_on_subnet(address));
    uses_static_route(
        AddressZone::of(address),
        is_own,
        non_default_route_interface(address).map(|over| dialer.is_link(over)),
    )
}

/// Whether an address of this zone is reached by a static route rather than directly over the link. `is_own`: the address is in the
/// link's own network. `static_route`: there is a static route, and whether it leaves by one of the links.
///
/// A public address that is routed over a link can be reached over the other links as well; one behind a VPN or another router cannot.
/// A private network can be reached only where its route leads.
fn uses_static_route(zone: AddressZone, is_own: bool, static_route: Option<bool>) -> bool {
    !is_own && static_route.is_some_and(|by_a_link| zone == AddressZone::Private || !by_a_link)
}

/// Header: the member on whose behalf a process of the service forwards a request.
pub(super) const FOR_HEADER: &str = "marline-for";
/// Header: when the certificate expires that the member has presented to the forwarding process.
pub(super) const FOR_UNTIL_HEADER: &str = "marline-for-until";
/// Header: the address from which the member has called.
pub(super) const FOR_ADDRESS_HEADER: &str = "marline-for-address";
/// Header: a random number of the calling process, made when it started.
pub(super) const INSTANCE_HEADER: &str = "marline-instance";

impl Client {
    /// A client of the service at this URL; it does not connect yet. Make the configuration by
    /// [`client_config`](crate::tls::client_config) or [`first_contact_config`](crate::tls::first_contact_config).
    ///
    /// # Errors
    /// The URL is not `https://HOST[:PORT]`.
    pub fn new(url: &str, tls: rustls::ClientConfig) -> Result<Self, ClientError> {
        // Error texts must not repeat credentials in the URL.
        let redacted = url.rsplit_once('@').map_or(url, |(_, remaining)| remaining);
        let wrong = || ClientError::Url(redacted.to_owned());
        let parsed = Url::parse(url).map_err(|_| wrong())?;
        let is_plain =
            parsed.scheme() == "https" && parsed.path() == "/" && parsed.query().is_none() && redacted == url;
        let host = parsed.host_str().filter(|_| is_plain).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
        let port = parsed.port_or_known_default().ok_or_else(wrong)?;
        let tls = Arc::new(tls);
        Ok(Self {
            host,
            port,
            name,
            tls: Box::new(move || Arc::clone(&tls)),
            connection: None,
            link_use: LinkUse::KernelRoutes,
            on_behalf_of: None,
            instance: Nonce::random().ok(),
        })
    }

    /// Calls `tls` for the configuration of each new connection, because certificates are renewed and revocation lists change.
    #[must_use]
    pub fn with_tls(self, tls: impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static) -> Self {
        Self { tls: Box::new(tls), ..self }
    }

    /// Connects over the dialer's link that reaches the service.
    #[must_use]
    pub(crate) fn with_dialer(self, dialer: Arc<LinkDialer>) -> Self {
        Self { link_use: LinkUse::Dialer(dialer), ..self }
    }

    /// Connects over the link of this host that reaches the service, of those that exist when the connection is opened.
    #[must_use]
    pub fn over_links(self) -> Self {
        Self { link_use: LinkUse::SurveyedLinks, ..self }
    }

    /// Sends a GET request and parses the JSON response.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// Sends a POST request with a JSON body and parses the JSON response.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.network_error(error))?;
        self.call(Method::POST, path, body.into()).await
    }

    /// Sends a GET request and returns the response as text.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_text(&mut self, path: &str) -> Result<String, ClientError> {
        let bytes = self.request_bytes(Method::GET, path, Bytes::new()).await?;
        String::from_utf8(bytes.into()).map_err(|error| self.network_error(error))
    }

    async fn call<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let bytes = self.request_bytes(method, path, body).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.network_error(error))
    }

    async fn request_bytes(&mut self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        let is_reused = self.connection.is_some();
        let time_limit = if is_reused { REUSED_CALL_TIMEOUT } else { CALL_TIMEOUT };
        let result = match timeout(time_limit, self.send_once(&method, path, body.clone())).await {
            Ok(Err(ClientError::Network { .. })) | Err(_) if is_reused => {
                timeout(CALL_TIMEOUT, self.send_once(&method, path, body)).await
            }
            // The certificate with which the connection was opened may have expired or been replaced.
            Ok(Ok((403, reply_body))) if is_reused => {
                self.connection = None;
                match timeout(CALL_TIMEOUT, self.send_once(&method, path, body)).await {
                    Ok(Ok(reply_body)) => Ok(Ok(reply_body)),
                    _ => Ok(Ok((403, reply_body))),
                }
            }
            result => result,
        };
        let (status, bytes) = result.unwrap_or_else(|_| Err(self.timed_out()))?;
        if (200..300).contains(&status) {
            return Ok(bytes);
        }
        let unknown = || Problem { status, title: "refused".to_owned(), detail: format!("HTTP {status}") };
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| unknown()).into())
    }

    /// Forwards a member's request to another process and returns the response, whatever its status.
    pub(super) async fn forward(
        &mut self,
        (member, process): (&Peer, Option<CallerProcess>),
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), ClientError> {
        let (identity, until) = (member.identity.to_string(), member.not_after.to_string());
        self.on_behalf_of = Some(OnBehalfOf { identity, not_after: until, process });
        self.send_once(method, path, body).await
    }

    async fn send_once(&mut self, method: &Method, path: &str, body: Bytes) -> Result<(u16, Bytes), ClientError> {
        // The connection is taken out during the call: a call that is cancelled midway leaves it in an undefined state.
        let mut connection = match self.connection.take() {
            Some(connection) if !connection.is_closed() => connection,
            _ => self.connect().await?,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, format!("{}:{}", self.host, self.port))
            .header(CONTENT_TYPE, "application/json");
        if let Some(OnBehalfOf { identity, not_after: until, .. }) = &self.on_behalf_of {
            request = request.header(FOR_HEADER, identity).header(FOR_UNTIL_HEADER, until);
        }
        let instance = match &self.on_behalf_of {
            None => self.instance,
            Some(OnBehalfOf { process: origin, .. }) => origin.map(|origin| origin.instance),
        };
        if let Some(instance) = instance {
            request = request.header(INSTANCE_HEADER, instance.to_string());
        }
        if let Some(OnBehalfOf { process: Some(origin), .. }) = &self.on_behalf_of {
            request = request.header(FOR_ADDRESS_HEADER, origin.address.to_string());
        }
        let request = request.body(Full::new(body)).map_err(|error| self.network_error(error))?;
        let response = connection.send_request(request).await.map_err(|error| self.network_error(error))?;
        let status = response.status().as_u16();
        let read = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let bytes = read.map_err(|error| self.network_error(error))?.to_bytes();
        self.connection = Some(connection);
        Ok((status, bytes))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let dialer = match &self.link_use {
            LinkUse::KernelRoutes => None,
            LinkUse::Dialer(dialer) => Some(Arc::clone(dialer)),
            LinkUse::SurveyedLinks => Some(LinkDialer::from_survey().await),
        };
        let stream = match dialer {
            None => {
                let addresses = lookup_host((self.host.as_str(), self.port))
                    .await
                    .map_err(|error| self.network_error(error))?;
                self.target().connect_any(&addresses.collect::<Vec<_>>(), None).await
            }
            Some(dialer) => {
                let (target, attempt_dialer) = (self.target(), Arc::clone(&dialer));
                let attempt = move |link: Option<Arc<Interface>>| {
                    let (target, link_dialer) = (target.clone(), Arc::clone(&attempt_dialer));
                    async move { target.connect_over_link(link.as_deref(), &link_dialer).await }
                };
                dialer.connect(attempt).await
            }
        };
        self.start_http(stream.map_err(|error| self.network_error(error))?).await
    }

    fn target(&self) -> ServiceTarget {
        ServiceTarget { host: self.host.clone(), port: self.port, name: self.name.clone(), tls: (self.tls)() }
    }

    async fn start_http(&self, stream: TlsStream<TcpStream>) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.network_error(error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the service ended with an error");
            }
        });
        Ok(sender)
    }

    /// The error for a call that timed out.
    pub(super) fn timed_out(&self) -> ClientError {
        self.network_error("no answer in time")
    }

    fn network_error(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Network { service: format!("{}:{}", self.host, self.port), text: with_causes(&*error.into()) }
    }
}

/// An error with its causes: hyper itself only reports "connection error"; the TLS alert is one of its causes.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    for cause in causes.take(8).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::ca::{Authority, CertTemplate, RevocationFile, UtcSeconds};
    use crate::tls::{ClientAuth, Credentials, client_config, server_config};

    #[test]
    fn a_service_behind_a_static_route_is_reached_by_the_kernels_route() {
        let (by_a_link, by_another) = (Some(true), Some(false));
        for (zone, is_own, static_route, expected) in [
            (AddressZone::Internet, false, None, false),
            // Pinned to a link: it can be behind the others as well.
            (AddressZone::Internet, false, by_a_link, false),
            // Behind a VPN or another router.
            (AddressZone::Internet, false, by_another, true),
            (AddressZone::Private, false, None, false),
            (AddressZone::Private, false, by_a_link, true),
            (AddressZone::Private, false, by_another, true),
            // In the link's own network.
            (AddressZone::Private, true, by_a_link, false),
            (AddressZone::Internet, true, by_a_link, false),
        ] {
            assert_eq!(
                uses_static_route(zone, is_own, static_route),
                expected,
                "{zone:?} {is_own} {static_route:?}"
            );
        }
    }

    /// The TLS configurations of a service and an edge that belong to this authority.
    fn tls_configs(authority: &Authority) -> (rustls::ServerConfig, rustls::ClientConfig) {
        let credentials_for = |identity: &str, addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let template =
                CertTemplate::new(identity.parse().unwrap(), addresses, Duration::from_secs(86_400)).unwrap();
            let (chain, key) = authority.issue_with_key(&template, UtcSeconds::now()).unwrap();
            Credentials::new(chain.certificate, &key, chain.issuer).unwrap()
        };
        let list = RevocationFile::open(&authority.crl_path(), authority.certificate()).unwrap();
        let clients = ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: false };
        let server =
            server_config(&credentials_for("marline://fleet/f1", &["127.0.0.1"]), list.crl_der(), &clients, true)
                .unwrap();
        (server, client_config(&credentials_for("marline://edge/cam-7", &[]), None, true).unwrap())
    }

    #[test]
    fn an_unresponsive_address_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let (server, edge) = tls_configs(&authority);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The kernel completes the TCP handshake, but no process ever responds: a hung process or a vanished machine.
            let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let addresses = [silent.local_addr().unwrap(), listener.local_addr().unwrap()];
            tokio::spawn(async move {
                let (socket, _) = listener.accept().await.unwrap();
                let _stream = TlsAcceptor::from(Arc::new(server)).accept(socket).await.unwrap();
                std::future::pending::<()>().await;
            });
            let client = Client::new("https://127.0.0.1:1", edge).unwrap();
            timeout(CALL_TIMEOUT, client.target().connect_any(&addresses, None))
                .await
                .expect("within the timeout of a call")
                .unwrap();
        });
    }

    #[test]
    fn a_call_on_an_unresponsive_connection_is_repeated_on_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let (server, edge) = tls_configs(&authority);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = Client::new(&format!("https://{}", listener.local_addr().unwrap()), edge).unwrap();
            tokio::spawn(async move {
                // Each connection responds to one request only.
                let mut open_streams = Vec::new();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    let mut stream = TlsAcceptor::from(Arc::new(server.clone())).accept(socket).await.unwrap();
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await.unwrap();
                    stream.flush().await.unwrap();
                    open_streams.push(stream);
                }
            });
            for _ in 0..2 {
                assert_eq!(client.get::<u8>("/").await.unwrap(), 7);
            }
        });
    }

    #[test]
    fn credentials_in_a_url_are_rejected_and_not_printed() {
        let error_of = |url: &str| {
            let tls = crate::tls::first_contact_config("0".repeat(64).parse().unwrap(), true).unwrap();
            Client::new(url, tls).unwrap_err().to_string()
        };
        assert_eq!(
            error_of("https://ann:hunter2@a.example"),
            "a.example: not a URL such as https://fleet.example.org:4444"
        );
        assert!(error_of("https://a.example/x?hunter=3").contains("/x"));
    }
}
