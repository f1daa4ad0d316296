//! How long 802.11 frames take on the air.
//!
//! In: a preset, a packet's size, a PHY rate. Out: durations.
//!
//! Figures from IEEE 802.11-2007: long-preamble DSSS §15 and §18 (slot 20 µs, SIFS 10 µs, PLCP 192 µs, short 96 µs,
//! windows 31 and 1023), ERP-OFDM §19 and §17 (slot 9 µs alone and 20 µs beside 802.11b stations, preamble and signal
//! 20 µs, symbols of 4 µs, signal extension 6 µs, windows 15 and 1023). A data frame is the IP packet and 36 bytes:
//! MAC header 24, LLC/SNAP 8, FCS 4. Acknowledgement and CTS 14 bytes, RTS 20.
//!
//! | preset | cell | UDP payload, 1464 B datagrams |
//! |---|---|---|
//! | `11g-mixed` | 802.11g beside b stations: long slots, CTS-to-self at 11 Mbit/s with short preamble | 19.1 Mbit/s |
//! | `11g` | 802.11g alone at 54 Mbit/s | 29.8 |
//! | `11b` | 11 Mbit/s, long preamble, link acknowledgements at 1 Mbit/s | 5.9 |
//! | `11b-rts` | the same with RTS/CTS | 4.4 |
//! | `11b-paper` | `11b` whose client sends at 1 Mbit/s: what comes nearest to Super-aggregation's 70 % | 5.9 |

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize, Duration};

/// A kind of 802.11 cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WifiPreset {
    /// 802.11g beside 802.11b stations.
    GMixed,
    /// 802.11g alone.
    G,
    /// 802.11b.
    B,
    /// 802.11b with RTS/CTS.
    BRts,
    /// 802.11b with a slow client.
    BPaper,
}

impl WifiPreset {
    const NAMES: [(Self, &'static str); 5] = [
        (Self::GMixed, "11g-mixed"),
        (Self::G, "11g"),
        (Self::B, "11b"),
        (Self::BRts, "11b-rts"),
        (Self::BPaper, "11b-paper"),
    ];
}

/// The word is no preset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected 11g-mixed, 11g, 11b, 11b-rts or 11b-paper")]
pub struct UnknownPreset;

impl FromStr for WifiPreset {
    type Err = UnknownPreset;
    fn from_str(s: &str) -> Result<Self, UnknownPreset> {
        Self::NAMES.iter().find(|(_, name)| *name == s).map(|(preset, _)| *preset).ok_or(UnknownPreset)
    }
}

impl fmt::Display for WifiPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(preset, _)| preset == self).map_or("", |(_, name)| name))
    }
}

/// How frames are modulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Modulation {
    /// Preamble, then bits at the rate.
    Dsss { preamble: Duration },
    /// Preamble and signal, then symbols of 4 µs, then the signal extension.
    Ofdm,
}

impl Modulation {
    fn frame_time(self, size: DataSize, rate: Bitrate) -> Duration {
        match self {
            Self::Dsss { preamble } => preamble + size / rate,
            Self::Ofdm => {
                // 16 service bits and 6 tail bits frame the data (§17.3.2).
                let bits_per_symbol = (rate.bits_per_sec() / 250_000).max(1);
                let symbols = (22 + 8 * size.bytes()).div_ceil(bits_per_symbol);
                Duration::from_micros(26_u64.saturating_add(symbols.saturating_mul(4)))
            }
        }
    }
}

/// What comes before a data frame to keep others off the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProtectionFrames {
    None,
    /// The sender's own CTS, this long.
    Cts(Duration),
    /// RTS and CTS, each this long.
    Rts(Duration, Duration),
}

/// Timing of one cell.
#[derive(Clone, Debug)]
pub(crate) struct Phy {
    pub(super) slot: Duration,
    pub(super) difs: Duration,
    pub(super) cw_min: u64,
    pub(super) cw_max: u64,
    pub(super) rates: [Bitrate; 2],
    modulation: Modulation,
    protection: ProtectionFrames,
    /// The link's own acknowledgement frame.
    ack_time: Duration,
}

const SIFS: Duration = Duration::from_micros(10);
/// MAC header, LLC/SNAP and FCS.
const FRAME_OVERHEAD: DataSize = DataSize::from_bytes(36);
const ACK_OR_CTS_SIZE: DataSize = DataSize::from_bytes(14);
const RTS_SIZE: DataSize = DataSize::from_bytes(20);

impl Phy {
    pub(super) fn from_preset(preset: WifiPreset) -> Self {
        let mbps = Bitrate::from_mbps;
        let long = Modulation::Dsss { preamble: Duration::from_micros(192) };
        let short = Modulation::Dsss { preamble: Duration::from_micros(96) };
        let b = Self::with_timing(20, 31, [mbps(11), mbps(11)], long, long.frame_time(ACK_OR_CTS_SIZE, mbps(1)));
        let g = |slot| {
            let ack = Modulation::Ofdm.frame_time(ACK_OR_CTS_SIZE, mbps(24));
            Self::with_timing(slot, 15, [mbps(54), mbps(54)], Modulation::Ofdm, ack)
        };
        match preset {
            WifiPreset::GMixed => {
                Self { protection: ProtectionFrames::Cts(short.frame_time(ACK_OR_CTS_SIZE, mbps(11))), ..g(20) }
            }
            WifiPreset::G => g(9),
            WifiPreset::B => b,
            WifiPreset::BRts => {
                let (rts, cts) = (long.frame_time(RTS_SIZE, mbps(1)), long.frame_time(ACK_OR_CTS_SIZE, mbps(1)));
                Self { protection: ProtectionFrames::Rts(rts, cts), ..b }
            }
            WifiPreset::BPaper => Self { rates: [mbps(11), mbps(1)], ..b },
        }
    }

    fn with_timing(slot: u64, cw_min: u64, rates: [Bitrate; 2], modulation: Modulation, ack: Duration) -> Self {
        let slot = Duration::from_micros(slot);
        let difs = SIFS + slot * 2;
        Self {
            slot,
            difs,
            cw_min,
            cw_max: 1023,
            rates,
            modulation,
            protection: ProtectionFrames::None,
            ack_time: ack,
        }
    }

    /// From the first bit on the air to the end of the data frame.
    pub(super) fn time_to_data_end(&self, size: DataSize, rate: Bitrate) -> Duration {
        let protection_time = match self.protection {
            ProtectionFrames::None => Duration::ZERO,
            ProtectionFrames::Cts(cts) => cts + SIFS,
            ProtectionFrames::Rts(rts, cts) => rts + SIFS + cts + SIFS,
        };
        protection_time + self.modulation.frame_time(size + FRAME_OVERHEAD, rate)
    }

    /// From the end of the data frame to the end of its acknowledgement.
    pub(super) fn ack_duration(&self) -> Duration {
        SIFS + self.ack_time
    }

    /// From the first bit to the moment at which the sender knows that no answer comes.
    pub(super) fn time_to_collision_end(&self, size: DataSize, rate: Bitrate) -> Duration {
        match self.protection {
            // Only the RTS is lost; that is what it is for.
            ProtectionFrames::Rts(rts, cts) => rts + SIFS + cts,
            _ => self.time_to_data_end(size, rate) + self.ack_duration(),
        }
    }

    /// One exchange with the waits before it, when no one else sends.
    pub(super) fn mean_exchange(&self, size: DataSize, rate: Bitrate) -> Duration {
        let slots = u32::try_from(self.cw_min).unwrap_or(u32::MAX);
        let mean_wait = self.difs + self.slot * slots / 2;
        mean_wait + self.time_to_data_end(size, rate) + self.ack_duration()
    }
}
