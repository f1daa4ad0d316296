//! Runs blocking look-ups on threads of their own, and limits their number.
//!
//! The system's resolver can hang for half a minute and blocks its thread for as long. So at most [`MAX_TOTAL`]
//! look-ups of one [`LookupThreads`] run at a time, [`MAX_REMOTE`] for all remote hosts together (hosts that use this
//! machine as a proxy), and [`MAX_PER_HOST`] for one of them. A host that requests many names that hang delays no
//! other host. A permit is returned when the look-up has really ended, even if its requester gave up long before.
//!
//! Threads of the tokio runtime were not used: the runtime waits for them when the program exits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::admission::client_network;

/// The permits for running look-ups.
#[derive(Debug)]
pub(super) struct LookupThreads {
    total_permits: Arc<Semaphore>,
    remote_permits: Arc<Semaphore>,
    host_permits: Mutex<BTreeMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for LookupThreads {
    fn default() -> Self {
        Self {
            total_permits: Arc::new(Semaphore::new(MAX_TOTAL)),
            remote_permits: Arc::new(Semaphore::new(MAX_REMOTE)),
            host_permits: Mutex::default(),
        }
    }
}

impl LookupThreads {
    /// Runs blocking work, on behalf of a remote host if `requester` is given. `None`: no thread could be started.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        requester: Option<IpAddr>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut permits = Vec::with_capacity(3);
        if let Some(requester) = requester {
            // The host's own permit comes first: while waiting for it, this task holds no permit that another host
            // could use.
            permits.push(acquire_permit(&self.host_permits_of(client_network(requester))).await?);
            permits.push(acquire_permit(&self.remote_permits).await?);
        }
        permits.push(acquire_permit(&self.total_permits).await?);
        let (sender, receiver) = oneshot::channel();
        let work = move || {
            let result = work();
            drop(permits);
            // The requester may have given up.
            drop(sender.send(result));
        };
        std::thread::Builder::new().name("resolver".to_owned()).stack_size(STACK_LEN).spawn(work).ok()?;
        receiver.await.ok()
    }

    fn host_permits_of(&self, host: IpAddr) -> Arc<Semaphore> {
        let mut hosts = self.host_permits.lock().unwrap_or_else(PoisonError::into_inner);
        // Removes entries without users.
        hosts.retain(|_, permits| Arc::strong_count(permits) > 1);
        Arc::clone(hosts.entry(host).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_HOST))))
    }
}

async fn acquire_permit(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

/// Our choice: enough for the names of one page on each device of a household.
const MAX_TOTAL: usize = 64;
/// A quarter of [`MAX_TOTAL`] is left for programs of this machine.
const MAX_REMOTE: usize = 48;
/// Maximum for one remote host (an IPv4 address or an IPv6 /64).
const MAX_PER_HOST: usize = 8;
/// Our choice: glibc's resolver needs less than half of it.
const STACK_LEN: usize = 256 * 1024;

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
    fn a_host_whose_look_ups_hang_delays_no_other_host() {
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        block_on(async {
            let threads = Arc::new(LookupThreads::default());
            let hang = || {
                let held = Arc::clone(&held);
                move || drop(held.lock().map(|held| held.recv()))
            };
            let host = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
            let mut requests = tokio::task::JoinSet::new();
            for n in 0..40 {
                let from = host(if n % 2 == 0 { 1 } else { 10 + n });
                let (threads, work) = (Arc::clone(&threads), hang());
                requests.spawn(async move { threads.run(from, work).await });
            }
            while threads.total_permits.available_permits() > MAX_TOTAL - MAX_PER_HOST - 20 {
                tokio::task::yield_now().await;
            }
            let limit = Duration::from_secs(20);
            assert_eq!(timeout(limit, threads.run(host(2), || 5)).await.unwrap(), Some(5));
            // All remote hosts together leave permits for this machine.
            for n in 0..100 {
                let (threads, work) = (Arc::clone(&threads), hang());
                requests.spawn(async move { threads.run(host(100 + n), work).await });
            }
            while threads.remote_permits.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(timeout(limit, threads.run(None, || 6)).await.unwrap(), Some(6));
            // A requester that gives up returns no permit before its look-up ends.
            requests.abort_all();
            while requests.join_next().await.is_some() {}
            assert_eq!(threads.remote_permits.available_permits(), 0);
            drop(release);
            while threads.total_permits.available_permits() < MAX_TOTAL {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            threads.run(host(1), || ()).await.unwrap();
            assert!(threads.host_permits.lock().unwrap().len() <= 1);
        });
    }
}
