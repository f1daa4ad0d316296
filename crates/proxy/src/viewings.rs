//! What is known of the players that play from playlists, within bounds.
//!
//! A program that changes its User-Agent with each request is many players. So there is a bound on their number and on the
//! memory that they take up; beyond it the client with the most players loses the one that was not used for the longest
//! time. A player that is forgotten plays on: its links are only measured again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::memory::Client;
use super::series::Viewing;

/// By player.
#[derive(Default)]
pub(super) struct Viewings(BTreeMap<String, (Rc<Viewing>, Instant)>);

impl Viewings {
    /// What is known of a player, from now on.
    pub(super) fn of(&mut self, player: &str) -> Rc<Viewing> {
        self.0.retain(|_, (_, seen)| seen.elapsed() < FORGET);
        let (viewing, seen) = self.0.entry(player.to_owned()).or_insert_with(|| (Rc::default(), Instant::now()));
        *seen = Instant::now();
        let viewing = Rc::clone(viewing);
        let mut size: usize = self.sizes().sum();
        while self.0.len() > 1 && (self.0.len() > MOST || size > MOST_BYTES) {
            let clients = self.0.keys().map(|player| Client::of_player(player));
            let loser = Client::with_most(clients, Client::of_player(player));
            let others = self.0.iter().filter(|(name, _)| *name != player);
            // A client with the most may be the one whose only player this is.
            let rank = |name: &str, seen: Instant| (Client::of_player(name) != loser, seen);
            let oldest = others.min_by_key(|(name, (_, seen))| rank(name, *seen)).map(|(name, _)| name.clone());
            let gone = oldest.and_then(|oldest| self.0.remove_entry(&oldest));
            size -= gone.map_or(0, |(name, (viewing, _))| size_of_one(&name, &viewing));
        }
        viewing
    }

    /// What is known of a player already.
    pub(super) fn get(&self, player: &str) -> Option<&Viewing> {
        self.0.get(player).map(|(viewing, _)| &**viewing)
    }

    fn sizes(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(name, (viewing, _))| size_of_one(name, viewing))
    }
}

fn size_of_one(name: &str, viewing: &Viewing) -> usize {
    2 * name.len() + viewing.size()
}

/// As long as a playlist is remembered.
const FORGET: Duration = Duration::from_secs(1800);
/// chosen: as many as playlists are followed.
const MOST: usize = 1000;
/// chosen: 4 KiB for each of them.
const MOST_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::player;

    #[test]
    fn players_without_end_take_up_no_more_than_a_bound() {
        let mut all = Viewings::default();
        let here = player([127, 0, 0, 1].into(), "mpv");
        let other = player([192, 168, 1, 7].into(), "vlc");
        let (own, its) = (all.of(&here), all.of(&other));
        for n in 0..3 * MOST {
            let agent = format!("{n} {}", "x".repeat(7500));
            let viewing = all.of(&player([192, 168, 1, 9].into(), &agent));
            // A playlist's address of 8 KiB.
            viewing.series(&format!("https://h/{}", "x".repeat(8 << 10)), 0);
            let size: usize = all.sizes().sum();
            assert!(all.0.len() <= MOST && size <= MOST_BYTES + (9 << 10), "{n}: {} {size}", all.0.len());
        }
        let is_kept = |player: &str, viewing: &Rc<Viewing>| {
            all.get(player).is_some_and(|known| std::ptr::eq(known, &**viewing))
        };
        assert!(is_kept(&here, &own) && is_kept(&other, &its), "other clients keep their own");
    }

    #[test]
    fn the_number_of_players_is_bounded_too_and_the_oldest_goes_first() {
        let mut all = Viewings::default();
        for n in 0..=MOST {
            all.of(&player([127, 0, 0, 1].into(), &n.to_string()));
        }
        assert_eq!(all.0.len(), MOST);
        assert!(all.get("127.0.0.1 0").is_none() && all.get("127.0.0.1 1").is_some());
    }

    #[test]
    fn one_player_may_be_larger_than_the_bound() {
        let mut all = Viewings::default();
        let one = all.of("127.0.0.1 a");
        (0..1000).for_each(|n| drop(one.series(&"x".repeat(100 << 10), n)));
        assert!(Rc::ptr_eq(&one, &all.of("127.0.0.1 a")));
    }
}
