//! Persistent state of the service, partly shared by several processes: the leader's lease and epoch, drains by operators, and used
//! enrolment tokens. A shared store also has a row for each member, for the next leader, and the newest revocation lists.
//!
//! It is small and rarely written. Heartbeats, requests and reports are not stored each time, because relays and edges repeat them.
//!
//! 1. [`EmbeddedStore`] is a file that only one process can open. [`RedisStore`] is shared by any number of processes, one of which
//!    leads at a time.
//! 2. A shared lease is measured by the store's clock. Its holder measures it by its own clock from the moment before it sent the bid,
//!    and stops earlier.
//! 3. Each change of the leader begins a new epoch, greater than all epochs known to the store. In case the store has lost its data,
//!    bids contain the greatest epoch that relays have seen ([`Bid::min_epoch`]).
//! 4. Calls block as long as the disk or the network takes; the service makes them on blocking threads.
//! 5. After an error, the next call reopens the file or the connection.

mod embedded;
mod redis;
mod url;

use std::time::Duration;

use crate::ca::{Nonce, UtcSeconds};

pub use self::embedded::EmbeddedStore;
pub use self::redis::{RedisSecrets, RedisStore};
pub use self::url::{RedisNodes, StoreUrl};

/// A row of the replicated state: a key, and the value as text; none: the row has been removed.
pub type Row = (String, Option<String>);

/// A failed operation of a store.
#[derive(Debug, thiserror::Error)]
#[error("{store}: {text}")]
pub struct StoreError {
    /// Location of the store.
    pub store: String,
    /// The cause.
    pub text: String,
}

/// A bid for leadership.
#[derive(Clone, Debug)]
pub struct Bid {
    /// The bidder; unique among all processes.
    pub holder: String,
    /// Address at which other processes reach the bidder; empty: not known yet.
    pub address: String,
    /// The epoch in which the bidder already leads; none: it does not lead.
    pub epoch: Option<u64>,
    /// The new epoch must be greater than this.
    pub min_epoch: u64,
    /// How long the bidder leads if it does not bid again.
    pub lease: Duration,
}

/// The result of a bid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BidOutcome {
    /// The bidder leads in this epoch.
    Won(u64),
    /// Another process leads.
    Lost(Leader),
}

/// Another process that leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// Its current epoch.
    pub epoch: u64,
    /// Its address; empty: it has not published one.
    pub address: String,
}

/// A stored value with an end of validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, such as `drain/RELAY`.
    pub key: String,
    /// The stored text.
    pub value: String,
    /// When the entry expires.
    pub expires_at: UtcSeconds,
}

/// The operations of a store.
pub trait Store: Send {
    /// Bids for leadership. The bidder continues in its epoch if no other process has led since, and if the epoch is greater than
    /// `min_epoch`. Otherwise it becomes leader in a new epoch, greater than all before, unless another process leads now.
    ///
    /// # Errors
    /// The store failed; a current leader continues until its lease ends.
    fn bid(&mut self, bid: &Bid, now: UtcSeconds) -> Result<BidOutcome, StoreError>;

    /// Stores an entry until it expires; replaces an entry with the same key.
    ///
    /// # Errors
    /// The store failed, and the entry is not stored.
    fn put(&mut self, entry: &Entry) -> Result<(), StoreError>;

    /// Removes an entry, if it exists.
    ///
    /// # Errors
    /// The store failed, and the entry may still exist.
    fn remove(&mut self, key: &str) -> Result<(), StoreError>;

    /// The entries that have not expired and whose keys begin with `prefix`, sorted by key.
    ///
    /// # Errors
    /// The store failed.
    fn list(&mut self, prefix: &str, now: UtcSeconds) -> Result<Vec<Entry>, StoreError>;

    /// Claims a nonce for all processes that share the store; false: it was claimed before. It may be forgotten some time after `until`.
    ///
    /// # Errors
    /// The store failed, so that it is unknown whether the nonce was claimed before.
    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, StoreError>;

    /// Location of the store for people, without a password.
    fn location(&self) -> String;

    /// The region of a shared store; none: the store is not shared.
    fn region(&self) -> Option<String> {
        None
    }

    /// Uses another password and authority from the next connection on.
    ///
    /// # Errors
    /// They are invalid; the previous ones stay in use.
    fn set_secrets(&mut self, _secrets: RedisSecrets) -> Result<(), StoreError> {
        Ok(())
    }

    /// Gives up the leadership before the end of the lease.
    ///
    /// # Errors
    /// The store failed; other processes wait for the end of the lease.
    fn resign(&mut self, _holder: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Stores rows for the next leader, if `epoch` is still the current one; returns whether they were stored.
    ///
    /// # Errors
    /// The store failed.
    fn put_rows(&mut self, _epoch: u64, _rows: &[Row]) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// All stored rows.
    ///
    /// # Errors
    /// The store failed.
    fn rows(&mut self) -> Result<Vec<(String, String)>, StoreError> {
        Ok(Vec::new())
    }

    /// Stores a numbered text under `name` if its number is greater than that of the stored text. Otherwise returns the stored text,
    /// if it differs.
    ///
    /// # Errors
    /// The store failed.
    fn put_if_newer(&mut self, _name: &str, _number: u64, _text: &str) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// How long expired entries are kept. Our choice: more than a clock without its time server is ever set back.
const RETENTION: Duration = Duration::from_secs(86_400);

fn unix_seconds(time: UtcSeconds) -> u64 {
    time.since_epoch().as_secs()
}
