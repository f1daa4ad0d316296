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

use marline_net::dns::absolute;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::identity::Name;

/// chosen: an edge that opens a page's worth of flows at once asks for a handful of names.
const OF_ONE: usize = 4;
/// chosen: 64 edges whose names all hang leave nothing; a thread is 256 KiB of addresses and a few pages.
const IN_ALL: usize = 256;
/// chosen: an edge that has waited for so long asks for something else.
const PATIENCE: Duration = Duration::from_secs(5);
/// chosen: glibc's resolver needs less than half.
const STACK: usize = 256 * 1024;

type Ask = fn(&str) -> io::Result<Vec<IpAddr>>;

/// The look-ups that run.
pub(super) struct Names {
    ask: Ask,
    all: Arc<Semaphore>,
    edges: Mutex<BTreeMap<Name, Arc<Semaphore>>>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("free", &self.all.available_permits()).finish_non_exhaustive()
    }
}

impl Default for Names {
    fn default() -> Self {
        Self::of(absolute)
    }
}

/// Why there are no addresses.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    /// The resolver says so.
    #[error("{0}")]
    No(io::Error),
    /// It, or a place to ask it from, was not there in time.
    #[error("its name is not resolved in time")]
    Late,
}

impl Names {
    pub(super) fn of(ask: Ask) -> Self {
        Self { ask, all: Arc::new(Semaphore::new(IN_ALL)), edges: Mutex::default() }
    }

    /// The addresses of `host`, for this edge.
    pub(super) async fn addresses(&self, edge: &Name, host: &str) -> Result<Vec<IpAddr>, Unknown> {
        let looked_up = async {
            // The edge's own place first: who waits for it holds none of the others'.
            let own = place(&self.of_edge(edge)).await?;
            let one = place(&self.all).await?;
            let (tell, told) = oneshot::channel();
            let (host, ask) = (host.to_owned(), self.ask);
            let look = move || {
                let found = ask(&host);
                drop((own, one));
                // Who has asked may have gone.
                let _ = tell.send(found);
            };
            std::thread::Builder::new().name("names".to_owned()).stack_size(STACK).spawn(look)?;
            told.await.map_err(io::Error::other)?
        };
        match timeout(PATIENCE, looked_up).await {
            Ok(found) => found.map_err(Unknown::No),
            Err(_) => Err(Unknown::Late),
        }
    }

    fn of_edge(&self, edge: &Name) -> Arc<Semaphore> {
        let mut edges = self.edges.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody uses any more.
        edges.retain(|_, places| Arc::strong_count(places) > 1);
        Arc::clone(edges.entry(edge.clone()).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))))
    }
}

async fn place(places: &Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    Arc::clone(places).acquire_owned().await.map_err(io::Error::other)
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
            let names = Arc::new(Names::of(hang));
            let [bad, good] = ["bad", "good"].map(|name| name.parse::<Name>().unwrap());
            for _ in 0..2 * IN_ALL {
                let (names, bad) = (Arc::clone(&names), bad.clone());
                tokio::spawn(async move { names.addresses(&bad, "slow").await });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(names.all.available_permits(), IN_ALL - OF_ONE);
            let found = timeout(PATIENCE, names.addresses(&good, "fast")).await.unwrap().unwrap();
            assert_eq!(found, [IpAddr::from([192, 0, 2, 1])]);
            // Who has waited too long has gone, and the look-up has not: its place stays taken.
            assert!(matches!(names.addresses(&bad, "fast").await, Err(Unknown::Late)));
            assert_eq!(names.all.available_permits(), IN_ALL - OF_ONE);
        });
    }

    #[test]
    fn what_is_done_leaves_nothing_behind() {
        block_on(async {
            let names = Names::of(hang);
            for n in 0..20 {
                names.addresses(&format!("e{n}").parse().unwrap(), "fast").await.unwrap();
            }
            assert!(names.edges.lock().unwrap().len() <= 2 && names.all.available_permits() == IN_ALL);
        });
    }
}
