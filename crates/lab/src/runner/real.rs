//! One download in real time: a program, kernel TCP and nginx over emulated links.
//!
//! 1. The file is verified by SHA-256 after every download, for all clients.
//! 2. Bytes and times per link come from the emulator, in the same way for all clients. Packets do not show which
//!    bytes were needed, nor exactly when a link's last needed byte arrived: marline reports both itself. For other
//!    programs they are estimated. A link ends with the last slot that has more than a few packets, and waste is
//!    what arrived beyond the file and the packets' headers.
//! 3. A run on a machine that was too busy is marked as unreliable, not discarded.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use marline_sim::scenario::{Case, Client};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{sampler, time_limit};
use crate::clients::{self, ClientCommand};
use crate::results::{Backend, DownloadOutcome, LinkOutcome, ProcessUsage, SLOT_S};
use crate::server::TempDir;
use crate::{CommandRun, Lab, LabError, LabSpec, LinkReport, Payload, Service};

/// Parameters of one download.
pub(super) struct DownloadSpec<'a> {
    pub(super) case: &'a Case,
    pub(super) client: &'a Client,
    pub(super) run: u32,
    pub(super) payload: &'a Payload,
    pub(super) uses_tls: bool,
    pub(super) program: &'a Path,
    pub(super) samples_process: bool,
    pub(super) shows_progress: bool,
}

/// Runs the download in a fresh lab.
pub(super) fn run_download(download: &DownloadSpec<'_>) -> Result<DownloadOutcome, LabError> {
    let case = download.case;
    let folder = TempDir::new().map_err(LabError::at_step("directory of the download"))?;
    let lab = Lab::start(&LabSpec {
        events: case.events.clone(),
        seed: u64::from(download.run) + 1,
        service: Service::Files(download.payload.path()),
        ..LabSpec::new(case.links.clone())
    })?;
    let command = ClientCommand {
        client: download.client,
        links: &case.links,
        best_link: &case.best_single_link().name,
        uses_tls: download.uses_tls,
        directory: folder.path(),
        program: download.program,
        shows_progress: download.shows_progress,
    };
    let task = clients::client_task(&command).limit(time_limit(case, download.client));
    let before = cpu_pressure_s();
    let (run, samples) =
        sampler::with_samples(download.samples_process.then_some(Path::new(&task.program)), || lab.run(&task));
    let run = run?;
    let cpu_pressure = cpu_pressure_s()
        .zip(before)
        .map(|(after, before)| ((after - before) / run.wall.as_secs_f64().max(1e-3)).min(1.0));
    let granted = lab.congestion().is_granted();
    drop(lab);
    let problem = failure_reason(&run, &folder.path().join(clients::OUTPUT_FILE), download.payload);
    let report: Option<Value> =
        download.client.is_marline().then(|| serde_json::from_slice(&run.stdout).ok()).flatten();
    let links = case
        .links
        .iter()
        .zip(&run.emulation.links)
        .map(|(spec, did)| link_outcome(did, spec.mtu.bytes(), report.as_ref()));
    let links: Vec<LinkOutcome> = links.collect();
    let unreliable_reason = run.emulation.unreliable_reason().or_else(|| {
        let busy = cpu_pressure.filter(|share| *share > MAX_CPU_PRESSURE);
        busy.map(|share| format!("processes waited for a CPU {:.0} % of the time", share * 100.0))
    });
    let unreliable_reason =
        unreliable_reason.or_else(|| (!granted).then(|| "the kernel refused the congestion control".to_string()));
    Ok(DownloadOutcome {
        case: case.name.clone(),
        client: download.client.to_string(),
        run: download.run,
        backend: Backend::Lab,
        requested_bytes: case.size.bytes(),
        problem,
        seconds: run.wall.as_secs_f64(),
        ideal_s: case.ideal_time().map(|ideal| ideal.as_secs_f64()),
        link_delta_s: report.as_ref().map_or_else(|| link_delta(&links), |r| r["link_delta_s"].as_f64()),
        wasted_bytes: report
            .as_ref()
            .map_or_else(|| (!download.uses_tls).then(|| excess_bytes(&run, case)), |r| r["wasted_bytes"].as_u64()),
        links,
        cpu_s: Some((run.user + run.system).as_secs_f64()),
        cpu_pressure,
        peak_rss_bytes: Some(run.peak_memory.bytes()),
        energy_j: report.as_ref().and_then(|r| r["energy_j"].as_f64()),
        energy_model: report.as_ref().and_then(|r| Some(r["energy_model"].as_str()?.to_owned())),
        process: ProcessUsage::from_samples(&samples),
        unreliable_reason,
    })
}

/// Share of time in which some process waited for a CPU, above which figures are unreliable. Our choice: client,
/// server and emulator on two cores wait for each other up to 0.4 of the time on an otherwise idle machine.
const MAX_CPU_PRESSURE: f64 = 0.6;

/// Why the download failed; `None` if it is complete and correct.
fn failure_reason(run: &CommandRun, file: &Path, payload: &Payload) -> Option<String> {
    if run.timed_out {
        return Some(format!("not complete after {:.0} s", run.wall.as_secs_f64()));
    }
    if !run.status.success() {
        let stderr = String::from_utf8_lossy(&run.stderr);
        let line = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        return Some(format!("{}: {}", run.status, line.trim()));
    }
    match sha256(file) {
        Ok(sum) if sum == payload.sha256() => None,
        Ok(_) => Some("wrong SHA-256".into()),
        Err(error) => Some(format!("no file: {error}")),
    }
}

/// SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256(file: &Path) -> std::io::Result<String> {
    let (mut file, mut digest) = (File::open(file)?, Sha256::new());
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            length => digest.update(buffer.get(..length).unwrap_or_default()),
        }
    }
    Ok(data_encoding::HEXLOWER.encode(&digest.finalize()))
}

fn link_outcome(link_report: &LinkReport, mtu: u64, report: Option<&Value>) -> LinkOutcome {
    let timeline: Vec<u64> = link_report.down_timeline.iter().map(|slot| slot.bytes()).collect();
    // Handshakes, ACKs and connection ends are a few small packets; they do not count as use of the link.
    let used = |bytes: &u64| *bytes >= 3 * mtu;
    let seen = timeline.iter().position(used).zip(timeline.iter().rposition(used));
    let span = seen.map(|(first, last)| (first as f64 * SLOT_S, (last + 1) as f64 * SLOT_S));
    let link_json = report.and_then(|report| {
        report["links"].as_array().into_iter().flatten().find(|link| link["name"] == link_report.name.as_str())
    });
    let ends = |link: &Value| Some((link["first_byte_s"].as_f64()?, link["last_byte_s"].as_f64()?));
    LinkOutcome {
        name: link_report.name.clone(),
        kind: link_report.kind,
        ip_bytes: link_report.downlink.delivered.bytes.bytes(),
        span_s: if report.is_some() { link_json.and_then(ends) } else { span },
        median_mbps: None,
        energy_j: link_json.and_then(|link| link["energy_j"].as_f64()),
        timeline,
    }
    .with_median()
}

/// Time between the ends of the first and the last link in use.
fn link_delta(links: &[LinkOutcome]) -> Option<f64> {
    let ends: Vec<f64> = links.iter().filter_map(|link| link.span_s).map(|(_, end)| end).collect();
    let (first, last) = crate::results::stats::range(&ends).filter(|_| ends.len() > 1)?;
    Some(last - first)
}

/// Bytes received beyond the file and the packets' headers. 52 bytes are the headers of IPv4 and of TCP with
/// timestamps.
fn excess_bytes(run: &CommandRun, case: &Case) -> u64 {
    let payload = |link: &LinkReport| {
        let down = link.downlink.delivered;
        down.bytes.bytes().saturating_sub(52 * down.packets)
    };
    let all: u64 = run.emulation.links.iter().map(payload).sum();
    all.saturating_sub(case.size.bytes())
}

/// Seconds since boot in which some process waited for a CPU; `None` if the kernel does not report pressure.
fn cpu_pressure_s() -> Option<f64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1;
    total.trim().parse::<u64>().ok().map(|micros| Duration::from_micros(micros).as_secs_f64())
}
