//! Windows that can be revoked: the buffer memory of each active response, and the client that holds it.
//!
//! A client that opens many connections and reads none of them would otherwise keep its windows indefinitely. So if no
//! window is left for a request, one is revoked: the client with the most windows is selected, within it the address
//! with the most, and of that address the window that was read least recently. Its bytes and its transfer are dropped,
//! and its connection is closed. If the requesting client would then hold more windows than the one that loses, the
//! request is refused: this prevents two clients from revoking each other's windows in turn.
//!
//! A fixed share for each client would waste memory with few clients and be too small with many.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

use marline_core::units::{DataSize, Instant};
use marline_download::store::Reader;
use marline_net::egress::EgressPolicy;

use super::admission::ConnPermit;
use super::buffer_budget::{Client, WindowGrant};
use crate::abort_on_drop::AbortOnDrop;

/// All granted windows.
#[derive(Default)]
pub(crate) struct RevocableWindows(RefCell<Vec<Weak<RevocableWindow>>>);

/// The window of one response, until it is revoked.
pub(crate) struct RevocableWindow {
    client: Client,
    address: Option<IpAddr>,
    size: DataSize,
    /// `None`: the window was revoked.
    contents: RefCell<Option<WindowContents>>,
    /// The time of the last read.
    last_read: Cell<Instant>,
    /// The connection of the response; `None` until the response is sent.
    permit: RefCell<Option<Rc<ConnPermit>>>,
}

struct WindowContents {
    reader: Rc<Reader>,
    _transfer: AbortOnDrop,
    _grant: WindowGrant,
}

impl RevocableWindows {
    /// Registers a granted window, with the transfer that fills it.
    pub(crate) fn add_granted(
        &self,
        now: Instant,
        egress: &EgressPolicy,
        grant: WindowGrant,
        reader: Rc<Reader>,
        transfer: AbortOnDrop,
    ) -> Rc<RevocableWindow> {
        let size = grant.size();
        let window = Rc::new(RevocableWindow {
            client: Client::of_egress(egress),
            address: egress.requester(),
            size,
            contents: RefCell::new(Some(WindowContents { reader, _transfer: transfer, _grant: grant })),
            last_read: Cell::new(now),
            permit: RefCell::default(),
        });
        self.register(&window);
        window
    }

    fn register(&self, window: &Rc<RevocableWindow>) {
        let mut windows = self.0.borrow_mut();
        if windows.len() == windows.capacity() {
            // A listed entry keeps the memory of an ended response allocated, so dead entries are removed regularly.
            windows.retain(|window| window.strong_count() > 0);
            let live_count = windows.len();
            windows.shrink_to(2 * live_count);
            windows.reserve_exact(live_count.max(64));
        }
        windows.push(Rc::downgrade(window));
    }

    /// Revokes a window for a request with this policy. Returns false if no client has to give one up. With
    /// `remote_only`, clients of this machine keep their windows.
    pub(crate) fn revoke_for(&self, egress: &EgressPolicy, remote_only: bool) -> bool {
        let mut windows = self.0.borrow_mut();
        windows.retain(|window| window.upgrade().is_some_and(|loan| loan.contents.borrow().is_some()));
        let live_windows: Vec<Rc<RevocableWindow>> = windows.iter().filter_map(Weak::upgrade).collect();
        let eligible = || live_windows.iter().filter(|window| !remote_only || window.client != Client::LOCAL);
        let holders = eligible().map(|window| (window.client, window.address));
        let Some(holder) = holder_to_revoke((Client::of_egress(egress), egress.requester()), holders) else {
            return false;
        };
        let candidates = eligible().filter(|window| (window.client, window.address) == holder);
        let Some(window) = candidates.min_by_key(|window| window.last_read.get()) else { return false };
        tracing::debug!(address = ?window.address, "window revoked for another request");
        window.revoke();
        true
    }
}

impl RevocableWindow {
    /// The bytes of the window; `None` if it was revoked.
    pub(crate) fn reader(&self) -> Option<Rc<Reader>> {
        self.contents.borrow().as_ref().map(|held| Rc::clone(&held.reader))
    }

    pub(crate) fn size(&self) -> DataSize {
        self.size
    }

    /// Notes that bytes were read.
    pub(crate) fn on_read(&self, now: Instant) {
        self.last_read.set(now);
    }

    /// Sets the connection on which the response is sent.
    pub(crate) fn set_connection(&self, permit: &Rc<ConnPermit>) {
        *self.permit.borrow_mut() = Some(Rc::clone(permit));
    }

    fn revoke(&self) {
        *self.contents.borrow_mut() = None;
        if let Some(permit) = self.permit.take() {
            permit.close();
        }
    }
}

/// A client, and one of its addresses.
type Holder = (Client, Option<IpAddr>);

/// The holder that must give up a window for this one. `holders` has one entry for each window.
fn holder_to_revoke((requester, address): Holder, holders: impl Iterator<Item = Holder>) -> Option<Holder> {
    let (mut client_counts, mut address_counts) = (BTreeMap::new(), BTreeMap::new());
    for holder in holders {
        *client_counts.entry(holder.0).or_insert(0_usize) += 1;
        *address_counts.entry(holder).or_insert(0_usize) += 1;
    }
    let own_count = client_counts.get(&requester).copied().unwrap_or_default();
    let largest = client_counts.iter().max_by_key(|(_, count)| **count);
    // A client loses a window only if it has at least two more than the requester, so that it keeps at least as many.
    let larger_client = largest
        .filter(|(client, count)| **client != requester && **count > own_count + 1)
        .map(|(client, _)| *client);
    // All hosts of a LAN are one client with IPv6 (a /64), so the same rule applies between the addresses of a client.
    let threshold = if larger_client.is_some() {
        // 0 accepts any holder of the larger client. Within one client, the loser must have two windows more than the
        // requester.
        0
    } else {
        address_counts.get(&(requester, address)).copied().unwrap_or_default() + 1
    };
    let candidates = address_counts.iter().filter(|((client, _), _)| *client == larger_client.unwrap_or(requester));
    candidates.max_by_key(|(_, count)| **count).filter(|(_, count)| **count > threshold).map(|(holder, _)| *holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(address: &str) -> Holder {
        let egress = EgressPolicy::for_peer(std::net::SocketAddr::new(address.parse().unwrap(), 1));
        (Client::of_egress(&egress), egress.requester())
    }

    #[test]
    fn windows_of_responses_that_have_ended_take_up_no_memory() {
        let new_window = |n: u64| {
            let read = Cell::new(Instant::from_nanos(n));
            let (contents, seat, size) = (RefCell::default(), RefCell::default(), DataSize::ZERO);
            Rc::new(RevocableWindow {
                client: Client::LOCAL,
                address: None,
                size,
                contents,
                last_read: read,
                permit: seat,
            })
        };
        let windows = RevocableWindows::default();
        let live: Vec<Rc<RevocableWindow>> =
            (0..100).map(new_window).inspect(|window| windows.register(window)).collect();
        for n in 0..10_000 {
            windows.register(&new_window(n));
            assert!(windows.0.borrow().len() <= 300);
        }
        let is_listed = |window: &Rc<RevocableWindow>| {
            windows.0.borrow().iter().any(|weak| weak.ptr_eq(&Rc::downgrade(window)))
        };
        assert!(live.iter().all(is_listed));
    }

    #[test]
    fn the_address_with_the_most_windows_of_the_largest_client_loses_one() {
        for (requester, holders, loses) in [
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
            assert_eq!(holder_to_revoke(holder(requester), all), loses.map(holder), "{requester} {holders:?}");
        }
    }
}
