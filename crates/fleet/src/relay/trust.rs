//! Whom a server of the fleet trusts: its own certificate, its authority, and the list of those that were taken back.
//!
//! In: files. Out: the newest [`Trusted`], for every handshake, and for every connection to be told when it changes.
//!
//! 1. A new list (`list_reload`) means a new configuration of TLS, and every connection asks whether it is meant.
//! 2. A certificate that expires while its tunnel is open ends it: dates are looked at with each list, and each [`DATES`].

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::ca::{CaError, RevocationFile, UtcSeconds};
use crate::identity::Role;
use crate::list_reload::ListReload;
use crate::tls::{ClientAuth, Credentials, OtherAuthorities, Peer, TlsError, client_config, server_config};

/// chosen: certificates live for weeks.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What counts now.
#[derive(Debug)]
pub struct ServerTrust {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// With which it asks the service, and a process of the service the others.
    pub(crate) client_tls: Arc<rustls::ClientConfig>,
    pub(crate) revocations: RevocationFile,
    pub(crate) other_authorities: OtherAuthorities,
}

impl ServerTrust {
    fn of(credentials: &Credentials, clients: &ClientAuth, revocations: RevocationFile) -> Result<Self, TlsError> {
        let tls = server_config(credentials, revocations.crl_der(), clients, true)?;
        let peers = Arc::new(client_config(credentials, Some(revocations.crl_der()), true)?);
        Ok(Self {
            tls: Arc::new(tls),
            client_tls: peers,
            revocations,
            other_authorities: credentials.other_authorities().clone(),
        })
    }

    /// Whether somebody may be here.
    pub(crate) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        peer.check(&self.revocations, UtcSeconds::now())?;
        self.other_authorities.check_not_revoked(peer)
    }
}

/// Keeps it new.
#[derive(Debug)]
pub struct TrustStore {
    credentials: Mutex<Credentials>,
    clients: ClientAuth,
    current: watch::Sender<Arc<ServerTrust>>,
    reload: ListReload,
}

/// Why a server can trust nobody.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Its own files are no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The list is no good.
    #[error(transparent)]
    List(#[from] CaError),
}

impl TrustStore {
    /// Of a relay, which lets edges in: who it is, and the list of its authority.
    ///
    /// # Errors
    /// A file cannot be read, or is no good.
    pub fn new(credentials: Credentials, crl_path: &Path) -> Result<Self, TrustError> {
        Self::with_clients(
            credentials,
            crl_path,
            ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: false },
        )
    }

    /// Of who lets others in.
    ///
    /// # Errors
    /// As [`TrustStore::new`].
    pub fn with_clients(
        credentials: Credentials,
        crl_path: &Path,
        clients: ClientAuth,
    ) -> Result<Self, TrustError> {
        let revocations = RevocationFile::open(crl_path, credentials.authority())?;
        let trusted = ServerTrust::of(&credentials, &clients, revocations)?;
        let current = watch::Sender::new(Arc::new(trusted));
        Ok(Self { credentials: Mutex::new(credentials), clients, current, reload: ListReload::default() })
    }

    /// Shows another certificate from now on, and reads the revocation list again: one that cannot be read is logged, and the list
    /// before stays in force. With another authority, the list in the same file must be of that authority.
    ///
    /// # Errors
    /// The certificate is no good, and the one before stays.
    pub fn install(&self, credentials: Credentials) -> Result<(), TrustError> {
        let current = self.current.borrow().revocations.clone();
        let is_same =
            self.credentials.lock().unwrap_or_else(PoisonError::into_inner).authority() == credentials.authority();
        let (credentials, revocations) = if is_same {
            (credentials, self.reload.reread(current))
        } else {
            let read = RevocationFile::open(current.path(), credentials.authority())?;
            // The list of the authority before is known better than the bundle has it.
            (credentials.with_crl(&current), read)
        };
        let trusted = ServerTrust::of(&credentials, &self.clients, revocations)?;
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
        self.current.send_replace(Arc::new(trusted));
        Ok(())
    }

    /// What it shows to others.
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What counts, from now on.
    pub fn subscribe(&self) -> watch::Receiver<Arc<ServerTrust>> {
        self.current.subscribe()
    }

    /// What it shows to the service ([`Client::showing`](crate::service::Client::showing)), and whom it takes for it.
    pub fn client_config(&self) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let newest = self.subscribe();
        move || Arc::clone(&newest.borrow().client_tls)
    }

    /// Keeps it new until dropped.
    pub async fn run(&self) -> Infallible {
        let mut last_expiry_check = Instant::now();
        let check = || {
            let refreshed = self.refresh();
            // Whatever became of the list: certificates end.
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
        self.current.send_replace(Arc::new(ServerTrust::of(&credentials, &self.clients, revocations)?));
        tracing::info!("a new revocation list");
        Ok(true)
    }
}
