//! One case in real time: a lab with kernel MPTCP, a path manager, and a client that downloads.
//!
//! 1. Everything is what users run: kernel TCP and MPTCP at both ends, nginx, and `marline paths` as a process.
//! 2. Links and measurement start with the connection, when the path manager is ready.
//! 3. Energy is computed from every packet at the client's end, with promotions and whole tails ([`energy`]). The
//!    daemon's own figure is reported beside it, with the packets' energy at the same time for comparison.
//! 4. A run on a machine that was too busy is marked as unreliable, not discarded.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use serde::{Deserialize, Serialize};

use super::config::{EmptcpClient, RunConfig, Work};
use crate::mptcp::http_client::{DownloadResult, STOPPED_BY_USER, StopCondition};
use crate::mptcp::suspended_traffic::SuspendedTraffic;
use crate::mptcp::testbed::{ENERGY_MODEL, Testbed, TestbedConfig};
use crate::mptcp::{energy, testbed, web_page};
use crate::results::energy::device_model;
use crate::server::{Payload, TempDir};
use crate::{Congestion, EmulationReport, LabError};

/// Result of a case in real time. Times are in seconds, energies in joules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct RunResult {
    /// Time from the start of the connection to the last byte.
    pub(super) seconds: f64,
    /// Bytes received by the application.
    pub(super) bytes: u64,
    /// Energy of all radios, from every packet, tails included.
    pub(super) energy_j: f64,
    pub(super) links: Vec<LinkResult>,
    /// Longest time without data.
    #[serde(alias = "pause_s")]
    pub(super) longest_pause_s: f64,
    /// Mean rate from the fifth second on in Mbit/s; `None` if the download was too short.
    #[serde(default)]
    #[serde(alias = "later_mbps")]
    pub(super) settled_mbps: Option<f64>,
    /// Traffic over LTE while it was suspended, for at least half a minute at the end; `None` if it was not.
    #[serde(default)]
    pub(super) suspended: Option<SuspendedTraffic>,
    /// Energy reported by the daemon some time after the end, without future tails; `None` without a daemon.
    #[serde(default)]
    #[serde(alias = "said_j")]
    pub(super) daemon_energy_j: Option<f64>,
    /// Energy of all packets at the time of that report.
    #[serde(default)]
    #[serde(alias = "said_packets_j")]
    pub(super) packet_energy_at_report_j: Option<f64>,
    /// Timeline for figures over time: one point every [`STEP_S`] seconds.
    #[serde(default)]
    #[serde(alias = "course")]
    pub(super) timeline: Vec<TimelinePoint>,
    /// p99 lateness of the emulator.
    #[serde(alias = "late_s")]
    pub(super) p99_lateness_s: f64,
    /// Packets dropped before they reached the emulator.
    #[serde(alias = "unseen")]
    pub(super) dropped_before_emulator: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct LinkResult {
    pub(super) name: String,
    /// Bytes of IP packets towards the client.
    #[serde(alias = "carried_bytes")]
    pub(super) ip_bytes: u64,
    /// TCP payload of both directions.
    pub(super) payload_bytes: u64,
    pub(super) energy_j: f64,
    /// How often its radio left the idle state; `None` if not recorded.
    #[serde(default)]
    #[serde(alias = "wakes")]
    pub(super) promotions: Option<u32>,
    /// MP_PRIO requests that the client sent over the link: time, and whether they requested a backup.
    #[serde(default)]
    #[serde(alias = "priorities_s")]
    pub(super) mp_prio_s: Vec<(f64, bool)>,
}

/// One point of the timeline.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct TimelinePoint {
    /// Rates of IP packets over Wi-Fi and LTE in the step that ends here, in Mbit/s.
    pub(super) mbps: [f64; 2],
    /// Energy up to here, in joules.
    #[serde(alias = "joules")]
    pub(super) energy_j: f64,
}

/// Interval of [`RunResult::timeline`] in seconds.
pub(super) const STEP_S: u32 = 2;

/// State shared by all cases.
#[derive(Debug)]
pub(super) struct CaseRunner {
    program: PathBuf,
    /// Congestion control of the server.
    pub(super) congestion: Congestion,
    /// Directory for the decision logs of all cases.
    trace_dir: Option<PathBuf>,
    payloads: Mutex<Vec<(DataSize, Arc<Payload>)>>,
    /// Directory with the web page and an endless file.
    temp_dir: TempDir,
    /// Only one lab is built at a time: building is short and would delay the packets of running labs.
    build_lock: Mutex<()>,
}

impl CaseRunner {
    /// Finds marline's executable and writes the web page.
    pub(super) fn new(congestion: Congestion, trace: Option<PathBuf>) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let folder = TempDir::new().map_err(LabError::at_step("directory of the served files"))?;
        let endless = || std::fs::File::create(folder.path().join(ENDLESS_FILE))?.set_len(1 << 36);
        web_page::write_objects(folder.path())
            .and_then(|()| endless())
            .map_err(LabError::at_step("a page in memory"))?;
        Ok(Self {
            program,
            congestion,
            trace_dir: trace,
            payloads: Mutex::default(),
            temp_dir: folder,
            build_lock: Mutex::default(),
        })
    }

    /// Runs one case. The inner error is a failure of the download, the outer one of the lab; `label` names the
    /// decision log.
    pub(super) fn run_case(
        &self,
        run: &RunConfig,
        client: EmptcpClient,
        seed: u64,
        label: &str,
    ) -> Result<Result<RunResult, String>, LabError> {
        let (served, name, _guard) = match run.work {
            Work::File(size) => {
                let payload = self.payload(size)?;
                let path = payload.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                (path, name, Some(payload))
            }
            _ => (self.temp_dir.path().to_path_buf(), ENDLESS_FILE.to_owned(), None),
        };
        let file = || format!("{}.ndjson", label.replace([' ', '/', ':', '%', ','], "-"));
        let trace = self.trace_dir.as_ref().map(|folder| folder.join(file()));
        let config = TestbedConfig {
            links: &run.links,
            events: &[],
            served_file: &served,
            congestion: self.congestion,
            seed,
            program: &self.program,
            trace,
        };
        let testbed = {
            // The lock protects no data, so the panic of another thread does not matter.
            let _one_at_a_time = self.build_lock.lock().unwrap_or_else(PoisonError::into_inner);
            match Testbed::start(&config, testbed_variant(client)) {
                Err(error @ LabError::Start { .. }) => return Ok(Err(error.to_string())),
                stage => stage?,
            }
        };
        let start = Instant::now();
        let result = match run.work {
            Work::File(_) => {
                let until = StopCondition { limit: TIME_LIMIT, stop_after: None, wants_sha256: false };
                testbed.download(&name, until)?
            }
            Work::Timed { length } => {
                let until =
                    StopCondition { limit: length + TIME_LIMIT, stop_after: Some(length), wants_sha256: false };
                // The time is fixed, even if no data arrived at its end.
                testbed.download(&name, until)?.map(|got| DownloadResult { time: length, ..got })
            }
            Work::Page => testbed.load_page(TIME_LIMIT)?.map(|page| DownloadResult {
                time: page.time,
                bytes: page.bytes,
                ..DownloadResult::default()
            }),
        };
        let emulation = testbed.emulation_report()?;
        let reported_at = start.elapsed();
        let daemon_status = testbed.daemon_status().and_then(|status| status["energy_j"].as_f64());
        Ok(result.map(|got| to_result(&emulation, &got, daemon_status.map(|energy| (reported_at, energy)))))
    }

    fn payload(&self, size: DataSize) -> Result<Arc<Payload>, LabError> {
        let mut payloads = self.payloads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, payload)) = payloads.iter().find(|(known, _)| *known == size) {
            return Ok(payload.clone());
        }
        let payload = Arc::new(Payload::new(size).map_err(LabError::at_step(format!("a file of {size}")))?);
        payloads.push((size, payload.clone()));
        Ok(payload)
    }
}

/// A sparse file that is too large to be downloaded completely.
const ENDLESS_FILE: &str = "endless";
/// More than one and a half times what any case needs (256 MB at 0.8 Mbit/s: 2560 s).
const TIME_LIMIT: Duration = Duration::from_secs(4500);

/// The testbed's variant for this client.
fn testbed_variant(client: EmptcpClient) -> testbed::PathVariant {
    match client {
        // The MDP's schedule amounts to TCP over Wi-Fi (section 4.6); it is computed only in virtual time.
        EmptcpClient::TcpWifi | EmptcpClient::Mdp => testbed::PathVariant::SingleLinkTcp(0),
        EmptcpClient::TcpLte => testbed::PathVariant::SingleLinkTcp(1),
        EmptcpClient::Mptcp => testbed::PathVariant::KernelMptcp,
        EmptcpClient::WifiFirst => testbed::PathVariant::WifiFirst,
        EmptcpClient::Emptcp => testbed::PathVariant::EMPTCP,
        EmptcpClient::EmptcpSettled => testbed::PathVariant::EMPTCP_SETTLED,
        EmptcpClient::EmptcpTable => testbed::PathVariant::EMPTCP_TABLE,
        EmptcpClient::Marline => testbed::PathVariant::MARLINE,
        EmptcpClient::MarlineThroughput => testbed::PathVariant::MARLINE_THROUGHPUT,
    }
}

/// Time after which the path manager should have recognized the link rates.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

fn to_result(emulation: &EmulationReport, got: &DownloadResult, reported: Option<(Duration, f64)>) -> RunResult {
    let account = energy::energy_of_packets(emulation, device_model(ENERGY_MODEL));
    let promotions = energy::promotions(emulation, device_model(ENERGY_MODEL));
    let links = emulation.links.iter().enumerate().map(|(at, link)| LinkResult {
        name: link.name.clone(),
        ip_bytes: link.downlink.delivered.bytes.bytes(),
        payload_bytes: link.traffic_samples.iter().map(|sample| u64::from(sample.payload)).sum(),
        energy_j: energy::link_energy(&account, at),
        promotions: promotions.get(at).copied(),
        mp_prio_s: link.mp_prio_requests.iter().map(|request| (request.at.as_secs_f64(), request.backup)).collect(),
    });
    RunResult {
        seconds: got.time.as_secs_f64(),
        bytes: got.bytes,
        energy_j: account.total().as_joules_f64(),
        links: links.collect(),
        longest_pause_s: got.longest_pause.as_secs_f64(),
        settled_mbps: (got.time > SETTLED_AFTER * 2).then(|| got.rate_from(SETTLED_AFTER) * 8.0 / 1e6),
        suspended: SuspendedTraffic::measure(emulation, 1, got.time),
        daemon_energy_j: reported.map(|(_, energy)| energy),
        packet_energy_at_report_j: reported.map(|(reported_at, _)| {
            energy::energy_until(emulation, device_model(ENERGY_MODEL), reported_at).total().as_joules_f64()
        }),
        timeline: timeline(emulation, got.time),
        p99_lateness_s: emulation.lateness.p99.as_secs_f64(),
        dropped_before_emulator: emulation.links.iter().map(|link| link.dropped_before_emulator).sum(),
    }
}

fn timeline(emulation: &EmulationReport, end: Duration) -> Vec<TimelinePoint> {
    let step = Duration::from_secs(STEP_S.into());
    let slots = (step.as_nanos() / EmulationReport::SLOT.as_nanos()) as usize;
    let mbps = |link: usize, at: usize| {
        let timeline = emulation.links.get(link).map(|link| link.down_timeline.as_slice()).unwrap_or_default();
        let bytes: u64 = timeline.iter().skip(at * slots).take(slots).map(|size| size.bytes()).sum();
        (bytes as f64 * 8.0 / 1e6 / step.as_secs_f64() * 1e3).round() / 1e3
    };
    let curve = energy::energy_curve(emulation, device_model(ENERGY_MODEL), step, end);
    let point = |(at, energy): (usize, &f64)| TimelinePoint {
        mbps: [mbps(0, at), mbps(1, at)],
        energy_j: (energy * 1e3).round() / 1e3,
    };
    curve.iter().enumerate().map(point).collect()
}

/// Whether a run ended because the user interrupted.
pub(super) fn is_stopped_by_user(reason: &str) -> bool {
    reason == STOPPED_BY_USER
}
