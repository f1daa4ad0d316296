//! What happens to a link while it runs: `3s:wifi=down`, `8s:wifi=up`, `3s:wifi=rate=2Mbit/s`.
//!
//! | change | what it means |
//! |---|---|
//! | `down` | whatever the link has sent vanishes, silently: Wi-Fi out of range |
//! | `hold` | nothing is sent, packets wait and the queue overflows: a cellular outage |
//! | `up` | the end of `down` and of `hold` |
//! | `rate=` | towards the client, and from it too unless the link has an uplink of its own; ends a trace |
//! | `up=` | the rate from the client; ends a trace |
//! | `loss=` | towards the client, and from it too unless the link has an `uploss=` |
//! | `rtt=`, `jitter=` | as in the link's own line, from now on |
//!
//! On an 802.11 medium the rates are PHY rates. A rate of zero is a hold that another rate ends.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, Duration, parse_duration};
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

use super::print::{print_duration, print_rate};
use super::{Loss, SpecError};

/// A change of a running link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The rate towards the client; from it too unless the link has an uplink of its own.
    Rate(Bitrate),
    /// The rate from the client.
    Up(Bitrate),
    /// What is sent from now on vanishes.
    Down,
    /// Nothing is sent from now on; packets wait.
    Hold,
    /// The link works again.
    Back,
    /// Another loss model, beginning in its good state.
    Loss(Loss),
    /// Another delay, for packets sent from now on.
    Rtt(Duration),
    /// Another jitter.
    Jitter(Duration),
}

impl FromStr for Change {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let refused = |expected: &str| SpecError::new("change", s, expected);
        let rate = |v: &str| v.parse::<Bitrate>().map_err(|_| refused("a rate such as 2Mbit/s"));
        let time = |v: &str| parse_duration(v).map_err(|_| refused("a duration such as 50ms"));
        match s.split_once('=') {
            None if s == "down" => Ok(Self::Down),
            None if s == "hold" => Ok(Self::Hold),
            None if s == "up" => Ok(Self::Back),
            Some(("rate", v)) => rate(v).map(Self::Rate),
            Some(("up", v)) => rate(v).map(Self::Up),
            Some(("loss", v)) => v.parse().map(Self::Loss),
            Some(("rtt", v)) => time(v).map(Self::Rtt),
            Some(("jitter", v)) => time(v).map(Self::Jitter),
            _ => Err(refused("down, hold, up, rate=RATE, up=RATE, loss=SHARE, rtt=TIME or jitter=TIME")),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "rate={}", print_rate(*rate)),
            Self::Up(rate) => write!(f, "up={}", print_rate(*rate)),
            Self::Down => f.write_str("down"),
            Self::Hold => f.write_str("hold"),
            Self::Back => f.write_str("up"),
            Self::Loss(loss) => write!(f, "loss={loss}"),
            Self::Rtt(rtt) => write!(f, "rtt={}", print_duration(*rtt)),
            Self::Jitter(jitter) => write!(f, "jitter={}", print_duration(*jitter)),
        }
    }
}

/// A change at a time: `3s:wifi=down`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Since the start of the work.
    pub at: Duration,
    /// The link's name.
    pub link: String,
    /// What happens to it.
    pub change: Change,
}

impl FromStr for Event {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let refused = || SpecError::new("event", s, "TIME:LINK=CHANGE such as 3s:wifi=down");
        let (at, rest) = s.split_once(':').ok_or_else(refused)?;
        let (link, change) = rest.split_once('=').ok_or_else(refused)?;
        if link.is_empty() {
            return Err(refused());
        }
        let at = parse_duration(at).map_err(|_| refused())?;
        Ok(Self { at, link: link.to_string(), change: change.parse()? })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}={}", print_duration(self.at), self.link, self.change)
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
