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
//!    base is left, [`Loans`](super::loans::Loans) revokes one of the client that has the most.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::HEXLOWER;
use marline_core::units::DataSize;
use marline_net::admission::network;
use marline_net::reach::Right;
use sha2::{Digest as _, Sha256};

/// The memory of all players.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    most: u64,
    one: u64,
    used: Arc<Used>,
}

/// Whom memory is for: an IPv4 address or 64 bits of IPv6 of another host; none: the programs of this machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Client(Option<IpAddr>);

impl Client {
    /// The programs of this machine.
    pub(super) const HERE: Self = Self(None);

    /// The client that a request with this right is of.
    pub(super) fn of(right: &Right) -> Self {
        Self(right.host().map(network))
    }

    /// The client of a player, which [`player`] names.
    pub(super) fn of_player(player: &str) -> Self {
        let address = player.split(' ').next().unwrap_or_default().parse::<IpAddr>().ok();
        Self(address.filter(|address| !address.to_canonical().is_loopback()).map(network))
    }

    /// Which client has the most of what these have; of several `own`, if it is one of them.
    pub(super) fn with_most(clients: impl Iterator<Item = Self>, own: Self) -> Self {
        let mut counts = BTreeMap::new();
        clients.for_each(|client| *counts.entry(client).or_insert(0_usize) += 1);
        let most = counts.iter().max_by_key(|(client, count)| (**count, **client == own));
        most.map_or(own, |(client, _)| *client)
    }
}

/// The name of a player: its address and its User-Agent. Names are kept in many places, so of a long User-Agent there is only
/// the beginning, and a digest that no other one has.
pub(super) fn player(address: IpAddr, agent: &str) -> String {
    if agent.len() <= LONGEST_AGENT {
        return format!("{address} {agent}");
    }
    let begins: String = agent.chars().take(LONGEST_AGENT).collect();
    let digest = HEXLOWER.encode(&Sha256::digest(agent));
    format!("{address} {begins}… (SHA-256 {digest})")
}

/// What is granted. Behind a lock because lists are read on threads of their own, and take their part with them.
#[derive(Debug, Default)]
struct Used(Mutex<BTreeMap<Client, Amounts>>);

/// What is granted to one client.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Amounts {
    bases: u64,
    /// Beyond the bases.
    extras: u64,
    lists: u64,
    remembered: u64,
}

/// One player's part; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    base: u64,
    extra: u64,
    client: Client,
    used: Arc<Used>,
}

/// Why there is no part for one more answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lacks {
    /// All memory is taken.
    Memory,
    /// What other hosts may have together is taken.
    PartOfOthers,
}

/// What memory is for that no player's window takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Texts of lists, as they came and as they are sent.
    Lists,
    /// The segments of lists that players follow.
    Remembered,
}

/// Memory for lists; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    bytes: u64,
    what: Use,
    client: Client,
    memory: Memory,
}

impl Memory {
    /// So much in all, and for one player.
    pub(super) fn new(all: DataSize, one: DataSize) -> Self {
        Self { most: all.bytes(), one: one.bytes().min(all.bytes() / 2), used: Arc::default() }
    }

    /// A part for one more answer of a client, whose player has `has` already.
    ///
    /// # Errors
    /// There is nothing left.
    pub(super) fn grant(&self, client: Client, has: DataSize) -> Result<Grant, Lacks> {
        let mut used = self.used.lock();
        let (all, others) = (Used::sum(&used, |_| true), Used::sum(&used, |of| of != Client::HERE));
        let own = used.get(&client).copied().unwrap_or_default();
        let base = BASE.bytes().min(self.one);
        let left = self.most.saturating_sub(all.total());
        let reserved = (self.most / 2 / base.max(1) / 8).saturating_mul(base);
        if all.bases + base > self.most / 2 || base > left {
            return Err(Lacks::Memory);
        }
        if client != Client::HERE && others.bases + base > (self.most / 2).saturating_sub(reserved) {
            return Err(Lacks::PartOfOthers);
        }
        let extras = self.most / 2 - self.most / 16;
        let own_part = if client == Client::HERE { extras } else { (extras / 2).saturating_sub(own.extras) };
        let for_extras = extras.saturating_sub(all.extras).min(own_part) / 2;
        let extra = self.one.saturating_sub(base + has.bytes()).min(for_extras).min(left - base);
        let own = used.entry(client).or_default();
        own.bases += base;
        own.extras += extra;
        Ok(Grant { base, extra, client, used: Arc::clone(&self.used) })
    }

    /// Memory for lists of a client; none: there is not so much left.
    pub(super) fn reserve(&self, client: Client, what: Use, bytes: u64) -> Option<Reserved> {
        let mut reserved = Reserved { bytes: 0, what, client, memory: self.clone() };
        reserved.grow(bytes).then_some(reserved)
    }

    /// What is left of this for a client, for a part of so many bytes in all.
    fn free(&self, used: &BTreeMap<Client, Amounts>, client: Client, what: Use, part: u64) -> u64 {
        let most = match what {
            // The last quarter is for small parts: a playlist of a few segments must not wait for huge ones.
            Use::Lists if part > SMALL => self.most / 16 / 4 * 3,
            Use::Lists => self.most / 16,
            Use::Remembered => self.most / 32,
        };
        let all = Used::sum(used, |_| true);
        let free = most.saturating_sub(all.of(what)).min(self.most.saturating_sub(all.total()));
        if client == Client::HERE || what == Use::Remembered {
            return free;
        }
        let others = Used::sum(used, |of| of != Client::HERE).of(what);
        let own = used.get(&client).map_or(0, |own| own.of(what));
        free.min((most / 4 * 3).saturating_sub(others)).min((most / 2).max(SMALL).saturating_sub(own))
    }

    /// The most for one player.
    pub(super) fn most(&self) -> DataSize {
        DataSize::from_bytes(self.one)
    }

    /// Granted to players now, in all.
    pub(super) fn granted(&self) -> DataSize {
        let all = Used::sum(&self.used.lock(), |_| true);
        DataSize::from_bytes(all.bases + all.extras)
    }
}

impl Grant {
    /// How far its holder may read ahead.
    pub(super) fn size(&self) -> DataSize {
        DataSize::from_bytes(self.base + self.extra)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let (base, extra) = (self.base, self.extra);
        self.used.change(self.client, |own| {
            own.bases = own.bases.saturating_sub(base);
            own.extras = own.extras.saturating_sub(extra);
        });
    }
}

impl Reserved {
    /// Takes more; whether there was so much left.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let mut used = self.memory.used.lock();
        let is_left = bytes <= self.memory.free(&used, self.client, self.what, self.bytes + bytes);
        if is_left {
            self.bytes += bytes;
            *used.entry(self.client).or_default().of_mut(self.what) += bytes;
        }
        is_left
    }

    /// Gives back all but so much.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let (back, what) = (self.bytes.saturating_sub(bytes), self.what);
        self.bytes -= back;
        self.memory.used.change(self.client, |own| {
            let amount = own.of_mut(what);
            *amount = amount.saturating_sub(back);
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
    pub(super) fn free(&self) -> u64 {
        let used = self.memory.used.lock();
        let free = |part| self.memory.free(&used, self.client, self.what, part);
        free(u64::MAX).max(SMALL.saturating_sub(self.bytes).min(free(0)))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Used {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Client, Amounts>> {
        // No holder of the lock can panic between two writes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all clients have for which `counts` is true.
    fn sum(used: &BTreeMap<Client, Amounts>, counts: impl Fn(Client) -> bool) -> Amounts {
        used.iter().filter(|(client, _)| counts(**client)).fold(Amounts::default(), |sum, (_, own)| Amounts {
            bases: sum.bases + own.bases,
            extras: sum.extras + own.extras,
            lists: sum.lists + own.lists,
            remembered: sum.remembered + own.remembered,
        })
    }

    /// Changes what a client has, and forgets a client that has nothing.
    fn change(&self, client: Client, change: impl FnOnce(&mut Amounts)) {
        let mut used = self.lock();
        let own = used.entry(client).or_default();
        change(own);
        if *own == Amounts::default() {
            used.remove(&client);
        }
    }
}

impl Amounts {
    fn of(&self, what: Use) -> u64 {
        match what {
            Use::Lists => self.lists,
            Use::Remembered => self.remembered,
        }
    }

    fn of_mut(&mut self, what: Use) -> &mut u64 {
        match what {
            Use::Lists => &mut self.lists,
            Use::Remembered => &mut self.remembered,
        }
    }

    fn total(&self) -> u64 {
        self.bases + self.extras + self.lists + self.remembered
    }
}

/// chosen: 1 Mbit/s for eight seconds, or 80 Mbit/s × 100 ms; 256 players fit in the default bound.
const BASE: DataSize = DataSize::from_mib(1);
/// chosen: what a playlist of some hundred segments takes up together with what is made of it.
const SMALL: u64 = 512 * 1024;

/// Of a User-Agent so much is kept as it is. chosen: those of browsers have 150 bytes.
const LONGEST_AGENT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_players_get_the_most_and_the_two_hundredth_still_gets_some() {
        let memory = Memory::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let grants: Vec<Grant> = (0..200).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 200);
        assert_eq!(grants[5].size(), DataSize::from_mib(32));
        assert!(grants[199].size() >= BASE);
        assert!(memory.granted() <= DataSize::from_mib(512));
        drop(grants);
        assert_eq!(memory.granted(), DataSize::ZERO);
    }

    #[test]
    fn one_player_gets_no_more_by_asking_twice() {
        let memory = Memory::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let first = memory.grant(Client::HERE, DataSize::ZERO).unwrap();
        assert_eq!(memory.grant(Client::HERE, first.size()).unwrap().size(), BASE);
    }

    #[test]
    fn who_would_find_nothing_is_turned_away() {
        let memory = Memory::new(DataSize::from_mib(4), DataSize::from_mib(32));
        let grants: Vec<Grant> = (0..10).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!(grants.len(), 2);
        assert!(memory.granted() <= DataSize::from_mib(4));
    }

    #[test]
    fn lists_have_their_part_and_no_more_however_many_players_there_are() {
        let memory = Memory::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let mut list = memory.reserve(Client::HERE, Use::Lists, 3 << 20).unwrap();
        assert!(!list.grow(1) && memory.reserve(Client::HERE, Use::Lists, SMALL + 1).is_none());
        let small = [
            memory.reserve(Client::HERE, Use::Lists, SMALL).unwrap(),
            memory.reserve(Client::HERE, Use::Lists, SMALL).unwrap(),
        ];
        assert!(memory.reserve(Client::HERE, Use::Lists, 1).is_none());
        let kept = memory.reserve(Client::HERE, Use::Remembered, 2 << 20).unwrap();
        assert!(memory.reserve(Client::HERE, Use::Remembered, 1).is_none());
        list.shrink_to(1 << 20);
        assert_eq!((list.bytes(), list.free()), (1 << 20, 1 << 20));
        drop((list, small, kept));
        let grants: Vec<Grant> = std::iter::from_fn(|| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!((grants.len(), memory.free(&memory.used.lock(), Client::HERE, Use::Lists, 0)), (32, 4 << 20));
        assert!(memory.granted() + DataSize::from_mib(4) <= DataSize::from_mib(64));
    }

    #[test]
    fn a_player_with_a_long_user_agent_has_a_short_name_of_its_own() {
        let address = [192, 168, 1, 7].into();
        let long = |end: &str| player(address, &format!("{}{end}", "x".repeat(7500)));
        assert_eq!(player(address, "mpv"), "192.168.1.7 mpv");
        assert!(long("1") != long("2") && long("1") == long("1") && long("1").len() < 400);
        let copy = long("1");
        let copy = copy.split_once(' ').unwrap().1;
        assert_ne!(player(address, copy), long("1"), "no other User-Agent has its name");
        assert_eq!(Client::of_player(&long("1")), other("192.168.1.7:5"));
    }

    fn other(address: &str) -> Client {
        Client::of(&Right::of_peer(address.parse().unwrap()))
    }

    #[test]
    fn other_hosts_leave_windows_to_this_machine_and_larger_ones_to_each_other() {
        let memory = Memory::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two] = ["192.0.2.1:5", "192.0.2.2:5"].map(other);
        let greedy: Vec<Grant> = (0..250).filter_map(|_| memory.grant(one, DataSize::ZERO).ok()).collect();
        assert_eq!(greedy.len(), 224);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap_err(), Lacks::PartOfOthers);
        let extras: u64 = greedy.iter().map(|grant| grant.extra).sum();
        assert!(extras <= DataSize::from_mib(112).bytes(), "{extras}");
        let here: Vec<Grant> = (0..50).filter_map(|_| memory.grant(Client::HERE, DataSize::ZERO).ok()).collect();
        assert_eq!((here.len(), here[0].size()), (32, DataSize::from_mib(32)));
        drop(greedy);
        assert_eq!(memory.grant(two, DataSize::ZERO).unwrap().size(), DataSize::from_mib(32));
    }

    #[test]
    fn other_hosts_leave_memory_for_lists_to_this_machine_and_to_each_other() {
        let memory = Memory::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let [one, two, three] = ["192.0.2.1:5", "192.0.2.2:5", "192.0.2.3:5"].map(other);
        let small = |client| memory.reserve(client, Use::Lists, SMALL);
        let greedy: Vec<Reserved> = std::iter::from_fn(|| small(one)).collect();
        assert_eq!(greedy.len(), 32);
        let second: Vec<Reserved> = std::iter::from_fn(|| small(two)).collect();
        assert_eq!((second.len(), small(three).is_some()), (16, false));
        assert_eq!(std::iter::from_fn(|| small(Client::HERE)).take(99).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn sixty_four_bits_of_ipv6_are_one_client() {
        assert_eq!(other("[2001:db8:1:2::7]:5"), other("[2001:db8:1:2:ffff::1]:6"));
        assert_ne!(other("[2001:db8:1:2::7]:5"), other("[2001:db8:1:3::7]:5"));
        assert_ne!(other("192.0.2.1:5"), other("192.0.2.2:5"));
        assert_eq!(other("[::ffff:192.0.2.1]:5"), other("192.0.2.1:5"));
        assert_eq!(other("127.0.0.1:5"), Client::HERE);
    }
}
