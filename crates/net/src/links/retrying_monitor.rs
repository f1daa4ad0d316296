//! A [`Monitor`] that is opened again after it has failed.
//!
//! A netlink socket can fail or be refused while the kernel is short of memory. Without it, changes of links would go
//! unnoticed until the program ends. The first failure of a series is logged, and so is the recovery.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::{LinksError, Monitor};

/// Reports changes of interfaces, addresses, routes and rules for as long as it exists. Needs a tokio runtime with I/O
/// and time enabled.
#[derive(Debug)]
pub struct RetryingMonitor {
    state: State,
}

#[derive(Debug)]
enum State {
    Open(Monitor),
    /// It failed, and is opened again after this delay.
    Failed {
        delay: Duration,
        sleep: Pin<Box<Sleep>>,
    },
}

impl Default for RetryingMonitor {
    fn default() -> Self {
        Self::new()
    }
}

impl RetryingMonitor {
    /// Subscribes. Changes are reported from now on, so a caller that lists the interfaces afterwards misses none.
    pub fn new() -> Self {
        Self { state: Monitor::new().map_or_else(|error| failed(&error), State::Open) }
    }

    /// Waits until something has changed since the last call. Dropping the future loses nothing.
    pub async fn changed(&mut self) {
        poll_fn(|cx| self.poll_changed(cx)).await;
    }

    /// Like [`changed`](Self::changed), for callers that poll: the next change wakes the task.
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Open(monitor) => match monitor.poll_changed(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(())) => return Poll::Ready(()),
                    Poll::Ready(Err(error)) => self.state = failed(&error),
                },
                State::Failed { delay, sleep: waiting } => {
                    if waiting.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    match Monitor::new() {
                        Ok(monitor) => {
                            tracing::info!("changes of links are noticed again");
                            self.state = State::Open(monitor);
                            // What changed meanwhile was not reported, so the caller must list the interfaces again.
                            return Poll::Ready(());
                        }
                        Err(error) => {
                            tracing::debug!(%error, "cannot monitor links");
                            *delay = (*delay * 2).min(MAX_DELAY);
                            *waiting = Box::pin(sleep(*delay));
                        }
                    }
                }
            }
        }
    }
}

fn failed(error: &LinksError) -> State {
    tracing::warn!(%error, "cannot monitor links, so changes are noticed late; retrying");
    State::Failed { delay: MIN_DELAY, sleep: Box::pin(sleep(MIN_DELAY)) }
}

/// Our choice: a lack of memory of the kernel usually ends within this time.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// Our choice: attempts at this interval cost next to nothing, and recovery is noticed soon after the cause has gone.
const MAX_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[tokio::test]
    async fn a_failed_monitor_is_opened_again_and_reports_a_change() {
        let error = LinksError::from(io::Error::from(io::ErrorKind::OutOfMemory));
        let mut monitor = RetryingMonitor { state: failed(&error) };
        tokio::time::timeout(Duration::from_secs(10), monitor.changed()).await.unwrap();
        assert!(matches!(monitor.state, State::Open(_)));
    }
}
