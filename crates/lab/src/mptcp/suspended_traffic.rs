//! Traffic on a link after the client has requested its suspension (MP_PRIO: the subflow becomes a backup).
//!
//! 1. A suspension begins with the MP_PRIO packet of the client, or with the first of several in a row. The last suspension before the end
//!    of the download counts, and only if no later request makes the subflow regular again.
//! 2. After the request the sender may empty its queue. After [`DRAIN_TIME`] only control packets may pass.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::EmulationReport;

/// Traffic of a link while it was suspended.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct SuspendedTraffic {
    /// TCP payload after [`DRAIN_TIME`], in bytes.
    pub(crate) payload: u64,
    /// All other bytes after it, per minute.
    #[serde(alias = "control_a_minute")]
    pub(crate) control_per_minute: f64,
    /// Seconds from the request to the last payload within [`DRAIN_TIME`].
    pub(crate) drain_s: f64,
    /// Seconds that were observed after [`DRAIN_TIME`].
    pub(crate) watched_s: f64,
}

impl SuspendedTraffic {
    /// Measures the last suspension of a link up to `end`. `None` if the link is not suspended at `end`, or was for
    /// less than [`MIN_SUSPENSION`].
    pub(crate) fn measure(emulation: &EmulationReport, link_index: usize, end: Duration) -> Option<Self> {
        let link = emulation.links.get(link_index)?;
        let request = link.mp_prio_requests.iter().rfind(|priority| !priority.is_dropped && priority.at < end)?;
        // Start with the first of consecutive requests: a request may be repeated to protect it from loss.
        let since = link.mp_prio_requests.iter().rev().skip_while(|priority| priority.at > request.at);
        let first = since.take_while(|priority| priority.backup).last()?.at;
        let (drained, mut sum) = (first + DRAIN_TIME, (0_u64, 0_u64));
        let watched = end.checked_sub(drained).filter(|time| *time >= MIN_SUSPENSION)?;
        for sample in link.traffic_samples.iter().filter(|sign| sign.at >= drained && sign.at < end) {
            sum.0 += u64::from(sample.payload);
            sum.1 += u64::from(sample.down) + u64::from(sample.up) - u64::from(sample.payload);
        }
        let last = link.traffic_samples.iter().rfind(|sample| sample.payload > 0 && sample.at < drained);
        Some(Self {
            payload: sum.0,
            control_per_minute: sum.1 as f64 * 60.0 / watched.as_secs_f64(),
            drain_s: last.map_or(Duration::ZERO, |sample| sample.at.saturating_sub(first)).as_secs_f64(),
            watched_s: watched.as_secs_f64(),
        })
    }
}

/// Within this time the queue of an LTE link and the bytes in flight have been delivered.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// A shorter observation does not support a figure per minute.
const MIN_SUSPENSION: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use marline_core::link::LinkKind;

    use super::*;
    use crate::{Lateness, LinkReport, MpPrioRequest, TrafficSample};

    #[test]
    fn traffic_after_the_drain_is_distinguished_from_the_drain() {
        let sample =
            |millis, down, payload| TrafficSample { at: Duration::from_millis(millis), down, up: 60, payload };
        let request =
            |seconds, backup| MpPrioRequest { at: Duration::from_secs(seconds), backup, is_dropped: false };
        let mut lte = LinkReport {
            traffic_samples: vec![sample(10_100, 1500, 1448), sample(10_300, 1500, 1448), sample(30_000, 60, 0)],
            mp_prio_requests: vec![request(5, true), request(7, false), request(10, true), request(11, true)],
            ..LinkReport::without_packets("lte", LinkKind::Lte)
        };
        let suspended = |lte: &LinkReport, end| {
            let links = vec![lte.clone()];
            let cpu = Duration::ZERO;
            let emulation =
                EmulationReport { links, lateness: Lateness::default(), cpu_time: cpu, is_real_time: false };
            SuspendedTraffic::measure(&emulation, 0, Duration::from_secs(end))
        };
        let after = suspended(&lte, 72).unwrap();
        assert_eq!((after.payload, after.drain_s, after.watched_s), (0, 0.3, 60.0));
        assert!((after.control_per_minute - 120.0).abs() < 1e-9);
        assert_eq!(suspended(&lte, 40), None);
        lte.traffic_samples.push(sample(50_000, 1500, 1448));
        assert_eq!(suspended(&lte, 72).unwrap().payload, 1448);
        lte.mp_prio_requests.push(request(60, false));
        assert_eq!(suspended(&lte, 72), None);
    }
}
