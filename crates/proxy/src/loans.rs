//! Windows that can be revoked: the buffer memory of each response that is being played, and the client that holds it.
//!
//! A client that opens many connections and reads none of them would keep its windows for as long as it likes. So if no
//! window is left for a request, one is revoked: the client with the most windows is selected, in it the address with the most,
//! and of that address the window that was read least recently. Its bytes and its transfer are dropped, and its connection is
//! closed. If the requesting client would then hold more windows than the one that loses, the request is refused: this
//! prevents two clients from revoking each other's windows in turn.
//!
//! A fixed share for each client was not used: it wastes memory with few clients and is too small with many.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use marline_core::units::{DataSize, Instant};
use marline_download::store::Reader;
use marline_net::reach::Right;

use super::body::Task;
use super::clients::Seat;
use super::memory::{Client, Grant};

/// All windows that are granted.
#[derive(Default)]
pub(super) struct Loans(RefCell<Vec<Weak<Loan>>>);

/// The window of one response, until it is revoked.
pub(super) struct Loan {
    client: Client,
    address: Option<IpAddr>,
    size: DataSize,
    held: RefCell<Option<Held>>,
    /// The time of the last read.
    read: Cell<Instant>,
    /// The connection of the response; none until the response is sent.
    seat: RefCell<Option<Rc<Seat>>>,
}

struct Held {
    reader: Rc<Reader>,
    _transfer: Task,
    _grant: Grant,
}

impl Loans {
    /// Hands out a window, with the transfer that fills it.
    pub(super) fn lend(
        &self,
        now: Instant,
        right: &Right,
        grant: Grant,
        reader: Rc<Reader>,
        transfer: Task,
    ) -> Rc<Loan> {
        let size = grant.size();
        let loan = Rc::new(Loan {
            client: Client::of(right),
            address: right.host(),
            size,
            held: RefCell::new(Some(Held { reader, _transfer: transfer, _grant: grant })),
            read: Cell::new(now),
            seat: RefCell::default(),
        });
        self.add(&loan);
        loan
    }

    fn add(&self, loan: &Rc<Loan>) {
        let mut all = self.0.borrow_mut();
        if all.len() == all.capacity() {
            // A response that has ended holds its memory for as long as it is listed.
            all.retain(|loan| loan.strong_count() > 0);
            let live = all.len();
            all.shrink_to(2 * live);
            all.reserve_exact(live.max(64));
        }
        all.push(Rc::downgrade(loan));
    }

    /// Revokes a window for a request with this right. Returns false if no client has to give one up. `among_others`: no window of a
    /// client of this machine is revoked.
    pub(super) fn revoke_for(&self, right: &Right, among_others: bool) -> bool {
        let mut all = self.0.borrow_mut();
        all.retain(|loan| loan.upgrade().is_some_and(|loan| loan.held.borrow().is_some()));
        let all: Vec<Rc<Loan>> = all.iter().filter_map(Weak::upgrade).collect();
        let eligible = || all.iter().filter(|loan| !among_others || loan.client != Client::HERE);
        let holders = eligible().map(|loan| (loan.client, loan.address));
        let Some(loser) = loser((Client::of(right), right.host()), holders) else { return false };
        let candidates = eligible().filter(|loan| (loan.client, loan.address) == loser);
        let Some(loan) = candidates.min_by_key(|loan| loan.read.get()) else { return false };
        tracing::debug!(address = ?loan.address, "a window is revoked for another request");
        loan.revoke();
        true
    }
}

impl Loan {
    /// The bytes of the window; none if it was revoked.
    pub(super) fn reader(&self) -> Option<Rc<Reader>> {
        self.held.borrow().as_ref().map(|held| Rc::clone(&held.reader))
    }

    pub(super) fn size(&self) -> DataSize {
        self.size
    }

    /// Bytes were read.
    pub(super) fn on_read(&self, now: Instant) {
        self.read.set(now);
    }

    /// The response is sent on this connection.
    pub(super) fn set_connection(&self, seat: &Rc<Seat>) {
        *self.seat.borrow_mut() = Some(Rc::clone(seat));
    }

    fn revoke(&self) {
        *self.held.borrow_mut() = None;
        if let Some(seat) = self.seat.take() {
            seat.close();
        }
    }
}

/// A client, and an address of it.
type Holder = (Client, Option<IpAddr>);

/// The holder that must give up a window for this one. `holders` has one entry for each window.
fn loser((own, address): Holder, holders: impl Iterator<Item = Holder>) -> Option<Holder> {
    let (mut of_clients, mut of_addresses) = (BTreeMap::new(), BTreeMap::new());
    for holder in holders {
        *of_clients.entry(holder.0).or_insert(0_usize) += 1;
        *of_addresses.entry(holder).or_insert(0_usize) += 1;
    }
    let has = of_clients.get(&own).copied().unwrap_or_default();
    let most = of_clients.iter().max_by_key(|(_, count)| **count);
    let other = most.filter(|(client, count)| **client != own && **count > has + 1).map(|(client, _)| *client);
    // All hosts of a LAN are one client with IPv6 (a /64), so the same rule applies between the addresses of a client.
    let threshold =
        if other.is_some() { 0 } else { of_addresses.get(&(own, address)).copied().unwrap_or_default() + 1 };
    let in_it = of_addresses.iter().filter(|((client, _), _)| *client == other.unwrap_or(own));
    in_it.max_by_key(|(_, count)| **count).filter(|(_, count)| **count > threshold).map(|(holder, _)| *holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(address: &str) -> Holder {
        let right = Right::of_peer(std::net::SocketAddr::new(address.parse().unwrap(), 1));
        (Client::of(&right), right.host())
    }

    #[test]
    fn windows_of_responses_that_have_ended_take_up_no_memory() {
        let loan = |n: u64| {
            let read = Cell::new(Instant::from_nanos(n));
            let (held, seat, size) = (RefCell::default(), RefCell::default(), DataSize::ZERO);
            Rc::new(Loan { client: Client::HERE, address: None, size, held, read, seat })
        };
        let loans = Loans::default();
        let live: Vec<Rc<Loan>> = (0..100).map(loan).inspect(|loan| loans.add(loan)).collect();
        for n in 0..10_000 {
            loans.add(&loan(n));
            assert!(loans.0.borrow().len() <= 300);
        }
        let is_listed = |loan: &Rc<Loan>| loans.0.borrow().iter().any(|weak| weak.ptr_eq(&Rc::downgrade(loan)));
        assert!(live.iter().all(is_listed));
    }

    #[test]
    fn the_client_with_the_most_loses_and_in_it_the_address_with_the_most() {
        for (comes, holders, loses) in [
            ("10.0.0.2", &[("10.0.0.1", 5)][..], Some("10.0.0.1")),
            ("10.0.0.1", &[("10.0.0.1", 5)], None),
            ("10.0.0.1", &[("10.0.0.1", 5), ("10.0.0.2", 6)], None),
            ("10.0.0.1", &[("10.0.0.1", 5), ("10.0.0.2", 7)], Some("10.0.0.2")),
            ("127.0.0.1", &[("10.0.0.1", 3), ("10.0.0.2", 4)], Some("10.0.0.2")),
            ("10.0.0.1", &[("127.0.0.1", 9)], Some("127.0.0.1")),
            ("10.0.0.1", &[], None),
            // An IPv6 /64 is one client.
            ("10.0.0.1", &[("fd00::1", 1), ("fd00::2", 2), ("10.0.0.2", 2)], Some("fd00::2")),
            ("fd00::3", &[("fd00::1", 1), ("fd00::2", 4)], Some("fd00::2")),
            ("fd00::3", &[("fd00::1", 1), ("fd00::2", 1)], None),
            ("fd00::3", &[("fd00::1", 1), ("fd00::2", 1), ("10.0.0.2", 3)], None),
        ] {
            let all = holders.iter().flat_map(|(address, count)| std::iter::repeat_n(holder(address), *count));
            assert_eq!(loser(holder(comes), all), loses.map(holder), "{comes} {holders:?}");
        }
    }
}
