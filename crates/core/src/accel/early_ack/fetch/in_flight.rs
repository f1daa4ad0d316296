//! A fetch in flight, range by range.

use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::accel::early_ack::http_map::ResourceOffset;
use crate::accel::seq_space::PosRange;
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Instant};

/// A range request that was sent over one link and is not complete.
#[derive(Clone, Debug)]
pub(super) struct InFlightFetch {
    pub(super) link: LinkId,
    /// Deadline. After it, open ranges are requested over another link.
    pub(super) due: Instant,
    /// How long after a range the next one may take; none: a range that came does not extend the deadline.
    pub(super) range_timeout: Option<Duration>,
    pub(super) sent_at: Instant,
    /// How much its link had to deliver up to its end.
    pub(super) bytes_ahead: DataSize,
    /// Whether something of it was requested elsewhere.
    pub(super) was_rerequested: bool,
    pub(super) parts: Vec<InFlightRange>,
}

/// A range of a fetch, with the flow that misses it.
#[derive(Clone, Debug)]
pub(super) struct InFlightRange {
    pub(super) flow: u64,
    pub(super) range: PosRange,
    pub(super) source: ResourceOffset,
    pub(super) server: SocketAddr,
    /// How often it was requested, this time included.
    pub(super) tries: u32,
    /// How often it was not answered in time before.
    pub(super) timeout_count: u32,
    /// Whether it was late and requested elsewhere.
    pub(super) is_retried: bool,
    /// The range was answered, or the flow no longer needs it.
    pub(super) is_closed: bool,
    /// Answered: an obsolete range still comes, while others of its fetch are wanted.
    pub(super) is_received: bool,
}

impl InFlightFetch {
    /// The range of this number was answered. Returns it if it was still open.
    pub(super) fn close(&mut self, range: u32) -> Option<InFlightRange> {
        let part = self.parts.get_mut(range as usize)?;
        part.is_received = true;
        (!core::mem::replace(&mut part.is_closed, true)).then(|| part.clone())
    }

    /// Closes some ranges. Returns whether there were any.
    pub(super) fn drop_parts(&mut self, should_drop: impl Fn(&InFlightRange) -> bool) -> bool {
        let mut any = false;
        for part in self.parts.iter_mut().filter(|part| !part.is_closed && should_drop(part)) {
            part.is_closed = true;
            any = true;
        }
        any
    }

    pub(super) fn is_finished(&self) -> bool {
        self.parts.iter().all(|part| part.is_closed)
    }

    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|due| due <= now)
    }

    /// When it is late; none once it was.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.parts.iter().any(|part| !part.is_closed && !part.is_retried).then_some(self.due)
    }

    /// The open ranges that were not requested elsewhere yet.
    pub(super) fn take_for_retry(&mut self) -> Vec<InFlightRange> {
        self.was_rerequested = true;
        let open = self.parts.iter_mut().filter(|part| !part.is_closed && !part.is_retried);
        open.map(|part| {
            part.is_retried = true;
            part.clone()
        })
        .collect()
    }

    /// Whether it is late with a range of this server that was late so often, this time included.
    pub(super) fn is_overdue_for(&self, server: SocketAddr, times: u32) -> bool {
        let is_overdue =
            |part: &InFlightRange| part.is_retried && !part.is_closed && part.timeout_count + 1 >= times;
        self.was_rerequested && self.parts.iter().any(|part| is_overdue(part) && part.server == server)
    }

    /// Bytes that are still to come, and were not requested elsewhere.
    pub(super) fn bytes(&self) -> u64 {
        let open = self.parts.iter().filter(|part| !part.is_closed && !part.is_retried);
        open.map(|part| part.range.len()).sum()
    }

    /// The load on its link that is still to come.
    pub(super) fn cost(&self) -> DataSize {
        self.parts.iter().filter(|part| !part.is_received).map(InFlightRange::cost).sum()
    }
}

impl InFlightRange {
    /// The load of its response on a link.
    pub(super) fn cost(&self) -> DataSize {
        let bytes = self.range.len();
        // 52 bytes of headers for 1448 of a segment.
        DataSize::from_bytes(bytes + bytes / 27 + PART_OVERHEAD)
    }
}

/// What nginx writes around one of several ranges: 110 to 130 bytes; a head of its own has about 300.
const PART_OVERHEAD: u64 = 130;
