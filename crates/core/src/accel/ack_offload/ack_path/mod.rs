//! One flow's ACKs and the two ways that they may take.
//!
//! In: what the flow's ACKs show, and echoes. Out: for each ACK the way, and how late it is to leave.
//!
//! 1. Offload is on by trial ([`Trial`]), and off where holes are many ([`Calm`]).
//! 2. The round trip changes with the way, and what is on its way was sent for one of them. So while something is missing
//!    ACKs leave over the first link as late as over the second ([`Line`]); and when offload ends, that delay fades
//!    slowly, so that the difference does not fall on the queue at once.
//! 3. ACKs that do not arrive by the second way show in this: nothing echoes them. Then the flow goes back at once.
//!    What stays on the first link, for a hole or for its exactness, is no sign of it and puts the proof off.

use alloc::vec::Vec;

use super::delay_queue::{Line, Says};
use super::loss_guard::Calm;
use super::path_delay::{By, Ways};
use super::trial::{Moment, Trial};
use crate::accel::observation::sack_holes::Holes;
use crate::units::{Duration, Instant};
use crate::wire::packet::TcpTimestamp;

/// What becomes of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::accel) enum Road {
    /// It may go over a helping link.
    Elsewhere,
    /// It leaves over the first one, so late.
    Late(Duration),
}

/// One flow's ways.
#[derive(Clone, Debug, Default)]
pub(in crate::accel) struct Detour {
    trial: Trial,
    calm: Calm,
    ways: Ways,
    line: Line,
    length: Length,
    is_on: bool,
    watched: Option<Instant>,
    /// When something that went elsewhere must have been echoed.
    proof: Option<Instant>,
}

/// For which round trip the sender has sent.
#[derive(Clone, Copy, Debug, Default)]
enum Length {
    #[default]
    Short,
    Long,
    Fading {
        since: Instant,
    },
}

impl Detour {
    /// Whether ACKs may go elsewhere as far as holes are concerned; `is_exact`: the next ones have to arrive as they are.
    pub(in crate::accel) fn is_clear(&mut self, now: Instant, holes: &Holes, is_exact: bool) -> bool {
        self.calm.is_calm(now, holes) && !is_exact
    }

    /// The way of an ACK that leaves now. What `moment` says of holes is found here.
    pub(in crate::accel) fn road(&mut self, moment: Moment, holes: &Holes, is_exact: bool) -> Road {
        let now = moment.now;
        let is_calm = self.calm.is_calm(now, holes) && !is_exact;
        let moment = Moment {
            is_calm,
            is_quiet: holes.closed_for(now, QUIET),
            is_strained: self.calm.is_strained(now),
            extra: self.ways.is_known().then(|| self.ways.extra()),
            ..moment
        };
        let was_on = core::mem::replace(&mut self.is_on, self.trial.is_on(&moment) && moment.fits);
        if self.is_on && !was_on {
            self.ways.begin();
            self.proof = self.proof_by(&moment);
        } else if !self.is_on {
            self.proof = None;
        }
        if self.trial.is_open() || self.proof.is_some() {
            self.watched = Some(now + LOOK);
        }
        if self.is_on && holes.closed_for(now, PAUSE) && !is_exact {
            return Road::Elsewhere;
        }
        // What does not go there proves nothing.
        self.proof = self.proof.and_then(|_| self.proof_by(&moment));
        Road::Late(self.late(now, !self.is_on))
    }

    /// No helping link could take it. How late it is to leave.
    pub(in crate::accel) fn on_refused(&mut self, now: Instant) -> Duration {
        self.late(now, true)
    }

    /// A helping link has taken an ACK with this timestamp.
    pub(in crate::accel) fn on_taken(&mut self, now: Instant, value: Option<TcpTimestamp>) {
        self.length = Length::Long;
        if let Some(value) = value {
            self.ways.on_leaving(now, value, By::Second);
        }
    }

    /// An ACK leaves over the first link, so late. It is given back if that is now.
    pub(in crate::accel) fn hold(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        says: Says,
        late: Duration,
    ) -> Option<Vec<u8>> {
        let packet = self.line.push(now, packet, says, late);
        let value = says.ack.timestamps.map(|stamps| stamps.ts_val);
        match value.filter(|_| packet.is_some()) {
            Some(value) => self.ways.on_leaving(now, value, By::First),
            None => self.ways.on_held(),
        }
        packet
    }

    /// A packet comes that echoes this, and has waited so long.
    pub(in crate::accel) fn on_echo(&mut self, now: Instant, echo: TcpTimestamp, waited: Option<Duration>) {
        self.ways.on_echo(now, echo, waited);
        if self.ways.is_proved() {
            self.proof = None;
        }
    }

    /// What is to leave now over the first link; all of it where the link has gone dark.
    pub(in crate::accel) fn due(&mut self, now: Instant, is_dark: bool) -> Vec<Vec<u8>> {
        if is_dark {
            return self.line.drain().collect();
        }
        core::iter::from_fn(|| self.line.pop(now)).collect()
    }

    /// Whether ACKs do not arrive by the second way. They go by the first from now on.
    pub(in crate::accel) fn has_failed(&mut self, now: Instant) -> bool {
        let has_failed = self.proof.is_some_and(|proof| now >= proof);
        if has_failed {
            (self.proof, self.is_on) = (None, false);
            self.trial.fail(now);
        }
        has_failed
    }

    /// When something is due.
    pub(in crate::accel) fn deadline(&self) -> Option<Instant> {
        [self.line.due(), self.proof].into_iter().flatten().min()
    }

    /// Until when its packets are to be shown.
    pub(in crate::accel) const fn watch_until(&self) -> Option<Instant> {
        self.watched
    }

    /// Whether ACKs go elsewhere.
    pub(in crate::accel) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// The trial.
    pub(in crate::accel) const fn trial(&self) -> &Trial {
        &self.trial
    }

    /// By when something that goes elsewhere from now on is echoed; none: echoes are not shown.
    fn proof_by(&self, moment: &Moment) -> Option<Instant> {
        let rtt = self.ways.first().or(moment.queue.map(|_| moment.rtt))?;
        Some(moment.now + rtt * 3 + SLACK)
    }

    /// How late an ACK leaves over the first link; `ends`: offload does.
    fn late(&mut self, now: Instant, ends: bool) -> Duration {
        let extra = self.ways.extra();
        if let (Length::Long, true) = (self.length, ends) {
            self.length = Length::Fading { since: now };
        }
        match self.length {
            Length::Short => Duration::ZERO,
            Length::Long => extra,
            Length::Fading { since } => {
                let left = FADE.saturating_sub(now.since(since));
                if left.is_zero() {
                    self.length = Length::Short;
                }
                extra.mul_f64(left.as_secs_f64() / FADE.as_secs_f64())
            }
        }
    }
}

/// chosen: longer than a repair's ACKs take, whichever way; what comes behind is a rate.
const QUIET: Duration = Duration::from_millis(300);
/// chosen: holes of one burst are one.
const PAUSE: Duration = Duration::from_millis(60);
/// chosen: so much of what passes is shown beyond a trial; ACKs come more often.
const LOOK: Duration = Duration::from_millis(500);
/// chosen: the longest difference and the longest queue that are worth it.
const SLACK: Duration = Duration::from_millis(400);
/// chosen: with 50 ms the queue grows by an eightieth of the rate meanwhile; in one second it overflowed, and flows beside lost
/// by it (`tests/tables/accel-beside.txt` of the simulator).
const FADE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests;
