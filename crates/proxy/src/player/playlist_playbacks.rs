//! Bounded collection of the playback state of all players that play from playlists.
//!
//! A program that changes its User-Agent with each request appears as many players. So both the number of players and
//! their memory are bounded: beyond the bound, the client with the most players loses the one that was least recently
//! used. A forgotten player continues to play; only its link rates are measured again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::track_playback::PlaylistPlayback;
use crate::client::buffer_budget::Client;

/// By player name.
#[derive(Default)]
pub(crate) struct PlaylistPlaybacks(BTreeMap<String, (Rc<PlaylistPlayback>, Instant)>);

impl PlaylistPlaybacks {
    /// The playback state of a player, created if necessary.
    pub(crate) fn playback_of(&mut self, player_name: &str) -> Rc<PlaylistPlayback> {
        self.0.retain(|_, (_, last_used)| last_used.elapsed() < PLAYBACK_TTL);
        let (playback, last_used) =
            self.0.entry(player_name.to_owned()).or_insert_with(|| (Rc::default(), Instant::now()));
        *last_used = Instant::now();
        let playback = Rc::clone(playback);
        let mut size: usize = self.sizes().sum();
        while self.0.len() > 1 && (self.0.len() > MAX_PLAYERS || size > MAX_BYTES) {
            let clients = self.0.keys().map(|player| Client::of_player(player));
            let evicted_client = Client::largest(clients, Client::of_player(player_name));
            let others = self.0.iter().filter(|(name, _)| *name != player_name);
            // If the only player of the largest client is this one, another client's oldest goes.
            let rank = |name: &str, seen: Instant| (Client::of_player(name) != evicted_client, seen);
            let oldest = others.min_by_key(|(name, (_, seen))| rank(name, *seen)).map(|(name, _)| name.clone());
            let removed = oldest.and_then(|oldest| self.0.remove_entry(&oldest));
            size -= removed.map_or(0, |(name, (playback, _))| entry_size(&name, &playback));
        }
        playback
    }

    /// The playback state of a player, if there is one.
    pub(crate) fn get(&self, player: &str) -> Option<&PlaylistPlayback> {
        self.0.get(player).map(|(playback, _)| &**playback)
    }

    fn sizes(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|(name, (playback, _))| entry_size(name, playback))
    }
}

fn entry_size(name: &str, playback: &PlaylistPlayback) -> usize {
    2 * name.len() + playback.memory_size()
}

/// As long as a playlist is remembered.
const PLAYBACK_TTL: Duration = Duration::from_secs(1800);
/// Our choice: as many as playlists are followed.
const MAX_PLAYERS: usize = 1000;
/// Our choice: 4 KiB for each of them.
const MAX_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::buffer_budget::player_name;

    #[test]
    fn the_memory_of_any_number_of_players_is_bounded() {
        let mut all = PlaylistPlaybacks::default();
        let local_player = player_name([127, 0, 0, 1].into(), "mpv");
        let other_player = player_name([192, 168, 1, 7].into(), "vlc");
        let (local_playback, other_playback) = (all.playback_of(&local_player), all.playback_of(&other_player));
        for n in 0..3 * MAX_PLAYERS {
            let agent = format!("{n} {}", "x".repeat(7500));
            let playback = all.playback_of(&player_name([192, 168, 1, 9].into(), &agent));
            // The URL of a playlist, with 8 KiB.
            playback.track(&format!("https://h/{}", "x".repeat(8 << 10)), 0);
            let size: usize = all.sizes().sum();
            assert!(all.0.len() <= MAX_PLAYERS && size <= MAX_BYTES + (9 << 10), "{n}: {} {size}", all.0.len());
        }
        let is_retained = |player: &str, playback: &Rc<PlaylistPlayback>| {
            all.get(player).is_some_and(|known| std::ptr::eq(known, &**playback))
        };
        assert!(
            is_retained(&local_player, &local_playback) && is_retained(&other_player, &other_playback),
            "other clients keep their own"
        );
    }

    #[test]
    fn the_number_of_players_is_bounded_and_the_oldest_is_evicted() {
        let mut all = PlaylistPlaybacks::default();
        for n in 0..=MAX_PLAYERS {
            all.playback_of(&player_name([127, 0, 0, 1].into(), &n.to_string()));
        }
        assert_eq!(all.0.len(), MAX_PLAYERS);
        assert!(all.get("127.0.0.1 0").is_none() && all.get("127.0.0.1 1").is_some());
    }

    #[test]
    fn one_player_may_be_larger_than_the_bound() {
        let mut all = PlaylistPlaybacks::default();
        let one = all.playback_of("127.0.0.1 a");
        (0..1000).for_each(|n| drop(one.track(&"x".repeat(100 << 10), n)));
        assert!(Rc::ptr_eq(&one, &all.playback_of("127.0.0.1 a")));
    }
}
