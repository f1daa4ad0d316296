//! Limits how many handshakes with one relay start at once.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// How many handshakes start at once, and how long each of them holds its slot. Our choice: a small processor completes so many well within
/// the timeout of a handshake (`dial`), and over a satellite link 250 flows still start within a second.
pub(super) const MAX_HANDSHAKES: usize = 64;
const HANDSHAKE_SLOT: Duration = Duration::from_millis(250);

/// Spreads out handshakes that start together. If hundreds ran at once, none would finish before nearly all others do, and a busy processor
/// would make a healthy relay look unresponsive.
#[derive(Debug)]
pub(super) struct HandshakeLimiter(Semaphore);

impl Default for HandshakeLimiter {
    fn default() -> Self {
        Self(Semaphore::new(MAX_HANDSHAKES))
    }
}

impl HandshakeLimiter {
    pub(super) async fn run<T>(&self, handshake: impl Future<Output = T>) -> T {
        let turn = self.0.acquire().await;
        tokio::pin!(handshake);
        match timeout(HANDSHAKE_SLOT, &mut handshake).await {
            Ok(ended) => ended,
            Err(_) => {
                drop(turn);
                handshake.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    #[test]
    fn few_handshakes_start_at_once_and_none_waits_for_those_that_hang() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (limiter, running, most) =
                (Arc::new(HandshakeLimiter::default()), Arc::new(AtomicUsize::new(0)), 3 * MAX_HANDSHAKES);
            let mut all = JoinSet::new();
            for _ in 0..most {
                let (limiter, running) = (Arc::clone(&limiter), Arc::clone(&running));
                all.spawn(async move {
                    let handshake = async {
                        let at_once = running.fetch_add(1, Ordering::Relaxed) + 1;
                        tokio::task::yield_now().await;
                        running.fetch_sub(1, Ordering::Relaxed);
                        at_once
                    };
                    limiter.run(handshake).await
                });
            }
            while let Some(at_once) = all.join_next().await {
                assert!(at_once.unwrap() <= MAX_HANDSHAKES);
            }
            let mut hanging = JoinSet::new();
            for _ in 0..most {
                let (limiter, running) = (Arc::clone(&limiter), Arc::clone(&running));
                hanging.spawn(async move {
                    let handshake = async {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await;
                    };
                    limiter.run(handshake).await;
                });
            }
            let started_at = Instant::now();
            while running.load(Ordering::Relaxed) < most {
                assert!(started_at.elapsed() < Duration::from_secs(20), "{running:?} have started");
                sleep(HANDSHAKE_SLOT / 10).await;
            }
            assert!(started_at.elapsed() >= 2 * HANDSHAKE_SLOT);
        });
    }
}
