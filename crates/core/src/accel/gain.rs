//! What a mechanism brings: what plain TCP would do by the model, and whether a flow runs better with help than without.
//!
//! In: loss, round trip, bytes. Out: a rate; and for ACK offload, whether it is on.
//!
//! 1. The model is CUBIC's mean window (RFC 9438 §5.1, with β = 0.7 and C = 0.4), and that of Reno where it is larger
//!    (RFC 9438 §4.3): `max(1.054 · rtt^0.75 / p^0.75, sqrt(3 / 2p))` segments a round trip. It is shown, and decides nothing.
//! 2. A trial: help is switched on when a moment without it was measured. If the flow becomes slower by three tenths it
//!    ends at once. When it is in full swing help is switched off for a moment, and stays off if the flow ran no worse
//!    without: less than 2 % apart. Both are tried again later, and less and less often.

use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// What plain TCP brings with these segments, if one of `segments / losses` is lost; none without losses.
pub(super) fn plain(segment: DataSize, rtt: Duration, segments: u64, losses: u64) -> Option<Bitrate> {
    if losses == 0 || rtt.is_zero() || segments < losses {
        return None;
    }
    // Counts of this size are exact in floating point.
    let (share, seconds) = (losses as f64 / segments as f64, rtt.as_secs_f64());
    let cubic = CUBIC * libm::pow(seconds / share, 0.75);
    let reno = libm::sqrt(1.5 / share);
    let bits = cubic.max(reno) * segment.bytes() as f64 * 8.0 / seconds;
    Some(Bitrate::from_bits_per_sec(bits as u64))
}

/// Whether one flow has help by trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    phase: Phase,
    /// Trials so far.
    tried: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    New,
    /// Off; what it brings is measured.
    Before { from: Mark },
    /// On; `from` is set when it has had time to show.
    With { since: Instant, before: Bitrate, check: Mark, from: Option<Mark> },
    /// Off for a moment; `with` is what it brought before.
    Without { since: Instant, from: Option<Mark>, with: Bitrate },
    /// Decided.
    Decided { on: bool, until: Instant },
}

/// So many bytes at this time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    total: DataSize,
}

impl Trial {
    /// Whether help is on now. To be asked while it may be on, with all that the flow has brought; `fits`: whether the flow
    /// runs as it can, so that what is measured means something.
    pub(super) fn is_on(&mut self, now: Instant, total: DataSize, fits: bool) -> bool {
        let mark = Mark { at: now, total };
        self.phase = match self.phase {
            Phase::Decided { on, until } if now < until => Phase::Decided { on, until },
            _ if !fits => Phase::New,
            Phase::New | Phase::Decided { .. } => Phase::Before { from: mark },
            Phase::Before { from } => match from.until(mark, BEFORE) {
                Some(before) => Phase::With { since: now, before, check: mark, from: None },
                None => Phase::Before { from },
            },
            Phase::With { since, before, check, from } => self.with(since, before, (check, mark), from),
            Phase::Without { since, from: None, with } => {
                let from = (now.since(since) >= SETTLE).then_some(mark);
                Phase::Without { since, from, with }
            }
            Phase::Without { since, from: Some(from), with } => match from.until(mark, WITHOUT) {
                Some(without) => self.decide(now, with.bits_per_sec() / 51 >= without.bits_per_sec() / 50),
                None => Phase::Without { since, from: Some(from), with },
            },
        };
        matches!(self.phase, Phase::With { .. } | Phase::Decided { on: true, .. })
    }

    fn with(&mut self, since: Instant, before: Bitrate, (check, mark): (Mark, Mark), from: Option<Mark>) -> Phase {
        let now = mark.at;
        let checked = check.until(mark, CHECK);
        if checked.is_some_and(|rate| rate < before.share(HARMED)) {
            return self.decide(now, false);
        }
        let check = if checked.is_some() { mark } else { check };
        match from.map(|from| from.until(mark, WITH)) {
            None => {
                let from = (now.since(since) >= RUN_UP).then_some(mark);
                Phase::With { since, before, check, from }
            }
            Some(None) => Phase::With { since, before, check, from },
            Some(Some(with)) => Phase::Without { since: now, from: None, with },
        }
    }

    fn decide(&mut self, now: Instant, on: bool) -> Phase {
        self.tried += 1;
        Phase::Decided { on, until: now + AGAIN * (1 << self.tried.min(5)) }
    }

    /// Whether it was found that help brings nothing.
    pub(super) const fn is_in_vain(&self) -> bool {
        matches!(self.phase, Phase::Decided { on: false, .. })
    }
}

impl Mark {
    /// The rate up to `now`, if that is long enough.
    fn until(self, now: Self, long: Duration) -> Option<Bitrate> {
        let time = now.at.since(self.at);
        let bytes = DataSize::from_bytes(now.total.bytes().saturating_sub(self.total.bytes()));
        (time >= long).then(|| bytes / time)
    }
}

/// `(C · (3 + β) / (4 · (1 − β)))^¼`.
const CUBIC: f64 = 1.054;
/// chosen: some round trips.
const BEFORE: Duration = Duration::from_millis(400);
/// chosen: a longer way shows within two of its round trips.
const CHECK: Duration = Duration::from_millis(500);
/// chosen: more than a loss takes from CUBIC.
const HARMED: Ratio = Ratio::from_percent(70);
/// chosen: the ACKs of a longer way have come by then, and the window has grown into it.
const RUN_UP: Duration = Duration::from_secs(2);
const WITH: Duration = Duration::from_millis(1500);
/// chosen: longer than a round trip, so that the other way's ACKs are all there.
const SETTLE: Duration = Duration::from_millis(250);
/// chosen: long enough for some hundred packets, short enough to cost nothing.
const WITHOUT: Duration = Duration::from_millis(700);
/// chosen: doubled with each trial, from a minute to half an hour.
const AGAIN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_rfc_9438() {
        // Its table 1: at a loss of 1e-3 and 100 ms, CUBIC's mean window is 45 segments; at 1e-2 and 10 ms Reno's 12.
        let rate = |rtt, segments, losses| plain(DataSize::from_bytes(1250), rtt, segments, losses).unwrap();
        let window = |rate: Bitrate, rtt: Duration| rate.as_mbps_f64() * rtt.as_secs_f64() * 100.0;
        let hundred = Duration::from_millis(100);
        let cubic = window(rate(hundred, 1000, 1), hundred);
        assert!((30.0..60.0).contains(&cubic), "{cubic}");
        let ten = Duration::from_millis(10);
        let reno = window(rate(ten, 100, 1), ten);
        assert!((12.0..13.0).contains(&reno), "{reno}");
        assert_eq!(plain(DataSize::from_bytes(1250), ten, 100, 0), None);
    }

    /// A flow of so many Mbit/s with and without help, asked every 10 ms: for how many of 40 seconds help was on.
    fn run(with: u64, without: u64) -> (u64, bool) {
        let (mut trial, mut total, mut on) = (Trial::default(), 0, 0);
        for n in 0..4000 {
            let is_on = trial.is_on(Instant::from_millis(n * 10), DataSize::from_bytes(total), true);
            total += if is_on { with } else { without } * 1250;
            on += u64::from(is_on);
        }
        (on / 100, trial.is_in_vain())
    }

    #[test]
    fn help_stays_where_it_helps() {
        assert_eq!(run(20, 17), (38, false));
        assert_eq!(run(20, 20), (3, true));
        assert_eq!(run(15, 20), (3, true));
        assert_eq!(run(10, 20), (0, true), "ended at once");
    }

    #[test]
    fn what_does_not_run_freely_is_not_judged() {
        let mut trial = Trial::default();
        for n in 0..10_000 {
            trial.is_on(Instant::from_millis(n * 10), DataSize::from_bytes(n), n % 100 != 0);
            assert!(!trial.is_in_vain() && !matches!(trial.phase, Phase::Decided { .. }));
        }
    }
}
