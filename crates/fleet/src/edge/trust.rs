//! Whom an edge trusts to carry its flows: relays of its authority that were not taken back.
//!
//! In: who the edge is, and a revocation list. Out: the configuration of TLS, and whether a relay may carry.
//!
//! 1. An authority signs edges, relays and services alike: only a certificate of the role relay carries, and where the service
//!    has named the relay, only that one's.
//! 2. The list counts in handshakes and again when a connection that waited is taken: it may be newer than the connection.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use crate::ca::{Revocations, Stamp};
use crate::identity::{Name, Role};
use crate::tls::{Credentials, Peer, TlsError, client_config};

/// What counts now.
#[derive(Clone, Debug)]
pub struct Trusted {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) revocations: Option<Revocations>,
}

impl Trusted {
    /// Of who it is, and a list if there is one.
    ///
    /// # Errors
    /// The certificate, its key or the list are no good.
    pub fn new(own: &Credentials, revocations: Option<Revocations>) -> Result<Self, TlsError> {
        let tls = client_config(own, revocations.as_ref().map(Revocations::crl), true)?;
        Ok(Self { tls: Arc::new(tls), revocations })
    }

    /// Whether the other side of a connection may carry.
    pub(super) fn check(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
        member: Option<&Name>,
    ) -> Result<(), TlsError> {
        let peer = Peer::of(certificates)?;
        if peer.identity.role != Role::Relay {
            return Err(TlsError::Peer(format!("{} is no relay", peer.identity)));
        }
        if let Some(member) = member.filter(|member| peer.identity.name != **member) {
            return Err(TlsError::Peer(format!("{} is not the relay {member}", peer.identity)));
        }
        match &self.revocations {
            Some(revocations) => peer.check(revocations, Stamp::now()),
            None => Ok(()),
        }
    }
}

impl From<Arc<ClientConfig>> for Trusted {
    fn from(tls: Arc<ClientConfig>) -> Self {
        Self { tls, revocations: None }
    }
}
