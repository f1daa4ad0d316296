//! Admission of clients: how many connections the proxy keeps, and which one is closed when there are too many.
//!
//! 1. Connections that work are bounded in all and for each address ([`Guests`]): beyond the total, the network with the
//!    most loses its newest. A tunnel counts for as long as it lasts.
//! 2. Connections that have not asked for anything are bounded more tightly ([`Handshakes`]): a new one closes the oldest
//!    of the network that has the most. Where half of all places are taken, they have little time, and so have connections
//!    that are idle between two requests.
//! 3. Each listener has places of its own, so nothing at the media port keeps the user from the status page.
//!
//! A client is an address: programs of this machine share one, with room for two hundred players. Nothing better is known
//! of a client that needs no password.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use marline_net::admission::{GuestTicket, Guests, HandshakeTicket, Handshakes};
use tokio::sync::watch;

/// The clients of one listener.
pub(super) struct Clients {
    guests: RefCell<Guests<Rc<watch::Sender<bool>>>>,
    /// Those that have not asked for anything.
    silent: RefCell<Handshakes<Rc<watch::Sender<bool>>>>,
    open: Cell<usize>,
    most: usize,
}

impl Clients {
    /// At most `most` connections at once.
    pub(super) fn new(most: usize) -> Rc<Self> {
        Rc::new(Self {
            guests: RefCell::new(Guests::new(most, most / 2)),
            silent: RefCell::new(Handshakes::new(most / 4)),
            open: Cell::new(0),
            most,
        })
    }

    /// A place for a connection from there; none: it is to be closed.
    pub(super) fn admit(self: &Rc<Self>, from: IpAddr) -> Option<Rc<Seat>> {
        let (goes, gone) = watch::channel(false);
        let goes = Rc::new(goes);
        let Ok((ticket, evicted)) = self.guests.borrow_mut().came(from, Rc::clone(&goes)) else {
            tracing::debug!(%from, "no place for one more connection");
            return None;
        };
        let (silent, also_evicted) = self.silent.borrow_mut().came(from, Rc::clone(&goes));
        for goes in evicted.iter().chain(&also_evicted) {
            let _ = goes.send(true);
        }
        self.open.set(self.open.get() + 1);
        Some(Rc::new(Seat { clients: Rc::clone(self), ticket, silent: Cell::new(Some(silent)), goes, gone }))
    }

    /// How long a connection may be idle before a request, and take for its head.
    pub(super) fn patience(&self) -> Duration {
        if self.open.get() > self.most / 2 { PRESSED } else { PATIENCE }
    }

    /// There are no descriptors left: who waits longest without having asked makes room.
    pub(super) fn make_room(&self) {
        if let Some(goes) = self.silent.borrow_mut().evict() {
            let _ = goes.send(true);
        }
    }
}

/// A connection's place, until it is dropped.
pub(super) struct Seat {
    clients: Rc<Clients>,
    ticket: GuestTicket,
    silent: Cell<Option<HandshakeTicket>>,
    goes: Rc<watch::Sender<bool>>,
    gone: watch::Receiver<bool>,
}

impl Seat {
    /// A request has come.
    pub(super) fn asks(&self) {
        if let Some(ticket) = self.silent.take() {
            self.clients.silent.borrow_mut().done(ticket);
        }
    }

    /// The connection is to be closed.
    pub(super) fn close(&self) {
        let _ = self.goes.send(true);
    }

    /// Waits until the connection has to make room, or is to be closed.
    pub(super) async fn evicted(&self) {
        // The sender is a part of this, so it cannot be gone.
        let _ = self.gone.clone().wait_for(|gone| *gone).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.asks();
        self.clients.guests.borrow_mut().left(self.ticket);
        self.clients.open.set(self.clients.open.get() - 1);
    }
}

/// For the head of a request, and how long an idle connection stays.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same while more than half of all places are taken. chosen: three round trips of a satellite link, and retransmissions.
const PRESSED: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn is_gone(seat: &Seat) -> bool {
        *seat.gone.borrow()
    }

    #[test]
    fn one_client_has_half_of_the_places_and_a_quarter_without_a_request() {
        let clients = Clients::new(40);
        let silent: Vec<_> = (0..20).map(|_| clients.admit(from(1)).unwrap()).collect();
        assert!(clients.admit(from(1)).is_none());
        assert_eq!(silent.iter().filter(|seat| is_gone(seat)).count(), 10);
        assert!(is_gone(&silent[0]) && !is_gone(&silent[19]));
        drop(silent);
        let busy: Vec<_> = (0..20).map(|_| clients.admit(from(1)).inspect(|seat| seat.asks()).unwrap()).collect();
        assert!(!busy.iter().any(|seat| is_gone(seat)));
        assert!(clients.admit(from(2)).is_some());
    }

    #[test]
    fn a_newcomer_takes_the_place_of_one_of_those_who_have_most() {
        let clients = Clients::new(4);
        let seat = |n| clients.admit(from(n)).inspect(|seat| seat.asks()).unwrap();
        let [a, b, c, d] = [1, 1, 2, 2].map(seat);
        let _newcomer = seat(3);
        assert_eq!([&a, &b, &c, &d].iter().filter(|seat| is_gone(seat)).count(), 1);
        assert!(!is_gone(&a) && !is_gone(&c), "the newest goes");
    }

    #[test]
    fn there_is_less_patience_where_places_are_few() {
        let clients = Clients::new(4);
        let seats: Vec<_> = (1..=3).filter_map(|n| clients.admit(from(n))).collect();
        assert_eq!(clients.patience(), PRESSED);
        drop(seats);
        assert_eq!(clients.patience(), PATIENCE);
        assert!(clients.guests.borrow_mut().came(from(1), Rc::new(watch::channel(false).0)).is_ok());
    }

    #[test]
    fn who_has_to_go_is_told_and_who_leaves_is_not() {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let clients = Clients::new(40);
            let seat = clients.admit(from(1)).unwrap();
            clients.make_room();
            seat.evicted().await;
            let asking = clients.admit(from(1)).unwrap();
            asking.asks();
            clients.make_room();
            assert!(tokio::time::timeout(Duration::from_millis(20), asking.evicted()).await.is_err());
        });
    }
}
