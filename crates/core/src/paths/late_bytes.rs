//! Late bytes: estimates when bytes arrived that the interface counted but no poll has reported yet.
//!
//! Headers, ACKs and the end of a transfer that closed before its next poll become known up to a second later, when
//! the interface's counters are read. They arrived directly after the bytes of the last poll, at the same rate. If
//! they counted as a steady flow over a whole second, or as bytes of the moment of counting, they would keep a
//! radio awake that was already idle: 0.7 J instead of 0.3 J for 256 KiB over Wi-Fi.

use crate::units::{Bitrate, DataSize, Duration, Instant};

/// Bytes that polls reported since the interface was last counted.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LateBytes {
    size: DataSize,
    last_poll: Instant,
    peak_rate: Bitrate,
}

impl LateBytes {
    /// Reports that a poll found these bytes, in either direction, for the time between `from` and `now`.
    pub(super) fn on_poll(&mut self, (from, now): (Instant, Instant), size: DataSize) {
        self.size += size;
        self.last_poll = now;
        self.peak_rate = self.peak_rate.max(size / now.since(from).max(MIN_POLL_TIME));
    }

    /// The time in which `extra` further bytes arrived; `None`: there are more of them than polls reported, so they
    /// belong to other programs.
    pub(super) fn arrival_of(&self, now: Instant, extra: DataSize) -> Option<(Instant, Instant)> {
        let time = (extra / self.peak_rate).min(now.since(self.last_poll));
        (extra <= self.size).then(|| (self.last_poll, self.last_poll + time))
    }
}

/// Shorter intervals between polls say nothing about a rate. Our choice: a burst that waited in the receiver's
/// queue.
const MIN_POLL_TIME: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use crate::energy::tests::{at, huang};
    use crate::energy::{Direction, Meter};
    use crate::link::{LinkId, LinkKind};
    use crate::paths::config::LinkConfig;
    use crate::paths::links::Link;
    use crate::units::{DataSize, Instant};

    /// Energy at the end, after these polls (time, bytes received since the previous one), the first of which
    /// covers the time since `began`, and these readings of the interface's counters (time, received and sent).
    fn metered_joules(began: u64, polls: &[(u64, u64)], counters: &[(u64, [u64; 2])]) -> f64 {
        let wifi = LinkId(0);
        let mut meter = Meter::new(huang(), Instant::ZERO);
        meter.add_link(Instant::ZERO, wifi, LinkKind::Wifi);
        let link_config =
            LinkConfig { id: wifi, name: "wlan0".into(), kind: LinkKind::Wifi, metered: false, budget: None };
        let mut link = Link::new(link_config);
        let mut from = at(began);
        let (mut polls, mut counters) = (polls.iter().peekable(), counters.iter().peekable());
        while let Some(next) = polls.peek().map(|poll| poll.0).into_iter().chain(counters.peek().map(|c| c.0)).min()
        {
            if let Some((when, size)) = polls.next_if(|poll| poll.0 == next) {
                let times = (from, at(*when));
                link.on_payload(&mut meter, times, Direction::Down, DataSize::from_bytes(*size));
                from = at(*when);
            } else if let Some((when, sizes)) = counters.next() {
                link.on_interface_counters(&mut meter, at(*when), sizes.map(DataSize::from_bytes));
            }
        }
        meter.energy_until_idle(at(10_000)).total().as_joules_f64()
    }

    #[test]
    fn bytes_counted_after_a_transfer_belong_to_the_transfer() {
        // 256 KiB in 0.11 s: 40 kB of it arrived after the last poll.
        let polls = [(4100, 62_000), (4200, 160_000)];
        let joules_counted_at = |when| {
            metered_joules(4097, &polls, &[(1000, [0, 0]), (when, [267_000, 4_300]), (9000, [267_000, 4_300])])
        };
        let expected = metered_joules(4097, &[(4207, 267_000)], &[]);
        for when in [4300, 4600, 4900, 5190] {
            let joules = joules_counted_at(when);
            assert!((expected..expected * 1.25).contains(&joules), "counted at {when}: {joules} of {expected}");
        }
    }

    #[test]
    fn bytes_of_other_programs_count_as_a_steady_flow() {
        // A stream of another program, beside a connection with little traffic.
        let counts = [(4000, [0, 0]), (5000, [600_000, 0])];
        let (stream, with_conn) =
            (metered_joules(0, &[], &counts), metered_joules(4400, &[(4500, 10_000)], &counts));
        assert!((with_conn / stream - 1.0).abs() < 0.1, "{with_conn} {stream}");
    }
}
