//! What a run knows of each link: its standing, its failures, and what it carried.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;

use super::conn::Conn;
use super::notification::BanReason;
use super::server_delay::DelayWindow;
use super::token_bucket::TokenBuckets;
use super::{ConnError, ConnId, Fetch, LinkShare, UrlId, Validator};
use crate::link::{LinkId, LinkProfile};
use crate::predict::RateWindow;
use crate::units::{Bitrate, DataSize, Instant};

/// A link in this run: what is known of it, and what was decided about it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) profile: LinkProfile,
    pub(super) stats: LinkStats,
    pub(super) state: LinkState,
    /// Its connections, in the order in which they were ordered.
    pub(super) conns: alloc::vec::Vec<ConnId>,
    /// Failures since the last byte, or since it was given another chance.
    pub(super) failures: u32,
    /// No connection is ordered before this.
    pub(super) next_attempt: Instant,
    /// The server asked for a pause until then; patience begins after it.
    pub(super) paused_until: Instant,
    /// How often it may ask.
    pub(super) token_buckets: TokenBuckets,
    /// How often it was banned; rests double.
    pub(super) bans: u32,
    /// The URL of the command line that it asks now.
    pub(super) mirror: UrlId,
    /// How many URLs it has left since bytes last came.
    pub(super) mirrors_tried: u16,
    /// Since when it asks the present one.
    pub(super) mirror_since: Instant,
    /// Whether it asks for the whole file before it is banned.
    pub(super) full_request: FullRequest,
    /// As long as nothing is known of the resource: the next request has no range, as the last one had and failed.
    pub(super) omit_range: bool,
    /// It got nothing from the present one, and the others are to be tried once no link gets anything.
    pub(super) mirror_refused: bool,
    /// Where redirects of this link led, or the edge of a link that it follows.
    pub(super) redirect_targets: BTreeMap<UrlId, CdnNode>,
    /// Redirects since bytes last came.
    pub(super) redirects: u32,
    /// Where the last ones of them led.
    recent_redirects: VecDeque<UrlId>,
    /// Answers that the present target has begun to deliver.
    pub(super) responses_from_target: u32,
    /// It left its own edge for another link's.
    pub(super) follows_other_node: bool,
    /// How many connections it should have, and what became of the last change.
    pub(super) conn_count: super::parallelism::ConnCountController,
    pub(super) budget_exhausted: bool,
    /// How much of it this download may use beside others.
    pub(super) share: LinkShare,
    pub(super) stall_notified: bool,
    pub(super) metered_notified: bool,
}

/// A server that has served ranges and refuses further ones may still serve the whole file. The last link asks for it before
/// it is banned, once as long as no bytes come; what is there stays until such an answer has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum FullRequest {
    /// Not yet, or bytes have come since.
    #[default]
    NotTried,
    /// The next request is for the whole file.
    Due,
    /// The request for the whole file was sent.
    Sent,
}

/// What a link has shown; nothing here was decided by anybody.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkStats {
    /// Body bytes that it carried.
    pub(super) bytes: DataSize,
    /// When they came, also over connections that have been closed since.
    pub(super) rate_window: RateWindow,
    /// The best rate seen over a second (the thesis's bandwidth, §4.3.4).
    pub(super) peak_rate: Bitrate,
    /// The last time that bytes came.
    pub(super) last_data: Option<Instant>,
    pub(super) last_error: Option<ConnError>,
    /// How long its servers thought.
    pub(super) server_delays: DelayWindow,
    /// A connection over it stood once.
    pub(super) has_connected: bool,
    /// The shortest handshake over it.
    pub(super) min_handshake_rtt: Option<Duration>,
    /// It has delivered bytes that are provably of the file.
    pub(super) is_verified: bool,
    /// Where the last of them came from.
    pub(super) cdn_node: Option<CdnNode>,
    /// It says that the file has changed: the new size and validator.
    pub(super) conflicting_version: Option<(Option<DataSize>, Validator)>,
    /// How often its server has contradicted what is known of the resource, in answers that no portal gives, since it
    /// last agreed.
    pub(super) contradictions: u32,
    /// How far the one answer came over it at its best, and how often since then it broke off before that.
    pub(super) best_single_response: (u64, u32),
}

/// One server of perhaps many that answer for a URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CdnNode {
    pub(super) url: UrlId,
    /// The address of its host. None: what the link's name server says, or not known.
    pub(super) address: Option<IpAddr>,
}

impl CdnNode {
    /// The edge as seen over another link. A private address means another machine there, or none.
    pub(super) fn for_other_link(self) -> Self {
        Self { address: self.address.filter(|at| !is_private(*at)), ..self }
    }
}

/// How a link stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// In use, or ready for it.
    Up,
    /// Nothing has come since then although something should have.
    Stalled {
        /// The last sign of life.
        since: Instant,
    },
    /// Not used. A probe decides at `until`; none: never again in this run.
    Banned {
        /// Why.
        reason: BanReason,
        /// The end of the rest.
        until: Option<Instant>,
    },
    /// Resting is over and one connection tests it.
    Probing,
    /// The system took it away.
    Down,
}

impl Link {
    pub(super) fn new(profile: LinkProfile, mirror: UrlId) -> Self {
        Self {
            profile,
            stats: LinkStats::default(),
            state: LinkState::Up,
            conns: alloc::vec::Vec::new(),
            failures: 0,
            next_attempt: Instant::ZERO,
            paused_until: Instant::ZERO,
            token_buckets: TokenBuckets::default(),
            bans: 0,
            mirror,
            mirrors_tried: 0,
            mirror_since: Instant::ZERO,
            mirror_refused: false,
            redirect_targets: BTreeMap::new(),
            redirects: 0,
            recent_redirects: VecDeque::new(),
            full_request: FullRequest::default(),
            omit_range: false,
            responses_from_target: 0,
            follows_other_node: false,
            conn_count: super::parallelism::ConnCountController::default(),
            budget_exhausted: false,
            share: LinkShare::Full,
            stall_notified: false,
            metered_notified: false,
        }
    }

    /// Whether it may yet bring something.
    pub(super) fn is_in_service(&self) -> bool {
        !matches!(self.state, LinkState::Banned { .. } | LinkState::Down)
    }

    /// What redirects said is forgotten, and whom it follows: it may have been a portal's, or of another network.
    pub(super) fn forget_redirect_targets(&mut self) {
        self.redirect_targets.clear();
        self.redirects = 0;
        self.responses_from_target = 0;
        self.follows_other_node = false;
    }

    /// Whether it is out of use for a while only.
    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.state, LinkState::Banned { until: Some(_), .. } | LinkState::Down)
    }

    /// Whether it may yet bring something, now or after a rest.
    pub(super) fn may_deliver(&self) -> bool {
        self.is_in_service() || self.is_suspended()
    }

    /// Whether bytes have come since it asks its present root.
    pub(super) fn has_delivered_from_mirror(&self) -> bool {
        self.stats.last_data.is_some_and(|at| at > self.mirror_since)
    }

    /// Where requests for the present root go.
    pub(super) fn target(&self) -> CdnNode {
        self.redirect_targets.get(&self.mirror).copied().unwrap_or(CdnNode { url: self.mirror, address: None })
    }

    /// Counts a redirect. Tells whether the same redirects come again and again. Some servers redirect to the same URL until the
    /// file is ready or a cookie has come back, so a few rounds prove nothing.
    pub(super) fn is_redirect_loop(&mut self, mirror: UrlId, from: UrlId, to: UrlId) -> bool {
        self.redirects = self.redirects.saturating_add(1);
        // Several connections may be led away from one place at the same time.
        let is_same = from != to && self.redirect_targets.get(&mirror).is_some_and(|node| node.url == to);
        if !is_same {
            if !self.recent_redirects.contains(&to) {
                // Their number is bounded by itself; each leads to a connection that brings nothing.
                self.token_buckets.credit(REDIRECT_CREDIT);
            }
            if self.recent_redirects.len() >= MAX_RECENT_REDIRECTS {
                self.recent_redirects.pop_front();
            }
            self.recent_redirects.push_back(to);
        }
        self.recent_redirects.iter().filter(|led| **led == to).count() > MAX_REDIRECT_REPEATS
    }

    pub(super) fn forget_redirects(&mut self) {
        self.redirects = 0;
        self.recent_redirects.clear();
    }

    /// How many connections the other downloads leave room for.
    pub(super) fn max_connections(&self) -> u32 {
        match self.share {
            LinkShare::Full => u32::MAX,
            LinkShare::OneConn => 1,
            LinkShare::Paused => 0,
        }
    }

    /// The pause before the next connection after this many failures.
    pub(super) fn backoff(&self) -> Duration {
        INITIAL_BACKOFF * 2_u32.saturating_pow(self.failures.saturating_sub(1)).min(64)
    }
}

impl Fetch {
    /// Whether a link may be asked now: it has not failed, and its terms allow it.
    pub(super) fn is_usable(&self, id: LinkId, link: &Link) -> bool {
        link.is_in_service() && self.is_link_allowed(id)
    }

    /// The connections of a link, in the order in which they were ordered.
    pub(super) fn conns_of<'a>(&'a self, link: &'a Link) -> impl Iterator<Item = &'a Conn> {
        link.conns.iter().filter_map(|id| self.conns.get(id))
    }

    /// What came over a link in the last `window`, as a rate.
    pub(super) fn link_rate(&self, link: &Link, window: Duration) -> Bitrate {
        link.stats.rate_window.rate(self.now, window)
    }
}

/// RFC 1918, RFC 6598 (carrier-grade NAT), RFC 3927, RFC 4193, RFC 4291 §2.5.6, and loopback.
fn is_private(at: IpAddr) -> bool {
    match at.to_canonical() {
        IpAddr::V4(at) => {
            let shared = at.octets()[0] == 100 && at.octets()[1] & 0xc0 == 64;
            at.is_private() || at.is_loopback() || at.is_link_local() || shared
        }
        IpAddr::V6(at) => at.is_loopback() || at.is_unique_local() || at.is_unicast_link_local(),
    }
}

/// Redirects that are compared with each other, and how often one may come again. chosen: longer circles end with the number
/// of redirects.
const MAX_RECENT_REDIRECTS: usize = 64;
/// What a redirect to another place is worth: one connection.
const REDIRECT_CREDIT: DataSize = DataSize::from_kib(16);
const MAX_REDIRECT_REPEATS: usize = 6;
/// chosen: short enough that one refused SYN does not show, doubled up to 13 s.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
