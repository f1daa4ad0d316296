//! Memory budget of the proxy: how much memory windows and playlists may use, and how it is divided among clients.
//!
//! 1. Every response that is admitted gets a window (its buffer memory) of at least [`BASE_WINDOW`]. If less is left,
//!    the request is refused.
//! 2. Nearly half of the total is for larger windows: each new response gets half of what is left of it, up to the
//!    maximum for one player. So the first players buffer far ahead, and the two hundredth still plays.
//! 3. A grant has a fixed size while it is held, because buffered bytes cannot be returned.
//! 4. Playlists and manifests are charged as well: a sixteenth of the total while they are fetched, parsed and sent
//!    ([`Purpose::Playlists`]), and a thirty-second while their segments are remembered ([`Purpose::PrefetchIndex`]).
//!    Windows leave a sixteenth for both.
//! 5. Memory is accounted for each [`Client`]. Other hosts together leave an eighth of the base windows and a quarter
//!    of the playlist memory to programs of this machine. One of them gets at most half of the extra window memory and
//!    of the playlist memory. If no base window is left,
//!    [`RevocableWindows`](super::windows::RevocableWindows) revokes one of the client that has the most.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::HEXLOWER;
use marline_core::units::DataSize;
use marline_net::admission::client_network;
use marline_net::egress::EgressPolicy;
use sha2::{Digest as _, Sha256};

/// The memory budget of all players.
#[derive(Clone, Debug)]
pub(crate) struct BufferBudget {
    /// Memory for windows and playlists together, in bytes.
    total: u64,
    /// Window memory of one player at most, in bytes.
    per_player: u64,
    usage: Arc<Usage>,
}

/// The holder of memory: another host, by IPv4 address or 64 bits of IPv6, or (`None`) all programs of this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Client(Option<IpAddr>);

impl Client {
    /// The programs of this machine.
    pub(crate) const LOCAL: Self = Self(None);

    /// The client whose request has this policy.
    pub(crate) fn of_egress(egress: &EgressPolicy) -> Self {
        Self(egress.requester().map(client_network))
    }

    /// The client of a player that [`player_name`] names.
    pub(crate) fn of_player(player: &str) -> Self {
        let address = player.split(' ').next().unwrap_or_default().parse::<IpAddr>().ok();
        Self(address.filter(|address| !address.to_canonical().is_loopback()).map(client_network))
    }

    /// The client that occurs most often, `preferred` in a tie.
    pub(crate) fn largest(clients: impl Iterator<Item = Self>, preferred: Self) -> Self {
        let mut counts = BTreeMap::new();
        clients.for_each(|client| *counts.entry(client).or_insert(0_usize) += 1);
        let largest = counts.iter().max_by_key(|(client, count)| (**count, **client == preferred));
        largest.map_or(preferred, |(client, _)| *client)
    }
}

/// The name of a player: its address and its User-Agent. Names are stored in many places, so a long User-Agent is
/// replaced by its beginning and a digest that distinguishes it from others.
pub(crate) fn player_name(address: IpAddr, user_agent: &str) -> String {
    if user_agent.len() <= MAX_USER_AGENT {
        return format!("{address} {user_agent}");
    }
    let prefix: String = user_agent.chars().take(MAX_USER_AGENT).collect();
    let digest = HEXLOWER.encode(&Sha256::digest(user_agent));
    format!("{address} {prefix}… (SHA-256 {digest})")
}

/// All memory in use. A lock protects it because playlists are parsed on other threads, which own their reservations.
#[derive(Debug, Default)]
struct Usage(Mutex<BTreeMap<Client, ClientUsage>>);

/// The memory in use by one client.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct ClientUsage {
    /// Memory of base windows, in bytes.
    bases: u64,
    /// Window memory beyond the base windows.
    extras: u64,
    playlists: u64,
    prefetch_index: u64,
}

/// The window memory of one response, returned when this is dropped.
#[derive(Debug)]
pub(crate) struct WindowGrant {
    base_size: u64,
    extra_size: u64,
    client: Client,
    usage: Arc<Usage>,
}

/// Why no window can be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantError {
    /// All memory is in use.
    Exhausted,
    /// All base windows that other hosts than this machine may use are in use.
    RemoteShareExhausted,
}

/// Purposes of memory outside windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Texts of playlists, as received and as rewritten.
    Playlists,
    /// The segments of playlists that players follow.
    PrefetchIndex,
}

/// Memory for a playlist, returned when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    purpose: Purpose,
    client: Client,
    budget: BufferBudget,
}

impl BufferBudget {
    /// A budget of `total` bytes, with at most `per_player` (and half of the total) for one player.
    pub(crate) fn new(total: DataSize, per_player: DataSize) -> Self {
        Self { total: total.bytes(), per_player: per_player.bytes().min(total.bytes() / 2), usage: Arc::default() }
    }

    /// Grants a window for another response of a client whose player already holds windows of `held_size` in total.
    ///
    /// # Errors
    /// Too little memory is left, in total or for other hosts.
    pub(crate) fn grant(&self, client: Client, held_size: DataSize) -> Result<WindowGrant, GrantError> {
        let mut usage = self.usage.lock();
        let (total, others) = (Usage::sum(&usage, |_| true), Usage::sum(&usage, |holder| holder != Client::LOCAL));
        let client_usage = usage.get(&client).copied().unwrap_or_default();
        let base_size = BASE_WINDOW.bytes().min(self.per_player);
        let unused = self.total.saturating_sub(total.total());
        // Base windows that only programs of this machine may use: an eighth of them, in whole windows.
        let local_reserve = (self.total / 2 / base_size.max(1) / 8).saturating_mul(base_size);
        if total.bases + base_size > self.total / 2 || base_size > unused {
            return Err(GrantError::Exhausted);
        }
        if client != Client::LOCAL && others.bases + base_size > (self.total / 2).saturating_sub(local_reserve) {
            return Err(GrantError::RemoteShareExhausted);
        }
        // Half of the total is for base windows, a sixteenth for playlists, and the rest for extras. Another host gets
        // at most half of the extras, and each grant at most half of what is left.
        let total_extras = self.total / 2 - self.total / 16;
        let client_extras = if client == Client::LOCAL {
            total_extras
        } else {
            (total_extras / 2).saturating_sub(client_usage.extras)
        };
        let available_extras = total_extras.saturating_sub(total.extras).min(client_extras) / 2;
        let extra_size = self
            .per_player
            .saturating_sub(base_size + held_size.bytes())
            .min(available_extras)
            .min(unused - base_size);
        let client_usage = usage.entry(client).or_default();
        client_usage.bases += base_size;
        client_usage.extras += extra_size;
        Ok(WindowGrant { base_size, extra_size, client, usage: Arc::clone(&self.usage) })
    }

    /// Reserves memory for a playlist of a client; `None` if too little is left.
    pub(crate) fn reserve(&self, client: Client, purpose: Purpose, bytes: u64) -> Option<Reservation> {
        let mut reservation = Reservation { bytes: 0, purpose, client, budget: self.clone() };
        reservation.grow(bytes).then_some(reservation)
    }

    /// How much memory for a purpose is left for a client. `requested` is the size that the whole reservation would
    /// have.
    fn available(
        &self,
        usage: &BTreeMap<Client, ClientUsage>,
        client: Client,
        purpose: Purpose,
        requested: u64,
    ) -> u64 {
        let limit = match purpose {
            // The last quarter is for small reservations, so that short playlists need not wait for huge ones.
            Purpose::Playlists if requested > SMALL_RESERVATION => self.total / 16 / 4 * 3,
            Purpose::Playlists => self.total / 16,
            Purpose::PrefetchIndex => self.total / 32,
        };
        let total = Usage::sum(usage, |_| true);
        let available =
            limit.saturating_sub(total.of_purpose(purpose)).min(self.total.saturating_sub(total.total()));
        if client == Client::LOCAL || purpose == Purpose::PrefetchIndex {
            return available;
        }
        let remote_total = Usage::sum(usage, |owner| owner != Client::LOCAL).of_purpose(purpose);
        let client_total = usage.get(&client).map_or(0, |client_usage| client_usage.of_purpose(purpose));
        available
            .min((limit / 4 * 3).saturating_sub(remote_total))
            .min((limit / 2).max(SMALL_RESERVATION).saturating_sub(client_total))
    }

    /// The maximum for one player.
    pub(crate) fn max_window(&self) -> DataSize {
        DataSize::from_bytes(self.per_player)
    }

    /// Window memory in use, in total.
    pub(crate) fn granted_total(&self) -> DataSize {
        let total = Usage::sum(&self.usage.lock(), |_| true);
        DataSize::from_bytes(total.bases + total.extras)
    }
}

impl WindowGrant {
    /// The size of the window.
    pub(crate) fn size(&self) -> DataSize {
        DataSize::from_bytes(self.base_size + self.extra_size)
    }
}

impl Drop for WindowGrant {
    fn drop(&mut self) {
        let (base, extra) = (self.base_size, self.extra_size);
        self.usage.update(self.client, |client_usage| {
            client_usage.bases = client_usage.bases.saturating_sub(base);
            client_usage.extras = client_usage.extras.saturating_sub(extra);
        });
    }
}

impl Reservation {
    /// Increases the reservation; returns false if too little is left.
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let mut usage = self.budget.usage.lock();
        let fits = bytes <= self.budget.available(&usage, self.client, self.purpose, self.bytes + bytes);
        if fits {
            self.bytes += bytes;
            *usage.entry(self.client).or_default().of_purpose_mut(self.purpose) += bytes;
        }
        fits
    }

    /// Returns memory beyond this size.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let (returned, purpose) = (self.bytes.saturating_sub(bytes), self.purpose);
        self.bytes -= returned;
        self.budget.usage.update(self.client, |client_usage| {
            let amount = client_usage.of_purpose_mut(purpose);
            *amount = amount.saturating_sub(returned);
        });
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The client that holds the reservation.
    pub(crate) fn client(&self) -> Client {
        self.client
    }

    /// How much the reservation can still grow.
    pub(crate) fn available(&self) -> u64 {
        let usage = self.budget.usage.lock();
        let available = |part| self.budget.available(&usage, self.client, self.purpose, part);
        available(u64::MAX).max(SMALL_RESERVATION.saturating_sub(self.bytes).min(available(0)))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Usage {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Client, ClientUsage>> {
        // No code panics while it holds the lock between two related writes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory in use by all clients that `is_counted` selects.
    fn sum(usage: &BTreeMap<Client, ClientUsage>, is_counted: impl Fn(Client) -> bool) -> ClientUsage {
        usage.iter().filter(|(client, _)| is_counted(**client)).fold(
            ClientUsage::default(),
            |sum, (_, client_usage)| ClientUsage {
                bases: sum.bases + client_usage.bases,
                extras: sum.extras + client_usage.extras,
                playlists: sum.playlists + client_usage.playlists,
                prefetch_index: sum.prefetch_index + client_usage.prefetch_index,
            },
        )
    }

    /// Changes the accounting of a client, and removes a client without memory.
    fn update(&self, client: Client, change: impl FnOnce(&mut ClientUsage)) {
        let mut usage = self.lock();
        let client_usage = usage.entry(client).or_default();
        change(client_usage);
        if *client_usage == ClientUsage::default() {
            usage.remove(&client);
        }
    }
}

impl ClientUsage {
    fn of_purpose(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Playlists => self.playlists,
            Purpose::PrefetchIndex => self.prefetch_index,
        }
    }

    fn of_purpose_mut(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Playlists => &mut self.playlists,
            Purpose::PrefetchIndex => &mut self.prefetch_index,
        }
    }

    fn total(&self) -> u64 {
        self.bases + self.extras + self.playlists + self.prefetch_index
    }
}

/// Our choice: 1 Mbit/s for eight seconds, or 80 Mbit/s × 100 ms. With the default budget of 512 MB, 244 players fit.
const BASE_WINDOW: DataSize = DataSize::from_mib(1);
/// Our choice: the memory for a playlist of some hundred segments, including its rewritten text.
const SMALL_RESERVATION: u64 = 512 * 1024;

/// The length up to which a User-Agent is kept unchanged. Our choice: those of browsers have 150 bytes.
const MAX_USER_AGENT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_players_get_the_most_and_the_two_hundredth_gets_a_base_window() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let grants: Vec<WindowGrant> =
            (0..200).filter_map(|_| memory.grant(Client::LOCAL, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 200);
        assert_eq!(grants[5].size(), DataSize::from_mib(32));
        assert!(grants[199].size() >= BASE_WINDOW);
        assert!(memory.granted_total() <= DataSize::from_mib(512));
        drop(grants);
        assert_eq!(memory.granted_total(), DataSize::ZERO);
    }

    #[test]
    fn a_second_request_of_a_player_gets_no_extra_memory() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let first = memory.grant(Client::LOCAL, DataSize::ZERO).unwrap();
        assert_eq!(memory.grant(Client::LOCAL, first.size()).unwrap().size(), BASE_WINDOW);
    }

    #[test]
    fn a_request_without_a_base_window_is_refused() {
        let memory = BufferBudget::new(DataSize::from_mib(4), DataSize::from_mib(32));
        let grants: Vec<WindowGrant> =
            (0..10).filter_map(|_| memory.grant(Client::LOCAL, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 2);
        assert!(memory.granted_total() <= DataSize::from_mib(4));
    }

    #[test]
    fn playlists_have_a_fixed_share_for_any_number_of_players() {
        let memory = BufferBudget::new(DataSize::from_mib(64), DataSize::from_mib(32));
        // Playlists may use 4 MiB, large ones 3 MiB of it, and the index for prefetching 2 MiB.
        let mut list = memory.reserve(Client::LOCAL, Purpose::Playlists, 3 << 20).unwrap();
        assert!(
            !list.grow(1) && memory.reserve(Client::LOCAL, Purpose::Playlists, SMALL_RESERVATION + 1).is_none()
        );
        let small = [
            memory.reserve(Client::LOCAL, Purpose::Playlists, SMALL_RESERVATION).unwrap(),
            memory.reserve(Client::LOCAL, Purpose::Playlists, SMALL_RESERVATION).unwrap(),
        ];
        assert!(memory.reserve(Client::LOCAL, Purpose::Playlists, 1).is_none());
        let held = memory.reserve(Client::LOCAL, Purpose::PrefetchIndex, 2 << 20).unwrap();
        assert!(memory.reserve(Client::LOCAL, Purpose::PrefetchIndex, 1).is_none());
        list.shrink_to(1 << 20);
        assert_eq!((list.bytes(), list.available()), (1 << 20, 1 << 20));
        drop((list, small, held));
        let grants: Vec<WindowGrant> =
            std::iter::from_fn(|| memory.grant(Client::LOCAL, DataSize::ZERO).ok()).collect();
        assert_eq!(
            (grants.len(), memory.available(&memory.usage.lock(), Client::LOCAL, Purpose::Playlists, 0)),
            (32, 4 << 20)
        );
        assert!(memory.granted_total() + DataSize::from_mib(4) <= DataSize::from_mib(64));
    }

    #[test]
    fn a_player_with_a_long_user_agent_has_a_short_unique_name() {
        let address = [192, 168, 1, 7].into();
        let long = |end: &str| player_name(address, &format!("{}{end}", "x".repeat(7500)));
        assert_eq!(player_name(address, "mpv"), "192.168.1.7 mpv");
        assert!(long("1") != long("2") && long("1") == long("1") && long("1").len() < 400);
        let copy = long("1");
        let copy = copy.split_once(' ').unwrap().1;
        assert_ne!(player_name(address, copy), long("1"), "no other User-Agent has its name");
        assert_eq!(Client::of_player(&long("1")), remote_client("192.168.1.7:5"));
    }

    fn remote_client(address: &str) -> Client {
        Client::of_egress(&EgressPolicy::for_peer(address.parse().unwrap()))
    }

    #[test]
    fn other_hosts_leave_base_windows_to_this_machine_and_extras_to_each_other() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two] = ["192.0.2.1:5", "192.0.2.2:5"].map(remote_client);
        let greedy: Vec<WindowGrant> = (0..250).filter_map(|_| memory.grant(one, DataSize::ZERO).ok()).collect();
        // 256 base windows, less the eighth for this machine.
        assert_eq!(greedy.len(), 224);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap_err(), GrantError::RemoteShareExhausted);
        let extras: u64 = greedy.iter().map(|grant| grant.extra_size).sum();
        // Half of the 224 MiB for larger windows.
        assert!(extras <= DataSize::from_mib(112).bytes(), "{extras}");
        let grants: Vec<WindowGrant> =
            (0..50).filter_map(|_| memory.grant(Client::LOCAL, DataSize::ZERO).ok()).collect();
        assert_eq!((grants.len(), grants[0].size()), (32, DataSize::from_mib(32)));
        drop(greedy);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap().size(), DataSize::from_mib(32));
    }

    #[test]
    fn other_hosts_leave_playlist_memory_to_this_machine_and_to_each_other() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two, three] = ["192.0.2.1:5", "192.0.2.2:5", "192.0.2.3:5"].map(remote_client);
        // Playlists may use 32 MiB, 64 small reservations: one other host half of them, all together three quarters.
        let small = |client| memory.reserve(client, Purpose::Playlists, SMALL_RESERVATION);
        let greedy: Vec<Reservation> = std::iter::from_fn(|| small(one)).collect();
        assert_eq!(greedy.len(), 32);
        let second: Vec<Reservation> = std::iter::from_fn(|| small(two)).collect();
        assert_eq!((second.len(), small(three).is_some()), (16, false));
        assert_eq!(std::iter::from_fn(|| small(Client::LOCAL)).take(99).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn sixty_four_bits_of_ipv6_are_one_client() {
        assert_eq!(remote_client("[2001:db8:1:2::7]:5"), remote_client("[2001:db8:1:2:ffff::1]:6"));
        assert_ne!(remote_client("[2001:db8:1:2::7]:5"), remote_client("[2001:db8:1:3::7]:5"));
        assert_ne!(remote_client("192.0.2.1:5"), remote_client("192.0.2.2:5"));
        assert_eq!(remote_client("[::ffff:192.0.2.1]:5"), remote_client("192.0.2.1:5"));
        assert_eq!(remote_client("127.0.0.1:5"), Client::LOCAL);
    }
}
