//! What a download tells: while it runs, and at its end.

use serde::Serialize;

use marline_core::energy::RadioEnergy;
use marline_core::link::LinkKind;

use super::DownloadErrorKind;

/// Where a running download stands.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The file's size, once it is known.
    pub total: Option<u64>,
    /// Bytes in their place, those of an earlier run included.
    pub received: u64,
    /// Bytes that an earlier run left.
    pub resumed_bytes: u64,
    /// Bytes of the complete file that have been read again for its checksum, while that goes on.
    pub checked_bytes: Option<u64>,
    /// Bit/s of all links together, over the last second or so.
    pub rate: f64,
    /// Seconds since the start.
    pub elapsed_s: f64,
    /// Seconds left at this rate, once that can be said.
    pub eta_s: Option<f64>,
    /// Each link, in the order of the run.
    pub links: Vec<LinkProgress>,
}

/// Where a batch stands.
#[derive(Clone, Debug, Default)]
pub struct BatchProgress {
    /// The files that are being downloaded, in the order of the list.
    pub files: Vec<FileProgress>,
    /// How many files there are.
    pub total: usize,
    /// How many are complete, and how many will not be.
    pub complete: usize,
    /// See `complete`.
    pub failed: usize,
    /// Bytes in their place, of all files.
    pub received: u64,
    /// Bytes of all files, once each has told its size.
    pub size: Option<u64>,
    /// Bit/s of all files together.
    pub rate: f64,
    /// Seconds since the start.
    pub elapsed_s: f64,
}

/// One file of a batch.
#[derive(Clone, Debug)]
pub struct FileProgress {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub progress: Progress,
}

/// Where one link stands.
#[derive(Clone, Debug)]
pub struct LinkProgress {
    /// The interface.
    pub name: String,
    /// Its kind.
    pub kind: LinkKind,
    /// Whether its bytes cost money.
    pub metered: bool,
    /// Bytes that came over it.
    pub bytes: u64,
    /// Bit/s over the last second or so.
    pub rate: f64,
    /// `up`, `idle`, `silent`, `banned: …`, `down`; and before anything has come `looking up the name`, `connecting`,
    /// `connecting again: …` or `waiting: …`, with what went wrong.
    pub state: String,
}

/// The end of a download, as `--json` prints it. Rates are 10^6 bit/s of body bytes, times are seconds from the start
/// of the command.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of these fields: [`SCHEMA`].
    pub schema: u32,
    /// The URL that was asked for.
    pub url: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// From the start of the run, before links are looked for, to the last byte in its place: written to the file,
    /// or taken by a stream's reader. What follows (checksum, sync, the final name) is not in it.
    pub seconds: f64,
    /// `bytes` less what an earlier run left, over `seconds`.
    pub goodput_mbps: f64,
    /// The policy.
    pub policy: &'static str,
    /// With `--mptcp`: `spoken`, `fell-back` (the server, or something on the way, does not speak it), `stripped` (it
    /// was spoken, and then taken out on the way), `unavailable` (this machine has none) or `unknown` (no connection
    /// stood). Null: it was not asked for. Where it was spoken, what came over all links is counted with the first one,
    /// and energy is null.
    pub mptcp: Option<&'static str>,
    /// Each link, in the order of the run.
    pub links: Vec<LinkReport>,
    /// Seconds between the last bytes of the first and of the last link to end; null with fewer than two links in use.
    pub link_delta_s: Option<f64>,
    /// Body bytes received and not needed.
    pub wasted_bytes: u64,
    /// User and system time of this process.
    pub cpu_s: f64,
    /// The most memory that this process has had resident.
    pub peak_rss_bytes: u64,
    /// Bytes that an earlier run left.
    pub resumed_bytes: u64,
    /// Where the file is, as the user wrote it; null for standard output.
    pub path: Option<String>,
    /// The device whose radios the links were taken for; null: none.
    pub energy_model: Option<String>,
    /// What that device would have drawn for this run: the links below, with the tails that follow it, and the rest of
    /// the device where the model describes it. Null: the model describes none of the links.
    pub energy_j: Option<f64>,
    /// What this machine drew from its battery during the run; null: it has none, or was being charged.
    pub battery_j: Option<f64>,
    /// The same, on average.
    pub battery_w: Option<f64>,
}

/// What `schema` says: it grows when a field is renamed, removed, or changes its meaning.
pub const SCHEMA: u32 = 1;

/// A file that could not be had, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct FailureReport {
    /// As in [`Report`].
    pub schema: u32,
    /// The URL that was asked for.
    pub url: String,
    /// Why, in one line.
    pub error: String,
    /// What sort of failure it is.
    pub kind: DownloadErrorKind,
    /// The exit code that belongs to it.
    pub exit_code: u8,
}

/// What one link did.
#[derive(Clone, Debug, Serialize)]
pub struct LinkReport {
    /// The interface.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// Body bytes that came over it, needed or not.
    pub bytes: u64,
    /// `bytes` over the time from its first byte to its last; null: they came at once, or not at all.
    pub goodput_mbps: Option<f64>,
    /// Requests sent.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// When its first byte came; null: never.
    pub first_byte_s: Option<f64>,
    /// When its last byte came; null: never.
    pub last_byte_s: Option<f64>,
    /// The smallest round-trip time seen, in milliseconds; null: none seen.
    pub rtt_ms: Option<f64>,
    /// Connections and answers that failed and were tried again.
    pub retries: u64,
    /// `up`, `idle`, `silent`, `banned: …`, `down`.
    pub state: String,
    /// Where its names were resolved.
    pub dns: Option<String>,
    /// What the link's radio would have drawn, the tail after the run included; null: the model does not describe it.
    pub energy_j: Option<f64>,
    /// `energy_j` by the radio's states.
    pub energy: Option<LinkEnergy>,
}

/// The energy of one link, by the states of its radio.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LinkEnergy {
    /// From idle to active.
    pub promotion_j: f64,
    /// While bytes came.
    pub active_j: f64,
    /// Afterwards.
    pub tail_j: f64,
    /// While nothing happened.
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
