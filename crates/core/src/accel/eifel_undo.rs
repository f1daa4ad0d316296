//! Eifel undo: has a sender restore the congestion window that it reduced because of a random loss (Eifel detection,
//! RFC 3522; response, RFC 4015).
//!
//! The sender repairs the loss as usual. Only the ACKs that close the hole echo a timestamp from before the repair, so
//! that the sender concludes that the original segment was merely late, and undoes its reduction (Linux:
//! `tcp_packet_delayed`). Nothing is acknowledged that has not arrived; it works under TLS and needs no secondary link.
//!
//! 1. Holes that overlap form one chain with one timestamp, that from before the first hole: the sender compares it
//!    with the time of its first retransmission, and forgets that time only when no retransmission is outstanding. The
//!    price is one sample of the round-trip time that is as long as the chain, among hundreds of correct ones. So a
//!    chain that is older than `max_echo_age` gets a newer timestamp, which costs one reduction.
//! 2. A loss that is classified as congestion makes the reduction of the current episode stand. The sender's recovery
//!    episode ends when everything is acknowledged that it had sent when the episode began, about one round trip after
//!    the hole showed; reductions for holes behind it are undone again.
//! 3. So does an episode of many round trips: a sender that concludes delay repairs a burst segment by segment, and
//!    each old timestamp is a sample of all the time since.
//! 4. ACKs get lost, too: the two after the closing one echo the same timestamp.
//! 5. While a long hole is open, such as an outage leaves, only the ACK that closes it echoes the old timestamp. After
//!    a pause in which the sender may have had a retransmission timeout, only an ACK that leaves nothing missing does,
//!    until what the sender had sent by then has arrived. A sender that undoes its reduction earlier also takes back
//!    that the remaining segments are lost: Linux's RACK has removed them from its list and does not examine them
//!    again, and only the timeout repeats them, after it has been doubled by the outage (`tcp_undo_cwnd_reduction`,
//!    `tcp_rack_detect_loss`; seen on Linux 6.18: seven seconds).
//! 6. An outage ends the chain, because a timestamp that is held across one would multiply the sender's timeout.

use super::ack_pipeline::{AckChange, AckObservation, AckRewriter};
use crate::accel::Mechanism;
use crate::accel::observation::flow_meter::FlowMeter;
use crate::accel::observation::path_test::PathVerdict;
use crate::accel::options::options;
use crate::accel::status::MechanismReport;
use crate::units::{Duration, Instant};
use crate::wire::packet::{Seq, TcpTimestamp};

/// Eifel undo of one flow; see the [module documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EifelUndo {
    options: &'static EifelUndoOptions,
    chain: Option<HoleChain>,
    /// The timestamp of the last chain, and for how many more ACKs it is echoed.
    closed: Option<(TcpTimestamp, u8)>,
    undone_reductions: u64,
    random_losses: u64,
}

/// Holes that overlap in time.
#[derive(Clone, Copy, Debug)]
struct HoleChain {
    /// The timestamp from before the first hole.
    echo: TcpTimestamp,
    began: Instant,
    /// When the previous ACK left.
    last_ack: Instant,
    /// Nothing came for so long that the sender may have had a retransmission timeout.
    may_have_timed_out: bool,
    episode: RecoveryEpisode,
    /// Whether the reduction of this episode is left in place.
    is_reduction_kept: bool,
}

/// One loss recovery of the sender.
#[derive(Clone, Copy, Debug)]
struct RecoveryEpisode {
    began: Instant,
    /// When it began, or when the last pause ended: what the sender had sent by then is known one round trip later.
    sent: Instant,
    /// The end of what it had sent.
    until: Option<Seq>,
}

/// What an ACK of the receiver reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoleReport {
    /// Holes that show for the first time.
    pub(super) new_holes: u32,
    /// Everything before this number has arrived.
    pub(super) ack: Seq,
    /// One past the highest number that has arrived.
    pub(super) high: Seq,
    /// Whether a hole is open.
    pub(super) is_open: bool,
    /// Whether many segments in a row are missing.
    pub(super) is_long: bool,
    /// The timestamp that the ACK echoes by itself.
    pub(super) echo: TcpTimestamp,
    /// Whether a loss that shows now is random and may be undone.
    pub(super) is_random: bool,
    /// The flow's round-trip time.
    pub(super) rtt: Duration,
}

/// What the status of the Eifel undo depends on, beside its own state.
#[derive(Clone, Copy, Debug)]
pub(super) struct UndoContext {
    /// None: no ACK was observed yet.
    pub(super) has_timestamps: Option<bool>,
    /// The sender does not slow down after losses.
    pub(super) is_unresponsive: bool,
    pub(super) path: PathVerdict,
    pub(super) has_holes: bool,
}

impl EifelUndo {
    /// With these options, and nothing observed yet.
    pub(super) fn new(options: &'static EifelUndoOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Whether a reduction is worth undoing. It always is while a flow starts (its SYN was observed), because it has no
    /// rate yet and a reduction costs it most.
    pub(super) fn is_worth_undoing(&self, now: Instant, meter: &FlowMeter) -> bool {
        let starts = meter.is_syn_observed && now.since(meter.opened) < meter.rtt.min() * self.options.start_rtts;
        starts || meter.segments_in_flight(now) >= self.options.min_segments
    }

    /// The timestamp that this ACK is to echo; none: its own.
    pub(super) fn on_ack(&mut self, now: Instant, report: &HoleReport) -> Option<TcpTimestamp> {
        if report.new_holes > 0 {
            self.on_new_holes(now, report);
        }
        let Some(mut chain) = self.chain.take() else { return self.repeat_echo() };
        let echo = chain.on_ack(self.options, now, report);
        if report.is_open {
            self.chain = Some(chain);
        } else if let Some(echo) = echo {
            self.undone_reductions += 1;
            self.closed = Some((echo, ECHO_REPEATS));
        }
        echo
    }

    /// Whether reductions of this flow are undone, and why not.
    pub(super) fn report(&self, flow: UndoContext, report: &mut MechanismReport<'_>) {
        let is_trusted = flow.path == PathVerdict::Trusted;
        let is_active = flow.has_timestamps == Some(true) && !flow.is_unresponsive && is_trusted;
        report.active(Mechanism::EifelUndo, is_active);
        let reason = match flow.path {
            _ if flow.is_unresponsive => "its sender does not slow down after losses",
            _ if flow.has_timestamps == Some(false) => "it has no timestamps",
            PathVerdict::Refused => "losses on its path become more with its rate",
            PathVerdict::Marked => "its path marks packets because of congestion",
            PathVerdict::Unknown if flow.has_holes => {
                "whether losses on its path depend on its rate is not known yet"
            }
            PathVerdict::Unknown | PathVerdict::Trusted => return,
        };
        report.inactive(&[Mechanism::EifelUndo], reason);
    }

    /// The link is down, or the flow is left alone.
    pub(super) fn clear(&mut self) {
        (self.chain, self.closed) = (None, None);
    }

    /// Whether ACKs must arrive as they are now, because they close holes whose repair is to be taken for delay.
    pub(super) const fn needs_exact_acks(&self) -> bool {
        self.chain.is_some() || self.closed.is_some()
    }

    /// Chains that ended with an undone reduction.
    pub(super) const fn undone_reductions(&self) -> u64 {
        self.undone_reductions
    }

    /// Holes that were classified as random.
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
            is_reduction_kept: false,
        };
        let chain = self.chain.get_or_insert(fresh);
        if report.is_random {
            self.random_losses += u64::from(report.new_holes);
        } else {
            (chain.episode, chain.is_reduction_kept) = (episode, true);
        }
    }

    fn repeat_echo(&mut self) -> Option<TcpTimestamp> {
        let (echo, left) = self.closed?;
        self.closed = left.checked_sub(1).filter(|left| *left > 0).map(|left| (echo, left));
        Some(echo)
    }
}

impl AckRewriter for EifelUndo {
    fn rewrite(&mut self, seen: &AckObservation<'_>, change: AckChange) -> AckChange {
        let timestamps = seen.ack.timestamps.filter(|_| seen.mechanisms.has(Mechanism::EifelUndo));
        let echo = timestamps.and_then(|timestamps| {
            let report = HoleReport {
                new_holes: seen.new_holes,
                ack: seen.ack.ack,
                high: seen.highest,
                is_open: seen.is_hole_open,
                is_long: seen.has_long_hole,
                echo: timestamps.ts_ecr,
                is_random: seen.is_random,
                rtt: seen.rtt,
            };
            self.on_ack(seen.now, &report)
        });
        AckChange { echo, is_exact: self.needs_exact_acks(), ..change }
    }
}

impl HoleChain {
    /// Whether the sender may have more losses to repair than it has retransmitted.
    fn has_unrepaired_losses(&self, report: &HoleReport) -> bool {
        report.is_long || (self.may_have_timed_out && report.is_open)
    }

    fn on_ack(&mut self, options: &EifelUndoOptions, now: Instant, report: &HoleReport) -> Option<TcpTimestamp> {
        let was_barred = self.is_reduction_kept;
        if now.since(core::mem::replace(&mut self.last_ack, now)) >= report.rtt.max(MIN_TIMEOUT_GAP) {
            (self.episode, self.may_have_timed_out) =
                (RecoveryEpisode { began: self.episode.began, ..RecoveryEpisode::at(now) }, true);
        }
        if self.episode.has_ended(now, report) {
            (self.episode, self.may_have_timed_out, self.is_reduction_kept) =
                (RecoveryEpisode::at(now), false, false);
        } else if now.since(self.episode.began) >= report.rtt * options.max_episode_rtts {
            self.is_reduction_kept = true;
        }
        // The ACK that ends the episode still belongs to it.
        if was_barred || self.is_reduction_kept || self.has_unrepaired_losses(report) {
            return None;
        }
        if now.since(self.began) >= options.max_echo_age {
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

/// ACKs after the closing one that echo the same timestamp: at 1 % of loss all three are lost once in a million times.
const ECHO_REPEATS: u8 = 2;
/// After such a pause of the ACKs, or a round trip, the sender may have had a retransmission timeout: half of Linux's
/// least one; the ACKs of a flow with a window are far closer together.
const MIN_TIMEOUT_GAP: Duration = Duration::from_millis(100);

options! {
    /// Options of the Eifel undo.
    pub struct EifelUndoOptions {
        /// Segments in flight from which on a reduction is worth undoing. Fewer cause no three duplicate ACKs; at 3 % of
        /// loss a window has five or six when its path is trusted first.
        pub min_segments: u64 = 4,
        /// Round trips of the start of a flow, in which it always is: one to connect, one for the request, and those in
        /// which a window grows from ten segments to hundreds. An estimate: no scenario depends on it.
        pub start_rtts: u32 = 8,
        /// A chain that is older gets a newer timestamp. With a hundred correct samples per round trip the smoothed one
        /// has recovered before the next chain (measured on Linux 6.18: from 203 to 300 ms, at 200 ms).
        pub max_echo_age: Duration = Duration::from_secs(10),
        /// Round trips after which a recovery episode is not undone: one until it is known what the sender had sent, one
        /// until the repair arrives, and four for repairs that were lost themselves.
        pub max_episode_rtts: u32 = 6,
    }
}

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

    /// The acknowledgement number after so many round trips.
    fn number(rtts: u64) -> u32 {
        u32::try_from(rtts * 300).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn the_closing_ack_and_two_more_echo_the_timestamp_from_before_the_hole() {
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
    fn a_congestion_reduction_stands_and_holes_behind_it_are_helped() {
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
    fn a_congestion_episode_that_is_repaired_completely_is_not_undone() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &HoleReport { is_random: false, ..report(1, 100, 500, 10) });
        assert_eq!(undo.on_ack(at(51), &report(0, 500, 500, 60)), None);
        assert_eq!(undo.on_ack(at(52), &report(0, 600, 600, 61)), None);
        assert_eq!(undo.undone_reductions(), 0);
    }

    #[test]
    fn an_episode_of_many_round_trips_is_not_undone() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 1000, 10));
        assert_eq!(undo.on_ack(at(90), &report(0, 300, 1000, 81)), Some(TcpTimestamp::new(10)));
        assert_eq!(undo.on_ack(at(180), &report(0, 350, 1000, 81)), Some(TcpTimestamp::new(10)));
        assert_eq!(
            undo.on_ack(at(300), &report(0, 400, 1000, 251)),
            None,
            "six round trips, one of them without an ACK"
        );
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
    fn holes_behind_a_timeout_are_helped_again() {
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
    fn the_first_ack_after_a_pause_is_treated_as_after_a_timeout() {
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
    fn an_outage_ends_the_chain() {
        let mut undo = EifelUndo::default();
        undo.on_ack(at(0), &report(1, 100, 300, 10));
        undo.clear();
        assert_eq!(undo.on_ack(at(3000), &report(0, 300, 300, 3000)), None);
    }
}
