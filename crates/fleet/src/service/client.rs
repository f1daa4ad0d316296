//! The other side of the API: one connection to the service, kept alive, with a member's certificate.
//!
//! In: a URL, credentials, and values. Out: values, or whose fault it is.
//!
//! 1. A connection that has gone is opened anew, once per call, if nothing of an answer has come: every call may be repeated.
//!    So is one whose request is not allowed: its certificate may have ended while it was kept.
//! 2. A call has [`PATIENCE`]; on a connection that was kept [`HANGS`], and then once more on a new one: the machine at the other end
//!    may be gone without a word, and relays must be heard again before they count as gone.
//! 3. A name may have several addresses, of as many processes. One that says nothing within [`EACH`] is left for the next one.
//! 4. The other side has the role `fleet`: a relay's certificate may be good for the same address, and a relay is not asked.

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

/// chosen: a request waits two seconds for its window, and a slow link has some round trips.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// chosen: a request waits two seconds for its window; a heartbeat, this and an address that says nothing are less than the three
/// heartbeats after which a relay counts as gone.
const REUSED_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: a handshake over a slow link takes less, and three machines may be gone.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);
/// chosen: fifty thousand edges of three hundred bytes.
const MAX_RESPONSE: usize = 16 * 1024 * 1024;

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is none of a service.
    #[error("{0}: not a URL such as https://fleet.example.org:4444")]
    Url(String),
    /// The service is not reached, or breaks off.
    #[error("{service}: {text}")]
    Network {
        /// Which service.
        service: String,
        /// Why.
        text: String,
    },
    /// The service refuses.
    #[error("{0}")]
    Refused(#[from] Problem),
}

/// A service, as one of its members sees it.
pub struct Client {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Box<dyn Fn() -> Arc<rustls::ClientConfig> + Send + Sync>,
    connection: Option<SendRequest<Full<Bytes>>>,
    link_use: LinkUse,
    /// For whom it asks; none: for itself.
    on_behalf_of: Option<OnBehalfOf>,
    /// Which process this is, among those with the same certificate; none: there were no random numbers.
    instance: Option<Nonce>,
}

/// A member for which another process of the service asks.
struct OnBehalfOf {
    identity: String,
    not_after: String,
    process: Option<CallerProcess>,
}

/// Which process of a member has asked, and at which address.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerProcess {
    pub(super) instance: Nonce,
    pub(super) address: IpAddr,
}

/// Over which link connections to the service begin.
enum LinkUse {
    /// As the kernel's routes have it.
    KernelRoutes,
    /// Over the one that reaches it, of these.
    Dialer(Arc<LinkDialer>),
    /// Over the one that reaches it, of those that are there then.
    SurveyedLinks,
}

/// Where a service is, and how it is known.
#[derive(Clone)]
struct ServiceTarget {
    host: String,
    port: u16,
    name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
}

impl ServiceTarget {
    /// Over this link; none: as the kernel has it.
    async fn connect_over_link(
        &self,
        link: Option<&Interface>,
        dialer: &LinkDialer,
    ) -> io::Result<(TlsStream<TcpStream>, ConnObservation)> {
        let mut addresses: Vec<_> = match link {
            None => lookup_host((self.host.as_str(), self.port)).await?.collect(),
            Some(link) => dialer.resolve(None, (&self.host, self.port), link).await?,
        };
        let is_behind_links = addresses
            .iter()
            .any(|address| dialer.is_behind_links(address.ip()) && !is_beyond_routes(address.ip(), link, dialer));
        let link = link.filter(|_| is_behind_links);
        if let Some(link) = link {
            addresses = LinkDialer::with_link_families(addresses, link)?;
        }
        let device = link.map(|link| link.name.as_str());
        let stream = self.connect_any(&addresses, device).await?;
        Ok((stream, if is_behind_links { ConnObservation::Reached } else { ConnObservation::NotViaLinks }))
    }

    /// Rule 3. The last one has all the time that is left to the call.
    async fn connect_any(
        &self,
        addresses: &[SocketAddr],
        device: Option<&str>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let (last, others) = addresses.split_last().ok_or_else(none)?;
        for address in others {
            match timeout(ADDRESS_TIMEOUT, self.connect(*address, device)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => tracing::debug!(%address, %error, "the service is tried at its next address"),
                Err(_) => tracing::debug!(%address, "says nothing: the service is tried at its next address"),
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
            return Err(denied(format!("{} answers there, and not the fleet's service", peer.identity)));
        }
        Ok(stream)
    }
}

/// Whether an address is behind a static route that only the kernel knows.
fn is_beyond_routes(address: IpAddr, link: Option<&Interface>, starts: &LinkDialer) -> bool {
    let is_own = link.is_some_and(|link| link.is_on_subnet(address));
    leaves_beside(
        AddressZone::of(address),
        is_own,
        non_default_route_interface(address).map(|over| starts.is_link(over)),
    )
}

/// Whether an address of this zone, which may be in the link's own network, is reached by a static route and not over the link in its own
/// right. `static_route`: there is such a route, and whether it leaves by one of the links.
///
/// A public address whose route leaves by a link can be behind the others as well; one behind a VPN or another router cannot. A private
/// network is where its route leads.
fn leaves_beside(zone: AddressZone, is_own: bool, static_route: Option<bool>) -> bool {
    !is_own && static_route.is_some_and(|by_a_link| zone == AddressZone::Private || !by_a_link)
}

/// For whom a process of the service asks another one.
pub(super) const FOR_HEADER: &str = "marline-for";
/// When the certificate ends that he has shown to it.
pub(super) const FOR_UNTIL_HEADER: &str = "marline-for-until";
/// At which address he has asked.
pub(super) const FOR_ADDRESS_HEADER: &str = "marline-for-address";
/// A random number of the process that asks, made when it started.
pub(super) const INSTANCE_HEADER: &str = "marline-instance";

impl Client {
    /// Of the service at this URL; nothing is connected yet. The configuration is one of
    /// [`client_config`](crate::tls::client_config) or [`first_contact_config`](crate::tls::first_contact_config).
    ///
    /// # Errors
    /// The URL is not `https://HOST[:PORT]`.
    pub fn new(url: &str, tls: rustls::ClientConfig) -> Result<Self, ClientError> {
        // What may be a login is nobody's business.
        let redacted = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
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

    /// With each new connection what this gives: certificates are renewed, and lists of the revoked as well.
    #[must_use]
    pub fn with_tls(self, tls: impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static) -> Self {
        Self { tls: Box::new(tls), ..self }
    }

    /// Over the link that reaches it.
    #[must_use]
    pub(crate) fn with_dialer(self, dialer: Arc<LinkDialer>) -> Self {
        Self { link_use: LinkUse::Dialer(dialer), ..self }
    }

    /// Over the link of this host that reaches it, of those that are there when a connection begins.
    #[must_use]
    pub fn over_links(self) -> Self {
        Self { link_use: LinkUse::SurveyedLinks, ..self }
    }

    /// GET.
    ///
    /// # Errors
    /// The service is not reached, or refuses.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    /// POST.
    ///
    /// # Errors
    /// As [`Client::fetch`].
    pub async fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.network_error(error))?;
        self.call(Method::POST, path, body.into()).await
    }

    /// GET of a text.
    ///
    /// # Errors
    /// As [`Client::fetch`].
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
            // The certificate of the connection has ended; there may be a new one.
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

    /// What a member has asked another process, for which it is asked here: the answer, whatever it is.
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
        // While a call is under way there is no connection for the next one: it may be cut off in the middle.
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
        let starts = match &self.link_use {
            LinkUse::KernelRoutes => None,
            LinkUse::Dialer(dialer) => Some(Arc::clone(dialer)),
            LinkUse::SurveyedLinks => Some(LinkDialer::from_survey().await),
        };
        let stream = match starts {
            None => {
                let addresses = lookup_host((self.host.as_str(), self.port))
                    .await
                    .map_err(|error| self.network_error(error))?;
                self.target().connect_any(&addresses.collect::<Vec<_>>(), None).await
            }
            Some(starts) => {
                let (to, of) = (self.target(), Arc::clone(&starts));
                let attempt = move |link: Option<Arc<Interface>>| {
                    let (target, link_dialer) = (to.clone(), Arc::clone(&of));
                    async move { target.connect_over_link(link.as_deref(), &link_dialer).await }
                };
                starts.connect(attempt).await
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
                tracing::debug!(%error, "the connection to the service ended");
            }
        });
        Ok(sender)
    }

    /// Nothing came in time.
    pub(super) fn timed_out(&self) -> ClientError {
        self.network_error("no answer in time")
    }

    fn network_error(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Network { service: format!("{}:{}", self.host, self.port), text: with_causes(&*error.into()) }
    }
}

/// An error and its causes: hyper's own words are "connection error", and the alert of TLS is behind them.
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
    fn a_service_behind_a_static_route_is_reached_as_the_kernel_has_it() {
        let (by_a_link, by_another) = (Some(true), Some(false));
        for (zone, is_own, static_route, beside) in [
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
            assert_eq!(leaves_beside(zone, is_own, static_route), beside, "{zone:?} {is_own} {static_route:?}");
        }
    }

    /// What a service and an edge of this authority show to each other.
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
    fn an_address_that_says_nothing_is_left_for_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let (server, edge) = tls_configs(&authority);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The kernel takes the connection, and nobody ever answers: a process that hangs, a machine that is gone.
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
                .expect("in the time that a call has")
                .unwrap();
        });
    }

    #[test]
    fn a_connection_that_hangs_is_left_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let (server, edge) = tls_configs(&authority);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = Client::new(&format!("https://{}", listener.local_addr().unwrap()), edge).unwrap();
            tokio::spawn(async move {
                // Each connection is good for one answer.
                let mut kept = Vec::new();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    let mut stream = TlsAcceptor::from(Arc::new(server.clone())).accept(socket).await.unwrap();
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7").await.unwrap();
                    stream.flush().await.unwrap();
                    kept.push(stream);
                }
            });
            for _ in 0..2 {
                assert_eq!(client.get::<u8>("/").await.unwrap(), 7);
            }
        });
    }

    #[test]
    fn a_login_in_a_url_is_refused_and_not_repeated() {
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
