//! Store in one file (redb), which only one process can open.
//!
//! Each change is on the disk when the call returns. After a disk error the file is reopened for the next call, because the cause, such
//! as a full disk, may be temporary.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableTable, TableDefinition};

use super::{Bid, BidOutcome, Entry, Leader, RETENTION, Store, StoreError, unix_seconds};
use crate::ca::{Nonce, UtcSeconds};

const LEAD_TABLE: TableDefinition<'_, &str, (u64, u64, &str)> = TableDefinition::new("lead");
const ENTRIES_TABLE: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("entries");
const USED_TOKENS_TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("spent");
const LEAD_KEY: &str = "fleet";

/// A store in a database file.
#[derive(Debug)]
pub struct EmbeddedStore {
    path: PathBuf,
    /// The open file; none after an error.
    database: Option<Database>,
    /// Holder and epoch in the file. A renewal needs no write, because no other process can change the file.
    lease: Option<(String, u64)>,
}

impl EmbeddedStore {
    /// Opens or creates the file, and removes what expired more than a day ago, as the authority does.
    ///
    /// # Errors
    /// The file cannot be created, is not a database, or is open in another process.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self { path: path.into(), database: None, lease: None };
        store.with(|database| expire(database, UtcSeconds::now()))?;
        Ok(store)
    }

    /// Runs `act` on the file. After an error the file is closed, and the next call reopens it.
    fn with<T>(&mut self, act: impl FnOnce(&Database) -> Result<T, Fault>) -> Result<T, StoreError> {
        let opened = match self.database.take() {
            Some(database) => Ok(database),
            None => open(&self.path),
        };
        let result = opened.and_then(|database| {
            let value = act(&database)?;
            self.database = Some(database);
            Ok(value)
        });
        result.map_err(|Fault(text)| StoreError { store: self.path.display().to_string(), text })
    }
}

/// The error text of the library or the system.
struct Fault(String);

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn open(path: &Path) -> Result<Database, Fault> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // Used tokens are private: the same protection as the authority's directory.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Ok(Database::builder().create_file(file)?)
}

fn expire(database: &Database, now: UtcSeconds) -> Result<(), Fault> {
    let oldest = unix_seconds(now.saturating_sub(RETENTION));
    let writing = database.begin_write()?;
    writing.open_table(ENTRIES_TABLE)?.retain(|_, (until, _)| until >= oldest)?;
    writing.open_table(USED_TOKENS_TABLE)?.retain(|_, until| until >= oldest)?;
    Ok(writing.commit()?)
}

impl Store for EmbeddedStore {
    fn bid(&mut self, bid: &Bid, now: UtcSeconds) -> Result<BidOutcome, StoreError> {
        let lease = self.lease.as_ref().filter(|(holder, epoch)| *holder == bid.holder && *epoch > bid.min_epoch);
        if let Some((_, epoch)) = lease.filter(|(_, epoch)| bid.epoch == Some(*epoch)) {
            return Ok(BidOutcome::Won(*epoch));
        }
        let outcome = self.with(|database| {
            let writing = database.begin_write()?;
            let outcome = {
                let mut table = writing.open_table(LEAD_TABLE)?;
                let current_lead = table.get(LEAD_KEY)?.map(|entry| {
                    let (epoch, until, holder) = entry.value();
                    (epoch, until, holder.to_owned())
                });
                let (epoch, until, holder) = current_lead.unwrap_or_default();
                if holder != bid.holder && until > unix_seconds(now) {
                    BidOutcome::Lost(Leader { epoch, address: String::new() })
                } else {
                    let is_renewal = holder == bid.holder && bid.epoch == Some(epoch) && epoch > bid.min_epoch;
                    let epoch = if is_renewal { epoch } else { epoch.max(bid.min_epoch).saturating_add(1) };
                    table.insert(
                        LEAD_KEY,
                        (epoch, unix_seconds(now.saturating_add(bid.lease)), bid.holder.as_str()),
                    )?;
                    BidOutcome::Won(epoch)
                }
            };
            writing.commit()?;
            Ok(outcome)
        })?;
        if let BidOutcome::Won(epoch) = outcome {
            self.lease = Some((bid.holder.clone(), epoch));
        }
        Ok(outcome)
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            let value = (unix_seconds(entry.expires_at), entry.value.as_str());
            writing.open_table(ENTRIES_TABLE)?.insert(entry.key.as_str(), value)?;
            Ok(writing.commit()?)
        })
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            writing.open_table(ENTRIES_TABLE)?.remove(key)?;
            Ok(writing.commit()?)
        })
    }

    fn list(&mut self, prefix: &str, now: UtcSeconds) -> Result<Vec<Entry>, StoreError> {
        self.with(|database| {
            let reading = database.begin_read()?;
            let table = reading.open_table(ENTRIES_TABLE)?;
            let mut found = Vec::new();
            for row in table.range(prefix..)? {
                let (key, value) = row?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                let (until, value) = value.value();
                let until = UtcSeconds::from_unix(until);
                if until > now {
                    found.push(Entry { key: key.value().to_owned(), value: value.to_owned(), expires_at: until });
                }
            }
            Ok(found)
        })
    }

    fn claim(&mut self, nonce: Nonce, until: UtcSeconds) -> Result<bool, StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            let is_new = writing
                .open_table(USED_TOKENS_TABLE)?
                .insert(nonce.to_string().as_str(), unix_seconds(until))?
                .is_none();
            writing.commit()?;
            Ok(is_new)
        })
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bid(holder: &str, epoch: Option<u64>, min_epoch: u64) -> Bid {
        let lease = Duration::from_secs(15);
        Bid { holder: holder.to_owned(), address: String::new(), epoch, min_epoch, lease }
    }

    #[test]
    fn one_process_leads_at_a_time_and_each_start_begins_a_new_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let now = UtcSeconds::from_unix(1_800_000_000);
        let later = now.saturating_add(Duration::from_secs(15));
        let mut store = EmbeddedStore::open(&path).unwrap();
        assert_eq!(store.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(1));
        assert_eq!(store.bid(&bid("a", Some(1), 0), now).unwrap(), BidOutcome::Won(1));
        assert_eq!(
            store.bid(&bid("b", None, 0), now).unwrap(),
            BidOutcome::Lost(Leader { epoch: 1, address: String::new() })
        );
        assert!(EmbeddedStore::open(&path).is_err(), "no second process can open it");
        drop(store);
        let mut store = EmbeddedStore::open(&path).unwrap();
        assert_eq!(store.bid(&bid("a", None, 0), now).unwrap(), BidOutcome::Won(2));
        assert_eq!(store.bid(&bid("a", Some(2), 40), now).unwrap(), BidOutcome::Won(41));
        assert_eq!(store.bid(&bid("b", None, 0), later).unwrap(), BidOutcome::Won(42), "the lease has ended");
        let last = later.saturating_add(Duration::from_secs(15));
        assert_eq!(store.bid(&bid("a", Some(41), 0), last).unwrap(), BidOutcome::Won(43));
    }

    #[test]
    fn entries_survive_a_restart_until_they_expire() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let now = UtcSeconds::now();
        let entry = |key: &str, seconds| Entry {
            key: key.to_owned(),
            value: "ann".to_owned(),
            expires_at: now.saturating_add(Duration::from_secs(seconds)),
        };
        let mut store = EmbeddedStore::open(&path).unwrap();
        assert_eq!(store.list("drain/", now).unwrap(), []);
        for entry in [entry("drain/fra", 60), entry("drain/ams", 10), entry("draining", 60)] {
            store.put(&entry).unwrap();
        }
        drop(store);
        let mut store = EmbeddedStore::open(&path).unwrap();
        assert_eq!(store.list("drain/", now).unwrap(), [entry("drain/ams", 10), entry("drain/fra", 60)]);
        assert_eq!(
            store.list("drain/", now.saturating_add(Duration::from_secs(10))).unwrap(),
            [entry("drain/fra", 60)]
        );
        store.remove("drain/fra").unwrap();
        store.remove("drain/fra").unwrap();
        assert_eq!(store.list("drain/fra", now).unwrap(), []);
    }

    #[test]
    fn a_nonce_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let until = UtcSeconds::now();
        assert!(EmbeddedStore::open(&path).unwrap().claim(nonce, until).unwrap());
        assert!(!EmbeddedStore::open(&path).unwrap().claim(nonce, until).unwrap());
        let other: Nonce = "0123456789abcdef0123456789abcde0".parse().unwrap();
        assert!(EmbeddedStore::open(&path).unwrap().claim(other, until.saturating_sub(RETENTION * 2)).unwrap());
        assert!(
            EmbeddedStore::open(&path).unwrap().claim(other, until).unwrap(),
            "it was removed because its token expired long ago"
        );
    }

    #[test]
    fn a_file_that_is_not_a_database_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        std::fs::write(&path, "hello").unwrap();
        let message = EmbeddedStore::open(&path).unwrap_err().to_string();
        assert!(message.contains("store: "), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), b"hello", "the file is unchanged");
        assert!(EmbeddedStore::open(&dir.path().join("absent/store")).is_err());
    }
}
