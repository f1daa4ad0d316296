//! What all trials of a command have in common.
//!
//! 1. Whatever a trial has is its own: namespaces, TUNs and rules without names outside of them, folders with a number each, the
//!    accelerator's socket in such a folder. So several trials may run side by side in one process, each by a thread.
//! 2. Labs are built, and accelerators started, one at a time: that is short, takes a whole processor, and would delay the
//!    packets of the others twice as long if two did it together.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::daemon::Daemon;
use super::{Who, World};
use crate::server::Payload;
use crate::{Lab, LabError};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Workshop {
    /// marline's executable.
    program: PathBuf,
    building: Mutex<()>,
}

impl Workshop {
    /// Finds the accelerator's program.
    pub(crate) fn new() -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        Ok(Self { program, building: Mutex::default() })
    }

    /// A lab of this world, and who helps in it, ready; nobody for plain TCP. The links' clock is to be started.
    pub(crate) fn build(
        &self,
        world: &World,
        payload: &Payload,
        who: &Who,
    ) -> Result<(Lab, Option<Daemon>), LabError> {
        // Nothing is behind this lock that a failure of another thread could have spoilt.
        let _one_at_a_time = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = world.build(payload)?;
        lab.start_links()?;
        let daemon = Daemon::start(&lab, who, &self.program, world.cell.is_some())?;
        Ok((lab, daemon))
    }
}
