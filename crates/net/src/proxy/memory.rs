//! How much memory the players may use, and who gets how much of it.
//!
//! In: players that come and go. Out: a window for each, never more in all than the bound.
//!
//! 1. Everybody who is let in gets a base of [`BASE`]; whoever would find less is turned away.
//! 2. Half of the bound is for larger windows: a newcomer gets half of what is left of it, up to the most for one
//!    player. So the first ones play far ahead and the two hundredth still plays.
//! 3. A grant is fixed for as long as it is held: bytes that are held cannot be taken back.

use std::cell::Cell;
use std::rc::Rc;

use marline_core::units::DataSize;

/// The memory of all players.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    most: u64,
    one: u64,
    /// Granted as bases, and beyond them.
    used: Rc<(Cell<u64>, Cell<u64>)>,
}

/// One player's part; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    base: u64,
    extra: u64,
    used: Rc<(Cell<u64>, Cell<u64>)>,
}

impl Memory {
    /// So much in all, and for one player.
    pub(super) fn new(all: DataSize, one: DataSize) -> Self {
        Self { most: all.bytes(), one: one.bytes().min(all.bytes() / 2), used: Rc::default() }
    }

    /// A part for one more, whose player has `has` already; none: there is nothing left.
    pub(super) fn grant(&self, has: DataSize) -> Option<Grant> {
        let (bases, extras) = (self.used.0.get(), self.used.1.get());
        let base = BASE.bytes().min(self.one);
        if bases + base > self.most / 2 {
            return None;
        }
        let extra = self.one.saturating_sub(base + has.bytes()).min((self.most / 2).saturating_sub(extras) / 2);
        self.used.0.set(bases + base);
        self.used.1.set(extras + extra);
        Some(Grant { base, extra, used: Rc::clone(&self.used) })
    }

    /// The most for one player.
    pub(super) fn most(&self) -> DataSize {
        DataSize::from_bytes(self.one)
    }

    /// Granted now, in all.
    pub(super) fn granted(&self) -> DataSize {
        DataSize::from_bytes(self.used.0.get() + self.used.1.get())
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
        self.used.0.set(self.used.0.get() - self.base);
        self.used.1.set(self.used.1.get() - self.extra);
    }
}

/// chosen: 1 Mbit/s for eight seconds, or 80 Mbit/s × 100 ms; 256 players fit in the default bound.
const BASE: DataSize = DataSize::from_mib(1);

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
}
