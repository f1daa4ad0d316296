//! How many connections a link should have.
//!
//! One connection fills most links. It does not where the sender is held back by something else than the link's
//! capacity: random loss that it takes for congestion, or a server that gives each connection only so much. Both look
//! the same from here: bytes come at a steady rate although nothing waits in the link's queue. So:
//!
//! 1. A link is *slack* when its connections have left slow start and the round trip stays that of the empty path: for
//!    a few round trips if packets were lost lately, otherwise for longer, since an empty queue may just be filling.
//! 2. A slack link gets twice as many connections, if enough is left to fetch for that to pay; without losses never more
//!    than two, since what a server gives to each connection is not ours to multiply.
//! 3. After a few round trips the new rate is compared with the old. Less than a tenth more: the number was right, and
//!    the question rests, twice as long after each time. Without losses the new connections are taken back; with them
//!    they stay, for what one loses the others keep.
//! 4. On a long way (a satellite's) slow start takes seconds: a link that is still climbing gets [`CLIMBERS`] at once.
//!
//! A fixed number was not used: on the measured peers, 16 connections win on the lossy link and lose 30 % on unequal
//! ones, two the other way round (`docs/algorithms.md`).

use core::time::Duration;

use crate::units::{Bitrate, Instant};

/// How many connections, and the experiment that is running, if any.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    /// How many there should be.
    pub(super) wanted: u32,
    trial: Option<Trial>,
    /// No new trial before this.
    rest_until: Instant,
    rest: Duration,
    /// Since when the link has been slack.
    slack_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The rate before it.
    before: Bitrate,
    /// The number before it.
    from: u32,
    /// When its result is read; none until the new connections have brought their first bytes.
    read_at: Option<Instant>,
    began: Instant,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { wanted: 1, trial: None, rest_until: Instant::ZERO, rest: FIRST_REST, slack_since: None }
    }
}

/// What a link looks like to [`Lanes::review`].
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// A connection is in slow start and has delivered.
    pub(super) climbing: bool,
    /// Packets were lost lately.
    pub(super) lossy: bool,
    /// All connections have left slow start, and this many deliver.
    pub(super) settled: bool,
    pub(super) delivering: u32,
    /// The rate of all connections together over the last few round trips.
    pub(super) rate: Bitrate,
    /// The round trip of the empty path.
    pub(super) floor_rtt: Duration,
    /// The round trip now.
    pub(super) rtt: Duration,
    /// How long the download still takes.
    pub(super) left: Duration,
}

impl View {
    /// Whether nothing waits in the link's queue: the sender or the server holds the bytes back, not the link.
    pub(super) fn is_slack(&self) -> bool {
        self.rtt <= self.floor_rtt + self.floor_rtt / 4 + QUEUE_NOISE
    }
}

impl Lanes {
    /// Looks at the link, and changes the number if that is worth trying. Tells whether it did.
    pub(super) fn review(&mut self, now: Instant, view: View, most: u32) -> bool {
        match self.trial {
            Some(trial) => self.read(now, view, trial),
            None => self.begin(now, view, most),
        }
    }

    fn begin(&mut self, now: Instant, view: View, most: u32) -> bool {
        // Rule 4: the climb itself is what takes long here, and several climb at once.
        if now >= self.rest_until
            && self.wanted == 1
            && view.climbing
            && view.floor_rtt >= LONG_WAY
            && view.left >= view.floor_rtt * LONG_ROUNDS
        {
            self.wanted = CLIMBERS.min(most);
            return self.wanted > 1;
        }
        if !view.is_slack() || !view.settled {
            self.slack_since = None;
            return false;
        }
        let since = *self.slack_since.get_or_insert(now);
        let lossy = view.lossy && since + (view.floor_rtt * LOSSY_ROUNDS).max(LOSSY_PERSISTENT) <= now;
        // Without losses a second one is tried, and no more: it may be the server that shares itself out.
        let sure = lossy || (since + PERSISTENT <= now && self.wanted == 1);
        let worth = view.left >= (view.floor_rtt * WORTH_ROUNDS).max(WORTH);
        if now < self.rest_until || !sure || !worth || self.wanted >= most {
            return false;
        }
        self.trial = Some(Trial { before: view.rate, from: self.wanted, read_at: None, began: now });
        self.wanted = (self.wanted * 2).min(most);
        true
    }

    fn read(&mut self, now: Instant, view: View, trial: Trial) -> bool {
        let settle = (view.floor_rtt * SETTLE_ROUNDS).max(SETTLE);
        match trial.read_at {
            None if view.delivering >= self.wanted => {
                self.trial = Some(Trial { read_at: Some(now + settle), ..trial });
            }
            // The server lets no more in.
            None if now > trial.began + settle * 4 => {
                self.wanted = view.delivering.max(1);
                self.trial = None;
                self.tire(now);
            }
            Some(at) if now >= at => {
                self.trial = None;
                if view.rate >= trial.before + trial.before / GAIN {
                    self.rest = FIRST_REST;
                } else {
                    self.tire(now);
                    if !view.lossy {
                        self.wanted = trial.from;
                        return true;
                    }
                }
            }
            _ => {}
        }
        false
    }

    fn tire(&mut self, now: Instant) {
        self.rest_until = now + self.rest;
        self.rest = (self.rest * 2).min(LONGEST_REST);
    }

    /// The server asks for less: back to one connection for the rest of the run.
    pub(super) fn be_modest(&mut self) {
        *self = Self { rest_until: Instant::FAR_FUTURE, ..Self::default() };
    }

    /// When the next look is due.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let next = now + LOOK;
        self.trial.and_then(|trial| trial.read_at).map_or(next, |at| at.min(next)).max(now + SOON)
    }
}

/// The rate must grow by a tenth.
const GAIN: u64 = 10;
/// A queue shorter than this is noise.
const QUEUE_NOISE: Duration = Duration::from_millis(6);
/// What is left must last this long, or a new connection does not pay for its slow start.
const WORTH: Duration = Duration::from_millis(1500);
const WORTH_ROUNDS: u32 = 20;
/// How long new connections take to show what they can do.
const SETTLE: Duration = Duration::from_millis(400);
const SETTLE_ROUNDS: u32 = 8;
/// An empty queue that stays empty this long is not filling.
const PERSISTENT: Duration = Duration::from_millis(2500);
/// With losses: longer than the dip behind a loss that the queue itself has caused.
const LOSSY_ROUNDS: u32 = 4;
const LOSSY_PERSISTENT: Duration = Duration::from_millis(150);
/// A round trip from which slow start takes seconds, what must be left for the climb to pay, and how many climb.
const LONG_WAY: Duration = Duration::from_millis(200);
const LONG_ROUNDS: u32 = 4;
const CLIMBERS: u32 = 4;
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How often a link is looked at.
const LOOK: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn view(rate: u64, rtt: u64, delivering: u32) -> View {
        View {
            climbing: false,
            lossy: false,
            settled: true,
            delivering,
            rate: Bitrate::from_mbps(rate),
            floor_rtt: Duration::from_millis(30),
            rtt: Duration::from_millis(rtt),
            left: Duration::from_secs(20),
        }
    }

    #[test]
    fn a_link_with_a_standing_queue_keeps_its_one_connection() {
        let mut lanes = Lanes::default();
        for t in 0..100 {
            lanes.review(Instant::from_millis(t * 100), view(20, 80, 1), 16);
        }
        assert_eq!(lanes.wanted, 1);
    }

    #[test]
    fn a_slack_link_gets_more_as_long_as_they_pay() {
        let mut lanes = Lanes::default();
        for t in 0..200_u64 {
            // Each connection brings 5 Mbit/s, up to 20, as losses allow.
            let n = lanes.wanted;
            let rate = (5 * u64::from(n)).min(20);
            let seen = View { lossy: true, ..view(rate, if rate == 20 { 60 } else { 31 }, n) };
            lanes.review(Instant::from_millis(t * 50), seen, 16);
        }
        assert_eq!(lanes.wanted, 4);
    }

    #[test]
    fn without_losses_there_are_never_more_than_two() {
        let mut lanes = Lanes::default();
        for t in 0..400_u64 {
            let n = lanes.wanted;
            lanes.review(Instant::from_millis(t * 50), view(5 * u64::from(n), 31, n), 16);
        }
        assert_eq!(lanes.wanted, 2);
    }

    #[test]
    fn more_that_bring_nothing_are_taken_back() {
        let mut lanes = Lanes::default();
        let mut most = 0;
        for t in 0..100_u64 {
            lanes.review(Instant::from_millis(t * 50), view(5, 30, lanes.wanted), 16);
            most = most.max(lanes.wanted);
        }
        assert_eq!((lanes.wanted, most), (1, 2));
    }

    #[test]
    fn on_a_long_way_several_climb_at_once() {
        let mut lanes = Lanes::default();
        let far = View { climbing: true, settled: false, floor_rtt: Duration::from_millis(600), ..view(1, 600, 1) };
        assert!(lanes.review(Instant::from_millis(1300), far, 16));
        assert_eq!(lanes.wanted, 4);
        assert!(!Lanes::default().review(
            Instant::from_millis(1300),
            View { left: Duration::from_secs(1), ..far },
            16
        ));
    }

    #[test]
    fn nothing_is_tried_at_the_end() {
        let mut lanes = Lanes::default();
        let end = View { left: Duration::from_millis(300), ..view(5, 30, 1) };
        assert!(!lanes.review(Instant::from_millis(1000), end, 16));
    }
}
