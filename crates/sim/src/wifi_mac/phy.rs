//! Airtime of 802.11 frames, for a preset, a packet size and a PHY rate.
//!
//! Constants from IEEE 802.11-2007: long-preamble DSSS §15 and §18 (slot 20 µs, SIFS 10 µs, PLCP 192 µs, short 96
//! µs, windows 31 and 1023). ERP-OFDM §19 and §17 (slot 9 µs alone and 20 µs beside 802.11b stations, preamble and
//! signal 20 µs, symbols of 4 µs, signal extension 6 µs, windows 15 and 1023). A data frame is the IP packet and 36
//! bytes: MAC header 24, LLC/SNAP 8, FCS 4. ACK frame and CTS have 14 bytes, RTS has 20.
//!
//! | preset | cell | UDP payload, 1464 B datagrams |
//! |---|---|---|
//! | `11g-mixed` | 802.11g beside b stations: long slots, CTS-to-self at 11 Mbit/s with short preamble | 19.1 Mbit/s |
//! | `11g` | 802.11g alone at 54 Mbit/s | 29.8 |
//! | `11b` | 11 Mbit/s, long preamble, ACK frames at 1 Mbit/s | 5.9 |
//! | `11b-rts` | the same with RTS/CTS | 4.4 |
//! | `11b-paper` | `11b` with a client at 1 Mbit/s: closest to the 70 % of Super-aggregation | 5.9 |

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize, Duration};

/// Type of an 802.11 cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WifiPreset {
    /// 802.11g with 802.11b stations present.
    GMixed,
    /// 802.11g only.
    G,
    /// 802.11b without RTS/CTS.
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

/// The text is not a known preset.
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

/// Modulation, which determines the duration of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Modulation {
    /// Preamble, then bits at the PHY rate.
    Dsss { preamble: Duration },
    /// Preamble and signal field, then symbols of 4 µs, then the signal extension.
    Ofdm,
}

impl Modulation {
    fn frame_time(self, size: DataSize, rate: Bitrate) -> Duration {
        match self {
            Self::Dsss { preamble } => preamble + size / rate,
            Self::Ofdm => {
                // 16 service bits and 6 tail bits are added to the data (§17.3.2).
                let bits_per_symbol = (rate.bits_per_sec() / 250_000).max(1);
                let symbols = (22 + 8 * size.bytes()).div_ceil(bits_per_symbol);
                Duration::from_micros(26_u64.saturating_add(symbols.saturating_mul(4)))
            }
        }
    }
}

/// Frames before a data frame that reserve the channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProtectionFrames {
    None,
    Cts(Duration),
    /// RTS and CTS with their durations.
    Rts(Duration, Duration),
}

/// Timing of one cell.
#[derive(Clone, Debug)]
pub(crate) struct Phy {
    pub(super) slot: Duration,
    pub(super) difs: Duration,
    pub(super) cw_min: u64,
    pub(super) cw_max: u64,
    /// PHY rates of the downlink and of the uplink.
    pub(super) rates: [Bitrate; 2],
    modulation: Modulation,
    protection: ProtectionFrames,
    /// Duration of the ACK frame.
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
        let preset_b =
            Self::with_timing(20, 31, [mbps(11), mbps(11)], long, long.frame_time(ACK_OR_CTS_SIZE, mbps(1)));
        let g = |slot| {
            let ack = Modulation::Ofdm.frame_time(ACK_OR_CTS_SIZE, mbps(24));
            Self::with_timing(slot, 15, [mbps(54), mbps(54)], Modulation::Ofdm, ack)
        };
        match preset {
            WifiPreset::GMixed => {
                Self { protection: ProtectionFrames::Cts(short.frame_time(ACK_OR_CTS_SIZE, mbps(11))), ..g(20) }
            }
            WifiPreset::G => g(9),
            WifiPreset::B => preset_b,
            WifiPreset::BRts => {
                let (rts, cts) = (long.frame_time(RTS_SIZE, mbps(1)), long.frame_time(ACK_OR_CTS_SIZE, mbps(1)));
                Self { protection: ProtectionFrames::Rts(rts, cts), ..preset_b }
            }
            WifiPreset::BPaper => Self { rates: [mbps(11), mbps(1)], ..preset_b },
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

    /// From the start of the exchange to the end of the data frame.
    pub(super) fn time_to_data_end(&self, size: DataSize, rate: Bitrate) -> Duration {
        let protection_time = match self.protection {
            ProtectionFrames::None => Duration::ZERO,
            ProtectionFrames::Cts(cts) => cts + SIFS,
            ProtectionFrames::Rts(rts, cts) => rts + SIFS + cts + SIFS,
        };
        protection_time + self.modulation.frame_time(size + FRAME_OVERHEAD, rate)
    }

    /// From the end of the data frame to the end of its ACK frame.
    pub(super) fn ack_duration(&self) -> Duration {
        SIFS + self.ack_time
    }

    /// From the start of the exchange until the sender knows that no response comes.
    pub(super) fn time_to_collision_end(&self, size: DataSize, rate: Bitrate) -> Duration {
        match self.protection {
            // Only the RTS is lost, which is the purpose of RTS/CTS.
            ProtectionFrames::Rts(rts, cts) => rts + SIFS + cts,
            _ => self.time_to_data_end(size, rate) + self.ack_duration(),
        }
    }

    /// Mean duration of an exchange including DIFS and backoff, if no other station sends.
    pub(super) fn mean_exchange(&self, size: DataSize, rate: Bitrate) -> Duration {
        let slots = u32::try_from(self.cw_min).unwrap_or(u32::MAX);
        let mean_wait = self.difs + self.slot * slots / 2;
        mean_wait + self.time_to_data_end(size, rate) + self.ack_duration()
    }
}
