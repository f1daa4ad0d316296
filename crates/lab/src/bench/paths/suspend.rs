//! What passes a link that was suspended: LTE joins while Wi-Fi is bad, and is suspended when Wi-Fi becomes good.
//!
//! 1. A suspension is the packet that asks for it (MP_PRIO on LTE), or the last payload where LTE was given up otherwise.
//! 2. After it the sender may empty its queue; from [`DRAINED`] on until the download's end nothing but control may pass.

use std::time::Duration;

use marline_core::units::DataSize;

use super::sheet::{Floor, Sheet};
use super::{Bench, is_stopped, link};
use crate::mptcp::fetch::Until;
use crate::mptcp::stage::Who;
use crate::server::Payload;
use crate::{Emulation, LabError};

pub(super) fn run(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), LabError> {
    const CASE: &str = "suspend";
    let payload = Payload::new(DataSize::from_bytes(160_000_000)).map_err(LabError::at("a file in memory"))?;
    let file = payload.path();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let links =
        [link("wifi,rate=1Mbit/s,up=5Mbit/s,rtt=40ms,queue=60kB"), link("lte,rate=8Mbit/s,up=5Mbit/s,rtt=70ms")];
    let events = ["12s:wifi=rate=20Mbit/s".parse().expect("an event")];
    let ours = Who::MARLINE.name(&links);
    for run in 0..bench.args.runs {
        for who in [Who::EMPTCP, Who::MARLINE] {
            if is_stopped() {
                return Ok(());
            }
            let scene = bench.scene(&links, &events, &file, run);
            let Some(stage) = bench.stage(sheet, CASE, &scene, (who, run)) else { continue };
            let name_of = who.name(&links);
            let until = Until { limit: Duration::from_secs(240), stay: None, sum: true };
            let got = match stage.download(&name, until)? {
                Ok(got) if got.sha256.as_deref() == Some(payload.sha256()) => got,
                Ok(_) => {
                    sheet.problem(CASE, &name_of, run, &"the bytes are others");
                    continue;
                }
                Err(why) => {
                    sheet.problem(CASE, &name_of, run, &why);
                    continue;
                }
            };
            let emulation = stage.emulation()?;
            let Some(after) = Suspended::of(&emulation, 1, got.time) else {
                sheet.problem(CASE, &name_of, run, &"LTE was not suspended for half a minute");
                continue;
            };
            let mut add = |what, floor, figure| sheet.add(CASE, what, (&ours, &floor), &name_of, figure);
            add("payload bytes over LTE after the drain", Floor::AtMost(0.0), after.payload as f64);
            add("control kB a minute", Floor::AtMost(2.0), after.control_a_minute / 1e3);
            add("s until the last payload", Floor::Stated, after.drain.as_secs_f64());
            add("s watched", Floor::Stated, after.watched.as_secs_f64());
            if let Some(why) = emulation.suspect() {
                sheet.suspect(CASE, &why);
            }
        }
    }
    Ok(())
}

/// What a link carried while it was suspended.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Suspended {
    /// Payload after the drain.
    pub(crate) payload: u64,
    /// Everything else, in bytes a minute.
    pub(crate) control_a_minute: f64,
    /// From the request to the last payload of the drain.
    pub(crate) drain: Duration,
    /// How long it was watched.
    pub(crate) watched: Duration,
}

impl Suspended {
    /// Of the link with this place, up to `end`; none: it was never suspended, or not for long enough. The last suspension
    /// counts.
    pub(crate) fn of(emulation: &Emulation, at: usize, end: Duration) -> Option<Self> {
        let link = emulation.links.get(at)?;
        let asked = link.priorities.iter().rfind(|priority| !priority.lost && priority.at < end)?;
        // The first of its row: a request may be sent again to be sure.
        let since = link.priorities.iter().rev().skip_while(|priority| priority.at > asked.at);
        let first = since.take_while(|priority| priority.backup).last()?.at;
        let (drained, mut sum) = (first + DRAINED, (0_u64, 0_u64));
        let watched = end.checked_sub(drained).filter(|time| *time >= LONG)?;
        for sign in link.signs.iter().filter(|sign| sign.at >= drained && sign.at < end) {
            sum.0 += u64::from(sign.payload);
            sum.1 += u64::from(sign.down) + u64::from(sign.up) - u64::from(sign.payload);
        }
        let last = link.signs.iter().rfind(|sign| sign.payload > 0 && sign.at < drained);
        Some(Self {
            payload: sum.0,
            control_a_minute: sum.1 as f64 * 60.0 / watched.as_secs_f64(),
            drain: last.map_or(Duration::ZERO, |sign| sign.at.saturating_sub(first)),
            watched,
        })
    }
}

/// Within this time a queue of LTE and what was in flight have passed.
const DRAINED: Duration = Duration::from_secs(2);
/// Shorter than this says nothing about a minute.
const LONG: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use marline_core::link::LinkKind;

    use super::*;
    use crate::{Lateness, LinkRun, Priority, Sign};

    #[test]
    fn what_passes_after_the_drain_is_told_from_what_drains() {
        let sign = |millis, down, payload| Sign { at: Duration::from_millis(millis), down, up: 60, payload };
        let asked = |seconds, backup| Priority { at: Duration::from_secs(seconds), backup, lost: false };
        let mut lte = LinkRun {
            name: "lte".into(),
            kind: LinkKind::Lte,
            down: Default::default(),
            up: Default::default(),
            down_timeline: Vec::new(),
            up_timeline: Vec::new(),
            down_span: None,
            unseen: 0,
            signs: vec![sign(10_100, 1500, 1448), sign(10_300, 1500, 1448), sign(30_000, 60, 0)],
            priorities: vec![asked(5, true), asked(7, false), asked(10, true), asked(11, true)],
        };
        let suspended = |lte: &LinkRun, end| {
            let links = vec![lte.clone()];
            let cpu = Duration::ZERO;
            let emulation = Emulation { links, lateness: Lateness::default(), cpu, real_time: false };
            Suspended::of(&emulation, 0, Duration::from_secs(end))
        };
        let after = suspended(&lte, 72).unwrap();
        assert_eq!((after.payload, after.drain, after.watched.as_secs()), (0, Duration::from_millis(300), 60));
        assert!((after.control_a_minute - 120.0).abs() < 1e-9);
        assert_eq!(suspended(&lte, 40), None);
        lte.signs.push(sign(50_000, 1500, 1448));
        assert_eq!(suspended(&lte, 72).unwrap().payload, 1448);
        lte.priorities.push(asked(60, false));
        assert_eq!(suspended(&lte, 72), None);
    }
}
