//! Trust of a server of the fleet: its credentials, the authorities it accepts, and the revocation list.
//!
//! It reads them from files. [`TrustStore`] provides the newest [`ServerTrust`] to each handshake, and notifies connections of changes.
//!
//! 1. A new list (`list_reload`) leads to a new TLS configuration, and every connection checks its peer again.
//! 2. A certificate that expires ends its connection. Dates are checked with each new list, and each [`EXPIRY_CHECK_INTERVAL`].

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::ca::{CaError, RevocationFile, UtcSeconds};
use crate::identity::Role;
use crate::list_reload::ListReload;
use crate::tls::{ClientAuth, Credentials, OtherAuthorities, Peer, TlsError, client_config, server_config};

/// Our choice: short compared with the validity of certificates, which is weeks.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A snapshot of the TLS configurations and revocation lists in force.
#[derive(Debug)]
pub struct ServerTrust {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// Configuration for connections to the fleet service, and between processes of the service.
    pub(crate) client_tls: Arc<rustls::ClientConfig>,
    pub(crate) revocations: RevocationFile,
    pub(crate) other_authorities: OtherAuthorities,
}

impl ServerTrust {
    fn new(credentials: &Credentials, clients: &ClientAuth, revocations: RevocationFile) -> Result<Self, TlsError> {
        let tls = server_config(credentials, revocations.crl_der(), clients, true)?;
        let peers = Arc::new(client_config(credentials, Some(revocations.crl_der()), true)?);
        Ok(Self {
            tls: Arc::new(tls),
            client_tls: peers,
            revocations,
            other_authorities: credentials.other_authorities().clone(),
        })
    }

    /// Whether the certificate of a peer is valid now and not revoked.
    pub(crate) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        peer.check(&self.revocations, UtcSeconds::now())?;
        self.other_authorities.check_not_revoked(peer)
    }
}

/// Holds the newest [`ServerTrust`], and updates it when files change.
#[derive(Debug)]
pub struct TrustStore {
    credentials: Mutex<Credentials>,
    clients: ClientAuth,
    current: watch::Sender<Arc<ServerTrust>>,
    reload: ListReload,
}

/// Why the configuration of a server cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Its credentials are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The revocation list is invalid.
    #[error(transparent)]
    List(#[from] CaError),
}

impl TrustStore {
    /// The store of a relay, which accepts edges: its credentials, and the revocation list of its authority.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn new(credentials: Credentials, crl_path: &Path) -> Result<Self, TrustError> {
        Self::with_clients(
            credentials,
            crl_path,
            ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: false },
        )
    }

    /// The store of a server that accepts these clients.
    ///
    /// # Errors
    /// As [`TrustStore::new`].
    pub fn with_clients(
        credentials: Credentials,
        crl_path: &Path,
        clients: ClientAuth,
    ) -> Result<Self, TrustError> {
        let revocations = RevocationFile::open(crl_path, credentials.authority())?;
        let trusted = ServerTrust::new(&credentials, &clients, revocations)?;
        let current = watch::Sender::new(Arc::new(trusted));
        Ok(Self { credentials: Mutex::new(credentials), clients, current, reload: ListReload::default() })
    }

    /// Replaces the credentials, and reads the revocation list again. If the list cannot be read, this is logged, and the previous list
    /// stays in force. With credentials of another authority, the list in the same file must be of that authority.
    ///
    /// # Errors
    /// The new credentials or the list of a new authority are invalid; the previous ones stay in use.
    pub fn install(&self, credentials: Credentials) -> Result<(), TrustError> {
        let current = self.current.borrow().revocations.clone();
        let previous = self.credentials();
        let list = self.reload.list_for(Some(current.clone()), &previous, &credentials, current.path())?;
        // A missing file is an error here: a server has always had a list.
        let revocations = list.map_or_else(|| RevocationFile::open(current.path(), credentials.authority()), Ok)?;
        let credentials = if previous.authority() == credentials.authority() {
            credentials
        } else {
            // The previous list of the old authority may be newer than the one in the bundle.
            credentials.with_crl(&current)
        };
        let trusted = ServerTrust::new(&credentials, &self.clients, revocations)?;
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
        self.current.send_replace(Arc::new(trusted));
        Ok(())
    }

    /// The server's own credentials.
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Receives the current snapshot and all later ones.
    pub fn subscribe(&self) -> watch::Receiver<Arc<ServerTrust>> {
        self.current.subscribe()
    }

    /// The newest TLS configuration for connections to the service ([`Client::with_tls`](crate::service::Client::with_tls)).
    pub fn client_config(&self) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let newest = self.subscribe();
        move || Arc::clone(&newest.borrow().client_tls)
    }

    /// Reloads the list when it changes, until dropped.
    pub async fn run(&self) -> Infallible {
        let mut last_expiry_check = Instant::now();
        let check = || {
            let refreshed = self.refresh();
            // Even if the list is unchanged or invalid: wakes all connections, so that they check the dates of certificates.
            if last_expiry_check.elapsed() >= EXPIRY_CHECK_INTERVAL {
                self.current.send_modify(|_| {});
                last_expiry_check = Instant::now();
            }
            refreshed
        };
        self.reload.watch(check).await
    }

    fn refresh(&self) -> Result<bool, TrustError> {
        let current = self.current.borrow().revocations.clone();
        let Some(revocations) = self.reload.changed(&current)? else { return Ok(false) };
        let credentials = self.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        self.current.send_replace(Arc::new(ServerTrust::new(&credentials, &self.clients, revocations)?));
        tracing::info!("loaded a new revocation list");
        Ok(true)
    }
}
