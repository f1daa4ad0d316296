//! Blocking look-ups, each on a thread of its own, and how many of them there may be.
//!
//! The system's resolver can hang for half a minute, and takes a thread for as long. So there are only [`IN_ALL`] at
//! once, for other hosts together [`OTHERS`], and for one of them [`OF_ONE`]: who asks for many names that hang
//! holds up nobody else. A permit is returned when the look-up has really ended, however long ago its asker gave up.
//!
//! Threads of the runtime were not used: the runtime waits for them when the program ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::admission::network;

/// The permits for look-ups.
#[derive(Debug)]
pub(super) struct Threads {
    all: Arc<Semaphore>,
    others: Arc<Semaphore>,
    hosts: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(IN_ALL)),
            others: Arc::new(Semaphore::new(OTHERS)),
            hosts: Mutex::default(),
        }
    }
}

impl Threads {
    /// The result of blocking work, for another host where there is one; none: no thread can be had.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        asker: Option<IpAddr>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut permits = Vec::with_capacity(3);
        if let Some(asker) = asker {
            // The host's own first: while it waits for that it holds none that another one could use.
            permits.push(permit(&self.of_host(network(asker))).await?);
            permits.push(permit(&self.others).await?);
        }
        permits.push(permit(&self.all).await?);
        let (tell, told) = oneshot::channel();
        let work = move || {
            let done = work();
            drop(permits);
            // Whoever asked may have gone.
            drop(tell.send(done));
        };
        std::thread::Builder::new().name("resolver".to_owned()).stack_size(STACK).spawn(work).ok()?;
        told.await.ok()
    }

    fn of_host(&self, host: IpAddr) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody uses any more.
        hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
        Arc::clone(hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))))
    }
}

async fn permit(of: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(of).acquire_owned().await.ok()
}

/// chosen: a page's worth of names for each of a household's devices.
const IN_ALL: usize = 64;
/// A quarter is left for this machine's own programs.
const OTHERS: usize = 48;
const OF_ONE: usize = 8;
/// chosen: glibc's resolver needs less than half.
const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn one_host_whose_names_hang_holds_up_nobody_else() {
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        block_on(async {
            let threads = Arc::new(Threads::default());
            let hang = || {
                let held = Arc::clone(&held);
                move || drop(held.lock().map(|held| held.recv()))
            };
            let host = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
            let mut asked = tokio::task::JoinSet::new();
            for n in 0..40 {
                let from = host(if n % 2 == 0 { 1 } else { 10 + n });
                let (threads, work) = (Arc::clone(&threads), hang());
                asked.spawn(async move { threads.run(from, work).await });
            }
            while threads.all.available_permits() > IN_ALL - OF_ONE - 20 {
                tokio::task::yield_now().await;
            }
            let soon = Duration::from_secs(20);
            assert_eq!(timeout(soon, threads.run(host(2), || 5)).await.unwrap(), Some(5));
            // All other hosts together leave some for this machine.
            for n in 0..100 {
                let (threads, work) = (Arc::clone(&threads), hang());
                asked.spawn(async move { threads.run(host(100 + n), work).await });
            }
            while threads.others.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(timeout(soon, threads.run(None, || 6)).await.unwrap(), Some(6));
            // Whoever stops waiting gives nothing back before the look-up ends.
            asked.abort_all();
            while asked.join_next().await.is_some() {}
            assert_eq!(threads.others.available_permits(), 0);
            drop(release);
            while threads.all.available_permits() < IN_ALL {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            threads.run(host(1), || ()).await.unwrap();
            assert!(threads.hosts.lock().unwrap().len() <= 1);
        });
    }
}
