//! What outlives the service, and what several processes of it share: who leads and in which epoch, what operators have said,
//! tokens that were spent.
//!
//! In: few words, seldom. Out: the same after a crash. Heartbeats, requests and reports are not here: relays and edges announce
//! themselves again.
//!
//! 1. [`Embedded`] is one file that nobody else can open meanwhile. [`Redis`] is shared by as many processes as there are, and one
//!    of them leads at a time.
//! 2. A lead that is shared lasts for a lease, by the clock of the store. Its holder counts by its own from the moment it
//!    asked, and stops before.
//! 3. Each lead is a new epoch, greater than all that the store knows of. A store that has lost its memory is told by bidders what
//!    they have seen ([`Bid::above`]).
//! 4. A call may take as long as a disk or a network takes: the service makes it on a thread that may wait.
//! 5. After an error the file or the connection is opened anew for the next call.

mod embedded;
mod redis;
mod url;

use std::time::Duration;

use super::scheduler::Row;
use crate::ca::{Nonce, UtcSeconds};

pub use self::embedded::EmbeddedStore;
pub use self::redis::{RedisSecrets, RedisStore};
pub use self::url::{RedisNodes, StoreUrl};

/// Why the store cannot.
#[derive(Debug, thiserror::Error)]
#[error("{store}: {text}")]
pub struct StoreError {
    /// Which store.
    pub store: String,
    /// Why.
    pub text: String,
}

/// Somebody who would lead.
#[derive(Clone, Debug)]
pub struct Bid {
    /// Who; no other process bids by this name.
    pub holder: String,
    /// Where it is reached by the others; empty: nowhere yet.
    pub address: String,
    /// The epoch in which it leads already.
    pub epoch: Option<u64>,
    /// A later epoch than this is needed.
    pub min_epoch: u64,
    /// For how long it would lead, if it does not bid again.
    pub lease: Duration,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BidOutcome {
    /// The bidder, in this epoch.
    Won(u64),
    /// Somebody else.
    Lost(Leader),
}

/// Somebody else who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// Its epoch.
    pub epoch: u64,
    /// Where it is reached; empty: it has not said so.
    pub address: String,
}

/// Something that was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Under which key.
    pub key: String,
    /// What.
    pub value: String,
    /// Until when.
    pub expires_at: UtcSeconds,
}

/// What a store can do.
pub trait Store: Send {
    /// The bidder leads on in its epoch if nobody has led since, and `above` is below it. Else it leads in a new epoch, greater
    /// than all before, if nobody else leads now.
    ///
    /// # Errors
    /// The store cannot; who led before goes on until its time is over.
    fn bid(&mut self, bid: &Bid, now: UtcSeconds) -> Result<BidOutcome, StoreError>;

    /// Remembers something until then; a key that is there already gets the new value.
    ///
    /// # Errors
    /// It is not remembered.
    fn put(&mut self, entry: &Entry) -> Result<(), StoreError>;

    /// Forgets something, whether or not it was there.
    ///
    /// # Errors
    /// It is not forgotten.
    fn remove(&mut self, key: &str) -> Result<(), StoreError>;

    /// What has not ended and whose key begins so, in the order of keys.
    ///
    /// # Errors
    /// The store cannot.
    fn list(&mut self, prefix: &str, now: UtcSeconds) -> Result<Vec<Entry>, StoreError>;

    /// Takes a nonce, once and for all who share the store; it may be forgotten some time after `until`.
    ///
    /// # Errors
    /// Whether it was taken before cannot be known.
    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, StoreError>;

    /// Where it is, for people; no password.
    fn location(&self) -> String;

    /// The region that is shared; none: nobody shares this store.
    fn region(&self) -> Option<String> {
        None
    }

    /// Another password and authority, from the next connection on.
    ///
    /// # Errors
    /// They are no good, and those before stay.
    fn set_secrets(&mut self, _secrets: RedisSecrets) -> Result<(), StoreError> {
        Ok(())
    }

    /// Leads no longer.
    ///
    /// # Errors
    /// The others wait for the lease to end.
    fn resign(&mut self, _holder: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Keeps rows for who leads next, if nobody leads in a later epoch; whether they are kept.
    ///
    /// # Errors
    /// The store cannot.
    fn put_rows(&mut self, _epoch: u64, _rows: &[Row]) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// All rows that are kept.
    ///
    /// # Errors
    /// The store cannot.
    fn rows(&mut self) -> Result<Vec<(String, String)>, StoreError> {
        Ok(Vec::new())
    }

    /// Keeps a numbered text, if its number is greater than that of what is kept by this name; else what is kept, if it is another
    /// text.
    ///
    /// # Errors
    /// The store cannot.
    fn put_if_newer(&mut self, _name: &str, _number: u64, _text: &str) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// chosen: more than a clock that lost its time server is ever put back by.
const RETENTION: Duration = Duration::from_secs(86_400);

fn unix_seconds(stamp: UtcSeconds) -> u64 {
    stamp.since_epoch().as_secs()
}
