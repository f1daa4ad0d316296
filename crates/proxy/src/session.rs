//! Sessions: one player at one URL, what is known of the resource, and the responses in progress.
//!
//! [`Sessions::open`] turns a requested range into a response head and a body that delivers the bytes in order over all
//! links.
//!
//! 1. A session is identified by the player (its address and User-Agent) and the URL. It exists while a response is
//!    active and for [`SESSION_TTL`] afterwards, so that a seek finds what was learnt.
//! 2. Each response is one [`RangeDownload`]. Callers depend on [`Sessions::open`] only, not on how it is driven.
//! 3. A resource whose ranges provably belong together (size and strong validator) is remembered, with the URL that
//!    redirects led to. The first response of each transfer verifies that it is unchanged (If-Range). If it has
//!    changed, it is requested once more from scratch.
//! 4. A resource without ranges is fetched as one response over one link. If it has ranges but no strong validator,
//!    each requested range is passed on separately over one link.
//! 5. When the player closes its connection, every transfer for this response ends at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use http::header::HeaderValue;
use marline_core::fetch::{ByteRange, ConnError, ConnErrorKind, Failure, RequestRange};
use marline_core::units::{Bitrate, DataSize};
use marline_download::store::{Reader, StoreError, StreamIdentity};
use marline_download::{
    ClientContext, DownloadError, DownloadObserver as _, KnownResource, Progress, RangeDownload, ResourceInfo,
};
use marline_net::egress::EgressPolicy;
use marline_net::http::ResponseMeta;
use marline_net::http::resolver_host;
use marline_net::links::Interface;
use serde_json::json;
use tokio::time::{sleep, timeout};
use url::Url;

use super::body::{AbortOnDrop, StreamBody, TransferState};
use super::buffer_budget::{BufferBudget, Client, GrantError, WindowGrant};
use super::energy::EnergyMeter;
use super::events::Events;
use super::link_selector::{Candidate, ClientHost, LinkSelector};
use super::media_url::{MediaUrl, redacted};
use super::player_estimator::PlayerEstimator;
use super::player_report::PlayerReport;
use super::playlist_handler::PlaylistFormat;
use super::playlist_reader::PlaylistReader;
use super::prefetch::Prefetcher;
use super::range::{self, RequestedRange};
use super::revocable_windows::RevocableWindows;
use super::session_observer::{SessionObserver, StreamDecisions};
use super::session_options::SessionOptions;
use super::single_link::{
    DRAIN_TIMEOUT, FIRST_BYTE_TIMEOUT, PeekOutcome, SEND_TIMEOUT, SingleLinkRequest, SingleLinkResponse,
};
use super::startup_gate::{StartMode, StartupGate};
use super::track_playback::{PlaylistPlayback, TrackSegment};
use super::upstream_headers::{CookieJars, UpstreamHeaders};

/// All sessions, and the state that they share.
pub(super) struct Sessions {
    pub(super) network: Rc<ClientContext>,
    pub(super) buffer_budget: BufferBudget,
    pub(super) windows: RevocableWindows,
    pub(super) playlist_reader: PlaylistReader,
    pub(super) events: Rc<Events>,
    pub(super) link_selector: Rc<RefCell<LinkSelector>>,
    pub(super) prefetcher: Prefetcher,
    pub(super) energy_meter: Rc<RefCell<EnergyMeter>>,
    pub(super) options: SessionOptions,
    pub(super) cookie_jars: CookieJars,
    by_key: RefCell<BTreeMap<SessionKey, Rc<Session>>>,
    next_id: Cell<u64>,
    started: Instant,
}

/// Requests with equal keys share a session: URL with login, player, forwarded header fields, and the permitted
/// destinations. Data fetched for one session is never given to another.
type SessionKey = (String, String, Vec<u8>, EgressPolicy);

/// One player at one URL.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) url: Url,
    pub(super) player: String,
    /// The destinations that its URL may lead to.
    pub(super) egress: EgressPolicy,
    login: Option<(String, String)>,
    pub(super) headers: UpstreamHeaders,
    resource: RefCell<Option<Resource>>,
    /// The outcome of the last request or probe, as a text for the status.
    pub(super) status_text: RefCell<String>,
    pub(super) progress: RefCell<Option<Progress>>,
    pub(super) active_responses: RefCell<BTreeMap<u64, ActiveResponse>>,
    /// Length of the windows of all its active responses together.
    granted_bytes: Cell<u64>,
    /// The largest window of one response: smaller for one of several segments than for a whole film.
    pub(super) max_window: Cell<DataSize>,
    /// The playlist format, if the resource is a playlist or manifest.
    pub(super) playlist_format: Cell<Option<PlaylistFormat>>,
    /// The resource was requested as a playlist and the response was none. Later responses may be playlists.
    pub(super) not_a_playlist: Cell<bool>,
    /// The first byte of the resource, as in the last response that contained it.
    pub(super) first_byte: Cell<Option<u8>>,
    /// The player closed its last response before the end.
    pub(super) left_early: Cell<bool>,
    /// The resource is being opened before the player requests it.
    pub(super) is_opening: Cell<bool>,
    pub(super) delivered_bytes: Cell<u64>,
    last_used: Cell<Instant>,
    pub(super) proxy_start: Instant,
    pub(super) player_estimator: RefCell<PlayerEstimator>,
    pub(super) startup_gate: StartupGate,
    /// The last report of the player about itself, and when it arrived.
    pub(super) player_report: RefCell<Option<(PlayerReport, Instant)>>,
    pub(super) decisions: RefCell<StreamDecisions>,
    /// The segments that are responses of this session, by the offset of their first byte, with the playback that they
    /// belong to.
    segments: RefCell<BTreeMap<u64, PlaylistSegment>>,
    /// What the last response learnt about the links: interface, rate, whether it was on standby.
    pub(super) link_estimates: RefCell<Vec<(String, Bitrate, bool)>>,
}

/// A segment, and the playback that it belongs to.
pub(super) type PlaylistSegment = (Rc<PlaylistPlayback>, Rc<TrackSegment>);

/// A response in progress: its byte range, and the reader of its window.
pub(super) type ActiveResponse = (Range<u64>, Weak<Reader>);

/// What is known of a resource whose ranges provably belong together.
#[derive(Clone, Debug)]
struct Resource {
    known: KnownResource,
    description: ResponseMeta,
    url: Url,
    /// The destinations to which this URL may connect.
    egress: EgressPolicy,
    checked_at: Instant,
}

/// The head of a response to the player.
#[derive(Clone, Debug)]
pub(super) struct ResponseHead {
    pub(super) description: ResponseMeta,
    pub(super) total: Option<u64>,
    /// The byte range of a 206; `None`: a 200.
    pub(super) range: Option<Range<u64>>,
    /// Whether the player may request ranges of it.
    pub(super) accepts_ranges: bool,
}

/// The bytes that follow a head.
pub(super) enum ResponseBody {
    /// Downloaded over all links.
    Stream(Box<StreamBody>),
    /// Passed on from one upstream response over one link.
    SingleLink(Box<SingleLinkResponse>),
}

/// Why a request of a player cannot be satisfied.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The range lies beyond the end. Holds the size of the resource.
    RangeNotSatisfiable(u64),
    /// The origin server responded with this error status.
    Status(u16),
    /// The origin server cannot be reached, or its response is unusable.
    BadGateway(String),
    /// The client, or the URL that led here, is not permitted to reach this address.
    Forbidden(String),
    /// The URL leads back to the proxy.
    LoopDetected(String),
    /// The origin server accepts requests and does not respond.
    Timeout(String),
    /// No link can be used.
    NoLink(String),
    /// No memory is left for another window.
    OutOfMemory,
}

/// The result of probing a resource.
enum ResourceProbe {
    /// Ranges with a size and a strong validator.
    Ranges(Resource),
    /// Ranges without a strong validator, which may belong to different versions.
    WeakRanges(ResponseHead),
    /// No ranges.
    NoRanges(ResponseHead),
}

impl ResponseBody {
    /// Reads bytes until `is_enough` accepts them or the body ends. They stay part of the body.
    pub(super) async fn peek(&mut self, is_enough: &impl Fn(&[u8]) -> bool) -> PeekOutcome {
        match self {
            Self::Stream(stream) => stream.peek(is_enough).await,
            Self::SingleLink(single) => single.peek(is_enough).await,
        }
    }

    /// The bytes that [`peek`](Self::peek) has read.
    pub(super) fn peeked(&self) -> &[u8] {
        match self {
            Self::Stream(stream) => stream.peeked(),
            Self::SingleLink(single) => single.peeked(),
        }
    }
}

impl Sessions {
    pub(super) fn new(
        network: Rc<ClientContext>,
        buffer_budget: BufferBudget,
        events: Rc<Events>,
        options: SessionOptions,
    ) -> Self {
        Self {
            network,
            buffer_budget,
            windows: RevocableWindows::default(),
            playlist_reader: PlaylistReader::default(),
            events,
            link_selector: Rc::default(),
            prefetcher: Prefetcher::default(),
            energy_meter: Rc::new(RefCell::new(EnergyMeter::new(options.energy_model.clone()))),
            next_id: Cell::new(options.first_log_number()),
            options,
            cookie_jars: CookieJars::default(),
            by_key: RefCell::default(),
            started: Instant::now(),
        }
    }

    /// Returns the session of a player at a URL, and creates it if there is none.
    pub(super) fn session_for(
        &self,
        target: MediaUrl,
        player: String,
        headers: UpstreamHeaders,
        egress: EgressPolicy,
    ) -> Rc<Session> {
        let mut table = self.by_key.borrow_mut();
        table.retain(|_, session| session.active_count() > 0 || session.last_used.get().elapsed() < SESSION_TTL);
        while table.len() >= MAX_SESSIONS {
            let idle = table.iter().filter(|(_, session)| session.active_count() == 0);
            let Some(oldest) = idle.min_by_key(|(_, session)| session.last_used.get()).map(|(key, _)| key.clone())
            else {
                break;
            };
            table.remove(&oldest);
        }
        // A NUL cannot occur in a URL, so it separates the login unambiguously.
        let login =
            target.login.as_ref().map(|(user, password)| format!("{user}\0{password}\0")).unwrap_or_default();
        let key = (format!("{login}{}", target.url), player.clone(), headers.session_key(), egress);
        let session = table.entry(key).or_insert_with(|| {
            let id = self.next_id.replace(self.next_id.get() + 1);
            self.events.publish(&json!({"event": "session", "session": id, "url": redacted(&target.url)}));
            Rc::new(Session::new(id, target, player, headers, egress, self.started, self.options.start_mode))
        });
        session.last_used.set(Instant::now());
        Rc::clone(session)
    }

    /// All sessions, the oldest first.
    pub(super) fn all(&self) -> Vec<Rc<Session>> {
        let mut all: Vec<_> = self.by_key.borrow().values().cloned().collect();
        all.sort_by_key(|session| session.id);
        all
    }

    /// The current head of a resource, according to its origin within the last [`DESCRIPTION_TTL`].
    pub(super) async fn head(
        &self,
        session: &Session,
        requested: RequestedRange,
    ) -> Result<ResponseHead, RequestError> {
        let fresh = session.resource.borrow().clone().filter(|known| known.checked_at.elapsed() < DESCRIPTION_TTL);
        let probed = match fresh {
            Some(resource) => ResourceProbe::Ranges(resource),
            None => self.probe_resource(session).await?,
        };
        match probed {
            ResourceProbe::Ranges(resource) => resource.response_head(requested),
            ResourceProbe::WeakRanges(head) | ResourceProbe::NoRanges(head) => Ok(head),
        }
    }

    /// Opens the bytes that a player requests. `holds` evaluates the player's condition (If-Range) for a validator.
    pub(super) async fn open(
        &self,
        session: &Rc<Session>,
        requested: RequestedRange,
        holds: impl Fn(Option<&str>) -> bool,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        if let Some(timeout) = self.prefetcher.blocking_timeout(session) {
            return self.open_blocking(session, requested, timeout).await;
        }
        // The second attempt follows if the remembered resource turns out to have changed.
        for last_try in [false, true] {
            let resource = session.resource.borrow().clone();
            // A request for the whole resource needs no probe: its own response describes the resource.
            let from_zero =
                matches!(requested, RequestedRange::Full | RequestedRange::Bytes(0, None)) && holds(None);
            let probed = match resource {
                Some(resource) => ResourceProbe::Ranges(resource),
                None if from_zero => return self.open_first(session, requested).await,
                None => self.probe_resource(session).await?,
            };
            match probed {
                ResourceProbe::Ranges(resource) => {
                    let wanted = if holds(Some(resource.known.validator.if_range_value())) {
                        requested
                    } else {
                        RequestedRange::Full
                    };
                    match self.open_known(session, resource, wanted).await {
                        Err(StaleResource(None)) if !last_try => *session.resource.borrow_mut() = None,
                        Err(StaleResource(refusal)) => {
                            let changes =
                                || RequestError::BadGateway("the resource changes again and again".to_owned());
                            return Err(refusal.unwrap_or_else(changes));
                        }
                        Ok(opened) => return Ok(opened),
                    }
                }
                ResourceProbe::WeakRanges(head) => {
                    let requested = if holds(None) { requested } else { RequestedRange::Full };
                    return self.open_unverified(session, requested, &head).await;
                }
                ResourceProbe::NoRanges(_) => return self.open_first(session, RequestedRange::Full).await,
            }
        }
        Err(RequestError::BadGateway("the resource changes again and again".to_owned()))
    }

    /// Starts the first transfer of a resource: it reads from the beginning to the end, and its first response
    /// identifies the resource.
    async fn open_first(
        &self,
        session: &Rc<Session>,
        requested: RequestedRange,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let download = self.build_download(session, (session.url.clone(), session.egress), None, 0..u64::MAX)?;
        let mut stream = self.start_stream(session, download, 0..u64::MAX)?;
        let Ok(identity) = timeout(FIRST_BYTE_TIMEOUT, stream.wait_for_identity()).await else {
            return Err(RequestError::Timeout(NO_FIRST_BYTE.to_owned()));
        };
        let Some(StreamIdentity { total, validator }) = identity.filter(|_| !stream.has_failed_without_data())
        else {
            return Err(transfer_error(stream.transfer.outcome.take()));
        };
        // The length of an empty resource is known from a 416, which carries no metadata.
        let source = stream.transfer.description.borrow().clone();
        let (described, (url, egress)) = source.map_or_else(
            || (ResponseMeta::default(), (session.url.clone(), session.egress)),
            |ResourceInfo { meta: described, url, egress, .. }| (described, (url, egress)),
        );
        stream.set_length(total.map(DataSize::bytes));
        let ranges = validator.is_some();
        if let (Some(total), Some(validator)) = (total, validator) {
            let known = KnownResource { total, validator };
            let checked = Instant::now();
            let resource = Resource { known, description: described.clone(), url, egress, checked_at: checked };
            *session.resource.borrow_mut() = Some(resource);
        }
        let total = total.map(DataSize::bytes);
        session.set_status(if ranges {
            "ranges over all links"
        } else {
            "one response over one link: no provable ranges"
        });
        let range =
            total.filter(|total| ranges && requested != RequestedRange::Full && *total > 0).map(|total| 0..total);
        Ok((
            ResponseHead { description: described, total, range, accepts_ranges: ranges },
            ResponseBody::Stream(Box::new(stream)),
        ))
    }

    /// Starts a transfer of a resource that is already known.
    async fn open_known(
        &self,
        session: &Rc<Session>,
        resource: Resource,
        requested: RequestedRange,
    ) -> Result<(ResponseHead, ResponseBody), StaleResource> {
        let head = resource.response_head(requested).map_err(|refusal| StaleResource(Some(refusal)))?;
        let total = resource.known.total.bytes();
        let range = head.range.clone().unwrap_or(0..total);
        let stale = |refusal| StaleResource(Some(refusal));
        let location = (resource.url.clone(), resource.egress);
        let download =
            self.build_download(session, location, Some(resource.known), range.clone()).map_err(stale)?;
        let mut stream = self.start_stream(session, download, range.clone()).map_err(stale)?;
        stream.set_length(Some(range.end - range.start));
        if !range.is_empty() {
            tokio::select! {
                _ = stream.wait_for_identity() => {}
                // The probe that follows determines the error status of the origin.
                () = stream.wait_until_all_links_down() => return Err(StaleResource(None)),
                () = sleep(FIRST_BYTE_TIMEOUT) => return Err(StaleResource(Some(RequestError::Timeout(NO_FIRST_BYTE.to_owned())))),
            }
            if stream.has_failed_without_data() {
                return Err(match stream.transfer.outcome.take() {
                    // The resource has changed, or the URL that a redirect led to is no longer valid.
                    Some(Err(DownloadError::Store(StoreError::ChangedAfterDelivery { .. }))) => StaleResource(None),
                    Some(Err(DownloadError::Failed { .. })) if resource.url != session.url => StaleResource(None),
                    outcome => StaleResource(Some(transfer_error(outcome))),
                });
            }
        }
        if let Some(resource) = &mut *session.resource.borrow_mut() {
            resource.checked_at = Instant::now();
        }
        session.set_status("ranges over all links");
        Ok((head, ResponseBody::Stream(Box::new(stream))))
    }

    /// Passes on one range as the origin server delivers it.
    async fn open_unverified(
        &self,
        session: &Session,
        requested: RequestedRange,
        probed: &ResponseHead,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let single = self.request_single(session, upstream_range(requested, probed.total)).await?;
        session.set_status("one response over one link: no strong validator");
        passthrough(single)
    }

    /// Requests a part that does not exist yet: the server delays its response until the part exists, for at most
    /// `timeout`. This delay is no stall of the link, so no other link is tried meanwhile.
    async fn open_blocking(
        &self,
        session: &Session,
        requested: RequestedRange,
        timeout: Duration,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let links = self.links_beside_playback(session)?;
        let request = SingleLinkRequest { timeout, ..session.single_link_request(upstream_range(requested, None)) };
        session.set_status("one response over one link: the server delays it until the part exists");
        passthrough(SingleLinkResponse::request(&self.network, &links, &request).await?)
    }

    /// Requests the first byte, to learn what the resource is.
    async fn probe_resource(&self, session: &Session) -> Result<ResourceProbe, RequestError> {
        let mut response = self.request_single(session, RequestRange::Bounded(ByteRange::new(0, 1))).await?;
        let described = response.described.clone();
        let head = |total: Option<DataSize>, accepts_ranges| ResponseHead {
            description: described.clone(),
            total: total.map(DataSize::bytes),
            range: None,
            accepts_ranges,
        };
        let total = response.head.range.and_then(|range| range.total);
        let probe = match (response.head.status, total, response.head.validator.clone()) {
            (206, Some(total), Some(validator)) => {
                let known = KnownResource { total, validator };
                let resource = Resource {
                    known,
                    description: described,
                    url: response.url.clone(),
                    egress: response.egress,
                    checked_at: Instant::now(),
                };
                *session.resource.borrow_mut() = Some(resource.clone());
                let _ = timeout(DRAIN_TIMEOUT, response.peek(&|first| !first.is_empty())).await;
                session.first_byte.set(response.peeked().first().copied());
                ResourceProbe::Ranges(resource)
            }
            (206, total, _) => ResourceProbe::WeakRanges(head(total, true)),
            // An empty resource has no first byte.
            (416, total, _) => ResourceProbe::NoRanges(head(total.or(Some(DataSize::ZERO)), false)),
            (200, _, _) => ResourceProbe::NoRanges(head(response.head.length, false)),
            (status, ..) => return Err(RequestError::Status(status)),
        };
        response.drain().await;
        Ok(probe)
    }

    /// Sends one request over the link that suits the host.
    async fn request_single(
        &self,
        session: &Session,
        range: RequestRange,
    ) -> Result<SingleLinkResponse, RequestError> {
        let links = self.links_beside_playback(session)?;
        Ok(SingleLinkResponse::request(&self.network, &links, &session.single_link_request(range)).await?)
    }

    /// The interfaces for a single request during playback: links on standby come last, so that their radios stay idle.
    pub(super) fn links_beside_playback(&self, session: &Session) -> Result<Vec<Option<Interface>>, RequestError> {
        let mut links = self.ranked_links(&session.url)?;
        let is_standby_link = |link: &Option<Interface>| {
            link.as_ref().is_some_and(|link| self.prefetcher.is_standby(&session.player, &link.name))
        };
        links.sort_by_key(is_standby_link);
        Ok(links)
    }

    /// The interfaces for a connection to the URL's host, the best one first.
    pub(super) fn ranked_links(&self, url: &Url) -> Result<Vec<Option<Interface>>, RequestError> {
        if self.network.needs_no_link(&resolver_host(url)) {
            return Ok(vec![None]);
        }
        let links: Vec<_> = self.ranked_interfaces(&(None, resolver_host(url))).into_iter().map(Some).collect();
        if links.is_empty() { Err(RequestError::NoLink("no link can be used now".to_owned())) } else { Ok(links) }
    }

    /// The interfaces for a client's connection to a host, the best one first.
    pub(super) fn ranked_interfaces(&self, key: &ClientHost) -> Vec<Interface> {
        let up_links: Vec<_> = self.network.links().into_iter().filter(|link| link.is_up).collect();
        let candidates: Vec<Candidate> = up_links
            .iter()
            .map(|link| Candidate { name: link.profile.name.clone(), metered: link.profile.metered })
            .collect();
        let policy = (self.options.stream.fetch.metered, self.options.spread_mode);
        let ranked = self.link_selector.borrow().rank_links(self.now(), key, &candidates, policy);
        let interface = |name: &String| up_links.iter().find(|link| link.profile.name == *name)?.interface.clone();
        ranked.iter().filter_map(interface).collect()
    }

    /// Time since the proxy started.
    pub(super) fn now(&self) -> marline_core::units::Instant {
        marline_core::units::Instant::ZERO + self.started.elapsed()
    }

    fn build_download(
        &self,
        session: &Session,
        (url, egress): (Url, EgressPolicy),
        known: Option<KnownResource>,
        range: Range<u64>,
    ) -> Result<RangeDownload, RequestError> {
        let link_order = self.ranked_links(&url)?.into_iter().flatten().map(|interface| interface.name).collect();
        // The login is valid for the host that the player named; the URL of a redirect has its own.
        let user = session.login.clone().filter(|_| url.origin() == session.url.origin());
        let end = known.as_ref().map(|_| range.end);
        let (from, window) = (range.start, DataSize::ZERO);
        let config = self.options.stream.clone();
        let prices = self.options.prices.clone();
        let expected = match session.segment_at(range.start) {
            Some((playback, _)) => playback.rates.borrow().estimates(),
            None => session.estimates_for(range.start),
        };
        Ok(RangeDownload {
            headers: session.headers.headers_for(&url),
            cross_origin_headers: session.headers.cross_origin(),
            cookie_jar: Rc::clone(&session.headers.cookie_jar),
            url,
            basic_auth: user,
            egress,
            config,
            preferred_links: link_order,
            link_estimates: expected,
            link_prices: prices,
            trace: None,
            resource: known,
            start: from,
            end,
            window,
        })
    }

    /// Starts a download: grants its window, registers the response in the session, and runs the transfer in a task.
    fn start_stream(
        &self,
        session: &Rc<Session>,
        mut download: RangeDownload,
        range: Range<u64>,
    ) -> Result<StreamBody, RequestError> {
        // The grant treats bytes that this session may not use as already granted, which limits the window to
        // `max_window`.
        let unused_window = self.buffer_budget.max_window() - session.max_window.get();
        let held = DataSize::from_bytes(session.granted_bytes.get()).max(unused_window);
        let grant = self.grant_window(session, held)?;
        download.window = grant.size();
        session.granted_bytes.set(session.granted_bytes.get() + grant.size().bytes());
        let (id, from) = (self.next_id.replace(self.next_id.get() + 1), download.start);
        download.trace = self.options.trace_dir.as_ref().map(|folder| folder.join(format!("{id:06}.ndjson")));
        let standby_links = download
            .link_estimates
            .iter()
            .filter(|(.., is_standby)| *is_standby)
            .map(|(name, ..)| name.clone())
            .collect();
        let (reader, transfer) = download.split();
        let (reader, window) = (Rc::new(reader), grant.size());
        session.player_estimator.borrow_mut().on_request(session.now(), from);
        *session.decisions.borrow_mut() = StreamDecisions { standby_links, ..StreamDecisions::default() };
        session.active_responses.borrow_mut().insert(id, (range, Rc::downgrade(&reader)));
        let (description, outcome) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
        let all_links_down = Rc::new(Cell::new(false));
        let segment = session.segment_at(from);
        let mut observer = SessionObserver::new(id, from, self, session, window, Rc::clone(&all_links_down));
        let (network, learnt_slot, outcome_slot) =
            (Rc::clone(&self.network), Rc::clone(&description), Rc::clone(&outcome));
        let task = tokio::task::spawn_local(async move {
            let result = transfer.run(&network, &mut observer, learnt_slot).await;
            if let Err(error) = &result {
                observer.on_message(&error.to_string());
            }
            *outcome_slot.borrow_mut() = Some(result);
            observer.on_transfer_ended();
        });
        // The window owns the transfer: revoking or dropping it aborts the task.
        let window_handle =
            self.windows.add_granted(session.now(), &session.egress, grant, reader, AbortOnDrop(task));
        let transfer_state = TransferState { description, outcome, all_links_down };
        Ok(StreamBody::new(
            id,
            from,
            Rc::clone(session),
            segment.map(|(_, part)| part),
            window_handle,
            transfer_state,
        ))
    }

    /// Grants a window for another response. If none is left, revokes one of the client that has the most.
    fn grant_window(&self, session: &Session, held: DataSize) -> Result<WindowGrant, RequestError> {
        let client = Client::of_egress(&session.egress);
        let grant = self.buffer_budget.grant(client, held);
        let grant = grant.or_else(|denied| {
            let is_revoked = self.windows.revoke_for(&session.egress, denied == GrantError::RemoteShareExhausted);
            if is_revoked { self.buffer_budget.grant(client, held) } else { Err(denied) }
        });
        grant.map_err(|_| RequestError::OutOfMemory)
    }
}

/// The upstream request for the range that a player wants. `total` is the size of the resource, if known.
fn upstream_range(requested: RequestedRange, total: Option<u64>) -> RequestRange {
    match (requested, total) {
        (RequestedRange::Full, _) => RequestRange::Full,
        (RequestedRange::Bytes(from, None), _) => RequestRange::From(from),
        (RequestedRange::Bytes(from, Some(to)), _) => RequestRange::Bounded(ByteRange::new(from, to)),
        (RequestedRange::Suffix(len), Some(total)) => RequestRange::From(total.saturating_sub(len)),
        (RequestedRange::Suffix(_), None) => RequestRange::Full,
    }
}

/// The head and body of an upstream response that is passed on unchanged.
fn passthrough(response: SingleLinkResponse) -> Result<(ResponseHead, ResponseBody), RequestError> {
    let range = response.head.range.and_then(|range| range.range).map(|range| range.start..range.end);
    let total = response.head.range.and_then(|range| range.total).or(response.head.length);
    match response.head.status {
        206 if range.is_some() => {}
        200 => {}
        416 => return Err(RequestError::RangeNotSatisfiable(total.map_or(0, DataSize::bytes))),
        status => return Err(RequestError::Status(status)),
    }
    let range = range.filter(|_| response.head.status == 206);
    let total = total.map(DataSize::bytes);
    let head = ResponseHead { description: response.described.clone(), total, range, accepts_ranges: true };
    Ok((head, ResponseBody::SingleLink(Box::new(response))))
}

/// The remembered resource has changed (`None`), or cannot be fetched for this reason.
struct StaleResource(Option<RequestError>);

impl Resource {
    fn response_head(&self, requested: RequestedRange) -> Result<ResponseHead, RequestError> {
        let total = self.known.total.bytes();
        let range = requested
            .resolve(total)
            .map_err(|range::UnsatisfiableRange| RequestError::RangeNotSatisfiable(total))?;
        Ok(ResponseHead { description: self.description.clone(), total: Some(total), range, accepts_ranges: true })
    }
}

impl Session {
    fn new(
        id: u64,
        target: MediaUrl,
        player: String,
        headers: UpstreamHeaders,
        egress: EgressPolicy,
        started: Instant,
        start: StartMode,
    ) -> Self {
        Self {
            id,
            playlist_format: Cell::new(PlaylistFormat::from_extension(&target.url)),
            not_a_playlist: Cell::new(false),
            first_byte: Cell::new(None),
            left_early: Cell::new(false),
            is_opening: Cell::new(false),
            url: target.url,
            player,
            egress,
            login: target.login,
            headers,
            resource: RefCell::default(),
            status_text: RefCell::default(),
            progress: RefCell::default(),
            active_responses: RefCell::default(),
            granted_bytes: Cell::new(0),
            max_window: Cell::new(DataSize::MAX),
            delivered_bytes: Cell::new(0),
            last_used: Cell::new(Instant::now()),
            proxy_start: started,
            player_estimator: RefCell::default(),
            startup_gate: StartupGate::new(start),
            player_report: RefCell::default(),
            decisions: RefCell::default(),
            segments: RefCell::default(),
            link_estimates: RefCell::default(),
        }
    }

    /// Registers the bytes from an offset on as a segment of a playback.
    pub(super) fn set_segment(&self, from: u64, playback: &Rc<PlaylistPlayback>, segment: Rc<TrackSegment>) {
        let mut parts = self.segments.borrow_mut();
        parts.insert(from, (Rc::clone(playback), segment));
        while parts.len() > MAX_SEGMENTS {
            parts.pop_first();
        }
    }

    /// The segment that begins at an offset.
    pub(super) fn segment_at(&self, from: u64) -> Option<PlaylistSegment> {
        self.segments.borrow().get(&from).cloned()
    }

    /// The link estimates with which a response at an offset begins. After a seek no link starts on standby.
    fn estimates_for(&self, from: u64) -> Vec<(String, Bitrate, bool)> {
        let mut expected = self.link_estimates.borrow().clone();
        if !self.is_continuing_at(from) {
            expected.iter_mut().for_each(|(.., is_standby)| *is_standby = false);
        }
        expected
    }

    /// A request to the origin server, with the player's header fields and the login of its URL.
    pub(super) fn single_link_request(&self, range: RequestRange) -> SingleLinkRequest {
        let login = self.login.as_ref().and_then(|(user, password)| {
            let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            let mut value = HeaderValue::from_str(&format!("Basic {text}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let (url, fields) = (self.url.clone(), self.headers.clone());
        SingleLinkRequest {
            url,
            headers: fields,
            authorization: login,
            range,
            egress: self.egress,
            timeout: SEND_TIMEOUT,
            is_sent: Rc::default(),
        }
    }

    /// The address of another part of the same media, as the player will request it.
    pub(super) fn sibling(&self, url: Url) -> MediaUrl {
        // The login is valid for the host that the player named.
        let user = self.login.clone().filter(|_| url.origin() == self.url.origin());
        MediaUrl { url, login: user }
    }

    /// Adds the player's login to a URL of the host for which the login is valid.
    pub(super) fn url_with_login(&self, mut url: Url) -> Url {
        if let Some((user, password)) = self.login.as_ref().filter(|_| url.origin() == self.url.origin()) {
            // Both fail only for URLs without a host.
            let _ = url.set_username(user);
            let _ = url.set_password(Some(password));
        }
        url
    }

    /// Whether everything that was requested has arrived, or will within this time, and no response was abandoned. At
    /// most the last eighth is counted as arriving: a rate that has just been measured may be many times too high.
    pub(super) fn is_almost_complete(&self, within: Duration) -> bool {
        let total = self.total_and_validator().map_or(u64::MAX, |(total, _)| total);
        let rate = self.progress.borrow().as_ref().map_or(0.0, |progress| progress.rate);
        let soon_bytes = (rate / 8.0 * within.as_secs_f64()) as u64;
        let is_almost_complete = |(range, read_end, in_order, out_of_order): &(Range<u64>, u64, u64, u64)| {
            let end = range.end.min(total);
            end.saturating_sub(read_end + in_order + out_of_order)
                <= soon_bytes.min(end.saturating_sub(range.start) / 8)
        };
        let was_abandoned = self.left_early.get() && self.active_count() == 0;
        !self.is_opening.get() && !was_abandoned && self.buffers().iter().all(is_almost_complete)
    }

    /// Bytes buffered for the player, in order or not.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.buffers().iter().map(|(_, _, in_order, out_of_order)| in_order + out_of_order).sum()
    }

    /// The number of responses in progress.
    pub(super) fn active_count(&self) -> usize {
        self.active_responses.borrow().len()
    }

    /// The buffers of the responses in progress: byte range, how far the player has read, and how many bytes are
    /// buffered in order and beyond a gap.
    pub(super) fn buffers(&self) -> Vec<(Range<u64>, u64, u64, u64)> {
        let responses = self.active_responses.borrow();
        let buffered = |(range, reader): &ActiveResponse| {
            let (read_end, in_order, out_of_order) = reader.upgrade()?.buffered();
            Some((range.clone(), read_end, in_order, out_of_order))
        };
        responses.values().filter_map(buffered).collect()
    }

    /// Forgets a response that has ended, and releases its window.
    pub(super) fn on_response_ended(&self, id: u64, window: DataSize) {
        self.active_responses.borrow_mut().remove(&id);
        self.granted_bytes.set(self.granted_bytes.get().saturating_sub(window.bytes()));
        self.last_used.set(Instant::now());
        if self.active_count() == 0 {
            self.player_estimator.borrow_mut().on_last_response_ended(self.now());
            *self.progress.borrow_mut() = None;
        }
    }

    /// The size of a resource whose ranges provably belong together.
    pub(super) fn total(&self) -> Option<DataSize> {
        self.resource.borrow().as_ref().map(|resource| resource.known.total)
    }

    /// The size and the validator, if known.
    pub(super) fn total_and_validator(&self) -> Option<(u64, String)> {
        let resource = self.resource.borrow();
        resource.as_ref().map(|r| (r.known.total.bytes(), r.known.validator.if_range_value().to_owned()))
    }

    pub(super) fn set_status(&self, reason: &str) {
        *self.status_text.borrow_mut() = reason.to_owned();
    }
}

/// Waits for the first byte or the end of a transfer.
pub(super) async fn wait_for_identity(reader: &Reader) -> Option<StreamIdentity> {
    poll_fn(|cx| reader.poll_identity(cx)).await
}

impl From<ConnError> for RequestError {
    fn from(ConnError { kind, text }: ConnError) -> Self {
        match kind {
            ConnErrorKind::Forbidden => Self::Forbidden(text),
            ConnErrorKind::OwnListener => Self::LoopDetected(text),
            _ => Self::BadGateway(text),
        }
    }
}

/// The error that the player gets for a transfer that delivered nothing.
fn transfer_error(outcome: Option<Result<(), DownloadError>>) -> RequestError {
    match outcome {
        Some(Err(DownloadError::Failed { failure: Failure::BadStatus { status }, .. })) => {
            RequestError::Status(status)
        }
        Some(Err(DownloadError::Failed { failure: Failure::RetriesExhausted { error }, .. }))
            if matches!(error.kind, ConnErrorKind::Forbidden | ConnErrorKind::OwnListener) =>
        {
            error.into()
        }
        Some(Err(DownloadError::Failed { failure: Failure::NoLink { error }, .. })) => {
            RequestError::NoLink(error.map_or_else(|| "no link can be used".to_owned(), |error| error.text))
        }
        Some(Err(error @ DownloadError::Failed { failure: Failure::NoResponse, .. })) => {
            RequestError::Timeout(error.to_string())
        }
        Some(Err(DownloadError::Links(error))) => RequestError::NoLink(error.to_string()),
        Some(Err(error)) => RequestError::BadGateway(error.to_string()),
        Some(Ok(())) | None => {
            RequestError::BadGateway("the transfer ended without an error and without data".to_owned())
        }
    }
}

/// How long a session is kept after its last response. chosen: covers a pause in which a player closes its connection.
const SESSION_TTL: Duration = Duration::from_secs(300);
const NO_FIRST_BYTE: &str = "the origin server accepted the request and sent no byte within a minute";
/// chosen: the segments of one hour, each with a URL of its own. Sessions with active responses are never dropped.
const MAX_SESSIONS: usize = 1000;
/// chosen: about a player's buffer, and many segments before it.
const MAX_SEGMENTS: usize = 100;
/// How long a probed description answers conditional requests without another probe.
const DESCRIPTION_TTL: Duration = Duration::from_secs(1);
