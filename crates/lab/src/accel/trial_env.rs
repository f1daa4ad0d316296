//! What all trials of a command share.
//!
//! 1. Everything of a trial is its own: namespaces, TUNs and rules without names outside of them, numbered folders, the
//!    accelerator's socket in such a folder. So several trials may run side by side, one thread each.
//! 2. Labs are built, and accelerators started, one at a time. That is short and uses a whole processor; two at once
//!    would delay the packets of other trials twice as long.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::daemon::Daemon;
use super::{Contender, Topology};
use crate::server::Payload;
use crate::{Lab, LabError};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct TrialEnv {
    /// The executable of `marline`.
    program: PathBuf,
    building: Mutex<()>,
}

impl TrialEnv {
    /// Finds the executable of `marline`.
    pub(crate) fn new() -> Result<Self, LabError> {
        let program = crate::program::marline()?;
        Ok(Self { program, building: Mutex::default() })
    }

    /// Builds a lab of this topology with its contender. The links run while the contender starts; the caller starts them again, which is
    /// time zero of the trial.
    pub(crate) fn build(
        &self,
        world: &Topology,
        payload: &Payload,
        contender: &Contender,
    ) -> Result<(Lab, Option<Daemon>), LabError> {
        // The lock protects no data that a failed thread could have damaged.
        let _one_at_a_time = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = world.build(payload)?;
        lab.start_links()?;
        let daemon = Daemon::start(&lab, contender, &self.program, world.cell.is_some())?;
        Ok((lab, daemon))
    }
}
