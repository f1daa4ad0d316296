//! Distributes events, which are small JSON objects, to the subscribers of the status port (server-sent events).
//!
//! A subscriber that does not read is dropped: it can request the status instead.

use std::cell::RefCell;

use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The subscribers; see the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Events {
    subscribers: RefCell<Vec<Sender<String>>>,
}

impl Events {
    /// Subscribes to all events from now on.
    pub(crate) fn subscribe(&self) -> Receiver<String> {
        let (sender, receiver) = channel(QUEUE_LEN);
        self.subscribers.borrow_mut().push(sender);
        receiver
    }

    /// Whether there is any subscriber.
    pub(crate) fn has_subscribers(&self) -> bool {
        !self.subscribers.borrow().is_empty()
    }

    /// Sends an event to all subscribers.
    pub(crate) fn publish(&self, event: &Value) {
        tracing::debug!(%event);
        let text = event.to_string();
        self.subscribers.borrow_mut().retain(|listener| listener.try_send(text.clone()).is_ok());
    }
}

/// Our choice: some seconds of a busy proxy.
const QUEUE_LEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_that_does_not_read_is_dropped_and_others_still_receive() {
        let events = Events::default();
        let (mut one, mut other) = (events.subscribe(), events.subscribe());
        for n in 0..=QUEUE_LEN {
            events.publish(&serde_json::json!({ "n": n }));
            assert_eq!(one.try_recv().unwrap(), format!("{{\"n\":{n}}}"));
        }
        assert_eq!(events.subscribers.borrow().len(), 1);
        while other.try_recv().is_ok() {}
        assert!(other.is_closed());
    }
}
