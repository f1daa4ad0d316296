//! The playlists that players follow: which URLs they name, which segments they contain, and where their URLs may lead.
//!
//! 1. URLs in a playlist may lead no further into local networks than the playlist's own server is ([`EgressPolicy`]),
//!    for prefetches and for requests of the player alike. Rewritten URLs carry a mark
//!    ([`marks`](super::marks)); others are remembered while their playlist is followed.
//! 2. The memory of the segments is charged to the buffer budget. Under pressure the segments are forgotten first; the
//!    hosts of the URLs, to which the restriction applies, are kept longer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use marline_download::same_origin;
use marline_net::egress::EgressPolicy;
use url::Url;

use super::blocking_reload;
use super::listed_urls::ListedUrls;
use super::segment_index::{MediaSegment, Rendition, SegmentTiming};
use crate::client::buffer_budget::{BufferBudget, Client, Purpose, Reservation};
use crate::upstream::headers::UserId;

/// The content of a playlist that prefetching needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaylistInfo {
    /// Renditions with their segments.
    pub(crate) renditions: Vec<Rendition>,
    /// Other playlists, of which the player selects one.
    pub(crate) variants: Vec<Url>,
    /// Whether the player may choose between several renditions.
    pub(crate) can_choose: bool,
    /// The maximum duration of a segment.
    pub(crate) target_duration: Option<Duration>,
    /// Parts that do not exist yet (preload hints). The server delays responses for them.
    pub(crate) preload_hints: Vec<Url>,
    pub(crate) urls: ListedUrls,
    /// Variables that it defines for the playlists that it names.
    pub(crate) variables: Vec<(String, String)>,
}

/// All playlists that players follow; see the [module documentation](self).
#[derive(Default)]
pub(crate) struct FollowedPlaylists(RefCell<BTreeMap<PlaylistKey, FollowedPlaylist>>);

/// A player that requests a URL.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'a> {
    pub(crate) player: &'a str,
    pub(crate) url: &'a Url,
    pub(crate) user: UserId,
}

/// Identifies a followed playlist: player, URL and user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaylistKey {
    pub(crate) player: String,
    /// Its URL without the directives of a reload.
    pub(crate) playlist_url: String,
    pub(crate) user: UserId,
}

impl PlaylistKey {
    fn of(requester: &Requester<'_>) -> Self {
        let playlist_url = blocking_reload::without_directives(requester.url).to_string();
        Self { player: requester.player.to_owned(), playlist_url, user: requester.user }
    }
}

/// Where a playlist comes from, and where its URLs may lead.
pub(crate) struct PlaylistOrigin {
    /// The host that served it, after redirects.
    pub(crate) host: String,
    /// The destinations to which its URLs may lead.
    pub(crate) egress: EgressPolicy,
    /// A URL of the origin for which the player's header fields are meant.
    pub(crate) url: Url,
}

struct FollowedPlaylist {
    info: PlaylistInfo,
    origin: PlaylistOrigin,
    /// The time of the last request for the playlist or one of its segments.
    last_used: Instant,
    /// Its segments were forgotten to free memory.
    is_index_dropped: bool,
    reservation: Reservation,
    /// The memory of its key, in bytes.
    key_size: usize,
}

/// A segment of a followed playlist that was found by its URL.
pub(crate) struct SegmentMatch {
    pub(crate) key: PlaylistKey,
    /// The destinations to which its URLs may lead.
    pub(crate) egress: EgressPolicy,
    /// The index of the rendition, and the set of each rendition of the playlist.
    pub(crate) rendition: usize,
    pub(crate) rendition_sets: Vec<usize>,
    pub(crate) segment: MediaSegment,
    pub(crate) timing: SegmentTiming,
    /// The segments that follow.
    pub(crate) next: Vec<MediaSegment>,
    /// The URL of the multivariant playlist that names the playlist, or that of the playlist itself.
    pub(crate) family_url: String,
    /// The playlists between which the player chooses, this one included.
    pub(crate) variants: Vec<Url>,
    /// Whether the player may choose between several renditions.
    pub(crate) can_choose: bool,
}

impl FollowedPlaylist {
    /// Whether the player may still request this URL because of the playlist, at this time after its last request.
    fn is_followed(&self, url: &Url, since: Duration) -> bool {
        since < if url.host_str() == Some(&self.origin.host) { PLAYLIST_TTL } else { FOLLOW_TIMEOUT }
    }

    fn client(&self) -> Client {
        Client::of_egress(&self.origin.egress)
    }

    /// Frees the memory of its segments.
    fn drop_index(&mut self) {
        self.info.drop_index();
        self.is_index_dropped = true;
        self.reservation.shrink_to((self.info.memory_size() + self.key_size) as u64);
    }
}

impl FollowedPlaylists {
    /// Remembers a playlist. The memory is charged to the buffer budget. If it is exhausted, the client that has the
    /// most loses its least recently used playlists.
    pub(crate) fn add(
        &self,
        memory: &BufferBudget,
        requester: &Requester<'_>,
        mut playlist: PlaylistInfo,
        origin: PlaylistOrigin,
    ) {
        let mut playlists = self.0.borrow_mut();
        playlists.retain(|_, followed| followed.last_used.elapsed() < PLAYLIST_TTL);
        let key = PlaylistKey::of(requester);
        let key_size =
            2 * (key.player.len() + key.playlist_url.len()) + origin.host.len() + origin.url.as_str().len();
        playlists.remove(&key);
        let client = Client::of_egress(&origin.egress);
        let mut is_index_dropped = false;
        let reservation = loop {
            let size = (playlist.memory_size() + key_size) as u64;
            let reserved =
                memory.reserve(client, Purpose::PrefetchIndex, size).filter(|_| playlists.len() < MAX_PLAYLISTS);
            if let Some(reservation) = reserved {
                break reservation;
            }
            // Evict in this order: segments of the oldest playlist that still has some, the segments of this one, the
            // oldest playlist as a whole.
            let has_max_playlists = playlists.len() >= MAX_PLAYLISTS;
            let has_index = |playlist: &FollowedPlaylist| !has_max_playlists && !playlist.is_index_dropped;
            let with_index =
                playlists.values().filter(|playlist| has_index(playlist)).map(FollowedPlaylist::client);
            let evicted_client = Client::largest(with_index, client);
            let candidates = playlists.values_mut().filter(|playlist| has_index(playlist));
            let of_evicted = candidates.filter(|playlist| playlist.client() == evicted_client);
            if let Some(playlist) = of_evicted.min_by_key(|followed| followed.last_used) {
                playlist.drop_index();
            } else if !has_max_playlists && !is_index_dropped {
                playlist.drop_index();
                is_index_dropped = true;
            } else {
                let evicted_client = Client::largest(playlists.values().map(FollowedPlaylist::client), client);
                let of_evicted = playlists.iter().filter(|(_, followed)| followed.client() == evicted_client);
                let oldest = of_evicted.min_by_key(|(_, followed)| followed.last_used).map(|(key, _)| key.clone());
                match oldest {
                    Some(oldest) => playlists.remove(&oldest),
                    None => return,
                };
            }
        };
        let last_used = Instant::now();
        playlists.insert(
            key,
            FollowedPlaylist { info: playlist, origin, last_used, is_index_dropped, reservation, key_size },
        );
    }

    /// Whether the segments of this playlist are known.
    pub(crate) fn has_index(&self, key: &PlaylistKey) -> bool {
        self.0.borrow().get(key).is_some_and(|playlist| !playlist.is_index_dropped)
    }

    /// Whether the player may choose between several renditions of this playlist.
    pub(crate) fn can_choose(&self, key: &PlaylistKey) -> bool {
        self.0.borrow().get(key).is_some_and(|playlist| playlist.info.can_choose)
    }

    /// Finds the segment that is requested, and the `lookahead` segments that follow; `None`: no playlist of the player
    /// contains it.
    pub(crate) fn match_segment(
        &self,
        requester: &Requester<'_>,
        range: Option<&Range<u64>>,
        lookahead: usize,
    ) -> Option<SegmentMatch> {
        let mut playlists = self.0.borrow_mut();
        let of_player = |is_of_user: bool| {
            let is_own = move |key: &PlaylistKey| (key.user == requester.user) == is_of_user;
            playlists.iter().filter(move |(key, _)| key.player == requester.player && is_own(key))
        };
        let locate = |(key, followed): (&PlaylistKey, &FollowedPlaylist)| {
            let (rendition, found, next) = followed.info.find(requester.url, range, lookahead)?;
            Some((key.clone(), rendition, found, next))
        };
        // The login in a playlist's URL is not sent to other hosts, so its segments there belong to another user.
        let (key, rendition, (segment, timing), next) = of_player(true).chain(of_player(false)).find_map(locate)?;
        let multivariant = playlists.iter().find_map(|(multivariant, playlist)| {
            let variants = &playlist.info.variants;
            let is_variant = multivariant.player == key.player
                && variants.iter().any(|variant| variant.as_str() == key.playlist_url);
            is_variant.then(|| (multivariant.playlist_url.clone(), variants.clone()))
        });
        let (family_url, variants) = multivariant.unwrap_or_else(|| (key.playlist_url.clone(), Vec::new()));
        let playlist = playlists.get_mut(&key)?;
        playlist.last_used = Instant::now();
        Some(SegmentMatch {
            egress: playlist.origin.egress,
            rendition,
            rendition_sets: playlist.info.renditions.iter().map(|rendition| rendition.set).collect(),
            segment,
            timing,
            next,
            family_url,
            can_choose: variants.len() > 1 || playlist.info.can_choose,
            variants,
            key,
        })
    }

    /// The destinations to which a player's request for a URL may lead. They are those of the player itself, unless a
    /// playlist that the same client follows has named the URL; then those of the playlist apply, too. Of several
    /// playlists, the most restrictive counts. Unmarked URLs of a playlist's own host count while the playlist is
    /// remembered.
    pub(crate) fn egress_for(&self, player: &str, url: &Url, own_egress: EgressPolicy) -> EgressPolicy {
        let (playlists, client) = (self.0.borrow(), Client::of_player(player));
        let naming = playlists.iter().filter(|(key, followed)| {
            followed.is_followed(url, followed.last_used.elapsed())
                && Client::of_player(&key.player) == client
                && followed.info.urls.contains(url)
        });
        let zones = naming.filter_map(|(_, followed)| followed.origin.egress.referrer_zone()).max();
        zones.map_or(own_egress, |zone| own_egress.referred_by_zone(zone))
    }

    /// The variables of the multivariant playlist that names this playlist, as read by the same user.
    /// Variables may be secrets.
    pub(crate) fn imported_variables(&self, requester: &Requester<'_>) -> Vec<(String, String)> {
        let playlists = self.0.borrow();
        let naming = playlists.iter().filter(|(key, followed)| {
            let is_multivariant = !followed.info.variables.is_empty() && followed.info.urls.contains(requester.url);
            is_multivariant && key.user == requester.user
        });
        let newest = naming.max_by_key(|(_, followed)| followed.last_used);
        newest.map(|(_, playlist)| playlist.info.variables.clone()).unwrap_or_default()
    }

    /// A URL of the origin for which a player's header fields are meant when it requests this URL because a playlist
    /// has named it. `None`: no playlist has, so the URL is its own origin. If several have, one of another origin
    /// takes precedence, because it may belong to a different program that the proxy takes for the same player.
    pub(crate) fn origin_for(&self, player: &str, url: &Url) -> Option<Url> {
        let playlists = self.0.borrow();
        let naming =
            playlists.iter().filter(|(key, followed)| key.player == player && followed.info.urls.contains(url));
        naming
            .map(|(_, playlist)| &playlist.origin.url)
            .min_by_key(|origin_url| same_origin(origin_url, url))
            .cloned()
    }

    /// The maximum duration of a segment of a player's playlist, as of its last reload.
    pub(crate) fn target_duration(&self, requester: &Requester<'_>) -> Option<Duration> {
        self.0.borrow().get(&PlaylistKey::of(requester))?.info.target_duration
    }

    /// How long a server may delay the response to this URL, which is a part that does not exist yet. `None`:
    /// it is not such a part.
    pub(crate) fn blocking_timeout(&self, requester: &Requester<'_>) -> Option<Duration> {
        let playlists = self.0.borrow();
        let playlists_of_player = playlists.iter().filter(|(key, _)| key.player == requester.player);
        let mut playlists_of_player = playlists_of_player.map(|(_, followed)| &followed.info);
        let playlist = playlists_of_player.find(|info| info.preload_hints.contains(requester.url))?;
        Some(blocking_reload::blocking_timeout(playlist.target_duration))
    }
}

impl PlaylistInfo {
    /// Forgets everything but the hosts of its URLs, to which the restriction of destinations still applies, and the
    /// variables.
    fn drop_index(&mut self) {
        let (mut urls, variables) = (std::mem::take(&mut self.urls), std::mem::take(&mut self.variables));
        urls.keep_hosts_only();
        *self = Self { urls, variables, ..Self::default() };
    }

    /// The memory that this uses, in bytes.
    fn memory_size(&self) -> usize {
        let urls = self.variants.iter().chain(&self.preload_hints);
        let variants = urls.map(|url| url.as_str().len() + size_of::<Url>());
        let renditions = self.renditions.iter().map(|rendition| rendition.index.memory_size());
        let variables =
            self.variables.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>());
        size_of::<FollowedPlaylist>()
            + self.urls.memory_size()
            + variables.sum::<usize>()
            + variants.sum::<usize>()
            + renditions.sum::<usize>()
    }

    /// Finds a segment: the index of its rendition, the segment with its timing, and the segments that follow.
    fn find(
        &self,
        url: &Url,
        range: Option<&Range<u64>>,
        lookahead: usize,
    ) -> Option<(usize, (MediaSegment, SegmentTiming), Vec<MediaSegment>)> {
        let locate = |range: Option<&Range<u64>>| {
            self.renditions.iter().enumerate().find_map(|(index, rendition)| {
                let next = rendition.index.after(url, range, lookahead)?;
                let timing = rendition.timing(url, range)?;
                let segment = MediaSegment { url: url.clone(), range: range.cloned(), duration: timing.duration };
                Some((index, (segment, timing), next))
            })
        };
        // A player that has lost its connection requests the rest of a segment.
        locate(range).or_else(|| locate(None).filter(|_| range.is_some()))
    }
}

/// How long a playlist is remembered without a request. Our choice: a pause of half an hour.
const PLAYLIST_TTL: Duration = Duration::from_secs(1800);
/// How long a playlist counts as followed without a request for it or one of its segments. Our choice: twice as long as
/// players with a full buffer send no request.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);
/// Our choice: the playlists of two hundred players.
const MAX_PLAYLISTS: usize = 1000;

#[cfg(test)]
mod tests {
    use marline_core::units::DataSize;
    use marline_net::egress::AddressZone;

    use super::*;

    #[test]
    fn urls_of_a_playlist_s_own_host_are_restricted_while_it_is_remembered() {
        let memory = BufferBudget::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let url = |text: &str| Url::parse(text).unwrap();
        let playlist = FollowedPlaylist {
            info: PlaylistInfo::default(),
            origin: PlaylistOrigin {
                host: "h.test".to_owned(),
                egress: EgressPolicy::for_peer("127.0.0.1:5".parse().unwrap())
                    .referred_by_zone(AddressZone::Internet),
                url: url("http://h.test/"),
            },
            last_used: Instant::now(),
            is_index_dropped: false,
            reservation: memory.reserve(Client::LOCAL, Purpose::PrefetchIndex, 1).unwrap(),
            key_size: 0,
        };
        let (own, other) = (url("http://h.test/admin?do=reboot"), url("http://10.0.0.1/"));
        for (url, ttl) in [(&own, PLAYLIST_TTL), (&other, FOLLOW_TIMEOUT)] {
            assert!(playlist.is_followed(url, ttl - Duration::from_secs(1)) && !playlist.is_followed(url, ttl));
        }
    }
}
