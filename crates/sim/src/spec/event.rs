//! Events: changes of a running link, such as `3s:wifi=down`, `8s:wifi=up`, `3s:wifi=rate=2Mbit/s`.
//!
//! | change | meaning |
//! |---|---|
//! | `down` | all transmitted packets are lost without any signal: Wi-Fi out of range |
//! | `hold` | nothing is transmitted, packets are queued until the queue overflows: a cellular outage |
//! | `up` | end of `down` and of `hold` |
//! | `rate=` | downlink rate; also the uplink rate, unless the link has one of its own; replaces a trace |
//! | `up=` | uplink rate; replaces a trace |
//! | `loss=` | downlink loss; also the uplink loss, unless the link has an `uploss=` |
//! | `rtt=`, `jitter=` | new values for the fields of the link |
//!
//! On an 802.11 channel, rates are PHY rates. A rate of zero is a hold that the next rate ends.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, Duration, parse_duration};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

use super::format::{format_duration, format_rate};
use super::{Loss, SpecError};

/// A change of a running link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEventKind {
    /// Downlink rate; also the uplink rate unless the link has one of its own.
    Rate(Bitrate),
    /// Uplink rate; from now on it no longer follows the downlink.
    UplinkRate(Bitrate),
    /// All packets transmitted from now on are lost.
    Down,
    /// Nothing is transmitted from now on; packets are queued.
    Hold,
    /// End of an outage or a hold.
    Restore,
    /// Loss model of the downlink, starting in its good state; also of the uplink, unless the link has a loss of its own there.
    Loss(Loss),
    /// A new RTT, for packets transmitted from now on.
    Rtt(Duration),
    /// A new jitter, for packets transmitted from now on.
    Jitter(Duration),
}

impl FromStr for LinkEventKind {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let error = |expected: &str| SpecError::new("change", s, expected);
        let rate = |v: &str| v.parse::<Bitrate>().map_err(|_| error("a rate such as 2Mbit/s"));
        let time = |v: &str| parse_duration(v).map_err(|_| error("a duration such as 50ms"));
        match s.split_once('=') {
            None if s == "down" => Ok(Self::Down),
            None if s == "hold" => Ok(Self::Hold),
            None if s == "up" => Ok(Self::Restore),
            Some(("rate", v)) => rate(v).map(Self::Rate),
            Some(("up", v)) => rate(v).map(Self::UplinkRate),
            Some(("loss", v)) => v.parse().map(Self::Loss),
            Some(("rtt", v)) => time(v).map(Self::Rtt),
            Some(("jitter", v)) => time(v).map(Self::Jitter),
            _ => Err(error("down, hold, up, rate=RATE, up=RATE, loss=SHARE, rtt=TIME or jitter=TIME")),
        }
    }
}

impl fmt::Display for LinkEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "rate={}", format_rate(*rate)),
            Self::UplinkRate(rate) => write!(f, "up={}", format_rate(*rate)),
            Self::Down => f.write_str("down"),
            Self::Hold => f.write_str("hold"),
            Self::Restore => f.write_str("up"),
            Self::Loss(loss) => write!(f, "loss={loss}"),
            Self::Rtt(rtt) => write!(f, "rtt={}", format_duration(*rtt)),
            Self::Jitter(jitter) => write!(f, "jitter={}", format_duration(*jitter)),
        }
    }
}

/// A change at a time: `3s:wifi=down`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkEvent {
    /// Time since the start of the work.
    pub at: Duration,
    /// Name of the link that changes.
    pub link: String,
    /// What changes about the link.
    pub change: LinkEventKind,
}

impl FromStr for LinkEvent {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let error = || SpecError::new("event", s, "TIME:LINK=CHANGE such as 3s:wifi=down");
        let (at, remaining) = s.split_once(':').ok_or_else(error)?;
        let (link, change) = remaining.split_once('=').ok_or_else(error)?;
        if link.is_empty() {
            return Err(error());
        }
        let at = parse_duration(at).map_err(|_| error())?;
        Ok(Self { at, link: link.to_string(), change: change.parse()? })
    }
}

impl fmt::Display for LinkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", format_duration(self.at), self.link, self.change)
    }
}

impl Serialize for LinkEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LinkEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
