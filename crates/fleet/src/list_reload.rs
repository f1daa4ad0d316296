//! Reloading of a revocation list while a process runs, for edges, relays and the fleet service.
//!
//! 1. The file is checked each [`INTERVAL`]: a `stat` that costs nothing.
//! 2. A list that cannot be read changes nothing: the one before stays in force. The reason is logged once.
//! 3. One descriptor is kept in reserve for the list: clients that use up all descriptors of the process cannot keep it from
//!    being read.

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ca::{CaError, RevocationFile};

/// chosen: "within seconds" is what revocation promises.
const INTERVAL: Duration = Duration::from_secs(1);

/// The state of reloading a list.
#[derive(Debug)]
pub(crate) struct ListReload {
    /// The last error that was logged; empty: the last check succeeded.
    error: Mutex<String>,
    /// An open file that is closed while the list is read.
    spare: Mutex<Option<File>>,
}

impl Default for ListReload {
    fn default() -> Self {
        Self { error: Mutex::default(), spare: Mutex::new(spare()) }
    }
}

impl ListReload {
    /// The list as its file has it now, whether or not it has changed; `held` where it cannot be read, which is logged.
    pub(crate) fn reread(&self, held: RevocationFile) -> RevocationFile {
        let mut read = held.clone();
        match read.reread() {
            Ok(_) => read,
            Err(error) => {
                self.report(error.to_string(), true);
                held
            }
        }
    }

    /// The list of the file, if it has changed since `held` was read.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is another authority's.
    pub(crate) fn changed(&self, held: &RevocationFile) -> Result<Option<RevocationFile>, CaError> {
        let mut read = held.clone();
        let is_new = match read.refresh() {
            Err(error) if error.is_out_of_descriptors() => {
                let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
                // Closed here, and opened again when the list has been read.
                *kept = None;
                let is_new = read.refresh();
                *kept = spare();
                is_new?
            }
            refreshed => refreshed?,
        };
        Ok(is_new.then_some(read))
    }

    /// Calls `check` each [`INTERVAL`] until dropped. It puts a changed list in force, and returns whether there was one.
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

    /// Logs what is wrong with the list: once, or again where a user requested the reload.
    fn report(&self, error: String, again: bool) {
        let mut last = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if again || *last != error {
            tracing::warn!("{error}: the list that was read before stays in force");
            *last = error;
        }
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}
