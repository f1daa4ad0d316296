//! One case in real time: a lab with kernel MPTCP, whoever decides over the paths, and a client that downloads.
//!
//! In: a [`Setting`], who decides, a seed. Out: a [`Measured`].
//!
//! 1. Everything is what a user has: kernel TCP and MPTCP at both ends, nginx, `marline paths` as a process of its own.
//! 2. The clock of links and figures begins with the connection; what decides about paths is ready then.
//! 3. Joules are those of every packet at the client's end, with promotions and whole tails ([`joules`]). What the daemon
//!    counts itself stands beside them, and how far the two are apart.
//! 4. A run on a machine that was too busy is marked, not dropped.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_core::units::DataSize;
use serde::{Deserialize, Serialize};

use super::setting::{Setting, Who, Work};
use crate::evidence::joules::device;
use crate::mptcp::fetch::{Got, STOPPED, Until};
use crate::mptcp::stage::{DEVICE, Scene, Stage};
use crate::mptcp::suspended::Suspended;
use crate::mptcp::{joules, page, stage};
use crate::server::{Folder, Payload};
use crate::{Congestion, Emulation, LabError};

/// What came of a case in real time. Times in seconds, energies in joules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// From the connection's beginning to the last byte.
    pub(super) seconds: f64,
    /// Bytes that the application got.
    pub(super) bytes: u64,
    /// All radios, from every packet, with the tails.
    pub(super) energy_j: f64,
    pub(super) links: Vec<LinkMeasured>,
    /// The longest time in which nothing came.
    pub(super) pause_s: f64,
    /// Mbit/s that the application got from the fifth second on; none: it was over by then.
    #[serde(default)]
    pub(super) later_mbps: Option<f64>,
    /// What LTE carried while it was suspended for half a minute or more at the end; none: it was not.
    #[serde(default)]
    pub(super) suspended: Option<Suspended>,
    /// What the daemon had counted some time after the end, without tails to come; none: there is no daemon.
    #[serde(default)]
    pub(super) said_j: Option<f64>,
    /// The same, of every packet, at that moment.
    #[serde(default)]
    pub(super) said_packets_j: Option<f64>,
    /// The course of it, for figures over time: [`Point`]s every [`STEP_S`] seconds.
    #[serde(default)]
    pub(super) course: Vec<Point>,
    /// How late one packet in a hundred left the emulator, or later.
    pub(super) late_s: f64,
    /// Packets that were lost before the emulator saw them.
    pub(super) unseen: u64,
}

/// What one link did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct LinkMeasured {
    pub(super) name: String,
    /// Bytes of IP packets towards the client.
    pub(super) carried_bytes: u64,
    /// Of these and of those from the client, payload of TCP.
    pub(super) payload_bytes: u64,
    pub(super) energy_j: f64,
    /// How often its radio left idle; none: was not counted.
    #[serde(default)]
    pub(super) wakes: Option<u32>,
    /// Requests for another priority that the client sent over it: when, and whether as a backup.
    #[serde(default)]
    pub(super) priorities_s: Vec<(f64, bool)>,
}

/// One moment of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Point {
    /// Mbit/s of IP packets over each link in the step that ends here: Wi-Fi, LTE.
    pub(super) mbps: [f64; 2],
    /// Joules up to here.
    pub(super) joules: f64,
}

/// The length of a step of [`Measured::course`], in seconds.
pub(super) const STEP_S: u32 = 2;

/// What all cases have in common.
#[derive(Debug)]
pub(super) struct Workshop {
    program: PathBuf,
    /// The server's.
    pub(super) congestion: Congestion,
    /// Where each case's logs of decisions go.
    trace: Option<PathBuf>,
    payloads: Mutex<Vec<(DataSize, Arc<Payload>)>>,
    /// The page, and a file that has no end.
    folder: Folder,
    /// Labs are built one at a time: their making is short and would delay the packets of the others.
    building: Mutex<()>,
}

impl Workshop {
    /// Finds the daemon's program.
    pub(super) fn new(congestion: Congestion, trace: Option<PathBuf>) -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        let folder = Folder::new().map_err(LabError::at("a place for what is served"))?;
        let endless = || std::fs::File::create(folder.path().join(ENDLESS))?.set_len(1 << 36);
        page::write(folder.path()).and_then(|()| endless()).map_err(LabError::at("a page in memory"))?;
        Ok(Self { program, congestion, trace, payloads: Mutex::default(), folder, building: Mutex::default() })
    }

    /// Does it. The outer error is of the lab, the inner one of what was downloaded; `label` names its logs.
    pub(super) fn play(
        &self,
        setting: &Setting,
        who: Who,
        seed: u64,
        label: &str,
    ) -> Result<Result<Measured, String>, LabError> {
        let (served, name, _kept) = match setting.work {
            Work::File(size) => {
                let payload = self.payload(size)?;
                let path = payload.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                (path, name, Some(payload))
            }
            _ => (self.folder.path().to_path_buf(), ENDLESS.to_owned(), None),
        };
        let file = || format!("{}.ndjson", label.replace([' ', '/', ':', '%', ','], "-"));
        let trace = self.trace.as_ref().map(|folder| folder.join(file()));
        let scene = Scene {
            links: &setting.links,
            events: &[],
            served: &served,
            congestion: self.congestion,
            seed,
            program: &self.program,
            trace,
        };
        let stage = {
            // Nothing is behind this lock that a failure of another thread could have spoilt.
            let _one_at_a_time = self.building.lock().unwrap_or_else(PoisonError::into_inner);
            match Stage::start(&scene, of(who)) {
                Err(error @ LabError::Start { .. }) => return Ok(Err(error.to_string())),
                stage => stage?,
            }
        };
        let began = Instant::now();
        let worked = match setting.work {
            Work::File(_) => {
                let until = Until { limit: LIMIT, stay: None, sum: false };
                stage.download(&name, until)?
            }
            Work::Stay { length } => {
                let until = Until { limit: length + LIMIT, stay: Some(length), sum: false };
                // What came by then is what counts, if nothing comes at the end of it too.
                stage.download(&name, until)?.map(|got| Got { time: length, ..got })
            }
            Work::Page => {
                stage.page(LIMIT)?.map(|page| Got { time: page.time, bytes: page.bytes, ..Got::default() })
            }
        };
        let emulation = stage.emulation()?;
        let asked = began.elapsed();
        let said = stage.said().and_then(|said| said["energy_j"].as_f64());
        Ok(worked.map(|got| measured(&emulation, &got, said.map(|joules| (asked, joules)))))
    }

    fn payload(&self, size: DataSize) -> Result<Arc<Payload>, LabError> {
        let mut payloads = self.payloads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, payload)) = payloads.iter().find(|(known, _)| *known == size) {
            return Ok(payload.clone());
        }
        let payload = Arc::new(Payload::new(size).map_err(LabError::at(format!("a file of {size}")))?);
        payloads.push((size, payload.clone()));
        Ok(payload)
    }
}

/// A file that nobody downloads whole.
const ENDLESS: &str = "endless";
/// Nothing here needs half of it: 256 MB at 1 Mbit/s.
const LIMIT: Duration = Duration::from_secs(4500);

/// The same client on the lab's stage.
fn of(who: Who) -> stage::Who {
    match who {
        // What the MDP's scheduler comes to (§4.6); it is computed in virtual time.
        Who::TcpWifi | Who::Mdp => stage::Who::Single(0),
        Who::TcpLte => stage::Who::Single(1),
        Who::Mptcp => stage::Who::Mptcp,
        Who::WifiFirst => stage::Who::WifiFirst,
        Who::Emptcp => stage::Who::EMPTCP,
        Who::Settled => stage::Who::SETTLED,
        Who::Table => stage::Who::TABLE,
        Who::Marline => stage::Who::MARLINE,
        Who::Throughput => stage::Who::THROUGHPUT,
    }
}

/// When whoever decides should have found out.
const LATER: Duration = Duration::from_secs(5);

fn measured(emulation: &Emulation, got: &Got, said: Option<(Duration, f64)>) -> Measured {
    let account = joules::of_packets(emulation, device(DEVICE));
    let wakes = joules::wakes(emulation, device(DEVICE));
    let links = emulation.links.iter().enumerate().map(|(at, link)| LinkMeasured {
        name: link.name.clone(),
        carried_bytes: link.down.delivered.size.bytes(),
        payload_bytes: link.signs.iter().map(|sign| u64::from(sign.payload)).sum(),
        energy_j: joules::of_link(&account, at),
        wakes: wakes.get(at).copied(),
        priorities_s: link.priorities.iter().map(|asked| (asked.at.as_secs_f64(), asked.backup)).collect(),
    });
    Measured {
        seconds: got.time.as_secs_f64(),
        bytes: got.bytes,
        energy_j: account.total().as_joules_f64(),
        links: links.collect(),
        pause_s: got.pause.as_secs_f64(),
        later_mbps: (got.time > LATER * 2).then(|| got.rate_from(LATER) * 8.0 / 1e6),
        suspended: Suspended::of(emulation, 1, got.time),
        said_j: said.map(|(_, joules)| joules),
        said_packets_j: said
            .map(|(asked, _)| joules::until(emulation, device(DEVICE), asked).total().as_joules_f64()),
        course: course(emulation, got.time),
        late_s: emulation.lateness.p99.as_secs_f64(),
        unseen: emulation.links.iter().map(|link| link.unseen).sum(),
    }
}

fn course(emulation: &Emulation, end: Duration) -> Vec<Point> {
    let step = Duration::from_secs(STEP_S.into());
    let slots = (step.as_nanos() / Emulation::SLOT.as_nanos()) as usize;
    let mbps = |link: usize, at: usize| {
        let timeline = emulation.links.get(link).map(|link| link.down_timeline.as_slice()).unwrap_or_default();
        let bytes: u64 = timeline.iter().skip(at * slots).take(slots).map(|size| size.bytes()).sum();
        (bytes as f64 * 8.0 / 1e6 / step.as_secs_f64() * 1e3).round() / 1e3
    };
    let curve = joules::curve(emulation, device(DEVICE), step, end);
    let point = |(at, joules): (usize, &f64)| Point {
        mbps: [mbps(0, at), mbps(1, at)],
        joules: (joules * 1e3).round() / 1e3,
    };
    curve.iter().enumerate().map(point).collect()
}

/// Whether a run ended because the user wanted it.
pub(super) fn is_stop(why: &str) -> bool {
    why == STOPPED
}
