//! Name resolution for many edges at once, such that a slow lookup delays only the edge that requested it.
//!
//! 1. It uses the system's resolver ([`resolve_absolute`]), each lookup on a thread of its own, because a lookup may block for half a
//!    minute. The relay does not wait for these threads when it stops.
//! 2. An edge may have [`MAX_PER_EDGE`] lookups at once, and all edges together [`MAX_TOTAL`]; further ones wait. A permit is
//!    held until the lookup has really ended, even if the edge was given up on after [`LOOKUP_TIMEOUT`].
//!
//! Results are not cached: the system's resolver does that if configured, and a cached result could differ from the one that was
//! checked against the access rules.

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

/// Our choice: an edge that opens the flows of a web page at once needs a handful of names.
const MAX_PER_EDGE: usize = 4;
/// Our choice: 64 edges whose lookups all hang use up all; a thread takes 256 KiB of address space and a few pages of memory.
const MAX_TOTAL: usize = 256;
/// Our choice: clients give up and try something else after that long.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Stack size in bytes. Our choice: the resolver of glibc needs less than half.
const THREAD_STACK: usize = 256 * 1024;

type LookupFn = fn(&str) -> io::Result<Vec<IpAddr>>;

/// Limits the running lookups.
pub(super) struct Resolver {
    lookup: LookupFn,
    permits: Arc<Semaphore>,
    edge_permits: Mutex<BTreeMap<Name, Arc<Semaphore>>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("free", &self.permits.available_permits()).finish_non_exhaustive()
    }
}

impl Default for Resolver {
    fn default() -> Self {
        Self::with_lookup(resolve_absolute)
    }
}

/// Why a name was not resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// The resolver reports an error.
    #[error("{0}")]
    Failed(io::Error),
    /// No result, or no permit for a lookup, within [`LOOKUP_TIMEOUT`].
    #[error("resolving the name took too long")]
    TimedOut,
}

impl Resolver {
    pub(super) fn with_lookup(lookup: LookupFn) -> Self {
        Self { lookup, permits: Arc::new(Semaphore::new(MAX_TOTAL)), edge_permits: Mutex::default() }
    }

    /// Resolves `host` for this edge.
    pub(super) async fn resolve(&self, edge: &Name, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let query = async {
            // The edge's own permit first: while an edge waits for it, it holds none of the shared permits.
            let edge_permit = acquire(&self.permits_of_edge(edge)).await?;
            let permit = acquire(&self.permits).await?;
            let (result_tx, result_rx) = oneshot::channel();
            let (host, lookup) = (host.to_owned(), self.lookup);
            let run = move || {
                let found = lookup(&host);
                drop((edge_permit, permit));
                // After a timeout the receiver is gone.
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
        // Remove the semaphores of edges without running lookups.
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

    /// A lookup function that hangs for `slow` as long as the test runs.
    fn hang(host: &str) -> io::Result<Vec<IpAddr>> {
        if host == "slow" {
            std::thread::sleep(Duration::from_secs(600));
        }
        Ok(vec![IpAddr::from([192, 0, 2, 1])])
    }

    #[test]
    fn an_edge_whose_lookups_hang_delays_no_other_edge() {
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
            // The request has timed out, but the lookup has not ended: its permit stays in use.
            assert!(matches!(names.resolve(&bad, "fast").await, Err(ResolveError::TimedOut)));
            assert_eq!(names.permits.available_permits(), MAX_TOTAL - MAX_PER_EDGE);
        });
    }

    #[test]
    fn finished_lookups_release_their_permits() {
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
