//! TLS client configuration, certificate verification, and the texts of TLS errors.
//!
//! The roots come from a PEM file or from the system. One configuration serves all connections of a program, so that
//! TLS sessions are resumed across links. Certificates are always verified: there is no switch to disable it, and the
//! CA of a test server goes into the file.
//!
//! The file may also contain the server's own certificate, as people create it for a single machine. A certificate
//! that is identical to one in the file needs no issuer, but still the right name and validity
//! ([`PinnedOrChainVerifier`]).
//!
//! [`ConnErrorKind::Tls`] means that the next handshake would fail in the same way: the certificate is not valid, or
//! both ends have no protocol in common. A handshake that was cut off (by a captive portal, an overloaded server or a
//! failed path) says nothing about the next one, and counts as a reset.
//!
//! The cryptography is that of ring, selected in [`provider`] only. aws-lc-rs encrypts twice as many bytes per second
//! and has the hybrid post-quantum key exchange. But it gathers entropy for 40 ms before the first handshake: two
//! RTTs of a Wi-Fi link at the start of every download, against 0.05 s of CPU time per gigabyte.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use marline_core::fetch::{ConnError, ConnErrorKind};

use super::{conn_error, socket_error};

/// Why no trusted certificate authorities are available.
#[derive(Debug, thiserror::Error)]
pub enum TrustRootsError {
    /// The file of roots cannot be read.
    #[error("{path}: {text}: cannot read certificate authorities from this file")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        text: String,
    },
    /// The system has no certificate authorities.
    #[error("no certificate authorities found on this system ({0}): install ca-certificates or name a --ca-file")]
    NoSystemRoots(String),
    /// rustls rejected the configuration.
    #[error("TLS cannot be set up: {0}")]
    Rustls(#[from] rustls::Error),
}

/// Configures TLS 1.3 and 1.2. Trusts only the authorities in `ca_file`, or the system's without a file. Offers
/// HTTP/2 before HTTP/1.1 if `http2`, otherwise only HTTP/1.1. Reads files: call it once, and only if there is an
/// `https` URL.
///
/// # Errors
/// No authority could be read.
pub fn tls_config(ca_file: Option<&Path>, http2: bool) -> Result<Arc<ClientConfig>, TrustRootsError> {
    let provider = Arc::new(provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match ca_file {
        Some(path) => {
            let (roots, pinned) = read_roots(path)?;
            let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let chain =
                webpki.map_err(|error| TrustRootsError::File { path: path.to_owned(), text: error.to_string() })?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(PinnedOrChainVerifier { webpki: chain, pinned }))
        }
        None => builder.with_root_certificates(system_roots()?),
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols =
        if http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(Arc::new(config))
}

/// The TLS configuration of a program. It is read when the first `https` URL appears, which may be a redirect long
/// after the start. Clones share what they learn about hosts.
#[derive(Clone, Debug, Default)]
pub struct TlsContext {
    ca_file: Option<PathBuf>,
    /// The configuration, once it was read.
    config: Option<Arc<ClientConfig>>,
    /// Hosts and ports that require HTTP/1.1, although they offer HTTP/2.
    http1_hosts: Arc<Mutex<BTreeSet<(String, u16)>>>,
    /// How often each host has refused HTTP/2 streams in a row.
    refused_streams: Arc<Mutex<BTreeMap<(String, u16), u32>>>,
}

impl TlsContext {
    /// Trusts the authorities in this file only, or those of the system.
    pub fn new(ca_file: Option<&Path>) -> Self {
        Self { ca_file: ca_file.map(Path::to_owned), ..Self::default() }
    }

    /// The configuration for any host.
    ///
    /// # Errors
    /// As [`tls_config`].
    pub fn config(&mut self) -> Result<Arc<ClientConfig>, TrustRootsError> {
        if let Some(config) = &self.config {
            return Ok(Arc::clone(config));
        }
        let config = tls_config(self.ca_file.as_deref(), true)?;
        self.config = Some(Arc::clone(&config));
        Ok(config)
    }

    /// The configuration for connections to one host.
    ///
    /// # Errors
    /// As [`tls_config`].
    pub fn config_for(&mut self, host: &str, port: u16) -> Result<Arc<ClientConfig>, TrustRootsError> {
        let config = self.config()?;
        if !self.lock_http1_hosts().contains(&(host.to_owned(), port)) {
            return Ok(config);
        }
        let mut http1 = ClientConfig::clone(&config);
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(http1))
    }

    /// Records that a host has requested HTTP/1.1 (HTTP_1_1_REQUIRED, RFC 9113 section 7): HTTP/2 is no longer
    /// offered to it.
    pub fn use_http1_for(&self, host: &str, port: u16) {
        let mut http1 = self.lock_http1_hosts();
        if http1.len() < MAX_HOSTS {
            http1.insert((host.to_owned(), port));
        }
    }

    /// Records that a host has served a request by HTTP/2: its count of refused streams starts again.
    pub fn on_stream_served(&self, host: &str, port: u16) {
        let mut refused_streams = self.refused_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if !refused_streams.is_empty() {
            refused_streams.remove(&(host.to_owned(), port));
        }
    }

    /// Records that a host has refused a stream. Returns whether it has done so several times in a row, and should be
    /// used with HTTP/1.1 from now on.
    pub fn on_stream_refused(&self, host: &str, port: u16) -> bool {
        let mut refused_streams = self.refused_streams.lock().unwrap_or_else(PoisonError::into_inner);
        if refused_streams.len() >= MAX_HOSTS && !refused_streams.contains_key(&(host.to_owned(), port)) {
            return false;
        }
        let times = refused_streams.entry((host.to_owned(), port)).or_insert(0);
        *times += 1;
        *times >= MAX_REFUSED_STREAMS
    }

    fn lock_http1_hosts(&self) -> MutexGuard<'_, BTreeSet<(String, u16)>> {
        // No code panics while the lock is held.
        self.http1_hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum number of hosts in each of the two tables of a [`TlsContext`]; few servers request HTTP/1.1 in this way.
const MAX_HOSTS: usize = 1000;
/// Number of streams refused in a row after which HTTP/2 is no longer used for the host. Our choice: two links, twice
/// each.
const MAX_REFUSED_STREAMS: u32 = 4;

/// The only function that selects the cryptography.
fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// Trusts certificates that the file's authorities have signed, and the file's certificates themselves.
#[derive(Debug)]
struct PinnedOrChainVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for PinnedOrChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chained = self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match chained {
            // webpki checks the dates before these errors. So a certificate with one of them is neither expired nor
            // early: it only has no known issuer, or is that of an authority, as `openssl req -x509` creates it.
            // Being identical to one in the file is stronger evidence than both.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.pinned.iter().any(|trusted| trusted == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

fn read_roots(path: &Path) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), TrustRootsError> {
    let file_error = |text: String| TrustRootsError::File { path: path.to_owned(), text };
    let (mut roots, mut pinned) = (RootCertStore::empty(), Vec::new());
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| file_error(pem_error_text(error)))? {
        let certificate = certificate.map_err(|error| file_error(pem_error_text(error)))?;
        pinned.push(certificate.clone());
        roots.add(certificate).map_err(|error| file_error(readable_text(&error.to_string())))?;
    }
    if roots.is_empty() { Err(file_error("it holds no certificate".to_owned())) } else { Ok((roots, pinned)) }
}

fn system_roots() -> Result<RootCertStore, TrustRootsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "no file".to_owned(), ToString::to_string);
        return Err(TrustRootsError::NoSystemRoots(why));
    }
    Ok(roots)
}

fn pem_error_text(error: rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Converts the error of a failed handshake with `server`.
pub(super) fn handshake_error(server: &str, error: &io::Error) -> ConnError {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return conn_error(
                ConnErrorKind::Reset,
                format!("{server}: the server closed during the TLS handshake"),
            );
        }
        return socket_error(&format!("{server}: TLS handshake"), error);
    };
    let (kind, why) = match tls {
        rustls::Error::InvalidCertificate(bad) => (ConnErrorKind::Tls, certificate_error_text(server, bad)),
        rustls::Error::InvalidMessage(_) => {
            (ConnErrorKind::Tls, "the server does not speak TLS on this port".to_owned())
        }
        rustls::Error::NoApplicationProtocol => {
            (ConnErrorKind::Tls, "the server speaks neither HTTP/2 nor HTTP/1.1".to_owned())
        }
        rustls::Error::PeerIncompatible(_) => {
            (ConnErrorKind::Tls, format!("TLS: {}", readable_text(&tls.to_string())))
        }
        rustls::Error::AlertReceived(alert) => {
            let alert_text = readable_text(&format!("{alert:?}"));
            (alert_kind(*alert), format!("the server refused the TLS handshake: {alert_text}"))
        }
        other => (ConnErrorKind::Protocol, format!("TLS: {}", readable_text(&other.to_string()))),
    };
    conn_error(kind, format!("{server}: {why}"))
}

/// What an alert means for the next handshake (RFC 8446 section 6.2). Only alerts that name a missing capability are
/// permanent: overloaded servers also send `handshake_failure` and `internal_error`.
fn alert_kind(alert: AlertDescription) -> ConnErrorKind {
    match alert {
        AlertDescription::ProtocolVersion
        | AlertDescription::InsufficientSecurity
        | AlertDescription::NoApplicationProtocol
        | AlertDescription::CertificateRequired => ConnErrorKind::Tls,
        _ => ConnErrorKind::Reset,
    }
}

fn certificate_error_text(server: &str, error: &CertificateError) -> String {
    match error {
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<&str> = presented.iter().map(|name| presented_name(name)).collect();
            let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
            format!("the certificate is for {names}, not for {server}")
        }
        CertificateError::NotValidForName => format!("the certificate is not for {server}"),
        CertificateError::ExpiredContext { time, not_after } => {
            let days = time.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            format!("the certificate expired {days} days ago")
        }
        CertificateError::Expired => "the certificate has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet: check the clock".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "the certificate's issuer is not trusted; if you trust it, name a file that contains it with --ca-file".to_owned()
        }
        CertificateError::BadSignature => {
            "the certificate was not signed by the authority that it names".to_owned()
        }
        CertificateError::Revoked => "the certificate has been revoked".to_owned(),
        CertificateError::BadEncoding => "the certificate cannot be read".to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is not a server certificate".to_owned()
        }
        // The library does not export a type for this error.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the certificate is that of an authority itself; if you trust it, name a file that contains it with --ca-file"
                .to_owned()
        }
        other => format!("the certificate is not valid: {}", readable_text(&other.to_string())),
    }
}

/// Turns identifiers of the library into words: `HandshakeFailure` becomes `handshake failure`; brackets are removed.
fn readable_text(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_word_start = c.is_ascii_uppercase() && !before.is_ascii_uppercase();
        if is_word_start && before.is_ascii_alphanumeric() {
            spaced.push(' ');
        }
        let is_word = is_word_start && chars.peek().is_some_and(char::is_ascii_lowercase);
        spaced.push(if "(){}\"".contains(c) {
            ' '
        } else if is_word {
            c.to_ascii_lowercase()
        } else {
            c
        });
        before = c;
    }
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Extracts the name from rustls's notation `DnsName("x")`.
fn presented_name(name: &str) -> &str {
    name.split_once("(\"").and_then(|(_, remaining)| remaining.strip_suffix("\")")).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = tls_config(Some(file.path()), true).expect_err("empty").to_string();
        assert!(text.contains("holds no certificate"), "{text}");
        let text = tls_config(Some(Path::new("/nowhere/ca.pem")), true).expect_err("absent").to_string();
        assert!(text.contains("/nowhere/ca.pem") && text.contains("No such file"), "{text}");
    }

    #[test]
    fn only_errors_that_will_recur_are_permanent() {
        let kind = |error: io::Error| handshake_error("h", &error).kind;
        let tls = |error: rustls::Error| kind(io::Error::new(io::ErrorKind::InvalidData, error));
        for bad in [CertificateError::UnknownIssuer, CertificateError::Expired, CertificateError::NotValidForName] {
            assert_eq!(tls(rustls::Error::InvalidCertificate(bad)), ConnErrorKind::Tls);
        }
        assert_eq!(tls(rustls::Error::NoApplicationProtocol), ConnErrorKind::Tls);
        assert_eq!(tls(rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)), ConnErrorKind::Tls);
        for alert in [AlertDescription::HandshakeFailure, AlertDescription::InternalError] {
            assert_eq!(tls(rustls::Error::AlertReceived(alert)), ConnErrorKind::Reset);
        }
        assert_eq!(kind(io::ErrorKind::UnexpectedEof.into()), ConnErrorKind::Reset);
        assert_eq!(kind(io::ErrorKind::ConnectionReset.into()), ConnErrorKind::Reset);
        assert_eq!(kind(io::ErrorKind::TimedOut.into()), ConnErrorKind::TimedOut);
    }

    /// Verifies a server's own certificate that is in the file, for a server called `name`.
    fn verify_self_signed(
        name: &str,
        change: impl FnOnce(&mut rcgen::CertificateParams),
    ) -> Result<(), rustls::Error> {
        let mut params = rcgen::CertificateParams::new(vec!["box.example".to_owned()]).expect("parameters");
        change(&mut params);
        let key = rcgen::KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), cert.pem()).expect("written");
        let (roots, exact) = read_roots(file.path()).expect("read");
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider()));
        let verifier = PinnedOrChainVerifier { webpki: chain.build().expect("a verifier"), pinned: exact };
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        verifier.verify_server_cert(cert.der(), &[], &name, &[], UnixTime::now()).map(|_| ())
    }

    #[test]
    fn a_certificate_in_the_file_is_trusted_for_its_name_and_validity() {
        let authority = |params: &mut rcgen::CertificateParams| {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        };
        verify_self_signed("box.example", |_| {}).expect("a plain one");
        verify_self_signed("box.example", authority).expect("one that openssl makes");
        let text = |bad: Result<(), rustls::Error>| {
            handshake_error("h", &io::Error::new(io::ErrorKind::InvalidData, bad.expect_err("refused"))).text
        };
        let other = text(verify_self_signed("other.example", authority));
        assert!(other.contains("the certificate is for box.example, not for h"), "{other}");
        let expired = text(verify_self_signed("box.example", |params| {
            authority(params);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }));
        assert!(expired.contains("expired"), "{expired}");
    }

    #[test]
    fn identifiers_of_the_library_are_shown_as_words() {
        assert_eq!(
            readable_text("peer is incompatible: Tls12NotOffered"),
            "peer is incompatible: tls12 not offered"
        );
        assert_eq!(
            readable_text("Other(OtherError(CaUsedAsEndEntity))"),
            "other other error ca used as end entity"
        );
        assert_eq!(readable_text("NoALPN"), "no ALPN");
    }

    #[test]
    fn presented_names_are_shown_plainly() {
        assert_eq!(presented_name("DnsName(\"a.b\")"), "a.b");
        assert_eq!(presented_name("a.b"), "a.b");
    }
}
