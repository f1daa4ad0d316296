//! TLS acceptors for servers with HTTP/2.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::driver::TestIdentity;

/// The server configuration of this identity.
pub(crate) fn acceptor(identity: &TestIdentity) -> rustls::ServerConfig {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .expect("an identity")
}
