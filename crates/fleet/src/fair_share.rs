//! Who may send how much now: a capacity in one direction, a relay's shared by edges, or an edge's by the flows that may wait.
//!
//! In: the capacity, what is reserved for whom, time, and what each edge asks to send. Out: how many bytes it may send now, or
//! when to ask again.
//!
//! 1. No more than the capacity leaves, but for [`SLACK`] of it: what is sent is taken from one line's credit.
//! 2. Each round ([`ROUND`]) an edge gets what is reserved for it first. The rest, and what those leave who keep all the credit
//!    that they may, goes to the others in equal parts: max-min fairness with a floor for each (Bertsekas and Gallager, "Data
//!    Networks", §6.5.2).
//! 3. Credit is kept for [`BURST`] of an edge's rate, so that a large frame of a video passes at once and nobody saves up
//!    for a flood.
//!    What is reserved for somebody who waits is his at the line as well: others, whose kept credit may be more than the line's, have
//!    what is left beside it.
//! 4. Reservations together are never more than the capacity ([`Shares::admit`]): who would be too many is not admitted.
//! 5. A round is a step for each edge, at most each [`ROUND`], and only while somebody asks. Who has to wait is told how long, by
//!    his own rate: a thousand waiting flows do not wake a thousand times a round.
//!
//! A queue for each edge (DRR) was not used: bytes wait in the kernel's receive buffers, where they slow their senders down.

use std::collections::BTreeMap;

use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio};

use crate::tunnel::PaceGrant;

/// chosen: at 10 Mbit/s eight packets; for 2,000 edges 200,000 steps a second.
const ROUND: Duration = Duration::from_millis(10);
/// chosen: a key frame of a video has what the stream brings in about this time.
const EDGE_BURST: Duration = Duration::from_millis(100);
/// The credit of the line: two rounds, as one may be late.
const LINK_BURST: Duration = Duration::from_millis(20);
/// The least that is granted, if so much is wanted: a record of TLS, or processors would be busy with crumbs.
const MIN_GRANT: DataSize = DataSize::from_bytes(16_384);
/// What may be reserved of the capacity. The rest is for packets' heads and for bursts (BASS §IV-B: "have to reserve some
/// bandwidth in case of emergency").
const RESERVABLE: Ratio = Ratio::from_percent(95);

/// The capacity and those who share it.
#[derive(Debug)]
pub(crate) struct FairScheduler<K> {
    capacity: Option<Bitrate>,
    edges: BTreeMap<K, EdgeAccount>,
    reserved: Bitrate,
    link_credit: DataSize,
    last_round_at: Instant,
    /// As of the last round: the equal part of everybody who sends.
    fair_rate: Bitrate,
    /// What is kept at the line for those who wait for what is reserved for them.
    reserved_pending: DataSize,
}

/// What one edge has.
#[derive(Clone, Copy, Debug, Default)]
struct EdgeAccount {
    reserved: Bitrate,
    credit: DataSize,
    /// What of the credit is due by the reservation.
    reserved_credit: DataSize,
    /// What of the last grant was owed.
    last_reserved_grant: DataSize,
    /// He was told to ask again, and will have by then.
    waits_until: Option<Instant>,
    /// When it asked last.
    last_request_at: Option<Instant>,
}

impl EdgeAccount {
    /// Whether it wanted to send anything of late. Who only waits takes no part from those who do.
    fn is_sending(&self, now: Instant) -> bool {
        self.last_request_at.is_some_and(|asked| now.since(asked) < LONGEST_WAIT * 2)
    }
}

/// The capacity is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{requested} are not free: {reserved} of {capacity} are reserved")]
pub(crate) struct CapacityExceeded {
    /// What was wanted.
    pub(crate) requested: Bitrate,
    /// What others have.
    pub(crate) reserved: Bitrate,
    /// What there is.
    pub(crate) capacity: Bitrate,
}

impl<K: Ord + Clone> FairScheduler<K> {
    /// Of this capacity; none: it is not known, and nobody waits.
    pub(crate) fn new(capacity: Option<Bitrate>) -> Self {
        Self {
            capacity,
            edges: BTreeMap::new(),
            reserved: Bitrate::ZERO,
            link_credit: DataSize::ZERO,
            last_round_at: Instant::default(),
            fair_rate: capacity.unwrap_or_default(),
            reserved_pending: DataSize::ZERO,
        }
    }

    /// It is so large from now on.
    pub(crate) fn resize(&mut self, capacity: Option<Bitrate>) {
        self.capacity = capacity;
        self.link_credit = self.link_credit.min(max_link_credit(capacity.unwrap_or_default()));
    }

    /// Reserves for an edge, in place of what it had.
    ///
    /// # Errors
    /// There is not so much left; then it keeps what it had.
    pub(crate) fn admit(&mut self, edge: &K, wanted: Bitrate) -> Result<(), CapacityExceeded> {
        let others = self.reserved - self.reserved_for(edge);
        if let Some(capacity) = self.capacity.filter(|capacity| others + wanted > capacity.share(RESERVABLE)) {
            return Err(CapacityExceeded { requested: wanted, reserved: others, capacity });
        }
        self.reserved = others + wanted;
        self.edges.entry(edge.clone()).or_default().reserved = wanted;
        Ok(())
    }

    /// What is reserved for an edge.
    pub(crate) fn reserved_for(&self, edge: &K) -> Bitrate {
        self.edges.get(edge).map_or(Bitrate::ZERO, |account| account.reserved)
    }

    /// Whoever is none of these has gone.
    pub(crate) fn retain(&mut self, is_present: impl Fn(&K) -> bool) {
        let removed: Vec<K> = self.edges.keys().filter(|name| !is_present(name)).cloned().collect();
        removed.iter().for_each(|name| self.remove(name));
    }

    /// An edge has gone.
    pub(crate) fn remove(&mut self, edge: &K) {
        if let Some(account) = self.edges.remove(edge) {
            self.reserved = self.reserved - account.reserved;
        }
    }

    /// What an edge may send of `wanted`. An edge that was not admitted has what others leave.
    pub(crate) fn request(&mut self, now: Instant, edge: &K, wanted: DataSize) -> PaceGrant {
        let Some(capacity) = self.capacity else { return PaceGrant::Granted(wanted) };
        if !self.edges.contains_key(edge) {
            self.edges.insert(edge.clone(), EdgeAccount::default());
        }
        if let Some(account) = self.edges.get_mut(edge) {
            account.last_request_at = Some(now);
        }
        self.advance(now, capacity);
        let Some(account) = self.edges.get_mut(edge) else { return PaceGrant::RetryAfter(ROUND) };
        let own_pending = if account.waits_until.is_some() { account.reserved_credit } else { DataSize::ZERO };
        let others_pending = self.reserved_pending - own_pending;
        let granted = wanted.min(
            account
                .credit
                .min(self.link_credit - others_pending)
                .max(account.reserved_credit.min(self.link_credit)),
        );
        if granted >= wanted.min(MIN_GRANT) {
            account.credit -= granted;
            account.last_reserved_grant = granted.min(account.reserved_credit);
            account.reserved_credit -= granted;
            account.waits_until = None;
            self.reserved_pending = others_pending;
            self.link_credit -= granted;
            return PaceGrant::Granted(granted);
        }
        let missing = wanted.min(MIN_GRANT) - account.credit;
        let wait = (missing / account.reserved.max(self.fair_rate)).clamp(ROUND, LONGEST_WAIT);
        account.waits_until = Some(now + wait + LINK_BURST);
        self.reserved_pending = others_pending + account.reserved_credit;
        PaceGrant::RetryAfter(wait)
    }

    /// What of a grant was sent: the rest is there again, and what of it was owed is owed again. Who reads from a socket asks for
    /// more than there is each time.
    pub(crate) fn settle(&mut self, edge: &K, granted: DataSize, sent: DataSize) {
        if let Some((account, capacity)) = self.edges.get_mut(edge).zip(self.capacity) {
            let unsent = granted - sent;
            account.credit += unsent;
            account.reserved_credit = (account.reserved_credit
                + (std::mem::take(&mut account.last_reserved_grant) - sent))
                .min(account.credit);
            self.link_credit = (self.link_credit + unsent).min(max_link_credit(capacity));
        }
    }

    /// What is reserved in all.
    pub(crate) fn reserved(&self) -> Bitrate {
        self.reserved
    }

    /// The equal part of everybody who sends.
    fn fair_rate(&self, capacity: Bitrate) -> Bitrate {
        let senders = self.edges.values().filter(|account| account.is_sending(self.last_round_at)).count() as u64;
        capacity / senders.max(1)
    }

    /// Hands out what has come since the last round.
    fn advance(&mut self, now: Instant, capacity: Bitrate) {
        let elapsed = now.since(self.last_round_at);
        if elapsed < ROUND {
            return;
        }
        self.last_round_at = now;
        self.link_credit = (self.link_credit + capacity * elapsed.min(LINK_BURST)).min(max_link_credit(capacity));
        // After a pause longer than anybody's credit lasts, all are full.
        let elapsed = elapsed.min(EDGE_BURST * 4);
        let (fair, mut left) = (self.fair_rate(capacity), capacity * elapsed);
        self.fair_rate = fair;
        let headroom = |account: &EdgeAccount| {
            let share = if account.is_sending(now) { fair } else { Bitrate::ZERO };
            max_credit(account.reserved.max(share)) - account.credit
        };
        for account in self.edges.values_mut() {
            let due = account.reserved * elapsed;
            let added = due.min(headroom(account)).min(left);
            account.credit += added;
            // Who has more than that from when there were fewer does not come last for it.
            account.reserved_credit =
                (account.reserved_credit + due).min(account.credit).min(max_credit(account.reserved));
            left -= added;
        }
        // Who was told to come again and has not is not waited for.
        self.reserved_pending = DataSize::ZERO;
        for account in self.edges.values_mut() {
            account.waits_until = account.waits_until.filter(|until| now < *until);
            self.reserved_pending +=
                if account.waits_until.is_some() { account.reserved_credit } else { DataSize::ZERO };
        }
        // Whoever is filled leaves his part to the others: each pass ends with one edge full at least, or with nothing left.
        for _ in 0..MAX_PASSES {
            let open = self.edges.values().filter(|account| !headroom(account).is_zero()).count() as u64;
            let share = left / open.max(1);
            if open == 0 || share.is_zero() {
                break;
            }
            for account in self.edges.values_mut() {
                let added = share.min(headroom(account));
                account.credit += added;
                left -= added;
            }
        }
    }
}

/// The most credit that an edge of this rate may keep.
fn max_credit(rate: Bitrate) -> DataSize {
    (rate * EDGE_BURST).max(MIN_GRANT)
}

fn max_link_credit(capacity: Bitrate) -> DataSize {
    (capacity * LINK_BURST).max(MIN_GRANT)
}

/// chosen: what is still left after so many is less than a packet for each.
const MAX_PASSES: usize = 6;
/// chosen: an edge whose part is a few bytes a second notices when others go.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Name;

    const SECOND: u64 = 1000;

    fn name(n: usize) -> Name {
        format!("e{n}").parse().unwrap()
    }

    /// Megabits in ten seconds for edges that want so many Mbit/s (each asks every `n` + 3 milliseconds), after one second.
    fn sent(scheduler: &mut FairScheduler<Name>, wants: &[u64]) -> Vec<f64> {
        let mut sent = vec![0; wants.len()];
        let mut waiting = vec![0_u64; wants.len()];
        let mut next = vec![0_u64; wants.len()];
        for ms in 0..11 * SECOND {
            for (n, want) in wants.iter().enumerate() {
                waiting[n] += want * 125;
                if ms < next[n] || waiting[n] == 0 {
                    continue;
                }
                next[n] = ms + n as u64 + 3;
                match scheduler.request(
                    Instant::from_millis(ms),
                    &name(n),
                    DataSize::from_bytes(waiting[n].min(65_536)),
                ) {
                    PaceGrant::Granted(size) => {
                        waiting[n] -= size.bytes();
                        sent[n] += if ms >= SECOND { size.bytes() } else { 0 };
                    }
                    PaceGrant::RetryAfter(wait) => next[n] = ms + u64::try_from(wait.as_millis()).unwrap(),
                }
            }
        }
        sent.iter().map(|bytes| *bytes as f64 * 8.0 / 1e7).collect()
    }

    fn assert_close(got: &[f64], wanted: &[f64]) {
        for (got_one, wanted_one) in got.iter().zip(wanted) {
            assert!((got_one - wanted_one).abs() <= 0.06 * wanted_one, "{got:?}, not {wanted:?}");
        }
    }

    #[test]
    fn who_wants_less_than_his_part_leaves_it_to_the_others() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        assert_close(&sent(&mut scheduler, &[10, 80, 200]), &[10.0, 45.0, 45.0]);
    }

    #[test]
    fn those_who_only_wait_take_nothing_from_one_who_sends() {
        for (capacity, idle) in [(100, 50), (100, 900)] {
            let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(capacity)));
            for n in 1..=idle {
                scheduler.admit(&name(n), Bitrate::from_bits_per_sec(10_000)).unwrap();
            }
            let got = sent(&mut scheduler, &[2 * capacity]);
            assert!(got[0] >= 0.9 * capacity as f64, "{got:?} of {capacity}");
        }
    }

    #[test]
    fn what_is_reserved_comes_first() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        scheduler.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        assert_close(&sent(&mut scheduler, &[50, 100, 100]), &[50.0, 25.0, 25.0]);
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        scheduler.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        let got = sent(&mut scheduler, &[200, 200, 200]);
        assert!(got[0] >= 60.0 && got[1] >= 10.0 && got[2] >= 10.0, "{got:?}");
    }

    #[test]
    fn a_reservation_is_kept_against_any_number_of_others_who_ask_for_more_than_there_is() {
        for (reserved, others) in [(60, 40), (10, 150)] {
            let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
            scheduler.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
            let mut wants = vec![100; others];
            wants[0] = reserved;
            let got = sent(&mut scheduler, &wants);
            assert!(got[0] >= 0.98 * reserved as f64, "{} of {reserved} beside {others}", got[0]);
            let all: f64 = got.iter().sum();
            assert!((95.0..=100.5).contains(&all), "{all}");
        }
    }

    /// For how long at most something waits of one who sends as much as is reserved for him, and asks as a tunnel does: for a whole
    /// piece each millisecond, whatever has come by then. The others want more than there is.
    fn longest_wait(reserved: u64, others: usize) -> u64 {
        let (mut scheduler, chunk) =
            (FairScheduler::new(Some(Bitrate::from_mbps(100))), DataSize::from_bytes(65_536));
        scheduler.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
        let (mut waiting, mut longest, mut next) = (0, 0, vec![SECOND; others]);
        // All have come, and have what they may keep: together much more than the line lets through at once.
        for (n, at) in (0..others).flat_map(|n| [(n, 10), (n, SECOND - 1)]) {
            if let PaceGrant::Granted(size) = scheduler.request(Instant::from_millis(at), &name(n), chunk) {
                scheduler.settle(&name(n), size, DataSize::ZERO);
            }
        }
        for ms in SECOND..11 * SECOND {
            let now = Instant::from_millis(ms);
            waiting += reserved * 125;
            longest = longest.max(waiting / (reserved * 125));
            // The others come first.
            for (n, next) in next.iter_mut().enumerate().rev().filter(|(_, next)| **next <= ms) {
                *next = match scheduler.request(now, &name(n), chunk) {
                    PaceGrant::Granted(size) if n == 0 => {
                        let sent = size.min(DataSize::from_bytes(waiting));
                        scheduler.settle(&name(0), size, sent);
                        waiting -= sent.bytes();
                        ms + 1
                    }
                    PaceGrant::Granted(_) => ms + 1 + n as u64 % 7,
                    PaceGrant::RetryAfter(wait) => ms + u64::try_from(wait.as_millis()).unwrap(),
                };
            }
        }
        longest
    }

    #[test]
    fn who_sends_what_is_reserved_for_him_waits_for_a_round_at_most() {
        for (reserved, others) in [(5, 40), (10, 150), (30, 40), (45, 40)] {
            let longest = longest_wait(reserved, others);
            assert!(longest <= 12, "{longest} ms of {reserved} Mbit/s beside {others}");
        }
    }

    #[test]
    fn what_is_reserved_for_one_who_has_gone_silent_holds_up_nobody() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let (size, ask) = (DataSize::from_bytes(65_536), |n| name(n));
        scheduler.admit(&ask(0), Bitrate::from_mbps(95)).unwrap();
        // He empties the line, is told to wait, and never comes again.
        while let PaceGrant::Granted(_) = scheduler.request(Instant::from_millis(SECOND), &ask(0), size) {}
        let got = (SECOND..3 * SECOND).fold(0, |sum, ms| {
            match scheduler.request(Instant::from_millis(ms), &ask(1), size) {
                PaceGrant::Granted(size) => sum + size.bytes(),
                PaceGrant::RetryAfter(_) => sum,
            }
        });
        assert!(got * 8 / 2 > 90_000_000, "{} bit/s", got * 4);
    }

    #[test]
    fn no_more_than_the_capacity_leaves() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let all: f64 = sent(&mut scheduler, &[90; 40]).iter().sum();
        assert!((95.0..=100.5).contains(&all), "{all}");
        // After a pause, when everybody is full, the line is not flooded either.
        let at = Instant::from_millis(100 * SECOND);
        let granted = |n| match scheduler.request(at, &name(n), DataSize::from_bytes(65_536)) {
            PaceGrant::Granted(size) => size.bytes(),
            PaceGrant::RetryAfter(_) => 0,
        };
        let burst: u64 = (0..40).map(granted).sum();
        assert!(burst <= (Bitrate::from_mbps(100) * LINK_BURST).bytes(), "{burst}");
    }

    #[test]
    fn no_more_is_reserved_than_there_is() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        scheduler.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        let full = scheduler.admit(&name(1), Bitrate::from_mbps(40)).unwrap_err();
        assert_eq!(full.to_string(), "40.0Mbit/s are not free: 60.0Mbit/s of 100.0Mbit/s are reserved");
        scheduler.admit(&name(1), Bitrate::from_mbps(35)).unwrap();
        scheduler.admit(&name(0), Bitrate::from_mbps(20)).unwrap();
        assert_eq!(scheduler.reserved(), Bitrate::from_mbps(55));
        scheduler.remove(&name(1));
        scheduler.remove(&name(1));
        assert_eq!(scheduler.reserved(), Bitrate::from_mbps(20));
        assert!(FairScheduler::<Name>::new(None).admit(&name(0), Bitrate::MAX).is_ok());
    }

    #[test]
    fn without_a_capacity_nobody_waits() {
        let size = DataSize::from_mib(100);
        assert_eq!(
            FairScheduler::<Name>::new(None).request(Instant::default(), &name(0), size),
            PaceGrant::Granted(size)
        );
    }

    #[test]
    fn what_was_not_sent_is_there_again() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let (at, size) = (Instant::from_millis(SECOND), DataSize::from_bytes(60_000));
        assert_eq!(scheduler.request(at, &name(0), size), PaceGrant::Granted(size));
        scheduler.settle(&name(0), size, DataSize::ZERO);
        assert_eq!(scheduler.request(at, &name(0), size), PaceGrant::Granted(size));
    }
}
