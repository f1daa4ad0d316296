//! How much memory the players may use, and who gets how much of it.
//!
//! 1. Every answer that is let in gets a base of [`BASE`]; one that would find less is turned away.
//! 2. Nearly half of the bound is for larger windows: a newcomer gets half of what is left of it, up to the most for one
//!    player. So the first ones play far ahead and the two hundredth still plays.
//! 3. A grant is fixed for as long as it is held: bytes that are held cannot be taken back.
//! 4. Playlists and manifests are charged as well: a sixteenth of the bound while they are fetched, read and sent
//!    ([`Use::Lists`]), and a thirty-second for as long as their segments are remembered ([`Use::Remembered`]). Players leave
//!    a sixteenth for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use marline_core::units::DataSize;

/// The memory of all players.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    most: u64,
    one: u64,
    used: Arc<Used>,
}

/// What is granted. Atomic because lists are read on threads of their own, and take their part with them.
#[derive(Debug, Default)]
struct Used {
    bases: AtomicU64,
    /// Beyond the bases.
    extras: AtomicU64,
    lists: AtomicU64,
    remembered: AtomicU64,
}

/// One player's part; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    base: u64,
    extra: u64,
    used: Arc<Used>,
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
    memory: Memory,
}

impl Memory {
    /// So much in all, and for one player.
    pub(super) fn new(all: DataSize, one: DataSize) -> Self {
        Self { most: all.bytes(), one: one.bytes().min(all.bytes() / 2), used: Arc::default() }
    }

    /// A part for one more, whose player has `has` already; none: there is nothing left.
    pub(super) fn grant(&self, has: DataSize) -> Option<Grant> {
        let (bases, extras) = (load(&self.used.bases), load(&self.used.extras));
        let base = BASE.bytes().min(self.one);
        let left = self.most.saturating_sub(self.all());
        if bases + base > self.most / 2 || base > left {
            return None;
        }
        let for_extras = (self.most / 2 - self.most / 16).saturating_sub(extras) / 2;
        let extra = self.one.saturating_sub(base + has.bytes()).min(for_extras).min(left - base);
        self.used.bases.fetch_add(base, Ordering::Relaxed);
        self.used.extras.fetch_add(extra, Ordering::Relaxed);
        Some(Grant { base, extra, used: Arc::clone(&self.used) })
    }

    /// Memory for lists; none: there is not so much left.
    pub(super) fn reserve(&self, what: Use, bytes: u64) -> Option<Reserved> {
        let mut reserved = Reserved { bytes: 0, what, memory: self.clone() };
        reserved.grow(bytes).then_some(reserved)
    }

    /// What is left for this, for a part of so many bytes in all.
    fn free(&self, what: Use, part: u64) -> u64 {
        let most = match what {
            // The last quarter is for small parts: a playlist of a few segments must not wait for huge ones.
            Use::Lists if part > SMALL => self.most / 16 / 4 * 3,
            Use::Lists => self.most / 16,
            Use::Remembered => self.most / 32,
        };
        most.saturating_sub(load(self.used.of(what))).min(self.most.saturating_sub(self.all()))
    }

    /// The most for one player.
    pub(super) fn most(&self) -> DataSize {
        DataSize::from_bytes(self.one)
    }

    /// Granted to players now, in all.
    pub(super) fn granted(&self) -> DataSize {
        DataSize::from_bytes(load(&self.used.bases) + load(&self.used.extras))
    }

    fn all(&self) -> u64 {
        self.granted().bytes() + load(&self.used.lists) + load(&self.used.remembered)
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
        self.used.bases.fetch_sub(self.base, Ordering::Relaxed);
        self.used.extras.fetch_sub(self.extra, Ordering::Relaxed);
    }
}

impl Reserved {
    /// Takes more; whether there was so much left.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let is_left = bytes <= self.memory.free(self.what, self.bytes + bytes);
        if is_left {
            self.bytes += bytes;
            self.memory.used.of(self.what).fetch_add(bytes, Ordering::Relaxed);
        }
        is_left
    }

    /// Gives back all but so much.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let back = self.bytes.saturating_sub(bytes);
        self.bytes -= back;
        self.memory.used.of(self.what).fetch_sub(back, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much more there may be.
    pub(super) fn free(&self) -> u64 {
        self.memory
            .free(self.what, u64::MAX)
            .max(SMALL.saturating_sub(self.bytes).min(self.memory.free(self.what, 0)))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl Used {
    fn of(&self, what: Use) -> &AtomicU64 {
        match what {
            Use::Lists => &self.lists,
            Use::Remembered => &self.remembered,
        }
    }
}

fn load(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

/// chosen: 1 Mbit/s for eight seconds, or 80 Mbit/s × 100 ms; 256 players fit in the default bound.
const BASE: DataSize = DataSize::from_mib(1);
/// chosen: what a playlist of some hundred segments takes up together with what is made of it.
const SMALL: u64 = 512 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_players_get_the_most_and_the_two_hundredth_still_gets_some() {
        let memory = Memory::new(DataSize::from_mib(512), DataSize::from_mib(32));
        let grants: Vec<Grant> = (0..200).filter_map(|_| memory.grant(DataSize::ZERO)).collect();
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
        let first = memory.grant(DataSize::ZERO).unwrap();
        assert_eq!(memory.grant(first.size()).unwrap().size(), BASE);
    }

    #[test]
    fn who_would_find_nothing_is_turned_away() {
        let memory = Memory::new(DataSize::from_mib(4), DataSize::from_mib(32));
        let grants: Vec<Grant> = (0..10).filter_map(|_| memory.grant(DataSize::ZERO)).collect();
        assert_eq!(grants.len(), 2);
        assert!(memory.granted() <= DataSize::from_mib(4));
    }

    #[test]
    fn lists_have_their_part_and_no_more_however_many_players_there_are() {
        let memory = Memory::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let mut list = memory.reserve(Use::Lists, 3 << 20).unwrap();
        assert!(!list.grow(1) && memory.reserve(Use::Lists, SMALL + 1).is_none());
        let small = [memory.reserve(Use::Lists, SMALL).unwrap(), memory.reserve(Use::Lists, SMALL).unwrap()];
        assert!(memory.reserve(Use::Lists, 1).is_none());
        let kept = memory.reserve(Use::Remembered, 2 << 20).unwrap();
        assert!(memory.reserve(Use::Remembered, 1).is_none());
        list.shrink_to(1 << 20);
        assert_eq!((list.bytes(), list.free()), (1 << 20, 1 << 20));
        drop((list, small, kept));
        let grants: Vec<Grant> = std::iter::from_fn(|| memory.grant(DataSize::ZERO)).collect();
        assert_eq!((grants.len(), memory.free(Use::Lists, 0)), (32, 4 << 20));
        assert!(memory.granted() + DataSize::from_mib(4) <= DataSize::from_mib(64));
    }
}
