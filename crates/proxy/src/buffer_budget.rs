//! How much memory the players may use, and who gets how much of it.
//!
//! 1. Every answer that is let in gets a base of [`BASE`]; one that would find less is turned away.
//! 2. Nearly half of the bound is for larger windows: a newcomer gets half of what is left of it, up to the most for one
//!    player. So the first ones play far ahead and the two hundredth still plays.
//! 3. A grant is fixed for as long as it is held: bytes that are held cannot be taken back.
//! 4. Playlists and manifests are charged as well: a sixteenth of the bound while they are fetched, read and sent
//!    ([`Use::Lists`]), and a thirty-second for as long as their segments are remembered ([`Use::Remembered`]). Players leave
//!    a sixteenth for both.
//! 5. Memory is accounted for each [`Client`]. Other hosts together leave an eighth of the bases and a quarter of the lists'
//!    part to programs of this machine; one of them has at most half of the larger windows and of the lists' part. Where no
//!    base is left, [`Loans`](super::revocable_windows::Loans) revokes one of the client that has the most.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::HEXLOWER;
use marline_core::units::DataSize;
use marline_net::admission::client_network;
use marline_net::egress::EgressPolicy;
use sha2::{Digest as _, Sha256};

/// The memory of all players.
#[derive(Clone, Debug)]
pub(super) struct BufferBudget {
    total: u64,
    per_player: u64,
    usage: Arc<Usage>,
}

/// Whom memory is for: an IPv4 address or 64 bits of IPv6 of another host; none: the programs of this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Client(Option<IpAddr>);

impl Client {
    /// The programs of this machine.
    pub(super) const HERE: Self = Self(None);

    /// The client that a request with this right is of.
    pub(super) fn of_right(right: &EgressPolicy) -> Self {
        Self(right.requester().map(client_network))
    }

    /// The client of a player, which [`player`] names.
    pub(super) fn of_player(player: &str) -> Self {
        let address = player.split(' ').next().unwrap_or_default().parse::<IpAddr>().ok();
        Self(address.filter(|address| !address.to_canonical().is_loopback()).map(client_network))
    }

    /// Which client has the most of what these have; of several `own`, if it is one of them.
    pub(super) fn largest(clients: impl Iterator<Item = Self>, preferred: Self) -> Self {
        let mut counts = BTreeMap::new();
        clients.for_each(|client| *counts.entry(client).or_insert(0_usize) += 1);
        let largest = counts.iter().max_by_key(|(client, count)| (**count, **client == preferred));
        largest.map_or(preferred, |(client, _)| *client)
    }
}

/// The name of a player: its address and its User-Agent. Names are kept in many places, so of a long User-Agent there is only
/// the beginning, and a digest that no other one has.
pub(super) fn player_name(address: IpAddr, user_agent: &str) -> String {
    if user_agent.len() <= MAX_USER_AGENT {
        return format!("{address} {user_agent}");
    }
    let prefix: String = user_agent.chars().take(MAX_USER_AGENT).collect();
    let digest = HEXLOWER.encode(&Sha256::digest(user_agent));
    format!("{address} {prefix}… (SHA-256 {digest})")
}

/// What is granted. Behind a lock because lists are read on threads of their own, and take their part with them.
#[derive(Debug, Default)]
struct Usage(Mutex<BTreeMap<Client, ClientUsage>>);

/// What is granted to one client.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct ClientUsage {
    bases: u64,
    /// Beyond the bases.
    extras: u64,
    playlists: u64,
    prefetch_index: u64,
}

/// One player's part; given back when it is dropped.
#[derive(Debug)]
pub(super) struct WindowGrant {
    base_size: u64,
    extra_size: u64,
    client: Client,
    usage: Arc<Usage>,
}

/// Why there is no part for one more answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GrantError {
    /// All memory is taken.
    Exhausted,
    /// What other hosts may have together is taken.
    RemoteShareExhausted,
}

/// What memory is for that no player's window takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Texts of lists, as they came and as they are sent.
    Playlists,
    /// The segments of lists that players follow.
    PrefetchIndex,
}

/// Memory for lists; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    bytes: u64,
    purpose: Purpose,
    client: Client,
    budget: BufferBudget,
}

impl BufferBudget {
    /// So much in all, and for one player.
    pub(super) fn new(total: DataSize, per_player: DataSize) -> Self {
        Self { total: total.bytes(), per_player: per_player.bytes().min(total.bytes() / 2), usage: Arc::default() }
    }

    /// A part for one more answer of a client, whose player has `has` already.
    ///
    /// # Errors
    /// There is nothing left.
    pub(super) fn grant(&self, client: Client, held: DataSize) -> Result<WindowGrant, GrantError> {
        let mut usage = self.usage.lock();
        let (total, others) = (Usage::sum(&usage, |_| true), Usage::sum(&usage, |holder| holder != Client::HERE));
        let client_usage = usage.get(&client).copied().unwrap_or_default();
        let base_size = BASE_WINDOW.bytes().min(self.per_player);
        let unused = self.total.saturating_sub(total.total());
        let local_reserve = (self.total / 2 / base_size.max(1) / 8).saturating_mul(base_size);
        if total.bases + base_size > self.total / 2 || base_size > unused {
            return Err(GrantError::Exhausted);
        }
        if client != Client::HERE && others.bases + base_size > (self.total / 2).saturating_sub(local_reserve) {
            return Err(GrantError::RemoteShareExhausted);
        }
        let total_extras = self.total / 2 - self.total / 16;
        let client_extras = if client == Client::HERE {
            total_extras
        } else {
            (total_extras / 2).saturating_sub(client_usage.extras)
        };
        let available_extras = total_extras.saturating_sub(total.extras).min(client_extras) / 2;
        let extra_size =
            self.per_player.saturating_sub(base_size + held.bytes()).min(available_extras).min(unused - base_size);
        let client_usage = usage.entry(client).or_default();
        client_usage.bases += base_size;
        client_usage.extras += extra_size;
        Ok(WindowGrant { base_size, extra_size, client, usage: Arc::clone(&self.usage) })
    }

    /// Memory for lists of a client; none: there is not so much left.
    pub(super) fn reserve(&self, client: Client, purpose: Purpose, bytes: u64) -> Option<Reservation> {
        let mut reservation = Reservation { bytes: 0, purpose, client, budget: self.clone() };
        reservation.grow(bytes).then_some(reservation)
    }

    /// What is left of this for a client, for a part of so many bytes in all.
    fn available(
        &self,
        usage: &BTreeMap<Client, ClientUsage>,
        client: Client,
        purpose: Purpose,
        requested: u64,
    ) -> u64 {
        let limit = match purpose {
            // The last quarter is for small parts: a playlist of a few segments must not wait for huge ones.
            Purpose::Playlists if requested > SMALL_RESERVATION => self.total / 16 / 4 * 3,
            Purpose::Playlists => self.total / 16,
            Purpose::PrefetchIndex => self.total / 32,
        };
        let total = Usage::sum(usage, |_| true);
        let available =
            limit.saturating_sub(total.of_purpose(purpose)).min(self.total.saturating_sub(total.total()));
        if client == Client::HERE || purpose == Purpose::PrefetchIndex {
            return available;
        }
        let remote_total = Usage::sum(usage, |of| of != Client::HERE).of_purpose(purpose);
        let client_total = usage.get(&client).map_or(0, |own| own.of_purpose(purpose));
        available
            .min((limit / 4 * 3).saturating_sub(remote_total))
            .min((limit / 2).max(SMALL_RESERVATION).saturating_sub(client_total))
    }

    /// The most for one player.
    pub(super) fn max_window(&self) -> DataSize {
        DataSize::from_bytes(self.per_player)
    }

    /// Granted to players now, in all.
    pub(super) fn granted_total(&self) -> DataSize {
        let total = Usage::sum(&self.usage.lock(), |_| true);
        DataSize::from_bytes(total.bases + total.extras)
    }
}

impl WindowGrant {
    /// How far its holder may read ahead.
    pub(super) fn size(&self) -> DataSize {
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
    /// Takes more; whether there was so much left.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let mut usage = self.budget.usage.lock();
        let fits = bytes <= self.budget.available(&usage, self.client, self.purpose, self.bytes + bytes);
        if fits {
            self.bytes += bytes;
            *usage.entry(self.client).or_default().of_purpose_mut(self.purpose) += bytes;
        }
        fits
    }

    /// Gives back all but so much.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let (returned, purpose) = (self.bytes.saturating_sub(bytes), self.purpose);
        self.bytes -= returned;
        self.budget.usage.update(self.client, |client_usage| {
            let amount = client_usage.of_purpose_mut(purpose);
            *amount = amount.saturating_sub(returned);
        });
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whom it is for.
    pub(super) fn client(&self) -> Client {
        self.client
    }

    /// How much more there may be.
    pub(super) fn available(&self) -> u64 {
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
        // No holder of the lock can panic between two writes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all clients have for which `counts` is true.
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

    /// Changes what a client has, and forgets a client that has nothing.
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

/// chosen: 1 Mbit/s for eight seconds, or 80 Mbit/s × 100 ms; 256 players fit in the default bound.
const BASE_WINDOW: DataSize = DataSize::from_mib(1);
/// chosen: what a playlist of some hundred segments takes up together with what is made of it.
const SMALL_RESERVATION: u64 = 512 * 1024;

/// Of a User-Agent so much is kept as it is. chosen: those of browsers have 150 bytes.
const MAX_USER_AGENT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_players_get_the_most_and_the_two_hundredth_still_gets_some() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let grants: Vec<WindowGrant> =
            (0..200).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 200);
        assert_eq!(grants[5].size(), DataSize::from_mib(32));
        assert!(grants[199].size() >= BASE_WINDOW);
        assert!(memory.granted_total() <= DataSize::from_mib(512));
        drop(grants);
        assert_eq!(memory.granted_total(), DataSize::ZERO);
    }

    #[test]
    fn one_player_gets_no_more_by_asking_twice() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let first = memory.grant(Client::HERE, DataSize::ZERO).unwrap();
        assert_eq!(memory.grant(Client::HERE, first.size()).unwrap().size(), BASE_WINDOW);
    }

    #[test]
    fn who_would_find_nothing_is_turned_away() {
        let memory = BufferBudget::new(DataSize::from_mib(4), DataSize::from_mib(32));
        let grants: Vec<WindowGrant> =
            (0..10).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 2);
        assert!(memory.granted_total() <= DataSize::from_mib(4));
    }

    #[test]
    fn lists_have_their_part_and_no_more_however_many_players_there_are() {
        let memory = BufferBudget::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let mut list = memory.reserve(Client::HERE, Purpose::Playlists, 3 << 20).unwrap();
        assert!(!list.grow(1) && memory.reserve(Client::HERE, Purpose::Playlists, SMALL_RESERVATION + 1).is_none());
        let small = [
            memory.reserve(Client::HERE, Purpose::Playlists, SMALL_RESERVATION).unwrap(),
            memory.reserve(Client::HERE, Purpose::Playlists, SMALL_RESERVATION).unwrap(),
        ];
        assert!(memory.reserve(Client::HERE, Purpose::Playlists, 1).is_none());
        let kept = memory.reserve(Client::HERE, Purpose::PrefetchIndex, 2 << 20).unwrap();
        assert!(memory.reserve(Client::HERE, Purpose::PrefetchIndex, 1).is_none());
        list.shrink_to(1 << 20);
        assert_eq!((list.bytes(), list.available()), (1 << 20, 1 << 20));
        drop((list, small, kept));
        let grants: Vec<WindowGrant> =
            std::iter::from_fn(|| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!(
            (grants.len(), memory.available(&memory.usage.lock(), Client::HERE, Purpose::Playlists, 0)),
            (32, 4 << 20)
        );
        assert!(memory.granted_total() + DataSize::from_mib(4) <= DataSize::from_mib(64));
    }

    #[test]
    fn a_player_with_a_long_user_agent_has_a_short_name_of_its_own() {
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
        Client::of_right(&EgressPolicy::for_peer(address.parse().unwrap()))
    }

    #[test]
    fn other_hosts_leave_windows_to_this_machine_and_larger_ones_to_each_other() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two] = ["192.0.2.1:5", "192.0.2.2:5"].map(remote_client);
        let greedy: Vec<WindowGrant> = (0..250).filter_map(|_| memory.grant(one, DataSize::ZERO).ok()).collect();
        assert_eq!(greedy.len(), 224);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap_err(), GrantError::RemoteShareExhausted);
        let extras: u64 = greedy.iter().map(|grant| grant.extra_size).sum();
        assert!(extras <= DataSize::from_mib(112).bytes(), "{extras}");
        let here: Vec<WindowGrant> =
            (0..50).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!((here.len(), here[0].size()), (32, DataSize::from_mib(32)));
        drop(greedy);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap().size(), DataSize::from_mib(32));
    }

    #[test]
    fn other_hosts_leave_memory_for_lists_to_this_machine_and_to_each_other() {
        let memory = BufferBudget::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two, three] = ["192.0.2.1:5", "192.0.2.2:5", "192.0.2.3:5"].map(remote_client);
        let small = |client| memory.reserve(client, Purpose::Playlists, SMALL_RESERVATION);
        let greedy: Vec<Reservation> = std::iter::from_fn(|| small(one)).collect();
        assert_eq!(greedy.len(), 32);
        let second: Vec<Reservation> = std::iter::from_fn(|| small(two)).collect();
        assert_eq!((second.len(), small(three).is_some()), (16, false));
        assert_eq!(std::iter::from_fn(|| small(Client::HERE)).take(99).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn sixty_four_bits_of_ipv6_are_one_client() {
        assert_eq!(remote_client("[2001:db8:1:2::7]:5"), remote_client("[2001:db8:1:2:ffff::1]:6"));
        assert_ne!(remote_client("[2001:db8:1:2::7]:5"), remote_client("[2001:db8:1:3::7]:5"));
        assert_ne!(remote_client("192.0.2.1:5"), remote_client("192.0.2.2:5"));
        assert_eq!(remote_client("[::ffff:192.0.2.1]:5"), remote_client("192.0.2.1:5"));
        assert_eq!(remote_client("127.0.0.1:5"), Client::HERE);
    }
}
