//! One file that nobody else can open meanwhile.
//!
//! In: calls of [`Store`]. Out: what the file says; each change is on the disk when the call returns. After an error of the disk the
//! file is opened anew for the next call: a disk that is full today is not for ever.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableTable, TableDefinition};

use super::{Bid, Entry, KEPT, Lead, Leader, Store, StoreError, seconds};
use crate::ca::{Nonce, Stamp};

const LEAD: TableDefinition<'_, &str, (u64, u64, &str)> = TableDefinition::new("lead");
const ENTRIES: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("entries");
const SPENT: TableDefinition<'_, &str, u64> = TableDefinition::new("spent");
const ONE: &str = "fleet";

/// One file.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    /// None after an error.
    database: Option<Database>,
    /// What the file says of the lead, so that leading on costs no write: nobody else can change it.
    leads: Option<(String, u64)>,
}

impl Embedded {
    /// Opens the file, or makes it; forgets what ended more than a day ago, as the authority does.
    ///
    /// # Errors
    /// It cannot be, it holds something else, or another process has it open.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self { path: path.into(), database: None, leads: None };
        store.with(|database| sweep(database, Stamp::now()))?;
        Ok(store)
    }

    /// Does something with the file; after an error it will be opened anew.
    fn with<T>(&mut self, act: impl FnOnce(&Database) -> Result<T, Fault>) -> Result<T, StoreError> {
        let opened = match self.database.take() {
            Some(database) => Ok(database),
            None => open(&self.path),
        };
        let done = opened.and_then(|database| {
            let done = act(&database)?;
            self.database = Some(database);
            Ok(done)
        });
        done.map_err(|Fault(text)| StoreError { place: self.path.display().to_string(), text })
    }
}

/// What the library or the system says.
struct Fault(String);

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn open(path: &Path) -> Result<Database, Fault> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // Tokens that were spent are nobody's business: the mode that the directory of an authority asks for.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    Ok(Database::builder().create_file(file)?)
}

fn sweep(database: &Database, now: Stamp) -> Result<(), Fault> {
    let oldest = seconds(now.before(KEPT));
    let writing = database.begin_write()?;
    writing.open_table(ENTRIES)?.retain(|_, (until, _)| until >= oldest)?;
    writing.open_table(SPENT)?.retain(|_, until| until >= oldest)?;
    Ok(writing.commit()?)
}

impl Store for Embedded {
    fn lead(&mut self, bid: &Bid, now: Stamp) -> Result<Lead, StoreError> {
        let leads = self.leads.as_ref().filter(|(holder, epoch)| *holder == bid.holder && *epoch > bid.above);
        if let Some((_, epoch)) = leads.filter(|(_, epoch)| bid.epoch == Some(*epoch)) {
            return Ok(Lead::Mine(*epoch));
        }
        let lead = self.with(|database| {
            let writing = database.begin_write()?;
            let lead = {
                let mut table = writing.open_table(LEAD)?;
                let before = table.get(ONE)?.map(|it| {
                    let (epoch, until, holder) = it.value();
                    (epoch, until, holder.to_owned())
                });
                let (epoch, until, holder) = before.unwrap_or_default();
                if holder != bid.holder && until > seconds(now) {
                    Lead::Others(Leader { epoch, place: String::new() })
                } else {
                    let goes_on = holder == bid.holder && bid.epoch == Some(epoch) && epoch > bid.above;
                    let epoch = if goes_on { epoch } else { epoch.max(bid.above).saturating_add(1) };
                    table.insert(ONE, (epoch, seconds(now.after(bid.lease)), bid.holder.as_str()))?;
                    Lead::Mine(epoch)
                }
            };
            writing.commit()?;
            Ok(lead)
        })?;
        if let Lead::Mine(epoch) = lead {
            self.leads = Some((bid.holder.clone(), epoch));
        }
        Ok(lead)
    }

    fn put(&mut self, entry: &Entry) -> Result<(), StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            let value = (seconds(entry.until), entry.value.as_str());
            writing.open_table(ENTRIES)?.insert(entry.key.as_str(), value)?;
            Ok(writing.commit()?)
        })
    }

    fn remove(&mut self, key: &str) -> Result<(), StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            writing.open_table(ENTRIES)?.remove(key)?;
            Ok(writing.commit()?)
        })
    }

    fn list(&mut self, prefix: &str, now: Stamp) -> Result<Vec<Entry>, StoreError> {
        self.with(|database| {
            let reading = database.begin_read()?;
            let table = reading.open_table(ENTRIES)?;
            let mut found = Vec::new();
            for row in table.range(prefix..)? {
                let (key, value) = row?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                let (until, value) = value.value();
                let until = Stamp::from_unix(until);
                if until > now {
                    found.push(Entry { key: key.value().to_owned(), value: value.to_owned(), until });
                }
            }
            Ok(found)
        })
    }

    fn claim(&mut self, nonce: Nonce, until: Stamp) -> Result<bool, StoreError> {
        self.with(|database| {
            let writing = database.begin_write()?;
            let is_new = writing.open_table(SPENT)?.insert(nonce.to_string().as_str(), seconds(until))?.is_none();
            writing.commit()?;
            Ok(is_new)
        })
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bid(holder: &str, epoch: Option<u64>, above: u64) -> Bid {
        let lease = Duration::from_secs(15);
        Bid { holder: holder.to_owned(), place: String::new(), epoch, above, lease }
    }

    #[test]
    fn the_lead_is_one_at_a_time_and_each_start_is_a_new_epoch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let now = Stamp::from_unix(1_800_000_000);
        let later = now.after(Duration::from_secs(15));
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(1));
        assert_eq!(store.lead(&bid("a", Some(1), 0), now).unwrap(), Lead::Mine(1));
        assert_eq!(
            store.lead(&bid("b", None, 0), now).unwrap(),
            Lead::Others(Leader { epoch: 1, place: String::new() })
        );
        assert!(Embedded::open(&path).is_err(), "nobody else opens it meanwhile");
        drop(store);
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.lead(&bid("a", None, 0), now).unwrap(), Lead::Mine(2));
        assert_eq!(store.lead(&bid("a", Some(2), 40), now).unwrap(), Lead::Mine(41));
        assert_eq!(store.lead(&bid("b", None, 0), later).unwrap(), Lead::Mine(42), "its time was over");
        let last = later.after(Duration::from_secs(15));
        assert_eq!(store.lead(&bid("a", Some(41), 0), last).unwrap(), Lead::Mine(43));
    }

    #[test]
    fn entries_end_and_are_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let now = Stamp::now();
        let entry = |key: &str, seconds| Entry {
            key: key.to_owned(),
            value: "ann".to_owned(),
            until: now.after(Duration::from_secs(seconds)),
        };
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.list("drain/", now).unwrap(), []);
        for entry in [entry("drain/fra", 60), entry("drain/ams", 10), entry("draining", 60)] {
            store.put(&entry).unwrap();
        }
        drop(store);
        let mut store = Embedded::open(&path).unwrap();
        assert_eq!(store.list("drain/", now).unwrap(), [entry("drain/ams", 10), entry("drain/fra", 60)]);
        assert_eq!(store.list("drain/", now.after(Duration::from_secs(10))).unwrap(), [entry("drain/fra", 60)]);
        store.remove("drain/fra").unwrap();
        store.remove("drain/fra").unwrap();
        assert_eq!(store.list("drain/fra", now).unwrap(), []);
    }

    #[test]
    fn a_nonce_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let nonce: Nonce = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let until = Stamp::now();
        assert!(Embedded::open(&path).unwrap().claim(nonce, until).unwrap());
        assert!(!Embedded::open(&path).unwrap().claim(nonce, until).unwrap());
        let other: Nonce = "0123456789abcdef0123456789abcde0".parse().unwrap();
        assert!(Embedded::open(&path).unwrap().claim(other, until.before(KEPT * 2)).unwrap());
        assert!(Embedded::open(&path).unwrap().claim(other, until).unwrap(), "its token has long expired");
    }

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        std::fs::write(&path, "hello").unwrap();
        let said = Embedded::open(&path).unwrap_err().to_string();
        assert!(said.contains("store: "), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), b"hello", "and left as it is");
        assert!(Embedded::open(&dir.path().join("absent/store")).is_err());
    }
}
