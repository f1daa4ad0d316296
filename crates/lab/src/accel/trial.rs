//! One trial: a new lab, a contender, one or more transfers for a time, and everything that is measured.
//!
//! 1. The accelerator is ready before the clock of the links starts; plain TCP starts at once, and meets the same
//!    links, losses and outages.
//! 2. A figure is that of a part of the run, because the beginning belongs to the start of a connection.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::daemon::Daemon;
use super::download::{Download, Received};
use super::{Contender, Topology, TrialEnv, upload};
use crate::accel::tcp_info_sampler::{self, Sample};
use crate::interrupt::is_interrupted;
use crate::server::Payload;
use crate::{EmulationReport, LabError};

/// A download; an upload if the topology uploads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    /// Over TLS.
    pub(crate) secure: bool,
    /// Bound to this link; none: the primary one.
    pub(crate) over: Option<&'static str>,
    /// When it starts.
    pub(crate) begins: Duration,
}

impl Stream {
    /// One from the start of the run.
    pub(crate) const fn new(secure: bool) -> Self {
        Self { secure, over: None, begins: Duration::ZERO }
    }
}

/// One run of a contender: topology, downloads, and how long and how often it is sampled.
#[derive(Clone, Debug)]
pub(crate) struct Trial<'a> {
    pub(crate) world: &'a Topology,
    pub(crate) contender: &'a Contender,
    pub(crate) streams: &'a [Stream],
    /// For how long; it ends earlier if all transfers have ended.
    pub(crate) length: Duration,
    /// How often the sender is sampled; it always is once, at the end.
    pub(crate) sample_interval: Option<Duration>,
    pub(crate) payload: &'a Payload,
    pub(crate) workshop: &'a TrialEnv,
}

/// The result of a trial.
#[derive(Clone, Debug)]
pub(crate) struct TrialResult {
    /// In the order of the streams.
    pub(crate) flows: Vec<Received>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) emulation: EmulationReport,
    /// The accelerator's processor time; none: no accelerator ran.
    pub(crate) cpu: Option<Duration>,
    /// Nanoseconds of its BPF program for each packet: in a row, and at the link, if the kernel counts.
    pub(crate) bpf: Option<(f64, Option<f64>)>,
    /// The last status of the accelerator (`marline accel status --json`) that was read during the run.
    pub(crate) status: Option<Value>,
    /// Mechanisms that were active at some time.
    pub(crate) active: Vec<String>,
    /// Why it is no result.
    pub(crate) problem: Option<String>,
}

impl TrialResult {
    /// Mbit/s of one download.
    pub(crate) fn mbps(&self, stream: usize, from: Duration, to: Duration) -> f64 {
        self.flows.get(stream).map_or(0.0, |flow| flow.mbps(from, to))
    }

    /// The last sample of the sender at one port.
    pub(crate) fn last(&self, port: u16) -> Option<&Sample> {
        self.samples.iter().rfind(|sample| sample.port == port)
    }

    /// Reductions that senders have undone.
    pub(crate) fn undone(&self) -> u64 {
        let flows = self.status.as_ref().and_then(|status| status.get("flows")?.as_array());
        flows.into_iter().flatten().filter_map(|flow| flow.get("undone_reductions")?.as_u64()).sum()
    }

    /// Why the accelerator left a flow alone, or which mechanisms it did not use for one and why.
    pub(crate) fn inactive_reason(&self) -> Option<String> {
        let flows = self.status.as_ref()?.get("flows")?.as_array()?;
        let alone = flows.iter().find_map(|flow| flow.get("inactive_reason")?.as_str().map(str::to_owned));
        alone.or_else(|| flows.iter().find_map(inactive_reasons))
    }
}

impl Trial<'_> {
    pub(crate) fn run(&self) -> Result<TrialResult, LabError> {
        let (lab, mut daemon) = self.workshop.build(self.world, self.payload, self.contender)?;
        lab.start_links()?;
        let (zero, before) = (Instant::now(), daemon.as_ref().map(Daemon::cpu));
        let mut running: Vec<Download> = Vec::new();
        let (mut samples, mut in_force, mut status) = (Vec::new(), Vec::new(), None);
        let (mut next_sample_at, mut next_status_at) = (Duration::ZERO, STATUS_INTERVAL);
        while zero.elapsed() < self.length && !is_interrupted() {
            let now = zero.elapsed();
            if let Some(stream) = self.streams.get(running.len()).filter(|stream| stream.begins <= now) {
                running.push(match self.world.is_upload {
                    true => upload::start(&lab, self.payload, zero)?,
                    false => Download::start(&lab, stream.secure, stream.over, self.payload, zero)?,
                });
                continue;
            }
            if let Some(every) = self.sample_interval.filter(|_| now >= next_sample_at) {
                samples.extend(tcp_info_sampler::samples(&lab, now)?);
                next_sample_at = now + every;
            }
            if let Some(daemon) = daemon.as_ref().filter(|_| now >= next_status_at) {
                if let Ok(daemon_status) = daemon.status(&lab) {
                    add_active(&mut in_force, &daemon_status);
                    status = Some(daemon_status);
                }
                next_status_at = now + STATUS_INTERVAL;
            }
            if running.len() == self.streams.len() && running.iter().all(Download::has_ended) {
                break;
            }
            std::thread::sleep(LOOP_INTERVAL.min(self.length.saturating_sub(zero.elapsed())));
        }
        samples.extend(tcp_info_sampler::samples(&lab, zero.elapsed())?);
        if let Some(daemon_status) = daemon.as_ref().and_then(|daemon| daemon.status(&lab).ok()) {
            add_active(&mut in_force, &daemon_status);
            status = Some(daemon_status);
        }
        let cpu = daemon.as_ref().zip(before).map(|(daemon, before)| daemon.cpu().saturating_sub(before));
        let bpf = daemon.as_ref().and_then(Daemon::bpf).map(|bpf| {
            let time = bpf.in_a_row().map_err(LabError::at_step("a trial run of a BPF program"))?;
            Ok::<_, LabError>((time.as_nanos() as f64, bpf.in_place()))
        });
        let bpf = bpf.transpose()?;
        let emulation = lab.emulation_report()?;
        let flows = running.into_iter().map(Download::end).collect::<Result<Vec<_>, _>>()?;
        let daemon_exit =
            daemon.as_mut().and_then(Daemon::has_ended).map(|reason| format!("the accelerator ended: {reason}"));
        let problem = daemon_exit.or_else(|| flows.iter().find_map(Received::problem));
        Ok(TrialResult { flows, samples, emulation, cpu, bpf, status, active: in_force, problem })
    }
}

/// `eifel-undo: it has no timestamps`, and so on.
fn inactive_reasons(flow: &Value) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    for inactive in flow.get("inactive")?.as_array()? {
        all.push(format!("{}: {}", inactive["mechanism"].as_str()?, inactive["reason"].as_str()?));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// Adds the active mechanisms of a status; and for a freeze, which is over before the status is requested, that it
/// noticed an outage.
fn add_active(active: &mut Vec<String>, status: &Value) {
    let flows = status["flows"].as_array().cloned().unwrap_or_default();
    let names = flows.iter().filter_map(|flow| flow["active"].as_array()).flatten().filter_map(Value::as_str);
    let had_outage = status["links"][0]["outages"].as_u64().is_some_and(|outages| outages > 0);
    let may = status["mechanisms"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let frozen = may.filter(|mechanism| had_outage && !flows.is_empty() && mechanism.contains("freeze"));
    for mechanism in names.chain(frozen) {
        if !active.iter().any(|known| known == mechanism) {
            active.push(mechanism.to_owned());
        }
    }
}

/// How often due work is checked.
const LOOP_INTERVAL: Duration = Duration::from_millis(10);
/// How often the status is requested. Our choice: half of the shortest outage, so that mechanisms that are active only
/// then are seen; each request is a process, which affects what is measured.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inactive_mechanisms_are_named_with_their_reasons() {
        let inactive = |mechanism: &str| serde_json::json!({"mechanism": mechanism, "reason": "no"});
        let flow = serde_json::json!({"inactive": [inactive("eifel-undo"), inactive("early-ack")]});
        assert_eq!(inactive_reasons(&flow).as_deref(), Some("eifel-undo: no; early-ack: no"));
        assert_eq!(inactive_reasons(&serde_json::json!({"inactive": []})), None);
    }

    #[test]
    fn a_mechanism_is_listed_once() {
        let status = |names: &[&str]| serde_json::json!({"flows": [{"active": names}, {}]});
        let mut in_force = Vec::new();
        add_active(&mut in_force, &status(&["eifel-undo", "withheld-ack"]));
        add_active(&mut in_force, &status(&["ack-offload", "eifel-undo"]));
        add_active(&mut in_force, &serde_json::json!({}));
        assert_eq!(in_force, ["eifel-undo", "withheld-ack", "ack-offload"]);
        let with_outages = |outages| serde_json::json!({"mechanisms": ["zero-window-freeze"], "links": [{"outages": outages}], "flows": [{}]});
        add_active(&mut in_force, &with_outages(0));
        assert_eq!(in_force.len(), 3);
        add_active(&mut in_force, &with_outages(1));
        assert_eq!(in_force[3], "zero-window-freeze");
    }
}
