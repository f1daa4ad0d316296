//! Shared parts of the tests of relays and edges: a certificate authority, a listening relay, members, an echo server.
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use marline_fleet::ca::{Authority, CertTemplate, MemberFiles, UtcSeconds};
use marline_fleet::identity::{Identity, Name};
use marline_fleet::relay::{Config, Limits, Listeners, Relay, TrustStore, acl::Acl};
use marline_fleet::tls::{Credentials, client_config};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DAY: Duration = Duration::from_secs(86_400);

/// A listening relay with its certificate authority.
pub(crate) struct TestRelay {
    pub(crate) dir: TempDir,
    pub(crate) authority: Authority,
    pub(crate) relay: Arc<Relay>,
    pub(crate) address: std::net::SocketAddr,
}

impl TestRelay {
    /// A relay that allows 127.0.0.1 in addition to the public addresses.
    pub(crate) async fn start(limits: Limits) -> Self {
        Self::with(limits, &["127.0.0.1"]).await
    }

    /// A relay that allows these networks in addition to the public ones.
    pub(crate) async fn with(limits: Limits, networks: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", UtcSeconds::now()).unwrap();
        let credentials = issue_member(&authority, dir.path(), "marline://relay/r1", &["127.0.0.1"]);
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            acl: Acl {
                ports: vec!["1-65535".parse().unwrap()],
                networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
                ..Acl::default()
            },
            limits,
            ..Config::default()
        };
        let trust = TrustStore::new(credentials, &authority.crl_path()).unwrap();
        let relay = Relay::new(config, trust.subscribe());
        let listeners = Listeners::open(&relay).unwrap();
        let address = listeners.addresses()[0];
        let serving_relay = Arc::clone(&relay);
        tokio::spawn(async move { listeners.serve(&serving_relay).await });
        tokio::spawn(async move { trust.run().await });
        Self { dir, authority, relay, address }
    }

    pub(crate) fn edge_credentials(&self, name: &str) -> Credentials {
        issue_member(&self.authority, self.dir.path(), &format!("marline://edge/{name}"), &[])
    }

    pub(crate) async fn connect(&self, credentials: &Credentials) -> io::Result<TlsStream<TcpStream>> {
        let config = client_config(credentials, None, true).unwrap();
        let socket = TcpStream::connect(self.address).await?;
        let server = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(server, socket).await
    }

    /// Requests a tunnel; returns the head of the response and the connection.
    pub(crate) async fn tunnel(&self, credentials: &Credentials, target: &str) -> (String, TlsStream<TcpStream>) {
        let mut edge = self.connect(credentials).await.unwrap();
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        edge.write_all(head.as_bytes()).await.unwrap();
        (read_response_head(&mut edge).await, edge)
    }
}

pub(crate) fn issue_member(authority: &Authority, dir: &Path, identity: &str, addresses: &[&str]) -> Credentials {
    let identity: Identity = identity.parse().unwrap();
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let template = CertTemplate::new(identity.clone(), addresses, DAY).unwrap();
    let (chain, key) = authority.issue_with_key(&template, UtcSeconds::now()).unwrap();
    let files = MemberFiles::of(&new_dir(dir, &identity.name), &identity.name).unwrap();
    files.write(&chain, Some(&key)).unwrap();
    Credentials::read(&files.certificate, &files.key, &files.authority).unwrap()
}

/// Creates a new directory for each certificate.
fn new_dir(dir: &Path, name: &Name) -> PathBuf {
    let path = (0..).map(|n| dir.join(format!("{name}-{n}"))).find(|path| !path.exists()).unwrap();
    std::fs::create_dir(&path).unwrap();
    path
}

pub(crate) async fn read_response_head(edge: &mut TlsStream<TcpStream>) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match timeout(Duration::from_secs(20), edge.read_u8()).await.unwrap() {
            Ok(byte) => head.push(byte),
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&head)),
        }
    }
    String::from_utf8(head).unwrap()
}

/// A server that echoes everything until the end of the stream.
pub(crate) async fn echo_server() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = socket.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    address
}

pub(crate) fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}
