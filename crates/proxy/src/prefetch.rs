//! Prefetches segments: while the player reads one, the next ones of the same rendition are already being downloaded.
//!
//! Knows which segments the playlists contain and which one the player requests, and holds responses that are already
//! open when the player requests them.
//!
//! 1. Earliest deadline first: the next segment starts when all but the last [`PREFETCH_LEAD`] of the preceding one has
//!    arrived. So it takes no capacity from data with an earlier deadline, and the links never wait for the player's
//!    next request.
//! 2. At most [`MAX_PREFETCHED`] segments are held, each in its own window of a quarter of the player's
//!    ([`BufferBudget`]). The current segment and the prefetched ones together use no more than one film would. Flow
//!    control stops the servers when a window is full.
//! 3. Prefetched responses are dropped as soon as the player requests a different segment or another rendition of the
//!    same set, and after [`PREFETCH_TTL`] without a request.
//! 4. A player that requests a segment while it still reads the preceding one (ffmpeg does, on a second connection)
//!    gets the head at once, and the bytes in the order of rule 1.
//! 5. A prefetched response is used only for a request that would have fetched it in the same way: the same client,
//!    login and forwarded fields.
//! 6. URLs in a playlist may lead no further into local networks than the playlist's own server is ([`EgressPolicy`]),
//!    for prefetches and for requests of the player alike. Rewritten URLs carry a mark
//!    ([`playlist_marks`](super::playlist_marks)); others are remembered while their playlist is followed.
//! 7. The player gets what it requests. It alone selects the rendition, and nothing of another one is prefetched.
//! 8. [`TrackPlayback`] models such a player for the streams of its segments.
//!
//! A prefetched response is an ordinary response that is not being read yet, so there is neither a second cache nor a
//! second download path.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use marline_core::stream::Policy;
use marline_core::units::DataSize;
use marline_download::same_origin;
use marline_net::egress::EgressPolicy;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use url::Url;

use super::blocking_reload;
use super::body::{AbortOnDrop, DeferredBody};
use super::buffer_budget::{BufferBudget, Client, Purpose, Reservation};
use super::listed_urls::ListedUrls;
use super::media_url::redacted;
use super::playlist_handler;
use super::playlist_playbacks::PlaylistPlaybacks;
use super::range::RequestedRange;
use super::segment_index::{MediaSegment, Rendition, SegmentTiming};
use super::session::{RequestError, ResponseBody, ResponseHead, Session, Sessions};
use super::track_playback::{PlaylistPlayback, TrackPlayback};
use super::upstream_headers::UserId;

/// The content of a playlist that prefetching needs.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaylistInfo {
    /// Renditions with their segments.
    pub(super) renditions: Vec<Rendition>,
    /// Other playlists, of which the player selects one.
    pub(super) variants: Vec<Url>,
    /// Whether the player may choose between several renditions.
    pub(super) can_choose: bool,
    /// The maximum duration of a segment.
    pub(super) target_duration: Option<Duration>,
    /// Parts that do not exist yet (preload hints). The server delays responses for them.
    pub(super) preload_hints: Vec<Url>,
    /// All URLs in it.
    pub(super) urls: ListedUrls,
    /// Variables that it defines for the playlists that it names.
    pub(super) variables: Vec<(String, String)>,
}

/// All playlists that players follow, and the playback state of these players.
#[derive(Default)]
pub(super) struct Prefetcher {
    playlists: RefCell<BTreeMap<PlaylistKey, FollowedPlaylist>>,
    playbacks: RefCell<PlaylistPlaybacks>,
}

/// Identifies a followed playlist: player, URL and user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PlaylistKey {
    player: String,
    /// Its URL without the directives of a reload.
    playlist_url: String,
    user: UserId,
}

impl PlaylistKey {
    fn of(session: &Session) -> Self {
        let playlist_url = blocking_reload::without_directives(&session.url).to_string();
        Self { player: session.player.clone(), playlist_url, user: session.headers.user }
    }
}

struct FollowedPlaylist {
    info: PlaylistInfo,
    /// The host that served it, after redirects.
    host: String,
    /// The destinations to which its URLs may lead.
    egress: EgressPolicy,
    /// A URL of the origin for which the player's header fields are meant.
    origin_url: Url,
    prefetches: BTreeMap<usize, Rc<RenditionPrefetch>>,
    last_used: Instant,
    /// Its segments were forgotten to free memory.
    is_index_dropped: bool,
    reservation: Reservation,
    /// The memory of its key, in bytes.
    key_size: usize,
}

impl FollowedPlaylist {
    /// Whether the player may still request this URL because of the playlist, at this time after its last request.
    fn is_followed(&self, url: &Url, since: Duration) -> bool {
        since < if url.host_str() == Some(&self.host) { PLAYLIST_TTL } else { FOLLOW_TIMEOUT }
    }

    /// Frees the memory of its segments.
    fn drop_index(&mut self) {
        self.info.drop_index();
        self.prefetches.clear();
        self.is_index_dropped = true;
        self.reservation.shrink_to((self.info.memory_size() + self.key_size) as u64);
    }
}

/// Prefetching of one rendition that is being played.
struct RenditionPrefetch {
    track: Rc<TrackPlayback>,
    /// The destinations to which the playlist's URLs may lead.
    egress: Cell<EgressPolicy>,
    prefetched: RefCell<VecDeque<PrefetchedResponse>>,
    /// The segment that the player requested last, and those that follow it.
    last_request: RefCell<Option<(Rc<Session>, Vec<MediaSegment>)>>,
    /// The task that prefetches; `None`: nothing is being played.
    task: RefCell<Option<AbortOnDrop>>,
    last_used: Cell<Instant>,
}

/// A response that waits for the player's request.
struct PrefetchedResponse {
    segment: MediaSegment,
    session: Rc<Session>,
    result_rx: oneshot::Receiver<Result<(ResponseHead, ResponseBody), RequestError>>,
    _task: AbortOnDrop,
}

/// A player's request for a segment of a followed playlist.
pub(super) struct SegmentRequest {
    prefetch: Rc<RenditionPrefetch>,
    next: Vec<MediaSegment>,
    prefetched: Option<PrefetchedResponse>,
    /// The preceding segment, if the player still reads it.
    preceding: Option<Rc<Session>>,
}

impl Prefetcher {
    /// Remembers a playlist of this host, whose URLs may lead to these destinations. The memory is charged to the
    /// buffer budget. If it is exhausted, the client that has the most loses its least recently used playlists.
    pub(super) fn add_playlist(
        &self,
        memory: &BufferBudget,
        session: &Session,
        mut playlist: PlaylistInfo,
        (host, egress): (String, EgressPolicy),
    ) {
        let mut playlists = self.playlists.borrow_mut();
        playlists.retain(|_, followed| followed.last_used.elapsed() < PLAYLIST_TTL);
        let key = PlaylistKey::of(session);
        let origin_url = session.headers.origin_url.clone();
        let key_size = 2 * (key.player.len() + key.playlist_url.len()) + host.len() + origin_url.as_str().len();
        let tracks = playlists.remove(&key).map(|playlist| playlist.prefetches).unwrap_or_default();
        let mut is_index_dropped = false;
        let reserved = loop {
            let size = (playlist.memory_size() + key_size) as u64;
            let reserved = memory
                .reserve(Client::of_egress(&egress), Purpose::PrefetchIndex, size)
                .filter(|_| playlists.len() < MAX_PLAYLISTS);
            if reserved.is_some() {
                break reserved;
            }
            // Evict in this order: segments of the oldest playlist that still has some, the segments of this one, the
            // oldest playlist as a whole.
            let has_max_playlists = playlists.len() >= MAX_PLAYLISTS;
            let has_index = |playlist: &FollowedPlaylist| !has_max_playlists && !playlist.is_index_dropped;
            let requester = Client::of_egress(&egress);
            let with_index = playlists
                .values()
                .filter(|playlist| has_index(playlist))
                .map(|playlist| Client::of_egress(&playlist.egress));
            let evicted_client = Client::largest(with_index, requester);
            let candidates = playlists.values_mut().filter(|playlist| has_index(playlist));
            let of_loser = candidates.filter(|playlist| Client::of_egress(&playlist.egress) == evicted_client);
            if let Some(playlist) = of_loser.min_by_key(|followed| followed.last_used) {
                playlist.drop_index();
            } else if !has_max_playlists && !is_index_dropped {
                playlist.drop_index();
                is_index_dropped = true;
            } else {
                let evicted_client = Client::largest(
                    playlists.values().map(|playlist| Client::of_egress(&playlist.egress)),
                    requester,
                );
                let of_evicted =
                    playlists.iter().filter(|(_, followed)| Client::of_egress(&followed.egress) == evicted_client);
                let oldest = of_evicted.min_by_key(|(_, followed)| followed.last_used).map(|(key, _)| key.clone());
                match oldest {
                    Some(oldest) => playlists.remove(&oldest),
                    None => break None,
                };
            }
        };
        if let Some(reserved) = reserved {
            playlists.insert(
                key,
                FollowedPlaylist {
                    info: playlist,
                    host,
                    egress,
                    origin_url,
                    prefetches: tracks,
                    last_used: Instant::now(),
                    is_index_dropped,
                    reservation: reserved,
                    key_size,
                },
            );
        }
    }

    /// The destinations to which a player's request for a URL may lead. They are those of the player itself, unless a
    /// playlist that the same client follows has named the URL; then those of the playlist apply, too. Of several
    /// playlists, the most restrictive counts. Unmarked URLs of a playlist's own host count while the playlist is
    /// remembered.
    pub(super) fn egress_for(&self, player: &str, url: &Url, own_egress: EgressPolicy) -> EgressPolicy {
        let (playlists, client) = (self.playlists.borrow(), Client::of_player(player));
        let naming = playlists.iter().filter(|(key, followed)| {
            followed.is_followed(url, followed.last_used.elapsed())
                && Client::of_player(&key.player) == client
                && followed.info.urls.contains(url)
        });
        let zones = naming.filter_map(|(_, followed)| followed.egress.referrer_zone()).max();
        zones.map_or(own_egress, |zone| own_egress.referred_by_zone(zone))
    }

    /// The variables of the multivariant playlist that names this session's playlist, as read by the same user.
    /// Variables may be secrets.
    pub(super) fn imported_variables(&self, session: &Session) -> Vec<(String, String)> {
        let playlists = self.playlists.borrow();
        let naming = playlists.iter().filter(|(key, followed)| {
            let is_multivariant = !followed.info.variables.is_empty() && followed.info.urls.contains(&session.url);
            is_multivariant && key.user == session.headers.user
        });
        let newest = naming.max_by_key(|(_, followed)| followed.last_used);
        newest.map(|(_, playlist)| playlist.info.variables.clone()).unwrap_or_default()
    }

    /// A URL of the origin for which a player's header fields are meant when it requests this URL because a playlist
    /// has named it. `None`: no playlist has, so the URL is its own origin. If several have, one of another origin
    /// takes precedence, because it may belong to a different program that the proxy takes for the same player.
    pub(super) fn origin_for(&self, player: &str, url: &Url) -> Option<Url> {
        let playlists = self.playlists.borrow();
        let naming =
            playlists.iter().filter(|(key, followed)| key.player == player && followed.info.urls.contains(url));
        naming
            .map(|(_, playlist)| &playlist.origin_url)
            .min_by_key(|origin_url| same_origin(origin_url, url))
            .cloned()
    }

    /// The maximum duration of a segment of a player's playlist, as of its last reload.
    pub(super) fn target_duration(&self, session: &Session) -> Option<Duration> {
        self.playlists.borrow().get(&PlaylistKey::of(session))?.info.target_duration
    }

    /// How long a server may delay the response to this session's URL, which is a part that does not exist yet. `None`:
    /// it is not such a part.
    pub(super) fn blocking_timeout(&self, session: &Session) -> Option<Duration> {
        let playlists = self.playlists.borrow();
        let playlists_of_player = playlists.iter().filter(|(key, _)| key.player == session.player);
        let mut playlists_of_player = playlists_of_player.map(|(_, followed)| &followed.info);
        let playlist = playlists_of_player.find(|info| info.preload_hints.contains(&session.url))?;
        Some(blocking_reload::blocking_timeout(playlist.target_duration))
    }

    /// Matches a request with the followed playlists and prefetched responses; `None`: it is not for a known segment.
    pub(super) fn match_request(
        &self,
        sessions: &Sessions,
        session: &Rc<Session>,
        requested: RequestedRange,
    ) -> Option<SegmentRequest> {
        let range = match requested {
            RequestedRange::Bytes(from, Some(end)) => Some(from..end),
            _ => None,
        };
        let mut playlists = self.playlists.borrow_mut();
        let of_player = |is_of_user: bool| {
            let is_own = move |key: &PlaylistKey| (key.user == session.headers.user) == is_of_user;
            playlists.iter().filter(move |(key, _)| key.player == session.player && is_own(key))
        };
        let locate = |(key, followed): (&PlaylistKey, &FollowedPlaylist)| {
            let (index, position, next) = followed.info.find(&session.url, range.as_ref())?;
            Some((key.clone(), index, position, next))
        };
        // The login in a playlist's URL is not sent to other hosts, so its segments there belong to another user.
        let (key, index, (segment, timing), next) = of_player(true).chain(of_player(false)).find_map(locate)?;
        session
            .max_window
            .set(DataSize::from_bytes(sessions.buffer_budget.max_window().bytes() / (MAX_PREFETCHED as u64 + 1)));
        // The player has selected one variant, so prefetched responses of the others are dropped.
        let multivariant = playlists.iter().find_map(|(multivariant, playlist)| {
            let variants = &playlist.info.variants;
            let is_variant = multivariant.player == key.player
                && variants.iter().any(|variant| variant.as_str() == key.playlist_url);
            is_variant.then(|| (multivariant.playlist_url.clone(), variants.clone()))
        });
        let family_url = multivariant.as_ref().map_or(&key.playlist_url, |(multivariant, _)| multivariant).clone();
        let has_choice = multivariant.as_ref().is_some_and(|(_, variants)| variants.len() > 1);
        let variants = multivariant.map(|(_, variants)| variants);
        let is_sibling =
            |other: &PlaylistKey| (&other.player, other.user) == (&key.player, key.user) && *other != key;
        for (other, followed) in playlists.iter_mut().filter(|(other, _)| is_sibling(other)) {
            if variants.iter().flatten().any(|variant| variant.as_str() == other.playlist_url) {
                followed.prefetches.clear();
            }
        }
        let playlist = playlists.get_mut(&key)?;
        playlist.last_used = Instant::now();
        let set = |at: usize| playlist.info.renditions.get(at).map(|rendition| rendition.set);
        playlist.prefetches.retain(|at, _| *at == index || set(*at) != set(index));
        let playback = self.playback_of(&session.player);
        let track = playback.track(&family_url, set(index).unwrap_or_default());
        let can_choose = has_choice || playlist.info.can_choose;
        let prefetch = Rc::clone(
            playlist
                .prefetches
                .entry(index)
                .or_insert_with(|| Rc::new(RenditionPrefetch::new(&track, playlist.egress))),
        );
        prefetch.egress.set(playlist.egress);
        drop(playlists);
        // The published policies do not model segments.
        if sessions.options.stream.policy == Policy::Marline {
            let from = range.as_ref().map_or(0, |span| span.start);
            let segment = playback.on_request(&track, session.now(), (&segment, timing), &next, can_choose);
            session.set_segment(from, &playback, segment);
        }

        // Prefetching restarts after the requested segment. Prefetched responses that do not follow it are dropped.
        *prefetch.task.borrow_mut() = None;
        prefetch.last_used.set(Instant::now());
        let mut prefetched_responses = std::mem::take(&mut *prefetch.prefetched.borrow_mut());
        let is_requested = |response: &PrefetchedResponse| {
            Rc::ptr_eq(&response.session, session) && response.segment.range == range
        };
        let is_full_segment =
            range.is_some() || matches!(requested, RequestedRange::Full | RequestedRange::Bytes(0, None));
        let position = prefetched_responses.iter().position(is_requested);
        let prefetched = position.and_then(|at| prefetched_responses.remove(at)).filter(|_| is_full_segment);
        prefetched_responses.retain(|prefetched| next.contains(&prefetched.segment));
        *prefetch.prefetched.borrow_mut() = prefetched_responses;
        // If the player still reads a segment that precedes this one, that segment keeps its earlier deadline (rule 4).
        let previous = prefetch.last_request.replace(Some((Rc::clone(session), next.clone())));
        let is_successor = |(last, next): &(Rc<Session>, Vec<MediaSegment>)| {
            last.id != session.id
                && is_full_segment
                && next.iter().any(|segment| segment.url == session.url && segment.range == range)
        };
        let preceding = previous.filter(is_successor).map(|(last, _)| last).filter(|_| prefetched.is_none());
        Some(SegmentRequest { prefetch, next, prefetched, preceding })
    }

    /// The playback state of a player: tracks and link rates.
    pub(super) fn playback_of(&self, player: &str) -> Rc<PlaylistPlayback> {
        self.playbacks.borrow_mut().playback_of(player)
    }

    /// Whether the streams of a player's segments keep this link on standby.
    pub(super) fn is_standby(&self, player: &str, link: &str) -> bool {
        let playbacks = self.playbacks.borrow();
        playbacks.get(player).is_some_and(|playback| playback.rates.borrow().is_standby(link))
    }

    /// Drops prefetches without a recent request. Never returns.
    pub(super) async fn expire_idle(&self) {
        loop {
            tokio::time::sleep(EXPIRY_INTERVAL).await;
            for playlist in self.playlists.borrow_mut().values_mut() {
                playlist.prefetches.retain(|_, track| track.last_used.get().elapsed() < PREFETCH_TTL);
            }
        }
    }

    /// The prefetches of all playlists, for the status.
    pub(super) fn status(&self, now: marline_core::units::Instant) -> Vec<Value> {
        let mut entries = Vec::new();
        for (PlaylistKey { player, playlist_url: list, .. }, followed) in &*self.playlists.borrow() {
            for prefetch in followed.prefetches.values() {
                let prefetched = prefetch.prefetched.borrow();
                // Ranges of one file are responses of one session.
                let sessions: BTreeMap<u64, &Session> =
                    prefetched.iter().map(|response| (response.session.id, &*response.session)).collect();
                let bytes: u64 = sessions.values().map(|session| session.buffered_bytes()).sum();
                let seconds: f64 =
                    prefetched.iter().map(|response| response.segment.duration).sum::<Duration>().as_secs_f64();
                let status = prefetch.track.status(now);
                let playlist = Url::parse(list).map(|url| redacted(&url)).unwrap_or_default();
                entries.push(json!({
                    "player": player, "playlist": playlist, "has_alternatives": followed.info.can_choose,
                    "state": status.as_ref().map(|status| status.state),
                    "buffer_s": status.as_ref().map(|status| status.buffer.as_secs_f64()),
                    "stalls": status.as_ref().map(|status| status.stalls),
                    "rate_bps": status.as_ref().map(|status| status.rate.bits_per_sec()),
                    "prefetched_segments": prefetched.len(), "prefetched_s": seconds, "prefetched_bytes": bytes,
                }));
            }
        }
        entries
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
    ) -> Option<(usize, (MediaSegment, SegmentTiming), Vec<MediaSegment>)> {
        let locate = |range: Option<&Range<u64>>| {
            self.renditions.iter().enumerate().find_map(|(index, rendition)| {
                let next = rendition.index.after(url, range, MAX_PREFETCHED)?;
                let timing = rendition.timing(url, range)?;
                let segment = MediaSegment { url: url.clone(), range: range.cloned(), duration: timing.duration };
                Some((index, (segment, timing), next))
            })
        };
        // A player that has lost its connection requests the rest of a segment.
        locate(range).or_else(|| locate(None).filter(|_| range.is_some()))
    }
}

impl RenditionPrefetch {
    fn new(track: &Rc<TrackPlayback>, egress: EgressPolicy) -> Self {
        Self {
            track: Rc::clone(track),
            egress: Cell::new(egress),
            prefetched: RefCell::default(),
            last_request: RefCell::default(),
            task: RefCell::default(),
            last_used: Cell::new(Instant::now()),
        }
    }
}

impl SegmentRequest {
    /// The prefetched response, if there is a usable one.
    pub(super) async fn take_prefetched(
        &mut self,
        requested: RequestedRange,
    ) -> Option<(ResponseHead, ResponseBody)> {
        let PrefetchedResponse { result_rx: opened, _task: _opening, .. } = self.prefetched.take()?;
        let (mut head, bytes) = opened.await.ok()?.ok()?;
        if requested == RequestedRange::Bytes(0, None) && head.range.is_none() && head.accepts_ranges {
            head.range = head.total.filter(|total| *total > 0).map(|total| 0..total);
        }
        Some((head, bytes))
    }

    /// The response for a player that still reads the preceding segment. `None`: it does not, or the head cannot be
    /// known without the body.
    pub(super) async fn deferred_response(
        &mut self,
        sessions: &Rc<Sessions>,
        session: &Rc<Session>,
        requested: RequestedRange,
    ) -> Option<(ResponseHead, DeferredBody)> {
        let preceding = self.preceding.take().filter(|before| is_being_read(before))?;
        let head = sessions.head(session, requested).await.ok()?;
        let total = session.total().filter(|_| head.accepts_ranges)?;
        if !playlist_handler::is_not_playlist(session, &head) {
            return None;
        }
        let length = head.range.as_ref().map_or(total.bytes(), |span| span.end - span.start);
        let guard = OpeningGuard::new(session);
        let (sessions, session) = (Rc::clone(sessions), Rc::clone(session));
        let deferred = Box::pin(async move {
            while is_being_read(&preceding) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let opened = sessions.open(&session, requested, |_| true).await;
            drop(guard);
            let (mut head, mut bytes) = opened.ok().filter(|(head, _)| head.total == Some(total.bytes()))?;
            // The head has been sent already, so a playlist could not be rewritten any more.
            let format = playlist_handler::detect_format(&session, (&mut head, &mut bytes), requested).await;
            match (format, bytes) {
                (Ok(None), ResponseBody::Stream(stream)) => Some(stream),
                _ => None,
            }
        });
        Some((head, DeferredBody { opening: deferred, remaining: length, permit: None }))
    }

    /// Starts to prefetch the following segments. `session` is that of the segment which the player reads.
    pub(super) fn prefetch_next(self, sessions: &Rc<Sessions>, session: &Rc<Session>) {
        let Self { prefetch, next, .. } = self;
        let (weak_prefetch, sessions, session) =
            (Rc::downgrade(&prefetch), Rc::clone(sessions), Rc::clone(session));
        let task = tokio::task::spawn_local(async move {
            let mut preceding = session;
            for segment in next {
                let Some(prefetch) = weak_prefetch.upgrade() else { return };
                let already_open = prefetch
                    .prefetched
                    .borrow()
                    .iter()
                    .find(|response| response.segment == segment)
                    .map(|h| Rc::clone(&h.session));
                drop(prefetch);
                if let Some(opened_session) = already_open {
                    preceding = opened_session;
                    continue;
                }
                while !preceding.is_almost_complete(PREFETCH_LEAD) {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                let Some(prefetch) = weak_prefetch.upgrade() else { return };
                preceding = open_ahead(&sessions, &preceding, &prefetch, segment);
            }
        });
        *prefetch.task.borrow_mut() = Some(AbortOnDrop(task));
    }
}

/// Whether the player reads a segment whose end is not about to arrive.
fn is_being_read(session: &Session) -> bool {
    session.is_opening.get() || (session.active_count() > 0 && !session.is_almost_complete(PREFETCH_LEAD))
}

/// Marks a session as being opened until this is dropped.
struct OpeningGuard(Rc<Session>);

impl OpeningGuard {
    fn new(session: &Rc<Session>) -> Self {
        session.is_opening.set(true);
        Self(Rc::clone(session))
    }
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
    }
}

/// Opens a segment before the player requests it.
fn open_ahead(
    sessions: &Rc<Sessions>,
    preceding: &Session,
    prefetch: &RenditionPrefetch,
    segment: MediaSegment,
) -> Rc<Session> {
    let target = preceding.sibling(segment.url.clone());
    let origin_url = sessions.prefetcher.origin_for(&preceding.player, &target.url);
    let headers =
        preceding.headers.for_sibling(&sessions.cookie_jars, &preceding.player, target.login.as_ref(), origin_url);
    let session = sessions.session_for(target, preceding.player.clone(), headers, prefetch.egress.get());
    session.max_window.set(preceding.max_window.get());
    if sessions.options.stream.policy == Policy::Marline
        && let Some(track_segment) = prefetch.track.prefetched_segment(&segment)
    {
        let playback = sessions.prefetcher.playback_of(&session.player);
        session.set_segment(segment.range.as_ref().map_or(0, |span| span.start), &playback, track_segment);
    }
    let requested = segment
        .range
        .clone()
        .map_or(RequestedRange::Full, |span| RequestedRange::Bytes(span.start, Some(span.end)));
    let (result_tx, result_rx) = oneshot::channel();
    let (task_sessions, task_session) = (Rc::clone(sessions), Rc::clone(&session));
    let guard = OpeningGuard::new(&session);
    let task = tokio::task::spawn_local(async move {
        let result = task_sessions.open(&task_session, requested, |_| true).await;
        drop(guard);
        let _ = result_tx.send(result);
    });
    let prefetched =
        PrefetchedResponse { segment, session: Rc::clone(&session), result_rx, _task: AbortOnDrop(task) };
    prefetch.prefetched.borrow_mut().push_back(prefetched);
    session
}

/// The number of prefetched segments. chosen: with segments of two seconds this looks six seconds ahead, enough for a
/// link to change.
const MAX_PREFETCHED: usize = 3;
/// How long before the end of a segment the next one begins. chosen: an RTT under load, which a new request needs.
const PREFETCH_LEAD: Duration = Duration::from_millis(250);
/// How often the progress of a segment is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a response waits for a player without requests. chosen: a player with a full buffer requests the next
/// segment within the duration of one.
const PREFETCH_TTL: Duration = Duration::from_secs(60);
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a playlist is remembered without a request. chosen: a pause of half an hour.
const PLAYLIST_TTL: Duration = Duration::from_secs(1800);
/// How long a playlist counts as followed without a request for it or one of its segments. chosen: twice as long as
/// players with a full buffer send no request.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(120);
/// chosen: the playlists of two hundred players.
const MAX_PLAYLISTS: usize = 1000;

#[cfg(test)]
mod tests {
    use marline_net::egress::AddressZone;

    use super::*;

    #[test]
    fn urls_of_a_playlist_s_own_host_are_restricted_while_it_is_remembered() {
        let memory = BufferBudget::new(DataSize::from_mib(64), DataSize::from_mib(32));
        let url = |text: &str| Url::parse(text).unwrap();
        let playlist = FollowedPlaylist {
            info: PlaylistInfo::default(),
            host: "h.test".to_owned(),
            egress: EgressPolicy::for_peer("127.0.0.1:5".parse().unwrap()).referred_by_zone(AddressZone::Internet),
            origin_url: url("http://h.test/"),
            prefetches: BTreeMap::new(),
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
