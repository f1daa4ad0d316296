//! One connection: its subflows, its paths, and how much of it there was.
//!
//! In: what the kernel tells of it. Out: what was carried over which link since the last whole look.
//!
//! A path is a link as this connection sees it: how fast it was (kept while it rests and when its subflow is gone), and
//! what became of attempts to join it.

use alloc::vec::Vec;

use super::decide::Verdict;
use super::event::{CommandId, ConnId, SubflowId};
use super::links::{Links, Share, side};
use super::outage::Returned;
use super::pace::Pace;
use super::reason::{Hindrance, Reason};
use super::subflow::Sub;
use crate::energy::Direction;
use crate::predict::Holt;
use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What a connection that receives sends at once at least when it asks for something. chosen: below a browser's request,
/// above what says that a window is open again (HTTP/2 over TLS: 35 bytes for each).
const REQUEST: u64 = 100;

/// What came and went is halved whenever one of both is more. chosen: κ; a request and its answer are less.
const LATELY: u64 = 1_000_000;

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) opened: Instant,
    pub(super) adopted: bool,
    /// The link that it began on (the paper's Wi-Fi).
    pub(super) home: Option<usize>,
    /// Only addresses may be joined that the server has announced, and it has announced none.
    pub(super) closed_to_joins: bool,
    /// One direction of it is closed. No subflow can be added any more, so none is ended unless its link's budget is spent.
    pub(super) is_half_closed: bool,
    pub(super) subs: Vec<Sub>,
    /// One for each link of the host.
    pub(super) paths: Vec<Path>,
    /// The links that are to carry it.
    pub(super) active: Links,
    /// Since when.
    pub(super) since: Instant,
    /// Bytes carried, both ways, all subflows ever.
    pub(super) volume: u64,
    /// What of it came and what went of late.
    ways: [u64; 2],
    /// All that came, and what that was at the last whole look.
    pub(super) came: DataSize,
    pub(super) reached: Option<Reached>,
    /// Those of them since it was idle last: of the present stretch of activity.
    pub(super) stretch: u64,
    /// κ or τ has passed (eMPTCP §3.5): ours, in this stretch.
    pub(super) admitted: bool,
    /// When bytes last moved.
    pub(super) moved: Option<Instant>,
    /// When they began to after a pause.
    pub(super) woke: Instant,
    /// What may be one answer: since when, and its bytes. It begins with a pause's end or a request of our own.
    pub(super) answer: (Instant, u64),
    /// Looks since then, and those of them that saw new bytes.
    pub(super) looks: (u32, u32),
    /// What went since the last whole look.
    sent: u64,
    /// How long the last two stretches before it were, if each ended in a pause.
    pub(super) bursts: [Option<Duration>; 2],
    pub(super) pulse: Pulse,
    /// It became idle because none of its paths worked (see `outage`).
    pub(super) stalled: bool,
    /// When it is looked at next, while it is not idle.
    pub(super) look: Instant,
    /// A look is under way since.
    pub(super) asked: Option<Instant>,
    /// Its part in what the host's busy connections have carried.
    pub(super) part: u64,
    /// A trial of fewer links, and what came of the last one.
    pub(super) trial: Trial,
    pub(super) reason: Reason,
    pub(super) said: Option<Reason>,
    /// Its entry in the machine's queues.
    pub(super) wake: Option<Instant>,
    pub(super) queued: Option<Instant>,
}

/// Whether anything moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pulse {
    /// Bytes move, or did a moment ago.
    Busy,
    /// Nothing for a while: looked at in the slow round.
    Idle,
}

/// Fewer links or one more on trial, and a look at the home link (see `decide::guard`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Trial {
    /// One link alone.
    pub(super) open: Option<Alone>,
    /// A slow link beside the others.
    pub(super) beside: Option<Beside>,
    /// What the last one has found, until the host has taken note of it.
    pub(super) verdict: Option<Verdict>,
    /// A glance at the home link: since when, and the bytes that it had carried by then.
    pub(super) glance: Option<(Instant, u64)>,
    pub(super) next_glance: Instant,
    /// Since when the home link rests, and what the last glance at it found.
    pub(super) rests: Option<Instant>,
    pub(super) found: Option<(usize, Bitrate)>,
}

/// One link alone, to see what it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Alone {
    pub(super) since: Instant,
    pub(super) link: usize,
    /// What carried the connection before, and how fast.
    pub(super) before: Links,
    pub(super) both: Bitrate,
    /// What all connections had from the others.
    pub(super) slow: Bitrate,
    /// It was never measured before: there is nothing to compare, only to learn.
    pub(super) first: bool,
}

/// A slow link beside the others, to see whether all bring more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Beside {
    pub(super) since: Instant,
    pub(super) slow: usize,
    /// What it brought when it was left out.
    pub(super) rate: Bitrate,
    /// What the others bring without it.
    pub(super) before: Bitrate,
}

/// A link, as this connection sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) pace: Pace,
    pub(super) holt: Holt,
    /// Samples since it was asked to carry, up to 255.
    pub(super) samples: u8,
    pub(super) share: Share,
    /// The present stretch: since when, and the bytes in it.
    pub(super) from: Instant,
    pub(super) bytes: u64,
    /// Samples before this tell of a drain or of a window that opens.
    pub(super) mute: Instant,
    pub(super) join: Join,
    pub(super) fails: u8,
    pub(super) not_before: Instant,
    /// Why the last join was refused; none after data has come.
    pub(super) refused: Option<Hindrance>,
    pub(super) dead: Option<Dead>,
    /// A smaller MTU is on trial, because this connection has lost full-sized packets.
    pub(super) smaller: Option<Smaller>,
    /// Its data are lost even in the smallest packets that are tried, and that was reported.
    pub(super) useless: bool,
    /// When it was last proved by a second subflow, with nothing to carry.
    pub(super) proved: Option<Instant>,
    /// How fast it was when nothing else carried the connection.
    pub(super) alone: Option<Bitrate>,
    /// The best of that in the present stretch of activity.
    pub(super) best: Bitrate,
    /// In a glance: when its first bytes had come.
    pub(super) glanced: Option<Instant>,
    /// Left out: it would slow the others down (see `decide::speed`).
    pub(super) away: bool,
    /// Its queue was seen to fill: what it brought is what it can, and not what it was given.
    pub(super) filled: bool,
    /// Whether it has just come back from an outage (see `outage`).
    pub(super) returned: Returned,
}

/// How far a connection's data reach, and what of it has come, over all subflows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Reached {
    pub(super) to: DataSize,
    pub(super) came: DataSize,
}

/// A smaller MTU on trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Smaller {
    /// Subflows that came up later use it.
    pub(super) since: Instant,
    pub(super) mtu: u16,
    /// Whether it was this end's own data that were lost.
    pub(super) sends: bool,
    /// Whether no sequence numbers show that the peer has sent data which were lost.
    pub(super) weak: bool,
}

/// A path that does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Dead {
    /// When it began to be silent.
    pub(super) began: Instant,
    pub(super) since: Instant,
    pub(super) probe: Instant,
    pub(super) fails: u8,
}

impl Dead {
    /// A path that is silent from now on, and is probed at `probe`.
    pub(super) const fn at(now: Instant, probe: Instant) -> Self {
        Self { began: now, since: now, probe, fails: 0 }
    }
}

/// An attempt to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Join {
    /// No join is under way.
    #[default]
    No,
    /// The command is with the driver.
    Asked(CommandId, Purpose),
    /// The SYN is on its way; it is given up then.
    Coming(Instant, Purpose),
}

impl Join {
    /// Whether it is a second subflow with a smaller MTU.
    pub(super) const fn is_smaller(self) -> bool {
        matches!(self, Self::Asked(_, Purpose::Smaller) | Self::Coming(_, Purpose::Smaller))
    }

    /// Whether it is a proof of life.
    pub(super) const fn proves(self) -> bool {
        matches!(self, Self::Asked(_, Purpose::Prove { .. }) | Self::Coming(_, Purpose::Prove { .. }))
    }
}

/// What a join is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To carry data, or to stand by.
    Use,
    /// To prove that the path works; then it goes again. The path is taken for dead when none has come up by then.
    Prove {
        /// The end of the last attempt.
        until: Instant,
    },
    /// To replace a subflow that went silent.
    Return,
    /// To carry data in smaller packets beside a subflow whose full-sized ones seem to be lost.
    Smaller,
}

impl Trial {
    /// Whether one is under way.
    pub(super) fn is_open(&self) -> bool {
        self.beside.is_some() || self.open.is_some()
    }
}

impl Conn {
    pub(super) fn new(id: ConnId, links: usize, now: Instant) -> Self {
        let mut conn = Self {
            id,
            opened: now,
            adopted: false,
            home: None,
            closed_to_joins: false,
            is_half_closed: false,
            // Most have no more; a vector's own idea is four, and ten thousand connections are to stay small.
            subs: Vec::with_capacity(2),
            paths: Vec::new(),
            active: Links::NONE,
            since: now,
            volume: 0,
            ways: [0; 2],
            came: DataSize::ZERO,
            reached: None,
            stretch: 0,
            admitted: false,
            moved: None,
            woke: now,
            answer: (now, 0),
            sent: 0,
            looks: (0, 0),
            bursts: [None; 2],
            pulse: Pulse::Busy,
            stalled: false,
            look: now,
            asked: None,
            part: 0,
            trial: Trial::default(),
            reason: Reason::New,
            said: None,
            wake: None,
            queued: None,
        };
        conn.on_links(links, now);
        conn
    }

    /// There are so many links now.
    pub(super) fn on_links(&mut self, links: usize, now: Instant) {
        self.paths.reserve_exact(links.saturating_sub(self.paths.len()));
        self.paths.resize(links, Path { from: now, ..Path::default() });
    }

    /// Bytes came and went.
    pub(super) fn on_moved(&mut self, moved: &[(Direction, DataSize); 2]) {
        for (direction, size) in moved {
            let way = &mut self.ways[side(*direction)];
            *way = way.saturating_add(size.bytes());
            if *direction == Direction::Up {
                self.sent = self.sent.saturating_add(size.bytes());
            } else {
                self.came += *size;
            }
        }
        if self.ways.iter().any(|way| *way > LATELY) {
            self.ways = self.ways.map(|way| way / 2);
        }
    }

    /// The way in which most of it goes of late: by that its radios are reckoned with.
    pub(super) fn direction(&self) -> Direction {
        let [down, up] = self.ways;
        if up > down { Direction::Up } else { Direction::Down }
    }

    /// Counts what came and went since the last whole look for what may be one answer.
    pub(super) fn answers(&mut self, now: Instant, fresh: u64, began: bool) {
        let sent = core::mem::take(&mut self.sent);
        let requested = sent >= REQUEST && self.direction() == Direction::Down;
        if began || requested {
            (self.answer, self.looks) = ((now, 0), (0, 0));
        }
        if !requested {
            self.answer.1 = self.answer.1.saturating_add(fresh);
        }
    }

    pub(super) fn sub_mut(&mut self, id: SubflowId) -> Option<&mut Sub> {
        self.subs.iter_mut().find(|sub| sub.id == id)
    }

    /// The subflow that stands for a link: the newest that is to stay.
    pub(super) fn on(&self, link: usize) -> Option<&Sub> {
        self.subs.iter().rev().find(|sub| sub.link == Some(link) && !sub.leaving)
    }

    /// The links that have a subflow which is asked to carry data.
    pub(super) fn carrying(&self) -> Links {
        let subs = self.subs.iter().filter(|sub| !sub.backup && !sub.leaving);
        subs.filter_map(|sub| sub.link).fold(Links::NONE, Links::with)
    }

    /// The links that have a subflow.
    pub(super) fn joined(&self) -> Links {
        let subs = self.subs.iter().filter(|sub| !sub.leaving);
        subs.filter_map(|sub| sub.link).fold(Links::NONE, Links::with)
    }

    /// The shortest round trip with its queue of what carries it.
    pub(super) fn rtt(&self) -> Duration {
        let subs = self.subs.iter().filter(|sub| !sub.backup && !sub.leaving);
        subs.map(Sub::rtt).min().unwrap_or(Duration::from_millis(100))
    }

    /// How long a path has been silent that is asked to carry: since its last byte or since it was asked.
    pub(super) fn silent(&self, sub: &Sub, now: Instant) -> Duration {
        now.since(sub.moved.unwrap_or(sub.up).max(sub.active))
    }
}
