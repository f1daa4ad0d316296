//! A fetch that is not answered yet, range by range.
//!
//! In: answers, and what is not wanted any more. Out: what it is still good for.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::link::response_cost;
use crate::accel::early_ack::http_map::ResourceOffset;
use crate::accel::seq_space::PosRange;
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Instant};

/// A fetch.
#[derive(Clone, Debug)]
pub(super) struct InFlightFetch {
    pub(super) link: LinkId,
    /// When it is late.
    pub(super) due: Instant,
    /// How long after a range the next one may take; none: no longer for a range that came.
    pub(super) range_timeout: Option<Duration>,
    /// When it was asked, and how much its link had to bring up to its end.
    pub(super) sent_at: Instant,
    pub(super) bytes_ahead: DataSize,
    /// Whether something of it was asked for elsewhere.
    pub(super) was_late: bool,
    pub(super) parts: Vec<InFlightRange>,
}

/// One of its ranges.
#[derive(Clone, Debug)]
pub(super) struct InFlightRange {
    pub(super) flow: u64,
    pub(super) range: PosRange,
    pub(super) source: ResourceOffset,
    pub(super) server: SocketAddr,
    /// How often it was asked for, this time included.
    pub(super) tries: u32,
    /// How often it was not answered in time before.
    pub(super) late: u32,
    /// Whether it was late and asked for elsewhere.
    pub(super) is_retried: bool,
    /// Answered, or not wanted any more.
    pub(super) is_closed: bool,
    /// Answered: what is not wanted still comes, while others of its fetch are wanted.
    pub(super) is_received: bool,
}

impl InFlightFetch {
    /// The part of this number was answered: it, if it was still open.
    pub(super) fn close(&mut self, range: u32) -> Option<InFlightRange> {
        let part = self.parts.get_mut(range as usize)?;
        part.is_received = true;
        (!core::mem::replace(&mut part.is_closed, true)).then(|| part.clone())
    }

    /// Closes some; whether there were any.
    pub(super) fn drop_parts(&mut self, gone: impl Fn(&InFlightRange) -> bool) -> bool {
        let mut any = false;
        for part in self.parts.iter_mut().filter(|part| !part.is_closed && gone(part)) {
            part.is_closed = true;
            any = true;
        }
        any
    }

    pub(super) fn is_finished(&self) -> bool {
        self.parts.iter().all(|part| part.is_closed)
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|due| due <= now)
    }

    /// When it is late; none once it was.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.parts.iter().any(|part| !part.is_closed && !part.is_retried).then_some(self.due)
    }

    /// What is open and was not asked for elsewhere yet.
    pub(super) fn take_for_retry(&mut self) -> Vec<InFlightRange> {
        self.was_late = true;
        let open = self.parts.iter_mut().filter(|part| !part.is_closed && !part.is_retried);
        open.map(|part| {
            part.is_retried = true;
            part.clone()
        })
        .collect()
    }

    /// Whether it is late with something of this server's that was late so often, this time included.
    pub(super) fn is_late_for(&self, server: SocketAddr, times: u32) -> bool {
        let is_late = |part: &InFlightRange| part.is_retried && !part.is_closed && part.late + 1 >= times;
        self.was_late && self.parts.iter().any(|part| is_late(part) && part.server == server)
    }

    /// Bytes that are still to come, and were not asked for elsewhere.
    pub(super) fn bytes(&self) -> u64 {
        let open = self.parts.iter().filter(|part| !part.is_closed && !part.is_retried);
        open.map(|part| part.range.len()).sum()
    }

    /// What is still to come of it takes so much of its link.
    pub(super) fn cost(&self) -> DataSize {
        self.parts.iter().filter(|part| !part.is_received).map(InFlightRange::cost).sum()
    }
}

impl InFlightRange {
    /// What its answer takes of a link.
    pub(super) fn cost(&self) -> DataSize {
        response_cost(self.range.len())
    }
}
