//! A machine that dies between two steps, for tests.
//!
//! In: after how many steps. Out: from then on no step is carried out any more, whatever the code still tries.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Steps that are left; none: no end.
    static STEPS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// One change of the machine or of the ledger.
pub(super) fn crash_point() -> io::Result<()> {
    match STEPS_LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("the run was killed here")),
        Some(steps_left) => {
            STEPS_LEFT.set(Some(steps_left - 1));
            Ok(())
        }
    }
}

/// This thread's run dies after so many steps; none: it lives.
pub(super) fn crash_after(steps: Option<u32>) {
    STEPS_LEFT.set(steps);
}

/// Whether it would die at the next step, or has.
pub(super) fn has_crashed() -> bool {
    STEPS_LEFT.get() == Some(0)
}
