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

use crate::tunnel::Grant;

/// chosen: at 10 Mbit/s eight packets; for 2,000 edges 200,000 steps a second.
const ROUND: Duration = Duration::from_millis(10);
/// chosen: a key frame of a video has what the stream brings in about this time.
const BURST: Duration = Duration::from_millis(100);
/// The credit of the line: two rounds, as one may be late.
const SLACK: Duration = Duration::from_millis(20);
/// The least that is granted, if so much is wanted: a record of TLS, or processors would be busy with crumbs.
const LEAST: DataSize = DataSize::from_bytes(16_384);
/// What may be reserved of the capacity. The rest is for packets' heads and for bursts (BASS §IV-B: "have to reserve some
/// bandwidth in case of emergency").
const RESERVABLE: Ratio = Ratio::from_percent(95);

/// The capacity and those who share it.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    capacity: Option<Bitrate>,
    edges: BTreeMap<K, Account>,
    reserved: Bitrate,
    line: DataSize,
    at: Instant,
    /// As of the last round: the equal part of everybody who sends.
    fair: Bitrate,
    /// What is kept at the line for those who wait for what is reserved for them.
    kept: DataSize,
}

/// What one edge has.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    reserved: Bitrate,
    credit: DataSize,
    /// What of the credit is due by the reservation.
    owed: DataSize,
    /// What of the last grant was owed.
    lent: DataSize,
    /// He was told to ask again, and will have by then.
    waits: Option<Instant>,
    /// When it asked last.
    asked: Option<Instant>,
}

impl Account {
    /// Whether it wanted to send anything of late. Who only waits takes no part from those who do.
    fn sends(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.since(asked) < LONGEST_WAIT * 2)
    }
}

/// The capacity is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} are not free: {reserved} of {capacity} are reserved")]
pub(crate) struct Full {
    /// What was wanted.
    pub(crate) wanted: Bitrate,
    /// What others have.
    pub(crate) reserved: Bitrate,
    /// What there is.
    pub(crate) capacity: Bitrate,
}

impl<K: Ord + Clone> Shares<K> {
    /// Of this capacity; none: it is not known, and nobody waits.
    pub(crate) fn new(capacity: Option<Bitrate>) -> Self {
        Self {
            capacity,
            edges: BTreeMap::new(),
            reserved: Bitrate::ZERO,
            line: DataSize::ZERO,
            at: Instant::default(),
            fair: capacity.unwrap_or_default(),
            kept: DataSize::ZERO,
        }
    }

    /// It is so large from now on.
    pub(crate) fn resize(&mut self, capacity: Option<Bitrate>) {
        self.capacity = capacity;
        self.line = self.line.min(line(capacity.unwrap_or_default()));
    }

    /// Reserves for an edge, in place of what it had.
    ///
    /// # Errors
    /// There is not so much left; then it keeps what it had.
    pub(crate) fn admit(&mut self, edge: &K, wanted: Bitrate) -> Result<(), Full> {
        let others = self.reserved - self.of(edge);
        if let Some(capacity) = self.capacity.filter(|capacity| others + wanted > capacity.share(RESERVABLE)) {
            return Err(Full { wanted, reserved: others, capacity });
        }
        self.reserved = others + wanted;
        self.edges.entry(edge.clone()).or_default().reserved = wanted;
        Ok(())
    }

    /// What is reserved for an edge.
    pub(crate) fn of(&self, edge: &K) -> Bitrate {
        self.edges.get(edge).map_or(Bitrate::ZERO, |account| account.reserved)
    }

    /// Whoever is none of these has gone.
    pub(crate) fn keep(&mut self, stays: impl Fn(&K) -> bool) {
        let gone: Vec<K> = self.edges.keys().filter(|name| !stays(name)).cloned().collect();
        gone.iter().for_each(|name| self.leave(name));
    }

    /// An edge has gone.
    pub(crate) fn leave(&mut self, edge: &K) {
        if let Some(account) = self.edges.remove(edge) {
            self.reserved = self.reserved - account.reserved;
        }
    }

    /// What an edge may send of `wanted`. An edge that was not admitted has what others leave.
    pub(crate) fn ask(&mut self, now: Instant, edge: &K, wanted: DataSize) -> Grant {
        let Some(capacity) = self.capacity else { return Grant::Now(wanted) };
        if !self.edges.contains_key(edge) {
            self.edges.insert(edge.clone(), Account::default());
        }
        if let Some(account) = self.edges.get_mut(edge) {
            account.asked = Some(now);
        }
        self.pass_time(now, capacity);
        let Some(account) = self.edges.get_mut(edge) else { return Grant::Later(ROUND) };
        let own = if account.waits.is_some() { account.owed } else { DataSize::ZERO };
        let others = self.kept - own;
        let granted = wanted.min(account.credit.min(self.line - others).max(account.owed.min(self.line)));
        if granted >= wanted.min(LEAST) {
            account.credit -= granted;
            account.lent = granted.min(account.owed);
            account.owed -= granted;
            account.waits = None;
            self.kept = others;
            self.line -= granted;
            return Grant::Now(granted);
        }
        let missing = wanted.min(LEAST) - account.credit;
        let wait = (missing / account.reserved.max(self.fair)).clamp(ROUND, LONGEST_WAIT);
        account.waits = Some(now + wait + SLACK);
        self.kept = others + account.owed;
        Grant::Later(wait)
    }

    /// What of a grant was sent: the rest is there again, and what of it was owed is owed again. Who reads from a socket asks for
    /// more than there is each time.
    pub(crate) fn passed(&mut self, edge: &K, granted: DataSize, passed: DataSize) {
        if let Some((account, capacity)) = self.edges.get_mut(edge).zip(self.capacity) {
            let unsent = granted - passed;
            account.credit += unsent;
            account.owed = (account.owed + (std::mem::take(&mut account.lent) - passed)).min(account.credit);
            self.line = (self.line + unsent).min(line(capacity));
        }
    }

    /// What is reserved in all.
    pub(crate) fn reserved(&self) -> Bitrate {
        self.reserved
    }

    /// The equal part of everybody who sends.
    fn fair(&self, capacity: Bitrate) -> Bitrate {
        let senders = self.edges.values().filter(|account| account.sends(self.at)).count() as u64;
        capacity / senders.max(1)
    }

    /// Hands out what has come since the last round.
    fn pass_time(&mut self, now: Instant, capacity: Bitrate) {
        let passed = now.since(self.at);
        if passed < ROUND {
            return;
        }
        self.at = now;
        self.line = (self.line + capacity * passed.min(SLACK)).min(line(capacity));
        // After a pause longer than anybody's credit lasts, all are full.
        let passed = passed.min(BURST * 4);
        let (fair, mut left) = (self.fair(capacity), capacity * passed);
        self.fair = fair;
        let room = |account: &Account| {
            let part = if account.sends(now) { fair } else { Bitrate::ZERO };
            most(account.reserved.max(part)) - account.credit
        };
        for account in self.edges.values_mut() {
            let due = account.reserved * passed;
            let own = due.min(room(account)).min(left);
            account.credit += own;
            // Who has more than that from when there were fewer does not come last for it.
            account.owed = (account.owed + due).min(account.credit).min(most(account.reserved));
            left -= own;
        }
        // Who was told to come again and has not is not waited for.
        self.kept = DataSize::ZERO;
        for account in self.edges.values_mut() {
            account.waits = account.waits.filter(|until| now < *until);
            self.kept += if account.waits.is_some() { account.owed } else { DataSize::ZERO };
        }
        // Whoever is filled leaves his part to the others: each pass ends with one edge full at least, or with nothing left.
        for _ in 0..PASSES {
            let open = self.edges.values().filter(|account| !room(account).is_zero()).count() as u64;
            let part = left / open.max(1);
            if open == 0 || part.is_zero() {
                break;
            }
            for account in self.edges.values_mut() {
                let own = part.min(room(account));
                account.credit += own;
                left -= own;
            }
        }
    }
}

/// The most credit that an edge of this rate may keep.
fn most(rate: Bitrate) -> DataSize {
    (rate * BURST).max(LEAST)
}

fn line(capacity: Bitrate) -> DataSize {
    (capacity * SLACK).max(LEAST)
}

/// chosen: what is still left after so many is less than a packet for each.
const PASSES: usize = 6;
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
    fn sent(shares: &mut Shares<Name>, wants: &[u64]) -> Vec<f64> {
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
                match shares.ask(Instant::from_millis(ms), &name(n), DataSize::from_bytes(waiting[n].min(65_536))) {
                    Grant::Now(size) => {
                        waiting[n] -= size.bytes();
                        sent[n] += if ms >= SECOND { size.bytes() } else { 0 };
                    }
                    Grant::Later(wait) => next[n] = ms + u64::try_from(wait.as_millis()).unwrap(),
                }
            }
        }
        sent.iter().map(|bytes| *bytes as f64 * 8.0 / 1e7).collect()
    }

    fn near(got: &[f64], wanted: &[f64]) {
        for (got_one, wanted_one) in got.iter().zip(wanted) {
            assert!((got_one - wanted_one).abs() <= 0.06 * wanted_one, "{got:?}, not {wanted:?}");
        }
    }

    #[test]
    fn who_wants_less_than_his_part_leaves_it_to_the_others() {
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        near(&sent(&mut shares, &[10, 80, 200]), &[10.0, 45.0, 45.0]);
    }

    #[test]
    fn those_who_only_wait_take_nothing_from_one_who_sends() {
        for (capacity, idle) in [(100, 50), (100, 900)] {
            let mut shares = Shares::new(Some(Bitrate::from_mbps(capacity)));
            for n in 1..=idle {
                shares.admit(&name(n), Bitrate::from_bits_per_sec(10_000)).unwrap();
            }
            let got = sent(&mut shares, &[2 * capacity]);
            assert!(got[0] >= 0.9 * capacity as f64, "{got:?} of {capacity}");
        }
    }

    #[test]
    fn what_is_reserved_comes_first() {
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        shares.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        near(&sent(&mut shares, &[50, 100, 100]), &[50.0, 25.0, 25.0]);
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        shares.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        let got = sent(&mut shares, &[200, 200, 200]);
        assert!(got[0] >= 60.0 && got[1] >= 10.0 && got[2] >= 10.0, "{got:?}");
    }

    #[test]
    fn a_reservation_is_kept_against_any_number_of_others_who_ask_for_more_than_there_is() {
        for (reserved, others) in [(60, 40), (10, 150)] {
            let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
            shares.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
            let mut wants = vec![100; others];
            wants[0] = reserved;
            let got = sent(&mut shares, &wants);
            assert!(got[0] >= 0.98 * reserved as f64, "{} of {reserved} beside {others}", got[0]);
            let all: f64 = got.iter().sum();
            assert!((95.0..=100.5).contains(&all), "{all}");
        }
    }

    /// For how long at most something waits of one who sends as much as is reserved for him, and asks as a tunnel does: for a whole
    /// piece each millisecond, whatever has come by then. The others want more than there is.
    fn longest_wait(reserved: u64, others: usize) -> u64 {
        let (mut shares, piece) = (Shares::new(Some(Bitrate::from_mbps(100))), DataSize::from_bytes(65_536));
        shares.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
        let (mut waiting, mut longest, mut next) = (0, 0, vec![SECOND; others]);
        // All have come, and have what they may keep: together much more than the line lets through at once.
        for (n, at) in (0..others).flat_map(|n| [(n, 10), (n, SECOND - 1)]) {
            if let Grant::Now(size) = shares.ask(Instant::from_millis(at), &name(n), piece) {
                shares.passed(&name(n), size, DataSize::ZERO);
            }
        }
        for ms in SECOND..11 * SECOND {
            let now = Instant::from_millis(ms);
            waiting += reserved * 125;
            longest = longest.max(waiting / (reserved * 125));
            // The others come first.
            for (n, next) in next.iter_mut().enumerate().rev().filter(|(_, next)| **next <= ms) {
                *next = match shares.ask(now, &name(n), piece) {
                    Grant::Now(size) if n == 0 => {
                        let took = size.min(DataSize::from_bytes(waiting));
                        shares.passed(&name(0), size, took);
                        waiting -= took.bytes();
                        ms + 1
                    }
                    Grant::Now(_) => ms + 1 + n as u64 % 7,
                    Grant::Later(wait) => ms + u64::try_from(wait.as_millis()).unwrap(),
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
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        let (size, ask) = (DataSize::from_bytes(65_536), |n| name(n));
        shares.admit(&ask(0), Bitrate::from_mbps(95)).unwrap();
        // He empties the line, is told to wait, and never comes again.
        while let Grant::Now(_) = shares.ask(Instant::from_millis(SECOND), &ask(0), size) {}
        let got =
            (SECOND..3 * SECOND).fold(0, |sum, ms| match shares.ask(Instant::from_millis(ms), &ask(1), size) {
                Grant::Now(size) => sum + size.bytes(),
                Grant::Later(_) => sum,
            });
        assert!(got * 8 / 2 > 90_000_000, "{} bit/s", got * 4);
    }

    #[test]
    fn no_more_than_the_capacity_leaves() {
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        let all: f64 = sent(&mut shares, &[90; 40]).iter().sum();
        assert!((95.0..=100.5).contains(&all), "{all}");
        // After a pause, when everybody is full, the line is not flooded either.
        let at = Instant::from_millis(100 * SECOND);
        let granted = |n| match shares.ask(at, &name(n), DataSize::from_bytes(65_536)) {
            Grant::Now(size) => size.bytes(),
            Grant::Later(_) => 0,
        };
        let burst: u64 = (0..40).map(granted).sum();
        assert!(burst <= (Bitrate::from_mbps(100) * SLACK).bytes(), "{burst}");
    }

    #[test]
    fn no_more_is_reserved_than_there_is() {
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        shares.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        let full = shares.admit(&name(1), Bitrate::from_mbps(40)).unwrap_err();
        assert_eq!(full.to_string(), "40.0Mbit/s are not free: 60.0Mbit/s of 100.0Mbit/s are reserved");
        shares.admit(&name(1), Bitrate::from_mbps(35)).unwrap();
        shares.admit(&name(0), Bitrate::from_mbps(20)).unwrap();
        assert_eq!(shares.reserved(), Bitrate::from_mbps(55));
        shares.leave(&name(1));
        shares.leave(&name(1));
        assert_eq!(shares.reserved(), Bitrate::from_mbps(20));
        assert!(Shares::<Name>::new(None).admit(&name(0), Bitrate::MAX).is_ok());
    }

    #[test]
    fn without_a_capacity_nobody_waits() {
        let size = DataSize::from_mib(100);
        assert_eq!(Shares::<Name>::new(None).ask(Instant::default(), &name(0), size), Grant::Now(size));
    }

    #[test]
    fn what_was_not_sent_is_there_again() {
        let mut shares = Shares::new(Some(Bitrate::from_mbps(100)));
        let (at, size) = (Instant::from_millis(SECOND), DataSize::from_bytes(60_000));
        assert_eq!(shares.ask(at, &name(0), size), Grant::Now(size));
        shares.passed(&name(0), size, DataSize::ZERO);
        assert_eq!(shares.ask(at, &name(0), size), Grant::Now(size));
    }
}
