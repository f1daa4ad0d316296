//! Whom an edge trusts to carry its flows: relays of its authority that were not taken back.
//!
//! In: who the edge is, and a revocation list. Out: the configuration of TLS, and whether a relay may carry.
//!
//! 1. An authority signs edges, relays and services alike: only a certificate of the role relay carries, and where the service
//!    has named the relay, only that one's.
//! 2. Who has no list yet takes one as soon as there is a file; a new one counts within seconds (`list_reload`).
//! 3. The list counts in handshakes and again when a connection that waited is taken: it may be newer than the connection.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::Edge;
use crate::ca::{CaError, RevocationFile, UtcSeconds};
use crate::identity::{Name, Role};
use crate::tls::{Credentials, OtherAuthorities, Peer, TlsError, client_config};

/// What counts now.
#[derive(Clone, Debug)]
pub struct ClientTrust {
    pub(super) tls: Arc<ClientConfig>,
    pub(super) revocations: Option<RevocationFile>,
    pub(super) other_authorities: OtherAuthorities,
    pub(super) authority: Option<CertificateDer<'static>>,
}

impl ClientTrust {
    /// Of who it is, and a list if there is one.
    ///
    /// # Errors
    /// The certificate, its key or the list are no good.
    pub fn new(credentials: &Credentials, revocations: Option<RevocationFile>) -> Result<Self, TlsError> {
        let tls = client_config(credentials, revocations.as_ref().map(RevocationFile::crl_der), true)?;
        let (others, authority) = (credentials.other_authorities().clone(), Some(credentials.authority().clone()));
        Ok(Self { tls: Arc::new(tls), revocations, other_authorities: others, authority })
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

/// The list in a file; none: there is no such file.
///
/// # Errors
/// It is damaged, or another authority's.
pub fn read_crl(credentials: &Credentials, path: &Path) -> Result<Option<RevocationFile>, CaError> {
    if path.exists() { RevocationFile::open(path, credentials.authority()).map(Some) } else { Ok(None) }
}

/// Puts another certificate in force, `from` the one before, and reads the list at this path again: one that cannot be read is logged,
/// and the list before stays in force. With another authority the list must be of that authority.
///
/// # Errors
/// One line: the certificate is no good, and the one before stays.
pub fn install_credentials(
    edge: &Edge,
    previous: &Credentials,
    credentials: &Credentials,
    path: &Path,
) -> Result<(), String> {
    let revocations = match edge.relay_pool.trusted().revocations {
        Some(current) if previous.authority() == credentials.authority() => Some(edge.list_reload.reread(current)),
        _ => read_crl(credentials, path).map_err(|error| error.to_string())?,
    };
    edge.set_trust(ClientTrust::new(credentials, revocations).map_err(|error| error.to_string())?);
    Ok(())
}

/// Keeps an edge's trust as its list has it until dropped. `credentials` holds what the edge presents.
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
