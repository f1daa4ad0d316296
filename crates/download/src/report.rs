//! Progress and reports: what a download and a batch publish while they run and at their end.

use serde::Serialize;

use marline_core::energy::RadioEnergy;
use marline_core::link::LinkKind;

use super::error::DownloadErrorKind;

/// Progress of a running download.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The file's size, once it is known.
    pub total: Option<u64>,
    /// Bytes stored so far, including those of an earlier run.
    pub received: u64,
    /// Bytes stored by an earlier run.
    pub resumed_bytes: u64,
    /// Bytes of the complete file that were read again for its checksum; none: no verification is running.
    pub checked_bytes: Option<u64>,
    /// Rate of all links together over about the last second, in bit/s.
    pub rate: f64,
    /// Seconds since the start of this download.
    pub elapsed_s: f64,
    /// Remaining seconds at this rate; none: the size or the rate is unknown.
    pub eta_s: Option<f64>,
    /// The links that the download may use, in the order in which they became known. A link that is held back (`--mptcp`,
    /// or a data budget that another file of the batch uses) is missing.
    pub links: Vec<LinkProgress>,
}

/// Progress of a batch.
#[derive(Clone, Debug, Default)]
pub struct BatchProgress {
    /// The files that are being downloaded, in the order of the list.
    pub files: Vec<FileProgress>,
    /// Number of files in the batch.
    pub total: usize,
    /// Number of complete files.
    pub complete: usize,
    /// Number of failed files.
    pub failed: usize,
    /// Bytes stored so far, of all files.
    pub received: u64,
    /// Size of all files together, once the size of each is known.
    pub size: Option<u64>,
    /// Rate of all files together, in bit/s.
    pub rate: f64,
    /// Seconds since the start of the batch.
    pub elapsed_s: f64,
}

/// One file of a batch.
#[derive(Clone, Debug)]
pub struct FileProgress {
    /// File name, as shown to the user.
    pub name: String,
    /// Progress of its download.
    pub progress: Progress,
}

/// Progress of one link.
#[derive(Clone, Debug)]
pub struct LinkProgress {
    /// Name of the interface.
    pub name: String,
    /// Kind of the link, such as Wi-Fi.
    pub kind: LinkKind,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// Body bytes received over it.
    pub bytes: u64,
    /// Rate over about the last second, in bit/s.
    pub rate: f64,
    /// `up`, `idle`, `silent` (stalled), `banned: …`, `down`. Before the first byte: `looking up the name`,
    /// `connecting`, `connecting again: …` or `waiting: …`, the latter two with the last error.
    pub state: String,
}

/// Result of a download, as printed by `--json`. Rates are in Mbit/s of body bytes, times in seconds from the start
/// of the download.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of these fields: [`SCHEMA`].
    pub schema: u32,
    /// The requested URL, before redirects.
    pub url: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Time from the start of the download until the last byte was written to the file or consumed by a stream's reader.
    /// A download starts with the run, before links are enumerated, or when it has waited in the queue of its batch.
    /// Checksum, fsync and renaming are not included.
    pub seconds: f64,
    /// `bytes` without `resumed_bytes`, divided by `seconds`.
    pub goodput_mbps: f64,
    /// Name of the scheduling policy.
    pub policy: &'static str,
    /// With `--mptcp`: `spoken`, `fell-back` (not supported by the server or a middlebox), `stripped` (negotiated,
    /// and then removed by a middlebox), `unavailable` (not supported by this kernel) or `unknown` (no connection
    /// was opened). Null: MPTCP was not requested. If it is `spoken`, the bytes of all links are counted for the
    /// first one, and the energy is null.
    pub mptcp: Option<&'static str>,
    /// All links, in the order in which they became known.
    pub links: Vec<LinkReport>,
    /// Seconds between the last bytes of the first and of the last link to finish; null: fewer than two links were
    /// in use.
    pub link_delta_s: Option<f64>,
    /// Body bytes that were received and not needed.
    pub wasted_bytes: u64,
    /// CPU time of this process since its start (user and system), in seconds; in a batch that of all downloads so far.
    pub cpu_s: f64,
    /// Peak resident memory of this process since its start.
    pub peak_rss_bytes: u64,
    /// Bytes stored by an earlier run.
    pub resumed_bytes: u64,
    /// Path of the file as the user wrote it; null: standard output.
    pub path: Option<String>,
    /// Device whose radio model was used; null: energy was not computed.
    pub energy_model: Option<String>,
    /// Energy that this device would have used for the run: its links, including the radio tails after the run, and
    /// the rest of the device if the model describes it. Null: the model describes none of the links.
    pub energy_j: Option<f64>,
    /// Energy that this host took from its battery during the run; null: it has no battery, or it was charging.
    pub battery_j: Option<f64>,
    /// Mean power of the battery during the run; null as `battery_j`.
    pub battery_w: Option<f64>,
}

/// Version of the report. It is increased when a field is renamed or removed, or changes its meaning.
pub const SCHEMA: u32 = 1;

/// A failed download, as printed by `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct FailureReport {
    /// Version of these fields, as in [`Report`].
    pub schema: u32,
    /// The requested URL, before redirects.
    pub url: String,
    /// The error message, in one line.
    pub error: String,
    /// Category of the failure.
    pub kind: DownloadErrorKind,
    /// Exit code for this category.
    pub exit_code: u8,
}

/// Counters of one link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// Name of the interface.
    pub name: String,
    /// Kind of the link, such as `wifi`.
    pub kind: &'static str,
    /// Body bytes received over it, whether needed or not.
    pub bytes: u64,
    /// `bytes` divided by the time from the first to the last byte; null: no bytes, or all at once.
    pub goodput_mbps: Option<f64>,
    /// Number of requests sent.
    pub requests: u64,
    /// Number of connections opened.
    pub connections: u64,
    /// Time of the first byte; null: no byte was received.
    pub first_byte_s: Option<f64>,
    /// Time of the last byte; null: no byte was received.
    pub last_byte_s: Option<f64>,
    /// Minimum RTT in milliseconds; null: not measured.
    pub rtt_ms: Option<f64>,
    /// Number of connections and responses that failed and were retried.
    pub retries: u64,
    /// `up`, `idle`, `silent` (stalled), `banned: …`, `down`.
    pub state: String,
    /// Source of the resolved addresses, such as a name server.
    pub dns: Option<String>,
    /// Energy of the link's radio, including the tail after the run; null: the model does not describe it.
    pub energy_j: Option<f64>,
    /// `energy_j` by state of the radio.
    pub energy: Option<LinkEnergy>,
}

/// Energy of one link by state of its radio, in joules.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkEnergy {
    /// Promotions: transitions from idle to active.
    pub promotion_j: f64,
    /// While bytes were transferred.
    pub active_j: f64,
    /// Tails: after transfers, until the radio was idle.
    pub tail_j: f64,
    /// While the radio was idle.
    pub idle_j: f64,
}

impl From<RadioEnergy> for LinkEnergy {
    fn from(radio_energy: RadioEnergy) -> Self {
        Self {
            promotion_j: radio_energy.promotion.as_joules_f64(),
            active_j: radio_energy.active.as_joules_f64(),
            tail_j: radio_energy.tail_total().as_joules_f64(),
            idle_j: radio_energy.idle.as_joules_f64(),
        }
    }
}
