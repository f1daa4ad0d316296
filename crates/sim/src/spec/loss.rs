//! Loss models: independent losses or bursts.
//!
//! Bernoulli: `loss=0.5%`. Gilbert-Elliott: `loss=ge:1%/25%/50%` has the probability to enter the bad state,
//! evaluated with each packet, the probability to leave it, and the loss in the bad state (there is none in the
//! good state). The mean is `enter / (enter + leave) × bad`, here 1.92 %. (Gilbert, BSTJ 1960. His letters are not
//! used because his h is the probability to *survive* in the bad state.)

use std::fmt;
use std::str::FromStr;

use marline_core::units::Ratio;

use super::SpecError;

/// A model of random packet loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Each packet is lost independently.
    Independent(Ratio),
    /// Losses in bursts: a Markov chain with a good and a bad state.
    GilbertElliott {
        /// Probability per packet to change from the good to the bad state.
        enter_bad: Ratio,
        /// Probability per packet to change from the bad to the good state.
        leave_bad: Ratio,
        /// Loss probability in the bad state.
        loss_in_bad: Ratio,
    },
}

impl Loss {
    /// No packet is lost.
    pub const NONE: Self = Self::Independent(Ratio::ZERO);

    /// Share of lost packets in the long run.
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
