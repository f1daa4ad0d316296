//! What trials of links have found, for all connections of the host.
//!
//! In: trials as they begin and end, each on one connection. Out: whether another one may begin, and how slow a link may be
//! beside a faster one without holding it up.
//!
//! 1. One trial at a time: two would measure each other, and what one has learned of a link, all know.
//! 2. What was found of a slow link beside a fast one holds for every connection that could use both, for [`FOUND`],
//!    doubled each time; a trial that changed nothing is not repeated for [`AGAIN`], doubled as well.

use alloc::collections::BTreeMap;

use super::super::conn::Trial;
use super::super::event::ConnId;
use super::super::links::Links;
use crate::units::{Bitrate, Duration, Instant, Ratio};

/// Of a slow link beside a fast one, where no trial has told: between the measured 2 of 20, which loses, and 4 of 20,
/// which gains.
pub(super) const DRAG: Ratio = Ratio::from_ppm(143_000);
/// The same where our own sender keeps queues short. measured over the kernel, 20 Mbit/s and 60 ms beside 100 ms: 5 % bring
/// 3 to 5 % more, 2.5 % take a tenth to a third.
pub(super) const DRAG_OF_SHORT: Ratio = Ratio::from_ppm(30_000);
const FOUND: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(15);
/// The most doublings.
const OFTEN: u8 = 5;
/// A trial that has not ended by then never will: its connection is idle or gone.
const LONGEST: Duration = Duration::from_secs(6);

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Trials {
    /// The connection that is on trial, and since when.
    open: Option<(ConnId, Instant)>,
    /// By slow link and fast link.
    pairs: BTreeMap<(usize, usize), Pair>,
}

/// A slow link beside a fast one.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Below this part of the fast one's rate the slow one holds it up; believed until then.
    limit: Option<(Ratio, Instant)>,
    /// No trial before.
    next: Instant,
    times: u8,
}

/// What a trial has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Verdict {
    pub(super) slow: Links,
    pub(super) fast: usize,
    /// Below this part of the fast one's rate the slow ones hold it up; none: nothing new.
    pub(super) limit: Option<Ratio>,
}

impl Trials {
    /// A connection's turn: its trial may have begun or ended.
    pub(in super::super) fn on_turn(&mut self, now: Instant, conn: ConnId, trial: &mut Trial) {
        let mine = self.open.is_some_and(|(of, _)| of == conn);
        match trial.is_open() {
            true if !mine => self.open = Some((conn, now)),
            false if mine => self.open = None,
            _ => {}
        }
        let Some(Verdict { slow, fast, limit }) = trial.verdict.take() else { return };
        for slow in slow.iter() {
            let pair = self.pairs.entry((slow, fast)).or_default();
            let wait = if limit.is_some() { FOUND } else { AGAIN };
            pair.next = now + wait.saturating_mul(1 << u32::from(pair.times.min(OFTEN)));
            pair.times = pair.times.saturating_add(1);
            pair.limit = limit.map(|limit| (limit, pair.next)).or(pair.limit);
        }
    }

    /// A link had an outage: what trials have found of it is no longer known.
    pub(in super::super) fn forget(&mut self, link: usize) {
        self.pairs.retain(|(slow, fast), _| *slow != link && *fast != link);
    }

    /// Whether no other connection is on trial.
    pub(super) fn are_free(&self, now: Instant, conn: ConnId) -> bool {
        self.open.is_none_or(|(of, since)| of == conn || now.since(since) > LONGEST)
    }

    /// Whether these may be tried beside each other, on this connection.
    pub(super) fn are_due(&self, now: Instant, conn: ConnId, slow: Links, fast: usize) -> bool {
        self.are_free(now, conn)
            && slow.iter().all(|slow| self.pairs.get(&(slow, fast)).is_none_or(|pair| now >= pair.next))
    }

    /// Below which part of the fast one's rate the slow one holds it up, as far as a trial has told.
    pub(super) fn limit(&self, now: Instant, slow: usize, fast: usize) -> Option<Ratio> {
        let found = self.pairs.get(&(slow, fast)).and_then(|pair| pair.limit).filter(|(_, until)| now < *until);
        found.map(|(limit, _)| limit)
    }

    /// Whether a link of this rate holds up one of that rate.
    pub(super) fn drags(&self, now: Instant, slow: (usize, Bitrate), fast: (usize, Bitrate)) -> bool {
        slow.1 < fast.1.share(self.limit(now, slow.0, fast.0).unwrap_or(DRAG))
    }
}
