//! What eMPTCP's text says in numbers: by how many percent one client's figure is off another's.
//!
//! In: what was done. Out: the paper's percentages beside ours, with the section that says them.
//!
//! The paper plots its joules and seconds and gives no numbers for them; percentages are all that its text has.

use super::runner::Done;
use super::setting::Who;
use super::simulate::Played;

/// A sentence of the paper.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Said {
    pub(super) artefact: &'static str,
    /// The beginning of the case's name; empty: every case.
    pub(super) case: &'static str,
    pub(super) what: What,
    pub(super) who: Who,
    pub(super) than: Who,
    /// Percent, from and to.
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) section: &'static str,
    /// What is known or supposed of why ours is another.
    pub(super) why: &'static str,
    /// The setting was chosen so that this sentence comes out: agreement shows nothing.
    pub(super) tuned: bool,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Energy,
    Time,
    PerByte,
    Bytes,
}

impl What {
    /// As rows name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Time => "time",
            Self::PerByte => "energy per byte",
            Self::Bytes => "bytes",
        }
    }

    fn of(self, played: &Played) -> f64 {
        match self {
            Self::Energy => played.energy,
            Self::Time => played.seconds,
            Self::PerByte => played.per_megabyte(),
            Self::Bytes => played.bytes,
        }
    }
}

impl Said {
    /// The same of another reading of eMPTCP's text.
    pub(super) fn read(&self, reading: Who) -> Self {
        let of = |who| if who == Who::Emptcp { reading } else { who };
        let why = if (self.artefact, reading) == ("F6", Who::Settled) { SAMPLED } else { self.why };
        Self { who: of(self.who), than: of(self.than), why, ..*self }
    }

    /// Ours: by how many percent `who` is off `than` in this case; none: it was not done.
    pub(super) fn ours(&self, done: &Done) -> Option<f64> {
        let applies = self.artefact == done.artefact && done.case.starts_with(self.case);
        let mean = |who| done.mean(who, |played| self.what.of(played));
        applies.then_some(()).and_then(|()| Some((mean(self.who)? / mean(self.than)? - 1.0) * 100.0))
    }
}

const fn said(
    artefact: &'static str,
    case: &'static str,
    what: What,
    (who, than): (Who, Who),
    (from, to): (f64, f64),
    section: &'static str,
    why: &'static str,
) -> Said {
    Said { artefact, case, what, who, than, from, to, section, why, tuned: false }
}

/// A sentence that the setting was made after ([`super::setting::background`], [`super::setting::walk`]).
const fn tuned(said: Said) -> Said {
    Said { tuned: true, ..said }
}

use What::{Bytes, Energy, PerByte, Time};
use Who::{Emptcp, Mptcp, TcpWifi};

const ON_MPTCP: (Who, Who) = (Emptcp, Mptcp);
const ON_TCP: (Who, Who) = (Emptcp, TcpWifi);
/// The paper's energies are of the whole phone's radios as measured, ours of a model that was fitted to its thresholds.
const FITTED: &str = "the model's watts hang on Huang's LTE base; the thresholds fix only ratios";
const LTE_RATE: &str = "LTE's rate is not told; 10 Mbit/s here";
/// Upstream's scheduler gives Wi-Fi's socket up to seconds of data before the join, and the window waits for them in order.
const BLOCKED: &str = "supposed: over upstream MPTCP the data queued on slow Wi-Fi holds LTE's first samples far below its rate, and \
                       our eMPTCP suspends it; the paper's kernel sent such data again over LTE";
/// Of `emptcp-settled` in figure 6; known by playing builds from before and after that commit.
const SAMPLED: &str = "our own change (commit bd8cda0): samples are spaced by the shortest round trip seen and no longer by the \
                       handshake's, and end before LTE's window is open; before it emptcp-settled took 143 to 146 s for 64 MB";
const DRAWN: &str = "the paper's rates are those of its places; here 2 to 6 and 12 to 20 Mbit/s";

/// All that the text says.
pub(super) const SAID: &[Said] = &[
    said("F5", "", Energy, ON_TCP, (0.0, 0.0), "4.2: similar to single-path TCP over WiFi", ""),
    said("F5", "", Time, ON_TCP, (0.0, 0.0), "4.2: similar to single-path TCP over WiFi", ""),
    said("F6", "", Energy, ON_MPTCP, (0.0, 0.0), "4.2: almost the same performance as MPTCP", BLOCKED),
    said("F6", "", Time, ON_MPTCP, (0.0, 0.0), "4.2: almost the same performance as MPTCP", BLOCKED),
    said("F8", "", Energy, ON_MPTCP, (-8.0, -8.0), "4.3", BLOCKED),
    said("F8", "", Time, ON_MPTCP, (22.0, 22.0), "4.3", BLOCKED),
    said("F8", "", Energy, ON_TCP, (-6.0, -6.0), "4.3", BLOCKED),
    said("F8", "", Time, ON_TCP, (-50.0, -50.0), "4.3: twice as fast", BLOCKED),
    said("F10", "", Energy, ON_MPTCP, (-11.0, -9.0), "4.4", FITTED),
    said("F10", "", Time, ON_MPTCP, (20.0, 40.0), "4.4", LTE_RATE),
    said("F10", "", Time, ON_TCP, (-70.0, 0.0), "4.4: reduced by up to 70 %", ""),
    said("F10", "n=2 λoff=0.025", Energy, (TcpWifi, Emptcp), (-11.0, -11.0), "4.4", FITTED),
    tuned(said("F10", "n=2 λoff=0.025", Time, (TcpWifi, Emptcp), (100.0, 100.0), "4.4: twice as much time", "")),
    said("F13", "", PerByte, ON_MPTCP, (-22.0, -22.0), "4.5", BLOCKED),
    said("F13", "", PerByte, ON_TCP, (8.0, 15.0), "4.5: 15 % larger, then 8 % more", BLOCKED),
    tuned(said("F13", "", Bytes, ON_MPTCP, (-25.0, -25.0), "4.5", BLOCKED)),
    tuned(said("F13", "", Bytes, ON_TCP, (28.0, 28.0), "4.5", BLOCKED)),
    said("F15", "", Energy, ON_MPTCP, (-90.0, -75.0), "5.2", FITTED),
    said("F15", "", Time, ON_MPTCP, (0.0, 0.0), "5.2: statistically similar", ""),
    said("F15", "", Energy, ON_TCP, (0.0, 0.0), "5.2: the same as TCP over WiFi", ""),
    said("F16", "bad Wi-Fi, bad LTE", Energy, ON_MPTCP, (-33.0, -33.0), "5.3", BLOCKED),
    said("F16", "bad Wi-Fi, bad LTE", Energy, ON_TCP, (-33.0, -33.0), "5.3", BLOCKED),
    said("F16", "bad Wi-Fi, bad LTE", Time, ON_MPTCP, (-20.0, -20.0), "5.3", BLOCKED),
    said("F16", "bad Wi-Fi, bad LTE", Time, (TcpWifi, Mptcp), (500.0, 500.0), "5.3: roughly 6x", DRAWN),
    said("F16", "bad Wi-Fi, good LTE", Energy, ON_MPTCP, (0.0, 0.0), "5.3: similar", BLOCKED),
    said("F16", "good Wi-Fi, bad LTE", Energy, ON_MPTCP, (-50.0, -50.0), "5.3: roughly 50 %", FITTED),
    said("F16", "good Wi-Fi, bad LTE", Time, ON_MPTCP, (20.0, 20.0), "5.3: about 20 %", ""),
    said("F16", "good Wi-Fi, good LTE", Energy, ON_MPTCP, (-50.0, -50.0), "5.3: similar to the above case", FITTED),
    said("F17", "", Energy, (Mptcp, Emptcp), (60.0, 60.0), "5.4", "the paper's joules have the browser's in them"),
    said("F17", "", Time, ON_MPTCP, (0.0, 0.0), "5.4: almost the same latency", ""),
];

/// Percentage points outside the paper's range from which on a reason is given.
pub(super) const NEAR: f64 = 5.0;
