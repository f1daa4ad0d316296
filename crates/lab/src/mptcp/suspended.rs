//! What passes a link while MPTCP's other end was asked not to use it.
//!
//! In: what the emulator saw, and when the download ended. Out: payload and control after the drain.
//!
//! 1. A suspension is the packet of the client that asks for it (MP_PRIO). The last one before the end counts, and only if
//!    nothing asks for the link again.
//! 2. After it the sender may empty its queue; from [`DRAINED`] on until the end nothing but control may pass.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Emulation;

/// What a link carried while it was suspended.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Suspended {
    /// Payload after the drain.
    pub(crate) payload: u64,
    /// Everything else, in bytes a minute.
    pub(crate) control_a_minute: f64,
    /// Seconds from the request to the last payload of the drain.
    pub(crate) drain_s: f64,
    /// Seconds for which it was watched.
    pub(crate) watched_s: f64,
}

impl Suspended {
    /// Of the link with this place, up to `end`; none: it was never suspended, or not for long enough. The last suspension
    /// counts.
    pub(crate) fn of(emulation: &Emulation, at: usize, end: Duration) -> Option<Self> {
        let link = emulation.links.get(at)?;
        let asked = link.priorities.iter().rfind(|priority| !priority.lost && priority.at < end)?;
        // The first of its row: a request may be sent again to be sure.
        let since = link.priorities.iter().rev().skip_while(|priority| priority.at > asked.at);
        let first = since.take_while(|priority| priority.backup).last()?.at;
        let (drained, mut sum) = (first + DRAINED, (0_u64, 0_u64));
        let watched = end.checked_sub(drained).filter(|time| *time >= LONG)?;
        for sign in link.signs.iter().filter(|sign| sign.at >= drained && sign.at < end) {
            sum.0 += u64::from(sign.payload);
            sum.1 += u64::from(sign.down) + u64::from(sign.up) - u64::from(sign.payload);
        }
        let last = link.signs.iter().rfind(|sign| sign.payload > 0 && sign.at < drained);
        Some(Self {
            payload: sum.0,
            control_a_minute: sum.1 as f64 * 60.0 / watched.as_secs_f64(),
            drain_s: last.map_or(Duration::ZERO, |sign| sign.at.saturating_sub(first)).as_secs_f64(),
            watched_s: watched.as_secs_f64(),
        })
    }
}

/// Within this time a queue of LTE and what was in flight have passed.
const DRAINED: Duration = Duration::from_secs(2);
/// Shorter than this says nothing about a minute.
const LONG: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use marline_core::link::LinkKind;

    use super::*;
    use crate::{Lateness, LinkRun, Priority, Sign};

    #[test]
    fn what_passes_after_the_drain_is_told_from_what_drains() {
        let sign = |millis, down, payload| Sign { at: Duration::from_millis(millis), down, up: 60, payload };
        let asked = |seconds, backup| Priority { at: Duration::from_secs(seconds), backup, lost: false };
        let mut lte = LinkRun {
            name: "lte".into(),
            kind: LinkKind::Lte,
            down: Default::default(),
            up: Default::default(),
            down_timeline: Vec::new(),
            up_timeline: Vec::new(),
            down_span: None,
            unseen: 0,
            signs: vec![sign(10_100, 1500, 1448), sign(10_300, 1500, 1448), sign(30_000, 60, 0)],
            priorities: vec![asked(5, true), asked(7, false), asked(10, true), asked(11, true)],
        };
        let suspended = |lte: &LinkRun, end| {
            let links = vec![lte.clone()];
            let cpu = Duration::ZERO;
            let emulation = Emulation { links, lateness: Lateness::default(), cpu, real_time: false };
            Suspended::of(&emulation, 0, Duration::from_secs(end))
        };
        let after = suspended(&lte, 72).unwrap();
        assert_eq!((after.payload, after.drain_s, after.watched_s), (0, 0.3, 60.0));
        assert!((after.control_a_minute - 120.0).abs() < 1e-9);
        assert_eq!(suspended(&lte, 40), None);
        lte.signs.push(sign(50_000, 1500, 1448));
        assert_eq!(suspended(&lte, 72).unwrap().payload, 1448);
        lte.priorities.push(asked(60, false));
        assert_eq!(suspended(&lte, 72), None);
    }
}
