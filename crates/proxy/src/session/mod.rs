//! One player at one URL: the identity of the request, what is known of the resource, and its delivery.
//!
//! A session exists while a response is active and for some minutes afterwards, so that a seek finds what was learnt. It
//! owns the parts that work for it ([`Delivery`]) and passes them values; they know nothing of it.
//!
//! [`table`] holds all sessions, [`open`] turns a requested range into a head and a body, [`transfer`] starts the
//! download behind a body, [`resource`] is what is known of a resource, and [`options`] what all sessions have in common.

pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod resource;
pub(crate) mod table;
pub(crate) mod transfer;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use http::header::HeaderValue;
use marline_core::fetch::RequestRange;
use marline_core::proxy::StartMode;
use marline_net::egress::EgressPolicy;
use url::Url;

use self::resource::Resource;
use crate::client::media_url::MediaUrl;
use crate::clock::Clock;
use crate::delivery::Delivery;
use crate::player::track_playback::{PlaylistPlayback, PlaylistSegment, TrackSegment};
use crate::playlist::followed::Requester;
use crate::playlist::format::PlaylistFormat;
use crate::upstream::headers::UpstreamHeaders;
use crate::upstream::single_link::{SEND_TIMEOUT, SingleLinkRequest};

/// One player at one URL; see the [module documentation](self).
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) url: Url,
    pub(crate) player: String,
    /// The destinations that its URL may lead to.
    pub(crate) egress: EgressPolicy,
    /// User and password of its URL.
    pub(crate) login: Option<(String, String)>,
    pub(crate) headers: UpstreamHeaders,
    resource: RefCell<Option<Resource>>,
    /// The playlist format, if the resource is a playlist or manifest.
    pub(crate) playlist_format: Cell<Option<PlaylistFormat>>,
    /// The resource was requested as a playlist and the response was none. Later responses may be playlists.
    pub(crate) not_a_playlist: Cell<bool>,
    /// The first byte of the resource, as in the last response that contained it.
    pub(crate) first_byte: Cell<Option<u8>>,
    pub(crate) delivery: Rc<Delivery>,
    /// The segments that are responses of this session, by the offset of their first byte, with the playback that they
    /// belong to.
    segments: RefCell<BTreeMap<u64, PlaylistSegment>>,
}

impl Session {
    pub(crate) fn new(
        id: u64,
        target: MediaUrl,
        player: String,
        headers: UpstreamHeaders,
        egress: EgressPolicy,
        (clock, start): (Clock, StartMode),
    ) -> Self {
        Self {
            id,
            playlist_format: Cell::new(PlaylistFormat::from_extension(&target.url)),
            not_a_playlist: Cell::new(false),
            first_byte: Cell::new(None),
            url: target.url,
            player,
            egress,
            login: target.login,
            headers,
            resource: RefCell::default(),
            delivery: Rc::new(Delivery::new(clock, start)),
            segments: RefCell::default(),
        }
    }

    /// What identifies its requests to the playlists that the player follows.
    pub(crate) fn requester(&self) -> Requester<'_> {
        Requester { player: &self.player, url: &self.url, user: self.headers.user }
    }

    /// What is known of the resource, if its ranges provably belong together.
    pub(crate) fn resource(&self) -> Option<Resource> {
        self.resource.borrow().clone()
    }

    pub(crate) fn remember_resource(&self, resource: Resource) {
        self.delivery.total.set(Some(resource.known.total));
        *self.resource.borrow_mut() = Some(resource);
    }

    /// Forgets a resource that has changed.
    pub(crate) fn forget_resource(&self) {
        self.delivery.total.set(None);
        *self.resource.borrow_mut() = None;
    }

    /// Notes that a response has confirmed what is known of the resource.
    pub(crate) fn on_resource_checked(&self) {
        if let Some(resource) = &mut *self.resource.borrow_mut() {
            resource.checked_at = Instant::now();
        }
    }

    /// Registers the bytes from an offset on as a segment of a playback.
    pub(crate) fn set_segment(&self, from: u64, playback: &Rc<PlaylistPlayback>, segment: Rc<TrackSegment>) {
        let mut parts = self.segments.borrow_mut();
        parts.insert(from, (Rc::clone(playback), segment));
        while parts.len() > MAX_SEGMENTS {
            parts.pop_first();
        }
    }

    /// The segment that begins at an offset.
    pub(crate) fn segment_at(&self, from: u64) -> Option<PlaylistSegment> {
        self.segments.borrow().get(&from).cloned()
    }

    /// A request to the origin server, with the player's header fields and the login of its URL.
    pub(crate) fn single_link_request(&self, range: RequestRange) -> SingleLinkRequest {
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
    pub(crate) fn sibling(&self, url: Url) -> MediaUrl {
        // The login is valid for the host that the player named.
        let user = self.login.clone().filter(|_| url.origin() == self.url.origin());
        MediaUrl { url, login: user }
    }

    /// Adds the player's login to a URL of the host for which the login is valid.
    pub(crate) fn url_with_login(&self, mut url: Url) -> Url {
        if let Some((user, password)) = self.login.as_ref().filter(|_| url.origin() == self.url.origin()) {
            // Both fail only for URLs without a host.
            let _ = url.set_username(user);
            let _ = url.set_password(Some(password));
        }
        url
    }

    /// The size and the validator, if known.
    pub(crate) fn total_and_validator(&self) -> Option<(u64, String)> {
        let resource = self.resource.borrow();
        resource.as_ref().map(|r| (r.known.total.bytes(), r.known.validator.if_range_value().to_owned()))
    }

    /// Whether everything that was requested has arrived, or will within this time, and no response was abandoned.
    pub(crate) fn is_almost_complete(&self, within: Duration) -> bool {
        self.delivery.responses.are_almost_complete(within, self.delivery.total.get())
    }
}

/// Our choice: about a player's buffer, and many segments before it.
const MAX_SEGMENTS: usize = 100;
