//! Random loss: decides whether the n-th packet of a direction is lost, by the model in [`Loss`].
//!
//! The state of a burst model advances with each packet, not with time. The Gilbert-Elliott model is defined this
//! way, and so its mean loss does not depend on the traffic.

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

    /// Decides about one packet; must be called once for each transmitted packet.
    pub(crate) fn next_is_lost(&mut self) -> bool {
        match self.model {
            Loss::Independent(share) => self.rng.bernoulli(share),
            Loss::GilbertElliott { enter_bad: enter, leave_bad: leave, loss_in_bad: bad } => {
                let changes_state = self.rng.bernoulli(if self.is_in_bad_state { leave } else { enter });
                self.is_in_bad_state ^= changes_state;
                // Two random numbers per packet in either state, so that the n-th packet always gets the n-th pair.
                let lost = self.rng.bernoulli(bad);
                self.is_in_bad_state && lost
            }
        }
    }
}
