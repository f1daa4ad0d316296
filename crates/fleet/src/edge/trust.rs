//! Whom an edge trusts to carry its flows: relays of its authority that were not taken back.
//!
//! In: who the edge is, and a revocation list. Out: the configuration of TLS, and whether a relay may carry.
//!
//! 1. An authority signs edges, relays and services alike: only a certificate of the role relay carries, and where the service
//!    has named the relay, only that one's.
//! 2. Who has no list yet takes one as soon as there is a file; a new one counts within [`LOOK`].
//! 3. The list counts in handshakes and again when a connection that waited is taken: it may be newer than the connection.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use super::Edge;
use crate::ca::{CaError, Revocations, Stamp};
use crate::identity::{Name, Role};
use crate::tls::{Credentials, Peer, TlsError, client_config};

/// chosen: "within seconds" is what revocation promises.
const LOOK: Duration = Duration::from_secs(1);

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

/// The list in a file; none: there is no such file.
///
/// # Errors
/// It is damaged, or another authority's.
pub fn list(own: &Credentials, path: &Path) -> Result<Option<Revocations>, CaError> {
    if path.exists() { Revocations::open(path, own.authority()).map(Some) } else { Ok(None) }
}

/// Keeps an edge's trust as its list has it, and what it shows as `own` has it, until dropped.
pub async fn keep_trust(edge: &Edge, mut own: watch::Receiver<Credentials>, path: &Path) -> Infallible {
    let (mut known, mut said) = (edge.roads.trusted().revocations, String::new());
    loop {
        tokio::time::sleep(LOOK).await;
        let shows = own.has_changed().unwrap_or(false);
        let own = own.borrow_and_update().clone();
        let looked = match &mut known {
            Some(revocations) => revocations.refresh(),
            none => list(&own, path).map(|found| {
                *none = found;
                none.is_some()
            }),
        };
        match looked {
            Err(_) | Ok(false) if shows => trust(edge, &own, known.clone()),
            Ok(true) => trust(edge, &own, known.clone()),
            Ok(false) => said.clear(),
            Err(error) => {
                let words = error.to_string();
                if words != said {
                    tracing::warn!("{words}: the list that was read before stays in force");
                    said = words;
                }
            }
        }
    }
}

fn trust(edge: &Edge, own: &Credentials, revocations: Option<Revocations>) {
    match Trusted::new(own, revocations) {
        Ok(trusted) => edge.trust(trusted),
        Err(error) => tracing::warn!(%error, "certificate and revocation list"),
    }
}
