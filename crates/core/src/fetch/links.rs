//! What a run knows of each link: its standing, its failures, and what it carried.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use core::time::Duration;

use super::allowance::Allowance;
use super::conn::Conn;
use super::notice::Ban;
use super::thinks::Pauses;
use super::{ConnId, Fetch, OriginId, Share, Trouble, Validator};
use crate::link::{LinkId, LinkProfile};
use crate::predict::Meter;
use crate::units::{Bitrate, DataSize, Instant};

/// A link in this run: what is known of it, and what was decided about it.
#[derive(Clone, Debug)]
pub(super) struct LinkState {
    pub(super) profile: LinkProfile,
    pub(super) known: Known,
    pub(super) standing: Standing,
    /// Its connections, in the order in which they were ordered.
    pub(super) conns: alloc::vec::Vec<ConnId>,
    /// Failures since the last byte, or since it was given another chance.
    pub(super) failures: u32,
    /// No connection is ordered before this.
    pub(super) next_try: Instant,
    /// The server asked for a pause until then; patience begins after it.
    pub(super) paused_until: Instant,
    /// How often it may ask.
    pub(super) allowance: Allowance,
    /// How often it was banned; rests double.
    pub(super) bans: u32,
    /// The URL of the command line that it asks now.
    pub(super) root: OriginId,
    /// How many URLs it has left since bytes last came.
    pub(super) roots_left: u16,
    /// Since when it asks the present one.
    pub(super) root_since: Instant,
    /// Whether it asks for the whole file before it is banned.
    pub(super) whole: WholeTry,
    /// As long as nothing is known of the resource: the next request has no range, as the last one had and failed.
    pub(super) plain: bool,
    /// It got nothing from the present one, and the others are to be tried once no link gets anything.
    pub(super) refused: bool,
    /// Where redirects of this link led, or the edge of a link that it follows.
    pub(super) targets: BTreeMap<OriginId, Edge>,
    /// Redirects since bytes last came.
    pub(super) redirects: u32,
    /// Where the last ones of them led.
    led: VecDeque<OriginId>,
    /// Answers that the present target has begun to deliver.
    pub(super) served_here: u32,
    /// It left its own edge for another link's.
    pub(super) adopted: bool,
    /// How many connections it should have, and what became of the last change.
    pub(super) lanes: super::lanes::Lanes,
    pub(super) spent: bool,
    /// How much of it this download may use beside others.
    pub(super) share: Share,
    pub(super) told_silent: bool,
    pub(super) told_metered: bool,
}

/// A server that has served ranges and refuses further ones may still serve the whole file. The last link asks for it before
/// it is banned, once as long as no bytes come; what is there stays until such an answer has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WholeTry {
    /// Not yet, or bytes have come since.
    #[default]
    Untried,
    /// The next request is for the whole file.
    Next,
    /// The request for the whole file was sent.
    Asked,
}

/// What a link has shown; nothing here was decided by anybody.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Body bytes that it carried.
    pub(super) bytes: DataSize,
    /// When they came, also over connections that have been closed since.
    pub(super) meter: Meter,
    /// The best rate seen over a second (the thesis's bandwidth, §4.3.4).
    pub(super) peak: Bitrate,
    /// The last time that bytes came.
    pub(super) last_data: Option<Instant>,
    pub(super) last_trouble: Option<Trouble>,
    /// How long its servers thought.
    pub(super) pauses: Pauses,
    /// A connection over it stood once.
    pub(super) reached: bool,
    /// The shortest handshake over it.
    pub(super) handshake: Option<Duration>,
    /// It has delivered bytes that are provably of the file.
    pub(super) proved: bool,
    /// Where the last of them came from.
    pub(super) edge: Option<Edge>,
    /// It says that the file has changed: the new size and validator.
    pub(super) differs: Option<(Option<DataSize>, Validator)>,
    /// How often its server has contradicted what is known of the resource, in answers that no portal gives, since it
    /// last agreed.
    pub(super) contradictions: u32,
    /// How far the one answer came over it at its best, and how often since then it broke off before that.
    pub(super) best_answer: (u64, u32),
}

/// One server of perhaps many that answer for a URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    pub(super) origin: OriginId,
    /// The address of its host. None: what the link's name server says, or not known.
    pub(super) at: Option<IpAddr>,
}

impl Edge {
    /// The edge as seen over another link. A private address means another machine there, or none.
    pub(super) fn elsewhere(self) -> Self {
        Self { at: self.at.filter(|at| !is_private(*at)), ..self }
    }
}

/// How a link stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// In use, or ready for it.
    Up,
    /// Nothing has come since then although something should have.
    Silent {
        /// The last sign of life.
        since: Instant,
    },
    /// Not used. A probe decides at `until`; none: never again in this run.
    Banned {
        /// Why.
        why: Ban,
        /// The end of the rest.
        until: Option<Instant>,
    },
    /// Resting is over and one connection tests it.
    Probation,
    /// The system took it away.
    Down,
}

impl LinkState {
    pub(super) fn new(profile: LinkProfile, root: OriginId) -> Self {
        Self {
            profile,
            known: Known::default(),
            standing: Standing::Up,
            conns: alloc::vec::Vec::new(),
            failures: 0,
            next_try: Instant::ZERO,
            paused_until: Instant::ZERO,
            allowance: Allowance::default(),
            bans: 0,
            root,
            roots_left: 0,
            root_since: Instant::ZERO,
            refused: false,
            targets: BTreeMap::new(),
            redirects: 0,
            led: VecDeque::new(),
            whole: WholeTry::default(),
            plain: false,
            served_here: 0,
            adopted: false,
            lanes: super::lanes::Lanes::default(),
            spent: false,
            share: Share::Full,
            told_silent: false,
            told_metered: false,
        }
    }

    /// Whether it may yet bring something.
    pub(super) fn hopeful(&self) -> bool {
        !matches!(self.standing, Standing::Banned { .. } | Standing::Down)
    }

    /// What redirects said is forgotten, and whom it follows: it may have been a portal's, or of another network.
    pub(super) fn forget_places(&mut self) {
        self.targets.clear();
        self.redirects = 0;
        self.served_here = 0;
        self.adopted = false;
    }

    /// Whether it is out of use for a while only.
    pub(super) fn resting(&self) -> bool {
        matches!(self.standing, Standing::Banned { until: Some(_), .. } | Standing::Down)
    }

    /// Whether it may yet bring something, now or after a rest.
    pub(super) fn in_play(&self) -> bool {
        self.hopeful() || self.resting()
    }

    /// Whether bytes have come since it asks its present root.
    pub(super) fn has_delivered_here(&self) -> bool {
        self.known.last_data.is_some_and(|at| at > self.root_since)
    }

    /// Where requests for the present root go.
    pub(super) fn target(&self) -> Edge {
        self.targets.get(&self.root).copied().unwrap_or(Edge { origin: self.root, at: None })
    }

    /// Counts a redirect. Tells whether the same redirects come again and again. Some servers redirect to the same URL until the
    /// file is ready or a cookie has come back, so a few rounds prove nothing.
    pub(super) fn goes_in_circles(&mut self, root: OriginId, from: OriginId, to: OriginId) -> bool {
        self.redirects = self.redirects.saturating_add(1);
        // Several connections may be led away from one place at the same time.
        let is_same = from != to && self.targets.get(&root).is_some_and(|edge| edge.origin == to);
        if !is_same {
            if !self.led.contains(&to) {
                // Their number is bounded by itself; each leads to a connection that brings nothing.
                self.allowance.earn(REDIRECT);
            }
            if self.led.len() >= MOST_LED {
                self.led.pop_front();
            }
            self.led.push_back(to);
        }
        self.led.iter().filter(|led| **led == to).count() > MOST_ROUNDS
    }

    pub(super) fn forget_redirects(&mut self) {
        self.redirects = 0;
        self.led.clear();
    }

    /// How many connections the other downloads leave room for.
    pub(super) fn most_connections(&self) -> u32 {
        match self.share {
            Share::Full => u32::MAX,
            Share::One => 1,
            Share::Rest => 0,
        }
    }

    /// The pause before the next connection after this many failures.
    pub(super) fn backoff(&self) -> Duration {
        FIRST_BACKOFF * 2_u32.saturating_pow(self.failures.saturating_sub(1)).min(64)
    }
}

impl Fetch {
    /// Whether a link may be asked now: it has not failed, and its terms allow it.
    pub(super) fn usable(&self, id: LinkId, link: &LinkState) -> bool {
        link.hopeful() && self.allowed(id)
    }

    /// The connections of a link, in the order in which they were ordered.
    pub(super) fn conns_of<'a>(&'a self, link: &'a LinkState) -> impl Iterator<Item = &'a Conn> {
        link.conns.iter().filter_map(|id| self.conns.get(id))
    }

    /// What came over a link in the last `window`, as a rate.
    pub(super) fn link_rate(&self, link: &LinkState, window: Duration) -> Bitrate {
        link.known.meter.rate(self.now, window)
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
const MOST_LED: usize = 64;
/// What a redirect to another place is worth: one connection.
const REDIRECT: DataSize = DataSize::from_kib(16);
const MOST_ROUNDS: usize = 6;
/// chosen: short enough that one refused SYN does not show, doubled up to 13 s.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
