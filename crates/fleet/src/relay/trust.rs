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

use crate::ca::{CaError, Revocations, Stamp};
use crate::identity::Role;
use crate::list_reload::ListReload;
use crate::tls::{Clients, Credentials, Others, Peer, TlsError, client_config, server_config};

/// chosen: certificates live for weeks.
const DATES: Duration = Duration::from_secs(60);

/// What counts now.
#[derive(Debug)]
pub struct Trusted {
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// With which it asks the service, and a process of the service the others.
    pub(crate) peers: Arc<rustls::ClientConfig>,
    pub(crate) revocations: Revocations,
    pub(crate) others: Others,
}

impl Trusted {
    fn of(own: &Credentials, clients: &Clients, revocations: Revocations) -> Result<Self, TlsError> {
        let tls = server_config(own, revocations.crl(), clients, true)?;
        let peers = Arc::new(client_config(own, Some(revocations.crl()), true)?);
        Ok(Self { tls: Arc::new(tls), peers, revocations, others: own.others().clone() })
    }

    /// Whether somebody may be here.
    pub(crate) fn check(&self, peer: &Peer) -> Result<(), TlsError> {
        peer.check(&self.revocations, Stamp::now())?;
        self.others.check(peer)
    }
}

/// Keeps it new.
#[derive(Debug)]
pub struct Trust {
    own: Mutex<Credentials>,
    clients: Clients,
    newest: watch::Sender<Arc<Trusted>>,
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

impl Trust {
    /// Of a relay, which lets edges in: who it is, and the list of its authority.
    ///
    /// # Errors
    /// A file cannot be read, or is no good.
    pub fn new(own: Credentials, revoked: &Path) -> Result<Self, TrustError> {
        Self::of(own, revoked, Clients { roles: vec![Role::Edge], strangers: false })
    }

    /// Of who lets others in.
    ///
    /// # Errors
    /// As [`Trust::new`].
    pub fn of(own: Credentials, revoked: &Path, clients: Clients) -> Result<Self, TrustError> {
        let revocations = Revocations::open(revoked, own.authority())?;
        let trusted = Trusted::of(&own, &clients, revocations)?;
        let newest = watch::Sender::new(Arc::new(trusted));
        Ok(Self { own: Mutex::new(own), clients, newest, reload: ListReload::default() })
    }

    /// Shows another certificate from now on, and reads the revocation list again: one that cannot be read is logged, and the list
    /// before stays in force. With another authority, the list in the same file must be of that authority.
    ///
    /// # Errors
    /// The certificate is no good, and the one before stays.
    pub fn renew(&self, own: Credentials) -> Result<(), TrustError> {
        let held = self.newest.borrow().revocations.clone();
        let is_same = self.own.lock().unwrap_or_else(PoisonError::into_inner).authority() == own.authority();
        let (own, revocations) = if is_same {
            (own, self.reload.reread(held))
        } else {
            let read = Revocations::open(held.path(), own.authority())?;
            // The list of the authority before is known better than the bundle has it.
            (own.with_list(&held), read)
        };
        let trusted = Trusted::of(&own, &self.clients, revocations)?;
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = own;
        self.newest.send_replace(Arc::new(trusted));
        Ok(())
    }

    /// What it shows to others.
    pub fn own(&self) -> Credentials {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What counts, from now on.
    pub fn newest(&self) -> watch::Receiver<Arc<Trusted>> {
        self.newest.subscribe()
    }

    /// What it shows to the service ([`Client::showing`](crate::service::Client::showing)), and whom it takes for it.
    pub fn shows(&self) -> impl Fn() -> Arc<rustls::ClientConfig> + Send + Sync + 'static {
        let newest = self.newest();
        move || Arc::clone(&newest.borrow().peers)
    }

    /// Keeps it new until dropped.
    pub async fn keep(&self) -> Infallible {
        let mut dates = Instant::now();
        let check = || {
            let looked = self.look();
            // Whatever became of the list: certificates end.
            if dates.elapsed() >= DATES {
                self.newest.send_modify(|_| {});
                dates = Instant::now();
            }
            looked
        };
        self.reload.watch(check).await
    }

    fn look(&self) -> Result<bool, TrustError> {
        let held = self.newest.borrow().revocations.clone();
        let Some(revocations) = self.reload.changed(&held)? else { return Ok(false) };
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        self.newest.send_replace(Arc::new(Trusted::of(&own, &self.clients, revocations)?));
        tracing::info!("a new revocation list");
        Ok(true)
    }
}
