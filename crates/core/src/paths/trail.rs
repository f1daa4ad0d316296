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
pub(super) struct Trail {
    size: DataSize,
    until: Instant,
    fastest: Bitrate,
}

impl Trail {
    /// A look told of these bytes, either way.
    pub(super) fn on_look(&mut self, (from, now): (Instant, Instant), size: DataSize) {
        self.size += size;
        self.until = now;
        self.fastest = self.fastest.max(size / now.since(from).max(SHORTEST));
    }

    /// When so many more bytes came; none: they are more than what looks told, so somebody else's.
    pub(super) fn rest(&self, now: Instant, more: DataSize) -> Option<(Instant, Instant)> {
        let time = (more / self.fastest).min(now.since(self.until));
        (more <= self.size).then(|| (self.until, self.until + time))
    }
}

/// Two looks closer together say nothing of a rate. chosen: a burst that waited in the receiver's queue.
const SHORTEST: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use crate::energy::tests::{at, huang};
    use crate::energy::{Direction, Meter};
    use crate::link::{LinkId, LinkKind};
    use crate::paths::config::LinkTerms;
    use crate::paths::links::Link;
    use crate::units::{DataSize, Instant};

    /// What a meter says at the end, after these looks (until when, bytes that came) since `began` and these counts of the
    /// interface (when, came and went).
    fn said(began: u64, looks: &[(u64, u64)], counts: &[(u64, [u64; 2])]) -> f64 {
        let wifi = LinkId(0);
        let mut meter = Meter::new(huang(), Instant::ZERO);
        meter.on_link(Instant::ZERO, wifi, LinkKind::Wifi);
        let terms =
            LinkTerms { link: wifi, name: "wlan0".into(), kind: LinkKind::Wifi, metered: false, budget: None };
        let mut link = Link::new(terms);
        let mut from = at(began);
        let (mut looks, mut counts) = (looks.iter().peekable(), counts.iter().peekable());
        while let Some(next) = looks.peek().map(|look| look.0).into_iter().chain(counts.peek().map(|c| c.0)).min() {
            if let Some((when, size)) = looks.next_if(|look| look.0 == next) {
                let times = (from, at(*when));
                link.on_payload(&mut meter, times, Direction::Down, DataSize::from_bytes(*size));
                from = at(*when);
            } else if let Some((when, counted)) = counts.next() {
                link.on_traffic(&mut meter, at(*when), counted.map(DataSize::from_bytes));
            }
        }
        meter.finish(at(10_000)).total().as_joules_f64()
    }

    #[test]
    fn what_is_counted_after_the_end_of_a_transfer_came_with_it() {
        // 256 KiB in 0.11 s: 40 kB of it came behind the last look.
        let looks = [(4100, 62_000), (4200, 160_000)];
        let counted =
            |when| said(4097, &looks, &[(1000, [0, 0]), (when, [267_000, 4_300]), (9000, [267_000, 4_300])]);
        let whole = said(4097, &[(4207, 267_000)], &[]);
        for when in [4300, 4600, 4900, 5190] {
            let said = counted(when);
            assert!((whole..whole * 1.25).contains(&said), "counted at {when}: {said} of {whole}");
        }
    }

    #[test]
    fn what_is_more_than_all_looks_told_flowed_all_the_time() {
        // A stream of another program's beside a connection that trickles.
        let counts = [(4000, [0, 0]), (5000, [600_000, 0])];
        let (stream, beside) = (said(0, &[], &counts), said(4400, &[(4500, 10_000)], &counts));
        assert!((beside / stream - 1.0).abs() < 0.1, "{beside} {stream}");
    }
}
