//! Decides which relays an edge trusts to carry its flows: relays with a certificate of its authority that is not revoked.
//!
//! It builds the TLS configuration from the edge's credentials and a revocation list, and checks the certificates of relays.
//!
//! 1. An authority signs edges, relays and services alike. Only a certificate with the role relay is accepted; if the fleet service has
//!    named the relay, only that relay's certificate.
//! 2. If there is no revocation list yet, one is used as soon as its file exists; a new version takes effect within seconds
//!    (`list_reload`).
//! 3. The list is checked in the handshake and again when a spare connection is used, because the list may have changed since.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::Edge;
use crate::ca::{RevocationFile, UtcSeconds};
use crate::identity::{Name, Role};
use crate::list_reload::read_crl;
use crate::tls::{Credentials, OtherAuthorities, Peer, TlsError, client_config};

/// The current credentials, authorities and revocation list.
#[derive(Clone, Debug)]
pub struct ClientTrust {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) revocations: Option<RevocationFile>,
    pub(super) other_authorities: OtherAuthorities,
    pub(super) authority: Option<CertificateDer<'static>>,
}

impl ClientTrust {
    /// Creates the trust configuration of an edge with these credentials, and a revocation list if there is one.
    ///
    /// # Errors
    /// The certificate, its key or the list is invalid.
    pub fn new(credentials: &Credentials, revocations: Option<RevocationFile>) -> Result<Self, TlsError> {
        let tls = client_config(credentials, revocations.as_ref().map(RevocationFile::crl_der), true)?;
        let (others, authority) = (credentials.other_authorities().clone(), Some(credentials.authority().clone()));
        Ok(Self { tls: Arc::new(tls), revocations, other_authorities: others, authority })
    }

    /// Whether the peer of a connection may carry flows; `member` is the name that the fleet service has given.
    pub(super) fn check_relay(
        &self,
        certificates: Option<&[CertificateDer<'_>]>,
        member: Option<&Name>,
    ) -> Result<(), TlsError> {
        let peer = Peer::of(certificates)?;
        if peer.identity.role != Role::Relay {
            return Err(TlsError::Peer(format!("{} is not a relay", peer.identity)));
        }
        if let Some(member) = member.filter(|member| peer.identity.name != **member) {
            return Err(TlsError::Peer(format!("{} is not the relay {member}", peer.identity)));
        }
        self.other_authorities.check_not_revoked(&peer)?;
        match &self.revocations {
            Some(revocations) => peer.check(revocations, UtcSeconds::now()),
            None => Ok(()),
        }
    }
}

impl From<Arc<ClientConfig>> for ClientTrust {
    fn from(tls: Arc<ClientConfig>) -> Self {
        Self { tls, revocations: None, other_authorities: OtherAuthorities::default(), authority: None }
    }
}

/// Replaces the credentials, and reads the revocation list at this path again. If the list cannot be read, that is logged and the current
/// list stays in force. If the authority differs from that of the `previous` credentials, the list must be of the new authority.
///
/// # Errors
/// One line: the new credentials are invalid, and the previous ones stay in force.
pub fn install_credentials(
    edge: &Edge,
    previous: &Credentials,
    credentials: &Credentials,
    path: &Path,
) -> Result<(), String> {
    let held = edge.relay_pool.trusted().revocations;
    let revocations = edge.list_reload.list_for(held, previous, credentials, path);
    let revocations = revocations.map_err(|error| error.to_string())?;
    edge.set_trust(ClientTrust::new(credentials, revocations).map_err(|error| error.to_string())?);
    Ok(())
}

/// Updates the edge's trust when its revocation list changes, until dropped. `credentials` holds what the edge presents.
pub async fn run_trust(edge: &Edge, credentials: watch::Receiver<Credentials>, path: &Path) -> Infallible {
    let check = || -> Result<bool, String> {
        let credentials = credentials.borrow().clone();
        let changed = match &edge.relay_pool.trusted().revocations {
            Some(current) => edge.list_reload.changed(current),
            None => read_crl(&credentials, path),
        };
        let changed = changed.map_err(|error| error.to_string())?;
        let is_new = changed.is_some();
        if is_new {
            edge.set_trust(ClientTrust::new(&credentials, changed).map_err(|error| error.to_string())?);
        }
        Ok(is_new)
    };
    edge.list_reload.watch(check).await
}
