//! One trial: a fresh world, who helps, one or more downloads for a time, and everything that is known of it afterwards.
//!
//! 1. The accelerator is ready before the links' clock starts; plain TCP waits for nothing, and meets the same links, losses
//!    and blackouts.
//! 2. A figure is that of a part of the run: what comes before belongs to the start of a connection.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::daemon::Daemon;
use super::download::{Download, Received};
use super::sender::{self, Sample};
use super::{Who, Workshop, World, upload};
use crate::bench::is_interrupted;
use crate::server::Payload;
use crate::{EmulationReport, LabError};

/// A download; an upload where the world's data goes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    /// Over TLS.
    pub(crate) secure: bool,
    /// Bound to this link; none: the first one, as everybody's.
    pub(crate) over: Option<&'static str>,
    /// It begins then.
    pub(crate) begins: Duration,
}

impl Stream {
    /// One from the start of the run.
    pub(crate) const fn new(secure: bool) -> Self {
        Self { secure, over: None, begins: Duration::ZERO }
    }
}

/// What is done.
#[derive(Clone, Debug)]
pub(crate) struct Trial<'a> {
    pub(crate) world: &'a World,
    pub(crate) who: &'a Who,
    pub(crate) streams: &'a [Stream],
    /// How long; a download that comes to its end ends it.
    pub(crate) length: Duration,
    /// How often the sender is looked at; it is always looked at once, at the end.
    pub(crate) look: Option<Duration>,
    pub(crate) payload: &'a Payload,
    pub(crate) workshop: &'a Workshop,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// In the order of the streams.
    pub(crate) flows: Vec<Received>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) emulation: EmulationReport,
    /// The accelerator's processor time.
    pub(crate) cpu: Option<Duration>,
    /// Nanoseconds of its BPF program for each packet: in a row, and where it stands, if the kernel counts.
    pub(crate) bpf: Option<(f64, Option<f64>)>,
    /// What it said last.
    pub(crate) status: Option<Value>,
    /// Mechanisms that were in force at one time at least.
    pub(crate) in_force: Vec<String>,
    /// Why it is no result.
    pub(crate) problem: Option<String>,
}

impl Taken {
    /// Mbit/s of one download.
    pub(crate) fn mbps(&self, stream: usize, from: Duration, to: Duration) -> f64 {
        self.flows.get(stream).map_or(0.0, |flow| flow.mbps(from, to))
    }

    /// The sender of one port as it was seen last.
    pub(crate) fn last(&self, port: u16) -> Option<&Sample> {
        self.samples.iter().rfind(|sample| sample.port == port)
    }

    /// Reductions that senders were told to take back.
    pub(crate) fn undone(&self) -> u64 {
        let flows = self.status.as_ref().and_then(|status| status.get("flows")?.as_array());
        flows.into_iter().flatten().filter_map(|flow| flow.get("undone")?.as_u64()).sum()
    }

    /// Why the accelerator left a flow alone, or else which mechanisms it did not use for one and why, if it says so.
    pub(crate) fn left_alone(&self) -> Option<String> {
        let flows = self.status.as_ref()?.get("flows")?.as_array()?;
        let alone = flows.iter().find_map(|flow| flow.get("left_alone")?.as_str().map(str::to_owned));
        alone.or_else(|| flows.iter().find_map(excuses))
    }
}

impl Trial<'_> {
    /// Does it.
    pub(crate) fn run(&self) -> Result<Taken, LabError> {
        let (lab, mut daemon) = self.workshop.build(self.world, self.payload, self.who)?;
        lab.start_links()?;
        let (zero, before) = (Instant::now(), daemon.as_ref().map(Daemon::cpu));
        let mut running: Vec<Download> = Vec::new();
        let (mut samples, mut in_force, mut status) = (Vec::new(), Vec::new(), None);
        let (mut look, mut ask) = (Duration::ZERO, ASK);
        while zero.elapsed() < self.length && !is_interrupted() {
            let now = zero.elapsed();
            if let Some(stream) = self.streams.get(running.len()).filter(|stream| stream.begins <= now) {
                running.push(match self.world.is_upward {
                    true => upload::start(&lab, self.payload, zero)?,
                    false => Download::start(&lab, stream.secure, stream.over, self.payload, zero)?,
                });
                continue;
            }
            if let Some(every) = self.look.filter(|_| now >= look) {
                samples.extend(sender::samples(&lab, now)?);
                look = now + every;
            }
            if let Some(daemon) = daemon.as_ref().filter(|_| now >= ask) {
                if let Ok(said) = daemon.status(&lab) {
                    note(&mut in_force, &said);
                    status = Some(said);
                }
                ask = now + ASK;
            }
            if running.len() == self.streams.len() && running.iter().all(Download::has_ended) {
                break;
            }
            std::thread::sleep(TURN.min(self.length.saturating_sub(zero.elapsed())));
        }
        samples.extend(sender::samples(&lab, zero.elapsed())?);
        if let Some(said) = daemon.as_ref().and_then(|daemon| daemon.status(&lab).ok()) {
            note(&mut in_force, &said);
            status = Some(said);
        }
        let cpu = daemon.as_ref().zip(before).map(|(daemon, before)| daemon.cpu().saturating_sub(before));
        let bpf = daemon.as_ref().and_then(Daemon::bpf).map(|bpf| {
            let time = bpf.in_a_row().map_err(LabError::at_step("a trial run of a BPF program"))?;
            Ok::<_, LabError>((time.as_nanos() as f64, bpf.in_place()))
        });
        let bpf = bpf.transpose()?;
        let emulation = lab.emulation_report()?;
        let flows = running.into_iter().map(Download::end).collect::<Result<Vec<_>, _>>()?;
        let gone = daemon.as_mut().and_then(Daemon::has_ended).map(|how| format!("the accelerator ended: {how}"));
        let problem = gone.or_else(|| flows.iter().find_map(Received::problem));
        Ok(Taken { flows, samples, emulation, cpu, bpf, status, in_force, problem })
    }
}

/// `undo: it has no timestamps`, and so on.
fn excuses(flow: &Value) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    for excuse in flow.get("not_in_force")?.as_array()? {
        all.push(format!("{}: {}", excuse["mechanism"].as_str()?, excuse["why"].as_str()?));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// Keeps what the accelerator says of its flows; and of a freeze, which is over before anybody asks, that there was a blackout
/// that it noticed.
fn note(in_force: &mut Vec<String>, status: &Value) {
    let flows = status["flows"].as_array().cloned().unwrap_or_default();
    let words = flows.iter().filter_map(|flow| flow["in_force"].as_array()).flatten().filter_map(Value::as_str);
    let was_dark = status["links"][0]["blackouts"].as_u64().is_some_and(|blackouts| blackouts > 0);
    let may = status["mechanisms"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let frozen = may.filter(|word| was_dark && !flows.is_empty() && word.starts_with("freeze"));
    for word in words.chain(frozen) {
        if !in_force.iter().any(|known| known == word) {
            in_force.push(word.to_owned());
        }
    }
}

/// How often something may be due.
const TURN: Duration = Duration::from_millis(10);
/// How often the accelerator is asked. chosen: half of the shortest blackout, so that what is in force only then is seen;
/// asking is a process of its own, and costs what is measured.
const ASK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_no_use_is_named_with_its_reason() {
        let excuse = |mechanism: &str| serde_json::json!({"mechanism": mechanism, "why": "no"});
        let flow = serde_json::json!({"not_in_force": [excuse("undo"), excuse("hide")]});
        assert_eq!(excuses(&flow).as_deref(), Some("undo: no; hide: no"));
        assert_eq!(excuses(&serde_json::json!({"not_in_force": []})), None);
    }

    #[test]
    fn what_was_in_force_once_is_kept_once() {
        let status = |words: &[&str]| serde_json::json!({"flows": [{"in_force": words}, {}]});
        let mut kept = Vec::new();
        note(&mut kept, &status(&["undo", "reserve"]));
        note(&mut kept, &status(&["offload", "undo"]));
        note(&mut kept, &serde_json::json!({}));
        assert_eq!(kept, ["undo", "reserve", "offload"]);
        let dark = |blackouts| serde_json::json!({"mechanisms": ["freeze"], "links": [{"blackouts": blackouts}], "flows": [{}]});
        note(&mut kept, &dark(0));
        assert_eq!(kept.len(), 3);
        note(&mut kept, &dark(1));
        assert_eq!(kept[3], "freeze");
    }
}
