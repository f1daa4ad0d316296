//! Which packets get lost: independently, or in bursts.
//!
//! Bernoulli: `loss=0.5%`. Gilbert-Elliott: `loss=ge:1%/25%/50%`, in this order: from the good state to the bad one
//! with each packet, back from the bad one, and lost while in the bad one (none is lost in the good one). The mean is
//! `enter / (enter + leave) × bad`, here 1.92 %. (Gilbert, BSTJ 1960; his h is what *survives* in the bad state, which
//! is why the letters are not used.)

use std::fmt;
use std::str::FromStr;

use marline_core::units::Ratio;

use super::SpecError;

/// A loss model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Each packet by itself.
    Independent(Ratio),
    /// In bursts.
    GilbertElliott {
        /// From the good state to the bad one, asked with each packet.
        enter_bad: Ratio,
        /// From the bad state to the good one, asked with each packet.
        leave_bad: Ratio,
        /// Lost while the state is bad.
        loss_in_bad: Ratio,
    },
}

impl Loss {
    /// No packet.
    pub const NONE: Self = Self::Independent(Ratio::ZERO);

    /// The share that is lost in the long run.
    pub fn mean(self) -> Ratio {
        match self {
            Self::Independent(share) => share,
            Self::GilbertElliott { enter_bad: enter, leave_bad: leave, loss_in_bad: bad } => {
                let bad_share = Ratio::of(u64::from(enter.ppm()), u64::from(enter.ppm()) + u64::from(leave.ppm()));
                Ratio::of(u64::from(bad_share.ppm()) * u64::from(bad.ppm()), 1_000_000_000_000)
            }
        }
    }
}

impl From<Ratio> for Loss {
    fn from(fraction: Ratio) -> Self {
        Self::Independent(fraction)
    }
}

const EXPECTED_LOSS: &str = "a share such as 0.5% (at most 100%), or ge:ENTER/LEAVE/BAD such as ge:1%/25%/50%";

impl FromStr for Loss {
    type Err = SpecError;

    fn from_str(s: &str) -> Result<Self, SpecError> {
        let error = || SpecError::new("loss", s, EXPECTED_LOSS);
        let fraction = |text: &str| match text.parse::<Ratio>() {
            Ok(share) if share <= Ratio::ONE => Ok(share),
            _ => Err(error()),
        };
        let Some(parts) = s.strip_prefix("ge:") else {
            return fraction(s).map(Self::Independent);
        };
        match parts.split('/').collect::<Vec<_>>().as_slice() {
            [enter, leave, bad] => Ok(Self::GilbertElliott {
                enter_bad: fraction(enter)?,
                leave_bad: fraction(leave)?,
                loss_in_bad: fraction(bad)?,
            }),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Independent(share) => write!(f, "{share}"),
            Self::GilbertElliott { enter_bad: enter, leave_bad: leave, loss_in_bad: bad } => {
                write!(f, "ge:{enter}/{leave}/{bad}")
            }
        }
    }
}
