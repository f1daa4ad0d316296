//! What names mean, for many edges at once: a look-up may hang for half a minute, and must hold up nobody but who asked for it.
//!
//! In: an edge, and a name. Out: the name's addresses, or why there are none.
//!
//! 1. The system's resolver is asked ([`absolute`]), on a thread of its own, which nobody waits for when the relay ends.
//! 2. An edge has [`OF_ONE`] look-ups at once and all together [`IN_ALL`]; more wait. A place is taken until the look-up has really
//!    ended, however long ago the edge was told that it took too long ([`PATIENCE`]).
//!
//! Answers are not kept: the system's resolver does that where anybody wants it, and an old answer would be another one than the
//! one that was looked at.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use marline_net::dns::resolve_absolute;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::identity::Name;

/// chosen: an edge that opens a page's worth of flows at once asks for a handful of names.
const MAX_PER_EDGE: usize = 4;
/// chosen: 64 edges whose names all hang leave nothing; a thread is 256 KiB of addresses and a few pages.
const MAX_TOTAL: usize = 256;
/// chosen: an edge that has waited for so long asks for something else.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// chosen: glibc's resolver needs less than half.
const THREAD_STACK: usize = 256 * 1024;

type LookupFn = fn(&str) -> io::Result<Vec<IpAddr>>;

/// The look-ups that run.
pub(super) struct Resolver {
    lookup: LookupFn,
    permits: Arc<Semaphore>,
    edge_permits: Mutex<BTreeMap<Name, Arc<Semaphore>>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("free", &self.permits.available_permits()).finish_non_exhaustive()
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::with_lookup(resolve_absolute)
    }
}

/// Why there are no addresses.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// The resolver says so.
    #[error("{0}")]
    Failed(io::Error),
    /// It, or a place to ask it from, was not there in time.
    #[error("its name is not resolved in time")]
    TimedOut,
}

impl Resolver {
    pub(super) fn with_lookup(lookup: LookupFn) -> Self {
        Self { lookup, permits: Arc::new(Semaphore::new(MAX_TOTAL)), edge_permits: Mutex::default() }
    }

    /// The addresses of `host`, for this edge.
    pub(super) async fn resolve(&self, edge: &Name, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let query = async {
            // The edge's own place first: who waits for it holds none of the others'.
            let edge_permit = acquire(&self.permits_of_edge(edge)).await?;
            let permit = acquire(&self.permits).await?;
            let (result_tx, result_rx) = oneshot::channel();
            let (host, lookup) = (host.to_owned(), self.lookup);
            let run = move || {
                let found = lookup(&host);
                drop((edge_permit, permit));
                // Who has asked may have gone.
                let _ = result_tx.send(found);
            };
            std::thread::Builder::new().name("names".to_owned()).stack_size(THREAD_STACK).spawn(run)?;
            result_rx.await.map_err(io::Error::other)?
        };
        match timeout(LOOKUP_TIMEOUT, query).await {
            Ok(found) => found.map_err(ResolveError::Failed),
            Err(_) => Err(ResolveError::TimedOut),
        }
    }

    fn permits_of_edge(&self, edge: &Name) -> Arc<Semaphore> {
        let mut edges = self.edge_permits.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody uses any more.
        edges.retain(|_, permits| Arc::strong_count(permits) > 1);
        Arc::clone(edges.entry(edge.clone()).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_EDGE))))
    }
}

async fn acquire(permits: &Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
    }

    /// `slow` hangs for as long as the test runs.
    fn hang(host: &str) -> io::Result<Vec<IpAddr>> {
        if host == "slow" {
            std::thread::sleep(Duration::from_secs(600));
        }
        Ok(vec![IpAddr::from([192, 0, 2, 1])])
    }

    #[test]
    fn an_edge_whose_names_hang_holds_up_nobody_else() {
        block_on(async {
            let names = Arc::new(Resolver::with_lookup(hang));
            let [bad, good] = ["bad", "good"].map(|name| name.parse::<Name>().unwrap());
            for _ in 0..2 * MAX_TOTAL {
                let (names, bad) = (Arc::clone(&names), bad.clone());
                tokio::spawn(async move { names.resolve(&bad, "slow").await });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(names.permits.available_permits(), MAX_TOTAL - MAX_PER_EDGE);
            let found = timeout(LOOKUP_TIMEOUT, names.resolve(&good, "fast")).await.unwrap().unwrap();
            assert_eq!(found, [IpAddr::from([192, 0, 2, 1])]);
            // Who has waited too long has gone, and the look-up has not: its place stays taken.
            assert!(matches!(names.resolve(&bad, "fast").await, Err(ResolveError::TimedOut)));
            assert_eq!(names.permits.available_permits(), MAX_TOTAL - MAX_PER_EDGE);
        });
    }

    #[test]
    fn what_is_done_leaves_nothing_behind() {
        block_on(async {
            let names = Resolver::with_lookup(hang);
            for n in 0..20 {
                names.resolve(&format!("e{n}").parse().unwrap(), "fast").await.unwrap();
            }
            assert!(
                names.edge_permits.lock().unwrap().len() <= 2 && names.permits.available_permits() == MAX_TOTAL
            );
        });
    }
}
