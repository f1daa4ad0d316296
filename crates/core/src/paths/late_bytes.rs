//! When the rest came: what passed an interface and no look has told.
//!
//! In: what looks told since the interface was counted last. Out: the time in which what only the counters know came.
//!
//! Headers, acknowledgements and the end of a transfer that closed before its next look are known up to a second later.
//! They came right behind what the last look told, and as fast. Taken for the steady flow of a whole second, or for bytes
//! of the moment in which they were counted, they would keep a radio awake that had long gone to sleep: 0.7 J instead of
//! 0.3 for 256 KiB over Wi-Fi.

use crate::units::{Bitrate, DataSize, Duration, Instant};

/// What looks told since the last count.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LateBytes {
    size: DataSize,
    last_poll: Instant,
    peak_rate: Bitrate,
}

impl LateBytes {
    /// A look told of these bytes, either way.
    pub(super) fn on_poll(&mut self, (from, now): (Instant, Instant), size: DataSize) {
        self.size += size;
        self.last_poll = now;
        self.peak_rate = self.peak_rate.max(size / now.since(from).max(MIN_POLL_TIME));
    }

    /// When so many more bytes came; none: they are more than what looks told, so somebody else's.
    pub(super) fn arrival_of(&self, now: Instant, extra: DataSize) -> Option<(Instant, Instant)> {
        let time = (extra / self.peak_rate).min(now.since(self.last_poll));
        (extra <= self.size).then(|| (self.last_poll, self.last_poll + time))
    }
}

/// Two looks closer together say nothing of a rate. chosen: a burst that waited in the receiver's queue.
const MIN_POLL_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use crate::energy::tests::{at, huang};
    use crate::energy::{Direction, Meter};
    use crate::link::{LinkId, LinkKind};
    use crate::paths::config::LinkConfig;
    use crate::paths::links::Link;
    use crate::units::{DataSize, Instant};

    /// What a meter says at the end, after these looks (until when, bytes that came) since `began` and these counts of the
    /// interface (when, came and went).
    fn metered_joules(began: u64, polls: &[(u64, u64)], counters: &[(u64, [u64; 2])]) -> f64 {
        let wifi = LinkId(0);
        let mut meter = Meter::new(huang(), Instant::ZERO);
        meter.add_link(Instant::ZERO, wifi, LinkKind::Wifi);
        let terms =
            LinkConfig { id: wifi, name: "wlan0".into(), kind: LinkKind::Wifi, metered: false, budget: None };
        let mut link = Link::new(terms);
        let mut from = at(began);
        let (mut polls, mut counters) = (polls.iter().peekable(), counters.iter().peekable());
        while let Some(next) = polls.peek().map(|poll| poll.0).into_iter().chain(counters.peek().map(|c| c.0)).min()
        {
            if let Some((when, size)) = polls.next_if(|poll| poll.0 == next) {
                let times = (from, at(*when));
                link.on_payload(&mut meter, times, Direction::Down, DataSize::from_bytes(*size));
                from = at(*when);
            } else if let Some((when, counted)) = counters.next() {
                link.on_interface_counters(&mut meter, at(*when), counted.map(DataSize::from_bytes));
            }
        }
        meter.energy_until_idle(at(10_000)).total().as_joules_f64()
    }

    #[test]
    fn what_is_counted_after_the_end_of_a_transfer_came_with_it() {
        // 256 KiB in 0.11 s: 40 kB of it came behind the last look.
        let polls = [(4100, 62_000), (4200, 160_000)];
        let counted = |when| {
            metered_joules(4097, &polls, &[(1000, [0, 0]), (when, [267_000, 4_300]), (9000, [267_000, 4_300])])
        };
        let whole = metered_joules(4097, &[(4207, 267_000)], &[]);
        for when in [4300, 4600, 4900, 5190] {
            let joules = counted(when);
            assert!((whole..whole * 1.25).contains(&joules), "counted at {when}: {joules} of {whole}");
        }
    }

    #[test]
    fn what_is_more_than_all_looks_told_flowed_all_the_time() {
        // A stream of another program's beside a connection that trickles.
        let counts = [(4000, [0, 0]), (5000, [600_000, 0])];
        let (stream, with_conn) =
            (metered_joules(0, &[], &counts), metered_joules(4400, &[(4500, 10_000)], &counts));
        assert!((with_conn / stream - 1.0).abs() < 0.1, "{with_conn} {stream}");
    }
}
