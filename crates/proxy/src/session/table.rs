//! All sessions of a proxy, and what their transfers share.
//!
//! 1. A session is identified by the player (its address and User-Agent), the URL, the forwarded header fields and the
//!    permitted destinations. Data fetched for one session is never given to another.
//! 2. [`Sessions::open`] turns a requested range into a response head and a body that delivers the bytes in order over
//!    all links. Callers depend on it only, not on how the transfer is driven.
//! 3. When the player closes its connection, every transfer for this response ends at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use marline_net::egress::EgressPolicy;
use serde_json::json;
use url::Url;

use super::Session;
use super::options::SessionOptions;
use crate::client::buffer_budget::BufferBudget;
use crate::client::media_url::{MediaUrl, redacted};
use crate::client::windows::RevocableWindows;
use crate::delivery::transfer_observer::Accounting;
use crate::player::playlist_playbacks::PlaylistPlaybacks;
use crate::player::report::PlayerReport;
use crate::playlist::followed::FollowedPlaylists;
use crate::upstream::headers::{CookieJars, UpstreamHeaders};
use crate::upstream::links::UpstreamLinks;

/// The sessions; see the [module documentation](self).
pub(crate) struct Sessions {
    pub(crate) links: Rc<UpstreamLinks>,
    pub(crate) buffer_budget: BufferBudget,
    pub(crate) windows: RevocableWindows,
    /// Where transfers account what they receive.
    pub(crate) accounting: Accounting,
    pub(crate) followed_playlists: FollowedPlaylists,
    /// What players play from playlists.
    pub(crate) playbacks: RefCell<PlaylistPlaybacks>,
    pub(crate) options: SessionOptions,
    pub(crate) cookie_jars: CookieJars,
    by_key: RefCell<BTreeMap<SessionKey, Rc<Session>>>,
    /// The next number of a session or a response; decision logs are named by it.
    next_id: Cell<u64>,
}

/// Requests with equal keys share a session: URL with login, player, forwarded header fields, and the permitted
/// destinations.
type SessionKey = (String, String, Vec<u8>, EgressPolicy);

impl Sessions {
    pub(crate) fn new(links: Rc<UpstreamLinks>, buffer_budget: BufferBudget, options: SessionOptions) -> Self {
        Self {
            accounting: Accounting::new(Rc::clone(&links), options.energy_model.clone()),
            links,
            buffer_budget,
            windows: RevocableWindows::default(),
            followed_playlists: FollowedPlaylists::default(),
            playbacks: RefCell::default(),
            next_id: Cell::new(options.first_log_number()),
            options,
            cookie_jars: CookieJars::default(),
            by_key: RefCell::default(),
        }
    }

    /// Returns the session of a player at a URL, and creates it if there is none.
    pub(crate) fn session_for(
        &self,
        target: MediaUrl,
        player: String,
        headers: UpstreamHeaders,
        egress: EgressPolicy,
    ) -> Rc<Session> {
        let mut table = self.by_key.borrow_mut();
        let is_active = |session: &Session| session.delivery.responses.count() > 0;
        let last_used = |session: &Session| session.delivery.responses.last_used();
        table.retain(|_, session| is_active(session) || last_used(session).elapsed() < SESSION_TTL);
        while table.len() >= MAX_SESSIONS {
            let idle = table.iter().filter(|(_, session)| !is_active(session));
            let Some(oldest) = idle.min_by_key(|(_, session)| last_used(session)).map(|(key, _)| key.clone())
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
            let id = self.take_id();
            let event = json!({"event": "session", "session": id, "url": redacted(&target.url)});
            self.accounting.events.publish(&event);
            let start = (self.links.clock, self.options.start_mode);
            Rc::new(Session::new(id, target, player, headers, egress, start))
        });
        session.delivery.responses.touch();
        Rc::clone(session)
    }

    /// All sessions, the oldest first.
    pub(crate) fn all(&self) -> Vec<Rc<Session>> {
        let mut all: Vec<_> = self.by_key.borrow().values().cloned().collect();
        all.sort_by_key(|session| session.id);
        all
    }

    /// Records the report of a player of this URL. Returns the number of the newest session of that URL.
    pub(crate) fn on_player_report(&self, url: &Url, report: &PlayerReport) -> Option<u64> {
        let matching: Vec<_> = self.all().into_iter().filter(|session| session.url == *url).collect();
        for session in &matching {
            let delivery = &session.delivery;
            delivery.film.on_report(delivery.now(), report, delivery.responses.count() > 0);
        }
        matching.last().map(|session| session.id)
    }

    /// The next number of a session or a response.
    pub(crate) fn take_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }
}

/// How long a session is kept after its last response. Our choice: covers a pause in which a player closes its
/// connection.
const SESSION_TTL: Duration = Duration::from_secs(300);
/// Maximum number of sessions, unless more have active responses, which are never dropped. Our choice: the segments
/// of one hour, each with a URL of its own.
const MAX_SESSIONS: usize = 1000;
