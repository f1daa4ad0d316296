//! Prefetches segments: while the player reads one, the next ones of the same rendition (a quality of the video, or a
//! sound track) are already being downloaded.
//!
//! Learns from the [`FollowedPlaylists`](crate::playlist::followed::FollowedPlaylists) which segments follow the one that
//! the player requests, and holds responses that are already open when the player requests them.
//!
//! 1. Earliest deadline first: the next segment starts when all but the last [`PREFETCH_LEAD`] of the preceding one has
//!    arrived. So it takes no capacity from data with an earlier deadline, and the links never wait for the player's
//!    next request.
//! 2. At most [`MAX_PREFETCHED`] segments are held, each in its own window of a quarter of the player's
//!    ([`BufferBudget`](crate::client::buffer_budget::BufferBudget)). The current segment and the prefetched ones together use no
//!    more than one film would. Flow control stops the servers when a window is full.
//! 3. Prefetched responses are dropped as soon as the player requests a different segment or another rendition of the
//!    same set, and after [`PREFETCH_TTL`] without a request.
//! 4. A player that requests a segment while it still reads the preceding one (ffmpeg does, on a second connection)
//!    gets the head at once, and the bytes in the order of rule 1.
//! 5. A prefetched response is used only for a request that would have fetched it in the same way: the same client,
//!    login and forwarded fields.
//! 6. The player gets what it requests. It alone selects the rendition, and nothing of another one is prefetched.
//! 7. [`TrackPlayback`] models such a player for the streams of its segments.
//!
//! A prefetched response is an ordinary response that is not being read yet, so there is neither a second cache nor a
//! second download path.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use marline_core::stream::Policy;
use marline_core::units::DataSize;
use marline_net::egress::EgressPolicy;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use url::Url;

use super::format_detection;
use crate::abort_on_drop::AbortOnDrop;
use crate::client::media_url::redacted;
use crate::client::range::RequestedRange;
use crate::delivery::stream_body::DeferredBody;
use crate::player::track_playback::TrackPlayback;
use crate::playlist::followed::{PlaylistKey, SegmentMatch};
use crate::playlist::segment_index::MediaSegment;
use crate::session::Session;
use crate::session::resource::{ResponseBody, ResponseHead};
use crate::session::table::Sessions;
use crate::upstream::request_error::RequestError;

/// The prefetches of all players; see the [module documentation](self).
pub(crate) struct Prefetcher {
    sessions: Rc<Sessions>,
    /// By playlist, and by the index of the rendition in it.
    prefetches: RefCell<BTreeMap<PlaylistKey, BTreeMap<usize, Rc<RenditionPrefetch>>>>,
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
    /// The time of the player's last request for a segment of it.
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
pub(crate) struct SegmentRequest {
    prefetch: Rc<RenditionPrefetch>,
    next: Vec<MediaSegment>,
    prefetched: Option<PrefetchedResponse>,
    /// The preceding segment, if the player still reads it.
    preceding: Option<Rc<Session>>,
}

impl Prefetcher {
    pub(crate) fn new(sessions: Rc<Sessions>) -> Self {
        Self { sessions, prefetches: RefCell::default() }
    }

    /// Matches a request with the followed playlists and prefetched responses; `None`: it is not for a known segment.
    pub(crate) fn match_request(&self, session: &Rc<Session>, requested: RequestedRange) -> Option<SegmentRequest> {
        let sessions = &self.sessions;
        let range = match requested {
            RequestedRange::Bytes(from, Some(end)) => Some(from..end),
            _ => None,
        };
        let found =
            sessions.followed_playlists.match_segment(&session.requester(), range.as_ref(), MAX_PREFETCHED)?;
        session
            .delivery
            .max_window
            .set(DataSize::from_bytes(sessions.buffer_budget.max_window().bytes() / (MAX_PREFETCHED as u64 + 1)));
        let set = |rendition: usize| found.rendition_sets.get(rendition).copied();
        let playback = sessions.playbacks.borrow_mut().playback_of(&session.player);
        let track = playback.track(&found.family_url, set(found.rendition).unwrap_or_default());
        let prefetch = self.select_rendition(&found, &track);
        let SegmentMatch { segment, timing, next, can_choose, .. } = found;
        // Only marline's own policy models segments; the published ones do not.
        if sessions.options.stream.policy == Policy::Marline {
            let from = range.as_ref().map_or(0, |span| span.start);
            let segment =
                playback.on_request(&track, session.delivery.now(), (&segment, timing), &next, can_choose);
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

    /// Drops the prefetches of the renditions that the player no longer plays, and returns that of the requested one.
    fn select_rendition(&self, found: &SegmentMatch, track: &Rc<TrackPlayback>) -> Rc<RenditionPrefetch> {
        let mut prefetches = self.prefetches.borrow_mut();
        // The player has selected one variant, so prefetched responses of the others are dropped.
        let SegmentMatch { key, variants, .. } = found;
        prefetches.retain(|other, _| {
            let is_of_user = (&other.player, other.user) == (&key.player, key.user);
            let is_variant = variants.iter().any(|variant| variant.as_str() == other.playlist_url);
            other == key || !is_of_user || !is_variant
        });
        let set = |rendition: usize| found.rendition_sets.get(rendition);
        let of_playlist = prefetches.entry(key.clone()).or_default();
        of_playlist.retain(|other, _| *other == found.rendition || set(*other) != set(found.rendition));
        let prefetch = of_playlist
            .entry(found.rendition)
            .or_insert_with(|| Rc::new(RenditionPrefetch::new(track, found.egress)));
        prefetch.egress.set(found.egress);
        Rc::clone(prefetch)
    }

    /// Drops the prefetches of playlists whose segments were forgotten.
    pub(crate) fn drop_unfollowed(&self) {
        let followed = &self.sessions.followed_playlists;
        self.prefetches.borrow_mut().retain(|key, _| followed.has_index(key));
    }

    /// Drops prefetches without a recent request. Never returns.
    pub(crate) async fn expire_idle(&self) {
        loop {
            tokio::time::sleep(EXPIRY_INTERVAL).await;
            self.prefetches.borrow_mut().retain(|_, of_playlist| {
                of_playlist.retain(|_, prefetch| prefetch.last_used.get().elapsed() < PREFETCH_TTL);
                !of_playlist.is_empty()
            });
        }
    }

    /// The prefetches of all playlists, for the status.
    pub(crate) fn status(&self) -> Vec<Value> {
        let now = self.sessions.links.now();
        let mut entries = Vec::new();
        for (key, of_playlist) in &*self.prefetches.borrow() {
            let can_choose = self.sessions.followed_playlists.can_choose(key);
            for prefetch in of_playlist.values() {
                let prefetched = prefetch.prefetched.borrow();
                // Ranges of one file are responses of one session.
                let sessions: BTreeMap<u64, &Session> =
                    prefetched.iter().map(|response| (response.session.id, &*response.session)).collect();
                let bytes: u64 = sessions.values().map(|session| session.delivery.responses.buffered_bytes()).sum();
                let seconds: f64 =
                    prefetched.iter().map(|response| response.segment.duration).sum::<Duration>().as_secs_f64();
                let status = prefetch.track.status(now);
                let playlist = Url::parse(&key.playlist_url).map(|url| redacted(&url)).unwrap_or_default();
                entries.push(json!({
                    "player": key.player, "playlist": playlist, "has_alternatives": can_choose,
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
    pub(crate) async fn take_prefetched(
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
    pub(crate) async fn deferred_response(
        &mut self,
        sessions: &Rc<Sessions>,
        session: &Rc<Session>,
        requested: RequestedRange,
    ) -> Option<(ResponseHead, DeferredBody)> {
        let preceding = self.preceding.take().filter(|before| is_being_read(before))?;
        let head = sessions.head(session, requested).await.ok()?;
        let total = session.delivery.total.get().filter(|_| head.accepts_ranges)?;
        if !format_detection::is_not_playlist(session, &head) {
            return None;
        }
        let length = head.range.as_ref().map_or(total.bytes(), |span| span.end - span.start);
        let guard = session.delivery.responses.begin_opening();
        let (sessions, session) = (Rc::clone(sessions), Rc::clone(session));
        let deferred = Box::pin(async move {
            while is_being_read(&preceding) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            let opened = sessions.open(&session, requested, |_| true).await;
            drop(guard);
            let (mut head, mut bytes) = opened.ok().filter(|(head, _)| head.total == Some(total.bytes()))?;
            // The head has been sent already, so a playlist could not be rewritten any more.
            let format = format_detection::detect_format(&session, (&mut head, &mut bytes), requested).await;
            match (format, bytes) {
                (Ok(None), ResponseBody::Stream(stream)) => Some(stream),
                _ => None,
            }
        });
        Some((head, DeferredBody { opening: deferred, remaining: length, permit: None }))
    }

    /// Starts to prefetch the following segments. `session` is that of the segment which the player reads.
    pub(crate) fn prefetch_next(self, sessions: &Rc<Sessions>, session: &Rc<Session>) {
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
    let responses = &session.delivery.responses;
    responses.is_opening() || (responses.count() > 0 && !session.is_almost_complete(PREFETCH_LEAD))
}

/// Opens a segment before the player requests it.
fn open_ahead(
    sessions: &Rc<Sessions>,
    preceding: &Session,
    prefetch: &RenditionPrefetch,
    segment: MediaSegment,
) -> Rc<Session> {
    let target = preceding.sibling(segment.url.clone());
    let origin_url = sessions.followed_playlists.origin_for(&preceding.player, &target.url);
    let headers =
        preceding.headers.for_sibling(&sessions.cookie_jars, &preceding.player, target.login.as_ref(), origin_url);
    let session = sessions.session_for(target, preceding.player.clone(), headers, prefetch.egress.get());
    session.delivery.max_window.set(preceding.delivery.max_window.get());
    if sessions.options.stream.policy == Policy::Marline
        && let Some(track_segment) = prefetch.track.prefetched_segment(&segment)
    {
        let playback = sessions.playbacks.borrow_mut().playback_of(&session.player);
        session.set_segment(segment.range.as_ref().map_or(0, |span| span.start), &playback, track_segment);
    }
    let requested = segment
        .range
        .clone()
        .map_or(RequestedRange::Full, |span| RequestedRange::Bytes(span.start, Some(span.end)));
    let (result_tx, result_rx) = oneshot::channel();
    let (task_sessions, task_session) = (Rc::clone(sessions), Rc::clone(&session));
    let guard = session.delivery.responses.begin_opening();
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

/// The number of segments that are prefetched for one rendition. Our choice: with segments of two seconds these are six
/// seconds of video, enough to bridge the change to another link.
const MAX_PREFETCHED: usize = 3;
/// How long before the end of a segment the next one begins. Our choice: an RTT under load, which a new request needs.
const PREFETCH_LEAD: Duration = Duration::from_millis(250);
/// How often the progress of a segment is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long prefetched responses are kept for a player that sends no requests. Our choice: a player with a full
/// buffer requests the next segment within the duration of one segment, which is much shorter.
const PREFETCH_TTL: Duration = Duration::from_secs(60);
/// How often prefetches are checked for [`PREFETCH_TTL`].
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);
