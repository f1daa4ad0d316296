//! Fair sharing of a capacity in one direction: a relay's among edges, or an edge's among flows of low priority.
//!
//! From the capacity, the reservations, the time and the requests it computes how many bytes a requester may send now,
//! or when to request again. Requesters are called edges here.
//!
//! 1. The total never exceeds the capacity, except for bursts of `LINK_BURST`: every grant is taken from the credit
//!    of the shared link.
//! 2. Each round (`ROUND`) first gives every edge what is reserved for it. The rest, and what edges with full credit
//!    leave, goes to the others in equal parts: max-min fairness with a guaranteed minimum for each (Bertsekas and
//!    Gallager, "Data Networks", §6.5.2).
//! 3. An edge keeps credit for at most `EDGE_BURST` at its rate, so that a large video frame passes at once and
//!    no edge can save up for a flood. The link's credit also keeps what is reserved for an edge that waits. Other
//!    edges, whose total credit may exceed that of the link, share what is left beside it.
//! 4. The reservations never exceed the share `RESERVABLE` of the capacity ([`Input::Reserve`]); further ones are
//!    rejected.
//! 5. A round costs a few steps per edge, runs at most every `ROUND`, and only when there is a request. The waiting time
//!    depends on the edge's own rate, so a thousand waiting flows do not wake up in every round.
//!
//! It is a [`Machine`] without a deadline: time matters only when there is a request, and each request has one output.
//! A queue per edge (DRR) was rejected: bytes wait in the kernel's receive buffers, where they slow down their senders.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::units::{Bitrate, DataSize, Duration, Instant, Ratio};

/// Permission to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaceGrant {
    /// This many bytes at once. They count as sent until a settlement reports the actual number.
    Granted(DataSize),
    /// Nothing now; request again after this time.
    RetryAfter(Duration),
}

/// A change or a request; `K` names an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "K: Ord + Deserialize<'de>"))]
pub enum Input<K> {
    /// Reserve a rate for an edge, replacing its previous reservation. The output is [`Output::Reserved`].
    Reserve {
        /// The edge.
        edge: K,
        /// Its rate.
        rate: Bitrate,
    },
    /// An edge wants to send this much. The output is [`Output::Grant`].
    Request {
        /// The edge.
        edge: K,
        /// Bytes that it could send now.
        wanted: DataSize,
    },
    /// How much of its last grant an edge has sent; the rest is credited again.
    Settle {
        /// The edge.
        edge: K,
        /// Bytes that were granted.
        granted: DataSize,
        /// Bytes that were sent.
        sent: DataSize,
    },
    /// All other edges and their reservations are gone.
    RetainOnly(BTreeSet<K>),
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// The reply to [`Input::Request`].
    Grant(PaceGrant),
    /// The reply to [`Input::Reserve`].
    Reserved(Result<(), CapacityExceeded>),
}

/// Interval of the distribution. Our choice: eight packets at 10 Mbit/s; 200,000 visits of edges per second and
/// pass for 2,000 edges.
const ROUND: Duration = Duration::from_millis(10);
/// Time for which an edge may accumulate credit. Our choice: about the time of a video's key frame at the stream's
/// rate.
const EDGE_BURST: Duration = Duration::from_millis(100);
/// Time for which the link may accumulate credit: two rounds, as one may be late.
const LINK_BURST: Duration = Duration::from_millis(20);
/// Smallest grant, if that much is requested: a TLS record. Smaller ones would waste processor time.
const MIN_GRANT: DataSize = DataSize::from_bytes(16_384);
/// Share of the capacity that may be reserved. The rest is for packet headers and bursts (BASS §IV-B: "have to reserve
/// some bandwidth in case of emergency").
const RESERVABLE: Ratio = Ratio::from_percent(95);

/// The capacity and the edges that share it.
#[derive(Debug)]
pub struct FairScheduler<K> {
    now: Instant,
    capacity: Option<Bitrate>,
    edges: BTreeMap<K, EdgeAccount>,
    reserved: Bitrate,
    link_credit: DataSize,
    last_round_at: Instant,
    /// Equal share of each sending edge, as of the last round.
    fair_rate: Bitrate,
    /// Part of the link's credit that is kept for waiting edges with reservations.
    reserved_pending: DataSize,
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EdgeAccount {
    reserved: Bitrate,
    credit: DataSize,
    /// Part of the credit that comes from the reservation.
    reserved_credit: DataSize,
    /// Part of the last grant that came from the reservation.
    last_reserved_grant: DataSize,
    /// While the edge waits: until when it is expected to request again.
    expected_until: Option<Instant>,
    /// Time of the last request.
    last_request_at: Option<Instant>,
}

impl EdgeAccount {
    /// Whether the edge has requested anything recently. Idle edges do not reduce the shares of sending ones.
    fn is_sending(&self, now: Instant) -> bool {
        self.last_request_at.is_some_and(|requested_at| now.since(requested_at) < MAX_WAIT * 2)
    }
}

/// Error: the remaining capacity is too small for a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{requested} are not free: {reserved} of {capacity} are reserved")]
pub struct CapacityExceeded {
    /// Requested reservation.
    pub requested: Bitrate,
    /// Total of the other reservations.
    pub reserved: Bitrate,
    /// Total capacity.
    pub capacity: Bitrate,
}

impl<K: Ord + Clone> FairScheduler<K> {
    /// Creates a scheduler. Without a known capacity (`None`) every request is granted at once.
    pub fn new(capacity: Option<Bitrate>) -> Self {
        Self {
            now: Instant::ZERO,
            capacity,
            edges: BTreeMap::new(),
            reserved: Bitrate::ZERO,
            link_credit: DataSize::ZERO,
            last_round_at: Instant::default(),
            fair_rate: capacity.unwrap_or_default(),
            reserved_pending: DataSize::ZERO,
            output: None,
        }
    }

    /// Changes the capacity.
    pub(super) fn resize(&mut self, capacity: Option<Bitrate>) {
        self.capacity = capacity;
        self.link_credit = self.link_credit.min(max_link_credit(capacity.unwrap_or_default()));
    }

    /// Reserves a rate for an edge, replacing its previous reservation.
    ///
    /// # Errors
    /// If the remaining capacity is too small; the previous reservation then stays.
    fn admit(&mut self, edge: &K, wanted: Bitrate) -> Result<(), CapacityExceeded> {
        let others = self.reserved - self.reserved_for(edge);
        if let Some(capacity) = self.capacity.filter(|capacity| others + wanted > capacity.share(RESERVABLE)) {
            return Err(CapacityExceeded { requested: wanted, reserved: others, capacity });
        }
        self.reserved = others + wanted;
        self.edges.entry(edge.clone()).or_default().reserved = wanted;
        Ok(())
    }

    /// The rate reserved for an edge.
    pub fn reserved_for(&self, edge: &K) -> Bitrate {
        self.edges.get(edge).map_or(Bitrate::ZERO, |account| account.reserved)
    }

    /// Removes all edges but these.
    fn retain_only(&mut self, present: &BTreeSet<K>) {
        let removed: Vec<K> = self.edges.keys().filter(|name| !present.contains(name)).cloned().collect();
        removed.iter().for_each(|name| self.remove(name));
    }

    /// Removes an edge and its reservation.
    pub(super) fn remove(&mut self, edge: &K) {
        if let Some(account) = self.edges.remove(edge) {
            self.reserved -= account.reserved;
        }
    }

    /// Requests to send `wanted` bytes. An edge without a reservation gets a share of what the others leave.
    pub(super) fn request(&mut self, now: Instant, edge: &K, wanted: DataSize) -> PaceGrant {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(capacity) = self.capacity else { return PaceGrant::Granted(wanted) };
        if !self.edges.contains_key(edge) {
            self.edges.insert(edge.clone(), EdgeAccount::default());
        }
        if let Some(account) = self.edges.get_mut(edge) {
            account.last_request_at = Some(now);
        }
        self.advance(now, capacity);
        let Some(account) = self.edges.get_mut(edge) else { return PaceGrant::RetryAfter(ROUND) };
        // Reserved credit of other waiting edges must stay at the link. An edge's own reserved credit may be used in
        // any case.
        let own_pending = if account.expected_until.is_some() { account.reserved_credit } else { DataSize::ZERO };
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
            account.expected_until = None;
            self.reserved_pending = others_pending;
            self.link_credit -= granted;
            return PaceGrant::Granted(granted);
        }
        // Wait until the missing credit has accumulated at the edge's rate, and keep its reserved credit at the link
        // meanwhile.
        let missing = wanted.min(MIN_GRANT) - account.credit;
        let wait = (missing / account.reserved.max(self.fair_rate)).clamp(ROUND, MAX_WAIT);
        account.expected_until = Some(now + wait + LINK_BURST);
        self.reserved_pending = others_pending + account.reserved_credit;
        PaceGrant::RetryAfter(wait)
    }

    /// Reports how much of a grant was sent. The rest is credited again, including its reserved part. Needed because a
    /// reader of a socket always requests more than has arrived.
    pub(super) fn settle(&mut self, edge: &K, granted: DataSize, sent: DataSize) {
        if let Some((account, capacity)) = self.edges.get_mut(edge).zip(self.capacity) {
            let unsent = granted - sent;
            account.credit += unsent;
            account.reserved_credit = (account.reserved_credit
                + (core::mem::take(&mut account.last_reserved_grant) - sent))
                .min(account.credit);
            self.link_credit = (self.link_credit + unsent).min(max_link_credit(capacity));
        }
    }

    /// Total of all reservations.
    pub fn reserved(&self) -> Bitrate {
        self.reserved
    }

    /// Equal share of each sending edge.
    fn compute_fair_rate(&self, capacity: Bitrate) -> Bitrate {
        let senders = self.edges.values().filter(|account| account.is_sending(self.last_round_at)).count() as u64;
        capacity / senders.max(1)
    }

    /// Distributes the credit that has accumulated since the last round.
    fn advance(&mut self, now: Instant, capacity: Bitrate) {
        let elapsed = now.since(self.last_round_at);
        if elapsed < ROUND {
            return;
        }
        self.last_round_at = now;
        self.link_credit = (self.link_credit + capacity * elapsed.min(LINK_BURST)).min(max_link_credit(capacity));
        // After a pause of this length all accounts are full.
        let elapsed = elapsed.min(EDGE_BURST * 4);
        let (fair, mut left) = (self.compute_fair_rate(capacity), capacity * elapsed);
        self.fair_rate = fair;
        let headroom = |account: &EdgeAccount| {
            let share = if account.is_sending(now) { fair } else { Bitrate::ZERO };
            max_credit(account.reserved.max(share)) - account.credit
        };
        for account in self.edges.values_mut() {
            let due = account.reserved * elapsed;
            let added = due.min(headroom(account)).min(left);
            account.credit += added;
            // Credit from a time with fewer edges must not count against the reservation.
            account.reserved_credit =
                (account.reserved_credit + due).min(account.credit).min(max_credit(account.reserved));
            left -= added;
        }
        // The link stops waiting for edges that have not returned in time.
        self.reserved_pending = DataSize::ZERO;
        for account in self.edges.values_mut() {
            account.expected_until = account.expected_until.filter(|until| now < *until);
            self.reserved_pending +=
                if account.expected_until.is_some() { account.reserved_credit } else { DataSize::ZERO };
        }
        // Edges with full credit leave their part to the others: each pass fills at least one edge, or distributes
        // everything.
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

impl<K: Ord + Clone> Machine for FairScheduler<K> {
    type Input = Input<K>;
    type Output = Output;
    type Reason = ();

    fn handle(&mut self, now: Instant, input: Input<K>) {
        self.now = self.now.max(now);
        match input {
            Input::Reserve { edge, rate } => self.output = Some(Output::Reserved(self.admit(&edge, rate))),
            Input::Request { edge, wanted } => self.output = Some(Output::Grant(self.request(now, &edge, wanted))),
            Input::Settle { edge, granted, sent } => self.settle(&edge, granted, sent),
            Input::RetainOnly(edges) => self.retain_only(&edges),
        }
    }

    fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.output.take()
    }

    fn deadline(&self) -> Option<(Instant, ())> {
        None
    }
}

/// Most credit that an edge with this rate may keep.
fn max_credit(rate: Bitrate) -> DataSize {
    (rate * EDGE_BURST).max(MIN_GRANT)
}

fn max_link_credit(capacity: Bitrate) -> DataSize {
    (capacity * LINK_BURST).max(MIN_GRANT)
}

/// Most passes of one round's distribution of the unreserved rest. Our choice: what is left afterwards is less than a packet for each edge.
const MAX_PASSES: usize = 6;
/// Longest waiting time. Our choice: an edge with a share of a few bytes per second notices when other edges leave.
const MAX_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::fleet::Name;

    const SECOND: u64 = 1000;

    fn name(n: usize) -> Name {
        format!("e{n}").parse().unwrap()
    }

    /// Mbit/s sent in ten seconds, after one second, by edges that want these Mbit/s; edge `n` requests every `n` + 3
    /// ms.
    fn sent(scheduler: &mut FairScheduler<Name>, demands: &[u64]) -> Vec<f64> {
        let mut sent = vec![0; demands.len()];
        let mut waiting = vec![0_u64; demands.len()];
        let mut next = vec![0_u64; demands.len()];
        for ms in 0..11 * SECOND {
            for (index, want) in demands.iter().enumerate() {
                waiting[index] += want * 125;
                if ms < next[index] || waiting[index] == 0 {
                    continue;
                }
                next[index] = ms + index as u64 + 3;
                match scheduler.request(
                    Instant::from_millis(ms),
                    &name(index),
                    DataSize::from_bytes(waiting[index].min(65_536)),
                ) {
                    PaceGrant::Granted(size) => {
                        waiting[index] -= size.bytes();
                        sent[index] += if ms >= SECOND { size.bytes() } else { 0 };
                    }
                    PaceGrant::RetryAfter(wait) => next[index] = ms + u64::try_from(wait.as_millis()).unwrap(),
                }
            }
        }
        sent.iter().map(|bytes| *bytes as f64 * 8.0 / 1e7).collect()
    }

    fn assert_close(got: &[f64], wanted: &[f64]) {
        for (granted, expected) in got.iter().zip(wanted) {
            assert!((granted - expected).abs() <= 0.06 * expected, "{got:?}, not {wanted:?}");
        }
    }

    #[test]
    fn unused_shares_go_to_the_others() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        assert_close(&sent(&mut scheduler, &[10, 80, 200]), &[10.0, 45.0, 45.0]);
    }

    #[test]
    fn idle_edges_take_nothing_from_a_sending_one() {
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
    fn reservations_are_served_first() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        scheduler.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        assert_close(&sent(&mut scheduler, &[50, 100, 100]), &[50.0, 25.0, 25.0]);
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        scheduler.admit(&name(0), Bitrate::from_mbps(60)).unwrap();
        let got = sent(&mut scheduler, &[200, 200, 200]);
        assert!(got[0] >= 60.0 && got[1] >= 10.0 && got[2] >= 10.0, "{got:?}");
    }

    #[test]
    fn a_reservation_holds_against_any_number_of_greedy_edges() {
        for (reserved, others) in [(60, 40), (10, 150)] {
            let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
            scheduler.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
            let mut demands = vec![100; others];
            demands[0] = reserved;
            let got = sent(&mut scheduler, &demands);
            assert!(got[0] >= 0.98 * reserved as f64, "{} of {reserved} beside {others}", got[0]);
            let all: f64 = got.iter().sum();
            assert!((95.0..=100.5).contains(&all), "{all}");
        }
    }

    /// Longest time in milliseconds that bytes wait of an edge that sends at its reserved rate. Like a tunnel, it
    /// requests a whole piece every millisecond, whatever has arrived by then. The other edges want more than the
    /// capacity.
    fn longest_wait(reserved: u64, others: usize) -> u64 {
        let (mut scheduler, chunk) =
            (FairScheduler::new(Some(Bitrate::from_mbps(100))), DataSize::from_bytes(65_536));
        scheduler.admit(&name(0), Bitrate::from_mbps(reserved)).unwrap();
        let (mut waiting, mut longest, mut next) = (0, 0, vec![SECOND; others]);
        // All edges have accumulated their credit: together much more than the link's credit.
        for (n, at) in (0..others).flat_map(|n| [(n, 10), (n, SECOND - 1)]) {
            if let PaceGrant::Granted(size) = scheduler.request(Instant::from_millis(at), &name(n), chunk) {
                scheduler.settle(&name(n), size, DataSize::ZERO);
            }
        }
        for ms in SECOND..11 * SECOND {
            let now = Instant::from_millis(ms);
            waiting += reserved * 125;
            longest = longest.max(waiting / (reserved * 125));
            // The other edges request first.
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
    fn an_edge_within_its_reservation_waits_one_round_at_most() {
        for (reserved, others) in [(5, 40), (10, 150), (30, 40), (45, 40)] {
            let longest = longest_wait(reserved, others);
            assert!(longest <= 12, "{longest} ms of {reserved} Mbit/s beside {others}");
        }
    }

    #[test]
    fn the_reservation_of_an_unresponsive_edge_delays_nobody() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let (size, edge) = (DataSize::from_bytes(65_536), |n| name(n));
        scheduler.admit(&edge(0), Bitrate::from_mbps(95)).unwrap();
        // The edge uses up the link's credit, has to wait, and never requests again.
        while let PaceGrant::Granted(_) = scheduler.request(Instant::from_millis(SECOND), &edge(0), size) {}
        let got = (SECOND..3 * SECOND).fold(0, |sum, ms| {
            match scheduler.request(Instant::from_millis(ms), &edge(1), size) {
                PaceGrant::Granted(size) => sum + size.bytes(),
                PaceGrant::RetryAfter(_) => sum,
            }
        });
        assert!(got * 8 / 2 > 90_000_000, "{} bit/s", got * 4);
    }

    #[test]
    fn the_total_never_exceeds_the_capacity() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let all: f64 = sent(&mut scheduler, &[90; 40]).iter().sum();
        assert!((95.0..=100.5).contains(&all), "{all}");
        // After a pause, when all accounts are full, the burst is limited as well.
        let at = Instant::from_millis(100 * SECOND);
        let granted = |n| match scheduler.request(at, &name(n), DataSize::from_bytes(65_536)) {
            PaceGrant::Granted(size) => size.bytes(),
            PaceGrant::RetryAfter(_) => 0,
        };
        let burst: u64 = (0..40).map(granted).sum();
        assert!(burst <= (Bitrate::from_mbps(100) * LINK_BURST).bytes(), "{burst}");
    }

    #[test]
    fn reservations_never_exceed_the_capacity() {
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
    fn without_a_known_capacity_every_request_is_granted() {
        let size = DataSize::from_mib(100);
        assert_eq!(
            FairScheduler::<Name>::new(None).request(Instant::default(), &name(0), size),
            PaceGrant::Granted(size)
        );
    }

    #[test]
    fn unsent_bytes_are_credited_again() {
        let mut scheduler = FairScheduler::new(Some(Bitrate::from_mbps(100)));
        let (at, size) = (Instant::from_millis(SECOND), DataSize::from_bytes(60_000));
        assert_eq!(scheduler.request(at, &name(0), size), PaceGrant::Granted(size));
        scheduler.settle(&name(0), size, DataSize::ZERO);
        assert_eq!(scheduler.request(at, &name(0), size), PaceGrant::Granted(size));
    }
}
