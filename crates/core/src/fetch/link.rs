//! State of each link during a download: health, failures, mirror, redirects, and what it has delivered.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;

use super::server_delay::DelayWindow;
use super::token_bucket::TokenBuckets;
use super::{BanReason, ConnError, ConnId, LinkShare, UrlId, Validator};
use crate::link::LinkProfile;
use crate::predict::RateWindow;
use crate::units::{Bitrate, DataSize, Instant};

/// One link of a download: measurements, and the decisions about it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) profile: LinkProfile,
    pub(super) stats: LinkStats,
    pub(super) state: LinkState,
    /// Its connections, in the order in which they were opened.
    pub(super) conns: alloc::vec::Vec<ConnId>,
    /// Failures since the last received byte, or since its failures were forgiven.
    pub(super) failures: u32,
    /// No connection is opened before this time.
    pub(super) next_attempt: Instant,
    /// The server requested a pause until then (429, 503); the download's timeout starts after it.
    pub(super) paused_until: Instant,
    /// Limits for the frequency of requests and connections.
    pub(super) token_buckets: TokenBuckets,
    /// Bans since bytes last arrived; the duration doubles with each.
    pub(super) bans: u32,
    /// The mirror that it uses.
    pub(super) mirror: UrlId,
    /// Number of mirrors that it has left since bytes last arrived.
    pub(super) mirrors_tried: u16,
    /// Since when it has used the present mirror.
    pub(super) mirror_since: Instant,
    /// Progress of its last resort: a request for the whole file before it is banned.
    pub(super) full_request: FullRequest,
    /// While the resource is not identified: the next request has no Range field, because the last one had one and
    /// failed.
    pub(super) omit_range: bool,
    /// It gets nothing from the present mirror. If no link gets anything, all switch to the next mirror.
    pub(super) mirror_refused: bool,
    /// For each mirror, where redirects on this link led, or the CDN node of another link that it uses instead.
    pub(super) redirect_targets: BTreeMap<UrlId, CdnNode>,
    /// Redirects in a row, since bytes last arrived.
    pub(super) redirects: u32,
    /// Their targets, newest last.
    recent_redirects: VecDeque<UrlId>,
    /// Responses accepted from the present redirect target.
    pub(super) responses_from_target: u32,
    /// It uses the CDN node of another link, or the node that had delivered, instead of the one that it was led to.
    pub(super) follows_other_node: bool,
    /// Its target number of connections, with the A/B probe behind it.
    pub(super) conn_count: super::parallelism::ConnCountController,
    pub(super) budget_exhausted: bool,
    /// Its share for this download, beside other downloads.
    pub(super) share: LinkShare,
    pub(super) stall_notified: bool,
    pub(super) metered_notified: bool,
}

/// Last resort of the only usable link. A server that has served ranges and now refuses them may still serve the whole
/// file. It is requested once, before the link is banned, and again only if bytes have arrived since. The stored bytes are
/// kept until that response has been accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum FullRequest {
    /// Not yet, or bytes have arrived since.
    #[default]
    NotTried,
    /// The next request is for the whole file.
    Due,
    /// The request for the whole file was sent.
    Sent,
}

/// Measurements of a link; none of these fields is a decision.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkStats {
    /// Body bytes received over it.
    pub(super) bytes: DataSize,
    /// When bytes arrived, including those over connections that are closed by now.
    pub(super) rate_window: RateWindow,
    /// Peak rate over one second (the thesis's bandwidth, §4.3.4).
    pub(super) peak_rate: Bitrate,
    /// When bytes last arrived.
    pub(super) last_data: Option<Instant>,
    pub(super) last_error: Option<ConnError>,
    /// Recent server delays.
    pub(super) server_delays: DelayWindow,
    /// A connection over it was established at least once.
    pub(super) has_connected: bool,
    /// Shortest TCP handshake, an upper bound of the minimum RTT.
    pub(super) min_handshake_rtt: Option<Duration>,
    /// It has delivered bytes that are provably of the file.
    pub(super) is_verified: bool,
    /// The CDN node that delivered the last of them.
    pub(super) cdn_node: Option<CdnNode>,
    /// Size and validator of another version of the file, which its server reported.
    pub(super) conflicting_version: Option<(Option<DataSize>, Validator)>,
    /// Number of responses, since one last agreed, that contradict what is known of the resource and that no captive
    /// portal would give.
    pub(super) contradictions: u32,
    /// Best progress of the single response over it, in bytes, and how often a response was lost since then without
    /// getting further.
    pub(super) best_single_response: (u64, u32),
}

/// A server among those that serve a URL, such as a node of a CDN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CdnNode {
    pub(super) url: UrlId,
    /// Address of the URL's host. None: as resolved on the link, or not known.
    pub(super) address: Option<IpAddr>,
}

impl CdnNode {
    /// The node for use over another link. A private address may be another host there, so it is dropped.
    pub(super) fn for_other_link(self) -> Self {
        Self { address: self.address.filter(|address| !is_private(*address)), ..self }
    }
}

/// Health of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// Usable.
    Up,
    /// Nothing has arrived since then, although a response is overdue.
    Stalled {
        /// The last activity.
        since: Instant,
    },
    /// Out of use. At `until` it is probed; none: out of use for the rest of the run.
    Banned {
        /// The cause.
        reason: BanReason,
        /// End of the ban.
        until: Option<Instant>,
    },
    /// The ban has ended, and one connection probes the link.
    Probing,
    /// The operating system reported that it is gone.
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

    /// Whether it is neither banned nor down.
    pub(super) fn is_in_service(&self) -> bool {
        !matches!(self.state, LinkState::Banned { .. } | LinkState::Down)
    }

    /// Forgets redirects and an adopted CDN node: they may stem from a captive portal or another network.
    pub(super) fn forget_redirect_targets(&mut self) {
        self.redirect_targets.clear();
        self.redirects = 0;
        self.responses_from_target = 0;
        self.follows_other_node = false;
    }

    /// Whether it is out of use but may return: banned for a limited time, or down.
    pub(super) fn is_suspended(&self) -> bool {
        matches!(self.state, LinkState::Banned { until: Some(_), .. } | LinkState::Down)
    }

    /// Whether it may deliver, now or after a ban.
    pub(super) fn may_deliver(&self) -> bool {
        self.is_in_service() || self.is_suspended()
    }

    /// Whether bytes have arrived since it has used the present mirror.
    pub(super) fn has_delivered_from_mirror(&self) -> bool {
        self.stats.last_data.is_some_and(|at| at > self.mirror_since)
    }

    /// The URL and address for requests to the present mirror.
    pub(super) fn target(&self) -> CdnNode {
        self.redirect_targets.get(&self.mirror).copied().unwrap_or(CdnNode { url: self.mirror, address: None })
    }

    /// Counts a redirect. Returns whether the same redirects repeat without end. Some servers redirect to the same URL
    /// until the file is ready or a cookie is set, so a few repetitions are normal.
    pub(super) fn is_redirect_loop(&mut self, mirror: UrlId, from: UrlId, to: UrlId) -> bool {
        self.redirects = self.redirects.saturating_add(1);
        // Several connections may get the same redirect at the same time: count it once.
        let is_same = from != to && self.redirect_targets.get(&mirror).is_some_and(|node| node.url == to);
        if !is_same {
            if !self.recent_redirects.contains(&to) {
                // Each new target costs a connection that delivers nothing. Their number is limited by `max_redirects`,
                // so the token bucket need not limit them.
                self.token_buckets.credit(REDIRECT_CREDIT);
            }
            if self.recent_redirects.len() >= MAX_RECENT_REDIRECTS {
                self.recent_redirects.pop_front();
            }
            self.recent_redirects.push_back(to);
        }
        self.recent_redirects.iter().filter(|target| **target == to).count() > MAX_REDIRECT_REPEATS
    }

    pub(super) fn forget_redirects(&mut self) {
        self.redirects = 0;
        self.recent_redirects.clear();
    }

    /// Body bytes arrived: resets the failure counters, and ends a stall or ban. Returns the previous state.
    pub(super) fn on_data(&mut self, now: Instant, len: DataSize) -> LinkState {
        self.stats.bytes += len;
        self.stats.rate_window.on_bytes(now, len);
        self.stats.last_data = Some(now);
        self.failures = 0;
        self.forget_redirects();
        self.full_request = FullRequest::default();
        self.mirrors_tried = 0;
        self.mirror_refused = false;
        self.token_buckets.credit(len);
        let previous = core::mem::replace(&mut self.state, LinkState::Up);
        if previous != LinkState::Up {
            self.bans = 0;
            self.next_attempt = now;
        }
        previous
    }

    /// Maximum number of connections that the share for this download allows.
    pub(super) fn max_connections(&self) -> u32 {
        match self.share {
            LinkShare::Full => u32::MAX,
            LinkShare::OneConn => 1,
            LinkShare::Paused => 0,
        }
    }

    /// Whether the link is paused for this download, and its remaining requests have stalled.
    pub(super) fn is_paused_and_stalled(&self) -> bool {
        self.share == LinkShare::Paused && matches!(self.state, LinkState::Stalled { .. })
    }

    /// Delay before the next connection after `failures` failures in a row.
    pub(super) fn backoff(&self) -> Duration {
        INITIAL_BACKOFF * 2_u32.saturating_pow(self.failures.saturating_sub(1)).min(64)
    }
}

/// Whether another network may give this address to another host: RFC 1918, RFC 6598 (carrier-grade NAT), RFC 3927,
/// RFC 4193, RFC 4291 §2.5.6, and loopback.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_private() || address.is_loopback() || address.is_link_local() || shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

/// Number of most recent redirects that are compared with each other. Our choice: longer cycles are ended by the maximum
/// number of redirects.
const MAX_RECENT_REDIRECTS: usize = 64;
/// Credit of a redirect to a new target in the token buckets: one connection.
const REDIRECT_CREDIT: DataSize = DataSize::from_kib(16);
/// How often one target may occur among the recent redirects.
const MAX_REDIRECT_REPEATS: usize = 6;
/// Delay after the first failure. Our choice: short enough that one refused SYN does not matter; doubles up to 13 s.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
