//! Reloading of a revocation list while a process runs, for edges, relays and the fleet service.
//!
//! 1. The file is checked every [`INTERVAL`], which costs one `stat`.
//! 2. A list that cannot be read changes nothing: the previous one stays in force. The reason is logged once, and again when
//!    a user requests a reload.
//! 3. One file descriptor is kept in reserve for the list. Clients that use up all descriptors of the process therefore
//!    cannot prevent it from being read.

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ca::{CaError, RevocationFile};
use crate::tls::Credentials;

/// Interval of the check. Our choice: revocation takes effect "within seconds".
const INTERVAL: Duration = Duration::from_secs(1);

/// State of the reloading of a list.
#[derive(Debug)]
pub(crate) struct ListReload {
    /// The last error that was logged; empty: the last check succeeded.
    error: Mutex<String>,
    /// An open file that is closed while the list is read.
    spare: Mutex<Option<File>>,
}

impl Default for ListReload {
    fn default() -> Self {
        Self { error: Mutex::default(), spare: Mutex::new(open_spare()) }
    }
}

impl ListReload {
    /// The list to use with new credentials, of which `previous` are the predecessor: the list that is `held`, read again from its file
    /// as far as that is possible; with credentials of another authority, the list of that authority at `path`. `None`: no file exists.
    ///
    /// # Errors
    /// The list of another authority is damaged, or was not issued by it.
    pub(crate) fn list_for(
        &self,
        held: Option<RevocationFile>,
        previous: &Credentials,
        credentials: &Credentials,
        path: &Path,
    ) -> Result<Option<RevocationFile>, CaError> {
        match held {
            Some(held) if previous.authority() == credentials.authority() => Ok(Some(self.reread(held))),
            _ => read_crl(credentials, path),
        }
    }

    /// Reads the file again, whether or not it has changed. If it cannot be read, logs the error and returns `loaded`.
    fn reread(&self, loaded: RevocationFile) -> RevocationFile {
        let mut read = loaded.clone();
        match read.reread() {
            Ok(_) => read,
            Err(error) => {
                self.report(error.to_string(), true);
                loaded
            }
        }
    }

    /// The list in the file, if it has changed since `loaded` was read.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or belongs to another authority.
    pub(crate) fn changed(&self, loaded: &RevocationFile) -> Result<Option<RevocationFile>, CaError> {
        let mut read = loaded.clone();
        let is_new = match read.refresh() {
            Err(error) if error.is_out_of_descriptors() => {
                let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
                // Close the spare descriptor here, and reopen it after the list has been read.
                *spare = None;
                let is_new = read.refresh();
                *spare = open_spare();
                is_new?
            }
            refreshed => refreshed?,
        };
        Ok(is_new.then_some(read))
    }

    /// Calls `check` every [`INTERVAL`] until dropped. `check` puts a changed list in force and returns whether there
    /// was one.
    pub(crate) async fn watch<E: Display>(&self, mut check: impl FnMut() -> Result<bool, E>) -> Infallible {
        loop {
            tokio::time::sleep(INTERVAL).await;
            match check() {
                Ok(true) => {}
                Ok(false) => self.error.lock().unwrap_or_else(PoisonError::into_inner).clear(),
                Err(error) => self.report(error.to_string(), false),
            }
        }
    }

    /// Logs an error with the list: once, or again if a user requested the reload.
    fn report(&self, error: String, again: bool) {
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if again || *last != error {
            tracing::warn!("{error}: the list that was read before stays in force");
            *last = error;
        }
    }
}

/// Reads the revocation list from a file; `None`: there is no such file.
///
/// # Errors
/// The list is damaged, or was issued by another authority.
pub fn read_crl(credentials: &Credentials, path: &Path) -> Result<Option<RevocationFile>, CaError> {
    if path.exists() { RevocationFile::open(path, credentials.authority()).map(Some) } else { Ok(None) }
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}
