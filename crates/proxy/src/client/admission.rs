//! Admission of clients: how many connections the proxy keeps, and which one is closed when there are too many.
//!
//! 1. All connections are bounded in total, and for each address to half of that ([`ConnAdmission`]). Beyond the
//!    total, the network with the most connections loses its newest. A tunnel counts as long as it lasts.
//! 2. Connections without a request so far are bounded to a quarter of the total ([`PendingHandshakes`]): a new one
//!    closes the oldest of the network that has the most. While more than half of all permits are in use, the timeout
//!    for idle connections and request heads is shorter.
//! 3. Each listener has its own permits, so load on the media port cannot lock the user out of the status page.
//!
//! Clients are distinguished by address. All programs of this machine share one, with capacity for two hundred players.
//! Nothing better is known of a client that needs no password.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use marline_net::admission::{AdmissionTicket, ConnAdmission, HandshakeTicket, PendingHandshakes};
use tokio::sync::watch;

/// Admission control of one listener.
pub(crate) struct ClientAdmission {
    /// All connections, each with the sender that closes it.
    admitted: RefCell<ConnAdmission<Rc<watch::Sender<bool>>>>,
    /// Connections that have not sent a request yet.
    awaiting_request: RefCell<PendingHandshakes<Rc<watch::Sender<bool>>>>,
    open_count: Cell<usize>,
    max: usize,
}

impl ClientAdmission {
    /// Permits at most `max` connections at once.
    pub(crate) fn new(max: usize) -> Rc<Self> {
        Rc::new(Self {
            admitted: RefCell::new(ConnAdmission::new(max, max / 2)),
            awaiting_request: RefCell::new(PendingHandshakes::new(max / 4)),
            open_count: Cell::new(0),
            max,
        })
    }

    /// Requests a permit for a connection from this address; `None`: the connection must be closed.
    pub(crate) fn admit(self: &Rc<Self>, address: IpAddr) -> Option<Rc<ConnPermit>> {
        let (close_tx, close_rx) = watch::channel(false);
        let close_tx = Rc::new(close_tx);
        let Ok((ticket, evicted)) = self.admitted.borrow_mut().admit(address, Rc::clone(&close_tx)) else {
            tracing::debug!(%address, "connection refused: too many connections from this address or in total");
            return None;
        };
        let (idle_ticket, idle_evicted) = self.awaiting_request.borrow_mut().admit(address, Rc::clone(&close_tx));
        for evicted_tx in evicted.iter().chain(&idle_evicted) {
            let _ = evicted_tx.send(true);
        }
        self.open_count.set(self.open_count.get() + 1);
        Some(Rc::new(ConnPermit {
            clients: Rc::clone(self),
            ticket,
            idle_ticket: Cell::new(Some(idle_ticket)),
            close_tx,
            close_rx,
        }))
    }

    /// How long a connection may be idle before a request, and how long a request head may take.
    pub(crate) fn idle_timeout(&self) -> Duration {
        if self.open_count.get() > self.max / 2 { SHORT_IDLE_TIMEOUT } else { IDLE_TIMEOUT }
    }

    /// Frees a file descriptor: closes the oldest connection without a request, of the network that has the most of
    /// these.
    pub(crate) fn evict_idle(&self) {
        if let Some(close_tx) = self.awaiting_request.borrow_mut().evict() {
            let _ = close_tx.send(true);
        }
    }
}

/// The permit of one connection, released when it is dropped.
pub(crate) struct ConnPermit {
    clients: Rc<ClientAdmission>,
    ticket: AdmissionTicket,
    idle_ticket: Cell<Option<HandshakeTicket>>,
    close_tx: Rc<watch::Sender<bool>>,
    close_rx: watch::Receiver<bool>,
}

impl ConnPermit {
    /// A request has arrived: from now on only the bound for active connections applies.
    pub(crate) fn on_request(&self) {
        if let Some(ticket) = self.idle_ticket.take() {
            self.clients.awaiting_request.borrow_mut().release(ticket);
        }
    }

    /// Requests that the connection be closed.
    pub(crate) fn close(&self) {
        let _ = self.close_tx.send(true);
    }

    /// Waits until the connection is evicted, or has to be closed.
    pub(crate) async fn wait_for_eviction(&self) {
        // `self` owns a sender, so the channel cannot be closed.
        let _ = self.close_rx.clone().wait_for(|is_closed| *is_closed).await;
    }
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        self.on_request();
        self.clients.admitted.borrow_mut().release(self.ticket);
        self.clients.open_count.set(self.clients.open_count.get() - 1);
    }
}

/// How long a connection may be idle before a request, and how long a request head may take.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The same while more than half of all permits are in use. Our choice: three RTTs of a satellite link, and
/// retransmissions.
const SHORT_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_closed(permit: &ConnPermit) -> bool {
        *permit.close_rx.borrow()
    }

    #[test]
    fn one_address_may_hold_half_of_all_connections_and_a_quarter_before_a_request() {
        let clients = ClientAdmission::new(40);
        let idle: Vec<_> = (0..20).map(|_| clients.admit(address(1)).unwrap()).collect();
        assert!(clients.admit(address(1)).is_none());
        assert_eq!(idle.iter().filter(|permit| is_closed(permit)).count(), 10);
        assert!(is_closed(&idle[0]) && !is_closed(&idle[19]));
        drop(idle);
        let busy: Vec<_> =
            (0..20).map(|_| clients.admit(address(1)).inspect(|permit| permit.on_request()).unwrap()).collect();
        assert!(!busy.iter().any(|permit| is_closed(permit)));
        assert!(clients.admit(address(2)).is_some());
    }

    #[test]
    fn at_the_limit_a_new_client_evicts_the_newest_connection_of_the_largest_client() {
        let clients = ClientAdmission::new(4);
        let admit_busy = |n| clients.admit(address(n)).inspect(|permit| permit.on_request()).unwrap();
        let [a, b, c, d] = [1, 1, 2, 2].map(admit_busy);
        let _newcomer = admit_busy(3);
        assert_eq!([&a, &b, &c, &d].iter().filter(|permit| is_closed(permit)).count(), 1);
        assert!(!is_closed(&a) && !is_closed(&c), "the newest goes");
    }

    #[test]
    fn the_idle_timeout_is_shorter_when_more_than_half_of_the_permits_are_used() {
        let clients = ClientAdmission::new(4);
        let permits: Vec<_> = (1..=3).filter_map(|n| clients.admit(address(n))).collect();
        assert_eq!(clients.idle_timeout(), SHORT_IDLE_TIMEOUT);
        drop(permits);
        assert_eq!(clients.idle_timeout(), IDLE_TIMEOUT);
        assert!(clients.admitted.borrow_mut().admit(address(1), Rc::new(watch::channel(false).0)).is_ok());
    }

    #[test]
    fn eviction_notifies_idle_connections_and_no_busy_ones() {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let clients = ClientAdmission::new(40);
            let permit = clients.admit(address(1)).unwrap();
            clients.evict_idle();
            permit.wait_for_eviction().await;
            let busy = clients.admit(address(1)).unwrap();
            busy.on_request();
            clients.evict_idle();
            assert!(tokio::time::timeout(Duration::from_millis(20), busy.wait_for_eviction()).await.is_err());
        });
    }
}
