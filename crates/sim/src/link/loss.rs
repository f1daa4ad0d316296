//! Whether the n-th packet of a direction is lost.
//!
//! In: a packet was sent. Out: yes or no, by the model that [`Loss`] describes.
//!
//! The state of a burst model moves with each packet, not with time: that is how the model was defined, and how its
//! mean can be told without knowing the traffic.

use crate::rng::{Purpose, Stream};
use crate::spec::Loss;

use super::Direction;

#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    model: Loss,
    in_bad: bool,
    random: Stream,
}

impl LossProcess {
    pub(crate) fn new(model: Loss, seed: u64, name: &str, direction: Direction) -> Self {
        Self { model, in_bad: false, random: Stream::new(seed, name, direction.lane() as u64, Purpose::Loss) }
    }

    pub(super) fn set(&mut self, model: Loss) {
        self.model = model;
        self.in_bad = false;
    }

    /// Asked once for each packet that was sent.
    pub(crate) fn loses(&mut self) -> bool {
        match self.model {
            Loss::Each(share) => self.random.happens(share),
            Loss::Bursts { enter, leave, bad } => {
                let turns = self.random.happens(if self.in_bad { leave } else { enter });
                self.in_bad ^= turns;
                // Two numbers for each packet, in either state, so that the n-th packet meets the n-th pair.
                let lost = self.random.happens(bad);
                self.in_bad && lost
            }
        }
    }
}
