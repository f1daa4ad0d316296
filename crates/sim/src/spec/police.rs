//! A policer's rate and burst: `police=20Mbit/s:64KiB`.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize};

use super::SpecError;
use super::print::{print_rate, print_size};

/// A token bucket that drops what exceeds it and never delays (the single rate of RFC 2697). Each direction of a link
/// has a bucket of its own, in front of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Police {
    /// How fast the bucket fills, in bits of IP packets.
    pub rate: Bitrate,
    /// The size of the bucket, which is full at the start.
    pub burst: DataSize,
}

pub(super) const EXPECTED: &str = "RATE:BURST, both above zero, such as 20Mbit/s:64KiB";

impl FromStr for Police {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let refused = || SpecError::new("police", s, EXPECTED);
        let (rate, burst) = s.split_once(':').ok_or_else(refused)?;
        let (rate, burst) = (rate.parse().map_err(|_| refused())?, burst.parse().map_err(|_| refused())?);
        if rate == Bitrate::ZERO || burst == DataSize::ZERO {
            return Err(refused());
        }
        Ok(Self { rate, burst })
    }
}

impl fmt::Display for Police {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", print_rate(self.rate), print_size(self.burst))
    }
}
