//! Whether the n-th packet of a direction is lost.
//!
//! In: a packet was sent. Out: yes or no, by the model that [`Loss`] describes.
//!
//! The state of a burst model moves with each packet, not with time: that is how the model was defined, and how its
//! mean can be told without knowing the traffic.

use crate::rng::{Purpose, RandomStream};
use crate::spec::Loss;

use super::Direction;

#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    model: Loss,
    is_in_bad_state: bool,
    rng: RandomStream,
}

impl LossProcess {
    pub(crate) fn new(model: Loss, seed: u64, name: &str, direction: Direction) -> Self {
        Self {
            model,
            is_in_bad_state: false,
            rng: RandomStream::new(seed, name, direction.index() as u64, Purpose::Loss),
        }
    }

    pub(super) fn set_model(&mut self, model: Loss) {
        self.model = model;
        self.is_in_bad_state = false;
    }

    /// Asked once for each packet that was sent.
    pub(crate) fn next_is_lost(&mut self) -> bool {
        match self.model {
            Loss::Independent(share) => self.rng.bernoulli(share),
            Loss::GilbertElliott { enter_bad: enter, leave_bad: leave, loss_in_bad: bad } => {
                let changes_state = self.rng.bernoulli(if self.is_in_bad_state { leave } else { enter });
                self.is_in_bad_state ^= changes_state;
                // Two numbers for each packet, in either state, so that the n-th packet meets the n-th pair.
                let lost = self.rng.bernoulli(bad);
                self.is_in_bad_state && lost
            }
        }
    }
}
