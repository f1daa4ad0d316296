//! One case in real time: a lab, `marline proxy` as a process in the client namespace, and the emulated player.
//!
//! 1. Everything is what users run: kernel TCP, nginx, the proxy's own start and its probe of the file. The proxy
//!    learns the video's duration from the container, and the player's state from the player's reports, as with the
//!    player page.
//! 2. Links, player and measurement start when the proxy is ready, with the request.
//! 3. Energy is the proxy's own figure, with the whole tail after the last byte. Beside it is the energy of all
//!    packets on the links, which includes ready spare connections; the proxy's figure for the played video does
//!    not.
//! 4. A link that a policy must not use is not given to the proxy, but it exists.
//! 5. A run on a machine that was too busy is marked as unreliable, not discarded. Whether it is unreliable is
//!    computed from the stored values, so that all measurements of a file are treated alike.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use marline_core::energy::{Direction, Meter};
use marline_core::link::LinkId;
use marline_core::stream::{GreenBagRadio, Policy};
use marline_core::units::{DataSize, Duration, Instant};
use marline_sys::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::{GreenBagPolicy, PLAYER_THRESHOLDS, RunConfig};
use crate::mp4_fixture::Mp4Fixtures;
use crate::player::{self, PlaybackResult, PlayerConfig};
use crate::reproduce::measurement::{self, MeasuredValues};
use crate::server::TempDir;
use crate::{EmulationReport, Lab, LabError, LabSpec, Service};

/// Result of a case in real time. Times are in seconds, energies in joules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct PlaybackValues {
    /// Playback time (P in the paper).
    pub(super) playback_s: f64,
    /// Total buffering time (I in the paper), including the startup.
    #[serde(alias = "interruption_s")]
    pub(super) buffering_s: f64,
    /// Interruptions after the start.
    pub(super) stalls: u32,
    #[serde(alias = "first_picture_s")]
    pub(super) first_frame_s: f64,
    /// When the last byte reached the player.
    pub(super) last_byte_s: f64,
    /// Buffering periods: start and length.
    #[serde(alias = "waits_s")]
    pub(super) buffering_periods_s: Vec<(f64, f64)>,
    /// Energy of the device according to the proxy, tails included.
    pub(super) energy_j: f64,
    /// Energy of all packets that the links carried.
    #[serde(alias = "energy_of_packets_j")]
    pub(super) packet_energy_j: f64,
    pub(super) links: Vec<LinkResult>,
    /// Source from which the proxy learned the video's duration.
    #[serde(alias = "video")]
    pub(super) video_source: Option<String>,
    /// How often GreenBag's recovery took over a range of a slow link.
    #[serde(alias = "recovered")]
    pub(super) recoveries: u64,
    /// The proxy's description of how the video was played.
    #[serde(default)]
    pub(super) reason: Option<String>,
    /// CPU time of the proxy.
    pub(super) cpu_s: f64,
    /// Time during which the proxy was runnable and waited for a CPU.
    #[serde(default)]
    #[serde(alias = "kept_waiting_s")]
    pub(super) cpu_wait_s: Option<f64>,
    /// p99 lateness of the emulator.
    #[serde(alias = "late_s")]
    pub(super) p99_lateness_s: f64,
    /// Packets dropped before they reached the emulator.
    #[serde(default)]
    #[serde(alias = "unseen")]
    pub(super) dropped_before_emulator: u64,
}

impl MeasuredValues for PlaybackValues {
    fn unreliable_reason(&self) -> Option<String> {
        let waited = self.cpu_wait_s.filter(|waited| *waited > MAX_CPU_WAIT * self.last_byte_s);
        measurement::unreliable_reason_of(self.p99_lateness_s, self.dropped_before_emulator)
            .or_else(|| waited.map(|waited| format!("the proxy waited {waited:.1} s for a CPU")))
            .or_else(|| byte_mismatch(&self.links))
    }

    fn to_line(&self) -> String {
        let Self { playback_s, stalls, energy_j, .. } = self;
        format!("{playback_s:.1} s, {stalls} stalls, {energy_j:.1} J")
    }
}

/// Share of the time that the proxy may wait for a CPU. Our choice: up to a tenth, times were within half a second
/// and joules within 1 % of those in virtual time; at a third neither was.
const MAX_CPU_WAIT: f64 = 0.1;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct LinkResult {
    pub(super) name: String,
    /// Bytes of the video over the link, as the proxy counts.
    #[serde(alias = "bytes")]
    pub(super) video_bytes: u64,
    /// Bytes of IP packets towards the client, as the emulator counts.
    #[serde(alias = "carried_bytes")]
    pub(super) ip_bytes: u64,
    /// Energy of its radio according to the proxy, tail included.
    pub(super) energy_j: Option<f64>,
    /// Times at which a few packets, too small for video data, woke the radio or extended its tail.
    #[serde(default)]
    #[serde(alias = "woken_s")]
    pub(super) wakeups_s: Vec<f64>,
}

/// State shared by all cases.
#[derive(Debug)]
pub(super) struct PlaybackRunner {
    program: PathBuf,
    fixtures: Mp4Fixtures,
    /// Directory for the decision logs of all cases.
    trace_dir: Option<PathBuf>,
    /// Only one lab is built at a time: building is short and would delay the packets of running labs.
    build_lock: std::sync::Mutex<()>,
}

impl PlaybackRunner {
    /// Finds marline's executable.
    pub(super) fn new(trace: Option<PathBuf>) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        Ok(Self {
            program,
            fixtures: Mp4Fixtures::default(),
            trace_dir: trace,
            build_lock: std::sync::Mutex::default(),
        })
    }

    /// Runs one case. The inner error is a failure of the playback, the outer one of the lab; `label` names the
    /// decision logs.
    pub(super) fn run_case(
        &self,
        run: &RunConfig,
        policy: GreenBagPolicy,
        seed: u64,
        label: &str,
    ) -> Result<Result<PlaybackValues, String>, LabError> {
        let fixture = self.fixtures.get_or_create(run.video()).map_err(LabError::at_step("a video in memory"))?;
        let folder = TempDir::new().map_err(LabError::at_step("directory of the proxy"))?;
        let (lab, proxy) = {
            // The lock protects no data, so the panic of another thread does not matter.
            let _one_at_a_time = self.build_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let lab = Lab::start(&LabSpec {
                seed,
                service: Service::Files(fixture.path()),
                ..LabSpec::new(run.specs().cloned().collect())
            })?;
            let proxy = ProxyProcess::start(&lab, self.command(run, policy, folder.path(), label)?, folder.path())?;
            (lab, proxy)
        };
        let (url, _) = lab.urls().ok_or_else(|| LabError::Server("the lab has no server".into()))?;
        let start_time = clock::now();
        lab.start_links()?;
        let player_config = PlayerConfig {
            media_addr: proxy.media_addr,
            status_url: proxy.status_url.clone(),
            url,
            video: run.video().clone(),
            thresholds: PLAYER_THRESHOLDS,
            start_time,
            time_limit: run.video().duration() * 4 + Duration::from_secs(60),
        };
        let playback = lab
            .run_at_client(|| Ok(player::play(&player_config)))
            .map_err(LabError::at_step("the client namespace"))?;
        let emulation = lab.emulation_report()?;
        let cpu_wait = proxy.cpu_wait();
        let (cpu, last_log_line) = proxy.stop();
        drop(lab);
        Ok(match playback {
            Ok(playback) => to_result(run, policy, &playback, &emulation, (cpu, cpu_wait)),
            Err(why) if last_log_line.is_empty() => Err(why),
            Err(reason) => Err(format!("{reason}; last line of the proxy's log: {last_log_line}")),
        })
    }

    fn command(
        &self,
        run: &RunConfig,
        policy: GreenBagPolicy,
        folder: &Path,
        label: &str,
    ) -> Result<Command, LabError> {
        let mut command = Command::new(&self.program);
        command.args(["proxy", "--json", "--quiet", "--listen", LISTEN_ADDRESS, "--energy-model", "greenbag"]);
        command.args(["--metered", "use"]);
        for link in run.specs().filter(|link| policy.uses(link.kind)) {
            command.arg("--link").arg(format!("{},kind={}", link.name, link.kind.name()));
        }
        command.arg("--policy").arg(match policy.policy() {
            Policy::Marline => "marline",
            Policy::GreenbagP => "greenbag-p",
            Policy::GreenbagE => "greenbag-e",
        });
        if policy.policy() != Policy::Marline {
            let set = run.greenbag(policy);
            let split = if set.adaptive_subsegments { "adaptive" } else { "equal" };
            let recovery = if set.recovery_enabled { "on" } else { "off" };
            let params = format!("segment={}B,split={split},recovery={recovery}", set.segment_size.bytes());
            command.arg("--greenbag").arg(params);
        }
        if let Some(trace) = &self.trace_dir {
            let dir = trace.join(label.replace([' ', '/', ':'], "-"));
            std::fs::create_dir_all(&dir).map_err(LabError::at_step(format!("{}", dir.display())))?;
            command.arg("--trace").arg(dir);
        }
        // A directory that does not exist, hence without configuration files.
        let empty_home = folder.join("no-configuration");
        command.env("XDG_CONFIG_HOME", &empty_home).env("HOME", empty_home);
        Ok(command)
    }
}

/// Address of the proxy; it is free, because the network namespace is new.
const LISTEN_ADDRESS: &str = "127.0.0.1:8480";

struct ProxyProcess {
    child: Child,
    media_addr: std::net::SocketAddr,
    status_url: String,
    log_path: PathBuf,
}

impl ProxyProcess {
    /// Starts the proxy and waits until it prints its addresses.
    fn start(lab: &Lab, mut command: Command, folder: &Path) -> Result<Self, LabError> {
        let program = || "marline proxy".to_string();
        let errors = folder.join("stderr.log");
        let file = File::create(&errors).map_err(LabError::at_step("log file of the proxy"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut child = lab.spawn(&mut command).map_err(|source| LabError::Start { program: program(), source })?;
        match read_ready_message(&mut child) {
            Ok((listen, status)) => Ok(Self { child, media_addr: listen, status_url: status, log_path: errors }),
            Err(error) => {
                let proxy = Self {
                    child,
                    media_addr: ([127, 0, 0, 1], 0).into(),
                    status_url: String::new(),
                    log_path: errors,
                };
                let (_, last_log_line) = proxy.stop();
                Err(LabError::Start {
                    program: program(),
                    source: io::Error::other(format!("{error}: {last_log_line}")),
                })
            }
        }
    }

    /// Time that the proxy has waited for a CPU (kernel documentation, scheduler/sched-stats.rst); `None` if the
    /// kernel does not report it.
    fn cpu_wait(&self) -> Option<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).ok()?;
        text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    }

    /// Ends the proxy. Returns its CPU time and the last line of its log.
    fn stop(mut self) -> (Duration, String) {
        let _ = self.child.kill();
        let usage = marline_sys::process::wait_with_usage(self.child.id());
        let log_text = std::fs::read_to_string(&self.log_path).unwrap_or_default();
        let last = log_text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        (usage.map_or(Duration::ZERO, |usage| usage.user + usage.system), last.trim().to_owned())
    }
}

/// Reads the JSON object that the proxy prints when it listens: media address and status URL.
fn read_ready_message(child: &mut Child) -> io::Result<(std::net::SocketAddr, String)> {
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let object: Value =
        serde_json::from_str(&line).map_err(|_| io::Error::other("no JSON object with the addresses"))?;
    let string = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let listen =
        string("listen").parse().map_err(|_| io::Error::other(format!("unexpected output `{}`", line.trim())))?;
    Ok((listen, string("status")))
}

fn to_result(
    run: &RunConfig,
    policy: GreenBagPolicy,
    playback: &PlaybackResult,
    emulation: &EmulationReport,
    (cpu, cpu_wait): (Duration, Option<Duration>),
) -> Result<PlaybackValues, String> {
    let status = &playback.proxy_status;
    let session = &status["sessions"][0];
    let link_status = |name: &str| {
        let link_status = status["links"].as_array().into_iter().flatten().find(|link| link["name"] == name);
        link_status.map_or(&Value::Null, |link| &link["media"])
    };
    let links: Vec<LinkResult> = emulation
        .links
        .iter()
        .map(|link| LinkResult {
            name: link.name.clone(),
            video_bytes: link_status(&link.name)["bytes"].as_u64().unwrap_or(0),
            ip_bytes: link.downlink.delivered.bytes.bytes(),
            energy_j: link_status(&link.name)["with_tail_j"].as_f64(),
            wakeups_s: wakeup_times(&link.down_timeline),
        })
        .collect();
    let seconds = |(since, time): &(Duration, Duration)| (since.as_secs_f64(), time.as_secs_f64());
    Ok(PlaybackValues {
        playback_s: playback.playback_time.as_secs_f64(),
        buffering_s: playback.buffering_time.as_secs_f64(),
        stalls: playback.stalls,
        first_frame_s: playback.first_frame.as_secs_f64(),
        last_byte_s: playback.last_byte.as_secs_f64(),
        buffering_periods_s: playback.buffering_periods.iter().map(seconds).collect(),
        energy_j: status["energy"]["with_tails_j"].as_f64().ok_or("the proxy has no account of its energy")?,
        packet_energy_j: packet_energy(run, policy, emulation),
        cpu_wait_s: cpu_wait.map(|time| time.as_secs_f64()),
        links,
        video_source: session["video"]["source"].as_str().map(str::to_owned),
        reason: session["reason"].as_str().map(str::to_owned),
        recoveries: session["decisions"]["recoveries"].as_u64().unwrap_or(0),
        cpu_s: cpu.as_secs_f64(),
        p99_lateness_s: emulation.lateness.p99.as_secs_f64(),
        dropped_before_emulator: emulation.links.iter().map(|link| link.dropped_before_emulator).sum(),
    })
}

/// Energy of all packets towards the client over the links that the policy uses.
fn packet_energy(run: &RunConfig, policy: GreenBagPolicy, emulation: &EmulationReport) -> f64 {
    let mut meter = Meter::new(GreenBagRadio::greenbag(), Instant::ZERO);
    let mut slots: Vec<(Instant, LinkId, u64)> = Vec::new();
    for (id, (spec, link)) in (0..).map(LinkId).zip(run.specs().zip(&emulation.links)) {
        if policy.uses(spec.kind) {
            meter.add_link(Instant::ZERO, id, spec.kind);
            let at = |slot: u32| Instant::ZERO + EmulationReport::SLOT * slot;
            let used = (0..).zip(&link.down_timeline).filter(|(_, size)| !size.is_zero());
            slots.extend(used.map(|(slot, size)| (at(slot), id, size.bytes())));
        }
    }
    slots.sort_unstable();
    for (from, id, bytes) in slots {
        meter.on_flow(from, from + EmulationReport::SLOT, id, Direction::Down, DataSize::from_bytes(bytes));
    }
    meter.energy_until_idle(Instant::FAR_FUTURE).total().as_joules_f64()
}

/// Times at which, after two idle seconds, no more than the bytes of a handshake arrived within a second.
fn wakeup_times(timeline: &[DataSize]) -> Vec<f64> {
    let slot = EmulationReport::SLOT.as_secs_f64();
    let (silent_slots, burst) = ((2.0 / slot) as usize, (1.0 / slot) as usize);
    let mut woken = Vec::new();
    let mut silent = 0;
    for (at, size) in timeline.iter().enumerate() {
        if size.is_zero() {
            silent += 1;
            continue;
        }
        let next: DataSize = timeline.iter().skip(at).take(burst).copied().sum();
        if silent >= silent_slots && next <= MAX_HANDSHAKE {
            woken.push(at as f64 * slot);
        }
        silent = 0;
    }
    woken
}

/// More than a handshake, and less than any range of a video.
const MAX_HANDSHAKE: DataSize = DataSize::from_kib(6);

/// Reports a link on which the proxy's count and the packets differ by more than headers, handshakes and duplicate
/// requests explain.
fn byte_mismatch(links: &[LinkResult]) -> Option<String> {
    let is_unlike = |link: &&LinkResult| {
        let (video_bytes, carried) = (link.video_bytes as f64, link.ip_bytes as f64);
        video_bytes > carried || carried > video_bytes * 1.15 + 500_000.0
    };
    let link = links.iter().find(is_unlike)?;
    Some(format!("{} carried {} bytes, of which the proxy counts {}", link.name, link.ip_bytes, link.video_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_packets_on_an_idle_link_are_wakeups_and_video_data_is_not() {
        let mut timeline = vec![DataSize::ZERO; 200];
        let mut set_slot = |at: usize, bytes| timeline[at] = DataSize::from_bytes(bytes);
        set_slot(0, 40_000);
        set_slot(50, 52);
        set_slot(55, 52);
        set_slot(100, 1500);
        set_slot(101, 40_000);
        set_slot(180, 5000);
        assert_eq!(wakeup_times(&timeline), [5.0, 18.0]);
    }

    #[test]
    fn a_busy_machine_is_recognized_from_the_stored_values() {
        let text = r#"{"playback_s": 126, "interruption_s": 6, "stalls": 0, "first_picture_s": 6, "last_byte_s": 120,
            "waits_s": [], "energy_j": 77, "energy_of_packets_j": 78, "links": [], "video": null, "recovered": 0,
            "cpu_s": 2, "kept_waiting_s": 11.9, "late_s": 0.0009}"#;
        let mut measured: PlaybackValues = serde_json::from_str(text).unwrap();
        assert_eq!(measured.unreliable_reason(), None);
        measured.cpu_wait_s = Some(12.1);
        assert_eq!(measured.unreliable_reason().unwrap(), "the proxy waited 12.1 s for a CPU");
        measured.p99_lateness_s = 0.0011;
        assert!(measured.unreliable_reason().unwrap().contains("1.1 ms late"));
        measured.dropped_before_emulator = 3;
        assert!(measured.unreliable_reason().unwrap().starts_with("3 packets"));
    }

    #[test]
    fn a_byte_count_that_contradicts_the_packets_is_reported() {
        let link = |bytes, carried_bytes| LinkResult {
            name: "lte".into(),
            video_bytes: bytes,
            ip_bytes: carried_bytes,
            energy_j: None,
            wakeups_s: Vec::new(),
        };
        assert_eq!(byte_mismatch(&[link(10_000_000, 10_400_000), link(0, 20_000)]), None);
        assert!(byte_mismatch(&[link(10_000_000, 9_000_000)]).is_some());
        assert!(byte_mismatch(&[link(10_000_000, 13_000_000)]).unwrap().contains("of which"));
    }
}
