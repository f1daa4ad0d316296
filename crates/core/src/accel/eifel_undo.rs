//! Has the sender take back what it did because of a random loss: by the timestamp that ACKs echo (Eifel, RFC 3522).
//!
//! In: the own stack's ACKs with holes, each with the gate's word on it. Out: the timestamp that an ACK is to echo in
//! place of its own.
//!
//! 1. The sender repairs the loss as ever. Only the ACKs that close the hole echo a timestamp from before the repair,
//!    so that the sender concludes that the original was merely late, and restores its window (Linux:
//!    `tcp_packet_delayed`). Nothing is acknowledged that is not here; it works under TLS and needs no second link.
//! 2. Holes that overlap are one chain with one timestamp, that of before the first: the sender compares with the time
//!    of its first repair, and forgets that only when nothing repaired is on its way. The price is a sample of the round
//!    trip that is as long as the chain, among hundreds that are right; so a chain that lasts for [`AGE`] gets a newer
//!    timestamp, which costs one reduction.
//! 3. A loss that the gate calls congestion bars the chain: the reduction stands. The sender's episode ends when all is
//!    acknowledged that it had sent when it began, about one round trip after the hole showed; what is open behind that
//!    is helped again.
//!    So does an episode that takes many round trips: a sender that was told of delay repairs a burst segment by segment,
//!    and each old timestamp is a sample of all the time since.
//! 4. ACKs get lost, too: the two that follow the closing one echo the same.
//! 5. Of a long hole, such as a blackout leaves, only the ACK that closes it echoes; after a silence in which the
//!    sender's timer may have run out, only one that leaves nothing missing, until what it had sent by then is here.
//!    A sender that takes its reduction back before takes back, too, that the rest is lost: Linux's RACK has put
//!    those segments off its list and looks at them no more, and only the timer repeats them, after what the blackout
//!    has made of it (`tcp_undo_cwnd_reduction`, `tcp_rack_detect_loss`; seen on 6.18: seven seconds).
//! 6. A blackout ends the chain (facts: a timestamp held over one multiplies the sender's timeout).

use crate::units::{Duration, Instant};
use crate::wire::packet::{Seq, TcpTimestamp};

/// One flow's chain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EifelUndo {
    chain: Option<HoleChain>,
    /// The last chain's timestamp, for so many ACKs more.
    closed: Option<(TcpTimestamp, u8)>,
    undone_reductions: u64,
    random_losses: u64,
}

#[derive(Clone, Copy, Debug)]
struct HoleChain {
    echo: TcpTimestamp,
    began: Instant,
    /// The ACK before this one.
    last_ack: Instant,
    /// Nothing came for so long that the sender's timer may have run out.
    may_have_timed_out: bool,
    episode: RecoveryEpisode,
    /// Whether the reduction of this episode stands.
    stands: bool,
}

/// What the sender repairs at a time.
#[derive(Clone, Copy, Debug)]
struct RecoveryEpisode {
    began: Instant,
    /// When it began, or when the last silence ended: what the sender had sent by then is known one round trip later.
    sent: Instant,
    /// The end of what it had sent.
    until: Option<Seq>,
}

/// What an ACK of the own stack shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoleReport {
    /// Holes for the first time.
    pub(super) new_holes: u32,
    /// Everything before this is here.
    pub(super) ack: Seq,
    /// One past the highest number that is here.
    pub(super) high: Seq,
    /// Whether a hole is open.
    pub(super) is_open: bool,
    /// Whether many segments in a row are missing.
    pub(super) is_long: bool,
    /// What the ACK echoes by itself.
    pub(super) echo: TcpTimestamp,
    /// Whether a loss that shows now is taken for random.
    pub(super) is_random: bool,
    /// The flow's round trip.
    pub(super) rtt: Duration,
}

impl EifelUndo {
    /// What this ACK is to echo; none: what it does.
    pub(super) fn on_ack(&mut self, now: Instant, report: &HoleReport) -> Option<TcpTimestamp> {
        if report.new_holes > 0 {
            self.on_new_holes(now, report);
        }
        let Some(mut chain) = self.chain.take() else { return self.repeat_echo() };
        let echo = chain.on_ack(now, report);
        if report.is_open {
            self.chain = Some(chain);
        } else if let Some(echo) = echo {
            self.undone_reductions += 1;
            self.closed = Some((echo, REPEATS));
        }
        echo
    }

    /// The link is dark, or the flow is left alone.
    pub(super) fn clear(&mut self) {
        (self.chain, self.closed) = (None, None);
    }

    /// Whether ACKs must be exact now: they close holes whose repair is to be taken for delay.
    pub(super) const fn needs_exact_acks(&self) -> bool {
        self.chain.is_some() || self.closed.is_some()
    }

    /// Chains that ended with the sender told to take its reduction back.
    pub(super) const fn undone_reductions(&self) -> u64 {
        self.undone_reductions
    }

    /// Holes that were called random.
    pub(super) const fn random_losses(&self) -> u64 {
        self.random_losses
    }

    fn on_new_holes(&mut self, now: Instant, report: &HoleReport) {
        self.closed = None;
        let episode = RecoveryEpisode::at(now);
        let fresh = HoleChain {
            echo: report.echo,
            began: now,
            last_ack: now,
            may_have_timed_out: false,
            episode,
            stands: false,
        };
        let chain = self.chain.get_or_insert(fresh);
        if report.is_random {
            self.random_losses += u64::from(report.new_holes);
        } else {
            (chain.episode, chain.stands) = (episode, true);
        }
    }

    fn repeat_echo(&mut self) -> Option<TcpTimestamp> {
        let (echo, left) = self.closed?;
        self.closed = left.checked_sub(1).filter(|left| *left > 0).map(|left| (echo, left));
        Some(echo)
    }
}

impl HoleChain {
    /// Whether the sender may have more to repair than it has sent again.
    fn has_unrepaired_losses(&self, report: &HoleReport) -> bool {
        report.is_long || (self.may_have_timed_out && report.is_open)
    }

    fn on_ack(&mut self, now: Instant, report: &HoleReport) -> Option<TcpTimestamp> {
        let was_barred = self.stands;
        if now.since(core::mem::replace(&mut self.last_ack, now)) >= report.rtt.max(MIN_TIMEOUT_GAP) {
            (self.episode, self.may_have_timed_out) =
                (RecoveryEpisode { began: self.episode.began, ..RecoveryEpisode::at(now) }, true);
        }
        if self.episode.has_ended(now, report) {
            (self.episode, self.may_have_timed_out, self.stands) = (RecoveryEpisode::at(now), false, false);
        } else if now.since(self.episode.began) >= report.rtt * MAX_EPISODE_RTTS {
            self.stands = true;
        }
        // The ACK that ends the sender's episode is its own, too.
        if was_barred || self.stands || self.has_unrepaired_losses(report) {
            return None;
        }
        if now.since(self.began) >= MAX_ECHO_AGE {
            (self.echo, self.began) = (report.echo, now);
        }
        Some(self.echo)
    }
}

impl RecoveryEpisode {
    const fn at(now: Instant) -> RecoveryEpisode {
        RecoveryEpisode { began: now, sent: now, until: None }
    }

    fn has_ended(&mut self, now: Instant, report: &HoleReport) -> bool {
        if self.until.is_none() && now.since(self.sent) >= report.rtt {
            self.until = Some(report.high);
        }
        self.until.is_some_and(|until| !report.ack.is_before(until))
    }
}

/// ACKs behind the closing one. chosen: of three, all are lost once in a million at 1 %.
const REPEATS: u8 = 2;
/// chosen: with a hundred right samples a round trip the smoothed one is right again before the next (seen on 6.18: 203 to
/// 300 ms at 200 ms).
const MAX_ECHO_AGE: Duration = Duration::from_secs(10);

/// Or a round trip. chosen: half of the least time after which a timer runs out; between two ACKs of a flow that has a window
/// it is far less.
const MIN_TIMEOUT_GAP: Duration = Duration::from_millis(100);
/// In round trips. chosen: one until what it had sent is known, one until the repair is here, and four for repairs that
/// were lost themselves.
const MAX_EPISODE_RTTS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    fn report(new: u32, ack: u32, high: u32, echo: u32) -> HoleReport {
        HoleReport {
            new_holes: new,
            ack: Seq::new(ack),
            high: Seq::new(high),
            is_open: high > ack,
            is_long: false,
            echo: TcpTimestamp::new(echo),
            is_random: true,
            rtt: RTT,
        }
    }

    /// What is acknowledged after so many round trips.
    fn number(rtts: u64) -> u32 {
        u32::try_from(rtts * 300).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn the_closing_ack_and_two_more_echo_what_was_before_the_hole() {
        let mut undo = EifelUndo::default();
        assert_eq!(undo.on_ack(at(0), &report(0, 100, 100, 10)), None);
        assert_eq!(undo.on_ack(at(1), &report(1, 100, 300, 10)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.on_ack(at(51), &report(0, 900, 900, 61)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.undone_reductions(), 1);
        for n in 52..54 {
            assert_eq!(undo.on_ack(at(n), &report(0, 1000, 1000, 62)), Some(TcpTimestamp::new(10)));
        }
        assert_eq!(undo.on_ack(at(54), &report(0, 1100, 1100, 63)), None);
        assert!(!undo.needs_exact_acks());
    }

    #[test]
    fn a_chain_echoes_one_timestamp_until_it_is_old() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 300, 10));
        for n in 1..200 {
            assert_eq!(
                undo.on_ack(at(n * 50), &report(1, number(n), number(n + 1), 99)),
                Some(TcpTimestamp::new(10)),
                "{n}"
            );
        }
        assert_eq!(undo.on_ack(at(10_001), &report(1, 70_000, 71_000, 990)), Some(TcpTimestamp::new(990)));
        assert_eq!(undo.on_ack(at(10_100), &report(0, 71_000, 71_000, 1090)), Some(TcpTimestamp::new(990)));
    }

    #[test]
    fn congestion_stands_and_what_is_open_behind_it_is_helped() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 300, 10));
        let full = HoleReport { is_random: false, ..report(1, 100, 500, 10) };
        assert_eq!(undo.on_ack(at(20), &full), None);
        assert_eq!(undo.on_ack(at(30), &report(1, 100, 700, 10)), None);
        assert_eq!(undo.on_ack(at(71), &report(0, 300, 900, 70)), None, "the sender had sent up to 900 by then");
        assert_eq!(undo.on_ack(at(80), &report(0, 910, 1000, 80)), None, "the ACK that ends the episode");
        assert_eq!(undo.on_ack(at(90), &report(0, 950, 1100, 90)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.on_ack(at(95), &report(0, 1200, 1200, 95)), Some(TcpTimestamp::new(10)));
        assert_eq!((undo.random_losses(), undo.undone_reductions()), (2, 1));
    }

    #[test]
    fn a_congestion_that_is_repaired_whole_is_not_undone() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &HoleReport { is_random: false, ..report(1, 100, 500, 10) });
        assert_eq!(undo.on_ack(at(51), &report(0, 500, 500, 60)), None);
        assert_eq!(undo.on_ack(at(52), &report(0, 600, 600, 61)), None);
        assert_eq!(undo.undone_reductions(), 0);
    }

    #[test]
    fn a_repair_that_takes_many_round_trips_bars_it() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 1000, 10));
        assert_eq!(undo.on_ack(at(90), &report(0, 300, 1000, 81)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.on_ack(at(180), &report(0, 350, 1000, 81)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.on_ack(at(300), &report(0, 400, 1000, 251)), None, "six round trips, one of them silent");
        assert_eq!(undo.on_ack(at(350), &report(0, 500, 1000, 301)), None);
        assert_eq!(undo.on_ack(at(400), &report(0, 1000, 1000, 351)), None);
    }

    #[test]
    fn of_a_long_hole_only_the_closing_ack_echoes() {
        let mut undo = EifelUndo::default();
        let long_report = |new, ack| HoleReport { is_long: true, ..report(new, ack, 1000, 10) };
        assert_eq!(undo.on_ack(at(0), &long_report(1, 100)), None);
        assert_eq!(undo.on_ack(at(60), &long_report(0, 500)), None);
        assert_eq!(undo.on_ack(at(110), &report(0, 1100, 1100, 111)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.undone_reductions(), 1);
    }

    #[test]
    fn after_a_timeout_only_an_ack_that_leaves_nothing_missing_echoes() {
        let mut in_time = EifelUndo::default();
        in_time.on_ack(at(0), &report(2, 100, 1000, 10));
        assert_eq!(in_time.on_ack(at(60), &report(0, 500, 1000, 10)), Some(TcpTimestamp::new(10)));
        let mut delayed = EifelUndo::default();
        delayed.on_ack(at(0), &report(2, 100, 1000, 10));
        assert_eq!(delayed.on_ack(at(250), &report(0, 500, 1000, 10)), None);
        assert_eq!(delayed.on_ack(at(280), &report(0, 1100, 1100, 281)), Some(TcpTimestamp::new(10)));
    }

    #[test]
    fn what_is_missing_behind_a_timeout_is_helped_again() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 1000, 10));
        assert_eq!(undo.on_ack(at(250), &report(1, 500, 1200, 10)), None);
        assert_eq!(undo.on_ack(at(290), &report(0, 1200, 1500, 291)), None);
        assert_eq!(undo.on_ack(at(310), &report(0, 1300, 1600, 311)), None, "it had sent up to 1600 by then");
        assert_eq!(
            undo.on_ack(at(330), &report(0, 1600, 1700, 331)),
            None,
            "six round trips: the reduction stands"
        );
        assert_eq!(
            undo.on_ack(at(340), &report(0, 1650, 1700, 341)),
            Some(TcpTimestamp::new(10)),
            "its episode is over"
        );
    }

    #[test]
    fn a_silence_is_not_over_with_the_ack_that_ends_it() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 1000, 10));
        undo.on_ack(at(60), &report(0, 100, 1000, 10));
        assert_eq!(
            undo.on_ack(at(300), &report(1, 1100, 1200, 10)),
            None,
            "the first episode is over, and there was a timeout"
        );
    }

    #[test]
    fn a_blackout_ends_it() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 300, 10));
        undo.clear();
        assert_eq!(undo.on_ack(at(3000), &report(0, 300, 300, 3000)), None);
    }
}
