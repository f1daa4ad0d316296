//! Text format of a policer's rate and burst: `police=20Mbit/s:64KiB`.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize};

use super::SpecError;
use super::format::{format_rate, format_size};

/// A token bucket that drops nonconforming packets and never delays (a single-rate policer as in RFC 2697). Each
/// direction of a link has its own bucket, in front of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicerSpec {
    /// Fill rate, in bits of IP packets.
    pub rate: Bitrate,
    /// Size of the bucket, which is full at the start.
    pub burst: DataSize,
}

pub(super) const EXPECTED_POLICER: &str = "RATE:BURST, both above zero, such as 20Mbit/s:64KiB";

impl FromStr for PolicerSpec {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let error = || SpecError::new("police", s, EXPECTED_POLICER);
        let (rate, burst) = s.split_once(':').ok_or_else(error)?;
        let (rate, burst) = (rate.parse().map_err(|_| error())?, burst.parse().map_err(|_| error())?);
        if rate == Bitrate::ZERO || burst == DataSize::ZERO {
            return Err(error());
        }
        Ok(Self { rate, burst })
    }
}

impl fmt::Display for PolicerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", format_rate(self.rate), format_size(self.burst))
    }
}
